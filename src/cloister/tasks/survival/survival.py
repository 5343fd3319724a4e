"""Survival curves, incidence rates and the log-rank test from one noisy table of exits.

References
----------
.. [GW20] Gondara and Wang, "Differentially private survival function estimation", Machine Learning
   for Healthcare 2020: a noisy table of events and of records at risk. Here the table counts exits,
   to which a record adds only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Ascending, Length, Positive, Range, Whole, declared
from cloister.core.display import Curve, Display, Estimate, PValue, Summary, Table, around
from cloister.core.errors import PlanError
from cloister.core.numerals import NOT_KNOWN, counted
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
    POSITIVE,
    SHARE,
    Block,
    Gaussian,
    NoisyBlock,
    PublicColumn,
    PublicFacts,
    Ranges,
)
from cloister.tasks.columns import codes, in_cache, position
from cloister.tasks.examples import BOOLEAN, CATEGORY, Example
from cloister.tasks.interval_tables import (
    SIGNIFICANT,
    WITH_POPULATION,
    listing,
    number_of,
    precision,
)
from cloister.tasks.options import build_task, require_budget
from cloister.tasks.state import decode_state, encode_state
from cloister.tasks.survival import curves, running
from cloister.tasks.survival.times import Horizon, followed

if TYPE_CHECKING:
    from cloister.protocol.plan import Plan

_CLEAR_CURVE = 0.25  # largest half-width of a curve in its middle without a warning
_EVERYBODY = "all records"
_ENDED, _UNTESTABLE = "the curve ends before this time", "too few records at risk"
_BRIEF = "too little follow-up for the noise"
_MOST_STATED = 20  # times of the table of shares
_FADING, _NOT_CENSORED = 0.65, (0.5, 0.1, 0.02)  # of forecasts: a curve, and shares of the records
_SMALLER, _FOLLOWED = 0.5, 0.5  # of forecasts: size over the average; share that is not censored
_OF_SHARE = "survival_of_a_group_with_{:.0%}_of_all_records_not_censored_half_width"
_DRAWN = 240  # most places of a picture of curves
_PARTS = (0.25, 0.5, 0.75, 1.0)  # of the horizon, where shares are stated by default


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """The public state: the released sums as they are, in records."""

    sums: Floats
    noise: float = 0.0


@declared
class Survival(Gaussian):
    """Survival curves, medians and rates until an event, and a log-rank test of groups.

    Parameters
    ----------
    time, event, by : int, or None for no groups
        Columns.
    groups : tuple of str
    low, high, step : float
        Bounds and step of `time`, see :class:`~cloister.tasks.survival.times.Horizon`. A record at
        `high` may have been clipped there, so that its event is not counted.
    tau : float
        The horizon of all curves; a record with a longer follow-up is censored there.
    at : tuple of float, ascending
        Times at which shares and restricted means are stated.

    Notes
    -----
    Under add/remove of one record, the record leaves in one cell of one group. It adds the same
    public column of integers, of which only the place depends on the record.
    docs/proofs/survival.md
    """

    name: ClassVar[str] = "survival"
    title: ClassVar[str] = "How long until the event"
    usage: ClassVar[str] = "--time months --event died --by treatment"
    forecast_note: ClassVar[str] = (
        "Survival, up to half the horizon: of a group of half the average size, with half of its "
        "records censored before. The other lines count the records of a group that are not "
        "censored before the stated time, in percent of all records; with half as many, errors "
        "double. They also hold for later times."
    )
    rounds: ClassVar[int] = 1
    ranges: ClassVar[Ranges] = {
        **dict.fromkeys(("survival", "stated_survival"), SHARE),
        **dict.fromkeys(("rate", "median", "restricted_mean"), POSITIVE),
    }

    example: ClassVar[Example] = Example(
        (PublicColumn("months", 0.0, 60.0, step=1.0), BOOLEAN, CATEGORY),
        {"time": "months", "event": "smokes", "by": "work"},
    )

    @declared
    class Options:
        time: Annotated[str, "numeric column: follow-up time of a record"]
        event: Annotated[str, "boolean column: true if the event ended the follow-up"]
        by: Annotated[str | None, "column of categories, with a curve for each"] = None
        tau: Annotated[
            Positive | None, "public horizon of all curves; the largest time by default"
        ] = None
        at: Annotated[
            tuple[float, ...],
            Ascending,
            "times at which shares are stated; quarters of the horizon by default",
        ] = ()

    n_features: Whole
    time: Annotated[int, Range(0)]
    event: Annotated[int, Range(0)]
    by: Annotated[int, Range(0)] | None = None
    groups: Annotated[tuple[str, ...], Length(1)]
    low: Annotated[float, Range(0)]
    high: float
    step: Annotated[float, Range(0)] = 0.0
    tau: Positive
    at: Annotated[tuple[float, ...], Length(1, _MOST_STATED), Ascending]
    frac_bits: int = 16

    def __post_init__(self) -> None:
        used = [self.time, self.event, *([] if self.by is None else [self.by])]
        if len(set(used)) < len(used) or max(used) >= self.n_features:
            raise PlanError(
                f"time, event and by must be different columns of {self.n_features}, got {used}."
            )
        if not (self.low < self.at[0] and self.at[-1] <= self.horizon.tau):
            raise PlanError(
                f"at must be times above {self.low:g} and up to the horizon, {self.tau:g}, got "
                f"{', '.join(f'{time:g}' for time in self.at)}."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Design the table from public numbers."""
        columns = facts.columns
        place, event = followed(columns, options.time, options.event)
        by = None if options.by is None else position(columns, options.by, "by")
        time, groups = columns[place], (_EVERYBODY,) if by is None else columns[by].categories
        if not groups:
            raise PlanError(
                f"by must be a column of categories, got the numeric column {options.by!r}."
            )
        require_budget(facts.budget)
        tau = float(options.tau or time.high)
        if time.step and options.at and options.at[-1] == time.high == tau:
            raise PlanError(
                f"at must be times below {time.high:g}, the max of {time.name!r} in the schema, "
                "because the event of a record at the max does not count; raise the max."
            )
        return build_task(
            cls,
            facts,
            options,
            time=place,
            event=event,
            by=by,
            groups=groups,
            low=time.low,
            high=time.high,
            step=time.step,
            tau=tau,
            at=tuple(map(float, options.at)) or _quarters(time, tau),
        )

    def describe(self) -> str:
        return (
            f"Silos count the records of {counted(len(self.groups), 'group')} that leave with the "
            f"event and without it, in each of {len(self.horizon.ends)} cells of time, and sum "
            "these numbers with public weights. Curves, medians, rates and tests are computed "
            "from the noisy sums."
        )

    @cached_property
    def horizon(self) -> Horizon:
        """The public cells of time."""
        return Horizon(
            low=self.low,
            high=self.high,
            tau=self.tau,
            step=self.step,
            most=Horizon.most_for(2 * len(self.groups)),
            frac_bits=self.frac_bits,
        )

    @property
    def _cells(self) -> int:
        """Cells of time, and one for the records beyond."""
        return len(self.horizon.ends) + 1

    def start(self) -> State:
        """Return the empty state before the round."""
        return encode_state(_Sums(sums=np.zeros(self.blocks(0)[0].size)))

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return one block: for each group, sums of those who leave with the event and without."""
        return (running.block_of("exits", 2 * len(self.groups), self._cells, 1.0),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return running sums of the numbers of exits in each cell, with and without the event."""
        groups = len(self.groups)
        exits = np.zeros((groups, 2, self._cells), np.int64)
        for part in in_cache(records):
            group = np.zeros(len(part), np.int64)
            if self.by is not None:
                group = codes(part[:, self.by], groups, self.frac_bits)
            exits += self.horizon.exits(group, groups, part[:, self.time], part[:, self.event])
        return running.encoded(exits).ravel()

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the noisy sums; 16 bits of the grid hold them exactly."""
        sums, noise = released["exits"].in_records()
        return encode_state(_Sums(sums=sums, noise=noise))

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the 95 % half-width of a number of records, and of curves at half the horizon.

        The first curve is that of a group of half the average size, with half of its records
        censored before. Most widths of most tables are below this upper value. The other curves are
        for groups that have 50 %, 10 % and 2 % of all records without those censored before. A
        width hardly depends on the curve itself. It is infinite if a curve would have ended, and
        one half for the first curve.
        """
        noise = noise_std / (1 << COUNT_BITS)
        risk_noise = self._curve(1.0, 1.0, noise).risk_noise[0]

        def width(share: float) -> float:
            return self._half_width(_FADING, share * nominal_n * _FADING, noise)

        groups = len(self.groups)
        usual = width(_FOLLOWED / groups * (_SMALLER if groups > 1 else 1.0))
        return {
            "records_half_width": np.array([INTERVAL_95["gaussian"] * risk_noise]),
            "survival_half_width": np.array([min(usual, 0.5)]),
            **{_OF_SHARE.format(share): np.array([width(share)]) for share in _NOT_CENSORED},
        }

    def _curve(self, alive: float, followed: float, noise: float) -> curves.Curve:
        """Return an exponential curve without censoring, by its value at half the horizon."""
        edges = np.append(self.low, self.horizon.ends)
        share = (edges - self.low) / (self.tau - self.low)
        left = alive ** (2 * share - 1) * followed
        events = np.append(-np.diff(left), 0.0)
        beyond = np.append(np.zeros(len(left) - 1), left[-1])
        return curves.Curve(np.stack([events, beyond]), noise)

    def _half_width(self, alive: float, followed: float, noise: float) -> float:
        """Return the half-width at half the horizon, where `followed` records are left."""
        found = self._curve(alive, followed, noise).survival()
        width = np.interp((self.low + self.tau) / 2, self.horizon.ends, found.high - found.low)
        return float(width) / 2 if np.isfinite(width) else np.inf

    def plan_warnings(self, plan: Plan, forecast: Results) -> Iterator[str]:
        """Yield a warning if the forecast interval of a curve is wide."""
        width = float(forecast["survival_half_width"][0])
        if plan.budget is not None and width > _CLEAR_CURVE:
            yield (
                f"epsilon {plan.budget.epsilon:g} is too small for {plan.nominal_n:,} records in "
                f"{counted(len(self.groups), 'group')}: at half the horizon, a curve would have a "
                f"margin of error of ± {width:.0%} in a small group of which half is censored "
                "before, or end early; use fewer groups, more records or a larger epsilon."
            )

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return curves, medians, rates and the test.

        Returns
        -------
        dict
            ``times``, the ends of the cells, of shape (cells,), data units. ``survival`` of shape
            (groups, cells), the share without the event at these times. It is not a number where
            too few are at risk for the noise: the curve of each group has ``usable`` times.
            ``records`` of each group, with ``records_half_width``.

            ``at``, the stated times. ``stated_survival``, ``stated_at_risk``, the number of records
            followed beyond each of these times, and ``restricted_mean``, the mean time without the
            event up to it, of shape (groups, times). ``median``
            is the first time after which half had the event, infinite if that is not reached.
            ``rate`` is the number of events per unit of time, and ``rate_ratio`` that of each group
            over the first; they are not a number over too little follow-up for the noise. With
            groups there are ``log_rank``, ``log_rank_p`` (both NaN if not
            testable) and ``log_rank_until``, the last time of the test. Curves, means, medians,
            rates and ratios have both intervals.
        """
        public, cells = decode_state(_Sums, state, self.frac_bits), self._cells
        exits = running.decoded(public.sums.reshape(-1, 2, cells))
        found = [curves.Curve(own, public.noise) for own in exits]
        survival = _stacked([curve.survival() for curve in found])
        at = np.searchsorted(self.horizon.ends, self.at, side="right") - 1
        means = [
            _stacked([curve.restricted_mean(self.horizon, time) for time in self.at])
            for curve in found
        ]
        rates, ratios = curves.rates(exits, public.noise, self.horizon.middles)
        half_width = INTERVAL_95["gaussian"] * found[0].risk_noise[0]
        results = {
            "times": self.horizon.ends,
            "usable": np.array([float(curve.usable) for curve in found]),
            "records": np.array([float(curve.at_risk[0]) for curve in found]),
            "records_half_width": np.array([half_width]),
            "at": np.array(self.at),
            **survival.named("survival"),
            "stated_at_risk": np.stack([curve.at_risk[at + 1] for curve in found]),
            **_at(survival, at).named("stated_survival"),
            **_stacked(means).named("restricted_mean"),
            **_stacked([curve.quantile(self.horizon) for curve in found]).named("median"),
            **rates.named("rate"),
            **ratios.named("rate_ratio"),
        }
        if len(self.groups) > 1:
            test = curves.log_rank(exits, public.noise)
            results["log_rank"] = np.array([test.statistic])
            results["log_rank_p"] = np.array([test.p])
            until = self.horizon.ends[test.until - 1] if test.until else self.low
            results["log_rank_until"] = np.array([until])
        return results

    def reasons(self, results: Results) -> dict[str, str]:
        """Return why shares, means, rates and the test are not known."""
        return {
            **dict.fromkeys(("survival", "stated_survival", "restricted_mean"), _ENDED),
            **dict.fromkeys(("rate", "rate_ratio"), _BRIEF),
            **dict.fromkeys(("log_rank", "log_rank_p"), _UNTESTABLE),
        }

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise shares at one time, medians, and the test."""
        time, event, middle = columns[self.time], columns[self.event], (len(self.at) - 1) // 2
        shares, medians = (Estimate.of(results, name) for name in ("stated_survival", "median"))
        # Beyond the follow-up of a group nothing is known.
        known = np.isfinite(shares.values[:, : middle + 1]).all(axis=0)
        i = int(np.flatnonzero(known)[-1]) if known.any() else middle
        names = [f"{name} " if len(self.groups) > 1 else "" for name in self._named(columns)]
        parts = listing([name, _or_unknown(shares[g, i])] for g, name in enumerate(names))
        halves = listing([name, medians[g]] for g, name in enumerate(names))
        first = f"Share without {event} after {self.at[i]:g} {time}: "
        result = (first, *parts, f". Median {time}: ", *halves, ".")
        if len(self.groups) < 2:
            return Summary(result=result, reliability=precision([shares]))
        p = _number(results["log_rank_p"])
        if np.isnan(p):
            return Summary(
                result=result, reliability=f"The log-rank test is not known: {_UNTESTABLE}."
            )
        found = "differ" if p < SIGNIFICANT else "are not shown to differ"
        return Summary(
            result=result,
            reliability=f"The curves {found}: log-rank p {PValue(p).text}, noise included.",
        )

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return the groups, shares at stated times, the curves and the test."""
        return (
            self._group_table(results, columns),
            self._stated_table(results, columns),
            self._picture(results, columns),
            *self._test_table(results, columns[self.time]),
        )

    def _named(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the groups with their column, since a category may be just 0 or 1."""
        if self.by is None:
            return self.groups
        return tuple(f"{columns[self.by]}={name}" for name in self.groups)

    def _picture(self, results: Results, columns: tuple[str, ...]) -> Curve:
        times = results["times"]
        shown = np.unique(np.linspace(0, len(times) - 1, _DRAWN).round().astype(int))
        alive = _at(Estimate.of(results, "survival"), shown)
        if times[0] > self.low:  # everybody is without the event at the start
            alive, places = alive.mapped(_from_one), np.append(self.low, times[shown])
        else:
            places = times[shown]
        return Curve(
            f"Share still without the event: {columns[self.event]}",
            places,
            replace(
                alive,
                axes=("", columns[self.time]),
                labels=(self._named(columns), ()),
                unit="share of the records",
            ),
            "A curve ends where too few are at risk for the noise. The inner band is a 95 % "
            "confidence interval (privacy noise only), the outer one includes sampling.",
            steps=True,
        )

    def _group_table(self, results: Results, columns: tuple[str, ...]) -> Table:
        """Return records, median and rate of each group."""
        time, event = columns[self.time], columns[self.event]
        margin = float(results["records_half_width"][0])
        rows = [
            (
                name,
                around(results["records"][g], margin, normal=True),
                number_of(results, "median", g),
                _or_unknown(number_of(results, "rate", g)),
                _or_unknown(number_of(results, "rate_ratio", g - 1)) if g else "1",
            )
            for g, name in enumerate(self._named(columns))
        ]
        last = 5 if len(self.groups) > 1 else 4
        headings = (
            "",
            "records",
            f"median {time}",
            f"{event} per unit of {time}",
            "ratio of these",
        )
        at_max = (
            f" The event of a record at {self.high:g} {time}, the max of the schema, does not "
            "count: the record is followed beyond it."
        )
        note = (
            f"{WITH_POPULATION} A median of ∞ is not reached before the curve ends. {NOT_KNOWN}: "
            f"{_BRIEF}.{at_max if self.tau == self.high else ''}"
        )
        return Table("Groups", headings[:last], tuple(row[:last] for row in rows), note)

    def _stated_table(self, results: Results, columns: tuple[str, ...]) -> Table:
        """Return the share without the event, and the restricted mean, at stated times."""
        time, event = columns[self.time], columns[self.event]
        shares, means = (
            Estimate.of(results, name) for name in ("stated_survival", "restricted_mean")
        )
        margin = float(results["records_half_width"][0])
        rows = tuple(
            (
                *([name] if len(self.groups) > 1 else []),
                float(at),
                around(float(results["stated_at_risk"][g, i]), margin, normal=True),
                _or_unknown(shares[g, i]),
                _or_unknown(means[g, i]),
            )
            for g, name in enumerate(self._named(columns))
            for i, at in enumerate(self.at)
        )
        # A record at the max of the schema may have been cut to it.
        at_max = f", or to {self.high:g}" if self.at[-1] == self.high else ""
        headings = (
            "group",
            time,
            f"followed beyond{at_max}",
            f"share without {event}",
            f"mean {time} without it until then",
        )
        note = f"{WITH_POPULATION} {NOT_KNOWN}: {_ENDED}."
        first = len(self.groups) == 1
        return Table("Shares at stated times", headings[first:], rows, note)

    def _test_table(self, results: Results, time: str) -> tuple[Table, ...]:
        if len(self.groups) < 2:
            return ()
        value, p = (_number(results[name]) for name in ("log_rank", "log_rank_p"))
        rows: tuple[tuple[str, str | float], ...] = (
            (f"until {time}", float(results["log_rank_until"][0])),
            (f"chi-square ({len(self.groups) - 1})", value),
            ("p-value", PValue(p)),
        )
        note = "The variance includes the noise, so that noise alone is not significant."
        return (Table("Do the curves differ? Log-rank test", ("", "value"), rows, note),)


