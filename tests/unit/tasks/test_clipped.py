"""Clipped sums against their definition in plain Python, one record at a time, to the last bit."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.tasks.clipped import (
    clip_to_unit,
    differences,
    of_columns,
    sum_clipped_near,
    sum_moments_near,
)
from cloister.tasks.clustering.lloyd_kernel import nearest_centres
from cloister.tasks.moments import PRODUCT, SQUARE, chunks

pytestmark = pytest.mark.usefixtures("each_instruction_set")


def clipped(difference: list[int], radius: int, unit: int) -> list[int]:
    """The definition: divided by the larger of radius and length, cut, zeroed if still too long."""
    length = sqrt(sum(v * v for v in difference))
    found = [int(float(v) * unit / max(length, radius)) for v in difference]
    return found if sum(v * v for v in found) <= unit**2 else [0] * len(found)


def by_hand(
    records: np.ndarray, centres: np.ndarray, radii: np.ndarray, unit: int
) -> tuple[list[list[int]], list[int]]:
    k, d = centres.shape
    sums, counts = [[0] * d for _ in range(k)], [0] * k
    for record in records.tolist():
        moves = [
            [x - c for x, c in zip(record, centre, strict=True)] for centre in centres.tolist()
        ]
        distances = [sum(v * v for v in move) for move in moves]
        label = distances.index(min(distances))  # ties go to the smaller index
        added = clipped(moves[label], int(radii[label]), unit)
        sums[label] = [a + b for a, b in zip(sums[label], added, strict=True)]
        counts[label] += 1
    return sums, counts


@st.composite
def cases(draw: st.DrawFn) -> tuple:
    d, k = draw(st.sampled_from([1, 2, 4, 5, 9])), draw(st.integers(1, 9))
    n = draw(st.sampled_from([0, 1, 7, 300]))
    one = 1 << draw(st.sampled_from([4, 16, 20]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    span = draw(st.sampled_from([1, 2, one]))  # small spans make ties and duplicates
    records = rng.integers(-span, span + 1, (n, d), dtype=np.int32)
    arrangements = {
        "rows": records,
        "columns": np.asfortranarray(records),
        "every second": np.repeat(records, 2, axis=0)[::2],
    }
    centres = rng.integers(-span, span + 1, (k, d))
    radii = rng.choice([1, span, 3 * one], k)
    return arrangements[draw(st.sampled_from(list(arrangements)))], centres, radii, one


@given(cases())
def test_clipped_sums_are_their_definition_to_the_last_bit(case: tuple) -> None:
    sums, counts = sum_clipped_near(*case)
    assert sums.dtype == counts.dtype == np.int64
    assert (sums.tolist(), counts.tolist()) == by_hand(*case)


def moments_by_hand(
    records: np.ndarray, centres: np.ndarray, reach: np.ndarray, fine: int
) -> list[list[int]]:
    k, d = centres.shape
    pairs = [(i, j) for i in range(d) for j in range(i, d)]
    moments = [[0] * len(pairs) for _ in range(k)]
    for record, label in zip(records, nearest_centres(records, centres), strict=True):
        row = clipped((record - centres[label]).tolist(), int(reach[label]), fine)
        for at, (i, j) in enumerate(pairs):
            moments[label][at] += row[i] * row[j] * (SQUARE if i == j else PRODUCT)
    return moments


@given(cases(), st.sampled_from([1, 4096, 1 << 20]))
def test_moments_are_their_definition_to_the_last_bit(case: tuple, fine: int) -> None:
    records, centres, radii, _ = case
    reach = radii[::-1].copy()  # another radius than that of the sums
    sums, counts, moments = sum_moments_near(*case, reach, fine)
    assert (sums.tolist(), counts.tolist()) == by_hand(*case)
    assert moments.dtype == np.int64
    assert moments.tolist() == moments_by_hand(records, centres, reach, fine)


@pytest.mark.parametrize("d", [16, 32, 33])
def test_moments_of_many_columns_and_records_are_sums_of_those_of_parts(d: int) -> None:
    """From 33 columns on they are products of matrices."""
    rng = np.random.default_rng(4)
    records = rng.integers(-65536, 65537, (1500, d), dtype=np.int32)
    centres, radii = rng.integers(-65536, 65537, (3, d)), np.array([1, 70_000, 200_000])
    case = centres, radii, 65536, radii[::-1].copy(), 4096
    whole = sum_moments_near(records, *case)
    parts = [sum_moments_near(part, *case) for part in np.array_split(records, 5)]
    for found, *halves in zip(whole, *parts, strict=True):
        assert (found == sum(halves)).all()
    assert whole[2][:, :5].tolist() == [
        row[:5] for row in moments_by_hand(records, centres, case[3], 4096)
    ]


@given(cases())
def test_a_clipped_row_is_its_definition_to_the_last_bit(case: tuple) -> None:
    records, centres, radii, unit = case
    differences = records - centres[0]
    found = clip_to_unit(differences, int(radii[0]), unit)
    assert found.dtype == np.int64
    assert found.tolist() == [clipped(row, int(radii[0]), unit) for row in differences.tolist()]


def test_a_row_that_rounding_leaves_too_long_is_set_to_zero() -> None:
    """Its length is rounded to that of its first number, so its squared norm would be 2**52 + 1."""
    unit = 1 << 26
    row = [17 * unit, 17]
    assert [int(v * unit / sqrt(row[0] ** 2 + row[1] ** 2)) for v in row] == [unit, 1]
    assert clip_to_unit(np.array([row, [2 * unit, 1]]), 1, unit).tolist() == [[0, 0], [unit, 0]]


@pytest.mark.parametrize(("rows", "columns"), [(70_000, 0), (70_000, 1), (300, 257), (300, 4096)])
def test_parts_of_records_hold_65_536_numbers_or_256_rows(rows: int, columns: int) -> None:
    parts = chunks(np.zeros((rows, columns), dtype=np.int32))
    most = 256 if columns > 256 else 65_536
    assert [part.shape for part in parts] == [(most, columns), (rows - most, columns)]


@pytest.mark.parametrize("n", [0, 1, 63, 64, 200])
def test_of_columns_is_exact_and_counts_zero(n: int) -> None:
    records = np.random.default_rng(n).integers(2**30, 2**31 - 1, (n, 3), dtype=np.int32)
    zero = np.zeros((1, 3), dtype=np.int64)
    for reduce in (np.add, np.minimum, np.maximum):
        expected = reduce.reduce(np.concatenate([zero, records]), axis=0)
        assert of_columns(reduce, records).tolist() == expected.tolist()


def test_differences_are_exact() -> None:
    records = np.array([[2**31 - 1, -(2**31)], [5, 7]], dtype=np.int32)
    (found,) = differences(records, np.array([-(2**31), 3]))
    assert found.tolist() == [[2**32 - 1, -(2**31) - 3], [2**31 + 5, 4]]
    assert not [*differences(records[:0], records[0])]


@pytest.mark.parametrize(("n", "k", "d"), [(20_000, 3, 2), (5_000, 100, 3), (3_000, 5, 40)])
def test_many_parts_are_one_clipped_sum(n: int, k: int, d: int) -> None:
    rng = np.random.default_rng(1)
    records = rng.integers(-65536, 65537, (n, d), dtype=np.int32)
    centres, radii = rng.integers(-65536, 65537, (k, d)), rng.integers(1, 90_000, k)
    sums, counts = sum_clipped_near(records, centres, radii, 65536)
    parts = [sum_clipped_near(part, centres, radii, 65536) for part in np.array_split(records, 7)]
    assert (sums == sum(part for part, _ in parts)).all()
    assert (counts == sum(part for _, part in parts)).all()
    assert counts.sum() == n
    assert (np.abs(sums) <= 65536 * counts[:, None]).all()


def test_centres_far_outside_what_is_exact_break_no_bound() -> None:
    """The bound holds for any public state, even where the nearest centre is a guess."""
    rng = np.random.default_rng(2)
    records = rng.integers(-65536, 65537, (500, 3), dtype=np.int32)
    centres = rng.integers(-(2**40), 2**40, (5, 3))
    for record in records:
        sums, counts = sum_clipped_near(record[None], centres, np.ones(5, dtype=np.int64), 65536)
        assert sum(v * v for v in sums.ravel().tolist()) <= 65536**2
        assert counts.sum() == 1
