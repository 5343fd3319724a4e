"""What reading a source lost, and what may mend it: for the eyes of its owner alone.

No record may stop a job, so a file that was saved with decimal commas joins one as if it were
empty. Whoever sits at the file must hear of it. A report has exact counts and may quote cells: it
belongs in the owner's channel (terminal, notebook, console), and is never written or sent.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from cloister.core.arrays import Flags, Floats, Integers
from cloister.core.declared import declarations
from cloister.data.cells import Coded, shown
from cloister.data.encoding import ABSENT, MISSING, OUTSIDE, WRONG

if TYPE_CHECKING:
    from cloister.data.rules import Judged, Rules
    from cloister.data.schema import Column, Schema
    from cloister.data.sources import Raw
    from cloister.data.units import UnitLimit

LOCAL_NOTE = "local only: exact counts of the records, not a release"
_LOOKED_AT = 1000  # cells of a column and chunk that are searched for words
_SHOWN_WORDS = 5
_YES = frozenset(
    [
        *("j", "ja", "jawohl", "wahr", "oui", "o", "vrai", "si", "sí", "s", "sim", "da", "tak"),
        *("ano", "igen", "evet", "vero", "verdadero", "x"),
    ]
)
_NO = frozenset(
    [
        *("nein", "falsch", "non", "faux", "no", "não", "nao", "nie", "ne", "nem", "hayır", "nej"),
        *("neen", "net", "falso"),
    ]
)
_DATES = (  # how dates look, and their format where that is certain
    (r"\d{1,2}\.\d{1,2}\.\d{4}", "%d.%m.%Y"),
    (r"\d{1,2}\.\d{1,2}\.\d{2}", "%d.%m.%y"),
    (r"\d{4}/\d{1,2}/\d{1,2}", "%Y/%m/%d"),
    (r"\d{1,2}/\d{1,2}/\d{4}", ""),
    (r"\d{1,2}-\d{1,2}-\d{4}", ""),
)


@dataclass(frozen=True)
class Remedy:
    """A reading setting that may mend a column. It is local: silos do not agree on it.

    Parameters
    ----------
    key : str
        Of the schema or, where `column` is given, of that column.
    value : object
        As a schema has it; None where the owner must choose it.
    """

    key: str
    value: Any
    column: str | None = None

    def __str__(self) -> str:
        return f"{self.key} = {_toml(self.value)}"

    @property
    def is_complete(self) -> bool:
        """Whether the owner has nothing to choose."""
        parts = self.value.values() if isinstance(self.value, Mapping) else (self.value,)
        return None not in parts


def _toml(value: Any) -> str:
    if value is None:
        return "..."
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_toml(part)}" for k, part in value.items()) + " }"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


@dataclass(frozen=True)
class ColumnReading:
    """Exact counts of one column: local only, not a release."""

    name: str
    missing: int
    type_errors: int
    unknown: int  # cells that are none of the categories
    out_of_range: int
    out_of_range_share: float  # of all rows
    lost: int  # rows that are left out for this column
    lost_values: tuple[str, ...]  # of several rows, all of which are left out
    constant: bool  # every value that is there is the same
    cause: str | None = None  # what the cells that were not understood have in common
    remedy: Remedy | None = None
    needed: bool = True  # by the job; a bad cell in another column leaves no row out
    drops: tuple[bool, bool] = (True, True)  # rows: for an absent cell, for one out of range

    @property
    def cause_and_remedy(self) -> str:
        """The cause and, as a schema has it, the setting that may mend it."""
        remedy = "" if self.remedy is None else f": {self.remedy}"
        return f"{self.cause or ''}{remedy}"

    @property
    def sentence(self) -> str:
        """What the owner should know of the column; empty if there is nothing."""
        rows = f" ({self.lost:,} rows)" if self.lost else ""
        if self.cause:
            return f"{_capital(self.cause_and_remedy)}{rows}."
        if not self.lost:
            return ""
        absent, outside = self.drops
        found = [
            ("missing", self.missing * absent),
            ("of the wrong type", self.type_errors * absent),
            ("of no known category", self.unknown * absent),
            ("out of range", self.out_of_range * outside),
        ]
        cells = ", ".join(f"{count:,} {what}" for what, count in found if count)
        return (
            f"Column {self.name!r}: {cells}{rows}; leave the column out, or give it another "
            "rule for such cells."
        )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


@dataclass(frozen=True)
class ReadingReport:
    """What reading a source found: local only, exact counts of the records, not a release."""

    source: str
    rows: int
    used: int  # rows that are left for the columns that were asked for
    bad_lines: Annotated[int, "lines with too many fields or open quotes, or rows without a basket"]
    unknown_items: Annotated[int, "items outside the catalogue"]
    without_unit: Annotated[int, "rows without a unit"]
    beyond_max_rows: Annotated[int, "rows beyond max_rows of their unit"]
    merged_units: tuple[tuple[str, ...], ...]  # spellings that are one unit
    columns: tuple[ColumnReading, ...]
    items: int = field(default=0, kw_only=True)  # of baskets
    layout: str = field(default="", kw_only=True)  # of baskets, that the first line suggests
    float_unit: str = field(default="", kw_only=True)  # the unit column, if its cells are floats

    @property
    def lost(self) -> int:
        """Rows that are left out, but for those beyond ``max_rows``."""
        return self.rows - self.used - self.beyond_max_rows

    @property
    def row_share(self) -> float:
        """Share of the rows that are left out."""
        return self.lost / max(self.rows, 1)

    @property
    def item_share(self) -> float:
        """Share of the items of baskets that are outside the catalogue."""
        return self.unknown_items / max(self.items, 1)

    @property
    def float_units(self) -> str:
        """What the owner should know of identifiers that are floats; empty if none are."""
        if not self.float_unit:
            return ""
        return (
            f"Unit column {self.float_unit!r} of {self.source} holds floats, which cannot tell "
            "identifiers from 2^53 on apart; give integers or texts."
        )

    @property
    def causes(self) -> tuple[str, ...]:
        """Sentences on columns whose cells were not understood, for the owner."""
        return tuple(column.cause_and_remedy for column in self.columns if column.cause)

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """Settings that may mend the reading."""
        found = [column.remedy for column in self.columns if column.remedy]
        return tuple(one for i, one in enumerate(found) if one not in found[:i])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, marked as local."""
        return {"note": LOCAL_NOTE, **asdict(self), "causes": self.causes}

    def counts(self) -> list[tuple[str, int]]:
        """Return what was left out of the rows, each with its name for people."""
        named = [one for one in declarations(ReadingReport) if one.help]
        return [(one.help, getattr(self, one.name)) for one in named]

    def sentences(self) -> Iterator[str]:
        """Yield what the owner should know, the most important first."""
        if not self.rows:
            yield _capital(f"{self.source} has no rows.")
        if self.lost:
            yield (
                f"{self.lost:,} of {self.rows:,} rows of {self.source} ({self.row_share:.1%}) are "
                "left out."
            )
        if self.unknown_items:
            yield (
                f"{self.unknown_items:,} of {self.items:,} items of {self.source} "
                f"({self.item_share:.1%}) are outside the catalogue."
            )
        if self.layout and 2 * self.unknown_items >= self.items:
            yield f"Its first line looks like another layout of baskets: {self.layout!r}."
        for column in sorted(self.columns, key=lambda one: -one.lost):
            if column.needed and column.sentence:
                yield column.sentence
        if self.without_unit:
            yield f"{self.without_unit:,} rows have no unit of privacy."
        if self.float_unit:
            yield self.float_units
        if self.bad_lines:
            yield (
                f"{self.bad_lines:,} lines have too many fields, open quotes or no basket; look at "
                "the delimiter and the header line."
            )

    def __str__(self) -> str:
        lines = [f"{self.source} ({LOCAL_NOTE})", f"{self.rows} rows, {self.used} used"]
        lines += [f"{count} {what}" for what, count in self.counts() if count]
        lines += [f"one unit: {', '.join(map(repr, names))}" for names in self.merged_units]
        for column in self.columns:
            lines.append(
                f"{column.name}: {column.out_of_range_share:.2%} out of range, {column.missing} "
                f"missing, {column.type_errors} of the wrong type"
                + (f", {column.unknown} of no known category" if column.unknown else "")
                + (", constant" if column.constant else "")
            )
        return "\n".join([*lines, *self.causes])


