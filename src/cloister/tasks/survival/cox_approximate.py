"""Approximate Cox regression of many covariates: a piecewise-exponential model from noisy sums.

One noisy table of exits gives a common cumulative hazard. Then a record is a Poisson count of its
event, with that hazard at its time as exposure. Pieces of time have factors, because the
common hazard falls as records with a high hazard leave. Four rounds of gradients and curvatures
lead to the maximum of this likelihood, see :mod:`cloister.tasks.regression.engine`.

It is approximate: within a cell of time all records have the same course of the hazard. Use
:class:`~cloister.tasks.survival.cox.Cox` for up to three covariates.

References
----------
.. [C72] Cox, "Regression models and life-tables", JRSS B 34, 1972.
.. [HO81] Holford, "The analysis of rates and of survivorship using log-linear models", Biometrics
   36, 1980: events in pieces of time as Poisson counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import sqrt
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.arrays import Flags, Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Length, Positive, Range, Whole, declared
from cloister.core.display import Cell, Display, Estimate, PValue, Summary, Table
from cloister.core.errors import PlanError
from cloister.core.numerals import NOT_KNOWN, counted
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.rows import summed
from cloister.protocol.task import (
    COUNT_BITS,
    Block,
    Gaussian,
    NoisyBlock,
    PublicColumn,
    PublicFacts,
    Rows,
)
from cloister.tasks import significance
from cloister.tasks.columns import codes, in_cache, of_dates, position
from cloister.tasks.examples import BOOLEAN, CATEGORY, Example
from cloister.tasks.interval_tables import SAID, WITH_POPULATION, bars_of, listing, number_of
from cloister.tasks.options import Dates, build_task, noise_multiplier_for, require_budget
from cloister.tasks.regression import report
from cloister.tasks.regression.design import PLACES, SPREADS, Design, Placed, term_of
from cloister.tasks.regression.engine import (
    PRIOR,
    Gradient,
    Prior,
    Solution,
    lengths,
    matrix_of,
    products,
    sandwich,
)
from cloister.tasks.regression.families import exponential
from cloister.tasks.regression.newton import (
    Fitted,
    limited,
    read_step,
    step_blocks,
    step_rows,
    stepped,
)
from cloister.tasks.state import decode_state, encode_state
from cloister.tasks.survival.times import coefficients_of, followed

FAR = "far values, interval not valid"
_NOTE = (
    "Values and intervals are approximate: the course of the hazard is counted in cells of time."
)
_MOST_COEFFICIENTS = 10
_PIECES = 4
_FACTOR = 0.6  # deviation of the logarithm of a piece's factor before any data
NULL, LAST = 2, 5
_EXITS = 0.10  # share of the budget
_SHARES = (0.04, 0.04, 0.10, 0.12, 0.14, 0.46)
_SIZES, _CURVATURE = (0.15, 0.25, 0.25, 0.0), (0.55, 0.40, 0.40, 0.20)  # the rest: gradients
_SANDWICH = 0.15  # of the last gradient
_GROWTH = 2.0  # sizes were counted a step before, and hazards grow
_CLEAR, _FEWEST_EVENTS = 4.0, 0.005  # deviations, and share of the events, of a block of cells
_RARE = 0.2  # share of events below which they may hide behind the noise of counts
_FARTHEST, _FARTHEST_MARGIN = 1.5, 1.5  # step: in prior deviations; at the end of a column
# Intervals do not follow the noise of the common hazard, nor its course within cells.
_OF_NOISE, _OF_SAMPLING = 1.15, 0.3  # deviations, for the errors of the common hazard
_LONG = 5.0  # reach of a number in its deviations, from which on single records decide
_DRIFT = 0.5  # half of the relative change of an exponential
_NEEDED = 3.6  # noise of a curvature, below which most coefficients would be not known
_STEEP = 2.4  # usual reach in deviations
_USUAL_TOP = 0.7, 1.5, 0.02  # of the largest hazard: usual residual; most and least curvature


@dataclass(frozen=True, kw_only=True)
class _Known:
    """The public state. Times are shares of the horizon."""

    fit: Fitted
    hazard: Floats  # cumulative, at the ends of cells
    pieces: Floats  # ends of all pieces but the last
    events: float

    @property
    def top(self) -> float:
        """The largest hazard."""
        return float(self.hazard[-1])


@declared
class CoxApproximate(Gaussian):
    """Approximate Cox regression: factors by which many covariates multiply the hazard of an event.

    Parameters
    ----------
    time, event, covariates : int, int, tuple of int
        Columns; the times have the box ``[time_low, time_high]``, data units.
    levels, low, high : tuple
        Number of categories of each covariate, 0 for numbers; and its box, data units. Each
        category but the first has a coefficient relative to the first.
    names, units : tuple with an entry for each coefficient
        `units` is half of a column's range, or 1 for a category.
    tau : float
        Horizon; records with a longer follow-up are censored there.
    nominal_events : int
        Public contract value for the number of events; a plan with too few is refused.
    cells : int
        Number of cells of time in which exits are counted; early ones are shorter.
    bins : int
        Number of bins of a histogram of a number.

    Notes
    -----
    Under add/remove of one record, it adds 1 to one number of each count. Then it adds vectors
    whose integer norm is checked. docs/proofs/cox.md
    """

    name: ClassVar[str] = "cox-approximate"
    title: ClassVar[str] = "Approximate hazard ratios"
    has_effects: ClassVar[bool] = True
    error_depends_on: ClassVar[str] = "the spread of the covariates and the effects"
    without_site: ClassVar[str] = (
        "no covariate is known to be the silo. If none holds its name and silos differ both in a "
        "column and in the outcome, the coefficient of this column includes the difference between "
        "silos; add a column of categories with the name of the silo as a covariate."
    )
    absent: ClassVar[Mapping[str, str]] = {
        "strata": "task cox (DPCox) has strata, for up to three covariates; here, name "
        "a column with the name of the silo or stratum as a covariate"
    }
    usage: ClassVar[str] = "--time months --event died --nominal-events 400"
    rounds: ClassVar[int] = LAST + 1

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
    low: tuple[float, ...]
    high: tuple[float, ...]
    names: tuple[str, ...]
    units: tuple[Positive, ...]
    time_low: Annotated[float, Range(0)]
    time_high: float
    tau: Positive
    nominal_events: Whole
    cells: Annotated[int, Range(1, 1024)] = 128
    bins: Annotated[int, Range(2, 1024)] = 64
    frac_bits: int = 16
    dates: Dates = ()

    later: ClassVar[tuple[str, ...]] = ("dates",)

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
        if not len(self.levels) == len(self.covariates) == len(self.low) == len(self.high):
            raise PlanError("levels, low and high must have an entry for each covariate.")

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Design the sums from public numbers; raise PlanError if noise would hide the model."""
        columns = facts.columns
        time, event = followed(columns, options.time, options.event)
        require_budget(facts.budget)
        multiplier = noise_multiplier_for(facts) or 0.0
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
            low=tuple(c.low for c in used),
            high=tuple(c.high for c in used),
            names=names,
            units=units,
            time_low=columns[time].low,
            time_high=columns[time].high,
            tau=options.tau or columns[time].high,
        )
        needed = task._needed_events(multiplier)
        if options.nominal_events < needed:
            raise PlanError(
                f"nominal_events must be at least {needed:,} for {len(names)} coefficients at this "
                f"budget, got {options.nominal_events:,}: noise would hide the model; raise "
                "epsilon, or name fewer covariates."
            )
        bins = task._columns.enough_bins(facts.nominal_n, multiplier, _SHARES[PLACES])
        return replace(task, bins=bins)

    def _needed_events(self, multiplier: float) -> int:
        """Return the number of events at which noise is as large as the curvature of a column."""
        # As for `glm`, with events in place of records: each adds one unit of curvature.
        size = _STEEP * sum(sqrt(max(n - 1, 1)) for n in self.levels)
        share = 2 * sum(a * b for a, b in zip(_SHARES[NULL:], _CURVATURE, strict=True))
        return int(_NEEDED * sqrt(self._width) * multiplier * (1 + size) / sqrt(share)) + 1

    def describe(self) -> str:
        return (
            f"Silos count columns, and records that leave with and without the event in each of "
            f"{self.cells} cells of time. Four rounds sum gradients and curvatures of "
            f"{counted(len(self.names), 'coefficient')}, cut to public lengths. Approximate hazard "
            "ratios are computed from these noisy numbers."
        )

    # Columns --------------------------------------------------------------------------------------

    @cached_property
    def _columns(self) -> Design:
        """Covariates, and the event in place of a target."""
        of = zip(self.covariates, self.levels, self.low, self.high, strict=True)
        terms = tuple(term_of(*column, self.frac_bits) for column in of)
        # The design counts the event as its target, which gives the share of events.
        return Design(terms, term_of(self.event, 2, 0.0, 1.0, self.frac_bits), self.bins)

    @property
    def _width(self) -> int:
        """Number of entries of a row: of covariates, of all pieces but the first, and a 1."""
        return len(self.names) + _PIECES

    @cached_property
    def _ends(self) -> Floats:
        """Ends of the cells of time, from 0 to 1; shape (cells + 1,)."""
        # Squares: where many events are early, equal cells would join them all in one.
        return np.asarray((np.arange(self.cells + 1) / self.cells) ** 2)

    def _exits(self, records: Records) -> tuple[Floats, Flags]:
        """Return the time of each record as a share of the horizon, and if the event ended it."""
        one, steps = 1 << self.frac_bits, records[:, self.time].astype(np.int64)
        at = self.time_low + (steps + one) * ((self.time_high - self.time_low) / (2 * one))
        # A record at the horizon was followed to it; one at the top of the box may have been
        # clipped.
        beyond = (at >= self.tau) | (steps >= one)
        event = (codes(records[:, self.event], 2, self.frac_bits) == 1) & ~beyond
        return np.where(beyond, 1.0, np.clip(at / self.tau, 0.0, 1.0)), event

    # Contributions --------------------------------------------------------------------------------

    def start(self) -> State:
        """Return the empty state before the first round."""
        return encode_state(
            _Known(
                fit=Fitted.start(self._columns.unplaced(), self._width, squares=True),
                hazard=np.zeros(self.cells + 1),
                pieces=np.zeros(_PIECES - 1),
                events=1.0,
            )
        )

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return counts of bins and exits, of bins; then of vectors of norm 1, and of sizes."""
        share, at = _SHARES[t], t - NULL
        if t < NULL:
            found = [self._columns.count_block(t, share)]
            if t == PLACES:
                # Apart from the columns: the hazard needs less noise than their places.
                found.append(Block.counting("exits", (self.cells + 1, 2), _EXITS))
            return tuple(found)
        gradient = 1 - _CURVATURE[at] - _SIZES[at]
        meat = _SANDWICH * gradient if t == LAST else 0.0
        steps = step_blocks(
            self._width,
            share * (gradient - meat),
            share * _CURVATURE[at],
            sizes=share * _SIZES[at],
            kinds=2 if t == NULL else 1,
            meat=share * meat,
        )
        return tuple(steps)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return the rows of records to each block."""
        return self._rows(t, self._read(state), records)

    def _rows(self, t: int, known: _Known, records: Records) -> tuple[Rows, ...]:
        if t < NULL:
            counts = self._columns.count_rows(t, known.fit.columns, records, None)
            if t == SPREADS:
                return (counts,)
            time, event = self._exits(records)
            exits = 2 * np.floor(np.sqrt(time) * self.cells).astype(np.int64) + ~event
            return counts, Rows.at([exits], [1 << COUNT_BITS])
        with np.errstate(all="ignore"):  # a dishonest state has any numbers; balls leave them out
            return self._payloads(t, known, records)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums of all blocks over records."""
        known, blocks = self._read(state), self.blocks(t)
        total = np.zeros(sum(block.size for block in blocks), dtype=np.int64)
        for part in in_cache(records):
            rows = self._rows(t, known, part)
            total += np.concatenate([summed(*pair) for pair in zip(rows, blocks, strict=True)])
        return total

    @cached_property
    def _kinds(self) -> tuple[Integers, Integers]:
        """The piece of each entry of a row, and of each product: 0 for all, `_PIECES` for none."""
        # No time is in two pieces, so their product is 0. It is summed as part of a matrix that
        # the engine knows.
        entry = np.array([0] * len(self.names) + list(range(1, _PIECES)) + [0])
        first, second = (entry[part] for part in np.triu_indices(self._width))
        alike = (first == second) | (first == 0) | (second == 0)
        return entry, np.where(alike, np.maximum(first, second), _PIECES)

    def _payloads(self, t: int, known: _Known, records: Records) -> tuple[Rows, ...]:
        covariates = self._columns.rows(known.fit.columns, records)
        pieces = np.ones((_PIECES - 1, len(records)))
        rows = np.concatenate([covariates[:-1], pieces, covariates[-1:]])
        events, hazards = self._of_pieces(known, rows, records)
        left = events - hazards
        # Entries of pieces are 1, so a product with one is that with the residual of its piece.
        of_entry, of_product = self._kinds
        # An entry that is the same in all pieces has the sum over them, in one vector.
        residuals = np.concatenate([left.sum(axis=0)[None], left[1:]])
        # A record is in each piece on its own, so a product of two pieces is 0.
        nothing = np.zeros((1, len(records)))
        weights = np.concatenate([hazards.sum(axis=0)[None], hazards[1:], nothing])
        gradients = rows * residuals[of_entry]
        curvatures = products(rows) * weights[of_product]
        sizes = [lengths(gradients)]
        if self._share(known) < _RARE:
            # Few records have an event that is rare. Their sizes would be hidden by noise.
            sizes = [np.maximum(sizes[0], lengths(covariates))]
        if t == NULL:
            sizes.append(lengths(curvatures))
        last = t == LAST
        found = step_rows(known.fit, gradients, curvatures, sizes=() if last else sizes, meat=last)
        return tuple(found)

    def _of_pieces(self, known: _Known, rows: Floats, records: Records) -> tuple[Floats, Floats]:
        """Return events and hazards of records in each piece of time, shape (pieces, n_samples)."""
        time, event = self._exits(records)
        margin = np.zeros(len(records))
        p = len(self.names)
        for place in (*range(p), self._width - 1):  # no product of matrices, whose rounding may
            margin += known.fit.weights[place] * rows[place]  # depend on the other records
        # The first piece has the common hazard; others are relative to it.
        factors = np.append(0.0, known.fit.weights[p:-1])
        hazard = np.interp(time, self._ends, known.hazard)
        walls = np.interp(known.pieces, self._ends, known.hazard)
        begin, end = np.append(0.0, walls), np.append(walls, np.inf)
        # The increase of the hazard in each piece up to the time; 0 where it was not reached.
        lived = np.clip(hazard, begin[:, None], end[:, None]) - begin[:, None]
        # Counted, not searched: a dishonest state has pieces in any order.
        piece = (time > known.pieces[:, None]).sum(axis=0)
        events = event & (piece == np.arange(_PIECES)[:, None])
        return events.astype(np.float64), lived * exponential(margin + factors[:, None])

    def _share(self, known: _Known) -> float:
        """Return the share of records with the event."""
        # Noise may count more events than records.
        return min(known.events / max(known.fit.columns.n, 1.0), 1.0)

    def _read(self, state: GridState) -> _Known:
        known = decode_state(_Known, state, self.frac_bits)
        return replace(known, fit=known.fit.defined(self.levels))

    # What follows ---------------------------------------------------------------------------------

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the state with places and hazards, the next weights and cuts, or the last sums."""
        return encode_state(self._updated(t, self._read(state), released))

    def _updated(self, t: int, known: _Known, released: Mapping[str, NoisyBlock]) -> _Known:
        fit = known.fit
        if t < NULL:
            fit = replace(fit, columns=self._columns.read_counts(t, fit.columns, released))
            if t == PLACES:
                return self._with_hazard(replace(known, fit=fit), released["exits"])
            return replace(known, fit=self._at_null(fit, known.top))
        most = self._most(known)[1] if t == NULL else None
        # Weights have changed, so the matrix before is of use as far as it is alike.
        fit, gradient, _ = read_step(fit, released, most, same=False)
        fit = replace(fit, last=gradient.value, last_std=gradient.noise_std)
        if t == LAST:
            return replace(known, fit=fit)
        share = self._share(known)
        fit, _ = stepped(
            fit,
            gradient,
            released["sizes"],
            self.blocks(t),
            self.blocks(t + 1),
            most=self._most(replace(known, fit=fit)),
            growth=(_GROWTH, _GROWTH),
            move=self._moved,
            # Sizes were raised to those of events.
            typical=2 * share if share < _RARE else 1.0,
        )
        return replace(known, fit=fit)

    def _with_hazard(self, known: _Known, released: NoisyBlock) -> _Known:
        exits, noise = released.in_records()
        hazard, events = common_hazard(exits, self._ends, noise)
        # Pieces have equally many events, as far as the smooth hazard says.
        total = np.cumsum(events)
        ends = np.searchsorted(total, total[-1] * np.arange(1, _PIECES) / _PIECES)
        return replace(
            known,
            hazard=hazard,
            # Pieces end between cells, where the cumulative hazard is known.
            pieces=self._ends[np.minimum(ends + 1, self.cells)],
            events=max(float(exits[:, 0].sum()), 1.0),
        )

    def _at_null(self, fit: Fitted, top: float) -> Fitted:
        """Return the state with cuts from the reach of columns and the largest hazard."""
        squared = self._columns.reach_squared(fit.columns) + 1.0
        # Sizes are not known yet. Long hazards are rare, since the event ends them.
        usual, most, least = _USUAL_TOP
        return replace(
            fit,
            cut=sqrt(squared) * max(1.0, usual * top),
            length=max(min(top, most), least) * squared,
        )

    def _most(self, known: _Known) -> tuple[float, float]:
        """Return the largest usual sizes of gradients and of curvatures at the common hazard."""
        squared = self._columns.reach_squared(known.fit.columns, whole_box=True) + 1.0
        top = max(known.top, 1.0)
        return sqrt(squared) * top, top * squared

    def _moved(self, fit: Fitted, gradient: Gradient, last: bool = False) -> Solution:
        """Return the solution one step on, whose weights are not too far away."""
        p, columns = len(self.names), fit.columns
        # The common hazard is near the truth, so factors and the constant are near 1.
        deviation = np.full(self._width, 1.0)
        deviation[:p] = PRIOR / np.maximum(columns.spread, 1e-9)
        deviation[p:-1] = _FACTOR
        most = _FARTHEST * deviation
        if not last:  # a skewed column would go too far
            far = _FARTHEST_MARGIN / np.maximum(columns.reach, 1e-9)
            most[:p] = np.minimum(most[:p], far)
        prior = Prior(np.zeros(self._width), deviation, fit.kept)
        return limited(fit, [gradient], prior, most, drift=_DRIFT, last=last)

    # The estimate ---------------------------------------------------------------------------------

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return no forecast: half-widths depend on tails and correlations of the columns."""
        return {}

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return coefficients and hazard ratios with their 95 % intervals.

        Returns
        -------
        dict
            Of shape (p,): ``coef``, the logarithm of ``hazard_ratio``, for one data unit or
            relative to the first category. Each has the ends of both intervals. What is not known
            is not a number, and its intervals have no bound. ``covariance`` of the noise and
            ``sampling_covariance`` have the shape (p, p). ``far_values`` is 1 for a number of which
            some records are far from the others. They may decide the value, and noise hides
            how much of it the cut takes away. Of shape (1,): ``wald`` and ``wald_p``, the test that
            all known coefficients are 0; ``records`` and ``records_half_width``, the noisy number
            of records. ``hazard`` is the common cumulative hazard at ``times``.

        Notes
        -----
        The noise interval is for the maximum of the partial likelihood of all records [C72]_,
        censored at the horizon.
        """
        from scipy.special import chdtrc

        known = self._read(state)
        fit, columns = known.fit, known.fit.columns
        solution = self._moved(fit, fit.of_last, last=True)
        noise = _OF_NOISE**2 * solution.noise + _OF_SAMPLING**2 * solution.inverse
        solution = replace(solution, noise=noise)
        sampling = sandwich(solution, matrix_of(fit.squares), fit.squares_std, fit.kept)
        p = len(self.names)
        scale = report.Scale(
            np.insert(self._columns.back(columns), [p] * (_PIECES - 1), 0.0, axis=1),
            self.levels,
            tuple(int(r) for r in columns.reference),
            (0,) * len(self.levels),
            tuple(zip(self.low, self.high, strict=True)),
            unit=1.0,
            middle=0.0,
        )
        units = columns.n, columns.n_std
        found = report.results_of(scale, solution, sampling, None, units)
        # The first category of a column is the reference, whatever the rows were made of.
        own = np.flatnonzero(found["reference"] == 0)
        coef = {k: v[own] for k, v in found.items() if k.startswith("coef") and "shrunk" not in k}
        noise, spread = (
            found[name][np.ix_(own, own)] for name in ("covariance", "sampling_covariance")
        )
        clear = np.flatnonzero(np.isfinite(coef["coef"]))
        values = coef["coef"][clear]
        wald = 0.0
        if clear.size:
            # A pseudo-inverse: two columns may be nearly alike.
            total = (noise + spread)[np.ix_(clear, clear)]
            wald = float(values @ np.linalg.pinv(total, hermitian=True) @ values)
        with np.errstate(over="ignore"):
            ratios = {k.replace("coef", "hazard_ratio"): np.exp(v) for k, v in coef.items()}
        return {
            **coef,
            **ratios,
            "covariance": noise,
            "sampling_covariance": spread,
            "far_values": self._far(columns),
            "wald": np.array([wald]),
            "wald_p": np.array([float(chdtrc(clear.size, wald)) if clear.size else 1.0]),
            "records": found["records"],
            "records_half_width": found["records_half_width"],
            "times": self._ends * self.tau,
            "hazard": known.hazard,
        }

    def _far(self, columns: Placed) -> Floats:
        """Return 1 for each number with far values, and 0 for others."""
        # Noisy counts cannot tell one far record from five, so both are marked.
        steep = columns.reach / np.maximum(columns.spread, 1e-9) > _LONG
        numbers = np.repeat(np.array(self.levels) == 0, np.maximum(np.array(self.levels) - 1, 1))
        return np.asarray(steep & numbers, dtype=np.float64)

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the approximate hazard ratios that differ from 1, with sampling."""
        known, valid = np.isfinite(results["coef"]), results["far_values"] == 0
        shown = significance.clear(list(Estimate.of(results, "coef").cells()))
        places = [i for i in shown.tolist() if valid[i]]
        names = of_dates(self.names, columns, self.dates)
        parts = listing(
            (f"{names[i]} ", number_of(results, "hazard_ratio", i)) for i in places[:SAID]
        )
        unknown, invalid = len(known) - int(known.sum()), int((known & ~valid).sum())
        result: tuple[Cell, ...] = ("No approximate hazard ratio is shown to differ from 1.",)
        if not known.any():
            result = ("Approximate hazard ratios are not known.",)
        elif places:
            result = ("Approximate hazard ratios: ", *parts, ".")
        return Summary(
            result=result,
            reliability=significance.how_sure(
                len(places), len(known), "approximate hazard ratios differ from 1"
            )
            + f" {unknown} are not known." * bool(unknown)
            + f" Intervals of {invalid} are not valid." * bool(invalid),
        )

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return hazard ratios, a picture of coefficients, and the test."""
        known = np.isfinite(results["coef"])
        marks = np.where(known & (results["far_values"] > 0), FAR, "")
        test = (float(known.sum()), float(results["wald"][0]), PValue(results["wald_p"][0]))
        per_half = Estimate.of(results, "coef").mapped(lambda part: np.exp(part * self.units))
        return (
            Table(
                f"Approximate hazard ratios of {columns[self.event]}",
                ("covariate", "one unit, or against the first category", ""),
                tuple(
                    (
                        name,
                        number_of(results, "hazard_ratio", i) if known[i] else NOT_KNOWN,
                        str(marks[i]),
                    )
                    for i, name in enumerate(of_dates(self.names, columns, self.dates))
                ),
                f"{_NOTE} {WITH_POPULATION} Above 1: the event comes sooner.",
            ),
            bars_of(
                "Approximate hazard ratios",
                [
                    name if unit == 1 else f"{name}, half of its range"
                    for name, unit in zip(self.names, self.units, strict=True)
                ],
                list(replace(per_half, null=1.0).cells()),
                "Of a number for half of its range, of a category against the first one.",
            ),
            Table(
                "Does any covariate matter?",
                ("Wald test", "degrees of freedom", "chi-square", "p"),
                (("all known hazard ratios are 1", *test),),
                "The test includes the noise.",
            ),
        )


