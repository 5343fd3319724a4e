"""Treatment effects: textbook estimates without noise, slopes, refusals, sentences."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.core.arrays import Floats, Results
from cloister.core.errors import PlanError
from cloister.core.numerals import NOT_KNOWN
from cloister.data.schema import Column, Schema
from cloister.estimators.treatment import DPTreatmentEffect
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.tasks.regression.effect import TreatmentEffect
from cloister.tasks.regression.weighing import ESTIMANDS, LEAST, scores_of
from cloister.testing import SimulatedNoise, ZeroNoise, zero_noise

N = 8000
EXACT = 1e7  # of epsilon: hardly any noise, so that nothing is cut
NUMBER = Column(name="y", type="number", min=-8, max=8)
BOOLEAN = Column(name="y", type="boolean")
COVARIATES = (
    Column(name="a", type="number", min=-3, max=3),
    Column(name="work", type="category", categories=("desk", "field", "none")),
    Column(name="t", type="boolean"),
)


def expit(margin: Floats) -> Floats:
    return 1 / (1 + np.exp(-margin))


@cache
def table(boolean: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return cells, codes for categories, and the design of a textbook."""
    rng = np.random.default_rng(1)
    a, work = rng.normal(0, 1, N).clip(-3, 3), rng.choice(3, N, p=[0.5, 0.3, 0.2])
    t = (rng.random(N) < expit(0.8 * a - 0.8 * (work == 2))) * 1.0
    margin = 0.5 * a + 0.4 * (work == 1) - 0.6 * t
    y = margin + rng.normal(0, 1, N)
    if boolean:
        y = (rng.random(N) < expit(margin)) * 1.0
    design = np.column_stack([a, work == 1, work == 2]).astype(float)
    return np.column_stack([a, work, t, y.clip(-8, 8)]), design


def plan_of(boolean: bool = False, epsilon: float = 1.0, n: int = N, **options: Any) -> Plan:
    schema = Schema(
        dataset="toy", unit="row", columns=(*COVARIATES, BOOLEAN if boolean else NUMBER)
    )
    budget = Budget(epsilon, 1e-6)
    given = {"treatment": "t", "outcome": "y", **options}
    return make_plan(TreatmentEffect, schema, ("p",), budget=budget, nominal_n=n, **given)


def released(plan: Plan, cells: np.ndarray, noise: Any = None) -> Results:
    return run_plan(plan, {"p": [plan.grid.encode(cells)]}, noise=noise or ZeroNoise()).results


@pytest.mark.parametrize("boolean", [False, True])
def test_without_noise_effects_are_those_of_the_textbook(boolean: bool) -> None:
    """At the same models by another library; and so are balance, arms and variances."""
    cells, design = table(boolean)
    t, y = cells[:, 2], cells[:, 3]
    results = released(plan_of(boolean, EXACT), cells)
    exact = {"C": np.inf, "tol": 1e-10, "max_iter": 1000}
    e = LogisticRegression(**exact).fit(design, t).predict_proba(design)[:, 1]
    share = t.mean()
    kept = e.clip(LEAST * share, 1 - LEAST * (1 - share))
    assert (kept != e).any()
    both = np.column_stack([design, t])
    arms = [np.column_stack([design, np.full(N, k)]) for k in (0.0, 1.0)]
    if boolean:
        model: Any = LogisticRegression(**exact).fit(both, y)
        m0, m1 = (model.predict_proba(arm)[:, 1] for arm in arms)
    else:
        model = LinearRegression().fit(both, y)
        m0, m1 = map(model.predict, arms)
    average = m1 - m0 + t * (y - m1) / kept - (1 - t) * (y - m0) / (1 - kept)
    h = e * (1 - e)
    overlap = h * (m1 - m0) + t * (1 - e) * (y - m1) - (1 - t) * e * (y - m0)
    for name, terms, over in (("ate", average, np.ones(N)), ("ato", overlap, h)):
        value = terms.sum() / over.sum()
        error = np.sqrt(((terms - value * over) ** 2).sum()) / over.sum()
        assert abs(results[name][0] - value) < 0.02 * error
        ends = (results[f"{name}_population_{side}"][0] for side in ("high", "low"))
        assert np.subtract(*ends) == pytest.approx(2 * 1.96 * error, rel=0.01)
    assert results["naive"][0] == pytest.approx(y[t == 1].mean() - y[t == 0].mean(), abs=1e-3)
    np.testing.assert_allclose(results["arm_size"], [(t == 0).sum(), (t == 1).sum()], rtol=1e-3)
    a, w = design[:, 0], np.where(t == 1, 1 - e, e)
    spread = np.sqrt((a[t == 1].var() + a[t == 0].var()) / 2)
    assert results["smd_before"][0] == pytest.approx(
        (a[t == 1].mean() - a[t == 0].mean()) / spread, abs=1e-3
    )
    weighted = [np.average(a[t == k], weights=w[t == k]) for k in (0, 1)]
    assert results["smd_after"][0] == pytest.approx(np.subtract(*weighted[::-1]) / spread, abs=1e-3)


