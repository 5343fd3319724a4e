"""Joined rows by column: bits and words of a column, cells of several, and a design of numbers.

A person may lack the columns of an owner ("left" and "outer"). Its bits are then 0, and bit 0 of
that owner's part is 0, which the category ``has_OWNER`` shows. Other categories have the further
level "missing"; models use complete persons only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cloister.core.arrays import Flags, Floats
from cloister.core.errors import PlanError
from cloister.hazmat.ring import Words
from cloister.protocol.task import BOOLEAN
from cloister.shares.linking.columns import TOP, Column, Field, Side
from cloister.shares.linking.merge import How, Joined
from cloister.shares.mpc.bits import both, in_parts
from cloister.shares.mpc.compare import to_words
from cloister.shares.mpc.server import Server

MISSING = "missing"
_MOST_BITS = 1 << 22  # turned into words in one step


class Place(NamedTuple):
    """The place of a column in joined rows.

    Parameters
    ----------
    part : int
        The owner's number.
    field : Field
    lacked : bool
        True if a person of the join may lack the column.
    """

    part: int
    field: Field
    lacked: bool


@dataclass(frozen=True)
class Frame:
    """The public facts of joined rows.

    Parameters
    ----------
    sides : mapping of str to Side
        The table of each owner.
    how : {"inner", "left", "union", "outer"}
    keys : int
        The most keys of one person, each of which may be in one joined row.
    """

    sides: Mapping[str, Side]
    how: How
    keys: int = 1

    def __post_init__(self) -> None:
        own = [column.name for side in self._parts.values() for column in side.columns]
        names = [*own, *self._flags]
        if twice := [name for name in names if names.count(name) > 1]:
            raise PlanError(f"column {twice[0]!r} must be one owner's; rename it in one table.")
        if self.how == "union" and len({side.columns for side in self.sides.values()}) > 1:
            raise PlanError("a union must have the same columns at both owners, in one order.")

    @property
    def _parts(self) -> Mapping[str, Side]:
        """The sides whose columns joined rows have."""
        return dict(list(self.sides.items())[:1]) if self.how == "union" else self.sides

    def may_lack(self, part: int) -> bool:
        """Return True if a person may lack the columns of an owner."""
        return self.how == "outer" or (self.how == "left" and part == 1)

    def moves(self, names: Sequence[str]) -> bool:
        """Return True if a person without its row at one owner may get other levels of these.

        The other owner's row then stays in the slot: with "missing", or in a union with its own
        columns. An owner knows its row, so to it a person changes two vectors and not one.
        """
        return self.how == "union" or any(self.may_lack(self.place(name).part) for name in names)

    @cached_property
    def _flags(self) -> Mapping[str, Place]:
        """The categories ``has_OWNER``, which every person of the join has: bit 0 of a part."""
        names = {f"has_{owner}": part for part, owner in enumerate(self._parts)}
        return {
            name: Place(part, Field(Column(name=name, categories=BOOLEAN), 0, 0), lacked=False)
            for name, part in names.items()
            if self.may_lack(part)
        }

    def place(self, name: str) -> Place:
        """Return the place of a column, or of ``has_OWNER``."""
        if name in self._flags:
            return self._flags[name]
        for part, side in enumerate(self._parts.values()):
            for one in side.fields:
                if one.column.name == name:
                    return Place(part, one, self.may_lack(part))
        raise PlanError(f"an analysis must use columns of the tables, got {name!r}.")

    def column(self, name: str) -> Column:
        """Return a column; that of ``has_OWNER`` has the categories false and true."""
        return self.place(name).field.column

    def levels(self, name: str) -> tuple[str, ...]:
        """Return the levels of a category in a table of counts."""
        place = self.place(name)
        own = place.field.column.categories
        if not own:
            raise PlanError(f"column {name!r} must have categories to be counted by.")
        if place.lacked and MISSING in own:
            raise PlanError(f"a category of {name!r} must be named other than {MISSING!r}.")
        return (*own, MISSING) if place.lacked else own

    def terms(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the columns of a design: numbers, and all levels but the first."""
        # Only complete persons are in a design, so the column would be 1 for all of them.
        if alone := [name for name in names if name in self._flags]:
            raise PlanError(f"column {alone[0]!r} must be in tables, or the groups of means, only.")
        if twice := [name for name in names if names.count(name) > 1]:
            raise PlanError(f"column {twice[0]!r} must be named once; a target is no predictor.")
        return tuple(
            term
            for column in map(self.column, names)
            for term in ([f"{column.name}={c}" for c in column.categories[1:]] or [column.name])
        )

    def box(self, names: Sequence[str]) -> tuple[Floats, Floats]:
        """Return middle and half-width of each term of a design, data units."""
        ends = [
            pair
            for column in map(self.column, names)
            for pair in [(0.0, 1.0)] * (len(column.categories) - 1) or [column.ends]
        ]
        low, high = np.array(ends).T
        return (high + low) / 2, (high - low) / 2


