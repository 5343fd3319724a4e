"""The grid: one clip and one rounding per record, to nearest, inside the box, whatever comes."""

from __future__ import annotations

import re
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from cloister.core.errors import DataError, PlanError
from cloister.hazmat import fixedpoint
from cloister.hazmat.fixedpoint import MAX_FRAC_BITS, Contract, Grid, from_grid, round_to_grid

UNIT = Grid((-1.0, -1.0), (1.0, 1.0))
any_float = st.floats(allow_nan=False, width=64)
bounds = st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)).map(lambda b: (b[0], b[0] + b[1]))
grids = st.builds(
    lambda box, bits: Grid(tuple(b[0] for b in box), tuple(b[1] for b in box), bits),
    st.lists(bounds, min_size=1, max_size=4),
    st.integers(4, MAX_FRAC_BITS),
)


@pytest.mark.filterwarnings("ignore:overflow")
@given(grids, st.data())
def test_every_record_lands_inside_the_box(grid: Grid, data: st.DataObject) -> None:
    X = data.draw(npst.arrays(np.float64, (5, grid.n_features), elements=any_float))
    steps = grid.encode(X)
    assert steps.dtype == np.int32
    assert np.abs(steps.astype(np.int64)).max() <= grid.one


@given(grids, st.data())
def test_decoding_what_was_encoded_moves_a_record_by_half_a_step_at_most(
    grid: Grid, data: st.DataObject
) -> None:
    low, high = np.array(grid.low), np.array(grid.high)
    place = data.draw(npst.arrays(np.float64, (3, grid.n_features), elements=st.floats(0, 1)))
    X = np.clip(low + place * (high - low), low, high)
    back = grid.decode(from_grid(grid.encode(X).astype(np.int64), grid.frac_bits))
    float_error = 1e-15 * (np.abs(low) + np.abs(high))
    assert (np.abs(back - X) <= 0.5 / grid.one * grid.half_range * (1 + 1e-9) + float_error).all()


@given(grids, st.data())
def test_encoding_grid_points_again_changes_nothing(grid: Grid, data: st.DataObject) -> None:
    steps = data.draw(
        npst.arrays(np.int32, (4, grid.n_features), elements=st.integers(-grid.one, grid.one))
    )
    points = grid.decode(from_grid(steps.astype(np.int64), grid.frac_bits))
    if (grid.half_range / grid.one > 1e-12 * np.abs(grid.centre)).all():
        assert (grid.encode(points) == steps).all()


@pytest.mark.parametrize(
    ("value", "step"),
    [
        *((0.0, 0), (1.0, 65536), (-1.0, -65536), (2.0, 65536), (-7e300, -65536)),
        *((np.inf, 65536), (-np.inf, -65536), (-0.0, 0), (5e-324, 0)),
        # to nearest, ties to even; never toward zero
        *((0.4 / 65536, 0), (0.6 / 65536, 1), (-0.6 / 65536, -1), (-0.4 / 65536, 0)),
        *((0.5 / 65536, 0), (1.5 / 65536, 2), (-1.5 / 65536, -2), (1 - 0.4 / 65536, 65536)),
    ],
)
def test_rounding_by_hand(value: float, step: int) -> None:
    assert UNIT.encode([[value, 0.0]]).tolist() == [[step, 0]]


@given(st.floats(-1, 1))
def test_rounding_is_to_nearest_exactly(value: float) -> None:
    step = int(UNIT.encode([[value, 0.0]])[0, 0])
    assert abs(Fraction(value) - Fraction(step, UNIT.one)) <= Fraction(1, 2 * UNIT.one)


def test_a_record_does_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(0, 1, (300_000, 2))  # several chunks
    steps = UNIT.encode(X)
    assert (UNIT.encode(X[::-1])[::-1] == steps).all()
    assert (UNIT.encode(X[777:778]) == steps[777]).all()
    assert (UNIT.encode(X[:1000]) == steps[:1000]).all()


def test_a_row_longer_than_a_chunk_is_read_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixedpoint, "_CHUNK_VALUES", 1)
    assert UNIT.encode([[0, 1], [1, 0]]).tolist() == [[0, UNIT.one], [UNIT.one, 0]]


def test_a_large_table_is_never_copied_whole_as_floats() -> None:
    X = np.zeros((1 << 20, 2), dtype=np.int8)
    tracemalloc.start()
    try:
        steps = UNIT.encode(X)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * steps.nbytes  # its copy would add twice as much


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "u1", "?", ">f8"])
def test_any_real_type_is_read(dtype: str) -> None:
    X = np.array([[0, 1], [1, 0]]).astype(dtype)
    assert UNIT.encode(X).tolist() == [[0, UNIT.one], [UNIT.one, 0]]


