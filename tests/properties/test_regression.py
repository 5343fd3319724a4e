"""Regression: what one record adds is bounded by the plan, whatever the record and the state."""

from __future__ import annotations

from bisect import bisect_left
from math import ceil, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cloister.protocol.task import COUNT_BITS
from cloister.tasks.columns import codes
from cloister.tasks.moments import PRODUCT, SQUARE
from cloister.tasks.supervised.frame import Frame, Placed
from cloister.tasks.supervised.logistic import Logistic
from cloister.tasks.supervised.prior_scales import BINS, TAILS, edges

from .cases import DESIGNS, any_model


@pytest.mark.parametrize(
    "name", ["logistic, two classes", "logistic, three classes", "linear, plain"]
)
def test_the_first_round_counts_each_record(name: str) -> None:
    """It needs no state: where columns lie is not known yet."""
    task = DESIGNS[name].build()
    records, states = DESIGNS[name].worst(task), any_model(task, 0)
    counted = [task.contribute(0, states[0], records[i : i + 1]) for i in range(len(records))]
    assert all(one.any() for one in counted)
    assert (counted[0] == counted[1]).all()
    assert (counted[0] != counted[2]).any()
    assert (task.contribute(0, states[1], records) == sum(counted)).all()


LEVELS = (0, 3, 0, 2)


def placed_at(frame: Frame, rng: np.random.Generator) -> Placed:
    """Return places as a release may show them; windows also of no width and beyond the box."""
    before = frame.unplaced()
    centre = rng.uniform(-1, 1, frame.width)
    centre[2:5], centre[6:8] = rng.integers(0, 9, 3) / 8, rng.integers(0, 9, 2) / 8
    centre[-1] = 0.0
    scale = rng.choice([1.0, 0.7, 16.0, 300.0], frame.width)
    window = rng.choice([-1.0, -0.3, -1e-9, 0.0, 0.25, 1.0, 2.0], before.window.shape)
    return Placed(centre, scale, before.square, before.alike, window)


def some_records(data: st.DataObject, one: int) -> np.ndarray:
    cells = st.sampled_from([-one, -1, 0, 1, one]) | st.integers(-one, one)
    drawn = data.draw(arrays(np.int32, st.tuples(st.integers(0, 6), st.just(4)), elements=cells))
    layout = data.draw(st.sampled_from([np.ascontiguousarray, np.asfortranarray, sparse]))
    return layout(drawn)


def sparse(table: np.ndarray) -> np.ndarray:
    """Return the same table with gaps between its cells."""
    return np.repeat(np.repeat(table, 2, axis=0), 3, axis=1)[::2, ::3]


def toward_zero(value: int, bits: int) -> int:
    return (abs(value) >> bits) * (1 if value >= 0 else -1)


def plain_entries(
    frame: Frame, placed: Placed, record: np.ndarray, length: float
) -> tuple[list[float], list[int], list[int]]:
    """Return the numbers of a shortened row, its factor, and its entries of categories.

    They are in steps of ``2**-20``, ``2**-17`` and ``2**-3``.
    """
    one, numbers, tables = 1 << frame.frac_bits, [], []
    at = {0: 0, 1: slice(1, 4), 2: 4, 3: slice(5, 7)}
    for j, levels in enumerate(LEVELS):
        if levels:
            indicator = np.eye(levels)[codes(record[j : j + 1], levels, frame.frac_bits)[0]]
            tables += [round(8 * v) for v in (indicator - placed.centre[at[j]]).tolist()]
        else:
            x, centre, scale = float(record[j]), placed.centre[at[j]], placed.scale[at[j]]
            numbers.append((x - float(centre * one)) * float(scale / one))
    numbers.append(1.0)
    squared = sum(v * v for v in tables) / 64.0
    for value in numbers:
        squared += value * value
    steps = int(2.0**17 * (frame.clip / max(sqrt(squared), length)))
    whole = [int(v * float(8 * steps)) for v in numbers]
    if sum(v * v for v in whole) + steps**2 * sum(v * v for v in tables) > frame.norm_squared:
        steps, whole = 0, [0] * len(whole)
    return whole, steps, tables


