"""Exact discrete Laplace and discrete Gaussian noise: integers in, integers out, no float between.

Both distributions use rejection samplers over independent *lanes*. A lane is accepted or rejected
as a whole, and the first `size` accepted lanes, in order, are the sample. Lanes are drawn in
blocks, and every lane of a block is finished before any is counted. Otherwise unfinished lanes,
which tend to hold large values, would be dropped more often than others.

**The Gaussian, with sigma = s.** [CKS20]_ Algorithm 3 proposes ``|Y| = U + s V`` from a discrete
Laplace of scale t and accepts with ``exp(-(|Y| - s^2/t)^2 / (2 s^2))``. For an integer s take
t = s and write u = U/s in [0, 1). U uniform, kept with ``e^-u`` (Algorithm 2), V geometric with
``e^-1``, and acceptance together give the pair (U, V) a weight proportional to

    e^-u * e^-V * e^-((u + V - 1)^2 / 2)  =  e^(-1/2) * e^-((u + V)^2 / 2)

The left factors pull in opposite directions, so the right side is sampled directly, less its
constant. With ``(u + V)^2 / 2 = V/2 + V(V-1)/2 + u^2/2 + uV`` it is a product of coins whose heads
have probability exp(-gamma) with rational gamma in [0, 1]:

    V geometric with e^-1/2;  V(V-1)/2 coins e^-1;  one coin e^-(u^2/2);  V coins e^-u

all of which must show heads. A fair sign follows. The lane with Y = 0 and sign minus is rejected,
because zero would have double mass otherwise. No intermediate value exceeds 64 bits.

**Bytes.** Every draw is uniform in some [0, bound): one little-endian 64-bit word w represents
``w // width`` with ``width = (2^64 - 1) // bound``. A word with quotient >= bound is drawn again,
so that all values are equally likely. All lanes that need the draw read in one call, in order;
lanes that must draw again read in the next call. The same bytes give the same sample on every
machine, which ``tests/vectors`` pins with a scalar implementation.

The running time depends on the values drawn, so draw the noise before the data arrive.

References
----------
.. [CKS20] Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy",
   arXiv:2004.00010, Algorithms 1-3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import factorial
from operator import index

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Flags, Integers
from cloister.core.errors import PlanError
from cloister.hazmat.ring import Words

ByteSource = Callable[[int], bytes]
Lanes = NDArray[np.intp]

# No product overflows 64 bits below it, except with the probabilities in `_signed` and `_below`.
MAX_SCALE = 2**40
_BLOCK = 2**15  # lanes drawn together: 256 KiB per array, which fit the cache of a core
_LITTLE_ENDIAN = np.dtype("<u8")
_STEPS = 12  # steps of Algorithm 1 in one draw of a constant coin; inverse^12 * 12! < 2^64


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

    References
    ----------
    [CKS20]_ Algorithm 2 with s = 1, t = scale.
    """
    scale = _integer("scale", scale, 1, MAX_SCALE)

    def propose(lanes: int) -> Integers:
        offset, minus = _offset_and_sign(scale, lanes, rand)
        keep = _bernoulli_exp(offset, scale, rand)
        offset, minus = offset[keep], minus[keep]
        return _signed(offset, _geometric(1, offset.size, rand), minus, scale)

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

    References
    ----------
    [CKS20]_ Algorithm 3 with t = sigma; the module's docstring has the algebra.
    """
    sigma = _integer("sigma", sigma, 1, MAX_SCALE)

    def propose(lanes: int) -> Integers:
        # Constant coins first: one word each, and rejected lanes skip the costlier draws below.
        run = _geometric(2, lanes, rand)  # e^-(V/2)
        pairs = np.repeat(np.arange(lanes), run * (run - 1) // 2)
        run = run[_all_heads(lanes, pairs, _coin(1, pairs.size, rand))]  # e^-(V(V-1)/2)
        offset, minus = _offset_and_sign(sigma, run.size, rand)
        keep = _bernoulli_exp_half_square(offset, sigma, rand)  # e^-(u^2/2)
        run, offset, minus = run[keep], offset[keep], minus[keep]
        each = np.repeat(np.arange(run.size), run)
        keep = _all_heads(run.size, each, _bernoulli_exp(offset[each], sigma, rand))  # e^-(uV)
        return _signed(offset[keep], run[keep], minus[keep], sigma)

    # For every sigma 0.493 of the lanes are accepted, so 9/4 lanes each leave one tenth to spare.
    return _first(size, propose, lanes_for=lambda missing: 2 * missing + missing // 4 + 32)


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


def _signed(offset: Words, run: Integers, minus: Flags, scale: int) -> Integers:
    """Join ``U + scale V`` with its sign and reject minus zero."""
    # scale V stays below 2^63 except with probability e^-(2^22), at the largest scale.
    value: Integers = offset.astype(np.int64) + scale * run
    np.negative(value, out=value, where=minus)
    rejected: Flags = minus & (value == 0)
    return value[~rejected]


def _geometric(inverse: int, lanes: int, rand: ByteSource) -> Integers:
    """Count the heads of probability ``exp(-1/inverse)`` before the first tail, in each lane."""
    heads = np.zeros(lanes, np.int64)
    live, run = np.arange(lanes), 0
    while live.size:
        live, run = live[_coin(inverse, live.size, rand)], run + 1
        heads[live] = run
    return heads


def _all_heads(lanes: int, owner: Lanes, heads: Flags) -> Flags:
    """Return True for each lane whose coins all show heads."""
    keep = np.ones(lanes, np.bool_)
    keep[owner[~heads]] = False
    return keep


def _bernoulli_exp(offset: Words, scale: int, rand: ByteSource) -> Flags:
    """Draw heads with probability ``exp(-U/scale)`` for each U in [0, scale)."""
    return _algorithm_1(offset.size, lambda live, k: _below(offset[live], scale * k, rand))


def _bernoulli_exp_half_square(offset: Words, scale: int, rand: ByteSource) -> Flags:
    """Draw heads with probability ``exp(-(U/scale)^2 / 2)``; each trial is U/s times U/(2 k s)."""
    return _algorithm_1(
        offset.size,
        lambda live, k: (
            _below(offset[live], scale, rand) & _below(offset[live], 2 * k * scale, rand)
        ),
    )


def _coin(inverse: int, lanes: int, rand: ByteSource) -> Flags:
    """Draw heads with probability ``exp(-1/inverse)``, inverse 1 or 2, from one word a lane.

    In Algorithm 1 with gamma = 1/inverse, K exceeds k with probability gamma^k / k!. All these
    are multiples of 1/total for k up to _STEPS, so one uniform in [0, total) replaces the first
    _STEPS trials. `heads` of its values end with K odd, the last value is undecided, and the others
    end with K even. A lane at the last value, 1 in 12! or rarer, continues with trial 13.
    """
    total, heads = _COINS[inverse]
    width, end = _range(total)
    last = np.uint64(total - 1) * width
    words = _read(lanes, rand)
    # Nearly always no word is drawn again and no lane continues: one comparison decides all lanes.
    if not lanes or words.max() < last:
        return words < np.uint64(heads) * width
    words = _below_end(words, end, rand)
    result = words < np.uint64(heads) * width
    late = np.flatnonzero(words >= last)
    ones = np.ones(late.size, np.uint64)
    result[late] = _algorithm_1(
        late.size, lambda live, k: _below(ones[live], inverse * k, rand), start=_STEPS + 1
    )
    return result


def _coin_table(inverse: int) -> tuple[int, int]:
    """Return the total and the heads of :func:`_coin`.

    heads / total is the sum over j < _STEPS of (-g)^j / j! with g = 1 / inverse.
    """
    total = inverse**_STEPS * factorial(_STEPS)
    return total, sum((-1) ** j * (total // (inverse**j * factorial(j))) for j in range(_STEPS))


_COINS = {inverse: _coin_table(inverse) for inverse in (1, 2)}


def _algorithm_1(lanes: int, trial: Callable[[Lanes, int], Flags], start: int = 1) -> Flags:
    """Run [CKS20] Algorithm 1: heads with probability exp(-gamma), gamma in [0, 1].

    ``trial(live, k)`` is Bernoulli(gamma / k) for the lanes in `live`. K is the first k whose
    trial fails, and the lane shows heads if K is odd.
    """
    heads = np.full(lanes, start % 2 == 1)
    live = np.arange(lanes)
    k = start
    while live.size:
        live = live[trial(live, k)]
        k += 1
        heads[live] = k % 2 == 1
    return heads


def _below(numerator: Words, denominator: int, rand: ByteSource) -> Flags:
    """Draw heads with probability numerator / denominator < 1, from one word a lane."""
    # denominator <= 2 k scale reaches 2^64 only for k > 2^22: probability 1 / (2^22)!.
    width, _ = _range(denominator)
    return _words(denominator, numerator.size, rand) < numerator * width


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
