"""The analyses that the console offers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.app.files import name_silos
from cloister.app.job import Job
from cloister.app.request import Request
from cloister.console.guard import Form
from cloister.core.capability import QUESTIONS, Question, Suits
from cloister.core.errors import PlanError
from cloister.data import check_file, refuse_loss, roles_of
from cloister.data.schema import Column, Schema
from cloister.tasks import TASKS
from cloister.tasks.options import options_of

AS_IS = "as-is"
"""Name of the field by which a user accepts the files as they are."""


def _is_any(column: Column) -> bool:
    return True


def _is_number(column: Column) -> bool:
    return not _is_named(column)


def _is_named(column: Column) -> bool:
    return column.type in ("boolean", "category")


def _is_yes_no(column: Column) -> bool:
    return column.type == "boolean"


_SUITS: Mapping[Suits, Callable[[Column], bool]] = {
    "any": _is_any,
    "number": _is_number,
    "named": _is_named,
    "yes-no": _is_yes_no,
}


@dataclass(frozen=True)
class FormState:
    """The state of the question page: the chosen question, its fields and files.

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
        """The key of the question: that of the pressed button, or else that of the page."""
        name = self.form.get("ask") or self.form.get("of") or "auto"  # on the first visit
        if name not in QUESTIONS:
            raise PlanError(f"ask must be one of {', '.join(QUESTIONS)}, got {name!r}.")
        return name

    @property
    def question(self) -> Question:
        """The chosen question."""
        return QUESTIONS[self.name]

    @property
    def choices(self) -> tuple[str, ...]:
        """The columns that suit the question."""
        suits = _SUITS[self.question.suits]
        return tuple(column.name for column in self.schema.columns if suits(column))

    @property
    def target(self) -> str:
        """The column to predict; empty if the question has no target or none is chosen."""
        target = self._field("target", "")
        return target if "target" in self.question.start else ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The selected columns; before a selection, those that suit the question."""
        names = self.schema.names
        # Columns are sent by number, since a name may hold any character.
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
        """The options that the user chooses, each with its help text and its current text."""
        helps = {option.name: option.help for option in options_of(TASKS[self.name])}
        start = self.question.start
        return {name: (helps[name], self._field(name, text)) for name, text in start.items()}

    def _field(self, name: str, first: str) -> str:
        """Return the text of a field; the initial text if the page shows another question."""
        # Two questions may share an option, and its text for one may be wrong for the other.
        return self.form.get(name, first) if self.form.get("of") == self.name else first

    @property
    def epsilon(self) -> float:
        """The budget of the job."""
        return float(_number("epsilon", self.form.get("epsilon", "1")))

    @property
    def nominal_n(self) -> int:
        """The public number of records; thousands separators are accepted."""
        text = re.sub(r"(?<=\d)[.,' ](?=\d{3}(\D|$))", "", self.form.get("nominal_n", "").strip())
        if not text.isdecimal():
            raise PlanError(f"the number of records must be a whole number, got {text!r}.")
        return int(_number("the number of records", text))

    @property
    def cap_epsilon(self) -> float | None:
        """The lifetime cap of new data; None if the field is empty."""
        text = self.form.get("cap_epsilon", "").strip()
        cap = float(_number("the lifetime cap", text)) if text else None
        if cap is not None and cap < self.epsilon:
            raise PlanError(f"the lifetime cap must be at least epsilon, {self.epsilon:g}.")
        return cap

    def _options(self) -> dict[str, Any]:
        return {
            name: text if name == "target" else _number(meaning, text)
            for name, (meaning, text) in self.fields.items()
        } | self._tables()

    def _tables(self) -> dict[str, Any]:
        """Return the table of the chosen columns, and its test, for a task that has tables."""
        if not any(one.name == "tables" for one in options_of(TASKS[self.name])):
            return {}
        return {"tables": [[*self.columns]], "tests": ["chi2"] * (len(self.columns) == 2)}

    def job(self) -> Job:
        """Return the job, or raise a PlanError with a field of the page to change."""
        question = self.question
        if len(self.choices) < question.least:
            raise PlanError(
                f"{question.title!r} requires {question.least} such column(s); set the types of "
                "your columns on the previous page."
            )
        if "target" in question.start and not self.target:
            raise PlanError("choose the column to predict.")
        if not set(self.columns) - {self.target}:
            raise PlanError("choose the columns to use.")
        # Ledger and folder are not used for the plan.
        return self.request(Path(), "").job(self.schema)

    def request(self, ledger: Path, out: str) -> Request:
        """Return the job over the files, with its results in the folder `out`."""
        return Request(
            task=self.name,
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
        """The share of rows that may be excluded: all, if the user accepts the files as is."""
        return 1.0 if AS_IS in self.form else None

    def refuse_loss(self) -> None:
        """Raise DataError, which only the owner may see, if too many rows would be excluded."""
        columns = self.columns
        reports = [check_file(file, self.schema, columns) for file in self.files]
        refuse_loss(reports, roles_of(self._options(), columns), self.max_loss)


def _number(meaning: str, text: str) -> Any:
    """Return the number in a field."""
    try:
        return int(text) if text.strip().isdecimal() else float(text)
    except ValueError:
        raise PlanError(f"{meaning} must be a number, got {text[:40]!r}.") from None
