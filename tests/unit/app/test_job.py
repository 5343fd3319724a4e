"""A whole job: planned, paid for, run, kept; and nothing is spent on what cannot run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister import Budget, Ledger, Schema, make_plan, run_job
from cloister.app.in_process import run_plan
from cloister.app.job import COUNT_SHARE, split_budget
from cloister.app.payment import Account
from cloister.app.release import Release
from cloister.core.errors import BudgetExceeded, DataError, LedgerError, PlanError
from cloister.data import array_records, read_source
from cloister.privacy import accounting
from cloister.privacy.events import GaussianEvent, LaplaceEvent, mechanism_counts
from cloister.protocol.session import RoundDone
from cloister.tasks.clustering.kmeans import FastLloyd, GLloyd, Lloyd, SuLloyd
from cloister.tasks.count import Count
from cloister.tasks.preparation.quantiles import Quantiles
from cloister.testing import ZeroNoise, toy_plan, toy_records, toy_schema

SCHEMA = toy_schema(2)
PRIVATE = [FastLloyd, GLloyd, SuLloyd]


def silos(rows: int = 100, names: tuple[str, ...] = ("a", "b", "c")) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {n: array_records(rng.uniform(-1, 1, (rows, 2)), SCHEMA.grid()) for n in names}


@pytest.fixture
def account() -> Iterator[Account]:
    ledger = Ledger(None)
    ledger.open_dataset("toy", cap=Budget(2.0, 1e-6))
    yield Account(ledger, "toy")
    ledger.dispose()


# --- Planning -------------------------------------------------------------------------------------


@pytest.mark.parametrize("nominal_n", [300, None])
def test_a_job_over_some_columns_is_planned_paid_and_known_by_the_whole_schema(
    account: Account, nominal_n: int | None
) -> None:
    rows = {name: np.random.default_rng(i).uniform(-1, 1, (100, 2)) for i, name in enumerate("abc")}
    records = {name: read_source(table, SCHEMA, columns=["x1"]) for name, table in rows.items()}
    job = {"epsilon": 1.0, "nominal_n": nominal_n, "account": account, "columns": ["x1"]}
    result = run_job(Count, SCHEMA, records, **job)
    assert result.plan.columns == ("x1",)
    assert result.plan.schema_digest == SCHEMA.digest()
    assert result.plan.grid == SCHEMA.select(["x1"]).grid()
    account.ledger.open_dataset("other", cap=Budget(2.0, 1e-6))
    other = {name: read_source(table, SCHEMA, columns=["x0"]) for name, table in rows.items()}
    again = {**job, "account": Account(account.ledger, "other"), "columns": ["x0"]}
    with pytest.raises(LedgerError, match="has the same content as 'toy'"):
        run_job(Count, SCHEMA, other, **again)


@pytest.mark.parametrize("nominal_n", [300, None])
def test_columns_that_come_one_by_one_are_read_once(nominal_n: int | None) -> None:
    records = {"a": read_source(np.zeros((9, 2)), SCHEMA, columns=iter(["x1"]))}
    job = {"epsilon": 1.0, "nominal_n": nominal_n}
    assert run_job(Count, SCHEMA, records, columns=iter(["x1"]), **job).plan.columns == ("x1",)


@pytest.mark.parametrize("nominal_n", [300, None])
@pytest.mark.parametrize(("planned", "read"), [(["x1"], None), (None, ["x1"]), (["x1"], ["x0"])])
def test_records_with_other_columns_than_the_plan_are_refused_before_they_cost(
    planned: list[str] | None, read: list[str] | None, nominal_n: int | None, account: Account
) -> None:
    records = {"a": read_source(np.zeros((9, 2)), SCHEMA, columns=read)}
    job = {"epsilon": 1.0, "nominal_n": nominal_n, "account": account}
    with pytest.raises(PlanError, match="their columns differ"):
        run_job(Count, SCHEMA, records, columns=planned, **job)
    assert account.ledger.spent("toy") == 0


def test_a_plan_is_made_of_the_schema_and_public_numbers() -> None:
    schema = Schema(
        dataset="ward",
        unit="patient",
        max_rows=3,
        max_silos_per_person=2,
        columns=[{"name": "age", "type": "integer", "min": 0, "max": 120}],
    )
    plan = make_plan(
        FastLloyd, schema, ["a", "b"], budget=Budget(1, 1e-6), nominal_n=500, n_clusters=2
    )
    assert (plan.unit, plan.max_rows, plan.max_silos_per_person) == ("patient", 3, 2)
    assert plan.schema_digest == schema.digest()
    assert plan.columns == ("age",)
    assert (plan.grid.low, plan.grid.high) == ((0.0,), (120.0,))
    assert plan.profile == "group"
    assert "ward" not in plan.canonical_json()  # the owner's own name for the data is his


def test_a_task_is_designed_for_the_noise_of_units_with_several_records() -> None:
    number = {"name": "age", "type": "number", "min": 0, "max": 120}
    alone = Schema(dataset="ward", unit="row", columns=[number])
    several = Schema(dataset="ward", unit="patient", max_rows=8, columns=[number])
    levels = [
        make_plan(Quantiles, schema, ["a"], budget=Budget(1, 1e-6), nominal_n=4000).task.levels
        for schema in (alone, several)
    ]
    # Eight times the noise needs cells that are wider; a level divides a cell into four.
    assert levels == [6, 4]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"nominal_n": 0}, "nominal_n"),
        ({"nominal_n": 2}, "n_clusters must be at most nominal_n=2"),
        ({"n_cluster": 3}, "options of task 'fastlloyd'"),
        ({"alpha": -1}, "alpha"),
        ({"budget": None}, "budget"),
        ({"min_silos": 5}, "min_silos"),
        ({"frac_bits": 3}, "frac_bits"),
    ],
)
def test_a_plan_that_cannot_hold_is_refused(change: dict[str, Any], match: str) -> None:
    options = {"budget": Budget(1, 1e-6), "nominal_n": 300, "n_clusters": 3, **change}
    with pytest.raises(PlanError, match=match):
        make_plan(FastLloyd, SCHEMA, ["a", "b"], **options)


# --- Running --------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("a",), ("a", "b"), ("a", "b", "c", "d", "e")])
@pytest.mark.parametrize("task", PRIVATE)
def test_a_job_releases_centres_and_costs_its_budget(task: Any, names: tuple[str, ...]) -> None:
    rounds: list[RoundDone] = []
    result = run_job(
        task,
        SCHEMA,
        silos(names=names),
        epsilon=1.0,
        nominal_n=300,
        n_clusters=3,
        on_round=rounds.append,
    )
    assert result.results["centres"].shape == (3, 2)
    assert np.isfinite(result.results["centres"]).all()
    assert 0.999 <= result.epsilon() <= 1.0
    assert result.plan.budget == Budget(1.0, 1e-6)
    assert result.noise == "operating system"
    assert result.survivors == (names,) * result.plan.rounds
    assert len(result.history) == result.plan.rounds + 1
    assert [done.round for done in rounds] == list(range(result.plan.rounds))
    for name, value in result.results.items():
        assert np.array_equal(result.history[-1][name], value)


def test_without_noise_a_job_says_so() -> None:
    result = run_job(
        FastLloyd, SCHEMA, silos(), epsilon=1, nominal_n=9, n_clusters=2, noise=ZeroNoise()
    )
    assert "not private" in result.noise
    exact = run_job(Lloyd, SCHEMA, silos(), epsilon=None, n_clusters=2)
    assert exact.noise == "none: not private"
    assert exact.epsilon() == float("inf")
    assert exact.plan.budget is None


def test_a_task_that_is_not_private_needs_no_nominal_n() -> None:
    result = run_job(Lloyd, SCHEMA, silos(), epsilon=None, n_clusters=5)
    assert result.results["centres"].shape == (5, 2)


@pytest.mark.parametrize("epsilon", [None, 0, -1.0, float("nan"), float("inf"), "1", True])
def test_epsilon_is_never_guessed(epsilon: Any) -> None:
    with pytest.raises(PlanError, match="epsilon"):
        run_job(FastLloyd, SCHEMA, silos(), epsilon=epsilon, nominal_n=300, n_clusters=2)


@pytest.mark.parametrize(
    ("nominal_n", "delta"), [(100, 1e-6), (10_000, 1e-6), (1_000_000, 1e-8), (50_000, 2e-7)]
)
def test_delta_follows_nominal_n(nominal_n: int, delta: float) -> None:
    result = run_job(
        FastLloyd, SCHEMA, silos(), epsilon=1, nominal_n=nominal_n, n_clusters=2, rounds=2
    )
    assert result.plan.budget is not None
    assert result.plan.budget.delta == pytest.approx(delta)


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c", "d")])
def test_silos_must_be_those_of_the_plan(names: tuple[str, ...], account: Account) -> None:
    plan = replace(toy_plan(), silos=("a", "b", "c"))
    with pytest.raises(PlanError, match="those of the plan"):
        run_plan(plan, silos(names=names), account=account)
    assert account.ledger.jobs() == ()


def test_every_run_draws_keys_and_noise_of_its_own() -> None:
    plan = toy_plan()
    records = {name: [rows] for name, rows in toy_records(plan).items()}
    centres = [run_plan(plan, records).results["centres"] for _ in range(3)]
    assert not np.array_equal(centres[0], centres[1])
    assert not np.array_equal(centres[1], centres[2])


# --- The paid count -------------------------------------------------------------------------------


@pytest.mark.parametrize("task", PRIVATE)
def test_without_nominal_n_a_count_is_paid_for(task: Any) -> None:
    result = run_job(task, SCHEMA, silos(), epsilon=2.0, n_clusters=3)
    assert result.plan.budget is not None
    assert result.plan.budget.delta == 1e-6
    assert result.plan.budget.epsilon < 2.0
    assert 1.99 <= result.epsilon() <= 2.0  # both together cost the whole
    law = LaplaceEvent if task is SuLloyd else GaussianEvent
    events = mechanism_counts(result.spent)
    assert all(isinstance(event, law) for event in events)
    assert sum(events.values()) == result.plan.rounds + 1


def test_the_plan_follows_the_noisy_count_and_not_the_rows() -> None:
    sizes = {
        run_job(FastLloyd, SCHEMA, silos(), epsilon=0.5, n_clusters=3).plan.nominal_n
        for _ in range(6)
    }
    assert len(sizes) > 1  # equal by chance: the noise has a standard deviation near 50
    exact = run_job(FastLloyd, SCHEMA, silos(), epsilon=0.5, n_clusters=3, noise=ZeroNoise())
    assert exact.plan.nominal_n == 300


def test_fewer_records_than_clusters_stop_no_job() -> None:
    for rows in (0, 1):
        result = run_job(FastLloyd, SCHEMA, silos(rows), epsilon=0.2, n_clusters=7)
        assert result.plan.nominal_n >= 7
        assert np.isfinite(result.results["centres"]).all()


@given(st.floats(0.05, 10), st.floats(0.01, 0.99), st.sampled_from(["gaussian", "laplace"]))
def test_the_parts_of_a_budget_compose_to_the_whole(epsilon: float, share: float, law: Any) -> None:
    whole = Budget(epsilon, 1e-6)
    left, right = split_budget(whole, share, law)
    if law == "laplace":
        assert left.epsilon + right.epsilon == pytest.approx(epsilon)
        assert left.epsilon == pytest.approx(share * epsilon)
        return
    from cloister.privacy.calibration import gdp_mu_for

    mu = [gdp_mu_for(part.epsilon, part.delta) for part in (left, right, whole)]
    assert mu[0] ** 2 + mu[1] ** 2 == pytest.approx(mu[2] ** 2, rel=1e-6)
    assert mu[0] ** 2 == pytest.approx(share * mu[2] ** 2, rel=1e-6)


def test_the_count_takes_two_percent() -> None:
    assert COUNT_SHARE == 0.02


# --- The ledger -----------------------------------------------------------------------------------


def test_each_round_is_charged_once_before_it_is_released(account: Account) -> None:
    charged: list[float] = []
    result = run_job(
        FastLloyd,
        SCHEMA,
        silos(),
        epsilon=1.0,
        nominal_n=300,
        n_clusters=3,
        account=account,
        on_round=lambda done: charged.append(len(account.ledger.jobs("toy"))),
    )
    (job,) = account.ledger.jobs("toy")
    assert job.job == result.plan.run_id
    assert account.ledger.spent("toy") == pytest.approx(result.epsilon())
    assert charged == [1] * result.plan.rounds
    account.ledger.verify()


def test_a_job_beyond_the_cap_is_refused_before_anything_is_drawn(account: Account) -> None:
    class Watched(ZeroNoise):
        def draw(self, *args: Any) -> Any:
            raise AssertionError("noise was drawn")

    with pytest.raises(BudgetExceeded):
        run_job(
            FastLloyd,
            SCHEMA,
            silos(),
            epsilon=2.1,
            nominal_n=300,
            n_clusters=3,
            account=account,
            noise=Watched(),
        )
    assert account.ledger.spent("toy") == 0


def test_a_second_run_beyond_the_budget_is_refused(account: Account) -> None:
    def once() -> Release:
        return run_job(
            FastLloyd, SCHEMA, silos(), epsilon=1.5, nominal_n=300, n_clusters=3, account=account
        )

    once()
    before = account.ledger.spent("toy")
    with pytest.raises(BudgetExceeded):
        once()
    assert account.ledger.spent("toy") == before


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"alpha": -1}, PlanError),
        ({"rounds": 0}, PlanError),
        ({"n_clusters": 0}, PlanError),
        ({"post": "clip"}, PlanError),
        ({"magic": 1}, PlanError),
        ({"min_silos": 9}, PlanError),
        ({"epsilon": 2.5}, BudgetExceeded),
        ({"delta": 0.0}, PlanError),
    ],
)
def test_no_count_is_paid_for_when_the_job_cannot_follow(
    account: Account, options: dict[str, Any], error: type[Exception]
) -> None:
    whole: dict[str, Any] = {"epsilon": 1.0, "n_clusters": 3, "account": account, **options}
    with pytest.raises(error):
        run_job(FastLloyd, SCHEMA, silos(), **whole)
    assert account.ledger.spent("toy") == 0


def test_the_count_and_the_job_are_both_charged(account: Account) -> None:
    result = run_job(FastLloyd, SCHEMA, silos(), epsilon=1.0, n_clusters=3, account=account)
    assert account.ledger.spent("toy") == pytest.approx(result.epsilon())


def test_no_noise_is_never_charged_to_a_ledger(account: Account) -> None:
    with pytest.raises(BudgetExceeded, match="without noise"):
        run_job(Lloyd, SCHEMA, silos(), epsilon=None, n_clusters=3, account=account)


def test_a_job_that_fails_midway_keeps_what_it_charged_and_returns_the_rest(
    account: Account,
) -> None:
    class Stop(Exception):
        pass

    def stop(done: RoundDone) -> None:
        raise Stop

    with pytest.raises(Stop):
        run_job(
            FastLloyd,
            SCHEMA,
            silos(),
            epsilon=1.0,
            nominal_n=300,
            n_clusters=3,
            rounds=4,
            account=account,
            on_round=stop,
        )
    whole = accounting.gdp_mu(account.ledger.charged("toy"))
    from cloister.privacy.calibration import gdp_mu_for

    assert whole == pytest.approx(gdp_mu_for(1.0, 1e-6) / 2, rel=1e-3)  # one round of four


def test_the_unit_of_privacy_must_be_the_ledgers(account: Account) -> None:
    plan = replace(toy_plan(), unit="patient", max_rows=2)
    records = {name: [rows] for name, rows in toy_records(plan).items()}
    with pytest.raises(PlanError, match="unit of privacy"):
        run_plan(plan, records, account=account)


def test_the_same_records_under_another_name_need_the_owners_word(account: Account) -> None:
    plan = {"epsilon": 0.1, "nominal_n": 300, "n_clusters": 2}
    run_job(FastLloyd, SCHEMA, silos(), account=account, **plan)
    account.ledger.open_dataset("copy", cap=Budget(2.0, 1e-6))
    with pytest.raises(LedgerError, match="same content"):
        run_job(FastLloyd, SCHEMA, silos(), account=replace(account, dataset="copy"), **plan)
    confirmed = replace(account, dataset="copy", confirm_same_content=True)
    run_job(FastLloyd, SCHEMA, silos(), account=confirmed, **plan)


# --- What is kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [*PRIVATE, Lloyd, Count])
def test_a_result_survives_its_file(task: Any, tmp_path: Path) -> None:
    epsilon = None if task is Lloyd else 1.0
    options = {} if task is Count else {"n_clusters": 2}
    result = run_job(task, SCHEMA, silos(), epsilon=epsilon, nominal_n=300, **options)
    result.save(tmp_path / "model.json")
    again = Release.load(tmp_path / "model.json")
    assert again.plan == result.plan
    assert again.spent == result.spent
    assert again.epsilon() == result.epsilon()
    for name, value in result.results.items():
        assert np.array_equal(again.results[name], value)
    assert len(again.history) == len(result.history)
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == (tmp_path / "model.json").read_text()


def _leaves(document: Any) -> Iterator[Any]:
    if isinstance(document, dict):
        document = list(document.values())
    if isinstance(document, list):
        for item in document:
            yield from _leaves(item)
    else:
        yield document


def test_a_model_holds_public_numbers_only(tmp_path: Path) -> None:
    result = run_job(FastLloyd, SCHEMA, silos(137), epsilon=1.0, nominal_n=300, n_clusters=2)
    document = json.loads(json.dumps(result.to_dict()))
    assert set(document) == {
        "format",
        "plan",
        "plan_digest",
        "results",
        "history",
        "spent",
        "noise",
        "survivors",
        "privacy",
        "sums",
        "versions",
    }
    text = json.dumps(document)
    assert "label" not in text
    numbers = [n for n in _leaves(document["plan"]) if isinstance(n, int | float)]
    assert not {137, 3 * 137} & set(numbers)  # how many rows there are
    names = {"centres", "low", "high", "half_width", "sizes", "size_half_width"}
    assert set(document["results"]) == names


def test_a_model_whose_plan_was_changed_is_refused(tmp_path: Path) -> None:
    result = run_job(FastLloyd, SCHEMA, silos(), epsilon=1.0, nominal_n=300, n_clusters=2)
    document = result.to_dict()
    document["plan"] = {**document["plan"], "nominal_n": 301}
    with pytest.raises(DataError, match="digest differs"):
        Release.from_dict(document)


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"format": "cloister-model/1"}', "\x00"])
def test_a_file_that_is_no_model_is_one_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(DataError):
        Release.load(path)
    with pytest.raises(DataError, match="cannot be read"):
        Release.load(tmp_path / "none.json")


def test_a_model_without_a_part_is_refused() -> None:
    document = run_job(Count, SCHEMA, silos(), epsilon=1.0, nominal_n=300).to_dict()
    for name in ("plan", "plan_digest", "results", "history", "spent", "noise", "survivors"):
        with pytest.raises(DataError):
            Release.from_dict({key: document[key] for key in document if key != name})
