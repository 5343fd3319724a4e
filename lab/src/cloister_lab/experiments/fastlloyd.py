"""FastLloyd's figures 2 to 8, with our own method beside the paper's.

References
----------
.. [DHK24] A. Diaa, T. Humphries and F. Kerschbaum, "FastLloyd: Federated, Accurate, Secure, and
   Tunable k-Means Clustering with Differential Privacy", arXiv:2405.02437; section 6 and
   appendices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cloister.randomness import public_generator
from cloister_lab.experiments.figures import Point, draw_heatmaps, draw_panels, panels_of
from cloister_lab.experiments.mixtures import Mixture
from cloister_lab.experiments.records import MeanOf, TidyRow, Value, means_of, number, write_table
from cloister_lab.experiments.run import Experiment, Settings, Unit
from cloister_lab.experiments.sweep import EPSILONS, METHODS, NO_HOUSE, areas, sweep, tables

_TABLES = (
    *("iris", "lsun", "s1", "adult", "wine", "breast", "yeast", "mnist_t10k", "birch2"),
    *(f"g2mg_{2**power}_30" for power in range(1, 8)),
)
_SMALL_TABLES = ("iris", "wine")
_SLOW = {"mnist_t10k": 10, "adult": 3, "birch2": 3}  # so many times fewer repeats
_METRICS = ("silhouette", "davies_bouldin", "centroid_mse")

# --- Figures 2 and 6 to 8: tables -----------------------------------------------------------------


def _units_tables(settings: Settings) -> list[Unit]:
    sources = tables(_TABLES if settings.full else _SMALL_TABLES, settings)
    base = settings.runs(100, 2)
    repeats = {s.name: max(1, base // _SLOW.get(s.name, 1)) for s in sources}
    return sweep(sources, METHODS, EPSILONS, repeats, _METRICS)


def _draw_tables(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    figures = (
        ("nicv", "fig2", "FastLloyd Fig. 2: error against ε", "NICV", None),
        ("silhouette", "fig6", "FastLloyd Fig. 6: silhouette against ε", "silhouette", False),
        (
            "davies_bouldin",
            "fig7",
            "FastLloyd Fig. 7: Davies-Bouldin index",
            "Davies-Bouldin",
            None,
        ),
        ("centroid_mse", "fig8", "FastLloyd Fig. 8: error of the centres", "centre MSE", None),
    )
    by = ("dataset", "method", "epsilon")
    files, table = [], []
    for column, name, title, label, y_log in figures:
        # one cluster left has an infinite Davies-Bouldin index, which no mean survives
        finite = [row for row in rows if math.isfinite(number(row, column))]
        means = means_of(finite, by, column)
        files.append(
            draw_panels(
                out / f"{name}.png",
                panels_of(means, lambda key: str(key[0]), lambda key: str(key[1])),
                title=title,
                x_label="ε",
                y_label=f"{label}, mean and 95 % interval",
                y_log=y_log,
                note=NO_HOUSE,
            )
        )
        table += [_tidy(by, key, column, mean) for key, mean in means.items()]
    return [*files, write_table(out / "means.csv", table)]


def _tidy(by: Sequence[str], key: Sequence[Value], column: str, mean: MeanOf) -> dict[str, Value]:
    return {
        **dict(zip(by, key, strict=True)),
        "metric": column,
        "runs": mean.runs,
        "mean": mean.mean,
        "half_width": mean.half_or_none,
    }


# --- Figures 3 and 4: mixtures --------------------------------------------------------------------


_MOST_CLUSTERS = 32  # but for two columns


def _units_mixtures(settings: Settings) -> list[Unit]:
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


def _draw_mixtures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    shares = _areas(rows)
    by = ("n_features", "n_clusters", "method")
    means = means_of(shares, by, "ratio")
    ds, ks = (sorted({int(str(key[i])) for key in means}) for i in (0, 1))
    usual = [row for row in shares if number(row, "n_clusters") <= _MOST_CLUSTERS]
    flat = [row for row in shares if row["n_features"] == 2]
    lines = {
        **_line(usual, "n_features", f"over dimensions, k up to {min(ks[-1], _MOST_CLUSTERS)}"),
        **_line(flat, "n_clusters", "over clusters, d = 2"),
    }
    files = [
        draw_panels(
            out / "fig3.png",
            lines,
            title="FastLloyd Fig. 3: area under NICV over ε, over that of Lloyd",
            x_label="columns (left), clusters (right)",
            y_label="area over Lloyd's",
            x_log=True,
            columns=2,
        )
    ]
    methods = [m for m in METHODS if m != "lloyd" and any(key[2] == m for key in means)]

    def grid(method: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        none = MeanOf(math.nan, math.nan, 1)
        return np.array([[means.get((d, k, method), none).mean for k in ks] for d in ds])

    maps = {method: grid(method) for method in methods}
    files.append(
        draw_heatmaps(
            out / "fig4.png",
            maps,
            ds,
            ks,
            title="FastLloyd Fig. 4: area under NICV over ε, over that of Lloyd",
            x_label="clusters",
            y_label="columns",
            reach=2.0,
        )
    )
    files.append(
        draw_heatmaps(
            out / "fig4-improvement.png",
            {
                f"{new} over {old}": maps[new] / maps[old]
                for new, old in (
                    ("fastlloyd", "sulloyd"),
                    ("fastlloyd", "glloyd"),
                    ("auto", "fastlloyd"),
                )
                if new in maps and old in maps
            },
            ds,
            ks,
            title="FastLloyd Fig. 4: ratio of the areas; below 1 is better",
            x_label="clusters",
            y_label="columns",
            centre=1.0,
        )
    )
    table = [_tidy(by, key, "area_over_lloyd", mean) for key, mean in means.items()]
    return [*files, write_table(out / "means.csv", table)]


def _areas(rows: Sequence[TidyRow]) -> list[TidyRow]:
    """Return the area of each run over the mean area of Lloyd on the same mixture."""
    width = max(EPSILONS) - min(EPSILONS)
    level = {
        key[0]: mean.mean * width
        for key, mean in means_of(
            [row for row in rows if row["method"] == "lloyd"], ("dataset",), "nicv"
        ).items()
    }
    return [
        {**row, "ratio": number(row, "area") / level[row["dataset"]]}
        for row in areas(rows)
        if row["dataset"] in level
    ]


def _line(rows: Sequence[TidyRow], axis: str, panel: str) -> dict[str, dict[str, list[Point]]]:
    return panels_of(
        means_of(rows, ("method", axis), "ratio"), lambda _: panel, lambda k: str(k[0])
    )


# --- Figure 5: ablation ---------------------------------------------------------------------------

_ALPHAS = tuple(round(0.1 * step, 1) for step in range(1, 21))
_POSTS = ("none", "truncate", "fold")
_POST_ALPHAS = (0.4, 0.8, 1.6)
_STRATEGIES = ("constant", "step")
_ABLATION_EPSILON = 0.1


def _units_ablation(settings: Settings) -> list[Unit]:
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
    alphas = _ALPHAS if settings.full else (0.4, 0.8, 1.6)
    repeats = settings.runs(10, 2)
    choices: list[dict[str, Value]] = [
        {"alpha": alpha, "radius_strategy": strategy, "post": "fold"}
        for strategy in _STRATEGIES
        for alpha in alphas
    ]
    choices += [
        {"alpha": alpha, "radius_strategy": "step", "post": post}
        for post in _POSTS
        for alpha in _POST_ALPHAS
        if post != "fold"
    ]
    return [
        unit
        for source in sources
        for options in choices
        for unit in sweep(
            [source], ["fastlloyd"], [_ABLATION_EPSILON], repeats, ["cost_gap"], options
        )
    ]


def _draw_ablation(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Draw NICV over the optimum: a mixture's own scale must not weigh."""
    scaled = [{**row, "ratio": number(row, "nicv") / number(row, "optimum")} for row in rows]
    by = ("radius_strategy", "post", "alpha")
    means = means_of(scaled, by, "ratio")
    step = [row for row in scaled if row["radius_strategy"] == "step"]
    by_width = means_of(
        [row for row in step if row["post"] == "fold"], ("n_features", "alpha"), "ratio"
    )
    folded = {key: mean for key, mean in means.items() if key[1] == "fold"}
    posts = {
        key: mean for key, mean in means.items() if key[0] == "step" and key[2] in _POST_ALPHAS
    }
    panels = {
        **panels_of(folded, lambda _: "strategy", lambda key: str(key[0])),
        **panels_of(by_width, lambda _: "step, by columns", lambda key: f"d = {key[0]}"),
        **panels_of(posts, lambda _: "after the division", lambda key: str(key[1])),
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
    table = [_tidy(by, key, "nicv_over_optimum", mean) for key, mean in means.items()]
    return [file, write_table(out / "means.csv", table)]


FIG2 = Experiment(
    "fastlloyd-fig2",
    "FastLloyd Figs. 2, 6, 7, 8: NICV, silhouette, Davies-Bouldin, centre error",
    _units_tables,
    _draw_tables,
    seconds_small=20,
    seconds_full=30 * 60,
)
FIG4 = Experiment(
    "fastlloyd-fig4",
    "FastLloyd Figs. 3 and 4: area over columns and clusters on mixtures",
    _units_mixtures,
    _draw_mixtures,
    seconds_small=10,
    seconds_full=80 * 60,
)
FIG5 = Experiment(
    "fastlloyd-fig5",
    "FastLloyd Fig. 5: radius, strategy and post-processing",
    _units_ablation,
    _draw_ablation,
    seconds_small=10,
    seconds_full=6 * 60,
)