class Tally:
    """Counts what one pass over a source finds; exact, so they stay in this process."""

    def __init__(
        self,
        label: str,
        schema: Schema,
        rules: Rules,
        on_rows: Callable[[int], None] | None = None,
        layout: str = "",
    ) -> None:
        d = len(schema.columns)
        self._label, self._schema, self._rules, self._on_rows = label, schema, rules, on_rows
        self._rows = self._used = self._bad_lines = self._items = self._unknown = 0
        self._float_unit, self._layout = False, layout
        self._missing, self._wrong, self._outside, self._lost = np.zeros((4, d), dtype=np.int64)
        self._low, self._high = np.full(d, np.inf), np.full(d, -np.inf)
        self._words: list[Counter[str]] = [Counter() for _ in range(d)]
        sizes = [_n_values(column) for column in schema.columns]
        self._seen = [np.zeros(size, dtype=np.int64) for size in sizes]
        self._kept = [np.zeros(size, dtype=np.int64) for size in sizes]

    def add(self, raw: Raw, judged: Judged, keep: Flags) -> None:
        """Count a chunk, of which the rows in `keep` are used."""
        flags, n = judged.flags, len(judged.flags)
        self._rows += n + raw.bad_lines
        self._bad_lines += raw.bad_lines
        self._unknown, self._items = self._unknown + raw.unknown_items, self._items + raw.items
        self._used += int(keep.sum())
        self._float_unit |= _is_float(raw.units)
        if raw.no_record is not None:
            self._bad_lines += int(raw.no_record.sum())
        if self._on_rows:
            self._on_rows(self._rows)
        rows, columns, marks = judged.marked
        if len(rows):
            d = flags.shape[1]
            for counts, which in (
                (self._missing, marks & ABSENT == MISSING),
                (self._wrong, marks & WRONG != 0),
                (self._outside, marks & OUTSIDE != 0),
                (self._lost, marks & self._rules.dropping[columns] != 0),
            ):
                counts += np.bincount(columns[which], minlength=d)
            wrong = marks & WRONG != 0
            for j in np.unique(columns[wrong]).tolist():
                self._look_at(j, raw.cells, rows[wrong & (columns == j)])
        self._count_values(judged, keep)

    def _count_values(self, judged: Judged, keep: Flags) -> None:
        for j, seen in enumerate(self._seen):
            if not len(seen) or not len(keep):
                continue
            there = (judged.flags[:, j] & (ABSENT | OUTSIDE)) == 0
            codes = np.asarray(judged.cells[j], dtype=np.float64)
            seen += _counts(codes, there, len(seen))
            self._kept[j] += _counts(codes, there & judged.usable, len(seen))

    def _look_at(self, j: int, cells: Any, at: Integers) -> None:
        """Note the words of a column that were not understood."""
        column = cells[:, j] if isinstance(cells, np.ndarray) else cells[j]
        self._words[j].update(_words_at(column, at[:_LOOKED_AT]))

    def spans(self, judged: Judged) -> None:
        """Note the least and the largest number of each column, of cells that count."""
        values = np.where(judged.flags & ABSENT, np.nan, judged.values)
        self._low = np.fmin(self._low, np.fmin.reduce(values, axis=0, initial=np.inf))
        self._high = np.fmax(self._high, np.fmax.reduce(values, axis=0, initial=-np.inf))

    def report(self, limit: UnitLimit) -> ReadingReport:
        """Return what was found."""
        return ReadingReport(
            source=self._label,
            rows=self._rows,
            used=self._used,
            bad_lines=self._bad_lines,
            unknown_items=self._unknown,
            items=self._items,
            layout=self._layout,
            float_unit=self._schema.unit if self._float_unit else "",
            without_unit=limit.without_unit,
            beyond_max_rows=limit.beyond,
            merged_units=limit.merged,
            columns=tuple(map(self._column, range(len(self._schema.columns)))),
        )

    def _column(self, j: int) -> ColumnReading:
        column, words, wrong = self._schema.columns[j], self._words[j], int(self._wrong[j])
        lost = int(self._lost[j])
        names = [_value_name(column, i) for i in np.flatnonzero(self._seen[j]).tolist()]
        cause, remedy = why(column, self._schema, words, names) if words else (None, None)
        gone = [
            (_value_name(column, i), int(self._seen[j][i]))
            for i in np.flatnonzero(self._kept[j] == 0).tolist()
        ]
        if lost and len(self._seen[j]) and np.isnan(column.fill_value):
            gone += words.most_common(_SHOWN_WORDS)
        values = [value for value, count in gone if count > 1]  # one is an odd cell
        return ColumnReading(
            name=column.name,
            missing=int(self._missing[j]),
            type_errors=0 if column.categories else wrong,
            unknown=wrong if column.categories else 0,
            out_of_range=int(self._outside[j]),
            out_of_range_share=float(self._outside[j] / max(self._rows, 1)),
            lost=lost,
            lost_values=tuple(values),
            constant=bool(self._low[j] == self._high[j]),
            cause=cause,
            remedy=remedy,
            needed=bool(self._rules.used[j]),
            drops=(bool(self._rules.fatal[j] & ABSENT), bool(self._rules.fatal[j] & OUTSIDE)),
        )


