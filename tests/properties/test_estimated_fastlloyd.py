"""FastLloyd with an estimation after its rounds: bounds, frames, and the numbers of a plan."""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister import Budget, DPKMeans
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.protocol.rows import summed
from cloister.protocol.task import GridState, NoisyBlock
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.testing import check_task, toy_task

ONE = 1 << 16
SHAPES = {"one cluster": (1, 1), "line": (3, 1), "plane": (2, 2), "many columns": (4, 7)}
names = pytest.mark.parametrize("name", SHAPES)


def designed(name: str, **options: Any) -> FastLloyd:
    k, d = SHAPES[name]
    given_options = {"n_clusters": k, "rounds": 2, "estimate": True, **options}
    return toy_task(
        FastLloyd, budget=Budget(1.0, 1e-6), n_features=d, nominal_n=400, **given_options
    )


def table(task: FastLloyd, n: int = 300) -> np.ndarray:
    rng = np.random.default_rng(3)
    middles = rng.uniform(-0.7, 0.7, (task.n_clusters, task.n_features))
    values = middles[rng.integers(task.n_clusters, size=n)]
    values = values + rng.normal(0, 0.15, values.shape)
    return np.rint(np.clip(values, -1, 1) * ONE).astype(np.int32)


def walk(task: FastLloyd, records: np.ndarray, noise: float, seed: int = 0) -> list[GridState]:
    """Return the state before each round of a run with made-up noise, and the last one."""
    rng = np.random.default_rng(seed)
    states = [{name: round_to_grid(value, 16) for name, value in task.start().items()}]
    for t in range(task.rounds):
        words, released, place = task.contribute(t, states[-1], records), {}, 0
        for block in task.blocks(t):
            own = words[place : place + block.size].reshape(block.shape)
            std = max(noise, 1e-3) * isqrt(block.l2_squared)
            drawn = np.rint(rng.normal(0, noise * isqrt(block.l2_squared), block.shape))
            released[block.name] = NoisyBlock(own + drawn.astype(np.int64), std)
            place += block.size
        assert place == len(words)
        state = task.update(t, states[-1], released)
        states.append({name: round_to_grid(value, 16) for name, value in state.items()})
    return states


@names
@pytest.mark.parametrize("noise", [0.0, 3.0, 300.0])
def test_rows_are_what_the_kernel_adds_and_within_their_bounds(name: str, noise: float) -> None:
    task = designed(name)
    records = table(task)
    for t, state in enumerate(walk(task, records, noise)[:-1]):
        blocks = task.blocks(t)
        rows = task.rows(t, state, records)
        sums = [summed(own, block) for own, block in zip(rows, blocks, strict=True)]
        np.testing.assert_array_equal(np.concatenate(sums), task.contribute(t, state, records))
        for own, block in zip(rows, blocks, strict=True):
            values = np.broadcast_to(own.values, (len(records), own.values.shape[-1]))
            assert (values.astype(object) ** 2).sum(axis=1).max() <= block.l2_squared
            assert np.abs(values.astype(object)).sum(axis=1).max() <= block.l1


@given(data=st.data(), name=st.sampled_from(sorted(SHAPES)))
def test_a_record_changes_a_block_by_its_bound_at_most(data: st.DataObject, name: str) -> None:
    """At any public state, also one that no run has: centres and radii are arbitrary."""
    task = designed(name)
    t = data.draw(st.integers(0, task.rounds - 1))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    state = {
        key: rng.integers(-ONE, ONE, value.shape, endpoint=True)
        for key, value in walk(task, table(task, 20), 1.0)[t].items()
    }
    records = table(task, 30)
    extra = rng.choice([-ONE, 0, ONE, *rng.integers(-ONE, ONE, 5)], (1, task.n_features))
    more = np.vstack([records, extra.astype(np.int32)])
    change = task.contribute(t, state, more) - task.contribute(t, state, records)
    place = 0
    for block in task.blocks(t):
        part = change[place : place + block.size].astype(object)
        assert (part**2).sum() <= block.l2_squared, block.name
        assert np.abs(part).sum() <= block.l1
        place += block.size


@names
def test_weights_add_up_and_frames_follow_from_the_plan(name: str) -> None:
    task = designed(name)
    assert task.rounds == 6
    weights = [block.weight for t in range(task.rounds) for block in task.blocks(t)]
    assert sum(weights) == pytest.approx(1, abs=1e-12)
    shapes = {key: value.shape for key, value in task.start().items()}
    for state in walk(task, table(task), 50.0):
        assert {key: value.shape for key, value in state.items()} == shapes


@names
def test_the_laws_of_tasks(name: str) -> None:
    task = designed(name)
    check_task(task, [table(task, 60)], walk(task, table(task), 1.0)[:2])


def test_it_is_designed_where_it_can_determine_a_cluster() -> None:
    facts = {"budget": Budget(1.0, 1e-6), "n_features": 3, "n_clusters": 3}
    assert toy_task(FastLloyd, **facts, nominal_n=5000).estimate
    assert not toy_task(FastLloyd, **facts, nominal_n=300).estimate
    assert not toy_task(FastLloyd, **facts, nominal_n=5000, estimate=False).estimate
    assert not toy_task(FastLloyd, **facts, nominal_n=5000, mechanism="laplace").estimate
    many = {"budget": Budget(1.0, 1e-6), "n_features": 7, "n_clusters": 100}
    assert not toy_task(FastLloyd, **many, nominal_n=10**9).estimate
    with pytest.raises(PlanError, match="at most 600 coordinates of all centres, got 700"):
        toy_task(FastLloyd, **many, nominal_n=10**9, estimate=True)
    with pytest.raises(PlanError, match="estimate needs mechanism 'gaussian'"):
        toy_task(FastLloyd, **facts, nominal_n=5000, mechanism="laplace", estimate=True)


def test_groups_are_determined_and_the_intervals_hold_their_means() -> None:
    rng = np.random.default_rng(1)
    places = np.array([[-6.0, -6], [6, -6], [0, 6]])
    labels = rng.integers(3, size=6000)
    X = np.clip(places[labels] + rng.normal(size=(6000, 2)), -10, 10)
    model = DPKMeans(
        3, algorithm="fastlloyd", epsilon=2.0, bounds=(-10, 10), nominal_n=6000, random_state=0
    ).fit(X)
    assert (model.verdict_ == "determined").sum() >= 2
    means = np.stack([X[labels == j].mean(axis=0) for j in range(3)])
    order = ((model.cluster_centers_[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    known = model.verdict_ == "determined"
    assert (model.centers_low_ <= means[order])[known].mean() > 0.8
    assert (model.centers_high_ >= means[order])[known].mean() > 0.8
