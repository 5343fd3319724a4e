"""Broken on purpose: methods and systems with one known defect each, which an audit must catch.

An audit that never alarms says nothing. Each mutant is a product of ours, or of the literature,
with one part replaced; its randomness is fixed, so whether it is caught is not left to chance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import count
from math import isqrt
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np

from cloister.app.arrivals import Arrivals
from cloister.app.in_process import InProcess
from cloister.app.job import make_plan
from cloister.audit.checks import (
    MOST_FOR_CANARIES,
    Finding,
    audit_plan,
    check_fresh,
    check_noise,
    check_replay,
    find_canaries,
)
from cloister.audit.flow import record
from cloister.audit.packages import Mutant
from cloister.audit.pairs import encoded, tables
from cloister.audit.sizes import compare_at, tried
from cloister.core.arrays import Flags
from cloister.core.randomness import ByteSource, new_key, public_generator
from cloister.data.schema import schema_of
from cloister.hazmat.discrete import discrete_gaussian, discrete_laplace
from cloister.hazmat.fixedpoint import Grid
from cloister.hazmat.prg import PadContext
from cloister.hazmat.ring import Integers, Words
from cloister.privacy.budget import Budget
from cloister.privacy.horizon import Encoding
from cloister.privacy.noise import NoiseKind, NoiseSource
from cloister.protocol.plan import Plan
from cloister.protocol.task import Block, Floats, GridState, NoisyBlock, Records, State, Task
from cloister.secagg.masks import GroupMask
from cloister.shares.linking.columns import Field
from cloister.shares.linking.view import Frame
from cloister.shares.mpc import dealer
from cloister.shares.mpc.material import Pick
from cloister.tasks.clustering.auto import Auto
from cloister.tasks.clustering.kmeans import FastLloyd, GLloyd, Payload
from cloister.tasks.clustering.lloyd_kernel import nearest_centres
from cloister.tasks.examples import example_of, numbers
from cloister_lab.audit import horizon
from cloister_lab.audit.adversary import (
    System,
    ask_twice,
    cancel_noise,
    find_counts,
    find_range,
    find_support,
    subtract_uploads,
)
from cloister_lab.audit.curators import audit_method, check_picks, loud_cover
from cloister_lab.audit.linked import Game, masks, play, sensitivity
from cloister_lab.audit.models import (
    BothArms,
    ExactImputer,
    ExactPropensity,
    FilledByOthers,
    UncutScore,
    WholeVersions,
)
from cloister_lab.curator.max_cover import MaxCover
from cloister_lab.curator.published import KMeansGuarantee, SubCluster

CLAIM = Budget(8.0, 1e-5)
"""What the tasks among the mutants claim."""

RUNS = 900

_Kind = TypeVar("_Kind")


# Noise --------------------------------------------------------------------------------------------


class FixedNoise:
    """The product's samplers on a public stream: right in law, **not private**.

    Parameters
    ----------
    part : float
        Of the scale that is asked for; 0 for no noise at all.
    """

    label = "fixed stream: not private"

    def __init__(self, seed: int | str, part: float = 1.0) -> None:
        self._bytes = _in_pieces(public_generator("audit", "twin", seed).bytes)
        self._part = part

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        """Return `size` integers of the named law."""
        if self._part == 0:
            return np.zeros(size, dtype=np.int64)
        sample = discrete_gaussian if kind == "gaussian" else discrete_laplace
        return sample(max(1, round(self._part * scale)), size, self._bytes)


def _in_pieces(source: ByteSource) -> ByteSource:
    """Return the same bytes; a NumPy generator that is asked for few at a time is slow."""
    piece, place = b"", 0

    def take(size: int) -> bytes:
        nonlocal piece, place
        if place + size > len(piece):
            piece, place = piece[place:] + source(max(size, _PIECE)), 0
        place += size
        return piece[place - size : place]

    return take


_PIECE = 1 << 13


def new_seeds(part: float = 1.0) -> Callable[[], FixedNoise]:
    """Return what makes a source of its own seed for each job."""
    seeds = count()
    return lambda: FixedNoise(next(seeds), part)


class _RepeatsRounds(FixedNoise):
    """Starts every draw where the first one started."""

    def __init__(self, seed: int | str) -> None:
        super().__init__(seed)
        self._seed = seed

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        return FixedNoise(self._seed).draw(kind, scale, size)


Earlier = list[tuple[Integers, int]]
"""Words and scale of each draw before."""


class BentNoise(FixedNoise):
    """Right in law before a function of what was drawn, and drawn before, bends it.

    Parameters
    ----------
    bend : function
        From elements, their scale and earlier draws to the elements that are given out.
    before : list
        Of earlier draws; sources that share it know of each other's.
    """

    def __init__(
        self, seed: int | str, bend: Callable[[Integers, int, Earlier], Integers], before: Earlier
    ) -> None:
        super().__init__(seed)
        self._bend, self._before = bend, before

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        """Return `size` integers, bent."""
        elements = self._bend(super().draw(kind, scale, size), scale, self._before)
        self._before.append((elements, scale))
        return elements


def _one_clusters(elements: Integers, scale: int, before: Earlier) -> Integers:
    return np.tile(elements[: elements.size // 2], 2)


def _halves_cancel(elements: Integers, scale: int, before: Earlier) -> Integers:
    return np.concatenate([elements[: elements.size // 2], -elements[: elements.size // 2]])


def _no_noise_in_a_sum(elements: Integers, scale: int, before: Earlier) -> Integers:
    rest = np.rint(elements[:-1].sum() / (elements.size - 1) ** 0.5).astype(np.int64)
    return np.concatenate([elements[:-1], [-rest]])


def _bare(elements: Integers, scale: int, before: Earlier) -> Integers:
    return np.concatenate([elements[:-1], [0]])


def _low(elements: Integers, scale: int, before: Earlier) -> Integers:
    parts = np.where(np.arange(elements.size) == 1, 0.7, 1.0)
    return np.rint(parts * elements).astype(np.int64)


def _two_draws_before(elements: Integers, scale: int, before: Earlier) -> Integers:
    if len(before) % 3 != 2:
        return elements
    earlier, size = before[-2]
    scaled: Integers = np.rint(earlier * (scale / size)).astype(np.int64)
    return scaled


def _turned_from_the_job_before(elements: Integers, scale: int, before: Earlier) -> Integers:
    here = len(before) // _ROUNDS % 2
    return -before[-_ROUNDS][0] if here else elements


def _one_share(elements: Integers, scale: int, before: Earlier) -> Integers:
    return before[-1][0] if len(before) % 3 else elements


_BENDS: Mapping[str, tuple[str, Callable[[Integers, int, Earlier], Integers]]] = {
    "one cluster's noise": (
        "noise that is the same in every cluster: their difference is exact",
        _one_clusters,
    ),
    "halves that cancel": (
        "noise of the second half of a vector is minus that of the first",
        _halves_cancel,
    ),
    "a sum without noise": (
        "one element is minus the sum of all others, scaled: no two are alike",
        _no_noise_in_a_sum,
    ),
    "a word without noise": ("the last count of each vector is exact", _bare),
    "a word with little noise": (
        "one element of each vector has seven tenths of the plan's sigma",
        _low,
    ),
    "noise of two rounds before": (
        "the third round has the noise of the first, at its own scale",
        _two_draws_before,
    ),
    "noise of the job before": (
        "every second job has the noise of the job before, with the sign turned",
        _turned_from_the_job_before,
    ),
    "one share for all silos": (
        "silos that should each add noise of their own add the same",
        _one_share,
    ),
}
_ROUNDS = 3


def _bent(bend: Callable[[Integers, int, Earlier], Integers]) -> Sequence[Finding]:
    """Check noise of which every job bends its own, or one the noise of the job before."""
    seeds, memory = count(), list[tuple[Integers, int]]()

    def make_noise() -> NoiseSource:
        shared = bend is _turned_from_the_job_before
        return BentNoise(next(seeds), bend, memory if shared else [])

    # Without an estimation all rounds have one size, so that noise of one fits into another.
    plan = plan_of(FastLloyd, rounds=_ROUNDS, estimate=False)
    return check_noise(plan, words=6000, make_noise=make_noise)


# Tasks --------------------------------------------------------------------------------------------


def kernel_alone(kind: type[_Kind]) -> type[_Kind]:
    """Return a class without rows, whose kernel nothing checks: the audit must see what it does."""
    kind.rows = None  # type: ignore[attr-defined]  # an optional member
    return kind


@kernel_alone
class TieTwice(FastLloyd):
    """FastLloyd that gives a record on a tie to every centre that is nearest."""

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return sums and counts, with records on ties in each."""
        payload = self.payload(t)
        apart = records[:, None].astype(np.int64) - state["centres"]
        squares = (apart**2).sum(axis=2)
        near = (squares == squares.min(axis=1, keepdims=True)) & (squares <= payload.radius_squared)
        sums = (apart * near[:, :, None]).sum(axis=0)
        return np.column_stack([sums, near.sum(axis=0) * payload.count_weight]).ravel()


