"""The aggregator's side of a job: it owns the open round and, under some profiles, the noise."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn, TypeVar

import numpy as np

from cloister.core.errors import LocalProtocolError, RemoteProtocolError
from cloister.core.randomness import new_key
from cloister.hazmat.ring import Words, to_words
from cloister.hazmat.signing import Identity, verify
from cloister.privacy.noise import NoiseSource
from cloister.protocol.convictions import OF_SHARES, OF_SUM, Conviction, false_shares
from cloister.protocol.exchanges import Kind
from cloister.protocol.journal import AnswerJournal, MemoryJournal
from cloister.protocol.keys import (
    check_keys,
    cohort_hash,
    commitments_in,
    commitments_of,
    holder_numbers,
    round_keys,
)
from cloister.protocol.messages import (
    BEFORE,
    DEALT_LABEL,
    NO_SIGNATURE,
    SHARES_LABEL,
    SUM_LABEL,
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
    Keys,
    Open,
    Ready,
    Reply,
    Roster,
    SealedState,
    Secrets,
    Shares,
    Unmask,
    Upload,
    accepted,
    confirmation_of,
    decode,
    decode_statement,
    encode,
    given,
    is_begun,
    is_confirmed,
    result_hash,
    sent,
)
from cloister.protocol.plan import Plan, share_threshold
from cloister.protocol.readers import Reader
from cloister.secagg.dropout import RoundKeys, commitment, open_secret

_T = TypeVar("_T")
_ROSTER, _BEGUN, _OPENED, _IDENTITY = b"roster", "begun/{}", "opened/{}", b"identity"


class Aggregator:
    """The party that adds masked vectors and, under "group", the noise of each round.

    It sees no records, no silo's own sum and no released sum. The sums that it adds, and opens
    under "pairwise", keep pads from a key that only the silos have.

    Parameters
    ----------
    noise : NoiseSource
        Drawn when a round opens, before any upload arrives, so that the time of the answer does
        not depend on it; never stored. Not used under "pairwise".
    journal : AnswerJournal, optional
        Durable storage of the aggregator's commitments, written before they are sent. These are the
        roster, the silos that share keys, the nonces of each period of a horizon, and each round's
        answer with its charge. An aggregator that restarts with the journal of a job continues in
        the round it had reached.
    """

    def __init__(
        self, plan: Plan, noise: NoiseSource, journal: AnswerJournal | None = None
    ) -> None:
        self.plan = plan
        self._source = noise
        self._journal = journal or MemoryJournal()
        self._members = plan.silos  # of the open round
        self._noise: Words | None = None
        self._drawn: dict[int, Words] = {}  # noise of the next round, drawn ahead
        self._drawing = threading.Lock()  # a noise source may be used by one thread at a time
        self._answers: dict[int, bytes] = {}  # by round; never changed once set
        self._last_reply: tuple[bytes, Reply] | None = None  # decoding a long vector is slow
        self._last_hash: tuple[object, bytes] | None = None  # of what, for `_sum_hash`
        self._last_signature: tuple[tuple[int, bytes], bytes] | None = None  # for `_sign`
        self._frames: dict[str, bytes] = {}  # uploads as received, to detect a second, other one
        self._begun: dict[str, Begun] = {}  # of the next period
        self._uploads: dict[str, Upload] = {}
        self._tags: dict[str, bytes] = {}  # keyed tag of each silo's public state
        self._confirmations: dict[str, Confirmation] = {}
        self._shares: dict[str, Mapping[str, bytes]] = {}  # by giver, one per member of the round
        self._sealed_state: SealedState | None = None
        self._keys: dict[str, Keys] = {}
        self._roster: Roster | None = None
        self._secrets: dict[str, Secrets] = {}
        self._cohort: tuple[str, ...] = ()
        self._ready: dict[str, Ready] = {}
        self.faults: dict[str, str] = {}
        """Why the newest frame of a silo that counts no longer was refused, by silo."""
        self.convictions: list[Conviction] = []
        """Silos that signed what no honest silo signs; they count as lost from then on."""
        self._finished: dict[
            int, dict[str, bytes]
        ] = {}  # secrets opened in the last finished round
        self._recorded = dict(self._journal.recorded(plan.run_id))
        self._recall_keys()
        self._round = self._recall_rounds()

    @property
    def first_round(self) -> int:
        """The round to continue with: the last answered round, or 0."""
        return self._round + 1

    def accept(self, silo: str, frame: bytes) -> Kind:
        """Accept a frame from the silo that the transport names.

        Returns
        -------
        Kind
            Kind of the frame. A repeated frame is accepted again without effect.

        Raises
        ------
        RemoteProtocolError
            If the frame is from another silo or another round, or differs from an earlier frame of
            the same silo and kind.
        """
        message = decode(self.plan, frame)
        # Frames about keys carry round 0, but belong to the time before the first round.
        of_round = BEFORE if isinstance(message, Keys | Secrets | Ready) else message.round
        of_round -= isinstance(message, Begun)  # it precedes its round
        # The transport authenticated `silo`; the name inside the frame alone proves nothing.
        if message.sender != silo or of_round != self._round:
            raise RemoteProtocolError(f"frame of {silo!r} does not belong to round {self._round}.")
        match message:
            case Keys():
                check_keys(self.plan, message)
                _only_one(self._keys, silo, message, "keys")
            case Secrets():
                if silo not in self._numbers or len(message.boxes) != len(self._numbers):
                    raise RemoteProtocolError(f"boxes of {silo!r} do not fit the roster.")
                _only_one(self._secrets, silo, message, "sealed secrets")
            case Ready():
                self._confirm(BEFORE, message)
            case Begun():
                if not is_begun(self.plan, message, self._public_of(silo)):
                    raise RemoteProtocolError(
                        f"the nonce of {silo!r} in period {message.round + 1} is not signed by it."
                    )
                _only_one(self._begun, silo, message, "nonces of a period")
            # An upload after the answer has no effect: the silo is not a survivor.
            case Upload() if self._answer(self._round) is None:
                if silo not in self._members:
                    raise RemoteProtocolError(f"silo {silo!r} is not in round {self._round}.")
                if self._frames.setdefault(silo, frame) != frame:
                    raise RemoteProtocolError(
                        f"silo {silo!r} sent two different uploads in round {self._round}."
                    )
                self._uploads.setdefault(silo, message)
                self._tags.setdefault(silo, message.state_tag)
            case Confirm():
                self._confirm(self._round, message)
            case Shares():
                self._check_shares(message)
                _only_one(self._shares, silo, message.shares, "shares")
            case SealedState():
                self._sealed_state = message
            case Adopted():
                self._tags[silo] = message.state_tag
            case Done():
                if len(message.boxes) != len(self.plan.readers):
                    raise RemoteProtocolError(f"boxes of {silo!r} do not fit the plan's readers.")
                # Durable at once: a silo deletes its own copy when it is told that the job ended.
                names = [box_name(silo, reader) for reader in self.plan.readers]
                boxes = list(zip(names, message.boxes, strict=True))
                if boxes and self._journal.record_all(self.plan.run_id, boxes) != message.boxes:
                    raise RemoteProtocolError(f"silo {silo!r} sealed two different results.")
        return message.kind

    # Keys ------------------------------------------------------------------------------------

    def invite(self) -> bytes | None:
        """Return the frame that requests keys; None if the roster is fixed already."""
        return None if self._roster else encode(self.plan, Invite())

    def roster(self) -> bytes:
        """Fix the roster of silos that sent keys and return the frame with their keys."""
        if self._roster is None:
            # In the plan's order, so that every silo can check the roster without sorting it.
            present = [self._keys[name] for name in self.plan.silos if name in self._keys]
            if len(present) < self.plan.min_silos:
                raise RemoteProtocolError(
                    f"job cannot start: {len(present)} silos sent keys, the plan requires "
                    f"{self.plan.min_silos}; start a new job when more silos are online."
                )
            frame = encode(self.plan, Roster(tuple(present), aggregator=self._identity.public))
            # Durable first: silos reject a second roster, so a restart must send the same one.
            self._journal.record(self.plan.run_id, _ROSTER, frame)
            self._take_roster(frame)
        return encode(self.plan, self._known_roster())

    @property
    def rostered(self) -> tuple[str, ...]:
        """The silos of the roster."""
        return tuple(self._numbers)

    def deals(self) -> dict[str, bytes]:
        """Fix the cohort of silos that sent boxes; return one frame of boxes for each of them."""
        roster = self._known_roster()
        if not self._cohort:
            cohort = tuple(name for name in self._numbers if name in self._secrets)
            if len(cohort) < self.quorum:
                raise RemoteProtocolError(
                    f"job cannot start: {len(cohort)} silos agreed on keys, it requires "
                    f"{self.quorum}; start a new job when more silos are online."
                )
            # Boxes before names: after a crash, a recorded cohort always has its boxes on disk.
            for name in cohort:
                sealed = encode(self.plan, self._secrets[name])
                self._journal.record(self.plan.run_id, f"secrets/{name}".encode(), sealed)
            named = encode(self.plan, Deal(cohort, ()))
            self._journal.record(self.plan.run_id, b"cohort", named)
            self._cohort = self._members = cohort
        digest = cohort_hash(self.plan, roster, self._cohort)
        signature = self._sign(BEFORE, digest)
        return {
            name: encode(self.plan, Deal(self._cohort, self._boxes_for(name), signature=signature))
            for name in self._cohort
        }

    def _boxes_for(self, silo: str) -> tuple[bytes, ...]:
        place = self._numbers[silo] - 1
        return tuple(self._secrets[dealer].boxes[place] for dealer in self._cohort)

    @property
    def has_cohort(self) -> bool:
        """True once the cohort of silos that share keys is fixed."""
        return bool(self._cohort)

    # Rounds ----------------------------------------------------------------------------------

    def begin(self) -> bytes | None:
        """Return the frame that requests the nonces of the next period; None if it needs none."""
        t = self._round + 1
        if self.plan.horizon is None or self._answer(t) or _begun_name(t) in self._recorded:
            return None
        return encode(self.plan, Begin(t))

    def _nonces(self, t: int) -> tuple[Begun, ...]:
        """Fix the nonces of period `t`, with which it is opened; empty in other jobs."""
        if self.plan.horizon is None or self._answer(t):
            return ()
        name = _begun_name(t)
        if name not in self._recorded:
            if missing := [silo for silo in self._members if silo not in self._begun]:
                raise RemoteProtocolError(
                    f"period {t + 1} cannot begin: it waits for {missing}{self.left_out}."
                )
            begun = tuple(self._begun[silo] for silo in self._members)
            # Durable first: silos reject a second list, so a restart must send the same one.
            frame = encode(self.plan, Open(t, begun=begun))
            self._recorded[name] = self._journal.record(self.plan.run_id, name, frame)
        kept = decode(self.plan, self._recorded[name])
        assert isinstance(kept, Open)
        return kept.begun

    def open(self, t: int) -> bytes:
        """Open round `t` (the next one) and return the frame that requests uploads.

        Raises
        ------
        RemoteProtocolError
            If a silo has not begun a period yet; then the round is not opened.
        """
        if not (t == self._round + 1 < self.plan.rounds and (t == 0 or self._answer(t - 1))):
            raise LocalProtocolError(
                f"round {t} cannot be opened after round {self._round}; open round "
                f"{self._round + 1}, as no round is run twice."
            )
        begun, opened = self._nonces(t), self._finish_round()
        confirmations = tuple(self._confirmations.values())
        self._begun, self._confirmations, self._uploads = {}, {}, {}
        self._frames, self._tags, self._shares, self._sealed_state = {}, {}, {}, None
        with self._drawing:
            drawn = self._drawn.pop(t, None)
            self._round, self._drawn = t, {}
            self._noise = None if self._answer(t) else self._draw(t) if drawn is None else drawn
        return encode(self.plan, Open(t, confirmations, opened, begun=begun))

    def prepare(self) -> None:
        """Draw the noise of the next round ahead; may be called from another thread."""
        with self._drawing:
            t = self._round + 1
            if t < self.plan.rounds and t not in self._drawn and self._answer(t) is None:
                self._drawn[t] = self._draw(t)

    @property
    def members(self) -> tuple[str, ...]:
        """The silos that may be in the open round."""
        return self._members

    @property
    def answered(self) -> bool:
        """True once the open round has its one answer."""
        return self._answer(self._round) is not None

    @property
    def survivors(self) -> tuple[str, ...]:
        """The silos in the open round's sum."""
        return self._reply().survivors

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """Silos whose upload of the open round is missing."""
        return tuple(name for name in self._members if name not in self._uploads)

    def combine(self) -> bytes:
        """Commit the survivors of the open round and return the reply, the same on every call.

        If too few silos uploaded, or their public states differ, nothing is released or charged.
        """
        t = self._round
        if answer := self._answer(t):
            return answer
        uploads = [self._uploads[name] for name in self._members if name in self._uploads]
        differing = self.differing
        if len(uploads) - len(differing) < self.quorum <= len(uploads):
            raise RemoteProtocolError(
                f"silos hold different public states in round {t}; the job ends before it is spent."
            )
        # A silo that keeps another state than most counts as lost: its vector is of that state.
        for name in differing:
            self.faults[name] = f"its public state in round {t} differs from that of {self.lead!r}"
        uploads = [upload for upload in uploads if upload.sender not in differing]
        if len(uploads) < self.quorum:
            raise RemoteProtocolError(
                f"round {t} cannot be released: {len(uploads)} uploads, the plan requires "
                f"{self.quorum}, missing from {list(self.waiting_for)}{self.left_out}; start a "
                "new job without them."
            )
        if self._noise is None:
            raise LocalProtocolError(f"round {t} has no noise; open it first.")
        # Under the group mask the sum starts from the noise: no sum without noise exists here.
        total = self._noise
        for upload in uploads:
            total = total + upload.elements
        reply = Reply(t, tuple(upload.sender for upload in uploads), total)
        signature = self._sign(t, result_hash(self.plan, reply))
        frame = encode(self.plan, replace(reply, signature=signature))
        event = self.plan.event(t)
        # If another process committed first, its answer counts and this one is discarded.
        answer = self._journal.commit(job=self.plan.run_id, round=t, event=event, frame=frame)
        self._answers[t] = answer
        self._noise, self._uploads, self._frames = None, {}, {}
        return answer

    def unmask(self) -> bytes | None:
        """Return the frame that requests shares; None if no masks have to be opened."""
        if self.plan.profile != "pairwise" or self._opened_name in self._recorded:
            return None
        return encode(self.plan, Unmask(self._round, tuple(self._confirmations.values())))

    def close(self) -> bytes:
        """Return the frame that ends the job after its last round, or a period of a horizon."""
        is_last = self._round == self.plan.rounds - 1 or self.plan.horizon is not None
        if not is_last or self._answer(self._round) is None:
            raise LocalProtocolError(
                f"job cannot be closed in round {self._round} of {self.plan.rounds}."
            )
        confirmations = tuple(self._confirmations.values())
        return encode(self.plan, Close(self._round, confirmations, self._finish_round()))

    def check_convictions(self) -> None:
        """End the job if more silos are convicted than may collude with the aggregator."""
        number, collusion = len(self.convictions), self.plan.collusion
        if self.plan.profile == "pairwise" and number > collusion:
            raise RemoteProtocolError(
                f"{number} silos are convicted, but the plan tolerates {collusion}: "
                f"{'; '.join(map(str, self.convictions))}; the job ends, what left stays charged."
            )

    @property
    def left_out(self) -> str:
        """The silos whose frames do not count, with reasons, for a message; empty if none."""
        reasons = "; ".join(f"{silo!r}: {why}" for silo, why in self.faults.items())
        return f" (left out: {reasons})" if reasons else ""

    def __repr__(self) -> str:
        return f"Aggregator(round {self._round + 1} of {self.plan.rounds})"

    # States that differ ----------------------------------------------------------------------

    @property
    def differing(self) -> tuple[str, ...]:
        """Silos whose public state in the open round differs from that of the lead silo."""
        lead = self.lead
        return tuple(name for name, tag in self._tags.items() if tag != self._tags.get(lead))

    @property
    def lead(self) -> str:
        """The first silo, in the plan's order, whose public state most silos hold."""
        # The state of one silo must not decide: with a false one it would lead the others astray.
        held = Counter(self._tags.values())
        most = max(held.values(), default=0)
        # Of states that equally many hold the first counts, so that a restart leads to the same.
        leads = (name for name in self.plan.silos if name in self._tags)
        return next((name for name in leads if held[self._tags[name]] == most), "")

    def ask_state(self) -> bytes:
        """Return the frame that requests the sealed state of the lead silo."""
        return encode(self.plan, AskState(self._round))

    def adopt(self) -> bytes:
        """Return the frame with the lead silo's sealed state."""
        if self._sealed_state is None:
            raise RemoteProtocolError(
                f"silos hold different public states in round {self._round} and {self.lead!r} "
                "did not send its state; the job ends before it is spent."
            )
        sealed = self._sealed_state
        return encode(self.plan, Adopt(self._round, sealed.sender, sealed.box))

    # Inside ----------------------------------------------------------------------------------

    def _confirm(self, t: int, message: Confirm | Ready) -> None:
        """Store a confirmation for the other silos, which check its tag, too."""
        silo, confirmation = message.sender, confirmation_of(message)
        if self._roster is not None:
            self._check_confirmation(t, message, confirmation)
        if self._confirmations.get(silo, confirmation) != confirmation:
            raise RemoteProtocolError(f"silo {silo!r} confirmed two different sums in round {t}.")
        self._confirmations[silo] = confirmation

    def _check_confirmation(self, t: int, message: Confirm | Ready, one: Confirmation) -> None:
        """Raise RemoteProtocolError for a confirmation that no silo would count."""
        silo = one.silo
        if not is_confirmed(self.plan, t, one, self._public_of(silo)):
            raise RemoteProtocolError(f"confirmation of {silo!r} is not signed by that silo.")
        digest = self._sum_hash(t)
        # Signatures of Ed25519 are deterministic, so there is one for each sum.
        if (one.result_hash, one.received) != (digest, self._sign(t, digest)):
            self._convict(silo, t, OF_SUM, encode(self.plan, message))
        decode_statement(self.plan, self._public_of(silo), one.statement)
        if isinstance(message, Ready):
            dealt = commitment(commitments_in(self.plan, self._boxes_for(silo)))
            signed = accepted(self.plan, message)
            public = self._public_of(silo)
            # Without this acceptance no later share could convict the silo.
            if message.dealt != dealt or not verify(
                public, message.acceptance, DEALT_LABEL, *signed
            ):
                raise RemoteProtocolError(f"{silo!r} did not sign which shares it accepted.")
            self._ready[silo] = message

    def _check_shares(self, message: Shares) -> None:
        """Raise RemoteProtocolError for shares that do not open the sum of the open round."""
        silo, t = message.sender, message.round
        if tuple(message.shares) != tuple(self._members):
            raise RemoteProtocolError(f"shares of {silo!r} do not fit round {t}.")
        signed = given(self.plan, message)
        if message.result_hash != self._sum_hash(t) or not verify(
            self._public_of(silo), message.signature, SHARES_LABEL, *signed
        ):
            raise RemoteProtocolError(f"shares of {silo!r} for this sum are not signed by it.")
        dealt, survivors = commitments_in(self.plan, self._boxes_for(silo)), self.survivors
        committed = commitments_of(self.plan, self._cohort, dealt, t)
        if all(
            commitment(share) == committed[member][0 if member in survivors else 1]
            for member, share in message.shares.items()
        ):
            return
        # After a restart the acceptance is missing: a false share is refused, without evidence.
        if silo in self._ready and false_shares(self.plan, self._cohort, dealt, message):
            ready = encode(self.plan, self._ready[silo])
            self._convict(silo, t, OF_SHARES, encode(self.plan, message), ready, dealt)
        raise RemoteProtocolError(f"{silo!r} gave other shares than asked.")

    def _convict(self, silo: str, t: int, offence: str, *evidence: bytes) -> NoReturn:
        """Keep the evidence against a silo, and refuse its frame."""
        conviction = Conviction(silo, t, offence, evidence)
        # The first offence is enough; a silo could fill the memory with others.
        if all(known.silo != silo for known in self.convictions):
            self.convictions.append(conviction)
        raise RemoteProtocolError(f"{conviction}.")

    def _public_of(self, silo: str) -> bytes:
        for keys in self._known_roster().keys:
            if keys.sender == silo:
                return keys.identity
        raise RemoteProtocolError(f"silo {silo!r} is not in the roster.")

    def _sum_hash(self, t: int) -> bytes:
        """Return the hash of the one sum of a round, or of the one cohort."""
        # Computed once, since it is compared with the answer of every silo.
        about: object = self._cohort if t == BEFORE else self._reply(t)
        if self._last_hash is None or self._last_hash[0] is not about:
            self._last_hash = (
                about,
                (
                    cohort_hash(self.plan, self._known_roster(), self._cohort)
                    if t == BEFORE
                    else result_hash(self.plan, self._reply(t))
                ),
            )
        return self._last_hash[1]

    @property
    def _identity(self) -> Identity:
        """The key with which the aggregator signs the cohort and the sums of this job."""
        if _IDENTITY not in self._recorded:
            # Durable, as silos hold its public key, and a restart signs more sums of the job.
            seed = self._journal.record(self.plan.run_id, _IDENTITY, new_key())
            self._recorded[_IDENTITY] = seed
        return Identity.from_bytes(self._recorded[_IDENTITY])

    def _sign(self, t: int, digest: bytes) -> bytes:
        if self._roster is None:  # all parties are in one process
            return NO_SIGNATURE
        # Made once, since it is compared with the confirmation of every silo.
        if self._last_signature is None or self._last_signature[0] != (t, digest):
            signature = self._identity.sign(SUM_LABEL, *sent(self.plan, t, digest))
            self._last_signature = (t, digest), signature
        return self._last_signature[1]

    def _finish_round(self) -> dict[str, bytes]:
        """Open the masks of the previous round and continue with its survivors."""
        t = self._round
        if t == BEFORE:
            return {}
        if t not in self._finished:
            survivors = self.survivors
            opened = self._opened(t, survivors) if self.plan.profile == "pairwise" else {}
            self._finished, self._members = {t: opened}, survivors
        return self._finished[t]

    def _opened(self, t: int, survivors: Sequence[str]) -> dict[str, bytes]:
        """Combine shares into each member's seed or key of round `t`, and check it."""
        name = self._opened_name
        if name in self._recorded:
            return _split_opened(self._members, self._recorded[name])
        threshold = share_threshold(len(self._numbers), self.plan.collusion)
        # More shares than the threshold add work, but no information.
        givers = [silo for silo in self._numbers if silo in self._shares][:threshold]
        if len(givers) < threshold:
            raise RemoteProtocolError(
                f"round {t} cannot be opened: {len(givers)} silos gave shares, it requires "
                f"{threshold}{self.left_out}; the job ends, what left stays charged."
            )
        opened = {}
        for silo in self._members:
            shares = {self._numbers[giver]: self._shares[giver][silo] for giver in givers}
            # All shares are those that the silo dealt. If they do not belong together, or yield
            # another secret than it committed to, then it dealt false ones.
            with suppress(RemoteProtocolError):
                opened[silo] = open_secret(shares)
            if not self._round_keys.fits(t, silo, silo in survivors, opened.get(silo, bytes(32))):
                raise RemoteProtocolError(
                    f"the shares that {silo!r} dealt for round {t} do not match its commitment; "
                    "the job ends, what left stays charged."
                )
        joined = b"".join(opened[silo] for silo in self._members)
        self._recorded[name] = self._journal.record(self.plan.run_id, name, joined)
        return opened

    @property
    def _opened_name(self) -> bytes:
        return _OPENED.format(self._round).encode()

    def _recall_keys(self) -> None:
        """Restore the roster and the cohort that were fixed before a restart."""
        if frame := self._recorded.get(_ROSTER):
            self._take_roster(frame)
        if frame := self._recorded.get(b"cohort"):
            deal = decode(self.plan, frame)
            assert isinstance(deal, Deal)
            self._cohort = self._members = deal.cohort
            for name in deal.cohort:
                secrets = decode(self.plan, self._recorded[f"secrets/{name}".encode()])
                assert isinstance(secrets, Secrets)
                self._secrets[name] = secrets

    def _recall_rounds(self) -> int:
        """Restore the rounds finished before a restart; return the last of them."""
        for t in range(self.plan.rounds):
            if frame := self._journal.frame(self.plan.run_id, t):
                self._answers[t] = frame
        last = max(self._answers, default=0)
        self._round = BEFORE
        # Opening the last answered round again finishes the round before it.
        for t in range(last - 1):
            self._round = t
            self._finish_round()
        return last - 1

    def _take_roster(self, frame: bytes) -> None:
        roster = decode(self.plan, frame)
        assert isinstance(roster, Roster)
        self._roster = roster

    def _known_roster(self) -> Roster:
        if self._roster is None:
            raise LocalProtocolError("there is no roster yet; request keys first.")
        return self._roster

    @property
    def _numbers(self) -> dict[str, int]:
        return holder_numbers(self._roster) if self._roster else {}

    @property
    def _round_keys(self) -> RoundKeys:
        return round_keys(self._known_roster(), self._cohort)

    @property
    def quorum(self) -> int:
        """Smallest number of silos that must be in a sum and confirm it."""
        return self.plan.quorum(len(self._numbers) or len(self.plan.silos))

    def _reply(self, t: int | None = None) -> Reply:
        """Return the answer of a round, the open one by default."""
        frame = self._answer(self._round if t is None else t)
        if frame is None:
            raise RemoteProtocolError(f"round {self._round} has no answer to confirm yet.")
        if self._last_reply is None or self._last_reply[0] is not frame:
            reply = decode(self.plan, frame)
            assert isinstance(reply, Reply)
            self._last_reply = frame, reply
        return self._last_reply[1]

    def _answer(self, t: int) -> bytes | None:
        return self._answers.get(t)

    def _draw(self, t: int) -> Words:
        """Draw the noise of a round, independently for each block."""
        kind = self.plan.layout.mechanism
        if kind == "none" or self.plan.profile == "pairwise":  # under "pairwise", silos add noise
            return np.zeros(self.plan.length(t), dtype=np.uint64)
        parts = [
            self._source.draw(kind, self.plan.noise_scale(block), block.size)
            for block in self.plan.blocks(t)
        ]
        return to_words(np.concatenate(parts))


def _begun_name(t: int) -> bytes:
    return _BEGUN.format(t).encode()


def box_name(silo: str, reader: Reader) -> bytes:
    """Return the name under which the journal has a silo's box for a reader."""
    return f"result/{reader.public}/{silo}".encode()


def _only_one(kept: dict[str, _T], silo: str, new: _T, what: str) -> None:
    if kept.setdefault(silo, new) != new:
        raise RemoteProtocolError(f"silo {silo!r} sent two different {what}.")


def _split_opened(members: Sequence[str], joined: bytes) -> dict[str, bytes]:
    size = len(joined) // len(members)
    return {silo: joined[i * size : (i + 1) * size] for i, silo in enumerate(members)}
