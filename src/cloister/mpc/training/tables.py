"""Tables of owners: padded to a public number of rows, with a shared validity bit a row.

A row that is not there is all zero. Its validity multiplies it out once more on shares, so that
no sum depends on what lies in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import frexp

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.errors import DataError, PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.hazmat.ring import Integers, Words
from cloister.mpc.compare import negative, select
from cloister.mpc.material import VALUE_BITS
from cloister.mpc.products import truncate
from cloister.mpc.server import Server
from cloister.mpc.shares import FRAC_BITS

ONE = 1 << FRAC_BITS
"""1.0 on shares, in lattice steps."""


def require(holds: bool, name: str, rule: str, value: object) -> None:
    """Refuse a public parameter.

    Raises
    ------
    PlanError
    """
    if not holds:
        raise PlanError(f"{name} must be {rule}, got {value!r}.")


def whole(name: str, value: object, least: int, most: int) -> None:
    """Refuse a public parameter that is no integer in a range.

    Raises
    ------
    PlanError
    """
    holds = type(value) is int and least <= value <= most
    require(holds, name, f"an integer in [{least}, {most}]", value)


def check_owners(owners: Sequence[str], rows: int) -> None:
    """Refuse owners without distinct names, or without room for rows.

    Raises
    ------
    PlanError
    """
    require(len(owners) > 0 and len(set(owners)) == len(owners), "owners", "distinct", owners)
    whole("rows", rows, 1, 1 << 24)


def padded(columns: Integers, rows: int) -> Words:
    """Return an owner's table: its columns, a 1 for each row, and zeros up to `rows` rows.

    Parameters
    ----------
    columns : ndarray of shape (n, m), int64, lattice steps
    rows : int
        Public.

    Returns
    -------
    ndarray of shape (rows, m + 1), uint64

    Raises
    ------
    DataError
        If there are more rows than the public number; how many is not said.
    """
    if len(columns) > rows:
        raise DataError(
            f"a table must have at most the public {rows} rows; agree on more, or keep fewer."
        )
    table = np.zeros((rows, columns.shape[1] + 1), dtype=np.int64)
    table[: len(columns), :-1] = columns
    table[: len(columns), -1] = 1
    return table.view(np.uint64)


def stacked(owners: Sequence[str], tables: Mapping[str, Words]) -> tuple[Words, Words]:
    """Return this server's shares of all owners' columns, and of validity as one column."""
    table = np.concatenate([tables[owner] for owner in owners])
    return table[:, :-1], table[:, -1:]


def in_unit_ball(grid: Grid, X: ArrayLike, radius: float) -> Integers:
    """Return rows as integers of norm at most 2^16; shape (n, d).

    Values are clipped to the public box, which is mapped to [-1, 1] and rounded; rows are divided
    by `radius`, or by their own length where that is larger, and cut toward zero: a norm never
    grows. A row that still breaks the bound is zeroed, so the bound is a fact about integers.
    """
    real = grid.encode(X).astype(np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", real, real))
    rows: Integers = (real * (ONE / np.maximum(lengths, radius * ONE))[:, None]).astype(np.int64)
    rows[np.einsum("ij,ij->i", rows, rows) > ONE**2] = 0
    return rows


def beside(features: Integers, targets: Integers) -> Integers:
    """Return features and targets of the same rows, side by side.

    Raises
    ------
    DataError
        If there are not as many of both.
    """
    if len(features) != len(targets):
        raise DataError("records and labels must be as many, one label a row; they are not.")
    return np.hstack([features, targets])


def indicator(labels: ArrayLike, n_labels: int) -> NDArray[np.int64]:
    """Return rows of 0 and 2^16 that name labels 0 to `n_labels` - 1; shape (n, n_labels).

    Raises
    ------
    DataError
        If one is none of them; it is not named.
    """
    found = np.asarray(labels)
    known = found[:, None] == np.arange(n_labels) if found.ndim == 1 else np.zeros((1, 1), bool)
    if not known.any(axis=1).all():
        raise DataError(f"labels must be one column of integers in [0, {n_labels - 1}].")
    return known.astype(np.int64) * ONE


# Steps on shares that hold for every word ---------------------------------------------------------


def rescaling(factor: float, largest: float) -> tuple[int, int]:
    """Return the integer and the bits of :func:`rescale`; ask when a program is planned.

    Raises
    ------
    PlanError
        If there is no room for them.
    """
    bits = min(VALUE_BITS - 1, VALUE_BITS - 1 - frexp(largest * factor)[1])
    mantissa = round(factor * 2.0**bits) if bits >= 1 else 0
    require(mantissa >= 64, "a step", "larger for so many rows, or noise weaker", factor)
    return mantissa, bits


def rescale(server: Server, x: Words, factor: float, largest: float) -> Words:
    """Return shares of x * factor (semi-honest; the dealer with either server sees all).

    In lattice steps, less than one off, for |x| <= `largest` (public). The factor is rounded to as
    many bits as there is room for below 2^62. One round.
    """
    mantissa, bits = rescaling(factor, largest)
    return truncate(server, x * np.uint64(mantissa), bits)


def clamp(server: Server, x: Words, bound: int) -> Words:
    """Return shares of x within +-bound (semi-honest; the dealer with either server sees all).

    Integers; for *every* word of the ring the result is within, so what follows has a worst case
    even where noise or an overflow came before. Ten rounds.
    """
    edge = server.constant(np.full(x.shape, float(bound)), 0)
    low, high = negative(server, np.stack([x + edge, edge - x]))
    return select(server, high, select(server, low, x, -edge), edge)
