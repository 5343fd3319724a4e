"""Tools for tests of the package and its extensions: test noise, faulty wires, law checks.

No product module imports this one. The result of a job with :class:`ZeroNoise` or
:class:`SimulatedNoise` is labelled as not private.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.app.in_process import Handler, InProcess, handlers, make_clients
from cloister.app.job import Trust, make_plan
from cloister.core.arrays import Floats, GridState, Records, State
from cloister.core.derived import displays_of
from cloister.core.errors import CloisterError, PlanError, RemoteProtocolError
from cloister.data.schema import Column, Schema
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.hazmat.ring import Integers
from cloister.hazmat.signing import Identity
from cloister.privacy.budget import Budget
from cloister.privacy.noise import NoiseKind, NoiseSource
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.code import code_of
from cloister.protocol.journal import Journal
from cloister.protocol.keys import cohort_hash
from cloister.protocol.messages import BEFORE, Deal, Message, Reply, result_hash
from cloister.protocol.plan import Plan
from cloister.protocol.progress import results_at
from cloister.protocol.rows import kept, sum_of_rows
from cloister.protocol.session import Transport, run_rounds
from cloister.protocol.task import NoisyBlock, PublicFacts, Task, has_rows, records_of
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.tasks.examples import hostile_rounds
from cloister.tasks.options import design

UNMET_CHECKS: Mapping[str, str] = {
    "check_estimators_nan_inf": "no record stops a fit: one without a value is excluded",
    "check_supervised_y_no_nan": "a record without a target stops no fit",
    "check_estimators_empty_data_messages": "a table without records stops no fit",
    "check_dtype_object": "a cell that is no number stops no fit, whatever its type",
}
"""Checks of scikit-learn that the estimators fail on purpose, with the reason."""


class ZeroNoise:
    """Noise source of zeros: the answer is exact and **not private**."""

    label = "ZERO NOISE (test double): not private"

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        """Return zeros."""
        return np.zeros(size, dtype=np.int64)


class SimulatedNoise:
    """Repeatable noise from a seed: correctly distributed, **not private**, for public data.

    Parameters
    ----------
    seed : int or SeedSequence
    """

    label = "SIMULATED NOISE (seeded): not private"

    def __init__(self, seed: int | np.random.SeedSequence) -> None:
        self._rng = np.random.default_rng(seed)

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        """Return rounded continuous noise of the named distribution."""
        draw = {"gaussian": self._rng.normal, "laplace": self._rng.laplace}[kind]
        return np.asarray(np.rint(draw(0.0, scale, size)).astype(np.int64))


def toy_schema(n_features: int = 2) -> Schema:
    """Return a schema of columns ``x0, x1, ...`` in ``[-1, 1]``."""
    columns = tuple(
        Column(name=f"x{i}", type="number", min=-1.0, max=1.0) for i in range(n_features)
    )
    return Schema(dataset="toy", unit="row", columns=columns)


def toy_task(task: Any, **given: Any) -> Any:
    """Return a task designed from public facts and options by name, in any order."""
    public = {one.name for one in fields(PublicFacts)}
    facts = {name: value for name, value in given.items() if name in public}
    options = {name: value for name, value in given.items() if name not in public}
    return design(task, PublicFacts(**{"nominal_n": 300, "budget": None, **facts}), options)


def toy_plan(task: Task | None = None, silos: int = 3, **changes: Any) -> Plan:
    """Return a small plan for wire tests: FastLloyd, k = 2, d = 2, unless given another task.

    A plan of FastLloyd is designed, as that of a job; that of another task carries no options.
    """
    names = tuple(f"silo-{i}" for i in range(silos))
    common = {"nominal_n": 300, "profile": "local" if silos == 1 else "group", **changes}
    if task is None:
        budget = common.pop("budget", Budget(1.0, 1e-6))
        trust = {f.name: common.pop(f.name) for f in fields(Trust) if f.name in common}
        options: dict[str, Any] = {"n_clusters": 2, "rounds": 2, "public_seed": 1}
        n, schema = common.pop("nominal_n"), toy_schema()
        plan = make_plan(FastLloyd, schema, names, budget=budget, nominal_n=n, **options, **trust)
        return replace(plan, **common) if common else plan
    schema = toy_schema(task.n_features)
    budget = Budget(1.0, 1e-6) if task.private else None
    given = {"budget": budget, "columns": schema.names, "silos": names, **common}
    return Plan(
        **{"task": task, "grid": schema.grid(task.frac_bits), "code": code_of(task), **given}
    )


def toy_records(plan: Plan, rows: int = 100, seed: int = 0) -> dict[str, NDArray[np.int32]]:
    """Return random grid records for every silo of a plan."""
    rng = np.random.default_rng(seed)
    one = plan.grid.one
    return {
        silo: rng.integers(-one, one + 1, (rows, plan.grid.n_features), dtype=np.int32)
        for silo in plan.silos
    }


def toy_federation(
    silos: int = 3, profile: str = "pairwise", task: Task | None = None, **changes: object
) -> tuple[Plan, dict[str, Identity]]:
    """Return a small plan whose silos agree on keys over the wire, and their identities."""
    # Fresh keys are enough: tests compare sums, which masks do not change.
    identities = {f"silo-{i}": Identity.new() for i in range(silos)}
    prints = tuple(identity.fingerprint for identity in identities.values())
    plan = toy_plan(task, silos, profile=profile, fingerprints=prints, **changes)
    return plan, identities


@dataclass
class Wire:
    """All parties of a plan and a transport between them, to be run step by step.

    By default records are random, the noise is zero, and frames stay in this process.
    """

    plan: Plan
    records: Mapping[str, NDArray[np.int32]] | None = None
    noise: NoiseSource = field(default_factory=ZeroNoise)
    make_transport: Callable[[Mapping[str, Handler]], Transport] = InProcess
    journals: Mapping[str, Journal] = field(default_factory=dict)
    """Durable journals by silo name; that of the aggregator has the empty name."""
    identities: Mapping[str, Identity] = field(default_factory=dict)
    """Identities of the silos of a plan with fingerprints; see :func:`toy_federation`."""

    def __post_init__(self) -> None:
        records = self.records or toy_records(self.plan)
        self.clients = make_clients(
            self.plan,
            {silo: [chunk] for silo, chunk in records.items()},
            # In the other profiles the aggregator alone adds noise.
            noise=self.noise if self.plan.profile == "pairwise" else None,
            journals=self.journals,
            identities=self.identities,
        )
        self.aggregator = Aggregator(self.plan, self.noise, self.journals.get(""))
        self.transport = self.make_transport(handlers(self.clients))

    def signed(self, message: Message) -> Message:
        """Return a sum or a cohort as a dishonest aggregator signs it; other frames as they are."""
        aggregator, plan = self.aggregator, self.plan
        match message:
            case Reply() if plan.fingerprints:
                digest = result_hash(plan, message)
                return replace(message, signature=aggregator._sign(message.round, digest))
            case Deal():
                digest = cohort_hash(plan, aggregator._known_roster(), message.cohort)
                return replace(message, signature=aggregator._sign(BEFORE, digest))
        return message

    def run(self) -> list[GridState]:
        """Run the whole job; return the final state at every silo that finished."""
        for _ in run_rounds(self.aggregator, self.transport):
            pass
        return [client.state for client in self.clients.values() if client.finished]


def serve(role: str, config: str) -> None:
    """Run a coordinator or a silo in this process, with zero noise: **not private**.

    The product has no flag, variable or setting for it. A test starts a process that calls this
    function with the settings file of a "coordinator" or a "silo".
    """
    # Imported here: most tests of tasks need no web service.
    from cloister.federation.service.logs import configure
    from cloister.federation.service.process import stopped_by_signals
    from cloister.federation.settings import CoordinatorSettings, SiloSettings, load_settings

    settings = load_settings(config)
    stop = stopped_by_signals()
    configure("info")
    match role, settings:
        case "coordinator", CoordinatorSettings():
            # Only here, since the import of the web service would double the start time of a silo.
            from cloister.federation.service.main import run as run_coordinator

            run_coordinator(settings, noise=ZeroNoise(), stop=stop)
        case "silo", SiloSettings():
            from cloister.federation.silo.main import run as run_silo

            run_silo(settings, noise=ZeroNoise(), stop=stop)
        case _:
            raise PlanError(
                f"role must be 'coordinator' or 'silo' and match the file, got {role!r}."
            )


def zero_noise_command(role: str, config: Path) -> tuple[str, ...]:
    """Return the command line of :func:`serve`, for ``LocalFederation(command=...)``."""
    call = f"from cloister.testing import serve; serve({role!r}, {str(config)!r})"
    return (sys.executable, "-c", call)


@dataclass
class Faults:
    """Transport that loses, repeats, delays and changes the frames of another transport.

    Parameters
    ----------
    lose_request, lose_answer : set of (int, str)
        Lost frames, by number of the exchange (from 0) and silo.
    dead_from : mapping of str to int
        Number of the exchange from which a silo gives no answer.
    repeat : bool
        If True, deliver every request twice; the second answer counts.
    late : bool
        If True, deliver the answer of the previous exchange in place of a lost one.
    spoil : function of (int, str, bytes) returning bytes, optional
        Changes answers in transit.
    """

    inner: Transport
    lose_request: frozenset[tuple[int, str]] = frozenset()
    lose_answer: frozenset[tuple[int, str]] = frozenset()
    dead_from: Mapping[str, int] = field(default_factory=dict)
    repeat: bool = False
    late: bool = False
    spoil: Callable[[int, str, bytes], bytes] | None = None

    def __post_init__(self) -> None:
        self.exchanges = 0
        self.frames: list[tuple[int, str, bytes, bytes]] = []
        """All frames on the wire as (exchange, silo, request, answer), lost answers included."""
        self._before: dict[str, bytes] = {}

    def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        """Carry frames with the faults of this exchange."""
        number, self.exchanges = self.exchanges, self.exchanges + 1
        answers: dict[str, bytes] = {}
        for silo, frame in frames.items():
            dead = number >= self.dead_from.get(silo, number + 1)
            if dead or (number, silo) in self.lose_request:
                continue  # the silo never sees the frame, so its state does not change
            answer = self._deliver(silo, frame)
            if answer is not None and self.repeat:
                answer = self._deliver(silo, frame)
            if answer is None:
                continue
            self.frames.append((number, silo, frame, answer))
            before, self._before[silo] = self._before.get(silo), answer
            if (number, silo) not in self.lose_answer:
                answers[silo] = self.spoil(number, silo, answer) if self.spoil else answer
            elif self.late and before is not None:
                answers[silo] = before
        return answers

    def _deliver(self, silo: str, frame: bytes) -> bytes | None:
        """Return the silo's answer, or None if the silo refuses the frame."""
        # Over a network, the aggregator sees the error of a silo as silence.
        try:
            return self.inner.exchange({silo: frame}).get(silo)
        except RemoteProtocolError:
            return None


