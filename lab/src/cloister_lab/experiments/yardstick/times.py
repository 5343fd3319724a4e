"""Survival curves, medians, rates, the log-rank test, and hazard ratios."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from math import hypot, isfinite, log, nan
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.data.schema import Column
from cloister_lab.experiments.yardstick.readings import (
    Figure,
    Judge,
    Question,
    Release,
    Target,
    Tests,
    column_of,
    design_of,
    figures,
    first_of,
    levels_of,
    library,
)
from cloister_lab.experiments.yardstick.tables import Table

if TYPE_CHECKING:
    from pandas import DataFrame

_PLACES = (0.25, 0.5, 0.75)  # of the released times, where a curve is read
_HALF = 1  # of the default times at which restricted means are stated: half the horizon
_ENDS = ("", "_low", "_high", "_population_low", "_population_high")


def _has_times(table: Table) -> bool:
    return table.time is not None


def _times(table: Table) -> tuple[Column, Column]:
    assert table.time is not None
    assert table.event is not None
    return table.time, table.event


def _asks_curves(table: Table, _: int) -> Question:
    time, event = _times(table)
    group = column_of(table, table.group)
    options = {"time": time.name, "event": event.name, "by": group.name}
    return Question((time, event, group), options)


def _curves(release: Release) -> list[Figure]:
    results, task = release.results, release.plan.task
    groups: tuple[str, ...] = task.groups  # type: ignore[attr-defined]  # of this task
    times = results["times"]
    found = []
    for i, group in enumerate(groups):
        for part in _PLACES:
            at = round(part * (len(times) - 1))
            planned = _planned_curve(release, i, at)
            value = {f"survival{end}": results[f"survival{end}"][i, [at]] for end in _ENDS}
            label = f"curve at {part:g} of the times, {group}"
            place = [float(times[at])]
            found += figures(value, "survival", [label], at=place, planned=planned, box=(0.0, 1.0))
    for key in ("median", "rate"):
        found += figures(results, key, [f"{key}, {group}" for group in groups])
    half = {f"mean{end}": results[f"restricted_mean{end}"][:, _HALF] for end in _ENDS}
    names = [f"restricted mean, {group}" for group in groups]
    found += figures(half, "mean", names, at=[float(results["at"][_HALF])] * len(groups))
    names = [f"log rate ratio, {group}" for group in groups[1:]]
    return found + [each.logged for each in figures(results, "rate_ratio", names)]


def _planned_curve(release: Release, group: int, at: int) -> float | None:
    """Return the planned half-width of a curve, by the share of its group that is not censored."""
    task: Any = release.plan.task
    times, of_groups = (release.frame[release.plan.columns[j]] for j in (task.time, task.by))
    at_risk = int(((of_groups == group) & (times >= release.results["times"][at])).sum())
    alive = float(release.results["survival"][group, at])
    if not alive * at_risk > 0:
        return None
    share = at_risk / alive / release.plan.nominal_n
    name = "survival_of_a_group_with_10%_of_all_records_not_censored_half_width"
    planned = release.planned(name) * 0.1 / share
    return planned if isfinite(planned) else None


def _by_group(frame: DataFrame, table: Table) -> Iterator[tuple[str, DataFrame]]:
    group = column_of(table, table.group)
    for code, level in enumerate(levels_of(group)):
        yield level.split("=", 1)[1], frame[frame[group.name] == code]


def _kaplan_meier(frame: DataFrame, table: Table) -> dict[str, Target]:
    """Return curves and medians by lifelines, and events over person-time by our own formula."""
    time, event = (column.name for column in _times(table))
    found: dict[str, Target] = {}
    first = np.nan
    for i, (group, own) in enumerate(_by_group(frame, table)):
        fitted = library("lifelines").KaplanMeierFitter().fit(own[time], own[event])

        def curve(place: float, fitted: Any = fitted) -> float:
            return float(fitted.predict(place))

        def mean(upto: float, fitted: Any = fitted) -> float:
            restricted = library("lifelines.utils").restricted_mean_survival_time
            return float(restricted(fitted, upto))

        found |= {f"curve at {part:g} of the times, {group}": curve for part in _PLACES}
        found[f"restricted mean, {group}"] = mean
        # Follow-up and events up to the public bound: later events have no time in the divisor.
        last = _times(table)[0].max
        rate = float(own[event][own[time] <= last].sum() / own[time].clip(upper=last).sum())
        found |= {f"median, {group}": float(fitted.median_survival_time_), f"rate, {group}": rate}
        if i:
            found[f"log rate ratio, {group}"] = float(np.log(rate / first))
        else:
            first = rate
    return found


def _released_log_rank(release: Release) -> dict[str, float]:
    return first_of(release.results["log_rank_p"], "log-rank")


def _log_rank(frame: DataFrame, table: Table) -> dict[str, float]:
    time, event = (frame[column.name] for column in _times(table))
    test = library("lifelines.statistics").multivariate_logrank_test
    return {"log-rank": float(test(time, frame[table.group], event).p_value)}


# --- Cox ------------------------------------------------------------------------------------------


_MOST_TRUE = 2  # covariates without approximation, at any epsilon


def _all(table: Table) -> tuple[Column, ...]:
    return (*table.numbers, *table.words)


def _few(table: Table) -> tuple[Column, ...]:
    """Return the first yes-no columns, or the first number of a table without them."""
    answers = tuple(column for column in table.words if column.type == "boolean")
    return (answers or table.words or table.numbers)[: _MOST_TRUE if answers else 1]


def _asks_of(covariates: Callable[[Table], tuple[Column, ...]]) -> Callable[[Table, int], Question]:
    def asks(table: Table, n: int) -> Question:
        time, event = _times(table)
        events = {"nominal_events": round(table.events * n)}
        options = {"time": time.name, "event": event.name, **events}
        return Question((time, event, *covariates(table)), options)

    return asks


def _hazards(release: Release) -> list[Figure]:
    """Return coefficients; those that are not known or marked have no valid interval."""
    results, task = release.results, release.plan.task
    names: tuple[str, ...] = task.names  # type: ignore[attr-defined]  # of both tasks
    found = figures(results, "coef", [f"coefficient {name}" for name in names])
    if release.plan.task.name == "cox":
        widths = _planned_coefficients(release)
        found = [replace(f, planned=w) for f, w in zip(found, widths, strict=True)]
    unknown = results.get("far_values", results.get("reason"))
    assert unknown is not None
    return [replace(f, known=not mark) for f, mark in zip(found, unknown > 0, strict=True)]


def _planned_coefficients(release: Release) -> Iterator[float]:
    """Yield planned half-widths, by the spread of the events and by the cumulative hazard."""
    plan, last, code = release.plan, "", 0
    task: Any = plan.task
    time, event = (plan.columns[j] for j in (task.time, task.event))
    events = release.frame[release.frame[event] == 1]
    at_risk = len(release.frame) - np.searchsorted(np.sort(release.frame[time]), events[time])
    end = "if_80%_stay_without_the_event_half_width"
    more = hypot(1.0, float((1 / at_risk).sum())) / hypot(1.0, log(0.8))
    half = dict(zip(plan.columns, plan.grid.half_range, strict=True))
    places: dict[int, Iterator[int]] = defaultdict(
        count
    )  # in the forecast, by number of categories
    levels = [n for n in task.levels for _ in range(max(n - 1, 1))]
    for name, n in zip(task.names, levels, strict=True):
        column = name.partition("=")[0]
        code, last = (code + 1 if column == last else 1), column
        at = next(places[n])
        if n:
            even = f"log_hazard_ratio_of_one_of_{n}_categories_with_50%_of_the_events_{end}"
            own, first = (float((events[column] == k).mean()) for k in (code, 0))
            variance = own * first / (own + first) if own + first else 0.0
            usual = 1 / (2 * n)
        else:
            even = f"log_hazard_ratio_of_a_number_with_a_deviation_of_20%_of_its_range_{end}"
            variance, usual = float(events[column].var()) / float(half[column]), 0.16
        yield release.planned(even, at) * more * usual / variance if variance > 0 else nan


def _cox(frame: DataFrame, table: Table, covariates: tuple[Column, ...]) -> Any:
    time, event = (column.name for column in _times(table))
    design = design_of(frame, covariates, flags_as_numbers=True)
    whole = design.assign(**{time: frame[time], event: frame[event]})
    return library("lifelines").CoxPHFitter().fit(whole, time, event)


def _efron(covariates: Callable[[Table], tuple[Column, ...]]) -> Any:
    """Return a function for coefficients by lifelines, with Efron's ties."""

    def best(frame: DataFrame, table: Table) -> dict[str, Target]:
        fitted = _cox(frame, table, covariates(table))
        return {f"coefficient {name}": float(b) for name, b in fitted.params_.items()}

    return best


