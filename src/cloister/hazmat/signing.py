"""Long-term identities: an Ed25519 key pair and the fingerprint that people compare.

Every signature covers a label and length-prefixed parts, so that a signature made for one purpose
never verifies for another.

References
----------
RFC 8032 (Ed25519).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from cloister.core.errors import LocalProtocolError
from cloister.core.randomness import new_key
from cloister.hazmat.prg import KEY_BYTES, join

SIGNATURE_BYTES = 64  # RFC 8032, section 5.1.6
PUBLIC_BYTES = 32


@dataclass(frozen=True)
class Identity:
    """A party's signing key; it never leaves the party.

    Parameters
    ----------
    seed : bytes of length 32
        Drawn from the operating system's randomness; see :meth:`new`.
    """

    seed: bytes = field(repr=False)
    public: bytes = field(init=False)
    _key: Ed25519PrivateKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.seed) != KEY_BYTES:
            raise LocalProtocolError(
                f"identity must have {KEY_BYTES} bytes, got {len(self.seed)}; make one with new()."
            )
        key = Ed25519PrivateKey.from_private_bytes(self.seed)
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "public", key.public_key().public_bytes_raw())

    @classmethod
    def new(cls) -> Self:
        """Return a fresh identity."""
        return cls(new_key())

    @classmethod
    def from_bytes(cls, seed: bytes) -> Self:
        """Restore an identity from the bytes of :meth:`to_bytes`."""
        return cls(seed)

    def to_bytes(self) -> bytes:
        """Return the 32 secret bytes, to be kept in a file that only the party can read."""
        return self.seed

    @property
    def fingerprint(self) -> str:
        """The digest that peers pin after they compared it out of band."""
        return fingerprint_of(self.public)

    def sign(self, label: bytes, *parts: bytes) -> bytes:
        """Return the 64-byte signature of `parts` under `label`."""
        return self._key.sign(join((label, *parts)))

    def __reduce__(self) -> tuple[object, ...]:
        # A pickle would carry the key into caches and to other processes.
        raise TypeError("Identity holds a key and cannot be stored; keep its file at the party.")


def fingerprint_of(public: bytes) -> str:
    """Return the fingerprint of a public key: "ed25519:" and SHA-256 in hexadecimal."""
    return "ed25519:" + hashlib.sha256(public).hexdigest()


def verify(public: bytes, signature: bytes, label: bytes, *parts: bytes) -> bool:
    """Return True if the owner of `public` signed `parts` under `label`."""
    try:
        _key_of(public).verify(signature, join((label, *parts)))
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=256)
def _key_of(public: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public)
