"""Clipped contributions of records: vectors of norm at most one unit.

A difference of two grid points is exact. It is divided by the larger of a public radius and its
own length. It is truncated toward zero on the lattice of step ``1 / unit``, so no norm grows. A
vector that still exceeds the integer bound is set to zero. The bound therefore does not depend on
an argument about rounding.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cloister.core.arrays import Floats, Integers, Records
from cloister.core.compiled import clipped_moments, clipped_sums, has_distances
from cloister.tasks.clustering.lloyd_kernel import add_by_label, assigned, nearest_centres
from cloister.tasks.moments import chunks, products_by_label, weighted_products

_COMPILED_PRODUCTS = 32  # columns; products of more are faster as a product of matrices
_IN_ROW = 64  # records that are reduced as one row


def clip_to_unit(differences: Integers, radii: int | Integers, unit: int) -> Integers:
    """Return differences divided by the larger of radius and length, in steps of ``1 / unit``.

    Rows of the result have a squared norm of at most ``unit**2``; radii are at least 1 grid step.
    """
    real = differences.astype(np.float64)
    clip_in_place(real, radii, unit)
    return real.astype(np.int64)


def clip_in_place(real: Floats, radii: int | Integers, unit: int) -> None:
    """Clip as :func:`clip_to_unit`, in place; `real` may be in column-major order."""
    lengths = np.sqrt(np.einsum("ij,ij->i", real, real))
    real *= unit
    real /= np.maximum(lengths, radii)[:, None]
    np.trunc(real, out=real)
    # Exact for units up to 2**26: a sum that floats round already exceeds the bound. The negated
    # comparison also zeroes NaN.
    real[~(np.einsum("ij,ij->i", real, real) <= unit**2)] = 0


def sum_clipped(records: Records, origin: Integers, radius: int, unit: int) -> Integers:
    """Sum the clipped differences of all records to one point; shape (n_features,).

    See :func:`sum_clipped_near`.
    """
    sums, _ = sum_clipped_near(records, origin[None], np.array([radius]), unit)
    return sums.ravel()


def sum_clipped_near(
    records: Records, centres: Integers, radii: Integers, unit: int
) -> tuple[Integers, Integers]:
    """Return, for each centre, the clipped sum and the count of the records nearest to it.

    Coordinates are in grid steps, the sums in steps of ``1 / unit`` of each centre's radius.
    Centres and radii may be any public numbers: a record changes one row, by a norm of at most
    `unit`. No coordinate of a record is larger than `unit`.
    """
    if has_distances(records, centres, unit):
        sums = clipped_sums(records, centres, radii, unit=unit, one=unit)
        return sums[:, :-1], sums[:, -1]
    sums = np.zeros((len(centres), records.shape[1] + 1), dtype=np.int64)
    origins = centres.T.astype(np.float64)
    for columns, labels, _ in assigned(records, centres):
        columns[:-1] -= origins.take(labels, axis=1)
        clip_in_place(columns[:-1].T, radii[labels], unit)
        sums += add_by_label(columns, labels, len(centres))  # exact: below 2**53
    return sums[:, :-1], sums[:, -1]


def sum_moments_near(
    records: Records,
    centres: Integers,
    radii: Integers,
    unit: int,
    reach: Integers,
    fine: int,
) -> tuple[Integers, Integers, Integers]:
    """Return :func:`sum_clipped_near`, and the second moments of records around their centres.

    The moments of a centre are :func:`cloister.tasks.moments.sum_products` of differences that are
    clipped at its `reach`, in steps of ``1 / fine``; shape (n_clusters, n_products).
    """
    if centres.shape[1] <= _COMPILED_PRODUCTS and has_distances(records, centres, unit):
        sums, moments = clipped_moments(
            records, centres, radii, reach, unit=unit, fine=fine, one=unit
        )
        return sums[:, :-1], sums[:, -1], weighted_products(moments)
    labels = nearest_centres(records, centres)

    def vectors(rows: Integers, label: int) -> Floats:
        away: Floats = records[rows] - centres[label].astype(np.float64)
        clip_in_place(away, reach[label], fine)
        return away

    sums, counts = sum_clipped_near(records, centres, radii, unit)
    return sums, counts, products_by_label(labels, len(centres), vectors)


def bin_numbers(coordinates: Floats, half_spans: Floats, bins: Integers) -> Integers:
    """Return the number of each point's cell in a box around zero, or of the nearest cell.

    Numbers are in ``[0, prod bins)``; the last axis varies fastest. `half_spans` and `bins` have
    an entry for each axis.
    """
    cells = coordinates.T + half_spans[:, None]
    cells *= (bins / (2 * half_spans))[:, None]
    np.floor(cells, out=cells)
    # A forged point outside the box still adds to one cell only.
    np.maximum(cells, 0, out=cells)
    np.minimum(cells, bins[:, None] - 1, out=cells)
    steps = np.cumprod(np.append(1, bins[:0:-1]))[::-1].astype(np.float64)
    return np.asarray(steps @ cells).astype(np.int64)


def differences(records: Records, origin: Integers) -> Iterator[Floats]:
    """Yield exact differences of records to a point in chunks."""
    parts = chunks(records)
    # NumPy is faster on one long row than on many short ones.
    row = np.tile(origin.astype(np.float64), max(map(len, parts), default=0))
    for chunk in parts:
        away = chunk.astype(np.float64).ravel()
        away -= row[: away.size]
        yield away.reshape(chunk.shape)


def of_columns(reduce: np.ufunc, records: Records) -> Integers:
    """Return the sum, the minimum or the maximum of each column and 0, in int64.

    Parameters
    ----------
    reduce : {np.add, np.minimum, np.maximum}
    """
    n, d = records.shape
    # NumPy is several times faster on long rows, so many records are one row first.
    whole = n // _IN_ROW * _IN_ROW
    rows, rest = records[:whole].reshape(-1, _IN_ROW * d), records[whole:]
    kind = np.int64 if reduce is np.add else records.dtype
    of_rows = reduce.reduce(rows, axis=0, dtype=kind, initial=0).reshape(-1, d)
    together = np.concatenate([of_rows, rest], dtype=np.int64)
    return np.asarray(reduce.reduce(together, axis=0))
