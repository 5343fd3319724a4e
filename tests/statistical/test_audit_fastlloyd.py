"""Whole runs leak no more than they claim, and mutants of them are caught.

Four things are tested: the two-world audit of :mod:`audit`, that its fast runs are the real ones,
that noise is drawn afresh for every word, round and run, and that no record, wherever it lies,
adds more than one at the bound.

False alarms. What runs on fresh noise of the operating system may fail by chance; the sum is at
most 4e-7 for this file, and ``test_false_alarm_rates_sum_to_the_budget`` adds it up.

- *Audit*. A check alarms on a true claim only if one of its two Clopper-Pearson bounds is wrong, so
  with probability at most ``2 ALPHA = 2e-9``. There are 3 points x 2 directions = 6 checks for a
  Gaussian claim, and 8 for a pure one, which also has the point (epsilon, 0). Audited are 5
  Gaussian worlds and 2 pure ones: ``(5 x 6 + 2 x 8) x 2e-9 = 9.2e-8``. Records, thresholds and
  points are those of the plan and not chosen by the runs. Both bounds would have to be far off at
  once: by the exact binomial laws of the worst case an audit alarms with probability 5e-14.
- *Independence*. The mean of n products of independent noise words of standard deviation 1 exceeds
  r with probability at most ``exp(-n I(r))`` (:func:`chernoff_rate`; the discrete Gaussian has at
  most the moments of the continuous one). The threshold makes the union bound over all pairs of
  words and both signs equal ``ALPHA_INDEPENDENCE = 1e-8``; two tests: 2e-8.

Together 1.96e-7. All other tests, mutants included, run on fixed seeds and cannot fail by
chance.

Power, measured at 3e5 runs a world, epsilon = 4, delta = 1e-5 (share of audits that alarm; 20 each,
10 in the last two rows):

    noise / claimed noise       0.95  0.93  0.92  0.90  0.88  0.85  0.80
    FastLloyd, d = 1            0     0.45  1     1     1     1     1
    stated / true sensitivity   0.15  0.85  1     1     1     1     1
    FastLloyd, d = 2            0                 1     1     1     1
    SuLloyd, epsilon = 1        0                 0.6   1     1     1

30 audits of the sound d = 1 plan on fresh noise: none of 360 checks alarmed, and at the threshold
epsilon the mean of ``P_B(E) - exp(epsilon) P_A(E)`` was .0040, .0099 and .0248 where .004, .010 and
.025 are claimed. So the pair of worlds is a worst case, and the claim is tight.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isqrt, log, prod, sqrt
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize

import cloister
import cloister_lab
from cloister.app.in_process import InProcess
from cloister.core.randomness import public_generator
from cloister.hazmat.discrete import discrete_gaussian, discrete_laplace
from cloister.hazmat.fixedpoint import Grid
from cloister.hazmat.ring import Integers, to_integers
from cloister.privacy import accounting
from cloister.privacy.budget import Budget
from cloister.privacy.noise import DiscreteNoise, NoiseKind, NoiseSource
from cloister.protocol.messages import Reply, decode
from cloister.protocol.plan import Plan
from cloister.protocol.task import Block, GridState, Records, Task
from cloister.tasks.clustering.kmeans import FastLloyd, GLloyd, Payload, SuLloyd
from cloister.testing import Faults, Wire, check_task, toy_plan

from .audit import (
    ALPHA,
    CURVE,
    World,
    Worlds,
    alarming,
    audit,
    claims,
    log_ratio,
    run_many,
)

Floats = NDArray[np.float64]

BUDGET = 4e-7
ALPHA_INDEPENDENCE = 1e-8
EPSILON, DELTA = 4.0, 1e-5
COPIES = 20_000  # so many records hold the centre still: it moves by about 1e-4 of the box


# --- plans, records and noise to audit


def fast_lloyd(n_features: int, mutant: type[FastLloyd] = FastLloyd) -> FastLloyd:
    """Return three rounds; the radii are lattice distances of records in the box, exactly."""
    first_radius, radius = {1: (1.0, 0.8), 2: (1.25, 1.0)}[n_features]
    return mutant(
        n_clusters=1, n_features=n_features, rounds=3, first_radius=first_radius, radius=radius
    )


def plan_of(task: Task, **changes: object) -> Plan:
    delta = DELTA if task.mechanism == "gaussian" else 0.0
    epsilon = EPSILON if task.mechanism == "gaussian" else 1.0
    return toy_plan(task, silos=1, budget=Budget(epsilon, delta), **changes)


def longest(payload: Payload, one: int, n_features: int) -> Integers:
    """Return the record, in a box around the centre, that adds most to the sums; d is 1 or 2."""
    if n_features == 1:
        return np.array([min(one, isqrt(payload.radius_squared))])
    first = np.arange(one + 1)
    square = np.minimum(one**2, payload.radius_squared - first**2)
    second = np.where(square < 0, 0, np.sqrt(np.maximum(square, 0))).astype(np.int64)
    best = int(np.where(square < 0, -1, first**2 + second**2).argmax())
    return np.array([first[best], second[best]])


def worst_case(plan: Plan) -> Worlds:
    """Return a record that adds all it may in the first round and almost all in later ones.

    It lies at the first radius from the start. The other records pull the centre to where the
    extra one is 0.998 of the later radius away, and hold it there.
    """
    first, later = plan.task.payload(0), plan.task.payload(1)  # type: ignore[attr-defined]
    extra = longest(first, plan.grid.one, plan.grid.n_features) / plan.grid.one
    length = float(np.linalg.norm(extra))
    keep = 1 - 0.998 * later.radius / length if first.relative else 0.3
    return encoded(plan, points=[keep * extra], times=[COPIES], extra=extra)


def far_away(plan: Plan) -> Worlds:
    """Return a record outside the box, on a side that the later centres leave for the other."""
    d = plan.grid.n_features
    return encoded(plan, points=[np.full(d, -0.5)], times=[COPIES], extra=np.full(d, 1.5))


def encoded(plan: Plan, points: list[Floats], times: list[int], extra: Floats) -> Worlds:
    """Enter records as a silo does: through the grid of the plan."""
    grid = plan.grid
    return Worlds(grid.encode(np.array(points)), np.array(times), grid.encode(extra[None])[0])


class FixedNoise:
    """The exact samplers on a fixed stream, so that mutants are caught on every machine."""

    label = "fixed stream: not private"

    def __init__(self, *seed: int | str) -> None:
        self._bytes = public_generator("audit", *seed).bytes

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        sample = discrete_gaussian if kind == "gaussian" else discrete_laplace
        return sample(scale, size, self._bytes)


class Recorded:
    """Gives out noise drawn before, in order; refuses to give it for another law or scale."""

    label = "recorded: not private"

    def __init__(self, kind: NoiseKind, scales: list[int], words: Integers) -> None:
        self._kind, self._scales, self._words, self._round = kind, scales, words, 0

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        t, self._round = self._round, self._round + 1
        assert (kind, scale) == (self._kind, self._scales[t])
        words = self._words[:, t].ravel()
        assert words.size == size
        return words


# --- mutants: each has one defect, in a part that is passed in


class QuietNoise(FixedNoise):
    """Draws 0.8 of the scale that it is asked for."""

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        return super().draw(kind, round(0.8 * scale), size)


class Understated(FastLloyd):
    """States a sensitivity that is 1.25 times too small."""

    rows = None  # the kernel alone: the core would leave out what it must show

    def blocks(self, t: int) -> tuple[Block, ...]:
        (block,) = super().blocks(t)
        norm = sqrt(block.l2_squared) / 1.25
        return (replace(block, l2_squared=int(norm**2), l1=int(block.l1 / 1.25)),)


class _NoRadiusCheck:
    """Adds records beyond the radius too, but states the sensitivity of those within."""

    def payload(self, t: int) -> Payload:
        return replace(super().payload(t), radius_squared=2**50)  # type: ignore[misc]

    def blocks(self, t: int) -> tuple[Block, ...]:
        honest, shape = super().payload(t), (1, self.n_features + 1)  # type: ignore[misc,attr-defined]
        weight = 1 / self.rounds  # type: ignore[attr-defined]
        return (Block("sums", shape, honest.l1, honest.l2_squared, weight),)


class KeepsFarRecords(_NoRadiusCheck, FastLloyd):
    """FastLloyd without the radius check."""

    rows = None  # the kernel alone: the core would leave out what it must show


class KeepsLongRecords(_NoRadiusCheck, GLloyd):
    """GLloyd without the norm check."""

    rows = None  # the kernel alone: the core would leave out what it must show


@dataclass(frozen=True)
class LooseGrid(Grid):
    """Rounds records to the grid without clipping them to the box."""

    def encode(self, X: object) -> Records:
        return np.rint(self.normalise(X) * self.one).astype(np.int32)


def loose(plan: Plan) -> Plan:
    """Return the plan with a grid that does not clip."""
    return replace(plan, grid=LooseGrid(plan.grid.low, plan.grid.high, plan.grid.frac_bits))


# --- the audit

PURE = {"rounds": 2, "n_clusters": 1, "n_features": 1}


def honest_plans() -> dict[str, Plan]:
    task = fast_lloyd(1)
    laplace = FastLloyd(first_radius=1.0, radius=0.8, mechanism="laplace", **PURE)
    return {
        "fastlloyd d=1": plan_of(task),
        "fastlloyd d=2": plan_of(fast_lloyd(2)),
        "fastlloyd, three rows a person": plan_of(task, unit="person", max_rows=3),
        "fastlloyd laplace": plan_of(laplace),
        "glloyd": plan_of(GLloyd(n_clusters=1, n_features=2, rounds=2)),
        "sulloyd": plan_of(SuLloyd(**PURE)),
    }


def worlds_of(plan: Plan) -> Worlds:
    return replace(worst_case(plan), rows=plan.group_size)


HONEST = honest_plans()


@pytest.mark.parametrize("name", HONEST)
def test_whole_runs_leak_no_more_than_claimed(name: str) -> None:
    plan = HONEST[name]
    assert alarming(audit(plan, worlds_of(plan), DiscreteNoise())) == []


def test_a_far_record_outside_the_box_leaks_no_more_than_claimed() -> None:
    plan = HONEST["fastlloyd d=2"]
    assert alarming(audit(plan, far_away(plan), DiscreteNoise())) == []


@pytest.mark.parametrize("name", HONEST)
def test_audit_alarms_when_the_noise_is_a_fifth_too_small(name: str) -> None:
    plan = HONEST[name]
    checks = audit(plan, worlds_of(plan), QuietNoise("quiet", name))
    assert alarming(checks)


@pytest.mark.parametrize("d", [1, 2])
def test_audit_alarms_when_the_sensitivity_is_stated_too_small(d: int) -> None:
    plan = plan_of(fast_lloyd(d, Understated))
    assert alarming(audit(plan, worst_case(plan), FixedNoise("understated", d)))


@pytest.mark.parametrize("d", [1, 2])
def test_audit_alarms_when_far_records_are_kept(d: int) -> None:
    plan = plan_of(fast_lloyd(d, KeepsFarRecords))
    assert alarming(audit(plan, far_away(plan), FixedNoise("far", d)))


def test_audit_alarms_when_records_are_not_clipped_to_the_box() -> None:
    plan = loose(plan_of(KeepsLongRecords(n_clusters=1, n_features=2, rounds=2)))
    assert alarming(audit(plan, far_away(plan), FixedNoise("long")))


@pytest.mark.parametrize("name", HONEST)
def test_the_claimed_curve_goes_through_the_budget(name: str) -> None:
    """What is audited is what was asked for: the plan's events cost the budget, and no less."""
    plan = HONEST[name]
    assert plan.budget is not None
    spent = accounting.epsilon(plan.events(), plan.budget.delta)
    assert 0.9999 * plan.budget.epsilon < spent <= plan.budget.epsilon * (1 + 1e-12)
    assert all(0.003 <= delta <= 0.03 or delta == 0 for _, delta, _ in claims(plan))


