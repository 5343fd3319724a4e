"""The forest: what a record adds is bounded by the plan, whatever it is and the trees so far."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cloister.tasks.supervised.forest import RandomForest
from cloister.tasks.supervised.forest_trees import MOST_CELLS, coded_columns, grow

from .cases import DESIGNS, any_forest

KINDS = ["random", "boosted"]


def designed(kind: str, n_classes: int = 2, **options: object) -> RandomForest:
    return DESIGNS[f"forest, {kind}, {n_classes} classes"].build(**options)


def plain_sums(task: RandomForest, t: int, state: dict, records: np.ndarray) -> list[int]:
    """What records add, one by one and tree by tree, as the proof has it."""
    k, one, leaves = len(task.classes), 1 << 16, 1 << task.depth
    found = np.zeros((task.n_trees, leaves, k + (task.kind == "boosted")), dtype=np.int64)
    values = None
    if task.kind == "boosted":
        before = state["leaves"][:t] / 2.0**task.frac_bits
        values = task._values(before, float(state["noise"][0]) / 2.0**task.frac_bits)
    for record in records:
        coded = coded_columns(record[None], task.levels, task.bins, task.frac_bits)
        label = int(coded[task.target][0])
        at = [int(tree.leaves(coded)[0]) for tree in task.trees]
        if values is None:
            for tree, leaf in enumerate(at):
                found[tree, leaf, label] += one
            continue
        scores = [sum(int(values[i][at[i]][c]) for i in range(t)) / one for c in range(k)]
        powers = np.exp(np.maximum(np.array(scores) - max(scores), -30.0)).tolist()
        total = 0.0
        for power in powers:
            total += power
        shares, squared = [power / total for power in powers], 0.0
        for share in shares:
            squared += share * share
        added = [float(c == label) - share for c, share in enumerate(shares)]
        added.append((2 if k == 2 else 1) * (1.0 - squared))
        found[t, at[t]] += [int(value * one) for value in added]
    return (found if values is None else found[t]).ravel().tolist()


@pytest.mark.parametrize("n_classes", [2, 3, 12])
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), seed=st.integers(0, 9), columns=st.integers(1, 3), bins=st.integers(2, 9))
def test_sums_are_those_of_records_one_by_one_and_tree_by_tree(
    kind: str, n_classes: int, data: st.DataObject, seed: int, columns: int, bins: int
) -> None:
    """Whether trees share their columns or not, and few records or many are asked about."""
    task = designed(
        kind, n_classes, public_seed=seed, columns_per_tree=columns, bins=bins, n_trees=6
    )
    one = 1 << 16
    cells = st.sampled_from([-one, -1, 0, 1, one, 2**31 - 1, -(2**31)]) | st.integers(-one, one)
    rows = st.tuples(st.sampled_from([0, 1, 2, 20]), st.just(5))
    records = data.draw(arrays(np.int32, rows, elements=cells, fill=st.just(7)))
    t = task.rounds - 1
    for state in any_forest(task, seed)[:2]:
        plain = plain_sums(task, t, state, records)
        for table in (records, np.asfortranarray(records), np.repeat(records, 2, axis=1)[:, ::2]):
            assert task.contribute(t, state, table).tolist() == plain


@given(
    shares=arrays(np.float64, 4, elements=st.floats(0, 1)).filter(lambda p: p.sum() > 1e-3),
    label=st.integers(0, 3),
    binary=st.booleans(),
)
def test_gradient_and_curvature_are_bounded_together(
    shares: np.ndarray, label: int, binary: bool
) -> None:
    """Two is the square of the gradient where the model is surely wrong; curvature adds nothing."""
    task = designed("boosted", 2 if binary else 7)
    k = len(task.classes)
    p = np.zeros(k)
    p[: min(4, k)] = shares[: min(4, k)]
    p = p / p.sum() if p.sum() > 0 else np.full(k, 1 / k)
    label = label % k
    told = (np.arange(k) == label).astype(float)
    curvature = task._curvature * (1 - (p**2).sum())
    assert ((told - p) ** 2).sum() + curvature**2 <= 2 + 1e-12
    words = task._gradients(p[:, None], np.array([label]))
    # nothing was put to zero: the check of the integers never has to act
    assert np.abs(words[:, 0] - np.append(told - p, curvature) * 2**16).max() < 1


def test_a_record_is_in_one_leaf_of_each_tree_and_trees_know_no_record() -> None:
    task = designed("random", n_trees=20)
    records = np.random.default_rng(0).integers(-(1 << 16), (1 << 16) + 1, (200, 5), np.int32)
    added = task.contribute(0, {}, records).reshape(20, 8, 2)
    assert (added.sum(axis=(1, 2)) == 200 << 16).all()
    again = designed("random", n_trees=20)
    other = designed("random", n_trees=20, public_seed=1)
    same = [(a.leaf == b.leaf).all() for a, b in zip(task.trees, again.trees, strict=True)]
    assert all(same)
    assert any(
        a.columns != b.columns or (a.leaf != b.leaf).any()
        for a, b in zip(task.trees, other.trees, strict=True)
    )


@given(
    cells=st.lists(st.integers(2, 40), min_size=2, max_size=6),
    depth=st.integers(1, 5),
    each=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_trees_part_cells_by_thresholds_of_numbers_and_use_columns_equally(
    cells: list[int], depth: int, each: int, seed: int
) -> None:
    skip, usable = 0, len(cells) - 1
    trees = grow(
        cells,
        [True] * len(cells),
        skip=skip,
        n_trees=usable * 2,
        depth=depth,
        columns_per_tree=each,
        public_seed=seed,
    )
    used = np.bincount([j for tree in trees for j in tree.columns], minlength=len(cells))
    assert used[skip] == 0
    if each == 1:
        assert (used[1:] == 2).all()
    for tree in trees:
        assert len(set(tree.columns)) == len(tree.columns) == min(each, usable)
        assert tree.leaf.min() >= 0
        assert tree.leaf.max() < 1 << depth
        assert len(tree.asked) == (1 << depth) - 1
        if len(tree.columns) == 1:  # leaves are intervals, in order
            assert all(a <= b for a, b in pairwise(tree.leaf.tolist()))
            assert len(np.unique(tree.leaf)) <= cells[tree.columns[0]]


def test_a_tree_that_is_deep_enough_tells_every_combination_of_codes_apart() -> None:
    cells = [2, 3, 2, 2]  # the last is the target; the others need 1 + 2 + 1 splits at most
    for tree in grow(
        cells, [True, False, True, True], skip=3, n_trees=20, depth=4, columns_per_tree=3,
        public_seed=5,
    ):  # fmt: skip
        assert sorted(tree.columns) == [0, 1, 2]
        assert len(set(tree.leaf.tolist())) == 12


def test_a_node_that_cannot_be_parted_asks_no_column_and_nobody_can_change_a_tree() -> None:
    options = {"n_trees": 1, "depth": 3, "columns_per_tree": 1, "public_seed": 0}
    (tree,) = grow([2, 2], [True, True], skip=1, **options)
    assert tree.asked == (0, *[-1] * 6)
    assert tree.leaf.tolist() == [0, 4]
    with pytest.raises(ValueError, match="read-only"):
        tree.leaf[0] = 1


def test_a_table_of_cells_stays_small() -> None:
    (tree,) = grow(
        [2, 60000, 50000],
        [True] * 3,
        skip=0,
        n_trees=1,
        depth=2,
        columns_per_tree=2,
        public_seed=0,
    )
    assert len(tree.leaf) <= MOST_CELLS
    assert len(tree.columns) == 1


@given(arrays(np.int32, (4, 2), elements=st.integers(-(2**31), 2**31 - 1)))
def test_every_integer_is_in_one_bin_or_category(records: np.ndarray) -> None:
    number, category = coded_columns(records, [0, 3], 7, 16)
    assert ((number >= 0) & (number < 7)).all()
    assert ((category >= 0) & (category < 3)).all()
