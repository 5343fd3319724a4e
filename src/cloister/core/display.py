"""Displays of a task's results: tables and pictures as values that the report draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from cloister.core.arrays import Floats
from cloister.core.deprecated import resolve
from cloister.core.estimate import Estimate

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
    """

    title: str
    estimate: Estimate
    note: str = ""
    shade: Floats | None = None
    absent: str = "not a number"

    @property
    def headings(self) -> tuple[str, ...]:
        """Headings for :meth:`numbers`, that of the names first."""
        return ("", *self.estimate.labels[1])

    def numbers(self) -> Iterator[tuple[str, tuple[Estimate, ...]]]:
        """Yield the name and the numbers of each row."""
        for i, name in enumerate(self.estimate.labels[0]):
            yield name, tuple(self.estimate[i].cells())


@dataclass(frozen=True)
class Bars:
    """Named bars with their intervals.

    Parameters
    ----------
    estimate : Estimate of shape (n_bars,)
        Its label names the bars.
    absent : str
        The text in place of a value that is not a number.
    """

    title: str
    estimate: Estimate
    note: str = ""
    absent: str = "not a number"

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
    """Labelled points in the plane with the size of each."""

    title: str
    names: tuple[str, ...]
    points: Floats
    sizes: Floats | None = None
    axes: tuple[str, str] = ("", "")
    note: str = ""


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
    """

    title: str
    places: Floats
    estimate: Estimate
    note: str = ""
    chosen: float | None = None
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
    result : str
        The result in one sentence.
    reliability : str
        The values that differ from zero beyond the noise.
    remarks : tuple of str
        Reasons not to rely on the values, without a capital letter and a full stop.
    """

    title: str = ""
    result: str = ""
    reliability: str = ""
    remarks: tuple[str, ...] = ()


if not TYPE_CHECKING:  # type checkers see today's names only

    def __getattr__(name: str) -> Any:
        return resolve(__name__, name)
