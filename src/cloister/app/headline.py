"""The few numbers that the first screen of a report shows large, each with its interval."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from cloister.app.text import cell_text
from cloister.core.display import DATE, Bars, Cell, Display, Estimate, Heatmap, Table

MOST = 3
"""Numbers of a first screen."""
_PLAIN = ("", "value")  # headings that do not name a number


@dataclass(frozen=True)
class KeyNumber:
    """A number, its name, and the text or heading that it belongs to.

    The note of a picture names what an interval includes, so `kind` does not for `drawn` numbers.
    """

    name: str
    of: str
    estimate: Estimate
    drawn: bool = False

    @property
    def texts(self) -> tuple[str, str, str]:
        """The value, its interval and its unit."""
        unit = self.estimate.unit
        value, _, interval = self.estimate.of_population.text.partition(" ")
        # A date has no unit, and the text of a length of time ends with its.
        return value, interval.removesuffix(unit).strip(), "" if unit == DATE else unit

    @property
    def unclear(self) -> bool:
        """True if the number has a question mark; a picture shows where no effect is."""
        return not (self.drawn or self.estimate.is_distinct)

    @property
    def kind(self) -> str:
        """The level of the interval and the errors it includes; empty without an interval."""
        low, high = self.estimate.of_population.numbers[1:3]
        if not low < high:
            return ""
        if self.estimate.population:
            return "95 %, noise and sampling"
        return "95 %" if self.drawn else "95 %, privacy noise"


def key_numbers(
    sentence: str | tuple[Cell, ...], displays: Sequence[Display], records: Estimate | None
) -> tuple[KeyNumber, ...]:
    """Return at most three numbers that answer a question.

    They are the numbers of the task's sentence, or else the first of the first display that has
    any. If there is room, the number of records follows.
    """
    last = [KeyNumber("in all", "records", records)] if records else []
    found = list(_in_sentence(sentence))
    if not found:
        each = ([one for one in _in_display(shown) if not _same(one, last)] for shown in displays)
        found = next(filter(None, each), [])
    found += [one for one in last if not _same(one, found)]
    return tuple(islice(found, MOST))


def _in_sentence(parts: str | tuple[Cell, ...]) -> Iterator[KeyNumber]:
    """Yield the numbers of a sentence, each with the words before it.

    In "Means: age 48, weight 96." both belong to "Means".
    """
    of, name, words = "", "", ""
    for part in () if isinstance(parts, str) else parts:
        if not isinstance(part, Estimate):
            words += cell_text(part)
            continue
        *earlier, words = words.split(". ")
        lead, colon, words = words.rpartition(": ")
        of = lead if colon else "" if earlier else of
        words = _complete(words.strip(" ,.;"))
        # Of "age 20 to 60", the second number is the upper one.
        name = f"{name}, up to" if words == "to" else words
        if _known(part):
            yield KeyNumber(name, of.strip(), part)
        words = ""


def _complete(words: str) -> str:
    """Return the words before a number as a name, which ends with no "of" or "is"."""
    words = re.sub(r",?( has)? a share of$", ", share", words)
    return re.sub(r" (of|is|are)$", "", words)


def _in_display(shown: Display) -> Iterator[KeyNumber]:
    """Yield the known numbers with an interval: a table's by columns, a heat map's by rows."""
    cells: Iterable[tuple[str, str, Cell]] = ()
    match shown:
        case Table():
            names = [_named(shown.headings[0], cell_text(row[0])) for row in shown.rows]
            cells = (
                (name, shown.title if heading in _PLAIN else heading, cell)
                for heading, *column in zip(shown.headings, *shown.rows, strict=True)
                for name, cell in zip(names, column, strict=True)
            )
        case Bars():
            cells = ((name, shown.title, cell) for name, (cell,) in shown.numbers())
        case Heatmap():
            columns = shown.headings[1:]
            cells = (
                (f"{name}, {column}", shown.title, cell)
                for name, row in shown.numbers()
                for column, cell in zip(columns, row, strict=True)
            )
        # The first places of a curve, and places in the plane, answer no question.
    for name, of, cell in cells:
        if isinstance(cell, Estimate) and _known(cell) and not np.isnan(cell.numbers[1]):
            yield KeyNumber(name, of, cell, drawn=not isinstance(shown, Table))


def _named(heading: str, name: str) -> str:
    """Return the name of a row; a number alone names nothing, such as class 0."""
    return f"{heading} {name}" if heading and name.replace(".", "").isdigit() else name


def _known(cell: Estimate) -> bool:
    return not np.isnan(cell.value)


def _same(one: KeyNumber, others: Iterable[KeyNumber]) -> bool:
    """Return True if a value with these ends is among others."""
    return any(one.estimate.numbers[:3] == other.estimate.numbers[:3] for other in others)
