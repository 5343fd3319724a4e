"""A silo's side: what it sends once it sends for ever, and what it never unmasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister import Budget, Ledger
from cloister.core.errors import LedgerError, LocalProtocolError, RemoteProtocolError
from cloister.core.randomness import new_key
from cloister.hazmat.ring import to_words
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.client import Client, result_hash
from cloister.protocol.journal import MemoryJournal
from cloister.protocol.messages import (
    Close,
    Confirm,
    Confirmation,
    Done,
    Message,
    Open,
    Reply,
    Upload,
    decode,
    encode,
)
from cloister.protocol.plan import Plan
from cloister.secagg.masks import GroupMask, NoMask
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.testing import ZeroNoise, toy_plan, toy_records

KEY = new_key()


class Bench:
    """Clients of one plan, and an aggregator that does whatever a test wants it to."""

    def __init__(self, plan: Plan | None = None, silos: int = 3, **journals: Any) -> None:
        self.plan = plan or toy_plan(silos=silos)
        self.records = toy_records(self.plan)
        self.clients = {
            silo: Client(self.plan, silo, [self.records[silo]], GroupMask(KEY), journals.get(silo))
            for silo in self.plan.silos
        }
        self.uploads: dict[str, Upload] = {}

    def frame(self, message: Message) -> bytes:
        return encode(self.plan, message)

    def ask(self, silo: str, message: Message) -> Message:
        return decode(self.plan, self.clients[silo].handle(self.frame(message)))

    def open(self, t: int, confirmations: tuple[Confirmation, ...] = ()) -> None:
        for silo in self.plan.silos:
            answer = self.ask(silo, Open(t, confirmations))
            assert isinstance(answer, Upload)
            self.uploads[silo] = answer

    def reply(self, t: int, survivors: tuple[str, ...], extra: int = 0) -> Reply:
        total = np.zeros(self.plan.length(t), dtype=np.uint64)
        for silo in survivors:
            total += self.uploads[silo].elements
        total[:1] += np.uint64(extra % 2**64)
        return Reply(t, survivors, total)

    def confirm(self, silo: str, reply: Reply) -> Confirmation:
        answer = self.ask(silo, reply)
        assert isinstance(answer, Confirm)
        return Confirmation(answer.sender, answer.result_hash, answer.mac)

    def round(self, t: int) -> tuple[Confirmation, ...]:
        """Play round `t` after it was opened; return all confirmations."""
        reply = self.reply(t, self.plan.silos)
        return tuple(self.confirm(silo, reply) for silo in self.plan.silos)

    def to_round(self, t: int) -> tuple[Confirmation, ...]:
        """Play all rounds up to `t`, of which only the uploads are made."""
        confirmations: tuple[Confirmation, ...] = ()
        for earlier in range(t):
            self.open(earlier, confirmations)
            confirmations = self.round(earlier)
        self.open(t, confirmations)
        return confirmations


def states_equal(left: Client, right: Client) -> bool:
    return all(np.array_equal(left.state[name], right.state[name]) for name in left.state)


@pytest.fixture
def bench() -> Bench:
    return Bench()


A, B, C = "silo-0", "silo-1", "silo-2"


# --- Uploads --------------------------------------------------------------------------------------


def test_a_silo_that_is_not_in_the_plan_is_none(bench: Bench) -> None:
    with pytest.raises(LocalProtocolError, match="not in the plan"):
        Client(bench.plan, "west", [], GroupMask(KEY))


@pytest.mark.parametrize("t", [0, 1])
def test_a_retry_gives_the_same_bytes(bench: Bench, t: int) -> None:
    confirmations = bench.to_round(t)
    frame = bench.frame(Open(t, confirmations))
    first = bench.clients[A].handle(frame)
    assert [bench.clients[A].handle(frame) for _ in range(3)] == [first] * 3
    # and does not look at the confirmations again
    assert bench.clients[A].handle(bench.frame(Open(t))) == first


def test_chunks_of_records_are_one_upload(bench: Bench) -> None:
    rows = bench.records[A]
    words = [
        bench.ask(A, Open(0)).elements,  # type: ignore[union-attr]
        *(
            decode(
                bench.plan,
                Client(bench.plan, A, np.array_split(rows, n), GroupMask(KEY)).handle(
                    bench.frame(Open(0))
                ),
            ).elements  # type: ignore[union-attr]
            for n in (2, 7, 100)
        ),
    ]
    assert all(np.array_equal(words[0], other) for other in words)


def test_no_records_are_an_upload_like_any_other(bench: Bench) -> None:
    empty: list[Any] = []
    frames = [
        Client(bench.plan, A, part, GroupMask(KEY)).handle(bench.frame(Open(0)))
        for part in (empty, [bench.records[A][:0]], [bench.records[A]])
    ]
    assert len({len(frame) for frame in frames}) == 1
    assert frames[0] == frames[1]


@pytest.mark.parametrize("t", [1, 2, 99])
def test_a_round_that_is_not_next_is_refused(bench: Bench, t: int) -> None:
    with pytest.raises(RemoteProtocolError):
        bench.ask(A, Open(t))


def test_an_earlier_round_is_refused(bench: Bench) -> None:
    bench.to_round(1)
    with pytest.raises(RemoteProtocolError, match="is in round 2"):
        bench.ask(A, Open(0))


def test_an_upload_differs_in_every_silo_and_round(bench: Bench) -> None:
    same = dict.fromkeys(bench.plan.silos, bench.records[A])
    words = []
    for silo in bench.plan.silos:
        client = Client(bench.plan, silo, [same[silo]], GroupMask(KEY))
        words.append(decode(bench.plan, client.handle(bench.frame(Open(0)))).elements.tolist())  # type: ignore[union-attr]
    bench.to_round(1)
    words += [upload.elements.tolist() for upload in bench.uploads.values()]
    for left, right in combinations(words, 2):
        assert not set(left) & set(right)


def test_the_state_tag_is_keyed_and_tells_states_and_rounds_apart(bench: Bench) -> None:
    bench.open(0)
    tags = {upload.state_tag for upload in bench.uploads.values()}
    assert len(tags) == 1  # the same state
    other = Client(bench.plan, A, [bench.records[A]], GroupMask(new_key()))
    assert decode(bench.plan, other.handle(bench.frame(Open(0)))).state_tag not in tags  # type: ignore[union-attr]
    confirmations = bench.round(0)
    bench.open(1, confirmations)
    assert {upload.state_tag for upload in bench.uploads.values()}.isdisjoint(tags)


def test_the_same_state_has_another_tag_in_every_round() -> None:
    class Still(FastLloyd):
        """Its state never changes, so only the round can tell two tags apart."""

        def update(self, t: int, state: Any, released: Any) -> Any:
            return self.start()

    task = Still(n_clusters=2, n_features=2, rounds=2, first_radius=1.0, radius=1.0)
    bench = Bench(toy_plan(task))
    bench.open(0)
    first = bench.uploads[A].state_tag
    bench.open(1, bench.round(0))
    assert bench.uploads[A].state_tag != first


def test_a_state_one_grid_step_off_has_another_tag(bench: Bench) -> None:
    moved = {name: value.copy() for name, value in bench.clients[A].state.items()}
    moved["centres"][0, 0] += 1
    bench.clients[A]._progress.adopt(moved)
    bench.open(0)
    assert bench.uploads[A].state_tag != bench.uploads[B].state_tag
    assert bench.uploads[B].state_tag == bench.uploads[C].state_tag


# --- Journals -------------------------------------------------------------------------------------


class Failing(MemoryJournal):
    """Cannot write the first time it is asked to in a round."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: set[int] = set()

    def commit(self, **fields: Any) -> bytes:
        if fields["round"] not in self.failed:
            self.failed.add(fields["round"])
            raise LedgerError("the disk is full")
        return super().commit(**fields)


