"""The aggregator's side: noise before data, one answer a round, paid before it leaves, no key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister import Budget, Ledger
from cloister.core.errors import (
    BudgetExceeded,
    LedgerError,
    LocalProtocolError,
    RemoteProtocolError,
)
from cloister.hazmat.ring import Integers, to_integers
from cloister.privacy.noise import DiscreteNoise, NoiseKind
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.exchanges import Kind
from cloister.protocol.journal import MemoryJournal
from cloister.protocol.messages import (
    BEFORE,
    Confirm,
    Confirmation,
    Done,
    Open,
    Reply,
    Upload,
    decode,
    encode,
    sent,
)
from cloister.protocol.plan import Plan
from cloister.protocol.task import Block
from cloister.tasks.clustering.kmeans import Lloyd
from cloister.tasks.count import Count
from cloister.testing import Wire, ZeroNoise, toy_federation, toy_plan

A, B, C = "silo-0", "silo-1", "silo-2"
TAG = bytes(range(32))
SIZE = 6


class Watched:
    """Noise that says when and what it was asked for; every draw is different."""

    label = "watched"

    def __init__(self) -> None:
        self.asked: list[tuple[NoiseKind, int, int]] = []

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        self.asked.append((kind, scale, size))
        return np.arange(size, dtype=np.int64) + 1000 * len(self.asked)


def upload(plan: Plan, silo: str, t: int = 0, value: int = 1, tag: bytes = TAG) -> bytes:
    words = np.full(plan.length(t), value, dtype=np.uint64)
    return encode(plan, Upload(t, silo, tag, words))


def confirm(plan: Plan, silo: str, t: int = 0, byte: int = 0) -> bytes:
    return encode(plan, Confirm(t, silo, bytes([byte] * 32), bytes([byte] * 32)))


def fill(aggregator: Aggregator, t: int = 0, silos: tuple[str, ...] = (A, B, C)) -> None:
    for silo in silos:
        assert aggregator.accept(silo, upload(aggregator.plan, silo, t)) is Kind.UPLOAD


def reply_of(aggregator: Aggregator, frame: bytes) -> Reply:
    message = decode(aggregator.plan, frame)
    assert isinstance(message, Reply)
    return message


@pytest.fixture
def plan() -> Plan:
    return toy_plan()


# --- Noise ----------------------------------------------------------------------------------------


def test_noise_is_drawn_when_a_round_opens_and_never_after(plan: Plan) -> None:
    noise = Watched()
    aggregator = Aggregator(plan, noise)
    assert noise.asked == []
    aggregator.open(0)
    block = plan.task.blocks(0)[0]
    assert noise.asked == [("gaussian", plan.noise_scale(block), SIZE)]
    fill(aggregator)
    aggregator.combine()
    aggregator.combine()
    assert len(noise.asked) == 1


def test_the_answer_is_the_sum_and_the_noise_and_nothing_else(plan: Plan) -> None:
    aggregator = Aggregator(plan, Watched())
    aggregator.open(0)
    for silo, value in ((A, 5), (B, 7), (C, 2**64 - 2)):
        aggregator.accept(silo, upload(plan, silo, value=value))
    total = to_integers(reply_of(aggregator, aggregator.combine()).elements)
    assert total.tolist() == [5 + 7 - 2 + 1000 + i for i in range(SIZE)]


def test_every_block_has_noise_of_its_own() -> None:
    class Two(Count):
        def blocks(self, t: int) -> tuple[Block, ...]:
            one = 1 << 16
            return (Block("a", (2, 2), one, one**2, 0.9), Block("b", (3,), one, one**2, 0.1))

    plan, noise = toy_plan(Two(n_features=2)), Watched()
    Aggregator(plan, noise).open(0)
    scales = [plan.noise_scale(block) for block in plan.task.blocks(0)]
    assert noise.asked == [("gaussian", scales[0], 4), ("gaussian", scales[1], 3)]
    assert scales[1] == pytest.approx(3 * scales[0], rel=1e-3)


def test_without_a_mechanism_nothing_is_drawn() -> None:
    noise = Watched()
    aggregator = Aggregator(toy_plan(Lloyd(n_clusters=2, n_features=2, rounds=2)), noise)
    aggregator.open(0)
    fill(aggregator)
    assert reply_of(aggregator, aggregator.combine()).elements.tolist() == [3] * SIZE
    assert noise.asked == []


def test_two_runs_of_one_plan_draw_different_noise(plan: Plan) -> None:
    answers = []
    for _ in range(2):
        aggregator = Aggregator(plan, DiscreteNoise())
        aggregator.open(0)
        fill(aggregator)
        answers.append(aggregator.combine())
    assert answers[0] != answers[1]


# --- Rounds ---------------------------------------------------------------------------------------


def test_rounds_open_in_order_and_once(plan: Plan) -> None:
    aggregator = Aggregator(plan, ZeroNoise())
    for t in (1, -1, 2):
        with pytest.raises(LocalProtocolError, match="cannot be opened"):
            aggregator.open(t)
    assert decode(plan, aggregator.open(0)) == Open(0)
    for t in (0, 1):  # not answered yet, so neither again nor the next
        with pytest.raises(LocalProtocolError, match="no round is run twice"):
            aggregator.open(t)
    fill(aggregator)
    aggregator.combine()
    with pytest.raises(LocalProtocolError, match="no round is run twice"):
        aggregator.open(0)
    aggregator.open(1)
    fill(aggregator, 1)
    aggregator.combine()
    with pytest.raises(LocalProtocolError):
        aggregator.open(2)


def test_a_job_closes_after_its_last_answer_only(plan: Plan) -> None:
    aggregator = Aggregator(plan, ZeroNoise())
    with pytest.raises(LocalProtocolError, match="cannot be closed"):
        aggregator.close()
    for t in range(plan.rounds):
        aggregator.open(t)
        with pytest.raises(LocalProtocolError, match="cannot be closed"):
            aggregator.close()
        fill(aggregator, t)
        aggregator.combine()
    assert aggregator.close() == aggregator.close()


def test_nothing_is_taken_or_answered_before_a_round_opens(plan: Plan) -> None:
    aggregator = Aggregator(plan, ZeroNoise())
    with pytest.raises(RemoteProtocolError, match="does not belong"):
        aggregator.accept(A, upload(plan, A))
    with pytest.raises(RemoteProtocolError, match="cannot be released"):
        aggregator.combine()


# --- Uploads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [1, 0])
def test_frames_of_another_round_are_refused(plan: Plan, t: int) -> None:
    aggregator = Aggregator(plan, ZeroNoise())
    aggregator.open(0)
    if t == 0:  # a replay of an earlier round
        fill(aggregator)
        aggregator.combine()
        aggregator.open(1)
    for frame in (upload(plan, A, t), confirm(plan, A, t), encode(plan, Done(t, A))):
        with pytest.raises(RemoteProtocolError, match="does not belong"):
            aggregator.accept(A, frame)


def test_a_frame_must_come_from_the_silo_the_transport_names(plan: Plan) -> None:
    aggregator = Aggregator(plan, ZeroNoise())
    aggregator.open(0)
    for name in (B, "", "west"):
        with pytest.raises(RemoteProtocolError):
            aggregator.accept(name, upload(plan, A))
    assert aggregator.waiting_for == (A, B, C)


def test_frames_of_another_plan_are_refused(plan: Plan) -> None:
    aggregator = Aggregator(plan, ZeroNoise())
    aggregator.open(0)
    other = replace(plan, nominal_n=301)
    with pytest.raises(RemoteProtocolError, match="another plan"):
        aggregator.accept(A, upload(other, A))
    with pytest.raises(RemoteProtocolError):
        aggregator.accept(A, upload(plan, A)[:-1])


def test_a_repeated_upload_counts_once(plan: Plan) -> None:
    aggregator = Aggregator(plan, ZeroNoise())
    aggregator.open(0)
    for _ in range(3):
        fill(aggregator)
    assert reply_of(aggregator, aggregator.combine()).elements.tolist() == [3] * SIZE


@pytest.mark.parametrize("change", [{"value": 2}, {"tag": bytes(32)}])
def test_a_second_different_upload_is_refused_and_the_first_stands(
    plan: Plan, change: dict[str, Any]
) -> None:
    aggregator = Aggregator(plan, ZeroNoise())
    aggregator.open(0)
    fill(aggregator)
    with pytest.raises(RemoteProtocolError, match="two different uploads"):
        aggregator.accept(A, upload(plan, A, **change))
    assert reply_of(aggregator, aggregator.combine()).elements.tolist() == [3] * SIZE


def test_a_second_different_confirmation_is_refused(plan: Plan) -> None:
    aggregator = Aggregator(plan, ZeroNoise())
    aggregator.open(0)
    fill(aggregator)
    aggregator.combine()
    assert aggregator.accept(A, confirm(plan, A)) is Kind.CONFIRM
    assert aggregator.accept(A, confirm(plan, A)) is Kind.CONFIRM
    with pytest.raises(RemoteProtocolError, match="two different sums"):
        aggregator.accept(A, confirm(plan, A, byte=1))
    opened = decode(plan, aggregator.open(1))
    assert opened == Open(1, (Confirmation(A, bytes(32), bytes(32)),))


# --- Survivors ------------------------------------------------------------------------------------


def test_survivors_are_those_who_uploaded_in_the_plans_order(plan: Plan) -> None:
    aggregator = Aggregator(plan, ZeroNoise())
    aggregator.open(0)
    fill(aggregator, silos=(C, A))
    assert aggregator.waiting_for == (B,)
    reply = reply_of(aggregator, aggregator.combine())
    assert reply.survivors == (A, C)
    assert reply.elements.tolist() == [2] * SIZE


def test_a_late_upload_changes_no_answer(plan: Plan) -> None:
    aggregator = Aggregator(plan, ZeroNoise())
    aggregator.open(0)
    fill(aggregator, silos=(A, B))
    answer = aggregator.combine()
    fill(aggregator, silos=(C,))
    assert aggregator.combine() == answer
    assert reply_of(aggregator, answer).survivors == (A, B)


@pytest.mark.parametrize(("silos", "min_silos"), [(2, 2), (3, 2), (3, 3), (5, 3), (5, 5)])
def test_fewer_uploads_than_the_plan_asks_for_release_nothing(silos: int, min_silos: int) -> None:
    plan = toy_plan(silos=silos, min_silos=min_silos)
    journal = MemoryJournal()
    aggregator = Aggregator(plan, ZeroNoise(), journal)
    aggregator.open(0)
    for count in range(min_silos):
        with pytest.raises(RemoteProtocolError, match=f"{count} uploads") as caught:
            aggregator.combine()
        assert plan.silos[-1] in str(caught.value)
        fill(aggregator, silos=(plan.silos[count],))
    assert repr(journal) == "MemoryJournal(0 frames)"
    assert len(reply_of(aggregator, aggregator.combine()).survivors) == min_silos


def test_states_that_differ_end_the_job_before_it_is_spent(plan: Plan) -> None:
    journal = MemoryJournal()
    aggregator = Aggregator(plan, ZeroNoise(), journal)
    aggregator.open(0)
    for place, silo in enumerate((A, B, C)):
        aggregator.accept(silo, upload(plan, silo, tag=bytes([place]) * 32))
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="different public states"):
            aggregator.combine()
    assert repr(journal) == "MemoryJournal(0 frames)"


# --- The answer is paid for, kept, and given again ------------------------------------------------


class Order(MemoryJournal):
    """Says when a frame was made durable; can fail."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, bytes]] = []
        self.fails = 0

    def commit(self, **fields: Any) -> bytes:
        if self.fails:
            self.fails -= 1
            raise LedgerError("the disk is full")
        self.calls.append((fields["round"], fields["frame"]))
        return super().commit(**fields)


