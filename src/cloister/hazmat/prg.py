"""Masks: a key and a context become ring words that look uniform to everybody without the key.

One table, :class:`Usage`, lists everything a key is used for. The ChaCha20 key of each pad is
HKDF-SHA256 of the group key with usage, session, round, attempt, vector and sender in ``info``;
every field is length-prefixed, so two different contexts never produce the same ``info``.

References
----------
RFC 5869 (HKDF), RFC 8439 (ChaCha20).
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from cloister.errors import LocalProtocolError
from cloister.hazmat.ring import Words

KEY_BYTES = 32


class Usage(Enum):
    """Everything a group key may be used for; one label each, never reused."""

    MASK = b"cloister/1/mask"
    STATE_TAG = b"cloister/1/state-tag"
    CONFIRM = b"cloister/1/confirm"


@dataclass(frozen=True)
class PadContext:
    """Names one pad: no two vectors that leave a silo share all five fields."""

    session: str
    round: int
    attempt: int
    vector: str
    sender: str

    def of(self, sender: str) -> PadContext:
        """Return the context of another sender's pad for the same vector."""
        return PadContext(self.session, self.round, self.attempt, self.vector, sender)

    def encode(self) -> bytes:
        """Return an injective encoding: each field with its length before it."""
        text = (self.session, str(self.round), str(self.attempt), self.vector, self.sender)
        return _join(field.encode() for field in text)


def derive(key: bytes, usage: Usage, context: bytes) -> bytes:
    """Derive the 32-byte key of one `usage` in one `context` from a group key."""
    if len(key) != KEY_BYTES:
        raise LocalProtocolError(
            f"key must have {KEY_BYTES} bytes, got {len(key)}; make one with randomness.new_key()."
        )
    info = _join((usage.value, context))
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(key)


def expand(key: bytes, context: PadContext, size: int) -> Words:
    """Expand a group key to the pad of one vector.

    Parameters
    ----------
    key : bytes of length 32
        Secret shared by the silos, never known to the aggregator.
    context : PadContext
    size : int, >= 0
        Number of ring words.

    Returns
    -------
    ndarray of shape (size,), uint64
        Computationally uniform over Z_2^64.
    """
    pad_key = derive(key, Usage.MASK, context.encode())
    # The key is used for this pad alone, so the all-zero nonce (counter 0) never repeats.
    stream = Cipher(algorithms.ChaCha20(pad_key, bytes(16)), mode=None).encryptor()
    words = np.zeros(size, dtype="<u8")
    if size:
        view = words.view(np.uint8).data
        stream.update_into(view, view)
    return words.astype(np.uint64, copy=False)


def tag(usage_key: bytes, *parts: bytes) -> bytes:
    """Return HMAC-SHA256 over length-prefixed `parts` under a key from :func:`derive`."""
    return hmac.digest(usage_key, _join(parts), "sha256")


def _join(parts: Iterable[bytes]) -> bytes:
    """Concatenate with each length in front: different lists never give the same bytes."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)