def _released_wald(release: Release) -> dict[str, float]:
    return first_of(release.results["wald_p"], "all coefficients")


def _likelihood_ratio(covariates: Callable[[Table], tuple[Column, ...]]) -> Any:
    def p_of(frame: DataFrame, table: Table) -> dict[str, float]:
        test = _cox(frame, table, covariates(table)).log_likelihood_ratio_test()
        return {"all coefficients": float(test.p_value)}

    return p_of


def _of_times(released: Callable[[Release], dict[str, float]], covariates: Any) -> Tests:
    def permuted(table: Table) -> tuple[str, ...]:
        return tuple(column.name for column in _times(table))

    return Tests(permuted, released, _likelihood_ratio(covariates))


JUDGES = (
    Judge(
        "survival",
        lambda table: _has_times(table) and bool(table.group),
        *(_asks_curves, _curves, _kaplan_meier, ("lifelines",)),
        tests=Tests(lambda table: (table.group,), _released_log_rank, _log_rank),
    ),
    *(
        Judge(
            *(name, _has_times, _asks_of(covariates), _hazards, _efron(covariates)),
            ("lifelines",),
            tests=_of_times(released, covariates),
        )
        for name, covariates, released in (
            ("cox", _few, _released_wald),
            ("cox-approximate", _all, _released_wald),
        )
    ),
)
"""The judges of this family."""
