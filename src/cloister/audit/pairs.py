"""Neighbours that are hard to protect: tables, and the record that only one of them has."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from cloister.core.randomness import public_generator
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.plan import Plan
from cloister.protocol.task import NO_VALUE, Floats, Records

_CORNERS = 64  # largest number of corners of the box among the candidates
_TRIED = 128  # number of other candidates


@dataclass(frozen=True)
class Pair:
    """A table, and the record that only its neighbour has.

    Parameters
    ----------
    table : ndarray of shape (n, d), int32
    extra : ndarray of shape (g, d), int32
        All rows of the additional unit; one row if the unit of privacy is a row.
    """

    name: str
    table: Records
    extra: Records

    @property
    def more(self) -> Records:
        """The neighbour's table."""
        return np.concatenate([self.table, self.extra])


def tables(plan: Plan) -> dict[str, Floats]:
    """Return the tables of the neighbours, in the box ``[-1, 1]^d``.

    Returns
    -------
    dict
        *none*; *groups* around three places; a *pile* of copies in the middle; and a ``wall``. All
        records of the last are in one corner, so that all other clusters are empty. The length of a
        table is `nominal_n`, at most 2,000. Records of groups and piles may lack cells.
    """
    n, d = min(plan.nominal_n, 2000), plan.grid.n_features
    return {
        "none": np.zeros((0, d)),
        "groups": lacking(plan, groups(n, d)),
        "pile": lacking(plan, np.zeros((n, d))),
        "wall": np.full((n, d), -1.0),
    }


def groups(n: int, d: int) -> Floats:
    """Return `n` records around three places of the box ``[-1, 1]^d``."""
    rng = public_generator("audit", "groups", d)
    middles = rng.uniform(-0.8, 0.8, (3, d))
    return np.asarray(middles[np.arange(n) % 3] + rng.normal(0, 0.02, (n, d)))


def incomplete(plan: Plan) -> list[int]:
    """Return the columns whose missing cells the task of a plan completes."""
    return list(getattr(plan.task, "incomplete", ()))


def lacking(plan: Plan, table: Floats) -> Floats:
    """Return a table in which some rows lack a cell of each column that the task completes."""
    table = table.copy()
    for k, column in enumerate(incomplete(plan), 1):
        table[k :: k + 2, column] = np.nan  # two columns have rows that lack one, and both
    return table


def pairs(plan: Plan) -> tuple[Pair, ...]:
    """Return the built-in neighbours: alone, in a corner, outside the box, a copy, and so on.

    :func:`cloister.audit.runs.search` adds neighbours whose record it searches.
    """
    beside = tables(plan)
    corner = np.ones(plan.grid.n_features)
    found = (
        neighbours(plan, "alone", beside["none"], corner),
        neighbours(plan, "a corner beside groups", beside["groups"], corner),
        neighbours(plan, "far outside the box", beside["wall"], 1e6 * corner),
        neighbours(plan, "one copy more", beside["pile"], 0 * corner),
        neighbours(plan, "a corner beside copies", beside["pile"], corner),
        neighbours(plan, "an empty cluster's", beside["wall"], 0.1 * corner),
    )
    bare = corner.copy()
    bare[incomplete(plan)] = np.nan
    one_more = neighbours(plan, "one that lacks cells", beside["groups"], bare)
    return (*found, one_more) if incomplete(plan) else found


def neighbours(plan: Plan, name: str, table: Floats, extra: Floats) -> Pair:
    """Return a pair for a plan; the extra unit has the largest allowed number of rows."""
    return entered(plan.grid, name, table, extra, plan.group_size)


def entered(grid: Grid, name: str, table: Floats, extra: Floats, rows: int = 1) -> Pair:
    """Enter a table and a record as a silo does, see :func:`encoded`."""
    return Pair(name, encoded(grid, table), encoded(grid, np.tile(extra, (rows, 1))))


def encoded(grid: Grid, table: Floats) -> Records:
    """Clip and round coordinates as a silo does; a missing cell is not a number."""
    absent = np.isnan(table)
    records = grid.encode(grid.centre + np.where(absent, 0.0, table) * grid.half_range)
    records[absent] = NO_VALUE
    return records


def candidates(plan: Plan) -> Floats:
    """Return candidate records: corners, centres of faces, points on rays, uniform ones.

    If the task completes missing cells, some of them are there again without a cell.
    """
    d = plan.grid.n_features
    rng = public_generator("audit", "candidates", d)
    if 2**d <= _CORNERS:
        corners = np.array(list(product((-1.0, 1.0), repeat=d)))
    else:
        corners = rng.choice((-1.0, 1.0), (_CORNERS, d))
    axes = np.concatenate([np.eye(d), -np.eye(d)])[:_CORNERS]
    # Corners are outside many radii; on a ray towards a corner some point is just inside.
    lengths = np.linspace(0.05, 1, _TRIED // 2)[:, None]
    rays = corners[rng.integers(len(corners), size=_TRIED // 2)] * lengths
    found = np.concatenate([corners, axes, rays, rng.uniform(-1, 1, (_TRIED // 2, d))])
    bare = lacking(plan, found)
    return np.concatenate([found, bare[np.isnan(bare).any(axis=1)]])