@pytest.mark.parametrize("t", [0, 1])
def test_nothing_leaves_that_was_not_written_and_a_later_try_may_succeed(t: int) -> None:
    bench = Bench(**{A: Failing()})
    confirmations: tuple[Confirmation, ...] = ()
    for current in range(t + 1):
        with pytest.raises(LedgerError):
            bench.ask(A, Open(current, confirmations))
        bench.open(current, confirmations)
        confirmations = bench.round(current)
    fresh = Bench(bench.plan)
    fresh.to_round(t)
    assert np.array_equal(bench.uploads[A].elements, fresh.uploads[A].elements)


class Forgetful(MemoryJournal):
    def frame(self, job: str, round: int) -> bytes | None:
        return None


def test_a_silo_that_lost_its_upload_leaves_for_good() -> None:
    bench = Bench(**{A: Forgetful()})
    bench.open(0)
    with pytest.raises(LocalProtocolError, match="leaves the job permanently"):
        bench.ask(A, Open(0))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.open_dataset("d", cap=Budget(1.0, 1e-6))
    yield ledger
    ledger.dispose()


def reserve(ledger: Ledger, plan: Plan) -> None:
    ledger.reserve(dataset="d", study="s", job=plan.run_id, events=plan.events())


def test_an_upload_is_charged_once_however_often_it_is_asked_for(ledger: Ledger) -> None:
    bench = Bench(**{A: ledger})
    reserve(ledger, bench.plan)
    bench.to_round(1)
    before = ledger.head()
    for _ in range(3):
        bench.ask(A, Open(1))
    assert ledger.head() == before
    assert [entry.fields["kind"] for entry in ledger.entries()].count("charge") == 2


