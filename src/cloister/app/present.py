"""``Presentation``: the sentences, tables and figures of a release, from released values alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from cloister.app.release import Release
from cloister.app.text import attacker_sentence, cell_text, number, warnings_of
from cloister.core.arrays import Flags
from cloister.core.derived import displays_of
from cloister.core.display import Bars, Curve, Display, Estimate, Heatmap, Summary, Table
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

    A task may have two members for this. ``summary(results, nominal_n, units)`` returns sentences
    that replace the default ones, and ``course(history, ranges)`` figures of the rounds. `units`
    is the name of the records, `ranges` the widths of the columns.
    """
    plan, results = release.plan, release.results
    displays = displays_of(plan.task, results, plan.columns)
    *_, last = pipeline_steps(plan.task)
    summarise, course = getattr(last, "summary", None), getattr(last, "course", None)
    summary = summarise(results, plan.nominal_n, _units(plan)) if summarise else Summary()
    # The state of a pipeline is on the grid of its last step, not on that of the records.
    grid = getattr(plan.task, "last_step_grid", plan.grid)
    return Presentation(
        title=summary.title or _title(plan),
        # The most specific sentence that the task allows.
        result=summary.result
        or _model(plan)
        or _first_number(displays)
        or _first_sentence(plan.task.describe()),
        cost=_cost(release),
        reliability=summary.reliability or _reliability(displays),
        warnings=warnings_of(release),
        remarks=summary.remarks,
        displays=displays,
        course=course(release.history, 2 * grid.half_range) if course else (),
        comparison=comparison,
    )


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
    predictors = f"{others} other column{'s' * (others != 1)}"
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
                return f"{row[0][:1].upper()}{row[0][1:]}: {cell_text(row[1])}."
            break
    return ""


def _cost(result: Release) -> str:
    plan = result.plan
    if plan.budget is None or warnings_of(result):
        return "This result has no privacy guarantee: it is NOT PRIVATE."
    spent = f"Epsilon {number(result.epsilon())} at delta {plan.budget.delta:.2g}."
    return f"{spent} {attacker_sentence(result.spent, plan.unit)}"


def _reliability(displays: tuple[Display, ...]) -> str:
    """Return a sentence with the number of values that differ from zero beyond the noise.

    The values are those of the tables, or of the pictures if the tables have no interval.
    """
    rows = [row for table in displays if isinstance(table, Table) for row in table.rows]
    distinct = _distinct(cell for row in rows for cell in row if isinstance(cell, Estimate))
    mark = "; they have a question mark"
    if not distinct.size:
        drawn = (one.estimate for one in displays if isinstance(one, Bars | Heatmap | Curve))
        distinct, mark = _distinct(drawn), ""  # a picture shows where 0 is
    if not (n := distinct.size):
        return "No number of this result has an interval."
    if distinct.all():
        return f"All {n} estimates differ from zero beyond the privacy noise."
    unclear = n - int(distinct.sum())
    return f"{unclear} of {n} estimates do not differ from zero beyond the privacy noise{mark}."


def _distinct(estimates: Iterable[Estimate]) -> Flags:
    """Return a flag of each number with an interval: True for those beyond the noise."""
    flags = [np.zeros(0, dtype=bool)]
    for one in estimates:
        known = ~(np.isnan(one.low) & np.isnan(one.high)) | (one.distinct is not None)
        known &= ~np.isnan(one.values)
        flags.append(np.ravel(one.distinct_from_noise)[np.ravel(known)])
    return np.concatenate(flags)
