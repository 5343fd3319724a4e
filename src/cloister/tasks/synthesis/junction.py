"""Maximum-entropy distributions on a junction tree: fit to noisy tables, and draws of records.

Columns are numbered from 0, a clique is an ascending tuple of columns, and cliques of a tree follow
their parents. Everything is a deterministic function of the arguments.

References
----------
.. [LS88] Lauritzen and Spiegelhalter, "Local computations with probabilities on graphical
   structures", Journal of the Royal Statistical Society B 50(2), 1988: sums over a junction tree.
.. [MSM19] McKenna, Sheldon and Miklau, "Graphical-model based estimation and inference for
   differential privacy", ICML 2019: the distribution of maximum entropy that fits noisy marginals
   best, by mirror descent (Private-PGM).
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
_LEAST_NOISE = 1e-3  # records, so that tables without noise, in tests, have a finite precision
_GAIN = 1e-7  # relative decrease of the loss, below which a fit has converged
_ENOUGH = 0.8  # of the expected loss of the true distribution: a closer fit follows the noise


@dataclass(frozen=True)
class Tree:
    """A junction tree: a clique shares with its parent all columns of the cliques before it.

    Parameters
    ----------
    levels : tuple of int
        Number of levels of each column.
    cliques : tuple of Clique
    parents : tuple of int
        Index of each clique's parent, which precedes it; -1 for the first.
    """

    levels: tuple[int, ...]
    cliques: tuple[Clique, ...]
    parents: tuple[int, ...]

    def shape(self, clique: Clique) -> tuple[int, ...]:
        """Return the numbers of levels of a clique's columns."""
        return tuple(self.levels[j] for j in clique)

    def separator(self, i: int) -> Clique:
        """Return the columns that a clique shares with its parent; empty for the first one."""
        parent = self.parents[i]
        shared = set(self.cliques[parent]) if parent >= 0 else set()
        return tuple(j for j in self.cliques[i] if j in shared)

    @property
    def cells(self) -> int:
        """Number of cells of all cliques."""
        return sum(prod(self.shape(clique)) for clique in self.cliques)

    def split(self, flat: Floats) -> list[Floats]:
        """Split a vector of the cells of all cliques, in order, into their tables."""
        shapes = [self.shape(clique) for clique in self.cliques]
        ends = np.cumsum([prod(shape) for shape in shapes])[:-1]
        return [
            part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=True)
        ]

    def marginal(self, laws: Sequence[Floats], columns: Clique) -> Floats:
        """Return the probabilities of some columns of one clique, in their order."""
        index = self.holding(columns)
        assert index is not None
        return over(laws[index], self.cliques[index], columns)

    def holding(self, columns: Iterable[int]) -> int | None:
        """Return the index of the smallest clique with all these columns, or None."""
        wanted = set(columns)
        # Only the sums over the other columns are needed, so the smallest is the fastest.
        indices = [i for i, clique in enumerate(self.cliques) if wanted <= set(clique)]
        return min(indices, key=lambda i: prod(self.shape(self.cliques[i])), default=None)


def junction_tree(levels: Sequence[int], edges: Iterable[Sequence[int]]) -> Tree:
    """Return a junction tree over all columns with each set of `edges` inside a clique.

    Columns are eliminated by least fill-in, then by fewest cells, then by number. The tree is the
    maximum spanning tree by shared columns.
    """
    d = len(levels)
    linked = np.zeros((d, d))
    for edge in edges:
        for a, b in combinations(edge, 2):
            linked[a, b] = linked[b, a] = 1.0
    sizes, remaining = np.log(np.asarray(levels, dtype=np.float64)), np.ones(d, dtype=bool)
    cliques: list[Clique] = []
    for _ in range(d):
        degrees = linked.sum(axis=1)
        missing = degrees * (degrees - 1) - ((linked @ linked) * linked).sum(axis=1)
        # Rounded, so that parties break ties alike although last bits of logarithms may differ.
        cells = np.round(sizes + linked @ sizes, 9)
        first = int(np.lexsort((cells, np.where(remaining, missing, np.inf)))[0])
        neighbours = np.flatnonzero(linked[first])
        clique = {first, *neighbours.tolist()}
        if not any(clique <= set(other) for other in cliques):  # keep maximal cliques only
            cliques.append(tuple(sorted(clique)))
        linked[np.ix_(neighbours, neighbours)] = 1.0
        linked[neighbours, neighbours] = 0.0
        linked[first], linked[:, first], remaining[first] = 0.0, 0.0, False
    # A maximum spanning tree by shared columns has the running intersection property, which the
    # sums in `marginals` rely on.
    sets = [set(clique) for clique in cliques]
    order, parents, waiting = [0], [-1], list(range(1, len(cliques)))
    while waiting:
        pairs = [(len(sets[i] & sets[j]), -i, -j) for i in waiting for j in order]
        _, i, j = max(pairs)
        parents.append(order.index(-j))
        order.append(-i)
        waiting.remove(-i)
    return Tree(tuple(levels), tuple(cliques[i] for i in order), tuple(parents))


