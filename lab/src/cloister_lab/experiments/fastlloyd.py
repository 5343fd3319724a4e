"""FastLloyd's figures 2 to 8, with our own method beside the paper's.

References
----------
.. [DHK24] A. Diaa, T. Humphries and F. Kerschbaum, "FastLloyd: Federated, Accurate, Secure, and
   Tunable k-Means Clustering with Differential Privacy", arXiv:2405.02437; section 6 and
   appendices.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from cloister.core.randomness import public_generator
from cloister_lab.experiments import records as tidy
from cloister_lab.experiments.figures import Point, draw_heatmaps, draw_panels, panels_of
from cloister_lab.experiments.mixtures import G2, Mixture
from cloister_lab.experiments.records import Cell, Key, MeanOf, TidyRow, Value
from cloister_lab.experiments.run import Settings, Unit, units_of
from cloister_lab.experiments.sweep import (
    EPSILONS,
    METHODS,
    NO_HOUSE,
    Source,
    areas,
    loaded,
    measure,
    run_once,
    run_source,
    sweep,
    tables,
)

_TABLES = (
    *("iris", "lsun", "s1", "adult", "wine", "breast", "yeast", "mnist_t10k", "birch2"),
    *(f"g2mg_{2**power}_30" for power in range(1, 8)),
)
_SMALL_TABLES = ("iris", "wine")
_SLOW = {"mnist_t10k": 10, "adult": 3, "birch2": 3}  # so many times fewer repeats
_METRICS = ("silhouette", "davies_bouldin", "centroid_mse", "empty_clusters")
_FIGURES = (
    ("nicv", "fig2", "FastLloyd Fig. 2: error against ε", "NICV", None),
    ("silhouette", "fig6", "FastLloyd Fig. 6: silhouette against ε", "silhouette", False),
    ("davies_bouldin", "fig7", "FastLloyd Fig. 7: Davies-Bouldin index", "Davies-Bouldin", None),
    ("centroid_mse", "fig8", "FastLloyd Fig. 8: error of the centres", "centre MSE", None),
)
"""Column, file, title, label and scale of each figure of tables."""

_OPTIMUM = "best of ten"
"""The reference centres themselves: scikit-learn's k-means with ten starts."""


def _long(cells: Iterable[Cell], by: Sequence[str], column: str, metric: str) -> list[Cell]:
    """Return means as rows of a table in which a column names the metric."""
    rows = []
    for cell in cells:
        low, high = (None if math.isnan(end) else end for end in cell[column].interval)
        ends = {"runs": cell["runs"], "mean": cell[column], "low": low, "high": high}
        rows.append({**{name: cell[name] for name in by}, "metric": metric, **ends})
    return rows


# --- Figures 2 and 6 to 8: tables -----------------------------------------------------------------


