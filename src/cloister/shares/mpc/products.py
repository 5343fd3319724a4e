"""Products, truncation and polynomials on shares.

Shapes and options are public. Words have 16 fraction bits unless a function states otherwise.

References
----------
D. Beaver, "Efficient multiparty protocols using circuit randomization", 1991, section 3.
A. Dalskov, D. Escudero, M. Keller, "Secure evaluation of quantized neural networks", 2020,
section 4.2 (truncation with a dealt mask).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from cloister.hazmat.ring import Words
from cloister.shares.mpc.material import VALUE_BITS, Bilinear, Product, Square, Truncation
from cloister.shares.mpc.server import Server
from cloister.shares.mpc.shares import FRAC_BITS, encode


def product(server: Server, kind: Bilinear, x: Words, y: Words) -> Words:
    """Return shares of f(x, y), f bilinear (semi-honest; the dealer with either server sees all).

    Exact modulo 2^64, or bit by bit, by the method of :mod:`cloister.shares.mpc`; fraction bits add
    up. One round; 8 bytes each way for every word of x and of y.
    """
    (a, b), derived = server.take(kind)
    sharing = kind.sharing[0]
    e, d = server.open(sharing.rest(x, a), sharing.rest(y, b), sharing=sharing)
    # Server 0 computes f(e, d) together with f(e, b), which saves one product.
    cross = kind.apply(e, sharing.join(b, d) if server.index == 0 else b)
    return sharing.join(derived(), sharing.join(cross, kind.apply(a, d)))


def multiply(server: Server, x: Words, y: Words) -> Words:
    """Return shares of x * y (semi-honest; the dealer with either server sees all).

    Element by element, broadcast, untruncated; see :func:`product`.
    """
    return product(server, Product("multiply", x.shape, y.shape), x, y)


def matmul(server: Server, x: Words, y: Words) -> Words:
    """Return shares of x @ y (semi-honest; the dealer with either server sees all).

    x has shape (..., n, m), y (m, k); untruncated; see :func:`product`.
    """
    return product(server, Product("matmul", x.shape, y.shape), x, y)


def convolve(server: Server, x: Words, kernel: Words, stride: int = 1, padding: int = 0) -> Words:
    """Return shares of a convolution (semi-honest; the dealer with either server sees all).

    Images (n, c, h, w) are correlated with kernels (out, c, kh, kw), untruncated. Images and
    kernels are opened, not the windows, which have more words.
    """
    kind = Product("convolve", x.shape, kernel.shape, (stride, padding))
    return product(server, kind, x, kernel)


def square(server: Server, x: Words) -> Words:
    """Return shares of x^2 (semi-honest; the dealer with either server sees all).

    Untruncated: x^2 = a^2 + 2ea + e^2 with e = x - a opened. One round, 8 bytes each way a word.
    """
    (a,), derived = server.take(Square(x.shape))
    (e,) = server.open(x - a)
    # e is public, so only one server adds e^2.
    cross = np.uint64(2) * e * a
    return derived() + cross + (e * e if server.index == 0 else np.uint64(0))


def truncate(server: Server, x: Words, bits: int = FRAC_BITS) -> Words:
    """Return shares of x / 2^bits (semi-honest; the dealer with either server sees all).

    Rounded up or down: unbiased, with an error always below one unit.

    The dealer shares r, and c = x + 2^62 + r, which is uniform, is opened. The quotient is
    (c >> bits) - (r >> bits) - 2^(62 - bits), plus 2^(64 - bits) if c wrapped around. It wrapped
    exactly if r has its top bit set and c does not. That requires |x| < 2^62, which head-room
    proves when a program is planned. Shifting shares without a dealer fails with probability
    |x| / 2^64 a word.

    One round, 8 bytes each way a word.
    """
    (r,), derived = server.take(Truncation(x.shape, bits))
    lift = np.uint64(1 << VALUE_BITS if server.index == 0 else 0)
    (c,) = server.open(x + lift + r)
    shifted, top = derived()
    wrapped = top * (np.uint64(1) - (c >> np.uint64(63))) * np.uint64(1 << (64 - bits))
    result: Words = wrapped - shifted
    if server.index == 0:
        result = result + (c >> np.uint64(bits)) - np.uint64(1 << (VALUE_BITS - bits))
    return result


def times(server: Server, x: Words, y: Words, frac_bits: int = FRAC_BITS) -> Words:
    """Return shares of x * y, fixed point (semi-honest; the dealer with either server sees all).

    Element by element, truncated by the fraction bits of both; two rounds.
    """
    return truncate(server, multiply(server, x, y), frac_bits)


def scale(server: Server, x: Words, factor: ArrayLike) -> Words:
    """Return shares of x times constants (semi-honest; the dealer with either server sees all).

    Real factors, broadcast, |x * factor| < 2^30; no product is needed: one round.
    """
    return truncate(server, x * encode(factor))


def polynomial(
    server: Server,
    x: Words,
    coefficients: Sequence[float],
    frac_bits: int = FRAC_BITS,
    result_bits: int = FRAC_BITS,
) -> Words:
    """Return shares of a polynomial of x (semi-honest; the dealer with either server sees all).

    Its coefficients are public, the constant first, and equal at both servers to the last bit.
    Powers are computed by doubling: degree n takes about 2 log2(n) rounds. x, its powers and the
    coefficients have `frac_bits`. Every power, every coefficient times its power, and their sum
    must stay below 2^(61 - 2 frac_bits) in absolute value, 2^29 at 16 bits. So scale x to [-1, 1]
    where high coefficients are small; there, 24 bits give an error below two units of 16.
    """
    powers = [x]
    while len(powers) < len(coefficients) - 1:
        # Powers up to 2k follow from those up to k, in the two rounds of one product.
        room = len(coefficients) - 1 - len(powers)
        low = np.stack(powers[:room])
        powers += list(times(server, low, powers[-1][np.newaxis], frac_bits))
    total = x * np.uint64(0)
    for power, coefficient in zip(powers, coefficients[1:], strict=True):
        total = total + power * encode(coefficient, frac_bits)
    # The constant is added before the one truncation, so that the sum is rounded once.
    total = total + server.constant(coefficients[0], 2 * frac_bits)
    return truncate(server, total, 2 * frac_bits - result_bits)
