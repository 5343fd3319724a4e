"""Choice of the tables to measure, from released numbers: groups of levels and scores of pairs.

Everything here is a function of noisy public counts, so it costs no privacy, and all parties get
the same result. Scores are rounded to a grid, and ties go to the lower column.

References
----------
.. [MMS21] McKenna, Miklau and Sheldon, "Winning the NIST contest: a scalable and general approach
   to differentially private synthetic data", Journal of Privacy and Confidentiality 11(3), 2021: a
   spanning tree of pairs. There it is chosen by the exponential mechanism from exact tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import pi, prod, sqrt

import numpy as np

from cloister.core.arrays import Floats, Integers
from cloister.tasks.synthesis.junction import Clique, junction_tree

MOST_CELLS = 90_000
"""Largest number of cells in all cliques of the junction tree."""
_MEAN = sqrt(2 / pi)  # of the absolute value of a standard normal number
_GRID = 1 << 16  # scores are rounded to its inverse, so that parties agree despite float rounding


def grouped(counts: Floats, groups: int, ordered: bool) -> Integers:
    """Return the group of each level of a column, from its noisy counts.

    Ordered levels are cut into runs of equal mass. Of unordered levels, the largest remaining one
    goes to the group with the least mass.
    """
    if len(counts) <= groups:
        return np.arange(len(counts))
    mass = np.maximum(counts, 1.0)  # at least one record: a noisy count may be negative
    if ordered:
        middles = np.cumsum(mass) - mass / 2
        runs: Integers = np.floor(groups * middles / mass.sum()).astype(np.int64)
        return np.clip(runs, 0, groups - 1)
    groups_of, totals = np.zeros(len(mass), dtype=np.int64), np.zeros(groups)
    for level in np.argsort(-mass, kind="stable"):
        groups_of[level] = totals.argmin()
        totals[groups_of[level]] += mass[level]
    return groups_of


def excess(table: Floats, noise: float) -> float:
    """Return the number of records by which a pair's table differs from independent columns.

    It is the L1 norm of the residual from the product of margins, minus its mean under noise alone.
    """
    rows, columns = table.shape
    total = max(float(table.sum()), 1.0)
    residual = table - np.outer(table.sum(axis=1), table.sum(axis=0)) / total
    # The residual keeps the part (1 - 1/r)(1 - 1/c) of the noise variance in each of r c cells.
    alone = _MEAN * noise * sqrt((rows - 1) * (columns - 1) * rows * columns)
    return float(np.rint((np.abs(residual).sum() - alone) * _GRID) / _GRID)


def chosen_tables(
    scores: Mapping[Clique, float],
    levels: Sequence[int],
    word_noise: float,
    *,
    target: int | None,
    most_tables: int,
    most_words: int,
) -> tuple[Clique, ...]:
    """Return the tables to measure: a spanning forest, and more pairs while their gain is positive.

    Parameters
    ----------
    scores : mapping of pairs of columns to float
        Results of :func:`excess`.
    levels : sequence of int
        Number of levels of each column.
    word_noise : float
        Noise, in records, of a cell if a single table is measured.
    target : int or None
        A column that is added to each table; if given, only the forest is returned.

    Notes
    -----
    The gain of a pair is its score minus a quarter of the L1 norm of the forest's noise in its
    cells. The order of columns only affects ties.
    """
    d = len(levels)
    unit = _MEAN * word_noise
    cells = {pair: prod(levels[j] for j in pair) for pair in scores}
    net = {
        pair: round((score - unit * sqrt(d - 1) * cells[pair] / 4) * _GRID)
        for pair, score in scores.items()
    }
    order = sorted(scores, key=lambda pair: (-net[pair], pair))
    # Pairs without the target: each table of the forest has it as a third column.
    forest = list(_forest([p for p in order if scores[p] > 0 and target not in p], d))
    if target is not None:
        touched = {j for pair in forest for j in pair} | {target}
        with_target = [tuple(sorted((*pair, target))) for pair in forest]
        singles = [tuple(sorted((j, target))) for j in range(d) if j not in touched]
        return tuple(with_target + singles)
    # Each added table raises the noise of all others, so pairs are added by decreasing gain.
    chosen, elements = forest, sum(cells[pair] for pair in forest)
    for pair in order:
        if net[pair] <= 0 or len(chosen) == most_tables:
            break
        least = unit * sqrt(len(chosen) + 1) * cells[pair]
        if pair in chosen or scores[pair] < least or elements + cells[pair] > most_words:
            continue
        # Pairs that form cycles are filled in to larger cliques, whose cells are limited.
        if junction_tree(levels, [*chosen, pair]).cells <= MOST_CELLS:
            chosen, elements = [*chosen, pair], elements + cells[pair]
    # Without a related pair, the third round measures single columns again.
    return tuple(chosen) or tuple((j,) for j in range(d))


def _forest(pairs: Sequence[Clique], d: int) -> Iterator[Clique]:
    """Yield the edges of a maximum spanning forest, from pairs with the best first."""
    component = list(range(d))
    for a, b in pairs:
        if component[a] != component[b]:
            yield a, b
            component = [component[a] if c == component[b] else c for c in component]
