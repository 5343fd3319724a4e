"""Whole jobs at one silo, from its file to its frames and results, over many tables.

A job over one table is recorded, with every frame that its aggregator sent to the first silo. Then
that silo restarts with other tables and answers the same frames. So all worlds have the same
answers and public states. Two comparisons follow, which are exact and never alarm on a true claim:

- All emissions of the silo except the sums in its uploads are equal for all records. They include
  frames, results, logs and the other channels of :mod:`cloister.audit.emissions`.
- The sums of two tables that differ in one unit, without their mask, differ by at most its bound.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cloister.app.in_process import InProcess, handlers, make_clients, run_clients
from cloister.app.release import release_of
from cloister.app.report.page import render_report
from cloister.audit.emissions import observe
from cloister.audit.findings import Finding
from cloister.audit.noise import in_profile
from cloister.audit.pairs import encoded, groups, lacking
from cloister.audit.reading import (
    CHUNK,
    Options,
    check_reading,
    first_difference,
    large_rows,
    places_of,
    unit_rows,
)
from cloister.audit.runs import MakeNoise, share_of_bound, system_noise
from cloister.audit.sizes import Place, Sums, by_row, compare_sums, sweep, tried
from cloister.audit.sources import CSV, PARQUET, Kind, Row, header, insert, odd_rows, plain, rows_of
from cloister.core.randomness import KEY_BYTES, new_key
from cloister.data import read_source
from cloister.data.schema import Schema
from cloister.hazmat.prg import PadContext
from cloister.hazmat.ring import Integers, to_integers
from cloister.privacy.noise import NoiseKind, NoiseSource
from cloister.protocol.client import Client
from cloister.protocol.journal import MemoryJournal
from cloister.protocol.messages import VECTOR, Upload, decode, encode
from cloister.protocol.plan import Plan
from cloister.protocol.replay import shown
from cloister.protocol.session import Transport
from cloister.protocol.task import Floats, GridState, Records, nested_tasks
from cloister.secagg.masks import GroupMask, Masker, NoMask

_MOST = 2000  # largest number of records of the table of nominal size
_SIZES = (0, 1, 2, 3)  # multiples of the nominal size; 0 means one record
_PAGES = 3  # worlds whose reports are drawn: without the unit, and with it at two places
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_FIELD_TYPES = (property, classmethod, staticmethod)  # code, not data that a class holds

Source = Callable[[], Iterable[Records]]


@dataclass(frozen=True)
class Flow:
    """The findings of whole jobs.

    Parameters
    ----------
    findings : tuple of Finding
        *reading*: do two files that differ in one unit become records that differ in that unit?
        *sizes*: does a unit keep its bound in tables of all sizes, at the states of honest jobs and
        of a dishonest aggregator? *emissions*: do any emissions except the sums depend on records?
    stops : bool
        True if some records stop a job, or the process, and others do not.
    """

    findings: tuple[Finding, ...]
    stops: bool


def check_flow(plan: Plan, schema: Schema, *, make_noise: MakeNoise | None = None) -> Flow:
    """Run whole jobs over files and tables of many sizes; compare sums and emissions."""
    with TemporaryDirectory() as folder:
        reading = check_reading(schema, plan.grid, Path(folder))
    jobs = check_jobs(plan, schema, make_noise=make_noise)
    return Flow((reading, *jobs.findings), jobs.stops)


def check_jobs(plan: Plan, schema: Schema, *, make_noise: MakeNoise | None = None) -> Flow:
    """Run one silo on the frames of several jobs over many tables."""
    with TemporaryDirectory() as folder:
        files = _Files(in_profile(plan, "group") or plan, plain(schema), Path(folder))
        return _compare(files, make_noise or system_noise)


@dataclass(frozen=True)
class Job:
    """A recorded job, whose frames one silo answers again.

    Parameters
    ----------
    frames : tuple of bytes
        Frames of its aggregator to the first silo of the plan, in order.
    states : tuple of mapping
        The public state before each round.
    """

    name: str
    plan: Plan
    masker: Masker = field(repr=False)
    frames: tuple[bytes, ...] = field(repr=False)
    states: tuple[GridState, ...] = field(repr=False)

    @property
    def places(self) -> list[Place]:
        """The rounds of the job, each with the state before it."""
        return list(enumerate(self.states[: self.plan.rounds]))


@dataclass(frozen=True)
class Seen:
    """The uploads and emissions of a silo in a job over one table.

    Parameters
    ----------
    sums : tuple of ndarray
        Its upload of each round, without the mask.
    lines : tuple of str
        All other emissions, one line each.
    """

    sums: tuple[Integers, ...]
    lines: tuple[str, ...]


class _Recorder:
    """A transport that stores the frames to one silo."""

    def __init__(self, inner: Transport, silo: str) -> None:
        self._inner, self._silo = inner, silo
        self.frames: list[bytes] = []

    def exchange(self, frames: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Carry frames."""
        self.frames += [frame for silo, frame in frames.items() if silo == self._silo]
        return self._inner.exchange(frames)


