from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tenseal")

from cloister.core.errors import DataError, RemoteProtocolError
from cloister.hazmat.ring import Words
from cloister.shares.inference import pooling
from cloister.shares.inference.pooling import EncryptedWindows, sum_windows, uniform_below

T = pooling._context()[2]
RNG = np.random.default_rng(3)


def words(*shape: int) -> Words:
    return RNG.integers(0, 2**64, shape, dtype=np.uint64)


@pytest.mark.parametrize("shape", [(1, 1), (5, 4), (8193, 2)])
def test_sums_are_exact_modulo_two_to_the_64(shape: tuple[int, int]) -> None:
    mine, yours = words(*shape), words(*shape)
    mine[0], yours[0] = 2**64 - 1, 2**64 - 1  # every limb at its largest
    sent = EncryptedWindows(mine)
    reply, second = sum_windows(sent.request, yours)
    first = sent.open(reply)
    expected = (mine + yours).sum(axis=1, dtype=np.uint64)
    assert (first + second == expected).all()


def test_the_reply_depends_on_the_other_share_through_a_uniform_value_only() -> None:
    """Two shares of server 1 whose limbs plus mask agree give server 0 the same numbers."""
    sent = EncryptedWindows(words(1, 2))
    masks = uniform_below(T, 4 * 8192, lambda n: RNG.bytes(n))

    def opened(share: Words, mask: Words) -> Words:
        source = (mask << np.uint64(64 - T.bit_length())).astype("<u8").tobytes()
        reply, _ = sum_windows(sent.request, share, lambda n: (source + bytes(n))[:n])
        return sent.open(reply)

    other = masks.reshape(4, -1).copy()
    share = np.array([[1, 2 << 16]], dtype=np.uint64)  # 1 in the lowest limb, 2 in the next
    other[0, 0] -= np.uint64(1)
    other[1, 0] -= np.uint64(2)
    assert opened(np.zeros((1, 2), np.uint64), masks) == opened(share, other.ravel())


def test_every_slot_is_masked() -> None:
    sent = EncryptedWindows(words(3, 2))
    reply, _ = sum_windows(sent.request, words(3, 2))
    _, blobs = pooling.unpack("sums", ("n", "k"), reply, 4)
    api, context, _ = pooling._context()
    plain = api.Plaintext()
    for blob in blobs:
        sent._decryptor.decrypt(pooling._ciphertext(blob), plain)
        slots = np.array(api.BatchEncoder(context).decode_uint64(plain), dtype=np.uint64)
        # 8,192 uniform values: two below t / 2^45, or any two alike, have probability below 1e-7
        assert (slots < T >> 45).sum() < 2
        assert abs(slots.mean() / T - 0.5) < 0.025  # 7.8 standard deviations: 1e-14


def test_a_sum_that_may_have_wrapped_is_refused() -> None:
    top = (np.full(4 * 8192, T - 1, np.uint64) << np.uint64(64 - T.bit_length())).tobytes()
    mine = np.ones((1, 2), np.uint64)
    sent = EncryptedWindows(mine)
    reply, _ = sum_windows(sent.request, mine, lambda n: (top + top)[:n])
    with pytest.raises(RemoteProtocolError, match="may have wrapped"):
        sent.open(reply)


def test_masks_are_below_t_without_bias() -> None:
    shift = 64 - T.bit_length()
    drawn = [T, T - 1, 2**59 - 1, 0, 5]
    source = b"".join((v << shift).to_bytes(8, "little") for v in drawn)
    assert uniform_below(T, 3, lambda n: (source * 99)[:n]).tolist() == [T - 1, 0, 5]


def test_damaged_or_foreign_messages_are_refused() -> None:
    mine, yours = words(3, 2), words(3, 2)
    sent = EncryptedWindows(mine)
    request = sent.request
    reply, _ = sum_windows(request, yours)
    for bad in (b"", request[:-1], reply, request[:60] + b"\xff" * 60 + request[120:]):
        with pytest.raises(RemoteProtocolError):
            sum_windows(bad, yours)
    with pytest.raises(RemoteProtocolError):
        sum_windows(request, words(3, 3))
    with pytest.raises(RemoteProtocolError, match="another key"):
        EncryptedWindows(mine).open(reply)
    with pytest.raises(RemoteProtocolError, match="of 4 windows"):
        EncryptedWindows(words(4, 2)).open(reply)
    with pytest.raises(DataError, match="windows must be words"):
        EncryptedWindows(np.zeros((3, 2)))  # type: ignore[arg-type]


def test_no_two_batches_have_a_key_a_mask_or_a_ciphertext_in_common() -> None:
    mine = words(1, 1)
    first, again = EncryptedWindows(mine), EncryptedWindows(mine)
    assert first.request != again.request
    shares = [sum_windows(first.request, mine)[1] for _ in range(2)]
    assert shares[0] != shares[1]  # equal with probability 2^-64
