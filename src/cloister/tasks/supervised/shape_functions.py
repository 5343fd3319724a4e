"""Effects of bins of columns from noisy sums, smoothed by a Gaussian prior that the sums choose.

An additive model has one effect for each bin or category of each column; a score is the sum of the
effects of a record. In a round each column has noisy sums of gradients and of curvature by bin.
A Newton step of all columns together gives the effects. A prior for smooth effects
pools neighbouring bins; its scale is learned from all columns. All functions here use released
numbers only.

References
----------
.. [NCGK21] Nori, Caruana, Bu, Shen, Kulkarni, "Accuracy, Interpretability, and Differential
   Privacy via Explainable Boosting", ICML 2021: additive models of noisy histograms.
.. [M92] MacKay, "Bayesian interpolation", Neural Computation 4(3), 1992: the scale of a prior from
   the marginal likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import sqrt
from typing import NamedTuple

import numpy as np

from cloister.core.arrays import Floats, Integers, Records
from cloister.tasks.columns import codes
from cloister.tasks.preparation.quantiles import made_rising

MOST_EFFECT, MOST_STEP = 4.0, 2.0
_SCALES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Variances of the prior of an effect; 0 is a column without effect."""
_SEEN = (2.0, 0.6, 0.6, 0.6, 0.4, 0.2)  # columns of each scale, counted before the released ones
_EM_STEPS = 20
# Of a column of numbers, on rank, on value, smooth over many bins, over few, and bin by bin.
_MIXTURES = np.array(
    [
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [1, 0, 1 / 2, 0, 0],
        [0, 0, 1, 1 / 3, 0],
        [0, 0, 1 / 2, 1 / 2, 1 / 4],
    ]
)
_MIXED = (0.22, 0.22, 0.22, 0.22, 0.12)  # prior weights
_FAR = 6.0  # deviations, to which values are clipped in a straight line
_LONG, _SHORT = 0.3, 0.08  # of ranks in [0, 1]
_UNLIKELY = 0.9  # weight of no effect, above which a column is left out of later rounds
_FIRST_PART = 0.6  # of the first step: columns that say the same would overshoot together
_QUARTERS = (0.25, 0.5, 0.75)
_LEAST_NOISE = 2.0**-6  # records, so that a division by it is finite
_LARGEST = 2.0**36  # records in a sum: more than any honest one, and its square is a float


