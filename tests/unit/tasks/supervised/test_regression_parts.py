"""Parts of linear and logistic regression against their closed forms, and hostile states."""

from __future__ import annotations

from dataclasses import replace
from math import hypot, sqrt
from typing import Any

import numpy as np
import pytest

from cloister import Budget, Schema, make_plan
from cloister.data.schema import Column
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.protocol.task import COUNT_BITS, GridState, Task
from cloister.tasks.supervised.frame import Whole, edge_at
from cloister.tasks.supervised.least_squares import Curvature, curvature_of, of_whole_rows
from cloister.tasks.supervised.linear import _LENGTH, Linear
from cloister.tasks.supervised.logistic import Logistic

NUMBERS = tuple(Column(name=name, type="number", min=-1, max=1) for name in "xz")
OF_ONE = 64  # the class of sizes that ends at 1; four classes double a size


def planned(task: type[Task], target: Column, **options: Any) -> Any:
    shape = Schema(dataset="toy", unit="row", columns=(*NUMBERS, target))
    facts = {"budget": Budget(100.0, 1e-6), "nominal_n": 1000, "target": "y"}
    return make_plan(task, shape, ["a"], **facts, **options).task


# --- Products and whole rows


def test_a_column_is_lost_where_its_products_about_the_mean_are_below_their_noise() -> None:
    """Of 1000 rows: one column is 1 in all of them, one in half: about its mean it has 250."""
    products = np.array([[1000.0, 500, 1000], [500, 500, 500], [1000, 500, 1000]])
    for noise, drowned in ((44.0, [True, False, False]), (44.5, [True, True, False])):
        found = curvature_of(products, noise, np.array([1.0, 1.0, 0.0]), (0, 0))
        assert found.drowned.tolist() == drowned


def test_products_of_categories_of_one_column_are_kept_and_others_shrunk_by_their_noise() -> None:
    """Of columns of 2 categories, numbers, and 3 categories."""
    products = 7.0 * np.ones((7, 7)) + 9 * np.eye(7)
    products[:2, :2], products[3:6, 3:6] = 20.0, 30.0
    off = products[np.triu_indices(7, 1)]
    kept = 1 - 4.0**2 / np.mean(off**2)
    found = curvature_of(products, 4.0, np.zeros(7), (2, 0, 3)).matrix
    expected = kept * products
    expected[:2, :2], expected[3:6, 3:6] = 20.0, 30.0
    expected[[2, 6], [2, 6]] = 16.0
    np.testing.assert_allclose(found, expected)


def test_a_column_is_longer_by_the_root_of_its_squares_and_the_constant_is_not() -> None:
    matrix = np.array([[2.0, 1.0, 1.0], [1.0, 3.0, 0.0], [1.0, 0.0, 5.0]])
    shortened = Curvature(matrix, 1.0, np.zeros(3), np.zeros(3, dtype=np.bool_))
    found = of_whole_rows(shortened, np.array([8.0, 27.0, 5.0]), 0.0, 1.0)
    np.testing.assert_allclose(found.matrix, [[8, 6, 2], [6, 27, 0], [2, 0, 5]])
    usual = of_whole_rows(shortened, np.zeros(3), 0.0, 4.0)  # no square was seen
    np.testing.assert_allclose(usual.matrix, [[8, 4, 2], [4, 12, 0], [2, 0, 5]])


# --- Linear regression


@pytest.fixture(scope="module")
def linear() -> Linear:
    task = planned(Linear, Column(name="y", type="number", min=-4, max=4), clip=32.0)
    assert isinstance(task, Linear)
    return task


def known(linear: Linear, diagonal: tuple[float, ...] = (0.0,) * 4, **fields: Any) -> Any:
    """Return a state with these products of x, z, y and the constant, and no seen squares."""
    now = linear._read({name: round_to_grid(v, 16) for name, v in linear.start().items()})
    packed = np.diag(diagonal)[np.triu_indices(4)]
    columns = replace(now.columns, square=np.zeros(4))
    return replace(now, columns=columns, products=packed, **fields)


@pytest.mark.parametrize("longest", [60, 64, 71])
def test_no_row_is_shortened_to_more_than_nearly_all_rows_have(
    linear: Linear, longest: int
) -> None:
    now = known(linear, typical=longest, length=longest)
    assert linear._length(now) == edge_at(longest)
    assert linear._length(replace(now, typical=0)) < edge_at(longest)


@pytest.mark.parametrize(("length", "target"), [(64, 64), (70, 60), (58, 75)])
def test_the_longest_row_with_the_largest_target_fills_the_lattice(
    linear: Linear, length: int, target: int
) -> None:
    now = known(linear, typical=length, length=length, target_length=target)
    unit, target_unit = linear._units(now)
    longest = hypot(linear._length(now), target_unit * edge_at(target))
    assert unit * longest == pytest.approx(_LENGTH)


