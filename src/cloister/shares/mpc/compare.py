"""The sign of a value on shares, with ReLU and selection based on it.

References
----------
I. Damgård, M. Fitzi, E. Kiltz, J. B. Nielsen, T. Toft, "Unconditionally secure constant-rounds
multi-party computation for equality, comparison, bits and exponentiation", 2006, sections 3-5:
comparison by a masked opening and shared bits of the mask.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cloister.hazmat.ring import WORD_BYTES, Words
from cloister.shares.mpc.material import BitAsWord, Bits, Material, Product, fold_order
from cloister.shares.mpc.products import multiply, product
from cloister.shares.mpc.server import Server

_ONE, _TOP = np.uint64(1), np.uint64(1 << 63)  # fold_order leaves the top bit where it is
_Array = NDArray[np.unsignedinteger]
WIDTHS = (32, 16, 8, 4, 2, 1)
"""Bits that are left after each fold of a word."""


def negative(server: Server, x: Words) -> Words:
    """Return shares of 1 where x < 0, else 0 (semi-honest; the dealer with either server sees all).

    Integers, without fraction bits; exact for every word.

    The dealer shares r bit by bit, and c = x + r is opened. The top bit of x is the sum of three
    bits: the top bits of c and r, and the borrow of the low 63 bits of c - r. A bit "generates" a
    borrow if c has 0 and r has 1, and "propagates" one if they are equal. In a tree, a pair of
    neighbours generates if its higher bit does, or the higher propagates and the lower generates.

    Eight rounds; about 32 bytes each way a word. Every opened bit is masked by a fresh one.
    """
    return to_words(server, _sign_bits(server, x))


def relu(server: Server, x: Words) -> Words:
    """Return shares of max(x, 0) (semi-honest; the dealer with either server sees all).

    Exact; nine rounds, about 48 bytes each way a word.
    """
    return multiply(server, x, server.constant(np.ones(x.shape), 0) - negative(server, x))


def select(server: Server, bit: Words, x: Words, y: Words) -> Words:
    """Return shares of x or y by a bit (semi-honest; the dealer with either server sees all).

    x where `bit` is 0, y where it is 1. One round; `bit` is an integer, 0 or 1, and broadcasts.
    """
    return x + multiply(server, bit, y - x)


def to_words(server: Server, bits: Words) -> Words:
    """Return shares of bits as words (semi-honest; the dealer with either server sees all).

    The input is shared by XOR, one bit per word, the output modulo 2^64.
    With a random bit b dealt in both forms and e = bit ^ b opened, bit = e + b - 2eb.
    One round, one bit each way a word.
    """
    (b,), derived = server.take(BitAsWord(bits.shape))
    own = ((bits ^ b) & _ONE).astype(np.uint8)
    (other,) = server.swap([np.packbits(own).tobytes()])
    found = np.unpackbits(np.frombuffer(other, np.uint8), count=own.size).reshape(own.shape)
    server.see(found.ravel())
    e = (own ^ found).astype(np.uint64)
    known = e if server.index == 0 else np.uint64(0)
    return known + derived() * (_ONE - np.uint64(2) * e)


def _sign_bits(server: Server, x: Words) -> Words:
    """Return the top bits of x, shared by XOR, one bit per word."""
    (r,), derived = server.take(Bits(x.shape))
    (c,) = server.open(x + r)
    c = fold_order(c)
    bits = derived()
    zeros = ~c if server.index == 0 else np.uint64(0)
    generate, propagate = bits & ~c, bits ^ zeros
    # The top bit is not part of the borrow, so it propagates the borrow from below.
    generate &= ~_TOP
    propagate = (propagate & ~_TOP) | (_TOP if server.index == 0 else np.uint64(0))
    top = (bits ^ (c if server.index == 0 else np.uint64(0))) >> np.uint64(63)
    return top ^ borrow(server, generate, propagate)


def borrow(server: Server, generate: Words, propagate: Words) -> Words:
    """Return the borrow of each word (semi-honest; the dealer with either server sees all).

    The 64 (generate, propagate) pairs of a word, in the order of :func:`fold_order`, fold into one
    bit, shared by XOR. Six rounds, about 24 bytes each way a word.
    """
    g: _Array = generate
    p: _Array = propagate
    for width in WIDTHS:
        (g_high, g_low), (p_high, p_low) = halves(g, width), halves(p, width)
        # Both ANDs share one factor, which is opened once. The last fold needs no propagation.
        passed = conjunction(server, p_high, np.stack([g_low, p_low][: _folds(width)]), width)
        g, p = g_high ^ passed[0], passed[-1]
    return g.astype(np.uint64) & _ONE


def borrow_material(n: int) -> list[Material]:
    """Return the material of :func:`borrow` of n words, in its order."""
    return [conjunction_material(n, _folds(width), width) for width in WIDTHS]


def _folds(width: int) -> int:
    return 1 if width == 1 else 2


def halves(words: _Array, width: int) -> tuple[_Array, _Array]:
    """Return the higher and the lower `width` bits of each element."""
    kind = np.dtype(f"u{max(1, width // 8)}")
    if width < 8:
        mask = kind.type((1 << width) - 1)
        return (words >> kind.type(width)) & mask, words & mask
    size = kind.itemsize * 8
    return (words >> words.dtype.type(size)).astype(kind), words.astype(kind)


def conjunction(server: Server, x: _Array, y: _Array, width: int) -> _Array:
    """Return shares of x & y (semi-honest; the dealer with either server sees all).

    x has shape (...) and y (k, ...), both of one integer type, shared by XOR. Bits above the lowest
    `width` are 0 and do not travel. x is opened once.
    """
    kind = conjunction_material(x.size, len(y), width)
    left, right = (_packed(each, width) for each in (x[np.newaxis], y))
    return _unpacked(product(server, kind, left, right), y, width)


def conjunction_material(n: int, k: int, width: int) -> Product:
    """Return the material of :func:`conjunction` of n elements with k others."""
    words = -(-n * width // 64)
    return Product("and", (1, words), (k, words))


def _packed(values: _Array, width: int) -> Words:
    """Return the lowest bits of each row's elements as whole words, padded with zeros."""
    rows = values.reshape(len(values), -1)
    found: _Array = rows
    if width == 1:
        found = np.packbits(rows, axis=1)
    elif width < 8:
        # Elements that are far apart share a byte, so that no byte is touched alone.
        step = _step(rows.shape[1], width)
        found = np.zeros((len(rows), step), np.uint8)
        for shift in range(0, 8, width):
            part = rows[:, shift // width * step :][:, :step]
            found[:, : part.shape[1]] |= part << np.uint8(shift)
    short = -found.shape[1] % (WORD_BYTES // found.dtype.itemsize)
    if short:
        found = np.pad(found, ((0, 0), (0, short)))
    return np.ascontiguousarray(found).view(np.uint64)


def _unpacked(words: Words, like: _Array, width: int) -> _Array:
    """Return elements from words of :func:`_packed`, in the shape and type of others."""
    n = like.size // len(like)
    found: _Array = words.view(like.dtype)
    if width == 1:
        found = np.unpackbits(found, axis=1, count=n)
    elif width < 8:
        found = found[:, : _step(n, width)]
        mask = np.uint8((1 << width) - 1)
        shifts = range(0, 8, width)
        found = np.concatenate([found >> np.uint8(shift) & mask for shift in shifts], axis=1)
    return found[:, :n].reshape(like.shape)


def _step(n: int, width: int) -> int:
    """Return the number of bytes of n elements of less than 8 bits."""
    return -(-n * width // 8)