def common_hazard(exits: Floats, ends: Floats, noise: float) -> tuple[Floats, Floats]:
    """Return the cumulative hazard at the ends of cells, and the events that it expects in each.

    Parameters
    ----------
    exits : ndarray of shape (cells + 1, 2)
        Noisy numbers of records that leave with and without the event. The last row is for those
        who are there at the end.
    ends : ndarray of shape (cells + 1,)
        Ends of cells, from 0 on.
    noise : float
        Deviation of each number.
    """
    cells, widths = len(ends) - 1, np.diff(ends)
    events, out = exits[:-1, 0], exits.sum(axis=1)
    left = np.cumsum(out[::-1])[::-1]
    # Half of those who leave in a cell count as being there, as at the middle of it.
    lived = widths * (left[1:] + out[:-1] / 2)
    # Sums over later cells share their noise, which grows with the number of cells.
    error = widths * noise * np.sqrt(2 * np.arange(cells + 1, 1, -1.0))
    fewest = _FEWEST_EVENTS * max(float(events.sum()), 1.0)
    walls = [0]
    for end in range(1, cells + 1):
        part = slice(walls[-1], end)
        clear = _CLEAR * noise * sqrt(end - walls[-1])
        if events[part].sum() > max(clear, fewest) and lived[part].sum() > _CLEAR * float(
            np.sqrt((error[part] ** 2).sum())
        ):
            walls.append(end)
    walls = [*walls[: max(len(walls) - 1, 1)], cells]  # the rest joins the last block
    rates = np.zeros(cells)
    for first, end in pairwise(walls):
        part = slice(first, end)
        # Noise may leave nobody at risk: a hazard without bound would follow.
        size = max(float(lived[part].sum()), (noise + 1e-9) * float(widths[part].sum()))
        rates[part] = max(float(events[part].sum()), 0.0) / size
    hazard = np.append(0.0, np.cumsum(rates * widths))
    # Above 0, so that pieces of time have ends also where no event was seen.
    return hazard, rates * np.maximum(lived, 0.0) + 1e-9
