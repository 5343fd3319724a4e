"""Several curves in one picture: each has a name, bands, and an end where nothing is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cloister.app.report.notebook import release_axes, release_frame
from cloister.app.report.plots import alt_text, draw, figure_of
from cloister.app.text import as_table
from cloister.core.display import Curve, Estimate, between

PLACES = np.array([0.0, 1.0, 2.0])
VALUES = np.array([[1.0, 0.5, np.nan], [1.0, 0.75, 0.5]])


def curves(**more: Any) -> Curve:
    ends = VALUES - 0.125, VALUES + 0.125
    names: dict[str, Any] = {"axes": ("", "months"), "labels": (("old", "new"), ()), "unit": "part"}
    return Curve("Left", PLACES, Estimate(VALUES, *ends, **(names | more)))


def test_cells_are_empty_where_a_curve_is_not_shown() -> None:
    shown = [row[1:] for row in as_table(curves()).rows]
    assert [[bool(cell) for cell in row] for row in shown] == [
        [True, True],
        [True, True],
        [False, True],
    ]
    at_one = dict(curves().numbers())[1.0][0]
    assert at_one.numbers == between(0.5, 0.375, 0.625).numbers


def test_the_table_has_a_column_for_each_curve_and_for_its_population() -> None:
    table = as_table(curves())
    assert table.headings == ("months", "old", "new")
    assert table.rows[2][:2] == ("2", "")
    wide = as_table(curves(population=(VALUES - 0.25, VALUES + 0.25)))
    assert wide.headings == ("months", "old", "population 95 %", "new", "population 95 %")
    assert wide.rows[2][1:3] == ("", "")


def test_one_curve_is_shown_as_before() -> None:
    ends = (VALUES[1] + shift for shift in (0, -0.125, 0.125))
    one = Curve("Gap", PLACES, Estimate(*ends), chosen=1.0)
    table = as_table(one)
    assert table.headings == ("x", "value")
    assert table.rows[1][0] == "1 (chosen)"
    assert "legend" not in draw(one, "a")


def test_the_picture_names_the_curves_and_ends_the_one_that_ends() -> None:
    (axes,) = figure_of(curves(population=(VALUES - 0.25, VALUES + 0.25))).axes
    old, new = axes.lines
    assert np.isnan(old.get_ydata()[2])
    assert old.get_color() != new.get_color()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["old", "new"]
    assert len(axes.collections) == 4


def test_the_names_of_the_curves_stand_above_them() -> None:
    many = curves(labels=(tuple(f"a long name of a curve {i}" for i in range(2)), ()))
    for shown in (curves(), many):
        figure = figure_of(shown)
        figure.draw_without_rendering()
        (axes,) = figure.axes
        names = axes.get_legend().get_window_extent()
        assert names.y0 >= axes.get_window_extent().y1
        assert names.x1 <= figure.bbox.width
    assert "old, new" in alt_text(curves())


def test_a_notebook_has_each_number_of_each_curve() -> None:
    frame = release_frame([curves()])
    assert len(frame) == 5
    assert release_axes([curves()]).get_title() == "Left"


def test_a_curve_of_steps_holds_a_value_up_to_the_next_place() -> None:
    whole = curves(population=(VALUES - 0.25, VALUES + 0.25))
    (axes,) = figure_of(replace(whole, steps=True)).axes
    assert {line.get_drawstyle() for line in axes.lines} == {"steps-post"}
    band = axes.collections[2].get_paths()[0].vertices  # of the new drug, which is known throughout
    assert {0.875, 0.625} <= {round(y, 3) for x, y in band if x == 1}
    assert {line.get_drawstyle() for line in figure_of(whole).axes[0].lines} == {"default"}
