"""Experiments that go on where they stopped: named units of work, their rows, their figures.

An experiment is a list of units, each a function that makes some rows, and a function that draws
the rows. Units run in parallel, in any order; the rows of one are written together as it ends, so
a run that was interrupted makes only the units that are missing.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

from cloister.errors import DataError, PlanError
from cloister_lab.experiments.pool import one_thread, progress_bar, run_all
from cloister_lab.experiments.records import STAMP, commit, machine_kind

Value = str | int | float | None
TidyRow = Mapping[str, Value]
"""One observation; all rows of an experiment have the same columns."""


@dataclass(frozen=True)
class Settings:
    """What a run of an experiment is given.

    Parameters
    ----------
    out : Path
        The folder of this experiment; it exists.
    full : bool
        The whole experiment rather than its small version.
    jobs : int, >= 1
        Processes, each with one thread.
    data_dir : Path, optional
        Folder of NAME.csv.gz, NAME.csv or NAME.parquet; without it, tables that need it are left
        out.
    repeats : int, optional
        Instead of the experiment's own number.
    only : sequence of str
        Data sets to keep; all if empty.
    """

    out: Path
    full: bool = False
    jobs: int = 1
    data_dir: Path | None = None
    repeats: int | None = None
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unit:
    """Some rows and how to make them.

    Parameters
    ----------
    key : str
        Says all that its rows depend on, but for the version of this package.
    work : function
        Can be pickled: a `functools.partial` of a function of a module.
    """

    key: str
    work: Callable[[], Iterable[TidyRow]]


@dataclass(frozen=True)
class Experiment:
    """Something to measure, and how to show it.

    Parameters
    ----------
    name : str
        Of the command line.
    what : str
        One line.
    units : function of Settings
        Its units, in the order in which they should run. It is called often, so it does not
        measure.
    figures : function of rows and a folder
        Writes figures, tables or pages into the folder and returns their paths. It takes rows of
        an unfinished run too.
    seconds_small, seconds_full : float
        About how long the two versions take on one core.
    """

    name: str
    what: str
    units: Callable[[Settings], Sequence[Unit]]
    figures: Callable[[Sequence[TidyRow], Path], Sequence[Path]]
    seconds_small: float
    seconds_full: float


def run_experiment(
    experiment: Experiment, settings: Settings, *, quiet: bool = False
) -> list[TidyRow]:
    """Make the rows that are missing, and return all.

    Parameters
    ----------
    experiment : Experiment
    settings : Settings
        With the folder of all experiments as `out`.
    quiet : bool
        No progress bar; there is none either where standard error is not a terminal.

    Returns
    -------
    list of mapping
        Of all units asked for, in their order.

    Raises
    ------
    PlanError
        If a setting is out of range or nothing is left to run.
    DataError
        If the rows stored are not of this experiment.
    """
    for name, value in (("jobs", settings.jobs), ("repeats", settings.repeats)):
        if value is not None and value < 1:
            raise PlanError(f"{name} must be >= 1, got {value}.")
    settings = replace(settings, out=folder_of(experiment, settings))
    settings.out.mkdir(parents=True, exist_ok=True)
    units = experiment.units(settings)
    if not units:
        raise PlanError(
            f"experiment {experiment.name!r} has nothing to run under these settings; "
            "name a data folder, or other data sets."
        )
    runs = settings.out / "runs.csv"
    stored = _by_unit(load_tidy(runs))
    missing = [unit for unit in units if unit.key not in stored]
    with progress_bar(quiet) as bar, one_thread():
        task = bar.add_task(experiment.name, total=len(units), completed=len(units) - len(missing))
        for rows in run_all([partial(_complete, unit) for unit in missing], settings.jobs):
            append_tidy(runs, rows)
            bar.advance(task)
    stored = _by_unit(load_tidy(runs))
    return [row for unit in units for row in stored.get(unit.key, [])]


def draw_experiment(experiment: Experiment, settings: Settings) -> list[Path]:
    """Draw what has been stored.

    Raises
    ------
    DataError
        If nothing has.
    """
    folder = folder_of(experiment, settings)
    rows = [row for rows in _by_unit(load_tidy(folder / "runs.csv")).values() for row in rows]
    if not rows:
        raise DataError(
            f"experiment {experiment.name!r} has no rows of this version in {str(folder)!r}; "
            f"run it first: cloister experiments run {experiment.name}."
        )
    return list(experiment.figures(rows, folder))


def folder_of(experiment: Experiment, settings: Settings) -> Path:
    """Return where the rows and figures of an experiment are; the small version has its own."""
    return settings.out / (experiment.name if settings.full else f"{experiment.name}-small")


def _complete(unit: Unit) -> list[TidyRow]:
    """Run a unit; name it, and say where and by what it was run."""
    rows = list(unit.work())
    ends = {
        "version": version("cloister"),
        "commit": commit(),
        "machine": machine_kind(),
        "stamp": STAMP,
    }
    return [{"unit": unit.key, "unit_rows": len(rows), **row, **ends} for row in rows]


def _by_unit(rows: Iterable[TidyRow]) -> dict[str, list[TidyRow]]:
    """Group rows by unit; units of another version, or not whole, are left out."""
    units: dict[str, list[TidyRow]] = {}
    for row in rows:
        if row["version"] == version("cloister"):
            units.setdefault(str(row["unit"]), []).append(row)
    whole = {}
    for key, of_unit in units.items():
        size = of_unit[0]["unit_rows"]
        if isinstance(size, int) and len(of_unit) >= size:
            whole[key] = of_unit[-size:]  # an earlier attempt may have been cut off
    return whole


# --- Tidy rows in a file --------------------------------------------------------------------------


def load_tidy(path: Path) -> list[TidyRow]:
    """Read rows; a last line that was cut off is taken out of the file.

    Returns
    -------
    list of mapping
        Numbers as `int` or `float`, an empty field as None, all else as `str`.
    """
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        path.write_bytes(whole)
    return [
        {name: _value(name, text) for name, text in line.items()}
        for line in csv.DictReader(whole.decode().splitlines())
    ]


def append_tidy(path: Path, rows: Sequence[TidyRow]) -> None:
    """Add rows to a file in one write.

    Raises
    ------
    DataError
        If the file has other columns.
    """
    if not rows:
        return
    columns = list(rows[0])
    if path.exists() and path.stat().st_size:
        with path.open(newline="") as stored:
            columns = next(csv.reader(stored))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if not path.exists() or not path.stat().st_size:
        writer.writeheader()
    for row in rows:
        if set(row) != set(columns):
            raise DataError(
                f"{str(path)!r} has other columns than its experiment has now; use another folder."
            )
        writer.writerow({name: "" if value is None else value for name, value in row.items()})
    with path.open("a", newline="") as file:
        file.write(text.getvalue())


_TEXT = frozenset(
    ("unit", "dataset", "method", "commit", "version", "stamp", "machine", "plan_digest")
)
"""Columns that may look like numbers and are none."""


def _value(name: str, text: str) -> Value:
    if text == "":
        return None
    if name not in _TEXT:
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                pass
    return text


# --- Numbers and means ----------------------------------------------------------------------------


@dataclass(frozen=True)
class MeanOf:
    """A mean over rows, with a 95 % interval of it (Student's t)."""

    mean: float
    half: float
    """Half the width of the interval; NaN for one row."""
    runs: int


def means_of(
    rows: Iterable[TidyRow], by: Sequence[str], column: str
) -> dict[tuple[Value, ...], MeanOf]:
    """Average a column over all rows that agree in some others.

    Parameters
    ----------
    rows : iterable of mapping
        Those in which the column is empty are left out.
    by : sequence of str
    column : str

    Returns
    -------
    dict
        Values of the columns in `by`, in the order of their first row, to the mean.
    """
    from scipy.special import stdtrit

    groups: dict[tuple[Value, ...], list[float]] = {}
    for row in rows:
        value = row[column]
        if value is not None:
            groups.setdefault(tuple(row[name] for name in by), []).append(float(value))
    found = {}
    for key, values in groups.items():
        n = len(values)
        mean = math.fsum(values) / n
        half = math.nan
        if n > 1 and math.isfinite(mean):
            spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
            half = float(stdtrit(n - 1, 0.975)) * spread / math.sqrt(n)
        found[key] = MeanOf(mean, half, n)
    return found


def number(row: TidyRow, column: str) -> float:
    """Return a number of a row; NaN where the field is empty."""
    value = row[column]
    return math.nan if value is None else float(value)


def write_table(path: Path, rows: Sequence[TidyRow]) -> Path:
    """Write rows anew, as a CSV with six digits of each number; return its path."""
    path.unlink(missing_ok=True)
    append_tidy(path, [{name: _rounded(value) for name, value in row.items()} for row in rows])
    return path


def _rounded(value: Value) -> Value:
    return float(f"{value:.6g}") if isinstance(value, float) else value
