"""k-means of public weighted points in whole numbers, the same on every machine.

Coordinates are multiples of ``2**-BITS``, masses are fractions of `WHOLE`, and centres are rounded
after every step. Sums of products are then integers that a float64 holds, and costs are integers
that an int64 holds. So neither the order of addition nor a tie depends on the library.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, frexp, ldexp, log2

import numpy as np

from cloister.core.arrays import Floats, Integers
from cloister.core.randomness import public_generator
from cloister.tasks.clustering.lloyd_kernel import nearest_centres, two_nearest

BITS = 16
ONE = 1 << BITS
WHOLE = 1 << 26  # costs in up to seven columns stay below 2**63
_TRIALS = 4  # candidates per centre in greedy seeding
_FEW_STEPS = 10
_PLACES, _LOSERS = 32, 6  # candidate positions, and candidate centres to move there
_PAYS = 0.02  # smallest saving by a moved centre, as a share of a cluster's cost


def on_lattice(coordinates: Floats) -> Integers:
    """Round coordinates of the box [-1, 1] to whole steps."""
    return np.rint(coordinates * ONE).astype(np.int64)


def parts_of(weights: Floats) -> Integers:
    """Return masses proportional to weights, with a sum of about `WHOLE`.

    At least one weight is positive.
    """
    masses: Integers = np.rint(weights * (WHOLE / weights.sum())).astype(np.int64)
    return masses


def cluster(
    points: Integers, masses: Integers, n_clusters: int, *, public_seed: int, restarts: int
) -> Integers:
    """Return centres of weighted points: the best of several starts, repaired.

    If fewer points than clusters have a mass, these points are repeated.

    Parameters
    ----------
    points : ndarray of shape (n_points, n_features), steps of the lattice
        At most seven columns, or a coarser lattice: see :func:`best_centres`.
    masses : ndarray of shape (n_points,), >= 0, at least one positive
    n_clusters : int
    public_seed : int
    restarts : int

    Returns
    -------
    ndarray of shape (n_clusters, n_features), steps of the lattice
    """
    used = masses > 0
    points, masses = points[used], masses[used]
    if len(points) <= n_clusters:
        return points[np.arange(n_clusters) % len(points)]
    rng = public_generator(public_seed, "restarts")
    starts = (seeded(points, masses, n_clusters, rng) for _ in range(restarts))
    candidates = [lloyd(points, masses, start) for start in starts]
    return repaired(points, masses, min(candidates, key=lambda c: cost(points, masses, c)))


def best_centres(
    points: Floats, weights: Floats, n_clusters: int, *, public_seed: int, restarts: int
) -> Floats:
    """Return :func:`cluster` of points with real coordinates, which are rounded to a lattice."""
    steps, unit = _in_steps(points)
    masses = parts_of(weights)
    found = cluster(steps, masses, n_clusters, public_seed=public_seed, restarts=restarts)
    return np.asarray(found * unit)


def many_centres(points: Floats, weights: Floats, n_clusters: int, *, public_seed: int) -> Floats:
    """Return centres of weighted points where any good ones do: one start, and a few steps.

    If fewer points than clusters have a weight, these points are repeated.
    """
    steps, unit = _in_steps(points[weights > 0])
    if len(steps) <= n_clusters:
        return np.asarray(steps[np.arange(n_clusters) % len(steps)] * unit)
    masses = parts_of(weights[weights > 0])
    start = seeded(steps, masses, n_clusters, public_generator(public_seed, "restarts"))
    return np.asarray(lloyd(steps, masses, start, _FEW_STEPS) * unit)


def _in_steps(points: Floats) -> tuple[Integers, float]:
    """Return points on a lattice whose costs are exact, and its step."""
    bits = min(BITS, (34 - ceil(log2(points.shape[1]))) // 2)
    # A power of two, which the last bits of a coordinate do not change: all parties use the same.
    unit = ldexp(1.0, frexp(float(np.abs(points).max()))[1] - bits)
    return np.rint(points / unit).astype(np.int64), unit


def seeded(
    points: Integers, masses: Integers, n_clusters: int, rng: np.random.Generator
) -> Integers:
    """Choose starting centres far from each other; greedy k-means++.

    References
    ----------
    Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.
    """
    pairs = _Pairs.of(points)
    chosen = [int(rng.choice(len(points), p=masses / masses.sum()))]
    least = pairs.squared(chosen[0])
    for _ in range(1, n_clusters):
        tried = _at(masses * least, rng.uniform(size=_TRIALS))
        closer = np.minimum(least, pairs.squared(tried))
        best = int((closer @ masses).argmin())
        chosen.append(int(tried[best]))
        least = closer[best]
    return points[chosen]


def lloyd(points: Integers, masses: Integers, centres: Integers, steps: int = 30) -> Integers:
    """Run Lloyd's algorithm for at most `steps` steps, or until no centre moves."""
    records, moments = points.astype(np.int32), _moments(points, masses)
    largest = int(np.abs(points).max(initial=1))
    for _ in range(steps):
        labels = nearest_centres(records, centres, largest)
        moved = np.rint(_means(moments, labels, otherwise=centres)).astype(np.int64)
        if np.array_equal(moved, centres):
            break
        centres = moved
    return centres


