"""How far survival curves are off, how often their intervals hold, and what the tests can see.

Noise is drawn on the noisy table itself, which is what a silo's sum is; the sums are checked
elsewhere. The real data sets are those of lifelines: ``pip install lifelines==0.30.3``; without it
their rows are left out. Run: ``python benchmarks/survival.py [runs]``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from cloister.core.arrays import Floats
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.tasks.survival import curves

EPSILONS = (0.1, 0.5, 1.0, 4.0)
SETS = {  # of lifelines: time, event
    "waltons": ("T", "E"),
    "rossi": ("week", "arrest"),
    "lung": ("time", "status"),
    "gbsg2": ("time", "cens"),
    "kidney_transplant": ("time", "death"),
}
BARS = {
    "waltons": (None, 0.19, 0.17, 0.09),
    "rossi": (None, 0.071, 0.055, 0.034),
    "lung": (None, 0.091, 0.069, 0.039),
    "gbsg2": (None, 0.054, 0.049, 0.042),
    "kidney_transplant": (None, 0.096, 0.076, 0.054),
    "exponential": (0.019, 0.009, 0.008, 0.005),
}
Sample = tuple[Floats, Floats]


def table_of(time: Floats, event: Floats, edges: Floats) -> Floats:
    """Return the exact exits; the last row is of those who are there at the last edge."""
    row = np.maximum(np.searchsorted(edges, time, side="left") - 1, 0)
    row[(time == edges[-1]) & (event == 0)] = len(edges) - 1
    words = curves.word_of(row, event, len(edges) - 1)
    return curves.table_of(np.bincount(words, minlength=2 * len(edges) - 1).astype(float))


def simulated(
    rng: np.random.Generator,
    n: int,
    hazard: float = 1.0,
    least: float = 0.3,
    most: float = 2.5,
    shape: float = 1.0,
) -> Sample:
    """Return times of a law of Weibull, followed for a uniform time; the horizon is 1.5."""
    time, followed = rng.weibull(shape, n) / hazard, rng.uniform(least, most, n)
    return np.minimum(time, followed), (time < followed).astype(np.float64)


def exact_curve(time: Floats, event: Floats, at: Floats) -> Floats:
    """Return the estimate of Kaplan and Meier at some times."""
    times = np.unique(time)
    order = np.argsort(time, kind="stable")
    ordered = np.sort(time)
    left = len(time) - np.searchsorted(ordered, times, side="left")
    deaths = np.add.reduceat(event[order], np.searchsorted(ordered, times))
    falls = np.cumprod(1 - deaths / left)
    place = np.searchsorted(times, at, side="right")
    return np.concatenate([[1.0], falls])[place]


def noisy(rng: np.random.Generator, exits: Floats, noise: float) -> Floats:
    if not noise:
        return exits
    numbers = (*exits.shape[:-2], 2 * exits.shape[-2] - 1)
    return exits + curves.table_of(rng.normal(0, noise, numbers))


def last_of(exits: Floats, noise: float) -> Floats:
    return np.asarray(curves.usable(*curves.at_risk(exits, noise)).sum(axis=-1))


def edges_for(n: int, groups: int, noise: float, horizon: float) -> Floats:
    return np.linspace(0, horizon, curves.usual_intervals(n, groups, noise) + 1)


def errors(runs: int) -> Iterator[tuple[object, ...]]:
    """Yield data set, n, and at each epsilon intervals, part shown and error beside its bar."""
    rng = np.random.default_rng(1)
    for name, (time, event) in real_sets(rng):
        for epsilon, bar in zip(EPSILONS, BARS[name], strict=True):
            if bar is None:
                continue
            noise = gaussian_noise_multiplier(epsilon, 1e-6)
            edges = edges_for(len(time), 1, noise, float(time.max()))
            fine = np.linspace(0, edges[-1], 1001)[:-1]
            truth, exits, found = exact_curve(time, event, fine), table_of(time, event, edges), []
            shown = []
            for _ in range(runs):
                y = noisy(rng, exits, noise)
                end = edges[last_of(y, noise)]
                curve = np.interp(fine, edges, curves.kaplan_meier(y, noise).values)
                found.append(np.abs(curve - truth)[fine <= end].max())
                shown.append(end / edges[-1])
            yield name, len(time), epsilon, len(edges) - 1, np.mean(shown), np.mean(found), bar


def real_sets(rng: np.random.Generator) -> Iterator[tuple[str, Sample]]:
    yield "exponential", simulated(rng, 20_000)
    try:
        from lifelines import datasets
    except ImportError:
        print("lifelines is not installed: its data sets are left out.")
        return
    for name, (time, event) in SETS.items():
        table = getattr(datasets, f"load_{name}")()
        happened = table[event].to_numpy(float)
        happened = happened - happened.min() if name == "lung" else happened
        yield name, (table[time].to_numpy(float), happened)


CASES: dict[str, tuple[tuple[int, ...], dict[str, float], int, float]] = {
    # of whom a curve is: sizes, law, groups, and how many times too large the nominal number is
    "plain": ((200, 1000, 10_000), {}, 1, 1.0),
    "heavy censoring": ((1000, 10_000), {"least": 0.0, "most": 1.0}, 1, 1.0),
    "falls early": ((1000, 10_000), {"shape": 0.5}, 1, 1.0),
    "falls late": ((1000, 10_000), {"shape": 3.0}, 1, 1.0),
    "few events": ((1000, 10_000), {"hazard": 0.05}, 1, 1.0),
    "the one of 1 to 9": ((100, 1000), {}, 2, 5.0),
    "the nine of 1 to 9": ((900, 9000), {}, 2, 5 / 9),
    "nominal n twice n": ((1000, 10_000), {}, 1, 2.0),
    "nominal n half of n": ((1000, 10_000), {}, 1, 0.5),
}


def spread(values: Floats) -> float:
    """Return between which values, 2.5 and 97.5 of 100, an estimate is: an oracle's interval."""
    return float(np.subtract(*np.quantile(values, [0.975, 0.025])))


