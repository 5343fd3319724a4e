"""Vectors over the ring Z_2^64, in which sums are masked."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Integers as Integers
from cloister.core.errors import RemoteProtocolError

RING_BITS = 64
WORD_BYTES = 8
Words = NDArray[np.uint64]


def to_words(values: Integers) -> Words:
    """View signed integers as ring elements; two's complement is reduction modulo 2^64."""
    return np.ascontiguousarray(values, dtype=np.int64).view(np.uint64)


def to_integers(elements: Words) -> Integers:
    """View ring elements as the signed integers nearest to zero (centred lift)."""
    return np.ascontiguousarray(elements, dtype=np.uint64).view(np.int64)


def to_bytes(elements: Words) -> bytes:
    """Encode as little-endian 64-bit integers."""
    return elements.astype("<u8", copy=False).tobytes()


def from_bytes(body: bytes, length: int) -> Words:
    """Decode `length` little-endian 64-bit integers.

    Raises
    ------
    RemoteProtocolError
        If the body has another length than the plan requires.
    """
    # The plan, never the sender, determines the length of a vector.
    if len(body) != WORD_BYTES * length:
        raise RemoteProtocolError(
            f"body must hold {length} ring elements of 8 bytes, got {len(body)} bytes; "
            "use the same plan at every party."
        )
    return np.frombuffer(body, dtype="<u8").astype(np.uint64)
