"""Do intervals and tests of noisy tables hold what they say? The grid, and the error on Adult.

    python benchmarks/tables.py [--data FOLDER] [--runs 2000]

Each line but those of whole jobs is simulated from its law: fresh records, fresh noise, intervals
and tests of ``cloister.tasks.tables.inference``. Of an interval it prints how often it holds the
truth, and its median width over that of an oracle, which knows the truth and all variances. Every
width is judged, by one of two oracles that the line names:

- *normal*: the estimate plus or minus 1.96 deviations, cut to what is possible. It is no valid
  interval where a denominator is less than 6 deviations of its noise above 0 (Fieller's exact set
  is 1.12 times as wide at 6, 1.32 times at 4), or fewer than 5 records are expected (Garwood's
  exact interval of 3 records is 1.27 times as wide, without any noise). There it is
- *exact* for a count: the equal-tailed inversion of the law itself, a Poisson number with noise;
- *set* for all others: the same kind of set, Fieller's, of the same noisy numbers, with the
  variances and covariances that the truth and the true noise give in place of estimated ones.

Cells of a table that have different oracles are on lines of their own. An end that is open in the
set of most runs is the end of the box, and of a ratio 1e9, in the oracle's as in ours. Of a test,
it prints how often p is below .05. The last parts run whole jobs, with a wrong nominal number of
records and with weights, and measure tables of Adult with the whole budget on one table.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import inf, sqrt
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import gammaln, ndtr

from cloister import Schema
from cloister.app.job import run_job
from cloister.core.arrays import Floats
from cloister.core.display import Estimate
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.tasks.intervals import fieller
from cloister.tasks.scores import mean_interval
from cloister.tasks.tables.inference import (
    count_interval,
    independence,
    odds_ratio,
    relative_risk,
    share_interval,
    shown,
    trend,
)
from cloister.tasks.tables.tabulate import Tabulate
from cloister.testing import SimulatedNoise

DATA = Path(__file__).parents[2] / "data"  # beside the checkout
EPSILONS, DELTA, Z = (0.1, 0.5, 1.0, 4.0), 1e-6, 1.96
COVERAGE, WIDTH, LEVEL, CLEAR, FEW = 0.93, 1.15, 0.075, 6.0, 5.0
RARE = np.array([0.4, 0.3, 0.2, 0.08, 0.02])
ADULT = {
    ("sex", "income"): (0.001, 0.0002, 0.0001, 0.0000),
    ("education", "income"): (0.009, 0.002, 0.001, 0.0003),
    ("sex", "race", "income"): (0.006, 0.001, 0.0007, 0.0002),
    ("education", "occupation", "income"): (0.093, 0.025, 0.014, 0.004),
}
"""Tables with the total variation that is to be reached at each epsilon."""
RARE_ENDS = {"1 in a tenth, else -1": 0.1, "1 in 1 of 50, else -1": 0.02}
Box = tuple[float, float]


@dataclass(frozen=True)
class Row:
    """One line of the grid: what was measured, and whether it is within the bars."""

    kind: str
    case: str
    epsilon: float
    value: float
    low: float
    high: float
    width: float | None = None
    oracle: str = ""

    @property
    def misses(self) -> str:
        """Which bars the figures are beyond: nothing if none."""
        wide = self.width is not None and self.width > WIDTH
        held = self.low <= self.value <= self.high
        return ", ".join(["figure outside"] * (not held) + [f"width over {WIDTH}"] * wide)

    def __str__(self) -> str:
        width = "" if self.width is None else f"{self.width:.2f}"
        figures = (f"{self.epsilon:g}", f"{self.value:.3f}", width, self.oracle, self.misses)
        return f"| {' | '.join((self.kind, self.case, *figures))} |"


@dataclass(frozen=True)
class Truth:
    """What an interval is of, and what oracles say: a deviation, and the ends of a valid set.

    `of_denominator` is the deviation of the denominator by its size.
    """

    value: Floats | float
    deviation: Floats | float
    ends: tuple[Floats, Floats]
    of_denominator: float = 0.0
    oracle: str = "set"


def noise(epsilon: float) -> float:
    """Return the noise of a cell of the only table, in records."""
    return float(gaussian_noise_multiplier(epsilon, DELTA))


def covered(
    kind: str,
    case: str,
    epsilon: float,
    found: Estimate,
    *,
    of_noise: Truth,
    of_population: Truth,
    box: Box,
    expected: Floats | float = inf,
) -> Iterator[Row]:
    """Yield coverage and width of both intervals; all cells with one oracle count alike."""
    assert found.population is not None
    rng = np.random.default_rng(1)
    ends = {"noise": (found.low, found.high), "population": found.population}
    for name, of in (("noise", of_noise), ("population", of_population)):
        low, high = ends[name]
        inside = (low <= of.value) & (of.value <= high)
        given = np.asarray(of.value)
        around = given.mean(axis=0) if given.shape == low.shape else given
        draws = around + of.deviation * rng.normal(size=(4000, *np.shape(around)))
        first, last = (np.clip(draws + side * Z * of.deviation, *box) for side in (-1, 1))
        normal = np.broadcast_to(expected, around.shape) >= FEW
        normal = normal & (of.of_denominator * CLEAR <= 1)
        widths = {"normal": (normal, last - first), of.oracle: (~normal, of.ends[1] - of.ends[0])}
        for oracle, (kept, width) in widths.items():
            if kept.any():
                times = np.median(high - low, axis=0)[kept] / np.median(width, axis=0)[kept]
                held, wide = float(inside[:, kept].mean()), float(times.mean())
                yield Row(f"{kind}, {name}", case, epsilon, held, COVERAGE, 1.0, wide, oracle)


def exact_counts(noisy: Floats, s: float) -> tuple[Floats, Floats]:
    """Return all means of which a Poisson number with noise is in neither tail of 2.5 %."""
    k = np.arange(max(float(noisy.max()), 10.0) + 9 * s + 40)
    below = ndtr((noisy[:, None] - k) / s)  # the chance of less, of so many records
    least, most = np.zeros((2, len(noisy))), np.full((2, len(noisy)), k[-1] / 2)
    for _ in range(40):
        middle = (least + most) / 2
        chances = np.exp(k * np.log(middle[..., None]) - middle[..., None] - gammaln(k + 1))
        rise = (chances * below).sum(axis=-1) > np.array([[0.975], [0.025]])
        least, most = np.where(rise, middle, least), np.where(rise, most, middle)
    return least[0], most[1]


def counts(rng: np.random.Generator, runs: int) -> Iterator[Row]:
    """Counts of the cells of a population."""
    for epsilon, mean in product(EPSILONS, (3.0, 30.0, 300.0, 3000.0)):
        s = noise(epsilon)
        exact = rng.poisson(mean, runs).astype(float)
        noisy = exact + rng.normal(0, s, runs)
        found = count_interval(noisy, s)
        narrow = np.maximum(noisy - Z * s, 0), np.maximum(noisy + Z * s, 0)
        wide = exact_counts(noisy, s) if mean < FEW else narrow
        yield from covered(
            "count",
            f"mean {mean:g}",
            epsilon,
            found,
            of_noise=Truth(exact, s, narrow),
            of_population=Truth(mean, sqrt(mean + s**2), wide, oracle="exact"),
            box=(0, inf),
            expected=mean,
        )


LEVELS = {
    "rare levels": (RARE, (200, 1000, 10_000, 48_842)),
    "very skewed": (np.array([0.97, 0.02, 0.006, 0.003, 0.0009, 0.0001]), (1000, 10_000)),
    "two levels, 1 %": (np.array([0.99, 0.01]), (200, 2000)),
    "40 levels, 30 empty": (np.r_[np.full(10, 0.1), np.zeros(30)], (1000, 10_000)),
}


def shares(rng: np.random.Generator, runs: int) -> Iterator[Row]:
    """Shares of tables of one column."""
    for name, (p, sizes) in LEVELS.items():
        for n, epsilon in product(sizes, EPSILONS):
            s, k = noise(epsilon), len(p)
            exact = rng.poisson(n * p, (runs, k))
            noisy = exact + rng.normal(0, s, (runs, k))
            found, whole = share_interval(noisy, s), noisy.sum(axis=1, keepdims=True)
            # the score of p: a cell less p of the whole, whose variance is n p (1 - p) and noise
            sets = [
                fieller(noisy, whole, s**2, k * s**2 - n * m, s**2 - n * m / 2, box=(0, 1))
                for m in (0, 1)
            ]
            of_noise = s**2 * (1 - 2 * p + k * p**2) / n**2
            spread, below = p * (1 - p) / n + of_noise, s * sqrt(k) / n
            own = exact / exact.sum(axis=1, keepdims=True)
            yield from covered(
                f"share, {name}",
                f"n {n}",
                epsilon,
                found,
                of_noise=Truth(own, np.sqrt(of_noise), sets[0], below),
                of_population=Truth(p, np.sqrt(spread), sets[1], below),
                box=(0, 1),
                expected=n * np.minimum(p, 1 - p),
            )


def means(rng: np.random.Generator, runs: int) -> Iterator[Row]:
    """Group means of one column: skewed numbers, and such at the ends of the box."""
    laws: dict[str, Callable[..., Floats]] = {
        "beta(2, 5)": lambda size: 2 * rng.beta(2, 5, size) - 1,
        "1 in a tenth, else -1": lambda size: rng.choice([-1.0, 1.0], size, p=[0.9, 0.1]),
        "narrow": lambda size: np.clip(rng.normal(0.3, 0.1, size), -1, 1),
        "1 in 1 of 50, else -1": lambda size: rng.choice([-1.0, 1.0], size, p=[0.98, 0.02]),
        "exponential": lambda size: np.clip(rng.exponential(0.2, size) - 1, -1, 1),
    }
    for law, draw in laws.items():
        many = draw(1_000_000)
        truth, variance = many.mean(), many.var()
        for n, epsilon in product((30, 200, 2000), EPSILONS):
            s = noise(epsilon) * sqrt(3)  # the block has a squared norm of 3
            sizes = rng.poisson(n, runs)
            x, group = draw(int(sizes.sum())), np.repeat(np.arange(runs), sizes)
            exact = [np.bincount(group, part, runs) for part in (x, np.ones_like(x), 2 * x**2 - 1)]
            noisy = [part + rng.normal(0, s, runs) for part in exact]
            squares = (noisy[2] + noisy[1]) / 2
            found = mean_interval(*noisy[:2], squares, s**2, s**2)
            of_noise = s**2 * (1 + truth**2) / n**2
            var = n * (variance + truth**2), n, n * truth  # of sums of x and of 1, and of both
            sets = [
                fieller(*noisy[:2], s**2 + m * var[0], s**2 + m * var[1], m * var[2], box=(-1, 1))
                for m in (0, 1)
            ]
            yield from covered(
                "mean",
                f"{law}, n {n}",
                epsilon,
                found,
                of_noise=Truth(exact[0] / exact[1], sqrt(of_noise), sets[0], s / n),
                of_population=Truth(truth, sqrt(variance / n + of_noise), sets[1], s / n),
                box=(-1, 1),
                expected=n * RARE_ENDS.get(law, inf),
            )


def ratios(rng: np.random.Generator, runs: int) -> Iterator[Row]:
    """Odds ratios and relative risks of 2x2 tables; twice the risk in the first row."""
    for n, rate, epsilon in product((400, 2000, 10_000), (0.01, 0.1, 0.4), EPSILONS):
        risks, s = np.array([min(2 * rate, 0.5), rate]), noise(epsilon)
        cells = n * 0.5 * np.stack([risks, 1 - risks], axis=1)
        exact = rng.poisson(cells, (runs, 2, 2)).astype(float)
        y = exact + rng.normal(0, s, exact.shape)
        for kind, function in (("odds ratio", odds_ratio), ("relative risk", relative_risk)):
            truth, of_risk = _ratio(cells, kind), kind == "relative risk"
            moved = _spread(cells, s, of_risk), _spread(cells, s, of_risk, sampled=True)
            # of the denominator: the cells b and c, or c and a + b
            below = sqrt(s**2 / cells[1, 0] ** 2 + s**2 / (1 if of_risk else cells[0, 1]) ** 2)
            below = s / cells[1, 0] if of_risk else below
            with np.errstate(divide="ignore", invalid="ignore"):
                sample = _ratio(exact, kind)
            sample = np.where(np.isnan(sample), truth, np.minimum(sample, 1e9))  # of 0 by 0, of 0
            sets = (known_ratio(y, at, s**2 + v, of_risk) for at, v in ((exact, 0), (cells, cells)))
            parts = [
                Truth(value, truth * spread, ends, max(below, spread))
                for value, spread, ends in zip((sample, truth), moved, sets, strict=True)
            ]
            found, _ = function(y, s)
            yield from covered(
                kind,
                f"n {n}, events {rate:.0%}",
                epsilon,
                found,
                of_noise=parts[0],
                of_population=parts[1],
                box=(0, 1e9),
                expected=cells.min(),
            )


def _ratio(table: Floats, kind: str) -> Floats:
    a, b, c, d = (table[..., i, j] for i in (0, 1) for j in (0, 1))
    return a * d / (b * c) if kind == "odds ratio" else a * (c + d) / (c * (a + b))


def known_ratio(
    noisy: Floats, at: Floats, v: Floats | float, of_risk: bool
) -> tuple[Floats, Floats]:
    """Return Fieller's set of a ratio, of products whose variances are those of known cells.

    Where the denominator is within its deviation, the set of the inverse may have a lower end.
    """
    (a, b, c, d), (p, q, r, t) = (
        [part[..., i, j] for i in (0, 1) for j in (0, 1)] for part in (noisy, at)
    )
    (vp, vq), (vr, vt) = np.broadcast_to(v, (2, 2))
    if of_risk:
        parts = a * (c + d), c * (a + b)
        both = (r + t) * r * vp + p * (p + q) * vr + vp * vr
        above = (r + t) ** 2 * vp + p**2 * (vr + vt) + vp * (vr + vt)
        below = r**2 * (vp + vq) + (p + q) ** 2 * vr + vr * (vp + vq)
    else:
        parts, both = (a * d, b * c), 0.0
        above, below = p**2 * vt + t**2 * vp + vp * vt, q**2 * vr + r**2 * vq + vq * vr
    low, high = fieller(*parts, above, below, both, box=(0, 1e9))
    _, inverse = fieller(*parts[::-1], below, above, both, box=(1e-9, 1e9))
    unknown = (parts[1] <= 0) | (parts[1] ** 2 <= Z**2 * below)
    return np.where(unknown & (inverse < 1e9), 1 / inverse, low), high


def _spread(cells: Floats, s: float, of_risk: bool, sampled: bool = False) -> float:
    """Return the relative deviation of a ratio, to first order."""
    slopes = np.array([[1, -1], [-1, 1]]) / cells
    if of_risk:
        slopes[:, 1] = 0
        slopes += np.array([[-1], [1]]) / cells.sum(axis=1, keepdims=True)
    return float(np.sqrt((slopes**2 * (s**2 + cells * sampled)).sum()))


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
    "2x2, 1 % by 2 %": (np.array([0.99, 0.01]), np.array([0.02, 0.98])),
    "10x8, 48 empty": (np.r_[np.full(4, 0.25), np.zeros(6)], np.full(8, 0.125)),
}


def levels(rng: np.random.Generator, runs: int) -> Iterator[Row]:
    """How often a test rejects independence where it holds."""
    for (name, sides), n, epsilon in product(TABLES.items(), (1000, 10_000), EPSILONS):
        yield from rejections(rng, runs, name, sides, n, epsilon, 0.0)


def powers(rng: np.random.Generator, runs: int) -> Iterator[Row]:
    """How often a test rejects independence where it does not hold."""
    for n, of_both in {
        1000: ((0.07, 0.30, 0.53, 0.75), (0.08, 0.48, 0.79, 0.93)),
        10_000: ((0.99,) * 4, (0.99,) * 4),
    }.items():
        for epsilon, *bars in zip(EPSILONS, *of_both, strict=True):
            found = rejections(rng, runs, "3x4", TABLES["3x4"], n, epsilon, 0.012)
            for row, bar in zip(found, bars, strict=True):
                error = 3 * sqrt(max(bar * (1 - bar), 0.01) / runs)
                kind = row.kind.replace("level", "power")
                yield Row(kind, row.case, epsilon, row.value, bar - error - 0.005, 1.0)


def rejections(
    rng: np.random.Generator,
    runs: int,
    name: str,
    sides: tuple[Floats, Floats],
    n: int,
    epsilon: float,
    effect: float,
) -> Iterator[Row]:
    """Yield how often both tests have p below .05."""
    s, truth = noise(epsilon), associated(*sides, effect)
    drawn = rng.multinomial(n, truth.ravel(), runs).reshape(runs, *truth.shape)
    y = drawn + rng.normal(0, s, drawn.shape)
    for kind, test in (("independence", independence), ("trend", trend)):
        rejected = float((test(y, s).p < 0.05).mean())
        yield Row(f"level of {kind}", f"{name}, n {n}", epsilon, rejected, 0.0, LEVEL)


def jobs(rng: np.random.Generator, runs: int) -> Iterator[Row]:
    """Whole jobs of 2,000 records drawn afresh, with a wrong nominal number, or with weights."""
    schema = Schema(
        dataset="grid",
        unit="row",
        columns=[
            {"name": "level", "type": "category", "categories": list("abcde")},
            {"name": "event", "type": "boolean"},
            {"name": "x", "type": "number", "min": -1, "max": 1},
        ],
    )
    chances = np.array([0.1, 0.1, 0.2, 0.3, 0.5])
    exact = {
        "table_1.counts": 2000 * RARE[:, None] * np.stack([1 - chances, chances], axis=1),
        "table_1.row_shares": np.stack([1 - chances, chances], axis=1),
        "table_2.shares": RARE,
        "means": (chances / 2 - 0.2)[:, None],
    }
    cases = {"nominal n": {}, "half of it": {"nominal_n": 1000}, "twice it": {"nominal_n": 4000}}
    cases["weights 6, 1"] = {"weights": [6.0, 1.0]}
    options = {"tables": [["level", "event"], ["level"]], "means": ["x"], "by": ["level"]}
    for case, given in cases.items():
        held: dict[str, list[Floats]] = {name: [] for name in exact}
        for seed in range(max(runs // 5, 1)):
            level = rng.choice(5, rng.poisson(2000), p=RARE)
            event = rng.random(len(level)) < chances[level]
            x = np.clip(rng.normal(chances[level] / 2 - 0.2, 0.2), -1, 1)
            records = schema.grid().encode(np.column_stack([level, event, x]))
            chosen = {"nominal_n": 2000, "epsilon": 1.0, "delta": DELTA, **options, **given}
            found = run_job(
                Tabulate, schema, {"a": [records]}, noise=SimulatedNoise(seed), **chosen
            ).results
            for name, truth in exact.items():
                low, high = (found[f"{name}_population_{end}"] for end in ("low", "high"))
                held[name].append((low <= truth) & (truth <= high))
        for name, hits in held.items():
            yield Row(f"job, {name}", case, 1.0, float(np.mean(hits)), COVERAGE, 1.0)


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


def summary(rows: list[Row]) -> Iterator[str]:
    """Yield a table with a line for each kind of row and oracle: how many, and the worst."""
    yield "| what | oracle | cells | least | greatest | widest over oracle | outside |"
    yield "|---|---|---|---|---|---|---|"
    for kind, oracle in dict.fromkeys((row.kind, row.oracle) for row in rows):
        own = [row for row in rows if (row.kind, row.oracle) == (kind, oracle)]
        figures = sorted(row.value for row in own)
        widths = [row.width for row in own if row.width is not None]
        wide = f"{max(widths):.2f}" if widths else ""
        ends = f"{figures[0]:.3f} | {figures[-1]:.3f} | {wide}"
        yield f"| {kind} | {oracle} | {len(own)} | {ends} | {sum(bool(r.misses) for r in own)} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--runs", type=int, default=2000)
    options = parser.parse_args()
    heads = "what", "case", "epsilon", "figure", "width over oracle", "oracle", ""
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    every: list[Row] = []
    for part in (counts, shares, means, ratios, levels, powers, jobs):
        for row in part(np.random.default_rng(0), options.runs):
            every.append(row)
            print(row, flush=True)
    if (options.data / "adult_full.csv.gz").is_file():
        for row in adult(np.random.default_rng(0), options.data):
            every.append(row)
            print(row, flush=True)
    print("", *summary(every), sep="\n")