@dataclass(frozen=True)
class View:
    """One server's share of joined rows, by column."""

    server: Server
    frame: Frame
    joined: Joined
    _designs: dict[tuple[str, ...], Words] = field(default_factory=dict)

    def _has(self, part: int) -> Flags:
        return (self.joined.parts[part][:, 0] & np.uint64(1)).astype(bool)

    def complete(self, names: Sequence[str]) -> Flags:
        """Return 1 for persons with all of these columns; one round for each owner of some."""
        found = self.joined.there
        for part in sorted({self.frame.place(name).part for name in names}):
            if self.frame.may_lack(part):
                found = both(self.server, found, self._has(part))
        return found

    def split(self, planes: Flags, name: str) -> Flags:
        """Return sets of rows, split by the levels of a category.

        Parameters
        ----------
        planes : ndarray of shape (k, n), bool
            Shares of k sets of rows.

        Returns
        -------
        ndarray of shape (k, levels, n)
            "missing" is the last level where a person may lack the column.
        """
        place = self.frame.place(name)
        if not place.lacked:
            return self._by_code(planes, place)
        known = self._and(planes, self._has(place.part))
        missing = (planes ^ known)[:, np.newaxis]
        return np.concatenate([self._by_code(known, place), missing], axis=1)

    def _by_code(self, planes: Flags, place: Place) -> Flags:
        """Return sets of rows with a category, split by its codes.

        Codes that are no category are in no set, so a wrong code does not count twice.
        """
        # From the highest bit down, each bit halves every set: one AND for both halves.
        sets = planes[:, np.newaxis]
        for bit in place.field.bits_of(self.joined.parts[place.part])[::-1]:
            ones = self._and(sets, bit)
            sets = np.stack([sets ^ ones, ones], axis=2).reshape(len(planes), -1, len(bit))
        return sets[:, : len(place.field.column.categories)]

    def _and(self, planes: Flags, bit: Flags) -> Flags:
        return both(self.server, planes, np.broadcast_to(bit, planes.shape))

    def cells(self, names: Sequence[str], among: Flags) -> Flags:
        """Return one set of rows for each cell of a table, the last column fastest."""
        planes = among[np.newaxis]
        for name in names:
            planes = self.split(planes, name).reshape(-1, planes.shape[1])
        return planes

    def counts(self, planes: Flags) -> Words:
        """Return shares modulo 2^64 of the sizes of sets of rows."""
        # A bit becomes a word of 8 bytes, so thousands of cells at a time would fill the memory.
        step = max(1, _MOST_BITS // max(1, planes.shape[1]))
        return np.concatenate(
            [self.words(planes[part]).sum(axis=1) for part in in_parts(len(planes), step)]
        )

    def words(self, bits: Flags) -> Words:
        """Return shares modulo 2^64 of bits."""
        return to_words(self.server, bits.astype(np.uint64))

    def _number(self, place: Place, among: Flags) -> Words:
        """Return shares of a number's level in [0, TOP], 0 outside a set of rows."""
        bits = place.field.bits_of(self.joined.parts[place.part])
        if self.frame.may_lack(1):  # then a person may have this column and lack another one
            bits = self._and(bits, among)
        # Levels of all widths on one scale, so that products of columns have one bound.
        factor = np.uint64(TOP // place.field.column.top)
        size = np.empty(bits.shape[1], np.uint64)
        weights = np.uint64(1) << np.arange(len(bits), dtype=np.uint64)[:, np.newaxis]
        for rows in in_parts(len(size), _MOST_BITS // len(bits)):
            size[rows] = (self.words(bits[:, rows]) * weights).sum(axis=0)
        return size * factor

    def design(self, names: Sequence[str]) -> Words:
        """Return shares of integers in [-TOP, TOP], 0 for incomplete rows; shape (n, terms + 1).

        A term is a number, or a level of a category as -TOP and TOP. The last column is TOP for
        each complete row. No product is needed, since words of single bits are added.
        """
        key = tuple(names)
        if key not in self._designs:
            among = self.complete(names)
            unit = self.words(among) * np.uint64(TOP)
            terms: list[Words] = []
            for place in map(self.frame.place, names):
                if place.field.column.categories:
                    # The first level is the reference.
                    (planes,) = self._by_code(among[np.newaxis], place)
                    terms += list(self.words(planes[1:]) * np.uint64(TOP))
                else:
                    terms.append(self._number(place, among))
            # From [0, TOP] to [-TOP, TOP], but 0 where the unit is 0.
            doubled = [np.uint64(2) * term - unit for term in terms]
            self._designs[key] = np.stack([*doubled, unit], axis=1)
        return self._designs[key]
