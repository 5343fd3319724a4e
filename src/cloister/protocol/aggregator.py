"""The aggregator's side of a job: it owns the noise and the open round, never a key."""

from __future__ import annotations

import numpy as np

from cloister.errors import LocalProtocolError, RemoteProtocolError
from cloister.hazmat.ring import Words, to_words
from cloister.privacy.noise import NoiseSource
from cloister.protocol.journal import Journal, MemoryJournal
from cloister.protocol.messages import (
    Close,
    Confirm,
    Confirmation,
    Kind,
    Open,
    Reply,
    Upload,
    decode,
    encode,
)
from cloister.protocol.plan import Plan


class Aggregator:
    """Adds masked vectors and noise; sees neither the records, nor the sums, nor the result.

    Parameters
    ----------
    plan : Plan
    noise : NoiseSource
        Drawn when a round opens, before any upload arrives, so that the time of the answer does
        not depend on it; never stored.
    journal : Journal, optional
        Where the answer and its charge are made durable before it leaves.
    """

    def __init__(self, plan: Plan, noise: NoiseSource, journal: Journal | None = None) -> None:
        self.plan = plan
        self._source = noise
        self._journal = journal or MemoryJournal()
        self._round = -1
        self._noise: Words | None = None
        self._uploads: dict[str, bytes] = {}
        self._confirmations: dict[str, Confirmation] = {}

    def open(self, t: int) -> bytes:
        """Open round `t` (the next one) and return the frame that asks for uploads."""
        if t == self._round + 1 < self.plan.rounds and (t == 0 or self._answer(t - 1)):
            confirmations = tuple(self._confirmations.values())
            self._round, self._confirmations, self._uploads = t, {}, {}
            self._noise = None if self._answer(t) else self._draw(t)
            return encode(self.plan, Open(t, confirmations))
        raise LocalProtocolError(
            f"round {t} cannot be opened after round {self._round}; a round is never run again."
        )

    def accept(self, silo: str, frame: bytes) -> Kind:
        """Take an upload, a confirmation or a farewell from the silo that the transport names.

        Returns
        -------
        Kind
            What was taken. A repeated frame is taken again without effect.

        Raises
        ------
        RemoteProtocolError
            If it is not from that silo, not of the open round, or differs from what the same silo
            sent before.
        """
        message = decode(self.plan, frame)
        if message.sender != silo or message.round != self._round:
            raise RemoteProtocolError(f"frame of {silo!r} does not belong to round {self._round}.")
        match message:
            case Upload() if self._answer(self._round) is None:
                if self._uploads.setdefault(silo, frame) != frame:
                    raise RemoteProtocolError(
                        f"silo {silo!r} sent two different uploads in round {self._round}."
                    )
            case Confirm():
                said = Confirmation(silo, message.result_hash, message.mac)
                if self._confirmations.setdefault(silo, said) != said:
                    raise RemoteProtocolError(
                        f"silo {silo!r} confirmed two different sums in round {self._round}."
                    )
        return message.kind

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """Silos whose upload of the open round is missing."""
        return tuple(name for name in self.plan.silos if name not in self._uploads)

    def combine(self) -> bytes:
        """Commit the survivors of the open round and return the reply; the same for ever after.

        Raises
        ------
        RemoteProtocolError
            If too few silos uploaded or their public states differ; nothing is released or charged.
        """
        t = self._round
        if answer := self._answer(t):
            return answer
        uploads = self._read_uploads(t)
        if len(uploads) < self.plan.min_silos:
            raise RemoteProtocolError(
                f"round {t} cannot be released: {len(uploads)} uploads, the plan asks for "
                f"{self.plan.min_silos}, none from {list(self.waiting_for)}; start a new job "
                "without them."
            )
        if len({upload.state_tag for upload in uploads}) > 1:
            raise RemoteProtocolError(
                f"silos hold different public states in round {t}; the job ends before it is spent."
            )
        if self._noise is None:
            raise LocalProtocolError(f"round {t} has no noise; open it first.")
        total = self._noise
        for upload in uploads:
            total = total + upload.words
        reply = encode(self.plan, Reply(t, tuple(upload.sender for upload in uploads), total))
        event = self.plan.event(t)
        answer = self._journal.commit(job=self.plan.run_id, round=t, event=event, frame=reply)
        self._noise, self._uploads = None, {}
        return answer

    def close(self) -> bytes:
        """Return the frame that ends the job after its last round."""
        if self._round != self.plan.rounds - 1 or self._answer(self._round) is None:
            raise LocalProtocolError(
                f"job cannot be closed in round {self._round} of {self.plan.rounds}."
            )
        return encode(self.plan, Close(self._round, tuple(self._confirmations.values())))

    def __repr__(self) -> str:
        return f"Aggregator(round {self._round + 1} of {self.plan.rounds})"

    def _read_uploads(self, t: int) -> list[Upload]:
        """Return the uploads of the open round in the plan's order."""
        frames = (self._uploads[name] for name in self.plan.silos if name in self._uploads)
        messages = (decode(self.plan, frame) for frame in frames)
        return [message for message in messages if isinstance(message, Upload)]

    def _answer(self, t: int) -> bytes | None:
        return self._journal.frame(self.plan.run_id, t)

    def _draw(self, t: int) -> Words:
        """Draw the noise of a round, block by block, independently."""
        kind = self.plan.task.mechanism
        parts = [
            np.zeros(block.size, dtype=np.int64)
            if kind == "none"
            else self._source.draw(kind, self.plan.noise_scale(block), block.size)
            for block in self.plan.task.blocks(t)
        ]
        return to_words(np.concatenate(parts))
