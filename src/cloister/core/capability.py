"""Capabilities: each task that ships, and the command, names and question that reach it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from cloister.core.catalogue import ROWS

Suits = Literal["any", "number", "named", "yes-no"]


@dataclass(frozen=True)
class Question:
    """The question that the console asks for a task.

    Parameters
    ----------
    title : str
    start : mapping of str to str
        Options that the user chooses, with their initial text.
    suits : {"any", "number", "named", "yes-no"}
        Columns that can be the target or, without one, are selected initially: of any type, of
        numbers, of categories or booleans, of booleans.
    least, most : int
        Required number of such columns, and number of those selected initially.
    """

    title: str
    start: Mapping[str, str] = field(default_factory=dict)
    suits: Suits = "any"
    least: int = 1
    most: int | None = None


@dataclass(frozen=True)
class Capability:
    """A task, and how users reach it.

    Parameters
    ----------
    task : str
        Its place below ``cloister.tasks``.
    command : str
        The command of its name does this; empty if the task has none.
    python : tuple of str
        Places of public names below ``cloister.estimators``.
    question : Question, optional
    """

    task: str
    command: str = ""
    python: tuple[str, ...] = ()
    question: Question | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Return the capability in a row of the catalogue."""
        question = row.get("question")
        return cls(**{**row, "question": question and Question(**question)})


_ROWS: Mapping[str, Any] = ROWS
CAPABILITIES: Mapping[str, Capability] = {name: Capability.of(row) for name, row in _ROWS.items()}
"""One for each task that ships, by its name."""

COMMANDS = {name: row.command for name, row in CAPABILITIES.items() if row.command}
"""Tasks that are a command of their own name, and what this does."""

_QUESTIONS = (
    *("describe", "tabulate", "auto", "selectk", "logistic", "linear", "outliers", "apriori"),
)
QUESTIONS = {
    name: question for name in _QUESTIONS if (question := CAPABILITIES[name].question) is not None
}
"""The questions of the console, in the order of its page."""
