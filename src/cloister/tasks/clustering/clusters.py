"""What k-means tasks release and show: centres and sizes of clusters with their intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from cloister.core.arrays import Flags, Floats, GridState, Results
from cloister.core.display import Bars, Cell, Display, Heatmap, Scatter, Summary, Table
from cloister.core.estimate import Estimate, around
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import Mechanism
from cloister.tasks.intervals import above_noise, differences, ratio_interval, size_interval
from cloister.tasks.state import decode_state

if TYPE_CHECKING:
    from cloister.data.schema import Schema
    from cloister.protocol.plan import Plan

LEFT_OUT = 0.15
"""Share of the nominal records that may be missing unsaid, since that number may be rounded."""

_WHOLE = 0.499  # of a column's range: an interval of such a half is the whole box
_CLEAR_SIZE = 3.0  # a cluster should have so many times the half-width of its noisy size
_CLEAR_CENTRE = 0.1  # half-width of a centre, as a part of a column's range
_MOST_SIZES = 6  # that are named one by one
_NUMERALS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
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
    known = decode_state(Centres, state, frac_bits)
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
    sizes = around(results["sizes"], results["size_half_width"], distinct=known)
    return (
        Estimate(*ends, distinct=of_centres, labels=(names, columns)),
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
        Bars("Noisy sizes", replace(sizes, distinct=None), f"± is half of {_INTERVAL}"),
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


class Clustering:
    """What tasks have in common whose results are centres and sizes of clusters."""

    columnwise: ClassVar[Mapping[str, str]] = {
        "half_width": "Expected error of a centre (95 % of the noise, clusters of equal size)"
    }

    def plan_warnings(self, plan: Plan, forecast: Results) -> Iterator[str]:
        """Say which clusters and centres of a plan noise would hide."""
        k, width = getattr(plan.task, "n_clusters", 1), forecast.get("size_half_width")
        if plan.budget is not None and width is not None:
            share, noise = plan.nominal_n / k, float(width[0])
            if share < _CLEAR_SIZE * noise:
                yield (
                    f"nominal_n={plan.nominal_n:,} is too small for {k} clusters of "
                    f"{len(plan.columns)} columns at epsilon {plan.budget.epsilon:g}: an equal "
                    f"share is {share:,.0f} records and its noise ± {noise:,.0f}; about "
                    f"{ceil(_CLEAR_SIZE * noise * k):,} records, fewer clusters or a larger "
                    "epsilon are needed."
                )
        half_width = forecast.get("half_width", np.zeros(0))
        if half_width.shape == (len(plan.columns),):
            part = half_width / (2 * plan.grid.half_range)
            if part.max() > _CLEAR_CENTRE:
                worst = plan.columns[int(part.argmax())]
                yield (
                    f"a centre would be known only to ± {part.max():.0%} of the range of column "
                    f"{worst!r}; more records, narrower public bounds, fewer clusters or a larger "
                    "epsilon would help."
                )

    def category_warning(self, names: Sequence[str]) -> str:
        """Say that columns of several categories would count as numbers."""
        return (
            f"clustering treats the categories of {', '.join(names)} as numbers, by their places "
            "in the schema; leave such a column out with --columns, or make a boolean column of "
            "each category."
        )

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return what :func:`.centres.centre_displays` does."""
        return centre_displays(results, columns)

    def summary(self, results: Results, nominal_n: int, units: str) -> Summary:
        """Say how many clusters there are, how large, and which stand out of the noise."""
        k = len(results["centres"])
        many = _NUMERALS[k] if k < len(_NUMERALS) else f"{k:,}"
        title = f"{many} group{'s' * (k != 1)} of {units}"
        left_out = records_left_out(results, nominal_n)
        return Summary(
            title,
            f"{title}, of about {_sizes(results['sizes'])}.",
            clusters_above_noise(results),
            (left_out,) if left_out else (),
        )

    def course(self, history: Sequence[Results], ranges: Floats) -> tuple[Table, ...]:
        """Return how far the centres moved in each round."""
        return movement(history, ranges)

    def tables_of(self, plan: Plan, results: Results, _: Schema) -> dict[str, Table]:
        """Return one row per centre: its noisy size, and its columns with their intervals."""
        columns = getattr(
            plan.task, "last_step_columns", plan.columns
        )  # of a pipeline, the last step's
        ends = (cell for name in columns for cell in (name, f"{name} low", f"{name} high"))
        cells = np.stack([results[name] for name in ("centres", "low", "high")], axis=2)
        sizes = results["sizes"], results["size_half_width"], cells.reshape(len(cells), -1)
        rows = tuple((j, *row) for j, row in enumerate(np.column_stack(sizes).tolist()))
        headings = ("cluster", "noisy size", "noisy size ±", *ends)
        return {"centres": Table("Centres", headings, rows)}


