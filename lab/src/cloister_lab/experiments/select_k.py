"""Which number of clusters is chosen from released counts, how often, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cloister.app.in_process import run_plan
from cloister.app.release import Release
from cloister.app.report.plots import draw
from cloister.core.display import Curve, Estimate
from cloister.privacy.budget import Budget
from cloister.protocol.task import Task
from cloister.tasks.clustering.auto import Auto
from cloister.tasks.clustering.select_k import SelectK
from cloister_lab.experiments import records as tidy
from cloister_lab.experiments.datasets import Dataset
from cloister_lab.experiments.records import STAMP, TidyRow
from cloister_lab.experiments.run import Settings, Unit, command_of, units_of
from cloister_lab.experiments.sweep import Named, loaded, plan_for, tables
from cloister_lab.metrics import nicv

_EPSILONS = (0.25, 0.5, 1.0)
_RUNS, _SMALL_RUNS = 20, 2


_CHOICES = (
    *(("s1", 2, 12), ("s1", 2, 20), ("adult", 2, 12), ("lsun", 2, 12)),
    *(("g2mg_2_30", 2, 12), ("g2mg_16_30", 2, 12), ("breast", 2, 12), ("birch2", 2, 12)),
)
"""Tables, and the least and the largest number of clusters to choose from."""
_SMALL = (("iris", 2, 6),)


def units(settings: Settings) -> list[Unit]:
    """Return a unit for each table, range, epsilon and repeat."""
    return [
        unit
        for name, low, high in (_CHOICES if settings.full else _SMALL)
        for unit in units_of(
            _choose,
            table=tables([name], settings),
            low=[low],
            high=[high],
            epsilon=_EPSILONS if settings.full else _EPSILONS[-1:],
            repeat=range(settings.runs(_RUNS, _SMALL_RUNS)),
        )
    ]


def _choose(table: Named, low: int, high: int, epsilon: float, repeat: int) -> list[TidyRow]:
    """Choose and cluster once, and cluster once more for that number as if it had been known."""
    data = loaded(table)
    numbers = {"min_clusters": low, "max_clusters": high}
    found = _run(data, SelectK, epsilon, repeat, numbers).results
    k = int(found["k"][0])
    known = _run(data, Auto, epsilon, repeat, {"n_clusters": k}).results
    normalise = data.schema.grid().normalise
    return [
        {
            "dataset": table.name,
            "epsilon": epsilon,
            "low": low,
            "high": high,
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
) -> Release:
    plan = plan_for(task, data, Budget(epsilon, data.delta), repeat, 1, **numbers)
    return run_plan(plan, {"silo-0": [data.records]})


# --- What is shown --------------------------------------------------------------------------------


def figures(rows: Sequence[TidyRow], folder: Path) -> list[Path]:
    """Write the page, and the curve of each first run at the largest epsilon."""
    largest = max(tidy.number(row, "epsilon") for row in rows)
    first = [row for row in rows if row["repeat"] == 0 and row["epsilon"] == largest]
    curves = [_curve(row, folder) for row in first]
    shown = [
        f"**{row['dataset']}, {row['low']} to {row['high']}, epsilon {row['epsilon']}**\n\n"
        f"![Gap and its 90 % band against the number of clusters]({curve.name})"
        for row, curve in zip(first, curves, strict=True)
    ]
    text = as_markdown(rows, command_of("select-k", folder))
    lines = [text, "## The curve of the first run\n", "\n\n".join(shown)]
    return [tidy.write_page(folder / "select_k.md", lines, stamped=False), *curves]


def _curve(row: TidyRow, folder: Path) -> Path:
    """Draw the curve of one run."""
    gap, low, high = (
        np.array([float(text) for text in str(row[name]).split()])
        for name in ("gap", "gap_low", "gap_high")
    )
    places = np.arange(int(row["low"] or 0), int(row["high"] or 0) + 1, dtype=np.float64)
    chosen = float(row["chosen"] or 0)
    found = Estimate(gap, low, high, axes=("clusters",), unit="gap")
    curve = Curve(str(row["dataset"]), places, found, chosen=chosen)
    path = folder / f"select_k-{row['dataset']}-{row['low']}-{row['high']}.svg"
    path.write_text(draw(curve, "k"), "utf-8")
    return path


def as_markdown(rows: Sequence[TidyRow], command: str) -> str:
    """Return the page: a line for each table, range and epsilon."""
    by = ("dataset", "low", "high", "epsilon", "usual")
    cells = tidy.cells_of(rows, by, "nicv", "nicv_if_known")
    for cell in cells:
        times = Counter(
            tidy.number(row, "chosen") for row in rows if all(row[n] == cell[n] for n in by)
        )
        cell["chosen"] = ", ".join(f"{k:g} ({times[k]})" for k in sorted(times))
    return "\n".join([*tidy.prose("select_k", cells, command=command, stamp=STAMP), ""])
