"""Tests of released estimates against no effect, for the sentences of a summary.

A sentence names the effects that it finds, so all effects of a model are tested together.

References
----------
.. [H79] Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
   Statistics 6, 1979.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import erfc, sqrt

import numpy as np

from cloister.core.arrays import Floats, Integers
from cloister.core.display import Estimate
from cloister.protocol.task import INTERVAL_95
from cloister.tasks.interval_tables import SIGNIFICANT


def normal_p(z: Floats) -> Floats:
    """Return the probability that a normal deviate is as far from 0; 1 for NaN. One axis."""
    return np.array([erfc(abs(one) / sqrt(2)) for one in np.nan_to_num(z, nan=0.0)])


def deviate(estimate: Estimate) -> float:
    """Return the distance of a single number to no effect, in standard errors of its interval."""
    *_, low, high = estimate.numbers  # of the population, if there is one
    width = (high - low) / 2
    if not 0 < width < np.inf:
        return np.nan if width else np.inf
    return INTERVAL_95["gaussian"] * ((low + high) / 2 - estimate.null) / width


def holm(p: Floats) -> Floats:
    """Return p-values of several tests after Holm's correction [H79]_; one axis."""
    order, n = np.argsort(p, kind="stable"), len(p)
    raised = np.empty(n)
    raised[order] = np.maximum.accumulate(p[order] * np.arange(n, 0, -1))
    return np.minimum(raised, 1.0)


def found(p: Floats) -> Integers:
    """Return the places of significant p-values after Holm's correction, smallest first."""
    order = np.argsort(p, kind="stable")
    return order[holm(p)[order] < SIGNIFICANT]


def clear(estimates: Sequence[Estimate]) -> Integers:
    """Return the places of numbers that differ from no effect, clearest first."""
    return found(normal_p(np.array([deviate(one) for one in estimates])))


def how_sure(shown: int, total: int, are_clear: str) -> str:
    """Return a sentence with the number of clear effects of all that were tested."""
    return f"{shown} of {total} {are_clear} beyond noise and sampling, after Holm's correction."
