"""Limits on the rows of a source that may be excluded, at a desk and in a silo's agent.

The owner of the files is informed of excluded rows and of clipped values before any budget is
spent. They never stop or change a job of a federation, because that would disclose facts about
records unpaid.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cloister.core.errors import DataError, DataLossWarning, PlanError
from cloister.data.reading import ColumnReading, ReadingReport, capital

MAX_LOSS = 0.05
"""Share of the rows of a source that may be excluded unless the owner accepts more."""
MAX_UNKNOWN_ITEMS = 0.49
"""The same for the items of baskets, since a catalogue may list only some goods.

If a long table is read as lines, half of the items are unknown, since each line has an identifier.
"""
ROLES = frozenset({"target", "event", "by", "group", "truth", "over", "tables"})
"""Options of tasks that name a target, an event or groups."""
SEARCHES = frozenset({"bounds", "discretise", "quantiles"})
"""Tasks and steps for which bounds are only the place of a search."""


def check_max_loss(max_loss: float | None) -> None:
    """Raise a PlanError unless `max_loss` is None or a share."""
    if max_loss is None:
        return
    if isinstance(max_loss, bool | str) or not 0 <= max_loss <= 1:
        raise PlanError(f"max_loss must be a number from 0 to 1, got {max_loss!r}.")


def roles_of(options: Mapping[str, Any], names: Sequence[str] = ()) -> frozenset[str]:
    """Return the columns that the options of a task name as target, event or groups.

    Parameters
    ----------
    options : mapping
        Options of a task, or of a pipeline with `steps`. A value is a name, an index into `names`,
        or a nested sequence of these. A released `model` has the index of its target.
    names : sequence of str
        The columns of the job.
    """
    values: list[Any] = [value for name, value in options.items() if name in ROLES]
    values.append(getattr(options.get("model"), "target", None))
    roles = frozenset(name for value in values for name in _names(value, names))
    for step in options.get("steps", ()):
        step_options = [entry for entry in step if isinstance(entry, Mapping)]
        roles = roles.union(*(roles_of(entry, names) for entry in step_options))
    return roles


def _names(value: Any, names: Sequence[str]) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        yield names[value]
    elif isinstance(value, list | tuple | set | frozenset):
        for entry in value:
            yield from _names(entry, names)


def completed_by(task: Any, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the columns whose missing cells a task of a plan completes."""
    return tuple(columns[j] for j in getattr(task, "incomplete", ()))


def reports_of(silos: Mapping[str, Any]) -> list[ReadingReport]:
    """Return the reports of the records of silos, each source with a distinct name."""
    pairs = [(name, report) for name in silos for report in getattr(silos[name], "reports", ())]
    if len({report.source for _, report in pairs}) == len(pairs):
        return [report for _, report in pairs]
    # Two tables in memory have the same name, so the silo's name makes the difference.
    return [replace(report, source=f"{report.source} of {name}") for name, report in pairs]


def whole_of(reports: Sequence[ReadingReport]) -> ReadingReport:
    """Return one report with the sums of several, for example of partitions, without columns."""
    rows = ("rows", "used", "bad_lines", "without_unit", "repeated", "not_admitted")
    counted = (*rows, "items", "unknown_items")
    sums = {name: sum(getattr(report, name) for report in reports) for name in counted}
    beyond = sum(report.beyond_max_rows for report in reports)
    lacking = tuple(pair for report in reports for pair in report.lacking)
    return replace(
        reports[0],
        **sums,
        beyond_max_rows=beyond,
        merged_units=(),
        columns=(),
        lacking=lacking,
    )


def is_above(report: ReadingReport, max_loss: float | None = None) -> bool:
    """Return True if more rows are excluded than `max_loss`, 5 % of a source by default."""
    limit = MAX_LOSS if max_loss is None else max_loss
    return report.row_share > limit or report.item_share > max(limit, MAX_UNKNOWN_ITEMS)


def unread(report: ReadingReport, roles: Collection[str] = ()) -> Iterator[str]:
    """Yield sentences on words without a meaning, or with the wrong one, in columns of a job.

    They would bias an answer, so the console needs a meaning for them even where a user accepts
    lost rows. It also needs a row for each value of the columns in `roles`.
    """
    for column in report.columns:
        if not column.needed:
            continue
        if column.doubt and column.doubt.inverts:
            yield f"{capital(column.doubt.sentence)}."
        elif column.lost_values and (column.cause or column.name in roles):
            yield lost_values(report, column)


def lost_values(report: ReadingReport, column: ColumnReading) -> str:
    """Return the sentence on values of a column all rows of which are lost."""
    values = ", ".join(repr(value[:40]) for value in column.lost_values)
    return f"All rows of {report.source} with {column.name!r} = {values} are left out."


