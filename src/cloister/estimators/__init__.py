"""The scikit-learn face; the kernels stay in :mod:`cloister.tasks`."""

from __future__ import annotations

from cloister.estimators.curator import CuratorKMeans
from cloister.estimators.kmeans import DPKMeans
from cloister.estimators.select_k import KSelection, select_k

__all__ = ["CuratorKMeans", "DPKMeans", "KSelection", "select_k"]
