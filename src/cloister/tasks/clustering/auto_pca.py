"""`auto` in more dimensions: leading directions, a histogram along them, clipped Lloyd rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np

from cloister.hazmat.fixedpoint import from_grid
from cloister.task import INTERVAL_95, Block, Floats, GridState, Integers, Records, Released, State
from cloister.tasks.clipped import bin_numbers, chunks, clip_to_unit, sum_clipped
from cloister.tasks.clustering.auto_mean import TYPICAL, around
from cloister.tasks.clustering.auto_rounds import (
    carry,
    cell_block,
    growing,
    lloyd_blocks,
    lloyd_contribution,
    read_lloyd,
    real,
    unit_block,
    unknown,
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
    sum_products,
    unpack_products,
)
from cloister.tasks.shrinkage import empirical_bayes, james_stein

# Constants below were found on public data sets; docs/proofs/auto.md says that privacy does not
# depend on any of them.
_SHARES = {"mean": 0.10, "radius": 0.02, "shift": 0.10, "gram": 0.28, "cells": 0.12, "lloyd": 0.60}
_COUNT_PART = 0.10
_GROWTH = 1.2
_FLOOR = 0.7
_QUANTILE = 0.4  # of the distances to the mean, at which the second moments are clipped
_DETECT_FIRST, _DETECT_NEXT = 1.5, 4.0  # how far below the noise's edge a direction may lie
_MOST_AXES = 6
_MORE_AXES = 3  # without counts, filled with normal samples
_REACH = (2.8, 2.4, 2.0)  # of the histogram in standard deviations, for one, two, more axes
_CELLS, _MOST_CELLS = 0.35, 4096
_RESTARTS = 16
_NU, _SLOW, _FAST = 0.05, 0.2, 0.4  # radius of Lloyd rounds against their noise
_UNDER = 0.95
_PRIOR = 3.0
_BINS = 10  # of distances, geometric
_GRAM_BITS = 12


@dataclass(frozen=True)
class PcaRoute:
    """Mean, radius, second moments, histogram along leading directions, Lloyd rounds.

    Parameters are those of :class:`~cloister.tasks.clustering.auto_grid.GridRoute`.
    """

    n_clusters: int
    n_features: int
    nominal_n: int
    mu: float
    frac_bits: int
    public_seed: int

    # The plan -----------------------------------------------------------------------------

    @cached_property
    def _shares(self) -> dict[str, float]:
        shares = {name: part / sum(_SHARES.values()) for name, part in _SHARES.items()}
        if 1 / (self.mu * sqrt(shares["radius"])) >= self.nominal_n / 8:  # it would say nothing
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
        """Number of rounds: a function of the plan."""
        return len(self._stages)

    @property
    def _axes(self) -> int:
        return min(_MOST_AXES, max(1, self.n_clusters - 1), self.n_features)

    @property
    def _kept_directions(self) -> int:
        return min(self.n_features, max(self._axes + _MORE_AXES, self.n_clusters - 1))

    def _most_cells(self, axes: int) -> float:
        noise_std = 1 / (self.mu * sqrt(self._shares["cells"]))
        fine: float = _CELLS * (self.nominal_n / noise_std) ** (2 * axes / (2 + axes))
        return min(max(fine, 3.0 * self.n_clusters, 8.0), float(_MOST_CELLS))

    @cached_property
    def n_cells(self) -> int:
        """Words of the histogram's frame, whatever was detected: a function of the plan."""
        most = max(int(self._most_cells(axes)) for axes in range(1, self._axes + 1))
        return max(self.n_features, most)

    def start(self) -> State:
        """Return a state in which nothing is known."""
        k, d = self.n_clusters, self.n_features
        return {
            **unknown(k, d),
            "counts": np.zeros(k),
            "counts_std": np.zeros(k),
            "radii": np.zeros(k),
            "widths": np.zeros(k),
            "mean": np.zeros(d),
            "radius": np.array([TYPICAL * sqrt(d)]),
            "directions": np.zeros((d, self._kept_directions)),
            "detected": np.zeros(1),
            "within": np.zeros(1),
            "half_spans": np.zeros(self._axes),
            "bins": np.zeros(self._axes),
            "residual_stds": np.zeros(_MORE_AXES),
            "start": np.zeros((k, d)),
            "residual": np.zeros(d),
            "residual_std": np.zeros(1),
        }

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the layout of round `t`."""
        k, d, one, shares = self.n_clusters, self.n_features, 1 << self.frac_bits, self._shares
        match self._stages[t]:
            case "mean":
                return (Block("sum", (d,), d * one, d * one**2, shares["mean"]),)
            case "radius":
                return (cell_block("distances", _BINS, one, shares["radius"]),)
            case "gram":
                unit = 1 << 2 * _GRAM_BITS
                return (
                    unit_block("shift", (d,), one, shares["shift"]),
                    Block(
                        "gram",
                        (n_products(d),),
                        PRODUCT * d * unit,
                        (SQUARE * unit) ** 2,
                        shares["gram"],
                    ),
                )
            case "cells":
                # A record adds one cell, or a clipped vector: one unit either way.
                return (unit_block("cells", (self.n_cells,), one, shares["cells"]),)
        share = self._lloyd_shares[t - self.rounds]
        return lloyd_blocks(k, d, one, share, _COUNT_PART)

    # The records --------------------------------------------------------------------------

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the words of round `t`."""
        one, radius = 1 << self.frac_bits, max(int(state["radius"][0]), 1)
        match self._stages[t]:
            case "mean":
                return np.asarray(records.sum(axis=0, dtype=np.int64))
            case "radius":
                return self._count_distances(state, records)
            case "gram":
                shift = sum_clipped(records, state["mean"], radius, one)
                gram = np.zeros(n_products(self.n_features), dtype=np.int64)
                for part in chunks(records):
                    gram += sum_products(
                        clip_to_unit(part - state["mean"], radius, 1 << _GRAM_BITS)
                    )
                return np.concatenate([shift, gram])
        if self._detected(state) == 0:  # nothing to see: every later frame refines the mean
            words = np.zeros(sum(block.size for block in self.blocks(t)), dtype=np.int64)
            words[: self.n_features] = sum_clipped(records, state["mean"], radius, one)
            return words
        if self._stages[t] == "cells":
            return self._count_cells(state, records)
        return lloyd_contribution(state, records, one)

    def _count_distances(self, state: GridState, records: Records) -> Integers:
        one, counts = 1 << self.frac_bits, np.zeros(_BINS, dtype=np.int64)
        edges = np.floor((_edges(self.n_features) * one) ** 2).astype(np.int64)
        for part in chunks(records):
            squared = ((part - state["mean"]) ** 2).sum(axis=1)
            counts += np.bincount(np.searchsorted(edges, squared), minlength=_BINS)
        return counts * one

    def _count_cells(self, state: GridState, records: Records) -> Integers:
        one, axes = 1 << self.frac_bits, self._used_axes(state)
        spans = from_grid(state["half_spans"][:axes], self.frac_bits)
        bins = (state["bins"][:axes] // one).astype(np.int64)
        directions = state["directions"][:, :axes].astype(np.float64)
        counts = np.zeros(self.n_cells, dtype=np.int64)
        for part in chunks(records):
            coordinates = (part - state["mean"]).astype(np.float64) @ directions / float(one) ** 2
            counts += np.bincount(bin_numbers(coordinates, spans, bins), minlength=self.n_cells)
        return counts * one

    # The answer ---------------------------------------------------------------------------

    def update(self, t: int, state: GridState, released: Mapping[str, Released]) -> State:
        """Return the next state."""
        match self._stages[t]:
            case "mean":
                values, noise_std = self._mean_of(released["sum"], 1.0)
                mean = np.clip(james_stein(values, noise_std), -1, 1)
                return carry(state, self.frac_bits, mean=mean, centres=self._all_at(mean))
            case "radius":
                return carry(state, self.frac_bits, radius=self._radius(released["distances"]))
            case "gram":
                return self._directions(state, released)
        if self._detected(state) == 0:
            return self._refine(state, released["cells" if "cells" in released else "sums"])
        if self._stages[t] == "cells":
            return self._cluster(state, released["cells"])
        return self._move(state, released)

    def _mean_of(self, block: Released, radius: float) -> tuple[Floats, float]:
        """Return a released sum in the first words, over the nominal number of records."""
        scale = radius / self.nominal_n / (1 << self.frac_bits)
        words = block.values.reshape(-1)[: self.n_features].astype(np.float64)
        return words * scale, block.noise_std * scale

    def _all_at(self, mean: Floats) -> Floats:
        return np.tile(mean, (self.n_clusters, 1))

    def _radius(self, block: Released) -> Floats:
        """Return a quantile of the distances; noise alone does not move it out of its usual bin."""
        edges, one = _edges(self.n_features), 1 << self.frac_bits
        below = np.cumsum(block.values / one)[:-1] / self.nominal_n
        margin = block.noise_std / one / self.nominal_n
        j = 6
        while j > 0 and below[j - 1] > _QUANTILE + margin:
            j -= 1
        while j < len(edges) - 1 and below[j] < _QUANTILE - margin:
            j += 1
        radius = edges[j]
        if j > 0 and below[j] > below[j - 1]:
            part = (_QUANTILE - below[j - 1]) / (below[j] - below[j - 1])
            radius = edges[j - 1] * (edges[j] / edges[j - 1]) ** min(max(part, 0.3), 1.0)
        return np.array([radius])

    def _directions(self, state: GridState, released: Mapping[str, Released]) -> State:
        """Find the directions whose variance stands out of the noise of a random matrix."""
        d, radius = self.n_features, float(real(state, "radius", self.frac_bits)[0])
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
        found = excess[:detected]
        signal[:detected] = np.maximum(found + np.sqrt(np.maximum(found**2 - edge**2, 0)), 0) / 2
        floor = max(0.2 * radius**2, float(signal.sum()))
        total = min(max(float(variances.sum()), floor), max(1.5 * radius**2, floor))

        axes = min(detected, self._axes)
        stds = np.sqrt(np.maximum(signal[:axes] + bulk, 1e-6))
        beside = _residual_stds(variances, axes, edge, total, float((stds**2).sum()))
        spans, bins = np.zeros(self._axes), np.zeros(self._axes)
        if axes:
            reach = _REACH[min(axes, len(_REACH)) - 1]
            spans[:axes] = reach * stds
            bins[:axes] = cubic_bins(stds, reach, self._most_cells(axes))
        residual_stds = np.zeros(_MORE_AXES)
        residual_stds[: len(beside)] = beside
        mean = np.clip(real(state, "mean", self.frac_bits) + shift, -1, 1)
        return carry(
            state,
            self.frac_bits,
            mean=mean,
            centres=self._all_at(mean),
            directions=vectors[:, : self._kept_directions],
            detected=np.array([float(detected)]),
            within=np.array([total]),
            half_spans=spans,
            bins=bins,
            residual_stds=residual_stds,
        )

    def _cluster(self, state: GridState, block: Released) -> State:
        """Cluster the histogram, and set the radius of the Lloyd rounds."""
        k, n, axes = len(state["centres"]), self.nominal_n, self._used_axes(state)
        one = 1 << self.frac_bits
        noise_std = block.noise_std / one
        spans = real(state, "half_spans", self.frac_bits)[:axes]
        bins = (state["bins"][:axes] // one).astype(np.int64)
        points = cell_centres(spans, bins)
        noisy = from_grid(block.values[: len(points)], self.frac_bits)
        weights = project_to_simplex(noisy, n)
        cells = np.full(k, max(1.0, float((weights > 0).sum()) / k))
        more = min(_MORE_AXES, self.n_features - axes)
        if more:
            stds = real(state, "residual_stds", self.frac_bits)[:more]
            samples = sample_cells(
                points, weights, 2 * spans / bins, stds, public_seed=self.public_seed
            )
            places = self._quantize(samples, k)
            labels, _ = nearest(samples, places)
            counts = np.bincount(labels, minlength=k).astype(np.float64) * (n / len(samples))
            widths = _widths(samples[:, :axes], np.ones(len(samples)), labels, k)
        else:
            places = cluster_weighted(
                points, weights, k, public_seed=self.public_seed, restarts=_RESTARTS
            )
            labels, _ = nearest(points, places)
            counts = np.bincount(labels, weights, minlength=k).astype(np.float64)
            cells = np.maximum(np.bincount(labels[weights > 0], minlength=k), 1.0)
            widths = _widths(points, weights, labels, k)
        directions = real(state, "directions", self.frac_bits)[:, : places.shape[1]]
        centres = real(state, "mean", self.frac_bits) + places @ directions.T
        total = float(real(state, "within", self.frac_bits)[0])
        between = float((counts[:, None] * places**2).sum()) / n
        within = max(total - between, 0.2 * total)
        return carry(
            state,
            self.frac_bits,
            centres=np.clip(centres, -1, 1),
            counts=counts,
            counts_std=noise_std * np.sqrt(cells),
            within=np.array([within]),
            radii=np.full(k, self._stretch * sqrt(within)),
            widths=widths,
            sizes=counts,
            size_half_width=INTERVAL_95["gaussian"] * noise_std * np.sqrt(cells),
        )

    def _quantize(self, samples: Floats, n_clusters: int) -> Floats:
        return cluster_weighted(
            samples,
            np.ones(len(samples)),
            n_clusters,
            public_seed=self.public_seed,
            restarts=_RESTARTS,
        )

    @property
    def _stretch(self) -> float:
        """Radius of the Lloyd rounds in root mean square distances: larger with less noise."""
        shares = self._lloyd_shares
        noise = 1 / (self.mu * sqrt(sum(shares) / len(shares)))
        nu = self.n_clusters * sqrt(self.n_features) * noise / self.nominal_n
        stretch = float((_NU / nu) ** (_FAST if nu < _NU else _SLOW))
        return min(max(stretch, 0.5), 3.0)

    def _move(self, state: GridState, released: Mapping[str, Released]) -> State:
        """Move the centres by what is signal, in the detected directions and beside them."""
        k, d = len(state["centres"]), self.n_features
        step = read_lloyd(state, released, self.frac_bits, _FLOOR)
        radii = np.maximum(real(state, "radii", self.frac_bits), 1 / (1 << self.frac_bits))
        factors = step.counts / radii * min(_UNDER, _UNDER * self._stretch)
        within = float(real(state, "within", self.frac_bits)[0])
        n_axes = max(self._used_axes(state), min(self._detected(state), max(1, k - 1)))
        basis = real(state, "directions", self.frac_bits)[:, :n_axes]
        along = step.sums @ basis
        moves = np.zeros((k, d))
        for sums, n_dims in ((along @ basis.T, n_axes), (step.sums - along @ basis.T, d - n_axes)):
            moves += empirical_bayes(
                sums,
                n_dims=n_dims,
                factors=factors,
                noise_std=step.sum_std,
                unit=sqrt(within / d),
                prior_power=_PRIOR,
                spreads=factors.mean() / factors,
            )
        centres = real(state, "centres", self.frac_bits) + moves / factors[:, None]
        return carry(
            state,
            self.frac_bits,
            centres=np.clip(centres, -1, 1),
            counts=step.counts,
            counts_std=step.counts_std,
            **step.shown,
        )

    def spreads(self, state: GridState) -> Floats:
        """Return the standard deviation in a column of each cluster, along the used axes."""
        return real(state, "widths", self.frac_bits)

    def _refine(self, state: GridState, block: Released) -> State:
        """Nothing was detected: merge one more mean, with public centres around it."""
        radius = float(real(state, "radius", self.frac_bits)[0])
        fresh, fresh_std = self._mean_of(block, radius)
        before, std = (
            real(state, "residual", self.frac_bits),
            float(real(state, "residual_std", self.frac_bits)[0]),
        )
        start = real(state, "start", self.frac_bits)
        if std == 0:  # the first of these rounds
            residual, residual_std = fresh, fresh_std
            stds = real(state, "residual_stds", self.frac_bits)
            stds = stds[: min(_MORE_AXES, self.n_features)]
            samples = sample_cells(
                np.zeros((1, 0)), np.ones(1), np.zeros(0), stds, public_seed=self.public_seed
            )
            directions = real(state, "directions", self.frac_bits)[:, : len(stds)]
            start = self._quantize(samples, len(state["centres"])) @ directions.T
        else:
            weight = std**2 / (std**2 + fresh_std**2)
            residual = before + weight * (fresh - before)
            residual_std = std * sqrt(1 - weight)
        mean = real(state, "mean", self.frac_bits)
        centres = mean + james_stein(residual, residual_std) + start
        return carry(
            state,
            self.frac_bits,
            start=start,
            residual=residual,
            residual_std=np.array([max(residual_std, 1 / (1 << self.frac_bits))]),
            **around(centres, mean + residual + start, residual_std, self.nominal_n),
        )

    def _detected(self, state: GridState) -> int:
        return int(state["detected"][0]) >> self.frac_bits

    def _used_axes(self, state: GridState) -> int:
        return min(self._detected(state), self._axes)


def _widths(points: Floats, weights: Floats, labels: Integers, n_clusters: int) -> Floats:
    """Return the standard deviation of weighted points in each cluster, the mean over axes."""
    sizes = np.maximum(np.bincount(labels, weights, minlength=n_clusters), 1e-9)
    moments = [
        np.stack([np.bincount(labels, weights * x**p, minlength=n_clusters) for x in points.T])
        for p in (1, 2)
    ]
    means, squares = (moment / sizes for moment in moments)
    widths: Floats = np.sqrt(np.maximum(squares - means**2, 0.0).mean(axis=0))
    return widths


def _edges(n_features: int) -> Floats:
    """Return the public edges between bins of distances, in grid coordinates."""
    edges: Floats = 0.4 * sqrt(n_features) * 2.0 ** (np.arange(-6, 3) / 2)
    return edges


def _residual_stds(
    variances: Floats, axes: int, edge: float, total: float, explained: float
) -> Floats:
    """Return standard deviations of the directions after the first `axes`, shrunk to their mean."""
    rest = variances[axes:]
    if not len(rest):
        return rest
    mean = max(total - explained, 0.1 * total) / len(rest)
    if len(rest) == 1:
        return np.full(1, sqrt(mean))
    spread = float(((rest - rest.mean()) ** 2).mean())
    trust = max(0.0, 1 - edge**2 / 4 / max(spread, 1e-300))
    shrunk = np.maximum(mean + trust * (rest - rest.mean()), 0.1 * mean)
    stds: Floats = np.sqrt(shrunk * (mean * len(rest) / shrunk.sum()))[:_MORE_AXES]
    return stds
