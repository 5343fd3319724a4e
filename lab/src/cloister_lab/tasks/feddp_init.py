"""Starting centres for federated k-means from public reference points: ``FedDPInit``.

References
----------
.. [SLS25] Scott, Lampert, Saulpic, "Differentially Private Federated k-Means Clustering with
   Server-Side Data", ICML 2025.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import isfinite
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.declared import Range, Share, Whole, declared
from cloister.core.errors import PlanError
from cloister.core.randomness import public_generator
from cloister.hazmat.fixedpoint import Grid, from_grid, round_to_grid
from cloister.protocol.task import (
    COUNT_BITS,
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
from cloister.tasks.clustering.lloyd_kernel import check_exact
from cloister.tasks.clustering.synopsis import cluster_weighted, project_to_simplex
from cloister.tasks.moments import (
    lattice_bits,
    n_products,
    products_l1,
    products_norm_squared,
    sum_products,
    unpack_products,
)
from cloister.tasks.options import Clusters, PublicSeed, build_task
from cloister_lab.tasks.centres import Centres, Lloyds
from cloister_lab.tasks.sums import ceil_sqrt, drop_long, sum_by_label

MAX_REFERENCE = 1000
_CHUNK_VALUES = 1 << 22


@declared
class FedDPInit(Centres):
    """FedDP-KMeans [SLS25]_: a start from public points, then rounds of Lloyd.

    Four kinds of noisy sums: products of columns, whose main axes span a plane; votes of the
    records for the nearest reference point as seen in that plane, which cluster the reference
    points; the records near each of these clusters; and Lloyd's.

    Parameters
    ----------
    reference : tuple of tuples of float in [-1, 1], grid coordinates
        Public points, never records of this study: each a row of `n_features`. By default
        `reference_size` uniform points of the box from `public_seed`.
    margin : float in (0, 1]
        A record counts for its nearest cluster if it is at most so many times as far from it as
        from the next one; 1 lets all count.
    product_bits : int
        Records are cut toward zero to multiples of ``2**-product_bits`` before they are multiplied.

    Notes
    -----
    All rounds have equal parts of the budget, and Gaussian noise. Add/remove one record x: the
    products change by ``x x^T``, whose norm is ``|x|^2`` and not ``|x|``; one vote; and in each
    later round one row, by the record and its count.
    """

    name: ClassVar[str] = "feddp-init"
    mechanism: ClassVar[Mechanism] = "gaussian"

    @declared
    class Options:
        """What a user may choose."""

        n_clusters: Clusters = 1
        components: Annotated[Whole | None, "axes; as many as clusters if None"] = None
        reference: Annotated[
            tuple[tuple[float, ...], ...], "public points in the box, or none"
        ] = ()
        reference_size: Annotated[
            Annotated[int, Range(1, MAX_REFERENCE)] | None, "of made-up points; by k if None"
        ] = None
        margin: Annotated[
            Share, "part of the distance to the other centres within which is near"
        ] = 1.0
        refine_rounds: Annotated[int, Range(0, 100), "Lloyd rounds at the end"] = 1
        public_seed: PublicSeed = 0

    components: Whole
    product_bits: Annotated[int, Range(4, 12)]
    reference: tuple[tuple[float, ...], ...] = ()
    reference_size: Annotated[int, Range(1, MAX_REFERENCE)] = 256
    margin: Share = 1.0
    refine_rounds: Annotated[int, Range(0, 100)] = 1

    def __post_init__(self) -> None:
        _ = self._lloyd  # its checks are ours
        # Distances along the axes are as long as in the box, but for the rounding of the axes.
        check_exact(max(2, self.n_clusters), self.n_features, self.frac_bits)
        if self.components > self.n_features or self.product_bits > self.frac_bits:
            raise PlanError(
                f"components must be at most {self.n_features} and product_bits at most "
                f"{self.frac_bits}, got {self.components} and {self.product_bits}."
            )
        points = checked_reference(self.reference, self.n_features)
        object.__setattr__(self, "reference", points)
        size = len(points) if points else self.reference_size
        if size < self.n_clusters:
            raise PlanError(
                f"reference must have at least n_clusters={self.n_clusters} points, got {size}; "
                "give more."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Choose as many axes as clusters, and the finest lattice of products that fits the ring.

        Nothing depends on `nominal_n` or `budget`.
        """
        d, k = facts.n_features, options.n_clusters
        longest = ceil_sqrt(products_norm_squared(d, 0))
        return build_task(
            cls,
            facts,
            options,
            n_clusters=k,
            n_features=d,
            components=options.components or min(k, d),
            product_bits=lattice_bits(longest, facts.frac_bits),
            reference_size=options.reference_size or min(MAX_REFERENCE, max(256, 4 * k)),
        )

    @property
    def rounds(self) -> int:
        """Products, votes, starting sums, and Lloyd's rounds."""
        return 3 + self.refine_rounds

    @cached_property
    def _lloyd(self) -> Lloyds:
        """What is summed around starting centres, and after."""
        return self._one_round()

    @cached_property
    def _reference(self) -> Integers:
        """The public points, grid steps, shape (n_points, n_features)."""
        if self.reference:
            points = np.array(self.reference)
        else:
            rng = public_generator(self.public_seed, self.name, "reference")
            points = rng.uniform(-1, 1, (self.reference_size, self.n_features))
        return round_to_grid(points, self.frac_bits)

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        points = len(self.reference) or self.reference_size
        return (
            "With Gaussian noise are released: the sums of the products of all pairs of columns; "
            f"how many records are nearest to each of {points} public points; the sum and the "
            f"number of the records near each of {self.n_clusters} centres that follow from "
            f"these; and the same for the records nearest to each centre, {self.refine_rounds} "
            "times."
        )

    def start(self) -> State:
        """Return sphere-packing centres and the first columns as axes; independent of records."""
        return {
            **super().start(),
            "axes": np.eye(self.components, self.n_features),
            "anchors": np.zeros((self.n_clusters, self.components)),
        }

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the block of the round: products, votes, or for each centre sums and a count."""
        weight = 1 / self.rounds
        if t == 0:
            d, bits = self.n_features, self.product_bits
            l1, l2_squared = products_l1(d, bits), products_norm_squared(d, bits)
            return (Block("products", (n_products(d),), l1, l2_squared, weight),)
        if t == 1:
            one = 1 << COUNT_BITS
            return (Block("votes", (len(self._reference),), one, one**2, weight),)
        (block,) = self._lloyd.blocks(0)
        return (replace(block, weight=weight),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the vector of the round."""
        if t == 0:
            return self._products(records)
        if t > 2:
            return self._lloyd.contribute(0, state, records)
        seen = self._project(records, state["axes"])
        if t == 1:
            points = self._project(self._reference, state["axes"])
            votes, _ = nearest_two(seen, points)
            return np.bincount(votes, minlength=len(points)).astype(np.int64) << COUNT_BITS
        payload = self._lloyd.payload(0)
        labels, near = nearest_two(seen, state["anchors"], self.margin)
        labels[~near] = self.n_clusters  # one bin behind the last is dropped
        drop_long(labels, records, payload.radius_squared, self.n_clusters)
        sums = sum_by_label(records, labels, self.n_clusters)
        counts = np.bincount(labels, minlength=self.n_clusters + 1)[: self.n_clusters]
        return np.column_stack([sums, counts * payload.count_weight]).ravel()

    def _products(self, records: Records) -> Integers:
        """Return the sums of products of records that were cut toward zero."""
        shift = self.frac_bits - self.product_bits
        rows = (np.sign(records) * (np.abs(records) >> shift)).astype(np.int64)
        inside = (np.abs(rows) <= 1 << self.product_bits).all(axis=1)  # the bound is a corner's
        return sum_products(rows[inside])

    def _project(self, points: Integers | Records, axes: Integers) -> Integers:
        """Return coordinates along the axes, grid steps; rounded down."""
        along = points.astype(np.float64) @ axes.T.astype(np.float64)
        return along.astype(np.int64) >> self.frac_bits

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Find the axes, then cluster the reference points by votes, then do as Lloyd."""
        real = self._real(state)
        if t == 0:
            matrix = unpack_products(
                released["products"].values.astype(np.float64), self.n_features
            )
            return {**real, "axes": main_axes(matrix, self.components)}
        if t == 1:
            votes = released["votes"].values / float(1 << COUNT_BITS)
            points = from_grid(self._project(self._reference, state["axes"]), self.frac_bits)
            weights = project_to_simplex(votes, max(1.0, votes.sum()))
            anchors = cluster_weighted(
                points, weights, self.n_clusters, public_seed=self.public_seed
            )
            return {**real, "anchors": anchors, "centres": np.clip(anchors @ real["axes"], -1, 1)}
        moved = dict(self._lloyd.update(0, state, released))
        count_std = released["sums"].noise_std / self._lloyd.payload(0).count_weight
        empty = moved["sizes"] <= max(1.0, INTERVAL_95["gaussian"] * count_std)
        # Where noise alone could explain the count, the public points know more than the ratio.
        moved["centres"] = np.where(empty[:, None], real["centres"], moved["centres"])
        return {**real, **moved}

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return the expected half-widths of GLloyd's last round."""
        return self._lloyd.forecast(noise_std, nominal_n, grid)