def units_tables(settings: Settings) -> list[Unit]:
    """Return the units."""
    sources = tables(_TABLES if settings.full else _SMALL_TABLES, settings)
    base = settings.runs(100, 2)
    repeats = {s.name: max(1, base // _SLOW.get(s.name, 1)) for s in sources}
    optima = units_of(optimum, source=sources, metrics=[_METRICS]) if sources else []
    return optima + sweep(sources, METHODS, EPSILONS, repeats, _METRICS)


def optimum(source: Source, metrics: Sequence[str]) -> list[TidyRow]:
    """Measure the reference centres of a table, as a row of a run without noise."""
    (row,) = run_source(source, "lloyd", EPSILONS, 0, metrics)
    data = loaded(source)
    found = measure(data, data.reference_centres, metrics)
    return [{**row, **found, "method": _OPTIMUM, "rounds": None, "plan_digest": None}]


def draw_tables(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Write what the rows show."""
    by = ("dataset", "method", "epsilon")
    files, table = [], []
    for column, name, title, label, y_log in _FIGURES:
        # one cluster left has an infinite Davies-Bouldin index, which no mean survives
        finite = [row for row in rows if math.isfinite(tidy.number(row, column))]
        cells = tidy.cells_of(finite, by, column)
        # the reference has no distance to itself
        drawn = [c for c in cells if (c["method"], column) != (_OPTIMUM, "centroid_mse")]
        files.append(
            draw_panels(
                out / f"fastlloyd-{name}.png",
                panels_of(drawn, "{dataset}", "{method}", "epsilon", column),
                title=title,
                x_label="ε",
                y_label=f"{label}, mean and 95 % interval",
                y_log=y_log,
                note=NO_HOUSE,
            )
        )
        table += _long(cells, by, column, column)
    empty = tidy.cells_of(rows, by, "empty_clusters")
    table += _long(empty, by, "empty_clusters", "empty_clusters")
    page = tidy.write_page(out / "fastlloyd-fig2.md", _page_of_tables(rows))
    return [*files, page, tidy.write_table(out / "fastlloyd-fig2.csv", table)]


_ORDER = (
    *(("auto", "fastlloyd"), ("fastlloyd", "glloyd"), ("fastlloyd", "sulloyd")),
    ("glloyd", "sulloyd"),
)
_SHOWN_EPSILONS = (0.1, 0.5, 1.0)
_SIGNS = {"nicv": 1, "centroid_mse": 1, "davies_bouldin": 1, "silhouette": -1}
"""1 where less is better."""


def _page_of_tables(rows: Sequence[TidyRow]) -> list[str]:
    """Return the page of figures 2 and 6 to 8."""
    by = ("dataset", "method", "epsilon")
    nicv = {tuple(c[name] for name in by): c for c in tidy.cells_of(rows, by, "nicv")}
    columns = [("best of ten", _OPTIMUM, math.inf), ("Lloyd, not private", "lloyd", math.inf)]
    for method, label in (("fastlloyd", "FastLloyd"), ("auto", "auto")):
        columns += [(f"{label} ε = {e:g}", method, e) for e in _SHOWN_EPSILONS]
    means = [
        {"data set": str(name)}
        | {
            title: f"{cell['nicv'].mean:.3g}" if (cell := nicv.get((name, *at))) else "-"
            for title, *at in columns
        }
        for name in dict.fromkeys(row["dataset"] for row in rows)
    ]
    order = [
        {"measure": column, "pair": f"{one}, {other}", **_verdicts(rows, column, one, other)}
        for column in _SIGNS
        for one, other in _ORDER
    ]
    return [
        *tidy.prose("fastlloyd-fig2", starts=tidy.starts(rows)),
        *tidy.markdown(means),
        *tidy.prose("fastlloyd-order", order),
        *_lost(rows),
    ]


def _apart(rows: Sequence[TidyRow], column: str, one: str, other: str) -> Mapping[Key, MeanOf]:
    """Return how much worse one method is than another at each epsilon, over the same starts."""
    worse = [
        {**row, column: _SIGNS[column] * tidy.number(row, column)}
        for row in rows
        if math.isfinite(tidy.number(row, column))
    ]
    return tidy.paired(worse, ("dataset", "epsilon"), column, one, other)


def _verdicts(rows: Sequence[TidyRow], column: str, one: str, other: str) -> Cell:
    """Count where one method is better than another, and where that is clear."""
    apart = _apart(rows, column, one, other).values()
    return {
        "cells": len(apart),
        "better": sum(mean.mean < 0 for mean in apart),
        "clearly": sum(mean.mean + mean.half < 0 for mean in apart),
        "worse": sum(mean.mean - mean.half > 0 for mean in apart),
    }


def _lost(rows: Sequence[TidyRow]) -> list[str]:
    """Return a table of where `auto` is clearly worse than FastLloyd, and what may explain it."""
    methods = {"fastlloyd": "fastlloyd", "auto": "auto", "best": _OPTIMUM}
    cells = []
    for column in _SIGNS:
        finite = [row for row in rows if math.isfinite(tidy.number(row, column))]
        means = tidy.means_of(finite, ("dataset", "method", "epsilon"), column)
        empty = tidy.means_of(rows, ("dataset", "method", "epsilon"), "empty_clusters")
        for (name, epsilon), apart in _apart(rows, column, "auto", "fastlloyd").items():
            if apart.mean - apart.half > 0:
                at = {
                    key: (name, method, math.inf if method == _OPTIMUM else epsilon)
                    for key, method in methods.items()
                }
                found: Cell = {key: means.get(place) for key, place in at.items()}
                found |= {f"{key}_empty": empty.get(place) for key, place in at.items()}
                cells.append({"dataset": name, "epsilon": epsilon, "measure": column, **found})
    if not cells:
        return ["", "Nowhere is `auto` clearly worse than FastLloyd by any of the four measures."]
    return tidy.prose("fastlloyd-lost", cells)


# --- Figures 3 and 4: areas ---------------------------------------------------------------------

_WIDTHS = tuple(2**power for power in range(1, 11))
_CROWDS = tuple(2**power for power in range(1, 8))
_RATIOS = (
    *(("fastlloyd", "sulloyd"), ("fastlloyd", "glloyd"), ("auto", "sulloyd")),
    ("auto", "fastlloyd"),
)


def units_areas(settings: Settings) -> list[Unit]:
    """Return two clusters in more and more columns, and more and more clusters in the plane."""
    starts = settings.runs(30, 2)
    widths, crowds = (_WIDTHS, _CROWDS) if settings.full else (_WIDTHS[:2], _CROWDS[:2])
    pairs: list[Source] = []
    for d in widths:
        pairs += tables([f"g2mg_{d}_30"], replace(settings, only=())) or [G2(d)]
    size, seeds = (10_000, min(3, starts)) if settings.full else (600, 1)
    crowded = [_synth(size, 2, k, seed) for k in crowds for seed in range(seeds)]
    return [
        *sweep(pairs, METHODS, EPSILONS, starts, labels={"panel": _PANELS[0]}),
        *sweep(crowded, METHODS, EPSILONS, max(1, starts // seeds), labels={"panel": _PANELS[1]}),
    ]


_PANELS = ("two Gaussians, over columns", "two columns, over clusters")


def draw_areas(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Write what the rows show."""
    shares = _areas(rows, over="sulloyd")
    files: list[Path] = []
    panels: dict[str, dict[str, list[Point]]] = {}
    table: list[Cell] = []
    for panel, place in zip(_PANELS, ("n_features", "n_clusters"), strict=True):
        of_panel = [row for row in shares if row["panel"] == panel]
        by = ("panel", "n_features", "n_clusters", "method")
        cells = _without_lone_starts(tidy.cells_of(of_panel, by, "ratio"), of_panel, by)
        panels |= panels_of(cells, panel, "{method}", place, "ratio")
        table += _long(cells, by, "ratio", "area_over_sulloyd")
    files.append(
        draw_panels(
            out / "fastlloyd-fig3.png",
            panels,
            title="FastLloyd Fig. 3: area under NICV over ε, over that of SuLloyd",
            x_label="columns (left), clusters (right)",
            y_label="area over SuLloyd's",
            x_log=True,
            y_log=True,
            columns=2,
        )
    )
    lines = tidy.prose("fastlloyd-fig3", starts=tidy.starts(rows))
    for panel, place in zip(_PANELS, ("n_features", "n_clusters"), strict=True):
        at: dict[Value, dict[str, str]] = {}
        for cell in table:
            if cell["panel"] == panel:
                shown = at.setdefault(cell[place], {panel.split(", over ")[1]: str(cell[place])})
                shown[str(cell["method"])] = f"{cell['mean'].mean:.3f}"
        headings = [panel.split(", over ")[1], *METHODS]
        lines += ["", f"{panel[0].upper()}{panel[1:]}:", ""]
        lines += tidy.markdown([{n: row.get(n, "-") for n in headings} for row in at.values()])
    page = tidy.write_page(out / "fastlloyd-fig3.md", lines)
    return [*files, page, tidy.write_table(out / "fastlloyd-fig3.csv", table)]


def units_mixtures(settings: Settings) -> list[Unit]:
    """Return the grid of columns and clusters.

    The starts are shared out over three mixtures of each kind.
    """
    starts = settings.runs(30, 2)
    if settings.full:
        size, seeds = 10_000, min(3, starts)
        grid = [(2**i, 2**j) for i in range(1, 10) for j in range(1, 6)]
    else:
        size, seeds = 600, 1
        grid = [(2, 2), (2, 4), (4, 2), (4, 4)]
    units = []
    for d, k in grid:
        mixtures = [_synth(size, d, k, seed) for seed in range(seeds)]
        units += sweep(mixtures, METHODS, EPSILONS, starts // seeds)
    return units


def _synth(size: int, d: int, k: int, seed: int) -> Mixture:
    """Return one mixture of the paper's: separation and outliers are drawn too."""
    rng = public_generator(seed, "synth", d, k)
    apart, far = float(rng.uniform(0.16, 0.26)), int(rng.integers(0, 101))
    return Mixture(size, d, k, round(apart, 4), far * size // 10_000, seed)


def draw_mixtures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Write what the rows show."""
    by = ("n_features", "n_clusters", "method")
    cells = tidy.cells_of(_areas(rows), by, "ratio")
    ds, ks = (sorted({int(cell[name]) for cell in cells}) for name in by[:2])
    place = {(c["method"], c["n_features"], c["n_clusters"]): c["ratio"].mean for c in cells}
    maps = {
        method: np.array([[place.get((method, d, k), np.nan) for k in ks] for d in ds])
        for method in METHODS
        if any(cell["method"] == method != "lloyd" for cell in cells)
    }
    better = {f"{a} over {b}": maps[a] / maps[b] for a, b in _RATIOS if {a, b} <= maps.keys()}
    draw = partial(draw_heatmaps, rows=ds, columns=ks, x_label="clusters", y_label="columns")
    known = {name: ratios[np.isfinite(ratios)] for name, ratios in better.items()}
    said: list[Cell] = [
        {
            "pair": name,
            "cells": ratios.size,
            "below": int((ratios < 1).sum()),
            **{"least": ratios.min(), "middle": np.median(ratios), "largest": ratios.max()},
        }
        for name, ratios in known.items()
        if ratios.size
    ]
    lines = tidy.prose("fastlloyd-fig4", said, starts=tidy.starts(rows))
    return [
        draw(
            out / "fastlloyd-fig4.png",
            maps,
            title="FastLloyd Fig. 4: area under NICV over ε, over that of Lloyd",
            reach=2.0,
        ),
        draw(
            out / "fastlloyd-fig4-improvement.png",
            better,
            title="FastLloyd Fig. 4: ratio of the areas; below 1 is better",
            centre=1.0,
        ),
        tidy.write_page(out / "fastlloyd-fig4.md", lines),
        tidy.write_table(out / "fastlloyd-fig4.csv", _long(cells, by, "ratio", "area_over_lloyd")),
    ]


def _areas(rows: Sequence[TidyRow], over: str = "lloyd") -> list[TidyRow]:
    """Return the area of each run over the mean area of a method on the same table."""
    width = max(EPSILONS) - min(EPSILONS)
    # what has no epsilon has the same error at each
    flat: list[TidyRow] = [
        {**row, "area": tidy.number(row, "nicv") * width}
        for row in rows
        if row["method"] == "lloyd"
    ]
    found = areas(rows)
    level = {
        dataset: mean.mean
        for (dataset,), mean in tidy.means_of(
            [row for row in (*flat, *found) if row["method"] == over], ("dataset",), "area"
        ).items()
    }
    return [
        {**row, "ratio": tidy.number(row, "area") / level[row["dataset"]]}
        for row in (*found, *(flat if over != "lloyd" else ()))
        if row["dataset"] in level
    ]


def _without_lone_starts(
    cells: Sequence[Cell], rows: Sequence[TidyRow], by: Sequence[str]
) -> list[Cell]:
    """Return cells without an interval where a table has one start.

    There the divisor is one run of the same table, so SuLloyd over itself is 1 without any spread.
    """
    starts = Counter((*(row[name] for name in by), row["dataset"]) for row in rows)
    lone = {key[:-1] for key, count in starts.items() if count < 2}
    return [
        {**cell, "ratio": MeanOf(cell["ratio"].mean, math.nan, 1)}
        if tuple(cell[name] for name in by) in lone
        else cell
        for cell in cells
    ]


# --- Figure 5: ablation ---------------------------------------------------------------------------

_ALPHAS = tuple(round(0.1 * step, 1) for step in range(1, 21))
_POSTS = ("none", "truncate", "fold")
_STRATEGIES = ("constant", "step")
_ABLATION_EPSILON = 0.1
_ALPHA = 0.8
"""The paper's choice, with ``step``, ``fold`` and moves shortened to the radius."""

_NAIVE = "glloyd"
"""No radius at all, with nothing done after the division: what the paper divides by."""

_NAIVE_RUNS = 10  # of a start: all else is divided by their mean

_CHOICE = ("radius_strategy", "post", "radius_clip", "alpha")


def units_ablation(settings: Settings) -> list[Unit]:
    """Return one unit for each mixture and start: all choices on the same records."""
    sides = (2, 4, 8, 16) if settings.full else (2, 4)
    apart = (0.25, 0.5, 0.75) if settings.full else (0.5,)
    sources = [
        Mixture(2048, d, k, j, equal=True, vary=0.3) for d in sides for k in sides for j in apart
    ]
    alphas = _ALPHAS if settings.full else (0.4, _ALPHA, 1.6)
    return units_of(ablate, source=sources, repeat=range(settings.runs(10, 2)), alphas=[alphas])


def ablate(source: Source, repeat: int, alphas: Sequence[float]) -> list[TidyRow]:
    """Run the naive baseline and every choice from one start."""
    data, shown = (
        loaded(source),
        ("dataset", "method", "repeat", "n_features", "n_clusters", "nicv"),
    )
    choices: list[tuple[Value, ...]] = [
        *[(None, "none", None, None)] * _NAIVE_RUNS,
        *product(_STRATEGIES, _POSTS, ("yes", "no"), alphas),
    ]
    rows: list[TidyRow] = []
    for strategy, post, clip, alpha in choices:
        options: dict[str, Any] = {"post": post}
        if strategy:
            options |= {"radius_strategy": strategy, "alpha": alpha, "radius_clip": clip == "yes"}
        method = "fastlloyd" if strategy else _NAIVE
        row = run_once(data, method, _ABLATION_EPSILON, repeat, **options)
        chosen = dict(zip(_CHOICE, (strategy, post, clip, alpha), strict=True))
        rows.append({**{name: row[name] for name in shown}, **chosen})
    return rows


def draw_ablation(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Draw NICV over the naive baseline: a mixture's own scale must not weigh."""
    naive = tidy.means_of([r for r in rows if r["method"] == _NAIVE], ("dataset",), "nicv")
    ratios: list[TidyRow] = [
        {**row, "ratio": tidy.number(row, "nicv") / naive[(row["dataset"],)].mean}
        for row in rows
        if row["method"] != _NAIVE
    ]
    # a mixture counts once, however many starts it had: intervals are over mixtures
    of_mixture: list[TidyRow] = [
        {**dict(zip(("dataset", *_CHOICE), key, strict=True)), "ratio": mean.mean}
        for key, mean in tidy.means_of(ratios, ("dataset", *_CHOICE), "ratio").items()
    ]
    cells = tidy.cells_of(of_mixture, _CHOICE, "ratio")
    named = [{**cell, "clipped": _CLIPPED[cell["radius_clip"]]} for cell in cells]
    figure = draw_panels(
        out / "fastlloyd-fig5.png",
        panels_of(named, "{radius_strategy}, {clipped}", "{post}", "alpha", "ratio"),
        title=f"FastLloyd Fig. 5: NICV over the naive baseline's at ε = {_ABLATION_EPSILON}",
        x_label="α",
        y_label="NICV over the naive baseline's",
        columns=2,
        note="Naive: no radius, nothing done after the division (GLloyd).",
    )
    least = [min(group, key=lambda cell: cell["ratio"].mean) for group in _kinds(named)]
    lines = [
        *tidy.prose("fastlloyd-fig5", least, starts=tidy.starts(rows), mixtures=len(naive)),
        *tidy.prose("fastlloyd-paired", _changes(ratios), alpha=_ALPHA),
    ]
    return [
        figure,
        tidy.write_page(out / "fastlloyd-fig5.md", lines),
        tidy.write_table(
            out / "fastlloyd-fig5.csv", _long(cells, _CHOICE, "ratio", "nicv_over_naive")
        ),
    ]


_CLIPPED = {"yes": "moves shortened", "no": "moves not shortened"}


def _kinds(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Return the cells of each choice but alpha."""
    kinds: dict[Key, list[Cell]] = {}
    for cell in cells:
        kinds.setdefault(tuple(cell[name] for name in _CHOICE[:-1]), []).append(cell)
    return list(kinds.values())


def _changes(ratios: Sequence[TidyRow]) -> list[Cell]:
    """Return what changing one of the paper's choices does, over the same mixtures and starts.

    In logarithms: one start that loses a cluster would outweigh all others.
    """
    logs: list[TidyRow] = [{**row, "log": math.log(tidy.number(row, "ratio"))} for row in ratios]
    of: dict[Key, dict[Value, float]] = {}
    for (dataset, *choice), mean in tidy.means_of(logs, ("dataset", *_CHOICE), "log").items():
        of.setdefault(tuple(choice), {})[dataset] = mean.mean
    usual: dict[str, Value] = dict(zip(_CHOICE, ("step", "fold", "yes", _ALPHA), strict=True))
    changes: list[tuple[str, Value]] = [
        *(("post", "truncate"), ("post", "none"), ("radius_clip", "no")),
        ("radius_strategy", "constant"),
        *(("alpha", alpha) for alpha in (0.4, 1.6)),
    ]
    table: list[Cell] = []
    for name, value in changes:
        changed = of[tuple((usual | {name: value}).values())]
        apart: list[TidyRow] = [
            {"change": f"{name} = {value}", "apart": changed[dataset] - base}
            for dataset, base in of[tuple(usual.values())].items()
        ]
        (cell,) = tidy.cells_of(apart, ("change",), "apart")
        mean = cell["apart"]
        ends = {"low": math.exp(mean.mean - mean.half), "high": math.exp(mean.mean + mean.half)}
        table.append({**cell, "times": math.exp(mean.mean), **ends})
    return table