def test_an_answer_is_durable_before_it_leaves_and_the_same_for_ever(plan: Plan) -> None:
    journal = Order()
    aggregator = Aggregator(plan, DiscreteNoise(), journal)
    aggregator.open(0)
    fill(aggregator)
    answer = aggregator.combine()
    assert journal.calls == [(0, answer)]
    assert [aggregator.combine() for _ in range(5)] == [answer] * 5
    assert len(journal.calls) == 1


def test_what_cannot_be_paid_for_is_not_released_and_may_be_tried_again(plan: Plan) -> None:
    journal, noise = Order(), Watched()
    aggregator = Aggregator(plan, noise, journal)
    aggregator.open(0)
    fill(aggregator)
    journal.fails = 2
    for _ in range(2):
        with pytest.raises(LedgerError):
            aggregator.combine()
    answer = aggregator.combine()
    assert journal.calls == [(0, answer)]
    assert len(noise.asked) == 1  # no fresh noise


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.open_dataset("d", cap=Budget(1.0, 1e-6))
    yield ledger
    ledger.dispose()


def test_each_round_is_charged_once(ledger: Ledger, plan: Plan) -> None:
    ledger.reserve(dataset="d", study="s", job=plan.run_id, events=plan.events())
    aggregator = Aggregator(plan, ZeroNoise(), ledger)
    for t in range(plan.rounds):
        aggregator.open(t)
        fill(aggregator, t)
        for _ in range(3):
            aggregator.combine()
        kinds = [entry.fields["kind"] for entry in ledger.entries()]
        assert kinds.count("charge") == t + 1
    ledger.close(plan.run_id)
    assert ledger.spent("d") == pytest.approx(1.0, rel=1e-3)
    assert ledger.spent("d") <= 1.0


