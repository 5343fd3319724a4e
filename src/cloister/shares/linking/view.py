"""Joined rows by column: bits and words of a column, cells of several, and a design of numbers.

A person may lack the columns of an owner ("left" and "outer"). Its bits are then 0, and `has` of
that owner is 0. Categories have the further level "missing"; models use complete persons only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cloister.core.arrays import Flags
from cloister.core.errors import PlanError
from cloister.hazmat.ring import Words
from cloister.shares.linking.columns import TOP, Column, Field, Side
from cloister.shares.linking.merge import How, Joined
from cloister.shares.mpc.bits import both, in_parts
from cloister.shares.mpc.compare import to_words
from cloister.shares.mpc.server import Server

MISSING = "missing"
_MOST_BITS = 1 << 22  # turned into words in one step


@dataclass(frozen=True)
class Frame:
    """The public facts of joined rows: the columns, and the owners whose columns may be absent."""

    sides: Mapping[str, Side]
    how: How

    def __post_init__(self) -> None:
        names = [column.name for side in self._parts.values() for column in side.columns]
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
        return self.how == "union" or any(self.may_lack(self.place(name)[0]) for name in names)

    def place(self, name: str) -> tuple[int, Field | None]:
        """Return the owner's number and the field; no field for ``has_OWNER``."""
        for part, (owner, side) in enumerate(self._parts.items()):
            if name == f"has_{owner}" and self.may_lack(part):
                return part, None
            for one in side.fields:
                if one.column.name == name:
                    return part, one
        raise PlanError(f"an analysis must use columns of the tables, got {name!r}.")

    def column(self, name: str) -> Column:
        """Return a column; that of ``has_OWNER`` has the categories false and true."""
        found = self.place(name)[1]
        return Column(name=name, categories=("false", "true")) if found is None else found.column

    def levels(self, name: str) -> tuple[str, ...]:
        """Return the levels of a category in a table of counts."""
        part, found = self.place(name)
        own = self.column(name).categories
        if not own:
            raise PlanError(f"column {name!r} must have categories to be counted by.")
        if MISSING in own and self.may_lack(part):
            raise PlanError(f"a category of {name!r} must be named other than {MISSING!r}.")
        return (*own, MISSING) if found is not None and self.may_lack(part) else own

    def terms(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the columns of a design: numbers, and all levels but the first."""
        # Only complete persons are in a design, so the column would be 1 for all of them.
        if alone := [name for name in names if self.place(name)[1] is None]:
            raise PlanError(f"column {alone[0]!r} must be in tables, or the groups of means, only.")
        return tuple(
            term
            for column in map(self.column, names)
            for term in ([f"{column.name}={c}" for c in column.categories[1:]] or [column.name])
        )


@dataclass(frozen=True)
class View:
    """One server's share of joined rows, by column."""

    server: Server
    frame: Frame
    joined: Joined
    _words: dict[tuple[str, ...], Words] = field(default_factory=dict)

    def _has(self, part: int) -> Flags:
        return (self.joined.parts[part][:, 0] & np.uint64(1)).astype(bool)

    def complete(self, names: Sequence[str]) -> Flags:
        """Return 1 for persons with all of these columns; one round for each owner of some."""
        found = self.joined.there
        for part in sorted({self.frame.place(name)[0] for name in names}):
            if self.frame.may_lack(part):
                found = both(self.server, found, self._has(part))
        return found

    def split(self, planes: Flags, name: str, whole: bool = False) -> Flags:
        """Return sets of rows, split by the levels of a category.

        Parameters
        ----------
        planes : ndarray of shape (k, n), bool
            Shares of k sets of rows.
        whole : bool
            True if no row in the sets lacks the column.

        Returns
        -------
        ndarray of shape (k * levels, n), the level fastest
            Codes that are no category are in no set, so a wrong code does not count twice.
        """
        part, place = self.frame.place(name)
        if place is None or not (whole or not self.frame.may_lack(part)):
            inside = self._and(planes, self._has(part))
            outside = planes ^ inside
            if place is None:
                return np.stack([outside, inside], axis=1).reshape(-1, planes.shape[1])
        else:
            inside, outside = planes, planes[:0]
        # From the highest bit down, each bit halves every set: one AND for both halves.
        level = inside[:, np.newaxis]
        for bit in place.bits_of(self.joined.parts[part])[::-1]:
            ones = self._and(level, bit)
            level = np.stack([level ^ ones, ones], axis=2).reshape(len(planes), -1, len(bit))
        level = level[:, : len(place.column.categories)]
        if len(outside):
            level = np.concatenate([level, outside[:, np.newaxis]], axis=1)
        return level.reshape(-1, planes.shape[1])

    def _and(self, planes: Flags, bit: Flags) -> Flags:
        return both(self.server, planes, np.broadcast_to(bit, planes.shape))

    def cells(self, names: Sequence[str], among: Flags) -> Flags:
        """Return one set of rows for each cell of a table, the last column fastest."""
        planes = among[np.newaxis]
        for name in names:
            planes = self.split(planes, name)
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

    def levels(self, name: str, among: Flags) -> Words:
        """Return shares of a number's level in [0, TOP], 0 outside a set of rows."""
        part, place = self.frame.place(name)
        if place is None:
            raise PlanError(f"column {name!r} must be a number.")
        bits = place.bits_of(self.joined.parts[part])
        if any(map(self.frame.may_lack, range(len(self.joined.parts)))):
            # A person may have this column and lack another one of the design.
            bits = self._and(bits, among)
        # Levels of all widths on one scale, so that products of columns have one bound.
        factor = np.uint64(TOP // place.column.top)
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
        if key not in self._words:
            among = self.complete(names)
            unit = self.words(among) * np.uint64(TOP)
            terms: list[Words] = []
            for name in names:
                if self.frame.column(name).categories:
                    # The first level is the reference.
                    planes = self.split(among[np.newaxis], name, whole=True)[1:]
                    terms += list(self.words(planes) * np.uint64(TOP))
                else:
                    terms.append(self.levels(name, among))
            # From [0, TOP] to [-TOP, TOP], but 0 where the unit is 0.
            doubled = [np.uint64(2) * term - unit for term in terms]
            self._words[key] = np.stack([*doubled, unit], axis=1)
        return self._words[key]
