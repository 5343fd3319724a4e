"""The hot loop against plain Python integers: exact for any split, any tie, any size it allows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core import compiled
from cloister.core.errors import PlanError
from cloister.tasks.clipped import sum_clipped_near, sum_moments_near
from cloister.tasks.clustering.kmeans import MAX_CENTRE_NORM
from cloister.tasks.clustering.lloyd_kernel import (
    _largest,
    assigned,
    check_exact,
    nearest_centres,
    sum_near_centres,
)

pytestmark = pytest.mark.usefixtures("each_instruction_set")


def labels_by_hand(records: np.ndarray, centres: np.ndarray) -> list[int]:
    """The nearest centre, in Python's integers; ties go to the smaller index."""
    labels = []
    for record in records.tolist():
        distances = [
            sum((x - c) ** 2 for x, c in zip(record, centre, strict=True))
            for centre in centres.tolist()
        ]
        labels.append(distances.index(min(distances)))
    return labels


def by_hand(
    records: np.ndarray, centres: np.ndarray, radius_squared: int, relative: bool, count_weight: int
) -> list[list[int]]:
    """The definition, in Python's integers, one record at a time."""
    k, d = centres.shape
    total = [[0] * (d + 1) for _ in range(k)]
    for record, label in zip(records.tolist(), labels_by_hand(records, centres), strict=True):
        origin = centres[label].tolist() if relative else [0] * d
        added = [x - c for x, c in zip(record, origin, strict=True)]
        if sum(v * v for v in added) <= radius_squared:
            for column, value in enumerate(added):
                total[label][column] += value
            total[label][d] += count_weight
    return total


