"""``cloister ask``: from files to an answer in one dialogue, or in one line of options.

It drafts the contract from headers, a codebook and a person's bounds, never from values. How each
file is written is then taken from the reader's report on it, as with ``cloister check``.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, combinations
from pathlib import Path
from typing import Any, TypeVar

from cloister.app.files import (
    name_silos,
    prepare_folder,
    read_settings,
    refuse_results,
    schemas_of,
)
from cloister.app.forecast import expected, unknown_error
from cloister.app.job import columns_used
from cloister.app.payment import LEDGER_VARIABLE
from cloister.app.text import attacker_sentence
from cloister.cli.options import (
    add_confirm_argument,
    add_max_loss_argument,
    add_reading_argument,
    add_set_argument,
    comma_separated,
    job_of,
    task_options,
)
from cloister.cli.output import Output, ask
from cloister.cli.over_files import TaskCommand, after_steps
from cloister.core.capability import CAPABILITIES
from cloister.core.dates import nearest_day
from cloister.core.display import Table
from cloister.core.errors import DataError, PlanError, choosing
from cloister.core.files import write_text
from cloister.core.html import clean
from cloister.data import (
    Remedy,
    declared_types,
    header,
    loss_notice,
    refuse_loss,
    roles_of,
    similar_columns,
)
from cloister.data.check import fitted
from cloister.data.schema import Column, Schema, read_bounds, read_codebook, reading_file
from cloister.tasks import TASKS
from cloister.tasks.columns import SITE
from cloister.tasks.options import options_of

QUESTIONS = tuple(
    name
    for name, row in CAPABILITIES.items()
    if row.command or (row.question and name != "apriori")
)
"""Tasks that answer a question on a table; baskets have the command ``rules``."""
_Answer = TypeVar("_Answer")
_HOW = "NAME=LOW..HIGH, NAME=A|B|C, NAME=yes-no or NAME=DATE..DATE"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="each file is a silo, in its own format"
    )
    parser.add_argument(
        "--question", choices=QUESTIONS, metavar="NAME", help=f"one of {', '.join(QUESTIONS)}"
    )
    parser.add_argument(
        "--codebook", type=Path, help="CSV or TOML with name, type, min, max, categories, ..."
    )
    parser.add_argument(
        "--bounds",
        action="append",
        default=[],
        metavar="NAME=LOW..HIGH",
        help=f"public bounds of a column: {_HOW}; may be repeated",
    )
    parser.add_argument(
        "--columns",
        type=comma_separated,
        metavar="NAME,NAME,...",
        help="columns to use (default: all that every file has)",
    )
    parser.add_argument(
        "--unit", metavar="COLUMN", help="column that identifies the person (default: each row)"
    )
    parser.add_argument(
        "--max-rows", type=int, metavar="N", help="with --unit: rows of a person (default: 1)"
    )
    add_set_argument(parser)
    parser.add_argument("--epsilon", type=float, metavar="E", help="privacy budget")
    parser.add_argument(
        "--nominal-n", type=int, metavar="N", help="public number of records in all files"
    )
    parser.add_argument(
        "--dataset", metavar="NAME", help="name in the ledger (default: names of the files)"
    )
    parser.add_argument("--cap-epsilon", type=float, metavar="E", help="cap of a new data set")
    parser.add_argument(
        "--ledger", type=Path, metavar="PATH", help=f"ledger to charge (default: {LEDGER_VARIABLE})"
    )
    add_confirm_argument(parser)
    parser.add_argument(
        "--out", type=Path, default=Path("answer"), metavar="DIR", help="folder (default: answer)"
    )
    parser.add_argument(
        "--yes", action="store_true", help="accept columns, reading and price without a question"
    )
    add_reading_argument(parser)
    add_max_loss_argument(parser)
    # The other options of a job over files.
    parser.set_defaults(
        baskets=[], cache_dir=None, delta=None, study="default", min_silos=0,
    )  # fmt: skip


def run(args: argparse.Namespace, out: Output) -> Mapping[str, Any] | None:
    """Propose a schema, show the price, and run the question after a confirmation."""
    refuse_results(args.out)
    silos = name_silos(args.files)
    names, own_headers = _common_columns(args, out)
    question = args.question or _asked(
        f"Question ({', '.join(QUESTIONS)})", "--question", _question
    )
    task, options = TASKS[question], _options(args, question, names)
    named = roles_of(options) - {SITE} | _named_columns(options, names)
    schema = _confirmed(args, names, named, question, out)
    args.columns = columns_used(task, options, schema)
    # How a file is written may be given; what else is needed, the reader's report proposes.
    started = schemas_of(schema, silos.values(), args.reading, wider=True)
    for path, known in started.items():
        cased = own_headers[path.name]
        columns = {name: {"header": cased[name]} for name in schema.names if name in cased}
        unit = {"unit_header": cased[args.unit]} if args.unit in cased else {}
        started[path] = known.written_as(columns=columns, **unit)
        for name in [*columns, *([args.unit] if unit else [])]:
            out.say(f"{path.name}, column {name!r}: header = {_quoted(cased[name])}")
    reading: dict[str, Schema] = {}
    reports = []
    for path in silos.values():
        accept = partial(_accept, path.name, ask_person=not args.yes)
        own, remedies, report = fitted(path, started[path], args.columns, accept=accept)
        # Exactly which columns it completes is known in the run, which checks again.
        completed = schema.names if hasattr(task, "incomplete") else ()
        reports.append(report.for_task(completed))
        for hint in report.hints:
            out.warn_locally(f"{path.name}: {hint}")
        reading[path.name] = own
        for remedy in remedies:
            column = f", column {remedy.column!r}" if remedy.column else ""
            out.say(f"{path.name}{column}: {remedy}")
    # Before the price, since a person would else decide on a job that cannot run.
    try:
        refuse_loss(reports, roles_of(options), args.max_loss)
    except DataError as error:
        prepare_folder(args.out)
        write_text(found := args.out / "reading.toml", reading_file(reading))
        raise DataError(f"{error} Settings found so far: --reading {found}.") from None
    if not args.yes:  # the run tells those who are not asked
        for notice in filter(None, map(loss_notice, reports)):
            out.warn_locally(notice)
    if args.epsilon is None:
        args.epsilon = _asked("Privacy budget, epsilon; 1 is usual", "--epsilon", _positive)
    if args.nominal_n is None:
        args.nominal_n = _or_none("Public number of records (Enter: unknown)", _whole)
    task, options = after_steps(task, options, schema, args.columns)
    plan = job_of(args, task, schema, silos, options).plan
    out.paragraph(f"\nIt costs {plan.budget}. {attacker_sentence(plan.events(), plan.unit)}")
    for table in expected(plan) if args.nominal_n else ():
        out.table(table)
        if table.note:
            out.paragraph(table.note)
    if args.nominal_n and (unknown := unknown_error(plan)):
        out.paragraph(unknown)
    if not args.yes and not (ask("Run it? [y/N] ") or _nobody("--yes")).lower().startswith("y"):
        out.say("Nothing was spent.")
        return {"ran": False}
    prepare_folder(args.out)
    args.schema, args.reading = args.out / "schema.toml", args.out / "reading.toml"
    write_text(args.schema, schema.to_toml())
    write_text(args.reading, reading_file(reading))
    return TaskCommand(lambda parser: None, lambda _: (task, options)).run(args, out)


# Columns ------------------------------------------------------------------------------------------


def _common_columns(
    args: argparse.Namespace, out: Output
) -> tuple[tuple[str, ...], dict[str, dict[str, str]]]:
    """Return the columns of all files, in the order of the first; tell a person of the others.

    Only those of ``--columns`` and ``--unit`` count, if they are given. The second value holds, by
    file and column, the headers that differ from the name of the column by case only.
    """
    settings = read_settings(args.reading)
    known = [*read_codebook(args.codebook)] if args.codebook else []
    headers = {
        path.name: _renamed(header(path), settings.get(path.name), args.unit) for path in args.files
    }
    renamed = [name for file in headers for name in _columns_in(settings.get(file))]
    cased = _by_case(headers, [*renamed, *(args.columns or ()), args.unit or "", *known])
    for file, own_names in cased.items():
        names_of = {own: name for name, own in own_names.items()}
        headers[file] = tuple(names_of.get(name, name) for name in headers[file])
    every = dict.fromkeys(name for names in headers.values() for name in names if name)
    if args.columns:
        chosen = {*args.columns, args.unit}
        if unknown := [name for name in args.columns if name not in every]:
            raise PlanError(
                f"columns cannot name {unknown[0]!r}; the files have {', '.join(every)}."
            )
        every = {name: None for name in every if name in chosen}
    common = tuple(name for name in every if all(name in names for names in headers.values()))
    sentences: dict[str, str] = {}
    remedy = "set 'header' of the column for that file in --reading"
    for name in (name for name in every if name not in common):
        # Two spellings of a name are one problem; a name with and one without a unit are two.
        if similar_columns([name], sentences) and similar_columns(sentences, [name]):
            continue
        lacking = {file: names for file, names in headers.items() if name not in names}
        own = {file: similar_columns([name], names) for file, names in lacking.items()}
        shown = [f"{file} (it has {one[0]!r})" if one else file for file, one in own.items()]
        sentences[name] = f"{name}: not in {', '.join(shown)}"
        for file, found in own.items():
            if found and "=" not in remedy:
                remedy += f", in two lines: [{_quoted(file)}.columns.{_quoted(name)}] and header"
                if name == args.unit:
                    remedy = f"set in --reading, in two lines: [{_quoted(file)}] and unit_header"
                remedy += f" = {_quoted(found[0])}"
    wanted = [text for name, text in sentences.items() if similar_columns([name], known)]
    if args.columns and sentences:
        raise PlanError(f"{'; '.join(sentences.values())}; omit it from --columns, or {remedy}.")
    if args.yes and wanted:
        raise PlanError(f"{'; '.join(wanted)}; omit it from the codebook, or {remedy}.")
    for sentence in sentences.values():
        out.warn(f"{sentence}; it is left out.")
    if not common:
        raise PlanError(f"the files have no column in common; {remedy}.")
    if sentences:
        out.warn(f"to use a column under another name, {remedy}.")
    return common, cased


def _by_case(
    headers: Mapping[str, Sequence[str]], known: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return the headers of each file, by name, that differ from the name by case only.

    The name is one of `known`, else that in the first file. Each file must have one such header.
    """
    spelled: dict[str, dict[str, list[str]]] = {file: {} for file in headers}
    for file, names in headers.items():
        for name in names:
            spelled[file].setdefault(name.casefold(), []).append(name)
    wanted = {name.casefold(): name for name in reversed(known)}
    cased: dict[str, dict[str, str]] = {file: {} for file in headers}
    for lower, (first, *_) in next(iter(spelled.values())).items():
        found = {file: names.get(lower, []) for file, names in spelled.items()}
        name = wanted.get(lower, first)
        spellings = {name, *chain(*found.values())}
        if any(len(names) != 1 for names in found.values()) or not _same(spellings):
            continue
        for file, (own,) in found.items():
            cased[file] |= {name: own} if own != name else {}
    return cased


