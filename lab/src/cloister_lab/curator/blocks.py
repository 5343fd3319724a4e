"""Two methods that cluster blocks of records and combine the blocks: ``Gupt``, ``SampleAggregate``.

Each record goes to one block, drawn with bytes from the operating system. Neighbouring tables
differ by one record, so under the same draws one block differs, and all others give the same
centres. Centres of a block are sorted by their first coordinate, so that those of two blocks can be
compared.

References
----------
.. [NRS07] Nissim, Raskhodnikova, Smith, "Smooth Sensitivity and Sampling in Private Data Analysis",
   STOC 2007.
.. [MTSSC12] Mohan, Thakurta, Shi, Song, Culler, "GUPT: Privacy Preserving Data Analysis Made Easy",
   SIGMOD 2012.
.. [SCLBJ16] Su, Cao, Li, Bertino, Jin, "Differentially Private K-Means Clustering", CODASPY 2016.
"""

from __future__ import annotations

import warnings
from math import ceil, exp, log, sqrt
from typing import ClassVar, Self

import numpy as np

from cloister.core.declared import Positive, Whole, declared
from cloister.core.errors import PlanError, PrivacyWarning
from cloister.core.randomness import SecretStream
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import laplace_noise_multiplier
from cloister.privacy.events import Event, LaplaceEvent, NonPrivateEvent
from cloister.privacy.noise import NoiseSource
from cloister.protocol.task import Floats, Records
from cloister.tasks.clustering.kmeans_init import sphere_packing
from cloister.tasks.options import require_budget
from cloister_lab.lloyd import lloyd

_BLOCKS = 0.4  # power of the number of records that is the number of blocks, [MTSSC12]_
_ROUNDS = 10  # of Lloyd in a block


@declared
class Gupt:
    """The mean of the centres of blocks, with Laplace noise [MTSSC12]_: pure epsilon.

    Parameters
    ----------
    n_blocks : int
        ``nominal_n ** 0.4``, as published.
    noise_multiplier : float
        Laplace scale over the L1 sensitivity.

    Notes
    -----
    Add/remove one record: the centres of one block may move anywhere in the box. The sum over the
    blocks then changes by at most 2 in each of ``n_clusters n_features`` coordinates. Ranges are
    the public box, the published "tight" mode; no budget buys ranges.
    """

    name: ClassVar[str] = "gupt"
    private: ClassVar[bool] = True

    n_clusters: Whole
    n_features: Whole
    n_blocks: Whole
    noise_multiplier: Positive
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
    ) -> Self:
        """Choose the number of blocks; delta is not spent."""
        return cls(
            n_clusters=n_clusters,
            n_features=n_features,
            n_blocks=number_of_blocks(nominal_n),
            noise_multiplier=laplace_noise_multiplier(require_budget(budget).epsilon),
            frac_bits=frac_bits,
            public_seed=public_seed,
        )

    def describe(self) -> str:
        """Say in plain words what is released."""
        return (
            f"Records are dealt to {self.n_blocks} blocks, and each block is clustered alone. The "
            f"mean of their {self.n_clusters} centres is released with Laplace noise."
        )

    def events(self) -> Event:
        """Return one Laplace mechanism."""
        return LaplaceEvent(self.noise_multiplier)

    def release(self, records: Records, noise: NoiseSource) -> Floats:
        """Return centres in ``[-1, 1]^d``; see :class:`CuratorMethod`."""
        one = 1 << self.frac_bits
        centres = centres_of_blocks(records, self)
        total = np.rint(centres * one).astype(np.int64).sum(axis=0)
        scale = ceil(self.noise_multiplier * 2 * one * total.size)
        total += noise.draw("laplace", scale, total.size).reshape(total.shape)
        released: Floats = np.clip(total / float(one * self.n_blocks), -1.0, 1.0)
        return released


