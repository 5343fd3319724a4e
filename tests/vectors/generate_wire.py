"""Make the vectors of pads, tags, plan digests and frames, by a second implementation.

This file shares no code with the package: HKDF (RFC 5869) is a few lines of ``hmac``, ChaCha20
(RFC 8439) is written out on Python's integers and checked against the RFC's own block, a plan is
a dictionary, and a frame is put together with ``struct``. Only the standard library is used. Run it
to write the vectors again::

    python tests/vectors/generate_wire.py

It writes ``prg.json``; ``plans.json``; ``frames.json``, of protocol 1 under a group mask, and
``frames_2.json``, of protocol 2 under pairwise masks; and one ``plan_bad_*.json``,
``frame_bad_*.json`` and ``frame_2_bad_*.json`` for each way in which a plan or a frame can be
wrong; those hold it and the text of the error it must give.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

# --- Pads and tags --------------------------------------------------------------------------------

USAGES = {
    "MASK": b"cloister/1/mask",
    "PAD": b"cloister/1/pad",
    "STATE_TAG": b"cloister/1/state-tag",
    "STATE_BOX": b"cloister/1/state-box",
    "CONFIRM": b"cloister/1/confirm",
    "BOX_KEY": b"cloister/1/box-key",
    "GROUP_PART": b"cloister/1/group-part",
    "PAIR_KEY": b"cloister/1/pair-key",
    "SELF_SEED": b"cloister/1/self-seed",
    "SHARING": b"cloister/1/sharing",
    "NOISE": b"cloister/1/noise",
    "COINS": b"cloister/1/coins",
    "BOX": b"cloister/1/sealed-box",
    "PAIR_PAD": b"cloister/1/pair-pad",
    "SELF_PAD": b"cloister/1/self-pad",
    "SHARE": b"cloister/1/share",
    "MATERIAL": b"cloister/1/material",
    "LINK": b"cloister/1/link",
    "LINK_TAG": b"cloister/1/person-tag",
    "READER_KEY": b"cloister/1/reader-key",
    "RESULT": b"cloister/1/result",
    "GROUP_KEY": b"cloister/1/group-key",
}


def joined(*parts: bytes) -> bytes:
    """Each part with its length, eight big-endian bytes, before it."""
    return b"".join(struct.pack(">Q", len(part)) + part for part in parts)


def hkdf_sha256(key: bytes, info: bytes) -> bytes:
    """RFC 5869 with an absent salt (a block of zeros) and 32 bytes of output."""
    extracted = hmac.new(bytes(32), key, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()


def rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & 0xFFFFFFFF


def quarter_round(state: list[int], a: int, b: int, c: int, d: int) -> None:
    for x, y, z, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[x] = (state[x] + state[y]) & 0xFFFFFFFF
        state[z] = rotated(state[z] ^ state[x], bits)


def chacha20_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key)]
    start += [counter, *struct.unpack("<3I", nonce)]
    state = list(start)
    for _ in range(10):
        for i in range(4):
            quarter_round(state, i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter_round(state, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(state, start, strict=True)))


def chacha20_stream(key: bytes, size: int) -> bytes:
    """The stream of a key that is used once: nonce zero, counter from zero."""
    blocks = (chacha20_block(key, i, bytes(12)) for i in range(-(-size // 64)))
    return b"".join(blocks)[:size]


def rfc_8439_block() -> None:
    """RFC 8439 section 2.3.2."""
    nonce = bytes.fromhex("000000090000004a00000000")
    block = chacha20_block(bytes(range(32)), 1, nonce)
    assert block.hex().startswith("10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c06803")


def derived(key: bytes, usage: str, context: bytes) -> bytes:
    return hkdf_sha256(key, joined(USAGES[usage], context))


def pad(key: bytes, context: dict[str, Any], size: int) -> list[int]:
    fields = [str(context[name]).encode() for name in CONTEXT]
    stream = chacha20_stream(derived(key, "MASK", joined(*fields)), 8 * size)
    return list(struct.unpack(f"<{size}Q", stream))


CONTEXT = ("session", "round", "attempt", "vector", "sender")
SESSION = "00112233445566778899aabbccddeeff"


def prg_vectors() -> dict[str, Any]:
    keys = [bytes(32), bytes(range(32)), hashlib.sha256(b"cloister").digest()]
    base = {"session": SESSION, "round": 0, "attempt": 0, "vector": "payload", "sender": "north"}
    changes: list[dict[str, Any]] = [
        {},
        {"round": 1},
        {"round": 10},
        {"attempt": 1},
        {"vector": "counts"},
        {"sender": "south"},
        {"sender": "Bärenthal-Süd 7"},
        {"session": "ffeeddccbbaa99887766554433221100"},
        {"vector": "payloa", "sender": "dnorth"},
    ]
    pads = [
        {"key": key.hex(), "context": context, "words": [f"{w:016x}" for w in words]}
        for key, context, size in (
            *((keys[1], {**base, **change}, 3) for change in changes),
            (keys[0], base, 0),
            (keys[2], base, 19),  # more than two blocks of the cipher
        )
        for words in [pad(key, context, size)]
    ]
    derive = [
        {
            "key": key.hex(),
            "usage": usage,
            "context": context.hex(),
            "derived": derived(key, usage, context).hex(),
        }
        for key in keys
        for usage in USAGES
        for context in (b"", b"x")
    ]
    lists = [(), (b"",), (b"a", b"bc"), (b"ab", b"c"), (b"abc",), (bytes(100), b"end")]
    tags = [
        {
            "key": keys[2].hex(),
            "usage": usage,
            "parts": [part.hex() for part in parts],
            "tag": hmac.new(
                derived(keys[2], usage, b""), joined(*parts), hashlib.sha256
            ).hexdigest(),
        }
        for usage in ("STATE_TAG", "CONFIRM")
        for parts in lists
    ]
    return {"pads": pads, "derive": derive, "tags": tags}


# --- Plans ----------------------------------------------------------------------------------------


def plan(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "protocol": 1,
        "ring_bits": 64,
        "task": {
            "name": "fastlloyd",
            "n_clusters": 2,
            "n_features": 1,
            "rounds": 2,
            "frac_bits": 16,
            "post": "fold",
            "public_seed": 7,
            "relocate_empty": False,
            "first_radius": 1.0,
            "radius": 0.4,
            "mechanism": "gaussian",
            "radius_clip": True,
        },
        "budget": {"epsilon": 1.0, "delta": 1e-06},
        "grid": {"low": [-1.0], "high": [1.0], "frac_bits": 16},
        "silos": ["north", "south", "Bärenthal"],
        "columns": ["age"],
        "nominal_n": 300,
        "min_silos": 2,
        "profile": "group",
        "unit": "row",
        "max_rows": 1,
        "max_silos_per_person": 1,
        "schema_digest": "",
        "study": "default",
        "publish": False,
        "collusion": 0,
        "fingerprints": [],
        "upload_slot": 0.0,
        "run_id": SESSION,
    }
    return {**document, **changes}


def plan_of_protocol_2(**changes: Any) -> dict[str, Any]:
    """A plan of a task that is not installed: its layout says all that carrying it takes."""
    blocks = [{"name": "sums", "shape": [2, 2], "l1": 111877, "l2_squared": 2**32, "weight": 0.5}]
    document = plan(
        protocol=2,
        task={"name": "mystery", "weights": [1, 2.5], "of": {"Größe": None}},
        layout={
            "mechanism": "gaussian",
            "frames": [blocks],
            "order": [0, 0],
            "rate": 1.0,
            "noise_multiplier": 0.0,
        },
        code={"distribution": "mysteries", "version": "1.0", "digest": "ab" * 32},
        profile="pairwise",
        collusion=1,
        min_silos=3,
        fingerprints=[f"ed25519:{number * 64}" for number in "012"],
    )
    return {**document, **changes}


def counting(**changes: Any) -> dict[str, Any]:
    """A plan of protocol 2 whose task ships: one count, noised by the discrete Laplace law."""
    block = {"name": "count", "shape": [1], "l1": 2**16, "l2_squared": 2**32, "weight": 1.0}
    document = plan(
        protocol=2,
        task={"name": "count", "n_features": 1, "frac_bits": 16, "mechanism": "laplace"},
        budget={"epsilon": 0.1, "delta": 0.0},
        layout={
            "mechanism": "laplace",
            "frames": [[block]],
            "order": [0],
            "rate": 1.0,
            "noise_multiplier": 0.0,
        },
        code=None,
    )
    return {**document, **changes}


def changed(document: dict[str, Any], part: str, **changes: Any) -> dict[str, Any]:
    return {**document, part: {**document[part], **changes}}


def without(document: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != name}


def bad_plans() -> dict[str, tuple[dict[str, Any], str]]:
    good, count = plan_of_protocol_2(), counting()
    block = count["layout"]["frames"][0][0]

    def of_block(**changes: Any) -> dict[str, Any]:
        return changed(count, "layout", frames=[[{**block, **changes}]])

    return {
        "protocol": ({**good, "protocol": 4}, "protocol 4"),
        "no_layout": (without(good, "layout"), "lacks 'layout'"),
        "no_code": (without(good, "code"), "lacks 'code'"),
        "task_of_protocol_1": (plan(task={"name": "mystery"}), "task must be one of"),
        "understated_l1": (of_block(l1=2**16 - 1), "layout must be that of task"),
        "understated_l2": (of_block(l2_squared=2**32 - 1), "layout must be that of task"),
        "longer_vector": (of_block(shape=[2]), "layout must be that of task"),
        "another_law": (changed(count, "layout", mechanism="none"), "layout must be that of task"),
        "unknown_law": (changed(good, "layout", mechanism="cauchy"), "mechanism must be one of"),
        "order": (changed(good, "layout", order=[0, 1]), "order of a layout"),
        "no_rounds": (changed(good, "layout", order=[]), "weights of all blocks"),
        "weights": (changed(good, "layout", order=[0, 0, 0]), "weights of all blocks"),
        "weight_of_nothing": (of_block(weight=0.0), "weight of block"),
        "sensitivity_of_nothing": (of_block(l2_squared=0), "sensitivities of block"),
        "rate": (changed(good, "layout", rate=0.0), "rate must be"),
        "more_in_layout": (changed(good, "layout", colour="red"), "layout must have"),
        "no_code_digest": (changed(good, "code", digits="ab"), "plan is not complete"),
        "minority": ({**plan(), "min_silos": 1}, "min_silos must be in"),
        "all_collude": ({**good, "collusion": 3}, "collusion must be in"),
        "fingerprint_twice": (
            {**good, "fingerprints": good["fingerprints"][:1] * 3},
            "different ones",
        ),
        "published_group": ({**plan(), "publish": True}, "publish must be False"),
        "run_id": ({**good, "run_id": "0" * 31}, "run_id must be"),
    }


def plan_vectors() -> list[dict[str, str]]:
    lloyd = {
        "name": "lloyd",
        "n_clusters": 15,
        "n_features": 2,
        "rounds": 7,
        "frac_bits": 20,
        "post": "truncate",
        "public_seed": 0,
        "relocate_empty": False,
    }
    count = {"name": "count", "n_features": 2, "frac_bits": 16, "mechanism": "laplace"}
    two = {"columns": ["x", "y"], "silos": ["alone"], "profile": "local", "min_silos": 1}
    box = {"low": [0.0, -1e-3], "high": [120.0, 2.5e10]}
    documents = [
        plan(),
        plan(run_id="0" * 32),
        plan(unit="patient", max_rows=3, max_silos_per_person=2, study="Größe", nominal_n=10**6),
        plan(task=lloyd, budget=None, grid={**box, "frac_bits": 20}, **two),
        plan(
            task=count,
            budget={"epsilon": 0.1, "delta": 0.0},
            grid={**box, "frac_bits": 16},
            schema_digest="ab" * 32,
            **two,
        ),
        plan_of_protocol_2(),
        counting(),
    ]
    texts = [canonical(document) for document in documents]
    return [{"text": t, "digest": hashlib.sha256(t.encode("ascii")).hexdigest()} for t in texts]


def canonical(document: Any) -> str:
    """Sorted keys, no spaces, ASCII, shortest floats: written out here, not left to ``json``."""
    if isinstance(document, dict):
        pairs = (f"{canonical(key)}:{canonical(document[key])}" for key in sorted(document))
        return "{" + ",".join(pairs) + "}"
    if isinstance(document, list):
        return "[" + ",".join(canonical(item) for item in document) + "]"
    if isinstance(document, str):
        return json.dumps(document, ensure_ascii=True)
    if document is None or isinstance(document, bool):
        return {True: "true", False: "false", None: "null"}[document]
    return repr(document)


# --- Frames ---------------------------------------------------------------------------------------


Frame = Callable[..., bytes]


def frame(
    kind: int,
    t: int,
    sender: str,
    body: bytes,
    *,
    magic: bytes = b"CLST",
    version: int = 1,
    session: str = SESSION,
    digest: str | None = None,
    attempt: int = 0,
    frac_bits: int = 16,
    ring_bits: int = 64,
    body_len: int | None = None,
) -> bytes:
    name = sender.encode()
    header = magic
    header += version.to_bytes(2, "big")
    header += kind.to_bytes(1, "big")
    header += bytes.fromhex(session)
    header += bytes.fromhex(digest or plan_vectors()[0]["digest"])
    header += t.to_bytes(4, "big") + attempt.to_bytes(4, "big")
    header += bytes([frac_bits, ring_bits, len(name)])
    header += (len(body) if body_len is None else body_len).to_bytes(4, "big")
    return header + name + body


WORDS = [0, 1, 2**63, 2**64 - 1]
SILOS = ["north", "south", "Bärenthal"]
SENT = bytes([9] * 64)  # the aggregator's signature on what it sends


def words(values: list[int]) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def survivors(numbers: list[int]) -> bytes:
    return b"".join(number.to_bytes(2, "big") for number in [len(numbers), *numbers])


def statement(number: int) -> bytes:
    """A silo's statement: signature, head, height, length of the data set's name, both names."""
    fixed = (
        bytes([number + 150] * 64) + bytes([number + 151] * 32) + (number + 7).to_bytes(8, "big")
    )
    return fixed + (4).to_bytes(2, "big") + b"ages" + b"default"


def confirmation(number: int) -> bytes:
    """A confirmation; only that of an even number has a statement."""
    said = bytes([number] * 32) + bytes([number + 100] * 32) + bytes([number + 200] * 64)
    received = bytes([number + 220] * 64)  # the aggregator's signature on the same hash
    told = b"" if number % 2 else statement(number)
    return number.to_bytes(2, "big") + said + received + len(told).to_bytes(2, "big") + told


def confirmations(numbers: list[int]) -> bytes:
    return len(numbers).to_bytes(2, "big") + b"".join(map(confirmation, numbers))


def opened(numbers: list[int]) -> bytes:
    return b"".join(number.to_bytes(2, "big") + bytes([number + 50] * 32) for number in numbers)


def shares(numbers: list[int]) -> bytes:
    return b"".join(number.to_bytes(2, "big") + bytes([number + 70] * 66) for number in numbers)


def listed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def keys(number: int, rounds: int) -> bytes:
    """Identity, box key, head, time, keys of each round, what one peer signed last, signature."""
    seen = (2 - number).to_bytes(2, "big") + (9).to_bytes(8, "big")
    time = (1_750_000_000).to_bytes(8, "big")
    per_round = b"".join(bytes([20 + t] * 32) for t in range(2 * rounds))
    fixed = bytes([number] * 32) + bytes([2] * 32) + bytes([3] * 32) + time
    return fixed + per_round + seen + bytes([6] * 64)


def frame_vectors(text: str, frame: Frame, rounds: int) -> dict[str, Any]:
    """Frames of the plan that `text` is, with keys for so many rounds."""
    tag = bytes(range(32))
    frames = [
        ("open", frame(1, 0, "", confirmations([])), {"confirmations": []}),
        ("open", frame(1, 1, "", confirmations([0, 2])), {"confirmations": [0, 2]}),
        (
            "open",
            frame(1, 1, "", confirmations([0, 2]) + opened([0, 1, 2])),
            {"confirmations": [0, 2], "opened": [0, 1, 2]},
        ),
        ("upload", frame(2, 1, "south", tag + words(WORDS)), {"sender": "south"}),
        ("upload", frame(2, 0, SILOS[2], tag + words(WORDS)), {"sender": SILOS[2]}),
        (
            "reply",
            frame(3, 1, "", survivors([0, 2]) + SENT + words(WORDS)),
            {"survivors": [0, 2]},
        ),
        ("confirm", frame(4, 0, "north", tag + tag[::-1] + tag * 2 + SENT), {"sender": "north"}),
        (
            "confirm",
            frame(4, 0, "north", tag + tag[::-1] + tag * 2 + SENT + statement(0)),
            {"sender": "north", "statement": True},
        ),
        ("close", frame(5, 1, "", confirmations([1])), {"confirmations": [1]}),
        ("done", frame(6, 1, "north", b""), {"sender": "north"}),
        (
            "done",
            frame(6, 1, "south", listed(b"one", b"")),
            {"sender": "south", "boxes": ["one", ""]},
        ),
        ("invite", frame(7, 0, "", b""), {}),
        ("keys", frame(8, 0, "north", keys(0, rounds)), {"sender": "north"}),
        (
            "roster",
            frame(
                9, 0, "", tag + listed(*(frame(8, 0, SILOS[i], keys(i, rounds)) for i in (0, 2)))
            ),
            {"keys": [0, 2]},
        ),
        ("secrets", frame(10, 0, "south", listed(b"one", b"", b"three")), {"sender": "south"}),
        (
            "deal",
            frame(11, 0, "", survivors([0, 2]) + SENT + listed(b"one", b"two")),
            {"cohort": [0, 2]},
        ),
        (
            "ready",
            # The hash of the accepted commitments and the signature on it precede the statement.
            frame(
                12,
                0,
                "south",
                tag + tag[::-1] + tag * 2 + SENT + tag + bytes([8] * 64) + statement(0),
            ),
            {"sender": "south", "statement": True},
        ),
        ("unmask", frame(13, 1, "", confirmations([0, 2])), {"confirmations": [0, 2]}),
        (
            "shares",
            frame(14, 1, "north", tag + tag * 2 + shares([0, 2])),
            {"sender": "north", "shares": [0, 2]},
        ),
        ("askstate", frame(15, 1, "", b""), {}),
        ("sealedstate", frame(16, 1, "north", b"box"), {"sender": "north"}),
        ("adopt", frame(17, 1, "", survivors([2]) + b"box"), {"lead": 2}),
        ("adopted", frame(18, 1, "south", tag), {"sender": "south"}),
    ]
    return {
        "plan": text,
        "words": [f"{word:016x}" for word in WORDS],
        "frames": [{"kind": kind, "fields": f, "frame": data.hex()} for kind, data, f in frames],
        "statement": signed_text(),
    }


def signed_text() -> dict[str, str]:
    """What the signature of a statement is over: a label and the statement's one JSON text."""
    text = canonical(
        {
            "dataset": "ages",
            "study": "Größe",
            "job": SESSION,
            "plan": "ab" * 32,
            "events": {"event": "gaussian", "noise_multiplier": 5.5},
            "head": "cd" * 32,
            "height": 7,
        }
    )
    signed = joined(b"cloister/1/statement", text.encode("ascii"))
    return {"text": text, "signed": signed.hex()}


