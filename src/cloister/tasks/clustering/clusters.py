"""Results and displays of k-means tasks: centres and sizes of clusters with their intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from cloister.core.arrays import Flags, Floats, GridState, Integers, Results
from cloister.core.display import (
    Bars,
    Cell,
    Display,
    Estimate,
    Heatmap,
    Scatter,
    Summary,
    Table,
    around,
)
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import Mechanism
from cloister.tasks.interval_tables import in_days
from cloister.tasks.intervals import above_noise, differences, ratio_interval, size_interval
from cloister.tasks.options import Dates
from cloister.tasks.state import decode_state

if TYPE_CHECKING:
    from cloister.data.schema import Schema
    from cloister.protocol.plan import Plan

LEFT_OUT = 0.15
"""Share of the nominal records that may be missing without a warning, as it may be rounded."""

SIZE_ERROR = 0.03
"""Relative error of a size, as the border of a cluster moves with the centres."""

_WHOLE = 0.499  # an interval with this half-width, in a column's range, is the whole box
_CLEAR_SIZE = 3.0  # smallest useful size of a cluster, in half-widths of its noisy size
_CLEAR_CENTRE = 0.1  # largest useful half-width of a centre, as a share of a column's range
_CUT = 0.01  # part by which one side of an interval is shorter if a bound cuts it
_MOST_SIZES = 6  # more sizes are summarised by their range
_NUMERALS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
_INTERVAL = (
    "the 95 % confidence interval (privacy noise of the last round only). It excludes sampling and "
    "earlier rounds, so another run may find other clusters."
)
_BETWEEN = f"In brackets: {_INTERVAL} A centre that was moved into the box may be outside."
_AT_ONCE = (
    "In brackets: 95 % confidence intervals (privacy noise only) for all cells together. They hold "
    "the centres that k-means on all records finds from these, and exclude sampling."
)
_SIZES_OF_VERDICT = (
    "± is half of the 95 % confidence interval (privacy noise only) for the records nearest to the "
    "released centre. K-means on all records may move a border, and more records with it. A "
    "cluster that is not determined has none."
)
VERDICTS = ("not determined", "numbers only", "determined")
"""The words for the values of ``verdict`` in results, ascending."""
_CLAIMS = ("low", "high", "half_width", "size_half_width")
_MEANINGS = (
    "Determined: k-means on all records has this cluster. Numbers only: its centre holds about 9 "
    "times in 10, but nothing sets it apart from its neighbour: the border is a convention. Not "
    "determined: another release may find another cluster; its intervals are not known, and the "
    "centre has one digit."
)


@dataclass(frozen=True)
class Centres:
    """Centres with their intervals and sizes; grid coordinates, a row for each cluster."""

    centres: Floats
    low: Floats
    high: Floats
    sizes: Floats
    size_half_width: Floats


def unknown(n_clusters: int, n_features: int) -> dict[str, Any]:
    """Return the fields of :class:`Centres` before any release: all in the middle of the box."""
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
        ``centres``, ``low``, ``high`` and ``half_width``, which is ``(high - low) / 2``, of shape
        (n_clusters, n_features) in data units. ``sizes`` and ``size_half_width`` of shape
        (n_clusters,) in records.
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


def claimed(results: Results) -> dict[str, Floats]:
    """Blank the intervals of clusters that are not determined.

    Intervals are for the clusters of k-means on all records, of which nothing is known there.
    ``noise`` and ``size_noise`` keep the half-widths of the last round for all clusters.
    """
    holds = results["verdict"] > 0
    blanked = {
        name: np.where(holds[:, None] if results[name].ndim > 1 else holds, results[name], np.nan)
        for name in _CLAIMS
    }
    noise = {"noise": results["half_width"], "size_noise": results["size_half_width"]}
    return {**results, **blanked, **noise}


def _noise_of(results: Results) -> Floats:
    """Return the half-widths of centres by the noise of the last round."""
    # Methods without verdicts, and releases of older versions, have no other half-widths.
    return results["noise"] if "noise" in results else (results["high"] - results["low"]) / 2


def _size_noise_of(results: Results) -> Floats:
    """Return the half-widths of sizes by the noise of the last round."""
    return results["size_noise" if "size_noise" in results else "size_half_width"]


def expected_half_widths(
    size: float, grid: Grid, *, sum_std: float, count_std: float, mechanism: Mechanism = "gaussian"
) -> Mapping[str, Floats]:
    """Return the expected half-widths for a cluster of `size` records.

    Returns
    -------
    dict
        ``half_width`` of shape (n_features,) in data units and ``size_half_width`` of shape (1,)
        in records. Nearby clusters, far outliers and empty clusters increase the error.
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


