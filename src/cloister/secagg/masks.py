"""Masks: what a silo adds to its vector, and what silos take from the sum.

``GroupMask`` is the masked secure aggregation of FastLloyd, section 4: the silos share a key that
the aggregator lacks, so it can add uploads and noise but read neither. Every silo can expand every
pad, so the sum of any committed set of survivors can be unmasked.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from cloister.errors import PlanError
from cloister.hazmat.prg import KEY_BYTES, PadContext, Usage, derive, expand, tag
from cloister.hazmat.ring import Words

TAG_BYTES = 32


class Masker(Protocol):
    """What a client needs from secure aggregation."""

    def mask(self, words: Words, context: PadContext) -> Words:
        """Blind this silo's vector; `context.sender` is this silo."""
        ...

    def unmask(self, words: Words, context: PadContext, survivors: Sequence[str]) -> Words:
        """Take the pads of `survivors` from a sum; `context.sender` is not used."""
        ...

    def tag(self, usage: Usage, *parts: bytes) -> bytes:
        """Authenticate `parts` to the other silos: 32 bytes."""
        ...

    def verify(self, usage: Usage, mac: bytes, *parts: bytes) -> bool:
        """Return whether `mac` is the tag of `parts`, in constant time."""
        ...


@dataclass(frozen=True)
class GroupMask:
    """One pad per silo and vector, all from a key that every silo has and the aggregator has not.

    Parameters
    ----------
    key : bytes of length 32
        Fresh for every job, from :func:`cloister.randomness.new_key`; never shown.
    """

    key: bytes = field(repr=False)
    _tag_keys: dict[Usage, bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise PlanError(f"key must have {KEY_BYTES} bytes, got {len(self.key)}.")
        tag_keys = {usage: derive(self.key, usage, b"") for usage in Usage}
        object.__setattr__(self, "_tag_keys", tag_keys)

    def mask(self, words: Words, context: PadContext) -> Words:
        """Add this silo's pad, modulo 2^64."""
        return words + expand(self.key, context, words.size)

    def unmask(self, words: Words, context: PadContext, survivors: Sequence[str]) -> Words:
        """Subtract every survivor's pad, modulo 2^64."""
        total = np.zeros_like(words)
        for silo in survivors:
            total += expand(self.key, context.of(silo), words.size)
        return words - total

    def tag(self, usage: Usage, *parts: bytes) -> bytes:
        """Return an HMAC under the group key; it says that *a silo* wrote this."""
        return tag(self._tag_keys[usage], *parts)

    def verify(self, usage: Usage, mac: bytes, *parts: bytes) -> bool:
        """Return whether `mac` is the tag of `parts`, in constant time."""
        return hmac.compare_digest(mac, self.tag(usage, *parts))

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("GroupMask holds a key and cannot be stored; share the key by enrolment.")


@dataclass(frozen=True)
class NoMask:
    """No blinding: for one silo that is its own aggregator, and for tests."""

    def mask(self, words: Words, context: PadContext) -> Words:
        """Return the words as they are."""
        return words.copy()

    def unmask(self, words: Words, context: PadContext, survivors: Sequence[str]) -> Words:
        """Return the words as they are."""
        return words.copy()

    def tag(self, usage: Usage, *parts: bytes) -> bytes:
        """Return zeros: without a key nothing may leave that depends on the state."""
        return bytes(TAG_BYTES)

    def verify(self, usage: Usage, mac: bytes, *parts: bytes) -> bool:
        """Return whether `mac` is the empty tag."""
        return mac == bytes(TAG_BYTES)
