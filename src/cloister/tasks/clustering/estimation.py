"""Rounds at fixed centres: where k-means on all records would end from them, and how surely.

A path of noisy rounds ends near a fixed point of Lloyd's algorithm and not at it. A *look* at its
centres counts the records by their distance to the nearest centre, and the records near the border
of each two centres. *Sums* at the same centres follow, clipped at radii that few records exceed.
The counts near the borders give the derivative of the clusters' means by their centres
(:mod:`.fixed_point`). So the fixed point and its error follow from the means to first order.

A border through a cloud has many records near it. So a cluster is determined only if the counts
near its borders are small beyond their noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Generic, Protocol, TypeVar

import numpy as np

from cloister.core.arrays import Flags, Floats, GridState, Integers, Records, State
from cloister.hazmat.fixedpoint import from_grid
from cloister.protocol.task import INTERVAL_95, Block, NoisyBlock, Rows
from cloister.tasks.clustering.auto_rounds import lloyd_contribution, lloyd_rows, unit_block
from cloister.tasks.clustering.clusters import SIZE_ERROR
from cloister.tasks.clustering.fixed_point import (
    DETERMINED,
    MOST_COORDINATES,
    NOT_DETERMINED,
    Response,
)
from cloister.tasks.clustering.lloyd_kernel import two_nearest
from cloister.tasks.intervals import round_up

# The constants below were tuned on generated tables. Privacy does not depend on any of them
# (docs/proofs/auto.md).
_BINS = 12  # of squared distances; each bound is half of the next one
_BAND = (3, 10)  # thickness of both sides of a border, as a fraction of the distance of its centres
_POOLED = 0.05  # share of an average cluster that the shape of all distances adds to each cluster
_TAIL = 0.004  # share of records beyond a radius
_COUNT_PART = 0.12  # share of the counts in a round of sums
_LEAST_SIZE = 0.02  # least size of a cluster, in average sizes
_MOVES, _ERRORS = 0.8, 0.97  # largest eigenvalue that amplifies a move, and an error
FIRST_ORDER_ERROR, _DRIFT = 1.3, 0.5  # relative error of the first order, and that of the last move
_NARROW = 0.5  # longest interval of a cluster, in distances to the next centre
_LOOSE, _PART = 0.5, 0.1  # eigenvalues that move a cluster, and its part in them
_CROWD, _SURE = 0.5, 2.0  # influence of the borders on a cluster; standard deviations above it
_SPLIT = 0.64  # share of a cluster's squared distances that two centres may save
_ENOUGH = 4.0  # least records of an average cluster over the noise of all its borders

ESTIMATION_RELEASES = (
    "last, the counts of each cluster's records by their distance to its centre and near the "
    "border of each two clusters, and the sum of their clipped differences to it"
)


def can_determine(n_clusters: int, n_features: int, nominal_n: int, mu: float, look: float) -> bool:
    """Return True if a cluster of average size can be determined, by public numbers alone."""
    noise = sqrt(2 * (n_clusters - 1)) / (mu * sqrt(look / 2))
    small = n_clusters * n_features <= MOST_COORDINATES
    return small and nominal_n >= _ENOUGH * n_clusters * noise


@dataclass(frozen=True)
class Estimation:
    """Pairs of rounds, a look and sums; each pair ends at new centres.

    Parameters
    ----------
    look : float
        Share of the budget of each look.
    sums : tuple of float
        Share of each round of sums.
    least_move : float
        Squared move below which a centre stays, in the square that noise alone would have. It is
        larger if the path ends with less noise than these rounds have.
    """

    n_clusters: int
    n_features: int
    frac_bits: int
    look: float
    sums: tuple[float, ...]
    least_move: float = 1.0

    @property
    def rounds(self) -> int:
        return 2 * len(self.sums)

    @property
    def share(self) -> float:
        """Share of the budget of all rounds."""
        return self.look * len(self.sums) + sum(self.sums)

    def start(self) -> State:
        """Return the part of the state that only these rounds use."""
        k = self.n_clusters
        names = ("look_radii", "look_squares", "look_counts", "look_lost")
        zeros = dict.fromkeys(names, np.zeros(k))
        return {**zeros, "look_borders": np.zeros((k, k)), "verdict": np.full(k, NOT_DETERMINED)}

    def blocks(self, r: int) -> tuple[Block, ...]:
        """Return the blocks of a round; a record changes one row or cell of each by one unit."""
        k, d, one = self.n_clusters, self.n_features, 1 << self.frac_bits
        if r % 2 == 0:
            share = self.look / 2
            return (
                Block.counting("distances", (k, _BINS), share, one=one),
                Block.counting("borders", (k, k), share, one=one),
            )
        share = self.sums[r // 2]
        return (
            unit_block("sums", (k, d), one, share * (1 - _COUNT_PART)),
            Block.counting("counts", (k,), share * _COUNT_PART, one=one),
        )

    # The records --------------------------------------------------------------------------

    def rows(self, r: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        one = 1 << self.frac_bits
        if r % 2:
            return lloyd_rows(_at_radii(state), records, one)
        bins, borders, is_near = self._cells(state["centres"], records)
        return Rows.at([bins], [one]), Rows(borders, one * is_near[:, None].astype(np.int64))

    def contribute(self, r: int, state: GridState, records: Records) -> Integers:
        one = 1 << self.frac_bits
        if r % 2:
            return lloyd_contribution(_at_radii(state), records, one)
        k = self.n_clusters
        bins, borders, is_near = self._cells(state["centres"], records)
        counts = [np.bincount(bins, minlength=k * _BINS), np.bincount(borders[is_near], None, k**2)]
        return np.concatenate(counts) * one

    @cached_property
    def _bounds(self) -> Integers:
        """Bounds of the bins of squared distances, in squared grid steps; the last bin is open."""
        diagonal = 4 * self.n_features << 2 * self.frac_bits
        return np.array([diagonal >> b for b in range(_BINS - 1, -1, -1)])

    def _cells(self, centres: Integers, records: Records) -> tuple[Integers, Integers, Flags]:
        """Return each record's bin and border, and whether it is near that border."""
        first, second, least, more = two_nearest(records, centres, 1 << self.frac_bits)
        bins = np.zeros(len(records), dtype=np.int8)
        for bound in self._bounds[:-1]:  # so few comparisons are faster than a search
            bins += least > bound
        apart = ((centres[:, None] - centres) ** 2).sum(axis=2)
        # A record has the distance (more - least) / (2 sqrt(apart)) from the border.
        part, whole = _BAND
        borders = first * self.n_clusters + second
        is_near = whole * (more - least) < (part * apart).take(borders)
        return first * _BINS + bins, borders, is_near

    # The answer ---------------------------------------------------------------------------

    def update(self, r: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        known = {name: from_grid(values, self.frac_bits) for name, values in state.items()}
        return {
            **known,
            **(
                self._moved(r, known, released)
                if r % 2
                else self._looked(known["centres"], released)
            ),
        }

    def _looked(self, centres: Floats, released: Mapping[str, NoisyBlock]) -> State:
        """Return the radii of clusters, their mean squared distances, and all counts."""
        k, bounds = self.n_clusters, self._bounds / float(1 << 2 * self.frac_bits)
        counts, std = released["distances"].in_records(self.frac_bits)
        shape = np.maximum(counts.sum(axis=0), 0)
        shape = shape / max(float(shape.sum()), 1e-9)
        smooth = counts + _POOLED * max(float(counts.sum()), 0.0) / k * shape
        beyond = np.cumsum(smooth[:, ::-1], axis=1)[:, ::-1]  # in a bin and those after it
        noise = 1.5 * std * np.sqrt(np.arange(_BINS, 0, -1))
        few = beyond <= np.maximum(_TAIL * smooth.sum(axis=1)[:, None], noise)
        # The radius is the bound before the first bin from which on there are few records.
        last = np.where(few[:, 1:].any(axis=1), few[:, 1:].argmax(axis=1), _BINS - 1)
        inside = np.maximum(smooth, 0) * (np.arange(_BINS) <= last[:, None])
        middles = bounds / sqrt(2)
        radii = np.sqrt(bounds)[last]
        # Records beyond a radius are too few in a cluster, so all clusters share their number. In
        # a random direction each moves a sum by its distance over the root of the columns.
        lost = np.maximum(np.sqrt(middles) - radii[:, None], 0)
        lost *= np.sqrt(np.append(0, bounds[:-1])) < _farthest(centres)[:, None]
        far = np.maximum(counts.sum(axis=0), 0) / k
        return {
            "look_lost": np.sqrt(lost**2 @ far / self.n_features),
            "look_radii": radii,
            "look_squares": inside @ middles / np.maximum(inside.sum(axis=1), 1e-9),
            "look_counts": counts.sum(axis=1),
            "look_borders": released["borders"].in_records(self.frac_bits)[0],
        }

    def _moved(self, r: int, known: State, released: Mapping[str, NoisyBlock]) -> State:
        """Return the estimated fixed point, its intervals and verdicts."""
        k, d = self.n_clusters, self.n_features
        centres, radii = known["centres"], known["look_radii"]
        sums, sum_std = released["sums"].in_records(self.frac_bits)
        fresh, fresh_std = released["counts"].in_records(self.frac_bits)
        # Independent counts are merged by their shares of the budget, which are their precisions.
        own, looked = self.blocks(r)[1].weight, self.look / 2
        total = own + looked / _BINS
        sizes = (own * fresh + looked / _BINS * known["look_counts"]) / total
        size_std = fresh_std * sqrt(own / total)
        least = _LEAST_SIZE * max(float(sizes.sum()), 0.0) / k
        counts = np.maximum(sizes, max(size_std, least, 1.0))
        steps = sums * (radii / counts)[:, None]
        errors = np.hypot(radii[:, None] * sum_std, steps * size_std) / counts[:, None]

        borders = _Borders.of(known, counts, fresh_std * sqrt(2 * own / looked))
        response = Response.of(borders.derivative(), counts, (k, d))
        target = np.clip(centres + response.move(steps, _MOVES), -1, 1)
        noise = (response.amplified(errors**2, _MOVES) ** 2).sum(axis=1)
        moves = target - centres
        squares = np.maximum((moves**2).sum(axis=1), 1e-12)
        kept = np.maximum(0, 1 - self.least_move * noise / squares)
        moves *= kept[:, None]
        moved = centres + moves

        z = INTERVAL_95["gaussian"]
        drift = np.linalg.norm(moves, axis=1)[:, None] / sqrt(d)
        errors = np.hypot(errors, (known["look_lost"] / counts)[:, None])  # clipping is no noise
        half = np.hypot(z * response.amplified(errors**2, _ERRORS), _DRIFT * drift)
        half = FIRST_ORDER_ERROR * half + np.abs(target - moved)
        clear = sizes > z * size_std
        half = np.where(clear[:, None], round_up(half, self.frac_bits), 2.0)
        holds = clear & (np.linalg.norm(half, axis=1) < _NARROW * _nearest(moved))
        holds &= (response.part(_LOOSE) < _PART) & (borders.crowd() < _CROWD)
        holds &= ~_better_elsewhere(moved, counts, _SPLIT * counts * known["look_squares"])
        return {
            "centres": moved,
            "low": np.maximum(moved - half, -1),
            "high": np.minimum(moved + half, 1),
            "sizes": sizes,
            "size_half_width": np.hypot(z * size_std, SIZE_ERROR * np.abs(sizes)),
            "verdict": np.where(holds, DETERMINED, NOT_DETERMINED),
        }


class Path(Protocol):
    """Rounds that end at centres, such as those of FastLloyd."""

    @property
    def rounds(self) -> int: ...
    def start(self) -> State: ...
    def blocks(self, t: int) -> tuple[Block, ...]: ...
    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]: ...
    def contribute(self, t: int, state: GridState, records: Records) -> Integers: ...
    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State: ...


