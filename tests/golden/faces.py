"""Every face of the example of each task, over fixed records and fixed noise, as text.

    python tests/golden/faces.py FOLDER          # one file per task, numbers as they are printed
    python tests/golden/faces.py FOLDER --bits   # with digests of pictures and all digits

The first form is what `test_golden.py` compares. The second is for a change that must change
nothing: write it before and after, on one machine, and compare the folders.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import math
import os
import platform
import re
import tempfile
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from importlib.metadata import version
from itertools import compress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from cloister.app.job import run_job
from cloister.app.release import Release
from cloister.app.report.notebook import release_frame, release_html
from cloister.app.report.page import render_report
from cloister.cli import main
from cloister.data import read_source
from cloister.data.schema import schema_of
from cloister.privacy.noise import DiscreteNoise
from cloister.protocol.task import PublicColumn
from cloister.tasks import TASKS
from cloister.tasks.examples import Example, example_of
from cloister.testing import ZeroNoise

SILOS, ROWS = ("a", "b", "c"), 200
BUDGETS = (2.0, 0.05)  # enough for the example, and so little that noise hides it
HIDDEN = ("style", "script", "svg")
LONG = 12  # numbers of a list that are kept one by one


class FixedNoise:
    """The rounded numbers of a legacy generator, whose stream NumPy keeps for ever."""

    label = "FIXED NOISE (test double): not private"

    def __init__(self) -> None:
        self._rng = np.random.RandomState(7)

    def draw(self, kind: str, scale: int, size: int) -> Any:
        draw = {"gaussian": self._rng.normal, "laplace": self._rng.laplace}[kind]
        return np.rint(draw(0.0, float(scale), size)).astype(np.int64)


def write_tables(folder: Path, columns: Sequence[PublicColumn]) -> list[Path]:
    """Write a table for each silo: three groups of records, and one row with odd cells."""
    rng = np.random.RandomState(3)
    files = []
    for silo in SILOS:
        group = rng.randint(0, 3, ROWS)
        cells = [list(map(str, _cells(column, group, rng))) for column in columns]
        rows = [",".join(row) for row in zip(*cells, strict=True)]
        rows[3] = ",".join(["no such word"] * len(columns))
        files.append(folder / f"{silo}.csv")
        files[-1].write_text("\n".join([",".join(c.name for c in columns), *rows, ""]))
    return files


def _cells(column: PublicColumn, group: Any, rng: np.random.RandomState) -> Any:
    if column.categories:
        moved = group + (rng.random_sample(len(group)) < 0.3)
        return np.array(column.categories)[moved % len(column.categories)]
    share = np.clip(0.2 + 0.3 * group + rng.normal(0, 0.05, len(group)), 0, 1)
    return (column.low + share * (column.high - column.low)).round(2)


def faces(name: str, folder: Path, *, bits: bool) -> Iterator[tuple[str, str]]:
    """Yield the title and the text of each face of a task's example."""
    task, case = TASKS[name], example_of(TASKS[name])
    schema = schema_of(case.columns)
    files = write_tables(folder, case.columns)
    (folder / "schema.toml").write_text(schema.to_toml(), encoding="utf-8")
    records = {file.stem: read_source(file, schema) for file in files}
    budget = {"epsilon": BUDGETS[0], "delta": 1e-6} if task.private else {"epsilon": None}
    options = dict(case.options)
    exact = run_job(task, schema, records, nominal_n=600, noise=ZeroNoise(), **budget, **options)
    yield "report without noise", text_of(render_report(exact))
    if bits:
        yield "pictures without noise", "\n".join(picture_digests(render_report(exact)))
    yield from _results(task, schema, records, budget, options, bits=bits)
    yield from command_faces(name, case, files, bits=bits)


def _results(
    task: Any, schema: Any, records: Any, budget: Any, options: Any, *, bits: bool
) -> Iterator[tuple[str, str]]:
    done = run_job(task, schema, records, nominal_n=600, noise=FixedNoise(), **budget, **options)
    displays = done.plan.task.displays(done.results, done.plan.columns)
    yield "model", model_text(done, bits=bits)
    frame = release_frame(displays)
    columns = frame.reset_index().to_dict("list")
    yield "frame", frame.to_csv() if bits else lines_of(shortened(columns))
    yield "notebook", text_of(release_html("Model", done))
    if bits:
        yield "report", text_of(render_report(done))
        yield "pictures", "\n".join(picture_digests(render_report(done)))


