from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister import cli
from cloister.cli.output import Output
from cloister.core.errors import PlanError
from cloister_lab.experiments import compare as module
from cloister_lab.experiments import sweep
from cloister_lab.experiments.datasets import Dataset, load, min_max
from cloister_lab.experiments.records import STAMP, TidyRow, load_tidy, number
from cloister_lab.experiments.reference import check_means
from cloister_lab.experiments.sweep import METHODS as USUAL_METHODS
from cloister_lab.experiments.sweep import METRICS, plan_of
from cloister_lab.experiments.sweep import TASKS as METHODS


@pytest.fixture(scope="module")
def blobs() -> Dataset:
    """Two groups far from each other, under the papers' convention."""
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(-0.7, 0.05, (200, 2)), rng.normal(0.7, 0.05, (200, 2))])
    return min_max(X, "blobs", 2)


def compare(
    datasets: Any, methods: Any, epsilons: Any, runs: Path | None = None, **settings: Any
) -> list[TidyRow]:
    """Compare anew, unless a file of runs is given."""
    with tempfile.TemporaryDirectory() as folder:
        return module.compare(
            datasets, methods, epsilons, runs or Path(folder) / "runs.csv", **settings
        )


def parse(*words: str) -> argparse.Namespace:
    return cli._parser(["compare", *words]).parse_args(["compare", *words])


def _run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    out.document({"command": "compare", **module.run(args, out)})
    return out.code


def test_a_comparison_has_one_row_for_each_run(blobs: Dataset) -> None:
    rows = compare([blobs, load("iris")], ["lloyd", "fastlloyd"], [0.5, 1.0], repeats=2)
    found = [(row["dataset"], row["method"], row["epsilon"], row["repeat"]) for row in rows]
    expected = [
        (dataset, method, epsilon, repeat)
        for dataset in ("blobs", "iris")
        for method, epsilon in (("lloyd", math.inf), ("fastlloyd", 0.5), ("fastlloyd", 1.0))
        for repeat in range(2)
    ]
    assert found == expected
    assert len({row["plan_digest"] for row in rows}) == len(rows)


def test_noise_is_that_of_the_operating_system_and_the_baseline_says_it_has_none(
    blobs: Dataset,
) -> None:
    rows = compare([blobs], list(METHODS), [1.0], repeats=1)
    noise = {row["method"]: row["noise"] for row in rows}
    assert noise.pop("lloyd") == "none: not private"
    assert set(noise.values()) == {"operating system"}


def test_two_runs_differ_by_their_noise_alone(blobs: Dataset) -> None:
    # Counts that are projected on a simplex hide some noise: one repeat of hybrid is the same once
    # in 40,000 pairs of runs, three are once in 1e13.
    first, second = (compare([blobs], list(METHODS), [1.0], repeats=3) for _ in range(2))
    for method, task in METHODS.items():
        one, other = (
            [number(row, "nicv") for row in of if row["method"] == method] for of in (first, second)
        )
        assert len(one) == 3
        assert (one == other) == (not task.private), method


def test_methods_find_the_clusters_when_epsilon_is_huge(blobs: Dataset) -> None:
    rows = compare([blobs], list(METHODS), [1e6], repeats=2)
    assert all(number(row, "nicv") == pytest.approx(blobs.reference_nicv, rel=0.02) for row in rows)
    assert all(number(row, "cost_gap") < 0.02 for row in rows)


def test_the_split_into_silos_does_not_change_the_baseline(blobs: Dataset) -> None:
    one, three = (compare([blobs], ["lloyd"], [1.0], repeats=1, silos=silos)[0] for silos in (1, 3))
    assert one["nicv"] == three["nicv"]


def test_only_metrics_asked_for_are_measured(blobs: Dataset) -> None:
    (row,) = compare([blobs], ["lloyd"], [1.0], repeats=1, metrics=["dunn"])
    measured = {name for name in METRICS if row[name] is not None}
    assert measured == {"nicv", "dunn"}
    (row,) = compare([blobs], ["lloyd"], [1.0], repeats=1, metrics=METRICS)
    assert all(row[name] is not None for name in METRICS)
    assert row["empty_clusters"] == 0


