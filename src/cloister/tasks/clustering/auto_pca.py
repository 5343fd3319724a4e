"""`auto` in more dimensions: leading directions, their histogram, and clipped Lloyd rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, State
from cloister.protocol.task import Block, NoisyBlock, Rows
from cloister.tasks.clipped import (
    bin_numbers,
    clip_in_place,
    clip_to_unit,
    differences,
    sum_clipped,
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
    sum_products,
    unpack_products,
)
from cloister.tasks.shrinkage import empirical_bayes, james_stein
from cloister.tasks.state import decode_state, encode_state

# The constants below were tuned on public data sets. Privacy does not depend on any of them
# (docs/proofs/auto.md).
_SHARES = {"mean": 0.10, "radius": 0.02, "shift": 0.10, "gram": 0.28, "cells": 0.12, "lloyd": 0.60}
_COUNT_PART = 0.10
_GROWTH = 1.2
_FLOOR = 0.7
_QUANTILE = 0.4  # quantile of the distances to the mean at which second moments are clipped
_DETECT_FIRST, _DETECT_NEXT = 1.5, 4.0  # tolerance below the edge of the noise for a direction
_MOST_AXES = 6
_MORE_AXES = 3  # axes without counts, filled with normal samples
_REACH = (2.8, 2.4, 2.0)  # half a histogram's width in standard deviations, by its number of axes
_CELLS, _MOST_CELLS = 0.35, 4096
_RESTARTS = 16
_NU, _SLOW, _FAST = 0.05, 0.2, 0.4  # radius of Lloyd rounds against their noise
_UNDER = 0.95
_PRIOR = 3.0
_BINS = 10  # of distances, with geometric edges
_GRAM_BITS = 12


@dataclass(frozen=True)
class PcaKnown(MovingCentres):
    """The public state of the route, in grid coordinates."""

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


@dataclass(frozen=True)
class PcaRoute(Route):
    """Mean, radius, second moments, histogram along leading directions, Lloyd rounds."""

    releases = (
        "the mean of all records, the counts of records by their distance to it, clipped second "
        f"moments, the counts of records in cells along leading directions; {LLOYD_RELEASES}"
    )

    # The plan -----------------------------------------------------------------------------

    @cached_property
    def _shares(self) -> dict[str, float]:
        shares = {name: part / sum(_SHARES.values()) for name, part in _SHARES.items()}
        # The counts of distances would be uninformative.
        if self.noise_std(shares["radius"]) >= self.nominal_n / 8:
            shares["lloyd"] += shares.pop("radius")
        return shares

    @cached_property
    def _lloyd_shares(self) -> tuple[float, ...]:
        k = self.n_clusters
        rounds = 4 if k == 2 else 6 if k <= 5 else 10
        return growing(self._shares["lloyd"], _GROWTH, rounds)

    @cached_property
    def _stages(self) -> tuple[str, ...]:
        before = ("mean", "radius", "gram") if "radius" in self._shares else ("mean", "gram")
        return (*before, "cells", *("lloyd" for _ in self._lloyd_shares))

    @property
    def rounds(self) -> int:
        return len(self._stages)

    @property
    def _axes(self) -> int:
        return min(_MOST_AXES, max(1, self.n_clusters - 1), self.n_features)

    @property
    def _kept_directions(self) -> int:
        return min(self.n_features, max(self._axes + _MORE_AXES, self.n_clusters - 1))

    def _most_cells(self, axes: int) -> float:
        noise_std = self.noise_std(self._shares["cells"])
        fine: float = _CELLS * (self.nominal_n / noise_std) ** (2 * axes / (2 + axes))
        return min(max(fine, 3.0 * self.n_clusters, 8.0), float(_MOST_CELLS))

    @cached_property
    def n_cells(self) -> int:
        """Number of elements of the histogram's block, a function of the plan."""
        # Enough for any number of detected directions: a length must not depend on records.
        most = max(int(self._most_cells(axes)) for axes in range(1, self._axes + 1))
        return max(self.n_features, most)

    def start(self) -> State:
        k, d = self.n_clusters, self.n_features
        return encode_state(
            PcaKnown(
                **still(k, d),
                widths=np.zeros(k),
                mean=np.zeros(d),
                radius=TYPICAL * sqrt(d),
                directions=np.zeros((d, self._kept_directions)),
                detected=0,
                within=0.0,
                half_spans=np.zeros(self._axes),
                bins=np.zeros(self._axes, dtype=np.int64),
                residual_stds=np.zeros(_MORE_AXES),
                start=np.zeros((k, d)),
                residual=np.zeros(d),
                residual_std=0.0,
            )
        )

    def blocks(self, t: int) -> tuple[Block, ...]:
        d, one, shares = self.n_features, self.one, self._shares
        match self._stages[t]:
            case "mean":
                return (Block.counting("sum", (d,), shares["mean"], d, one),)
            case "radius":
                return (Block.counting("distances", (_BINS,), shares["radius"], one=one),)
            case "gram":
                unit, size = 1 << 2 * _GRAM_BITS, (n_products(d),)
                norms = PRODUCT * d * unit, (SQUARE * unit) ** 2
                gram = Block("gram", size, *norms, shares["gram"])
                return unit_block("shift", (d,), one, shares["shift"]), gram
            case "cells":
                # A record adds one cell, or a clipped vector: one unit either way.
                return (unit_block("cells", (self.n_cells,), one, shares["cells"]),)
        return lloyd_blocks(self, self._lloyd_shares[t - self.rounds], _COUNT_PART)

    # The records --------------------------------------------------------------------------

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        one, radius = self.one, max(int(state["radius"][0]), 1)
        stage = self._stages[t]
        if stage == "mean":
            return (Rows.dense(records.astype(np.int64)),)
        away = records - state["mean"]
        if stage == "radius":
            edges = np.floor((_edges(self.n_features) * one) ** 2)
            return (Rows.at([np.searchsorted(edges, (away**2).sum(axis=1))], [one]),)
        clipped = clip_to_unit(away, radius, one)
        if stage == "gram":
            coarse = clip_to_unit(away, radius, 1 << _GRAM_BITS)
            return Rows.dense(clipped), Rows.dense(products(coarse))
        # Without a detected direction every later block refines the mean; its shape is the same.
        if not state["detected"].any():
            zeros = (Rows.at([np.zeros(len(records), dtype=np.int64)], [0]),)
            return (Rows.dense(clipped), *zeros * (len(self.blocks(t)) - 1))
        if stage == "cells":
            columns = np.subtract(records.T, state["mean"][:, None].astype(np.float64), order="C")
            return (Rows.at([self._cell_of(state, columns)], [one]),)
        return lloyd_rows(state, records, one)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        one, radius = self.one, max(int(state["radius"][0]), 1)
        match self._stages[t]:
            case "mean":
                return np.asarray(np.einsum("ij->j", records, dtype=np.int64))
            case "radius":
                return self._count_distances(state, records)
            case "gram":
                shift = sum_clipped(records, state["mean"], radius, one)
                gram = np.zeros(n_products(self.n_features), dtype=np.int64)
                for columns in differences(records, state["mean"]):
                    clip_in_place(columns.T, radius, 1 << _GRAM_BITS)
                    gram += sum_products(columns.T)
                return np.concatenate([shift, gram])
        if not state["detected"].any():
            padded = np.zeros(sum(block.size for block in self.blocks(t)), dtype=np.int64)
            padded[: self.n_features] = sum_clipped(records, state["mean"], radius, one)
            return padded
        if self._stages[t] == "cells":
            return self._count_cells(state, records)
        return lloyd_contribution(state, records, one)

    def _count_distances(self, state: GridState, records: Records) -> Integers:
        # Squared and floored: a record is compared with the edges in exact integers.
        edges = np.floor((_edges(self.n_features) * self.one) ** 2)
        within = np.zeros(_BINS, dtype=np.int64)  # records within each edge; the last has all
        for columns in differences(records, state["mean"]):
            squared = np.einsum("ij,ij->j", columns, columns)
            counts = [*(np.count_nonzero(squared <= edge) for edge in edges), len(squared)]
            within += np.array(counts)
        return np.diff(within, prepend=0) * self.one

    def _count_cells(self, state: GridState, records: Records) -> Integers:
        counts = np.zeros(self.n_cells, dtype=np.int64)
        for columns in differences(records, state["mean"]):
            counts += np.bincount(self._cell_of(state, columns), minlength=self.n_cells)
        return counts * self.one

    def _cell_of(self, state: GridState, columns: Floats) -> Integers:
        """Return the cell of each record, from the columns of its difference to the mean."""
        known = self._known(state)
        axes = self._used_axes(known)
        directions = state["directions"][:, :axes].astype(np.float64)
        # The partial sums of the product are exact integers, so no other record changes a cell.
        coordinates = (directions.T @ columns / float(self.one) ** 2).T
        return bin_numbers(coordinates, known.half_spans[:axes], known.bins[:axes])

    # The answer ---------------------------------------------------------------------------

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        known = self._known(state)
        match self._stages[t]:
            case "mean":
                values, noise_std = self._mean_of(released["sum"], 1.0)
                mean = np.clip(james_stein(values, noise_std), -1, 1)
                return encode_state(replace(known, mean=mean, centres=self._all_at(mean)))
            case "radius":
                return encode_state(replace(known, radius=self._radius(released["distances"])))
            case "gram":
                return encode_state(self._directions(known, released))
        if known.detected == 0:
            block = released["cells" if "cells" in released else "sums"]
            return encode_state(self._refine(known, block))
        if self._stages[t] == "cells":
            return encode_state(self._cluster(known, *released["cells"].in_records(self.frac_bits)))
        return encode_state(self._move(*read_lloyd(self, known, released, _FLOOR)))

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

    def _directions(self, known: PcaKnown, released: Mapping[str, NoisyBlock]) -> PcaKnown:
        """Find the directions whose variance exceeds the edge of a random noise matrix."""
        d, radius = self.n_features, known.radius
        values, noise_std = self._mean_of(released["shift"], radius)
        shift = james_stein(values, noise_std)
        scale = radius**2 / self.nominal_n / (1 << 2 * _GRAM_BITS)
        gram = unpack_products(released["gram"].values.astype(np.float64) * scale, d)
        variances, vectors = np.linalg.eigh(gram - np.outer(shift, shift))
        variances, vectors = variances[::-1], vectors[:, ::-1]
        largest = np.abs(vectors).argmax(axis=0)
        vectors = vectors * np.sign(vectors[largest, np.arange(d)])  # one sign on all machines

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

        axes = min(detected, self._axes)
        stds = np.sqrt(np.maximum(signal[:axes] + bulk, 1e-6))
        residual = _residual_stds(variances, axes, edge, total, float((stds**2).sum()))
        spans, bins = np.zeros(self._axes), np.zeros(self._axes, dtype=np.int64)
        if axes:
            spans[:axes] = _REACH[min(axes, len(_REACH)) - 1] * stds
            bins[:axes] = cubic_bins(stds, self._most_cells(axes))
        residual_stds = np.zeros(_MORE_AXES)
        residual_stds[: len(residual)] = residual
        mean = np.clip(known.mean + shift, -1, 1)
        return replace(
            known,
            mean=mean,
            centres=self._all_at(mean),
            directions=vectors[:, : self._kept_directions],
            detected=detected,
            within=total,
            half_spans=spans,
            bins=bins,
            residual_stds=residual_stds,
        )

    def _cluster(self, known: PcaKnown, noisy: Floats, noise_std: float) -> PcaKnown:
        """Cluster the histogram and set the radius of the Lloyd rounds."""
        k, n, axes = len(known.centres), self.nominal_n, self._used_axes(known)
        spans, bins = known.half_spans[:axes], known.bins[:axes]
        points = cell_centres(spans, bins)
        weights = project_to_simplex(noisy[: len(points)], n)
        if more := min(_MORE_AXES, self.n_features - axes):
            stds = known.residual_stds[:more]
            samples, places = self._sampled(points, weights, 2 * spans / bins, stds, k)
            masses, scale = np.ones(len(samples)), n / len(samples)
        else:
            samples, masses, scale = points, weights, 1.0
            places = self._quantize(points, weights, k)
        labels, _ = nearest(samples, places)
        counts = np.bincount(labels, masses, minlength=k).astype(np.float64) * scale
        cells = np.full(k, max(1.0, float((weights > 0).sum()) / k))
        if not more:  # each cell then belongs to exactly one cluster
            cells = np.maximum(np.bincount(labels[weights > 0], minlength=k), 1.0)
        between = float((counts[:, None] * places**2).sum()) / n
        # The difference of two noisy numbers may be too small or negative.
        within = max(known.within - between, 0.2 * known.within)
        centres = known.mean + places @ known.directions[:, : places.shape[1]].T
        return replace(
            placed(known, centres, counts, cells, noise_std),
            within=within,
            radii=np.full(k, self._stretch * sqrt(within)),
            widths=_widths(samples[:, :axes], masses, labels, k),
        )

    def _sampled(
        self, points: Floats, weights: Floats, sides: Floats, stds: Floats, n_clusters: int
    ) -> tuple[Floats, Floats]:
        """Return public points that are distributed like the records, and their centres."""
        samples = sample_cells(points, weights, sides, stds, public_seed=self.public_seed)
        return samples, self._quantize(samples, np.ones(len(samples)), n_clusters)

    def _quantize(self, points: Floats, weights: Floats, n_clusters: int) -> Floats:
        return cluster_weighted(
            points, weights, n_clusters, public_seed=self.public_seed, restarts=_RESTARTS
        )

    @property
    def _stretch(self) -> float:
        """Radius of the Lloyd rounds in root mean square distances; larger with less noise."""
        # Clipping biases the means and reduces the noise, so less noise permits less clipping.
        shares = self._lloyd_shares
        noise = self.noise_std(sum(shares) / len(shares))
        nu = self.n_clusters * sqrt(self.n_features) * noise / self.nominal_n
        stretch = float((_NU / nu) ** (_FAST if nu < _NU else _SLOW))
        return min(max(stretch, 0.5), 3.0)

    def _move(self, known: PcaKnown, all_sums: Floats, sum_std: float) -> PcaKnown:
        """Move the centres by the signal in the detected directions and in the other ones."""
        k, d = len(known.centres), self.n_features
        radii = np.maximum(known.radii, 1 / self.one)
        factors = known.counts / radii * min(_UNDER, _UNDER * self._stretch)
        n_axes = max(self._used_axes(known), min(known.detected, max(1, k - 1)))
        basis = known.directions[:, :n_axes]
        along = all_sums @ basis @ basis.T  # shrunk separately: most of the signal is here
        moves = np.zeros((k, d))
        for sums, n_dims in ((along, n_axes), (all_sums - along, d - n_axes)):
            moves += empirical_bayes(
                sums,
                n_dims=n_dims,
                factors=factors,
                noise_std=sum_std,
                unit=sqrt(known.within / d),
                prior_power=_PRIOR,
                spreads=factors.mean() / factors,
            )
        centres = known.centres + moves / factors[:, None]
        return replace(known, centres=np.clip(centres, -1, 1))

    def spreads(self, state: GridState) -> Floats:
        """Return the standard deviation of each cluster along the used axes."""
        return self._known(state).widths

    def _refine(self, known: PcaKnown, block: NoisyBlock) -> PcaKnown:
        """Merge one more mean, with public centres around it; no direction was detected."""
        fresh, fresh_std = self._mean_of(block, known.radius)
        std, start = known.residual_std, known.start
        if std == 0:  # the first such round
            residual, residual_std = fresh, fresh_std
            stds = known.residual_stds[: min(_MORE_AXES, self.n_features)]
            no_cells = np.zeros((1, 0)), np.ones(1), np.zeros(0)
            _, places = self._sampled(*no_cells, stds, len(known.centres))
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

    def _known(self, state: GridState) -> PcaKnown:
        return decode_state(PcaKnown, state, self.frac_bits)

    def _used_axes(self, known: PcaKnown) -> int:
        return min(known.detected, self._axes)


def _widths(points: Floats, weights: Floats, labels: Integers, n_clusters: int) -> Floats:
    """Return the root mean square over axes of the deviations of points in each cluster."""
    sizes = np.maximum(np.bincount(labels, weights, minlength=n_clusters), 1e-9)
    moments = [
        np.stack([np.bincount(labels, weights * x**p, minlength=n_clusters) for x in points.T])
        for p in (1, 2)
    ]
    means, squares = (moment / sizes for moment in moments)
    return np.asarray(np.sqrt(np.maximum(squares - means**2, 0.0).mean(axis=0)))


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