def record(plan: Plan, table: Records, noise: NoiseSource, name: str) -> Job:
    """Run and record a job whose first silo has a table and whose other silos have no records.

    The record of a job that stops ends there; :func:`watch` then stops for the same reason.
    """
    masker = GroupMask(new_key()) if plan.profile == "group" else NoMask()
    records = {silo: [table[:0]] for silo in plan.silos}
    clients = make_clients(plan, {**records, plan.silos[0]: [table]}, masker=masker)
    recorder = _Recorder(InProcess(handlers(clients)), plan.silos[0])
    observe(lambda: list(run_clients(clients, noise, transport=recorder)))
    return Job(name, plan, masker, tuple(recorder.frames), tuple(clients[plan.silos[0]].history))


class _Journal(MemoryJournal):
    """A journal with a fixed secret, so that a silo draws the same coins in all worlds."""

    def secret(self, job: str) -> bytes:
        """Return zeros."""
        return bytes(KEY_BYTES)


def watch(job: Job, source: Source, *, results: bool = False, pages: bool = False) -> Seen:
    """Run the silo of a recorded job over other records.

    Parameters
    ----------
    source : function
        Returns the chunks of the silo; it may read a file.
    results : bool
        If True, the silo also computes its model and the displays of a report.
    pages : bool
        If True, it also draws the page of the report, which doubles the time.
    """
    plan = job.plan
    answers: list[bytes] = []

    def call() -> str:
        client = Client(plan, plan.silos[0], source(), job.masker, _Journal())
        answers.extend(map(client.handle, job.frames))
        if not (results and client.finished):
            return ""
        done = release_of(plan, client.history, client.sums, "replayed")
        page = _DATE.sub("", render_report(done)) if pages else ""  # a run may pass midnight
        return (
            json.dumps(done.to_dict(), sort_keys=True, allow_nan=False)
            + shown(plan, done.results)
            + page
        )

    model, emitted = observe(call)
    sums, lines = [], [*emitted.lines, *_memory(plan), f"model {_digest((model or '').encode())}"]
    for answer in answers:
        message = decode(plan, answer)
        if isinstance(message, Upload):
            about = PadContext(plan.digest.hex(), message.round, 0, VECTOR, message.sender)
            silos = (message.sender,)
            sums.append(to_integers(job.masker.unmask(message.elements, about, silos, silos)))
            message = replace(message, elements=np.zeros_like(message.elements))
            answer = encode(plan, message)
        lines.append(f"frame {message.kind.name} {_digest(answer)}")
    return Seen(tuple(sums), tuple(lines))


def _memory(plan: Plan) -> Iterator[str]:
    """Yield a digest of each attribute of tasks and their classes that holds data, not code."""
    for task in nested_tasks(plan.task):
        kind = type(task)
        held = {name: value for base in kind.__mro__[:-1] for name, value in vars(base).items()}
        for name, value in {**held, **vars(task)}.items():
            if not (name.startswith("__") or callable(value) or isinstance(value, _FIELD_TYPES)):
                yield f"memory {kind.__name__}.{name} {_digest(_bytes_of(value))}"


def _bytes_of(value: object) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception:  # an object of another author's task may raise any error
        return type(value).__name__.encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


# Worlds ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chosen:
    """Noise of a dishonest aggregator: multiples of the scale, repeated over the elements."""

    times: tuple[int, ...]
    label = "chosen by the audit"

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        """Return the chosen elements."""
        return np.resize(np.array(self.times, dtype=np.int64) * scale, size)


