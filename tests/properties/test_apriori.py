"""Apriori: what one basket adds is bounded by the plan, whatever it holds and whatever is asked."""

from __future__ import annotations

from math import isqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.core.randomness import public_generator
from cloister.data.schema import catalogue_schema
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.protocol.task import GridState
from cloister.tasks.patterns.apriori import Apriori
from cloister.tasks.patterns.supports import load_edges
from cloister.testing import SimulatedNoise, Wire, ZeroNoise, check_task, toy_plan

ITEMS = 8
LIMITS = ["weight", "truncate"]
CATALOGUE = catalogue_schema([f"item {i}" for i in range(ITEMS)], dataset="shop")


def test_bins_of_loads_begin_at_every_root_of_two_by_hand() -> None:
    assert load_edges(1) == (0, 1, 2)
    assert load_edges(20) == (0, 1, 2, 3, 4, 6, 8, 11, 16, 21)
    assert load_edges(100) == (0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 33, 47, 66, 93, 101)


def task_of(limit: str = "weight", **options: object) -> Apriori:
    settings = {"max_size": 3, "min_support": 0.1, "basket_size": 2, "most_candidates": 30}
    return Apriori(n_features=ITEMS, limit=limit, **{**settings, **options})  # type: ignore[arg-type]


def test_no_more_sets_of_a_size_are_counted_than_the_plan_allows() -> None:
    """But every item is."""
    for most, sizes in ((5, [8, 5, 5]), (30, [8, 28, 30]), (1000, [8, 28, 56])):
        task = task_of(most_candidates=most)
        assert [task.blocks(t)[0].size for t in range(3)] == sizes


def baskets(rows: int, seed: int = 0, often: float = 0.4, one: int = 1 << 16) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random((rows, ITEMS)) < often, one, -one).astype(np.int32)


def of_every_size(one: int) -> np.ndarray:
    """Baskets of 0, 1, ... all items, twice the full one, and cells no file can hold."""
    held = np.tril(np.ones((ITEMS + 1, ITEMS)), -1)
    table = np.where(held > 0, one, -one)
    odd = [[one] * ITEMS, [0] * ITEMS, [1] * ITEMS, [2**31 - 1] * ITEMS, [-(2**31)] * ITEMS]
    return np.concatenate([table, odd]).astype(np.int32)


def states(task: Apriori, seeds: int = 2) -> list[GridState]:
    """Public states of real jobs, so that there are candidates of every size."""
    plan = toy_plan(task, 1)
    records = {"silo-0": baskets(300)}
    return [Wire(plan, records, SimulatedNoise(seed)).run()[0] for seed in range(seeds)]


@pytest.mark.parametrize("frac_bits", [4, 16, 24])
@pytest.mark.parametrize("limit", LIMITS)
def test_baskets_of_every_size_keep_the_bounds(limit: str, frac_bits: int) -> None:
    task = task_of(limit, frac_bits=frac_bits)
    table = of_every_size(1 << frac_bits)
    check_task(task, [table, table[-3:], baskets(30, often=0.9, one=1 << frac_bits)], states(task))


@pytest.mark.parametrize("limit", LIMITS)
@given(data=st.data())
def test_any_basket_keeps_the_bounds_under_any_public_state(
    limit: str, data: st.DataObject
) -> None:
    """No candidates, weights and limits that a release could lead to break the bound."""
    task = task_of(limit, frac_bits=4)
    state = {name: round_to_grid(v, 4) for name, v in task.start().items()}
    for size in (1, 2, 3):
        state[f"{size}.bound"] = np.array([data.draw(st.integers(0, 10_000))]) << 4
    for size in (2, 3):
        slots = task.slots(size)
        chosen = arrays(np.int64, (slots, size), elements=st.integers(0, ITEMS - 1))
        state[f"{size}.sets"] = data.draw(chosen) << 4
        state[f"{size}.unit"] = data.draw(arrays(np.int64, slots, elements=st.integers(0, 16))) << 4
    records = data.draw(arrays(np.int32, (3, ITEMS), elements=st.integers(-1, 1)))
    check_task(task, [records], [state])


