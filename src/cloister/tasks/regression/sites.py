"""Differences between silos, from a model with the term ``site``, or from a look without it.

**With the term.** The coefficients of a fit are normal with a known covariance of noise and
sampling. So what each silo has in common, and how much silos differ, follows from them alone
[BER17]_. Without noise, and for least squares, that is the restricted maximum likelihood of the
records.

**Without it.** In the last round each silo has a layer with the sums of the residuals of its
records, and of their rows times weights. They are score and curvature of a term of this silo. So
one step of Newton shows where coefficients would go [H78]_. Silos that differ in columns alone, or
in the outcome alone, move no coefficient.

References
----------
.. [PT71] Patterson, Thompson, "Recovery of Inter-Block Information when Block Sizes are Unequal",
   Biometrika 58(3), 1971: restricted maximum likelihood.
.. [V07] Viechtbauer, "Confidence Intervals for the Amount of Heterogeneity in Meta-Analysis",
   Statistics in Medicine 26(1), 2007: the Q-profile interval.
.. [KH03] Knapp, Hartung, "Improved Tests for a Random Effects Meta-Regression with a Single
   Covariate", Statistics in Medicine 22(17), 2003.
.. [HT02] Higgins, Thompson, "Quantifying Heterogeneity in a Meta-Analysis", Statistics in Medicine
   21(11), 2002: the typical variance of a study.
.. [H78] Hausman, "Specification Tests in Econometrics", Econometrica 46(6), 1978: two estimates
   that differ only if the effects of silos depend on the columns.
.. [BER17] Burke, Ensor, Riley, "Meta-analysis using individual participant data: one-stage and
   two-stage approaches, and why they may differ", Statistics in Medicine 36(5), 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isqrt, nan, sqrt
from typing import Any, Protocol

import numpy as np

from cloister.core.arrays import Floats, Results
from cloister.core.display import Display, Estimate, Table, between
from cloister.core.numerals import NOT_KNOWN
from cloister.protocol.task import INTERVAL_95, Block, Rows
from cloister.tasks.interval_tables import bars_of, number_of
from cloister.tasks.population import sampled
from cloister.tasks.regression.engine import BITS, Solution, ball, lengths, matrix_of
from cloister.tasks.regression.newton import Fitted
from cloister.tasks.regression.report import REFERENCE

FEWEST = 3
"""Silos, below which nothing is known of their variance."""
LOOK_SHARE = 0.04
"""Share of the look in the budget of the last round, which is half of the whole."""
_RESIDUAL, _SQUARE, _ROW = 0.6, 0.1, 0.3  # parts of the squared norm of the look's payload
_SEEN = 4.0  # deviations of noise, above which a silo is seen
_Z = INTERVAL_95["gaussian"]
_FOREST = (
    "The last point is the mean of silos of which these are a sample, by restricted maximum "
    "likelihood; its interval is by Student's t and covers all errors together."
)
_SPREAD = (
    "tau is the standard deviation between silos, I2 its share in the variance of an estimate from "
    "the records of one silo. Intervals include noise and sampling."
)
_MIXED = (
    "Intercepts of silos are a sample from a normal distribution. [ , ] are 95 % confidence "
    "intervals (privacy noise only); a population interval includes other silos and records."
)


@dataclass(frozen=True)
class Heterogeneity:
    """The distribution of estimates over silos: its mean and its variance.

    Parameters
    ----------
    mean, low, high : float
        Mean of the distribution of silos with its 95 % interval, of noise and sampling [KH03]_.
    tau2, tau2_low, tau2_high : float
        Variance between silos by restricted maximum likelihood [PT71]_, with its 95 % interval
        [V07]_.
    i2, i2_low, i2_high : float
        Share of the variance between silos in that of an estimate without noise [HT02]_, at this
        variance and at both ends of its interval.
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
    i2_low: float
    i2_high: float
    silos: int