@dataclass(frozen=True)
class Layout:
    """The places of the bins of all columns in a vector; a function of the plan.

    Parameters
    ----------
    levels : tuple of int
        Number of categories of each column; 0 for numbers.
    target : int
        The column without bins.
    bins : int
        Bins of a column of numbers.
    searched : bool
        Whether edges come from noisy counts. Then a column of numbers has up to three more bins,
        since the quarters of its box are edges, too.
    """

    levels: tuple[int, ...]
    target: int
    bins: int
    searched: bool
    frac_bits: int

    @cached_property
    def used(self) -> tuple[int, ...]:
        """The columns with effects."""
        return tuple(j for j in range(len(self.levels)) if j != self.target)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Those of numbers."""
        return tuple(j for j in self.used if not self.levels[j])

    @property
    def n_edges(self) -> int:
        """Places for edges between the bins of a column of numbers."""
        return self.bins - 1 + len(_QUARTERS) * self.searched

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Places of each used column."""
        return tuple(self.levels[j] or self.n_edges + 1 for j in self.used)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First place of each used column, and the number of all places."""
        return (0, *accumulate(self.sizes))

    def start(self) -> Floats:
        """Return the edges of equal bins; shape (n_numbers, n_edges)."""
        inner = np.linspace(-1, 1, self.bins + 1)[1:-1]
        return np.tile(_padded(inner, self.n_edges), (len(self.numbers), 1))

    def places(self, edges: Integers, records: Records) -> list[Integers]:
        """Return the place of each record in each used column; `edges` in grid steps."""
        one, found = 1 << self.frac_bits, []
        # Edges ascend already; they are sorted so that places are right for any state.
        rows = iter(np.sort(edges, axis=1))
        for j, start in zip(self.used, self.starts, strict=False):
            if levels := self.levels[j]:
                place = codes(records[:, j], levels, self.frac_bits)
            else:
                # An unused edge is at the end of the box, and no record is beyond it.
                inside = np.clip(records[:, j], -one, one - 1)
                place = np.searchsorted(next(rows), inside, side="right")
            found.append(start + place)
        return found

    def filled(self, edges: Floats) -> list[slice]:
        """Return the places of each used column that records can reach."""
        reached = iter((edges < 1).sum(axis=1).tolist())
        return [
            slice(start, start + (self.levels[j] or next(reached) + 1))
            for j, start in zip(self.used, self.starts, strict=False)
        ]

    def continued(self, values: Floats, edges: Floats) -> Floats:
        """Return values of all places, where unused places repeat the last one before them."""
        found = values.copy()
        for at, end in zip(self.filled(edges), self.starts[1:], strict=True):
            found[at.stop : end] = found[at.stop - 1]
        return found


def _padded(edges: Floats, length: int) -> Floats:
    return np.concatenate([edges, np.ones(length - len(edges))])


def edges_from(counts: Floats, layout: Layout) -> Floats:
    """Return edges of bins with equal sums of roots of noisy counts, and the quarters of the box.

    Roots, since bins of equal counts would leave none for the tails of a skewed column.

    Parameters
    ----------
    counts : ndarray of shape (n_numbers, n_cells)
        Records in equal cells of the box.
    """
    n, found = counts.shape[1], []
    wanted = np.arange(1, layout.bins) / layout.bins
    for column in counts:
        sums = np.maximum(made_rising(np.concatenate([[0.0], np.cumsum(column)])), 0.0)
        mass = np.concatenate([[0.0], np.cumsum(np.sqrt(np.diff(sums)))])
        at = np.searchsorted(mass / max(mass[-1], 1e-9), wanted) / n
        inner = np.unique([*at[(at > 0) & (at < 1)], *_QUARTERS])
        found.append(_padded(2 * inner - 1, layout.n_edges))
    return np.reshape(found, (len(counts), layout.n_edges))


@dataclass(frozen=True)
class Shapes:
    """The public state of an additive model with k scores and W places of bins."""

    edges: Floats  # (n_numbers, n_edges), grid coordinates
    intercept: Floats  # (k,)
    effects: Floats  # (W, k), on the scale of the score
    deviation: Floats  # of the effects, (W, k)
    response: Floats  # mean over rounds of gradient + curvature * effect, records; (W, k)
    response_variance: Floats  # of its noise, records squared; (n_used,)
    curvature: Floats  # mean over rounds, records; (W, k)
    curvature_variance: Floats  # of its noise, (n_used,)
    without: Floats  # posterior probability of no effect, (n_used,)
    active: Floats  # 1 if a column has sums in later rounds, else 0; (n_used,)

    @classmethod
    def first(cls, layout: Layout, scores: int) -> Shapes:
        """Return a model without effects."""
        d, zeros = len(layout.used), np.zeros((layout.starts[-1], scores))
        nothing = np.zeros(d)
        return cls(
            **{"edges": layout.start(), "intercept": np.zeros(scores), "effects": zeros},
            **{"deviation": zeros, "response": zeros, "response_variance": nothing},
            **{"curvature": zeros, "curvature_variance": nothing},
            **{"without": nothing, "active": np.ones(d)},
        )


class Loss(NamedTuple):
    """The numbers of a loss that a step needs."""

    weight: float  # of curvature in the sums: its noise is divided by it
    spread: float = 1.0  # sampling variance of a gradient over its curvature
    part: float = 1.0  # of a Newton step that is taken


class Sums(NamedTuple):
    """The released sums of a round, in records."""

    gradients: Floats  # (W, k)
    curvature: Floats  # (W, k)
    noise: float  # deviation of each gradient; that of curvature is divided by its weight


def step(shapes: Shapes, t: int, sums: Sums, layout: Layout, loss: Loss) -> Shapes:
    """Return the model after round `t` of gradients, from 0."""
    noise, rate = max(sums.noise, _LEAST_NOISE), 1 / (t + 1)
    gradients, measured = (np.clip(part, -_LARGEST, _LARGEST) for part in sums[:2])
    filled = layout.filled(shapes.edges)
    used = [(int(i), filled[i]) for i in np.flatnonzero(shapes.active)]
    # Every column sums the same records, so the totals of all columns are one number.
    weights = np.array([1 / (at.stop - at.start) for _, at in used])
    weights /= weights.sum()
    total = weights @ [gradients[at].sum(axis=0) for _, at in used]
    mass = np.maximum(weights @ [measured[at].sum(axis=0) for _, at in used], 3 * noise)
    new = {name: array.copy() for name, array in vars(shapes).items()}
    fits = []
    for i, at in used:
        curvature = _averaged(new, i, at, measured[at], noise / loss.weight, first=t == 0)
        curvature = curvature * (mass / curvature.sum(axis=0))
        own = gradients[at] + (total - gradients[at].sum(axis=0)) / (at.stop - at.start)
        own = loss.part * (own - total * curvature / mass)
        # The mean over rounds, so that the noise of all of them is averaged.
        now = own + curvature * shapes.effects[at]
        response = new["response"][at] = (1 - rate) * shapes.response[at] + rate * now
        variance = (1 - rate) ** 2 * shapes.response_variance[i] + (rate * loss.part * noise) ** 2
        new["response_variance"][i] = variance
        known = np.maximum(curvature, 0.2 * noise)
        for k in range(response.shape[1]):
            kernels = _kernels(layout, shapes.edges, i, curvature[:, k])
            fits.append(_fit(response[:, k], known[:, k], variance, kernels, loss.spread))
    found = iter(_pooled(fits))
    for i, at in used:
        of_scores = [next(found) for _ in range(len(total))]
        effects = np.stack([one.effect for one in of_scores], axis=1)
        deviation = np.stack([one.deviation for one in of_scores], axis=1)
        # Effects of columns that move together converge as 1 / t, so that t times the last move is
        # an estimate of what is left of it.
        left = t * (effects - shapes.effects[at])
        new["deviation"][at] = np.minimum(np.hypot(deviation, left), MOST_EFFECT)
        new["effects"][at] = effects * (1.0 if t else _FIRST_PART)
        new["without"][i] = min(one.without for one in of_scores)
    if t:
        likely = shapes.active * (new["without"] <= _UNLIKELY)
        if likely.any():  # else later rounds would have no sums
            new["active"] = likely
    moved = np.clip(loss.part * total / (mass + noise), -MOST_STEP, MOST_STEP)
    new["intercept"] = shapes.intercept + moved * (max(rate, 0.5) if t else 1.0)
    return Shapes(**new)


def _averaged(
    new: dict[str, Floats], i: int, at: slice, measured: Floats, noise: float, *, first: bool
) -> Floats:
    """Update the mean curvature of a column by inverse variances; return it, above its noise."""
    before = np.inf if first else max(float(new["curvature_variance"][i]), _LEAST_NOISE**2)
    part = 1 / (1 + noise**2 / before)
    mean = new["curvature"][at] + part * (measured - new["curvature"][at])
    new["curvature"][at], new["curvature_variance"][i] = mean, part * noise**2
    return np.asarray(np.maximum(mean, 0.5 * noise * sqrt(part)))


def _kernels(layout: Layout, edges: Floats, i: int, mass: Floats) -> Floats:
    """Return prior covariances of the effects of a column; shape (n_priors, B, B)."""
    column = layout.used[i]
    if layout.levels[column]:
        return np.eye(len(mass))[None]
    inner = edges[layout.numbers.index(column)]
    ends = np.concatenate([[-1.0], inner[inner < 1], [1.0]])
    ranks = (np.cumsum(mass) - mass / 2) / mass.sum()
    lines = (_standard(ranks, mass), np.clip(_standard(ends[1:] + ends[:-1], mass), -_FAR, _FAR))
    apart = (ranks[:, None] - ranks) ** 2
    smooth = (np.exp(-apart / (2 * length**2)) for length in (_LONG, _SHORT))
    return np.stack([*(np.outer(z, z) for z in lines), *smooth, np.eye(len(mass))])


def _standard(values: Floats, mass: Floats) -> Floats:
    """Return values with a mean of 0 and a variance of 1 over the mass of their bins."""
    apart = values - values @ mass / mass.sum()
    return np.asarray(apart / np.sqrt(max(float(apart**2 @ mass / mass.sum()), 1e-6)))


class _Fit(NamedTuple):
    """A column's effects under each prior."""

    likelihood: Floats  # logarithm, up to a constant; (n_priors,)
    scale: Integers  # number of each prior's scale
    means: Floats  # (n_priors, B)
    covariances: Floats  # (n_priors, B, B)
    mass: Floats  # (B,)