@given(data=st.data(), frac_bits=st.sampled_from([4, 16, 24]), seed=st.integers(0, 999))
def test_bins_are_those_of_a_search_for_each_record(
    data: st.DataObject, frac_bits: int, seed: int
) -> None:
    frame = Frame(LEVELS, frac_bits, (), 16.0)
    placed, one = placed_at(frame, np.random.default_rng(seed)), 1 << frac_bits
    records = some_records(data, one)
    spreads = frame.count_spreads(placed, records).reshape(2, BINS + 2 * TAILS) >> COUNT_BITS
    places = frame.count_places(records) >> COUNT_BITS
    for i, j in enumerate((0, 2)):
        for window, found, skip in (
            (placed.window[i], spreads[i], 0),
            (np.array([-1.0, 1.0]), places[i * BINS : (i + 1) * BINS], TAILS),
        ):
            low, high = np.clip(window * one, -one, one).tolist()
            between = edges(low - 0.5, max(low, high) + 0.5)[1:-1].tolist()
            plain = [0] * (BINS + 2 * TAILS)
            for value in records[:, j].tolist():
                plain[bisect_left(between, value)] += 1
            assert found.tolist() == plain[skip : len(plain) - skip]
    assert places[-1] == len(records)


@given(
    data=st.data(),
    frac_bits=st.sampled_from([4, 16, 24]),
    clip=st.sampled_from([0.05, 1.0, 16.0, 32.0]),
    length=st.sampled_from([1e-3, 1.0, 5.0, 400.0]),
    seed=st.integers(0, 999),
)
def test_sums_of_rows_are_those_of_plain_integers(
    data: st.DataObject, frac_bits: int, clip: float, length: float, seed: int
) -> None:
    """Row by row in integers without bound, from numbers that are floats once only."""
    frame, rng = Frame(LEVELS, frac_bits, (), clip), np.random.default_rng(seed)
    placed = placed_at(frame, rng)
    records = some_records(data, 1 << frac_bits)
    residuals = rng.choice([-1.0, -0.7, -1e-9, 0.0, 0.3, 0.999], (2, len(records)))
    weights = np.abs(residuals[0]) / 4
    places = [0, 4, 7]
    rows, gradients = np.zeros(8, object), np.zeros((2, 8), object)
    products, weighed = np.zeros((8, 8), object), np.zeros((8, 8), object)
    down, bits = 44 - frame.gradient_bits(1.0), 40 - frame.products_bits
    for record, residual, weight in zip(records, residuals.T, weights, strict=True):
        whole, steps, tables = plain_entries(frame, placed, record, length)
        others = [k for k in range(8) if k not in places]
        # every entry is a number that is cut, times one that is not
        cut, times = np.zeros(8, object), np.ones(8, object)
        cut[places], cut[others], times[others] = whole, steps, tables
        rows += cut * times
        words = [int(r * 2.0**24) for r in residual]
        if sum(w * w for w in words) <= ceil(1.0 * 4**24):
            for output, word in zip(gradients, words, strict=True):
                output += [toward_zero(v * word, down) * m for v, m in zip(cut, times, strict=True)]
        w = int(weight * 2.0**24)
        less = [toward_zero(v * w, 24) for v in cut]
        for a, b in zip(*np.triu_indices(8), strict=True):
            # of two entries the weight is cut into a number, if one is, and into the later of two
            first, last = (b, a) if a in places and b not in places else (a, b)
            products[a, b] += toward_zero(cut[a] * cut[b], bits) * times[a] * times[b]
            weighed[a, b] += toward_zero(cut[first] * less[last], bits) * times[a] * times[b]
    found = np.zeros(8, np.int64)
    found_gradients, packed, packed_weighed = np.zeros((2, 8), np.int64), 0, 0
    for where, part in frame.whole(placed, records):
        made = frame.rows(part, length)
        found += frame.sum_rows(made)
        found_gradients += frame.sum_gradients(made, residuals[:, where], 1.0)
        packed = packed + frame.sum_row_products(made)
        packed_weighed = packed_weighed + frame.sum_curvature(made, weights[None, where], 0.25)[0]
    upper = np.triu_indices(8)
    factor = np.where(upper[0] == upper[1], SQUARE, PRODUCT)
    assert found.tolist() == rows.tolist()
    assert found_gradients.tolist() == gradients.tolist()
    if len(records):
        assert packed.tolist() == (products[upper] * factor).tolist()
        assert packed_weighed.tolist() == (weighed[upper] * factor).tolist()


@given(arrays(np.float64, (1, 9), elements=st.floats(-1e4, 1e4) | st.sampled_from([0.0, -0.0])))
def test_two_classes_have_the_logistic_function_and_its_mirror_image(margins: np.ndarray) -> None:
    """To the last bit: states and sums follow from it."""
    task = DESIGNS["logistic, two classes"].build()
    assert isinstance(task, Logistic)
    small = np.exp(-np.abs(margins[0]))
    plain = [np.where(way * margins[0] >= 0, 1.0, small) / (1 + small) for way in (-1, 1)]
    assert task._predicted(margins).tobytes() == np.stack(plain).tobytes()
