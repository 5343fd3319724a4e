"""Predictions of models with centres, which are local and exact for the given records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin

from cloister.core.arrays import Floats, Records
from cloister.estimators.tables import (
    SiloData,
    is_list_of_tables,
    kept_rows,
    new_rows,
    refuse_silos,
    scored_rows,
)
from cloister.hazmat.fixedpoint import Grid, round_to_grid
from cloister.tasks.clustering.lloyd_kernel import finest_exact, nearest_centres
from cloister.tasks.clustering.synopsis import squared_distances

_CHUNK_VALUES = 1 << 17  # 1 MiB of floats, so that no table is copied as a whole


class CentreModel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin):
    """Nearest centres and distances of records, scaled by the public range of each column.

    A subclass sets ``cluster_centers_`` in data units and ``_grid``, the grid of its fit.
    """

    cluster_centers_: Floats
    _grid: Grid

    @property
    def _n_features_out(self) -> int:
        # For get_feature_names_out of scikit-learn.
        return len(self.cluster_centers_)

    def predict(self, X: ArrayLike) -> NDArray[np.int32]:
        """Return the nearest centre of each record; local, at no cost.

        Records are clipped to the bounds and rounded to the grid, as in a fit. So the records of
        the fit get its ``labels_``.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, or path with a schema
        """
        rows, grid = new_rows(self, X), self._grid
        clipped = (np.clip(rows[block], grid.low, grid.high) for block in self._blocks(rows))
        return self._labels_of(map(grid.encode, clipped), len(rows))

    def fit_predict(self, X: Any, y: object = None, **parameters: Any) -> NDArray[np.int32]:
        """Fit one table and return its ``labels_``."""
        refuse_silos(X, "fit_predict")  # before a fit is paid for
        labels: NDArray[np.int32] = super().fit_predict(X, y, **parameters)
        return labels

    def fit_transform(self, X: Any, y: object = None, **parameters: Any) -> Floats:
        """Fit one table and return its :meth:`transform`."""
        refuse_silos(X, "fit_transform, which a pipeline calls")
        distances: Floats = super().fit_transform(X, y, **parameters)
        return distances

    def transform(self, X: ArrayLike) -> Floats:
        """Return the scaled distance of each record to each centre; local, at no cost."""
        rows = new_rows(self, X)
        distances = np.empty((len(rows), len(self.cluster_centers_)))
        for block in self._blocks(rows):
            distances[block] = np.sqrt(self._squared(rows[block])).T
        return distances

    def score(self, X: Any, y: object = None) -> float:
        """Return minus the sum of squared scaled distances to the nearest centre.

        X is one table, or a list of these as for a fit, so that silos can be cross-validated.
        Local and exact for the given X. Its publication for private records would be a separate
        release, without noise. Records that a fit leaves out are left out with a warning.
        """
        if is_list_of_tables(X):
            return fsum(self.score(table) for table in X)
        rows = new_rows(self, scored_rows(self, X)[0])
        return -fsum(self._squared(rows[block]).min(axis=0).sum() for block in self._blocks(rows))

    def _squared(self, X: Floats) -> Floats:
        """Return squared scaled distances in the faster order, shape (n_clusters, n_samples)."""
        grid = self._grid
        return squared_distances(grid.normalise(self.cluster_centers_), grid.normalise(X))

    def _blocks(self, rows: Floats) -> Iterator[slice]:
        """Return slices of rows whose columns and distances take little memory."""
        # At least 256 rows, so that the calls are a small cost.
        step = max(256, _CHUNK_VALUES // max(self.cluster_centers_.shape))
        return (slice(first, first + step) for first in range(0, len(rows), step))

    def _labels_of(self, chunks: Iterable[Records], n_rows: int) -> NDArray[np.int32]:
        """Return the nearest centres of grid records, padded with -1 to `n_rows`."""
        bits = self._grid.frac_bits
        centres = round_to_grid(self._grid.normalise(self.cluster_centers_), bits)
        reach = 1 + int(np.abs(centres).max()) // (1 << bits)
        # The grid of a method without integer distances may be too fine for exact ones.
        spare = bits - finest_exact(len(centres), self._grid.n_features, bits, reach)
        labels = np.full(n_rows, -1, dtype=np.int32)
        start = 0
        for chunk in chunks:
            nearest = nearest_centres(chunk >> spare if spare else chunk, centres >> spare)
            labels[start : start + len(chunk)] = nearest
            start += len(chunk)
        return labels

    def _label(self, data: SiloData) -> None:
        """Set the cluster of each record of a table, -1 for one that was left out; not private.

        The labels are computed during the fit, because later the model would have to keep records.
        """
        self.__dict__.pop("labels_", None)
        # Of a file or several silos, labels would need the records a second time.
        if data.table is None:
            return
        # Labels exist only for a single table.
        (records,) = data.records.values()
        labels = self._labels_of(records, len(data.table))
        if len(labels) and labels[-1] < 0:  # fewer records than rows: move each to its row
            kept = kept_rows(data.table, data.schema)
            by_row = np.full(len(labels), -1, dtype=np.int32)
            by_row[kept] = labels[: np.count_nonzero(kept)]
            labels = by_row
        self.labels_ = labels

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without labels, which depend on the records and must not be stored."""
        state = dict(super().__getstate__())
        state.pop("labels_", None)
        return state
