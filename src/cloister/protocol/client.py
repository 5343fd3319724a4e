"""A silo's side of a job: it owns the records, the mask and the public state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from cloister.errors import LocalProtocolError, RemoteProtocolError
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.hazmat.prg import PadContext, Usage
from cloister.hazmat.ring import to_bytes, to_integers, to_words
from cloister.protocol.journal import Journal, MemoryJournal
from cloister.protocol.messages import (
    Close,
    Confirm,
    Confirmation,
    Done,
    Open,
    Reply,
    Upload,
    decode,
    encode,
)
from cloister.protocol.plan import Plan
from cloister.secagg.masks import Masker
from cloister.tasks.base import GridState, Records, State

_VECTOR = "payload"  # all blocks of a round travel in one vector under one pad


class Client:
    """One silo in one job.

    Parameters
    ----------
    plan : Plan
    silo : str
        This silo's name in the plan.
    records : iterable of ndarray of shape (n, n_features), int32
        Grid records in chunks; iterated once a round, so it must be iterable again.
    masker : Masker
    journal : Journal, optional
        Where upload and charge are made durable before the first byte leaves.

    Notes
    -----
    States of a round: *open* -> upload -> *reply* -> confirm -> *open* of the next (or *close*),
    where the confirmations of the others are checked and the sum is unmasked. Each message may be
    repeated and is then answered with the same bytes.
    """

    def __init__(
        self,
        plan: Plan,
        silo: str,
        records: Iterable[Records],
        masker: Masker,
        journal: Journal | None = None,
    ) -> None:
        if silo not in plan.silos:
            raise LocalProtocolError(f"silo {silo!r} is not in the plan, which has {plan.silos}.")
        self.plan = plan
        self.silo = silo
        self._records = records
        self._masker = masker
        self._journal = journal or MemoryJournal()
        self._uploads = 0  # rounds for which our vector left
        self._pending: Reply | None = None  # the answer of the last of them, not yet unmasked
        self._restarted_in = -1  # the round whose upload an earlier life of this silo made
        self._told: dict[int, bytes] = {}  # the one answer of each round, kept to the end
        self._states: list[GridState] = [self._on_grid(plan.task.start())]

    def handle(self, frame: bytes) -> bytes:
        """Answer a frame of the aggregator.

        Raises
        ------
        RemoteProtocolError
            If the frame breaks the protocol; nothing is sent or unmasked then.
        """
        message = decode(self.plan, frame)
        match message:
            case Open():
                return self._open(message)
            case Reply():
                return encode(self.plan, self._confirm(message))
            case Close():
                return self._close(message)
        raise RemoteProtocolError(f"a silo does not take frames of kind {message.kind.name}.")

    @property
    def finished(self) -> bool:
        """Whether every round was released and unmasked."""
        return len(self._states) == self.plan.rounds + 1

    @property
    def state(self) -> GridState:
        """The current public state."""
        return self._states[-1]

    @property
    def history(self) -> Sequence[GridState]:
        """The public state before the first round and after each."""
        return tuple(self._states)

    def __repr__(self) -> str:
        done = len(self._states) - 1
        return f"Client({self.silo!r}, round {done} of {self.plan.rounds})"

    def _open(self, message: Open) -> bytes:
        """Finish the round before, then send our vector; a repeated call sends it again."""
        t = message.round
        if t == self._uploads - 1:
            return self._sent(t)
        if t != self._uploads:
            raise RemoteProtocolError(
                f"round {t} was opened, but {self.silo!r} is in round {self._uploads}."
            )
        if len(self._states) == t:  # not so when our upload failed and is asked for again
            self._receive(t - 1, message.confirmations)
        frame = self._journal.frame(self.plan.run_id, t)
        if frame is not None:
            self._restarted_in = t
        else:
            upload = encode(self.plan, self._upload(t))
            frame = self._journal.commit(
                job=self.plan.run_id, round=t, event=self.plan.event(t), frame=upload
            )
        self._uploads = t + 1
        return frame

    def _sent(self, t: int) -> bytes:
        """Return the bytes that left for round `t`."""
        frame = self._journal.frame(self.plan.run_id, t)
        if frame is None:
            raise LocalProtocolError(
                f"upload of round {t} was lost; {self.silo!r} leaves the job for good."
            )
        return frame

    def _upload(self, t: int) -> Upload:
        """Sum the records and mask the sum."""
        total = np.zeros(self.plan.length(t), dtype=np.int64)
        for chunk in self._records:
            total += self.plan.task.contribute(t, self.state, chunk)
        words = self._masker.mask(to_words(total), self._pad(t))
        return Upload(t, self.silo, self._state_tag(t), words)

    def _confirm(self, message: Reply) -> Confirm:
        """Check the survivors, remember the answer and say so to the others."""
        t, survivors = message.round, message.survivors
        if t != self._uploads - 1:
            raise RemoteProtocolError(
                f"reply is for round {t}, which {self.silo!r} does not wait on."
            )
        in_order = tuple(name for name in self.plan.silos if name in survivors)
        if survivors != in_order or self.silo not in survivors:
            raise RemoteProtocolError(
                f"survivors of round {t} must be in the plan's order and include {self.silo!r}."
            )
        if len(survivors) < self.plan.min_silos:
            raise RemoteProtocolError(
                f"round {t} has {len(survivors)} survivors, the plan asks for at least "
                f"{self.plan.min_silos}."
            )
        if t == self._restarted_in:
            raise LocalProtocolError(
                f"{self.silo!r} was restarted in round {t} and may have confirmed another sum; "
                "it confirms nothing and leaves the job."
            )
        digest = result_hash(self.plan, message)
        if self._told.setdefault(t, digest) != digest:
            raise RemoteProtocolError(f"round {t} was answered twice with different sums.")
        if len(self._states) == t + 1:  # not yet unmasked
            self._pending = message
        return Confirm(t, self.silo, digest, self._mac(t, self.silo, digest))

    def _close(self, message: Close) -> bytes:
        """Finish the last round; a repeated call is answered again."""
        if message.round != self.plan.rounds - 1 or self._uploads != self.plan.rounds:
            raise RemoteProtocolError(f"job was closed before {self.silo!r} saw its last round.")
        if not self.finished:
            self._receive(message.round, message.confirmations)
        return encode(self.plan, Done(message.round, self.silo))

    def _receive(self, t: int, confirmations: Sequence[Confirmation]) -> None:
        """Unmask the sum of round `t` once enough silos were told the same, and move on."""
        reply = self._pending
        if reply is None:
            raise RemoteProtocolError(f"round {t} goes on, but {self.silo!r} has no reply of it.")
        digest = result_hash(self.plan, reply)
        agree = {self.silo}
        for confirmation in confirmations:
            silo, other = confirmation.silo, confirmation.result_hash
            if not self._masker.verify(
                Usage.CONFIRM, confirmation.mac, *self._confirmed(t, silo, other)
            ):
                raise RemoteProtocolError(f"confirmation of {silo!r} for round {t} is forged.")
            if silo not in reply.survivors:
                raise RemoteProtocolError(
                    f"silo {silo!r} is not in the sum of round {t} and cannot confirm it."
                )
            if other != digest:
                raise RemoteProtocolError(
                    f"silos {silo!r} and {self.silo!r} were sent different sums in round {t}; "
                    "the aggregator or the network is not honest."
                )
            agree.add(silo)
        if len(agree) < self.plan.min_silos:
            raise RemoteProtocolError(
                f"round {t} has {len(agree)} confirmations, needs {self.plan.min_silos}; "
                "nothing is unmasked."
            )
        words = self._masker.unmask(reply.words, self._pad(t), reply.survivors)
        released = self.plan.decode(t, to_integers(words))
        self._states.append(self._on_grid(self.plan.task.update(t, self.state, released)))
        self._pending = None

    def _pad(self, t: int) -> PadContext:
        return PadContext(self.plan.digest.hex(), t, 0, _VECTOR, self.silo)

    def _on_grid(self, state: State) -> GridState:
        return {name: round_to_grid(v, self.plan.grid.frac_bits) for name, v in state.items()}

    def _state_tag(self, t: int) -> bytes:
        """Return a keyed tag by which silos see whether they hold the same state."""
        parts = [self.plan.digest, str(t).encode()]
        for name in sorted(self.state):
            parts += [name.encode(), to_bytes(to_words(self.state[name].ravel()))]
        return self._masker.tag(Usage.STATE_TAG, *parts)

    def _confirmed(self, t: int, silo: str, digest: bytes) -> tuple[bytes, ...]:
        return (self.plan.digest, str(t).encode(), silo.encode(), digest)

    def _mac(self, t: int, silo: str, digest: bytes) -> bytes:
        return self._masker.tag(Usage.CONFIRM, *self._confirmed(t, silo, digest))


def result_hash(plan: Plan, reply: Reply) -> bytes:
    """Return SHA-256 over plan, round, survivors and masked sum: public, and the same for all."""
    return hashlib.sha256(encode(plan, reply)).digest()
