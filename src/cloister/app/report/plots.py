"""Displays as inline SVG: colour-blind safe, for 1 to 100 rows and columns, with real text."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.app.text import as_table, cell_text
from cloister.core.arrays import Floats
from cloister.core.display import Bars, Curve, Graph, Heatmap, Scatter
from cloister.core.errors import PlanError
from cloister.core.html import clean
from cloister.core.numerals import counted, day

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, BLUE, PALE = "#1b2733", "#5b6b7a", "#0b62a4", "#cfe1f2"
_COLOURS = (BLUE, "#b8560f", "#3b7d4f", "#8a4f9e", MUTED, "#a08300")  # for several curves
_MAX_INCHES = 22.0
_TEXT_CELLS = 240  # a larger heat map shows colours only, since its table has the numbers
_LABEL_LENGTH = 28
_TICKS = 7  # on an axis of ratios
_STEPS = ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,))
_FAR = 1e100  # squares of coordinates must not overflow
_CELL_HEIGHT = 0.52  # inches, of a cell with text
_LETTER = 0.085  # inches, width of a letter
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and copied
    "text.parse_math": False,  # a "$" in a column's name is a dollar
    "font.size": 10.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def has_intervals(display: Heatmap | Bars | Scatter | Curve | Graph) -> bool:
    """Return True if :func:`draw` adds a small line with an interval to each cell."""
    return (
        isinstance(display, Heatmap)
        and bool(np.any(display.estimate.low < display.estimate.high))
        and len(display.estimate.values) > 1  # the line compares the values of a column
        and _has_text(display)
    )


NO_PICTURES = "Pictures need matplotlib: pip install 'cloister[pictures]'."


def can_draw() -> bool:
    """Return True if matplotlib is installed; silos and coordinators need no picture."""
    return find_spec("matplotlib") is not None


def draw(display: Heatmap | Bars | Scatter | Curve | Graph, prefix: str) -> str:
    """Return a display as an ``<svg>`` element whose ids begin with `prefix`."""
    import matplotlib as mpl

    # The salt makes the ids, and so the report, the same in each run.
    with mpl.rc_context({**_STYLE, "svg.hashsalt": prefix}):
        return _inline(figure_of(display), prefix)


def figure_of(display: Heatmap | Bars | Scatter | Curve | Graph) -> Figure:
    """Return a display as a figure of matplotlib, or raise PlanError without it."""
    if not can_draw():
        raise PlanError(NO_PICTURES)
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        return _FIGURES[type(display)](display)


def alt_text(display: Heatmap | Bars | Scatter | Curve | Graph) -> str:
    """Return the alternative text of a picture, for screen readers."""
    match display:
        case Heatmap():
            n_rows, n_columns = display.estimate.values.shape
            kind = f"Heat map of {counted(n_rows, 'row')} and {counted(n_columns, 'column')}"
        case Bars():
            # Six are enough to be heard; the table has them all.
            first = [f"{row[0]} {row[1]}" for row in as_table(display).rows[:6]]
            more = ", and more" if len(display.names) > len(first) else ""
            kind = f"Bar chart of {counted(len(display.names), 'value')}: {'; '.join(first)}{more}"
        case Scatter():
            kind = f"Map of {counted(len(display.names), 'point')} in the plane"
        case Curve():
            kind = f"Curve of {counted(len(display.places), 'value')} with a band of uncertainty"
            if len(display.names) > 1:
                kind = f"Curves of {', '.join(display.names)} with bands of uncertainty"
            if display.chosen is not None:
                kind += f"; chosen is {display.chosen:g}"
        case Graph():
            kind = f"Graph of {len(display.names)} nodes and {len(display.edges)} arrows"
    return f"{display.title}. {kind}. The numbers are in the table below the picture."


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # Not by pyplot, which keeps every figure until it is closed.
    figure = Figure(figsize=(min(width, _MAX_INCHES), min(height, _MAX_INCHES)))
    FigureCanvasSVG(figure)
    return figure, figure.add_subplot()


def _inline(figure: Figure, prefix: str) -> str:
    """Return a figure as SVG for a page with several figures."""
    stream = io.StringIO()
    # A date would make each report differ, though its release is the same.
    nothing: dict[str, Any] = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(stream, format="svg", bbox_inches="tight", pad_inches=0.05, metadata=nothing)
    text = clean(stream.getvalue())
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)

    # Ids must be unique in a page, and matplotlib repeats them in each figure.
    def with_prefix(tag: re.Match[str]) -> str:
        renamed = re.sub(r'\bid="', f'id="{prefix}-', tag[0])
        return renamed.replace('href="#', f'href="#{prefix}-').replace("url(#", f"url(#{prefix}-")

    text = re.sub(r"<[^>]+>", with_prefix, text)
    width = float(re.search(r'width="([\d.]+)pt"', text)[1]) * 4 / 3  # type: ignore[index]  # matplotlib writes a width
    # A figure wider than the page shrinks to half at most: a phone shows most of them whole.
    style = f"width:100%;max-width:{width:.0f}px;min-width:{width / 2:.0f}px"
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', f'style="{style}"', text, count=1)


def _drawable(values: Floats) -> Floats:
    """Return values within the range of an axis; values that are not finite become 0."""
    finite: Floats = np.nan_to_num(values, posinf=0.0, neginf=0.0)
    return np.clip(finite, -_FAR, _FAR)


def _short(label: str) -> str:
    return label if len(label) <= _LABEL_LENGTH else label[: _LABEL_LENGTH - 1] + "…"


def _bars(display: Bars) -> Figure:
    n, ratio = len(display.names), display.estimate.null == 1
    figure, axes = _figure(5.6, 0.7 + 0.34 * n)
    places = np.arange(n, dtype=np.float64)

    def placed(*parts: Floats) -> tuple[Floats, ...]:
        # Equal factors are equal distances, so ratios are placed by their logarithms.
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = [np.log(np.maximum(part, 0.0)) if ratio else part for part in parts]
        return tuple(map(_drawable, _bounded(logs[0], logs[1], logs[2])))

    values, lows, highs = placed(*_with_ends(display))
    # A value may have no interval of the noise alone, and is no point of it.
    noise = np.isfinite(display.estimate.low + display.estimate.values) | (lows < highs)
    known = np.isfinite(display.estimate.values)
    if display.points or ratio:
        axes.plot(values[known], places[known], "s", color=BLUE, markersize=5)
    else:
        axes.barh(places, values, height=0.62, color=PALE, edgecolor=BLUE, linewidth=0.8)
    wide = display.estimate.population
    width = 2.4 if wide else 1.2
    # Around the middle: a value may be outside its interval, where a bar would be negative.
    spread, middle = (highs - lows) / 2, (lows + highs) / 2
    if (drawn := noise & (lows < highs)).any():
        axes.errorbar(
            middle[drawn],
            places[drawn],
            xerr=spread[drawn],
            fmt="none",
            ecolor=INK,
            elinewidth=width,
            capsize=0 if wide else 3,
        )
    lows, highs = np.where(noise, lows, values), np.where(noise, highs, values)
    if wide:
        _, wide_low, wide_high = placed(display.estimate.values, *wide)
        at = known & (wide_low < wide_high)
        axes.hlines(places[at], wide_low[at], wide_high[at], color=INK, linewidth=0.8)
        lows = np.where(at, np.minimum(lows, wide_low), lows)
        highs = np.where(at, np.maximum(highs, wide_high), highs)
    for mark in display.marks:
        axes.axvline(mark, color=MUTED, linewidth=0.8, linestyle="--")
    reach = np.maximum(np.maximum(values, 0), highs)
    low = float(np.min(lows, initial=min(0.0, *display.marks, 0.0)))
    high = float(np.max(reach, initial=max(0.0, *display.marks, 0.0)))
    room = max(high - low, 1e-300)  # matplotlib warns of an axis of width 0
    for place, text, end in zip(places, _bar_texts(display), reach, strict=True):
        axes.text(end + 0.015 * room, place, text, va="center", fontsize=9)
    # Texts are right of 0 and of the bars, also if all effects are negative.
    axes.set_xlim(low - 0.05 * (room if ratio else -low), high + room * 0.22)
    axes.set_yticks(places, [_short(name) for name in display.names])
    axes.set_ylim(n - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.axvline(0, color=MUTED, linewidth=0.8)
    axes.set_xlabel(display.estimate.unit)
    if ratio:
        ticks = _ratio_ticks(low, high)
        axes.set_xticks(np.log(ticks), [f"{tick:g}" for tick in ticks])
    return figure


def _bar_texts(display: Bars) -> list[str]:
    """Return the numbers of bars: those with sampling, if there are any."""
    if not display.estimate.population:
        return [str(row[1]) for row in as_table(display).rows]
    cells = display.estimate.of_population.cells()
    return [display.absent if np.isnan(one.value) else cell_text(one) for one in cells]


def _ratio_ticks(low: float, high: float) -> list[float]:
    """Return at most seven round ratios, 1 among them, between two logarithms."""
    decades = range(math.floor(low / math.log(10)), math.ceil(high / math.log(10)) + 1)
    found: list[float] = []
    for steps in _STEPS:
        every = (step * 10.0**k for k in decades for step in steps)
        found = [one for one in every if low - 1e-9 <= math.log(one) <= high + 1e-9]
        if len(found) <= _TICKS:
            return found
    each = len(found) // _TICKS + 1
    return [one for one in found if round(math.log10(one)) % each == 0]


def _bounded(values: Floats, lows: Floats, highs: Floats) -> tuple[Floats, Floats, Floats]:
    """Return bars whose intervals without a bound end at the edge of the picture."""
    parts = np.concatenate([values, lows, highs])
    finite = parts[np.isfinite(parts)]
    edges = float(np.min(finite, initial=0)), float(np.max(finite, initial=0))
    unknown = np.isinf(lows) & np.isinf(highs)
    return (
        np.where(values == np.inf, edges[1], values),
        np.where(unknown, 0.0, np.maximum(lows, edges[0])),
        np.where(unknown, 0.0, np.minimum(highs, edges[1])),
    )


def _scatter(display: Scatter) -> Figure:
    n = len(display.names)
    figure, axes = _figure(6.4, 4.6)
    points = _drawable(display.points)
    sizes = np.full(n, 1.0) if display.sizes is None else _drawable(display.sizes)
    largest = max(float(np.max(sizes, initial=0)), 1e-300)
    area = 900 / max(1.0, n / 12) * np.maximum(sizes, 0) / largest + 14
    axes.scatter(
        points[:, 0], points[:, 1], s=area, color=BLUE, alpha=0.35, edgecolors=BLUE, linewidths=1
    )
    crowded = n > 20  # then only the last word, such as a number, fits
    names = [name.split()[-1] if crowded and name.split() else name for name in display.names]
    for name, (x, y), size in zip(names, points, area, strict=True):
        axes.annotate(
            _short(name),
            (x, y),
            xytext=(0, np.sqrt(size) / 2 + 3),
            textcoords="offset points",
            ha="center",
            fontsize=7 if crowded else 9,
        )
    axes.margins(0.18)
    for axis in display.dates:
        _write_days(axes, axis)
    _name_axes(axes, display.axes)
    if not display.axes[1] and not points[:, 1].any():
        axes.set_yticks([])
    return figure


def _curve(display: Curve) -> Figure:
    figure, axes = _figure(5.6, 3.4)
    places = _drawable(display.places)
    values, low, high, *wide = (
        np.clip(np.atleast_2d(v), -_FAR, _FAR)  # keeps nan, which is drawn as a gap
        for v in (*_with_ends(display), *(display.estimate.population or ()))
    )
    size = 4 if len(places) <= 60 and not display.steps else 0
    for i, (row, colour) in enumerate(zip(values, cycle(_COLOURS))):
        for ends, alpha in (((low, high), 0.22), (wide, 0.1)):
            if ends:
                axes.fill_between(
                    places,
                    ends[0][i],
                    ends[1][i],
                    step="post" if display.steps else None,
                    color=colour,
                    alpha=alpha,
                    linewidth=0,
                )
        name = display.names[i] if display.names else None
        (line,) = axes.plot(
            places, row, color=colour, linewidth=1.4, marker="o", markersize=size, label=name
        )
        line.set_drawstyle("steps-post" if display.steps else "default")
    if len(display.names) > 1:
        # Above the axes, where no line is, and about as wide as these.
        columns = min(len(display.names), max(1, 60 // (max(map(len, display.names)) + 7)))
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns)
    if display.chosen is not None:
        axes.axvline(display.chosen, color=MUTED, linewidth=0.8, linestyle="--")
        at = np.flatnonzero(places == display.chosen)
        axes.plot(places[at], values[0, at], "o", color=INK, markersize=8)
    if len(places) <= 20 and (places == np.rint(places)).all():
        axes.set_xticks(places, [f"{place:g}" for place in places])
    if display.dates:
        _write_days(axes, 0)
    _name_axes(axes, display.axes)
    return figure


def _write_days(axes: Axes, axis: int) -> None:
    """Write the days of the years along the horizontal axis, 0, or the other."""
    (axes.xaxis, axes.yaxis)[axis].set_major_formatter(lambda place, _: day(place))
    if not axis:
        axes.tick_params(axis="x", labelrotation=30)


def _name_axes(axes: Axes, names: tuple[str, str]) -> None:
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1])
    axes.grid(color="#e3e9ee", linewidth=0.7)
    axes.set_axisbelow(True)


def _graph(display: Graph) -> Figure:
    n = len(display.names)
    names = [_short(name) for name in display.names]
    room = np.array([5.0 + 0.16 * n, 2.4 + 0.2 * n])
    links = [(a, b) for a, b, _, _ in display.edges]
    places = _apart(_stress_places(n, links) * room, [0.08 * len(name) + 0.15 for name in names])
    figure, axes = _figure(*(np.ptp(places, axis=0) + 1.0) if n else (3.0, 1.0))
    sizes = np.maximum(_drawable(display.sizes), 0)
    area = 420 * sizes / max(float(sizes.max(initial=0)), 1e-300) + 30
    weights = np.abs(_drawable(np.array([weight for _, _, weight, _ in display.edges])))
    widths = 0.5 + 1.9 * weights / max(float(weights.max(initial=0)), 1e-300)
    for (a, b, _, label), width in zip(display.edges, widths, strict=True):
        axes.annotate(
            "",
            places[b],
            places[a],
            arrowprops={
                "arrowstyle": "-|>",
                "color": "#8fa3b5",
                "linewidth": width,
                "mutation_scale": 9,
                "shrinkA": np.sqrt(area[a]) / 2,
                "shrinkB": np.sqrt(area[b]) / 2 + 1,
                "connectionstyle": "arc3,rad=0.08",
            },
        )
        x, y = 0.5 * (places[a] + places[b])
        box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "linewidth": 0}
        axes.text(x, y, label, fontsize=7, color=MUTED, ha="center", va="center", bbox=box)
    axes.scatter(places[:, 0], places[:, 1], s=area, color=PALE, edgecolors=BLUE, zorder=3)
    for name, (x, y), size in zip(names, places, area, strict=True):
        axes.annotate(
            name,
            (x, y),
            xytext=(0, -np.sqrt(size) / 2 - 2),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=8.5,
            zorder=4,
            bbox={"boxstyle": "round,pad=0.05", "facecolor": "#ffffffc0", "linewidth": 0},
        )
    axes.margins(0.05, 0.08)
    axes.set_axis_off()
    return figure


def _stress_places(n: int, edges: Sequence[tuple[int, int]]) -> Floats:
    """Return places in the unit square whose distances approximate those along the edges.

    References
    ----------
    Gansner, Koren and North, "Graph drawing by stress majorization", 2004, section 2.
    """
    steps = np.where(np.eye(n, dtype=bool), 0.0, np.inf)
    for a, b in edges:
        steps[a, b] = steps[b, a] = float(a != b)
    for k in range(n):
        steps = np.minimum(steps, steps[:, k, None] + steps[None, k])
    finite = np.isfinite(steps)
    ideal = np.where(finite, steps, 0.5 * steps[finite].max(initial=1.0) + 1.0)
    weights = 1 / np.where(ideal > 0, ideal, np.inf) ** 2
    # A Laplacian is singular; the constant fixes the middle of all places.
    laplacian = np.diag(weights.sum(axis=1)) - weights + 1 / max(n, 1)
    # A circle, since random places would draw each report differently.
    angles = 2 * np.pi * np.arange(n) / max(n, 1)
    places = np.column_stack([np.cos(angles), np.sin(angles)])
    for _ in range(200):
        gaps = places[:, None] - places[None, :]
        far = np.maximum(np.hypot(gaps[..., 0], gaps[..., 1]), 1e-9)
        target = (gaps * (weights * ideal / far)[..., None]).sum(axis=1)
        places = np.linalg.solve(laplacian, target)
    low = places.min(axis=0, initial=0.0)
    ranges = np.maximum(places.max(axis=0, initial=0.0) - low, 1e-12)
    return np.asarray((places - low) / ranges)


def _apart(places: Floats, widths: Sequence[float]) -> Floats:
    """Push nodes apart, in inches, until no name covers another node or name."""
    wide = (np.array(widths)[:, None] + np.array(widths)[None, :]) / 2
    room = np.stack([wide, np.full_like(wide, 0.48)])
    order = np.subtract.outer(np.arange(len(places)), np.arange(len(places)))
    moved = places.copy()
    for _ in range(300):
        gaps = (moved[:, None] - moved[None, :]).transpose(2, 0, 1)
        over = room - np.abs(gaps)
        clash = (over > 0).all(axis=0) & (order != 0)
        if not clash.any():
            break
        # Along the axis of the smaller overlap, so that the layout changes least.
        shorter = np.arange(2)[:, None, None] == (over / room).argmin(axis=0)
        # The order decides between nodes at one place, which have no direction.
        push = np.where(clash & shorter, over, 0.0) * np.sign(np.where(gaps == 0, order, gaps))
        moved += 0.3 * push.sum(axis=2).T
    return moved


def _heatmap(display: Heatmap) -> Figure:
    from matplotlib.colors import LinearSegmentedColormap

    rows, columns = display.estimate.values.shape
    with_text = _has_text(display)
    wide = _cell_width(display) if with_text else 0.2
    height = _CELL_HEIGHT if with_text else 0.2
    figure, axes = _figure(1.2 + columns * wide, 0.8 + rows * height)
    shade = _shade(display)
    # Text must be legible on the darkest colours, so cells with text have paler ones.
    ends = ("#e9a15b", "#69a5d8") if with_text else ("#7f3b08", "#08306b")
    colours = LinearSegmentedColormap.from_list(
        "cloister", [ends[0], "#f6d9b8", "#ffffff", "#b5d4ee", ends[1]]
    )
    axes.pcolormesh(
        np.arange(columns + 1) - 0.5,
        np.arange(rows + 1) - 0.5,
        shade,
        cmap=colours,
        vmin=-1,
        vmax=1,
        edgecolors="#edf1f5" if with_text else "white",
        linewidth=1.5 if with_text else 0.3,
        rasterized=display.estimate.values.size > 4000,  # vectors of so many cells are slow
    )
    if with_text:
        _write_texts(axes, display)
        if has_intervals(display):
            _cell_intervals(axes, display)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.xaxis.tick_top()
    row_labels, column_labels = display.estimate.labels
    names = [_short(name) for name in column_labels]
    crowded = max(map(len, names), default=0) * _LETTER > wide
    axes.set_xticks(
        np.arange(columns),
        names,
        rotation=50 if crowded else 0,
        ha="left" if crowded else "center",
        rotation_mode="anchor",
        color=INK,
        fontsize=9 if with_text else 7,
    )
    row_names = [_short(name) for name in row_labels]
    axes.set_yticks(np.arange(rows), row_names, fontsize=9 if with_text else 7)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return figure


def _has_text(display: Heatmap) -> bool:
    """Return True if the values fit into the cells."""
    rows, columns = display.estimate.values.shape
    return bool(
        rows * columns <= _TEXT_CELLS
        and rows * _CELL_HEIGHT <= _MAX_INCHES
        and columns * _cell_width(display) <= _MAX_INCHES - 2
    )


def _cell_width(display: Heatmap) -> float:
    """Return the width in inches for the text of a cell, and for the column's name if short."""
    texts = [text for row in _texts(display) for text in row]
    longest = max(len(text) for text in texts) if texts else 1
    name = max((len(_short(name)) for name in display.estimate.labels[1]), default=1)
    return max(1.0, _LETTER * longest + 0.2, _LETTER * name + 0.1 if name <= 16 else 0.0)


