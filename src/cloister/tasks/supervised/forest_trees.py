"""Public random trees: partitions of the cells of a few columns into leaves.

A tree uses one or a few columns, whose categories or bins form a small table. Each cell of the
table belongs to one of ``2**depth`` leaves, so a record's leaf takes one look-up for every depth.
Splits are drawn among those that divide the cells of a node, like extremely randomised trees
(Geurts, Ernst, Wehenkel, Machine Learning 63, 2006, section 2.2). They use public numbers instead
of records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Floats, Integers, Records
from cloister.core.randomness import public_generator
from cloister.tasks.columns import bins_of, codes
from cloister.tasks.significance import normal_p

MOST_CELLS = 1 << 16
"""Largest table of a tree; a column that would exceed it is not used in that tree."""


@dataclass(frozen=True, eq=False)
class Tree:
    """A public partition of the cells of some columns."""

    columns: tuple[int, ...]  # ascending, so that trees on the same columns share their cells
    cells: tuple[int, ...]  # categories or bins of each column
    leaf: Integers  # of each combination of cells, the last column varying fastest
    asked: tuple[int, ...]  # column of each inner node, breadth first; -1: everything goes left

    def cell(self, coded: Sequence[Integers]) -> Integers:
        """Return the combination of cells of each record, from :func:`coded_columns`."""
        first, *others = self.columns
        cell = coded[first]
        for j, size in zip(others, self.cells[1:], strict=True):
            cell = cell * size
            cell += coded[j]
        return cell

    def leaves(self, coded: Sequence[Integers]) -> Integers:
        """Return the leaf of each record."""
        return self.leaf[self.cell(coded)]


def grow(
    cells: Sequence[int],
    ordered: Sequence[bool],
    *,
    skip: int,
    n_trees: int,
    depth: int,
    columns_per_tree: int,
    public_seed: int,
) -> tuple[Tree, ...]:
    """Draw trees from a public seed, without the column `skip`, the target.

    A split of an `ordered` column is a threshold, else any set of categories. Columns are dealt
    from shuffled packs of all of them, so each is used equally often.
    """
    rng = public_generator(public_seed, "forest")
    usable = [j for j in range(len(cells)) if j != skip]
    each = min(columns_per_tree, len(usable))
    pack: list[int] = []
    trees = []
    for _ in range(n_trees):
        chosen: list[int] = []
        while len(chosen) < each:
            card = next((j for j in pack if j not in chosen), None)
            if card is None:  # the pack is empty, or ends with columns of this tree
                pack = [usable[i] for i in rng.permutation(len(usable))]
                continue
            pack.remove(card)
            chosen.append(card)
        columns = [chosen[0]]
        for j in chosen[1:]:
            if prod(cells[i] for i in (*columns, j)) <= MOST_CELLS:
                columns.append(j)
        trees.append(_tree(rng, tuple(columns), cells, ordered, depth))
    return tuple(trees)


def _tree(
    rng: np.random.Generator,
    columns: tuple[int, ...],
    cells: Sequence[int],
    ordered: Sequence[bool],
    depth: int,
) -> Tree:
    shape = tuple(cells[j] for j in columns)
    places = np.indices(shape).reshape(len(shape), -1)
    leaf = np.zeros(prod(shape), dtype=np.int64)
    # A node holds the codes of each column that can still arrive at it.
    level: list[list[NDArray[np.int64]]] = [[np.arange(size) for size in shape]]
    asked: list[int] = []
    for _ in range(depth):
        children = []
        right = np.zeros(len(leaf), dtype=np.int64)
        for node, left in enumerate(level):
            splittable = [a for a, left_of in enumerate(left) if len(left_of) > 1]
            if not splittable:
                # All leaves keep the same depth, so an unsplittable node has an empty right child.
                asked.append(-1)
                children += [left, [codes[:0] for codes in left]]
                continue
            axis = splittable[rng.integers(len(splittable))]
            values = left[axis] if ordered[columns[axis]] else rng.permutation(left[axis])
            cut = int(rng.integers(1, len(values)))
            asked.append(columns[axis])
            parts = (np.sort(values[:cut]), np.sort(values[cut:]))
            at_node = leaf == node
            right[at_node] = np.isin(places[axis, at_node], parts[1])
            children += [[*left[:axis], codes, *left[axis + 1 :]] for codes in parts]
        leaf = 2 * leaf + right
        level = children
    # Columns in ascending order, so that trees on the same columns share their counts.
    order = np.argsort(columns)
    leaf = leaf.reshape(shape).transpose(order).ravel()
    leaf.flags.writeable = False
    return Tree(
        tuple(columns[a] for a in order), tuple(shape[a] for a in order), leaf, tuple(asked)
    )


def coded_columns(
    records: Records, levels: Sequence[int], bins: int, frac_bits: int
) -> list[Integers]:
    """Return each record's category, or bin of equal width, in every column.

    Every grid value, including a forged one, is in one category or bin.
    """
    return [
        codes(column, size, frac_bits) if size else bins_of(column, bins, frac_bits)
        for column, size in zip(records.T, levels, strict=True)
    ]


def reached_leaves(trees: Sequence[Tree], depth: int) -> Floats:
    """Return 1 for a leaf with at least one cell, else 0; shape (n_trees, n_leaves)."""
    reached = np.zeros((len(trees), 1 << depth))
    for mask, tree in zip(reached, trees, strict=True):
        mask[tree.leaf] = 1.0
    return reached


def same_columns(trees: Sequence[Tree]) -> tuple[list[int], ...]:
    """Return groups of the numbers of trees on the same columns."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, tree in enumerate(trees):
        groups.setdefault(tree.columns, []).append(i)
    return tuple(groups.values())


