"""The price of a max cover, by exhaustion: every outcome of small ones, with and without a record.

docs/proofs/max_cover.md has the theorem; here it is held against exact probabilities, and against
versions that break its conditions and must break it.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from cloister.core.errors import PlanError
from cloister.core.randomness import SecretStream
from cloister.privacy import accounting
from cloister.privacy.events import (
    ComposedEvent,
    GaussianEvent,
    LaplaceEvent,
    RepeatedEvent,
)
from cloister.privacy.packages import read_event
from cloister_lab.curator import cover
from cloister_lab.curator.cover import (
    BallGrid,
    Cover,
    count_weights,
    draw_ball,
    draw_below,
    pick_centres,
)
from cloister_lab.events import CoverEvent, cover_delta, cover_pick_epsilon
from cloister_lab.tasks.projection import ONE

EPSILONS = (-1.0, -0.3, -0.05, 0.0, 0.02, 0.1, 0.3, 1.0, 3.0)
Balls = tuple[frozenset[int], ...]


def outcomes(
    records: frozenset[int], grids: tuple[Balls, ...], picks: int, pick_epsilon: float, reset: bool
) -> dict[tuple[int, ...], float]:
    """Return the probability of every sequence of picks, by definition."""
    found: dict[tuple[int, ...], float] = {}

    def go(left: frozenset[int], sequence: tuple[int, ...], chance: float) -> None:
        if len(sequence) == picks * len(grids):
            found[sequence] = found.get(sequence, 0.0) + chance
            return
        if reset and len(sequence) % picks == 0:
            left = records
        balls = grids[len(sequence) // picks]
        weights = [math.exp(pick_epsilon * len(ball & left) / 2) for ball in balls]
        for number, ball in enumerate(balls):
            go(left - ball, (*sequence, number), chance * weights[number] / sum(weights))

    go(records, (), 1.0)
    return found


def divergence(p: dict[tuple[int, ...], float], q: dict[tuple[int, ...], float], x: float) -> float:
    return math.fsum(max(0.0, p[s] - math.exp(x) * q.get(s, 0.0)) for s in p)


# Records 0..4; the one that comes and goes is 9. It is in some balls of each grid.
TOYS: dict[str, tuple[frozenset[int], tuple[Balls, ...]]] = {
    "in one ball of many": (
        frozenset({0, 1}),
        (tuple(map(frozenset, [{0, 9}, {0}, {1}, {1}, set(), set()])),) * 2,
    ),
    "alone in its ball": (frozenset({0}), (tuple(map(frozenset, [{9}, {0}, set()])),) * 2),
    "in every ball": (frozenset({0}), (tuple(map(frozenset, [{0, 9}, {9}, {9}])),) * 2),
    "grids that overlap": (
        frozenset({0, 1, 2, 3}),
        (
            tuple(map(frozenset, [{0, 1, 9}, {2}, {3}, set(), set()])),
            tuple(map(frozenset, [{0, 9}, {0, 1, 2, 9}, {3, 9}, set()])),
        ),
    ),
    "nobody else": (frozenset(), (tuple(map(frozenset, [{9}, set(), set(), set()])),) * 2),
}


@pytest.mark.parametrize("toy", TOYS)
@pytest.mark.parametrize("pick_epsilon", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("picks", [1, 2, 3])
def test_no_small_max_cover_costs_more_than_the_theorem_says(
    toy: str, pick_epsilon: float, picks: int
) -> None:
    others, grids = TOYS[toy]
    without = outcomes(others, grids, picks, pick_epsilon, reset=False)
    with_it = outcomes(others | {9}, grids, picks, pick_epsilon, reset=False)
    assert math.fsum(without.values()) == pytest.approx(1)
    for x in EPSILONS:
        bound = cover_delta(pick_epsilon, x, added=False)
        assert divergence(without, with_it, x) <= bound + 1e-12
        bound = cover_delta(pick_epsilon, x, added=True)
        assert divergence(with_it, without, x) <= bound + 1e-12


@pytest.mark.parametrize("toy", TOYS)
@pytest.mark.parametrize("delta", [0.3, 0.1, 0.01])
def test_the_simple_form_of_the_bound_holds_and_is_looser(toy: str, delta: float) -> None:
    """Adding costs half a pick; removing ``(e^(pick/2) - 1) ln(1/delta)`` but for delta."""
    others, grids = TOYS[toy]
    for pick_epsilon in (0.1, 1.0):
        without = outcomes(others, grids, 3, pick_epsilon, reset=False)
        with_it = outcomes(others | {9}, grids, 3, pick_epsilon, reset=False)
        assert max(with_it[s] / without[s] for s in without) <= math.exp(pick_epsilon / 2) + 1e-12
        simple = math.expm1(pick_epsilon / 2) * math.log(1 / delta)
        lost = math.fsum(without[s] for s in without if without[s] > with_it[s] * math.exp(simple))
        assert lost <= delta
        assert cover_delta(pick_epsilon, simple, added=False) < delta


@given(
    seed=st.integers(0, 2**32),
    pick_epsilon=st.floats(0.01, 4),
    picks=st.sampled_from([1, 2, 3]),
)
def test_random_balls_do_not_break_the_theorem(seed: int, pick_epsilon: float, picks: int) -> None:
    rng = np.random.default_rng(seed)
    others = frozenset(range(int(rng.integers(0, 5))))
    everyone = [*others, 9]

    def ball() -> frozenset[int]:
        return frozenset(r for r in everyone if rng.random() < 0.4)

    grids = tuple(tuple(ball() for _ in range(int(rng.integers(2, 6)))) for _ in range(2))
    without = outcomes(others, grids, picks, pick_epsilon, reset=False)
    with_it = outcomes(others | {9}, grids, picks, pick_epsilon, reset=False)
    for x in EPSILONS:
        assert divergence(without, with_it, x) <= (cover_delta(pick_epsilon, x, added=False) + 1e-9)
        assert divergence(with_it, without, x) <= cover_delta(pick_epsilon, x, added=True) + 1e-9


def test_records_that_come_back_for_the_next_radius_break_the_theorem() -> None:
    """So that the tests above can fail: covered records must stay covered."""
    others, grids = TOYS["nobody else"]
    without = outcomes(others, grids * 2, 2, 1.0, reset=True)
    with_it = outcomes(others | {9}, grids * 2, 2, 1.0, reset=True)
    assert max(with_it[s] / without[s] for s in without) > math.exp(0.5) + 0.1
    assert divergence(with_it, without, 0.5) > cover_delta(1.0, 0.5, added=True) + 1e-3


@pytest.mark.parametrize("x", [0.0, 0.1, 0.4])
def test_the_theorem_is_tight_for_many_picks_among_many_balls(x: float) -> None:
    pick_epsilon, balls, picks = 0.2, 2000, 60_000
    r = math.exp(pick_epsilon / 2)
    p, q = 1 / balls, r / (balls - 1 + r)  # to be covered by the next pick, without and with it
    t = np.arange(picks)
    covered = np.maximum(0, p * (1 - p) ** t - math.exp(x) * q * (1 - q) ** t).sum()
    never = max(0.0, (1 - p) ** picks - math.exp(x) * (1 - q) ** picks)
    bound = cover_delta(pick_epsilon, x, added=False)
    assert 0.98 * bound < covered + never <= bound


def test_the_accountant_gives_the_closed_form() -> None:
    for pick_epsilon in (0.02, 0.3):
        budget = accounting.epsilon(CoverEvent(pick_epsilon), 1e-6)
        assert cover_delta(pick_epsilon, budget, added=False) == pytest.approx(1e-6, rel=1e-3)
        assert cover_pick_epsilon(budget, 1e-6) == pytest.approx(pick_epsilon, rel=1e-3)
        # the price of the simple form, and of the paper
        simple = 2 * math.log1p(budget / math.log(1e6))
        paper = 2 * budget / (math.e * math.log(1e6))
        assert pick_epsilon > 1.2 * simple > 2.5 * paper


def test_the_simple_form_at_the_papers_size_is_the_known_number() -> None:
    delta = 1 / (2 * 60_000**1.5)
    assert 2 * math.log1p(0.1 / math.log(1 / delta)) == pytest.approx(0.011597, abs=2e-6)
    assert 2 * 0.1 / (math.e * math.log(1 / delta)) == pytest.approx(0.004279, abs=2e-6)


# --- Counting -------------------------------------------------------------------------------------


def brute(grid: BallGrid, points: np.ndarray) -> np.ndarray:
    """Return how many points each ball holds, by looking at every pair."""
    axis = np.arange(-grid.half, grid.half + 1) * grid.step
    centres = np.array(list(itertools.product(axis, repeat=grid.n_axes)))
    squared = ((points[:, None] - centres[None]) ** 2).sum(axis=2)
    return np.asarray((squared <= grid.radius**2).sum(axis=0))


def awkward(n_axes: int, grid: BallGrid, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centre = grid.centre(int(rng.integers(grid.size)))
    beside = np.zeros((2, n_axes), dtype=np.int64)
    beside[:, 0] = grid.radius, grid.radius + 1  # on the surface of a ball, and just outside
    return np.vstack(
        [
            rng.integers(-ONE, ONE + 1, (25, n_axes)),
            np.full((3, n_axes), ONE),
            np.full((2, n_axes), -ONE),
            np.zeros((4, n_axes)),
            np.clip(centre + beside, -ONE, ONE),
        ]
    ).astype(np.int64)


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize(("n_axes", "radius"), [(1, 1 / 16), (2, 1 / 4), (3, 1 / 2), (4, 1.0)])
def test_balls_are_counted_as_by_looking_at_every_pair(
    n_axes: int, radius: float, dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not dense:
        monkeypatch.setattr(cover, "_DENSE_CELLS", 0)
        monkeypatch.setattr(BallGrid, "breaks", 0.0)
    grid = BallGrid.covering(n_axes, radius)
    found = Cover(grid, awkward(n_axes, grid, 1))
    rng = np.random.default_rng(2)
    for _ in range(4):
        counts = brute(grid, found.points)
        histogram = np.bincount(counts)
        assert (found.histogram()[: len(histogram)] == histogram).all()
        assert found.histogram().sum() == grid.size == len(counts)
        for count in range(len(histogram)):
            places = [found.ball(count, rank) for rank in range(histogram[count])]
            assert places == np.flatnonzero(counts == count).tolist()
        found.remove(grid.centre(int(rng.integers(grid.size))))


@given(seed=st.integers(0, 2**32), n_axes=st.sampled_from([1, 2, 3]))
def test_a_record_is_in_a_ball_or_not_whoever_else_is_there(seed: int, n_axes: int) -> None:
    grid = BallGrid.covering(n_axes, [1 / 8, 1 / 2, 1.0][n_axes - 1])
    points = awkward(n_axes, grid, seed)

    def counts(of: np.ndarray) -> np.ndarray:
        found, total = Cover(grid, of), np.zeros(grid.size, dtype=int)
        for count, number in enumerate(found.histogram()):
            for rank in range(number):
                total[found.ball(count, rank)] = count
        return total

    row = seed % len(points)
    change = counts(points) - counts(np.delete(points, row, axis=0))
    assert (change == brute(grid, points[row : row + 1])).all()
    assert set(np.unique(change)) <= {0, 1}


def test_every_projected_record_is_in_a_ball_of_every_grid() -> None:
    for n_axes in (1, 2, 3):
        grid = BallGrid.covering(n_axes, 1 / 4)
        corners = np.array(list(itertools.product((-ONE, 0, ONE), repeat=n_axes)))
        assert all(brute(grid, corner[None]).sum() > 0 for corner in corners)


# --- Drawing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pick_epsilon", [0.01, 0.3, 5.0])
def test_probabilities_are_those_of_the_exponential_mechanism(pick_epsilon: float) -> None:
    grid = BallGrid.covering(2, 1 / 4)
    points = awkward(2, grid, 5)
    counts = brute(grid, points)
    exact = np.exp(pick_epsilon * (counts - counts.max()) / 2)
    exact /= exact.sum()
    histogram = Cover(grid, points).histogram()
    weights = count_weights(histogram, pick_epsilon)
    total = sum(weights)
    ours = np.array([float(Fraction(weights[c], int(histogram[c]) * total)) for c in counts])
    assert np.abs(ours - exact).max() < 1e-12
    assert np.abs(ours / exact - 1).max() < 1e-12


def chi_square(draw: Callable[[], int], probabilities: np.ndarray, draws: int) -> float:
    """Return the p-value of drawn numbers; rare ones are put together."""
    found = np.bincount([draw() for _ in range(draws)], minlength=len(probabilities))
    order = np.argsort(probabilities)
    groups = np.floor(np.cumsum(probabilities[order]) * draws / 20).astype(int)
    expected = np.bincount(groups, weights=probabilities[order]) * draws
    seen = np.bincount(groups, weights=found[order])
    used = expected > 5
    statistic = ((seen[used] - expected[used]) ** 2 / expected[used]).sum()
    return float(chi2.sf(statistic, max(1, used.sum() - 1)))


@pytest.mark.parametrize("dense", [True, False])
def test_draws_follow_the_exponential_mechanism(
    dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """False alarm: 2e-9. A sampler that ignores balls without records must be noticed."""
    if not dense:
        monkeypatch.setattr(cover, "_DENSE_CELLS", 0)
        monkeypatch.setattr(BallGrid, "breaks", 0.0)
    grid = BallGrid.covering(2, 1 / 4)
    points = np.random.default_rng(0).normal(0, ONE / 8, (12, 2)).astype(np.int64)
    counts = brute(grid, points)
    exact = np.exp(0.6 * counts / 2)
    exact /= exact.sum()
    found, rand = Cover(grid, points), SecretStream()
    drawn = [draw_ball(found, 0.6, rand) for _ in range(4000)]
    again = iter(drawn)
    assert chi_square(lambda: next(again), exact, len(drawn)) > 1e-9
    wrong = np.where(counts > 0, exact, 0.0) + 1e-12
    again = iter(drawn)
    assert chi_square(lambda: next(again), wrong / wrong.sum(), len(drawn)) < 1e-9


def test_draws_below_a_bound_are_uniform_and_use_no_remainder() -> None:
    """False alarm: 1e-9."""
    rand = SecretStream()
    found = np.bincount([draw_below(5, rand) for _ in range(5000)], minlength=5)
    assert chi2.sf(((found - 1000) ** 2 / 1000).sum(), 4) > 1e-9
    assert draw_below(1, rand) == 0
    big = 3 << 200
    assert all(0 <= draw_below(big, rand) < big for _ in range(50))
    # 3 bits of 0b111 are beyond the bound and must be drawn again, not folded back
    replies = iter([b"\xff", b"\x00"])
    assert draw_below(5, lambda size: next(replies)) == 0


def test_weights_keep_every_ball_possible() -> None:
    weights = count_weights([10**10, 0, 0, *[0] * 997, 1], 2.0)
    assert weights[0] == 10**10  # e^-1000 of the largest: one step, and not nothing
    assert weights[1] == 0
    assert weights[1000] == 1 << 160


@pytest.mark.parametrize("rows", [0, 1, 7, 500])
def test_the_number_of_picks_does_not_depend_on_the_records(rows: int) -> None:
    grids = [BallGrid.covering(2, radius) for radius in (1 / 8, 1 / 2, 1.0)]
    points = np.random.default_rng(0).integers(-ONE, ONE + 1, (rows, 2))
    picked = list(pick_centres(points, grids, 4, 50.0, SecretStream()))
    assert len(picked) == 12
    for number, centre in enumerate(picked):
        grid = grids[number // 4]
        assert (centre % grid.step == 0).all()
        assert (np.abs(centre) <= ONE).all()


def test_what_a_ball_held_is_gone_for_larger_balls() -> None:
    seen: list[int] = []

    class Watched(Cover):
        def __init__(self, grid: BallGrid, points: np.ndarray) -> None:
            seen.append(len(points))
            super().__init__(grid, points)

    here = np.zeros((300, 2), dtype=np.int64)
    there = np.full((200, 2), ONE // 2)
    grids = [BallGrid.covering(2, 1 / 16), BallGrid.covering(2, 1 / 8)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cover, "Cover", Watched)
        list(pick_centres(np.vstack([here, there]), grids, 1, 5.0, SecretStream()))
    assert seen == [500, 200]


# --- In the accountant ----------------------------------------------------------------------------


def test_a_cover_is_an_event_like_any_other() -> None:
    one = CoverEvent(0.1)
    assert read_event(json.loads(json.dumps(one.to_dict()))) == one
    both = ComposedEvent((one, RepeatedEvent(GaussianEvent(8.0), 2), LaplaceEvent(5.0)))
    assert read_event(json.loads(json.dumps(both.to_dict()))) == both
    for value in (0, -1, math.inf, math.nan, "1", True):
        with pytest.raises(PlanError, match="pick_epsilon"):
            CoverEvent(value)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="CoverEvent"):
        accounting.gdp_mu(one)


def test_composing_costs_more_than_each_part_and_less_than_their_sum() -> None:
    parts = [CoverEvent(0.1), GaussianEvent(8.0), LaplaceEvent(5.0)]
    alone = [accounting.epsilon(part, 1e-6) for part in parts]
    together = accounting.epsilon(ComposedEvent(tuple(parts)), 1e-6)
    assert max(alone) < together < sum(alone)
    twice = accounting.epsilon(RepeatedEvent(CoverEvent(0.1), 2), 1e-6)
    assert alone[0] < twice < 2 * alone[0]
    assert accounting.delta(ComposedEvent(tuple(parts)), together) == pytest.approx(1e-6, rel=1e-3)


@pytest.mark.parametrize("x", [0.01, 0.1, 0.5])
def test_two_covers_cost_what_their_divergence_is(x: float) -> None:
    """By integrating the pair of pairs: losses are ``a t - ln r`` with t of a Gamma law."""
    r = math.exp(0.15)
    t = np.linspace(0, 60, 400_001)
    without, with_it = t * np.exp(-t), r**2 * t * np.exp(-r * t)
    # two covers, both removed: the sum of the times is all that tells them apart
    exact = np.trapezoid(np.maximum(0, without - math.exp(x) * with_it), t)
    added = np.trapezoid(np.maximum(0, with_it - math.exp(x) * without), t)
    found = accounting.delta(RepeatedEvent(CoverEvent(0.3), 2), x)
    assert max(exact, added) - 1e-9 <= found <= max(exact, added) * 1.01 + 1e-9


def test_nothing_is_pure_about_a_cover_and_too_much_is_infinite() -> None:
    assert accounting.epsilon(CoverEvent(0.1), 0.0) == math.inf
    assert accounting.pure_epsilon(CoverEvent(0.1)) == math.inf
    assert accounting.epsilon(CoverEvent(5000.0), 1e-6) == math.inf
    assert accounting.delta(CoverEvent(5000.0), 1.0) == 1.0
