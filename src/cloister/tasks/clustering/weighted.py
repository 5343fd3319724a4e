"""k-means of public weighted points in whole numbers, the same on every machine.

Coordinates are multiples of ``2**-BITS``, masses are parts of `WHOLE`, centres are rounded after
every step. Sums of products are then integers that a float64 holds, and costs integers that an
int64 holds, so neither the order of adding nor a tie is a matter of the library that adds.
"""

from __future__ import annotations

import numpy as np

from cloister.core.arrays import Floats, Integers
from cloister.core.randomness import public_generator
from cloister.tasks.clustering.lloyd_kernel import nearest_centres

BITS = 16
ONE = 1 << BITS
WHOLE = 1 << 26  # with which costs in up to seven columns stay below 2**63
_TRIALS = 4  # candidates of which greedy seeding takes the best
_PLACES, _LOSERS = 32, 6  # places for a centre, and centres that may go there
_PAYS = 0.02  # of a cluster's part of the cost is what moving a centre must save


def on_lattice(coordinates: Floats) -> Integers:
    """Round coordinates of the box [-1, 1] to whole steps."""
    return np.rint(coordinates * ONE).astype(np.int64)


def parts_of(weights: Floats) -> Integers:
    """Return masses in the ratio of weights, of which one is positive; about `WHOLE` together."""
    parts: Integers = np.rint(weights * (WHOLE / weights.sum())).astype(np.int64)
    return parts


def cluster(
    points: Integers, masses: Integers, n_clusters: int, *, public_seed: int, restarts: int
) -> Integers:
    """Return centres of weighted points: the best of several starts, repaired.

    Where fewer points than clusters have a mass, those points are repeated.

    Parameters
    ----------
    points : ndarray of shape (n_points, n_features), at most seven columns, steps of the lattice
    masses : ndarray of shape (n_points,), >= 0, of which one is positive
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
    found = [lloyd(points, masses, start) for start in starts]
    return repaired(points, masses, min(found, key=lambda c: cost(points, masses, c)))


def seeded(
    points: Integers, masses: Integers, n_clusters: int, rng: np.random.Generator
) -> Integers:
    """Choose starting centres far from each other; greedy k-means++.

    References
    ----------
    Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.
    """
    points = np.asfortranarray(points)  # a column in one piece
    chosen = [int(rng.choice(len(points), p=masses / masses.sum()))]
    least = _squared(points, points[chosen[0]])
    for _ in range(1, n_clusters):
        tried = _at(masses * least, rng.uniform(size=_TRIALS))
        closer = np.minimum(least, _squared(points, points[tried, None]))
        best = int((closer @ masses).argmin())
        chosen.append(int(tried[best]))
        least = closer[best]
    return points[chosen]


def lloyd(points: Integers, masses: Integers, centres: Integers, steps: int = 30) -> Integers:
    """Run Lloyd's algorithm for so many steps, or until nothing moves."""
    records = points.astype(np.int32)
    for _ in range(steps):
        labels = nearest_centres(records, centres)
        moved = np.rint(means(points, masses, labels, otherwise=centres)).astype(np.int64)
        if np.array_equal(moved, centres):
            break
        centres = moved
    return centres


def means(
    points: Integers, masses: Integers, labels: Integers, otherwise: Integers | Floats
) -> Floats:
    """Return the mean of the points of each label, or something else for one without mass."""
    k = len(otherwise)
    mass = np.bincount(labels, masses, minlength=k)[:, None]
    sums = [np.bincount(labels, masses * column, minlength=k) for column in points.T]
    return np.where(mass > 0, np.stack(sums, axis=-1) / np.maximum(mass, 1), otherwise)


def cost(points: Integers, masses: Integers, centres: Integers) -> int:
    """Return the sum of squared distances to the nearest centre times masses; exact."""
    labels = nearest_centres(points.astype(np.int32), centres)
    return int(_squared(points, centres[labels]) @ masses)


def repaired(points: Integers, masses: Integers, centres: Integers) -> Integers:
    """Move a centre that is hardly missed to where one is missed, for as long as that pays.

    That mends what Lloyd's algorithm cannot: two centres share a cluster, and two clusters a
    centre.
    """
    k = len(centres)
    if k == 1:
        return centres
    points = np.asfortranarray(points)
    least_cost = cost(points, masses, centres)
    for _ in range(2 * k):
        fresh = lloyd(points, masses, _exchanged(points, masses, centres))
        fresh_cost = cost(points, masses, fresh)
        if fresh_cost > (1 - _PAYS / k) * least_cost:
            break
        centres, least_cost = fresh, fresh_cost
    return centres


def _exchanged(points: Integers, masses: Integers, centres: Integers) -> Integers:
    """Return centres of which one has moved to where that saves most."""
    distances = _squared(points[:, None], centres)
    labels = distances.argmin(axis=1)
    least, second = np.partition(distances, 1, axis=1)[:, :2].T
    missed = np.bincount(labels, masses * (second - least), minlength=len(centres))
    places = points[_at(masses * least, (np.arange(_PLACES) + 0.5) / _PLACES)]
    reach = _squared(points, places[:, None])
    best, choice = -np.inf, (0, 0)
    for loser in np.argsort(missed, kind="stable")[:_LOSERS].tolist():
        without = np.where(labels == loser, second, least)
        saved = np.maximum(without - reach, 0) @ masses
        place = int(saved.argmax())
        if saved[place] - missed[loser] > best:
            best, choice = float(saved[place] - missed[loser]), (loser, place)
    fresh = centres.copy()
    fresh[choice[0]] = places[choice[1]]
    return fresh


def _squared(points: Integers, centres: Integers) -> Integers:
    """Return squared lengths of the differences of points and centres; they broadcast."""
    found: Integers = (points[..., 0] - centres[..., 0]) ** 2
    for j in range(1, points.shape[-1]):
        found += (points[..., j] - centres[..., j]) ** 2
    return found


def _at(weights: Integers, parts: Floats) -> Integers:
    """Return the points at which so large parts of the sum of all weights are reached."""
    heights = np.cumsum(weights)
    places = np.searchsorted(heights, parts * heights[-1], "right")
    return np.asarray(np.minimum(places, len(weights) - 1))
