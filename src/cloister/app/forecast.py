"""The expected error of a plan and its warnings, computed from public facts alone."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from cloister.app.least_error import least_error
from cloister.core.arrays import Floats, Results
from cloister.core.display import Table
from cloister.core.errors import PlanError
from cloister.core.numerals import number, time_margin
from cloister.data.schema import Schema
from cloister.privacy.accounting import attacker_odds
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.protocol.task import pipeline_steps
from cloister.tasks.options import epsilon_for

_EPSILONS = [k * 10.0**d for d in (-4, -3, -2, -1, 0) for k in range(10, 100)] + [100.0]
_LARGE_ODDS = 0.9  # an attacker's; 0.5 is a blind guess
_CLEAR_SUM = 5.0  # least ratio of the sum of equal records to its noise
_SHARE = re.compile("(share|rank|survival|event rate|items|sets of)\\b")
"""Forecasts between 0 and 1; `want` takes them as such."""
_BOUNDS = (
    "Sums of squared distances to the nearest centre, with every column scaled to [-1, 1], "
    "above the least that is possible. Proof: docs/proofs/max_cover_bounds.md."
)
"""The note of the table of bounds."""
WITHOUT_SITE = (
    "no term is known to be the silo. If none holds its name and silos differ both in a column and "
    "in the outcome, the coefficient of this column includes the difference between silos; a "
    "formula of glm, or the strata of cox, can have the term site."
)
"""The warning of a model of an outcome over several silos, if its task declares no other."""
NO_ROOM = (
    "no term is known to be the silo. If none holds its name and silos differ both in a column and "
    "in the outcome, the coefficient of this column includes the difference between silos; with "
    "fewer covariates, the strata of cox could be site."
)
"""The warning if the silos are more than `most_sites`, an optional member of a task."""


def forecast_of(plan: Plan) -> Results:
    """Return the expected half-widths of a plan's results, in data units."""
    # The last round: its noise is the one in the released values.
    last = plan.task.blocks(plan.rounds - 1)[0]
    return plan.task.forecast(plan.noise_std(last), plan.nominal_n, plan.grid)


def expected(plan: Plan) -> tuple[Table, ...]:
    """Return the 95 % margins of a plan's results, by column where the task declares it.

    The optional member `columnwise` of a task maps a forecast with one value per column to the
    title of its table. The optional member `forecast_ranges` maps a forecast of an order of
    magnitude to its least and largest multiple, and to the reason for the difference. The optional
    member `forecast_note` explains the margins. Of a task that has :func:`least_records` in place
    of margins, the table has these.
    """
    columnwise = getattr(plan.task, "columnwise", {})
    ranges = _ranges(plan)
    tables, others = [], []
    for name, values in forecast_of(plan).items():
        if name in ranges:
            tables.append(_range_table(plan, values, *ranges[name]))
        elif columns := _columns_of(plan, name, values):
            # Columns have different units; only shares of their ranges can be compared.
            shares = values / (2 * plan.grid.half_range[list(columns)])
            rows = tuple(
                (
                    plan.columns[j],
                    _column_margin(plan, j, float(value)),
                    f"± {share:.2%}",
                )
                for j, value, share in zip(columns, values, shares, strict=True)
            )
            tables.append(Table(columnwise[name], ("column", "in its unit", "of its range"), rows))
        else:
            label = name.removesuffix("half_width").replace("_", " ").strip() or "the result"
            # Many columns often have the same error.
            texts = dict.fromkeys(_margin(label, float(v)) for v in np.sort(values, axis=None))
            ends = (next(iter(texts)), next(reversed(texts)))
            others.append((label, " to ".join(dict.fromkeys(ends))))
    note = getattr(plan.task, "forecast_note", "")
    if others:
        title = "Expected error (95 % of the noise)"
        tables.append(Table(title, ("of", "error"), tuple(others), note))
    if (least := least_records(plan)) is not None:
        found = (("complete records, for known coefficients", f"at least {least:,}"),)
        tables.append(Table("What is known before the run", ("of", "number"), found, note))
    return tuple(tables)


