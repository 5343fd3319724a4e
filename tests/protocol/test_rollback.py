"""A ledger that was put back to an older copy: who notices, and what it takes to go on."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from cloister.app.in_process import InProcess, handlers
from cloister.core.errors import LedgerError, RemoteProtocolError
from cloister.hazmat.signing import Identity
from cloister.privacy import ledger_file
from cloister.privacy.accounting import epsilon
from cloister.privacy.budget import Budget
from cloister.privacy.chain import canonical
from cloister.privacy.events import ComposedEvent
from cloister.privacy.ledger import Ledger, SignedStatement, Statement
from cloister.protocol.messages import (
    Open,
    decode,
    decode_statement,
    encode,
    encode_statement,
)
from cloister.protocol.plan import Plan
from cloister.protocol.session import run_rounds
from cloister.testing import Wire, toy_federation

CAP = Budget(10.0, 1e-6)


@dataclass
class Federation:
    """Three silos with ledgers on disk, of which one is put back to an older copy."""

    folder: Path
    plan: Plan
    identities: Mapping[str, Identity]
    books: dict[str, Ledger] = field(default_factory=dict)
    jobs: int = 0

    @property
    def victim(self) -> str:
        return self.plan.silos[1]

    @property
    def book(self) -> Ledger:
        return self.books[self.victim]

    @property
    def public(self) -> bytes:
        return self.identities[self.victim].public

    def home(self, silo: str) -> Path:
        return self.folder / silo

    def open(self, silo: str) -> Ledger:
        self.home(silo).mkdir(exist_ok=True)
        self.books[silo] = Ledger(self.home(silo) / "ledger.db")
        self.books[silo].open_dataset("toy", cap=CAP)
        return self.books[silo]

    def new_plan(self, **changes: object) -> Plan:
        self.jobs += 1
        return replace(self.plan, run_id=f"{self.jobs:032x}", **changes)  # type: ignore[arg-type]  # of many types

    def reserve(self, plan: Plan) -> None:
        for silo in plan.silos:
            book = self.books[silo]
            book.reserve(dataset="toy", study="s", job=plan.run_id, events=plan.events())

    def started(self, plan: Plan) -> Wire:
        self.reserve(plan)
        return Wire(plan, identities=self.identities, journals=self.books)

    def run(self, plan: Plan, *, rounds: int | None = None) -> None:
        """Run a job, or its first rounds, and close it."""
        play(self.started(plan), rounds)
        for silo in plan.silos:
            self.books[silo].close(plan.run_id)

    def snapshot(self, name: str = "copy") -> Path:
        """Return a raw copy of the victim's folder."""
        copy = self.folder / name
        shutil.copytree(self.home(self.victim), copy)
        return copy

    def put_back(self, copy: Path, *, head_too: bool = True) -> None:
        self.book.dispose()
        newest = self.home(self.victim) / "ledger.db.head"
        kept = newest.read_bytes() if newest.exists() else None
        shutil.rmtree(self.home(self.victim))
        shutil.copytree(copy, self.home(self.victim))
        if not head_too:
            assert kept is not None
            newest.write_bytes(kept)

    def true_spending(self, *plans: Plan) -> float:
        return epsilon(ComposedEvent(tuple(plan.events() for plan in plans)), CAP.delta)

    def refuses(self, plan: Plan) -> None:
        """Check that the victim leaves a job before anything of it leaves."""
        wire = self.started(plan)
        with pytest.raises(LedgerError, match=r"rolled back or replaced.*budget recover"):
            play(wire)
        assert wire.clients[self.victim]._uploads == 0
        assert not any(job.rounds for job in self.book.jobs() if job.job == plan.run_id)
        for silo in plan.silos:
            self.books[silo].close(plan.run_id)


def play(wire: Wire, rounds: int | None = None) -> None:
    """Run a job to its end, or until a number of rounds was confirmed by all."""
    for done in run_rounds(wire.aggregator, wire.transport):
        if rounds is not None and done.round + 1 == rounds:
            with suppress(StopIteration):  # the next opening brings the confirmations to all
                wire.transport.exchange(
                    dict.fromkeys(done.survivors, wire.aggregator.open(done.round + 1))
                )
            return


@pytest.fixture(params=["group", "pairwise"])
def federation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path, *toy_federation(3, request.param))
    for silo in made.plan.silos:
        made.open(silo)
    yield made
    for book in made.books.values():
        book.dispose()


