"""Quality of released centres: spread, separation and silhouettes of the records around them.

There are two rounds. In the first, each record counts in one of a few public rings of distances to
its nearest centre. The released counts give the reach of the records. In the second round,
distances are clipped to that reach, so that their noise is in proportion to the clusters.

References
----------
.. [R87] Rousseeuw, "Silhouettes: a graphical aid to the interpretation and validation of cluster
   analysis", Journal of Computational and Applied Mathematics 20, 1987.
.. [HVC06] Hruschka, Campello and de Castro, "Evolving clusters in gene-expression data",
   Information Sciences 176, 2006: the simplified silhouette, which uses distances to centres.
.. [DB79] Davies and Bouldin, "A cluster separation measure", IEEE PAMI 1, 1979.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import sqrt
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from cloister.core.arrays import Flags, Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Range, Whole, declared
from cloister.core.display import Display, Estimate
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.protocol.rows import summed
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
    Block,
    Gaussian,
    NoisyBlock,
    PublicFacts,
    Rows,
)
from cloister.tasks import interval_tables, scores
from cloister.tasks.examples import NUMBER, OTHER_NUMBER, Example
from cloister.tasks.options import build_task

Bins = Annotated[int, Range(2, 256)]
_RINGS = 32  # the radius of each is sqrt(2) times that of the one inside
_BEYOND = 1e-3  # largest share of the records beyond the reach
_WEIGHTS = {"rings": 0.2, "moments": 0.45, "silhouettes": 0.35}


@declared
class ClusterQuality(Gaussian):
    """Quality of public centres on the silos' records.

    Parameters
    ----------
    centres : tuple of tuple of int, grid steps
        At least two centres, released by an earlier job or chosen without records.
    n_bins : int, >= 2
        Number of bins of the histogram of silhouettes.

    Notes
    -----
    Distances are Euclidean in scaled units, in which every column's public range is ``[-1, 1]``.
    """

    name: ClassVar[str] = "cluster-quality"
    title: ClassVar[str] = "Quality of the clusters"
    rounds: ClassVar[int] = 2

    example: ClassVar[Example] = Example(
        (NUMBER, OTHER_NUMBER), {"centres": ((25.0, 50.0), (75.0, 150.0))}
    )

    @declared
    class Options:
        centres: Annotated[Any, "released centres in data units, a row for each"]
        n_bins: Annotated[Bins, "of silhouettes"] = 20

    n_features: Whole
    centres: tuple[tuple[int, ...], ...]
    n_bins: Bins = 20
    frac_bits: int = 16

    def __post_init__(self) -> None:
        one = 1 << self.frac_bits
        # Centres outside the box would make distances exceed the largest ring.
        fits = all(len(centre) == self.n_features for centre in self.centres)
        if len(self.centres) < 2 or not fits or np.abs(self.centres).max() > one:
            raise PlanError(
                f"centres must be at least 2 rows of {self.n_features} integers in [-{one}, "
                f"{one}], the grid of the box, got {len(self.centres)}; design the task again."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Round centres to the grid; a centre outside the box moves to its edge."""
        centres = np.asarray(options.centres, dtype=np.float64)
        finite = np.isfinite(centres).all()
        if centres.ndim != 2 or centres.shape[1] != facts.n_features or not finite:
            raise PlanError(
                f"centres must be a finite table of {facts.n_features} columns, got shape "
                f"{centres.shape}; give a row for each centre."
            )
        steps = Grid(facts.low, facts.high, facts.frac_bits).encode(centres)
        return build_task(
            cls, facts, options, centres=tuple(tuple(int(v) for v in row) for row in steps)
        )

    @cached_property
    def _places(self) -> Integers:
        return np.array(self.centres, dtype=np.int64)

    @cached_property
    def _farthest(self) -> float:
        """Largest distance of a point in the box to a centre, scaled units."""
        one = 1 << self.frac_bits
        return sqrt(int(((np.abs(self._places) + one) ** 2).sum(axis=1).max())) / one

    @cached_property
    def _edges(self) -> Floats:
        """Outer edges of the rings."""
        # Geometric: the scale of the clusters is unknown before the first round.
        return self._farthest * 2.0 ** (-0.5 * np.arange(_RINGS - 1, -1, -1, dtype=np.float64))

    def describe(self) -> str:
        return (
            f"Silos count records by the distance to the nearest of {len(self.centres)} public "
            "centres, sum these distances and their squares, and count records by the ratio of the "
            "distances to the nearest and the next centre; the sums are released with noise."
        )

    def start(self) -> State:
        k = len(self.centres)
        return {
            "reach": np.array([self._farthest]),  # clips no distance
            "moments": np.zeros((k, 3)),
            "silhouettes": np.zeros((k, self.n_bins)),
            "noise": np.zeros(2),
        }

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the block of rings, or those of moments and silhouettes of each cluster."""
        k = len(self.centres)
        if t == 0:
            return (Block.counting("rings", (_RINGS,), _WEIGHTS["rings"]),)
        return (
            # A record adds 1, distance and squared distance, each at most one, to one cluster.
            Block.counting("moments", (k, 3), _WEIGHTS["moments"], 3),
            Block.counting("silhouettes", (k, self.n_bins), _WEIGHTS["silhouettes"]),
        )

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return the ring of each record, or its moments and its silhouette."""
        labels, nearest, second = self._nearest(records)
        one = 1 << COUNT_BITS
        if t == 0:
            # Clipped, so that every record is in exactly one ring.
            rings = np.minimum(np.searchsorted(self._edges, nearest), _RINGS - 1)
            return (Rows.at([rings], [one]),)
        # A hostile state may have any reach, and the bounds hold for each above 0.
        reach = max(int(state["reach"][0]), 1) / (1 << self.frac_bits)
        share = np.minimum(nearest / reach, 1.0)
        # Truncated, so that rounding never exceeds the bound.
        moments = np.trunc(np.stack([np.ones(len(share)), share, share**2], axis=1) * one)
        # The second distance is 0 only if both are.
        silhouette = np.where(second > 0, 1 - nearest / np.where(second > 0, second, 1.0), 0.0)
        bins = np.clip((silhouette * self.n_bins).astype(np.int64), 0, self.n_bins - 1)
        return (
            Rows(3 * labels, moments.astype(np.int64)),
            Rows.at([labels * self.n_bins + bins], [one]),
        )

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the counts and sums of records, in fine units."""
        # Rows of this class: a twin in an audit has no rows, so that only its kernel is used.
        own = ClusterQuality.rows(self, t, state, records)
        pairs = zip(own, self.blocks(t), strict=True)
        return np.concatenate([summed(rows, block) for rows, block in pairs])

    def _nearest(self, records: Records) -> tuple[Integers, Floats, Floats]:
        """Return the nearest centre and the distances to it and to the next, scaled units."""
        rows = records.astype(np.int64)
        # Exact integers: a record's cluster does not depend on the table or the machine.
        squared = np.stack([((rows - c) ** 2).sum(axis=1) for c in self._places], axis=1)
        labels = squared.argmin(axis=1).astype(np.int64)
        first, second = np.partition(squared, 1, axis=1)[:, :2].T
        one = 1 << self.frac_bits
        return labels, np.sqrt(first) / one, np.sqrt(second) / one

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Set the reach of the records, or the noisy tables."""
        kept = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        if t == 0:
            rings = released["rings"]
            return {**kept, "reach": np.array([self._reach(rings)])}
        tables = {name: block.in_records() for name, block in released.items()}
        return {
            "reach": kept["reach"],
            **{name: counts for name, (counts, _) in tables.items()},
            "noise": np.array([std for _, std in tables.values()]),
        }

    def _reach(self, rings: NoisyBlock) -> float:
        """Return the edge of the innermost ring with possibly no record outside."""
        counts, std = rings.in_records()
        outer = np.append(np.cumsum(counts[::-1])[::-1], 0.0)  # records from each ring outwards
        noise = std * np.sqrt(np.arange(_RINGS, -1, -1))
        if (outer <= INTERVAL_95["gaussian"] * noise).all():
            return float(self._edges[-1])  # no ring exceeds its noise, so no distance is clipped
        small = outer[1:] <= np.maximum(_BEYOND * max(outer[0], 0.0), noise[1:])
        # From the outermost ring inwards, while the rings outside are within the noise.
        first = _RINGS - int(np.argmin(np.append(small[::-1], False)))
        return float(self._edges[min(first, _RINGS - 1)])

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the 95 % margin of error of each cluster's size, in records."""
        half_width = INTERVAL_95["gaussian"] * noise_std / (1 << COUNT_BITS)
        return {"size_half_width": np.array([half_width])}

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return measures with the ends of their 95 % noise intervals.

        Returns
        -------
        dict
            Of shape (1,): ``nicv``, the mean squared distance to the nearest centre,
            ``silhouette``, the mean simplified silhouette [HVC06]_, and ``davies_bouldin`` [DB79]_.
            The latter is over the clusters with sizes above their noise, or all if these are fewer
            than two. ``cluster_silhouette`` of shape (n_clusters,). Each of these has ``..._low``
            and ``..._high``. ``sizes`` of shape (n_clusters,), ``size_half_width``. ``silhouettes``
            of shape (n_clusters, n_bins), noisy counts. ``reach``, at which distances were clipped.
            All distances are in scaled units.
        """
        tables = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        reach = float(tables["reach"][0])
        std, cell_std = (float(v) for v in tables["noise"])
        sizes, distances, squares = tables["moments"].T
        k, v = len(sizes), std**2  # independent noise: a sum over clusters has k variances
        nicv = scores.ratio(squares.sum(), sizes.sum(), (k * v, k * v, 0.0))
        mean_distance = scores.ratio(distances, sizes, (v, v, 0.0))
        measures = {
            "nicv": scores.scaled(nicv, reach**2),
            "davies_bouldin": self._davies_bouldin(
                scores.scaled(mean_distance, reach), sizes > INTERVAL_95["gaussian"] * std
            ),
            "silhouette": self._silhouette(tables["silhouettes"].sum(axis=0), k * cell_std**2),
            "cluster_silhouette": self._silhouette(tables["silhouettes"], cell_std**2),
        }
        return {
            **scores.as_results(measures),
            "sizes": sizes,
            "size_half_width": np.array([INTERVAL_95["gaussian"] * std]),
            "silhouettes": tables["silhouettes"],
            "reach": tables["reach"],
        }

    def _silhouette(self, cells: Floats, variance: float) -> Estimate:
        """Return the mean silhouette, with each bin represented by its middle."""
        middles = (np.arange(self.n_bins) + 0.5) / self.n_bins
        noise = variance * (middles**2).sum(), variance * self.n_bins, variance * middles.sum()
        return scores.ratio(cells @ middles, cells.sum(axis=-1), noise)

    def _davies_bouldin(self, distance: Estimate, seen: Flags) -> Estimate:
        """Return the mean of the worst ratio of widths to separation, over the clusters in `seen`.

        If `seen` has fewer than two clusters, the mean is over all, whose widths are mostly noise.
        The limits are those of a sum of independent terms, for the released worst neighbours.
        """
        chosen = np.flatnonzero(seen if seen.sum() > 1 else np.ones_like(seen))
        centres = self._places[chosen] / (1 << self.frac_bits)
        apart = np.sqrt(((centres[:, None] - centres[None]) ** 2).sum(axis=2))
        # Equal centres count as one grid step apart, since a separation of 0 has no ratio.
        apart = np.maximum(apart, 1 / (1 << self.frac_bits))
        np.fill_diagonal(apart, np.inf)  # no cluster is its own neighbour
        width = distance.values[chosen]
        worst = ((width[:, None] + width[None]) / apart).argmax(axis=1)
        rows = np.arange(len(chosen))
        inverse = 1 / apart[rows, worst]
        weights = (inverse + np.bincount(worst, weights=inverse, minlength=len(chosen))) / len(
            chosen
        )
        below = sqrt(float((weights**2 * (width - distance.low[chosen]) ** 2).sum()))
        above = sqrt(float((weights**2 * (distance.high[chosen] - width) ** 2).sum()))
        value = weights @ width
        if np.isnan(value):
            return Estimate(value, np.zeros(()), np.full((), np.inf))
        return Estimate(value, np.maximum(value - below, 0.0), value + above)

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return a table of the measures and the silhouette of each cluster."""
        measures = {
            "mean squared distance (NICV)": "nicv",
            "simplified silhouette": "silhouette",
            "Davies-Bouldin index": "davies_bouldin",
        }
        note = "Distances are in scaled units, in which every column is in [-1, 1]."
        silhouettes = interval_tables.cells_of(results, "cluster_silhouette")
        return (
            interval_tables.table_of_measures(
                "Quality of the clusters", measures, results, f"{note} {interval_tables.INTERVALS}"
            ),
            interval_tables.bars_of(
                "Silhouette of each cluster",
                (f"cluster {i}" for i in range(len(silhouettes))),
                silhouettes,
                f"0: equally near to another centre, 1: far from the others. "
                f"{interval_tables.INTERVALS}",
                "silhouette",
            ),
        )
