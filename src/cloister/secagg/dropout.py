"""Removal of the residual masks from a sum of pairwise masked vectors.

Silo *i* masks its vector of a round with its self pad, expanded from a seed. It also adds or
subtracts a pair pad for every other member *j*, expanded from a key that the two agreed on. One of
them adds the pad and the other subtracts it, so the pair pads of two survivors cancel.

The sum retains the self pads of the survivors, and the pair pads of survivors for lost members.
Removing them takes the seeds of the survivors and the private keys of the lost members: one secret
per member, never both. Each round has separate keys and seeds, so secrets opened in one round
reveal nothing about another.

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


def commitment(secret: bytes) -> bytes:
    """Return the commitment to a seed or a share: binding, and hiding because both are random."""
    return hashlib.sha256(b"cloister/1/seed-commitment" + secret).digest()


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
        """Return True if `secret` is the silo's seed, or private key if it was lost, of round t."""
        # In constant time, as the secret may have been combined from wrong shares.
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
            # In the plan's order, so that both silos derive the key from the same context.
            first, second = sorted((silo, peer), key=self.order.index)
            between = join((context.session.encode(), first.encode(), second.encode()))
            public = self.pair[peer][context.round]
            key = kex.agree(private, public, Usage.PAIR_PAD, between)
            # Without a sender: both silos must expand the same pad, which cancels in the sum.
            pad = expand(key, context.of(""), size, Usage.PAIR_PAD)
            # The sign follows from the order alone, so exactly one silo of a pair subtracts.
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
        """Return the residual masks in the sum of the `survivors` among `members`.

        Parameters
        ----------
        opened : mapping of silo to bytes of length 32
            The seed of each survivor and the private key of each other member.
        """
        total = np.zeros(size, dtype=np.uint64)
        for silo in members:
            secret = opened.get(silo, b"")
            survived = silo in survivors
            if len(secret) != KEY_BYTES or not self.fits(context.round, silo, survived, secret):
                raise RemoteProtocolError(
                    f"the secret that opens the masks of {silo!r} in round {context.round} is "
                    "missing or wrong; nothing is unmasked."
                )
            if survived:
                total += expand(secret, context.of(silo), size, Usage.SELF_PAD)
            else:  # survivors' pads for a lost member are that member's pads with the sign changed
                total -= self.pair_pads(silo, secret, survivors, context, size)
        return total


def share_secret(secret: bytes, threshold: int, holders: int, stream_key: bytes) -> list[bytes]:
    """Share a seed or a private key among holders 1, 2, ...

    The shares are a function of the secret and the stream key, so a restart sends the same shares.
    """
    return shamir.split(secret, threshold, range(1, holders + 1), stream(stream_key))


def open_secret(shares: Mapping[int, bytes]) -> bytes:
    """Combine shares by holder number (from 1); the caller checks the result."""
    return shamir.combine(shares, KEY_BYTES)
