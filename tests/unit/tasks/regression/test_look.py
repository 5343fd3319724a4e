"""The look at each silo: what it costs, what it says of confounded silos, and when it is silent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cloister.app.forecast import site_warnings
from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.app.present import present
from cloister.app.release import Release
from cloister.core.arrays import Floats, Results
from cloister.data.schema import schema_of
from cloister.estimators.linear_model import DPGeneralizedLinearRegressor
from cloister.federation.settings import PolicySettings
from cloister.federation.silo.policy import Policy
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.protocol.task import PerSiloTask, PublicColumn
from cloister.tasks.regression.glm import GeneralizedLinear
from cloister.tasks.regression.rounds import LAST, ROUNDS
from cloister.tasks.regression.sites import look_block, look_rows
from cloister.testing import SimulatedNoise, ZeroNoise

COLUMNS = (
    PublicColumn("treated", 0.0, 1.0),
    PublicColumn("age", 20.0, 80.0),
    PublicColumn("y", 30.0, 70.0),
)
SCHEMA = schema_of(COLUMNS)
SILOS = tuple(f"ward {i}" for i in range(8))


def wards(seed: int, kind: str, n: int = 2000) -> dict[str, Floats]:
    """Return records of each silo; the effect of the treatment is 1."""
    rng, made = np.random.default_rng(seed), {}
    for i, silo in enumerate(SILOS):
        place = (i - 3.5) / 3.5
        often, shift = kind in ("confounded", "columns"), kind in ("confounded", "outcome")
        treated = (rng.random(n) < 0.5 + 0.3 * place * often) * 1.0
        age = rng.uniform(20, 80, n)
        y = 50 + treated + 0.05 * (age - 50) + 3 * place * shift + rng.normal(0, 3, n)
        made[silo] = np.column_stack([treated, age, np.clip(y, 30, 70)])
    return made


def plan_of(epsilon: float = 1.0, silos: tuple[str, ...] = SILOS, **options: Any) -> Plan:
    options = {"target": "y", "by_silo": True, **options}
    budget = Budget(epsilon, 1e-6)
    return make_plan(GeneralizedLinear, SCHEMA, silos, budget=budget, nominal_n=16_000, **options)


def released(plan: Plan, tables: Mapping[str, Floats], noise: Any) -> Release:
    records = {silo: [plan.grid.encode(table)] for silo, table in tables.items()}
    return run_plan(plan, records, noise=noise)


def fitted(tables: Mapping[str, Floats], **options: Any) -> Results:
    return released(plan_of(1e4, **options), tables, ZeroNoise()).results


def said(seed: int, kind: str, epsilon: float = 1.0) -> list[str]:
    found = released(plan_of(epsilon), wards(seed, kind), SimulatedNoise(seed))
    return [line for line in present(found).remarks if "silos" in line]


def test_the_block_has_a_layer_for_each_silo_and_two_parts_of_a_hundred_of_the_budget() -> None:
    task, without = plan_of().task, plan_of(by_silo=False).task
    assert isinstance(task, PerSiloTask)
    assert task.silos == SILOS
    *others, block = task.blocks(LAST)
    assert block.shape == (8, 5)
    assert block.weight == pytest.approx(0.02)
    assert [b.name for b in others] == [b.name for b in without.blocks(LAST)]
    assert sum(b.weight for t in range(ROUNDS) for b in task.blocks(t)) == pytest.approx(1.0)
    assert [task.blocks(t) for t in range(LAST)] == [without.blocks(t) for t in range(LAST)]


def test_a_record_is_in_the_layer_of_its_silo_alone() -> None:
    plan = plan_of()
    task, state = plan.task, plan.task.start()
    assert isinstance(task, GeneralizedLinear)
    ones = {name: np.ones(np.shape(value), dtype=np.int64) for name, value in state.items()}
    records = plan.grid.encode(wards(0, "alike", 5)["ward 0"])
    for t in range(ROUNDS):
        total = task.contribute(t, ones, records)
        size = task.blocks(t)[-1].size if t == LAST else 0
        for i, silo in enumerate(SILOS):
            moved = task.to_silo_layer(t, silo, total)
            rest = len(total) - size
            assert (moved[:rest] == total[:rest]).all()
            layers = moved[rest:].reshape(8, -1) if size else np.zeros((0, 1))
            assert [bool(layer.any()) for layer in layers] == [j == i for j in range(len(layers))]


ANY = st.floats(width=32) | st.sampled_from([0.0, 1e-300, 1e300, -1e300])


@given(arrays(np.float64, (4, 3), elements=ANY), st.tuples(ANY, ANY))
def test_a_payload_is_in_the_ball_whatever_the_unit_and_the_state(
    sums: Floats, cuts: tuple[float, float]
) -> None:
    words = look_rows(sums[0], sums[1:], cuts).values.astype(object)
    assert ((words**2).sum(axis=1) <= look_block(2, 3, 1.0).l2_squared).all()


def test_a_long_unit_reaches_the_bound() -> None:
    words = look_rows(np.array([-9.0]), np.array([[1.0], [2.0], [3.0]]), (1.0, 1.0)).values
    block = look_block(2, 3, 1.0)
    assert 0.9999 * block.l2_squared <= (words.astype(object) ** 2).sum() <= block.l2_squared


@pytest.mark.parametrize(("silos", "options"), [(SILOS[:1], {}), (SILOS, {"by_silo": False})])
def test_without_silos_to_compare_there_is_no_layer(
    silos: tuple[str, ...], options: dict[str, Any]
) -> None:
    plan = plan_of(silos=silos, **options)
    assert plan.task.silos == ()  # type: ignore[attr-defined]
    assert len(site_warnings(plan)) == (len(silos) > 1)
    assert site_warnings(plan_of()) == ()


def test_without_noise_it_is_the_change_by_the_term_site() -> None:
    pytest.importorskip("formulaic")
    from cloister.tasks.regression.parse import parse_formula

    tables = wards(1, "confounded", 500)
    plain = fitted(tables)
    written = parse_formula("y ~ treated + age + site").to_dict()
    with_site = fitted(tables, formula=written, by_silo=False)
    wanted = with_site["coef"][:2] - plain["coef"]
    assert plain["site_change"] == pytest.approx(wanted, rel=0.02, abs=2e-3)
    assert plain["site_change"][0] < -1.3


def test_confounded_silos_are_named_with_the_coefficient_that_moves() -> None:
    (line,) = said(1, "confounded")
    assert line.startswith("silos differ both in columns and in the outcome: with the term site, ")
    assert "of treated would be about" in line
    assert "of age" not in line
    told, before = (float(line.split(cut)[1].split()[0]) for cut in ("about ", "place of "))
    assert told == pytest.approx(1.0, abs=0.5)
    assert before == pytest.approx(2.5, abs=0.3)


@pytest.mark.parametrize("kind", ["alike", "columns", "outcome"])
def test_differences_that_move_no_coefficient_are_not_mentioned(kind: str) -> None:
    assert said(2, kind, epsilon=2.0) == []


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 110))
def test_only_confounded_silos_are_mentioned(seed: int) -> None:
    """Seeded, so that it never fails by chance; none of the seeds was looked at before."""
    for kind in ("alike", "columns", "outcome"):
        assert said(seed, kind) == []
    (line,) = said(seed, "confounded")
    assert "of treated would be about" in line


def test_noise_that_hides_the_silos_leaves_nothing_known() -> None:
    few = {silo: table[:8] for silo, table in wards(3, "confounded").items()}
    found = released(plan_of(), few, SimulatedNoise(3))
    assert np.isnan(found.results["site_change"]).all()
    assert np.isinf(found.results["site_change_low"]).all()
    assert "noise hides whether coefficients would change with the term site" in " ".join(
        present(found).remarks
    )


def test_an_owner_must_allow_it() -> None:
    rules: dict[str, Any] = {"tasks": ("glm",), "profiles": ("group",), "max_epsilon_per_job": 1.0}
    for allowed in (False, True):
        policy = Policy(PolicySettings(**rules, allow_breakdown=allowed))
        reasons = [reason for reason in policy._what(plan_of()) if "breakdown" in reason]
        assert len(reasons) == (not allowed)


def test_an_estimator_looks_at_several_silos(monkeypatch: pytest.MonkeyPatch) -> None:
    new_noise = staticmethod(lambda: SimulatedNoise(1))
    monkeypatch.setattr(DPGeneralizedLinearRegressor, "_new_noise", new_noise)
    silos = [t[:, :2] for t in wards(1, "confounded").values()]
    y = [t[:, 2] for t in wards(1, "confounded").values()]
    about: dict[str, Any] = {"bounds": [(0, 1), (20, 80)], "target_bounds": (30, 70)}
    model = DPGeneralizedLinearRegressor(epsilon=1.0, nominal_n=16_000, **about)
    assert model.fit(silos, y).site_change_[0] < -1
    alone = model.fit(np.concatenate(silos), np.concatenate(y))
    assert alone.plan_.task.silos == ()  # type: ignore[attr-defined]
    assert "site_change" not in alone.result_.results
