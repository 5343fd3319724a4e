"""Maximum entropy on a junction tree: fit noisy tables, and draw records from the fit.

Columns are numbered from 0, a clique is an ascending tuple of columns, and a tree's cliques stand
behind their parents. Everything is a deterministic function of what is given.

References
----------
.. [LS88] Lauritzen and Spiegelhalter, "Local computations with probabilities on graphical
   structures", Journal of the Royal Statistical Society B 50(2), 1988: sums over a junction tree.
.. [MSM19] McKenna, Sheldon and Miklau, "Graphical-model based estimation and inference for
   differential privacy", ICML 2019: the law of maximum entropy that fits noisy marginals best, by
   mirror descent (Private-PGM).
.. [OC15] O'Donoghue and Candès, "Adaptive restart for accelerated gradient schemes", Foundations of
   Computational Mathematics 15, 2015: Nesterov's momentum, dropped where the loss would rise.
.. [M84] Morozov, "Methods for solving incorrectly posed problems", Springer 1984: the discrepancy
   principle, to end an iteration where residuals are those of noise.
.. [ES06] Efraimidis and Spirakis, "Weighted random sampling with a reservoir", Information
   Processing Letters 97(5), 2006: draws without replacement by exponential keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import prod, sqrt
from typing import Self

import numpy as np

from cloister.core.arrays import Floats, Integers

Clique = tuple[int, ...]

_LEAST_RECORDS = 10.0
_LEAST_NOISE = 1e-3  # records, where a test has none
_GAIN = 1e-7  # of the loss, below which a fit has ended
_ENOUGH = 0.8  # of the loss of the truth: a nearer fit follows the noise


@dataclass(frozen=True)
class Tree:
    """A junction tree: each clique shares with its parent what it shares with all before it.

    Parameters
    ----------
    levels : tuple of int
        Of each column.
    cliques : tuple of Clique
    parents : tuple of int
        Of each clique one before it; -1 of the first.
    """

    levels: tuple[int, ...]
    cliques: tuple[Clique, ...]
    parents: tuple[int, ...]

    def shape(self, clique: Clique) -> tuple[int, ...]:
        """Return the levels of some columns."""
        return tuple(self.levels[j] for j in clique)

    def separator(self, i: int) -> Clique:
        """Return what a clique shares with its parent; nothing for the first one."""
        parent = self.parents[i]
        shared = set(self.cliques[parent]) if parent >= 0 else set()
        return tuple(j for j in self.cliques[i] if j in shared)

    @property
    def cells(self) -> int:
        """Number of cells of all cliques."""
        return sum(prod(self.shape(clique)) for clique in self.cliques)

    def split(self, flat: Floats) -> list[Floats]:
        """Return the tables of all cliques that stand one after another."""
        shapes = [self.shape(clique) for clique in self.cliques]
        ends = np.cumsum([prod(shape) for shape in shapes])[:-1]
        return [
            part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=True)
        ]

    def marginal(self, laws: Sequence[Floats], columns: Clique) -> Floats:
        """Return the probabilities of some columns of one clique, in their order."""
        at = self.holding(columns)
        assert at is not None
        return over(laws[at], self.cliques[at], columns)

    def holding(self, columns: Iterable[int]) -> int | None:
        """Return the smallest clique that has all these columns, None if there is none."""
        wanted = set(columns)
        found = [i for i, clique in enumerate(self.cliques) if wanted <= set(clique)]
        return min(found, key=lambda i: prod(self.shape(self.cliques[i])), default=None)


def junction_tree(levels: Sequence[int], edges: Iterable[Sequence[int]]) -> Tree:
    """Return a junction tree over all columns in which each set of `edges` lies in a clique.

    Columns are eliminated by least fill-in, then by fewest cells, then by number; the tree is the
    largest spanning one by shared columns.
    """
    d = len(levels)
    linked = np.zeros((d, d))
    for edge in edges:
        for a, b in combinations(edge, 2):
            linked[a, b] = linked[b, a] = 1.0
    sizes, left = np.log(np.asarray(levels, dtype=np.float64)), np.ones(d, dtype=bool)
    found: list[Clique] = []
    for _ in range(d):
        degrees = linked.sum(axis=1)
        missing = degrees * (degrees - 1) - ((linked @ linked) * linked).sum(axis=1)
        cells = np.round(sizes + linked @ sizes, 9)
        first = int(np.lexsort((cells, np.where(left, missing, np.inf)))[0])
        near = np.flatnonzero(linked[first])
        clique = {first, *near.tolist()}
        if not any(clique <= set(other) for other in found):
            found.append(tuple(sorted(clique)))
        linked[np.ix_(near, near)] = 1.0
        linked[near, near] = 0.0
        linked[first], linked[:, first], left[first] = 0.0, 0.0, False
    sets = [set(clique) for clique in found]
    order, parents, waiting = [0], [-1], list(range(1, len(found)))
    while waiting:
        pairs = [(len(sets[i] & sets[j]), -i, -j) for i in waiting for j in order]
        _, i, j = max(pairs)
        parents.append(order.index(-j))
        order.append(-i)
        waiting.remove(-i)
    return Tree(tuple(levels), tuple(found[i] for i in order), tuple(parents))


def over(table: Floats, of: Clique, columns: Clique) -> Floats:
    """Return the sums of a table over all but some of its columns, in the order of these."""
    kept = [j for j in of if j in columns]
    sums = np.asarray(table.sum(axis=tuple(i for i, j in enumerate(of) if j not in columns)))
    return sums.transpose([kept.index(j) for j in columns])


def _within(table: Floats, clique: Clique, columns: Clique) -> Floats:
    """Return a table of some columns in a shape that broadcasts to the clique's."""
    lengths = iter(table.shape)
    return table.reshape([next(lengths) if j in columns else 1 for j in clique])


