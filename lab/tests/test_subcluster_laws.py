"""The laws of ``kmeans-guarantee-dp`` and ``subcluster-dp``: a zone holds what is drawn from it.

What holds for all tasks of the laboratory is in ``test_synopsis_tasks.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister import Budget
from cloister.app.in_process import run_plan
from cloister.core.errors import PlanError
from cloister.core.randomness import public_generator
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.protocol.task import GridState, NoisyBlock, Task
from cloister.tasks import installed
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.testing import toy_plan, toy_task
from cloister_lab.tasks.subcluster import (
    FINE_BITS,
    KMeansGuaranteeDP,
    SubClusterDP,
    draw_from_ball,
    draw_from_zone,
    sum_in_zones,
)

TASKS = installed()  # the laboratory's, too

ONE = 1 << 16
BUDGET = Budget(4.0, 1e-6)
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "kmeans-guarantee-dp": (KMeansGuaranteeDP, {"rounds": 3}),
    "kmeans-guarantee-dp, wide": (
        KMeansGuaranteeDP,
        {"rounds": 2, "zone_share": 1.0, "concentration": 0.0, "relocate_empty": True},
    ),
    "subcluster-dp": (SubClusterDP, {"rounds": 4}),
    "subcluster-dp, relocated": (SubClusterDP, {"rounds": 6, "relocate_empty": True}),
    "subcluster-dp, one part": (SubClusterDP, {"rounds": 4, "internal_k": 1, "sub_share": 0.9}),
}
names = pytest.mark.parametrize("name", KINDS)
subclusters = pytest.mark.parametrize("name", [n for n in KINDS if n.startswith("sub")])


def designed(name: str, k: int = 3, d: int = 2, seed: int = 0, frac_bits: int = 16) -> Any:
    kind, options = KINDS[name]
    return toy_task(
        kind,
        n_features=d,
        nominal_n=300,
        budget=BUDGET,
        n_clusters=k,
        public_seed=seed,
        frac_bits=frac_bits,
        **options,
    )


def on_grid(it: Task, state: Mapping[str, np.ndarray]) -> GridState:
    return {name: round_to_grid(value, it.frac_bits) for name, value in state.items()}


def released(it: Task, t: int, words: np.ndarray, std: float = 0.0) -> dict[str, NoisyBlock]:
    (block,) = it.blocks(t)
    return {block.name: NoisyBlock(words.reshape(block.shape), std * block.l2_squared**0.5)}


def states(it: Task, table: np.ndarray, seed: int, noise: float) -> list[GridState]:
    """The states before each round of a run with made-up noise, and the last one."""
    rng = np.random.default_rng(seed)
    found = [on_grid(it, it.start())]
    for t in range(it.rounds):
        (block,) = it.blocks(t)
        words = it.contribute(t, found[-1], table)
        made_up = np.rint(rng.normal(0, noise * block.l2_squared**0.5, len(words)))
        new = it.update(t, found[-1], released(it, t, words + made_up.astype(np.int64), noise))
        found.append(on_grid(it, new))
    return found


# --- Sensitivity ----------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**32),
    d=st.sampled_from([1, 2, 7]),
    radius=st.sampled_from([-3, 0, 1, 2, 255, ONE, 3 * ONE]),
)
def test_the_bound_of_a_part_holds_for_any_state_at_all(seed: int, d: int, radius: int) -> None:
    rng = np.random.default_rng(seed)
    centres = rng.integers(-ONE, ONE + 1, (2, d))
    parts = rng.integers(-4 * ONE, 4 * ONE, (2, 3, d))
    near = np.clip(centres[0] + rng.integers(-3, 4, (8, d)) * max(radius, 1) // 3, -ONE, ONE)
    for record in near.astype(np.int32):
        sums = sum_in_zones(
            record[None], centres, np.array([radius, radius]), parts, count_weight=1
        ).reshape(-1, d + 1)
        touched = sums[sums[:, -1] != 0]
        assert len(touched) <= 1
        assert (sums[sums[:, -1] == 0] == 0).all()
        assert sum(int(v) ** 2 for row in touched for v in row[:-1]) <= 1 << (2 * FINE_BITS)
        if radius <= 0:
            assert len(touched) == 0


@pytest.mark.parametrize("d", [1, 2, 5, 64])
def test_a_record_at_the_edge_of_its_zone_adds_nearly_the_bound(d: int) -> None:
    it = designed("subcluster-dp", 1, d)
    centre, radius = np.zeros((1, d), dtype=np.int64), ONE // 3
    state = {
        **on_grid(it, it.start()),
        "centres": centre,
        "zone_radius": np.array([radius]),
        "parts": np.zeros((1, it.internal_k, d), dtype=np.int64),
    }
    edge = np.eye(1, d, dtype=np.int32) * (radius - 1)
    (block,) = it.blocks(1)
    added = [int(v) for v in it.contribute(1, state, edge)]
    assert 0.999 * block.l2_squared <= sum(v * v for v in added) <= block.l2_squared
    outside = np.eye(1, d, dtype=np.int32) * radius
    assert not it.contribute(1, state, outside).any()  # the zone is open


# --- What is summed -------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), d=st.sampled_from([1, 3]))
def test_parts_of_zones_are_summed_as_one_would_by_hand(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    centres, parts = rng.integers(-ONE, ONE, (3, d)), rng.integers(-ONE, ONE, (3, 2, d))
    radii = rng.integers(0, 2 * ONE, 3)
    table = rng.integers(-ONE, ONE + 1, (60, d)).astype(np.int32)
    expected = np.zeros((3, 2, d + 1), dtype=np.int64)
    for record in table.tolist():
        far = [sum((a - b) ** 2 for a, b in zip(record, c, strict=True)) for c in centres.tolist()]
        j = far.index(min(far))
        if far[j] >= int(radii[j]) ** 2:
            continue
        gaps = [
            sum((a - b) ** 2 for a, b in zip(record, p, strict=True)) for p in parts[j].tolist()
        ]
        g = gaps.index(min(gaps))
        for column in range(d):
            step = record[column] - int(centres[j, column])
            cut = abs(step) * ONE // int(radii[j])
            expected[j, g, column] += cut if step > 0 else -cut
        expected[j, g, -1] += 7
    assert np.array_equal(sum_in_zones(table, centres, radii, parts, count_weight=7), expected)


# --- Zones ----------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**32),
    d=st.sampled_from([1, 2, 30]),
    share=st.sampled_from([0.01, 0.5, 1.0]),
    concentration=st.sampled_from([0.0, 4.0, 1e6]),
)
def test_what_is_drawn_from_a_zone_is_in_it_and_ahead(
    seed: int, d: int, share: float, concentration: float
) -> None:
    rng = np.random.default_rng(seed)
    mean, step = rng.normal(size=d), rng.normal(size=d)
    radius = float(np.linalg.norm(step))
    drawn = draw_from_zone(mean, radius, step, share=share, concentration=concentration, rng=rng)
    assert np.linalg.norm(drawn - mean) <= radius * (1 + 1e-12)
    if share < 0.2:  # the whole zone lies on the side that the step points to, near the edge
        assert np.linalg.norm(drawn - mean) >= radius * (1 - 2 * share) * (1 - 1e-12)
        assert (drawn - mean) @ step >= -share * radius**2
    stays = draw_from_zone(mean, 0.0, step, share=share, concentration=concentration, rng=rng)
    assert np.array_equal(stays, mean)


def test_the_more_concentrated_the_draw_the_nearer_the_mean() -> None:
    rng, step = public_generator("near"), np.ones(3)
    far = [
        np.mean(
            [
                np.linalg.norm(
                    draw_from_zone(np.zeros(3), 1.0, step, share=0.5, concentration=c, rng=rng)
                )
                for _ in range(300)
            ]
        )
        for c in (0.0, 5.0, 50.0)
    ]
    assert far[0] > far[1] + 0.1 > far[2] + 0.2


@pytest.mark.parametrize("d", [1, 2, 9])
def test_draws_from_the_ball_fill_it_evenly(d: int) -> None:
    """Radii to the power of d are uniform: 4000 of them; false alarm below 1e-9."""
    from scipy import stats

    points = draw_from_ball(public_generator("ball", d), 4000, d)
    radii = np.linalg.norm(points, axis=1)
    assert radii.max() <= 1 + 1e-12
    assert stats.kstest(radii**d, "uniform").pvalue > 1e-9
    assert np.abs(points.mean(axis=0)).max() < 0.1


@names
@given(seed=st.integers(0, 2**32), noise=st.sampled_from([0.0, 0.3, 30.0]))
def test_a_centre_stays_in_the_zone_of_its_noisy_mean(name: str, seed: int, noise: float) -> None:
    """The law of the method: what is drawn is no farther from the mean than the old centre."""
    it = replace(designed(name, k=3, d=2, seed=seed % 3), relocate_empty=False)
    rng = np.random.default_rng(seed)
    table = rng.integers(-ONE, ONE + 1, (60, 2), dtype=np.int32)
    found = states(it, table, seed, noise)
    lloyd = it._lloyd
    every = 2 if isinstance(it, SubClusterDP) else 1
    for t in range(0, it.rounds, every):
        before, after = found[t], found[t + every]
        if every == 2:
            mean, radius = found[t + 1]["centres"], found[t + 1]["zone_radius"]
        else:
            rng_noise = np.random.default_rng(seed)
            for s in range(t + 1):
                (block,) = it.blocks(s)
                made_up = np.rint(rng_noise.normal(0, noise * block.l2_squared**0.5, block.size))
            words = it.contribute(t, before, table) + made_up.astype(np.int64)
            moved = on_grid(lloyd, lloyd.update(t, before, released(it, t, words, noise)))
            mean = moved["centres"]
            radius = np.linalg.norm(mean - before["centres"], axis=1)
        limit = it.first_radius if t == 0 else it.radius
        assert (radius <= limit * ONE + 2).all(), "no zone is larger than FastLloyd's radius"
        assert (np.linalg.norm(after["centres"] - mean, axis=1) <= radius + 2).all()


@subclusters
def test_a_relocated_centre_has_no_zone(name: str) -> None:
    it = replace(designed(name, k=4), relocate_empty=True)
    table = np.full((400, 2), ONE // 2, dtype=np.int32)  # one place: the other centres are empty
    found = states(it, table, 0, 1e-9)
    relocated = found[1]["sizes"] <= ONE
    assert relocated.sum() == 3
    assert (found[1]["zone_radius"][relocated] == 0).all()
    assert (found[2]["centres"] == found[1]["centres"])[relocated].all()


def test_without_noise_and_with_enough_steps_they_find_what_lloyd_finds() -> None:
    rng = np.random.default_rng(0)
    middles = np.array([[-0.6, -0.6], [0.6, 0.5], [0.6, -0.7]])
    table = np.vstack([rng.normal(c, 0.05, (200, 2)) for c in middles])
    table = np.rint(np.clip(table, -1, 1) * ONE).astype(np.int32)
    for kind, rounds in ((KMeansGuaranteeDP, 12), (SubClusterDP, 24)):
        farthest = []
        for seed in range(5):  # Lloyd's algorithm is at the mercy of its start, too
            it = toy_task(
                kind,
                n_features=2,
                nominal_n=600,
                budget=None,
                n_clusters=3,
                rounds=rounds,
                public_seed=seed,
            )
            centres = states(it, table, 0, 0.0)[-1]["centres"] / ONE
            gaps = np.linalg.norm(centres[:, None] - middles, axis=2)
            farthest.append(gaps.min(axis=0).max())
        assert min(farthest) < 0.05, kind.name


# --- Plans ----------------------------------------------------------------------------------------


def test_kmeans_guarantee_dp_costs_what_fastlloyd_costs() -> None:
    arguments: dict[str, Any] = {"n_features": 2, "nominal_n": 5000, "budget": BUDGET}
    it = toy_task(KMeansGuaranteeDP, n_clusters=3, **arguments)
    lloyd = toy_task(FastLloyd, n_clusters=3, estimate=False, **arguments)
    assert it.rounds == lloyd.rounds
    assert [it.blocks(t) for t in range(it.rounds)] == [lloyd.blocks(t) for t in range(it.rounds)]


@pytest.mark.parametrize(
    ("kind", "change", "match"),
    [
        (KMeansGuaranteeDP, {"zone_share": 0.0}, "zone_share"),
        (KMeansGuaranteeDP, {"zone_share": 1.5}, "zone_share"),
        (KMeansGuaranteeDP, {"concentration": -1.0}, "concentration"),
        (KMeansGuaranteeDP, {"concentration": float("nan")}, "concentration"),
        (KMeansGuaranteeDP, {"n_clusters": 0}, "n_clusters"),
        (SubClusterDP, {"internal_k": 0}, "internal_k"),
        (SubClusterDP, {"internal_k": 2.0}, "internal_k"),
        (SubClusterDP, {"sub_share": 0.0}, "sub_share"),
        (SubClusterDP, {"sub_share": 1.0}, "sub_share"),
        (SubClusterDP, {"sub_share": float("nan")}, "sub_share"),
        (SubClusterDP, {"rounds": 3}, "even"),
        (SubClusterDP, {"rounds": 0}, "rounds"),
        (SubClusterDP, {"frac_bits": 24, "n_features": 100}, "frac_bits"),
    ],
)
def test_a_wrong_number_is_refused(kind: Any, change: dict[str, Any], match: str) -> None:
    arguments = {"n_features": 2, "nominal_n": 300, "budget": BUDGET, **change}
    with pytest.raises(PlanError, match=match):
        toy_task(kind, **arguments)


@names
def test_the_forecast_is_what_comes_out_for_settled_clusters(name: str) -> None:
    plan = toy_plan(designed(name, k=1, d=2), silos=1, budget=BUDGET, nominal_n=5000)
    (block, *_) = plan.task.blocks(plan.rounds - 1)
    said = plan.task.forecast(plan.noise_std(block), 5000, plan.grid)
    table = np.random.default_rng(0).integers(-200, 200, (5000, 2), dtype=np.int32)
    result = run_plan(plan, {plan.silos[0]: [table]})
    assert np.allclose(said["half_width"], result.results["half_width"], rtol=0.2)
    assert said["size_half_width"] == pytest.approx(result.results["size_half_width"][0], rel=1e-4)
