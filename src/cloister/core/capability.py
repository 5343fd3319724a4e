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
    roles : mapping of str to {"any", "number", "named", "yes-no"}
        Options that name one column, with the type of the columns that suit: any type, numbers,
        categories or booleans, booleans.
    optional : tuple of str
        Roles that may have no column.
    hints : mapping of str to tuple of str
        Beginnings of words in the names of columns that have a role initially, if there are any.
    start : mapping of str to str
        Other options that the user chooses, with their initial text; empty for the task's default.
    suits : {"any", "number", "named", "yes-no"}
        Type of the columns that can be used without a role.
    least, most : int
        Required number of such columns, and number of those selected initially; with a `most` of
        0 there are none.
    bins : int
        Number of initial bins of a numeric column that the task needs in bins; 0 for other tasks.
    forecast : bool
        Whether the task forecasts its error, so that a precision can be wanted.
    """

    title: str
    roles: Mapping[str, Suits] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    hints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    start: Mapping[str, str] = field(default_factory=dict)
    suits: Suits = "any"
    least: int = 1
    most: int | None = None
    bins: int = 0
    forecast: bool = True


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
    names : tuple of str
        Options that name columns, of a task that can use only these columns.
    only : tuple of str
        Options of which one must be given for this; else the task uses all columns.
    """

    task: str
    command: str = ""
    python: tuple[str, ...] = ()
    question: Question | None = None
    # Not derived from the types of options, since a text may also name a family or a method.
    names: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

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

# In groups, because people know the kind of their question, and not the name of a method.
QUESTION_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Describe": ("describe", "tabulate", "table1"),
    "Explain and predict": (
        *("logistic", "linear", "glm", "imputed-regression", "treatment-effect"),
        *("shapes", "shapes-regression", "forest", "forest-regression", "scorecard"),
    ),
    "Time until an event": ("survival", "cox", "cox-approximate"),
    "Discover": ("auto", "selectk", "outliers", "apriori"),
    "Share and check": ("synthesise", "evaluation", "regression-evaluation"),
}
"""The tasks with a question, in the order of the console's page, by the heading above them."""

QUESTIONS = {
    name: question
    for names in QUESTION_GROUPS.values()
    for name in names
    if (question := CAPABILITIES[name].question) is not None
}
"""The questions of the console, in the order of its page."""
