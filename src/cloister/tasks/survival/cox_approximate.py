"""Approximate Cox regression of many covariates: hazard ratios and a test, from two noisy sums.

The first sum is the table of exits of :mod:`cloister.tasks.survival.interval_exits`, which gives a
common cumulative hazard. A record's martingale residual is its event minus that hazard at its time.
The second sum holds residuals times covariates, and hazards times products of covariates. These are
the score of the partial likelihood as a series in the coefficients, see
:mod:`cloister.tasks.survival.score`.

It is approximate: within few intervals of time the hazard is constant, and the series holds for
moderate effects. Use :class:`~cloister.tasks.survival.cox.Cox` for up to three covariates.

References
----------
.. [C72] Cox, "Regression models and life-tables", JRSS B 34, 1972.
.. [TGF90] Therneau, Grambsch and Fleming, "Martingale-based residuals for survival models",
   Biometrika 77, 1990.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import isqrt, sqrt
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Length, Positive, Range, Whole, declared
from cloister.core.display import Bars, Cell, Display, Estimate, PValue, Summary, Table, around
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
from cloister.tasks import significance
from cloister.tasks.columns import codes, in_cache, position
from cloister.tasks.examples import BOOLEAN, CATEGORY, Example
from cloister.tasks.interval_tables import SAID, WITH_POPULATION, listing, number_of
from cloister.tasks.options import build_task, noise_multiplier_for, require_budget
from cloister.tasks.population import sampled
from cloister.tasks.state import decode_state, encode_state
from cloister.tasks.survival import interval_exits
from cloister.tasks.survival.score import Series
from cloister.tasks.survival.times import coefficients_of, followed

ATTENUATED = "attenuated, interval not valid"
_NOTE = "Values and intervals are approximate: hazards are constant in few intervals of time."
_MOST_COEFFICIENTS = 10
_EXITS = 0.15  # share of the budget
_TOP, _LEAST_TOP = 1.5, 0.05  # largest cumulative hazard; least value of its maximum in `_scales`
_SPREAD = 1 / 6  # expected variance of a covariate in [-1, 1]
_SERIES, _HOPELESS = 0.04, 0.5  # expected noise of a coefficient: up to it order 4; above, an error
_CURVED, _LONG, _SKEW = 0.06, 0.2, 0.5  # shares of coefficients in `_left`, from benchmarks/cox.py
_OF_SAMPLING = 0.05  # error of the common hazard, in deviations of sampling
_WEAK, _FAR = 0.3, 0.8  # coefficients above which one step is marked, and every coefficient
_CLOSE = 1.0  # variance of the logarithm of the hazard above which every coefficient is marked
_WORTH = 0.8  # weight of a hazard in the vector, relative to an event
_LARGEST_EXPONENT = 700.0  # exp() of more overflows
_PART = 1024  # records at a time


@dataclass(frozen=True, kw_only=True)
class _FitState:
    """The public state, in records."""

    exits: Floats
    hazard: Floats  # at the ends of intervals
    last: int = 0  # number of intervals in which enough are at risk
    moments: Floats  # sums with the weight of hazards still applied
    noise: float = 0.0  # of each moment


@declared
class CoxApproximate(Gaussian):
    """Approximate Cox regression: factors by which many covariates multiply the hazard of an event.

    Parameters
    ----------
    time, event, covariates : int, int, tuple of int
        Columns; the times have the box ``[time_low, time_high]``, data units.
    levels : tuple of int
        Number of categories of each covariate, 0 for numbers. Each category but the first has a
        coefficient relative to the first.
    names, units : tuple with an entry for each coefficient
        `units` is half of a column's range, or 1 for a category.
    tau : float
        Horizon; records with a longer follow-up are censored there.
    intervals : int
        Number of intervals of equal length in which exits are counted.
    nominal_events : int
        Public contract value for the number of events.
    order : 2 or 4
        Order of products of covariates. If the noise is too large for 4, the estimate is one Newton
        step: a coefficient above 0.3 is then attenuated, and marked.

    Notes
    -----
    Under add/remove of one record, it adds 1 to one element of the exits. Then it adds a vector
    whose integer norm is checked. docs/proofs/cox.md
    """

    name: ClassVar[str] = "cox-approximate"
    title: ClassVar[str] = "Approximate hazard ratios"
    has_effects: ClassVar[bool] = True
    usage: ClassVar[str] = "--time months --event died --nominal-events 400"
    rounds: ClassVar[int] = 2

    example: ClassVar[Example] = Example(
        (PublicColumn("months", 0.0, 60.0), BOOLEAN, CATEGORY),
        {"time": "months", "event": "smokes", "nominal_events": 50_000},
    )

    @declared
    class Options:
        time: Annotated[str, "numeric column: follow-up time of a record"]
        event: Annotated[str, "boolean column: true if the event ended the follow-up"]
        nominal_events: Annotated[Whole, "public expected number of events"]
        covariates: Annotated[tuple[str, ...], "columns; all others by default"] = ()
        tau: Annotated[
            Positive | None, "public horizon, where all are censored; the largest time by default"
        ] = None

    n_features: Whole
    time: Annotated[int, Range(0)]
    event: Annotated[int, Range(0)]
    covariates: Annotated[tuple[Annotated[int, Range(0)], ...], Length(1)]
    levels: tuple[Annotated[int, Range(0)], ...]
    names: tuple[str, ...]
    units: tuple[Positive, ...]
    time_low: Annotated[float, Range(0)]
    time_high: float
    tau: Positive
    intervals: Annotated[int, Range(1, 1000)]
    nominal_events: Whole
    order: Annotated[int, Range(2, 4)] = 2
    frac_bits: int = 16

    def __post_init__(self) -> None:
        used, p = [self.time, self.event, *self.covariates], len(self.names)
        if len(set(used)) < len(used) or max(used) >= self.n_features:
            raise PlanError(
                f"time, event and covariates must be different columns of {self.n_features}, got "
                f"{used}."
            )
        if not self.time_low < self.tau <= self.time_high:
            raise PlanError(
                f"tau must be in ({self.time_low:g}, {self.time_high:g}], got {self.tau:g}."
            )
        if p > _MOST_COEFFICIENTS or 1 in self.levels:
            raise PlanError(
                f"covariates must have at most {_MOST_COEFFICIENTS} coefficients, got {p} (L - 1 "
                "for L categories, at least 1); name fewer, or join rare categories."
            )
        if not sum(max(n - 1, 1) for n in self.levels) == p == len(self.units):
            raise PlanError(
                "levels, names and units must have an entry for each coefficient of the covariates."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Design intervals and order from public numbers; raise PlanError if noise is too large."""
        columns = facts.columns
        time, event = followed(columns, options.time, options.event)
        require_budget(facts.budget)
        noise = noise_multiplier_for(facts) or 0.0
        rest = [c.name for c in columns if c.name not in (options.time, options.event)]
        at = [position(columns, name, "covariates") for name in options.covariates or rest]
        used = [columns[j] for j in at]
        names, units = coefficients_of(used)
        task = build_task(
            cls,
            facts,
            options,
            time=time,
            event=event,
            covariates=tuple(at),
            levels=tuple(c.levels for c in used),
            names=names,
            units=units,
            time_low=columns[time].low,
            time_high=columns[time].high,
            tau=options.tau or columns[time].high,
            intervals=interval_exits.usual_intervals(
                facts.nominal_n, max(noise / sqrt(_EXITS), 1.0)
            ),
            order=4,
        )
        spent = noise / sqrt(1 - _EXITS)
        if task._expected_noise(spent) <= _SERIES:
            return task
        task = replace(task, order=2)
        if (error := task._expected_noise(spent)) > _HOPELESS:
            raise PlanError(
                f"nominal_events must be at least {task.nominal_events * error / _HOPELESS:.0f}, "
                f"got {task.nominal_events}: the noise in a coefficient would be about {error:.2f} "
                "for half the range of its column; raise epsilon, or name fewer covariates."
            )
        return task

    def describe(self) -> str:
        return (
            f"Silos count records that leave with and without the event in each of "
            f"{self.intervals} intervals of time. Then, for {len(self.names)} coefficients, they "
            "sum covariates times residuals of events, and products of covariates times "
            "cumulative hazards. Approximate hazard ratios are computed from these noisy numbers."
        )

    @cached_property
    def _series(self) -> Series:
        return Series(len(self.names), self.order)

    # Contributions --------------------------------------------------------------------------------

    @cached_property
    def _balls(self) -> tuple[tuple[float, float], ...]:
        """Middle and radius of the smallest ball around the possible values of each column.

        Indicators of all categories but the first are corners of a simplex, and 0 is one of them.
        """
        small = {0: (0.0, 1.0), 2: (0.5, 0.5)}
        return tuple(small.get(n) or (1 / (n - 1), sqrt(1 - 1 / (n - 1))) for n in self.levels)

    @cached_property
    def _length(self) -> float:
        """Largest length of a record's covariates, by which they are divided."""
        return sqrt(sum(radius**2 for _, radius in self._balls))

    def covariates_of(self, records: Records) -> Floats:
        """Return covariates around the middle of their possible values; shape (p, n_samples)."""
        rows: list[Floats] = []
        for j, n, (middle, _) in zip(self.covariates, self.levels, self._balls, strict=True):
            found = codes(records[:, j], n or 1, self.frac_bits)
            rows += [np.asarray((found == level) - middle) for level in range(1, n)]
            rows += [records[:, j] / (1 << self.frac_bits)] * (n == 0)
        return np.array(rows)

    def _exits(self, records: Records) -> tuple[Integers, Integers, Floats]:
        """Return event (0 or 1), row of the table, and time in intervals of each record."""
        one, steps = 1 << self.frac_bits, records[:, self.time].astype(np.int64)
        at = self.time_low + (steps + one) * ((self.time_high - self.time_low) / (2 * one))
        time = np.clip(at * (self.intervals / self.tau), 0, self.intervals + 1)
        row = np.maximum(np.ceil(time).astype(np.int64) - 1, 0)
        # A record at the horizon was followed to it; one at the top of the box may have been
        # clipped.
        row[(time >= self.intervals) | (steps >= one)] = self.intervals
        return codes(records[:, self.event], 2, self.frac_bits), row, time

    def start(self) -> State:
        """Return the empty state before the first round."""
        numbers, moments = (np.zeros(self.blocks(t)[0].size) for t in (0, 1))
        empty = interval_exits.table_of(numbers)
        return encode_state(_FitState(exits=empty, hazard=empty[:, 0], moments=moments))

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the block of exits, with each record in one cell; then of vectors of norm 1."""
        if t == 0:
            return (Block.counting("exits", (2 * self.intervals + 1,), _EXITS),)
        size, squared = 1 + len(self.names) + len(self._series.exponents), 1 << 2 * COUNT_BITS
        # The L1 norm by Cauchy and Schwarz: only the L2 norm is checked in integers.
        return (Block("moments", (size,), isqrt(size * squared), squared, 1 - _EXITS),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return exits; then residuals times covariates, and hazards times their products."""
        total = np.zeros(self.blocks(t)[0].size, dtype=np.int64)
        known = self._read(state)
        for part in in_cache(records, _PART):
            event, row, time = self._exits(part)
            if t == 0:
                words = interval_exits.word_of(row, event, self.intervals)
                total += np.bincount(words, minlength=len(total)) << COUNT_BITS
                continue
            before = np.minimum(time.astype(np.int64), self.intervals - 1)
            step = known.hazard[before + 1] - known.hazard[before]
            hazard = known.hazard[before] + step * np.minimum(time - before, 1.0)
            residual = event * (row < known.last) - hazard
            total += self._moments(known, self.covariates_of(part), residual, hazard)
        return total

    def _moments(self, known: _FitState, x: Floats, residual: Floats, hazard: Floats) -> Integers:
        """Return the sum of the vectors of a few records.

        A vector whose norm is above one after truncation, or not a number, becomes 0.
        """
        products = self._series.products(x / self._length)
        unit, worth = self._scales(float(known.hazard.max()))
        vectors = np.concatenate([residual * products[: 1 + len(x)], (worth * hazard) * products])
        vectors = np.trunc(vectors * ((1 << COUNT_BITS) / unit))  # toward zero: no norm grows
        norms = np.zeros_like(hazard)
        # Element by element, so that a vector does not depend on the other records. Squares are
        # exact below 2**53 and above the bound otherwise.
        for words in vectors:
            norms += words * words
        vectors[:, ~(norms <= 1 << 2 * COUNT_BITS)] = 0.0
        return np.asarray(vectors.sum(axis=1).astype(np.int64))

    def _scales(self, top: float) -> tuple[float, float]:
        """Return the largest length of a record's vector, and the weight of a hazard of 1 in it.

        `top` is the largest hazard. A residual is in ``[-top, 1]``; with covariates of length at
        most 1 its squared length is at most ``2 max(1, top)**2``. Products of k covariates have at
        most ``(worth * top)**2``.
        """
        top = max(top, _LEAST_TOP)
        worth = _WORTH / min(top, 1.0)
        squared = 2 * max(1.0, top) ** 2 + (self.order + 1) * (worth * top) ** 2
        return sqrt(squared), worth

    def _read(self, state: GridState) -> _FitState:
        # Clipped on every read, so that the norm holds for every state, also a dishonest one.
        known = decode_state(_FitState, state, self.frac_bits)
        return replace(known, hazard=np.clip(known.hazard, 0.0, _TOP))

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the hazard of intervals with enough records at risk; then the sums, in records."""
        known = self._read(state)
        if t == 0:
            numbers, noise = released["exits"].in_records()
            exits = interval_exits.table_of(numbers)
            steps = -np.log1p(-interval_exits.hazards(exits, noise)[0])
            hazard = np.maximum.accumulate(np.append(0.0, np.cumsum(steps)))
            usable = interval_exits.usable(*interval_exits.at_risk(exits, noise))
            # beyond, all are censored: the hazard stays as it is, and no event counts
            last = int(np.count_nonzero(usable & (hazard[1:] <= _TOP)))
            hazard = np.minimum(hazard, hazard[last])
            return encode_state(replace(known, exits=exits, hazard=hazard, last=last))
        unit, _ = self._scales(float(known.hazard.max()))
        words, noise = released["moments"].in_records()
        return encode_state(replace(known, moments=words * unit, noise=noise * unit))

    # The estimate ---------------------------------------------------------------------------------

    def _expected_noise(self, noise: float) -> float:
        """Return the noise of a coefficient, for half of a column's range, in typical data."""
        unit, _ = self._scales(1.0)
        return noise * unit * self._length / (self.nominal_events * _SPREAD)

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the expected 95 % half-width of a coefficient, for half of a column's range."""
        error = self._expected_noise(noise_std / (1 << COUNT_BITS))
        return {"coefficient_half_width": np.array([INTERVAL_95["gaussian"] * error])}

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return coefficients and hazard ratios with their 95 % intervals.

        Returns
        -------
        dict
            Of shape (p,): ``coef``, the logarithm of ``hazard_ratio``, for one data unit or
            relative to the first category. Each has the ends of both intervals. ``attenuated`` is
            1 where an effect is too strong for its interval. Of shape (1,): ``score`` and
            ``score_p``, the test that all are 0, and ``horizon``, beyond which too few are at risk.
            Records with a longer follow-up are censored there. ``exits`` of shape
            (intervals + 1, 2) are noisy numbers with and without the event, the last one at the
            horizon.

        Notes
        -----
        The noise interval is for the maximum of the partial likelihood of all records [C72]_,
        censored at the horizon. It includes the error of the truncated series.
        """
        from scipy.special import chdtrc

        known, units = self._read(state), np.array(self.units)
        _, worth = self._scales(float(known.hazard.max()))
        residuals, sums = np.split(known.moments, [1 + len(self.names)])
        found = self._series.solve(
            residuals, sums / worth, known.noise, known.noise / worth, _drift(known)
        )
        value = found.coef / self._length
        noise, sampling = found.ends / self._length, np.diag(found.sampling) / self._length**2
        sizes = np.maximum(np.array(self.levels) - 1, 1)
        reach = np.abs(value) * np.repeat([radius for _, radius in self._balls], sizes)
        # At the ends of a column the series of a large coefficient is wrong, which affects all
        # coefficients.
        far = found.length > _CLOSE or float(reach.max()) > _FAR
        strong = (reach > (_WEAK if self.order == 2 else _FAR)) | far
        more = self._left(value, reach, found.length) + _OF_SAMPLING * np.sqrt(sampling)
        below, above = INTERVAL_95["gaussian"] * noise + more
        each = sampled(Estimate(value, value - below, value + above), sampling)
        return {
            **each.mapped(lambda part: part / units).named("coef"),
            **each.mapped(lambda part: _exp(part / units)).named("hazard_ratio"),
            "attenuated": strong.astype(np.float64),
            "score": np.array([found.statistic]),
            "score_p": np.array([float(chdtrc(len(value), found.statistic))]),
            "horizon": np.array([known.last * self.tau / self.intervals]),
            "exits": known.exits,
        }

    def _left(self, value: Floats, reach: Floats, length: float) -> Floats:
        """Return the possible error of the estimate without noise, as benchmarks/cox.py shows.

        The remainder of a series grows with the variance of the hazard's logarithm. One step also
        omits the curvature of the score: half of a skewness of at most 1 for each squared
        coefficient.
        """
        short = self.order == 2
        of_all = (_LONG if short else _CURVED) * min(length, _CLOSE)
        return np.abs(value) * (of_all + _SKEW * reach * short)

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the approximate hazard ratios that differ from 1, with sampling."""
        valid = results["attenuated"] == 0
        shown = significance.clear(list(Estimate.of(results, "coef").cells()))
        places = [i for i in shown.tolist() if valid[i]]
        parts = listing(
            (f"{self.names[i]} ", number_of(results, "hazard_ratio", i)) for i in places[:SAID]
        )
        result: tuple[Cell, ...] = ("No approximate hazard ratio is shown to differ from 1.",)
        if places:
            result = ("Approximate hazard ratios: ", *parts, ".")
        return Summary(
            result=result,
            reliability=significance.how_sure(
                len(places), len(valid), "approximate hazard ratios differ from 1"
            )
            + f" Intervals of {len(valid) - int(valid.sum())} are not valid.",
        )

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return hazard ratios, a picture of coefficients, and the test."""
        marks = np.where(results["attenuated"] > 0, ATTENUATED, "")
        value, low, high = (results[f"coef{end}"] * self.units for end in ("", "_low", "_high"))
        test = (float(len(self.names)), float(results["score"][0]), PValue(results["score_p"][0]))
        return (
            Table(
                f"Approximate hazard ratios of {columns[self.event]}",
                ("covariate", "one unit, or against the first category", ""),
                tuple(
                    (name, number_of(results, "hazard_ratio", i), str(mark))
                    for i, (name, mark) in enumerate(zip(self.names, marks, strict=True))
                ),
                f"{_NOTE} {WITH_POPULATION} Above 1: the event comes sooner.",
            ),
            Bars(
                "Logarithm of approximate hazard ratios",
                around(value, (high - low) / 2, labels=(self.names,)),
                "For half of a range, or a category. Whiskers: 95 % (privacy noise only).",
            ),
            Table(
                "Does any covariate matter?",
                ("score test", "degrees of freedom", "chi-square", "p"),
                (("all hazard ratios are 1", *test),),
                "The test includes the noise. If all hazard ratios are 1, none is attenuated.",
            ),
        )


def _drift(known: _FitState) -> float:
    """Return the variance of the cumulative hazard among events."""
    steps = np.diff(known.hazard)
    events = np.maximum(interval_exits.at_risk(known.exits, 0.0)[0], 0.0) * steps
    events /= max(float(events.sum()), 1.0)
    middle = known.hazard[1:] - steps / 2
    return float(events @ middle**2 - (events @ middle) ** 2)


def _exp(logarithm: Floats) -> Floats:
    return np.asarray(np.exp(np.clip(logarithm, -_LARGEST_EXPONENT, _LARGEST_EXPONENT)))
