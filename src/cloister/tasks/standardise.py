"""``Standardise``: private means and deviations, and records in units of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from cloister.errors import PlanError
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.privacy.budget import Budget
from cloister.tasks.base import (
    Between,
    Block,
    Exhibit,
    Floats,
    GridState,
    Integers,
    Mechanism,
    Profile,
    PublicColumn,
    Records,
    Released,
    State,
    Table,
)
from cloister.tasks.intervals import ratio_interval, size_interval
from cloister.tasks.quantiles import numbers_but

_FINE = 16  # a record counts 2**16
_COUNT_SHARE = 0.1
_FLOOR = 2.0**-8  # of a deviation, as a part of half the box: what is flatter is noise


@dataclass(frozen=True, kw_only=True)
class Standardise:
    """Columns of numbers, each less its mean, over its deviation, within a public reach.

    Parameters
    ----------
    names : tuple of str
    low, high : tuple of float, data units
    categories : tuple of tuple of str
        Of each column; empty for numbers.
    used : tuple of int
        Columns that are standardised; at least one. The others stay as they are.
    reach : float, > 0
        Deviations from the mean at which a record is cut.
    frac_bits : int

    Notes
    -----
    A record adds 1 to a count, its `used` coordinates to as many sums and their squares, less a
    half, to as many more: the half is known, and without it squares weigh half as much. Squares
    are truncated to the grid. With D used columns the integer bounds are one, ``D one**2`` and
    ``D (one / 2)**2``, exactly. [docs/proofs/preparation.md]
    """

    name: ClassVar[str] = "standardise"
    private: ClassVar[bool] = True
    profiles: ClassVar[frozenset[Profile]] = frozenset({"local", "group", "pairwise"})
    mechanism: ClassVar[Mechanism] = "gaussian"
    rounds: ClassVar[int] = 1

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    categories: tuple[tuple[str, ...], ...]
    used: tuple[int, ...]
    reach: float = 4.0
    frac_bits: int = 16

    def __post_init__(self) -> None:
        for field in ("names", "low", "high", "used"):
            object.__setattr__(self, field, tuple(getattr(self, field)))
        object.__setattr__(self, "categories", tuple(tuple(words) for words in self.categories))
        if not self.used or not all(0 <= j < len(self.names) for j in self.used):
            raise PlanError("standardise needs at least one column of numbers; leave it out.")
        if not 0 < self.reach <= 100:
            raise PlanError(f"reach must be in (0, 100] deviations, got {self.reach}.")

    @classmethod
    def design(
        cls,
        *,
        n_features: int,
        nominal_n: int,
        budget: Budget | None,
        frac_bits: int = 16,
        columns: tuple[PublicColumn, ...],
        keep: Sequence[str] = (),
        reach: float = 4.0,
    ) -> Self:
        """Standardise every column of numbers that is not to be kept as it is."""
        return cls(
            names=tuple(column.name for column in columns),
            low=tuple(column.low for column in columns),
            high=tuple(column.high for column in columns),
            categories=tuple(column.categories for column in columns),
            used=numbers_but(columns, keep),
            reach=float(reach),
            frac_bits=frac_bits,
        )

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return len(self.names)

    @property
    def output(self) -> tuple[PublicColumn, ...]:
        """The columns; standardised ones in deviations."""
        return tuple(
            PublicColumn(name, -self.reach, self.reach)
            if j in self.used
            else PublicColumn(name, self.low[j], self.high[j], self.categories[j])
            for j, name in enumerate(self.names)
        )

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        return (
            f"The number of records, and sums and sums of squares of {len(self.used)} columns, all "
            "with Gaussian noise; each silo then expresses its records in deviations from the mean."
        )

    def start(self) -> State:
        """Return the middle of the box, and a deviation of half of it."""
        width = len(self.used)
        return {
            **{name: np.zeros(width) for name in ("mean", "low", "high")},
            **{name: np.full(width, 0.5) for name in ("std", "std_low", "std_high")},
            "count": np.zeros(1),
            "count_half_width": np.zeros(1),
        }

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return count, sums and squares."""
        width, one, fine = len(self.used), 1 << self.frac_bits, 1 << _FINE
        share = (1 - _COUNT_SHARE) / 2
        return (
            Block("count", (1,), l1=fine, l2_squared=fine**2, weight=_COUNT_SHARE),
            Block("sums", (width,), l1=width * one, l2_squared=width * one**2, weight=share),
            Block(
                "squares",
                (width,),
                l1=width * one // 2,
                l2_squared=width * (one // 2) ** 2,
                weight=share,
            ),
        )

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return count, sums, and sums of squares less a half."""
        x = records[:, self.used].astype(np.int64)
        half = 1 << (self.frac_bits - 1)
        squares = ((x * x) >> self.frac_bits) - half
        count = np.array([len(records) << _FINE], dtype=np.int64)
        return np.concatenate([count, x.sum(axis=0), squares.sum(axis=0)])

    def update(self, t: int, state: GridState, released: Mapping[str, Released]) -> State:
        """Return means and deviations with their intervals, in grid coordinates."""
        count, sums, squares = (released[name] for name in ("count", "sums", "squares"))
        one = float(1 << self.frac_bits)
        n, n_std = from_grid(count.values, _FINE), count.noise_std / (1 << _FINE)
        low, high = ratio_interval(
            (sums.values / one)[None],
            n,
            sum_std=sums.noise_std / one,
            count_std=n_std,
        )
        at_least = np.maximum(n, max(1.0, n_std))
        mean = np.clip(sums.values / one / at_least, -1, 1)
        square_low, square_high = ratio_interval(
            (squares.values / one)[None],
            n,
            sum_std=squares.noise_std / one,
            count_std=n_std,
            box=(-0.5, 0.5),
        )
        square = np.clip(squares.values / one / at_least, -0.5, 0.5) + 0.5
        return {
            "count": n,
            "count_half_width": np.array([size_interval(n_std)]),
            "mean": mean,
            "low": low[0],
            "high": high[0],
            "std": self._deviation(square, mean**2),
            "std_low": self._deviation(square_low[0] + 0.5, np.maximum(low[0] ** 2, high[0] ** 2)),
            "std_high": self._deviation(
                square_high[0] + 0.5,
                np.where((low[0] < 0) & (high[0] > 0), 0, np.minimum(low[0] ** 2, high[0] ** 2)),
            ),
        }

    def _deviation(self, square: Floats, mean_squared: Floats) -> Floats:
        floor = max(_FLOOR, 2.0**-self.frac_bits)  # a state on the grid must not round it away
        deviation: Floats = np.sqrt(np.maximum(square - mean_squared, floor**2))
        return deviation

    @cached_property
    def _grid(self) -> Grid:
        """The box of the used columns."""
        low, high = (tuple(ends[j] for j in self.used) for ends in (self.low, self.high))
        return Grid(low, high, self.frac_bits)

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return the expected half-width of the count."""
        return {"count_half_width": np.array([size_interval(noise_std / (1 << _FINE))])}

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        """Return ``mean``, ``std`` and the ends of their intervals in data units, and the count.

        Intervals are 95 % of the noise for a mean, and at least so much for a deviation: its ends
        join those of the mean and of the squares.
        """
        found = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        half = self._grid.half_range
        return {
            **{name: self._grid.decode(found[name]) for name in ("mean", "low", "high")},
            **{name: found[name] * half for name in ("std", "std_low", "std_high")},
            **{name: found[name] for name in ("count", "count_half_width")},
        }

    def transform(self, results: Mapping[str, Floats], records: Records) -> Records:
        """Return records whose used columns are deviations from the mean over `reach`."""
        changed = records.copy()
        values = self._grid.decode(records[:, self.used] / self._grid.one)
        scaled = (values - results["mean"]) / (results["std"] * self.reach)
        changed[:, self.used] = np.rint(np.clip(scaled, -1, 1) * self._grid.one)
        return changed

    def exhibits(
        self, results: Mapping[str, Floats], columns: tuple[str, ...]
    ) -> tuple[Exhibit, ...]:
        """Return a table of means and deviations."""
        ends = (results[name] for name in ("mean", "low", "high", "std", "std_low", "std_high"))
        rows = tuple(
            (columns[j], Between(m, a, b), Between(s, c, d))
            for j, m, a, b, s, c, d in zip(self.used, *map(_floats, ends), strict=True)
        )
        note = "[ , ] is 95 % of the noise."
        return (Table("Means and deviations", ("column", "mean", "deviation"), rows, note),)


def _floats(values: Floats) -> list[float]:
    return [float(value) for value in values]