def marginals(tree: Tree, potentials: Sequence[Floats]) -> list[Floats]:
    """Return each clique's table of probabilities of the law that potentials are logarithms of."""
    tables = list(potentials)
    seps = [tree.separator(i) for i in range(len(tree.cliques))]
    messages: dict[int, Floats] = {}
    for i in reversed(range(1, len(tables))):  # children to parents
        p = tree.parents[i]
        messages[i] = _log_sums(tables[i], tree.cliques[i], seps[i])
        tables[p] = tables[p] + _within(messages[i], tree.cliques[p], seps[i])
    for i in range(len(tables)):  # and back, each clique as a law of its own
        if i:
            p = tree.parents[i]
            inward = np.log(np.maximum(over(tables[p], tree.cliques[p], seps[i]), 1e-300))
            tables[i] = tables[i] + _within(inward - messages[i], tree.cliques[i], seps[i])
        law = np.exp(tables[i] - tables[i].max())
        tables[i] = law / law.sum()
    return tables


def _log_sums(table: Floats, clique: Clique, columns: Clique) -> Floats:
    """Return the logarithms of the sums of a clique's exponentials over all but some columns."""
    gone = tuple(i for i, j in enumerate(clique) if j not in columns)
    most = table.max(axis=gone, keepdims=True)
    sums: Floats = np.log(np.exp(table - most).sum(axis=gone)) + most.reshape(
        [n for i, n in enumerate(table.shape) if i not in gone]
    )
    return sums


@dataclass(frozen=True)
class NoisyTable:
    """A noisy table of some columns.

    Parameters
    ----------
    columns : Clique
    values : ndarray of a shape with an axis for each column, in records
    noise : float, >= 0
        Standard deviation of the noise in each cell.
    groups : tuple of ndarray, one for each column, or empty
        Which group of the table each level of a column is in, where the table is a coarse one.
    """

    columns: Clique
    values: Floats
    noise: float
    groups: tuple[Integers, ...] = ()

    def count(self, levels: Sequence[Integers] | Integers) -> Integers:
        """Return the numbers of records in its cells, from the level of each in every column."""
        counts = np.bincount(self.cells(levels), minlength=self.values.size)
        return counts.astype(np.int64, copy=False).reshape(self.values.shape)

    def cells(self, levels: Sequence[Integers] | Integers) -> Integers:
        """Return the cell of each record, from its level in every column."""
        places = [levels[j] for j in self.columns]
        if self.groups:
            places = [own[level] for own, level in zip(self.groups, places, strict=True)]
        return np.asarray(np.ravel_multi_index(places, self.values.shape))

    def over(self, columns: Clique) -> Self:
        """Return the table of some of its columns, in their order, with the noise of its sums."""
        values = over(self.values, self.columns, columns)
        noise = self.noise * sqrt(self.values.size / values.size)
        return replace(self, columns=columns, values=values, noise=noise)


def total_of(tables: Iterable[NoisyTable]) -> float:
    """Return the number of records, the mean of all tables' sums by their precision."""
    pairs = [
        (t.values.sum(), 1 / (t.values.size * max(t.noise, _LEAST_NOISE) ** 2)) for t in tables
    ]
    sums, weights = np.array(pairs).T
    return max(float(sums @ weights / weights.sum()), _LEAST_RECORDS)


class _Loss:
    """Half the sum of squared residuals over their noise, of tables that lie in cliques."""

    def __init__(self, tree: Tree, tables: Sequence[NoisyTable], total: float) -> None:
        self.tree, self.total = tree, total
        self.parts: list[tuple[int, NoisyTable, float, list[Floats]]] = []
        for table in tables:
            clique = tree.holding(table.columns)
            if clique is not None:
                folds = [
                    (np.arange(n)[:, None] == groups).astype(np.float64)
                    for n, groups in zip(table.values.shape, table.groups, strict=False)
                ]
                precision = max(table.noise, _LEAST_NOISE) ** -2
                self.parts.append((clique, table, precision, folds))
        self.steepest = total**2 * max(precision for _, _, precision, _ in self.parts)
        self.of_truth = sum(table.values.size for _, table, _, _ in self.parts) / 2

    def __call__(self, laws: Sequence[Floats]) -> tuple[float, list[Floats]]:
        """Return the loss of a law, and its gradient by the cells of each clique's table."""
        gradient = [np.zeros(()) for _ in laws]
        loss, kept = 0.0, {}
        for i, table, precision, folds in self.parts:
            clique = self.tree.cliques[i]
            if (i, table.columns) not in kept:
                kept[i, table.columns] = over(laws[i], clique, table.columns)
            model = kept[i, table.columns]
            if folds:
                model = folds[0] @ model @ folds[1].T
            rest = self.total * model - table.values
            loss += precision * float((rest**2).sum()) / 2
            rest = folds[0].T @ rest @ folds[1] if folds else rest
            pull = (self.total * precision) * rest
            gradient[i] = gradient[i] + _within(pull, clique, table.columns)
        return loss, gradient


