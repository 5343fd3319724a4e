"""Exact sums of the records of each label."""

from __future__ import annotations

from math import isqrt

import numpy as np

from cloister.core.arrays import Integers, Records

_SAFE_ROWS = 1 << 28  # the sum of so many grid values of 24 bits is below 2**53


def sum_by_label(records: Records, labels: Integers, n_labels: int) -> Integers:
    """Sum the records that share a label in ``[0, n_labels)``; a label of `n_labels` is dropped."""
    sums = np.zeros((n_labels, records.shape[1]), dtype=np.int64)
    for first in range(0, len(records), _SAFE_ROWS):
        part, of = records[first : first + _SAFE_ROWS], labels[first : first + _SAFE_ROWS]
        for column, values in enumerate(part.T):
            found = np.bincount(of, weights=values, minlength=n_labels + 1)
            sums[:, column] += found[:n_labels].astype(np.int64)
    return sums


def drop_long(labels: Integers, rows: Integers | Records, bound_squared: int, drop: int) -> None:
    """Give the label `drop` to rows whose squared norm is above the bound; it is the law."""
    long = (rows.astype(np.int64) ** 2).sum(axis=1) > bound_squared
    labels[long] = drop


def ceil_sqrt(squared: int) -> int:
    """Return the smallest integer whose square is at least `squared`."""
    return isqrt(max(squared - 1, 0)) + 1 if squared > 0 else 0
