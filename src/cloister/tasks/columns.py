"""Columns by name, categories by number, and the public design matrix of regression."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Floats, Integers, Records
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import PublicColumn

_FEW = 20  # columns, which fit in a sentence


def columns_of(*parts: Sequence[Any]) -> tuple[PublicColumn, ...]:
    """Return columns from a sequence for each of their fields."""
    return tuple(PublicColumn(*column) for column in zip(*parts, strict=True))


def grid_of(columns: Sequence[PublicColumn], frac_bits: int) -> Grid:
    """Return the grid of the columns' box."""
    return Grid(tuple(c.low for c in columns), tuple(c.high for c in columns), frac_bits)


def position(columns: Sequence[PublicColumn], name: str | None, role: str = "target") -> int:
    """Return where a column is; refuse one that the job does not use. `role` names the option."""
    names = [column.name for column in columns]
    if name not in names:
        few = names
        if len(names) > _FEW:
            few = [*(get_close_matches(str(name), names, cutoff=0.5) or names[:3]), "..."]
        raise PlanError(
            f"{role} must be a column of the schema that the job uses, one of {len(names)} "
            f"({', '.join(few)}), got {name!r}."
        )
    return names.index(name)


def categories_of(columns: Sequence[PublicColumn], name: str) -> tuple[str, ...]:
    """Return the categories of a column, such as the classes of a target; refuse one of numbers."""
    column = columns[position(columns, name)]
    if not column.levels:
        raise PlanError(
            f"target {name!r} must be a column of categories, got one of numbers; declare its "
            "classes in the schema."
        )
    return column.categories


def codes(values: NDArray[Any], levels: int, frac_bits: int) -> Integers:
    """Return the number in ``[0, levels - 1]`` of the category that each grid value stands for.

    It is the nearest one, so a forged value is still one category.
    """
    return _cell(values, levels, False, frac_bits).astype(np.int64, copy=False)


def bins_of(values: Records, bins: int, frac_bits: int) -> Integers:
    """Return the equal-width bin of each grid value; int64 in ``[0, bins - 1]``."""
    return _cell(values, bins, True, frac_bits).astype(np.int64, copy=False)


def _cell(values: NDArray[Any], cells: int, binned: bool, frac_bits: int) -> NDArray[Any]:
    """Return the bin or, unless `binned`, the category of each grid value."""
    if not binned:  # (v + one) / (2 one) * (cells - 1), rounded to nearest in integers
        return scaled(values, cells - 1, 1 << frac_bits, frac_bits)
    found = scaled(values, cells, 0, frac_bits)
    np.minimum(found, cells - 1, out=found)
    return found


def exact_sums(found: Integers, values: Integers | Floats, size: int) -> Integers:
    """Return sums of whole numbers by place: floats hold them, they are far below 2**53."""
    return np.bincount(found, weights=values, minlength=size).astype(np.int64)


def count_cells(
    records: Records,
    tables: Sequence[Sequence[int]],
    cells: Sequence[int],
    binned: Sequence[bool],
    frac_bits: int,
) -> list[Integers]:
    """Count the records in each cell of public tables.

    Parameters
    ----------
    records : ndarray of shape (n_samples, n_features), int32
    tables : sequence of sequences of int
        The columns of each table; the last one varies fastest.
    cells : sequence of int
        Of each column: how many categories or bins it has.
    binned : sequence of bool
        Of each column: whether it has bins of equal width, as :func:`bins_of` finds them, or
        categories, as :func:`codes` does.

    Returns
    -------
    list of ndarray, int64
        Of each table, flat.
    """
    used = {j for table in tables for j in table}
    counts = [np.zeros(prod(cells[j] for j in table), dtype=np.int64) for table in tables]
    # a table that does not fit the cache is not gone through for a few records
    for part in in_cache(records, max(_IN_CACHE, *map(len, counts))):
        found = {j: _cell(part[:, j], cells[j], binned[j], frac_bits) for j in used}
        for count, (first, *others) in zip(counts, tables, strict=True):
            place = found[first]
            for j in others:
                place = place * cells[j] + found[j]
            count += np.bincount(place, minlength=len(count))
    return counts


