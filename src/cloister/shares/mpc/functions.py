"""Functions built from products and comparisons: maximum, division, sigmoid, softmax.

Words have 16 fraction bits and a unit is 2^-16. Values may have the range of
:func:`cloister.shares.mpc.encode` unless a function states less. Shapes and options are public.

Sigmoid, exponential and reciprocal use one idea. Comparisons bring x into [-1, 1], where a
polynomial with 24 fraction bits has an error below the last unit. Its coefficients are constants,
not fitted at run time, since two machines that round a fit differently would compute shares of
different polynomials. No value leaves the fitted interval, so nothing diverges.

References
----------
T. Ryffel, P. Tholoniat, D. Pointcheval, F. Bach, "AriaNN", 2022, section 4 (tournaments).
O. Catrina, A. Saxena, "Secure computation with fixed-point numbers", 2010, section 4.3
(division by normalised denominators; theirs ends in iterations, ours in a polynomial).
"""

from __future__ import annotations

import math

import numpy as np

from cloister.core.errors import PlanError
from cloister.hazmat.ring import Words
from cloister.shares.mpc.compare import negative, relu
from cloister.shares.mpc.products import multiply, polynomial, times, truncate
from cloister.shares.mpc.server import Server
from cloister.shares.mpc.shares import FRAC_BITS

FINE_BITS = 24
"""Fraction bits inside a polynomial; |p| 2^48 stays far below 2^62."""

# Minimax polynomials in u of [-1, 1], found by linear programming; tests measure their errors.
# 1 / (1 + exp(-t)) at t = 4 (u + 1), bent so that p(1) is half-way between its value at 8 and
# 1: off by 1.68e-4 at most over all t >= 0, and never above 1 - 1.67e-4.
_SIGMOID_END = 8 << FRAC_BITS
_SIGMOID = (
    0.981863406, 0.070014633, -0.130614548, 0.17489605, -0.177616253,
    0.06671699, 0.06679689, -0.061688912, 0.009464069,
)  # fmt: skip
# exp(t) at t = (u - 1) 256 / 43, bent in the same way towards 0 at u = -1: off by 3.4e-6.
_EXP_SLOPE, _EXP_SHIFT = 43, 8  # u = 43/256 t + 1: exact in 24 fraction bits
_EXP_END = (2 << FINE_BITS) // _EXP_SLOPE  # 11.9, in units
_EXP = (
    0.002598054, 0.015420531, 0.045916745, 0.092354569, 0.137299048, 0.154211105, 0.153686743,
    0.160638644, 0.118264211, 0.031199261, 0.019699928, 0.046175884, 0.022538636,
)  # fmt: skip
# 1 / v at v = (u + 3) / 4, which is in [1/2, 1]: off by 3.7e-7.
_RECIPROCAL = (
    1.333333497, -0.444441201, 0.148142589, -0.049424541, 0.016496919,
    -0.005341353, 0.001745353, -0.000792543, 0.000281643,
)  # fmt: skip

_MOST_DOUBLINGS = 24  # between the ends of a denominator's range; the head-room of `divide`


# The largest of many ----------------------------------------------------------------------------


def maximum(server: Server, x: Words) -> Words:
    """Return shares of the largest (semi-honest; the dealer with either server sees all).

    Over the last axis, which is removed; max pooling applies it to windows. A tournament, exact for
    |x| < 2^62: n - 1 comparisons, nine rounds for each of ceil(log2 n) levels, at most 54 bytes
    each way an element.
    """
    return _tournament(server, x, np.zeros((*x.shape, 0), np.uint64))[0]


def argmax_one_hot(server: Server, x: Words) -> Words:
    """Return 1 at the largest, else 0 (semi-honest; the dealer with either server sees all).

    Over the last axis, which is kept; integers, without fraction bits. **Ties: the lowest index.**
    Exact for |x| < 2^62; nine rounds for each of ceil(log2 n) levels, at most
    62 + 8 ceil(log2 n) bytes each way an element (82 for n = 10).
    """
    who = _tournament(server, x, server.constant(np.ones((*x.shape, 1)), 0))[1]
    return who[..., : x.shape[-1]]


def argmax(server: Server, x: Words) -> Words:
    """Return the largest's index (semi-honest; the dealer with either server sees all).

    Over the last axis, which is removed; integers, without fraction bits. **Ties: the lowest
    index.** Cost and range of :func:`argmax_one_hot`: the index is a local sum of it.
    """
    one_hot = argmax_one_hot(server, x)
    places = np.arange(one_hot.shape[-1], dtype=np.uint64)
    index: Words = (one_hot * places).sum(axis=-1, dtype=np.uint64)
    return index


