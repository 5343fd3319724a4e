"""FastLloyd's figures 2 to 8, with our own method beside the paper's.

References
----------
.. [DHK24] A. Diaa, T. Humphries and F. Kerschbaum, "FastLloyd: Federated, Accurate, Secure, and
   Tunable k-Means Clustering with Differential Privacy", arXiv:2405.02437; section 6 and
   appendices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from cloister.randomness import public_generator
from cloister_lab.experiments import records as tidy
from cloister_lab.experiments.figures import draw_heatmaps, draw_panels, panels_of
from cloister_lab.experiments.mixtures import Mixture
from cloister_lab.experiments.records import Cell, TidyRow, Value
from cloister_lab.experiments.run import Settings, Unit
from cloister_lab.experiments.sweep import EPSILONS, METHODS, NO_HOUSE, areas, sweep, tables

_TABLES = (
    *("iris", "lsun", "s1", "adult", "wine", "breast", "yeast", "mnist_t10k", "birch2"),
    *(f"g2mg_{2**power}_30" for power in range(1, 8)),
)
_SMALL_TABLES = ("iris", "wine")
_SLOW = {"mnist_t10k": 10, "adult": 3, "birch2": 3}  # so many times fewer repeats
_METRICS = ("silhouette", "davies_bouldin", "centroid_mse")
_FIGURES = (
    ("nicv", "fig2", "FastLloyd Fig. 2: error against ε", "NICV", None),
    ("silhouette", "fig6", "FastLloyd Fig. 6: silhouette against ε", "silhouette", False),
    ("davies_bouldin", "fig7", "FastLloyd Fig. 7: Davies-Bouldin index", "Davies-Bouldin", None),
    ("centroid_mse", "fig8", "FastLloyd Fig. 8: error of the centres", "centre MSE", None),
)
"""Column, file, title, label and scale of each figure of tables."""


def _long(cells: Iterable[Cell], by: Sequence[str], column: str, metric: str) -> list[Cell]:
    """Return means as rows of a table in which a column names the metric."""
    return [
        {
            **{name: cell[name] for name in by},
            "metric": metric,
            "runs": cell["runs"],
            "mean": cell[column],
            "half_width": cell[column].half_or_none,
        }
        for cell in cells
    ]


# --- Figures 2 and 6 to 8: tables -----------------------------------------------------------------


def units_tables(settings: Settings) -> list[Unit]:
    """Return the units."""
    sources = tables(_TABLES if settings.full else _SMALL_TABLES, settings)
    base = settings.runs(100, 2)
    repeats = {s.name: max(1, base // _SLOW.get(s.name, 1)) for s in sources}
    return sweep(sources, METHODS, EPSILONS, repeats, _METRICS)


def draw_tables(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Write what the rows show."""
    by = ("dataset", "method", "epsilon")
    files, table = [], []
    for column, name, title, label, y_log in _FIGURES:
        # one cluster left has an infinite Davies-Bouldin index, which no mean survives
        finite = [row for row in rows if math.isfinite(tidy.number(row, column))]
        cells = tidy.cells_of(finite, by, column)
        files.append(
            draw_panels(
                out / f"{name}.png",
                panels_of(cells, "{dataset}", "{method}", "epsilon", column),
                title=title,
                x_label="ε",
                y_label=f"{label}, mean and 95 % interval",
                y_log=y_log,
                note=NO_HOUSE,
            )
        )
        table += _long(cells, by, column, column)
    return [*files, tidy.write_table(out / "means.csv", table)]


# --- Figures 3 and 4: mixtures --------------------------------------------------------------------


_MOST_CLUSTERS = 32  # but for two columns
_RATIOS = (("fastlloyd", "sulloyd"), ("fastlloyd", "glloyd"), ("auto", "fastlloyd"))


