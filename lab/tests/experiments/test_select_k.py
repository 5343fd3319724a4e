"""The experiment on the chosen number of clusters: its small version and its page."""

from __future__ import annotations

from pathlib import Path

from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.run import (
    Settings,
    draw_experiment,
    run_experiment,
)
from cloister_lab.experiments.select_k import as_markdown


def test_the_small_experiment_writes_a_page_and_a_curve(tmp_path: Path) -> None:
    settings = Settings(out=tmp_path, repeats=2)
    rows = run_experiment(EXPERIMENTS["select-k"], settings, quiet=True)
    assert [row["repeat"] for row in rows] == [0, 1]
    for row in rows:
        assert 2 <= int(row["chosen"] or 0) <= 6
        assert len(str(row["gap"]).split()) == 5
    page, curve = draw_experiment(EXPERIMENTS["select-k"], settings)
    assert "| iris | 2..6 |" in page.read_text(encoding="utf-8")
    assert curve.read_text(encoding="utf-8").startswith("<svg")


def test_choices_are_counted() -> None:
    row = {"dataset": "a", "low": 2, "high": 4, "epsilon": 1.0, "usual": 3, "nicv": 0.5}
    rows = [
        {**row, "repeat": i, "chosen": k, "nicv_if_known": 0.25} for i, k in enumerate((3, 3, 4))
    ]
    text = as_markdown(rows, "the command")
    assert "| a | 2..4 | 1.0 | 3 | 3 (2), 4 (1) | 0.5 | 0.25 |" in text
