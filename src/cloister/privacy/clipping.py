"""Bound a record before it is summed; each function states the bound it enforces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def clip_box(X: Floats, low: Floats | float, high: Floats | float) -> Floats:
    """Move each entry into ``[low, high]``; shape (n_samples, n_features), a copy."""
    return np.clip(X, low, high)


def clip_l2(X: Floats, clip_norm: float) -> Floats:
    """Scale each row to L2 norm at most `clip_norm`.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features), float64
    clip_norm : float, > 0, same units

    Returns
    -------
    ndarray of shape (n_samples, n_features), float64; a copy

    Notes
    -----
    Add/remove one record: the sum over rows then has L2 sensitivity `clip_norm`.
    """
    return _scale_rows(X, np.linalg.norm(X, axis=1), clip_norm)


def clip_l1(X: Floats, clip_norm: float) -> Floats:
    """Scale each row to L1 norm at most `clip_norm`; see :func:`clip_l2`."""
    return _scale_rows(X, np.abs(X).sum(axis=1), clip_norm)


def _scale_rows(X: Floats, norms: Floats, clip_norm: float) -> Floats:
    """Shrink rows whose norm is above the bound; rows without length stay as they are."""
    return X * (clip_norm / np.maximum(norms, clip_norm))[:, None]