def _number(result: Floats) -> float:
    """Return a single number; NaN for the empty result of models saved by old versions."""
    return float(np.append(result, np.nan)[0])


def _or_unknown(cell: Estimate) -> Estimate | str:
    return NOT_KNOWN if np.isnan(cell.value) else cell


def _stacked(parts: Sequence[Estimate]) -> Estimate:
    """Return estimates of one shape as one estimate with a first axis for them."""

    def joined(arrays: Iterable[Floats]) -> Floats:
        return np.stack(list(map(np.asarray, arrays)))

    values, low, high = (joined(getattr(p, name) for p in parts) for name in _ARRAYS)
    wide = [joined(p.population[end] for p in parts if p.population) for end in (0, 1)]
    return Estimate(values, low, high, population=(wide[0], wide[1]))


_ARRAYS = ("values", "low", "high")


def _at(survival: Estimate, cells: Integers) -> Estimate:
    """Return shares at the ends of some cells; 1 for a cell of -1, before the first end."""
    alive = survival.mapped(_from_one)
    return alive[:, np.asarray(cells) + 1]


def _from_one(shares: Floats) -> Floats:
    return np.concatenate([np.ones_like(shares[..., :1]), shares], axis=-1)


def _quarters(time: PublicColumn, tau: float) -> tuple[float, ...]:
    """Return the quarters of the horizon; of a time with a step, those of its known ticks."""
    step = time.step
    # A record at the upper bound may be followed for longer, so its share is not known.
    last = min(tau, time.high - step)
    if not step or last < time.low + step:
        return tuple(time.low + part * (tau - time.low) for part in _PARTS)
    places = (round((time.low + part * (last - time.low)) / step, 9) for part in _PARTS)
    # Digits, not decimals: a step may be of any size.
    return tuple(sorted({min(float(f"{ceil(place) * step:.12g}"), last) for place in places}))
