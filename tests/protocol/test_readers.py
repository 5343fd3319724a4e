"""Readers of a result: what silos seal to them, what they accept, and what nobody else can open."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister.app.in_process import run_plan
from cloister.core.errors import PlanError, RemoteProtocolError, TransportError
from cloister.hazmat import kex
from cloister.hazmat.prg import PadContext, Usage, derive, expand
from cloister.hazmat.ring import from_bytes
from cloister.hazmat.signing import Identity
from cloister.protocol import plan as plans
from cloister.protocol import readers
from cloister.protocol.aggregator import Aggregator, box_name
from cloister.protocol.client import Client
from cloister.protocol.exchanges import Kind
from cloister.protocol.journal import MemoryJournal
from cloister.protocol.keys import round_keys
from cloister.protocol.messages import VECTOR, Close, Done, Reply, decode, encode, kind_of
from cloister.protocol.plan import Plan
from cloister.protocol.readers import Reader, open_boxes
from cloister.secagg.masks import PairwiseMask
from cloister.testing import InProcess, Wire, ZeroNoise, toy_federation, toy_records

ANA, BOB, EVE = Identity.new(), Identity.new(), Identity.new()
READERS = (Reader.of(ANA, "ana"), Reader.of(BOB, "bob"))


class Ended:
    """A job with readers that came to its end, and what the coordinator has of it."""

    def __init__(self, silos: int = 4, **changes: Any) -> None:
        plan, identities = toy_federation(silos, readers=READERS, **changes)
        self.journal = MemoryJournal()
        self.journals = {"": self.journal, **{name: MemoryJournal() for name in plan.silos}}
        self.wire = Wire(plan, identities=identities, journals=self.journals)
        self.states = self.wire.run()
        self.plan, self.identities = plan, identities

    def boxes(self, reader: Reader = READERS[0]) -> dict[str, bytes]:
        """Return what silos sealed to a reader."""
        kept = dict(self.journal.recorded(self.plan.run_id))
        return {silo: kept[box_name(silo, reader)] for silo in self.plan.silos}

    def sums(self, silo: str) -> bytes:
        """Return what a silo of the job signs."""
        return readers._opened(self.plan, silo, ANA, self.boxes()[silo])


@pytest.fixture(scope="module")
def job() -> Ended:
    return Ended()


def words(sums: Mapping[str, Any], plan: Plan) -> list[np.ndarray]:
    return [
        from_bytes(b64decode(done["words"]), plan.length(t))
        for t, done in enumerate(sums["rounds"])
    ]


def test_each_reader_learns_what_the_silos_released(job: Ended) -> None:
    released = [one.words for one in job.wire.clients["silo-0"].sums]
    for identity, reader in ((ANA, READERS[0]), (BOB, READERS[1])):
        vouched = open_boxes(job.plan, identity, job.boxes(reader).items())
        assert vouched.silos == job.plan.silos
        assert vouched.others == {}
        assert vouched.sums["plan_digest"] == job.plan.digest.hex()
        assert vouched.sums["plan"] == json.loads(job.plan.canonical_json())
        assert [w.tolist() for w in words(vouched.sums, job.plan)] == [w.tolist() for w in released]


def test_nobody_else_opens_a_box_and_no_box_serves_another_place(job: Ended) -> None:
    with pytest.raises(PlanError, match="is not a reader of job"):
        open_boxes(job.plan, EVE, job.boxes().items())
    box = job.boxes()["silo-0"]
    other = replace(job.plan, study="other")
    for plan, silo, identity in (
        (job.plan, "silo-0", BOB),
        (job.plan, "silo-1", ANA),
        (other, "silo-0", ANA),
        (job.plan, "silo-0", EVE),
    ):
        with pytest.raises(RemoteProtocolError, match="sealed box was modified"):
            readers._opened(plan, silo, identity, box)
    for broken in (b"", box[:31], box[:40], box[:-1], box + b"\0", bytes(32) + box[32:]):
        with pytest.raises(RemoteProtocolError):
            readers._opened(job.plan, "silo-0", ANA, broken)
    for place in (0, 33, len(box) - 1):
        flipped = box[:place] + bytes([box[place] ^ 1]) + box[place + 1 :]
        with pytest.raises(RemoteProtocolError, match="sealed box was modified"):
            readers._opened(job.plan, "silo-0", ANA, flipped)


def test_each_box_has_a_fresh_key(job: Ended) -> None:
    shown = [box[:32] for one in READERS for box in job.boxes(one).values()]
    assert len(set(shown)) == len(shown) == 8


def forged(job: Ended, silo: str, signer: Identity, sums: bytes) -> bytes:
    """Return a box that a silo, or the coordinator, made up."""
    return readers.seal(job.plan, silo, signer, sums)[0]


def test_a_silo_that_seals_other_words_is_named_and_the_majority_counts(job: Ended) -> None:
    boxes, sums = job.boxes(), job.sums("silo-2")
    document = json.loads(sums)
    document["rounds"][0]["words"] = "A" * len(document["rounds"][0]["words"])
    lie = json.dumps(document).encode()
    boxes["silo-1"] = forged(job, "silo-1", job.identities["silo-1"], lie)
    vouched = open_boxes(job.plan, ANA, boxes.items())
    assert vouched.sums == json.loads(sums)
    assert vouched.silos == ("silo-0", "silo-2", "silo-3")
    assert vouched.others == {"silo-1": "it signed other sums."}
    boxes["silo-3"] = forged(job, "silo-3", job.identities["silo-3"], lie)
    with pytest.raises(RemoteProtocolError, match="2 silos vouch for the same result") as error:
        open_boxes(job.plan, ANA, boxes.items())
    assert "the plan requires 3" in str(error.value)
    assert "it signed other sums" in str(error.value)


def test_only_silos_of_the_plan_vouch_each_with_its_own_key(job: Ended) -> None:
    sums = job.sums("silo-0")
    boxes = job.boxes()
    for signer in (EVE, job.identities["silo-0"]):
        boxes["silo-1"] = forged(job, "silo-1", signer, sums)
        vouched = open_boxes(job.plan, ANA, boxes.items())
        assert vouched.others == {
            "silo-1": "its box is not signed by the silo that the plan names."
        }
    boxes["silo-1"] = b"x"
    assert "exclude the peer" in open_boxes(job.plan, ANA, boxes.items()).others["silo-1"]
    few = dict(list(job.boxes().items())[:2])
    with pytest.raises(RemoteProtocolError, match="2 silos vouch"):
        open_boxes(job.plan, ANA, few.items())
    with pytest.raises(RemoteProtocolError, match="0 silos vouch"):
        open_boxes(job.plan, ANA, ())


def test_the_key_of_a_box_is_the_readers_alone_and_bound_to_the_identity() -> None:
    reader = READERS[0]
    assert bytes.fromhex(reader.box) == kex.public_of(derive(ANA.seed, Usage.READER_KEY, b""))
    assert Reader.of(ANA, "ana") == reader
    assert reader.genuine
    assert reader.fingerprint == ANA.fingerprint


def test_a_card_is_read_back_and_no_other_file(tmp_path: Path) -> None:
    card = tmp_path / "ana.reader"
    card.write_text(json.dumps(READERS[0].card()))
    assert Reader.load(card) == READERS[0]
    good = READERS[0].card()
    for text in (
        "",
        "[]",
        "{}",
        "[" * 20_000,
        json.dumps({**good, "box": READERS[1].box}),
        json.dumps({**good, "name": "bob"}),
        json.dumps({**good, "format": "cloister-reader/2"}),
        json.dumps({**good, "more": 1}),
        json.dumps(good)[:-1],
    ):
        card.write_text(text)
        with pytest.raises(PlanError, match="is no card of a reader, or was changed"):
            Reader.load(card)
    with pytest.raises(PlanError, match="cannot be read"):
        Reader.load(tmp_path / "none")


# --- Repeated and interrupted ---------------------------------------------------------------------


def close_of(job: Ended) -> bytes:
    silo = job.plan.silos[0]
    asked = [request for request, _ in job.journals[silo].recorded(job.plan.run_id)]
    return next(one for one in asked if one[:4] == b"CLST" and kind_of(one) == Kind.CLOSE)


def again(job: Ended, silo: str) -> Client:
    """Return the client of a silo after a restart."""
    return Client(
        job.plan,
        silo,
        [toy_records(job.plan)[silo]],
        None,
        job.journals[silo],
        identity=job.identities[silo],
    )


def test_a_repeated_end_is_answered_with_the_same_boxes() -> None:
    job = Ended(3)
    close, silo = close_of(job), "silo-0"
    client = job.wire.clients[silo]
    first = client.handle(close)
    assert client.handle(close) == first
    assert again(job, silo).handle(close) == first
    # A coordinator that restarts may show the confirmations in another order.
    message = decode(job.plan, close)
    assert isinstance(message, Close)
    other = encode(job.plan, replace(message, confirmations=message.confirmations[::-1]))
    assert other != close
    assert client.handle(other) == again(job, silo).handle(other) == first
    done = decode(job.plan, first)
    assert isinstance(done, Done)
    assert done.boxes[0] == job.boxes()[silo]


def test_a_coordinator_that_restarts_before_the_end_gets_the_same_boxes() -> None:
    job = Ended(3)
    before = job.boxes()
    restarted = MemoryJournal()
    for t in range(job.plan.rounds):
        frame = job.journal.frame(job.plan.run_id, t)
        assert frame is not None
        event = job.plan.event(t)
        restarted.commit(job=job.plan.run_id, round=t, event=event, frame=frame)
    for request, answer in job.journal.recorded(job.plan.run_id):
        if not request.startswith(b"result/"):
            restarted.record(job.plan.run_id, request, answer)
    job.wire.aggregator = Aggregator(job.plan, ZeroNoise(), restarted)
    job.wire.run()
    job.journal = restarted
    assert job.boxes() == before


def test_the_coordinator_keeps_the_first_boxes_of_a_silo_and_as_many_as_readers() -> None:
    job = Ended(3)
    aggregator, silo = job.wire.aggregator, "silo-0"
    t, boxes = job.plan.rounds - 1, (job.boxes()[silo], job.boxes(READERS[1])[silo])
    aggregator.accept(silo, encode(job.plan, Done(t, silo, boxes)))
    with pytest.raises(RemoteProtocolError, match="sealed two different results"):
        aggregator.accept(silo, encode(job.plan, Done(t, silo, (b"x", boxes[1]))))
    for few in ((), boxes[:1], (*boxes, b"")):
        with pytest.raises(RemoteProtocolError, match="do not fit the plan's readers"):
            aggregator.accept(silo, encode(job.plan, Done(t, silo, few)))
    assert job.boxes()[silo] == boxes[0]


class Silent(InProcess):
    """A network that loses the receipts of some silos."""

    lost: tuple[str, ...] = ()

    def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = super().exchange(frames)
        closing = any(kind_of(frame) == Kind.CLOSE for frame in frames.values())
        return {s: a for s, a in answers.items() if not closing or s not in self.lost}


@pytest.mark.parametrize(("lost", "ends"), [(1, True), (2, False)])
def test_a_job_is_done_when_its_readers_can_tell_the_result(lost: int, ends: bool) -> None:
    plan, identities = toy_federation(4, readers=READERS[:1])
    wire = Wire(plan, identities=identities, make_transport=Silent)
    wire.transport.lost = plan.silos[:lost]  # type: ignore[attr-defined]
    if ends:
        wire.run()
    else:
        with pytest.raises(TransportError, match="2 silos confirmed the end of the job, it requ"):
            wire.run()


# --- Pads -----------------------------------------------------------------------------------------


def test_what_the_coordinator_opens_has_a_pad_of_each_survivor_that_silos_take_off() -> None:
    job = Ended(3)
    plan, aggregator = job.plan, job.wire.aggregator
    client = job.wire.clients["silo-0"]
    masker = client._masker
    assert isinstance(masker, PairwiseMask)
    deal_of, roster = aggregator._cohort, aggregator._roster
    assert roster is not None
    keys = round_keys(roster, deal_of)
    for t in range(plan.rounds):
        reply = decode(plan, job.journal.frame(plan.run_id, t) or b"")
        assert isinstance(reply, Reply)
        joined = dict(job.journal.recorded(plan.run_id))[f"opened/{t}".encode()]
        opened = {s: joined[32 * i : 32 * i + 32] for i, s in enumerate(plan.silos)}
        context = PadContext(plan.digest.hex(), t, 0, VECTOR, "")
        size = reply.elements.size
        seen = reply.elements - keys.left_over(context, size, plan.silos, reply.survivors, opened)
        released = client.sums[t].words
        assert not (seen == released).any()
        pads = sum(
            expand(masker.group.key, context.of(silo), size, Usage.PAD) for silo in reply.survivors
        )
        assert (seen - pads == released).all()


def test_frames_of_protocol_2_have_no_pads() -> None:
    plan, identities = toy_federation(3)
    old = replace(plan, protocol=2)
    wire = Wire(old, identities=identities)
    states = wire.run()
    masker = wire.clients["silo-0"]._masker
    assert isinstance(masker, PairwiseMask)
    assert not masker.padded
    expected = Wire(plan, wire.records, identities=identities).run()
    assert (states[0]["centres"] == expected[0]["centres"]).all()


def test_a_plan_bounds_the_length_of_what_is_sealed(
    job: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = job.wire.clients["silo-0"]
    real = len(client.handle(close_of(job)))
    monkeypatch.setattr(plans, "MAX_RESULTS", real)
    with pytest.raises(PlanError, match="results for 2 readers"):
        job.plan.check_network()
    monkeypatch.setattr(plans, "MAX_RESULTS", 2 * real)
    job.plan.check_network()


def test_a_run_in_one_process_has_no_readers() -> None:
    plan, _ = toy_federation(3, readers=READERS)
    with pytest.raises(PlanError, match="readers must be empty for a run in one process"):
        run_plan(plan, {silo: [r] for silo, r in toy_records(plan).items()})
