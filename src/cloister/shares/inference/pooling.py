"""Sums over windows under encryption, from shares to shares: exact BFV with a uniform mask.

On additive shares such a sum is local, and networks on shares use that. This step is for chains
that evaluate a layer under encryption and continue on shares. Two servers hold shares of words of
Z_2^64, split into limbs of 16 bits; each key serves one batch:

1. server 0: :class:`EncryptedWindows` has a ``request`` for server 1
2. server 1: :func:`sum_windows` returns its share of the sums, and a reply for server 0
3. server 0: :meth:`EncryptedWindows.open` returns its share of the sums

A message that is damaged, for other windows or under another key raises RemoteProtocolError.

The proofs of networks on shares cover exactness and the view of each side. Semi-honest; the dealer
of the shares together with either server sees all.

References
----------
.. [FV12] Fan, Vercauteren, "Somewhat Practical Fully Homomorphic Encryption", ePrint 2012/144.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from cloister.core.errors import DataError, RemoteProtocolError
from cloister.core.randomness import ByteSource, SecretStream
from cloister.hazmat.ring import Words
from cloister.shares.inference.ckks import read, seal_context, written
from cloister.shares.inference.frames import pack, unpack
from cloister.shares.mpc.server import Server

# 128 bits of security for 168 bits of modulus at this degree.
_DEGREE = 8192  # slots of a ciphertext
_MODULUS_BITS = (56, 56, 56)
_PLAIN_BITS = 59
# A sum of 1,024 limbs of both servers is below 2^27, far below the plain modulus of 59 bits.
_LIMBS, _LIMB_BITS = 4, 16
_MOST_WINDOW = 1024


@cache
def _context() -> tuple[Any, Any, int]:
    """Return SEAL's bindings, the context of these parameters, and the plain modulus t."""
    api, context, modulus = seal_context("BFV", _DEGREE, _MODULUS_BITS, _PLAIN_BITS)
    return api, context, int(modulus.value())


def encrypted_sums(server: Server, windows: Words) -> Words:
    """Return shares of sums over the last axis (semi-honest; the dealer with either sees all).

    Two rounds. For 8,192 windows of k words, server 0 sends k times 0.5 MB and receives 1 MB.
    """
    share = np.ascontiguousarray(windows).reshape(-1, windows.shape[-1])
    if server.index == 0:
        sent = EncryptedWindows(share)
        server.give(sent.request)
        sums = sent.open(server.get())
    else:
        reply, sums = sum_windows(server.get(), share)
        server.give(reply)
    return sums.reshape(windows.shape[:-1])


class EncryptedWindows:
    """Server 0's share of the words of each window, (n, k), under a separate key: step 1."""

    def __init__(self, share: Words) -> None:
        slots, (api, context, _) = _slots(share), _context()
        key = api.KeyGenerator(context).secret_key()
        encryptor, self._decryptor = api.Encryptor(context, key), api.Decryptor(context, key)
        blobs = [written(encryptor.encrypt_symmetric(_plain(s))) for s in _flat(slots)]
        self._n, self._k = share.shape
        self.request = pack("windows", {"n": self._n, "k": self._k}, blobs)

    def open(self, reply: bytes) -> Words:
        """Return server 0's share of each window's sum, (n,): step 3."""
        blobs = _unpacked("sums", reply, self._n, self._k, 1)
        api, context, _ = _context()
        encoder, plain, found = api.BatchEncoder(context), api.Plaintext(), []
        for blob in blobs:
            ciphertext = _ciphertext(blob)
            if self._decryptor.invariant_noise_budget(ciphertext) < 1:
                raise RemoteProtocolError("sums are under another key; begin again with this one.")
            self._decryptor.decrypt(ciphertext, plain)
            found.append(encoder.decode_uint64(plain))
        sums = np.array(found, dtype=np.uint64).reshape(_LIMBS, -1)[:, : self._n]
        # A sum that wrapped is small; an honest one is that small with probability near 2^-40.
        if (sums < np.uint64(2 * self._k << _LIMB_BITS)).any():
            raise RemoteProtocolError(
                "a masked sum may have wrapped, as one word of about 2^40 does; begin again."
            )
        return _joined(sums)


def sum_windows(
    request: bytes, share: Words, source: ByteSource | None = None
) -> tuple[bytes, Words]:
    """Return a reply, and server 1's share of each window's sum, (n,): step 2."""
    slots, (api, context, t) = _slots(share), _context()
    n, k = share.shape
    places = map(_ciphertext, _unpacked("windows", request, n, k, k))
    own = slots.sum(axis=2, dtype=np.uint64)
    masks = uniform_below(t, own.size, source or SecretStream()).reshape(own.shape)
    evaluator, replies = api.Evaluator(context), []
    # One uniform plaintext per sum: the reply reveals nothing else about this server.
    for masked in _flat((own + masks) % np.uint64(t)):
        total = next(places)
        for _ in range(k - 1):
            evaluator.add_inplace(total, next(places))
        evaluator.add_plain_inplace(total, _plain(masked))
        replies.append(written(total))
    sums = np.negative(_joined(masks.reshape(_LIMBS, -1)[:, :n]))
    return pack("sums", {"n": n, "k": k}, replies), sums


def uniform_below(t: int, size: int, source: ByteSource) -> Words:
    """Return words exactly uniform in [0, t), t below 2^64, by rejection."""
    # With as many bits as t, at least half of the words are accepted.
    shift, found = np.uint64(64 - t.bit_length()), np.zeros(0, dtype=np.uint64)
    while len(found) < size:
        drawn = np.frombuffer(source(8 * (size - len(found) + 64)), dtype="<u8") >> shift
        found = np.concatenate([found, drawn[drawn < t]])
    return found[:size]


def _slots(share: Words) -> Words:
    """Return limbs, lowest first, by ciphertext, place in the window and slot; zero-padded."""
    words = np.asarray(share)
    fits = words.ndim == 2 and len(words) and 1 <= words.shape[1] <= _MOST_WINDOW
    if words.dtype != np.uint64 or not fits:
        raise DataError(
            f"windows must be words of shape (n_windows, k), k in [1, {_MOST_WINDOW}], got "
            f"{words.dtype} of shape {words.shape}."
        )
    limbs = np.ascontiguousarray(words, dtype="<u8").view("<u2").reshape(*words.shape, _LIMBS)
    padded = np.pad(limbs.astype(np.uint64), ((0, -len(words) % _DEGREE), (0, 0), (0, 0)))
    return padded.reshape(-1, _DEGREE, words.shape[1], _LIMBS).transpose(3, 0, 2, 1)


def _joined(limbs: Words) -> Words:
    """Return words modulo 2^64 from limbs, which may exceed 16 bits."""
    shifts = np.arange(_LIMBS, dtype=np.uint64) * np.uint64(_LIMB_BITS)
    words: Words = (limbs << shifts[:, None]).sum(axis=0, dtype=np.uint64)
    return words


def _flat(slots: Words) -> Words:
    return slots.reshape(-1, _DEGREE)


def _unpacked(kind: str, message: bytes, n: int, k: int, each: int) -> list[bytes]:
    """Return the ciphertexts of a message for these windows, `each` for each sum."""
    count = _LIMBS * -(-n // _DEGREE) * each
    fields, blobs = unpack(kind, ("n", "k"), message, count)
    if (fields["n"], fields["k"]) != (n, k):
        raise RemoteProtocolError(f"{kind} must be of {n} windows of {k} words at both servers.")
    return blobs


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
        raise RemoteProtocolError("ciphertext has another scheme or level; begin again.")
    return found
