"""``MaxCover`` at a curator and ``MaxCoverHistogram`` as a task; why the published one fails."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister import Budget, make_plan
from cloister.app.in_process import run_plan
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.hazmat.ring import Integers
from cloister.privacy import accounting
from cloister.privacy.events import GaussianEvent, LaplaceEvent, mechanism_counts
from cloister.privacy.noise import DiscreteNoise
from cloister.testing import SimulatedNoise, ZeroNoise, check_task, toy_schema, toy_task
from cloister_lab.curator import METHODS, CuratorMethod, MaxCover
from cloister_lab.curator.run import run_method
from cloister_lab.events import CoverEvent
from cloister_lab.metrics import nicv
from cloister_lab.tasks.max_cover import MaxCoverHistogram, _held
from cloister_lab.tasks.projection import ONE, Projection, nearest_point, usual_axes
from cloister_lab.tasks.recovery import Recovery

RNG = np.random.default_rng(0)
MIDDLES = np.array([[-0.6, -0.6], [0.6, 0.5], [0.6, -0.7], [-0.5, 0.6]])
TABLE = np.vstack([RNG.normal(m, 0.07, (1000, 2)) for m in MIDDLES]).clip(-1, 1)
RECORDS = np.rint(TABLE * ONE).astype(np.int32)


def method(k: int = 4, d: int = 2, epsilon: float = 2.0, n: int = 4000, **options: Any) -> MaxCover:
    return MaxCover.design(
        n_clusters=k, n_features=d, nominal_n=n, budget=Budget(epsilon, 1e-6), **options
    )


def wide(rows: int, d: int = 30, k: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return records in many columns and the middles of their groups."""
    rng = np.random.default_rng(seed)
    middles = rng.uniform(-0.8, 0.8, (k, d))
    table = np.vstack([rng.normal(m, 0.1, (rows // k, d)) for m in middles]).clip(-1, 1)
    return table, middles


# --- The published one depends on the number of records -------------------------------------------


def published_first_pick(points: list[Fraction], pick_epsilon: float) -> dict[Fraction, float]:
    """Return the law of the first candidate of [NCX21]_ Algorithm 1, on a line.

    With grid epsilon 1: ``r_1 = 1 / n`` and ``t_1 = r_1 / sqrt(1)``, n the *exact* number of
    records; a grid point covers the records within ``2 r_1``.
    """
    n = len(points)
    grid = [Fraction(i, n) for i in range(-n, n + 1)]
    covers = [sum(abs(p - g) <= Fraction(2, n) for p in points) for g in grid]
    weights = [math.exp(pick_epsilon * c / 2) for c in covers]
    return {g: w / sum(weights) for g, w in zip(grid, weights, strict=True)}


@pytest.mark.parametrize("n", [20, 101, 600])
@pytest.mark.parametrize("pick_epsilon", [0.004, 0.1])
def test_published_max_cover_tells_n_from_n_plus_one(n: int, pick_epsilon: float) -> None:
    """One more record moves the whole grid: what was likely becomes impossible, for any epsilon."""
    table = [Fraction(2 * i - n, n) for i in range(n)]
    law = published_first_pick(table, pick_epsilon)
    neighbour = published_first_pick([*table, Fraction(1, 3)], pick_epsilon)
    impossible = math.fsum(chance for g, chance in law.items() if g not in neighbour)
    assert impossible > 1 - 4 / n  # only the middle and both ends are on both grids
    assert law.keys() & neighbour.keys() == {Fraction(-1), Fraction(0), Fraction(1)}


def test_ours_draws_from_one_grid_whatever_the_records() -> None:
    one = method()
    assert [grid.size for grid in one.grids] == [grid.size for grid in method().grids]
    assert [grid.step for grid in one.grids] == [int(ONE / 2**i / 2**0.5) for i in range(5, -1, -1)]


class Watched:
    """Noise that writes down what it was asked for."""

    label = "watched"

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def draw(self, kind: Any, scale: int, size: int) -> Integers:
        self.calls.append((kind, scale, size))
        return SimulatedNoise(len(self.calls)).draw(kind, scale, size)


@pytest.mark.parametrize("d", [2, 30])
def test_noise_is_that_of_the_events_whatever_the_records(d: int) -> None:
    it = method(d=d)
    rng = np.random.default_rng(0)
    tables = [
        np.zeros((0, d), dtype=np.int32),
        np.full((1, d), ONE, dtype=np.int32),
        rng.integers(-ONE, ONE + 1, (200, d)).astype(np.int32),
        np.full((300, d), -ONE, dtype=np.int32),
    ]
    seen = []
    for table in tables:
        noise = Watched()
        centres = it.release(table, noise)
        assert centres.shape == (4, d)
        assert np.isfinite(centres).all()
        assert np.abs(centres).max() <= 1
        seen.append(noise.calls)
    assert all(calls == seen[0] for calls in seen)
    (law, scale, size), *rounds = seen[0]
    assert (law, size) == ("laplace", 24)
    assert scale >= it.count_multiplier * (1 << 16)
    recovery = Recovery.of(4, d, it.n_axes, 16, 0)
    multipliers = (it.mean_multiplier, it.lloyd_multiplier)
    for step, ((law, scale, size), multiplier) in enumerate(zip(rounds, multipliers, strict=True)):
        block = recovery.block(step)
        assert (law, size) == ("gaussian", block.size)
        assert scale >= multiplier * block.l2_squared**0.5


# --- Its price ------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5])
def test_all_parts_together_cost_the_budget_and_no_more(epsilon: float, delta: float) -> None:
    it = MaxCover.design(
        n_clusters=3, n_features=2, nominal_n=100, budget=Budget(epsilon, delta), public_seed=3
    )
    assert 0.99 * epsilon < accounting.epsilon(it.events(), delta) <= epsilon
    kinds = [type(event) for event in mechanism_counts(it.events())]
    assert sorted(kinds, key=str) == sorted([CoverEvent, GaussianEvent, LaplaceEvent], key=str)


def test_grids_too_fine_for_the_memory_are_left_out_by_the_public_number() -> None:
    assert method(d=5, n=100_000).n_radii == method(d=4, n=10**7).n_radii == 6
    assert method(d=5, n=100_001).n_radii == method(d=784, n=10**6).n_radii == 4
    assert method(d=5, n=100_001).grids[0].radius == ONE // 4


def test_more_picks_cost_nothing() -> None:
    assert method(k=2).events() == method(k=50).events()


@pytest.mark.parametrize("budget", [None, Budget(1.0, 0.0)])
def test_a_budget_without_delta_is_refused(budget: Budget | None) -> None:
    with pytest.raises(PlanError, match="delta above 0"):
        MaxCover.design(n_clusters=2, n_features=2, nominal_n=10, budget=budget)


@pytest.mark.parametrize(
    "change",
    [
        {"pick_epsilon": 0.0},
        {"mean_multiplier": math.inf},
        {"n_axes": 6},
        {"n_axes": 0},
        {"n_radii": 7},
    ],
)
def test_numbers_out_of_range_are_refused(change: dict[str, Any]) -> None:
    numbers: dict[str, Any] = {
        "n_clusters": 2,
        "n_features": 8,
        "n_axes": 3,
        "n_radii": 6,
        "pick_epsilon": 0.1,
        "count_multiplier": 5.0,
        "mean_multiplier": 5.0,
        "lloyd_multiplier": 5.0,
    }
    MaxCover(**numbers)
    with pytest.raises(PlanError):
        MaxCover(**{**numbers, **change})


# --- What it finds --------------------------------------------------------------------------------


def test_it_is_a_curators_method() -> None:
    assert isinstance(method(), CuratorMethod)
    assert METHODS["maxcover"] is MaxCover
    assert MaxCover.private
    assert "Gaussian noise, twice" in method().describe()


def test_clusters_are_found() -> None:
    centres = method().release(RECORDS, DiscreteNoise())
    assert nicv(TABLE, centres) < 1.3 * nicv(TABLE, MIDDLES)


def test_clusters_are_found_through_a_projection() -> None:
    table, middles = wide(8000)
    records = np.rint(table * ONE).astype(np.int32)
    it = method(d=30, epsilon=16.0, n=8000)
    assert it.n_axes == 4
    centres = it.release(records, DiscreteNoise())
    alone = nicv(table, table.mean(axis=0, keepdims=True))
    assert nicv(table, centres) < nicv(table, middles) + 0.5 * (alone - nicv(table, middles))


def test_ten_thousand_images_take_less_than_a_minute(shared_data: Path) -> None:
    images = np.load(shared_data / "mnist_t10k.npz")["X"].reshape(10_000, -1) / 127.5 - 1
    records = np.rint(images * ONE).astype(np.int32)
    it = method(k=10, d=784, epsilon=4.0, n=10_000)
    import time

    begun = time.process_time()  # other processes of the machine take nothing of it: 2 s
    centres = it.release(records, DiscreteNoise())
    assert time.process_time() - begun < 60
    one = nicv(images, images.mean(axis=0, keepdims=True))
    assert nicv(images, centres) < 0.9 * one


def test_a_run_gives_centres_in_the_units_of_the_schema() -> None:
    result = run_method(
        MaxCover, toy_schema(2), [RECORDS], epsilon=2.0, nominal_n=4000, n_clusters=4
    )
    assert nicv(TABLE, result.centres) < 1.3 * nicv(TABLE, MIDDLES)
    assert 1.9 < result.epsilon() <= 2.0


# --- The projection -------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), d=st.sampled_from([2, 5, 6, 40, 784]))
def test_a_record_is_projected_alike_whoever_else_is_there(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    projection = Projection(d, usual_axes(d, 10_000), 16, seed % 7)
    records = rng.integers(-ONE, ONE + 1, (50, d)).astype(np.int32)
    records[:2] = ONE
    together = projection(records)
    assert np.abs(together).max() <= ONE
    if not projection.is_identity:
        assert (together**2).sum(axis=1).max() <= ONE**2
    for row in (0, 7, 49):
        assert (projection(records[row : row + 1])[0] == together[row]).all()


def test_lengths_survive_the_projection_on_average() -> None:
    records = np.random.default_rng(0).integers(-ONE, ONE + 1, (300, 200)).astype(np.int32)
    ratios = []
    for seed in range(20):
        projected = Projection(200, 5, 16, seed)(records).astype(float)
        ratios.append(np.linalg.norm(projected, axis=1) / np.linalg.norm(records, axis=1))
    shrink = 1.75 * math.sqrt(200)
    assert np.mean(np.square(ratios)) == pytest.approx(1 / shrink**2, rel=0.1)


@pytest.mark.parametrize(
    ("d", "n", "axes"), [(1, 10, 1), (5, 10, 5), (6, 10, 1), (784, 10_000, 4), (100, 50_000, 5)]
)
def test_axes_are_those_of_the_published_rule(d: int, n: int, axes: int) -> None:
    assert usual_axes(d, n) == axes


def test_too_fine_a_grid_for_an_exact_projection_is_refused() -> None:
    with pytest.raises(PlanError, match="too fine"):
        Projection(200_000, 5, 24, 0)


def test_the_nearest_point_is_the_nearest() -> None:
    rng = np.random.default_rng(0)
    projected = rng.integers(-ONE, ONE + 1, (40_000, 3))
    points = rng.uniform(-1, 1, (9, 3))
    by_hand = ((projected[:, None] / ONE - points) ** 2).sum(axis=2)
    found = by_hand[np.arange(len(projected)), nearest_point(projected, points)]
    assert found == pytest.approx(by_hand.min(axis=1), abs=1e-4)


# --- The task -------------------------------------------------------------------------------------


def task(k: int = 3, d: int = 8, **options: Any) -> MaxCoverHistogram:
    return toy_task(
        MaxCoverHistogram,
        n_features=d,
        nominal_n=500,
        budget=Budget(2.0, 1e-6),
        n_clusters=k,
        **options,
    )


@pytest.mark.parametrize("frac_bits", [12, 16, 20])
def test_records_behind_a_projection_add_no_more_than_the_bounds(frac_bits: int) -> None:
    it = task(frac_bits=frac_bits)
    assert it.n_axes == 3
    one = 1 << frac_bits
    rng = np.random.default_rng(frac_bits)
    table = rng.integers(-one, one + 1, (12, 8)).astype(np.int32)
    table[:3], table[3], table[4] = one, -one, 0
    state = {name: round_to_grid(value, frac_bits) for name, value in it.start().items()}
    moved = {**state, "points": rng.integers(-one, one + 1, state["points"].shape)}
    moved["centres"] = table[-3:].astype(np.int64)
    check_task(it, [table], [moved])


@pytest.mark.parametrize("profile", ["group", "pairwise"])
def test_a_federation_finds_clusters(profile: Any) -> None:
    silos = ("a", "b", "c")
    plan = make_plan(
        MaxCoverHistogram,
        toy_schema(2),
        silos,
        budget=Budget(8.0, 1e-6),  # at 2, three times the noise loses a cluster in 1 run of 80
        nominal_n=4000,
        n_clusters=4,
        profile=profile,
        collusion=1 if profile == "pairwise" else 0,
    )
    parts = np.array_split(np.random.default_rng(0).permutation(RECORDS), 3)
    result = run_plan(plan, {s: [p] for s, p in zip(silos, parts, strict=True)}).results
    assert nicv(TABLE, result["centres"]) < 1.5 * nicv(TABLE, MIDDLES)
    assert result["sizes"].sum() == pytest.approx(4000, abs=200)


def test_without_noise_the_task_finds_clusters_behind_a_projection() -> None:
    table, middles = wide(4000, k=3)
    plan = make_plan(
        MaxCoverHistogram,
        toy_schema(30),
        ["a"],
        budget=Budget(2.0, 1e-6),
        nominal_n=4000,
        n_clusters=3,
    )
    records = np.rint(table * ONE).astype(np.int32)
    centres = run_plan(plan, {"a": [records]}, noise=ZeroNoise()).results["centres"]
    alone = nicv(table, table.mean(axis=0, keepdims=True))
    assert nicv(table, centres) < nicv(table, middles) + 0.6 * (alone - nicv(table, middles))


@pytest.mark.parametrize("shape", [(7,), (6, 6), (4, 4, 4)])
@pytest.mark.parametrize("reach", [0.1, 0.51, 0.72, 3.0])
def test_sums_over_balls_of_cells_are_exact(shape: tuple[int, ...], reach: float) -> None:
    cells = np.random.default_rng(0).integers(0, 10**6, shape).astype(float)
    side = shape[0]
    places = np.stack(np.meshgrid(*[np.arange(side) * 2 / side] * len(shape), indexing="ij"), -1)
    flat = places.reshape(-1, len(shape))
    near = ((flat[:, None] - flat) ** 2).sum(axis=2) <= reach**2
    assert (_held(cells, reach).ravel() == near @ cells.ravel()).all()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"fineness": 1}, "fineness"),
        ({"fineness": 7}, "fineness"),
        ({"n_axes": 5, "fineness": 4}, "2.20 cells"),
        ({"n_axes": 6}, "n_axes"),
        ({"n_clusters": 0}, "n_clusters"),
    ],
)
def test_a_task_out_of_range_is_refused(change: dict[str, Any], match: str) -> None:
    numbers = {"n_clusters": 2, "n_features": 8, "n_axes": 3, "fineness": 3, **change}
    with pytest.raises(PlanError, match=match):
        MaxCoverHistogram(**numbers)


@pytest.mark.parametrize(("n", "d", "fineness"), [(4000, 2, 6), (10_000, 784, 3), (10, 2, 2)])
def test_the_finest_grid_has_at_most_two_cells_for_a_record(n: int, d: int, fineness: int) -> None:
    it = toy_task(
        MaxCoverHistogram, n_features=d, nominal_n=n, budget=None, n_clusters=2, public_seed=1
    )
    assert it.fineness == fineness
