"""The choice of tables: groups of equal mass, a forest of what depends, the limits of a plan."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from cloister.tasks.synthesis.choice import MOST_CELLS, chosen_tables, excess, grouped
from cloister.tasks.synthesis.junction import junction_tree


def test_levels_of_equal_mass_go_to_groups_in_turn() -> None:
    """On every machine: silos must come to the same groups."""
    assert grouped(np.full(60, 5.0), 3, ordered=False).tolist() == [0, 1, 2] * 20


def test_ordered_levels_are_cut_into_runs_of_equal_mass() -> None:
    groups = grouped(np.array([50.0, 10, 10, 10, 10, 10, 50]), 3, True)
    assert groups.tolist() == [0, 1, 1, 1, 1, 1, 2]
    assert grouped(np.array([1.0, 2.0]), 3, True).tolist() == [0, 1]


def test_other_levels_fill_the_emptiest_group() -> None:
    groups = grouped(np.array([10.0, 60, 30, 30]), 2, False)
    assert len({*groups[[2, 3]]}) == 1
    assert groups[1] != groups[2]


@pytest.mark.parametrize("ordered", [True, False])
def test_counts_that_are_noise_still_give_groups(ordered: bool) -> None:
    groups = grouped(np.array([-9e9, -5.0, 0.0, 7e9, -1.0]), 3, ordered)
    assert (groups >= 0).all()
    assert (groups < 3).all()


def test_independent_columns_have_no_excess_beyond_the_noise() -> None:
    rng = np.random.default_rng(0)
    even = np.full((4, 5), 50.0)
    assert excess(even, 0.0) == pytest.approx(0, abs=1e-3)
    noisy = [excess(even + rng.normal(0, 5, even.shape), 5.0) for _ in range(300)]
    assert abs(np.mean(noisy)) < 5
    assert excess(np.diag([100.0, 100.0]), 0.0) == pytest.approx(200, abs=1e-3)


def chosen(scores: dict[tuple[int, int], float], **more: object) -> tuple[tuple[int, ...], ...]:
    every = dict.fromkeys(combinations(range(5), 2), -1.0) | scores
    limits = {"target": None, "most_tables": 15, "most_words": 10_000, "levels": (4,) * 5, **more}
    levels = limits.pop("levels")
    return chosen_tables(every, levels, 1.0, **limits)  # type: ignore[arg-type]  # of a test


def test_the_forest_comes_first_then_pairs_that_are_worth_it() -> None:
    scores = {(0, 1): 900.0, (1, 2): 800.0, (0, 2): 700.0, (3, 4): 3.0}
    assert chosen(scores) == ((0, 1), (1, 2), (3, 4), (0, 2))
    assert chosen({**scores, (0, 2): 20.0}) == ((0, 1), (1, 2), (3, 4))


def test_nothing_that_depends_means_the_columns_again() -> None:
    assert chosen({}) == ((0,), (1,), (2,), (3,), (4,))


def test_a_target_is_in_every_table() -> None:
    scores = {(0, 1): 900.0, (1, 4): 800.0}
    assert chosen(scores, target=4) == ((0, 1, 4), (2, 4), (3, 4))


@pytest.mark.parametrize("most_words", [40, 64, 10_000])
def test_limits_hold(most_words: int) -> None:
    scores = {pair: 1e6 - sum(pair) for pair in combinations(range(5), 2)}
    found = chosen(scores, most_words=most_words + 24)
    assert len(found) <= 15
    assert sum(4 * 4 for _ in found) <= max(most_words + 24, 4 * 16)
    wide = chosen(scores, levels=(60,) * 5, most_words=10**6)
    assert junction_tree((60,) * 5, wide).cells <= MOST_CELLS
    assert len(chosen(scores, most_tables=5)) == 5


def test_ties_go_to_lower_columns_and_the_last_bit_decides_nothing() -> None:
    scores = dict.fromkeys(combinations(range(5), 2), 500.0)
    jittered = {pair: 500.0 + 1e-9 * sum(pair) for pair in scores}
    assert chosen(scores) == chosen(jittered)
    assert chosen(scores)[:4] == ((0, 1), (0, 2), (0, 3), (0, 4))


def test_ordered_levels_from_the_other_end_have_the_same_runs() -> None:
    counts = np.array([6.0, 5, 3, 3, 1])
    assert grouped(counts, 2, True).tolist() == [0, 0, 1, 1, 1]
    assert grouped(counts[::-1], 2, True).tolist() == [0, 0, 0, 1, 1]


def test_of_levels_with_one_mass_the_first_is_the_first_to_get_a_group() -> None:
    """As a sort that keeps the order of ties has it; from 17 levels on, others do not."""
    groups = grouped(np.tile([3.0, 2.0, 1.0], 20), 59, ordered=False)
    heaviest_first = [*range(0, 60, 3), *range(1, 60, 3), *range(2, 60, 3)]
    assert groups[heaviest_first][:59].tolist() == [*range(59)]
