"""A mixture of Gaussians by expectation-maximisation on noisy moments: ``DPEM``.

References
----------
.. [PFCW17] Park, Foulds, Chaudhuri, Welling, "DP-EM: Differentially Private Expectation
   Maximization", AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import exp, sqrt
from typing import Annotated, ClassVar, Literal, Self

import numpy as np

from cloister.core.declared import Range, Whole, declared
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.protocol.task import (
    INTERVAL_95,
    Block,
    Floats,
    GridState,
    Integers,
    Mechanism,
    NoisyBlock,
    PublicFacts,
    Records,
    State,
)
from cloister.tasks.clustering.kmeans import COUNT_IMPORTANCE
from cloister.tasks.intervals import BOX, ratio_interval, size_interval
from cloister.tasks.moments import (
    SQUARE,
    lattice_bits,
    n_products,
    products_l1,
    products_norm_squared,
    sum_products,
    unpack_products,
)
from cloister.tasks.options import Clusters, PublicSeed, build_task
from cloister_lab.tasks.centres import Centres
from cloister_lab.tasks.sums import ceil_sqrt

Covariance = Literal["full", "diagonal"]

RESPONSIBILITY = 64  # a record's responsibilities are parts of this
SMALLEST_STD = 1 / 64  # of a component along any direction, grid coordinates
MAX_FULL = 8  # columns; with more, products of columns are hardly worth their noise
_ROUNDS = 5
_CHUNK_VALUES = 1 << 20
# Fixed point of the exponents: differences to a mean, whitening, whitened differences, exponents.
_DIFFERENCE_BITS, _WHITE_BITS, _SCORE_BITS, _EXPONENT_BITS = 12, 8, 10, 6
_LARGEST_EXPONENT = 16 << _EXPONENT_BITS  # exp(-16) of the best component is nothing


@declared
class DPEM(Centres):
    """Expectation-maximisation [PFCW17]_ for a mixture of Gaussians, with one noisy sum a round.

    A record is shared out to the components by its responsibilities, and adds them, times itself
    and times the products of its columns. Centres are the components' means.

    Parameters
    ----------
    covariance : {"full", "diagonal"}
        Of each component. Diagonal needs no products of different columns.
    moment_bits : int in [4, 12]
        Records are rounded once more, to multiples of ``2**-moment_bits``, before they are
        multiplied.

    Notes
    -----
    Add/remove one record x: over all components together it adds ``g_k (1, x, products of x)`` with
    whole numbers ``g_k >= 0`` whose sum is at most `RESPONSIBILITY`, and so is the root of the sum
    of their squares. The joint norm is thus that of one component, not of ``n_clusters`` of them;
    the paper composes 2 n_clusters + 1 mechanisms instead. The three kinds of moments are on
    different scales, so that each gets a share of the noise that suits it.
    """

    name: ClassVar[str] = "dpem"
    mechanism: ClassVar[Mechanism] = "gaussian"

    @declared
    class Options:
        """What a user may choose."""

        n_clusters: Clusters = 1
        rounds: Annotated[Whole | None, "noisy sums; 5 if None"] = None
        covariance: Annotated[
            Covariance | None, "of components; full for at most 8 columns if None"
        ] = None
        public_seed: PublicSeed = 0

    moment_bits: Annotated[int, Range(4, 12)]
    rounds: Whole = _ROUNDS
    covariance: Covariance = "full"

    def __post_init__(self) -> None:
        if self.moment_bits > self.frac_bits:
            raise PlanError(
                f"moment_bits must be at most frac_bits={self.frac_bits}, got {self.moment_bits}; "
                "design the task again."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Choose full covariances for at most 8 columns, five rounds, the finest lattice.

        Nothing depends on `nominal_n` or `budget`.
        """
        d = facts.n_features
        covariance = options.covariance or ("full" if d <= MAX_FULL else "diagonal")
        coarsest = _scales(d, covariance, 0)
        longest = RESPONSIBILITY * ceil_sqrt(coarsest.l2_squared)
        return build_task(
            cls,
            facts,
            options,
            n_features=d,
            moment_bits=lattice_bits(longest, facts.frac_bits),
            rounds=options.rounds or _ROUNDS,
            covariance=covariance,
        )

    @property
    def _moments(self) -> _Scales:
        return _scales(self.n_features, self.covariance, self.moment_bits)

    @property
    def _first_variance(self) -> float:
        """Variance of uniform records in an equal part of the box, along a column."""
        return float(self.n_clusters ** (-2 / self.n_features) / 3)

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        products = "products of columns" if self.covariance == "full" else "squares"
        return (
            f"{self.rounds} rounds of fitting a mixture of {self.n_clusters} Gaussians: in each, "
            "the records are shared out to the components, and how many they are, their sums and "
            f"the sums of their {products} are released for each with Gaussian noise."
        )

    def start(self) -> State:
        """Return equal, round components at sphere-packing means."""
        k, d = self.n_clusters, self.n_features
        spread = np.full((k, d), self._first_variance)
        return {
            **super().start(),
            "weights": np.full(k, 1 / k),
            "covariances": spread[:, :, None] * np.eye(d) if self.covariance == "full" else spread,
        }

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return one block: for each component its count, sums, and sums of products."""
        moments = self._moments
        return (
            Block(
                "moments",
                (self.n_clusters, 1 + self.n_features + moments.n_seconds),
                l1=RESPONSIBILITY * moments.l1,
                l2_squared=RESPONSIBILITY**2 * moments.l2_squared,
                weight=1 / self.rounds,
            ),
        )

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the moments of the records as they are shared out to the components."""
        k, d, scales = self.n_clusters, self.n_features, self._moments
        total = np.zeros((k, 1 + d + scales.n_seconds), dtype=np.int64)
        exponents = self._exponents(state)
        shift = self.frac_bits - self.moment_bits
        size = max(1, _CHUNK_VALUES // max(k, d))
        for first in range(0, len(records), size):
            part = records[first : first + size].astype(np.int64)
            rows = (part + ((1 << shift) >> 1)) >> shift  # to nearest; a wall stays where it is
            shared = responsibilities(exponents(rows))
            # The law: no coordinate is beyond the box, and no record is shared out twice.
            bad = (np.abs(rows) > 1 << self.moment_bits).any(axis=1)
            bad |= shared.sum(axis=1) > RESPONSIBILITY
            shared[bad] = 0
            total[:, 0] += scales.count * shared.sum(axis=0)
            # whole numbers far below 2**53
            sums = shared.T.astype(np.float64) @ rows.astype(np.float64)
            total[:, 1 : 1 + d] += scales.first * sums.astype(np.int64)
            if self.covariance == "full":
                for j in range(k):
                    used = shared[:, j] > 0
                    total[j, 1 + d :] += sum_products(rows[used], shared[used, j])
            else:
                squares = shared.T.astype(np.float64) @ (rows**2).astype(np.float64)
                total[:, 1 + d :] += SQUARE * squares.astype(np.int64)
        return total.ravel()

    def _exponents(self, state: GridState) -> _Exponents:
        """Return the whole-number form of the components' log densities; of public numbers only."""
        centres = from_grid(state["centres"], self.frac_bits)
        weights = np.maximum(from_grid(state["weights"], self.frac_bits), 2.0**-self.frac_bits)
        spread = from_grid(state["covariances"], self.frac_bits)
        if self.covariance == "full":
            values, vectors = np.linalg.eigh(spread)
            values = np.maximum(values, SMALLEST_STD**2)
            # the symmetric root, which is the same whatever signs a library gives to vectors
            scaled = vectors / np.sqrt(values)[:, None, :]
            whitening = scaled @ np.swapaxes(vectors, 1, 2)
        else:
            values = np.maximum(spread, SMALLEST_STD**2)
            whitening = 1 / np.sqrt(values)
        constants = np.log(weights) - np.log(values).sum(axis=1) / 2
        return _Exponents(
            centres=_whole(centres, _DIFFERENCE_BITS),
            whitening=_whole(whitening, _WHITE_BITS),
            constants=_whole(constants, _EXPONENT_BITS),
            shift=_DIFFERENCE_BITS - self.moment_bits,
        )

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return weights, means and covariances of the noisy moments, made possible ones."""
        block, scales, d = released["moments"], self._moments, self.n_features
        unit = float(RESPONSIBILITY << self.moment_bits)
        counts = block.values[:, 0] / float(scales.count * RESPONSIBILITY)
        sums = block.values[:, 1 : 1 + d] / (scales.first * unit)
        seconds = block.values[:, 1 + d :] / (unit * (1 << self.moment_bits))
        count_std = block.noise_std / (scales.count * RESPONSIBILITY)
        floored = np.maximum(counts, max(1.0, count_std))
        old = from_grid(state["centres"], self.frac_bits)
        empty = counts <= max(
            1.0, INTERVAL_95["gaussian"] * count_std
        )  # noise alone could explain it
        means = np.where(empty[:, None], old, np.clip(sums / floored[:, None], *BOX))
        second_std = block.noise_std / (SQUARE * unit * (1 << self.moment_bits))
        low, high = ratio_interval(
            sums, counts, sum_std=block.noise_std / (scales.first * unit), count_std=count_std
        )
        return {
            "centres": means,
            "low": low,
            "high": high,
            "sizes": counts,
            "size_half_width": np.full(self.n_clusters, size_interval(count_std)),
            "weights": floored / floored.sum(),
            "covariances": self._spread(means, seconds, floored, empty, second_std),
        }

    def _spread(
        self,
        means: Floats,
        seconds: Floats,
        counts: Floats,
        empty: np.ndarray[tuple[int], np.dtype[np.bool_]],
        second_std: float,
    ) -> Floats:
        """Return covariances: of the moments, with no variance below its own noise."""
        d = self.n_features
        # A spread that its noise could hide is not believed to be smaller than that noise; but
        # nothing is believed to be wider than at the start for noise alone.
        noise = second_std / counts * (sqrt(d) if self.covariance == "full" else 1.0)
        least = np.clip(noise, SMALLEST_STD**2, max(SMALLEST_STD**2, self._first_variance))
        least = np.where(empty, self._first_variance, least)[:, None]
        if self.covariance == "diagonal":
            variances: Floats = seconds / SQUARE / counts[:, None] - means**2
            variances[empty] = 0.0
            return np.clip(variances, least, 1.0)
        spread = unpack_products(seconds, d) / counts[:, None, None]
        spread -= means[:, :, None] * means[:, None, :]
        spread[empty] = 0.0
        values, vectors = np.linalg.eigh(spread)
        values = np.clip(values, least, d)
        covariances: Floats = (vectors * values[:, None, :]) @ np.swapaxes(vectors, 1, 2)
        return covariances

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return expected half-widths for components of equal size."""
        scales = self._moments
        count_std = noise_std / (scales.count * RESPONSIBILITY)
        low, high = ratio_interval(
            np.zeros((1, self.n_features)),
            np.array([max(nominal_n / self.n_clusters, 1.0)]),
            sum_std=noise_std / (scales.first * (RESPONSIBILITY << self.moment_bits)),
            count_std=count_std,
        )
        return {
            "half_width": (high - low)[0] / 2 * grid.half_range,
            "size_half_width": np.array([size_interval(count_std)]),
        }

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        """Return the mixture and the 95 % noise intervals of its means and sizes.

        Returns
        -------
        dict
            As :meth:`Centres.results`, of the means; ``weights`` of shape (n_clusters,), which add
            up to 1; ``covariances`` of shape (n_clusters, n_features, n_features), or of variances
            (n_clusters, n_features); ``spreads``, the standard deviations in them.
        """
        weights = from_grid(state["weights"], self.frac_bits)
        covariances = from_grid(state["covariances"], self.frac_bits)
        units = grid.half_range
        full = self.covariance == "full"
        variances = np.diagonal(covariances, axis1=1, axis2=2) if full else covariances
        return {
            **super().results(state, grid),
            "weights": weights,
            "covariances": covariances * (units[:, None] * units if full else units**2),
            "spreads": np.sqrt(np.maximum(variances, 0.0)) * units,
        }


@dataclass(frozen=True)
class _Scales:
    """What a count, a coordinate and a product are multiplied by, and the bounds that follow."""

    count: int
    first: int
    n_seconds: int
    l1: int
    l2_squared: int


@cache
def _scales(n_features: int, covariance: Covariance, bits: int) -> _Scales:
    """Balance the moments: sums weigh as much as products, counts as in GLloyd.

    Norms are those of a corner of the box, which has the largest of each.
    """
    d = n_features
    if covariance == "full":
        first = round(SQUARE * sqrt(d) * (1 << bits))
        l1, l2_squared = products_l1(d, bits), products_norm_squared(d, bits)
    else:
        first = SQUARE << bits
        l1, l2_squared = (SQUARE * d) << (2 * bits), (SQUARE**2 * d) << (4 * bits)
    count = max(1, round((first << bits) * d**0.25 * sqrt(2 * COUNT_IMPORTANCE)))
    return _Scales(
        count=count,
        first=first,
        n_seconds=n_products(d) if covariance == "full" else d,
        l1=count + ((first * d) << bits) + l1,
        l2_squared=count**2 + ((first**2 * d) << (2 * bits)) + l2_squared,
    )


@dataclass(frozen=True)
class _Exponents:
    """Log densities of the components up to a constant, in whole numbers.

    `shift` is the number of bits from the moments' lattice to that of the centres.
    """

    centres: Integers
    whitening: Integers
    constants: Integers
    shift: int

    def __call__(self, rows: Integers) -> Integers:
        """Return minus the log densities; shape (n_samples, n_clusters).

        Every product and sum is a whole number below 2**53, so a row's densities are its own
        affair, whichever rows are with it.
        """
        found = np.empty((len(rows), len(self.centres)), dtype=np.int64)
        for j, (centre, white) in enumerate(zip(self.centres, self.whitening, strict=True)):
            moved = ((rows << self.shift) - centre).astype(np.float64)
            turned = moved @ white.T.astype(np.float64) if white.ndim == 2 else moved * white
            scores = turned.astype(np.int64) >> (_DIFFERENCE_BITS + _WHITE_BITS - _SCORE_BITS)
            energy = (scores**2).sum(axis=1) >> (2 * _SCORE_BITS + 1 - _EXPONENT_BITS)
            found[:, j] = energy - self.constants[j]
        return found


def responsibilities(exponents: Integers) -> Integers:
    """Return how each record is shared out: whole numbers that add up to `RESPONSIBILITY`.

    Exponents are minus the log densities, shape (n_samples, n_clusters), in steps of ``2**-6``.
    Shares differ from the exact ones by less than one. Running totals are rounded, not shares, so
    that these are never too many and no component is favoured.
    """
    above = exponents - exponents.min(axis=1, keepdims=True)
    weights = _exponentials()[np.minimum(above, _LARGEST_EXPONENT)]
    running = np.cumsum(weights, axis=1)
    whole = running[:, -1:]
    rounded = (2 * RESPONSIBILITY * running + whole) // (2 * whole)
    shared: Integers = np.diff(rounded, axis=1, prepend=0)
    return shared


@cache
def _exponentials() -> Integers:
    """Return a table of whole numbers like ``exp(-i / 64)``; the last one is zero."""
    step = 1 << _EXPONENT_BITS
    return np.array(
        [round((1 << 20) * exp(-i / step)) for i in range(_LARGEST_EXPONENT)] + [0], dtype=np.int64
    )


def _whole(values: Floats, bits: int) -> Integers:
    return np.rint(values * (1 << bits)).astype(np.int64)
