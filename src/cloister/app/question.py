"""The question of a job: its plan derived from a silo's own schema, and its complete text.

A plan carries the options from which its task was designed. A silo designs the task again from its
own schema and these options, and refuses a plan that differs in any byte. The text lists all that
is asked, never shortened. Its hash is part of the plan, so a signature over the plan covers it.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from cloister.app.encoded_options import NUMBER, PAIRS
from cloister.core.dates import nearest_day
from cloister.data.schema import Column, Schema
from cloister.protocol.plan import Plan

_LABEL = b"cloister/question/1\0"  # separates the hash from those of other texts
_SEPARATORS = ";|,:=()"
_NUMERIC = re.compile(r"[-+.\d]+(e[-+]?\d+)?|True|False|inf|nan", re.IGNORECASE)


def question_of(plan: Plan, schema: Schema) -> str:
    """Return the text of everything that a plan asks of records, one fact a line.

    Parameters
    ----------
    plan : Plan
        With options.
    schema : Schema
        The agreed data contract; the silo's own at a silo.

    Returns
    -------
    str
        Lines ``name: value``, in an order that follows from the plan. It ends with a line end.
    """
    return "".join(f"{name}: {value}\n" for name, value in facts_of(plan, schema))


def hash_of(text: str) -> str:
    """Return the SHA-256 of a question, 64 hexadecimal digits."""
    return hashlib.sha256(_LABEL + text.encode()).hexdigest()


def facts_of(plan: Plan, schema: Schema | None) -> Iterator[tuple[str, str]]:
    """Yield the names and values of :func:`question_of`; without a schema, columns by name only."""
    task = plan.task
    yield "question", "1"
    yield (
        "task",
        _word(task.name)
        + (
            f", of {_word(plan.code.distribution)} {_word(plan.code.version)}".rstrip()
            if plan.code
            else ""
        ),
    )
    yield "what is computed", _line(task.describe())
    for name in () if schema else plan.columns:
        yield "column", _word(name)
    for column in schema.select(plan.columns).columns if schema else ():
        yield "column", f"{_word(column.name)}: {_column(column)}"
    for name, value in sorted((plan.options or {}).items()):
        yield f"option {_word(name)}", _listed(value)
    yield from _price(plan)
    yield from _parties(plan)
    yield "schema", plan.schema_digest
    yield "design", hashlib.sha256(_canonical(plan.to_dict()["task"]).encode()).hexdigest()


def _price(plan: Plan) -> Iterator[tuple[str, str]]:
    budget = plan.budget
    yield "epsilon", "none; NOT PRIVATE" if budget is None else repr(budget.epsilon)
    yield "delta", "none" if budget is None else repr(budget.delta)
    yield "noise", plan.layout.mechanism
    yield "unit of privacy", _line(plan.unit_in_words())
    yield "unit column", _word(plan.unit)
    yield "rows of a unit in a silo, at most", repr(plan.max_rows)
    yield "silos of a person, at most", repr(plan.max_silos_per_person)
    yield "study", _word(plan.study)
    yield "records in all silos, as agreed", repr(plan.nominal_n)
    yield "rounds", repr(plan.rounds)
    yield from _renewal(plan)
    yield "bits of the grid", repr(plan.grid.frac_bits)


def _renewal(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what a horizon asks of a silo beyond one release."""
    if plan.horizon is None:
        return
    yield "periods", f"{plan.horizon.periods}; epsilon is the price of all of them together"
    yield "periods of a unit in a silo, at most", repr(plan.horizon.max_periods)
    yield "matrix", hashlib.sha256(_canonical(plan.horizon.to_dict()).encode()).hexdigest()
    yield "sent by a silo", "only what its owner freezes, period by period"
    yield "stored at a silo", "the exact sum of each period and keyed counts, until the job ends"
    yield (
        "if a person's data are erased",
        "its part of stored sums stays until the job ends, in later releases, too; what was "
        "released stays released",
    )


