"""What a plan would give, and what makes it not worth its budget: from public facts alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from cloister.app.text import number
from cloister.core.arrays import Floats
from cloister.core.display import Table
from cloister.data.schema import Schema
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gdp_part
from cloister.protocol.plan import Plan
from cloister.protocol.task import Task

_CLEAR_SUM = 5.0  # a sum of all records, if they agreed, should be so many times its noise
_CLEAR_SIZE = 3.0  # a cluster should have so many times the half-width of its noisy size
_CLEAR_CENTRE = 0.1  # half-width of a centre, as a part of a column's range
_CLEAR_CURVE = 0.25  # half-width of a survival curve in its middle


def forecast_of(plan: Plan) -> Mapping[str, Floats]:
    """Return the expected half-widths of a plan's results, in data units."""
    last = plan.task.blocks(plan.rounds - 1)[0]
    return plan.task.forecast(plan.noise_std(last), plan.nominal_n, plan.grid)


def expected(plan: Plan) -> tuple[Table, ...]:
    """Return 95 % of the noise of a plan's results: by column where they are centres."""
    tables, others = [], []
    for name, values in forecast_of(plan).items():
        if is_of_centres(plan, name, values):
            parts = values / (2 * plan.grid.half_range)
            rows = tuple(
                (column, f"± {number(float(value))}", f"± {part:.2%}")
                for column, value, part in zip(plan.columns, values, parts, strict=True)
            )
            title = "Expected error of a centre (95 % of the noise, clusters of equal size)"
            tables.append(Table(title, ("column", "in its unit", "of its range"), rows))
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
    """Say what makes a private plan too small for its budget."""
    if plan.budget is None:
        return ()
    said = _of_groups, _of_clusters, _of_curves, _of_sums  # the first that has something to say
    about_size = next(filter(None, (tuple(of(plan, plan.budget)) for of in said)), ())
    return (*about_size, *_of_delta(plan, plan.budget))


def category_warnings(plan: Plan, schema: Schema) -> tuple[str, ...]:
    """Say which categories a clustering would take for numbers."""
    if not any(hasattr(plan.task, name) for name in ("n_clusters", "max_clusters")):
        return ()
    used = schema.select(plan.columns).columns
    names = [column.name for column in used if len(column.categories) > 2]
    if not names:
        return ()
    return (
        f"clustering treats the categories of {', '.join(names)} as numbers, by their places in "
        "the schema; leave such a column out with --columns, or make a boolean column of each "
        "category.",
    )


def _of_groups(plan: Plan, budget: Budget) -> Iterator[str]:
    """Say that a clustering would not even look for groups."""
    factor = getattr(plan.task, "drowned", 0.0)
    if factor > 1:
        yield (
            f"epsilon {budget.epsilon:g} is too small for {plan.nominal_n:,} records of "
            f"{len(plan.columns)} columns: noise would drown every difference between groups, so "
            f"{plan.task.name!r} would release one noisy mean and put the other centres around it "
            f"blindly; about epsilon {_worth(plan.task, budget, factor):.2g} or "
            f"{math.ceil(factor * plan.nominal_n):,} records are needed, or fewer columns."
        )


def _of_clusters(plan: Plan, budget: Budget) -> Iterator[str]:
    forecast = forecast_of(plan)
    k = getattr(plan.task, "n_clusters", None)
    if k and "size_half_width" in forecast:
        share, noise = plan.nominal_n / k, float(forecast["size_half_width"][0])
        if share < _CLEAR_SIZE * noise:
            yield (
                f"nominal_n={plan.nominal_n:,} is too small for {k} clusters of "
                f"{len(plan.columns)} columns at epsilon {budget.epsilon:g}: an equal share "
                f"is {share:,.0f} records and its noise ± {noise:,.0f}; about "
                f"{math.ceil(_CLEAR_SIZE * noise * k):,} records, fewer clusters or a larger "
                "epsilon are needed."
            )
    half_width = forecast.get("half_width")
    if half_width is not None and is_of_centres(plan, "half_width", half_width):
        part = half_width / (2 * plan.grid.half_range)
        if part.max() > _CLEAR_CENTRE:
            worst = plan.columns[int(part.argmax())]
            yield (
                f"a centre would be known only to ± {part.max():.0%} of the range of column "
                f"{worst!r}; more records, narrower public bounds, fewer clusters or a larger "
                "epsilon would help."
            )


def _of_curves(plan: Plan, budget: Budget) -> Iterator[str]:
    width = forecast_of(plan).get("survival_half_width")
    if width is not None and width[0] > _CLEAR_CURVE:
        yield (
            f"epsilon {budget.epsilon:g} is too small for {plan.nominal_n:,} records in "
            f"{len(getattr(plan.task, 'groups', ()))} groups: a curve would be known only to ± "
            f"{width[0]:.0%} in its middle, and end early; fewer groups or intervals, more records "
            "or a larger epsilon would help."
        )


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
    yield (
        f"epsilon {budget.epsilon:g} is too small for {plan.nominal_n:,} records: if all agreed, "
        f"no sum of round {weakest + 1} would be more than {signals[weakest]:.2g} times its noise, "
        f"wanted {_CLEAR_SUM:g}; about epsilon {_worth(plan.task, budget, factor):.2g} or "
        f"{math.ceil(factor * plan.nominal_n):,} records would fit."
    )


def is_of_centres(plan: Plan, name: str, values: Floats) -> bool:
    """Return whether a forecast is the half-width of a centre in each column."""
    clusters = hasattr(plan.task, "n_clusters")
    return clusters and name == "half_width" and values.shape == (len(plan.columns),)


def _signal(plan: Plan, t: int) -> float:
    """Return the largest sum of equal records in a round, over its noise.

    A record that spends its L1 and its L2 bound adds ``l2_squared / l1`` to each element.
    """
    return max(
        plan.nominal_n * block.l2_squared / block.l1 / plan.noise_std(block)
        for block in plan.task.blocks(t)
    )


def _worth(task: Task, budget: Budget, factor: float) -> float:
    """Return an epsilon of two digits at which noise is so many times smaller."""
    if task.mechanism == "laplace" or not budget.delta:
        epsilon = budget.epsilon * factor
    else:
        epsilon = gdp_part(budget, factor**2).epsilon
    return two_digits(epsilon)


def two_digits(epsilon: float) -> float:
    """Return the smallest number of two digits that is no smaller, but for rounding."""
    digit = 10.0 ** (math.floor(math.log10(epsilon)) - 1)
    return math.ceil(epsilon / digit * (1 - 1e-12)) * digit
