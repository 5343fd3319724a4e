"""Figures of experiments: one look, readable without colour, stamped."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister_lab.experiments.records import STAMP, Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

    from cloister.protocol.task import Floats

Point = tuple[float, float, float, float]
"""Where, how high, and both ends of its 95 % interval (NaN if unknown)."""

Curves = Mapping[str, Sequence[Point]]
"""Points of each method; one at infinity, or at NaN, is a level that holds everywhere."""

# Okabe and Ito's colours, told apart by the colour-blind; markers repeat the distinction.
_STYLES = (
    *(("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#E69F00", "v")),
    *(("#56B4E9", "P"), ("#000000", "X"), ("#8C6D31", "<"), ("#7B4173", ">"), ("#637939", "*")),
)
_KNOWN = ("sulloyd", "glloyd", "fastlloyd", "auto")
"""Methods that look the same in every figure."""

_LEVELS = (("#555555", "--"), ("#000000", ":"), ("#8C6D31", "-."), ("#777777", (0, (6, 3))))
"""Colour and line of what holds everywhere."""

_TITLE_WIDTH = 32  # letters of a panel's title in a line
_MAPS_ACROSS = 3  # more take two rows
_COLOURS = 128  # of a small PNG; letters keep soft edges
_LOG_FROM = 8.0  # largest over smallest value above which the axis is logarithmic


def panels_of(
    cells: Iterable[Cell], panel: str, curve: str, x: str, y: str
) -> dict[str, dict[str, list[Point]]]:
    """Sort means into curves.

    Parameters
    ----------
    cells : iterable of dict
        As :func:`~cloister_lab.experiments.records.cells_of` returns them.
    panel, curve : str
        Formats of the names, such as ``"{dataset}"``.
    x, y : str
        Columns. A place of None is a level that holds everywhere; a mean of None is no point.
    """
    found: dict[str, dict[str, list[Point]]] = {}
    for cell in cells:
        if (mean := cell[y]) is not None:
            where = math.inf if cell[x] is None else float(cell[x])
            curves = found.setdefault(panel.format_map(cell), {})
            curves.setdefault(curve.format_map(cell), []).append((where, mean.mean, *mean.interval))
    return found


def draw_nicv(cells: Iterable[Cell], folder: Path) -> list[Path]:
    """Draw NICV against epsilon: ``nicv-NAME.png`` and ``nicv-NAME.svg`` for each data set."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    files = []
    for dataset, curves in panels_of(cells, "{dataset}", "{method}", "epsilon", "nicv").items():
        # fixed ids and no date, so that the same numbers give the same file
        with rc_context({"svg.hashsalt": "cloister", "svg.fonttype": "none"}):
            figure = Figure(figsize=(6, 4), layout="constrained")
            axes = figure.add_subplot()
            _draw(axes, curves)
            axes.set_ylabel("NICV, mean and 95 % interval")
            axes.legend(frameon=False)
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


