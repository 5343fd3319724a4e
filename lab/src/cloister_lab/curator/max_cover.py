"""``MaxCover``: balls that hold many records, by the exponential mechanism; then their means.

References
----------
.. [NCX21] Nguyen, Chaturvedi, Xu, "Differentially Private k-Means via Exponential Mechanism and
   Max Cover", AAAI 2021, arXiv:2009.01220.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from itertools import count
from math import ceil, sqrt
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.declared import Range, Whole, declared
from cloister.core.errors import PlanError
from cloister.core.randomness import SecretStream
from cloister.hazmat.fixedpoint import from_grid, round_to_grid
from cloister.privacy.accounting import epsilon as epsilon_of
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import (
    gaussian_noise_multiplier,
    laplace_noise_multiplier,
    lattice_sigma,
)
from cloister.privacy.events import ComposedEvent, Event, GaussianEvent, LaplaceEvent
from cloister.privacy.noise import NoiseSource
from cloister.protocol.task import COUNT_BITS, Floats, Integers, NoisyBlock, Records
from cloister.tasks.clustering.synopsis import cluster_weighted, project_to_simplex
from cloister_lab.curator.cover import BallGrid, pick_centres
from cloister_lab.events import CoverEvent, cover_pick_epsilon
from cloister_lab.tasks.projection import MAX_AXES, ONE, nearest_point, usual_axes
from cloister_lab.tasks.recovery import Recovery

PICK_SHARE, COUNT_SHARE, MEAN_SHARE, LLOYD_SHARE = 0.3, 0.1, 0.3, 0.3
"""Parts of epsilon: for the balls, their counts, the means, and one more round of Lloyd."""

N_RADII = 6
"""Radii of the balls: 1/32, 1/16, ..., 1; the paper begins at ``1 / n``."""

_ROOM = 100_000  # records for which the two finest grids over 5 axes take up to 4 GiB

MAX_EPSILON = 1e3  # beyond it the accountant's numbers overflow

ROUNDING = 1e-6
"""Epsilon that is set aside for the floats in weights of draws; docs/proofs/max_cover.md."""


@declared
class MaxCover:
    """k-means by private max cover [NCX21]_, with every number public and a tight price.

    Parameters
    ----------
    n_axes : int in [1, 5]
        Axes of the public projection in which balls are looked for; all columns if there are no
        more than five.
    n_radii : int in [1, 6]
        Radii are 1, 1/2, 1/4, ...
    pick_epsilon : float
        A ball with c records that no earlier ball holds has weight ``exp(pick_epsilon c / 2)``.
    count_multiplier : float
        Laplace scale of the number of records nearest to each ball.
    mean_multiplier, lloyd_multiplier : float
        Noise multipliers of the means and of the last round.

    Notes
    -----
    Add/remove one record. The published grid, its radii and delta depend on the exact number of
    records, so that two neighbouring tables have different sets of possible answers; here they are
    fixed. All picks of all radii together are one :class:`~cloister_lab.events.CoverEvent`,
    because covered records are gone for good. docs/proofs/max_cover.md has the theorem.

    The balls are drawn with bytes from the operating system, whatever source of noise is given.
    """

    name: ClassVar[str] = "maxcover"
    private: ClassVar[bool] = True

    n_clusters: Whole
    n_features: Whole
    n_axes: Whole
    n_radii: Annotated[int, Range(1, N_RADII)]
    pick_epsilon: float
    count_multiplier: float
    mean_multiplier: float
    lloyd_multiplier: float
    frac_bits: int = 16
    public_seed: int = 0

    def __post_init__(self) -> None:
        _ = self._recovery.block(0), self._recovery.block(1), self.events()  # their checks are ours

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
    ) -> Self:
        """Share the budget as [NCX21]_ does: .3 for the balls, .1 counts, .3 means, .3 Lloyd.

        Each part gets what its share of epsilon would buy alone, times one factor that makes the
        composition of all parts cost the whole budget.
        """
        if budget is None or budget.delta == 0:
            raise PlanError(
                f"budget of 'maxcover' needs epsilon and a delta above 0, got {budget}; "
                "its means have Gaussian noise."
            )
        if budget.epsilon > MAX_EPSILON:
            raise PlanError(
                f"epsilon must be at most {MAX_EPSILON:g} for 'maxcover', got {budget.epsilon:g}; "
                "more is no privacy."
            )
        cover, laplace, mean, lloyd = _priced(budget)
        n_axes = usual_axes(n_features, nominal_n)
        return cls(
            n_clusters=n_clusters,
            n_features=n_features,
            n_axes=n_axes,
            n_radii=N_RADII if n_axes < MAX_AXES or nominal_n <= _ROOM else N_RADII - 2,
            pick_epsilon=cover.pick_epsilon,
            count_multiplier=laplace.noise_multiplier,
            mean_multiplier=mean.noise_multiplier,
            lloyd_multiplier=lloyd.noise_multiplier,
            frac_bits=frac_bits,
            public_seed=public_seed,
        )

    def describe(self) -> str:
        """Say in plain words what is released."""
        return (
            f"{self.n_clusters} balls of each of {self.n_radii} sizes are drawn, those that hold "
            "many records being more likely. The numbers of records nearest to each are released "
            f"with Laplace noise and made into {self.n_clusters} groups; then the mean of each "
            "group is released with Gaussian noise, twice."
        )

    def events(self) -> Event:
        """Return one max cover, one Laplace and two Gaussian mechanisms."""
        return ComposedEvent(
            (
                CoverEvent(self.pick_epsilon),
                LaplaceEvent(self.count_multiplier),
                GaussianEvent(self.mean_multiplier),
                GaussianEvent(self.lloyd_multiplier),
            )
        )

    def release(self, records: Records, noise: NoiseSource) -> Floats:
        """Return centres; the noise is that of counts and means, see :class:`CuratorMethod`."""
        projected = self.project(records)
        points = self._group(projected, self.picks(projected) / ONE, noise)
        centres = np.zeros((self.n_clusters, self.n_features))
        for step, multiplier in enumerate((self.mean_multiplier, self.lloyd_multiplier)):
            block = self._recovery.block(step)
            state = {"centres": round_to_grid(centres, self.frac_bits)}
            total = self._recovery.contribute(step, points, state, records)
            sigma = lattice_sigma(multiplier, sqrt(block.l2_squared))
            total += noise.draw("gaussian", sigma, block.size)
            released = NoisyBlock(total.reshape(block.shape), float(sigma))
            centres = self._recovery.update(step, points, state, released)["centres"]
        return from_grid(round_to_grid(centres, self.frac_bits), self.frac_bits)

    def project(self, records: Records) -> Integers:
        """Return the points that balls are to hold, in steps of ``1 / ONE``."""
        return self._recovery.projection(records)

    def picks(self, projected: Integers) -> Integers:
        """Draw the balls of all radii, in steps of ``1 / ONE``; n_clusters of each."""
        balls = pick_centres(
            projected, self.grids, self.n_clusters, self.pick_epsilon, SecretStream()
        )
        return np.array(list(balls))

    @property
    def grids(self) -> tuple[BallGrid, ...]:
        """Grids of balls, the smallest radius first."""
        radii = [2.0**-i for i in reversed(range(self.n_radii))]
        return tuple(BallGrid.covering(self.n_axes, radius) for radius in radii)

    def _group(self, projected: Integers, balls: Floats, noise: NoiseSource) -> Floats:
        """Return k points, from the noisy numbers of records nearest to each ball."""
        labels = nearest_point(projected, balls)
        counts = np.bincount(labels, minlength=len(balls)).astype(np.int64) << COUNT_BITS
        scale = ceil(self.count_multiplier * (1 << COUNT_BITS))
        counts += noise.draw("laplace", scale, len(counts))
        sizes = counts / float(1 << COUNT_BITS)
        weights = project_to_simplex(sizes, max(1.0, sizes.sum()))
        return cluster_weighted(balls, weights, self.n_clusters, public_seed=self.public_seed)

    @cached_property
    def _recovery(self) -> Recovery:
        """The two rounds of means."""
        return Recovery.of(
            self.n_clusters, self.n_features, self.n_axes, self.frac_bits, self.public_seed
        )


@lru_cache(maxsize=64)
def _priced(budget: Budget) -> tuple[CoverEvent, LaplaceEvent, GaussianEvent, GaussianEvent]:
    """Return the four parts that together cost the budget, or up to 0.2 % less."""
    allowed = budget.epsilon - min(ROUNDING, budget.epsilon / 2)
    factor = 1.0
    for attempt in count():
        epsilon = factor * budget.epsilon
        mean = GaussianEvent(gaussian_noise_multiplier(MEAN_SHARE * epsilon, budget.delta))
        lloyd = GaussianEvent(gaussian_noise_multiplier(LLOYD_SHARE * epsilon, budget.delta))
        cover = CoverEvent(cover_pick_epsilon(PICK_SHARE * epsilon, budget.delta))
        parts = cover, LaplaceEvent(laplace_noise_multiplier(COUNT_SHARE * epsilon)), mean, lloyd
        cost = epsilon_of(ComposedEvent(parts), budget.delta)
        if cost <= allowed and (cost >= 0.998 * allowed or attempt > 20):
            return parts
        factor *= 0.999 * allowed / cost
    raise AssertionError("the cost falls with the factor")
