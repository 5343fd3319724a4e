"""Whatever the wire does: the exact sum over the committed survivors, or an error, never else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister import Budget, Ledger
from cloister.app.in_process import InProcess
from cloister.core.errors import CloisterError, RemoteProtocolError, TransportError
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.hazmat.ring import from_bytes, to_integers
from cloister.protocol.exchanges import Kind
from cloister.protocol.journal import MemoryJournal
from cloister.protocol.messages import Reply, decode, encode
from cloister.protocol.plan import Plan
from cloister.protocol.session import run_rounds
from cloister.protocol.task import GridState, NoisyBlock
from cloister.testing import Faults, Wire, toy_plan, toy_records

A, B, C = "silo-0", "silo-1", "silo-2"
PLAN3 = toy_plan(silos=3)  # two rounds: exchanges 0 upload, 1 confirm, 2 upload, 3 confirm, 4 end


def pooled(plan: Plan, records: Mapping[str, Any], survivors: list[tuple[str, ...]]) -> GridState:
    """The same rounds without masks or frames, on the records of the survivors of each round."""
    state: GridState = {
        name: round_to_grid(v, plan.grid.frac_bits) for name, v in plan.task.start().items()
    }
    for t, members in enumerate(survivors):
        table = np.concatenate([records[silo] for silo in members])
        values = plan.task.contribute(t, state, table)
        (block,) = plan.task.blocks(t)
        released = {block.name: NoisyBlock(values.reshape(block.shape), plan.noise_std(block))}
        new = plan.task.update(t, state, released)
        state = {name: round_to_grid(v, plan.grid.frac_bits) for name, v in new.items()}
    return state


def equal(left: GridState, right: GridState) -> bool:
    return all(np.array_equal(left[name], right[name]) for name in left)


class Job:
    """A run over a faulty wire, with what the aggregator committed."""

    def __init__(self, plan: Plan, journals: Any = None, **faults: Any) -> None:
        self.plan, self.records = plan, toy_records(plan)
        self.journal = MemoryJournal()
        self.wire = Wire(
            plan,
            self.records,
            make_transport=lambda handlers: Faults(InProcess(handlers), **faults),
            journals={"": self.journal, **(journals or {})},
        )
        self.error: CloisterError | None = None
        try:
            for _ in run_rounds(self.wire.aggregator, self.wire.transport):
                pass
        except CloisterError as error:
            self.error = error

    @property
    def survivors(self) -> list[tuple[str, ...]]:
        """The sets the aggregator committed, round by round."""
        frames = [self.journal.frame(self.plan.run_id, t) for t in range(self.plan.rounds)]
        replies = [decode(self.plan, frame) for frame in frames if frame]
        return [reply.survivors for reply in replies if isinstance(reply, Reply)]

    @property
    def finished(self) -> list[str]:
        return [silo for silo, client in self.wire.clients.items() if client.finished]

    def check(self) -> None:
        """Every silo that went on holds exactly the sum over the committed survivors."""
        committed = self.survivors
        for client in self.wire.clients.values():
            done = len(client.history) - 1
            assert done <= len(committed)
            assert equal(client.state, pooled(self.plan, self.records, committed[:done]))
            assert all(client.silo in members for members in committed[:done])
        for members in committed:
            assert len(members) >= self.plan.min_silos


def lost(*places: tuple[int, str]) -> frozenset[tuple[int, str]]:
    return frozenset(places)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("exchange", range(5))
@pytest.mark.parametrize("what", ["lose_request", "lose_answer"])
def test_a_frame_lost_once_changes_nothing(
    what: str, exchange: int, repeat: bool, late: bool
) -> None:
    job = Job(PLAN3, repeat=repeat, late=late, **{what: lost((exchange, B))})
    assert job.error is None
    assert job.finished == list(PLAN3.silos)
    assert job.survivors == [PLAN3.silos] * 2
    job.check()


@pytest.mark.parametrize(
    ("dead_from", "survivors", "finished"),
    [
        (0, [(A, C), (A, C)], [A, C]),  # before its first upload
        (1, [(A, B, C), (A, C)], [A, C]),  # after the upload: its records are in the sum
        (2, [(A, B, C), (A, C)], [A, C]),  # between rounds
        (3, [(A, B, C), (A, B, C)], [A, C]),  # after its last upload
        (4, [(A, B, C), (A, B, C)], [A, C]),  # before the end
    ],
)
def test_a_silo_that_dies_is_dropped_from_then_on(
    dead_from: int, survivors: list[tuple[str, ...]], finished: list[str]
) -> None:
    job = Job(PLAN3, dead_from={B: dead_from})
    assert job.error is None
    assert job.survivors == survivors
    assert job.finished == finished
    job.check()


def test_a_silo_whose_answers_are_lost_counts_as_dead_once_it_was_asked_three_times() -> None:
    job = Job(PLAN3, lose_answer=lost((0, B), (1, B), (2, B)))
    assert job.survivors[0] == (A, C)
    assert job.error is None
    job.check()
    # its upload left, so it is charged, although it is not in the sum
    assert job.wire.clients[B].history[0] is job.wire.clients[B].state


@pytest.mark.parametrize("dead", [(B, C), (A, B), (A, B, C)])
@pytest.mark.parametrize("since", range(4))
def test_without_a_majority_the_job_ends(dead: tuple[str, ...], since: int) -> None:
    job = Job(PLAN3, dead_from=dict.fromkeys(dead, since))
    assert isinstance(job.error, RemoteProtocolError)
    assert not job.finished
    assert len(job.survivors) == (since + 1) // 2
    job.check()


def test_the_end_may_be_missed_by_all_and_the_result_still_stands_at_nobody() -> None:
    job = Job(PLAN3, dead_from=dict.fromkeys(PLAN3.silos, 4))
    assert isinstance(job.error, TransportError)
    assert not job.finished
    job.check()


@pytest.mark.parametrize("min_silos", [3, 4, 5])
def test_the_plans_minimum_decides(min_silos: int) -> None:
    plan = toy_plan(silos=5, min_silos=min_silos)
    dead = dict.fromkeys(plan.silos[:2], 0)
    job = Job(plan, dead_from=dead)
    assert (job.error is None) == (min_silos == 3)
    job.check()


def test_two_silos_need_each_other() -> None:
    plan = toy_plan(silos=2)
    assert Job(plan).error is None
    for since in range(4):
        job = Job(plan, dead_from={B: since})
        assert isinstance(job.error, RemoteProtocolError)
        assert not job.finished


# --- Frames changed on their way ------------------------------------------------------------------


def flipped(place: int) -> Any:
    def spoil(number: int, silo: str, answer: bytes) -> bytes:
        if silo != B:
            return answer
        changed = bytearray(answer)
        changed[place % len(changed)] ^= 0x40
        return bytes(changed)

    return spoil


@pytest.mark.parametrize("place", [0, 5, 7, 25, 58, 62, 63, 70, 75])
def test_a_changed_header_drops_the_silo_and_nothing_else(place: int) -> None:
    job = Job(PLAN3, spoil=flipped(place))
    assert job.error is None
    assert job.survivors == [(A, C)] * 2
    job.check()


@pytest.mark.parametrize("cut", [0, 10, 71, 80, -1])
def test_a_cut_frame_drops_the_silo_and_nothing_else(cut: int) -> None:
    job = Job(PLAN3, spoil=lambda n, silo, answer: answer[:cut] if silo == B else answer)
    assert job.survivors == [(A, C)] * 2
    job.check()


def test_answers_swapped_between_silos_are_refused() -> None:
    class Swapped(InProcess):
        def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
            answers = super().exchange(frames)
            if {A, B} <= set(answers):
                answers[A], answers[B] = answers[B], answers[A]
            return answers

    wire = Wire(PLAN3, make_transport=Swapped)
    with pytest.raises(RemoteProtocolError, match="1 uploads"):
        wire.run()


@pytest.mark.parametrize("liar", [A, B])
def test_a_silo_whose_state_tag_stays_wrong_counts_as_lost(liar: str) -> None:
    """The first silo, too: the state of most silos leads."""

    def spoil(number: int, silo: str, answer: bytes) -> bytes:
        kind = decode(PLAN3, answer).kind
        if silo == liar and kind in (Kind.UPLOAD, Kind.ADOPTED):
            answer = answer[:76] + bytes(32) + answer[108:]
        return answer

    job = Job(PLAN3, spoil=spoil)
    assert job.error is None
    assert job.survivors == [tuple(s for s in PLAN3.silos if s != liar)] * 2
    assert "public state in round 0" in job.wire.aggregator.faults[liar]
    job.check()


def test_states_of_which_none_is_held_by_enough_silos_end_the_job_before_it_is_spent() -> None:
    def spoil(number: int, silo: str, answer: bytes) -> bytes:
        kind = decode(PLAN3, answer).kind
        if kind in (Kind.UPLOAD, Kind.ADOPTED):
            answer = answer[:76] + silo.encode().ljust(32) + answer[108:]
        return answer

    job = Job(PLAN3, spoil=spoil)
    assert "different public states" in str(job.error)
    assert job.survivors == []
    job.check()


def test_frames_of_an_earlier_run_are_of_no_use() -> None:
    plan = toy_plan()
    old = Wire(plan, make_transport=lambda handlers: Faults(InProcess(handlers)))
    old.run()
    assert isinstance(old.transport, Faults)
    frames = {(number, silo): answer for number, silo, _, answer in old.transport.frames}
    fresh = toy_plan()
    job = Job(
        fresh, spoil=lambda n, silo, answer: frames.get((n, silo), answer) if silo == B else answer
    )
    assert job.survivors == [(A, C)] * 2
    job.check()


def test_replayed_frames_of_this_run_are_of_no_use() -> None:
    kept: dict[str, bytes] = {}

    def spoil(number: int, silo: str, answer: bytes) -> bytes:
        kept.setdefault(silo, answer)
        return kept[silo] if silo == B else answer  # B's first upload for ever

    job = Job(PLAN3, spoil=spoil)
    assert job.survivors == [(A, B, C), (A, C)]
    assert job.finished == [A, C]
    job.check()


# --- A dishonest aggregator or network ------------------------------------------------------------


class Forked:
    """Adds a known vector to the sum that some silos are told."""

    def __init__(self, inner: InProcess, plan: Plan, victims: set[str], t: int) -> None:
        self.inner, self.plan, self.victims, self.t = inner, plan, victims, t

    def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        changed = dict(frames)
        for silo in self.victims & set(frames):
            message = decode(self.plan, frames[silo])
            if isinstance(message, Reply) and message.round == self.t:
                words = message.elements + np.uint64(1 << 20)
                changed[silo] = encode(self.plan, Reply(message.round, message.survivors, words))
        return self.carry(changed)

    def carry(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = {}
        self.refusals: list[str] = []
        for silo, frame in frames.items():
            try:
                answers |= self.inner.exchange({silo: frame})
            except RemoteProtocolError as error:
                self.refusals.append(str(error))
        return answers


@pytest.mark.parametrize("t", [0, 1])
@pytest.mark.parametrize("victims", [{A}, {B, C}, {C}])
def test_of_forked_sums_one_at_most_is_unmasked(victims: set[str], t: int) -> None:
    wire = Wire(PLAN3, make_transport=lambda h: Forked(InProcess(h), PLAN3, victims, t))
    wire.run()
    same = victims if len(victims) > 1 else set(PLAN3.silos) - victims
    for silo, client in wire.clients.items():
        assert client.finished == (silo in same), "of two sums the one that most silos confirm"
        assert len(client.history) == (PLAN3.rounds + 1 if silo in same else t + 1)


@pytest.mark.parametrize("t", [0, 1])
def test_sums_that_no_two_silos_share_are_not_unmasked(t: int) -> None:
    plan = toy_plan(silos=3, min_silos=3)
    wire = Wire(plan, make_transport=lambda h: Forked(InProcess(h), plan, {B}, t))
    with pytest.raises((RemoteProtocolError, TransportError)):
        wire.run()
    assert isinstance(wire.transport, Forked)
    assert all("confirm different sums" in refusal for refusal in wire.transport.refusals)
    assert len(wire.transport.refusals) == 3
    assert all(len(client.history) == t + 1 for client in wire.clients.values())


def test_forked_survivors_are_caught_by_the_confirmations() -> None:
    class Subset(Forked):
        def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
            changed = dict(frames)
            message = decode(self.plan, frames[A]) if A in frames else None
            if isinstance(message, Reply):
                changed[A] = encode(self.plan, Reply(message.round, (A, B), message.elements))
            return self.carry(changed)

    plan = toy_plan(silos=3, min_silos=2)
    wire = Wire(plan, make_transport=lambda h: Subset(InProcess(h), plan, set(), 0))
    wire.run()
    assert not wire.clients[A].finished
    assert wire.clients[B].survivors == (plan.silos, (B, C))


def test_a_forged_confirmation_of_the_network_unmasks_nothing() -> None:
    def spoil(number: int, silo: str, answer: bytes) -> bytes:
        if number == 1 and silo == B:
            answer = answer[:-160] + bytes(32) + answer[-128:]  # the right hash under a wrong tag
        return answer

    job = Job(toy_plan(silos=3, min_silos=3), spoil=spoil)
    # the others find it forged and go silent, so too few uploads come in the next round
    assert isinstance(job.error, RemoteProtocolError)
    assert not job.finished
    assert all(len(client.history) == 1 for client in job.wire.clients.values() if client.silo != B)


# --- Charges --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "faults",
    [
        {"repeat": True},
        {"lose_answer": lost((0, A), (1, A), (2, A), (3, A)), "late": True},
        {"lose_request": lost((0, A), (2, A), (4, A))},
    ],
)
def test_a_silo_is_charged_once_a_round_whatever_is_lost(faults: Any, tmp_path: Any) -> None:
    ledgers = {name: Ledger(None) for name in (A, "")}
    for ledger in ledgers.values():
        ledger.open_dataset("d", cap=Budget(1.0, 1e-6))
        ledger.reserve(dataset="d", study="s", job=PLAN3.run_id, events=PLAN3.events())
    wire = Wire(PLAN3, make_transport=lambda h: Faults(InProcess(h), **faults), journals=ledgers)
    wire.run()
    for ledger in ledgers.values():
        kinds = [entry.fields["kind"] for entry in ledger.entries()]
        assert kinds.count("charge") == PLAN3.rounds
        ledger.close(PLAN3.run_id)
        assert 0.99 <= ledger.spent("d") <= 1.0
        ledger.dispose()


def test_an_upload_that_left_is_charged_even_if_it_was_dropped() -> None:
    ledger = Ledger(None)
    ledger.open_dataset("d", cap=Budget(1.0, 1e-6))
    ledger.reserve(dataset="d", study="s", job=PLAN3.run_id, events=PLAN3.events())
    job = Job(PLAN3, {B: ledger}, lose_answer=lost((0, B), (1, B), (2, B)))
    assert job.survivors[0] == (A, C)
    kinds = [entry.fields["kind"] for entry in ledger.entries()]
    assert kinds.count("charge") == 1
    ledger.close(PLAN3.run_id)
    assert ledger.spent("d") > 0


def test_every_silo_sends_the_same_bytes_for_a_round() -> None:
    faults: dict[str, Any] = {
        "repeat": True,
        "lose_answer": lost((0, A), (1, B), (2, C), (3, A), (4, B), (5, A)),
    }
    job = Job(PLAN3, **faults)
    sent: dict[tuple[str, bytes], set[bytes]] = {}
    assert isinstance(job.wire.transport, Faults)
    for _, silo, request, answer in job.wire.transport.frames:
        sent.setdefault((silo, request), set()).add(answer)
    assert all(len(answers) == 1 for answers in sent.values())
    assert job.finished == list(PLAN3.silos)
    job.check()


# --- Everything at once ---------------------------------------------------------------------------

places = st.frozensets(
    st.tuples(st.integers(0, 14), st.sampled_from([f"silo-{i}" for i in range(5)])), max_size=12
)


@settings(max_examples=2 * settings().max_examples)  # the space of faults is large
@given(
    silos=st.integers(2, 5),
    lose_request=places,
    lose_answer=places,
    dead_from=st.dictionaries(
        st.sampled_from([f"silo-{i}" for i in range(5)]), st.integers(0, 14), max_size=2
    ),
    repeat=st.booleans(),
    late=st.booleans(),
    flips=st.dictionaries(
        st.tuples(st.integers(0, 14), st.sampled_from([f"silo-{i}" for i in range(5)])),
        # not among the masked words: whoever may write there may also not send at all, and the
        # sum, which nobody can check, is then of other records
        st.integers(0, 107),
        max_size=3,
    ),
)
def test_any_faults_end_in_the_exact_sum_or_in_an_error(
    silos: int, flips: dict[tuple[int, str], int], **faults: Any
) -> None:
    def spoil(number: int, silo: str, answer: bytes) -> bytes:
        place = flips.get((number, silo))
        if place is None:
            return answer
        changed = bytearray(answer)
        changed[min(place, len(changed) - 1)] ^= 1
        return bytes(changed)

    job = Job(toy_plan(silos=silos), spoil=spoil, **faults)
    job.check()
    if job.error is None:
        assert job.finished
        states = [job.wire.clients[silo].state for silo in job.finished]
        assert all(equal(state, states[0]) for state in states)


def test_the_words_of_an_upload_are_masked() -> None:
    job = Job(PLAN3)
    assert isinstance(job.wire.transport, Faults)
    for _, silo, _, answer in job.wire.transport.frames[:3]:
        words = to_integers(from_bytes(answer[-48:], 6))
        start: GridState = {name: round_to_grid(v, 16) for name, v in PLAN3.task.start().items()}
        plain = PLAN3.task.contribute(0, start, job.records[silo])
        assert not set(words.tolist()) & set(plain.tolist())
