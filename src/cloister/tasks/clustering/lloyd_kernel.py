"""The local step of every Lloyd-type task: exact integer sums of the records near each centre.

The NumPy code here is the reference and runs if no compiled module is installed.
`cloister.core.compiled` has the same loops for the processor of this machine.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cloister.core.arrays import Floats, Integers, Records
from cloister.core.compiled import has_distances, near_sums, nearest_of, two_nearest_of
from cloister.core.errors import PlanError

_CHUNK_BYTES = 1 << 20  # the distances and one-hot rows of a chunk fit the cache
_EXACT = 2**53  # float64 adds and multiplies integers below this without rounding


def check_exact(n_clusters: int, n_features: int, frac_bits: int, reach: int = 1) -> None:
    """Raise PlanError if the distances would not be exact integers in float64.

    Coordinates of records are at most 1, and coordinates of centres at most `reach`.
    """
    best = finest_exact(n_clusters, n_features, frac_bits, reach)
    if best < frac_bits:
        hint = f"use frac_bits={best}" if best > 3 else "use fewer clusters or columns"
        raise PlanError(
            f"frac_bits={frac_bits} is too fine for exact distances with n_clusters={n_clusters} "
            f"and {n_features} columns; {hint}."
        )


def finest_exact(n_clusters: int, n_features: int, frac_bits: int, reach: int = 1) -> int:
    """Return the largest number of bits with exact distances; see :func:`check_exact`."""
    # A squared distance times the number of slots must be below 2**53.
    size = (1 + reach) ** 2 * n_features * _slots(n_clusters)
    return next(bits for bits in range(frac_bits, -64, -1) if size * 4.0**bits < _EXACT)


def sum_near_centres(
    records: Records,
    centres: Integers,
    *,
    radius_squared: int,
    relative: bool,
    count_weight: int,
    one: int | None = None,
) -> Integers:
    """Return, for each centre, the sum of the records nearest to it.

    Parameters
    ----------
    records : ndarray of shape (n_samples, n_features), int32, grid steps
    centres : ndarray of shape (n_clusters, n_features), int64, grid steps
    radius_squared : int
        A record is skipped if the squared norm of its contribution is larger.
    relative : bool
        A record adds ``record - centre`` if True, and ``record`` itself if False.
    count_weight : int
        Contribution of each counted record to the last column.
    one : int, optional, grid steps
        Bound on the coordinates of records; computed from them by default.

    Returns
    -------
    ndarray of shape (n_clusters, n_features + 1), int64
        Sums and, in the last column, ``count_weight`` times the number of records.

    Notes
    -----
    All floats below are integers smaller than 2**53 (:func:`check_exact`), so every sum and
    product is exact in any order. The result is the same on every machine and for every split of
    the records. The low bits of a distance hold the label: one minimum per record gives both, and
    ties go to the smaller index. Time O(n k d), no n x k x d array.
    """
    one = _largest(records) if one is None else one
    if has_distances(records, centres, one):
        sums = near_sums(
            records, centres, radius_squared=radius_squared, relative=relative, one=one
        )
    else:
        sums = _sums_in_numpy(records, centres, radius_squared, relative)
    if relative:
        # The sums of records less their centres: one product per centre, not one per record.
        sums[:, :-1] -= sums[:, -1:] * centres
    sums[:, -1] *= count_weight
    return sums


def _sums_in_numpy(
    records: Records, centres: Integers, radius_squared: int, relative: bool
) -> Integers:
    """Return sums of the records themselves, and their counts."""
    n_clusters = len(centres)
    sums = np.zeros((n_clusters, records.shape[1] + 1), dtype=np.int64)
    for columns, labels, closeness in assigned(records, centres):
        squared = np.einsum("ij,ij->j", columns[:-1], columns[:-1])
        if relative:
            squared += closeness  # closeness lacks the squared norm of the record
        labels[squared > radius_squared] = n_clusters  # a bin after the last, which is dropped
        sums += add_by_label(columns, labels, n_clusters)
    return sums


def nearest_centres(records: Records, centres: Integers, one: int | None = None) -> Integers:
    """Return the exact nearest centre of each record, the first of several.

    `one` is a bound on the coordinates of records; computed from them by default.
    """
    one = _largest(records) if one is None else one
    if has_distances(records, centres, one):
        return nearest_of(records, centres, one=one)
    nearest = np.empty(len(records), dtype=np.int64)
    start = 0
    for _, labels, _ in assigned(records, centres):
        nearest[start : start + len(labels)] = labels
        start += len(labels)
    return nearest


def two_nearest(
    records: Records, centres: Integers, one: int | None = None
) -> tuple[Integers, Integers, Integers, Integers]:
    """Return the exact nearest and second nearest centre of each record, the first of several.

    `one` is a bound on the coordinates of records; computed from them by default.

    Returns
    -------
    first, second : ndarray of shape (n_samples,), int64
        The same for a single centre.
    least, more : ndarray of shape (n_samples,), int64
        The squared distances to them.
    """
    one = _largest(records) if one is None else one
    if has_distances(records, centres, one):
        first, second, least, more = two_nearest_of(records, centres, one=one)
        return first, second, least, more
    slots, weights = _slots(len(centres)), _weights(centres)
    chunk = max(256, _CHUNK_BYTES // (8 * (len(centres) + records.shape[1])))
    parts = [np.zeros((4, 0), dtype=np.int64)]
    for start in range(0, len(records), chunk):
        rows = np.ones((records.shape[1] + 1, len(records[start : start + chunk])))
        rows[:-1] = records[start : start + chunk].T
        scores = weights @ rows
        squared = np.einsum("ij,ij->j", rows[:-1], rows[:-1]).astype(np.int64)
        best = scores.min(axis=0)
        if len(centres) > 1:
            scores[scores == best] = np.inf  # a score has its label, so no other one is equal
        both = np.stack([best, scores.min(axis=0)]).astype(np.int64)
        parts.append(np.concatenate([both & (slots - 1), both // slots + squared]))
    first, second, least, more = np.concatenate(parts, axis=1)
    return first, second, least, more


def assigned(records: Records, centres: Integers) -> Iterator[tuple[Floats, Integers, Integers]]:
    """Yield the records in chunks, with their exact nearest centres.

    Yields
    ------
    columns : ndarray of shape (n_features + 1, n_chunk), float64
        The records' columns, then ones. The next chunk overwrites it; the caller may do so, too.
    labels : ndarray of shape (n_chunk,), int64
    closeness : ndarray of shape (n_chunk,), int64
        Squared distance to the nearest centre, less the squared norm of the record.
    """
    n_samples, n_features = records.shape
    n_clusters, slots = len(centres), _slots(len(centres))
    one_hot_rows = n_clusters if _by_product(n_clusters, n_features) else 1
    chunk = max(256, _CHUNK_BYTES // (8 * (n_clusters + one_hot_rows + n_features)))
    weights = _weights(centres)
    columns = np.ones((n_features + 1, min(chunk, n_samples)))
    for start in range(0, n_samples, chunk):
        batch = records[start : start + chunk]
        rows = columns[:, : len(batch)]
        rows[:-1] = batch.T
        scores = np.minimum.reduce(weights @ rows, axis=0).astype(np.int64)
        yield rows, scores & (slots - 1), scores // slots


def _largest(records: Records) -> int:
    """Return the largest absolute value of a coordinate, at least 1."""
    # No absolute values: they would need a copy of the records.
    return max(int(records.max()), -int(records.min()), 1) if records.size else 1


def _weights(centres: Integers) -> Floats:
    """Return the matrix that maps a record and 1 to its scores: slots * distance + label.

    The squared distance lacks the square of the record, which is the same for all centres.
    """
    # A power of two in `slots`, so that a mask and a division recover label and distance.
    slots = _slots(len(centres))
    offsets = slots * (centres**2).sum(axis=1) + np.arange(len(centres))
    return np.column_stack([-2.0 * slots * centres, offsets])


def _slots(n_clusters: int) -> int:
    """Return the smallest power of two that holds every label."""
    return 1 << (n_clusters - 1).bit_length()


def add_by_label(columns: Floats, labels: Integers, n_clusters: int) -> Integers:
    """Sum integers by label; shape (n_clusters, n_rows).

    Labels of at least `n_clusters` are dropped.
    """
    if not _by_product(n_clusters, len(columns) - 1):
        sums = [np.bincount(labels, weights=row, minlength=n_clusters) for row in columns]
        return np.array(sums).T[:n_clusters].astype(np.int64)
    small = np.min_scalar_type(n_clusters)  # comparisons of small types are faster
    one_hot = labels.astype(small) == np.arange(n_clusters, dtype=small)[:, None]
    return np.asarray(one_hot.astype(np.float64) @ columns.T).astype(np.int64)


def _by_product(n_clusters: int, n_features: int) -> bool:
    """Return True if a matrix product is faster than sums by column, as measured."""
    return n_features > 4 and n_clusters <= 4 * n_features
