"""Generalized linear models: two counts of columns, then three sums at better and better weights.

References
----------
.. [MN89] McCullagh, Nelder, "Generalized Linear Models", 2nd edition, Chapman and Hall 1989.
.. [ABL23] Avella-Medina, Bradshaw, Loh, "Differentially Private Inference via Noisy Optimization",
   Annals of Statistics 51(5), 2023: noisy gradients and noisy Newton steps of cut residuals.
.. [LZ86] Liang, Zeger, "Longitudinal data analysis using generalized linear models", Biometrika
   73(1), 1986: covariance of weights from products of the gradients of units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import isqrt, sqrt
from typing import Annotated, ClassVar, Literal, Self

import numpy as np

from cloister.core.arrays import Flags, Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import AtLeastZero, Range, Whole, declared
from cloister.core.display import Display, Summary
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.rows import summed
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
    Block,
    Gaussian,
    NoisyBlock,
    PublicFacts,
    Rows,
)
from cloister.tasks.columns import codes, in_cache, position
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.options import Target, build_task, noise_multiplier_for
from cloister.tasks.regression import report
from cloister.tasks.regression.design import FEWEST_BINS, MOST_BINS, Design, Placed, Term
from cloister.tasks.regression.engine import (
    BITS,
    PRIOR,
    PRIOR_CONSTANT,
    Curvature,
    Gradient,
    Prior,
    Solution,
    ball,
    by_unit,
    lengths,
    matrix_of,
    moved,
    packed_of,
    products,
    sandwich,
)
from cloister.tasks.regression.families import Family, family_of
from cloister.tasks.regression.tails import CLASSES, class_of, cut_of, cut_of_squares, middle_class
from cloister.tasks.state import decode_state, encode_state
from cloister.tasks.supervised.contrasts import Reference, check_references, chosen_references
from cloister.tasks.supervised.target import Features, check_columns

PLACES, SPREADS, NULL, MIDDLE, LAST = range(5)
SHARES = (0.04, 0.04, 0.20, 0.22, 0.50)
"""Shares of the budget of the rounds."""
_SIZES, _GRADIENT, _CURVATURE = (0.15, 0.25, 0.0), (0.30, 0.35, 0.74), (0.55, 0.40, 0.20)
_SQUARES, _SANDWICH = 0.06, 0.15  # of the last round, and of its gradient

_REACH = 3.0  # residual at which squares are cut
_FLATTEST = 4 * sqrt(2)  # deviations of noise of the curvature of a category that is kept
_SAME_WAY = 0.7  # share of the records of dropped categories that point in the same direction
_FARTHEST, _FARTHEST_LINEAR = (1.5, 4.0), (2.0, 6.0)  # step: in prior deviations; of the constant
_MOST_WIDTH = 61
_PART = 1 << 14  # records at a time, if a unit has several
_HOPELESS, _STEEP, _OF_CURVATURE = 1.0, 2.4, 0.298
_LARGEST = 1e9
_Z = INTERVAL_95["gaussian"]

Name = Literal["gaussian", "binomial", "poisson", "negative-binomial", "gamma"]
"""Names of families."""


@dataclass(frozen=True, kw_only=True)
class _Known:
    """The public state: where columns lie, the next weights and cuts, and the released sums."""

    columns: Placed
    weights: Floats
    cut: float = 1.0
    lost: float = 0.0  # likely length of what the cut takes away from a gradient
    length: float = 1.0  # to which curvatures are cut
    lost_curvature: float = 0.0
    squares_cut: float = 1.0
    curvature: Floats
    curvature_std: float = 0.0
    middle_at: Floats
    middle: Floats
    middle_std: float = 0.0
    middle_lost: float = 0.0
    last: Floats
    last_std: float = 0.0
    squares: Floats
    squares_std: float = 0.0
    residual_square: float = 0.0
    residual_square_std: float = 0.0


@declared
class GeneralizedLinear(Gaussian):
    """A generalized linear model, fitted by three noisy Newton steps.

    Parameters
    ----------
    n_features, target : int
        Number of columns, and index of the target.
    covariates : tuple of int
        Columns of the model.
    levels, low, high : tuple
        Number of categories of each column, 0 for numbers; and the box, data units.
    names : tuple of str
        Names of the coefficients, the intercept last.
    family, alpha
        See :class:`~cloister.tasks.regression.families.Family`.
    offset, exposure, weights : int or None
        Columns: of what is added to the margin, of what is added as its logarithm, and of the
        weights of records.
    sandwich : bool
        If True, population intervals use products of the gradients of units [LZ86]_.
    reference : tuple of int
        Code of each covariate's reference category; empty for the most frequent ones.
    clients : str
        The unit of privacy: "row", or the column that identifies units.
    client_column : int
        Index of that column, or -1.
    rows_of_unit, n_units : int
        Usual number of rows of a unit, and number of units: public.
    bins : int
        Number of bins of a histogram.

    Notes
    -----
    A unit adds the sum over its rows, cut to a length. Rows are explained in
    :mod:`cloister.tasks.regression.design`, privacy in docs/proofs/glm.md.
    """

    name: ClassVar[str] = "glm"
    rounds: ClassVar[int] = 5
    rate: ClassVar[float] = 1.0
    noise_multiplier: ClassVar[float] = 0.0
    alone: ClassVar[bool] = False

    example: ClassVar[Example] = Example(MIXED, {"target": "weight"})

    @declared
    class Options:
        target: Target
        family: Annotated[Name, "distribution of the target"] = "gaussian"
        covariates: Annotated[
            tuple[str, ...], "columns of the model; all others than the target by default"
        ] = ()
        offset: Annotated[str | None, "column that is added to the margin"] = None
        exposure: Annotated[str | None, "column whose logarithm is added to the margin"] = None
        weights: Annotated[str | None, "column of the weights of records"] = None
        alpha: Annotated[AtLeastZero, "over-dispersion of a negative binomial target"] = 1.0
        sandwich: Annotated[
            bool | None,
            "population intervals from products of gradients; by default for counts, gamma "
            "targets and units of several rows",
        ] = None
        reference: Reference = None
        rows_of_unit: Annotated[Whole, "usual number of rows of a unit, if it has several"] = 1
        n_units: Annotated[Whole | None, "public number of units; nominal_n by default"] = None

    n_features: Features
    target: int
    covariates: tuple[int, ...]
    levels: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    names: tuple[str, ...]
    family: Name = "gaussian"
    alpha: AtLeastZero = 1.0
    offset: int | None = None
    exposure: int | None = None
    weights: int | None = None
    sandwich: bool = False
    reference: tuple[int, ...] = ()
    clients: str = "row"
    client_column: Annotated[int, Range(-1)] = -1
    rows_of_unit: Whole = 1
    bins: Annotated[int, Range(2, 1024)] = 64
    frac_bits: int = 16

    def __post_init__(self) -> None:
        columns = {"levels": self.levels, "low": self.low, "high": self.high}
        check_columns(self.n_features, self.target, **columns)
        used = [*self.covariates, self.target]
        used += [j for j in (self.offset, self.exposure, self.weights) if j is not None]
        if self.clients != "row":
            used.append(self.client_column)
        if len(set(used)) < len(used) or min(used) < 0 or max(used) >= self.n_features:
            raise PlanError(
                "covariates, target, offset, weights and unit must be different columns of "
                f"{self.n_features}, got {used}."
            )
        if any(self.levels[j] == 1 for j in self.covariates) or not self.covariates:
            raise PlanError(
                "covariates must be columns of numbers or of two categories or more; leave out "
                "those with one."
            )
        if self._design.width > _MOST_WIDTH:
            raise PlanError(
                f"covariates must make a design of at most {_MOST_WIDTH - 1} columns, got "
                f"{self._design.width - 1}; name fewer, or join rare categories."
            )
        if len(self.names) != sum(n or 1 for n in self._levels) + 1:
            raise PlanError("names must have an entry for each coefficient and the intercept.")
        if self.reference:
            check_references(self.reference, self._levels)
        self._check_target()

    def _check_target(self) -> None:
        levels, low, high = (part[self.target] for part in (self.levels, self.low, self.high))
        if self.family == "binomial":
            if levels != 2 and (levels or low < 0 or high > 1):
                raise PlanError(
                    "target of family 'binomial' must have two categories, or be a number in "
                    "[0, 1]; choose another column."
                )
        elif levels:
            raise PlanError(
                f"target of family {self.family!r} must be a column of numbers, got one of "
                "categories; use family 'binomial' for two categories."
            )
        elif self.family != "gaussian" and low < 0:
            raise PlanError(
                f"target of family {self.family!r} must be 0 or more, but its lower bound is "
                f"{low:g}; correct the bounds."
            )
        if self.offset is not None and self.exposure is not None:
            raise PlanError("offset and exposure exclude each other; give one of them.")
        for name in ("offset", "exposure", "weights"):
            column = getattr(self, name)
            if column is None or not (self.levels[column] or self.low[column] < 0):
                continue
            if self.levels[column] or name != "offset":
                raise PlanError(f"{name} must be a column of numbers with bounds of 0 or more.")

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Design the sums; raise PlanError if noise would drown the model."""
        columns = facts.columns
        target = position(columns, options.target)
        named = {name: getattr(options, name) for name in ("offset", "exposure", "weights")}
        others = {k: None if v is None else position(columns, v, k) for k, v in named.items()}
        client = facts.names.index(facts.unit) if facts.unit in facts.names else -1
        taken = {target, client, *others.values()}
        chosen = [position(columns, name, "covariates") for name in options.covariates]
        covariates = chosen or [j for j in range(len(columns)) if j not in taken]
        reference: tuple[int, ...] = ()
        if options.reference:
            every = chosen_references(columns, options.reference, options.target)
            reference = tuple(every[j] for j in covariates)
        robust = options.sandwich
        if robust is None:
            robust = client >= 0 or options.family not in ("gaussian", "binomial")
        units = options.n_units or facts.nominal_n
        multiplier = noise_multiplier_for(facts) or 0.0
        task = build_task(
            cls,
            facts,
            options,
            target=target,
            covariates=tuple(covariates),
            names=tuple(_names(facts, covariates)),
            **others,
            sandwich=robust,
            reference=reference,
            clients=facts.unit if client >= 0 else "row",
            client_column=client,
        )
        task._refuse_few(units, multiplier)
        noise = multiplier * sqrt(task._design.places[1] / SHARES[PLACES])
        bins = FEWEST_BINS
        while bins < MOST_BINS and 2.5 * bins * noise <= units:
            bins *= 2
        return replace(task, bins=bins)

    def _refuse_few(self, units: int, multiplier: float) -> None:
        """Raise PlanError if the noise of the curvature would be above what it is to measure."""
        size = sum(_STEEP * sqrt(max(n - 1, 1)) for n in self._levels)
        noise = 2 * sqrt(self._design.width) * multiplier * (1 + size) / sqrt(2 * _OF_CURVATURE)
        needed = int(noise * 2 * _STEEP / _HOPELESS) + 1
        if units < needed:
            raise PlanError(
                f"nominal_n must be at least {needed:,} for {self._design.width - 1} columns at "
                f"this budget, got {units:,}: noise would drown the model; raise epsilon, or name "
                "fewer covariates."
            )

    def describe(self) -> str:
        unit = "record" if self.clients == "row" else f"value of {self.clients!r}"
        return (
            f"A {self.family} regression on {self._design.width - 1} columns of a design. Two "
            "noisy counts give location and scale of columns. Three rounds sum gradients and "
            "curvatures at public weights, cut to lengths from noisy counts of their sizes. Each "
            f"{unit} adds one vector to a sum. The coefficients are computed from these sums."
        )

    # Columns --------------------------------------------------------------------------------------

    @cached_property
    def _family(self) -> Family:
        return family_of(self.family, self.alpha)

    @cached_property
    def _levels(self) -> tuple[int, ...]:
        """Levels of the covariates."""
        return tuple(self.levels[j] for j in self.covariates)

    def _term(self, column: int) -> Term:
        levels, one = self.levels[column], 1 << self.frac_bits
        if levels:
            return Term(
                str(column),
                lambda records: codes(records[:, column], levels, self.frac_bits),
                levels=tuple(map(str, range(levels))),
            )
        low, high = self.low[column], self.high[column]
        return Term(str(column), lambda records: records[:, column] / one, low, high)

    @cached_property
    def _design(self) -> Design:
        target = self._term(self.target)
        if self.family == "binomial" and not target.levels:  # of a number, events are counted

            def event(records: Records) -> Integers:
                return (target.in_data_units(records) >= 0.5).astype(np.int64)

            target = Term(target.name, event, levels=("0", "1"))
        terms = tuple(self._term(j) for j in self.covariates)
        place = self.exposure if self.offset is None else self.offset
        offset = None if place is None else self._term(place)
        return Design(terms, target, self.bins, offset)

    def _target_unit(self, known: _Known) -> float:
        """Return the unit of the target and its margin, data units: its deviation, or 1."""
        if not self._family.linear:
            return 1.0
        half = (self.high[self.target] - self.low[self.target]) / 2
        return half * max(float(known.columns.target[1]), 1e-9)

    def _middle_target(self, known: _Known) -> float:
        """Return the released centre of the target, data units."""
        low, high = self.low[self.target], self.high[self.target]
        if self.levels[self.target]:
            low, high = 0.0, 1.0
        return (low + high) / 2 + (high - low) / 2 * float(known.columns.target[0])

    def _targets(self, known: _Known, records: Records) -> Floats:
        """Return the target of each record; that of least squares about its centre, in its unit."""
        values = records[:, self.target]
        if self.levels[self.target]:
            return codes(values, 2, self.frac_bits).astype(np.float64)
        if self._family.linear:
            centre, deviation, _ = known.columns.target
            places = values / (1 << self.frac_bits)
            return np.asarray((places - centre) / max(float(deviation), 1e-9))
        return self._term(self.target).in_data_units(records)

    def _offsets(self, known: _Known, records: Records) -> Floats | float:
        """Return what is added to the margin of each record."""
        offset = self._design.offset
        unit = self._target_unit(known)
        return 0.0 if offset is None else self._margin_at(np.asarray(offset.of(records)), unit)

    def _margin_at(self, places: Floats, unit: float) -> Floats:
        """Return the margin of an offset at places of its box ``[-1, 1]``."""
        offset = self._design.offset
        assert offset is not None
        low, high = offset.low, offset.high
        values = (low + high) / 2 + (high - low) / 2 * places
        if self.exposure is not None:  # at least half a grid step, so that it has a logarithm
            return np.asarray(
                np.log(np.maximum(values, (high - low) * 0.5 ** (self.frac_bits + 2)))
            )
        return np.asarray(values / unit)

    # Sums -----------------------------------------------------------------------------------------

    def start(self) -> State:
        """Return the state before the first round, with weights of 0."""
        q = self._design.width
        zeros, packed = np.zeros(q), np.zeros(q * (q + 1) // 2)
        return encode_state(
            _Known(
                columns=self._design.unplaced(),
                weights=zeros,
                curvature=packed,
                middle_at=zeros,
                middle=zeros,
                last=zeros,
                squares=packed if self.sandwich else np.zeros(1),
            )
        )

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return counts of bins, twice; then sizes, a gradient, a curvature and squares."""
        share, design = SHARES[t], self._design
        if t < NULL:
            name = ("places", "spreads")[t]
            size, touched = design.spreads if t else design.places
            return (Block.counting(name, (size,), share, touched),)
        at, q = t - NULL, design.width
        gradient, squares = _GRADIENT[at], _SQUARES if t == LAST else 0.0
        if not self._family.dispersed:
            gradient, squares = gradient + squares, 0.0
        meat = _SANDWICH * gradient if self.sandwich and t == LAST else 0.0
        blocks = [_ball("gradient", q, share * (gradient - meat))]
        blocks.append(_ball("curvature", q * (q + 1) // 2, share * _CURVATURE[at]))
        if _SIZES[at]:
            kinds = 2 if t == NULL else 1
            shape = (kinds, len(CLASSES))
            blocks.append(Block.counting("sizes", shape, share * _SIZES[at], kinds))
        if squares:
            one = 1 << BITS
            blocks.append(Block.counting("residual_square", (1,), share * squares, one=one))
        if meat:
            blocks.append(_ball("sandwich", q * (q + 1) // 2, share * meat))
        return tuple(blocks)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return what each record adds, if each is a unit; else what each unit adds to a vector."""
        return self._rows(t, self._read(state), records, self._owners(records))

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums of all blocks over units."""
        known, blocks = self._read(state), self.blocks(t)
        total = np.zeros(sum(block.size for block in blocks), dtype=np.int64)
        for part in self._parts(records):
            rows = self._rows(t, known, part, self._owners(part))
            total += np.concatenate([summed(*pair) for pair in zip(rows, blocks, strict=True)])
        return total

    def contribute_sampled(
        self, t: int, state: GridState, records: Records, coins: Callable[[int], bytes]
    ) -> Integers:
        """Return the sums over all units, since none is left out."""
        return self.contribute(t, state, records)

    def _parts(self, records: Records) -> Iterator[Records]:
        """Yield parts of the records, each with whole units."""
        if self.clients == "row":
            yield from in_cache(records)
            return
        records = records[np.argsort(records[:, self.client_column], kind="stable")]
        ends = np.flatnonzero(np.diff(records[:, self.client_column])) + 1
        first = 0
        for end in ends:
            if end - first >= _PART:
                yield records[first:end]
                first = int(end)
        yield records[first:]

    def _owners(self, records: Records) -> Integers | None:
        """Return the number of the unit of each record; None if each is one."""
        if self.clients == "row":
            return None
        found = np.unique(records[:, self.client_column], return_inverse=True)[1]
        return found.astype(np.int64)

    def _rows(
        self, t: int, known: _Known, records: Records, owner: Integers | None
    ) -> tuple[Rows, ...]:
        design, columns = self._design, known.columns
        if t < NULL:
            cells = design.cells_of_places(records)
            if t == SPREADS:
                cells = design.cells_of_spreads(columns, records)
            if owner is None:
                one = np.full(cells.shape[1], 1 << COUNT_BITS, dtype=np.int64)
                return (Rows(cells, one),)
            # The rows of a unit share one count.
            part = (1 << COUNT_BITS) // np.bincount(owner)[owner]
            return (Rows(cells, np.repeat(part[:, None], cells.shape[1], axis=1)),)
        with np.errstate(all="ignore"):  # a dishonest state has any numbers; balls leave them out
            return self._payloads(t, known, records, owner)

    def _payloads(
        self, t: int, known: _Known, records: Records, owner: Integers | None
    ) -> tuple[Rows, ...]:
        rows = self._design.rows(known.columns, records)
        margin = np.zeros(len(records)) + self._offsets(known, records)
        for weight, entry in zip(known.weights, rows, strict=True):
            margin += weight * entry
        residual, weight = self._family.score(margin, self._targets(known, records))
        counted = self._counted_weights(records)
        squares = counted * residual * residual
        residual, weight = counted * residual, counted * weight
        gradients = by_unit(rows * residual, owner)
        curvatures = by_unit(products(rows) * weight, owner)
        made = [Rows.dense(ball(gradients, known.cut)), Rows.dense(ball(curvatures, known.length))]
        names = [block.name for block in self.blocks(t)]
        if "sizes" in names:
            sizes = lengths(gradients)
            if least := self._family.least_size(self._null_mean(known)):
                raised = lengths(rows) * np.maximum(np.abs(residual), least * counted)
                sizes = by_unit(raised[None], owner)[0]
            found = [class_of(sizes)]
            if t == NULL:
                found.append(len(CLASSES) + class_of(lengths(curvatures)))
            made.append(Rows.at(found, [1 << COUNT_BITS] * len(found)))
        if "residual_square" in names:
            parts = np.minimum(np.nan_to_num(squares / _REACH**2, nan=0.0), 1.0)
            if owner is not None:
                parts = by_unit(parts[None], owner)[0] / np.bincount(owner)
            whole = np.trunc(np.minimum(parts, 1.0) * (1 << BITS)).astype(np.int64)
            made.append(Rows.dense(whole[:, None]))
        if "sandwich" in names:
            shortened = gradients / np.maximum(lengths(gradients), known.squares_cut)
            made.append(Rows.dense(ball(products(shortened), 1.0)))
        return tuple(made)

    def _counted_weights(self, records: Records) -> Floats | float:
        """Return the weight of each record, at most 1."""
        if self.weights is None:
            return 1.0
        values = self._term(self.weights).in_data_units(records)
        return np.clip(values / self.high[self.weights], 0.0, 1.0)

    # Updates --------------------------------------------------------------------------------------

    def _read(self, state: GridState) -> _Known:
        known = decode_state(_Known, state, self.frac_bits)
        columns = known.columns
        levels = np.maximum(self._levels, 1)
        return replace(  # bounds hold for any state; these only keep numbers in range
            known,
            columns=replace(columns, reference=np.clip(columns.reference, 0, levels - 1)),
            cut=max(known.cut, CLASSES[0]),
            length=max(known.length, CLASSES[0]),
            squares_cut=max(known.squares_cut, CLASSES[0]),
        )

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the state with places of columns, the next weights and cuts, or the last sums."""
        known, design = self._read(state), self._design
        if t == PLACES:
            columns = design.read_places(known.columns, *released["places"].in_records())
            return encode_state(replace(known, columns=columns))
        if t == SPREADS:
            words, noise_std = released["spreads"].in_records()
            words = words.reshape(-1, words.size // design.spreads[1])
            columns = design.read_spreads(known.columns, words, noise_std)
            return encode_state(self._at_null(replace(known, columns=columns)))
        known = self._with_curvature(t, known, released["curvature"])
        if t == NULL:
            known = self._without_weak(known)
        value, noise_std = released["gradient"].in_records(BITS)
        value, noise_std = value * known.cut, noise_std * known.cut
        if t == LAST:
            return encode_state(
                self._with_squares(replace(known, last=value, last_std=noise_std), released)
            )
        return encode_state(
            self._stepped(t, known, released, Gradient(known.weights, value, noise_std))
        )

    def _null_mean(self, known: _Known) -> float:
        """Return the mean of the target at the null model; of least squares about its centre."""
        if self._family.linear:
            return 0.0
        return float(self._family.mean(np.array(self._family.margin(self._middle_target(known)))))

    def _null(self, known: _Known) -> Floats:
        """Return the weights of the null model."""
        weights = np.zeros(self._design.width)
        if not self._family.linear:
            weights[-1] = self._family.margin(self._middle_target(known))
        if self._design.offset:
            usual = np.array(known.columns.exposed)
            weights[-1] -= float(self._margin_at(usual, self._target_unit(known)))
        return weights

    def _null_weight(self, known: _Known) -> float:
        """Return the weight of a record at the null model."""
        return float(self._family.weight(np.array([self._null_mean(known)]), self.alpha)[0])

    def _residuals(self, known: _Known) -> tuple[float, float]:
        """Return the usual largest residual at the null model, and a bound on those of the box."""
        centre, deviation, reach = known.columns.target
        if self.family == "binomial":
            return 1.0, 1.0
        if self._family.linear:
            deviation = max(float(deviation), 1e-9)
            return float(reach) / deviation, 2 * (1 + abs(float(centre))) / deviation
        mean, half = self._null_mean(known), (self.high[self.target] - self.low[self.target]) / 2
        factor = float(self._family.factor(np.array([mean]), self.alpha)[0])
        usual = float(reach) * half + abs(self._middle_target(known) - mean)
        return max(factor * usual, 1.0), max(factor * self.high[self.target], 1.0)

    def _at_null(self, known: _Known) -> _Known:
        """Return the state at the null model, with cuts from the reach of columns."""
        squared, rows = self._design.reach_squared(known.columns), float(self.rows_of_unit)
        return replace(
            known,
            weights=self._null(known),
            cut=sqrt(squared * rows) * self._residuals(known)[0],
            length=self._null_weight(known) * squared * rows,
        )

    def _with_curvature(self, t: int, known: _Known, block: NoisyBlock) -> _Known:
        words, noise_std = block.in_records(BITS)
        noise_std *= known.length / sqrt(2)  # of an entry off the diagonal
        curvature = Curvature(matrix_of(words * known.length), noise_std)
        if t > NULL:
            before = Curvature(matrix_of(known.curvature), known.curvature_std)
            curvature = curvature.drawn_to(before, self._family.linear)
        packed = packed_of(curvature.matrix)
        return replace(known, curvature=packed, curvature_std=curvature.noise_std)

    def _without_weak(self, known: _Known) -> _Known:
        """Return the state without categories whose own curvature is not above its noise."""
        matrix, columns = matrix_of(known.curvature), known.columns
        own = np.diag(matrix)[:-1] - matrix[:-1, -1] ** 2 / max(float(matrix[-1, -1]), 1e-9)
        weak = (columns.rare > 0) & (own < _FLATTEST * known.curvature_std)
        return replace(known, columns=replace(columns, shown=columns.shown * ~weak))

    def _stepped(
        self, t: int, known: _Known, released: Mapping[str, NoisyBlock], gradient: Gradient
    ) -> _Known:
        """Return the state with weights one step on, and with the cuts of the next round."""
        counts, noise_std = released["sizes"].in_records()
        columns, (gradients, *_) = known.columns, self.blocks(t + 1)
        sizes = next(block for block in self.blocks(t) if block.name == "sizes")
        multiplier = _Z * noise_std * sqrt(sizes.weight / sizes.shape[0])
        most = self.rows_of_unit * sqrt(self._design.reach_squared(columns, whole_box=True))
        largest = most * self._residuals(known)[1]
        price = multiplier / sqrt(gradients.weight)
        cut, lost = cut_of(counts[0], noise_std, largest, price, columns.n)
        typical = float(CLASSES[middle_class(counts[0], columns.n)])
        hidden = _SAME_WAY * typical * float(columns.rare[columns.shown == 0].sum())
        gradient = replace(gradient, lost=float(np.hypot(known.lost, hidden)))
        weights = self._limited(known, self._moved(known, [gradient])).weights
        known = replace(known, weights=weights, cut=cut, lost=float(np.hypot(lost, hidden)))
        if t == NULL:
            weight = self._null_weight(known)
            price = multiplier / sqrt(self.blocks(t + 1)[1].weight)
            most = most**2 / self.rows_of_unit * weight
            length, lost = cut_of(counts[1], noise_std, most, price, columns.n)
            growth = self._family.growth(weight)
            return replace(known, length=length * growth, lost_curvature=lost * growth)
        if self.sandwich:
            price = multiplier / sqrt(self.blocks(LAST)[-1].weight)
            known = replace(
                known, squares_cut=cut_of_squares(counts[0], noise_std, columns.n, price)
            )
        return replace(
            known,
            middle_at=gradient.at,
            middle=gradient.value,
            middle_std=gradient.noise_std,
            middle_lost=gradient.lost,
        )

    def _with_squares(self, known: _Known, released: Mapping[str, NoisyBlock]) -> _Known:
        if "residual_square" in released:
            words, noise_std = released["residual_square"].in_records(BITS)
            unit = _REACH**2 / known.columns.n
            known = replace(
                known,
                residual_square=float(words[0]) * unit,
                residual_square_std=noise_std * unit,
            )
        if "sandwich" in released:
            words, noise_std = released["sandwich"].in_records(BITS)
            unit = known.squares_cut**2
            known = replace(known, squares=words * unit, squares_std=noise_std * unit / sqrt(2))
        return known

    # The model ------------------------------------------------------------------------------------

    def _kept(self, known: _Known) -> Flags:
        return np.append(known.columns.shown > 0, True)

    def _prior(self, known: _Known) -> Prior:
        deviation = np.append(PRIOR / np.maximum(known.columns.spread, 1e-9), PRIOR_CONSTANT)
        return Prior(self._null(known), deviation, self._kept(known))

    def _moved(self, known: _Known, gradients: list[Gradient], last: bool = False) -> Solution:
        matrix = matrix_of(known.curvature)
        curvature = Curvature(matrix, known.curvature_std, known.lost_curvature)
        return moved(
            known.weights,
            gradients,
            curvature,
            self._prior(known),
            drift=self._family.drift,
            last=last,
        )

    def _limited(self, known: _Known, solution: Solution) -> Solution:
        """Return a solution whose weights are not farther away than a step may lead."""
        far, constant = _FARTHEST_LINEAR if self._family.linear else _FARTHEST
        most = np.append(far * self._prior(known).deviation[:-1], constant)
        step = np.clip(solution.weights - known.weights, -most, most)
        return replace(solution, weights=np.clip(known.weights + step, -_LARGEST, _LARGEST))

    def _solution(self, known: _Known) -> Solution:
        gradients = [
            Gradient(known.middle_at, known.middle, known.middle_std, known.middle_lost),
            Gradient(known.weights, known.last, known.last_std, known.lost),
        ]
        return self._limited(known, self._moved(known, gradients, last=True))

    def _sampling(self, known: _Known, solution: Solution) -> Floats:
        if self.sandwich:
            squares = matrix_of(known.squares)
            return sandwich(solution, squares, known.squares_std, self._kept(known))
        dispersed = self._family.dispersed
        return solution.inverse * (max(known.residual_square, 1e-9) if dispersed else 1.0)

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return no forecast: half-widths depend on tails and correlations of the columns."""
        return {}

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the model with its 95 % intervals; see :func:`.report.results_of`."""
        known = self._read(state)
        solution = self._solution(known)
        unit = self._target_unit(known)
        middle = self._middle_target(known) if self._family.linear else 0.0
        residual = np.array([known.residual_square, known.residual_square_std])
        return report.results_of(
            report.Scale(
                self._design.back(known.columns),
                self._levels,
                tuple(int(r) for r in known.columns.reference),
                self.reference,
                tuple((self.low[j], self.high[j]) for j in self.covariates),
                unit,
                middle,
            ),
            solution,
            self._sampling(known, solution),
            residual_square=residual if self._family.linear else None,
            units=(known.columns.n, known.columns.n_std),
        )

    def predict(self, results: Results, records: Records) -> Floats:
        """Return the predicted mean of the target; shape (n_samples,), data units."""
        margin = np.full(len(records), float(results["grid_coef"][-1]))
        sizes = [len(term.levels) or 1 for term in self._design.terms]
        coefficients = np.split(np.asarray(results["grid_coef"])[:-1], np.cumsum(sizes)[:-1])
        for term, part in zip(self._design.terms, coefficients, strict=True):
            values = np.asarray(term.of(records))
            margin += part[values] if term.levels else part[0] * values
        if self._design.offset:
            margin += self._margin_at(np.asarray(self._design.offset.of(records)), 1.0)
        return self._family.mean(margin)

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the clearest effects on the target."""
        return report.summary_of(self, results, columns[self.target])

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return the coefficients, and a picture of them per half box."""
        return report.displays_of(self, results, columns[self.target])


def _ball(name: str, size: int, weight: float) -> Block:
    """Return the block of sums of payloads in the unit ball."""
    # The L1 norm by Cauchy and Schwarz: only the L2 norm is checked in integers.
    return Block(name, (size,), isqrt(size << 2 * BITS), 1 << 2 * BITS, weight)


def _names(facts: PublicFacts, covariates: list[int]) -> Iterator[str]:
    """Yield the name of each coefficient."""
    for j in covariates:
        column = facts.columns[j]
        yield from [f"{column.name}={label}" for label in column.categories] or [column.name]
    yield "intercept"