def units_mixtures(settings: Settings) -> list[Unit]:
    """Return the grid of columns and clusters, and the plane with many clusters.

    The starts are shared out over three mixtures of each kind.
    """
    starts = settings.runs(30, 2)
    if settings.full:
        size, seeds = 10_000, min(3, starts)
        grid = [(2**i, 2**j) for i in range(1, 10) for j in range(1, 6)]
        grid += [(2, 64), (2, 128)]
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
    shares = _areas(rows)
    by = ("n_features", "n_clusters", "method")
    cells = tidy.cells_of(shares, by, "ratio")
    ds, ks = (sorted({int(cell[name]) for cell in cells}) for name in by[:2])
    usual = [row for row in shares if tidy.number(row, "n_clusters") <= _MOST_CLUSTERS]
    flat = [row for row in shares if row["n_features"] == 2]
    most = min(ks[-1], _MOST_CLUSTERS)
    lines = draw_panels(
        out / "fig3.png",
        panels_of(
            tidy.cells_of(usual, ("method", "n_features"), "ratio"),
            *(f"over dimensions, k up to {most}", "{method}", "n_features", "ratio"),
        )
        | panels_of(
            tidy.cells_of(flat, ("method", "n_clusters"), "ratio"),
            *("over clusters, d = 2", "{method}", "n_clusters", "ratio"),
        ),
        title="FastLloyd Fig. 3: area under NICV over ε, over that of Lloyd",
        x_label="columns (left), clusters (right)",
        y_label="area over Lloyd's",
        x_log=True,
        columns=2,
    )
    place = {(c["method"], c["n_features"], c["n_clusters"]): c["ratio"].mean for c in cells}
    maps = {
        method: np.array([[place.get((method, d, k), np.nan) for k in ks] for d in ds])
        for method in METHODS
        if any(cell["method"] == method != "lloyd" for cell in cells)
    }
    draw = partial(draw_heatmaps, rows=ds, columns=ks, x_label="clusters", y_label="columns")
    files = [
        lines,
        draw(
            out / "fig4.png",
            maps,
            title="FastLloyd Fig. 4: area under NICV over ε, over that of Lloyd",
            reach=2.0,
        ),
        draw(
            out / "fig4-improvement.png",
            {f"{a} over {b}": maps[a] / maps[b] for a, b in _RATIOS if {a, b} <= maps.keys()},
            title="FastLloyd Fig. 4: ratio of the areas; below 1 is better",
            centre=1.0,
        ),
    ]
    return [
        *files,
        tidy.write_table(out / "means.csv", _long(cells, by, "ratio", "area_over_lloyd")),
    ]


def _areas(rows: Sequence[TidyRow]) -> list[TidyRow]:
    """Return the area of each run over the mean area of Lloyd on the same mixture."""
    width = max(EPSILONS) - min(EPSILONS)
    of_lloyd = [row for row in rows if row["method"] == "lloyd"]
    level = {
        dataset: mean.mean * width
        for (dataset,), mean in tidy.means_of(of_lloyd, ("dataset",), "nicv").items()
    }
    return [
        {**row, "ratio": tidy.number(row, "area") / level[row["dataset"]]}
        for row in areas(rows)
        if row["dataset"] in level
    ]


# --- Figure 5: ablation ---------------------------------------------------------------------------

_ALPHAS = tuple(round(0.1 * step, 1) for step in range(1, 21))
_POSTS = ("none", "truncate", "fold")
_POST_ALPHAS = (0.4, 0.8, 1.6)
_STRATEGIES = ("constant", "step")
_ABLATION_EPSILON = 0.1


def units_ablation(settings: Settings) -> list[Unit]:
    """Return runs over alpha for both strategies, and over post-processing for some."""
    sides = (2, 4, 8, 16) if settings.full else (2, 4)
    apart = (0.25, 0.5, 0.75) if settings.full else (0.5,)
    per_cluster = 2048 if settings.full else 100
    sources = [
        Mixture(per_cluster * k, d, k, j, 0, seed=0, equal=True)
        for d in sides
        for k in sides
        for j in apart
    ]
    alphas = _ALPHAS if settings.full else _POST_ALPHAS
    choices = [(alpha, strategy, "fold") for strategy in _STRATEGIES for alpha in alphas]
    choices += [
        (alpha, "step", post) for post in _POSTS if post != "fold" for alpha in _POST_ALPHAS
    ]
    options: list[dict[str, Value]] = [
        {"alpha": alpha, "radius_strategy": strategy, "post": post}
        for alpha, strategy, post in choices
    ]
    repeats = settings.runs(10, 2)
    return [
        unit
        for source in sources
        for chosen in options
        for unit in sweep(
            [source], ["fastlloyd"], [_ABLATION_EPSILON], repeats, ["cost_gap"], chosen
        )
    ]


def draw_ablation(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Draw NICV over the optimum: a mixture's own scale must not weigh."""
    scaled = [
        {**row, "ratio": tidy.number(row, "nicv") / tidy.number(row, "optimum")} for row in rows
    ]
    by = ("radius_strategy", "post", "alpha")
    cells = tidy.cells_of(scaled, by, "ratio")
    stepped = [row for row in scaled if row["radius_strategy"] == "step" and row["post"] == "fold"]
    folded = [cell for cell in cells if cell["post"] == "fold"]
    posts = [
        cell
        for cell in cells
        if cell["radius_strategy"] == "step" and cell["alpha"] in _POST_ALPHAS
    ]
    panels = {
        **panels_of(folded, "strategy", "{radius_strategy}", "alpha", "ratio"),
        **panels_of(
            tidy.cells_of(stepped, ("n_features", "alpha"), "ratio"),
            *("step, by columns", "d = {n_features}", "alpha", "ratio"),
        ),
        **panels_of(posts, "after the division", "{post}", "alpha", "ratio"),
    }
    file = draw_panels(
        out / "fig5.png",
        panels,
        title=f"FastLloyd Fig. 5: NICV over the optimum at ε = {_ABLATION_EPSILON}",
        x_label="α",
        y_label="NICV over the optimum",
        columns=3,
        own_legends=True,
    )
    return [
        file,
        tidy.write_table(out / "means.csv", _long(cells, by, "ratio", "nicv_over_optimum")),
    ]