def test_finished_runs_are_not_made_again(
    blobs: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs.csv"
    done = compare([blobs], ["lloyd", "sulloyd"], [1.0], runs, repeats=2)
    rows = compare([blobs], ["lloyd", "sulloyd"], [1.0], runs, repeats=3)
    assert len(load_tidy(runs)) == 6
    new = [row for row in rows if row not in done]
    assert {(row["method"], row["repeat"]) for row in new} == {("lloyd", 2), ("sulloyd", 2)}
    assert [row for row in rows if row in done] == done

    monkeypatch.setattr(sweep, "run_plan", None)
    assert compare([blobs], ["lloyd", "sulloyd"], [1.0], runs, repeats=3) == rows


@pytest.mark.parametrize("change", [{"silos": 3}, {"epsilons": [2.0]}])
def test_runs_of_other_settings_do_not_count_as_finished(
    blobs: Dataset, tmp_path: Path, change: dict[str, Any]
) -> None:
    settings: dict[str, Any] = {"epsilons": [1.0], "silos": 2} | change
    runs = tmp_path / "runs.csv"
    done = compare([blobs], ["sulloyd"], [1.0], runs, repeats=1)
    (row,) = compare([blobs], ["sulloyd"], repeats=1, runs=runs, **settings)
    assert row not in done


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ["kmeans"]}, "methods must be among"),
        ({"epsilons": [0.0]}, "epsilon must be a number > 0"),
        ({"metrics": ["accuracy"]}, "metrics must be among"),
        ({"repeats": 0}, "repeats of 'iris' must be >= 1"),
        ({"jobs": 0}, "jobs must be >= 1"),
        ({"silos": 0}, "silos must be"),
        ({"datasets": ["iris", "iris"]}, "different names"),
    ],
)
def test_mistakes_are_found_before_the_first_run(
    change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "run_plan", None)
    settings: dict[str, Any] = {
        "datasets": ["iris"],
        "methods": ["fastlloyd"],
        "epsilons": [1.0],
        **change,
    }
    settings["datasets"] = [load(name) for name in settings["datasets"]]
    with pytest.raises(PlanError, match=message):
        compare(**settings)


def test_too_many_clusters_are_found_before_the_first_run() -> None:
    with pytest.raises(PlanError, match="n_clusters must be at most"):
        compare([load("iris", n_clusters=1000)], ["lloyd"], [1.0])


def test_preset_is_the_only_way_to_the_conventions_of_the_papers(blobs: Dataset) -> None:
    public = load("iris")
    for data, post, delta in ((blobs, "none", 1 / (400 * math.log(400))), (public, None, 1e-6)):
        for method in METHODS:
            plan = plan_of(data, method, 1.0, 7)
            assert plan.task.public_seed == 7  # type: ignore[attr-defined]
            if method in ("sulloyd", "glloyd"):
                assert plan.task.post == (post or "truncate")  # type: ignore[attr-defined]
            if plan.task.mechanism == "laplace":
                assert plan.budget.delta == 0  # type: ignore[union-attr]  # pure
            elif method != "lloyd":
                assert plan.budget.delta == pytest.approx(delta)  # type: ignore[union-attr]


def test_command_writes_stamped_tables_and_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["--epsilons", "0.5,1", "--datasets", "iris", "--repeats", "2", "--out", str(out)]
    assert _run(parse(*words)) == 0
    names = {path.name for path in out.iterdir()}
    assert names == {"runs.csv", "summary.csv", "nicv-iris.png", "nicv-iris.svg"}
    assert STAMP in (out / "nicv-iris.svg").read_text()
    assert STAMP.encode() in (out / "nicv-iris.png").read_bytes()
    assert STAMP in capsys.readouterr().out
    rows = load_tidy(out / "runs.csv")
    assert len(rows) == 2 * (1 + (len(USUAL_METHODS) - 1) * 2)

    assert _run(parse(*words, "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["stamp"] == STAMP
    assert load_tidy(out / "runs.csv") == rows

    assert _run(parse(*words, "--quiet")) == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_command_says_what_the_preset_is_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--epsilons", "1", "--datasets", "iris", "--repeats", "1", "--methods", "fastlloyd"]
    words += ["--preset", "fastlloyd-paper", "--out", str(tmp_path)]
    assert _run(parse(*words, "--json")) == 0
    assert "published figures only" in json.loads(capsys.readouterr().out)["preset"]
    assert _run(parse(*words)) == 0
    assert "published figures only" in " ".join(capsys.readouterr().out.split())
    assert load_tidy(tmp_path / "runs.csv")[0]["convention"] == "fastlloyd-paper"


def test_command_fails_when_a_bar_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--epsilons", "1", "--datasets", "iris", "--repeats", "2", "--methods", "fastlloyd"]
    words += ["--preset", "fastlloyd-paper", "--check-reference", "--out", str(tmp_path)]
    monkeypatch.setattr(module, "check_means", lambda means: check_means({}))
    assert _run(parse(*words)) == 1
    with pytest.raises(PlanError, match="add --preset"):
        _run(parse(*[w for w in words if w not in ("--preset", "fastlloyd-paper")]))
    capsys.readouterr()


@pytest.mark.parametrize("option", ["--k-for", "--repeats-for", "--nominal-n-for"])
def test_options_for_a_data_set_that_is_not_compared_are_refused(
    option: str, tmp_path: Path
) -> None:
    words = ["--epsilons", "1", "--datasets", "iris", option, "wine=3", "--out", str(tmp_path)]
    with pytest.raises(PlanError, match="'wine', which is not among"):
        _run(parse(*words))


def test_options_for_one_data_set_are_lists_of_pairs(tmp_path: Path) -> None:
    args = parse("--epsilons", "1", "--k-for", "a=3,b=4", "--out", str(tmp_path))
    assert args.k_for == {"a": 3, "b": 4}
    with pytest.raises(SystemExit):
        parse("--epsilons", "1", "--k-for", "a", "--out", str(tmp_path))


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    words = ["--epsilons", "1", "--datasets", "iris,iris", "--out", str(tmp_path)]
    with pytest.raises(PlanError, match="different names"):
        _run(parse(*words))
