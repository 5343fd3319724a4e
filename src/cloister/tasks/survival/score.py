"""Cox's partial likelihood from sums at coefficients 0, by post-processing.

Given a baseline hazard, the expected covariates at events in a model with coefficients b are a
ratio of sums over the records at risk, ``sum e^(b.x) x / sum e^(b.x)``. Both sums have a series
around b = 0, with sums of products of up to four covariates, weighted by cumulative hazards. So one
release at 0 gives the score at any b, and its root is the estimate. This needs no iteration over
the records. It also needs no weights ``e^(b.x)``, whose bound would multiply the noise.

The mean of x at risk falls over time, as records with a high hazard leave. Sums over all times
include its variance in the spread of x. `drift` is the variance of hazards among events, and
``drift * Var(x) b b' Var(x)`` is subtracted.

References
----------
.. [C72] Cox, "Regression models and life-tables", JRSS B 34, 1972.
.. [CS68] Cox and Snell, "A general definition of residuals", JRSS B 30, 1968: an event minus the
   cumulative hazard, whose products with covariates are the score at 0.
.. [DK65] Daleckii and Krein, "Integration and differentiation of functions of Hermitian operators",
   AMS Translations 47, 1965.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from math import comb, factorial

import numpy as np

from cloister.core.arrays import Floats, Integers
from cloister.protocol.task import INTERVAL_95

_FARTHEST, _STEP, _STEPS, _DONE = 4.0, 0.5, 40, 1e-9  # lengths of b and of a step; steps
_FLATTEST = 0.3  # smallest curvature of steps and intervals, as a share of the smallest at 0
_FLOOR = 0.4  # smallest curvature in a direction, as a share of its noise
_LEAST = 1e-6  # curvature, in records
_Z = INTERVAL_95["gaussian"]
_LEAST_WHOLE = 0.25  # smallest value of the series of the sum, as a share of the sum at 0


@dataclass(frozen=True)
class Score:
    """The estimate for covariates as they were summed, with the terms of its intervals.

    `noise` and `sampling` are covariances, and `ends` are deviations of noise below and above each
    coefficient. `length` is approximately the variance of the logarithm of the hazard among
    records. `statistic` belongs to the score test that all coefficients are 0.
    """

    coef: Floats
    noise: Floats
    ends: Floats
    sampling: Floats
    length: float
    statistic: float


@dataclass(frozen=True)
class Series:
    """Products of up to `order` of p covariates; order 2 is too short for the ratio.

    A product that can be written in m orders represents all of them, times ``sqrt(m)``. So the
    squared norm of all products of k factors is ``|x|**(2 k)``.
    """

    p: int
    order: int

    @cached_property
    def exponents(self) -> Integers:
        """Exponent of each covariate in each product, by ascending order; (n_products, p)."""
        some = (combinations_with_replacement(range(self.p), k) for k in range(self.order + 1))
        return np.array([[row.count(j) for j in range(self.p)] for part in some for row in part])

    @cached_property
    def roots(self) -> Floats:
        """Square root of the number of orders of each product."""
        table = np.array([factorial(k) for k in range(self.order + 1)], dtype=np.float64)
        orders = table[self.exponents.sum(axis=1)] / table[self.exponents].prod(axis=1)
        return np.asarray(np.sqrt(orders))

    def products(self, x: Floats) -> Floats:
        """Return the products of records of shape (p, n); shape (n_products, n)."""
        # Factor by factor, so that a record's vector does not depend on the other records.
        products = np.ones((len(self.exponents), x.shape[1]))
        for product, powers in zip(products, self.exponents, strict=True):
            for j in np.repeat(np.arange(self.p), powers):
                product *= x[j]
        return products * self.roots[:, None]

    def terms(self, b: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the factor of each sum in ``sum e^(b.x)``, and its first two derivatives by b."""
        zeros = np.zeros((2, self.p))  # a derivative of b^k / k! is the term before
        table = np.vstack([zeros, [b**k / factorial(k) for k in range(self.order + 1)]])
        factors = np.array([table[self.exponents + k, range(self.p)] for k in (2, 1, 0)])

        def term(*by: int) -> Floats:
            times = np.bincount(np.array(by, dtype=np.int64), minlength=self.p)
            return np.asarray(factors[times, :, range(self.p)].prod(axis=0) / self.roots)

        first = np.array([term(j) for j in range(self.p)])
        second = np.array([[term(i, j) for i in range(self.p)] for j in range(self.p)])
        return term(), first.T, second.T

    def around(self, middle: Floats) -> Floats:
        """Return the matrix from sums of products of x to those of ``x - middle``."""
        shift, orders = np.ones((len(self.exponents),) * 2), range(self.order + 1)
        for m, powers in zip(middle, self.exponents.T, strict=True):
            table = np.array([[comb(i, k) * (-m) ** max(i - k, 0) for k in orders] for i in orders])
            shift *= table[np.ix_(powers, powers)]
        return shift * self.roots[:, None] / self.roots

    def solve(
        self, residuals: Floats, sums: Floats, std: float, sums_std: float, drift: float
    ) -> Score:
        """Return the estimate; with a series of order 2 it is one Newton step from 0.

        Parameters
        ----------
        residuals : ndarray of shape (1 + p,)
            Noisy sums of the event minus the cumulative hazard, alone and times each covariate.
        sums : ndarray of shape (n_products,)
            Noisy sums of the cumulative hazard times :meth:`products`.
        std, sums_std : float
            Deviations of the noise in each.
        drift : float
            Variance of the cumulative hazard among events.
        """
        from scipy.optimize import brentq

        linear, eye = self.order < 3, np.eye(self.p)
        size = max(float(sums[0]), sums_std, 1.0)
        zero, first, second = self.terms(np.zeros(self.p))
        mean = sums @ first / size
        moved = self.around(mean)  # the series around the mean needs fewer terms
        sums = moved @ sums
        target = residuals[1:] - mean * residuals[0]  # the score at 0 for the fitted hazard level
        seen = np.tensordot(sums, second, 1)
        # Noise can make the curvature flat or negative, so it is at least a part of its noise in
        # every direction.
        values, vectors = np.linalg.eigh(seen)
        clear = np.hypot(np.maximum(values, _LEAST), sums_std * np.sqrt(self.p) * _FLOOR)
        held = (vectors * clear) @ vectors.T

        def inverse(curvature: Floats) -> Floats:
            values, vectors = np.linalg.eigh((curvature + curvature.T) / 2)
            return np.asarray((vectors / np.maximum(values, _FLATTEST * clear.min())) @ vectors.T)

        def expected(b: Floats) -> tuple[Floats, Floats, Floats]:
            """Return the expected score of b, and its derivatives by b and by sums."""
            terms, slopes, bends = self.terms(b)
            of_held = _moved(values, vectors, clear, second) @ b
            if linear:
                line = self.exponents.sum(axis=1) == 1
                return held @ b, held, of_held - (sums @ (terms * line)) * first / size
            # Far from 0 a truncated series of noisy sums may be negative, where the sum is not.
            whole = max(float(sums @ terms), _LEAST_WHOLE * size)
            tilted, along = sums @ slopes / whole, seen @ b
            bend = np.tensordot(sums, bends, 1) / whole - np.outer(tilted, tilted)
            length = b @ along / size
            fallen = drift * (length * seen + 2 * np.outer(along, along) / size)
            value = size * tilted - drift * length * along + (held - seen) @ b
            by_sums = size * (slopes - np.outer(terms, tilted)) / whole - first
            by_sums += np.outer(zero, tilted) + of_held - second @ b
            return value, size * bend - fallen + held - seen, by_sums

        b = np.zeros(self.p)
        for _ in range(1 if linear else _STEPS):
            value, curvature, _ = expected(b)
            step = inverse(curvature) @ (target - value)
            far = max(float(np.linalg.norm(step)), _DONE)
            # Short steps, inside the region where the series holds.
            b = b + step * (1.0 if linear else min(1.0, _STEP / far))
            b = b * min(1.0, _FARTHEST / max(float(np.linalg.norm(b)), _DONE))
            if far <= _DONE:
                break
        value, curvature, _ = expected(b)
        back, of_score = inverse(curvature), std**2 * (eye + np.outer(mean, mean))

        def noise_at(b: Floats) -> Floats:
            by_sums = moved.T @ (expected(b)[2] + residuals[0] * first / size)
            return np.asarray(back @ (of_score + sums_std**2 * by_sums.T @ by_sums) @ back)

        noise = noise_at(b)
        # Other coefficients move along with each one, as in a profile likelihood.
        reach = _Z * np.sqrt(np.diag(noise)) * back / np.diag(back)

        def limit(j: int, side: int) -> float:
            """Return the number of deviations to the end of Fieller's set of a coefficient."""
            # The noise of the sums counts by the coefficients, so each end has its own noise.

            def gap(times: float) -> float:
                at = b + side * times * reach[:, j]
                left = abs(float(back[j] @ (value - expected(at)[0])))
                return left - _Z * float(np.sqrt(noise_at(at)[j, j]))

            most = _FARTHEST / max(1.0, float(np.linalg.norm(reach[:, j])) / _FARTHEST)
            return brentq(gap, 0.0, most, xtol=0.01 * most) if gap(most) > 0 else _FARTHEST

        ends = np.tile(np.sqrt(np.diag(noise)), (2, 1))
        if not linear:
            ends *= [[limit(j, side) for j in range(self.p)] for side in (-1, 1)]
        spread = (vectors * np.maximum(values, _LEAST)) @ vectors.T + of_score
        statistic = float(target @ np.linalg.solve(spread, target))
        return Score(b, noise, ends, back, float(b @ held @ b / size), statistic)


def _moved(values: Floats, vectors: Floats, held: Floats, steps: Floats) -> Floats:
    """Return the derivative of the matrix with eigenvalues `held`, as that of `values` steps.

    This holds to first order [DK65]_. Where an eigenvalue is held at its noise, the matrix hardly
    moves.
    """
    differences, gaps = np.subtract.outer(values, values), np.subtract.outer(held, held)
    slopes = np.maximum(values, 0.0) / held
    same = np.abs(differences) < _LEAST  # the limit of the quotient, where it would be 0 / 0
    rates = np.where(same, (slopes + slopes[:, None]) / 2, gaps / np.where(same, 1.0, differences))
    derivative: Floats = vectors @ (rates * (vectors.T @ steps @ vectors)) @ vectors.T
    return derivative
