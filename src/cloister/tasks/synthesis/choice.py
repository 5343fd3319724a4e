"""Which tables to measure, from released numbers alone: groups of levels, scores of pairs, choice.

All of it is a function of noisy counts that are public, so nothing here costs privacy, and all
parties find the same. Scores are rounded to a grid, and ties go to the lower column.

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
"""Of all cliques of the junction tree."""
_MEAN = sqrt(2 / pi)  # of the size of a normal number
_GRID = 1 << 16


def grouped(counts: Floats, groups: int, ordered: bool) -> Integers:
    """Return which of a few groups each level of a column is in, from its noisy counts.

    Ordered levels are cut into runs of equal mass; of others, the largest left goes to the emptiest
    group.
    """
    if len(counts) <= groups:
        return np.arange(len(counts))
    mass = np.maximum(counts, 1.0)
    if ordered:
        middles = np.cumsum(mass) - mass / 2
        found: Integers = np.floor(groups * middles / mass.sum()).astype(np.int64)
        return np.clip(found, 0, groups - 1)
    places, filled = np.zeros(len(mass), dtype=np.int64), np.zeros(groups)
    for level in np.argsort(-mass, kind="stable"):
        places[level] = filled.argmin()
        filled[places[level]] += mass[level]
    return places


def excess(table: Floats, noise: float) -> float:
    """Return how many records a pair's table has beside those of independent columns.

    It is the L1 norm of what margins do not explain, less what noise alone makes of it.
    """
    rows, columns = table.shape
    total = max(float(table.sum()), 1.0)
    rest = table - np.outer(table.sum(axis=1), table.sum(axis=0)) / total
    alone = _MEAN * noise * sqrt((rows - 1) * (columns - 1) * rows * columns)
    return float(np.rint((np.abs(rest).sum() - alone) * _GRID) / _GRID)


def chosen_tables(
    scores: Mapping[Clique, float],
    levels: Sequence[int],
    word_noise: float,
    *,
    target: int | None,
    most_tables: int,
    most_words: int,
) -> tuple[Clique, ...]:
    """Return the tables to measure: a spanning forest, and more pairs while they are worth it.

    Parameters
    ----------
    scores : mapping of pairs of columns to float
        Of :func:`excess`.
    levels : sequence of int
        Of each column.
    word_noise : float
        Noise, in records, of a cell if a single table is measured.
    target : int or None
        A column that is added to each table; then there is nothing but the forest.

    Notes
    -----
    A pair is worth what it explains beyond the forest's own noise, a quarter of the L1 norm of that
    in its cells. The order of columns makes no other difference than that of ties.
    """
    d = len(levels)
    unit = _MEAN * word_noise
    cells = {pair: prod(levels[j] for j in pair) for pair in scores}
    net = {
        pair: round((score - unit * sqrt(d - 1) * cells[pair] / 4) * _GRID)
        for pair, score in scores.items()
    }
    order = sorted(scores, key=lambda pair: (-net[pair], pair))
    forest = list(_forest([p for p in order if scores[p] > 0 and target not in p], d))
    if target is not None:
        touched = {j for pair in forest for j in pair} | {target}
        with_target = [tuple(sorted((*pair, target))) for pair in forest]
        alone = [tuple(sorted((j, target))) for j in range(d) if j not in touched]
        return tuple(with_target + alone)
    found, words = forest, sum(cells[pair] for pair in forest)
    for pair in order:
        if net[pair] <= 0 or len(found) == most_tables:
            break
        least = unit * sqrt(len(found) + 1) * cells[pair]
        if pair in found or scores[pair] < least or words + cells[pair] > most_words:
            continue
        if junction_tree(levels, [*found, pair]).cells <= MOST_CELLS:
            found, words = [*found, pair], words + cells[pair]
    return tuple(found) or tuple((j,) for j in range(d))


def _forest(pairs: Sequence[Clique], d: int) -> Iterator[Clique]:
    """Yield the pairs, best first, that join what no better ones have joined."""
    part = list(range(d))
    for a, b in pairs:
        if part[a] != part[b]:
            yield a, b
            part = [part[a] if one == part[b] else one for one in part]
