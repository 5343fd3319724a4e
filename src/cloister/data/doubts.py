"""Cells that a reader understood, but that their file probably means in another way.

``1.250`` is one and a quarter, or a German one thousand; ``999`` beyond the bounds may mark a
missing cell. The meaning of a cell never depends on other cells, so a doubt changes no record. It
is for the owner alone, before a job: a desk refuses the file until its settings decide.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.data.remedies import Remedy
from cloister.data.rules import dialect_of
from cloister.data.sources import is_text_table
from cloister.data.text import read_header, readable, stream_of

if TYPE_CHECKING:
    from cloister.data.schema import Column, Schema

_SAMPLE_BYTES = 1 << 18  # of a file, which show how its numbers are written
_SAMPLE_LINES = 1000
_SHOWN_WORDS = 5
# Words that files use for a missing cell: those that are hardly a value, and others.
_DATE_CODE = re.compile(r".*(9999|2999|1900.01.01|01.01.1900|1899|1111|0001).*")
_SURE_CODE = re.compile(r"-?(9{3,}([.,]\d+)?|9{2,}[.,]9+)")
_FAR_ZERO = 0.25  # distance of 0 from the bounds, in widths of them, if it is no value
_LIKELY_CODE = re.compile(r"-?(9{2,}|8{2,}|7{2,}|9+[78])([.,](8+|7+|0+))?|-[1789]")


@dataclass(frozen=True)
class Doubt:
    """Another meaning of a column's cells, and the setting that would read them so."""

    sentence: str  # it quotes words, so it is for the owner alone
    remedy: Remedy | None = None
    inverts: bool = False  # if a truth value would count as its opposite


def sign_doubts(source: Any, schema: Schema) -> Mapping[str, Doubt]:
    """Return the columns of numbers of a text file whose points or commas have two meanings.

    A sign before exactly three digits is a decimal sign or groups thousands. Other numbers in the
    first lines, or the bounds, may decide; otherwise the column is in doubt.
    """
    columns = [column for column in schema.columns if column.type in ("number", "integer")]
    if not columns or not is_text_table(source):
        return {}
    found: dict[str, Doubt] = {}
    headers = [column.header or column.name for column in columns]
    cells = _first_cells(Path(source), schema, headers)
    for sign, other in (".,", ",."):
        groups = schema.thousands == sign
        if sign == "," and not groups and schema.decimal != ",":
            continue  # such cells are not understood
        one = re.compile(rf"[+-]?[1-9]\d{{0,2}}\{sign}\d{{3}}")
        decimal = re.compile(rf"[+-]?(\d{{1,3}}(\{other}\d{{3}})+|\d*)\{sign}\d+")
        grouped = re.compile(rf"[+-]?[1-9]\d{{0,2}}(\{sign}\d{{3}})+(\{sign}\d{{3}}|\{other}\d*)")
        every = [word for words in cells for word in words if sign in word]
        is_decimal = any(decimal.fullmatch(word) and not one.fullmatch(word) for word in every)
        is_group = any(grouped.fullmatch(word) for word in every)
        if is_group == groups and is_decimal != groups:
            continue  # other cells of the file agree with the settings
        if groups and not is_decimal:
            continue  # the owner declared it
        for column, words in zip(columns, cells, strict=True):
            doubtful = [word for word in words if one.fullmatch(word)]
            otherwise = [float(word.replace(sign, "." if groups else "")) for word in doubtful]
            within = sum(column.min <= value <= column.max for value in otherwise)
            if 2 * within > len(doubtful) and column.step is None:
                found[column.name] = _of_sign(column, doubtful, sign, groups=groups)
    return found


def _of_sign(column: Column, words: Sequence[str], sign: str, *, groups: bool) -> Doubt:
    read, instead = ("thousands", "decimals") if groups else ("decimals", "thousands")
    remedy = None if groups else Remedy("thousands", sign)
    how = "read this file with other signs" if remedy is None else str(remedy)
    return Doubt(
        f"column {column.name!r}: {_quoted(Counter(words))} read as {read}, but may be "
        f"{instead}: {how}",
        remedy,
    )


