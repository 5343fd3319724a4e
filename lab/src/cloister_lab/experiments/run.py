"""Experiments that go on where they stopped: named units of work, their rows, their figures.

An experiment is a list of units, each a function that makes some rows, and a function that draws
the rows. Units run in parallel, in any order; the rows of one are written together as it ends, so
a run that was interrupted makes only the units that are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import product, takewhile
from pathlib import Path
from time import monotonic
from typing import Any

from cloister.core.errors import DataError, PlanError
from cloister_lab.experiments.records import (
    STAMP,
    TidyRow,
    append_tidy,
    commit,
    load_tidy,
    machine_kind,
)


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
    minutes : float, optional
        Begin no unit after so long; first repeats go first, so that what is left out are repeats.
    """

    out: Path
    full: bool = False
    jobs: int = 1
    data_dir: Path | None = None
    repeats: int | None = None
    only: tuple[str, ...] = ()
    minutes: float | None = None

    def runs(self, full: int, small: int) -> int:
        """Return how often to repeat: as asked, or the number of this version."""
        return self.repeats or (full if self.full else small)

    def wants(self, dataset: str) -> bool:
        """Return whether a data set is to be kept."""
        return not self.only or dataset in self.only

    def file(self, name: str, suffixes: Sequence[str]) -> Path | None:
        """Return a table's file in the data folder, if it is there."""
        found = [self.data_dir / f"{name}{s}" for s in suffixes] if self.data_dir else []
        return next((path for path in found if path.exists()), None)


@dataclass(frozen=True)
class Unit:
    """Some rows and how to make them.

    Parameters
    ----------
    key : str
        Says all that its rows depend on, but for the version of this package.
    work : function
        Can be pickled: a `functools.partial` of a function of a module.
    repeat : int
        Which of the repeats its rows are of.
    """

    key: str
    work: Callable[[], Iterable[TidyRow]]
    repeat: int = 0


def units_of(measure: Callable[..., Iterable[TidyRow]], **axes: Iterable[Any]) -> list[Unit]:
    """Return a unit for each combination of values of a measurement's arguments.

    Axes are the values of each argument, the slowest to change first. A key shows a value by its
    name if it has one.
    """
    found = []
    for values in product(*axes.values()):
        given = dict(zip(axes, values, strict=True))
        key = " ".join(f"{name}={_shown(value)}" for name, value in given.items())
        found.append(Unit(key, partial(measure, **given), given.get("repeat", 0)))
    return found


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_shown, value))
    return str(getattr(value, "name", value))


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


def run_units(
    units: Sequence[Unit],
    runs: Path,
    *,
    jobs: int = 1,
    quiet: bool = False,
    name: str = "runs",
    minutes: float | None = None,
) -> list[TidyRow]:
    """Make the rows that a file lacks, add them to it, and return those of all units in order.

    With a number of minutes, units of the first repeats go first, and none is begun after them.
    """
    from rich.console import Console
    from rich.progress import Progress
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

    if jobs < 1:
        raise PlanError(f"jobs must be >= 1, got {jobs}.")
    stored = _by_unit(load_tidy(runs))
    missing = [unit for unit in units if unit.key not in stored]
    due: Iterable[Unit] = missing
    if minutes is not None:
        end = monotonic() + 60 * minutes
        first = sorted(missing, key=lambda unit: unit.repeat)
        due = takewhile(lambda _: monotonic() < end, first)
    watched = Console(stderr=True)
    disabled = quiet or not watched.is_terminal
    with Progress(console=watched, disable=disabled) as bar, threadpool_limits(1):
        task = bar.add_task(name, total=len(units), completed=len(units) - len(missing))
        for rows in _answers(due, jobs):
            append_tidy(runs, rows)
            bar.advance(task)
    stored = _by_unit(load_tidy(runs))
    return [row for unit in units for row in stored.get(unit.key, [])]


def _answers(units: Iterable[Unit], jobs: int) -> Iterable[list[TidyRow]]:
    """Return the rows of each unit as it ends; one job runs here, in the order of the units."""
    if jobs == 1:
        return map(_complete, units)
    from joblib import (  # type: ignore[import-untyped]  # ships no types
        Parallel,
        delayed,
        parallel_config,
    )

    with parallel_config("loky", inner_max_num_threads=1):
        processes = Parallel(jobs, return_as="generator_unordered")
    rows: Iterable[list[TidyRow]] = processes(delayed(_complete)(unit) for unit in units)
    return rows


def run_experiment(
    experiment: Experiment, settings: Settings, *, quiet: bool = False
) -> list[TidyRow]:
    """Make the rows that are missing, and return all; `out` is the folder of all experiments.

    Raises
    ------
    PlanError, DataError
        If a setting is out of range, nothing is left to run, or the rows stored are not of this
        experiment.
    """
    if settings.repeats is not None and settings.repeats < 1:
        raise PlanError(f"repeats must be >= 1, got {settings.repeats}.")
    if settings.minutes is not None and not settings.minutes >= 0:
        raise PlanError(f"minutes must be >= 0, got {settings.minutes}.")
    settings = replace(settings, out=folder_of(experiment, settings))
    units = experiment.units(settings)
    if not units:
        raise PlanError(
            f"experiment {experiment.name!r} has nothing to run under these settings; "
            "name a data folder, or other data sets."
        )
    settings.out.mkdir(parents=True, exist_ok=True)
    return run_units(
        units,
        settings.out / "runs.csv",
        jobs=settings.jobs,
        quiet=quiet,
        name=experiment.name,
        minutes=settings.minutes,
    )


def shares(
    experiments: Sequence[Experiment], settings: Settings
) -> Iterator[tuple[Experiment, Settings]]:
    """Deal the minutes to experiments one after the other, by how long each takes.

    What one leaves over is for those that follow.
    """
    minutes, begun = settings.minutes, monotonic()
    cost = [e.seconds_full if settings.full else e.seconds_small for e in experiments]
    for index, experiment in enumerate(experiments):
        if minutes is not None:
            left = max(0.0, minutes - (monotonic() - begun) / 60)
            settings = replace(settings, minutes=left * cost[index] / sum(cost[index:]))
        yield experiment, settings


def draw_experiment(experiment: Experiment, settings: Settings) -> list[Path]:
    """Draw what has been stored; a `DataError` if nothing has."""
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


def command_of(name: str, folder: Path) -> str:
    """Return the command that made what is in a folder."""
    full = "" if folder.name.endswith("-small") else " --full"
    return f"cloister experiments run {name}{full}"


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
    # an earlier attempt may have been cut off
    sizes = {key: int(of_unit[0]["unit_rows"] or 0) for key, of_unit in units.items()}
    return {key: units[key][-size:] for key, size in sizes.items() if len(units[key]) >= size}
