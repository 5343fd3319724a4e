"""Shamir's secret sharing over the prime field of 2^521 - 1.

Any `threshold` shares determine the secret; fewer are independent of it. Shares carry no proof of
correctness, so the caller of :func:`combine` checks the secret against a commitment.

References
----------
Shamir, "How to Share a Secret", CACM 1979.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from cloister.core.errors import LocalProtocolError, RemoteProtocolError
from cloister.core.randomness import ByteSource

# A Mersenne prime above 2^512, so that every secret of 64 bytes is below it.
PRIME = (1 << 521) - 1
SHARE_BYTES = 66  # the 521 bits of a field element
_COEFFICIENT_BYTES = 82  # 135 bits more than the prime: the bias of the remainder is below 2^-134
_LARGEST_SECRET = 64


def split(secret: bytes, threshold: int, holders: Sequence[int], rand: ByteSource) -> list[bytes]:
    """Split a secret into one share for each holder.

    Parameters
    ----------
    secret : bytes, at most 64
    threshold : int in [1, number of holders]
    holders : sequence of different int, >= 1
        Points at which the polynomial is evaluated, one per holder; public.
    rand : ByteSource
        Secret uniform bytes, used for no other secret.

    Returns
    -------
    list of bytes of length 66
        One share for each holder.
    """
    if not 1 <= threshold <= len(holders):
        raise LocalProtocolError(
            f"threshold must be in [1, {len(holders)}] for {len(holders)} holders, got {threshold}."
        )
    if len(set(holders)) != len(holders) or not all(0 < x < PRIME for x in holders):
        raise LocalProtocolError("holders must be different numbers of at least 1.")
    if len(secret) > _LARGEST_SECRET:
        raise LocalProtocolError(f"a secret has at most {_LARGEST_SECRET} bytes.")
    # Uniform coefficients of degree 1 and above; the secret is the value of the polynomial at 0.
    higher = [int.from_bytes(rand(_COEFFICIENT_BYTES), "big") % PRIME for _ in range(threshold - 1)]
    coefficients = [*reversed(higher), int.from_bytes(secret, "big")]
    shares = []
    for x in holders:
        y = 0
        for coefficient in coefficients:
            y = (y * x + coefficient) % PRIME
        shares.append(y.to_bytes(SHARE_BYTES, "big"))
    return shares


@lru_cache(maxsize=16)
def _weights(holders: tuple[int, ...]) -> list[int]:
    """Return the weight of each holder's share in the secret; the same for every secret."""
    result = []
    for x in holders:
        # Lagrange's interpolation at 0, where the polynomial equals the secret.
        above, below = 1, 1
        for other in holders:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        result.append(above * pow(below, -1, PRIME) % PRIME)
    return result


def combine(shares: Mapping[int, bytes], size: int) -> bytes:
    """Combine at least `threshold` shares, by holder, into the secret of `size` bytes.

    Raises
    ------
    RemoteProtocolError
        If the result is no secret of that size. Some wrong shares pass this check.
    """
    total = 0
    for weight, share in zip(_weights(tuple(shares)), shares.values(), strict=True):
        total = (total + weight * int.from_bytes(share, "big")) % PRIME
    if total.bit_length() > 8 * size:
        raise RemoteProtocolError(
            "shares do not belong together, so one of them is wrong; request them again."
        )
    return total.to_bytes(size, "big")
