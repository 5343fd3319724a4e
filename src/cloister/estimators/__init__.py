"""The scikit-learn face; the kernels stay in :mod:`cloister.tasks`."""

from __future__ import annotations

from cloister.estimators.kmeans import DPKMeans

__all__ = ["DPKMeans"]