def _same(names: Iterable[str]) -> bool:
    """Return True if names differ by the case of all letters only; mW and MW are two units."""
    return all(
        one in {other.lower(), other.upper(), other.capitalize(), other.title()}
        or other in {one.lower(), one.upper(), one.capitalize(), one.title()}
        for one, other in combinations(names, 2)
    )


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False, allow_nan=False)


def _renamed(names: Iterable[str], settings: Any, unit: str | None) -> tuple[str, ...]:
    """Return the names of a file's columns in the schema, by its reading settings."""
    others = {
        keys.get("header"): name
        for name, keys in _columns_in(settings).items()
        if isinstance(keys, Mapping)
    }
    if unit and isinstance(settings, Mapping) and "unit_header" in settings:
        others[str(settings["unit_header"])] = unit
    return tuple(others.get(name, name) for name in names)


def _columns_in(settings: Any) -> Mapping[str, Any]:
    """Return the settings of columns in the reading settings of a file; empty if malformed."""
    columns = settings.get("columns", {}) if isinstance(settings, Mapping) else {}
    return columns if isinstance(columns, Mapping) else {}


def _confirmed(
    args: argparse.Namespace,
    names: Sequence[str],
    named: frozenset[str],
    question: str,
    out: Output,
) -> Schema:
    """Return the schema of the columns whose bounds are known, confirmed by a person."""
    entries: dict[str, dict[str, Any]] = {
        name: dict(entry) for name, entry in declared_types(args.files[0]).items() if name in names
    }
    known = read_codebook(args.codebook) if args.codebook else {}
    described = {name: {**known[name], "name": name} for name in names if name in known}
    entries |= described
    _add_bounds(entries, args.bounds, names)
    for name in (name for name in described if name != args.unit):
        try:
            _column(name, entries[name], is_given=True)
        except PlanError as error:
            out.warn(f"left out: {error}")
    is_open = True
    while is_open:
        columns = {name: column for name in names if (column := _column(name, entries.get(name)))}
        missing = sorted(named - columns.keys())
        rows = tuple((name, *_described(columns.get(name))) for name in names if name != args.unit)
        out.table(Table("Columns", ("column", "type", "public bounds"), rows))
        is_open = bool(missing or not columns)
        answer = None if args.yes else ask(f"Change bounds ({_HOW}), or Enter to go on: ")
        if answer:
            is_open = True
            try:
                _add_bounds(entries, shlex.split(answer), names)
            except (PlanError, ValueError) as error:  # earlier answers are kept
                out.warn(str(error))
        elif is_open:
            lacking = f"bounds of {', '.join(missing)}" if missing else "bounds of a column"
            hint = (
                f"give {lacking}: --codebook, or --bounds {missing[0] if missing else 'NAME'}"
                "=LOW..HIGH, from a guideline and never from the records"
                f"{choosing('bounds')}."
            )
            if answer is None:
                raise PlanError(hint)
            out.warn(hint)
    if args.unit and args.max_rows is None and not args.yes:
        args.max_rows = _or_none(
            f"Most rows of one {args.unit} in a file; more are left out (Enter: 1)", _whole
        )
    rows_of_unit = (args.max_rows or 1) if args.unit else None
    return Schema(
        dataset=args.dataset or "-".join(sorted(name_silos(args.files))),
        unit=args.unit or "row",
        max_rows=rows_of_unit,
        columns=tuple(column for name, column in columns.items() if name != args.unit),
    )


