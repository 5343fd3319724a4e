"""Mixtures of normal clusters with a stated degree of separation, after clusterGeneration.

References
----------
.. [QJ06a] W. Qiu and H. Joe, "Generation of random clusters with specified degree of separation",
   Journal of Classification 23, 2006; sections 2 and 3.
.. [QJ06b] W. Qiu and H. Joe, "Separation index and partial membership for clustering",
   Computational Statistics & Data Analysis 50, 2006.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import numpy as np

from cloister.core.errors import PlanError
from cloister.core.randomness import public_generator
from cloister.protocol.task import Floats
from cloister_lab.experiments.datasets import Dataset, min_max

TAIL_QUANTILE = 1.959963984540054
"""Of the standard normal law at 1 - 0.05/2: a cluster is the middle 95 % of its projection."""

EIGENVALUES = (1.0, 10.0)
"""Range of the variances along a cluster's axes; clusterGeneration's defaults."""

OUTLIER_REACH = 4.0
"""Outliers are uniform within so many standard deviations of each column's mean."""

_STEPS = 200  # of the fixed point
_TRIES = 20_000  # places tried for one cluster


@dataclass(frozen=True)
class Mixture:
    """Normal clusters whose nearest neighbours are all equally well separated.

    Parameters
    ----------
    n_samples : int, >= n_clusters
        Outliers are added to these.
    separation : float in (-1, 1)
        The degree of separation J* of every cluster from its nearest neighbour.
    seed : int
        Public.
    equal : bool
        Clusters of equal size, rather than of sizes in the ratio 1:2:...:k.
    vary : float in [0, 1)
        Equal sizes are multiplied by uniform factors in ``[1 - vary, 1 + vary]``.

    Notes
    -----
    Covariances have uniform eigenvalues in a random basis. Clusters are placed one by one: each at
    a random direction from a random earlier one, exactly as far as the separation asks, and again
    if it comes nearer than that to any other.
    """

    n_samples: int
    n_features: int
    n_clusters: int
    separation: float
    outliers: int = 0
    seed: int = 0
    equal: bool = False
    vary: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.n_clusters <= self.n_samples:
            raise PlanError(
                f"n_clusters must be in [1, n_samples={self.n_samples}], got {self.n_clusters}."
            )
        if not -1 < self.separation < 1:
            raise PlanError(f"separation must be in (-1, 1), got {self.separation}.")

    @property
    def name(self) -> str:
        """What the data set is called; it says every parameter."""
        sizes = ("-equal" if self.equal else "") + (f"-v{self.vary:g}" if self.vary else "")
        return (
            f"mix-n{self.n_samples}-d{self.n_features}-k{self.n_clusters}"
            f"-j{self.separation:.4g}-o{self.outliers}-s{self.seed}{sizes}"
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of records of each cluster."""
        k = self.n_clusters
        if self.equal and self.vary:
            rng = public_generator(self.seed, "mixture", self.name, "sizes")
            factors = rng.uniform(1 - self.vary, 1 + self.vary, k)
            return tuple(np.rint(factors * self.n_samples / k).astype(int).tolist())
        shares = np.ones(k) if self.equal else np.arange(1, k + 1)
        ends = np.rint(np.cumsum(shares) / shares.sum() * self.n_samples).astype(int)
        return tuple(np.diff(ends, prepend=0).tolist())

    def clusters(self) -> tuple[Floats, Floats]:
        """Return the means (k, d) and covariances (k, d, d) of the clusters."""
        means, axes = self._place()
        return means, axes @ axes.swapaxes(1, 2)

    def draw(self) -> Floats:
        """Return the records, shape (n_samples + outliers, n_features), outliers last."""
        means, axes = self._place()
        rng = public_generator(self.seed, "mixture", self.name, "records")
        parts = [
            mean + rng.standard_normal((size, self.n_features)) @ axis.T
            for mean, axis, size in zip(means, axes, self.sizes, strict=True)
        ]
        records = np.concatenate(parts)
        middle, reach = records.mean(axis=0), OUTLIER_REACH * records.std(axis=0)
        far = rng.uniform(-1, 1, (self.outliers, self.n_features)) * reach + middle
        return np.concatenate([records, far])

    def dataset(self) -> Dataset:
        """Return the records scaled column by column, as the papers do."""
        return min_max(self.draw(), self.name, self.n_clusters)

    def _place(self) -> tuple[Floats, Floats]:
        """Return the means, and matrices whose squares are the covariances."""
        rng = public_generator(self.seed, "mixture", self.name, "clusters")
        d, k = self.n_features, self.n_clusters
        axes = np.empty((k, d, d))
        for index in range(k):
            basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
            axes[index] = basis * np.sqrt(rng.uniform(*EIGENVALUES, d))
        covariances = axes @ axes.swapaxes(1, 2)
        means = np.zeros((k, d))
        for index in range(1, k):
            for _ in range(_TRIES):
                parent = int(rng.integers(index))
                step = rng.standard_normal(d)
                # J grows with the distance, so one projection gives the distance of the asked J
                unit = _ratio(step, covariances[parent], covariances[index])
                asked = (1 + self.separation) / (1 - self.separation)
                means[index] = means[parent] + step * (asked / unit)
                others = [other for other in range(index) if other != parent]
                if _all_apart(means, covariances, index, others, asked):
                    break
            else:
                raise PlanError(
                    f"no place was found for cluster {index + 1} of {k}; "
                    "ask for fewer clusters or more columns."
                )
        return means, axes


@dataclass(frozen=True)
class G2:
    """Two equal normal clusters in any number of columns, as the tables ``g2mg_D_30`` have them.

    Notes
    -----
    2,048 records at 500 and at 600 in every column, standard deviation ``30 sqrt(D / 2)``, rounded
    to whole numbers. The law is that of the tables of up to 128 columns; a test measures it.
    """

    n_features: int
    n_clusters: ClassVar[int] = 2

    @property
    def name(self) -> str:
        """What the data set is called."""
        return f"g2-drawn-{self.n_features}"

    def dataset(self) -> Dataset:
        """Return the records scaled column by column; they are always the same."""
        rng = public_generator("g2", self.n_features)
        spread = 30 * np.sqrt(self.n_features / 2)
        parts = [rng.normal(mean, spread, (1024, self.n_features)) for mean in (500, 600)]
        return min_max(np.rint(np.concatenate(parts)), self.name, self.n_clusters)


def separation(
    first_mean: Floats, first_covariance: Floats, second_mean: Floats, second_covariance: Floats
) -> float:
    """Return the degree of separation J* of two normal clusters along their best projection.

    It is the gap between the middle 95 % of both projections over the length they span together,
    in [-1, 1), negative where they overlap; [QJ06b]_ section 2.

    Notes
    -----
    With a projection `a`, ``J = (t - 1) / (t + 1)`` where ``t = a·(m2 - m1) / (z (s1 + s2))``.
    Maximising `t` is minimising the sum of two norms of `a` under ``a·(m2 - m1) = 1``, which is
    convex.
    """
    t = _ratio(second_mean - first_mean, first_covariance, second_covariance)
    return (t - 1) / (t + 1)


def nearest_separations(means: Floats, covariances: Floats) -> Floats:
    """Return J* of each cluster and its nearest neighbour, shape (n_clusters,)."""
    pairs = np.full((len(means), len(means)), np.inf)
    for i, j in combinations(range(len(means)), 2):
        apart = separation(means[i], covariances[i], means[j], covariances[j])
        pairs[i, j] = pairs[j, i] = apart
    nearest: Floats = pairs.min(axis=1)
    return nearest


def _ratio(gap: Floats, first: Floats, second: Floats) -> float:
    """Return the largest distance of two projected means, in half-widths of both together."""
    if not gap.any():
        return 0.0
    weight, best = 0.5, 0.0
    for _ in range(_STEPS):
        a = np.linalg.solve(weight * first + (1 - weight) * second, gap)
        s, t = float(np.sqrt(a @ first @ a)), float(np.sqrt(a @ second @ a))
        found = float(a @ gap) / (TAIL_QUANTILE * (s + t))
        # the stationary direction weighs each covariance by the inverse of its projected deviation
        weight = t / (s + t)
        if found <= best * (1 + 1e-12):
            break
        best = found
    return max(best, found)


def _all_apart(
    means: Floats, covariances: Floats, index: int, others: list[int], asked: float
) -> bool:
    """Return whether a cluster is at least as far from some others as is asked."""
    if not others:
        return True
    gaps = means[index] - means[others]
    own = np.sqrt(np.einsum("id,de,ie->i", gaps, covariances[index], gaps))
    theirs = np.sqrt(np.einsum("id,ide,ie->i", gaps, covariances[others], gaps))
    # along the line between the means: never more than the best projection
    along = (gaps * gaps).sum(axis=1) / (TAIL_QUANTILE * (own + theirs))
    unsure = [other for other, t in zip(others, along, strict=True) if t < asked]
    return all(
        _ratio(means[index] - means[other], covariances[index], covariances[other]) >= asked
        for other in unsure
    )