@st.composite
def cases(draw: st.DrawFn) -> tuple:
    d, k = draw(st.sampled_from([1, 2, 4, 5, 9])), draw(st.integers(1, 9))
    n = draw(st.sampled_from([0, 1, 7, 40]))
    one = 1 << draw(st.sampled_from([4, 16, 20]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    span = draw(st.sampled_from([1, 2, one]))  # small spans make ties and duplicates
    records = rng.integers(-span, span + 1, (n, d), dtype=np.int32)
    centres = rng.integers(-span, span + 1, (k, d))
    radius_squared = int(rng.integers(0, 4 * d * span**2 + 1))
    return records, centres, radius_squared, draw(st.booleans()), draw(st.integers(1, one))


@given(cases())
def test_the_kernel_is_its_definition(case: tuple) -> None:
    records, centres, radius_squared, relative, count_weight = case
    fast = sum_near_centres(
        records,
        centres,
        radius_squared=radius_squared,
        relative=relative,
        count_weight=count_weight,
    )
    assert fast.dtype == np.int64
    assert fast.tolist() == by_hand(*case)
    labels = nearest_centres(records, centres)
    assert labels.dtype == np.int64
    assert labels.tolist() == labels_by_hand(records, centres)


@given(cases(), st.integers(0, 40))
def test_any_split_adds_up_to_the_whole(case: tuple, cut: int) -> None:
    records, centres, radius_squared, relative, count_weight = case
    options = {"radius_squared": radius_squared, "relative": relative, "count_weight": count_weight}
    whole = sum_near_centres(records, centres, **options)
    parts = sum_near_centres(records[:cut], centres, **options)
    parts += sum_near_centres(records[cut:], centres, **options)
    assert (whole == parts).all()
    assert (sum_near_centres(records[::-1], centres, **options) == whole).all()


@pytest.mark.parametrize(("n", "k", "d"), [(80_000, 3, 2), (5_000, 100, 3), (3_000, 5, 40)])
def test_many_chunks_are_one_sum(n: int, k: int, d: int) -> None:
    rng = np.random.default_rng(1)
    records = rng.integers(-65536, 65537, (n, d), dtype=np.int32)
    centres = rng.integers(-65536, 65537, (k, d))
    options = {"radius_squared": d * 65536**2 // 4, "relative": True, "count_weight": 9}
    whole = sum_near_centres(records, centres, **options)
    parts = sum(sum_near_centres(part, centres, **options) for part in np.array_split(records, 7))
    assert (whole == parts).all()
    labels = ((records[:, None, :] - centres) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest_centres(np.asfortranarray(records), centres) == labels).all()
    near = ((records - centres[labels]) ** 2).sum(axis=1) <= d * 65536**2 // 4
    assert (whole[:, -1] == 9 * np.bincount(labels[near], minlength=k)).all()


def with_one_step(rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
    return values + rng.integers(-1, 2, values.shape)


@st.composite
def near_ties(draw: st.DrawFn) -> tuple:
    """Records and centres between which floats of 24 bits cannot always decide."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    one = 1 << draw(st.sampled_from([4, 8, 16, 20, 24]))
    d = draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 70]))
    n, k = draw(st.sampled_from([1, 15, 33, 511, 1025])), draw(st.sampled_from([1, 2, 5, 8, 40]))
    records = {
        "anywhere": lambda: rng.integers(-one, one + 1, (n, d)),
        "corners": lambda: rng.choice([-one, 0, one], (n, d)),
        "one corner": lambda: np.full((n, d), one),
        "middle": lambda: rng.integers(-2, 3, (n, d)),
        "diagonal": lambda: np.repeat(rng.integers(-one, one + 1, (n, 1)), d, axis=1),
    }
    records = records[draw(st.sampled_from(list(records)))]().astype(np.int32)
    anywhere = rng.integers(-one, one + 1, (k, d))
    centres = {
        "anywhere": lambda: anywhere,
        "all alike": lambda: np.repeat(anywhere[:1], k, axis=0),
        "mirrored": lambda: anywhere[:1] * rng.choice([-1, 1], (k, d)),
        "on records": lambda: records[rng.integers(0, n, k)].astype(np.int64),
        "one step apart": lambda: with_one_step(rng, np.repeat(anywhere[:1], k, axis=0)),
    }
    centres = np.clip(centres[draw(st.sampled_from(list(centres)))](), -one, one)
    relative = draw(st.booleans())
    if (2 * one) ** 2 * d * 64 >= 2**53:  # too fine for so many columns and centres
        records, centres, one = records >> 6, centres >> 6, one >> 6
    at = records[rng.integers(0, n)].astype(np.int64)
    on_radius = ((at - centres) ** 2).sum(axis=1).min() if relative else (at**2).sum()
    return records, centres, max(0, int(on_radius) - draw(st.integers(0, 1))), relative, one


@given(near_ties())
def test_near_ties_are_decided_exactly(case: tuple) -> None:
    records, centres, radius_squared, relative, one = case
    distances = ((records[:, None, :].astype(np.int64) - centres) ** 2).sum(axis=2)
    labels = distances.argmin(axis=1)
    assert (nearest_centres(records, centres) == labels).all()
    squared = distances.min(axis=1) if relative else (records.astype(np.int64) ** 2).sum(axis=1)
    near = squared <= radius_squared
    sums = np.zeros((len(centres), centres.shape[1] + 1), dtype=np.int64)
    origins = centres[labels] if relative else 0
    np.add.at(sums[:, :-1], labels[near], (records - origins)[near])
    np.add.at(sums[:, -1], labels[near], 3)
    found = sum_near_centres(
        records,
        centres,
        radius_squared=radius_squared,
        relative=relative,
        count_weight=3,
        one=one,
    )
    assert (found == sums).all()


def in_order(*tables: np.ndarray) -> np.ndarray:
    if not compiled.can_order():
        pytest.skip("nothing is compiled, or NumPy is asked for")
    return compiled.ordered(tables)


@given(near_ties(), st.sampled_from([1, 300]), st.integers(0, 1025))
def test_records_in_order_have_the_same_sums(case: tuple, times: int, cut: int) -> None:
    records, centres, radius_squared, relative, one = case
    records = np.repeat(records, times, axis=0)[:9000]
    options = {
        "radius_squared": radius_squared,
        "relative": relative,
        "count_weight": 3,
        "one": one,
    }
    found = sum_near_centres(in_order(records[:cut], records[cut:]), centres, **options)
    assert (found == sum_near_centres(records, centres, **options)).all()


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 4.0])
@pytest.mark.parametrize(("n", "k", "d"), [(20_000, 100, 2), (20_000, 7, 3), (9000, 5, 40)])
def test_whole_leaves_add_what_their_records_would(
    n: int, k: int, d: int, part: float, relative: bool
) -> None:
    rng = np.random.default_rng(4)
    centres = rng.integers(-65536, 65537, (k, d))
    near = centres[rng.integers(0, k, n)] + rng.integers(-3000, 3001, (n, d))
    records = np.clip(near, -65536, 65536).astype(np.int32)
    records[:, 0] = np.sign(records[:, 0]) * 65536  # a column of few values
    options = {"radius_squared": int(part * d * 65536**2), "relative": relative, "count_weight": 3}
    table = in_order(*np.array_split(records, 5))
    assert (
        sum_near_centres(table, centres, **options) == sum_near_centres(records, centres, **options)
    ).all()


@pytest.mark.parametrize("n", [0, 1, 256, 257])
def test_order_keeps_every_record_and_nobody_can_change_one(n: int) -> None:
    records = np.random.default_rng(5).integers(-9, 10, (n, 3), dtype=np.int32)
    table = in_order(records)
    assert sorted(table.tolist()) == sorted(records.tolist())
    assert table.tolist() == in_order(records).tolist()
    assert not table.flags.writeable
    assert getattr(table[:1], "tree", None) is None


def test_sums_of_the_finest_grid_do_not_wrap() -> None:
    one = 1 << 24
    records = np.full((9000, 1), -one, dtype=np.int32)
    records[::2] = one
    total = sum_near_centres(
        records, np.array([[5]]), radius_squared=1 << 50, relative=False, count_weight=1, one=one
    )
    assert total.tolist() == [[0, 9000]]
    total = sum_near_centres(
        records[::2],
        np.array([[5]]),
        radius_squared=1 << 50,
        relative=False,
        count_weight=1,
        one=one,
    )
    assert total.tolist() == [[4500 * one, 4500]]


def test_the_radius_is_inclusive_and_exact_to_one_step() -> None:
    centre = np.array([[1000, -1000]])
    for move, counted in (((3, 4), 1), ((-4, 3), 1), ((4, 4), 0), ((5, 1), 0), ((0, 0), 1)):
        record = (centre + np.array(move)).astype(np.int32)
        total = sum_near_centres(record, centre, radius_squared=25, relative=True, count_weight=7)
        assert total.tolist() == [[counted * move[0], counted * move[1], counted * 7]]


def test_the_same_test_drives_sums_and_counts() -> None:
    # a record outside the radius of its nearest centre counts nowhere, not at the next centre
    records = np.array([[50]], dtype=np.int32)
    centres = np.array([[0], [200]])
    total = sum_near_centres(records, centres, radius_squared=49**2, relative=True, count_weight=1)
    assert total.tolist() == [[0, 0], [0, 0]]


def test_an_empty_cluster_is_exactly_zero() -> None:
    records = np.array([[5, 5], [6, 6]], dtype=np.int32)
    centres = np.array([[0, 0], [60000, 60000]])
    total = sum_near_centres(records, centres, radius_squared=2**40, relative=True, count_weight=3)
    assert total.tolist() == [[11, 11, 6], [0, 0, 0]]
    empty = sum_near_centres(records[:0], centres, radius_squared=1, relative=True, count_weight=3)
    assert empty.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_ties_go_to_the_smaller_index() -> None:
    records = np.array([[0]], dtype=np.int32)
    for centres in ([[-5], [5]], [[5], [-5]], [[5], [5]]):
        total = sum_near_centres(
            records, np.array(centres), radius_squared=99, relative=False, count_weight=1
        )
        assert total[:, -1].tolist() == [1, 0]


def test_the_largest_coordinate_counts_either_way_and_is_1_at_least() -> None:
    """By it a loop is chosen that is exact up to there."""
    for rows, largest in (([[-7, 3]], 7), ([[3, -2]], 3), ([[-7, -2]], 7), ([[0, 0]], 1)):
        assert _largest(np.array(rows, dtype=np.int32)) == largest
    assert _largest(np.empty((0, 2), dtype=np.int32)) == 1


# The largest sizes each lattice allows: just inside, all distances are exact.
LIMITS = [
    (1, 1, 24, 1),
    (3, 1, 24, 1),
    (2, 250, 20, 1),
    (100, 7, 20, 1),
    (4, 1, 22, MAX_CENTRE_NORM),
]


@pytest.mark.parametrize(("k", "d", "bits", "reach"), LIMITS)
def test_distances_are_exact_at_the_largest_sizes_allowed(
    k: int, d: int, bits: int, reach: int
) -> None:
    check_exact(k, d, bits, reach)
    one, rng = 1 << bits, np.random.default_rng(2)
    records = rng.choice([-one, one, one - 1, 1 - one], (60, d)).astype(np.int32)
    far = reach * one
    centres = rng.choice([-far, far, 1 - far, far - 1], (k, d))
    radius_squared = int(np.median(((records - centres[0]).astype(object) ** 2).sum(axis=1)))
    for relative in (True, False):
        fast = sum_near_centres(
            records, centres, radius_squared=radius_squared, relative=relative, count_weight=1
        )
        assert fast.tolist() == by_hand(records, centres, radius_squared, relative, 1)
    assert nearest_centres(records, centres).tolist() == labels_by_hand(records, centres)


@pytest.mark.parametrize(
    ("k", "d", "bits", "reach", "match"),
    [
        (8, 2, 24, 1, "frac_bits=23"),
        (1000, 784, 16, 1, "frac_bits=15"),
        (1, 1, 24, MAX_CENTRE_NORM, "frac_bits=23"),
        (2**30, 2**30, 16, 1, "fewer clusters or columns"),
    ],
)
def test_sizes_that_would_not_be_exact_are_refused_with_the_way_out(
    k: int, d: int, bits: int, reach: int, match: str
) -> None:
    with pytest.raises(PlanError, match=match):
        check_exact(k, d, bits, reach)


@pytest.mark.parametrize("step", ["sum", "labels", "clipped", "moments"])
def test_no_array_of_all_pairs_is_made(step: str) -> None:
    import tracemalloc

    rng = np.random.default_rng(3)
    n, k, d = 60_000, 100, 8
    records = rng.integers(-65536, 65537, (n, d), dtype=np.int32)
    centres = rng.integers(-65536, 65537, (k, d))
    options = {"radius_squared": 2**34, "relative": True, "count_weight": 1}
    steps = {
        "sum": lambda: sum_near_centres(records, centres, **options),
        "labels": lambda: nearest_centres(records, centres),
        "clipped": lambda: sum_clipped_near(records, centres, np.full(k, 9), 65536),
        "moments": lambda: sum_moments_near(
            records, centres, np.full(k, 9), 65536, np.full(k, 9), 4096
        ),
    }
    tracemalloc.start()
    steps[step]()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * n * k / 10  # one float for each pair would take ten times as much
    assert peak < 8 * 2**20


@pytest.mark.parametrize(("k", "d", "flags"), [(32, 8, 32), (33, 8, 1), (20, 5, 20), (16, 4, 1)])
def test_a_part_has_distances_flags_and_columns_of_a_mebibyte(k: int, d: int, flags: int) -> None:
    """Flags of each cluster only where sums are a product of matrices."""
    records, centres = np.zeros((20_000, d), dtype=np.int32), np.zeros((k, d), dtype=np.int64)
    _, labels, _ = next(assigned(records, centres))
    assert len(labels) == 2**20 // (8 * (k + flags + d))