def least_records(plan: Plan) -> int | None:
    """Return the number of complete records below which noise hides the whole result.

    It comes from the optional member ``least_records(noise_std)`` of a task, whose argument is the
    noise of a block of the plan. None for other tasks.
    """
    *_, last = pipeline_steps(plan.task)
    of_task = getattr(last, "least_records", None)
    return None if of_task is None or plan.budget is None else int(of_task(plan.noise_std))


def unknown_error(plan: Plan) -> str:
    """Return why a plan has no expected error, and how to choose epsilon; empty if it has one.

    The optional member `error_depends_on` of a task names what decides it.
    """
    if forecast_of(plan):
        return ""
    *_, last = pipeline_steps(plan.task)
    causes = getattr(last, "error_depends_on", "")
    if not causes:
        return "Expected error: not known before the run."
    return (
        f"Expected error: not known before the run, since it depends on {causes}. It falls about "
        "as 1 / epsilon, so a first run with a small epsilon shows what the next one needs."
    )


def error_bounds(plan: Plan) -> tuple[Table, ...]:
    """Return a table of bounds of the error of centres that theorems give; none for other tasks.

    They hold for the worst records; a usual table has another error. The optional member
    ``error_orders(plan)`` of a clustering yields what its paper states.
    """
    orders = getattr(plan.task, "error_orders", None)
    if orders is None or plan.budget is None:
        return ()
    found = dict(orders(plan))
    if k := getattr(plan.task, "n_clusters", 0):
        # A budget for units of several records is one for single records, too.
        least = least_error(k, len(plan.columns), plan.budget, plan.nominal_n)
        found = {"any private method has at least, on some table": least} | found
    rows = tuple((name, number(value)) for name, value in found.items() if value > 0)
    return (Table("Bounds of the error of centres", ("of", "bound"), rows, _BOUNDS),) * bool(rows)


def _margin(label: str, width: float) -> str:
    """Return a margin of error as text, that of a share also in percentage points."""
    # A margin of 0.02 could be read as 2 % of the share.
    points = f" ({number(100 * width)} percentage points)" if _SHARE.match(label) else ""
    return f"± {number(width)}{points}"


def _column_margin(plan: Plan, column: int, width: float) -> str:
    """Return a margin of error in the unit of a column as text."""
    dates = getattr(plan.task, "dates", ())  # columns of years, with a fraction
    return time_margin(width) if column in dates else f"± {number(width)}"


def _range_table(plan: Plan, values: Floats, least: float, most: float, reason: str) -> Table:
    """Return the least and the largest expected error of each column; shape (n_columns,)."""
    half = plan.grid.half_range
    rows = tuple(
        (column, " to ".join(_column_margin(plan, j, float(end)) for end in (low, high)))
        for j, column, low, high in zip(
            range(len(half)),
            plan.columns,
            np.minimum(least * values, half),
            np.minimum(most * values, half),
            strict=True,
        )
    )
    title = f"Expected error of a centre (95 % of the noise); it depends on {reason}"
    return Table(title, ("column", "in its unit"), rows)


def _ranges(plan: Plan) -> Mapping[str, tuple[float, float, str]]:
    ranges: Mapping[str, tuple[float, float, str]] = getattr(plan.task, "forecast_ranges", {})
    return ranges


def _columns_of(plan: Plan, name: str, values: Floats) -> tuple[int, ...]:
    """Return the columns that a forecast has one value for each of; empty if it has others."""
    columns = tuple(getattr(plan.task, "used", range(len(plan.columns))))
    is_columnwise = name in getattr(plan.task, "columnwise", {})
    return columns if is_columnwise and values.shape == (len(columns),) else ()


