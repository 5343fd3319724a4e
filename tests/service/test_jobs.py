"""Jobs are proposed, decided, run once, and taken up again after any end of the process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloister.core.errors import LedgerError, PlanError
from cloister.federation.service.audit import verify
from cloister.federation.service.jobs import Jobs
from cloister.hazmat.ring import Integers
from cloister.privacy.noise import NoiseKind
from cloister.protocol.aggregator import box_name
from cloister.protocol.convictions import Conviction
from cloister.protocol.exchanges import Kind as FrameKind
from cloister.protocol.messages import (
    CONFIRM_LABEL,
    Confirm,
    Done,
    confirmation_of,
    confirmed,
    decode,
    encode,
    kind_of,
)
from cloister.protocol.plan import Plan
from cloister.protocol.readers import Reader, open_boxes
from cloister.tasks import TASKS
from cloister.testing import SimulatedNoise, ZeroNoise, toy_plan

from .federation import IDENTITIES, Coordinator, Streams, network_plan, signed_by

Make = Callable[..., Coordinator]


@pytest.fixture
def make(database_url: str, tmp_path: Path) -> Iterator[Make]:
    """A function that starts a coordinator on the one database of the test."""
    made: list[Coordinator] = []

    def start(streams: Streams | None = None, **options: Any) -> Coordinator:
        if made:
            made[-1].close()
        made.append(Coordinator(database_url, tmp_path, streams or Streams(), options))
        return made[-1]

    yield start
    made[-1].close()


def events(coordinator: Coordinator) -> list[dict[str, Any]]:
    lines = (coordinator.folder / "audit.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def named(coordinator: Coordinator, event: str) -> list[dict[str, Any]]:
    return [entry for entry in events(coordinator) if entry["event"] == event]


# Dishonest silos -----------------------------------------------------------------------------


def lying(coordinator: Coordinator, plan: Plan, liar: str) -> Callable[[str, bytes], bytes]:
    """Return what a silo answers that confirms, signed, a sum which it was not sent."""

    def changed(silo: str, answer: bytes) -> bytes:
        message = decode(plan, answer)
        if silo != liar or not isinstance(message, Confirm):
            return answer
        one = replace(confirmation_of(message), result_hash=bytes(32))
        signature = IDENTITIES[liar].sign(CONFIRM_LABEL, *confirmed(plan, message.round, one))
        return encode(plan, replace(message, result_hash=bytes(32), signature=signature))

    return changed


def test_a_dishonest_silo_is_named_in_refusals_and_audit_and_its_peers_get_the_proof(
    make: Make,
) -> None:
    coordinator = make()
    plan = network_plan()
    coordinator.streams.changed = lying(coordinator, plan, "c")
    job = coordinator.submit(plan)
    coordinator.decide(job, a=True, b=True, c=True)
    ended = coordinator.ended(job)
    assert (ended.state, ended.survivors) == ("done", ("a", "b"))
    assert "did not send" in coordinator.store.refusals(job)["c"]
    (entry,) = named(coordinator, "convicted")
    assert (entry["job"], entry["silo"]) == (job, "c")
    wait_for(lambda: len(coordinator.streams.proofs) == 3)
    for silo, proofs in coordinator.streams.proofs:
        (proof,) = map(Conviction.from_dict, proofs)
        assert coordinator.streams.clients[silo, job].is_proved(proof)
    # A silo that was away is told with the proof when it returns, also by a later process.
    again = make(coordinator.streams)
    coordinator.streams.proofs.clear()
    again.jobs.connected("b")
    assert [(silo, len(proofs)) for silo, proofs in coordinator.streams.proofs] == [("b", 1)]


# Proposals -----------------------------------------------------------------------------------


def test_a_job_runs_when_all_have_approved_and_its_silos_are_told(make: Make) -> None:
    coordinator = make()
    job = coordinator.submit()
    assert [(silo, of) for silo, of, _ in coordinator.streams.offers] == [
        (silo, job) for silo in sorted(silo for silo, _, _ in coordinator.streams.offers)
    ] or len(coordinator.streams.offers) == 3
    coordinator.decide(job, a=True, b=True)
    assert coordinator.job(job).state == "proposed"
    coordinator.decide(job, c=True)
    done = coordinator.ended(job)
    assert (done.state, done.reason) == ("done", "")
    assert (done.rounds_done, done.survivors) == (2, ("a", "b", "c"))
    wait_for(lambda: len(coordinator.streams.ends) == 3)
    assert sorted(coordinator.streams.ends) == [(s, job, "done", "") for s in "abc"]
    states = [coordinator.streams.clients[s, job].history[-1] for s in "abc"]
    assert all((state["centres"] == states[0]["centres"]).all() for state in states)


def test_an_offer_carries_the_plan_and_the_proposers_signature(make: Make) -> None:
    coordinator = make()
    plan = network_plan()
    coordinator.submit(plan)
    silo, job, document = coordinator.streams.offers[0]
    assert silo in plan.silos
    assert job == plan.run_id
    assert type(plan).from_dict(document["plan"], TASKS) == plan
    assert document["proposer"] == signed_by("ana", plan)


def refused_plans() -> list[tuple[str, Callable[[dict[str, Any]], object]]]:
    return [
        ("fingerprints must name", lambda p: p.update(fingerprints=[])),
        ("not complete", lambda p: p.pop("silos")),
        ("not complete", lambda p: p.update(task=7)),
        ("not complete", lambda p: p.update(task={})),
        ("layout must have", lambda p: p.update(layout={"frames": []})),
        ("sensitivities", lambda p: p["layout"]["frames"][0][0].update(l1=0.5)),
        ("publish must be False", lambda p: p.update(publish=True)),
        ("protocol 99", lambda p: p.update(protocol=99)),
        ("min_silos", lambda p: p.update(min_silos=1)),
        ("run_id must be", lambda p: p.update(run_id="../../etc/passwd")),
        ("epsilon", lambda p: p["budget"].update(epsilon=-1)),
    ]


@pytest.mark.parametrize(("sentence", "spoil"), refused_plans())
def test_a_plan_that_cannot_run_over_a_network_is_refused_in_one_sentence(
    make: Make, sentence: str, spoil: Callable[[dict[str, Any]], object]
) -> None:
    coordinator = make()
    plan = network_plan()
    document = json.loads(json.dumps(plan.to_dict()))
    spoil(document)
    with pytest.raises(PlanError, match=sentence):
        coordinator.jobs.submit(
            document, signed_by("ana", plan), name="ana", fingerprint=IDENTITIES["ana"].fingerprint
        )
    assert coordinator.store.jobs() == ()
    assert coordinator.streams.offers == []


@pytest.mark.parametrize("name", ["a\x00b", "a\nb", "a\x1b[2J"])
def test_a_silo_name_that_no_certificate_has_is_refused(make: Make, name: str) -> None:
    coordinator = make()
    with pytest.raises(PlanError, match="printable"):
        coordinator.submit(replace(network_plan(), silos=(name, "b", "c")))


def test_a_flood_of_proposals_is_stopped(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloister.federation.service.jobs.MAX_OPEN", 2)
    coordinator = make()
    first = coordinator.submit()
    coordinator.submit()
    with pytest.raises(PlanError, match="2 jobs are open"):
        coordinator.submit()
    coordinator.jobs.cancel(first, "op")
    coordinator.submit()


def test_a_local_plan_is_refused(make: Make) -> None:
    coordinator = make()
    plan = toy_plan(silos=1)
    with pytest.raises(PlanError, match="one process"):
        coordinator.submit(plan)


def test_only_who_signed_a_plan_may_propose_it(make: Make) -> None:
    coordinator = make()
    plan = network_plan()
    good = signed_by("ana", plan)
    other = signed_by("bob", plan)
    ana = IDENTITIES["ana"].fingerprint

    def submit(proposer: Mapping[str, str], name: str = "ana", fingerprint: str = ana) -> None:
        coordinator.jobs.submit(plan.to_dict(), proposer, name=name, fingerprint=fingerprint)

    for proposer, sentence in (
        (other, "proposer must be 'ana'"),
        ({**good, "signature": other["signature"]}, "signature does not match"),
        ({**good, "public": other["public"]}, "signature does not match"),
        ({**good, "signature": "00"}, "signature does not match"),
        ({**good, "signature": "xyz"}, "hexadecimal"),
        ({**good, "public": ""}, "signature does not match"),
        (signed_by("ana", network_plan()), "signature does not match"),
    ):
        with pytest.raises(PlanError, match=sentence):
            submit(proposer)
    with pytest.raises(PlanError, match="proposer must be 'bob'"):
        submit(good, "bob", IDENTITIES["bob"].fingerprint)
    submit(good)


def test_an_id_is_used_once(make: Make) -> None:
    coordinator = make()
    plan = network_plan()
    coordinator.submit(plan)
    with pytest.raises(PlanError, match="used before"):
        coordinator.submit(plan)
    again = replace(network_plan(), run_id=plan.run_id, study="another")
    with pytest.raises(PlanError, match="used before"):
        coordinator.submit(again, "bob")
    assert coordinator.job(plan.run_id).proposer["name"] == "ana"


def test_a_member_known_under_another_fingerprint_is_refused(make: Make) -> None:
    coordinator = make()
    until = toy_expiry()
    coordinator.store.seen("a", IDENTITIES["d"].fingerprint, until)
    with pytest.raises(PlanError, match="silo 'a' connects with fingerprint"):
        coordinator.submit()
    coordinator.store.seen("a", IDENTITIES["a"].fingerprint, until)
    coordinator.submit()


def test_a_member_that_was_never_connected_is_offered_the_job_when_it_comes(make: Make) -> None:
    streams = Streams(up={"a"})
    coordinator = make(streams)
    job = coordinator.submit()
    assert [silo for silo, _, _ in streams.offers] == ["a"]
    streams.up.add("b")
    coordinator.jobs.connected("b")
    assert [silo for silo, _, _ in streams.offers] == ["a", "b"]
    coordinator.jobs.connected("a")
    assert [silo for silo, _, _ in streams.offers] == ["a", "b", "a"], "an offer is repeated"
    coordinator.jobs.connected("stranger")
    assert len(streams.offers) == 3
    assert coordinator.job(job).state == "proposed"


# Decisions -----------------------------------------------------------------------------------


def test_a_job_runs_with_those_who_approved_if_they_are_enough(make: Make) -> None:
    coordinator = make()
    job = coordinator.submit()
    coordinator.decide(job, a=True, b="task 'fastlloyd' is not allowed", c=True)
    done = coordinator.ended(job)
    assert done.state == "done"
    assert done.approved == done.survivors == ("a", "c")
    assert {silo for silo, _ in coordinator.streams.asked} == {"a", "c"}
    told = [end for end in coordinator.streams.ends if end[0] == "b"]
    assert told
    assert {status for _, _, status, _ in told} == {"cancelled"}
    details = coordinator.jobs.details(done)
    reasons = {d["silo"]: d["reason"] for d in details["decisions"]}
    assert reasons["b"] == "task 'fastlloyd' is not allowed"


def test_a_job_with_too_few_approvals_is_declined_with_every_reason(make: Make) -> None:
    coordinator = make()
    job = coordinator.submit()
    coordinator.decide(job, a="epsilon is above the cap.", b=True, c="proposer is not known")
    declined = coordinator.job(job)
    assert declined.state == "declined"
    assert "1 of 3 silos approved, but the plan requires 2" in declined.reason
    assert "a: epsilon is above the cap; c: " in declined.reason
    assert "c: proposer is not known" in declined.reason
    assert {silo for silo, _, status, _ in coordinator.streams.ends if status == "declined"} == {
        *"abc"
    }
    assert coordinator.streams.asked == [], "no silo was asked for anything"


def test_a_job_ends_as_soon_as_too_many_declined(make: Make) -> None:
    coordinator = make()
    job, other = coordinator.submit(), coordinator.submit()
    coordinator.decide(job, a=True, b="no epsilon left.")
    assert coordinator.job(job).state == "proposed"
    coordinator.decide(other, b="no.", c="no.")
    declined = coordinator.job(other)
    assert declined.state == "declined"
    assert declined.reason.startswith("b: no; c: no; at most 1 of 3 silos can still approve, but")
    assert "a: " not in declined.reason
    told = {silo for silo, of, status, _ in coordinator.streams.ends if of == other}
    assert told == {*"abc"}, "these silos release their reservations"
    coordinator.streams.up = {"a", "b"}
    coordinator.jobs.shut_out("c", "the certificate of 'c' was revoked; enrol again.")
    assert "c: the certificate of 'c' was revoked" in coordinator.job(job).reason


def test_at_the_time_out_a_job_starts_with_those_who_approved(make: Make) -> None:
    coordinator = make()
    job = coordinator.submit()
    coordinator.decide(job, a=True, c=True)
    coordinator.jobs.look()
    assert coordinator.job(job).state == "proposed"
    coordinator.jobs.approval_timeout = 0.0
    coordinator.jobs.look()
    done = coordinator.ended(job)
    assert (done.state, done.approved) == ("done", ("a", "c"))
    coordinator.decide(job, b=True)
    last = coordinator.streams.ends[-1]
    assert last[:3] == ("b", job, "cancelled")
    assert "started without 'b'" in last[3]


def test_at_the_time_out_a_job_with_too_few_approvals_says_who_did_not_decide(make: Make) -> None:
    coordinator = make(approval_timeout=0.0)
    job = coordinator.submit()
    coordinator.decide(job, a=True)
    declined = coordinator.job(job)
    assert declined.state == "declined"
    assert "b: no decision in time" in declined.reason
    assert "c: no decision in time" in declined.reason


def test_the_clock_looks_by_itself(make: Make) -> None:
    coordinator = make(approval_timeout=0.1)
    coordinator.jobs.start()
    job = coordinator.submit()
    assert coordinator.ended(job).state == "declined"


def test_decisions_outlive_the_process(make: Make) -> None:
    streams = Streams()
    coordinator = make(streams)
    job = coordinator.submit()
    coordinator.decide(job, a=True, b=True)
    coordinator = make(streams)
    coordinator.jobs.start()
    assert coordinator.job(job).state == "proposed"
    coordinator.decide(job, c=True)
    assert coordinator.ended(job).state == "done"


def test_a_kill_between_the_last_decision_and_the_start_is_made_good(make: Make) -> None:
    streams = Streams()
    coordinator = make(streams)
    job = coordinator.submit()
    for silo in "abc":
        coordinator.store.decide(job, silo, True, "")
    coordinator = make(streams)
    coordinator.jobs.start()
    assert coordinator.ended(job).state == "done"


def test_a_decision_by_a_stranger_or_on_an_unknown_job_changes_nothing(make: Make) -> None:
    coordinator = make()
    job = coordinator.submit()
    coordinator.decide(job, d=True)
    coordinator.decide("0" * 32, a=True)
    assert coordinator.store.decisions(job) == ()
    assert [end[:2] for end in coordinator.streams.ends] == [("d", job), ("a", "0" * 32)]


def test_a_reason_is_cut_and_cleaned(make: Make) -> None:
    coordinator = make()
    job = coordinator.submit()
    coordinator.decide(job, a="x\x1b[31m\n" + "y" * 10_000)
    (decision,) = coordinator.store.decisions(job)
    assert len(decision.reason) == 500
    assert decision.reason.isprintable()


def test_what_a_job_waits_for_is_said(make: Make) -> None:
    streams = Streams(up={"a", "b"})
    coordinator = make(streams)
    job = coordinator.submit()
    coordinator.decide(job, a=True)
    waits = coordinator.jobs.details(coordinator.job(job))["waiting_for"]
    assert waits.startswith("decisions of b, c, for 0.0 more hours")
    gate = threading.Event()
    streams.before = lambda _number, _frames: gate.wait(60) and None
    coordinator.decide(job, b=True, c=True)
    waits = coordinator.jobs.details(coordinator.job(job))["waiting_for"]
    assert waits == "streams of c, 60 seconds in each exchange"
    gate.set()
    assert coordinator.ended(job).state == "done"


# Rounds --------------------------------------------------------------------------------------


class CountedNoise:
    """Zero noise that remembers each draw."""

    label = "counted"

    def __init__(self) -> None:
        self.draws = 0

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        self.draws += 1
        return ZeroNoise().draw(kind, scale, size)


def undisturbed(make: Make) -> int:
    """Return the number of exchanges of a job, and check that it works."""
    coordinator = make()
    job = coordinator.submit()
    coordinator.decide(job, a=True, b=True, c=True)
    assert coordinator.ended(job).state == "done"
    return coordinator.streams.exchanges


def test_a_job_stopped_before_any_exchange_goes_on_to_the_same_result(make: Make) -> None:
    exchanges = undisturbed(make)
    assert exchanges >= 7, "keys, two rounds of two legs, close"
    for stop_at in range(exchanges):
        streams = Streams(dies=lambda number, at=stop_at: number == at)
        noise = CountedNoise()
        coordinator = make(streams, new_noise=lambda n=noise: n)
        job = coordinator.submit()
        coordinator.decide(job, a=True, b=True, c=True)
        assert streams.dying.wait(60)
        committed = coordinator.store.counts()[1]
        frames = [coordinator.store.frame(job, t) for t in range(2)]
        streams.dies = lambda number: False
        coordinator = make(streams, new_noise=lambda n=noise: n)
        assert coordinator.job(job).state == "running"
        coordinator.jobs.start()
        done = coordinator.ended(job)
        assert (done.state, done.rounds_done) == ("done", 2), f"stopped at {stop_at}: {done}"
        for t, frame in enumerate(frames):
            assert frame is None or coordinator.store.frame(job, t) == frame
        assert coordinator.store.counts()[1] - committed <= 2
        rounds = [entry["round"] for entry in named(coordinator, "round") if entry["job"] == job]
        assert rounds == [0, 1], "each round is told once"
        streams.exchanges = 0


@pytest.mark.parametrize("lost", [False, True])
def test_a_coordinator_that_died_at_the_end_has_the_boxes_of_its_readers(
    make: Make, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """It dies before it asks for the boxes, or when it has some of them."""
    reader = Reader.of(IDENTITIES["ana"], "ana")
    plan = network_plan(profile="pairwise", collusion=1, min_silos=3, readers=(reader,))
    streams = Streams()
    coordinator = make(streams)
    closing = []

    def before(number: int, frames: Mapping[str, bytes]) -> None:
        if kind_of(next(iter(frames.values()))) == FrameKind.CLOSE:
            closing.append(number)
            if lost and len(closing) == 1:  # one silo answers, and its box is on disk
                frame = streams.clients["a", plan.run_id].handle(frames["a"])
                done = decode(plan, frame)
                assert isinstance(done, Done)
                coordinator.store.record(plan.run_id, box_name("a", reader), done.boxes[0])

    streams.before = before
    streams.dies = lambda number: len(closing) == 1
    job = coordinator.submit(plan)
    coordinator.decide(job, a=True, b=True, c=True)
    assert streams.dying.wait(60)
    early = coordinator.store.answer_to(job, box_name("a", reader))
    assert (early is not None) == lost
    coordinator.close()
    streams.dies = lambda number: False
    again = make(streams)
    again.jobs.start()
    assert again.ended(job).state == "done"
    assert len(closing) == 2
    boxes = {silo: again.jobs.box(again.job(job), silo, reader.fingerprint) for silo in "abc"}
    assert all(boxes.values())
    assert early in (None, boxes["a"])
    assert open_boxes(plan, IDENTITIES["ana"], boxes.items()).silos == ("a", "b", "c")  # type: ignore[arg-type]
    assert again.jobs.box(again.job(job), "a", IDENTITIES["bob"].fingerprint) is None


def test_no_noise_is_drawn_for_a_round_that_was_answered(make: Make) -> None:
    streams = Streams()
    noise = CountedNoise()
    coordinator = make(streams, new_noise=lambda: noise)
    job = coordinator.submit()
    streams.dies = lambda number: coordinator.store.frame(job, 1) is not None
    coordinator.decide(job, a=True, b=True, c=True)
    assert streams.dying.wait(60)
    coordinator.close()
    drawn = noise.draws
    streams.dies = lambda number: False
    again = make(streams, new_noise=lambda: noise)
    again.jobs.start()
    assert again.ended(job).state == "done"
    assert noise.draws == drawn


def test_two_lives_draw_other_noise_but_a_round_keeps_its_first_answer(make: Make) -> None:
    streams = Streams()
    seeds = iter((1, 2))
    coordinator = make(streams, new_noise=lambda: SimulatedNoise(next(seeds)))
    job = coordinator.submit()
    streams.dies = lambda number: coordinator.store.frame(job, 0) is not None
    coordinator.decide(job, a=True, b=True, c=True)
    assert streams.dying.wait(60)
    first = coordinator.store.frame(job, 0)
    streams.dies = lambda number: False
    again = make(streams, new_noise=lambda: SimulatedNoise(next(seeds)))
    again.jobs.start()
    assert again.ended(job).state == "done"
    assert again.store.frame(job, 0) == first


def test_a_refusal_reaches_the_coordinator_with_its_reason(make: Make) -> None:
    streams = Streams(refusing={"b": "lifetime cap of 1 would be exceeded"})
    coordinator = make(streams)
    job = coordinator.submit()
    coordinator.decide(job, a=True, b=True, c=True)
    done = coordinator.ended(job)
    assert (done.state, done.survivors) == ("done", ("a", "c"))
    refusals = coordinator.jobs.details(done)["refusals"]
    assert refusals["b"] == "lifetime cap of 1 would be exceeded"
    assert named(coordinator, "refusal")[0]["silo"] == "b"


def test_too_few_silos_end_a_job_with_the_reason_and_nothing_is_released(make: Make) -> None:
    streams = Streams(refusing={"b": "no", "c": "no"})
    coordinator = make(streams)
    job = coordinator.submit()
    coordinator.decide(job, a=True, b=True, c=True)
    failed = coordinator.ended(job)
    assert failed.state == "failed"
    assert failed.reason
    assert coordinator.store.counts()[1] == 0
    wait_for(lambda: len(streams.ends) == 3)
    assert {status for _, _, status, _ in streams.ends} == {"failed"}


def test_a_cancelled_job_releases_nothing_more(make: Make) -> None:
    streams = Streams()
    coordinator = make(streams)
    job = coordinator.submit()
    reached, gate = threading.Event(), threading.Event()

    def hold(_: int, frames: Mapping[str, bytes]) -> None:
        if coordinator.store.frame(job, 0) is not None:
            reached.set()
            gate.wait(60)

    streams.before = hold
    coordinator.decide(job, a=True, b=True, c=True)
    assert reached.wait(60)
    assert coordinator.jobs.cancel(job, "ana")
    assert not coordinator.jobs.cancel(job, "ana"), "a job ends once"
    gate.set()
    wait_for(lambda: not coordinator.jobs._running)
    known = coordinator.job(job)
    assert (known.state, known.reason) == ("cancelled", "cancelled by ana.")
    assert coordinator.store.counts()[1] == 1
    assert coordinator.store.frame(job, 1) is None
    assert {status for _, _, status, _ in streams.ends} == {"cancelled"}
    coordinator = make(streams)
    coordinator.jobs.start()
    assert coordinator.job(job).state == "cancelled", "it is not taken up again"


def test_a_proposed_job_can_be_cancelled(make: Make) -> None:
    coordinator = make()
    job = coordinator.submit()
    assert coordinator.jobs.cancel(job, "op")
    coordinator.decide(job, a=True, b=True, c=True)
    assert coordinator.job(job).state == "cancelled"
    assert coordinator.streams.asked == []


def test_a_silo_that_comes_back_is_told_how_its_jobs_ended(make: Make) -> None:
    streams = Streams()
    coordinator = make(streams)
    job = coordinator.submit()
    streams.up.discard("c")
    coordinator.jobs.cancel(job, "ana")
    streams.ends.clear()
    streams.up.add("c")
    coordinator.jobs.connected("c")
    assert streams.ends == [("c", job, "cancelled", "cancelled by ana.")]


def test_a_withdrawal_in_a_running_job_is_kept_as_a_refusal(make: Make) -> None:
    streams = Streams()
    coordinator = make(streams)
    job = coordinator.submit()
    gate = threading.Event()
    streams.before = lambda _number, _frames: gate.wait(60) and None
    coordinator.decide(job, a=True, b=True, c=True)
    coordinator.decide(job, b="data are being moved")
    gate.set()
    coordinator.ended(job)
    assert coordinator.store.refusals(job)["b"] == "withdrawn: data are being moved"


def test_a_job_waits_for_a_database_that_went_away(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloister.federation.service.jobs._RETRY", 0.0)
    coordinator = make()
    job = coordinator.submit()
    commit = coordinator.store.commit
    failures = [LedgerError("database is full."), LedgerError("database is full.")]

    def failing(**fields: Any) -> bytes:
        if failures:
            raise failures.pop()
        return commit(**fields)

    monkeypatch.setattr(coordinator.store, "commit", failing)
    coordinator.jobs.start()
    coordinator.decide(job, a=True, b=True, c=True)
    assert coordinator.ended(job).state == "done"
    assert failures == []


def test_an_unexpected_error_fails_the_job_without_showing_its_message(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = make()
    job = coordinator.submit()

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a record: 42")

    monkeypatch.setattr("cloister.federation.service.jobs.run_rounds", broken)
    coordinator.decide(job, a=True, b=True, c=True)
    failed = coordinator.ended(job)
    assert failed.state == "failed"
    assert failed.reason == "unexpected ZeroDivisionError; see the log."


def test_what_happens_is_in_the_audit_file_in_order(make: Make) -> None:
    coordinator = make()
    coordinator.jobs.start()
    job = coordinator.submit()
    coordinator.decide(job, a=True, b="not today", c=True)
    coordinator.ended(job)
    wait_for(lambda: named(coordinator, "finished"))
    assert [entry["event"] for entry in events(coordinator)] == [
        "start",
        "proposed",
        *["decided"] * 3,
        "started",
        "round",
        "round",
        "finished",
    ]
    verify(coordinator.folder / "audit.jsonl", coordinator.audit.head)


def test_several_jobs_run_side_by_side(make: Make) -> None:
    coordinator = make()
    ids = [coordinator.submit() for _ in range(4)]
    for job in ids:
        coordinator.decide(job, a=True, b=True, c=True)
    assert [coordinator.ended(job).state for job in ids] == ["done"] * 4


# ---------------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def toy_expiry() -> Any:
    from datetime import UTC, datetime

    return datetime(2040, 1, 1, tzinfo=UTC)


def test_the_noise_is_the_systems_by_default() -> None:
    from cloister.privacy.noise import DiscreteNoise

    assert Jobs.__dataclass_fields__["new_noise"].default is DiscreteNoise
