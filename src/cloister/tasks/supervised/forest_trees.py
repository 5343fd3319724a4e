"""Public random trees: partitions of the cells of a few columns into leaves.

A tree uses one or a few columns, whose categories or bins form a small table. Each cell of the
table belongs to one of ``2**depth`` leaves, so a record's leaf takes one look-up for every depth.
Splits are drawn among those that divide the cells of a node, like extremely randomised trees
(Geurts, Ernst, Wehenkel, Machine Learning 63, 2006, section 2.2). They use public numbers instead
of records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Integers, Records
from cloister.core.randomness import public_generator
from cloister.tasks.columns import bins_of, codes

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
