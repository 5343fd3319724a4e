"""``Auto``: private k-means that divides its budget according to the plan.

It has four routes, chosen from public numbers alone. In few dimensions it uses a histogram of the
box (:mod:`.auto_grid`). In more dimensions it uses principal directions, a histogram along them
and Lloyd rounds (:mod:`.auto_pca`). With more records for each cluster, the rounds move many
candidates before the centres (:mod:`.auto_finder`). If a cluster may be determined there, two
rounds at the last centres follow (:mod:`.estimation`). If the noise would hide every direction, it
releases the mean alone (:mod:`.auto_mean`).

Every access to the records is a sum of vectors of bounded norm. Post-processing of a noisy sum
costs no privacy, so the estimates are shrunk according to the known noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, sqrt
from typing import TYPE_CHECKING, ClassVar, Self

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Positive, Whole, declared
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import Block, Gaussian, NoisyBlock, PublicFacts, Rows
from cloister.tasks.clustering.auto_finder import FinderRoute
from cloister.tasks.clustering.auto_grid import GridRoute
from cloister.tasks.clustering.auto_mean import MeanRoute
from cloister.tasks.clustering.auto_pca import PcaRoute
from cloister.tasks.clustering.auto_routes import (
    check_numbers,
    described,
    drowned,
    forecast_of,
    has_verdicts,
    planned_mu,
    results_of,
    route_of,
)
from cloister.tasks.clustering.clusters import JUDGED_RANGE, Clustering
from cloister.tasks.clustering.estimation import (
    ESTIMATION_RELEASES,
    Estimated,
    Estimation,
    can_determine,
)
from cloister.tasks.clustering.lloyd_kernel import finest_exact
from cloister.tasks.options import Clusters, Dates, PublicSeed, build_task, epsilon_for

if TYPE_CHECKING:
    from cloister.protocol.plan import Plan

# Least records of a cluster of equal size for candidates, over the noise of a sum.
_FEW_CLUSTERS, _COLUMNS, _MANY_COLUMNS, _ALL = 60.0, 8.0, 3.0, 150.0

_LOOK, _SUMS = 0.045, 0.08  # shares of the budget of the two rounds after the path
_LEAST_MOVE = 2.0  # the last centres of the path have less noise than those rounds


@dataclass(frozen=True)
class EstimatedRoute(Estimated[PcaRoute | FinderRoute]):
    """A route in four and more columns, with an estimation at its last centres."""

    judges: ClassVar[bool] = True

    @property
    def releases(self) -> str:
        return f"{self.path.releases}; {ESTIMATION_RELEASES}"

    @property
    def n_clusters(self) -> int:
        return self.path.n_clusters

    @property
    def n_features(self) -> int:
        return self.path.n_features

    @property
    def frac_bits(self) -> int:
        return self.path.frac_bits

    def spreads(self, state: GridState) -> Floats:
        """Return the standard deviation of each cluster, as the path estimates it."""
        return self.path.spreads(state)


@declared
class Auto(Clustering, Gaussian):
    """Private k-means by synopsis, clipped Lloyd rounds and shrinkage.

    Records, centres and contributions are multiples of ``2**-frac_bits``. `mu` is the GDP parameter
    of the whole budget. Rounds, lengths and shares are functions of the public numbers, so all
    profiles support the task. docs/proofs/auto.md proves its guarantee.
    """

    name: ClassVar[str] = "auto"
    later: ClassVar[frozenset[str]] = frozenset({"dates"})
    """Fields that older plans lack; plans leave them out at their defaults."""

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
    dates: Dates = ()

    def __post_init__(self) -> None:
        check_numbers(self.n_clusters, self.n_features, self.mu, self.frac_bits)

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        return build_task(cls, facts, options, mu=planned_mu(facts))

    @cached_property
    def route(self) -> GridRoute | PcaRoute | FinderRoute | EstimatedRoute | MeanRoute:
        """The use of the budget, a function of public numbers alone."""
        k, d, n = self.n_clusters, self.n_features, self.nominal_n
        values = (k, d, n, self.mu, self.frac_bits, self.public_seed)
        route, finder = route_of(*values), FinderRoute(*values)
        if not isinstance(route, PcaRoute):
            return route
        path = finder if _permits(finder) else route
        if not can_determine(k, d, n, self.mu, _LOOK):
            return path
        estimation = Estimation(k, d, self.frac_bits, _LOOK, (_SUMS,), _LEAST_MOVE)
        # Shares divide the squared GDP parameter.
        left = replace(path, mu=self.mu * sqrt(1 - estimation.share))
        return EstimatedRoute(left, estimation)

    @property
    def drowned(self) -> float:
        """The noise over the largest noise at which a group can be found."""
        return drowned(self.n_clusters, self.n_features, self.nominal_n, self.mu)

    @property
    def rounds(self) -> int:
        """Number of noisy sums: two to sixteen."""
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

    @property
    def forecast_ranges(self) -> Mapping[str, tuple[float, float, str]]:
        """The forecast of a centre that will have a verdict is an order of magnitude only."""
        return JUDGED_RANGE if has_verdicts(self.route) else {}

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        """Return the results of :func:`.centres.centres_in_units`, ``spreads`` and ``verdict``.

        ``spreads`` has the shape (n_clusters, n_features) and is in data units. It is about the
        standard deviation of each cluster in each column, 0 without an estimate.

        ``verdict`` has the shape (n_clusters,): 0 not determined, 1 numbers only, 2 determined. It
        is absent for a single cluster. The interval is around the centre, and for the fixed point
        of k-means on all records from the centres. A cluster that is not determined has none.
        ``noise`` and ``size_noise`` are half-widths by the noise of the last round alone.
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


def _permits(finder: FinderRoute) -> bool:
    """Return True if the noise is small enough for candidates, and distances to them exact."""
    k, d = finder.n_clusters, finder.n_features
    # Records of a cluster of equal size, over the noise of a sum with the whole budget.
    records = finder.nominal_n * finder.mu / (k * sqrt(d))
    least = _FEW_CLUSTERS if k <= 4 else max(_MANY_COLUMNS if d >= 8 else _COLUMNS, _ALL / k)
    exact = finest_exact(finder.n_candidates, d, finder.frac_bits) == finder.frac_bits
    return records >= least and exact
