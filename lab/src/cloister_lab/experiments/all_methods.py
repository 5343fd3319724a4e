"""Our own figure: every method that ships, on every table, by the gap that it closes.

The gap of a table is what FastLloyd loses against the non-private optimum. A method that closes
all of it is as good as no privacy; one below zero is worse than FastLloyd.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from cloister.errors import PlanError
from cloister.task import Floats
from cloister.tasks.clustering.kmeans import FastLloyd, Lloyd
from cloister_lab.curator import METHODS as CURATORS
from cloister_lab.curator.max_cover import MaxCover
from cloister_lab.experiments.figures import draw_heatmaps
from cloister_lab.experiments.records import TidyRow, Value, means_of, write_table
from cloister_lab.experiments.run import Experiment, Settings, Unit, markdown
from cloister_lab.experiments.sweep import EPSILONS, TASKS, Named, loaded, private, release, tables
from cloister_lab.metrics import nicv

_TABLES = (
    *("iris", "wine", "lsun", "breast", "wdbc", "yeast", "s1", "adult", "digits", "birch2"),
    *("g2mg_2_30", "g2mg_8_30", "g2mg_32_30", "g2mg_128_30", "mnist_t10k"),
)
_SMALL_TABLES = ("iris",)
_MIDDLE = 0.5  # the one epsilon of the small version
_NEGLIGIBLE = 1.02  # FastLloyd over the optimum, below which there is no gap to speak of
_SLOW = {MaxCover.name: 5}  # so many times fewer repeats


def _units(settings: Settings) -> list[Unit]:
    sources = tables(_TABLES if settings.full else _SMALL_TABLES, settings)
    epsilons = EPSILONS if settings.full else (_MIDDLE,)
    repeats = settings.runs(10, 1)
    names = [name for name in (*TASKS, *CURATORS) if name != Lloyd.name]
    shown = ",".join(f"{e:g}" for e in epsilons)
    return [
        Unit(f"{s.name} {name} e={shown} r={r}", partial(run_method, s, name, epsilons, r))
        for s in sources
        for name in names
        for r in range(max(1, repeats // _SLOW.get(name, 1)))
    ]


def run_method(source: Named, method: str, epsilons: Sequence[float], repeat: int) -> list[TidyRow]:
    """Run one method at all epsilons from one public seed.

    Returns
    -------
    list of mapping
        One for each epsilon; without `nicv` where the method refuses such a table.
    """
    data = loaded(source)
    rows: list[TidyRow] = []
    for epsilon in epsilons:
        row: dict[str, Value] = {
            "dataset": data.name,
            "method": method,
            "private": "yes" if private(method) else "no",
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
            answer = release(data, method, epsilon, repeat)
            row["seconds"] = time.perf_counter() - begun
            row["nicv"] = nicv(data.values, answer.centres)
            row["plan_digest"] = answer.facts["plan_digest"]
        except PlanError as refusal:
            row["refused"] = str(refusal)
        rows.append(row)
    return rows


def gaps_closed(rows: Sequence[TidyRow]) -> list[TidyRow]:
    """Return a row for each table, epsilon and method: mean NICV and the gap closed.

    The gap is empty where FastLloyd was not run or is within 2 % of the optimum.
    """
    means = means_of(rows, ("dataset", "epsilon", "method"), "nicv")
    optima = means_of(rows, ("dataset",), "optimum")
    seconds = means_of(rows, ("dataset", "epsilon", "method"), "seconds")
    found: list[TidyRow] = []
    for (dataset, epsilon, method), mean in means.items():
        optimum = optima[dataset,].mean
        fast = means.get((dataset, epsilon, FastLloyd.name))
        gap = None if fast is None or fast.mean < _NEGLIGIBLE * optimum else fast.mean - optimum
        found.append(
            {
                "dataset": dataset,
                "epsilon": epsilon,
                "method": method,
                "runs": mean.runs,
                "nicv": mean.mean,
                "half_width": mean.half_or_none,
                "optimum": optimum,
                "gap_closed": None
                if gap is None or fast is None
                else (fast.mean - mean.mean) / gap,
                "seconds": seconds[dataset, epsilon, method].mean,
            }
        )
    return found


def _figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    table = gaps_closed(rows)
    closed = means_of(table, ("method", "dataset"), "gap_closed")
    overall = means_of(table, ("method",), "gap_closed")
    not_private = {row["method"] for row in rows if row["private"] == "no"}
    methods = sorted(
        {key[0] for key in closed}, key=lambda name: (name in not_private, -overall[name,].mean)
    )
    datasets = list(dict.fromkeys(key[1] for key in closed))
    values = np.full((len(methods), len(datasets) + 1), np.nan)
    for i, method in enumerate(methods):
        for j, dataset in enumerate(datasets):
            if (method, dataset) in closed:
                values[i, j] = closed[method, dataset].mean
        values[i, -1] = overall[method,].mean
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
    page = out / "gap-closed.md"
    page.write_text(_page(names, [*map(str, datasets), "mean"], values, rows))
    return [figure, write_table(out / "gap-closed.csv", table), page]


def _page(
    names: Sequence[str], columns: Sequence[str], values: Floats, rows: Sequence[TidyRow]
) -> str:
    lines = markdown(
        ("method", *columns),
        (
            (name, *("" if math.isnan(v) else f"{v:.2f}" for v in line))
            for name, line in zip(names, values, strict=True)
        ),
    )
    refused: dict[Value, set[Value]] = {}
    for row in rows:
        if row["refused"]:
            refused.setdefault(row["method"], set()).add(row["dataset"])
    if refused:
        lines += ["", "Refused, because the method is not for such a table:"]
        lines += [
            f"- {method}: {', '.join(sorted(map(str, of)))}" for method, of in refused.items()
        ]
    return "\n".join([*lines, ""])


ALL = Experiment(
    "all-methods",
    "our own figure: all methods on all tables, by the gap they close",
    _units,
    _figures,
    seconds_small=15,
    seconds_full=2 * 3600,
)
