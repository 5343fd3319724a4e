"""Population intervals: noise and sampling error together, from released values alone.

A noise interval covers the exact value for these records. A **population interval** covers the
value in the population, as if each unit were drawn from it independently, so it adds the sampling
variance. Results with one hold ``NAME_population_low`` and ``NAME_population_high`` in addition to
``NAME_low`` and ``NAME_high``. A :class:`~cloister.core.display.Estimate` holds both ends in
`population`.

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
from cloister.core.display import Estimate
from cloister.protocol.task import INTERVAL_95

Bounds = tuple[float, float]
"""The smallest and the largest possible value."""
POPULATION_NOTE = (
    "A population interval also covers the sampling error, as if each record were drawn "
    "independently."
)
"""The note of a report below population intervals."""


def population_interval(
    value: Floats,
    low: Floats,
    high: Floats,
    sampling_variance: Floats | float,
    *,
    box: Bounds = (-np.inf, np.inf),
) -> tuple[Floats, Floats]:
    """Return a 95 % interval of noise and sampling from an interval of noise alone [Z08]_.

    The lower end is ``value - sqrt((value - low)**2 + z**2 v)``, the upper end likewise; both are
    cut to the box of possible values. A value outside its noise interval is replaced by the nearer
    end. `sampling_variance` is that of the statistic over samples of this size; it is estimated
    from released values.
    """
    # Of a value that is not known, the interval is all that is possible.
    with np.errstate(invalid="ignore"):  # without a bound there is no middle, and any place does
        half_way = np.asarray((low + high) / 2)
    half_way = np.where(np.isfinite(half_way), half_way, 0.0)
    middle = np.clip(np.where(np.isnan(value), half_way, value), low, high)
    # An estimated variance may be negative, because it is computed from noisy values.
    spread = INTERVAL_95["gaussian"] * np.sqrt(np.maximum(sampling_variance, 0.0))
    return (
        np.clip(middle - np.hypot(middle - low, spread), *box),
        np.clip(middle + np.hypot(high - middle, spread), *box),
    )


def sampled(
    estimate: Estimate, variance: Floats | float, box: Bounds = (-np.inf, np.inf)
) -> Estimate:
    """Return an estimate with a population interval from the sampling variance."""
    ends = population_interval(estimate.values, estimate.low, estimate.high, variance, box=box)
    return replace(estimate, population=ends)


def share_variance(share: Floats, whole: Floats) -> Floats:
    """Return the sampling variance of a share of a whole, for independently drawn records.

    It is ``p (1 - p) / m`` with two records added on either side, ``m = n + 4``. A share of 0 or 1
    therefore has a variance above 0 [AC98]_. A whole below one record counts as one.
    """
    n = np.maximum(whole, 1.0)  # a noisy whole may be 0 or negative
    adjusted = (share * n + 2) / (n + 4)
    variance: Floats = adjusted * (1 - adjusted) / (n + 4)
    return variance
