"""Public starting centres: functions of a public seed, never of a record."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.randomness import public_generator

_TRIES = 100  # a radius is too large after as many consecutive rejected candidates
_HALVINGS = 20
_BISECTIONS = 6
_UNIFORM_DRAWS = 32


@lru_cache(maxsize=256)
def _sphere_packing(n_clusters: int, n_features: int, public_seed: int) -> bytes:
    """Return the bytes of :func:`sphere_packing`, cached."""
    # Bytes, because a caller could change a cached array.
    if n_clusters == 1:
        return np.zeros((1, n_features)).tobytes()
    rng = public_generator(public_seed, "sphere-packing", n_clusters, n_features)
    arrangements: list[Floats] = []

    def attempt(radius: float) -> bool:
        centres = _pack(n_clusters, n_features, radius, rng)
        if centres is not None:
            arrangements.append(centres)
        return centres is not None

    for larger, radius in pairwise(2.0 * 0.5**i for i in range(_HALVINGS + 1)):
        if attempt(radius):
            low, high = radius, larger
            # In many dimensions a large radius pushes the centres into the middle of the box. The
            # largest radius may not be the best, so the arrangements are compared below.
            for _ in range(_BISECTIONS):
                middle = (low + high) / 2
                low, high = (middle, high) if attempt(middle) else (low, middle)
            break
    if not arrangements:
        arrangements = [rng.uniform(-1, 1, (n_clusters, n_features)) for _ in range(_UNIFORM_DRAWS)]
    return max(arrangements, key=min_separation).tobytes()


def sphere_packing(n_clusters: int, n_features: int, public_seed: int = 0) -> Floats:
    """Return centres in ``[-1, 1]^d`` with disjoint spheres around them.

    Of all tried radii, the arrangement with the largest minimum distance is returned; for one
    cluster, the middle of the box. Every party with the same seed gets the same centres.

    References
    ----------
    Su, Cao, Li, Bertino, Jin, "Differentially Private K-Means Clustering", CODASPY 2016,
    section 4.1; here with a search for larger radii and a bounded number of radii.
    """
    centres = np.frombuffer(_sphere_packing(n_clusters, n_features, public_seed))
    return centres.reshape(n_clusters, n_features).copy()


def min_separation(centres: Floats) -> float:
    """Return the smallest distance between two centres; infinity for one."""
    gaps = [np.linalg.norm(centres[i + 1 :] - row, axis=1) for i, row in enumerate(centres[:-1])]
    return float(min((gap.min() for gap in gaps), default=np.inf))


def _pack(
    n_clusters: int, n_features: int, radius: float, rng: np.random.Generator
) -> Floats | None:
    """Place centres one by one, `radius` from the box's edge and 2 `radius` from each other."""
    room = 1 - radius
    if room < 0:
        return None
    centres = np.empty((n_clusters, n_features))
    for n_placed in range(n_clusters):
        for candidate in rng.uniform(-room, room, (_TRIES, n_features)):
            if (((centres[:n_placed] - candidate) ** 2).sum(axis=1) >= 4 * radius**2).all():
                centres[n_placed] = candidate
                break
        else:
            return None
    return centres
