"""Lloyd's algorithm as a few noisy sums: ``Lloyd``, ``SuLloyd``, ``GLloyd`` and ``FastLloyd``.

The four share one loop. A record is assigned to the nearest public centre and adds one row to the
payload; the centre moves by the ratio of noisy sum and noisy count. They differ in what a record
adds (:class:`Payload`), in the noise, and in the number of rounds.

References
----------
.. [DHK24] Diaa, Humphries, Kerschbaum, "FastLloyd: Federated, Accurate, Secure, and Tunable
   k-Means Clustering with Differential Privacy", arXiv:2405.02437.
.. [SCLBJ16] Su, Cao, Li, Bertino, Jin, "Differentially Private K-Means Clustering", CODASPY 2016.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import floor, isqrt, sqrt
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np

from cloister.core.arrays import Flags, Floats, GridState, Integers, Records, State
from cloister.core.declared import Hint, Positive, Whole, declared
from cloister.core.errors import PlanError
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
    Clustering,
    centres_in_units,
    expected_half_widths,
    unknown,
)
from cloister.tasks.clustering.kmeans_init import sphere_packing
from cloister.tasks.clustering.lloyd_kernel import check_exact, nearest_centres, sum_near_centres
from cloister.tasks.intervals import ratio_interval, size_interval
from cloister.tasks.options import Clusters, Noise, PublicSeed, build_task, require_budget

Post = Literal["fold", "truncate", "none"]

COUNT_IMPORTANCE = 0.225  # "rho" of [SCLBJ16]_: how much count noise matters against sum noise
ROUND_ERROR = 0.004  # mean squared error a round may add, [SCLBJ16]_ section 4.2
MIN_ROUNDS, MAX_ROUNDS = 2, 7
MIN_SIZE_TO_NOISE = 4.0
"""An average cluster's count must be so many times its noise for relocation to pay: then it is
taken for empty in 2 of 100 rounds. Measured by benchmarks/relocation.py."""
_NO_NOISE = Hint("for no noise use the task 'lloyd'")
MAX_CENTRE_NORM = 8  # a centre outside the box, with post="none", is at most so far from its middle


def fold(values: Floats) -> Floats:
    """Reflect values at the bounds of ``[-1, 1]`` until they are inside; any shape."""
    shifted = values + 1
    return np.asarray(1 - np.abs(shifted - 4 * np.floor(shifted / 4) - 2))


MOST_IN_ORDER, WORTH_ORDER = 2, 1000
"""Columns, and clusters times rounds, between which ordering records takes less than it saves."""


def truncate(values: Floats) -> Floats:
    """Move values outside ``[-1, 1]`` to the nearest bound; any shape."""
    return np.clip(values, -1, 1)


def keep(values: Floats) -> Floats:
    """Leave values outside the box where they are, up to a distance that integers can hold."""
    return np.clip(values, -MAX_CENTRE_NORM, MAX_CENTRE_NORM)


_POST: dict[Post, Callable[[Floats], Floats]] = {"fold": fold, "truncate": truncate, "none": keep}


@dataclass(frozen=True)
class Payload:
    """What one record adds in a round, in grid steps.

    Parameters
    ----------
    relative : bool
        Whether a record adds its difference to the centre, or itself.
    radius : float
        Bound on the L2 norm of what it adds, in grid coordinates; a record beyond is left out.
    radius_squared : int
        The same as a squared number of grid steps.
    count_weight : int
        What it adds to the count: the weight of counts against sums, under one noise.
    l1 : int
        Bound on the L1 norm of all it adds.
    """

    relative: bool
    radius: float
    radius_squared: int
    count_weight: int
    l1: int

    @property
    def l2_squared(self) -> int:
        """Bound on the squared L2 norm of all a record adds."""
        return self.radius_squared + self.count_weight**2


@declared
class _LloydLoop(Clustering, ABC):
    """The loop the four methods share; a method says its payload and its noise.

    Records and centres lie on multiples of ``2**-frac_bits`` in ``[-1, 1]``. With `relocate_empty`
    a centre whose noisy size is within its noise starts again beside the largest cluster, but for
    the last round. That is made from released values, so it costs nothing; the published methods
    do without.
    """

    name: ClassVar[str]
    private: ClassVar[bool] = True
    profiles: ClassVar[frozenset[Profile]] = frozenset({"local", "group", "pairwise"})
    mechanism: ClassVar[Mechanism]

    @declared
    class Options:
        """What a user may choose of every method."""

        n_clusters: Clusters = 1
        rounds: Annotated[Whole | None, "noisy sums; by the method's error model if None"] = None
        post: Annotated[Post, "how a centre outside the box is brought back"] = "truncate"
        relocate_empty: Annotated[
            bool | None, "start empty centres again beside the largest cluster; if it pays if None"
        ] = False
        public_seed: PublicSeed = 0

    n_clusters: Whole
    n_features: Whole
    rounds: Whole
    frac_bits: int = 16
    post: Post = "truncate"
    public_seed: int = 0
    relocate_empty: bool = False

    def __post_init__(self) -> None:
        reach = MAX_CENTRE_NORM if self.post == "none" else 1
        check_exact(self.n_clusters, self.n_features, self.frac_bits, reach)

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Choose by error models what the user left open."""
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
        """Return the public numbers that only this method has."""
        return {}

    def _relocation_pays(self, facts: PublicFacts) -> bool:
        """Return whether an average cluster stands clear of its noise."""
        payload = self.payload(self.rounds - 1)
        noise = 0.0
        if self.mechanism == "gaussian":
            noise = _sigma(facts) * sqrt(self.rounds * payload.l2_squared)
        elif self.mechanism == "laplace":
            noise = sqrt(2) * self.rounds * payload.l1 / _needed(facts).epsilon
        share = facts.nominal_n / self.n_clusters
        return share >= MIN_SIZE_TO_NOISE * noise / payload.count_weight

    @classmethod
    def _best_rounds(cls, facts: PublicFacts, options: Any) -> int:
        """Return how many rounds to spread the budget over; by default as many as may be."""
        return MAX_ROUNDS

    @abstractmethod
    def payload(self, t: int) -> Payload:
        """Return what one record adds in round `t`."""

    @property
    def sort_records_pays(self) -> bool:
        """Whether to order kept records pays, by public numbers alone: boxes of few columns."""
        return self.n_features <= MOST_IN_ORDER and self.rounds * self.n_clusters >= WORTH_ORDER

    def start(self) -> State:
        """Return sphere-packing centres; sizes and intervals are not known yet."""
        shape = (self.n_clusters, self.n_features)
        return {**unknown(*shape), "centres": sphere_packing(*shape, self.public_seed)}

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return one block: for each cluster the sums and, last, the count."""
        payload = self.payload(t)
        shape = (self.n_clusters, self.n_features + 1)
        return (Block("sums", shape, payload.l1, payload.l2_squared, 1 / self.rounds),)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return each record less its centre, or itself, and its count; zeros if it is too far."""
        payload, centres = self.payload(t), state["centres"]
        labels = nearest_centres(records, centres)
        added = records.astype(np.int64)
        if payload.relative:
            added -= centres[labels]
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
        """Move each centre by noisy sum over noisy count, at most the radius, back into the box."""
        payload, block = self.payload(t), released["sums"]
        sum_std = block.noise_std / (1 << self.frac_bits)
        count_std = block.noise_std / payload.count_weight
        sums = from_grid(block.values[:, :-1], self.frac_bits)
        sizes = block.values[:, -1] / payload.count_weight
        # A count below its own noise says nothing; dividing by it would only blow up the noise.
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
        # Not in the last round: a centre put elsewhere would be a result that no record was near.
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
        """Put empty centres beside the largest, so close that they split it wherever it lies."""
        if empty.all() or not empty.any():
            return centres
        largest = int(sizes.argmax())
        rng = public_generator(self.public_seed, "relocate", t)
        directions = rng.normal(size=centres.shape)
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        # Nearer than their noise, or than a few steps of the grid, two centres are one.
        distance = max(float(np.linalg.norm(half_width[largest])), 4 / (1 << self.frac_bits))
        return np.where(empty[:, None], centres[largest] + distance * directions, centres)

    def _bound_move(self, moves: Floats, payload: Payload) -> Floats:
        """Leave moves as they are; FastLloyd shortens them."""
        return moves

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return :func:`.centres.expected_half_widths` of clusters that have settled."""
        return expected_half_widths(
            nominal_n / self.n_clusters,
            grid,
            sum_std=noise_std / (1 << self.frac_bits),
            count_std=noise_std / self.payload(self.rounds - 1).count_weight,
            mechanism=self.mechanism,
        )

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        """Return what :func:`.centres.centres_in_units` does.

        Notes
        -----
        The interval is of the mean before the centre was shortened to the radius and brought back
        into the box: such a centre may lie outside its interval.
        """
        return centres_in_units(state, grid, self.frac_bits)

    def describe(self) -> str:
        return (
            f"{self.rounds} rounds of k-means with {self.n_clusters} clusters: in each, the sum "
            "and the number of the records nearest to each centre are released with "
            f"{self.mechanism.capitalize()} noise."
        )


@declared
class Lloyd(_LloydLoop):
    """Federated Lloyd without noise: **not private**, the baseline of comparisons."""

    name: ClassVar[str] = "lloyd"
    private: ClassVar[bool] = False
    mechanism: ClassVar[Mechanism] = "none"

    def payload(self, t: int) -> Payload:
        """Return the difference to the centre, of any length; an empty cluster then stays."""
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
            f"NOT PRIVATE. {self.rounds} rounds of k-means with {self.n_clusters} clusters: the "
            "exact sum and number of the records nearest to each centre are released."
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
        return _within_limits(_needed(facts).epsilon / unit)

    @staticmethod
    def _count_share(n_features: int) -> float:
        """Return the best ratio of count epsilon to coordinate epsilon."""
        return float((4 * n_features * COUNT_IMPORTANCE**2) ** (1 / 3))

    def payload(self, t: int) -> Payload:
        """Return the record itself: every coordinate at most the edge of the box."""
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
        """Return the record itself: its norm is at most the half diagonal of the box."""
        weight = self.n_features**0.25 * sqrt(2 * COUNT_IMPORTANCE)
        return _absolute_payload(self.n_features, self.frac_bits, weight)


@declared
class FastLloyd(_LloydLoop):
    """Lloyd on differences inside a radius, [DHK24]_ section 5, in exact integers.

    Parameters
    ----------
    first_radius, radius : float in (0, 2 sqrt(n_features)], grid coordinates
        In the first and in the later rounds a record counts only within this distance of its
        centre, which bounds what it adds; with `radius_clip` the centre moves at most this far.

    Notes
    -----
    Add/remove one record: it touches one row, by a difference of norm at most the radius and a
    count word, so the joint squared norm is at most ``radius_squared + count_weight**2``.
    """

    name: ClassVar[str] = "fastlloyd"

    @declared
    class Options(_LloydLoop.Options):
        alpha: Annotated[Positive, "radius, as a part of the diagonal over 2 k^(1/d)"] = 0.8
        radius_strategy: Annotated[
            Literal["step", "constant"], "'step' lets the first round look half the diagonal far"
        ] = "step"
        radius_clip: Annotated[bool, "shorten the moves of centres to the radius"] = True
        mechanism: Annotated[Noise, "law of the noise", _NO_NOISE] = "gaussian"
        post: Annotated[Post, "how a centre outside the box is brought back"] = "fold"

    first_radius: Positive
    radius: Positive
    mechanism: Annotated[Noise, _NO_NOISE] = "gaussian"  # type: ignore[misc]  # one law in the others, a choice here
    radius_clip: bool = True
    post: Post = "fold"

    def __post_init__(self) -> None:
        super().__post_init__()
        diameter = 2 * sqrt(self.n_features)
        if max(self.first_radius, self.radius) > diameter * (1 + 1e-12):
            raise PlanError(
                f"first_radius and radius must be at most {diameter:.6g}, the diagonal of the box, "
                f"got {self.first_radius} and {self.radius}; design the task again."
            )

    @classmethod
    def _own_numbers(cls, facts: PublicFacts, options: Any) -> dict[str, Any]:
        """Return the radii."""
        radius = cls._usual_radius(facts, options)
        return {
            "first_radius": sqrt(facts.n_features) if options.radius_strategy == "step" else radius,
            "radius": radius,
        }

    @classmethod
    def _usual_radius(cls, facts: PublicFacts, options: Any) -> float:
        """Return the radius of [DHK24]_ section 5.3, at most the diagonal."""
        diagonal = 2 * sqrt(facts.n_features)
        share = options.n_clusters ** (1 / facts.n_features)
        return float(min(diagonal, options.alpha * diagonal / (2 * share)))

    @classmethod
    def _best_rounds(cls, facts: PublicFacts, options: Any) -> int:
        """Return the number of rounds of the error model of [DHK24]_ section 5.4.

        ROUND_ERROR >= k^3 / (4 N^2) (4 d + sqrt(4 d)) std^2, where std is the noise of a sum in one
        of `rounds` rounds: it grows as sqrt(rounds) (Gaussian) or as rounds (Laplace).
        """
        radius, root = cls._usual_radius(facts, options), sqrt(4 * facts.n_features)
        crowd = options.n_clusters**3 * root * (1 + root)
        allowed = 4 * ROUND_ERROR * facts.nominal_n**2 / crowd
        if options.mechanism == "laplace":
            l1 = radius * (sqrt(facts.n_features) + 1 / sqrt(root))
            return _within_limits(sqrt(allowed / 2) * _needed(facts).epsilon / l1)
        variance = (_sigma(facts) * radius) ** 2 * (1 + 1 / root)
        return _within_limits(allowed / variance)

    def payload(self, t: int) -> Payload:
        """Return the difference to the centre, at most the radius of round `t`."""
        one, d = 1 << self.frac_bits, self.n_features
        radius = self.first_radius if t == 0 else self.radius
        steps = max(1, floor(radius * one))
        count_weight = max(1, round(radius * one / (4 * d) ** 0.25))
        # |v|_1 <= sqrt(d) |v|_2, and no difference of two grid points is longer than 2 a column.
        return Payload(
            relative=True,
            radius=radius,
            radius_squared=steps**2,
            count_weight=count_weight,
            l1=min(isqrt(d * steps**2), 2 * d * one) + count_weight,
        )

    def _bound_move(self, moves: Floats, payload: Payload) -> Floats:
        """Shorten moves to the radius; no record could have asked for more."""
        if not self.radius_clip:
            return moves
        lengths = np.linalg.norm(moves, axis=1, keepdims=True)
        return np.asarray(moves * (payload.radius / np.maximum(lengths, payload.radius)))

    def describe(self) -> str:
        law = self.mechanism.capitalize()
        return (
            f"{self.rounds} rounds of k-means with {self.n_clusters} clusters: in each, the number "
            "of the records near each centre and the sum of their differences to it are released "
            f"with {law} noise; records further away are left out of that round."
        )


def _absolute_payload(n_features: int, frac_bits: int, count_weight: float) -> Payload:
    """Return the payload of a record that adds itself: a corner of the box is the longest."""
    one = 1 << frac_bits
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


def _sigma(facts: PublicFacts) -> float:
    """Return the noise multiplier one release of the whole budget would have."""
    budget = _needed(facts)
    return gaussian_noise_multiplier(budget.epsilon, budget.delta)


def _within_limits(rounds: float) -> int:
    """Return the whole number of rounds, at least 2 and at most 7."""
    return max(MIN_ROUNDS, floor(min(rounds, MAX_ROUNDS)))
