"""``cloister export``: the columns of numbers and their scripts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloister.app.report.notebook import release_frame
from cloister.cli.export import _LABELS, _scripts, _with_years
from cloister.core.display import DATE, Table, between


def test_every_column_of_released_numbers_has_a_label() -> None:
    """A column without one would stop the export of a result that is paid."""
    margin = between(1.0, 0.5, 1.5, population=(0.0, 2.0))
    table = Table("t", ("", "value", ""), (("a", margin, "interval not valid"),))
    columns = list(release_frame([table]).reset_index().columns)
    assert {"mark", "population_high"} < set(columns)
    assert {*columns, "day"} == set(_LABELS)
    assert "mark :$200." in _scripts(columns)["numbers.sas"]


def test_a_date_among_numbers_leaves_them_numbers() -> None:
    """Software for statistics makes texts of a column of numbers with one date."""
    day = replace(between(2021.5, 2021.0, 2022.0), unit=DATE)
    table = Table("t", ("", "mean"), (("a", between(1.0, 0.5, 1.5)), ("planted", day)))
    frame = _with_years(release_frame([table]).reset_index())
    assert frame["value"].tolist() == pytest.approx([1.0, 2021.5], abs=2e-3)
    assert frame["high"].tolist() == [1.5, 2022.0]
    assert frame["day"].tolist() == ["", "2021-07-02"]
    assert "day :$200." in _scripts(list(frame.columns))["numbers.sas"]
