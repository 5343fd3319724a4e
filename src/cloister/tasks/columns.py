"""Look-up of columns and categories, and the public design matrix of regression."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
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

SITE = "site"
"""The name, in a formula or as strata, of the silo that holds a record."""
_FEW = 20  # a message lists so many columns in full


def columns_of(*parts: Sequence[Any]) -> tuple[PublicColumn, ...]:
    """Return columns from a sequence for each of their fields."""
    return tuple(PublicColumn(*column) for column in zip(*parts, strict=True))


def grid_of(columns: Sequence[PublicColumn], frac_bits: int) -> Grid:
    """Return the grid of the columns' box."""
    return Grid(tuple(c.low for c in columns), tuple(c.high for c in columns), frac_bits)


def position(columns: Sequence[PublicColumn], name: str | None, role: str = "target") -> int:
    """Return the index of a column, or raise PlanError; `role` is the name of the option."""
    names = [column.name for column in columns]
    if name == SITE and name not in names:
        raise PlanError(
            f"{role} cannot name {SITE!r}, the silo of a record; declare a column of categories in "
            "the schema, and give each file this column with the name of its silo in every row."
        )
    if name not in names:
        few = names  # a schema may have thousands of columns, so only similar names are listed
        if len(names) > _FEW:
            few = [*(get_close_matches(str(name), names, cutoff=0.5) or names[:3]), "..."]
        raise PlanError(
            f"{role} must be a column of the schema that the job uses, one of {len(names)} "
            f"({', '.join(few)}), got {name!r}; add it to the columns of the job."
        )
    return names.index(name)


def of_dates(
    names: Sequence[str], columns: Sequence[str], dates: Collection[int]
) -> tuple[str, ...]:
    """Return names of coefficients; that of a column of dates is a change per year."""
    of = {columns[j] for j in dates}
    return tuple(name + " (per year)" * (name in of) for name in names)


def step_text(step: float, dated: bool) -> str:
    """Return a change of a column as text; a column of dates has years."""
    # Dates are years with a fraction.
    if not dated:
        return f"{step:g}"
    return "year" if step == 1 else f"{step:g} years"


def check_site(columns: Collection[str], silos: Sequence[str]) -> None:
    """Raise PlanError if :data:`SITE` is the name of a column, or there is a single silo."""
    if SITE in columns:
        raise PlanError(
            f"{SITE!r} is the silo of a record, so the schema must not have a column of this name; "
            "rename the column."
        )
    if len(silos) < 2:
        raise PlanError(f"{SITE!r} needs two or more silos, got {len(silos)}; remove it.")


def categories_of(columns: Sequence[PublicColumn], name: str) -> tuple[str, ...]:
    """Return the categories of a column, for example the classes of a target.

    Raises
    ------
    PlanError
        If the column has numbers.
    """
    column = columns[position(columns, name)]
    if not column.levels:
        raise PlanError(
            f"target {name!r} must be a column of categories, got one of numbers; declare its "
            "classes in the schema."
        )
    return column.categories


def codes(values: NDArray[Any], levels: int, frac_bits: int) -> Integers:
    """Return the number of the category of each grid value; int64 in ``[0, levels - 1]``.

    It is the nearest category, so a forged value still counts as one.
    """
    return _cell(values, levels, False, frac_bits).astype(np.int64, copy=False)


def bins_of(values: Records, bins: int, frac_bits: int) -> Integers:
    """Return the equal-width bin of each grid value; int64 in ``[0, bins - 1]``."""
    return _cell(values, bins, True, frac_bits).astype(np.int64, copy=False)


def _cell(values: NDArray[Any], cells: int, binned: bool, frac_bits: int) -> NDArray[Any]:
    """Return the bin or, unless `binned`, the category of each grid value."""
    if not binned:  # (v + one) / (2 one) * (cells - 1), rounded to nearest in integers
        return scaled(values, cells - 1, 1 << frac_bits, frac_bits)
    numbers = scaled(values, cells, 0, frac_bits)
    np.minimum(numbers, cells - 1, out=numbers)  # the upper bound itself is in the last bin
    return numbers