def heterogeneity(estimates: Floats, noise: Floats, sampling: Floats) -> Heterogeneity:
    """Return a random-effects meta-analysis of the estimates of silos.

    Parameters
    ----------
    estimates : ndarray of shape (n_silos,)
        NaN for those that are not known.
    noise, sampling : ndarray of shape (n_silos, n_silos)
        Their covariances.

    Returns
    -------
    Heterogeneity
        Not a number, with intervals without a bound, for fewer than three known estimates.
    """
    known = np.isfinite(estimates) & np.isfinite(np.diag(noise + sampling))
    count = int(known.sum())
    if count < FEWEST:
        return Heterogeneity(nan, -inf, inf, nan, 0.0, inf, nan, 0.0, 1.0, count)
    from scipy.special import chdtri, stdtrit

    # Estimates share noise, such as that of a main effect, so all covariances count.
    own = sampling[np.ix_(known, known)]
    law = _Law(estimates[known], noise[np.ix_(known, known)] + own)
    low, high = (_where(law.q, float(chdtri(count - 1, tail))) for tail in (0.025, 0.975))
    tau2 = law.likeliest(high)
    mean, variance = law.mean(tau2)
    # At least 1: equal estimates by chance must not make the interval narrow.
    stretch = max(law.q(tau2) / (count - 1), 1.0)
    half = float(stdtrit(count - 1, 0.975)) * sqrt(stretch * variance)
    # Noise depends on the budget, so a share that counts it would not describe the silos.
    exact = 1 / np.maximum(np.diag(own), 1e-300)
    share = exact / exact.max()  # so that no square of a large number is needed
    typical = (count - 1) * share.sum() / (share.sum() ** 2 - share @ share) / exact.max()
    i2 = [float(1 / (1 + typical / v)) if v else 0.0 for v in (tau2, low, high)]
    return Heterogeneity(
        mean, mean - half, mean + half, tau2, low, high, i2[0], i2[1], i2[2], count
    )


@dataclass(frozen=True)
class RandomIntercept:
    """A model with an intercept of each silo, which is drawn from a normal distribution.

    Parameters
    ----------
    coef : ndarray of shape (p + 1,)
        The slopes, and the common intercept; NaN if they are not known.
    noise, sampling : ndarray of shape (p + 1, p + 1)
        Their covariances, by noise, and over other silos and records.
    silos : Heterogeneity
        Of the intercepts of silos.
    """

    coef: Floats
    noise: Floats
    sampling: Floats
    silos: Heterogeneity


def random_intercept(
    slopes: Floats, intercepts: Floats, noise: Floats, sampling: Floats
) -> RandomIntercept:
    """Return the model of restricted maximum likelihood [PT71]_.

    Parameters
    ----------
    slopes : ndarray of shape (p,)
    intercepts : ndarray of shape (n_silos,)
    noise, sampling : ndarray of shape (p + n_silos, p + n_silos)
        Covariances of both together; NaN for what is not known.
    """
    p = len(slopes)
    found = heterogeneity(intercepts, noise[p:, p:], sampling[p:, p:])
    # Without a variance between silos, nothing is known of other silos.
    if found.silos < FEWEST:
        hidden = np.full((p + 1, p + 1), nan)
        return RandomIntercept(hidden[0], hidden, hidden, found)
    total = noise + sampling
    here = np.isfinite(np.diag(total))
    of_silos = np.flatnonzero(here[p:]) + p
    # Generalised least squares: slopes move by what the intercepts are off their mean.
    spread = total[np.ix_(of_silos, of_silos)] + found.tau2 * np.eye(len(of_silos))
    inverse = np.linalg.inv(spread)
    weights = inverse.sum(axis=0) / inverse.sum()
    linear = np.zeros((p + 1, p + len(intercepts)))
    linear[:p, :p] = np.eye(p)
    linear[p, of_silos] = weights
    off = np.eye(len(of_silos)) - weights
    linear[:p, of_silos] -= np.nan_to_num(total[:p][:, of_silos]) @ inverse @ off
    values = np.nan_to_num(np.concatenate([slopes, intercepts]))
    # Other silos have other intercepts, which is an error of sampling.
    of_tau = np.zeros_like(total)
    of_tau[of_silos, of_silos] = found.tau2
    # A slope that is not known has no covariance either, but it must not hide all others.
    unknown = np.where(np.append(here[:p], True), 1.0, nan)

    def carried(covariance: Floats) -> Floats:
        whole = linear @ np.nan_to_num(covariance) @ linear.T
        return np.asarray(whole * np.outer(unknown, unknown))

    coef = np.asarray(linear @ values * unknown)
    return RandomIntercept(coef, carried(noise), carried(sampling + of_tau), found)


