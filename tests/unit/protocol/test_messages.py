"""Frames: the vectors of a second implementation, and that no broken frame is ever read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.core.errors import LedgerError, RemoteProtocolError
from cloister.hazmat.signing import Identity
from cloister.privacy.chain import SignedStatement, Statement, canonical
from cloister.protocol.exchanges import Kind
from cloister.protocol.messages import (
    Adopt,
    Adopted,
    AskState,
    Close,
    Confirm,
    Confirmation,
    Deal,
    Done,
    Invite,
    Keys,
    Message,
    Open,
    Ready,
    Reply,
    Roster,
    SealedState,
    Secrets,
    Shares,
    Unmask,
    Upload,
    decode,
    decode_statement,
    encode,
    encode_statement,
)
from cloister.protocol.plan import Plan
from cloister.tasks import TASKS
from cloister.testing import toy_plan

VECTORS = Path(__file__).parents[2] / "vectors"
FRAMES, FRAMES_2 = (
    json.loads((VECTORS / name).read_text()) for name in ("frames.json", "frames_2.json")
)
PLAN = Plan.from_dict(json.loads(FRAMES["plan"]), TASKS)
PLAN_2 = Plan.from_dict(json.loads(FRAMES_2["plan"]))
"""Of protocol 2, and of a task that is not installed here."""
WORDS = np.array([int(word, 16) for word in FRAMES["words"]], dtype=np.uint64)
BAD = sorted(VECTORS.glob("frame_bad_*.json"))
BAD_2 = sorted(VECTORS.glob("frame_2_bad_*.json"))
TAG = bytes(range(32))
SENT = bytes([9] * 64)


def same(left: Message, right: Message) -> bool:
    """Compare messages, whose ring elements are arrays."""
    mine, theirs = dict(vars(left)), dict(vars(right))
    elements = [fields.pop("elements", np.empty(0)) for fields in (mine, theirs)]
    return type(left) is type(right) and mine == theirs and np.array_equal(*elements)


def statement(number: int) -> bytes:
    said = Statement(
        dataset="ages",
        study="default",
        job=PLAN.run_id,
        plan=PLAN.digest.hex(),
        events=PLAN.events(),
        head=bytes([number + 151] * 32).hex(),
        height=number + 7,
    )
    return encode_statement(said, bytes([number + 150] * 64))


def test_a_statement_has_the_text_of_the_vector_and_is_signed_under_its_label() -> None:
    case, identity = FRAMES["statement"], Identity.new()
    said = Statement.read(case["text"])
    assert said.text == case["text"]
    signed = SignedStatement.of(said, identity)
    assert signed.genuine
    public = Ed25519PublicKey.from_public_bytes(identity.public)
    public.verify(signed.signature, bytes.fromhex(case["signed"]))
    assert not replace(signed, text=case["text"].replace("7", "8")).genuine
    assert not replace(signed, public=Identity.new().public).genuine


@pytest.mark.parametrize(
    "change",
    [
        {"height": -1},
        {"height": 2**63},
        {"height": True},
        {"height": 1.0},
        {"head": "ab"},
        {"plan": "x" * 64},
        {"job": 3},
        {"events": {"event": "gaussian"}},
        {"events": []},
        {"more": 1},
    ],
)
def test_what_is_no_statement_cannot_be_read(change: dict) -> None:
    fields = json.loads(FRAMES["statement"]["text"])
    for text in (canonical({**fields, **change}), "", "{", "[" * 100_000):
        with pytest.raises(LedgerError, match="cannot be read"):
            Statement.read(text)


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_a_statement_is_taken_for_its_silo_and_its_job_alone() -> None:
    identity, other = Identity.new(), Identity.new()
    said = Statement.read(FRAMES["statement"]["text"])
    said = replace(said, job=PLAN.run_id, plan=PLAN.digest.hex(), events=PLAN.events())
    data = encode_statement(said, SignedStatement.of(said, identity).signature)
    taken = decode_statement(PLAN, identity.public, data)
    assert taken.said == said == Statement.read(taken.text)
    assert replace(taken, text=FRAMES["statement"]["text"]).said.plan != said.plan
    elsewhere = Plan.from_dict({**PLAN.to_dict(), "run_id": "0" * 32}, TASKS)
    for plan, public, told in (
        (PLAN, other.public, data),
        (elsewhere, identity.public, data),
        (PLAN, identity.public, data + b"x"),
        (PLAN, identity.public, data[:-1]),
        (PLAN, identity.public, data[:50]),
        (PLAN, identity.public, b""),
        *(
            (PLAN, identity.public, data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
            for i in range(len(data))
        ),
    ):
        with pytest.raises(RemoteProtocolError, match="statement"):
            decode_statement(plan, public, told)


def message(case: dict, plan: Plan) -> Message:
    """Build the message a vector describes."""
    fields, silos = case["fields"], PLAN.silos
    confirmations = tuple(
        Confirmation(
            silos[i],
            bytes([i] * 32),
            bytes([i + 100] * 32),
            bytes([i + 200] * 64),
            bytes([i + 220] * 64),
            b"" if i % 2 else statement(i),
        )
        for i in fields.get("confirmations", ())
    )
    opened = {silos[i]: bytes([i + 50] * 32) for i in fields.get("opened", ())}
    t = 1 if confirmations or case["kind"] in ("reply", "done") else 0

    def keys(i: int) -> Keys:
        head, seen = bytes([3] * 32), {silos[2 - i]: 9}
        key = bytes([i] * 32)
        signed = bytes([6] * 64)
        per_round = [bytes([20 + t] * 32) for t in range(2 * plan.rounds)]
        per_round = per_round if plan.profile == "pairwise" else []
        pair, commitments = (tuple(per_round[i : i + plan.rounds]) for i in (0, plan.rounds))
        box, time = bytes([2] * 32), 1_750_000_000
        return Keys(silos[i], key, box, head, time, pair, commitments, seen, signed)

    match case["kind"]:
        case "open":
            return Open(t, confirmations, opened)
        case "invite":
            return Invite()
        case "keys":
            return keys(0)
        case "roster":
            return Roster(tuple(keys(i) for i in fields["keys"]), aggregator=TAG)
        case "secrets":
            return Secrets("south", (b"one", b"", b"three"))
        case "deal":
            return Deal(tuple(silos[i] for i in fields["cohort"]), (b"one", b"two"), signature=SENT)
        case "ready":
            acceptance = bytes([8] * 64)
            return Ready("south", TAG, TAG[::-1], TAG * 2, SENT, TAG, acceptance, statement(0))
        case "unmask":
            return Unmask(1, confirmations)
        case "shares":
            shares = {silos[i]: bytes([i + 70] * 66) for i in fields["shares"]}
            return Shares(1, "north", TAG, TAG * 2, shares)
        case "askstate":
            return AskState(1)
        case "sealedstate":
            return SealedState(1, "north", b"box")
        case "adopt":
            return Adopt(1, silos[fields["lead"]], b"box")
        case "adopted":
            return Adopted(1, "south", TAG)
        case "close":
            return Close(t, confirmations)
        case "upload":
            return Upload(1 if fields["sender"] == "south" else 0, fields["sender"], TAG, WORDS)
        case "reply":
            return Reply(t, tuple(silos[i] for i in fields["survivors"]), WORDS, signature=SENT)
        case "confirm":
            told = statement(0) if "statement" in fields else b""
            return Confirm(t, fields["sender"], TAG, TAG[::-1], TAG * 2, SENT, told)
        case _:
            return Done(t, fields["sender"], tuple(box.encode() for box in fields.get("boxes", ())))


@pytest.mark.parametrize("number", range(len(FRAMES["frames"])))
@pytest.mark.parametrize(("plan", "vectors"), [(PLAN, FRAMES), (PLAN_2, FRAMES_2)], ids=[1, 2])
def test_frames_follow_the_vectors(plan: Plan, vectors: dict, number: int) -> None:
    case = vectors["frames"][number]
    expected = message(case, plan)
    assert encode(plan, expected).hex() == case["frame"]
    assert same(decode(plan, bytes.fromhex(case["frame"])), expected)


@pytest.mark.parametrize("path", BAD + BAD_2, ids=lambda path: path.stem)
def test_a_bad_frame_is_refused_with_its_reason(path: Path) -> None:
    case = json.loads(path.read_text())
    with pytest.raises(RemoteProtocolError, match=case["error"]) as caught:
        decode(PLAN if path in BAD else PLAN_2, bytes.fromhex(case["frame"]))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(("paths", "prefix"), [(BAD, "frame_bad_"), (BAD_2, "frame_2_bad_")])
def test_there_is_a_bad_frame_for_every_field(paths: list[Path], prefix: str) -> None:
    assert {path.stem.removeprefix(prefix) for path in paths} >= {
        *("magic", "version", "unknown_kind", "session", "digest", "round", "attempt"),
        *("frac_bits", "ring", "stranger", "body_length", "cut_body", "one_word_short"),
    }


names = st.permutations(PLAN.silos).flatmap(
    lambda order: st.integers(0, 3).map(lambda n: tuple(order[:n]))
)
hashes = st.binary(min_size=32, max_size=32)
signatures = st.binary(min_size=64, max_size=64)
boxes = st.lists(st.binary(max_size=40), max_size=3).map(tuple)
opened = names.flatmap(
    lambda order: st.tuples(*(hashes for _ in order)).map(
        lambda secrets: dict(zip(order, secrets, strict=True))
    )
)
words = st.lists(st.integers(0, 2**64 - 1), min_size=4, max_size=4).map(
    lambda w: np.array(w, dtype=np.uint64)
)
confirmations = names.flatmap(
    lambda order: st.tuples(
        *(st.builds(Confirmation, st.just(n), hashes, hashes, signatures) for n in order)
    )
)
rounds, silos = st.integers(0, 1), st.sampled_from(PLAN.silos)
messages = st.one_of(
    st.builds(Open, rounds, confirmations, opened),
    st.builds(Close, rounds, confirmations, opened),
    st.builds(Unmask, rounds, confirmations),
    st.builds(Deal, names, boxes),
    st.builds(Secrets, silos, boxes),
    st.builds(Ready, silos, hashes, hashes, signatures),
    st.builds(Adopted, rounds, silos, hashes),
    st.builds(Upload, rounds, silos, hashes, words),
    st.builds(Reply, rounds, names, words),
    st.builds(Confirm, rounds, silos, hashes, hashes, signatures),
    st.builds(Done, rounds, silos, st.lists(st.binary(max_size=9), max_size=3).map(tuple)),
)


@given(messages)
def test_decoding_undoes_encoding(sent: Message) -> None:
    assert same(decode(PLAN, encode(PLAN, sent)), sent)


@given(messages, st.data())
def test_a_frame_cut_anywhere_or_grown_is_refused(sent: Message, data: st.DataObject) -> None:
    frame = encode(PLAN, sent)
    size = data.draw(st.integers(0, len(frame) - 1))
    for broken in (frame[:size], frame + frame[size:]):
        with pytest.raises(RemoteProtocolError):
            decode(PLAN, broken)


@settings(max_examples=300)  # every byte of a header has its turn
@given(messages, st.data())
def test_a_changed_byte_is_refused_or_changes_the_message(
    sent: Message, data: st.DataObject
) -> None:
    frame = bytearray(encode(PLAN, sent))
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] ^= data.draw(st.integers(1, 255))
    try:
        read = decode(PLAN, bytes(frame))
    except RemoteProtocolError:
        return
    assert not same(read, sent)


@given(st.binary(max_size=300))
def test_noise_is_refused_and_nothing_else_happens(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(PLAN, frame)


def test_a_frame_of_another_run_of_the_same_plan_is_refused() -> None:
    one = toy_plan()
    other = Plan.from_dict({**one.to_dict(), "run_id": "0" * 32}, TASKS)
    with pytest.raises(RemoteProtocolError, match="another plan or run"):
        decode(other, encode(one, Open(0)))


def test_every_frame_of_a_kind_has_the_same_length() -> None:
    plan = toy_plan()
    zero, full = (np.full(6, value, dtype=np.uint64) for value in (0, 2**64 - 1))
    for silo in plan.silos:
        lengths = {len(encode(plan, Upload(t, silo, TAG, w))) for t in (0, 1) for w in (zero, full)}
        assert len(lengths) == 1


def test_a_message_shows_neither_words_nor_tags() -> None:
    marked = np.array([123456789123456789] * 4, dtype=np.uint64)
    mac = b"\xabSECRETMAC" + bytes(22)
    shown = [
        repr(Upload(0, "north", mac, marked)),
        repr(Reply(0, ("north",), marked)),
        repr(Confirm(0, "north", TAG, mac)),
        repr(Open(1, (Confirmation("north", TAG, mac),))),
        repr(Confirmation("north", TAG, mac)),
    ]
    assert not [text for text in shown if "123456789" in text or "SECRET" in text]


def test_kinds_are_numbered_for_ever() -> None:
    assert {kind.name: kind.value for kind in Kind} == {
        "OPEN": 1,
        "UPLOAD": 2,
        "REPLY": 3,
        "CONFIRM": 4,
        "CLOSE": 5,
        "DONE": 6,
        "INVITE": 7,
        "KEYS": 8,
        "ROSTER": 9,
        "SECRETS": 10,
        "DEAL": 11,
        "READY": 12,
        "UNMASK": 13,
        "SHARES": 14,
        "ASK_STATE": 15,
        "STATE": 16,
        "ADOPT": 17,
        "ADOPTED": 18,
        "BEGIN": 19,
        "BEGUN": 20,
    }
