"""Federated averaging: who a client is, what one adds, who takes part, and what a plan refuses.

Records and coins are from fixed seeds, but where a test says otherwise.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from itertools import count
from math import ceil, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister import Ledger, Schema, make_plan
from cloister.app.forecast import expected as expected_errors
from cloister.app.in_process import InProcess, run_plan
from cloister.app.job import run_job
from cloister.app.payment import Account
from cloister.core.errors import PlanError
from cloister.data import read_source
from cloister.data.schema import Column
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.privacy.events import SampledGaussianEvent
from cloister.privacy.filter import Split
from cloister.protocol.journal import MemoryJournal
from cloister.protocol.messages import Upload, decode
from cloister.protocol.plan import Plan, task_to_json
from cloister.protocol.task import Classifier, GridState, NoisyBlock, Regressor, UnitTask
from cloister.tasks import TASKS
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.tasks.examples import example_of
from cloister.tasks.supervised.fedavg import ClientUpdates, FedAvg, FedAvgRegression
from cloister.tasks.supervised.local_training import _CELLS, NORM, Network, alike, bounded, clipped
from cloister.testing import Faults, SimulatedNoise, Wire, ZeroNoise, check_task

ONE = 1 << 16
BUDGET = Budget(4.0, 1e-5)
CLIENT = Column(name="phone", type="integer", min=0, max=40, out_of_range="drop")
AGE = Column(name="age", type="number", min=0, max=100)
WORK = Column(name="work", type="category", categories=("private", "state", "none"))
SICK = Column(name="sick", type="boolean", min=0, max=1)
COLUMNS = (CLIENT, AGE, WORK, SICK)


def schema(unit: str, columns: tuple[Column, ...] = COLUMNS) -> Schema:
    return Schema(dataset="phones", unit=unit, columns=columns)


def plan(unit: str = "phone", silos: int = 3, target: str = "sick", **options: Any) -> Plan:
    kind = FedAvgRegression if target == "age" else FedAvg
    if unit == "phone":
        options = {"n_clients": 40, **options}
    options = {"rounds": 2, "local_steps": 3, **options}
    names = [f"silo-{i}" for i in range(silos)]
    given = {"budget": BUDGET, "nominal_n": 100, "target": target, **options}
    return make_plan(kind, schema(unit), names, **given)


def table(rows: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    cells = [rng.integers(0, 41, rows), rng.uniform(0, 100, rows)]
    cells += [rng.integers(0, 3, rows), rng.integers(0, 2, rows)]
    return schema("row").grid().encode(np.column_stack(cells))


def start(task: Any) -> GridState:
    return {name: round_to_grid(v, task.frac_bits) for name, v in task.start().items()}


def wild(task: Any, seed: int) -> GridState:
    rng = np.random.default_rng(seed)
    state = dict(start(task))
    size = len(state["parameters"])
    state["parameters"] = round_to_grid(rng.normal(0, 10 ** rng.uniform(-2, 6), size), 16)
    return state


# --- who a client is ---


def test_an_update_beyond_the_bound_is_zero_and_the_others_stay() -> None:
    rows = np.array([[NORM, 0], [NORM + 1, 0], [1, -2], [NORM, 1], [1 << 62, 1 << 62]])
    assert bounded(rows).tolist() == [[NORM, 0], [0, 0], [1, -2], [0, 0], [0, 0]]


@pytest.mark.parametrize("cells", [1, _CELLS // 2, _CELLS])
def test_every_row_of_an_owner_comes_once_and_in_order(cells: int) -> None:
    owners = np.array([7, 3, 7, 5, 3, 9, 7, 5, 1], dtype=np.int32)
    found = [rows for part in alike(owners, cells) for rows in part.tolist()]
    assert sorted(found) == [[0, 2, 6], [1, 4], [3, 7], [5], [8]]


def test_the_unit_of_the_schema_says_who_a_client_is() -> None:
    for unit in ("row", "silo", "phone"):
        it = plan(unit)
        assert isinstance(it.task, UnitTask)
        assert (it.unit, it.task.clients) == (unit, unit)
    assert plan("row").task.n_clients == 100
    assert plan("silo").task.n_clients == 3
    assert "one silo with all of its records" in plan("silo").describe()
    assert "one value of 'phone'" in plan("phone").describe()


def test_a_person_with_several_rows_is_a_group_of_clients() -> None:
    people = Schema(dataset="d", unit="person", max_rows=3, columns=(AGE, SICK))
    it = make_plan(FedAvg, people, ["a"], budget=BUDGET, nominal_n=50, target="sick")
    single = make_plan(
        FedAvg, schema("row", (AGE, SICK)), ["a"], budget=BUDGET, nominal_n=50, target="sick"
    )
    assert it.task.clients == "row"
    (block,) = it.task.blocks(0)
    assert it.noise_scale(block) == pytest.approx(3 * single.noise_scale(block), rel=1e-5)


def test_the_column_of_clients_is_not_learned_from() -> None:
    it = plan("phone")
    records = table(50, 1)
    other = records.copy()
    other[:, 0] = ONE
    results = {"parameters": np.arange(float(it.task.n_parameters))}
    np.testing.assert_array_equal(
        it.task.probabilities(results, records), it.task.probabilities(results, other)
    )


@pytest.mark.parametrize(
    "change",
    [
        {"type": "number"},
        {"out_of_range": "clip"},
        {"missing": "min"},
    ],
)
def test_clients_that_could_become_one_are_refused(change: dict[str, Any]) -> None:
    column = CLIENT.model_copy(update=change)
    with pytest.raises(PlanError, match="so its type must be"):
        schema("phone", (column, AGE, SICK))


def test_more_clients_than_places_of_the_grid_are_refused() -> None:
    column = Column(name="phone", type="integer", min=0, max=3 * ONE, out_of_range="drop")
    it = schema("phone", (column, AGE, SICK))
    with pytest.raises(PlanError, match="more privacy units than the grid"):
        make_plan(FedAvg, it, ["a"], budget=BUDGET, nominal_n=9, target="sick", n_clients=9)


def test_a_unit_of_clients_goes_with_no_other_task() -> None:
    for unit in ("silo", "phone"):
        with pytest.raises(PlanError, match="does not fit task 'fastlloyd'"):
            make_plan(FastLloyd, schema(unit), ["a"], budget=BUDGET, nominal_n=9, n_clusters=2)
    with pytest.raises(PlanError, match="does not fit"):
        replace(plan("silo"), unit="row")
    with pytest.raises(PlanError, match="does not fit"):
        replace(plan("row"), unit="silo")


def test_a_ledger_that_counts_rows_is_not_charged_for_clients() -> None:
    ledger = Ledger(None)
    ledger.open_dataset("phones", cap=Budget(9.0, 1e-5))
    it = plan("silo")
    silos = {name: [table(9, i)] for i, name in enumerate(it.silos)}
    with pytest.raises(PlanError, match=r"the ledger counts 'row'.* another name with"):
        run_plan(it, silos, account=Account(ledger, "phones"))


def test_a_ledger_of_clients_is_charged_what_the_plan_costs() -> None:
    ledger = Ledger(None)
    ledger.open_dataset("phones", cap=Budget(9.0, 1e-5), unit="phone", split=Split(1.0, 1.0))
    it = plan("phone", rate=0.3)
    silos = {name: [table(9, i)] for i, name in enumerate(it.silos)}
    result = run_plan(it, silos, account=Account(ledger, "phones"))
    assert result.epsilon() <= ledger.spent("phones") <= 1.1 * result.epsilon()
    assert 0.99 * BUDGET.epsilon < result.epsilon() <= BUDGET.epsilon


def test_clients_inside_a_larger_task_are_refused() -> None:
    inner = plan("silo").task

    class Outer(FastLloyd):
        steps = (inner,)

    plain = FastLloyd(n_clusters=2, n_features=4, rounds=1, first_radius=1.0, radius=1.0)
    outer = Outer(**{f.name: getattr(plain, f.name) for f in fields(plain)})
    with pytest.raises(PlanError, match="must be the task of a plan"):
        replace(plan("row"), task=outer, layout=None)


# --- sums ---


def owner_of(unit: str, records: np.ndarray, silos: int, seed: int) -> np.ndarray:
    if unit == "phone":  # all rows of one client are in one silo
        return (
            np.random.default_rng(seed).permutation(41)[
                np.rint((records[:, 0] / ONE + 1) * 20).astype(int)
            ]
            % silos
        )
    return np.random.default_rng(seed).integers(0, silos, len(records))


@pytest.mark.parametrize("silos", [1, 2, 5])
@pytest.mark.parametrize("unit", ["row", "phone"])
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(0, 70),
    target=st.sampled_from(["sick", "work", "age"]),
    hidden=st.sampled_from([0, 3]),
)
def test_a_masked_run_equals_the_pooled_run_bit_for_bit(
    silos: int, unit: str, seed: int, rows: int, target: str, hidden: int
) -> None:
    it = plan(unit, silos, target, hidden=hidden)
    records = table(rows, seed)
    owner = owner_of(unit, records, silos, seed)
    wire = Wire(it, {name: records[owner == i] for i, name in enumerate(it.silos)})
    pooled = Wire(plan(unit, 1, target, hidden=hidden), {"silo-0": records})
    (expected,) = pooled.run()
    for state in wire.run():
        for name in ("parameters", "velocity", "update", "lengths"):
            np.testing.assert_array_equal(state[name], expected[name])


@pytest.mark.parametrize("silos", [1, 2, 5])
def test_silos_as_clients_add_what_each_has_alone(silos: int) -> None:
    it = plan("silo", silos, hidden=2)
    tables = {name: table(20 + i, i) for i, name in enumerate(it.silos)}
    first = start(it.task)
    alone = sum(it.task.contribute(0, first, part) for part in tables.values())
    wire = Wire(it, tables)
    for done in wire.run():
        assert set(done) == set(first)
    mean = alone * it.task.clip / NORM / silos
    np.testing.assert_array_equal(
        wire.clients["silo-0"].history[1]["update"], round_to_grid(mean, 16)
    )


def test_a_silo_is_one_client_however_its_records_are_cut() -> None:
    it = plan("silo", 1)
    records = table(60, 3)
    noise = ZeroNoise()
    whole = run_plan(it, {"silo-0": [records]}, noise=noise)
    parts = run_plan(it, {"silo-0": np.array_split(records, 7)}, noise=noise)
    np.testing.assert_array_equal(whole.results["parameters"], parts.results["parameters"])


def test_the_update_is_gradient_descent_on_the_mean_loss() -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(1, 30, 3)), rng.integers(0, 2, (1, 30, 1)).astype(float)
    start = rng.normal(size=(3,))
    w = start.copy()
    for _ in range(4):
        w -= 0.3 * X[0].T @ (1 / (1 + np.exp(-X[0] @ w)) - Y[0, :, 0]) / 30
    moved = Network(3, 1, "logistic").train(start, X, Y, 4, 0.3)
    np.testing.assert_allclose(moved[0], w - start, rtol=1e-10)


@pytest.mark.parametrize("loss", ["square", "logistic", "softmax"])
def test_the_gradient_of_a_hidden_layer_is_that_of_its_loss(loss: Any) -> None:
    outputs = 3 if loss == "softmax" else 1
    net = Network(4, outputs, loss, hidden=3)
    rng = np.random.default_rng(2)
    X = rng.normal(size=(1, 6, 4))
    Y = np.eye(3)[rng.integers(0, 3, (1, 6))] if outputs == 3 else rng.random((1, 6, 1))
    at = rng.normal(size=net.size)

    def cost(w: np.ndarray) -> float:
        found = net.predict(w, X[0])
        match loss:
            case "square":
                return float(((found - Y[0]) ** 2).sum() / 12)
            case "logistic":
                return float(-(Y[0] * np.log(found) + (1 - Y[0]) * np.log(1 - found)).mean())
        return float(-(Y[0] * np.log(found)).sum() / 6)

    moved = net.train(at, X, Y, 1, 1e-3)[0] / -1e-3
    for j in range(net.size):
        step = 1e-6 * np.eye(net.size)[j]
        slope = (cost(at + step) - cost(at - step)) / 2e-6
        assert moved[j] == pytest.approx(slope, abs=1e-6)


def test_it_learns() -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(0, 100, 3000)
    y = (x + rng.normal(0, 10, 3000) > 40).astype(float)
    both = schema("row", (AGE, SICK))
    silos = {f"s{i}": read_source(np.column_stack([x, y])[i::3], both) for i in range(3)}
    result = run_job(FedAvg, both, silos, epsilon=2.0, nominal_n=3000, target="sick")
    rows = both.grid().encode(np.column_stack([x, 0 * y]))
    predicted = result.plan.task.probabilities(result.results, rows)
    assert (predicted.argmax(axis=1) == y).mean() > 0.85
    np.testing.assert_allclose(predicted.sum(axis=1), 1)


def test_a_regression_tells_the_units_of_its_target() -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2, 4000)
    y = 30 + 30 * x + rng.normal(0, 3, 4000)
    both = schema("row", (AGE, SICK))
    records = {"a": read_source(np.column_stack([y, x]), both)}
    result = run_job(
        FedAvgRegression, both, records, epsilon=4.0, nominal_n=4000, target="age", rounds=40
    )
    rows = both.grid().encode(np.array([[0.0, 0.0], [0.0, 1.0]]))
    predicted = result.plan.task.predict(result.results, rows)
    np.testing.assert_allclose(predicted, [30, 60], atol=6)


def test_classifier_and_regression_are_what_they_are() -> None:
    assert isinstance(plan().task, Classifier)
    assert not isinstance(plan().task, Regressor)
    assert isinstance(plan(target="age").task, Regressor)
    assert not isinstance(plan(target="age").task, Classifier)


# --- what a client adds ---


@given(
    seed=st.integers(0, 2**31),
    unit=st.sampled_from(["row", "phone", "silo"]),
    target=st.sampled_from(["sick", "work", "age"]),
    hidden=st.sampled_from([0, 2]),
    rate=st.sampled_from([1e-3, 1.0, 1e9]),
    clip=st.sampled_from([1e-4, 1.0, 1e4]),
    quantile=st.sampled_from([0.0, 0.5]),
    kind=st.sampled_from(["random", "corner", "copies", "one category"]),
)
def test_a_client_adds_no_more_than_the_bound(
    seed: int,
    unit: str,
    target: str,
    hidden: int,
    rate: float,
    clip: float,
    quantile: float,
    kind: str,
) -> None:
    options = {"hidden": hidden, "local_rate": rate, "clip_quantile": quantile}
    if quantile:
        clip = min(max(clip, 2.0**-10), 2.0**10)
    task = plan(unit, 1, target, clip=clip, **options).task
    state = wild(task, seed)
    records = table(12, seed)
    if kind == "corner":
        records = np.where(records > 0, ONE, -ONE).astype(np.int32)
    elif kind == "copies":
        records[:] = records[0]
    elif kind == "one category":
        records[:, 2:] = ONE
    (block,) = task.blocks(0)
    whole = task.contribute(0, state, records)
    owners = {"row": np.arange(12), "silo": np.zeros(12)}.get(unit, records[:, 0])
    for client in np.unique(owners):
        change = whole - task.contribute(0, state, records[owners != client])
        parts = [int(v) for v in change]
        assert sum(v * v for v in parts) <= block.l2_squared
        assert sum(map(abs, parts)) <= block.l1


def test_the_bound_is_reached() -> None:
    task = plan("silo", 1, local_rate=1e3).task
    change = task.contribute(0, start(task), table(20, 0))
    assert sum(int(v) ** 2 for v in change) > 0.999 * NORM**2


@pytest.mark.parametrize("name", ["fedavg", "fedavg-regression"])
def test_rows_as_clients_obey_the_laws_of_every_task(name: str) -> None:
    from cloister.data.schema import schema_of
    from cloister.tasks import TASKS

    case = example_of(TASKS[name])
    it = make_plan(
        TASKS[name], schema_of(case.columns), ["a"], budget=BUDGET, nominal_n=50, **case.options
    )
    rng = np.random.default_rng(0)
    corners = rng.choice([-ONE, ONE], (8, 4)).astype(np.int32)
    inside = rng.integers(-ONE, ONE + 1, (8, 4), dtype=np.int32)
    check_task(it.task, [corners, inside], [wild(it.task, seed) for seed in range(4)])


@pytest.mark.parametrize(
    "update",
    [
        np.full(5, np.nan),
        np.array([1, 2, np.inf, 4, 5.0]),
        np.array([np.nan, 0, 0, -np.inf, 0]),
        np.full(5, 1.7e308),
        np.full(5, -1.7e308),
    ],
)
def test_an_update_without_a_length_is_no_update(update: np.ndarray) -> None:
    beside = np.array([3.0, 0, 0, 4.0, 0])
    found = clipped(np.stack([update, beside]), 10.0)
    assert (found[0] == 0).all()
    np.testing.assert_allclose(found[1] * (10 / NORM), beside, atol=1e-4)


@given(
    values=st.lists(
        st.floats(allow_nan=True, allow_infinity=True, width=64), min_size=1, max_size=8
    ),
    clip=st.floats(1e-6, 1e6),
)
def test_no_update_is_longer_than_the_clip(values: list[float], clip: float) -> None:
    found = clipped(np.array([values]), clip)
    assert sum(int(v) ** 2 for v in found[0]) <= NORM**2


def test_a_short_update_is_kept_and_a_long_one_keeps_its_direction() -> None:
    found = clipped(np.array([[0.3, -0.4], [30.0, -40.0]]), 1.0) / NORM
    np.testing.assert_allclose(found[0], [0.3, -0.4], atol=2 / NORM)
    np.testing.assert_allclose(found[1], [0.6, -0.8], atol=2 / NORM)


def test_records_that_are_no_updates_count_as_none() -> None:
    big = np.array([[NORM, 1, 0]])
    assert (bounded(big) == 0).all()
    assert (bounded(np.array([[np.iinfo(np.int64).max, 0, 0]])) == 0).all()
    assert (bounded(np.array([[NORM, 0, 0]])) == [[NORM, 0, 0]]).all()


# --- sampling ---


def coins_of(*numbers: int) -> Any:
    bits = iter(numbers)
    return lambda size: b"".join(next(bits).to_bytes(8, "little") for _ in range(size // 8))


def test_coins_choose_the_clients() -> None:
    task = plan("row", 1, rate=0.25).task
    records, state = table(3, 1), start(task)
    quarter = 1 << 62
    found = task.contribute_sampled(0, state, records, coins_of(0, quarter, quarter - 1))
    alone = [task.contribute(0, state, records[[i]]) for i in range(3)]
    np.testing.assert_array_equal(found, alone[0] + alone[2])


@pytest.mark.parametrize("unit", ["row", "phone", "silo"])
def test_each_client_takes_part_as_often_as_the_rate_says(unit: str) -> None:
    """Alarms falsely with probability below 1e-9: coins are of the operating system."""
    it = plan(unit, 1, rate=0.3)
    records = np.tile(table(1, 1), (400, 1))
    if unit == "phone":
        records[:, 0] = (
            schema("row")
            .grid()
            .encode(np.column_stack([np.arange(400) % 41, *np.zeros((3, 400))]))[:, 0]
        )
    state = start(it.task)
    one = it.task.contribute(0, state, records[:1])
    clients = {"row": 400, "phone": 41, "silo": 1}[unit]
    total, runs = 0.0, 12_000 // clients + 1
    for _ in range(min(runs, 60)):
        journal = MemoryJournal()
        wire = Wire(replace(it, run_id=journal.secret("x").hex()[:32]), {"silo-0": records})
        sums = wire.clients["silo-0"]._sum(0)
        total += float(sums @ one) / float(one @ one)
    trials = min(runs, 60) * clients
    assert abs(total - 0.3 * trials) < 6.2 * sqrt(trials * 0.3 * 0.7) + 1


def test_a_silo_that_is_asked_again_throws_no_new_coins() -> None:
    it = plan("phone", 2, rate=0.5)
    records = {name: table(50, i) for i, name in enumerate(it.silos)}
    journals = {name: MemoryJournal() for name in it.silos}
    first = Wire(it, records, journals=journals)
    again = Wire(it, records, journals=journals)  # a silo that was stopped, with its journal
    for name in it.silos:
        sums = first.clients[name]._sum(0)
        np.testing.assert_array_equal(sums, first.clients[name]._sum(0))
        np.testing.assert_array_equal(sums, again.clients[name]._sum(0))
        assert (sums != first.clients[name]._sum(1)).any(), "and other ones in another round"
        stranger = Wire(it, records).clients[name]._sum(0)
        assert (sums != stranger).any(), "and nobody without the secret knows them"


def test_who_took_part_cannot_be_seen() -> None:
    """A silo that is not in a round sends a masked zero vector, as long as all others."""
    it = plan("silo", 3, rate=1e-9)
    seen: list[bytes] = []

    def spoil(number: int, silo: str, answer: bytes) -> bytes:
        seen.append(answer)
        return answer

    wire = Wire(
        it,
        {name: table(9, i) for i, name in enumerate(it.silos)},
        make_transport=lambda handlers: Faults(InProcess(handlers), spoil=spoil),
    )
    states = wire.run()
    assert all((state["parameters"] == 0).all() for state in states)
    uploads = [frame for frame in seen if isinstance(decode(it, frame), Upload)]
    assert len(uploads) == 3 * it.rounds
    assert len({len(frame) for frame in uploads}) == 1
    assert len(set(uploads)) == len(uploads)


def test_the_mean_is_over_a_public_number_not_over_who_came() -> None:
    it = plan("phone", 1, rate=0.5, n_clients=1000)
    unit = it.task.clip / NORM / 500
    values = np.arange(it.task.n_parameters)
    state = it.task.update(0, start(it.task), {"update": NoisyBlock(values, 0.0)})
    np.testing.assert_allclose(state["update"], values * unit)


# --- what a plan promises ---


def test_every_party_prices_the_noise_of_sampled_rounds() -> None:
    it = plan("phone", rate=0.2)
    assert isinstance(it.event(0), SampledGaussianEvent)
    assert it.task.noise_multiplier < plan("phone").noise_scale(it.task.blocks(0)[0]) / NORM
    less = replace(it.task, noise_multiplier=0.9 * it.task.noise_multiplier)
    with pytest.raises(PlanError, match="above the budget of 4"):
        replace(it, task=less, layout=None)
    with pytest.raises(PlanError, match="above the budget"):
        replace(it, task=replace(it.task, rate=0.3), layout=None)
    document = json.loads(json.dumps(it.to_dict()))
    document["task"]["noise_multiplier"] *= 0.9
    with pytest.raises(PlanError, match="layout must be that of task 'fedavg'"):
        Plan.from_dict(document, TASKS)
    document["layout"]["noise_multiplier"] *= 0.9
    for tasks in (TASKS, {}):
        with pytest.raises(PlanError, match="above the budget"):
            Plan.from_dict(document, tasks)
    more = replace(
        it, layout=None, task=replace(it.task, noise_multiplier=2 * it.task.noise_multiplier)
    )
    assert more.noise_scale(more.task.blocks(0)[0]) > it.noise_scale(it.task.blocks(0)[0])


def test_a_plan_may_cost_its_budget_but_for_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part in 1e9 is what the arithmetic of two machines may differ by."""
    it = plan("phone", rate=0.2)
    most = BUDGET.epsilon * (1 + 1e-9)
    for spent in (most, BUDGET.epsilon * (1 + 0.98e-9)):
        monkeypatch.setattr("cloister.privacy.accounting.epsilon", lambda *_, e=spent: e)
        assert replace(it, study="other")
    for spent in (BUDGET.epsilon * (1 + 1.02e-9), 1.01 * BUDGET.epsilon):
        monkeypatch.setattr("cloister.privacy.accounting.epsilon", lambda *_, e=spent: e)
        with pytest.raises(PlanError, match="above the budget"):
            replace(it, study="other")