@dataclass(frozen=True)
class _Law:
    """Estimates that are normal around one mean, with a variance between silos on top."""

    values: Floats
    covariance: Floats

    def _inverse(self, tau2: float) -> Floats:
        # A covariance that is 0 would have no inverse.
        least = max(tau2, 1e-12 * float(np.var(self.values)), 1e-300)
        return np.asarray(np.linalg.inv(self.covariance + least * np.eye(len(self.values))))

    def mean(self, tau2: float) -> tuple[float, float]:
        """Return the mean and its variance."""
        inverse = self._inverse(tau2)
        whole = float(inverse.sum())
        return float(inverse.sum(axis=0) @ self.values) / whole, 1 / whole

    def q(self, tau2: float) -> float:
        """Return Cochran's Q; it falls with the variance between silos."""
        rest = self.values - self.mean(tau2)[0]
        return float(rest @ self._inverse(tau2) @ rest)

    def _deviance(self, tau2: float) -> float:
        inverse = self._inverse(tau2)
        # The term of the mean's own variance is what makes the likelihood restricted.
        return float(np.log(inverse.sum()) - np.linalg.slogdet(inverse)[1]) + self.q(tau2)

    def likeliest(self, high: float) -> float:
        """Return the variance between silos of restricted maximum likelihood."""
        from scipy.optimize import minimize_scalar

        # By the deviation, which is of the size of the estimates: a variance may be tiny.
        tau = minimize_scalar(
            lambda tau: self._deviance(tau**2),
            bounds=(0.0, max(sqrt(high), 1e-150)),
            method="bounded",
            options={"xatol": 1e-6 * max(sqrt(high), 1e-150)},
        )
        return float(tau.x) ** 2 if tau.fun < self._deviance(0.0) else 0.0


def _where(falling: Callable[[float], float], level: float) -> float:
    """Return the place at which a falling function reaches a level; 0 if it starts below it."""
    from scipy.optimize import brentq

    if falling(0.0) <= level:
        return 0.0
    # The unit of the target is not known, so the end of the search is not either.
    high = 1.0
    while falling(high) > level:
        high *= 4.0
    return float(brentq(lambda at: falling(at) - level, 0.0, high, xtol=1e-300, rtol=1e-9))


# From a model with the term site ------------------------------------------------------------------


class _Model(Protocol):
    """The parts of a task that are used here."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of coefficients, the intercept last."""

    @property
    def sites(self) -> tuple[str, ...]:
        """Silos that have terms in the model."""


def effects_of(model: _Model) -> dict[str, Floats]:
    """Return, for each column with an effect of each silo, its matrix of shape (n_silos, n_coef).

    A row takes the effect at one silo from the coefficients, such as ``treated`` plus
    ``site=A:treated``. The matrix of the name "" is that of the intercepts of silos.
    """
    names = model.names
    found: dict[str, Floats] = {}
    for k, silo in enumerate(model.sites):
        at = f"site={silo}"
        for j, name in enumerate(names):
            column = name.removeprefix(f"{at}:").removesuffix(f":{at}")
            if name == at:
                column = ""
            elif column == name:
                continue
            found.setdefault(column, np.zeros((len(model.sites), len(names))))[k, j] = 1.0
    # An interaction is a difference to the main effect, if the formula has that.
    for column, matrix in found.items():
        shared = column or names[-1]
        if shared in names:
            matrix[:, names.index(shared)] = 1.0
    return found


def results_of(model: _Model, results: Results) -> Results:
    """Return the differences between silos in a fit with the term site, or an empty mapping.

    Returns
    -------
    dict
        Of each column with an effect of each silo, ``site_effect`` of shape (n_columns, n_silos)
        with both intervals. ``site_mean``, ``site_tau`` and ``site_i2`` of shape (n_columns,), with
        intervals that include sampling. If silos differ in the intercept alone, ``mixed_coef`` of
        shape (n_coef,), the intercept last and the silos left out, with both intervals. Then
        ``site_tau`` and ``site_i2`` of shape (1,) belong to these intercepts.
    """
    matrices = effects_of(model)
    of_intercept = matrices.pop("", None)
    values = np.concatenate([results["coef"], results["intercept"]])
    noise, sampling = results["covariance"], results["sampling_covariance"]
    # With effects of each silo an intercept is that at 0 of a column, which means little.
    if matrices:
        each = [_taken(matrix, values, noise, sampling) for matrix in matrices.values()]
        spreads = [heterogeneity(*one) for one in each]
        parts = zip(*((one, np.diag(n), np.diag(s)) for one, n, s in each), strict=True)
        return {
            **_estimate(*map(np.stack, parts)).named("site_effect"),
            **_each(spreads, "mean", "low", "high").named("site_mean"),
            **_spread(spreads),
        }
    if of_intercept is None or len(of_intercept) < FEWEST:
        return {}
    found = _mixed(results, of_intercept)
    mixed = _estimate(found.coef, np.diag(found.noise), np.diag(found.sampling))
    return {**mixed.named("mixed_coef"), **_spread([found.silos])}


