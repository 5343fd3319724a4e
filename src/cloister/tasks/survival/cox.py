"""Cox regression: hazard ratios of up to three covariates, from one noisy sum.

Records are counted by their exit time in public cells of covariates and strata. Efron's partial
likelihood of the noisy table is solved as post-processing, see :mod:`cloister.tasks.survival.efron`
and, for the cells, :mod:`cloister.tasks.survival.covariate_cells`.

References
----------
.. [C72] Cox, "Regression models and life-tables", JRSS B 34, 1972.
.. [E77] Efron, "The efficiency of Cox's likelihood function for censored data", JASA 72, 1977.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import ceil, floor, hypot, log, log10, prod, sqrt
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

import numpy as np

from cloister.core.arrays import Flags, Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Length, Positive, Range, Whole, declared
from cloister.core.display import Cell, Display, Estimate, PValue, Summary
from cloister.core.display import Table as Rows
from cloister.core.errors import PlanError
from cloister.core.randomness import public_generator
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
from cloister.tasks.columns import SITE, check_site, codes, in_cache, position, step_text
from cloister.tasks.examples import BOOLEAN, CATEGORY, Example
from cloister.tasks.interval_tables import SAID, WITH_POPULATION, bars_of, listing
from cloister.tasks.options import Dates, build_task, noise_multiplier_for, require_budget
from cloister.tasks.population import sampled
from cloister.tasks.state import decode_state, encode_state
from cloister.tasks.survival import running
from cloister.tasks.survival.covariate_cells import (
    LEAST_KNOTS,
    MOST_CELLS,
    SPLIT_BITS,
    CovariateCells,
)
from cloister.tasks.survival.efron import Fit
from cloister.tasks.survival.times import Horizon, coefficients_of, followed
from cloister.tasks.survival.usable_cells import FEW, NOISY, REASONS, UsableCells

if TYPE_CHECKING:
    from cloister.protocol.plan import Plan

_MOST_COVARIATES = 3
_LEAST_EPSILON, _LEAST_N = 2.0, 20_000  # for two numbers; the first also for three covariates
# Epsilon times records from which a number with two other covariates is usually known: of 5 or 6
# fits each, 0 were at 14,000, 3 at 28,000 to 56,000 and all at 80,000.
_KNOWN = 80_000
_WAYS_OUT = (
    "name fewer columns, cut a number into categories at public points, use cox-approximate "
    "(DPCoxApproximate), or raise epsilon"
)
_HOPELESS = 4.0  # expected noise of a coefficient, in deviations of sampling
# of forecasts: shares of the events in a category, deviations of a number over its range, and
# shares of the records that stay without the event up to the end of the follow-up
_SHARES, _DEVIATIONS, _WITHOUT = (0.5, 0.1), (0.2, 0.1), (0.8, 0.1)
_OF_NUMBER = 1 / 6  # expected variance of a number in [-1, 1]
_CHANGED = 2.58  # deviations between halves: one in a hundred
_LARGEST_EXPONENT = 700.0  # exp() of more overflows
_WORD = 2  # weight of the products of shares
_Z = INTERVAL_95["gaussian"]


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """The public state, in records."""

    exits: Floats
    split: Floats  # products of the shares of events, by number
    noise: float = 0.0


@declared
class Cox(Gaussian):
    """Cox regression: factors by which covariates multiply the hazard of an event.

    Parameters
    ----------
    time, event, covariates : int, int, tuple of int
        Columns; the times have the box ``[time_low, time_high]`` and a `step`, data units.
    levels : tuple of int
        Number of categories of each covariate, 0 for numbers. Each category but the first has a
        coefficient relative to the first.
    strata, n_strata : int or None, int
        Column of categories, each with a separate baseline hazard, and their number.
    sites, here : tuple of str, str
        The silos, if they are the strata, and the one that holds the records; the latter is no part
        of a plan.
    names, units : tuple with an entry for each coefficient
        `units` is half of a column's range, or 1 for a category.
    tau : float
        Horizon; records with a longer follow-up are censored there.
    nominal_events : int
        Public guess of the number of events, for the forecast.

    Notes
    -----
    Under add/remove of one record, it adds shares of one column of a public matrix to the cells of
    its covariates. The shares are whole numbers with a constant sum. docs/proofs/cox.md
    """

    name: ClassVar[str] = "cox"
    title: ClassVar[str] = "Hazard ratios"
    has_effects: ClassVar[bool] = True
    usage: ClassVar[str] = "--time months --event died --covariates treated"
    forecast_note: ClassVar[str] = (
        "A column of more categories has wider margins. The share is that of a category in the "
        "events of this category and the first. The margin of a number is for half its range."
    )
    rounds: ClassVar[int] = 1

    example: ClassVar[Example] = Example(
        (PublicColumn("months", 0.0, 60.0, step=1.0), BOOLEAN, CATEGORY),
        {"time": "months", "event": "smokes", "nominal_events": 100_000},
    )

    @declared
    class Options:
        time: Annotated[str, "numeric column: follow-up time of a record"]
        event: Annotated[str, "boolean column: true if the event ended the follow-up"]
        covariates: Annotated[
            tuple[str, ...],
            f"1 to 3 columns, with strata at most {MOST_CELLS} combinations, where a number has "
            f"{LEAST_KNOTS}; 3 need epsilon 2; all others by default",
        ] = ()
        strata: Annotated[
            str | None, "column of categories, or site, each with a separate baseline hazard"
        ] = None
        tau: Annotated[
            Positive | None, "public horizon, where all are censored; the largest time by default"
        ] = None
        nominal_events: Annotated[
            Whole | None, "public expected number of events; half of the records by default"
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
    nominal_events: Whole
    step: Annotated[float, Range(0)] = 0.0
    strata: Annotated[int, Range(0)] | None = None
    n_strata: Whole = 1
    frac_bits: int = 16
    sites: tuple[str, ...] = ()
    here: str = ""
    dates: Dates = ()

    later: ClassVar[tuple[str, ...]] = ("sites", "here", "dates")

    def __post_init__(self) -> None:
        by = () if self.strata is None else (self.strata,)
        used = [self.time, self.event, *self.covariates, *by]
        if len(set(used)) < len(used) or max(used) >= self.n_features:
            raise PlanError(
                "time, event, covariates and strata must be different columns of "
                f"{self.n_features}, got {used}."
            )
        if len(self.covariates) > _MOST_COVARIATES:
            raise PlanError(
                f"covariates must be at most {_MOST_COVARIATES} columns, got "
                f"{len(self.covariates)}; make several plans, name one as strata, or use "
                "cox-approximate (DPCoxApproximate)."
            )
        if 1 in self.levels or not (
            sum(max(n - 1, 1) for n in self.levels) == len(self.names) == len(self.units)
        ):
            raise PlanError(
                "levels, names and units must have an entry for each coefficient of the covariates."
            )
        if not self._cells.fits:
            by_column = ", where a column of categories is a covariate instead of strata"
            of_strata = by_column if self.sites or self.strata is not None else ""
            enough = self.n_strata > 1 and CovariateCells(self.levels, 1).fits
            raise PlanError(
                f"covariates and strata must have at most {MOST_CELLS} combinations, with "
                f"{LEAST_KNOTS} or more for a number, got {self._product()}; name fewer covariates"
                f"{' or no strata' if enough else ''}, join rare categories, cut numbers into "
                "categories at public points, or use cox-approximate (DPCoxApproximate)"
                f"{of_strata}."
            )
        if self.sites and (self.strata is not None or len(self.sites) != self.n_strata):
            raise PlanError(
                f"sites must be the {self.n_strata} strata, without a column of strata, got "
                f"{len(self.sites)}."
            )
        assert len(self._horizon.ends)  # raises for a tau outside the bounds

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Design the cells from public numbers; raise PlanError if the noise is too large."""
        columns = facts.columns
        time, event = followed(columns, options.time, options.event)
        budget = require_budget(facts.budget)
        taken = (options.time, options.event, options.strata)
        rest = [c.name for c in columns if c.name not in taken]
        at = [position(columns, name, "covariates") for name in options.covariates or rest]
        by, n_strata = None, 1
        sites: tuple[str, ...] = ()
        # A silo knows its own stratum, so no column of the records is needed.
        if options.strata == SITE:
            check_site(facts.names, facts.silos)
            sites, n_strata = facts.silos, len(facts.silos)
        elif options.strata is not None:
            by = position(columns, options.strata, "strata")
            n_strata = columns[by].levels
            if not n_strata:
                raise PlanError(
                    "strata must be a column of categories or site, got the numeric column "
                    f"{options.strata!r}."
                )
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
            step=columns[time].step,
            tau=options.tau or columns[time].high,
            strata=by,
            n_strata=n_strata,
            sites=sites,
            nominal_events=options.nominal_events or ceil(facts.nominal_n / 2),
        )
        if len(task._cells.numbers) > 1 and (
            budget.epsilon < _LEAST_EPSILON or facts.nominal_n < _LEAST_N
        ):
            raise PlanError(
                f"two covariates of numbers need at least epsilon {_LEAST_EPSILON:g} and "
                f"{_LEAST_N:,} records, got epsilon {budget.epsilon:g} and {facts.nominal_n:,}; "
                "cut one into categories at public points, or make two plans."
            )
        if len(at) == _MOST_COVARIATES and budget.epsilon < _LEAST_EPSILON:
            raise PlanError(
                f"{_MOST_COVARIATES} covariates need at least epsilon {_LEAST_EPSILON:g}, got "
                f"{budget.epsilon:g}; name two, use one as strata, or make several plans."
            )
        needed = task._events_needed(noise_multiplier_for(facts) or 0.0)
        if needed > task.nominal_events:
            raise PlanError(
                f"nominal_events must be at least {needed:,}, got {task.nominal_events:,} (half "
                "of nominal_n by default): the noise of a coefficient would be above "
                f"{_HOPELESS:g} sampling errors; raise epsilon, or name fewer covariates."
            )
        return task

    def plan_warnings(self, plan: Plan, forecast: Results) -> Iterator[str]:
        """Warn about a number with two other covariates, whose results are often not known."""
        numbers = len(self._cells.numbers)
        if plan.budget is None or not numbers or len(self.covariates) < _MOST_COVARIATES:
            return
        if plan.budget.epsilon * plan.nominal_n < _KNOWN:
            yield (
                f"hazard ratios of {_MOST_COVARIATES} covariates with a number are often not known "
                f"at epsilon {plan.budget.epsilon:g} and {plan.nominal_n:,} records; usually they "
                f"are from epsilon {_KNOWN / plan.nominal_n:.2g} on; {_WAYS_OUT}."
            )

    def describe(self) -> str:
        return (
            f"Silos count the records that leave at each of {len(self._horizon.ends)} times, with "
            f"and without the event, in {self._cells.size} combinations of covariates. Hazard "
            "ratios are computed from these noisy numbers."
        )

    # Contributions --------------------------------------------------------------------------------

    def at_silo(self, silo: str) -> Self:
        """Return the task for the records of one silo."""
        if silo not in self.sites:
            raise PlanError(f"silo must be one of {', '.join(self.sites)}, got {silo!r}.")
        return replace(self, here=silo)

    def _product(self) -> str:
        """Return the number of combinations with its factors, as text."""
        total = self.n_strata * prod(n or LEAST_KNOTS for n in self.levels)
        factors = " x ".join(str(n) if n else f"{LEAST_KNOTS} of a number" for n in self.levels)
        strata = f" in {self.n_strata} strata" if self.n_strata > 1 else ""
        return f"{total} ({factors}{strata})"

    @property
    def most_sites(self) -> int:
        """The largest number of silos that could be strata of these covariates."""
        sizes = range(MOST_CELLS, 0, -1)
        return next((k for k in sizes if CovariateCells(self.levels, k).fits), 0)

    @cached_property
    def _cells(self) -> CovariateCells:
        return CovariateCells(self.levels, self.n_strata, self.frac_bits)

    @cached_property
    def _horizon(self) -> Horizon:
        return Horizon(
            low=self.time_low,
            high=self.time_high,
            tau=self.tau,
            step=self.step,
            most=Horizon.most_for(2 * self._cells.size),
            frac_bits=self.frac_bits,
        )

    @cached_property
    def _shape(self) -> tuple[int, int, int]:
        return self._cells.size, 2, len(self._horizon.ends) + 1

    @property
    def _unit(self) -> int:
        """Bits of an integer that stands for one record."""
        return COUNT_BITS + self._cells.bits

    def start(self) -> State:
        """Return the empty state before the round."""
        numbers = len(self._cells.numbers)
        return encode_state(_Sums(exits=np.zeros(self._shape), split=np.zeros(max(numbers, 1))))

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return one block: the running sums of all cells, then a number per numeric covariate.

        A record between two knots adds less to the sums than one on a knot. The difference exceeds
        what it adds to the numbers behind, so a record on a knot has the largest norm.
        """
        cells, channels, size = self._shape
        words, one = running.column(size), 1 << self._cells.bits
        numbers = len(self._cells.numbers)
        l1 = int(words.sum()) * one + numbers * (_WORD << self._unit - 2)
        l2_squared = int(words @ words) * one**2
        return (Block("exits", (cells * channels * size + numbers,), l1, l2_squared, 1.0),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return running sums of exits by cell, and products of the shares of events."""
        counts = np.zeros(self._shape, dtype=np.int64)
        split = np.zeros(len(self._cells.numbers), dtype=np.int64)
        for part in in_cache(records):
            times, event = part[:, self.time], part[:, self.event]
            # A silo without a name is the first one: bounds of rows are equal at all.
            site = self.sites.index(self.here) if self.here else 0
            by = np.full(len(part), site, dtype=np.int64)
            if self.strata is not None:
                by = codes(part[:, self.strata], self.n_strata, self.frac_bits)
            cells, shares, products = self._cells.shares(part[:, list(self.covariates)], by)
            for cell, share in zip(cells, shares, strict=True):
                counts += self._horizon.exits(cell, len(counts), times, event, share)
            for j, of_pair in enumerate(products):
                split[j] += self._horizon.exits(0 * by, 1, times, event, of_pair)[0, 0].sum()
        split *= _WORD << self._unit - 2 * SPLIT_BITS
        return np.concatenate([running.encoded(counts).ravel(), split])

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return unbiased exits, in records."""
        values, noise = released["exits"].in_records(self._unit)
        numbers = len(self._cells.numbers)
        sums, split = np.split(values, [len(values) - numbers])
        exits = running.decoded(sums.reshape(self._shape))
        return encode_state(
            _Sums(exits=exits, split=split / _WORD if numbers else np.zeros(1), noise=noise)
        )

    # The forecast ---------------------------------------------------------------------------------

    @cached_property
    def _length(self) -> float:
        """Length of the column that a record adds, in records."""
        words = running.column(self._shape[2])
        return sqrt(int(words @ words)) / (1 << COUNT_BITS)

    def _squares(self) -> Floats:
        """Return the sum of squared covariates of all cells, for each coefficient."""
        return np.asarray(self.n_strata * (self._cells.positions**2).sum(axis=0))

    def _variance(self) -> Floats:
        """Return the expected variance of each covariate, with categories of equal sizes."""
        return np.array([_OF_NUMBER if not n else (1 - 1 / n) / n for n in self._levels_of])

    @cached_property
    def _levels_of(self) -> tuple[int, ...]:
        """Number of categories of the column of each coefficient."""
        return tuple(n for n in self.levels for _ in range(max(n - 1, 1)))

    def _events_needed(self, multiplier: float) -> int:
        """Return the number of events from which the noise of coefficients is tolerable."""
        noise = multiplier * self._length**2 * np.sqrt(2 * self._squares())
        return ceil(float((noise**2 / (_HOPELESS**2 * self._variance())).max()))

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return expected 95 % half-widths of coefficients, by their main causes.

        Each number of categories of a column has its own half-width. A share compares the events of
        a category with those of this and the first category. All categories are assumed to have
        equally many. Coefficients of numbers are for half a range.

        Notes
        -----
        The noise of the events adds to that of the records at risk, times the cumulative hazard.
        """
        noise = noise_std / (1 << self._unit) * self._length
        half_widths = _Z * noise * np.sqrt(2 * self._squares()) / self.nominal_events
        levels, found = np.array(self._levels_of), {}
        sizes = sorted(set(self.levels) - {0})
        for without in _WITHOUT:
            wide = half_widths * hypot(1.0, log(without))
            end = f"if_{without:.0%}_stay_without_the_event_half_width"
            for n, share in product(sizes, _SHARES):
                name = f"log_hazard_ratio_of_one_of_{n}_categories_with_{share:.0%}_of_the_events"
                found[f"{name}_{end}"] = wide[levels == n] / (2 / n * share * (1 - share))
            for deviation in _DEVIATIONS if not levels.all() else ():
                name = (
                    f"log_hazard_ratio_of_a_number_with_a_deviation_of_{deviation:.0%}_of_its_range"
                )
                found[f"{name}_{end}"] = wide[levels == 0] / (2 * deviation) ** 2
        return found

    # The estimate ---------------------------------------------------------------------------------

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return coefficients and hazard ratios with their 95 % intervals.

        Returns
        -------
        dict
            Of shape (p,): ``coef``, the logarithm of ``hazard_ratio``, for one data unit or
            relative to the first category, with the ends of both intervals. They are not a number
            if ``reason`` is not 0; it is a place in :data:`.usable_cells.REASONS`. A category needs
            ``least_events``, which is 0 for numbers. ``effect_changes`` is 1 if the effect changes
            with time. ``change_z`` is the difference between the halves of the events, in
            deviations. ``hazard_ratio_early`` and ``hazard_ratio_late`` are those of the halves.

            Of shape (1,): ``wald`` and ``wald_p``, the test that all known coefficients are 0;
            ``events``, and the share ``kept`` of them that is used. ``horizon`` is the end of the
            used follow-up of each stratum.

        Notes
        -----
        The noise interval is for the maximum of Efron's partial likelihood of all records [E77]_.
        """
        from scipy.special import chdtrc

        known = decode_state(_Sums, state, self.frac_bits)
        exits = known.exits.reshape(self._shape)
        use = UsableCells.of(self._cells, exits, known.split, known.noise)
        fit = use.fit(self._generator())
        value, known = use.spread(fit.coef), use.spread(fit.known.astype(np.float64)) == 1
        of_fit = np.where(known, 0, np.where(np.isnan(value), FEW, NOISY))
        reason = np.where(use.reason > 0, use.reason, of_fit)
        blank = np.where(reason > 0, np.nan, 1.0)

        def estimate(coef: Floats, noise: Floats, sampling: Floats) -> Estimate:
            values, margin = use.spread(coef), _Z * np.sqrt(use.spread(noise))
            of = Estimate(values, values - margin, values + margin)
            scale = blank / np.array(self.units)
            return sampled(of, use.spread(sampling)).mapped(lambda part: part * scale)

        whole = estimate(fit.coef, fit.noise, fit.population - fit.noise)
        halves = fit.halves
        parts = zip(halves.coef, halves.noise, halves.sampling, strict=True)
        early, late = (estimate(*part).mapped(_exp) for part in parts)
        change = use.spread(halves.z) * blank
        clear = fit.known & (use.reason[use.columns] == 0)
        wald = _wald(fit, clear)
        return {
            **whole.named("coef"),
            **whole.mapped(_exp).named("hazard_ratio"),
            **early.named("hazard_ratio_early"),
            **late.named("hazard_ratio_late"),
            "reason": reason.astype(np.float64),
            "least_events": use.least,
            "change_z": change,
            "effect_changes": np.where(np.abs(change) > _CHANGED, 1.0, 0.0) * blank,
            "wald": np.array([wald]),
            "wald_p": np.array([float(chdtrc(clear.sum(), wald)) if clear.any() else np.nan]),
            "events": np.array([use.events]),
            "kept": np.array([fit.kept]),
            "horizon": np.append(0.0, self._horizon.ends)[list(fit.last)],
        }

    def _generator(self) -> np.random.Generator:
        # Draws of post-processing follow from the plan, so that all parties have the same.
        return public_generator("cox", *self.names, self.time, self.event, self.n_strata)

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return hazard ratios, a picture, effects that change with time, and the test."""
        shown, texts = self._readable(results), self._marks(results)
        rows = tuple(
            (name, _cell(shown["hazard_ratio"], i, results), text)
            for i, (name, text) in enumerate(zip(self._labels, texts, strict=True))
        )
        changing = [i for i, z in enumerate(results["effect_changes"]) if z > 0]
        halves = tuple(
            (self._labels[i], shown["hazard_ratio_early"][i], shown["hazard_ratio_late"][i])
            for i in changing
        )
        known = int((results["reason"] == 0).sum())
        test = (float(known), float(results["wald"][0]), PValue(results["wald_p"][0]))
        event = columns[self.event]
        horizon = ", ".join(f"{time:g}" for time in results["horizon"])
        found: list[Display] = [
            Rows(
                f"Hazard ratios of {event}",
                ("covariate", "against the first category, or per unit", ""),
                rows,
                f"{WITH_POPULATION} Above 1: the event comes sooner. Follow-up is used up to "
                f"{columns[self.time]} {horizon}, with {results['kept'][0]:.0%} of the events.",
            ),
            bars_of("Hazard ratios", self._labels, list(shown["hazard_ratio"].cells())),
        ]
        if halves:
            found.append(
                Rows(
                    "Effects that change with time",
                    ("covariate", "first half of the events", "second half"),
                    halves,
                    "The hazard ratio above is an average over the follow-up.",
                )
            )
        if known:
            title, row = "Does any covariate matter?", ("all known hazard ratios are 1", *test)
            headings = ("Wald test", "degrees of freedom", "chi-square", "p")
            found.append(Rows(title, headings, (row,), "The test includes the noise."))
        return tuple(found)

    def reasons(self, results: Results) -> dict[str, str | tuple[str, ...]]:
        """Return why coefficients and the test are not known."""
        why = tuple(REASONS[int(code)] for code in results["reason"])
        names = ("coef", "hazard_ratio", "change_z", "effect_changes")
        return {**dict.fromkeys(names, why), "wald": "no hazard ratio is known"}

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the hazard ratios that differ from 1, with sampling."""
        ratios, known = self._readable(results)["hazard_ratio"], results["reason"] == 0
        places = significance.clear(list(Estimate.of(results, "coef").cells()))
        parts = listing((f"{self._labels[i]} ", ratios[i]) for i in places[:SAID])
        result: tuple[Cell, ...] = ("No hazard ratio is shown to differ from 1.",)
        unknown = len(known) - int(known.sum())
        hidden = f"; {unknown} are not known" if unknown else ""
        if len(places):
            result = ("Hazard ratios: ", *parts, ".")
        if not known.any():
            return Summary(
                result=("Hazard ratios are not known.",),
                reliability=f"Noise hides all of them: {_WAYS_OUT}.",
            )
        return Summary(
            result=result,
            reliability=f"{len(places)} of {len(known)} hazard ratios differ from 1 beyond noise "
            f"and sampling, after Holm's correction{hidden}.",
            remarks=tuple(
                f"the effect of {self.names[i]} changes with time, and its value is an average"
                for i in np.flatnonzero(results["effect_changes"] > 0)
            ),
        )

    @cached_property
    def _readable_units(self) -> Floats:
        """The change of each covariate that tables show: a power of ten near a fifth of a range."""
        return np.array(
            [
                1.0 if n else 10.0 ** floor(log10(unit))
                for n, unit in zip(self._levels_of, self.units, strict=True)
            ]
        )

    @property
    def _labels(self) -> tuple[str, ...]:
        sizes = [max(n - 1, 1) for n in self.levels]
        dated = np.repeat([j in self.dates for j in self.covariates], sizes)
        steps = map(step_text, self._readable_units, dated)
        each = zip(self.names, self._levels_of, steps, strict=True)
        return tuple(name if n else f"{name}, per {step}" for name, n, step in each)

    def _readable(self, results: Results) -> dict[str, Estimate]:
        names = ("hazard_ratio", "hazard_ratio_early", "hazard_ratio_late")
        power = self._readable_units
        ratios = (Estimate.of(results, name).mapped(lambda v: v**power) for name in names)
        return {name: replace(one, null=1.0) for name, one in zip(names, ratios, strict=True)}

    def _marks(self, results: Results) -> Iterator[str]:
        for i, n in enumerate(self._levels_of):
            marks = [] if n else ["approximate (knots)"]
            if results["effect_changes"][i] > 0:
                marks.append("the effect changes with time; the value is an average")
            yield "" if results["reason"][i] else "; ".join(marks)


def _cell(ratios: Estimate, i: int, results: Results) -> Cell:
    reason = int(results["reason"][i])
    if not reason:
        return ratios[i]
    least = f" (about {results['least_events'][i]:.0f} are needed)" if reason < NOISY else ""
    return f"not known: {REASONS[reason]}{least}"


def _wald(fit: Fit, clear: Flags) -> float:
    """Return the statistic of the test that the clear coefficients are 0."""
    if not clear.any():
        return float("nan")
    value, covariance = fit.coef[clear], fit.covariance[np.ix_(clear, clear)]
    return float(value @ np.linalg.solve(covariance, value))


def _exp(logarithm: Floats) -> Floats:
    return np.asarray(np.exp(np.clip(logarithm, -_LARGEST_EXPONENT, _LARGEST_EXPONENT)))
