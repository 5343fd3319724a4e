"""What a command says: text and tables for people, one JSON document for programs, or nothing."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.app.progress import is_watched, round_bar
from cloister.app.text import cell_text
from cloister.core.display import Table
from cloister.core.html import clean

if TYPE_CHECKING:
    from rich.console import Console

    from cloister.app.in_process import OnRound

_WIDTH, _WIDEST = 100, 400  # of text and of tables where there is no terminal
_MAX_COLUMNS = 9  # of a table on the screen; the report has all


@dataclass
class Output:
    """Where the text of a command goes.

    Parameters
    ----------
    json, quiet : bool
        Write nothing but the document; write nothing at all. Warnings are always written.
    warnings : list of str
        Those that the document repeats.
    code : int
        Exit code of the process, unless there is an error.
    """

    json: bool = False
    quiet: bool = False
    warnings: list[str] = field(default_factory=list)
    code: int = 0
    _rows: int = field(default=0, init=False)  # read so far, where somebody watches

    @classmethod
    def of(cls, args: argparse.Namespace) -> Output:
        """Return the output that a command line asks for."""
        return cls(getattr(args, "json", False), getattr(args, "quiet", False))

    @property
    def for_people(self) -> bool:
        """Whether text for people is wanted."""
        return not (self.json or self.quiet)

    def raw(self, text: str) -> None:
        """Write text of which other programs read every character."""
        if self.for_people:
            sys.stdout.write(text)

    def say(self, text: str = "") -> None:
        """Write one line, never broken."""
        if self.for_people:
            sys.stdout.write(clean(text) + "\n")

    def paragraph(self, text: str) -> None:
        """Write text broken at words."""
        if self.for_people:
            _console(_WIDTH).print(clean(text))

    def pairs(self, *pairs: tuple[str, str]) -> None:
        """Write names and values below each other."""
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
        grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        columns = table.headings[:_MAX_COLUMNS]
        for index, heading in enumerate(columns):
            grid.add_column(clean(heading), justify="right" if index else "left")
        for row in table.rows:
            grid.add_row(*(clean(cell_text(cell)) for cell in row[: len(columns)]))
        _console(_WIDEST).print(grid)
        self.say()
        if hidden := len(table.headings) - len(columns):
            self.say(f"and {hidden} more columns")

    def warn(self, text: str) -> None:
        """Write a warning to standard error; it is part of the document too."""
        self.warnings.append(text)
        self.warn_locally(text)

    def warn_locally(self, text: str) -> None:
        """Write what follows from records to standard error, and into no document."""
        sys.stderr.write(f"cloister: warning: {clean(text)}\n")

    def document(self, document: Mapping[str, Any]) -> None:
        """Write the one JSON document, if asked to."""
        if self.json:
            values = {**document, "warnings": self.warnings}
            json.dump(_plain(values), sys.stdout, indent=1, allow_nan=False)
            sys.stdout.write("\n")

    @contextmanager
    def reading(self) -> Iterator[Callable[[str], Callable[[int], None] | None]]:
        """Show rows and rows a second on a terminal; yield what gives each silo its counter.

        The line is gone when all is read: an exact count is no release.
        """
        if not (self.for_people and is_watched()):
            yield lambda silo: None
            return
        from rich.console import Console
        from rich.progress import Progress, TextColumn

        words = TextColumn("reading {task.description}: {task.fields[done]}", markup=False)
        with Progress(words, console=Console(stderr=True), transient=True) as bar:

            def counter(silo: str) -> Callable[[int], None]:
                start, before = perf_counter(), self._rows
                task = bar.add_task(silo, total=None, done="")

                def on_rows(rows: int) -> None:
                    self._rows = before + rows
                    speed = rows / (perf_counter() - start)
                    bar.update(task, done=f"{rows:,} rows, {speed:,.0f} a second")

                return on_rows

            yield counter

    def progress(self) -> AbstractContextManager[OnRound | None]:
        """Show a bar over rounds on a terminal; yield what is to be called after each."""
        return round_bar(wanted=self.for_people, stays=True, rows=lambda: self._rows)


def ask(question: str) -> str | None:
    """Return what a person at the terminal answers; None if nobody is there."""
    if not sys.stdin.isatty():
        return None
    sys.stderr.write(clean(question))
    sys.stderr.flush()
    return sys.stdin.readline().strip()


def _console(width_of_no_terminal: int) -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() else width_of_no_terminal
    return Console(file=sys.stdout, markup=False, highlight=False, emoji=False, width=width)


def _plain(value: Any) -> Any:
    """Return values that JSON has; what is not finite becomes null."""
    match value:
        case Mapping():
            return {str(key): _plain(part) for key, part in value.items()}
        case np.ndarray() | np.generic():
            return _plain(value.tolist())
        case list() | tuple():
            return [_plain(part) for part in value]
        case float() if not math.isfinite(value):
            return None
        case None | bool() | int() | float() | str():
            return value
    return str(value)
