"""k-means whose centres are drawn from a zone around the mean: made private.

KMeans-Guarantee [LS20]_ and SubCluster [JT22]_ draw each new centre at random from a ball around
the exact mean, so what they can release depends on single records (docs/proofs/subcluster.md has
the counterexamples; :mod:`cloister_lab.curator.published` has the methods as published). Here the
mean is a noisy one, so its ball is public, and so is every draw from it.

References
----------
.. [LS20] Lu, Shen, "Differentially Private k-Means Clustering with Guaranteed Convergence",
   arXiv:2002.01043. Its abstract was read, its method as [JT22]_ tells it.
.. [JT22] Joshi, Thakkar, "k-Means SubClustering: A Differentially Private Algorithm with Improved
   Clustering Quality", CIKM-PAS 2022.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from math import isqrt, sqrt
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np

from cloister.core.declared import AtLeastZero, Positive, Probability, Share, Whole, declared
from cloister.core.errors import PlanError
from cloister.core.randomness import public_generator
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.protocol.task import (
    Block,
    Floats,
    GridState,
    Integers,
    Mechanism,
    NoisyBlock,
    PublicFacts,
    Records,
    State,
)
from cloister.tasks.clustering.kmeans import FastLloyd, fold
from cloister.tasks.options import Clusters, PublicSeed, build_task
from cloister_lab.tasks.centres import Centres

CANDIDATES = 256  # points of a sampling zone among which one is drawn
FINE_BITS = 16  # a record at the edge of its zone adds a vector of 2**16 steps
_OF_LLOYD = (
    *("n_clusters", "n_features", "rounds", "first_radius", "radius", "frac_bits"),
    *("public_seed", "relocate_empty"),
)
_OPTIONS_OF_LLOYD = (*("n_clusters", "alpha", "radius_strategy", "relocate_empty", "public_seed"),)
_CHUNK_VALUES = 1 << 20  # integers of the records that are looked at together


@declared
class _ZoneLoop(Centres, ABC):
    """FastLloyd's loop with something drawn from the zone of each move.

    Parameters are those of :class:`~cloister.tasks.clustering.kmeans.FastLloyd`. No zone is larger
    than the radius, and a centre put elsewhere has none.
    """

    name: ClassVar[str]
    mechanism: ClassVar[Mechanism] = "gaussian"

    @declared
    class Options:
        """What a user may choose of both."""

        n_clusters: Clusters = 1
        rounds: Annotated[Whole | None, "noisy sums; by FastLloyd's error model if None"] = None
        alpha: Annotated[Positive, "radius, as a part of the diagonal over 2 k^(1/d)"] = 0.8
        radius_strategy: Annotated[
            Literal["step", "constant"], "'step' lets the first round look half the diagonal far"
        ] = "step"
        relocate_empty: Annotated[
            bool | None, "start empty centres again beside the largest cluster; if it pays if None"
        ] = False
        public_seed: PublicSeed = 0

    rounds: Whole
    first_radius: Positive
    radius: Positive
    relocate_empty: bool = False

    def __post_init__(self) -> None:
        _ = self._lloyd  # its checks are ours

    @classmethod
    def _as_fastlloyd(cls, facts: PublicFacts, options: Any, rounds: int | None) -> dict[str, Any]:
        """Return the numbers that FastLloyd would choose."""
        given = {name: getattr(options, name) for name in _OPTIONS_OF_LLOYD}
        lloyd = FastLloyd.design(
            facts,
            FastLloyd.Options(**{**given, "rounds": rounds, "estimate": False}),
        )
        return {name: getattr(lloyd, name) for name in _OF_LLOYD}

    @property
    def _steps(self) -> int:
        """Number of times every centre moves."""
        return self.rounds

    @cached_property
    def _lloyd(self) -> FastLloyd:
        """The noisy means: FastLloyd with our public numbers."""
        numbers = {name: getattr(self, name) for name in _OF_LLOYD}
        return FastLloyd(**{**numbers, "rounds": self._steps})

    @abstractmethod
    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""

    @abstractmethod
    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the layout of round `t`."""

    def _move(
        self, step: int, state: GridState, released: Mapping[str, NoisyBlock]
    ) -> tuple[State, Floats]:
        """Return FastLloyd's next state and the radius of each zone: how far the centre moved."""
        moved = self._lloyd.update(step, state, released)
        unmoved = replace(self._lloyd, relocate_empty=False).update(step, state, released)
        steps = moved["centres"] - from_grid(state["centres"], self.frac_bits)
        relocated = (moved["centres"] != unmoved["centres"]).any(axis=1)
        return moved, np.where(relocated, 0.0, np.linalg.norm(steps, axis=1))


