"""A silo against everybody: whatever it is sent, in whatever order, it says one thing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister.core.errors import CloisterError, LedgerError, RemoteProtocolError
from cloister.hazmat.prg import Usage
from cloister.hazmat.shamir import combine
from cloister.hazmat.signing import fingerprint_of
from cloister.privacy.budget import Budget
from cloister.privacy.ledger import Ledger
from cloister.protocol.client import Client
from cloister.protocol.exchanges import Kind
from cloister.protocol.journal import MemoryJournal
from cloister.protocol.keys import KeyAgreement
from cloister.protocol.messages import (
    CONFIRM_LABEL,
    Adopt,
    AskState,
    Close,
    Confirm,
    Confirmation,
    Deal,
    Keys,
    Message,
    Open,
    Ready,
    Reply,
    Roster,
    SealedState,
    Shares,
    Unmask,
    Upload,
    confirmation_of,
    confirmed,
    decode,
    encode,
    result_hash,
)
from cloister.protocol.plan import Plan, share_threshold
from cloister.protocol.session import run_rounds
from cloister.testing import Wire, ZeroNoise, toy_federation, toy_records

Change = Callable[[str, Message], Message]


class Changing:
    """A coordinator that passes on what a test makes of each frame, and keeps all frames."""

    def __init__(self, wire: Wire, change: Change = lambda silo, message: message) -> None:
        self.wire, self.change = wire, change
        self.sent: dict[str, list[bytes]] = {silo: [] for silo in wire.plan.silos}
        self.said: dict[str, list[Message]] = {silo: [] for silo in wire.plan.silos}
        self.refused: list[CloisterError] = []

    def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = {}
        for silo, frame in frames.items():
            changed = self.change(silo, decode(self.wire.plan, frame))
            told = encode(self.wire.plan, self.wire.signed(changed))
            self.sent[silo].append(told)
            try:
                answers[silo] = self.wire.clients[silo].handle(told)
            except CloisterError as error:
                self.refused.append(error)
            else:
                self.said[silo].append(decode(self.wire.plan, answers[silo]))
        return answers


class Failing(MemoryJournal):
    """A journal on a disk that is full for a while."""

    left: int | None = None  # writes until it is full

    def record(self, job: str, request: bytes, answer: bytes) -> bytes:
        if self.left == 0:
            raise LedgerError("the disk is full.")
        if self.left is not None:
            self.left -= 1
        return super().record(job, request, answer)


def confirmation(wire: Wire, silo: str, t: int, digest: bytes) -> Confirmation:
    """Return what a dishonest silo can say of any answer: a word under its own keys."""
    client = wire.clients[silo]
    received = wire.aggregator._sign(t, digest)
    one = Confirmation(silo, digest, bytes(32), received=received, statement=client._statement())
    said = confirmed(wire.plan, t, one)
    mac = client._masker.tag(Usage.CONFIRM, *said)
    return replace(one, mac=mac, signature=wire.identities[silo].sign(CONFIRM_LABEL, *said))


def played(silos: int = 3, profile: str = "pairwise", **journals: MemoryJournal) -> Changing:
    """Return a job that was played to its end, with all its frames."""
    plan, identities = toy_federation(silos, profile)
    wire = Wire(plan, identities=identities, journals=journals)
    coordinator = Changing(wire)
    for _ in run_rounds(wire.aggregator, coordinator, attempts=1):
        pass
    return coordinator


def again(wire: Wire, silo: str, journal: MemoryJournal | Ledger) -> Client:
    """Return another life, or another process, of a silo."""
    records = toy_records(wire.plan)[silo]
    noise = ZeroNoise() if wire.plan.profile == "pairwise" else None
    identity = wire.identities[silo]
    return Client(wire.plan, silo, [records], None, journal, identity=identity, noise=noise)


def kinds(plan: Plan, frames: Sequence[bytes]) -> list[Kind]:
    return [decode(plan, frame).kind for frame in frames]


def until(plan: Plan, frames: Sequence[bytes], kind: Kind) -> list[bytes]:
    """Return the frames before the first of a kind."""
    return list(frames[: kinds(plan, frames).index(kind)])


# --- What depends on records never shows ----------------------------------------------------------


@pytest.mark.parametrize("extra", [2**62, 2**63, -(2**62)])
def test_under_the_group_mask_no_sum_makes_a_silo_refuse(extra: int) -> None:
    """An aggregator that knows the noise would learn on which side of a bound the sum lies."""
    plan, identities = toy_federation(3, "group")
    wire = Wire(plan, identities=identities)

    def shifted(silo: str, message: Message) -> Message:
        if isinstance(message, Reply):
            elements = message.elements + np.uint64(extra % 2**64)
            message = wire.signed(replace(message, elements=elements))
            wire.aggregator._answers[message.round] = encode(plan, message)
        return message

    honest, lying = Changing(Wire(plan, identities=identities)), Changing(wire, shifted)
    for coordinator in (honest, lying):
        for _ in run_rounds(coordinator.wire.aggregator, coordinator, attempts=1):
            pass
        assert not coordinator.refused
        assert all(client.finished for client in coordinator.wire.clients.values())
    for silo in plan.silos:
        assert kinds(plan, honest.sent[silo]) == kinds(plan, lying.sent[silo])
        states = wire.clients[silo].history
        assert all(np.isfinite(v).all() for state in states for v in state.values())


# --- Nothing is opened that is not durable --------------------------------------------------------


@pytest.mark.parametrize("left", [0, 1])
def test_no_share_is_given_for_an_answer_that_is_not_durable(left: int) -> None:
    """Otherwise a silo that restarts could give the other kind of share for another answer."""
    job = played()
    plan, silo = job.wire.plan, job.wire.plan.silos[0]
    journal = Failing()
    wire = Wire(plan, identities=job.wire.identities, journals={silo: journal})
    seen: list[bytes] = []

    def full_disk(name: str, message: Message) -> Message:
        if name == silo and isinstance(message, Reply):
            seen.append(encode(plan, message))
            journal.left = left
        return message

    coordinator = Changing(wire, full_disk)
    with suppress(RemoteProtocolError):
        for _ in run_rounds(wire.aggregator, coordinator, attempts=1):
            pass
    reply = decode(plan, seen[0])
    assert isinstance(reply, Reply)
    digest = result_hash(plan, reply)
    others = tuple(confirmation(wire, s, 0, digest) for s in plan.silos if s != silo)
    with pytest.raises(RemoteProtocolError, match="confirmed no sum"):
        wire.clients[silo].handle(encode(plan, Unmask(0, others)))


# --- Two processes of one silo, or a restart ------------------------------------------------------


def test_two_processes_of_a_silo_confirm_one_answer() -> None:
    job = played(5)
    plan, silo = job.wire.plan, job.wire.plan.silos[0]
    frames = until(plan, job.sent[silo], Kind.REPLY)
    journal = job.wire.clients[silo]._journal
    fresh = MemoryJournal()
    fresh._secrets[plan.run_id] = journal.secret(plan.run_id)
    first = again(job.wire, silo, fresh)
    for frame in frames:
        first.handle(frame)
    second = again(job.wire, silo, fresh)
    reply = next(m for m in (decode(plan, f) for f in job.sent[silo]) if m.kind == Kind.REPLY)
    assert isinstance(reply, Reply)
    fork = replace(reply, survivors=reply.survivors[:-1])
    first.handle(encode(plan, reply))
    with pytest.raises(RemoteProtocolError, match="answered twice"):
        second.handle(encode(plan, job.wire.signed(fork)))
    others = tuple(
        confirmation(job.wire, s, 0, result_hash(plan, fork)) for s in fork.survivors if s != silo
    )
    with pytest.raises(RemoteProtocolError, match="confirmed no sum"):
        second.handle(encode(plan, Unmask(0, others)))


def test_two_processes_of_a_silo_join_one_cohort() -> None:
    job = played(5)
    plan, silo = job.wire.plan, job.wire.plan.silos[0]
    journals = {name: MemoryJournal() for name in plan.silos}
    for name, journal in journals.items():
        journal._secrets[plan.run_id] = job.wire.clients[name]._journal.secret(plan.run_id)

    def joining(name: str) -> tuple[Client, Deal, bytes]:
        """Return a silo that was shown no cohort yet, the true one, and a smaller one."""
        client = again(job.wire, name, journals[name])
        for frame in until(plan, job.sent[name], Kind.DEAL):
            client.handle(frame)
        deal = next(m for m in (decode(plan, f) for f in job.sent[name]) if isinstance(m, Deal))
        smaller = job.wire.signed(Deal(deal.cohort[:-1], deal.boxes[:-1]))
        return client, deal, encode(plan, smaller)

    first, deal, smaller = joining(silo)
    second, _, _ = joining(silo)
    first.handle(encode(plan, deal))
    with pytest.raises(RemoteProtocolError, match="answered twice"):
        second.handle(smaller)
    others = []  # who say that they were shown the smaller one, and mean it
    for name in plan.silos[1:-1]:
        client, _, theirs = joining(name)
        ready = decode(plan, client.handle(theirs))
        assert isinstance(ready, Ready)
        others.append(confirmation_of(ready))
    with pytest.raises(RemoteProtocolError, match="no keys yet"):
        second.handle(encode(plan, Open(0, tuple(others))))
    assert journals[silo].frame(plan.run_id, 0) is None


class Liar:
    """All silos but one, and the coordinator: they sign whatever they like, in any order."""

    def __init__(self, job: Changing, silo: str) -> None:
        self.job, self.silo, self.plan = job, silo, job.wire.plan
        honest = [decode(self.plan, frame) for frame in job.sent[silo]]
        sign = job.wire.signed
        self.frames = [encode(self.plan, sign(message)) for message in self._variants(honest)]

    def _variants(self, honest: Sequence[Message]) -> Iterator[Message]:
        ready: list[Confirmation] = []
        for message in honest:
            yield message
            match message:
                case Open() if message.round == 0:
                    ready = list(message.confirmations)
                    yield replace(message, confirmations=ready[:1])
                case Deal():
                    yield Deal(message.cohort[:-1], message.boxes[:-1])
                case Roster():
                    yield replace(message, keys=message.keys[:-1])
                case Reply():
                    for fork in self._forks(message):
                        yield fork
                        said = self._all_say(message.round, fork)
                        yield Unmask(message.round, said)
                        if message.round + 1 < self.plan.rounds:
                            yield Open(message.round + 1, said)
                        else:
                            yield Close(message.round, said)
                case Open() | Close():
                    yield replace(message, confirmations=())
                    yield replace(message, opened={})
            if isinstance(message, Open):
                yield AskState(message.round)
                yield Adopt(message.round, self.plan.silos[1], bytes(40))

    def _forks(self, reply: Reply) -> Iterator[Reply]:
        if len(reply.survivors) > share_threshold(len(self.plan.silos), self.plan.collusion):
            for out in reply.survivors:
                yield replace(reply, survivors=tuple(s for s in reply.survivors if s != out))
        yield replace(reply, elements=reply.elements + np.uint64(1))

    def _all_say(self, t: int, reply: Reply) -> tuple[Confirmation, ...]:
        digest = result_hash(self.plan, reply)
        return tuple(
            confirmation(self.job.wire, s, t, digest) for s in reply.survivors if s != self.silo
        )


@pytest.fixture(scope="module")
def jobs() -> dict[str, tuple[Changing, Liar]]:
    found = {}
    for profile in ("pairwise", "group"):
        job = played(5, profile)
        found[profile] = job, Liar(job, job.wire.plan.silos[0])
    return found


@pytest.mark.parametrize("profile", ["pairwise", "group"])
@pytest.mark.parametrize("seed", range(25))
def test_in_whatever_order_frames_come_a_silo_says_one_thing(
    jobs: dict[str, tuple[Changing, Liar]], profile: str, seed: int
) -> None:
    """Frames of the honest job and of forks of it, all signed, with crashes and full disks."""
    rand = random.Random(seed)
    job, liar = jobs[profile]
    plan, silo = liar.plan, liar.silo
    journal = Failing()
    journal._secrets[plan.run_id] = job.wire.clients[silo]._journal.secret(plan.run_id)
    client = again(job.wire, silo, journal)
    said: dict[tuple[str, int], set[bytes]] = {}
    shares: dict[tuple[int, str], set[bytes]] = {}

    def send(frame: bytes) -> None:
        try:
            answer = client.handle(frame)
        except CloisterError:
            return
        message = decode(plan, answer)
        match message:
            case Upload():
                said.setdefault(("upload", message.round), set()).add(answer)
                assert journal.frame(plan.run_id, message.round) == answer, "left undurably"
            case Confirm() | Ready():
                said.setdefault((message.kind.name, message.round), set()).add(message.result_hash)
            case SealedState():
                said.setdefault(("state", message.round), set()).add(message.box)
            case Shares():
                members = client._members if message.round == client._uploads - 1 else ()
                if client._before and client._before[1].round == message.round:
                    members = client._before[0]
                assert tuple(message.shares) in (members, ())  # none under the group mask
                for name, share in message.shares.items():
                    shares.setdefault((message.round, name), set()).add(share)
            case Keys():
                said.setdefault(("keys", 0), set()).add(answer)

    in_order = list(job.sent[silo])
    for _step in range(400):
        journal.left = rand.choice([None, None, None, None, 0, 1])
        if rand.random() < 0.4 and in_order:
            send(in_order[0])
            if rand.random() < 0.8:
                in_order.pop(0)
        else:
            send(rand.choice(liar.frames))
        if rand.random() < 0.1:
            journal.left = None
            try:
                client = again(job.wire, silo, journal)
            except CloisterError:
                break  # it leaves the job for good
    assert said, "nothing was said at all"
    for what, words in said.items():
        assert len(words) == 1, f"{what} was said twice"
    for what, given in shares.items():
        assert len(given) == 1, f"both kinds of shares were given: {what}"


# --- One state, one box ---------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_a_silo_seals_one_state_a_round(restarted: bool) -> None:
    """The key of a box is for one box; a state that was adopted since is another."""
    plan, identities = toy_federation(3, "group")
    journal = MemoryJournal()
    silo = plan.silos[0]
    wire = Wire(plan, identities=identities, journals={silo: journal})
    with suppress(RemoteProtocolError):
        next(run_rounds(wire.aggregator, _Until(Changing(wire), Kind.REPLY), attempts=1))
    client = wire.clients[silo]
    ask = encode(plan, AskState(0))
    first = client.handle(ask)
    other = {name: value + 1 for name, value in client.state.items()}
    client._progress.adopt(other)  # as from another lead
    if restarted:
        client = again(wire, silo, journal)
    assert client.handle(ask) == first


class _Until:
    """Carries frames until one of a kind comes."""

    def __init__(self, inner: Changing, kind: Kind) -> None:
        self.inner, self.kind = inner, kind

    def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        plan = self.inner.wire.plan
        if any(decode(plan, frame).kind == self.kind for frame in frames.values()):
            return {}
        return self.inner.exchange(frames)


# --- Shares ---------------------------------------------------------------------------------------


def test_shares_made_for_two_rosters_do_not_fit_together() -> None:
    """A silo restored from a copy may be shown another roster; nobody gets two places on a line."""
    plan, identities = toy_federation(6, "pairwise", min_silos=4)
    agreements = {s: KeyAgreement(plan, s, identities[s], MemoryJournal()) for s in plan.silos}
    keys = {s: a.keys() for s, a in agreements.items()}
    victim = plan.silos[2]
    secret = agreements[victim]._secret
    shared = []
    for out in (plan.silos[0], plan.silos[5]):
        journal = MemoryJournal()
        journal._secrets[plan.run_id] = secret
        restored = KeyAgreement(plan, victim, identities[victim], journal)
        roster = Roster(tuple(keys[s] for s in plan.silos if s != out))
        restored.secrets(roster)
        shared.append(restored._shares(5)[0])  # of the seed of the first round
    seed = agreements[victim]._per_round(Usage.SELF_SEED)[0]
    threshold = share_threshold(5, plan.collusion)
    first, second = shared
    whole = {place + 1: first[place] for place in range(threshold)}
    assert combine(whole, 32) == seed
    mixed = {place + 1: (first if place < 2 else second)[place] for place in range(threshold)}
    with suppress(RemoteProtocolError):
        assert combine(mixed, 32) != seed


# --- What the journal keeps -----------------------------------------------------------------------


class Full(MemoryJournal):
    """A journal on a disk that is full while a test says so."""

    full = False

    def commit(self, **charge: Any) -> bytes:
        self._write()
        return super().commit(**charge)

    def record(self, job: str, request: bytes, answer: bytes) -> bytes:
        self._write()
        return super().record(job, request, answer)

    def _write(self) -> None:
        if self.full:
            raise LedgerError("the disk is full.")


@pytest.mark.parametrize("full", [False, True], ids=["", "after a failed write"])
@pytest.mark.parametrize("profile", ["pairwise", "group"])
def test_no_request_is_recorded_that_a_restart_would_refuse(profile: str, full: bool) -> None:
    """The shares of a sum were given already, and a forged request to go on comes first."""
    job = played(5, profile)
    plan, silo = job.wire.plan, job.wire.plan.silos[0]
    journal = Full()
    journal._secrets[plan.run_id] = job.wire.clients[silo]._journal.secret(plan.run_id)
    client, refused = again(job.wire, silo, journal), 0
    for frame in job.sent[silo]:
        message = decode(plan, frame)
        if isinstance(message, Open | Close) and message.round + isinstance(message, Close) > 0:
            if full:
                journal.full = True
                with pytest.raises(LedgerError):
                    client.handle(frame)
                journal.full = False
            try:
                client.handle(encode(plan, replace(message, confirmations=())))
            except RemoteProtocolError:
                refused += 1
        client.handle(frame)
    assert refused == (0 if full else plan.rounds)
    assert again(job.wire, silo, journal).finished


def test_an_end_that_comes_again_is_answered_and_not_kept_again() -> None:
    """A coordinator could otherwise fill the disk of the ledger."""
    job = played()
    plan, silo = job.wire.plan, job.wire.plan.silos[0]
    client = job.wire.clients[silo]
    kept = len(client._journal.recorded(plan.run_id))
    close = decode(plan, job.sent[silo][-1])
    assert isinstance(close, Close)
    first = client.handle(job.sent[silo][-1])
    for n in range(len(close.confirmations)):
        told = encode(plan, replace(close, confirmations=close.confirmations[:n]))
        assert client.handle(told) == first
    assert len(client._journal.recorded(plan.run_id)) == kept


@contextmanager
def ledgers(folder: Path, plan: Plan) -> Iterator[dict[str, Ledger]]:
    books = {silo: Ledger(folder / f"{silo}.db") for silo in plan.silos}
    for book in books.values():
        book.open_dataset("toy", cap=Budget(10, 1e-6))
        book.reserve(dataset="toy", study="default", job=plan.run_id, events=plan.events())
    yield books
    for book in books.values():
        book.dispose()


def test_only_signatures_that_were_checked_count_as_countersigned(tmp_path: Path) -> None:
    plan, identities = toy_federation(5, "pairwise")
    with ledgers(tmp_path, plan) as books:
        wire = Wire(plan, identities=identities, journals=books)
        forged: set[str] = set()

        def change(silo: str, message: Message) -> Message:
            if isinstance(message, Open) and message.round == 0:
                *good, last = message.confirmations
                forged.add(identities[last.silo].fingerprint)
                return replace(message, confirmations=(*good, replace(last, signature=bytes(64))))
            return message

        for _ in run_rounds(wire.aggregator, Changing(wire, change), attempts=1):
            pass
        signed = books[plan.silos[0]].export()["countersigned"]
        assert len(signed) >= wire.aggregator.quorum - 1
        assert not forged & {row["fingerprint"] for row in signed}
        assert fingerprint_of(identities[plan.silos[1]].public) in {
            row["fingerprint"] for row in signed
        }
