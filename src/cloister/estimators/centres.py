"""What a model of centres says of records; local and exact, whoever found the centres."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.metrics import pairwise_distances_argmin_min
from sklearn.metrics.pairwise import euclidean_distances

from cloister.arrays import Floats
from cloister.estimators.tables import new_rows
from cloister.hazmat.fixedpoint import Grid


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
        """Return the nearest centre of each record; local, exact for the given X, costs nothing.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), DataFrame, or path with a schema
        """
        return self._nearest(new_rows(self, X))[0]

    def transform(self, X: ArrayLike) -> Floats:
        """Return the scaled distance of each record to each centre; local, costs nothing."""
        rows = new_rows(self, X)
        scaled = self._grid.normalise(rows), self._grid.normalise(self.cluster_centers_)
        return np.asarray(euclidean_distances(*scaled))

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Return minus the sum of squared scaled distances to the nearest centre.

        Local and exact for the given X: publishing it for private records is a release of its own.
        """
        return -float(self._nearest(new_rows(self, X))[1].sum())

    def _nearest(self, X: Floats) -> tuple[NDArray[np.int32], Floats]:
        """Return label and squared scaled distance of each record."""
        scaled = self._grid.normalise(X), self._grid.normalise(self.cluster_centers_)
        labels, distances = pairwise_distances_argmin_min(*scaled)
        return labels.astype(np.int32), distances**2

    def _label(self, local: Floats | None) -> None:
        """Keep the cluster of each record of a table, -1 for one that was left out; not private."""
        self.__dict__.pop("labels_", None)
        if local is None:
            return
        complete = np.isfinite(local).all(axis=1)
        self.labels_ = np.full(len(local), -1, dtype=np.int32)
        if complete.any():
            self.labels_[complete] = self._nearest(local[complete])[0]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what must not be stored: labels are made from the records."""
        state = dict(super().__getstate__())
        state.pop("labels_", None)
        return state
