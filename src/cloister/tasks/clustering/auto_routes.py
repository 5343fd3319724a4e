"""The routes of `auto` without candidates: their choice, their forecasts and their results."""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot, sqrt
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from cloister.core.arrays import Floats, GridState
from cloister.core.errors import PlanError
from cloister.core.numerals import counted
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.privacy.calibration import gdp_mu_for
from cloister.protocol.task import PublicFacts
from cloister.tasks.clustering.auto_grid import GridRoute
from cloister.tasks.clustering.auto_mean import TYPICAL, MeanRoute
from cloister.tasks.clustering.auto_pca import PcaRoute
from cloister.tasks.clustering.clusters import (
    SIZE_ERROR,
    centres_in_units,
    claimed,
    expected_half_widths,
)
from cloister.tasks.clustering.estimation import FIRST_ORDER_ERROR
from cloister.tasks.clustering.fixed_point import MODEL_ERROR, NOT_DETERMINED
from cloister.tasks.clustering.lloyd_kernel import check_exact
from cloister.tasks.intervals import size_interval
from cloister.tasks.options import require_budget

if TYPE_CHECKING:
    from cloister.tasks.clustering.auto import EstimatedRoute
    from cloister.tasks.clustering.auto_finder import FinderRoute

    AnyRoute: TypeAlias = GridRoute | PcaRoute | FinderRoute | EstimatedRoute | MeanRoute

_GRAM_SHARE = 0.28  # share of the second moments that the choice of a route assumes
_DROWNED = 0.55  # hopeless noise of a second moment, in squared radii times the root of k
_SPACE = 3  # largest number of columns for a histogram of the box


def planned_mu(facts: PublicFacts) -> float:
    """Return the GDP parameter of the whole budget, to the digits that a plan stores."""
    budget = require_budget(facts.budget)
    # Rounded, because other hardware may differ in the last bits, and a plan needs one digest.
    return float(f"{gdp_mu_for(budget.epsilon, budget.delta):.12g}")


def check_numbers(n_clusters: int, n_features: int, mu: float, frac_bits: int) -> None:
    """Raise PlanError for numbers of which a route cannot be made."""
    if not isinstance(mu, float):  # 1 and 1.0 would be plans of two digests
        raise PlanError(f"mu must be a float, got {mu!r}; design the task again.")
    check_exact(n_clusters, n_features, frac_bits)


def route_of(
    n_clusters: int,
    n_features: int,
    nominal_n: int,
    mu: float,
    frac_bits: int,
    public_seed: int,
    *,
    whole_box: bool = False,
) -> GridRoute | PcaRoute | MeanRoute:
    """Return the route; with `whole_box`, its histogram covers the box and not the bulk."""
    values = (n_clusters, n_features, nominal_n, mu, frac_bits, public_seed)
    if n_clusters > 1 and n_features <= _SPACE:
        return GridRoute(*values, whole_box=whole_box)
    # One cluster has no directions to find, and noise above the signal hides all of them.
    if n_clusters == 1 or drowned(n_clusters, n_features, nominal_n, mu) > 1:
        return MeanRoute(*values)
    return PcaRoute(*values)


def drowned(n_clusters: int, n_features: int, nominal_n: int, mu: float) -> float:
    """Return the noise over the largest noise at which a group can be found.

    Above 1 all centres except the mean are independent of the records. It halves if `mu` or
    `nominal_n` doubles.
    """
    if n_clusters == 1 or n_features <= _SPACE:
        return 0.0
    noise = sqrt(n_clusters * n_features / 2 / _GRAM_SHARE)
    return noise / (mu * nominal_n * _DROWNED)


def described(route: AnyRoute) -> str:
    """Describe the sums and releases of a route in a plain sentence."""
    return (
        f"{counted(route.rounds, 'round')} of k-means with {counted(route.n_clusters, 'cluster')}: "
        f"{route.releases}, all with Gaussian noise."
    )


def forecast_of(
    route: AnyRoute,
    noise_std: float,
    nominal_n: int,
    grid: Grid,
) -> Mapping[str, Floats]:
    """Return the forecast of a route, as in :meth:`Auto.forecast`."""
    noise = noise_std / (1 << route.frac_bits)
    if isinstance(route, MeanRoute):
        half = size_interval(noise * route.stretch * TYPICAL * sqrt(route.n_features))
        # The other centres of a plan are around the mean, independently of the records.
        known = half / nominal_n if route.n_clusters == 1 else 1.0
        widths = {"half_width": known * grid.half_range}
        # Without a count, any size up to all records is possible.
        size = size_interval(_count_std(route, noise)) if route.has_counts else float(nominal_n)
        return {**widths, "size_half_width": np.array([size])}
    share = nominal_n / route.n_clusters
    expected = expected_half_widths(
        share,
        grid,
        sum_std=noise * TYPICAL * sqrt(route.n_features),
        count_std=_count_std(route, noise),
    )
    if not route.judges:
        return {**expected, "half_width": grid.half_range}
    # Of clusters that are apart; the interval also has the error of the surrogate, or of J.
    error = hypot(1, MODEL_ERROR) if isinstance(route, GridRoute) else FIRST_ORDER_ERROR
    return {
        "half_width": expected["half_width"] * error,
        "size_half_width": np.hypot(expected["size_half_width"], SIZE_ERROR * share),
    }


def has_verdicts(route: AnyRoute) -> bool:
    """Return True if the last round of a route judges clusters."""
    return not isinstance(route, MeanRoute) and route.judges


def _count_std(route: AnyRoute, noise: float) -> float:
    """Return the standard deviation of a count for that of a sum in the last round."""
    blocks = route.blocks(route.rounds - 1)
    return noise * sqrt(blocks[0].weight / blocks[-1].weight)


def results_of(route: AnyRoute, state: GridState, grid: Grid) -> Mapping[str, Floats]:
    """Return the results of a route, as in :meth:`Auto.results`."""
    results = {
        **centres_in_units(state, grid, route.frac_bits),
        "spreads": np.outer(route.spreads(state), grid.half_range),
    }
    if route.judges:
        results["verdict"] = from_grid(state["verdict"], route.frac_bits)
    elif route.n_clusters > 1:
        shape = results["centres"].shape
        results["verdict"] = np.full(shape[0], NOT_DETERMINED)
        # The noise of the last round is a small part of the error.
        for name, end in {"low": -1.0, "high": 1.0}.items():
            results[name] = grid.decode(np.full(shape, end))
        results["half_width"] = np.broadcast_to(grid.half_range, shape)
    return claimed(results) if "verdict" in results else results