def fitted(
    tree: Tree,
    tables: Sequence[NoisyTable],
    total: float,
    iterations: int = 200,
    enough: float = _ENOUGH,
) -> tuple[list[Floats], float]:
    """Return the law of maximum entropy that fits noisy tables, and its loss.

    The fit starts from the uniform law, and ends a little nearer to the tables than the truth is
    [M84]_: most that could still be gained is noise.

    Parameters
    ----------
    tables : sequence of Measured
        Those whose columns lie in no clique are left out.
    total : float
        Number of records.
    iterations : int, optional
        At most.
    enough : float, optional
        Part of the loss that noise makes of the truth, at which the fit ends; 0 fits the noise.

    Returns
    -------
    tables : list of ndarray
        Probabilities, one table for each clique; they agree on what cliques share.
    loss : float
    """
    loss_of = _Loss(tree, tables, total)
    before = at = [np.zeros(tree.shape(clique)) for clique in tree.cliques]
    laws = marginals(tree, at)
    loss, gradient = loss_of(laws)
    step, run = 1 / loss_of.steepest, 0
    for _ in range(iterations):
        ahead = [p - step * g for p, g in zip(at, gradient, strict=True)]
        momentum = run / (run + 3)
        tried = [new + momentum * (new - old) for new, old in zip(ahead, before, strict=True)]
        found = marginals(tree, tried)
        after, slope = loss_of(found)
        if after < loss:
            gain, before, at, laws, loss, gradient = loss - after, ahead, tried, found, after, slope
            run += 1
            if gain <= _GAIN * loss or loss <= enough * loss_of.of_truth:
                break
        else:  # the momentum, or a step without any, went too far
            before, run, step = at, 0, step / 2
    return laws, loss


def drawn(
    tree: Tree,
    laws: Sequence[Floats],
    rows: int,
    rng: np.random.Generator,
    independent: bool = False,
) -> Integers:
    """Return records of a law as the level of each column; shape (rows, n_columns).

    The numbers of records in the cells of a clique, given what it shares with its parent, are what
    is expected, rounded down, and one more in cells drawn without replacement by what is left
    [ES06]_. So tables of the records differ less from the law than those of `independent` draws.
    """
    records = np.zeros((rows, len(tree.levels)), dtype=np.int64)
    for i, (clique, law) in enumerate(zip(tree.cliques, laws, strict=True)):
        given = tree.separator(i)
        new = tuple(j for j in clique if j not in given)
        order = [clique.index(j) for j in (*given, *new)]
        shape, rest = tree.shape(given), tree.shape(new)
        chances = law.transpose(order).reshape(prod(shape), prod(rest))
        sums = chances.sum(axis=1, keepdims=True)
        even = np.full_like(chances, 1 / prod(rest))
        chances = np.divide(chances, sums, out=even, where=sums > 0)
        before = np.zeros(rows, dtype=np.int64)
        if given:
            before = np.ravel_multi_index(tuple(records[:, given].T), shape)
        places = rng.permutation(rows)
        places = places[np.argsort(before[places], kind="stable")]
        sizes = np.bincount(before, minlength=len(chances))
        counts = (rng.multinomial if independent else partial(_rounded, rng))(sizes, chances)
        cells = np.repeat(np.tile(np.arange(prod(rest)), len(chances)), counts.ravel())
        records[places[:, None], list(new)] = np.column_stack(np.unravel_index(cells, rest))
    return records


def _rounded(rng: np.random.Generator, sizes: Integers, chances: Floats) -> Integers:
    """Return whole numbers with rows of the given sums, near what is expected in each cell."""
    expected = chances * sizes[:, None]
    counts = np.floor(expected).astype(np.int64)
    left = expected - counts
    with np.errstate(divide="ignore", over="ignore"):
        keys = rng.exponential(size=left.shape) / left  # the smallest come first
    ranks = keys.argsort(axis=1).argsort(axis=1)
    # sums of parts may miss a whole number by a rounding error
    short = np.clip(sizes - counts.sum(axis=1), 0, None)
    found: Integers = counts + (ranks < short[:, None])
    return found


def resampled(
    tree: Tree,
    laws: Sequence[Floats],
    tables: Iterable[NoisyTable],
    rows: int,
    rng: np.random.Generator,
) -> list[NoisyTable]:
    """Return what the same tables of other records of a law could have been, with noise anew."""
    levels = drawn(tree, laws, rows, rng, independent=True).T
    return [
        replace(table, values=table.count(levels) + rng.normal(0, table.noise, table.values.shape))
        for table in tables
    ]