# --- Noticed --------------------------------------------------------------------------------------


def before_the_job(federation: Federation, plan: Plan) -> Path:
    copy = federation.snapshot()
    federation.run(plan)
    return copy


def between_reservation_and_first_upload(federation: Federation, plan: Plan) -> Path:
    wire = federation.started(plan)
    copy = federation.snapshot()
    play(wire)
    return copy


def after_the_first_round(federation: Federation, plan: Plan) -> Path:
    wire = federation.started(plan)
    rounds = run_rounds(wire.aggregator, wire.transport)
    next(rounds)
    copy = federation.snapshot()
    for _ in rounds:
        pass
    return copy


MOMENTS = (before_the_job, between_reservation_and_first_upload, after_the_first_round)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_ledger_put_back_with_its_folder_is_refused_until_it_has_taken_in_what_it_lacks(
    federation: Federation, moment: Callable[[Federation, Plan], Path]
) -> None:
    first, second = federation.new_plan(), federation.new_plan()
    federation.run(first)
    copy = moment(federation, second)
    federation.put_back(copy)
    federation.open(federation.victim)
    later = federation.new_plan()
    federation.refuses(later)

    book = federation.book
    for use in (
        lambda: Ledger(federation.home(federation.victim) / "ledger.db"),
        lambda: book.reserve(dataset="toy", study="s", job="x", events=first.events()),
        lambda: book.verify(),
    ):
        with pytest.raises(LedgerError, match="budget recover"):
            use()
    taken = book.recover(federation.public)
    assert {said.job for said in taken} == {second.run_id}
    assert book.spent("toy") >= federation.true_spending(first, second)
    assert not [job for job in book.jobs() if job.is_open]
    book.verify()
    Ledger(federation.home(federation.victim) / "ledger.db").dispose()
    federation.run(federation.new_plan())
    federation.run(federation.new_plan())
    assert book.recover(federation.public) == ()


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_ledger_put_back_alone_is_refused_at_once_and_recovers_from_what_peers_hand_over(
    federation: Federation, moment: Callable[[Federation, Plan], Path]
) -> None:
    first, second = federation.new_plan(), federation.new_plan()
    federation.run(first)
    federation.put_back(moment(federation, second), head_too=False)
    path = federation.home(federation.victim) / "ledger.db"
    with pytest.raises(LedgerError, match="behind the head that was written last"):
        Ledger(path)
    behind = Ledger(path, behind=True)
    with pytest.raises(LedgerError, match="behind the head that was written last"):
        behind.reserve(dataset="toy", study="s", job="x", events=first.events())
    with pytest.raises(LedgerError, match="behind the head"):
        behind.recover(federation.public)  # nothing to recover from
    peer = federation.books[federation.plan.silos[0]]
    held = peer.remembered(federation.identities[federation.victim].fingerprint)
    old = [one for one in held if one.said.job == first.run_id]
    with pytest.raises(LedgerError, match="behind the head"):
        behind.recover(federation.public, old)  # what it has already explains nothing
    behind.recover(federation.public, held)
    assert behind.spent("toy") >= federation.true_spending(first, second)
    behind.dispose()
    federation.open(federation.victim)
    federation.run(federation.new_plan())


def test_every_missing_job_is_taken_in_however_many_there_are(federation: Federation) -> None:
    copy = federation.snapshot()
    plans = [federation.new_plan() for _ in range(5)]
    for plan in plans:
        federation.run(plan, rounds=None if plan != plans[2] else 1)
    federation.put_back(copy)
    book = federation.open(federation.victim)
    for number in range(30):  # jobs of its own carry the count past what peers saw
        book.reserve(dataset="toy", study="s", job=f"own{number}", events=ComposedEvent(()))
    federation.refuses(federation.new_plan())
    assert [said.job for said in book.recover(federation.public)] == [p.run_id for p in plans]
    assert book.spent("toy") >= federation.true_spending(*plans)


