"""What a release says, what the textbook says, and both side by side.

A judge of a task asks its question at the defaults, reads the released figures by the names of the
task's results, and computes the same figures from records by the call of a library. The textbook
sees records only: no bounds, no bins of the task, no clipping, no horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from math import inf, isfinite, log, nan
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cloister.core.arrays import Floats, Results
from cloister.core.display import Estimate
from cloister.data.schema import Column
from cloister.protocol.plan import Plan
from cloister_lab.experiments.yardstick.tables import Table, not_installed

if TYPE_CHECKING:
    from pandas import DataFrame

Kind = Literal["noise", "population"]


@dataclass(frozen=True)
class Among:
    """An answer that is one of the values of a column, or between two of them.

    Parameters
    ----------
    value : float
    gap : float, >= 0
        Half the distance between the next smaller and the next greater value of the column.
    """

    value: float
    gap: float


Target = float | Among | Callable[[float], float | Among]
"""A number, or a function of the place where the release gives a value."""

Box = tuple[float, float]
NOWHERE: Box = (-np.inf, np.inf)
PLANNED = 1.5
"""Greatest factor between the planned and the delivered width."""


@dataclass(frozen=True)
class Question:
    """What a task is asked.

    Parameters
    ----------
    columns : tuple of Column
        The schema.
    options : mapping
        Only those without a default.
    """

    columns: tuple[Column, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Release:
    """A plan, its forecast and the results of one run.

    Parameters
    ----------
    frame : DataFrame
        The records, for the shares that a forecast depends on and a planner must guess.
    """

    plan: Plan
    forecast: Results
    results: Results
    frame: DataFrame

    def planned(self, name: str, at: int = 0) -> float:
        """Return a half-width of the forecast."""
        return float(np.ravel(self.forecast[name])[at])


@dataclass(frozen=True)
class Figure:
    """A released number with its intervals.

    Parameters
    ----------
    noise, population : pair of float, optional
        The ends of the two intervals.
    planned : float, optional
        Half-width of the noise interval in the forecast.
    at : float, optional
        The place of a value on a curve.
    total : bool
        Whether it grows with the number of records: the target of the population interval is the
        number that a draw of this size has on average.
    known : bool
        False if the release marks the number as not known, or the interval is all that is possible.
    """

    name: str
    estimate: float
    noise: Box | None = None
    population: Box | None = None
    planned: float | None = None
    at: float | None = None
    total: bool = False
    known: bool = True

    @property
    def logged(self) -> Figure:
        """The logarithm of a ratio, whose errors are more even; an end at 0 becomes infinite."""
        ends = (_logs(self.noise), _logs(self.population))
        return replace(self, estimate=_log(self.estimate), noise=ends[0], population=ends[1])


def _log(value: float) -> float:
    return log(value) if value > 0 else -inf


def _logs(ends: Box | None) -> Box | None:
    return ends and (_log(ends[0]), _log(ends[1]))


@dataclass(frozen=True)
class Reading:
    """An interval beside its target; `gap` is that of a target among the values of a column."""

    name: str
    kind: Kind
    estimate: float
    low: float
    high: float
    target: float
    planned: float | None = None
    known: bool = True
    gap: float = 0.0

    @property
    def held(self) -> bool:
        """Whether the interval holds the target."""
        return self.low <= self.target <= self.high

    @property
    def half(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    @property
    def error(self) -> float:
        """Distance of the estimate from the target."""
        return abs(self.estimate - self.target)

    @property
    def is_off_plan(self) -> bool:
        """Whether there is a forecast and the half-width is far from it."""
        planned = self.planned
        return planned is not None and not planned / PLANNED <= self.half <= planned * PLANNED


def _prepared(frame: DataFrame, _: Table) -> DataFrame:
    return frame


@dataclass(frozen=True)
class Tests:
    """How the tests of a task are judged where their null hypothesis is true.

    Parameters
    ----------
    moved : function of a table
        Columns whose rows are permuted together, so that no other column depends on them.
    p_values : function of a release
        The released p-values by name.
    exact : function of records and a table
        The same without noise, by the call of a library.
    """

    moved: Callable[[Table], tuple[str, ...]]
    p_values: Callable[[Release], Mapping[str, float]]
    exact: Callable[[DataFrame, Table], Mapping[str, float]]


@dataclass(frozen=True)
class Judge:
    """How the releases of a task are judged.

    Parameters
    ----------
    suits : function of a table
        Whether it has the columns.
    asks : function of a table and a number of records
        The question.
    released : function of a release
        Its figures.
    textbook : function of records and a table
        The same figures by their names, by the call of a library.
    needs : sequence of str
        Packages of the textbook that the laboratory does not depend on.
    prepared : function of records and a table
        Records with columns that the question needs, such as predictions of a model.
    tests : Tests, optional
        How its tests are judged.
    """

    task: str
    suits: Callable[[Table], bool]
    asks: Callable[[Table, int], Question]
    released: Callable[[Release], list[Figure]]
    textbook: Callable[[DataFrame, Table], Mapping[str, Target]]
    needs: Sequence[str] = ()
    prepared: Callable[[DataFrame, Table], DataFrame] = _prepared
    tests: Tests | None = None

    @property
    def absent(self) -> str:
        """Why the textbook cannot be asked, or an empty text."""
        return not_installed(self.task, self.needs)


def library(name: str) -> Any:
    """Return a module of another package, imported at its first use."""
    return import_module(name)


def figures(
    results: Results,
    key: str,
    names: Sequence[str],
    *,
    prefix: str | None = None,
    planned: float | None = None,
    at: Sequence[float] | None = None,
    box: Box = NOWHERE,
    total: bool = False,
) -> list[Figure]:
    """Return all numbers of a result.

    Parameters
    ----------
    names : sequence of str
        Of its numbers, the last axis varying fastest.
    prefix : str, optional
        Of the results with the ends, by default the key.
    at : sequence of float, optional
        A place for each.
    box : (low, high)
        All possible values: an interval of both is not known.
    """
    prefix = f"{key}_" if prefix is None else prefix
    values = np.ravel(results[key])
    if f"{prefix}half_width" in results and f"{prefix}low" not in results:
        margin = np.broadcast_to(np.ravel(results[f"{prefix}half_width"]), values.shape)
        low, high = values - margin, values + margin
    else:
        low, high = (np.ravel(results[f"{prefix}{end}"]) for end in ("low", "high"))
    wide: list[Box | None] = [None] * len(values)
    if f"{prefix}population_low" in results:
        ends = (np.ravel(results[f"{prefix}population_{end}"]) for end in ("low", "high"))
        wide = [(float(a), float(b)) for a, b in zip(*ends, strict=True)]
    return [
        Figure(
            name,
            float(values[i]),
            (float(low[i]), float(high[i])),
            wide[i],
            planned,
            None if at is None else at[i],
            total,
            known=not (low[i] <= box[0] and high[i] >= box[1]),
        )
        for i, name in enumerate(names)
    ]


def shown(name: str, estimate: Estimate) -> Figure:
    """Return an estimate of a display as a figure."""
    value, low, high, *wide = estimate.numbers
    return Figure(name, value, (low, high), (wide[0], wide[1]) if wide else None)


def readings(
    found: Sequence[Figure],
    of_draw: Mapping[str, Target],
    of_population: Mapping[str, Target],
    size: float = 1.0,
) -> list[Reading]:
    """Return each interval of the figures beside its target.

    Parameters
    ----------
    size : float
        Records of the draw over those of the population.

    Notes
    -----
    A number without an answer in the textbook, such as the mean of an empty group, is left out.
    """
    made = []
    for figure in found:
        both: tuple[tuple[Kind, Box | None, Mapping[str, Target]], ...] = (
            ("noise", figure.noise, of_draw),
            ("population", figure.population, of_population),
        )
        for kind, ends, textbook in both:
            if ends is None:
                continue
            answer = textbook[figure.name]
            if callable(answer):
                answer = answer(np.nan if figure.at is None else figure.at)
            among = answer if isinstance(answer, Among) else Among(answer, 0.0)
            target, gap = among.value, among.gap
            if kind == "population" and figure.total:
                target *= size
            if not isfinite(target):
                continue
            finite = all(isfinite(number) for number in (figure.estimate, *ends))
            planned = figure.planned if kind == "noise" else None
            known = figure.known and finite
            numbers = (figure.estimate, *ends, float(target))
            made.append(Reading(figure.name, kind, *numbers, planned, known, gap))
    return made


def first_of(values: Floats, name: str) -> dict[str, float]:
    """Return a number by its name; of no values, as for a test without an answer, not a number."""
    return {name: float(values[0]) if len(values) else nan}


def names_of(columns: Sequence[Column]) -> list[str]:
    """Return the names of columns."""
    return [column.name for column in columns]


def levels_of(column: Column) -> list[str]:
    """Return the names of the cells of a column of words."""
    labels = column.public.categories
    return [f"{column.name}={label}" for label in labels]


def column_of(table: Table, name: str) -> Column:
    """Return a column by name."""
    return next(column for column in table.columns if column.name == name)


def shares_of(frame: DataFrame, columns: Sequence[Column]) -> dict[str, float]:
    """Return the share of each cell of columns of words, by pandas."""
    return {
        f"share {level}": float((frame[column.name] == code).mean())
        for column in columns
        for code, level in enumerate(levels_of(column))
    }


def design_of(
    frame: DataFrame, columns: Sequence[Column], *, flags_as_numbers: bool = False
) -> DataFrame:
    """Return the columns of a regression: each cell of a column of words but its first is a column.

    Parameters
    ----------
    flags_as_numbers : bool
        If True, a yes-no column keeps its name.
    """
    found = {}
    for column in columns:
        values = frame[column.name]
        if column.type == "number" or (flags_as_numbers and column.type == "boolean"):
            found[column.name] = values
            continue
        for code, level in enumerate(levels_of(column)[1:], 1):
            found[level] = (values == code).astype(float)
    return frame[[]].assign(**found)