def plain_sums(task: Apriori, t: int, state: GridState, records: np.ndarray) -> list[int]:
    """What baskets add, one by one, as the proof has it."""
    size, slots = t + 1, task.slots(t + 1)
    unit, bound, sets = (state[f"{size}.{name}"] >> 16 for name in ("unit", "bound", "sets"))
    limit, unit, sets = int(bound.ravel()[0]), unit.tolist(), sets.tolist()
    live = [c for c in range(slots) if unit[c] > 0]
    supports, missing, edges = [0] * slots, [0] * slots, load_edges(slots)
    # The least whole number g >= 2 with (1 + 1 / (g + 1))**2 * limit < most, or 64.
    most, limit = sum(unit[c] ** 2 for c in live), max(limit, 1)
    gain = 2
    while gain < 64 and (gain + 2) ** 2 * limit >= (gain + 1) ** 2 * most:
        gain += 1
    loads = [0] * (len(edges) - 1)
    rng = public_generator("apriori", task.public_seed)
    weights = rng.integers(1, 1 << 20, task.n_features).tolist()
    circle = [live[c] for c in rng.permutation(len(live))]
    for record in records.tolist():
        held = [c for c in live if all(record[item] > 0 for item in sets[c])]
        load = sum(unit[c] ** 2 for c in held)
        place = sum(edge <= max((load + 128) // 256, min(load, 1)) for edge in edges) - 1
        loads[place] += 1 << 20
        full = isqrt((1 << 40) // limit)
        lacks = full - isqrt((1 << 40) // max(load, limit))
        if task.limit == "truncate" and load > limit:
            lacks = (load - limit) * full // limit
            start = sum(w for w, cell in zip(weights, record, strict=True) if cell > 0)
            start = start * 2_654_435_761 % (1 << 32) % len(circle)
            counted, room = [], limit
            for c in circle[start:] + circle[:start]:
                if c in held:
                    room -= unit[c] ** 2
                    if room < 0:
                        break
                    counted.append(c)
            held, load = counted, limit
        adds = isqrt((1 << 40) // max(load, limit))
        for c in held:
            supports[c] += adds * unit[c]
            missing[c] += min(gain * lacks, adds) * unit[c]
    return supports + missing + loads + ([] if t else [len(records) << 20])


@pytest.mark.parametrize("limit", LIMITS)
@given(data=st.data(), n=st.sampled_from([0, 1, 63, 64, 65, 130]), seed=st.integers(0, 99))
def test_sums_are_those_of_baskets_one_by_one(
    limit: str, data: st.DataObject, n: int, seed: int
) -> None:
    task = task_of(limit, public_seed=seed)
    rng = np.random.default_rng(seed)
    state = {name: round_to_grid(v, 16) for name, v in task.start().items()}
    for size in (1, 2, 3):
        state[f"{size}.bound"] = np.array([data.draw(st.integers(0, 3000)) << 16])
        slots = task.slots(size)
        every = rng.permuted(np.tile(np.arange(ITEMS), (slots, 1)), axis=1)[:, :size]
        used = data.draw(st.sampled_from([0, 1, slots // 2, slots]))
        unit = np.where(np.arange(slots) < used, rng.integers(8, 17, slots), 0)
        state[f"{size}.sets"], state[f"{size}.unit"] = every << 16, unit << 16
    often = data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    records = baskets(n, seed=seed, often=often)
    for t in range(3):
        plain = plain_sums(task, t, state, records)
        for table in (records, np.asfortranarray(records), np.repeat(records, 2, axis=0)[::2]):
            assert task.contribute(t, state, table).tolist() == plain


def test_more_candidates_of_one_unit_than_a_byte_counts_are_counted() -> None:
    task = Apriori(n_features=300, max_size=1)
    records = np.full((3, 300), 1 << 16, dtype=np.int32)
    state = {name: round_to_grid(v, 16) for name, v in task.start().items()}
    loads = task.contribute(0, state, records)[600:-1]
    edges = load_edges(300)
    assert loads.nonzero()[0].tolist() == [sum(edge <= 300 for edge in edges) - 1]


@pytest.mark.parametrize("limit", LIMITS)
def test_a_large_basket_nearly_reaches_the_bound_so_no_noise_is_wasted(limit: str) -> None:
    task = task_of(limit)
    full = np.full((1, ITEMS), 1 << 16, dtype=np.int32)
    for state in states(task):
        for t in range(task.rounds):
            added, at = task.contribute(t, state, full).astype(object), 0
            for block in task.blocks(t):
                part, at = added[at : at + block.size], at + block.size
                assert (part**2).sum() > 0.75 * block.l2_squared
                if block.name in ("loads", "baskets"):
                    assert (part**2).sum() == block.l2_squared


@pytest.mark.parametrize("limit", LIMITS)
def test_a_basket_within_the_limit_lacks_nothing(limit: str) -> None:
    task = task_of(limit)
    table = baskets(200)
    state = {name: round_to_grid(v, 16) for name, v in task.start().items()}
    sizes = (table > 0).sum(axis=1)
    for rows, none in ((table[sizes <= 2], True), (table[sizes > 2], False)):
        parts = task.contribute(0, state, rows)
        every, missing = parts[:ITEMS], parts[ITEMS : 2 * ITEMS]
        assert (missing <= every).all()
        assert missing.any() != none


def test_what_is_counted_and_what_is_missing_are_together_the_exact_supports() -> None:
    """Up to 2.25 times the limit, whichever baskets hold an item."""
    task = task_of(basket_size=4)
    state = {name: round_to_grid(v, 16) for name, v in task.start().items()}
    table = baskets(500, often=0.6)
    table[:, 0] = np.where((table > 0).sum(axis=1) > 5, 1 << 16, -(1 << 16))
    parts = task.contribute(0, state, table)
    full, gain = 16 * isqrt((1 << 40) // (4 * 256)), 2  # of a limit of 4 in 8
    both = parts[:ITEMS] / full + parts[ITEMS : 2 * ITEMS] / (gain * full)
    np.testing.assert_allclose(both, (table > 0).sum(axis=0), rtol=1e-4)


def test_weighing_down_a_large_basket_loses_less_than_leaving_out_candidates() -> None:
    """Of a basket with load l over its limit B, sqrt(B / l) remains in place of B / l."""
    full = np.full((1, ITEMS), 1 << 16, dtype=np.int32)
    kept = {}
    for limit in LIMITS:
        task = task_of(limit)
        state = {name: round_to_grid(v, 16) for name, v in task.start().items()}
        supports = task.contribute(0, state, full)[:ITEMS]
        kept[limit] = supports.sum() / (2**20 / 2**0.5)
    assert kept["weight"] == pytest.approx(ITEMS * (2 / ITEMS) ** 0.5, rel=1e-3)
    assert kept["truncate"] == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize("limit", LIMITS)
def test_lengths_are_the_plans_whatever_the_records_and_the_candidates(limit: str) -> None:
    task = task_of(limit)
    start = {name: round_to_grid(v, 16) for name, v in task.start().items()}
    found = states(task)
    assert (found[0]["2.unit"] != found[1]["2.unit"]).any(), "the candidates should differ"
    for table in (baskets(0), baskets(5), baskets(40, often=0.0), baskets(40, often=1.0)):
        for state in (start, *found):
            lengths = [len(task.contribute(t, state, table)) for t in range(task.rounds)]
            assert lengths == [sum(b.size for b in task.blocks(t)) for t in range(task.rounds)]
    for state in found:
        assert {name: v.shape for name, v in state.items()} == {
            name: v.shape for name, v in start.items()
        }


@pytest.mark.parametrize("limit", LIMITS)
def test_any_number_of_silos_gives_what_the_pooled_baskets_give_bit_for_bit(limit: str) -> None:
    table = baskets(500, often=0.3)
    options = {"max_size": 3, "min_support": 0.05, "limit": limit, "basket_size": 3}
    found = []
    for n in (1, 2, 5):
        names = [f"silo-{i}" for i in range(n)]
        plan = make_plan(
            Apriori, CATALOGUE, names, budget=Budget(1.0, 1e-6), nominal_n=500, **options
        )
        silos = {name: [table[i::n]] for i, name in enumerate(names)}
        found.append(run_plan(plan, silos, noise=ZeroNoise()).results)
    for other in found[1:]:
        for name, value in found[0].items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)


@pytest.mark.parametrize("limit", LIMITS)
def test_with_room_for_all_candidates_the_counted_supports_are_exact(limit: str) -> None:
    table = baskets(2000, often=0.35)
    held = table > 0
    plan = make_plan(
        Apriori,
        CATALOGUE,
        ["one"],
        budget=Budget(1e4, 1e-6),  # so much that large baskets count in full
        nominal_n=2000,
        max_size=3,
        min_support=0.001,
        basket_size=ITEMS,
        limit=limit,
    )
    found = run_plan(plan, {"one": [table]}, noise=ZeroNoise()).results
    exact = [held[:, [int(i) for i in row if i >= 0]].all(axis=1).mean() for row in found["sets"]]
    assert len(exact) == 8 + 28 + 56
    assert found["baskets"][0] == pytest.approx(2000, rel=2e-3)
    np.testing.assert_allclose(found["counted"], exact, rtol=3e-3)
    np.testing.assert_allclose(found["support"], exact, rtol=2e-2)
