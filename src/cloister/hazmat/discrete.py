"""Exact discrete Laplace and discrete Gaussian noise: integers in, integers out, no float between.

Both distributions use rejection samplers over independent *lanes*. A lane is accepted or rejected
as a whole, and the first `size` accepted lanes, in order, are the sample.

**Proposals.** A lane proposes ``|Y| = U + s V`` for the scale s, with U uniform in [0, s). Write
``u = U/s``. V has a constant distribution on 0, 1, 2, ..., and one coin decides on the lane:

    Laplace:   V ~ e^-V,        coin e^-u,            product e^-(u + V)
    Gaussian:  V ~ e^-(V^2/2),  coin e^-(u^2/2 + uV), product e^-((u + V)^2 / 2)

So the pair (U, V) of an accepted lane has the weight of its value. A fair sign follows. The lane
with Y = 0 and sign minus is rejected, because zero would have double mass otherwise.

**Coins.** The exponent of a coin is a fraction N / D with D = s or 2 s^2 and an integer N. With
digits n_i of N in base 4 it is a product of coins with constant probabilities
``exp(-n_i 4^i / D)``, all of which must show heads.

**Constant distributions.** Let X be uniform in [0, 1). The number of j >= 1 with X < p_j has the
distribution of tails p_1 > p_2 > ...: V is such a number, and so is the largest digit whose coin
shows heads. X is a sequence of 64-bit words, most significant first. The first word decides unless
it equals the first word of some p_j. Then further words are read, and p_j is computed to as many
bits with a proven error. So every probability is exact.

**Time.** Every lane reads the same number of words, compares each with the same thresholds, and is
computed to its end before one is rejected. Which lanes are rejected, and how often words are drawn
again, is independent of the values of accepted lanes. Only a word that decides nothing takes longer
(below 2^-58 for each). So the time of a draw tells nothing about the noise in it.
``benchmarks/noise_time.py`` measures this.

**Bytes.** A uniform in [0, bound) comes from one little-endian 64-bit word w as ``w // width`` with
``width = (2^64 - 1) // bound``. A word with quotient >= bound is drawn again, so that all values
are equally likely. A block of lanes reads the words of V, then those of U with its sign, then those
of the coins, from the lowest digit. Each of these has one word per lane, in order. Words that are
drawn again, and further words of X, follow directly. The same bytes give the same sample on every
machine, which ``tests/vectors`` pins with a scalar implementation.

References
----------
.. [CKS20] Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy",
   arXiv:2004.00010. It has other samplers of the same distributions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, getcontext, localcontext
from functools import lru_cache
from itertools import count
from math import isqrt
from operator import index

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Flags, Integers
from cloister.core.errors import PlanError
from cloister.hazmat.ring import Words

ByteSource = Callable[[int], bytes]
Numbers = NDArray[np.uint8]
Tail = Callable[[int], Decimal]
"""``p_j`` of a constant distribution for j >= 1, not increasing, with limit 0.

