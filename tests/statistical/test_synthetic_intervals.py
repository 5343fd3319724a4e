"""Intervals of measured tables hold as often as they say; analysis of look-alike records does not.

Noise and samples are seeded, so the shares are the same every time; for any other seeds the limits
below would be passed with a probability of at most 1e-7 for each test: hits are binomial, since
every interval that is counted has noise of its own and every population a sample of its own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from cloister import DPSynthesiser, PlanError, Schema
from cloister.core.arrays import Floats
from cloister.privacy.noise import NoiseSource
from cloister.tasks.synthesis import synthesise
from cloister.tasks.synthesis.junction import NoisyTable, resampled
from cloister.testing import SimulatedNoise

RUNS, ROWS = 120, 1000
LEVELS = {"a": ["x", "y"], "b": ["p", "q", "r"], "c": ["u", "v"]}
SCHEMA = Schema(
    dataset="toy",
    unit="row",
    columns=[{"name": k, "type": "category", "categories": v} for k, v in LEVELS.items()],
)
LAW = np.array(
    [[[0.20, 0.05], [0.10, 0.15], [0.05, 0.05]], [[0.05, 0.10], [0.05, 0.10], [0.05, 0.05]]]
)
FEW = np.array([[0.4], [0.3], [0.3]]) * [0.99, 0.01]
RARE = np.stack([0.7 * FEW, 0.3 * FEW])
EXACT = {("a", "b"): LAW.sum(axis=2), ("b", "c"): LAW.sum(axis=0)}


def people(seed: int, law: Floats = LAW) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    cells = np.unravel_index(rng.choice(12, ROWS, p=law.ravel()), law.shape)
    return pd.DataFrame({k: np.array(LEVELS[k])[at] for k, at in zip("abc", cells, strict=True)})


def fitted(table: pd.DataFrame, seed: int) -> DPSynthesiser:
    class Seeded(DPSynthesiser):
        @staticmethod
        def _new_noise() -> NoiseSource:
            return SimulatedNoise(seed)

    return Seeded("star", target="b", epsilon=0.2, bounds=SCHEMA, nominal_n=ROWS).fit(table)


@cache
def models(fresh: bool) -> list[DPSynthesiser]:
    """Fits of one table, or each of a table of its own."""
    return [fitted(people(seed if fresh else 0), seed) for seed in range(RUNS)]


def noise_hits(part: float = 1.0) -> tuple[int, int]:
    """Return how many intervals had the exact count, where a mutant states a part of the noise."""
    table, held = people(0), 0
    for model in models(False):
        noise = model.result_.results["noise"]
        model.result_.results["noise"] = part * noise  # type: ignore[index]  # a dict
        for names in EXACT:
            ends = model.intervals(names)
            exact = table.groupby(list(names)).size().to_numpy()
            held += int(((ends["count_low"] <= exact) & (exact <= ends["count_high"])).sum())
        model.result_.results["noise"] = noise  # type: ignore[index]
    return held, 12 * RUNS


def unlikely(counted: tuple[int, int], share: float) -> bool:
    least, most = (stats.binom.ppf(p, counted[1], share) for p in (1e-7, 1 - 1e-7))
    return not least <= counted[0] <= most


def test_a_noise_interval_holds_in_95_runs_of_100() -> None:
    assert not unlikely(noise_hits(), 0.95)


@pytest.mark.parametrize("part", [0.7, 1.5])
def test_noise_that_is_not_what_it_is_said_to_be_is_found(part: float) -> None:
    """A mutant that forgets how many tables share the budget is off by more than that."""
    assert unlikely(noise_hits(part), 0.95)


def test_a_population_interval_holds_in_93_to_97_runs_of_100() -> None:
    """Of one share: shares of one table depend on each other."""
    ends = [model.intervals(("b", "c")).iloc[0] for model in models(True)]
    p = EXACT["b", "c"][0, 0]
    held = sum(e["share_population_low"] <= p <= e["share_population_high"] for e in ends)
    assert stats.binom.ppf(1e-7, RUNS, 0.93) <= held <= stats.binom.ppf(1 - 1e-7, RUNS, 0.97)


def test_look_alike_records_taken_for_records_cover_too_little() -> None:
    held = 0
    for model in models(True):
        drawn = model.sample()
        share = ((drawn["b"] == "p") & (drawn["c"] == "u")).mean()
        half = 1.96 * np.sqrt(share * (1 - share) / len(drawn))
        held += abs(share - EXACT["b", "c"][0, 0]) <= half
    assert unlikely((held, RUNS), 0.93)


def test_what_was_not_measured_has_no_interval() -> None:
    model = models(False)[0]
    with pytest.raises(PlanError, match="a, c were not measured together"):
        model.intervals(["a", "c"])
    assert len(model.intervals("a")) == 2


# The bootstrap ------------------------------------------------------------------------------------


def share(records: pd.DataFrame) -> float:
    return float((records[records["b"] == "p"]["c"] == "u").mean())


def bootstrap_hits() -> tuple[int, int]:
    """Return how many intervals had the population's share of u among p."""
    law = EXACT["b", "c"][0]
    held = 0
    for model in models(True):
        _, low, high = model.interval_of(share, ["b", "c"])
        held += low <= law[0] / law.sum() <= high
    return held, RUNS