def coverage(runs: int) -> Iterator[tuple[object, ...]]:
    """Yield each case, and how often intervals hold in runs in which the middle is shown."""
    rng = np.random.default_rng(2)
    for name, (sizes, law, groups, factor) in CASES.items():
        for n in sizes:
            for epsilon in EPSILONS:
                noise = gaussian_noise_multiplier(epsilon, 1e-6)
                edges = edges_for(round(n * factor * groups), groups, noise, 1.5)
                row = (name, n, epsilon, len(edges) - 1)
                yield (*row, *covered(rng, runs, n, law, edges, noise))


def covered(
    rng: np.random.Generator, runs: int, n: int, law: dict[str, float], edges: Floats, noise: float
) -> tuple[float, ...]:
    middle = int(np.argmin(np.abs(edges - 0.75)))
    hazard, shape = law.get("hazard", 1.0), law.get("shape", 1.0)
    truth = np.exp(-((edges[middle] * hazard) ** shape))
    half = np.log(2) ** (1 / shape) / hazard
    exits = np.stack([table_of(*simulated(rng, n, **law), edges) for _ in range(runs)])
    y = noisy(rng, exits, noise)
    last = last_of(y, noise).astype(np.int64)
    grid, found = curves.kaplan_meier(exits, 0.0), curves.kaplan_meier(y, noise)
    median, exact = (
        curves.quantile(edges, curve, at)
        for curve, at in ((found, last), (grid, last_of(exits, 0.0).astype(np.int64)))
    )
    known, medians = last >= middle, np.isfinite(median.values)
    if known.sum() < runs / 20:
        return (float(np.mean(last) / (len(edges) - 1)), float(known.mean()), *[np.nan] * 6)
    low, high = (end[known, middle] for end in found.population)
    in_noise = (found.low - 1e-9 <= grid.values) & (grid.values <= found.high + 1e-9)
    shown = (np.arange(len(edges)) <= last[:, None]) & (np.arange(len(edges)) > 0)
    by_noise = (median.low <= exact.values) & (exact.values <= median.high)
    by_both = (median.population[0] <= half) & (half <= median.population[1])
    return (
        float(np.mean(last) / (len(edges) - 1)),
        float(known.mean()),
        float(in_noise[shown].mean()),
        float(((low <= truth) & (truth <= high)).mean()),
        float(by_noise[medians].mean()) if medians.any() else np.nan,
        float(by_both[medians].mean()) if medians.any() else np.nan,
        float(np.median(high - low)),
        float(np.median(high - low) / spread(found.values[known, middle])),
    )


