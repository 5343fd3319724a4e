"""How near survival curves are to the pooled textbook analysis, and how often intervals hold it.

Noise is drawn on the released sums. The yardstick is the same analysis of the same records without
noise, which is that of lifelines at ticks (`tests/unit/tasks/survival/test_curves.py`). The real
data sets are those of lifelines: ``pip install lifelines==0.30.3``; without it they are left out.
Run: ``python benchmarks/survival.py [runs]``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cloister.core.arrays import Flags, Floats, Integers
from cloister.core.display import Estimate
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.protocol.task import COUNT_BITS
from cloister.tasks.survival import curves, running
from cloister.tasks.survival.times import Horizon

SIZES, EPSILONS, DELTA = (400, 2000, 20_000), (0.5, 1.0, 4.0), 1e-6
SETS = {  # of lifelines: time, event, step of the time
    "waltons": ("T", "E", 1.0),
    "rossi": ("week", "arrest", 1.0),
    "lung": ("time", "status", 1.0),
    "gbsg2": ("time", "cens", 1.0),
    "kidney_transplant": ("time", "death", 1.0),
}
STATED = (0.125, 0.25, 0.5, 0.75)  # of the horizon, where shares are compared


@dataclass(frozen=True)
class Law:
    """Weibull times with the scale 25, followed for a uniform time; the horizon is 48."""

    step: float = 1.0
    hazard: float = 1.0
    shape: float = 1.0
    followed: tuple[float, float] = (6.0, 60.0)

    @property
    def horizon(self) -> Horizon:
        return Horizon(low=0, high=61, tau=48, step=self.step)

    def exits(self, rng: np.random.Generator, n: int, *ratios: float, first: float) -> Integers:
        """Return exits of groups with these ratios of hazards; `first` is the share of one."""
        rest = (1 - first) / max(len(ratios) - 1, 1)
        shares = [first, *[rest] * (len(ratios) - 1)]
        group = rng.choice(len(ratios), n, p=np.array(shares) / sum(shares))
        hazard = self.hazard * np.array(ratios)[group]
        time, followed = 25 * rng.weibull(self.shape, n), rng.uniform(*self.followed, n)
        time /= hazard ** (1 / self.shape)
        return table_of(
            self.horizon, np.minimum(time, followed), time <= followed, group, len(ratios)
        )


LAWS = {
    "months": Law(),
    "visits every 3 months": Law(step=3.0),
    "any time": Law(step=0.0),
    "early events": Law(shape=0.5),
    "heavy censoring": Law(followed=(0.0, 24.0)),
    "few events": Law(hazard=0.05),
}


def table_of(
    horizon: Horizon, seen: Floats, event: Flags, group: Integers | None = None, groups: int = 1
) -> Integers:
    if horizon.step:
        seen = np.ceil(seen / horizon.step) * horizon.step
    steps = np.rint((seen / horizon.high * 2 - 1) * horizon.one).astype(np.int32)
    event = np.where(event, 1, -1) * horizon.one
    group = np.zeros(len(seen), np.int64) if group is None else group
    return horizon.exits(group, groups, steps, event)


def noise_of(horizon: Horizon, epsilon: float) -> float:
    block = running.block_of("exits", 1, len(horizon.ends) + 1, 1.0)
    multiplier = gaussian_noise_multiplier(epsilon, DELTA)
    return float(multiplier * np.sqrt(block.l2_squared) / (1 << COUNT_BITS))


def noisy(rng: np.random.Generator, exits: Integers, noise: float) -> Floats:
    sums = running.encoded(exits) / (1 << COUNT_BITS)
    return running.decoded(sums + noise * rng.standard_normal(sums.shape))


def summary(exits: Floats, noise: float, horizon: Horizon) -> dict[str, Estimate]:
    # Without noise each cell is its own block, which is the curve of Kaplan and Meier.
    curve = curves.Curve(exits, noise) if noise else curves.Curve(exits, noise, exits.shape[1])
    places = np.searchsorted(horizon.ends, np.array(STATED) * horizon.tau, side="right") - 1
    return {
        "curve": curve.survival(),
        "share": curve.survival()[places],
        "median": curve.quantile(horizon),
        "mean": curve.restricted_mean(horizon, horizon.tau / 2),
        "rate": curves.rates(exits[None], noise, horizon.middles)[0][0],
    }


def holds(found: Estimate, exact: Estimate) -> Floats:
    """Return for each known number whether the noise interval has that of the records."""
    inside = (found.low - 1e-9 <= exact.values) & (exact.values <= found.high + 1e-9)
    known = ~np.isnan(found.values) & ~np.isnan(exact.values)
    return np.where(known, inside, np.nan)


def ratio(found: Estimate, exact: Estimate) -> Floats:
    """Return widths of population intervals over those of the textbook on the same records."""
    assert found.population is not None
    assert exact.population is not None
    (low, high), (least, most) = found.population, exact.population
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((high - low) / (most - least))


def near(runs: int) -> Iterator[tuple[object, ...]]:
    rng = np.random.default_rng(1)
    for name, law in LAWS.items():
        for n in SIZES:
            for epsilon in EPSILONS:
                samples = (law.exits(rng, n, 1.0, first=1.0)[0] for _ in range(runs))
                yield name, n, epsilon, *compared(rng, samples, law.horizon, epsilon)
    for name, exits, horizon in real_sets():
        for epsilon in EPSILONS:
            same = (exits for _ in range(runs))
            yield name, int(exits.sum()), epsilon, *compared(rng, same, horizon, epsilon)


def compared(
    rng: np.random.Generator, samples: Iterator[Integers], horizon: Horizon, epsilon: float
) -> tuple[float, ...]:
    noise, rows = noise_of(horizon, epsilon), []
    for exits in samples:
        exact = summary(exits.astype(float), 0.0, horizon)
        found = summary(noisy(rng, exits, noise), noise, horizon)
        off = np.abs(found["curve"].values - exact["curve"].values)
        held = {key: holds(found[key], exact[key]) for key in found}
        rows.append(
            [
                float((~np.isnan(found["curve"].values)).mean()),
                np.nanmax(off, initial=0.0),
                mean(held["share"]),
                *(mean(held[key]) for key in ("median", "mean", "rate")),
                mean(
                    np.where(np.isnan(held["share"]), np.nan, ratio(found["share"], exact["share"]))
                ),
                mean(ratio(found["rate"], exact["rate"])),
            ]
        )
    # Of fewer runs in which noise has chosen what is shown, a share says little.
    return tuple(mean(column, len(rows) // 5) for column in np.array(rows).T)


def mean(values: Floats, least: int = 1) -> float:
    values = np.asarray(values)
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size >= least else np.nan


def real_sets() -> Iterator[tuple[str, Integers, Horizon]]:
    try:
        from lifelines import datasets
    except ImportError:
        print("lifelines is not installed: its data sets are left out.")
        return
    for name, (time, event, step) in SETS.items():
        table = getattr(datasets, f"load_{name}")()
        happened = table[event].to_numpy(float)
        seen, tau = table[time].to_numpy(float), float(table[time].max())
        horizon = Horizon(low=0, high=tau + 2 * step, tau=tau, step=step)
        yield name, table_of(horizon, seen, happened == happened.max())[0], horizon


def log_rank(runs: int) -> Iterator[tuple[object, ...]]:
    """Yield how often groups are found to differ, with noise and by the test without it."""
    rng = np.random.default_rng(3)
    cases = {  # law, ratios of hazards, share of the first group
        "alike": (Law(), (1.0, 1.0), 0.5),
        "alike, any time": (Law(step=0.0), (1.0, 1.0), 0.5),
        "alike, 1 to 9": (Law(), (1.0, 1.0), 0.1),
        "alike, early events": (Law(shape=0.5), (1.0, 1.0), 0.5),
        "alike, four groups": (Law(), (1.0,) * 4, 0.25),
        "ratio 1.3": (Law(), (1.0, 1.3), 0.5),
    }
    for name, (law, ratios, first) in cases.items():
        for n in (1000, 5000):
            samples = [law.exits(rng, n, *ratios, first=first) for _ in range(runs)]
            exact = [curves.log_rank(exits.astype(float), 0.0).p < 0.05 for exits in samples]
            found = []
            for epsilon in EPSILONS:
                noise = noise_of(law.horizon, epsilon)
                tests = (curves.log_rank(noisy(rng, exits, noise), noise) for exits in samples)
                found.append(np.mean([test.testable and test.p < 0.05 for test in tests]))
            yield name, n, *found, np.mean(exact)


def show(title: str, headings: str, rows: Iterator[tuple[object, ...]]) -> None:
    print(f"\n## {title}\n\n| {headings.replace(', ', ' | ')} |")
    print("|---" * (headings.count(", ") + 1) + "|")
    for row in rows:
        cells = (f"{x:.3g}" if isinstance(x, float | np.floating) else str(x) for x in row)
        print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    n_runs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    heading = (
        "case, n, epsilon, part shown, largest error, shares held, median held, "
        "restricted mean held, rate held, width of shares, width of rate"
    )
    show("Against the pooled analysis", heading, near(n_runs))
    heading = "case, n, epsilon 0.5, epsilon 1, epsilon 4, without noise"
    show("Log-rank test", heading, log_rank(3 * n_runs))