def over(table: Floats, of: Clique, columns: Clique) -> Floats:
    """Return the sums of a table over all columns except `columns`, in the order of these."""
    kept = [j for j in of if j in columns]
    sums = np.asarray(table.sum(axis=tuple(i for i, j in enumerate(of) if j not in columns)))
    return sums.transpose([kept.index(j) for j in columns])


def _within(table: Floats, clique: Clique, columns: Clique) -> Floats:
    """Reshape a table of some columns, so that it broadcasts to the clique's table."""
    lengths = iter(table.shape)
    return table.reshape([next(lengths) if j in columns else 1 for j in clique])


def marginals(tree: Tree, potentials: Sequence[Floats]) -> list[Floats]:
    """Return each clique's probabilities in the distribution with these log-potentials."""
    tables = list(potentials)
    seps = [tree.separator(i) for i in range(len(tree.cliques))]
    messages: dict[int, Floats] = {}
    for i in reversed(range(1, len(tables))):  # children to parents
        p = tree.parents[i]
        messages[i] = _log_sums(tables[i], tree.cliques[i], seps[i])
        tables[p] = tables[p] + _within(messages[i], tree.cliques[p], seps[i])
    for i in range(len(tables)):  # parents to children, each clique normalised by itself
        if i:
            p = tree.parents[i]
            # 1e-300: a sum may have underflowed to 0, whose logarithm is not finite.
            inward = np.log(np.maximum(over(tables[p], tree.cliques[p], seps[i]), 1e-300))
            tables[i] = tables[i] + _within(inward - messages[i], tree.cliques[i], seps[i])
        law = np.exp(tables[i] - tables[i].max())
        tables[i] = law / law.sum()
    return tables


def _log_sums(table: Floats, clique: Clique, columns: Clique) -> Floats:
    """Return the logarithms of sums of exponentials over all columns except `columns`."""
    gone = tuple(i for i, j in enumerate(clique) if j not in columns)
    most = table.max(axis=gone, keepdims=True)  # subtracted, or the exponentials may overflow
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
        Group of each level of a column, if the levels are merged in the table.
    """

    columns: Clique
    values: Floats
    noise: float
    groups: tuple[Integers, ...] = ()

    def count(self, levels: Sequence[Integers] | Integers) -> Integers:
        """Return the number of records in each cell, from the level of each in every column."""
        counts = np.bincount(self.cells(levels), minlength=self.values.size)
        return counts.astype(np.int64, copy=False).reshape(self.values.shape)

    def cells(self, levels: Sequence[Integers] | Integers) -> Integers:
        """Return the cell of each record, from its level in every column."""
        places = [levels[j] for j in self.columns]
        if self.groups:
            places = [groups[level] for groups, level in zip(self.groups, places, strict=True)]
        return np.asarray(np.ravel_multi_index(places, self.values.shape))

    def over(self, columns: Clique) -> Self:
        """Return the table of some of its columns, in their order, with the noise of its sums."""
        values = over(self.values, self.columns, columns)
        noise = self.noise * sqrt(self.values.size / values.size)
        return replace(self, columns=columns, values=values, noise=noise)


def total_of(tables: Iterable[NoisyTable]) -> float:
    """Return the number of records: the mean of all tables' sums, weighted by precision."""
    pairs = [
        (t.values.sum(), 1 / (t.values.size * max(t.noise, _LEAST_NOISE) ** 2)) for t in tables
    ]
    sums, weights = np.array(pairs).T
    # Probabilities are multiplied by it, so it must be positive; noise alone can make it negative.
    return max(float(sums @ weights / weights.sum()), _LEAST_RECORDS)


class _Loss:
    """Half the sum of squared residuals over their noise, of tables inside cliques."""

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
        # The mean loss of the true distribution is half the number of cells, all of it noise.
        self.of_truth = sum(table.values.size for _, table, _, _ in self.parts) / 2

    def __call__(self, laws: Sequence[Floats]) -> tuple[float, list[Floats]]:
        """Return the loss of a distribution, and its gradient by the cells of each clique."""
        gradient = [np.zeros(()) for _ in laws]
        loss, kept = 0.0, {}
        for i, table, precision, folds in self.parts:
            clique = self.tree.cliques[i]
            if (i, table.columns) not in kept:  # several tables may have the same columns
                kept[i, table.columns] = over(laws[i], clique, table.columns)
            model = kept[i, table.columns]
            if folds:
                model = folds[0] @ model @ folds[1].T
            residual = self.total * model - table.values
            loss += precision * float((residual**2).sum()) / 2
            residual = folds[0].T @ residual @ folds[1] if folds else residual
            scaled = (self.total * precision) * residual
            gradient[i] = gradient[i] + _within(scaled, clique, table.columns)
        return loss, gradient


