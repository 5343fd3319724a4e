"""SubCluster's figures 3 and 4, with the private variants and FastLloyd beside them.

The two published methods are **not private** (docs/proofs/subcluster.md); their "epsilon" is only
what they ask for.

References
----------
.. [JT22] Joshi, Thakkar, "k-Means SubClustering: A Differentially Private Algorithm with Improved
   Clustering Quality", CIKM-PAS 2022; section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cloister.tasks.clustering.kmeans import FastLloyd
from cloister_lab.curator.published import KMeansGuarantee, SubCluster
from cloister_lab.experiments.figures import draw_panels, panels_of
from cloister_lab.experiments.records import TidyRow, Value, cells_of, write_table
from cloister_lab.experiments.run import Settings, Unit, units_of
from cloister_lab.experiments.sweep import Named, private, run_source, tables
from cloister_lab.tasks.subcluster import KMeansGuaranteeDP, SubClusterDP

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
INTERNAL_KS = (2, 3, 4, 5)
BEST_INTERNAL_K = {"iris": 4, "wine": 4, "wdbc": 4, "digits": 5}
"""The numbers of parts that [JT22]_ settled on; of iris they say that it does not matter."""

_PUBLISHED = (KMeansGuarantee.name, SubCluster.name)
_TASKS = (FastLloyd.name, KMeansGuaranteeDP.name, SubClusterDP.name)
_WITHOUT_PARTS = {
    SubCluster.name: KMeansGuarantee.name,
    SubClusterDP.name: KMeansGuaranteeDP.name,
}
_WITH_PARTS = tuple(_WITHOUT_PARTS)
_SHOWN = {name: f"{name} (not private)" for name in _PUBLISHED} | {name: name for name in _TASKS}
_SMALL_TABLES = ("iris", "wine")
_NOTE = "Published methods: not private at any ε; see the proofs"


def units(settings: Settings) -> list[Unit]:
    """Return a unit for each table, start, method and number of parts."""
    names = tuple(BEST_INTERNAL_K) if settings.full else _SMALL_TABLES
    return [
        unit
        for table in tables(names, settings)
        # 10 repeats instead of 30, as in the paper
        for repeat in range(max(1, settings.runs(30, 2) // (3 if table.name == "digits" else 1)))
        for method in (*_PUBLISHED, *_TASKS)
        for unit in units_of(
            cost_gaps,
            table=[table],
            method=[method],
            internal_k=INTERNAL_KS if method in _WITH_PARTS else [None],
            repeat=[repeat],
        )
    ]


def cost_gaps(table: Named, method: str, internal_k: int | None, repeat: int) -> list[TidyRow]:
    """Run a method at every epsilon from one public seed; `internal_k` are the parts of a zone."""
    options: dict[str, Value] = {} if internal_k is None else {"internal_k": internal_k}
    labels: dict[str, Value] = {
        "private": "yes" if private(method) else "no",
        "internal_k": internal_k,
    }
    return run_source(table, method, EPSILONS, repeat, ["cost_gap"], options, labels, silos=1)


def figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Draw both figures, and write the means and the ratios that the paper states."""
    chosen = [
        row
        for row in rows
        if row["internal_k"] is None
        or row["internal_k"] == BEST_INTERNAL_K.get(str(row["dataset"]), INTERNAL_KS[-1])
    ]
    parted = [row for row in rows if row["internal_k"] is not None]
    files = []
    for name, shown, x, title, label in (
        ("fig3", chosen, "epsilon", "SubCluster Fig. 3: gap to Lloyd's loss", "ε"),
        ("fig4", parted, "internal_k", "SubCluster Fig. 4: gap by parts", "internal k"),
    ):
        cells = cells_of(shown, ("dataset", "method", x), "cost_gap")
        named = [{**cell, "method": _SHOWN[cell["method"]]} for cell in cells]
        if panels := panels_of(named, "{dataset}", "{method}", x, "cost_gap"):
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
    overall = cells_of(chosen, ("dataset", "method"), "cost_gap")
    means = {(cell["dataset"], cell["method"]): cell["cost_gap"].mean for cell in overall}
    for cell in overall:
        cell["half_width"] = cell["cost_gap"].half_or_none
        # above 1 where parts help: [JT22]_ state 1.1, 4.13, 2.83 and about 1
        baseline = means.get((cell["dataset"], _WITHOUT_PARTS.get(cell["method"])))
        mean = cell["cost_gap"].mean
        cell["baseline_over_this"] = baseline / mean if baseline is not None and mean else None
    return [*files, write_table(out / "means.csv", overall)] if overall else files
