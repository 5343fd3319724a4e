"""Pages for whoever holds the files: from files to columns, a question, its price and a report.

Of a file they show its name and the names and types of its columns, never a value, a count or a
bound. What was chosen stands in a page's address, and a job runs in a process of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from cloister.console.guard import Form
from cloister.console.parts import a_report, console_app, gauge
from cloister.console.questions import QUESTIONS, Asked
from cloister.data import check_file, declared_types, header
from cloister.errors import CloisterError, DataError, PlanError
from cloister.html import page
from cloister.privacy.ledger import Ledger
from cloister.report import odds_sentence
from cloister.report.forecast import expected, plan_warnings
from cloister.schema import Schema, read_cell, read_codebook
from cloister.watching import PROGRESS

_PAGES = (("/", "Files and reports"),)
_TABLES = (".csv", ".tsv", ".txt", ".data", ".parquet", ".pq", ".xlsx")
_PACKED = (".gz", ".bz2", ".zst")
_CODEBOOKS = (".csv", ".toml")
_CELLS = ("type", "min", "max", "categories", "format")
_HEAD = ("dataset", "unit", "max_rows", "decimal", "thousands", "encoding")
_KEPT = ("file", "schema", "nominal_n", "epsilon", "cap_epsilon")  # from question to question
_ROUND = re.compile(r"round (\d+) of (\d+)")


def desk_app(folder: Path, ledger: Path) -> Starlette:
    """Return the pages of a desk; :class:`~cloister.console.guard.Guard` must stand before them.

    Parameters
    ----------
    folder : Path
        Has the files; schemas and results are written there.
    ledger : Path
        What commands of this user charge.
    """
    runs = Runs(folder)

    def shown(request: Request, view: str, step: int, **values: object) -> Response:
        given = {"csrf": request.state.csrf, "pages": _PAGES, "step": step}
        return HTMLResponse(page("desk.html", view=view, **given, **values))

    def start(request: Request) -> Response:
        names = sorted(path.name for path in folder.iterdir() if path.is_file())
        return shown(
            request,
            "files",
            1,
            folder=folder,
            tables=[name for name in names if _is_table(name)],
            meanings=[name for name in names if name.lower().endswith(_CODEBOOKS)],
            reports=_reports(folder),
        )

    def columns(request: Request) -> Response:
        form = request.state.form if request.method == "POST" else request.query_params
        files, meaning = _files(folder, form), form.get("meaning", "")
        names, known = header(files[0]), declared_types(files[0])
        head: Mapping[str, Any] = {"dataset": folder.name, "unit": "row"}
        if meaning:
            path = _in(folder, meaning)
            if path.suffix == ".toml":
                head = Schema.load(path).model_dump(exclude={"columns"})
            known = {**known, **read_codebook(path)}
        problems: Sequence[str] = ()
        if request.method == "POST":
            head = {**head, **{name: form.get(name, "") for name in _HEAD}}
            cells = {name: _said(form, i) for i, name in enumerate(names)}
            known = {name: {**known.get(name, {}), **cells[name]} for name in names}
            try:
                schema = _schema(head, known)
                problems = () if "as-is" in form else _doubts(files, schema)
                if not problems:
                    chosen = [*(("file", file.name) for file in files)]
                    chosen.append(("schema", _written(schema, folder).name))
                    return RedirectResponse(f"/question?{urlencode(chosen)}", 303)
            except CloisterError as error:
                problems = (str(error),)
        rows = [(name, _texts(known.get(name, {}))) for name in names]
        given = {"files": [file.name for file in files], "head": _texts(head), "rows": rows}
        may_go_on = request.method == "POST" and len(problems) > 0
        return shown(
            request, "columns", 2, **given, meaning=meaning, problems=problems, as_is=may_go_on
        )

    def question(request: Request) -> Response:
        asked = _asked(folder, request.query_params)
        values: dict[str, object] = {"problem": "", "plan": None}
        if asked.form.get("nominal_n"):
            try:
                plan = asked.plan()
                warnings, tables = plan_warnings(plan, asked.schema), expected(plan)
                odds = odds_sentence(plan.events(), plan.unit)
                values |= {"plan": plan, "warnings": warnings, "tables": tables, "odds": odds}
            except CloisterError as error:
                values["problem"] = str(error)
        kept = [pair for pair in asked.form.multi_items() if pair[0] in _KEPT]
        values["addresses"] = {
            name: f"/question?{urlencode([*kept, ('ask', name)])}" for name in QUESTIONS
        }
        budget = _gauge(ledger, asked.schema.dataset)
        values |= {"asked": asked, "questions": QUESTIONS, "query": request.url.query}
        values["out"] = _unused(folder, asked.name).name
        return shown(request, "question", 3, gauge=budget, **values)

    def run(request: Request) -> Response:
        asked = _asked(folder, QueryParams(request.state.form.get("asked", "")))
        asked.plan()
        out = request.state.form.get("out", "")
        if not re.fullmatch(rf"{asked.name}(-\d+)?", out):
            raise DataError("this form names no folder for its results; load its page again.")
        runs.start(asked.command(out), out)
        return RedirectResponse(f"/runs/{out}", 303)

    def progress(request: Request) -> Response:
        run = runs.find(request.path_params["name"])
        state = run.state  # once, so that a page is of one moment
        reported = run.name in _reports(folder)
        return shown(request, "run", 4, run=run, state=state, has_report=reported)

    def stop(request: Request) -> Response:
        run = runs.find(request.path_params["name"])
        run.process.terminate()
        return RedirectResponse(f"/runs/{run.name}", 303)

    def report(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _reports(folder):
            raise DataError(f"there is no report {name!r} in folder {folder.name!r}.")
        return a_report((folder / name / "report.html").read_text("utf-8"))

    return console_app(
        _PAGES,
        Route("/", start),
        Route("/columns", columns, methods=["GET", "POST"]),
        Route("/question", question),
        Route("/run", run, methods=["POST"]),
        Route("/runs/{name}", progress),
        Route("/runs/{name}/stop", stop, methods=["POST"]),
        Route("/reports/{name}", report),
    )


# Jobs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A job that was started here.

    Parameters
    ----------
    name : str
        Of the folder for its results.
    command : str
        What does the same in a terminal.
    process : Popen
    log : Path
        Has what the process says to its owner.
    """

    name: str
    command: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def state(self) -> str:
        """``"running"``, ``"done"`` or ``"failed"``."""
        return {None: "running", 0: "done"}.get(self.process.poll(), "failed")

    @property
    def rounds(self) -> tuple[int, int] | None:
        """How many rounds are done, and how many there are; None before the first."""
        found = _ROUND.findall(self._said)
        return (int(found[-1][0]), int(found[-1][1])) if found else None

    @property
    def sentences(self) -> list[str]:
        """What the job warns of, and why it ended."""
        lines = self._said.splitlines()
        said = (line.removeprefix("cloister: ") for line in lines if line.startswith("cloister: "))
        return [line.removeprefix("warning: ") for line in said]

    @property
    def _said(self) -> str:
        return self.log.read_text("utf-8", "replace")


