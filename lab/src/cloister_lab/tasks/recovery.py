"""From public points to centres of records: the mean of the records nearest to each point.

The points lie where records were projected to. Records keep all their columns here, so one noisy
sum and count for each point brings its centre back; another round of Lloyd then sharpens it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cloister.hazmat.fixedpoint import Grid, round_to_grid
from cloister.task import Block, Floats, GridState, Integers, PublicFacts, Records, Released, State
from cloister.tasks.clustering.kmeans import FastLloyd, GLloyd
from cloister.tasks.clustering.kmeans_init import sphere_packing
from cloister.tasks.intervals import BOX
from cloister.tasks.moments import drop_long, sum_by_label
from cloister_lab.tasks.projection import Projection, nearest_point


@dataclass(frozen=True)
class Recovery:
    """Two noisy sums: about the projected points, then about the centres that these gave.

    Parameters
    ----------
    n_clusters, n_features : int
    frac_bits, public_seed : int
    projection : Projection

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
        """Return sums and counts of the records near each point, or near each centre.

        Parameters
        ----------
        step : {0, 1}
        points : ndarray of shape (n_clusters, n_axes), in ``[-1, 1]``
            Where the first round looks.
        state : mapping
            Its ``centres`` are where the second round looks, in grid steps.
        records : ndarray of shape (n_samples, n_features), int32, grid steps
        """
        if step == 1 or self.projection.is_identity:
            return self._loop(step).contribute(0, self._about(step, points, state), records)
        payload = self._loop(0).payload(0)
        labels = nearest_point(self.projection(records), points)
        drop_long(labels, records, payload.radius_squared, self.n_clusters)
        sums = sum_by_label(records, labels, self.n_clusters)
        counts = np.bincount(labels, minlength=self.n_clusters + 1)[: self.n_clusters]
        return np.column_stack([sums, counts.astype(np.int64) * payload.count_word]).ravel()

    def update(self, step: int, points: Floats, state: GridState, released: Released) -> State:
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
        return GLloyd(
            n_clusters=self.n_clusters,
            n_features=self.n_features,
            rounds=1,
            frac_bits=self.frac_bits,
            public_seed=self.public_seed,
        )


def start_state(n_clusters: int, n_features: int, n_axes: int, public_seed: int) -> State:
    """Return sphere-packing centres with unknown intervals and sizes, and points at zero."""
    shape = (n_clusters, n_features)
    return {
        "centres": sphere_packing(*shape, public_seed),
        "low": np.full(shape, BOX[0]),
        "high": np.full(shape, BOX[1]),
        "sizes": np.zeros(n_clusters),
        "size_half_width": np.zeros(n_clusters),
        "points": np.zeros((n_clusters, n_axes)),
    }