_CHOSEN = {
    "without noise": _Chosen((0,)),
    "with noise of 64 scales": _Chosen((64,)),
    "with noise of -64 scales": _Chosen((-64,)),
    "with noise of 2^20 scales by turns": _Chosen((1 << 20, -(1 << 20), 3, 0, -7)),
}


@dataclass(frozen=True)
class _Files:
    """A plan, and files of its schema in one folder, which each world overwrites."""

    plan: Plan
    schema: Schema
    folder: Path

    @property
    def nominal(self) -> int:
        """Number of records of the table of nominal size, at most 2,000."""
        return min(self.plan.nominal_n, _MOST)

    def grouped(self, n: int) -> Records:
        """Return a table around three places."""
        return encoded(self.plan.grid, self._table(n))

    def rows(self, n: int) -> list[Row]:
        """Return the same records as rows of a file, each a unit."""
        return rows_of(self.schema, self.plan.grid, self._table(n))

    def _table(self, n: int) -> Floats:
        return lacking(self.plan, groups(n, self.plan.grid.n_features))

    def file(self, kind: Kind, rows: list[Row], **options: object) -> Source:
        """Write a file and return the function with which the silo reads it."""
        plan = self.plan
        path = kind.write(self.folder, header(self.schema), self.schema, rows)
        how: Options = {"columns": plan.columns, "frac_bits": plan.grid.frac_bits, **options}
        return lambda: read_source(path, self.schema, **how)

    def jobs(self, make_noise: MakeNoise) -> Iterator[Job]:
        """Yield jobs over tables of one record to far more than nominal, and with chosen noise."""
        plan = self.plan
        for times in (1, *(size for size in _SIZES if size != 1)):
            n = max(times * self.nominal, 1)
            yield record(plan, self.grouped(n), make_noise(), f"over {n} records")
        large = sweep(plan)
        yield record(plan, large, make_noise(), f"over {len(large)} records")
        for name, noise in _CHOSEN.items():
            yield record(plan, self.grouped(self.nominal), noise, name)


@dataclass(frozen=True)
class _World:
    """The records of a silo in one world.

    Parameters
    ----------
    like : str
        The name of an earlier world whose sums are compared; empty for none.
    units : int
        Number of units of privacy in this world that the earlier one lacks.
    """

    name: str
    source: Source
    like: str = ""
    units: int = 0


def _worlds(files: _Files) -> Iterator[_World]:
    """Yield worlds of files and tables; the first one has the nominal number of records."""
    n, schema = files.nominal, files.schema
    rows, extra = files.rows(n), unit_rows(schema, files.plan.grid)
    yield _World(base := "a CSV file", files.file(CSV, rows, chunk_rows=CHUNK))
    for name, places in places_of(n, len(extra)).items():
        source = files.file(CSV, insert(rows, extra, places), chunk_rows=CHUNK)
        yield _World(f"a unit {name}", source, base, 1)
    yield _World("a Parquet file", files.file(PARQUET, rows), base)
    odd = list(odd_rows(schema, extra[0], CSV))
    yield _World("odd cells", files.file(CSV, [*odd, *rows], chunk_rows=CHUNK))
    yield _World("a file of one unit", files.file(CSV, extra))
    more = files.rows(3 * n)
    yield _World(base := "a longer file", files.file(CSV, more))
    places = places_of(len(more), len(extra))["spread"]
    yield _World("a longer file and a unit", files.file(CSV, insert(more, extra, places)), base, 1)
    large = files.file(CSV, large_rows(schema, files.plan.grid))
    yield _World("a large file", large)
    table = sweep(files.plan)
    yield _World(base := f"{len(table)} records", lambda: [table])
    parts = np.array_split(table, 100)
    yield _World(f"{len(table)} records in chunks", lambda: parts, base)
    yield from _tables(files)


def _tables(files: _Files) -> Iterator[_World]:
    """Yield worlds of tables in memory, which every job includes."""
    hard, more = tried(files.plan), files.grouped(3 * files.nominal)
    yield _World("no record", lambda: [hard[:0]])
    yield _World("hard records", lambda: [hard])
    yield _World("more records than agreed", lambda: [more])