@pytest.mark.parametrize("name", HONEST)
def test_the_audited_record_is_the_worst_there_is(name: str) -> None:
    plan = HONEST[name]
    worlds = worlds_of(plan)
    for world in ("A", "B"):
        runs = run_many(plan, worlds, world, FixedNoise("worst", name), 10_000)
        for t, influence in enumerate(runs.influence):
            (block,) = plan.task.blocks(t)
            worst = plan.group_size**2 * block.l2_squared
            assert influence.max() <= worst
            assert influence.mean() == worst if t == 0 else influence.mean() > 0.99 * worst


def test_an_audit_at_the_threshold_epsilon_sees_most_of_the_claim() -> None:
    """The audit of a sound mechanism is no empty test: the bound is nearly attained."""
    plan = HONEST["fastlloyd d=1"]
    for check in audit(plan, worlds_of(plan), FixedNoise("tight"))[: 4 * len(CURVE) : 4]:
        seen = (check.likely - np.exp(check.epsilon) * check.rare) / check.runs
        assert 0.5 * check.delta < seen < 1.5 * check.delta


# --- the fast runs are the real ones


def random_worlds(d: int, one: int, rng: np.random.Generator) -> Worlds:
    """Return a handful of records, coordinates on a wall among them."""
    inside = rng.integers(-one, one, (5, d), endpoint=True, dtype=np.int32)
    wall = one * rng.choice(np.array([-1, 1], np.int32), (5, d))
    points = np.where(rng.random((5, d)) < 0.3, wall, inside)
    return Worlds(points[1:], rng.integers(0, 4, 4), points[0], rows=int(rng.integers(1, 3)))


