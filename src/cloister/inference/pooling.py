"""Average pooling under encryption, from shares to shares: exact BFV with a uniform mask.

On additive shares a sum over windows is local, and that is what networks on shares use. This step
is for chains that hand a layer to encryption and go on with shares. Two servers hold shares of
words of Z_2^64; server 0 holds the key:

1. server 0: :func:`encrypt_windows` -> bytes to server 1
2. server 1: :func:`sum_windows`     -> bytes to server 0, and its share of the sums
3. server 0: :func:`open_sums`       -> its share of the sums

*Right.* A word is ``sum_l 2^(16 l) x_l`` with four limbs in [0, 2^16). A window of k words makes,
in each limb, the whole number ``v`` of both servers' limbs, at most ``B = 2 k (2^16 - 1)``. Server
1 adds a mask ``rho`` uniform in Z_t, server 0 decrypts ``a = v + rho mod t``. As whole numbers
``a - rho`` is ``v``, or ``v - t`` if the sum wrapped; and if it wrapped, ``a < v <= B``. So server
0 refuses an ``a < B``, and every result that is not refused is exact: carries between limbs need
no care, since ``sum_l 2^(16 l) v_l`` is the sum of the words modulo 2^64.

*Private.* ``a`` is uniform whatever ``v`` is, so neither it nor a refusal (probability B / t for
each limb and window, 2^-40 for windows of 4) says anything of ``v``. The reply is a function of
server 0's own ciphertexts and of one plaintext, server 1's limbs plus mask, which is uniform.
Server 1 sees ciphertexts. Semi-honest; the dealer of the shares together with either server sees
all.

References
----------
.. [FV12] Fan, Vercauteren, "Somewhat Practical Fully Homomorphic Encryption", ePrint 2012/144.
"""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.errors import DataError, RemoteProtocolError
from cloister.hazmat.ring import Words
from cloister.inference.ckks import read, seal_context, written
from cloister.inference.frames import pack, unpack
from cloister.randomness import ByteSource, SecretStream

_DEGREE = 8192
_MODULUS_BITS = (56, 56, 56)
_PLAIN_BITS = 59
_LIMBS, _LIMB_BITS = 4, 16
MOST_WINDOW = 1024


@cache
def _context() -> tuple[Any, Any, int]:
    """Return SEAL's bindings, the context of these parameters, and t."""
    api, context, modulus = seal_context("BFV", _DEGREE, _MODULUS_BITS, _PLAIN_BITS)
    return api, context, int(modulus.value())


def new_pooling_key() -> bytes:
    """Return a fresh secret key for server 0; it never leaves it."""
    api, context, _ = _context()
    return written(api.KeyGenerator(context).secret_key())


def encrypt_windows(key: bytes, share: Words) -> bytes:
    """Encrypt server 0's share of the words of each window.

    Parameters
    ----------
    key : bytes
        Of :func:`new_pooling_key`.
    share : ndarray of shape (n_windows, k), uint64

    Returns
    -------
    bytes
        For server 1; its length is public.
    """
    api, context, _ = _context()
    words = _windows(share)
    encryptor = api.Encryptor(context, read(api.SecretKey(), context, key, "pooling key"))
    blobs = [
        written(encryptor.encrypt_symmetric(_plain(part)))
        for limbs in _limbs(words.T)  # one ciphertext for each place of the window
        for place in limbs
        for part in _parts(place)
    ]
    return pack("windows", {"n": len(words), "k": words.shape[1]}, blobs)


def sum_windows(
    request: bytes, share: Words, source: ByteSource | None = None
) -> tuple[bytes, Words]:
    """Add up windows under encryption, with server 1's own words and a mask.

    Parameters
    ----------
    request : bytes
        Of :func:`encrypt_windows`.
    share : ndarray of shape (n_windows, k), uint64
        Server 1's share of the same words.

    Returns
    -------
    reply : bytes
        For server 0.
    sums : ndarray of shape (n_windows,), uint64
        Server 1's share of each window's sum.

    Raises
    ------
    RemoteProtocolError
        If the request is damaged or of other windows.
    """
    api, context, t = _context()
    words = _windows(share)
    (n, k), evaluator = words.shape, api.Evaluator(context)
    chunks = ceil(n / _DEGREE)
    count = _LIMBS * k * chunks
    fields, blobs = unpack("windows", ("n", "k"), request, count)
    if (fields["n"], fields["k"]) != (n, k):
        raise RemoteProtocolError(f"windows must be {n} of {k} words; both servers must agree.")
    masks = uniform_below(t, _LIMBS * chunks * _DEGREE, source or SecretStream())
    masks = masks.reshape(_LIMBS, chunks, _DEGREE)
    replies, places = [], iter(blobs)
    for limbs, of_limb in zip(_limbs(words.T), masks, strict=True):
        own = list(_parts(limbs.sum(axis=0, dtype=np.uint64)))
        columns = [[_ciphertext(next(places)) for _ in range(chunks)] for _ in range(k)]
        for chunk, mask in enumerate(of_limb):
            total = columns[0][chunk]
            for place in columns[1:]:
                evaluator.add_inplace(total, place[chunk])
            # One plaintext, uniform because the mask is: all that the reply says of this server.
            evaluator.add_plain_inplace(total, _plain((own[chunk] + mask) % np.uint64(t)))
            replies.append(written(total))
    return pack("sums", {"n": n, "k": k}, replies), np.negative(_joined(masks, n))


