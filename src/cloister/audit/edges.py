"""Records at which the contribution of a record may jump: boundaries, ties, edges and corners.

A defect such as "a record on a tie counts for both" affects few records of the lattice, which
random records almost never include. This module computes them from the plan and the public state
alone. It follows the task's contribution along lines until two neighbours on the lattice differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, islice, product
from math import gcd, isqrt

import numpy as np

from cloister.audit.pairs import incomplete
from cloister.protocol.plan import Plan
from cloister.protocol.task import NO_VALUE, GridState, Integers, Records, records_of

_POINTS = 12  # points of a state, at most
_PAIRS = 24  # pairs of points whose ties are searched
_LINES = 6  # lines on which boundaries are searched
_WALLS = 16  # boundaries on these lines, at most
_CLOSER = 4  # refinements of a distance between the last records inside and outside
_CUTS = 8  # segments of a line; the search finds at most one boundary in each
_LEVELS = 12  # largest range of whole numbers that is tried completely, for example categories
_GRID = 64  # records on special values of every column, at most

Adds = Callable[[Integers], Integers]
"""The function from one record to the vector that it contributes."""


def hard_records(plan: Plan, t: int, state: GridState, rng: np.random.Generator) -> Records:
    """Return records in the box on and next to the edges of round `t` at a public state.

    Returns
    -------
    ndarray of shape (n, n_features), int32
    """
    scale, d = plan.grid.one, plan.grid.n_features

    def adds(record: Integers) -> Integers:
        summed = records_of(plan.task, record.astype(np.int32)[None])
        return plan.task.contribute(t, state, summed)

    points = state_points(state, d, scale)
    steps = np.concatenate([np.zeros((1, d), np.int64), np.eye(d, dtype=np.int64)])
    steps = np.concatenate([steps, -steps[1:]])
    candidates = [special(plan, rng), (points[:, None] + steps).reshape(-1, d)]
    for left, right in islice(combinations(points, 2), _PAIRS):
        candidates += [(tie + steps) for tie in ties(left, right, scale)]
    walls = (wall for line in _lines(points, d, scale, rng) for wall in jumps(adds, *line))
    for records_in_box, outside in islice(walls, _WALLS):
        candidates += [records_in_box + steps, outside + steps]
    for point in rng.permutation(points)[:2]:
        candidates += list(edge(adds, point, scale, rng))
    records = np.concatenate(candidates)
    return np.unique(records_of(plan.task, records.astype(np.int32)), axis=0)


def state_points(state: GridState, d: int, one: int) -> Integers:
    """Return the points of a state, each once: rows of its arrays with a number for each column."""
    rows = [v.reshape(-1, d) for v in state.values() if v.ndim and v.shape[-1] == d]
    if not rows:
        return np.zeros((0, d), dtype=np.int64)
    # Arrays that a later round fills are rows of zeros, which would be most of the points.
    points = np.unique(np.concatenate([part[:_POINTS] for part in rows]).astype(np.int64), axis=0)
    return points[(np.abs(points) <= one).all(axis=1)][: 2 * _POINTS]


def special(plan: Plan, rng: np.random.Generator) -> Integers:
    """Return records whose every column is on a bound, a step inside, in the middle, or a level.

    A cell that the task completes may be missing.
    """
    grid = plan.grid
    scale, d = grid.one, grid.n_features
    middle, half = (np.broadcast_to(v, (d,)) for v in (grid.centre, grid.half_range))
    values = []
    for j in range(d):
        levels = [-scale, scale, 1 - scale, scale - 1, 0, 1, -1]
        low, high = middle[j] - half[j], middle[j] + half[j]
        if float(low).is_integer() and float(high).is_integer() and high - low < _LEVELS:
            levels += [round((v - middle[j]) / half[j] * scale) for v in np.arange(low, high + 1)]
        levels += [NO_VALUE] * (j in incomplete(plan))
        values.append(sorted(set(levels)))
    every = np.prod([float(len(levels)) for levels in values])
    if every <= _GRID:
        return np.array(list(product(*values)), dtype=np.int64)
    return np.array([rng.choice(levels, _GRID) for levels in values], dtype=np.int64).T


def ties(left: Integers, right: Integers, one: int) -> list[Integers]:
    """Return records at equal distance from two points, near their middle.

    Two columns of ``2 (right - left) x = |right|^2 - |left|^2`` are solved in whole numbers.
    """
    a, b = ([int(v) for v in point] for point in (left, right))
    apart = [2 * (q - p) for p, q in zip(a, b, strict=True)]
    whole = sum(q * q - p * p for p, q in zip(a, b, strict=True))
    middle = [(p + q) // 2 for p, q in zip(a, b, strict=True)]
    solutions = []
    if len(a) == 1 and apart[0] and whole % apart[0] == 0:
        solutions.append([whole // apart[0]])
    for i, j in islice(combinations(range(len(a)), 2), 6):
        left_over = whole - sum(apart[k] * middle[k] for k in range(len(a)) if k not in (i, j))
        for x, y in _two_unknowns(apart[i], apart[j], left_over, middle[i]):
            solutions.append([*middle])
            solutions[-1][i], solutions[-1][j] = x, y
    return [np.array(row) for row in solutions if max(map(abs, row)) <= one]


def _two_unknowns(p: int, q: int, r: int, near: int) -> list[tuple[int, int]]:
    """Return three whole solutions of ``p x + q y = r`` with x close to `near`."""
    g = gcd(p, q)
    # A whole solution exists only if the common divisor divides r.
    if g == 0 or r % g:
        return []
    p, q, r = p // g, q // g, r // g
    if q == 0:
        return [(r * p, near)]  # p is 1 or -1
    x = r * pow(p, -1, abs(q)) % abs(q) if abs(q) > 1 else 0
    x += (near - x) // abs(q) * abs(q)
    return [(v, (r - p * v) // q) for v in (x, x + abs(q), x - abs(q))]


def _lines(
    points: Integers, d: int, one: int, rng: np.random.Generator
) -> Iterator[tuple[Integers, Integers]]:
    """Yield ends of lines: from points of the state, and across the box along its columns."""
    for number in range(_LINES):
        if len(points) and number % 2:
            start = points[number // 2 % len(points)]
            if len(points) > 1 and number % 4 == 1:
                yield start, points[(number // 2 + 1) % len(points)]
            else:
                yield start, rng.choice((-one, one), d)
        else:
            start = rng.integers(-one, one + 1, d)
            end = start.copy()
            start[number // 2 % d], end[number // 2 % d] = -one, one
            yield start, end


def jumps(adds: Adds, start: Integers, end: Integers) -> Iterator[tuple[Integers, Integers]]:
    """Yield neighbours on a line that contribute to different elements."""
    length = int(np.abs(end - start).max())

    def at(place: int) -> Integers:
        point: Integers = start + np.rint((end - start) * (place / max(length, 1))).astype(np.int64)
        return point

    def elements(place: int) -> bytes:
        return np.asarray(adds(at(place)) != 0).tobytes()

    places = [length * cut // _CUTS for cut in range(_CUTS + 1)]
    seen = [elements(place) for place in places]
    for low, high, pattern, other in zip(places, places[1:], seen, seen[1:], strict=False):
        if pattern == other:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if elements(middle) == pattern else (low, middle)
        yield at(low), at(high)


def edge(adds: Adds, point: Integers, one: int, rng: np.random.Generator) -> Iterator[Integers]:
    """Yield records at the largest distance to a point that contribute like nearer ones.

    A line gives the distance up to about a step. Then pairs of whole numbers with nearly that sum
    of squares are searched for the last record inside and the first one outside.
    """
    if len(point) < 2:
        return
    i, j = rng.permutation(len(point))[:2]
    towards = rng.choice((-1, 1), len(point))
    start, end = point + towards, point + towards
    end[i] = towards[i] * one
    for records_in_box, outside in jumps(adds, start, end):
        near, far = (int(((x - point) ** 2).sum()) for x in (records_in_box, outside))
        lost = (adds(records_in_box) != 0) & (adds(outside) == 0)
        for _ in range(_CLOSER if near < far and lost.any() else 0):
            rows, squares = _at_distance(point, i, j, towards, near, far, one)
            low, high = 0, len(rows)
            while high - low > 1:
                middle = (low + high) // 2
                held = bool(adds(rows[middle])[lost].any())
                low, high = (middle, high) if held else (low, middle)
            yield rows[max(0, low - 2) : low + 3]
            near = int(squares[low]) if len(rows) else near
            far = int(squares[high]) if high < len(rows) else far


def _at_distance(
    point: Integers, i: int, j: int, towards: Integers, near: int, far: int, one: int
) -> tuple[Integers, Integers]:
    """Return records, and their squared distances to a point, in order, from near to far."""
    x = np.arange(isqrt(far) + 1)
    y = np.sqrt((far - x**2).astype(np.float64)).astype(np.int64)
    squares = x**2 + y**2
    x, y, squares = (v[(squares >= near) & (squares <= far)] for v in (x, y, squares))
    rows = np.repeat(point[None], len(x), axis=0)
    rows[:, i] += towards[i] * x
    rows[:, j] += towards[j] * y
    fits = (np.abs(rows) <= one).all(axis=1)
    order = np.argsort(squares[fits], kind="stable")
    return rows[fits][order], squares[fits][order]