def test_a_bootstrap_interval_holds_in_88_runs_of_100_at_least() -> None:
    """By the bar; below the limit one time in 10 million if it were just met."""
    held, runs = bootstrap_hits()
    assert held >= stats.binom.ppf(1e-7, runs, 0.88)


def test_a_bootstrap_that_forgets_the_noise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of other records alone: the interval of an analysis that takes records for real."""

    def forgetful(*given: Any) -> list[NoisyTable]:
        *rest, tables, rows, rng = given
        exact = [replace(table, noise=0.0) for table in tables]
        found = resampled(*rest, exact, rows, rng)
        return [replace(new, noise=old.noise) for new, old in zip(found, tables, strict=True)]

    monkeypatch.setattr(synthesise, "resampled", forgetful)
    held, runs = bootstrap_hits()
    assert held < stats.binom.ppf(1e-7, runs, 0.88)


def rare(records: pd.DataFrame) -> float:
    return float((records[records["b"] == "p"]["c"] == "v").mean())


def test_a_bootstrap_interval_of_a_rare_share_knows_that_no_cell_is_below_0() -> None:
    """It would hold in 81 of these 100 runs if it were around the value alone."""
    held, centred, runs = 0, 0, 100
    for seed in range(runs):
        value, low, high = fitted(people(seed, RARE), seed).interval_of(rare, ["b", "c"])
        held += low <= 0.01 <= high
        centred += abs(value - 0.01) <= min(value - low, high - value)
    assert centred < 0.88 * runs <= held


def test_a_bootstrap_refuses_numbers_whose_places_inside_bins_were_not_measured() -> None:
    age = {"name": "age", "type": "number", "min": 0, "max": 100}
    schema = Schema(dataset="toy", unit="row", columns=(*SCHEMA.columns[:2], age))
    table = people(0).drop(columns="c").assign(age=50.0)
    model = DPSynthesiser(
        "pairs", epsilon=1.0, bounds=schema, nominal_n=ROWS, edges={"age": (40, 60)}
    ).fit(table)
    with pytest.raises(PlanError, match="must be categories or booleans, got 'age'"):
        model.interval_of(lambda records: float(records["age"].mean()), "age")
    assert len(model.intervals("age")) == 3


def test_a_bootstrap_needs_columns_that_were_measured_together() -> None:
    model = models(False)[0]
    with pytest.raises(PlanError, match="a, c were not measured together"):
        model.interval_of(share, ["a", "c"])
    with pytest.raises(PlanError, match="draws must be at least 2"):
        model.interval_of(share, ["b", "c"], draws=1)
