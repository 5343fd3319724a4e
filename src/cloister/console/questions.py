"""What a person at a desk can ask, and the plan and the command that answer it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloister.console.guard import Form
from cloister.errors import PlanError
from cloister.jobs import budget_of, make_plan
from cloister.protocol.plan import Plan
from cloister.schema import Column, Schema
from cloister.tasks import TASKS
from cloister.tasks.options import options_of


@dataclass(frozen=True)
class Question:
    """A task, in the words of whoever asks.

    Parameters
    ----------
    title, task : str
    start : mapping of str to str
        Options that a person chooses, and what they are at first.
    suits : {"any", "numbers", "named", "yes-no"}
        Which columns a target, or without one each column, may be.
    """

    title: str
    task: str
    start: Mapping[str, str] = field(default_factory=dict)
    suits: str = "any"

    def fits(self, column: Column) -> bool:
        """Return whether a column can be the target or, without one, is used at first."""
        named = 2 if column.type == "boolean" else len(column.categories)
        return {"any": True, "numbers": not named, "named": named >= 2, "yes-no": named == 2}[
            self.suits
        ]


QUESTIONS = {
    "groups": Question("Which groups are there?", "auto", {"n_clusters": "3"}, "numbers"),
    "how-many-groups": Question(
        "How many groups are there?",
        "selectk",
        {"min_clusters": "2", "max_clusters": "8"},
        "numbers",
    ),
    "who": Question("Who will, and how likely? (a category)", "logistic", {"target": ""}, "named"),
    "how-much": Question("How much will it be? (a number)", "linear", {"target": ""}, "numbers"),
    "unusual": Question("Which records are unusual?", "outliers"),
    "together": Question(
        "What goes together? (yes-no columns)", "apriori", {"min_support": "0.05"}, "yes-no"
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
        """Which of the questions it is."""
        name = self.form.get("ask", "groups")
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
        return tuple(one.name for one in self.schema.columns if self.question.fits(one))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are used, at first those that suit; a target is always one."""
        all_of_them = self.schema.names if "target" in self.question.start else self.choices
        target = self.fields.get("target", ("", ""))[1]
        chosen = {*(self.form.getlist("column") or all_of_them), target}
        return tuple(name for name in self.schema.names if name in chosen)

    @property
    def fields(self) -> dict[str, tuple[str, str]]:
        """The options that a person chooses: for each its meaning, and its text."""
        start = dict(self.question.start)
        if "target" in start:
            start["target"] = next(iter(self.choices), "")
        known = {one.name: one.help for one in options_of(TASKS[self.question.task])}
        return {name: (known[name], self.form.get(name, text)) for name, text in start.items()}

    def _options(self) -> dict[str, Any]:
        return {
            name: text if name == "target" else _number(meaning, text)
            for name, (meaning, text) in self.fields.items()
        }

    def plan(self) -> Plan:
        """Return the plan of the job, or raise a PlanError in words for whoever asks."""
        nominal_n = _number("the number of records", self.form.get("nominal_n", ""))
        task = TASKS[self.question.task]
        return make_plan(
            task,
            self.schema,
            [f"silo-{number}" for number in range(1, len(self.files) + 1)],
            budget=budget_of(task, _number("epsilon", self.form["epsilon"]), None, nominal_n),
            nominal_n=nominal_n,
            columns=self.columns,
            **self._options(),
        )

    def command(self, out: str) -> list[str]:
        """Return the command that does the same in a terminal, without its program."""
        options = (f"{name}={json.dumps(value)}" for name, value in self._options().items())
        cap, some = self.form.get("cap_epsilon"), self.columns != self.schema.names
        return [
            *("run", *map(_word, self.files), "--schema", _word(self.schema_file)),
            *(("--columns", ",".join(self.columns)) if some else ()),
            *("--task", self.question.task),
            *(word for option in options for word in ("--set", option)),
            *("--epsilon", self.form["epsilon"], "--nominal-n", self.form["nominal_n"]),
            *(("--cap-epsilon", cap) if cap else ()),
            *("--out", out),
        ]


def _word(path: Path) -> str:
    """Return a file's name as a command takes it, which an option cannot be."""
    return f"./{path.name}" if path.name.startswith("-") else path.name


def _number(meaning: str, text: str) -> Any:
    """Return the number in a field."""
    try:
        return int(text) if text.strip().isdecimal() else float(text)
    except ValueError:
        raise PlanError(f"{meaning} must be a number, got {text!r}.") from None
