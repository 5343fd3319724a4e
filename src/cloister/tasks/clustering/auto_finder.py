"""`auto` with many records for each cluster: many candidates, merged, split and reduced to k.

The histogram along leading directions is clustered into more candidates than clusters. A few rounds
release the sum, the count and the second moments of each candidate. Candidates that are cheap to
merge are set free to split others. The noisy candidates are then a small public table of weighted
points, and clustering it costs no budget. The last rounds are those of Lloyd.

A small group that is far from all others is clipped at its candidate, and no candidate moves there.
So a record outside the box of the candidates counts in a cell of its column instead. Cells with
counts above their noise are further points of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import floor, pi, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, State
from cloister.protocol.task import Block, NoisyBlock, Rows
from cloister.tasks.clipped import (
    clip_in_place,
    of_columns,
    sum_clipped_near,
    sum_moments_near,
)
from cloister.tasks.clustering import weighted
from cloister.tasks.clustering.auto_pca import (
    DIRECTIONS_RELEASES,
    GRAM_BITS,
    Directions,
    DirectionsKnown,
    divided,
    signal_along,
)
from cloister.tasks.clustering.auto_rounds import (
    LLOYD_RELEASES,
    Route,
    growing,
    lloyd_rows,
    read_lloyd,
    stretch_of,
    unclipped,
    unit_block,
)
from cloister.tasks.clustering.lloyd_kernel import nearest_centres
from cloister.tasks.clustering.synopsis import (
    drop_empty_cells,
    nearest,
    project_to_simplex,
    squared_distances,
)
from cloister.tasks.columns import bins_of
from cloister.tasks.moments import (
    PRODUCT,
    SQUARE,
    n_products,
    products,
    products_by_label,
    unpack_products,
    with_one_sign,
)
from cloister.tasks.state import decode_state, encode_state

# The constants below were tuned on public data sets. Privacy does not depend on any of them
# (docs/proofs/auto.md).
_SHARES = {
    "mean": 0.04,
    "radius": 0.015,
    "shift": 0.03,
    "gram": 0.12,
    "cells": 0.12,
    "wide": 0.42,
    "narrow": 0.255,
}
_WIDE, _NARROW = 3, 5  # rounds of candidates and of centres
_PARTS = {"sums": 0.45, "counts": 0.20, "moments": 0.35}  # of a round with second moments
_LAST_PARTS = {"sums": 0.90, "counts": 0.10}
_GROWTH = 1.2
_CELLS = 0.28
_SAMPLES = 4000
_AXES = 10  # most axes of the histogram
_FLOOR = 0.7  # smallest count, in standard deviations of its noise
_SIGNAL_AXES = 6  # directions in which most of the signal is expected
_RECORDS = 2.0  # records of a candidate over the noise of its sum
_PER_CLUSTER, _LEAST, _MOST = 8, 100, 640  # candidates
_MOST_AXES, _LEAST_AXES = 16, 4  # of the second moments
_MOST_WORDS = 1 << 15  # of second moments of all candidates
_MOST_VALUES = 1 << 17  # coordinates of all candidates
_REACH_NOISE, _REACH_GROWTH, _MOST_REACH = 0.1, 0.4, 3.0  # radius of second moments
_RESTARTS = 16
_NARROWEST, _WIDEST = 0.15, 6.0  # mean squared distance of a cluster over that of all
_SPLIT = 2 / pi  # share of a direction's variance that two halves of a Gaussian explain
_PAYS = 0.7  # smallest gain of a split over the cost of the merge that permits it
_LEFT = 0.3  # smallest share of the mean squared distance that a split leaves
_MARGIN = 2.0  # of the candidates' box, in root mean square distances
_FAR_BINS = 8  # of a column, for the records outside the box
_FALSE = 0.1  # expected number of cells that noise alone makes a point
_WORTH = 0.5  # of a cell's count: its records are not all at one point


@dataclass(frozen=True)
class FinderKnown(DirectionsKnown):
    """The public state of the route, in grid coordinates."""

    reach: Floats  # of each centre: second moments are clipped at it
    candidates: Floats
    candidate_radii: Floats  # sums are clipped at them
    candidate_reach: Floats
    margin: float  # of the candidates' box
    far: Floats  # records of each cell outside the box, added up over the rounds


@dataclass(frozen=True)
class _Round:
    """A round of candidates or of centres: their number, and the shares of its blocks."""

    n_centres: int
    shares: Mapping[str, float]
    of_candidates: bool

    @property
    def has_moments(self) -> bool:
        return "moments" in self.shares


@dataclass(frozen=True)
class _Places:
    """The centres of a round, with the radii of its sums and of its second moments.

    They are integers in grid steps for records, and floats in grid coordinates for estimates.
    """

    centres: Any
    radii: Any
    reach: Any

    @classmethod
    def of(cls, at: _Round, state: GridState) -> _Places:
        """Return the places of a round in grid steps."""
        names = ("centres", "radii", "reach")
        if at.of_candidates:
            names = ("candidates", "candidate_radii", "candidate_reach")
        centres, radii, reach = (state[name] for name in names)
        # A radius may round to 0 on the grid.
        return cls(centres, np.maximum(radii, 1), np.maximum(reach, 1))


@dataclass(frozen=True)
class FinderRoute(Route):
    """Mean, radius, second moments, histogram, rounds of candidates, rounds of centres."""

    releases = (
        f"{DIRECTIONS_RELEASES}; then, in several rounds, for each of many candidates the count of "
        "its records, the sum of their clipped differences to it and their clipped second moments, "
        "and the counts of records outside the box of all candidates by column and bin; "
        f"{LLOYD_RELEASES}, and once their clipped second moments"
    )

    # The plan -----------------------------------------------------------------------------

    @cached_property
    def _shares(self) -> dict[str, float]:
        return divided(self, _SHARES, "narrow")

    @cached_property
    def directions(self) -> Directions:
        """The first stages."""
        return Directions(
            **self.numbers,
            shares=self._shares,
            fineness=_CELLS,
            most_axes=_AXES,
            least_kept=_MOST_AXES,
        )

    @cached_property
    def _moving(self) -> tuple[_Round, ...]:
        """The rounds after those of the directions."""
        wide = self._shares["wide"] / _WIDE
        narrow = growing(self._shares["narrow"], _GROWTH, _NARROW)
        parts = (_PARTS, *[_LAST_PARTS] * (_NARROW - 1))
        return (
            *[_Round(self.n_candidates, _portions(wide, _PARTS), of_candidates=True)] * _WIDE,
            *(
                _Round(self.n_clusters, _portions(share, part), of_candidates=False)
                for share, part in zip(narrow, parts, strict=True)
            ),
        )

    @property
    def rounds(self) -> int:
        return len(self.directions.stages) + len(self._moving)

    def _round(self, t: int) -> _Round | None:
        """Return a round of candidates or centres; None before."""
        at = t - len(self.directions.stages)
        return self._moving[at] if at >= 0 else None

    @cached_property
    def n_candidates(self) -> int:
        """Number of candidates, as many as the noise permits; `n_clusters` at least."""
        k, d = self.n_clusters, self.n_features
        noise = sqrt(d) * self.noise_std(_SHARES["wide"] / _WIDE * _PARTS["sums"])
        most = min(max(_PER_CLUSTER * k, _LEAST), _MOST, _MOST_VALUES // d)
        return max(k, min(floor(self.nominal_n / (_RECORDS * noise)), most))

    @property
    def _n_far(self) -> int:
        """Number of cells for records outside the box of the candidates."""
        # As many candidates as clusters are not clustered, so nothing could be added to them.
        return _FAR_BINS * self.n_features if self.n_candidates > self.n_clusters else 0

    def _n_axes(self, at: _Round) -> int:
        """Return the number of axes of the second moments."""
        d = self.n_features
        for axes in range(min(_MOST_AXES, d), _LEAST_AXES, -1):
            if at.n_centres * (n_products(axes) + 1 + d) <= _MOST_WORDS:
                return axes
        return min(_LEAST_AXES, d)

    def _width(self, at: _Round) -> int:
        """Return the length of the vector whose products are the second moments."""
        axes = self._n_axes(at)
        return axes + (axes < self.n_features)  # the last entry is the length beside the axes

    def _radius(self, at: _Round) -> float:
        """Return the radius of sums in root mean square distances."""
        return stretch_of(self, at.n_centres, at.shares["sums"])

    def _reach(self, at: _Round) -> float:
        """Return the radius of second moments in root mean square distances."""
        if not at.has_moments:
            return 0.0
        noise = self.noise_std(at.shares["moments"]) * sqrt(self._n_axes(at))
        relative = at.n_centres * noise / self.nominal_n
        # A record far out would count with the square of its distance.
        reach: float = (relative / _REACH_NOISE) ** -_REACH_GROWTH
        return min(max(reach, 1.0), _MOST_REACH)

    def start(self) -> State:
        m = self.n_candidates
        return encode_state(
            FinderKnown(
                **self.directions.start(),
                reach=np.zeros(self.n_clusters),
                candidates=np.zeros((m, self.n_features)),
                candidate_radii=np.zeros(m),
                candidate_reach=np.zeros(m),
                margin=0.0,
                far=np.zeros(self._n_far),
            )
        )

    def blocks(self, t: int) -> tuple[Block, ...]:
        at = self._round(t)
        if at is None:
            return self.directions.blocks(self.directions.stages[t])
        shape = at.n_centres, self.n_features
        sums = unit_block("sums", shape, self.one, at.shares["sums"])
        n_counts = at.n_centres + self._n_far * at.of_candidates
        counts = Block.counting("counts", (n_counts,), at.shares["counts"], one=self.one)
        if not at.has_moments:
            return sums, counts
        unit, width = 1 << 2 * GRAM_BITS, self._width(at)
        norms = PRODUCT * width * unit, (SQUARE * unit) ** 2
        size = at.n_centres, n_products(width)
        return sums, counts, Block("moments", size, *norms, at.shares["moments"])

    # The records --------------------------------------------------------------------------

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        at = self._round(t)
        if at is None:
            return self.directions.rows(self.directions.stages[t], state, records)
        if not state["detected"].any():
            return self.directions.rows_of_mean(state, records, len(self.blocks(t)))
        places = _Places.of(at, state)
        rows = lloyd_rows({"centres": places.centres, "radii": places.radii}, records, self.one)
        if not at.has_moments:
            return rows
        labels = nearest_centres(records, places.centres)
        vectors = self._vectors(at, state, records, labels).astype(np.int64)
        values = products(vectors)
        moments = Rows(labels * values.shape[1], values)
        if at.of_candidates and self._n_far:
            outside, far = self._outside(state, records)
            labels[outside] = at.n_centres + far
        return rows[0], Rows.at([labels], [self.one]), moments

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        at = self._round(t)
        if at is None:
            return self.directions.contribute(self.directions.stages[t], state, records)
        if not state["detected"].any():
            length = sum(block.size for block in self.blocks(t))
            return self.directions.sum_of_mean(state, records, length)
        places = _Places.of(at, state)
        near = records, places.centres, places.radii, self.one
        if not at.has_moments:
            sums, counts = sum_clipped_near(*near)
            return np.concatenate([sums.ravel(), counts * self.one])
        if self._n_axes(at) == self.n_features:
            sums, counts, moments = sum_moments_near(*near, places.reach, 1 << GRAM_BITS)
        else:
            sums, counts = sum_clipped_near(*near)
            moments = products_by_label(
                nearest_centres(records, places.centres),
                at.n_centres,
                lambda rows, label: self._vectors(at, state, records[rows], label),
            )
        if at.of_candidates and self._n_far:
            outside, far = self._outside(state, records)
            labels = nearest_centres(records[outside], places.centres)
            counts = counts - np.bincount(labels, minlength=at.n_centres)
            counts = np.append(counts, np.bincount(far, minlength=self._n_far))
        return np.concatenate([sums.ravel(), counts * self.one, moments.ravel()])

    def _outside(self, state: GridState, records: Records) -> tuple[Integers, Integers]:
        """Return the records outside the box of the candidates, and the cell of each."""
        low = state["candidates"].min(axis=0) - state["margin"]
        high = state["candidates"].max(axis=0) + state["margin"]
        if (low <= -self.one).all() and (high >= self.one).all():
            none = np.zeros(0, dtype=np.int64)
            return none, none
        # Few columns have any record outside, and the others need not be compared one by one.
        least, most = (of_columns(extreme, records) for extreme in (np.minimum, np.maximum))
        beyond = np.zeros(len(records), dtype=bool)
        for j in np.flatnonzero(least < low):
            beyond |= records[:, j] < low[j]
        for j in np.flatnonzero(most > high):
            beyond |= records[:, j] > high[j]
        outside = np.flatnonzero(beyond)
        far = records[outside]
        columns = np.maximum(low - far, far - high).argmax(axis=1)
        bins = bins_of(far[np.arange(len(far)), columns], _FAR_BINS, self.frac_bits)
        return outside, columns * _FAR_BINS + bins

    def _vectors(
        self, at: _Round, state: GridState, records: Records, labels: int | Integers
    ) -> Floats:
        """Return clipped vectors whose products are the second moments; whole numbers.

        The entries are the coordinates of a record's difference to its centre along the axes. If
        there are fewer axes than columns, the last entry is the length of the rest.
        """
        places, axes = _Places.of(at, state), self._n_axes(at)
        vectors: Floats = records - places.centres[labels].astype(np.float64)
        if axes < self.n_features:
            # The partial sums of the product are exact integers: no other record changes a vector.
            along = vectors @ state["directions"][:, :axes].astype(np.float64) / float(self.one)
            rest = _squared(vectors) - _squared(along)
            vectors = np.column_stack([along, np.sqrt(np.maximum(rest, 0))])
        clip_in_place(vectors, places.reach[labels], 1 << GRAM_BITS)
        return vectors

    # The answer ---------------------------------------------------------------------------

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        known = decode_state(FinderKnown, state, self.frac_bits)
        at = self._round(t)
        if at is None:
            stage = self.directions.stages[t]
            if stage == "cells" and known.detected:
                return encode_state(self._cluster(known, released["cells"]))
            return encode_state(self.directions.update(stage, known, released))
        if not known.detected:
            return encode_state(self.directions.refined(known, released["sums"]))
        following = self._round(t + 1) if t + 1 < self.rounds else at
        assert following is not None  # rounds of candidates and centres come last
        move = self._move_candidates if at.of_candidates else self._move_centres
        return encode_state(move(at, following, known, released))

    def _cluster(self, known: FinderKnown, cells: NoisyBlock) -> FinderKnown:
        """Cluster the histogram into candidates."""
        n, m, n_cells = self.nominal_n, self.n_candidates, int(known.bins[known.bins > 0].prod())
        counts, noise_std = cells.in_records(self.frac_bits)
        counts = counts[:n_cells]  # the other elements are padding
        weights = drop_empty_cells(counts, project_to_simplex(counts, n), noise_std, n)
        points, masses, unit = self.directions.like_records(known, weights, _SAMPLES)
        seed = self.public_seed
        if m == self.n_clusters:
            places = weighted.best_centres(points, masses, m, public_seed=seed, restarts=_RESTARTS)
        else:
            places = weighted.many_centres(points, masses, m, public_seed=seed)
        labels, _ = nearest(points, places)
        sizes = np.bincount(labels, masses, minlength=m) * unit
        between = float((sizes[:, None] * places**2).sum()) / n
        # The difference of two noisy numbers may be too small or negative.
        within = max(known.within - between, 0.2 * known.within)
        candidates = known.mean + places @ known.directions[:, : places.shape[1]].T
        known = replace(known, within=within)
        return self._with_candidates(self._moving[0], known, candidates, np.full(m, within))

    def _with_candidates(
        self, at: _Round, known: FinderKnown, candidates: Floats, squares: Floats
    ) -> FinderKnown:
        """Return the state before a round of candidates."""
        deviations = np.sqrt(squares)
        return replace(
            known,
            candidates=np.clip(candidates, -1, 1),
            candidate_radii=self._radius(at) * deviations,
            candidate_reach=self._reach(at) * deviations,
            margin=_MARGIN * sqrt(known.within),
        )

    def _with_centres(self, at: _Round, known: FinderKnown, centres: Floats) -> FinderKnown:
        """Return the state before a round of centres."""
        deviations = np.full(len(centres), sqrt(known.within))
        return replace(
            known,
            centres=np.clip(centres, -1, 1),
            radii=self._radius(at) * deviations,
            reach=self._reach(at) * deviations,
        )

    def _move_candidates(
        self, at: _Round, following: _Round, known: FinderKnown, released: Mapping[str, NoisyBlock]
    ) -> FinderKnown:
        places = _Places(known.candidates, known.candidate_radii, known.candidate_reach)
        noisy = self._moved(at, known, places, released)
        counts, count_std = released["counts"].in_records(self.frac_bits)
        known = replace(
            known,
            within=_mean(noisy.squares, noisy.counts),
            far=known.far + counts[at.n_centres :],
        )
        if not following.of_candidates and at.n_centres > self.n_clusters:
            return self._reduced(following, known, noisy, count_std)
        centres, squares = exchanged(noisy)
        if following.of_candidates:
            return self._with_candidates(following, known, centres, squares)
        return self._with_centres(following, known, centres)

    def _reduced(
        self, following: _Round, known: FinderKnown, noisy: Noisy, count_std: float
    ) -> FinderKnown:
        """Cluster the candidates and the groups outside their box: a table of weighted points."""
        places, counts = _far_groups(known, count_std)
        points = np.vstack([noisy.centres, places])
        weights = project_to_simplex(np.append(noisy.counts, counts), self.nominal_n)
        found = weighted.best_centres(
            points,
            weights,
            self.n_clusters,
            public_seed=self.public_seed,
            restarts=_RESTARTS,
        )
        _, squares = nearest(points, found)
        squares += np.append(noisy.squares, np.full(len(places), known.within))
        within = float(weights @ squares) / self.nominal_n
        return self._with_centres(following, replace(known, within=within), found)

    def _move_centres(
        self, at: _Round, following: _Round, known: FinderKnown, released: Mapping[str, NoisyBlock]
    ) -> FinderKnown:
        noisy = self._moved(at, known, _Places(known.centres, known.radii, known.reach), released)
        # Counts are not merged with earlier ones, which may be those of other clusters.
        known = replace(known, counts_std=np.full(len(noisy.counts), float(self.nominal_n)))
        known, _, _ = read_lloyd(self, known, released, _FLOOR)
        if not at.has_moments:
            return self._with_centres(following, known, noisy.centres)
        widths = np.sqrt(noisy.squares / self.n_features)
        known = replace(known, within=_mean(noisy.squares, noisy.counts), widths=widths)
        return self._with_centres(following, known, exchanged(noisy)[0])

    def _moved(
        self, at: _Round, known: FinderKnown, places: _Places, released: Mapping[str, NoisyBlock]
    ) -> Noisy:
        """Return the centres after the signal of a round, with the second moments around them."""
        d, one = self.n_features, self.one
        sums, sum_std = released["sums"].in_records(self.frac_bits)
        fresh, count_std = released["counts"].in_records(self.frac_bits)
        counts = np.maximum(fresh[: at.n_centres], _FLOOR * count_std)
        factors = counts / np.maximum(places.radii, 1 / one) * unclipped(self._radius(at))
        most = max(_SIGNAL_AXES, self.n_clusters - 1)
        signal = signal_along(
            sums,
            known.directions[:, : min(known.detected, most)],
            factors=factors,
            noise_std=sum_std,
            within=known.within,
        )
        steps = signal / factors[:, None]
        n_axes = self._n_axes(at) if at.has_moments else 0
        noisy = Noisy(
            centres=np.clip(places.centres + steps, -1, 1),
            counts=counts,
            squares=np.full(at.n_centres, known.within),
            axes=known.directions[:, :n_axes] if n_axes < d else np.eye(d),
            moments=np.zeros((at.n_centres, n_axes, n_axes)),
            moment_noise=np.zeros(at.n_centres),
            centre_noise=d * (sum_std / factors) ** 2,
        )
        if not at.has_moments:
            return noisy
        unit = np.maximum(places.reach, 1 / one) ** 2 / (1 << 2 * GRAM_BITS)
        block = released["moments"]
        gram = unpack_products(block.values.astype(np.float64), self._width(at))
        gram *= unit[:, None, None]
        noise = block.noise_std / SQUARE * unit
        along = steps @ noisy.axes
        shift = counts[:, None, None] * along[:, :, None] * along[:, None]
        return replace(
            noisy,
            squares=_mean_squares(gram, noise, counts, known.within),
            moments=gram[:, :n_axes, :n_axes] - shift,
            moment_noise=noise,
        )

    def spreads(self, state: GridState) -> Floats:
        """Return the standard deviation of each cluster in a column."""
        return decode_state(FinderKnown, state, self.frac_bits).widths


def _portions(share: float, parts: Mapping[str, float]) -> dict[str, float]:
    return {name: share * part for name, part in parts.items()}


def _squared(vectors: Floats) -> Floats:
    return np.asarray(np.einsum("ij,ij->i", vectors, vectors))


def _mean(values: Floats, counts: Floats) -> float:
    return float(counts @ values) / float(counts.sum())


def _mean_squares(gram: Floats, noise: Floats, counts: Floats, within: float) -> Floats:
    """Return the mean squared distances of clusters, shrunk to their mean by their noise."""
    traces = np.einsum("kii->k", gram) / counts
    noise = noise * sqrt(gram.shape[1]) / counts
    pool = max(_mean(traces, counts), 0.05 * within)
    variance = max(float(((traces - pool) ** 2 - noise**2).mean()), 0.02 * pool**2)
    shrunk = pool + variance / (variance + noise**2) * (traces - pool)
    return np.asarray(np.clip(shrunk, _NARROWEST * pool, _WIDEST * pool))


def _far_groups(known: FinderKnown, count_std: float) -> tuple[Floats, Floats]:
    """Return a point and a weight for each cell outside the candidates' box above its noise.

    Parameters
    ----------
    count_std : float
        Noise of a cell's count in one round.
    """
    least = NormalDist().inv_cdf(1 - _FALSE / len(known.far)) * count_std * sqrt(_WIDE)
    cells = np.flatnonzero(known.far > least)
    columns, bins = np.divmod(cells, _FAR_BINS)
    points = np.tile(known.mean, (len(cells), 1))  # the other columns are not known
    points[np.arange(len(cells)), columns] = (2 * bins + 1) / _FAR_BINS - 1
    return points, _WORTH / _WIDE * known.far[cells]


# Merges and splits ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Noisy:
    """Clusters with their second moments, as estimated from noisy sums.

    Parameters
    ----------
    centres : ndarray of shape (n_clusters, n_features)
    counts : ndarray of shape (n_clusters,), positive
    squares : ndarray of shape (n_clusters,)
        Mean squared distance of a record to its centre.
    axes : ndarray of shape (n_features, n_axes)
        Orthonormal columns.
    moments : ndarray of shape (n_clusters, n_axes, n_axes)
        Sums of products of the records' differences to their centre, along the axes.
    moment_noise : ndarray of shape (n_clusters,)
        Standard deviation of the noise in the diagonal of the moments.
    centre_noise : ndarray of shape (n_clusters,)
        Expected squared length of the noise of a centre.
    """

    centres: Floats
    counts: Floats
    squares: Floats
    axes: Floats
    moments: Floats
    moment_noise: Floats
    centre_noise: Floats


def exchanged(noisy: Noisy) -> tuple[Floats, Floats]:
    """Return centres and squares after all merges that pay for a split elsewhere.

    Each cluster is merged or split once at most.
    """
    centres, squares, counts = noisy.centres.copy(), noisy.squares.copy(), noisy.counts
    variances, vectors = np.linalg.eigh(noisy.moments)
    widest = with_one_sign(vectors[:, :, -1])
    # The largest eigenvalue of the noise alone is near this edge.
    edge = 2 * noisy.moment_noise * sqrt(noisy.axes.shape[1] / 2)
    gains = _SPLIT * np.maximum(variances[:, -1] - edge, 0)
    costs = _merge_costs(noisy)
    allowed = costs.copy()  # infinite for a pair of which one is not free
    free = np.ones(len(centres), dtype=bool)
    for split in np.argsort(-gains, kind="stable").tolist():
        if not gains[split]:
            break
        if not free[split]:
            continue
        free[split] = False
        allowed[split] = allowed[:, split] = np.inf
        i, j = map(int, np.unravel_index(allowed.argmin(), allowed.shape))
        if gains[split] < _PAYS * allowed[i, j]:  # never if no pair is left
            break
        free[[i, j]] = False
        allowed[[i, j]] = allowed[:, [i, j]] = np.inf
        kept, moved = (i, j) if counts[i] >= counts[j] else (j, i)
        both = counts[i] + counts[j]
        merged = counts[i] * squares[i] + counts[j] * squares[j] + costs[i, j]
        centres[kept] = (counts[i] * centres[i] + counts[j] * centres[j]) / both
        squares[kept] = merged / both
        explained = gains[split] / max(counts[split], 1.0)
        step = sqrt(explained) * (noisy.axes @ widest[split])
        centres[moved] = np.clip(centres[split] + step, -1, 1)
        centres[split] = np.clip(centres[split] - step, -1, 1)
        squares[[split, moved]] = max(squares[split] - explained, _LEFT * squares[split])
    return centres, squares


def _merge_costs(noisy: Noisy) -> Floats:
    """Return the cost of merging each pair, without the part that noise explains."""
    apart = squared_distances(noisy.centres, noisy.centres)
    noise = noisy.centre_noise[:, None] + noisy.centre_noise
    apart -= np.minimum(noise, apart / 2)
    counts = noisy.counts
    costs: Floats = apart * counts[:, None] * counts / (counts[:, None] + counts)
    np.fill_diagonal(costs, np.inf)
    return costs
