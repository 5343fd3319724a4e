"""What a report says first, of records whose truth is known; noise and records are seeded."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from cloister.app.job import make_plan
from cloister.app.present import Presentation, present
from cloister.app.release import Release
from cloister.data.schema import Schema
from cloister.privacy.budget import Budget
from cloister.tasks import installed
from cloister.testing import rerun

N = 6000
BOX = {"age": (20, 90), "bmi": (10, 60), "score": (300, 850)}
FLAGS = ("treated", "died", "smokes", "default", "bread", "butter")


def records() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    age, treated = rng.uniform(20, 90, N), rng.random(N) < 0.5
    work = rng.choice(3, N, p=[0.6, 0.3, 0.1])
    event = rng.exponential(25 / np.exp(-0.5 * treated))
    followed = rng.uniform(6, 60, N)
    score, bread = rng.normal(600, 50, N).clip(300, 850), rng.random(N) < 0.4
    return {
        "age": age,
        "bmi": (20 + 0.1 * age + rng.normal(0, 3, N)).clip(10, 60),
        "treated": treated,
        "work": work,
        "months": np.ceil(np.minimum(event, followed)),
        "died": event <= followed,
        "smokes": rng.random(N) < 0.2 + 0.2 * (work == 1),
        "score": score,
        "default": rng.random(N) < 1 / (1 + np.exp((score - 550) / 30)),
        "bread": bread,
        "butter": rng.random(N) < 0.1 + 0.4 * bread,
        "day": rng.uniform(2020, 2025, N),
    }


RECORDS = records()


def column(name: str) -> dict[str, Any]:
    if name in BOX:
        return {"name": name, "type": "number", "min": BOX[name][0], "max": BOX[name][1]}
    if name == "months":
        return {"name": name, "type": "integer", "min": 0, "max": 61}
    if name == "day":
        return {"name": name, "type": "date", "min": 2020.0, "max": 2025.0}
    if name in FLAGS:
        return {"name": name, "type": "boolean"}
    return {"name": name, "type": "category", "categories": ["private", "state", "none"]}


def said(task: str, names: str, rows_of_unit: int = 1, **options: Any) -> Presentation:
    """Return what is said of a release with simulated noise at epsilon 2."""
    columns = names.split()
    unit = {"unit": "person", "max_rows": rows_of_unit} if rows_of_unit > 1 else {"unit": "row"}
    schema = Schema(dataset="d", **unit, columns=[column(name) for name in columns])
    budget = Budget(2.0, 1e-6)
    plan = make_plan(installed()[task], schema, ["here"], budget=budget, nominal_n=N, **options)
    rows = np.column_stack([RECORDS[name] for name in columns]).astype(float)
    results = rerun(plan, plan.grid.encode(rows), np.random.default_rng(1))
    return present(Release(plan, results, (), plan.events(), "simulated", ()))


NUMBER = r"-?[\d.,]+ \[-?[\d.,]+, -?[\d.,]+\]"
WIDE = r"( Intervals( \[ , \])?: noise and sampling\.)?"
HOLM = "beyond noise and sampling, after Holm's correction."
SAID = [
    (
        *("survival", "months died treated"),
        {"time": "months", "event": "died", "by": "treated", "tau": 48.0},
        f"Share without died after 24 months: treated=false {NUMBER}, treated=true {NUMBER}. "
        f"Median months: treated=false {NUMBER}, treated=true {NUMBER}.",
        "The curves differ: log-rank p < 0.001, noise included.",
    ),
    (
        *("survival", "months died smokes"),  # smoking is not in the hazard
        {"time": "months", "event": "died", "by": "smokes", "tau": 48.0},
        r"Share without died .*",
        r"The curves are not shown to differ: log-rank p 0\.\d{3}, noise included.",
    ),
    (
        *("survival", "months died treated"),  # nobody is followed beyond 60 months
        {"time": "months", "event": "died", "by": "treated", "at": (20.0, 59.0, 60.0)},
        r"Share without died after 20 months: .*",
        r"The curves differ: .*",
    ),
    (
        *("cox", "months died treated"),
        {"time": "months", "event": "died", "nominal_events": 3000},
        f"Hazard ratios: treated {NUMBER}.",
        f"1 of 1 hazard ratios differ from 1 {HOLM}",
    ),
    (
        *("cox", "months died smokes"),
        {"time": "months", "event": "died", "nominal_events": 3000},
        "No hazard ratio is shown to differ from 1.",
        "0 of 1 hazard ratios .*",
    ),
    (
        *("describe", "age work"),
        {},
        f"Mean age {NUMBER}, most often work is private, a share of {NUMBER}.",
        r"\d+ of \d+ numbers are exact to a tenth of their value \(95 %, with noise and "
        r"sampling\).",
    ),
    (
        *("tabulate", "work smokes"),
        {"tables": (("work", "smokes"),), "tests": ("chi2",)},
        "work by smokes, chi-square test: p < 0.001.",
        "1 of 1 tests find a difference at 5 %, after Holm's correction, noise included.",
    ),
    (
        *("tabulate", "work smokes treated"),  # the clearest test, not the first
        {"tables": (("treated", "smokes"), ("work", "smokes")), "tests": ("chi2",)},
        "work by smokes, chi-square test: p < 0.001.",
        "1 of 2 tests find a difference .*",
    ),
    (
        *("tabulate", "treated smokes"),
        {"tables": (("treated", "smokes"),), "tests": ("chi2", "odds_ratio")},
        r"treated by smokes, chi-square test: p 0\.\d{3}.",
        "0 of 2 tests find a difference .*",
    ),
    (
        *("tabulate", "work smokes"),
        {"tables": (("work", "smokes"),)},
        f"The largest cell is work private, smokes false, a share of {NUMBER}.",
        ".*",
    ),
    (
        *("table1", "treated age work died"),
        {"by": "treated"},
        f"treated=true less treated=false: died=true, share {NUMBER}.",
        "1 of 3 columns differ at 5 %, after Holm's correction, noise included.",
    ),
    (
        *("table1", "work bmi smokes"),
        {"by": "work"},
        r"Groups of work differ in smokes \(p < 0.001\).",
        "1 of 2 .*",
    ),
    (
        *("table1", "smokes age default"),
        {"by": "smokes"},
        "No column is shown to differ between groups of smokes.",
        "0 of 2 columns differ .*",
    ),
    (*("table1", "age work"), {}, f"Mean age {NUMBER}.", "[34] of 4 numbers .*"),
    (
        *("scorecard", "score default"),
        {"target": "default", "edges": {"score": (500.0, 550.0, 600.0, 650.0)}},
        f"score: information value {NUMBER}, Kolmogorov-Smirnov {NUMBER}, Gini {NUMBER}.",
        ".*",
    ),
    (
        *("pca", "age bmi"),
        {},
        f"The first component has a share of {NUMBER} of the variance, most of age.",
        r"\d of 2 numbers are exact to a tenth .*",
    ),
    (*("statistics", "age bmi"), {}, f"Means: age {NUMBER}, bmi {NUMBER}.", "4 of 4 .*"),
    (*("quantiles", "age bmi"), {}, f"Medians: age {NUMBER}, bmi {NUMBER}.", "6 of 6 .*"),
    (
        *("apriori", "bread butter smokes"),
        {},
        rf"The rule with the largest lift of \d+: (bread → butter|butter → bread), lift {NUMBER}, "
        f"confidence {NUMBER}.",
        r"The lift of 2 of \d+ rules differs from 1 beyond the privacy noise.",
    ),
    (
        *("synthesise", "bread butter smokes"),
        {},
        r"A law of 3 columns, from which any number of look-alike records can be drawn. It follows "
        r"\d measured tables.",
        "Shares of measured tables .*",
    ),
    (
        *("linear", "age treated work bmi"),
        {"target": "bmi"},
        rf"Effects on bmi: age \(per 10\) {NUMBER}.",
        f"1 of 4 effects differ from 0 {HOLM}",
    ),
    (
        *("linear", "smokes treated score"),  # neither is in the score
        {"target": "score"},
        "No effect on score is shown.",
        f"0 of 2 effects differ from 0 {HOLM}",
    ),
    (
        *("logistic", "score work age default"),
        {"target": "default"},
        rf"Penalised odds ratios of default, true against false: score \(per 100\) {NUMBER}.",
        f"1 of 4 effects differ from 1 {HOLM}",
    ),
    (
        *("logistic", "age treated work"),
        {"target": "work", "C": np.inf},
        "No effect on work is shown.",
        f"0 of 4 effects differ from 1 {HOLM}",
    ),
    (
        *("forest", "score work age default"),
        {"target": "default"},
        "Columns that separate the classes of default most clearly: score.",
        f"1 of 3 columns separate the classes of default {HOLM}",
    ),
    (
        *("forest", "treated age smokes"),
        {"target": "smokes"},
        "No column is shown to separate the classes of smokes.",
        f"0 of 2 columns separate the classes of smokes {HOLM}",
    ),
    (
        *("forest-regression", "age treated bmi"),
        {"target": "bmi"},
        "Columns that separate values of bmi most clearly: age.",
        f"1 of 2 columns separate values of bmi {HOLM}",
    ),
    (
        *("shapes", "age treated default"),
        {"target": "default"},
        "No column is likely to have an effect on default.",
        "0 of 2 columns have an effect on default with a posterior probability above 0.95, if they "
        "do not move together.",
    ),
    (
        *("shapes-regression", "age treated bmi"),
        {"target": "bmi"},
        "Columns with the largest effects on bmi: age.",
        "1 of 2 columns have an effect on bmi with a posterior probability above 0.95, if they do "
        "not move together.",
    ),
    (
        *("naive-bayes", "score work age default"),
        {"target": "default"},
        f"Share of score [0-9.]+ to [0-9.]+: default false {NUMBER}, default true {NUMBER}.",
        f"1 of 3 columns differ between classes of default {HOLM}",
    ),
    (
        *("naive-bayes", "score age default"),
        {"target": "default", "numbers": "gaussian"},
        f"Mean of score: default false {NUMBER}, default true {NUMBER}.",
        f"1 of 2 columns differ between classes of default {HOLM}",
    ),
    (
        *("naive-bayes", "treated age smokes"),
        {"target": "smokes"},
        "No difference of the classes of smokes is shown.",
        f"0 of 2 columns differ between classes of smokes {HOLM}",
    ),
    (
        *("outliers", "age bmi work"),
        {"count_share": 0.2},
        rf"Outliers: [\d.]+ ± [\d.]+. Medians: age {NUMBER}, bmi {NUMBER}.",
        "6 of 6 .*",
    ),
    (
        *("outliers", "age bmi work"),
        {"count_share": 0.2, "group": "work", "min_group": 50.0},
        r"Outliers: private: [\d.]+ ± [\d.]+, state: [\d.]+ ± [\d.]+, none: below 50. Medians: .*",
        "6 of 6 .*",
    ),
    (
        *("outliers", "age bmi"),  # nobody is so far
        {"count_share": 0.2, "threshold": 9.0},
        f"Outliers: none shown. Medians: age {NUMBER}, bmi {NUMBER}.",
        ".*",
    ),
    (
        *("outliers", "age bmi"),
        {"method": "zscore"},
        f"Means: age {NUMBER}, bmi {NUMBER}.",
        "4 of 4 .*",
    ),
    (*("count", "age"), {}, "All silos: .* ± .*", "The estimate differs from 0 .*"),
]


@pytest.mark.parametrize(("task", "names", "options", "result", "sure"), SAID)
def test_the_first_sentences_state_the_answer(
    task: str, names: str, options: dict[str, Any], result: str, sure: str
) -> None:
    found = said(task, names, **options)
    assert re.fullmatch(result + WIDE, found.result), found.result
    assert re.fullmatch(sure, found.reliability), found.reliability


def test_the_numbers_of_the_sentences_hold_the_truth() -> None:
    curves = said(
        "survival", "months died treated", time="months", event="died", by="treated", tau=48.0
    )
    for text, truth in zip(
        re.findall(r"\[([\d.]+), ([\d.]+)\]", curves.result),
        (np.exp(-24 / 25), np.exp(-24 / 25 * np.exp(-0.5))),
        strict=False,
    ):
        assert float(text[0]) <= truth <= float(text[1])
    hazard = said("cox", "months died treated", time="months", event="died", nominal_events=3000)
    (ends,) = re.findall(r"\[([\d.]+), ([\d.]+)\]", hazard.result)
    assert float(ends[0]) <= np.exp(-0.5) <= float(ends[1])
    for task, names, target, options, truth in (
        ("linear", "age treated work bmi", "bmi", {}, 1.0),
        ("logistic", "score work age default", "default", {"C": np.inf}, np.exp(-100 / 30)),
    ):
        effects = said(task, names, target=target, **options)
        (ends,) = re.findall(r"\[([\d.]+), ([\d.]+)\]", effects.result)
        assert float(ends[0]) <= truth <= float(ends[1])


def test_of_repeated_records_no_sentence_rests_on_a_p_value() -> None:
    found = said("forest", "score work age default", 4, target="default")
    assert found.result == "A model that predicts default from 3 other columns."
    assert "Holm" not in found.reliability


def test_the_number_of_outliers_is_that_of_the_scores() -> None:
    found = said("outliers", "age bmi", count_share=0.2, threshold=1.5)
    count, margin = map(float, re.findall(r"Outliers: ([\d.]+) ± ([\d.]+)[.]", found.result)[0])
    values = np.column_stack([RECORDS["age"], RECORDS["bmi"]])
    first, middle, third = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
    # The medians and quartiles of the scores have noise, too.
    near = [
        (np.abs(values - middle) * 1.349 / (third - first) > 1.5 + step).any(axis=1).sum()
        for step in (0.1, -0.1)
    ]
    assert near[0] - margin < count < near[1] + margin


@pytest.mark.parametrize(
    ("task", "names", "options", "counted"),
    [
        ("describe", "day", {}, 1),  # the deviation, which is a length of time
        ("describe", "day bmi", {}, 6),
        ("statistics", "day bmi", {}, 3),
        ("quantiles", "day bmi", {"probabilities": (0.5,)}, 1),
        ("bounds", "day bmi", {}, 2),
        ("discretise", "day bmi", {}, 18),
        ("table1", "day treated", {}, 2),
        ("tabulate", "day bmi treated", {"means": ("day", "bmi"), "by": ("treated",)}, 2),
        ("tabulate", "day treated", {"means": ("day",), "by": ("treated",)}, None),
    ],
)
def test_no_date_counts_as_exact_to_a_tenth_of_its_year(
    task: str, names: str, options: dict[str, Any], counted: int | None
) -> None:
    found = re.search(r"of (\d+) numbers are exact", said(task, names, **options).reliability)
    assert (found and int(found[1])) == counted
