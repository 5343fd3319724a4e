"""The fit on the junction tree: closed forms, agreement on separators, and draws like the law."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.tasks.synthesis.junction import (
    NoisyTable,
    Tree,
    drawn,
    fitted,
    junction_tree,
    marginals,
    total_of,
)


def edges_of(n: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    return st.lists(st.sampled_from(list(combinations(range(n), 2))), max_size=9)


def summed(tree: Tree, laws: list[np.ndarray], columns: tuple[int, ...]) -> np.ndarray:
    at = tree.holding(columns)
    assert at is not None
    gone = tuple(i for i, j in enumerate(tree.cliques[at]) if j not in columns)
    return np.asarray(laws[at].sum(axis=gone))


@given(edges=edges_of(6), seed=st.integers(0, 99))
def test_any_set_of_pairs_has_a_junction_tree(edges: list[tuple[int, int]], seed: int) -> None:
    """Each clique shares with its parent what it shares with all before; marginals agree there."""
    rng = np.random.default_rng(seed)
    levels = tuple(rng.integers(1, 4, 6).tolist())
    tree = junction_tree(levels, edges)
    assert all(tree.holding(edge) is not None for edge in edges)
    assert all(tree.holding((j,)) is not None for j in range(6))
    for i in range(1, len(tree.cliques)):
        before = {j for clique in tree.cliques[:i] for j in clique}
        assert set(tree.separator(i)) == set(tree.cliques[i]) & before
        assert tree.parents[i] < i
    laws = marginals(tree, [rng.normal(0, 3, tree.shape(clique)) for clique in tree.cliques])
    for i, clique in enumerate(tree.cliques):
        assert laws[i].sum() == pytest.approx(1, abs=1e-9)
        given_ = tree.separator(i)
        for j in (i, tree.parents[i]) if i else ():
            gone = tuple(k for k, c in enumerate(tree.cliques[j]) if c not in given_)
            other = tuple(k for k, c in enumerate(clique) if c not in given_)
            np.testing.assert_allclose(laws[j].sum(axis=gone), laws[i].sum(axis=other), atol=1e-9)


def test_marginals_are_those_of_the_whole_table() -> None:
    rng, levels = np.random.default_rng(1), (2, 3, 2, 4)
    tree = junction_tree(levels, [(0, 1), (1, 2), (2, 3), (0, 3)])
    potentials = [rng.normal(size=tree.shape(clique)) for clique in tree.cliques]
    whole = np.zeros(levels)
    for clique, potential in zip(tree.cliques, potentials, strict=True):
        whole += potential.reshape([n if j in clique else 1 for j, n in enumerate(levels)])
    whole = np.exp(whole) / np.exp(whole).sum()
    for clique, law in zip(tree.cliques, marginals(tree, potentials), strict=True):
        gone = tuple(j for j in range(4) if j not in clique)
        np.testing.assert_allclose(law, whole.sum(axis=gone), atol=1e-12)


def test_two_tables_of_a_chain_give_the_closed_form() -> None:
    """Of a-b and b-c: p(a, b) p(b, c) / p(b), whatever joins a and c."""
    rng = np.random.default_rng(0)
    law = rng.dirichlet(np.ones(8)).reshape(2, 2, 2)
    tables = [
        NoisyTable((0, 1), 1000 * law.sum(axis=2), 1.0),
        NoisyTable((1, 2), 1000 * law.sum(axis=0), 1.0),
    ]
    tree = junction_tree((2, 2, 2), [(0, 1), (1, 2)])
    laws, loss = fitted(tree, tables, 1000.0, iterations=3000, enough=0)
    assert loss < 1e-3
    np.testing.assert_allclose(summed(tree, laws, (0, 1)), law.sum(axis=2), atol=1e-4)
    np.testing.assert_allclose(summed(tree, laws, (1, 2)), law.sum(axis=0), atol=1e-4)
    assert total_of(tables) == pytest.approx(1000)


def test_coarse_tables_pull_what_they_hold() -> None:
    groups = np.array([0, 0, 1, 1]), np.array([0, 1])
    coarse = NoisyTable((0, 1), np.array([[90.0, 10.0], [10.0, 90.0]]), 1.0, groups)
    even = NoisyTable((0,), np.full(4, 50.0), 1.0)
    tree = junction_tree((4, 2), [(0, 1)])
    laws, loss = fitted(tree, [even, coarse], 200.0, iterations=3000, enough=0)
    assert loss < 1e-3
    found = summed(tree, laws, (0, 1))
    np.testing.assert_allclose(found, np.array([[9, 1], [9, 1], [1, 9], [1, 9]]) / 40, atol=1e-4)


def test_tables_that_contradict_each_other_are_weighed_by_their_noise() -> None:
    tree = junction_tree((2,), [])
    tables = [
        NoisyTable((0,), np.array([90.0, 10.0]), 1.0),
        NoisyTable((0,), np.array([50.0, 50.0]), 3.0),
    ]
    laws, _ = fitted(tree, tables, 100.0, iterations=3000, enough=0)
    assert 100 * laws[0][0] == pytest.approx((90 + 50 / 9) / (1 + 1 / 9), abs=1e-2)


def chained() -> tuple[Tree, list[NoisyTable]]:
    """Noisy tables of a chain of four columns, of 2,000 records."""
    rng, levels = np.random.default_rng(2), (4, 3, 5, 2)
    rows = rng.integers(0, 2, (2000, 4)) + np.array([0, 0, 1, 0])
    pairs, tables = [(0, 1), (1, 2), (2, 3)], []
    for a, b in pairs:
        values = np.zeros((levels[a], levels[b]))
        np.add.at(values, (rows[:, a], rows[:, b]), 1)
        tables.append(NoisyTable((a, b), values + rng.normal(0, 8, values.shape), 8.0))
    return junction_tree(levels, pairs), tables


def test_the_fit_is_that_of_private_pgm() -> None:
    """Numbers of mbi 2.0.0: its loss after 300 iterations, and a table after 3,000."""
    tree, tables = chained()
    assert fitted(tree, tables, 2000.0, enough=0)[1] <= 1.05 * 7.881
    laws, _ = fitted(tree, tables, 2000.0, iterations=3000, enough=0)
    theirs = [[0.0, 510.4, 463.6, 3.3, 0.0], [0.0, 493.7, 515.6, 3.9, 0.7], [0.5, 0, 5.6, 0, 2.7]]
    np.testing.assert_allclose(2000 * summed(tree, laws, (1, 2)), theirs, atol=1.0)


def test_a_fit_ends_where_it_would_follow_the_noise() -> None:
    """At most a step nearer than said, and less far from the truth than a fit to the end."""
    rng, law = np.random.default_rng(0), np.full((16, 16), 1 / 256)
    tree, gaps = junction_tree((16, 16), [(0, 1)]), []
    for _ in range(5):
        table = NoisyTable((0, 1), 5000 * law + rng.normal(0, 30, law.shape), 30.0)
        (near,), loss = fitted(tree, [table], 5000.0)
        (nearest,), least = fitted(tree, [table], 5000.0, enough=0)
        assert 0.6 * 128 < loss <= 0.8 * 128
        assert least < loss
        gaps.append([np.abs(found - law).sum() for found in (near, nearest)])
    assert (np.diff(gaps) > 0).all()


def test_the_fit_is_not_worse_than_private_pgm(oracle: Callable[[str], Any]) -> None:
    """At equal iterations, where mbi is installed."""
    mbi = oracle("mbi")
    tree, tables = chained()
    _, loss = fitted(tree, tables, 2000.0, iterations=300, enough=0)
    domain = mbi.Domain(tuple("abcd"), tree.levels)
    given_ = [
        mbi.LinearMeasurement(t.values.ravel(), tuple("abcd"[j] for j in t.columns), stddev=8.0)
        for t in tables
    ]
    model = mbi.estimation.MirrorDescent().estimate(domain, given_, known_total=2000, iters=300)
    theirs = sum(
        ((np.asarray(model.project(m.clique).datavector()) - m.noisy_measurement) ** 2).sum()
        for m in given_
    ) / (2 * 8.0**2)
    assert loss <= 1.05 * float(theirs)


@given(
    edges=edges_of(5),
    rows=st.integers(1, 400),
    seed=st.integers(0, 50),
)
def test_records_are_near_the_law(edges: list[tuple[int, int]], rows: int, seed: int) -> None:
    """Each cell of the first clique within two records of what is expected."""
    rng = np.random.default_rng(seed)
    levels = (2, 3, 2, 4, 1)
    tree = junction_tree(levels, edges)
    laws = marginals(tree, [rng.normal(0, 2, tree.shape(clique)) for clique in tree.cliques])
    records = drawn(tree, laws, rows, rng)
    assert records.shape == (rows, 5)
    assert (records >= 0).all()
    assert (records < levels).all()
    first = tree.cliques[0]
    places = np.ravel_multi_index(tuple(records[:, first].T), tree.shape(first))
    counts = np.bincount(places, minlength=prod(tree.shape(first)))
    assert np.abs(counts - rows * laws[0].ravel()).max() <= 2


def test_records_follow_what_depends() -> None:
    tree = junction_tree((2, 2, 2), [(0, 1), (1, 2)])
    law = np.array([[0.45, 0.05], [0.05, 0.45]])
    records = drawn(tree, [law, law], 10_000, np.random.default_rng(0))
    assert (records[:, 0] == records[:, 1]).mean() == pytest.approx(0.9, abs=0.001)
    assert (records[:, 1] == records[:, 2]).mean() == pytest.approx(0.9, abs=0.001)
    assert (records[:, 0] == records[:, 2]).mean() == pytest.approx(0.82, abs=0.02)