REAL_WORLDS, REAL_RUNS = 10, 10  # for each task, a data set and runs on it in either world

SMALL = {"n_clusters": 1, "rounds": 3}
REAL_TASKS: dict[str, Task] = {
    "fastlloyd d=1": fast_lloyd(1),
    "fastlloyd d=2": fast_lloyd(2),
    "no radius clip, truncate": replace(fast_lloyd(2), radius_clip=False, post="truncate"),
    "laplace": replace(fast_lloyd(2), mechanism="laplace"),
    "glloyd": GLloyd(n_features=2, **SMALL),
    "sulloyd": SuLloyd(n_features=1, **SMALL),
    "understated": fast_lloyd(1, Understated),
    "keeps far records": fast_lloyd(2, KeepsFarRecords),
    "keeps long records": KeepsLongRecords(n_features=2, **SMALL),
}


@pytest.mark.parametrize("name", REAL_TASKS)
def test_many_runs_at_once_are_real_runs_bit_for_bit(name: str) -> None:
    """Two silos, masks, frames, an aggregator: on the same noise the same states and scores."""
    task = REAL_TASKS[name]
    plan = toy_plan(
        task,
        silos=2,
        budget=Budget(1.0, DELTA if task.mechanism == "gaussian" else 0.0),
    )
    scales = [plan.noise_scale(*task.blocks(t)) for t in range(plan.rounds)]
    rng, stream = public_generator("real", name), FixedNoise("real", name)
    negative = 0
    for _ in range(REAL_WORLDS):
        worlds = random_worlds(task.n_features, plan.grid.one, rng)
        for world in ("A", "B"):
            size = (REAL_RUNS, task.n_features + 1)
            drawn = [stream.draw(task.mechanism, scale, prod(size)) for scale in scales]
            words = np.stack([of_round.reshape(size) for of_round in drawn], axis=1)
            recorded = partial(Recorded, task.mechanism, scales)
            fast = run_many(plan, worlds, world, recorded(words), REAL_RUNS)
            for run in range(REAL_RUNS):
                history = real_run(plan, worlds, world, recorded(words[run : run + 1]))
                assert_equal_states(history, fast.states, run)
                negative += any(state["sizes"][0] < 0 for state in history)
                score = real_score(plan, worlds, world, history, words[run])
                assert score == pytest.approx(fast.scores[run], rel=1e-12, abs=1e-12)
    assert negative > 0, "so few records that noisy sizes below zero happen too"