def test_slopes_are_the_changes_of_scores() -> None:
    """Against differences, for both estimands and both models."""
    rng = np.random.default_rng(2)
    m, q = 300, 3
    rows, treated, target = rng.normal(0, 1, (q, m)), rng.random(m) < 0.4, rng.normal(0, 1, m)
    arms = [rng.normal(0, 1, (q + 1, m)) for _ in range(2)]

    def values(weights: Floats) -> Any:
        means = [weights[q:] @ one for one in arms]
        residual = target - np.where(treated, means[1], means[0])
        effect = means[1] - means[0] - 0.3
        e = expit(weights[:q] @ rows)
        return scores_of(e, treated, residual, effect, rows, arms, target, 0.4)

    at, step = rng.normal(0, 0.4, 2 * q + 1), 1e-5
    found = values(at)
    e = expit(at[:q] @ rows)
    inside = (e > LEAST * 0.4 + 1e-3) & (e < 1 - LEAST * 0.6 - 1e-3)
    for k in range(len(ESTIMANDS)):
        for j, way in enumerate(np.eye(len(at)) * step):
            # The sum over k is a divisor, so its own change counts times the effect, 0 here.
            change = (values(at + way).values[k] - values(at - way).values[k]) / (2 * step)
            np.testing.assert_allclose(
                found.slopes[k][j][inside], change[inside], rtol=1e-5, atol=1e-6
            )


def test_few_records_are_refused_with_the_number_that_is_enough() -> None:
    with pytest.raises(PlanError, match="noise would hide the models") as refused:
        plan_of(n=2000)
    found = re.search(r"at least ([\d,]+)", str(refused.value))
    assert found
    enough = int(found[1].replace(",", ""))
    assert 2000 < enough < N
    assert plan_of(n=enough).nominal_n == enough


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"treatment": "work"}, "two categories"),
        ({"outcome": "work"}, "two categories"),
        ({"covariates": ("a", "t")}, "different columns"),
        ({"treatment": "drug"}, "treatment must be a column"),
    ],
)
def test_columns_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan_of(**options)


def test_a_unit_of_several_rows_is_refused() -> None:
    schema = Schema(dataset="toy", unit="id", max_rows=3, columns=(*COVARIATES, NUMBER))
    about = {"budget": Budget(1.0, 1e-6), "nominal_n": N, "treatment": "t", "outcome": "y"}
    with pytest.raises(PlanError, match="one record of each unit"):
        make_plan(TreatmentEffect, schema, ("p",), **about)


def test_an_effect_is_not_known_if_a_coefficient_is_not() -> None:
    """A category of five records: its coefficient is hidden, and it may be a common cause."""
    cells = table(False)[0].copy()
    cells[:, 1] = np.where(cells[:, 1] == 2, 0, cells[:, 1])
    cells[:5, 1] = 2
    plan = plan_of()
    results = released(plan, cells, SimulatedNoise(1))
    for name in ESTIMANDS:
        assert np.isnan(results[name][0])
        assert np.isinf([results[f"{name}_low"], results[f"{name}_population_high"]]).all()
    assert np.isfinite(results["naive"]).all()
    said = plan.task.summary(results, plan.columns, N, "records")
    assert "not known" in said.result
    rows = plan.task.displays(results, plan.columns)[0].rows
    assert [cell for _, cell in rows[:2]] == [NOT_KNOWN, NOT_KNOWN]
    unknown = results | {"smd_after": np.full_like(results["smd_after"], np.nan)}
    balance = plan.task.displays(unknown, plan.columns)[2]
    assert balance.note.endswith(
        "not known: the spread of the column, or an arm, is too small for the noise."
    )


def test_noise_leaves_the_effect_in_its_intervals() -> None:
    """The true effect is -0.6; the difference that is not adjusted is off by its noise and more."""
    results = released(plan_of(), table(False)[0], SimulatedNoise(3))
    for name in ESTIMANDS:
        low, high = (results[f"{name}_population_{side}"][0] for side in ("low", "high"))
        assert low < -0.6 < high
        assert high - low < 0.3
    assert results["naive_low"][0] > -0.5