def _sizes(sizes: Floats) -> str:
    """Return the sizes, largest first, or the smallest and the largest of many."""
    said = [f"{round(max(size, 0.0), -1):,.0f}" for size in sorted(sizes.tolist())[::-1]]
    if len(said) > _MOST_SIZES:
        return f"{said[-1]} to {said[0]}"
    return " and ".join(filter(None, (", ".join(said[:-1]), said[-1])))


def clusters_above_noise(results: Results) -> str:
    """Say how many clusters stand out of the noise; nothing of fewer than two."""
    known = _standing_out(results)
    k, number = len(known), int(known.sum())
    if not k:
        return ""
    what = f"{number} of {k} clusters {'stands' if number == 1 else 'stand'} out of the noise"
    if number == k:
        return f"{what}."
    rest = "the other" if k - number == 1 else "the others" if number else "them"
    places = ", ".join(str(j) for j in np.flatnonzero(~known)[:10])
    more = ", ..." if k - number > 10 else ""
    return (
        f"{what}: of {rest} ({places}{more}) the noisy size is not clear of 0, and the noise alone "
        "could have made the centre."
    )


def none_above_noise(results: Results) -> str:
    """Say that no cluster stands out of the noise; nothing if one does, or of a single cluster."""
    known = _standing_out(results)
    if not len(known) or known.any():
        return ""
    return (
        f"none of {len(known)} clusters stands out of the noise: take it that no group "
        "was found; more records, a larger epsilon, fewer clusters or fewer columns may show some, "
        "in a release of its own."
    )


def _standing_out(results: Results) -> Flags:
    """Return which clusters stand out of the noise; nothing of fewer than two."""
    if len(results["sizes"]) < 2:
        return np.zeros(0, dtype=bool)
    return above_noise(results["sizes"], results["size_half_width"])


def records_left_out(results: Results, nominal_n: int) -> str:
    """Say that the noisy sizes sum to far less than the nominal number of records.

    Nothing unless their sum and its 95 % confidence interval are below 85 % of `nominal_n`, which
    may be rounded.
    """
    total = float(results["sizes"].sum())
    margin = float(np.linalg.norm(results["size_half_width"] * np.ones(len(results["sizes"]))))
    if total + margin >= (1 - LEFT_OUT) * nominal_n:
        return ""
    share = min(1 - total / nominal_n, 1.0)
    return (
        f"the noisy sizes sum to {total:,.0f} ± {margin:,.0f}, but nominal_n is {nominal_n:,}: "
        f"about {share:.0%} of the records are in no cluster, or there are fewer than agreed; "
        "another method, start or number of clusters may find them, and is a release of its own."
    )


def movement(history: Sequence[Results], ranges: Floats) -> tuple[Table, ...]:
    """Return how far released centres moved in each round; nothing before there are centres.

    `history` has the results before the first round and after each; `ranges` are the columns'.
    """
    if len(history) < 2 or any(not {"centres", "half_width"} <= known.keys() for known in history):
        return ()
    rows = tuple(
        (
            f"round {t + 1}",
            f"{np.abs((after['centres'] - before['centres']) / ranges).mean():.2%}",
            f"{(after['half_width'] / ranges).mean():.2%}",
        )
        for t, (before, after) in enumerate(pairwise(history))
        if (after["half_width"] < _WHOLE * ranges).any()  # rounds before have found no clusters yet
    )
    note = (
        "Part of a column's range, mean over centres and columns. A last round that moved much "
        "further than its margin of error had not settled."
    )
    return (Table("How far the centres moved", ("", "moved", "margin of error"), rows, note),)