def _is_float(units: Any) -> bool:
    """Return whether a column of identifiers has a float type; of objects, each is by itself."""
    kind = str(getattr(units, "dtype", getattr(units, "type", "")))
    return kind.lower().startswith(("float", "double", "halffloat"))


def _n_values(column: Column) -> int:
    """Return how many values a column has that a reader would count by; 0 for numbers."""
    return 2 if column.type == "boolean" else len(column.categories)


def _value_name(column: Column, code: int) -> str:
    return column.categories[code] if column.categories else ("false", "true")[code]


def _counts(codes: Floats, rows: Flags, size: int) -> Integers:
    return np.bincount(codes[rows].astype(np.int64), minlength=size)[:size]


def _words_at(column: Any, at: Integers) -> Iterator[str]:
    """Yield cells of a column as texts that an owner would recognise."""
    if isinstance(column, Coded):
        column, at = column.distinct, column.places[at]
    for i in at.tolist():
        yield shown(column[i])


# Causes and remedies ------------------------------------------------------------------------------


def why(
    column: Column, schema: Schema, words: Counter[str], understood: Sequence[str] = ()
) -> tuple[str, Remedy | None]:
    """Return what the words that were not understood have in common, and what may mend it.

    Parameters
    ----------
    understood : sequence of str
        Categories, or ``"false"`` and ``"true"``, that other cells of the column hold.

    Returns
    -------
    sentence : str
        Without the remedy. It quotes words, so it is for the owner alone.
    remedy : Remedy or None
    """
    shown = ", ".join(repr(word[:40]) for word, _ in words.most_common(_SHOWN_WORDS))
    head = f"column {column.name!r}: {shown} not understood"
    if column.type == "boolean" and "false" not in understood and _are_one_and_two(words):
        remedy = Remedy("spellings", {"true": ("2",), "false": ("1",)}, column.name)
        return f"{head}; 1 and 2 may stand for no and yes, as in R", remedy
    if any(re.search("[\ufffd\x80-\x9f]", word) for word in words):
        return f"{head}; name the encoding of the file", Remedy("encoding", None)
    for find in (_as_booleans, _as_dates, _as_numbers, _as_categories):
        if found := find(column, schema, words):
            text, remedy_found = found
            return f"{head}; {text}", remedy_found
    return f"{head} as {column.type}", None


