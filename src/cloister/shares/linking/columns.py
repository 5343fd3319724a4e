"""Columns as bits of public width, and an owner's table of them.

A number is rounded to 2^bits levels of its public range; a category is its code. All fields of a
row are packed after bit 0, which is 1 for a person. So any upload is bits, and no field can leave
its width. An owner that uploads wrong words changes its values, and no bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from math import isfinite
from typing import Annotated, Any, Literal

import numpy as np

from cloister.core.arrays import Flags, Floats
from cloister.core.declared import Hint, Length, Range, Rule, declared
from cloister.core.errors import DataError, PlanError
from cloister.core.randomness import os_bytes
from cloister.data import check_file, read_cells, read_rows
from cloister.data.loss import MAX_LOSS, check_max_loss
from cloister.data.reading import capital, clip_sentence
from cloister.data.schema import Schema
from cloister.data.units import one_unit, unit_names
from cloister.hazmat.prg import join
from cloister.hazmat.ring import Words, to_bytes
from cloister.shares.linking.keys import Part, keys_of, tags
from cloister.shares.linking.merge import OWNER_BITS
from cloister.shares.mpc.session import table_of

TOP = (1 << 12) - 1
"""Levels of every column are brought to [0, TOP]; the levels of each width divide it."""
_BOOLEAN = ("false", "true")
# Another owner writes them, and they are shown in the text that an owner approves.
PRINTABLE = Rule("printable", lambda names: all(map(str.isprintable, names)))


@declared
class Column:
    """A column of an owner: a number in a public range, or a category of public names."""

    name: Annotated[str, Length(1, 200), PRINTABLE]
    low: float = 0.0
    high: Annotated[float | None, "public; a number must have it, a category has none"] = None
    bits: Literal[1, 2, 3, 4, 6, 12] = 12
    categories: Annotated[
        tuple[str, ...],
        Rule("all different", lambda names: len(set(names)) == len(names)),
        PRINTABLE,
        "names in the order of their codes; empty for a number",
        Hint("truth values are 'false' and 'true'"),
    ] = ()

    def __post_init__(self) -> None:
        if len(self.categories) == 1:
            raise PlanError(f"column {self.name!r} must have two categories or more, got 1.")
        if self.categories:
            return
        # A default would clip any amount or age to it.
        if self.high is None:
            raise PlanError(
                f"column {self.name!r} must have high, its largest public value, or categories."
            )
        if not (self.low < self.high and isfinite(self.high - self.low)):
            raise PlanError(
                f"column {self.name!r} must have low < high, got {self.low} and {self.high}."
            )

    @property
    def ends(self) -> tuple[float, float]:
        """The public range of a number, data units."""
        assert self.high is not None, "a category has no range"
        return self.low, self.high

    @property
    def width(self) -> int:
        """Number of bits."""
        return (len(self.categories) - 1).bit_length() if self.categories else self.bits

    @property
    def top(self) -> int:
        """The largest level of a number."""
        return (1 << self.bits) - 1

    def levels(self, values: Floats) -> Words:
        """Return numbers or codes as levels; numbers are clipped to the range."""
        if self.categories:
            return values.astype(np.uint64)
        low, high = self.ends
        place = (np.clip(values, low, high) - low) / (high - low)
        return np.rint(place * self.top).astype(np.uint64)

    def schema(self) -> dict[str, Any]:
        """Return the column of a schema that reads it."""
        if self.categories == _BOOLEAN:
            return {"name": self.name, "type": "boolean"}
        if self.categories:
            return {"name": self.name, "type": "category", "categories": self.categories}
        low, high = self.ends
        return {"name": self.name, "type": "number", "min": low, "max": high}


@dataclass(frozen=True)
class Field:
    """The place of a column in a row: the word after the tag, and the lowest bit there."""

    column: Column
    word: int
    bit: int

    def bits_of(self, rows: Words) -> Flags:
        """Return the bits of the field, the lowest first; shape (width, n)."""
        places = np.arange(self.column.width, dtype=np.uint64) + np.uint64(self.bit)
        return ((rows[:, self.word] >> places[:, np.newaxis]) & np.uint64(1)).astype(bool)


@declared
class Side:
    """One owner's table: its public number of places, the columns of its key, and its columns."""

    rows: Annotated[int, Range(2, 1 << 24), "public; the table is filled to so many"]
    key: Annotated[tuple[str, ...], Length(1, 8), PRINTABLE, "columns with the parts of the key"]
    columns: tuple[Column, ...] = ()

    def __post_init__(self) -> None:
        names = [*self.key, *(column.name for column in self.columns)]
        if twice := [name for name in names if names.count(name) > 1]:
            raise PlanError(
                f"column {twice[0]!r} must be named once; a key is never a column of an analysis."
            )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Side:
        """Return a side from JSON-able options."""
        given = table_of(cls, "a side", given)
        columns = [table_of(Column, "a column", one) for one in given.get("columns", ())]
        return cls(**{**given, "columns": tuple(Column(**column) for column in columns)})

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The places of all columns; no field is cut by the end of a word."""
        return tuple(_placed(self.columns))

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the table: tags, then words."""
        return self.rows, 2 + (self.fields[-1].word if self.fields else 0)

    def packed(self, values: Floats) -> Words:
        """Return the words of rows of values in the order of the columns; shape (n, words)."""
        rows = np.zeros((len(values), self.shape[1] - 1), np.uint64)
        rows[:, 0] = 1  # a person, and no place that is free
        for field, column in zip(self.fields, values.T, strict=True):
            rows[:, field.word] |= field.column.levels(column) << np.uint64(field.bit)
        return rows


