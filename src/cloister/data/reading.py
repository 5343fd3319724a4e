"""Reports on the cells that a reader could not use and their remedies, for the owner alone.

No record may stop a job, so a file with decimal commas would join a job as if it were empty. The
owner of the file must be informed. A report has exact counts and may quote cells, so it appears
only in the owner's terminal, notebook or console. It is never stored or sent.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from cloister.core.arrays import Flags, Floats, Integers
from cloister.core.declared import declarations
from cloister.core.display import Table
from cloister.core.numerals import counted
from cloister.data.cells import CellType, Coded, shown
from cloister.data.doubts import CODES, Doubt, code_doubt, code_hint
from cloister.data.encoding import ABSENT, MISSING, OUTSIDE, WRONG
from cloister.data.remedies import Remedy

if TYPE_CHECKING:
    from cloister.data.rules import Judged, Rules
    from cloister.data.schema import Column, Schema
    from cloister.data.sources import Raw
    from cloister.data.units import UnitLimit

LOCAL_NOTE = "local only: exact counts of the records, not a release"
_LOOKED_AT = 1000  # cells per column and chunk that are searched, so that a report stays cheap
_LOOKED_BEYOND = 100  # of those out of range, which may be many in a column that is clipped
_SHOWN_WORDS = 5
CLIPPED_SHARE = 0.05  # of the values of a column that may be clipped or filled in without a word
_FOOTER_ROWS = 5  # at the end, among which a line of totals is looked for
_FOOTER_WIDTH = 2  # columns of a table in which a row with one cell may be a record
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
_DATES = (  # patterns of dates, and their formats unless day and month are ambiguous
    (r"\d{1,2}\.\d{1,2}\.\d{4}", "%d.%m.%Y"),
    (r"\d{1,2}\.\d{1,2}\.\d{2}", "%d.%m.%y"),
    (r"\d{4}/\d{1,2}/\d{1,2}", "%Y/%m/%d"),
    (r"\d{1,2}([/-])\d{1,2}\1\d{4}", ""),
    (r"\d{1,2}([/-])\d{1,2}\1\d{2}", ""),
)
_ISO_DAY = r"\s*\d{4}-\d{2}-\d{2}(\D.*)?"
_ARE_DATES = 'they look like dates; set type = "date", with days as bounds, such as 2020-01-31'
_SERIAL = r"[2-6]\d{4}(\.\d+)?"  # days since 1899-12-30 in a spreadsheet, 1954 to 2091
_SIGN = "[+\\-\u2212\u2013]?"  # two of them only look like a minus sign
_NUMBERS = {
    "their minus sign is another sign; save them with -": r"[\u2212\u2013]\d.*",
    "brackets may mean negative numbers; save them with -": r"\(\d+([.,]\d*)?\)",
    "they are limits, not numbers; agree on the number that stands for each": (
        r"[<>\u2264\u2265]=?\s*\d+([.,]\d*)?"
    ),
    "they have units before the numbers; save them without units": (
        r"[^\d\s.,()+\-]+\s*[+-]?\d+([.,]\d*)?"
    ),
    "they have units after the numbers; save them without units": (
        r"[+-]?\d+([.,]\d*)?\s*[^\d\s.,]+"
    ),
}
"""Causes of texts that are numbers to a person, and their patterns."""
_TIMES = ((r"\d{1,2}:\d{2}", " %H:%M"), (r"\d{1,2}:\d{2}:\d{2}", " %H:%M:%S"))


@dataclass(frozen=True)
class ColumnReading:
    """Exact counts of one column: local only, not a release."""

    name: str
    missing: int
    type_errors: int
    unknown: int  # cells in no category of the schema
    out_of_range: int
    out_of_range_share: float  # of all rows
    lost: int  # rows that are left out because of this column
    lost_values: tuple[str, ...]  # values of several rows, all of which are left out
    constant: bool  # all values present are the same
    cause: str | None = None  # the common feature of the cells that could not be read
    remedy: Remedy | None = None
    needed: bool = True  # by the job; a bad cell in another column excludes no row
    drops: tuple[bool, bool] = (True, True)  # rows: for an absent cell, for one out of range
    doubt: Doubt | None = None  # if its cells were read, but may mean something else
    above: int = 0  # cells out of range that are above it
    hint: str = ""  # on cells that are probably right
    keeps_missing: bool = False  # for tasks that complete the cells

    def is_guess(self, known: Mapping[str, Collection[str]]) -> bool:
        """Return True if the remedy adds a word to a category with other letters.

        Parameters
        ----------
        known : mapping of str to words
            The spellings of the column so far.
        """
        if self.remedy is None or not isinstance(self.remedy.value, Mapping):
            return False
        return any(
            word not in known.get(name, ()) and _letters(word) != _letters(name)
            for name in set(self.remedy.value) - {"true", "false"}
            for word in self.remedy.value[name] or ()
        )

    @property
    def cause_and_remedy(self) -> str:
        """The cause and the setting that may correct it, as in a schema."""
        remedy = "" if self.remedy is None else f": {self.remedy}"
        return f"{self.cause or ''}{remedy}"

    @property
    def sentence(self) -> str:
        """A sentence for the owner on the column; empty if it has no problem."""
        rows = f" ({counted(self.lost, 'row')})" if self.lost else ""
        if self.cause:
            return f"{capital(self.cause_and_remedy)}{rows}."
        if not self.lost:
            return ""
        absent, outside = self.drops
        defects = [
            ("missing", self.missing * absent),
            ("of the wrong type", self.type_errors * absent),
            ("in no category", self.unknown * absent),
            ("out of range", self.out_of_range * outside),
        ]
        cells = ", ".join(f"{count:,} {what}" for what, count in defects if count)
        kept = (
            "; only imputed-regression, in Python DPGeneralizedLinearRegressor(missing='impute'), "
            "completes them"
        )
        keep = " ('keep' for imputed-regression)" * (absent and not self.keeps_missing)
        return (
            f"Column {self.name!r}: {cells}{rows}{kept if self.keeps_missing else ''}; leave out "
            "the column, or these rows if it is the target, or give it another rule "
            f"'missing'{keep} or 'out_of_range' in a schema or codebook."
        )

    @property
    def not_completed(self) -> ColumnReading:
        """The counts for a task that does not complete the column's missing cells."""
        if not self.keeps_missing or self.drops[0]:
            return self
        absent = self.missing + self.type_errors + self.unknown
        lost = self.lost + absent * self.needed
        return replace(self, lost=lost, drops=(True, self.drops[1]))


