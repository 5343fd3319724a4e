"""What a person at a desk can ask, and the plan and the command that answer it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloister.app.files import name_silos
from cloister.app.job import Job
from cloister.app.request import Request
from cloister.console.guard import Form
from cloister.core.errors import PlanError
from cloister.data import check_file, refuse_loss, roles_of
from cloister.data.schema import Column, Schema
from cloister.tasks import TASKS
from cloister.tasks.options import options_of

AS_IS = "as-is"
"""Name of the field by which a person takes the files as they are."""


def _is_any(column: Column) -> bool:
    return True


def _is_number(column: Column) -> bool:
    return not _is_named(column)


def _is_named(column: Column) -> bool:
    return column.type in ("boolean", "category")


def _is_yes_no(column: Column) -> bool:
    return column.type == "boolean"


@dataclass(frozen=True)
class Question:
    """A task, in the words of whoever asks.

    Parameters
    ----------
    title, task : str
    start : mapping of str to str
        Options that a person chooses, and what they are at first.
    suits : function
        Whether a column can be the target or, without one, is used at first.
    least, most : int
        How many such columns are needed, and are used at first.
    options : function
        What the chosen columns say of options.
    """

    title: str
    task: str
    start: Mapping[str, str] = field(default_factory=dict)
    suits: Callable[[Column], bool] = _is_any
    least: int = 1
    most: int | None = None
    options: Callable[[tuple[str, ...]], Mapping[str, Any]] = lambda columns: {}


def _one_table(columns: tuple[str, ...]) -> Mapping[str, Any]:
    return {"tables": [[*columns]], "tests": ["chi2"] * (len(columns) == 2)}


_TO_PREDICT = {"target": ""}
_TWO_TO_EIGHT = {"min_clusters": "2", "max_clusters": "8"}
QUESTIONS = {
    "what": Question("What is in these files?", "describe"),
    "how-many": Question(
        "How many, by what? (count categories)", "tabulate", {}, _is_named, 1, 2, _one_table
    ),
    "groups": Question("Which groups are there?", "auto", {"n_clusters": "3"}, _is_number),
    "how-many-groups": Question("How many groups are there?", "selectk", _TWO_TO_EIGHT, _is_number),
    "who": Question("Who will? (predict a category)", "logistic", _TO_PREDICT, _is_named),
    "how-much": Question("How much? (predict a number)", "linear", _TO_PREDICT, _is_number),
    "unusual": Question("Which records are unusual?", "outliers"),
    "together": Question(
        "What goes together? (yes-no columns)", "apriori", {"min_support": "0.05"}, _is_yes_no, 2
    ),
}


@dataclass(frozen=True)
class Asked:
    """A question as a page holds it, answered or not.

    Parameters
    ----------
    form : mapping
        The text of each field.
    files : tuple of Path
    schema_file : Path
    schema : Schema
    """

    form: Form
    files: tuple[Path, ...]
    schema_file: Path
    schema: Schema

    @property
    def name(self) -> str:
        """Which of the questions it is: the one of the button, or else that of the page."""
        name = self.form.get("ask") or self.form.get("of") or "groups"
        if name not in QUESTIONS:
            raise PlanError(f"ask must be one of {', '.join(QUESTIONS)}, got {name!r}.")
        return name

    @property
    def question(self) -> Question:
        """What is asked."""
        return QUESTIONS[self.name]

    @property
    def choices(self) -> tuple[str, ...]:
        """The columns that suit the question."""
        return tuple(one.name for one in self.schema.columns if self.question.suits(one))

    @property
    def target(self) -> str:
        """The column to predict; empty if there is none, or not yet."""
        said = self._said("target", "")
        return said if "target" in self.question.start else ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are used; until a person says so, those that suit."""
        names = self.schema.names
        if self.form.get("of") == self.name:
            chosen = {names[int(at)] for at in self.form.getlist("column") if at in self._places}
        else:
            suits = self.choices[: self.question.most]
            chosen = set(names if "target" in self.question.start else suits)
        return tuple(name for name in names if name in chosen | {self.target})

    @property
    def _places(self) -> set[str]:
        return set(map(str, range(len(self.schema.names))))

    @property
    def fields(self) -> dict[str, tuple[str, str]]:
        """The options that a person chooses: for each its meaning, and its text."""
        known = {one.name: one.help for one in options_of(TASKS[self.question.task])}
        start = self.question.start
        return {name: (known[name], self._said(name, text)) for name, text in start.items()}

    def _said(self, name: str, first: str) -> str:
        """Return the text of a field of this question; a field of another has its first."""
        return self.form.get(name, first) if self.form.get("of") == self.name else first

    @property
    def epsilon(self) -> float:
        """What the job may cost."""
        return float(_number("epsilon", self.form.get("epsilon", "1")))

    @property
    def nominal_n(self) -> int:
        """The public number of records; signs between thousands are taken."""
        text = re.sub(r"(?<=\d)[.,' ](?=\d{3}(\D|$))", "", self.form.get("nominal_n", "").strip())
        if not text.isdecimal():
            raise PlanError(f"the number of records must be a whole number, got {text!r}.")
        return int(_number("the number of records", text))

    @property
    def cap_epsilon(self) -> float | None:
        """The lifetime cap of data that are new; None if it is not said."""
        text = self.form.get("cap_epsilon", "").strip()
        cap = float(_number("the lifetime cap", text)) if text else None
        if cap is not None and cap < self.epsilon:
            raise PlanError(f"the lifetime cap must be at least epsilon, {self.epsilon:g}.")
        return cap

    def _options(self) -> dict[str, Any]:
        return {
            name: text if name == "target" else _number(meaning, text)
            for name, (meaning, text) in self.fields.items()
        } | dict(self.question.options(self.columns))

    def job(self) -> Job:
        """Return the job, or raise a PlanError with a field of the page to change."""
        question = self.question
        if len(self.choices) < question.least:
            raise PlanError(
                f"{question.title!r} needs {question.least} such column(s); say on the page before "
                "what your columns are."
            )
        if "target" in question.start and not self.target:
            raise PlanError("choose the column to predict.")
        if not set(self.columns) - {self.target}:
            raise PlanError("choose the columns to use.")
        return self.request(Path(), "").job(self.schema)

    def request(self, ledger: Path, out: str) -> Request:
        """Return the job over the files, with its results in the folder `out`."""
        return Request(
            task=self.question.task,
            options=self._options(),
            files=name_silos(self.files),
            schema_file=self.schema_file,
            columns=self.columns,
            epsilon=self.epsilon,
            nominal_n=self.nominal_n,
            max_loss=self.max_loss,
            ledger=ledger,
            cap_epsilon=self.cap_epsilon,
            out=Path(out),
        )

    @property
    def max_loss(self) -> float | None:
        """The share of rows that may be left out: all, if a person takes the files as they are."""
        return 1.0 if AS_IS in self.form else None

    def refuse_loss(self) -> None:
        """Raise a DataError where too many rows would be left out; it is for the owner's eyes."""
        columns = self.columns
        reports = [check_file(file, self.schema, columns) for file in self.files]
        refuse_loss(reports, roles_of(self._options(), columns), self.max_loss)


def _number(meaning: str, text: str) -> Any:
    """Return the number in a field."""
    try:
        return int(text) if text.strip().isdecimal() else float(text)
    except ValueError:
        raise PlanError(f"{meaning} must be a number, got {text[:40]!r}.") from None
