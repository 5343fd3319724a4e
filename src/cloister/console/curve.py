"""A small picture of the expected error against epsilon, drawn without a library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

WIDTH, HEIGHT = 560, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 40, 40, 40
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#4d5b60;text-anchor:middle}"
    ".chosen{font-weight:700;fill:#1b2326}polyline{fill:none;stroke:#00695c;stroke-width:2}"
    "circle{fill:#00695c}line{stroke:#c3cfd1}"
)


def curve(errors: Mapping[float, float], chosen: float, sign: str = "\u00b1 ") -> str:
    """Return an SVG of positive errors by epsilon, both on a logarithmic scale.

    Parameters
    ----------
    errors : mapping of epsilon to error
    chosen : float
        The epsilon that is marked.
    sign : str
        Text before each error; empty for other numbers than errors.
    """
    places = _scaled(errors.keys(), _LEFT, WIDTH - _RIGHT)
    heights = _scaled(errors.values(), HEIGHT - _BOTTOM, _TOP)
    points = [
        (places[epsilon], heights[error], epsilon, error) for epsilon, error in errors.items()
    ]
    marks = []
    for x, y, epsilon, error in points:
        kind = ' class="chosen"' if epsilon == chosen else ""
        marks.append(
            f'<line x1="{x}" x2="{x}" y1="{y}" y2="{HEIGHT - _BOTTOM}"/>'
            f'<circle cx="{x}" cy="{y}" r="{6 if kind else 3.5}"/>'
            f'<text{kind} x="{x}" y="{y - 12}">{sign}{_short(error)}</text>'
            f'<text{kind} x="{x}" y="{HEIGHT - 20}">{epsilon:g}</text>'
        )
    line = " ".join(f"{x},{y}" for x, y, *_ in points)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}"><style>{_STYLE}</style>'
        f'{"".join(marks)}<polyline points="{line}"/>'
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 3}">epsilon</text></svg>'
    )


def _short(value: float) -> str:
    """Return a number with two digits, such as 330 or 0.0047."""
    return f"{float(f'{value:.2g}'):,.15g}"


def _scaled(values: Iterable[float], low: float, high: float) -> dict[float, float]:
    """Return the place of each positive value between `low` and `high`, by its logarithm."""
    logs = {value: math.log(value) for value in values if value > 0}
    least, most = min(logs.values(), default=0.0), max(logs.values(), default=0.0)
    span = most - least or 1.0
    return {v: round(low + (log - least) / span * (high - low), 1) for v, log in logs.items()}
