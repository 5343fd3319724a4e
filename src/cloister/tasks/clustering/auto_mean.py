"""`auto` for one cluster or hidden directions: the whole budget is spent on the mean.

A single cluster has a noisy count, so that a wrong `nominal_n` moves neither its mean nor its
interval. Of hidden directions the noise would hide the count, too, and `nominal_n` replaces it.
"""

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
from cloister.tasks.intervals import ratio_interval, size_interval
from cloister.tasks.shrinkage import james_stein
from cloister.tasks.state import decode_state, encode_state

FIRST = 0.35  # share of the first, rough mean
_COUNT_PART = 0.06  # of the share of each mean, for its count
_FLOOR = 3.0  # smallest divisor of the rough mean, in standard deviations of its count
TYPICAL = 0.35  # assumed typical distance to the mean in a column
_REACH = 1.8  # distance of the other centres to the mean, in typical distances
_NOISY, _WIDER = 0.28, 0.4  # with less noise the bias of clipping would dominate: the radius grows


@dataclass(frozen=True)
class MeanKnown(Centres):
    """The mean, and the radius around it beyond which the second sum clips records."""

    mean: Floats
    radius: float
    count: float
    count_std: float


@dataclass(frozen=True)
class MeanRoute(Route):
    """A rough mean, then a mean of the records clipped around it."""

    rounds = 2

    @property
    def releases(self) -> str:
        """The released sums as text."""
        return f"the sum{' and the count' * self.has_counts} of all records, twice"

    @property
    def has_counts(self) -> bool:
        """True for a single cluster."""
        return self.n_clusters == 1

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
        middle = np.zeros(self.n_features)
        return encode_state(MeanKnown(**centres, mean=middle, radius=0.0, count=0.0, count_std=0.0))

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return a block with the shape of a record, and for a single cluster one with a count."""
        d, one = self.n_features, self.one
        share = 1 - FIRST if t else FIRST
        of_sum = share * (1 - _COUNT_PART) if self.has_counts else share
        sums = unit_block("sum", (d,), one, of_sum)
        if t == 0:
            sums = Block.counting("sum", (d,), of_sum, d, one)
        if not self.has_counts:
            return (sums,)
        return sums, Block.counting("counts", (1,), share * _COUNT_PART, one=one)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return the records, or their clipped differences to the rough mean, and their counts."""
        if t == 0:
            sums = Rows.dense(records.astype(np.int64))
        else:
            sums = Rows.dense(clip_to_unit(records - state["mean"], _radius(state), self.one))
        if not self.has_counts:
            return (sums,)
        return sums, Rows.dense(np.full((len(records), 1), self.one))

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sum of the records, or of their clipped differences, and their count."""
        if t == 0:
            sums = np.asarray(np.einsum("ij->j", records, dtype=np.int64))
        else:
            sums = sum_clipped(records, state["mean"], _radius(state), self.one)
        return np.append(sums, len(records) * self.one) if self.has_counts else sums

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Refine the mean; the first centre is the mean, the others are placed around it."""
        d, before = self.n_features, decode_state(MeanKnown, state, self.frac_bits)
        sums, sum_std = released["sum"].in_records(self.frac_bits)
        origin, unit = np.zeros(d), 1.0
        if t > 0:
            origin, unit = before.mean, max(before.radius, 1 / self.one)
        sums, sum_std = sums * unit, sum_std * unit
        count, count_std = self._count(t, before, released)
        n = max(count, (1.0 if t else _FLOOR) * count_std, 1.0)
        values, noise_std = sums / n, sum_std / n
        radius = before.radius
        if t == 0:
            # The share of the noise that shrinkage leaves in the mean; it widens the radius.
            kept = max(0.0, 1 - (d - 2) * noise_std**2 / max(float(values @ values), 1e-300))
            radius = self.stretch * sqrt(d * (TYPICAL**2 + min(kept * noise_std**2, 0.15)))
        mean = np.clip(origin + james_stein(values, noise_std), -1, 1)
        if self.has_counts:
            around_it = _with_count(mean, origin, sums, sum_std, count, count_std)
        else:
            offsets = spread_out(self.n_clusters, d, _REACH * TYPICAL, self.public_seed)
            around_it = around(mean + offsets, origin + values + offsets, noise_std, self.nominal_n)
        known = MeanKnown(**around_it, mean=mean, radius=radius, count=count, count_std=count_std)
        return encode_state(known)

    def _count(
        self, t: int, before: MeanKnown, released: Mapping[str, NoisyBlock]
    ) -> tuple[float, float]:
        """Return the number of records and its standard deviation, 0 for the nominal number."""
        if not self.has_counts:
            return float(self.nominal_n), 0.0
        counts, count_std = released["counts"].in_records(self.frac_bits)
        fresh = float(counts[0])
        if t == 0 or count_std == 0:
            return fresh, count_std
        # Independent estimates are merged by their precision.
        old, new = 1 / max(before.count_std, 1 / self.one) ** 2, 1 / count_std**2
        return (before.count * old + fresh * new) / (old + new), 1 / sqrt(old + new)

    def spreads(self, state: GridState) -> Floats:
        """Return zeros, because the route does not estimate spreads."""
        return np.zeros(len(state["centres"]))


def _radius(state: GridState) -> int:
    """Return the radius in grid steps; a dishonest aggregator may answer with any state."""
    return max(int(state["radius"][0]), 1)


def _with_count(
    mean: Floats, origin: Floats, sums: Floats, sum_std: float, count: float, count_std: float
) -> dict[str, Any]:
    """Return the fields of a single centre, whose interval contains it."""
    low, high = ratio_interval(
        sums[None], np.array([count]), sum_std=sum_std, count_std=count_std, origin=origin
    )
    return {
        "centres": mean[None],
        # The mean is shrunk, and the interval is that of the mean before.
        "low": np.minimum(low, mean),
        "high": np.maximum(high, mean),
        "sizes": np.array([count]),
        "size_half_width": np.array([size_interval(count_std)]),
    }


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