def test_without_a_reservation_nothing_is_released(ledger: Ledger, plan: Plan) -> None:
    aggregator = Aggregator(plan, ZeroNoise(), ledger)
    aggregator.open(0)
    fill(aggregator)
    with pytest.raises(LedgerError):
        aggregator.combine()


def test_a_round_beyond_the_reservation_is_not_released(ledger: Ledger, plan: Plan) -> None:
    ledger.reserve(dataset="d", study="s", job=plan.run_id, events=plan.event(0))
    aggregator = Aggregator(plan, ZeroNoise(), ledger)
    aggregator.open(0)
    fill(aggregator)
    aggregator.combine()
    aggregator.open(1)
    fill(aggregator, 1)
    with pytest.raises(BudgetExceeded):
        aggregator.combine()


def test_after_a_crash_the_same_answer_is_given_without_fresh_noise(
    ledger: Ledger, plan: Plan, tmp_path: Path
) -> None:
    ledger.reserve(dataset="d", study="s", job=plan.run_id, events=plan.events())
    first = Aggregator(plan, DiscreteNoise(), ledger)
    first.open(0)
    fill(first, silos=(A, B))
    answer = first.combine()

    noise = Watched()
    again = Aggregator(plan, noise, Ledger(tmp_path / "ledger.db"))
    again.open(0)
    fill(again)  # C comes too now, and is not taken in
    assert again.combine() == answer
    assert noise.asked == []


