"""Vectors over Z_2^64: the centred lift, wrap-around and the byte order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import RemoteProtocolError
from cloister.hazmat.ring import from_bytes, to_bytes, to_integers, to_words

int64 = st.integers(-(2**63), 2**63 - 1)
vectors = st.lists(int64, max_size=20).map(lambda v: np.array(v, dtype=np.int64))


@given(vectors)
def test_signed_values_survive_the_ring_and_the_wire(values: np.ndarray) -> None:
    body = to_bytes(to_words(values))
    assert len(body) == 8 * values.size
    assert (to_integers(from_bytes(body, values.size)) == values).all()


@given(vectors, st.integers(0, 2**64 - 1))
def test_a_pad_added_and_taken_away_leaves_the_value(values: np.ndarray, pad: int) -> None:
    masked = to_words(values) + np.uint64(pad)
    assert (to_integers(masked - np.uint64(pad)) == values).all()


@given(st.lists(int64, min_size=1, max_size=9))
def test_sums_agree_with_integers_modulo_2_64(values: list[int]) -> None:
    total = np.zeros(1, dtype=np.uint64)
    for value in values:
        total += to_words(np.array([value], dtype=np.int64))
    assert int(total[0]) == sum(values) % 2**64


def test_the_lift_is_centred() -> None:
    words = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], dtype=np.uint64)
    assert to_integers(words).tolist() == [0, 1, 2**63 - 1, -(2**63), -1]


def test_words_are_little_endian() -> None:
    assert (
        to_bytes(np.array([1, 2**63], dtype=np.uint64)).hex()
        == "0100000000000000" + "00" * 7 + "80"
    )


def test_a_slice_with_steps_is_read_like_its_copy() -> None:
    values = np.arange(-6, 6, dtype=np.int64).reshape(3, 4)[:, ::2]
    assert to_integers(to_words(values)).tolist() == values.tolist()


@pytest.mark.parametrize("size", [0, 7, 8, 15, 17, 24])
def test_a_body_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="2 ring elements"):
        from_bytes(bytes(size), 2)


def test_decoded_words_may_be_written() -> None:
    words = from_bytes(bytes(16), 2)
    words += np.uint64(1)
    assert words.tolist() == [1, 1]