@kernel_alone
class EdgeTwice(FastLloyd):
    """FastLloyd that counts a record within a step of the radius twice."""

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return sums and counts, with records at the radius counted twice."""
        apart = records[:, None].astype(np.int64) - state["centres"]
        nearest = np.sqrt((apart**2).sum(axis=2).min(axis=1).astype(np.float64))
        edge = np.abs(nearest - self.payload(t).radius_squared ** 0.5) < 1
        return super().contribute(t, state, np.concatenate([records, records[edge]]))


@kernel_alone
class FirstOfMany(FastLloyd):
    """FastLloyd that counts the first record of a table of more than a hundred twice."""

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return sums and counts."""
        again = records[: int(len(records) > 100)]
        return super().contribute(t, state, np.concatenate([records, again]))


_KEPT: dict[str, Integers] = {}
_SEEN: dict[str, Records] = {}


@kernel_alone
class RemembersLast(FastLloyd):
    """FastLloyd whose last update uses the exact sums, which it kept."""

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return sums and counts, and keep them."""
        _KEPT["exact"] = super().contribute(t, state, records)
        return _KEPT["exact"]

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the next state, the last one from exact sums."""
        if t == self.rounds - 1 and "exact" in _KEPT:
            exact = _KEPT["exact"].reshape(self.n_clusters, -1)
            released = {"sums": NoisyBlock(exact, released["sums"].noise_std)}
        return super().update(t, state, released)