def test_a_target_beyond_its_bound_counts_as_the_bound_in_the_products_of_its_row(
    linear: Linear,
) -> None:
    now = known(linear, typical=OF_ONE, length=OF_ONE, target_length=OF_ONE + 4)
    row = Whole(numbers=np.array([[0.3], [-0.2], [1.0]]), categories=(), tables=())
    for sign in (1, -1):
        at_bound, beyond = (
            linear._row_products(now, row, np.array([sign * target])) for target in (2.0, 50.0)
        )
        assert at_bound.all()
        assert (beyond == at_bound).all()


@pytest.mark.parametrize(("typical", "times"), [(68, 4.0), (66, 2.0), (64, 1.0), (60, 1.0)])
def test_whole_rows_have_the_squares_that_usual_rows_lost(
    linear: Linear, typical: int, times: float
) -> None:
    """A usual row was shortened from `typical` to 1; it is never made shorter."""
    now = known(linear, (2.0, 3.0, 9.0, 5.0), typical=typical, length=OF_ONE)
    found = linear._whole(now).matrix
    np.testing.assert_allclose(found, np.diag([2 * times, 3 * times, 5.0]), atol=1e-9)


@pytest.mark.parametrize("constant", [-3.0, 0.0, 0.5, 4.0])
@pytest.mark.parametrize("square", [0.0, 8.0])
def test_squares_of_residuals_are_cut_as_for_a_usual_row_of_one_record_at_least(
    linear: Linear, square: float, constant: float
) -> None:
    now = known(linear, (square, square, 9.0, constant), cut=OF_ONE, length=OF_ONE, typical=OF_ONE)
    records = max(constant, 0.0)  # a negative number is noise
    usual = max((2 * square + records) / max(records, 1.0), 1.0)
    assert linear._reach(now) == pytest.approx(1 / sqrt(usual))


# --- Logistic regression


def classes_of(k: int) -> tuple[Logistic, np.ndarray]:
    names = tuple(f"class {i}" for i in range(k))
    task = planned(Logistic, Column(name="y", type="category", categories=names), rounds=10)
    assert isinstance(task, Logistic)
    rng, one = np.random.default_rng(k), 1 << 16
    numbers = rng.integers(-one, one, (50, 2), endpoint=True)
    labels = np.rint(rng.integers(0, k, 50) * (2 * one / (k - 1))) - one
    return task, np.column_stack([numbers, labels]).astype(np.int32)


def weighted(task: Logistic, weight: float) -> GridState:
    state = task.start() | {"class_weight": np.full(len(task.classes), weight)}
    return {name: round_to_grid(value, 16) for name, value in state.items()}


@pytest.mark.parametrize("k", [2, 3])
def test_the_second_round_counts_each_record_once_in_each_column_of_numbers(k: int) -> None:
    task, records = classes_of(k)
    found = task.contribute(1, weighted(task, 1.0), records)
    assert found.sum() == 50 * 2 << COUNT_BITS


@pytest.mark.parametrize("k", [2, 3])
def test_a_class_weighs_one_at_most_in_any_state(k: int) -> None:
    """Weights are public and scaled to 1, but a dishonest state could hold any."""
    task, records = classes_of(k)
    for t in range(2, task.rounds):
        honest = task.contribute(t, weighted(task, 1.0), records)
        assert honest.any()
        assert (task.contribute(t, weighted(task, 1.01), records) == honest).all()
        assert (task.contribute(t, weighted(task, 1000.0), records) == honest).all()


@pytest.mark.parametrize(("k", "largest"), [(2, [1.0]), (3, [1.0, -1.0, 0.0])])
def test_the_largest_residual_of_a_short_row_fills_the_lattice(
    k: int, largest: list[float]
) -> None:
    task, _ = classes_of(k)
    now = replace(task._read(weighted(task, 1.0)), cut=OF_ONE + 8)
    short = Whole(numbers=np.array([[0.0], [0.0], [1.0]]), categories=(), tables=())
    _, residuals = task._whole_rows(now, short, np.array(largest)[:, None])
    assert np.linalg.norm(residuals) == pytest.approx(1)


@pytest.mark.parametrize("k", [2, 3])
def test_a_class_of_weight_zero_adds_no_gradient_and_no_curvature(k: int) -> None:
    """And nothing is divided by 0."""
    task, records = classes_of(k)
    for t in range(2, task.rounds):
        place = 0
        with np.errstate(divide="raise", invalid="raise"):
            found = task.contribute(t, weighted(task, 0.0), records)
        for block in task.blocks(t):
            assert found[place : place + block.size].any() == (block.name == "sizes")
            place += block.size
