"""Key agreement between two parties, and sealed boxes under the agreed key.

Private keys are bytes derived from a secret of the job, so that a party that restarts has the same
ones. An agreed key is used for one box or one pad only; its context says which.

References
----------
RFC 7748 (X25519), RFC 8439 (ChaCha20-Poly1305).
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from cloister.errors import RemoteProtocolError
from cloister.hazmat.prg import Usage, derive

PUBLIC_BYTES = 32
SEAL_BYTES = 16
_NONCE = bytes(12)  # a box key seals one box, so the nonce never repeats


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


def seal(key: bytes, plain: bytes) -> bytes:
    """Encrypt and authenticate under a key that is used for this box alone."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, plain, None)


def unseal(key: bytes, box: bytes) -> bytes:
    """Open a box.

    Raises
    ------
    RemoteProtocolError
        If the box was not sealed under `key`, or was changed.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, box, None)
    except (InvalidTag, ValueError) as error:
        raise RemoteProtocolError("a sealed box was changed or is from somebody else.") from error