def test_an_answer_that_was_lost_is_not_given_again_with_other_noise(plan: Plan) -> None:
    class Loses(MemoryJournal):
        lost = False

        def frame(self, job: str, round: int) -> bytes | None:
            return None if self.lost else super().frame(job, round)

    journal, noise = Loses(), Watched()
    first = Aggregator(plan, noise, journal)
    first.open(0)
    fill(first)
    answer = first.combine()
    again = Aggregator(plan, noise, journal)
    again.open(0)
    journal.lost = True
    fill(again)
    assert again.combine() == answer
    assert len(noise.asked) == 1


def test_noise_is_never_written_to_disk(ledger: Ledger, plan: Plan, tmp_path: Path) -> None:
    class Marked(ZeroNoise):
        def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
            return np.frombuffer(b"NOISEMRK" * size, dtype=np.int64)[:size].copy()

    ledger.reserve(dataset="d", study="s", job=plan.run_id, events=plan.events())
    aggregator = Aggregator(plan, Marked(), ledger)
    aggregator.open(0)
    pads = np.random.default_rng(0).integers(0, 2**64, (3, SIZE), dtype=np.uint64)
    for silo, words in zip((A, B, C), pads, strict=True):
        aggregator.accept(silo, encode(plan, Upload(0, silo, TAG, words)))
    aggregator.combine()
    for path in tmp_path.iterdir():
        assert b"NOISEMRK" not in path.read_bytes()
        for words in pads:  # nor is an upload
            assert words.tobytes() not in path.read_bytes()


def test_noise_and_uploads_are_gone_once_the_answer_is_durable(
    plan: Plan, reachable: Callable[[object], list[object]]
) -> None:
    aggregator = Aggregator(plan, Watched())
    aggregator.open(0)
    fill(aggregator)
    aggregator.combine()
    noise = np.arange(SIZE) + 1000
    frames = {upload(plan, silo) for silo in plan.silos}
    for thing in reachable(aggregator):
        if isinstance(thing, np.ndarray) and thing.size == SIZE:
            assert not np.array_equal(thing.astype(np.int64), noise)
        assert not isinstance(thing, bytes) or thing not in frames


def test_it_shows_its_round_and_nothing_else(plan: Plan) -> None:
    aggregator = Aggregator(plan, Watched())
    aggregator.open(0)
    fill(aggregator)
    assert repr(aggregator) == "Aggregator(round 1 of 2)"


def test_confirmations_are_handed_out_with_the_next_frame(plan: Plan) -> None:
    aggregator = Aggregator(plan, ZeroNoise())
    frames = []
    for t in range(plan.rounds):
        frames.append(aggregator.open(t))
        fill(aggregator, t)
        aggregator.combine()
        for silo in plan.silos:
            aggregator.accept(silo, confirm(plan, silo, t, byte=t))
    frames.append(aggregator.close())
    sizes = [len(getattr(decode(plan, frame), "confirmations", ())) for frame in frames]
    assert sizes == [0, 3, 3]
    for before, after in pairwise(frames[1:]):
        assert before != after


def test_the_aggregator_signs_each_sum_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It compares its signature with the confirmation of every silo."""
    plan, identities = toy_federation(4)
    signed: list[int] = []

    def counted(plan: Plan, t: int, digest: bytes) -> tuple[bytes, ...]:
        signed.append(t)
        return sent(plan, t, digest)

    monkeypatch.setattr("cloister.protocol.aggregator.sent", counted)
    Wire(plan, identities=identities).run()
    assert signed == [BEFORE, *range(plan.rounds)]
