"""Association rules: measures by hand, what may be shown, every source, and mistakes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cloister import Budget, Ledger, mine_rules, run_job
from cloister.app.forecast import forecast_of
from cloister.app.job import make_plan
from cloister.app.release import Release
from cloister.core.display import Graph, Table
from cloister.core.errors import BudgetExceeded, DataError, PlanError
from cloister.data import Baskets
from cloister.data.schema import Column, Schema, catalogue_schema
from cloister.estimators.association import RuleSet
from cloister.tasks.count import Count
from cloister.tasks.patterns.apriori import Apriori
from cloister.tasks.patterns.association import Itemset, graph_of, rules_of
from cloister.tasks.patterns.supports import load_edges, load_law, shrink
from cloister.testing import SimulatedNoise, ZeroNoise
from cloister_lab.experiments.rules import MIN_SUPPORT, exact_supports, frequent, groceries

ITEMS = ("bread", "butter", "milk", "tea", "salt", "jam")
SCHEMA = catalogue_schema(ITEMS, dataset="shop")


def shop(rows: int = 4000, seed: int = 0) -> pd.DataFrame:
    """Baskets in which butter follows bread; tea and salt come by chance."""
    rng = np.random.default_rng(seed)
    table = rng.random((rows, len(ITEMS))) < (0.4, 0.1, 0.3, 0.2, 0.05, 0.02)
    table[:, 1] |= table[:, 0] & (rng.random(rows) < 0.5)
    return pd.DataFrame(table.astype(int), columns=list(ITEMS))


def released(noise: Any = None, table: pd.DataFrame | None = None, **options: Any) -> RuleSet:
    frame = shop() if table is None else table
    grid = np.where(frame.to_numpy() > 0, 1 << 16, -(1 << 16)).astype(np.int32)
    settings = {"epsilon": 5.0, "nominal_n": 4000, "min_support": 0.02, **options}
    return RuleSet(
        run_job(Apriori, SCHEMA, {"one": [grid]}, noise=noise or ZeroNoise(), **settings)
    )


# --- The algebra


HAND = (
    Itemset(("a",), 0.5, 0.5, 0.02),
    Itemset(("b",), 0.4, 0.4, 0.02),
    Itemset(("c",), 0.2, 0.2, 0.02),
    Itemset(("a", "b"), 0.3, 0.31, 0.02),
    Itemset(("a", "c"), 0.1, 0.1, 0.02),
    Itemset(("b", "c"), 0.1, 0.1, 0.02),
    Itemset(("a", "b", "c"), 0.08, 0.08, 0.02),
)


def test_measures_are_those_of_the_textbook() -> None:
    rules = {(r.antecedent, r.consequent): r for r in rules_of(HAND, 1000.0)}
    assert len(rules) == 2 * 3 + 6
    rule = rules[("a",), ("b",)]
    assert rule.support.value == 0.3
    assert rule.confidence.value == pytest.approx(0.3 / 0.5)
    assert rule.lift.value == pytest.approx(0.3 / (0.5 * 0.4))
    assert rule.leverage.value == pytest.approx(0.3 - 0.5 * 0.4)
    rule = rules[("a", "b"), ("c",)]
    assert rule.confidence.value == pytest.approx(0.08 / 0.3)
    assert rule.lift.value == pytest.approx(0.08 / (0.3 * 0.2))
    back = rules[("c",), ("a", "b")]
    assert back.lift.value == pytest.approx(rule.lift.value)
    assert str(rule) == "a + b → c"


def test_intervals_are_ordered_and_around_the_measures_as_counted() -> None:
    for rule in rules_of(HAND, 1000.0):
        for measure in (rule.support, rule.confidence, rule.lift, rule.leverage):
            assert measure.low < measure.high
    rule = next(r for r in rules_of(HAND, 1000.0) if str(r) == "a → b")
    assert rule.confidence.low < 0.31 / 0.5 < rule.confidence.high
    assert rule.lift.low < 0.31 / 0.2 < rule.lift.high
    assert rule.leverage.low < 0.31 - 0.2 < rule.leverage.high


def test_minima_leave_rules_out_and_parts_must_be_known() -> None:
    every = rules_of(HAND, 1000.0)
    some = rules_of(HAND, 1000.0, min_confidence=0.5, min_lift=1.1)
    assert 0 < len(some) < len(every)
    assert {r for r in every if r.confidence.value >= 0.5 and r.lift.value >= 1.1} == set(some)
    assert rules_of(HAND[1:], 1000.0)[0].antecedent != ("a",)
    assert all("a" not in (*r.antecedent,) for r in rules_of(HAND[1:4], 1000.0))


@pytest.mark.parametrize(("deviations", "listed"), [(4.8, False), (5.2, True)])
def test_a_rule_whose_confidence_may_be_nearly_anything_is_left_out(
    deviations: float, listed: bool
) -> None:
    margin = 1.96 * 0.02
    rare = deviations * 0.02
    sets = [
        Itemset(items, support, support, margin)
        for items, support in ((("a",), rare), (("b",), 0.5), (("a", "b"), rare / 2))
    ]
    rules = rules_of(sets, 1000.0)
    assert any(rule.antecedent == ("a",) for rule in rules) is listed
    assert any(rule.antecedent == ("b",) for rule in rules)
    widths = [rule.confidence.high - rule.confidence.low for rule in rules]
    assert max(widths) < 0.95


def test_intervals_of_rules_cover_the_measures_of_exact_supports() -> None:
    """95 % of 400 * 3 intervals; five deviations of the count where each is right are allowed."""
    rng = np.random.default_rng(0)
    truth, std = np.array([0.3, 0.25, 0.12]), 0.006
    both, chance = truth[2], truth[0] * truth[1]
    exact = (both / truth[0], both / chance, both - chance)
    inside = np.zeros(3)
    for _ in range(400):
        a, b, ab = truth + rng.normal(0, std, 3)
        sets = [
            Itemset(items, value, value, 1.96 * std)
            for items, value in ((("a",), a), (("b",), b), (("a", "b"), ab))
        ]
        rule = next(r for r in rules_of(sets, 1e6) if r.antecedent == ("a",))
        measures = (rule.confidence, rule.lift, rule.leverage)
        inside += [m.low <= e <= m.high for m, e in zip(measures, exact, strict=True)]
    assert (np.abs(inside / 400 - 0.95) < 0.055).all(), inside


def test_the_graph_draws_each_pair_once_towards_the_more_certain_side() -> None:
    rules = rules_of(HAND, 1000.0)
    graph = graph_of(rules, HAND)
    names = [(graph.names[a], graph.names[b]) for a, b, _, _ in graph.edges]
    assert len(names) == len({frozenset(pair) for pair in names}) == len(rules) / 2
    assert ("b", "a") in names, "0.75 of b have a, 0.6 of a have b"
    assert dict(zip(graph.names, graph.sizes, strict=True))["a + b"] == 0.3


# --- Estimates


def test_a_law_of_loads_keeps_what_stands_out_and_fills_in_the_tail() -> None:
    rng = np.random.default_rng(0)
    loads = rng.geometric(0.25, 20_000) - 1
    edges = load_edges(400)
    assert edges[0] == 0
    assert edges[-1] == 401
    assert all(a < b for a, b in itertools.pairwise(edges))
    counts = np.histogram(loads, edges)[0].astype(float)
    for std in (0.0, 30.0):
        errors = []
        for _ in range(30):
            law = load_law(counts + rng.normal(0, std, len(counts)), edges, std)
            assert len(law) == 401
            assert (law >= 0).all()
            errors.append(law @ np.arange(401) / loads.sum() - 1)
        assert np.abs(np.mean(errors)) < 0.03
        assert np.abs(errors).max() < (0.15 if std else 0.01)


def test_noise_in_a_bin_of_large_baskets_is_no_crowd() -> None:
    rng = np.random.default_rng(0)
    loads = rng.geometric(0.25, 20_000) - 1
    edges = load_edges(400)
    counts = np.histogram(loads, edges)[0].astype(float)
    for at in np.flatnonzero(counts == 0):
        noisy = counts + rng.normal(0, 30.0, len(counts))
        noisy[at] = 4.5 * 30.0
        law = load_law(noisy, edges, 30.0)
        assert abs(law @ np.arange(401) / loads.sum() - 1) < 0.15, edges[at]


def test_shrinking_keeps_what_has_no_noise_and_learns_from_the_rest() -> None:
    rng = np.random.default_rng(0)
    pairs = np.array([(i, j) for i in range(20) for j in range(i)])
    company = np.exp(rng.normal(0, 0.3, 20))
    expected = rng.uniform(20, 300, len(pairs))
    truth = 1.5 * expected * company[pairs].prod(axis=1)
    np.testing.assert_allclose(shrink(truth, np.zeros(len(pairs)), expected, pairs), truth)
    std = np.full(len(pairs), 40.0)
    noisy = truth + rng.normal(0, std)
    shrunk = shrink(noisy, std, expected, pairs)
    assert np.abs(shrunk - truth).mean() < 0.6 * np.abs(noisy - truth).mean()
    assert shrink(noisy[:0], std[:0], expected[:0], pairs[:0]).shape == (0,)


@pytest.mark.parametrize("seed", range(5))
def test_no_set_has_more_support_than_a_part_of_it(seed: int) -> None:
    found = released(SimulatedNoise(seed), epsilon=0.2, max_size=3, min_support=0.01)
    supports = {frozenset(s.items): s.support for s in found.counted}
    assert any(len(items) == 3 for items in supports)
    for items, support in supports.items():
        for item in items:
            if len(items) > 1:
                assert support <= supports[items - {item}] + 1e-12
    for rule in found.rules:
        assert rule.confidence.value <= 1 + 1e-12


def test_the_planted_rule_is_found_and_chance_is_not_called_one() -> None:
    found = released(SimulatedNoise(0), epsilon=1.0)
    assert {found.rules[0].antecedent, found.rules[0].consequent} == {("bread",), ("butter",)}
    exact = shop()
    confidence = (exact.bread & exact.butter).sum() / exact.bread.sum()
    rule = next(r for r in found.rules if str(r) == "bread → butter")
    assert rule.confidence.low < confidence < rule.confidence.high
    tea = [r for r in found.rules if set(r.antecedent) | set(r.consequent) == {"tea", "milk"}]
    assert all(r.lift.low < 1.1 for r in tea)


@pytest.mark.parametrize("options", [{}, {"limit": "truncate"}, {"max_size": 3}])
def test_frequent_itemsets_of_groceries_are_found(
    shared_data: Path, options: dict[str, Any]
) -> None:
    """One run at epsilon 1; the mean of 20 is 0.90, with a deviation below 0.015."""
    file = shared_data / "groceries.txt.gz"
    if not file.exists():
        pytest.skip("groceries.txt.gz is not among the public tables")
    table = groceries(file)
    silos = {f"silo-{i}": [table.records[i::3]] for i in range(3)}
    result = run_job(
        Apriori,
        table.schema,
        silos,
        epsilon=1.0,
        nominal_n=9800,
        noise=SimulatedNoise(1),
        min_support=MIN_SUPPORT,
        **options,
    )
    told = {frozenset(s.items) for s in RuleSet(result).itemsets if len(s.items) < 3}
    names = table.schema.names
    truth = {
        frozenset(names[i] for i in s) for size in (1, 2) for s in frequent("groceries", file)[size]
    }
    assert 2 * len(told & truth) / (len(told) + len(truth)) > 0.82
    found = result.results
    exact = exact_supports(table.held, found["sets"])
    assert (np.abs(found["counted"] - exact) <= found["half_width"]).mean() > 0.85


# --- What may be shown


def test_sensitive_sets_and_small_counts_are_released_at_no_step(tmp_path: Path) -> None:
    found = released(max_size=3, sensitive=["salt", ("bread", "milk")], min_count=100.0)
    every = released(max_size=3)
    hidden = {s.items for s in every.counted} - {s.items for s in found.counted}
    kept = {s.items: s for s in found.counted}
    assert ("salt",) in hidden
    assert ("bread", "milk") in hidden
    assert ("bread", "butter", "milk") in hidden
    assert {("bread",), ("milk",), ("butter", "milk")} <= kept.keys()
    for s in kept.values():
        assert s.counted * found.baskets >= 100
    found.save(tmp_path / "model.json")
    loaded = Release.load(tmp_path / "model.json")
    for step in loaded.history:
        shown = {tuple(ITEMS[int(i)] for i in row if i >= 0) for row in step["sets"]}
        assert not any("salt" in s or {"bread", "milk"} <= set(s) for s in shown)
    assert RuleSet(loaded).itemsets == found.itemsets


def test_displays_are_sets_rules_and_a_graph() -> None:
    sets, rules, graph = released(min_lift=1.2).displays()
    assert isinstance(sets, Table)
    assert isinstance(rules, Table)
    assert isinstance(graph, Graph)
    assert "bread + butter" in [row[0] for row in sets.rows]
    assert len(released(max_size=1).displays()) == 1
    assert len(released(min_lift=50.0).displays()) == 2


def test_a_table_without_baskets_gives_no_sets_and_no_error() -> None:
    empty = released(table=shop().iloc[:0], max_size=3)
    assert empty.itemsets == ()
    assert empty.rules == ()
    nobody = released(table=shop() * 0, max_size=3)
    assert nobody.itemsets == ()
    released(SimulatedNoise(0), table=shop().iloc[:0], max_size=3, epsilon=0.1)


def test_expected_error_is_told_before_anything_is_spent() -> None:
    options: dict[str, Any] = {"nominal_n": 4000, "max_size": 1, "min_support": 0.02}
    plan = make_plan(Apriori, SCHEMA, ["a"], budget=Budget(1.0, 1e-6), **options)
    told = plan.task.forecast(plan.noise_std(plan.task.blocks(0)[0]), 4000, plan.grid)
    found = released(epsilon=1.0, max_size=1).result.results
    rare = found["half_width"].min()  # where the noise in the number of baskets does not matter
    assert told["items_half_width"][0] == pytest.approx(rare, rel=0.1)


@pytest.mark.parametrize("max_size", [2, 3])
def test_each_size_of_sets_has_its_own_expected_error(max_size: int) -> None:
    options: dict[str, Any] = {"nominal_n": 4000, "max_size": max_size, "min_support": 0.02}
    plan = make_plan(Apriori, SCHEMA, ["a"], budget=Budget(1.0, 1e-6), **options)
    told = forecast_of(plan)
    rng = np.random.default_rng(3)
    shares = (0.9, 0.7, 0.5, 0.4, 0.2, 0.05)  # about as many items in a basket as are assumed
    table = pd.DataFrame(rng.random((4000, 6)) < shares, columns=list(ITEMS)).astype(int)
    found = released(SimulatedNoise(0), table=table, epsilon=1.0, **options).result.results
    sizes = (found["sets"] >= 0).sum(axis=1)
    widths = found["half_width"]
    assert told["items_half_width"][0] == pytest.approx(widths[sizes == 1].min(), rel=0.1)
    of_pairs = "sets_of_2_{}_the_minimum_support_half_width"
    near, far = (told[of_pairs.format(place)][0] for place in ("near", "far_from"))
    assert near / 1.5 <= widths[sizes == 2].min()
    assert widths[sizes == 2].max() <= far * 1.5


def test_less_budget_makes_smaller_baskets_count_in_full() -> None:
    sizes = [
        make_plan(
            Apriori, SCHEMA, ["a"], budget=Budget(epsilon, 1e-6), nominal_n=10_000
        ).task.basket_size  # type: ignore[attr-defined]
        for epsilon in (0.1, 0.5, 4.0)
    ]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (4, 12)


# --- mine_rules


def test_every_source_of_the_same_baskets_gives_the_same_records(tmp_path: Path) -> None:
    table = shop(600)
    rows = [[item for item in ITEMS if row[item]] for _, row in table.iterrows()]
    (tmp_path / "lines.txt").write_text("\n".join(",".join(row) for row in rows) + "\n")
    table.to_csv(tmp_path / "table.csv", index=False)
    sources = [
        table,
        tmp_path / "table.csv",
        Baskets(tmp_path / "lines.txt"),
        Baskets(rows),
        [table.iloc[:100], table.iloc[100:]],
    ]
    for source in sources:
        found = mine_rules(
            source, epsilon=1e3, catalogue=ITEMS, nominal_n=600, min_support=0.02, max_size=1
        )
        exact = table.mean()
        assert {s.items[0] for s in found.itemsets} >= {"bread", "butter", "milk"}
        for s in found.itemsets:
            assert s.support == pytest.approx(exact[s.items[0]], abs=0.01)


def test_a_list_of_lists_of_baskets_is_a_list_of_silos() -> None:
    north: Any = [["tea"], {"tea", "milk"}] * 300
    south: Any = [("milk",), []] * 200
    several: list[Any] = [[north, south], (north, south, []), [Baskets(north), Baskets(south)]]
    single: list[Any] = [north, [[], []]]
    options: dict[str, Any] = {"epsilon": 1e3, "catalogue": ITEMS, "nominal_n": 1000, "max_size": 1}
    for silos in several:
        found = mine_rules(silos, **options)
        assert len(found.plan.silos) == len(silos)
        supports = {s.items[0]: s.support for s in found.itemsets}
        assert supports == pytest.approx({"tea": 0.6, "milk": 0.5}, abs=0.01)
    for one in single:
        assert len(mine_rules(one, **options).plan.silos) == 1
    for mixed in ([north, ["tea"]], [["tea", ["milk"]]]):
        with pytest.raises(PlanError, match="got a list of both"):
            mine_rules(mixed, **options)


def test_frames_hold_what_the_tuples_hold() -> None:
    found = mine_rules(shop(), epsilon=2.0, nominal_n=4000, min_support=0.05, min_lift=1.2)
    sets, rules = found.itemsets_frame(), found.to_frame()
    assert len(sets) == len(found.itemsets) > 3
    assert len(rules) == len(found.rules) > 0
    assert rules.loc[0, "lift_low"] == found.rules[0].lift.low
    assert list(sets["size"]) == [len(s.items) for s in found.itemsets]
    assert found.spent <= 2.0
    assert found.plan.columns == ITEMS


def test_without_a_nominal_number_a_noisy_count_is_bought() -> None:
    found = mine_rules(shop(), epsilon=2.0, min_support=0.05)
    assert abs(found.plan.nominal_n - 4000) < 400
    assert found.spent <= 2.0


def test_the_ledger_is_charged_and_refuses(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.open_dataset("shop", cap=Budget(1.2, 1e-6), unit="row")
    options: dict[str, Any] = {"epsilon": 1.0, "nominal_n": 4000, "min_support": 0.05}
    mine_rules(shop(), catalogue=SCHEMA, ledger=ledger, **options)
    assert ledger.spent("shop") == pytest.approx(1.0, rel=1e-3)
    with pytest.raises(BudgetExceeded):
        mine_rules(shop(), catalogue=SCHEMA, ledger=tmp_path / "ledger.db", **options)
    with pytest.raises(PlanError, match="dataset is required"):
        mine_rules(shop(), ledger=ledger, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_support": 0.0}, r"min_support must be in \(0, 1\)"),
        ({"max_size": 4}, r"max_size must be an integer in \[1, 3\]"),
        ({"limit": "drop"}, "limit must be"),
        ({"basket_size": 0}, "basket_size must be an integer >= 1"),
        ({"most_candidates": 0}, r"most_candidates must be an integer in \[1, 10000\]"),
        ({"most_candidates": 20_000}, r"in \[1, 10000\], got 20000"),
        ({"min_lift": -1.0}, "min_lift must be >= 0"),
        ({"sensitive": ["beer"]}, "a sensitive item must be a column"),
        ({"sensitive": [()]}, "sensitive must be a sequence, each a sequence of 1 or more"),
        ({"catalogue": ["a", "a"]}, "must be different"),
        ({"bogus": 1}, "do not fit"),
    ],
)
def test_mistakes_are_told_before_anything_is_spent(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        mine_rules(shop(10), **{"epsilon": 1.0, "nominal_n": 10, **options})


def test_a_catalogue_is_public_and_has_truth_values_only() -> None:
    with pytest.raises(PlanError, match="give a catalogue"):
        mine_rules(Baskets([["a"]]), epsilon=1.0)
    with pytest.raises(DataError, match="same columns"):
        mine_rules([shop(5), shop(5)[["tea", "milk"]]], epsilon=1.0)
    ages = Schema(
        dataset="d", unit="row", columns=(Column(name="age", type="number", min=0.0, max=9.0),)
    )
    with pytest.raises(PlanError, match="'age' must be boolean"):
        mine_rules(pd.DataFrame({"age": [1.0]}), epsilon=1.0, catalogue=ages, nominal_n=1)
    with pytest.raises(PlanError, match="max_size must be at most the number of items"):
        mine_rules(shop(5)[["tea"]], epsilon=1.0, nominal_n=5)
    other = run_job(Count, SCHEMA, {"a": []}, epsilon=1.0, nominal_n=1)
    with pytest.raises(PlanError, match="must come from the task 'apriori'"):
        _ = RuleSet(other).itemsets


def test_a_series_of_baskets_is_a_list_of_baskets() -> None:
    lists = [["bread", "milk"], ["tea"]] * 500
    options: dict[str, Any] = {"catalogue": list(ITEMS), "epsilon": 1.0, "nominal_n": 1000}
    for source in (pd.Series(lists), [pd.Series(lists[:400]), pd.Series(lists[400:])]):
        assert mine_rules(source, **options).itemsets[0].support == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    ("baskets", "sentence"),
    [
        ([["bread"], None, ["tea"]], r"basket 1 of X must be a list or set of items, got None"),
        (["bread", ["tea"]], "basket 0 of X"),
        ([[1, 2], [3]], r"items of baskets must be texts, got 1; give each item as str\(item\)"),
    ],
)
def test_an_element_that_is_no_basket_is_named(baskets: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        mine_rules(baskets, catalogue=list(ITEMS), epsilon=1.0, nominal_n=1000)


def test_a_released_set_prints_as_its_table() -> None:
    found = released()
    assert str(found) == str(found.to_frame())