def _tournament(server: Server, x: Words, who: Words) -> tuple[Words, Words]:
    """Return the largest along the last axis, and its index one-hot.

    Neighbours compete, so the left one of a pair always has the lower indices, and it loses only to
    a strictly larger value. `who` has one more axis with the one-hot index of each block's winner
    in its block. It is 1 at the start, when a block is one element, and empty if not needed.
    """
    if x.ndim == 0 or x.shape[-1] == 0:
        raise PlanError(
            f"the largest of no values is undefined, got shape {x.shape}; pass at least one."
        )
    while (n := x.shape[-1]) > 1:
        even, width = n // 2 * 2, who.shape[-1]
        left, right, odd = x[..., 0:even:2], x[..., 1:even:2], x[..., even:]
        first, second, rest = who[..., 0:even:2, :], who[..., 1:even:2, :], who[..., even:, :]
        loses = negative(server, left - right)[..., np.newaxis]
        # One product serves the values and both blocks: they share the factor.
        both = np.concatenate([first, second, (right - left)[..., np.newaxis]], axis=-1)
        moved = multiply(server, loses, both)
        who = np.concatenate([first - moved[..., :width], moved[..., width:-1]], axis=-1)
        rest = np.concatenate([rest, np.zeros_like(rest)], axis=-1)
        who = np.concatenate([who, rest], axis=-2)
        x = np.concatenate([left + moved[..., -1], odd], axis=-1)
    return x[..., 0], who[..., 0, :]


# Bounded functions ------------------------------------------------------------------------------


def clip(server: Server, x: Words, low: float, high: float) -> Words:
    """Return shares of x within bounds (semi-honest; the dealer with either server sees all).

    x + ReLU(low - x) - ReLU(x - high); exact, the bounds rounded to a unit. Nine rounds, about
    108 bytes each way a value.
    """
    if not low <= high:
        raise PlanError(f"low must not be above high, got {low} and {high}.")
    below, above = relu(server, np.stack([server.constant(low) - x, x - server.constant(high)]))
    clipped: Words = x + below - above
    return clipped


def sigmoid(server: Server, x: Words) -> Words:
    """Return shares of 1 / (1 + exp(-x)) (semi-honest; the dealer with either server sees all).

    Three parallel comparisons give t = min(|x|, 8). With a polynomial p of degree 8 the result is
    p(t), or 1 - p(t) for negative x. The error is below 2e-4 **for every x**: 1.68e-4 of the
    polynomial, the rest rounding. As an integer it is **always within [0, 2^16]**, since p(t) is in
    [1/2, 1 - 1.67e-4] up to 1.7e-4. That is more than ten units, and rounding adds less than two.
    17 rounds, about 322 bytes each way a value.
    """
    end = server.constant(8.0)
    candidates = np.stack([x, end - x, x + end])
    bits = negative(server, candidates)
    # |x| = x - 2 x [x < 0], less the excess over 8 on either side.
    parts = multiply(server, bits, np.stack([x + x, end - x, x + end]))
    size = x - parts[0] + parts[1] + parts[2]
    # t / 4 - 1: two fraction bits more for the quarter, six more to reach 24.
    u = size * np.uint64(1 << 6) - server.constant(1.0, FINE_BITS)
    p = polynomial(server, u, _SIGMOID, FINE_BITS)
    return p + multiply(server, bits[0], server.constant(1.0) - p - p)


def tanh(server: Server, x: Words) -> Words:
    """Return shares of tanh(x) (semi-honest; the dealer with either server sees all).

    2 sigmoid(2 x) - 1: error below 4e-4, always within [-1, 1]; cost of :func:`sigmoid`.
    """
    s = sigmoid(server, x + x)
    return s + s - server.constant(1.0)


def exp(server: Server, x: Words) -> Words:
    """Return shares of exp(x) for x <= 0 (semi-honest; the dealer with either server sees all).

    A polynomial of degree 12 of max(x, -11.9); below that, exp(x) is less than half a unit. The
    error is below two units, 3e-5, and the result at most one unit below 0 or above 1. For x > 0
    the result is wrong without an error. 18 rounds, about 270 bytes each way a value.
    """
    beyond = x + server.constant(_EXP_END, 0)
    t = relu(server, beyond) - server.constant(_EXP_END, 0)
    u = t * np.uint64(_EXP_SLOPE) + server.constant(1.0, FINE_BITS)
    return polynomial(server, u, _EXP, FINE_BITS)