def wanted_budget(
    plan_for: Callable[[Budget], Plan], delta: float, want: Mapping[str, float]
) -> Budget:
    """Return the least budget whose plan is expected to have the wanted margins of error.

    Parameters
    ----------
    plan_for : function of a budget
    want : mapping of a printed name of a forecast, or words of it, or of a column, to a margin
        A 95 % half-width in the units of the forecast; of several values the largest counts.

    Returns
    -------
    Budget
        Its epsilon has two digits and is between 0.001 and 100.

    Raises
    ------
    PlanError
        If the task has no such forecast, or no epsilon up to 100 is enough.
    """
    want = {name.replace(" ", "_").removeprefix("the_"): width for name, width in want.items()}
    largest = plan_for(Budget(_EPSILONS[-1], delta))
    known = _wanted(largest)
    # Words of a long name stand for all forecasts that have them.
    want = {full: width for name, width in want.items() for full in _having(name, known) or (name,)}
    ranges = {_short(name): reason for name, (_, _, reason) in _ranges(largest).items()}
    if ranges:  # which have a value for each column
        ranges |= dict.fromkeys(_names_of(largest), next(iter(ranges.values())))
    named = _names_of(largest)
    # In words, as a plan prints them.
    offered = ", ".join(name if name in named else name.replace("_", " ") for name in known)
    if loose := sorted(want.keys() & ranges.keys() - known.keys()):
        raise PlanError(
            f"want cannot name {loose[0]!r}, whose error depends on {ranges[loose[0]]}, which no "
            f"plan knows; it can name {offered}."
        )
    if not want or (unknown := want.keys() - known.keys()):
        given = ", ".join(sorted(unknown)) if want else "nothing"
        if reason := unknown_error(largest):
            raise PlanError(f"want is for tasks with a forecast, got {given}. {reason}")
        raise PlanError(f"want must name forecasts of the task ({offered}), got {given}.")
    if wrong := [name for name, width in want.items() if not 0 < width < math.inf]:
        raise PlanError(f"want must be a positive margin of error, got {want[wrong[0]]:g}.")

    def is_enough(epsilon: float) -> bool:
        try:
            found = _wanted(plan_for(Budget(epsilon, delta)))
        except PlanError:  # too little for any plan of the task
            return False
        return all(found.get(name, math.inf) <= width for name, width in want.items())

    at = bisect_left(_EPSILONS, True, key=is_enough)
    if at == len(_EPSILONS):
        name, width = next(
            (name, width) for name, width in want.items() if not known[name] <= width
        )
        least = _column_margin(largest, named.index(name) if name in named else -1, known[name])
        raise PlanError(
            f"want {name}={width:g} needs more than epsilon {_EPSILONS[-1]:g}, at which it would "
            f"be {least}; ask for a larger margin or use more records."
        )
    return Budget(_EPSILONS[at], delta)


def _having(name: str, known: Iterable[str]) -> list[str]:
    """Return the names that are this one, or else those that have its words in a row."""
    return [name] if name in known else [full for full in known if f"_{name}_" in f"_{full}_"]


def _wanted(plan: Plan) -> dict[str, float]:
    """Return the margin of error of each forecast, and of each column that a forecast has."""
    names, ranges = _names_of(plan), _ranges(plan)
    by_column = {
        names[j]: float(value)
        for name, values in forecast_of(plan).items()
        if name not in ranges
        for j, value in zip(_columns_of(plan, name, values), values, strict=False)
    }
    return {**by_column, **margins(plan)}


def _names_of(plan: Plan) -> list[str]:
    """Return the columns as `want` names them."""
    return [name.replace(" ", "_") for name in plan.columns]


def margins(plan: Plan) -> dict[str, float]:
    """Return the largest margin of error of each forecast that is closed, by its short name."""
    ranges = _ranges(plan)
    return {
        _short(name): float(np.max(values))
        for name, values in forecast_of(plan).items()
        if name not in ranges
    }


def is_share(name: str) -> bool:
    """Return True if a forecast, by its short name, is a number between 0 and 1."""
    return _SHARE.match(name.replace("_", " ")) is not None


def _short(name: str) -> str:
    return name.removesuffix("half_width").strip("_") or "result"


def plan_warnings(plan: Plan, schema: Schema, *, sized: bool = True) -> tuple[str, ...]:
    """Return warnings of a plan whose budget would be wasted, each with a remedy.

    A plan that is not `sized`, made without a number of records, has no warning of its size.
    """
    sizes = size_warnings(plan) if sized else ()
    others = *privacy_warnings(plan), *category_warnings(plan, schema), *fill_warnings(plan, schema)
    return (*sizes, *others, *site_warnings(plan))


