"""Naive Bayes: against scikit-learn without noise, over silos, with noise, and as an estimator."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, GaussianNB, MultinomialNB
from sklearn.utils.estimator_checks import check_estimator

from cloister import DPNaiveBayes, Ledger, PlanError, Schema
from cloister.app.job import make_plan, run_job
from cloister.app.release import Release
from cloister.data.schema import Column
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.protocol.task import Classifier
from cloister.tasks import TASKS
from cloister.tasks.supervised.class_tables import (
    bounded_totals,
    fitted_shares,
    merge_bins,
    pseudo_records,
)
from cloister.tasks.supervised.naive_bayes import NaiveBayes
from cloister.testing import UNMET_CHECKS, SimulatedNoise, ZeroNoise, zero_noise

NO_NOISE = 1e7  # of epsilon, so that smoothing for the noise is nothing
ILL = Column(name="ill", type="category", categories=("no", "mild", "bad"), min=0, max=2)
WORK = Column(name="work", type="category", categories=("a", "b", "c", "d"), min=0, max=3)


def schema(*columns: Column) -> Schema:
    return Schema(dataset="toy", unit="row", columns=(*columns, ILL))


def number(name: str, low: float = -1.0, high: float = 1.0) -> Column:
    return Column(name=name, type="number", min=low, max=high)


def boolean(name: str) -> Column:
    return Column(name=name, type="boolean")


def table(shape: Schema, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return random values in data units, and grid records of them."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 3, n)
    columns = []
    for c in shape.public:
        if c.name == "ill":
            columns.append(classes)
        elif c.levels:
            columns.append((rng.integers(0, c.levels, n) + classes) % c.levels)
        else:
            spread = (c.high - c.low) / 8
            values = rng.normal((c.low + c.high) / 2 + spread * (classes - 1), spread)
            columns.append(np.clip(values, c.low, c.high))
    values = np.column_stack(columns).astype(float)
    return values, shape.grid().encode(values)


def fitted(shape: Schema, records: np.ndarray, silos: int = 1, **options: Any) -> Release:
    parts = {f"silo-{i}": [records[i::silos]] for i in range(silos)}
    chosen: dict[str, Any] = {"epsilon": NO_NOISE, "noise": ZeroNoise(), "target": "ill", **options}
    return run_job(NaiveBayes, shape, parts, nominal_n=len(records), **chosen)


def probabilities(result: Release, records: np.ndarray) -> np.ndarray:
    task = result.plan.task
    assert isinstance(task, NaiveBayes)
    return task.probabilities(result.results, records)


# --- without noise it is the textbook's


def test_categories_without_noise_are_scikit_learns() -> None:
    shape = schema(WORK, boolean("smokes"))
    values, records = table(shape, 500)
    result = fitted(shape, records)
    theirs = CategoricalNB(min_categories=[4, 2]).fit(values[:, :2], values[:, 2])
    np.testing.assert_allclose(
        result.results["log_cells"], np.hstack(theirs.feature_log_prob_), rtol=1e-4
    )
    np.testing.assert_allclose(
        probabilities(result, records), theirs.predict_proba(values[:, :2]), rtol=1e-4
    )


def test_booleans_without_noise_are_a_bernoulli_model() -> None:
    shape = schema(*(boolean(f"b{j}") for j in range(6)))
    values, records = table(shape, 400)
    theirs = BernoulliNB().fit(values[:, :-1], values[:, -1])
    np.testing.assert_allclose(
        probabilities(fitted(shape, records), records),
        theirs.predict_proba(values[:, :-1]),
        rtol=1e-4,
    )


def test_normal_columns_without_noise_are_scikit_learns() -> None:
    shape = schema(number("x", -3, 5), number("z", 0, 100))
    values, records = table(shape, 600)
    result = fitted(shape, records, numbers="gaussian")
    theirs = GaussianNB().fit(values[:, :2], values[:, 2])
    np.testing.assert_allclose(result.results["means"], theirs.theta_, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(result.results["stds"], np.sqrt(theirs.var_), rtol=2e-3)
    np.testing.assert_allclose(
        probabilities(result, records), theirs.predict_proba(values[:, :2]), atol=2e-3
    )


def test_counts_without_noise_are_a_multinomial_model() -> None:
    shape = schema(*(number(f"w{j}", 0, 20) for j in range(4)))
    values, _ = table(shape, 300)
    values = values.round()
    records = shape.grid(20).encode(values)
    result = fitted(shape, records, numbers="counts", most_counts=80.0, frac_bits=20)
    theirs = MultinomialNB().fit(values[:, :4], values[:, 4])
    np.testing.assert_allclose(result.results["log_words"], theirs.feature_log_prob_, rtol=1e-3)
    np.testing.assert_allclose(
        probabilities(result, records), theirs.predict_proba(values[:, :4]), rtol=0.02
    )


def test_a_record_with_too_many_counts_is_scaled_down_as_a_whole() -> None:
    shape = schema(number("v", 0, 20), number("w", 0, 20))
    records = shape.grid().encode(np.array([[20.0, 20, 0], [5, 0, 0]]))
    result = fitted(shape, records, numbers="counts", most_counts=10.0)
    totals = np.array(result.results["words"])[0] * 15
    np.testing.assert_allclose(totals, [5 + 5, 5], atol=1e-3)


@pytest.mark.parametrize(
    "options",
    [{}, {"numbers": "gaussian"}, {"numbers": {"n": "counts", "m": "counts"}, "most_counts": 9.0}],
)
@pytest.mark.parametrize("silos", [2, 5])
def test_silos_without_noise_are_bit_for_bit_the_pooled_records(
    silos: int, options: dict[str, Any]
) -> None:
    shape = schema(number("x"), number("n", 0, 9), number("m", 0, 9), WORK, boolean("smokes"))
    _, records = table(shape, 211)
    pooled = fitted(shape, records, epsilon=1.0, **options)
    spread = fitted(shape, records, silos, epsilon=1.0, **options)
    assert pooled.results.keys() == spread.results.keys()
    for name, value in pooled.results.items():
        np.testing.assert_array_equal(value, spread.results[name])


# --- what the noise does


def test_classes_and_cells_that_nobody_has_are_released_like_all_others() -> None:
    shape = schema(WORK, number("x"))
    alone = shape.grid().encode(np.zeros((50, 3)))
    nobody = np.empty((0, 3), dtype=np.int32)
    for records in (alone, nobody):
        result = (
            fitted(shape, records, epsilon=1.0, noise=SimulatedNoise(3))
            if len(records)
            else (
                run_job(
                    NaiveBayes,
                    shape,
                    {"a": [records]},
                    epsilon=1.0,
                    nominal_n=50,
                    noise=SimulatedNoise(3),
                    target="ill",
                )
            )
        )
        assert result.results["class_counts"].shape == (3,)
        assert np.count_nonzero(result.results["class_counts"]) == 3
        assert all(np.isfinite(v).all() for v in result.results.values())
        found = probabilities(result, shape.grid().encode(np.eye(3)))
        np.testing.assert_allclose(found.sum(axis=1), 1)
        assert (found > 0).all()


@pytest.mark.parametrize("noise", [-8.0, -3.0, -1.0, 0.0, 1.0])
def test_a_class_that_has_nearly_all_records_may_have_all_of_them(noise: float) -> None:
    shape = schema(boolean("smokes"))
    task = fitted(shape, shape.grid().encode(np.zeros((9, 2))), noise=ZeroNoise()).plan.task
    state = {name: np.zeros_like(value) for name, value in task.start().items()}
    state["counts"] = np.rint(np.array([120.0, noise, 0.0]) * shape.grid().one)
    state["noise"] = np.rint(np.array([task.class_word]) * shape.grid().one)  # one record
    found = task.results(state, shape.grid())
    low, high = found["class_prior_low"], found["class_prior_high"]
    assert 0.9 < low[0] <= high[0] == 1
    assert low[1] <= high[1] < 0.1


def test_tables_agree_on_the_size_of_each_class() -> None:
    """Each released table is centred after projection, so no column has its own class sizes."""
    shape = schema(WORK, boolean("smokes"), number("x"))
    _, records = table(shape, 300)
    result = fitted(shape, records, epsilon=0.5, noise=SimulatedNoise(1), bins=6)
    tables = result.history[-1]  # intervals and shares; cells of one column sum to one per class
    for place in (slice(0, 4), slice(4, 6), slice(6, 12)):
        np.testing.assert_allclose(np.exp(tables["log_cells"][:, place]).sum(axis=1), 1)


def test_a_cell_of_noise_alone_tells_classes_no_longer_apart() -> None:
    rng = np.random.default_rng(0)
    priors = np.array([0.8, 0.2])
    exact = 1000 * priors[:, None] * np.full(6, 1 / 6)
    groups = np.arange(6)
    noisy = exact + rng.normal(0, 1000, exact.shape)
    shares = fitted_shares(noisy, groups, 1000.0, priors, 1.0)
    plain = fitted_shares(noisy, groups, 0.0, priors, 1.0)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    spread = np.abs(np.log(shares[0] / shares[1])).mean()
    assert spread < 0.25 * np.abs(np.log(plain[0] / plain[1])).mean()
    np.testing.assert_allclose(fitted_shares(exact, groups, 0.0, priors, 1e-9), 1 / 6)


def test_pseudo_records_go_to_classes_by_their_size() -> None:
    found = pseudo_records(np.array([0.0, 3.0]), np.array([0.75, 0.25]))
    np.testing.assert_allclose(found, [[0, 4.5], [0, 1.5]])


def test_bins_that_differ_stay_apart_and_bins_of_one_mix_are_joined() -> None:
    priors = np.array([0.5, 0.5])
    same = np.full((2, 12), 100.0)
    assert (merge_bins(same, 5.0, priors) == 0).all()
    step = same + np.where(np.arange(12) < 5, 60, -60) * np.array([[1], [-1]])
    assert merge_bins(step, 5.0, priors).tolist() == [0] * 5 + [1] * 7
    assert (merge_bins(step, 500.0, priors) == 0).all(), "noise could have made the step"


def test_more_budget_and_records_make_more_bins() -> None:
    shape = schema(number("x"))

    def bins(epsilon: float, n: int) -> int:
        plan = make_plan(
            NaiveBayes, shape, ["a"], budget=Budget(epsilon, 1e-6), nominal_n=n, target="ill"
        )
        assert isinstance(plan.task, NaiveBayes)
        return plan.task.cells[0]

    assert bins(0.1, 100) == 4 < bins(0.1, 30_000) < bins(1.0, 30_000) <= bins(9.0, 10**7) == 128


def test_accuracy_with_noise_is_near_scikit_learns_without() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    bounds = (np.zeros(30), X.max(axis=0) * 1.2)  # public for this test only
    ours, theirs = [], []
    for seed in range(5):
        train, test, of_train, of_test = train_test_split(X, y, test_size=0.3, random_state=seed)
        model = DPNaiveBayes(epsilon=2.0, bounds=bounds, classes=[0, 1], nominal_n=400)
        ours.append(model.fit(train, of_train).score(test, of_test))
        theirs.append(GaussianNB().fit(train, of_train).score(test, of_test))
    assert np.mean(ours) > np.mean(theirs) - 0.04


# --- plans


def test_a_plan_reads_back_equal_and_says_itself() -> None:
    shape = schema(WORK, number("x"), number("n", 0, 5), number("m", 0, 5))
    plan = make_plan(
        NaiveBayes,
        shape,
        ["a", "b"],
        budget=Budget(1.0, 1e-6),
        nominal_n=100,
        target="ill",
        numbers={"n": "counts", "m": "counts"},
        most_counts=6.0,
    )
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())), TASKS)
    assert again == plan
    assert again.digest == plan.digest
    assert isinstance(plan.task, Classifier)
    assert "3 classes" in plan.task.describe()
    forecast = plan.task.forecast(plan.noise_std(plan.task.blocks(0)[0]), 100, plan.grid)
    assert forecast.keys() <= {"class_count_half_width", "cell_half_width"}
    assert all((value > 0).all() for value in forecast.values())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"target": "age"}, "target must be a column of the schema"),
        ({"target": "x"}, "must be a column of categories"),
        ({"numbers": "cubes"}, "numbers must be one of"),
        ({"numbers": {"work": "binned"}}, "numbers must name numeric columns"),
        ({"numbers": {"x": "cubes"}}, "numbers must be one of"),
        ({"bins": 1}, r"bins must be an integer in \[2, 1024\]"),
        ({"bins": 2.5}, "bins must be an integer"),
        ({"numbers": "counts", "most_counts": 3.0}, "must have min 0 and max above 0, column 1"),
        ({"numbers": {"n": "counts", "m": "counts"}}, "most_counts must be given with 2 or more"),
        ({"numbers": {"n": "counts"}, "most_counts": 3.0}, "2 or more columns of counts"),
        ({"most_counts": 3.0}, "with 2 or more columns of counts"),
        ({"smoothing": 0.0}, "smoothing must be > 0"),
        ({"smoothing": float("nan")}, "smoothing must be > 0"),
        ({"trees": 3}, "options of task 'naive-bayes' do not fit"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_is_spent(
    options: dict[str, Any], sentence: str
) -> None:
    shape = schema(WORK, number("x"), number("n", 0, 5), number("m", 0, 5))
    with pytest.raises(PlanError, match=sentence):
        make_plan(
            NaiveBayes,
            shape,
            ["a"],
            budget=Budget(1.0, 1e-6),
            nominal_n=100,
            **{"target": "ill", **options},
        )


def test_a_target_alone_is_refused() -> None:
    with pytest.raises(PlanError, match="other than the target"):
        make_plan(NaiveBayes, schema(), ["a"], budget=Budget(1.0, 1e-6), nominal_n=9, target="ill")


# --- the report


def test_displays_name_classes_cells_and_bins() -> None:
    shape = schema(
        WORK, number("x", 0, 80), number("z"), number("n", 0, 5), number("m", 0, 5), boolean("s")
    )
    _, records = table(shape, 2000)
    kinds = {"z": "gaussian", "n": "counts", "m": "counts"}
    result = fitted(
        shape, records, epsilon=4.0, numbers=kinds, most_counts=9.0, noise=SimulatedNoise(0)
    )
    shown = result.plan.task.displays(result.results, result.plan.columns)
    titles = [display.title for display in shown]
    assert titles[0] == "Classes"
    assert len(titles) == 5
    text = str([vars(display.estimate) for display in shown[1:]])
    assert "work=c" in text
    assert re.search(r"x [\d.]+ to [\d.]+", text)
    for display in shown[2:]:
        assert (display.estimate.low <= display.estimate.high).all()
        assert (np.abs(display.shade) <= 1).all()


# --- the estimator


@pytest.mark.parametrize("numbers", ["binned", pytest.param("gaussian", marks=pytest.mark.nightly)])
def test_scikit_learn_finds_nothing_wrong(numbers: str) -> None:
    kind = zero_noise(DPNaiveBayes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            kind(epsilon=1000.0, bounds=(-100, 100), classes="in_y", numbers=numbers),
            expected_failed_checks=dict(UNMET_CHECKS),
            on_fail=None,
        )
    assert [r["check_name"] for r in results if r["status"] == "failed"] == []


def people(n: int, seed: int = 0) -> pd.DataFrame:
    values, _ = table(schema(WORK, number("x", 0, 80)), n, seed)
    labels = {name: np.array(c.categories) for name, c in (("work", WORK), ("ill", ILL))}
    return pd.DataFrame(
        {
            "work": labels["work"][values[:, 0].astype(int)],
            "x": values[:, 1],
            "ill": labels["ill"][values[:, 2].astype(int)],
        }
    )


def test_words_of_a_schema_are_told_over_silos_and_charged(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.open_dataset("toy", cap=Budget(5.0, 1e-6))
    model = DPNaiveBayes(
        epsilon=3.0,
        bounds=schema(WORK, number("x", 0, 80)),
        target="ill",
        nominal_n=3000,
        ledger=ledger,
    )
    model.fit([people(1000, seed) for seed in range(3)])
    test = people(500, 9)
    assert model.classes_.tolist() == ["no", "mild", "bad"]
    assert model.score(test, test["ill"]) > 0.5
    np.testing.assert_allclose(np.exp(model.predict_log_proba(test)), model.predict_proba(test))
    assert model.feature_names_[0] == "work=a"
    assert model.feature_prob_.shape == (3, len(model.feature_names_))
    assert (model.feature_prob_low_ <= model.feature_prob_high_).all()
    assert (model.class_prior_low_ <= model.class_prior_).all()
    assert not hasattr(model, "theta_")
    assert model.spent_ == pytest.approx(3.0, rel=1e-3)
    assert ledger.spent("toy") > 0
    model.save(tmp_path / "model.json")
    loaded = Release.load(tmp_path / "model.json")
    assert loaded.results["log_cells"].tolist() == model.feature_log_prob_.tolist()


def test_unknown_words_and_one_class_do_not_stop_a_fit() -> None:
    odd = people(60).assign(work="elsewhere", ill="no")
    model = DPNaiveBayes(
        epsilon=1.0,
        bounds=schema(WORK, number("x", 0, 80)),
        target="ill",
        nominal_n=100,
        max_loss=1.0,
    )
    model.fit([odd, people(60)])
    assert model.predict_proba(odd.assign(work="a")).shape == (60, 3)


def test_labels_are_never_read_in_silence() -> None:
    X, y = np.zeros((4, 1)), [0, 1, 0, 1]
    with pytest.raises(PlanError, match="classes must be the public list"):
        DPNaiveBayes(epsilon=1.0, bounds=(-1, 1)).fit(X, y)


def test_counts_go_from_none_at_the_bottom_to_the_top_of_a_box_and_long_records_are_scaled() -> (
    None
):
    one = 1 << 4
    records = np.array([[one, -one], [0, one], [5 * one, -9 * one]], dtype=np.int32)
    labels, tops = np.array([0, 1, 1]), np.array([10, 20])
    found = bounded_totals(labels, records, 2, tops, 15, 4)
    # half of 10 and all of 20 are 25, of which 15 are left; what lies beside counts as an end
    assert found.tolist() == [[10, 0], [10 + 5 * 15 // 25, 20 * 15 // 25]]
