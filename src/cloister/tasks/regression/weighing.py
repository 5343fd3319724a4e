"""Treatment effects at released models: what a record adds, and effects from the sums.

With the probability e of the treatment, means m1 and m0 of the outcome in both arms and the
residual r in a record's own arm, an effect is ``sum(k (m1 - m0) + w r) / sum(k)``. The average
effect has ``k = 1`` and ``w = 1 / e`` or ``-1 / (1 - e)`` [RRZ94]_. That of overlap has
``k = e (1 - e)`` and ``w = 1 - e`` or ``-e`` [LMZ18]_ [MLG19]_; both are taken four times here. The
difference that is not adjusted has models without covariates. Then e is the released share of the
treated, and both means are the released centre of the outcome.

References
----------
.. [RRZ94] Robins, Rotnitzky, Zhao, "Estimation of regression coefficients when some regressors are
   not always observed", JASA 89, 1994.
.. [LMZ18] Li, Morgan, Zaslavsky, "Balancing covariates via propensity score weighting", JASA 113,
   2018.
.. [MLG19] Mao, Li, Greene, "Propensity score weighting analysis and treatment effect discovery",
   Statistical Methods in Medical Research 28(8), 2019: with a model of the outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np

from cloister.core.arrays import Flags, Floats, Integers
from cloister.core.display import Estimate
from cloister.protocol.task import INTERVAL_95
from cloister.tasks.intervals import KNOWN
from cloister.tasks.population import sampled
from cloister.tasks.regression.engine import ball

ESTIMANDS = ("ate", "ato")
SCORED = (*ESTIMANDS, "naive")
LEAST = 0.1
"""Least probability of an arm in the average effect, as a part of the arm's public share."""
SCORE = sqrt(0.92)
"""Factor of a score in its row; its square and its weight k have the root of 0.04 each."""
_REST = sqrt(0.04)
# Allows for errors of second order, and for skewed outcomes, of which a cut may take more away than
# counts show, see docs/proofs/treatment.md.
_SECOND_ORDER = 1.3
# Factors of a row of balance: weighted means need most precision, and have the factor 1.
_ONE, _MEAN, _SQUARE = 0.5, 0.7, 0.5
_HEAVIEST = 2.0  # weight in a row of balance
_Z = INTERVAL_95["gaussian"]


@dataclass(frozen=True)
class Scores:
    """Parts of effects of each record, in the order of `SCORED`.

    `values` are terms of the sum above the line, about a public effect, and `weights` are k.
    `slopes` are changes of the first two by weights of both models, of shape (q, m). `overlap` is
    the size of w of the effect of overlap: balance is that of these weights, which have a small
    bound.
    """

    overlap: Floats
    values: list[Floats] = field(default_factory=list)
    weights: list[Floats] = field(default_factory=list)
    slopes: list[Floats] = field(default_factory=list)


def scores_of(
    probability: Floats,
    treated: Flags,
    residual: Floats,
    effect: Floats,
    rows: Floats,
    changes: Sequence[Floats],
    outcome: Floats,
    share: float,
) -> Scores:
    """Return the scores of records from both models.

    `effect` is m1 - m0 less a public number, `rows` are those of the propensity model, and
    `changes` those of m0 and m1 by weights of the outcome model. `outcome` is about its centre, and
    `share` that of the treated.
    """
    e = probability
    h, of_ato = 4 * e * (1 - e), 4 * np.where(treated, 1 - e, e)
    # Weights of overlap have a bound. A bound on others that ignores the share of an arm may be
    # that of all its records, and then nothing would be weighted.
    kept = np.clip(e, LEAST * share, 1 - LEAST * (1 - share))
    of_ate = np.where(treated, 1 / kept, 1 / (1 - kept))
    found = Scores(of_ato)
    for k, arm, k_change, change in (
        # A probability at its end does not change.
        (np.ones_like(e), of_ate, 0.0, np.where(kept == e, 1 - of_ate, 0.0)),
        (h, of_ato, h * (1 - 2 * e), -h),
    ):
        found.values.append(k * effect + np.where(treated, arm, -arm) * residual)
        found.weights.append(k)
        moved = k_change * effect + change * residual
        control, treatment = k - np.where(treated, 0.0, arm), k - np.where(treated, arm, 0.0)
        by_outcome = treatment * changes[1] - control * changes[0]
        found.slopes.append(np.concatenate([moved * rows, by_outcome]))
    found.values.append(np.where(treated, 1 / share, -1 / (1 - share)) * outcome)
    found.weights.append(np.ones_like(e))
    return found


def effect_rows(values: Floats, weights: Floats, cut: float) -> Integers:
    """Return rows of scores cut to a length, with their squares and weights."""
    # Values are about a public effect, so few are long and most of the ball is for the score.
    values = np.clip(values / cut, -1.0, 1.0)
    return ball(np.stack([SCORE * values, _REST * values**2, _REST * weights]), 1.0)


