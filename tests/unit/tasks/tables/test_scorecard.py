"""Scorecards without noise are the textbook's; what is shown, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from cloister import DPScorecard, PlanError, Schema, run_job
from cloister.app.forecast import forecast_of
from cloister.app.release import Release
from cloister.app.report.page import render_report
from cloister.app.text import as_table, cell_text
from cloister.core.arrays import Floats
from cloister.core.display import Bars, Curve
from cloister.tasks.tables import risk
from cloister.tasks.tables.scorecard import Scorecard
from cloister.testing import SimulatedNoise, ZeroNoise

SCHEMA = Schema(
    dataset="loans",
    unit="row",
    columns=[
        {"name": "score", "type": "number", "min": 300, "max": 900},
        {"name": "home", "type": "category", "categories": ["own", "rent", "other"]},
        {"name": "year", "type": "category", "categories": ["2023", "2024", "2025"]},
        {"name": "sex", "type": "category", "categories": ["m", "f"]},
        {"name": "approved", "type": "boolean"},
        {"name": "default", "type": "boolean"},
    ],
)
EDGES = {"score": (500.0, 540.0, 560.0, 600.0)}
N = 20_000
EVERYTHING: dict[str, Any] = {
    "characteristics": ("score", "home"),
    "edges": EDGES,
    "over": "year",
    "group": "sex",
    "decision": "approved",
}


def test_the_forecast_is_near_what_is_delivered() -> None:
    done = released(loans(), SimulatedNoise(0), nominal_n=N, **EVERYTHING)
    told, found = forecast_of(done.plan), done.results
    for i, name in enumerate(("column_1.", "column_2.")):
        goods, events = found[f"{name}counts"].T
        planned = {
            "rate": told["event_rate_of_a_bin_with_10%_of_the_records_half_width"][i]
            * (N / 10 / (goods + events)),
            "woe": told["weight_of_evidence_of_a_bin_with_100_events_half_width"][i]
            * (100 * np.hypot(1 / goods, 1 / events)),
        }
        for key, widths in planned.items():
            half = (found[f"{name}{key}_high"] - found[f"{name}{key}_low"]) / 2
            assert (abs(np.log(half / widths)) < np.log(1.5)).all(), (name, key)
    tenth = N / 10 * np.hypot(*1 / found["column_1.counts"].sum(axis=0))
    for key in ("gini", "ks"):
        half = (found[f"column_1.{key}_high"] - found[f"column_1.{key}_low"]) / 2
        ratio = half / (told[f"{key}_if_10%_have_the_event_half_width"][0] * tenth)
        assert 1 / 1.5 < ratio[0] < 1.5


def loans(n: int = N, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    year, sex = rng.integers(0, 3, n), rng.integers(0, 2, n)
    score = (rng.normal(590, 50, n) - 15 * (year == 2)).clip(300, 900)
    default = rng.random(n) < 1 / (1 + np.exp((score - 520) / 35))
    approved = score + 10 * sex + rng.normal(0, 20, n) > 560
    home = rng.choice(3, n, p=[0.5, 0.4, 0.1])
    columns = (score, home, year, sex, approved, default)
    return pd.DataFrame(dict(zip(SCHEMA.names, columns, strict=True))).astype(float)


def released(table: pd.DataFrame, noise: Any = None, **options: Any) -> Release:
    records = SCHEMA.grid().encode(table.to_numpy())
    parts = {f"silo-{i}": [records[i::3]] for i in range(3)}
    given = {"epsilon": 1.0, "nominal_n": 5000, "target": "default", **options}
    return run_job(Scorecard, SCHEMA, parts, noise=noise or ZeroNoise(), **given)


def named(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with its categories by name, as a file has them."""
    words = {c.name: c.categories for c in SCHEMA.columns if c.type == "category"}
    return table.assign(**{k: [v[int(i)] for i in table[k]] for k, v in words.items()})


def shares(counts: Floats) -> tuple[Floats, Floats]:
    p, q = (counts / counts.sum(axis=0)).T
    return p, q


