"""The only module that creates randomness.

It has two separate kinds. *Secret* randomness (noise, keys, nonces) comes from the operating
system and has no seed. *Public* randomness (starting centres, simulated splits) comes from a seed
that every party may know.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

ByteSource = Callable[[int], bytes]

KEY_BYTES = 32
_COUNTER_BYTES = 4  # the first of the 16 bytes of the nonce of ChaCha20
_REKEY_BYTES = 1 << 30  # a fresh operating-system key long before ChaCha20's 2^38-byte counter ends


def os_bytes(size: int) -> bytes:
    """Return `size` bytes from the operating system."""
    return os.urandom(size)


def new_key() -> bytes:
    """Return a fresh secret key of 32 bytes."""
    return os.urandom(KEY_BYTES)


def new_nonce() -> str:
    """Return a fresh 128-bit identifier as 32 hexadecimal digits; public, never repeated."""
    return os.urandom(16).hex()


def drawn_below(end: int) -> int:
    """Return an integer in ``[0, end)`` from the operating system."""
    return int.from_bytes(os.urandom(16)) % end  # 2**-64 from uniform below 2**64


def drawn_places(end: int, count: int) -> NDArray[np.int64]:
    """Return `count` integers in ``[0, end)`` from the operating system, or none if `end` is 0."""
    numbers = np.frombuffer(os.urandom(8 * count * (end > 0)), dtype=np.uint64)
    return (numbers % max(end, 1)).astype(np.int64)


class SecretStream:
    """A fast byte source: ChaCha20 under a key from the operating system.

    The key is renewed after a fork, so that two processes never share a stream, and after every
    gibibyte. The stream has no seed, and its key cannot be read.
    """

    def __init__(self) -> None:
        self._rekey()

    def _rekey(self) -> None:
        self._process = os.getpid()
        self._left = _REKEY_BYTES
        # The counter of blocks starts at 0. From a random start it could end within a draw, and
        # the library would then raise.
        nonce = bytes(_COUNTER_BYTES) + os.urandom(16 - _COUNTER_BYTES)
        cipher = Cipher(algorithms.ChaCha20(os.urandom(KEY_BYTES), nonce), mode=None)
        self._encryptor = cipher.encryptor()

    def __call__(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        if os.getpid() != self._process or size > self._left:
            self._rekey()
        self._left -= size
        return self._encryptor.update(bytes(size))

    def __repr__(self) -> str:
        return "SecretStream(operating system)"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("SecretStream cannot be copied or stored; make a new one.")


def public_generator(*parts: int | str) -> np.random.Generator:
    """Return the generator of public choices named by `parts`.

    Parameters
    ----------
    parts : int or str
        The public seed and its purpose, for example ``(7, "start")``. Different parts give
        independent streams.

    Returns
    -------
    numpy.random.Generator
        The same for every party; never use it for noise, masks or keys.
    """
    # With types and a separator, so that (1, "2") and ("12",) differ.
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))