@pytest.mark.parametrize("estimand", ESTIMANDS)
def test_the_effect_that_is_asked_for_has_most_of_the_budget(estimand: str) -> None:
    task = plan_of(estimand=estimand).task
    weights = {b.name: b.weight for b in task.blocks(task.rounds - 1)}
    (other,) = set(ESTIMANDS) - {estimand}
    for end in ("", "_slopes"):
        assert weights[estimand + end] > 2 * weights[other + end]
    whole = [block.weight for t in range(task.rounds) for block in task.blocks(t)]
    assert sum(whole) == pytest.approx(1.0)


def rare_treatment(n: int) -> np.ndarray:
    """Return records with a bent outcome, 2.8 % treated, and a true effect of 1."""
    rng = np.random.default_rng(8)
    a, work = rng.normal(0, 1, n).clip(-3, 3), rng.choice(3, n, p=[0.5, 0.3, 0.2])
    t = (rng.random(n) < expit(a - 4)) * 1.0
    y = t + a + 0.7 * a**2 - 3 + rng.normal(0, 0.5, n)
    return np.column_stack([a, work, t, y.clip(-8, 8)])


def test_a_rare_treatment_is_weighted_although_all_its_probabilities_are_small() -> None:
    """A bound that is larger than most probabilities would leave the outcome model alone."""
    n = 20_000
    cells = rare_treatment(n)
    assert 0.02 < cells[:, 2].mean() < 0.035
    results = released(plan_of(epsilon=EXACT, n=n), cells)
    for name in ESTIMANDS:
        low, high = (results[f"{name}_population_{side}"][0] for side in ("low", "high"))
        assert low < 1 < high
        assert high - low < 0.4


def test_the_interval_has_what_a_cut_of_long_scores_takes_away() -> None:
    """Costs with a tail that the treatment makes longer, beside the same models without noise."""
    rng, n = np.random.default_rng(9), 20_000
    a = rng.normal(0, 1, n).clip(-3, 3)
    t = (rng.random(n) < expit(0.5 * a)) * 1.0
    y = np.exp(rng.normal(0, 1.3, n)) * (1 + 0.5 * t)
    cells = np.column_stack([a, np.arange(n) % 3, t, (0.08 * y - 8).clip(-8, 8)])
    exact = released(plan_of(epsilon=EXACT, n=n), cells)
    arms = [cells[t == k, 3].mean() for k in (0, 1)]
    truth = {name: exact[name][0] for name in ESTIMANDS} | {"naive": arms[1] - arms[0]}
    held = dict.fromkeys(truth, 0)
    for seed in range(10):
        results = released(plan_of(epsilon=2.0, n=n), cells, SimulatedNoise(seed))
        for name, value in truth.items():
            low, high = (results[f"{name}_{side}"][0] for side in ("low", "high"))
            held[name] += int(low < value < high)
    assert min(held.values()) >= 9, held


@pytest.mark.parametrize("estimand", ESTIMANDS)
def test_the_estimator_shows_effect_and_balance(estimand: str, tmp_path: Path) -> None:
    cells, _ = table(False)
    schema = Schema(dataset="toy", unit="row", columns=(*COVARIATES, NUMBER))
    frame = pd.DataFrame(cells, columns=["a", "work", "t", "y"])
    frame["work"] = np.array(["desk", "field", "none"])[cells[:, 1].astype(int)]
    frame["t"] = frame["t"].astype(int)
    about = {"treatment": "t", "outcome": "y", "estimand": estimand, "nominal_n": N}
    model = zero_noise(DPTreatmentEffect)(epsilon=8.0, bounds=schema, **about).fit(frame)
    assert model.effect_.value == pytest.approx(-0.6, abs=0.1)
    assert model.effect_.value == getattr(model, f"{estimand}_").value
    assert list(model.names_) == ["a", "work=desk", "work=field", "work=none"]
    assert abs(model.smd_before_.values[0]) > 0.5 > 10 * abs(model.smd_after_.values[0])
    _, _, balance, picture = model.displays()
    # An export has the mark in both rows of a covariate, also in that of the difference before.
    assert balance.rows[0][-1] == "balanced after weighting"
    assert picture.marks == (-0.1, 0.1)
    assert set(model.to_frame().index.get_level_values("table")) == {
        *("Effect of t=true on y", "Arms", "Balance")
    }
    model.save(tmp_path / "effect.json")
    loaded = DPTreatmentEffect.load(tmp_path / "effect.json", bounds=schema)
    assert (loaded.treatment, loaded.outcome, loaded.estimand) == ("t", "y", estimand)
    assert loaded.effect_ == model.effect_
    with pytest.raises(PlanError, match="Schema"):
        DPTreatmentEffect(epsilon=1.0, bounds=(0, 1), **about).fit(frame)
