"""Columns by name, categories by number, and the public design matrix of regression."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import Integers, Records
from cloister.errors import PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.task import PublicColumn

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
    # (v + one) / (2 one) * (levels - 1), rounded to nearest in integers
    found: Integers = scaled(values, levels - 1, 1 << frac_bits, frac_bits).astype(np.int64)
    return found


def scaled(values: NDArray[Any], parts: int, more: int, frac_bits: int) -> NDArray[Any]:
    """Return ``((v + one) * parts + more) >> (frac_bits + 1)`` of values cut to the box.

    Once cut, they nearly always fit 32 bits, of which a processor takes twice as many at a time.
    """
    one = 1 << frac_bits
    found: NDArray[Any] = np.minimum(values, one)
    np.maximum(found, -one, out=found)
    found = found.astype(np.int32 if 2 * one * parts + more < 1 << 31 else np.int64, copy=False)
    found *= parts
    found += one * parts + more
    found >>= frac_bits + 1
    return found


_IN_CACHE = 1 << 14


def in_cache(records: Records) -> Iterator[Records]:
    """Yield parts of the records that are small enough to stay in a processor's cache."""
    for first in range(0, len(records), _IN_CACHE):
        yield records[first : first + _IN_CACHE]


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
    frac_bits : int
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
