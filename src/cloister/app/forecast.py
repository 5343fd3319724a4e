"""What a plan would give, and what makes it not worth its budget: from public facts alone."""

from __future__ import annotations

import math
from collections.abc import Iterator

from cloister.app.text import number
from cloister.core.arrays import Results
from cloister.core.display import Table
from cloister.data.schema import Schema
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.tasks.options import epsilon_for

_CLEAR_SUM = 5.0  # a sum of all records, if they agreed, should be so many times its noise


def forecast_of(plan: Plan) -> Results:
    """Return the expected half-widths of a plan's results, in data units."""
    last = plan.task.blocks(plan.rounds - 1)[0]
    return plan.task.forecast(plan.noise_std(last), plan.nominal_n, plan.grid)


def expected(plan: Plan) -> tuple[Table, ...]:
    """Return 95 % of the noise of a plan's results: by column where the task says so.

    The optional member `columnwise` of a task has a title for each forecast of all columns.
    """
    columnwise = getattr(plan.task, "columnwise", {})
    tables, others = [], []
    for name, values in forecast_of(plan).items():
        if name in columnwise and values.shape == (len(plan.columns),):
            parts = values / (2 * plan.grid.half_range)
            rows = tuple(
                (column, f"± {number(float(value))}", f"± {part:.2%}")
                for column, value, part in zip(plan.columns, values, parts, strict=True)
            )
            tables.append(Table(columnwise[name], ("column", "in its unit", "of its range"), rows))
        else:
            what = name.removesuffix("half_width").replace("_", " ").strip() or "the result"
            others.append((what, ", ".join(f"± {number(float(v))}" for v in values.ravel())))
    if others:
        tables.append(Table("Expected error (95 % of the noise)", ("of", "error"), tuple(others)))
    return tuple(tables)


def plan_warnings(plan: Plan, schema: Schema, *, sized: bool = True) -> tuple[str, ...]:
    """Say what makes a plan not worth its budget, and what would help.

    Nothing is said of its size if the plan is not `sized`: made without a number of records.
    """
    return (*(size_warnings(plan) if sized else ()), *category_warnings(plan, schema))


def size_warnings(plan: Plan) -> tuple[str, ...]:
    """Say what makes a private plan too small for its budget.

    A task may say it by an optional member ``plan_warnings(plan, forecast)``; of its sums it is
    said where the task says nothing.
    """
    if plan.budget is None:
        return ()
    own = getattr(plan.task, "plan_warnings", None)
    about_size = tuple(own(plan, forecast_of(plan))) if own else ()
    return (*(about_size or _of_sums(plan, plan.budget)), *_of_delta(plan, plan.budget))


def category_warnings(plan: Plan, schema: Schema) -> tuple[str, ...]:
    """Say which categories a task would take for numbers, by its `category_warning` if any."""
    used = schema.select(plan.columns).columns
    names = [column.name for column in used if len(column.categories) > 2]
    own = getattr(plan.task, "category_warning", None)
    return (own(names),) if own and names else ()


def _of_delta(plan: Plan, budget: Budget) -> Iterator[str]:
    if budget.delta * plan.nominal_n >= 1:
        yield (
            f"delta {budget.delta:g} is not below 1 / nominal_n: a promise that may fail so often "
            "would allow to release a whole record; leave it out for a smaller one."
        )


def _of_sums(plan: Plan, budget: Budget) -> Iterator[str]:
    signals = [_signal(plan, t) for t in range(plan.rounds)]
    weakest = min(range(plan.rounds), key=signals.__getitem__)
    if signals[weakest] >= _CLEAR_SUM:
        return
    factor = _CLEAR_SUM / signals[weakest]
    epsilon = epsilon_for(budget, factor, pure=plan.task.mechanism == "laplace")
    yield (
        f"epsilon {budget.epsilon:g} is too small for {plan.nominal_n:,} records: if all agreed, "
        f"no sum of round {weakest + 1} would be more than {signals[weakest]:.2g} times its noise, "
        f"wanted {_CLEAR_SUM:g}; about epsilon {epsilon:.2g} or "
        f"{math.ceil(factor * plan.nominal_n):,} records would fit."
    )


def _signal(plan: Plan, t: int) -> float:
    """Return the largest sum of equal records in a round, over its noise.

    A record that spends its L1 and its L2 bound adds ``l2_squared / l1`` to each element.
    """
    return max(
        plan.nominal_n * block.l2_squared / block.l1 / plan.noise_std(block)
        for block in plan.task.blocks(t)
    )
