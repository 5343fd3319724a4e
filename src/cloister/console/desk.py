"""Pages for the owner of files: from files to columns, a question, its price and a report.

Of a file they show its name and the names and types of its columns, never a value, a count or a
bound. The one exception is the report of excluded rows, which counts rows and quotes words. Only
the owner of the file sees it, and no file stores it. The address of a page contains the user's
choices, and each job runs in a separate process.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Self
from unicodedata import normalize
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from cloister.app.answer import Answer
from cloister.app.files import SiloFiles, source_of
from cloister.app.forecast import expected, plan_warnings, unknown_error
from cloister.app.horizon import HORIZON
from cloister.app.horizon_report import noise_table
from cloister.app.request import Request
from cloister.app.text import attacker_sentence, cell_text
from cloister.app.worker import ANSWER
from cloister.console.curve import curve
from cloister.console.guard import Form
from cloister.console.horizons import Horizons, Renewed, horizon_of, likely
from cloister.console.jobs import EVENTS, Run, Runs
from cloister.console.parts import a_picture, a_report, budget_gauge, console_app, to_page
from cloister.console.preview import preview_of
from cloister.console.questions import AS_IS, FormState
from cloister.core.capability import QUESTION_GROUPS, QUESTIONS
from cloister.core.display import Table
from cloister.core.errors import BudgetExceeded, CloisterError, DataError, PlanError
from cloister.core.html import compile_ahead, page
from cloister.core.numerals import counted, number
from cloister.data import (
    ReadingReport,
    Remedy,
    check_file,
    declared_types,
    header,
    is_above,
    is_table,
)
from cloister.data.check import fitted
from cloister.data.loss import unread
from cloister.data.schema import Column, Schema, read_cell, read_codebook, reading_file
from cloister.privacy import accounting
from cloister.privacy.ledger import Ledger
from cloister.protocol.code import preload_digests
from cloister.tasks import TASKS

_PAGES = (("/", "Files and answers"),)
# Fields of one column.
_CELLS = ("type", "min", "max", "categories", "format", "spellings", "absent")
_HEAD = ("dataset", "unit", "max_rows", "decimal", "thousands", "encoding")  # of all columns
_READING = "-reading"  # ending of the name of a file with the settings of each file
_ROWS = "long"
_LAYOUTS = (
    ("", "a table with one record a row"),
    ("lines", "baskets, one a line, with commas between items"),
    ("lines:;", "baskets, one a line, with semicolons between items"),
    (_ROWS, "baskets, one item a row: the columns basket and item first"),
)
_CAP = "cap_epsilon"  # ignored if the ledger has a cap for the data set


def desk_app(folder: Path, ledger: Path) -> Starlette:
    """Return the pages of a desk, to be wrapped in :class:`~cloister.console.guard.Guard`.

    Parameters
    ----------
    folder : Path
        Folder of the files; schemas and results are written there.
    ledger : Path
        The ledger that commands of this user charge.
    """
    runs, horizons = Runs(folder), Horizons(folder, ledger)
    compile_ahead("desk.html")

    def shown(request: HttpRequest, view: str, step: int, **values: object) -> Response:
        common = {"csrf": request.state.csrf, "pages": _PAGES, "step": step}
        root = request.scope["root_path"]
        return HTMLResponse(page("desk.html", root=root, view=view, **common, **values))

    def start(request: HttpRequest) -> Response:
        files = _inside(folder, folder.iterdir())
        meanings = [path.name for path in files if _is_codebook(path)]
        tables = [path.name for path in files if is_table(path) and path.name not in meanings]
        done = list(runs.read(_jobs(folder)))
        answers = list(horizons.read(_horizons(folder)))
        others = set(_reports(folder)) - {run.name for run in done}  # of commands in a terminal
        others -= {one.name for one in answers}
        names: dict[str, object] = {
            "tables": tables,
            "meanings": meanings,
            "runs": done,
            "renewed": answers,
            "reports": sorted(others),
        }
        costs = _costs(ledger) if done else {}
        names |= {"questions": QUESTIONS, "costs": costs, "layouts": _LAYOUTS}
        return shown(request, "files", 1, folder=folder, **names)

    def columns(request: HttpRequest) -> Response:
        return about_columns(request, _Columns.of(folder, request.query_params))

    def describe(request: HttpRequest) -> Response:
        form = request.state.form
        state, own = _Columns.of(folder, form).with_form(form), "own-formats" in form
        try:
            for proposal in form.getlist("apply"):
                state = state.applied(proposal)
            for proposal in form.getlist("proposal") if "apply-all" in form else ():
                with suppress(PlanError):  # it excludes an earlier one
                    state = state.applied(proposal)
            state = state.without(form.getlist("forget"))
            schema = state.schema()
            # Only settings with one meaning are added without a question.
            reports: dict[Path, tuple[Schema, ReadingReport]] = {}
            for file, each in state.schemas().items():
                each, _, report = fitted(file, each) if own else (each, (), state.check(file, each))
                reports[file] = each, report
            losses, is_open = _losses({file: report for file, (_, report) in reports.items()})
            if losses and (is_open or AS_IS not in form):
                return about_columns(request, state, losses=losses, own=own, is_open=is_open)
            stem = re.sub(r"[^\w-]+", "-", schema.dataset)[:60]
            chosen = [("file", file.name) for file in state.files]
            chosen.append(("schema", _written(schema.to_toml(), folder, stem).name))
            if own or state.settings:
                text = reading_file({file.name: each for file, (each, _) in reports.items()})
                chosen.append(("reading", _written(text, folder, f"{stem}{_READING}").name))
            chosen += [("baskets", state.baskets)] if state.baskets else []
            chosen += [(AS_IS, "1")] if AS_IS in form else []
            return to_page(request, f"/question?{urlencode(chosen)}")
        except CloisterError as error:
            problems = [str(error)]
            if state.lacking:
                problems.append("Or choose the names in each file, below the columns.")
            if own:
                problems.append("No setting for the format of each file was found.")
            return about_columns(request, state, problems)

    def about_columns(
        request: HttpRequest,
        state: _Columns,
        problems: Sequence[str] = (),
        losses: Sequence[Loss] = (),
        own: bool = False,
        is_open: bool = False,
    ) -> Response:
        # `said` is the name in the template.
        values = {
            "own": own,
            "is_open": is_open,
            "said": state,
            "problems": problems,
            "losses": losses,
            "together": _together([loss.apply for loss in losses if loss.apply], state.head),
            "date_formats": _DATES,
        }
        return shown(request, "columns", 2, **values)

    def question(request: HttpRequest) -> Response:
        entered = _asked(folder, request.query_params)
        values: dict[str, object] = {"problem": "", "plan": None, "warnings": (), "tables": ()}
        values |= {"horizon": None, "wanted": False}
        budget = _gauge(ledger, entered.schema.dataset)
        if entered.form.get("nominal_n"):  # empty on the first visit, when there is no price
            try:
                values |= _priced(entered, budget)
            except CloisterError as error:
                values["problem"] = str(error)
                with suppress(CloisterError):  # so that another precision can be chosen
                    values["wanted"] = bool(entered.want and entered.forecasts)
        out = _unused(folder, entered.name).name
        form = [pair for pair in entered.form.multi_items() if not budget or pair[0] != _CAP]
        # The address of the button has the form as it was priced, to be compared on submission.
        where = "horizons" if values.get("horizon") else "run"
        spend = f"{request.scope['root_path']}/{where}?{urlencode([*form, ('out', out)])}"
        values |= {"asked": entered, "groups": _GROUPS, "gauge": budget, "spend": spend}
        values["query"] = urlencode(entered.form.multi_items())
        return shown(request, "question", 3, **values)

    def errors(request: HttpRequest) -> Response:
        entered = _asked(folder, request.query_params)
        signs = {"sign": ""} if entered.has_least else {}
        return a_picture(curve(entered.errors(), entered.epsilon, **signs))

    previews: dict[tuple[str, str], Answer] = {}  # of a page and of its picture
    rows_of: dict[str, list[str]] = {}  # sentences for the owner, by the name of a job

    def previewed(request: HttpRequest) -> tuple[FormState, Answer]:
        entered = _asked(folder, request.query_params)
        key = (request.url.query, entered.schema.digest())
        answer = previews.get(key)
        if answer is None:
            answer = preview_of(entered.job(), entered.nominal_n)
            previews.clear()
            previews[key] = answer
        return entered, answer

    def preview(request: HttpRequest) -> Response:
        entered, answer = previewed(request)
        values = {"asked": entered, "answer": answer, "query": request.url.query}
        return shown(request, "preview", 3, **values)

    def preview_picture(request: HttpRequest) -> Response:
        return a_picture(previewed(request)[1].picture)

    def submitted(request: HttpRequest) -> tuple[FormState, Request, str]:
        """Return the question of a button, with its job and the name for its results."""
        entered, priced = (
            _asked(folder, form) for form in (request.state.form, request.query_params)
        )
        out = request.query_params.get("out", "")
        # The name comes from the address, so it must not lead out of the folder.
        if not re.fullmatch(rf"{entered.name}(-\d+)?", out):
            raise DataError("this form names no folder for its results; load its page again.")
        job = entered.request(ledger, out)
        same = job.command(entered.schema) == priced.request(ledger, out).command(entered.schema)
        same = same and entered.schema == priced.schema
        if not same or entered.renewal != priced.renewal:
            raise PlanError(
                "the question has changed since its price was shown; go back and review the price."
            )
        if entered.schema != entered.declared:  # it keeps missing cells
            text, stem = entered.schema.to_toml(), entered.schema_file.stem
            job = job.model_copy(update={"schema_file": _written(text, folder, stem)})
        return entered, job, out

    def run(request: HttpRequest) -> Response:
        entered, job, out = submitted(request)
        command = _line(job.command(entered.schema))
        if not (
            out in _jobs(folder) and runs.has(out, command)
        ):  # a second press of the button has no effect
            _priced(entered, _gauge(ledger, entered.schema.dataset))
            # Here and not in the worker, whose log is a file: counts stay in memory.
            reports = entered.refuse_loss()
            rows_of[out] = list(_rows_used(entered.files, reports))
            form = [pair for pair in request.query_params.multi_items() if pair[0] != "out"]
            runs.start(job, command, urlencode(form))
        return to_page(request, f"/runs/{out}")

    def renew(request: HttpRequest) -> Response:
        entered, _, out = submitted(request)
        if out not in _horizons(folder):  # a second press of the button has no effect
            _priced(entered, _gauge(ledger, entered.schema.dataset))
            horizons.open(entered, out)
        return to_page(request, f"/horizons/{out}")

    def horizon(request: HttpRequest) -> Response:
        return about_horizon(request, renewed(request))

    def renewed(request: HttpRequest) -> Renewed:
        name = request.path_params["name"]
        if name not in _horizons(folder):
            raise DataError(f"there is no horizon {name!r}; see the page of files and answers.")
        return horizons.find(name)

    def about_horizon(request: HttpRequest, one: Renewed, problem: str = "") -> Response:
        files = _inside(folder, folder.iterdir())
        tables = [path.name for path in files if is_table(path) and not _is_codebook(path)]
        # A file that was there before has rows that arrived before.
        new = [name for name in tables if (folder / name).stat().st_mtime > one.released_at]
        form, ended, drawn = request.state.form, "", one.n
        try:
            drawn = horizons.drawn(one)
        except CloisterError as error:
            ended = str(error)
        chosen = [
            (silo, (problem and form.get(f"file-{i}")) or likely(silo, new, first=not drawn))
            for i, silo in enumerate(one.horizon.plan.silos)
        ]
        values = {
            "one": one,
            "problem": problem,
            "ended": ended,
            "drawn": drawn,
            "tables": tables,
            "readings": [path.name for path in files if _is_reading(path)],
            "chosen": chosen,
            "rows_used": horizons.notices.get(one.name, []),
            "gauge": _gauge(ledger, one.kept.schema.dataset),
            "has_report": one.name in _reports(folder),
            "questions": QUESTIONS,
        }
        return shown(request, "horizon", 4, **values)

    def release(request: HttpRequest) -> Response:
        one, form = renewed(request), request.state.form
        silos = one.horizon.plan.silos
        try:
            period = form.get("period", "")
            if not re.fullmatch(r"\d{1,3}", period):
                raise PlanError("this form names no period; load its page again.")
            # A period that was drawn before a crash has no fields of files.
            names = [form.get(f"file-{i}") for i in range(len(silos)) if f"file-{i}" in form]
            if len(set(names)) < len(names):
                raise PlanError("each organisation needs its own file; choose another one.")
            files = {
                silo: _in(folder, name or "") for silo, name in zip(silos, names, strict=False)
            }
            reading = _in(folder, name) if (name := form.get("reading", "")) else None
            accepted = 1.0 if AS_IS in form else None
            horizons.release(one, int(period), SiloFiles(paths=files, reading=reading), accepted)
        except CloisterError as error:
            return about_horizon(request, one, str(error))
        return to_page(request, f"/horizons/{one.name}")

    def horizon_picture(request: HttpRequest) -> Response:
        one, part = renewed(request), request.path_params["part"]
        answer = one.answers.get(part)
        if answer is None or not answer.picture:
            raise DataError("this answer has no picture.")
        return a_picture(answer.picture)

    def found(request: HttpRequest) -> Run:
        name = request.path_params["name"]
        if name not in _jobs(folder):
            raise DataError(f"no job {name!r} was started here; see the page of files and answers.")
        return runs.find(name)

    def progress(request: HttpRequest) -> Response:
        run = found(request)
        reported = run.name in _reports(folder)
        answer = answered(run.name) if run.state == "done" else None
        values = {"run": run, "has_report": reported, "answer": answer, "questions": QUESTIONS}
        values["rows_used"] = rows_of.get(run.name, [])
        return shown(request, "run", 4, folder=folder, **values)

    def answered(name: str) -> Answer | None:
        # A link may lead out of the folder.
        is_here = _inside(folder, [folder / name / ANSWER])
        return runs.answer(name) if is_here else None

    def picture(request: HttpRequest) -> Response:
        answer = answered(found(request).name)
        if answer is None or not answer.picture:
            raise DataError("this answer has no picture.")
        return a_picture(answer.picture)

    def stop(request: HttpRequest) -> Response:
        name = found(request).name
        runs.stop(name)
        return to_page(request, f"/runs/{name}")

    def report(request: HttpRequest) -> Response:
        name = request.path_params["name"]
        if name not in _reports(folder):
            raise DataError(f"there is no report {name!r} in folder {folder.name!r}.")
        return a_report((folder / name / "report.html").read_text("utf-8"))

    return console_app(
        _PAGES,
        Route("/", start),
        Route("/columns", columns),
        Route("/columns", describe, methods=["POST"]),
        Route("/question", question),
        Route("/errors.svg", errors),
        Route("/preview", preview),
        Route("/preview.svg", preview_picture),
        Route("/run", run, methods=["POST"]),
        Route("/horizons", renew, methods=["POST"]),
        Route("/horizons/{name}", horizon),
        Route("/horizons/{name}/release", release, methods=["POST"]),
        Route("/horizons/{name}/{part}.svg", horizon_picture),
        Route("/runs/{name}", progress),
        Route("/runs/{name}/picture.svg", picture),
        Route("/runs/{name}/stop", stop, methods=["POST"]),
        Route("/reports/{name}", report),
    )


def warm_up() -> None:
    """Load what the first price of a question needs; it takes seconds, so no page waits for it."""
    import_module("scipy.special")
    import_module("scipy.signal")  # survival times
    preload_digests(TASKS, QUESTIONS)


# Files --------------------------------------------------------------------------------------------


def _is_codebook(path: Path) -> bool:
    """Return True if a file is a codebook or a schema, judged by its header alone."""
    # The header alone: a table of records may be large, and its values must not be read here.
    if path.suffix.lower() == ".csv":
        with suppress(CloisterError):
            return {"name", "type"} <= set(header(path))
    return path.suffix.lower() == ".toml" and not _is_reading(path)


def _is_reading(path: Path) -> bool:
    """Return True if a file has the settings of each file, by its name."""
    return path.suffix.lower() == ".toml" and bool(re.search(rf"{_READING}(-\d+)?$", path.stem))


def _in(folder: Path, name: str) -> Path:
    """Return the path of a file in the folder; raise DataError for any other path."""
    # Compared with a listing, so that a name such as ../x is no file of the folder.
    if name not in {path.name for path in _inside(folder, folder.iterdir())}:
        raise DataError(f"there is no file {name!r} in folder {folder.name!r}; choose another.")
    return folder / name


def _files(folder: Path, form: Form) -> tuple[Path, ...]:
    names = form.getlist("file")
    if not names:
        raise DataError("no file was chosen; choose at least one, one file per organisation.")
    return tuple(_in(folder, name) for name in names)


def _inside(folder: Path, paths: Iterable[Path]) -> list[Path]:
    """Return the files whose contents are in the folder; a symbolic link may lead out of it."""
    return sorted(
        path for path in paths if path.is_file() and path.resolve().is_relative_to(folder)
    )


def _reports(folder: Path) -> list[str]:
    return [path.parent.name for path in _inside(folder, folder.glob("*/report.html"))]


def _jobs(folder: Path) -> list[str]:
    """Return the names of the folders with the results of jobs that a console started."""
    return [path.parent.name for path in _inside(folder, folder.glob(f"*/{EVENTS}"))]


def _horizons(folder: Path) -> list[str]:
    """Return the names of the folders with a horizon."""
    return [path.parent.name for path in _inside(folder, folder.glob(f"*/{HORIZON}"))]


def _unused(folder: Path, stem: str, suffix: str = "") -> Path:
    """Return a path that does not exist yet."""
    names = (f"{stem}{f'-{number}' if number > 1 else ''}{suffix}" for number in count(1))
    return next(path for path in map(folder.joinpath, names) if not path.exists())


# Columns ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Columns:
    """The description of the columns of files, from a codebook, a schema or the user.

    Parameters
    ----------
    files : tuple of Path
    meaning : str
        Name of the codebook or schema; empty if there is none.
    head : mapping
        Fields of the schema that are not about one column.
    columns : mapping of str to mapping
        Fields of each column of the files.
    baskets : str
        Layout of market baskets, whose columns are the items of a codebook or a schema.
    settings : mapping of str to mapping
        The proposals that were applied, as reading settings of a file, by its name.
    """

    files: tuple[Path, ...]
    meaning: str
    head: Mapping[str, Any]
    columns: Mapping[str, Mapping[str, Any]]
    baskets: str = ""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, form: Form) -> Self:
        """Return the description from the files' types and a codebook or a schema."""
        files, meaning = _files(folder, form), form.get("meaning", "")
        head: Mapping[str, Any] = {"dataset": folder.name, "unit": "row"}
        layout = form.get("baskets", "")
        fields: Mapping[str, Mapping[str, Any]] = {} if layout else declared_types(files[0])
        if meaning in {file.name for file in files}:
            raise DataError(
                f"file {meaning!r} holds records, so it cannot be their codebook; choose another."
            )
        if meaning:
            path = _in(folder, meaning)
            if path.suffix.lower() == ".toml":
                head = Schema.load(path).model_dump(exclude={"columns"})
            fields = {**fields, **read_codebook(path)}
        if layout:
            return cls(files, meaning, head, _items(fields), _layout(layout, files[0]))
        names = header(files[0], form.get("encoding") or head.get("encoding", ""))
        return cls(files, meaning, head, {name: fields.get(name, {}) for name in names if name})

    def check(self, file: Path, schema: Schema) -> ReadingReport:
        """Return the exact counts of a file, which only its owner sees."""
        return check_file(source_of(file, (self.baskets,) if self.baskets else ()), schema)

    def with_form(self, form: Form) -> Self:
        """Return the description with the fields that the user entered on the page."""
        head = {**self.head, **{name: form.get(name, "") for name in _HEAD}}
        columns = {
            name: {**cells, **{cell: form.get(f"{cell}-{i}", "").strip() for cell in _CELLS}}
            for i, (name, cells) in enumerate(self.columns.items())
        }
        settings: Any = _from_button(form.get("settings") or "{}")
        if not _are_settings(settings):
            raise PlanError(_NO_SETTING)
        state = replace(self, head=head, columns=columns, settings=settings)
        for f, file in enumerate(self.files):
            for i, name in enumerate(self.columns):
                # Only columns that the file lacks have this field.
                chosen, before = form.get(f"header-{f}-{i}"), state._header(file.name, name)
                if chosen is not None and chosen != before:
                    state = state._named(file.name, name, chosen)
        return state

    def _named(self, file: str, column: str, chosen: str) -> Self:
        """Return the description with the name of a column in the header of a file."""
        own = dict(self.settings.get(file, {}))
        if column == self.head["unit"]:
            own["unit_header"] = chosen
        else:
            columns = dict(own.get("columns", {}))
            columns[column] = {**columns.get(column, {}), "header": chosen}
            own["columns"] = columns
        return replace(self, settings={**self.settings, file: own})

    def _header(self, file: str, column: str) -> str:
        """Return the chosen name of a column in the header of a file; empty if there is none."""
        own = self.settings.get(file, {})
        if column == self.head["unit"]:
            return str(own.get("unit_header", ""))
        return str(own.get("columns", {}).get(column, {}).get("header", ""))

    @property
    def lacking(self) -> list[tuple[str, list[str], list[tuple[str, str, str]]]]:
        """Return each file that lacks used columns, its other names, and these columns.

        A column has the name of its field, its name, and its name in that file's header.
        """
        if self.baskets:
            return []
        found = []
        for f, file in enumerate(self.files):
            own = self.settings.get(file.name, {})
            try:
                names = header(file, own.get("encoding") or self.head.get("encoding") or "")
            except CloisterError:  # the check of the file says why
                continue
            there = {normalize("NFC", name.strip()) for name in names}
            lacking = [
                (f"header-{f}-{i}", name, self._header(file.name, name))
                for i, (name, cells) in enumerate(self.columns.items())
                if (name == self.head["unit"] or any(map(cells.get, ("type", "min", "categories"))))
                and normalize("NFC", name) not in there
            ]
            others = [name for name in names if name and name not in self.columns]
            found += [(file.name, others, lacking)] if lacking and others else []
        return found

    def applied(self, proposal: str) -> Self:
        """Return the description with a setting of some files: its key, column, value and files."""
        values: Any = _from_button(proposal)
        match values:
            case [str(key), str(column), value, list(files)]:
                pass
            case _:
                raise PlanError(_NO_SETTING)
        settings = {name: dict(own) for name, own in self.settings.items()}
        for name in map(str, files):
            own = settings.setdefault(name, {})
            if column:
                columns = own.get("columns", {})
                own["columns"] = {**columns, column: {**columns.get(column, {}), key: value}}
            else:
                own[str(key)] = value
        changed = replace(self, settings=settings)
        changed.schemas()  # raises for a setting that excludes another
        return changed

    def without(self, files: Iterable[str]) -> Self:
        """Return the description without the settings of some files."""
        gone = frozenset(files)
        kept = {name: own for name, own in self.settings.items() if name not in gone}
        return replace(self, settings=kept)

    def schemas(self) -> dict[Path, Schema]:
        """Return the schema for reading each file."""
        schema = self.schema()
        return {
            file: schema.written_as(**_of_columns(self.settings.get(file.name, {}), schema))
            for file in self.files
        }

    def applied_settings(self) -> list[tuple[str, str]]:
        """Return each file that has settings, and their text."""
        return [(name, _settings_text(own)) for name, own in self.settings.items()]

    @property
    def texts(self) -> dict[str, str]:
        """The head as text of the page's fields."""
        return _texts(self.head)

    @property
    def rows(self) -> list[tuple[str, dict[str, str]]]:
        """The columns as text of the page's fields."""
        return [(name, _texts(cells)) for name, cells in self.columns.items()]

    def schema(self) -> Schema:
        """Return the schema of the columns that have a type."""
        head = {key: value for key, value in self.head.items() if value not in ("", None)}
        rows = str(head.pop("max_rows", "1")).strip()
        if self.head["unit"] != "row":
            if not rows.isdecimal() or len(rows) > 9:
                raise PlanError(f"the most rows of one of them must be a number, got {rows!r}.")
            head["max_rows"] = int(rows)
        described = {name: self._read(cells) for name, cells in self.columns.items()}
        entries = [
            {"name": name, **cells}
            for name, cells in described.items()
            if cells.get("type") and name != self.head["unit"]
        ]
        if not entries:
            raise PlanError("no column has a type; choose a type for at least one column.")
        return Schema(**{**head, "columns": entries})

    def _read(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entry of a column in the schema; bounds without a type mean a number."""
        texts = {key: value for key, value in cells.items() if value != ""}
        if not texts.get("type") and (texts.get("min") or texts.get("max")):
            texts["type"] = "number"
        if texts.get("type", "boolean") == "boolean" and texts.get("categories"):
            texts["type"] = "category"
        for bound in ("min", "max"):
            if isinstance(text := texts.get(bound), str):
                texts[bound] = self._bound(text, texts.get("type", ""), texts.get("format", ""))
        if isinstance(words := texts.get("categories"), str):
            texts["categories"] = read_cell("categories", words, "category")
        if isinstance(words := texts.get("spellings"), str):
            texts["spellings"] = _spellings(words)
        if isinstance(words := texts.get("absent"), str):
            # Not read_cell: a word may have the comma of a number or the slashes of a date.
            texts["absent"] = tuple(filter(None, map(str.strip, words.split("|"))))
        return texts

    def _bound(self, text: str, kind: str, written: str) -> Any:
        """Read a bound as the files write numbers and dates."""
        if kind == "date":
            with suppress(ValueError):
                return datetime.strptime(text, written or "%Y-%m-%d").date()
        sign = self.head.get("decimal") or "."
        # 1.000 could mean one or a thousand.
        if (match := re.search(r"\d([.,' ])\d{3}(\D|$)", text)) and match[1] != sign:
            raise PlanError(f"write the bound {text!r} without signs between thousands.")
        return read_cell("min", text.replace(sign, "."), kind)


def _items(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the items of a catalogue as columns of yes and no."""
    if not fields:
        raise DataError(
            "baskets need a catalogue: choose a codebook or a schema with the name of each item."
        )
    return {name: {"type": "boolean", **cells} for name, cells in fields.items()}


def _layout(chosen: str, file: Path) -> str:
    """Return the layout of baskets; of rows, the first column has the basket, the second the item.

    It is resolved already if the user comes back from the page of columns.
    """
    if chosen != _ROWS:
        return chosen
    names = header(file)
    if len(names) < 2:
        raise DataError("a file of one item a row needs a column of baskets and one of items.")
    return f"{_ROWS}:{names[0]},{names[1]}"


def _written(text: str, folder: Path, stem: str) -> Path:
    """Write TOML next to the files, unless an equal file exists."""
    for path in _inside(folder, folder.glob("*.toml")):
        if path.read_bytes() == text.encode():
            return path
    path = _unused(folder, stem, ".toml")
    with path.open("xb") as stream:  # bytes, since Windows would change line ends in text
        stream.write(text.encode())
    return path


_NO_SETTING = "this button names no setting; load its page again."


def _from_button(text: str) -> Any:
    """Return the JSON of a form, or raise PlanError if this page did not make it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise PlanError(_NO_SETTING) from None


def _are_settings(values: Any) -> bool:
    """Return True if JSON has a table of settings for each file, and one for each column there."""
    if not isinstance(values, dict) or not all(isinstance(own, dict) for own in values.values()):
        return False
    columns = [own.get("columns", {}) for own in values.values()]
    return all(
        isinstance(one, dict) and all(isinstance(keys, dict) for keys in one.values())
        for one in columns
    )


def _of_columns(own: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return reading settings of the columns of the schema, whose fields apply to all files."""
    given = own.get("columns", {})
    columns = {
        column.name: {key: _joined(column, key, value) for key, value in given[column.name].items()}
        for column in schema.columns
        if column.name in given
    }
    return {**own, "columns": columns}


def _joined(column: Column, key: str, value: Any) -> Any:
    """Return the words of a file together with those of the field; else the file's own value."""
    match key, value:
        case "absent", [*words]:
            return [*dict.fromkeys((*column.absent, *words))]
        case "spellings", dict() if all(isinstance(words, list) for words in value.values()):
            words_of = {name: [*words] for name, words in column.spellings.items()}
            for name, words in value.items():
                words_of[name] = [*dict.fromkeys((*words_of.get(name, ()), *words))]
            return words_of
    return value


def _settings_text(own: Mapping[str, Any]) -> str:
    """Return reading settings in terms of the page."""
    columns = own.get("columns", {})
    entries = [(key, "", value) for key, value in own.items() if key != "columns"]
    entries += [(key, name, v) for name, keys in columns.items() for key, v in keys.items()]
    return "; ".join(
        f"{_field(key, name)} is {_shown(key, value)!r}" for key, name, value in entries
    )


@dataclass(frozen=True)
class Loss:
    """A reason why rows of a file were excluded, which only its owner sees.

    Parameters
    ----------
    sentence : str
    way_out : str
        Field of the page that may solve it; empty if there is none.
    apply : str
        Value of the button that fills that field; empty if the owner must choose.
    """

    sentence: str
    way_out: str = ""
    apply: str = ""


def _losses(reports: Mapping[Path, ReadingReport]) -> tuple[list[Loss], bool]:
    """Return the reasons why rows of the files are excluded, none if few rows are.

    The second value is True if words have no meaning or the wrong one, so that an answer would be
    biased. Reasons with the same remedy are one, and its button is for the files that need it.
    """
    losses: list[Loss] = []
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    is_open = any(True for report in reports.values() for _ in unread(report))
    for file, report in reports.items():
        if not (report.causes or report.doubts or is_above(report)):
            continue
        if report.items:  # of baskets, which have no settings on the page
            losses += [Loss(f"{file.name}: {sentence}") for sentence in report.sentences()]
            continue
        share = f"{report.lost:,} of {report.rows:,} rows ({report.row_share:.1%}) are left out."
        losses += [Loss(f"{file.name}: {share}")] if report.lost else []
        for column in sorted(report.columns, key=lambda one: -one.lost):
            if column.cause:
                rows = f" ({counted(column.lost, 'row')})" if column.lost else ""
                sentence = f"{file.name}: {column.cause}{rows}."
                found.setdefault(_on_page(column.remedy), {}).setdefault(file.name, []).append(
                    sentence
                )
            elif column.sentence:
                losses.append(Loss(f"{file.name}: {column.sentence}"))
            if doubt := column.doubt:  # a run would stop, since only the owner knows
                meaning = doubt.sentence.removesuffix(f": {doubt.remedy}")
                found.setdefault(_on_page(doubt.remedy), {}).setdefault(file.name, []).append(
                    f"{file.name}: {meaning}."
                )
            if column.constant:
                losses.append(Loss(_constant(file.name, column.name)))
    for (way_out, apply), of_files in found.items():
        sentences = [sentence for several in of_files.values() for sentence in several]
        if not way_out:
            losses += map(Loss, sentences)
            continue
        n = len(sentences) - 1
        more = f" The same remedy suits {n} other column{'s' * (n > 1)} of these files." * (n > 0)
        if apply:
            way_out = f"{way_out[:-1]} for {', '.join(of_files)}."
            apply = json.dumps([*json.loads(apply), list(of_files)], allow_nan=False)
        losses.append(Loss(sentences[0] + more, way_out, apply))
    return losses, is_open


def _rows_used(files: Iterable[Path], reports: Iterable[ReadingReport]) -> Iterator[str]:
    """Yield the exact rows of each file that a job uses, for the owner alone."""
    for file, report in zip(files, reports, strict=True):
        yield f"{file.name}: {report.used:,} of {report.rows:,} rows are used."
        yield from report.clips
        for column in report.columns:
            if column.needed and column.constant:
                yield _constant(file.name, column.name)


def _constant(file: str, column: str) -> str:
    return f"{file}: column {column!r} has the same value in all rows."


def _on_page(remedy: Remedy | None) -> tuple[str, str]:
    """Return the advice of a remedy in terms of the page, and its key, column and value as JSON."""
    if remedy is None:
        return "", ""
    column = remedy.column or ""
    where = _field(remedy.key, column)
    if not remedy.is_complete:
        return f"Fill in the field {where}.", ""
    apply = json.dumps([remedy.key, column, remedy.value], allow_nan=False)
    return f"Set {where} to {_shown(remedy.key, remedy.value)!r}.", apply


def _field(key: str, column: str) -> str:
    """Return the name of a field of the page."""
    name = _FIELDS.get(key, "Other words")
    return f"{name!r} of {column!r}" if column else f"{name!r}"


def _shown(key: str, value: Any) -> str:
    """Return the value of a setting as on the page."""
    text = _text(value)
    return _SIGNS.get((key, text), _SHOWN.get(text, text))


def _together(proposals: Sequence[str], head: Mapping[str, Any]) -> bool:
    """Return True if all proposals are compatible: no field of a file would need two texts."""
    found: dict[tuple[str, str, str], Any] = {}
    for key, column, value, files in map(json.loads, proposals):
        for file in files:
            # Words are added to those before; other fields have one text.
            if key not in _JOINED and found.setdefault((key, column, file), value) != value:
                return False
    for file in {file for *_, file in found}:
        decimal = found.get(("decimal", "", file), head.get("decimal") or ".")
        if decimal == found.get(("thousands", "", file), head.get("thousands") or ""):
            return False
    return len(proposals) > 1


_FIELDS = {
    "decimal": "Decimal sign",
    "thousands": "Thousands signs",
    "encoding": "Encoding",
    "format": "Dates are written",
    "absent": "Missing cells",
    "header": "Name in this file",
    "unit_header": "Name of the unit in this file",
}
_JOINED = ("spellings", "absent")
_SIGNS = {("decimal", "."): "1.5", ("thousands", ","): "1,000"}
_SHOWN = {
    **{"%d.%m.%Y": "31.12.2024", "%d.%m.%y": "31.12.24", "%Y/%m/%d": "2024/12/31"},
    **{"%d/%m/%Y": "31/12/2024", "%m/%d/%Y": "12/31/2024"},
    **{"%d-%m-%Y": "31-12-2024", "%m-%d-%Y": "12-31-2024"},
    **{",": "1,5", ".": "1.000", "'": "1'000", " ": "1 000"},
}
"""The texts of settings on the page."""


_DATES = [("", "2024-12-31"), *(pair for pair in _SHOWN.items() if "%" in pair[0])]


def _spellings(text: str) -> dict[str, tuple[str, ...]]:
    """Parse ``word = category; word = category``."""
    spellings: dict[str, tuple[str, ...]] = {}
    for entry in filter(str.strip, text.split(";")):
        # From the right, so that a word may contain the sign.
        word, sign, category = (piece.strip() for piece in entry.rpartition("="))
        if not (word and sign and category):
            raise PlanError(
                "other words must be written as word = category, with ; between, got "
                f"{entry.strip()[:40]!r}."
            )
        spellings[category] = (*spellings.get(category, ()), word)
    return spellings


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as texts of the page's fields."""
    return {key: _text(value) for key, value in values.items()}


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.15g}"  # a decimal of at most 15 digits is shown exactly
    if isinstance(value, list | tuple):
        return " | ".join(value)
    if isinstance(value, Mapping):
        return "; ".join(f"{word} = {key}" for key, words in value.items() for word in words)
    return "" if value is None else str(value)


