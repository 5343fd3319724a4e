"""Masks: what a silo adds, any committed set of survivors can take away, and nobody else."""

from __future__ import annotations

import copy
import pickle
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import LocalProtocolError, PlanError, RemoteProtocolError
from cloister.core.randomness import new_key
from cloister.hazmat import kex
from cloister.hazmat.prg import PadContext, Usage, expand, join
from cloister.hazmat.ring import to_integers, to_words
from cloister.secagg.dropout import RoundKeys, commitment, open_secret, share_secret
from cloister.secagg.masks import TAG_BYTES, GroupMask, Masker, NoMask, PairwiseMask

KEY = bytes(range(32))
NAMES = ("north", "south", "west", "Bärenthal", "5")


def pad(sender: str, t: int = 0) -> PadContext:
    return PadContext("00" * 16, t, 0, "payload", sender)


def masked_sum(masker: Masker, values: dict[str, np.ndarray], survivors: list[str]) -> np.ndarray:
    total = np.zeros(3, dtype=np.uint64)
    for name in survivors:
        total += masker.mask(to_words(values[name]), pad(name))
    return total


vectors = st.lists(st.integers(-(2**60), 2**60), min_size=3, max_size=3).map(
    lambda v: np.array(v, dtype=np.int64)
)


@given(st.fixed_dictionaries(dict.fromkeys(NAMES, vectors)), st.sets(st.sampled_from(NAMES)))
def test_any_survivors_unmask_to_their_own_sum(
    values: dict[str, np.ndarray], survivors: set[str]
) -> None:
    masker, alive = GroupMask(KEY), sorted(survivors)
    total = masker.unmask(masked_sum(masker, values, alive), pad("west"), alive)
    sums = (sum(int(values[name][i]) for name in alive) for i in range(3))
    assert to_integers(total).tolist() == [(s + 2**63) % 2**64 - 2**63 for s in sums]


def test_every_silo_unmasks_the_same() -> None:
    values = {name: np.array([i, -i, 7]) for i, name in enumerate(NAMES)}
    masker = GroupMask(KEY)
    total = masked_sum(masker, values, list(NAMES))
    results = [masker.unmask(total, pad(me), NAMES).tolist() for me in NAMES]
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize(
    ("key", "survivors", "t"),
    [(new_key(), NAMES, 0), (KEY, NAMES[:-1], 0), (KEY, (*NAMES, "more"), 0), (KEY, NAMES, 1)],
    ids=["another key", "one too few", "one too many", "another round"],
)
def test_anything_else_unmasks_to_noise(key: bytes, survivors: tuple[str, ...], t: int) -> None:
    values = {name: np.zeros(3, dtype=np.int64) for name in NAMES}
    total = masked_sum(GroupMask(KEY), values, list(NAMES))
    wrong = GroupMask(key).unmask(total, pad("north", t), survivors)
    # what is unmasked is 0; three uniform words fail by chance once in 3e9 runs
    assert (np.abs(to_integers(wrong).astype(float)) > 2**30).all()


def test_masking_leaves_its_argument_alone() -> None:
    for masker in (GroupMask(KEY), NoMask()):
        words = np.arange(4, dtype=np.uint64)
        masker.mask(words, pad("north"))[:] = 0
        masker.unmask(words, pad("north"), ["north"])[:] = 0
        assert words.tolist() == [0, 1, 2, 3]


def test_no_mask_is_the_identity() -> None:
    words = np.array([1, 2**64 - 1], dtype=np.uint64)
    masker = NoMask()
    assert masker.mask(words, pad("a")).tolist() == words.tolist()
    assert masker.unmask(words, pad("a"), ["a", "b"]).tolist() == words.tolist()


def test_a_tag_without_a_key_depends_on_nothing() -> None:
    masker = NoMask()
    assert masker.tag(Usage.STATE_TAG, b"a") == masker.tag(Usage.CONFIRM, b"b") == bytes(TAG_BYTES)
    assert masker.verify(Usage.CONFIRM, bytes(TAG_BYTES), b"anything")
    assert not masker.verify(Usage.CONFIRM, b"\1" * TAG_BYTES, b"anything")


def test_tags_are_keyed_and_of_one_usage() -> None:
    masker, other = GroupMask(KEY), GroupMask(new_key())
    mac = masker.tag(Usage.CONFIRM, b"hash", b"silo")
    assert masker.verify(Usage.CONFIRM, mac, b"hash", b"silo")
    assert not masker.verify(Usage.CONFIRM, mac, b"hashs", b"ilo")
    assert not masker.verify(Usage.STATE_TAG, mac, b"hash", b"silo")
    assert not masker.verify(Usage.CONFIRM, mac[:-1], b"hash", b"silo")
    assert not other.verify(Usage.CONFIRM, mac, b"hash", b"silo")