def test_after_a_crash_exactly_the_same_bytes_are_sent(ledger: Ledger, tmp_path: Path) -> None:
    bench = Bench(**{A: ledger})
    reserve(ledger, bench.plan)
    frame = bench.clients[A].handle(bench.frame(Open(0)))
    # another process, other records even: what left once is all that leaves
    again = Client(
        bench.plan, A, [bench.records[B]], GroupMask(KEY), Ledger(tmp_path / "ledger.db")
    )
    assert again.handle(bench.frame(Open(0))) == frame


def test_without_a_reservation_nothing_leaves(ledger: Ledger) -> None:
    bench = Bench(**{A: ledger})
    with pytest.raises(LedgerError):
        bench.ask(A, Open(0))
    assert ledger.spent("d") == 0


def test_a_journal_never_takes_a_second_frame() -> None:
    journal, plan = MemoryJournal(), toy_plan()
    fields: dict[str, Any] = {"job": "j", "round": 0, "event": plan.event(0)}
    assert journal.commit(frame=b"a", **fields) == b"a"
    assert journal.commit(frame=b"a", **fields) == b"a"
    with pytest.raises(LocalProtocolError, match="other bytes"):
        journal.commit(frame=b"b", **fields)
    assert journal.frame("j", 0) == b"a"
    assert journal.frame("j", 1) is None
    assert repr(journal) == "MemoryJournal(1 frames)"


# --- Survivors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "survivors", [(B, C), (), (B, A), (A, A), (C, B, A), (A, B, B), (A, B, C, C)]
)
def test_survivors_without_me_or_out_of_order_are_refused(
    bench: Bench, survivors: tuple[str, ...]
) -> None:
    bench.open(0)
    with pytest.raises(RemoteProtocolError, match="survivors of round 0"):
        bench.ask(A, bench.reply(0, survivors))


def test_fewer_survivors_than_the_plan_asks_for_are_refused(bench: Bench) -> None:
    bench.open(0)
    with pytest.raises(RemoteProtocolError, match="at least 2"):
        bench.ask(A, bench.reply(0, (A,)))
    strict = Bench(toy_plan(silos=5, min_silos=4))
    strict.open(0)
    for size, silos in ((3, strict.plan.silos[:3]), (2, strict.plan.silos[:2])):
        with pytest.raises(RemoteProtocolError, match=f"{size} survivors"):
            strict.ask(A, strict.reply(0, silos))
    strict.ask(A, strict.reply(0, strict.plan.silos[:4]))


def test_a_reply_before_the_upload_or_for_another_round_is_refused(bench: Bench) -> None:
    words = np.zeros(6, dtype=np.uint64)
    with pytest.raises(RemoteProtocolError, match="does not wait for"):
        bench.ask(A, Reply(0, (A, B), words))
    bench.open(0)
    with pytest.raises(RemoteProtocolError, match="does not wait for"):
        bench.ask(A, Reply(1, (A, B), words))


