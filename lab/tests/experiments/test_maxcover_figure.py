"""Max cover's figure: every method at every k, honest columns, public numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.maxcover_figure import (
    EPSILON,
    LLOYD,
    METHODS,
    Gaussians,
    Images,
    objective,
)
from cloister_lab.experiments.run import (
    Settings,
    draw_experiment,
    run_experiment,
)


def test_the_small_version_has_every_method_at_every_k(tmp_path: Path) -> None:
    settings = Settings(tmp_path, repeats=1)
    rows = run_experiment(EXPERIMENTS["maxcover"], settings, quiet=True)
    assert {(row["method"], row["k"]) for row in rows} == {(m, k) for m in METHODS for k in (8, 64)}
    assert {row["n_samples"] for row in rows} == {2000}
    for row in rows:
        assert (row["epsilon"] is None) == (row["private"] == "no") == (row["method"] == LLOYD)
    files = draw_experiment(EXPERIMENTS["maxcover"], settings)
    assert {path.name for path in files} == {"maxcover.png", "maxcover.md", "maxcover.csv"}


def test_the_full_version_is_on_both_tables_where_the_images_are(shared_data: Path) -> None:
    without = EXPERIMENTS["maxcover"].units(Settings(Path("unused"), full=True))
    units = EXPERIMENTS["maxcover"].units(Settings(Path("unused"), full=True, data_dir=shared_data))
    assert len(units) == 2 * len(without) == 2 * 5 * 5 * len(METHODS)
    assert len({unit.key for unit in units}) == len(units)


def test_the_paper_s_sizes_run_for_who_names_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist_train.npz", X=np.zeros((20, 784)))
    asked = Settings(
        tmp_path, full=True, data_dir=tmp_path, only=("mnist_train", "gaussians_50000"), repeats=1
    )
    sources = {unit.work.keywords["source"] for unit in EXPERIMENTS["maxcover"].units(asked)}
    images, gaussians = sorted(sources, key=lambda source: source.name, reverse=True)
    assert (gaussians.name, gaussians.n_samples) == ("gaussians_50000", 50_000)
    assert images.dataset().nominal_n == 60_000
    unasked = EXPERIMENTS["maxcover"].units(replace(asked, only=()))
    assert {unit.work.keywords["source"].name for unit in unasked} == {"gaussians"}


def test_images_come_with_public_numbers(shared_data: Path) -> None:
    data = Images(shared_data).dataset()
    assert data.records.shape == (10_000, 784)
    assert data.convention == "public"
    assert data.nominal_n == 10_000
    assert data.values.min() == -1
    assert data.values.max() == 1


def test_gaussians_are_always_the_same_and_lie_in_the_box() -> None:
    one, two = Gaussians(640).dataset(), Gaussians(640).dataset()
    assert np.array_equal(one.records, two.records)
    assert np.abs(one.values).max() <= 1
    assert one.n_clusters == 64


def test_a_row_says_what_was_run() -> None:
    (row,) = objective(Gaussians(640), "balcan", 4, 0)
    assert row["epsilon"] == EPSILON
    assert row["delta"] == 1e-6
    assert row["k"] == 4
    assert row["dataset"] == "gaussians"