def effect_of(
    sums: tuple[Floats, float],
    cut: float,
    lost: float = 0.0,
    by_models: float = 0.0,
    units: tuple[float, float] | None = None,
) -> tuple[float, float, float]:
    """Return the effect less the public one, with the variances of noise and of sampling.

    It is not a number if noise hides it.

    Parameters
    ----------
    sums : (ndarray, float)
        Sums of :func:`effect_rows`, and the deviation of their noise.
    lost : float
        Likely length that the cut takes away.
    by_models : float
        Variance of the sum of scores by the errors of both models.
    units : (float, float), optional
        Sum of weights that is known from elsewhere, and its deviation.
    """
    factors = np.array([cut / SCORE, cut**2 / _REST, 1 / _REST])
    score, square, weight = sums[0] * factors
    score_std, square_std, weight_std = sums[1] * factors
    if units:
        weight, weight_std = units
    # Also where the weight is not a number.
    if not weight > KNOWN * weight_std:
        return np.nan, np.inf, np.inf
    value = score / weight
    variance = score_std**2 + (lost / _Z) ** 2 + (value * weight_std) ** 2 + by_models
    noise = _SECOND_ORDER * variance / weight**2
    return value, noise, max(square - score * value, square_std) / weight**2


def balance_payload(columns: Floats, weights: Floats) -> Floats:
    """Return 1, weights, columns, columns times weights and squares; shape (2 + 3 p, m)."""
    weights = weights / 2  # usually about 1
    ones = _ONE * np.stack([np.ones_like(weights), weights])
    return np.concatenate([ones, _MEAN * columns, weights * columns, _SQUARE * columns**2])


def balance_cut(variances: float, categories: int, far: float) -> float:
    """Return the length to which payloads of balance are cut: few are longer.

    `variances` is their sum over columns of numbers, `categories` is a number of columns, and `far`
    is the reach of the farthest number.
    """
    means = (_MEAN**2 + 1) * (variances + categories)
    usual = 2 * _ONE**2 + means + _SQUARE**2 * (3 * variances + categories)
    # A cut of long rows alone would draw means and variances of skewed columns to the middle.
    one_far = (_MEAN**2 + _HEAVIEST**2) * far**2 + _SQUARE**2 * far**4
    return sqrt(max(4 * usual, usual + one_far))


@dataclass(frozen=True)
class Balance:
    """Sizes of both arms, and standardised differences; what noise hides is not a number.

    `before` and `after` are those of all columns, without weights and with them.
    """

    sizes: Floats
    size_std: float
    before: Estimate
    after: Estimate


def balance_of(words: Floats, noise_std: float) -> Balance:
    """Return the balance from sums of payloads in both arms, of shape (2, 2 + 3 p)."""
    sizes, weights = words[:, :1] / _ONE, words[:, 1:2] / _ONE
    size_std = noise_std / _ONE
    totals, weighted, squares = np.split(words[:, 2:], 3, axis=1)

    def mean(totals: Floats, over: Floats, factor: float) -> tuple[Floats, Floats]:
        n = np.where(over > KNOWN * size_std, over, np.nan)
        means = totals / factor / n
        return means, ((noise_std / factor) ** 2 + (means * size_std) ** 2) / n**2

    means, errors = mean(totals, sizes, _MEAN)
    of_squares, square_errors = mean(squares, sizes, _SQUARE)
    variances = of_squares - means**2  # may be negative, and is then not above its noise
    pooled = variances.mean(axis=0)
    pooled_error = (square_errors + 4 * means**2 * errors).sum(axis=0) / 4
    pooled = np.where(pooled > KNOWN * np.sqrt(pooled_error), pooled, np.nan)

    def standardised(means: Floats, errors: Floats) -> Estimate:
        value = (means[1] - means[0]) / np.sqrt(pooled)
        of_pooled = (value / pooled) ** 2 * pooled_error / 4
        return estimate_of(value, errors.sum(axis=0) / pooled + of_pooled)

    before, after = standardised(means, errors), standardised(*mean(weighted, weights, 1.0))
    return Balance(sizes[:, 0], size_std, before, after)


def estimate_of(value: Floats, noise: Floats, sampling: Floats | None = None) -> Estimate:
    """Return values with intervals from variances, without a bound where one is not known."""
    known = np.isfinite(value) & np.isfinite(noise)
    margin = np.where(known, _Z * np.sqrt(np.where(known, noise, 0.0)), np.inf)
    middle = np.where(known, value, 0.0)
    found = Estimate(np.where(known, value, np.nan), middle - margin, middle + margin)
    return found if sampling is None else sampled(found, np.where(known, sampling, 0.0))
