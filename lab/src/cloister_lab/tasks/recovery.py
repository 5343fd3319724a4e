"""From public points to centres of records: the mean of the records nearest to each point.

The points lie where records were projected to. Records keep all their columns here, so one noisy
sum and count for each point brings its centre back; another round of Lloyd then sharpens it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from cloister.core.declared import Whole, declared
from cloister.hazmat.fixedpoint import Grid, from_grid, round_to_grid
from cloister.protocol.task import (
    COUNT_BITS,
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
from cloister.tasks.clustering.kmeans import FastLloyd, GLloyd
from cloister_lab.tasks.centres import ONE_ROUND, Centres
from cloister_lab.tasks.projection import Projection, nearest_point
from cloister_lab.tasks.sums import drop_long, sum_by_label


@dataclass(frozen=True)
class Recovery:
    """Two noisy sums: about the projected points, then about the centres that these gave.

    Notes
    -----
    Add/remove one record: in either round it adds one row, to one cluster. Without projection both
    rounds are FastLloyd's, of differences within its radius. With it, the first is GLloyd's, of
    records themselves, since nothing in the space of the records is known before it.
    """

    n_clusters: int
    n_features: int
    frac_bits: int
    public_seed: int
    projection: Projection

    @classmethod
    def of(
        cls, n_clusters: int, n_features: int, n_axes: int, frac_bits: int, public_seed: int
    ) -> Recovery:
        """Return the recovery from a projection to `n_axes`."""
        projection = Projection(n_features, n_axes, frac_bits, public_seed)
        return cls(n_clusters, n_features, frac_bits, public_seed, projection)

    def block(self, step: int) -> Block:
        """Return the layout of the first round (0) or the second (1); the weight is 1."""
        (block,) = self._loop(step).blocks(0)
        return block

    def contribute(self, step: int, points: Floats, state: GridState, records: Records) -> Integers:
        """Return sums and counts of the records near each point (step 0) or centre (step 1)."""
        if step == 1 or self.projection.is_identity:
            return self._loop(step).contribute(0, self._about(step, points, state), records)
        payload = self._loop(0).payload(0)
        labels = nearest_point(self.projection(records), points)
        drop_long(labels, records, payload.radius_squared, self.n_clusters)
        sums = sum_by_label(records, labels, self.n_clusters)
        counts = np.bincount(labels, minlength=self.n_clusters + 1)[: self.n_clusters]
        return np.column_stack([sums, counts.astype(np.int64) * payload.count_weight]).ravel()

    def update(self, step: int, points: Floats, state: GridState, released: NoisyBlock) -> State:
        """Return centres, sizes and intervals, as in :mod:`cloister.tasks.clustering.kmeans`."""
        about = self._about(step, points, state)
        return self._loop(step).update(0, about, {"sums": released})

    def forecast(
        self, step: int, noise_std: float, nominal_n: int, grid: Grid
    ) -> Mapping[str, Floats]:
        """Return expected half-widths, as in :mod:`cloister.tasks.clustering.kmeans`."""
        return self._loop(step).forecast(noise_std, nominal_n, grid)

    def _about(self, step: int, points: Floats, state: GridState) -> GridState:
        """Return the state of a Lloyd round: what its differences are taken from."""
        if step == 0 and self.projection.is_identity:
            return {"centres": round_to_grid(points, self.frac_bits)}
        return {"centres": state["centres"]}

    def _loop(self, step: int) -> FastLloyd | GLloyd:
        """Return whose round it is; it is a first round there."""
        return self._near if step == 1 or self.projection.is_identity else self._whole

    @cached_property
    def _near(self) -> FastLloyd:
        """One round of differences inside FastLloyd's radius."""
        return FastLloyd.design(
            PublicFacts(
                n_features=self.n_features, nominal_n=1, budget=None, frac_bits=self.frac_bits
            ),
            FastLloyd.Options(
                n_clusters=self.n_clusters,
                rounds=1,
                radius_strategy="constant",
                public_seed=self.public_seed,
            ),
        )

    @cached_property
    def _whole(self) -> GLloyd:
        """One round of whole records."""
        numbers = {name: getattr(self, name) for name in ONE_ROUND}
        return GLloyd(rounds=1, **numbers)


@declared
class Recovered(Centres, ABC):
    """A task that finds points from noisy counts in a projection, and recovers centres from them.

    Parameters
    ----------
    n_axes : int in [1, 5]
        Axes of the public projection; all columns if there are no more than five.
    """

    mechanism: ClassVar[Mechanism] = "gaussian"
    rounds: ClassVar[int]
    shares: ClassVar[tuple[float, ...]]
    """Parts of the budget of each round."""

    n_axes: Whole

    @abstractmethod
    def counts(self, projected: Integers) -> Iterator[Integers]:
        """Yield the numbers of records in the cells of each grid."""

    @abstractmethod
    def group(self, released: NoisyBlock) -> Floats:
        """Return points from noisy counts; shape (n_clusters, n_axes)."""

    @abstractmethod
    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return counts of cells; then sums and counts of the groups."""

    def _recovered(self, t: int) -> tuple[Block, ...]:
        """Return sums and counts of the groups, of a round after the first."""
        return (replace(self._recovery.block(t - 1), weight=self.shares[t]),)

    def start(self) -> State:
        """Return sphere-packing centres, and points at zero."""
        return {**super().start(), "points": np.zeros((self.n_clusters, self.n_axes))}

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the records in each cell, in fine units; then sums and counts of the groups."""
        if t > 0:
            points = from_grid(state["points"], self.frac_bits)
            return self._recovery.contribute(t - 1, points, state, records)
        found = list(self.counts(self._recovery.projection(records)))
        return np.concatenate(found).astype(np.int64) << COUNT_BITS

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Find points; then move the centres to the noisy means."""
        (block,) = released.values()
        if t == 0:
            return {**self._real(state), "points": self.group(block)}
        points = from_grid(state["points"], self.frac_bits)
        return {"points": points, **self._recovery.update(t - 1, points, state, block)}

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return expected half-widths of the last round for clusters of equal size."""
        return self._recovery.forecast(self.rounds - 2, noise_std, nominal_n, grid)

    @cached_property
    def _recovery(self) -> Recovery:
        """The rounds after the first."""
        return Recovery.of(
            self.n_clusters, self.n_features, self.n_axes, self.frac_bits, self.public_seed
        )