class Runs:
    """The jobs that were started here; each outlives the console, since it is paid for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[str, Run] = {}
        self._lock = Lock()

    def start(self, words: Sequence[str], name: str) -> None:
        """Start a command, whose results go to the folder `name`; once, if asked to twice."""
        log = self._folder / name / "log.txt"
        with self._lock:
            if name in self._runs:
                return
            try:
                log.parent.mkdir()
            except OSError as error:
                raise DataError(
                    f"folder {name!r} cannot be made: {error.strerror}; load the page again."
                ) from None
            self._runs[name] = self._started(words, name, log)

    def _started(self, words: Sequence[str], name: str, log: Path) -> Run:
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "cloister", *words],
                cwd=self._folder,
                env={**os.environ, PROGRESS: "lines"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stream,
                start_new_session=True,
            )
        return Run(name, shlex.join(["cloister", *words]), process, log)

    def find(self, name: str) -> Run:
        """Return a job by its name."""
        if name not in self._runs:
            raise DataError(f"no job {name!r} was started here.")
        return self._runs[name]


# Files --------------------------------------------------------------------------------------------


def _is_table(name: str) -> bool:
    path = Path(name.lower())
    return (path.stem if path.suffix in _PACKED else path.name).endswith(_TABLES)


def _in(folder: Path, name: str) -> Path:
    """Return a file of the folder, and of no other."""
    if name not in {path.name for path in folder.iterdir() if path.is_file()}:
        raise DataError(f"there is no file {name!r} in folder {folder.name!r}.")
    return folder / name


def _files(folder: Path, form: Form) -> tuple[Path, ...]:
    names = form.getlist("file")
    if not names:
        raise DataError("choose at least one file; each is what one organisation holds.")
    return tuple(_in(folder, name) for name in names)


def _reports(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("*/report.html"))


def _unused(folder: Path, stem: str, suffix: str = "") -> Path:
    """Return a path that nothing has yet."""
    names = (f"{stem}{f'-{number}' if number > 1 else ''}{suffix}" for number in count(1))
    return next(path for path in map(folder.joinpath, names) if not path.exists())


# Columns ------------------------------------------------------------------------------------------


def _said(form: Form, i: int) -> dict[str, Any]:
    """Return what a person says of a column; bounds alone are those of a number."""
    texts = {cell: form.get(f"{cell}-{i}", "").strip() for cell in _CELLS}
    if not texts["type"] and (texts["min"] or texts["max"]):
        texts["type"] = "number"
    if not texts["type"] and texts["categories"]:
        texts["type"] = "category"
    return {cell: read_cell(cell, text, texts["type"]) for cell, text in texts.items()}


def _schema(head: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> Schema:
    """Return the schema that a page describes, of the columns that were said to be something."""
    unit, rows = head["unit"], str(head["max_rows"] or "")
    entries = [
        {"name": name, **{key: value for key, value in cells.items() if value != ""}}
        for name, cells in known.items()
        if cells["type"] and name != unit
    ]
    if not entries:
        raise PlanError("say of at least one column what it is; the others are left out.")
    if unit == "row":
        rows = ""
    elif not rows.isdecimal():
        raise PlanError(f"say how many rows of one {unit} may count, as a number; got {rows!r}.")
    given = {key: value for key, value in head.items() if value not in ("", None)}
    return Schema(**{**given, "max_rows": int(rows) if rows else None, "columns": entries})


def _written(schema: Schema, folder: Path) -> Path:
    """Write a schema beside the files, unless it is there."""
    stem = re.sub(r"[^\w-]+", "-", schema.dataset)
    for path in folder.glob(f"{stem}*.toml"):
        if path.read_text("utf-8") == schema.to_toml():
            return path
    path = _unused(folder, stem, ".toml")
    path.write_text(schema.to_toml(), encoding="utf-8")
    return path


def _doubts(files: Iterable[Path], schema: Schema) -> list[str]:
    """Return in words why rows of the files cannot be used; no count, and no cell."""
    found: list[str] = []
    for file in files:
        report = check_file(file, schema)
        found += [f"{file.name}: {cause}." for cause in report.causes]
        if report.doubt and not report.causes:
            found.append(report.doubt)
    return found


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as a person would type them."""
    return {key: _text(value) for key, value in values.items()}


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, list | tuple):
        return " | ".join(value)
    return "" if value is None else str(value)


# Questions ----------------------------------------------------------------------------------------


def _asked(folder: Path, form: Form) -> Asked:
    path = _in(folder, form.get("schema", ""))
    return Asked(form, _files(folder, form), path, Schema.load(path))


def _gauge(path: Path, dataset: str) -> Mapping[str, object] | None:
    """Return what was spent of a data set's lifetime cap; None if the ledger does not know it."""
    if not path.exists():
        return None
    ledger = Ledger(path)
    try:
        if dataset not in ledger.datasets():
            return None
        return gauge(dataset, ledger.limits(dataset), ledger.cost(dataset))
    finally:
        ledger.dispose()