def check_transport(make_transport: Callable[[Mapping[str, Handler]], Transport]) -> Iterator[str]:
    """Run the conformance suite of transports, and yield the name of each law that holds.

    An `AssertionError` is raised for a law that fails. `make_transport` receives the handlers by
    silo and returns a transport to them; handlers may run in other processes.

    Examples
    --------
    >>> from cloister.testing import check_transport
    >>> from cloister.app.in_process import Handler, InProcess
    >>> len(list(check_transport(InProcess)))
    5
    """
    seen: list[tuple[str, bytes]] = []

    def echo(silo: str) -> Handler:
        def handle(frame: bytes) -> bytes:
            seen.append((silo, frame))
            return silo.encode() + b"|" + frame

        return handle

    transport = make_transport({name: echo(name) for name in ("a", "b", "c")})
    answers = transport.exchange({"a": b"1", "b": b"2"})
    assert dict(answers) == {"a": b"a|1", "b": b"b|2"}, "answers must have the name of their silo"
    yield "each answer has the name of its silo"

    # Long, and with each byte, since a transport may treat line ends or NUL in a special way.
    every_byte = bytes(range(256)) * 64
    answers = transport.exchange({"c": every_byte})
    assert answers["c"] == b"c|" + every_byte, "frames must arrive unchanged"
    yield "frames arrive unchanged"

    assert dict(transport.exchange({})) == {}, "no request must have no answer"
    yield "no request has no answer"

    plan = toy_plan(silos=3)
    wire = Wire(plan, make_transport=make_transport)
    local = Wire(plan)
    assert _equal(wire.run(), local.run()), "a job must give the same centres as in process"
    yield "a masked job gives the same bits as in one process"

    again = Wire(
        plan, make_transport=lambda handlers: Faults(make_transport(handlers), repeat=True)
    )
    assert _equal(again.run(), Wire(plan).run()), "a frame delivered twice must change nothing"
    yield "a frame delivered twice changes nothing"