def _add_bounds(
    entries: dict[str, dict[str, Any]], texts: Iterable[str], names: Sequence[str]
) -> None:
    """Add bounds given as text; the type that a codebook or file declares stays."""
    for text in texts:
        name, equals, bounds = text.partition("=")
        if not equals or name not in names:
            raise PlanError(f"bounds must be {_HOW} of a column of all files, got {text!r}.")
        kind = entries.get(name, {}).get("type", "")
        entries[name] = {**entries.get(name, {}), **read_bounds(bounds, kind)}
        _column(name, entries[name], is_given=True)


def _column(name: str, entry: Mapping[str, Any] | None, *, is_given: bool = False) -> Column | None:
    """Return the column of an entry; None if its bounds are not complete."""
    keys = {key: value for key, value in (entry or {}).items() if value not in ("", None)}
    try:
        return Column(**{**keys, "name": name})
    except PlanError:
        if is_given:
            raise
        return None


def _described(column: Column | None) -> tuple[str, str]:
    if column is None:
        return "left out", ""
    if column.type == "boolean":
        return column.type, "yes or no"
    ends = (nearest_day(e) if column.type == "date" else f"{e:g}" for e in (column.min, column.max))
    return column.type, ", ".join(column.categories) or " to ".join(map(str, ends))


