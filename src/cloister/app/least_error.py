"""A lower bound on the error of k-means that holds for every private method.

Theorem 3 of docs/proofs/max_cover_bounds.md. Errors are sums of squared distances in the box
``[-1, 1]^d``.
"""

from __future__ import annotations

from math import exp, inf, log, log1p

import numpy as np

from cloister.core.errors import PlanError
from cloister.privacy.budget import Budget

_MOST_SITES = 64  # on an axis; more are closer than any useful number of records needs


def least_error(n_clusters: int, n_features: int, budget: Budget, max_records: int) -> float:
    """Return an error that every private method has on some table with an optimum of zero.

    The largest of :func:`sites_error` over sites on a grid and numbers of records at a site.

    Parameters
    ----------
    max_records : int
        Of the table; the bound may use fewer.
    """
    best = 0.0
    for side in range(2, _MOST_SITES + 1):
        most = max_records // n_clusters
        if n_clusters >= side**n_features or most < 1:
            continue
        # As many as the privacy of a group allows; more only help to find the sites.
        useful = 1 + int((n_features * log(side) + 2) / budget.epsilon)
        for records in np.unique(np.geomspace(1, min(most, useful), 64).astype(np.int64)):
            error = sites_error(n_clusters, n_features, side, int(records), budget)
            best = max(best, error)
    return best


def sites_error(n_clusters: int, n_features: int, side: int, records: int, budget: Budget) -> float:
    """Return the least worst error for `records` copies of each of `n_clusters` of all sites.

    The sites are the points of a grid of `side` points on each axis of the box. Every method that
    is private under addition or removal of one record has at least this expected error for one
    choice of sites. The optimum of each choice is 0.
    """
    if n_clusters >= side**n_features:
        raise PlanError(
            f"n_clusters must be below the number of sites, got {n_clusters} of "
            f"{side**n_features}; take a larger side."
        )
    log_sites = n_features * log(side)
    # log(sites - k) - log k, for numbers of sites beyond floats
    log_free = log_sites + log1p(-n_clusters * exp(-log_sites)) - log(n_clusters)
    steps = 2 * records * budget.epsilon
    group_delta = _group_delta(budget, 2 * records)
    if group_delta >= 1:
        return 0.0
    found = 1 / (1 + exp(log_free - steps)) if log_free - steps < 700 else 0.0
    missed = (1 - group_delta) * (1 - found)
    return n_clusters * records * missed / (side - 1) ** 2


def _group_delta(budget: Budget, records: int) -> float:
    """Return delta of a group of records, which differ one after another."""
    growth = records * budget.epsilon
    if budget.delta == 0:
        return 0.0
    if growth > 700:
        return inf
    return budget.delta * float(np.expm1(growth) / np.expm1(budget.epsilon))