def test_a_key_is_not_shown_copied_or_stored() -> None:
    masker = GroupMask(KEY)
    assert KEY.hex() not in repr(masker)
    assert repr(KEY)[2:20] not in repr(masker)
    for store in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="key"):
            store(masker)


@pytest.mark.parametrize("size", [0, 16, 33])
def test_a_key_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(PlanError, match="32 bytes"):
        GroupMask(bytes(size))


# --- Pairwise masks -------------------------------------------------------------------------------

ORDER = ("west", "east", "north")  # that of the plan, which is not the alphabet's
PRIVATE = {name: bytes([i]) * 32 for i, name in enumerate(ORDER, 1)}
SEEDS = {name: bytes([i]) * 32 for i, name in enumerate(ORDER, 11)}
PUBLIC = RoundKeys(
    ORDER,
    {name: (kex.public_of(private),) for name, private in PRIVATE.items()},
    {name: (commitment(seed),) for name, seed in SEEDS.items()},
)


def test_every_silo_has_a_common_key_for_each_usage_and_context() -> None:
    masker, twin = GroupMask(KEY), GroupMask(KEY)
    pairwise = PairwiseMask("west", PUBLIC, (PRIVATE["west"],), (SEEDS["west"],), {}, twin)
    key = masker.common_key(Usage.STATE_BOX, b"a")
    assert twin.common_key(Usage.STATE_BOX, b"a") == key
    assert pairwise.common_key(Usage.STATE_BOX, b"a") == key
    others = {
        masker.common_key(Usage.STATE_BOX, b"b"),
        masker.common_key(Usage.STATE_TAG, b"a"),
        GroupMask(bytes(32)).common_key(Usage.STATE_BOX, b"a"),
    }
    assert len({key, *others}) == 4


def test_a_silo_without_peers_has_no_common_key() -> None:
    with pytest.raises(LocalProtocolError, match="no common key"):
        NoMask().common_key(Usage.STATE_BOX, b"a")


def test_nothing_is_shared_under_a_mask_that_every_silo_can_take_away() -> None:
    for masker in (GroupMask(KEY), NoMask()):
        assert masker.shares(0, ORDER, ORDER[:2]) == {}


def test_the_pad_of_a_pair_is_added_by_the_first_in_the_order_of_the_plan() -> None:
    """This is part of the protocol: silos of two versions come to the same pad and sign."""
    context = pad("west")
    between = join((context.session.encode(), b"west", b"east"))
    public = kex.public_of(PRIVATE["east"])
    key = kex.agree(PRIVATE["west"], public, Usage.PAIR_PAD, between)
    common = expand(key, context.of(""), 3, Usage.PAIR_PAD)
    members = ORDER[:2]
    added = PUBLIC.pair_pads("west", PRIVATE["west"], members, context, 3)
    assert added.tolist() == common.tolist()
    taken = PUBLIC.pair_pads("east", PRIVATE["east"], members, context, 3)
    assert (added + taken).tolist() == [0, 0, 0]


@pytest.mark.parametrize("lost", [False, True])
def test_only_what_a_silo_committed_to_opens_its_masks(lost: bool) -> None:
    """Of a silo that survived its seed, of one that was lost its private key, and nothing else."""
    survivors = ORDER[:2] if lost else ORDER
    right, other = (PRIVATE, SEEDS) if lost else (SEEDS, PRIVATE)
    opened = {**SEEDS, "north": right["north"]}
    PUBLIC.left_over(pad(""), 3, ORDER, survivors, opened)
    for secret in (b"", right["north"][:-1], right["north"] + b"\0", bytes(32), other["north"]):
        with pytest.raises(RemoteProtocolError, match="'north' in round 0 is missing or wrong"):
            PUBLIC.left_over(pad(""), 3, ORDER, survivors, {**opened, "north": secret})
    with pytest.raises(RemoteProtocolError, match="'north' in round 0 is missing or wrong"):
        PUBLIC.left_over(pad(""), 3, ORDER, survivors, {k: opened[k] for k in ORDER[:2]})


def test_a_secret_has_one_share_for_each_holder_from_1_on() -> None:
    shares = share_secret(KEY, 2, 3, bytes(32))
    assert len(shares) == 3
    for pair in combinations(range(3), 2):
        assert open_secret({i + 1: shares[i] for i in pair}) == KEY