def test_without_noise_it_is_the_textbook() -> None:
    table = loans()
    found = released(table, epsilon=1e6, **EVERYTHING).results
    band = pd.cut(table["score"], [300, *EDGES["score"], 900], right=False).cat.codes
    for i, column in ((1, band), (2, table["home"])):
        counts = pd.crosstab(column, table["default"]).to_numpy()
        p, q = shares(counts)
        np.testing.assert_array_equal(found[f"column_{i}.counts"], counts)
        np.testing.assert_allclose(found[f"column_{i}.woe"], np.log(p / q))
        assert found[f"column_{i}.iv"] == pytest.approx(((p - q) * np.log(p / q)).sum())
        np.testing.assert_allclose(found[f"column_{i}.rate"], counts[:, 1] / counts.sum(axis=1))
        moved = pd.crosstab(column, table["year"]).to_numpy()
        for k in (1, 2):
            p, q = shares(moved[:, [0, k]])
            psi = ((p - q) * np.log(p / q)).sum()
            assert found[f"column_{i}.psi"][k - 1] == pytest.approx(psi)
            assert found[f"column_{i}.psi_clear"][k - 1].all()
    counts = pd.crosstab(band, table["default"]).to_numpy()
    below = np.vstack([np.zeros((1, 2)), np.cumsum(counts, axis=0) / counts.sum(axis=0)])
    np.testing.assert_allclose(found["column_1.below"], below)
    assert found["column_1.ks"] == pytest.approx(np.abs(below[:, 0] - below[:, 1]).max())
    auc = roc_auc_score(table["default"], band)
    assert found["column_1.gini"] == pytest.approx(2 * auc - 1)
    np.testing.assert_allclose(found["column_1.edges"], [300, *EDGES["score"], 900], rtol=1e-5)
    np.testing.assert_allclose(found["column_1.gain"], below[:, 1])  # low scores are risky
    np.testing.assert_allclose(
        found["column_1.reach"], np.r_[0, np.cumsum(counts.sum(axis=1))] / len(table)
    )


def test_without_noise_rates_of_groups_are_those_of_pandas() -> None:
    table = loans()
    found = released(table, **EVERYTHING).results
    for name, rows in (("selection", table), ("opportunity", table[table["default"] == 0])):
        rates = rows.groupby("sex")["approved"].mean().to_numpy()
        np.testing.assert_allclose(found[name], rates)
        np.testing.assert_allclose(found[f"{name}_difference"], rates[1:] - rates[0])
        np.testing.assert_allclose(found[f"{name}_ratio"], rates[1:] / rates[0])
    of_score = {**EVERYTHING, "decision": "score", "cutoff": 560.0}
    found = released(table, **of_score).results
    rates = (table["score"] >= 560).groupby(table["sex"]).mean()
    np.testing.assert_allclose(found["selection"], rates)


def test_higher_bins_may_be_the_riskier_ones() -> None:
    table = loans()
    table["default"] = 1 - table["default"]
    found = released(table, characteristics=("score",), edges=EDGES).results
    assert found["column_1.gini"] > 0
    np.testing.assert_allclose(found["column_1.gain"], 1 - found["column_1.below"][::-1, 1])


def test_derivatives_of_the_divergence_are_those_of_differences() -> None:
    cells = np.array([[50.0, 20.0], [80.0, 15.0], [30.0, 40.0], [100.0, 12.0]])
    _, gradient, curvature = risk._jeffreys(cells)

    def value(place: Floats) -> float:
        return risk._jeffreys(place.reshape(2, -1).T)[0]

    place, steps = cells.T.ravel(), np.eye(8) * 1e-3
    slopes = [(value(place + h) - value(place - h)) / 2e-3 for h in steps]
    np.testing.assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-9)

    def slope(place: Floats) -> Floats:
        return risk._jeffreys(place.reshape(2, -1).T)[1]

    bends = [(slope(place + h) - slope(place - h)) / 2e-3 for h in steps]
    np.testing.assert_allclose(curvature, bends, rtol=1e-4, atol=1e-8)


def test_population_intervals_without_noise_are_the_classical_ones() -> None:
    table = np.array([[4000.0, 600.0], [3000.0, 300.0], [2000.0, 100.0]])
    woe = risk.weights_of_evidence(table, 1e-9)
    (g, b), sizes = table[0], table.sum(axis=0)
    spread = 1.96 * np.sqrt(1 / g - 1 / sizes[0] + 1 / b - 1 / sizes[1])
    assert woe.population is not None
    half = (woe.population[1][0] - woe.population[0][0]) / 2
    assert half == pytest.approx(spread, rel=0.01)
    gini = risk.gini(table, 1e-9)
    assert gini.population is not None
    rates = risk.compared(np.array([[300.0, 700.0], [400.0, 600.0]]), 1, 1e-9)
    apart = rates["_difference"]
    assert apart.population is not None
    half = (apart.population[1][0] - apart.population[0][0]) / 2
    assert half == pytest.approx(1.96 * np.sqrt((0.21 + 0.24) / 1000), rel=0.01)