def check_task(task: Task, records: Iterable[Records], states: Sequence[GridState] = ()) -> None:
    """Check the laws of a task on records: lengths, sensitivity, additivity, and its rows.

    Also checks that no row of a record is left out, and that results and displays can be made of
    noise alone. Warns of a block of which no record uses half of the bound that is paid for.

    Parameters
    ----------
    records : iterable of ndarray of shape (n, n_features), int32
        Tables from which each record is removed in turn; include records of extreme values.
        Records outside the box, which a silo never sums, are added to each table.
    states : sequence of mappings, optional
        Public states to check, in addition to the first; :func:`hostile_states` makes some.

    Raises
    ------
    AssertionError
        If a law fails.
    """
    start = _on_grid(task, task.start())
    used: dict[str, float] = {}  # the largest share of each block's bound that a record uses
    for inside in records:
        table = np.concatenate([inside, outside_the_box(inside.shape[1], task.frac_bits)])
        for state in (start, *states):
            for t in range(task.rounds):
                _check_round(task, t, state, table, used)
        _check_kept(task, start, records_of(task, inside))
    _check_answers(task)
    for name, share in used.items():
        if share < 0.5:
            warnings.warn(
                f"no record of the check uses more than {share:.2g} of the bound of block "
                f"{name!r}; add more extreme records, or lower the bound.",
                stacklevel=2,
            )