# Options ------------------------------------------------------------------------------------------


def _options(args: argparse.Namespace, question: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the options of a task, of which a person is asked those without a default."""
    task = TASKS[question]
    options = task_options(task, args.set)
    row = CAPABILITIES[question].question
    # A text that is empty stands for the default of the task.
    start = {name: text for name, text in row.start.items() if text} if row else {}
    required = {option.name: option.help for option in options_of(task) if option.required}
    own = {option.name: option.default for option in options_of(task)}
    for name in dict.fromkeys((*required, *start)):
        if name in options:
            continue
        if default := start.get(name):
            answer = (None if args.yes else ask(f"{name} (Enter: {default}): ")) or default
            # Two defaults in words, such as families, are no answer that a person may have meant.
            if args.yes and isinstance(own[name], str) and own[name] != default:
                _nobody(f"--set {name}={default} or {name}={own[name]}, or another,")
            options |= task_options(task, [f"{name}={answer}"])
            continue

        def read(text: str, name: str = name) -> dict[str, Any]:
            given = task_options(task, [f"{name}={text}"])
            _check_roles(question, given, names)
            return given

        options |= _asked(f"{name}: {required.get(name, name)}", f"--set {name}=...", read)
    _check_roles(question, options, names)
    return options


def _check_roles(question: str, options: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise PlanError unless all files have the columns that options name."""
    row = CAPABILITIES[question]
    one_column = {*(row.question.roles if row.question else ()), *row.names}
    texts = [v for name, v in options.items() if name in one_column and isinstance(v, str)]
    # The silo of a record is no column; a task that cannot use it tells how to get one.
    if unknown := [name for name in (*roles_of(options), *texts) if name not in (*names, SITE)]:
        raise PlanError(f"all files need a column {unknown[0]!r}; they have {', '.join(names)}.")


def _named_columns(options: Mapping[str, Any], names: Sequence[str]) -> frozenset[str]:
    """Return the columns that options name."""
    values = [v if isinstance(v, list | tuple) else [v] for v in options.values()]
    return frozenset(v for several in values for v in several if isinstance(v, str) and v in names)


def _asked(what: str, option: str, read: Callable[[str], _Answer]) -> _Answer:
    """Return a person's answer as `read` understands it; raise an error that names the option.

    A person is asked again after an answer that `read` refuses.
    """
    while True:
        answer = ask(f"{what}: ") or _nobody(option)
        with _told_again():
            return read(answer)


def _or_none(what: str, read: Callable[[str], _Answer]) -> _Answer | None:
    """Return a person's answer as `read` understands it; None if there is none."""
    while answer := ask(f"{what}: "):
        with _told_again():
            return read(answer)
    return None


@contextmanager
def _told_again() -> Iterator[None]:
    """Show the error in an answer, since the question follows again."""
    try:
        yield
    except PlanError as error:
        sys.stderr.write(f"{clean(str(error))}\n")


def _nobody(option: str) -> str:
    raise PlanError(f"{option} must be given, since nobody answered at a terminal.")


def _question(text: str) -> str:
    if text not in QUESTIONS:
        raise PlanError(f"question must be one of {', '.join(QUESTIONS)}, got {text!r}.")
    return text


def _positive(text: str) -> float:
    with suppress(ValueError):
        if 0 < (value := float(text)) < math.inf:
            return value
    raise PlanError(f"epsilon must be a positive number, got {text!r}.")


def _whole(text: str) -> int:
    digits = re.sub(r"(?<=\d)[.,' ](?=\d{3}(\D|$))", "", text)
    if not digits.isdecimal() or not int(digits):
        raise PlanError(f"this must be a whole number of 1 or more, got {text!r}.")
    return int(digits)


# Reading ------------------------------------------------------------------------------------------


def _accept(file: str, _: Remedy, why: str, *, ask_person: bool) -> bool:
    """Return a person's decision on a setting that is only likely."""
    answer = ask(f"{file}, {why}. Set this? [y/N] ") if ask_person else None
    return (answer or "").lower().startswith("y")
