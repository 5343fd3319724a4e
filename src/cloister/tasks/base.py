"""What a task is: what to sum, what to do with the answer, and how to say so.

A task is a frozen value of public numbers with pure methods. It has no keys, no noise, no files.
Each round it turns public state and local records into one integer vector whose change by one
record is bounded by an integer; everything else (masking, noise, accounting, transport, command
line, report) is done for it. To add one, write a class with these members in one file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, prod, sqrt
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cloister.hazmat.fixedpoint import Grid

Mechanism = Literal["gaussian", "laplace", "none"]
Profile = Literal["local", "group", "pairwise"]
INTERVAL_95: Mapping[Mechanism, float] = {
    "gaussian": 1.96,
    "laplace": log(20) / sqrt(2),
    "none": 0.0,
}
"""Half-width of the central 95 % of each law, in its standard deviations."""
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Records = NDArray[np.int32]
State = Mapping[str, Floats]
"""Named public arrays in grid coordinates (1.0 is the edge of the box)."""
GridState = Mapping[str, Integers]
"""The same arrays rounded to the grid, as every party holds them."""


@dataclass(frozen=True)
class Block:
    """One array in the vector that is summed in a round.

    Parameters
    ----------
    name : str
    shape : tuple of int
        Known from the plan alone; data-dependent lengths are padded to their maximum.
    l1 : int, > 0
        Largest L1 norm of what one record adds, in integers.
    l2_squared : int, > 0
        Largest squared L2 norm of what one record adds, in integers.
    weight : float in (0, 1]
        Part of the task's budget (squared GDP parameter, or epsilon of a Laplace task); the
        weights of all blocks of all rounds sum to 1.
    """

    name: str
    shape: tuple[int, ...]
    l1: int
    l2_squared: int
    weight: float

    @property
    def size(self) -> int:
        """Number of words."""
        return prod(self.shape)


@dataclass(frozen=True)
class Released:
    """A block after noise: public from here on.

    Parameters
    ----------
    values : ndarray of the block's shape, int64
    noise_std : float
        Standard deviation of the noise in each word, in integers; 0 without noise.
    """

    values: Integers
    noise_std: float


@dataclass(frozen=True)
class Measured:
    """A value with the half-width of its interval; shown as ``value ± spread``."""

    value: float
    spread: float


@dataclass(frozen=True)
class Between:
    """A value with both ends of its interval; shown as ``value [low, high]``.

    The value may lie outside its interval, as a centre that was shrunk does.
    """

    value: float
    low: float
    high: float


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

    Of the same shape: `spread` for ``value ± spread``, or `low` and `high` for both ends.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Floats
    spread: Floats | None = None
    shade: Floats | None = None
    note: str = ""
    low: Floats | None = None
    high: Floats | None = None


@dataclass(frozen=True)
class Bars:
    """Named bars with error bars of half-length `spread`."""

    title: str
    names: tuple[str, ...]
    values: Floats
    spread: Floats | None = None
    unit: str = ""
    note: str = ""


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
    """Values at ordered places with a band from `low` to `high`; `chosen` is the place marked."""

    title: str
    places: Floats
    values: Floats
    low: Floats
    high: Floats
    chosen: float | None = None
    axes: tuple[str, str] = ("", "")
    note: str = ""


Exhibit = Table | Heatmap | Bars | Scatter | Curve


@runtime_checkable
class Task(Protocol):
    """The protocol every task follows; implementations are frozen dataclasses.

    Attributes
    ----------
    name : str
        The word for it in plans and on the command line.
    private : bool
        Whether its release, with the plan's noise, satisfies the stated guarantee.
    profiles : frozenset of {"local", "group", "pairwise"}
        Trust profiles under which every frame is a function of the plan alone.
    n_features, frac_bits, rounds : int
    mechanism : {"gaussian", "laplace", "none"}
    """

    name: ClassVar[str]
    private: ClassVar[bool]
    profiles: ClassVar[frozenset[Profile]]

    @property
    def n_features(self) -> int:
        """Number of columns."""
        ...

    @property
    def frac_bits(self) -> int:
        """Fineness of the grid."""
        ...

    @property
    def rounds(self) -> int:
        """Number of noisy sums; fixed before any record is seen."""
        ...

    @property
    def mechanism(self) -> Mechanism:
        """Law of the noise."""
        ...

    @classmethod
    def design(cls, *args: Any, **kwargs: Any) -> Self:
        """Choose every public number of the task from public facts.

        Called with the keywords `n_features`, `nominal_n`, `budget` (None for a task that is not
        private), `frac_bits`, and options of the task's own.
        """
        ...

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        ...

    def start(self) -> State:
        """Return the public state before the first round; independent of the records."""
        ...

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the layout of round `t`, at its plan maximum."""
        ...

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the integer vector of round `t` for some records (blocks one after another)."""
        ...

    def update(self, t: int, state: GridState, released: Mapping[str, Released]) -> State:
        """Return the next public state from what was released; costs no privacy."""
        ...

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return the expected half-widths of `results`, before anything is spent.

        Parameters
        ----------
        noise_std : float
            Of each word of the last round's first block, in integers.
        nominal_n : int
        grid : Grid

        Returns
        -------
        mapping
            Names of `results` that are half-widths, in the users' units; may be empty.
        """
        ...

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        """Return the final answer in the users' units."""
        ...

    def exhibits(
        self, results: Mapping[str, Floats], columns: tuple[str, ...]
    ) -> tuple[Exhibit, ...]:
        """Return the tables and pictures of the report."""
        ...
