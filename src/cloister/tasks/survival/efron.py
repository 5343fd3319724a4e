"""Cox's partial likelihood of noisy exits by cell of covariates and time, by post-processing.

The table holds unbiased counts of exits with and without the event. Counts at risk are sums of
later exits, and Efron's likelihood is solved with them. Single counts have more noise than value,
so events are summed in blocks of time. Inside a block they follow the smooth cumulative events of
all cells of a stratum.

The likelihood is not linear in the table. So noise of the same law is added to a table that the
fitted model explains, and the same equations are solved again. This gives the mean error, which is
subtracted, and the deviation.

References
----------
.. [C72] Cox, "Regression models and life-tables", JRSS B 34, 1972.
.. [E77] Efron, "The efficiency of Cox's likelihood function for censored data", JASA 72, 1977.
.. [GT94] Grambsch and Therneau, "Proportional hazards tests and diagnostics based on weighted
   residuals", Biometrika 81, 1994: effects that change with time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cloister.core.arrays import Flags, Floats, Integers
from cloister.tasks.survival.running import cuts_of, decoded, tail_deviations

_DRAWS, _DRAWS_OF_HALVES = 100, 50
_CLEAR, _LEAST_AT_RISK = 4.0, 2.0  # the horizon: deviations of noise, and records
# With numbers, a few records have most of the hazard: nearer to the noise, redraws go far away.
_CLEAR_OF_NUMBERS = 14.0
_CLEAR_CELL = 3.0  # deviations of noise, above which a cell of categories is followed
_BLOCK, _MOST_BLOCKS, _LEAST_BLOCKS = 2.0, 200, 3  # events of a block in deviations of noise
_PASSES, _STEPS, _STEPS_AGAIN, _STEPS_OF_HALVES = 3, 30, 8, 5
_LARGEST, _FARTHEST_STEP, _DONE, _FLATTEST = 8.0, 1.0, 1e-6, 1e-3
_LARGEST_LINE = 20.0  # of the logarithm of a hazard ratio
_MOST_NOISE, _MOST_COEF, _MOST_FAR, _FAR = 0.75, 7.5, 0.02, 4.0  # of coefficients that are known
_MOST_NOISE_OF_HALVES = 1.5
_LEAST_NOISE, _AGREE = 0.02, 4.0
_NUMBER_FACTOR = 1.25  # the horizon and the joined knots follow the noise and are not drawn again
_ACCURACY = 0.1  # of the tables to the maximum of the likelihood, in deviations of sampling
_LEAST_KEPT, _MOST_TURN = 0.3, 2.0
_TINY = 1e-9
_NODES = (np.array([-1, 1]) / np.sqrt(3) + 1) / 2  # Gauss and Legendre, of the ties of a tick


@dataclass(frozen=True)
class Table:
    """Noisy exits of one stratum.

    Parameters
    ----------
    exits : ndarray of shape (cells, 2, m + 1)
        Events and censored records of each cell of covariates in each cell of time.
    noise : ndarray of shape (cells,)
        Deviation of the noise of the released sums of each cell, in records.
    """

    exits: Floats
    noise: Floats

    @property
    def ticks(self) -> int:
        """Number of cells of time, without the one of records beyond all."""
        return int(self.exits.shape[-1]) - 1

    @cached_property
    def events(self) -> float:
        """Noisy number of events."""
        return float(self.exits[:, 0, :-1].sum())

    @cached_property
    def unit(self) -> Floats:
        """Noise of the number at risk at each tick, for a noise of 1; shape (ticks,)."""
        return np.asarray(np.sqrt(2) * tail_deviations(self.ticks + 1)[:-1])


@dataclass(frozen=True)
class Blocks:
    """Blocks of time of a stratum, and the cells that are followed in them.

    Parameters
    ----------
    cuts : ndarray of shape (blocks + 1,)
        The first tick of each block, and the end of the last.
    cumulative : ndarray of shape (ticks + 1,)
        Noisy events of all cells before each tick.
    followed : ndarray of shape (cells, blocks)
        1 while a cell is followed, then 0.
    """

    cuts: Integers
    cumulative: Floats
    followed: Floats

    @property
    def last(self) -> int:
        """Number of ticks used."""
        return int(self.cuts[-1])

    @cached_property
    def of_tick(self) -> Integers:
        """Block of each tick."""
        return np.repeat(np.arange(len(self.cuts) - 1), np.diff(self.cuts))

    @classmethod
    def of(cls, table: Table, hazards: Floats, follow_all: bool) -> Blocks | None:
        """Return the blocks up to the time where too few are at risk, or None.

        `hazards` are relative hazards of the cells, with which the number at risk is weighted.
        """
        noise, unit, ticks = table.noise, table.unit, table.ticks
        cumulative = np.append(0.0, np.cumsum(table.exits[:, 0, :-1].sum(axis=0)))
        smooth = np.maximum(_monotone(cumulative, True), 0)
        weights = hazards / hazards.mean()
        enough = np.ones(ticks, dtype=bool)
        deviations = _CLEAR_OF_NUMBERS if follow_all else _CLEAR
        # without the events of the tick itself
        for w, least, own in ((np.ones_like(weights), _LEAST_AT_RISK, True), (weights, 0.0, False)):
            at_risk = _monotone(_later(w @ table.exits.sum(axis=1))[:-1], False)
            std = unit * np.sqrt((w * noise) @ (w * noise))
            enough &= at_risk - own * np.diff(smooth) > np.maximum(deviations * std, least)
        last = int(np.argmin(enough)) if not enough.all() else ticks
        least_events = max(_BLOCK * np.sqrt(noise @ noise), smooth[last] / _MOST_BLOCKS)
        if not last:
            return None
        cuts = cuts_of(smooth[: last + 1], max(least_events, _TINY))
        starts = cuts[:-1]
        own_risk = _later(table.exits.sum(axis=1))
        clear = np.array([_monotone(row, False) for row in own_risk[:, :-1]])[:, starts]
        # A stop at the start of a block does not depend on its events, as with censoring.
        on = follow_all | (clear > _CLEAR_CELL * noise[:, None] * unit[starts])
        followed = np.logical_and.accumulate(on, axis=1).astype(float)
        return cls(cuts, cumulative, followed)

    def shape(self, cumulative: Floats) -> tuple[Floats, Floats]:
        """Return the share of a block's events at each tick, and ``1 - 1 / d`` of d tied events.

        `cumulative` has the shape (draws, more than `last`).
        """
        rows = cumulative[:, : self.last + 1]
        events = np.diff([np.maximum(_monotone(row, True), 0) for row in rows], axis=1)
        whole = np.add.reduceat(events, self.cuts[:-1], axis=1)[:, self.of_tick]
        even = (1 / np.diff(self.cuts))[self.of_tick]
        share = np.where(whole > _TINY, events / np.maximum(whole, _TINY), even)
        return share, 1 - 1 / np.maximum(events, 1)

    def sums(self, exits: Floats) -> tuple[Floats, Floats]:
        """Return events of blocks (..., cells, blocks), and records at risk (..., cells, ticks)."""
        events = np.add.reduceat(exits[..., 0, : self.last], self.cuts[:-1], axis=-1)
        at_risk = _later(exits.sum(axis=-2))[..., : self.last]
        return events * self.followed, at_risk * self.followed[:, self.of_tick]


def _later(exits: Floats) -> Floats:
    """Return sums over a cell of time and all later ones."""
    return np.asarray(np.cumsum(exits[..., ::-1], axis=-1)[..., ::-1])


def _monotone(values: Floats, rising: bool) -> Floats:
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(values, increasing=rising).x)


@dataclass(frozen=True)
class Stratum:
    """Sums of a stratum from which the likelihood is computed, for one or more draws.

    Parameters
    ----------
    events : ndarray of shape (draws, cells, blocks)
    at_risk : ndarray of shape (draws, cells, ticks)
    share, tied : ndarray of shape (1 or draws, ticks)
        As from :meth:`Blocks.shape`.
    of_tick : ndarray of shape (ticks,)
        Block of each tick.
    """

    events: Floats
    at_risk: Floats
    share: Floats
    tied: Floats
    of_tick: Integers

    def first(self, draws: int) -> Stratum:
        """Return some of the draws."""
        shape = {name: getattr(self, name)[:draws] for name in ("share", "tied")}
        return replace(self, events=self.events[:draws], at_risk=self.at_risk[:draws], **shape)

    def part(self, blocks: Flags) -> Stratum:
        """Return the stratum with some of its blocks only."""
        ticks = blocks[self.of_tick]
        return Stratum(
            self.events[:, :, blocks],
            self.at_risk[:, :, ticks],
            self.share[:, ticks],
            self.tied[:, ticks],
            (np.cumsum(blocks) - 1)[self.of_tick[ticks]],
        )

    @cached_property
    def total(self) -> Floats:
        """Events of each tick; shape (draws, ticks)."""
        return np.asarray(self.events.sum(axis=1)[:, self.of_tick] * self.share)

    @cached_property
    def nodes(self) -> tuple[Floats, ...]:
        """Records at risk of each cell, less two parts of the tied events."""
        tied = self.events[:, :, self.of_tick] * (self.share * self.tied)[:, None]
        return tuple(self.at_risk - node * tied for node in _NODES)


def solve(
    strata: Sequence[Stratum], x: Floats, split: Floats, start: Floats, steps: int = _STEPS
) -> tuple[Floats, Floats]:
    """Return the maximum of Efron's likelihood [E77]_ and the information at it, for each draw.

    Parameters
    ----------
    x : ndarray of shape (cells, p)
    split : ndarray of shape (p,)
        Variance that the split of records between knots adds, and which is subtracted.
    start : ndarray of shape (draws, p)
    """
    events = sum(part.events.sum(axis=2) for part in strata)
    size = events.sum(axis=1)
    sums = events @ x

    def at(b: Floats) -> tuple[Floats, Floats]:
        ratio = np.exp(np.clip(b @ x.T, -_LARGEST_LINE, _LARGEST_LINE))
        mean, products = np.zeros_like(ratio), np.zeros((*ratio.shape, len(x)))
        for part in strata:
            for at_risk in part.nodes:
                share = ratio[:, :, None] * at_risk
                whole = share.sum(axis=1, keepdims=True)
                share = share / np.where(whole > 0, whole, np.inf)
                weighted = share * (part.total / len(_NODES))[:, None]
                mean += weighted.sum(axis=2)
                products += weighted @ share.transpose(0, 2, 1)
        spread = np.einsum("rg,gp,gq->rpq", mean, x, x) - x.T @ products @ x
        information = (spread + spread.transpose(0, 2, 1)) / 2
        score = sums - mean @ x + size[:, None] * split * b
        return score, information - size[:, None, None] * np.diag(split)

    b = start
    for _ in range(steps):
        score, information = at(b)
        values, vectors = np.linalg.eigh(information)
        values = np.maximum(values, _FLATTEST * np.maximum(size, 1)[:, None])
        step = np.einsum("rpk,rk,rqk,rq->rp", vectors, 1 / values, vectors, score)
        length = np.abs(step).max(axis=1, keepdims=True)
        step *= np.minimum(1, _FARTHEST_STEP / np.maximum(length, _TINY))
        b = np.clip(b + step, -_LARGEST, _LARGEST)
        if np.abs(step).max() < _DONE:
            break
    return b, at(b)[1]


@dataclass(frozen=True)
class Halves:
    """Coefficients of the first and the second half of the events, and their variances; (2, p).

    `z` is their difference, divided by the deviation of noise and sampling [GT94]_. A half with
    too much noise is not a number.
    """

    coef: Floats
    noise: Floats
    sampling: Floats
    z: Floats


@dataclass(frozen=True)
class Fit:
    """Coefficients in the units of `x`, with variances; not a number if they are unknown.

    `noise` and `population` are variances of the error by noise, and by noise and sampling.
    `covariance` is that of noise and sampling, without the doubts about later times. `known` is
    false for a coefficient without a valid interval. `last` are the numbers of ticks used.
    """

    coef: Floats
    noise: Floats
    population: Floats
    covariance: Floats
    known: Flags
    halves: Halves
    kept: float
    last: tuple[int, ...]


def fitted(
    tables: Sequence[Table],
    x: Floats,
    split: Floats,
    events: float,
    rng: np.random.Generator,
    *,
    numbers: bool,
) -> Fit:
    """Return the estimate of tables of the same cells, one for each stratum.

    Parameters
    ----------
    x : ndarray of shape (cells, p)
        Covariates of each cell.
    split : ndarray of shape (p,)
        Variance that splitting adds to each covariate; 0 for indicators of categories.
    events : float
        Noisy events of all cells, also of those that are left out of the tables.
    numbers : bool
        True if the cells are knots of a number. A record is then in several cells, and cells stay.
    """
    p = x.shape[1]
    if not p:
        return _unknown(p, (0,) * len(tables))
    hazards = np.ones(len(x))
    b = np.zeros((1, p))
    for _ in range(_PASSES):
        blocks = [Blocks.of(table, hazards, numbers) for table in tables]
        used = [(t, each) for t, each in zip(tables, blocks, strict=True) if each is not None]
        last = tuple(0 if each is None else each.last for each in blocks)
        if sum(len(each.cuts) - 1 for _, each in used) < _LEAST_BLOCKS:
            return _unknown(p, last)
        raw = [_stratum(each, table.exits[None]) for table, each in used]
        # A likelihood with rising numbers at risk may have several roots; start at that of another.
        smooth = [_smoothed(part) for part in raw]
        concave = [replace(part, events=np.maximum(part.events, 0)) for part in smooth]
        b, _ = solve(concave, x, split, b)
        first, _ = solve(smooth, x, split, b)
        b, _ = solve(raw, x, split, first)
        hazards = np.exp(np.clip(x @ first[0], -5, 5))
    return _with_noise(used, raw, x, split, (first, b), events, last, rng, numbers)


def _stratum(blocks: Blocks, exits: Floats, cumulative: Floats | None = None) -> Stratum:
    shape = blocks.shape(blocks.cumulative[None] if cumulative is None else cumulative)
    return Stratum(*blocks.sums(exits), *shape, blocks.of_tick)


def _smoothed(part: Stratum) -> Stratum:
    rows = [np.maximum(_monotone(row, False), 0) for row in part.at_risk[0]]
    return replace(part, at_risk=np.array(rows)[None])


def _unknown(p: int, last: tuple[int, ...]) -> Fit:
    none, both = np.full(p, np.nan), np.full((2, p), np.nan)
    halves = Halves(both, both, both, none)
    return Fit(
        *(none, none, none, np.full((p, p), np.nan)), np.zeros(p, dtype=bool), halves, 0.0, last
    )


def _explained(part: Stratum, x: Floats, b: Floats) -> Stratum:
    """Return the stratum with the events of each block shared by the hazards of the model."""
    hazard = np.exp(np.clip(x @ b, -_LARGEST_LINE, _LARGEST_LINE))[:, None] * part.at_risk[0]
    each = hazard / np.maximum(hazard.sum(axis=0), _TINY) * part.total[0]
    starts = np.flatnonzero(np.diff(part.of_tick, prepend=-1))
    return replace(part, events=np.add.reduceat(each, starts, axis=1)[None])


def _drawn(table: Table, blocks: Blocks, truth: Stratum, rng: np.random.Generator) -> Stratum:
    """Return draws of a table that the model explains, with fresh noise."""
    shape = (_DRAWS, *table.exits.shape)
    noise = decoded(rng.standard_normal(shape) * table.noise[:, None, None])
    events, at_risk = blocks.sums(noise)
    # Shares of ticks are computed again: with those of the table the estimate is biased.
    smooth = truth.share[0] * np.maximum(truth.events[0].sum(axis=0), 0)[blocks.of_tick]
    moved = np.cumsum(noise[:, :, 0, : blocks.last].sum(axis=1), axis=1)
    cumulative = np.append(0.0, np.cumsum(smooth)) + np.pad(moved, ((0, 0), (1, 0)))
    share, tied = blocks.shape(cumulative)
    return Stratum(truth.events + events, truth.at_risk + at_risk, share, tied, blocks.of_tick)


def _with_noise(
    used: Sequence[tuple[Table, Blocks]],
    raw: Sequence[Stratum],
    x: Floats,
    split: Floats,
    found: tuple[Floats, Floats],
    events: float,
    last: tuple[int, ...],
    rng: np.random.Generator,
    numbers: bool,
) -> Fit:
    """Return the estimate without its mean error, and its variances."""
    smooth, b = found
    p = x.shape[1]
    truth = [_explained(part, x, b[0]) for part in raw]
    drawn = [
        _drawn(table, blocks, part, rng) for (table, blocks), part in zip(used, truth, strict=True)
    ]
    root, information = solve(truth, x, split, b)
    again, _ = solve(drawn, x, split, np.repeat(root, _DRAWS, axis=0), _STEPS_AGAIN)
    moves = again - root
    error = np.median(moves, axis=0)
    inner, outer = np.quantile(np.abs(moves - error), [0.683, 0.95], axis=0)
    std = np.maximum(inner, outer / 1.96) * (_NUMBER_FACTOR if numbers else 1.0)
    definite = np.linalg.eigvalsh(information[0])[0] > 0
    of_sampling = np.linalg.inv(information[0]) if definite else np.full((p, p), np.nan)
    sampling = np.diag(of_sampling)
    kept = float(sum(part.events.sum() for part in raw) / max(events, 1.0))
    loss = float(np.clip(1 / max(kept, _LEAST_KEPT) - 1, 0, 1))
    least = np.maximum(std, _LEAST_NOISE)
    known = (
        np.isfinite(sampling)
        & (std < _MOST_NOISE)
        & (np.abs(b[0]) < _MOST_COEF)
        & (np.abs(error) < least)
        & ((np.abs(moves) > _FAR).mean(axis=0) < _MOST_FAR)
        & (np.abs(b - smooth)[0] < _AGREE * least)
    )
    halves = _halves(raw, drawn, x, split, b)
    # Events that are left out may have another effect.
    turn = (loss + _left_out(used, x)) * np.fmin(
        np.abs(np.diff(halves.coef, axis=0)[0]), _MOST_TURN
    )
    known &= turn < _MOST_NOISE
    noise = std**2 + (loss + _ACCURACY**2) * sampling + turn**2
    population = std**2 + (1 + loss) * sampling + turn**2
    spread = np.cov(np.clip(moves, -_FAR, _FAR), rowvar=False).reshape(p, p)
    scale = std / np.sqrt(np.maximum(np.diag(spread), _TINY))
    covariance = spread * np.outer(scale, scale) + (1 + loss) * of_sampling
    return Fit(b[0] - error, noise, population, covariance, known, halves, kept, last)


def _left_out(used: Sequence[tuple[Table, Blocks]], x: Floats) -> Floats:
    """Return the largest share of the events of a group that is left out, by covariate; (p,).

    The groups are the cells above and below the mean of a covariate.
    """
    lost, events = np.zeros(len(x)), np.zeros(len(x))
    for table, blocks in used:
        followed = blocks.followed.sum(axis=1).astype(np.int64)
        stops = blocks.cuts[np.minimum(followed, len(blocks.cuts) - 2)]
        cut = followed < len(blocks.cuts) - 1
        lost += cut * _CLEAR_CELL * table.noise * table.unit[stops]  # most that can be at risk
        events += table.exits[:, 0, :-1].sum(axis=1)
    groups = np.stack([x > 0, x < 0]).astype(float)
    shares = (lost @ groups) / np.maximum(events @ groups, 1.0)
    return np.asarray(np.clip(shares, 0, 1).max(axis=0))


def _halves(
    raw: Sequence[Stratum],
    drawn: Sequence[Stratum],
    x: Floats,
    split: Floats,
    b: Floats,
) -> Halves:
    """Return the estimates of both halves of the events of each stratum."""
    earlier = [np.cumsum(part.events[0].sum(axis=0)) <= part.events.sum() / 2 for part in raw]
    fewer = [part.first(_DRAWS_OF_HALVES) for part in drawn]
    coef, sampling, moved, known = [], [], [], []
    for first in (True, False):
        masks = [mask == first for mask in earlier]
        parts = [part.part(mask) for part, mask in zip(raw, masks, strict=True)]
        noisy = [part.part(mask) for part, mask in zip(fewer, masks, strict=True)]
        value, information = solve(parts, x, split, b)
        start = np.repeat(value, _DRAWS_OF_HALVES, axis=0)
        moved.append(solve(noisy, x, split, start, _STEPS_OF_HALVES)[0])
        coef.append(value[0])
        sampling.append(np.maximum(np.diag(np.linalg.pinv(information[0])), 0))
        known.append(np.diag(information[0]) > 1)  # 0 if a cell is not followed in this half
    values, noise = np.array(coef), np.array(moved).var(axis=1)
    # Steps are limited, so the deviation of a half without a finite maximum would be too small.
    finite = (np.abs(values) < _MOST_COEF) & (noise < _MOST_NOISE_OF_HALVES**2) & known
    values = np.where(finite, values, np.nan)
    of_sum = np.array(sampling).sum(axis=0) + (moved[0] - moved[1]).var(axis=0)
    z = (values[0] - values[1]) / np.sqrt(np.maximum(of_sum, _TINY))
    return Halves(values, noise, np.array(sampling), z)