It is computed in the context of :mod:`decimal`, with an error below ``10^(3 - precision)``.
"""

MAX_SCALE = 2**40
_BLOCK = 2**12  # lanes drawn together: the words of their coins fit the cache of a core
_LITTLE_ENDIAN = np.dtype("<u8")
_LOW_BYTES = 3  # of a numerator; the rest fits 64 bits for every scale while V < 128
_SHIFT, _LOW = np.uint64(8 * _LOW_BYTES), np.uint64(256**_LOW_BYTES - 1)
_PLACES = np.arange(0, 8, 2, dtype=np.uint8)[:, None]  # of the digits in a byte
_MOST_RUNS = 32  # V of a Gaussian reaches it with probability below e^-512


def discrete_laplace(scale: int, size: int, rand: ByteSource) -> Integers:
    """Draw from ``P(z) ~ exp(-|z| / scale)`` over the integers.

    Parameters
    ----------
    scale : int, 1..2^40
        In lattice steps; L1 sensitivity / epsilon, rounded up.
    size : int, >= 0
    rand : ByteSource
        Uniform secret bytes: ``rand(n)`` returns the next n of them.

    Returns
    -------
    ndarray of shape (size,), int64

    Raises
    ------
    PlanError
        If `scale` or `size` is not an integer in its range, or `rand` returns another length.
    """
    scale = _integer("scale", scale, 1, MAX_SCALE)
    coins = _coins(scale, scale)

    def propose(lanes: int) -> Integers:
        (run,) = _LAPLACE_RUNS.numbers(lanes, rand)
        offset, minus = _offset_and_sign(scale, lanes, rand)
        low, high = offset & _LOW, offset >> _SHIFT
        return _accepted(offset, run, minus, scale, _all_heads(coins, low, high, rand))

    # At least 1 - 1/e of the lanes are accepted, so 7/4 lanes each leave one tenth to spare.
    return _first(size, propose, lanes_for=lambda missing: missing + 3 * missing // 4 + 32)


def discrete_gaussian(sigma: int, size: int, rand: ByteSource) -> Integers:
    """Draw from ``P(z) ~ exp(-z^2 / (2 sigma^2))`` over the integers.

    Parameters
    ----------
    sigma : int, 1..2^40
        In lattice steps; noise multiplier * L2 sensitivity, rounded up.
    size : int, >= 0
    rand : ByteSource
        Uniform secret bytes: ``rand(n)`` returns the next n of them.

    Returns
    -------
    ndarray of shape (size,), int64

    Raises
    ------
    PlanError
        If `sigma` or `size` is not an integer in its range, or `rand` returns another length.
    """
    sigma = _integer("sigma", sigma, 1, MAX_SCALE)
    coins = _coins(2 * sigma**2, 2 * _MOST_RUNS * sigma**2)

    def propose(lanes: int) -> Integers:
        (run,) = _GAUSSIAN_RUNS.numbers(lanes, rand)
        offset, minus = _offset_and_sign(sigma, lanes, rand)
        # U (U + 2 s V) in two parts, as U has up to 40 bits and the factor up to 46.
        factor = offset + np.uint64(2 * sigma) * run.astype(np.uint64)
        low = offset * (factor & _LOW)
        high = offset * (factor >> _SHIFT) + (low >> _SHIFT)
        return _accepted(offset, run, minus, sigma, _all_heads(coins, low & _LOW, high, rand))

    # For every sigma 0.714 of the lanes are accepted, so 14/9 lanes each leave one tenth to spare.
    return _first(size, propose, lanes_for=lambda missing: missing + 5 * missing // 9 + 32)


def _first(
    size: int, propose: Callable[[int], Integers], lanes_for: Callable[[int], int]
) -> Integers:
    """Concatenate accepted lanes until there are `size` of them; keep the first, in order."""
    missing = _integer("size", size, 0, None)
    parts = [np.empty(0, np.int64)]
    while missing > 0:
        parts.append(propose(min(lanes_for(missing), _BLOCK))[:missing])
        missing -= parts[-1].size
    return np.concatenate(parts)


def _offset_and_sign(scale: int, lanes: int, rand: ByteSource) -> tuple[Words, Flags]:
    """Draw U uniform in [0, scale) and a fair sign, as quotient and remainder of one uniform."""
    width, _ = _range(2 * scale)
    both = _words(2 * scale, lanes, rand) // width
    return both >> np.uint64(1), (both & np.uint64(1)).astype(np.bool_)


def _accepted(offset: Words, run: Numbers, minus: Flags, scale: int, heads: Flags) -> Integers:
    """Join ``U + scale V`` with its sign, for lanes with heads except minus zero."""
    # scale V stays below 2^63 except with probability e^-(2^22), at the largest scale.
    size = offset.astype(np.int64) + scale * run.astype(np.int64)
    signed = size * (1 - 2 * minus.astype(np.int64))
    accepted: Integers = signed[heads & ~(minus & (size == 0))]
    return accepted


def _all_heads(coins: _Levels, low: Words, high: Words, rand: ByteSource) -> Flags:
    """Return True for lanes whose coin of numerator ``low + 2^24 high`` shows heads."""
    bytes_of = [part.astype(_LITTLE_ENDIAN).view(np.uint8).reshape(-1, 8) for part in (low, high)]
    both = np.concatenate([bytes_of[0][:, :_LOW_BYTES], bytes_of[1]], axis=1).T
    used = both[: -(-len(coins.tails) // len(_PLACES))]
    digits = ((used[:, None, :] >> _PLACES) & 3).reshape(-1, low.size)[: len(coins.tails)]
    heads = coins.numbers(low.size, rand) >= digits
    kept: Flags = np.bitwise_and.reduce(heads, axis=0)  # which never ends early
    return kept


@dataclass(frozen=True)
class _Levels:
    """Constant distributions of numbers 0, 1, 2, ..., drawn together.

    Parameters
    ----------
    tails : tuple of Tail
        One for each distribution.
    first : ndarray of shape (number of j, number of distributions, 1), uint64
        First words of ``p_1, p_2, ...``; they end with the last j, or with a word of 0.
    """

    tails: tuple[Tail, ...]
    first: Words

    @classmethod
    def of(cls, tails: tuple[Tail, ...], last: int | None = None) -> _Levels:
        """Return the distributions with these tails."""
        words: list[list[int]] = []
        for j in count(1) if last is None else range(1, last + 1):
            words.append([_floor(tail, j, 64) for tail in tails])
            if last is None and not any(words[-1]):
                break
        return cls(tails, np.array(words, np.uint64).reshape(len(words), len(tails), 1))

    def numbers(self, lanes: int, rand: ByteSource) -> Numbers:
        """Draw a number from each distribution for each lane; (number of distributions, lanes)."""
        words = _read(len(self.tails) * lanes, rand).reshape(len(self.tails), lanes)
        # A number stays below 256 except with probability e^-255.
        numbers: Numbers = np.add.reduce((words < self.first).view(np.uint8), dtype=np.uint8)
        if (undecided := words == self.first).any():
            for i, lane in zip(*np.nonzero(undecided.any(axis=0)), strict=True):
                numbers[i, lane] = _settled(self.tails[i], int(words[i, lane]), rand)
        return numbers


def _settled(tail: Tail, word: int, rand: ByteSource) -> int:
    """Return the number of j with X < p_j, where `word` is the first word of X."""
    x, bits = word, 64
    while True:
        j = next(j for j in count(1) if _floor(tail, j, bits) <= x)
        if _floor(tail, j, bits) < x:
            return j - 1
        x, bits = x << 64 | int(_read(1, rand)[0]), bits + 64


@lru_cache(maxsize=1024)
def _floor(tail: Tail, j: int, bits: int) -> int:
    """Return ``floor(2^bits p_j)``."""
    digits = 3 * bits // 10 + 30  # a power of 2 has 0.301 digits a bit
    while True:
        with localcontext(prec=digits):
            value, error = tail(j), Decimal(10) ** (4 - digits)
            low, high = (int(max(value + e, Decimal(0)) * 2**bits) for e in (-error, error))
        if low == high:
            return low
        digits *= 2


def _tail_of_laplace(j: int) -> Decimal:
    """Return ``P(V >= j)`` for ``V ~ e^-V``."""
    return Decimal(-j).exp()


def _tail_of_gaussian(j: int) -> Decimal:
    """Return ``P(V >= j)`` for ``V ~ e^(-V^2 / 2)``."""
    weights = _gaussian_weights(getcontext().prec)
    return sum(weights[j:], Decimal(0)) / sum(weights)


@lru_cache(maxsize=64)
def _gaussian_weights(digits: int) -> tuple[Decimal, ...]:
    """Return ``e^(-v^2 / 2)`` for v = 0, 1, ...; those left out sum to below ``10^-digits``."""
    return tuple((Decimal(-v * v) / 2).exp() for v in range(isqrt(5 * digits) + 2))


def _coin(numerator: int, denominator: int) -> Tail:
    """Return the tail whose ``p_j`` is ``exp(-j numerator / denominator)`` for j in 1, 2, 3."""

    def tail(j: int) -> Decimal:
        return (Decimal(-j * numerator) / denominator).exp() if j < 4 else Decimal(0)

    return tail


@lru_cache(maxsize=256)
def _coins(denominator: int, most: int) -> _Levels:
    """Return the coins of the base-4 digits of a numerator below `most`."""
    digits = ((most - 1).bit_length() + 1) // 2
    return _Levels.of(tuple(_coin(4**i, denominator) for i in range(digits)), last=3)


_LAPLACE_RUNS = _Levels.of((_tail_of_laplace,))
_GAUSSIAN_RUNS = _Levels.of((_tail_of_gaussian,))


def _words(bound: int, lanes: int, rand: ByteSource) -> Words:
    """Draw words uniform in [0, bound * width), so that word // width is uniform in [0, bound)."""
    _, end = _range(bound)
    return _below_end(_read(lanes, rand), end, rand)