def fitted(
    tree: Tree,
    tables: Sequence[NoisyTable],
    total: float,
    iterations: int = 200,
    enough: float = _ENOUGH,
) -> tuple[list[Floats], float]:
    """Return the maximum-entropy distribution that fits noisy tables, and its loss.

    The fit starts from the uniform distribution. It ends a little closer to the tables than the
    true distribution is [M84]_, since most of the remaining gain is noise.

    Parameters
    ----------
    tables : sequence of NoisyTable
        Tables whose columns are not all in one clique are ignored.
    total : float
        Number of records.
    iterations : int, optional
        Largest number of steps.
    enough : float, optional
        Share of the expected loss of the true distribution at which the fit ends; 0 fits the noise.

    Returns
    -------
    tables : list of ndarray
        Probabilities, one table for each clique; they agree on what cliques share.
    loss : float
    """
    loss_of = _Loss(tree, tables, total)
    # Potentials of 0 are the uniform distribution. Steps add multiples of the gradient, so the
    # result has the largest entropy of all distributions with its values of the tables.
    before = at = [np.zeros(tree.shape(clique)) for clique in tree.cliques]
    laws = marginals(tree, at)
    loss, gradient = loss_of(laws)
    step, run = 1 / loss_of.steepest, 0  # from the curvature of one table; halved if too large
    for _ in range(iterations):
        ahead = [p - step * g for p, g in zip(at, gradient, strict=True)]
        momentum = run / (run + 3)  # Nesterov's weight, counted from the last restart [OC15]_
        tried = [new + momentum * (new - old) for new, old in zip(ahead, before, strict=True)]
        found = marginals(tree, tried)
        after, slope = loss_of(found)
        if after < loss:
            gain, before, at, laws, loss, gradient = loss - after, ahead, tried, found, after, slope
            run += 1
            if gain <= _GAIN * loss or loss <= enough * loss_of.of_truth:
                break
        else:  # the momentum or the step is too large: the loss must never rise
            before, run, step = at, 0, step / 2
    return laws, loss


def drawn(
    tree: Tree,
    laws: Sequence[Floats],
    rows: int,
    rng: np.random.Generator,
    independent: bool = False,
) -> Integers:
    """Draw records from a distribution as levels of columns; shape (rows, n_columns).

    The number of records in each cell of a clique is conditional on the columns shared with its
    parent. It is the expected number, rounded down. One more is added in cells that are drawn
    without replacement, weighted by the remainders [ES06]_. So tables of the records differ less
    from the distribution than those of `independent` draws.
    """
    records = np.zeros((rows, len(tree.levels)), dtype=np.int64)
    for i, (clique, law) in enumerate(zip(tree.cliques, laws, strict=True)):
        separator = tree.separator(i)
        new = tuple(j for j in clique if j not in separator)
        order = [clique.index(j) for j in (*separator, *new)]
        shape, rest = tree.shape(separator), tree.shape(new)
        conditional = law.transpose(order).reshape(prod(shape), prod(rest))
        sums = conditional.sum(axis=1, keepdims=True)
        # A combination of probability 0 has no conditional distribution; it takes the uniform one.
        even = np.full_like(conditional, 1 / prod(rest))
        conditional = np.divide(conditional, sums, out=even, where=sums > 0)
        codes = np.zeros(rows, dtype=np.int64)
        if separator:
            codes = np.ravel_multi_index(tuple(records[:, separator].T), shape)
        # A random order within equal separators: else new columns would depend on others that the
        # separator does not hold.
        places = rng.permutation(rows)
        places = places[np.argsort(codes[places], kind="stable")]
        sizes = np.bincount(codes, minlength=len(conditional))
        counts = (rng.multinomial if independent else partial(_rounded, rng))(sizes, conditional)
        cells = np.repeat(np.tile(np.arange(prod(rest)), len(conditional)), counts.ravel())
        records[places[:, None], list(new)] = np.column_stack(np.unravel_index(cells, rest))
    return records


def _rounded(rng: np.random.Generator, sizes: Integers, chances: Floats) -> Integers:
    """Return integers near the expected numbers, with the given sums of rows."""
    expected = chances * sizes[:, None]
    counts = np.floor(expected).astype(np.int64)
    left = expected - counts
    with np.errstate(divide="ignore", over="ignore"):
        keys = rng.exponential(size=left.shape) / left  # the smallest keys are the drawn cells
    ranks = keys.argsort(axis=1).argsort(axis=1)
    # Floating-point sums of probabilities may miss an integer.
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
    """Return noisy tables of newly drawn records, with the columns and noise of `tables`."""
    levels = drawn(tree, laws, rows, rng, independent=True).T
    return [
        replace(table, values=table.count(levels) + rng.normal(0, table.noise, table.values.shape))
        for table in tables
    ]