@pytest.mark.parametrize("second", [(A, B), (A, C)])
def test_a_second_survivor_set_is_refused(bench: Bench, second: tuple[str, ...]) -> None:
    bench.open(0)
    first = bench.reply(0, bench.plan.silos)
    confirmation = bench.confirm(A, first)
    with pytest.raises(RemoteProtocolError, match="answered twice"):
        bench.ask(A, bench.reply(0, second))
    with pytest.raises(RemoteProtocolError, match="answered twice"):
        bench.ask(A, bench.reply(0, bench.plan.silos, extra=1))
    assert bench.confirm(A, first) == confirmation  # the first one stands


def test_a_second_survivor_set_is_refused_after_the_last_round_too(bench: Bench) -> None:
    """A finished silo must not confirm another set: a silo still waiting would unmask that one."""
    last = bench.plan.rounds - 1
    bench.to_round(last)
    one, two = bench.reply(last, (A, B)), bench.reply(last, (B, C))
    confirmations = (bench.confirm(A, one), bench.confirm(B, one))
    for silo in (A, B):
        bench.ask(silo, Close(last, confirmations))
    assert bench.clients[B].finished
    with pytest.raises(RemoteProtocolError, match="answered twice"):
        bench.confirm(B, two)
    with pytest.raises(RemoteProtocolError):
        bench.ask(C, Close(last, (bench.confirm(C, two),)))
    assert not bench.clients[C].finished


def test_a_second_survivor_set_is_refused_when_the_next_upload_failed() -> None:
    bench = Bench(**{A: Failing()})
    with pytest.raises(LedgerError):
        bench.ask(A, Open(0))
    bench.open(0)
    confirmations = bench.round(0)
    with pytest.raises(LedgerError):
        bench.ask(A, Open(1, confirmations))  # round 0 is unmasked, round 1 did not leave
    with pytest.raises(RemoteProtocolError, match="answered twice"):
        bench.ask(A, bench.reply(0, (A, B)))
    assert isinstance(bench.ask(A, bench.reply(0, bench.plan.silos)), Confirm)
    assert isinstance(bench.ask(A, Open(1, confirmations)), Upload)


def test_a_reply_that_comes_again_is_confirmed_with_the_same_bytes(bench: Bench) -> None:
    bench.to_round(1)
    frame = bench.frame(bench.reply(1, bench.plan.silos))
    first = bench.clients[A].handle(frame)
    assert bench.clients[A].handle(frame) == first
    others = tuple(
        Confirmation(c.silo, c.result_hash, c.mac)
        for c in (bench.confirm(s, bench.reply(1, bench.plan.silos)) for s in (B, C))
    )
    bench.ask(A, Close(1, others))
    assert bench.clients[A].handle(frame) == first  # after the end as well


# --- Confirmations --------------------------------------------------------------------------------


def refused(bench: Bench, t: int, confirmations: tuple[Confirmation, ...], match: str) -> None:
    """Both ways to go on from round `t` fail, and nothing was unmasked."""
    client = bench.clients[A]
    before = len(client.history)
    message: Message = Close(t, confirmations)
    if t + 1 < bench.plan.rounds:
        message = Open(t + 1, confirmations)
    with pytest.raises(RemoteProtocolError, match=match):
        bench.ask(A, message)
    assert len(client.history) == before
    assert not client.finished


@pytest.mark.parametrize("t", [0, 1])
def test_sums_that_differ_between_silos_are_noticed(bench: Bench, t: int) -> None:
    bench.to_round(t)
    confirmations = (
        bench.confirm(A, bench.reply(t, bench.plan.silos)),
        bench.confirm(B, bench.reply(t, bench.plan.silos, extra=1)),
        bench.confirm(C, bench.reply(t, bench.plan.silos)),
    )
    refused(bench, t, confirmations[:2], "confirm different sums")
    # The confirmation of one silo ends nothing: two of three agree on the same sum.
    last = t + 1 == bench.plan.rounds
    bench.ask(A, Close(t, confirmations) if last else Open(t + 1, confirmations))
    assert len(bench.clients[A].history) == t + 2


