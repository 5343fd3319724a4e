"""What the released sizes say of a clustering as a whole; of released values alone, so free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from cloister.core.arrays import Flags, Floats
from cloister.core.display import Table
from cloister.tasks.intervals import above_noise

LEFT_OUT = 0.15
"""Share of the nominal records that may be missing unsaid, since that number may be rounded."""

_WHOLE = 0.499  # of a column's range: an interval of such a half is the whole box
_SIZES = {"centres", "sizes", "size_half_width"}


def clusters_above_noise(results: Mapping[str, Floats]) -> str:
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


def none_above_noise(results: Mapping[str, Floats]) -> str:
    """Say that no cluster stands out of the noise; nothing if one does, or of a single cluster."""
    known = _standing_out(results)
    if not len(known) or known.any():
        return ""
    return (
        f"none of {len(known)} clusters stands out of the noise: take it that no group "
        "was found; more records, a larger epsilon, fewer clusters or fewer columns may show some, "
        "in a release of its own."
    )


def _standing_out(results: Mapping[str, Floats]) -> Flags:
    """Return which clusters stand out of the noise; nothing of fewer than two."""
    if not results.keys() >= _SIZES or len(results["sizes"]) < 2:
        return np.zeros(0, dtype=bool)
    return above_noise(results["sizes"], results["size_half_width"])


def records_left_out(results: Mapping[str, Floats], nominal_n: int) -> str:
    """Say that the noisy sizes sum to far less than the nominal number of records.

    Nothing unless their sum and its 95 % confidence interval are below 85 % of `nominal_n`, which
    may be rounded.
    """
    if not results.keys() >= _SIZES:
        return ""
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


def movement(history: Sequence[Mapping[str, Floats]], ranges: Floats) -> tuple[Table, ...]:
    """Return how far released centres moved in each round; nothing for a task without centres.

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
