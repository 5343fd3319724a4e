"""Columns as bits of public width, and their places in the rows of an owner's table.

A number is rounded to 2^bits levels of its public range; a category is its code. All fields of a
row are packed after bit 0, which is 1 for a person. So any upload is bits, and no field can leave
its width. An owner that uploads wrong words changes its values, and no bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Annotated, Any, Literal

import numpy as np

from cloister.core.arrays import Flags, Floats
from cloister.core.declared import Hint, Length, Range, Rule, declared
from cloister.core.errors import PlanError
from cloister.hazmat.ring import Words
from cloister.protocol.task import BOOLEAN
from cloister.shares.mpc.program import Names
from cloister.shares.mpc.session import table_of

TOP = (1 << 12) - 1
"""Levels of every column are brought to [0, TOP]; the levels of each width divide it."""
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
        Names,
        PRINTABLE,
        "names in the order of their codes; empty for a number",
        Hint("truth values are 'false' and 'true'"),
    ] = ()

    def __post_init__(self) -> None:
        if len(self.categories) == 1:
            raise PlanError(f"column {self.name!r} must have two categories or more, got 1.")
        if self.categories and self.high is not None:
            raise PlanError(f"column {self.name!r} must have high or categories, not both.")
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
        if self.categories == BOOLEAN:
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
