"""Do intervals and tests of noisy tables hold what they say? The grid, and the error on Adult.

    python benchmarks/tables.py [--data FOLDER] [--runs 2000]

Each cell is simulated from its law: fresh records, fresh noise, intervals and tests of
``cloister.tasks.tables.inference``. Of an interval it prints how often it holds the truth, and its
mean width over that of an oracle, which knows the truth and all variances and gives the estimate
plus or minus 1.96 deviations, cut to what is possible. Of a test, how often p is below .05. The
last part releases tables of Adult with the whole budget on one table.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import numpy as np
import pandas as pd

from cloister.arrays import Floats
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.tasks.scores import Estimate
from cloister.tasks.tables.inference import (
    count_interval,
    independence,
    mean_interval,
    odds_ratio,
    relative_risk,
    share_interval,
    shown,
    trend,
)

DATA = Path(__file__).parents[2] / "data"  # beside the checkout
EPSILONS, DELTA, Z = (0.1, 0.5, 1.0, 4.0), 1e-6, 1.96
COVERAGE, WIDTH, LEVEL = (0.93, 0.97), 1.15, (0.035, 0.075)
RARE = np.array([0.4, 0.3, 0.2, 0.08, 0.02])
ADULT = {
    ("sex", "income"): (0.001, 0.0002, 0.0001, 0.0000),
    ("education", "income"): (0.009, 0.002, 0.001, 0.0003),
    ("sex", "race", "income"): (0.006, 0.001, 0.0007, 0.0002),
    ("education", "occupation", "income"): (0.093, 0.025, 0.014, 0.004),
}
"""Tables with the total variation that is to be reached at each epsilon."""


@dataclass(frozen=True)
class Row:
    """One cell of the grid: what was measured, and whether it is within the bars."""

    kind: str
    case: str
    epsilon: float
    value: float
    low: float
    high: float
    width: float | None = None

    @property
    def fits(self) -> bool:
        """Whether the figure is within its bars."""
        return self.low <= self.value <= self.high and (self.width or 0.0) <= WIDTH

    def __str__(self) -> str:
        width = "" if self.width is None else f"{self.width:.2f}"
        mark = "" if self.fits else "outside"
        cells = (self.kind, self.case, f"{self.epsilon:g}", f"{self.value:.3f}", width, mark)
        return f"| {' | '.join(cells)} |"


def noise(epsilon: float) -> float:
    """Return the noise of a cell of the only table, in records."""
    return float(gaussian_noise_multiplier(epsilon, DELTA))


def widths(deviation: Floats, truth: Floats, box: tuple[float, float]) -> Floats:
    """Return the expected width of the oracle's interval, cut to a box."""
    draws = truth + deviation * np.random.default_rng(1).normal(size=(4000, *np.shape(truth)))
    low, high = (np.clip(draws + side * Z * deviation, *box) for side in (-1, 1))
    return np.asarray((high - low).mean(axis=0))


def covered(
    kind: str, case: str, epsilon: float, found: Estimate, truth: Floats, oracle: Floats
) -> Row:
    """Return the coverage of population intervals; all cells of a table count alike."""
    assert found.population is not None
    low, high = found.population
    inside = (low <= truth) & (truth <= high)
    wide = float(((high - low).mean(axis=0) / oracle).mean())
    return Row(kind, case, epsilon, float(inside.mean()), *COVERAGE, wide)


def counts(rng: np.random.Generator, runs: int) -> Iterator[Row]:
    """Counts of the cells of a population."""
    for epsilon in EPSILONS:
        s = noise(epsilon)
        for mean in (3.0, 30.0, 300.0, 3000.0):
            y = rng.poisson(mean, runs) + rng.normal(0, s, runs)
            oracle = widths(np.sqrt(mean + s**2), np.asarray(mean), (0, np.inf))
            yield covered("count", f"mean {mean:g}", epsilon, count_interval(y, s), mean, oracle)


def shares(rng: np.random.Generator, runs: int) -> Iterator[Row]:
    """Shares of a table of five levels, some of them rare."""
    for n in (200, 1000, 10_000, 48_842):
        for epsilon in EPSILONS:
            s, k = noise(epsilon), len(RARE)
            y = rng.poisson(n * RARE, (runs, k)) + rng.normal(0, s, (runs, k))
            spread = RARE * (1 - RARE) / n + s**2 * (1 - 2 * RARE + k * RARE**2) / n**2
            oracle = widths(np.sqrt(spread), RARE, (0, 1))
            yield covered("share", f"n {n}", epsilon, share_interval(y, s), RARE, oracle)


def means(rng: np.random.Generator, runs: int) -> Iterator[Row]:
    """Group means of one column: skewed numbers, and such at the ends of the box."""
    laws: dict[str, Callable[..., Floats]] = {
        "beta(2, 5)": lambda size: 2 * rng.beta(2, 5, size) - 1,
        "ends": lambda size: rng.choice([-1.0, 1.0], size, p=[0.9, 0.1]),
        "narrow": lambda size: np.clip(rng.normal(0.3, 0.1, size), -1, 1),
    }
    for law, draw in laws.items():
        many = draw(1_000_000)
        truth, variance = many.mean(), many.var()
        for n in (30, 200, 2000):
            for epsilon in EPSILONS:
                s = noise(epsilon) * sqrt(3)  # the block has a squared norm of 3
                sizes = rng.poisson(n, runs)
                x, group = draw(int(sizes.sum())), np.repeat(np.arange(runs), sizes)
                sums = (
                    np.bincount(group, part, runs) + rng.normal(0, s, runs)
                    for part in (x, np.ones_like(x), 2 * x**2 - 1)
                )
                spread = variance / n + s**2 * (1 + truth**2) / n**2
                oracle = widths(np.sqrt(spread), np.asarray(truth), (-1, 1))
                found = mean_interval(*sums, s)
                yield covered("mean", f"{law}, n {n}", epsilon, found, truth, oracle)