_Path = TypeVar("_Path", bound=Path)


@dataclass(frozen=True)
class Estimated(Generic[_Path]):
    """A path with a part of the budget, and an estimation with the rest."""

    path: _Path
    estimation: Estimation

    @property
    def rounds(self) -> int:
        return self.path.rounds + self.estimation.rounds

    def start(self) -> State:
        return {**self.estimation.start(), **self.path.start()}

    def blocks(self, t: int) -> tuple[Block, ...]:
        if t >= self.path.rounds:
            return self.estimation.blocks(t - self.path.rounds)
        left = 1 - self.estimation.share
        return tuple(replace(block, weight=block.weight * left) for block in self.path.blocks(t))

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        if t >= self.path.rounds:
            return self.estimation.rows(t - self.path.rounds, state, records)
        return self.path.rows(t, state, records)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        if t >= self.path.rounds:
            return self.estimation.contribute(t - self.path.rounds, state, records)
        return self.path.contribute(t, state, records)

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        if t >= self.path.rounds:
            return self.estimation.update(t - self.path.rounds, state, released)
        return {**self.estimation.start(), **self.path.update(t, state, released)}


@dataclass(frozen=True)
class _Borders:
    """Noisy counts of the records near the borders of each two clusters.

    Parameters
    ----------
    centres : ndarray of shape (n_clusters, n_features)
    counts : ndarray of shape (n_clusters,), > 0
    variances : ndarray of shape (n_clusters,)
        Mean squared differences to the centre in a column.
    near : ndarray of shape (n_clusters, n_clusters)
        Symmetric; 0 in the diagonal.
    noise_std : float
        Standard deviation of the noise in each of `near`.
    """

    centres: Floats
    counts: Floats
    variances: Floats
    near: Floats
    noise_std: float

    @classmethod
    def of(cls, known: State, counts: Floats, noise_std: float) -> _Borders:
        near = known["look_borders"] + known["look_borders"].T
        np.fill_diagonal(near, 0)
        variances = known["look_squares"] / known["centres"].shape[1]
        return cls(known["centres"], counts, variances, near, noise_std)

    @cached_property
    def _squared(self) -> Floats:
        """Squared distances of the centres; infinite for a centre and itself or its equal."""
        squares: Floats = ((self.centres[:, None] - self.centres) ** 2).sum(axis=2)
        return np.where(squares > 0, squares, np.inf)

    @cached_property
    def _across(self) -> Floats:
        """Variance along a border."""
        return np.asarray((self.variances[:, None] + self.variances) / 2)

    @property
    def _thickness(self) -> float:
        """Thickness of a band, in distances of its two centres."""
        part, whole = _BAND
        return part / whole

    def derivative(self) -> Floats:
        """Return the derivative of the clusters' means by their centres.

        Records near a border are taken to have the same variance in all directions along it.

        Returns
        -------
        ndarray of shape (n_clusters * n_features, n_clusters * n_features)
        """
        k, d = self.centres.shape
        used = np.where(self.near > self.noise_std, self.near, 0)
        weights = used / (self._thickness * self._squared)
        apart = np.sqrt(self._squared)[:, :, None]
        units = (self.centres[:, None] - self.centres) / apart
        along = weights[:, :, None, None] * np.einsum("pqa,pqb->pqab", units, units)
        # A point of the border is half of the distance away from each centre.
        through = along * (self._squared_or_none / 4)[:, :, None, None]
        beside = self._across[:, :, None, None] * (weights[:, :, None, None] * np.eye(d) - along)
        result = -np.transpose(beside - through, (0, 2, 1, 3))
        result[np.arange(k), :, np.arange(k)] += (through + beside).sum(axis=1)
        return np.asarray(result.reshape(k * d, k * d) / np.repeat(self.counts, d)[:, None])

    @property
    def _squared_or_none(self) -> Floats:
        return np.where(np.isfinite(self._squared), self._squared, 0)

    def crowd(self) -> Floats:
        """Return an upper bound of the influence of a cluster's borders on its mean."""
        influence = (1 / 4 + self._across / self._squared) / self._thickness
        np.fill_diagonal(influence, 0)
        expected = np.maximum((influence * self.near).sum(axis=1), 0)
        noise = self.noise_std * np.sqrt((influence**2).sum(axis=1))
        return np.asarray((expected + _SURE * noise) / self.counts)


