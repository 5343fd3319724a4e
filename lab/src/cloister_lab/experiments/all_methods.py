"""Our own figure: every method that ships, on every table, by the gap that it closes.

The gap of a table is what FastLloyd loses against the non-private optimum. A method that closes
all of it is as good as no privacy; one below zero is worse than FastLloyd.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cloister.core.errors import PlanError
from cloister.protocol.task import Floats
from cloister.tasks.clustering.kmeans import FastLloyd, Lloyd
from cloister_lab.curator import METHODS as CURATORS
from cloister_lab.curator.max_cover import MaxCover
from cloister_lab.curator.privgene import PrivGene
from cloister_lab.experiments import records as tidy
from cloister_lab.experiments.figures import draw_heatmaps
from cloister_lab.experiments.records import Cell, MeanOf, TidyRow, Value
from cloister_lab.experiments.run import Settings, Unit, units_of
from cloister_lab.experiments.sweep import EPSILONS, TASKS, Named, loaded, private, release, tables
from cloister_lab.metrics import nicv
from cloister_lab.tasks.subcluster import SubClusterDP

_TABLES = (
    *("iris", "wine", "lsun", "breast", "wdbc", "yeast", "s1", "adult", "digits", "birch2"),
    *("g2mg_2_30", "g2mg_8_30", "g2mg_32_30", "g2mg_128_30", "mnist_t10k"),
)
_SMALL_TABLES = ("iris",)
_MIDDLE = 0.5  # the one epsilon of the small version
_NEGLIGIBLE = 1.02  # FastLloyd over the optimum, below which there is no gap to speak of
_SLOW = {MaxCover.name: 5, PrivGene.name: 5}  # so many times fewer repeats
_VARIANTS = {"subcluster-dp by size": (SubClusterDP.name, {"by_size": True})}
"""Names of methods with other than their default options."""


def units(settings: Settings) -> list[Unit]:
    """Return the units."""
    repeats = settings.runs(10, 1)
    return [
        unit
        for source in tables(_TABLES if settings.full else _SMALL_TABLES, settings)
        for name in (*TASKS, *_VARIANTS, *CURATORS)
        if name != Lloyd.name
        for unit in units_of(
            run_method,
            source=[source],
            method=[name],
            epsilons=[EPSILONS if settings.full else (_MIDDLE,)],
            repeat=range(max(1, repeats // _SLOW.get(name, 1))),
        )
    ]


def run_method(source: Named, method: str, epsilons: Sequence[float], repeat: int) -> list[TidyRow]:
    """Run one method at all epsilons from one public seed; `nicv` is empty where it refuses."""
    data = loaded(source)
    name, options = _VARIANTS.get(method, (method, {}))
    rows: list[TidyRow] = []
    for epsilon in epsilons:
        row: dict[str, Value] = {
            "dataset": data.name,
            "method": method,
            "private": "yes" if private(name) else "no",
            "epsilon": epsilon,
            "repeat": repeat,
            "nicv": None,
            "optimum": data.reference_nicv,
            "seconds": None,
            "plan_digest": None,
            "refused": None,
        }
        begun = time.perf_counter()
        try:
            answer = release(data, name, epsilon, repeat, **options)
            row["seconds"] = time.perf_counter() - begun
            row["nicv"] = nicv(data.values, answer.centres)
            row["plan_digest"] = answer.facts["plan_digest"]
        except PlanError as refusal:
            row["refused"] = str(refusal)
        rows.append(row)
    return rows


def gaps_closed(rows: Sequence[TidyRow]) -> list[Cell]:
    """Return a row for each table, epsilon and method: mean NICV and the gap closed.

    The gap is empty where FastLloyd was not run or is within 2 % of the optimum.
    """
    optima = tidy.means_of(rows, ("dataset",), "optimum")
    cells = tidy.cells_of(rows, ("dataset", "epsilon", "method"), "nicv", "seconds")
    fast = {
        (cell["dataset"], cell["epsilon"]): cell["nicv"].mean
        for cell in cells
        if cell["method"] == FastLloyd.name
    }
    found = []
    for cell in cells:
        nicv, optimum = cell["nicv"], optima[cell["dataset"],].mean
        base = fast.get((cell["dataset"], cell["epsilon"]), 0.0)
        worth = base >= _NEGLIGIBLE * optimum
        found.append(
            {
                **{name: cell[name] for name in ("dataset", "epsilon", "method", "runs")},
                "nicv": nicv.mean,
                "half_width": nicv.half_or_none,
                "optimum": optimum,
                "gap_closed": (base - nicv.mean) / (base - optimum) if worth else None,
                "seconds": cell["seconds"].mean,
            }
        )
    return found


def figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Write what the rows show."""
    table = gaps_closed(rows)
    closed = tidy.means_of(table, ("method", "dataset"), "gap_closed")
    overall = tidy.means_of(table, ("method",), "gap_closed")
    not_private = {row["method"] for row in rows if row["private"] == "no"}
    methods = sorted(
        {key[0] for key in closed}, key=lambda name: (name in not_private, -overall[name,].mean)
    )
    datasets = list(dict.fromkeys(str(key[1]) for key in closed))
    none = MeanOf(math.nan, math.nan, 1)
    values = np.array(
        [[*(closed.get((m, d), none).mean for d in datasets), overall[m,].mean] for m in methods]
    ).reshape(len(methods), len(datasets) + 1)
    names = [f"{m} (not private)" if m in not_private else str(m) for m in methods]
    epsilons = sorted({float(row["epsilon"] or 0) for row in rows})
    figure = draw_heatmaps(
        out / "gap-closed.png",
        {f"mean over ε = {', '.join(f'{e:g}' for e in epsilons)}": values},
        names,
        [*datasets, "mean"],
        title="Gap between FastLloyd and the optimum that each method closes",
        x_label="",
        y_label="",
        note="1: as good as no privacy; 0: FastLloyd. A mean is over the tables a method takes",
        centre=0.0,
        reach=1.0,
        more_is_better=True,
    )
    lines = _page(names, [*datasets, "mean"], values) + _refused(rows)
    page = tidy.write_page(out / "gap-closed.md", lines, stamped=False)
    return [figure, tidy.write_table(out / "gap-closed.csv", table), page]


def _page(names: Sequence[str], columns: Sequence[str], values: Floats) -> list[str]:
    shown = [["" if math.isnan(v) else f"{v:.2f}" for v in line] for line in values]
    rows = [
        {"method": name, **dict(zip(columns, line, strict=True))}
        for name, line in zip(names, shown, strict=True)
    ]
    return tidy.markdown(rows)


def _refused(rows: Sequence[TidyRow]) -> list[str]:
    refused: dict[Value, set[str]] = {}
    for row in rows:
        if row["refused"]:
            refused.setdefault(row["method"], set()).add(str(row["dataset"]))
    if not refused:
        return []
    lines = [f"- {method}: {', '.join(sorted(of))}" for method, of in refused.items()]
    return ["", "Refused, because the method is not for such a table:", *lines]
