"""`auto` for one cluster or hidden directions: the whole budget is spent on the mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, State
from cloister.core.randomness import public_generator
from cloister.protocol.task import Block, NoisyBlock, Rows
from cloister.tasks.clipped import clip_to_unit, sum_clipped
from cloister.tasks.clustering.auto_rounds import Route, unit_block
from cloister.tasks.clustering.clusters import Centres, unknown
from cloister.tasks.intervals import size_interval
from cloister.tasks.shrinkage import james_stein
from cloister.tasks.state import decode_state, encode_state

FIRST = 0.35  # share of the first, rough mean
TYPICAL = 0.35  # assumed typical distance to the mean in a column
_REACH = 1.8  # distance of the other centres to the mean, in typical distances
_NOISY, _WIDER = 0.28, 0.4  # with less noise the bias of clipping would dominate: the radius grows


@dataclass(frozen=True)
class MeanKnown(Centres):
    """The mean, and the radius around it beyond which the second sum clips records."""

    mean: Floats
    radius: float


@dataclass(frozen=True)
class MeanRoute(Route):
    """A rough mean, then a mean of the records clipped around it."""

    rounds = 2
    releases = "the mean of all records, twice"

    @property
    def stretch(self) -> float:
        """Radius of the second sum in typical distances; with little noise no record is clipped."""
        if self.n_clusters > 1:  # this route was chosen for its noise, which clipping reduces
            return 1.0
        noise = sqrt(self.n_features) / (self.mu * self.nominal_n)
        wanted: float = (_NOISY / noise) ** _WIDER
        return min(max(wanted, 1.0), 2 / TYPICAL)

    def start(self) -> State:
        centres = unknown(self.n_clusters, self.n_features)
        return encode_state(MeanKnown(**centres, mean=np.zeros(self.n_features), radius=0.0))

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return one block with the shape of a record."""
        d, one = self.n_features, self.one
        if t == 0:
            return (Block.counting("sum", (d,), FIRST, d, one),)
        return (unit_block("sum", (d,), one, 1 - FIRST),)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return the records, or their clipped differences to the rough mean."""
        if t == 0:
            return (Rows.dense(records.astype(np.int64)),)
        radius = max(int(state["radius"][0]), 1)  # a dishonest aggregator may answer with any state
        return (Rows.dense(clip_to_unit(records - state["mean"], radius, self.one)),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sum of the records, or of their clipped differences to the rough mean."""
        if t == 0:
            return np.asarray(np.einsum("ij->j", records, dtype=np.int64))
        radius = max(int(state["radius"][0]), 1)
        return sum_clipped(records, state["mean"], radius, self.one)

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Refine the mean; the first centre is the mean, the others are placed around it."""
        d, n = self.n_features, self.nominal_n
        sums, sum_std = released["sum"].in_records(self.frac_bits)
        values, noise_std = sums / n, sum_std / n
        if t == 0:
            origin: Floats | float = 0.0
            # The share of the noise that shrinkage leaves in the mean; it widens the radius.
            kept = max(0.0, 1 - (d - 2) * noise_std**2 / max(float(values @ values), 1e-300))
            radius = self.stretch * sqrt(d * (TYPICAL**2 + min(kept * noise_std**2, 0.15)))
        else:
            before = decode_state(MeanKnown, state, self.frac_bits)
            origin, radius = before.mean, max(before.radius, 1 / self.one)
            values, noise_std = values * radius, noise_std * radius
        mean = np.clip(origin + james_stein(values, noise_std), -1, 1)
        offsets = spread_out(self.n_clusters, d, _REACH * TYPICAL, self.public_seed)
        around_it = around(mean + offsets, origin + values + offsets, noise_std, n)
        return encode_state(MeanKnown(**around_it, mean=mean, radius=radius))

    def spreads(self, state: GridState) -> Floats:
        """Return zeros, because the route does not estimate spreads."""
        return np.zeros(len(state["centres"]))


def around(centres: Floats, unshrunk: Floats, noise_std: float, nominal_n: int) -> dict[str, Any]:
    """Return the fields of centres with unknown sizes.

    A single centre is the mean and has its interval. Of several centres only the mean was
    measured, so their intervals are the whole box.
    """
    k, half = len(centres), size_interval(noise_std)
    return {
        "centres": np.clip(centres, -1, 1),
        "low": np.clip(unshrunk - half, -1, 1) if k == 1 else np.full_like(centres, -1.0),
        "high": np.clip(unshrunk + half, -1, 1) if k == 1 else np.full_like(centres, 1.0),
        "sizes": np.full(k, nominal_n / k),
        "size_half_width": np.full(k, float(nominal_n)),
    }


def spread_out(n_clusters: int, n_features: int, distance: float, public_seed: int) -> Floats:
    """Return public offsets along random orthogonal directions, to both sides of each.

    The first offset is 0. Unused centres do no harm.
    """
    rng = public_generator(public_seed, "spread")
    directions = np.linalg.qr(rng.normal(size=(n_features, n_features)))[0].T
    offsets = np.zeros((n_clusters, n_features))
    for i, j in enumerate(range(1, n_clusters)):
        axis, side = i // 2, 1 - 2 * (i % 2)
        offsets[j] = side * distance * (1 + axis // n_features) * directions[axis % n_features]
    return offsets
