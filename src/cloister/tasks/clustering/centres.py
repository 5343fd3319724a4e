"""What every k-means releases: centres and sizes with their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloister.arrays import Floats, GridState
from cloister.display import Bars, Between, Display, Heatmap, Measured, Scatter, Table
from cloister.hazmat.fixedpoint import Grid
from cloister.task import Mechanism
from cloister.tasks.intervals import ratio_interval, size_interval
from cloister.tasks.state import read

_INTERVAL = (
    "the 95 % confidence interval (privacy noise of the last round only). Neither sampling nor the "
    "rounds before are in it, so another run may find other clusters."
)
_BETWEEN = f"In brackets: {_INTERVAL} A centre that was pulled back may lie outside."


@dataclass(frozen=True)
class Centres:
    """Centres with their intervals and sizes; grid coordinates, a row for each cluster."""

    centres: Floats
    low: Floats
    high: Floats
    sizes: Floats
    size_half_width: Floats


def unknown(n_clusters: int, n_features: int) -> dict[str, Any]:
    """Return :class:`Centres` by name: in the middle of the box, and nothing is known of them."""
    shape = (n_clusters, n_features)
    return {
        "centres": np.zeros(shape),
        "low": np.full(shape, -1.0),
        "high": np.full(shape, 1.0),
        "sizes": np.zeros(n_clusters),
        "size_half_width": np.zeros(n_clusters),
    }


def centres_in_units(state: GridState, grid: Grid, frac_bits: int) -> Mapping[str, Floats]:
    """Return the :class:`Centres` of a state, with 95 % confidence intervals (privacy noise only).

    Returns
    -------
    dict
        ``centres``, ``low`` and ``high`` of shape (n_clusters, n_features) in data units,
        ``half_width`` of the same shape, which is ``(high - low) / 2``; ``sizes`` and
        ``size_half_width`` of shape (n_clusters,) in records.
    """
    known = read(Centres, state, frac_bits)
    low, high = grid.decode(known.low), grid.decode(known.high)
    return {
        "centres": grid.decode(known.centres),
        "low": low,
        "high": high,
        "half_width": (high - low) / 2,
        "sizes": known.sizes,
        "size_half_width": known.size_half_width,
    }


def expected_half_widths(
    size: float, grid: Grid, *, sum_std: float, count_std: float, mechanism: Mechanism = "gaussian"
) -> Mapping[str, Floats]:
    """Return the half-widths that a cluster of so many records can expect.

    Returns
    -------
    dict
        ``half_width`` of shape (n_features,) in data units and ``size_half_width`` of shape (1,)
        in records. Nearby clusters, far outliers and empty clusters make it worse.
    """
    low, high = ratio_interval(
        np.zeros((1, grid.n_features)),
        np.array([max(size, 1.0)]),
        sum_std=sum_std,
        count_std=count_std,
        mechanism=mechanism,
    )
    return {
        "half_width": (high - low)[0] / 2 * grid.half_range,
        "size_half_width": np.array([size_interval(count_std, mechanism)]),
    }


def centre_displays(results: Mapping[str, Floats], columns: tuple[str, ...]) -> tuple[Display, ...]:
    """Return the centres as a table and a heat map, their projection, and the sizes."""
    centres, low, high = results["centres"], results["low"], results["high"]
    sizes, half_width = results["sizes"], results["size_half_width"]
    names = tuple(f"cluster {j}" for j in range(len(centres)))
    cells = np.stack([centres, low, high], axis=2).tolist()
    rows: tuple[tuple[str | Measured | Between, ...], ...] = tuple(
        (name, Measured(size, half), *(Between(*cell) for cell in row))
        for name, size, half, row in zip(
            names, sizes.tolist(), half_width.tolist(), cells, strict=True
        )
    )
    ranges = np.ptp(centres, axis=0)
    shade = (centres - centres.min(axis=0)) / np.where(ranges > 0, ranges, 1)
    return (
        Table("Centres", ("cluster", "noisy size", *columns), rows, note=_BETWEEN),
        Heatmap(
            "Centres at a glance",
            names,
            columns,
            centres,
            low=low,
            high=high,
            shade=shade,
            note="Colour compares the centres within each column. " + _BETWEEN,
        ),
        *(_map(names, shade, sizes, columns) if len(centres) > 1 else ()),
        Bars(
            "Noisy sizes",
            names,
            sizes,
            half_width,
            unit="records",
            note=f"± is half of {_INTERVAL}",
        ),
    )


def _map(
    names: tuple[str, ...], shade: Floats, sizes: Floats, columns: tuple[str, ...]
) -> tuple[Scatter]:
    """Return the centres in two principal coordinates, or in the columns when there are two."""
    points, axes = shade, ("first principal axis", "second principal axis")
    if len(columns) == 1:
        axes = (columns[0], "")
    elif len(columns) == 2:
        axes = (f"{columns[0]} (scaled)", f"{columns[1]} (scaled)")
    else:
        middle = shade - shade.mean(axis=0)
        _, _, vectors = np.linalg.svd(middle, full_matrices=False)
        signs = np.sign(vectors[np.arange(len(vectors)), np.abs(vectors).argmax(axis=1)])
        points = middle @ (vectors[:2] * signs[:2, None]).T
    if points.shape[1] == 1:
        points = np.column_stack([points, np.zeros(len(points))])
    title, note = "Centres in two dimensions", "Made from the released centres alone."
    return (Scatter(title, names, points, np.maximum(sizes, 0), axes, note),)
