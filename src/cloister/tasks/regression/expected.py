"""The errors of coefficients by noise that a plan can expect, from a made table.

A coefficient has the data unit of the target over that of its column, and its error follows from
the spread of both. Neither is public. But the error of a coefficient times the standard deviation
of its column is nearly the same for many tables. So the rounds run on a public made table, with the
noise of the plan: the covariance of the weights is the expected one. No record is read.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from cloister.core.arrays import Floats, Records, Results
from cloister.core.randomness import public_generator
from cloister.protocol.rows import summed
from cloister.protocol.task import INTERVAL_95, NoisyBlock

if TYPE_CHECKING:
    from cloister.tasks.regression.glm import GeneralizedLinear

EVENTS = (0.5, 0.1)
"""Shares of the records of a made table that have the event."""

NOTE = (
    "The error of a coefficient times the standard deviation of its column, in standard deviations "
    "of a gaussian target. A category of half of the records has 0.5, one of a tenth 0.3. Most "
    "tables are within a factor of two. Correlations above 0.5, rare categories and extreme values "
    "make it larger."
)
"""The explanation of a forecast."""

_RECORDS = 2048
_SPREAD = 0.15  # of a number, in half the width of its bounds

_Z = INTERVAL_95["gaussian"]
_LINEAR = "standardised_coefficient_half_width"
_LOGIT = "log_odds_ratio_of_a_standard_deviation_if_{:.0%}_have_the_event_half_width"


def forecast_of(task: GeneralizedLinear, noise_std: float, nominal_n: int) -> Results:
    """Return the expected 95 % half-widths of coefficients in standard deviations.

    Parameters
    ----------
    noise_std : float
        Of the first block of the last round.

    Returns
    -------
    dict
        Each of shape (width - 1,), for the columns of the design; infinite for one that noise would
        hide. Empty for other families than "gaussian" and "binomial", for weighted records and for
        units of several rows.
    """
    if task.clients != "row" or task.weights is not None or not noise_std:
        return {}
    if task.family == "gaussian":
        return {_LINEAR: half_widths(task, made_table(task), noise_std, nominal_n)}
    if task.family == "binomial":
        return {
            _LOGIT.format(share): half_widths(task, made_table(task, share), noise_std, nominal_n)
            for share in EVENTS
        }
    return {}


def half_widths(
    task: GeneralizedLinear, records: Records, noise_std: float, nominal_n: int
) -> Floats:
    """Return the half-width of each weight in standard deviations, if records are like these.

    The sums are those of `nominal_n` such records, without noise; the errors are those by noise.
    """
    model = task.model
    silos = [task.at_silo(silo).model for silo in task.sites] or [model]
    parts = [(one, records[k :: len(silos)]) for k, one in enumerate(silos)]
    first = model.blocks(task.rounds - 1)[0]
    unit = noise_std / sqrt(first.l2_squared / first.weight)
    times, known = nominal_n / len(records), model.start()
    for t in range(task.rounds):
        rows = zip(*(one.rows(t, known, part, None) for one, part in parts), strict=True)
        released = {}
        for block, of_silos in zip(model.blocks(t), rows, strict=True):
            total = np.sum([summed(own, block) for own in of_silos], axis=0)
            values = np.rint(total * times).astype(np.int64).reshape(block.shape)
            noise = unit * sqrt(block.l2_squared / block.weight)
            released[block.name] = NoisyBlock(values, noise)
        known = model.update(t, known, released)
    solution = model.solution(known)
    found = _Z * np.sqrt(np.diag(solution.noise))[:-1] * known.fit.columns.spread
    return np.where(solution.known[:-1], found, np.inf)


def made_table(task: GeneralizedLinear, events: float = 0.5) -> Records:
    """Return records whose columns are independent, on the grid.

    Numbers have an exponential distribution above their lower bound, and a normal target has its
    middle in that of its bounds. The k-th category has a share in proportion to 1 / k.
    """
    rng = public_generator("made table of a regression")
    one, columns = 1 << task.frac_bits, []
    for column, levels in enumerate(task.levels):
        if column == task.target and task.family == "binomial":
            values = np.where(rng.random(_RECORDS) < events, 1.0, -1.0)
        elif levels:
            share = 1 / np.arange(1, levels + 1)
            code = rng.choice(levels, _RECORDS, p=share / share.sum())
            values = 2 * code / max(levels - 1, 1) - 1
        elif column == task.target:
            values = _SPREAD * rng.standard_normal(_RECORDS)
        else:
            values = _SPREAD * rng.exponential(size=_RECORDS) - 1
        columns.append(np.rint(np.clip(values, -1, 1) * one))
    return np.stack(columns, axis=1).astype(np.int32)
