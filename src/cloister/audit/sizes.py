"""Contributions of records at states of jobs over small and large tables, and at hostile states.

Each of some hundred records is summed alone, and must keep its bound. Then tables are summed in
different slices. The sum of a table of any size must equal the sum of its records' contributions.
Otherwise the bound of a record implies nothing for the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from cloister.audit.edges import special, state_points
from cloister.audit.pairs import candidates, encoded
from cloister.audit.runs import share_of_bound
from cloister.core.randomness import public_generator
from cloister.data.records import default_rows
from cloister.protocol.plan import Plan
from cloister.protocol.summing import LocalStep
from cloister.protocol.task import GridState, Records
from cloister.tasks.examples import hostile_rounds

BEYOND_CELLS = 1 << 20
"""Cells of the largest table; no constant by which the product splits tables is larger."""

_MOST_CELLS = 1 << 22  # largest number of cells of a table with many columns
_SMALLEST, _EVEN = 256, 8192  # records of a slice of a large table

Place = tuple[int, GridState]
"""A round, and the public state before it."""


@dataclass(frozen=True)
class Sums:
    """The result of comparisons of sums.

    Parameters
    ----------
    worst : float
        Largest norm of a unit's contribution to a block, over its bound.
    adds_up : bool
        True if every table equals the sum of its slices.
    places : int
        Number of states.
    """

    worst: float
    adds_up: bool
    places: int


def compare_sums(plan: Plan, places: Iterable[Place], large_at: Iterable[Place]) -> Sums:
    """Sum records at states: some hundred alone and together, and a large table in slices.

    Parameters
    ----------
    places, large_at : iterable of (int, mapping)
        States at which single records are summed, and at which large tables are summed, too.
    """
    distinct = list(_distinct([*places, *hostile_rounds(plan.task)]))
    worst, adds_up = 0.0, True
    for t, state in distinct:
        points = state_points(state, plan.grid.n_features, plan.grid.one).astype(np.int32)
        here = compare_at(plan, t, state, np.concatenate([tried(plan), points]))
        worst, adds_up = max(worst, here.worst), adds_up and here.adds_up
    table = sweep(plan)
    for t, state in _distinct(large_at):
        here = _compare_large(plan, t, state, table)
        worst, adds_up = max(worst, here.worst), adds_up and here.adds_up
    return Sums(worst, adds_up, len(distinct))


def compare_at(plan: Plan, t: int, state: GridState, records: Records) -> Sums:
    """Sum each record alone, and all of them together, some of them repeated."""
    step = LocalStep(plan.task, t, state, plan.length(t))
    each = np.array([step.of(record[None]) for record in records])
    worst = share_of_bound(plan, t, plan.group_size * each)
    if not by_row(plan):
        return Sums(worst, True, 1)
    # Some records occur three times: a task that counts distinct rows does not add up.
    copies = np.concatenate([records, records[-3:], records[-3:]])
    total = each.sum(axis=0) + 2 * each[-3:].sum(axis=0)
    by_rows = replace(step, manner="rows")
    return Sums(worst, bool(all((how.of(copies) == total).all() for how in (step, by_rows))), 1)


def _compare_large(plan: Plan, t: int, state: GridState, table: Records) -> Sums:
    """Sum a large table whole and in slices that double, and its mirror in even slices."""
    step = LocalStep(plan.task, t, state, plan.length(t))
    if not by_row(plan):
        unit = one_unit(plan, table)
        few = (step.of(unit[:n]) for n in (_SMALLEST, len(unit)))
        return Sums(max(share_of_bound(plan, t, sums) for sums in few), True, 1)
    # Two tables of one size: a cache of the first gives wrong sums for the second.
    for whole, ends in ((table, _doubling(len(table))), (-table, range(0, len(table), _EVEN))):
        slices = np.split(whole, list(ends))
        if (step.of(whole) != sum(step.of(piece) for piece in slices)).any():
            return Sums(0.0, False, 1)
    return Sums(0.0, True, 1)


def _doubling(n_rows: int) -> list[int]:
    """Return ends of slices that double, each size twice, to detect sums cached by size."""
    ends, size = [0], _SMALLEST
    while ends[-1] + 2 * size < n_rows:
        ends += [ends[-1] + size, ends[-1] + 2 * size]
        size = 2 * size - 1
    return ends


def by_row(plan: Plan) -> bool:
    """Return True if each row counts by itself, so that a table is the sum of its rows."""
    return plan.by_client is None or plan.by_client.clients == "row"


def one_unit(plan: Plan, table: Records) -> Records:
    """Return a table whose rows all belong to one unit, for a task with such a unit."""
    assert plan.by_client is not None
    if plan.by_client.clients == "silo":
        return table
    table = table.copy()
    table[:, plan.columns.index(plan.by_client.clients)] = plan.grid.one
    return table


def tried(plan: Plan) -> Records:
    """Return records to sum one by one: corners, bounds, the middle, points on rays."""
    grid = plan.grid
    rng = public_generator("audit", "tried", grid.n_features)
    middle = np.zeros((1, grid.n_features), dtype=np.int32)
    return np.unique(
        np.concatenate([encoded(grid, candidates(plan)), special(plan, rng), middle]), axis=0
    ).astype(np.int32)


def sweep(plan: Plan) -> Records:
    """Return a table larger than any constant, whose columns hold every value of the lattice.

    It includes the values of defects at one rare value of a column. Tables of very many columns,
    or on a very fine lattice, lack some values.
    """
    scale, d = plan.grid.one, plan.grid.n_features
    n = max(BEYOND_CELLS // d, default_rows(1), 2 * scale) + 1
    n = max(min(n, _MOST_CELLS // d), default_rows(d) + 1)
    rng = public_generator("audit", "sweep", d)
    values = np.arange(-scale, scale + 1, dtype=np.int32)
    table = np.stack([np.resize(rng.permutation(values), n) for _ in range(d)], axis=1)
    return np.concatenate([tried(plan), table])


def _distinct(places: Iterable[Place]) -> Iterator[Place]:
    """Yield each round and state once, as all jobs start from the same state."""
    seen = set()
    for t, state in places:
        key = (t, *((name, value.tobytes()) for name, value in sorted(state.items())))
        if key not in seen:
            seen.add(key)
            yield t, state
