"""The common parts of trainings on shares: owners' tables, padded to a public number of rows.

A padded row is all zero, including its validity bit, which is shared as the last column. The
servers multiply rows by validity once more, so that no sum depends on the content of padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import frexp, sqrt
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.core.declared import Length, Range, declared
from cloister.core.errors import DataError, PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.hazmat.ring import Integers, Words
from cloister.shares.mpc.compare import negative, select
from cloister.shares.mpc.material import VALUE_BITS, Shape
from cloister.shares.mpc.products import multiply, truncate
from cloister.shares.mpc.program import Names, Program
from cloister.shares.mpc.server import Server
from cloister.shares.mpc.shares import FRAC_BITS

ONE = 1 << FRAC_BITS
"""1.0 on shares, in lattice steps."""

Steps = Annotated[int, Range(1, 10_000)]
Step = Annotated[float, Range(above=0, most=100), "of the mean gradient"]


def require(holds: bool, name: str, rule: str, value: object) -> None:
    """Raise PlanError for public parameters that do not fit together."""
    if not holds:
        raise PlanError(f"{name} must be {rule}, got {value!r}.")


@declared
class Training(Program):
    """A training on the rows of several owners; the dealer with either server sees every row."""

    owners: Annotated[Names, Length(1), "one table each"]
    rows: Annotated[int, Range(1, 1 << 24), "public; each owner pads its table to so many"]
    low: Annotated[tuple[float, ...], "of the public box, mapped to [-1, 1]; data units"]
    high: Annotated[tuple[float, ...], "likewise"]

    @cached_property
    def _grid(self) -> Grid:
        return Grid(self.low, self.high, FRAC_BITS)

    @property
    def _all_rows(self) -> int:
        return self.rows * len(self.owners)

    @property
    def _n_targets(self) -> int:
        """Number of columns between the features and validity."""
        return 0

    def tables(self) -> Mapping[str, Shape]:
        """Return the shape of features, targets and validity, the same for each owner."""
        # Padded to `rows`, so that no shape reveals an owner's number of records.
        columns = self._grid.n_features + self._n_targets + 1
        return dict.fromkeys(self.owners, (self.rows, columns))

    def _stacked(self, tables: Mapping[str, Words]) -> tuple[Words, Words, Words]:
        """Return shares of all owners' features, targets, and validity as one column."""
        table = np.concatenate([tables[owner] for owner in self.owners])
        d = self._grid.n_features
        return table[:, :d], table[:, d:-1], table[:, -1:]


@declared
class Descent(Training):
    """Gradient descent in full batches on rows of length at most 1, each with a label."""

    steps: Steps
    step: Step
    nominal_n: Annotated[
        int, Range(0, 1 << 30), "public number of records of the mean; all padded rows if 0"
    ] = 0

    @property
    def _radius(self) -> float:
        """The divisor of rows in the box; this default clips no row."""
        return sqrt(self._grid.n_features)

    @property
    def _rate(self) -> float:
        """Factor from a summed gradient of 32 fraction bits to a step, lattice steps of both."""
        return self.step / (self.nominal_n or self._all_rows) / ONE

    def table(self, X: ArrayLike, y: ArrayLike) -> Words:
        """Return an owner's table, ready to be split.

        Parameters
        ----------
        X : array_like of shape (n, d), data units, without NaN
        y : array_like of shape (n,), integers from 0

        Raises
        ------
        DataError
            If shapes differ, a value is missing, a label is no class, or there are too many rows.
        """
        features, n = in_unit_ball(self._grid, X, self._radius), self._n_targets
        targets = indicator(y, max(2, n))[:, -n:]  # one column tells two classes apart
        if len(features) != len(targets):
            raise DataError("records and labels must be as many, one label a row; they are not.")
        return padded(np.hstack([features, targets]), self.rows)

    def words(self, name: str, values: ArrayLike) -> Words:
        """Return an owner's table; the last column is the label, see :meth:`table`."""
        columns = np.atleast_2d(np.asarray(values, dtype=np.float64))
        return self.table(columns[..., :-1], columns[..., -1])

    def _design(self, server: Server, tables: Mapping[str, Words]) -> tuple[Words, Words]:
        """Return rows with a unit as their last column, and targets.

        A padded row is zero, including its unit, so it adds nothing to a gradient for any target.
        """
        features, targets, valid = self._stacked(tables)
        unit = valid * np.uint64(ONE)
        return np.hstack([multiply(server, features, valid), unit]), targets


