"""The presentation of a horizon: the answer so far, that of the last period, and the course."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from cloister.app.horizon import Horizon
from cloister.app.present import Presentation, present
from cloister.app.release import Release
from cloister.app.report.page import write_report
from cloister.app.unknown import results_with_reasons
from cloister.core.arrays import Integers
from cloister.core.derived import displays_of
from cloister.core.display import Bars, Curve, Estimate, Heatmap, PValue, Table
from cloister.data.schema import Schema
from cloister.privacy import accounting
from cloister.privacy.noise import DiscreteNoise
from cloister.protocol.plan import noun_of

LEVEL = 0.05
"""Probability of a false alarm of the test for a change, in all periods together."""
_LINES = 8  # of a picture, since more cannot be told apart
_COURSES = {
    "so far": "all records so far",
    "latest": "each period alone",
    "now": "period by period",
}

_ANSWERS = {
    "so far": "all periods so far",
    "latest": "one period",
    "last 4": "the last 4",
    "last 13": "the last 13",
    "now": "sums that are kept",
    "recounts": "all periods, by a job in each",
}


def noise_table(horizon: Horizon) -> Table:
    """Return the expected noise of a count in each kind of answer, before anything is spent."""
    rows = tuple((_ANSWERS[name], value) for name, value in horizon.expected().items())
    of = "of a count in records" if horizon.counts else "relative to the most that a record adds"
    title = f"Expected noise {of}, a mean over all periods"
    return Table(title, ("records of", "standard deviation"), rows)


def present_horizon(
    horizon: Horizon, released: Integers, noise: str = DiscreteNoise.label
) -> tuple[Release, Presentation]:
    """Return the answer for all periods so far, and its presentation with the course.

    `noise` is the source of the noise.
    """
    first, *others = shown_families(horizon)
    release, n, plan = horizon.latest(released, first), len(released), horizon.plan
    release = replace(release, noise=noise)
    shown = present(as_agreed(horizon, release, n))
    last = [
        replace(display, title=f"Period {n} alone: {display.title}")
        for name in others
        for display in displays_of(plan.task, horizon.latest(released, name).results, plan.columns)
    ]
    changes = change_table(horizon, released)
    remarks = [
        f"{name} changed: its shares in the last 4 periods differ from those before (p {p.text})"
        for name, p in _changed(horizon, released)
    ]
    return release, replace(
        shown,
        title=f"{shown.title} (periods 1 to {n} of {horizon.encoding.periods})",
        cost=f"{shown.cost} This is the price of all {horizon.encoding.periods} periods together; "
        f"the rows of one {noun_of(plan.unit)} count in at most {horizon.encoding.max_periods}.",
        remarks=(*shown.remarks, *remarks),
        displays=(*shown.displays, *changes, *last),
        course=tuple(courses(horizon, released)),
    )


def release_in(horizon: Horizon, released: Integers, name: str, noise: str) -> Release:
    """Return an answer of a family, with the plan of the records that it is expected to have."""
    # Windows are never shown as a model.
    periods = 1 if name == "latest" else len(released)
    release = replace(horizon.latest(released, name), noise=noise)
    return as_agreed(horizon, release, periods)


def as_agreed(horizon: Horizon, release: Release, periods: int) -> Release:
    """Return an answer with the plan of the records that are expected in some periods."""
    # The agreed number of records is for all periods, and an answer has those of some.
    agreed = ceil(horizon.plan.nominal_n * periods / horizon.encoding.periods)
    return replace(release, plan=replace(horizon.seen(periods), nominal_n=agreed))


def write_horizon_report(release: Release, shown: Presentation, file: Path, schema: Schema) -> None:
    """Write the report of a horizon, which has no model file to verify."""
    write_report(
        release,
        file,
        shown=shown,
        schema=schema,
        budget_lines=(("charged", "once for all periods, when the horizon was opened"),),
        verification=(
            "not verified",
            "Nobody signed the releases: all silos ran in one process."
            if not release.plan.fingerprints
            else "The silos confirmed each sum to each other; this file does not show it.",
        ),
    )


def change_table(horizon: Horizon, released: Integers) -> tuple[Table, ...]:
    """Return the p-values of a change, as one table or none."""
    found = horizon.changes(released)
    if not found:
        return ()
    least = least_level(horizon, len(found))
    rows = tuple((_named(name), PValue(p)) for name, p in found.items())
    note = f"A p-value below {least:.2g} is an alarm; {LEVEL:.0%} of horizons have a false one."
    title = "The last 4 periods against all before"
    return (Table(title, ("table", "p"), rows, note),)


def _changed(horizon: Horizon, released: Integers) -> list[tuple[str, PValue]]:
    """Return the tables that changed, with their p-values."""
    found = horizon.changes(released)
    return [
        (_named(name), PValue(p))
        for name, p in found.items()
        if p < least_level(horizon, len(found))
    ]


def _named(table: str) -> str:
    return table.replace("_", " ").capitalize()


def change_sentence(horizon: Horizon, released: Integers) -> str:
    """Return the verdict on a change of the last 4 periods; empty for a task without a test."""
    if getattr(horizon.plan.task, "changes", None) is None:
        return ""
    if horizon.seen(horizon.encoding.periods).group_size > 1:
        # Counts of one person depend on each other, so chance differs more than the test assumes.
        return "A change is not tested, as a person may have several records."
    if changed := _changed(horizon, released):
        each = ", ".join(f"{name} (p {p.text})" for name, p in changed)
        return f"The last 4 periods differ from all before: {each}."
    if not horizon.changes(released):
        return "A change is tested from period 8 on, without cost."
    return "The last 4 periods do not differ from all before, beyond noise and chance."


def shown_families(horizon: Horizon) -> list[str]:
    """Return the families of answers that a report has, the main one first."""
    return [name for name in horizon.families if name in _COURSES]


def least_level(horizon: Horizon, tables: int) -> float:
    """Return the level of one test, so that all have a false alarm with probability `LEVEL`."""
    # By Bonferroni over periods and tables: windows overlap, so that their tests are dependent.
    return LEVEL / horizon.encoding.periods / tables


def courses(horizon: Horizon, released: Integers) -> Iterator[Curve]:
    """Yield a picture over the periods for each small picture of the task."""
    plan, periods = horizon.plan, np.arange(1, len(released) + 1, dtype=np.float64)
    if len(periods) < 2:
        return
    for name in shown_families(horizon):
        shown = [
            {
                display.title: display
                for display in displays_of(
                    plan.task, horizon.latest(released[:t], name).results, plan.columns
                )
            }
            for t in range(1, len(released) + 1)
        ]
        for title, one in shown[-1].items():
            # A display may be missing in a period, for example if a median is not known there.
            complete = all(title in found for found in shown)
            small = isinstance(one, Bars | Heatmap) and one.estimate.values.size <= _LINES
            if small and complete:
                yield _course(
                    f"{title}, {_COURSES[name]}", periods, [found[title] for found in shown]
                )


def _course(title: str, periods: Any, shown: list[Any]) -> Curve:
    """Return one line for each number of a picture, over the periods."""
    first: Bars | Heatmap = shown[0]
    sides = first.estimate.labels
    names = sides[0] if len(sides) == 1 else tuple(f"{a}, {b}" for a in sides[0] for b in sides[1])
    values, low, high = (
        np.stack([np.ravel(getattr(one.estimate, part)) for one in shown], axis=1)
        for part in ("values", "low", "high")
    )
    estimate = Estimate(
        values, low, high, axes=("", "period"), labels=(names,), unit=first.estimate.unit
    )
    return Curve(title, periods, estimate)


def horizon_document(horizon: Horizon, released: Integers) -> dict[str, Any]:
    """Return the answers of all windows as JSON-able values."""
    budget = horizon.plan.budget
    assert budget is not None  # a rule of horizons
    epsilon = accounting.epsilon(horizon.event, budget.delta)
    return {
        "task": horizon.plan.task.name,
        "periods": {"released": len(released), "of": horizon.encoding.periods},
        "max_periods": horizon.encoding.max_periods,
        "unit": horizon.plan.unit,
        "budget": {"epsilon": epsilon, "delta": budget.delta},
        "results": {
            name: results_with_reasons(horizon.latest(released, name))
            for name in shown_families(horizon)
        },
        "changes": horizon.changes(released),
        "digest": horizon.digest,
    }
