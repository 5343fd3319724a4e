"""What one record adds when it is clipped instead of dropped: vectors of norm at most one unit.

A difference of two grid points is exact. It is divided by a public radius, or by its own length if
that is larger, and cut toward zero on the lattice of step ``1 / unit``: a norm never grows. What
still breaks the integer bound is set to zero, so the bound is a fact and not an argument about
rounding.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cloister.core.arrays import Floats, Integers, Records
from cloister.core.compiled import clipped_sums, has_distances
from cloister.tasks.clustering.lloyd_kernel import add_by_label, assigned

_CHUNK_VALUES = 1 << 16  # whose floats a core's cache holds


def clip_to_unit(differences: Integers, radii: int | Integers, unit: int) -> Integers:
    """Return differences divided by the larger of radius and length, in steps of ``1 / unit``.

    Rows of the result have a squared norm of at most ``unit**2``; radii are at least 1 grid step.
    """
    real = differences.astype(np.float64)
    clip_in_place(real, radii, unit)
    return real.astype(np.int64)


def clip_in_place(real: Floats, radii: int | Integers, unit: int) -> None:
    """Do what :func:`clip_to_unit` says in place; `real` may have its columns in one piece."""
    lengths = np.sqrt(np.einsum("ij,ij->i", real, real))
    real *= unit
    real /= np.maximum(lengths, radii)[:, None]
    np.trunc(real, out=real)
    # Exact for units up to 2**26: a sum that floats round is beyond the bound already.
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
    """Sum, for each centre, the clipped differences of the records nearest to it, and count them.

    All is in grid steps, the sums in steps of ``1 / unit`` of each centre's radius. Centres and
    radii are any public numbers: a record touches one row, and that with norm at most `unit`. No
    coordinate of a record is larger than `unit`.
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


def bin_numbers(coordinates: Floats, half_spans: Floats, bins: Integers) -> Integers:
    """Return the number of the cell of a box around zero in which each point lies, or is nearest.

    Numbers are in ``[0, prod bins)``, the last axis fastest; spans and bins are of each axis.
    """
    numbers = np.zeros(len(coordinates))
    for column, half, m in zip(coordinates.T, half_spans, bins, strict=True):
        places = np.floor((column + half) * (m / (2 * half)))
        numbers *= m
        numbers += np.clip(places, 0, m - 1, out=places)
    return numbers.astype(np.int64)


def differences(records: Records, origin: Integers) -> Iterator[Floats]:
    """Yield records less a point, part by part and exact, with a row for each of their columns."""
    for part in chunks(records):
        yield np.subtract(part.T, origin[:, None].astype(np.float64), order="C")


def chunks(records: Records) -> list[Records]:
    """Split records into parts whose work space stays small."""
    rows = max(256, _CHUNK_VALUES // max(records.shape[1], 1))
    return [records[first : first + rows] for first in range(0, len(records), rows)]
