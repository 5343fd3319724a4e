"""``eugkm`` and ``hybrid``: the grid, what is made of its counts, when a Lloyd round pays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.protocol.task import NoisyBlock
from cloister.testing import SimulatedNoise, ZeroNoise, toy_plan, toy_schema, toy_task
from cloister_lab.metrics import nicv
from cloister_lab.tasks.grid_synopsis import (
    MAX_CELLS,
    EUGkM,
    Hybrid,
    axis_cells,
    cell_middles,
    cells_of,
)

ONE = 1 << 16
PURE = Budget(1.0, 0.0)


def designed(kind: Any, d: int = 2, k: int = 3, n: int = 5000, **options: Any) -> Any:
    budget = options.pop("budget", PURE)
    return toy_task(kind, n_features=d, nominal_n=n, budget=budget, n_clusters=k, **options)


def test_the_grid_is_that_of_the_published_rule() -> None:
    # (N epsilon / 10)^(2 / (2 + d)) cells a column; for two columns sqrt(N epsilon / 10)
    assert designed(EUGkM).cells_per_axis == round((5000 / 10) ** 0.5) == 22
    assert designed(EUGkM, budget=Budget(0.1, 0.0)).cells_per_axis == round(50**0.5)
    assert designed(EUGkM, d=1).cells_per_axis == round(500 ** (2 / 3))
    assert designed(EUGkM, d=6, n=48842).cells_per_axis == 6  # 8 by the rule; 6 fit


def test_a_grid_has_a_cell_for_each_cluster_and_at_least_two_a_column() -> None:
    assert designed(EUGkM, n=10, k=10, d=1).cells_per_axis == 10
    assert designed(EUGkM, n=1, k=1, d=3).cells_per_axis == 2
    assert designed(EUGkM, n=20, k=100, d=2).cells_per_axis == 10


@pytest.mark.parametrize("kind", [EUGkM, Hybrid])
def test_many_columns_are_refused_and_the_way_out_is_named(kind: Any) -> None:
    assert designed(kind, d=16).cells_per_axis == 2
    with pytest.raises(PlanError, match=r"2\^17 cells.*fastlloyd or lshtree"):
        designed(kind, d=17)
    with pytest.raises(PlanError, match="at most 65536"):
        designed(kind, d=2, cells_per_axis=257)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"n_clusters": 0}, "n_clusters"),
        ({"cells_per_axis": 2.5}, "cells_per_axis"),
        ({"cells_per_axis": True}, "cells_per_axis"),
        ({"mechanism": "none"}, "mechanism"),
        ({"negatives": "keep"}, "negatives"),
        ({"public_seed": "x"}, "public_seed"),
    ],
)
def test_fields_are_checked(change: dict[str, Any], match: str) -> None:
    for kind, more in ((EUGkM, {}), (Hybrid, {"refine": True})):
        options: dict[str, Any] = {"n_clusters": 2, "n_features": 2, "cells_per_axis": 4, **more}
        with pytest.raises(PlanError, match=match):
            kind(**options | change)


def test_the_budget_is_needed_for_the_grid_only() -> None:
    with pytest.raises(PlanError, match="budget is needed"):
        designed(EUGkM, budget=None)
    assert designed(EUGkM, budget=None, cells_per_axis=5).n_cells == 25
    with pytest.raises(PlanError, match="refine"):
        Hybrid(n_clusters=1, n_features=1, cells_per_axis=2, refine=1)  # type: ignore[arg-type]


# --- Cells ----------------------------------------------------------------------------------------


@given(
    data=st.data(),
    d=st.integers(1, 4),
    m=st.integers(1, 7),
    frac_bits=st.sampled_from([4, 16, 24]),
)
def test_every_record_is_in_the_cell_around_it(
    data: st.DataObject, d: int, m: int, frac_bits: int
) -> None:
    one = 1 << frac_bits
    step = st.integers(-one, one)
    record = np.array([data.draw(st.lists(step, min_size=d, max_size=d))], dtype=np.int32)
    (cell,) = cells_of(record, m, frac_bits)
    middle = cell_middles(d, m)[cell]
    assert np.abs(record[0] / one - middle).max() <= 1 / m + 1e-12


def test_cells_by_hand() -> None:
    corners = np.array([[-ONE, -ONE], [-ONE, ONE], [ONE, -ONE], [ONE, ONE], [0, 0]], dtype=np.int32)
    assert cells_of(corners, 2, 16).tolist() == [0, 1, 2, 3, 3]  # a wall is the next cell's
    assert cell_middles(2, 2).tolist() == [[-0.5, -0.5], [-0.5, 0.5], [0.5, -0.5], [0.5, 0.5]]
    assert cells_of(np.array([[-1], [0]], dtype=np.int32), 2, 16).tolist() == [0, 1]


def test_axis_cells_never_exceed_the_cap() -> None:
    for d in range(1, 17):
        assert axis_cells(d, 1, 10**12, 1e-6) ** d <= MAX_CELLS


# --- What is made of the counts -------------------------------------------------------------------


def settled(it: EUGkM, counts: np.ndarray, std: float = 0.0) -> Any:
    state = {name: round_to_grid(v, it.frac_bits) for name, v in it.start().items()}
    words = np.round(counts * (1 << 16)).astype(np.int64)
    return it.update(0, state, {"counts": NoisyBlock(words, std * (1 << 16))})


def test_centres_are_means_of_weighted_cells() -> None:
    it = EUGkM(n_clusters=2, n_features=1, cells_per_axis=8)
    new = settled(it, np.array([10.0, 30, 0, 0, 0, 0, 20, 20]))
    order = np.argsort(new["centres"][:, 0])
    assert new["centres"][order, 0] == pytest.approx([-0.6875, 0.75])
    assert new["sizes"][order] == pytest.approx([40, 40])
    # no noise: the interval is half a cell either way
    assert (new["high"] - new["low"])[order, 0] == pytest.approx([0.25, 0.25])


def test_projection_forgets_what_zeroing_keeps() -> None:
    counts = np.array([100.0, 3, -3, 2, -2, 3, -3, 100])
    kept = settled(
        EUGkM(n_clusters=2, n_features=1, cells_per_axis=8, negatives="zero"), counts, 2.0
    )
    projected = settled(EUGkM(n_clusters=2, n_features=1, cells_per_axis=8), counts, 2.0)
    assert np.sort(projected["centres"][:, 0]) == pytest.approx([-0.875, 0.875], abs=0.01)
    assert np.abs(kept["centres"]).max() < 0.87
    assert projected["sizes"].sum() == pytest.approx(200)  # sizes are of the raw counts


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_intervals_hold_the_mean_of_the_records_at_least_so_often(mechanism: str) -> None:
    """600 centres x 2 coordinates: below 93 % has a chance of less than 1 % if 95 % is true."""
    rng = np.random.default_rng(0)
    table = rng.normal([[-0.5, -0.4]], 0.15, (2000, 2))
    table = np.vstack([table, rng.normal([[0.5, 0.4]], 0.15, (2000, 2))]).clip(-1, 1)
    steps = np.round(table * ONE).astype(np.int32)
    delta = 0.0 if mechanism == "laplace" else 1e-6
    plan = make_plan(
        EUGkM,
        toy_schema(2),
        ["a"],
        budget=Budget(0.5, delta),
        nominal_n=4000,
        n_clusters=2,
        mechanism=mechanism,
    )
    cells = cells_of(steps, plan.task.cells_per_axis, 16)  # type: ignore[attr-defined]
    points = cell_middles(2, plan.task.cells_per_axis)[cells]  # type: ignore[attr-defined]
    inside, sizes = [], []
    for seed in range(300):
        found = run_plan(plan, {"a": [steps]}, noise=SimulatedNoise(seed)).results
        near = ((points[:, None] - found["centres"]) ** 2).sum(axis=2).argmin(axis=1)
        for j in range(2):
            mean = table[near == j].mean(axis=0)
            inside += list((found["low"][j] <= mean) & (mean <= found["high"][j]))
            sizes.append(abs((near == j).sum() - found["sizes"][j]) <= found["size_half_width"][j])
    assert np.mean(inside) > 0.93
    assert 0.9 < np.mean(sizes) < 0.99


def test_more_noise_makes_wider_intervals_and_a_forecast_says_so() -> None:
    it = designed(EUGkM)
    grid = toy_schema(2).grid(16)
    small, large = (it.forecast(std * ONE, 5000, grid) for std in (1.0, 10.0))
    for name in ("half_width", "size_half_width"):
        assert (small[name] < large[name]).all()
    counts = np.random.default_rng(0).uniform(0, 30, it.n_cells)
    widths = [settled(it, counts, std) for std in (1.0, 10.0)]
    assert (widths[0]["high"] - widths[0]["low"] < widths[1]["high"] - widths[1]["low"]).all()


# --- Hybrid ---------------------------------------------------------------------------------------


def test_the_round_is_left_out_where_the_grid_is_expected_to_be_better() -> None:
    few = designed(Hybrid, d=2, k=15, n=5000)
    assert not few.refine
    assert few.rounds == 1
    assert few.cells_per_axis == designed(EUGkM, k=15).cells_per_axis  # the whole budget
    many = designed(Hybrid, d=6, k=3, n=48842, budget=Budget(0.1, 0.0))
    assert many.refine
    assert many.rounds == 2
    half = designed(EUGkM, d=6, k=3, n=48842, budget=Budget(0.05, 0.0))
    assert many.cells_per_axis == half.cells_per_axis


def test_the_choice_knows_public_numbers_only() -> None:
    one, two = (designed(Hybrid, d=6, n=n) for n in (48842, 48842))
    assert one == two


@pytest.mark.parametrize(("mechanism", "count"), [("laplace", 1.0), ("gaussian", 1.0)])
def test_the_second_round_is_one_of_lloyd(mechanism: str, count: float) -> None:
    it = Hybrid(
        n_clusters=1,
        n_features=2,
        cells_per_axis=4,
        refine=True,
        mechanism=mechanism,  # type: ignore[arg-type]
    )
    table = np.array([[ONE // 2, 0], [ONE // 4, ONE]], dtype=np.int32)
    plan = toy_plan(it, silos=1, budget=Budget(1e7, 0.0 if mechanism == "laplace" else 1e-6))
    result = run_plan(plan, {plan.silos[0]: [table]}, noise=ZeroNoise())
    assert result.results["centres"][0] == pytest.approx([0.375, 0.5], abs=1e-4)
    assert result.results["sizes"][0] == pytest.approx(2)
    # the cells' middles are not the mean
    assert result.history[1]["centres"][0] != pytest.approx([0.375, 0.5], abs=0.05)


@pytest.mark.parametrize("kind", [EUGkM, Hybrid])
@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_clusters_are_found(kind: Any, mechanism: str) -> None:
    rng = np.random.default_rng(0)
    middles = np.array([[-0.6, -0.6], [0.6, 0.5], [0.6, -0.7]])
    table = np.vstack([rng.normal(m, 0.07, (1000, 2)) for m in middles]).clip(-1, 1)
    steps = np.round(table * ONE).astype(np.int32)
    plan = make_plan(
        kind,
        toy_schema(2),
        ["a"],
        budget=Budget(2.0, 0.0 if mechanism == "laplace" else 1e-6),
        nominal_n=3000,
        n_clusters=3,
        mechanism=mechanism,
    )
    found = run_plan(plan, {"a": [steps]}, noise=SimulatedNoise(0)).results
    assert nicv(table, found["centres"]) < 1.3 * nicv(table, middles)
    assert np.sort(found["sizes"]) == pytest.approx([1000] * 3, abs=120)
