"""``Contents``: all that a report shows, before it becomes a page or a text."""

from __future__ import annotations

from dataclasses import dataclass

from cloister.app.headline import KeyNumber
from cloister.core.display import Table
from cloister.privacy.budget import Budget

Pairs = tuple[tuple[str, str], ...]
"""Names and values."""


@dataclass(frozen=True)
class Shown:
    """A display: a table, or an SVG with a description and its numbers; `note` is the SVG's."""

    table: Table
    picture: str = ""
    label: str = ""
    note: str = ""


@dataclass(frozen=True)
class Contents:
    """The values of a report, all of them public.

    Parameters
    ----------
    about : (str, str)
        What ran over whom, and for which study.
    budget : Budget, optional
        None if the run had no guarantee.
    gaussian : bool
        True if normal intervals of other levels follow from those of 95 %.
    lines : pairs
        The sentences on the result, its cost and its reliability.
    numbers : tuple of KeyNumber
        Those that are shown large.
    epsilon : str
        Empty if the run had no guarantee.
    share : float in [0, 1], optional
        The spent part of the lifetime cap.
    first : Shown, optional
        The picture of the first screen; `displays` are the others.
    uncharged : str
        The place of the charge, if there are no `budget_lines`.
    asked : pairs
        The facts of the question.
    asked_caption, asked_note : str
        What these facts are, and who read them.
    question : str
        The hash of their text; empty if they are not the whole of it.
    verified : (state, sentence)
    document, document_name : str
        The whole agreement of all parties as JSON, and its name.
    """

    title: str
    about: tuple[str, str]
    budget: Budget | None
    gaussian: bool
    lines: Pairs
    numbers: tuple[KeyNumber, ...]
    unclear_note: str
    today: str
    version: str
    warnings: tuple[str, ...]
    epsilon: str
    share: float | None
    cards: Pairs
    answers: Pairs
    sights: Table
    sight_remarks: tuple[str, ...]
    remarks: tuple[str, ...]
    first: Shown | None
    displays: tuple[Shown, ...]
    cost: Pairs
    budget_lines: Pairs
    uncharged: str
    asked: Pairs
    asked_caption: str
    asked_note: str
    question: str
    verified: tuple[str, str]
    facts: Pairs
    document: str
    document_name: str
    comparison: Table | None