def checked_reference(
    reference: Sequence[Sequence[float]], n_features: int
) -> tuple[tuple[float, ...], ...]:
    """Return public points as tuples; a `PlanError` if they are too many or not in the box."""
    points = tuple(tuple(float(v) for v in row) for row in reference)
    if len(points) > MAX_REFERENCE:
        raise PlanError(
            f"reference has at most {MAX_REFERENCE} points, got {len(points)}; give a sample."
        )
    for row in points:
        if len(row) != n_features:
            raise PlanError(f"a reference point must have {n_features} values, got {len(row)}.")
        if not all(isfinite(v) and abs(v) <= 1 for v in row):
            raise PlanError(
                f"reference must be in [-1, 1], where each column's public range is mapped to, "
                f"got {row!r}."
            )
    return points


def main_axes(matrix: Floats, components: int) -> Floats:
    """Return the eigenvectors of the largest eigenvalues of a symmetric matrix.

    Rows are unit vectors whose entry of largest absolute value is positive. The matrix is noisy, so
    it may have negative eigenvalues.
    """
    _, vectors = np.linalg.eigh(matrix)
    axes = vectors.T[::-1][:components]
    largest = np.abs(axes).argmax(axis=1)
    signs = np.sign(axes[np.arange(components), largest])
    turned: Floats = axes * signs[:, None]
    return turned


def nearest_two(
    rows: Integers, points: Integers, margin: float = 1.0
) -> tuple[Integers, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Return the nearest point of each row, of equals the first, and whether it is near enough.

    Near enough: its distance is at most `margin` times that of the next nearest. Squared distances
    are integers below 2**53, so each row's answer is its own affair.
    """
    labels = np.zeros(len(rows), dtype=np.int64)
    near = np.ones(len(rows), dtype=np.bool_)
    turned = -2 * points.T.astype(np.float64)
    norms = (points**2).sum(axis=1).astype(np.float64)
    size = max(1, _CHUNK_VALUES // len(points))
    for first in range(0, len(rows), size):
        part = rows[first : first + size].astype(np.float64)
        squared = part @ turned + norms + (part**2).sum(axis=1)[:, None]
        labels[first : first + size] = squared.argmin(axis=1)
        if margin < 1 and len(points) > 1:
            two = np.partition(squared, 1, axis=1)[:, :2]
            near[first : first + size] = two[:, 0] <= margin**2 * two[:, 1]
    return labels, near