def outside_the_box(n_features: int, frac_bits: int) -> Records:
    """Return records that no reader makes: one step beyond a bound, far, and at int32's ends."""
    one, last = 1 << frac_bits, np.iinfo(np.int32)
    table = np.zeros((4, n_features), dtype=np.int32)
    table[0, 0], table[1], table[2], table[3] = one + 1, -50 * one, last.max, last.min
    return table


def hostile_states(task: Task) -> Iterator[GridState]:
    """Yield the public states of :func:`~cloister.tasks.examples.hostile_rounds`."""
    for _, state in hostile_rounds(task):
        yield state


def _on_grid(task: Task, state: State) -> GridState:
    return {name: round_to_grid(value, task.frac_bits) for name, value in state.items()}


def _check_kept(task: Task, state: GridState, table: Records) -> None:
    """Check that the core adds the row of each record in the first round."""
    if not has_rows(task):
        return
    blocks = task.blocks(0)
    for row in range(len(table)):
        made = task.rows(0, state, table[row : row + 1])  # type: ignore[attr-defined]  # optional
        for block, rows in zip(blocks, made, strict=True):
            assert kept(rows, block).all(), (
                f"row of record {table[row].tolist()} is left out of block {block.name!r}: it is "
                f"above l1={block.l1} or l2_squared={block.l2_squared}, or outside the block"
            )


def _check_answers(task: Task) -> None:
    """Check that a job over no records, whose sums are noise, has results and displays."""
    schema, rng = toy_schema(task.n_features), np.random.default_rng(0)
    grid = schema.grid(task.frac_bits)
    for _ in range(4):
        state = _on_grid(task, task.start())
        try:
            with np.errstate(all="ignore"):
                for t in range(task.rounds):
                    # noise as large as a record, and no records
                    noise = {b: rng.normal(0, b.l1, b.shape).round() for b in task.blocks(t)}
                    sums = {
                        b.name: NoisyBlock(n.astype(np.int64), float(b.l1))
                        for b, n in noise.items()
                    }
                    if state:
                        task.results(state, grid)  # a model holds those of each state
                    state = _on_grid(task, task.update(t, state, sums))
                for display in displays_of(task, task.results(state, grid), schema.names):
                    list(getattr(display, "numbers", tuple)())
        except CloisterError:
            continue  # a task may refuse such answers
        except Exception as error:
            raise AssertionError(
                "update, results and displays must accept sums of noise alone, got "
                f"{type(error).__name__}: {error}"
            ) from error


