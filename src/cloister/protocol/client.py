"""A silo's side of a job: it owns the records, the masks and the public state."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from cloister.core.arrays import GridState, Records
from cloister.core.errors import LocalProtocolError, RemoteProtocolError
from cloister.core.randomness import drawn_below
from cloister.hazmat import kex
from cloister.hazmat.prg import PadContext, Usage, derive, join, stream
from cloister.hazmat.ring import Integers, from_bytes, to_integers, to_words
from cloister.hazmat.signing import Identity, fingerprint_of
from cloister.privacy.chain import SignedStatement
from cloister.privacy.noise import NoiseSource, ShareNoise
from cloister.protocol.convictions import Conviction, is_proved
from cloister.protocol.exchanges import Kind
from cloister.protocol.journal import Journal, MemoryJournal
from cloister.protocol.keys import KeyAgreement, commitments_in
from cloister.protocol.messages import (
    BEFORE,
    BEGUN_LABEL,
    CONFIRM_LABEL,
    DEALT_LABEL,
    NO_SIGNATURE,
    SHARES_LABEL,
    VECTOR,
    Adopt,
    Adopted,
    AskState,
    Begin,
    Begun,
    Close,
    Confirm,
    Confirmation,
    Deal,
    Done,
    Invite,
    Open,
    Ready,
    Reply,
    Roster,
    SealedState,
    Shares,
    Unmask,
    Upload,
    accepted,
    begun_signed,
    confirmed,
    decode,
    decode_statement,
    encode,
    encode_statement,
    given,
    is_begun,
    is_confirmed,
    kind_of,
    result_hash,
    session_of,
    was_sent,
)
from cloister.protocol.plan import Plan
from cloister.protocol.progress import Progress, ReleasedSum, words_of
from cloister.protocol.readers import seal
from cloister.protocol.rows import Manner
from cloister.protocol.summing import Frozen, LocalStep, Partitioned, agreed_sums
from cloister.protocol.task import UnitTask, records_in_box
from cloister.secagg.dropout import commitment
from cloister.secagg.masks import TAG_BYTES, Masker

Source = Iterable[Records] | Callable[[int, GridState], Iterable[Records]] | Frozen
"""Grid records in chunks, iterable once per round; or a function of round and state; or the sums of
the periods of a horizon.

