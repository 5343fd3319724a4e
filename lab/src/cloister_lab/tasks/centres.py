"""What k-means tasks of the literature share: public numbers, a state of centres, its display."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from cloister.core.declared import Whole, declared
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.protocol.task import Floats, GridState, Profile, State
from cloister.tasks.clustering.clusters import Clustering, centres_in_units
from cloister.tasks.clustering.kmeans import GLloyd, SuLloyd
from cloister.tasks.clustering.kmeans_init import sphere_packing
from cloister.tasks.intervals import BOX

Lloyds = SuLloyd | GLloyd
ONE_ROUND = ("n_clusters", "n_features", "frac_bits", "public_seed")
"""Public numbers that a round of Lloyd takes over."""


@declared
class Centres(Clustering):
    """A private task whose state has centres, intervals around them, and sizes.

    Parameters
    ----------
    public_seed : int
        Of the starting centres and of all that a task draws in public; known to all.
    """

    private: ClassVar[bool] = True
    profiles: ClassVar[frozenset[Profile]] = frozenset({"local", "group", "pairwise"})

    n_clusters: Whole
    n_features: Whole
    frac_bits: int = 16
    public_seed: int = 0

    def start(self) -> State:
        """Return sphere-packing centres, never records; nothing is known of sizes and intervals."""
        shape = (self.n_clusters, self.n_features)
        return {
            "centres": sphere_packing(*shape, self.public_seed),
            "low": np.full(shape, BOX[0]),
            "high": np.full(shape, BOX[1]),
            "sizes": np.zeros(self.n_clusters),
            "size_half_width": np.zeros(self.n_clusters),
        }

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        """Return centres and sizes with the 95 % noise intervals of the last round.

        Returns
        -------
        dict
            ``centres``, ``low``, ``high``, ``half_width`` of shape (n_clusters, n_features) in
            data units; ``sizes`` and ``size_half_width`` of shape (n_clusters,) in records.
        """
        return centres_in_units(state, grid, self.frac_bits)

    def _real(self, state: GridState) -> State:
        return {name: from_grid(value, self.frac_bits) for name, value in state.items()}

    def _one_round(self, law: type[Lloyds] = GLloyd) -> Lloyds:
        """Return a single round of Lloyd on whole records."""
        return law(rounds=1, **{name: getattr(self, name) for name in ONE_ROUND})
