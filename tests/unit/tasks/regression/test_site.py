"""The hospital as a factor: each silo fills its own indicator, and a confounded effect is right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from cloister.app.in_process import run_plan
from cloister.audit.noise import in_profile
from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.display import Display
from cloister.core.errors import PlanError
from cloister.federation.settings import PolicySettings
from cloister.federation.silo.policy import Policy
from cloister.hazmat.fixedpoint import Grid
from cloister.privacy.budget import Budget
from cloister.privacy.noise import NoiseSource
from cloister.protocol.layout import Layout
from cloister.protocol.plan import Plan
from cloister.protocol.task import (
    Block,
    Gaussian,
    NoisyBlock,
    PublicColumn,
    PublicFacts,
    SitedTask,
)
from cloister.tasks.options import design
from cloister.tasks.preparation.pipeline import Pipeline
from cloister.tasks.preparation.standardise import Standardise
from cloister.tasks.regression.expressions import values_of
from cloister.tasks.supervised.linear import Linear
from cloister.testing import SimulatedNoise, ZeroNoise

ONE = 1 << 16
COLUMNS = (
    PublicColumn("treated", 0.0, 1.0),
    PublicColumn("age", 20.0, 80.0),
    PublicColumn("y", 30.0, 70.0),
)
GRID = Grid(tuple(c.low for c in COLUMNS), tuple(c.high for c in COLUMNS), 16)
BUDGET = Budget(1.0, 1e-6)
SILOS = tuple(f"ward {i}" for i in range(8))


@dataclass(frozen=True)
class SitedLinear(Gaussian):
    """Linear regression with a column of categories that each silo fills with its own name."""

    name: ClassVar[str] = "linear-at-sites"
    rounds: ClassVar[int] = Linear.rounds
    later: ClassVar[tuple[str, ...]] = ("here",)

    linear: Linear  # over the columns and, last, the silo
    sites: tuple[str, ...] = ()
    here: str = ""
    frac_bits: int = 16

    @property
    def n_features(self) -> int:
        return self.linear.n_features - bool(self.sites)

    def at_silo(self, silo: str) -> SitedLinear:
        if silo not in self.sites:
            raise PlanError(f"silo must be one of {self.sites}, got {silo!r}.")
        return replace(self, here=silo)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        if self.sites:
            expression = ("site", self.sites)
            code = values_of(expression, {"row": np.zeros(len(records))}, self.here)
            place = np.rint((2 * code / (len(self.sites) - 1) - 1) * ONE).astype(np.int32)
            records = np.column_stack([records, np.clip(place, -ONE, ONE)])
        return self.linear.contribute(t, state, records)

    def start(self) -> State:
        return self.linear.start()

    def blocks(self, t: int) -> tuple[Block, ...]:
        return self.linear.blocks(t)

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        return self.linear.update(t, state, released)

    def results(self, state: GridState, grid: Grid) -> Results:
        return self.linear.results(state, grid)

    def describe(self) -> str:
        return "Linear regression."

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        return {}

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        return ()

    @classmethod
    def design(cls, facts: PublicFacts, options: Any) -> SitedLinear:
        raise NotImplementedError


def sited(with_sites: bool, budget: Budget = BUDGET, n: int = 16_000) -> SitedLinear:
    last = (PublicColumn("site", 0.0, len(SILOS) - 1.0, SILOS),) if with_sites else ()
    columns = (*COLUMNS, *last)
    facts = PublicFacts(n_features=len(columns), nominal_n=n, budget=budget, columns=columns)
    linear = design(Linear, facts, {"target": "y"})
    assert isinstance(linear, Linear)
    return SitedLinear(linear, SILOS if with_sites else ())


def plan_of(with_sites: bool, budget: Budget = BUDGET, n: int = 16_000) -> Plan:
    return Plan(
        task=sited(with_sites, budget, n), silos=SILOS, grid=GRID, budget=budget, nominal_n=n,
        columns=tuple(c.name for c in COLUMNS),
    )  # fmt: skip


def hospitals(seed: int, n: int) -> dict[str, Floats]:
    """Return records of each silo: sicker hospitals treat more, and the effect is 1."""
    rng, made = np.random.default_rng(seed), {}
    for i, silo in enumerate(SILOS):
        treated = (rng.random(n) < 0.2 + 0.6 * i / 7) * 1.0
        age = rng.uniform(20, 80, n)
        y = 50 + treated + 0.05 * (age - 50) + 3.0 * (i - 3.5) / 3.5 + rng.normal(0, 3, n)
        made[silo] = np.column_stack([treated, age, np.clip(y, 30, 70)])
    return made


def fitted(plan: Plan, seed: int, noise: NoiseSource, n: int = 2000) -> Results:
    records = {silo: [GRID.encode(table)] for silo, table in hospitals(seed, n).items()}
    return run_plan(plan, records, noise=noise).results


def least_squares(seed: int, with_sites: bool, n: int = 2000) -> float:
    tables = hospitals(seed, n)
    rows = GRID.decode(np.concatenate([GRID.encode(t) for t in tables.values()]) / ONE)
    at = np.repeat(np.arange(len(SILOS)), n)
    of_site = np.eye(len(SILOS))[at] if with_sites else np.ones((len(at), 1))
    weights, *_ = np.linalg.lstsq(np.column_stack([rows[:, :2], of_site]), rows[:, 2], rcond=None)
    return float(weights[0])


def test_a_confounded_effect_is_one_with_the_site_and_far_away_without() -> None:
    big = Budget(1e4, 1e-6)
    with_site, without = (fitted(plan_of(s, big), 0, ZeroNoise())["coef"][0] for s in (True, False))
    assert with_site == pytest.approx(least_squares(0, True), abs=1e-3)
    assert without == pytest.approx(least_squares(0, False), abs=1e-3)
    assert with_site == pytest.approx(1.0, abs=0.2)
    assert without > 2.2


def test_the_interval_with_noise_holds_least_squares_with_sites() -> None:
    # Seeded, so that it never fails by chance.
    found = fitted(plan_of(True), 3, SimulatedNoise(5))
    exact = least_squares(3, True)
    assert found["coef_low"][0] <= exact <= found["coef_high"][0]
    assert abs(found["coef"][0] - 1.0) < 0.5


def test_frames_and_bounds_are_those_of_every_silo() -> None:
    task = sited(True)
    assert isinstance(task, SitedTask)
    layouts = [Layout.of(task.at_silo(silo)) for silo in SILOS]
    assert layouts == [Layout.of(task)] * len(SILOS)


def test_one_record_changes_the_sum_of_its_silo_within_the_bound() -> None:
    task, plan = sited(True), plan_of(True)
    rng = np.random.default_rng(1)
    records = rng.integers(-ONE, ONE + 1, (50, 3)).astype(np.int32)
    state = plan.grid and {
        name: np.rint(np.asarray(value) * ONE).astype(np.int64)
        for name, value in task.start().items()
    }
    for t in range(task.rounds):
        blocks = task.blocks(t)
        ends = np.cumsum([block.size for block in blocks])[:-1]
        for silo in SILOS[:3]:
            here = task.at_silo(silo)
            whole = here.contribute(t, state, records)
            for i in range(0, 50, 7):
                change = whole - here.contribute(t, state, np.delete(records, i, axis=0))
                for block, part in zip(blocks, np.split(change, ends), strict=True):
                    assert int((part.astype(object) ** 2).sum()) <= block.l2_squared
                    assert int(np.abs(part).sum()) <= block.l1


def test_the_plan_has_the_sites_but_no_place_of_its_own() -> None:
    plan = plan_of(True)
    written = json.loads(plan.canonical_json())["task"]
    assert written["sites"] == list(SILOS)
    assert "here" not in written
    assert plan.task_at("ward 3").here == "ward 3"  # type: ignore[attr-defined]
    assert plan_of(False).task_at("ward 3") == plan_of(False).task


def test_sites_are_the_silos_of_the_plan() -> None:
    with pytest.raises(PlanError, match="must be the silos of the plan"):
        replace(plan_of(True), silos=SILOS[:4], min_silos=0)
    with pytest.raises(PlanError, match="got 'elsewhere'"):
        sited(True).at_silo("elsewhere")


def test_a_silo_declines_terms_of_its_own_unless_its_owner_allows_a_breakdown() -> None:
    settings = PolicySettings(
        tasks=("linear-at-sites",), profiles=("group",), max_epsilon_per_job=1.0
    )
    said = [reason for reason in Policy(settings)._what(plan_of(True)) if "breakdown" in reason]
    assert said == [
        "a breakdown by silo is not allowed here; plan without by_silo and without the term site, "
        "or ask the owner to set allow_breakdown."
    ]
    allowed = Policy(settings.model_copy(update={"allow_breakdown": True}))
    for plan, policy in ((plan_of(True), allowed), (plan_of(False), Policy(settings))):
        assert not [reason for reason in policy._what(plan) if "breakdown" in reason]


def test_a_step_of_a_pipeline_cannot_have_sites() -> None:
    facts = PublicFacts(
        n_features=3, nominal_n=16_000, budget=Budget(1.0, 1e-6), columns=COLUMNS
    )  # fmt: skip
    first = design(Standardise, facts, {})
    for with_sites in (True, False):
        last = sited(with_sites)
        pipeline = Pipeline(
            steps=(first, last), shares=(0.1, 0.9), names=facts.names, low=facts.low,
            high=facts.high,
        )  # fmt: skip
        settings: dict[str, Any] = {
            "task": pipeline, "silos": SILOS, "grid": GRID, "columns": facts.names,
            "budget": facts.budget, "nominal_n": 16_000,
        }  # fmt: skip
        if not with_sites:
            assert Plan(**settings).rounds == pipeline.rounds
            continue
        with pytest.raises(PlanError, match="terms of single silos"):
            Plan(**settings)


def test_an_audit_keeps_the_silos_of_the_terms() -> None:
    assert in_profile(plan_of(True), "pairwise") is None
    assert in_profile(plan_of(False), "pairwise") is not None