def means(
    points: Integers, masses: Integers, labels: Integers, otherwise: Integers | Floats
) -> Floats:
    """Return the mean of the points of each label, or `otherwise` for a label without mass."""
    return _means(_moments(points, masses), labels, otherwise)


def _moments(points: Integers, masses: Integers) -> Floats:
    """Return the masses of points, then each column times them; whole numbers below 2**53."""
    return np.vstack([masses, masses * points.T]).astype(np.float64)


def _means(moments: Floats, labels: Integers, otherwise: Integers | Floats) -> Floats:
    k, rows = len(otherwise), len(moments)
    cells = labels + k * np.arange(rows)[:, None]  # one call for all rows, which are often short
    sums = np.bincount(cells.ravel(), moments.ravel(), minlength=k * rows).reshape(rows, k).T
    mass = sums[:, :1]
    return np.where(mass > 0, sums[:, 1:] / np.maximum(mass, 1), otherwise)


def cost(points: Integers, masses: Integers, centres: Integers) -> int:
    """Return the sum of squared distances to the nearest centre times masses; exact."""
    _, _, least, _ = two_nearest(points.astype(np.int32), centres)
    return int(least @ masses)


def repaired(points: Integers, masses: Integers, centres: Integers) -> Integers:
    """Move a nearly superfluous centre to a position with large cost, as long as that pays.

    This repairs a failure of Lloyd's algorithm: two centres share a cluster, and two clusters share
    a centre.
    """
    k = len(centres)
    if k == 1:
        return centres
    least_cost = cost(points, masses, centres)
    for _ in range(2 * k):  # a bound on the work; the loop usually ends when no move pays
        fresh = lloyd(points, masses, _exchanged(points, masses, centres))
        fresh_cost = cost(points, masses, fresh)
        if fresh_cost > (1 - _PAYS / k) * least_cost:
            break
        centres, least_cost = fresh, fresh_cost
    return centres


def _exchanged(points: Integers, masses: Integers, centres: Integers) -> Integers:
    """Return the centres after the single move with the largest saving."""
    labels, _, least, second = two_nearest(points.astype(np.int32), centres)
    # The cost of removing a centre: its points go to their second nearest one.
    removal_costs = np.bincount(labels, masses * (second - least), minlength=len(centres))
    positions = _at(masses * least, (np.arange(_PLACES) + 0.5) / _PLACES)
    reach = _Pairs.of(points).squared(positions)
    best, choice = -np.inf, (0, 0)
    for loser in np.argsort(removal_costs, kind="stable")[:_LOSERS].tolist():
        without = np.where(labels == loser, second, least)
        saved = np.maximum(without - reach, 0) @ masses
        position = int(saved.argmax())
        if saved[position] - removal_costs[loser] > best:
            best, choice = float(saved[position] - removal_costs[loser]), (loser, position)
    fresh = centres.copy()
    fresh[choice[0]] = points[positions[choice[1]]]
    return fresh


@dataclass(frozen=True)
class _Pairs:
    """Points as factors of a product of matrices that has their squared distances.

    All terms are whole numbers and partial sums are below 2**53, so the product is exact.
    """

    rows: Floats
    columns: Floats

    @classmethod
    def of(cls, points: Integers) -> _Pairs:
        reals = points.astype(np.float64)
        norms, ones = np.einsum("ij,ij->i", reals, reals), np.ones(len(points))
        rows = np.column_stack([reals, norms, ones])
        return cls(rows, np.vstack([-2 * reals.T, ones, norms]))

    def squared(self, at: int | Integers) -> Integers:
        """Return the squared distances of the points with these indices to all points."""
        return np.asarray(self.rows[at] @ self.columns).astype(np.int64)


def squared(points: Integers, centres: Integers) -> Integers:
    """Return squared lengths of the differences of points and centres, which broadcast."""
    squares: Integers = (points[..., 0] - centres[..., 0]) ** 2
    for j in range(1, points.shape[-1]):
        squares += (points[..., j] - centres[..., j]) ** 2
    return squares


def _at(weights: Integers, parts: Floats) -> Integers:
    """Return the indices at which the cumulated weights reach given shares of their sum."""
    heights = np.cumsum(weights)
    indices = np.searchsorted(heights, parts * heights[-1], "right")
    return np.asarray(np.minimum(indices, len(weights) - 1))
