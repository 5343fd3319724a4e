"""The four Lloyd tasks: conformance numbers, what a record may add, and centres found by hand."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, hypot, isqrt, log, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.display import Bars, Heatmap, Scatter, Table
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid, round_to_grid
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.protocol.plan import Plan
from cloister.protocol.task import NoisyBlock, Task
from cloister.tasks import TASKS
from cloister.tasks.clustering.kmeans import (
    MAX_CENTRE_NORM,
    FastLloyd,
    GLloyd,
    Lloyd,
    SuLloyd,
    _absolute_payload,
    fold,
    keep,
    truncate,
)
from cloister.testing import SimulatedNoise, check_task, toy_plan, toy_task

ONE = 1 << 16
PRIVATE = [FastLloyd, GLloyd, SuLloyd]

# name: (N, d, k), rounds of FastLloyd, GLloyd, SuLloyd at epsilon 1, eta: conformance numbers
SETS = {
    "iris": ((150, 4, 3), (2, 2, 2), 1.216),
    "lsun": ((400, 2, 3), (2, 2, 2), 0.653),
    "s1": ((5000, 2, 15), (7, 2, 2), 0.292),
    "house": ((1837, 3, 3), (7, 3, 2), 0.961),
    "adult": ((48842, 6, 3), (7, 7, 7), 1.632),
    "wine": ((178, 13, 3), (2, 2, 2), 2.651),
    "breast": ((699, 9, 2), (2, 2, 2), 2.222),
    "yeast": ((1484, 8, 10), (2, 2, 2), 1.697),
    "mnist": ((10000, 784, 10), (2, 2, 2), 22.334),
    "birch2": ((25000, 2, 100), (3, 2, 2), 0.113),
}


def paper_budget(epsilon: float, n: int) -> Budget:
    """The papers' convention; too large a delta for a release."""
    return Budget(epsilon, 1 / (n * log(n)))


def published(task: type[Task]) -> dict[str, Any]:
    """Return the options of the method of the papers, which has no rounds after its own."""
    return {"estimate": False} if task is FastLloyd else {}


def designed(task: type[Task], name: str, epsilon: float, **options: Any) -> Any:
    n, d, k = SETS[name][0]
    given = {"n_clusters": k, **published(task), **options}
    return toy_task(task, n_features=d, nominal_n=n, budget=paper_budget(epsilon, n), **given)


# --- Conformance ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_rounds_at_epsilon_1_are_the_table(name: str) -> None:
    assert tuple(designed(task, name, 1.0).rounds for task in PRIVATE) == SETS[name][1]


@pytest.mark.parametrize("name", SETS)
def test_rounds_at_epsilon_a_tenth_are_the_table(name: str) -> None:
    expected = (7, 5, 2) if name == "adult" else (2, 2, 2)
    assert tuple(designed(task, name, 0.1).rounds for task in PRIVATE) == expected


@pytest.mark.parametrize("task", PRIVATE)
def test_rounds_of_units_with_several_records_are_those_of_more_noise(task: type[Task]) -> None:
    """Four records of a unit have four times the noise, as a quarter of the records has."""
    given = {"n_clusters": 3, "n_features": 2, "budget": Budget(1.0, 1e-6), **published(task)}
    numbers = [
        toy_task(task, nominal_n=n, group_size=group, **given).rounds
        for n, group in ((800, 1), (3200, 4), (3200, 1))
    ]
    assert numbers[0] == numbers[1] < numbers[2]


@pytest.mark.parametrize("name", SETS)
def test_radii_are_the_table(name: str) -> None:
    (_, d, _), _, eta = SETS[name]
    step = designed(FastLloyd, name, 1.0)
    assert step.radius == pytest.approx(eta, abs=6e-4)
    assert step.first_radius == pytest.approx(sqrt(d))
    constant = designed(FastLloyd, name, 1.0, radius_strategy="constant")
    assert constant.first_radius == constant.radius == step.radius


@pytest.mark.parametrize(
    ("task", "k", "d", "epsilon", "below"),
    [
        (FastLloyd, 3, 4, 1.0, 1377),
        (FastLloyd, 15, 2, 0.5, 5979),
        (GLloyd, 3, 4, 1.0, 2322),
        (SuLloyd, 3, 4, 1.0, 3818),
    ],
)
def test_rounds_jump_at_the_thresholds(
    task: type[Task], k: int, d: int, epsilon: float, below: int
) -> None:
    rounds = [
        toy_task(
            task,
            n_features=d,
            nominal_n=n,
            budget=paper_budget(epsilon, n),
            n_clusters=k,
            **published(task),
        ).rounds
        for n in (below, below + 1)
    ]
    assert rounds == [2, 3]


