"""Bits shared by XOR: AND, comparison of unsigned words, equality, and rows that a bit keeps.

An array of bits is boolean at each server, so XOR and NOT are local. Words here are shared by XOR,
too, and never have to be below 2^62.

References
----------
I. Damgård et al., 2006, as in :mod:`cloister.shares.mpc.compare`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cloister.core.arrays import Flags
from cloister.hazmat.ring import WORD_BYTES, Words
from cloister.shares.mpc.compare import (
    WIDTHS,
    borrow,
    borrow_material,
    conjunction,
    conjunction_material,
    halves,
)
from cloister.shares.mpc.material import Material, Pick, Product, Sharing, fold_order
from cloister.shares.mpc.products import product
from cloister.shares.mpc.server import Server


def negated(server: Server, bits: Flags) -> Flags:
    """Return shares of NOT (semi-honest; the dealer with either server sees all); local."""
    return ~bits if server.index == 0 else bits


def both(server: Server, x: Flags, y: Flags) -> Flags:
    """Return shares of x AND y (semi-honest; the dealer with either server sees all).

    Of one shape; one round, two bits each way a pair.
    """
    found = product(server, _both_material(x.size), _packed(x), _packed(y))
    return np.unpackbits(found.view(np.uint8), count=x.size).astype(bool).reshape(x.shape)


def _both_material(n: int) -> Product:
    words = -(-n // 64)
    return Product("and", (words,), (words,))


def less(server: Server, x: Words, y: Words) -> Flags:
    """Return shares of x < y, unsigned (semi-honest; the dealer with either server sees all).

    It is the borrow of x - y: a bit generates one if x has 0 and y has 1, and propagates one if
    they are equal. Seven rounds, about 40 bytes each way a word.
    """
    server.expect(*less_material(x.size))
    ones = np.uint64(2**64 - 1 if server.index == 0 else 0)
    generate = product(server, Product("and", x.shape, y.shape), x ^ ones, y)
    return borrow(server, fold_order(generate), fold_order(x ^ y ^ ones)).astype(bool)


def less_material(n: int) -> list[Material]:
    """Return the material of :func:`less` of n words, in its order."""
    return [Product("and", (n,), (n,)), *borrow_material(n)]


def equal(server: Server, x: Words, y: Words) -> Flags:
    """Return shares of x == y (semi-honest; the dealer with either server sees all).

    The AND of all equal bits, by halves: six rounds, about 16 bytes each way a word.
    """
    server.expect(*(conjunction_material(x.size, 1, width) for width in WIDTHS))
    # NOT at one server alone: x == y where all 64 bits are 1.
    same = x ^ y ^ np.uint64(2**64 - 1 if server.index == 0 else 0)
    for width in WIDTHS:
        high, low = halves(same, width)
        same = conjunction(server, high, low[np.newaxis], width)[0]
    return (same & same.dtype.type(1)).astype(bool)


def all_set(server: Server, groups: Sequence[Flags]) -> list[bool]:
    """Open the AND of each group (semi-honest; the dealer with either server sees all).

    One bit of each group is all that the servers learn; True for no bits. ceil(log2 n) + 1 rounds
    for the largest group of n bits.
    """
    sizes = [group.size for group in groups]
    levels = []
    while max(sizes, default=0) > 1:
        levels.append([size // 2 for size in sizes])
        sizes = [size - size // 2 for size in sizes]
    server.expect(*(_both_material(sum(pairs)) for pairs in levels))
    for pairs in levels:
        left, right = (
            np.concatenate(
                [group[i * n : (i + 1) * n] for group, n in zip(groups, pairs, strict=True)]
            )
            for i in (0, 1)
        )
        found = np.split(both(server, left, right), np.cumsum(pairs)[:-1])
        # The odd one out waits for the next level.
        groups = [
            np.append(one, group[2 * n :])
            for one, group, n in zip(found, groups, pairs, strict=True)
        ]
    bits = [group[:1] if group.size else negated(server, np.zeros(1, bool)) for group in groups]
    (opened,) = server.open(np.concatenate(bits).astype(np.uint64), sharing=Sharing.XOR)
    return [bool(bit == 1) for bit in opened]


def pick(server: Server, bits: Flags, rows: Words) -> Words:
    """Return shares of rows, or of zeros (semi-honest; the dealer with either server sees all).

    Rows of shape (n, width), zeros where the bit is 0. One round, 8 width bytes and a bit each way
    a row.
    """
    return product(server, Pick(*rows.shape), _packed(bits), np.ascontiguousarray(rows))


def _packed(bits: Flags) -> Words:
    """Return bits as whole words, the last one padded with zeros."""
    packed = np.packbits(bits)
    return np.pad(packed, (0, -packed.size % WORD_BYTES)).view(np.uint64)


def in_parts(n: int, most: int = 1 << 20) -> list[slice]:
    """Return slices of at most `most` of n elements, which bound the memory of a step."""
    return [slice(start, min(n, start + most)) for start in range(0, n, most)]
