"""Sums of encrypted columns with secret weights: five functions of bytes, implemented by TenSEAL.

A column is one ciphertext with a row in each slot. So a score costs one multiplication by a number
and one addition per column, without rotation keys or relinearisation, for 1 to 4,096 rows. CKKS
computes on numbers with a small error, which must not reveal two secrets:

*The weights, to the owner of the key.* A plain weighted sum is an exact linear function of the
caller's own ciphertexts. So the caller could solve for all weights from one answer. The server
therefore adds a fresh encryption of zero, which hides the randomness of the sum (ring learning with
errors). It also floods the sum with noise far above every product of weights and ciphertext noise.
Flooding costs precision, which a larger scale restores: 2^70 for values. This protects against a
caller that follows the protocol; a malformed key or ciphertext can reveal the weights.

*The key, to observers of results.* CKKS is not secure against an observer of decrypted values
(IND-CPA-D), since their error depends on the key. Results are flooded before they are returned.

References
----------
.. [CKKS17] Cheon, Kim, Kim, Song, "Homomorphic Encryption for Arithmetic of Approximate Numbers",
   Asiacrypt 2017.
.. [HES18] Albrecht et al., "Homomorphic Encryption Standard", 2018, Table 1: ternary secret,
   classical attacks, 128 bits.
.. [LM21] Li, Micciancio, "On the Security of Homomorphic Encryption on Approximate Numbers",
   Eurocrypt 2021.
.. [LMSS22] Li, Micciancio, Schultz, Sorrell, "Securing Approximate Homomorphic Encryption Using
   Differential Privacy", Crypto 2022, Theorem 2: a deviation of ``sqrt(12 q) 2^(s/2)`` errors
   gives s bits for q answers.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import log2, sqrt
from types import ModuleType
from typing import IO, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from cloister.core.declared import Rule, declared
from cloister.core.errors import PlanError, RemoteProtocolError
from cloister.core.randomness import os_bytes
from cloister.shares.inference.frames import MOST_BLOB

Floats = NDArray[np.float64]

MODULUS_BITS = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}
"""Largest number of bits of a modulus for 128 bits of security, by degree; [HES18]_ Table 1."""
FLOOD = 2.0**-20
"""Standard deviation of the noise on a score, added at the server and again at the client."""
MOST_ROUNDING = 1e-6
"""Largest error of a score from rounding the weights, far below the added noise."""
ERROR_STD = 3.24
"""Deviation of a fresh ciphertext's error coefficients; SEAL draws a centred 42-bit binomial."""
_WIDE = 2.0**11  # noise where there is no row: what a slot beyond the batch says drowns in it
_SMOOTH_BITS = 32  # the flood is drawn on this lattice, and a second one fills its gaps