@kernel_alone
class TailsTwice(Auto):
    """Auto that counts a record between two bins of a column in both."""

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return counts and sums, in the first round with records on edges in both bins."""
        found = super().contribute(t, state, records)
        if t > 0:
            return found
        width = (2 << self.frac_bits) // 32
        edge = records[(records % width == 0).all(axis=1)]
        return found + super().contribute(t, state, edge - 1)


@kernel_alone
class FarMoments(Auto):
    """Auto that counts a record beyond the reach of its candidate twice in the second moments."""

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return sums, with the second moments of far records in them twice."""
        found = super().contribute(t, state, records)
        *_, last = self.blocks(t)
        if last.name != "moments" or not state["detected"].any():
            return found
        of_candidates = last.shape[0] == len(state["candidates"])
        names = ("candidates", "candidate_reach") if of_candidates else ("centres", "reach")
        centres, reach = (state[name] for name in names)
        labels = nearest_centres(records, centres)
        squared = ((records - centres[labels]) ** 2).sum(axis=1)
        again = super().contribute(t, state, records[squared > reach[labels] ** 2])
        again[: -last.size] = 0
        return found + again


@kernel_alone
class BothBorders(Auto):
    """Auto that counts a record near a border for both of its clusters."""

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return sums or counts, with those of borders made symmetric."""
        found = super().contribute(t, state, records)
        *_, last = self.blocks(t)
        if last.name == "borders":
            one_sided = found[-last.size :].reshape(last.shape)
            found[-last.size :] = (one_sided + one_sided.T).ravel()
        return found


@kernel_alone
class ExactBox(Auto):
    """Auto whose box is of exact counts, which it kept."""

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return counts and sums, and keep the first."""
        found = super().contribute(t, state, records)
        if t == 0:
            _KEPT["tails"] = found
        return found

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the next state, the first one from exact counts."""
        if t == 0 and "tails" in _KEPT:
            noisy = released["tails"]
            exact = _KEPT["tails"].reshape(noisy.values.shape)
            released = {"tails": NoisyBlock(exact, noisy.noise_std)}
        return super().update(t, state, released)


@kernel_alone
class RemembersJobs(FastLloyd):
    """FastLloyd whose sums have the records of an earlier job in them."""

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return sums and counts of the records, and of those of another job."""
        # all of them: one in forty lies beyond the radius, and adds nothing
        earlier = _SEEN.get("records", records[:0])
        _SEEN["records"] = records
        return super().contribute(t, state, np.concatenate([records, earlier]))