@declared
class SampleAggregate:
    """The block in the middle of the others, with noise by smooth sensitivity [NRS07]_.

    **Not private here.** The published proof is about real numbers; radii, the smooth bound and
    the scale of the noise are floats here, and nobody has bounded what their rounding reveals.

    Notes
    -----
    The centres of a block are one point of dimension ``D = n_clusters n_features``. Let ``r_i(t)``
    be the distance from block i to its t-th nearest block, itself included. The answer is the block
    with the least ``r_i(t0)``, where t0 is above half of the blocks, so that the balls of
    neighbours meet. After s changed blocks two of the s + 2 least ``r_i(t0 + s + 1)`` still stand.
    So ``max_s exp(-b s) 2 r_(s+2)(t0 + s + 1)`` bounds the sensitivity, and is b-smooth; beyond the
    last block a radius is the diagonal of the box. This bound is ours, the published one is for any
    metric. Noise is Gaussian with this bound over ``a``, and a, b as published for D coordinates.
    """

    name: ClassVar[str] = "sample-aggregate"
    private: ClassVar[bool] = False

    n_clusters: Whole
    n_features: Whole
    n_blocks: Whole
    admissible: Positive
    smoothness: Positive
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
    ) -> Self:
        """Choose the number of blocks and the two constants of the noise [NRS07]_ (Lemma 2.7)."""
        needed = require_budget(budget)
        if needed.delta == 0:
            raise PlanError(
                f"delta must be above 0 for {cls.name!r}, got 0; its noise is Gaussian."
            )
        tail = log(2 / needed.delta)
        return cls(
            n_clusters=n_clusters,
            n_features=n_features,
            n_blocks=number_of_blocks(nominal_n),
            admissible=needed.epsilon / (5 * sqrt(2 * tail)),
            smoothness=needed.epsilon / (4 * (n_clusters * n_features + tail)),
            frac_bits=frac_bits,
            public_seed=public_seed,
        )

    def describe(self) -> str:
        """Say in plain words what is released."""
        return (
            f"NOT PRIVATE. Records are dealt to {self.n_blocks} blocks, and each block is "
            "clustered alone. The centres of the block that most others are near to are released "
            "with noise."
        )

    def events(self) -> Event:
        """Return that the release has no guarantee."""
        return NonPrivateEvent()

    def release(self, records: Records, noise: NoiseSource) -> Floats:
        """Return centres in ``[-1, 1]^d``; **not private**, and always warned about."""
        warnings.warn(
            f"{self.name!r} is not private here: its proof is about real numbers, and these are "
            "floats; 'gupt' is private.",
            PrivacyWarning,
            stacklevel=2,
        )
        one = 1 << self.frac_bits
        points = centres_of_blocks(records, self).reshape(self.n_blocks, -1)
        middle, bound = middle_of_blocks(points, self.smoothness)
        sigma = max(1, ceil(bound / self.admissible * one))
        steps = noise.draw("gaussian", sigma, len(middle)) / float(one)
        released: Floats = np.clip(middle + steps, -1.0, 1.0)
        return released.reshape(self.n_clusters, self.n_features)


def number_of_blocks(nominal_n: int) -> int:
    """Return the published number of blocks, at least 2."""
    return max(2, round(exp(_BLOCKS * log(nominal_n))))


def centres_of_blocks(records: Records, method: Gupt | SampleAggregate) -> Floats:
    """Deal records to blocks and cluster each; shape (n_blocks, n_clusters, n_features).

    A block that is empty gives the public starting centres.
    """
    words = np.frombuffer(SecretStream()(8 * len(records)), dtype=np.uint64)
    block = (words % np.uint64(method.n_blocks)).astype(np.int64)
    values = records / float(1 << method.frac_bits)
    start = sphere_packing(method.n_clusters, method.n_features, method.public_seed)
    found = [lloyd(values[block == b], start, _ROUNDS) for b in range(method.n_blocks)]
    return np.array([centres[np.argsort(centres[:, 0], kind="stable")] for centres in found])


def middle_of_blocks(points: Floats, smoothness: float) -> tuple[Floats, float]:
    """Return the point that most others are near to, and a smooth bound on how far it may move.

    Parameters
    ----------
    points : ndarray of shape (n_blocks, n_coordinates), in ``[-1, 1]``
    """
    n, width = points.shape
    gaps = np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))
    radii = np.sort(gaps, axis=1)  # column t - 1: the distance to the t-th nearest
    least = np.sort(radii, axis=0)  # row i: the (i + 1)-th least of such radii
    half = (n + 1) // 2 + 1
    chosen = int(radii[:, min(half, n) - 1].argmin())
    diagonal = 2 * sqrt(width)
    bound = max(
        exp(-smoothness * s)
        * (2 * float(least[s + 1, half + s]) if max(s + 1, half + s) < n else diagonal)
        for s in range(n)
    )
    return points[chosen], min(bound, diagonal)
