"""The join on shares against the join in the clear, and uploads that no honest owner makes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.core.errors import RemoteProtocolError
from cloister.shares.linking.merge import Joined, are_sorted, everybody, inner, merge
from cloister.shares.linking.shrink import most_dummies, shrink
from cloister.shares.mpc import Server, run_here
from cloister.shares.mpc.bits import all_set, equal, less

from .people import THIRD, Side, Words, frames, on_shares, sides, uploads, xor

SIZES = [(300, 300, 0.3), (300, 300, 0.0), (300, 300, 1.0), (40, 700, 0.5), (700, 40, 1.0)]
NAMES = ("first", "second", "third")


def joined(tables: Any, program: Any = inner, **options: Any) -> Joined:
    """Return the rows of a join, opened."""
    (a, b), _ = on_shares(lambda s, t: program(s, t, NAMES[: len(t)], **options), tables)
    return Joined(a.there ^ b.there, opened_parts(a, b))


def opened_parts(a: Joined, b: Joined) -> tuple[Words, ...]:
    return tuple(map(xor, zip(a.parts, b.parts, strict=True)))


def values(found: Joined, own: Any) -> pd.DataFrame:
    """Return the columns of slots with a person, as levels."""
    kept = found.there
    columns = {}
    for part, side in zip(found.parts, own, strict=True):
        columns[f"has {side.columns[0].name}"] = part[kept, 0] & np.uint64(1)
        for field in side.fields:
            bits = field.bits_of(part[kept])
            columns[field.column.name] = np.array(
                (bits.T << np.arange(len(bits))).sum(axis=1), np.uint64
            )
    return pd.DataFrame(columns).sort_values(list(columns), ignore_index=True)


def levels(table: pd.DataFrame, side: Side) -> pd.DataFrame:
    """Return a table in the clear as levels, by key."""
    found = {}
    for column in side.columns:
        own = table[column.name]
        if column.categories:
            own = own.astype(str).str.lower().map(list(column.categories).index)
        found[column.name] = column.levels(own.to_numpy(float))
    return pd.DataFrame(found, index=table["id"])


def expected(tables: Any, own: Any, how: str) -> pd.DataFrame:
    first, second = (levels(t, s) for t, s in zip(tables, own, strict=True))
    first.insert(0, f"has {own[0].columns[0].name}", 1)
    second.insert(0, f"has {own[1].columns[0].name}", 1)
    whole = first.join(second, how=how).fillna(0).astype(np.uint64)
    return whole.sort_values(list(whole), ignore_index=True)


@pytest.mark.parametrize(("n", "m", "overlap"), [*SIZES, (2, 2, 1.0), (257, 255, 0.9)])
def test_an_inner_join_has_every_column_of_every_common_person(
    n: int, m: int, overlap: float
) -> None:
    tables, own = frames(n, m, overlap), sides(n + 7, m + 3)
    found = joined(uploads(tables, own))
    pd.testing.assert_frame_equal(values(found, own), expected(tables, own, "inner"))
    assert not any(part[~found.there].any() for part in found.parts)


@pytest.mark.parametrize("how", ["left", "outer"])
@pytest.mark.parametrize(("n", "m", "overlap"), [(300, 200, 0.4), (50, 50, 0.0), (50, 50, 1.0)])
def test_other_joins_have_everybody_once(n: int, m: int, overlap: float, how: str) -> None:
    tables, own = frames(n, m, overlap), sides(n + 5, m)
    found = joined(uploads(tables, own), everybody, how=how)
    pd.testing.assert_frame_equal(values(found, own), expected(tables, own, how))
    assert not any(part[~found.there].any() for part in found.parts)


def test_a_union_counts_a_person_of_both_once_with_the_columns_of_the_first() -> None:
    first, second = frames(120, 80, 0.5)
    second = second.assign(group="b", x=0.25)[["id", "group", "x"]]
    own = (sides(130)[0], sides(80)[0])
    found = joined(uploads((first, second), own), everybody, how="union")
    both = pd.concat([first, second]).drop_duplicates("id")
    clear = levels(both, own[0])
    clear.insert(0, "has group", 1)
    clear = clear.astype(np.uint64).sort_values(list(clear), ignore_index=True)
    pd.testing.assert_frame_equal(values(found, own[:1]), clear)


def test_three_owners_keep_the_persons_of_all_three() -> None:
    draw = np.random.default_rng(5)
    ids = draw.choice(10**9, 900, replace=False)
    first, second = (table.head(0) for table in frames(3, 3, 0))
    first = pd.DataFrame({"id": ids[:400], "group": draw.choice(list("abc"), 400), "x": 0.5})
    second = pd.DataFrame({"id": ids[200:600], "shop": "q", "z": 0.0, "y": True})
    third = pd.DataFrame({"id": ids[300:], "kind": draw.choice(list("uv"), 600)})
    own = (*sides(400, 405), Side(rows=600, key=("id",), columns=THIRD))
    found = joined(uploads((first, second, third), own))
    clear = levels(first, own[0]).join(levels(second, own[1])).join(levels(third, own[2]))
    clear = clear.dropna().astype(np.uint64)
    assert len(clear) == 100
    opened = values(found, own)[list(clear)]
    columns = list(clear)
    pd.testing.assert_frame_equal(
        opened.sort_values(columns, ignore_index=True),
        clear.sort_values(columns, ignore_index=True),
    )


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 2**64 - 1), max_size=20, unique=True),
    st.lists(st.integers(0, 2**64 - 1), max_size=20, unique=True),
)
def test_tables_of_any_lengths_merge(one: list[int], other: list[int]) -> None:
    other = [key for key in other if key not in one]
    tables = [np.array(sorted(keys), np.uint64).reshape(-1, 1) for keys in (one, other)]
    pair, _ = on_shares(lambda s, t: merge(s, *t), tables)
    assert xor(pair)[:, 0].tolist() == sorted(one + other)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30))
def test_words_are_compared_without_a_sign(words: list[int]) -> None:
    x = np.array(words, np.uint64)
    y = np.roll(x, 1)
    y[::3] = x[::3]
    for compare, clear in ((less, np.less), (equal, np.equal)):
        pair, _ = on_shares(lambda s, t, by=compare: by(s, *t), [x, y])
        assert (xor(pair) == clear(x, y)).all()
    pair, _ = on_shares(lambda s, t: all_set(s, [equal(s, *t)])[0], [x, y])
    assert pair[0] is pair[1] is bool((x == y).all())


def test_groups_of_bits_are_opened_as_one_bit_each() -> None:
    """Of other sizes, with one wrong bit at each place, and without bits."""
    for n in range(7):
        for place in range(-1, n):
            bits = np.arange(n) != place
            groups = [bits, np.ones(3, bool), np.zeros(0, bool), np.array([False])]

            def program(server: Any, of: Any = groups) -> list[bool]:
                return all_set(server, [group & (server.index == 0) for group in of])

            (first, second), _ = run_here(program)
            assert first == second == [place < 0, True, True, False]


# Uploads that no honest owner makes ---------------------------------------------------------------


@pytest.mark.parametrize("how", ["twice", "unsorted", "one tag"])
def test_a_table_that_is_not_sorted_stops_both_servers(how: str) -> None:
    own = sides(200, 200)
    bad, good = uploads(frames(200, 200, 0.5), own)
    if how == "twice":
        bad[5] = bad[4]
    elif how == "unsorted":
        bad[[5, 9]] = bad[[9, 5]]
    else:
        bad[:] = bad[7]
    pair, _ = on_shares(are_sorted, [bad, good])
    assert list(pair) == [[False, True], [False, True]]
    with pytest.raises(RemoteProtocolError, match="'first' is not sorted"):
        joined([bad, good])


def any_upload(draw: np.random.Generator, block: int, tags: Words) -> Words:
    """Return a table that passes the check of order: others' tags, forged bits, random words."""
    bad = draw.integers(0, 2**64, (12, 2), dtype=np.uint64)
    bad[:, 0] = np.where(draw.random(12) < 0.8, draw.choice(tags, 12), of_block(draw, block, 12))
    bad[:, 0] ^= draw.integers(0, 4, 12, dtype=np.uint64)
    bad[:, 1] |= np.uint64(1)
    return np.asarray(bad[np.unique(bad[:, 0] >> np.uint64(2), return_index=True)[1]])


