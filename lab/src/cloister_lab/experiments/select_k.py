"""Which number of clusters is chosen from released counts, how often, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from cloister.display import Curve
from cloister.jobs import JobResult, run_plan
from cloister.privacy.budget import Budget
from cloister.report.plots import draw
from cloister.task import Task
from cloister.tasks.clustering.auto import Auto
from cloister.tasks.clustering.select_k import SelectK
from cloister_lab.experiments.datasets import Dataset
from cloister_lab.experiments.records import STAMP, Key, TidyRow, Value, number
from cloister_lab.experiments.run import Experiment, Settings, Unit, markdown, prose
from cloister_lab.experiments.sweep import Named, loaded, plan_for, tables
from cloister_lab.metrics import nicv

_EPSILONS = (0.25, 0.5, 1.0)
_RUNS, _SMALL_RUNS = 20, 2


@dataclass(frozen=True)
class _Choice:
    """A table, and the numbers of clusters to choose from."""

    name: str
    low: int
    high: int


_CHOICES = (
    _Choice("s1", 2, 12),
    _Choice("s1", 2, 20),
    _Choice("adult", 2, 12),
    _Choice("lsun", 2, 12),
    _Choice("g2mg_2_30", 2, 12),
    _Choice("g2mg_16_30", 2, 12),
    _Choice("breast", 2, 12),
    _Choice("birch2", 2, 12),
)
_SMALL = (_Choice("iris", 2, 6),)


def _units(settings: Settings) -> list[Unit]:
    """Return a unit for each table, range, epsilon and repeat."""
    runs = settings.runs(_RUNS, _SMALL_RUNS)
    epsilons = _EPSILONS if settings.full else _EPSILONS[-1:]
    choices = _CHOICES if settings.full else _SMALL
    at_hand = {table.name: table for table in tables([c.name for c in choices], settings)}
    return [
        Unit(
            f"{choice.name} {choice.low}..{choice.high} e={epsilon:g} r={repeat}",
            partial(_choose, at_hand[choice.name], choice, epsilon, repeat),
        )
        for choice in choices
        if choice.name in at_hand
        for epsilon in epsilons
        for repeat in range(runs)
    ]


def _choose(table: Named, choice: _Choice, epsilon: float, repeat: int) -> list[TidyRow]:
    """Choose and cluster once, and cluster once more for that number as if it had been known."""
    data = loaded(table)
    numbers = {"min_clusters": choice.low, "max_clusters": choice.high}
    found = _run(data, SelectK, epsilon, repeat, numbers).results
    k = int(found["k"][0])
    known = _run(data, Auto, epsilon, repeat, {"n_clusters": k}).results
    normalise = data.schema.grid().normalise
    return [
        {
            "dataset": choice.name,
            "epsilon": epsilon,
            "low": choice.low,
            "high": choice.high,
            "repeat": repeat,
            "usual": data.n_clusters,
            "chosen": k,
            "nicv": nicv(data.values, normalise(found["centres"])),
            "nicv_if_known": nicv(data.values, normalise(known["centres"])),
            **{
                name: " ".join(f"{value:.6g}" for value in found[name])
                for name in ("gap", "gap_low", "gap_high")
            },
        }
    ]


def _run(
    data: Dataset, task: type[Task], epsilon: float, repeat: int, numbers: dict[str, int]
) -> JobResult:
    plan = plan_for(task, data, Budget(epsilon, data.delta), repeat, 1, **numbers)
    return run_plan(plan, {"silo-0": [data.records]})


# --- What is shown --------------------------------------------------------------------------------


def _figures(rows: Sequence[TidyRow], folder: Path) -> list[Path]:
    """Write the page, and the curve of each first run at the largest epsilon."""
    page = folder / "select_k.md"
    full = "" if folder.name.endswith("-small") else " --full"
    largest = max(float(row["epsilon"] or 0) for row in rows)
    first = [row for row in rows if row["repeat"] == 0 and row["epsilon"] == largest]
    curves = [_curve(row, folder) for row in first]
    text = as_markdown(rows, f"cloister experiments run select-k{full}")
    shown = "\n\n".join(
        f"**{row['dataset']}, {row['low']} to {row['high']}, epsilon {row['epsilon']}**\n\n"
        f"![Gap and its 90 % band against the number of clusters]({curve.name})"
        for row, curve in zip(first, curves, strict=True)
    )
    page.write_text(f"{text}\n## The curve of the first run\n\n{shown}\n", "utf-8")
    return [page, *curves]


def _curve(row: TidyRow, folder: Path) -> Path:
    """Draw the curve of one run."""
    gap, low, high = (
        np.array([float(text) for text in str(row[name]).split()])
        for name in ("gap", "gap_low", "gap_high")
    )
    places = np.arange(int(row["low"] or 0), int(row["high"] or 0) + 1, dtype=np.float64)
    chosen = float(row["chosen"] or 0)
    curve = Curve(str(row["dataset"]), places, gap, low, high, chosen, ("clusters", "gap"))
    path = folder / f"select_k-{row['dataset']}-{row['low']}-{row['high']}.svg"
    path.write_text(draw(curve, "k"), "utf-8")
    return path


def as_markdown(rows: Sequence[TidyRow], command: str) -> str:
    """Return the page: a line for each table, range and epsilon."""
    cells: dict[Key, list[TidyRow]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("dataset", "low", "high", "epsilon"))
        cells.setdefault(key, []).append(row)
    headings = ("table", "asked", "epsilon", "usual", "chosen (runs)", "NICV", "if known")
    return "\n".join(
        (
            *prose("select_k", command=command, stamp=STAMP),
            *markdown(headings, (_line(*key, group=group) for key, group in cells.items())),
            "",
            "Bounds, length and delta are read from the tables, as in the papers. A choice at the "
            "upper end of what was asked says that there may be more clusters.",
            "",
        )
    )


def _line(
    dataset: Value, low: Value, high: Value, epsilon: Value, *, group: Sequence[TidyRow]
) -> tuple[object, ...]:
    times = Counter(int(row["chosen"] or 0) for row in group)
    chosen = ", ".join(f"{k} ({count})" for k, count in sorted(times.items()))
    errors = (
        f"{np.mean([number(row, name) for row in group]):.4g}" for name in ("nicv", "nicv_if_known")
    )
    return (dataset, f"{low}..{high}", epsilon, group[0]["usual"], chosen, *errors)


SELECT_K = Experiment(
    name="select-k",
    what="which number of clusters is chosen from released counts",
    units=_units,
    figures=_figures,
    seconds_small=5,
    seconds_full=1200,
)
