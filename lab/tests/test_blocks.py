"""Curator methods that the literature compares with: blocks, decaying budgets, genetic search."""

from __future__ import annotations

from math import exp, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister import Budget
from cloister.core.errors import PlanError, PrivacyWarning
from cloister.privacy import accounting
from cloister.testing import SimulatedNoise, ZeroNoise
from cloister_lab.curator import METHODS, DecayingLloyd, Gupt, PrivGene, SampleAggregate, blocks
from cloister_lab.curator.blocks import centres_of_blocks, middle_of_blocks
from cloister_lab.curator.privgene import costs_of, most_of_one_record
from cloister_lab.metrics import nicv

ONE = 1 << 16
PRIVATE: tuple[Any, ...] = (Gupt, DecayingLloyd, PrivGene)
RNG = np.random.default_rng(0)
MIDDLES = np.array([[-0.6, -0.6], [0.6, 0.6]])
CLOUD = np.clip(
    np.rint((MIDDLES.repeat(2000, axis=0) + RNG.normal(0, 0.08, (4000, 2))) * ONE), -ONE, ONE
).astype(np.int32)


def made(method: Any, epsilon: float = 1.0, k: int = 2, d: int = 2, n: int = 4000) -> Any:
    return method.design(
        n_clusters=k, n_features=d, nominal_n=n, budget=Budget(epsilon, 1e-6), public_seed=1
    )


@pytest.mark.parametrize("method", PRIVATE, ids=lambda method: method.name)
def test_the_price_is_at_most_the_budget_and_needs_no_delta(method: Any) -> None:
    spent = accounting.epsilon(made(method, 0.7).events(), 0.0)
    assert 0.69 < spent <= 0.7 * (1 + 1e-9)
    with pytest.raises(PlanError, match="budget"):
        method.design(n_clusters=2, n_features=2, nominal_n=100, budget=None)


@pytest.mark.parametrize("method", [*PRIVATE, SampleAggregate], ids=lambda method: method.name)
@pytest.mark.filterwarnings("ignore::cloister.core.errors.PrivacyWarning")
def test_much_epsilon_finds_two_clouds(method: Any) -> None:
    centres = made(method, 900.0).release(CLOUD, SimulatedNoise(2))
    assert METHODS[method.name] is method
    assert nicv(CLOUD / ONE, centres) < 0.05  # 0.74 for one centre


@given(seed=st.integers(0, 2**32), rows=st.integers(1, 40))
def test_one_record_changes_the_centres_of_one_block(seed: int, rows: int) -> None:
    """Under the same draws of blocks, which neighbours share."""
    rng = np.random.default_rng(seed)
    method = made(Gupt, k=3, n=200)
    records = rng.integers(-ONE, ONE + 1, (rows, 2)).astype(np.int32)
    words = rng.integers(0, 256, 8 * rows).astype(np.uint8).tobytes()

    class Replayed:
        def __call__(self, size: int) -> bytes:
            return words[:size]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "SecretStream", Replayed)
        more, less = (centres_of_blocks(part, method) for part in (records, records[:-1]))
    changed = (more != less).any(axis=(1, 2))
    assert changed.sum() <= 1
    steps = np.rint(more * ONE).sum(axis=0) - np.rint(less * ONE).sum(axis=0)
    assert np.abs(steps).sum() <= 2 * ONE * 3 * 2  # what the noise of `gupt` is for


@given(seed=st.integers(0, 2**32), n=st.integers(2, 12), spread=st.sampled_from([0.001, 0.1, 1.0]))
def test_the_bound_of_the_middle_block_holds_and_is_smooth(
    seed: int, n: int, spread: float
) -> None:
    rng = np.random.default_rng(seed)
    smoothness = 0.3
    points = np.clip(rng.normal(0, spread, (n, 3)), -1, 1)
    middle, bound = middle_of_blocks(points, smoothness)
    for place in range(n):
        other = points.copy()
        other[place] = rng.uniform(-1, 1, 3)
        moved, its_bound = middle_of_blocks(other, smoothness)
        assert np.linalg.norm(moved - middle) <= bound * (1 + 1e-9)
        assert its_bound <= exp(smoothness) * bound * (1 + 1e-9)
    assert bound <= 2 * sqrt(3)


@given(seed=st.integers(0, 2**32), d=st.sampled_from([1, 3]))
def test_one_record_raises_each_cost_by_at_most_the_diagonal(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.choice([-256, -1, 0, 255, 256], (9, d))
    population = np.concatenate([rng.uniform(-1, 1, (5, 2, d)), np.ones((1, 2, d))])
    more, less = (costs_of(part, population) for part in (values, values[:-1]))
    assert (more >= less).all()  # in one direction, as the proof needs
    assert (more - less <= most_of_one_record(d)).all()
    exact = ((values[:, None] - np.rint(population[0] * 256)) ** 2).sum(axis=2).min(axis=1).sum()
    assert more[0] == exact


def test_the_noise_of_a_choice_has_the_scale_of_the_plan() -> None:
    asked: list[tuple[str, int]] = []

    class Watched(ZeroNoise):
        def draw(self, kind: Any, scale: int, size: int) -> Any:
            asked.append((kind, scale))
            return super().draw(kind, scale, size)

    made(PrivGene, 1.0).release(CLOUD[:50], Watched())
    assert len(asked) == 81
    assert set(asked) == {("laplace", 81 * most_of_one_record(2))}


def test_rounds_of_decaying_budgets_double_their_noise() -> None:
    method = made(DecayingLloyd)
    scales = [event.noise_multiplier for event in method.events().events]
    assert scales == pytest.approx([2.0 ** (t + 1) for t in range(7)])


def test_sample_and_aggregate_warns_and_has_no_price() -> None:
    method = made(SampleAggregate)
    with pytest.warns(PrivacyWarning, match="gupt"):
        method.release(CLOUD, SimulatedNoise(1))
    assert not method.private
    assert accounting.epsilon(method.events(), 1e-6) == float("inf")
    assert "NOT PRIVATE" in method.describe()
    with pytest.raises(PlanError, match="delta"):
        SampleAggregate.design(n_clusters=2, n_features=2, nominal_n=9, budget=Budget(1.0, 0.0))