class LoudCover(MaxCover):
    """MaxCover that draws with ``exp(epsilon c)``, without the half."""

    def picks(self, projected: Integers) -> Integers:
        """Draw the balls."""
        return MaxCover.picks(self._loud, projected)

    @cached_property
    def _loud(self) -> MaxCover:
        return replace(self, pick_epsilon=2 * self.pick_epsilon)


class _AnyRadius:
    """Adds records beyond the radius too, at the sensitivity of those within."""

    def payload(self, t: int) -> Payload:
        honest: Payload = super().payload(t)  # type: ignore[misc]  # of the task it is mixed into
        return replace(honest, radius_squared=2**50)

    def blocks(self, t: int) -> tuple[Block, ...]:
        honest: Payload = super().payload(t)  # type: ignore[misc]  # of the task it is mixed into
        (block,) = super().blocks(t)  # type: ignore[misc]  # as above
        return (replace(block, l1=honest.l1, l2_squared=honest.l2_squared),)


class NoRadius(_AnyRadius, FastLloyd):
    """FastLloyd that adds records beyond the radius too."""


class NoNorm(_AnyRadius, GLloyd):
    """GLloyd that adds records of any length."""


@dataclass(frozen=True)
class LooseGrid(Grid):
    """Rounds records to the grid and does not clip them to the box."""

    def encode(self, X: Any) -> Records:
        """Return grid records of any size that fits."""
        far = np.clip(self.normalise(X), -256.0, 256.0)
        return np.rint(far * self.one).astype(np.int32)


def understated(task: type[Task], part: float) -> type[Task]:
    """Return a task that states `part` of its sensitivity."""

    def blocks(self: Any, t: int) -> tuple[Block, ...]:
        return tuple(
            replace(
                block,
                l1=max(1, int(part * block.l1)),
                l2_squared=isqrt(int(part**2 * block.l2_squared)) ** 2,
            )
            for block in task.blocks(self, t)
        )

    return type(task.__name__, (task,), {"blocks": blocks})


def plan_of(
    task: type[Task], silos: int = 1, nominal_n: int = 200, columns: int = 2, **options: Any
) -> Plan:
    """Return a small plan of a k-means task; other keywords are the task's own options."""
    return make_plan(
        task,
        schema_of(numbers(columns)),
        [f"silo-{i}" for i in range(silos)],
        budget=CLAIM,
        nominal_n=nominal_n,
        n_clusters=2,
        **options,
    )