def scaled(values: NDArray[Any], parts: int, more: int, frac_bits: int) -> NDArray[Any]:
    """Return ``((v + one) * parts + more) >> (frac_bits + 1)`` of values cut to the box.

    Once cut, they nearly always fit 32 bits, of which a processor takes twice as many at a time.
    """
    one = 1 << frac_bits
    found: NDArray[Any] = np.clip(values, -one, one)
    found = found.astype(np.int32 if 2 * one * parts + more < 1 << 31 else np.int64, copy=False)
    found *= parts
    found += one * parts + more
    found >>= frac_bits + 1
    return found


_IN_CACHE = 1 << 14


def in_cache(records: Records, rows: int = _IN_CACHE) -> Iterator[Records]:
    """Yield parts of the records that are small enough to stay in a processor's cache."""
    for first in range(0, len(records), rows):
        yield records[first : first + rows]


_BATCH = 1024


def in_batches(answer: Callable[[Records], NDArray[Any]], records: Records) -> NDArray[Any]:
    """Return a function's answer to each record, asked about tables of one length.

    Parameters
    ----------
    answer : function
        From ``(1024, n_features)`` records to an array with a row for each.
    records : ndarray of shape (n_samples, n_features), int32

    Returns
    -------
    ndarray with n_samples rows

    Notes
    -----
    Floating-point products of matrices may round a row differently in tables of different lengths.
    What one record adds to a sum would then depend on how many others there are, and its removal
    could move another one to the next bin. Tables of one length, filled up with zeros, take the
    same path through the arithmetic.

    This guards against length only: that a product rounds a row alike in every place of its table
    is what BLAS libraries do, not what they promise. So it is for models of ours, whose arithmetic
    we know; others are asked about one record a call.
    """
    rows = -(-max(len(records), 1) // _BATCH) * _BATCH
    padded = np.zeros((rows, records.shape[1]), dtype=records.dtype)
    padded[: len(records)] = records
    parts = [answer(padded[first : first + _BATCH]) for first in range(0, rows, _BATCH)]
    return np.concatenate(parts)[: len(records)]


@dataclass(frozen=True)
class Encoding:
    """The design matrix of records: numbers as they are, categories one-hot, an intercept.

    Parameters
    ----------
    levels : tuple of int
        Of each column of the schema: 0 for numbers, else the number of categories.
    skip : tuple of int
        Columns that are left out, such as the target.

    Notes
    -----
    One-hot entries and the intercept are ``2**frac_bits`` or 0, numbers are grid steps, so every
    entry is in ``[-one, one]``.
    """

    levels: tuple[int, ...]
    frac_bits: int
    skip: tuple[int, ...] = ()

    @cached_property
    def used(self) -> tuple[int, ...]:
        """The columns that are not left out."""
        return tuple(j for j in range(len(self.levels)) if j not in self.skip)

    @cached_property
    def width(self) -> int:
        """Number of columns of the design, the intercept included."""
        return 1 + sum(self.levels[j] or 1 for j in self.used)

    def rows(self, records: Records) -> NDArray[np.int32]:
        """Return the design of grid records; shape (n_samples, width), int32."""
        one = 1 << self.frac_bits
        design = np.zeros((len(records), self.width), dtype=np.int32)
        everybody, place = np.arange(len(records)), 0
        for j in self.used:
            if levels := self.levels[j]:
                design[everybody, place + codes(records[:, j], levels, self.frac_bits)] = one
                place += levels
            else:
                design[:, place] = records[:, j]
                place += 1
        design[:, -1] = one
        return design

    def names(self, columns: Sequence[PublicColumn]) -> tuple[str, ...]:
        """Return the name of each column of the design, the intercept last."""
        used = [columns[j] for j in self.used]
        names = ([f"{c.name}={label}" for label in c.categories] or [c.name] for c in used)
        return (*chain.from_iterable(names), "intercept")
