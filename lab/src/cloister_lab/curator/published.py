"""Two methods as their authors published them: **not private**, for comparison only.

Both release something for which single records decide where it may lie, so that no epsilon holds:
docs/proofs/subcluster.md has pairs of tables and the events that tell them apart. What is private
in their place are the tasks of :mod:`cloister_lab.tasks.subcluster`.

Since no noise here protects anybody, most randomness comes from a public seed: runs can be
repeated. Where the texts leave something open, our reading is said.

References
----------
.. [LS20] Lu, Shen, "Differentially Private k-Means Clustering with Guaranteed Convergence",
   arXiv:2002.01043. Its abstract was read, its method as [JT22]_ tells it.
.. [JT22] Joshi, Thakkar, "k-Means SubClustering: A Differentially Private Algorithm with Improved
   Clustering Quality", CIKM-PAS 2022.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from math import ceil
from typing import Any, ClassVar, Self

import numpy as np

from cloister.core.declared import Positive, Share, Whole, declared
from cloister.core.errors import DataError, PlanError, PrivacyWarning
from cloister.core.randomness import public_generator
from cloister.privacy.budget import Budget
from cloister.privacy.events import Event, NonPrivateEvent
from cloister.privacy.noise import NoiseSource
from cloister.protocol.task import Floats, Records
from cloister_lab.lloyd import lloyd, nearest
from cloister_lab.tasks.subcluster import draw_from_zone

_INNER_ROUNDS = 10  # of Lloyd inside a zone; the text gives none


@declared
class _Published(ABC):
    """The loop both share: exact means, a draw from a zone, Laplace noise at the end.

    Parameters
    ----------
    epsilon_draw : float
        Of the exponential mechanism in each draw ("eps_exp"); it is not divided among rounds.
    epsilon_end : float
        Of the Laplace noise on the last centres ("eps_lap").
    max_rounds : int
        The loop ends when no centre moves, or after so many rounds.
    public_seed : int
        Of the records to start from and of the draws.
    """

    name: ClassVar[str]
    private: ClassVar[bool] = False

    n_clusters: Whole
    n_features: Whole
    epsilon_draw: Positive
    epsilon_end: Positive
    max_rounds: Whole = 20
    frac_bits: int = 16
    public_seed: int = 0

    @classmethod
    def design(
        cls,
        *,
        n_clusters: int,
        n_features: int,
        nominal_n: int,
        budget: Budget | None,
        frac_bits: int = 16,
        public_seed: int = 0,
        **fields: Any,
    ) -> Self:
        """Give half of epsilon to the draws and half to the noise at the end.

        Other keywords are fields of the class.
        """
        if budget is None:
            raise PlanError(f"budget must be given for {cls.name!r}, got None.")
        return cls(
            n_clusters=n_clusters,
            n_features=n_features,
            epsilon_draw=budget.epsilon / 2,
            epsilon_end=budget.epsilon / 2,
            frac_bits=frac_bits,
            public_seed=public_seed,
            **fields,
        )

    @abstractmethod
    def describe(self) -> str:
        """Say in plain words what is released."""

    def events(self) -> Event:
        """Return that the release has no guarantee."""
        return NonPrivateEvent()

    def start(self, values: Floats, rng: np.random.Generator) -> Floats:
        """Return `n_clusters` records drawn uniformly; shape (n_clusters, n_features)."""
        few = len(values) < self.n_clusters
        return values[rng.choice(len(values), self.n_clusters, replace=few)]

    def step(self, values: Floats, centres: Floats, rng: np.random.Generator) -> Floats:
        """Draw each next centre around the exact mean of its cluster.

        A cluster without records, or whose mean is its centre already, keeps it.
        """
        labels = nearest(values, centres)
        drawn = centres.copy()
        for j in np.unique(labels):
            mean = values[labels == j].mean(axis=0)
            radius = float(np.linalg.norm(mean - centres[j]))
            if radius > 0:
                drawn[j] = self._draw(values, mean, radius, mean - centres[j], rng)
        return drawn

    @abstractmethod
    def _draw(
        self, values: Floats, mean: Floats, radius: float, move: Floats, rng: np.random.Generator
    ) -> Floats:
        """Draw the next centre from the ball of `radius` around `mean`."""

    def release(self, records: Records, noise: NoiseSource) -> Floats:
        """Return centres in ``[-1, 1]^d``; **not private**, and always warned about.

        The scale of the Laplace noise at the end is, in each column, the width of the box over the
        exact size of the cluster and `epsilon_end`, cut to whole grid steps.
        """
        warnings.warn(
            f"{self.name!r} is as published and not private for any epsilon; its task "
            f"'{self.name}-dp' is.",
            PrivacyWarning,
            stacklevel=2,
        )
        if not len(records):
            raise DataError(f"records must be at least one for {self.name!r}, got none.")
        values = records / float(1 << self.frac_bits)
        rng = public_generator(self.public_seed, self.name)
        centres = self.start(values, rng)
        for _ in range(self.max_rounds):
            before, centres = centres, self.step(values, centres, rng)
            if np.array_equal(before, centres):
                break
        sizes = np.bincount(nearest(values, centres), minlength=self.n_clusters)
        width = 2 << self.frac_bits
        scales = [ceil(width / (max(int(size), 1) * self.epsilon_end)) for size in sizes]
        steps = np.array([noise.draw("laplace", scale, self.n_features) for scale in scales])
        released: Floats = np.clip(centres + steps / float(1 << self.frac_bits), -1.0, 1.0)
        return released


@declared
class KMeansGuarantee(_Published):
    """KMeans-Guarantee [LS20]_: the next centre is drawn from a ball beside the exact mean.

    Parameters
    ----------
    zone_share : float in (0, 1]
        Radius of the sampling zone over that of the convergent zone; the text gives none.

    Notes
    -----
    The sampling zone touches the edge of the convergent zone from within, on a random side that
    points forward. The utility is minus the distance to the mean; its sensitivity, which we could
    not read, is taken to be the radius of the convergent zone, which is the largest distance.
    """

    name: ClassVar[str] = "kmeans-guarantee"

    zone_share: Share = 0.5

    def _draw(
        self, values: Floats, mean: Floats, radius: float, move: Floats, rng: np.random.Generator
    ) -> Floats:
        return draw_from_zone(
            mean,
            radius,
            move,
            share=self.zone_share,
            concentration=self.epsilon_draw / 2,
            rng=rng,
        )

    def describe(self) -> str:
        """Say in plain words what is released."""
        return (
            f"NOT PRIVATE. {self.n_clusters} centres that were drawn from balls around exact means "
            f"in up to {self.max_rounds} rounds, and then got Laplace noise."
        )


@declared
class SubCluster(_Published):
    """SubCluster [JT22]_: the next centre is a record from a part of the ball around the mean.

    Parameters
    ----------
    internal_k : int, >= 1
        Number of parts of a zone.

    Notes
    -----
    A zone with fewer records than parts is not parted: the mean is the next centre. The utility
    is minus the distance to the mean, its sensitivity as in :class:`KMeansGuarantee`.
    """

    name: ClassVar[str] = "subcluster"

    internal_k: Whole = 4

    def _draw(
        self, values: Floats, mean: Floats, radius: float, move: Floats, rng: np.random.Generator
    ) -> Floats:
        inside = values[np.linalg.norm(values - mean, axis=1) < radius]
        if len(inside) < self.internal_k:
            return mean
        start = inside[rng.choice(len(inside), self.internal_k, replace=False)]
        parts = nearest(inside, lloyd(inside, start, _INNER_ROUNDS))
        part = parts[rng.integers(len(inside))]  # a part by its size
        points = inside[parts == part]
        far = np.linalg.norm(points - mean, axis=1) / radius
        weights = np.exp(-self.epsilon_draw / 2 * (far - far.min()))
        drawn: Floats = points[rng.choice(len(points), p=weights / weights.sum())]
        return drawn

    def describe(self) -> str:
        """Say in plain words what is released."""
        return (
            f"NOT PRIVATE. {self.n_clusters} records, found in up to {self.max_rounds} rounds of "
            "k-means, with Laplace noise at the end."
        )