def _texts(display: Heatmap) -> list[list[str]]:
    """Return the text of each cell of a heat map."""
    return [[str(cell) for cell in row[1:]] for row in as_table(display).rows]


def _with_ends(display: Heatmap | Bars | Curve) -> tuple[Floats, Floats, Floats]:
    """Return the values and both ends of their intervals."""
    return display.estimate.values, display.estimate.low, display.estimate.high


def _write_texts(axes: Axes, display: Heatmap) -> None:
    lift = -0.1 if has_intervals(display) else 0.0
    for i, row in enumerate(_texts(display)):
        for j, text in enumerate(row):
            axes.text(j, i + lift, text, ha="center", va="center", fontsize=9)


def _shade(display: Heatmap) -> Floats:
    """Return shades in [-1, 1]; by default the values divided by the largest absolute one."""
    if display.shade is not None:
        return np.clip(_drawable(display.shade), -1, 1)
    values = _drawable(display.estimate.values)
    largest = float(np.abs(values).max(initial=0.0))
    return values / largest if largest else values


def _cell_intervals(axes: Axes, display: Heatmap) -> None:
    """Draw in each cell the position of its value within its column, with its interval."""
    known = np.isfinite(display.estimate.low) & np.isfinite(display.estimate.high)
    values, lows, highs = (_drawable(v) for v in _with_ends(display))
    left, width, drop = -0.26, 0.52, 0.27  # leaves room for intervals beyond both ends
    lowest, ranges = values.min(axis=0), np.ptp(values, axis=0)
    for i, j in np.ndindex(values.shape):
        if ranges[j] <= 0 or not known[i, j]:
            continue
        at, low, high = ((end[i, j] - lowest[j]) / ranges[j] for end in (values, lows, highs))
        low, high = np.clip((low, high), -0.38, 1.38)
        y = i + drop
        axes.plot([j + left, j + left + width], [y, y], color=MUTED, linewidth=0.5)
        axes.plot(
            [j + left + width * low, j + left + width * high], [y, y], color=INK, linewidth=1.6
        )
        axes.plot([j + left + width * at], [y], "o", color=INK, markersize=3)


_FIGURES: dict[type, Callable[[Any], Figure]] = {
    Heatmap: _heatmap,
    Bars: _bars,
    Scatter: _scatter,
    Curve: _curve,
    Graph: _graph,
}