def refuse_loss(
    reports: Iterable[ReadingReport],
    roles: Collection[str] = (),
    max_loss: float | None = None,
) -> None:
    """Raise a DataError for the owner if too many rows of a source would be excluded.

    Parameters
    ----------
    reports : iterable of ReadingReport
    roles : collection of str
        Columns that are a target, an event or groups. Unless `max_loss` is given, each of their
        values must keep at least one row.
    max_loss : float in [0, 1], optional
        Share of the rows of each source that may be excluded, 5 % by default. If it is given,
        doubts on cells that were read stop nothing.

    Raises
    ------
    DataError
        Its text counts rows and quotes cells, so only a desk may show it, before a job starts.
    """
    check_max_loss(max_loss)
    checked = [(report, _named(report, _problems(report, roles, max_loss))) for report in reports]
    stopping = [report for report, problems in checked if problems]
    if stopping:
        sentences = [sentence for _, problems in checked for sentence in problems]
        # A line for each: several files may need twenty sentences.
        raise DataError("\n".join([*dict.fromkeys(sentences), _advice(stopping, max_loss)]))


def _named(report: ReadingReport, sentences: Iterable[str]) -> list[str]:
    """Return the sentences on a source, with its name in the first one."""
    found = list(sentences)
    if not found or report.source in found[0] or capital(report.source) in found[0]:
        return found
    return [f"{capital(report.source)}: {found[0]}", *found[1:]]


def _problems(
    report: ReadingReport, roles: Collection[str], max_loss: float | None
) -> Iterator[str]:
    """Yield a sentence for each reason to refuse a run."""
    if report.float_unit:
        yield report.float_units
    if max_loss is None:  # a given limit is the owner's consent to the cells as they were read
        yield from report.doubts
    with_losses = [
        column for column in report.columns if column.name in roles and column.lost_values
    ]
    # A given max_loss is the owner's consent to lose all rows of a value.
    if not (is_above(report, max_loss) or (with_losses and max_loss is None)):
        return
    yield from report.sentences()
    if report.rows and not report.used:
        yield f"All rows of {report.source} are left out."
        return
    for column in with_losses:
        yield lost_values(report, column)


def _advice(reports: Sequence[ReadingReport], max_loss: float | None) -> str:
    """Return the options of the owner of sources that stop a run."""
    # With no usable row, or with merged identifiers, a larger max_loss could not help.
    if any(report.float_unit or (report.rows and not report.used) for report in reports):
        return "Correct this and run it again."
    over = [
        max(report.row_share, report.item_share) for report in reports if is_above(report, max_loss)
    ]
    accept = f"Correct this, or {acceptance(max(over) if over else None)}"
    return f"{accept}." if over else f"{accept}, which limits only the share of rows."


def acceptance(lost: float | None) -> str:
    """Return the option that accepts the loss of a share of the rows, 5 % by default."""
    share = MAX_LOSS if lost is None else (int(100 * lost) + 1) / 100
    return f"accept it with --max-loss {share:g} (max_loss={share:g} in Python)"


def loss_notice(report: ReadingReport) -> str:
    """Return a notice for the owner on excluded or absent rows; empty if there are none.

    It reports items outside a catalogue if they are more than 5 %.
    """
    is_lossy = report.lost or report.doubts or report.item_share > MAX_LOSS or not report.rows
    return " ".join(_named(report, report.sentences())) if is_lossy else ""


def loss_notices(
    silos: Mapping[str, Any],
    options: Mapping[str, Any],
    columns: Sequence[str],
    max_loss: float | None = None,
    task: str = "",
    completed: Collection[str] = (),
) -> list[str]:
    """Return a sentence for each source with excluded rows, unknown items or clipped values.

    More than 5 % of its items are unknown, or of the values of a column are clipped.

    Parameters
    ----------
    silos : mapping of name to records
        Records without a report are accepted.
    options : mapping
        Options of the task.
    columns : sequence of str
        Columns of the job.
    max_loss
        As in `refuse_loss`.
    task : str
        Name of the task. Clipped values of one that searches for bounds are not reported.
    completed : collection of str
        Columns whose missing cells the task completes. Rows that lack another cell are excluded.

    Raises
    ------
    DataError
        If more is excluded than `max_loss` allows.
    """
    reports = [report.for_task(completed) for report in reports_of(silos)]
    refuse_loss(reports, roles_of(options, columns), max_loss)
    notices = [notice for notice in map(loss_notice, reports) if notice]
    steps = [entry for step in options.get("steps", ()) for entry in step]
    if SEARCHES.isdisjoint([task, *filter(lambda entry: isinstance(entry, str), steps)]):
        notices += [" ".join(report.clips) for report in reports if report.clips]
    return notices


def watch_loss(
    silos: Mapping[str, Any],
    options: Mapping[str, Any],
    columns: Sequence[str],
    max_loss: float | None = None,
    task: str = "",
    completed: Collection[str] = (),
) -> None:
    """Warn the owner with each sentence of :func:`loss_notices`, which has the same parameters."""
    for notice in loss_notices(silos, options, columns, max_loss, task, completed):
        warn_owner(notice)


def warn_owner(notice: str) -> None:
    """Warn the owner of excluded rows, at the line of the user's call."""
    warnings.warn(notice, DataLossWarning, stacklevel=_caller())


def _caller() -> int:
    """Return the stack level of the first frame outside this package, as seen by the caller."""
    # By default Python shows a warning once per line, so it must point at the user's line.
    frame, level = sys._getframe(1), 1
    while frame.f_back and str(frame.f_globals.get("__name__")).split(".")[0] == "cloister":
        frame, level = frame.f_back, level + 1
    return level