The function must return the same records for the same arguments, else a retry ends the job.
"""

# Largest difference between machines in a coordinate of the public state, in units of [-1, 1].
_DRIFT = 1e-6
_BOUND = b"told/"  # prefix of the journal's entries on answers; every frame begins with "CLST"
_BEGUN = _BOUND + b"begun/"  # of those on the nonces of a period


# Round, hash and who may confirm it; and the statements in each valid confirmation seen last.
_Heard = tuple[tuple[object, ...], dict[Confirmation, list[SignedStatement]]]


class Client:
    """The protocol of one silo in one job.

    Parameters
    ----------
    silo : str
        This silo's name in the plan.
    records : iterable of ndarray of shape (n, n_features), int32, or function
        Grid records in chunks; iterated once per round, so it must support repeated iteration. A
        function of round and public state returns new records in each round, for example the
        updates of a model that the silo trains. A record outside the plan's box adds nothing.
    masker : Masker, optional
        None if the silos agree on keys first, as they do over a network.
    journal : Journal, optional
        Durable storage of uploads, charges and all commitments of this silo, written before they
        are sent. A client that restarts with the journal of a job continues where it stopped.
    identity : Identity, optional
        Signing key of this silo; required if the plan has fingerprints.
    noise : NoiseSource, optional
        Only under "pairwise", and only in tests: another source for this silo's share of noise.

    Notes
    -----
    If the plan has a horizon, *begin* -> begun precedes each period, and *close* also ends each, so
    that its sum is unmasked then.
    If the plan has fingerprints, keys come first: *invite* -> keys, *roster* -> sealed secrets,
    *deal* -> ready. Then each round: *open* -> upload, *reply* -> confirm, and under pairwise masks
    *unmask* -> shares. The *open* of the next round, or *close*, carries the secrets for unmasking.
    Each message may be repeated and is then answered with the same bytes.
    """

    def __init__(
        self,
        plan: Plan,
        silo: str,
        records: Source,
        masker: Masker | None = None,
        journal: Journal | None = None,
        *,
        identity: Identity | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        if silo not in plan.silos:
            raise LocalProtocolError(f"silo {silo!r} is not in the plan, which has {plan.silos}.")
        if (masker is None) != bool(plan.fingerprints) or (masker is None and identity is None):
            raise LocalProtocolError(
                f"silo {silo!r} must have an identity for a plan with fingerprints, and a masker "
                "for a plan without; pass the other one."
            )
        if not plan.opened:
            raise LocalProtocolError(
                f"silo {silo!r} does not have the code of task {plan.task.name!r}; install its "
                "package or name its file."
            )
        # The price of a horizon is that of sums that are computed once, in their period.
        if (plan.horizon is not None) != isinstance(records, Frozen):
            raise LocalProtocolError(
                f"silo {silo!r} must have frozen sums for a plan with a horizon, and records for "
                "any other plan; pass those."
            )
        plan.contract.check(records)
        self.plan = plan
        self.silo = silo
        self._task = plan.task_at(silo)
        self._records = records
        self._journal = journal or MemoryJournal()
        self._identity = identity
        self._agreement = (
            KeyAgreement(plan, silo, identity, self._journal)
            if masker is None and identity is not None
            else None
        )
        self._given_masker = masker
        self._noise = noise
        self._shares_of_noise: dict[bytes, Integers] = {}  # by all that its key depends on
        self._nonces: dict[int, bytes] = {}  # of this silo's frozen sums, by period
        self._begun: dict[int, tuple[bytes, ...]] = {}  # the nonces of all silos, by period
        self._members: tuple[str, ...] = plan.silos  # of the open round, or of the next one
        self._uploads = 0  # rounds for which this silo's vector was sent
        self._went_on = False  # past everything that this silo may have sent before a restart
        self._pending: Reply | None = None  # the answer of the last upload, not yet unmasked
        self._proved_by = b""  # the request that proved that enough silos confirmed the last sum
        self._peer_statements: tuple[
            SignedStatement, ...
        ] = ()  # peers' statements, not durable yet
        self._kept: frozenset[SignedStatement] = frozenset()  # those that became durable last
        self._heard: _Heard = (), {}
        self._bound: dict[int, bytes] = {}  # hash of the one answer of each round
        self._before: tuple[tuple[str, ...], Reply] | None = None  # members, answer of last round
        self._manner: Manner = "kernel"  # of the sums, see `_checked`
        self._thorough_round = drawn_below(plan.rounds)  # unknown to the other parties
        self._progress = Progress(plan)
        self._answers: dict[bytes, bytes] = {}  # by hash of the request, for repeated requests
        # Round and one answer of the last end, of a period or of the job.
        self._receipt: tuple[int, bytes] | None = None
        # An answer is a function of the request and the state, so repeating all recorded requests
        # restores the state before a restart; no other state is stored.
        for request, answer in self._journal.recorded(plan.run_id):
            if not request.startswith(_BOUND) and self._answer(request) != answer:
                raise LocalProtocolError(
                    f"{silo!r} cannot reproduce its recorded answers, so its records or its keys "
                    "changed since; it leaves the job permanently."
                )

    def handle(self, frame: bytes) -> bytes:
        """Answer a frame of the aggregator.

        Raises
        ------
        RemoteProtocolError
            If the frame violates the protocol; nothing is sent or unmasked then.
        """
        answer = self._answers.get(_name(frame))
        return self._answer(frame) if answer is None else answer

    def prepare(self) -> None:
        """Draw the noise of the next round, so that the time of an upload does not depend on it.

        That of a period is drawn once the silo has answered *begin*, and so before *open*.
        """
        t = self._uploads
        is_known = self.plan.horizon is None or t in self._nonces
        if self.plan.profile == "pairwise" and t < self.plan.rounds and is_known:
            self._share_of_noise(t)

    @property
    def finished(self) -> bool:
        """True once every round was released and unmasked."""
        return self._progress.rounds == self.plan.rounds

    @property
    def state(self) -> GridState:
        """The current public state."""
        return self._progress.state

    @property
    def history(self) -> Sequence[GridState]:
        """The public state before the first round and after each."""
        return tuple(self._progress.states)

    @property
    def sums(self) -> Sequence[ReleasedSum]:
        """The noised sum of each round that was released."""
        return tuple(self._progress.sums)

    @property
    def survivors(self) -> tuple[tuple[str, ...], ...]:
        """The silos in the sum of each round that was released."""
        return self._progress.survivors

    def is_proved(self, conviction: Conviction) -> bool:
        """Return True if the evidence convicts a silo of this job."""
        agreement = self._agreement
        return (
            agreement is not None
            and bool(agreement.cohort)
            and is_proved(self.plan, agreement.roster, agreement.cohort, conviction)
        )

    def __repr__(self) -> str:
        return f"Client({self.silo!r}, round {self._progress.rounds} of {self.plan.rounds})"

    def _answer(self, frame: bytes) -> bytes:
        message = decode(self.plan, frame)
        match message:
            case Begin():
                return self._promise(frame, encode(self.plan, self._begin(message.round)))
            case Open():
                return self._open(message, frame)
            case Reply():
                return self._confirmed(message, frame)
            case Unmask():
                return encode(self.plan, self._give_shares(message))
            case Close():
                return self._close(message, frame)
            case AskState():  # recorded, since the key of the box must never seal a second state
                return self._promise(frame, encode(self.plan, self._seal_state(message.round)))
            case Adopt():
                return self._promise(frame, encode(self.plan, self._adopt(message)))
            case Invite():
                # New keys would carry another time and ledger head, so the first ones are repeated.
                kept = dict(self._journal.recorded(self.plan.run_id)).get(frame)
                return kept or self._promise(frame, encode(self.plan, self._keys.keys()))
            case Roster():
                return self._promise(frame, encode(self.plan, self._keys.secrets(message)))
            case Deal():
                return self._promise(frame, encode(self.plan, self._ready(message)))
        raise RemoteProtocolError(f"a silo does not accept frames of kind {message.kind.name}.")

    def _promise(self, request: bytes, answer: bytes) -> bytes:
        """Record an answer before it is sent, as the only answer to its request."""
        kept = self._journal.record(self.plan.run_id, request, answer)
        self._answers[_name(request)] = kept
        return kept

    def _keep_to(self, t: int, digest: bytes) -> None:
        """Commit this silo, in all processes that share its journal, to one answer of a round."""
        self._promise_all(t, [(_bound_name(t), digest)])

    def _promise_all(self, t: int, answers: Sequence[tuple[bytes, bytes]]) -> bytes:
        """Record the hash of a round's answer and this silo's reply to it; return the last."""
        kept = self._journal.record_all(self.plan.run_id, answers)
        self._bound[t] = kept[0]
        if self._bound[t] != answers[0][1]:
            raise RemoteProtocolError(f"round {t} was answered twice with different sums.")
        return kept[-1]

    # Keys ------------------------------------------------------------------------------------

    @property
    def _keys(self) -> KeyAgreement:
        if self._agreement is None:
            raise RemoteProtocolError("this job has no key agreement; its masks are given.")
        return self._agreement

    def _ready(self, deal: Deal) -> Ready:
        masker, digest = self._keys.masker(deal), self._keys.digest
        self._keep_to(BEFORE, digest)
        self._given_masker, self._members = masker, self._keys.cohort
        one = self._vouch(BEFORE, digest, deal.signature)
        dealt = commitment(commitments_in(self.plan, deal.boxes))
        ready = Ready(
            self.silo, digest, one.mac, one.signature, one.received, dealt, statement=one.statement
        )
        return replace(ready, acceptance=self._signed(DEALT_LABEL, *accepted(self.plan, ready)))

    @property
    def _masker(self) -> Masker:
        if self._given_masker is None:
            raise RemoteProtocolError(f"{self.silo!r} has no keys yet; agree on keys first.")
        return self._given_masker

    @property
    def _quorum(self) -> int:
        return self._agreement.quorum if self._agreement else self.plan.quorum(len(self.plan.silos))

    # Periods ---------------------------------------------------------------------------------

    def _begin(self, t: int) -> Begun:
        """Return the signed nonce of a period; refuse if the owner has not frozen it."""
        if not isinstance(self._records, Frozen):
            raise RemoteProtocolError("this job has no periods to begin.")
        if t != self._uploads:
            raise RemoteProtocolError(
                f"period {t + 1} was begun, but {self.silo!r} is in period {self._uploads + 1}."
            )
        self._nonces[t] = self._records.nonce(t)
        unsigned = Begun(t, self.silo, self._nonces[t])
        signature = self._signed(BEGUN_LABEL, *begun_signed(self.plan, unsigned))
        return replace(unsigned, signature=signature)

    def _keep_to_nonces(self, message: Open) -> None:
        """Commit this silo to the first list of the nonces of all silos in a period."""
        t, begun, silos = message.round, message.begun, self.plan.silos
        if not isinstance(self._records, Frozen):
            return
        period, drawn = f"period {t + 1}", tuple(one.nonce for one in begun)
        if self._begun.get(t) == drawn:
            return
        for silo, one in zip(silos, begun, strict=True):
            if one.sender != silo or not is_begun(self.plan, one, self._keys.identity_of(silo)):
                raise RemoteProtocolError(f"the nonce of {silo!r} in {period} is not signed by it.")
        own = self._records.nonce(t)
        # The sums of an earlier life may be in other silos' hands under this list.
        if drawn[silos.index(self.silo)] != own:
            raise LocalProtocolError(
                f"{self.silo!r} began {period} with other sums before, so its files were restored "
                "from a copy; it sends nothing more in this job. Cancel the job."
            )
        kept = self._journal.record(self.plan.run_id, _BEGUN + str(t).encode(), b"".join(drawn))
        if kept != b"".join(drawn):
            width = len(own)
            changed = [s for i, s in enumerate(silos) if kept[width * i :][:width] != drawn[i]]
            raise RemoteProtocolError(
                f"{period} was begun with other nonces of {changed} before, so files of these "
                f"silos were restored from a copy; {self.silo!r} keeps to the first. Cancel the "
                "job."
            )
        self._begun[t], self._nonces[t] = drawn, own

    # Rounds ----------------------------------------------------------------------------------

    def _open(self, message: Open, request: bytes) -> bytes:
        """Finish the previous round and return this silo's vector; repeat it on a repeated call."""
        t = message.round
        if t in (self._uploads - 1, self._uploads):
            self._keep_to_nonces(message)
        if t == self._uploads - 1:
            return self._sent(t)
        if t != self._uploads:
            raise RemoteProtocolError(
                f"round {t} was opened, but {self.silo!r} is in round {self._uploads}."
            )
        if self._progress.rounds < t:  # False if an upload failed and is requested again
            self._receive(t - 1, message.confirmations, message.opened)
            self._proved_by = request
        elif t == 0:
            if self._agreement:
                self._check_ready(message.confirmations)
            self._proved_by = request
        elif not self._proved_by:  # the end of a period has unmasked its sum
            self._proved_by = request
        elif kind_of(self._proved_by) == Kind.CLOSE:  # whose answer could not be recorded
            raise RemoteProtocolError(f"period {t} is not ended at {self.silo!r}; end it first.")
        # Bytes sent before a crash are sent again: a new noise draw under the same pad would
        # reveal the difference of the two draws.
        frame = None if self._went_on else self._journal.frame(self.plan.run_id, t)
        if frame is None:
            upload = encode(self.plan, self._upload(t))
            # Charge, bytes and peers' statements become durable in one step, before the first byte
            # is sent. After a crash, either nothing is charged or these bytes are sent again.
            # A restart repeats the recorded request, so it is the one with enough confirmations.
            frame = self._journal.commit(
                job=self.plan.run_id,
                round=t,
                event=self.plan.event(t),
                frame=upload,
                request=self._proved_by,
                peer_statements=self._peer_statements,
            )
            self._went_on = True
        self._peer_statements = ()
        self._uploads = t + 1
        return frame

    def _sent(self, t: int) -> bytes:
        """Return the bytes that were sent for round `t`."""
        frame = self._journal.frame(self.plan.run_id, t)
        if frame is None:
            raise LocalProtocolError(
                f"upload of round {t} was lost; {self.silo!r} leaves the job permanently."
            )
        return frame

    def _upload(self, t: int) -> Upload:
        """Sum the records, add this silo's share of the noise under "pairwise", mask the sum."""
        total, task = self._sum(t), self.plan.by_silo
        if task is not None and task.silos:
            total = task.to_silo_layer(t, self.silo, total)
        if self.plan.profile == "pairwise":
            # Noise before the mask: a party that opens the mask sees a noised vector only.
            total += self._share_of_noise(t)
        masked = self._masker.mask(to_words(total), self._pad(t), self._members)
        self._shares_of_noise.clear()
        return Upload(t, self.silo, self._state_tag(t), masked)

    def _sum(self, t: int) -> Integers:
        """Return the sum of this silo's records in round `t`."""
        task, state, length = self._task, self.state, self.plan.length(t)
        if self.plan.horizon is not None and isinstance(self._records, Frozen):
            return self.plan.horizon.payload(self._records.frozen(t, length, self._nonces[t]))
        assert not isinstance(self._records, Frozen)  # see the constructor
        if self.plan.by_client is None or not isinstance(task, UnitTask):
            thorough = t == self._thorough_round
            return self._checked(LocalStep(task, t, state, length, self._manner, thorough))
        step = LocalStep(task, t, state, length)
        chunks = self._records(t, state) if callable(self._records) else self._records
        # The bound holds for all rows of a unit together, and chunks may split them.
        none = np.zeros((0, task.n_features), dtype=np.int32)
        table = records_in_box(np.concatenate(list(chunks) or [none]), task.frac_bits)
        if task.rate == 1:
            return step.of(table)
        about = join((self.plan.digest, str(t).encode()))
        # Derived from the secret of the job: no other party knows the coins, and a restart draws
        # the same ones.
        coins = stream(derive(self._journal.secret(self.plan.run_id), Usage.COINS, about))
        return step.whole(task.contribute_sampled(t, state, table, coins))

    def _checked(self, step: LocalStep) -> Integers:
        """Return the sums of a step, and keep to the manner in which they were made."""

        def make(step: LocalStep) -> tuple[Integers, Manner]:
            if isinstance(self._records, Partitioned):
                return self._records.checked(step)
            records = self._records
            assert not isinstance(records, Frozen)  # see the constructor
            return step.checked(records(step.t, step.state) if callable(records) else records)

        sums, self._manner = agreed_sums(step, make)
        return sums

    def _share_of_noise(self, t: int) -> Integers:
        # Other sums of a period have another nonce, and sums with one nonce have one noise only,
        # whatever nonces the other silos say that they have.
        nonce = () if self.plan.horizon is None else (self._nonces[t],)
        about = join((self.plan.digest, str(t).encode(), *nonce))
        if about not in self._shares_of_noise:
            secret = self._journal.secret(self.plan.run_id)
            # Derived, so that a restart draws the same: two draws under one pad reveal their
            # difference.
            source = self._noise or ShareNoise(derive(secret, Usage.NOISE, about))
            self._shares_of_noise[about] = np.concatenate(
                [
                    source.draw("gaussian", self.plan.share_scale(block), block.size)
                    for block in self.plan.blocks(t)
                ]
            )
        return self._shares_of_noise[about]

    def _confirmed(self, message: Reply, request: bytes) -> bytes:
        """Record and return the confirmation of an answer, which must precede its unmasking."""
        t, confirm = message.round, self._confirm(message)
        promised = [(_bound_name(t), confirm.result_hash), (request, encode(self.plan, confirm))]
        answer = self._promise_all(t, promised)
        self._answers[_name(request)] = answer
        if self._progress.rounds == t:  # not yet unmasked
            self._pending = message
        return answer

    def _confirm(self, message: Reply) -> Confirm:
        """Check the survivors of an answer and return this silo's confirmation of it."""
        t, survivors = message.round, message.survivors
        if t == self._uploads and self.plan.horizon is not None and self.silo in survivors:
            raise LocalProtocolError(
                f"{self.silo!r} is in the sum of period {t + 1} and has not sent it, so its files "
                "were restored from a copy; it sends nothing more in this job. Cancel the job."
            )
        if t != self._uploads - 1:
            raise RemoteProtocolError(
                f"reply is for round {t}, which {self.silo!r} does not wait for."
            )
        if self._progress.rounds > t:  # unmasked already; only the same answer is confirmed again
            members = self._before[0] if self._before else ()
        else:
            members = self._members
        in_order = tuple(name for name in members if name in survivors)
        if survivors != in_order or self.silo not in survivors:
            raise RemoteProtocolError(
                f"survivors of round {t} must be members of it in the plan's order and include "
                f"{self.silo!r}."
            )
        # Under pairwise masks a smaller sum would also contain less noise than the charge assumes.
        if len(survivors) < self._quorum:
            raise RemoteProtocolError(
                f"round {t} has {len(survivors)} survivors, the plan requires at least "
                f"{self._quorum}; start a new job."
            )
        digest = result_hash(self.plan, message)
        if self._agreement and not was_sent(
            self.plan, t, digest, message.signature, self._agreement.roster.aggregator
        ):
            raise RemoteProtocolError(
                f"the sum of round {t} is not signed by the aggregator of this job."
            )
        one = self._vouch(t, digest, message.signature)
        return Confirm(t, self.silo, digest, one.mac, one.signature, one.received, one.statement)

    def _give_shares(self, message: Unmask) -> Shares:
        """Return shares that open the one sum of a round, once enough silos confirmed it.

        For each member it is a share of its seed if the confirmed sum contains the member, and of
        its key otherwise. The confirmation is durable, so no member's shares are ever of both.
        """
        t = message.round
        if self._pending is not None and self._pending.round == t:
            members, reply = self._members, self._pending
        elif self._before is not None and self._before[1].round == t:
            members, reply = self._before
        else:
            raise RemoteProtocolError(f"{self.silo!r} has confirmed no sum of round {t}.")
        self._check_confirmations(t, message.confirmations, self._bound[t], reply.survivors)
        # The survivors come from the confirmed sum, never from the request: the seed and the key
        # of one member together would unmask that member's vector.
        shares = self._masker.shares(t, members, reply.survivors)
        self._keep_heard()
        in_order = {name: shares[name] for name in members if name in shares}
        unsigned = Shares(t, self.silo, self._bound[t], NO_SIGNATURE, in_order)
        signature = self._signed(SHARES_LABEL, *given(self.plan, unsigned))
        return replace(unsigned, signature=signature)

    def _close(self, message: Close, request: bytes) -> bytes:
        """Finish the last round, or a period; repeat the answer on a repeated call."""
        is_last = message.round == self.plan.rounds - 1 or self.plan.horizon is not None
        if message.round != self._uploads - 1 or not is_last:
            raise RemoteProtocolError(f"job was closed before {self.silo!r} saw its last round.")
        if self._progress.rounds == message.round:
            self._receive(message.round, message.confirmations, message.opened)
            self._proved_by = request
        elif self._receipt and self._receipt[0] == message.round:
            return self._receipt[1]  # an earlier call also stored the peers' statements
        self._keep_heard()
        done = Done(message.round, self.silo, self._sealed_result())
        # Boxes have fresh keys; after a restart the journal returns the first ones.
        receipt = self._promise(self._proved_by, encode(self.plan, done))
        self._receipt = message.round, receipt
        if not self.finished:  # the next period is proved by its own request
            self._proved_by = b""
        return receipt

    def _sealed_result(self) -> tuple[bytes, ...]:
        """Sign the released sums and seal them to each reader of the plan."""
        if not self.plan.readers or self._identity is None:
            return ()
        return seal(self.plan, self.silo, self._identity, words_of(self.plan, self.sums))

    def _receive(
        self, t: int, confirmations: Sequence[Confirmation], opened: Mapping[str, bytes]
    ) -> None:
        """Unmask the sum of round `t` once enough silos confirmed it, and continue."""
        reply = self._pending
        if reply is None:
            raise RemoteProtocolError(
                f"round {t} continues, but {self.silo!r} received no reply for it."
            )
        self._check_confirmations(t, confirmations, self._bound[t], reply.survivors)
        unmasked = self._masker.unmask(
            reply.elements, self._pad(t), reply.survivors, self._members, opened
        )
        self._progress.receive(unmasked, reply.survivors)
        self._before = (self._members, reply)
        self._members, self._pending = reply.survivors, None

    # Confirmations ---------------------------------------------------------------------------

    def _vouch(self, t: int, digest: bytes, received: bytes) -> Confirmation:
        """Return this silo's confirmation of a hash that the aggregator signed."""
        one = Confirmation(
            self.silo, digest, bytes(TAG_BYTES), received=received, statement=self._statement()
        )
        parts = confirmed(self.plan, t, one)
        mac = self._masker.tag(Usage.CONFIRM, *parts)
        return replace(one, mac=mac, signature=self._signed(CONFIRM_LABEL, *parts))

    def _signed(self, label: bytes, *parts: bytes) -> bytes:
        """Return this silo's signature; zeros if all parties are one process."""
        if self._agreement is None or self._identity is None:
            return NO_SIGNATURE
        return self._identity.sign(label, *parts)

    def _statement(self) -> bytes:
        """Return this silo's signed ledger statement; empty if all parties are one process."""
        if self._agreement is None or self._identity is None:
            return b""
        plan = self.plan
        statement = self._journal.statement(plan.run_id, plan.digest.hex(), plan.events())
        return encode_statement(statement, SignedStatement.of(statement, self._identity).signature)

    def _keep_heard(self) -> None:
        self._journal.remember(self._peer_statements)
        self._kept = frozenset(self._peer_statements) or self._kept
        self._peer_statements = ()

    def _check_confirmations(
        self, t: int, confirmations: Sequence[Confirmation], digest: bytes, among: Sequence[str]
    ) -> tuple[Confirmation, ...]:
        """Return the confirmations of the hash in round `t`; enough silos must confirm it.

        This silo counts as one. Other confirmations do not count and end nothing: one silo could
        stop every job with them. The ledger statements of peers that count are kept.
        """
        valid: list[Confirmation] = []
        statements: list[SignedStatement] = []
        faults: list[str] = []
        # The frame after a request for shares has the same confirmations: each is verified once.
        about = (t, digest, *among)
        before = self._heard[1] if self._heard[0] == about else {}
        self._heard = about, {}
        for one in confirmations:
            try:
                said = before.get(one)
                if said is None:
                    said = self._checked_confirmation(t, one, digest, among)
                self._heard[1][one] = said
                statements += [each for each in said if each not in self._kept]
            except RemoteProtocolError as error:
                faults.append(str(error).rstrip("."))
            else:
                valid.append(one)
        agree = {self.silo, *(one.silo for one in valid)}
        if len(agree) < self._quorum:
            raise RemoteProtocolError(
                f"round {t} has {len(agree)} confirmations, requires {self._quorum}; "
                f"nothing is unmasked{''.join('; ' + fault for fault in faults)}."
            )
        # The next commit stores the statements before it sends.
        self._peer_statements = tuple(statements)
        return tuple(valid)

    def _checked_confirmation(
        self, t: int, one: Confirmation, digest: bytes, among: Sequence[str]
    ) -> list[SignedStatement]:
        """Return a peer's ledger statement, or raise RemoteProtocolError if nothing counts."""
        if one.silo not in among:
            raise RemoteProtocolError(
                f"silo {one.silo!r} is not in the sum of round {t} and cannot confirm it."
            )
        genuine = self._masker.verify(Usage.CONFIRM, one.mac, *confirmed(self.plan, t, one))
        if genuine and self._agreement:
            # Every silo knows the group key of the tag; only the signature names one silo.
            genuine = is_confirmed(self.plan, t, one, self._agreement.identity_of(one.silo))
        if not genuine:
            raise RemoteProtocolError(f"confirmation of {one.silo!r} for round {t} is forged.")
        if one.result_hash != digest:
            raise RemoteProtocolError(
                f"silos {one.silo!r} and {self.silo!r} confirm different sums in round {t}."
            )
        if self._agreement is None:
            return []
        public = self._agreement.identity_of(one.silo)
        said = decode_statement(self.plan, public, one.statement)
        return [] if one.silo == self.silo else [said]

    def _check_ready(self, confirmations: Sequence[Confirmation]) -> None:
        """Check that enough silos saw the same roster; keep their signatures of the ledger head."""
        keys = self._keys
        valid = self._check_confirmations(BEFORE, confirmations, keys.digest, keys.cohort)
        self._journal.countersigned(
            keys.head_shown(),
            {
                fingerprint_of(keys.identity_of(c.silo)): c.signature
                for c in valid
                if c.silo != self.silo
            },
        )

    # State -----------------------------------------------------------------------------------

    def _state_tag(self, t: int) -> bytes:
        """Return a keyed tag of the public state, equal for silos that hold the same state."""
        parts = [self.plan.digest, str(t).encode(), *self._progress.encoded()]
        return self._masker.tag(Usage.STATE_TAG, *parts)

    def _seal_state(self, t: int) -> SealedState:
        """Seal the state of the open round for silos that hold another."""
        self._check_open(t)
        plain = b"".join(self._progress.encoded()[1::2])
        return SealedState(t, self.silo, kex.seal(self._state_key(t, self.silo), plain))

    def _adopt(self, message: Adopt) -> Adopted:
        """Adopt the lead silo's state if it differs from this silo's only by rounding."""
        t = message.round
        self._check_open(t)
        plain = kex.unseal(self._state_key(t, message.lead), message.box)
        state, place = {}, 0
        for name in sorted(self.state):
            local = self.state[name]
            end = place + 8 * local.size
            elements = from_bytes(plain[place:end], local.size)
            state[name] = to_integers(elements).reshape(local.shape)
            place = end
        # The lead's state was rounded to the grid and the local one was not: half a step more.
        half_step = 0.5 / (1 << self.plan.grid.frac_bits)
        if place != len(plain) or self._progress.distance(state) > half_step + _DRIFT:
            raise RemoteProtocolError(
                f"the state of {message.lead!r} in round {t} differs by more than rounding; "
                "the job ends before it is spent."
            )
        self._progress.adopt(state)
        return Adopted(t, self.silo, self._state_tag(t))

    def _state_key(self, t: int, lead: str) -> bytes:
        about = join((self.plan.digest, str(t).encode(), lead.encode()))
        return self._masker.common_key(Usage.STATE_BOX, about)

    def _check_open(self, t: int) -> None:
        if t != self._uploads - 1 or self._pending is not None or self._progress.rounds != t:
            raise RemoteProtocolError(f"round {t} is not open at {self.silo!r}.")

    def _pad(self, t: int) -> PadContext:
        return PadContext(session_of(self.plan, self._begun.get(t, ())), t, 0, VECTOR, self.silo)


def _bound_name(t: int) -> bytes:
    return _BOUND + str(t).encode()


def _name(frame: bytes) -> bytes:
    return hashlib.sha256(frame).digest()
