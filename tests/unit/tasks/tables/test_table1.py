"""Table 1 without noise is the textbook's; what it shows and refuses, and its tests under noise."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from cloister import PlanError, Schema, dp_table1, run_job
from cloister.app.forecast import forecast_of
from cloister.app.job import make_plan
from cloister.app.present import present
from cloister.app.release import Release
from cloister.app.text import as_table, cell_text
from cloister.app.unknown import results_with_reasons
from cloister.core.display import Bars, Heatmap, Table
from cloister.data import read_source
from cloister.data.schema import Column
from cloister.privacy.budget import Budget
from cloister.tasks import TASKS, significance
from cloister.tasks.tables import comparison
from cloister.tasks.tables.journal import _rounded
from cloister.testing import ZeroNoise, rerun

ARMS = ("control", "low", "high")
COLUMNS = (
    Column(name="arm", type="category", categories=ARMS),
    Column(name="age", type="number", min=0.0, max=120.0),
    Column(name="bmi", type="number", min=10.0, max=60.0),
    Column(name="stage", type="category", categories=("I", "II", "III")),
    Column(name="smokes", type="boolean"),
    Column(name="sex", type="category", categories=("f", "m")),
)
SCHEMA = Schema(dataset="trial", unit="row", columns=COLUMNS)
WORDS = {"arm": ARMS, "stage": ("I", "II", "III"), "sex": ("f", "m")}


def people(n: int = 3000, arms: int = 3, seed: int = 3) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    arm = rng.choice(arms, n, p=np.array([3, 2, 1][:arms]) / sum([3, 2, 1][:arms]))
    table = {
        "arm": arm,
        "age": rng.normal(50 + 4 * (arm == 1), 9 + 3 * arm).clip(0, 120),
        "bmi": rng.gamma(8, 3.2, n).clip(10, 60),
        "stage": rng.choice(3, n, p=[0.5, 0.3, 0.2]),
        "smokes": rng.random(n) < 0.2 + 0.2 * (arm == 1),
        "sex": rng.choice(2, n),
    }
    frame = pd.DataFrame(table)
    return frame.assign(**{k: np.array(v)[frame[k]] for k, v in WORDS.items()})


def schema_of(arms: int) -> Schema:
    column = COLUMNS[0].model_copy(update={"categories": ARMS[:arms], "max": arms - 1.0})
    return SCHEMA.model_copy(update={"columns": (column, *COLUMNS[1:])})


def released(frame: pd.DataFrame, arms: int = 3, **options: Any) -> Release:
    half, schema = len(frame) // 2, schema_of(arms)
    parts = {"a": frame[:half], "b": frame[half:]}
    silos = {name: read_source(part, schema) for name, part in parts.items()}
    given = {"epsilon": 1.0, "nominal_n": 3000, "noise": ZeroNoise(), "by": "arm", **options}
    return run_job(TASKS["table1"], schema, silos, **given)


@pytest.mark.parametrize("arms", [2, 3])
def test_without_noise_it_is_pandas_and_scipy(arms: int) -> None:
    frame = people(arms=arms)
    # The expected effect of noise on squares is subtracted, so the plan must have little noise.
    found = released(frame, arms, epsilon=1000.0).results
    groups = [frame[frame["arm"] == arm] for arm in ARMS[:arms]]
    assert found["group_counts"] == pytest.approx([len(group) for group in groups])
    numbers = [group[["age", "bmi"]] for group in groups]
    assert found["mean"] == pytest.approx(np.array([g.mean() for g in numbers]), abs=2e-3)
    assert found["deviation"] == pytest.approx(np.array([g.std() for g in numbers]), abs=2e-3)
    for k, other in enumerate(groups[1:]):
        for i, name in enumerate(("age", "bmi")):
            x, y = other[name], groups[0][name]
            gap = stats.ttest_ind(x, y, equal_var=False)
            assert found["difference"][k, i] == pytest.approx(x.mean() - y.mean(), abs=3e-3)
            ends = [found[f"difference_population_{end}"][k, i] for end in ("low", "high")]
            assert ends == pytest.approx([*gap.confidence_interval()], abs=5e-3)
            scaled = (x.mean() - y.mean()) / np.sqrt((x.var() + y.var()) / 2)
            assert found["smd"][k, i] == pytest.approx(scaled, abs=1e-3)
    for i, name in enumerate(("age", "bmi")):
        parts = [group[name] for group in groups]
        if arms == 2:
            test = stats.ttest_ind(parts[1], parts[0], equal_var=False)
            assert found["welch_df"][i] == pytest.approx(test.df, rel=1e-3)
        else:
            test = stats.f_oneway(*parts, equal_var=False)
        assert found["welch_statistic"][i] == pytest.approx(test.statistic, rel=2e-3, abs=1e-3)
        assert found["welch_p"][i] == pytest.approx(test.pvalue, rel=2e-2)
    start = 0
    for i, name in enumerate(("stage", "smokes", "sex")):
        table = pd.crosstab(frame["arm"], frame[name]).loc[list(ARMS[:arms])].to_numpy()
        levels, shares = table.shape[1], table / table.sum(axis=1, keepdims=True)
        places = slice(start, start + levels)
        assert found["counts"][:, places] == pytest.approx(table)
        assert found["shares"][:, places] == pytest.approx(shares)
        assert found["share_difference"][:, places] == pytest.approx(shares[1:] - shares[:1])
        assert found["chi2_p"][i] == pytest.approx(
            stats.chi2_contingency(table, correction=False).pvalue, rel=1e-3
        )
        start += levels
    p = np.concatenate([found["welch_p"], found["chi2_p"]])
    holm = np.concatenate([found["welch_holm"], found["chi2_holm"]])
    assert holm == pytest.approx(significance.holm(p))
    assert not any(name.startswith(("quantiles", "correlation")) for name in found)


def test_medians_and_correlations_have_blocks_of_their_own() -> None:
    frame = people(20_000)
    release = released(frame, nominal_n=20_000, medians=True, correlations=True)
    weights = {block.name: block.weight for block in release.plan.task.blocks(0)}
    assert weights["medians"] == weights["correlations"] == pytest.approx(1 / 3)
    assert weights["tables"] / weights["moments"] == pytest.approx(3 / 5)  # of equal noise
    for k, arm in enumerate(ARMS):
        quartiles = frame[frame["arm"] == arm][["age", "bmi"]].quantile([0.25, 0.5, 0.75]).T
        cell = np.array([[120], [50]]) / 4**release.plan.task.levels
        assert (np.abs(release.results["quantiles"][k] - quartiles) < cell).all(axis=None)
    exact = np.corrcoef(frame[["age", "bmi"]].to_numpy().T)
    assert release.results["correlation"] == pytest.approx(exact, abs=2e-3)
    assert any(isinstance(one, Heatmap) for one in shown(release))


def test_all_records_together_are_pandas_and_their_noise_is_that_of_all_groups() -> None:
    frame, plan = people(), planned(n=3000, medians=True)
    numbers = frame[["age", "bmi"]]
    exact = {
        "count": [3000.0],
        "mean": numbers.mean(),
        "deviation": numbers.std(),
        "shares": [frame[name].eq(level).mean() for name in ("stage", "smokes", "sex")
                   for level in {"smokes": (False, True), **WORDS}[name]],
        "quantiles": numbers.quantile([0.25, 0.5, 0.75]).T,
    }  # fmt: skip
    found = released(frame, epsilon=1000.0, medians=True).results
    for name, values in exact.items():
        near = 0.3 if name == "quantiles" else 3e-3
        assert found[f"overall_{name}"] == pytest.approx(np.asarray(values), abs=near), name
    shares = frame["arm"].value_counts(normalize=True)[list(ARMS)]
    assert found["group_shares"] == pytest.approx(shares.to_numpy(), abs=1e-4)
    hits = {name: [] for name in exact}  # seeded: it never fails by chance
    records = encoded(plan, frame)
    for run in range(20):
        noisy = rerun(plan, records, np.random.default_rng([9, run]))
        for name, values in exact.items():
            low, high = (noisy[f"overall_{name}_{end}"] for end in ("low", "high"))
            hits[name].append((low <= np.asarray(values)) & (np.asarray(values) <= high))
    for name, of in hits.items():
        assert np.mean(of) >= 0.85, name


def shown(release: Release) -> tuple[Any, ...]:
    return present(release).displays


def test_the_first_table_is_that_of_a_journal() -> None:
    first, picture, *others = shown(released(people(arms=2), 2, medians=True))
    assert isinstance(first, Table)
    heads = ("", "all records", "arm=control", "arm=low", "SMD", "p", "p after Holm")
    assert first.headings == heads
    rows = {str(row[0]): [cell_text(cell) for cell in row[1:]] for row in first.rows}
    assert list(rows) == [
        *("records", "age, mean (SD)", "age, median [IQR]", "bmi, mean (SD)", "bmi, median [IQR]"),
        *("stage=I, n (%)", "stage=II, n (%)", "stage=III, n (%)", "smokes=true, n (%)"),
        "sex=m, n (%)",
    ]
    assert rows["age, mean (SD)"][4] == "< 0.001"
    assert rows["stage=II, n (%)"][4:] == ["", ""]  # one test for the column
    assert rows["records"][:2] == ["3,000", "1,803 (60.1 %)"]
    assert "Welch's t-test" in first.note
    assert isinstance(picture, Bars)
    assert picture.points
    assert picture.names == (
        "age",
        "bmi",
        "stage=I",
        "stage=II",
        "stage=III",
        "smokes=true",
        "sex=m",
    )
    titles = [one.title for one in others]
    assert titles[-1] == "Tests"
    assert "Student" in others[-1].note


def test_a_deviation_within_its_noise_is_not_known() -> None:
    plan = planned(schema_of(2), epsilon=0.1, n=1000, most_noise=50.0)
    results = rerun(plan, encoded(plan, people(1000, arms=2)), np.random.default_rng(0))
    assert results["deviation_low"].min() == 0
    first, _, _, _, shares, *_ = plan.task.displays(results, plan.columns)
    cells = [str(cell) for row in first.rows for cell in row[1:4] if "mean" in str(row[0])]
    assert any(cell.endswith("(not known)") for cell in cells)
    assert not any(cell.endswith("(0)") for cell in cells)
    assert "difference to arm=control" in first.note
    assert shares.headings == ("category and group", "records, counted alone", "share of the group")
    known = results["welch_df"][np.isfinite(results["welch_df"])]
    assert (known <= max(results["group_counts"].sum() - 2, 1)).all()


def test_digits_follow_the_noise() -> None:
    frame, schema = people(arms=2), schema_of(2)
    for epsilon, digits in ((0.5, 0), (50.0, 2)):
        plan = planned(schema, epsilon=epsilon, n=3000)
        results = rerun(plan, encoded(plan, frame), np.random.default_rng(0))
        rows = plan.task.displays(results, plan.columns)[0].rows
        mean, deviation = str(rows[1][1]).rstrip(")").split(" (")
        assert [len(text.partition(".")[2]) for text in (mean, deviation)] == [digits, digits]


def test_one_group_has_no_comparison() -> None:
    release = released(people(), by=None)
    assert {name.split("_")[0] for name in release.results} == {
        *("group", "mean", "deviation", "counts", "shares"),
    }
    assert shown(release)[0].title == "Table 1"


def test_a_group_without_records_is_left_out_of_tests() -> None:
    frame = people(arms=2)  # of a schema with three
    release = rerun_of(frame, 3)
    found, two = release.results, rerun_of(frame, 2).results
    assert np.isnan(found["mean"][2]).all()
    assert np.isnan(found["smd"][1]).all()
    assert np.isinf(found["smd_low"][1]).all()
    assert found["difference_low"][1] == pytest.approx([-120, -50])
    assert found["welch_p"] == pytest.approx(two["welch_p"], rel=1e-6)
    said = results_with_reasons(release)["smd"][1][0]
    hidden = "its noise may have a deviation above 0.25, or groups hardly vary"
    assert said == {"value": None, "reason": hidden}
    only = rerun_of(frame[frame["arm"] == "control"], 2)
    assert np.isnan(only.results["welch_p"]).all()
    assert "are not known" in present(only).reliability
    assert "not known" in [cell_text(cell) for cell in as_table(shown(only)[0]).rows[1]]
    assert as_table(shown(only)[0]).note.endswith(f"not known: an SMD, if {hidden}.")


def encoded(plan: Any, frame: pd.DataFrame) -> Any:
    places = {name: frame[name].map(WORDS[name].index) for name in WORDS if name in frame}
    return plan.grid.encode(frame.assign(**places).to_numpy(float))


def rerun_of(frame: pd.DataFrame, arms: int) -> Release:
    return released(frame, arms)


def planned(schema: Schema = SCHEMA, epsilon: float = 1.0, n: int = 3000, **options: Any) -> Any:
    given = {"by": "arm", **options}
    task, budget = TASKS["table1"], Budget(epsilon, 1e-6)
    return make_plan(task, schema, ["a"], budget=budget, nominal_n=n, **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"n": 200}, r"noise would hide the standardised differences.*nominal_n >= \d+"),
        ({"epsilon": 0.05}, "most_noise is 0.25; name fewer columns, raise epsilon"),
        ({"by": "age"}, "column of categories"),
        ({"by": "place"}, "by must be a column"),
        ({"most_noise": 0.0}, "most_noise must be"),
        ({"test": "student"}, "has no option 'test'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_spent(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        planned(**given)


def test_the_number_of_records_in_a_refusal_is_enough() -> None:
    with pytest.raises(PlanError) as refused:
        planned(n=200)
    planned(n=int(str(refused.value).rstrip(".").split()[-1]))


def test_other_columns_must_fit_the_options() -> None:
    one = SCHEMA.model_copy(update={"columns": (COLUMNS[0],)})
    with pytest.raises(PlanError, match="at least one other than by"):
        planned(one)
    words = SCHEMA.model_copy(update={"columns": (COLUMNS[0], COLUMNS[3])})
    with pytest.raises(PlanError, match="need a column of numbers"):
        planned(words, medians=True)
    assert planned(words).task.blocks(0)[0].l2_squared == 1 << 32


def test_rows_of_one_person_widen_intervals_and_leave_no_test() -> None:
    columns = (*COLUMNS[:2], Column(name="smokes", type="boolean"))
    of_rows = Schema(dataset="d", unit="row", columns=columns)
    of_people = Schema(dataset="d", unit="person", max_rows=4, columns=columns)
    results = []
    for schema in (of_rows, of_people):
        plan = planned(schema, epsilon=4.0)
        records = encoded(plan, people()[["arm", "age", "smokes"]])
        results.append(rerun(plan, records, np.random.default_rng(0)))
    one, four = results
    assert np.isnan(four["welch_p"]).all()
    assert np.isnan(four["chi2_holm"]).all()
    for name in ("difference", "smd", "share_difference", "mean"):
        wide = [r[f"{name}_population_high"] - r[f"{name}_population_low"] for r in (one, four)]
        assert (wide[1] > 1.5 * wide[0]).all()


def test_groups_that_hardly_vary_have_no_standardised_difference() -> None:
    """Between groups they vary much, so their variance together is clear of the noise."""
    sizes, means = np.full((2, 1), 1000.0), np.array([[-0.5, -0.5], [0.5, 0.5]])
    spread = np.array([0.02, 0.3]) ** 2  # of the first column, its noise is as large
    waves = sizes * (2 * (spread + means**2) - 1)
    groups = comparison.Moments(sizes, sizes * means, waves, 100.0, 100.0).groups()
    found = comparison.standardised(groups)
    assert np.isnan(found.values[0]).tolist() == [True, False]
    assert found.values[0, 1] == pytest.approx(1 / 0.3, rel=0.1)
    assert found.low[0, 1] > 2
    assert found.high[0, 1] < 5


def test_the_function_gives_a_frame() -> None:
    found = dp_table1(people(arms=2), "arm", epsilon=4.0, bounds=schema_of(2), nominal_n=3000)
    frame = found.to_frame()
    rows = frame.loc["Differences of means to arm=control"]
    assert rows.loc[("age, arm=low", "difference"), "value"] == found["difference"][0, 0]


def test_no_margin_is_promised_where_the_deviation_decides() -> None:
    forecast = forecast_of(planned(schema_of(2), n=3000))
    assert "difference_half_width" in forecast
    assert not any("smd" in name for name in forecast)


def test_a_deviation_has_the_digits_of_its_interval() -> None:
    for value, margin, text in (
        *((365.2, 58.0, "370"), (365.2, 4.0, "365"), (365.2, 0.4, "365.2")),
        *((1365.2, 130.0, "1,400"), (3.0, 12.0, "0")),
    ):
        assert _rounded(value, margin, 9) == text
    assert _rounded(365.2, 58.0) == "365"


def test_no_difference_shown_is_no_balance() -> None:
    """Groups that differ by a fifth of a deviation: few tests find it, and intervals hold it."""
    plan = planned(schema_of(2), epsilon=0.5, n=1500)
    shown, held = 0, 0
    for run in range(20):
        rng = np.random.default_rng([7, run])
        frame = people(1500, arms=2, seed=run)
        moved = rng.normal(50, 20, 1500) + 4 * (frame["arm"] == "low")
        results = rerun(plan, encoded(plan, frame.assign(age=moved.clip(0, 120))), rng)
        shown += results["welch_holm"][0] < 0.05
        low, high = (results[f"smd_population_{end}"][0, 0] for end in ("low", "high"))
        held += low <= 0.2 <= high
    assert shown <= 10
    assert held >= 17  # of 20 at .95, fewer have a probability of .003 before seeds are fixed


# Intervals under noise ----------------------------------------------------------------------------

RUNS = 200


@cache
def under_noise(arms: int) -> dict[str, Any]:
    """Return p-values and hits of seeded draws and noise; no group differs in anything."""
    schema = schema_of(arms)
    plan = planned(schema, n=3000)
    found: dict[str, list[Any]] = {"p": []}
    for run in range(RUNS):
        rng = np.random.default_rng([5, run])
        rows = np.column_stack([
            rng.choice(arms, 3000),
            rng.normal(50, 15, 3000).clip(0, 120),
            rng.gamma(2, 8, 3000).clip(10, 60),
            rng.choice(3, 3000, p=[0.5, 0.3, 0.2]),
            rng.random(3000) < 0.2,
            rng.choice(2, 3000),
        ])  # fmt: skip
        results = rerun(plan, plan.grid.encode(rows.astype(float)), rng)
        found["p"].append(np.concatenate([results["welch_p"], results["chi2_p"]]))
        for name in ("difference", "smd", "share_difference", "share_smd"):
            low, high = (results[f"{name}_population_{end}"] for end in ("low", "high"))
            found.setdefault(name, []).append(((low <= 0) & (high >= 0)).ravel())
    return {name: np.array(values) for name, values in found.items()}


@pytest.mark.parametrize("arms", [2, 3])
def test_tests_and_intervals_know_the_noise(arms: int) -> None:
    """At a true level of .05, 200 seeded runs give .05 ± 4 sqrt(.05 .95 / 200) = 0 to .112."""
    found = under_noise(arms)
    assert (found["p"] < 0.05).mean(axis=0).max() <= 0.112
    assert 0.03 <= (found["p"] < 0.05).mean() <= 0.07
    for name in ("difference", "smd", "share_difference", "share_smd"):
        assert found[name].mean(axis=0).min() >= 0.888
        assert 0.93 <= found[name].mean() <= 0.98


def test_without_the_noise_in_its_error_a_test_would_alarm_too_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = comparison.Moments.groups

    def forgetful(self: comparison.Moments) -> comparison.Groups:
        from dataclasses import replace

        groups = usual(self)
        zero = np.zeros_like(groups.means)
        return replace(groups, noise=comparison.Errors(zero, zero, zero))

    monkeypatch.setattr(comparison.Moments, "groups", forgetful)
    under_noise.cache_clear()
    try:
        assert (under_noise(2)["p"][:, :2] < 0.05).mean() > 0.15
    finally:
        under_noise.cache_clear()