def test_sampled_rounds_without_a_guarantee_need_no_price() -> None:
    class Free(FedAvg):
        name, private, mechanism = "free", False, "none"

    it = plan("phone", rate=0.2)
    task = Free(**{field.name: getattr(it.task, field.name) for field in fields(it.task)})
    free = replace(it, task=task, layout=None, budget=None, code=None)
    assert (free.rate, free.noise_scale(task.blocks(0)[0])) == (0.2, 0)


def test_sampled_rounds_get_the_noise_of_the_plan() -> None:
    it = plan("phone", rate=0.2)
    block = it.task.blocks(0)[0]
    bare = it.task.noise_multiplier / sqrt(block.weight) * sqrt(block.l2_squared)
    assert it.noise_scale(block) == ceil(sqrt(bare**2 + 4))


def test_groups_of_clients_are_not_sampled() -> None:
    twice = schema("row").model_copy(update={"max_silos_per_person": 2})
    with pytest.raises(PlanError, match="max_silos_per_person must be 1"):
        make_plan(FedAvg, twice, ["a", "b"], budget=BUDGET, nominal_n=9, target="sick", rate=0.5)


def test_sampled_rounds_and_a_bought_count_do_not_mix() -> None:
    with pytest.raises(PlanError, match="nominal_n must be given"):
        run_job(FedAvg, schema("row"), {"a": [table(9, 1)]}, epsilon=1.0, target="sick", rate=0.5)