def test_what_one_peer_does_not_know_the_next_peer_shows(tmp_path: Path) -> None:
    """Of two jobs that were lost each peer knows one; the newer must not hide the older."""
    plan, identities = toy_federation(3, "group")
    federation = Federation(tmp_path, plan, identities)
    for silo in plan.silos:
        federation.open(silo)
    me, other, third = plan.silos[1], plan.silos[0], plan.silos[2]

    def between(*silos: str) -> Plan:
        prints = dict(zip(plan.silos, plan.fingerprints, strict=True))
        named = tuple(s for s in plan.silos if s in silos)
        return federation.new_plan(
            silos=named, fingerprints=tuple(prints[s] for s in named), min_silos=2
        )

    older_jobs = [between(me, other) for _ in range(2)]
    federation.run(between(me, other))
    copy = federation.snapshot()
    for lost in older_jobs:
        federation.run(lost)
    newer = between(me, third)
    federation.run(newer)
    federation.put_back(copy)
    book = federation.open(me)
    federation.refuses(between(me, third))
    assert [said.job for said in book.recover(federation.public)] == [newer.run_id]
    federation.run(between(me, third))
    federation.refuses(between(me, other))
    assert [said.job for said in book.recover(federation.public)] == [
        lost.run_id for lost in older_jobs
    ]
    federation.run(between(me, other))
    assert book.spent("toy") >= federation.true_spending(newer, *older_jobs)


def test_a_second_rollback_after_a_recovery_is_noticed(federation: Federation) -> None:
    empty = federation.snapshot("empty")
    lost = [federation.new_plan() for _ in range(2)]
    for plan in lost:
        federation.run(plan)
    for number in range(2):
        federation.put_back(empty)
        federation.open(federation.victim)
        federation.refuses(federation.new_plan())
        federation.book.recover(federation.public)
        assert federation.book.spent("toy") >= federation.true_spending(*lost), number
        more = federation.new_plan()
        recovered = federation.snapshot(f"recovered{number}")
        federation.run(more)
        lost.append(more)
        federation.put_back(recovered)
        federation.open(federation.victim)
        federation.refuses(federation.new_plan())
        federation.book.recover(federation.public)
        assert federation.book.spent("toy") >= federation.true_spending(*lost), number


def test_of_two_jobs_at_once_an_older_statement_replaces_no_newer_one(
    federation: Federation,
) -> None:
    one, two = federation.new_plan(), federation.new_plan()
    wires = [federation.started(plan) for plan in (one, two)]
    loops = [run_rounds(wire.aggregator, wire.transport) for wire in wires]
    copy = None
    for turn in range(one.rounds + 1):
        for loop in loops if turn % 2 else loops[::-1]:
            next(loop, None)
        copy = copy or federation.snapshot()
    peer = federation.books[federation.plan.silos[0]]
    held = peer.remembered(federation.identities[federation.victim].fingerprint)
    assert {said.said.job for said in held} == {one.run_id, two.run_id}
    heights = {one.said.job: one.said.height for one in held}
    peer.remember([replace_height(one, federation.identities[federation.victim]) for one in held])
    again = peer.remembered(federation.identities[federation.victim].fingerprint)
    assert {one.said.job: one.said.height for one in again} == heights
    federation.put_back(copy)
    federation.open(federation.victim)
    federation.refuses(federation.new_plan())
    federation.book.recover(federation.public)
    assert federation.book.spent("toy") >= federation.true_spending(one, two)


def replace_height(one: SignedStatement, identity: Identity) -> SignedStatement:
    """Return what the silo said a while before."""
    return SignedStatement.of(replace(one.said, height=one.said.height - 1), identity)


def test_a_recovered_job_is_charged_above_the_cap_and_nothing_more_is_accepted(
    federation: Federation,
) -> None:
    copy = federation.snapshot()
    plan = federation.new_plan()
    federation.run(plan)
    federation.put_back(copy)
    book = federation.open(federation.victim)
    low = Budget(plan.budget.epsilon / 2, CAP.delta)  # type: ignore[union-attr]  # private
    book.change_cap("toy", low)
    with pytest.raises(LedgerError):
        book.check_statements(
            federation.books[federation.plan.silos[0]].remembered(
                federation.identities[federation.victim].fingerprint
            )
        )
    book.recover(federation.public)
    assert book.spent("toy") > low.epsilon
    with pytest.raises(Exception, match="cap"):
        book.reserve(dataset="toy", study="s", job="x", events=plan.events())


def test_a_job_that_was_closed_too_cheaply_is_charged_in_full_when_it_is_taken_in(
    federation: Federation,
) -> None:
    plan = federation.new_plan()
    federation.put_back(between_reservation_and_first_upload(federation, plan))
    book = federation.open(federation.victim)
    book.close(plan.run_id)  # nothing was charged here, so all of it was returned
    assert book.spent("toy") == 0
    federation.refuses(federation.new_plan())
    book.recover(federation.public)
    assert book.spent("toy") >= federation.true_spending(plan)


