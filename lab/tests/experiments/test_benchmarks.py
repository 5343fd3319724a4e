"""The benchmarks run, and sums that they compare agree; how fast, no test says."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from cloister.core.compiled import instruction_sets

ROOT = Path(__file__).parents[3]
SMALL = (3000, 2, 3), (1000, 9, 4)

CONFIGS = """
import os
from diffprivlib.mechanisms import GaussianAnalytic, Laplace

os.listdir("data")


class Params:
    def __init__(self, **given):
        self.k = given["k"]
"""
PARTIES = """
import numpy as np


class UnmaskedClient:
    def __init__(self, index, values, params):
        self.values = values / 65536

    def step(self, params):
        distances = ((self.values[:, None] - self.centroids) ** 2).sum(axis=2)
        labels = distances.argmin(axis=1)[distances.min(axis=1) <= params.max_dist**2]
        return None, np.bincount(labels, minlength=params.k), None
"""


@pytest.fixture(scope="module")
def run(benchmark_named: Callable[[str], ModuleType]) -> ModuleType:
    pytest.importorskip("opendp")
    return benchmark_named("run")


def test_every_instruction_set_has_a_row_of_each_loop(run: ModuleType) -> None:
    for section in (run.steps, run.clipped):
        found = [(row.what, row.by) for row in section(SMALL, repeats=1)]
        for isa in instruction_sets():
            assert sum(by == isa for _, by in found) == len(SMALL)
    assert {row.by for row in run.encode(SMALL[0], repeats=1)} == set(instruction_sets())


def test_a_sum_that_differs_has_no_row(run: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    one_off = run._clipped_before
    monkeypatch.setattr(run, "_clipped_before", lambda *given: one_off(*given) + 1)
    with pytest.raises(AssertionError, match="different integers"):
        list(run.clipped(SMALL, repeats=1))


def test_a_fit_that_stopped_early_is_no_peer(run: ModuleType) -> None:
    problem = run.Problem.of((40, 2, 2))
    few = replace(problem, X=np.repeat(problem.X[:2], 20, axis=0), centres=problem.X[:2])
    with pytest.raises(RuntimeError, match="scikit-learn made"):
        few.peers()["6"]()


@pytest.mark.parametrize(
    ("given", "ratio", "asked", "holds"),
    [
        (("x", 2.0, "ms", "y", 8.0, 3.0), 4, "at least 3 x", True),
        (("x", 2.0, "ms", "y", 8.0, 5.0), 4, "at least 5 x", False),
        (("x", 2.0, "MB", "y", 8.0, 0.2), 0.25, "at most 0.2 x", False),
        (("x", 2.0, "million rows/s", "y", 8.0, 0.2), 0.25, "at least 0.2 x", True),
        (("x", 2.0, "ms", "y", 8.0), 4, "", None),
        (("x", 2.0, "ms", "", None, None, 1.0), None, "at most 1 ms", False),
        (("x", 2.0, "million/s", "", None, None, 1.0), None, "at least 1 million/s", True),
    ],
)
def test_a_ratio_is_a_speed_but_of_sizes(
    run: ModuleType, given: tuple[object, ...], ratio: float, asked: str, holds: bool
) -> None:
    row = run.Result(*given)
    assert (row.ratio, row.asked, row.holds) == (ratio, asked, holds)


def test_files_and_later_passes_have_rows(run: ModuleType) -> None:
    assert len(list(run.files(rows=200, cached=500))) == 3


def test_the_published_code_is_found_by_its_names(run: ModuleType, tmp_path: Path) -> None:
    assert not list(run.published())
    (tmp_path / "configs.py").write_text(CONFIGS)
    (tmp_path / "parties.py").write_text(PARTIES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(sys, "modules", dict(sys.modules))
        (row,) = run.published(tmp_path, [(500, 2, 3)])
    assert row.bar == 60


def test_means_take_the_best_way_where_records_are_in_no_order(run: ModuleType) -> None:
    best = instruction_sets()[0]
    times = [{best: 2.0, "in order": 1.0}, {best: 8.0}]
    times = [dict.fromkeys(instruction_sets(), 2.0) | each for each in times]
    found = {row.by: row for row in run.means([each | {run.ITERATION: 16.0} for each in times])}
    assert found[best].ratio == pytest.approx(4.0)
    assert found["in order"].ratio == pytest.approx(16 / 8**0.5)


def test_round_and_samplers_are_measured_beside_their_peers(run: ModuleType) -> None:
    results = [
        *run.whole_round(silos=3, n_clusters=2, n_features=3, rounds=3),
        *run.samplers(size=1000, peer_size=10),
    ]
    assert all(result.value > 0 and result.peer and result.ratio > 0 for result in results)


def test_size_counts_every_dependency_once_and_not_the_large_five(run: ModuleType) -> None:
    (total,) = run.install()
    names = run._closure("cloister")
    assert {"cryptography", "pydantic-core", "numpy"} <= names
    assert "opendp" not in names  # of an extra
    assert total.value > 10


def test_imports_are_timed_in_a_fresh_process(
    run: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "IMPORTS", [("import json", "import csv", 1.0)])
    assert all(0 < row.value < 60_000 for row in run.imports(repeats=1))


def test_a_command_is_timed_beside_pandas(run: ModuleType) -> None:
    (found,) = run.commands(rows=50, repeats=1)
    assert 0 < found.peer_value < 60_000
    assert 0 < found.value < 60_000


@pytest.mark.filterwarnings("ignore::cloister.core.errors.UncountedWarning")
def test_jobs_that_compare_sums_are_timed_beside_jobs_that_do_not(run: ModuleType) -> None:
    checked = run.LocalStep.checked
    found = list(run.compared(sizes=(600,), repeats=1))
    assert [row.value > 0 and row.peer_value > 0 for row in found] == [True] * 3
    assert run.LocalStep.checked is checked


@pytest.mark.filterwarnings("ignore::cloister.core.errors.UncountedWarning")
def test_whole_fits_are_measured_beside_their_peers(
    run: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "MEMORY", run.MEMORY[:1])
    found = [*run.kmeans(shape=(500, 2, 3)), *run.memory(cells=8000)]
    assert [row.what.split(",")[0] for row in found] == ["fastlloyd", "auto", "fastlloyd"]
    assert all(row.value >= 0 and row.peer for row in found)


def test_a_missed_bar_is_the_exit_code(
    run: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "results.json"
    for bar, code in ((0.5, 0), (1.0, 1)):
        result = run.Result("x", 2.0, "ms", "y", 1.0, bar)
        monkeypatch.setattr(run, "SECTIONS", {"only": lambda found=result: iter([found])})
        assert run.main(["--out", str(out)]) == code
        assert json.loads(out.read_text())["results"][0]["holds"] is not code
    table = capsys.readouterr().out
    assert "| only: x | 2 ms | y | 1 ms | 0.5 x | at least 1 x | MISSED |" in table


def test_the_roofline_is_drawn(run: ModuleType, tmp_path: Path) -> None:
    roofs = [run.Result(what, 10.0, "GB/s") for what in (run.SPEED, run.NEAR, run.FAR)]
    ways = (instruction_sets()[0], "numpy")
    steps = [
        run.beside(run._name(shape), 0.01, "y", 0.02, by=way)
        for shape in run.SHAPES
        for way in ways
    ]
    rows = [replace(row, section="roofs") for row in roofs]
    run.draw([*rows, *(replace(row, section="steps") for row in steps)], tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text().count("d=784") == 1


def test_every_table_of_the_page_was_measured(run: ModuleType) -> None:
    spec = spec_from_file_location("hooks_of_the_manual", ROOT / "docs" / "_hooks.py")
    assert spec
    assert spec.loader
    hooks = module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = (ROOT / "docs" / "results" / "benchmarks.md").read_text(encoding="utf-8")
    asked = set(re.findall(r"\{\{ table: (\w+) \}\}", page))
    assert set(run.SECTIONS) - {"https", "roofs"} <= asked <= set(hooks.measured())
    assert "{{" not in hooks.on_page_markdown(page)
    # what the page says of them
    for row in json.loads((ROOT / "benchmarks" / "fits.json").read_text())["loops"]:
        assert min(row["taken"], row["alone"]) > 2 * row["memory"]


def test_loops_and_fits_have_rows_beside_memory_and_peers(
    benchmark_named: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits, out = benchmark_named("fits"), tmp_path / "fits.json"
    found = list(fits.loops(n=2000, copy=1_000_000))
    assert all(one.bytes and one.calls and one.memory > 0 for one in found)
    monkeypatch.setattr(fits, "loops", lambda _: found)
    assert fits.main(["--kinds", "naive Bayes", "--rows", "500", "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    assert len(document["loops"]) == 5
    assert [row["model"] for row in document["results"]] == [
        "naive Bayes, bins",
        "naive Bayes, normal",
    ]
    assert all(row["ratios"]["scikit-learn"] > 0 for row in document["results"])


def test_a_curve_says_where_it_is_straight(benchmark_named: Callable[[str], ModuleType]) -> None:
    curves = benchmark_named("curves")
    found = curves.curve("n", "d = 1", "row", (1, 10, 100), lambda n: (1e-9 * (n + 9), n))
    assert found.costs == pytest.approx((10, 1.9, 1.09))
    assert found.flat == (100, 100)
    assert curves.powers(2, 50, 5) == (2, 10, 50)
    assert curves.step(10, 2, 3) >= 0
    assert curves.federation(3, "group") > 0
