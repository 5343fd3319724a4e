"""How far max cover can be from the optimum, and how far every private clustering must be.

``python -m cloister_lab.curator.bounds -k 3 -d 2 -n 100000 --epsilon 1`` prints both. Proofs are in
docs/proofs/max_cover_bounds.md. Constants are ours: the paper [NCX21]_ states orders. All errors
are sums of squared distances in the box ``[-1, 1]^d``.

References
----------
.. [NCX21] Nguyen, Chaturvedi, Xu, "Differentially Private k-Means via Exponential Mechanism and
   Max Cover", AAAI 2021, arXiv:2009.01220.
.. [GLMRT10] Gupta, Ligett, McSherry, Roth, Talwar, "Differentially Private Combinatorial
   Optimization", SODA 2010: the exponential mechanism in a greedy cover.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from cloister.app.least_error import least_error
from cloister.core.errors import PlanError
from cloister.privacy.budget import Budget
from cloister.protocol.task import COUNT_BITS
from cloister_lab.curator.max_cover import MaxCover
from cloister_lab.tasks.max_cover import published_order


@dataclass(frozen=True)
class Bound:
    """An error is at most ``factor * OPT + additive``, where OPT is the least error of k centres.

    Parameters
    ----------
    factor, additive : float
        The additive part is a sum of squared distances, not a mean.
    """

    factor: float
    additive: float


def pick_loss(balls: int, pick_epsilon: float, beta: float) -> float:
    """Return how many records fewer than the fullest ball a drawn ball holds, at most.

    Except with probability `beta`, for one pick among `balls`.
    """
    return 2 / pick_epsilon * log(balls / beta)


def greedy_share(n_clusters: int, picks: int) -> float:
    """Return the part of a cover by `n_clusters` balls that `picks` exact greedy balls may miss."""
    return float((1 - 1 / n_clusters) ** picks)


def ball_bound(method: MaxCover, nominal_n: int, beta: float = 0.05) -> Bound:
    """Return a bound on the error of the drawn balls as centres, except with probability `beta`.

    Raises
    ------
    PlanError
        With more columns than axes: a public projection has no bound for each table.
    """
    if method.n_features != method.n_axes:
        raise PlanError(
            f"a bound needs one axis for each column, got {method.n_axes} axes for "
            f"{method.n_features} columns; use at most five columns."
        )
    k, grids = method.n_clusters, method.grids
    missed = greedy_share(k, k)
    losses = [pick_loss(g.size, method.pick_epsilon, beta / (k * len(grids))) for g in grids]
    squares = [4.0**-i for i in reversed(range(len(grids)))]  # of the radii, the last of them 1
    # A record is within 2 r of the ball that holds it, and within the box of any ball.
    steps = [4 * (b - a) for a, b in zip(squares, (*squares[1:], method.n_axes), strict=True)]
    # Cost of a record that is not covered at radius j, there and at the radii behind it.
    later = [
        sum(step * missed**power for power, step in enumerate(steps[j:])) for j in range(len(steps))
    ]
    factors = np.cumsum([(1 - missed) * weight for weight in later]) / squares
    additive = sum(
        weight * (1 - missed) * k * loss for weight, loss in zip(later, losses, strict=True)
    )
    return Bound(float(factors.max()), additive + nominal_n * (4 * squares[0] + missed * later[0]))


def count_loss(method: MaxCover, beta: float = 0.05) -> float:
    """Return by how many records all weights of the balls together are wrong, at most.

    After the projection to weights that are not negative, except with probability `beta`.
    """
    m = method.n_clusters * method.n_radii
    b = method.count_multiplier + 2.0**-COUNT_BITS  # as the scale is rounded up
    each = b * log(4 * m / beta)
    # Chernoff's bound on the sum, at the best of many exponents.
    s = np.linspace(0.001, 0.999, 999) / b
    total = float(((log(4 / beta) - m * np.log1p(-((s * b) ** 2))) / s).min())
    return sqrt(m) * (sqrt(m) * each + total) + total


def group_bound(method: MaxCover, nominal_n: int, beta: float = 0.05, solver: float = 1.0) -> Bound:
    """Return a bound on the error of the k groups of balls, except with probability `beta`.

    Parameters
    ----------
    solver : float, >= 1
        How many times the optimum the clustering of the weighted balls may cost.
    """
    balls, d = ball_bound(method, nominal_n, beta / 2), method.n_axes
    counts = 4 * d * count_loss(method, beta / 2)
    return Bound(
        2 * balls.factor + 4 * solver * (1 + balls.factor),
        (2 + 4 * solver) * balls.additive + 2 * (1 + solver) * counts,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Print the bounds of one budget."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for short, name in (("-k", "--clusters"), ("-d", "--columns"), ("-n", "--records")):
        parser.add_argument(short, name, type=int, required=True)
    parser.add_argument("--epsilon", type=float, required=True)
    parser.add_argument("--delta", type=float, default=1e-6)
    args = parser.parse_args(argv)
    k, d, n, budget = args.clusters, args.columns, args.records, Budget(args.epsilon, args.delta)
    method = MaxCover.design(n_clusters=k, n_features=d, nominal_n=n, budget=budget)
    worst = 4.0 * d * n
    lines = [
        f"largest possible error       {worst:.4g}",
        f"every method, on some table  {least_error(k, d, budget, n):.4g} and OPT = 0",
        f"published order              {published_order(k, d, n, budget):.4g}, constants 1",
    ]
    for name, bound in (("balls", ball_bound(method, n)), ("groups", group_bound(method, n))):
        says = "" if bound.additive < worst else ", which says nothing"
        lines.append(f"max cover, {name:<18}{bound.factor:.4g} OPT + {bound.additive:.4g}{says}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