@pytest.mark.parametrize("t", [0, 1])
def test_survivors_that_differ_between_silos_are_noticed(bench: Bench, t: int) -> None:
    bench.to_round(t)
    one, two = bench.reply(t, (A, B)), bench.reply(t, bench.plan.silos)
    refused(bench, t, (bench.confirm(A, one), bench.confirm(B, two)), "confirm different sums")


@pytest.mark.parametrize("t", [0, 1])
@pytest.mark.parametrize(
    "forge",
    [
        lambda c: replace(c, mac=bytes(32)),
        lambda c: replace(c, mac=c.mac[::-1]),
        lambda c: replace(c, silo=C),  # another silo's name on it
        lambda c: replace(c, result_hash=bytes(32)),
    ],
    ids=["no mac", "another mac", "another silo", "another hash"],
)
def test_a_forged_confirmation_is_noticed(bench: Bench, t: int, forge: Any) -> None:
    bench.to_round(t)
    reply = bench.reply(t, bench.plan.silos)
    mine, theirs = bench.confirm(A, reply), bench.confirm(B, reply)
    refused(bench, t, (mine, forge(theirs)), "is forged")


def test_whoever_has_no_key_cannot_confirm(bench: Bench) -> None:
    bench.open(0)
    reply = bench.reply(0, bench.plan.silos)
    mine = bench.confirm(A, reply)
    digest = result_hash(bench.plan, reply)
    parts = (bench.plan.digest, b"0", B.encode(), digest)
    from cloister.hazmat.prg import Usage

    for mac in (
        NoMask().tag(Usage.CONFIRM, *parts),
        GroupMask(new_key()).tag(Usage.CONFIRM, *parts),
    ):
        refused(bench, 0, (mine, Confirmation(B, digest, mac)), "is forged")


def test_a_confirmation_of_another_round_is_no_confirmation(bench: Bench) -> None:
    old = bench.to_round(1)
    bench.confirm(A, bench.reply(1, bench.plan.silos))
    refused(bench, 1, old, "is forged")


def test_a_confirmation_of_another_run_is_no_confirmation(bench: Bench) -> None:
    other = Bench(toy_plan())  # the same key, another run
    for run in (bench, other):
        run.open(0)
    theirs = other.confirm(B, other.reply(0, other.plan.silos))
    bench.confirm(A, bench.reply(0, bench.plan.silos))
    refused(bench, 0, (theirs,), "is forged")


def test_too_few_confirmations_unmask_nothing(bench: Bench) -> None:
    bench.open(0)
    mine = bench.confirm(A, bench.reply(0, bench.plan.silos))
    refused(bench, 0, (), "requires 2")
    refused(bench, 0, (mine,), "requires 2")  # my own word counts once


def test_without_a_reply_there_is_nothing_to_go_on_with(bench: Bench) -> None:
    bench.open(0)
    reply = bench.reply(0, bench.plan.silos)
    others = tuple(bench.confirm(silo, reply) for silo in (B, C))
    refused(bench, 0, others, "received no reply")


@pytest.mark.parametrize("extra", [2**62, 2**63, -(2**62)])
def test_a_sum_no_honest_party_can_send_is_not_taken(bench: Bench, extra: int) -> None:
    bench.open(0)
    reply = bench.reply(0, bench.plan.silos, extra)
    confirmations = tuple(bench.confirm(silo, reply) for silo in bench.plan.silos)
    refused(bench, 0, confirmations, "outside the plan's range")


# --- The end --------------------------------------------------------------------------------------


def test_all_silos_end_with_the_same_state(bench: Bench) -> None:
    last = bench.plan.rounds - 1
    bench.to_round(last)
    confirmations = bench.round(last)
    for silo in bench.plan.silos:
        assert bench.ask(silo, Close(last, confirmations)) == Done(last, silo)
        assert bench.clients[silo].finished
        assert len(bench.clients[silo].history) == bench.plan.rounds + 1
    assert states_equal(bench.clients[A], bench.clients[B])
    assert states_equal(bench.clients[A], bench.clients[C])
    assert bench.ask(A, Close(last)) == Done(last, A)  # asked again


