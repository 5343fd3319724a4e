"""Bits shared by XOR: AND, comparison of unsigned words, equality, and rows that a bit keeps.

An array of bits is boolean at each server, so XOR and NOT are local. Words here are shared by XOR,
too, and never have to be below 2^62.

References
----------
I. Damgård et al., 2006, as in :mod:`cloister.shares.mpc.compare`.
"""

from __future__ import annotations

import numpy as np

from cloister.core.arrays import Flags
from cloister.hazmat.ring import WORD_BYTES, Words
from cloister.shares.mpc.compare import borrow, conjunction, halves
from cloister.shares.mpc.material import Pick, Product, Sharing, fold_order
from cloister.shares.mpc.products import product
from cloister.shares.mpc.server import Server

_WIDTHS = (32, 16, 8, 4, 2, 1)


def negated(server: Server, bits: Flags) -> Flags:
    """Return shares of NOT (semi-honest; the dealer with either server sees all); local."""
    return ~bits if server.index == 0 else bits


def both(server: Server, x: Flags, y: Flags) -> Flags:
    """Return shares of x AND y (semi-honest; the dealer with either server sees all).

    Of one shape; one round, two bits each way a pair.
    """
    left, right = _packed(x), _packed(y)
    found = product(server, Product("and", left.shape, right.shape), left, right)
    return np.unpackbits(found.view(np.uint8), count=x.size).astype(bool).reshape(x.shape)


def less(server: Server, x: Words, y: Words) -> Flags:
    """Return shares of x < y, unsigned (semi-honest; the dealer with either server sees all).

    It is the borrow of x - y: a bit generates one if x has 0 and y has 1, and propagates one if
    they are equal. Seven rounds, about 46 bytes each way a word.
    """
    ones = np.uint64(2**64 - 1 if server.index == 0 else 0)
    generate = product(server, Product("and", x.shape, y.shape), x ^ ones, y)
    return borrow(server, fold_order(generate), fold_order(x ^ y ^ ones)).astype(bool)


def equal(server: Server, x: Words, y: Words) -> Flags:
    """Return shares of x == y (semi-honest; the dealer with either server sees all).

    The AND of all equal bits, by halves: six rounds, about 20 bytes each way a word.
    """
    # NOT at one server alone: x == y where all 64 bits are 1.
    same = x ^ y ^ np.uint64(2**64 - 1 if server.index == 0 else 0)
    for width in _WIDTHS:
        high, low = halves(same, width)
        same = conjunction(server, high, low[np.newaxis])[0]
    return (same & same.dtype.type(1)).astype(bool)


def all_set(server: Server, bits: Flags) -> bool:
    """Open the AND of all bits (semi-honest; the dealer with either server sees all).

    This one bit is all that the servers learn; True for no bits. ceil(log2 n) + 1 rounds.
    """
    # The odd one out waits for the next level.
    while bits.size > 1:
        half = bits.size // 2
        bits = np.append(both(server, bits[:half], bits[half : 2 * half]), bits[2 * half :])
    opened = server.open(bits.astype(np.uint64), sharing=Sharing.XOR)
    return bool((opened[0] == 1).all())


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