def padded(columns: Integers, rows: int) -> Words:
    """Return an owner's table: its columns, a 1 for each row, and zeros up to `rows` rows.

    Raises
    ------
    DataError
        If there are more rows than the public number; the message omits their number.
    """
    if len(columns) > rows:
        raise DataError(
            f"a table must have at most the public {rows} rows; agree on more, or keep fewer."
        )
    table = np.zeros((rows, columns.shape[1] + 1), dtype=np.int64)
    table[: len(columns), :-1] = columns
    table[: len(columns), -1] = 1
    return table.view(np.uint64)


def in_unit_ball(grid: Grid, X: ArrayLike, radius: float) -> Integers:
    """Return rows as integers of norm at most 2^16; shape (n, d).

    Values are clipped to the public box, which is mapped to [-1, 1] and rounded. Rows are divided
    by `radius`, or by their own length if that is larger, and rounded toward zero, so no norm
    grows. A row that still exceeds the bound is zeroed, so the bound holds for integers exactly.
    """
    real = grid.encode(X).astype(np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", real, real))
    rows: Integers = (real * (ONE / np.maximum(lengths, radius * ONE))[:, None]).astype(np.int64)
    rows[np.einsum("ij,ij->i", rows, rows) > ONE**2] = 0
    return rows


def indicator(labels: ArrayLike, n_labels: int) -> NDArray[np.int64]:
    """Return rows of 0 and 2^16 that name labels 0 to `n_labels` - 1; shape (n, n_labels).

    Raises
    ------
    DataError
        If a label is invalid; the message does not name it.
    """
    found = np.asarray(labels)
    known = found[:, None] == np.arange(n_labels) if found.ndim == 1 else np.zeros((1, 1), bool)
    if not known.any(axis=1).all():
        raise DataError(f"labels must be one column of integers in [0, {n_labels - 1}].")
    return known.astype(np.int64) * ONE


def common(server: Server, tables: Sequence[Words]) -> tuple[Words, Words]:
    """Return rows of all owners (semi-honest; the dealer with either server sees all).

    The second array has their validity, as one column. Owners' cells are added. A row is valid if
    it is at every owner, so that each of them can leave it out. For *every* word of the ring in the
    other tables, values are within one and validities are -1, 0 or 1.
    """
    valid = tables[0][:, -1:]
    for table in tables[1:]:
        valid = multiply(server, valid, table[:, -1:])
    # The sum of two owners' cells may leave the box, and a product of bits may be any word.
    cells = np.stack([table[:, :-1] for table in tables]).sum(axis=0, dtype=np.uint64)
    return clamp(server, cells, ONE), clamp(server, valid, 1)


# Steps on shares that hold for every word ---------------------------------------------------------


def rescaling(factor: float, largest: float) -> tuple[int, int]:
    """Return the integer and the bits of :func:`rescale`; called when a program is planned, too.

    Raises
    ------
    PlanError
        If the head-room is too small.
    """
    bits = min(VALUE_BITS - 1, VALUE_BITS - 1 - frexp(largest * factor)[1])
    # At least 6 bits of precision: a coarser factor would change the step by more than 1 %.
    mantissa = round(factor * 2.0**bits) if bits >= 1 else 0
    require(mantissa >= 64, "a step", "larger for so many rows, or noise weaker", factor)
    return mantissa, bits


def rescale(server: Server, x: Words, factor: float, largest: float) -> Words:
    """Return shares of x * factor (semi-honest; the dealer with either server sees all).

    The error is below one lattice step for |x| <= `largest` (public). The factor is rounded to as
    many bits as fit below 2^62. One round.
    """
    mantissa, bits = rescaling(factor, largest)
    return truncate(server, x * np.uint64(mantissa), bits)


def clamp(server: Server, x: Words, bound: int) -> Words:
    """Return shares of x within +-bound (semi-honest; the dealer with either server sees all).

    Integers. The result is within the bound for *every* word of the ring. So later steps have a
    worst case even after strong noise or an overflow. Ten rounds.
    """
    edge = server.constant(np.full(x.shape, float(bound)), 0)
    # Both comparisons in one batch, which has the rounds of one.
    low, high = negative(server, np.stack([x + edge, edge - x]))
    return select(server, high, select(server, low, x, -edge), edge)