JUDGED_RANGE: Final[Mapping[str, tuple[float, float, str]]] = {
    "half_width": (0.2, 10.0, "how far apart the groups are")
}
"""Least and largest multiple of the forecast of a centre that has a verdict, and the reason. In 40
plans over ten public tables, at epsilon 0.5 to 16, intervals were 0.3 to 10 times the forecast."""


def estimates_of(results: Results, columns: tuple[str, ...]) -> tuple[Estimate, Estimate]:
    """Return centres and sizes with their intervals.

    With verdicts, the intervals of the centres hold together. A cluster that is not determined has
    no intervals. Its size is rounded to a digit of its noise, its centre to a digit of half the
    column's spread.
    """
    names = tuple(f"cluster {j}" for j in range(len(results["centres"])))
    distinct_sizes = above_noise(results["sizes"], _size_noise_of(results))
    known_sizes, size_half_width = results["sizes"], results["size_half_width"]
    # 0 is no special value of a centre, so a centre is distinct if its cluster's size is.
    of_centres = np.repeat(distinct_sizes[:, None], len(columns), axis=1)
    centres, low, high = (results[name] for name in ("centres", "low", "high"))
    if "verdict" in results:
        low, high = all_at_once(centres, low, high)
        holds = results["verdict"] > 0
        # Again, as releases of older versions have intervals there.
        low, high = (np.where(holds[:, None], end, np.nan) for end in (low, high))
        size_half_width = np.where(holds, size_half_width, np.nan)
        step = 10.0 ** np.floor(np.log10(np.maximum(_size_noise_of(results), 1)))
        known_sizes = np.where(holds, known_sizes, np.round(known_sizes / step) * step + 0.0)
        centres = np.where(holds[:, None], centres, _coarse(centres, _noise_of(results)))
    sizes = around(known_sizes, size_half_width, distinct=distinct_sizes)
    return (
        Estimate(centres, low, high, distinct=of_centres, labels=(names, columns)),
        replace(sizes, labels=(names,), unit="records"),
    )


