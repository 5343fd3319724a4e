"""What is worked out from a record is cut toward zero; products are exact; signs are a rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.app.job import make_plan
from cloister.core.errors import PlanError
from cloister.data.schema import schema_of
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.hazmat.ring import to_words
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.protocol.progress import Progress
from cloister.protocol.task import Integers
from cloister.tasks import installed, moments
from cloister.tasks.examples import BOOLEAN, CATEGORY, NUMBER, OTHER_NUMBER, numbers
from cloister.tasks.moments import PRODUCT, SQUARE, lattice_bits, sum_products, unpack_products
from cloister.tasks.preparation.pca import rounded_to_unit
from cloister.tasks.state import decode_state, encode_state
from cloister.tasks.supervised.class_tables import centred_moments
from cloister.tasks.supervised.frame import Frame, Placed, Rows
from cloister.tasks.supervised.local_training import NORM, clipped

ONE = 1 << 16
seeds = st.integers(0, 2**32 - 1)


def cut(exact: np.ndarray, bits: int) -> Integers:
    """Divide integers by a power of two, toward zero, in Python's own arithmetic."""
    values = [(abs(int(v)) >> bits) * (1 if v > 0 else -1) for v in exact.ravel()]
    return np.array(values, dtype=np.int64).reshape(exact.shape)


# --- Rounding of what is derived ------------------------------------------------------------------

FRAME = Frame(levels=(0, 3, 0, 2), frac_bits=16, skip=(), clip=3.0)
_ROW, _RESIDUAL = 20, 24  # lattices of rows and of residuals, in bits


def one_row(seed: int) -> tuple[Rows, np.ndarray]:
    """Return one record as a row, in a frame as noise may place it, and as integers."""
    rng = np.random.default_rng(seed)
    centre = np.append(rng.uniform(-1, 1, FRAME.width - 1), 0.0)
    start = replace(FRAME.unplaced(), centre=centre)
    start.scale[FRAME.number_places] = rng.uniform(1, 16, 2)
    grid = {name: round_to_grid(value, 16) for name, value in encode_state(start).items()}
    placed = decode_state(Placed, grid, 16)
    codes = [-ONE, 0, ONE][rng.integers(3)], [-ONE, ONE][rng.integers(2)]
    x, y = rng.integers(-ONE, ONE, 2, endpoint=True)
    ((_, whole),) = FRAME.whole(placed, np.array([[x, codes[0], y, codes[1]]], dtype=np.int32))
    rows = FRAME.rows(whole, FRAME.clip)
    dense = np.zeros(FRAME.width, dtype=np.int64)
    dense[[*FRAME.number_places, -1]] = rows.numbers[:, 0].astype(np.int64)
    for part, table, found in FRAME._coded(whole):
        dense[part] = table[found[0]] * int(rows.factor[0])
    return rows, dense


@given(seed=seeds)
def test_products_and_gradients_of_a_row_are_cut_toward_zero(seed: int) -> None:
    """No entry is larger than the real one; between numbers it is the real one, cut."""
    rows, dense = one_row(seed)
    assert int((dense**2).sum()) <= FRAME.norm_squared
    found = unpack_products(FRAME.sum_row_products(rows).astype(np.float64), FRAME.width)
    down, exact = 2 * _ROW - FRAME.products_bits, np.outer(dense, dense)
    assert (found * np.sign(exact) >= 0).all()
    assert (np.abs(found) * 2.0**down <= np.abs(exact)).all()
    places = np.ix_([*FRAME.number_places, -1], [*FRAME.number_places, -1])
    np.testing.assert_array_equal(found[places], cut(exact[places], down))

    residual = np.random.default_rng(seed).uniform(-1, 1)
    (gradient,) = FRAME.sum_gradients(rows, np.array([[residual]]), 1.0)
    exact = dense * int(residual * 2**_RESIDUAL)
    down = _ROW + _RESIDUAL - FRAME.gradient_bits(1.0)
    assert (gradient * np.sign(exact) >= 0).all()
    assert (np.abs(gradient) * 2.0**down <= np.abs(exact)).all()
    places = [*FRAME.number_places, -1]
    np.testing.assert_array_equal(gradient[places], cut(exact[places], down))