def real_run(plan: Plan, worlds: Worlds, world: World, noise: NoiseSource) -> Sequence[GridState]:
    shared, extra = np.split(worlds.records(world), [int(worlds.times.sum())])
    wire = Wire(plan, dict(zip(plan.silos, (shared, extra), strict=True)), noise)
    wire.run()
    return wire.clients[plan.silos[0]].history


def assert_equal_states(
    history: Sequence[GridState], states: Sequence[GridState], run: int
) -> None:
    assert len(history) == len(states)
    for real, fast in zip(history, states, strict=True):
        assert (real["centres"][0] == fast["centres"][run]).all()
        assert real["sizes"][0] == fast["sizes"][run]
        for end in ("low", "high"):
            assert (real[end][0] == fast[end][run]).all()


def real_score(
    plan: Plan, worlds: Worlds, world: World, history: Sequence[GridState], noise: Integers
) -> float:
    """Return the score from ``task.contribute`` at the states of a real run."""
    extra = np.repeat(worlds.extra[None], worlds.rows, axis=0)
    score = 0.0
    for t in range(plan.rounds):
        v = plan.task.contribute(t, history[t], extra)
        u = noise[t] + v if world == "B" else noise[t]
        scale = plan.noise_scale(*plan.task.blocks(t))
        score += float(log_ratio(plan.task.mechanism, scale, u[None], v[None])[0])
    return score


