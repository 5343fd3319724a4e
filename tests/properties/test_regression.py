"""Regression: what one record adds is bounded by the plan, whatever the record and the state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.task import PublicColumn, Task
from cloister.tasks.supervised.linear import Linear
from cloister.tasks.supervised.logistic import Logistic
from cloister.testing import check_task, toy_task

COLUMNS = (
    PublicColumn("age", 0.0, 100.0),
    PublicColumn("visits", 0.0, 30.0),
    PublicColumn("work", 0.0, 2.0, ("private", "state", "none")),
    PublicColumn("smokes", 0.0, 1.0, ("0", "1")),
    PublicColumn("ill", 0.0, 2.0, ("no", "mild", "bad")),
)
KINDS = {
    "two classes": (Logistic, {"target": "smokes", "rounds": 4}),
    "three classes": (Logistic, {"target": "ill", "rounds": 4}),
    "asked again": (Logistic, {"target": "smokes", "rounds": 6}),
    "three classes, asked again": (Logistic, {"target": "ill", "rounds": 6}),
    "balanced": (Logistic, {"target": "ill", "rounds": 3, "class_weight": "balanced"}),
    "short rows": (Logistic, {"target": "smokes", "rounds": 3, "clip": 0.05}),
    "long rows": (Logistic, {"target": "ill", "rounds": 3, "clip": 32.0}),
    "linear": (Linear, {"target": "age"}),
    "linear, sandwich": (Linear, {"target": "age", "sandwich": True}),
    "linear, short rows": (Linear, {"target": "age", "clip": 0.05}),
    "linear, long rows": (Linear, {"target": "age", "clip": 32.0}),
}


def designed(kind: str, frac_bits: int = 16) -> Task:
    task, options = KINDS[kind]
    return toy_task(
        task,
        n_features=len(COLUMNS),
        nominal_n=1000,
        budget=Budget(1.0, 1e-6),
        columns=COLUMNS,
        frac_bits=frac_bits,
        **options,
    )


def states(task: Task, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Public states as noise may make them: any centre, any scale, any weights."""
    rng = np.random.default_rng(seed)
    found = []
    for size in (1.0, 1000.0):
        state = {name: v.astype(float) for name, v in task.start().items()}
        state["centre"] = np.append(rng.uniform(-1, 1, len(state["centre"]) - 1), 0)
        state["scale"] = rng.choice([1.0, 16.0], len(state["scale"]))
        state["weights"] = rng.normal(0, size, state["weights"].shape)
        for name in {"length", "target_length", "cut"} & state.keys():  # numbers of classes
            state[name] = rng.choice([-5.0, 40.0, 64.0, 500.0], 1)
        if "products" in state:
            state["products"] = rng.normal(0, size, state["products"].shape)
        found.append({name: round_to_grid(v, task.frac_bits) for name, v in state.items()})
    return found


def worst(frac_bits: int) -> np.ndarray:
    """Corners, copies, the middle, and records that lie beside the box."""
    one = 1 << frac_bits
    return np.array(
        [
            [one] * 5,
            [one] * 5,
            [-one] * 5,
            [0] * 5,
            [one, -one, one, -one, one],
            [one, one, -one, one, -one],
            [1, one - 1, -1, 2, -2],
        ],
        dtype=np.int32,
    )


@pytest.mark.parametrize("frac_bits", [4, 16, 24])
@pytest.mark.parametrize("kind", KINDS)
def test_the_worst_records_keep_the_bounds(kind: str, frac_bits: int) -> None:
    task = designed(kind, frac_bits)
    corner = worst(frac_bits)[:1]
    tables = [worst(frac_bits), corner, np.repeat(corner, 9, axis=0)]
    check_task(task, tables, states(task))


@pytest.mark.parametrize("kind", ["two classes", "balanced", "linear"])
@given(
    records=arrays(
        np.int32, st.tuples(st.integers(1, 5), st.just(5)), elements=st.integers(-16, 16)
    ),
    seed=st.integers(0, 99),
)
def test_any_records_keep_the_bounds(kind: str, records: np.ndarray, seed: int) -> None:
    task = designed(kind, 4)
    check_task(task, [records], states(task, seed))


@pytest.mark.parametrize("kind", ["two classes", "three classes", "linear"])
def test_the_bounds_are_nearly_reached_so_no_noise_is_wasted(kind: str) -> None:
    """A clipped row is as long as the bound, and a model that is sure of the wrong class."""
    task = designed(kind)
    state = states(task)[1]
    state["scale"] = np.full_like(state["scale"], 16 << 16)
    offset = 0
    t = task.rounds - 1
    if kind != "linear":  # the wrong class is sure
        state["length"] = round_to_grid(task.start()["length"], task.frac_bits)
        state["weights"] = np.zeros_like(state["weights"])
        state["weights"][-1, -1] = 500 << 16
    record = worst(16)[2:3]
    added = task.contribute(t, state, record).astype(object)
    for block in task.blocks(t):
        part = added[offset : offset + block.size]
        offset += block.size
        # seven fifths are below the square root of 2, and thus the products below their bound
        assert (part**2).sum() > 0.95 * block.l2_squared


def test_a_record_adds_the_same_in_any_company() -> None:
    """Also past the size of a chunk: neither neighbours nor places change a record's words."""
    rng = np.random.default_rng(0)
    for kind in ("two classes", "three classes", "linear"):
        task = designed(kind)
        state = states(task)[0]
        records = rng.integers(-(1 << 16), 1 << 16, ((1 << 14) + 7, 5), dtype=np.int32)
        for t in range(1, task.rounds):
            whole = task.contribute(t, state, records)
            alone = sum(task.contribute(t, state, records[i : i + 1]) for i in range(3))
            assert (alone + task.contribute(t, state, records[3:]) == whole).all()