@pytest.mark.parametrize("task", [*PRIVATE, Lloyd])
@pytest.mark.parametrize("d", [1, 2, 9])
def test_a_radius_is_the_same_in_coordinates_and_in_squared_steps(task: Any, d: int) -> None:
    own = {"first_radius": 0.9 * sqrt(d), "radius": 0.5} if task is FastLloyd else {}
    planned = task(n_clusters=2, n_features=d, rounds=2, **own)
    for payload in map(planned.payload, range(2)):
        assert payload.radius_squared == pytest.approx((payload.radius * ONE) ** 2, rel=1e-4)
    if task is Lloyd:  # no record is left out, wherever its centre lies in the box
        assert payload.radius == 2 * sqrt(d)


@pytest.mark.parametrize(("d", "ratio"), [(2, 1.68179), (784, 7.48331)])
def test_the_split_between_sums_and_counts_is_the_table(d: int, ratio: float) -> None:
    task = FastLloyd(n_clusters=2, n_features=d, rounds=2, first_radius=1.0, radius=1.0)
    payload = task.payload(0)
    # one noise for all words: in counts it is 1 / count_weight, in sums eta / radius of it
    assert payload.radius * ONE / payload.count_weight == pytest.approx(ratio, rel=1e-4)
    sigma_r, sigma_c = (
        sqrt(payload.l2_squared) / (payload.radius * ONE),
        sqrt(payload.l2_squared) / payload.count_weight,
    )
    assert sigma_r**2 == pytest.approx(1 + 1 / sqrt(4 * d), rel=1e-4)
    assert sigma_c**2 == pytest.approx(1 + sqrt(4 * d), rel=1e-4)
    assert 1 / sigma_r**2 + 1 / sigma_c**2 == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("d", [1, 2, 6, 13])
def test_glloyd_splits_by_the_rederived_ratio(d: int) -> None:
    payload = GLloyd(n_clusters=2, n_features=d, rounds=2).payload(0)
    rho = 0.225
    sigma_s = sqrt(payload.l2_squared) / (sqrt(d) * ONE)
    sigma_c = sqrt(payload.l2_squared) / payload.count_weight
    assert sigma_c / sigma_s == pytest.approx(d**0.25 / sqrt(2 * rho), rel=1e-4)
    assert sigma_s == pytest.approx(sqrt(2 * rho + sqrt(d)) / d**0.25, rel=1e-4)


@pytest.mark.parametrize("d", [1, 2, 6, 13])
def test_sulloyd_splits_by_su_and_others(d: int) -> None:
    task = SuLloyd(n_clusters=2, n_features=d, rounds=4)
    plan = toy_plan(task, budget=Budget(1.0, 0.0))
    scale = plan.noise_scale(task.blocks(0)[0])
    epsilon_coordinate, epsilon_count = ONE / scale, task.payload(0).count_weight / scale
    assert d * epsilon_coordinate + epsilon_count == pytest.approx(1.0 / 4, rel=1e-4)
    ratio = (4 * d * 0.225**2) ** (1 / 3)
    assert epsilon_count / epsilon_coordinate == pytest.approx(ratio, rel=1e-4)


def test_noise_on_mnist_is_the_table() -> None:
    task = designed(FastLloyd, "mnist", 0.1)
    plan = toy_plan(task, budget=paper_budget(0.1, 10_000))
    first, later = (plan.noise_std(task.blocks(t)[0]) for t in (0, 1))
    assert first / ONE == pytest.approx(1220, abs=1)
    assert later / ONE == pytest.approx(973, abs=1)
    for t, std in ((0, first), (1, later)):
        assert std / task.payload(t).count_weight == pytest.approx(326, abs=1)


@pytest.mark.parametrize(
    ("value", "folded"),
    [(1.2, 0.8), (-1.2, -0.8), (3, -1), (3.3, -0.7), (5.1, 0.9), (0.5, 0.5), (-1, -1), (1, 1)],
)
def test_fold_is_the_table(value: float, folded: float) -> None:
    # the formula printed in the paper maps the in-range value 0.5 to -0.5
    assert fold(np.array([value]))[0] == pytest.approx(folded, abs=1e-12)