# --- noise is drawn afresh for every word, round and run (D1, D3 and D4 of the published code)

NOISY = toy_plan(
    FastLloyd(n_clusters=5, n_features=2, rounds=3, first_radius=1.4, radius=0.8), silos=1
)
NOISY_RUNS = 600


def released_noise(noise: NoiseSource) -> Floats:
    """Return all words that a run over no records releases, in standard deviations."""
    plan = NOISY
    wire = Wire(
        plan,
        {"silo-0": np.empty((0, 2), np.int32)},
        noise,
        make_transport=lambda handlers: Faults(InProcess(handlers)),
    )
    wire.run()
    assert isinstance(wire.transport, Faults)
    messages = [decode(plan, request) for _, _, request, _ in wire.transport.frames]
    replies = [message for message in messages if isinstance(message, Reply)]
    assert [reply.round for reply in replies] == list(range(plan.rounds))
    return np.concatenate(
        [
            to_integers(reply.elements) / plan.noise_scale(*plan.task.blocks(reply.round))
            for reply in replies
        ]
    )


def correlations(rows: Floats) -> dict[str, tuple[Floats, int]]:
    """Return mean products of pairs of words, and of how many runs each is the mean."""
    within = rows.T @ rows / len(rows)
    half = len(rows) // 2
    return {
        "in a run": (within[np.triu_indices_from(within, 1)], len(rows)),
        "between runs": ((rows[:half].T @ rows[half : 2 * half] / half).ravel(), half),
    }


def chernoff_rate(r: float) -> float:
    """Return I with ``P(mean of n products >= r) <= exp(-n I)``.

    If ``E exp(a x) <= exp(a^2 / 2)``, as for a discrete Gaussian over its sigma, then for
    independent x, y and a standard normal g:
    ``E exp(a x y) <= E exp(a^2 y^2 / 2) = E exp(a g y) <= E exp(a^2 g^2 / 2) = (1 - a^2)^(-1/2)``.
    """
    a = (sqrt(1 + 4 * r * r) - 1) / (2 * r)
    return a * r + log(1 - a * a) / 2


def largest_by_chance(n: int, pairs: int) -> float:
    """Return the r that any of `pairs` mean products passes with chance ALPHA_INDEPENDENCE."""
    rate = log(2 * pairs / ALPHA_INDEPENDENCE) / n
    return float(optimize.brentq(lambda r: chernoff_rate(r) - rate, 1e-6, 100))


def correlated(rows: Floats, pairs: str) -> bool:
    products, n = correlations(rows)[pairs]
    return bool(np.abs(products).max() > largest_by_chance(n, products.size))


@pytest.fixture(scope="module")
def fresh_rows() -> Floats:
    """Real runs of one plan, so that all that could seed their noise is the same."""
    return np.array([released_noise(DiscreteNoise()) for _ in range(NOISY_RUNS)])


def test_sum_and_count_noise_of_all_rounds_are_independent_draws(fresh_rows: Floats) -> None:
    assert not correlated(fresh_rows, "in a run")


def test_noise_of_two_runs_of_one_plan_are_independent_draws(fresh_rows: Floats) -> None:
    assert not correlated(fresh_rows, "between runs")


