"""`auto` in more dimensions: leading directions, their histogram, and clipped Lloyd rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Any, TypeVar

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, State
from cloister.protocol.task import Block, NoisyBlock, Rows
from cloister.tasks.clipped import (
    bin_numbers,
    clip_to_unit,
    differences,
    of_columns,
    sum_clipped,
    sum_moments_near,
)
from cloister.tasks.clustering.auto_mean import TYPICAL, around
from cloister.tasks.clustering.auto_rounds import (
    LLOYD_RELEASES,
    MovingCentres,
    Route,
    growing,
    lloyd_blocks,
    lloyd_contribution,
    lloyd_rows,
    placed,
    read_lloyd,
    still,
    stretch_of,
    unclipped,
    unit_block,
)
from cloister.tasks.clustering.synopsis import (
    cell_centres,
    cluster_weighted,
    cubic_bins,
    nearest,
    project_to_simplex,
    sample_cells,
)
from cloister.tasks.moments import (
    PRODUCT,
    SQUARE,
    n_products,
    products,
    unpack_products,
    with_one_sign,
)
from cloister.tasks.shrinkage import empirical_bayes, james_stein
from cloister.tasks.state import decode_state, encode_state

# The constants below were tuned on public data sets. Privacy does not depend on any of them
# (docs/proofs/auto.md).
_QUANTILE = 0.4  # quantile of the distances to the mean at which second moments are clipped
_DETECT_FIRST, _DETECT_NEXT = 1.5, 4.0  # tolerance below the edge of the noise for a direction
_MORE_AXES = 3  # axes without counts, filled with normal samples
_REACH = (2.8, 2.4, 2.0)  # half a histogram's width in standard deviations, by its number of axes
_MOST_CELLS = 4096
_PRIOR = 3.0
RESTARTS = 16
_BINS = 10  # of distances, with geometric edges
GRAM_BITS = 12

# Of the route with Lloyd rounds alone.
_SHARES = {"mean": 0.10, "radius": 0.02, "shift": 0.10, "gram": 0.28, "cells": 0.12, "lloyd": 0.60}
_COUNT_PART = 0.10
_GROWTH = 1.2
_FLOOR = 0.7
_CELLS = 0.35
_AXES = 6
_SAMPLES = 2000

DIRECTIONS_RELEASES = (
    "the mean of all records, the counts of records by their distance to it, clipped second "
    "moments, the counts of records in cells along leading directions"
)


@dataclass(frozen=True)
class DirectionsKnown(MovingCentres):
    """The public state of the stages, in grid coordinates."""

    widths: Floats  # of each cluster
    mean: Floats
    radius: float  # a record beyond it is clipped
    directions: Floats  # in columns
    detected: int  # number of directions that differ from the noise
    within: float  # mean squared distance of a record to its centre
    half_spans: Floats  # of the histogram, 0 for an axis that is not used
    bins: Integers  # of the histogram, 0 for an axis that is not used
    residual_stds: Floats  # along the directions after those of the histogram
    start: Floats  # offsets of the centres from the mean if no direction is detected
    residual: Floats  # of the mean, if no direction is detected
    residual_std: float  # noise of the residual; 0 before its first estimate


_Known = TypeVar("_Known", bound=DirectionsKnown)


def divided(route: Route, parts: Mapping[str, float], last: str) -> dict[str, float]:
    """Return the share of each stage; that of uninformative counts of distances goes to `last`."""
    shares = {name: part / sum(parts.values()) for name, part in parts.items()}
    if route.noise_std(shares["radius"]) >= route.nominal_n / 8:
        shares[last] += shares.pop("radius")
    return shares


@dataclass(frozen=True)
class Directions(Route):
    """Mean, radius, second moments, and a histogram along leading directions.

    If no direction differs from the noise, the histogram and all later rounds refine the mean.

    Parameters
    ----------
    shares : mapping
        Shares of the budget, by the names of the sums; without "radius" if it is not released.
    fineness : float
        Number of cells of the histogram, relative to the precision of its counts.
    most_axes : int
        Of the histogram.
    least_kept : int
        Directions that the state keeps at least.
    """

    shares: Mapping[str, float]
    fineness: float
    most_axes: int
    least_kept: int = 0

    # The plan -----------------------------------------------------------------------------

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the rounds."""
        return ("mean", *(("radius",) * ("radius" in self.shares)), "gram", "cells")

    @property
    def axes(self) -> int:
        """Largest number of axes of the histogram."""
        return min(self.most_axes, max(1, self.n_clusters - 1), self.n_features)

    @property
    def _kept(self) -> int:
        least = max(self.axes + _MORE_AXES, self.n_clusters - 1, self.least_kept)
        return min(self.n_features, least)

    def most_cells(self, axes: int) -> float:
        """Return the largest number of cells of a histogram with so many axes."""
        noise_std = self.noise_std(self.shares["cells"])
        fine: float = self.fineness * (self.nominal_n / noise_std) ** (2 * axes / (2 + axes))
        return min(max(fine, 3.0 * self.n_clusters, 8.0), float(_MOST_CELLS))

    @cached_property
    def n_cells(self) -> int:
        """Number of elements of the histogram's block, a function of the plan."""
        # Enough for any number of detected directions: a length must not depend on records.
        most = max(int(self.most_cells(axes)) for axes in range(1, self.axes + 1))
        return max(self.n_features, most)

    def start(self) -> dict[str, Any]:
        """Return the fields of :class:`DirectionsKnown` before any release."""
        k, d = self.n_clusters, self.n_features
        return {
            **still(k, d),
            "widths": np.zeros(k),
            "mean": np.zeros(d),
            "radius": TYPICAL * sqrt(d),
            "directions": np.zeros((d, self._kept)),
            "detected": 0,
            "within": 0.0,
            "half_spans": np.zeros(self.axes),
            "bins": np.zeros(self.axes, dtype=np.int64),
            "residual_stds": np.zeros(_MORE_AXES),
            "start": np.zeros((k, d)),
            "residual": np.zeros(d),
            "residual_std": 0.0,
        }

    def blocks(self, stage: str) -> tuple[Block, ...]:
        """Return the blocks of a stage."""
        d, one, shares = self.n_features, self.one, self.shares
        match stage:
            case "mean":
                return (Block.counting("sum", (d,), shares["mean"], d, one),)
            case "radius":
                return (Block.counting("distances", (_BINS,), shares["radius"], one=one),)
            case "gram":
                unit, size = 1 << 2 * GRAM_BITS, (n_products(d),)
                norms = PRODUCT * d * unit, (SQUARE * unit) ** 2
                gram = Block("gram", size, *norms, shares["gram"])
                return unit_block("shift", (d,), one, shares["shift"]), gram
        # A record adds one cell, or a clipped vector: one unit either way.
        return (unit_block("cells", (self.n_cells,), one, shares["cells"]),)

    # The records --------------------------------------------------------------------------

    def rows(self, stage: str, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return the rows of a stage."""
        one, radius = self.one, max(int(state["radius"][0]), 1)
        if stage == "mean":
            return (Rows.dense(records.astype(np.int64)),)
        away = records - state["mean"]
        if stage == "radius":
            edges = np.floor((_edges(self.n_features) * one) ** 2)
            return (Rows.at([np.searchsorted(edges, (away**2).sum(axis=1))], [one]),)
        if stage == "gram":
            coarse = clip_to_unit(away, radius, 1 << GRAM_BITS)
            return Rows.dense(clip_to_unit(away, radius, one)), Rows.dense(products(coarse))
        if not state["detected"].any():
            return self.rows_of_mean(state, records, 1)
        return (Rows.at([self._cell_of(state, away.astype(np.float64))], [one]),)

    def rows_of_mean(self, state: GridState, records: Records, n_blocks: int) -> tuple[Rows, ...]:
        """Return rows that refine the mean, of a round that has so many blocks."""
        # Without a detected direction every later block refines the mean; its shape is the same.
        radius = max(int(state["radius"][0]), 1)
        clipped = clip_to_unit(records - state["mean"], radius, self.one)
        zeros = (Rows.at([np.zeros(len(records), dtype=np.int64)], [0]),)
        return (Rows.dense(clipped), *zeros * (n_blocks - 1))

    def contribute(self, stage: str, state: GridState, records: Records) -> Integers:
        """Return the sums of a stage."""
        radius = max(int(state["radius"][0]), 1)
        match stage:
            case "mean":
                return of_columns(np.add, records)
            case "radius":
                return self._count_distances(state, records)
            case "gram":
                reach = np.array([radius])
                shift, _, gram = sum_moments_near(
                    records, state["mean"][None], reach, self.one, reach, 1 << GRAM_BITS
                )
                return np.concatenate([shift.ravel(), gram.ravel()])
        if not state["detected"].any():
            return self.sum_of_mean(state, records, self.n_cells)
        counts = np.zeros(self.n_cells, dtype=np.int64)
        for away in differences(records, state["mean"]):
            counts += np.bincount(self._cell_of(state, away), minlength=self.n_cells)
        return counts * self.one

    def sum_of_mean(self, state: GridState, records: Records, length: int) -> Integers:
        """Return a sum that refines the mean, of a round that has so many elements."""
        padded = np.zeros(length, dtype=np.int64)
        radius = max(int(state["radius"][0]), 1)
        padded[: self.n_features] = sum_clipped(records, state["mean"], radius, self.one)
        return padded

    def _count_distances(self, state: GridState, records: Records) -> Integers:
        # Squared and floored: a record is compared with the edges in exact integers.
        edges = np.floor((_edges(self.n_features) * self.one) ** 2)
        within = np.zeros(_BINS, dtype=np.int64)  # records within each edge; the last has all
        ones = np.ones(self.n_features)
        for away in differences(records, state["mean"]):
            squared = np.multiply(away, away, out=away) @ ones  # whole numbers below 2**53
            counts = [*(np.count_nonzero(squared <= edge) for edge in edges), len(squared)]
            within += np.array(counts)
        return np.diff(within, prepend=0) * self.one

    def _cell_of(self, state: GridState, away: Floats) -> Integers:
        """Return the cell of each record, from its difference to the mean."""
        bins = state["bins"] >> self.frac_bits
        used = np.flatnonzero(bins)
        spans = state["half_spans"][used] / self.one
        directions = state["directions"][:, used] / float(self.one) ** 2
        # The partial sums of the product are multiples of one step that floats hold, so they are
        # exact and no other record changes a cell.
        coordinates = (directions.T @ away.T).T
        return bin_numbers(coordinates, spans, bins[used])

    # The answer ---------------------------------------------------------------------------

    def update(self, stage: str, known: _Known, released: Mapping[str, NoisyBlock]) -> _Known:
        """Return the state after a stage; after "cells" only if no direction was detected."""
        match stage:
            case "mean":
                values, noise_std = self._mean_of(released["sum"], 1.0)
                mean = np.clip(james_stein(values, noise_std), -1, 1)
                return replace(known, mean=mean, centres=self._all_at(mean))
            case "radius":
                return replace(known, radius=self._radius(released["distances"]))
            case "gram":
                return self._directions(known, released)
        return self.refined(known, released["cells"])

    def _mean_of(self, block: NoisyBlock, radius: float) -> tuple[Floats, float]:
        """Return the first sum of a block over the nominal number of records, and its noise."""
        scale = radius / self.nominal_n / self.one
        sums = block.values.reshape(-1)[: self.n_features].astype(np.float64)
        return sums * scale, block.noise_std * scale

    def _all_at(self, mean: Floats) -> Floats:
        return np.tile(mean, (self.n_clusters, 1))

    def _radius(self, block: NoisyBlock) -> float:
        """Return a quantile of the distances; noise alone does not move it to another bin."""
        edges = _edges(self.n_features)
        counts, noise_std = block.in_records(self.frac_bits)
        below, margin = np.cumsum(counts)[:-1] / self.nominal_n, noise_std / self.nominal_n
        j = 6  # the bin that is kept unless the counts contradict it beyond their noise
        while j > 0 and below[j - 1] > _QUANTILE + margin:
            j -= 1
        while j < len(edges) - 1 and below[j] < _QUANTILE - margin:
            j += 1
        radius = edges[j]
        if j > 0 and below[j] > below[j - 1]:
            part = (_QUANTILE - below[j - 1]) / (below[j] - below[j - 1])
            radius = edges[j - 1] * (edges[j] / edges[j - 1]) ** min(max(part, 0.3), 1.0)
        return float(radius)

    def _directions(self, known: _Known, released: Mapping[str, NoisyBlock]) -> _Known:
        """Find the directions whose variance exceeds the edge of a random noise matrix."""
        d, radius = self.n_features, known.radius
        values, noise_std = self._mean_of(released["shift"], radius)
        shift = james_stein(values, noise_std)
        scale = radius**2 / self.nominal_n / (1 << 2 * GRAM_BITS)
        gram = unpack_products(released["gram"].values.astype(np.float64) * scale, d)
        variances, vectors = np.linalg.eigh(gram - np.outer(shift, shift))
        variances, vectors = variances[::-1], with_one_sign(vectors.T[::-1]).T

        edge = 2 * sqrt(d) * released["gram"].noise_std / PRODUCT * scale
        bulk = max(float(np.median(variances)), 0.0) if d >= 8 else 0.0
        excess = variances - bulk
        below = np.where(np.arange(d) == 0, _DETECT_FIRST, _DETECT_NEXT) * d ** (-2 / 3)
        seen = excess > edge * (1 - below)
        detected = d if seen.all() else int(seen.argmin())
        signal = np.zeros(d)
        excesses = excess[:detected]
        signal[:detected] = (
            np.maximum(excesses + np.sqrt(np.maximum(excesses**2 - edge**2, 0)), 0) / 2
        )
        floor = max(0.2 * radius**2, float(signal.sum()))
        total = min(max(float(variances.sum()), floor), max(1.5 * radius**2, floor))

        axes = min(detected, self.axes)
        stds = np.sqrt(np.maximum(signal[:axes] + bulk, 1e-6))
        residual = _residual_stds(variances, axes, edge, total, float((stds**2).sum()))
        spans, bins = np.zeros(self.axes), np.zeros(self.axes, dtype=np.int64)
        if axes:
            spans[:axes] = _REACH[min(axes, len(_REACH)) - 1] * stds
            bins[:axes] = cubic_bins(stds, self.most_cells(axes))
        residual_stds = np.zeros(_MORE_AXES)
        residual_stds[: len(residual)] = residual
        mean = np.clip(known.mean + shift, -1, 1)
        return replace(
            known,
            mean=mean,
            centres=self._all_at(mean),
            directions=vectors[:, : self._kept],
            detected=detected,
            within=total,
            half_spans=spans,
            bins=bins,
            residual_stds=residual_stds,
        )

    def refined(self, known: _Known, block: NoisyBlock) -> _Known:
        """Merge one more mean, with public centres around it; no direction was detected."""
        fresh, fresh_std = self._mean_of(block, known.radius)
        std, start = known.residual_std, known.start
        if std == 0:  # the first such round
            residual, residual_std = fresh, fresh_std
            stds = known.residual_stds[: min(_MORE_AXES, self.n_features)]
            points = sample_cells(
                np.zeros((1, 0)), np.ones(1), np.zeros(0), stds, public_seed=self.public_seed
            )
            places = quantized(points, np.ones(len(points)), len(known.centres), self.public_seed)
            start = places @ known.directions[:, : len(stds)].T
        else:
            weight = std**2 / (std**2 + fresh_std**2)
            residual = known.residual + weight * (fresh - known.residual)
            residual_std = std * sqrt(1 - weight)
        centres = known.mean + james_stein(residual, residual_std) + start
        return replace(
            known,
            start=start,
            residual=residual,
            residual_std=max(residual_std, 1 / self.one),
            **around(centres, known.mean + residual + start, residual_std, self.nominal_n),
        )

    def like_records(
        self, known: DirectionsKnown, weights: Floats, n_points: int
    ) -> tuple[Floats, Floats, float]:
        """Return public points distributed like the records, their masses, and the mass unit.

        The points are the cells themselves if the histogram has all columns.

        Parameters
        ----------
        weights : ndarray of shape (n_cells,), >= 0
            Of the cells.
        """
        axes = int((known.bins > 0).sum())
        spans, bins = known.half_spans[:axes], known.bins[:axes]
        points = cell_centres(spans, bins)
        more = min(_MORE_AXES, self.n_features - axes)
        if not more:
            return points, weights, 1.0
        samples = sample_cells(
            points,
            weights,
            2 * spans / bins,
            known.residual_stds[:more],
            public_seed=self.public_seed,
            n_points=n_points,
        )
        return samples, np.ones(len(samples)), self.nominal_n / len(samples)


def quantized(points: Floats, masses: Floats, n_clusters: int, public_seed: int) -> Floats:
    """Return centres of public points."""
    return cluster_weighted(points, masses, n_clusters, public_seed=public_seed, restarts=RESTARTS)


def signal_along(
    sums: Floats,
    basis: Floats,
    *,
    factors: Floats,
    noise_std: float,
    within: float,
) -> Floats:
    """Return the expected signal of sums of clipped differences, row j ``factors[j]`` times a move.

    Parameters
    ----------
    sums : ndarray of shape (n_centres, n_features)
    basis : ndarray of shape (n_features, n_axes)
        Directions in which most of the signal is expected.
    within : float
        Mean squared distance of a record to its centre.
    """
    n_axes, d = basis.shape[1], len(basis)
    along = sums @ basis @ basis.T  # shrunk separately: most of the signal is here
    signal = np.zeros_like(sums)
    for part, n_dims in ((along, n_axes), (sums - along, d - n_axes)):
        signal += empirical_bayes(
            part,
            n_dims=n_dims,
            factors=factors,
            noise_std=noise_std,
            unit=sqrt(within / d),
            prior_power=_PRIOR,
            spreads=factors.mean() / factors,
        )
    return signal


def _edges(n_features: int) -> Floats:
    """Return the public edges between bins of distances, in grid coordinates."""
    return 0.4 * sqrt(n_features) * 2.0 ** (np.arange(-6, 3) / 2)


def _residual_stds(
    variances: Floats, axes: int, edge: float, total: float, explained: float
) -> Floats:
    """Return standard deviations of the directions after the first `axes`.

    They are shrunk to their mean.
    """
    others = variances[axes:]
    if not len(others):
        return others
    mean = max(total - explained, 0.1 * total) / len(others)
    if len(others) == 1:
        return np.full(1, sqrt(mean))
    variance = float(((others - others.mean()) ** 2).mean())
    trust = max(0.0, 1 - edge**2 / 4 / max(variance, 1e-300))
    shrunk = np.maximum(mean + trust * (others - others.mean()), 0.1 * mean)
    return np.asarray(np.sqrt(shrunk * (mean * len(others) / shrunk.sum()))[:_MORE_AXES])


@dataclass(frozen=True)
class PcaRoute(Route):
    """Mean, radius, second moments, histogram along leading directions, Lloyd rounds."""

    releases = f"{DIRECTIONS_RELEASES}; {LLOYD_RELEASES}"

    # The plan -----------------------------------------------------------------------------

    @cached_property
    def _shares(self) -> dict[str, float]:
        return divided(self, _SHARES, "lloyd")

    @cached_property
    def directions(self) -> Directions:
        """The first stages."""
        return Directions(**self.numbers, shares=self._shares, fineness=_CELLS, most_axes=_AXES)

    @cached_property
    def _lloyd_shares(self) -> tuple[float, ...]:
        k = self.n_clusters
        rounds = 4 if k == 2 else 6 if k <= 5 else 10
        return growing(self._shares["lloyd"], _GROWTH, rounds)

    @cached_property
    def _stages(self) -> tuple[str, ...]:
        return (*self.directions.stages, *("lloyd" for _ in self._lloyd_shares))

    @property
    def rounds(self) -> int:
        return len(self._stages)

    def start(self) -> State:
        return encode_state(DirectionsKnown(**self.directions.start()))

    def blocks(self, t: int) -> tuple[Block, ...]:
        if self._stages[t] != "lloyd":
            return self.directions.blocks(self._stages[t])
        return lloyd_blocks(self, self._lloyd_shares[t - self.rounds], _COUNT_PART)

    # The records --------------------------------------------------------------------------

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        if self._stages[t] != "lloyd":
            return self.directions.rows(self._stages[t], state, records)
        if not state["detected"].any():
            return self.directions.rows_of_mean(state, records, len(self.blocks(t)))
        return lloyd_rows(state, records, self.one)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        if self._stages[t] != "lloyd":
            return self.directions.contribute(self._stages[t], state, records)
        if not state["detected"].any():
            length = sum(block.size for block in self.blocks(t))
            return self.directions.sum_of_mean(state, records, length)
        return lloyd_contribution(state, records, self.one)

    # The answer ---------------------------------------------------------------------------

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        known, stage = self._known(state), self._stages[t]
        if stage == "lloyd" and known.detected:
            return encode_state(self._move(*read_lloyd(self, known, released, _FLOOR)))
        if stage == "lloyd":
            return encode_state(self.directions.refined(known, released["sums"]))
        if stage == "cells" and known.detected:
            noisy = released["cells"].in_records(self.frac_bits)
            return encode_state(self._cluster(known, *noisy))
        return encode_state(self.directions.update(stage, known, released))

    def _cluster(self, known: DirectionsKnown, noisy: Floats, noise_std: float) -> DirectionsKnown:
        """Cluster the histogram and set the radius of the Lloyd rounds."""
        k, n = len(known.centres), self.nominal_n
        bins = known.bins[known.bins > 0]
        weights = project_to_simplex(noisy[: int(bins.prod())], n)
        samples, masses, scale = self.directions.like_records(known, weights, _SAMPLES)
        places = quantized(samples, masses, k, self.public_seed)
        labels, _ = nearest(samples, places)
        counts = np.bincount(labels, masses, minlength=k).astype(np.float64) * scale
        cells = np.full(k, max(1.0, float((weights > 0).sum()) / k))
        if masses is weights:  # each cell then belongs to exactly one cluster
            cells = np.maximum(np.bincount(labels[weights > 0], minlength=k), 1.0)
        between = float((counts[:, None] * places**2).sum()) / n
        # The difference of two noisy numbers may be too small or negative.
        within = max(known.within - between, 0.2 * known.within)
        centres = known.mean + places @ known.directions[:, : places.shape[1]].T
        return replace(
            placed(known, centres, counts, cells, noise_std),
            within=within,
            radii=np.full(k, self._stretch * sqrt(within)),
            widths=_widths(samples[:, : len(bins)], masses, labels, k),
        )

    @property
    def _stretch(self) -> float:
        shares = self._lloyd_shares
        return stretch_of(self, self.n_clusters, sum(shares) / len(shares))

    def _move(self, known: DirectionsKnown, sums: Floats, sum_std: float) -> DirectionsKnown:
        """Move the centres by the signal in the detected directions and in the other ones."""
        radii = np.maximum(known.radii, 1 / self.one)
        factors = known.counts / radii * unclipped(self._stretch)
        used = int((known.bins > 0).sum())
        n_axes = max(used, min(known.detected, max(1, len(known.centres) - 1)))
        signal = signal_along(
            sums,
            known.directions[:, :n_axes],
            factors=factors,
            noise_std=sum_std,
            within=known.within,
        )
        centres = known.centres + signal / factors[:, None]
        return replace(known, centres=np.clip(centres, -1, 1))

    def spreads(self, state: GridState) -> Floats:
        """Return the standard deviation of each cluster along the used axes."""
        return self._known(state).widths

    def _known(self, state: GridState) -> DirectionsKnown:
        return decode_state(DirectionsKnown, state, self.frac_bits)


def _widths(points: Floats, weights: Floats, labels: Integers, n_clusters: int) -> Floats:
    """Return the root mean square over axes of the deviations of points in each cluster."""
    sizes = np.maximum(np.bincount(labels, weights, minlength=n_clusters), 1e-9)
    moments = [
        np.stack([np.bincount(labels, weights * x**p, minlength=n_clusters) for x in points.T])
        for p in (1, 2)
    ]
    means, squares = (moment / sizes for moment in moments)
    return np.asarray(np.sqrt(np.maximum(squares - means**2, 0.0).mean(axis=0)))
