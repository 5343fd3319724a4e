"""What the papers' figures and ours show is what their rows say."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cloister.core.errors import DataError
from cloister_lab.experiments import fastlloyd
from cloister_lab.experiments.all_methods import gaps_closed, run_method
from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.datasets import load
from cloister_lab.experiments.figures import draw_heatmaps, draw_panels
from cloister_lab.experiments.records import STAMP, TidyRow
from cloister_lab.experiments.run import Settings
from cloister_lab.experiments.sweep import EPSILONS, NO_HOUSE, Named, sweep, tables


def test_the_area_is_over_that_of_lloyd_on_the_same_mixture() -> None:
    same = {"dataset": "m", "n_features": 2, "n_clusters": 3, "repeat": 0}
    rows: list[TidyRow] = [
        {**same, "method": "lloyd", "epsilon": math.inf, "nicv": 2.0},
        *({**same, "method": "auto", "epsilon": e, "nicv": 2.0} for e in EPSILONS),
        *({**same, "method": "sulloyd", "epsilon": e, "nicv": 4 - 2 * e} for e in EPSILONS),
        {**same, "dataset": "no lloyd yet", "method": "auto", "epsilon": 1.0, "nicv": 9.0},
    ]
    ratios = {row["method"]: row["ratio"] for row in fastlloyd._areas(rows)}
    # from 0.1 to 1 the area of 4 - 2 e is 3.6 - 0.99
    assert ratios == {"auto": pytest.approx(1), "sulloyd": pytest.approx(2.61 / 1.8)}


def test_a_table_with_one_start_has_no_interval(tmp_path: Path) -> None:
    def rows(panel: str, table: str, starts: int) -> list[TidyRow]:
        return [
            {
                **{"panel": panel, "dataset": table, "n_features": 2, "n_clusters": 3},
                **{"method": "sulloyd", "epsilon": e, "nicv": 4.0 + repeat - e, "repeat": repeat},
            }
            for repeat in range(starts)
            for e in EPSILONS
        ]

    left, right = fastlloyd._PANELS
    lone = [row for table in ("a", "b", "c") for row in rows(right, table, 1)]
    table = fastlloyd.draw_areas([*rows(left, "twice", 2), *lone], tmp_path)[-1]
    with table.open(encoding="utf-8") as file:
        found = {row["panel"]: row for row in csv.DictReader(file) if row["panel"]}
    assert float(found[left]["low"]) < 1 < float(found[left]["high"])
    assert (found[right]["mean"], found[right]["low"], found[right]["high"]) == ("1.0", "", "")


def test_the_gap_closed_is_part_of_the_way_from_fastlloyd_to_the_optimum() -> None:
    def row(dataset: str, method: str, nicv: float | None) -> TidyRow:
        return {
            **{"dataset": dataset, "method": method, "epsilon": 1.0, "nicv": nicv},
            **{"optimum": 1.0, "seconds": None if nicv is None else 0.5},
        }

    rows = [
        *(row("a", "fastlloyd", 3.0), row("a", "fastlloyd", 5.0)),  # on average 3 to go
        *(row("a", "half", 2.5), row("a", "none", None)),
        *(row("near", "fastlloyd", 1.01), row("near", "half", 1.0)),
    ]
    found = {(r["dataset"], r["method"]): r["gap_closed"] for r in gaps_closed(rows)}
    assert found == {
        ("a", "fastlloyd"): 0.0,
        ("a", "half"): 0.5,
        ("near", "fastlloyd"): None,
        ("near", "half"): None,
    }


def test_a_table_that_a_method_refuses_is_a_row_with_the_reason(tmp_path: Path) -> None:
    (row,) = run_method(Named("digits"), "eugkm", [1.0], 0)
    assert row["nicv"] is None
    assert "64 columns" in str(row["refused"])
    (taken,) = run_method(Named("iris"), "fastlloyd", [1.0], 0)
    files = EXPERIMENTS["all-methods"].figures([row, taken], tmp_path)
    page = next(file for file in files if file.suffix == ".md")
    assert "- eugkm: digits" in page.read_text()


def test_every_figure_of_tables_says_that_house_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = []
    monkeypatch.setattr(
        fastlloyd, "draw_panels", lambda path, *_, note, **__: notes.append(note) or path
    )
    row: TidyRow = {
        **{"dataset": "iris", "method": "auto", "epsilon": 1.0, "nicv": 1.0, "repeat": 0},
        "empty_clusters": 0.0,
        **{"silhouette": 0.0, "davies_bouldin": math.inf, "centroid_mse": 1.0},
    }
    EXPERIMENTS["fastlloyd-fig2"].figures([row], tmp_path)
    assert notes == [NO_HOUSE] * 4


def test_units_have_different_keys_and_more_repeats_only_add(tmp_path: Path) -> None:
    for experiment in (
        EXPERIMENTS["fastlloyd-fig2"],
        EXPERIMENTS["fastlloyd-fig3"],
        EXPERIMENTS["fastlloyd-fig4"],
        EXPERIMENTS["fastlloyd-fig5"],
        EXPERIMENTS["all-methods"],
    ):
        for full in (False, True):
            few, many = (
                [u.key for u in experiment.units(Settings(tmp_path, full, repeats=r))]
                for r in (3, 6)
            )
            assert len(set(many)) == len(many)
            assert set(few) < set(many)


def test_tables_that_are_not_at_hand_or_not_asked_for_are_left_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "dots.npz", X=np.eye(4))
    settings = Settings(tmp_path, data_dir=tmp_path)
    assert [t.name for t in tables(("iris", "dots", "house"), settings)] == ["iris", "dots"]
    only = Settings(tmp_path, data_dir=tmp_path, only=("dots",))
    assert [t.name for t in tables(("iris", "dots"), only)] == ["dots"]


def test_options_reach_the_plan() -> None:
    # "none" leaves centres outside the box where there is more noise than data
    keep, fold = (
        sweep([Named("iris")], ["fastlloyd"], [0.01], 1, options={"post": post})[0]
        for post in ("none", "fold")
    )
    assert keep.key != fold.key
    (row,) = keep.work()
    (other,) = fold.work()
    assert row["post"] == "none"
    assert row["plan_digest"] != other["plan_digest"]


def test_an_archive_without_an_array_x_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "wrong.npz", Y=np.eye(4))
    (tmp_path / "broken.npz").write_bytes(b"no archive")
    for name in ("wrong", "broken"):
        with pytest.raises(DataError, match="must be a NumPy archive with an array X"):
            load(name, convention="fastlloyd-paper", data_dir=tmp_path, n_clusters=2)


def test_an_end_on_the_other_side_of_its_mean_by_rounding_is_drawn(tmp_path: Path) -> None:
    panels = {"iris": {"auto": [(1.0, 0.3, 0.1 + 0.2, 0.5), (2.0, 1.0, 0.5, 1.0)]}}
    assert panels["iris"]["auto"][0][2] > 0.3
    draw_panels(tmp_path / "panels.png", panels, title="t", x_label="x", y_label="y")


def test_small_figures_are_stamped(tmp_path: Path) -> None:
    none = math.nan, math.nan
    panels = {"iris": {"lloyd": [(math.inf, 1.0, *none)], "auto": [(1.0, 2.0, *none)]}}
    matrix = {"auto": np.array([[1.0, np.nan], [0.5, 20.0]])}
    labels = {"title": "t", "x_label": "x", "y_label": "y"}
    files = [
        draw_panels(tmp_path / "panels.png", panels, **labels),
        draw_heatmaps(tmp_path / "map.png", matrix, (1, 2), ("a", "b"), centre=1.0, **labels),
        draw_heatmaps(
            tmp_path / "none.png", {"x": matrix["auto"] * np.nan}, (1, 2), "ab", **labels
        ),
    ]
    for file in files:
        with Image.open(file) as image:
            assert image.info["Description"] == STAMP
            assert image.mode == "P"
