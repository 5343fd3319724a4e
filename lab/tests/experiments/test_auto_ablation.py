"""The ablation: each stand-in takes something away, and is gone when its run ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloister.tasks.clustering import auto_grid
from cloister_lab.experiments.auto_ablation import VARIANTS, WHOLE, instead, run_variant
from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.generated import AUTO, FASTLLOYD, OPTIMUM, Blobs, run_table
from cloister_lab.experiments.records import TidyRow
from cloister_lab.experiments.run import Settings

TABLE = Blobs(2, 100)  # beside those of the experiment


def costs(rows: list[TidyRow]) -> list[object]:
    return [row["nicv"] for row in rows]


def test_every_stand_in_matters_and_none_stays() -> None:
    whole = costs(run_table(TABLE, AUTO, 1))
    for variant in VARIANTS:
        rows = run_variant(TABLE, variant, 1)
        assert {row["method"] for row in rows} == {variant}
        assert (costs(rows) == whole) == (variant == WHOLE), variant
    assert costs(run_table(TABLE, AUTO, 1)) == whole


def test_a_stand_in_goes_when_its_run_fails() -> None:
    before = vars(auto_grid)["density"]
    with pytest.raises(TypeError), instead({"auto_grid.density": None}):
        run_table(TABLE, AUTO, 0)
    assert vars(auto_grid)["density"] is before


def test_a_name_that_the_package_no_longer_has_is_an_error() -> None:
    with pytest.raises(AttributeError), instead({"auto_grid.nothing": 0}):
        pass


def test_the_small_experiment_has_every_variant_and_fastlloyd() -> None:
    keys = [unit.key for unit in EXPERIMENTS["auto-ablation"].units(Settings(Path()))]
    assert len(set(keys)) == len(keys) == 2 * (1 + 2 * (1 + len(VARIANTS)))
    assert all(any(f"method={name} " in key for key in keys) for name in (FASTLLOYD, *VARIANTS))


def test_the_page_has_differences_over_the_same_repeats(tmp_path: Path) -> None:
    without = list(VARIANTS)[1]
    rows: list[TidyRow] = []
    for table, lost in (("a", 0.2), ("b", 0.4)):
        common: TidyRow = {"dataset": table, "n_features": 2, "epsilon": 0.5}
        rows.append({**common, "method": OPTIMUM, "repeat": 0, "nicv": 1.0, "epsilon": None})
        for repeat, cost in enumerate((1.2, 1.6)):
            of = {FASTLLOYD: 3.0, WHOLE: cost, without: cost + lost}
            rows += [
                {**common, "method": name, "repeat": repeat, "nicv": nicv}
                for name, nicv in of.items()
            ]
    (page,) = EXPERIMENTS["auto-ablation"].figures(rows, tmp_path)
    text = page.read_text()
    assert f"| {WHOLE} | 0.800 ± 0.000 |" in text
    assert f"| {without} | 0.650 ± 0.050 | -0.150 ± 0.050 |" in text
