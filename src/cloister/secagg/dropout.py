"""What is left in a sum of pairwise masked vectors, and how shares take it away.

Silo *i* blinds its vector of a round with a pad of its own, from a seed, and with a pad for every
other member, from a key that the two agreed on; *i* adds the pad and *j* subtracts it, so pads of
two survivors cancel. In the sum remain the own pads of survivors, and the pads that survivors made
for members that were lost. To take them away one needs the seeds of the survivors and the private
keys of the lost: of each member one secret, never both. Each round has keys and seeds of its own,
so what is opened in a round says nothing about another.

References
----------
Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017,
section 4.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cloister.core.errors import RemoteProtocolError
from cloister.hazmat import kex, shamir
from cloister.hazmat.prg import KEY_BYTES, PadContext, Usage, expand, join, stream
from cloister.hazmat.ring import Words

COMMITMENT_BYTES = 32


def commitment(seed: bytes) -> bytes:
    """Return what binds a silo to a seed without showing it."""
    return hashlib.sha256(b"cloister/1/seed-commitment" + seed).digest()


@dataclass(frozen=True)
class RoundKeys:
    """The public half of every silo's keys, by silo and round.

    Parameters
    ----------
    order : tuple of str
        The silos that agreed on keys, in the plan's order.
    pair : mapping of silo to tuple of bytes
        X25519 public key of each round.
    commitments : mapping of silo to tuple of bytes
        Commitment to the seed of each round.
    """

    order: tuple[str, ...]
    pair: Mapping[str, tuple[bytes, ...]]
    commitments: Mapping[str, tuple[bytes, ...]]

    def fits(self, t: int, silo: str, survived: bool, secret: bytes) -> bool:
        """Return whether `secret` is the silo's seed, or private key if it was lost, of round t."""
        if survived:
            return hmac.compare_digest(commitment(secret), self.commitments[silo][t])
        return hmac.compare_digest(kex.public_of(secret), self.pair[silo][t])

    def pair_pads(
        self, silo: str, private: bytes, peers: Sequence[str], context: PadContext, size: int
    ) -> Words:
        """Return the sum of the pads that `silo` adds for `peers`, each with its sign."""
        total = np.zeros(size, dtype=np.uint64)
        place = self.order.index(silo)
        for peer in peers:
            if peer == silo:
                continue
            # Both silos must name their pair alike.
            first, second = sorted((silo, peer), key=self.order.index)
            between = join((context.session.encode(), first.encode(), second.encode()))
            public = self.pair[peer][context.round]
            key = kex.agree(private, public, Usage.PAIR_PAD, between)
            # Without a sender: both must come to the same pad, which cancels in the sum.
            pad = expand(key, context.of(""), size, Usage.PAIR_PAD)
            if place < self.order.index(peer):
                total += pad
            else:
                total -= pad
        return total

    def left_over(
        self,
        context: PadContext,
        size: int,
        members: Sequence[str],
        survivors: Sequence[str],
        opened: Mapping[str, bytes],
    ) -> Words:
        """Return what masks leave in the sum of the `survivors` among `members`.

        Parameters
        ----------
        opened : mapping of silo to bytes of length 32
            Of each survivor its seed, of each other member its private key.
        """
        total = np.zeros(size, dtype=np.uint64)
        for silo in members:
            secret = opened.get(silo, b"")
            survived = silo in survivors
            if len(secret) != KEY_BYTES or not self.fits(context.round, silo, survived, secret):
                raise RemoteProtocolError(
                    f"what opens the masks of {silo!r} in round {context.round} is missing or "
                    "wrong; nothing is unmasked."
                )
            if survived:
                total += expand(secret, context.of(silo), size, Usage.SELF_PAD)
            else:  # the pads of the survivors for the lost are those of the lost, with other signs
                total -= self.pair_pads(silo, secret, survivors, context, size)
        return total


def share_secret(secret: bytes, threshold: int, holders: int, stream_key: bytes) -> list[bytes]:
    """Share a seed or a private key among holders 1, 2, ...; the shares are a function of both."""
    return shamir.split(secret, threshold, range(1, holders + 1), stream(stream_key))


def open_secret(shares: Mapping[int, bytes]) -> bytes:
    """Combine shares by holder number (from 1); the result must still be checked."""
    return shamir.combine(shares, KEY_BYTES)
