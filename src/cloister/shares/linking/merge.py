"""Join of owners' tables on shares: check their order, merge, compare neighbours, cut.

A table has a row of words for each of a public number of places: a tag, then columns, packed as
bits. Bit 0 of the first word after the tag is 1 for a person and 0 for a place that is free. All
words are shared by XOR. Tags have their two lowest bits free for the owner's number.

1. :func:`are_sorted`: each table is strictly increasing by tag. One bit is opened.
2. The servers write the owner's number into the tag. So tags of all owners are different, and no
   owner can use another's number.
3. :func:`merge`: a bitonic network [B68]_, as in private set intersection by sorting [HEK12]_.
4. Rows of one person are now neighbours. A comparison of each pair gives a shared bit.
5. :func:`inner` and :func:`everybody` keep rows by these bits. Nothing more is opened.

References
----------
.. [B68] Batcher, "Sorting networks and their applications", 1968.
.. [HEK12] Huang, Evans and Katz, "Private set intersection: are garbled circuits better than custom
   protocols?", 2012: the idea to sort, compare neighbours and shuffle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Flags
from cloister.core.errors import RemoteProtocolError
from cloister.hazmat.ring import Words
from cloister.shares.mpc.bits import (
    all_set,
    both,
    equal,
    in_parts,
    less,
    less_material,
    negated,
    pick,
)
from cloister.shares.mpc.material import Pick
from cloister.shares.mpc.server import Server

How = Literal["inner", "left", "union", "outer"]
"""The persons of a join: of all owners; of the first; of either, with columns of either or both."""

OWNER_BITS = np.uint64(3)
"""Bits of a tag that the servers replace by the owner's number."""
_ONE = np.uint64(1)
_BELOW, _ABOVE = slice(None, -1), slice(1, None)  # all rows that have a next one, and those
_Places = NDArray[np.intp]


@dataclass(frozen=True)
class Joined:
    """One server's share of joined rows.

    Parameters
    ----------
    there : ndarray of shape (n,), bool
        1 if a slot is a person, shared by XOR.
    parts : tuple of ndarray of shape (n, words)
        Packed columns of each owner, zeros where the owner has no row. Bit 0 of the first word is
        1 where it has one.
    """

    there: Flags
    parts: tuple[Words, ...]


def are_sorted(server: Server, tables: Sequence[Words]) -> list[bool]:
    """Open whether tags increase strictly (semi-honest; the dealer with either server sees all).

    A bit for each table, which is a function of its owner's upload alone.
    """
    tags = [table[:, 0] & ~OWNER_BITS for table in tables]
    # All tables together, since each comparison waits for the other server.
    lower, upper = (np.concatenate([own[part] for own in tags]) for part in (_BELOW, _ABOVE))
    rises = [less(server, lower[part], upper[part]) for part in in_parts(len(lower))]
    ends = np.cumsum([len(own) - 1 for own in tags])
    return all_set(server, np.split(np.concatenate([np.zeros(0, bool), *rises]), ends[:-1]))


def sorted_together(server: Server, tables: Sequence[Words], names: Sequence[str]) -> Words:
    """Return all rows by tag and owner (semi-honest; the dealer with either server sees all).

    Tables of fewer words are padded with zeros.

    Raises
    ------
    RemoteProtocolError
        At both servers, if a table is not sorted. No later value is opened.
    """
    # An unsorted table could put one person into several pairs.
    for name, rises in zip(names, are_sorted(server, tables), strict=True):
        if not rises:
            raise RemoteProtocolError(
                f"table {name!r} is not sorted by its tags without repetition; its owner must "
                "upload it again in a new session."
            )
    width = max(table.shape[1] for table in tables)
    rows = np.empty((0, width), np.uint64)
    for number, table in enumerate(tables):
        own = np.pad(table, ((0, 0), (0, width - table.shape[1])))
        own[:, 0] = (own[:, 0] & ~OWNER_BITS) ^ np.uint64(number if server.index == 0 else 0)
        rows = merge(server, rows, own)
    return rows


def merge(server: Server, first: Words, second: Words) -> Words:
    """Return two tables as one (semi-honest; the dealer with either server sees all).

    All are sorted by the first column, whose words are all different. Tables may have any lengths.
    The network has places for twice the next power of two; free places are public at each step.
    """
    if not len(first):
        return second
    # One table rises and the other falls: a bitonic sequence, which each stage halves.
    size = 2 << (max(len(first), len(second)) - 1).bit_length()
    rows = np.zeros((size, first.shape[1]), np.uint64)
    rows[: len(first)], rows[size - len(second) :] = first, second[::-1]
    free = np.ones(size, bool)
    free[: len(first)] = free[size - len(second) :] = False
    stride = size // 2
    while stride:
        places = np.arange(size).reshape(-1, 2, stride)
        low, high = places[:, 0].ravel(), places[:, 1].ravel()
        # A free place counts as the largest key, so it moves up without a comparison.
        moves = free[low] & ~free[high]
        rows[low[moves]] = rows[high[moves]]
        free[low[moves]], free[high[moves]] = False, True
        compared = ~(free[low] | free[high] | moves)
        _exchange(server, rows, low[compared], high[compared])
        stride //= 2
    return rows[~free]


