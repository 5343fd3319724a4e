"""An owner's rows: read by its schema, one for each key, and made ready for a session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.errors import DataError, PlanError
from cloister.core.numerals import counted
from cloister.core.randomness import os_bytes
from cloister.data import check_file, read_cells, read_rows
from cloister.data.loss import MAX_LOSS, acceptance, check_max_loss
from cloister.data.reading import capital, clip_sentence
from cloister.data.schema import Schema
from cloister.data.units import one_unit, unit_names
from cloister.hazmat.prg import join
from cloister.hazmat.ring import Words, to_bytes
from cloister.protocol.task import BOOLEAN
from cloister.shares.linking.columns import Column, Side
from cloister.shares.linking.keys import Part, keys_of, tags
from cloister.shares.linking.merge import OWNER_BITS


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
    def counts(self) -> Mapping[str, int]:
        """Exact counts, for the owner alone."""
        return {
            "persons": len(self.keys),
            "places": self.side.rows,
            "no_key": self.no_key,
            "repeated": self.repeated,
            "differing": self.differing,
            "beyond": self.beyond,
            "incomplete": self.incomplete,
        }

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
        share = self.lost / max(1, self._rows)
        if not share or (self.keys and share <= (MAX_LOSS if max_loss is None else max_loss)):
            return
        accept = f", or {acceptance(share)}" * bool(self.keys)
        once = " Give one row for each key, since the first one counts." * bool(self.differing)
        raise DataError(f"{self._loss(table)}{once} Correct this{accept}.")

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
    own = _schema(side, schema, used)
    cells = [*zip(*read_cells(source, side.key, schema), strict=True)] or [()] * len(side.key)
    keys = keys_of(cells, parts)
    values = _values(side, source, own, len(keys))
    complete = np.asarray(np.isfinite(values).all(axis=1))
    first: dict[tuple[str, ...], int] = {}
    repeated = differing = 0
    for i, key in enumerate(keys):
        if key and complete[i] and (kept_row := first.setdefault(key, i)) != i:
            repeated += 1
            differing += not np.array_equal(values[i], values[kept_row])
    found, no_key = len(first), sum(not key for key in keys)
    incomplete = len(keys) - no_key - repeated - found
    if schema is not None and schema.unit in side.key:
        first = _within(first, cells[side.key.index(schema.unit)], keys_per_person)
    if len(first) > side.rows:
        raise DataError(
            f"the table with the columns {', '.join(column.name for column in side.columns)} has "
            f"more persons than the {side.rows} places of the session; agree on more."
        )
    kept = values[np.fromiter(first.values(), np.intp, len(first))]
    return Prepared(
        side,
        list(first),
        side.packed(kept),
        no_key=no_key,
        repeated=repeated,
        beyond=found - len(first),
        incomplete=incomplete,
        differing=differing,
        outside=[*map(_outside, side.columns, kept.T)],
        causes=[
            *(_no_keys(side.key, cells, parts) if no_key else ()),
            *(_unread(source, own) if incomplete and own else ()),
        ],
    )


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
            yield f"{capital(cause)} ({counted(column.lost, 'row')})."


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


def _schema(side: Side, schema: Schema | None, used: Collection[str] | None) -> Schema | None:
    """Return the schema that reads the used columns; None if there are none."""
    columns = [column for column in side.columns if used is None or column.name in used]
    if not columns:
        return None
    if schema is None:
        read: Any = tuple(column.schema() for column in columns)
        return Schema(dataset="linked", unit="row", columns=read)
    _require_same(columns, schema)
    return schema.select([column.name for column in columns])


def _require_same(columns: Sequence[Column], schema: Schema) -> None:
    """Raise if an owner's schema has other bounds or categories than the session."""
    known = {column.name: column for column in schema.columns}
    for column in columns:
        own = known.get(column.name)
        names = own and (BOOLEAN if own.type == "boolean" else own.categories)
        same = own is not None and (
            names == column.categories and (bool(names) or (own.min, own.max) == column.ends)
        )
        if not same:
            allowed = "no such column"
            if own is not None:
                ends = f"low = {own.min!r}, high = {own.max!r}"
                allowed = f"categories = {list(names)}" if names else ends
            raise PlanError(
                f"column {column.name!r} of the session must have the bounds or categories of this "
                f"schema, which has {allowed}; correct one of them."
            )


def _values(side: Side, source: Any, own: Schema | None, n: int) -> Floats:
    """Return numbers and codes of n rows: NaN where a cell is dropped, lowest where not read."""
    lowest = [0.0 if column.categories else column.low for column in side.columns]
    values = np.tile(np.array(lowest), (n, 1))
    if own is not None:
        names = [column.name for column in side.columns]
        values[:, [names.index(name) for name in own.names]] = read_rows(source, own)
    return values
