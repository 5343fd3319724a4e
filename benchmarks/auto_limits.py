"""What `auto` in more than three columns loses, and where: oracles that see what it must pay for.

    python benchmarks/auto_limits.py [--tables 24] [--runs 2]

Prints the tables of docs/results/auto-limits.md. Noise is simulated on generated public tables; an
oracle reads records, so nothing here is a release. The first part is the error over the optimum on
round groups, up to 64 clusters in 64 columns and 200,000 records, as epsilon grows. A figure of the
second part is (M - x) / (M - O) in NICV: 0 for the exact mean of all records (M), 1 for
scikit-learn's k-means, best of ten starts (O). The third part is x / M for small tables with many
columns, where the mean itself is hard to know.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from itertools import product
from math import isqrt, log, sqrt

import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

from cloister.core.arrays import Floats, GridState, Integers, Records
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.calibration import gdp_mu_for
from cloister.protocol.task import NoisyBlock
from cloister.tasks.clustering.auto import Auto
from cloister_lab.metrics import nicv

ONE = 1 << 16
EPSILONS = (0.1, 0.25, 0.5, 1.0)
GROWING = (0.25, 0.5, 1.0, 4.0, 10_000.0)
SIZES = (4, 16, 64)  # numbers of clusters, and of columns
ROWS = (5000, 20_000, 200_000)
MOMENTS = ("gram", "shift", "moments")
START = ("sum", "distances", "shift", "gram", "cells")
EXACT = 1e-3  # noise of what an oracle sees, of what a plan would draw

Method = Callable[[Auto, Records, np.random.Generator], Floats]


def table(seed: int, n: int, d: int, k: int) -> Records:
    """Return a mixture of normal or heavy-tailed clusters in a few of the columns' directions."""
    rng = np.random.default_rng(seed)
    q = int(rng.integers(2, min(d, 8) + 1))
    centres = rng.uniform(-1, 1, (k, q)) * rng.choice([2.0, 3.0, 5.0])
    directions = np.linalg.qr(rng.normal(size=(d, q)))[0] * sqrt(d / q) / 2
    labels = rng.choice(k, n, p=rng.dirichlet(np.full(k, 5.0)))
    beside = rng.normal(size=(n, d)) if rng.uniform() < 0.7 else rng.standard_t(4, (n, d))
    X = centres[labels] @ directions.T + beside
    low, high = X.min(axis=0), X.max(axis=0)
    return np.rint(((X - low) / (high - low) * 2 - 1) * ONE).astype(np.int32)