def softmax(server: Server, x: Words) -> Words:
    """Return shares of the softmax (semi-honest; the dealer with either server sees all).

    exp(x) / sum(exp(x)) over the last axis of n < 2^15. The largest is subtracted first, so no
    exponent is positive and the sum is in [1, n], the public range of the reciprocal. The error is
    below 5 + n units; the result is within [0, 1] up to n + 5 units. At most 40 + 9 ceil(log2 n)
    rounds, about 370 bytes each way an element for n = 10.
    """
    n = x.shape[-1] if x.ndim else 0
    if n >= 1 << 15:
        raise PlanError(f"softmax must be of fewer than {1 << 15} scores, got {n}.")
    e = exp(server, x - maximum(server, x)[..., np.newaxis])
    # Each of n exponentials may be one unit low, the largest two, so the range starts below 1.
    total = e.sum(axis=-1, keepdims=True, dtype=np.uint64)
    return times(server, e, reciprocal(server, total, 0.5, n + 1.0))


# Division ---------------------------------------------------------------------------------------


def reciprocal(server: Server, x: Words, low: float, high: float) -> Words:
    """Return shares of 1 / x (semi-honest; the dealer with either server sees all).

    For low <= x <= high. The caller guarantees the public range: 2^-16 <= low < high < 2^29, at
    most 24 doublings apart. x is compared with all powers of two between in parallel, which gives
    its highest bit as a sum of bits. Times the matching power it is v in [1/2, 1], exactly. 1 / v
    is a polynomial of degree 8 in 4 v - 3 with error 3.7e-7, which takes fewer rounds than Newton
    steps.
    The error is below one unit plus 2^-20 of the result, over the whole range.

    **Outside the range the result is wrong** without an error. Below `low` it stops growing (at 0
    its absolute value is below 16 / low), and above 2 `high` it is meaningless.

    At most 19 rounds; about 184 bytes each way a value, and 38 for every doubling.

    Raises
    ------
    PlanError
        If the range is not as stated.
    """
    factor, inverse, top = _normalised(server, x, low, high)
    product = multiply(server, factor, inverse)
    return truncate(server, product, FINE_BITS + top - FRAC_BITS)


def divide(server: Server, x: Words, y: Words, low: float, high: float) -> Words:
    """Return shares of x / y (semi-honest; the dealer with either server sees all).

    For low <= y <= high; broadcasts. The range of y, and results outside, as in
    :func:`reciprocal`; |x| < 2^20 and |x / y| * high < 2^44. The error is below 1 + 1 / y units
    plus 2^-20 of the result. It is not the product with a rounded reciprocal, whose error would
    grow with x. Two rounds and 24 bytes more than :func:`reciprocal`.
    """
    factor, inverse, top = _normalised(server, y, low, high)
    # x / v first, to 16 bits; then times the power of two that v was scaled by.
    scaled = times(server, x, inverse, FINE_BITS)
    return truncate(server, multiply(server, scaled, factor), top)


def _normalised(server: Server, x: Words, low: float, high: float) -> tuple[Words, Words, int]:
    """Return F, 1 / v and m with v = F x / 2^m in [1/2, 1); F an integer, 1 / v with 24 bits."""
    if not 2.0**-FRAC_BITS <= low < high < 2.0**29:
        raise PlanError(f"low and high must have 2^-16 <= low < high < 2^29, got {low} and {high}.")
    bottom, top = math.frexp(low)[1], math.frexp(high)[1]  # high < 2^top
    doublings = top - bottom
    if doublings > _MOST_DOUBLINGS:
        raise PlanError(
            f"high must be below {1 << _MOST_DOUBLINGS} times low, got {low} and {high}; "
            "scale the denominator, or state a narrower range."
        )
    # F is largest for the lowest octave and halves with each power of two that x reaches.
    top = max(top, 1)  # so that F is an integer, and there is something to truncate
    factor = server.constant(np.full(x.shape, 1 << (top - bottom)), 0)
    if doublings:
        powers = [2.0 ** (bottom + j) for j in range(doublings)]
        columns = np.stack([x - server.constant(power) for power in powers])
        smaller = negative(server, columns)
        for j in range(doublings):
            step = np.uint64(1 << (top - bottom - j - 1))
            factor = factor - (server.constant(np.ones(x.shape), 0) - smaller[j]) * step
    normal = multiply(server, factor, x)  # v with 16 + top fraction bits: below 2^(16 + top)
    spare = FINE_BITS - FRAC_BITS - top
    v = normal * np.uint64(1 << spare) if spare >= 0 else truncate(server, normal, -spare)
    u = v * np.uint64(4) - server.constant(3.0, FINE_BITS)
    inverse = polynomial(server, u, _RECIPROCAL, FINE_BITS, FINE_BITS)
    return factor, inverse, top