# --- Not raised by anybody else -------------------------------------------------------------------


def test_nobody_but_the_silo_itself_can_raise_its_charge(federation: Federation) -> None:
    """Whatever peers and the coordinator invent, change or mix, the ledger takes nothing of it."""
    federation.run(federation.new_plan())
    book, me = federation.book, federation.identities[federation.victim]
    peers = [federation.books[s] for s in federation.plan.silos if s != federation.victim]
    genuine = [one for peer in peers for one in peer.remembered(me.fingerprint)]
    genuine += [one for peer in peers for one in book.remembered(peer_of(federation, peer))]
    spent, head = book.spent("toy"), book.head()
    rng = random.Random(7)
    mallory = Identity.new()
    tried = 0
    for _ in range(50):
        one = rng.choice(genuine)
        fields = json.loads(one.text)
        fields[rng.choice(["job", "head", "plan"])] = rng.randbytes(32).hex()
        fields["height"] = rng.choice([0, fields["height"] + 1, 2**62])
        text = canonical(fields)
        said = Statement.read(text)
        forged = [
            SignedStatement(text, one.signature, me.public),
            SignedStatement(text, rng.randbytes(64), me.public),
            SignedStatement.of(said, mallory),
            replace(SignedStatement.of(said, mallory), public=me.public),
            SignedStatement.of(replace(said, dataset="other"), me),
            SignedStatement(one.text, one.signature, mallory.public),
            SignedStatement(one.text[:-1], one.signature, me.public),
        ]
        tried += len(forged)
        for shown in forged:
            if shown.public == me.public:
                book.check_statements([shown])
        assert book.recover(me.public, forged) == ()
    assert tried == 350
    assert (book.spent("toy"), book.head()) == (spent, head)
    book.verify()


def peer_of(federation: Federation, book: Ledger) -> str:
    silo = next(s for s, kept in federation.books.items() if kept is book)
    return federation.identities[silo].fingerprint


def test_a_statement_that_somebody_else_signed_opens_no_round(federation: Federation) -> None:
    """A coordinator that takes the statement away, or puts another in its place, is caught."""
    plan = federation.new_plan()
    wire = federation.started(plan)
    mallory = Identity.new()
    said = federation.books[plan.silos[0]].statement(plan.run_id, plan.digest.hex(), plan.events())
    other = encode_statement(said, SignedStatement.of(said, mallory).signature)
    opening: list[bytes] = []

    class Holding:
        def exchange(self, frames: Mapping[str, bytes]) -> Mapping[str, bytes]:
            if any(isinstance(decode(plan, f), Open) for f in frames.values()):
                opening.extend(frames.values())
                return {}
            return wire.transport.exchange(frames)

    with pytest.raises(RemoteProtocolError):
        play_over(wire, Holding())
    message = decode(plan, opening[0])
    assert isinstance(message, Open)
    for silo in plan.silos:
        for told in (b"", other):
            changed = tuple(
                c if c.silo == silo else replace(c, statement=told) for c in message.confirmations
            )
            with pytest.raises(RemoteProtocolError, match=r"forged|statement"):
                wire.clients[silo].handle(encode(plan, replace(message, confirmations=changed)))
        assert wire.clients[silo]._uploads == 0


def play_over(wire: Wire, transport: object) -> None:
    for _ in run_rounds(wire.aggregator, transport, attempts=1):  # type: ignore[arg-type]
        pass


def test_peers_hold_a_statement_before_the_first_upload_of_a_round_is_opened(
    federation: Federation,
) -> None:
    plan = federation.new_plan()
    wire = federation.started(plan)
    next(run_rounds(wire.aggregator, wire.transport))
    for silo in plan.silos:
        for peer in plan.silos:
            if peer != silo:
                mine = federation.identities[silo].fingerprint
                held = federation.books[peer].remembered(mine)
                assert [one.said.job for one in held] == [plan.run_id]
                assert held[0].said.dataset == "toy"
                assert held[0].said.events == plan.events()


