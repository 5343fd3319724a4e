"""``Auto``: private k-means that divides its budget according to the plan.

It has four routes, chosen from public numbers alone. In few dimensions it uses a histogram of the
box (:mod:`.auto_grid`). In more dimensions it uses principal directions and a histogram along them
(:mod:`.auto_directions`). Then it moves the centres (:mod:`.auto_pca`) or, with more records for
each cluster, many candidates (:mod:`.auto_finder`). If the noise would hide every direction, it
releases the mean alone (:mod:`.auto_mean`).

Every access to the records is a sum of vectors of bounded norm. Post-processing of a noisy sum
costs no privacy, so the estimates are shrunk according to the known noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import ceil, hypot, sqrt
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Positive, Whole, declared
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.privacy.calibration import gdp_mu_for
from cloister.protocol.task import Block, Gaussian, NoisyBlock, PublicFacts, Rows
from cloister.tasks.clustering.auto_finder import FinderRoute
from cloister.tasks.clustering.auto_grid import SIZE_ERROR, GridRoute
from cloister.tasks.clustering.auto_mean import TYPICAL, MeanRoute
from cloister.tasks.clustering.auto_pca import PcaRoute
from cloister.tasks.clustering.clusters import (
    Clustering,
    centres_in_units,
    expected_half_widths,
)
from cloister.tasks.clustering.fixed_point import MODEL_ERROR, NOT_DETERMINED
from cloister.tasks.clustering.lloyd_kernel import check_exact, finest_exact
from cloister.tasks.intervals import size_interval
from cloister.tasks.options import Clusters, PublicSeed, build_task, epsilon_for, require_budget

if TYPE_CHECKING:
    from cloister.protocol.plan import Plan

Route = GridRoute | PcaRoute | FinderRoute | MeanRoute

_GRAM_SHARE = 0.28  # share of the second moments that the choice of a route assumes
_DROWNED = 0.55  # hopeless noise of a second moment, in squared radii times the root of k
# Least records of a cluster of equal size for candidates, over the noise of a sum.
_FEW_CLUSTERS, _COLUMNS, _MANY_COLUMNS, _ALL = 60.0, 8.0, 3.0, 150.0
_SPACE = 3  # largest number of columns for a histogram of the box


def planned_mu(facts: PublicFacts) -> float:
    """Return the GDP parameter of the whole budget, to the digits that a plan stores."""
    budget = require_budget(facts.budget)
    # Rounded, because other hardware may differ in the last bits, and a plan needs one digest.
    return float(f"{gdp_mu_for(budget.epsilon, budget.delta):.12g}")


@declared
class Auto(Clustering, Gaussian):
    """Private k-means by synopsis, clipped Lloyd rounds and shrinkage.

    Records, centres and contributions are multiples of ``2**-frac_bits``. `mu` is the GDP parameter
    of the whole budget. Rounds, lengths and shares are functions of the public numbers, so all
    profiles support the task. docs/proofs/auto.md proves its guarantee.
    """

    name: ClassVar[str] = "auto"

    @declared
    class Options:
        n_clusters: Clusters = 1
        public_seed: PublicSeed = 0

    n_clusters: Whole
    n_features: Whole
    nominal_n: Whole
    mu: Positive
    frac_bits: int = 16
    public_seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.mu, float):  # 1 and 1.0 would be plans of two digests
            raise PlanError(f"mu must be a float, got {self.mu!r}; design the task again.")
        check_exact(self.n_clusters, self.n_features, self.frac_bits)

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        return build_task(cls, facts, options, mu=planned_mu(facts))

    @cached_property
    def route(self) -> Route:
        """The use of the budget, a function of public numbers alone."""
        return self.route_by()

    def route_by(self, *, whole_box: bool = False) -> Route:
        """Return the route; with `whole_box`, for a number of clusters that is chosen later.

        The histogram then covers the box and not the bulk, and there are no candidates.
        """
        k, d, n = self.n_clusters, self.n_features, self.nominal_n
        values = (k, d, n, self.mu, self.frac_bits, self.public_seed)
        if k > 1 and d <= _SPACE:
            return GridRoute(*values, whole_box=whole_box)
        # One cluster has no directions to find, and noise above the signal hides all of them.
        if k == 1 or self.drowned > 1:
            return MeanRoute(*values)
        finder = FinderRoute(*values)
        if whole_box or not self._permits(finder):
            return PcaRoute(*values)
        return finder

    def _permits(self, finder: FinderRoute) -> bool:
        """Return True if the noise is small enough for candidates, and distances to them exact."""
        k, d = self.n_clusters, self.n_features
        # Records of a cluster of equal size, over the noise of a sum with the whole budget.
        records = self.nominal_n * self.mu / (k * sqrt(d))
        least = _FEW_CLUSTERS if k <= 4 else max(_MANY_COLUMNS if d >= 8 else _COLUMNS, _ALL / k)
        exact = finest_exact(finder.n_candidates, d, self.frac_bits) == self.frac_bits
        return records >= least and exact

    @property
    def drowned(self) -> float:
        """The noise over the largest noise at which a group can be found.

        It is a function of the plan. Above 1 all centres except the mean are independent of the
        records. It halves if `mu` or `nominal_n` doubles.
        """
        if self.n_clusters == 1 or self.n_features <= _SPACE:
            return 0.0
        noise = sqrt(self.n_clusters * self.n_features / 2 / _GRAM_SHARE)
        return noise / (self.mu * self.nominal_n * _DROWNED)

    @property
    def rounds(self) -> int:
        """Number of noisy sums: two to fourteen."""
        return self.route.rounds

    def describe(self) -> str:
        return described(self.route)

    def start(self) -> State:
        return self.route.start()

    def blocks(self, t: int) -> tuple[Block, ...]:
        return self.route.blocks(t)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        return self.route.rows(t, state, records)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        return self.route.contribute(t, state, records)

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        return self.route.update(t, state, released)

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return expected half-widths for clusters of equal size and typical width."""
        return forecast_of(self.route, noise_std, nominal_n, grid)

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        """Return the results of :func:`.centres.centres_in_units`, ``spreads`` and ``verdict``.

        ``spreads`` has the shape (n_clusters, n_features) and is in data units. It is about the
        standard deviation of each cluster in each column, 0 without an estimate.

        ``verdict`` has the shape (n_clusters,): 0 not determined, 1 numbers only, 2 determined. It
        is absent in four and more columns. With it, the interval is around the centre and for the
        fixed point of k-means on all records from the centres. Without it, the interval is that of
        the last round's mean before shrinkage, so a centre may be outside it.
        """
        return results_of(self.route, state, grid)

    def plan_warnings(self, plan: Plan, forecast: Results) -> Iterator[str]:
        """Warn that the noise would hide every group, or about the groups that it would hide."""
        if self.drowned <= 1 or plan.budget is None:
            yield from super().plan_warnings(plan, forecast)
            return
        epsilon = epsilon_for(plan.budget, self.drowned)
        yield (
            f"epsilon {plan.budget.epsilon:g} is too small for {plan.nominal_n:,} records of "
            f"{len(plan.columns)} columns: noise would hide every difference between groups, so "
            f"{self.name!r} would release one noisy mean and place the other centres around it "
            f"independently of the records; about epsilon {epsilon:.2g} or "
            f"{ceil(self.drowned * plan.nominal_n):,} records are needed, or fewer columns."
        )


