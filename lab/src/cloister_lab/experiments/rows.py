"""What the papers, the published code and the course ask for, row by row, and what shows it.

``python -m cloister_lab.experiments.rows FILE`` writes the page.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloister_lab.experiments import records as tidy

VERDICTS = ("works", "partly", "differs", "missing")
"""A row that differs is there in another form, for the reason that it names."""

_SHOWN = {
    "task": "`cloister run --task {}`",
    "method": "`CuratorKMeans(algorithm={!r})`",
    "experiment": "`cloister experiments run {}`",
    "name": "`{}`",
    "command": "`{}`",
    "script": "`python {}`",
    "test": "`pytest {}`",
}


@dataclass(frozen=True)
class Evidence:
    """Something that shows a row.

    Parameters
    ----------
    kind : str
        A kind of :data:`_SHOWN`, or "page".
    value : str
        A name, or a path from the root of the repository; a test may have ``::`` and its function.
    """

    kind: str
    value: str

    def __str__(self) -> str:
        """Return the command or the link of the page."""
        if self.kind != "page":
            return _SHOWN[self.kind].format(self.value)
        path = Path(self.value)
        return f"[{path.stem}](../{path.relative_to('docs')})"


@dataclass(frozen=True)
class Row:
    """One thing that was asked for.

    Parameters
    ----------
    source : str
        Where it is asked for.
    verdict : str
        One of :data:`VERDICTS`.
    reason : str
        May be empty for what works.
    """

    number: int
    source: str
    what: str
    verdict: str
    reason: str
    shown_by: tuple[Evidence, ...]


def load_rows() -> list[Row]:
    """Read the rows that ship with this package."""
    with (Path(__file__).parent / "rows.csv").open(encoding="utf-8", newline="") as file:
        return [
            Row(
                int(line["row"]),
                line["source"],
                line["what"],
                line["verdict"],
                line["reason"],
                tuple(Evidence(*text.split(" ", 1)) for text in line["shown_by"].split("; ")),
            )
            for line in csv.DictReader(file)
        ]


def page_of(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the page."""
    counts = Counter(row.verdict for row in rows)
    shown = [
        {
            "number": row.number,
            "source": row.source,
            "what": row.what,
            "verdict": row.verdict + (f": {row.reason}" if row.reason else ""),
            "shown_by": ", ".join(map(str, row.shown_by)),
        }
        for row in rows
    ]
    return tidy.prose("rows", shown, number=len(rows), **{name: counts[name] for name in VERDICTS})


if __name__ == "__main__":
    tidy.write_page(Path(sys.argv[1]), page_of(load_rows()), stamped=False)
