"""``Presentation``: what interfaces show of a release, made once from released values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cloister.app.release import Release
from cloister.app.text import attacker_sentence, cell_text, number, warnings_of
from cloister.core.derived import displays_of
from cloister.core.display import Display, Summary, Table
from cloister.core.estimate import Estimate
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
    stability : Table, optional
        How often reruns of the plan find the same; simulated from released values.
    comparison : Table, optional
        The same answer on public records; no release of private ones.
    """

    title: str
    result: str
    cost: str
    reliability: str
    warnings: tuple[str, ...]
    remarks: tuple[str, ...]
    displays: tuple[Display, ...] = field(repr=False)
    course: tuple[Display, ...] = field(repr=False, default=())
    stability: Table | None = field(repr=False, default=None)
    comparison: Table | None = field(repr=False, default=None)

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """The three sentences with their names."""
        return (("found", self.result), ("cost", self.cost), ("how sure", self.reliability))

    @property
    def everything(self) -> tuple[Display, ...]:
        """All tables and figures in their order."""
        extra = filter(None, (self.stability, self.comparison))
        return (*self.displays, *self.course, *extra)


def present(
    release: Release, *, stability: Table | None = None, comparison: Table | None = None
) -> Presentation:
    """Return what interfaces show of a release, a function of released values.

    A task may have two members for this: ``summary(results, nominal_n, units)`` returns its own
    sentences, and ``course(history, ranges)`` figures of the rounds. `units` is the name of the
    records, `ranges` the widths of the columns.
    """
    plan, results = release.plan, release.results
    displays = displays_of(plan.task, results, plan.columns)
    *_, last = pipeline_steps(plan.task)
    said, course = getattr(last, "summary", None), getattr(last, "course", None)
    own = said(results, plan.nominal_n, _units(plan)) if said else Summary()
    grid = getattr(plan.task, "last_step_grid", plan.grid)  # of a pipeline, its last step's
    return Presentation(
        title=own.title or _title(plan),
        result=own.result
        or _model(plan)
        or _first_number(displays)
        or _first_sentence(plan.task.describe()),
        cost=_cost(release),
        reliability=own.reliability or _reliability(displays),
        warnings=warnings_of(release),
        remarks=own.remarks,
        displays=displays,
        course=course(release.history, 2 * grid.half_range) if course else (),
        stability=stability,
        comparison=comparison,
    )


def _units(plan: Plan) -> str:
    """Return what the records of a plan are called: patients, where a row is a patient."""
    name = noun_of(plan.unit)
    if plan.unit in ("row", "silo", *plan.columns) or plan.max_rows > 1 or name == "id":
        return "records"
    return "people" if name == "person" else f"{name}s"


def _numbers(displays: tuple[Display, ...]) -> Iterator[Estimate]:
    """Yield every number of tables that has an interval."""
    for display in displays:
        if isinstance(display, Table):
            for row in display.rows:
                yield from (cell for cell in row if isinstance(cell, Estimate))


def _title(plan: Plan) -> str:
    """Return what a task is called, in words."""
    *_, task = pipeline_steps(plan.task)
    named: str | None = getattr(task, "title", None)
    if named:
        return named
    if target := _target(plan):
        return f"Predicting {target}"
    return f"{task.name} of {_units(plan)}".capitalize()


def _target(plan: Plan) -> str:
    """Return the column that a model predicts; nothing for a task that makes none."""
    *_, task = pipeline_steps(plan.task)
    names = getattr(plan.task, "last_step_columns", plan.columns)  # of a pipeline, its last step's
    return names[task.target] if isinstance(task, Classifier | Regressor) else ""


def _model(plan: Plan) -> str:
    others = len(plan.columns) - 1
    target = _target(plan)
    of = f"{others} other column{'s' * (others != 1)}"
    return f"A model that predicts {target} from {of}." if target else ""


def _first_sentence(text: str) -> str:
    return f"{text.partition('. ')[0].rstrip('.')}."


def _first_number(displays: tuple[Display, ...]) -> str:
    """Return the first row of the first table, if it is a name and a number with its interval."""
    for display in displays:
        if isinstance(display, Table):
            row = display.rows[0] if display.rows else ()
            if len(row) == 2 and isinstance(row[0], str) and isinstance(row[1], Estimate):
                return f"{row[0][:1].upper()}{row[0][1:]}: {cell_text(row[1])}."
            break
    return ""


def _cost(result: Release) -> str:
    plan = result.plan
    if plan.budget is None or warnings_of(result):
        return "Nothing is promised: this is NOT PRIVATE."
    spent = f"Epsilon {number(result.epsilon())} at delta {plan.budget.delta:.2g}."
    return f"{spent} {attacker_sentence(result.spent, plan.unit)}"


def _reliability(displays: tuple[Display, ...]) -> str:
    """Return how many values differ from zero beyond the noise, as a sentence."""
    clear = [bool(cell.distinct_from_noise) for cell in _numbers(displays)]
    if not clear:
        return "No number of this result has an interval."
    if all(clear):
        return f"0 is in the interval of none of {len(clear)} numbers."
    return (
        f"0 is in the interval of {len(clear) - sum(clear)} of {len(clear)} numbers, which have a "
        "question mark."
    )