@declared
class Parameters:
    """Degree, modulus and scales of one multiplication by a number, at 128 bits of security.

    Parameters
    ----------
    degree : int
        Degree of the ring; a ciphertext holds ``degree / 2`` rows.
    modulus_bits : tuple of int
        Bits of the primes of the modulus; only keys use the last.
    value_bits, weight_bits : int
        Scales of values and of weights, as powers of 2.
    score_bits : int
        Scores are below ``2**score_bits`` in absolute value.
    """

    degree: Annotated[int, Rule(f"one of {list(MODULUS_BITS)}", MODULUS_BITS.__contains__)] = 8192
    modulus_bits: tuple[int, ...] = (60, 60, 60)
    value_bits: int = 70
    weight_bits: int = 32
    score_bits: int = 15

    def __post_init__(self) -> None:
        if sum(self.modulus_bits) > (most := MODULUS_BITS[self.degree]):
            raise PlanError(
                f"modulus_bits must add up to at most {most} at degree {self.degree} for 128 bits "
                f"of security, got {sum(self.modulus_bits)}; take a larger degree."
            )
        # Wide noise stays below 2^15 with probability 1 - 2^-60; a bit for the sign, one for sums.
        needed = self.value_bits + self.weight_bits + max(self.score_bits, 15) + 2
        if needed >= sum(self.modulus_bits[:-1]):
            raise PlanError(
                f"scales and score_bits need {needed + 1} bits, modulus_bits without its last have "
                f"{sum(self.modulus_bits[:-1])}; the scale would be wrong, take smaller ones."
            )

    @property
    def rows(self) -> int:
        """Largest number of rows of a batch."""
        return self.degree // 2

    @property
    def name(self) -> str:
        """Text of all parameters, which both sides compare."""
        primes = "+".join(map(str, self.modulus_bits))
        return f"CKKS {self.degree} {primes} {self.value_bits}+{self.weight_bits}"

    @property
    def score_limit(self) -> float:
        """Bound on the absolute value of a score."""
        return 2.0**self.score_bits

    @property
    def most_entries(self) -> int:
        """Largest number of weights of a score; each is rounded by at most ``2**-weight_bits``."""
        return int(MOST_ROUNDING * 2.0**self.weight_bits)

    def weights_hidden_bits(self, norm: float, answers: int = 1) -> float:
        """Return the bits of statistical security of weights of this L2 norm, given the scores.

        The result is ``-log2`` of a bound on the statistical distance between `answers` answers and
        answers computed from the scores alone. Weights multiply the error of the ciphertexts and
        the rounding of their encoding (2^-50 a slot); both shift Gaussian noise.
        """
        of_slot = ERROR_STD * sqrt(self.degree / 2) / 2.0**self.value_bits + 2.0**-50
        shift = sqrt(self.degree) * of_slot * max(norm, 1e-9)
        return -log2(answers * shift / (2 * FLOOD))

    def key_hidden_bits(self, norm: float, answers: int) -> float:
        """Return the bits of security against an observer of results; [LMSS22]_ Theorem 2.

        `answers` counts single scores; `norm` is the L2 norm of the weights of one score.
        """
        of_sum = ERROR_STD * max(norm, 1e-9) / 2.0**self.value_bits
        # The fresh zero, divided by the last prime, times the lattice of the flood.
        of_zero = sqrt(self.degree / 18) * 2.0 ** (
            _SMOOTH_BITS - self.value_bits - self.weight_bits
        )
        error = sqrt(self.degree / 2) * (of_sum + of_zero)
        return 2 * log2(FLOOD / (error * sqrt(12 * answers)))