def log_rank(runs: int) -> Iterator[tuple[object, ...]]:
    """Yield n, epsilon, case, the part of the intervals used, testable, and share rejected."""
    rng = np.random.default_rng(3)
    cases = {  # parts of the groups, hazards, most follow-up
        "type I": ((0.5, 0.5), (1, 1), (2.5, 2.5)),
        "type I, 9 to 1": ((0.9, 0.1), (1, 1), (2.5, 2.5)),
        "type I, other censoring": ((0.5, 0.5), (1, 1), (2.5, 0.9)),
        "type I, few events": ((0.5, 0.5), (0.1, 0.1), (2.5, 2.5)),
        "type I, 3 groups": ((0.4, 0.3, 0.3), (1, 1, 1), (2.5, 2.5, 2.5)),
        "type I, 5 groups": ((0.2,) * 5, (1,) * 5, (2.5,) * 5),
        "crossing curves": ((0.5, 0.5), (1, 1), (2.5, 2.5)),
        "power, 1.3, all followed": ((0.5, 0.5), (0.567, 0.737), (1e6, 1e6)),  # 0.85 by the end
        "power, 1.3": ((0.5, 0.5), (1, 1.3), (2.5, 2.5)),
        "power, 1.3, 3 groups": ((0.4, 0.3, 0.3), (1, 1.3, 1.3), (2.5, 2.5, 2.5)),
    }
    for name, (parts, hazards, most) in cases.items():
        for n in (1000, 5000):
            for epsilon in (*EPSILONS, np.inf):
                noise = 0.0 if np.isinf(epsilon) else gaussian_noise_multiplier(epsilon, 1e-6)
                edges = edges_for(n, len(parts), noise, 1.5)
                used, rejected = [], []
                for _ in range(runs):
                    sizes = [int(n * part) for part in parts]
                    shapes = 1.0 + 2 * np.arange(len(parts)) * (name == "crossing curves")
                    y = np.stack(
                        [
                            noisy(rng, table_of(*simulated(rng, m, h, 0.3, f, a), edges), noise)
                            for m, h, f, a in zip(sizes, hazards, most, shapes, strict=True)
                        ]
                    )
                    test = curves.log_rank(y, noise)
                    used.append(test.intervals / (len(edges) - 1))
                    if test.testable:
                        rejected.append(test.p < 0.05)
                share = np.mean(rejected) if len(rejected) > runs / 5 else np.nan
                yield name, n, epsilon, np.mean(used), len(rejected) / runs, share


def rates(runs: int) -> Iterator[tuple[object, ...]]:
    """Yield n of each of two groups, epsilon, coverage of rate and ratio, and widths."""
    rng = np.random.default_rng(4)
    for n in (200, 2000, 20_000):
        for epsilon in EPSILONS:
            noise = gaussian_noise_multiplier(epsilon, 1e-6)
            edges = edges_for(2 * n, 2, noise, 1.5)
            hits, found = [], []
            for _ in range(runs):
                samples = [simulated(rng, n, hazard) for hazard in (1.0, 1.3)]
                exits = np.stack([table_of(*sample, edges) for sample in samples])
                rate, ratio = curves.rates(noisy(rng, exits, noise), edges, noise)
                # what anybody would take for the rates: of events and times, not of intervals
                r0, r1 = (
                    (event * (time <= 1.5)).sum() / np.minimum(time, 1.5).sum()
                    for time, event in samples
                )
                wide, far = rate.population, ratio.population
                hits.append(
                    [
                        rate.low[0] <= r0 <= rate.high[0],
                        wide[0][0] <= 1.0 <= wide[1][0],
                        ratio.low[0] <= r1 / r0 <= ratio.high[0],
                        far[0][0] <= 1.3 <= far[1][0],
                    ]
                )
                found.append([rate.values[0], wide[1][0] - wide[0][0], ratio.values[0]])
                found[-1].append(far[1][0] - far[0][0])
            one, wide_one, two, wide_two = np.array(found).T
            widths = np.median(wide_one) / 2, np.median(wide_one) / spread(one)
            yield n, epsilon, *np.mean(hits, axis=0), *widths, np.median(wide_two) / spread(two)


def show(title: str, headings: str, rows: Iterator[tuple[object, ...]]) -> None:
    print(f"\n## {title}\n\n| {headings.replace(', ', ' | ')} |")
    print("|---" * (headings.count(", ") + 1) + "|")
    for row in rows:
        cells = (f"{x:.3g}" if isinstance(x, float | np.floating) else str(x) for x in row)
        print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    n_runs = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    heading = "data set, n, epsilon, intervals, part shown, largest error, bar"
    show("Largest error on the part shown", heading, errors(min(n_runs, 400)))
    heading = (
        "case, n, epsilon, intervals, part shown, runs with the middle, noise interval, "
        "population at the middle, median by noise, median by population, width at the middle, "
        "width over an oracle's"
    )
    show("Intervals", heading, coverage(n_runs))
    heading = "case, n, epsilon, intervals used, testable, rejected at .05"
    show("Log-rank", heading, log_rank(n_runs))
    heading = (
        "n, epsilon, rate by noise, rate, ratio by noise, ratio, relative half-width, "
        "width over an oracle's, of the ratio"
    )
    show("Rates", heading, rates(n_runs))
