"""Masks: ring elements from a key and a context, uniform for every party without the key.

One table, :class:`Usage`, lists all uses of keys. The ChaCha20 key of each pad is HKDF-SHA256 of
the group key with usage, session, round, attempt, vector and sender in ``info``. Every field is
length-prefixed, so two different contexts never produce the same ``info``.

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

from cloister.core.errors import LocalProtocolError
from cloister.core.randomness import ByteSource
from cloister.hazmat.ring import Words

KEY_BYTES = 32


class Usage(Enum):
    """The uses of keys; each has one label, which is never reused."""

    # under the group key
    MASK = b"cloister/1/mask"
    PAD = b"cloister/1/pad"
    STATE_TAG = b"cloister/1/state-tag"
    STATE_BOX = b"cloister/1/state-box"
    CONFIRM = b"cloister/1/confirm"
    # under a silo's secret of the job, so that a restart derives the same keys
    BOX_KEY = b"cloister/1/box-key"
    GROUP_PART = b"cloister/1/group-part"
    PAIR_KEY = b"cloister/1/pair-key"
    SELF_SEED = b"cloister/1/self-seed"
    SHARING = b"cloister/1/sharing"
    NOISE = b"cloister/1/noise"
    COINS = b"cloister/1/coins"
    # under a key that two silos agreed on, or under a silo's seed
    BOX = b"cloister/1/sealed-box"
    PAIR_PAD = b"cloister/1/pair-pad"
    SELF_PAD = b"cloister/1/self-pad"
    # under a key that an owner or a dealer gave to one compute server
    SHARE = b"cloister/1/share"
    MATERIAL = b"cloister/1/material"
    # under a key that two ends of a link agreed on
    LINK = b"cloister/1/link"
    # under the secret of the owners of linked tables
    LINK_TAG = b"cloister/1/person-tag"
    # under the seed of a reader's identity, and under a key agreed with that reader
    READER_KEY = b"cloister/1/reader-key"
    RESULT = b"cloister/1/result"
    # under the parts of all silos together
    GROUP_KEY = b"cloister/1/group-key"


@dataclass(frozen=True)
class PadContext:
    """The name of one pad; no two vectors that leave a silo share all five fields."""

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
        return join(field.encode() for field in text)


def derive(key: bytes, usage: Usage, context: bytes) -> bytes:
    """Derive the 32-byte key of one `usage` in one `context` from a secret key."""
    if len(key) != KEY_BYTES:
        raise LocalProtocolError(
            f"key must have {KEY_BYTES} bytes, got {len(key)}; make one with randomness.new_key()."
        )
    # No salt: the key is uniform already, and `info` separates any two uses.
    info = join((usage.value, context))
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(key)


def expand(key: bytes, context: PadContext, size: int, usage: Usage = Usage.MASK) -> Words:
    """Expand a key to the pad of one vector.

    Parameters
    ----------
    key : bytes of length 32
        Never known to the aggregator while the pad must hide something.
    size : int, >= 0
        Number of ring elements.
    usage : Usage
        Kind of pad: of the group, of a pair of silos, or of one silo.

    Returns
    -------
    ndarray of shape (size,), uint64
        Computationally uniform over Z_2^64.
    """
    pad_key = derive(key, usage, context.encode())
    # The key is used for this pad alone, so the all-zero nonce (counter 0) never repeats.
    stream = Cipher(algorithms.ChaCha20(pad_key, bytes(16)), mode=None).encryptor()
    # Zeros encrypted in place become the key stream; little-endian, so all machines agree on it.
    pad = np.zeros(size, dtype="<u8")
    if size:
        view = pad.view(np.uint8).data
        stream.update_into(view, view)
    return pad.astype(np.uint64, copy=False)


def stream(key: bytes) -> ByteSource:
    """Return the ChaCha20 stream under a key that has no other use."""
    encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return lambda size: encryptor.update(bytes(size))


def tag(usage_key: bytes, *parts: bytes) -> bytes:
    """Return HMAC-SHA256 over length-prefixed `parts` under a key from :func:`derive`."""
    return hmac.digest(usage_key, join(parts), "sha256")


def join(parts: Iterable[bytes]) -> bytes:
    """Concatenate parts, each after its length; different lists never give the same bytes."""
    pieces: list[bytes] = []  # a generator takes twice as long, and a round joins thousands
    for part in parts:
        pieces += (len(part).to_bytes(8, "big"), part)
    return b"".join(pieces)
