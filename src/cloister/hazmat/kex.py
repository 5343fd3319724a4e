"""Key agreement between two parties, and sealed boxes under the agreed key.

Private keys are bytes derived from a secret of the job, so that a party derives the same keys after
a restart. An agreed key is used for one pad, for one box, or for one direction of a link, whose
boxes are numbered. The context of the key names its use. Each box to a long-term key has a fresh
key, as in HPKE (RFC 9180), which some supported versions of the library lack.

References
----------
RFC 7748 (X25519), RFC 8439 (ChaCha20-Poly1305).
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from cloister.core.errors import RemoteProtocolError
from cloister.core.randomness import new_key
from cloister.hazmat.prg import Usage, derive, join

PUBLIC_BYTES = 32  # a u-coordinate of Curve25519
SEAL_BYTES = 16  # the Poly1305 tag, which a box has in excess of its plain text


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
        # Raises ValueError for points of small order, whose shared secret is all zeros.
        shared = X25519PrivateKey.from_private_bytes(private).exchange(peer)
    except ValueError as error:
        raise RemoteProtocolError(
            "a peer's public key is invalid; exclude the peer from the job."
        ) from error
    # RFC 7748 section 6.1: the raw secret is not uniform, so it goes through a key derivation.
    return derive(shared, usage, context)


def seal(key: bytes, plain: bytes, number: int = 0, about: bytes = b"") -> bytes:
    """Encrypt and authenticate `plain`, and authenticate `about` with it.

    Parameters
    ----------
    number : int
        Number of the box under this key; never used twice, as a repeated nonce breaks the cipher.
    about : bytes
        Context that both ends know; authenticated, but not part of the box.
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
        raise RemoteProtocolError(
            "a sealed box was modified or was sealed under another key; nothing was read."
        ) from error


def seal_to(public: bytes, plain: bytes, usage: Usage, context: bytes) -> bytes:
    """Encrypt `plain` to a long-term key, under a fresh key that is part of the box."""
    private = new_key()
    shown = public_of(private)
    key = agree(private, public, usage, join((shown, public, context)))
    return shown + seal(key, plain)


def unseal_from(private: bytes, box: bytes, usage: Usage, context: bytes) -> bytes:
    """Open a box of :func:`seal_to`; raise RemoteProtocolError as :func:`unseal` does."""
    shown, sealed = box[:PUBLIC_BYTES], box[PUBLIC_BYTES:]
    key = agree(private, shown, usage, join((shown, public_of(private), context)))
    return unseal(key, sealed)