def _worlds(plan: Plan, seed: str, part: float = 1.0) -> Sequence[Finding]:
    """Return what two worlds show, and not what the bound of sensitivity would."""
    findings, _, _, _ = audit_plan(plan, runs=RUNS, make_noise=lambda: FixedNoise(seed, part))
    return findings[1:]


def _sensitivity(plan: Plan, seed: str) -> Sequence[Finding]:
    findings, _, _, _ = audit_plan(plan, runs=1, make_noise=lambda: FixedNoise(seed))
    return findings[:1]


def _example_plan(task: type[Task]) -> Plan:
    example = example_of(task)
    columns = schema_of(example.columns)
    return make_plan(task, columns, ["silo"], budget=CLAIM, nominal_n=200, **example.options)


def _sizes(task: type[Task]) -> Sequence[Finding]:
    """Return what records add at the states of a job, each alone and all together."""
    plan = _example_plan(task)
    table = encoded(plan.grid, tables(plan)["groups"])
    places = record(plan, table, FixedNoise(task.__name__), "mutant").places
    found = [compare_at(plan, t, state, tried(plan)) for t, state in places]
    worst, adds_up = max(sums.worst for sums in found), all(sums.adds_up for sums in found)
    text = f"a record added at most {worst:.4g} of a bound; tables add up: {adds_up}"
    return (Finding("sizes", worst > 1 or not adds_up, text),)


def _loose() -> Plan:
    plan = plan_of(NoNorm)
    return replace(plan, grid=LooseGrid(plan.grid.low, plan.grid.high, plan.grid.frac_bits))


def _canaries() -> Sequence[Finding]:
    claim = Budget(MOST_FOR_CANARIES, CLAIM.delta)
    finding, _ = find_canaries(
        FastLloyd,
        claim,
        example_of(FastLloyd, 16, 16),
        canaries=200,
        make_noise=new_seeds(0.0),
        coins="twin",
    )
    return (finding,)


# Systems ------------------------------------------------------------------------------------------


class _OnePad(GroupMask):
    """Masks every round with the same pad."""

    def mask(self, words: Words, context: PadContext, members: Sequence[str] = ()) -> Words:
        return super().mask(words, replace(context, round=0), members)

    def unmask(
        self,
        words: Words,
        context: PadContext,
        survivors: Sequence[str],
        members: Sequence[str] = (),
        opened: Mapping[str, bytes] = {},  # never changed
    ) -> Words:
        return super().unmask(words, replace(context, round=0), survivors, members, opened)