def open_sums(key: bytes, reply: bytes, shape: tuple[int, int]) -> Words:
    """Return server 0's share of each window's sum; (n_windows,), uint64.

    Parameters
    ----------
    key : bytes
        That of :func:`encrypt_windows`.
    reply : bytes
    shape : (n_windows, k)

    Raises
    ------
    RemoteProtocolError
        If the reply is damaged, or a sum may have wrapped (see the module); then both drop the
        shares and begin again.
    """
    api, context, _ = _context()
    n, k = shape
    count = _LIMBS * ceil(n / _DEGREE)
    fields, blobs = unpack("sums", ("n", "k"), reply, count)
    if (fields["n"], fields["k"]) != (n, k):
        raise RemoteProtocolError(f"sums must be of {n} windows of {k} words.")
    decryptor = api.Decryptor(context, read(api.SecretKey(), context, key, "pooling key"))
    encoder, plain, found = api.BatchEncoder(context), api.Plaintext(), []
    for blob in blobs:
        ciphertext = _ciphertext(blob)
        if decryptor.invariant_noise_budget(ciphertext) < 1:
            raise RemoteProtocolError("sums are under another key; begin again with this one.")
        decryptor.decrypt(ciphertext, plain)
        found.append(encoder.decode_uint64(plain))
    sums = np.array(found, dtype=np.uint64).reshape(_LIMBS, -1)[:, :n]
    if (sums < np.uint64(2 * k << _LIMB_BITS)).any():
        raise RemoteProtocolError(
            "a masked sum may have wrapped, which happens about once in 2^40 sums; begin again."
        )
    return _joined(sums, n)


def uniform_below(t: int, size: int, source: ByteSource) -> Words:
    """Return words exactly uniform in [0, t), t below 2^64, by rejection."""
    shift, found = np.uint64(64 - t.bit_length()), np.zeros(0, dtype=np.uint64)
    while len(found) < size:
        drawn = np.frombuffer(source(8 * (size - len(found) + 64)), dtype="<u8") >> shift
        found = np.concatenate([found, drawn[drawn < t]])
    return found[:size]


def _windows(share: Words) -> Words:
    words = np.asarray(share)
    fits = words.ndim == 2 and len(words) and 1 <= words.shape[1] <= MOST_WINDOW
    if words.dtype != np.uint64 or not fits:
        raise DataError(
            f"windows must be words of shape (n_windows, k), k in [1, {MOST_WINDOW}], got "
            f"{words.dtype} of shape {words.shape}."
        )
    return words


def _limbs(words: Words) -> Words:
    """Return the limbs of words, lowest first, before their shape."""
    shifts = np.arange(_LIMBS, dtype=np.uint64) * np.uint64(_LIMB_BITS)
    return (words[None] >> shifts.reshape(-1, 1, 1)) & np.uint64((1 << _LIMB_BITS) - 1)


def _joined(limbs: Words, n: int) -> Words:
    """Return words from limbs that may be larger than a limb, modulo 2^64."""
    flat = limbs.reshape(_LIMBS, -1)[:, :n]
    weights = np.uint64(1) << (np.arange(_LIMBS, dtype=np.uint64) * np.uint64(_LIMB_BITS))
    words: Words = (flat * weights[:, None]).sum(axis=0, dtype=np.uint64)
    return words


def _parts(values: Words) -> list[NDArray[np.uint64]]:
    """Return values in ciphertexts' lengths, the last one filled up with zeros."""
    padded = np.zeros(ceil(len(values) / _DEGREE) * _DEGREE, dtype=np.uint64)
    padded[: len(values)] = values
    return list(padded.reshape(-1, _DEGREE))


def _plain(values: Words) -> Any:
    api, context, _ = _context()
    plain = api.Plaintext()
    api.BatchEncoder(context).encode(values.tolist(), plain)
    return plain


def _ciphertext(data: bytes) -> Any:
    api, context, _ = _context()
    found = read(api.Ciphertext(), context, data, "ciphertext")
    fresh = found.parms_id() == context.first_parms_id() and not found.is_transparent()
    if not fresh or found.size() != 2 or found.is_ntt_form():
        raise RemoteProtocolError("ciphertext is of another scheme or level; begin again.")
    return found
