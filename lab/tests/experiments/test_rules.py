"""The experiment on association rules: its tables, its truth, and what it shows."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import pytest

from cloister.testing import SimulatedNoise
from cloister_lab.experiments import rules
from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.records import TidyRow
from cloister_lab.experiments.rules import (
    METHODS,
    exact_supports,
    frequent,
    made_up_table,
    measure,
)
from cloister_lab.experiments.run import Settings


@pytest.fixture(scope="module")
def rows() -> list[TidyRow]:
    """Rows of seeded noise: the bars below are about the method, not about a rare draw."""
    seeds = count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "DiscreteNoise", lambda: SimulatedNoise(next(seeds)))
        return [
            row for m in METHODS for r in (0, 1) for row in measure("made-up", None, m, r, (1.0,))
        ]


def test_truth_is_all_frequent_sets() -> None:
    held = made_up_table().held
    truth = frequent("made-up", None)
    rng = np.random.default_rng(0)
    for size in (1, 2, 3):
        assert len(truth[size]) > 5
        sets = np.array(sorted(truth[size]), dtype=float)
        assert (exact_supports(held, sets) >= 0.01).all()
        other = np.sort(np.array([rng.choice(12, size, replace=False) for _ in range(200)]))
        for row, support in zip(other.tolist(), exact_supports(held, other), strict=True):
            assert (tuple(row) in truth[size]) == (support >= 0.01)


def test_intervals_cover_what_was_counted_and_most_sets_are_found(rows: list[TidyRow]) -> None:
    """Over 1150 to 2150 sets 95 % has a deviation below 0.0065; six of it are allowed."""
    for row in rows:
        assert abs(float(row["covers"] or 0) - 0.95) < 0.039, row
        assert float(row["f1"] or 0) > (0.5 if "truncated" in str(row["method"]) else 0.82), row
        assert (row["f1_triples"] is None) == (row["method"] != "sizes 1-3")


def test_a_page_a_table_and_a_figure_are_made(rows: list[TidyRow], tmp_path: Path) -> None:
    page, table, figure = EXPERIMENTS["rules"].figures(rows, tmp_path)
    assert EXPERIMENTS["rules"] is EXPERIMENTS["rules"]
    text = page.read_text()
    assert text.count("| made-up |") == len(METHODS)
    assert "cloister experiments run rules" in text
    assert len(table.read_text().splitlines()) == 1 + len(METHODS)
    assert figure.stat().st_size > 1000


def test_groceries_are_asked_for_where_they_are(tmp_path: Path) -> None:
    assert {u.key.split()[0] for u in EXPERIMENTS["rules"].units(Settings(tmp_path))} == {
        "name=made-up"
    }
    (tmp_path / "groceries.txt.gz").touch()
    found = EXPERIMENTS["rules"].units(Settings(tmp_path, full=True, data_dir=tmp_path))
    assert len(found) == 2 * 20 * len(METHODS)
    assert found[0].key.startswith("name=groceries")