def _at_radii(state: GridState) -> GridState:
    return {"centres": state["centres"], "radii": state["look_radii"]}


def _farthest(centres: Floats) -> Floats:
    """Return the distance of each centre to the farthest corner of the box."""
    return np.asarray(np.linalg.norm(1 + np.abs(centres), axis=1))


def _nearest(centres: Floats) -> Floats:
    """Return the distance of each centre to the nearest other one; infinite for a single one."""
    squares: Floats = ((centres[:, None] - centres) ** 2).sum(axis=2)
    np.fill_diagonal(squares, np.inf)
    return np.asarray(np.sqrt(squares.min(axis=1)))


def _better_elsewhere(centres: Floats, counts: Floats, savings: Floats) -> Flags:
    """Return True for clusters in a merge and a split that may lower the cost together.

    Parameters
    ----------
    savings : ndarray of shape (n_clusters,)
        Bound on the saving by a second centre in a cluster.
    """
    k = len(centres)
    costs: Floats = ((centres[:, None] - centres) ** 2).sum(axis=2)
    costs *= counts[:, None] * counts / (counts[:, None] + counts)
    np.fill_diagonal(costs, np.inf)
    concerned = np.zeros(k, dtype=bool)
    for split in range(k):
        pays = costs < savings[split]
        pays[split] = pays[:, split] = False  # a cluster is not merged and split
        merged = pays.any(axis=0)
        concerned |= merged
        concerned[split] |= merged.any()
    return concerned
