"""``SelectK``: private k-means that also chooses the number of clusters, at no extra cost.

``auto`` releases noisy counts of cells before it needs the number of clusters. So the number can
be chosen from the same counts (:mod:`.gap_statistic`), and the rest of the budget is spent on the
chosen clusters. All blocks are those of ``auto`` for the largest number, so messages do not reveal
the choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, State
from cloister.core.declared import Positive, Range, Whole, declared
from cloister.core.display import Curve, Display, Estimate
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import Block, Gaussian, NoisyBlock, PublicFacts, Rows
from cloister.tasks.clustering.auto_grid import GridKnown, GridRoute
from cloister.tasks.clustering.auto_mean import MeanRoute
from cloister.tasks.clustering.auto_pca import DirectionsKnown, PcaRoute
from cloister.tasks.clustering.auto_rounds import MovingCentres
from cloister.tasks.clustering.auto_routes import (
    check_numbers,
    described,
    forecast_of,
    planned_mu,
    results_of,
    route_of,
)
from cloister.tasks.clustering.clusters import Clustering
from cloister.tasks.clustering.gap_statistic import BAND, LEAST, gap_curve
from cloister.tasks.clustering.synopsis import cell_centres
from cloister.tasks.options import Dates, PublicSeed, build_task
from cloister.tasks.state import decode_state, encode_state

MOST_CLUSTERS = 256
NumberOfClusters = Annotated[int, Range(1, MOST_CLUSTERS)]
_ROWS = {
    "widths",
    "start",
    "error_std",
    "moved",
    "unseen_std",
    "verdict",
    *(field.name for field in fields(MovingCentres)),
}
"""Names of the arrays in the state of `auto` with a row per cluster."""


@dataclass(frozen=True)
class Choice:
    """The number of clusters, 0 before the choice, and the curve of the choice."""

    gap: Floats
    gap_low: Floats
    gap_high: Floats
    objective: Floats
    k: int


@declared
class SelectK(Clustering, Gaussian):
    """``auto`` for a number of clusters between two public numbers, chosen from released counts.

    A record contributes in each round the same as to ``auto`` with `max_clusters` and the same
    public state. So sensitivity and cost are equal (docs/proofs/select_k.md). Unused centres
    coincide with the first one, and a record prefers the first of several nearest centres.
    """

    name: ClassVar[str] = "selectk"
    later: ClassVar[frozenset[str]] = frozenset({"dates"})
    """Fields that older plans lack; plans leave them out at their defaults."""

    @declared
    class Options:
        min_clusters: Annotated[NumberOfClusters, "fewest clusters to choose from"] = 2
        max_clusters: Annotated[NumberOfClusters, "most clusters to choose from"] = 12
        public_seed: PublicSeed = 0

    min_clusters: NumberOfClusters
    max_clusters: NumberOfClusters
    n_features: Whole
    nominal_n: Whole
    mu: Positive
    frac_bits: int = 16
    public_seed: int = 0
    dates: Dates = ()

    def __post_init__(self) -> None:
        if not self.min_clusters < self.max_clusters:
            raise PlanError(
                f"min_clusters must be below max_clusters, got {self.min_clusters} and "
                f"{self.max_clusters}; for one number of clusters use 'auto' with n_clusters."
            )
        check_numbers(self.max_clusters, self.n_features, self.mu, self.frac_bits)

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        return build_task(cls, facts, options, mu=planned_mu(facts))

    @cached_property
    def _route(self) -> GridRoute | PcaRoute | MeanRoute:
        """The route of ``auto`` with the largest number of clusters, without candidates.

        Its histogram covers the whole box.
        """
        return route_of(
            self.max_clusters,
            self.n_features,
            self.nominal_n,
            self.mu,
            self.frac_bits,
            self.public_seed,
            # Cells at the edge of the bulk hold its tails, which would look like clusters.
            whole_box=True,
        )

    @property
    def n_clusters(self) -> int:
        """Number of clusters in the blocks, the largest candidate."""
        return self.max_clusters

    @cached_property
    def candidates(self) -> Integers:
        """Numbers of clusters to choose from, ascending."""
        return np.arange(self.min_clusters, self.max_clusters + 1)

    @property
    def rounds(self) -> int:
        """Number of noisy sums: those of ``auto``."""
        return self._route.rounds

    def describe(self) -> str:
        return (
            f"The number of clusters, {self.min_clusters} to {self.max_clusters}, is chosen from "
            "noisy counts of cells that the clustering releases anyway; messages always have the "
            f"length for the largest number. The clustering: {described(self._route)}"
        )

    def start(self) -> State:
        """Return the state before the first release and the choice."""
        return {**self._route.start(), **encode_state(self._no_choice(0))}

    def _no_choice(self, k: int) -> Choice:
        gap, low, high, objective = np.zeros((4, len(self.candidates)))
        return Choice(gap, low, high, objective, k)

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the layout of round `t`, with room for the largest number of clusters."""
        return self._route.blocks(t)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        return self._route.rows(t, state, records)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        return self._route.contribute(t, state, records)

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Choose the number of clusters after the release of the cells; update that many."""
        choice = decode_state(Choice, state, self.frac_bits)
        # The mean route releases no cells, so it takes the smallest number in its first round.
        if not choice.k and ("cells" in released or isinstance(self._route, MeanRoute)):
            choice = self._choose(state, released)
        # Rows beyond the choice are padding: a change of them must not move a chosen centre.
        k, fields_of_choice = choice.k or self.max_clusters, encode_state(choice)
        inner = {name: state[name] for name in state if name not in fields_of_choice}
        moved = self._route.update(t, _first_rows(inner, k), self._first_blocks(released, k))
        return {**_fill_rows(_first_rows(moved, k), self.max_clusters), **fields_of_choice}

    def _choose(self, state: GridState, released: Mapping[str, NoisyBlock]) -> Choice:
        """Return the curve and the chosen number; the smallest if there is no curve."""
        spans, bins = self._cells_of(state)
        # A single cell has no structure to compare with a reference.
        if not bins.size or bins.prod() == 1:
            return self._no_choice(self.min_clusters)
        points = cell_centres(spans, bins)
        counts, noise_std = released["cells"].in_records(self.frac_bits)
        curve = gap_curve(
            points,
            counts[: len(points)],  # the other elements are padding
            noise_std=noise_std,
            total=float(self.nominal_n),
            cell_variance=float(((2 * spans / bins) ** 2).sum()) / 12,  # uniform in each cell
            candidates=self.candidates,
            public_seed=self.public_seed,
        )
        return Choice(curve.gap, curve.low, curve.high, curve.objective, int(curve.chosen))

    def _cells_of(self, state: GridState) -> tuple[Floats, Integers]:
        """Return half the width of the histogram and its bins along each axis; may be empty."""
        route = self._route
        if isinstance(route, MeanRoute):
            return np.zeros(0), np.zeros(0, dtype=np.int64)
        if isinstance(route, GridRoute):
            return route.histogram_of(decode_state(GridKnown, state, self.frac_bits))
        known = decode_state(DirectionsKnown, state, self.frac_bits)
        return known.half_spans[known.bins > 0], known.bins[known.bins > 0]

    def _first_blocks(self, released: Mapping[str, NoisyBlock], k: int) -> dict[str, NoisyBlock]:
        """Return a round's blocks with the rows of the first `k` clusters only."""
        rows = {name: released[name] for name in ("sums", "counts") if name in released}
        short = {name: NoisyBlock(b.values[:k], b.noise_std) for name, b in rows.items()}
        return {**released, **short}

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return expected half-widths if the largest number of clusters is chosen."""
        return forecast_of(self._route, noise_std, nominal_n, grid)

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        """Return the number of clusters, the curve of the choice, and the results of ``auto``.

        ``k`` has shape (1,). Before the choice it is 0 and the only result. ``candidates``,
        ``gap``, ``gap_low``, ``gap_high`` and ``objective`` have shape (n_candidates,). The other
        results are those of other k-means tasks, for the chosen number of clusters.
        """
        choice = decode_state(Choice, state, self.frac_bits)
        if not choice.k:
            return {"k": np.zeros(1)}
        return {
            "candidates": self.candidates.astype(np.float64),
            **encode_state(choice),
            **results_of(self._route, _first_rows(state, choice.k), grid),
        }

    def displays(
        self, results: Mapping[str, Floats], columns: tuple[str, ...]
    ) -> tuple[Display, ...]:
        """Return the curve and the displays of centres."""
        k = float(results["k"][0])
        note = (
            "Gap: reduction of the log objective relative to no clusters, both with noise. The "
            f"band covers {BAND:.0%} of its variation by noise and sampling. The choice is the "
            "smallest number whose gap equals the largest gap, up to its uncertainty or "
            f"{LEAST:.0%}."
        )
        if not results["gap_high"].any():
            note = "No structure exceeds the noise, so the smallest number was chosen."
        elif k == self.max_clusters:
            note += f" {k:.0f} is the largest number allowed: there may be more clusters."
        if not self._route.judges:
            note += (
                " In so many columns this choice determines no cluster; `auto` with the chosen "
                "number may, in another release."
            )
        curve = Curve(
            "How many clusters",
            results["candidates"],
            Estimate.of(results, "gap", axes=("clusters",), unit="gap"),
            note,
            chosen=k,
        )
        return curve, *super().displays(results, columns)


def _first_rows(state: Mapping[str, Any], k: int) -> dict[str, Any]:
    """Return a state with the rows of the first `k` clusters only."""
    return {name: value[:k] if name in _ROWS else value for name, value in state.items()}


def _fill_rows(state: State, n_rows: int) -> dict[str, Floats]:
    """Add unused clusters at the position of the first, so that they receive no record."""
    rows = np.arange(n_rows)  # ties go to the smaller index, see `lloyd_kernel`
    return {
        name: value[np.where(rows < len(value), rows, 0)] if name in _ROWS else value
        for name, value in state.items()
    }
