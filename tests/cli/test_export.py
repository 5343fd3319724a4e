"""``cloister export``: the columns of numbers and their scripts."""

from __future__ import annotations

from cloister.app.report.notebook import release_frame
from cloister.cli.export import _LABELS, _scripts
from cloister.core.display import Table, between


def test_every_column_of_released_numbers_has_a_label() -> None:
    """A column without one would stop the export of a result that is paid."""
    margin = between(1.0, 0.5, 1.5, population=(0.0, 2.0))
    table = Table("t", ("", "value", ""), (("a", margin, "interval not valid"),))
    columns = list(release_frame([table]).reset_index().columns)
    assert {"mark", "population_high"} < set(columns)
    assert set(columns) == set(_LABELS)
    assert "mark :$200." in _scripts(columns)["numbers.sas"]
