"""Masks: pads that a silo adds to its vector and that silos subtract from the sum.

``GroupMask`` is the masked secure aggregation of FastLloyd, section 4. The silos share a key that
the aggregator lacks, so it can add uploads and noise but read neither. Every silo can expand every
pad, so the sum of any committed set of survivors can be unmasked.

``PairwiseMask`` protects against an aggregator that colludes with silos. Only a silo itself can
expand its pads, until enough silos open the residual masks of one sum. A further pad from the
group's key stays on that sum, so an aggregator without a silo's help cannot read it.
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

TAG_BYTES = 32  # HMAC-SHA256
_NOTHING: Mapping[str, bytes] = MappingProxyType({})  # read-only, as it is a default argument


class Masker(Protocol):
    """The operations of secure aggregation that a client uses.

    Notes
    -----
    `members` are the silos that the aggregator requested a vector from in this round, in the plan's
    order.
    """

    def mask(self, elements: Words, context: PadContext, members: Sequence[str] = ()) -> Words:
        """Mask this silo's vector; `context.sender` is this silo."""

    def shares(
        self, t: int, members: Sequence[str], survivors: Sequence[str]
    ) -> Mapping[str, bytes]:
        """Return this silo's share of each member's secret for the sum of `survivors`, if any."""
        return {}

    def unmask(
        self,
        elements: Words,
        context: PadContext,
        survivors: Sequence[str],
        members: Sequence[str] = (),
        opened: Mapping[str, bytes] = _NOTHING,
    ) -> Words:
        """Subtract the residual masks from a sum of `survivors`; `context.sender` is not used."""

    def common_key(self, usage: Usage, context: bytes) -> bytes:
        """Return a key that all silos share and no other party knows."""

    def tag(self, usage: Usage, *parts: bytes) -> bytes:
        """Return a 32-byte tag that authenticates `parts` to the other silos."""

    def verify(self, usage: Usage, mac: bytes, *parts: bytes) -> bool:
        """Return True if `mac` is the tag of `parts`; compared in constant time."""
        return hmac.compare_digest(mac, self.tag(usage, *parts))


@dataclass(frozen=True)
class GroupMask(Masker):
    """One pad per silo and vector, all from a key that the silos share and the aggregator lacks.

    Every silo can expand every pad, so there are no shares.

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
        # Derived once: tags are computed for every frame of a round.
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
        # Survivors only: the pad of a silo that dropped out is not in the sum.
        total = np.zeros_like(elements)
        for silo in survivors:
            total += expand(self.key, context.of(silo), elements.size)
        return elements - total

    def common_key(self, usage: Usage, context: bytes) -> bytes:
        """Return a key that all silos share and no other party knows."""
        return derive(self.key, usage, context)

    def tag(self, usage: Usage, *parts: bytes) -> bytes:
        """Return an HMAC under the group key; it proves that *some* silo wrote `parts`."""
        return tag(self._tag_keys[usage], *parts)

    def __reduce__(self) -> tuple[object, ...]:
        # A pickle would carry the key into caches and to other processes.
        raise TypeError("GroupMask holds a key and cannot be stored; share the key by enrolment.")


@dataclass(frozen=True)
class PairwiseMask(Masker):
    """Pair pads and self pads, opened per round by a threshold of silos.

    Parameters
    ----------
    silo : str
        This silo.
    public : RoundKeys
        Public keys and commitments of all silos.
    pair_keys, seeds : tuple of bytes, one per round
        This silo's private keys and seeds.
    held : mapping of silo to tuple of (bytes, bytes), one per round
        The shares that each silo sent to this one: of its seed and of its private key.
    group : GroupMask
        Used for tags, sealed state and the pads that only silos take off.
    padded : bool
        False for the frames of protocol 2, which have no such pads.
    """

    silo: str
    public: RoundKeys = field(repr=False)
    pair_keys: tuple[bytes, ...] = field(repr=False)
    seeds: tuple[bytes, ...] = field(repr=False)
    held: Mapping[str, tuple[tuple[bytes, bytes], ...]] = field(repr=False)
    group: GroupMask = field(repr=False)
    padded: bool = True

    def mask(self, elements: Words, context: PadContext, members: Sequence[str] = ()) -> Words:
        """Add the group's pad, the self pad and, signed, the pair pad for each other member."""
        t, size = context.round, elements.size
        # The self pad does not cancel in the sum. It protects a vector that arrives late, after the
        # silo was declared lost and its pair key was opened.
        self_pad = expand(self.seeds[t], context.of(self.silo), size, Usage.SELF_PAD)
        return (
            elements
            + self_pad
            + self._pads((self.silo,), context, size)
            + self.public.pair_pads(self.silo, self.pair_keys[t], members, context, size)
        )

    def _pads(self, silos: Sequence[str], context: PadContext, size: int) -> Words:
        """Return the sum of the pads that the group's key gives these silos."""
        total = np.zeros(size, dtype=np.uint64)
        for silo in silos if self.padded else ():
            total += expand(self.group.key, context.of(silo), size, Usage.PAD)
        return total

    def shares(
        self, t: int, members: Sequence[str], survivors: Sequence[str]
    ) -> Mapping[str, bytes]:
        """Return a share of each survivor's seed and of each other member's private key."""
        # Never both for one silo: its seed and its pair key together unmask its vector.
        return {silo: self.held[silo][t][0 if silo in survivors else 1] for silo in members}

    def unmask(
        self,
        elements: Words,
        context: PadContext,
        survivors: Sequence[str],
        members: Sequence[str] = (),
        opened: Mapping[str, bytes] = _NOTHING,
    ) -> Words:
        """Check every opened secret, and subtract the residual masks and the survivors' pads."""
        left = self.public.left_over(context, elements.size, members, survivors, opened)
        return elements - left - self._pads(survivors, context, elements.size)

    def common_key(self, usage: Usage, context: bytes) -> bytes:
        """Return a key that all silos share and no other party knows."""
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
        """Raise LocalProtocolError, since a single silo has no peer to share a key with."""
        raise LocalProtocolError(
            "a silo without peers has no common key; use profile 'group' or 'pairwise'."
        )

    def tag(self, usage: Usage, *parts: bytes) -> bytes:
        """Return zeros."""
        # Without a key, a tag that depends on the state would reveal it.
        return bytes(TAG_BYTES)
