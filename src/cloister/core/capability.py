"""Capabilities: each task of the package with its command, public names and question."""

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
        Type of the columns that can be the target or, without a target, are selected initially:
        any type, numbers, categories or booleans, booleans.
    least, most : int
        Required number of such columns, and number of columns selected initially.
    """

    title: str
    start: Mapping[str, str] = field(default_factory=dict)
    suits: Suits = "any"
    least: int = 1
    most: int | None = None


@dataclass(frozen=True)
class Capability:
    """A task, and its interfaces for users.

    Parameters
    ----------
    task : str
        Its place below ``cloister.tasks``.
    command : str
        Help text of the command with the task's name; empty if the task has no such command.
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


# The rows differ, so the type that is inferred for them is too general to use.
_ROWS: Mapping[str, Any] = ROWS
CAPABILITIES: Mapping[str, Capability] = {name: Capability.of(row) for name, row in _ROWS.items()}
"""One for each task of the package, by its name."""

COMMANDS = {name: row.command for name, row in CAPABILITIES.items() if row.command}
"""Help texts of the commands that have the name of a task."""

_QUESTIONS = (
    *("describe", "tabulate", "auto", "selectk", "logistic", "linear", "outliers", "apriori"),
)
QUESTIONS = {
    name: question for name in _QUESTIONS if (question := CAPABILITIES[name].question) is not None
}
"""The questions of the console, in the order of its page."""