def _first_cells(path: Path, schema: Schema, names: Sequence[str]) -> list[list[str]]:
    """Return the cells of some columns in the first lines of a text file, as texts."""
    label = f"file {str(path)!r}"
    header = read_header(path, label, dialect_of(schema), schema.headers)
    with readable(label), stream_of(path, header.dialect.encoding) as stream:
        start = stream.read(_SAMPLE_BYTES)
    try:
        text = start.decode()
    except UnicodeDecodeError:  # as in a cell, or in the middle of a letter
        text = start.decode("latin1")
    lines = re.split(r"\r\n|[\r\n]", text)[1 : _SAMPLE_LINES + 1]
    places = [header.names.index(name) for name in names if name in header.names]
    rows: list[list[str]] = []
    with suppress(csv.Error):  # a byte 0, or a cell of more than 128 KiB
        every = csv.reader(lines, delimiter=header.dialect.delimiter)
        rows += (row for row in every if len(row) == len(header.names))
    if len(places) < len(names):  # names in another Unicode form
        return [[] for _ in names]
    return [[row[place].strip() for row in rows] for place in places]


CODES = (9.0, 99.0, 999.0, 9999.0, -1.0, -9.0, -99.0, -999.0)
"""Numbers that often mark a missing cell."""
_LEAST_CODES, _LEAST_GAP = 3, 2.0  # cells with a code, and its distance from all other numbers


def code_hint(column: Column, counts: Mapping[float, int], low: float, high: float) -> str:
    """Return a sentence on a code for missing cells within the bounds; empty if there is none.

    Parameters
    ----------
    counts : mapping of a number in `CODES` to the number of its cells
    low, high : float
        The least and the largest of all other numbers.
    """
    if column.type not in ("number", "integer") or not low <= high:
        return ""
    gap = max(_LEAST_GAP, (high - low) / 10)
    words = {
        f"{code:g}": count
        for code, count in counts.items()
        if count >= _LEAST_CODES
        and column.min <= code <= column.max
        and not low - gap < code < high + gap
    }
    if not words:
        return ""
    remedy = Remedy("absent", (*column.absent, *words), column.name)
    return (
        f"Column {column.name!r}: {_quoted(Counter(words))} far from all other cells; if it marks "
        f"missing cells: {remedy}."
    )


def code_doubt(column: Column, outside: Counter[str]) -> Doubt | None:
    """Return the doubt on cells out of range that are clipped, but look like a missing value.

    Parameters
    ----------
    outside : Counter of str
        The cells out of range.
    """
    words: Counter[str] = Counter()
    for word, count in outside.items():
        words[word.removesuffix(".0")] += count
    sure = _DATE_CODE if column.type == "date" else _SURE_CODE
    # A year 0 is no early year; 0 rooms, with 1 as the bound, may be clipped.
    far = min(abs(column.min), abs(column.max)) > _FAR_ZERO * (column.max - column.min)
    zero = {"0"} if far and column.type in ("number", "integer") else set[str]()
    likely = Counter(
        {word: n for word, n in words.items() if word in zero or _LIKELY_CODE.fullmatch(word)}
    )
    # A value of this kind is a code if it is more frequent than each other value out of range.
    most = max((n for word, n in words.items() if word not in likely), default=0)
    codes = Counter(
        {word: n for word, n in words.items() if sure.fullmatch(word) or likely[word] > most}
    )
    if not codes or column.out_of_range == "drop":
        return None
    remedy = Remedy("absent", (*column.absent, *sorted(codes)), column.name)
    return Doubt(
        f"column {column.name!r}: {_quoted(codes)} out of range and may mark missing cells: "
        f"{remedy}",
        remedy,
    )


def _quoted(words: Counter[str]) -> str:
    return ", ".join(repr(word[:40]) for word, _ in words.most_common(_SHOWN_WORDS))
