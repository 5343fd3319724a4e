"""What a model of centres says of records; local and exact, whoever found the centres."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin

from cloister.core.arrays import Floats, Records
from cloister.estimators.tables import SiloData, kept_rows, new_rows
from cloister.hazmat.fixedpoint import Grid, round_to_grid
from cloister.tasks.clustering.lloyd_kernel import finest_exact, nearest_centres
from cloister.tasks.clustering.synopsis import squared_distances

_CHUNK_VALUES = 1 << 17  # a MiB of floats: no table is copied whole


class CentreModel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin):
    """Nearest centres and distances of records, scaled by the public range of each column.

    A subclass sets ``cluster_centers_`` in data units and ``_grid``, by which it was fitted.
    """

    cluster_centers_: Floats
    _grid: Grid

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)

    def predict(self, X: ArrayLike) -> NDArray[np.int32]:
        """Return the nearest centre of each record; local, costs nothing.

        Records are clipped to the bounds and rounded to the grid, as in a fit, so that those of the
        fit get its ``labels_``.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, or path with a schema
        """
        rows, grid = new_rows(self, X), self._grid
        inside = (np.clip(rows[part], grid.low, grid.high) for part in self._parts(rows))
        return self._labels_of(map(grid.encode, inside), len(rows))

    def transform(self, X: ArrayLike) -> Floats:
        """Return the scaled distance of each record to each centre; local, costs nothing."""
        rows = new_rows(self, X)
        distances = np.empty((len(rows), len(self.cluster_centers_)))
        for part in self._parts(rows):
            distances[part] = np.sqrt(self._squared(rows[part])).T
        return distances

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Return minus the sum of squared scaled distances to the nearest centre.

        Local and exact for the given X: publishing it for private records is a release of its own.
        """
        rows = new_rows(self, X)
        return -fsum(self._squared(rows[part]).min(axis=0).sum() for part in self._parts(rows))

    def _squared(self, X: Floats) -> Floats:
        """Return squared scaled distances, shape (n_clusters, n_samples): the faster way round."""
        grid = self._grid
        return squared_distances(grid.normalise(self.cluster_centers_), grid.normalise(X))

    def _parts(self, rows: Floats) -> Iterator[slice]:
        """Return slices of which neither columns nor distances take much memory."""
        step = max(256, _CHUNK_VALUES // max(self.cluster_centers_.shape))
        return (slice(first, first + step) for first in range(0, len(rows), step))

    def _labels_of(self, parts: Iterable[Records], n_rows: int) -> NDArray[np.int32]:
        """Return the nearest centres of grid records, then -1 until there are `n_rows`."""
        bits = self._grid.frac_bits
        centres = round_to_grid(self._grid.normalise(self.cluster_centers_), bits)
        reach = 1 + int(np.abs(centres).max()) // (1 << bits)
        # a method without integer distances may have a grid that is too fine for them
        spare = bits - finest_exact(len(centres), self._grid.n_features, bits, reach)
        labels = np.full(n_rows, -1, dtype=np.int32)
        start = 0
        for part in parts:
            found = nearest_centres(part >> spare if spare else part, centres >> spare)
            labels[start : start + len(part)] = found
            start += len(part)
        return labels

    def _label(self, data: SiloData) -> None:
        """Keep the cluster of each record of a table, -1 for one that was left out; not private.

        Made at once: a model that waited until it is asked would have to hold records.
        """
        self.__dict__.pop("labels_", None)
        if data.table is None:
            return
        (records,) = data.records.values()
        labels = self._labels_of(records, len(data.table))
        if len(labels) and labels[-1] < 0:  # fewer records than rows: put each where its row is
            kept = kept_rows(data.table, data.schema)
            moved = np.full(len(labels), -1, dtype=np.int32)
            moved[kept] = labels[: np.count_nonzero(kept)]
            labels = moved
        self.labels_ = labels

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what must not be stored: labels are made from the records."""
        state = dict(super().__getstate__())
        state.pop("labels_", None)
        return state
