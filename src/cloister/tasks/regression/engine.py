"""Payloads of rows, and weights from their noisy sums: pure functions of one round.

A round has public weights. A unit of privacy has a gradient of its log-likelihood and a curvature,
each summed over its rows. Both are cut to a public length and divided by it. So a unit adds integer
vectors of norm at most ``2**20``, whatever its rows are. Released sums give a Newton step, with the
errors that noise and cuts leave in it.

Below, `q` is the number of entries of a row and `m` the number of units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from cloister.core.arrays import Flags, Floats, Integers
from cloister.protocol.task import INTERVAL_95

BITS = 20
"""Payloads are on the lattice of step ``2**-BITS``."""
PRIOR, PRIOR_CONSTANT = 2.0, 5.0
"""Deviation of a coefficient before any data, for a column of deviation 1; and of the constant."""
DRIFT = 0.25
"""Relative error of a gradient that is carried to other weights."""

_KNOWN = 0.5  # of the prior deviation: a larger part of it makes a coefficient "not known"
_MOST_DRIFT = 0.5
_TURNS = 3  # of the fixed point of a step and its error
_TINY = 1e-13  # relative noise, below which it makes no difference
_SPREADS = 2.0 ** -np.arange(10.0)
_Z = INTERVAL_95["gaussian"]


# Payloads -----------------------------------------------------------------------------------------


@cache
def _upper(q: int) -> tuple[Integers, Integers, Floats]:
    first, second = np.triu_indices(q)
    return first, second, np.where(first == second, 1.0, np.sqrt(2.0))


def lengths(vectors: Floats) -> Floats:
    """Return the lengths of the columns of a table of shape (k, m)."""
    total = np.zeros(vectors.shape[1])
    for entry in vectors:  # one by one: a length must not depend on other columns
        total += entry * entry
    return np.sqrt(total)


def products(rows: Floats) -> Floats:
    """Return the products of entries i <= j of each row, shape (q (q + 1) / 2, m).

    Those off the diagonal are multiplied by the root of 2, so that their length is the square of
    that of the row.
    """
    first, second, factor = _upper(len(rows))
    return np.asarray(rows[first] * rows[second] * factor[:, None])


def matrix_of(packed: Floats) -> Floats:
    """Return the symmetric matrix of a sum of :func:`products`."""
    q = int((np.sqrt(8 * len(packed) + 1) - 1) / 2)
    first, second, factor = _upper(q)
    matrix = np.zeros((q, q))
    matrix[first, second] = packed / factor
    matrix[second, first] = packed / factor
    return matrix


def packed_of(matrix: Floats) -> Floats:
    """Return the inverse of :func:`matrix_of`."""
    first, second, factor = _upper(len(matrix))
    return np.asarray(matrix[first, second] * factor)


def by_unit(values: Floats, owner: Integers | None) -> Floats:
    """Return the sums of columns over the rows of each unit; shape (k, m).

    `owner` is the number of each row's unit, None if each row is one.
    """
    if owner is None:
        return values
    size = int(owner.max(initial=-1)) + 1
    return np.array([np.bincount(owner, weights=row, minlength=size) for row in values])


def ball(vectors: Floats, cut: float) -> Integers:
    """Return vectors of shape (k, m) cut to a length and divided by it, as integers.

    The shape is (m, k). A vector is divided by the larger of its length and the cut, and truncated
    toward zero on the lattice, so that no norm grows. One whose integers are longer than
    ``2**BITS``, or are not numbers, becomes 0: the bound rests on this check alone.
    """
    with np.errstate(all="ignore"):  # a dishonest state has any numbers
        whole = np.trunc(vectors * ((1 << BITS) / np.maximum(lengths(vectors), cut)))
        norms = np.zeros(whole.shape[1])
        for entry in whole:  # exact up to the bound; rounding brings no larger sum back below it
            norms += entry * entry
    whole[:, ~(norms <= 4.0**BITS)] = 0.0
    return np.ascontiguousarray(whole.T).astype(np.int64)


# Weights ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curvature:
    """Noisy sum of products of rows times weights.

    Parameters
    ----------
    matrix : ndarray of shape (q, q)
    noise_std : float
        Of an entry off the diagonal; one on it has the root of 2 times as much.
    lost : float
        Likely length of the parts that were cut off.
    """

    matrix: Floats
    noise_std: float
    lost: float = 0.0

    def drawn_to(self, before: Curvature, same: bool) -> Curvature:
        """Return the curvature drawn to the one of a round before, as far as noise asks for it.

        If `same`, both estimate one matrix. Else the other one is scaled by the traces first, and
        counts less the more they differ.
        """
        q = len(self.matrix)
        traces = [max(float(np.trace(one.matrix)), 1.0) for one in (self, before)]
        ratio = 1.0 if same else traces[0] / traces[1]
        apart = self.matrix - ratio * before.matrix
        own, other = self.variance, ratio**2 * before.variance
        part = own / max(own + other, 1e-300)
        if not same:
            # The mean square of a difference that is noise alone.
            made = q * (q + 1) * (own + other)
            part *= min(1.0, made / max(float((apart**2).sum()), 1e-300))
        noise, lost = (
            float(np.hypot((1 - part) * now, part * ratio * then))
            for now, then in ((self.noise_std, before.noise_std), (self.lost, before.lost))
        )
        return Curvature(self.matrix - part * apart, noise, lost)

    def change_from(self, before: Curvature) -> Floats:
        """Return the change of the matrix, as far as it is above the noise."""
        q, change = len(self.matrix), self.matrix - before.matrix
        made = q * (q + 1) * (self.variance + before.variance)
        square = max(float((change**2).sum()), 1e-300)
        return np.asarray(max(0.0, 1 - made / square) * change)

    @property
    def variance(self) -> float:
        """Variance of an entry by noise and cuts."""
        return self.noise_std**2 + (self.lost / _Z) ** 2 / len(self.matrix)


@dataclass(frozen=True)
class Gradient:
    """Noisy sum of rows times residuals at some weights.

    Parameters
    ----------
    at, value : ndarray of shape (q,)
    noise_std : float
        Of each entry.
    lost : float
        Likely length of the parts that were cut off.
    """

    at: Floats
    value: Floats
    noise_std: float
    lost: float = 0.0


@dataclass(frozen=True)
class Prior:
    """The assumption before any data: weights are near those of the null model.

    Parameters
    ----------
    null, deviation : ndarray of shape (q,)
    kept : ndarray of shape (q,), bool
        Entries that are in the equations; the weights of others are 0.
    """

    null: Floats
    deviation: Floats
    kept: Flags


@dataclass(frozen=True)
class Solution:
    """Weights with the covariance of their errors; zero for entries outside the equations.

    Parameters
    ----------
    weights : ndarray of shape (q,)
        Hardly drawn to the prior: for intervals.
    likely : ndarray of shape (q,)
        Drawn to the null model as far as makes the released sums likeliest: for predictions.
    noise : ndarray of shape (q, q)
        Covariance of the errors by noise, cuts and the prior.
    known : ndarray of shape (q,), bool
        Whether the data determine a weight better than the prior.
    inverse : ndarray of shape (q, q)
        Inverse of the curvature without directions below its noise.
    """

    weights: Floats
    likely: Floats
    noise: Floats
    known: Flags
    inverse: Floats


def moved(
    at: Floats,
    gradients: Sequence[Gradient],
    curvature: Curvature,
    prior: Prior,
    *,
    drift: float,
    last: bool = False,
) -> Solution:
    """Return weights one Newton step from others, where the gradient vanishes.

    Parameters
    ----------
    at : ndarray of shape (q,)
        Weights of the step's start; other gradients are carried there by the curvature.
    drift : float
        Half of the relative change of the curvature for margins that change by 1.
    last : bool
        If True, the prior draws to the null model, else only to the step's start.

    Notes
    -----
    The equations are ``curvature @ step = gradient + noise``. The noise has the variances of the
    gradient, of the curvature times the step, and of the parts that were cut off. Without noise
    this is Newton's step.
    """
    kept = prior.kept
    at_kept, null = at[kept], prior.null[kept]
    spread = prior.deviation[kept]
    matrix = curvature.matrix[np.ix_(kept, kept)]
    values, vectors = np.linalg.eigh(matrix)
    matrix = (vectors * np.maximum(values, 0.0)) @ vectors.T  # no direction is negative
    size = max(float(values[-1]), 1e-9)
    target, variance = _combined(at, gradients, curvature, kept, drift)
    variance = max(variance, (_TINY * size) ** 2)
    left, singular, right = np.linalg.svd(matrix * spread)
    step = np.zeros(len(target))
    # The noise of the curvature counts in proportion to the step, which is found by iteration.
    for _ in range(_TURNS):
        total = variance + curvature.variance * float(step @ step)
        gain = singular / (singular**2 + total)
        pull = (right.T * (total / (singular**2 + total))) @ right
        step = spread * (right.T @ (gain * (left.T @ target)))
        if last:
            step -= spread * (pull @ ((at_kept - null) / spread))
    inverse = spread[:, None] * (right.T * gain) @ left.T
    drawn = spread[:, None] * pull
    square, outer, unit = float(step @ step), np.outer(step, step), np.eye(len(step))
    inner = unit * (variance + (curvature.lost / _Z) ** 2 / len(at) * square)
    inner += curvature.noise_std**2 * (square * unit + outer)
    noise = inverse @ inner @ inverse.T + drawn @ drawn.T
    if drift:  # the curvature changes on the way
        n = max(float(matrix[-1, -1]), 1e-9)
        way = np.sqrt(max(float(step @ matrix @ step), 0.0) / n)
        noise += min(_MOST_DRIFT, drift * way) ** 2 / 2 * (outer + square / len(step) * unit)
    toward = target + matrix @ (at_kept - null)
    likely = null + _likely(left, singular, right, spread, toward, total)
    # Without data the prior's part is the whole prior deviation.
    known = np.zeros(len(at), dtype=bool)
    known[kept] = np.sqrt(np.diag(drawn @ drawn.T)) < _KNOWN * spread
    values, vectors = np.linalg.eigh(matrix)
    least = max(curvature.noise_std * np.sqrt(len(at)), _TINY * size)
    sampling = (vectors / np.maximum(values, least)) @ vectors.T
    return Solution(
        _spread_out(at_kept + step, kept),
        _spread_out(likely, kept),
        _both_spread_out(noise, kept),
        known,
        _both_spread_out(sampling, kept),
    )


def _combined(
    at: Floats, gradients: Sequence[Gradient], curvature: Curvature, kept: Flags, drift: float
) -> tuple[Floats, float]:
    """Return the mean of gradients carried to `at` by their precision, and its variance."""
    carried, precision = [], []
    for one in gradients:
        away = at - one.at
        change = curvature.matrix @ away
        variance = one.noise_std**2 + (one.lost / _Z) ** 2
        variance += curvature.variance * float(away @ away)
        if drift:
            variance += DRIFT**2 * float(change @ change) / len(at)
        carried.append((one.value - change)[kept])
        precision.append(1 / max(variance, 1e-300))
    total = sum(precision)
    weights = np.array(precision) / total
    return np.asarray(weights @ np.array(carried)), 1 / total


def _likely(
    left: Floats, singular: Floats, right: Floats, spread: Floats, toward: Floats, variance: float
) -> Floats:
    """Return the distance from the null model at the prior scale that is likeliest."""
    seen = left.T @ toward
    total = singular**2 * _SPREADS[:, None] ** 2 + variance
    likelihood = -(np.log(total) + seen**2 / total).sum(axis=1)
    scale = _SPREADS[int(likelihood.argmax())]
    gain = singular / (singular**2 + variance / scale**2)
    return np.asarray(spread * (right.T @ (gain * seen)))


def sandwich(solution: Solution, squares: Floats, noise_std: float, kept: Flags) -> Floats:
    """Return the covariance of weights over samples, from products of the gradients of units.

    No direction of the products has less than its noise: an interval that is too narrow is worse
    than one that is too wide.
    """
    values, vectors = np.linalg.eigh(squares[np.ix_(kept, kept)])
    least = noise_std * np.sqrt(len(squares))
    meat = _both_spread_out((vectors * np.maximum(values, least)) @ vectors.T, kept)
    return np.asarray(solution.inverse @ meat @ solution.inverse)


def _spread_out(values: Floats, kept: Flags) -> Floats:
    whole = np.zeros(len(kept))
    whole[kept] = values
    return whole


def _both_spread_out(matrix: Floats, kept: Flags) -> Floats:
    whole = np.zeros((len(kept), len(kept)))
    whole[np.ix_(kept, kept)] = matrix
    return whole