def numbers(seed: int) -> tuple[int, int, int]:
    """Return rows, columns and clusters of a generated table."""
    rng = np.random.default_rng([seed, 1])
    n = int(np.exp(rng.uniform(log(300), log(200_000))))
    k = int(np.exp(rng.uniform(log(2), log(64))))
    return n, int(rng.choice([4, 5, 6, 8, 10, 16, 24, 32, 64])), max(2, min(k, n // 25))


def planned(records: Records, k: int, epsilon: float) -> Auto:
    """Return the task with delta as in the papers."""
    n, d = records.shape
    mu = gdp_mu_for(epsilon, 1 / (n * log(n)))
    return Auto(n_clusters=k, n_features=d, nominal_n=n, mu=float(mu))


def fit(
    task: Auto,
    records: Records,
    rng: np.random.Generator,
    exact: Collection[str] = (),
) -> Integers:
    """Return centres on the grid; blocks in `exact` have no noise."""
    state: GridState = {n: round_to_grid(v, task.frac_bits) for n, v in task.start().items()}
    for t in range(task.rounds):
        words, offset, released = task.contribute(t, state, records), 0, {}
        for block in task.blocks(t):
            std = isqrt(block.l2_squared) / (task.mu * sqrt(block.weight))
            std *= EXACT if block.name in exact else 1.0
            values = words[offset : offset + block.size].reshape(block.shape)
            noise = np.rint(rng.normal(size=block.shape) * std).astype(np.int64)
            released[block.name] = NoisyBlock(values + noise, std)
            offset += block.size
        after = task.update(t, state, released)
        state = {n: round_to_grid(v, task.frac_bits) for n, v in after.items()}
    return np.asarray(state["centres"])


def known_partition(
    records: Records, labels: Integers, mu: float, share: float, rng: np.random.Generator
) -> Floats:
    """Return means of known clusters after one release of their sums, with all else free.

    A record counts in full to 1.5 root mean square distances of its own cluster, whose number of
    records is exact; a centre is shrunk to the exact mean by James and Stein's rule.
    """
    X = records / ONE
    d, middle, found = X.shape[1], X.mean(axis=0), []
    for j in np.unique(labels):
        cluster = X[labels == j]
        centre = cluster.mean(axis=0)
        radius = 1.5 * sqrt(((cluster - centre) ** 2).sum(axis=1).mean())
        std = radius / (mu * sqrt(share) * len(cluster))
        offset = centre + rng.normal(size=d) * std - middle
        found.append(middle + offset * max(0.0, 1 - (d - 2) * std**2 / (offset @ offset)))
    return np.clip(found, -1, 1)


def mean_oracle(X: Floats, mu: float, rng: np.random.Generator) -> float:
    """Return NICV over the exact mean's of one mean that has the whole budget and a free radius."""
    middle, d = X.mean(axis=0), X.shape[1]
    cost = ((X - middle) ** 2).sum(axis=1).mean()
    std = sqrt(cost) / (mu * len(X))
    noisy = middle + rng.normal(size=d) * std
    noisy *= max(0.0, 1 - (d - 2) * std**2 / (noisy @ noisy))
    return float(1 + ((noisy - middle) ** 2).sum() / cost)


def oracles(labels: Integers) -> dict[str, Method]:
    """Return `auto` and what it would be if parts of it cost nothing."""
    return {
        "`auto`": lambda t, x, g: fit(t, x, g) / ONE,
        "second moments without noise": lambda t, x, g: fit(t, x, g, MOMENTS) / ONE,
        "cells without noise": lambda t, x, g: fit(t, x, g, ("cells",)) / ONE,
        "whole start without noise": lambda t, x, g: fit(t, x, g, START) / ONE,
        "Lloyd rounds without noise": lambda t, x, g: fit(t, x, g, ("sums", "counts")) / ONE,
        "partition known, half the budget": lambda t, x, g: known_partition(
            x, labels, t.mu, 0.5, g
        ),
        "partition known, whole budget": lambda t, x, g: known_partition(x, labels, t.mu, 1.0, g),
    }


def cost_of_mean(X: Floats) -> float:
    """Return NICV of the exact mean."""
    return float(((X - X.mean(axis=0)) ** 2).sum(axis=1).mean())


def mean_cost(way: Method, task: Auto, records: Records, runs: int) -> float:
    """Return the mean NICV of some runs."""
    seeds = range(runs)
    costs = [nicv(records / ONE, way(task, records, np.random.default_rng(s))) for s in seeds]
    return float(np.mean(costs))


def round_groups(n: int, d: int, k: int) -> tuple[Records, float]:
    """Return normal groups of equal size, and the NICV of k-means from their means."""
    X, _, places = make_blobs(n, d, centers=k, random_state=n + d + k, return_centers=True)
    middle, half = (X.max() + X.min()) / 2, (X.max() - X.min()) / 2
    records = np.rint((X - middle) / half * ONE).astype(np.int32)
    best = KMeans(k, init=(places - middle) / half, n_init=1).fit(records / ONE)
    return records, best.inertia_ / n


def print_growing(runs: int) -> None:
    """Print the error of `auto` over the optimum, by sizes and epsilon."""
    print("| Clusters | Columns | Rows | ε =", " | ".join(f"{e:,g}" for e in GROWING), "|")
    print("|---" * (3 + len(GROWING)) + "|")
    for k, d, n in product(SIZES, SIZES, ROWS):
        records, optimum = round_groups(n, d, k)
        costs = [
            mean_cost(
                lambda t, x, g: fit(t, x, g) / ONE, planned(records, k, epsilon), records, runs
            )
            for epsilon in GROWING
        ]
        cells = " | ".join(f"{cost / optimum:.3f}" for cost in costs)
        print(f"| {k} | {d} | {n:,} | {cells} |", flush=True)


def print_oracles(tables: int, runs: int) -> None:
    """Print how far each oracle goes, by epsilon, with its standard error between tables."""
    found: dict[str, list[list[float]]] = {}
    for seed in range(tables):
        n, d, k = numbers(seed)
        records = table(seed, n, d, k)
        best = KMeans(k, n_init=10, random_state=0).fit(records / ONE)
        middle, optimum = cost_of_mean(records / ONE), best.inertia_ / n
        tasks = [planned(records, k, epsilon) for epsilon in EPSILONS]
        for name, way in oracles(best.labels_).items():
            costs = [mean_cost(way, task, records, runs) for task in tasks]
            found.setdefault(name, []).append([(middle - c) / (middle - optimum) for c in costs])
    print("| | all ε |", " | ".join(f"{e:g}" for e in EPSILONS), "|")
    print("|---" * (2 + len(EPSILONS)) + "|")
    for name, rows in found.items():
        A = np.array(rows)
        error = A.mean(axis=1).std(ddof=1) / sqrt(len(A))
        cells = " | ".join(f"{value:.3f}" for value in A.mean(axis=0))
        print(f"| {name} | {A.mean():.3f} ± {error:.3f} | {cells} |")


def over_the_mean(n: int, d: int, k: int, runs: int) -> list[float]:
    """Return NICV over that of the exact mean, of `auto` and of the oracle, by epsilon."""
    records = table(100_000 + n * d * k, n, d, k)
    X = records / ONE
    tasks = [planned(records, k, epsilon) for epsilon in EPSILONS]
    ours = [mean_cost(lambda t, x, g: fit(t, x, g) / ONE, task, records, runs) for task in tasks]
    seeds = range(runs)
    free = [
        np.mean([mean_oracle(X, task.mu, np.random.default_rng(s)) for s in seeds])
        for task in tasks
    ]
    return [*(cost / cost_of_mean(X) for cost in ours), *map(float, free)]


def print_small(runs: int) -> None:
    """Print NICV over that of the exact mean where rows are few and columns many."""
    print("| Rows | `auto` by ε:", " | ".join(f"{e:g}" for e in EPSILONS), end=" | ")
    print("mean with everything free:", " | ".join(f"{e:g}" for e in EPSILONS), "|")
    for n in (150, 300, 600):
        rows = [over_the_mean(n, d, k, runs) for d in (16, 64, 128) for k in (2, 5, 10)]
        print(f"| {n} |", " | ".join(f"{value:.3f}" for value in np.mean(rows, axis=0)), "|")


def main() -> None:
    """Print all parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=24)
    parser.add_argument("--runs", type=int, default=2)
    given = parser.parse_args()
    print_growing(given.runs)
    print_oracles(given.tables, given.runs)
    print_small(5 * given.runs)


if __name__ == "__main__":
    main()