def _fit(
    response: Floats, curvature: Floats, variance: float, kernels: Floats, spread: float
) -> _Fit:
    """Return the posterior of effects f of ``response = curvature f + noise`` under each prior."""
    mixtures, prior = np.ones((1, 1)), np.ones(1)
    if len(kernels) > 1:
        mixtures, prior = _MIXTURES, np.array(_MIXED)
    scales = np.array(_SCALES[1:])
    parts = (scales[:, None, None] * mixtures).reshape(-1, len(kernels))
    # No effect first: it has one prior.
    parts = np.concatenate([np.zeros((1, len(kernels))), parts])
    of_scale = np.concatenate([[0], np.repeat(np.arange(1, len(_SCALES)), len(prior))])
    logs = np.log(np.concatenate([[1.0], np.tile(prior, len(scales))]))
    covariance = np.tensordot(parts, kernels, axes=1)
    # In units of the error of a response, in which all numbers have a similar size.
    error = np.sqrt(variance + spread * curvature)
    slope = curvature / error
    of_response = slope[:, None] * covariance
    root = np.linalg.cholesky(np.eye(len(error)) + of_response * slope)
    rows = np.tile((response / error)[:, None], (len(parts), 1, 1))
    right = np.concatenate([of_response, rows], axis=2)
    solved = np.linalg.solve(root, right)
    gain, seen = solved[..., :-1], solved[..., -1]
    logs = logs - (seen**2).sum(axis=1) / 2
    logs -= np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    turned = gain.transpose(0, 2, 1)
    means = (turned @ seen[..., None])[..., 0]
    return _Fit(logs, of_scale, means, covariance - turned @ gain, curvature)