def test_noise_does_not_make_convex_numbers_larger_on_average() -> None:
    """Of a column that says nothing all are 0; plain ones would be well above it."""
    shape, rng = np.outer(np.full(8, 1 / 8), [0.8, 0.2]) * 20_000, np.random.default_rng(1)
    values, plain = [], []
    for _ in range(300):
        noisy = shape + rng.normal(0, 20, shape.shape)
        p, q = shares(noisy)
        iv = risk.divergence(noisy, 20)
        values.append((iv.values[0], risk.kolmogorov(noisy, 20).values[0]))
        gap = np.abs(np.cumsum(p - q)).max()
        plain.append((((p - q) * np.log(p / q)).sum(), gap))
    assert (np.mean(values, axis=0) < 0.5 * np.mean(plain, axis=0)).all()


def test_the_information_value_is_that_of_the_bins_that_were_asked_for() -> None:
    """Bins of few records are bins: joined with their neighbours, these tell 2.8."""
    few = np.array([[112.0, 2.0], [107.0, 7.0], [99.0, 14.0], [38.0, 76.0], [1.0, 113.0]])
    p, q = shares(few)
    found = risk.divergence(few, 1e-6)
    assert found.values == pytest.approx(((p - q) * np.log(p / q)).sum(), rel=1e-6)
    assert found.low <= found.values <= found.high


NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    ("shape", "s"),
    [
        ([[10.6, 62.8], [30.1, 296.5]], 2.07),
        ([[36.4, 16.1], [85.6, 66.1], [60.2, 41.9], [51.3, 42.4]], 5.0),
        pytest.param([[13.0, 46.1], [14.3, 126.0], [7.2, 77.3], [16.1, 99.9]], 2.07, marks=NIGHTLY),
        pytest.param([[53.1, 314.0], [150.5, 1482.4]], 13.96, marks=NIGHTLY),
    ],
)
def test_intervals_of_small_counts_hold_and_are_not_too_wide(shape: Any, s: float) -> None:
    rng, law = np.random.default_rng(8), np.array(shape)

    def measures(table: Floats) -> Floats:
        p, q = shares(table)
        return np.append(np.log(p / q), ((p - q) * np.log(p / q)).sum())

    runs = []
    for _ in range(400):
        exact = np.maximum(rng.poisson(law), 1.0)
        noisy = exact + rng.normal(0, s, law.shape)
        found = risk.weights_of_evidence(noisy, s), risk.divergence(noisy, s)
        value = np.concatenate([part.values for part in found])
        for kind, truth in enumerate((measures(exact), measures(law))):
            ends = [(part.low, part.high) if kind == 0 else part.population for part in found]
            low, high = (np.concatenate(end) for end in zip(*ends, strict=True))
            runs.append([kind + 0 * value, low, high, value, truth])
    for kind in (0, 1):
        of_kind = np.array([run for run in runs if run[0][0] == kind])
        for low, high, value, truth in of_kind[:, 1:].transpose(2, 1, 0):
            known = np.isfinite([low, high, value]).all(axis=0)
            held = (low <= truth) & (truth <= high)
            needed = np.quantile(np.abs(value - truth)[known], 0.95)
            assert known.mean() > 0.25
            assert held[known].mean() > 0.9
            assert (high - low)[known].mean() / 2 < 1.7 * needed


@pytest.mark.parametrize("s", [1e-6, 20.0])
def test_an_information_value_without_an_answer_is_not_known(s: float) -> None:
    """Neither 0, for a score that tells all, nor that of other bins."""
    for table in ([[900.0, 0.0], [0.0, 300.0]], [[500.0, 90.0], [400.0, -14.0], [300.0, 60.0]]):
        found = risk.divergence(np.array(table), s)
        assert np.isnan(found.values)
        assert (found.low, found.high) == (0.0, np.inf)
    woe = risk.weights_of_evidence(np.array([[500.0, 90.0], [400.0, -1e-9], [300.0, 60.0]]), s)
    assert np.isnan(woe.values).tolist() == [False, True, False]
    assert woe.high[1] == np.inf
    assert woe.low[1] > 0
    assert np.isnan(risk.gini(np.zeros((3, 2)), s).values)
    assert np.isnan(risk.kolmogorov(np.zeros((3, 2)), s).values)


def test_the_report_names_the_bins_for_which_a_number_is_not_known() -> None:
    table = loans()
    table.loc[table["year"] == 1, "year"] = 0
    edges = {"score": (310.0, 540.0, 600.0)}
    options = {**EVERYTHING, "edges": edges, "characteristics": ("score", "home")}
    result = released(table, **options)
    results = result.results
    assert np.isnan(results["column_1.iv"]).all()
    assert np.isnan(results["column_1.psi"][0])
    assert np.isfinite(results["column_2.iv"]).all()
    assert results["column_1.clear"].tolist() == [0, 1, 1, 1]
    pages = {one.title: as_table(one) for one in result.plan.task.displays(results, SCHEMA.names)}
    assert "is not well above its noise: score (below 310)" in pages["Characteristics"].note
    assert cell_text(pages["Characteristics"].rows[0][1]) == "not known"
    stability = pages["Population stability index against 2023"]
    assert "score: 2024" in stability.note
    assert render_report(result)


