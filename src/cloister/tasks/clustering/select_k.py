"""``SelectK``: private k-means that also chooses the number of clusters, at no extra cost.

``auto`` releases noisy counts of cells before it needs the number of clusters. So that number can
be chosen from the same counts (:mod:`.gap_statistic`), and the rest of the budget goes into that
many clusters. All frames are those of ``auto`` for the largest number asked for: nobody who sees
them learns what was chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, State
from cloister.core.declared import Positive, Range, Whole, declared
from cloister.core.display import Curve, Display
from cloister.core.errors import PlanError
from cloister.core.estimate import Estimate
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import Block, Gaussian, NoisyBlock, PublicFacts, Rows
from cloister.tasks.clustering.auto import (
    Auto,
    Route,
    described,
    forecast_of,
    planned_mu,
    results_of,
)
from cloister.tasks.clustering.auto_grid import GridKnown, GridRoute
from cloister.tasks.clustering.auto_mean import MeanRoute
from cloister.tasks.clustering.auto_pca import PcaKnown
from cloister.tasks.clustering.auto_rounds import MovingCentres
from cloister.tasks.clustering.clusters import Clustering
from cloister.tasks.clustering.gap_statistic import BAND, LEAST, gap_curve
from cloister.tasks.clustering.synopsis import cell_centres
from cloister.tasks.options import PublicSeed, build_task
from cloister.tasks.state import decode_state, encode_state

MOST_CLUSTERS = 256
NumberOfClusters = Annotated[int, Range(1, MOST_CLUSTERS)]
_ROWS = {"widths", "start", "error_std", *(field.name for field in fields(MovingCentres))}
"""What `auto`'s state holds for each cluster."""


@dataclass(frozen=True)
class Choice:
    """The number of clusters, 0 before it is chosen, and the curve that it was chosen by."""

    gap: Floats
    gap_low: Floats
    gap_high: Floats
    objective: Floats
    k: int


@declared
class SelectK(Clustering, Gaussian):
    """``auto`` for a number of clusters between two public numbers, chosen from released counts.

    What a record adds in a round is what it adds to ``auto`` with `max_clusters`, asked with a
    public state, so sensitivity and cost are the same: docs/proofs/select_k.md. Centres that are
    not used lie on the first one, where every record prefers the first.
    """

    name: ClassVar[str] = "selectk"

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

    def __post_init__(self) -> None:
        if not self.min_clusters < self.max_clusters:
            raise PlanError(
                f"min_clusters must be below max_clusters, got {self.min_clusters} and "
                f"{self.max_clusters}; give n_clusters to 'auto' where there is no choice."
            )
        _ = self._auto  # checks the rest

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        return build_task(cls, facts, options, mu=planned_mu(facts))

    @cached_property
    def _auto(self) -> Auto:
        """The method whose frames are sent: for the largest number of clusters."""
        shared = ("n_features", "nominal_n", "mu", "frac_bits", "public_seed")
        same = {name: getattr(self, name) for name in shared}
        return Auto(n_clusters=self.max_clusters, **same)

    @cached_property
    def _route(self) -> Route:
        """Its route, over the whole box: at the edge of a bulk tails would look like clusters."""
        return self._auto.route_by(whole_box=True)

    @property
    def n_clusters(self) -> int:
        """Number of clusters that the frames have room for."""
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
            "noisy counts of cells that the clustering releases anyway, and what is sent is always "
            f"as long as for the most. Then it is {described(self._route)}"
        )

    def start(self) -> State:
        """Return a state in which nothing is known and nothing chosen."""
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
        """Choose the number of clusters when the cells are known; keep that many clusters."""
        choice = decode_state(Choice, state, self.frac_bits)
        if not choice.k and ("cells" in released or isinstance(self._route, MeanRoute)):
            choice = self._choose(state, released)
        k, own = choice.k or self.max_clusters, encode_state(choice)
        inner = {name: state[name] for name in state if name not in own}
        moved = self._route.update(t, _first_rows(inner, k), self._first_blocks(released, k))
        return {**_fill_rows(_first_rows(moved, k), self.max_clusters), **own}

    def _choose(self, state: GridState, released: Mapping[str, NoisyBlock]) -> Choice:
        """Return the curve and the number chosen: the smallest one, where nothing stands out."""
        spans, bins = self._cells_of(state)
        if not bins.size or bins.prod() == 1:
            return self._no_choice(self.min_clusters)
        points = cell_centres(spans, bins)
        counts, noise_std = released["cells"].in_records(self.frac_bits)
        curve = gap_curve(
            points,
            counts[: len(points)],
            noise_std=noise_std,
            total=float(self.nominal_n),
            cell_variance=float(((2 * spans / bins) ** 2).sum()) / 12,
            candidates=self.candidates,
            public_seed=self.public_seed,
        )
        return Choice(curve.gap, curve.low, curve.high, curve.objective, int(curve.chosen))

    def _cells_of(self, state: GridState) -> tuple[Floats, Integers]:
        """Return half the width of the histogram and its bins along each axis; may be none."""
        route = self._route
        if isinstance(route, MeanRoute):
            return np.zeros(0), np.zeros(0, dtype=np.int64)
        if isinstance(route, GridRoute):
            return route.histogram_of(decode_state(GridKnown, state, self.frac_bits))
        known = decode_state(PcaKnown, state, self.frac_bits)
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
        """Return the number of clusters, the curve it was chosen by, and ``auto``'s results.

        These are ``k`` of shape (1,), 0 before it is chosen and then alone; ``candidates``,
        ``gap``, ``gap_low``, ``gap_high`` and ``objective`` of shape (n_candidates,); and for the
        chosen number of clusters what the other k-means tasks return.
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
        """Return the curve and what is shown of centres."""
        k = float(results["k"][0])
        note = (
            "Gap: how much smaller the log objective is than without any clusters, both with "
            f"noise. The band holds {BAND:.0%} of what the noise and another sample would make of "
            "it. Chosen is the fewest clusters whose gap is as large as the largest, but for its "
            f"uncertainty or {LEAST:.0%}."
        )
        if not results["gap_high"].any():
            note = "Nothing stood out of the noise, so the fewest clusters were taken."
        elif k == self.max_clusters:
            note += f" {k:.0f} is the most that was asked for: there may be more."
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
    """Put clusters that are not used where the first is, so that no record is theirs."""
    rows = np.arange(n_rows)
    return {
        name: value[np.where(rows < len(value), rows, 0)] if name in _ROWS else value
        for name, value in state.items()
    }