def draw_panels(
    path: Path,
    panels: Mapping[str, Curves],
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_log: bool = False,
    y_log: bool | None = None,
    note: str = "",
    columns: int = 4,
    own_legends: bool = False,
) -> Path:
    """Draw curves of several methods, one panel for each data set, as one small PNG.

    Parameters
    ----------
    x_log : bool
        Steps of the horizontal axis are powers of two.
    y_log : bool, optional
        By the values of each panel unless given.
    note : str
        Below the figure, before the stamp.
    columns : int
        Panels side by side.
    own_legends : bool
        In each panel, where panels show different things.
    """
    from matplotlib.figure import Figure

    across = min(columns, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(max(4.0, 2.7 * across) + 1.2, 2.4 * down + 0.9), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    handles: dict[Any, Any] = {}
    for axes, (name, curves) in zip(grid.flat, panels.items(), strict=False):
        _draw(axes, curves, y_log)
        axes.set_title(fill(name, _TITLE_WIDTH), loc="left", fontsize=10)
        if x_log:
            axes.set_xscale("log", base=2)
        if own_legends:
            axes.legend(frameon=False, fontsize=7)
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    if not own_legends:
        labels = list(handles)
        figure.legend(
            list(handles.values()), labels, loc="outside right upper", frameon=False, fontsize=8
        )
    return save_small(figure, path, title, y_label, (x_label, note))


def draw_heatmaps(
    path: Path,
    maps: Mapping[str, Floats],
    rows: Sequence[object],
    columns: Sequence[object],
    *,
    title: str,
    x_label: str,
    y_label: str,
    note: str = "",
    centre: float | None = None,
    reach: float | None = None,
    more_is_better: bool = False,
) -> Path:
    """Draw matrices with their values written in, side by side, as one small PNG.

    Parameters
    ----------
    maps : mapping of str to ndarray of shape (rows, columns)
        NaN where nothing was run.
    rows, columns : sequence
        Labels.
    centre : float, optional
        A value that is neither good nor bad; what is better is blue, what is worse red.
    reach : float, optional
        Distance from the centre, or from the least value, at which colours end; the farthest
        value's unless given.
    """
    from matplotlib.figure import Figure

    known = np.concatenate([values[np.isfinite(values)] for values in maps.values()])
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if centre is not None:
        far = max(centre - low, high - centre, 1e-9) if reach is None else reach
        low, high = centre - far, centre + far
    elif reach is not None:
        high = low + reach
    across = len(maps) if len(maps) <= _MAPS_ACROSS else -(-len(maps) // 2)
    down = -(-len(maps) // across)
    wide = max(3.0, 0.5 * len(columns) + 1.0)
    figure = Figure(
        figsize=(wide * across, (0.34 * len(rows) + 0.6) * down + 1.1), layout="constrained"
    )
    grid = list(figure.subplots(down, across, squeeze=False).flat)
    for axes in grid[len(maps) :]:
        axes.set_visible(False)
    for axes, (name, values) in zip(grid, maps.items(), strict=False):
        diverging = "RdBu" if more_is_better else "RdBu_r"
        colours = "viridis" if centre is None else diverging
        image = axes.imshow(values, aspect="auto", cmap=colours, vmin=low, vmax=high)
        _write_values(axes, image, values)
        turned = 45.0 if max(len(str(column)) for column in columns) > 5 else 0.0
        axes.set_xticks(
            range(len(columns)),
            [str(column) for column in columns],
            fontsize=8,
            rotation=turned,
            ha="right" if turned else "center",
        )
        axes.set_yticks(range(len(rows)), [str(row) for row in rows], fontsize=8)
        axes.set_title(name, loc="left", fontsize=9)
    return save_small(figure, path, title, y_label, (x_label, note))


def _write_values(axes: Axes, image: AxesImage, values: Floats) -> None:
    """Write the finite values of a matrix into its picture, light where it is dark."""
    colours = np.asarray(image.cmap(image.norm(values)))
    for (i, j), value in np.ndenumerate(values):
        if math.isfinite(value):
            red, green, blue, _ = colours[i, j]
            colour = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else "black"
            digits = f"{value:.2f}" if abs(value) < 10 else f"{value:.3g}"
            axes.text(j, i, digits, ha="center", va="center", fontsize=7, color=colour)


def save_small(figure: Figure, path: Path, title: str, y_label: str, below: Sequence[str]) -> Path:
    """Write a figure as a PNG of few colours, a quarter of the usual size; return its path."""
    from PIL import Image, PngImagePlugin

    figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=11)
    figure.supylabel(y_label, fontsize=9)
    figure.supxlabel("\n".join(text for text in (*below, STAMP) if text), fontsize=8)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=90)
    about = PngImagePlugin.PngInfo()
    about.add_text("Title", title)
    about.add_text("Description", STAMP)
    few = Image.open(drawn).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    few.save(path, optimize=True, pnginfo=about)
    return path


def _draw(axes: Axes, curves: Curves, y_log: bool | None = None) -> None:
    """Draw all methods into one panel."""
    others = (style for index, style in enumerate(_STYLES * len(curves)) if index >= len(_KNOWN))
    styles = {name: _STYLES[index] for index, name in enumerate(_KNOWN)}
    levels = iter(_LEVELS * len(curves))
    for method, points in curves.items():
        finite = sorted(point for point in points if math.isfinite(point[0]))
        if not finite:
            shade, line = next(levels)
            axes.axhline(points[0][1], color=shade, linestyle=line, label=f"{method} (no DP)")
            continue
        where, heights, *ends = (np.array(of) for of in zip(*finite, strict=True))
        colour, marker = styles[method] if method in styles else next(others)
        # An end that equals its mean may lie on the other side of it by a rounding error.
        bars = np.maximum([heights - ends[0], ends[1] - heights], 0.0)
        axes.errorbar(
            where,
            heights,
            yerr=np.nan_to_num(bars, posinf=0.0),
            color=colour,
            marker=marker,
            markersize=4,
            capsize=2,
            linewidth=1.2,
            label=method,
        )
    values = [point[1] for points in curves.values() for point in points]
    positive = all(value > 0 and math.isfinite(value) for value in values)
    if y_log or (y_log is None and values and positive and max(values) > _LOG_FROM * min(values)):
        axes.set_yscale("log")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
