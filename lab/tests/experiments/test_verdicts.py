"""The comparison of clusters with k-means: the small experiment, and fits that are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.run import Settings, draw_experiment, run_experiment
from cloister_lab.experiments.verdicts import FAMILIES, Fit, Table, as_lines, nearest


def test_the_small_experiment_writes_its_page(tmp_path: Path) -> None:
    settings = Settings(out=tmp_path)
    rows = run_experiment(EXPERIMENTS["verdicts"], settings, quiet=True)
    assert len(rows) == 2 * 3 * len(FAMILIES)
    (page,) = draw_experiment(EXPERIMENTS["verdicts"], settings)
    assert "| auto | cloud | 2 and 3 | 3 | 0.00 | 0 | 0 | - | - |" in page.read_text("utf-8")


def test_only_coordinates_of_clusters_with_the_verdict_count() -> None:
    centres = np.zeros((2, 2))
    fit = Fit(centres, centres - 1, centres + 1, np.array([2.0, 0.0]), centres, centres)
    answer = np.array([[0.5, 1.5], [9.0, 9.0]])
    assert fit.holds(answer, 2.0).tolist() == [1.0, 0.0]
    assert fit.holds(answer, 0.0).tolist() == [0.0, 0.0]


def test_the_page_counts_hits_and_centres_outside_of_their_interval() -> None:
    row = {
        **{"family": "groups", "columns": 3, "index": 0, "method": "auto", "epsilon": 1.0},
        **{"clusters": 4, "determined": 2, "coordinates": 6, "fixed": 5.0, "optimum": 3.0},
        "outside": 1,
    }
    text = "\n".join(as_lines([row], "the command"))
    assert "| auto | groups | 2 and 3 | 1 | 0.50 | 1 | 6 | 0.833 | 0.500 |" in text
    assert "is 0.833. 1 coordinates" in text


@pytest.mark.parametrize("family", FAMILIES)
def test_a_table_is_fixed_by_its_name_and_fills_its_box(family: str) -> None:
    values, k = Table(family, 3, 5).values()
    assert 2 <= k <= 6
    assert 1500 <= len(values) < 6000
    assert (values.min(axis=0) == -1).all()
    assert (values.max(axis=0) == 1).all()
    assert (Table(family, 3, 5).values()[0] == values).all()
    other, _ = Table(family, 3, 5, look=1).values()
    assert other.shape != values.shape or (other != values).any()


def test_each_centre_gets_the_nearest_other() -> None:
    found = nearest(np.array([[0.0], [1.0]]), np.array([[0.9], [-0.2]]))
    assert found.tolist() == [[-0.2], [0.9]]
