"""The laws that every task keeps, each written once.

A law is a function. A case is a row of `cases.py`: the example of every installed task, so that a
new task is checked without a new test, and more designs of some tasks.

=====================================  ===========================================================
Law                                    Cases
=====================================  ===========================================================
The worst records keep the bounds      all
Any records keep the bounds            designs, without `VARIANTS`
The bound is reached                   `REACHED`, which names the records that reach it
A record adds the same in any company  all
Silos give what pooled records give    `POOLED`: examples, and designs of outliers and evaluation
The weights are the whole budget       all that are private
Any release has results without gaps   `RELEASED`: examples, and designs of tables and of survival,
                                       whose curves say by `usable` where they are not known
=====================================  ===========================================================

`test_rows.py` adds that a kernel sums what the rows of the task define.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cloister.app.in_process import run_plan
from cloister.core.arrays import GridState, Records, Results
from cloister.protocol.plan import Plan
from cloister.protocol.task import NoisyBlock, Task
from cloister.tasks.supervised.logistic import Logistic
from cloister.tasks.survival.survival import Survival
from cloister.testing import ZeroNoise, check_task, hostile_states

from .cases import CASES, CLAIMS, DESIGNS, EXAMPLES, ONE, Case, blank_of, on_grid

every = pytest.mark.parametrize("name", CASES)

# The bounds ---------------------------------------------------------------------------------------


NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
VARIANTS = {  # designs that differ little from another one, which is drawn instead
    *(f"describe, {kind}" for kind in ("all", "levels of the plan", "numbers", "categories")),
    *(f"forest, {kind}, {n} classes" for kind in ("random", "boosted") for n in (2, 7, 12)),
    *(f"logistic, {n} classes, asked again" for n in ("two", "three")),
    *(f"{model}, {clip} rows" for model in ("logistic", "linear") for clip in ("short", "long")),
    *("logistic, three classes", "linear, sandwich"),
    *(f"cox-approximate, {kind}" for kind in ("a number", "to a horizon")),
    *(f"glm, {family}" for family in ("gaussian", "binomial", "poisson", "negative binomial")),
    "glm, gamma",
    "treatment effect, two categories",
}


def check_worst_records(case: Case, frac_bits: int, some: slice) -> None:
    """Check corners, copies, edges and records outside the box in some states of the case."""
    task = case.build(frac_bits)
    rows = case.worst(task)
    tables = [rows, np.repeat(rows[:1], 9, axis=0), rows[:0]]
    check_task(task, tables, case.states(task, 0)[some])


@every
def test_the_worst_records_keep_the_bounds_in_any_state(name: str) -> None:
    """On the usual grid in every state, on others and for variants in a fourth of them each."""
    case = CASES[name]
    for at, frac_bits in enumerate(case.bits):
        whole = frac_bits == 16 and name not in VARIANTS
        check_worst_records(case, frac_bits, slice(None) if whole else slice(at, None, 4))


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if len(case.bits) > 1])
def test_the_worst_records_keep_the_bounds_on_any_grid_in_any_state(name: str) -> None:
    for frac_bits in CASES[name].bits:
        check_worst_records(CASES[name], frac_bits, slice(None))


@pytest.mark.parametrize("name", [name for name in DESIGNS if name not in VARIANTS])
@given(data=st.data(), seed=st.integers(0, 99))
def test_any_records_keep_the_bounds(name: str, data: st.DataObject, seed: int) -> None:
    """Any records of a coarse grid, up to a step outside the box, one of them twice."""
    case = CASES[name]
    task, one = case.drawn(seed), 1 << case.bits[0]
    cells = st.sampled_from((-one, one, 0, 1, -1, one - 1)) | st.integers(-one - 1, one + 1)
    sizes = st.tuples(st.integers(0, 6), st.just(case.width))
    records = data.draw(arrays(np.int32, sizes, elements=cells))
    check_task(task, [np.concatenate([records, records[:1]])], case.states(task, seed)[:2])


Inputs = Iterator[tuple[Task, int, GridState, Records]]
"""A task, a round, the state before it, and records each of which reaches the bounds."""


def corner(case: Case) -> Inputs:
    task = case.build()
    yield task, 0, case.start(task), np.full((1, case.width), ONE, dtype=np.int32)


def any_record(case: Case) -> Inputs:
    for frac_bits in case.bits:
        task = case.build(frac_bits)
        records = np.concatenate([case.between(frac_bits, 200), case.worst(task)])
        yield task, 0, case.start(task), records


def any_record_with_both_numbers_at_the_corner(case: Case) -> Inputs:
    for task, t, state, records in any_record(case):
        records[:, :2] = 1 << task.frac_bits
        yield task, t, state, records


def any_record_after_any_choice(case: Case) -> Inputs:
    task = case.build()
    chosen = [state for state in hostile_states(task) if (state["chosen"] >= 0).any()]
    for state in chosen or [case.start(task)]:  # a task of one round chooses nothing
        for t in range(task.rounds):
            yield task, t, state, case.between(16, 20)


def sure_of_the_wrong_class(case: Case) -> Inputs:
    """Yield a row that is clipped to the bound, and a model that is sure of the wrong class."""
    task = case.build()
    state = case.states(task, 0)[1]
    state["scale"] = np.full_like(state["scale"], 16 * ONE)
    if issubclass(case.task, Logistic):
        state["length"] = case.start(task)["length"]
        state["weights"] = np.zeros_like(state["weights"])
        state["weights"][-1, -1] = 500 * ONE
    yield task, task.rounds - 1, state, -np.full((1, case.width), ONE, dtype=np.int32)


def trees_sure_of_the_wrong_class(case: Case) -> Inputs:
    task = case.build()
    leaves = np.zeros(task.start()["leaves"].shape, np.int64)
    if task.kind == "boosted":
        leaves[..., 0], leaves[..., 1], leaves[..., 2] = 9000 * ONE, -9000 * ONE, 300 * ONE
    state = {"leaves": leaves, "noise": np.zeros(1, np.int64)}
    yield task, task.rounds - 1, state, np.array([[0, 0, 0, 0, ONE]], np.int32)


def trees_far_from_the_target(case: Case) -> Inputs:
    task = case.build()
    state = case.states(task, 0)[0] | {"target": np.array([1000, 0, 1]) * ONE}
    for t in (0, task.rounds - 1):
        yield task, t, state, np.full((1, case.width), ONE, dtype=np.int32)


def shapes_sure_of_the_wrong_answer(case: Case) -> Inputs:
    """Yield a record after all columns had sums, and after two of four were left out."""
    task = case.build()
    state = case.start(task)
    state["intercept"][-1] = -30 * ONE
    for left in (4, 2):
        active = (np.arange(4) < left).astype(np.int64) * ONE
        yield task, task.rounds - 1, state | {"active": active}, np.full((1, 5), ONE, np.int32)


def cut_short(case: Case) -> Inputs:
    """Yield a corner where cuts are shorter than any gradient, and residuals large."""
    task = case.build()
    state = case.start(task)
    for name in ("cut", "length", "squares_cut"):
        state[name] = np.ones_like(state[name])
    state["target"] = np.array([0, ONE >> 6, 0])
    state["weights"][-1] = -5 * ONE
    for t in range(task.rounds):
        yield task, t, state, np.full((1, case.width), ONE, dtype=np.int32)


def cut_short_at_high_hazards(case: Case) -> Inputs:
    """Yield a record with the event where cuts are shorter than any gradient, and hazards high."""
    task = case.build()
    state = case.start(task)
    for name in ("cut", "length", "squares_cut"):
        state[name] = np.ones_like(state[name])
    state["hazard"] = np.arange(len(state["hazard"])) * ONE
    state["pieces"] = np.full_like(state["pieces"], ONE)
    for t in range(task.rounds):
        yield task, t, state, np.array([[0, *[ONE] * (case.width - 1)]], dtype=np.int32)


def far_from_both_models(case: Case) -> Inputs:
    """Yield a corner where all cuts are short and the treatment was not expected."""
    task = case.build()
    state = case.start(task)
    cuts = ("cut", "length", "squares_cut", "cuts")
    for name in state:
        if name.endswith(cuts):
            state[name] = np.ones_like(state[name])
    state["outcome_target"] = np.array([0, ONE >> 6, 0])
    for name in ("propensity_weights", "aim_propensity"):
        state[name][-1] = -2 * ONE  # overlap gives it a weight
    state["outcome_weights"][-1] = state["aim_outcome"][-1] = -5 * ONE
    for t in range(task.rounds):
        yield task, t, state, np.full((1, case.width), ONE, dtype=np.int32)


def reached_by(
    inputs: Callable[[Case], Inputs], first: str, l2: float, l1: float = 0.0
) -> dict[str, tuple[Callable[[Case], Inputs], float, float]]:
    return {name: (inputs, l2, l1) for name in DESIGNS if name.startswith(first)}


# name: the inputs, and the shares of the squared L2 bound and of the L1 bound that they reach
REACHED = {
    **reached_by(corner, "survival", 1.0, 1.0),
    **reached_by(any_record, "scorecard", 1.0, 1.0),
    **reached_by(any_record_with_both_numbers_at_the_corner, "tabulate", 1.0, 1.0),
    **reached_by(corner, "describe", 1.0),
    **reached_by(corner, "table1", 0.99),
    **reached_by(any_record_after_any_choice, "synthesise", 0.9999),
    **reached_by(cut_short_at_high_hazards, "cox-approximate", 0.9999),
    **reached_by(corner, "cox, ", 1.0),
    **reached_by(trees_sure_of_the_wrong_class, "forest, random", 0.99),
    **reached_by(trees_sure_of_the_wrong_class, "forest, boosted, 2 classes", 0.99),
    **reached_by(trees_far_from_the_target, "forest-regression", 1.0, 1.0),
    **reached_by(shapes_sure_of_the_wrong_answer, "shapes, 2 classes", 0.9999),
    **reached_by(shapes_sure_of_the_wrong_answer, "shapes-regression, gaussian", 0.9999),
    **reached_by(corner, "naive Bayes, binned", 0.99),
    **reached_by(corner, "naive Bayes, gaussian", 0.99),
    **reached_by(corner, "naive Bayes, all", 0.99),
    **reached_by(corner, "naive Bayes, few counts", 0.6),
    # 7/5 is less than the square root of 2, so the products are below their bound
    **reached_by(sure_of_the_wrong_class, "logistic, two classes", 0.95),
    **reached_by(sure_of_the_wrong_class, "logistic, three classes", 0.95),
    **reached_by(sure_of_the_wrong_class, "linear", 0.95),
    **reached_by(cut_short, "glm", 0.9999),
    **reached_by(far_from_both_models, "treatment effect, a number", 0.9),
    # its parts are cut by themselves: `test_look.py` has a record that reaches all of them
    **reached_by(cut_short, "glm, by silo", 0.7),
}


@pytest.mark.parametrize("name", REACHED)
def test_the_bound_is_reached_so_no_noise_is_wasted(name: str) -> None:
    inputs, l2, l1 = REACHED[name]
    tried = 0
    for task, t, state, records in inputs(CASES[name]):
        ends = np.cumsum([block.size for block in task.blocks(t)])[:-1]
        for row in records:
            words = task.contribute(t, state, row[None]).astype(object)
            for block, part in zip(task.blocks(t), np.split(words, ends), strict=True):
                assert l2 * block.l2_squared <= (part**2).sum() <= block.l2_squared
                assert l1 * block.l1 <= np.abs(part).sum() <= block.l1
                tried += 1
    assert tried


# Sums of records ----------------------------------------------------------------------------------


@every
def test_a_record_adds_the_same_in_any_company(name: str) -> None:
    """Alone, past the size of a batch, in any order, layout and split; no record adds nothing."""
    case, rng = CASES[name], np.random.default_rng(1)
    task = case.build()
    records = case.between(16, (1 << 14) + 7)
    some = records[:300]
    states = case.states(task, 0) or [case.start(task)]
    for state in states[: 1 if name in VARIANTS and not NIGHTLY else 2]:
        for t in range(task.rounds):

            def added(rows: Records, t: int = t, state: GridState = state) -> Any:
                return task.contribute(t, state, rows)

            whole = added(records)
            alone = sum(added(records[i : i + 1]) for i in range(30))
            assert (alone + added(records[30:]) == whole).all()
            assert (added(records[::-1]) == whole).all()
            assert (added(np.asfortranarray(records)) == whole).all()
            assert not added(records[:0]).any()
            for _ in range(5):
                silo = rng.integers(0, 4, len(some))  # the last of five is empty
                assert (sum(added(some[silo == i]) for i in range(5)) == added(some)).all()


# These have an entry for each of the silos that they name, and run in no others.
NAME_SILOS = {"evaluation, predictions of four classes", "evaluation, a model of numbers"}
POOLED = [
    *EXAMPLES,
    *(n for n in DESIGNS if n.startswith(("outliers", "evaluation")) and n not in NAME_SILOS),
]


@pytest.mark.parametrize("name", POOLED)
def test_without_noise_silos_give_what_pooled_records_give(name: str) -> None:
    """Bit for bit, for any split. Half of the records are anywhere, half near the middle."""
    case, rng = CASES[name], np.random.default_rng(3)
    task = case.build()
    calm = np.rint(rng.normal(0, 0.15, (400, case.width)).clip(-1, 1) * ONE)
    records = case.between(16, 400)
    records[::2] = calm[::2]

    def results(silos: int) -> Any:
        plan = case.plan(task, silos)
        parts = {silo: [records[i::silos]] for i, silo in enumerate(plan.silos)}
        return run_plan(plan, parts, noise=ZeroNoise()).results

    pooled = results(1)
    for silos in (2, 5):
        split = results(silos)
        assert split.keys() == pooled.keys()
        for key, value in pooled.items():
            np.testing.assert_array_equal(split[key], value, err_msg=key)


# The plan and its answers -------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.task.private])
def test_weights_of_all_rounds_are_the_whole_budget(name: str) -> None:
    task = CASES[name].build()
    blocks = [block for t in range(task.rounds) for block in task.blocks(t)]
    assert sum(block.weight for block in blocks) == pytest.approx(1.0)
    assert min(block.weight for block in blocks) > 0
    assert min(block.l2_squared for block in blocks) >= ONE


# In this law noise may be 0, which it is in no plan; some tasks divide by it.
DIVIDE_BY_NOISE = ("auto", "linear", "logistic", "selectk")
RELEASED = [
    *(name for name in EXAMPLES if not name.startswith(DIVIDE_BY_NOISE)),
    *(name for name in DESIGNS if name.startswith(("tabulate", "scorecard", "survival", "table1"))),
]


@cache
def planned(name: str) -> Plan:
    return CASES[name].plan(CASES[name].build())


def assert_known_where_usable(task: Survival, results: Results, key: str) -> None:
    """A curve is not known from `usable` on, and a mean or share at a time up to there is."""
    value, places = results[key], {"survival": "times", "stated_survival": "at"}
    name = key.split("_low")[0].split("_high")[0].removesuffix("_population")
    if name in ("median", "rate", "rate_ratio"):
        # A rate that noise hides is not known, nor is a ratio over it. Its interval has no bound.
        if key in ("rate", "rate_ratio"):
            unknown = np.isnan(value)
            assert (results[f"{key}_low"][unknown] == 0).all(), key
            assert np.isinf(results[f"{key}_high"][unknown]).all(), key
        else:
            assert not np.isnan(value).any(), key
    elif name in ("survival", "stated_survival", "restricted_mean"):
        times = results[places.get(name, "at")]
        last = np.searchsorted(results["times"], times, side="right")
        unknown = last > results["usable"][:, None]
        assert (np.isnan(value) == unknown).all(), key
        assert ((value >= 0) | unknown).all()
    elif name in ("log_rank", "log_rank_p"):  # a test that nobody at risk allows is not known
        assert (np.isnan(value) == np.isnan(results["log_rank_p"])).all(), key
    else:
        assert np.isfinite(value).all(), key


@pytest.mark.parametrize("name", RELEASED)
@given(
    scale=st.sampled_from([0.0, 1.0, 30.0, 1e3, 1e6]),
    mean=st.sampled_from([0, 5, 100, -100]),
    seed=st.integers(0, 99),
)
def test_any_release_has_results_without_gaps(
    name: str, scale: float, mean: int, seed: int
) -> None:
    """Results of no records, of counts below 0 and of noise alone are in order.

    A value with an interval may be not known, and the interval may have no bound.
    """
    plan, rng = planned(name), np.random.default_rng(seed)
    task, state = plan.task, CASES[name].start(plan.task)
    for t in range(task.rounds):
        released = {}
        for block in task.blocks(t):
            words = np.rint(rng.normal(mean, scale, block.shape) * ONE).astype(np.int64)
            released[block.name] = NoisyBlock(words, scale * ONE)
        state = on_grid(task, task.update(t, state, released))
    results = task.results(state, plan.grid)
    rounding = 1e-12 if task.name == "scorecard" else 0.0
    for key, value in results.items():
        estimated = f"{key}_low" in results or key in ("roc_fpr", "column_1.reach")
        if task.name == "survival":
            assert_known_where_usable(task, results, key)
        elif task.name == "cox":  # a coefficient may be not known, with a reason
            known = results["reason"] == 0
            if key.startswith(("hazard_ratio_early", "hazard_ratio_late", "change_z", "effect_")):
                known = known & np.isfinite(results["change_z"])  # halves may say less
            alike = known if value.shape == known.shape else known.any() | ~np.isnan(value)
            assert np.isfinite(value[alike]).all(), key
        elif key == "missing_information":
            assert (np.isfinite(value) == np.isfinite(results["coef"])).all(), key
        elif task.name in ("glm", "imputed-regression", "cox-approximate") and key.endswith(
            "covariance"
        ):
            known = np.isfinite(np.append(results["coef"], results.get("intercept", [])))
            assert (np.isfinite(value) == np.outer(known, known)).all(), key
        elif key in CLAIMS and "verdict" in results:
            assert (~blank_of(results) == np.isfinite(value).T).all(), key
        elif key.endswith(("_low", "_high")):
            assert not np.isnan(value).any(), key
        elif key.startswith(
            "welch_"
        ):  # with fewer than two groups above the noise, it is not known
            assert (np.isnan(value) == np.isnan(results["welch_p"])).all(), key
        elif not estimated and task.name != "pipeline":
            assert np.isfinite(value).all(), key
        if key.endswith("_low"):
            assert not (value > results[key.removesuffix("low") + "high"] + rounding).any(), key
        if key.endswith(("_p", "_holm")):
            assert not ((value < 0) | (value > 1)).any(), key
    assert task.displays(results, plan.columns)
