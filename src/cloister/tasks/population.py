"""Population intervals: noise and sampling together, from released values alone.

A noise interval is about the answer of the records at hand. A **population interval** is about the
truth where these records came from, as if each unit were drawn independently: it adds the
variance of the sample. Results that have one hold ``NAME_population_low`` and
``NAME_population_high`` beside ``NAME_low`` and ``NAME_high``; a
:class:`~cloister.core.estimate.Estimate` holds both ends in `population`.

References
----------
.. [AC98] Agresti and Coull, "Approximate is better than exact for interval estimation of binomial
   proportions", The American Statistician 52, 1998.
.. [Z08] Zou and Donner, "Construction of confidence limits about effect measures", Statistics in
   Medicine 27, 2008: limits of a sum of independent errors from the limits of each.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.estimate import Estimate
from cloister.protocol.task import INTERVAL_95

Bounds = tuple[float, float]
"""The least and greatest possible value."""
POPULATION_NOTE = (
    "A population interval also holds the chance that brought these records here, as if each were "
    "drawn by itself."
)
"""What a report says beside population intervals."""


def population_interval(
    value: Floats,
    low: Floats,
    high: Floats,
    sampling_variance: Floats | float,
    *,
    box: Bounds = (-np.inf, np.inf),
) -> tuple[Floats, Floats]:
    """Return a 95 % interval of noise and sampling from one of the noise alone [Z08]_.

    Its ends are ``value - sqrt((value - low)**2 + z**2 v)`` and likewise above, cut to the box of
    possible values. A value outside of its noise interval counts as its nearer end. The variance is
    that of the same statistic over samples of this size, made from released values.
    """
    middle = np.clip(value, low, high)
    spread = INTERVAL_95["gaussian"] * np.sqrt(np.maximum(sampling_variance, 0.0))
    return (
        np.clip(middle - np.hypot(middle - low, spread), *box),
        np.clip(middle + np.hypot(high - middle, spread), *box),
    )


def sampled(
    estimate: Estimate, variance: Floats | float, box: Bounds = (-np.inf, np.inf)
) -> Estimate:
    """Return an estimate with a population interval, from the variance of sampling."""
    ends = population_interval(estimate.values, estimate.low, estimate.high, variance, box=box)
    return replace(estimate, population=ends)


def share_variance(share: Floats, whole: Floats) -> Floats:
    """Return the sampling variance of a share of a whole, as if each record were drawn by itself.

    ``p (1 - p) / m`` with two records more on either side, ``m = n + 4``, so that a share of 0 or 1
    is not taken for a sure one [AC98]_. A whole below one record counts as one.
    """
    n = np.maximum(whole, 1.0)
    mended = (share * n + 2) / (n + 4)
    variance: Floats = mended * (1 - mended) / (n + 4)
    return variance