@declared
class KMeansGuaranteeDP(_ZoneLoop):
    """KMeans-Guarantee [LS20]_ around noisy means: nothing is paid beyond FastLloyd's sums.

    Parameters
    ----------
    zone_share : float in (0, 1]
        Radius of the sampling zone as a part of the convergent zone's.
    concentration : float, >= 0
        A point of the sampling zone is drawn with a probability that falls by this power of e
        from the mean to the edge of the convergent zone.

    Notes
    -----
    Add/remove one record: as FastLloyd. The draw sees public numbers only.
    """

    name: ClassVar[str] = "kmeans-guarantee-dp"

    @declared
    class Options(_ZoneLoop.Options):
        """What a user may choose."""

        zone_share: Annotated[Share, "radius of the sampling zone, as a part of the radius"] = 0.5
        concentration: Annotated[AtLeastZero, "how much points near the centre are preferred"] = 4.0

    zone_share: Share = 0.5
    concentration: AtLeastZero = 4.0

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Choose radii and number of rounds as FastLloyd does."""
        return build_task(cls, facts, options, **cls._as_fastlloyd(facts, options, options.rounds))

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return FastLloyd's block: for each cluster the sums and, last, the count."""
        return self._lloyd.blocks(t)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return sums and counts of the records near each centre."""
        return self._lloyd.contribute(t, state, records)

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Move each centre to its noisy mean, then draw it from the sampling zone of the move."""
        moved, radii = self._move(t, state, released)
        steps = moved["centres"] - from_grid(state["centres"], self.frac_bits)
        rng = public_generator(self.public_seed, self.name, t)
        drawn = [
            draw_from_zone(
                mean,
                radius,
                step,
                share=self.zone_share,
                concentration=self.concentration,
                rng=rng,
            )
            for mean, radius, step in zip(moved["centres"], radii, steps, strict=True)
        ]
        return {**moved, "centres": fold(np.array(drawn))}

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return the half-widths of FastLloyd."""
        return self._lloyd.forecast(noise_std, nominal_n, grid)

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        return (
            f"{self.rounds} rounds of k-means with {self.n_clusters} clusters: in each, the number "
            "of the records near each centre and the sum of their differences to it are released "
            "with Gaussian noise, and the new centre is drawn from a ball around the noisy mean."
        )


@declared
class SubClusterDP(_ZoneLoop):
    """SubCluster [JT22]_ around noisy means: centres are noisy means of parts, never records.

    Parameters
    ----------
    rounds : int, >= 2, even
        Each step takes two: noisy means of the clusters, then of the parts of their zones.
    by_size : bool
        The authors' outlook: all ``n_clusters internal_k`` parts are shared by the noisy sizes of
        the clusters, from one to twice `internal_k` each.

    Notes
    -----
    Add/remove one record: the first sum as in FastLloyd. In the second it adds, to one part of one
    zone, a count word and its difference to the zone's centre in units of the zone's public
    radius: less than 1, cut toward zero to multiples of ``2**-FINE_BITS``. The joint squared norm
    is at most ``2**(2 * FINE_BITS)`` plus the squared count word, whatever the radius.
    """

    name: ClassVar[str] = "subcluster-dp"

    @declared
    class Options(_ZoneLoop.Options):
        """What a user may choose."""

        internal_k: Annotated[Whole, "parts of a cluster"] = 2
        sub_share: Annotated[Probability, "part of the budget for the parts of clusters"] = 0.4
        by_size: Annotated[bool, "give larger clusters more of the parts"] = False

    later: ClassVar[frozenset[str]] = frozenset({"by_size"})

    internal_k: Whole = 2
    sub_share: Probability = 0.4
    by_size: bool = False

    def __post_init__(self) -> None:
        if self.rounds % 2:
            raise PlanError(
                f"rounds must be an even integer, got {self.rounds!r}; every step of "
                f"{self.name!r} takes two."
            )
        super().__post_init__()

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Choose radii and steps by FastLloyd's error model."""
        # There a part of the squared GDP parameter weighs like the root of so many records.
        fewer = max(1, int(facts.nominal_n * sqrt(1 - options.sub_share)))
        steps = None if options.rounds is None else max(1, options.rounds // 2)
        numbers = cls._as_fastlloyd(replace(facts, nominal_n=fewer), options, steps)
        numbers["rounds"] = options.rounds or 2 * numbers["rounds"]
        return build_task(cls, facts, options, **numbers)

    @property
    def _steps(self) -> int:
        return self.rounds // 2

    @property
    def _most_parts(self) -> int:
        """Parts of a cluster that a round has room for."""
        return 2 * self.internal_k if self.by_size else self.internal_k

    @property
    def _count_word(self) -> int:
        """What a record adds to the count of its part: FastLloyd's split for radius 1."""
        return max(1, round((1 << FINE_BITS) / sqrt(sqrt(4 * self.n_features))))

    def start(self) -> State:
        """Return sphere-packing centres, never records, with zones that hold nobody."""
        parts = (self.n_clusters, self._most_parts, self.n_features)
        return {
            **super().start(),
            "zone_radius": np.zeros(self.n_clusters),
            "parts": np.zeros(parts),
        }

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return FastLloyd's block, or, in odd rounds, sums and counts of the parts of zones."""
        if t % 2 == 0:
            (block,) = self._lloyd.blocks(t // 2)
            return (replace(block, weight=(1 - self.sub_share) / self._steps),)
        one, d = 1 << FINE_BITS, self.n_features
        return (
            Block(
                "parts",
                (self.n_clusters, self._most_parts, d + 1),
                l1=isqrt(d * one**2) + self._count_word,
                l2_squared=one**2 + self._count_word**2,
                weight=self.sub_share / self._steps,
            ),
        )

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return sums and counts of the records near each centre, or in each part of a zone."""
        if t % 2 == 0:
            return self._lloyd.contribute(t // 2, state, records)
        return sum_in_zones(
            records,
            state["centres"],
            state["zone_radius"],
            state["parts"],
            count_weight=self._count_word,
        ).ravel()

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Move each centre to its noisy mean and part the zone; then go to the mean of a part."""
        rng = public_generator(self.public_seed, self.name, t)
        if t % 2 == 0:
            moved, radii = self._move(t // 2, state, released)
            shape = (self.n_clusters, self._most_parts, self.n_features)
            offsets = draw_from_ball(rng, shape[0] * shape[1], shape[2]).reshape(shape)
            if self.by_size:
                used = parts_by_size(moved["sizes"], self.internal_k)
                # One that is not used lies on the first, which is nearest then.
                unused = np.arange(self._most_parts) >= used[:, None]
                offsets = np.where(unused[:, :, None], offsets[:, :1], offsets)
            parts = moved["centres"][:, None] + radii[:, None, None] * offsets
            return {**moved, "zone_radius": radii, "parts": parts}
        real = self._real(state)
        block = released["parts"]
        copies = (state["parts"][:, 1:] == state["parts"][:, :1]).all(axis=2)
        counts = block.values[:, :, -1] / self._count_word
        counts[:, 1:] = np.where(copies, 0.0, counts[:, 1:])  # noise alone: nobody is nearest
        floor = max(1.0, block.noise_std / self._count_word)
        sums = block.values[:, :, :-1] / float(1 << FINE_BITS)
        chosen = _choose(np.maximum(counts, 0.0), rng.random(self.n_clusters))
        rows = np.arange(self.n_clusters)
        moves = sums[rows, chosen] / np.maximum(counts[rows, chosen], floor)[:, None]
        moves /= np.maximum(np.linalg.norm(moves, axis=1, keepdims=True), 1.0)  # into the zone
        moves[counts.max(axis=1) <= 0] = 0.0  # nobody there: the mean stays
        return {**real, "centres": fold(real["centres"] + real["zone_radius"][:, None] * moves)}

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return the half-widths of FastLloyd under this task's share of the budget."""
        (means,), (parts,) = self.blocks(self.rounds - 2), self.blocks(self.rounds - 1)
        ratio = sqrt(means.l2_squared / means.weight / (parts.l2_squared / parts.weight))
        return self._lloyd.forecast(ratio * noise_std, nominal_n, grid)

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        return (
            f"{self._steps} steps of k-means with {self.n_clusters} clusters, each of two sums "
            "with Gaussian noise: the number of the records near each centre and the sum of their "
            f"differences to it; and the same for {self._described_parts} of a ball around each "
            "noisy mean, of which one at random gives the new centre."
        )

    @property
    def _described_parts(self) -> str:
        if self.by_size:
            return f"1 to {self._most_parts} parts, by the size of the cluster,"
        return f"{self.internal_k} parts"


def parts_by_size(sizes: Floats, internal_k: int) -> Integers:
    """Share parts among clusters by their noisy sizes, from 1 to ``2 internal_k`` each.

    Parameters
    ----------
    sizes : ndarray of shape (n_clusters,), records
    """
    held = np.maximum(sizes, 0.0)
    shares = held / held.sum() if held.any() else np.full(len(sizes), 1 / len(sizes))
    parts: Floats = np.rint(shares * len(sizes) * internal_k)
    found: Integers = np.clip(parts, 1, 2 * internal_k).astype(np.int64)
    return found


def draw_from_ball(rng: np.random.Generator, size: int, n_features: int) -> Floats:
    """Draw points of the unit ball uniformly; shape (size, n_features)."""
    directions = rng.normal(size=(size, n_features))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    points: Floats = directions * rng.random((size, 1)) ** (1 / n_features)
    return points


def draw_from_zone(
    mean: Floats,
    radius: float,
    step: Floats,
    *,
    share: float,
    concentration: float,
    rng: np.random.Generator,
) -> Floats:
    """Draw a centre from the sampling zone of a convergent zone. [LS20]_, our reading.

    The convergent zone is the ball around `mean` that the old centre lies on the edge of. The
    sampling zone is a ball inside it that touches its edge, on the side that `step` points to.

    Parameters
    ----------
    step : ndarray of shape (n_features,)
        From the old centre to the mean.
    share : float in (0, 1]
        Radius of the sampling zone over `radius`.
    concentration : float, >= 0
        The density falls as ``exp(-concentration * distance from mean / radius)``; it is followed
        by a choice among `CANDIDATES` uniform points.
    """
    direction = rng.normal(size=len(mean))
    direction /= np.linalg.norm(direction)
    direction *= -1.0 if direction @ step < 0 else 1.0
    offsets = (1 - share) * direction + share * draw_from_ball(rng, CANDIDATES, len(mean))
    far = np.linalg.norm(offsets, axis=1)
    weights = np.exp(-concentration * (far - far.min()))
    chosen = _choose(weights[None], rng.random(1))[0]
    drawn: Floats = mean + radius * offsets[chosen]
    return drawn


def sum_in_zones(
    records: Records, centres: Integers, radii: Integers, parts: Integers, *, count_weight: int
) -> Integers:
    """Sum the records inside public balls by the nearest of the parts' middles.

    A record counts if it is nearer than the radius to its nearest centre. Arguments are grid steps.

    Returns
    -------
    ndarray of shape (n_clusters, n_parts, n_features + 1), int64
        Sums of the differences to the centre, each cut toward zero to multiples of ``radius *
        2**-FINE_BITS``, in these; and, last, `count_weight` for each record.

    Notes ----- A record adds to one row: a vector of squared norm at most ``2**(2 * FINE_BITS)``,
    and the count word. All products of floats are of integers below 2**53, so what a record adds
    depends on it and on the public state alone.
    """
    n_clusters, n_parts, n_features = parts.shape
    sums = np.zeros((n_clusters, n_parts, n_features + 1), dtype=np.int64)
    norms = (centres**2).sum(axis=1).astype(np.float64)
    size = max(1, _CHUNK_VALUES // n_features)
    for first in range(0, len(records), size):
        chunk = records[first : first + size].astype(np.int64)
        scores = norms - 2.0 * (chunk.astype(np.float64) @ centres.T.astype(np.float64))
        nearest = scores.argmin(axis=1)
        for j in range(n_clusters):
            moves = chunk[nearest == j] - centres[j]
            radius = int(radii[j])
            moves = moves[(moves**2).sum(axis=1) < radius**2] if radius > 0 else moves[:0]
            gaps = [((moves - middle) ** 2).sum(axis=1) for middle in parts[j] - centres[j]]
            labels = np.argmin(gaps, axis=0)
            scaled = np.sign(moves) * ((np.abs(moves) << FINE_BITS) // max(radius, 1))
            labels[(scaled**2).sum(axis=1) > 1 << (2 * FINE_BITS)] = n_parts  # none; it is the law
            for part in range(n_parts):
                inside = labels == part
                sums[j, part, :-1] += scaled[inside].sum(axis=0)
                sums[j, part, -1] += count_weight * int(inside.sum())
    return sums


def _choose(weights: Floats, uniform: Floats) -> Integers:
    """Return for each row a column drawn by its weights, from one uniform number each."""
    running = np.cumsum(weights, axis=1)
    passed = running <= (uniform * running[:, -1])[:, None]
    chosen: Integers = np.minimum(passed.sum(axis=1), weights.shape[1] - 1)
    return chosen
