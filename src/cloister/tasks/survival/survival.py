"""Survival curves, incidence rates and the log-rank test from one noisy table of exits.

References
----------
.. [GW20] Gondara and Wang, "Differentially private survival function estimation", Machine Learning
   for Healthcare 2020: a noisy table of events and of records at risk. Here the table counts exits,
   to which a record adds only once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Ascending, Length, Positive, Range, Whole, declared
from cloister.core.display import Curve, Display, Estimate, Table, around
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
    Block,
    Gaussian,
    NoisyBlock,
    PublicColumn,
    PublicFacts,
)
from cloister.tasks.columns import codes, grid_of, in_cache, position
from cloister.tasks.examples import BOOLEAN, CATEGORY, Example
from cloister.tasks.interval_tables import WITH_POPULATION, number_of
from cloister.tasks.options import build_task, noise_multiplier_for, require_budget
from cloister.tasks.state import decode_state, encode_state
from cloister.tasks.survival import curves

if TYPE_CHECKING:
    from cloister.protocol.plan import Plan

_MOST_WORDS = 1 << 17
_CLEAR_CURVE = 0.25  # largest half-width of a curve in its middle without a warning
_EVERYBODY = "all records"


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """The public state, in records."""

    exits: Floats
    noise: float = 0.0


@declared
class Survival(Gaussian):
    """Survival curves, medians and rates until an event, and a log-rank test of groups.

    Parameters
    ----------
    time, event, by : int, or None for no groups
        Columns.
    groups : tuple of str
    edges : tuple of float, ascending
        Ends of intervals, in the units of the column `time`; the first begins at 0, the last ends
        at the horizon. A record with a longer follow-up is censored there.
    low, high : float
        Bounds of `time`. A record at `high` may have been clipped there, so that its event is not
        counted.

    Notes
    -----
    Under add/remove of one record, the record leaves in one interval, so it adds 1 to one element
    of the table. This holds for every number of intervals and groups. The numbers at risk are
    summed after the release. docs/proofs/survival.md
    """

    name: ClassVar[str] = "survival"
    title: ClassVar[str] = "How long until the event"
    usage: ClassVar[str] = "--time months --event died --by treatment"
    rounds: ClassVar[int] = 1

    example: ClassVar[Example] = Example(
        (PublicColumn("months", 0.0, 60.0), BOOLEAN, CATEGORY),
        {"time": "months", "event": "smokes", "by": "work", "intervals": 4},
    )

    @declared
    class Options:
        time: Annotated[str, "numeric column: follow-up time of a record"]
        event: Annotated[str, "boolean column: true if the event ended the follow-up"]
        by: Annotated[str | None, "column of categories, with a curve for each"] = None
        tau: Annotated[
            Positive | None, "public horizon of all curves; the largest time by default"
        ] = None
        edges: Annotated[
            tuple[float, ...],
            Ascending,
            "public ends of intervals before the horizon, instead of equal intervals",
        ] = ()
        intervals: Annotated[
            Annotated[int, Range(1, 1000)] | None,
            "number of intervals of equal length; by default chosen from the noise",
        ] = None

    n_features: Whole
    time: Annotated[int, Range(0)]
    event: Annotated[int, Range(0)]
    by: Annotated[int, Range(0)] | None = None
    groups: Annotated[tuple[str, ...], Length(1)]
    edges: Annotated[tuple[float, ...], Length(1), Ascending]
    low: Annotated[float, Range(0)]
    high: float
    frac_bits: int = 16

    def __post_init__(self) -> None:
        used = [self.time, self.event, *([] if self.by is None else [self.by])]
        if len(set(used)) < len(used) or max(used) >= self.n_features:
            raise PlanError(
                f"time, event and by must be different columns of {self.n_features}, got {used}."
            )
        steps = np.diff([-(1 << self.frac_bits), *self._walls])
        if not (self.low < self.edges[0] and self.edges[-1] <= self.high and (steps > 0).all()):
            raise PlanError(
                f"edges must rise strictly inside ({self.low:g}, {self.high:g}], by at least one "
                f"grid step, the last at the horizon, got {len(self.edges)} from "
                f"{self.edges[0]:g} to {self.edges[-1]:g}; raise the bounds or use fewer edges."
            )
        if (words := self._size) > _MOST_WORDS:
            raise PlanError(
                f"edges and groups must have at most {_MOST_WORDS} elements, got {words}; use "
                "fewer intervals."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Design the intervals from public numbers."""
        columns = facts.columns
        place, event = curves.followed(columns, options.time, options.event)
        by = None if options.by is None else position(columns, options.by, "by")
        time, groups = columns[place], (_EVERYBODY,) if by is None else columns[by].categories
        if not groups:
            raise PlanError(
                f"by must be a column of categories, got the numeric column {options.by!r}."
            )
        require_budget(facts.budget)
        edges = _edges_of(
            options, time, facts.nominal_n, len(groups), noise_multiplier_for(facts) or 0.0
        )
        return build_task(
            cls,
            facts,
            options,
            time=place,
            event=event,
            by=by,
            groups=groups,
            edges=edges,
            low=time.low,
            high=time.high,
        )

    def describe(self) -> str:
        return (
            f"Silos count the records of {len(self.groups)} groups that leave with the event and "
            f"without it, in each of {len(self.edges)} intervals of time. Curves, medians, rates "
            "and tests are computed from these noisy numbers."
        )

    @property
    def _size(self) -> int:
        """Size of the table: for each group two numbers per interval, and one at the horizon."""
        return len(self.groups) * (2 * len(self.edges) + 1)

    @cached_property
    def _walls(self) -> Integers:
        """Ends of intervals in grid steps; a record on one is in the interval before it."""
        grid = grid_of([PublicColumn("", self.low, self.high)], self.frac_bits)
        return np.asarray(grid.encode(np.array(self.edges)[:, None])[:, 0], dtype=np.int64)

    def start(self) -> State:
        """Return the empty state before the round."""
        return encode_state(_Sums(exits=self._table(np.zeros(self._size))))

    def _table(self, numbers: Floats) -> Floats:
        return curves.table_of(numbers.reshape(len(self.groups), -1))

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return one block, the table of exits, with each record in one cell."""
        return (Block.counting("exits", (self._size,), weight=1.0),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the weighted numbers of exits in each interval, with and without the event."""
        exits = np.zeros(self._size, np.int64)
        for part in in_cache(records):
            exits += np.bincount(self._words_of(part), minlength=len(exits))
        return exits << COUNT_BITS

    def _words_of(self, records: Records) -> Integers:
        """Return the index of each record's element in the table."""
        q, walls = self.frac_bits, self._walls
        steps = records[:, self.time].astype(np.int64)
        event = codes(records[:, self.event], 2, q)
        # A time at the top of the box may have been clipped to it, so its event may be later than
        # the horizon. A censored record at the horizon was followed to the end of all intervals.
        beyond = (steps >= 1 << q) | ((steps == walls[-1]) & (event == 0))
        # Grid integers, so that a record adds to the same element on every machine.
        row = np.where(beyond, len(walls), np.searchsorted(walls, steps, side="left"))
        word = curves.word_of(row, event, len(walls))
        if self.by is not None:
            group = codes(records[:, self.by], len(self.groups), q)
            word += group * (2 * len(walls) + 1)
        return word

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the noisy table in records."""
        exits, noise = released["exits"].in_records()
        return encode_state(_Sums(exits=self._table(exits), noise=noise))

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the 95 % half-width of a number of records, and of a curve at half the horizon."""
        # An exponential curve that is at one half there, in a group of average size: no curve is
        # known before the release.
        noise, edges = noise_std / (1 << COUNT_BITS), self._all_edges
        left = 0.25 ** (edges / edges[-1]) * nominal_n / len(self.groups)
        exits = np.append(-np.diff(left), left[-1])
        curve = curves.kaplan_meier(np.stack([exits, np.zeros_like(exits)], axis=1), noise)
        width = np.interp(edges[-1] / 2, edges, curve.high - curve.low)
        return {
            "exits_half_width": np.array([INTERVAL_95["gaussian"] * noise]),
            "survival_half_width": np.array([width / 2]),
        }

    def plan_warnings(self, plan: Plan, forecast: Results) -> Iterator[str]:
        """Yield a warning if the forecast interval of a curve is wide."""
        width = float(forecast["survival_half_width"][0])
        if plan.budget is not None and width > _CLEAR_CURVE:
            yield (
                f"epsilon {plan.budget.epsilon:g} is too small for {plan.nominal_n:,} records in "
                f"{len(self.groups)} groups: the middle of a curve would have a margin of error of "
                f"± {width:.0%}, and the curve would end early; use fewer groups or intervals, "
                "more records or a larger epsilon."
            )

    @property
    def _all_edges(self) -> Floats:
        return np.array([0.0, *self.edges])

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return curves, medians, rates and the test.

        Returns
        -------
        dict
            ``edges``, K + 1 of them, from 0 to the horizon. ``exits`` of shape (groups, K + 1, 2)
            are the noisy numbers that leave with the event and without it, the last ones beyond
            the horizon. They have ``exits_half_width``. ``at_risk`` has shape (groups, K).
            ``usable`` is the number of each group's intervals before too few are at risk for the
            noise; later values of a curve are held.

            ``survival`` and ``cumulative_hazard`` are at the edges. ``median`` is the time at which
            half had the event, infinite if that is not reached. ``rate`` is the number of events
            per unit of time, and ``rate_ratio`` that of each group over the first. With groups
            there are ``log_rank``, ``log_rank_p`` (both empty if not testable) and
            ``log_rank_intervals``. Curves, medians, rates and ratios have both intervals.
        """
        sums, edges = decode_state(_Sums, state, self.frac_bits), self._all_edges
        risk, std = curves.at_risk(sums.exits, sums.noise)
        usable = curves.usable(risk, std).sum(axis=-1)
        survival = curves.kaplan_meier(sums.exits, sums.noise)
        from_least = np.array([self.low, *self.edges])  # no time is below the minimum of the column
        rates, ratios = curves.rates(sums.exits, from_least, sums.noise)
        results = {
            "edges": edges,
            "exits": sums.exits,
            "exits_half_width": np.array([INTERVAL_95["gaussian"] * sums.noise]),
            "at_risk": risk,
            "usable": usable.astype(np.float64),
            **survival.named("survival"),
            **curves.cumulative_hazard(sums.exits, sums.noise).named("cumulative_hazard"),
            **curves.quantile(edges, survival, usable).named("median"),
            **rates.named("rate"),
            **ratios.named("rate_ratio"),
        }
        if len(self.groups) > 1:
            test = curves.log_rank(sums.exits, sums.noise)
            statistics = [test.statistic, test.p] if test.testable else []
            results["log_rank"], results["log_rank_p"] = (
                np.array(statistics[:1]),
                np.array(statistics[1:]),
            )
            results["log_rank_intervals"] = np.array([float(test.intervals)])
        return results

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return the curves, the groups and the test."""
        time, event = columns[self.time], columns[self.event]
        picture = self._picture(results, f"Share still without the event: {event}", time)
        return (picture, self._group_table(results, time, event), *self._test_table(results))

    def _picture(self, results: Results, title: str, time: str) -> Curve:
        edges = results["edges"]
        # NaN, not the held value: a flat line would look like a group without events.
        hidden = np.arange(len(edges)) > results["usable"][:, None]
        alive = Estimate.of(results, "survival").mapped(lambda end: np.where(hidden, np.nan, end))
        labels = (self.groups, ())
        return Curve(
            title,
            edges,
            replace(alive, axes=("", time), labels=labels, unit="share of the records"),
            "A curve ends where too few are at risk for the noise. The inner band is a 95 % "
            "confidence interval (privacy noise only), the outer one includes sampling.",
        )

    def _group_table(self, results: Results, time: str, event: str) -> Table:
        """Return records, median and rate of each group."""
        # The number of records is a sum of 2 K + 1 independent noisy numbers.
        margin = float(results["exits_half_width"][0]) * sqrt(2 * len(self.edges) + 1)
        rows = [
            (
                name,
                around(results["exits"][g].sum(), margin),
                number_of(results, "median", g),
                number_of(results, "rate", g),
                number_of(results, "rate_ratio", g - 1) if g else "1",
            )
            for g, name in enumerate(self.groups)
        ]
        last = 5 if len(self.groups) > 1 else 4
        headings = (
            "",
            "records",
            f"median {time}",
            f"{event} per unit of {time}",
            "ratio of these",
        )
        note = f"{WITH_POPULATION} A median of ∞ is not reached before the curve ends."
        return Table("Groups", headings[:last], tuple(row[:last] for row in rows), note)

    def _test_table(self, results: Results) -> tuple[Table, ...]:
        if len(self.groups) < 2:
            return ()
        testable = results["log_rank"].size > 0
        value, p = (results[name] for name in ("log_rank", "log_rank_p"))
        rows: tuple[tuple[str, str | float], ...] = (
            ("intervals used", f"{results['log_rank_intervals'][0]:.0f} of {len(self.edges)}"),
            (
                f"chi-square ({len(self.groups) - 1})",
                float(value[0]) if testable else "not testable",
            ),
            ("p-value", float(p[0]) if testable else "not testable"),
        )
        note = "The variance includes the noise, so that noise alone is not significant."
        return (Table("Do the curves differ? Log-rank test", ("", "value"), rows, note),)


def _edges_of(
    options: Survival.Options, time: PublicColumn, nominal_n: int, groups: int, noise: float
) -> tuple[float, ...]:
    """Return the ends of intervals: the given edges and the horizon, or equal parts of it."""
    horizon = options.tau or time.high
    if options.edges:
        if options.intervals is not None:
            raise PlanError("edges and intervals both define the intervals; give one of them.")
        if options.edges[-1] >= horizon:
            raise PlanError(
                f"edges must be below the horizon, {horizon:g}, got {options.edges[-1]:g}; give "
                "the horizon as tau."
            )
        return (*map(float, options.edges), float(horizon))
    n = options.intervals or curves.usual_intervals(nominal_n, groups, noise)
    equal = (np.arange(1, n) * (horizon / n)).tolist()
    # An interval below the minimum of `time` would hold no record.
    return (*(end for end in equal if end > time.low), float(horizon))
