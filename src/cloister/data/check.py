"""What the rules of a schema find in a source: exact counts, for local eyes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from cloister.data.encoding import ABSENT, MISSING, OUTSIDE, WRONG
from cloister.data.few_rows import Tally
from cloister.data.records import LOCAL_NOTE, Rules, UnitLimit, default_rows, open_by_schema
from cloister.declared import declarations

if TYPE_CHECKING:
    from cloister.schema import Schema


@dataclass(frozen=True)
class ColumnCheck:
    """Exact counts of one column: local only, not a release."""

    name: str
    missing: int
    type_errors: int
    unknown: int  # cells that are none of the categories
    out_of_range: int
    out_of_range_share: float  # of all rows
    constant: bool  # every value that is there is the same


@dataclass(frozen=True)
class CheckReport:
    """What `check_file` found: local only, exact counts of the records, not a release."""

    source: str
    rows: int
    used: int  # rows that the schema's rules leave
    bad_lines: Annotated[int, "lines with a wrong number of fields, or rows without a basket"]
    unknown_items: Annotated[int, "items outside the catalogue"]
    without_unit: Annotated[int, "rows without a unit"]
    beyond_max_rows: Annotated[int, "rows beyond max_rows of their unit"]
    merged_units: Annotated[int, 'of these, because "7", "07" and "7.0" are the same unit']
    columns: tuple[ColumnCheck, ...]
    doubt: str | None  # why few rows can be used; None if most can
    causes: tuple[str, ...] = ()  # what most wrong cells of a column have in common

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, marked as local."""
        return {"note": LOCAL_NOTE, **asdict(self)}

    def counts(self) -> list[tuple[str, int]]:
        """Return what was left out of the rows, each with its name for people."""
        named = [one for one in declarations(CheckReport) if one.help]
        return [(one.help, getattr(self, one.name)) for one in named]

    def __str__(self) -> str:
        lines = [f"{self.source} ({LOCAL_NOTE})", f"{self.rows} rows, {self.used} used"]
        lines += [f"{count} {what}" for what, count in self.counts() if count]
        for column in self.columns:
            lines.append(
                f"{column.name}: {column.out_of_range_share:.2%} out of range, {column.missing} "
                f"missing, {column.type_errors} of the wrong type"
                + (f", {column.unknown} of no known category" if column.unknown else "")
                + (", constant" if column.constant else "")
            )
        return "\n".join([*lines, *self.causes])


def check_file(source: Any, schema: Schema) -> CheckReport:
    """Count what the schema's rules find in whatever `read_source` takes; local, not a release."""
    rules = Rules.of_schema(schema)
    table = open_by_schema(source, schema)
    limit, as_written = UnitLimit(rules.max_rows), UnitLimit(rules.max_rows, str)
    d = len(schema.names)
    missing, wrong, outside = (np.zeros(d, dtype=np.int64) for _ in range(3))
    tally = Tally(table.label, schema.names)
    lowest, highest = np.full(d, np.inf), np.full(d, -np.inf)
    rows = used = bad_lines = unknown_items = 0
    for raw in table.chunks(default_rows(d)):
        bad_lines += raw.bad_lines
        unknown_items += raw.unknown_items
        judged = rules.judge(raw)
        flags = judged.flags
        rows += len(flags)
        unnamed = limit.without_unit
        used += int(limit.keep(raw.units, judged.usable).sum())
        unnamed = limit.without_unit - unnamed
        tally.add(raw, flags, int(judged.usable.sum()) - unnamed)
        as_written.keep(raw.units, judged.usable)
        missing += (flags & ABSENT == MISSING).sum(axis=0)
        wrong += (flags & WRONG != 0).sum(axis=0)
        outside += (flags & OUTSIDE != 0).sum(axis=0)
        there = np.where(flags & ABSENT, np.nan, judged.values)
        lowest = np.fmin(lowest, np.fmin.reduce(there, axis=0, initial=np.inf))
        highest = np.fmax(highest, np.fmax.reduce(there, axis=0, initial=-np.inf))
    columns = tuple(
        ColumnCheck(
            name=column.name,
            missing=int(missing[j]),
            type_errors=0 if column.categories else int(wrong[j]),
            unknown=int(wrong[j]) if column.categories else 0,
            out_of_range=int(outside[j]),
            out_of_range_share=float(outside[j] / max(rows, 1)),
            constant=bool(lowest[j] == highest[j]),
        )
        for j, column in enumerate(schema.columns)
    )
    return CheckReport(
        source=table.label,
        rows=rows,
        used=used,
        bad_lines=bad_lines,
        unknown_items=unknown_items,
        without_unit=limit.without_unit,
        beyond_max_rows=limit.beyond,
        merged_units=limit.beyond - as_written.beyond,
        columns=columns,
        doubt=tally.doubt(),
        causes=(*tally.causes.values(), *_other_words(columns)),
    )


def _other_words(columns: Iterable[ColumnCheck]) -> Iterator[str]:
    for column in columns:
        if column.unknown:
            yield (
                f"column {column.name!r} has words that are none of its categories; where they are "
                "other spellings of one, list them as its spellings in the schema"
            )