Finding = tuple[str, Remedy | None]


def _are_one_and_two(words: Iterable[str]) -> bool:
    """Return whether 2 was not understood, and nothing else: a boolean takes 1 for true."""
    numbers = {word.removesuffix(".0") for word in words}
    return "2" in numbers and numbers <= {"1", "2"}


def _as_booleans(column: Column, _: Schema, words: Counter[str]) -> Finding | None:
    if column.type != "boolean":
        return None
    also = {key: list(value) for key, value in column.spellings.items()}
    found = False
    for key, known in (("true", _YES), ("false", _NO)):
        if said := sorted(word for word in words if word.lower() in known):
            also[key], found = [*also.get(key, []), *said], True
    if found:
        remedy = Remedy("spellings", {k: tuple(value) for k, value in also.items()}, column.name)
        return "they look like a boolean", remedy
    if len(words) > 2:
        return None
    remedy = Remedy("spellings", {"true": None, "false": None}, column.name)
    return "say which of them is true", remedy


def _as_dates(column: Column, _: Schema, words: Counter[str]) -> Finding | None:
    for pattern, form in _DATES:
        if _most(words, rf"\s*{pattern}(\s.*)?"):
            if column.type != "date":
                return 'they look like dates; give it type = "date"', None
            form = form or _day_or_month_first(words)
            remedy = Remedy("format", form or None, column.name)
            return "say how dates are written", remedy
    return None


