"""The analyses that the console offers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from cloister.app.files import name_silos, schemas_of, source_of
from cloister.app.forecast import is_share, least_records, margins
from cloister.app.job import Job
from cloister.app.request import Request
from cloister.console.guard import Form
from cloister.core.capability import QUESTIONS, Question, Suits
from cloister.core.errors import DataError, PlanError
from cloister.data import ReadingReport, check_file, refuse_loss, roles_of
from cloister.data.loss import unread
from cloister.data.schema import Column, Schema
from cloister.tasks import TASKS
from cloister.tasks.options import options_of

_LARGEST = 100.0  # epsilon
_OF_RECORDS = ("count", "records")  # forecasts of numbers of records
_CURVE = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
AS_IS = "as-is"
"""Name of the field by which a user accepts the files as they are."""


def _is_any(column: Column) -> bool:
    return True


def _is_number(column: Column) -> bool:
    return not _is_named(column)


def _is_named(column: Column) -> bool:
    return column.type in ("boolean", "category")


def _is_completable(column: Column) -> bool:
    # A category may be called "keep", which then is a value in place of a rule.
    two = len(column.categories) == 2 and "keep" not in column.categories
    return _is_number(column) or _is_yes_no(column) or two


def _is_yes_no(column: Column) -> bool:
    return column.type == "boolean"


_SUITS: Mapping[Suits, Callable[[Column], bool]] = {
    "any": _is_any,
    "number": _is_number,
    "named": _is_named,
    "yes-no": _is_yes_no,
}
_KINDS: Mapping[Suits, str] = {
    "any": "any type",
    "number": "numbers",
    "named": "categories or yes and no",
    "yes-no": "yes and no",
}


@dataclass(frozen=True)
class Field:
    """A field of the page for an option.

    Parameters
    ----------
    name, help, text : str
    choices : tuple of str
        The allowed texts; empty if any text is allowed.
    """

    name: str
    help: str
    text: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class FormState:
    """The state of the question page: the chosen question, its fields and files.

    Parameters
    ----------
    form : mapping
        The text of each field.
    files : tuple of Path
    schema_file : Path
    declared : Schema
        The content of that file.
    reading : Path, optional
        Settings of each file.
    """

    form: Form
    files: tuple[Path, ...]
    schema_file: Path
    declared: Schema
    reading: Path | None = None

    @property
    def name(self) -> str:
        """The key of the question: that of the pressed button, or else that of the page."""
        name = self.form.get("ask") or self.form.get("of") or next(iter(QUESTIONS))
        if name not in QUESTIONS:
            raise PlanError(f"ask must be one of {', '.join(QUESTIONS)}, got {name!r}.")
        return name

    @property
    def question(self) -> Question:
        """The chosen question."""
        return QUESTIONS[self.name]

    @property
    def baskets(self) -> tuple[str, ...]:
        """The layout of the files, if they are market baskets."""
        return tuple(filter(None, [self.form.get("baskets", "")]))

    def _suitable(self, suits: Suits) -> tuple[str, ...]:
        return tuple(column.name for column in self.declared.columns if _SUITS[suits](column))

    @cached_property
    def roles(self) -> dict[str, str]:
        """The column of each role; empty for a role without one."""
        roles: dict[str, str] = {}
        for name, suits in self.question.roles.items():
            rest = [column for column in self._suitable(suits) if column not in roles.values()]
            hinted = [column for column in rest if self._is_hinted(name, column)]
            # Of columns of any type, a number: most families of a target need one.
            hinted += [column for column in self._suitable("number") if column in rest]
            first = "" if name in self.question.optional else next(iter([*hinted, *rest]), "")
            roles[name] = self._field(name, first)
        return roles

    def _is_hinted(self, role: str, column: str) -> bool:
        words = re.split(r"[^a-z]+", column.lower())
        return any(word.startswith(self.question.hints.get(role, ())) for word in words)

    @property
    def role_fields(self) -> list[Field]:
        """The fields of the roles, each with the columns that suit."""
        return [
            Field(name, self._helps[name], self.roles[name], self._suitable(suits))
            for name, suits in self.question.roles.items()
        ]

    @property
    def others(self) -> tuple[str, ...]:
        """The columns that can be used without a role."""
        suitable = () if self.question.most == 0 else self._suitable(self.question.suits)
        return tuple(name for name in suitable if name not in self.roles.values())

    @cached_property
    def used(self) -> tuple[str, ...]:
        """The columns without a role that are selected; the first ones before a selection."""
        if self.form.get("of") != self.name:
            # Categories first, as they need no bins.
            first = sorted(self.others, key=self.edges.__contains__)[: self.question.most]
            return tuple(name for name in self.others if name in first)
        chosen, shown = self._named("column"), self._named("shown")
        # A column that has lost its role is used if all others are.
        if shown and chosen >= shown & {*self.others} and not self.question.most:
            chosen |= {*self.others} - shown
        return tuple(name for name in self.others if name in chosen)

    def _named(self, field: str) -> set[str]:
        # Columns are sent by number, since a name may hold any character.
        chosen = self.form.getlist(field)
        return {name for at, name in enumerate(self.declared.names) if str(at) in chosen}

    @property
    def completable(self) -> tuple[str, ...]:
        """The columns whose missing cells a model can complete, if the question is one of these."""
        # A task with this member is given the records that lack a cell.
        if not hasattr(TASKS[self.name], "incomplete"):
            return ()
        return tuple(
            column.name
            for column in self.declared.columns
            if column.name in self.others and _is_completable(column)
        )

    @cached_property
    def completed(self) -> tuple[str, ...]:
        """Those that the user chose; before a choice, those that the schema keeps."""
        if self.form.get("of") == self.name:
            chosen = self._named("complete") & {*self.used}
        else:
            chosen = {column.name for column in self.declared.columns if column.keeps_missing}
        return tuple(name for name in self.completable if name in chosen)

    @cached_property
    def schema(self) -> Schema:
        """The schema of the job, which keeps the missing cells that the question completes."""
        if not self.completable:
            return self.declared
        columns = (
            column.model_copy(update={"missing": "keep"})
            if column.name in self.completed
            else column.model_copy(update={"missing": "drop"} if column.keeps_missing else {})
            for column in self.declared.columns
        )
        return self.declared.model_copy(update={"columns": tuple(columns)})

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the job."""
        return tuple(
            name for name in self.schema.names if name in {*self.used, *self.roles.values()}
        )

    @property
    def fields(self) -> list[Field]:
        """The fields of the other options."""
        declared = {option.name: option for option in options_of(TASKS[self.name])}
        return [
            Field(name, self._helps[name], self._field(name, text), _words(declared[name].kind))
            for name, text in self.question.start.items()
        ]

    @property
    def edges(self) -> dict[str, str]:
        """The text of the edges between bins of each numeric column that needs them."""
        if not self.question.bins:
            return {}
        return {
            column.name: self._field(f"edges-{i}", _parts(column, self.question.bins))
            for i, column in enumerate(self.declared.columns)
            if column.name in self.others and _is_number(column)
        }

    @cached_property
    def _helps(self) -> dict[str, str]:
        return {option.name: option.help for option in options_of(TASKS[self.name])}

    def _field(self, name: str, first: str) -> str:
        """Return the text of a field; the initial text if the page shows another question."""
        # Two questions may share an option, and its text for one may be wrong for the other.
        return self.form.get(name, first) if self.form.get("of") == self.name else first

    @cached_property
    def epsilon(self) -> float:
        """The budget of the job: the least one for the wanted precision, or that of the field."""
        if self.want:
            budget = self._job(_LARGEST).wanted(self.want, self.nominal_n).budget
            assert budget is not None
            return budget.epsilon
        return float(_number("epsilon", self.form.get("epsilon", "1")))

    @cached_property
    def want(self) -> dict[str, float]:
        """The wanted margin of error of a forecast; empty if the user entered an epsilon."""
        width = self._width
        return {} if width is None else {self.want_of: width}

    @cached_property
    def _width(self) -> float | None:
        text = self._field("want", "").strip()
        if not (text and self.question.forecast):
            return None
        return _share("the wanted precision", text)

    @cached_property
    def want_of(self) -> str:
        """The forecast whose precision is wanted, by name; the first one on the first visit.

        A precision below one record is that of a share.
        """
        name = self._field("want_of", "") or next(iter(self.forecasts), "")
        if name in _OF_RECORDS and self._width is not None and self._width < 1:
            return next(filter(is_share, self.forecasts), name)
        return name

    @cached_property
    def forecasts(self) -> tuple[str, ...]:
        """The names of the task's forecasts."""
        return tuple(margins(self._job(_LARGEST).plan)) if self.question.forecast else ()

    @cached_property
    def has_least(self) -> bool:
        """True if the plan knows the least number of complete records in place of an error."""
        return not self.question.forecast and least_records(self._job(_LARGEST).plan) is not None

    def errors(self) -> dict[float, float]:
        """Return the expected error at several epsilons where the task has a plan.

        It is the least number of complete records if that is what the plan knows.
        """
        errors: dict[float, float] = {}
        # Labels of near points would overlap.
        others = (one for one in _CURVE if not 2 / 3 < one / self.epsilon < 3 / 2)
        for epsilon in sorted([*others, self.epsilon]):
            with suppress(PlanError):
                plan = self._job(epsilon).plan
                least = least_records(plan)
                error = margins(plan).get(self.want_of, math.inf) if least is None else least
                errors |= {epsilon: error} if 0 < error < math.inf else {}
        return errors

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

    @property
    def renewal(self) -> dict[str, Any] | None:
        """The options of :meth:`Horizon.of`, if the answer is renewed.

        None if the number of periods is empty, or if persons have no identifier that could count
        them.
        """
        text = self.form.get("periods", "").strip()
        if not text or self.schema.unit == "row":
            return None
        most = self.form.get("max_periods", "").strip() or "1"
        for meaning, field in (("periods", text), ("periods of one person", most)):
            if not re.fullmatch(r"\d{1,3}", field):
                raise PlanError(
                    f"the number of {meaning} must be a whole number, got {field[:40]!r}."
                )
        keep = self.form.get("keep", "").strip()
        return {
            "periods": int(text),
            "max_periods": int(most),
            "workload": self.form.get("workload", "all"),
            "keep": _share("the share that is kept", keep) if keep else None,
        }

    def _options(self) -> dict[str, Any]:
        edges = {
            name: [_number(f"an edge of {name!r}", edge) for edge in re.split(r"[,;]\s*", text)]
            for name, text in self.edges.items()
            if name in self.used
        }
        return {
            **{name: column for name, column in self.roles.items() if column},
            **{
                field.name: field.text if field.choices else _number(field.help, field.text)
                for field in self.fields
                if field.text.strip()
            },
            **({"edges": edges} if edges else {}),
            **self._tables(),
        }

    def _tables(self) -> dict[str, Any]:
        """Return the table of the selected columns, and its test, for a task that has tables."""
        if "tables" not in self._helps:
            return {}
        return {"tables": [[*self.used]], "tests": ["chi2"] * (len(self.used) == 2)}

    def job(self) -> Job:
        """Return the job, or raise a PlanError with a field of the page to change."""
        question = self.question
        for name, column in self.roles.items():
            if not (column or name in question.optional):
                raise PlanError(
                    f"{question.title!r} requires a column of {_KINDS[question.roles[name]]}; set "
                    "the types of your columns on the previous page."
                )
        if len(self.others) < question.least:
            raise PlanError(
                f"{question.title!r} requires {question.least} column(s) of "
                f"{_KINDS[question.suits]}; set the types of your columns on the previous page."
            )
        if len(self.used) < question.least:
            raise PlanError(f"choose {question.least} or more columns to use.")
        if self.completable and not self.completed:
            raise PlanError("choose one or two columns whose missing cells are to be completed.")
        return self.request(Path(), "").job(self.schema)

    def _job(self, epsilon: float) -> Job:
        # Cap, ledger and folder are not used for the plan.
        return self._request(epsilon).job(self.schema)

    def request(self, ledger: Path, out: str) -> Request:
        """Return the job over the files, with its results in the folder `out`."""
        paid = {"ledger": ledger, "cap_epsilon": self.cap_epsilon, "out": Path(out)}
        return self._request(self.epsilon).model_copy(update=paid)

    def _request(self, epsilon: float) -> Request:
        return Request(
            task=self.name,
            options=self._options(),
            files=name_silos(self.files),
            schema_file=self.schema_file,
            reading=self.reading,
            baskets=self.baskets,
            columns=self.columns,
            epsilon=epsilon,
            nominal_n=self.nominal_n,
            max_loss=self.max_loss,
            ledger=Path(),
            out=Path(),
        )

    @property
    def max_loss(self) -> float | None:
        """The share of rows that may be excluded: all, if the user accepts the files as is."""
        return 1.0 if AS_IS in self.form else None

    def refuse_loss(self) -> list[ReadingReport]:
        """Return the report of each file, for its owner alone.

        Raises
        ------
        DataError
            If too many rows would be excluded or, whatever the user accepts, all rows of a value
            of a target, an event or groups.
        """
        columns = self.columns
        schemas = schemas_of(self.schema, self.files, self.reading)
        completed = columns or () if hasattr(self.job().task, "incomplete") else ()
        reports = [
            check_file(source_of(file, self.baskets), schemas[file], columns).for_task(completed)
            for file in self.files
        ]
        roles = roles_of(self._options(), columns)
        refuse_loss(reports, roles, self.max_loss)
        if biased := [sentence for report in reports for sentence in unread(report, roles)]:
            raise DataError(" ".join([*biased, "Correct this, or leave the column out."]))
        return reports


def _words(kind: Any) -> tuple[str, ...]:
    """Return the allowed words of an option's kind; empty if it has none."""
    if get_origin(kind) is Literal:
        return tuple(word for word in get_args(kind) if isinstance(word, str))
    return tuple(word for part in get_args(kind) for word in _words(part))


def _parts(column: Column, bins: int) -> str:
    """Return edges between equal parts of a column's public range."""
    step = (column.max - column.min) / bins
    return ", ".join(f"{column.min + i * step:.6g}" for i in range(1, bins))


def _share(meaning: str, text: str) -> float:
    """Return the number in a field, which may be written as a percentage."""
    share = text.removesuffix("%")
    value = float(_number(meaning, share.strip().replace(",", ".")))
    return value / 100 if share != text else value


def _number(meaning: str, text: str) -> Any:
    """Return the number in a field."""
    try:
        return int(text) if text.strip().isdecimal() else float(text)
    except ValueError:
        raise PlanError(f"{meaning} must be a number, got {text[:40]!r}.") from None