def _below_end(words: Words, end: np.uint64, rand: ByteSource) -> Words:
    """Draw the words that are not below `end` again, until all are."""
    if words.size and words.max() >= end:
        words = words.copy()
        while (high := np.flatnonzero(words >= end)).size:
            words[high] = _read(high.size, rand)
    return words


@lru_cache(maxsize=1024)
def _range(bound: int) -> tuple[np.uint64, np.uint64]:
    """Return the number of words per value in [0, bound), and their total over all values."""
    # 2^64 - 1, not 2^64: the end itself then fits 64 bits even if bound is a power of two.
    width = (2**64 - 1) // bound
    return np.uint64(width), np.uint64(bound * width)


def _read(lanes: int, rand: ByteSource) -> Words:
    """Read one 64-bit word per lane; raise PlanError if the source returns another length."""
    body = rand(8 * lanes) if lanes else b""
    if len(body) != 8 * lanes:
        raise PlanError(
            f"rand must return the {8 * lanes} bytes requested, got {len(body)}; "
            "pass cloister.core.randomness.os_bytes."
        )
    return np.frombuffer(body, dtype=_LITTLE_ENDIAN).astype(np.uint64, copy=False)


def _integer(name: str, value: int, low: int, high: int | None) -> int:
    """Return `value` as an int in [low, high]; raise PlanError if it is none, or bool or float."""
    text = f"{name} must be an integer in [{low}, {'...' if high is None else high}], got {value!r}"
    if isinstance(value, (bool, np.bool_)):
        raise PlanError(f"{text}; pass an int.")
    try:
        number = index(value)
    except TypeError:
        raise PlanError(f"{text}; round it up first.") from None
    if number < low or (high is not None and number > high):
        raise PlanError(f"{text}; change the lattice step or the sensitivity.")
    return number