@pytest.mark.parametrize("profile", ["group", "pairwise"])
@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_a_plan_of_every_profile_survives_json_and_runs(profile: str, rate: float) -> None:
    it = plan("silo", 3, rate=rate, profile=profile)
    again = Plan.from_dict(json.loads(it.canonical_json()), TASKS)
    assert (again, again.digest) == (it, it.digest)
    result = run_plan(it, {name: [table(9, i)] for i, name in enumerate(it.silos)})
    assert result.epsilon() <= BUDGET.epsilon * (1 + 1e-9)


@pytest.mark.parametrize("growth", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("rounds", [1, 2, 7, 40])
def test_rounds_share_the_budget_whatever_the_schedule(growth: float, rounds: int) -> None:
    task = plan("row", growth=growth, rounds=rounds).task
    assert sum(task.weights) == pytest.approx(1)
    assert len(set(task.weights)) <= 4
    if rounds >= 4:
        assert task.weights[-1] / task.weights[0] == pytest.approx(growth)
    it = plan("row", growth=growth, rounds=rounds)
    assert run_plan(it, {n: [table(5, 0)] for n in it.silos}).epsilon() <= BUDGET.epsilon


# --- a clip that adapts ---


def lengths(task: Any, state: GridState, records: np.ndarray) -> np.ndarray:
    """Return the length of the update of each row, before any clip."""
    parameters = np.asarray(state["parameters"]) / ONE
    moved = [
        task.network.train(
            parameters,
            task._inputs(row[None])[None],
            task._wanted(row[None])[None],
            task.local_steps,
            task.local_rate,
        )[0]
        for row in records
    ]
    return np.linalg.norm(moved, axis=1)


def test_the_last_word_is_the_vote_on_whether_updates_are_shorter_than_the_clip() -> None:
    task = plan("row", 1, clip=0.875, clip_quantile=0.5).task
    records, state = table(40, 0), start(task)
    shorter = lengths(task, state, records) <= 0.875
    assert 0 < shorter.sum() < 40
    whole = task.contribute(0, state, records)
    assert len(whole) == task.n_parameters + 1
    assert whole[-1] == (NORM >> 3) * (shorter.sum() - (~shorter).sum())
    fixed = plan("row", 1, clip=0.875).task
    np.testing.assert_array_equal(whole[:-1], fixed.contribute(0, start(fixed), records))


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("first", [0.01, 30.0])
def test_the_clip_comes_to_the_quantile_of_the_lengths(quantile: float, first: float) -> None:
    it = plan(
        "row", 1, clip=first, clip_quantile=quantile, rounds=60, nominal_n=300, server_rate=1e-3
    )
    records = table(300, 1)
    result = run_plan(it, {"silo-0": [records]}, noise=ZeroNoise())
    known = {"parameters": round_to_grid(result.results["parameters"], 16)}
    found = lengths(it.task, known, records)
    assert result.results["clip"][0] == pytest.approx(np.quantile(found, quantile), rel=0.05)


def test_noise_follows_the_clip_at_the_same_price() -> None:
    both = [plan("row", 1, clip=8.0, rounds=10, clip_quantile=q, nominal_n=300) for q in (0.0, 0.5)]
    fixed, adaptive = (
        run_plan(it, {"silo-0": [table(300, 1)]}, noise=SimulatedNoise(0)) for it in both
    )
    assert adaptive.epsilon() <= BUDGET.epsilon
    assert adaptive.epsilon() == pytest.approx(fixed.epsilon(), rel=1e-3)
    assert adaptive.results["half_width"][0] < fixed.results["half_width"][0] / 4
    (block,), (plain,) = (it.task.blocks(9) for it in reversed(both))
    assert block.l2_squared == plain.l2_squared + (NORM >> 3) ** 2
    ratio = both[1].noise_std(block) / both[0].noise_std(plain)
    assert ratio == pytest.approx(sqrt(1 + 1 / 64), rel=1e-6)


@pytest.mark.parametrize("profile", ["local", "group", "pairwise"])
def test_an_adaptive_plan_survives_json_and_keeps_the_clip_on_the_grid(profile: str) -> None:
    noisy = {"budget": Budget(0.01, 1e-9), "rounds": 9, "profile": profile}
    it = plan("silo", 1 if profile == "local" else 3, clip_quantile=0.5, **noisy)
    assert Plan.from_dict(json.loads(it.canonical_json()), TASKS) == it
    result = run_plan(it, {name: [table(9, i)] for i, name in enumerate(it.silos)})
    assert 2.0**-10 <= result.results["clip"][0] <= 2.0**10
    assert "a share of 0.5" in it.task.describe()
    assert task_to_json(it.task)["clip_quantile"] == 0.5
    assert "clip_quantile" not in task_to_json(plan("silo", 3).task)  # plans from before it


def test_more_than_the_budget_is_refused() -> None:
    task = plan("row").task

    class Overspent(FedAvg):
        @property
        def weights(self) -> tuple[float, ...]:  # type: ignore[override]
            return tuple(1.1 / self.rounds for _ in range(self.rounds))

    greedy = Overspent(**{f.name: getattr(task, f.name) for f in fields(task)})
    with pytest.raises(PlanError, match="sum to at most 1"):
        replace(plan("row"), task=greedy)


# --- everybody adds noise alone ---


def test_local_trust_needs_that_each_silos_noise_is_enough() -> None:
    options = {"trust": "local", "profile": "pairwise", "min_silos": 3, "collusion": 2}
    it = plan("silo", **options)
    (block,) = it.task.blocks(0)
    assert block.l2_squared == (2 * NORM) ** 2
    assert it.share_scale(block) >= it.noise_scale(block)
    assert "LOCAL MODEL" in it.describe()
    for change in ({"profile": "group", "collusion": 0}, {"collusion": 1}, {"min_silos": 2}):
        with pytest.raises(PlanError):
            plan("silo", **{**options, **change})
    with pytest.raises(PlanError, match="needs silos as privacy units"):
        plan("row", **options)
    with pytest.raises(PlanError, match="needs silos as privacy units"):
        plan("silo", **options, rate=0.5)


def test_noise_of_all_silos_is_in_a_local_result() -> None:
    """Of 4 runs of 300 sums each; alarms falsely with probability below 1e-9."""
    it = plan(
        "silo", 3, "work", trust="local", profile="pairwise", min_silos=3, collusion=2, hidden=30
    )
    (block,) = it.task.blocks(0)
    seeds = count(1)
    values = []
    for _ in range(4):
        result = run_plan(
            it, {n: [table(0, 0)] for n in it.silos}, noise=SimulatedNoise(next(seeds))
        )
        values.append(result.history[1]["update"])
    found = np.concatenate(values).std() * 3 * NORM / it.task.clip
    # one simulated source for three silos: the shares of a round are not the same draws
    assert found == pytest.approx(sqrt(3) * it.share_scale(block), rel=0.2)


# --- intervals and sums ---


def test_the_interval_covers_the_mean_of_the_bounded_updates() -> None:
    """Of 30 runs with about 300 sums; simulated noise, so never by chance."""
    it = plan("phone", 1, "work", hidden=20, rounds=2)
    records = table(200, 4)
    inside: list[np.ndarray] = []
    for seed in range(30):
        result = run_plan(it, {"silo-0": [records]}, noise=SimulatedNoise(seed))
        before = {"parameters": round_to_grid(result.history[1]["parameters"], 16)}
        exact = it.task.contribute(1, before, records) * (it.task.clip / NORM / 40)
        inside.append(np.abs(result.results["update"] - exact) <= result.results["half_width"])
    assert 0.94 < np.mean(inside) < 0.96


def test_the_forecast_is_the_half_width_that_comes() -> None:
    it = plan("row", 1)
    (block,) = it.task.blocks(1)
    expected = it.task.forecast(it.noise_std(block), it.nominal_n, it.grid)["half_width"]
    result = run_plan(it, {"silo-0": [table(9, 0)]})
    np.testing.assert_allclose(expected, result.results["half_width"], atol=2 / ONE)
    adaptive = plan("row", 1, clip_quantile=0.5)
    assert expected_errors(adaptive) == ()  # its noise is not known before it runs
    assert expected_errors(it) != ()


def test_the_interval_of_very_many_clients_is_not_of_width_zero() -> None:
    it = plan("row", 1, nominal_n=10**9)
    result = run_plan(it, {"silo-0": [table(9, 0)]}, noise=SimulatedNoise(0))
    assert (result.results["half_width"] > 0).all()


def test_noise_however_large_stays_on_the_grid() -> None:
    it = plan("silo", 1, budget=Budget(0.01, 1e-9), rounds=3, clip=1e6)
    result = run_plan(it, {"silo-0": [table(9, 0)]})
    assert np.isfinite(result.results["parameters"]).all()


def test_the_report_shows_coefficients_and_rounds() -> None:
    it = plan("row", 1)
    result = run_plan(it, {"silo-0": [table(9, 0)]})
    heat, curve = it.task.displays(result.results, it.columns)
    assert heat.estimate.values.shape == (len(heat.estimate.labels[0]), 1)
    assert len(curve.estimate.values) == it.rounds
    deep = plan("row", 1, hidden=2)
    found = run_plan(deep, {"silo-0": [table(9, 0)]})
    assert len(deep.task.displays(found.results, deep.columns)) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"clip": 0.0},
        {"clip": float("nan")},
        {"rate": 0.0},
        {"rate": 1.5},
        {"momentum": 1.0},
        {"growth": -1.0},
        {"clip_quantile": 1.0},
        {"clip_quantile": 0.5, "clip": 1e4},
        {"rounds": 0},
        {"local_steps": 0},
        {"hidden": -1},
        {"server_rate": 0.0},
        {"trust": "nobody"},
        {"n_clients": 0},
        {"noise_multiplier": 1.0},
        {"target": "phones"},
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_spent(options: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        plan("row", **options)


def test_supplied_updates_are_no_task_of_a_service() -> None:
    from cloister.tasks import TASKS

    assert ClientUpdates.name not in TASKS


@pytest.mark.parametrize("target", ["age", "sick"])
def test_a_network_for_a_number_or_two_classes_has_one_output(target: str) -> None:
    assert plan(target=target).task.network.outputs == 1  # type: ignore[attr-defined]