def _forgetful(handle: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Return a silo that answers a repeated request with other bytes."""
    asked: set[bytes] = set()

    def answer(frame: bytes) -> bytes:
        given = handle(frame)
        if frame in asked:
            return given[:-1] + bytes([given[-1] ^ 1])
        asked.add(frame)
        return given

    return answer


def _forgetful_silos(handlers: Mapping[str, Callable[[bytes], bytes]]) -> InProcess:
    return InProcess({silo: _forgetful(handle) for silo, handle in handlers.items()})


def _attacked(attack: Callable[..., Finding], system: System) -> Sequence[Finding]:
    plan = plan_of(FastLloyd, silos=3)
    rng = public_generator("audit", "records")
    one = plan.grid.one
    records = {s: rng.integers(-one, one + 1, (60, 2)).astype(np.int32) for s in plan.silos}
    return (attack(system, plan, records),)


@cache
def _old_key() -> GroupMask:
    return GroupMask(new_key())


# Methods ------------------------------------------------------------------------------------------


def _laplace(values: Floats, sensitivity: float, rng: np.random.Generator) -> Floats:
    return values + rng.laplace(0.0, 2 * sensitivity, values.shape)


def box_from_records(values: Floats, rng: np.random.Generator) -> Floats:
    """Return a noisy mean whose noise is right for the box that the records span."""
    width = float(np.ptp(values)) / len(values)
    return _laplace(values.mean(axis=0), width, rng)


def cells_that_are_there(values: Floats, rng: np.random.Generator) -> Floats:
    """Return noisy counts of cells, and zeros for cells without records."""
    counts, _ = np.histogram(values[:, 0], 10, (-1, 1))
    return np.where(counts > 0, _laplace(counts.astype(np.float64), 1.0, rng), 0.0)


def size_without_noise(values: Floats, rng: np.random.Generator) -> Floats:
    """Return a noisy sum, and how many records there are."""
    return np.array([*_laplace(np.clip(values, -1, 1).sum(axis=0), 2.0, rng), len(values)])


def _tried(
    attack: Callable[..., Finding], method: Callable[[Floats, np.random.Generator], Floats]
) -> Sequence[Finding]:
    rng = public_generator("audit", "twin", method.__name__)
    return (attack(lambda values: method(values, rng), Budget(1.0, 1e-5)),)


def _picked() -> Sequence[Finding]:
    cover = loud_cover(LoudCover, CLAIM)
    return check_picks(cover, lambda table: cover.picks(cover.project(table)), 4000)[:1]


def _published(method: type[KMeansGuarantee] | type[SubCluster]) -> Sequence[Finding]:
    noise = FixedNoise(method.name)
    return audit_method(method, Budget(1.0, 1e-5), runs=400, make_noise=lambda: noise).findings


_MUTANTS: dict[str, tuple[str, Callable[[], Sequence[Finding]]]] = {
    "half the noise": (
        "FastLloyd whose noise has half of the plan's sigma",
        lambda: _worlds(plan_of(FastLloyd), "half", 0.5),
    ),
    "nine tenths of the noise": (
        "FastLloyd whose noise has 0.9 of the plan's sigma",
        lambda: check_noise(plan_of(FastLloyd), words=3000, make_noise=new_seeds(0.9)),
    ),
    "a twentieth less noise": (
        "FastLloyd whose noise has 0.95 of the plan's sigma",
        lambda: check_noise(plan_of(FastLloyd), words=30_000, make_noise=new_seeds(0.95)),
    ),
    **{name: (defect, partial(_bent, bend)) for name, (defect, bend) in _BENDS.items()},
    "half the sensitivity": (
        "FastLloyd that states half of what a record adds",
        lambda: _worlds(plan_of(understated(FastLloyd, 0.5)), "understated"),
    ),
    "no radius": (
        "FastLloyd that adds records beyond the radius, too",
        lambda: _worlds(plan_of(NoRadius, alpha=0.4), "radius"),
    ),
    "no radius, by its bound": (
        "the same, seen without noise: a record adds more than is paid for",
        lambda: _sensitivity(plan_of(NoRadius), "radius"),
    ),
    "a tie counts twice": (
        "a record as far from one centre as from another is added to both",
        # At some states no record of the lattice is on a tie within the radius.
        lambda: _sensitivity(plan_of(TieTwice, rounds=4), "tie"),
    ),
    "the edge counts twice": (
        "a record within a step of the radius is added twice",
        lambda: _sensitivity(plan_of(EdgeTwice, rounds=2), "edge"),
    ),
    "the first of many counts twice": (
        "in a table of more than a hundred records the first one is added twice",
        lambda: _sensitivity(plan_of(FirstOfMany, rounds=2), "first"),
    ),
    "a result from memory": (
        "the last update uses the exact sums, which the task kept",
        lambda: (check_replay(plan_of(RemembersLast, rounds=2)),),
    ),
    "between two bins in both": (
        "in the round that finds Auto's box a record on the edge of a bin is in both",
        lambda: _sensitivity(plan_of(TailsTwice, nominal_n=1000), "tails"),
    ),
    "far records twice": (
        "in the second moments of Auto's candidates a far record is added twice",
        lambda: _sensitivity(plan_of(FarMoments, columns=4), "far"),
    ),
    "a border counts twice": (
        "near a border of Auto's clusters a record is counted for both of them",
        lambda: _sensitivity(plan_of(BothBorders, columns=4), "border"),
    ),
    "a box of exact counts": (
        "Auto's box is found from the exact counts, which the task kept",
        lambda: (check_replay(plan_of(ExactBox, nominal_n=1000)),),
    ),
    "records of an earlier job": (
        "sums have records in them that were seen in another job",
        lambda: (check_replay(plan_of(RemembersJobs, rounds=2)),),
    ),
    "max cover without the half": (
        "balls are drawn with exp(epsilon c) in place of exp(epsilon c / 2)",
        _picked,
    ),
    "unclipped records": (
        "GLloyd over records that nobody clipped to the box",
        lambda: _worlds(_loose(), "unclipped"),
    ),
    "no noise": ("FastLloyd that releases exact sums", _canaries),
    "seeded noise": (
        "noise from a seed of the job: two runs have the same",
        lambda: check_fresh(plan_of(FastLloyd), make_noise=lambda: FixedNoise("seed")),
    ),
    "every round alike": (
        "noise that starts from its seed in every round",
        lambda: check_noise(plan_of(FastLloyd), words=2000, make_noise=_seeded(count()))[1:],
    ),
    "published KMeans-Guarantee": (
        "zones around exact means; each table has its own",
        lambda: _published(KMeansGuarantee),
    ),
    "published SubCluster": (
        "centres are records from zones around exact means",
        lambda: _published(SubCluster),
    ),
    "a server that replays noise": (
        "the same noise in two jobs: their difference is a record",
        lambda: _attacked(cancel_noise, System(make_noise=lambda: FixedNoise("server"))),
    ),
    "one key for all jobs": (
        "two jobs of one plan under one pad",
        lambda: _attacked(subtract_uploads, System(make_masker=_old_key)),
    ),
    "one pad for all rounds": (
        "masks that do not depend on the round",
        lambda: _attacked(subtract_uploads, System(make_masker=lambda: _OnePad(new_key()))),
    ),
    "a forgetful silo": (
        "a request that is repeated gets another vector under the same pad",
        lambda: _attacked(ask_twice, System(make_transport=_forgetful_silos)),
    ),
    "a box from the records": (
        "bounds, and so the noise, are read from the table",
        lambda: _tried(find_range, box_from_records),
    ),
    "only cells with records": (
        "a histogram whose empty cells get no noise",
        lambda: _tried(find_support, cells_that_are_there),
    ),
    "exact counts": (
        "a noisy sum beside the number of records",
        lambda: _tried(find_counts, size_without_noise),
    ),
    "a score that is not cut": (
        "the score of the average effect of a treatment has any length",
        lambda: _sizes(UncutScore),
    ),
    "both arms": (
        "a record is in the balance of both arms",
        lambda: _sizes(BothArms),
    ),
    "a propensity of exact sums": (
        "the last step of the propensity model is of exact sums, which the task kept",
        lambda: (check_replay(_example_plan(ExactPropensity)),),
    ),
    "versions that count whole": (
        "each version of a record with a missing cell counts as a record",
        lambda: _sizes(WholeVersions),
    ),
    "cells filled by other records": (
        "a missing cell is the mean of the silo's other records",
        lambda: _sizes(FilledByOthers),
    ),
    "an imputer of exact sums": (
        "the last step of the model of missing cells is of exact sums, which the task kept",
        lambda: (check_replay(_example_plan(ExactImputer)),),
    ),
    "a linked size without noise": (
        "the number of linked persons is opened as it is",
        lambda: _played(_ExactSize("linked size")),
    ),
    "half the noise on linked tables": (
        "each answer has half the noise of its plan",
        lambda: _played(FixedNoise("linked half", 0.5)),
    ),
    "a linked column of words": ("an owner's numbers are not cut to their width", lambda: _uncut()),
    "a linked person that moves": (
        "a person that changes two cells of an outer join counts as one",
        lambda: _moving(),
    ),
    "a join without masks": (
        "bits of persons are opened without a mask",
        lambda: _unmasked(),
    ),
    "a horizon with one noise": (
        "all periods of a horizon have the noise of the first",
        lambda: _same_noise(),
    ),
    "a horizon without max_periods": (
        "rows of a person count in every period of a horizon",
        lambda: _renewed(Arrivals, "admits", lambda self, unit: True),
    ),
    "a horizon with a longer matrix": (
        "the columns of a horizon's matrix are longer than its price assumes",
        lambda: _renewed(Encoding, "payload", _doubled(Encoding.payload)),
    ),
    "a horizon with less sensitivity": (
        "a horizon states a quarter of the squared norm of its matrix",
        lambda: _renewed(Encoding, "sensitivity_squared", _quarter()),
    ),
    "a horizon with new sums": (
        "the sums of all periods are computed again from the records of the last",
        lambda: _renewed(Arrivals, "sums", _again(Arrivals.sums)),
    ),
}

MUTANTS = tuple(Mutant(name, *rest) for name, rest in _MUTANTS.items())
"""Every mutant of the laboratory, each with the check that must catch it."""


# Linked tables ------------------------------------------------------------------------------------


class _ExactSize(FixedNoise):
    """Draws no number of dummies."""

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        drawn = super().draw(kind, scale, size)
        return np.zeros_like(drawn) if size == 1 else drawn


def _played(noise: NoiseSource) -> Sequence[Finding]:
    return play(Game(Budget(1.0, 1e-6)), 100, noise)[0]


def _uncut() -> Sequence[Finding]:
    cut = Field.bits_of

    def wide(self: Field, rows: Words) -> Flags:
        if self.column.categories:
            return cut(self, rows)
        places = np.arange(self.column.width + 16, dtype=np.uint64) + np.uint64(self.bit)
        return ((rows[:, self.word] >> places[:, None]) & np.uint64(1)).astype(bool)

    with patch.object(Field, "bits_of", wide):
        return (sensitivity(Game(Budget(1.0, 1e-6)), 3),)


def _moving() -> Sequence[Finding]:
    with patch.object(Frame, "moves", lambda self, names: False):
        return (sensitivity(Game(Budget(1.0, 1e-6)), 3),)


def _unmasked() -> Sequence[Finding]:
    drawn = dealer._drawn

    def bare(key: bytes, index: int, serial: int, material: Any) -> list[Words]:
        parts = drawn(key, index, serial, material)
        return [np.zeros_like(parts[0]), *parts[1:]] if isinstance(material, Pick) else parts

    with patch.object(dealer, "_drawn", bare):
        return (masks(),)


def _seeded(seeds: count[int]) -> Callable[[], NoiseSource]:
    return lambda: _RepeatsRounds(next(seeds))


# Horizons -----------------------------------------------------------------------------------------


def _renewed(owner: type, name: str, broken: Any) -> Sequence[Finding]:
    """Play a horizon of which one member is replaced."""
    with patch.object(owner, name, broken):
        game = horizon.Game(Budget(1.0, 1e-6))
        return horizon.sensitivity(game), horizon.stored(game)


def _same_noise() -> Sequence[Finding]:
    seeds = count()

    def play() -> horizon.Play:
        seed = next(seeds)
        return lambda period: FixedNoise(f"horizon {seed}")

    return (horizon.noise_of_periods(horizon.Game(Budget(1.0, 1e-6)), play, 3),)


def _doubled(payload: Callable[..., Integers]) -> Callable[..., Integers]:
    return lambda self, sums: 2 * payload(self, sums)


def _quarter() -> property:
    whole = Encoding.__dict__["sensitivity_squared"].func
    return property(lambda self: whole(self) // 4)


def _again(sums: Callable[..., Integers]) -> Callable[..., Integers]:
    def last(self: Arrivals, size: int) -> Integers:
        stored = sums(self, size)
        return np.repeat(stored[-1:], len(stored), axis=0)

    return last
