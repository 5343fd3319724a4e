"""``Clustering``: what k-means tasks say of their centres and sizes, before and after a release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from cloister.core.arrays import Flags, Floats, Results
from cloister.core.display import Display, Summary, Table
from cloister.tasks.clustering.centres import centre_displays
from cloister.tasks.intervals import above_noise

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
        columns = getattr(plan.task, "reaching", plan.columns)  # of a pipeline, the last step's
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
