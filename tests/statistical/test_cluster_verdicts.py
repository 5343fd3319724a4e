"""Intervals and verdicts of clusters hold for k-means on the pooled records, on fresh tables.

Tables, starts and noise have seeds, so that a run repeats. The tables were not used to choose any
constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from cloister import Budget, Schema
from cloister.app.job import make_plan
from cloister.protocol.plan import Plan
from cloister.tasks.clustering.auto import Auto
from cloister.tasks.clustering.clusters import all_at_once
from cloister.testing import rerun

Floats = NDArray[np.float64]
EPSILONS = (0.5, 1.0, 4.0)
TABLES = range(4)


@dataclass(frozen=True)
class Fit:
    """A release beside the answers without privacy, in grid coordinates."""

    centres: Floats
    low: Floats
    high: Floats
    verdict: Floats
    fixed: Floats  # of Lloyd's algorithm on the records, from the centres
    optimum: Floats  # of k-means with ten starts, the nearest centre to each

    def holds(self, answer: Floats, verdict: int) -> Floats:
        """Return a flag of each coordinate of the clusters with a verdict."""
        inside = (self.low <= answer) & (answer <= self.high)
        return inside[self.verdict == verdict].astype(np.float64).ravel()


def groups(columns: int, table: int) -> tuple[Floats, int]:
    """Return two to six normal groups that are at least three deviations apart."""
    generator = np.random.default_rng([columns, table, 41])
    k = int(generator.integers(2, 7))
    places = generator.uniform(-1, 1, (200, columns))
    chosen = [places[0]]
    for place in places[1:]:
        if len(chosen) < k and np.linalg.norm(np.array(chosen) - place, axis=1).min() > 0.55:
            chosen.append(place)
    k, spread = len(chosen), 0.55 / generator.choice([5.0, 7.0, 9.0])
    labels = generator.integers(k, size=int(generator.integers(1500, 6000)))
    return np.array(chosen)[labels] + generator.normal(size=(len(labels), columns)) * spread, k


def cloud(columns: int, table: int) -> tuple[Floats, int]:
    """Return a normal, uniform, skewed or stretched cloud, and a number of clusters to cut."""
    generator = np.random.default_rng([columns, table, 42])
    shape = (int(generator.integers(1500, 6000)), columns)
    kinds = (
        lambda: generator.normal(size=shape),
        lambda: generator.uniform(-1, 1, shape),
        lambda: generator.gamma(2, 1, shape),
        lambda: generator.normal(size=shape) * np.linspace(1, 2.5, columns),
    )
    return kinds[table % len(kinds)](), int(generator.integers(2, 7))


def plan_for(records: int, columns: int, k: int, epsilon: float) -> Plan:
    rules = [{"name": f"c{j}", "type": "number", "min": -1, "max": 1} for j in range(columns)]
    return make_plan(
        Auto,
        Schema(dataset="d", unit="row", columns=rules),
        ["silo"],
        budget=Budget(epsilon, 1e-6),
        nominal_n=records,
        n_clusters=k,
        public_seed=1,
    )


def nearest(centres: Floats, others: Floats) -> Floats:
    apart = np.linalg.norm(centres[:, None] - others, axis=2)
    return others[apart.argmin(axis=1)]


def fits(table: tuple[Floats, int]) -> Iterator[Fit]:
    values, k = table
    low, high = values.min(axis=0), values.max(axis=0)
    scaled = 2 * (values - low) / (high - low) - 1
    best = KMeans(k, n_init=10, random_state=0).fit(scaled).cluster_centers_
    for number, epsilon in enumerate(EPSILONS):
        plan = plan_for(len(scaled), scaled.shape[1], k, epsilon)
        records = plan.grid.encode(scaled)
        found = rerun(plan, records, np.random.default_rng([number, 43]))
        lloyd = KMeans(k, init=found["centres"], n_init=1, tol=0, max_iter=1000).fit(scaled)
        yield Fit(
            *(found[name] for name in ("centres", "low", "high", "verdict")),
            lloyd.cluster_centers_,
            nearest(found["centres"], best),
        )


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_intervals_of_determined_groups_hold_the_answer_of_k_means(columns: int) -> None:
    found = [fit for table in TABLES for fit in fits(groups(columns, table))]
    assert all(((fit.low <= fit.centres) & (fit.centres <= fit.high)).all() for fit in found)
    determined = np.concatenate([fit.verdict == 2 for fit in found])
    assert determined.mean() > 0.5
    assert np.concatenate([fit.holds(fit.fixed, 2) for fit in found]).mean() >= 0.95
    assert np.concatenate([fit.holds(fit.optimum, 2) for fit in found]).mean() >= 0.93


@pytest.mark.parametrize("columns", [4, 7, 12])
def test_intervals_in_many_columns_hold_the_answer_of_k_means(columns: int) -> None:
    """Fewer clusters are determined there: the counts at their borders cost budget."""
    found = [fit for table in TABLES for fit in fits(groups(columns, table))]
    assert all(((fit.low <= fit.centres) & (fit.centres <= fit.high)).all() for fit in found)
    assert np.concatenate([fit.verdict == 2 for fit in found]).mean() > 0.4
    assert np.concatenate([fit.holds(fit.fixed, 2) for fit in found]).mean() >= 0.95
    assert np.concatenate([fit.holds(fit.optimum, 2) for fit in found]).mean() >= 0.93


@pytest.mark.parametrize("columns", [2, 3, 4, 7, 12])
def test_no_part_of_a_cloud_is_determined(columns: int) -> None:
    found = [fit for table in TABLES for fit in fits(cloud(columns, table))]
    assert not any((fit.verdict == 2).any() for fit in found)


def test_the_intervals_of_all_centres_hold_together() -> None:
    """As in the demonstration; a run is a failure if one of its cells is."""
    values, k = groups(2, 0)
    scaled = 2 * (values - values.min(axis=0)) / np.ptp(values, axis=0) - 1
    best = KMeans(k, n_init=10, random_state=0).fit(scaled).cluster_centers_
    plan = plan_for(len(scaled), 2, k, 1.0)
    records, held = plan.grid.encode(scaled), []
    for seed in range(40):
        found = rerun(plan, records, np.random.default_rng([seed, 44]))
        low, high = all_at_once(*(found[name] for name in ("centres", "low", "high")))
        answer = nearest(found["centres"], best)
        held.append(bool(((low <= answer) & (answer <= high)).all()))
    assert sum(held) >= 37


@pytest.mark.parametrize("nominal", [1 / 3, 0.9, 1.0, 3.0])
def test_a_single_centre_holds_the_mean_whatever_number_was_agreed(nominal: float) -> None:
    """Of 240 intervals at 95 %, 217 hold with a probability above 0.999; a seed fixes them."""
    generator = np.random.default_rng(45)
    held, sizes = [], []
    for seed in range(60):
        values = np.clip(generator.normal(0.3, 0.2, (2000, 4)), -1, 1)
        plan = plan_for(round(nominal * len(values)), 4, 1, 0.5)
        records = plan.grid.encode(values)
        found = rerun(plan, records, np.random.default_rng([seed, 46]))
        mean = values.mean(axis=0)
        held.append((found["low"][0] <= mean) & (mean <= found["high"][0]))
        sizes.append(abs(found["sizes"][0] - len(values)) <= found["size_half_width"][0])
    assert np.mean(held) >= 217 / 240
    assert np.mean(sizes) >= 0.85