def command_faces(
    name: str, case: Example, files: list[Path], *, bits: bool
) -> Iterator[tuple[str, str]]:
    """Yield what the command prints, its exit code and its files."""
    folder = files[0].parent
    common = ["run", *map(str, files), "--schema", str(folder / "schema.toml"), "--task", name]
    for option, value in case.options.items():
        common += ["--set", f"{option}={json.dumps(value)}"]
    common += ["--nominal-n", "600", "--ledger", str(folder / "ledger.db")]
    yield (
        "command without a budget",
        transcript(*run_command([*common, "--out", str(folder / "none")])),
    )
    for budget in BUDGETS if TASKS[name].private else (None,):
        limits = ["--not-private"]
        if budget:
            limits = ["--epsilon", str(budget), "--delta", "1e-6", "--cap-epsilon", "50"]
        out = folder / f"out-{budget}"
        title = f"command at epsilon {budget}"
        yield title, transcript(*run_command([*common, *limits, "--out", str(out)]))
        made = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
        yield f"files of the {title}", "\n".join(made)
        if bits:
            for table in sorted(out.rglob("*.csv")):
                yield f"{table.name} of the {title}", table.read_text()
        if budget != BUDGETS[-1]:
            (out / "model.json").unlink(missing_ok=True)  # a paid release is not replaced
            code, printed, errors = run_command([*common, *limits, "--out", str(out), "--json"])
            if not bits and printed.startswith("{"):
                printed = lines_of(shortened(json.loads(printed)))
            yield f"json of the {title}", transcript(code, printed, errors)


def run_command(argv: list[str]) -> tuple[Any, str, str]:
    """Return the exit code of a command and what it printed on both streams."""
    out, err, noise = io.StringIO(), io.StringIO(), FixedNoise()
    with (
        mock.patch.object(DiscreteNoise, "draw", lambda self, *law: noise.draw(*law)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code: Any = main(argv)
        except SystemExit as stop:
            code = stop.code
    return code, out.getvalue(), err.getvalue()


def transcript(code: Any, printed: str, errors: str) -> str:
    return f"exit {code}\n{printed}--- errors\n{errors}"


def model_text(done: Release, *, bits: bool) -> str:
    """Return the results of a release as JSON, without identifiers, digests and versions."""
    stored = done.to_dict()
    for key in ("plan_digest", "versions"):
        stored.pop(key, None)
    for key in ("run_id", "code"):
        stored["plan"].pop(key, None)
    return lines_of(stored if bits else shortened(stored))


def lines_of(value: Any, path: str = "") -> str:
    """Return JSON as lines: a path of keys, and what is there."""
    if not isinstance(value, dict) or not value:
        return f"{path} = {json.dumps(value)}\n"
    return "".join(lines_of(value[key], f"{path}.{key}" if path else key) for key in sorted(value))


def shortened(value: Any) -> Any:
    """Return what JSON holds with twelve digits, and sums in place of long lists."""
    if isinstance(value, dict):
        return {str(key): shortened(inner) for key, inner in value.items()}
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if not isinstance(value, list):
        return value
    cells = list(flat(value))
    if len(cells) <= LONG:
        return [shortened(inner) for inner in value]
    is_number = [isinstance(x, int | float) and math.isfinite(x) for x in cells]
    numbers = np.array(list(compress(cells, is_number)), dtype=float)
    texts = [str(x) for x, number in zip(cells, is_number, strict=True) if not number]
    turns = np.cos(np.arange(len(numbers)))  # two numbers that change places are seen
    sums = [np.abs(numbers).sum(), (numbers * turns).sum()] if len(numbers) else []
    words = [f"{len(texts)} texts", digest(" ".join(texts))] if texts else []
    return [f"{len(numbers)} numbers", *(float(f"{one:.12g}") for one in sums), *words]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def flat(value: Any) -> Iterator[Any]:
    """Yield what lists in lists hold."""
    for inner in value:
        yield from flat(inner) if isinstance(inner, list) else [inner]


class _Texts(HTMLParser):
    """The texts of a page, but not of styles, scripts and pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._hidden += tag in HIDDEN

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in HIDDEN

    def handle_data(self, data: str) -> None:
        if not self._hidden and data.strip():
            self.texts.append(" ".join(data.split()))


def text_of(html: str) -> str:
    """Return the texts of a page, a line each."""
    parser = _Texts()
    parser.feed(html)
    return "\n".join(parser.texts)


def picture_digests(html: str) -> list[str]:
    """Return a digest of each picture of a page."""
    found = re.findall(r"<svg.*?</svg>", html, flags=re.S)
    drawn = (re.sub(r"<metadata>.*?</metadata>", "", one, flags=re.S) for one in found)
    return [digest(one) for one in drawn]


def clean(text: str, folder: Path) -> str:
    """Return a text without what differs between runs: places, days, digests and versions."""
    for place in {str(folder), str(folder.resolve())}:
        text = text.replace(place, "FOLDER")
    for installed in (version("cloister"), np.__version__, platform.python_version()):
        text = text.replace(installed, "VERSION")
    text = re.sub(r"\b[0-9a-f]{16,64}\b", "HEX", text)
    return re.sub(r"\b20[2-9]\d-\d\d-\d\d\b", "DAY", text)


def golden_text(name: str, *, bits: bool = False) -> str:
    """Return all faces of a task's example as one text."""
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder).resolve()
        before = os.getcwd()
        os.chdir(folder)  # a ledger and cwd-relative names are this folder's
        try:
            found = [(t, clean(text, folder)) for t, text in faces(name, folder, bits=bits)]
        finally:
            os.chdir(before)
    return "".join(f"=== {title}\n{text.rstrip()}\n" for title, text in found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write all faces of all tasks' examples.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bits", action="store_true", help="with pictures and all digits")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for task in TASKS:
        text = golden_text(task, bits=options.bits)
        (options.folder / f"{task}.txt").write_text(text, encoding="utf-8")
        print(task, flush=True)