def test_every_number_has_a_picture() -> None:
    result = released(loans(), SimulatedNoise(0), **EVERYTHING)
    shown = result.plan.task.displays(result.results, result.plan.columns)
    pictures = {one.title for one in shown if isinstance(one, Bars | Curve)}
    assert pictures == {
        "Information value",
        "Weight of evidence of score",
        "Weight of evidence of home",
        "Separation by score",
        "Gain of score",
        "Population stability",
        "Selected by sex",
        "Selected of those without the event by sex",
    }
    assert all(as_table(one).rows for one in shown)


@pytest.mark.parametrize("noise", [ZeroNoise(), SimulatedNoise(1)])
def test_of_nobody_nothing_is_known(noise: Any) -> None:
    found = released(loans(0), noise, **EVERYTHING).results
    for name in ("column_1.iv", "column_1.ks", "column_1.gini", "column_1.woe", "column_1.psi"):
        assert np.isnan(found[name]).all(), name


def test_a_model_of_nothing_is_json_and_the_same_after_loading(tmp_path: Path) -> None:
    result = released(loans(0), SimulatedNoise(1), **EVERYTHING)
    result.save(tmp_path / "model.json")
    text = (tmp_path / "model.json").read_text()
    document = json.loads(text, parse_constant=pytest.fail)
    assert document["results"]["column_1.iv"] == [None]
    assert document["results"]["column_1.iv_high"] == ["Infinity"]
    old = text.replace("null", "NaN").replace('"Infinity"', "Infinity")
    (tmp_path / "old.json").write_text(old)
    for name in ("model.json", "old.json"):
        again = Release.load(tmp_path / name).results
        same = (np.array_equal(again[k], v, equal_nan=True) for k, v in result.results.items())
        assert all(same)
        assert np.isinf(again["column_1.iv_high"]).all()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"target": "year", "over": None}, "target must have two cells"),
        ({"target": "colour"}, "must be a column of the schema"),
        ({"characteristics": ("default",)}, "must be different columns"),
        ({"characteristics": ("score",), "edges": {}}, "edges must be given for 'score'"),
        ({"group": "sex", "decision": None}, "group and decision go together"),
        ({"group": None, "decision": None, "cutoff": 1.0}, "group and decision go together"),
        ({"decision": "score", "cutoff": 555.0}, "cutoff must be an edge"),
        ({"cutoff": 0.5}, "cutoff must be an edge"),
        ({"edges": {"score": tuple(range(301, 899))}, "nominal_n": 10**6}, "at most 500 cells"),
        ({"nominal_n": 100}, "noise would hide"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_spent(
    options: dict[str, Any], error: str
) -> None:
    with pytest.raises(PlanError, match=error):
        released(loans(10), **{**EVERYTHING, **options})


def test_a_scorecard_without_characteristics_is_refused() -> None:
    silos = {"one": [SCHEMA.grid().encode(loans(10).to_numpy())[:, 3:]]}
    schema = SCHEMA.select(["sex", "approved", "default"])
    options = {"target": "default", "group": "sex", "decision": "approved"}
    with pytest.raises(PlanError, match="at least one column"):
        run_job(Scorecard, schema, silos, epsilon=1.0, nominal_n=5000, **options)


def test_all_other_columns_are_characteristics_by_default() -> None:
    result = released(loans(), edges=EDGES, group="sex", decision="approved")
    names = [name for name in result.results if name.endswith(".iv")]
    assert names == [f"column_{i}.iv" for i in (1, 2, 3)]
    of_score = {"edges": EDGES, "group": "sex", "decision": "score", "cutoff": 560.0}
    assert released(loans(), **of_score).plan.task.tables[0] == (0, 5)


def test_the_estimator_has_tables_and_pictures(tmp_path: Any) -> None:
    card = DPScorecard(target="default", epsilon=1.0, bounds=SCHEMA, nominal_n=N, **EVERYTHING).fit(
        named(loans())
    )
    assert card.columns_.loc["score", "Gini"] < -0.3
    assert list(card.bins_.index[-3:]) == ["home: own", "home: rent", "home: other"]
    frame = card.to_frame()
    assert frame.loc["Characteristics", "population_low"].notna().all()
    assert card.plot("Gain of score").get_title() == "Gain of score"
    card.save(tmp_path / "card.json")
    loaded = DPScorecard.load(tmp_path / "card.json", bounds=SCHEMA, target="default")
    assert loaded.columns_.equals(card.columns_)