class _Effects(NamedTuple):
    effect: Floats
    deviation: Floats
    without: float


def _pooled(fits: Sequence[_Fit]) -> list[_Effects]:
    """Return effects as means over priors, whose scales have one law that all columns share."""
    seen = np.array(_SEEN)
    law = seen / seen.sum()
    for _ in range(_EM_STEPS):
        counts = seen + sum(np.bincount(fit.scale, _chances(fit, law), len(law)) for fit in fits)
        law = counts / counts.sum()
    return [_mixed(fit, _chances(fit, law)) for fit in fits]


def _chances(fit: _Fit, law: Floats) -> Floats:
    chances = np.exp(fit.likelihood - fit.likelihood.max()) * law[fit.scale]
    return np.asarray(chances / chances.sum())


def _mixed(fit: _Fit, chances: Floats) -> _Effects:
    """Return the effects relative to their mean over records, with their deviation."""
    mean = chances @ fit.means
    apart = fit.means - mean
    covariance = np.tensordot(chances, fit.covariances, axes=1)
    covariance += (chances[:, None] * apart).T @ apart
    share = fit.mass / fit.mass.sum()
    along = covariance @ share
    variance = np.diagonal(covariance) - 2 * along + share @ along
    return _Effects(
        np.clip(mean - share @ mean, -MOST_EFFECT, MOST_EFFECT),
        np.sqrt(np.clip(variance, 0.0, MOST_EFFECT**2)),
        float(chances[0]),
    )


def importance(shapes: Shapes, layout: Layout) -> Floats:
    """Return the root of the mean squared effect of each used column; shape (n_used,)."""
    found = []
    for i, at in enumerate(layout.filled(shapes.edges)):
        least = max(0.5 * float(np.sqrt(shapes.curvature_variance[i])), _LEAST_NOISE)
        mass = np.maximum(shapes.curvature[at], least)
        squares = (mass * shapes.effects[at] ** 2).sum(axis=0) / mass.sum(axis=0)
        found.append(np.sqrt(squares.mean()))
    return np.array(found)
