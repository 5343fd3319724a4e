"""The question of a job in sections, with what is new since a job that was approved before.

The lines and their order are those of the signed text; see :mod:`cloister.app.question`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cloister.app.question import facts_of, hash_of
from cloister.core.display import Table
from cloister.core.errors import CloisterError, PlanError
from cloister.data.schema import Schema
from cloister.federation.silo.store import Job
from cloister.protocol.lifecycle import SiloState
from cloister.protocol.plan import Plan, study_name

Pairs = tuple[tuple[str, str], ...]

COST, PARTIES, CODE = "What it costs, and what is left", "Who takes part", "Contract and code"
_STARTS = {
    "question": "What is asked",
    "column": "Of which columns",
    "option": "With which options",
    "epsilon": COST,
    "unit of privacy": "Of whose records, and how often",
    "silos": PARTIES,
    "readers of the result": "Who reads the result",
    "upload slot in seconds": CODE,
}
"""By the name of its first line, the title of each section."""
_NEVER_APPROVED = (SiloState.WAITING, SiloState.DECLINED, SiloState.WITHDRAWN)
_APPROVERS = ("owner", "standing rule")


@dataclass(frozen=True)
class Line:
    """A line of the question.

    Parameters
    ----------
    news : str
        "new" or "was VALUE", against the job before; empty if it is the same or there is none.
    """

    name: str
    value: str
    news: str = ""


@dataclass(frozen=True)
class Section:
    """Lines of the question under one title.

    Parameters
    ----------
    here : pairs of text
        What this silo adds; it is no part of the signed text.
    """

    title: str
    lines: tuple[Line, ...] = ()
    here: Pairs = ()
    table: Table | None = None


@dataclass(frozen=True)
class Since:
    """The comparison of a question with that of the job before.

    Parameters
    ----------
    sentence : str
        The job before and the number of differences.
    gone : pairs of text
        Its lines that the new question lacks.
    """

    sentence: str
    gone: Pairs = ()


def sections_of(
    asked: Pairs,
    before: Pairs | None = None,
    here: dict[str, Pairs] | None = None,
    tables: dict[str, Table] | None = None,
) -> tuple[Section, ...]:
    """Return every line of a question, in sections.

    Parameters
    ----------
    asked, before : pairs of text
        The question; that of the job before, or None.
    here, tables : mapping of title to pairs, to Table
        What this silo adds to a section.
    """
    here, tables = here or {}, tables or {}
    title, lines = _STARTS["question"], _lines(asked, before)
    grouped: dict[str, list[Line]] = {name: [] for name in _STARTS.values()}
    for line in lines:
        title = _STARTS.get(line.name.partition(" ")[0] if _is_option(line) else line.name, title)
        grouped[title].append(line)
    sections = (
        Section(name, tuple(found), here.get(name, ()), tables.get(name))
        for name, found in grouped.items()
    )
    return tuple(one for one in sections if one.lines or one.here or one.table)


def _is_option(line: Line) -> bool:
    return line.name.startswith("option ")


def _lines(asked: Pairs, before: Pairs | None) -> Iterable[Line]:
    if before is None:
        return (Line(name, value) for name, value in asked)
    known, values, single = set(before), dict(before), _single(asked) & _single(before)
    return (
        Line(
            name,
            value,
            "" if (name, value) in known else f"was {values[name]}" if name in single else "new",
        )
        for name, value in asked
    )


def _single(pairs: Pairs) -> set[str]:
    """Return the names that occur once; a question has many columns and readers."""
    return {name for name, count in Counter(name for name, _ in pairs).items() if count == 1}


def since(asked: Pairs, before: Pairs, job: Job) -> Since:
    """Return the comparison of a question with that of an earlier job."""
    changed = sum(bool(line.news) for line in _lines(asked, before))
    kept, single = set(asked), _single(asked) & _single(before)
    gone = tuple(pair for pair in before if pair not in kept and pair[0] not in single)
    which = f"job {job.id[:12]}, received {job.received_at} and approved by the {job.decided_by}"
    if not changed and not gone:
        return Since(f"The question is the same as that of {which}.")
    new, lost = (f"{n} line{' is' if n == 1 else 's are'}" for n in (changed, len(gone)))
    return Since(f"Compared with {which}: {new} new, {lost} gone.", gone)


def job_before(job: Job, jobs: Sequence[Job]) -> Job | None:
    """Return the last approved job of the same study and task that came before a job.

    A declined or withdrawn job is no predecessor, since a repeated question would look known.
    """
    key, found = _study_and_task(job), None
    for other in jobs:  # oldest first
        if other.id == job.id:
            break
        approved = other.decided_by in _APPROVERS and other.state not in _NEVER_APPROVED
        if approved and _study_and_task(other) == key:
            found = other
    return found


def _study_and_task(job: Job) -> tuple[str, str]:
    plan = json.loads(job.plan)
    try:
        return study_name(plan["study"]), plan["task"]["name"]
    except PlanError:  # from before the rule for names
        return plan["study"], plan["task"]["name"]


def lines_before(plan: Plan, schema: Schema) -> Pairs | None:
    """Return the lines of an earlier question, or None if this silo cannot write them again.

    The schema may have changed since, so the hash in the plan decides.
    """
    try:
        pairs = tuple(facts_of(plan, schema))
    except CloisterError:
        return None
    same = hash_of("".join(f"{name}: {value}\n" for name, value in pairs)) == plan.question
    return pairs if same else None
