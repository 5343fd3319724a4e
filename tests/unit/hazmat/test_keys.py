"""Shares, agreed keys, sealed boxes, signatures."""

from __future__ import annotations

import pickle
from itertools import combinations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import LocalProtocolError, RemoteProtocolError
from cloister.hazmat import kex, shamir
from cloister.hazmat.prg import Usage, derive, stream
from cloister.hazmat.signing import Identity, fingerprint_of, verify

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
secrets = st.binary(min_size=32, max_size=32)


# --- Shares ---------------------------------------------------------------------------------------


@given(secrets, st.integers(1, 7), st.data())
def test_any_threshold_of_shares_gives_the_secret(
    secret: bytes, holders: int, data: st.DataObject
) -> None:
    threshold = data.draw(st.integers(1, holders))
    shares = shamir.split(secret, threshold, range(1, holders + 1), stream(KEY))
    for group in combinations(range(holders), threshold):
        assert shamir.combine({i + 1: shares[i] for i in group}, 32) == secret


def test_shares_are_values_of_the_polynomial_written_by_hand() -> None:
    rand = stream(KEY)
    a = int.from_bytes(stream(KEY)(82), "big") % shamir.PRIME
    secret = 5
    shares = shamir.split(secret.to_bytes(32, "big"), 2, [1, 2, 9], rand)
    expected = [(secret + a * x) % shamir.PRIME for x in (1, 2, 9)]
    assert [int.from_bytes(s, "big") for s in shares] == expected


def test_one_share_less_fits_every_secret() -> None:
    """With threshold - 1 shares there is, for any secret, a polynomial through them."""
    shares = shamir.split(KEY, 3, [1, 2, 3], stream(KEY))
    for other in (bytes(32), OTHER):
        at = {0: int.from_bytes(other, "big"), 1: int.from_bytes(shares[0], "big")}
        at[2] = int.from_bytes(shares[1], "big")
        third = (
            sum(y * lagrange(x, list(at), 3) for x, y in at.items()) % shamir.PRIME
        )  # the share that holder 3 would need to have
        forged = {1: shares[0], 2: shares[1], 3: third.to_bytes(66, "big")}
        assert shamir.combine(forged, 32) == other


def lagrange(x: int, points: list[int], at: int) -> int:
    result = 1
    for other in points:
        if other != x:
            result = result * (at - other) * pow(x - other, -1, shamir.PRIME) % shamir.PRIME
    return result


def test_a_wrong_share_is_noticed_or_gives_another_secret() -> None:
    shares = shamir.split(KEY, 2, [1, 2], stream(KEY))
    with pytest.raises(RemoteProtocolError, match="belong together"):
        shamir.combine({1: shares[0], 2: bytes(66)}, 32)
    assert shamir.combine({1: shares[0], 2: shares[1]}, 32) == KEY


def test_shares_of_a_number_that_has_a_bit_too_many_do_not_belong_together() -> None:
    largest = 2**256 - 1
    assert shamir.combine({1: largest.to_bytes(66, "big")}, 32) == b"\xff" * 32
    with pytest.raises(RemoteProtocolError, match="belong together"):
        shamir.combine({1: (largest + 1).to_bytes(66, "big")}, 32)


@pytest.mark.parametrize(
    ("threshold", "holders"), [(0, [1]), (3, [1, 2]), (1, [0, 1]), (1, [1, 1]), (1, [shamir.PRIME])]
)
def test_sharing_that_cannot_work_is_refused(threshold: int, holders: list[int]) -> None:
    with pytest.raises(LocalProtocolError):
        shamir.split(KEY, threshold, holders, stream(KEY))


def test_a_secret_has_64_bytes_at_most() -> None:
    """A longer one might not be below the prime, and would come back as another."""
    largest = b"\xff" * 64
    (share,) = shamir.split(largest, 1, [1], stream(KEY))
    assert shamir.combine({1: share}, 64) == largest
    with pytest.raises(LocalProtocolError, match="at most 64 bytes"):
        shamir.split(bytes(65), 1, [1], stream(KEY))


# --- Agreed keys and boxes ------------------------------------------------------------------------


