"""``Request``: a job over files as plain values, passed from a page to a worker."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from cloister.app.job import Job
from cloister.data.schema import Schema
from cloister.tasks import TASKS


class Request(BaseModel):
    """A job over files, each of which is a silo.

    Parameters
    ----------
    task : str
        Name of a task of the package.
    options : dict
        Options of the task.
    files : dict of silo name to Path
    schema_file : Path
    reading : Path, optional
        Settings of each file, as in :class:`~cloister.app.files.SiloFiles`.
    baskets : tuple of str
        Layouts of market baskets, likewise.
    columns, epsilon, nominal_n, max_loss
        As in :class:`~cloister.app.job.Job`.
    ledger : Path
    cap_epsilon : float, optional
        Lifetime cap of a data set that is new in the ledger.
    out : Path
        Folder for the results.
    """

    # A misspelt field would else be ignored, and have its default.
    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    options: dict[str, Any]
    files: dict[str, Path]
    schema_file: Path
    reading: Path | None = None
    baskets: tuple[str, ...] = ()
    columns: tuple[str, ...]
    epsilon: float | None
    nominal_n: int
    max_loss: float | None = None
    ledger: Path
    cap_epsilon: float | None = None
    out: Path

    def job(self, schema: Schema | None = None) -> Job:
        """Return the job. Errors of the request are raised by its plan."""
        return Job(
            task=TASKS[self.task],
            schema=schema or Schema.load(self.schema_file),
            silos=tuple(self.files),
            options=self.options,
            epsilon=self.epsilon,
            nominal_n=self.nominal_n,
            columns=self.columns,
            max_loss=self.max_loss,
        )

    def command(self, schema: Schema) -> list[str]:
        """Return the arguments of the command that runs this job in a terminal."""
        # JSON, since `--set` reads values as such.
        options = (
            f"{name}={json.dumps(value, allow_nan=False)}" for name, value in self.options.items()
        )
        subset = self.columns != schema.names
        return [
            *("run", *map(_word, self.files.values()), "--schema", _word(self.schema_file)),
            *(("--reading", _word(self.reading)) if self.reading else ()),
            *(word for layout in self.baskets for word in ("--baskets", layout)),
            *((f"--columns={_listed(self.columns)}",) if subset else ()),
            *("--task", self.task),
            *(word for option in options for word in ("--set", option)),
            # 15 digits give the same number again, so that the command has the same cost.
            *("--epsilon", f"{self.epsilon:.15g}", "--nominal-n", f"{self.nominal_n}"),
            *(("--max-loss", f"{self.max_loss:g}") if self.max_loss else ()),
            *(("--cap-epsilon", f"{self.cap_epsilon:.15g}") if self.cap_epsilon else ()),
            *("--out", self.out.name),
        ]


def _word(path: Path) -> str:
    """Return a file name as an argument that is not mistaken for an option."""
    return f"./{path.name}" if path.name.startswith("-") else path.name


def _listed(names: tuple[str, ...]) -> str:
    """Return names joined by commas; a name with a comma is quoted."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(names)
    return text.getvalue()