def _parties(plan: Plan) -> Iterator[tuple[str, str]]:
    yield "silos", "; ".join(map(_word, plan.silos))
    yield "fingerprints", "; ".join(plan.fingerprints) or "none"
    yield "silos in a sum, at least", repr(plan.min_silos)
    yield "masks", plan.profile
    yield "colluding silos, at most", repr(plan.collusion)
    yield "readers of the result", "the silos of the job" + ", and those below" * bool(plan.readers)
    for reader in plan.readers:
        yield "reader", f"{_word(reader.name)}, {reader.fingerprint}, key {reader.box}"
    yield "upload slot in seconds", repr(plan.upload_slot)


def _column(column: Column) -> str:
    """Return the contract of a column."""
    of = (
        " | ".join(map(_word, column.categories))
        if column.categories
        else ""
        if column.type == "boolean"
        else f"{_bound(column, column.min)} to {_bound(column, column.max)}"
    )
    parts = (
        f"{column.type}{' ' * bool(of)}{of}",
        f"in {_word(column.measure)}" if column.measure else "",
        f"missing: {_word(str(column.missing))}",
        f"out of range: {column.out_of_range}",
    )
    return ", ".join(part for part in parts if part)


def _bound(column: Column, value: float) -> str:
    """Return a bound; that of a date as its day, and as the number of years that counts."""
    return f"{nearest_day(value)} [{value!r}]" if column.type == "date" else repr(value)


def _listed(value: Any) -> str:
    """Return an encoded option as text: lists in their order, nothing left out."""
    if isinstance(value, Mapping):
        if NUMBER in value:
            return str(value[NUMBER])
        pairs = value[PAIRS] if PAIRS in value else sorted(value.items())
        return "; ".join(f"{_entry(key)} = {_entry(entry)}" for key, entry in pairs) or "none"
    if isinstance(value, list | tuple):
        return "; ".join(map(_entry, value)) or "none"
    if isinstance(value, str):  # quoted where it could be taken for a number
        return json.dumps(value, allow_nan=False) if _NUMERIC.fullmatch(value) else _word(value)
    return "not given" if value is None else repr(value)


def _entry(value: Any) -> str:
    """Return an entry of a list: that of a table is written ``a by b``.

    Lists inside it are in brackets: without them, ``a + b`` and ``a:b`` of a formula are one text.
    """
    if isinstance(value, list | tuple):
        inner = [isinstance(part, list | tuple) and bool(part) for part in value]
        parts = [f"({_entry(p)})" if i else _entry(p) for p, i in zip(value, inner, strict=True)]
        return " by ".join(parts) or "()"
    return f"({_listed(value)})" if isinstance(value, Mapping) else _listed(value)


def _word(text: str) -> str:
    """Return a name, quoted as in JSON if a reader could take it for something else."""
    plain = text == text.strip() and text not in ("", "none", "not given")
    marks = any(mark in text for mark in (*_SEPARATORS, '"', " by "))
    hidden = any(unicodedata.category(c)[0] in "CZ" and c != " " for c in text)
    return json.dumps(text, allow_nan=False) if marks or hidden or not plain else text


def _line(text: str) -> str:
    """Return sentences of a task as one line, without characters that a page does not show."""
    return " ".join("".join(" " if unicodedata.category(c)[0] == "C" else c for c in text).split())


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def differences(plan: Plan, derived: Plan) -> list[str]:
    """Return the paths of all fields in which two plans differ in any byte."""
    return list(_paths(plan.to_dict(), derived.to_dict()))


def _paths(one: Any, other: Any, path: str = "") -> Iterator[str]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in sorted(one.keys() | other.keys()):
            inner = f"{path}.{name}" if path else name
            if (name in one) != (name in other):
                yield inner
            else:
                yield from _paths(one[name], other[name], inner)
    elif _canonical(one) != _canonical(other):
        yield path
