"""Do the intervals of scorecards hold what they say? The grid.

    python benchmarks/scorecards.py [--runs 1000]

Each line is simulated from its law: fresh records, fresh noise of four tables that share the
budget, and the functions of ``cloister.tasks.tables.risk``. It prints how often the noise interval
holds what the same records say without noise, how often the population interval holds what the law
says, the median widths of both, and the same two rates for a classical analysis, which takes noisy
counts for counts and has no bias removed. In brackets is in how many runs a divergence was known.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import sqrt

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.display import Estimate
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.tasks.tables import risk

EPSILONS, DELTA, TABLES, LEAST = (0.1, 0.5, 1.0, 4.0), 1e-6, 4, 0.93
NO_NOISE = 1e-9
Found = tuple[Estimate, Callable[[Floats], Floats]]


@dataclass(frozen=True)
class Law:
    """Bins, how many records and with the event, how bins tell of it, and how they get smaller."""

    bins: int
    n: int
    rate: float
    effect: float
    falling: float = 1.0

    @property
    def shape(self) -> Floats:
        """The probability of each cell."""
        p = self.falling ** np.arange(self.bins)
        p /= p.sum()
        q = p * np.exp(-self.effect * np.linspace(1, -1, self.bins))
        return np.stack([p * (1 - self.rate), q / q.sum() * self.rate], axis=1)

    def __str__(self) -> str:
        found = f"{self.bins} bins, n {self.n:,}, rate {self.rate:g}, effect {self.effect:g}"
        return found if self.falling == 1 else f"{found}, each {self.falling:g} of the last"


LAWS = (
    Law(5, 1000, 0.2, 0.0),
    Law(5, 1000, 0.2, 0.5),
    Law(10, 1000, 0.1, 0.5),
    Law(10, 10_000, 0.05, 0.0),
    Law(10, 10_000, 0.05, 0.3),
    Law(8, 10_000, 0.2, 1.0),
    Law(20, 50_000, 0.03, 0.5),
    Law(30, 60_000, 0.2, 0.0),
    Law(8, 10_000, 0.1, 0.5, 0.4),
    Law(8, 10_000, 0.03, 0.5, 0.4),
)


def shares(table: Floats) -> tuple[Floats, Floats]:
    """Return what part of its column each cell is; an empty one counts as a record."""
    p, q = (np.maximum(table, 1e-12) / table.sum(axis=0)).T
    return p, q


def distance(table: Floats) -> Floats:
    """Return the largest distance of both distributions."""
    p, q = shares(table)
    return np.full(1, float(np.abs(np.cumsum(p - q)).max()))


def gini(table: Floats) -> Floats:
    """Return the Gini coefficient of both columns."""
    p, q = shares(table)
    order = np.tri(len(p), k=-1) - np.tri(len(p), k=-1).T
    return np.full(1, float(q @ order @ p))


def woe(table: Floats) -> Floats:
    """Return the weight of evidence of each bin."""
    return np.asarray(np.log(np.divide(*shares(table))))


def jeffreys(table: Floats) -> Floats:
    """Return the divergence of both columns."""
    p, q = shares(table)
    return np.atleast_1d(((p - q) * np.log(p / q)).sum())


def below(table: Floats, s: float) -> Found:
    """Return the parts below inner edges."""
    found = risk.below(table, s)
    assert found.population is not None
    inner = [part[1:-1] for part in (found.values, found.low, found.high, *found.population)]
    value, low, high, *wide = inner
    return (
        Estimate(value, low, high, population=(wide[0], wide[1])),
        lambda exact: np.cumsum(exact, axis=0)[:-1] / exact.sum(axis=0),
    )


MEASURES: dict[str, Callable[[Floats, float], Found]] = {
    "woe": lambda table, s: (risk.weights_of_evidence(table, s), woe),
    "iv, psi": lambda table, s: (risk.divergence(table, s), jeffreys),
    "ks": lambda table, s: (risk.kolmogorov(table, s), distance),
    "gini": lambda table, s: (risk.gini(table, s), gini),
    "below": below,
}


def held(found: Found, exact: Floats, law: Floats) -> tuple[float, float, float, float]:
    """Return how often both intervals hold, and how wide they are."""
    estimate, truth = found
    assert estimate.population is not None
    pairs = ((estimate.low, estimate.high, exact), (*estimate.population, law))
    rates = [
        np.mean((low <= truth(at) + 1e-9) & (truth(at) <= high + 1e-9)) for low, high, at in pairs
    ]
    widths = [np.median(high - low) for low, high, _ in pairs]
    return float(rates[0]), float(rates[1]), float(widths[0]), float(widths[1])


@dataclass(frozen=True)
class Row:
    """How often both intervals hold in a cell of the grid, their widths, and a classical one."""

    name: str
    law: Law
    epsilon: float
    runs: int
    of: int
    held: tuple[float, float] = (1.0, 1.0)
    widths: tuple[float, float] = (0.0, 0.0)
    classical: float = 1.0

    @property
    def low(self) -> bool:
        """Whether an interval holds less often than chance explains."""
        slack = 3 * sqrt(LEAST * (1 - LEAST) / max(self.runs, 1))
        return min(self.held) < LEAST - slack

    def __str__(self) -> str:
        if not self.runs:
            return f"| {self.name} | {self.law} | {self.epsilon:g} | never known | | | |"
        few = f" ({self.runs})" * (self.runs < self.of)
        return (
            f"| {self.name} | {self.law} | {self.epsilon:g} | {self.held[0]:.3f}{few} | "
            f"{self.held[1]:.3f} | {self.widths[0]:.3g} / {self.widths[1]:.3g} | "
            f"{self.classical:.3f} |" + " **low**" * self.low
        )


def row(name: str, law: Law, epsilon: float, runs: int) -> Row:
    """Return a cell of the grid."""
    rng, s = np.random.default_rng(5), gaussian_noise_multiplier(epsilon, DELTA) * sqrt(TABLES)
    shape, measure = law.shape, MEASURES[name]
    ours, classical = [], []
    for _ in range(runs):
        exact = rng.poisson(law.n * shape).astype(float)
        noisy = exact + rng.normal(0, s, exact.shape)
        found = measure(noisy, s)
        if name == "iv, psi" and np.isnan(found[0].values[0]):
            continue
        ours.append(held(found, np.maximum(exact, 1e-9), shape))
        cut = np.maximum(noisy, 0.5)
        classical.append(held(measure(cut, NO_NOISE), np.maximum(exact, 1e-9), shape))
    if not ours:
        return Row(name, law, epsilon, 0, runs)
    noise, wide, *widths = np.mean(ours, axis=0).tolist()
    naive = float(np.mean(classical, axis=0)[1])
    return Row(name, law, epsilon, len(ours), runs, (noise, wide), (*widths,), naive)


def summary(rows: list[Row]) -> Iterator[str]:
    """Yield a table with a line for each measure and epsilon, of cells with half of all runs."""
    yield "| measure | epsilon | cells | noise, least | population, least | classical, least |"
    yield "|---|---|---|---|---|---|"
    kept = [row for row in rows if 2 * row.runs >= row.of]
    for name, epsilon in product(MEASURES, EPSILONS):
        own = [row for row in kept if (row.name, row.epsilon) == (name, epsilon)]
        noise, wide = (min(row.held[k] for row in own) for k in (0, 1))
        naive = min(row.classical for row in own)
        yield f"| {name} | {epsilon:g} | {len(own)} | {noise:.3f} | {wide:.3f} | {naive:.3f} |"


def main() -> None:
    """Print the grid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    print("| measure | law | epsilon | noise | population | widths | classical |")
    print("|---|---|---|---|---|---|---|")
    every = []
    for cell in product(MEASURES, LAWS, EPSILONS):
        every.append(row(*cell, runs))
        print(every[-1], flush=True)
    low = sum(row.low for row in every)
    print(f"\n{len(every)} cells, {low} below {LEAST} by more than 3 deviations of their runs.\n")
    print(*summary(every), sep="\n")


if __name__ == "__main__":
    main()