def sum_values(
    values: Integers,
    trees: Sequence[Tree],
    groups: Sequence[Sequence[int]],
    coded: Sequence[Integers],
) -> Integers:
    """Return the sum of the values of each record's leaves; shape (n_samples, width).

    Parameters
    ----------
    values : ndarray of shape (n_released, n_leaves, width), int64
        Of the first trees; the others are not summed.
    groups : sequence of sequences of int
        From :func:`same_columns`.
    """
    sums = np.zeros((len(coded[0]), values.shape[2]), dtype=np.int64)
    for same in groups:
        released = [(values[i], trees[i]) for i in same if i < len(values)]
        if not released:
            continue
        cell = released[0][1].cell(coded)
        if len(cell) < len(released[0][1].leaf):
            for value, tree in released:
                sums += value.take(tree.leaf[cell], axis=0)
        else:  # more records than cells: sum the trees once for each cell
            table = sum(value.take(tree.leaf, axis=0) for value, tree in released)
            sums += np.take(table, cell, axis=0)
    return sums


def separations(trees: Sequence[Tree], mass: Floats, values: Floats, n_features: int) -> Floats:
    """Return the separation of values by the splits on each column; it sums to 1.

    Parameters
    ----------
    mass : ndarray of shape (n_trees, n_leaves)
        Size of each leaf, >= 0.
    values : ndarray of shape (n_trees, n_leaves, width)
    """
    importance = np.zeros(n_features)
    n_leaves = mass.shape[1]
    for level in range(n_leaves.bit_length() - 1):
        halves = (len(trees), 1 << level, 2, -1)
        of_half = mass.reshape(halves)
        weight = of_half.sum(axis=3)
        mean = (of_half[..., None] * values.reshape(*halves, values.shape[2])).sum(axis=3)
        mean = mean / np.maximum(weight, 1e-9)[..., None]
        distance = ((mean[:, :, 0] - mean[:, :, 1]) ** 2).sum(axis=2)
        gain = weight.prod(axis=2) / np.maximum(weight.sum(axis=2), 1e-9) * distance
        for gains, tree in zip(gain, trees, strict=True):
            first = (1 << level) - 1
            for node, column in enumerate(tree.asked[first : first + (1 << level)]):
                if column >= 0:
                    importance[column] += gains[node]
    total = importance.sum()
    return importance / total if total > 0 else importance


def split_p_values(
    trees: Sequence[Tree],
    leaves: Floats,
    noise: float,
    deviates: Callable[[Floats, float], Floats],
    n_features: int,
    times: int = 1,
) -> Floats:
    """Return the p-value of each column that splits the root of a tree, else NaN.

    A split counts if all splits above it are on its column, so that its halves differ in this
    column only. The smallest p-value of a column counts, as many times as it has tests.

    Parameters
    ----------
    leaves : ndarray of shape (n_trees, n_leaves, width)
        Noisy sums; `noise` is the deviation of each.
    deviates : function
        Returns the deviate of each node from the sums of its halves, of shape (..., 2, width), and
        their noise.
    times : int
        Number of tests behind one deviate.
    """
    asked = np.array([tree.asked for tree in trees])
    roots = asked[:, :1]
    alone = np.ones_like(roots, dtype=np.bool_)
    largest, tests = np.zeros(n_features), np.zeros(n_features)
    depth = leaves.shape[1].bit_length() - 1
    for level in range(depth):
        alone = alone & (asked[:, (1 << level) - 1 : (2 << level) - 1] == roots)
        halves = leaves.reshape(len(trees), 1 << level, 2, -1, leaves.shape[2]).sum(axis=3)
        z = deviates(halves, noise * sqrt(1 << (depth - 1 - level)))
        for j in np.unique(roots[roots >= 0]):
            own = z[alone & (roots == j)]
            tests[j] += own.size
            largest[j] = max(largest[j], own.max(initial=0.0))
        alone = np.repeat(alone, 2, axis=1)
    p = np.minimum(tests * normal_p(largest) * times, 1.0)
    return np.where(tests > 0, p, np.nan)