def _day_or_month_first(words: Iterable[str]) -> str:
    """Return the format of dates such as 31/12/2021, where a day beyond 12 shows it."""
    parts = [re.split(r"([/-])", word.strip())[:5] for word in words]
    triples = [(int(a), sign, int(b)) for a, sign, b, *_ in parts if a.isdigit() and b.isdigit()]
    if any(first > 12 for first, _, _ in triples):
        return f"%d{triples[0][1]}%m{triples[0][1]}%Y"
    if any(second > 12 for _, _, second in triples):
        return f"%m{triples[0][1]}%d{triples[0][1]}%Y"
    return ""


def _as_numbers(column: Column, schema: Schema, words: Counter[str]) -> Finding | None:
    if column.type not in ("number", "integer"):
        return None
    if schema.decimal == "." and _most(words, r"\s*[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+\s*"):
        remedy = Remedy("decimal", ",")
        return "they have a decimal comma", remedy
    if not schema.thousands:
        for sign in ".,'’ ":
            if sign != schema.decimal and _most(
                words, rf"\s*[+-]?\d{{1,3}}({re.escape(sign)}\d{{3}})+.*"
            ):
                remedy = Remedy("thousands", sign)
                return "they have signs between thousands", remedy
    if _most(words, r"\s*[+-]?\d+([.,]\d*)?\s*[^\d\s.,]+\s*"):
        return "they have units behind the numbers; save them without", None
    return None


def _as_categories(column: Column, _: Schema, words: Counter[str]) -> Finding | None:
    if not column.categories:
        return None
    plain = {name.casefold(): name for name in column.categories}
    also = {key: list(value) for key, value in column.spellings.items()}
    for word in sorted(words):
        if near := _category_near(word.casefold(), plain):
            also[near] = [*also.get(near, []), word]
    if also == {key: list(value) for key, value in column.spellings.items()}:
        if len(words) > len(column.categories) or len(column.categories) > _SHOWN_WORDS:
            return "they are none of its categories", None
        remedy = Remedy("spellings", dict.fromkeys(column.categories), column.name)
        return "say which category each of them is", remedy
    remedy = Remedy("spellings", {key: tuple(value) for key, value in also.items()}, column.name)
    return "list them as other spellings of categories", remedy


def _category_near(word: str, plain: Mapping[str, str]) -> str | None:
    """Return the category that a word is almost, or that alone begins with it."""
    near = difflib.get_close_matches(word, plain, 1, 0.8)
    near = near or [name for name in plain if word and name.startswith(word)]
    return plain[near[0]] if len(near) == 1 else None


def _most(words: Counter[str], pattern: str) -> bool:
    """Return whether most cells with these words match a pattern as a whole."""
    found = sum(count for word, count in words.items() if re.fullmatch(pattern, word))
    return 2 * found > words.total()