# Questions ----------------------------------------------------------------------------------------

_GROUPS = {
    heading: {name: QUESTIONS[name].title for name in names}
    for heading, names in QUESTION_GROUPS.items()
}
"""The titles of the questions by name, under their headings."""


def _line(words: Sequence[str]) -> str:
    return shlex.join(["cloister", *words])


def _asked(folder: Path, form: Form) -> FormState:
    path = _in(folder, form.get("schema", ""))
    reading = _in(folder, name) if (name := form.get("reading", "")) else None
    return FormState(form, _files(folder, form), path, Schema.load(path), reading)


def _priced(entered: FormState, budget: Mapping[str, Any] | None) -> dict[str, object]:
    """Return the price page's values for a plan; raise all plan errors before any charge."""
    plan = entered.job().plan
    if budget and entered.epsilon > budget["room"]:
        raise BudgetExceeded(
            f"epsilon {entered.epsilon:g} is more than {budget['left']}, which is left of the "
            "lifetime cap for one more job; choose less."
        )
    # New data have no cap in the ledger; the user must set one before the first job.
    may_spend = budget is not None or entered.cap_epsilon is not None
    horizon = horizon_of(entered)
    return {
        "plan": plan,
        "horizon": horizon,
        "warnings": plan_warnings(plan, entered.schema),
        "tables": [_as_text(noise_table(horizon))] if horizon else expected(plan),
        "unknown": "" if horizon else unknown_error(plan),
        "odds": attacker_sentence(plan.events(), plan.unit),
        "may_spend": may_spend,
    }


def _as_text(table: Table) -> Table:
    return replace(table, rows=tuple(tuple(map(cell_text, row)) for row in table.rows))


def _costs(path: Path) -> dict[str, str]:
    """Return the epsilon that each job in the ledger was charged alone, by its identifier."""
    if not path.exists():
        return {}
    ledger = Ledger(path)
    try:
        deltas = {name: ledger.cap(name).delta for name in ledger.datasets()}
        return {
            job.job: number(accounting.epsilon(job.charged, deltas[job.dataset]))
            for job in ledger.jobs()
        }
    finally:
        ledger.dispose()


def _gauge(path: Path, dataset: str) -> Mapping[str, object] | None:
    """Return the spent part of a data set's lifetime cap; None if it is not in the ledger."""
    if not path.exists():  # opening it would create an empty ledger
        return None
    ledger = Ledger(path)
    try:
        if dataset not in ledger.datasets():
            return None
        return budget_gauge(dataset, ledger.limits(dataset), ledger.cost(dataset))
    finally:
        ledger.dispose()
