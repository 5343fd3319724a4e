"""SubCluster's figures 3 and 4, with the private variants and FastLloyd beside them.

The two published methods are **not private** (docs/proofs/subcluster.md); their "epsilon" is only
what they ask for.

References
----------
.. [JT22] Joshi, Thakkar, "k-Means SubClustering: A Differentially Private Algorithm with Improved
   Clustering Quality", CIKM-PAS 2022; section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from cloister.tasks.clustering.kmeans import FastLloyd
from cloister_lab.curator.published import KMeansGuarantee, SubCluster
from cloister_lab.experiments.figures import draw_panels, panels_of
from cloister_lab.experiments.records import MeanOf, TidyRow, Value, means_of, write_table
from cloister_lab.experiments.run import Experiment, Settings, Unit
from cloister_lab.experiments.sweep import Named, private, run_source, tables
from cloister_lab.tasks.subcluster import KMeansGuaranteeDP, SubClusterDP

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
INTERNAL_KS = (2, 3, 4, 5)
BEST_INTERNAL_K = {"iris": 4, "wine": 4, "wdbc": 4, "digits": 5}
"""The numbers of parts that [JT22]_ settled on; of iris they say that it does not matter."""

_PUBLISHED = (KMeansGuarantee.name, SubCluster.name)
_TASKS = (FastLloyd.name, KMeansGuaranteeDP.name, SubClusterDP.name)
_WITH_PARTS = (SubCluster.name, SubClusterDP.name)
_SHOWN = {name: f"{name} (not private)" for name in _PUBLISHED} | {name: name for name in _TASKS}
_SMALL_TABLES = ("iris", "wine")
_NOTE = "Published methods: not private at any ε; see the proofs"


def _units(settings: Settings) -> list[Unit]:
    """Return a unit for each table, method, number of parts and start."""
    units = []
    for table in tables(tuple(BEST_INTERNAL_K) if settings.full else _SMALL_TABLES, settings):
        few = 3 if table.name == "digits" else 1  # 10 repeats instead of 30, as in the paper
        repeats = max(1, (settings.runs(30, 2)) // few)
        for repeat in range(repeats):
            for method in (*_PUBLISHED, *_TASKS):
                for internal_k in INTERNAL_KS if method in _WITH_PARTS else (None,):
                    key = f"{table.name} {method} parts={internal_k} r={repeat}"
                    work = partial(cost_gaps, table, method, internal_k, repeat)
                    units.append(Unit(key, work))
    return units


def cost_gaps(table: Named, method: str, internal_k: int | None, repeat: int) -> list[TidyRow]:
    """Run a method at every epsilon from one public seed; `internal_k` are the parts of a zone."""
    options: dict[str, Value] = {} if internal_k is None else {"internal_k": internal_k}
    labels: dict[str, Value] = {
        "private": "yes" if private(method) else "no",
        "internal_k": internal_k,
    }
    return run_source(table, method, EPSILONS, repeat, ["cost_gap"], options, labels, silos=1)


def _draw(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Draw both figures, and write the means and the ratios that the paper states."""
    chosen = [
        row
        for row in rows
        if row["internal_k"] is None
        or row["internal_k"] == BEST_INTERNAL_K.get(str(row["dataset"]), INTERNAL_KS[-1])
    ]
    by_epsilon = means_of(chosen, ("dataset", "method", "epsilon"), "cost_gap")
    parted = [row for row in rows if row["internal_k"] is not None]
    by_parts = means_of(parted, ("dataset", "method", "internal_k"), "cost_gap")
    files = []
    for name, means, title, label in (
        ("fig3", by_epsilon, "SubCluster Fig. 3: gap to Lloyd's loss", "ε"),
        ("fig4", by_parts, "SubCluster Fig. 4: gap by parts", "internal k"),
    ):
        panels = panels_of(means, lambda key: str(key[0]), lambda key: _SHOWN[str(key[1])])
        if panels:
            files.append(
                draw_panels(
                    out / f"{name}.png",
                    panels,
                    title=title,
                    x_label=label,
                    y_label="gap / loss of Lloyd, mean and 95 % interval",
                    x_log=name == "fig3",
                    note=_NOTE,
                )
            )
    overall = means_of(chosen, ("dataset", "method"), "cost_gap")
    table: list[TidyRow] = [
        {
            "dataset": dataset,
            "method": method,
            "runs": mean.runs,
            "cost_gap": mean.mean,
            "half_width": mean.half_or_none,
            # above 1 where parts help: [JT22]_ state 1.1, 4.13, 2.83 and about 1
            "baseline_over_this": _ratio(overall, dataset, method),
        }
        for (dataset, method), mean in overall.items()
    ]
    return [*files, write_table(out / "means.csv", table)] if table else files


def _ratio(
    overall: Mapping[tuple[Value, ...], MeanOf], dataset: Value, method: Value
) -> float | None:
    """Return the gap of the method without parts over the gap of the method with them."""
    without = {
        SubCluster.name: KMeansGuarantee.name,
        SubClusterDP.name: KMeansGuaranteeDP.name,
    }.get(str(method))
    mean, baseline = overall[dataset, method].mean, overall.get((dataset, without))
    return baseline.mean / mean if baseline and mean else None


SUBCLUSTER = Experiment(
    name="subcluster",
    what="SubCluster's Fig. 3 and 4: gap to Lloyd's loss, published and private variants",
    units=_units,
    figures=_draw,
    seconds_small=5,
    seconds_full=400,
)
