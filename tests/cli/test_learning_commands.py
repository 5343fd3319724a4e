"""``cloister classify``, ``regress``, ``outliers``, ``evaluate`` and ``predict``, file to file."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister.app.release import Release
from cloister.cli import _parser, main
from cloister.cli.options import options_from
from cloister.core.display import Estimate, Table
from cloister.tasks import TASKS

SCHEMA = """
dataset = "patients"
unit = "row"
[[columns]]
name = "age"
type = "number"
min = 0
max = 120
[[columns]]
name = "pressure"
type = "number"
min = 50
max = 250
[[columns]]
name = "work"
type = "category"
categories = ["private", "state", "none"]
[[columns]]
name = "ill"
type = "category"
categories = ["no", "yes"]
"""

Said = pytest.CaptureFixture[str]


@pytest.fixture
def ward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a schema, two silos and records held back; some cells are unusable."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    (tmp_path / "s.toml").write_text(SCHEMA)
    for name, size in (("a", 900), ("b", 700), ("test", 600)):
        ill = rng.random(size) < 0.4
        age = rng.normal(40 + 30 * ill, 8)
        pressure = 100 + 0.6 * age + rng.normal(0, 4, size)
        rows = [["age", "pressure", "work", "ill"]]
        rows += [
            [f"{a:.1f}", f"{p:.1f}", str(rng.choice(["private", "state", "none"])), w]
            for a, p, w in zip(age, pressure, np.where(ill, "yes", "no"), strict=True)
        ]
        rows[3][0], rows[4][2], rows[5][3] = "", "circus", "perhaps"
        with (tmp_path / f"{name}.csv").open("w", newline="") as stream:
            csv.writer(stream).writerows(rows)
    return tmp_path


def run(words: str, capsys: Said) -> dict[str, Any]:
    assert main([*words.split(), "--json"]) == 0, capsys.readouterr().err
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def told(path: Path) -> list[dict[str, str]]:
    with path.open() as stream:
        return list(csv.DictReader(stream))


FILES = "a.csv b.csv --schema s.toml --max-loss 0.05 --nominal-n 1600 --cap-epsilon 50"


@pytest.mark.parametrize("method", ["naive-bayes", "logistic", "forest", "shapes"])
def test_a_classifier_is_released_measured_and_tells_records(
    method: str, ward: Path, capsys: Said
) -> None:
    found = run(f"classify {FILES} --target ill --method {method} --epsilon 4 --out model", capsys)
    assert found["task"] == method
    assert found["charged"]["spent_epsilon"] == pytest.approx(4, abs=1e-3)
    run("predict model/model.json test.csv --schema s.toml --out p.csv", capsys)
    truth = [row["ill"] for row in told(ward / "test.csv")]
    answers = told(ward / "p.csv")
    assert len(answers) == len(truth)
    pairs = [(row["ill"], t) for row, t in zip(answers, truth, strict=True)]
    right = np.mean([answer == t for answer, t in pairs if answer and t != "perhaps"])
    assert right > 0.85
    assert float(answers[0]["p(yes)"]) == pytest.approx(1 - float(answers[0]["p(no)"]))
    measures = run(
        "evaluate test.csv --model model/model.json --schema s.toml --max-loss 0.05 "
        "--nominal-n 600 --epsilon 4 --out measures",
        capsys,
    )
    results = measures["results"]  # noise alone is off by so much once in 1e9 runs
    assert results["accuracy_low"][0] - 0.02 < right < results["accuracy_high"][0] + 0.02


def test_a_model_of_some_columns_is_told_measured_and_used_over_those(
    ward: Path, capsys: Said
) -> None:
    some = "--columns ill,pressure"
    run(f"classify {FILES} {some} --target ill --epsilon 4 --out model", capsys)
    assert Release.load(ward / "model" / "model.json").plan.columns == ("pressure", "ill")
    run("predict model/model.json test.csv --schema s.toml --out p.csv", capsys)
    assert len([row for row in told(ward / "p.csv") if row["ill"]]) == 600, "no age, no matter"
    measure = "evaluate test.csv --model model/model.json --schema s.toml --max-loss 0.05"
    measure += " --nominal-n 600 --epsilon"
    assert 0.5 < run(f"{measure} 4 --out measures", capsys)["results"]["accuracy"][0] <= 1
    assert main([*f"{measure} 4 --out again".split(), "--columns", "ill"]) == 3
    assert "columns are those of the model" in capsys.readouterr().err


def test_steps_before_are_one_plan_with_one_cost(ward: Path, capsys: Said) -> None:
    words = f"classify {FILES} --target ill --epsilon 2 --prepare standardise:reach=3 --out model"
    found = run(f"{words} --shares 0.2,0.8", capsys)
    assert found["task"] == "pipeline"
    assert found["budget"]["epsilon"] == pytest.approx(2, abs=1e-3)
    plan = Release.load(ward / "model" / "model.json").plan
    assert plan.task.shares == (0.2, 0.8)  # type: ignore[attr-defined]
    run("predict model/model.json test.csv --schema s.toml --out p.csv", capsys)
    truth = [row["ill"] for row in told(ward / "test.csv")]
    answers = [row["ill"] for row in told(ward / "p.csv")]
    assert np.mean([a == t for a, t in zip(answers, truth, strict=True)]) > 0.85


@pytest.mark.parametrize("method", ["linear", "forest-regression", "shapes-regression"])
def test_a_regression_tells_a_number_in_its_units(method: str, ward: Path, capsys: Said) -> None:
    run(f"regress {FILES} --target pressure --method {method} --epsilon 4 --out model", capsys)
    run("predict model/model.json test.csv --schema s.toml --out p.csv", capsys)
    told_rows = [row["pressure"] for row in told(ward / "p.csv")]
    assert [i for i, answer in enumerate(told_rows) if not answer] == [2, 3, 4]  # unusable cells
    answers = np.array([float(answer or "nan") for answer in told_rows])
    truth = np.array([float(row["pressure"]) for row in told(ward / "test.csv")])
    assert np.nanmedian(np.abs(answers - truth)) < 6
    measures = run(
        "evaluate test.csv --model model/model.json --schema s.toml --max-loss 0.05 "
        "--nominal-n 600 --epsilon 4 --out measures",
        capsys,
    )
    assert measures["task"] == "regression-evaluation"
    assert measures["results"]["mae"][0] < 8


def display(folder: Path, title: str) -> dict[str, Any]:
    """Return the rows of a table of a released model, by their first cell."""
    found = Release.load(folder / "model.json")
    tables = found.plan.task.displays(found.results, found.plan.columns)
    rows = next(t.rows for t in tables if isinstance(t, Table) and t.title.startswith(title))
    return {str(row[0]): row[1] for row in rows}


@pytest.mark.parametrize(
    ("words", "title"),
    [
        ("classify {} --target ill --method logistic", "Odds ratios"),
        ("regress {} --target pressure", "Coefficients"),
    ],
)
def test_a_regression_compares_categories_with_a_reference(
    words: str, title: str, ward: Path, capsys: Said
) -> None:
    words = f"{words.format(FILES)} --epsilon 4 --out model --reference"
    run(f"{words} work=state", capsys)
    told = display(ward / "model", title)
    work = {name: cell for name, cell in told.items() if name.startswith("work=")}
    assert [name for name, cell in work.items() if cell == "reference"] == ["work=state"]
    assert all(isinstance(work[f"work={w}"], Estimate) for w in ("private", "none"))


def test_a_command_of_a_task_takes_the_name_of_a_reference(capsys: Said) -> None:
    words = "imputed-regression a.csv --schema s.toml --target age --epsilon 1 --out model"
    given = [*words.split(), "--reference", "work=state", "--reference", "sex=f=1"]
    parsed = _parser(given).parse_args(given)
    chosen = options_from(parsed, TASKS["imputed-regression"])["reference"]
    assert chosen == {"work": "state", "sex": "f=1"}
    assert main([*words.split(), "--reference", "work"]) != 0
    assert "must be COLUMN=CATEGORY, got 'work'" in capsys.readouterr().err


def test_odds_ratios_are_against_the_reference(ward: Path, capsys: Said) -> None:
    run(
        f"classify {FILES} --target ill --method logistic --epsilon 4 --out model "
        "--reference work=none",
        capsys,
    )
    told = display(ward / "model", "Odds ratios")
    found = Release.load(ward / "model" / "model.json")
    coef = dict(zip(found.plan.task.names, found.results["coef"][0], strict=False))  # type: ignore[attr-defined]  # of a regression
    apart = np.exp(coef["work=state"] - coef["work=none"])
    assert told["work=state"].value == pytest.approx(apart)
    assert told["age"].value == pytest.approx(np.exp(coef["age"]))


def test_a_proposal_names_a_reference_as_the_command_does(ward: Path, capsys: Said) -> None:
    command = "plan --schema s.toml --epsilon 1 --nominal-n 1600 --set target=ill"
    given = ["--task", "logistic", "--set", 'reference={"work": "none"}', "--json"]
    assert main([*command.split(), *given]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["task"]["reference"] == [0, 0, 2, 0]


@pytest.mark.parametrize(
    "words",
    [
        "classify {} --target ill --method naive-bayes",
        "regress {} --target age",
        "outliers {} --method robust",
        "cluster {} --k 2",
    ],
)
def test_a_row_that_the_schema_drops_has_no_answer_and_is_counted(
    words: str, ward: Path, capsys: Said
) -> None:
    assert main([*words.format(FILES).split(), "--epsilon", "4", "--out", "model"]) == 0
    lines = (ward / "test.csv").read_text().splitlines()
    new = [lines[0], "50,120,none,no", "50,120,martian,no", "50,?,none,no", "60,120,state,yes"]
    (ward / "new.csv").write_text("\n".join(new) + "\n")
    capsys.readouterr()
    words = "predict model/model.json new.csv --schema s.toml --out p.csv"
    assert main(words.split()) == 0
    assert "rows without a prediction: 2" in capsys.readouterr().out
    answers = [list(row.values()) for row in told(ward / "p.csv")]
    assert [row[0] for row in answers] == ["1", "2", "3", "4"]
    assert [all(row[1:]) for row in answers] == [True, False, False, True]
    assert not any(any(row[1:]) for row in answers[1:3])


def test_a_row_is_filled_as_the_schema_says(ward: Path, capsys: Said) -> None:
    filled = SCHEMA.replace('"none"]', '"none"]\nmissing = "none"')
    (ward / "s.toml").write_text(filled)
    run(f"classify {FILES} --target ill --epsilon 4 --out model", capsys)
    (ward / "new.csv").write_text(
        "age,pressure,work\n50,120,none\n50,120,martian\n50,120,\n50,120,private\n"
    )
    run("predict model/model.json new.csv --schema s.toml --out p.csv", capsys)
    answers = [tuple(row.values())[1:] for row in told(ward / "p.csv")]
    assert answers[0] == answers[1] == answers[2] != answers[3]


def test_outliers_are_counted_and_flagged_where_they_are(ward: Path, capsys: Said) -> None:
    with (ward / "a.csv").open("a") as stream:
        stream.write("118,60,none,no\n" * 5)
    words = f"outliers {FILES} --method robust --threshold 4 --count-share 0.3 --epsilon 2"
    found = run(f"{words} --out model", capsys)
    assert found["results"]["flagged"][0] == pytest.approx(5, abs=25)
    run("predict model/model.json a.csv --schema s.toml --out p.csv", capsys)
    flags = [row["outlier"] for row in told(ward / "p.csv")]
    assert flags[-5:] == ["1"] * 5
    assert np.mean([flag == "1" for flag in flags]) < 0.02


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("classify a.csv --target sick", "target must be a column of the schema"),
        ("classify a.csv --target age", "must be a column of categories"),
        ("classify a.csv --target ill --shares 1", "--shares is valid only with --prepare"),
        ("classify a.csv --target ill --prepare polish", "a step must be one of"),
        ("classify a.csv --target ill --prepare count", "before the last one"),
        ("classify a.csv --target ill --set classes=3", "do not fit"),
        ("classify a.csv --target ill --reference work=none", "it has no option 'reference'"),
        (
            "classify a.csv --target ill --reference work=none --method forest",
            "it has no option 'reference'",
        ),
        *(
            (f"{command} --reference {given}", sentence)
            for command in (
                "classify a.csv --target ill --method logistic",
                "regress a.csv --target pressure",
            )
            for given, sentence in (
                ("work", "COLUMN=CATEGORY, once for each column, got 'work'"),
                ("=none", "COLUMN=CATEGORY, once for each column, got '=none'"),
                ("work=nobody", "must be one of private, state, none; got 'nobody'"),
                ("age=none", "of a column of categories"),
                ("job=none", "reference must be a column of the schema"),
                ("work=none --reference work=state", "once for each column, got 'work=state'"),
            )
        ),
        (
            "classify a.csv --target ill --method logistic --reference ill=no",
            "other than the target",
        ),
        ("evaluate a.csv", "give --model"),
        ("evaluate a.csv --model s.toml", "cannot be read"),
        ("outliers a.csv --group age --count-share 0.1", "categories"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_spent(
    words: str, sentence: str, ward: Path, capsys: Said
) -> None:
    command, *rest = words.split()
    code = main(
        [
            command,
            *rest,
            *["--schema", "s.toml", "--epsilon", "1", "--nominal-n", "900", "--out", "model"],
        ]
    )
    assert code in (3, 4)
    assert sentence in capsys.readouterr().err
    assert not (ward / "model").exists()


def test_clusters_behind_a_pipeline_are_not_measured_in_other_columns(
    ward: Path, capsys: Said
) -> None:
    steps = 'steps=[["standardise",{}],["auto",{"n_clusters":2}]]'
    end = ["--schema", "s.toml", "--epsilon", "4", "--nominal-n", "1600"]
    some = ["--columns", "age,pressure", "--task", "pipeline", "--set", steps]
    assert main(["run", *FILES.split(), *end, *some, "--out", "model"]) == 0
    code = main(["evaluate", "test.csv", *end, "--model", "model/model.json", "--out", "again"])
    assert code == 3
    assert "a pipeline that clusters transformed columns" in capsys.readouterr().err


def test_a_model_needs_the_schema_it_was_made_with(ward: Path, capsys: Said) -> None:
    run(f"classify {FILES} --target ill --epsilon 2 --out model", capsys)
    assert main(["predict", "model/model.json", "test.csv", "--out", "p.csv"]) == 3
    assert "needs its schema; give --schema" in capsys.readouterr().err
    (ward / "other.toml").write_text(SCHEMA.replace("120", "110"))
    assert (
        main(
            ["predict", "model/model.json", "test.csv", "--schema", "other.toml", "--out", "p.csv"]
        )
        == 3
    )
    assert "digests differ" in capsys.readouterr().err
    measured = ["evaluate", "test.csv", "--model", "model/model.json", "--epsilon", "1"]
    measured += ["--nominal-n", "600", "--out", "measured"]
    (ward / "fewer.toml").write_text(SCHEMA.split('[[columns]]\nname = "work"')[0])
    for schema in ("other.toml", "fewer.toml"):
        assert main([*measured, "--schema", schema]) == 3
        assert "digests differ" in capsys.readouterr().err
    assert not (ward / "measured").exists()


def test_a_model_with_the_silo_tells_rows_of_a_named_one(ward: Path, capsys: Said) -> None:
    model = ["--set", "formula=pressure ~ age + site", "--epsilon", "4", "--out", "model", "--json"]
    assert main(["run", "--task", "glm", *FILES.split(), *model]) == 0, capsys.readouterr().err
    capsys.readouterr()
    predict = "predict model/model.json test.csv --schema s.toml --out p.csv"
    assert main(predict.split()) == 3
    assert "need a silo, one of a, b" in capsys.readouterr().err
    answers = {}
    for silo in ("a", "b"):
        run(f"{predict} --silo {silo}", capsys)
        answers[silo] = np.array([float(row["pressure"] or "nan") for row in told(ward / "p.csv")])
    gaps = answers["a"] - answers["b"]
    assert np.nanmin(gaps) == pytest.approx(np.nanmax(gaps))
    assert np.nanmax(np.abs(gaps)) > 0
    run(f"regress {FILES} --target pressure --epsilon 4 --out other", capsys)
    assert main([*predict.replace("model/", "other/").split(), "--silo", "a"]) == 3
    assert "--silo is for a model with the term site" in capsys.readouterr().err