def _check_round(
    task: Task, t: int, state: GridState, table: Records, used: dict[str, float]
) -> None:
    found: dict[bytes, Integers] = {}  # by table, since many differ in records outside the box only

    def contribution(rows: Records) -> Integers:
        inside = records_of(task, rows)
        key = inside.tobytes()
        if key not in found:
            found[key] = task.contribute(t, state, inside)
        return found[key]

    whole = contribution(table)
    blocks, laplace = task.blocks(t), task.mechanism == "laplace"
    assert whole.dtype == np.int64, "contributions must be int64"
    assert whole.shape == (sum(block.size for block in blocks),), "length must be the plan's"
    again = task.contribute(t, state, records_of(task, table))
    assert (whole == again).all(), "equal records must have equal sums"
    if has_rows(task):
        by_rows = sum_of_rows(task, t, state, records_of(task, table))
        assert (whole == by_rows).all(), "the kernel must sum the rows"
    half = len(table) // 2
    both = contribution(table[:half]) + contribution(table[half:])
    assert (whole == both).all(), "parts must add up to the whole"
    for row in range(len(table)):
        change = whole - contribution(np.delete(table, row, axis=0))
        offset = 0
        for block in blocks:
            # Python's integers: squares of int64 may overflow, which would hide a violation.
            values = change[offset : offset + block.size].tolist()
            offset += block.size
            l1, l2_squared = sum(map(abs, values)), sum(v * v for v in values)
            assert l2_squared <= block.l2_squared, f"L2 bound of {block.name!r}"
            assert l1 <= block.l1, f"L1 bound of {block.name!r}"
            share = l1 / block.l1 if laplace else sqrt(l2_squared / block.l2_squared)
            used[block.name] = max(share, used.get(block.name, 0.0))


def _equal(left: list[GridState], right: list[GridState]) -> bool:
    return len(left) == len(right) and all(
        a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a)
        for a, b in zip(left, right, strict=True)
    )


def zero_noise(estimator: type[Any]) -> type[Any]:
    """Return the class of an estimator with zero noise, for checks that compare two fits."""

    class ZeroNoiseEstimator(estimator):  # type: ignore[misc]  # the base is known at run time only
        _new_noise = ZeroNoise

        def __sklearn_tags__(self) -> Any:
            tags = super().__sklearn_tags__()
            tags.non_deterministic = False  # or scikit-learn would skip checks
            return tags

    name = estimator.__name__.replace("DP", "ZeroNoise", 1)
    ZeroNoiseEstimator.__name__ = ZeroNoiseEstimator.__qualname__ = name
    ZeroNoiseEstimator.__doc__ = f"``{estimator.__name__}`` with the zero-noise double."
    return _ZERO_NOISE.setdefault(name, ZeroNoiseEstimator)


_ZERO_NOISE: dict[str, type[Any]] = {}
"""Classes of :func:`zero_noise` by name, so that pickle finds those of fitted estimators."""


def __getattr__(name: str) -> Any:
    """Return ``ZeroNoiseKMeans``, made at first use since scikit-learn is slow to import."""
    if name in _ZERO_NOISE:
        return _ZERO_NOISE[name]
    if name != "ZeroNoiseKMeans":
        raise AttributeError(f"module 'cloister.testing' has no attribute {name!r}")
    from cloister.estimators.kmeans import DPKMeans

    return zero_noise(DPKMeans)


def rerun(
    plan: Plan, records: Records, rng: np.random.Generator, weight: int = 1
) -> Mapping[str, Floats]:
    """Return the results of a plan's rounds over public or simulated records, in data units.

    Parameters
    ----------
    records : ndarray of shape (n_samples, n_features), int32, grid steps
        Never the records of persons, because the noise is simulated.
    rng : numpy.random.Generator
        The source of the simulated noise.
    weight : int, >= 1
        Number of records that each of them represents.

    Returns
    -------
    dict
        The results of the task after its last round.
    """
    task = plan.task
    state = _on_grid(task, task.start())
    for t in range(plan.rounds):
        exact = task.contribute(t, state, records) * weight
        noised = plan.decode(t, exact + _noise(plan, t, rng))
        state = _on_grid(task, task.update(t, state, noised))
    return results_at(plan, state)


def _noise(plan: Plan, t: int, rng: np.random.Generator) -> Integers:
    """Return seeded noise of the plan's distribution for a round.

    It is a simulation. Privacy noise comes from the operating system and has no seed; here the
    records are simulated from released values and need no protection.
    """
    drawn = [
        rng.laplace(0, plan.noise_scale(block), block.size)
        if plan.task.mechanism == "laplace"
        else rng.normal(0, plan.noise_std(block), block.size)
        for block in plan.task.blocks(t)
    ]
    return np.rint(np.concatenate(drawn)).astype(np.int64)