@given(st.floats(-1e6, 1e6), st.floats(-1, 1))
def test_fold_ends_inside_and_never_moves_away(value: float, inside: float) -> None:
    result = float(fold(np.array([value]))[0])
    assert -1 - 1e-9 <= result <= 1 + 1e-9
    assert abs(result - inside) <= abs(value - inside) + 1e-9
    assert float(fold(np.array([inside]))[0]) == pytest.approx(inside, abs=1e-15)


def test_truncate_and_keep() -> None:
    values = np.array([-99.0, -1.5, -1.0, 0.3, 1.0, 7.0, 99.0])
    assert truncate(values).tolist() == [-1, -1, -1, 0.3, 1, 1, 1]
    assert keep(values).tolist() == [-MAX_CENTRE_NORM, -1.5, -1, 0.3, 1, 7, MAX_CENTRE_NORM]


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@given(
    n=st.integers(500, 10**6),
    k=st.integers(1, 30),
    d=st.integers(1, 20),
    epsilon=st.floats(0.1, 5),
)
def test_rounds_keep_the_predicted_error_below_its_limit(
    mechanism: Any, n: int, k: int, d: int, epsilon: float
) -> None:
    budget = Budget(epsilon, 1e-6)
    task = toy_task(
        FastLloyd,
        n_features=d,
        nominal_n=n,
        budget=budget,
        n_clusters=k,
        mechanism=mechanism,
        estimate=False,
    )
    assert 2 <= task.rounds <= 7

    def error(rounds: int) -> float:
        """Mean squared error of a round: k^3 / (4 N^2) (eta^2 Var_C + 4 d Var_R)."""
        later = replace(task, rounds=rounds)
        payload, block = later.payload(1), later.blocks(1)[0]
        if mechanism == "gaussian":
            std = gaussian_noise_multiplier(epsilon, 1e-6) * sqrt(rounds * block.l2_squared)
        else:
            std = sqrt(2) * block.l1 * rounds / epsilon
        counts, sums = (std / payload.count_weight) ** 2, (std / ONE) ** 2
        return k**3 / (4 * n**2) * (task.radius**2 * counts + 4 * d * sums)

    if task.rounds > 2:
        assert error(task.rounds) <= 0.004 * 1.01
    if task.rounds < 7:
        assert error(task.rounds + 1) > 0.004 * 0.99


# --- The public number decides --------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1376, 1377, 1378, 1379])
def test_nominal_n_decides_and_not_the_number_of_rows(rows: int) -> None:
    from cloister import run_job
    from cloister.data import array_records
    from cloister.testing import ZeroNoise, toy_schema

    schema = toy_schema(4)
    X = np.random.default_rng(0).uniform(-1, 1, (rows, 4))
    plans: list[Plan] = [
        run_job(
            FastLloyd,
            schema,
            {"silo-0": array_records(X, schema.grid())},
            epsilon=1.0,
            delta=1 / (n * log(n)),
            nominal_n=n,
            noise=ZeroNoise(),
            n_clusters=3,
            estimate=False,
        ).plan
        for n in (1377, 1378)
    ]
    assert [plan.rounds for plan in plans] == [2, 3]
    assert [plan.length(0) for plan in plans] == [15, 15]


# --- Sensitivity ----------------------------------------------------------------------------------

tasks = st.one_of(
    st.builds(
        FastLloyd,
        n_clusters=st.integers(1, 3),
        n_features=st.just(2),
        rounds=st.just(2),
        first_radius=st.floats(0.01, 2 * sqrt(2)),
        radius=st.floats(0.01, 2 * sqrt(2)),
        mechanism=st.sampled_from(["gaussian", "laplace"]),
        post=st.sampled_from(["fold", "truncate", "none"]),
    ),
    st.builds(GLloyd, n_clusters=st.integers(1, 3), n_features=st.just(2), rounds=st.just(1)),
    st.builds(SuLloyd, n_clusters=st.integers(1, 3), n_features=st.just(2), rounds=st.just(1)),
    st.builds(Lloyd, n_clusters=st.integers(1, 3), n_features=st.just(2), rounds=st.just(1)),
)