def test_a_job_is_not_closed_before_its_last_round(bench: Bench) -> None:
    last = bench.plan.rounds - 1
    with pytest.raises(RemoteProtocolError, match="closed before"):
        bench.ask(A, Close(last))
    bench.open(0)
    confirmations = bench.round(0)
    for t in (0, last):
        with pytest.raises(RemoteProtocolError, match="closed before"):
            bench.ask(A, Close(t, confirmations))


def test_a_silo_takes_no_frames_of_silos(bench: Bench) -> None:
    words = np.zeros(6, dtype=np.uint64)
    for message in (
        Upload(0, B, bytes(32), words),
        Confirm(0, B, bytes(32), bytes(32)),
        Done(0, B),
    ):
        with pytest.raises(RemoteProtocolError, match="does not accept"):
            bench.ask(A, message)


def test_a_frame_of_another_plan_changes_nothing(bench: Bench) -> None:
    other = replace(bench.plan, nominal_n=301)
    with pytest.raises(RemoteProtocolError, match="another plan"):
        bench.clients[A].handle(encode(other, Open(0)))
    assert repr(bench.clients[A]) == "Client('silo-0', round 0 of 2)"


def test_the_public_history_cannot_be_changed_from_outside(bench: Bench) -> None:
    assert isinstance(bench.clients[A].history, tuple)
    assert isinstance(bench.clients[A].state, Mapping)


def test_a_single_silo_needs_nobodys_word() -> None:
    plan = toy_plan(silos=1)
    records = toy_records(plan)[A]
    client = Client(plan, A, [records], NoMask())
    for t in range(plan.rounds):
        upload = decode(plan, client.handle(encode(plan, Open(t))))
        expected = plan.task.contribute(t, client.state, records)
        assert np.array_equal(upload.elements, to_words(expected))  # type: ignore[union-attr]
        client.handle(encode(plan, Reply(t, (A,), upload.elements)))  # type: ignore[union-attr]
    client.handle(encode(plan, Close(plan.rounds - 1)))
    assert client.finished


def test_a_restarted_silo_sends_and_confirms_the_same_bytes_again_and_nothing_else() -> None:
    plan, journal = toy_plan(), MemoryJournal()
    records = toy_records(plan)["silo-0"]
    lives = [Client(plan, "silo-0", [records], GroupMask(KEY), journal) for _ in range(2)]
    opened = Aggregator(plan, ZeroNoise()).open(0)
    assert lives[0].handle(opened) == lives[1].handle(opened)
    words = np.zeros(plan.length(0), dtype=np.uint64)
    reply = encode(plan, Reply(0, plan.silos, words))
    confirmed = lives[0].handle(reply)
    other = encode(plan, Reply(0, plan.silos, words + 1))
    third = Client(plan, "silo-0", [records], GroupMask(KEY), journal)
    assert third.handle(reply) == confirmed
    with pytest.raises(RemoteProtocolError, match="answered twice"):
        third.handle(other)


def test_a_silo_that_comes_back_with_other_records_keeps_to_what_it_sent() -> None:
    plan, journal = toy_plan(), MemoryJournal()
    first, second = toy_records(plan, seed=1)["silo-0"], toy_records(plan, seed=2)["silo-0"]
    opened = Aggregator(plan, ZeroNoise()).open(0)
    sent = Client(plan, "silo-0", [first], GroupMask(KEY), journal).handle(opened)
    assert Client(plan, "silo-0", [second], GroupMask(KEY), journal).handle(opened) == sent


def test_pads_of_two_plans_with_one_run_id_differ() -> None:
    plan = toy_plan()
    other = replace(plan, nominal_n=plan.nominal_n + 1)
    assert other.run_id == plan.run_id
    records = toy_records(plan)["silo-0"]
    frames = [
        Client(p, "silo-0", [records], GroupMask(KEY)).handle(Aggregator(p, ZeroNoise()).open(0))
        for p in (plan, other)
    ]
    words = [decode(p, frame).elements for p, frame in zip((plan, other), frames, strict=True)]  # type: ignore[union-attr]
    assert (words[0] != words[1]).all()
