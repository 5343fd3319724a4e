"""`auto` in more dimensions: leading directions, their histogram, and clipped Lloyd rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, State
from cloister.protocol.task import Block, NoisyBlock, Rows
from cloister.tasks.clustering.auto_directions import (
    RELEASES,
    Directions,
    DirectionsKnown,
    divided,
    quantized,
    signal_along,
)
from cloister.tasks.clustering.auto_rounds import (
    LLOYD_RELEASES,
    Route,
    growing,
    lloyd_blocks,
    lloyd_contribution,
    lloyd_rows,
    placed,
    read_lloyd,
    stretch_of,
    unclipped,
)
from cloister.tasks.clustering.synopsis import nearest, project_to_simplex
from cloister.tasks.state import decode_state, encode_state

# The constants below were tuned on public data sets. Privacy does not depend on any of them
# (docs/proofs/auto.md).
_SHARES = {"mean": 0.10, "radius": 0.02, "shift": 0.10, "gram": 0.28, "cells": 0.12, "lloyd": 0.60}
_COUNT_PART = 0.10
_GROWTH = 1.2
_FLOOR = 0.7
_CELLS = 0.35
_MOST_AXES = 6
_SAMPLES = 2000


@dataclass(frozen=True)
class PcaRoute(Route):
    """Mean, radius, second moments, histogram along leading directions, Lloyd rounds."""

    releases = f"{RELEASES}; {LLOYD_RELEASES}"

    # The plan -----------------------------------------------------------------------------

    @cached_property
    def _shares(self) -> dict[str, float]:
        return divided(self, _SHARES, "lloyd")

    @cached_property
    def directions(self) -> Directions:
        """The first stages."""
        return Directions(
            **self.numbers, shares=self._shares, fineness=_CELLS, most_axes=_MOST_AXES
        )

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
