"""Figures of comparisons: one look, readable without colour, stamped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cloister.experiments.records import STAMP, Mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart by the colour-blind; markers repeat the distinction.
_STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#E69F00", "v"))
_BASELINE = "#555555"
_LOG_FROM = 8.0  # largest over smallest value above which the axis is logarithmic


def draw_nicv(means: Sequence[Mean], folder: Path) -> list[Path]:
    """Draw NICV against epsilon, one figure for each data set, as PNG and SVG.

    Parameters
    ----------
    means : sequence of Mean
    folder : Path

    Returns
    -------
    list of Path
        The files written: ``nicv-NAME.png`` and ``nicv-NAME.svg``.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    nicv = [mean for mean in means if mean.metric == "nicv"]
    files = []
    for dataset in dict.fromkeys(mean.dataset for mean in nicv):
        curves = [mean for mean in nicv if mean.dataset == dataset]
        # fixed ids and no date, so that the same numbers give the same file
        with rc_context({"svg.hashsalt": "cloister", "svg.fonttype": "none"}):
            figure = Figure(figsize=(6, 4), layout="constrained")
            _draw(figure.add_subplot(), curves)
            figure.suptitle(dataset, x=0.01, ha="left", weight="bold")
            figure.supxlabel(f"epsilon\n{STAMP}", fontsize=9)
            for suffix in ("png", "svg"):
                path = folder / f"nicv-{dataset}.{suffix}"
                note = {"Title": f"NICV of {dataset}", "Description": STAMP}
                figure.savefig(
                    path, dpi=150, metadata={**note, "Date": None} if suffix == "svg" else note
                )
                files.append(path)
    return files


def _draw(axes: Axes, curves: Sequence[Mean]) -> None:
    styles = iter(_STYLES * len(curves))
    for method in dict.fromkeys(mean.method for mean in curves):
        points = sorted(
            (mean.epsilon, mean.mean, 0.0 if mean.high is None else mean.high - mean.mean)
            for mean in curves
            if mean.method == method and mean.epsilon is not None
        )
        epsilons, heights, halves = zip(*points, strict=True)
        if math.isinf(epsilons[0]):
            axes.axhline(heights[0], color=_BASELINE, linestyle="--", label=f"{method} (no DP)")
            continue
        colour, marker = next(styles)
        axes.errorbar(
            epsilons,
            heights,
            yerr=halves,
            color=colour,
            marker=marker,
            markersize=5,
            capsize=3,
            label=method,
        )
    values = [mean.mean for mean in curves if mean.mean > 0]
    if values and max(values) > _LOG_FROM * min(values):
        axes.set_yscale("log")
    axes.set_ylabel("NICV, mean and 95 % interval")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False)