def all_at_once(centres: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Widen 95 % intervals of centres so that all of them hold together in 95 % of releases.

    Returns
    -------
    low, high : ndarray of the shape of `centres`
        An end at a bound of the box stays there.
    """
    # Bonferroni: each of n intervals fails with probability 0.05 / n.
    normal = NormalDist()
    factor = normal.inv_cdf(1 - 0.025 / centres.size) / normal.inv_cdf(1 - 0.025)
    half = np.maximum(centres - low, high - centres)
    # An interval around its centre is shorter on one side only if a bound cuts it there.
    least = half * (1 - _CUT)
    return (
        np.where(centres - low < least, low, centres - factor * half),
        np.where(high - centres < least, high, centres + factor * half),
    )


def _coarse(centres: Floats, half_width: Floats) -> Floats:
    """Round centres to the first digit of half the spread of their column, intervals included."""
    # A digit of the values themselves would move a year by centuries.
    spread = np.maximum(np.ptp(centres, axis=0), half_width.max(axis=0))
    step = 10.0 ** np.floor(np.log10(np.maximum(spread / 2, np.finfo(float).tiny)))
    return np.asarray(np.round(centres / step) * step + 0.0)  # no negative zero


def centre_displays(
    results: Results, columns: tuple[str, ...], dates: Dates = ()
) -> tuple[Display, ...]:
    """Return the centres as a table and a heat map, their projection, and the sizes."""
    centres, sizes = estimates_of(results, columns)
    note = _AT_ONCE if "verdict" in results else _BETWEEN
    of_size = _SIZES_OF_VERDICT if "verdict" in results else f"± is half of {_INTERVAL}"
    noise = _noise_of(results)
    return (
        _table(centres, sizes, results.get("verdict"), dates),
        Heatmap(
            "Centres at a glance",
            centres,
            "Blue is above the mean of the other centres in a column and orange below, by "
            f"more than the noise of both; white is neither. {note}",
            differences(results["centres"], results["centres"] - noise, results["centres"] + noise),
            dates=dates,
        ),
        *(_map(centres, sizes.values, dates) if _is_worth_a_map(centres.values) else ()),
        # Without an interval, only `distinct` tells if noise alone explains a size.
        Bars(
            "Noisy sizes", sizes if "verdict" in results else replace(sizes, distinct=None), of_size
        ),
    )


def _table(centres: Estimate, sizes: Estimate, verdict: Floats | None, dates: Dates) -> Table:
    """Return a table of sizes and centres; the longer dimension is along the rows."""
    # Readers scroll downwards more easily than sideways.
    names, columns = centres.labels
    corner, heads = "cluster", ("noisy size", *columns)
    rows: list[tuple[Cell, ...]] = [
        (sizes[j], *(in_days(cell, i in dates) for i, cell in enumerate(centres[j].cells())))
        for j in range(len(names))
    ]
    note = _BETWEEN
    if verdict is not None:
        heads, note = (*heads, "verdict"), f"{_AT_ONCE} {_MEANINGS}"
        rows = [(*row, words) for row, words in zip(rows, verdicts_of(verdict), strict=True)]
    if len(columns) > len(names):
        corner, names, heads, rows = "", heads, names, list(zip(*rows, strict=True))
    named: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *row) for name, row in zip(names, rows, strict=True)
    )
    return Table("Centres", (corner, *heads), named, note=note)


def verdicts_of(verdict: Floats) -> tuple[str, ...]:
    """Return the word for each verdict."""
    return tuple(VERDICTS[int(value)] for value in verdict)


def _is_worth_a_map(centres: Floats) -> bool:
    """Return True if a map shows more than the table; three points are always a triangle."""
    n_clusters, n_features = map(int, centres.shape)
    return n_features > 1 and n_clusters > (1 if n_features == 2 else 3)


def _map(estimate: Estimate, sizes: Floats, dates: Dates) -> tuple[Scatter]:
    """Return the centres in two principal coordinates, or in the columns if there are two."""
    centres, (names, columns) = estimate.values, estimate.labels
    points, axes = centres, columns[:2]
    if len(columns) > 2:
        dates = ()  # an axis is a mixture of columns
        ranges = np.ptp(centres, axis=0)  # scaled by these, as columns have different units
        middle = (centres - centres.mean(axis=0)) / np.where(ranges > 0, ranges, 1)
        _, _, vectors = np.linalg.svd(middle, full_matrices=False)
        # The sign of a singular vector is arbitrary, so the largest entry is made positive.
        signs = np.sign(vectors[np.arange(len(vectors)), np.abs(vectors).argmax(axis=1)])
        points = middle @ (vectors[:2] * signs[:2, None]).T
        most = (np.argsort(-np.abs(vector), kind="stable")[:2] for vector in vectors[:2])
        axes = tuple(f"mostly {columns[a]} and {columns[b]}" for a, b in most)
    title, note = "Centres in two dimensions", "Computed from the released centres alone."
    return (Scatter(title, names, points, np.maximum(sizes, 0), (axes[0], axes[1]), note, dates),)


class Clustering:
    """Base class of tasks whose results are centres and sizes of clusters."""

    dates: Dates = ()
    columnwise: ClassVar[Mapping[str, str]] = {
        "half_width": "Expected error of a centre (95 % of the noise, clusters of equal size)"
    }

    def plan_warnings(self, plan: Plan, forecast: Results) -> Iterator[str]:
        """Warn about clusters and centres of a plan that the noise would hide."""
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
            relative = half_width / (2 * plan.grid.half_range)
            if relative.max() > _CLEAR_CENTRE:
                worst = plan.columns[int(relative.argmax())]
                yield (
                    f"a centre would be uncertain by ± {relative.max():.0%} of the range of column "
                    f"{worst!r}; more records, narrower public bounds, fewer clusters or a larger "
                    "epsilon would help."
                )

    def error_orders(self, plan: Plan) -> Iterator[tuple[str, float]]:
        """Yield names and orders of the error that the paper of a method states."""
        yield from ()

    def category_warning(self, names: Sequence[str]) -> str:
        """Return a warning that columns of several categories would count as numbers."""
        return (
            f"clustering treats the categories of {', '.join(names)} as numbers, by their order "
            "in the schema; leave such a column out, or make a boolean column of each category."
        )

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return the displays of :func:`.centres.centre_displays`."""
        return centre_displays(results, columns, self.dates)

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the number of clusters, their sizes, and those distinct from the noise."""
        k = len(results["centres"])
        many = _NUMERALS[k] if k < len(_NUMERALS) else f"{k:,}"
        title = f"{many} group{'s' * (k != 1)} of {units}"
        warning = records_left_out(results, nominal_n)
        verdict = results.get("verdict")
        known = _distinct_clusters(results) if verdict is None else verdict > 0
        # Sizes of what the noise alone may have made would be read as those of groups.
        lacks = "not determined" if verdict is not None else "not distinct from the noise"
        is_shown = known.any() or not known.size
        _, sizes = estimates_of(results, columns)
        found = f"of about {_sizes(sizes)}" if is_shown else lacks
        return Summary(
            title,
            f"{title}, {found}.",
            reliability(results),
            (warning,) if warning else (),
        )

    def course(self, history: Sequence[Results], ranges: Floats) -> tuple[Table, ...]:
        """Return a table of the centres' moves in each round."""
        return movement(history, ranges)

    def reasons(self, results: Results) -> dict[str, str]:
        """Return why intervals are not known."""
        return dict.fromkeys(_CLAIMS, "the cluster is not determined")

    def tables_of(self, plan: Plan, results: Results, _: Schema) -> dict[str, Table]:
        """Return a table with a row per centre: its noisy size, and its columns with intervals."""
        columns = getattr(
            plan.task, "last_step_columns", plan.columns
        )  # of a pipeline, the last step's
        ends = (cell for name in columns for cell in (name, f"{name} low", f"{name} high"))
        cells = np.stack([results[name] for name in ("centres", "low", "high")], axis=2)
        sizes = results["sizes"], results["size_half_width"], cells.reshape(len(cells), -1)
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (j, *row) for j, row in enumerate(np.column_stack(sizes).tolist())
        )
        headings = ("cluster", "noisy size", "noisy size ±", *ends)
        if "verdict" in results:
            words = verdicts_of(results["verdict"])
            rows = tuple((*row, word) for row, word in zip(rows, words, strict=True))
            headings = (*headings, "verdict")
        return {"centres": Table("Centres", headings, rows)}


