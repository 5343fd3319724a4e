"""``Presentation``: the sentences, tables and figures of a release, from released values alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from cloister.app.forecast import site_warnings
from cloister.app.headline import KeyNumber, key_numbers
from cloister.app.release import Release
from cloister.app.text import UNCLEAR, cell_text, cost_sentence, warnings_of
from cloister.core.arrays import Flags
from cloister.core.derived import displays_of
from cloister.core.display import (
    ENDS,
    Bars,
    Cell,
    Curve,
    Display,
    Estimate,
    Heatmap,
    Summary,
    Table,
    around,
)
from cloister.core.numerals import counted
from cloister.protocol.plan import Plan, noun_of
from cloister.protocol.task import Classifier, Regressor, pipeline_steps


@dataclass(frozen=True)
class Presentation:
    """A title, three sentences, warnings, and all tables and figures of a release.

    Parameters
    ----------
    result, cost, reliability : str
        One or two sentences each: the result, its cost, and which values differ from noise.
    warnings : tuple of str
        Why the release is not private; empty for a private release.
    remarks : tuple of str
        Reasons not to rely on the values, without a capital letter and a full stop.
    displays : tuple of Display
        Tables and figures of the task.
    course : tuple of Display
        Figures of the rounds.
    numbers : tuple of KeyNumber
        At most three, to be shown large.
    comparison : Table, optional
        The same answer on public records; it releases nothing of private ones.
    """

    title: str
    result: str
    cost: str
    reliability: str
    warnings: tuple[str, ...]
    remarks: tuple[str, ...]
    displays: tuple[Display, ...] = field(repr=False)
    course: tuple[Display, ...] = field(repr=False, default=())
    numbers: tuple[KeyNumber, ...] = field(repr=False, default=())
    comparison: Table | None = field(repr=False, default=None)

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """The three sentences with their names."""
        return (("found", self.result), ("cost", self.cost), ("how sure", self.reliability))

    @property
    def everything(self) -> tuple[Display, ...]:
        """All tables and figures in their order."""
        extra = (self.comparison,) if self.comparison else ()
        return (*self.displays, *self.course, *extra)


def present(release: Release, *, comparison: Table | None = None) -> Presentation:
    """Return the presentation of a release, a function of released values.

    A task may have two members for this. ``summary(results, columns, nominal_n, units)`` returns
    sentences that replace the default ones, and ``course(history, ranges)`` figures of the rounds.
    `units` is the name of the records, `ranges` the widths of the columns.
    """
    plan, results = release.plan, release.results
    displays = displays_of(plan.task, results, plan.columns)
    *_, last = pipeline_steps(plan.task)
    summarise, course = getattr(last, "summary", None), getattr(last, "course", None)
    # A pipeline may replace columns; the sentences are those of its last step.
    columns = getattr(plan.task, "last_step_columns", plan.columns)
    summary = Summary()
    if summarise:
        summary = summarise(results, columns, plan.nominal_n, _units(plan))
        if summary.one_record and plan.group_size > 1:
            summary = Summary(summary.title)
    # The state of a pipeline is on the grid of its last step, not on that of the records.
    grid = getattr(plan.task, "last_step_grid", plan.grid)
    return Presentation(
        title=summary.title or _title(plan),
        # The most specific sentence that the task allows.
        result=_marked(summary.result)
        or _model(plan)
        or _first_number(displays)
        or _first_sentence(plan.task.describe()),
        cost=_cost(release),
        reliability=_said(summary.reliability) or reliability_of(displays),
        warnings=warnings_of(release),
        remarks=(*summary.remarks, *doubts_of(release)),
        displays=displays,
        course=course(release.history, 2 * grid.half_range) if course else (),
        numbers=key_numbers(summary.result, displays, _records_of(release)),
        comparison=comparison,
    )


def _said(parts: str | tuple[Cell, ...]) -> str:
    """Return text and numbers as one text; a number has its population interval if it has one."""
    if isinstance(parts, str):
        return parts
    return "".join(
        part.of_population.text if isinstance(part, Estimate) else cell_text(part) for part in parts
    )


def _marked(parts: str | tuple[Cell, ...]) -> str:
    """Return the text with a mark if sampling is part of its intervals."""
    numbers = [one for one in parts if isinstance(one, Estimate)]
    wide = [one for one in numbers if one.population is not None]
    of = "" if len(wide) == len(numbers) else " [ , ]"
    return _said(parts) + f" Intervals{of}: noise and sampling." * bool(wide)


def doubts_of(release: Release) -> tuple[str, ...]:
    """Return warnings of units with several records, of their number, and of a missing site."""
    general = (*_of_units(release), *_of_size(release), *site_warnings(release.plan))
    return (*general, *_of_task(release))


def _of_task(release: Release) -> Iterator[str]:
    """Yield the warnings of a task with the optional member `doubts`."""
    # The last step has the results; those of steps before it are no results of the job.
    *_, last = pipeline_steps(release.plan.task)
    doubts = getattr(last, "doubts", None)
    if doubts:
        yield from doubts(release.results, release.plan.columns)


def _of_units(release: Release) -> Iterator[str]:
    plan = release.plan
    if plan.group_size > 1 and any(name.endswith(ENDS) for name in release.results):
        yield (
            f"one {noun_of(plan.unit)} may have {plan.group_size} records, so population intervals "
            "allow that all of them are alike, and p-values are not known."
        )


def _of_size(release: Release) -> tuple[str, ...]:
    """Return a warning if the released number of records is far from `nominal_n`."""
    nominal_n, found = release.plan.nominal_n, _records_of(release)
    if found is None:
        return ()
    counted, margin = found.value, found.value - found.numbers[1]
    if nominal_n / _FAR - margin <= counted <= nominal_n * _FAR + margin:
        return ()
    # Without the noisy number, the fits of a search repeat the same sentence: Python shows it once.
    than = "fewer" if counted < nominal_n else "more"
    return (
        f"nominal_n is {nominal_n:,}, but clearly {than} records were counted, so the plan and its "
        "forecast do not fit the data; correct nominal_n for the next release, or look for records "
        "that were left out. In a cross-validation it is the number of records of one fit.",
    )


def _records_of(release: Release) -> Estimate | None:
    """Return the released number of records, or None if the task releases none."""
    results = release.results
    # A pipeline puts the name of a step before the name of a number.
    found = (
        (results[key], results[f"{key.removesuffix(end)}{margin}"])
        for end, margin in _COUNTS.items()
        for key in results
        if key.split(".")[-1] == end and f"{key.removesuffix(end)}{margin}" in results
    )
    counts, margins = next(found, (None, None))
    if counts is None or margins is None:
        return None
    # The noises of several counts are independent, so their half-widths add in squares.
    margin = float(margins[0]) * np.sqrt(counts.size)
    return around(float(counts.sum()), margin, normal=True)


# Public, so that a report can ask for the reliability of other displays instead.
NO_INTERVAL = "No number of this result has an interval."
_COUNTS = {  # results that count records, and their half-widths
    "count": "count_half_width",
    "records": "records_half_width",
    "class_counts": "class_count_half_width",
}
_FAR = 1.25  # ratio of both numbers; nominal_n may be rounded


def _units(plan: Plan) -> str:
    """Return the plural noun for the records of a plan, such as patients."""
    name = noun_of(plan.unit)
    # With several rows per person a record is no person, and a column is no noun for records.
    if plan.unit in ("row", "silo", *plan.columns) or plan.max_rows > 1 or name == "id":
        return "records"
    return "people" if name == "person" else f"{name}s"


def _title(plan: Plan) -> str:
    """Return the title of a task: its own, that of its target, or its name and records."""
    *_, task = pipeline_steps(plan.task)
    title: str | None = getattr(task, "title", None)
    if title:
        return title
    if target := _target(plan):
        return f"Predicting {target}"
    return f"{task.name} of {_units(plan)}".capitalize()


def _target(plan: Plan) -> str:
    """Return the column that a model predicts, or "" for a task without a model."""
    *_, task = pipeline_steps(plan.task)
    # A pipeline may replace columns, and the target is an index into those of its last step.
    names = getattr(plan.task, "last_step_columns", plan.columns)
    return names[task.target] if isinstance(task, Classifier | Regressor) else ""


def _model(plan: Plan) -> str:
    others = len(plan.columns) - 1
    target = _target(plan)
    predictors = counted(others, "other column")
    return f"A model that predicts {target} from {predictors}." if target else ""


def _first_sentence(text: str) -> str:
    return f"{text.partition('. ')[0].rstrip('.')}."


def _first_number(displays: tuple[Display, ...]) -> str:
    """Return the first row of the first table as a sentence, if it is a name and an estimate."""
    for display in displays:
        if isinstance(display, Table):
            row = display.rows[0] if display.rows else ()
            # A longer row has several numbers, and none is known to be the answer.
            if len(row) == 2 and isinstance(row[0], str) and isinstance(row[1], Estimate):
                mark = UNCLEAR * cell_text(row[1]).endswith(UNCLEAR)
                return f"{row[0][:1].upper()}{row[0][1:]}: {_said((row[1],))}{mark}."
            break
    return ""


def _cost(result: Release) -> str:
    plan = result.plan
    if plan.budget is None or warnings_of(result):
        return "This result has no privacy guarantee: it is NOT PRIVATE."
    return cost_sentence(result.epsilon(), plan.budget.delta, result.spent, plan.unit)


def reliability_of(displays: tuple[Display, ...]) -> str:
    """Return a sentence with the number of values that differ from no effect.

    The values are those of the tables, or of the pictures if the tables have no interval.
    """
    rows = [row for table in displays if isinstance(table, Table) for row in table.rows]
    estimates = [cell for row in rows for cell in row if isinstance(cell, Estimate)]
    mark = "; they have a question mark"
    if not _distinct(estimates).size:
        estimates = [one.estimate for one in displays if isinstance(one, Bars | Heatmap | Curve)]
        mark = ""  # a picture shows where 0 is
    distinct = _distinct(estimates)
    if not (n := distinct.size):
        return NO_INTERVAL
    beyond = (
        "sampling and noise" if any(one.population for one in estimates) else "the privacy noise"
    )
    null = "0, or 1 of a ratio," if any(one.null for one in estimates) else "0"
    if distinct.all():
        every = "The estimate differs" if n == 1 else f"All {n} estimates differ"
        return f"{every} from {null} beyond {beyond}."
    unclear = n - int(distinct.sum())
    return f"{unclear} of {n} estimates do not differ from {null} beyond {beyond}{mark}."


def _distinct(estimates: Iterable[Estimate]) -> Flags:
    """Return a flag of each number with an interval: True for those that differ from no effect."""
    flags = [np.zeros(0, dtype=bool)]
    for one in estimates:
        known = ~(np.isnan(one.low) & np.isnan(one.high)) | (one.distinct is not None)
        known &= ~np.isnan(one.values)
        flags.append(np.ravel(one.is_distinct)[np.ravel(known)])
    return np.concatenate(flags)
