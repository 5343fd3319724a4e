"""Regression: against scikit-learn without noise, over silos, with noise, and as estimators."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.utils.estimator_checks import check_estimator

from cloister import DPLinearRegression, DPLogisticRegression, PlanError, Schema
from cloister.app.forecast import size_warnings
from cloister.app.job import make_plan, run_job
from cloister.app.release import Release
from cloister.data.schema import Column
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.protocol.task import Classifier, Regressor, Task
from cloister.tasks import TASKS
from cloister.tasks.columns import Encoding
from cloister.tasks.supervised.frame import count_sizes, edge_at, row_length, solve, usual_square
from cloister.tasks.supervised.least_squares import (
    EDGES,
    curvature_of,
    cut_of,
    unseen_square,
    usual_length,
)
from cloister.tasks.supervised.linear import Linear
from cloister.tasks.supervised.logistic import Logistic
from cloister.testing import UNMET_CHECKS, SimulatedNoise, ZeroNoise, zero_noise

NO_NOISE = 1e12  # of epsilon, so that nothing is drawn to 0 for the noise
WORK = Column(name="work", type="category", categories=("a", "b", "c", "d"))
SMOKES = Column(name="smokes", type="boolean")


def number(name: str, low: float = -1.0, high: float = 1.0) -> Column:
    return Column(name=name, type="number", min=low, max=high)


def target(k: int) -> Column:
    return Column(name="y", type="category", categories=tuple(f"class {i}" for i in range(k)))


def schema(*columns: Column) -> Schema:
    return Schema(dataset="toy", unit="row", columns=columns)


def tabular(load: Any, last: Column | None) -> tuple[Schema, np.ndarray, np.ndarray]:
    """Return a table of scikit-learn as schema, grid records and targets."""
    X, y = load(return_X_y=True)
    ends = zip(X.min(axis=0).tolist(), X.max(axis=0).tolist(), strict=True)
    columns = [number(f"x{j}", low, high) for j, (low, high) in enumerate(ends)]
    last = last or number("y", float(y.min()), float(y.max()))
    shape = schema(*columns, last)
    return shape, shape.grid(24).encode(np.column_stack([X, y])), y


def toy(k: int, n: int = 600, seed: int = 0) -> tuple[Schema, np.ndarray]:
    """Return a table with numbers and categories; k classes, or a number for k = 0."""
    rng = np.random.default_rng(seed)
    X = np.clip(rng.normal(0, 0.4, (n, 2)), -1, 1)
    work, smokes = rng.integers(0, 4, n), rng.integers(0, 2, n)
    score = X @ [2.0, -1.0] + 0.7 * (work == 1) + smokes - 0.5 + rng.normal(0, 0.5, n)
    if k:
        y, last = np.clip(np.floor(score + k / 2), 0, k - 1), target(k)
    else:
        y, last = np.clip(score, -4, 4), number("y", -4, 4)
    shape = schema(number("x", -1, 1), number("z", -1, 1), WORK, SMOKES, last)
    return shape, shape.grid().encode(np.column_stack([X, work, smokes, y]))


def fitted(
    task: type[Task], shape: Schema, records: np.ndarray, silos: int = 1, **options: Any
) -> Release:
    parts = {f"silo-{i}": [records[i::silos]] for i in range(silos)}
    chosen: dict[str, Any] = {"epsilon": NO_NOISE, "noise": ZeroNoise(), "target": "y", **options}
    return run_job(task, shape, parts, delta=1e-6, nominal_n=len(records), **chosen)


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


# --- without noise it is scikit-learn's

exactly = partial(fitted, Logistic, shrinkage=False, frac_bits=24)


def test_a_usual_row_has_one_for_each_number_and_less_for_a_category() -> None:
    assert usual_square(()) == 1.0  # the constant
    assert usual_square((0, 0, 3, 2)) == pytest.approx(1 + 2 + 2 * 0.6)


def test_sizes_are_counted_up_to_each_edge_and_the_largest_at_the_end() -> None:
    one = count_sizes(np.array(EDGES))
    assert one.tolist() == [one[0]] * len(EDGES)
    assert count_sizes(np.array([0.0, 1e300])).tolist() == [one[0], *[0] * (len(EDGES) - 2), one[0]]


@pytest.mark.parametrize(("rounds", "turn"), [(2, 0), (6, 0), (7, 4), (10, 6), (21, 12)])
def test_sizes_are_counted_a_little_after_half_of_the_rounds(rounds: int, turn: int) -> None:
    found = Logistic._turn.fget(SimpleNamespace(rounds=rounds))  # type: ignore[attr-defined]
    assert found == turn


@pytest.mark.parametrize(("first", "last"), [(2, 6), (2, 12), (13, 21), (41, 71)])
def test_later_gradients_have_larger_shares_but_no_thirty_times_the_first(
    first: int, last: int
) -> None:
    turn = last if first == 2 else first - 1  # early ones, or those of whole rows
    task = SimpleNamespace(rounds=100 if first == 2 else last, _turn=turn)
    shares = [Logistic._share(task, t) for t in range(first, last)]  # type: ignore[arg-type]
    assert sum(shares) == pytest.approx(0.18 if first == 2 else 0.38)
    growth = shares[1] / shares[0]
    assert growth == pytest.approx(min(1.5, 30 ** (1 / len(shares))))
    # shares are in steps of 2**-30, the least one above 2**-13
    assert np.diff(np.log(shares)) == pytest.approx(np.log(growth), abs=2**-16)


@pytest.mark.parametrize(
    ("classes", "width", "wide"),
    [
        *((2, 400, False), (2, 401, True), (3, 200, False), (3, 201, True)),
        *((2, 300, False), (10, 44, False), (20, 21, False)),
        *((62, 6, False), (66, 6, False), (70, 6, True), (95, 3, False), (210, 1, False)),
    ],
)
def test_a_model_is_wide_from_401_weights_on_or_many_curvatures(
    classes: int, width: int, wide: bool
) -> None:
    task = SimpleNamespace(_frame=SimpleNamespace(width=width), classes=("c",) * classes)
    assert Logistic._wide.func(task) is wide  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("curvature", "length"), [([3.0, 5.0, 2.0], 5**0.5), ([1e9, 1.0], 64.0), ([0.0, 0.5], 1.0)]
)
def test_squares_are_cut_at_the_residual_of_a_usual_row(
    curvature: list[float], length: float
) -> None:
    """Of the root of the mean square length of rows, which end with the constant."""
    whole = SimpleNamespace(matrix=np.diag(curvature))
    task, now = SimpleNamespace(_whole=lambda _: whole), SimpleNamespace(cut=3)
    found = Linear._reach(task, now)  # type: ignore[arg-type]
    assert found == pytest.approx(edge_at(3) / length)


def test_curvatures_are_of_pairs_of_classes_and_of_whole_rows_as_far_as_the_bound_lets_them() -> (
    None
):
    lengths, counts = np.array([1.0, 4.0, 8.0, 8.0]), np.array([1.0, 0.5, 1.0, 0.25])
    even, sure = [0.5, 0.3, 0.2], [0.99, 0.006, 0.004]
    predicted = np.array([even, even, even, sure]).T
    task = SimpleNamespace(
        _pairs=np.triu_indices(3, 1),
        _curvature_bound=lambda t: (3, 1 / 4),
        _frame=SimpleNamespace(sum_curvature=lambda rows, pairs, bound: pairs),
    )
    rows = SimpleNamespace(whole=SimpleNamespace(length=lengths))
    now = SimpleNamespace(length=4.0)
    found = Logistic._sum_curvature(task, 3, now, rows, predicted, counts)  # type: ignore[arg-type]
    of_even = np.array([0.5 * 0.3, 0.5 * 0.2, 0.3 * 0.2])
    np.testing.assert_allclose(found[:, 0], of_even)
    np.testing.assert_allclose(found[:, 1], of_even / 2)
    np.testing.assert_allclose(found[:, 2], of_even / np.linalg.norm(of_even) / 4)
    of_sure = np.array([0.99 * 0.006, 0.99 * 0.004, 0.006 * 0.004])
    np.testing.assert_allclose(found[:, 3], of_sure / 4 * (8 / 4) ** 2)


def test_bounds_of_the_first_round_are_those_of_even_classes_by_hand() -> None:
    two, three = (SimpleNamespace(_outputs=outputs, _turn=4) for outputs in (1, 3))
    bounds = [Logistic._residual_squared(task, t) for task in (two, three) for t in (2, 3, 5)]  # type: ignore[arg-type]
    assert bounds == [1 / 4, 1, 1, pytest.approx((2 / 3) ** 2 + 2 / 9), 2, 1]
    pairs = SimpleNamespace(classes="abc", _pairs=np.triu_indices(3, 1))
    assert Logistic._curvature_bound(pairs, 2) == (1, pytest.approx((1 / 3) * (1 / 3)))  # type: ignore[arg-type]
    assert Logistic._curvature_bound(pairs, 3) == (3, 1 / 2 * 1 / 2)  # type: ignore[arg-type]


def test_products_are_drawn_to_zero_as_far_as_they_are_noise_but_within_a_category() -> None:
    products = np.full((5, 5), 6.0) + np.diag([100.0, 200, 300, 400, 500])
    found = curvature_of(products, 3.0, np.zeros(5), (0, 2, 0))
    kept = (36 - 9) / 36  # the noise adds its variance to the mean square
    expected = np.where(np.eye(5, dtype=bool), products, kept * products)
    expected[1, 2] = expected[2, 1] = 6.0
    np.testing.assert_allclose(found.matrix, expected)
    assert found.noise_std == pytest.approx(3 * np.sqrt(kept))


TUMOURS = (load_breast_cancer, 2, 150, 20.0, "newton-cholesky")
FLOWERS = (load_iris, 3, 400, 12.0, "newton-cg")


@pytest.mark.parametrize(
    ("load", "k", "rounds", "clip", "solver", "weight"),
    [
        (*TUMOURS, "balanced"),
        (*FLOWERS, None),
        pytest.param(*TUMOURS, None, marks=pytest.mark.nightly),
        pytest.param(*FLOWERS, "balanced", marks=pytest.mark.nightly),
    ],
)
def test_logistic_without_noise_is_scikit_learns(
    load: Any, k: int, rounds: int, clip: float, solver: Any, weight: Any
) -> None:
    shape, records, y = tabular(load, target(k))
    result = exactly(shape, records, rounds=rounds, clip=clip, class_weight=weight)
    Z = records[:, :-1] / 2.0**24
    theirs = LogisticRegression(tol=1e-12, max_iter=1000, solver=solver, class_weight=weight)
    theirs.fit(Z, y)
    assert relative(result.results["grid_coef"][:, :-1], theirs.coef_) < 1e-4
    assert relative(result.results["grid_coef"][:, -1], theirs.intercept_) < 1e-4
    task = result.plan.task
    assert isinstance(task, Logistic)
    loss = log_loss(y, task.probabilities(result.results, records))
    assert abs(loss - log_loss(y, theirs.predict_proba(Z))) < 1e-6


def test_class_weights_and_categories_without_noise_are_scikit_learns() -> None:
    shape, records = toy(2)
    weights = {"class 0": 3.0, "class 1": 0.5}
    result = fitted(
        Logistic, shape, records, C=0.5, class_weight=weights, rounds=150, clip=32, shrinkage=False
    )
    design = Encoding((0, 0, 4, 2, 2), 16, (4,)).rows(records)[:, :-1] / 2.0**16
    y = (records[:, -1] > 0).astype(int)
    theirs = LogisticRegression(C=0.5, tol=1e-12, class_weight={0: 3.0, 1: 0.5}, max_iter=1000)
    theirs.fit(design, y)
    assert relative(result.results["coef"], theirs.coef_) < 1e-3


@pytest.mark.parametrize("alpha", [0.0, 1.0, 10.0])
def test_linear_without_noise_is_scikit_learns(alpha: float) -> None:
    shape, records, y = tabular(load_diabetes, None)
    result = fitted(
        Linear, shape, records, target="y", alpha=alpha, clip=12.0, shrinkage=False, frac_bits=24
    )
    Z = records[:, :-1] / 2.0**24
    theirs = Ridge(alpha=alpha, solver="cholesky") if alpha else LinearRegression()
    theirs.fit(Z, y)
    assert relative(result.results["grid_coef"][:-1], theirs.coef_) < 1e-4
    np.testing.assert_allclose(result.results["grid_coef"][-1], theirs.intercept_, rtol=1e-4)
    task = result.plan.task
    assert isinstance(task, Linear)
    predicted = task.predict(result.results, records)
    np.testing.assert_allclose(predicted, theirs.predict(Z), atol=0.01)
    left = np.sqrt(np.mean((y - theirs.predict(Z)) ** 2))
    np.testing.assert_allclose(result.results["residual_std"], left, rtol=1e-4)


@pytest.mark.parametrize("silos", [2, 5])
@pytest.mark.parametrize("k", [0, 2, 3])
def test_silos_without_noise_are_bit_for_bit_the_pooled_records(silos: int, k: int) -> None:
    shape, records = toy(k, 211)
    task = Logistic if k else Linear
    pooled = fitted(task, shape, records, epsilon=1.0)
    spread = fitted(task, shape, records, silos, epsilon=1.0)
    assert pooled.results.keys() == spread.results.keys()
    for name, value in pooled.results.items():
        np.testing.assert_array_equal(value, spread.results[name])


def test_coefficients_in_data_units_tell_what_those_on_the_grid_tell() -> None:
    shape = schema(number("age", 20, 90), WORK, target(2))
    rng = np.random.default_rng(0)
    values = np.column_stack(
        [rng.uniform(20, 90, 300), rng.integers(0, 4, 300), np.arange(300) % 2]
    )
    records = shape.grid().encode(values)
    result = fitted(Logistic, shape, records, epsilon=5.0)
    task = result.plan.task
    assert isinstance(task, Logistic)
    assert task.names == ("age", "work=a", "work=b", "work=c", "work=d", "intercept")
    one_hot = np.eye(4)[values[:, 1].astype(int)]
    coef, intercept = result.results["coef"][0], result.results["intercept"][0]
    by_hand = np.column_stack([values[:, 0], one_hot]) @ coef + intercept
    np.testing.assert_allclose(task.decision(result.results, records)[:, 0], by_hand, atol=1e-3)


# --- units of the data

POWERS = [-30, -20, 20, 30]


def in_units(k: int, power: int, scaled: str, noise: Any) -> Release:
    """Fit the same table with one of its columns, bounds and all, in other units."""
    shape, records = toy(k)
    scale = [2.0**power if column.name == scaled else 1.0 for column in shape.columns]
    columns = [
        number(c.name, c.min * factor, c.max * factor) if c.type == "number" else c
        for c, factor in zip(shape.columns, scale, strict=True)
    ]
    same = schema(*columns).grid().encode(shape.grid().decode(records / 2.0**16) * scale)
    return fitted(Logistic if k else Linear, schema(*columns), same, epsilon=1.0, noise=noise)


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("k", [0, 2, 3])
def test_units_of_a_column_only_scale_its_coefficient_and_interval(k: int, power: int) -> None:
    plain = in_units(k, 0, "x", SimulatedNoise(5)).results
    scaled = in_units(k, power, "x", SimulatedNoise(5)).results
    for name, value in plain.items():
        wanted = value.copy()
        if name.startswith("coef") or name == "around":
            wanted[..., 0] /= 2.0**power
        if name.endswith("covariance"):  # of all outputs, one after another
            width = plain["grid_coef"].shape[-1]
            wanted[::width] /= 2.0**power
            wanted[:, ::width] /= 2.0**power
        np.testing.assert_allclose(scaled[name], wanted, rtol=1e-9, err_msg=name)
        if name.endswith("_low"):
            assert (scaled[name] < scaled[name.replace("_low", "_high")]).all()


@pytest.mark.parametrize("power", POWERS)
def test_units_of_the_target_scale_all_of_a_linear_model(power: int) -> None:
    plain = in_units(0, 0, "y", SimulatedNoise(5)).results
    scaled = in_units(0, power, "y", SimulatedNoise(5)).results
    assert scaled["residual_std"] > 0
    for name, value in plain.items():
        unit = {"covariance": 2.0 ** (2 * power), "drowned": 1.0, "records": 1.0}
        times = unit.get(name.removeprefix("sampling_").removesuffix("_half_width"), 2.0**power)
        np.testing.assert_allclose(scaled[name], value * times, rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("k", [0, 2])
def test_no_interval_of_noise_is_of_width_zero_on_a_coarse_grid(k: int) -> None:
    shape, _ = toy(k)
    _, records = toy(k, 20_000)
    coarse = np.rint(records / 2.0**8).astype(np.int32)
    options: dict[str, Any] = {"epsilon": 1e3, "noise": SimulatedNoise(0), "frac_bits": 8}
    result = fitted(Logistic if k else Linear, shape, coarse, **options).results
    assert (result["coef_low"] < result["coef_high"]).all()


# --- what the noise does


@pytest.mark.parametrize("k", [0, 2, 4])
@pytest.mark.parametrize("epsilon", [0.001, 1.0])
def test_no_records_one_class_and_copies_give_finite_models(k: int, epsilon: float) -> None:
    shape, records = toy(k, 40)
    task = Logistic if k else Linear
    nobody = np.empty((0, 5), dtype=np.int32)
    for table in (nobody, np.repeat(records[:1], 40, axis=0)):
        result = run_job(
            task,
            shape,
            {"a": [table]},
            epsilon=epsilon,
            nominal_n=40,
            noise=SimulatedNoise(3),
            target="y",
        )
        of_sampling = ("sampling_covariance", "population_low", "population_high")
        values = {n: v for n, v in result.results.items() if not n.endswith(of_sampling)}
        assert all(np.isfinite(v).all() for v in values.values())
        # Nobody outweighs a penalty, and sampling is not known where it decides.
        decided = result.results["penalised"] > 0 if k else False
        for end in of_sampling[1:]:
            assert (np.isnan(result.results[f"coef_{end}"]) == decided).all()
        if k:
            assert isinstance(result.plan.task, Classifier)
            predicted = result.plan.task.probabilities(result.results, records)
            np.testing.assert_allclose(predicted.sum(axis=1), 1)
        else:
            assert isinstance(result.plan.task, Regressor)
            assert np.isfinite(result.plan.task.predict(result.results, records)).all()


def test_the_model_is_nearly_that_without_noise_where_records_are_many() -> None:
    shape, records = toy(2, 20_000)
    noisy = fitted(Logistic, shape, records, epsilon=1.0, noise=SimulatedNoise(0))
    task = noisy.plan.task
    assert isinstance(task, Logistic)
    right = task.probabilities(noisy.results, records).argmax(axis=1) == (records[:, -1] > 0)
    exact = fitted(Logistic, shape, records)
    best = task.probabilities(exact.results, records).argmax(axis=1) == (records[:, -1] > 0)
    assert right.mean() > best.mean() - 0.01


def test_weights_that_drown_in_noise_are_drawn_to_zero() -> None:
    shape, records = toy(2, 100)
    drawn = fitted(Logistic, shape, records, epsilon=0.01, noise=SimulatedNoise(1))
    loose = fitted(Logistic, shape, records, epsilon=0.01, noise=SimulatedNoise(1), shrinkage=False)
    assert np.abs(drawn.results["coef"]).max() < 3 < np.abs(loose.results["coef"]).max()


def test_more_noise_means_fewer_rounds_and_shorter_rows() -> None:
    shape, _ = toy(2)

    def plan(epsilon: float) -> Plan:
        return make_plan(
            Logistic, shape, ["a"], budget=Budget(epsilon, 1e-6), nominal_n=10_000, target="y"
        )

    plans = [plan(epsilon) for epsilon in (0.01, 0.1, 1.0, 10.0, 100.0)]
    assert all(a.rounds <= b.rounds for a, b in pairwise(plans))
    lengths = [p.task.clip or p.task.first_length for p in plans]
    assert lengths == sorted(lengths)
    assert plans[0].task.clip
    assert plans[-1].task.clip is None  # with little noise it is released
    assert plans[0].rounds < plans[-1].rounds <= 15
    assert row_length([3] * 500 + [0] * 500, 0.0) <= 32


def test_noisy_equations_without_noise_are_solved_and_with_noise_given_up() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(5, 5))
    matrix, wanted = root @ root.T + np.eye(5), rng.normal(size=(2, 5))
    penalty, spread = np.array([1.0, 1, 1, 1, 0]), np.full(5, 2.0)
    target = wanted @ (matrix + np.diag(penalty))
    mean, left = solve(matrix, penalty, target, 0.0, spread)
    np.testing.assert_allclose(mean, wanted, rtol=1e-6)
    assert np.abs(left).max() < 1e-6
    mean, left = solve(matrix, penalty, target, 1e9, spread)
    assert np.abs(mean).max() < 1e-6
    np.testing.assert_allclose(left, np.diag(spread**2), rtol=1e-6, atol=1e-9)


# --- plans


@pytest.mark.parametrize(
    ("task", "options", "sentence"),
    [
        (Logistic, {"target": "nobody"}, "target must be a column"),
        (Logistic, {"target": "x"}, "must be a column of categories"),
        (Logistic, {"C": 0.0}, "C must be"),
        (Logistic, {"rounds": 1}, "rounds must be"),
        (Logistic, {"clip": 0.0}, "clip must be"),
        (Logistic, {"clip": 33.0}, "clip must be"),
        (Logistic, {"class_weight": {"nobody": 1.0}}, "must name classes"),
        (Logistic, {"class_weight": [1.0, -1.0]}, "class_weight must be"),
        (Logistic, {"class_weight": [1.0]}, "class_weight must be"),
        (Logistic, {"class_weight": "even"}, "class_weight must be"),
        (Linear, {"target": "work"}, "must be a numeric column"),
        (Linear, {"target": "x", "alpha": -1.0}, "alpha must be"),
        (Linear, {"target": "x", "clip": 99.0}, "clip must be"),
    ],
)
def test_a_wrong_option_is_a_sentence_before_anything_is_spent(
    task: type[Task], options: dict[str, Any], sentence: str
) -> None:
    shape, _ = toy(2)
    with pytest.raises(PlanError, match=sentence):
        make_plan(
            task,
            shape,
            ["a"],
            budget=Budget(1.0, 1e-6),
            nominal_n=100,
            **{"target": "y", **options},
        )


def test_a_design_that_is_too_wide_is_refused() -> None:
    many = Column(name="many", type="category", categories=tuple(map(str, range(2048))))
    with pytest.raises(PlanError, match="at most 2048"):
        make_plan(
            Logistic,
            schema(many, target(2)),
            ["a"],
            budget=Budget(1.0, 1e-6),
            nominal_n=100,
            target="y",
        )


@pytest.mark.parametrize("k", [0, 3])
def test_a_plan_is_read_back_as_it_was_written(k: int) -> None:
    shape, _ = toy(k)
    task = Logistic if k else Linear
    options = {"class_weight": "balanced"} if k else {}
    plan = make_plan(
        task, shape, ["a"], budget=Budget(1.0, 1e-6), nominal_n=100, target="y", **options
    )
    assert Plan.from_dict(json.loads(plan.canonical_json()), TASKS) == plan


@pytest.mark.parametrize("k", [0, 2, 3])
def test_a_report_shows_every_coefficient(k: int) -> None:
    shape, records = toy(k)
    result = fitted(Logistic if k else Linear, shape, records, epsilon=1.0)
    table, *_, bars = result.plan.task.displays(result.results, result.plan.columns)
    names = [row[0] for row in table.rows]
    assert {"x", "work=c", "smokes=true", "intercept"} <= set(names)
    assert np.isfinite(bars.estimate.values).all()
    assert (bars.estimate.high >= bars.estimate.low).all()


# --- estimators


def test_estimators_follow_scikit_learn() -> None:
    options = {"bounds": (-100, 100), "nominal_n": 200}
    cases = (
        zero_noise(DPLogisticRegression)(epsilon=1e4, classes="in_y", C=1e4, **options),
        zero_noise(DPLinearRegression)(epsilon=1e6, target_bounds=(-1000, 1000), **options),
    )
    for model in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = check_estimator(
                model, expected_failed_checks=dict(UNMET_CHECKS), on_fail=None
            )
        assert [r["check_name"] for r in results if r["status"] == "failed"] == []


def test_a_classifier_of_silos_with_a_schema_names_its_coefficients() -> None:
    def people(seed: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        x = rng.uniform(-1, 1, 900)
        return pd.DataFrame(
            {
                "x": x,
                "work": rng.choice(list("abcd"), 900),
                "y": np.where(x + rng.normal(0, 0.3, 900) > 0, "class 1", "class 0"),
            }
        )

    model = DPLogisticRegression(
        epsilon=2.0, bounds=schema(number("x"), WORK, target(2)), target="y", nominal_n=2700
    ).fit([people(0), people(1), people(2)])
    test = people(3)
    assert model.score(test, test["y"]) > 0.8
    assert model.feature_names_.tolist() == ["x", "work=a", "work=b", "work=c", "work=d"]
    assert model.coef_.shape == model.coef_low_.shape == (1, 5)
    assert (model.coef_low_ <= model.coef_).all()
    assert (model.coef_ <= model.coef_high_).all()
    assert model.coef_[0, 0] > 1
    decision = model.decision_function(test)
    assert decision.shape == (900,)
    np.testing.assert_allclose(model.predict_proba(test)[:, 1], 1 / (1 + np.exp(-decision)))
    assert 1.9 < model.spent_ <= 2.0


def test_class_weights_go_by_label() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 2)).clip(-3, 3)
    y = np.where(X[:, 0] + rng.normal(size=2000) > 1, 7, 3)
    kind = zero_noise(DPLogisticRegression)
    plain = kind(epsilon=10, bounds=(-3, 3), classes=[3, 7], nominal_n=2000).fit(X, y)
    heavy = kind(
        epsilon=10, bounds=(-3, 3), classes=[3, 7], nominal_n=2000, class_weight={7: 10.0}
    ).fit(X, y)
    assert (heavy.predict(X) == 7).mean() > (plain.predict(X) == 7).mean() + 0.1


def test_a_regressor_needs_public_bounds_of_its_target() -> None:
    X, y = np.zeros((10, 2)), np.arange(10.0)
    with pytest.raises(PlanError, match="target_bounds"):
        DPLinearRegression(epsilon=1.0, bounds=(-1, 1)).fit(X, y)


# --- what a report and an analyst may say of a linear model


def workers(n: int = 9000) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    work = rng.choice(list("abcd"), n)
    x = rng.uniform(-1, 1, n)
    y = 2 * x + np.select([work == "b", work == "c"], [1.0, -1.0], 0.0) + rng.normal(0, 0.5, n)
    return pd.DataFrame({"x": x, "work": work, "y": y.clip(-6, 6)})


def linear_model(**options: Any) -> DPLinearRegression:
    kind = zero_noise(DPLinearRegression)
    model = kind(
        epsilon=NO_NOISE,
        bounds=schema(number("x"), WORK, number("y", -6, 6)),
        target="y",
        nominal_n=9000,
        **options,
    )
    fitted_model: DPLinearRegression = model.fit(workers())
    return fitted_model


def test_a_contrast_is_the_difference_that_least_squares_give() -> None:
    people, model = workers(), linear_model()
    design = pd.get_dummies(people[["x", "work"]], dtype=float)
    theirs = LinearRegression().fit(design, people["y"])
    assert relative(model.coef_, theirs.coef_) < 1e-3
    contrast = model.contrast("work=b", "work=c")
    assert contrast.value == pytest.approx(theirs.coef_[2] - theirs.coef_[3], abs=2e-3)
    assert contrast.population is not None
    # the usual interval of least squares, of the difference of two means of a quarter each
    half = 1.96 * model.residual_std_ * np.sqrt(2 / (9000 / 4))
    assert contrast.population[1] - contrast.value == pytest.approx(half, rel=0.05)
    with pytest.raises(PlanError, match="two coefficients"):
        model.contrast("work=b", "nobody")


def test_the_interval_of_a_contrast_is_that_of_statsmodels(oracle: Callable[[str], Any]) -> None:
    people, model = workers(), linear_model()
    design = pd.get_dummies(people[["x", "work"]], dtype=float)
    theirs = oracle("statsmodels.api").OLS(people["y"], design).fit()
    ((low, high),) = theirs.t_test("work_b - work_c").conf_int()
    contrast = model.contrast("work=b", "work=c")
    assert contrast.population is not None
    np.testing.assert_allclose(contrast.population, (low, high), atol=0.02 * (high - low))


def test_a_report_compares_categories_with_the_reference() -> None:
    first = linear_model().result_
    table = first.plan.task.displays(first.results, first.plan.columns)[0]
    rows = dict(table.rows)
    assert rows["work=a"] == "reference"
    assert rows["work=b"].value == pytest.approx(1, abs=0.05)
    other = linear_model(reference={"work": "c"}).result_
    rows = dict(other.plan.task.displays(other.results, other.plan.columns)[0].rows)
    assert rows["work=c"] == "reference"
    assert rows["work=b"].value == pytest.approx(2, abs=0.05)
    assert rows["residual deviation"].value == pytest.approx(0.5, abs=0.02)
    with pytest.raises(PlanError, match="reference of 'work'"):
        linear_model(reference={"work": "z"})


def test_a_column_that_drowns_is_named_and_its_interval_says_nothing() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 2))
    y = 3 * X[:, 0] + X[:, 1] + rng.normal(size=4000)

    class Seeded(DPLinearRegression):
        _new_noise = staticmethod(lambda: SimulatedNoise(0))

    model = Seeded(
        epsilon=1.0, bounds=([-5, -1e5], [5, 1e5]), target_bounds=(-20, 20), nominal_n=4000
    )
    with pytest.warns(UserWarning, match="coefficient of x1"):
        model.fit(X, y)
    assert model.coef_low_[1] < -10 < 10 < model.coef_high_[1]


def test_a_residual_deviation_that_drowns_is_not_shown() -> None:
    shape, records = toy(0, 60)
    result = fitted(Linear, shape, records, epsilon=0.1, noise=SimulatedNoise(0))
    table = result.plan.task.displays(result.results, result.plan.columns)[0]
    assert result.results["residual_std_low"] == 0
    assert "residual deviation" not in dict(table.rows)


def test_the_cut_is_beyond_all_sizes_where_no_noise_hides_them() -> None:
    counts = np.zeros(len(EDGES))
    counts[40:60] = 100
    place, influence = cut_of(counts, 0.0, 2000, 0.0)
    assert place >= 59
    assert influence == pytest.approx(0, abs=1e-6)
    assert usual_length(counts, 0.0, 2000) == 59
    squares = float(counts @ EDGES**2)
    assert unseen_square(counts, 0.0, 59, squares) == 0
    assert unseen_square(counts, 0.0, 59, squares / 2) == pytest.approx(0.19 * squares, rel=0.01)


def test_more_noise_means_a_larger_share_of_the_tail_is_taken_for_lost() -> None:
    counts = 5000 * 0.5 ** np.abs((np.arange(len(EDGES)) - 60) / 2.0)
    found = [cut_of(counts, std, counts.sum(), 5 * std) for std in (1.0, 30.0)]
    assert all(place > 60 for place, _ in found)
    assert found[0][1] < found[1][1]


@pytest.mark.parametrize(("n", "known"), [(450, False), (4000, True)])
def test_few_records_make_a_linear_model_unknown_and_never_narrow(n: int, known: bool) -> None:
    shape, records = toy(0, n)
    truth = fitted(Linear, shape, records).results
    for seed in range(20):
        found = fitted(Linear, shape, records, epsilon=1.0, noise=SimulatedNoise(seed)).results
        assert (found["drowned"] == (0 if known else 1)).all()
        for name in () if known else ("coef", "intercept", "residual_std"):
            low, high = found[f"{name}_low"], found[f"{name}_high"]
            assert ((low < truth[name]) & (truth[name] < high)).all()
    plan = make_plan(Linear, shape, ["silo-0"], budget=Budget(1.0, 1e-6), nominal_n=n, target="y")
    assert known != any("no coefficient would be known" in text for text in size_warnings(plan))