def capital(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def clip_sentence(name: str, source: str, present: int, below: int, above: int) -> str:
    """Return a sentence on a column of so many values; empty if few are beyond its bounds."""
    if below + above <= CLIPPED_SHARE * max(present, 1):
        return ""
    sides = [
        f"{count / present:.1%} of its values are {side}"
        for side, count in (("below", below), ("above", above))
        if count
    ]
    return (
        f"Column {name!r} of {source}: {' and '.join(sides)} its bounds and are "
        "clipped to them; check its unit, or give wider bounds from public knowledge."
    )


@dataclass(frozen=True)
class ReadingReport:
    """Exact counts of the records of a source: local only, not a release."""

    source: str
    rows: int
    used: int  # rows that are usable for the columns of the job
    bad_lines: Annotated[int, "lines with too many fields or open quotes, or rows without a basket"]
    unknown_items: Annotated[int, "items outside the catalogue"]
    without_unit: Annotated[int, "rows without a unit"]
    beyond_max_rows: Annotated[int, "rows beyond max_rows of their unit"]
    merged_units: tuple[tuple[str, ...], ...]  # spellings that are one unit
    columns: tuple[ColumnReading, ...]
    items: int = field(default=0, kw_only=True)  # of baskets
    layout: str = field(default="", kw_only=True)  # of baskets, that the first line suggests
    float_unit: str = field(default="", kw_only=True)  # the unit column, if its cells are floats
    repeated: int = field(default=0, kw_only=True)  # rows beyond max_rows that equal a used one
    limit: str = field(default="", kw_only=True)  # max_rows and the unit, in words
    not_admitted: Annotated[int, "rows of units that arrived in earlier periods"] = field(
        default=0, kw_only=True
    )
    # Numbers of used rows by their columns with kept missing cells.
    lacking: tuple[tuple[tuple[str, ...], int], ...] = field(default=(), kw_only=True)

    def for_task(self, completed: Collection[str] = ()) -> ReadingReport:
        """Return the report for a task that completes missing cells of some columns only.

        Rows that lack a cell of another column count as excluded, whatever its rule ``missing``.
        """
        known = frozenset(completed)
        usable = tuple(pair for pair in self.lacking if known.issuperset(pair[0]))
        lost = sum(n for _, n in self.lacking) - sum(n for _, n in usable)
        columns = tuple(
            column if column.name in known else column.not_completed for column in self.columns
        )
        return replace(self, used=self.used - lost, lacking=usable, columns=columns)

    @property
    def lost(self) -> int:
        """Number of rows that are left out, without those that repeat a used row of their unit."""
        return self.rows - self.used - self.repeated

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
        """A sentence for the owner on identifiers that are floats; empty if there are none."""
        if not self.float_unit:
            return ""
        return (
            f"Unit column {self.float_unit!r} of {self.source} has floats, which cannot "
            "distinguish identifiers of 2^53 or more; give integers or texts."
        )

    @property
    def doubts(self) -> tuple[str, ...]:
        """Sentences for the owner on columns that may mean something else."""
        found = [column.doubt for column in self.columns if column.needed and column.doubt]
        return tuple(f"{capital(doubt.sentence)}." for doubt in found)

    @property
    def clips(self) -> tuple[str, ...]:
        """Sentences for the owner on columns with many values that are clipped or filled in."""
        pairs = ((self._clip(column), self._fill(column)) for column in self.columns)
        return tuple(sentence for pair in pairs for sentence in pair if sentence)

    def _clip(self, column: ColumnReading) -> str:
        if not column.needed or column.drops[1]:
            return ""
        present = self.rows - self.bad_lines - column.missing - column.type_errors
        below = column.out_of_range - column.above
        return clip_sentence(column.name, self.source, present, below, column.above)

    def _fill(self, column: ColumnReading) -> str:
        absent = column.missing + column.type_errors + column.unknown
        share = absent / max(self.rows - self.bad_lines, 1)
        if not column.needed or column.drops[0] or share <= CLIPPED_SHARE:
            return ""
        what = (
            "are kept; the task completes them"
            if column.keeps_missing
            else "count as the value of its rule 'missing'; results include them"
        )
        return (
            f"Column {column.name!r} of {self.source}: {share:.1%} of its cells are missing or "
            f"not understood, and {what}."
        )

    @property
    def hints(self) -> tuple[str, ...]:
        """Sentences for the owner on cells that are probably right; they stop no run."""
        return tuple(column.hint for column in self.columns if column.needed and column.hint)

    @property
    def causes(self) -> tuple[str, ...]:
        """Sentences for the owner on columns whose cells could not be read."""
        return tuple(column.cause_and_remedy for column in self.columns if column.cause)

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """Settings that may correct the reading, each once."""
        remedies = [column.remedy for column in self.columns if column.remedy]
        # Not a set: the value of a remedy may be a mapping, which has no hash.
        return tuple(remedy for i, remedy in enumerate(remedies) if remedy not in remedies[:i])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, marked as local."""
        return {"note": LOCAL_NOTE, **asdict(self), "causes": self.causes}

    def counts(self) -> list[tuple[str, int]]:
        """Return the counts of excluded rows and items, each with a description."""
        described = [field for field in declarations(ReadingReport) if field.help]
        return [(field.help, getattr(self, field.name)) for field in described]

    def described(self) -> list[tuple[str, str]]:
        """Return the counts of rows, each with a description."""
        return [
            ("source", self.source),
            ("rows", f"{self.rows:,}"),
            ("rows used", f"{self.used:,}"),
            ("rows left out", f"{self.lost:,} ({self.row_share:.1%})"),
            *((what, f"{count:,}") for what, count in self.counts() if count),
        ]

    def table(self) -> Table:
        """Return the counts of each column of the job."""
        headings = ("column", "rows left out", "missing", "wrong type", "unknown category")
        rows = tuple(
            (
                column.name,
                f"{column.lost:,}",
                f"{column.missing:,}",
                f"{column.type_errors:,}",
                f"{column.unknown:,}",
                f"{column.out_of_range_share:.2%}",
                "constant" if column.constant else "",
            )
            for column in self.columns
            if column.needed
        )
        return Table("Columns", (*headings, "out of range", ""), rows)

    def sentences(self) -> Iterator[str]:
        """Yield sentences for the owner, the most important first."""
        if not self.rows:
            yield capital(f"{self.source} has no rows.")
        if self.lost:
            yield (
                f"{self.lost:,} of {self.rows:,} rows of {self.source} ({self.row_share:.1%}) are "
                "left out."
            )
        if (beyond := self.beyond_max_rows - self.repeated) > 0:
            yield (
                f"{beyond:,} of {self.rows:,} rows are beyond {self.limit}; only the first rows "
                "count."
            )
        if self.not_admitted:
            yield (
                f"{self.not_admitted:,} of {self.rows:,} rows have a unit that arrived in as many "
                "earlier periods as max_periods of the horizon allows; give the rows of new units."
            )
        if self.unknown_items:
            yield (
                f"{self.unknown_items:,} of {self.items:,} items of {self.source} "
                f"({self.item_share:.1%}) are outside the catalogue."
            )
        if self.layout and 2 * self.unknown_items >= self.items:
            yield f"Its first line looks like another layout of baskets: {self.layout!r}."
        for column in sorted(self.columns, key=lambda column: -column.lost):
            if column.needed and column.sentence:
                yield column.sentence
        yield from self.doubts
        if self.without_unit:
            yield f"{counted(self.without_unit, 'row')} without a privacy unit."
        if self.float_unit:
            yield self.float_units
        if self.bad_lines:
            yield (
                f"{self.bad_lines:,} lines have too many fields, open quotes or no basket; check "
                "the delimiter and the header line."
            )

    def __str__(self) -> str:
        lines = [f"{self.source} ({LOCAL_NOTE})", f"{counted(self.rows, 'row')}, {self.used} used"]
        lines += [f"{count} {what}" for what, count in self.counts() if count]
        lines += [f"one unit: {', '.join(map(repr, names))}" for names in self.merged_units]
        for column in self.columns:
            lines.append(
                f"{column.name}: {column.out_of_range_share:.2%} out of range, {column.missing} "
                f"missing, {column.type_errors} of the wrong type"
                + (f", {column.unknown} in no category" if column.unknown else "")
                + (", constant" if column.constant else "")
            )
        return "\n".join([*lines, *self.causes])


class Tally:
    """Exact counts of one pass over a source, which stay in this process."""

    def __init__(
        self,
        label: str,
        schema: Schema,
        rules: Rules,
        on_rows: Callable[[int], None] | None = None,
        layout: str = "",
        doubts: Mapping[str, Doubt] | None = None,
    ) -> None:
        d = len(schema.columns)
        self._doubts = doubts or {}
        self._label, self._schema, self._rules, self._on_rows = label, schema, rules, on_rows
        self._rows = self._used = self._bad_lines = self._items = self._unknown = 0
        self._float_unit, self._layout = False, layout
        self._lacking: Counter[tuple[str, ...]] = Counter()
        self._footer: int | None = None  # the column of a last row that has no other cell
        self._missing, self._wrong, self._outside, self._above, self._lost = np.zeros(
            (5, d), dtype=np.int64
        )
        self._low, self._high = np.full(d, np.inf), np.full(d, -np.inf)
        self._codes = np.zeros((len(CODES), d), dtype=np.int64)
        self._least, self._most = np.full(d, np.inf), np.full(d, -np.inf)  # without codes
        self._words: list[Counter[str]] = [Counter() for _ in range(d)]
        self._beyond: list[Counter[str]] = [Counter() for _ in range(d)]  # cells out of range
        self._respelled: dict[str, set[str]] = {
            column.name: set() for column in schema.columns if _is_respelled(column)
        }
        sizes = [_n_values(column) for column in schema.columns]
        self._seen = [np.zeros(size, dtype=np.int64) for size in sizes]
        self._kept = [np.zeros(size, dtype=np.int64) for size in sizes]

    def add(self, raw: Raw, judged: Judged, keep: Flags) -> None:
        """Count a chunk whose rows in `keep` are used."""
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
            self._see_lacking(judged, keep)
            d = flags.shape[1]
            outside = marks & OUTSIDE != 0
            for counts, selected in (
                (self._missing, marks & ABSENT == MISSING),
                (self._wrong, marks & WRONG != 0),
                (self._outside, outside),
                (self._above, outside & (judged.steps[rows, columns] > 0)),
                (self._lost, marks & self._rules.dropping[columns] != 0),
            ):
                counts += np.bincount(columns[selected], minlength=d)
            looked_at = ((self._words, WRONG, _LOOKED_AT), (self._beyond, OUTSIDE, _LOOKED_BEYOND))
            for words, bit, most in looked_at:
                found = marks & bit != 0
                for j in np.unique(columns[found]).tolist():
                    at = rows[found & (columns == j)][:most]
                    words[j].update(_words_at(_column_at(raw.cells, j), at))
        for j, column in enumerate(self._schema.columns):
            if column.name in self._respelled:
                at = np.arange(min(n, _LOOKED_AT))
                self._respelled[column.name].update(_words_at(_column_at(raw.cells, j), at))
        self._count_values(judged, keep)
        self._see_footer(judged)

    def _see_lacking(self, judged: Judged, keep: Flags) -> None:
        """Count the used rows by their columns with missing cells that are kept."""
        at = np.flatnonzero(self._rules.used & (self._rules.kept != 0))
        lacks = (judged.flags[:, at] & ABSENT)[keep] != 0
        patterns, counts = np.unique(lacks[lacks.any(axis=1)], axis=0, return_counts=True)
        for pattern, count in zip(patterns, counts.tolist(), strict=True):
            self._lacking[tuple(self._schema.names[j] for j in at[pattern])] += count

    def _see_footer(self, judged: Judged) -> None:
        """Note whether the last row with any cell has only one, as a line of totals has."""
        present = (judged.flags[-_FOOTER_ROWS:] & ABSENT) == 0
        rows = np.flatnonzero(present.any(axis=1))
        if not len(rows):
            return
        last = present[rows[-1]]
        is_used = judged.usable[-_FOOTER_ROWS:][rows[-1]]
        is_alone = is_used and last.sum() == 1 and len(last) > _FOOTER_WIDTH
        self._footer = int(last.argmax()) if is_alone else None

    def _count_values(self, judged: Judged, keep: Flags) -> None:
        for j, seen in enumerate(self._seen):
            if not len(seen) or not len(keep):
                continue
            present = (judged.flags[:, j] & (ABSENT | OUTSIDE)) == 0
            codes = np.asarray(judged.cells[j], dtype=np.float64)
            seen += _counts(codes, present, len(seen))
            self._kept[j] += _counts(codes, present & judged.usable, len(seen))

    def spans(self, judged: Judged) -> None:
        """Update the least and the largest number of each column from its usable cells."""
        values = np.where(judged.flags & ABSENT, np.nan, judged.values)
        self._low = np.fmin(self._low, np.fmin.reduce(values, axis=0, initial=np.inf))
        self._high = np.fmax(self._high, np.fmax.reduce(values, axis=0, initial=-np.inf))
        for i, code in enumerate(CODES):
            self._codes[i] += (values == code).sum(axis=0)
        values[np.isin(values, CODES)] = np.nan
        self._least = np.fmin(self._least, np.fmin.reduce(values, axis=0, initial=np.inf))
        self._most = np.fmax(self._most, np.fmax.reduce(values, axis=0, initial=-np.inf))

    def report(self, limit: UnitLimit) -> ReadingReport:
        """Return the report of the pass."""
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
            not_admitted=limit.not_admitted,
            repeated=limit.repeated,
            limit=f"max_rows = {self._schema.max_rows} of their {self._schema.unit!r}"
            if self._rules.max_rows
            else "",
            lacking=tuple(self._lacking.items()),
            merged_units=limit.merged,
            columns=tuple(map(self._column, range(len(self._schema.columns)))),
        )

    def _column(self, j: int) -> ColumnReading:
        column, words, wrong = self._schema.columns[j], self._words[j], int(self._wrong[j])
        lost = int(self._lost[j])
        names = [_value_name(column, i) for i in np.flatnonzero(self._seen[j]).tolist()]
        cause, remedy = why(column, self._schema, words, names) if words else (None, None)
        lost_values = [
            (_value_name(column, i), int(self._seen[j][i]))
            for i in np.flatnonzero(self._kept[j] == 0).tolist()
        ]
        if lost and len(self._seen[j]) and np.isnan(column.fill_value):
            lost_values += words.most_common(_SHOWN_WORDS)
        values = [value for value, count in lost_values if count > 1]  # once may be a typing error
        return ColumnReading(
            name=column.name,
            missing=int(self._missing[j]),
            type_errors=0 if column.categories else wrong,
            unknown=wrong if column.categories else 0,
            out_of_range=int(self._outside[j]),
            out_of_range_share=float(self._outside[j] / max(self._rows, 1)),
            lost=lost,
            lost_values=tuple(values),
            # What is not understood may be another value.
            constant=bool(self._low[j] == self._high[j]) and not wrong,
            cause=cause,
            remedy=remedy,
            needed=bool(self._rules.used[j]),
            drops=(bool(self._rules.fatal[j] & ABSENT), bool(self._rules.fatal[j] & OUTSIDE)),
            doubt=self._doubt(j, names, cause),
            above=int(self._above[j]),
            hint=_blank_hint(column, int(self._missing[j]), [*names, *words])
            or code_hint(
                column,
                dict(zip(CODES, self._codes[:, j].tolist(), strict=True)),
                float(self._least[j]),
                float(self._most[j]),
            ),
            keeps_missing=column.keeps_missing,
        )

    def _doubt(self, j: int, names: Sequence[str], cause: str | None) -> Doubt | None:
        """Return the doubt on the cells of a column that were read."""
        column = self._schema.columns[j]
        if column.type == "boolean" and "false" not in names and _are_one_and_two(self._words[j]):
            return Doubt(str(cause), inverts=True)  # each 1 was read as true
        if merged := _merged(column, self._respelled.get(column.name, ())):
            one, other, value = merged
            return Doubt(
                f"column {column.name!r}: {one!r} and {other!r} are both read as {value}; remove "
                "the spellings, which are for other files",
                inverts=True,
            )
        if self._footer == j:
            return Doubt(
                f"column {column.name!r}: the last row of {self._label} has no other cell, as a "
                "line of totals; remove that line"
            )
        return self._doubts.get(column.name) or code_doubt(column, self._beyond[j])


def _blank_hint(column: Column, missing: int, seen: Sequence[str]) -> str:
    """Return a remedy for a boolean that is true or left blank, as a tick in a form."""
    if column.type != "boolean" or column.missing != "drop" or not missing or [*seen] != ["true"]:
        return ""
    return (
        f"Column {column.name!r} is true or missing; if a missing cell means no, silos may agree "
        'on missing = "min".'
    )


def _is_respelled(column: Column) -> bool:
    """Return True if the spellings of a boolean give a word the opposite of its usual meaning."""
    return column.type == "boolean" and any(
        usual == 1 - code for code, usual in _meanings(column, [word for word, _ in column.words])
    )


def _merged(column: Column, words: Iterable[str]) -> tuple[str, str, str] | None:
    """Return two words that spellings made the same truth value, and this; None if there are none.

    The first of them has its usual meaning only without the spellings.
    """
    found = sorted(words)
    read = [(word, *meaning) for word, meaning in zip(found, _meanings(column, found), strict=True)]
    for code in (0.0, 1.0):
        changed = [word for word, now, usual in read if (now, usual) == (code, 1 - code)]
        usual_ones = [word for word, now, usual in read if now == usual == code]
        if changed and usual_ones:
            return changed[0], usual_ones[0], _value_name(column, int(code))
    return None


def _meanings(column: Column, words: Sequence[str]) -> Iterator[tuple[float, float]]:
    """Yield the truth value of each word with the spellings of a column, and without."""
    plain = column.model_copy(update={"spellings": {}})
    readings = (CellType.of(one).read(list(words)).values for one in (column, plain))
    return zip(*(values.tolist() for values in readings), strict=True)


def _is_float(units: Any) -> bool:
    """Return True if a column of identifiers has a float type; objects have no common type."""
    kind = str(getattr(units, "dtype", getattr(units, "type", "")))
    return kind.lower().startswith(("float", "double", "halffloat"))


def _n_values(column: Column) -> int:
    """Return the number of values of a boolean or category; 0 for other columns."""
    return 2 if column.type == "boolean" else len(column.categories)


def _value_name(column: Column, code: int) -> str:
    return column.categories[code] if column.categories else ("false", "true")[code]


def _counts(codes: Floats, rows: Flags, size: int) -> Integers:
    return np.bincount(codes[rows].astype(np.int64), minlength=size)[:size]


def _column_at(cells: Any, j: int) -> Any:
    return cells[:, j] if isinstance(cells, np.ndarray) else cells[j]


def _words_at(column: Any, at: Integers) -> Iterator[str]:
    """Yield cells of a column as texts that the owner recognises."""
    if isinstance(column, Coded):
        column, at = column.distinct, column.places[at]
    for i in at.tolist():
        yield shown(column[i])


# Causes and remedies ------------------------------------------------------------------------------


def why(
    column: Column, schema: Schema, words: Counter[str], understood: Sequence[str] = ()
) -> tuple[str, Remedy | None]:
    """Return the likely cause of the words that could not be read, and its remedy.

    Parameters
    ----------
    understood : sequence of str
        Categories, or ``"false"`` and ``"true"``, in other cells of the column.

    Returns
    -------
    sentence : str
        The cause. It quotes words, so it is for the owner alone.
    remedy : Remedy or None
    """
    quoted = ", ".join(repr(word[:40]) for word, _ in words.most_common(_SHOWN_WORDS))
    head = f"column {column.name!r}: {quoted} not understood"
    if column.type == "boolean" and "false" not in understood and _are_one_and_two(words):
        remedy = Remedy("spellings", {"true": ("2",), "false": ("1",)}, column.name)
        return f"{head}; 1 and 2 may mean no and yes, as in R", remedy
    # Bytes of another encoding appear as control characters or as the replacement character.
    if any(re.search("[\ufffd\x80-\x9f]", word) for word in words):
        return f"{head}; set the encoding of the file", Remedy("encoding", None)
    # A third value of a boolean, and signs among numbers; a sign alone may be a category.
    has_both = column.type == "boolean" and {"false", "true"} <= set(understood)
    is_third = has_both and not _are_one_and_two(words)
    code = r"[\W_]+|-?\d+(\.0*)?" if is_third else r"[\W_]+"
    if (is_third or column.type in ("number", "integer")) and all(
        re.fullmatch(code, word) for word in words
    ):
        codes = Remedy("absent", tuple(sorted(words)), column.name)
        return f"{head}; they may mark missing cells: {codes}", None
    for diagnose in (_as_booleans, _as_dates, _as_numbers, _as_categories):
        if finding := diagnose(column, schema, words):
            text, its_remedy = finding
            return f"{head}; {text}", its_remedy
    is_number = column.type in ("number", "integer")
    are_words = is_number and _most(words, r"\s*[^\W\d_].*")
    listed = "; a schema can list words as categories, or as absent" if are_words else ""
    return f"{head} as {column.type}{listed}", None


Finding = tuple[str, Remedy | None]


def _are_one_and_two(words: Iterable[str]) -> bool:
    """Return True if only the words 2 and perhaps 1 were not read: a boolean reads 1 as true."""
    numbers = {word.removesuffix(".0") for word in words}
    return "2" in numbers and numbers <= {"1", "2"}


def _as_booleans(column: Column, _: Schema, words: Counter[str]) -> Finding | None:
    if column.type != "boolean":
        return None
    spellings = {key: list(value) for key, value in column.spellings.items()}
    is_boolean = False
    for key, known in (("true", _YES), ("false", _NO)):
        if matches := sorted(word for word in words if word.lower() in known):
            spellings[key], is_boolean = [*spellings.get(key, []), *matches], True
    if is_boolean:
        remedy = Remedy(
            "spellings", {k: tuple(value) for k, value in spellings.items()}, column.name
        )
        return "they look like a boolean", remedy
    if len(words) > 2:  # a boolean has at most two words
        return None
    remedy = Remedy("spellings", {"true": None, "false": None}, column.name)
    return "set which of them is true", remedy


def _as_dates(column: Column, _: Schema, words: Counter[str]) -> Finding | None:
    if "%y" in column.format:
        return "the bounds allow two centuries; write years with four digits", None
    if column.type == "date" and _most(words, _SERIAL):
        return "they may be day numbers of a spreadsheet; save them as dates", None
    if column.type != "date" and _most(words, _ISO_DAY):
        return _ARE_DATES, None
    for pattern, form in _DATES:
        if _most(words, rf"\s*{pattern}(\s.*)?"):
            if column.type != "date":
                return _ARE_DATES, None
            form = form or _day_or_month_first(words)
            times = (end for time, end in _TIMES if _most(words, rf"\s*{pattern}\s+{time}\s*"))
            remedy = Remedy("format", form + next(times, "") if form else None, column.name)
            return "set the format of the dates", remedy
    return None


def _day_or_month_first(words: Iterable[str]) -> str:
    """Return the format of dates such as 31/12/2021, if a day above 12 determines it."""
    fields = [re.split(r"([/-])", word.split()[0])[:5] for word in words if word.strip()]
    dates = [date for date in fields if len(date) == 5 and (date[0] + date[2]).isdigit()]
    day_first, month_first = (any(int(date[i]) > 12 for date in dates) for i in (0, 2))
    if day_first == month_first:  # no day above 12, or two layouts in one file
        return ""
    sign, year = dates[0][1], "%Y" if len(dates[0][4]) == 4 else "%y"
    return sign.join(("%d", "%m", year) if day_first else ("%m", "%d", year))


def _as_numbers(column: Column, schema: Schema, words: Counter[str]) -> Finding | None:
    if column.type not in ("number", "integer"):
        return None
    if schema.decimal == "." and _most(words, r"\s*[+-]?[1-9]\d{0,2}(,\d{3})+\s*"):
        return _commas(column, words)
    if schema.decimal == "." and _most(words, rf"\s*{_SIGN}(\d{{1,3}}(\.\d{{3}})+|\d+),\d+\s*"):
        remedy = Remedy("decimal", ",")
        return "they have a decimal comma", remedy
    if not schema.thousands:
        for sign in ".,'’ ":
            form = "[ \u00a0\u202f]" if sign == " " else re.escape(sign)
            if sign != schema.decimal and _most(words, rf"\s*{_SIGN}\d{{1,3}}({form}\d{{3}})+.*"):
                remedy = Remedy("thousands", sign)
                return "they have signs between thousands", remedy
    for sentence, pattern in _NUMBERS.items():
        if _most(words, rf"\s*{pattern}\s*"):
            return sentence, None
    return None


def _commas(column: Column, words: Counter[str]) -> Finding:
    """Return the cause of commas before three digits, which the bounds may decide."""
    texts = [word for word in words if re.fullmatch(r"\s*[+-]?\d{1,3}(,\d{3})+\s*", word)]
    within = [
        sum(
            column.min <= float(text.replace(",", sign, 1).replace(",", "")) <= column.max
            for text in texts
        )
        for sign in ("", ".")
    ]
    if within[0] > 2 * within[1] or any(text.count(",") > 1 for text in texts):
        return "they have signs between thousands", Remedy("thousands", ",")
    if within[1] > 2 * within[0]:
        return "they have a decimal comma", Remedy("decimal", ",")
    return (
        'their comma is a decimal sign or groups thousands: decimal = "," or thousands = ","',
        None,
    )


def _as_categories(column: Column, _: Schema, words: Counter[str]) -> Finding | None:
    if not column.categories:
        return None
    by_folded = {name.casefold(): name for name in column.categories}
    spellings = {key: list(value) for key, value in column.spellings.items()}
    for word in sorted(words):
        if category := _similar_category(word.casefold(), by_folded):
            spellings[category] = [*spellings.get(category, []), word]
    if spellings == {key: list(value) for key, value in column.spellings.items()}:
        # A template for many words or categories would be longer than the codebook.
        if len(words) > len(column.categories) or len(column.categories) > _SHOWN_WORDS:
            return "they are not among its categories", None
        remedy = Remedy("spellings", dict.fromkeys(column.categories), column.name)
        if {word.casefold() for word in words} <= {"false", "true"}:
            # The column of a linked table has no spellings.
            return "name the categories 'false' and 'true', or assign each to a category", remedy
        return "assign each of them to a category", remedy
    remedy = Remedy(
        "spellings", {key: tuple(value) for key, value in spellings.items()}, column.name
    )
    return "list them as other spellings of categories", remedy


def _similar_category(word: str, by_folded: Mapping[str, str]) -> str | None:
    """Return the category similar to a word, or the only category that begins with it."""
    similar = difflib.get_close_matches(word, by_folded, 1, 0.8)
    similar = similar or [name for name in by_folded if word and name.startswith(word)]
    return by_folded[similar[0]] if len(similar) == 1 else None


def _letters(word: str) -> str:
    """Return the letters and digits of a word, without case."""
    return "".join(filter(str.isalnum, word.casefold()))


def _most(words: Counter[str], pattern: str) -> bool:
    """Return True if a full match of the pattern covers most cells with these words."""
    matches = sum(count for word, count in words.items() if re.fullmatch(pattern, word))
    return 2 * matches > words.total()