def ratios(rng: np.random.Generator, runs: int) -> Iterator[Row]:
    """Odds ratios and relative risks of 2x2 tables; twice the risk in the first row."""
    for n in (400, 2000, 10_000):
        for rate in (0.01, 0.1, 0.4):
            risks = np.array([min(2 * rate, 0.5), rate])
            truth = 0.5 * np.stack([risks, 1 - risks], axis=1)
            for epsilon in EPSILONS:
                s = noise(epsilon)
                y = rng.poisson(n * truth, (runs, 2, 2)) + rng.normal(0, s, (runs, 2, 2))
                (a, b), (c, d) = truth
                exact = {"odds ratio": a * d / (b * c), "relative risk": risks[0] / risks[1]}
                found = {"odds ratio": odds_ratio(y, s), "relative risk": relative_risk(y, s)}
                for kind, (estimate, _) in found.items():
                    assert estimate.population is not None
                    low, high = estimate.population
                    inside = float(((low <= exact[kind]) & (exact[kind] <= high)).mean())
                    yield Row(kind, f"n {n}, events {rate:.0%}", epsilon, inside, *COVERAGE)


def associated(rows: Floats, columns: Floats, effect: float) -> Floats:
    """Return a table of probabilities with one linear effect of ``phi**2 = effect``."""
    parts = []
    for part in (rows, columns):
        scores = np.arange(len(part)) - part @ np.arange(len(part))
        parts.append(part * scores / np.sqrt(part @ scores**2))
    return np.outer(rows, columns) + sqrt(effect) * np.outer(*parts)


TABLES = {
    "2x2": (np.array([0.6, 0.4]), np.array([0.8, 0.2])),
    "3x4": (np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.3, 0.2, 0.1])),
    "16x2": (np.arange(1, 17) / np.arange(1, 17).sum(), np.array([0.75, 0.25])),
    "5x5, rare levels": (RARE, RARE[::-1]),
}


def levels(rng: np.random.Generator, runs: int) -> Iterator[Row]:
    """How often a test rejects independence where it holds."""
    for name, (rows, columns) in TABLES.items():
        for n in (1000, 10_000):
            for epsilon in EPSILONS:
                yield from rejections(rng, runs, name, rows, columns, n, epsilon, 0.0, LEVEL)


def powers(rng: np.random.Generator, runs: int) -> Iterator[Row]:
    """How often a test rejects independence where it does not hold."""
    for n, of_both in {
        1000: ((0.07, 0.30, 0.53, 0.75), (0.08, 0.48, 0.79, 0.93)),
        10_000: ((0.99,) * 4, (0.99,) * 4),
    }.items():
        for epsilon, *bars in zip(EPSILONS, *of_both, strict=True):
            found = rejections(rng, runs, "3x4", *TABLES["3x4"], n, epsilon, 0.012, LEVEL)
            for row, bar in zip(found, bars, strict=True):
                error = 3 * sqrt(max(bar * (1 - bar), 0.01) / runs)
                kind = row.kind.replace("level", "power")
                yield Row(kind, row.case, epsilon, row.value, bar - error - 0.005, 1.0)


def rejections(
    rng: np.random.Generator,
    runs: int,
    name: str,
    rows: Floats,
    columns: Floats,
    n: int,
    epsilon: float,
    effect: float,
    bars: tuple[float, float],
) -> Iterator[Row]:
    """Return how often both tests have p below .05."""
    s, truth = noise(epsilon), associated(rows, columns, effect)
    drawn = rng.multinomial(n, truth.ravel(), runs).reshape(runs, *truth.shape)
    y = drawn + rng.normal(0, s, drawn.shape)
    for kind, test in (("independence", independence), ("trend", trend)):
        rejected = float((test(y, s).p < 0.05).mean())
        yield Row(f"level of {kind}", f"{name}, n {n}", epsilon, rejected, *bars)


def adult(rng: np.random.Generator, data: Path) -> Iterator[Row]:
    """Total variation of shown counts of Adult; the mean of 20 releases."""
    records = pd.read_csv(data / "adult_full.csv.gz", dtype=str).fillna("missing")
    for names, bars in ADULT.items():
        exact = records[list(names)].value_counts()
        levels = [sorted(records[name].unique()) for name in names]
        table = exact.reindex(pd.MultiIndex.from_product(levels), fill_value=0).to_numpy(float)
        for epsilon, bar in zip(EPSILONS, bars, strict=True):
            noisy = table + rng.normal(0, noise(epsilon), (20, table.size))
            parts = shown(noisy)
            gaps = parts / parts.sum(axis=1, keepdims=True) - table / table.sum()
            distance = float(np.abs(gaps).sum(axis=1).mean() / 2)
            case = f"{' x '.join(names)} ({table.size} cells), bar {bar:g}"
            most = bar * 1.1 + 0.0005 if bar >= 0.01 else bar + 0.0005  # the digits of the bar
            yield Row("total variation", case, epsilon, distance, 0.0, most)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--runs", type=int, default=2000)
    options = parser.parse_args()
    print("| what | case | epsilon | figure | width over oracle | |\n|---|---|---|---|---|---|")
    outside = 0
    for part in (counts, shares, means, ratios, levels, powers):
        for row in part(np.random.default_rng(0), options.runs):
            outside += not row.fits
            print(row, flush=True)
    if (options.data / "adult_full.csv.gz").is_file():
        for row in adult(np.random.default_rng(0), options.data):
            outside += not row.fits
            print(row, flush=True)
    print(f"\n{outside} outside.")