def _exchange(server: Server, rows: Words, low: _Places, high: _Places) -> None:
    """Exchange the rows of each pair of places whose keys fall."""
    # In parts, since a comparison takes ten times the memory of its words.
    for part in in_parts(len(low)):
        a, b = rows[low[part]], rows[high[part]]
        # All at once, so that only the first item of an exchange waits for the dealer.
        server.expect(*less_material(len(a)), Pick(*a.shape))
        falls = less(server, np.ascontiguousarray(b[:, 0]), np.ascontiguousarray(a[:, 0]))
        moved = pick(server, falls, a ^ b)
        rows[low[part]], rows[high[part]] = a ^ moved, b ^ moved


def _is_pair(server: Server, rows: Words, first: int) -> Flags:
    """Return 1 where a row of owner `first` has its person's row of the next owner below it."""
    # Equal tags have keys that differ by the numbers of their owners alone.
    apart = np.uint64(first ^ (first + 1) if server.index == 0 else 0)
    keys = rows[:, 0]
    return np.concatenate(
        [equal(server, keys[:-1][part], keys[1:][part] ^ apart) for part in in_parts(len(keys) - 1)]
    )


def _is_there(rows: Words) -> Flags:
    return (rows[:, 1] & _ONE).astype(bool)


def _cut(server: Server, flag: Flags, rows: Words, width: int) -> Words:
    """Return the columns of rows with a flag, else zeros; the flag becomes bit 0."""
    # The owner's own bit 0 is in the flag already.
    own = rows[:, 1 : 1 + width].copy()
    own[:, 0] = (own[:, 0] & ~_ONE) ^ np.uint64(server.index == 0)
    return np.concatenate([pick(server, flag[part], own[part]) for part in in_parts(len(own))])


def inner(server: Server, tables: Sequence[Words], names: Sequence[str]) -> Joined:
    """Return persons of all owners (semi-honest; the dealer with either server sees all).

    n - m + 1 slots for n rows of m owners.
    """
    rows, m = sorted_together(server, tables, names), len(tables)
    slots = len(rows) - m + 1  # a person of all owners starts at none of the last m - 1 rows
    there = _is_there(rows)
    flag = there[:slots]
    # Owners' numbers break ties of a tag, so a person's rows come in the order of the owners.
    for i in range(1, m):
        pair = _is_pair(server, rows[i - 1 : i + slots], i - 1)
        flag = both(server, flag, both(server, pair, there[i : i + slots]))
    return Joined(
        flag,
        tuple(
            _cut(server, flag, rows[i : i + slots], table.shape[1] - 1)
            for i, table in enumerate(tables)
        ),
    )


def everybody(server: Server, tables: Sequence[Words], names: Sequence[str], how: How) -> Joined:
    """Return persons of either owner (semi-honest; the dealer with either server sees all).

    Each person has one slot. "left" has the persons of the first owner, "outer" those of either,
    both with the columns of both. "union" has those of either with the columns that both have. Of a
    person of both, these are the first owner's.
    """
    rows, widths = sorted_together(server, tables, names), [table.shape[1] - 1 for table in tables]
    there, slots = _is_there(rows), len(rows)
    second = (rows[:, 0] & _ONE).astype(bool)  # the owner's number
    below = np.append(both(server, _is_pair(server, rows, 0), there[1:]), False)
    pair = both(server, below, there)
    # The second row of a pair is no head.
    after = np.append(False, pair[:-1])
    head = both(server, there, negated(server, after))
    if how == "union":
        return Joined(head, (_cut(server, head, rows, widths[0]),))
    # A head of the second owner has no row of the first, which would be above it.
    of_second = both(server, head, second)
    of_first = head ^ of_second
    one = _cut(server, of_first, rows, widths[0])
    other = np.zeros((slots, widths[1]), np.uint64)
    other[:-1] = _cut(server, pair[:-1], rows[1:], widths[1])
    if how == "outer":
        # No slot is both: XOR of rows of zeros and of the row that is there.
        other ^= _cut(server, of_second, rows, widths[1])
    return Joined(of_first if how == "left" else head, (one, other))
