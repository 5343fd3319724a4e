"""The output of a command: text and tables for people, or one JSON document for programs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from cloister.app.progress import is_watched, round_bar
from cloister.app.text import cell_text
from cloister.app.unknown import NOISY, unknown
from cloister.core.display import Table
from cloister.core.html import clean
from cloister.core.plain import plain

if TYPE_CHECKING:
    from rich.console import Console

    from cloister.app.in_process import OnRound

_WIDTH, _WIDEST = 100, 400  # of text and of tables without a terminal
_GAP = 3  # between two columns
_MAX_COLUMNS = 9  # of a table on the screen, since wider ones wrap; the report has all


@dataclass
class Output:
    """The destination of a command's text.

    Parameters
    ----------
    json, quiet : bool
        Write only the document, or write no text. Warnings are always written.
    warnings : list of str
        Warnings that the document repeats.
    code : int
        Exit code of the process, unless there is an error.
    """

    json: bool = False
    quiet: bool = False
    warnings: list[str] = field(default_factory=list)
    code: int = 0
    _rows: int = field(default=0, init=False)  # read so far, for the bar on a terminal

    @classmethod
    def of(cls, args: argparse.Namespace) -> Output:
        """Return the output for the options of a command line."""
        return cls(getattr(args, "json", False), getattr(args, "quiet", False))

    @property
    def for_people(self) -> bool:
        """True if text for people is written."""
        return not (self.json or self.quiet)

    def raw(self, text: str) -> None:
        """Write text unchanged, for files and other programs."""
        if self.for_people:
            sys.stdout.write(text)

    def say(self, text: str = "") -> None:
        """Write one line without line breaks."""
        if self.for_people:
            # Names from files may contain control characters for a terminal.
            sys.stdout.write(clean(text) + "\n")

    def paragraph(self, text: str) -> None:
        """Write text with line breaks between words."""
        if self.for_people:
            _console(_WIDTH).print(clean(text))

    def pairs(self, *pairs: tuple[str, str]) -> None:
        """Write names and values in two aligned columns."""
        width = max((len(name) for name, _ in pairs), default=0)
        for name, value in pairs:
            self.say(f"{name:<{width}}  {value}")

    def table(self, table: Table) -> None:
        """Write a table; the first cell of a row names the row."""
        if not self.for_people:
            return
        from rich import box
        from rich.table import Table as Grid

        self.say(table.title)
        console = _console(_WIDEST)
        rows = [table.headings, *([cell_text(cell) for cell in row] for row in table.rows)]
        columns = [[clean(row[j]) for row in rows] for j in range(len(rows[0]))][:_MAX_COLUMNS]
        for block in _side_by_side(columns, console.width):
            grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
            for heading, *_ in block:
                grid.add_column(
                    heading, justify="right" if grid.columns else "left", overflow="fold"
                )
            for cells in list(zip(*block, strict=True))[1:]:
                grid.add_row(*cells)
            console.print(grid)
            self.say()
        if hidden := len(table.headings) - len(columns):
            self.say(f"and {hidden} more columns")

    def warn(self, text: str) -> None:
        """Write a warning to standard error and add it to the document, unless it is there."""
        if text in self.warnings:  # a plan and its release may have the same warning
            return
        # Programs that read only the document must not miss a warning.
        self.warnings.append(text)
        self.warn_locally(text)

    def warn_locally(self, text: str) -> None:
        """Write a warning on exact records to standard error only, not to the document."""
        sys.stderr.write(f"cloister: warning: {clean(text)}\n")

    def document(self, document: Mapping[str, Any]) -> None:
        """Write the JSON document, if --json is given."""
        if self.json:
            values = plain({**document, "warnings": self.warnings}, unknown(NOISY))
            json.dump(values, sys.stdout, indent=1, allow_nan=False)
            sys.stdout.write("\n")

    @contextmanager
    def reading(self) -> Iterator[Callable[[str], Callable[[int], None] | None]]:
        """Show rows and rows a second on a terminal; yield a function of silo to its counter.

        The line disappears after the reading, because an exact count is not a release.
        """
        if not (self.for_people and is_watched()):
            yield lambda silo: None
            return
        from rich.console import Console
        from rich.progress import Progress, TextColumn

        text = TextColumn("reading {task.description}: {task.fields[done]}", markup=False)
        with Progress(text, console=Console(stderr=True), transient=True) as bar:

            def counter(silo: str) -> Callable[[int], None]:
                # The bar over rounds later uses the rows of all silos.
                start, before = perf_counter(), self._rows
                task = bar.add_task(silo, total=None, done="")

                def on_rows(rows: int) -> None:
                    self._rows = before + rows
                    speed = rows / (perf_counter() - start)
                    bar.update(task, done=f"{rows:,} rows, {speed:,.0f} a second")

                return on_rows

            yield counter

    def progress(self) -> AbstractContextManager[OnRound | None]:
        """Show a bar over rounds on a terminal; yield the function to call after each round."""
        return round_bar(wanted=self.for_people, stays=True, rows=lambda: self._rows)


def _side_by_side(columns: Sequence[list[str]], room: int) -> Iterator[list[list[str]]]:
    """Yield the columns of a table in blocks that fit a terminal, each with the first column."""
    from rich.cells import cell_len

    first, *others = columns
    start = [first], max(map(cell_len, first))
    block, used = start
    for column in others:
        width = _GAP + max(map(cell_len, column))
        # A narrow terminal would else cut names and the ends of intervals.
        if len(block) > 1 and used + width > room:
            yield block
            block, used = start
        block, used = [*block, column], used + width
    yield block


def ask(question: str) -> str | None:
    """Return the answer of a person at the terminal; None without a terminal."""
    if not sys.stdin.isatty():
        return None
    sys.stderr.write(clean(question))  # standard output may be a file
    sys.stderr.flush()
    return sys.stdin.readline().strip()


def _console(width_of_no_terminal: int) -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() else width_of_no_terminal
    return Console(file=sys.stdout, markup=False, highlight=False, emoji=False, width=width)
