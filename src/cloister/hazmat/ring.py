"""Vectors over the ring Z_2^64: the arithmetic in which sums are masked."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Integers as Integers
from cloister.core.errors import RemoteProtocolError

RING_BITS = 64
WORD_BYTES = 8
Words = NDArray[np.uint64]


def to_words(values: Integers) -> Words:
    """Read signed integers as ring elements (a view; two's complement is the ring's own)."""
    return np.ascontiguousarray(values, dtype=np.int64).view(np.uint64)


def to_integers(elements: Words) -> Integers:
    """Read ring elements as the signed integers nearest to zero (centred lift; a view)."""
    return np.ascontiguousarray(elements, dtype=np.uint64).view(np.int64)


def to_bytes(elements: Words) -> bytes:
    """Encode as little-endian 64-bit integers."""
    return elements.astype("<u8", copy=False).tobytes()


def from_bytes(body: bytes, length: int) -> Words:
    """Decode `length` little-endian 64-bit integers.

    Raises
    ------
    RemoteProtocolError
        If the body has another length than the plan says.
    """
    if len(body) != WORD_BYTES * length:
        raise RemoteProtocolError(
            f"body must hold {length} ring elements of 8 bytes, got {len(body)} bytes; "
            "the sender follows another plan."
        )
    return np.frombuffer(body, dtype="<u8").astype(np.uint64)
