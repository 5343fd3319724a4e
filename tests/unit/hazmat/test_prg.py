"""Pads: the vectors of a second implementation, and that no two contexts share a pad."""

from __future__ import annotations

import importlib.util
import json
from itertools import combinations, product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import LocalProtocolError
from cloister.hazmat.prg import KEY_BYTES, PadContext, Usage, derive, expand, tag

VECTORS = Path(__file__).parents[2] / "vectors"
PRG = json.loads((VECTORS / "prg.json").read_text())
KEY = bytes(range(32))
HERE = PadContext("00" * 16, 0, 0, "payload", "north")


def oracle() -> ModuleType:
    """The second implementation: hmac and Python's integers only."""
    spec = importlib.util.spec_from_file_location("wire_oracle", VECTORS / "generate_wire.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ORACLE = oracle()


@pytest.mark.parametrize("case", PRG["pads"])
def test_pads_follow_the_vectors(case: dict) -> None:
    words = [int(word, 16) for word in case["words"]]
    pad = expand(bytes.fromhex(case["key"]), PadContext(**case["context"]), len(words))
    assert pad.dtype == np.uint64
    assert pad.tolist() == words


@pytest.mark.parametrize("case", PRG["derive"])
def test_keys_follow_the_vectors(case: dict) -> None:
    key, context = bytes.fromhex(case["key"]), bytes.fromhex(case["context"])
    assert derive(key, Usage[case["usage"]], context).hex() == case["derived"]


@pytest.mark.parametrize("case", PRG["tags"])
def test_tags_follow_the_vectors(case: dict) -> None:
    key = derive(bytes.fromhex(case["key"]), Usage[case["usage"]], b"")
    assert tag(key, *map(bytes.fromhex, case["parts"])).hex() == case["tag"]


def test_the_oracle_knows_the_rfc() -> None:
    ORACLE.rfc_8439_block()
    assert {usage.name: usage.value for usage in Usage} == ORACLE.USAGES


@given(st.binary(min_size=32, max_size=32), st.text(max_size=9), st.integers(0, 2**32))
def test_pads_agree_with_the_oracle_on_any_context(key: bytes, name: str, t: int) -> None:
    context = PadContext("ab" * 16, t, 0, "payload", name)
    words = ORACLE.pad(key, {field: getattr(context, field) for field in ORACLE.CONTEXT}, 2)
    assert expand(key, context, 2).tolist() == words


def test_a_longer_pad_begins_with_the_shorter() -> None:
    long = expand(KEY, HERE, 1000)
    assert (expand(KEY, HERE, 17) == long[:17]).all()
    assert expand(KEY, HERE, 0).size == 0


def test_no_two_contexts_share_a_word() -> None:
    contexts = [
        PadContext(session, t, attempt, vector, sender)
        for session, t, attempt, vector, sender in product(
            ("00" * 16, "11" * 16), (0, 1, 10), (0, 1), ("sums", "counts"), ("a", "b")
        )
    ]
    pads = {context: set(expand(KEY, context, 64).tolist()) for context in contexts}
    for left, right in combinations(contexts, 2):
        assert not pads[left] & pads[right]
    assert all(len(words) == 64 for words in pads.values())


fields = st.tuples(
    st.text(max_size=4), st.integers(0, 11), st.integers(0, 11), st.text(), st.text()
)


@given(fields, fields)
def test_different_contexts_never_encode_alike(left: tuple, right: tuple) -> None:
    same = PadContext(*left).encode() == PadContext(*right).encode()
    assert same == (left == right)


def test_fields_cannot_flow_into_each_other() -> None:
    assert PadContext("s", 1, 11, "v", "x").encode() != PadContext("s", 11, 1, "v", "x").encode()
    assert PadContext("s", 0, 0, "va", "b").encode() != PadContext("s", 0, 0, "v", "ab").encode()


def test_of_changes_the_sender_only() -> None:
    assert HERE.of("south") == PadContext("00" * 16, 0, 0, "payload", "south")


def test_usages_are_separate_labels() -> None:
    labels = [usage.value for usage in Usage]
    assert len(set(labels)) == len(labels)
    keys = {derive(KEY, usage, b"") for usage in Usage}
    assert len(keys) == len(labels)
    assert not any(a != b and a.startswith(b) for a in labels for b in labels)


def test_tags_tell_apart_where_a_part_ends() -> None:
    assert tag(KEY, b"ab", b"c") != tag(KEY, b"a", b"bc")
    assert tag(KEY, b"abc") != tag(KEY, b"abc", b"")


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_key_of_another_length_is_refused_and_not_shown(size: int) -> None:
    key = b"\xaa" * size
    with pytest.raises(LocalProtocolError, match=f"key must have {KEY_BYTES} bytes") as caught:
        derive(key, Usage.MASK, b"")
    assert not size or "aa" not in str(caught.value)
