"""Differences between silos, from noisy sums: a random intercept, and estimates of each silo.

All functions are post-processing of released sums. A row is ``z = (1, x, y)`` in units in which
every word of a block has the same noise; products are packed and unpacked as in
:mod:`cloister.tasks.moments`.

References
----------
.. [PT71] Patterson, Thompson, "Recovery of Inter-Block Information when Block Sizes are Unequal",
   Biometrika 58(3), 1971: restricted maximum likelihood.
.. [DL86] DerSimonian, Laird, "Meta-Analysis in Clinical Trials", Controlled Clinical Trials 7(3),
   1986.
.. [V07] Viechtbauer, "Confidence Intervals for the Amount of Heterogeneity in Meta-Analysis",
   Statistics in Medicine 26(1), 2007: the Q-profile interval.
.. [KH03] Knapp, Hartung, "Improved Tests for a Random Effects Meta-Regression with a Single
   Covariate", Statistics in Medicine 22(17), 2003.
.. [HT02] Higgins, Thompson, "Quantifying Heterogeneity in a Meta-Analysis", Statistics in Medicine
   21(11), 2002: the typical variance of a study.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import nan, sqrt

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.errors import PlanError
from cloister.tasks.moments import PRODUCT, SQUARE

_SURE = 3.0  # deviations of noise, above which a sum is relied on
_PROFILE = 3.841459  # 95 % quantile of chi-squared with one degree of freedom


@dataclass(frozen=True)
class RandomIntercept:
    """A linear model with an intercept of each silo, which is drawn from a normal distribution.

    Parameters
    ----------
    coef : ndarray of shape (p + 1,)
        The common intercept and the slopes; NaN if the noise hides them.
    noise, sampling : ndarray of shape (p + 1, p + 1)
        Their covariance by noise, and over other silos and records.
    within, within_noise : ndarray of shapes (p,) and (p, p)
        Slopes within silos, which no property of a silo confounds, and their covariance by noise.
    tau2, tau2_low, tau2_high : float
        Variance of the silos' intercepts, with the 95 % interval of its profile likelihood.
    residual : float
        Variance of a record's residual.
    """

    coef: Floats
    noise: Floats
    sampling: Floats
    within: Floats
    within_noise: Floats
    tau2: float
    tau2_low: float
    tau2_high: float
    residual: float


def random_intercept(
    products: Floats, sums: Floats, products_std: float, sums_std: float
) -> RandomIntercept:
    """Return the model of restricted maximum likelihood [PT71]_.

    Parameters
    ----------
    products : ndarray of shape (p + 2, p + 2)
        Noisy products ``z z'``, summed over all records of all silos.
    sums : ndarray of shape (n_silos, p + 2)
        Noisy sums of ``z`` at each silo.
    products_std, sums_std : float
        Deviation of the noise of a squared entry, and of a sum. 0 without noise.

    Raises
    ------
    PlanError
        For fewer than three silos.
    """
    silos = _Silos.of(products, sums, products_std, sums_std)
    p = products.shape[0] - 2
    values = np.linalg.eigvalsh(silos.within[:p, :p])
    # A direction below its noise has no slope, and would spoil those of all others.
    if values[0] <= _SURE * max(products_std, 1e-12 * values[-1]) or silos.few:
        hidden, square = np.full(p + 1, nan), np.full((p + 1, p + 1), nan)
        return RandomIntercept(
            hidden, square, square, hidden[1:], square[1:, 1:], nan, 0.0, np.inf, nan
        )
    slopes = np.asarray(np.linalg.solve(silos.within[:p, :p], silos.within[:p, p]), dtype=float)
    apart = np.linalg.inv(silos.within[:p, :p])
    tau2, low, high, residual = silos.variances()
    fit = silos.fit(tau2, residual)
    return RandomIntercept(
        coef=fit.coef,
        noise=silos.noise_of(fit, residual),
        sampling=fit.inverse,
        within=slopes,
        within_noise=apart @ silos.noise_of_slopes(slopes) @ apart,
        tau2=tau2,
        tau2_low=low,
        tau2_high=high,
        residual=residual,
    )


@dataclass(frozen=True)
class _Fit:
    coef: Floats
    inverse: Floats  # of the information
    variance: Floats  # of each silo's mean around the line
    deviance: float


@dataclass(frozen=True)
class _Silos:
    """Released sums as means of silos and products around them."""

    n: Floats  # noisy number of records of each silo, at least its noise
    means: Floats  # of x and y, shape (n_silos, p + 1)
    within: Floats  # products of x and y around the means of silos
    products_std: float
    sums_std: float
    few: bool

    @classmethod
    def of(cls, products: Floats, sums: Floats, products_std: float, sums_std: float) -> _Silos:
        if len(sums) < 3:
            raise PlanError(
                f"a random intercept needs three or more silos, got {len(sums)}; use the term site."
            )
        # A number of records near 0 would amplify the noise of its mean.
        n = np.maximum(sums[:, 0], _SURE * sums_std + 1.0)
        means = sums[:, 1:] / n[:, None]
        around = products[1:, 1:] - (means.T * n) @ means
        # Squares of noisy sums hold the variance of the noise, that of the divisor included.
        around += sums_std**2 * (np.eye(means.shape[1]) * (1 / n).sum() + (means.T / n) @ means)
        few = bool((sums[:, 0] <= _SURE * sums_std).all())
        return cls(n, means, around, products_std, sums_std, few)

    def variances(self) -> tuple[float, float, float, float]:
        """Return the variance of intercepts, both ends of its interval, and that of residuals."""
        from scipy.optimize import brentq, minimize_scalar

        p = self.means.shape[1] - 1
        slopes = np.linalg.solve(self.within[:p, :p], self.within[:p, p])
        degrees = max(float(self.n.sum()) - len(self.n) - p, 1.0)
        left = float(self.within[p, p] - slopes @ self.within[:p, p]) / degrees
        # Residuals below the noise of their sum are at most that noise.
        first = max(left, self.products_std / degrees, 1e-12 * float(self.within[p, p]) / degrees)

        def best(tau2: float) -> tuple[float, float]:
            """Return the least deviance at a variance of intercepts, and its residual variance."""
            found = minimize_scalar(
                lambda log: self.fit(tau2, first * np.exp(log)).deviance,
                bounds=(-1.0, 1.0),
                method="bounded",
                options={"xatol": 1e-7},
            )
            return float(found.fun), first * float(np.exp(found.x))

        def deviance(tau2: float) -> float:
            return best(tau2)[0]

        spread = float(np.var(self.means @ np.append(-slopes, 1.0))) + first
        grid = np.concatenate([[0.0], spread * np.geomspace(1e-6, 1e2, 41)])
        values = np.array([deviance(tau2) for tau2 in grid])
        at = int(values.argmin())
        ends = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
        # Relative to the grid, whose unit is that of the target squared.
        inside = minimize_scalar(
            deviance, bounds=ends, method="bounded", options={"xatol": 1e-7 * ends[1]}
        )
        tau2 = float(inside.x) if inside.fun < values[0] else 0.0
        least = min(float(inside.fun), values[0])

        def crossed(low: float, high: float) -> float:
            return float(brentq(lambda tau2: deviance(tau2) - least - _PROFILE, low, high))

        low = crossed(0.0, tau2) if values[0] - least > _PROFILE else 0.0
        beyond = grid[(grid > tau2) & (values - least > _PROFILE)]
        high = crossed(tau2, float(beyond[0])) if len(beyond) else np.inf
        return tau2, low, high, best(tau2)[1]

    def fit(self, tau2: float, residual: float) -> _Fit:
        """Return generalised least squares at both variances, with its restricted deviance."""
        p = self.means.shape[1] - 1
        x = np.column_stack([np.ones(len(self.n)), self.means[:, :p]])
        y, products = self.means[:, p], self.within
        slopes: Floats = np.zeros(p)
        for _ in range(3):  # the noise of a silo's mean depends on the slopes
            noise = self.sums_std**2 * (1 + slopes @ slopes) / self.n**2
            variance = tau2 + residual / self.n + noise
            information, right = (x.T / variance) @ x, (x.T / variance) @ y
            information[1:, 1:] += products[:p, :p] / residual
            right[1:] += products[:p, p] / residual
            inverse = np.asarray(np.linalg.inv(information), dtype=np.float64)
            coef: Floats = inverse @ right
            slopes = coef[1:]
        rest = y - x @ coef
        vector = np.append(-slopes, 1.0)
        degrees = max(float(self.n.sum()) - len(self.n), 1.0)
        deviance = (
            np.log(variance).sum()
            + degrees * np.log(residual)
            + np.linalg.slogdet(information)[1]
            + (rest**2 / variance).sum()
            + float(vector @ products @ vector) / residual
        )
        return _Fit(coef, inverse, variance, float(deviance))

    def noise_of(self, fit: _Fit, residual: float) -> Floats:
        """Return the covariance of all coefficients by noise, at fixed variances."""
        p = self.means.shape[1] - 1
        total = np.zeros((p + 1, p + 1))
        total[1:, 1:] = self._noise_of_products(fit.coef[1:]) / residual**2
        for n, mean, variance in zip(self.n, self.means, fit.variance, strict=True):
            inner = np.zeros((p + 1, p + 2))  # equations by words: records, x, y
            inner[1:] = -self._slope_of_equations(mean, fit.coef[1:]) / residual
            inner += self._slope_of_means(n, mean, variance, fit.coef)
            total += self.sums_std**2 * inner @ inner.T
        return np.asarray(fit.inverse @ total @ fit.inverse)

    def noise_of_slopes(self, slopes: Floats) -> Floats:
        """Return the covariance, by noise, of the equations of slopes within silos."""
        total = self._noise_of_products(slopes)
        for mean in self.means:
            inner = self._slope_of_equations(mean, slopes)
            total = total + self.sums_std**2 * inner @ inner.T
        return total

    def _noise_of_products(self, slopes: Floats) -> Floats:
        """Return the covariance of the noise of products times ``(-slopes, 1)``, without y."""
        return noise_of_equations(np.append(-slopes, 1.0), self.products_std)[:-1, :-1]

    def _slope_of_equations(self, mean: Floats, slopes: Floats) -> Floats:
        """Return the derivatives of ``n m m' (-slopes, 1)``, without y, by the sums of a silo.

        The shape is (p, p + 2), the number of records first.
        """
        vector = np.append(-slopes, 1.0)
        left, x = float(mean @ vector), mean[:-1]
        return np.column_stack(
            [-x * left, np.outer(x, vector) + left * np.eye(len(x), len(vector))]
        )

    def _slope_of_means(self, n: float, mean: Floats, variance: float, coef: Floats) -> Floats:
        """Return the derivatives of a silo's part of the equations by its sums."""
        vector, x = np.append(-coef[1:], 1.0), mean[:-1]
        left = float(mean @ vector)
        row = np.append(1.0, x)
        changed = np.outer(row, np.append(-left, vector))  # of the residual of the mean
        moved = np.zeros_like(changed)  # of the place of the mean
        moved[1:, 0], moved[1:, 1:-1] = -x, np.eye(len(x))
        return np.asarray((changed + (left - coef[0]) * moved) / (n * variance))