def _mixed(results: Results, of_intercept: Floats) -> RandomIntercept:
    """Return the model with a random intercept, from the matrix of the intercepts of silos."""
    values = np.concatenate([results["coef"], results["intercept"]])
    slopes = [j for j in range(len(values) - 1) if not of_intercept[:, j].any()]
    both = np.concatenate([np.eye(len(values))[slopes], of_intercept])
    taken, *covariances = _taken(
        both, values, results["covariance"], results["sampling_covariance"]
    )
    return random_intercept(taken[: len(slopes)], taken[len(slopes) :], *covariances)


def coefficients_of(
    model: _Model, results: Results, names: Sequence[str]
) -> dict[str, Mapping[str, Any]]:
    """Return ``random_intercept``, the model of ``mixed_coef``; nothing without that.

    Returns
    -------
    dict
        Keys of :func:`.report.coefficients_of` for this model, the silos left out. ``tau`` is the
        deviation between silos, with its interval of noise and sampling.
    """
    if "mixed_coef" not in results:
        return {}
    of_intercept = effects_of(model)[""]
    found, tau = _mixed(results, of_intercept), number_of(results, "site_tau")
    kept = [j for j in range(len(names)) if j == len(names) - 1 or not of_intercept[:, j].any()]
    mixed = {
        "names": tuple(names[j] for j in kept),
        "coef": found.coef,
        "known": np.isfinite(found.coef),
        "reference": np.append(results["reference"] == 1, False)[kept],
        "noise_cov": found.noise,
        "sampling_cov": found.sampling,
        "tau": tau.value,
        "tau_low": tau.low,
        "tau_high": tau.high,
    }
    return {"random_intercept": mixed}