@given(x=st.integers(-ONE, ONE), word=st.integers(256, 1 << 20))
def test_moments_of_a_class_are_cut_toward_zero(x: int, word: int) -> None:
    (found,) = centred_moments(np.zeros(1, dtype=np.int64), np.array([x], np.int32), 1, word, 16)
    exact = np.array([x * word << 16, (2 * x**2 - (1 << 32)) * word])
    np.testing.assert_array_equal(found, cut(exact, 32))


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_moments_of_a_class_are_of_values_cut_to_the_box_on_any_grid(bits: int) -> None:
    one, word, label = 1 << bits, 1000, np.zeros(1, dtype=np.int64)
    for x in (-one, -one // 3, 0, 1, one // 2, one):
        (found,) = centred_moments(label, np.array([x], np.int32), 1, word, bits)
        exact = np.array([x * word << bits, (2 * x**2 - one**2) * word])
        np.testing.assert_array_equal(found, cut(exact, 2 * bits))
        (beside,) = centred_moments(label, np.array([x + 3 * one], np.int32), 1, word, bits)
        assert beside.tolist() == [word, word]


@pytest.mark.parametrize("bits", [8, 16, 17, 24])
def test_opposite_values_have_opposite_first_moments_and_one_square(bits: int) -> None:
    """On a grid finer than squares are, too."""
    values = np.random.default_rng(bits).integers(0, 1 << bits, 50, dtype=np.int32)
    of_each = [
        centred_moments(np.arange(50), part, 50, (1 << 20) - 1, bits) for part in (values, -values)
    ]
    np.testing.assert_array_equal(of_each[0] * [-1, 1], of_each[1])


@given(seed=seeds, clip=st.floats(1e-3, 1e3))
def test_an_update_of_a_client_is_never_longer_than_it_was(seed: int, clip: float) -> None:
    update = np.random.default_rng(seed).normal(0, clip, (1, 5))
    found, real = clipped(update, clip), update * (NORM / clip)
    assert (np.abs(found) <= np.abs(real)).all()
    assert (found * np.sign(real) >= 0).all()
    shortened = real * min(1.0, NORM / float(np.linalg.norm(real)))
    assert (np.abs(found - shortened) < 1.5 + 1e-6).all()  # half a step of room, then cut
    assert sum(int(v) ** 2 for v in found[0]) <= NORM**2


@given(seed=seeds, unit=st.sampled_from([16, 256, 1 << 12]))
def test_what_is_rounded_to_nearest_is_cut_where_rounding_would_make_it_too_long(
    seed: int, unit: int
) -> None:
    rng = np.random.default_rng(seed)
    away = rng.integers(-2 * ONE, 2 * ONE, (50, 3), endpoint=True)
    rows = rounded_to_unit(away, ONE, unit)
    assert all(sum(int(v) ** 2 for v in row) <= unit**2 for row in rows)
    real = away * (unit / np.maximum(np.linalg.norm(away, axis=1), ONE))[:, None]
    near = np.abs(rows - real) <= 0.5 + 1e-6
    down = (np.abs(rows) <= np.abs(real) + 1e-6) & (np.abs(rows - real) < 1 + 1e-6)
    assert (near.all(axis=1) | down.all(axis=1)).all()
    fits = (np.rint(real) ** 2).sum(axis=1) <= unit**2
    assert near[fits].all()


# --- Products -------------------------------------------------------------------------------------


def test_sums_of_products_are_exact_however_many_records_there_are() -> None:
    n, top = (1 << 19) + 7, 1 << 12  # more than one chunk of records at the corner of the box
    rows = np.full((n, 2), top, dtype=np.int64)
    rows[:, 1] -= 1
    wanted = [SQUARE * n * top**2, PRODUCT * n * top * (top - 1), SQUARE * n * (top - 1) ** 2]
    assert sum_products(rows).tolist() == wanted


def test_a_row_of_more_columns_than_a_part_holds_is_summed_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(moments, "_CHUNK_VALUES", 1)
    rows = np.array([[1, 2], [3, 4]])
    assert sum_products(rows).tolist() == [10 * SQUARE, 14 * PRODUCT, 20 * SQUARE]


@given(seed=seeds, d=st.integers(1, 12))
def test_the_packed_products_of_a_record_are_no_longer_than_five_times_its_square(
    seed: int, d: int
) -> None:
    row = np.random.default_rng(seed).integers(-(1 << 12), 1 << 12, (1, d), endpoint=True)
    packed = sum(int(v) ** 2 for v in sum_products(row))
    assert packed <= SQUARE**2 * sum(int(v) ** 2 for v in row[0]) ** 2


def test_products_lie_on_the_finest_lattice_that_leaves_room_for_their_sum() -> None:
    """With one more bit for each factor, the norm of a record would not be below 2**24 steps."""
    for bits in range(4, 12):
        largest = (1 << 24 >> 2 * bits) - 1
        assert lattice_bits(largest, 16) == bits
        assert largest << 2 * bits < 1 << 24 <= (largest + 1) << 2 * bits
    assert lattice_bits(1, 5) == 5, "the records lie on no finer one"
    with pytest.raises(PlanError, match="use fewer columns"):
        lattice_bits(1 << 16, 16)


def test_noise_on_the_diagonal_is_as_much_larger_as_an_integer_bound_allows() -> None:
    """Root two would spend exactly the norm of the matrix; 7/5 is just below it."""
    unit = unpack_products(np.ones(6), 3)  # of one deviation in each word
    on, off = unit[0, 0], unit[0, 1]
    assert np.sqrt(2) - 0.02 < on / off <= np.sqrt(2)
    assert (np.diag(unit) == on).all()
    assert (unit[~np.eye(3, dtype=bool)] == off).all()


# --- Signs of eigenvectors ------------------------------------------------------------------------

MIXED = (NUMBER, OTHER_NUMBER, CATEGORY, BOOLEAN)
VECTORS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "pca": ("pca", MIXED, {"n_components": 3}),
    "auto": ("auto", numbers(5), {"n_clusters": 3}),
    "feddp-init": ("feddp-init", numbers(4), {"n_clusters": 3}),
    "dpem": ("dpem", numbers(3), {"n_clusters": 3}),
    "statistics": ("statistics", MIXED, {"covariance": True}),
    "outliers": ("outliers", MIXED, {"method": "mahalanobis", "count_share": 0.2}),
    "linear": ("linear", MIXED, {"target": "weight"}),
    "logistic": ("logistic", MIXED, {"target": "work", "rounds": 3}),
}