def _placed(columns: Sequence[Column]) -> Iterator[Field]:
    word, bit = 0, 1  # bit 0 of word 0 is the row's
    for column in columns:
        if bit + column.width > 64:
            word, bit = word + 1, 0
        yield Field(column, word, bit)
        bit += column.width


@dataclass(frozen=True)
class Prepared:
    """An owner's rows, ready but for their tags, which need the secret of the session.

    Parameters
    ----------
    keys : sequence of tuple of str
        One for each row, all different.
    rows : ndarray of shape (n, words)
    no_key, repeated, beyond, incomplete : int
        Rows left out: without a key, after the first of a key, of a further key of one unit, with a
        cell that the schema drops. Exact counts, for the owner alone.
    differing : int
        Repeated rows with other values than the first one of their key, whose order thus decides.
    outside : sequence of (below, above)
        Values of each column that are clipped, of the kept rows.
    causes : sequence of str
        A sentence on each column that leaves rows out. It quotes cells, so it is for the owner.
    """

    side: Side
    keys: Sequence[tuple[str, ...]]
    rows: Words
    no_key: int = 0
    repeated: int = 0
    beyond: int = 0
    incomplete: int = 0
    differing: int = 0
    outside: Sequence[tuple[int, int]] = ()
    causes: Sequence[str] = ()

    @property
    def lost(self) -> int:
        """Number of rows left out, without those that repeat a row or exceed a unit's keys."""
        return self.no_key + self.incomplete + self.differing

    def notices(self, table: str) -> Iterator[str]:
        """Yield sentences for the owner on rows left out, and on columns with many clips."""
        if self.lost:
            yield self._loss(table)
        for column, ends in zip(self.side.columns, self.outside, strict=True):
            if said := clip_sentence(column.name, f"table {table!r}", len(self.keys), *ends):
                yield said

    def refuse_loss(self, table: str, max_loss: float | None = None) -> None:
        """Raise a DataError for the owner if too many rows are left out.

        They have no key or an unreadable cell, or differ from an earlier row of their key.

        Parameters
        ----------
        table : str
            Its name in the session.
        max_loss : float in [0, 1], optional
            Share of the rows that may be left out for these reasons, 5 % by default.
        """
        check_max_loss(max_loss)
        lost, limit = self.lost, MAX_LOSS if max_loss is None else max_loss
        if not lost or (self.keys and lost <= limit * self._rows):
            return
        share = (100 * lost // self._rows + 1) / 100
        accept = f", or accept it with --max-loss {share:g} (max_loss={share:g} in Python)"
        once = " Give one row for each key, since the first one counts." * bool(self.differing)
        raise DataError(f"{self._loss(table)}{once} Correct this{accept if self.keys else ''}.")

    @property
    def _rows(self) -> int:
        return self.no_key + self.incomplete + self.repeated + self.beyond + len(self.keys)

    def _loss(self, table: str) -> str:
        counts = (
            (self.no_key, "without a key"),
            (self.differing, "unlike the first row of their key"),
            (self.incomplete, "with a missing or unreadable cell"),
        )
        why = ", ".join(f"{count:,} {what}" for count, what in counts if count)
        head = f"table {table!r}: {self.lost:,} of {self._rows:,} rows are left out, {why}."
        return " ".join((head, *self.causes))

    def content(self) -> bytes:
        """Return a digest of keys and rows, which is the same in every session."""
        whole = sha256(to_bytes(self.rows.ravel()))
        for key in self.keys:
            whole.update(join(part.encode() for part in key))
        return whole.digest()

    def tagged(self, secret: bytes, session: str) -> Words:
        """Return the table to upload: sorted by tag, and filled with random tags and zeros."""
        places = self.side.rows
        # Of two keys with one tag one is left out: a run must not stop for a record.
        own, kept = np.unique(tags(secret, session, self.keys), return_index=True)
        # Random tags look like those of persons, also to the two servers together.
        every = own
        while len(every) < places:  # once, but for a repetition by chance
            more = np.frombuffer(os_bytes(8 * (places - len(every))), np.uint64) & ~OWNER_BITS
            every = np.append(own, np.setdiff1d(np.append(every[len(own) :], more), own))
        table = np.zeros(self.side.shape, np.uint64)
        table[:, 0] = every
        table[: len(own), 1:] = self.rows[kept]
        return table[np.argsort(every)]

    def __repr__(self) -> str:
        # The number of persons is not public.
        return f"Prepared(rows={self.side.rows})"


def prepare(
    side: Side,
    parts: Sequence[Part],
    source: Any,
    schema: Schema | None = None,
    keys_per_person: int = 1,
    used: Collection[str] | None = None,
) -> Prepared:
    """Read an owner's rows: the first complete row of each key, in the order of the source.

    Parameters
    ----------
    source : table or path
        With named columns, see :mod:`cloister.data`.
    keys_per_person : int
        Keys kept of one unit of the schema: a key of several parts may have more.
    schema : Schema, optional
        The owner's rules for missing cells and spellings; by default such rows are left out.
    used : collection of str, optional
        Columns of the analyses, all by default. Another column is not read: its cells are at their
        lowest value and leave no row out.

    Raises
    ------
    DataError
        If a column is missing, or there are more persons than places.
    PlanError
        If the schema has other bounds or categories than the session.
    """
    read = [column.name for column in side.columns if used is None or column.name in used]
    own = _schema(side, schema, read)
    values = _values(side, source, schema, own)
    cells = [*zip(*read_cells(source, side.key, schema), strict=True)] or [()] * len(side.key)
    keys = keys_of(cells, parts)
    complete = np.asarray(np.isfinite(values).all(axis=1))
    first: dict[tuple[str, ...], int] = {}
    repeated = differing = 0
    for i, key in enumerate(keys):
        if key and complete[i] and (kept_row := first.setdefault(key, i)) != i:
            repeated += 1
            differing += not np.array_equal(values[i], values[kept_row])
    found = len(first)
    if schema is not None and schema.unit in side.key:
        first = _within(first, cells[side.key.index(schema.unit)], keys_per_person)
    if len(first) > side.rows:
        raise DataError(
            f"the table with the columns {', '.join(column.name for column in side.columns)} has "
            f"more persons than the {side.rows} places of the session; agree on more."
        )
    kept = np.fromiter(first.values(), np.intp, len(first))
    no_key = sum(not key for key in keys)
    lost, beyond = len(keys) - no_key - repeated - found, found - len(first)
    outside = [*map(_outside, side.columns, values[kept].T)]
    counts = no_key, repeated, beyond, lost, differing
    causes = [
        *(_no_keys(side.key, cells, parts) if no_key else ()),
        *(_unread(source, own) if lost and own else ()),
    ]
    return Prepared(side, list(first), side.packed(values[kept]), *counts, outside, causes)


def _no_keys(
    names: Sequence[str], cells: Sequence[Sequence[Any]], parts: Sequence[Part]
) -> Iterator[str]:
    """Yield a sentence on each key column with cells that are no key, without their text."""
    for name, column, part in zip(names, cells, parts, strict=True):
        if count := sum(part.text_of(cell) is None for cell in column):
            width = f" of width {part.width}" * bool(part.width)
            yield f"Key column {name!r}: {count:,} cells are no key by rule {part.rule!r}{width}."


def _unread(source: Any, schema: Schema) -> Iterator[str]:
    """Yield a sentence on each column whose cells leave rows out, the most rows first."""
    for column in sorted(check_file(source, schema).columns, key=lambda one: -one.lost):
        if column.lost:
            cause = column.cause or f"column {column.name!r}: missing or out of range"
            yield f"{capital(cause)} ({column.lost:,} rows)."


def _outside(column: Column, values: Floats) -> tuple[int, int]:
    """Return the counts of numbers below and above the range; a category has none."""
    if column.categories:
        return 0, 0
    low, high = column.ends
    return int((values < low).sum()), int((values > high).sum())


def _within(
    first: Mapping[tuple[str, ...], int], units: Sequence[Any], most: int
) -> dict[tuple[str, ...], int]:
    """Return the first keys of each unit: a ledger that counts units pays for so many."""
    names, of = unit_names(list(units))
    persons = [None if name is None else one_unit(name) for name in names]
    # By the same rule as the ledger's units, for which two spellings are one.
    seen: Counter[str | None] = Counter()
    kept = {}
    for key, row in first.items():
        seen[person := persons[of[row]]] += 1
        if seen[person] <= most:
            kept[key] = row
    return kept


def _schema(side: Side, schema: Schema | None, names: Sequence[str]) -> Schema | None:
    """Return the schema that reads the named columns; None if there are none."""
    columns = tuple(column for column in side.columns if column.name in names)
    if not columns:
        return None
    if schema is not None:
        return _checked(columns, schema)
    read: Any = tuple(column.schema() for column in columns)
    return Schema(dataset="linked", unit="row", columns=read)


def _values(side: Side, source: Any, schema: Schema | None, own: Schema | None) -> Floats:
    """Return numbers and codes of all rows, NaN where a row is left out."""
    lowest = np.array([0.0 if column.categories else column.low for column in side.columns])
    if own is None:
        return np.tile(lowest, (sum(1 for _ in read_cells(source, side.key, schema)), 1))
    read = read_rows(source, own)
    values = np.tile(lowest, (len(read), 1))
    for j, column in enumerate(side.columns):
        if column.name in own.names:
            values[:, j] = read[:, own.names.index(column.name)]
    return values


def _checked(columns: Sequence[Column], schema: Schema) -> Schema:
    """Return the part of an owner's schema for these columns; raise if it differs from them."""
    known = {column.name: column for column in schema.columns}
    for column in columns:
        own = known.get(column.name)
        names = own and (_BOOLEAN if own.type == "boolean" else own.categories)
        same = own is not None and (
            names == column.categories and (bool(names) or (own.min, own.max) == column.ends)
        )
        if not same:
            raise PlanError(
                f"column {column.name!r} of the session must have the bounds or categories of this "
                "schema; correct one of them."
            )
    return schema.select([column.name for column in columns])
