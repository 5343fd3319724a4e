"""Generated tables: what fixes them, what is averaged, and what the page says of a change."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cloister_lab.experiments import generated
from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.generated import (
    AUTO,
    FASTLLOYD,
    OPTIMUM,
    Blobs,
    apart,
    by_table,
    cells_closed,
    gaps_closed,
    over_tables,
    run_table,
)
from cloister_lab.experiments.records import MeanOf, Means, TidyRow, load_tidy, write_table
from cloister_lab.experiments.run import Settings, draw_experiment, run_experiment


def row(method: str, nicv: float, *, dataset: str = "a", repeat: int = 0) -> TidyRow:
    return {
        "dataset": dataset,
        "n_samples": 900,
        "n_features": 2,
        "n_clusters": 5,
        "method": method,
        "epsilon": None if method == OPTIMUM else 0.5,
        "repeat": repeat,
        "nicv": nicv,
    }


def table_of(dataset: str, *autos: float) -> list[TidyRow]:
    """Rows of a table whose FastLloyd has the mean 3 and whose optimum is 1."""
    return [
        row(OPTIMUM, 1.0, dataset=dataset),
        *(row(FASTLLOYD, cost, dataset=dataset) for cost in (2.0, 4.0)),
        *(row(AUTO, cost, dataset=dataset, repeat=i) for i, cost in enumerate(autos)),
    ]


def closed_of(*rows: TidyRow) -> list[object]:
    return [found["closed"] for found in gaps_closed(rows)]


@pytest.mark.parametrize("d", [2, 3])
def test_a_table_is_fixed_by_its_family_and_index_and_keeps_the_law(d: int) -> None:
    data, again, other = (Blobs(d, index).dataset() for index in (90, 90, 91))
    assert np.array_equal(data.records, again.records)
    assert len(data.records) != len(other.records)
    for index in range(90, 110):
        data = Blobs(d, index).dataset()
        n, k = len(data.records), data.n_clusters
        assert 200 <= n <= 20_000
        assert 2 <= k <= 40
        assert 25 * k <= n
        assert data.records.shape[1] == d
        assert data.delta == 1 / (n * math.log(n))


def test_the_gap_closed_is_one_at_the_optimum_and_is_cut() -> None:
    assert closed_of(*table_of("a", 1.0, 2.0, 3.0, 5.5, 0.5)) == [1.0, 0.5, 0.0, -1.0, 1.2]


def test_a_cell_without_a_gap_or_a_reference_has_none() -> None:
    near = [row(OPTIMUM, 1.0), row(FASTLLOYD, 1.019), row(AUTO, 1.5)]
    assert closed_of(*near) == []
    assert closed_of(row(FASTLLOYD, 3.0), row(AUTO, 1.5)) == []
    assert closed_of(row(OPTIMUM, 1.0), row(AUTO, 1.5)) == []


def test_errors_of_a_table_are_of_its_noise_and_of_a_family_between_its_tables() -> None:
    cells: Means = {
        ("a", 2, 0.5): MeanOf(0.2, 0.03, 9),
        ("a", 2, 1.0): MeanOf(0.6, 0.04, 8),
        ("b", 2, 0.5): MeanOf(0.8, 0.1, 9),
        ("c", 3, 0.5): MeanOf(0.9, 0.1, 9),
    }
    of_tables = by_table(cells, 2)
    assert (of_tables["a"].mean, of_tables["a"].error) == pytest.approx((0.4, 0.025))
    assert of_tables["a"].runs == 8
    assert of_tables["b"] == MeanOf(0.8, 0.1, 9)
    assert over_tables(cells, 2) == "0.600 ± 0.200"
    assert over_tables(cells, 2, 0.5, "+.2f") == "+0.50 ± 0.300"
    assert over_tables(cells, 3) == "0.900"
    assert over_tables(cells, 4) == "-"
    (change,) = apart(cells, {("b", 2, 0.5): MeanOf(0.5, 0.24, 7)}).values()
    assert (change.mean, change.error) == pytest.approx((0.3, 0.26))
    assert change.runs == 7


def test_a_run_has_simulated_noise_and_can_be_repeated() -> None:
    first, second = (run_table(Blobs(2, 90), AUTO, repeat) for repeat in (0, 1))
    assert first == run_table(Blobs(2, 90), AUTO, 0)
    assert [found["nicv"] for found in first] != [found["nicv"] for found in second]


def test_the_page_names_what_may_have_lost_and_stars_what_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = {"n_features": 2, "epsilon": 0.5, "runs": 10, "closed_error": 0.01}
    write_table(
        tmp_path / "before.csv",
        [{**common, "dataset": name, "closed": 0.5} for name in ("up", "down", "level", "wide")],
    )
    monkeypatch.setattr(generated, "_BEFORE", tmp_path / "before.csv")
    rows = [
        *table_of("up", 1.4, 1.42),
        *table_of("down", 2.2, 2.22),
        *table_of("level", 2.0, 2.0),
        *table_of("wide", 1.8, 2.2),
    ]
    files = EXPERIMENTS["generated"].figures(rows, tmp_path)
    assert [file.name for file in files] == ["generated.md", "generated.csv", "generated.png"]
    page = (tmp_path / "generated.md").read_text()
    assert "In 2 columns 1 of 4 tables are better, 1 of them by more" in page
    named = [line.split(" | ")[0] for line in page.splitlines() if "| 900 |" in line]
    assert named == ["| down*", "| wide"]
    assert "nan" not in page
    stored = {found["dataset"]: found for found in load_tidy(tmp_path / "generated.csv")}
    assert stored["up"]["closed"] == pytest.approx(0.795)
    assert stored["up"]["before"] == 0.5


def test_what_was_before_is_known_of_every_table_with_a_gap() -> None:
    before = {found["dataset"] for found in load_tidy(generated._BEFORE)}
    full = {unit.key.split()[0] for unit in generated.units(Settings(Path(), full=True))}
    assert {f"table={name}" for name in before} <= full
    assert len(before) > 0.9 * len(full)


def test_the_small_experiment_runs_and_draws(tmp_path: Path) -> None:
    settings = Settings(out=tmp_path, only=("blobs-2-120", "blobs-2-121"))
    rows = run_experiment(EXPERIMENTS["generated"], settings, quiet=True)
    assert len(rows) == 2 * (1 + 2 * 2 * 4)
    page, _, picture = draw_experiment(EXPERIMENTS["generated"], settings)
    assert "| 2 columns, now | 0." in page.read_text()
    assert picture.stat().st_size > 5000
    assert len(cells_closed(gaps_closed(rows))) > 4