def _sizes(sizes: Estimate) -> str:
    """Return the sizes as in the table, largest first, or the smallest and the largest of many."""
    # A noisy size may be negative.
    texts = [
        sizes[j].text.partition(" ")[0] if sizes.values[j] > 0 else "0"
        for j in np.argsort(-sizes.values).tolist()
    ]
    if len(texts) > _MOST_SIZES:
        return f"{texts[-1]} to {texts[0]}"
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def reliability(results: Results) -> str:
    """Return a sentence on the clusters that hold, by their verdicts or by the noise alone."""
    verdict = results.get("verdict")
    if verdict is None:
        return clusters_above_noise(results)
    determined, numbers = (np.flatnonzero(verdict == value) for value in (2, 1))
    k, n = len(verdict), len(determined)
    if n == k:
        return f"All {k} clusters are determined."
    if not n and not len(numbers):
        return f"No cluster of {k} is determined: another release may find other clusters."
    only = ""
    if len(numbers) == 1:
        only = f" The centre of cluster {_listed(numbers)} is known, its border a convention."
    elif len(numbers):
        only = f" Centres of clusters {_listed(numbers)} are known, their borders a convention."
    if not n:
        return f"No group is set apart: the table cuts a cloud.{only}"
    return (
        f"{n} of {k} clusters {'is' if n == 1 else 'are'} determined ({_listed(determined)}).{only}"
    )