def test_both_sides_agree_and_every_context_has_its_own_key() -> None:
    ours, theirs = kex.public_of(KEY), kex.public_of(OTHER)
    contexts = [(Usage.BOX, b"a"), (Usage.BOX, b"b"), (Usage.PAIR_PAD, b"a")]
    keys = [kex.agree(KEY, theirs, usage, about) for usage, about in contexts]
    assert keys == [kex.agree(OTHER, ours, usage, about) for usage, about in contexts]
    assert len(set(keys)) == 3
    shared = X25519PrivateKey.from_private_bytes(KEY).exchange(
        X25519PrivateKey.from_private_bytes(OTHER).public_key()
    )
    assert keys[0] == derive(shared, Usage.BOX, b"a")


@pytest.mark.parametrize("public", [bytes(32), (1).to_bytes(32, "little"), bytes(31)])
def test_a_public_key_that_makes_the_shared_one_predictable_is_refused(public: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="public key is invalid"):
        kex.agree(KEY, public, Usage.BOX, b"")


@given(st.binary(max_size=50), st.integers(0, 65), st.integers(1, 255))
def test_a_box_opens_under_its_key_and_no_byte_of_it_can_change(
    plain: bytes, place: int, change: int
) -> None:
    box = kex.seal(KEY, plain)
    assert kex.unseal(KEY, box) == plain
    assert len(box) == len(plain) + kex.SEAL_BYTES
    broken = bytearray(box)
    broken[place % len(box)] ^= change
    for key, what in ((OTHER, box), (KEY, bytes(broken)), (KEY, box[:-1]), (KEY, b"")):
        with pytest.raises(RemoteProtocolError, match="sealed box"):
            kex.unseal(key, what)


# --- Signatures -----------------------------------------------------------------------------------


def test_a_signature_is_good_for_its_words_its_label_and_its_key() -> None:
    identity, other = Identity.new(), Identity.new()
    signed = identity.sign(b"label", b"ab", b"c")
    assert verify(identity.public, signed, b"label", b"ab", b"c")
    for public, signature, label, parts in (
        (other.public, signed, b"label", (b"ab", b"c")),
        (identity.public, signed, b"labe", (b"lab", b"c")),
        (identity.public, signed, b"label", (b"a", b"bc")),
        (identity.public, bytes(64), b"label", (b"ab", b"c")),
        (identity.public, b"", b"label", (b"ab", b"c")),
        (b"short", signed, b"label", (b"ab", b"c")),
    ):
        assert not verify(public, signature, label, *parts)


def test_an_identity_round_trips_and_is_never_shown_or_pickled() -> None:
    identity = Identity.new()
    again = Identity.from_bytes(identity.to_bytes())
    assert again == identity
    assert again.fingerprint == fingerprint_of(identity.public)
    assert identity.fingerprint.startswith("ed25519:")
    assert len(identity.fingerprint) == 72
    assert identity.seed.hex() not in repr(identity)
    assert repr(identity.seed) not in repr(identity)
    with pytest.raises(TypeError):
        pickle.dumps(identity)
    with pytest.raises(LocalProtocolError):
        Identity(b"short")


def test_a_box_for_a_reader_is_opened_with_that_key_usage_and_context_alone() -> None:
    public, plain = kex.public_of(KEY), b"released words"
    box, again = (kex.seal_to(public, plain, Usage.RESULT, b"job") for _ in range(2))
    assert len(box) == kex.PUBLIC_BYTES + len(plain) + 16
    assert box[: kex.PUBLIC_BYTES] != again[: kex.PUBLIC_BYTES]  # a fresh key for each box
    assert kex.unseal_from(KEY, box, Usage.RESULT, b"job") == plain
    # The key of the box is the one that the two public keys, the usage and the context give.
    shown, sealed = box[: kex.PUBLIC_BYTES], box[kex.PUBLIC_BYTES :]
    key = kex.agree(KEY, shown, Usage.RESULT, kex.join((shown, public, b"job")))
    assert kex.unseal(key, sealed) == plain
    for private, usage, context, sent in (
        (OTHER, Usage.RESULT, b"job", box),
        (KEY, Usage.BOX, b"job", box),
        (KEY, Usage.RESULT, b"other", box),
        (KEY, Usage.RESULT, b"job", again[: kex.PUBLIC_BYTES] + sealed),
        (KEY, Usage.RESULT, b"job", box[:-1]),
    ):
        with pytest.raises(RemoteProtocolError):
            kex.unseal_from(private, sent, usage, context)
