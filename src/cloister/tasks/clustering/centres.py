"""What every k-means releases: centres and sizes with their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cloister.core.arrays import Floats, GridState, Results
from cloister.core.display import Bars, Cell, Display, Heatmap, Scatter, Table
from cloister.core.estimate import Estimate, around
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import Mechanism
from cloister.tasks.intervals import above_noise, differences, ratio_interval, size_interval
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


def estimates_of(results: Results, columns: tuple[str, ...]) -> tuple[Estimate, Estimate]:
    """Return centres and sizes with their intervals."""
    names = tuple(f"cluster {j}" for j in range(len(results["centres"])))
    known = above_noise(results["sizes"], results["size_half_width"])
    ends = (results[name] for name in ("centres", "low", "high"))
    of_centres = np.repeat(known[:, None], len(columns), axis=1)
    sizes = around(results["sizes"], results["size_half_width"], known=known)
    return (
        Estimate(*ends, known=of_centres, labels=(names, columns)),
        replace(sizes, labels=(names,), unit="records"),
    )


def centre_displays(results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
    """Return the centres as a table and a heat map, their projection, and the sizes."""
    centres, sizes = estimates_of(results, columns)
    return (
        _table(centres, sizes),
        Heatmap(
            "Centres at a glance",
            centres,
            "Blue is above the mean of the other centres in a column and orange below, by "
            f"more than the noise of both; white is neither. {_BETWEEN}",
            differences(centres.values, centres.low, centres.high),
        ),
        *(_map(centres, sizes.values) if _is_worth_a_map(centres.values) else ()),
        Bars("Noisy sizes", replace(sizes, known=None), f"± is half of {_INTERVAL}"),
    )


def _table(centres: Estimate, sizes: Estimate) -> Table:
    """Return sizes and centres, with what is more along the rows: people scroll downwards."""
    names, columns = centres.labels
    corner, heads = "cluster", ("noisy size", *columns)
    rows: list[tuple[Estimate, ...]] = [(sizes[j], *centres[j].cells()) for j in range(len(names))]
    if len(columns) > len(names):
        corner, names, heads, rows = "", heads, names, list(zip(*rows, strict=True))
    named: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *row) for name, row in zip(names, rows, strict=True)
    )
    return Table("Centres", (corner, *heads), named, note=_BETWEEN)


def _is_worth_a_map(centres: Floats) -> bool:
    """Return whether a map shows more than the table: three points are always a triangle."""
    n_clusters, n_features = map(int, centres.shape)
    return n_features > 1 and n_clusters > (1 if n_features == 2 else 3)


def _map(estimate: Estimate, sizes: Floats) -> tuple[Scatter]:
    """Return the centres in two principal coordinates, or in the columns when there are two."""
    centres, (names, columns) = estimate.values, estimate.labels
    points, axes = centres, columns[:2]
    if len(columns) > 2:
        ranges = np.ptp(centres, axis=0)
        middle = (centres - centres.mean(axis=0)) / np.where(ranges > 0, ranges, 1)
        _, _, vectors = np.linalg.svd(middle, full_matrices=False)
        signs = np.sign(vectors[np.arange(len(vectors)), np.abs(vectors).argmax(axis=1)])
        points = middle @ (vectors[:2] * signs[:2, None]).T
        most = (np.argsort(-np.abs(vector), kind="stable")[:2] for vector in vectors[:2])
        axes = tuple(f"mostly {columns[a]} and {columns[b]}" for a, b in most)
    title, note = "Centres in two dimensions", "Made from the released centres alone."
    return (Scatter(title, names, points, np.maximum(sizes, 0), (axes[0], axes[1]), note),)
