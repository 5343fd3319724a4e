"""How much of a source may be lost: what a desk refuses and an agent does not serve.

Whoever holds the files hears of a loss before anything is spent. A job of a federation is never
stopped or changed by one: that would be an answer about records that nobody paid for.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cloister.core.errors import DataError, DataLossWarning, PlanError
from cloister.data.reading import ReadingReport

MAX_LOSS = 0.05
"""Share of the rows of a source that may be left out where nobody accepts more."""
MAX_UNKNOWN_ITEMS = 0.49
"""Likewise of the items of baskets: a catalogue may hold only some goods.

Half of the items of a table read as lines are outside, since each line has an identifier.
"""
ROLES = frozenset({"target", "event", "by", "group", "truth", "over", "tables"})
"""Options of tasks that name a target, an event or groups."""


def check_max_loss(max_loss: float | None) -> None:
    """Raise a PlanError unless `max_loss` is None or a share."""
    if max_loss is None:
        return
    if isinstance(max_loss, bool | str) or not 0 <= max_loss <= 1:
        raise PlanError(f"max_loss must be a share from 0 to 1, got {max_loss!r}.")


def roles_of(options: Mapping[str, Any], names: Sequence[str] = ()) -> frozenset[str]:
    """Return the columns that the options of a task name as target, event or groups.

    Parameters
    ----------
    options : mapping
        Of a task, or of a pipeline with `steps`; a value is a name, a place in `names`, or nested
        sequences of them. A released `model` has the place of its target.
    names : sequence of str
        The columns of the job.
    """
    values: list[Any] = [value for name, value in options.items() if name in ROLES]
    values.append(getattr(options.get("model"), "target", None))
    found = frozenset(name for value in values for name in _names(value, names))
    for step in options.get("steps", ()):
        inner = [part for part in step if isinstance(part, Mapping)]
        found = found.union(*(roles_of(part, names) for part in inner))
    return found


def _names(value: Any, names: Sequence[str]) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        yield names[value]
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            yield from _names(part, names)


def reports_of(silos: Mapping[str, Any]) -> list[ReadingReport]:
    """Return the reports of the records of silos, each source with a name of its own."""
    found = [(name, report) for name in silos for report in getattr(silos[name], "reports", ())]
    if len({report.source for _, report in found}) == len(found):
        return [report for _, report in found]
    return [replace(report, source=f"{report.source} of {name}") for name, report in found]


def whole_of(reports: Sequence[ReadingReport]) -> ReadingReport:
    """Return one report with the sums of several, such as of partitions; its columns are none."""
    counted = ("rows", "used", "bad_lines", "items", "unknown_items", "without_unit")
    sums = {name: sum(getattr(one, name) for one in reports) for name in counted}
    beyond = sum(one.beyond_max_rows for one in reports)
    return replace(reports[0], **sums, beyond_max_rows=beyond, merged_units=(), columns=())


def is_above(report: ReadingReport, max_loss: float | None = None) -> bool:
    """Return whether more of a source is left out than `max_loss`, 5 % of the rows by default."""
    limit = MAX_LOSS if max_loss is None else max_loss
    return report.row_share > limit or report.item_share > max(limit, MAX_UNKNOWN_ITEMS)


def refuse_loss(
    reports: Iterable[ReadingReport],
    roles: Collection[str] = (),
    max_loss: float | None = None,
) -> None:
    """Raise a DataError for the owner where too much of a source would be left out.

    Parameters
    ----------
    reports : iterable of ReadingReport
    roles : collection of str
        Columns that are a target, an event or groups. Unless `max_loss` is given, no value of
        theirs may be lost with all of its rows.
    max_loss : float in [0, 1], optional
        Share of the rows of each source that may be left out, 5 % by default.

    Raises
    ------
    DataError
        It counts rows and quotes words, so it is for a desk, before anything is spent.
    """
    check_max_loss(max_loss)
    found = [(one, list(_problems(one, roles, max_loss))) for one in reports]
    stopping = [one for one, problems in found if problems]
    if stopping:
        sentences = [sentence for _, problems in found for sentence in problems]
        raise DataError(" ".join([*dict.fromkeys(sentences), _way_out(stopping, max_loss)]))


def _problems(
    report: ReadingReport, roles: Collection[str], max_loss: float | None
) -> Iterator[str]:
    """Yield what stops a run."""
    if report.float_unit:
        yield report.float_units
    gone = [one for one in report.columns if one.name in roles and one.lost_values]
    if not (is_above(report, max_loss) or (gone and max_loss is None)):
        return
    yield from report.sentences()
    if report.rows and not report.used:
        yield f"No row of {report.source} is left."
        return
    for column in gone:
        values = ", ".join(repr(value[:40]) for value in column.lost_values)
        yield f"No row of {report.source} with {column.name!r} = {values} is left."


def _way_out(reports: Sequence[ReadingReport], max_loss: float | None) -> str:
    """Return what the owner can do about sources that stop a run."""
    if any(one.float_unit or (one.rows and not one.used) for one in reports):
        return "Mend this and run it again."
    over = [max(one.row_share, one.item_share) for one in reports if is_above(one, max_loss)]
    share = (int(100 * max(over)) + 1) / 100 if over else MAX_LOSS
    accept = f"Mend this, or accept it with --max-loss {share:g} (max_loss={share:g} in Python)"
    return f"{accept}." if over else f"{accept}, by which shares of rows alone count."


def loss_notice(report: ReadingReport) -> str:
    """Return what the owner should know of rows that are left out or absent; empty if nothing.

    Items outside a catalogue are named where they are more than 5 %.
    """
    is_lossy = report.lost or report.item_share > MAX_LOSS or not report.rows
    return " ".join(report.sentences()) if is_lossy else ""


def loss_notices(
    silos: Mapping[str, Any],
    options: Mapping[str, Any],
    columns: Sequence[str],
    max_loss: float | None = None,
) -> list[str]:
    """Return a sentence for each source of which rows, or more than 5 % of the items, are left out.

    Parameters
    ----------
    silos : mapping of name to records
        Records without a report pass.
    options : mapping
        Options of the task.
    columns : sequence of str
        Columns of the job.
    max_loss
        As in `refuse_loss`.

    Raises
    ------
    DataError
        If more is left out than `max_loss` allows.
    """
    reports = reports_of(silos)
    refuse_loss(reports, roles_of(options, columns), max_loss)
    return [notice for notice in map(loss_notice, reports) if notice]


def watch_loss(
    silos: Mapping[str, Any],
    options: Mapping[str, Any],
    columns: Sequence[str],
    max_loss: float | None = None,
) -> None:
    """Warn the owner of each sentence of :func:`loss_notices`, which has the same parameters."""
    for notice in loss_notices(silos, options, columns, max_loss):
        warnings.warn(notice, DataLossWarning, stacklevel=_caller())


def _caller() -> int:
    """Return the stack level of the first frame outside this package, seen from the caller."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and str(frame.f_globals.get("__name__")).split(".")[0] == "cloister":
        frame, level = frame.f_back, level + 1
    return level