def of_block(draw: np.random.Generator, block: int, n: int) -> Words:
    return np.uint64(block << 50) + draw.integers(0, 2**50, n, dtype=np.uint64)


def most_changed(how: str, blocks: int, seed: int = 0) -> int:
    """Return the most slots that a person changes, over random uploads of the first owner.

    Each block of tags is an upload and a victim: no row of it can meet one of another block.
    """
    draw = np.random.default_rng(seed)
    bad, honest = [], []
    for block in range(blocks):
        tags = np.sort(of_block(draw, block, 12)) & ~np.uint64(3)
        rows = draw.integers(0, 2**64, (12, 2), dtype=np.uint64) | np.uint64(1)
        honest.append(np.column_stack([tags, rows[:, 0]]))
        bad.append(any_upload(draw, block, tags))
    first, second = np.concatenate(bad), np.concatenate(honest)
    without = second.copy()
    without[np.arange(blocks) * 12 + draw.integers(12, size=blocks), 1] = 0
    join = inner if how == "inner" else partial(everybody, how=how)
    opened = [
        np.concatenate([found.there[:, None], *found.parts], axis=1)
        for found in (joined([first, table], join) for table in (second, without))
    ]
    tags = np.sort(np.concatenate([first[:, 0], second[:, 0]]))
    changed = (opened[0] != opened[1]).any(axis=1)
    of = (tags >> np.uint64(50)).astype(int)[: len(changed)]
    return int(np.bincount(of, weights=changed, minlength=blocks).max())


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
def test_no_upload_of_a_thousand_lets_a_person_change_more_than_one_slot(how: str) -> None:
    assert most_changed(how, blocks=1000) == 1