def planned(name: str) -> Plan:
    task, columns, options = VECTORS[name]
    return make_plan(
        installed()[task],
        schema_of(columns),
        ["silo-0"],
        budget=Budget(8.0, 1e-6),
        nominal_n=2000,
        **options,
    )


def released(plan: Plan) -> list[dict[str, Any]]:
    """Return states and results of a run on made-up groups with made-up noise, always the same."""
    rng = np.random.default_rng(7)
    middles = rng.uniform(-0.7, 0.7, (3, plan.grid.n_features))
    real = middles[rng.integers(3, size=2000)] + rng.normal(0, 0.1, (2000, plan.grid.n_features))
    records = plan.grid.encode(plan.grid.centre + np.clip(real, -1, 1) * plan.grid.half_range)
    progress = Progress(plan)
    for t in range(plan.rounds):
        words = plan.task.contribute(t, progress.state, records)
        stds = np.concatenate([np.full(b.size, plan.noise_std(b)) for b in plan.task.blocks(t)])
        noise = np.rint(rng.normal(size=words.size) * stds).astype(np.int64)
        progress.receive(to_words(words + noise), plan.silos)
    return [*map(dict, progress.states), dict(plan.task.results(progress.state, plan.grid))]


@pytest.mark.parametrize("name", VECTORS)
def test_a_library_that_turns_eigenvectors_round_changes_no_state_and_no_result(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, eigh, turned = planned(name), np.linalg.eigh, []

    def other(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, vectors = eigh(matrix)
        turned.append(len(values))
        signs = np.where(np.arange(vectors.shape[-1]) % 2 == 0, -1.0, 1.0)
        return values, vectors * signs

    here = released(plan)
    monkeypatch.setattr(np.linalg, "eigh", other)
    there = released(plan)
    assert turned
    for before, after in zip(here, there, strict=True):
        np.testing.assert_equal(before, after)