def noise_of_equations(vector: Floats, products_std: float) -> Floats:
    """Return the covariance of a noisy symmetric matrix of products times a vector.

    `products_std` is the deviation of a squared entry; products of two have 5 / 7 of it.
    """
    off = (products_std * SQUARE / PRODUCT) ** 2
    total = off * np.outer(vector, vector)
    at = np.diag_indices(len(vector))
    total[at] = off * (vector @ vector - vector**2) + products_std**2 * vector**2
    return np.asarray(total)


# Estimates of each silo ---------------------------------------------------------------------------


@dataclass(frozen=True)
class SiloEstimates:
    """Least squares at each silo; an entry is NaN if the noise hides it.

    Parameters
    ----------
    coef, noise, sampling : ndarray of shape (n_silos, p + 1)
        Intercept and slopes, with their variances by noise and by sampling.
    records : ndarray of shape (n_silos,)
        Noisy numbers of records.
    """

    coef: Floats
    noise: Floats
    sampling: Floats
    records: Floats


def silo_estimates(products: Floats, products_std: float) -> SiloEstimates:
    """Return least squares at each silo from its own noisy products.

    Parameters
    ----------
    products : ndarray of shape (n_silos, p + 2, p + 2)
        Noisy products ``z z'`` of each silo.
    products_std : float
        Deviation of the noise of a squared entry.
    """
    found = [_least_squares(matrix, products_std) for matrix in products]
    coef, noise, sampling = (np.array(part) for part in zip(*found, strict=True))
    return SiloEstimates(coef, noise, sampling, products[:, 0, 0])


