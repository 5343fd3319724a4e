"""Supports of pairs in baskets beyond the limit, with seeded noise."""

from __future__ import annotations

import numpy as np
import pytest

from cloister import Budget, make_plan
from cloister.data.schema import catalogue_schema
from cloister.tasks.patterns.apriori import Apriori
from cloister.tasks.patterns.association import Itemset, itemsets_of, rules_of
from cloister.tasks.patterns.supports import Heavy, heavy_of, load_edges, mended
from cloister.testing import rerun

ITEMS = tuple("abcdef")


def test_pairs_of_baskets_beyond_the_limit_have_no_bias() -> None:
    """The limit here is one pair, and every tenth basket has more of them."""
    rng, inside, errors = np.random.default_rng(0), [], []
    schema = catalogue_schema(ITEMS, dataset="shop")
    about = {"budget": Budget(1.0, 1e-6), "nominal_n": 2000, "min_support": 0.05}
    plan = make_plan(Apriori, schema, ["one"], **about)  # type: ignore[arg-type]
    for _ in range(40):
        held = rng.random((2000, 6)) < (0.3, 0.2, 0.1, 0.05, 0.4, 0.02)
        held[:, 1] |= held[:, 0] & (rng.random(2000) < 0.4)
        records = np.where(held, 1 << 16, -(1 << 16)).astype(np.int32)
        for found in itemsets_of(rerun(plan, records, rng), ITEMS, 0.05):
            if len(found.items) == 2:
                exact = held[:, [ITEMS.index(item) for item in found.items]].all(axis=1).mean()
                inside.append(found.low <= exact <= found.high)
                errors.append(found.counted - exact)
    assert len(inside) > 100
    assert np.mean(inside) > 0.9
    assert abs(np.mean(errors)) < 0.003


def test_a_second_sum_that_has_all_that_is_missing_needs_no_law() -> None:
    edges = load_edges(8)
    loads = np.arange(9.0)
    law = np.array([10.0, 20, 30, 20, 10, 5, 3, 1, 1])
    kept = np.minimum(loads, np.sqrt(4 * loads))
    heavy = heavy_of(law, edges, 5.0, kept, loads - kept, 2, cut=False)
    assert (heavy.factor, heavy.spread, heavy.error) == pytest.approx((1.0, 0.0, 0.0), abs=1e-7)
    assert heavy_of(law * (loads <= 4), edges, 5.0, kept, loads - kept, 2, cut=False) == Heavy()
    far = heavy_of(law, edges, 5.0, kept, loads - kept, 8, cut=False)
    assert far.factor > 1
    assert far.spread > 0
    assert far.error > 0
    nothing = np.zeros(3)
    found = mended((np.array([5.0, 6, 7]), nothing), (np.array([1.0, 0, 2]), nothing), heavy)
    np.testing.assert_allclose(found["counted"], [6, 6, 9])
    np.testing.assert_allclose(found["error"], 0, atol=1e-6)


def results(counted: list[float], half_width: list[float]) -> dict[str, np.ndarray]:
    sets = np.array([[0, -1], [1, -1], [0, 1]])
    return {
        "sets": sets,
        "support": np.array(counted),
        "counted": np.array(counted),
        "half_width": np.array(half_width),
    }


def test_a_set_just_above_the_minimum_has_a_wider_margin_below() -> None:
    found = {s.items: s for s in itemsets_of(results([0.5, 0.4, 0.06], [0.02] * 3), "ab", 0.05)}
    assert found["a",].shown == found["b",].shown == pytest.approx(1.0, rel=1e-3)
    assert found["a", "b"].shown == pytest.approx(2.81 / 1.96, rel=1e-3)
    assert found["a", "b"].low == pytest.approx(0.06 - 0.02 * 2.81 / 1.96, rel=1e-3)
    assert found["a", "b"].high == pytest.approx(0.08)
    assert all(s.shown == 1.0 for s in itemsets_of(results([0.5, 0.4, 0.06], [0.02] * 3), "ab"))


def test_an_interval_ends_at_what_the_subsets_allow_and_holds_the_estimate() -> None:
    found = {s.items: s for s in itemsets_of(results([0.5, 0.1, 0.08], [0.02, 0.02, 0.3]), "ab")}
    assert found["a", "b"].high == pytest.approx(0.1 + 1.5 * 0.02)
    contradiction = Itemset(("a", "b"), 0.2, 0.5, 0.1, most=0.3)
    assert (contradiction.low, contradiction.high) == pytest.approx((0.2, 0.6))


def test_the_error_of_the_number_of_baskets_cancels_in_a_confidence() -> None:
    spread = 0.1  # which is all the error that these supports have
    sets = [
        Itemset(i, v, v, v * spread) for i, v in ((("a",), 0.5), (("b",), 0.4), (("a", "b"), 0.3))
    ]
    rule = next(r for r in rules_of(sets, 1e4, spread=spread) if r.antecedent == ("a",))
    assert rule.confidence.high - rule.confidence.low < 1e-6
    assert rule.lift.high / rule.lift.value == pytest.approx(1 + spread, rel=0.02)
