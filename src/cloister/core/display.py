"""``Estimate``, and displays of a task's results: tables and pictures that the report draws.

An estimate holds released values with the ends of their confidence intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from cloister.core import numerals
from cloister.core.arrays import Flags, Floats, Results
from cloister.core.deprecated import resolve
from cloister.core.numerals import NOT_KNOWN, day, plus_minus

Interval = tuple[Floats, Floats]
DATE, YEARS = "date", "years"
"""Units of a date, a year with a fraction that text shows as a day, and of a length of time."""
ENDS = ("_population_low", "_population_high")
"""The suffixes of a result that holds an end of a population interval."""
_RATIOS = (
    *("odds_ratio", "hazard_ratio", "rate_ratio", "relative_risk"),
    *("selection_ratio", "opportunity_ratio", "lift"),
)


@dataclass(frozen=True, repr=False)
class Estimate:
    """Values with the ends of their 95 % confidence intervals (privacy noise only).

    A single number is an estimate of shape (). A value may be outside its interval, such as a mean
    that was shrunk.

    Parameters
    ----------
    values, low, high : ndarray of one shape
        Without an interval, `low` and `high` are not a number.
    population : (low, high), optional
        Ends of the interval that includes the error of sampling; tables give it a column.
    margin : ndarray of the same shape, optional
        Half the width of a symmetric interval, which is written as ``value ± margin``.
    distinct : ndarray of the same shape, bool, optional
        True for values beyond the noise, if the criterion is not the difference from `null`.
    null : float
        The value without an effect: 1 for a ratio.
    normal : bool
        True if the errors are normal and the margin is 1.96 standard errors, so that the intervals
        of other levels follow from it.
    axes, labels : tuple
        A name, and the names of all places, for each axis.
    unit : str
        Unit of the values; text shows those of `DATE` as days.
    """

    values: Floats
    low: Floats
    high: Floats
    population: Interval | None = field(default=None, kw_only=True)
    margin: Floats | None = field(default=None, kw_only=True)
    distinct: Flags | None = field(default=None, kw_only=True)
    null: float = field(default=0.0, kw_only=True)
    normal: bool = field(default=False, kw_only=True)
    axes: tuple[str, ...] = field(default=(), kw_only=True)
    labels: tuple[tuple[str, ...], ...] = field(default=(), kw_only=True)
    unit: str = field(default="", kw_only=True)

    @classmethod
    def of(cls, results: Results, name: str, **more: Any) -> Self:
        """Return the estimate that results hold under a name and its suffixes."""
        low, high, *wide = (results.get(name + end) for end in ("_low", "_high", *ENDS))
        bare = np.full_like(results[name], np.nan)
        if is_ratio(name):
            more = {"null": 1.0, **more}
        return cls(
            results[name],
            bare if low is None else low,
            bare if high is None else high,
            population=None if wide[0] is None or wide[1] is None else (wide[0], wide[1]),
            **more,
        )

    def named(self, name: str) -> dict[str, Floats]:
        """Return the arrays under a name and its suffixes, as in results."""
        parts = {name: self.values, f"{name}_low": self.low, f"{name}_high": self.high}
        if self.population is not None:
            parts |= {name + end: array for end, array in zip(ENDS, self.population, strict=True)}
        # Results are vectors at least, since a saved model stores lists.
        return {key: np.atleast_1d(array).astype(np.float64) for key, array in parts.items()}

    @property
    def value(self) -> float:
        """The value of a single number."""
        return float(np.asarray(self.values).item())

    @property
    def numbers(self) -> tuple[float, ...]:
        """The value and both ends of its interval and, if present, its population interval."""
        parts = (self.values, self.low, self.high, *(self.population or ()))
        return tuple(float(np.asarray(part).item()) for part in parts)

    @property
    def text(self) -> str:
        """The text of a single number with its interval, and of a date as days."""
        value, low, high, *_ = self.numbers
        if self.unit == DATE:
            return day(value) + (f" [{day(low)}, {day(high)}]" if low < high else "")
        unit = f" {YEARS}" if self.unit == YEARS and not math.isnan(value) else ""
        if self.margin is not None:
            return plus_minus(value, float(self.margin)) + unit
        return numerals.between(value, low, high) + unit

    def __repr__(self) -> str:
        """Return the text of each number, with the population interval if there is one."""
        if np.ndim(self.values):
            return f"[{', '.join(repr(self[i]) for i in range(len(self.values)))}]"
        if self.population is None or np.array_equal(*self.population):  # none, or an exact one
            return self.text
        _, bracket, ends = self.of_population.text.partition(" [")
        return f"{self.text}, population {bracket[1:] + ends or NOT_KNOWN}"

    @property
    def is_distinct(self) -> Flags:
        """True for values that differ from `null`: beyond sampling if that is known, and noise."""
        if self.distinct is not None:
            return self.distinct
        # By the margin, since rounding of value - margin could move an end across 0.
        if self.margin is not None:
            return np.asarray((self.margin == 0) | (np.abs(self.values - self.null) > self.margin))
        # An interval of no width is exact. One of nan holds no null, so a bare value has no mark.
        low, high = self.population or (self.low, self.high)
        within = np.logical_and(low <= self.null, self.null <= high)
        if self.population is not None:  # if it is not known, nor is a difference
            within = np.logical_or(within, np.isnan(low))
        return np.asarray((low == high) | np.logical_not(within))

    @property
    def of_population(self) -> Self:
        """The same values with the population interval alone; unchanged without one."""
        if self.population is None:
            return self
        low, high = self.population
        return type(self)(self.values, low, high, null=self.null, unit=self.unit)

    def __getitem__(self, at: Any) -> Self:
        """Return a slice of all arrays, without names of places."""
        return type(self)(
            self.values[at],
            self.low[at],
            self.high[at],
            population=self.population and (self.population[0][at], self.population[1][at]),
            margin=None if self.margin is None else self.margin[at],
            distinct=None if self.distinct is None else self.distinct[at],
            null=self.null,
            normal=self.normal,
            unit=self.unit,
        )

    def cells(self) -> Iterator[Self]:
        """Yield each number, the last axis varying fastest."""
        return map(self.__getitem__, np.ndindex(np.shape(self.values)))

    def mapped(self, function: Callable[[Floats], Floats]) -> Self:
        """Return the estimate with a function applied to values and ends."""
        # Neither margin nor `distinct` survives a function that is not linear.
        ends = self.population and (function(self.population[0]), function(self.population[1]))
        parts = map(function, (self.values, self.low, self.high))
        return type(self)(*parts, population=ends, unit=self.unit)

    def followed_by(self, other: Estimate) -> Self:
        """Return the values of both along the first axis; both have population intervals, or none.

        Margins, marks and names of places are left out.
        """

        def both(first: Floats, second: Floats) -> Floats:
            return np.concatenate([first, second])

        ends = None
        if self.population is not None and other.population is not None:
            low, high = map(both, self.population, other.population)
            ends = low, high
        parts = map(both, (self.values, self.low, self.high), (other.values, other.low, other.high))
        return type(self)(*parts, population=ends, unit=self.unit)

    def joined(self, other: Estimate) -> Self:
        """Return the values with intervals that include those of another estimate."""
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        ends = self.population
        if ends is not None:
            # Without sampling error, the other's interval is the least that must be included.
            far = other.population or (low, high)
            ends = np.minimum(ends[0], far[0]), np.maximum(ends[1], far[1])
        return type(self)(self.values, low, high, population=ends)


class PValue(float):
    """A p-value. Its text has three digits, since noise leaves no meaning to more."""

    @property
    def text(self) -> str:
        """The text, such as "< 0.001"."""
        if self != self:
            return NOT_KNOWN
        return "< 0.001" if self < 0.001 else f"{float(self):.3f}"


def is_ratio(name: str) -> bool:
    """Return True for the name of a result whose value without an effect is 1."""
    return name.endswith(_RATIOS)


def around(values: Floats | float, margin: Floats | float, **more: Any) -> Estimate:
    """Return values with a symmetric interval, which is written as ``value ± margin``."""
    values = np.asarray(values, dtype=np.float64)[()]
    margin = np.broadcast_to(np.asarray(margin, dtype=np.float64), np.shape(values))[()]
    return Estimate(values, values - margin, values + margin, margin=margin, **more)


def between(
    value: float,
    low: float,
    high: float,
    *,
    population: tuple[float, float] | None = None,
    distinct: bool | None = None,
) -> Estimate:
    """Return a single number with the ends of its intervals."""
    number: Any = np.float64  # a scalar of NumPy is an array of shape ()
    ends = population and (number(population[0]), number(population[1]))
    flag: Any = None if distinct is None else np.bool_(distinct)
    return Estimate(number(value), number(low), number(high), population=ends, distinct=flag)


def bare(values: Floats, **more: Any) -> Estimate:
    """Return values without intervals."""
    nothing = np.full_like(values, np.nan)
    return Estimate(values, nothing, nothing, **more)


Cell = str | float | Estimate
"""A cell of a table; an estimate in it has a single number."""


@dataclass(frozen=True)
class Table:
    """A table in the report: column headings and rows of text, numbers or single estimates."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Heatmap:
    """A matrix as colours; intervals are written next to the values.

    Parameters
    ----------
    estimate : Estimate of shape (n_rows, n_columns)
        Its labels name rows and columns.
    shade : ndarray of the same shape in [-1, 1], optional
        0 is white, and the two signs have two colours.
    absent : str
        The text in place of a value that is not a number.
    dates : tuple of int
        Columns whose values are dates.
    """

    title: str
    estimate: Estimate
    note: str = ""
    shade: Floats | None = None
    absent: str = NOT_KNOWN
    dates: tuple[int, ...] = ()

    @property
    def headings(self) -> tuple[str, ...]:
        """Headings for :meth:`numbers`, that of the names first."""
        return ("", *self.estimate.labels[1])

    def numbers(self) -> Iterator[tuple[str, tuple[Estimate, ...]]]:
        """Yield the name and the numbers of each row."""
        for i, name in enumerate(self.estimate.labels[0]):
            cells = enumerate(self.estimate[i].cells())
            yield name, tuple(replace(c, unit=DATE) if j in self.dates else c for j, c in cells)