def exact_sums(found: Integers, values: Integers | Floats, size: int) -> Integers:
    """Return sums of whole numbers by cell; exact, because all sums are far below 2**53."""
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
        Number of categories or bins of each column.
    binned : sequence of bool
        For each column: True for bins of equal width as in :func:`bins_of`, False for categories
        as in :func:`codes`.

    Returns
    -------
    list of ndarray, int64
        The counts of each table, flat.
    """
    used = {j for table in tables for j in table}
    counts = [np.zeros(prod(cells[j] for j in table), dtype=np.int64) for table in tables]
    # Each chunk passes over every table, so a chunk has at least as many rows as the largest one.
    for chunk in in_cache(records, max(_IN_CACHE, *map(len, counts))):
        numbers = {j: _cell(chunk[:, j], cells[j], binned[j], frac_bits) for j in used}
        for count, (first, *others) in zip(counts, tables, strict=True):
            place = numbers[first]
            for j in others:
                place = place * cells[j] + numbers[j]
            count += np.bincount(place, minlength=len(count))
    return counts


def scaled(values: NDArray[Any], parts: int, more: int, frac_bits: int) -> NDArray[Any]:
    """Return ``((v + one) * parts + more) >> (frac_bits + 1)`` of values clipped to the box."""
    # After the clip nearly all cases fit 32 bits, which a processor handles twice as fast as 64.
    one = 1 << frac_bits
    numbers: NDArray[Any] = np.clip(values, -one, one)
    numbers = numbers.astype(np.int32 if 2 * one * parts + more < 1 << 31 else np.int64, copy=False)
    numbers *= parts
    numbers += one * parts + more
    numbers >>= frac_bits + 1
    return numbers


_IN_CACHE = 1 << 14


def in_cache(records: Records, rows: int = _IN_CACHE) -> Iterator[Records]:
    """Yield chunks of the records that are small enough for a processor's cache."""
    for first in range(0, len(records), rows):
        yield records[first : first + rows]


_BATCH = 1024


def in_batches(answer: Callable[[Records], NDArray[Any]], records: Records) -> NDArray[Any]:
    """Return a function's values for all records, computed on tables of one length.

    Parameters
    ----------
    answer : function
        Maps ``(1024, n_features)`` records to an array with a row for each.
    records : ndarray of shape (n_samples, n_features), int32

    Returns
    -------
    ndarray with n_samples rows

    Notes
    -----
    Floating-point products of matrices may round a row differently in tables of different lengths.
    The contribution of one record would then depend on the number of others, and its removal could
    move another record to the next bin. Tables of one length, padded with zeros, take the same
    path through the arithmetic.

    This guards against the length only. BLAS libraries round a row alike at every position of a
    table, but do not promise it. So use it for cloister's own models, whose arithmetic is known;
    apply other models to one record per call.
    """
    rows = -(-max(len(records), 1) // _BATCH) * _BATCH
    padded = np.zeros((rows, records.shape[1]), dtype=records.dtype)
    padded[: len(records)] = records  # zeros are valid grid records, and their values are dropped
    blocks = [answer(padded[first : first + _BATCH]) for first in range(0, rows, _BATCH)]
    return np.concatenate(blocks)[: len(records)]


@dataclass(frozen=True)
class Encoding:
    """The design matrix of records: numbers unchanged, categories one-hot, and an intercept.

    Parameters
    ----------
    levels : tuple of int
        For each column of the schema: 0 for numbers, else the number of categories.
    skip : tuple of int
        Columns without a place in the design, for example the target.

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
        """The columns of the schema that are in the design."""
        return tuple(j for j in range(len(self.levels)) if j not in self.skip)

    @cached_property
    def width(self) -> int:
        """Number of columns of the design, the intercept included."""
        return 1 + sum(self.levels[j] or 1 for j in self.used)

    def rows(self, records: Records) -> NDArray[np.int32]:
        """Return the design of grid records; shape (n_samples, width), int32."""
        one = 1 << self.frac_bits
        design = np.zeros((len(records), self.width), dtype=np.int32)
        all_rows, place = np.arange(len(records)), 0
        for j in self.used:
            if levels := self.levels[j]:
                design[all_rows, place + codes(records[:, j], levels, self.frac_bits)] = one
                place += levels
            else:
                design[:, place] = records[:, j]
                place += 1
        design[:, -1] = one  # the intercept, in the units of the other entries
        return design

    def names(self, columns: Sequence[PublicColumn]) -> tuple[str, ...]:
        """Return the name of each column of the design, the intercept last."""
        used = [columns[j] for j in self.used]
        names = ([f"{c.name}={label}" for label in c.categories] or [c.name] for c in used)
        return (*chain.from_iterable(names), "intercept")
