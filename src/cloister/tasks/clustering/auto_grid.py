"""`auto` in few dimensions: the bulk of each column, its histogram, and clipped Lloyd rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod, sqrt

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, State
from cloister.protocol.task import INTERVAL_95, Block, NoisyBlock, Rows
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
)
from cloister.tasks.clustering.clusters import SIZE_ERROR
from cloister.tasks.clustering.fixed_point import NOT_DETERMINED, judge
from cloister.tasks.clustering.lloyd_kernel import nearest_centres
from cloister.tasks.clustering.surrogate import (
    FINE,
    Partition,
    Surrogate,
    density,
    kernel,
    spread,
)
from cloister.tasks.clustering.synopsis import cubic_bins, drop_empty_cells
from cloister.tasks.clustering.weighted import ONE, cluster, on_lattice, parts_of
from cloister.tasks.columns import bins_of, count_cells
from cloister.tasks.intervals import above_noise, round_up
from cloister.tasks.moments import chunks
from cloister.tasks.shrinkage import gains
from cloister.tasks.state import decode_state, encode_state

# The constants below were tuned on generated tables. Privacy does not depend on any of them
# (docs/proofs/auto.md).
_BOX, _HISTOGRAM = 0.08, 0.45  # share of the budget, and share of the rest of the budget
_EDGE_BINS = 32  # bins of a column
_TAIL, _LOST = 0.03, 0.5  # largest loss at an end of a column: share of all records, of a cluster
_BIN_NOISE = 0.59  # largest noise of a bin's count, over the records that may be cut
_DRIFT_OF_BIN = 0.6  # records of a bin that may be cut, in deviations of their noise
_GROUP = 0.6  # largest cost of records to cut, over the cost of a cluster of a uniform column
_LEAST_BINS = 2  # of a box; a narrower box is extended by a bin on either side
_FINENESS = 9.0  # noise of a cluster's count that a cell's count should have
_FEWEST, _MOST = 5, 60  # cells of a cluster
_LEAST_CELLS, _MOST_CELLS = 30, 4096
_MOST_BINS = 512  # bins of a column; the matrix of kernels has the square of it
_WIDTH = 0.35  # of kernels, in half the side of a cluster's share of the box, or in cells
_POINTS = 2000  # approximate number of points of the surrogate
_RESTARTS = 4
_ROUNDS, _FEWER, _LEAST_ROUNDS, _MOST_ROUNDS = 2.5, 0.4, 3, 8
_COUNT_PART, _GROWTH = 0.12, 1.15
_NU, _SLOW, _FAST = 0.1, 0.2, 0.4  # radius of Lloyd rounds against their noise
_NARROW, _WIDE = 0.7, 3.0  # radius in root mean square distances of a cluster
_MODEL = 0.05  # relative error of every estimate from the histogram
_SEEN = 2.0  # standard deviations of a moment of cells beyond which it is no noise
_FAR = 4.0  # squared distance of a cell that rounds do not see, in mean squared ones
_DRIFT = 0.3  # share of a later change that may be wrong


@dataclass(frozen=True)
class GridKnown(MovingCentres):
    """The public state of the route, in grid coordinates."""

    box_low: Floats
    box_high: Floats
    surrogate: Surrogate
    error_std: Floats  # of each centre in a column; on the grid, its square could round to 0
    moved: Floats  # of each centre by records that the surrogate has elsewhere
    unseen_std: Floats  # of each centre by records that neither surrogate nor Lloyd rounds see
    verdict: Floats  # of each cluster, after the last round
    # Sums of the distances of records to the box, beyond its low and its high end in each column.
    beyond_low: Floats
    beyond_high: Floats
    beyond_low_std: Floats
    beyond_high_std: Floats


@dataclass(frozen=True)
class GridRoute(Route):
    """Tails of the columns if the noise permits, a histogram, and clipped Lloyd rounds."""

    releases = (
        "the counts of records in each bin of a column, if there are enough records, and in each "
        f"cell of a grid; {LLOYD_RELEASES}"
    )

    judges = True
    whole_box: bool = False

    # The plan -----------------------------------------------------------------------------

    @cached_property
    def has_box(self) -> bool:
        """True if a first round finds the box; False if noise would hide the columns' tails."""
        if self.whole_box:
            return False
        return sqrt(self.n_features) * self.noise_std(_BOX) <= _BIN_NOISE * self._tail

    @cached_property
    def _tail(self) -> float:
        """Largest number of records to cut at an end of a column, less than a whole cluster."""
        return min(_TAIL, _LOST / self.n_clusters) * self.nominal_n

    @cached_property
    def _shares(self) -> tuple[float, ...]:
        """Share of the budget of each round."""
        box = _BOX if self.has_box else 0.0
        histogram = _HISTOGRAM * (1 - box)
        noise = self._relative_noise(1 - _HISTOGRAM)
        rounds = min(max(round(_ROUNDS * noise**-_FEWER), _LEAST_ROUNDS), _MOST_ROUNDS)
        lloyd = growing(1 - box - histogram, _GROWTH, rounds)
        return (box, histogram, *lloyd) if self.has_box else (histogram, *lloyd)

    def _relative_noise(self, share: float) -> float:
        """Return the norm of the noise of a sum of vectors, over the records of a cluster."""
        noise = sqrt(self.n_features) * self.noise_std(share)
        return self.n_clusters * noise / self.nominal_n

    @property
    def rounds(self) -> int:
        return len(self._shares)

    @cached_property
    def n_cells(self) -> int:
        """Largest number of cells of the histogram, for any box."""
        k, noise_std = self.n_clusters, self.noise_std(self._shares[self.has_box])
        fine: float = (self.nominal_n / (_FINENESS * k * noise_std)) ** 2
        cells = max(k * min(max(fine, _FEWEST), _MOST), _LEAST_CELLS)
        return int(min(cells, _MOST_CELLS, _MOST_BINS**self.n_features))

    @cached_property
    def _cuts(self) -> int:
        """Number of sections of a cell's side, each with a point of the surrogate."""
        sections: float = (_POINTS / self.n_cells) ** (1 / self.n_features)
        return max(1, round(sections))

    def start(self) -> State:
        d, size = self.n_features, self.n_cells * self._cuts**self.n_features
        empty = Surrogate(np.zeros((size, d), np.int64), np.zeros(size, np.int64), 0.0)
        initial = GridKnown(
            **still(self.n_clusters, d),
            box_low=np.full(d, -1.0),
            box_high=np.ones(d),
            surrogate=empty,
            error_std=np.zeros(self.n_clusters),
            moved=np.zeros((self.n_clusters, d)),
            unseen_std=np.zeros((self.n_clusters, d)),
            verdict=np.full(self.n_clusters, NOT_DETERMINED),
            beyond_low=np.zeros(d),
            beyond_high=np.zeros(d),
            beyond_low_std=np.zeros(d),
            beyond_high_std=np.zeros(d),
        )
        return encode_state(initial)

    def _stage(self, t: int) -> str:
        return ("box", "cells", "lloyd")[min(t + (not self.has_box), 2)]

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return histograms, or sums and counts."""
        share, d, one = self._shares[t], self.n_features, self.one
        match self._stage(t):
            case "box":
                return (Block.counting("tails", (d, _EDGE_BINS), share, d, one),)
            case "cells":
                return (Block.counting("cells", (self.n_cells,), share, one=one),)
        return lloyd_blocks(self, share, _COUNT_PART)

    # The records --------------------------------------------------------------------------

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        d = self.n_features
        match self._stage(t):
            case "box":
                bins = (bins_of(records[:, j], _EDGE_BINS, self.frac_bits) for j in range(d))
                cells = [j * _EDGE_BINS + column_bins for j, column_bins in enumerate(bins)]
                return (Rows.at(cells, [self.one] * d),)
            case "cells":
                return (Rows.at([self._cell_of(state, records)], [self.one]),)
        return lloyd_rows(state, records, self.one)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        d = self.n_features
        match self._stage(t):
            case "box":
                tables, bins = [[j] for j in range(d)], [_EDGE_BINS] * d
                counts = count_cells(records, tables, bins, [True] * d, self.frac_bits)
                return np.concatenate(counts) * self.one
            case "cells":
                return self._count_cells(state, records) * self.one
        return lloyd_contribution(state, records, self.one)

    def _count_cells(self, state: GridState, records: Records) -> Integers:
        counts = np.zeros(self.n_cells, dtype=np.int64)
        for chunk in chunks(records):
            counts += np.bincount(self._cell_of(state, chunk), minlength=self.n_cells)
        return counts

    def _cell_of(self, state: GridState, records: Records) -> Integers:
        """Return the cell of each record; a record outside the box is in the nearest cell."""
        # In whole numbers: a cell must not depend on the rounding of a machine.
        low, sides = state["box_low"], np.maximum(state["box_high"] - state["box_low"], 1)
        bins = self.histogram_of(self._known(state))[1]
        cell = np.zeros(len(records), dtype=np.int64)
        for column, start, side, m in zip(records.T, low, sides, bins, strict=True):
            cell *= m
            cell += np.clip((column - start) * m // side, 0, m - 1)
        return cell

    # The answer ---------------------------------------------------------------------------

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Find the box, cluster the histogram, or move the centres."""
        known = self._known(state)
        match self._stage(t):
            case "box":
                return encode_state(self._box(known, *released["tails"].in_records(self.frac_bits)))
            case "cells":
                known = self._cluster(known, *released["cells"].in_records(self.frac_bits))
            case _:
                known, last_std = self._move(known, released)
                if t + 1 == self.rounds:
                    return encode_state(self._judged(known, last_std))
        return encode_state(self._with_radii(known, t + 1))

    def spreads(self, state: GridState) -> Floats:
        """Return the standard deviation in a column of each cluster of the surrogate."""
        known = self._known(state)
        if known.surrogate.records == 0:
            return np.zeros(len(known.centres))
        return np.asarray(np.sqrt(self._partition(known).within / self.n_features))

    def _known(self, state: GridState) -> GridKnown:
        return decode_state(GridKnown, state, self.frac_bits)

    def _partition(self, known: GridKnown) -> Partition:
        return Partition(known.surrogate, known.centres, 0.02 * self._typical(known))

    def _typical(self, known: GridKnown) -> float:
        """Return the number of records of a cluster if all clusters have equal size."""
        return self.nominal_n / len(known.centres)

    def histogram_of(self, known: GridKnown) -> tuple[Floats, Integers]:
        """Return half the sides of the box, and its bins along each column."""
        half = (known.box_high - known.box_low) / 2
        return half, cubic_bins(half, self.n_cells)

    def _box(self, known: GridKnown, noisy: Floats, noise_std: float) -> GridKnown:
        """Cut the bins at either end of a column that have few records within the noise."""
        step, size = 2 / _EDGE_BINS, np.arange(1, _EDGE_BINS - 1)
        # The noise of a sum of counts grows with their number, so less may be cut.
        room = self._tail - noise_std * np.sqrt(size)

        def cut(counts: Floats) -> float:
            full = np.cumsum(counts)[: len(room)] > room
            few = int(full.argmax()) if full.any() else len(room)
            # Noise may leave no room in a loose box. Where counts rise, their sums less a drift
            # have a minimum.
            sums = np.cumsum(counts - _DRIFT_OF_BIN * noise_std)[: len(room)]
            few = max(few, int(np.append(0.0, sums).argmin()))
            return step * min(few, _before_groups(counts, noise_std, self._affordable(counts)))

        low = -1 + np.array([cut(counts) for counts in noisy])
        high = 1 - np.array([cut(counts[::-1]) for counts in noisy])
        low, high = np.minimum(low, high), np.maximum(low, high)
        narrow = high - low < _LEAST_BINS * step
        low = np.where(narrow, np.maximum(low - step, -1), low)
        high = np.where(narrow, np.minimum(high + step, 1), high)
        middles = -1 + step * (np.arange(_EDGE_BINS) + 0.5)
        below = np.maximum(low[:, None] - middles, 0)
        above = np.maximum(middles - high[:, None], 0)
        return replace(
            known,
            box_low=low,
            box_high=high,
            beyond_low=np.maximum((noisy * below).sum(axis=1), 0),
            beyond_high=np.maximum((noisy * above).sum(axis=1), 0),
            beyond_low_std=noise_std * np.sqrt((below**2).sum(axis=1)),
            beyond_high_std=noise_std * np.sqrt((above**2).sum(axis=1)),
        )

    def _affordable(self, counts: Floats) -> float:
        """Return the largest cost of records to cut at an end of a column, in squared bins."""
        full, middles = np.maximum(counts, 0), np.arange(len(counts))
        total = max(float(full.sum()), 1.0)
        mean = float((full * middles).sum()) / total
        variance = float((full * (middles - mean) ** 2).sum()) / total
        of_cluster: float = self.nominal_n * self.n_clusters ** -(1 + 2 / self.n_features)
        return _GROUP * variance * of_cluster

    def _cluster(self, known: GridKnown, noisy: Floats, noise_std: float) -> GridKnown:
        """Replace the records by points of the histogram, and cluster the points."""
        k, n, d = len(known.centres), self.nominal_n, self.n_features
        half, bins = self.histogram_of(known)
        cell = 2 * half / bins
        counts = noisy[: prod(bins.tolist())].reshape(bins)  # the other elements are padding
        of_cluster = (float(np.prod(half)) / k) ** (1 / d)
        widths = _WIDTH * max(of_cluster, float(np.median(cell))) / cell
        coarse, fine = (
            [kernel(m, cuts, w) for m, w in zip(bins.tolist(), widths.tolist(), strict=True)]
            for cuts in (1, self._cuts)
        )
        masses = density(counts, noise_std, coarse, n)
        if noise_std > 0:
            kept = drop_empty_cells(counts.ravel(), masses.ravel(), noise_std, n)
            masses = np.rint(kept * (FINE / kept.sum())).reshape(bins)

        # The state has a fixed shape, so points without mass fill it up.
        points, weights = known.surrogate.points.copy(), known.surrogate.masses.copy()
        middles = _middles(known, bins * self._cuts)
        points[: len(middles)] = middles
        weights[: len(middles)] = parts_of(spread(fine, masses).ravel())
        centres = cluster(points, weights, k, public_seed=self.public_seed, restarts=_RESTARTS)
        fitted = spread(coarse, masses).ravel() * (n / FINE)
        cells = _middles(known, bins)
        known = replace(
            known, surrogate=Surrogate(points, weights, float(n)), centres=centres / ONE
        )
        moved, unseen = self._moved(known, cells, counts.ravel() - fitted, noise_std)
        known = replace(known, moved=moved, unseen_std=unseen)
        return self._with_errors(known, cells[fitted > 0.1 * noise_std], noise_std)

    def _moved(
        self, known: GridKnown, cells: Integers, missing: Floats, noise_std: float
    ) -> tuple[Floats, Floats]:
        """Return the moves of the centres by records that the surrogate has elsewhere.

        These are records beyond the box, which count in its outermost cells, and records in cells
        whose counts are significantly larger than the density. Lloyd rounds clip far records, so
        that they do not see them. Fewer far records are within the noise of the counts: also
        returns the standard deviation of the moves by these.
        """
        k, partition = len(known.centres), self._partition(known)
        labels = nearest_centres(cells.astype(np.int32), on_lattice(known.centres))
        moves, stds = np.zeros((2, *known.centres.shape))
        half, bins = self.histogram_of(known)
        apart = (cells / ONE - known.centres[labels]) ** 2
        is_far = apart.sum(axis=1) > _FAR * partition.within[labels]
        for c, middles in enumerate(cells.T / ONE):
            arms = middles - known.centres[labels, c]
            sums = np.bincount(labels, missing * arms, k)
            noise = noise_std * np.sqrt(np.bincount(labels, arms**2, k))
            stds[:, c] = noise_std * np.sqrt(np.bincount(labels, is_far * arms**2, k))
            moves[:, c] = np.where(np.abs(sums) > _SEEN * noise, np.abs(sums), 0)
            side, places = 2 * half[c] / bins[c], known.surrogate.points[:, c] / ONE
            low = places < known.box_low[c] + side, known.beyond_low[c], known.beyond_low_std[c]
            high = places > known.box_high[c] - side, known.beyond_high[c], known.beyond_high_std[c]
            for is_outer, beyond, std in (low, high):
                # A cluster has the same part of the records beyond as of the outermost cells.
                masses = np.bincount(partition.labels, known.surrogate.masses * is_outer, k)
                part = masses / max(masses.sum(), 1)
                moves[:, c] += part * beyond
                stds[:, c] = np.hypot(stds[:, c], part * std)
        counts = partition.counts[:, None]
        return moves / counts, stds / counts

    def _with_errors(self, known: GridKnown, cells: Integers, noise_std: float) -> GridKnown:
        """Set the errors of the histogram's centres and counts by a public model."""
        k, d, typical = len(known.centres), self.n_features, self._typical(known)
        partition = self._partition(known)
        pooled = partition.pooled / d
        centres = on_lattice(known.centres)
        labels = nearest_centres(cells.astype(np.int32), centres)
        squared = (((cells - centres[labels]) / ONE) ** 2).sum(axis=1)
        arms = np.maximum(np.bincount(labels, squared, k) / d, 0.5 * pooled)
        error = arms * (noise_std / np.maximum(partition.counts, 0.1 * typical)) ** 2
        n_cells = np.maximum(np.bincount(labels, minlength=k), 1)
        known = placed(known, known.centres, partition.counts, n_cells, noise_std)
        of_counts = np.minimum(known.counts_std, 0.5 * typical)
        return replace(
            known,
            error_std=np.sqrt(np.minimum(error + _MODEL**2 * pooled, 4 * pooled)),
            counts_std=np.hypot(of_counts, _MODEL * partition.counts),
        )

    def _with_radii(self, known: GridKnown, t: int) -> GridKnown:
        """Set the radii of round `t`; they are wider with less noise."""
        partition = self._partition(known)
        # The width of a small cluster is uncertain, so it is averaged with that of all.
        trust = partition.counts / (partition.counts + 0.3 * self._typical(known))
        within = trust * partition.within + (1 - trust) * partition.pooled
        noise = self._relative_noise(self._shares[t] * (1 - _COUNT_PART))
        stretch = min(max((_NU / noise) ** (_FAST if noise < _NU else _SLOW), _NARROW), _WIDE)
        return replace(known, radii=stretch * np.sqrt(np.maximum(within, 1e-6)))

    def _move(
        self, known: GridKnown, released: Mapping[str, NoisyBlock]
    ) -> tuple[GridKnown, Floats]:
        """Correct the surrogate by the difference of the sums, and move the centres to its means.

        Points and records are clipped alike, so clipping does not bias their difference. Also
        returns the standard deviation of each mean by the noise of this round.
        """
        d, typical = self.n_features, self._typical(known)
        before = self._partition(known)
        radii = np.maximum(known.radii, 1 / self.one)
        count_std = released["counts"].in_records(self.frac_bits)[1]
        floor = 0.7 * min(1.0, 0.2 * typical / max(count_std, 1e-9))
        merged, sums, sum_std = read_lloyd(self, known, released, floor)
        counts = np.maximum(merged.counts, 0.3 * before.counts)
        expected, follows = before.answer(radii)
        lacking = sums - expected * (counts / before.counts)[:, None]
        factors = follows * counts / radii
        gain, error = gains(lacking, factors, known.error_std**2, sum_std)

        surrogate = before.corrected(lacking * (gain / factors)[:, None], counts)
        centres = surrogate.improved(known.centres)
        drift = ((centres - before.means(surrogate)) ** 2).sum(axis=1) / d
        after = replace(merged, surrogate=surrogate, centres=np.clip(centres, -1, 1))
        fresh = self._partition(after).counts
        stds = merged.counts_std, _DRIFT * (fresh - counts), 0.02 * counts
        after = replace(
            after,
            error_std=np.sqrt(error + _DRIFT**2 * drift),
            counts=fresh,
            counts_std=np.sqrt(sum(std**2 for std in stds)),
        )
        # The interval at a bound of the box is cut, and would hide a part of the noise.
        of_sums = (radii * sum_std / counts)[:, None]
        cut = (after.high - after.low) / (2 * INTERVAL_95["gaussian"])
        return after, np.maximum(cut, of_sums)

    def _judged(self, known: GridKnown, last_std: Floats) -> GridKnown:
        """Set the verdicts, and replace intervals given the last centres by those of k-means."""
        judgement = judge(
            known.surrogate,
            known.centres,
            path_std=known.error_std,
            last_std=last_std,
            moved=known.moved,
            unseen_std=known.unseen_std,
            size_errors=known.counts_std / known.counts,
            clear=above_noise(known.sizes, known.size_half_width),
            public_seed=self.public_seed,
        )
        # A count within its noise is no divisor: its interval stays the box.
        unknown = known.high - known.low >= 2
        half = np.where(unknown, 2.0, judgement.half_width)
        return replace(
            known,
            low=np.maximum(known.centres - round_up(half, self.frac_bits), -1),
            high=np.minimum(known.centres + round_up(half, self.frac_bits), 1),
            size_half_width=np.hypot(known.size_half_width, SIZE_ERROR * np.abs(known.sizes)),
            verdict=judgement.verdict,
        )


def _before_groups(counts: Floats, noise_std: float, affordable: float) -> int:
    """Return the number of bins at the low end that may be cut before a small group is lost.

    The cost of records is the sum of their squared distances to the box. Only bins that, with both
    neighbours, have more records than noise are believed.
    """
    three = np.convolve(counts, np.ones(3), "same")
    seen = np.where(three > _SEEN * sqrt(3) * noise_std, np.maximum(counts, 0), 0)
    bins = np.arange(len(counts))
    away = np.maximum(bins[:, None] - bins + 0.5, 0)  # of each bin, from the end of each box
    costs = (away**2 * seen).sum(axis=1)
    return int(np.searchsorted(costs, affordable, side="right"))


def _middles(known: GridKnown, bins: Integers | Sequence[int]) -> Integers:
    """Return the middles of equal cells of the box; the last column varies fastest."""
    axes = [
        low + (np.arange(m) + 0.5) * ((high - low) / m)
        for low, high, m in zip(known.box_low, known.box_high, bins, strict=True)
    ]
    return on_lattice(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes)))
