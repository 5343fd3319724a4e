"""Lloyd's algorithm as a few noisy sums: ``Lloyd``, ``SuLloyd``, ``GLloyd`` and ``FastLloyd``.

The four methods share one loop. A record is assigned to the nearest public centre and adds one row
to the payload. The centre moves by the ratio of noisy sum and noisy count. The methods differ in
the contribution of a record (:class:`Payload`), in the noise, and in the number of rounds.

References
----------
.. [DHK24] Diaa, Humphries, Kerschbaum, "FastLloyd: Federated, Accurate, Secure, and Tunable
   k-Means Clustering with Differential Privacy", arXiv:2405.02437.
.. [SCLBJ16] Su, Cao, Li, Bertino, Jin, "Differentially Private K-Means Clustering", CODASPY 2016.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import floor, isqrt, sqrt
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np

from cloister.core.arrays import Flags, Floats, GridState, Integers, Records, State
from cloister.core.declared import Hint, Positive, Whole, declared
from cloister.core.errors import PlanError
from cloister.core.numerals import counted
from cloister.core.randomness import public_generator
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.protocol.task import (
    INTERVAL_95,
    Block,
    Mechanism,
    NoisyBlock,
    Profile,
    PublicFacts,
    Rows,
)
from cloister.tasks.clustering.clusters import (
    JUDGED_RANGE,
    SIZE_ERROR,
    Clustering,
    centres_in_units,
    claimed,
    expected_half_widths,
    unknown,
)
from cloister.tasks.clustering.estimation import (
    ESTIMATION_RELEASES,
    FIRST_ORDER_ERROR,
    Estimated,
    Estimation,
    can_determine,
)
from cloister.tasks.clustering.fixed_point import MOST_COORDINATES
from cloister.tasks.clustering.kmeans_init import sphere_packing
from cloister.tasks.clustering.lloyd_kernel import check_exact, nearest_centres, sum_near_centres
from cloister.tasks.intervals import ratio_interval, size_interval
from cloister.tasks.options import Clusters, Dates, Noise, PublicSeed, build_task, require_budget

_LOOK, _SUMS = 0.03, (0.12, 0.20)  # shares of the budget of each look, and of sums
_ESTIMATION_ROUNDS = 2 * len(_SUMS)

Post = Literal["fold", "truncate", "none"]

COUNT_IMPORTANCE = 0.225  # "rho" of [SCLBJ16]_: weight of count noise relative to sum noise
ROUND_ERROR = 0.004  # largest mean squared error by one round, [SCLBJ16]_ section 4.2
MIN_ROUNDS, MAX_ROUNDS = 2, 7
MIN_SIZE_TO_NOISE = 4.0
"""Smallest ratio of an average cluster's count to its noise at which relocation pays. A cluster at
this ratio appears empty in 2 of 100 rounds. Measured by benchmarks/relocation.py."""
_NO_NOISE = Hint("for no noise use the task 'lloyd'")
MAX_CENTRE_NORM = 8  # largest coordinate of a centre with post="none", which may leave the box


def fold(values: Floats) -> Floats:
    """Reflect values of any shape at the bounds of ``[-1, 1]`` until they are inside."""
    shifted = values + 1
    return np.asarray(1 - np.abs(shifted - 4 * np.floor(shifted / 4) - 2))


MOST_IN_ORDER, WORTH_ORDER = 2, 1000
"""Largest number of columns, and smallest product of clusters and rounds, at which sorting pays."""


def truncate(values: Floats) -> Floats:
    """Move values of any shape outside ``[-1, 1]`` to the nearest bound."""
    return np.clip(values, -1, 1)


def keep(values: Floats) -> Floats:
    """Keep values outside the box, up to a distance that exact integers can hold."""
    return np.clip(values, -MAX_CENTRE_NORM, MAX_CENTRE_NORM)


_POST: dict[Post, Callable[[Floats], Floats]] = {"fold": fold, "truncate": truncate, "none": keep}


@dataclass(frozen=True)
class Payload:
    """The contribution of one record in a round, in grid steps.

    Parameters
    ----------
    relative : bool
        If True, a record adds its difference to the centre, otherwise itself.
    radius : float
        Bound on the L2 norm of its sum, in grid coordinates; a record beyond it is skipped.
    radius_squared : int
        The same bound as a squared number of grid steps.
    count_weight : int
        Its contribution to the count: the weight of counts relative to sums, with equal noise.
    l1 : int
        Bound on the L1 norm of the whole contribution.
    """

    relative: bool
    radius: float
    radius_squared: int
    count_weight: int
    l1: int

    @property
    def l2_squared(self) -> int:
        """Bound on the squared L2 norm of the whole contribution."""
        return self.radius_squared + self.count_weight**2


@declared
class _LloydLoop(Clustering, ABC):
    """The common loop of the four methods; a method defines its payload and its noise.

    Records and centres are multiples of ``2**-frac_bits`` in ``[-1, 1]``. With `relocate_empty`,
    a centre whose noisy size is within its noise restarts next to the largest cluster, except in
    the last round. This uses released values only, so it costs no budget. The published methods
    do not relocate.
    """

    name: ClassVar[str]
    later: ClassVar[frozenset[str]] = frozenset({"dates"})
    """Fields that older plans lack; plans leave them out at their defaults."""
    private: ClassVar[bool] = True
    profiles: ClassVar[frozenset[Profile]] = frozenset({"local", "group", "pairwise"})
    mechanism: ClassVar[Mechanism]

    @declared
    class Options:
        """Options of every method."""

        n_clusters: Clusters = 1
        rounds: Annotated[Whole | None, "noisy sums; by the method's error model if None"] = None
        post: Annotated[Post, "how a centre outside the box is brought back"] = "truncate"
        relocate_empty: Annotated[
            bool | None, "restart empty centres next to the largest cluster; None: if it pays"
        ] = False
        public_seed: PublicSeed = 0

    n_clusters: Whole
    n_features: Whole
    rounds: Whole
    frac_bits: int = 16
    post: Post = "truncate"
    public_seed: int = 0
    relocate_empty: bool = False
    dates: Dates = ()

    def __post_init__(self) -> None:
        reach = MAX_CENTRE_NORM if self.post == "none" else 1
        check_exact(self.n_clusters, self.n_features, self.frac_bits, reach)

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Choose the options without a value by error models."""
        task = build_task(
            cls,
            facts,
            options,
            rounds=options.rounds or cls._best_rounds(facts, options),
            relocate_empty=bool(options.relocate_empty),
            **cls._own_numbers(facts, options),
        )
        if options.relocate_empty is None and task._relocation_pays(facts):
            return replace(task, relocate_empty=True)
        return task

    @classmethod
    def _own_numbers(cls, facts: PublicFacts, options: Any) -> dict[str, Any]:
        """Return the public numbers of this method only."""
        return {}

    def _relocation_pays(self, facts: PublicFacts) -> bool:
        """Return True if the size of an average cluster is well above its noise."""
        payload = self.payload(self.rounds - 1)
        # Gaussian rounds add up in squared GDP parameters, Laplace rounds in epsilon.
        noise = 0.0
        if self.mechanism == "gaussian":
            noise = _sigma(facts) * sqrt(self.rounds * payload.l2_squared)
        elif self.mechanism == "laplace":
            noise = sqrt(2) * self.rounds * payload.l1 / _epsilon(facts)
        share = facts.nominal_n / self.n_clusters
        return share >= MIN_SIZE_TO_NOISE * noise / payload.count_weight

    @classmethod
    def _best_rounds(cls, facts: PublicFacts, options: Any) -> int:
        """Return the number of rounds that share the budget; by default the largest number."""
        return MAX_ROUNDS

    @abstractmethod
    def payload(self, t: int) -> Payload:
        """Return the contribution of one record in round `t`."""

    @property
    def sort_records_pays(self) -> bool:
        """True if sorting stored records pays, according to public numbers alone."""
        # With few columns most boxes of the tree have one nearest centre and add a stored sum.
        return self.n_features <= MOST_IN_ORDER and self.rounds * self.n_clusters >= WORTH_ORDER

    def start(self) -> State:
        """Return sphere-packing centres, without sizes and intervals."""
        shape = (self.n_clusters, self.n_features)
        return {**unknown(*shape), "centres": sphere_packing(*shape, self.public_seed)}

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return one block with the sums and, last, the count of each cluster."""
        payload = self.payload(t)
        shape = (self.n_clusters, self.n_features + 1)
        return (Block("sums", shape, payload.l1, payload.l2_squared, 1 / self.rounds),)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return each record less its centre, or itself, and its count; zeros beyond the radius."""
        payload, centres = self.payload(t), state["centres"]
        labels = nearest_centres(records, centres)
        added = records.astype(np.int64)
        if payload.relative:
            added -= centres[labels]
        # One test for sums and count, so that a record beyond the radius adds nothing at all.
        near = (added**2).sum(axis=1) <= payload.radius_squared
        counts = np.full((len(added), 1), payload.count_weight)
        values = np.concatenate([added, counts], axis=1) * near[:, None]
        return (Rows(labels * values.shape[1], values),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return sums and counts of the records near each centre."""
        payload = self.payload(t)
        return sum_near_centres(
            records,
            state["centres"],
            radius_squared=payload.radius_squared,
            relative=payload.relative,
            count_weight=payload.count_weight,
            one=1 << self.frac_bits,
        ).ravel()

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Move each centre by noisy sum over noisy count, within the radius and the box."""
        payload, block = self.payload(t), released["sums"]
        sum_std = block.noise_std / (1 << self.frac_bits)
        count_std = block.noise_std / payload.count_weight
        sums = from_grid(block.values[:, :-1], self.frac_bits)
        sizes = block.values[:, -1] / payload.count_weight
        # Counts below their noise level are uninformative; floor the divisor at the noise level.
        means = sums / np.maximum(sizes, max(1.0, count_std))[:, None]
        origin = from_grid(state["centres"], self.frac_bits) if payload.relative else 0.0
        centres = origin + (self._bound_move(means, payload) if payload.relative else means)
        low, high = ratio_interval(
            sums,
            sizes,
            sum_std=sum_std,
            count_std=count_std,
            mechanism=self.mechanism,
            origin=origin,
        )
        # Not in the last round: a relocated centre would be a result without records near it.
        if self.relocate_empty and t + 1 < self.rounds:
            empty = sizes <= max(1.0, INTERVAL_95["gaussian"] * count_std)
            centres = self._relocate(t, centres, sizes, (high - low) / 2, empty)
        return {
            "centres": _POST[self.post](centres),
            "low": low,
            "high": high,
            "sizes": sizes,
            "size_half_width": np.full(self.n_clusters, size_interval(count_std, self.mechanism)),
        }

    def _relocate(
        self, t: int, centres: Floats, sizes: Floats, half_width: Floats, empty: Flags
    ) -> Floats:
        """Place empty centres next to the largest, close enough to split its cluster."""
        if empty.all() or not empty.any():
            return centres
        largest = int(sizes.argmax())
        rng = public_generator(self.public_seed, "relocate", t)  # equal centres at all parties
        directions = rng.normal(size=centres.shape)
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        # Within their noise, or within a few grid steps, two centres cannot be distinguished.
        distance = max(float(np.linalg.norm(half_width[largest])), 4 / (1 << self.frac_bits))
        return np.where(empty[:, None], centres[largest] + distance * directions, centres)

    def _bound_move(self, moves: Floats, payload: Payload) -> Floats:
        """Return the moves unchanged; FastLloyd clips them."""
        return moves

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return :func:`.centres.expected_half_widths` for clusters after convergence."""
        return expected_half_widths(
            nominal_n / self.n_clusters,
            grid,
            sum_std=noise_std / (1 << self.frac_bits),
            count_std=noise_std / self.payload(self.rounds - 1).count_weight,
            mechanism=self.mechanism,
        )

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        """Return the results of :func:`.centres.centres_in_units`.

        Notes
        -----
        The interval is that of the mean before its move was clipped to the radius and the centre
        brought back into the box. Such a centre may be outside its interval.
        """
        return centres_in_units(state, grid, self.frac_bits)

    def describe(self) -> str:
        return (
            f"{counted(self.rounds, 'round')} of k-means with "
            f"{counted(self.n_clusters, 'cluster')}: in each, the sum "
            "and the count of the records nearest to each centre are released with "
            f"{self.mechanism.capitalize()} noise."
        )


@declared
class Lloyd(_LloydLoop):
    """Federated Lloyd without noise: **not private**, a baseline for comparisons."""

    name: ClassVar[str] = "lloyd"
    private: ClassVar[bool] = False
    mechanism: ClassVar[Mechanism] = "none"

    def payload(self, t: int) -> Payload:
        """Return the difference to the centre, of any length."""
        # Differences: the centre of an empty cluster then stays, as its sum is 0.
        one = 1 << self.frac_bits
        diameter_squared = 4 * self.n_features * one**2
        return Payload(
            relative=True,
            radius=2 * sqrt(self.n_features),
            radius_squared=diameter_squared,
            count_weight=one,
            l1=isqrt(self.n_features * diameter_squared) + one,
        )

    def describe(self) -> str:
        return (
            f"NOT PRIVATE. {counted(self.rounds, 'round')} of k-means with "
            f"{counted(self.n_clusters, 'cluster')}: the "
            "exact sum and count of the records nearest to each centre are released."
        )


@declared
class SuLloyd(_LloydLoop):
    """Lloyd with Laplace noise, pure epsilon-DP [SCLBJ16]_.

    A record adds itself and its count; the weight of the count splits the budget between them.
    """

    name: ClassVar[str] = "sulloyd"
    mechanism: ClassVar[Mechanism] = "laplace"

    @classmethod
    def _best_rounds(cls, facts: PublicFacts, options: Any) -> int:
        """Return the number of rounds of the error model of [SCLBJ16]_ section 4.2."""
        d, k, n = facts.n_features, options.n_clusters, facts.nominal_n
        dimension_cubed = (d + cls._count_share(d)) ** 3
        unit = sqrt(2 / ROUND_ERROR * k**3 / n**2 * dimension_cubed)
        return _within_limits(_epsilon(facts) / unit)

    @staticmethod
    def _count_share(n_features: int) -> float:
        """Return the best ratio of count epsilon to coordinate epsilon."""
        return float((4 * n_features * COUNT_IMPORTANCE**2) ** (1 / 3))

    def payload(self, t: int) -> Payload:
        """Return the record itself; its coordinates are within the box."""
        return _absolute_payload(
            self.n_features, self.frac_bits, self._count_share(self.n_features)
        )


@declared
class GLloyd(_LloydLoop):
    """Lloyd with Gaussian noise, [DHK24]_ appendix B.1 with the split re-derived."""

    name: ClassVar[str] = "glloyd"
    mechanism: ClassVar[Mechanism] = "gaussian"

    @classmethod
    def _best_rounds(cls, facts: PublicFacts, options: Any) -> int:
        """Return the number of rounds of the error model of [DHK24]_ appendix B.1."""
        d, k, n = facts.n_features, options.n_clusters, facts.nominal_n
        variance = d * (_sigma(facts) * (2 * COUNT_IMPORTANCE + sqrt(d))) ** 2
        return _within_limits(ROUND_ERROR * n**2 / (k**3 * variance))

    def payload(self, t: int) -> Payload:
        """Return the record itself; its norm is at most half the diagonal of the box."""
        # The weight gives the derived split between sums and counts under one noise.
        weight = self.n_features**0.25 * sqrt(2 * COUNT_IMPORTANCE)
        return _absolute_payload(self.n_features, self.frac_bits, weight)


@declared
class FastLloyd(_LloydLoop):
    """Lloyd on differences inside a radius, [DHK24]_ section 5, in exact integers.

    Parameters
    ----------
    first_radius, radius : float in (0, 2 sqrt(n_features)], grid coordinates
        In the first and in the later rounds, a record counts only within this distance to its
        centre, which bounds its contribution. With `radius_clip` no move of a centre is longer.

    Notes
    -----
    Adding or removing one record changes one row, by a difference of norm at most the radius and
    by a count. So the joint squared norm is at most ``radius_squared + count_weight**2``.
    """

    name: ClassVar[str] = "fastlloyd"
    later: ClassVar[frozenset[str]] = frozenset({"estimate", "dates"})
    """Fields that older plans lack; plans leave them out at their defaults."""

    @declared
    class Options(_LloydLoop.Options):
        alpha: Annotated[Positive, "radius, as a part of the diagonal over 2 k^(1/d)"] = 0.8
        radius_strategy: Annotated[
            Literal["step", "constant"], "'step': half the diagonal in the first round"
        ] = "step"
        radius_clip: Annotated[bool, "clip the moves of centres to the radius"] = True
        mechanism: Annotated[Noise, "law of the noise", _NO_NOISE] = "gaussian"
        post: Annotated[Post, "how a centre outside the box is brought back"] = "fold"
        estimate: Annotated[
            bool | None, "rounds for intervals and verdicts; None: if they can determine a cluster"
        ] = None

    first_radius: Positive
    radius: Positive
    mechanism: Annotated[Noise, _NO_NOISE] = "gaussian"  # type: ignore[misc]  # one law in the others, a choice here
    radius_clip: bool = True
    post: Post = "fold"
    estimate: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.estimate and (self.mechanism == "laplace" or self.rounds <= _ESTIMATION_ROUNDS):
            raise PlanError(
                f"estimate needs mechanism 'gaussian' and more than {_ESTIMATION_ROUNDS} rounds, "
                f"got {self.mechanism!r} and {self.rounds}; design the task with estimate=False."
            )
        if self.estimate and self.n_clusters * self.n_features > MOST_COORDINATES:
            raise PlanError(
                f"estimate needs at most {MOST_COORDINATES} coordinates of all centres, got "
                f"{self.n_clusters * self.n_features}; design the task with estimate=False."
            )
        diameter = 2 * sqrt(self.n_features)
        # A relative tolerance, because the diagonal itself is a rounded float.
        if max(self.first_radius, self.radius) > diameter * (1 + 1e-12):
            raise PlanError(
                f"first_radius and radius must be at most {diameter:.6g}, the diagonal of the box, "
                f"got {self.first_radius} and {self.radius}; design the task again."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Any) -> Self:
        """Choose the options without a value by error models."""
        path = super().design(facts, options)
        # The rounds of a subclass are its own.
        if cls is not FastLloyd or not _estimates(facts, options):
            return path
        return replace(path, rounds=path.rounds + _ESTIMATION_ROUNDS, estimate=True)

    @cached_property
    def _estimated(self) -> Estimated[FastLloyd] | None:
        """The rounds of k-means with an estimation after them, or None without one."""
        if not self.estimate:
            return None
        values = {field.name: getattr(self, field.name) for field in fields(FastLloyd)}
        values |= {"estimate": False, "rounds": self.rounds - _ESTIMATION_ROUNDS}
        numbers = self.n_clusters, self.n_features, self.frac_bits
        # Not of a subclass, such as one that watches all rounds: it would watch some twice.
        return Estimated(FastLloyd(**values), Estimation(*numbers, _LOOK, _SUMS))

    def start(self) -> State:
        return self._estimated.start() if self._estimated else super().start()

    def blocks(self, t: int) -> tuple[Block, ...]:
        return self._estimated.blocks(t) if self._estimated else super().blocks(t)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        if self._estimated:
            return self._estimated.rows(t, state, records)
        return super().rows(t, state, records)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        if self._estimated:
            return self._estimated.contribute(t, state, records)
        return super().contribute(t, state, records)

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        if self._estimated:
            return self._estimated.update(t, state, released)
        return super().update(t, state, released)

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return the expected half-widths of clusters of equal size."""
        if not self._estimated:
            return super().forecast(noise_std, nominal_n, grid)
        sums, counts = self.blocks(self.rounds - 1)
        noise = noise_std / (1 << self.frac_bits)
        share = nominal_n / self.n_clusters
        expected = expected_half_widths(
            share,
            grid,
            sum_std=noise * self.radius * FIRST_ORDER_ERROR,
            count_std=noise * sqrt(sums.weight / counts.weight),
        )
        sizes = np.hypot(expected["size_half_width"], SIZE_ERROR * share)
        return {**expected, "size_half_width": sizes}

    @property
    def forecast_ranges(self) -> Mapping[str, tuple[float, float, str]]:
        """The forecast of a centre that will have a verdict is an order of magnitude only."""
        return JUDGED_RANGE if self._estimated else {}

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        """Return the results of :func:`.centres.centres_in_units`, and ``verdict`` as `auto`.

        Without an estimation the interval is that of the mean before its move was clipped to the
        radius. A centre may be outside it, also because it was brought back into the box.
        """
        found = super().results(state, grid)
        if not self.estimate:
            return found
        return claimed({**found, "verdict": from_grid(state["verdict"], self.frac_bits)})

    @classmethod
    def _own_numbers(cls, facts: PublicFacts, options: Any) -> dict[str, Any]:
        """Return the radii of the first and of the later rounds."""
        radius = cls._usual_radius(facts, options)
        return {
            "estimate": False,
            "first_radius": sqrt(facts.n_features) if options.radius_strategy == "step" else radius,
            "radius": radius,
        }

    @classmethod
    def _usual_radius(cls, facts: PublicFacts, options: Any) -> float:
        """Return the radius of [DHK24]_ section 5.3, bounded by the diagonal."""
        diagonal = 2 * sqrt(facts.n_features)
        share = options.n_clusters ** (1 / facts.n_features)
        return float(min(diagonal, options.alpha * diagonal / (2 * share)))

    @classmethod
    def _best_rounds(cls, facts: PublicFacts, options: Any) -> int:
        """Return the number of rounds of the error model of [DHK24]_ section 5.4.

        ROUND_ERROR >= k^3 / (4 N^2) (4 d + sqrt(4 d)) std^2, where std is the noise of a sum in one
        of `rounds` rounds. It grows as sqrt(rounds) (Gaussian) or as rounds (Laplace).
        """
        radius, root = cls._usual_radius(facts, options), sqrt(4 * facts.n_features)
        crowd = options.n_clusters**3 * root * (1 + root)
        allowed = 4 * ROUND_ERROR * facts.nominal_n**2 / crowd
        if options.mechanism == "laplace":
            l1 = radius * (sqrt(facts.n_features) + 1 / sqrt(root))
            return _within_limits(sqrt(allowed / 2) * _epsilon(facts) / l1)
        variance = (_sigma(facts) * radius) ** 2 * (1 + 1 / root)
        return _within_limits(allowed / variance)

    def payload(self, t: int) -> Payload:
        """Return the difference to the centre; its norm is at most the radius of round `t`."""
        one, d = 1 << self.frac_bits, self.n_features
        radius = self.first_radius if t == 0 else self.radius
        # Rounded before use in contribution and bound, so the bound is an integer fact.
        steps = max(1, floor(radius * one))
        count_weight = max(1, round(radius * one / (4 * d) ** 0.25))
        # |v|_1 <= sqrt(d) |v|_2, and a difference of two grid points is at most 2 in each column.
        return Payload(
            relative=True,
            radius=radius,
            radius_squared=steps**2,
            count_weight=count_weight,
            l1=isqrt(d * steps**2) + count_weight,
        )

    def _bound_move(self, moves: Floats, payload: Payload) -> Floats:
        """Clip moves to the radius."""
        # The exact mean of clipped differences is never longer, so only noise is cut.
        if not self.radius_clip:
            return moves
        lengths = np.linalg.norm(moves, axis=1, keepdims=True)
        return np.asarray(moves * (payload.radius / np.maximum(lengths, payload.radius)))

    def describe(self) -> str:
        law, path = self.mechanism.capitalize(), self._estimated.path if self._estimated else self
        after = f"; {ESTIMATION_RELEASES}, twice" if self.estimate else ""
        return (
            f"{counted(path.rounds, 'round')} of k-means with "
            f"{counted(self.n_clusters, 'cluster')}: in each, the count "
            "of the records near each centre and the sum of their differences to it are released "
            f"with {law} noise; records further away are not counted in that round{after}."
        )


def _estimates(facts: PublicFacts, options: Any) -> bool:
    """Return True if an estimation follows the rounds of k-means."""
    if options.estimate is not None:
        return bool(options.estimate)
    if facts.budget is None or options.mechanism == "laplace":
        return False
    numbers = options.n_clusters, facts.n_features, facts.nominal_n
    return can_determine(*numbers, 1 / _sigma(facts), _LOOK)


def _absolute_payload(n_features: int, frac_bits: int, count_weight: float) -> Payload:
    """Return the payload of a record that adds itself."""
    one = 1 << frac_bits  # a corner of the box has the largest norm
    count_weight = max(1, round(one * count_weight))
    return Payload(
        relative=False,
        radius=sqrt(n_features),
        radius_squared=n_features * one**2,
        count_weight=count_weight,
        l1=n_features * one + count_weight,
    )


def _needed(facts: PublicFacts) -> Budget:
    return require_budget(facts.budget, "give it, or give rounds")


def _epsilon(facts: PublicFacts) -> float:
    """Return the part of epsilon that a record has, of those of its privacy unit."""
    return _needed(facts).epsilon / facts.group_size


def _sigma(facts: PublicFacts) -> float:
    """Return the noise of one release with the whole budget, over the norm of a record."""
    budget = _needed(facts)
    return gaussian_noise_multiplier(budget.epsilon, budget.delta) * facts.group_size


def _within_limits(rounds: float) -> int:
    """Return the whole number of rounds, at least 2 and at most 7."""
    return max(MIN_ROUNDS, floor(min(rounds, MAX_ROUNDS)))