def _listed(indices: Integers) -> str:
    return ", ".join(map(str, indices[:10].tolist())) + ", ..." * (len(indices) > 10)


def clusters_above_noise(results: Results) -> str:
    """Return a sentence on the clusters distinct from the noise, or "" for a single cluster."""
    distinct = _distinct_clusters(results)
    k, number = len(distinct), int(distinct.sum())
    if not k:
        return ""
    sentence = f"{number} of {k} clusters {'is' if number == 1 else 'are'} distinct from the noise"
    if number == k:
        return f"{sentence}."
    others = "of the other" if k - number == 1 else "of the others" if number else "of all"
    indices = _listed(np.flatnonzero(~distinct))
    return (
        f"{sentence}: the noisy size {others} ({indices}) does not differ from 0, and the "
        "noise alone could explain the centre."
    )


def none_above_noise(results: Results) -> str:
    """Return a warning if no cluster is distinct from the noise, else ""."""
    distinct = _distinct_clusters(results)
    if not len(distinct) or distinct.any():
        return ""
    return (
        f"no size of {len(distinct)} clusters differs from 0 beyond the noise: treat this as no "
        "clusters found; more records, a larger epsilon, fewer clusters or fewer columns may "
        "show some, in another release."
    )


def _distinct_clusters(results: Results) -> Flags:
    """Return True for each cluster distinct from the noise; empty for fewer than two clusters."""
    if len(results["sizes"]) < 2:
        return np.zeros(0, dtype=bool)
    return above_noise(results["sizes"], _size_noise_of(results))


def records_left_out(results: Results, nominal_n: int) -> str:
    """Return a warning if the noisy sizes sum to far less than the nominal number of records.

    It is "" unless their sum and its 95 % confidence interval are below 85 % of `nominal_n`, which
    may be rounded.
    """
    total = float(results["sizes"].sum())
    # The noises of the sizes are independent, so their half-widths add in squares.
    margin = float(np.linalg.norm(_size_noise_of(results) * np.ones(len(results["sizes"]))))
    if total + margin >= (1 - LEFT_OUT) * nominal_n:
        return ""
    share = min(1 - total / nominal_n, 1.0)
    return (
        f"the noisy sizes sum to {total:,.0f} ± {margin:,.0f}, but nominal_n is {nominal_n:,}: "
        f"about {share:.0%} of the records are in no cluster, or there are fewer than agreed; "
        "another method, start or number of clusters may find them, in another release."
    )


def movement(history: Sequence[Results], ranges: Floats) -> tuple[Table, ...]:
    """Return a table of the released centres' moves in each round; none without known centres.

    `history` has the results before the first round and after each; `ranges` are those of the
    columns.
    """
    if len(history) < 2 or any(not {"centres", "half_width"} <= known.keys() for known in history):
        return ()
    rows = tuple(
        (
            f"round {t + 1}",
            f"{np.abs((after['centres'] - before['centres']) / ranges).mean():.2%}",
            f"{(after.get('noise', after['half_width']) / ranges).mean():.2%}",
        )
        for t, (before, after) in enumerate(pairwise(history))
        if (
            after.get("noise", after["half_width"]) < _WHOLE * ranges
        ).any()  # earlier rounds have found no clusters
    )
    if not rows:
        return ()
    note = (
        "Share of a column's range, mean over centres and columns. If the last move is much larger "
        "than its margin of error, the rounds have not converged."
    )
    return (Table("How far the centres moved", ("", "moved", "margin of error"), rows, note),)
