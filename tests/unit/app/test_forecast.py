"""What a plan says before anything is spent: a budget too small for the sums it asks for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister.app.forecast import (
    WITHOUT_SITE,
    category_warnings,
    error_bounds,
    expected,
    forecast_of,
    margins,
    plan_warnings,
    privacy_warnings,
    size_warnings,
    unknown_error,
    wanted_budget,
)
from cloister.app.job import make_plan
from cloister.app.least_error import least_error
from cloister.app.present import doubts_of
from cloister.app.release import Release
from cloister.cli import main
from cloister.core.errors import PlanError
from cloister.core.numerals import number, time_margin
from cloister.data.schema import Column, Schema, schema_of
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.tasks import installed
from cloister.tasks.clustering.auto_mean import MeanRoute
from cloister.tasks.examples import example_of
from cloister.tasks.regression.parse import parse_formula

TASKS = installed()  # the laboratory's, too

DELTA = 1e-6


def plan_of(task: str, epsilon: float, nominal_n: int, **options: Any) -> Plan:
    example = example_of(TASKS[task])
    schema, budget = schema_of(example.columns), Budget(epsilon, DELTA)
    given = example.options | options
    return make_plan(TASKS[task], schema, ["here"], budget=budget, nominal_n=nominal_n, **given)


def numbers(said: str) -> tuple[float, int]:
    """Return the epsilon and the number of records that would fit."""
    found = re.search(r"about epsilon ([\d.e+]+) or ([\d,]+) records would fit", said)
    assert found, said
    return float(found[1]), int(found[2].replace(",", ""))


@pytest.mark.parametrize("task", [name for name, task in TASKS.items() if task.private])
def test_a_budget_too_small_is_said_of_every_task_and_what_would_fit_does(task: str) -> None:
    if task in ("glm", "treatment-effect", "imputed-regression"):  # refuses it
        with pytest.raises(PlanError, match=r"at least .* noise would hide the model"):
            plan_of(task, 0.02, 300)
        return
    (said, *_) = size_warnings(plan_of(task, 0.02, 300))
    assert "too small" in said
    if "would fit" in said:  # of clusters it says how many records each should have
        epsilon, records = numbers(said)
        assert size_warnings(plan_of(task, 1.2 * epsilon, 300)) == ()
        assert size_warnings(plan_of(task, 0.02, 2 * records)) == ()
    assert size_warnings(plan_of(task, 8.0, 100_000)) == ()


def plan_of_groups(epsilon: float, nominal_n: int, n_columns: int, n_clusters: int) -> Plan:
    columns = [Column(name=f"x{j}", type="number", min=0, max=1) for j in range(n_columns)]
    schema = Schema(dataset="ward", unit="row", columns=tuple(columns))
    return make_plan(
        TASKS["auto"],
        schema,
        ["here"],
        budget=Budget(epsilon, DELTA),
        nominal_n=nominal_n,
        n_clusters=n_clusters,
    )


@pytest.mark.parametrize(
    ("nominal_n", "n_columns", "k"), [(300, 10, 3), (2_000, 100, 8), (200, 4, 20)]
)
def test_where_no_group_can_be_found_it_is_said_and_what_would_help_does(
    nominal_n: int, n_columns: int, k: int
) -> None:
    plan = plan_of_groups(0.05, nominal_n, n_columns, k)
    assert isinstance(plan.task.route, MeanRoute)
    (said,) = size_warnings(plan)
    assert f"of {n_columns} columns: noise would hide every difference between groups" in said
    found = re.search(r"about epsilon ([\d.e+]+) or ([\d,]+) records", said)
    assert found, said
    epsilon, records = float(found[1]), int(found[2].replace(",", ""))
    for part, blind in ((0.9, True), (1.0, False)):
        for other in (
            plan_of_groups(part * epsilon, nominal_n, n_columns, k),
            plan_of_groups(0.05, round(part * records), n_columns, k),
        ):
            assert isinstance(other.task.route, MeanRoute) == blind
            assert any("would hide every" in words for words in size_warnings(other)) == blind


@pytest.mark.parametrize("n_columns", [1, 2, 3])
def test_of_few_columns_a_histogram_is_always_asked(n_columns: int) -> None:
    said = size_warnings(plan_of_groups(0.01, 100, n_columns, 5))
    assert said
    assert not any("would hide every" in words for words in said)


def test_the_doubt_is_told_before_anything_is_spent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ill.toml").write_text(
        'dataset = "ward"\nunit = "row"\n'
        '[[columns]]\nname = "age"\ntype = "number"\nmin = 0\nmax = 100\n'
        '[[columns]]\nname = "ill"\ntype = "boolean"\n'
    )
    Path("a.csv").write_text("age,ill\n" + "50,1\n20,0\n" * 20)
    asked = ["--schema", "ill.toml", "--epsilon", "0.05", "--nominal-n", "40"]
    assert main(["plan", *asked, "--task", "logistic", "--set", "target=ill"]) == 0
    said = capsys.readouterr()
    assert "epsilon 0.05 is too small for 40 records" in said.err
    assert re.search(r"^target +ill$", said.out, re.MULTILINE)
    classify = ["classify", "a.csv", *asked, "--target", "ill", "--out", "out"]
    classify += ["--cap-epsilon", "1"]
    assert main([*classify, "--quiet"]) == 0
    assert "epsilon 0.05 is too small for 40 records" in capsys.readouterr().err


def test_nothing_is_said_of_a_number_of_records_that_nobody_gave(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ages.toml").write_text(
        'dataset = "ward"\nunit = "row"\n'
        '[[columns]]\nname = "age"\ntype = "number"\nmin = 0\nmax = 100\n'
    )
    Path("a.csv").write_text("age\n" + "50\n20\n" * 200)
    asked = ["cluster", "a.csv", "--schema", "ages.toml", "--k", "2", "--epsilon", "2"]
    asked += ["--cap-epsilon", "9"]
    assert main([*asked, "--out", "bought", "--quiet"]) == 0
    assert "too small" not in capsys.readouterr().err
    assert main([*asked, "--nominal-n", "4", "--out", "given", "--quiet"]) == 0
    assert "too small" in capsys.readouterr().err


def test_categories_that_would_count_as_lengths_are_named() -> None:
    columns = tuple(
        Column(name=name, type="category", categories=words)
        for name, words in (("work", ("desk", "field", "none")), ("ill", ("no", "yes")))
    )
    schema = Schema(dataset="ward", unit="row", columns=columns)

    def said(task: str, **options: object) -> tuple[str, ...]:
        budget = Budget(8.0, DELTA)
        plan = make_plan(TASKS[task], schema, ["here"], budget=budget, nominal_n=9000, **options)
        return category_warnings(plan, schema)

    for task, options in (
        ("auto", {"n_clusters": 2}),
        ("selectk", {"min_clusters": 2, "max_clusters": 3}),
    ):
        (doubt,) = said(task, **options)
        assert "work" in doubt
        assert "ill" not in doubt  # two words are 0 and 1
    assert said("naive-bayes", target="ill") == ()


@pytest.mark.parametrize(
    ("terms", "silos", "doubted"),
    [("age", ["a", "b"], True), ("age + site", ["a", "b"], False), ("age", ["a"], False)],
)
def test_a_model_over_silos_without_the_silo_is_doubted_before_and_after(
    terms: str, silos: list[str], doubted: bool
) -> None:
    options = {"target": "weight", "formula": parse_formula(f"weight ~ {terms}").to_dict()}
    schema = schema_of(example_of(TASKS["glm"]).columns)
    plan = make_plan(
        TASKS["glm"], schema, silos, budget=Budget(1.0, DELTA), nominal_n=9000, **options
    )
    results = {"coef": np.ones(1), "reference": np.zeros(1)}
    found = Release(plan, results, (), plan.events(), "simulated", ())
    assert (WITHOUT_SITE in plan_warnings(plan, schema)) == doubted
    assert (WITHOUT_SITE in doubts_of(found)) == doubted


def test_only_models_with_effects_are_doubted_without_the_silo() -> None:
    doubted = set()
    for name, task in TASKS.items():
        example = example_of(task)
        budget = Budget(4.0, DELTA) if task.private else None
        schema = schema_of(example.columns)
        plan = make_plan(
            task, schema, ("a", "b", "c"), budget=budget, nominal_n=5000, **example.options
        )
        said = getattr(task, "without_site", WITHOUT_SITE)
        assert ("glm" in said) == (said is WITHOUT_SITE)
        # A covariate may be the silo under a name that no plan knows.
        assert "none holds its name" in said
        if said in plan_warnings(plan, schema):
            doubted.add(name)
    assert doubted == {
        "linear",
        "logistic",
        "glm",
        "cox",
        "cox-approximate",
        "treatment-effect",
        "imputed-regression",
    }


def test_a_delta_that_would_allow_to_release_a_record_is_doubted() -> None:
    example = example_of(TASKS["count"])

    def said(delta: float) -> str:
        budget = Budget(8.0, delta)
        schema = schema_of(example.columns)
        return " ".join(
            privacy_warnings(
                make_plan(TASKS["count"], schema, ["here"], budget=budget, nominal_n=1000)
            )
        )

    assert "delta 0.001 is not below 1 / nominal_n" in said(1e-3)
    assert said(1e-4) == ""


def test_an_epsilon_that_protects_little_is_doubted() -> None:
    for epsilon, is_large in ((8.0, False), (100.0, True)):
        doubts = privacy_warnings(plan_of("count", epsilon, 1000))
        assert any(f"epsilon {epsilon:g} is large" in doubt for doubt in doubts) == is_large


@pytest.mark.parametrize("name", ["count", "describe", "survival", "tabulate", "table1", "pca"])
def test_a_wanted_margin_leads_to_the_least_epsilon_that_gives_it(name: str) -> None:
    task, example = TASKS[name], example_of(TASKS[name])
    schema = schema_of(example.columns)
    asked = {"nominal_n": 3000, **example.options}
    plan = make_plan(task, schema, ["here"], budget=Budget(1.0, 1e-6), **asked)
    key, margin = next(iter(margins(plan).items()))
    found = make_plan(task, schema, ["here"], budget=None, want={key: margin}, **asked)
    assert found.budget is not None
    assert 0.9 <= found.budget.epsilon <= 1.0
    assert margins(found)[key] <= margin
    tighter = make_plan(task, schema, ["here"], budget=None, want={key: margin / 2}, **asked)
    assert tighter.budget is not None
    assert tighter.budget.epsilon > 1.5


@pytest.mark.parametrize("name", ["auto", "fastlloyd"])
def test_the_forecast_of_a_centre_with_a_verdict_is_a_range_that_nobody_can_want(name: str) -> None:
    schema = schema_of(example_of(TASKS[name]).columns)
    asked = {"nominal_n": 20_000, "n_clusters": 3}
    plan = make_plan(TASKS[name], schema, ["here"], budget=Budget(1.0, 1e-6), **asked)
    ranges, _ = expected(plan)
    assert "depends on how far apart the groups are" in ranges.title
    assert all(" to ± " in row[1] for row in ranges.rows)
    assert "result" not in margins(plan)
    with pytest.raises(PlanError, match=r"'result', whose error depends on .* it can name size"):
        make_plan(TASKS[name], schema, ["here"], budget=None, want={"result": 0.1}, **asked)
    # Without verdicts the forecast is that of the noise.
    few = make_plan(
        TASKS["glloyd"], schema, ["here"], budget=Budget(1.0, 1e-6), nominal_n=20_000, n_clusters=3
    )
    assert "result" in margins(few)


def test_a_wanted_margin_may_have_a_printed_name() -> None:
    ends = {"age": (0.0, 100.0), "weight": (0.0, 300.0)}
    columns = [Column(name=c, type="number", min=low, max=high) for c, (low, high) in ends.items()]
    schema = Schema(dataset="x", unit="row", columns=columns)
    asked: dict[str, Any] = {"budget": None, "nominal_n": 5000}
    both = make_plan(TASKS["statistics"], schema, ["a"], want={"mean": 0.5}, **asked)
    age = make_plan(TASKS["statistics"], schema, ["a"], want={"age": 0.5}, **asked)
    weight = make_plan(TASKS["statistics"], schema, ["a"], want={"weight": 0.5}, **asked)
    count = make_plan(TASKS["count"], schema, ["a"], want={"the result": 30.0}, **asked)
    assert age.budget
    assert both.budget
    assert weight.budget
    assert count.budget
    assert age.budget.epsilon < weight.budget.epsilon == both.budget.epsilon
    (_, table) = sorted(expected(weight), key=lambda one: len(one.headings))
    assert [row[0] for row in table.rows] == ["age", "weight"]
    with pytest.raises(PlanError, match=r"\(age, weight, count, mean\), got result"):
        make_plan(TASKS["statistics"], schema, ["a"], want={"result": 0.5}, **asked)


@pytest.mark.parametrize(
    ("want", "said"),
    [
        ({}, "must name forecasts of the task"),
        ({"median": 1.0}, "got median"),
        ({"result": -1.0}, "positive margin"),
        ({"result": 1e-9}, "needs more than epsilon 100"),
    ],
)
def test_a_wanted_margin_that_cannot_be_is_refused(want: dict[str, float], said: str) -> None:
    schema = schema_of(example_of(TASKS["count"]).columns)
    with pytest.raises(PlanError, match=said):
        make_plan(TASKS["count"], schema, ["here"], budget=None, want=want, nominal_n=1000)
    with pytest.raises(PlanError, match="give one of them"):
        make_plan(
            TASKS["count"], schema, ["a"], want=want, budget=Budget(1.0, 1e-6), nominal_n=1000
        )


def test_a_plan_says_what_a_missing_cell_counts_as() -> None:
    columns = [
        {"name": "pay", "type": "number", "min": 0, "max": 15_000, "missing": "midpoint"},
        {"name": "work", "type": "category", "categories": ["desk", "field"], "missing": "field"},
        {
            "name": "seen",
            "type": "date",
            "min": "2020-01-01",
            "max": "2024-01-01",
            "missing": "max",
        },
        {"name": "age", "type": "number", "min": 0, "max": 120},
    ]
    schema = Schema(dataset="pay", unit="row", columns=columns)
    budget = Budget(1.0, 1e-6)
    plan = make_plan(TASKS["statistics"], schema, ["a"], budget=budget, nominal_n=5000)
    (said,) = (one for one in plan_warnings(plan, schema) if "missing cells" in one)
    assert said.endswith("values: pay 7500, work field, seen 2024-01-01; results include them.")


def test_a_plan_of_centres_has_the_bound_of_every_private_method_and_max_cover_its_order() -> None:
    names = [name for name in TASKS if "n_clusters" in example_of(TASKS[name]).options]
    assert {"auto", "fastlloyd", "maxcover-histogram"} <= set(names)
    for name in names:
        if not TASKS[name].private:
            continue
        plan = plan_of(name, 1.0, 5000)
        (bounds,) = error_bounds(plan)
        least = least_error(plan.task.n_clusters, len(plan.columns), plan.budget, 5000)
        assert bounds.title == "Bounds of the error of centres"
        assert bounds.rows[0] == ("any private method has at least, on some table", number(least))
        assert "max_cover_bounds.md" in bounds.note
        order = [row for row in bounds.rows if "all constants 1, no bound" in row[0]]
        assert len(order) == (name == "maxcover-histogram")
    assert not error_bounds(plan_of("forest", 1.0, 5000))


def test_the_error_of_a_share_has_percentage_points_and_that_of_a_mean_its_column() -> None:
    tables = {table.title: table for table in expected(plan_of("table1", 1.0, 50_000))}
    shares = dict(tables["Expected error (95 % of the noise)"].rows)
    found = re.fullmatch(r"± (\S+) \((\S+) percentage points\)", str(shares["share"]))
    assert found
    assert float(found[2]) == pytest.approx(100 * float(found[1]), rel=1e-2)
    assert "points" not in str(shares["count"])
    means = tables["Expected error of a mean in groups of equal size (95 % of the noise)"]
    assert [row[0] for row in means.rows] == ["age", "weight"]
    note = tables["Expected error (95 % of the noise)"].note
    assert note.startswith("Errors refer to groups of equal size.")


def test_errors_of_several_sizes_are_a_range() -> None:
    options = {"tables": [["age"], ["work", "smokes"]], "weights": [1, 3, 1]}
    *_, table = expected(plan_of("tabulate", 1.0, 50_000, **options))
    count = dict(table.rows)["count"]
    assert re.fullmatch(r"± \S+ to ± \S+", str(count))
    low, high = (float(text) for text in re.findall(r"[\d.]+", str(count)))
    assert low < high


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("linear", {}),
        ("logistic", {}),
        ("glm", {"family": "poisson"}),
        ("imputed-regression", {}),
        ("treatment-effect", {}),
        ("cox-approximate", {}),
    ],
)
def test_a_plan_without_a_forecast_says_why_and_how_to_choose_epsilon(
    task: str, options: dict[str, str]
) -> None:
    plan = plan_of(task, 5.0, 100_000, **options)
    assert not forecast_of(plan)
    said = unknown_error(plan)
    assert "depends on" in said
    assert "1 / epsilon" in said
    with pytest.raises(PlanError, match="depends on"):
        wanted_budget(lambda budget: plan, DELTA, {"age": 0.1})
    assert unknown_error(plan_of("tabulate", 5.0, 100_000)) == ""


def test_epsilon_follows_from_the_margin_of_a_standardised_coefficient() -> None:
    def plan_for(budget: Budget) -> Plan:
        return plan_of("glm", budget.epsilon, 100_000)

    budget = wanted_budget(plan_for, DELTA, {"standardised coefficient": 0.01})
    assert budget.epsilon < 100
    assert margins(plan_for(budget))["standardised_coefficient"] <= 0.01
    (table,) = expected(plan_for(budget))
    assert "Correlations" in table.note


def test_the_beginning_of_a_name_stands_for_all_forecasts_that_have_it() -> None:
    def plan_for(budget: Budget) -> Plan:
        return plan_of("cox", budget.epsilon, 100_000)

    names = [name for name in margins(plan_for(Budget(5.0, DELTA))) if name.startswith("log_h")]
    assert len(names) > 1
    found = wanted_budget(plan_for, DELTA, {"log hazard ratio": 0.2})
    assert found == wanted_budget(plan_for, DELTA, dict.fromkeys(names, 0.2))
    assert found == wanted_budget(plan_for, DELTA, {"hazard": 0.2})  # words within the name
    with pytest.raises(PlanError, match="want must name forecasts"):
        wanted_budget(plan_for, DELTA, {"log haz": 0.2})


@pytest.mark.parametrize("task", ["describe", "standardise", "fastlloyd", "auto"])
def test_the_margin_of_a_date_is_in_days(task: str) -> None:
    columns = [
        Column(name="day", type="date", min="2024-01-01", max="2024-12-31"),
        Column(name="age", type="number", min=0, max=90),
    ]
    schema = Schema(dataset="d", unit="row", columns=columns)
    budget = Budget(1.0, DELTA)
    options: dict[str, Any] = {"n_clusters": 2} if task == "fastlloyd" else {}
    plan = make_plan(TASKS[task], schema, ["here"], budget=budget, nominal_n=9000, **options)
    (means,) = [table for table in expected(plan) if "in its unit" in table.headings]
    day, age = (str(row[1]) for row in means.rows)
    found = re.fullmatch(r"± (\S+) days \((\S+) years\)", day.partition(" to ")[0])
    assert found
    assert float(found[1]) == pytest.approx(365.25 * float(found[2]), rel=0.05)
    assert "days" not in age


def test_a_margin_of_a_date_that_is_too_small_is_refused_in_days() -> None:
    columns = [Column(name="day", type="date", min="2024-01-01", max="2024-12-31")]
    schema = Schema(dataset="d", unit="row", columns=columns)

    def plan_for(budget: Budget) -> Plan:
        return make_plan(TASKS["describe"], schema, ["here"], budget=budget, nominal_n=9000)

    with pytest.raises(PlanError, match=r"± \S+ days \(\S+ years\)"):
        wanted_budget(plan_for, DELTA, {"day": 1e-9})


def test_a_margin_of_a_year_or_more_is_in_years() -> None:
    assert time_margin(1.5) == "± 1.5 years"
    assert time_margin(np.inf) == "± ∞ years"
