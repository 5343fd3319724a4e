"""k-means on shares: empty clusters, noise, and what one record adds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cloister.shares.mpc import combine, decode, run_here
from cloister.shares.mpc.opening import NoiseOnShares
from cloister.shares.mpc.training import KMeansOnShares

from .programs import CELLS, KMEANS, STARTS, Fixed, trained_centres

MODEL, X = KMEANS.model, np.concatenate([part for (part,) in KMEANS.parts])


def test_empty_clusters_stay() -> None:
    (found,) = trained_centres(MODEL, KMEANS.tables(MODEL))
    assert np.abs(found[3:] - np.array(STARTS[3:])).max() < 1e-3


def test_no_records_at_all_leave_the_public_start() -> None:
    tables = [MODEL.table(np.zeros((0, 2))) for _ in MODEL.owners]
    (found,) = trained_centres(MODEL, tables)
    assert np.abs(found - np.array(STARTS)).max() < 1e-3


def test_a_single_cluster_has_the_mean() -> None:
    model = replace(MODEL, centres=((5.0, 5.0),))
    (found,) = trained_centres(model, KMEANS.tables(model))
    assert np.abs(found - X.mean(axis=0)).max() < 1e-3


def test_cells_at_any_owner_give_the_centres_of_whole_rows() -> None:
    (whole,) = trained_centres(MODEL, KMEANS.tables(MODEL))
    (cells,) = trained_centres(CELLS.model, CELLS.tables(CELLS.model))
    assert all(np.isnan(part).any() for (part,) in CELLS.parts)
    assert np.abs(cells - whole).max() < 1e-3


def test_a_row_that_one_owner_leaves_out_counts_nowhere() -> None:
    model = replace(CELLS.model, centres=((5.0, 5.0),))
    tables = CELLS.tables(model)
    tables[1][:100] = 0
    (found,) = trained_centres(model, tables)
    assert np.abs(found - X[100:].mean(axis=0)).max() < 1e-3


def test_a_cell_that_nobody_has_is_the_middle_of_its_column() -> None:
    model = replace(CELLS.model, centres=((1.0, 1.0),), owners=("north", "south"), rows=4)
    tables = [model.table([[8.0, np.nan]] * 4), model.table([[np.nan, np.nan]] * 4)]
    (found,) = trained_centres(model, tables)
    assert np.abs(found - [8.0, 5.0]).max() < 1e-3


def test_every_iteration_adds_the_noise_of_both_servers_to_sums_and_counts() -> None:
    """Both add one record's worth at the box's corner to every cluster, in one iteration."""
    model = replace(MODEL, epsilon=50.0, iterations=1)
    noise = Fixed([3 << 16]), Fixed([-2 << 16])
    (found,) = trained_centres(model, KMEANS.tables(model), noise=noise)
    label = ((X[:, None] - np.array(STARTS)) ** 2).sum(axis=2).argmin(axis=1)
    for j in range(3):
        own = X[label == j]
        expected = (own.sum(axis=0) + 10.0) / (len(own) + 1)  # the corner (10, 10)
        assert np.abs(found[j] - expected).max() < 1e-3
    assert model.noise is not None
    for source in noise:
        assert source.asked == [("gaussian", model.noise.sigma, 5 * 3)]


def test_no_record_adds_more_than_the_stated_integer_and_a_corner_adds_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One record alone, through iterations that noise has thrown over the ring's edges."""
    model = replace(MODEL, owners=("north",), rows=1, epsilon=1.0, iterations=4)
    found: list[int] = []
    add = NoiseOnShares.add

    def seen(self: NoiseOnShares, server: Any, sums: NDArray[np.uint64]) -> NDArray[np.uint64]:
        (opened,) = server.open(sums)
        if server.index == 0:
            found.append(sum(int(v) ** 2 for v in opened.view(np.int64).ravel()))
        return add(self, server, sums)

    monkeypatch.setattr(NoiseOnShares, "add", seen)
    far = [(1 << 63) - 1, -(1 << 63), 5 << 40, -(7 << 40), 1 << 17, 3 << 62]
    for row in ([0.0, 0.0], [5.0, 99.0], [3.3, 4.4]):
        noise = Fixed([w if w < 1 << 63 else w - (1 << 64) for w in far]), Fixed([0])
        (centres,) = trained_centres(model, [model.table([row])], noise=noise)
        assert (centres >= 0).all()
        assert (centres <= 10).all()
    assert model.noise is not None
    assert len(found) == 12
    assert max(found) == model.noise.record_squared
    assert min(found) > 0


def test_noise_beyond_what_data_may_be_still_opens_the_public_start() -> None:
    # The threshold of counts is then above the limit of `encode`; the run would fail when charged.
    model = KMeansOnShares(
        owners=("a",),
        rows=100_000,
        low=(0.0, 0.0),
        high=(1.0, 1.0),
        centres=((0.2, 0.2), (0.8, 0.8)),
        iterations=1,
        epsilon=0.5,
        max_rows=1200,
    )
    assert model._least_count > 1 << 29
    (one, two), _ = run_here(
        lambda server, t: model.run(server, {"a": t}), np.zeros((4, 3), np.uint64)
    )
    assert np.abs(decode(combine(one["centres"], two["centres"]))).max() <= 1
