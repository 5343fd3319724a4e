"""Fixed-point encoding, and the splitting of an owner's table into two shares."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.core.errors import DataError, PlanError
from cloister.core.randomness import new_key
from cloister.hazmat.prg import PadContext, Usage, expand
from cloister.hazmat.ring import Words, to_integers
from cloister.shares.mpc.material import VALUE_BITS, Sharing

FRAC_BITS = 16
"""Fraction bits of a value on shares; a product has twice as many until it is truncated."""


def encode(values: ArrayLike, frac_bits: int = FRAC_BITS) -> Words:
    """Round real values to fixed point; any shape.

    Raises
    ------
    DataError
        If a value is not finite, or its absolute value is 2^29 or larger, for which a product does
        not fit the ring. With more than 32 fraction bits, the value itself must fit.
    """
    numbers = np.asarray(values, dtype=np.float64)
    # A product has twice the fraction bits and must stay below 2^62 before its truncation.
    limit = 2.0 ** (VALUE_BITS - 1 - max(2 * FRAC_BITS, frac_bits))
    if not (np.abs(numbers) < limit).all():  # NaN is not below it either
        raise DataError(
            f"values on shares must be finite and below {limit:.0f} in size; scale the columns."
        )
    return np.rint(numbers * float(1 << frac_bits)).astype(np.int64).view(np.uint64)


def decode(words: Words, frac_bits: int = FRAC_BITS) -> NDArray[np.float64]:
    """Return the real values of opened words; any shape."""
    return to_integers(words) / float(1 << frac_bits)


def split(words: Words, sharing: Sharing = Sharing.SUM) -> tuple[bytes, Words]:
    """Split words into the shares of two servers, whose sum, or XOR, is the words.

    Returns
    -------
    key : bytes of length 32
        For server 0, which expands it with :func:`expand_share`; this halves the upload.
    share : ndarray of the shape of `words`, uint64
        For server 1. Each of the two alone is independent of the words.
    """
    key = new_key()
    return key, sharing.rest(words, expand_share(key, words.shape))


def expand_share(key: bytes, shape: tuple[int, ...]) -> Words:
    """Expand server 0's share of a table of this public shape.

    Every table has a fresh key from the operating system, so its stream is used once.
    """
    size = int(np.prod(shape, dtype=np.int64))
    return expand(key, PadContext("", 0, 0, "share", "0"), size, Usage.SHARE).reshape(shape)


def combine(share0: Words, share1: Words) -> Words:
    """Return the sum of two shares."""
    if share0.shape != share1.shape:
        raise PlanError(f"shares must have one shape, got {share0.shape} and {share1.shape}.")
    return share0 + share1
