"""The table of ways to learn: every way runs, and what it measures is what it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cloister.tasks.supervised.fedavg import FedAvg
from cloister_lab.experiments import spu_kmeans
from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.credit import STAND_IN, split
from cloister_lab.experiments.learning import (
    RATE,
    STEPS,
    _clear,
    _design,
    _noised,
    _open_averaging,
    ways,
)
from cloister_lab.experiments.run import Settings, run_experiment


def test_the_small_version_makes_a_row_for_each_way_and_skips_shares(tmp_path: Path) -> None:
    rows = run_experiment(EXPERIMENTS["learning"], Settings(tmp_path), quiet=True)
    assert {row["method"] for row in rows} == set(ways(False))
    for row in rows:
        if str(row["method"]).startswith("full MPC"):
            assert "not made by the small version" in str(row["skipped"])
        else:
            assert row["skipped"] is None
            assert 0 <= float(str(row["accuracy"])) <= 1
    page, table = EXPERIMENTS["learning"].figures(rows, tmp_path)
    text = page.read_text("utf-8")
    assert "| in the clear | 3 | nobody | all records |" in text
    assert "Not measured: full MPC" in text
    assert len(table.read_text().splitlines()) == 1 + 2 * 6


def test_silos_that_average_after_each_step_descend_as_in_the_clear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import cloister_lab.experiments.learning as learning

    problem = split(STAND_IN, None, 0)
    rows = len(problem.train) // 3 * 3
    equal = replace(problem, silos=tuple(problem.train[i:rows:3] for i in range(3)))
    monkeypatch.setattr(learning, "_ROUNDS", STEPS)
    monkeypatch.setattr(learning, "_LOCAL_STEPS", 1)
    np.testing.assert_allclose(_open_averaging(equal).predicted, _clear(equal).predicted, atol=1e-9)


def test_bytes_are_those_of_the_frames() -> None:
    problem = split(STAND_IN, None, 0)
    few = _noised(problem, task=FedAvg, rounds=2)
    many = _noised(problem, task=FedAvg, rounds=4)
    words = 31 * 8  # up from each of three silos, and down to each
    around = 700  # bytes of a frame beside its words: names, digests, tags
    assert 2 * 6 * words < few.sent < 2 * 6 * (words + around)
    assert 1.8 < many.sent / few.sent < 2.2


def test_a_step_on_shares_is_a_step_in_the_clear() -> None:
    pytest.importorskip("jax")
    problem = split(STAND_IN, None, 0)
    X, Y = _design(problem, problem.train)
    start = np.zeros((X.shape[1], 1))
    expected = start - RATE * X.T @ (1 / (1 + np.exp(-X @ start)) - Y) / len(X)
    found = spu_kmeans.descend(np.hstack([X, Y]), start)
    np.testing.assert_allclose(found, expected, atol=1e-6)