def _taken(
    matrix: Floats, values: Floats, noise: Floats, sampling: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return linear functions of coefficients with their covariances; NaN for those not known."""
    # 0 times NaN is NaN, so what a function does not use is taken out first.
    hidden = matrix[:, ~np.isfinite(values)].any(axis=1) | ~matrix.any(axis=1)
    mark = np.where(hidden, nan, 1.0)
    both = (matrix @ np.nan_to_num(part) @ matrix.T for part in (noise, sampling))
    first, second = (np.asarray(part * np.outer(mark, mark)) for part in both)
    return np.asarray(matrix @ np.nan_to_num(values) * mark), first, second


def _estimate(values: Floats, noise: Floats, sampling: Floats) -> Estimate:
    """Return values with both intervals from their variances, without a bound where not known."""
    # Rounding may make the variance of a function without noise slightly negative.
    margin = _Z * np.sqrt(np.maximum(noise, 0.0))
    margin = np.where(np.isfinite(values), margin, inf)
    # Infinite ends around a NaN would not be infinite.
    middle = np.nan_to_num(values)
    one = Estimate(values, middle - margin, middle + margin)
    return sampled(one, np.nan_to_num(sampling))


def _each(found: Sequence[Heterogeneity], *names: str) -> Estimate:
    return Estimate(*(np.array([getattr(one, name) for one in found]) for name in names))


def _spread(found: Sequence[Heterogeneity]) -> dict[str, Floats]:
    tau = _each(found, "tau2", "tau2_low", "tau2_high").mapped(np.sqrt)
    i2 = _each(found, "i2", "i2_low", "i2_high")
    return {**tau.named("site_tau"), **i2.named("site_i2")}


def displays_of(model: _Model, results: Results) -> Iterator[Display]:
    """Yield a forest plot of each column with an effect of each silo, and how silos differ."""
    if "site_tau" not in results:
        return
    columns = [column for column in effects_of(model) if column]
    for i, column in enumerate(columns):
        value, low, high = number_of(results, "site_mean", i).numbers
        cells = [
            *Estimate.of(results, "site_effect")[i].cells(),
            # Its interval has all errors: there is none of the noise alone.
            between(value, nan, nan, population=(low, high)),
        ]
        title = f"Effect of {column} by site"
        bars = bars_of(title, (*model.sites, "mean of silos"), cells, _FOREST, "coefficient")
        yield replace(bars, points=True)
    if "mixed_coef" in results:
        left = tuple(f"site={silo}" for silo in model.sites)
        references = np.append(results["reference"] == 1, False)
        shown = ((n, r) for n, r in zip(model.names, references, strict=True) if n not in left)
        of_mixed = Estimate.of(results, "mixed_coef").cells()
        rows = tuple(
            (name, REFERENCE if r else cell if np.isfinite(cell.value) else NOT_KNOWN)
            for (name, r), cell in zip(shown, of_mixed, strict=True)
        )
        yield Table("Coefficients with a random intercept", ("column", "value"), rows, _MIXED)
    spreads = tuple(
        (column, *(one if np.isfinite(one.value) else NOT_KNOWN for one in both))
        for column, *both in zip(
            columns or ["intercept"],
            Estimate.of(results, "site_tau").cells(),
            Estimate.of(results, "site_i2").cells(),
            strict=True,
        )
    )
    yield Table("Differences between sites", ("column", "tau", "I2"), spreads, _SPREAD)


# From layers of silos without the term site -------------------------------------------------------


def look_block(silos: int, q: int, weight: float) -> Block:
    """Return the block with a layer of `q` + 2 words for each silo."""
    # The bounds are those of one layer: a unit of a silo is in no other one.
    return Block("look", (silos, q + 2), isqrt((q + 2) << 2 * BITS), 1 << 2 * BITS, weight)


def look_rows(residuals: Floats, rows: Floats, cuts: tuple[float, float]) -> Rows:
    """Return the rows of units to the first layer.

    Parameters
    ----------
    residuals, rows : ndarray of shape (m,) and (q, m)
        Sums of residuals, and of rows times weights, over the records of a unit.
    cuts : (float, float)
        Lengths to which both are cut.
    """
    residual_cut, row_cut = cuts
    residual = np.clip(residuals / residual_cut, -1.0, 1.0)
    row = rows / np.maximum(lengths(rows), row_cut)
    parts = [sqrt(_RESIDUAL) * residual[None], sqrt(_SQUARE) * residual[None] ** 2]
    return Rows.dense(ball(np.concatenate([*parts, sqrt(_ROW) * row]), 1.0))


def change_with_sites(
    fit: Fitted,
    solution: Solution,
    words: Floats,
    noise_std: float,
    *,
    cuts: tuple[float, float],
    drift: float,
) -> tuple[Floats, Floats]:
    """Return the change of weights by a term of each silo, and the covariance of its error.

    Parameters
    ----------
    words : ndarray of shape (n_silos, q + 2)
        Released sums, in units of the payload.
    cuts : (float, float)
        As of :func:`look_rows`.
    drift : float
        Relative error of a residual that is carried to the last weights.

    Returns
    -------
    tuple of ndarray
        Of shape (q,), and (q, q). Not a number for entries outside the equations, and for the
        constant, which becomes one of each silo. Nothing is known where noise hides the silos.
    """
    kept = fit.kept
    change, whole = np.full(len(kept), nan), np.full((len(kept), len(kept)), nan)
    parts = cuts[0] / sqrt(_RESIDUAL), cuts[0] ** 2 / sqrt(_SQUARE), cuts[1] / sqrt(_ROW)
    residual_std, square_std, row_std = (noise_std * part for part in parts)
    # The size of a silo is a divisor below.
    words = words[words[:, -1] * parts[2] > _SEEN * row_std]
    if len(words) < 2:
        return change, whole
    residuals, squares = words[:, 0] * parts[0], np.maximum(words[:, 1] * parts[1], 0.0)
    rows = words[:, 2:][:, kept] * parts[2]
    size, step = rows[:, -1], (solution.weights - fit.weights)[kept]
    carried = rows @ step
    score = residuals - carried
    # Residuals that are cut do not sum to 0, and a silo may have more of them than others.
    biased = score.sum() / size.sum() * size
    variance = residual_std**2 + squares + 2 * square_std
    variance += row_std**2 * float(step @ step) + biased**2 + (drift * carried) ** 2
    covariance = np.diag(variance) + rows @ solution.noise[np.ix_(kept, kept)] @ rows.T
    # The curvature without the means of silos, and without the squares of the noise in these.
    slopes, of_noise = rows[:, :-1] / size[:, None], row_std**2 * float((1 / size).sum())
    within = matrix_of(fit.curvature)[np.ix_(kept, kept)][:-1, :-1] - slopes.T @ rows[:, :-1]
    values, vectors = np.linalg.eigh(within + of_noise * np.eye(len(within)))
    least = max(fit.curvature_std * sqrt(len(values)), 1e-9)
    inverse = (vectors / np.maximum(values, least)) @ vectors.T
    # Around the mean of all silos: what residuals have in common is no difference.
    linear = -inverse @ (slopes - rows[:, :-1].sum(axis=0) / size.sum()).T
    # As far as silos differ, noise in the means counts, and so do means that differ by chance.
    shifts = score / size
    differ = row_std**2 * float(shifts @ shifts)
    by_chance = max(1 / size.sum(), 1 / fit.columns.n) * float(shifts @ score)
    at = np.flatnonzero(kept)[:-1]
    change[at] = linear @ score
    whole[np.ix_(at, at)] = linear @ covariance @ linear.T + differ * inverse @ inverse
    whole[np.ix_(at, at)] += by_chance * inverse
    return change, whole
