"""Key agreement between two parties, and sealed boxes under the agreed key.

Private keys are bytes derived from a secret of the job, so that a party that restarts has the same
ones. An agreed key is used for one pad, for one box, or for one direction of a link, whose boxes
are numbered; its context says which.

References
----------
RFC 7748 (X25519), RFC 8439 (ChaCha20-Poly1305).
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from cloister.core.errors import RemoteProtocolError
from cloister.hazmat.prg import Usage, derive

PUBLIC_BYTES = 32
SEAL_BYTES = 16


def public_of(private: bytes) -> bytes:
    """Return the X25519 public key of 32 private bytes."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes, usage: Usage, context: bytes) -> bytes:
    """Return the key that two parties share for one `usage` in one `context`.

    Raises
    ------
    RemoteProtocolError
        If the other party's public key is a point that would make the key predictable.
    """
    try:
        peer = X25519PublicKey.from_public_bytes(public)
        shared = X25519PrivateKey.from_private_bytes(private).exchange(peer)
    except ValueError as error:
        raise RemoteProtocolError(
            "a public key of a peer is not usable; refuse the peer."
        ) from error
    return derive(shared, usage, context)


def seal(key: bytes, plain: bytes, number: int = 0, about: bytes = b"") -> bytes:
    """Encrypt and authenticate `plain`, and authenticate `about` with it.

    Parameters
    ----------
    number : int
        Of the box under this key; no two boxes of a key have the same.
    about : bytes
        What both ends know of the box; it does not travel.
    """
    return ChaCha20Poly1305(key).encrypt(number.to_bytes(12, "big"), plain, about)


def unseal(key: bytes, box: bytes, number: int = 0, about: bytes = b"") -> bytes:
    """Open a box.

    Raises
    ------
    RemoteProtocolError
        If the box was not sealed under `key`, `number` and `about`, or was changed.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(number.to_bytes(12, "big"), box, about)
    except (InvalidTag, ValueError) as error:
        raise RemoteProtocolError("a sealed box was changed or is from somebody else.") from error
