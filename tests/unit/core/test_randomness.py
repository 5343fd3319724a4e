"""Secret randomness never repeats, public randomness always does."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from multiprocessing.connection import Connection

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from cloister.core.randomness import (
    _REKEY_BYTES,
    KEY_BYTES,
    SecretStream,
    new_key,
    new_nonce,
    os_bytes,
    public_generator,
)


def test_keys_and_nonces_are_fresh() -> None:
    assert len({new_key() for _ in range(100)}) == 100
    assert len({new_nonce() for _ in range(100)}) == 100
    assert len(new_key()) == KEY_BYTES == 32
    assert len(new_nonce()) == 32
    assert set(new_nonce()) <= set("0123456789abcdef")
    assert len(os_bytes(7)) == 7


def test_streams_differ_and_do_not_repeat() -> None:
    one, two = SecretStream(), SecretStream()
    parts = [one(32) for _ in range(50)] + [two(32) for _ in range(50)]
    assert len(set(parts)) == 100
    assert one(0) == b""
    assert len(one(100_001)) == 100_001


def test_a_stream_is_keyed_anew_before_its_counter_could_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cloister.core.randomness._REKEY_BYTES", 100)
    stream = SecretStream()
    keyed = []
    plain = SecretStream._rekey
    monkeypatch.setattr(SecretStream, "_rekey", lambda self: (keyed.append(1), plain(self))[1])
    parts = {stream(40) for _ in range(10)}
    assert len(parts) == 10
    assert len(keyed) == 4  # two draws fit, the third does not
    assert len(stream(1000)) == 1000  # more than a key's share in one draw still works


def test_the_counter_of_a_stream_starts_at_zero_whatever_the_system_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A random start would end within a draw of n bytes once in 2**38 / n streams, and stop a job.

    All ones is the worst draw: from a counter of all ones the second block is one too many.
    """
    monkeypatch.setattr("cloister.core.randomness.os.urandom", lambda size: b"\xff" * size)
    stream = SecretStream()
    drawn = b"".join(stream(size) for size in (8, 56, 64, 1000))
    nonce = bytes(4) + b"\xff" * 12
    plain = Cipher(algorithms.ChaCha20(b"\xff" * KEY_BYTES, nonce), mode=None).encryptor()
    assert drawn == plain.update(bytes(len(drawn)))
    assert _REKEY_BYTES // 64 < 2**32, "keyed anew before the counter ends"


def _draw(stream: SecretStream, pipe: Connection) -> None:
    pipe.send_bytes(stream(32))


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="needs processes that fork"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_two_processes_never_share_a_stream() -> None:
    context = multiprocessing.get_context("fork")
    stream, (ours, end) = SecretStream(), context.Pipe(duplex=False)
    child = context.Process(target=_draw, args=(stream, end))
    child.start()
    end.close()  # so that the end of a child that fails is seen
    assert ours.poll(60), "the child sent nothing"
    theirs = ours.recv_bytes()
    child.join(60)
    assert len(theirs) == 32
    assert theirs != stream(32)


def test_a_stream_is_never_copied_stored_or_shown() -> None:
    stream = SecretStream()
    for store in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied"):
            store(stream)
    assert repr(stream) == "SecretStream(operating system)"


def test_public_choices_are_the_same_for_every_party() -> None:
    first = public_generator(7, "start").integers(0, 2**63, 5).tolist()
    assert public_generator(7, "start").integers(0, 2**63, 5).tolist() == first
    # pinned: a change would give silos of different versions different starting centres
    assert public_generator(7, "start").integers(0, 1000, 5).tolist() == [470, 963, 842, 930, 344]


def test_different_parts_give_different_streams() -> None:
    parts = [(7,), (8,), ("7",), (7, "start"), (7, "start", 1), ("7", "start"), (71,), (7, 1)]
    draws = {tuple(public_generator(*p).integers(0, 2**63, 4).tolist()) for p in parts}
    assert len(draws) == len(parts)
