"""The audit of a curator's method, from outside: only what it puts out is looked at.

A method that is not a sum shows no scores. So half of the runs on either neighbour are used to look
for the event that tells the two worlds apart best, and the other half to bound its probabilities.

Max cover draws balls before it adds any noise. What is drawn in its releases is scored by itself,
with the exact likelihood ratio of the exponential mechanism, on neighbours for which the claim of
the draws nearly binds.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import count
from typing import Any

import numpy as np

from cloister.audit.bounds import Check, attainable, compare, points
from cloister.audit.checks import ALPHA, Audit, Finding, drawn_curve, two_worlds
from cloister.audit.packages import Method
from cloister.audit.pairs import Pair, entered
from cloister.audit.runs import MakeNoise, system_noise
from cloister.core.errors import PrivacyWarning
from cloister.data.schema import schema_of
from cloister.privacy import accounting
from cloister.privacy.budget import Budget
from cloister.privacy.events import Event, NonPrivateEvent
from cloister.privacy.noise import NoiseSource
from cloister.protocol.task import Floats, Integers, Records
from cloister.tasks.examples import numbers
from cloister_lab.curator import METHODS
from cloister_lab.curator.base import CuratorMethod
from cloister_lab.curator.cover import BallGrid, Cover
from cloister_lab.curator.max_cover import MAX_EPSILON, MaxCover
from cloister_lab.events import CoverEvent

Outputs = Callable[[], Floats]
"""Makes one more run and returns what it put out, as one row of numbers."""

_ALONE = "one record, and nobody else"
_DRAW = 1.5  # epsilon of a draw, at least; far above it what is claimed hides twice as much

_QUANTILES = np.linspace(0.02, 0.98, 25)


@dataclass(frozen=True)
class Happening:
    """An event of one number of the output: how far it is from a place, or on which side."""

    column: int
    place: float
    within: float | None
    above: bool = False

    def holds(self, outputs: Floats) -> np.ndarray:
        """Return for each output whether it is in the event."""
        values = outputs[:, self.column]
        if self.within is not None:
            near: np.ndarray = np.abs(values - self.place) <= self.within
            return ~near if self.above else near
        return values > self.place if self.above else values <= self.place


def audit_method(
    method: type[CuratorMethod],
    budget: Budget,
    *,
    n_features: int = 1,
    n_clusters: int = 2,
    nominal_n: int = 200,
    runs: int = 2000,
    make_noise: MakeNoise | None = None,
) -> Audit:
    """Audit a curator's method by what it puts out.

    One that says of itself that it is not private is held to what its authors claim: epsilon alone.
    Its draws come from a public seed; here each run has its own, as if they were secret.
    """
    source, seeds = (make_noise or system_noise)(), count(1)

    design = partial(
        method.design,
        n_clusters=n_clusters,
        n_features=n_features,
        nominal_n=nominal_n,
        budget=budget,
        frac_bits=16,
    )

    def release(records: Records) -> Floats:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)
            designed = design(public_seed=0 if method.private else next(seeds))
            return designed.release(records, source).ravel()

    event: Event = NonPrivateEvent()
    curve = pure_curve(budget.epsilon)
    if method.private:
        event = design(public_seed=0).events()
        curve = points(event)
    tried = black_box_pairs(n_features, nominal_n)
    # draws of max cover are looked at by themselves
    outside = max(runs // 4, 20) if issubclass(method, MaxCover) else runs
    pilot = max(outside // 10, 20)
    gaps = [
        max(check.seen - check.delta for check in _two_worlds(release, pair, curve, pilot))
        for pair in tried
    ]
    pair = tried[int(np.argmax(gaps))]
    checks = tuple(_two_worlds(release, pair, curve, outside))
    same = _same(release, pair.table) if method.private else ()
    audit = Audit(
        method=method.name,
        budget=budget,
        event=event,
        details=f"{n_features} columns, {n_clusters} clusters, nominal_n {nominal_n}, from outside",
        findings=(two_worlds(checks, pair.name, math.nan), *same),
        checks=checks,
        curve=drawn_curve(event, checks) if method.private else tuple(curve),
        pair=pair.name,
        reach=math.nan,
        epsilon_seen=math.nan,
        false_alarm=ALPHA,
        possible=_possible(event, checks) if method.private else 0.0,
    )
    return _with_picks(audit, method, source, runs) if issubclass(method, MaxCover) else audit


def _possible(event: Event, checks: Iterable[Check]) -> float:
    return attainable(partial(accounting.delta, event), checks)


# Balls that are drawn -----------------------------------------------------------------------------


def _with_picks(audit: Audit, method: type[MaxCover], noise: NoiseSource, runs: int) -> Audit:
    """Return an audit whose two worlds are the draws of releases, held to their own claim."""
    balls: list[Integers] = []

    def picks(self: MaxCover, projected: Integers) -> Integers:
        balls.append(method.picks(self, projected))
        return balls[-1]

    watched = type(method.__name__, (method,), {"picks": picks})
    designed = loud_cover(watched, audit.budget)

    def draw(table: Records) -> Integers:
        balls.clear()
        designed.release(table, noise)
        return balls[0]

    finding, checks = check_picks(designed, draw, 2 * runs)
    event = CoverEvent(designed.pick_epsilon)
    outside = replace(audit.findings[0], check="from outside")
    return replace(
        audit,
        details=f"{audit.details}; balls of releases at epsilon {designed.pick_epsilon:.3g} a draw",
        findings=(finding, outside, *audit.findings[1:]),
        checks=checks,
        curve=drawn_curve(event, checks),
        pair=_ALONE,
        false_alarm=2 * audit.false_alarm,
        possible=_possible(event, checks),
    )


def check_picks(
    method: MaxCover, draw: Callable[[Records], Integers], runs: int
) -> tuple[Finding, tuple[Check, ...]]:
    """Compare balls that are drawn for nobody and for one record with the claim of the draws.

    The method is on one column; `draw` goes from records to the balls of one release.
    """
    grid = schema_of(numbers(1)).grid(method.frac_bits)
    pair = entered(grid, _ALONE, np.zeros((0, 1)), np.zeros(1))
    without, with_it = (
        np.array([pick_score(method, pair, draw(table)) for _ in range(runs)])
        for table in (pair.table, pair.more)
    )
    checks = tuple(compare(points(CoverEvent(method.pick_epsilon)), without, with_it, ALPHA))
    return two_worlds(checks, _ALONE, math.nan), checks


def loud_cover(method: type[MaxCover], budget: Budget) -> MaxCover:
    """Return a method on one column whose draws cost so much that a mistake in them shows."""
    loud = budget
    while True:
        designed = method.design(n_clusters=4, n_features=1, nominal_n=200, budget=loud)
        if designed.pick_epsilon >= _DRAW or 2 * loud.epsilon > MAX_EPSILON:
            return designed
        loud = Budget(2 * loud.epsilon, budget.delta)


def pick_score(method: MaxCover, pair: Pair, balls: Integers) -> float:
    """Return the logarithm of the likelihood ratio of drawn balls, with the record over without.

    A ball has probability in proportion to ``exp(pick_epsilon c / 2)``, where c is the number of
    records in it that no ball drawn before holds.
    """
    half, score, place = method.pick_epsilon / 2, 0.0, 0
    worlds = [method.project(records) for records in (pair.table, pair.more)]
    for grid in method.grids:
        for centre in balls[place : place + method.n_clusters]:
            for number, sign in enumerate((-1, 1)):
                points = worlds[number]
                whole = _whole(grid, half, points.shape[1], points.tobytes())
                inside = grid.holds(points, centre)
                score += sign * (half * int(inside.sum()) - whole)
                worlds[number] = points[~inside]
        place += method.n_clusters
    return score


@lru_cache(maxsize=1024)
def _whole(grid: BallGrid, half: float, n_axes: int, points: bytes) -> float:
    """Return the logarithm of the sum of ``exp(half c)`` over all balls, which hold c points."""
    table = np.frombuffer(points, dtype=np.int64).reshape(-1, n_axes)
    held = Cover(grid, table).histogram()
    return math.log(float(held @ np.exp(half * np.arange(len(held)))))


def _two_worlds(
    release: Callable[[Records], Floats], pair: Pair, curve: list[tuple[float, float]], runs: int
) -> list[Check]:
    without, with_it = (partial(release, table) for table in (pair.table, pair.more))
    return distinguish(without, with_it, curve, runs, ALPHA)


def _same(release: Callable[[Records], Floats], records: Records) -> tuple[Finding, ...]:
    """Compare a few runs on the same records: a private method never repeats itself."""
    rows = [release(records) for _ in range(4)]
    repeated = all(np.array_equal(rows[0], row) for row in rows[1:])
    return (Finding("two runs", repeated, f"four runs gave {'one' if repeated else 'several'}"),)


def pure_curve(epsilon: float) -> list[tuple[float, float]]:
    """Return three points of what epsilon alone claims: at 0, at half of it, and at all."""
    return [
        (part, (math.exp(epsilon) - math.exp(part)) / (1 + math.exp(epsilon)))
        for part in (0.0, epsilon / 2, epsilon)
    ]


def black_box_pairs(n_features: int, n: int) -> tuple[Pair, ...]:
    """Return neighbours for methods that are seen from outside only."""
    grid = schema_of(numbers(n_features)).grid(16)
    ones = np.ones(n_features)
    pile, two = np.zeros((n, n_features)), np.where(np.arange(n)[:, None] % 2, 0.5, -0.5) * ones
    return (
        entered(grid, "a corner beside copies", pile, ones),
        entered(grid, "a copy more", pile, 0 * ones),
        entered(grid, "a corner beside two piles", two, ones),
        entered(grid, "a record between two piles", two, 0 * ones),
        entered(grid, "a second record", 0.1 * ones[None], -ones),
    )


def distinguish(
    without: Outputs,
    with_it: Outputs,
    curve: list[tuple[float, float]],
    runs: int,
    alpha: float,
) -> list[Check]:
    """Look for the best event in half of the runs, and bound its probabilities in the other half.

    Parameters
    ----------
    without, with_it : function
        Put out the numbers of one more run, of fixed shape (n,), on either neighbour.
    alpha : float
        How often all checks together may alarm on a true claim. There is one for each point.
    """
    outputs = [np.array([world() for _ in range(runs)]) for world in (without, with_it)]
    half = runs // 2
    look = [rows[:half] for rows in outputs]
    test = [rows[half:] for rows in outputs]
    known = [
        (event, likely, event.holds(look[likely]).mean(), event.holds(look[1 - likely]).mean())
        for event in _happenings(look)
        for likely in (0, 1)
    ]
    checks = []
    for epsilon, delta in curve:
        # a little is added to rare events, so that one that never happened is not for free
        event, likely, _, _ = max(known, key=lambda k: k[2] - math.exp(epsilon) * (k[3] + 2 / half))
        many, few = (int(event.holds(test[which]).sum()) for which in (likely, 1 - likely))
        each = alpha / (2 * len(curve))
        checks.append(Check(epsilon, delta, many, few, runs - half, each))
    return checks


def _happenings(outputs: list[Floats]) -> Iterator[Happening]:
    """Yield events of single numbers: sides of quantiles, and distances from usual values."""
    both = np.concatenate(outputs)
    for column in range(both.shape[1]):
        for cut in np.unique(np.quantile(both[:, column], _QUANTILES)):
            yield Happening(column, float(cut), None)
            yield Happening(column, float(cut), None, above=True)
        for rows in outputs:
            values, counts = np.unique(rows[:, column], return_counts=True)
            for place in (np.median(rows[:, column]), values[counts.argmax()]):
                far = np.abs(rows[:, column] - place)
                for within in np.unique([0.0, *np.quantile(far, _QUANTILES)]):
                    yield Happening(column, float(place), float(within))
                    yield Happening(column, float(place), float(within), above=True)


def _linked(budget: Budget, **sizes: Any) -> Audit:
    # Shares have libraries of their own, which no other audit needs.
    from cloister_lab.audit.linked import audit_linked

    return audit_linked(budget, **sizes)


def _horizon(budget: Budget, **sizes: Any) -> Audit:
    from cloister_lab.audit.horizon import audit_horizon

    return audit_horizon(budget, **sizes)


AUDITED = (
    *(
        Method(method.name, method.private, partial(audit_method, method))
        for method in METHODS.values()
    ),
    Method("linked", True, _linked),
    Method("horizon", True, _horizon),
)
"""Methods of a curator, sessions of linked tables and horizons, for ``cloister audit``."""