def test_columns_have_boxes_of_their_own() -> None:
    grid = Grid((0, -10), (100, 30), 8)
    assert grid.encode([[50, 10], [100, 30], [0, -10], [25, 0], [999, -999]]).tolist() == [
        [0, 0],
        [256, 256],
        [-256, -256],
        [-128, -128],
        [256, -256],
    ]
    assert grid.normalise([[25, 0]]).tolist() == [[-0.5, -0.5]]
    assert grid.decode([[-0.5, -0.5]]).tolist() == [[25, 0]]


@pytest.mark.parametrize("shape", [(2,), (1, 1), (1, 3), (1, 2, 1), ()])
def test_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="2 columns"):
        UNIT.encode(np.zeros(shape))


def test_no_records_are_records() -> None:
    assert UNIT.encode(np.empty((0, 2))).shape == (0, 2)


def test_a_missing_value_is_refused_without_naming_anything() -> None:
    with pytest.raises(DataError, match="missing values") as caught:
        UNIT.encode([[0.123456789, 0], [0, np.nan]])
    assert "123456" not in str(caught.value)


@pytest.mark.parametrize(
    ("low", "high", "match"),
    [
        ((), (), "one low and one high"),
        ((0,), (1, 2), "one low and one high"),
        ((1.0,), (1.0,), "low < high"),
        ((2.0,), (1.0,), "low < high"),
        ((0.0,), (np.inf,), "finite"),
        ((np.nan,), (1.0,), "finite"),
        ((-1e308,), (1e308,), "finite"),  # the width overflows
        ((0.0,), (5e-324,), "low < high"),  # half the width is zero
    ],
)
def test_unusable_bounds_are_refused(low: tuple, high: tuple, match: str) -> None:
    with pytest.raises(PlanError, match=match):
        Grid(low, high)


@pytest.mark.parametrize("bits", [-1, 0, 3, 25, 64])
def test_a_lattice_out_of_range_is_refused(bits: int) -> None:
    with pytest.raises(PlanError, match="frac_bits"):
        Grid((0,), (1,), bits)


@given(npst.arrays(np.int64, 7, elements=st.integers(-(2**40), 2**40)), st.integers(4, 24))
def test_public_state_on_the_grid_stays_there(steps: np.ndarray, bits: int) -> None:
    assert (round_to_grid(from_grid(steps, bits), bits) == steps).all()


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308, 2.0**47, -(2.0**47)])
def test_public_state_is_finite_and_fits_the_ring(value: float) -> None:
    with pytest.raises(PlanError, match="finite"):
        round_to_grid([0.0, value], 16)


def test_public_state_just_inside_the_ring_is_taken() -> None:
    largest = np.nextafter(2.0**63, 0)
    edges = np.array([largest, -largest])
    assert round_to_grid(edges / 2.0**16, 16).tolist() == [2**63 - 1024, 1024 - 2**63]


# --- The contract of records ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["columns", "unit", "max_rows", "schema_digest"])
def test_records_of_another_contract_are_refused_with_both_values(name: str) -> None:
    """The contract of the plan comes last: "theirs in place of ours"."""
    ours = {"columns": ("a",), "unit": "row", "max_rows": 1, "schema_digest": "00"}
    theirs = {"columns": ("b",), "unit": "id", "max_rows": 2, "schema_digest": "11"}
    grid = Grid((0.0,), (1.0,))
    asked = Contract(grid, **ours)  # type: ignore[arg-type]
    read = SimpleNamespace(contract=Contract(grid, **{**ours, name: theirs[name]}))  # type: ignore[arg-type]
    words = f"their {name} differ: {theirs[name]!r} in place of {ours[name]!r}"
    with pytest.raises(PlanError, match=re.escape(words)):
        asked.check(read)


@pytest.mark.parametrize("name", ["columns", "schema_digest"])
def test_a_contract_that_does_not_say_fits_one_that_does(name: str) -> None:
    grid = Grid((0.0,), (1.0,))
    whole = Contract(grid, ("a",), schema_digest="00")
    silent = replace(whole, **{name: type(getattr(whole, name))()})
    whole.check(SimpleNamespace(contract=silent))
    silent.check(SimpleNamespace(contract=whole))