@dataclass(frozen=True)
class _Compared:
    """The comparison of the worlds of one job.

    Parameters
    ----------
    base : Seen
        The first world.
    worlds : int
        Number of worlds.
    differing : tuple of str
        Worlds in which emissions differ from the first world, with the difference.
    stops : bool
        True if records stopped the job in some worlds only.
    worst : float
        Largest change of a sum by one unit, over its bound.
    adds_up : bool
        True if the same records have the same sum in other chunks and kinds of files.
    """

    base: Seen
    worlds: int
    differing: tuple[str, ...]
    stops: bool
    worst: float
    adds_up: bool


def _compare_worlds(
    job: Job, worlds: Iterable[_World], *, results: bool = False, pages: bool = False
) -> _Compared:
    """Run a silo in each world; compare its emissions with the first, its sums with `like`."""
    seen: dict[str, Seen] = {}
    differing: list[str] = []
    worst, adds_up, stops = 0.0, True, False
    for world in worlds:
        here = seen[world.name] = watch(job, world.source, results=results, pages=pages)
        base = next(iter(seen.values()))
        if line := first_difference(base.lines, here.lines):
            differing.append(f"{world.name} in a job {job.name}: {line}")
            other = set(here.lines).symmetric_difference(base.lines)
            stops |= any(line.startswith("raises") for line in other)
        if not (world.like and by_row(job.plan) and job.plan.rate == 1):
            continue  # sums of other records may depend on the unit, or on coins
        both = zip(seen[world.like].sums, here.sums, strict=False)  # a job may stop early
        for t, (before, after) in enumerate(both):
            if world.units:
                worst = max(worst, share_of_bound(job.plan, t, after - before))
            else:
                adds_up &= bool((after == before).all())
    return _Compared(next(iter(seen.values())), len(seen), tuple(differing), stops, worst, adds_up)


def _compare(files: _Files, make_noise: MakeNoise) -> Flow:
    """Compare the sums and emissions of one silo in all worlds of all jobs."""
    plan, jobs = files.plan, list(files.jobs(make_noise))
    single = files.file(CSV, files.rows(1))
    watch(
        jobs[0], single, results=True, pages=True
    )  # imports and caches emit in the first run only
    compared = [_compare_worlds(jobs[0], _worlds(files), results=True)]
    # Few pages suffice: a page is a function of the results, which are compared in all worlds.
    few = islice(_worlds(files), _PAGES)
    compared += [_compare_worlds(jobs[0], few, results=True, pages=True)]
    compared += [_compare_worlds(job, _tables(files)) for job in jobs[1:]]
    places = [place for job in jobs for place in job.places]
    large_at = [*jobs[0].places, *jobs[len(_SIZES)].places[-1:]]  # the latter has most records
    sums, emitted = observe(lambda: compare_sums(plan, places, large_at))
    differing = [line for job in compared for line in job.differing]
    usual = {line for job in compared for line in job.base.lines}
    if unusual := sorted(set(emitted.lines) - usual):
        differing.append(f"sums of single records and large tables: {unusual[0][:200]}")
    worlds = sum(job.worlds for job in compared)
    emissions = f"a silo emitted the same, but for its sums, in {worlds} worlds of {len(jobs)} jobs"
    if differing:
        emissions = f"a silo emitted something else in {len(differing)} of {worlds} worlds: "
        emissions += differing[0]
    return Flow(
        (_sizes(files, compared, sums), Finding("emissions", bool(differing), emissions)),
        sums is None or any(job.stops for job in compared),
    )


def _sizes(files: _Files, compared: Iterable[_Compared], sums: Sums | None) -> Finding:
    jobs = list(compared)
    if sums is None:
        return Finding("sizes", True, "some records STOP the sum, so no bound can be checked")
    worst = max(sums.worst, *(job.worst for job in jobs))
    adds_up = sums.adds_up and all(job.adds_up for job in jobs)
    return Finding(
        "sizes",
        worst > 1 or not adds_up,
        f"a unit added at most {worst:.4g} of its bound, at {sums.places} states of jobs over 1 to "
        f"{len(sweep(files.plan))} records and of an enemy"
        + ("" if adds_up else "; tables do NOT add what their slices add"),
    )
