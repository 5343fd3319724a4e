"""Compiled loops over records, if the package was compiled for this machine.

NumPy computes the same integers, but slower. The function that defines the result of a loop, and
calls it, is in `cloister.tasks` or `cloister.data.encoding`. ``docs/proofs/kernel.md`` proves that
the integers are the same.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Integers, Records
from cloister.core.errors import PlanError

try:  # not "from cloister": that would search the lazy names of the package first
    import cloister.core._native as _native
except ImportError:  # not compiled
    _native = None  # type: ignore[assignment]  # a module, wherever it is used

CHOICE = "CLOISTER_KERNEL"
NUMPY = "numpy"
ORDER = "CLOISTER_ORDERED"
WITHOUT = (
    "in NumPy, several times slower than compiled; install a C++ compiler, then cloister again, "
    "or a wheel for this system"
)
_LARGEST = 1 << 24  # largest coordinate that float32 holds exactly
_MOST_COLUMNS = 1 << 16
_EXACT = 2**53  # a float64 holds each smaller integer


@cache
def instruction_set() -> str:
    """Return the instruction set of the loops over records: the best here, or ``numpy``.

    The environment variable ``CLOISTER_KERNEL`` may name another one.

    Raises
    ------
    PlanError
        If it names one that this machine, or this installation, does not have.
    """
    available = instruction_sets()
    choice = os.environ.get(CHOICE) or available[0]
    # Another set in its place would make a comparison of speeds wrong without notice.
    if choice not in available:
        raise PlanError(
            f"{CHOICE} must be one of {', '.join(available)} here, got {choice!r}; unset it."
        )
    return choice


def instruction_sets() -> list[str]:
    """Return the instruction sets for loops over records, the best first, ``numpy`` last."""
    return [*(_native.instruction_sets() if _native else ()), NUMPY]


@cache
def say_slow() -> None:
    """Warn once per process if loops over records are not compiled, unless the user chose it."""
    if instruction_set() == NUMPY and CHOICE not in os.environ:
        warnings.warn(f"loops over records run {WITHOUT}.", stacklevel=4)


def has_distances(records: Records, centres: Integers, one: int) -> bool:
    """Return True if the compiled loops compute these distances exactly in floats.

    No coordinate of a record is larger than `one`.
    """
    if instruction_set() == NUMPY or not (centres.size and 1 <= one <= _LARGEST):
        return False
    largest = max(int(centres.max()), -int(centres.min()))
    d = centres.shape[1]
    # The largest squared distance: below 2**53 each partial sum of squares is an exact float.
    return largest <= _LARGEST and d <= _MOST_COLUMNS and (one + largest) ** 2 * d < _EXACT


def near_sums(
    records: Records, centres: Integers, *, radius_squared: int, relative: bool, one: int
) -> Integers:
    """Return sums and, last, numbers of the records near each centre; centres are not subtracted.

    See :func:`cloister.tasks.clustering.lloyd_kernel.sum_near_centres`.
    """
    # 64 bits; no squared distance that the loops accept is as large.
    radius_squared, isa = min(radius_squared, 1 << 62), instruction_set()
    tree: _native.Ordered | None = getattr(records, "tree", None)
    if tree is not None:
        centres = np.ascontiguousarray(centres, dtype=np.int64)
        return tree.sum_near(centres, radius_squared=radius_squared, relative=relative, isa=isa)
    return _native.sum_near(
        *_rows(records, centres),
        radius_squared=radius_squared,
        relative=relative,
        one=one,
        isa=isa,
    )


class Ordered(np.ndarray[Any, np.dtype[np.int32]]):
    """Records in an order that keeps neighbours together; otherwise an ordinary array.

    Arrays made from it, such as slices, have no tree of boxes and sums.
    """

    tree: Any = None


def can_order() -> bool:
    """Return True if stored records can be ordered here: compiled, and not switched off.

    The environment variable ``CLOISTER_ORDERED`` may be ``off``; other values raise a PlanError.
    """
    switch = os.environ.get(ORDER) or "on"
    if switch not in ("on", "off"):
        raise PlanError(f"{ORDER} must be on or off, got {switch!r}; unset it.")
    return switch == "on" and instruction_set() != NUMPY


def ordered(tables: Sequence[Records]) -> Records:
    """Return the rows of tables, read-only, in an order that makes sums near centres fast.

    The order is a function of the rows, and sums of integers do not depend on it.
    """
    tree = _native.ordered([np.ascontiguousarray(table, dtype=np.int32) for table in tables])
    rows = tree.rows.view(Ordered)
    rows.tree = tree
    return rows


def clipped_sums(
    records: Records, centres: Integers, radii: Integers, *, unit: int, one: int
) -> Integers:
    """Return sums of clipped differences and, last, numbers of records of each centre.

    See :func:`cloister.tasks.clipped.sum_clipped_near`.
    """
    radii = np.ascontiguousarray(radii, dtype=np.int64)
    return _native.sum_clipped(
        *_rows(records, centres), radii, unit=unit, one=one, isa=instruction_set()
    )


def clipped_moments(
    records: Records,
    centres: Integers,
    radii: Integers,
    reach: Integers,
    *,
    unit: int,
    fine: int,
    one: int,
) -> tuple[Integers, Integers]:
    """Return :func:`clipped_sums`, and products of differences that are clipped at `reach`.

    See :func:`cloister.tasks.clipped.sum_moments_near`.
    """
    radii = np.ascontiguousarray(radii, dtype=np.int64)
    reach = np.ascontiguousarray(reach, dtype=np.int64)
    isa = instruction_set()
    return _native.sum_moments(
        *_rows(records, centres), radii, reach, unit=unit, fine=fine, one=one, isa=isa
    )


def nearest_of(records: Records, centres: Integers, *, one: int) -> Integers:
    """Return the nearest centre of each record; the first one if several are equally near."""
    return _native.nearest(*_rows(records, centres), one=one, isa=instruction_set())


def two_nearest_of(records: Records, centres: Integers, *, one: int) -> Integers:
    """Return the two nearest centres of each record and its squared distances; shape (4, n).

    See :func:`cloister.tasks.clustering.lloyd_kernel.two_nearest`.
    """
    return _native.two_nearest(*_rows(records, centres), one=one, isa=instruction_set())


def _rows(records: Records, centres: Integers) -> tuple[Records, Integers]:
    # The loops read memory directly, so a slice or another type must be copied first.
    return (
        np.ascontiguousarray(records, dtype=np.int32),
        np.ascontiguousarray(centres, dtype=np.int64),
    )


def has_columns(columns: Sequence[NDArray[Any]]) -> bool:
    """Return True if the compiled loop over cells supports the types of all columns."""
    return instruction_set() != NUMPY and all(
        column.dtype in (np.float32, np.float64) and column.dtype.isnative for column in columns
    )


def encode_into(
    steps: Records,
    flags: NDArray[np.uint8],
    columns: Sequence[NDArray[Any]],
    *,
    one: int,
    **rules: NDArray[Any],
) -> None:
    """Write grid steps and flags of all cells; see :mod:`cloister.data.encoding`.

    Rules are `low`, `high`, `centre`, `factor`, `known`, `integer` and `boolean` of each column.
    Flags must be 0 before.
    """
    _native.encode(list(columns), steps, flags, one=one, isa=instruction_set(), **rules)