def adversarial(task: Any, centres: np.ndarray) -> np.ndarray:
    """Corners, walls, duplicates, the centres, and points just in and just out of a radius."""
    one, d = 1 << task.frac_bits, task.n_features
    corners = np.array(np.meshgrid(*[[-one, one]] * d)).reshape(d, -1).T
    rows = [corners, np.zeros((2, d)), np.clip(centres, -one, one), corners[:1], corners[:1]]
    for t in range(task.rounds):
        steps = isqrt(task.payload(t).radius_squared)
        for move in (steps - 1, steps, steps + 1):
            for axis in range(d):
                rows += [
                    np.clip(centres + sign * move * np.eye(d)[axis], -one, one) for sign in (1, -1)
                ]
        diagonal = int(steps / sqrt(d))
        rows += [np.clip(centres + move, -one, one) for move in (diagonal, diagonal + 1)]
    return np.vstack(rows).astype(np.int32)


@given(tasks, st.integers(0, 2**32))
def test_no_record_changes_the_payload_by_more_than_its_bounds(task: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    one = 1 << task.frac_bits
    reach = MAX_CENTRE_NORM if task.post == "none" else 1
    centres = rng.integers(-reach * one, reach * one + 1, (task.n_clusters, 2))
    centres[0] = rng.choice([-one, one], 2)  # a centre in a corner: the longest differences
    state = {**{n: round_to_grid(v, 16) for n, v in task.start().items()}, "centres": centres}
    check_task(task, [adversarial(task, centres)], [state])


@pytest.mark.parametrize("d", [1, 2, 3, 7])
@pytest.mark.parametrize("task", [GLloyd, SuLloyd, Lloyd])
def test_the_bounds_are_attained_so_no_smaller_ones_hold(task: Any, d: int) -> None:
    it = task(n_clusters=1, n_features=d, rounds=1)
    block = it.blocks(0)[0]
    corner = np.full((1, d), ONE, dtype=np.int32)
    state = {"centres": np.full((1, d), -ONE if task is Lloyd else 0)}
    added = [int(v) for v in it.contribute(0, state, corner)]
    assert sum(v * v for v in added) == block.l2_squared
    assert sum(map(abs, added)) == block.l1


def test_fastlloyds_bounds_are_attained() -> None:
    task = FastLloyd(n_clusters=1, n_features=1, rounds=1, first_radius=0.5, radius=0.5)
    record = np.array([[ONE // 2]], dtype=np.int32)
    added = task.contribute(0, {"centres": np.zeros((1, 1), np.int64)}, record).tolist()
    block = task.blocks(0)[0]
    assert added[0] ** 2 + added[1] ** 2 == block.l2_squared
    assert sum(added) == block.l1


@pytest.mark.parametrize("d", [1, 2, 8])
@pytest.mark.parametrize("radius", [0.1, 0.7, 2.0])
def test_integer_payloads_are_the_reference_round(d: int, radius: float) -> None:
    task = FastLloyd(n_clusters=2, n_features=d, rounds=3, first_radius=radius, radius=radius / 2)
    for t, eta in ((0, radius), (1, radius / 2), (2, radius / 2)):
        payload = task.payload(t)
        assert payload.radius_squared == int(eta * ONE) ** 2
        assert payload.count_weight == round(eta * ONE / (4 * d) ** 0.25)
        assert payload.l2_squared == payload.radius_squared + payload.count_weight**2
        plan = toy_plan(task, budget=Budget(1.0, 1e-6))
        exact = gaussian_noise_multiplier(1.0, 1e-6) * sqrt(3) * sqrt(payload.l2_squared)
        assert plan.noise_scale(task.blocks(t)[0]) == pytest.approx(ceil(exact), abs=1)


# --- Updates by hand ------------------------------------------------------------------------------


def update(task: Any, centres: Any, sums: Any, counts: Any, t: int = 0, std: float = 0.0) -> dict:
    """One update from sums in box units and counts in records."""
    payload = task.payload(t)
    rows = np.column_stack(
        [np.rint(np.array(sums) * ONE), np.rint(np.array(counts) * payload.count_weight)]
    )
    state = {"centres": np.rint(np.array(centres) * ONE).astype(np.int64)}
    released = {"sums": NoisyBlock(rows.astype(np.int64), std)}
    return dict(task.update(t, state, released))


def fast(**changes: Any) -> FastLloyd:
    fields: dict[str, Any] = {
        "n_clusters": 2,
        "n_features": 1,
        "rounds": 2,
        "first_radius": 0.5,
        "radius": 0.25,
        **changes,
    }
    return FastLloyd(**fields)


def test_centres_move_by_the_mean_difference() -> None:
    new = update(fast(), [[0.0], [0.5]], [[0.6], [-0.4]], [3, 4])
    assert new["centres"].ravel().tolist() == pytest.approx([0.2, 0.4], abs=1e-4)
    assert new["sizes"].tolist() == [3, 4]
    assert new["low"].ravel().tolist() == pytest.approx([0.2, 0.4], abs=1e-4)
    assert new["high"].tolist() == new["low"].tolist()  # without noise both are the mean


def test_absolute_centres_are_the_mean() -> None:
    for task in (GLloyd, SuLloyd):
        it = task(n_clusters=2, n_features=1, rounds=2)
        new = update(it, [[0.9], [0.9]], [[0.6], [-1.0]], [3, 4])
        assert new["centres"].ravel().tolist() == pytest.approx([0.2, -0.25], abs=1e-4)


def test_a_move_is_shortened_to_the_radius_of_its_round() -> None:
    for t, radius in ((0, 0.5), (1, 0.25)):
        new = update(fast(), [[0.0], [0.0]], [[30.0], [-0.1]], [3, 1], t)
        assert new["centres"].ravel().tolist() == pytest.approx([radius, -0.1], abs=1e-4)
    loose = update(fast(radius_clip=False), [[0.0], [0.0]], [[2.4], [0.0]], [3, 1])
    assert loose["centres"].ravel().tolist() == pytest.approx([0.8, 0], abs=1e-4)


@pytest.mark.parametrize(("post", "expected"), [("fold", 0.8), ("truncate", 1.0), ("none", 1.2)])
def test_a_centre_outside_comes_back_as_told(post: Any, expected: float) -> None:
    new = update(fast(post=post), [[0.9], [0]], [[0.3], [0]], [1, 1])
    assert new["centres"][0, 0] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("count", [0.0, -3.0, 1e-9, 0.5])
def test_a_count_below_its_noise_is_the_floor(count: float) -> None:
    # the published code divides by count + 1e-9
    exact = update(fast(), [[0.0], [0.0]], [[0.1], [0.0]], [count, 1])
    assert exact["centres"][0, 0] == pytest.approx(0.1, abs=1e-4)
    noisy = update(fast(), [[0.0], [0.0]], [[0.1], [0.0]], [count, 1], std=2.0 * ONE)
    word = fast().payload(0).count_weight / ONE
    assert noisy["centres"][0, 0] == pytest.approx(0.1 * word / 2, abs=1e-4)


def test_intervals_are_shown_in_the_right_units() -> None:
    task = fast()
    payload = task.payload(0)
    std = 0.3
    new = update(task, [[0.0], [0.1]], [[0.0], [40.0]], [100, 100], std=std * ONE)
    count_std = std * ONE / payload.count_weight
    assert new["size_half_width"].tolist() == pytest.approx([1.96 * count_std] * 2)
    half = (new["high"] - new["low"])[:, 0] / 2  # of counts far above their noise: first order
    assert half[0] == pytest.approx(1.96 * std / 100, rel=1e-3)
    assert half[1] == pytest.approx(1.96 * hypot(std, 0.4 * count_std) / 100, rel=1e-3)
    assert new["low"][1, 0] < 0.5 < new["high"][1, 0]


def test_a_centre_that_is_pulled_back_keeps_the_interval_of_its_mean() -> None:
    for start, total, post, std in ((0.0, 80.0, "truncate", 0.1), (0.95, 10.0, "fold", 3.0)):
        rows = [[total], [0.0]], [100, 100]
        new = update(fast(post=post), [[start], [0.0]], *rows, std=std * ONE)
        target = min(start + total / 100, 1.0)
        assert new["low"][0, 0] < target <= new["high"][0, 0] <= 1
        assert not new["low"][0, 0] <= new["centres"][0, 0] <= new["high"][0, 0]


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_intervals_cover_the_noise_as_often_as_they_say(mechanism: Any) -> None:
    # 4000 clusters of 3000 records are 4000 runs of one; the seed is fixed
    runs, size, mean, std = 4000, 3000.0, 0.2, 40.0 * ONE
    task = fast(n_clusters=runs, mechanism=mechanism)
    word = task.payload(0).count_weight
    scale = std / sqrt(2) if mechanism == "laplace" else std
    noise = SimulatedNoise(5).draw(mechanism, int(scale), 2 * runs).reshape(runs, 2)
    rows = np.tile(np.rint([size * mean * ONE, size * word]), (runs, 1)).astype(np.int64) + noise
    state = {"centres": np.zeros((runs, 1), dtype=np.int64)}
    new = task.update(0, state, {"sums": NoisyBlock(rows, std)})
    inside = (new["low"] <= mean) & (mean <= new["high"])
    assert 0.94 < inside.mean() < 0.965
    assert 0.94 < (np.abs(new["sizes"] - size) <= new["size_half_width"]).mean() < 0.96


def test_without_noise_lloyd_finds_the_clusters() -> None:
    task = Lloyd(n_clusters=2, n_features=1, rounds=7, public_seed=1)
    X = np.rint(np.array([[-0.9], [-0.7], [0.5], [0.9]]) * ONE).astype(np.int32)
    state = {name: round_to_grid(v, 16) for name, v in task.start().items()}
    for t in range(7):
        values = task.contribute(t, state, X).reshape(2, 2)
        new = task.update(t, state, {"sums": NoisyBlock(values, 0.0)})
        state = {name: round_to_grid(v, 16) for name, v in new.items()}
    results = task.results(state, Grid((0,), (100,)))
    assert sorted(results["centres"].ravel().tolist()) == pytest.approx([10, 85], abs=0.01)
    assert sorted(results["sizes"].tolist()) == [2, 2]


# --- Empty centres that start again ---------------------------------------------------------------


def test_an_empty_centre_starts_again_beside_the_largest() -> None:
    task = fast(n_clusters=3, n_features=2, relocate_empty=True, rounds=3)
    centres = [[-0.5, -0.5], [0.5, 0.5], [0.9, -0.9]]
    new = update(task, centres, [[0, 0], [0, 0], [0, 0]], [100, 900, 2], std=1.0 * ONE)
    moved = new["centres"]
    assert moved[:2].ravel().tolist() == pytest.approx([-0.5, -0.5, 0.5, 0.5], abs=1e-4)
    distance = np.linalg.norm(moved[2] - moved[1])
    noise = np.linalg.norm((new["high"] - new["low"])[1] / 2)
    assert distance == pytest.approx(noise, abs=1e-3)
    again = update(task, centres, [[0, 0], [0, 0], [0, 0]], [100, 900, 2], std=1.0 * ONE)
    assert (again["centres"] == moved).all()  # public: every silo moves it to the same place


def test_nothing_starts_again_in_the_last_round_or_without_the_option() -> None:
    last = update(fast(relocate_empty=True), [[0.0], [0.9]], [[0], [0]], [50, 0], t=1, std=ONE)
    plain = update(fast(), [[0.0], [0.9]], [[0], [0]], [50, 0], t=0, std=ONE)
    for new in (last, plain):
        assert new["centres"].ravel().tolist() == pytest.approx([0, 0.9], abs=1e-4)


def test_when_all_are_empty_none_moves() -> None:
    new = update(fast(relocate_empty=True), [[0.1], [0.9]], [[0], [0]], [0, 1], std=ONE)
    assert new["centres"].ravel().tolist() == pytest.approx([0.1, 0.9], abs=1e-4)


# --- Design and words -----------------------------------------------------------------------------

OPTIONS = {"n_features": 2, "nominal_n": 1000, "budget": Budget(1.0, 1e-6), "n_clusters": 3}


@pytest.mark.parametrize(
    ("task", "change", "match"),
    [
        (FastLloyd, {"alpha": 0}, "alpha"),
        (FastLloyd, {"alpha": float("nan")}, "alpha"),
        (FastLloyd, {"radius_strategy": "steps"}, "radius_strategy"),
        (FastLloyd, {"post": "clip"}, "post"),
        (FastLloyd, {"mechanism": "none"}, "'lloyd'"),
        (FastLloyd, {"budget": None}, "budget is needed"),
        (GLloyd, {"budget": None}, "budget is needed"),
        (SuLloyd, {"budget": None}, "budget is needed"),
        (FastLloyd, {"rounds": 0}, "rounds"),
        (FastLloyd, {"relocate_empty": "no"}, "relocate_empty"),
        (FastLloyd, {"radius_clip": "no"}, "radius_clip"),
        (GLloyd, {"public_seed": "7"}, "public_seed"),
        (GLloyd, {"n_clusters": 0}, "n_clusters"),
        (SuLloyd, {"n_clusters": -2}, "n_clusters"),
        (FastLloyd, {"n_clusters": 0}, "n_clusters"),
        (Lloyd, {"rounds": 0}, "rounds"),
        (GLloyd, {"rounds": 2.5}, "rounds"),
        (SuLloyd, {"n_clusters": True}, "n_clusters"),
        (FastLloyd, {"n_features": 2, "frac_bits": 25, "n_clusters": 8}, "too fine"),
    ],
)
def test_a_design_that_cannot_hold_is_refused(task: Any, change: dict, match: str) -> None:
    with pytest.raises(PlanError, match=match):
        toy_task(task, **{**OPTIONS, **change})


@pytest.mark.parametrize("field", ["first_radius", "radius"])
@pytest.mark.parametrize("value", [0, -1, 2.1, float("nan"), float("inf")])
def test_a_radius_outside_the_box_is_refused(field: str, value: float) -> None:
    with pytest.raises(PlanError, match=field):
        fast(**{field: value})


def test_a_large_alpha_stops_at_the_diagonal() -> None:
    task = toy_task(FastLloyd, **{**OPTIONS, "n_clusters": 1}, alpha=99.0)
    assert task.radius == 2 * sqrt(2)


def test_rounds_may_be_given_without_a_budget() -> None:
    for task in PRIVATE:
        assert toy_task(task, **{**OPTIONS, "budget": None}, rounds=5).rounds == 5
    assert toy_task(Lloyd, **{**OPTIONS, "budget": None}).rounds == 7


@pytest.mark.parametrize(("k", "d"), [(1, 1), (1, 5), (2, 1), (2, 5), (4, 2), (4, 3), (3, 9)])
@pytest.mark.parametrize("name", ["fastlloyd", "glloyd", "lloyd", "sulloyd"])
def test_a_report_can_be_made_of_any_shape(name: str, k: int, d: int) -> None:
    task = toy_task(TASKS[name], **{**OPTIONS, "n_features": d, "n_clusters": k})
    grid = Grid((0.0,) * d, (10.0,) * d)
    state = {n: round_to_grid(v, 16) for n, v in task.start().items()}
    results = task.results(state, grid)
    assert {n: v.shape for n, v in results.items()} == {
        "centres": (k, d),
        "low": (k, d),
        "high": (k, d),
        "half_width": (k, d),
        "sizes": (k,),
        "size_half_width": (k,),
        **(
            {"verdict": (k,), "noise": (k, d), "size_noise": (k,)}
            if name == "fastlloyd" and task.estimate
            else {}
        ),
    }
    columns = tuple(f"c{i}" for i in range(d))
    displays = task.displays(results, columns)
    kinds = [type(display) for display in displays]
    assert kinds == [Table, Heatmap, *([Scatter] if k > 3 and d > 1 else []), Bars]
    for display in displays:
        if isinstance(display, Scatter):
            assert display.points.shape == (k, 2)
            assert np.isfinite(display.points).all()
    assert set(task.forecast(1e5, 1000, grid)) == {"half_width", "size_half_width"}
    assert ("NOT PRIVATE" in task.describe()) == (name == "lloyd")
    assert str(k) in task.describe()


def test_a_record_that_adds_itself_counts_at_least_one_step() -> None:
    corner = _absolute_payload(2, 4, 0.01)
    assert (corner.count_weight, corner.l1, corner.radius_squared) == (1, 2 * 16 + 1, 2 * 16**2)
    assert _absolute_payload(2, 4, 0.5).count_weight == 8


def test_a_radius_below_a_grid_step_is_one_step() -> None:
    """With a bound of 0 there would be no noise."""
    task = replace(designed(FastLloyd, "iris", 1.0), first_radius=1e-9, radius=1.5 / ONE)
    assert [task.payload(t).radius_squared for t in (0, 1)] == [1, 1]