def test_random_words_are_bits_within_their_fields() -> None:
    draw, own = np.random.default_rng(3), sides(200, 200)
    first, second = uploads(frames(200, 200, 1.0), own)
    second[:, 1:] = draw.integers(0, 2**64, second[:, 1:].shape, dtype=np.uint64)
    found = joined([first, second])
    whole = values(found, own)
    assert found.there.sum() <= 200
    assert all(whole[c.name].max() < 1 << c.width for side in own for c in side.columns)


# Shrinking ----------------------------------------------------------------------------------------


def test_shrinking_keeps_all_persons_and_a_noisy_number_of_rows() -> None:
    """Each draw is beyond 13 deviations with a chance below 1e-36."""
    tables, own = frames(900, 900, 0.3), sides(900, 900)
    (a, b), _ = on_shares(lambda s, t: shrink(s, inner(s, t, NAMES[:2]), 5), uploads(tables, own))
    assert a[1] == b[1]
    assert abs(a[1] - 270) <= 2 * 13 * 5
    assert len(a[0].there) == a[1] + most_dummies(5)
    found = Joined(a[0].there ^ b[0].there, opened_parts(a[0], b[0]))
    pd.testing.assert_frame_equal(values(found, own), expected(tables, own, "inner"))


def test_neither_server_knows_where_a_person_is_after_shrinking() -> None:
    """Sixty places, uniform in [0, 1): off by 5 deviations of their mean in 6e-7 of runs.

    Their deviation is 0.29 and falls below 0.15 in far fewer.
    """
    own = sides(30, 30)
    tables = uploads(frames(30, 30, 1.0), own)

    def program(server: Server, shares: Any) -> list[Joined]:
        whole = inner(server, shares, NAMES[:2])
        return [shrink(server, whole, 1)[0] for _ in range(60)]

    (a, b), _ = on_shares(program, tables)
    places = []
    for one, other in zip(a, b, strict=True):
        there, first = one.there ^ other.there, one.parts[0] ^ other.parts[0]
        found = np.flatnonzero(there & (first[:, 0] == tables[0][0, 1]))
        places.append(found[0] / len(there))
    assert abs(np.mean(places) - 0.5) < 5 * 0.29 / 60**0.5
    assert np.std(places) > 0.15
