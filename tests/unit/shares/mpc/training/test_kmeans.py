"""k-means on shares: right, padded, empty clusters, and what one record adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cloister.core.errors import DataError, PlanError
from cloister.shares.mpc import combine, decode, run_here
from cloister.shares.mpc.opening import NoiseOnShares
from cloister.shares.mpc.training import KMeansOnShares

STARTS = ((1.0, 9.0), (9.0, 1.0), (2.0, 2.0), (9.9, 9.9), (0.1, 0.1))
MODEL = KMeansOnShares(
    owners=("north", "south", "west"),
    rows=60,
    low=(0.0, 0.0),
    high=(10.0, 10.0),
    centres=STARTS,
    iterations=3,
)


def records() -> list[NDArray[np.float64]]:
    """Three blobs, far from the last two starts."""
    draw = np.random.default_rng(0)
    blobs = np.array([[2.0, 8.0], [7.0, 3.0], [4.0, 4.0]])
    X = blobs[draw.integers(3, size=150)] + draw.normal(0, 0.6, (150, 2))
    return np.split(X, [60, 100])


def trained(
    model: KMeansOnShares, tables: Sequence[NDArray[np.uint64]], **options: Any
) -> NDArray[np.float64]:
    (first, second), _ = run_here(
        lambda server, *shares: model.run(server, dict(zip(model.owners, shares, strict=True))),
        *tables,
        timeout=20,
        **options,
    )
    return model.model(decode(combine(first["centres"], second["centres"])))


def in_the_clear(model: KMeansOnShares) -> NDArray[np.float64]:
    X, centres = np.concatenate(records()), np.array(model.centres)
    for _ in range(model.iterations):
        label = ((X[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        for j in set(label.tolist()):
            centres[j] = X[label == j].mean(axis=0)
    return centres


def test_clustering_on_shares_is_clustering_in_the_clear_and_empty_clusters_stay() -> None:
    found, clear = trained(MODEL, [MODEL.table(X) for X in records()]), in_the_clear(MODEL)
    assert np.abs(found - clear).max() < 1e-3
    assert np.abs(found[3:] - np.array(STARTS[3:])).max() < 1e-3
    X = np.concatenate(records())
    nearest = [((X[:, None] - c) ** 2).sum(axis=2).argmin(axis=1) for c in (found, clear)]
    assert (nearest[0] == nearest[1]).all()


def test_rows_that_are_not_there_change_nothing_whatever_lies_in_them() -> None:
    tables = [MODEL.table(X) for X in records()]
    draw = np.random.default_rng(3)
    for table in tables:
        missing = table[:, -1] == 0
        assert not table[missing].any()
        shape = (int(missing.sum()), 2)
        table[missing, :-1] = draw.integers(0, 2**64, size=shape, dtype=np.uint64)
    assert np.abs(trained(MODEL, tables) - in_the_clear(MODEL)).max() < 1e-3


def test_no_records_at_all_leave_the_public_start() -> None:
    tables = [MODEL.table(np.zeros((0, 2))) for _ in MODEL.owners]
    assert np.abs(trained(MODEL, tables) - np.array(STARTS)).max() < 1e-3


def test_a_single_cluster_has_the_mean() -> None:
    model = replace(MODEL, centres=((5.0, 5.0),))
    found = trained(model, [model.table(X) for X in records()])
    assert np.abs(found - np.concatenate(records()).mean(axis=0)).max() < 1e-3


class Fixed:
    """Noise that says what it was asked for, and gives what it is told."""

    label = "a test"

    def __init__(self, words: Sequence[int]) -> None:
        self.words = list(words)
        self.asked: list[tuple[str, int, int]] = []

    def draw(self, kind: str, scale: int, size: int) -> NDArray[np.int64]:
        self.asked.append((kind, scale, size))
        return np.full(size, self.words[len(self.asked) % len(self.words)], np.int64)


def test_every_iteration_adds_the_noise_of_both_servers_to_sums_and_counts() -> None:
    """Both add one record's worth at the box's corner to every cluster, in one iteration."""
    model = replace(MODEL, epsilon=50.0, iterations=1)
    noise = Fixed([3 << 16]), Fixed([-2 << 16])
    found = trained(model, [model.table(X) for X in records()], noise=noise)
    X = np.concatenate(records())
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
        centres = trained(model, [model.table([row])], noise=noise)
        assert (centres >= 0).all()
        assert (centres <= 10).all()
    assert model.noise is not None
    assert len(found) == 12
    assert max(found) == model.noise.record_squared
    assert min(found) > 0


@pytest.mark.parametrize(
    "change",
    [
        {"centres": ()},
        {"centres": ((1.0,),)},
        {"iterations": 0},
        {"rows": 1 << 20},
        {"epsilon": -1.0},
        {"epsilon": 1e-9},
        {"owners": ("a", "a")},
    ],
)
def test_bad_public_parameters_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        replace(MODEL, **change)


def test_an_owners_file_holds_features_only() -> None:
    X = records()[0]
    assert (MODEL.words("north", X) == MODEL.table(X)).all()
    assert MODEL.table(X).shape == MODEL.tables()["north"]


def test_bad_records_are_refused_before_they_are_shared() -> None:
    for bad in (np.zeros((61, 2)), np.zeros((3, 3)), [[np.nan, 1.0]]):
        with pytest.raises(DataError):
            MODEL.table(bad)


def test_the_opening_says_what_it_is_and_costs() -> None:
    assert (MODEL.opening, MODEL.event()) == ("exact", None)
    private = replace(MODEL, epsilon=2.0, max_rows=2, max_silos=3)
    assert private.noise is not None
    assert (private.opening, private.event()) == ("private", private.noise.event())
    assert (private.noise.records, private.noise.rounds) == (6, 3)


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