def bad_frames(
    frame: Frame, rounds: int, other_version: int, other_plan: str
) -> dict[str, tuple[bytes, str]]:
    tag = bytes(range(32))
    body = tag + words(WORDS)
    good = frame(2, 0, "south", body)
    fixed = 104 + 64 * rounds  # bytes of keys before what peers signed
    return {
        "magic": (frame(2, 0, "south", body, magic=b"CLSX"), "version"),
        "version": (frame(2, 0, "south", body, version=other_version), "version"),
        "empty": (b"", "cut"),
        "cut_header": (good[:40], "cut"),
        "cut_sender": (good[:75], "bytes behind its header"),
        "cut_body": (good[:-1], "bytes behind its header"),
        "trailing_byte": (good + b"\0", "bytes behind its header"),
        "digest": (frame(2, 0, "south", body, digest=other_plan), "another plan"),
        "session": (frame(2, 0, "south", body, session="0" * 32), "another plan or run"),
        "attempt": (frame(2, 0, "south", body, attempt=1), "attempt"),
        "frac_bits": (frame(2, 0, "south", body, frac_bits=20), "lattice"),
        "ring": (frame(2, 0, "south", body, ring_bits=32), "ring"),
        "one_word_short": (frame(2, 0, "south", body[:-8]), "4 ring elements"),
        "one_word_long": (frame(2, 0, "south", body + words([5])), "4 ring elements"),
        "half_word": (frame(2, 0, "south", body + b"\0\0\0\0"), "4 ring elements"),
        "no_tag": (frame(2, 0, "south", tag[:7]), "cut"),
        "body_length": (frame(2, 0, "south", body, body_len=2**32 - 1), "behind its header"),
        "round": (frame(2, 2, "south", body), "round must be below 2"),
        "unknown_kind": (frame(99, 0, "", b""), "kind 99"),
        "kind_zero": (frame(0, 0, "", b""), "kind 0"),
        "stranger": (frame(2, 0, "west", body), "sender is not a party"),
        "sender_not_utf8": (
            good.replace(b"south", b"\xff\xfe\xfd\xfc\xfb"),
            "sender is not a name",
        ),
        "upload_of_the_aggregator": (frame(2, 0, "", body), "sender is not a party"),
        "reply_of_a_silo": (
            frame(3, 0, "south", survivors([0, 1]) + SENT + words(WORDS)),
            "sender is not a party",
        ),
        "reply_without_list": (frame(3, 0, "", b"\0"), "cut"),
        "reply_cut_list": (frame(3, 0, "", b"\0\x05" + b"\0\0"), "cut"),
        "reply_unknown_silo": (
            frame(3, 0, "", survivors([0, 3]) + SENT + words(WORDS)),
            "silo number must be below 3",
        ),
        "confirm_short": (frame(4, 0, "north", bytes(191)), "cut"),
        "statement_cut": (frame(1, 1, "", confirmations([0])[:-1]), "cut"),
        "confirmation_twice": (frame(1, 1, "", confirmations([1, 1])), "listed twice"),
        "confirmations_cut": (frame(1, 1, "", confirmations([1])[:-1]), "cut"),
        "opened_twice": (frame(1, 1, "", confirmations([]) + opened([1, 1])), "listed twice"),
        "opened_cut": (frame(1, 1, "", confirmations([]) + opened([1])[:-1]), "cut"),
        "keys_cut": (frame(8, 0, "north", keys(0, rounds)[:-1]), "cut"),
        "keys_seen_twice": (
            frame(
                8,
                0,
                "north",
                keys(0, rounds)[:fixed] + 2 * keys(0, rounds)[fixed : fixed + 10] + bytes(64),
            ),
            "listed twice",
        ),
        "roster_of_rosters": (frame(9, 0, "", tag + listed(frame(9, 0, "", tag))), "does not fit"),
        "secrets_cut": (frame(10, 0, "south", listed(b"one")[:-1]), "cut"),
        "shares_half": (frame(14, 1, "north", tag + tag * 2 + shares([0])[:-1]), "cut"),
        "adopt_of_two": (frame(17, 1, "", survivors([0, 1]) + b"box"), "does not fit"),
        "keys_of_the_aggregator": (frame(8, 0, "", keys(0, rounds)), "sender is not a party"),
        "keys_in_a_round": (frame(8, 1, "north", keys(0, rounds)), "round must be below 1"),
        "done_with_half_a_box": (frame(6, 1, "north", b"x"), "cut"),
    }


ABOUT = "Made by generate_wire.py, a second implementation; see its docstring."


def write(name: str, content: dict[str, Any]) -> None:
    text = json.dumps({"about": ABOUT, **content}, indent=1, ensure_ascii=True)
    (HERE / name).write_text(text + "\n")


def main() -> None:
    rfc_8439_block()
    write("prg.json", prg_vectors())
    write("plans.json", {"plans": plan_vectors()})
    one, other, *_, two, _ = plan_vectors()
    frame_2 = partial(frame, version=2, digest=two["digest"])
    write("frames.json", frame_vectors(one["text"], frame, 0))
    write("frames_2.json", frame_vectors(two["text"], frame_2, 2))
    for what, (data, error) in bad_frames(frame, 0, 2, other["digest"]).items():
        write(f"frame_bad_{what}.json", {"frame": data.hex(), "error": error})
    for what, (data, error) in bad_frames(frame_2, 2, 1, other["digest"]).items():
        write(f"frame_2_bad_{what}.json", {"frame": data.hex(), "error": error})
    for what, (document, error) in bad_plans().items():
        write(f"plan_bad_{what}.json", {"plan": canonical(document), "error": error})


if __name__ == "__main__":
    main()