def gaussian(size: int) -> Floats:
    """Return standard Gaussian noise from the operating system, by Box and Muller; (size,)."""
    bits = np.frombuffer(os_bytes(16 * ((size + 1) // 2)), dtype=np.uint64) >> np.uint64(11)
    uniform = (bits.astype(np.float64) + 0.5) / 2.0**53
    length, angle = np.sqrt(-2 * np.log(uniform[::2])), 2 * np.pi * uniform[1::2]
    return np.concatenate([length * np.cos(angle), length * np.sin(angle)])[:size]


def seal_context(
    scheme: str, degree: int, bits: Sequence[int], plain_bits: int = 0
) -> tuple[ModuleType, Any, Any]:
    """Return TenSEAL's bindings of SEAL, a context, and the plain modulus of exact schemes.

    SEAL has its own copy of the standard's table and refuses parameters below 128 bits.
    """
    try:
        import tenseal.sealapi
    except ImportError as error:
        raise PlanError("encrypted scoring needs TenSEAL: pip install 'cloister[he]'.") from error
    api: ModuleType = tenseal.sealapi
    asked = api.EncryptionParameters(getattr(api.SCHEME_TYPE, scheme))
    asked.set_poly_modulus_degree(degree)
    asked.set_coeff_modulus(api.CoeffModulus.Create(degree, list(bits)))
    plain = api.PlainModulus.Batching(degree, plain_bits) if plain_bits else None
    if plain:
        asked.set_plain_modulus(plain)
    context = api.SEALContext(asked, True, api.SEC_LEVEL_TYPE.TC128)
    if not context.parameters_set():
        raise PlanError(f"parameters are refused by SEAL: {context.parameters_error_message()}.")
    return api, context, plain


class Tenseal:
    """CKKS by TenSEAL's bindings of Microsoft SEAL; another library must have the same methods.

    Notes
    -----
    The owner of the key encrypts with the secret key. Half of a ciphertext is then a seed, which
    halves the upload. SEAL draws keys and errors from its own generator, Blake2xb seeded by the
    operating system.
    """

    def __init__(self, parameters: Parameters | None = None) -> None:
        self.parameters = own = parameters or Parameters()
        self._api, self._context, _ = seal_context("CKKS", own.degree, own.modulus_bits)
        self._encoder = self._api.CKKSEncoder(self._context)

    def new_keys(self) -> tuple[bytes, bytes]:
        """Return a secret and a public key."""
        generator, public = self._api.KeyGenerator(self._context), self._api.PublicKey()
        generator.create_public_key(public)
        return written(generator.secret_key()), written(public)

    def encrypt(self, secret: bytes, columns: Floats) -> list[bytes]:
        """Encrypt each column of an array (n_columns, n_rows) with values in [-1, 1]."""
        encryptor = self._api.Encryptor(self._context, self._secret(secret))
        padded = np.zeros((len(columns), self.parameters.rows))
        padded[:, : columns.shape[1]] = columns
        scale = 2.0**self.parameters.value_bits
        return [
            written(encryptor.encrypt_symmetric(self._plain(column.tolist(), scale)))
            for column in padded
        ]

    def read_public(self, public: bytes) -> Any:
        """Check a public key and return it in the form for :meth:`weigh`."""
        return read(self._api.PublicKey(), self._context, public, "public key")

    def weigh(
        self, public: Any, columns: Sequence[bytes], weights: Floats, bias: Floats, rows: int
    ) -> list[bytes]:
        """Return an encrypted score for each row of `weights`, hidden and flooded."""
        values, numbers = 2.0**self.parameters.value_bits, 2.0**self.parameters.weight_bits
        evaluator, term = self._api.Evaluator(self._context), self._api.Ciphertext()
        totals = [self._flood(public, evaluator, value, rows) for value in bias.tolist()]
        for column, of_column in zip(columns, weights.T.tolist(), strict=True):
            ciphertext = self._ciphertext(column, values)
            for total, weight in zip(totals, of_column, strict=True):
                # Never by zero: the product is no ciphertext, and skipping it changes the time.
                some = weight if abs(weight) * numbers >= 1 else 1 / numbers
                product = ciphertext if total is totals[-1] else term  # the last needs no copy
                evaluator.multiply_plain(ciphertext, self._plain(some, numbers), product)
                evaluator.add_inplace(total, product)
        return [written(total) for total in totals]

    def _flood(self, public: Any, evaluator: Any, bias: float, rows: int) -> Any:
        """Return a fresh encryption of the bias plus all noise.

        The flood has two parts, so that doubles represent it to the last bit. One is on multiples
        of 2^32, encrypted with fresh randomness; the other is 2^12 times as wide as these gaps.
        Slots without a row and imaginary parts get wide noise, so a batch answers its rows only.
        """
        values, numbers = 2.0**self.parameters.value_bits, 2.0**self.parameters.weight_bits
        one, total = values * numbers, self._api.Ciphertext()
        rough, fine, wide = (
            deviation * self._noise_parts() for deviation in (FLOOD, FLOOD / 2**_SMOOTH_BITS, _WIDE)
        )
        wide[:rows].real = 0
        encryptor = self._api.Encryptor(self._context, public)
        encryptor.encrypt(self._plain(rough.tolist(), values), total)
        evaluator.multiply_plain_inplace(total, self._plain(1.0, numbers))
        for part in (fine.tolist(), (wide + bias).tolist()):
            evaluator.add_plain_inplace(total, self._plain(part, one))
        return total

    def decrypt(self, secret: bytes, scores: Sequence[bytes], rows: int) -> Floats:
        """Return flooded scores in the clear, (n_rows, n_scores)."""
        own, plain = self.parameters, self._api.Plaintext()
        decryptor = self._api.Decryptor(self._context, self._secret(secret))
        found = np.empty((rows, len(scores)))
        for k, score in enumerate(scores):
            decryptor.decrypt(
                self._ciphertext(score, 2.0 ** (own.value_bits + own.weight_bits)), plain
            )
            slots = np.array(self._encoder.decode_complex(plain))
            # Under another key every slot is far beyond the noise, which no score is.
            if not np.abs(slots).max() < 2 * max(own.score_limit, 16 * _WIDE):
                raise RemoteProtocolError(
                    "reply is not an encrypted score under this key; ask the server again, with "
                    "the key of the request."
                )
            found[:, k] = slots.real[:rows] + FLOOD * gaussian(rows)
        return found

    def _noise_parts(self) -> NDArray[np.complex128]:
        """Return standard Gaussian noise for real and imaginary parts: for every coefficient."""
        real, imaginary = gaussian(self.parameters.degree).reshape(2, -1)
        parts: NDArray[np.complex128] = real + 1j * imaginary
        return parts

    def _secret(self, secret: bytes) -> Any:
        return read(self._api.SecretKey(), self._context, secret, "secret key")

    def _plain(self, values: float | list[float] | list[complex], scale: float) -> Any:
        plain = self._api.Plaintext()
        self._encoder.encode(values, scale, plain)
        return plain

    def _ciphertext(self, data: bytes, scale: float) -> Any:
        """Return a ciphertext of two parts at this scale; raise RemoteProtocolError otherwise."""
        found = read(self._api.Ciphertext(), self._context, data, "ciphertext")
        fresh = found.parms_id() == self._context.first_parms_id() and not found.is_transparent()
        if not (fresh and found.size() == 2 and found.is_ntt_form() and found.scale == scale):
            raise RemoteProtocolError(
                "ciphertext must have two parts, neither nothing, at the scale and modulus of the "
                "offer; encrypt again with the same version."
            )
        return found


_HEADER = bytes.fromhex("5ea110")  # SEAL's mark and the length of its header
_LEAST = 1 << 10  # bytes


def read(target: Any, context: Any, data: bytes, what: str) -> Any:
    """Load an object of SEAL from another party's bytes; raise RemoteProtocolError on any error."""
    sized = _LEAST <= len(data) <= MOST_BLOB and data[:3] == _HEADER
    if not sized or int.from_bytes(data[8:16], "little") != len(data):
        raise RemoteProtocolError(
            f"{what} of {len(data)} bytes is damaged or of another version; send it again."
        )
    try:
        with _as_file(data) as (path, _):
            target.load(context, path)
    except (ValueError, RuntimeError, IndexError, MemoryError, OverflowError):
        raise RemoteProtocolError(
            f"{what} is damaged, or was made with other parameters; send it again."
        ) from None  # what SEAL says of it is of no use to anybody
    return target


def written(source: Any) -> bytes:
    """Encode an object of SEAL as bytes."""
    with _as_file() as (path, file):
        source.save(path)
        return file.read()


@contextmanager
def _as_file(data: bytes = b"") -> Iterator[tuple[str, IO[bytes]]]:
    """Yield a file that SEAL can open by name; in memory if possible, since it may hold keys."""
    in_memory = hasattr(os, "memfd_create")
    with (
        os.fdopen(os.memfd_create("seal"), "r+b")
        if in_memory
        else tempfile.NamedTemporaryFile()  # readable by its owner alone
    ) as file:
        file.write(data)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}" if in_memory else file.name, file
