"""Exact sums of records and of the products of their columns.

All floats here are integers below 2**53, so every sum is exact in any order. The contribution of a
record therefore depends only on the record and on public numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import isqrt

import numpy as np

from cloister.core.arrays import Floats, Integers, Records
from cloister.core.errors import PlanError

# A product of two columns fills two entries of a symmetric matrix, so its weight is sqrt(2) times
# that of a square. 7 / 5 is just below sqrt(2) and keeps the bound an integer.
SQUARE, PRODUCT = 5, 7
_NORM_BITS = 24  # of a contribution; leaves room in the ring for 2**32 records in 100 silos
_ALIKE = 1e-6  # relative difference that rounding may make
_CACHE_VALUES = 1 << 16  # the cache of a core holds as many floats
_CHUNK_VALUES = 1 << 20  # the sum of 256 times as many products of 24 bits is below 2**53


def n_products(n_features: int) -> int:
    """Return the number of different products of two columns, squares included."""
    return n_features * (n_features + 1) // 2


def lattice_bits(largest: int, frac_bits: int) -> int:
    """Return the bits of a lattice on which a record's vector leaves room in the ring.

    `largest` is the norm of the longest vector of products on the lattice of step 1. Each further
    bit multiplies it by 4. The lattice is at most as fine as the records' grid and as ``2**-12``.

    Raises
    ------
    PlanError
        If such a lattice would have fewer than 4 bits.
    """
    bits = min(12, frac_bits, (_NORM_BITS - largest.bit_length()) // 2)
    if bits < 4:
        raise PlanError(
            f"products of columns would have a norm of {largest} steps even on the coarsest "
            "lattice, which leaves no room for the sum of many silos; use fewer columns."
        )
    return bits


def products_norm_squared(n_features: int, bits: int) -> int:
    """Return the largest squared norm of the contribution of one row to :func:`sum_products`.

    Every term grows with ``|y_i|``, so the largest is at a corner of the box. The norm is less
    than that of the outer product times `SQUARE`, which is ``SQUARE * |y|^2``.
    """
    d = n_features
    return (SQUARE**2 * d + PRODUCT**2 * (d * (d - 1) // 2)) << (4 * bits)


def products_l1(n_features: int, bits: int) -> int:
    """Return the largest L1 norm of the contribution of one row to :func:`sum_products`."""
    d = n_features
    return (SQUARE * d + PRODUCT * (d * (d - 1) // 2)) << (2 * bits)


def sum_products(rows: Integers | Floats, weights: Integers | None = None) -> Integers:
    """Sum ``y_i y_j`` for ``i <= j`` over rows, times `SQUARE` on the diagonal, else `PRODUCT`.

    Each row's products are multiplied by its weight; a weighted product has at most 24 bits. The
    shape is (n_features * (n_features + 1) / 2,).
    """
    d = rows.shape[1]
    total = np.zeros((d, d), dtype=np.int64)
    size = max(1, _CHUNK_VALUES // d)
    for first in range(0, len(rows), size):
        chunk = rows[first : first + size].astype(np.float64)
        left = chunk if weights is None else chunk * weights[first : first + size, None]
        total += (left.T @ chunk).astype(np.int64)
    return weighted_products(total[upper_half(d)])


def weighted_products(sums: Integers) -> Integers:
    """Return sums of ``y_i y_j`` for ``i <= j`` with the factors of :func:`sum_products`."""
    upper = upper_half(_side(sums))
    return sums * np.where(upper[0] == upper[1], SQUARE, PRODUCT)


def products_by_label(
    labels: Integers, n_labels: int, vectors: Callable[[Integers, int], Floats]
) -> Integers:
    """Return :func:`sum_products` of the vectors of each label; shape (n_labels, n_products).

    `vectors` maps the indices of records of a label, and the label, to whole numbers. The squared
    norm of a row times the number of records is below 2**53.
    """
    # The smallest type, since small numbers are sorted faster.
    order = np.argsort(labels.astype(np.min_scalar_type(n_labels)), kind="stable")
    ends = np.cumsum(np.bincount(labels, minlength=n_labels))
    width = vectors(order[:0], 0).shape[1]
    size = max(256, _CACHE_VALUES // width)
    sums = np.zeros((n_labels, n_products(width)), dtype=np.int64)
    for label, own in enumerate(np.split(order, ends[:-1])):
        for first in range(0, len(own), size):
            sums[label] += sum_products(vectors(own[first : first + size], label))
    return sums


def products(rows: Integers) -> Integers:
    """Return the contribution of each row to :func:`sum_products`.

    The shape is (n_samples, n_products).
    """
    first, second = upper_half(rows.shape[1])
    return rows[:, first] * rows[:, second] * np.where(first == second, SQUARE, PRODUCT)


@cache
def upper_half(size: int) -> tuple[Integers, Integers]:
    """Return the indices of the upper half of a symmetric matrix, row by row."""
    return np.triu_indices(size)


def symmetric(packed: Floats) -> Floats:
    """Return the symmetric matrices of upper halves that are packed row by row."""
    size = _side(packed)
    upper = upper_half(size)
    matrix = np.zeros((*packed.shape[:-1], size, size))
    matrix[..., upper[0], upper[1]] = packed
    matrix[..., upper[1], upper[0]] = packed
    return matrix


def _side(packed: Floats | Integers) -> int:
    """Return the number of columns of which the last axis has the products."""
    return (isqrt(8 * packed.shape[-1] + 1) - 1) // 2


def unpack_products(sums: Floats, n_features: int) -> Floats:
    """Return the symmetric matrix that :func:`sum_products` packed; shape (..., d, d)."""
    upper = upper_half(n_features)
    return symmetric(sums / np.where(upper[0] == upper[1], SQUARE, PRODUCT))


def with_one_sign(vectors: Floats) -> Floats:
    """Return vectors, along the last axis, whose sign is the same on all machines.

    The sign of an eigenvector is arbitrary. Its largest entry becomes positive: of entries that
    are equal but for rounding, the first.
    """
    sizes = np.abs(vectors)
    at = (sizes >= (1 - _ALIKE) * sizes.max(axis=-1, keepdims=True)).argmax(axis=-1)
    signs = np.sign(np.take_along_axis(vectors, at[..., None], axis=-1))
    return np.asarray(vectors * signs)


def chunks(records: Records) -> list[Records]:
    """Split records into chunks whose work space stays small."""
    rows = max(256, _CACHE_VALUES // max(records.shape[1], 1))
    return [records[first : first + rows] for first in range(0, len(records), rows)]
