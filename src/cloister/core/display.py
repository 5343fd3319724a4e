"""What a task shows of its results: tables and pictures, as values that the report draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.deprecated import old_name


@dataclass(frozen=True)
class Measured:
    """A value with its margin of error, half a 95 % interval, as ``value ± margin``.

    `known` says whether it stands out of the noise, where that is not a matter of 0.
    """

    value: float
    margin: float
    known: bool | None = field(default=None, kw_only=True)

    @property
    def clear(self) -> bool:
        """Whether it stands out of the noise: by `known`, or else 0 is outside of the interval."""
        far = self.margin == 0 or abs(self.value) > self.margin
        return far if self.known is None else self.known


@dataclass(frozen=True)
class Between:
    """A value with its 95 % confidence interval (privacy noise only), as ``value [low, high]``.

    The value may lie outside, as a centre that was shrunk does. `population` is the interval that
    includes sampling, where there is one; tables give it a column. `known` says whether it stands
    out of the noise, where that is not a matter of 0, as of a centre.
    """

    value: float
    low: float
    high: float
    population: tuple[float, float] | None = field(default=None, kw_only=True)
    known: bool | None = field(default=None, kw_only=True)

    @property
    def clear(self) -> bool:
        """Whether it stands out of the noise: by `known`, or else 0 is outside of the interval."""
        far = self.low == self.high or not self.low <= 0 <= self.high
        return far if self.known is None else self.known


@dataclass(frozen=True)
class Table:
    """A table in the report: column headings and rows of text, numbers or measured values."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str | float | Measured | Between, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Heatmap:
    """A matrix as colours; intervals are written beside the values.

    Of the same shape: `margin` for ``value ± margin``, or `low` and `high` for both ends; `shade`
    in [-1, 1], where 0 is white and the two signs have two colours. Where a value is not a number,
    `absent` is written.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Floats
    margin: Floats | None = None
    shade: Floats | None = None
    note: str = ""
    low: Floats | None = None
    high: Floats | None = None
    absent: str = "not a number"


@dataclass(frozen=True)
class Bars:
    """Named bars with error bars of half-length `margin`, or from `low` to `high`.

    Where a value is not a number, `absent` is written.
    """

    title: str
    names: tuple[str, ...]
    values: Floats
    margin: Floats | None = None
    unit: str = ""
    note: str = ""
    low: Floats | None = None
    high: Floats | None = None
    absent: str = "not a number"


@dataclass(frozen=True)
class Scatter:
    """Labelled points in the plane with the size of each."""

    title: str
    names: tuple[str, ...]
    points: Floats
    sizes: Floats | None = None
    axes: tuple[str, str] = ("", "")
    note: str = ""


@dataclass(frozen=True)
class Curve:
    """Values at ordered places with a band from `low` to `high`; `chosen` is the place marked.

    With `names` there are several curves: values and ends have a row for each, and NaN where a
    curve is not shown. `population` are the ends of a wider band, which includes sampling.
    """

    title: str
    places: Floats
    values: Floats
    low: Floats
    high: Floats
    chosen: float | None = None
    axes: tuple[str, str] = ("", "")
    note: str = ""
    names: tuple[str, ...] = ()
    population: tuple[Floats, Floats] | None = None

    def cells(self) -> Iterator[tuple[Between | str, ...]]:
        """Yield, for each place, the value of each curve with its ends; "" where there is none."""
        ends = (self.values, self.low, self.high, *(self.population or ()))
        for stop in np.stack([np.atleast_2d(end) for end in ends], axis=2).swapaxes(0, 1).tolist():
            yield tuple(
                Between(*cell[:3], population=tuple(cell[3:]) or None, known=True)
                if cell[0] == cell[0]
                else ""
                for cell in stop
            )


@dataclass(frozen=True)
class Graph:
    """Named nodes with relative areas `sizes`, and arrows between them.

    An edge says from, to, its relative strength, and what is written at the arrow.
    """

    title: str
    names: tuple[str, ...]
    sizes: Floats
    edges: tuple[tuple[int, int, float, str], ...]
    note: str = ""


Display = Table | Heatmap | Bars | Scatter | Curve | Graph


if not TYPE_CHECKING:  # type checkers shall see today's names only

    def __getattr__(name: str) -> Any:
        return old_name(__name__, name)