def _least_squares(products: Floats, std: float) -> tuple[Floats, Floats, Floats]:
    q = len(products) - 1
    values = np.linalg.eigvalsh(products[:q, :q])
    # Noise moves the least eigenvalue by its norm, about the root of the size times its deviation.
    if values[0] <= _SURE * max(std * sqrt(q), 1e-12 * values[-1]):
        hidden = np.full(q, nan)
        return hidden, hidden, hidden
    inverse = np.linalg.inv(products[:q, :q])
    coef = inverse @ products[:q, q]
    left = float(products[q, q] - coef @ products[:q, q])
    residual = max(left, std) / max(float(products[0, 0]) - q, 1.0)
    equations = noise_of_equations(np.append(-coef, 1.0), std)[:q, :q]
    return coef, np.diag(inverse @ equations @ inverse), residual * np.diag(inverse)


@dataclass(frozen=True)
class MetaAnalysis:
    """The mean of an effect over silos, and how it differs between them.

    Parameters
    ----------
    mean, low, high : float
        With a 95 % interval over other silos, noise included [KH03]_.
    tau2, tau2_low, tau2_high : float
        Variance of the effect between silos [DL86]_, with its interval [V07]_.
    i2 : float in [0, 1]
        Share of `tau2` in the variance of estimates without noise [HT02]_. The usual formula from
        Cochran's Q would take noise for sampling.
    silos : int
        Number of silos whose estimate is known.
    """

    mean: float
    low: float
    high: float
    tau2: float
    tau2_low: float
    tau2_high: float
    i2: float
    silos: int