class SumsAndCountsFromOneState(FixedNoise):
    """Starts the count noise where the sum noise started (D3)."""

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        k, d = NOISY.task.n_clusters, NOISY.task.n_features  # type: ignore[attr-defined]
        assert size == k * (d + 1)
        values = super().draw(kind, scale, k * d)
        return np.column_stack([values.reshape(k, d), values[:k]]).ravel()


class EveryRoundAlike(FixedNoise):
    """Starts every round from the seed (D4: ``seed * round`` with seed 0)."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        return FixedNoise(self._seed).draw(kind, scale, size)


SEEDED_NOISE: dict[str, tuple[Callable[[int], NoiseSource], str]] = {
    "seeded by the protocol (D1)": (lambda run: FixedNoise("seed"), "between runs"),
    "sums and counts from one state (D3)": (SumsAndCountsFromOneState, "in a run"),
    "every round alike (D4)": (EveryRoundAlike, "in a run"),
}


@pytest.mark.parametrize("defect", SEEDED_NOISE)
def test_correlations_show_noise_that_is_not_drawn_afresh(defect: str) -> None:
    make_noise, pairs = SEEDED_NOISE[defect]
    rows = np.array([released_noise(make_noise(run)) for run in range(NOISY_RUNS // 3)])
    assert correlated(rows, pairs)


# --- a record outside the box or the radius adds no more than one at the bound


def tasks_of(k: int, d: int) -> list[Task]:
    size = {"n_clusters": k, "n_features": d, "rounds": 2}
    radii = {"first_radius": 0.9 * sqrt(d), "radius": 0.5}
    return [
        FastLloyd(**size, **radii),
        FastLloyd(**size, **radii, mechanism="laplace"),
        GLloyd(**size),
        SuLloyd(**size),
    ]


def hard_records(d: int, one: int, rng: np.random.Generator) -> Records:
    """Return records inside the box, on its walls and corners, just beyond and far beyond."""
    inside = rng.integers(-one, one, (30, d), endpoint=True)
    corners = one * rng.choice([-1, 1], (10, d))
    beyond = corners + rng.choice([-1, 1], (10, d))
    far = np.rint(rng.choice([-1, 1], (30, d)) * 2.0 ** rng.uniform(16, 30, (30, 1)))
    return np.vstack([inside, corners, beyond, far]).astype(np.int32)


def hard_states(k: int, d: int, one: int, rng: np.random.Generator) -> list[GridState]:
    inside = rng.integers(-one, one, (k, d), endpoint=True)
    corners = one * rng.choice([-1, 1], (k, d))
    return [{"centres": centres.astype(np.int64)} for centres in (inside, corners)]


@pytest.mark.parametrize(("k", "d"), [(1, 1), (1, 2), (3, 2), (3, 6)])
def test_no_record_adds_more_than_the_sensitivity_wherever_it_lies(k: int, d: int) -> None:
    rng = public_generator("hard", k, d)
    for task in tasks_of(k, d):
        one = 1 << task.frac_bits
        check_task(task, [hard_records(d, one, rng)], hard_states(k, d, one, rng))


def test_the_same_check_finds_records_that_add_more() -> None:
    for mutant in (fast_lloyd(2, KeepsFarRecords), fast_lloyd(2, Understated)):
        rng, one = public_generator("hard"), 1 << mutant.frac_bits
        with pytest.raises(AssertionError, match="L2 bound"):
            check_task(mutant, [hard_records(2, one, rng)], hard_states(1, 2, one, rng))


@pytest.mark.parametrize("d", [1, 2])
def test_a_record_on_the_radius_counts_and_one_step_further_does_not(d: int) -> None:
    task = fast_lloyd(d)
    for t in (0, 1):
        centre = {"centres": np.zeros((1, d), np.int64)}
        payload = task.payload(t)
        edge = longest(payload, 1 << task.frac_bits, d).astype(np.int32)
        assert int((edge.astype(np.int64) ** 2).sum()) == payload.radius_squared
        assert (task.contribute(t, centre, edge[None]) == [*edge, payload.count_weight]).all()
        further = edge + np.eye(d, dtype=np.int32)[0]
        assert (task.contribute(t, centre, further[None]) == 0).all()


@pytest.mark.parametrize("d", [1, 2, 6])
def test_a_record_outside_the_box_enters_as_the_one_on_its_wall(d: int) -> None:
    grid = toy_plan(tasks_of(1, d)[0], silos=1).grid
    rng = public_generator("outside", d)
    outside = rng.choice([-1, 1], (200, d)) * 10.0 ** rng.uniform(-2, 300, (200, d))
    outside[:20, 0] = rng.choice([-np.inf, np.inf], 20)
    assert (grid.encode(outside) == grid.encode(np.clip(outside, -1, 1))).all()
    assert np.abs(grid.encode(outside)).max() == grid.one


# --- the false-alarm rate of this file


def test_false_alarm_rates_sum_to_the_budget() -> None:
    far_away_too = HONEST["fastlloyd d=2"]
    plans = [*HONEST.values(), far_away_too]
    directions, bounds = 2, 2
    audits = ALPHA * sum(len(claims(plan)) for plan in plans) * directions * bounds
    assert audits == pytest.approx(1.76e-7)
    assert audits + 2 * ALPHA_INDEPENDENCE <= BUDGET


def test_the_chernoff_rate_bounds_the_tail_of_products() -> None:
    rng, n, r = public_generator("chernoff"), 20, 0.8
    means = (rng.normal(size=(200_000, n)) * rng.normal(size=(200_000, n))).mean(axis=1)
    share = (means >= r).mean()
    assert np.exp(-n * chernoff_rate(r)) / 30 < share <= np.exp(-n * chernoff_rate(r))
    assert largest_by_chance(NOISY_RUNS // 2, 45 * 45) < 0.5


# --- the proof


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("kmeans.md", 15),
        ("pairwise.md", 7),
        ("pads.md", 5),
        ("grid_synopsis.md", 6),
        ("lsh_tree.md", 5),
        ("feddp_init.md", 4),
        ("dp_em.md", 4),
        ("subcluster.md", 8),
        ("max_cover.md", 9),
        ("balcan.md", 3),
        ("cox.md", 9),
        ("survival.md", 9),
        ("naive_bayes.md", 7),
        ("regression.md", 21),
        ("forest.md", 11),
        ("shapes.md", 7),
        ("preparation.md", 7),
        ("synthetic.md", 8),
        ("fedavg.md", 10),
    ],
)
def test_the_lines_that_a_proof_cites_are_there(name: str, lines: int) -> None:
    product, lab = (Path(package.__file__).parent for package in (cloister, cloister_lab))
    page = Path(__file__).parents[2] / "docs" / "proofs" / name
    if not page.is_file():
        pytest.skip("docs are not beside the tests")
    cited = re.findall(
        r"^\| [A-Z] \| `(.+?)`, `(.+?)` \| `(.+)` \|$", page.read_text(), re.MULTILINE
    )
    assert len(cited) == lines
    for module, function, line in cited:
        root = lab.parent if module.startswith(lab.name) else product
        source = (root / module).read_text()
        assert f"def {function.rpartition('.')[2]}(" in source, f"{module} lost {function}"
        assert "".join(line.split()) in "".join(source.split()), f"{module} lost {line}"


@pytest.mark.parametrize("sigma", [3, 40])
def test_the_lemma_of_the_proof_holds(sigma: int) -> None:
    """A continuous Gaussian of variance s^2 - 1, rounded at random with tau = 1, is discrete."""
    tau, shift, reach = 1.0, 2, 12 * sigma
    z = np.arange(-reach, reach + 1)
    y = np.linspace(-reach, reach, 40 * reach + 1)  # so smooth that this sum is the integral
    inner = np.sqrt(sigma**2 - tau**2)
    density = np.exp(-(((y - shift) / inner) ** 2) / 2) / (np.sqrt(2 * np.pi) * inner)
    rounding = np.exp(-(((z[:, None] - y) / tau) ** 2) / 2)
    rounded = (rounding / rounding.sum(axis=0)) @ density * (y[1] - y[0])
    exact = np.exp(-(((z - shift) / sigma) ** 2) / 2)
    near = np.abs(z) <= 6 * sigma
    assert np.abs(rounded[near] / (exact / exact.sum())[near] - 1).max() < 1e-10
