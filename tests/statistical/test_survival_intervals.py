"""Survival: intervals hold as often as they say, tests err as often as they say, and audits pass.

All randomness is seeded, so nothing fails by chance. The noise is drawn on the released sums. The
yardstick is the textbook analysis of the pooled records, which is that of lifelines without noise
(`tests/unit/tasks/survival/test_curves.py`). The mutants leave the noise out of the variance, or
send numbers at risk in place of exits; each fails clearly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import count

import numpy as np
import pytest

from cloister import make_plan
from cloister.app.forecast import forecast_of
from cloister.audit import audit_task
from cloister.core.arrays import Floats, GridState, Integers, Records
from cloister.core.display import Estimate
from cloister.data.schema import Schema
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.protocol.task import COUNT_BITS
from cloister.tasks.survival import curves, running
from cloister.tasks.survival.survival import Survival
from cloister.tasks.survival.times import Horizon
from cloister_lab.audit.mutants import FixedNoise

HIGH, TAU = 61.0, 48.0
MONTHS, ANY = (Horizon(low=0, high=HIGH, tau=TAU, step=step) for step in (1.0, 0.0))
Sampler = Callable[[np.random.Generator], Integers]
AT = 24.0


def noise_of(horizon: Horizon, epsilon: float) -> float:
    block = running.block_of("exits", 1, len(horizon.ends) + 1, 1.0)
    unit = gaussian_noise_multiplier(epsilon, 1e-6)
    return float(unit * np.sqrt(block.l2_squared) / (1 << COUNT_BITS))


def sampled(
    rng: np.random.Generator,
    horizon: Horizon,
    n: int,
    groups: int = 1,
    hazard: float = 1.0,
    shape: float = 1.0,
) -> Integers:
    """Return exits of groups of equal size; the last one has another hazard."""
    group = rng.integers(0, groups, n)
    time = 25 * rng.weibull(shape, n) / hazard ** ((group == groups - 1) / shape)
    followed = rng.uniform(6, 60, n)
    event, seen = time <= followed, np.minimum(time, followed)
    if horizon.step:
        seen = np.ceil(seen / horizon.step) * horizon.step
    records = np.rint((seen / HIGH * 2 - 1) * horizon.one).astype(np.int32)
    return horizon.exits(group, groups, records, np.where(event, 1, -1) * horizon.one)


def noisy(rng: np.random.Generator, exits: Integers, noise: float) -> Floats:
    """Return the exits that a release with this noise shows."""
    sums = running.encoded(exits) / (1 << COUNT_BITS)
    return running.decoded(sums + noise * rng.standard_normal(sums.shape))


def summary(exits: Floats, noise: float, horizon: Horizon) -> dict[str, Estimate]:
    curve = curves.Curve(exits, noise)
    alive = curve.survival()
    places = np.searchsorted(horizon.ends, [3, 12, 24, 36], side="right") - 1
    return {
        **{f"survival {place}": alive[place] for place in places},
        "median": curve.quantile(horizon),
        "restricted mean": curve.restricted_mean(horizon, AT),
        "rate": curves.rates(exits[None], noise, horizon.middles)[0][0],
    }


CASES = {  # cells, records, epsilon, shape
    "months": (MONTHS, 2000, 1.0, 1.0),
    "months, little budget": (MONTHS, 2000, 0.5, 1.0),
    "months, few records": (MONTHS, 400, 2.0, 1.0),
    "months, early events": (MONTHS, 2000, 1.0, 0.5),
    "any time": (ANY, 2000, 1.0, 1.0),
    "any time, early events": (ANY, 2000, 1.0, 0.5),
}
TRUTH = {1.0: lambda t: np.exp(-t / 25), 0.5: lambda t: np.exp(-np.sqrt(t / 25))}


@cache
def held(name: str, runs: int) -> dict[str, dict[str, float]]:
    """Return how often intervals of noise hold the value of the pooled records, and how often
    those of the population hold the truth, where it is a number."""
    horizon, n, epsilon, shape = CASES[name]
    rng, noise = np.random.default_rng(5), noise_of(horizon, epsilon)
    inside: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(runs):
        exits = sampled(rng, horizon, n, shape=shape)
        exact = summary(exits[0].astype(float), 0.0, horizon)
        for key, found in summary(noisy(rng, exits, noise)[0], noise, horizon).items():
            if np.isnan(found.value):
                continue
            assert found.population is not None
            close = 1e-9 + 1e-3 * exact[key].value * (horizon.step == 0)  # within a cell
            value = exact[key].value
            inside[key]["noise"].append(found.low - close <= value <= found.high + close)
            low, high = found.population
            truth = None
            if key.startswith("survival"):
                truth = TRUTH[shape](horizon.ends[int(key.split()[1])])
            elif key == "median":
                truth = 25 * np.log(2) ** (1 / shape)
                truth = np.ceil(truth) if horizon.step else truth
            if truth is not None:
                inside[key]["population"].append(low <= truth <= high)
    return {
        key: {kind: float(np.mean(seen)) for kind, seen in kinds.items()}
        for key, kinds in inside.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_intervals_hold_the_pooled_analysis_and_the_truth(name: str) -> None:
    """Three binomial deviations of 95 % in 300 runs are 0.038; medians on ticks hold more often."""
    shares = held(name, 300)
    for key, kinds in shares.items():
        for kind, share in kinds.items():
            assert share >= 0.912, (key, kind, share)
    of_noise = [kinds["noise"] for key, kinds in shares.items() if key != "median"]
    assert np.mean(of_noise) <= 0.985


def test_the_error_of_a_restricted_mean_with_few_events_is_what_its_interval_says() -> None:
    """All events are in one block, whose places by monotone regression have more noise."""
    rng, noise, errors, claimed = np.random.default_rng(8), noise_of(ANY, 1.0), [], []
    for _ in range(200):
        exits = sampled(rng, ANY, 400, hazard=0.15)
        found = curves.Curve(noisy(rng, exits, noise)[0], noise).restricted_mean(ANY, AT)
        exact = curves.Curve(exits[0].astype(float), 0.0).restricted_mean(ANY, AT)
        errors.append(found.value - exact.value)
        claimed.append((found.high - found.low) / (2 * 1.96))
    assert 0.85 < np.std(errors) / np.median(claimed) < 1.12


def test_a_variance_without_the_noise_does_not_hold() -> None:
    rng, noise, hits = np.random.default_rng(6), noise_of(MONTHS, 0.3), []
    for _ in range(200):
        exits = sampled(rng, MONTHS, 1000)
        found = curves.Curve(noisy(rng, exits, noise)[0], 1e-3).survival()[12]
        assert found.population is not None
        hits.append(found.population[0] <= np.exp(-12 / 25) <= found.population[1])
    assert np.mean(hits) < 0.85


# The forecast -------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0.0, 1.0])
@pytest.mark.parametrize("smaller", [0.5, 1 / 3, 0.25])
@pytest.mark.parametrize(
    ("scale", "shape", "first"), [(40, 1.0, 10), (25, 1.0, 0), (25, 0.5, 10), (100, 1.5, 0)]
)
def test_widths_up_to_half_the_horizon_are_below_the_forecast(
    step: float, smaller: float, scale: float, shape: float, first: float
) -> None:
    """Records enter uniformly; the smaller group has more events. 9 in 10 widths are below."""
    months = {"name": "months", "type": "number", "min": 0, "max": HIGH}
    schema = Schema(
        dataset="trial",
        unit="row",
        columns=[
            {**months, "step": step} if step else months,
            {"name": "died", "type": "boolean"},
            {"name": "drug", "type": "category", "categories": ["old", "new"]},
        ],
    )
    plan = make_plan(
        Survival,
        schema,
        ["here"],
        budget=Budget(1.0, 1e-6),
        nominal_n=4500,
        time="months",
        event="died",
        by="drug",
    )
    assert isinstance(plan.task, Survival)
    horizon, planned = plan.task.horizon, forecast_of(plan)["survival_half_width"][0]
    noise = plan.noise_std(plan.task.blocks(0)[0]) / (1 << COUNT_BITS)
    rng, widths = np.random.default_rng(3), []
    for _ in range(5):
        group = (rng.random(4500) < smaller).astype(int)
        time = scale * rng.weibull(shape, 4500) * np.where(group, 0.6, 1.0)
        followed = rng.uniform(first, 60, 4500)
        seen = np.minimum(time, followed)
        seen = np.ceil(seen / step) * step if step else seen
        records = np.rint((seen / HIGH * 2 - 1) * horizon.one).astype(np.int32)
        event = np.where(time <= followed, 1, -1) * horizon.one
        exits = noisy(rng, horizon.exits(group, 2, records, event), noise)
        for own in exits:
            found = curves.Curve(own, noise).survival()
            at = np.searchsorted(horizon.ends, [15, 30], side="right") - 1
            widths.extend((found.high - found.low)[at] / 2)
    known = np.array(widths)[~np.isnan(widths)]
    assert len(known) >= 0.9 * len(widths)
    assert (known <= planned).mean() >= 0.9
    assert np.median(known) > planned / 5


# The log-rank test --------------------------------------------------------------------------------


def rejected(seed: int, horizon: Horizon, believed: float = 1.0, **given: float) -> float:
    """Return how often groups are found to differ at 5 in 100; n 1,000, epsilon 1."""
    rng, noise = np.random.default_rng(seed), noise_of(horizon, 1.0)
    found = []
    for _ in range(RUNS):
        exits = sampled(rng, horizon, 1000, **{"groups": 2, **given})
        test = curves.log_rank(noisy(rng, exits, noise), noise * believed)
        found.append(test.testable and test.p < 0.05)
    return float(np.mean(found))


RUNS = 300


@pytest.mark.parametrize(
    ("horizon", "given"),
    [
        (MONTHS, {}),
        (MONTHS, {"groups": 4}),
        (MONTHS, {"shape": 0.5}),
        (ANY, {}),
        (ANY, {"shape": 0.5}),
    ],
    ids=["months", "four groups", "early events", "any time", "any time, early events"],
)
def test_the_log_rank_test_errs_in_5_of_100(horizon: Horizon, given: dict[str, float]) -> None:
    """Over three seeds; the deviation of a share of 900 is 0.007."""
    assert 0.03 <= np.mean([rejected(seed, horizon, **given) for seed in (1, 2, 3)]) <= 0.07


def test_the_log_rank_test_sees_what_there_is_and_needs_to_know_of_the_noise() -> None:
    assert rejected(4, MONTHS, hazard=1.5) > 0.9
    assert rejected(4, MONTHS, believed=1e-3) > 0.1


# The audit ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SendsAtRisk(Survival):
    """A broken twin: numbers at risk, as published methods send them, under the bound of exits."""

    rows = None  # the kernel alone, which nothing checks

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        counts = running.decoded(super().contribute(t, state, records).reshape(-1, self._cells))
        return np.rint(counts).astype(np.int64)[:, ::-1].cumsum(axis=1)[:, ::-1].ravel()


@pytest.mark.parametrize(("task", "sound"), [(Survival, True), (SendsAtRisk, False)])
def test_an_audit_passes_and_finds_who_sends_numbers_at_risk(
    task: type[Survival], sound: bool
) -> None:
    job = count()
    audit = audit_task(
        task,
        Budget(1.0, 1e-6),
        runs=400 if sound else 100,
        canaries=60,
        words=800,
        make_noise=lambda: FixedNoise(f"survival {next(job)}"),
    )
    assert any(finding.alarms for finding in audit.findings) != sound