@pytest.mark.parametrize("crash", [False, True])
def test_what_peers_signed_is_durable_before_the_answer_to_it_leaves(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, crash: bool
) -> None:
    plan, me = federation.new_plan(), federation.victim
    kept: list[int] = []
    failed: list[str] = []

    def life() -> Wire:
        return Wire(plan, identities=federation.identities, journals=federation.books)

    def checked(frame: bytes) -> bytes:
        message = decode(plan, frame)
        shown = getattr(message, "confirmations", ())
        if shown:  # a first time the disk is full, or the process ends just before it writes
            with monkeypatch.context() as patched:
                patched.setattr(ledger_file, "PUT_STATEMENT", "INSERT INTO no")
                try:
                    wire.clients[me].handle(frame)
                except LedgerError:
                    failed.append(type(message).__name__)
            if crash:
                wire.clients[me] = life().clients[me]
        answer = wire.clients[me].handle(frame)
        with closing(sqlite3.connect(federation.home(me) / "ledger.db")) as another:
            rows = another.execute("SELECT height FROM statements WHERE job = ?", (plan.run_id,))
            kept.append(sum(height for (height,) in rows))
        for one in (one for one in shown if one.silo != me):
            public = federation.identities[one.silo].public
            said = decode_statement(plan, public, one.statement).said
            held = federation.book.remembered(federation.identities[one.silo].fingerprint)
            assert [said] == [one.said for one in held]
        return answer

    federation.reserve(plan)
    wire = life()
    play_over(wire, InProcess({**handlers(wire.clients), me: checked}))
    assert all(client.finished for client in wire.clients.values())
    assert kept == sorted(kept)
    assert kept[-1] > kept[0] == 0
    of_rounds = "Open" if plan.profile == "group" else "Unmask"
    assert failed.count(of_rounds) >= plan.rounds
    federation.book.verify()


# --- The head beside the ledger -------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


def killed(*_: object, **__: object) -> None:
    raise Killed


@pytest.mark.parametrize("step", ["fsync", "replace", "open"])
def test_a_crash_while_the_head_beside_is_made_charges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    plan, _ = toy_federation(3)
    book = Ledger(tmp_path / "ledger.db")
    book.open_dataset("toy", cap=CAP)
    book.reserve(dataset="toy", study="s", job="j", events=plan.events())
    with monkeypatch.context() as patched:
        patched.setattr(os, step, killed)
        with pytest.raises(Killed):
            book.commit(job="j", round=0, event=plan.event(0), frame=b"first")
    book = Ledger(tmp_path / "ledger.db")
    assert book.frame("j", 0) is None
    assert book.commit(job="j", round=0, event=plan.event(0), frame=b"again") == b"again"


def test_a_crash_between_a_commit_and_the_head_beside_locks_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, _ = toy_federation(3)
    path = tmp_path / "ledger.db"
    book = Ledger(path)
    book.open_dataset("toy", cap=CAP)
    book.reserve(dataset="toy", study="s", job="j", events=plan.events())
    first = book.commit(job="j", round=0, event=plan.event(0), frame=b"first")
    with monkeypatch.context() as patched:
        patched.setattr(ledger_file, "overwrite", killed)
        with pytest.raises(Killed):
            book.commit(job="j", round=1, event=plan.event(1), frame=b"second")
    assert (tmp_path / "ledger.db.head").read_text().split()[0] != book.head()
    book = Ledger(path)
    assert book.frame("j", 0) == first
    assert book.frame("j", 1) == b"second", "the charge is durable, whatever lies beside"
    assert (tmp_path / "ledger.db.head").read_text().split()[0] == book.head()
    assert book.commit(job="j", round=1, event=plan.event(1), frame=b"other") == b"second"


def test_a_round_whose_head_cannot_be_written_beside_does_not_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, _ = toy_federation(3)
    book = Ledger(tmp_path / "ledger.db")
    book.open_dataset("toy", cap=CAP)
    book.reserve(dataset="toy", study="s", job="j", events=plan.events())
    book.commit(job="j", round=0, event=plan.event(0), frame=b"zero")

    def full(*_: object) -> None:
        raise LedgerError("'ledger.db.head' cannot be written: No space left on device.")

    with monkeypatch.context() as patched:
        patched.setattr(ledger_file, "overwrite", full)
        with pytest.raises(LedgerError, match="No space left"):
            book.commit(job="j", round=1, event=plan.event(1), frame=b"first")
    assert book.commit(job="j", round=1, event=plan.event(1), frame=b"again") == b"first"
    assert [job.rounds for job in book.jobs()] == [(0, 1)], "it is charged once"
    assert (tmp_path / "ledger.db.head").read_text().split()[0] == book.head()