def described(route: Route) -> str:
    """Describe the sums and releases of a route in a plain sentence."""
    return (
        f"{route.rounds} rounds of k-means with {route.n_clusters} clusters: "
        f"{route.releases}, all with Gaussian noise."
    )


def forecast_of(route: Route, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
    """Return the forecast of a route, as in :meth:`Auto.forecast`."""
    noise = noise_std / (1 << route.frac_bits)
    if isinstance(route, MeanRoute):
        half = size_interval(noise * route.stretch * TYPICAL * sqrt(route.n_features))
        widths = {"half_width": half / nominal_n * grid.half_range}
        # Without a count, any size up to all records is possible.
        size = size_interval(_count_std(route, noise)) if route.has_counts else float(nominal_n)
        return {**widths, "size_half_width": np.array([size])}
    share = nominal_n / route.n_clusters
    expected = expected_half_widths(
        share,
        grid,
        sum_std=noise * TYPICAL * sqrt(route.n_features),
        count_std=_count_std(route, noise),
    )
    if isinstance(route, GridRoute):
        # Of clusters that are apart; the interval also has the error of the surrogate.
        sizes = np.hypot(expected["size_half_width"], SIZE_ERROR * share)
        return {
            "half_width": expected["half_width"] * hypot(1, MODEL_ERROR),
            "size_half_width": sizes,
        }
    return expected


def _count_std(route: Route, noise: float) -> float:
    """Return the standard deviation of a count for that of a sum in the last round."""
    blocks = route.blocks(route.rounds - 1)
    return noise * sqrt(blocks[0].weight / blocks[-1].weight)


def results_of(route: Route, state: GridState, grid: Grid) -> Mapping[str, Floats]:
    """Return the results of a route, as in :meth:`Auto.results`."""
    results = {
        **centres_in_units(state, grid, route.frac_bits),
        "spreads": np.outer(route.spreads(state), grid.half_range),
    }
    if isinstance(route, GridRoute):
        results["verdict"] = from_grid(state["verdict"], route.frac_bits)
    elif isinstance(route, MeanRoute) and route.n_clusters > 1:
        results["verdict"] = np.full(len(state["centres"]), NOT_DETERMINED)
    return results