@dataclass(frozen=True)
class Bars:
    """Named bars with their intervals.

    Parameters
    ----------
    estimate : Estimate of shape (n_bars,)
        Its label names the bars.
    absent : str
        The text in place of a value that is not a number.
    points : bool
        If True, each value is a point with its interval, as in a forest plot.
    marks : tuple of float
        Values with a dashed line across all bars.
    """

    title: str
    estimate: Estimate
    note: str = ""
    absent: str = NOT_KNOWN
    points: bool = False
    marks: tuple[float, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the bars."""
        return self.estimate.labels[0]

    @property
    def headings(self) -> tuple[str, ...]:
        """Headings for :meth:`numbers`, that of the names first."""
        return ("", self.estimate.unit or "value")

    def numbers(self) -> Iterator[tuple[str, tuple[Estimate, ...]]]:
        """Yield the name and the number of each bar."""
        return zip(self.names, zip(self.estimate.cells(), strict=True), strict=True)


@dataclass(frozen=True)
class Scatter:
    """Labelled points in the plane with the size of each; `dates` are the axes of dates."""

    title: str
    names: tuple[str, ...]
    points: Floats
    sizes: Floats | None = None
    axes: tuple[str, str] = ("", "")
    note: str = ""
    dates: tuple[int, ...] = ()


@dataclass(frozen=True)
class Curve:
    """Values at ordered places with a band from `low` to `high`.

    Parameters
    ----------
    places : ndarray of shape (n_places,)
    estimate : Estimate of shape (n_places,), or (n_curves, n_places) whose first label names them
        Its last axis and its unit name the axes of the picture. A curve has a gap at values that
        are not a number. The population interval is a wider band.
    chosen : float, optional
        The marked place.
    steps : bool
        If True, a value holds from its place to the next one; otherwise values are joined.
    dates : bool
        Whether the places are dates, as years with a fraction.
    """

    title: str
    places: Floats
    estimate: Estimate
    note: str = ""
    chosen: float | None = None
    steps: bool = False
    dates: bool = False
    absent: ClassVar[str] = ""  # an empty cell, since curves may have many gaps

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the curves; empty for a single curve."""
        return self.estimate.labels[0] if self.estimate.labels else ()

    @property
    def axes(self) -> tuple[str, str]:
        """Names of the axes of the picture."""
        return (self.estimate.axes[-1] if self.estimate.axes else "", self.estimate.unit)

    @property
    def headings(self) -> tuple[str, ...]:
        """Headings for :meth:`numbers`, that of the places first."""
        x, y = self.axes
        return (x or "x", *(self.names or (y or "value",)))

    def numbers(self) -> Iterator[tuple[float, tuple[Estimate, ...]]]:
        """Yield each place and the number of each curve there."""
        for i, place in enumerate(self.places.tolist()):
            yield place, tuple(self.estimate[..., i].cells())


@dataclass(frozen=True)
class Graph:
    """Named nodes with relative areas `sizes`, and arrows between them.

    An edge is (from, to, relative strength, label of the arrow).
    """

    title: str
    names: tuple[str, ...]
    sizes: Floats
    edges: tuple[tuple[int, int, float, str], ...]
    note: str = ""


Display = Table | Heatmap | Bars | Scatter | Curve | Graph


@dataclass(frozen=True)
class Summary:
    """Sentences of a task on its results; an empty sentence is replaced by the default one.

    Parameters
    ----------
    title : str
        Title of the report.
    result : str, or tuple of text and numbers
        The result in one or two sentences. Numbers are written with their intervals.
    reliability : str
        The values that differ from no effect.
    remarks : tuple of str
        Reasons not to rely on the values, without a capital letter and a full stop.
    one_record : bool
        True if the sentences hold only if a unit has one record; otherwise default ones replace
        them.
    """

    title: str = ""
    result: str | tuple[Cell, ...] = ""
    reliability: str | tuple[Cell, ...] = ""
    remarks: tuple[str, ...] = ()
    one_record: bool = False


if not TYPE_CHECKING:  # type checkers see today's names only

    def __getattr__(name: str) -> Any:
        return resolve(__name__, name)