def meta_analysis(estimates: Floats, noise: Floats, sampling: Floats) -> MetaAnalysis:
    """Return a random-effects meta-analysis of the silos' estimates.

    Parameters
    ----------
    estimates, noise, sampling : ndarray of shape (n_silos,)
        Estimates with their variances by noise and by sampling; NaN for those not known.

    Raises
    ------
    PlanError
        If fewer than two estimates are known.
    """
    known = np.isfinite(estimates) & np.isfinite(noise) & np.isfinite(sampling)
    count = int(known.sum())
    if count < 2:
        raise PlanError(
            f"a meta-analysis needs two or more silos with a known estimate, got {count}; use a "
            "larger epsilon or fewer columns."
        )
    from scipy.special import chdtri, stdtrit

    value, variance, own = estimates[known], (noise + sampling)[known], sampling[known]
    weight = 1 / variance
    square = partial(_q, value, variance)
    excess = square(0.0) - (count - 1)
    tau2 = max(excess / (weight.sum() - (weight**2).sum() / weight.sum()), 0.0)
    weight = 1 / (variance + tau2)
    mean = float(weight @ value / weight.sum())
    # At least 1: equal estimates by chance must not make the interval narrow.
    stretch = max(square(tau2) / (count - 1), 1.0)
    half = float(stdtrit(count - 1, 0.975)) * sqrt(stretch / weight.sum())
    low, high = (_where(square, float(chdtri(count - 1, tail))) for tail in (0.025, 0.975))
    exact = 1 / np.maximum(own, 1e-300)
    typical = (count - 1) * exact.sum() / (exact.sum() ** 2 - (exact**2).sum())
    i2 = float(tau2 / (tau2 + typical))
    return MetaAnalysis(mean, mean - half, mean + half, float(tau2), low, high, i2, count)


def _q(values: Floats, variance: Floats, tau2: float) -> float:
    """Return Cochran's Q at a variance between silos; it falls with that variance."""
    weight = 1 / (variance + tau2)
    return float(weight @ (values - weight @ values / weight.sum()) ** 2)


def _where(falling: Callable[[float], float], level: float) -> float:
    """Return the place at which a falling function reaches a level; 0 if it starts below it."""
    from scipy.optimize import brentq

    if falling(0.0) <= level:
        return 0.0
    high = 1.0
    while falling(high) > level:
        high *= 4.0
    return float(brentq(lambda at: falling(at) - level, 0.0, high))