def size_warnings(plan: Plan) -> tuple[str, ...]:
    """Return warnings of a private plan that has too few records for its budget.

    They come from the optional member ``plan_warnings(plan, forecast)`` of a task. If it is
    missing or returns no warning, the sums of the task are compared with their noise.
    """
    if (budget := plan.budget) is None:
        return ()
    # The matrix of a horizon scales sums, and so their noise, which would seem too large.
    plan = replace(plan, horizon=None)
    task_warnings = getattr(plan.task, "plan_warnings", None)
    about_size = tuple(task_warnings(plan, forecast_of(plan))) if task_warnings else ()
    return about_size or tuple(_of_sums(plan, budget))


def category_warnings(plan: Plan, schema: Schema) -> tuple[str, ...]:
    """Return the task's `category_warning`, if any, of categories that it would use as numbers."""
    used = schema.select(plan.columns).columns
    # Two categories are one step on the grid, so their order has no meaning that can mislead.
    names = [column.name for column in used if len(column.categories) > 2]
    warning_of = getattr(plan.task, "category_warning", None)
    return (warning_of(names),) if warning_of and names else ()


def fill_warnings(plan: Plan, schema: Schema) -> tuple[str, ...]:
    """Return a warning of the columns whose missing cells count as a value of the schema."""
    # Only the schema has the rule: a plan has its digest.
    filled = [
        f"{column.name} {column.filled}"
        for column in schema.select(plan.columns).columns
        if column.filled
    ]
    if not filled:
        return ()
    return (f"missing cells count as values: {', '.join(filled)}; results include them.",)


def site_warnings(plan: Plan) -> tuple[str, ...]:
    """Return a warning if a model with effects is over several silos without a term for them.

    Such a task has the optional member `has_effects`, and `without_site` with its own warning. A
    treatment that sicker hospitals give more often would seem to harm. The result of a task with
    layers of silos shows whether they differ.
    """
    *_, last = pipeline_steps(plan.task)
    seen = getattr(last, "sites", ()) or getattr(last, "silos", ())
    confounded = getattr(last, "has_effects", False) and len(plan.silos) > 1 and not seen
    # A remedy that the task would refuse is none.
    has_room = len(plan.silos) <= getattr(last, "most_sites", math.inf)
    said = getattr(last, "without_site", WITHOUT_SITE) if has_room else NO_ROOM
    return (said,) if confounded else ()


def privacy_warnings(plan: Plan) -> tuple[str, ...]:
    """Return warnings of a budget whose guarantee is weak."""
    budget, found = plan.budget, []
    if budget is None:
        return ()
    if budget.delta * plan.nominal_n >= 1:
        found.append(
            f"delta {budget.delta:g} is not below 1 / nominal_n, so the guarantee would allow the "
            "release of a whole record; omit delta for a smaller one."
        )
    if (odds := attacker_odds(plan.events())) > _LARGE_ODDS:
        found.append(
            f"epsilon {budget.epsilon:g} is large: an attacker may guess in {odds:.0%} of cases "
            "correctly whether a record is in the data; choose a smaller one."
        )
    return tuple(found)


def _of_sums(plan: Plan, budget: Budget) -> Iterator[str]:
    signals = [_signal(plan, t) for t in range(plan.rounds)]
    weakest = min(range(plan.rounds), key=signals.__getitem__)
    if signals[weakest] >= _CLEAR_SUM:
        return
    # The noise scale falls about as 1 / epsilon, and the sum grows with the records.
    factor = _CLEAR_SUM / signals[weakest]
    epsilon = epsilon_for(budget, factor, pure=plan.task.mechanism == "laplace")
    yield (
        f"epsilon {budget.epsilon:g} is too small for {plan.nominal_n:,} records: even if all were "
        f"equal, the sums of round {weakest + 1} would be at most {signals[weakest]:.2g} times "
        f"their noise, but {_CLEAR_SUM:g} times is needed; use about epsilon {epsilon:.2g} or "
        f"{math.ceil(factor * plan.nominal_n):,} records."
    )


def _signal(plan: Plan, t: int) -> float:
    """Return the largest sum of equal records in a round, divided by its noise.

    A record that spends its L1 and its L2 bound adds ``l2_squared / l1`` to each element.
    """
    return max(
        plan.nominal_n * block.l2_squared / block.l1 / plan.noise_std(block)
        for block in plan.task.blocks(t)
    )
