"""Masks: what a silo adds to its vector, and what silos take from the sum.

``GroupMask`` is the masked secure aggregation of FastLloyd, section 4: the silos share a key that
the aggregator lacks, so it can add uploads and noise but read neither. Every silo can expand every
pad, so the sum of any committed set of survivors can be unmasked.

``PairwiseMask`` is for an aggregator that may collude: nobody but a silo itself can expand its
pads, until enough silos open what is left in one sum.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import numpy as np

from cloister.core.errors import LocalProtocolError, PlanError
from cloister.hazmat.prg import KEY_BYTES, PadContext, Usage, derive, expand, tag
from cloister.hazmat.ring import Words
from cloister.secagg.dropout import RoundKeys

TAG_BYTES = 32
_NOTHING: Mapping[str, bytes] = MappingProxyType({})


class Masker(Protocol):
    """What a client needs from secure aggregation.

    Notes
    -----
    `members` are the silos that were asked for a vector in this round, in the plan's order.
    """

    def mask(self, elements: Words, context: PadContext, members: Sequence[str] = ()) -> Words:
        """Blind this silo's vector; `context.sender` is this silo."""

    def shares(
        self, t: int, members: Sequence[str], survivors: Sequence[str]
    ) -> Mapping[str, bytes]:
        """Return this silo's share of what opens the sum of `survivors`, by member; or nothing."""
        return {}

    def unmask(
        self,
        elements: Words,
        context: PadContext,
        survivors: Sequence[str],
        members: Sequence[str] = (),
        opened: Mapping[str, bytes] = _NOTHING,
    ) -> Words:
        """Take from a sum of `survivors` what masks left in it; `context.sender` is not used."""

    def common_key(self, usage: Usage, context: bytes) -> bytes:
        """Return a key that every silo has, and nobody else."""

    def tag(self, usage: Usage, *parts: bytes) -> bytes:
        """Authenticate `parts` to the other silos: 32 bytes."""

    def verify(self, usage: Usage, mac: bytes, *parts: bytes) -> bool:
        """Return whether `mac` is the tag of `parts`, in constant time."""
        return hmac.compare_digest(mac, self.tag(usage, *parts))


@dataclass(frozen=True)
class GroupMask(Masker):
    """One pad per silo and vector, all from a key that every silo has and the aggregator has not.

    So every silo can expand every pad, and there are no shares.

    Parameters
    ----------
    key : bytes of length 32
        Fresh for every job, from :func:`cloister.core.randomness.new_key`; never shown.
    """

    key: bytes = field(repr=False)
    _tag_keys: dict[Usage, bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise PlanError(f"key must have {KEY_BYTES} bytes, got {len(self.key)}.")
        tag_keys = {usage: derive(self.key, usage, b"") for usage in Usage}
        object.__setattr__(self, "_tag_keys", tag_keys)

    def mask(self, elements: Words, context: PadContext, members: Sequence[str] = ()) -> Words:
        """Add this silo's pad, modulo 2^64."""
        return elements + expand(self.key, context, elements.size)

    def unmask(
        self,
        elements: Words,
        context: PadContext,
        survivors: Sequence[str],
        members: Sequence[str] = (),
        opened: Mapping[str, bytes] = _NOTHING,
    ) -> Words:
        """Subtract every survivor's pad, modulo 2^64."""
        # A pad that is not in the sum must not be subtracted: who dropped out left none.
        total = np.zeros_like(elements)
        for silo in survivors:
            total += expand(self.key, context.of(silo), elements.size)
        return elements - total

    def common_key(self, usage: Usage, context: bytes) -> bytes:
        """Return a key that every silo has, and nobody else."""
        return derive(self.key, usage, context)

    def tag(self, usage: Usage, *parts: bytes) -> bytes:
        """Return an HMAC under the group key; it says that *a silo* wrote this."""
        return tag(self._tag_keys[usage], *parts)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("GroupMask holds a key and cannot be stored; share the key by enrolment.")


@dataclass(frozen=True)
class PairwiseMask(Masker):
    """Pads of each pair of silos and of each silo alone; opened per round by a threshold of silos.

    Parameters
    ----------
    silo : str
        This silo.
    public : RoundKeys
        What all silos published.
    pair_keys, seeds : tuple of bytes, one per round
        This silo's private keys and seeds.
    held : mapping of silo to tuple of (bytes, bytes), one per round
        The shares that each silo gave to this one: of its seed and of its private key.
    group : GroupMask
        Only for tags and sealed state; it masks nothing here.
    """

    silo: str
    public: RoundKeys = field(repr=False)
    pair_keys: tuple[bytes, ...] = field(repr=False)
    seeds: tuple[bytes, ...] = field(repr=False)
    held: Mapping[str, tuple[tuple[bytes, bytes], ...]] = field(repr=False)
    group: GroupMask = field(repr=False)

    def mask(self, elements: Words, context: PadContext, members: Sequence[str] = ()) -> Words:
        """Add the own pad and, with its sign, the pad for each other member, modulo 2^64."""
        t, size = context.round, elements.size
        # The pads of pairs cancel in the sum. The own pad does not: without it, a silo whose vector
        # comes late, when its key was opened already, would be bare.
        own = expand(self.seeds[t], context.of(self.silo), size, Usage.SELF_PAD)
        return (
            elements
            + own
            + self.public.pair_pads(self.silo, self.pair_keys[t], members, context, size)
        )

    def shares(
        self, t: int, members: Sequence[str], survivors: Sequence[str]
    ) -> Mapping[str, bytes]:
        """Return a share of the seed of each survivor and of the private key of each other."""
        # Never both of one silo: its seed and its pair key together would lay its vector bare.
        return {silo: self.held[silo][t][0 if silo in survivors else 1] for silo in members}

    def unmask(
        self,
        elements: Words,
        context: PadContext,
        survivors: Sequence[str],
        members: Sequence[str] = (),
        opened: Mapping[str, bytes] = _NOTHING,
    ) -> Words:
        """Subtract what is left, once every opened secret fits what its silo committed to."""
        return elements - self.public.left_over(context, elements.size, members, survivors, opened)

    def common_key(self, usage: Usage, context: bytes) -> bytes:
        """Return a key that every silo has, and nobody else."""
        return self.group.common_key(usage, context)

    def tag(self, usage: Usage, *parts: bytes) -> bytes:
        """Return an HMAC under the group key."""
        return self.group.tag(usage, *parts)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("PairwiseMask holds keys and cannot be stored; agree on keys again.")


@dataclass(frozen=True)
class NoMask(Masker):
    """No blinding: for one silo that is its own aggregator, and for tests."""

    def mask(self, elements: Words, context: PadContext, members: Sequence[str] = ()) -> Words:
        """Return the elements as they are."""
        return elements.copy()

    def unmask(
        self,
        elements: Words,
        context: PadContext,
        survivors: Sequence[str],
        members: Sequence[str] = (),
        opened: Mapping[str, bytes] = _NOTHING,
    ) -> Words:
        """Return the elements as they are."""
        return elements.copy()

    def common_key(self, usage: Usage, context: bytes) -> bytes:
        """Refuse: without a group there is nothing to seal for."""
        raise LocalProtocolError("a silo without peers has no key in common with anybody.")

    def tag(self, usage: Usage, *parts: bytes) -> bytes:
        """Return zeros: without a key nothing may leave that depends on the state."""
        return bytes(TAG_BYTES)
