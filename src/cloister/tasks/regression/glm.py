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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import AtLeastZero, Range, Whole, declared
from cloister.core.display import Display, Summary
from cloister.core.errors import PlanError
from cloister.core.numerals import counted
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.rows import summed
from cloister.protocol.task import Block, Gaussian, NoisyBlock, PublicFacts, Rows
from cloister.tasks.columns import columns_of, in_cache, of_dates, position
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.options import Dates, Target, build_task, noise_multiplier_for
from cloister.tasks.regression import expected, report, sites
from cloister.tasks.regression.design import PLACES, Term, term_of
from cloister.tasks.regression.engine import Solution
from cloister.tasks.regression.expressions import label_of, names_in
from cloister.tasks.regression.families import family_of
from cloister.tasks.regression.formula import Design as FormulaDesign
from cloister.tasks.regression.formula import Formula, design_of
from cloister.tasks.regression.formula import Term as FormulaTerm
from cloister.tasks.regression.rounds import ROUNDS, SHARES, Known, Model
from cloister.tasks.state import decode_state, encode_state
from cloister.tasks.supervised.contrasts import (
    ReferenceOfFrequent,
    check_references,
    chosen_references,
)
from cloister.tasks.supervised.target import Features, check_columns

_MOST_WIDTH = 61
_PART = 1 << 14  # records at a time, if a unit has several

_LOOK = (
    " Separate sums of each silo show whether coefficients would change with a term for the silo."
)

Name = Literal["gaussian", "binomial", "poisson", "negative-binomial", "gamma"]
"""Names of families."""


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
        Columns of numbers that are added to the margin, whose logarithm is added to it, and that
        are the weights of records.
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
    formula : mapping
        The columns of the model, if they come from a formula; see
        :meth:`.formula.Design.to_dict`. Then `covariates` are the columns that it uses.
    columns : tuple of str
        Names of all columns, if there is a formula.
    here : str
        The silo that holds the records, for the term ``site``; no part of a plan.
    silos : tuple of str
        The silos in the plan's order, if the sums of each are looked at; see
        :mod:`cloister.tasks.regression.sites`.

    Notes
    -----
    A unit adds the sum over its rows, cut to a length. Rows are explained in
    :mod:`cloister.tasks.regression.design`, privacy in docs/proofs/regression.md.
    """

    name: ClassVar[str] = "glm"
    has_effects: ClassVar[bool] = True
    error_depends_on: ClassVar[str] = "the spread of the columns and the fit of the model"
    forecast_note: ClassVar[str] = expected.NOTE
    rounds: ClassVar[int] = ROUNDS
    rate: ClassVar[float] = 1.0
    noise_multiplier: ClassVar[float] = 0.0
    alone: ClassVar[bool] = False

    example: ClassVar[Example] = Example(MIXED, {"target": "weight", "n_units": 5000})

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
        reference: ReferenceOfFrequent = None
        rows_of_unit: Annotated[Whole, "usual number of rows of a unit, if it has several"] = 1
        n_units: Annotated[Whole | None, "public number of units; nominal_n by default"] = None
        by_silo: Annotated[
            bool, "spend 2 % to see whether coefficients would change with the term site"
        ] = False
        formula: Annotated[
            Mapping[str, Any] | None,
            "terms of the model: text such as 'y ~ age + site' in a command or an estimator, "
            "and parse_formula(TEXT).to_dict() in a plan",
        ] = None

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
    formula: Mapping[str, Any] | None = None
    columns: tuple[str, ...] = ()
    here: str = ""
    silos: tuple[str, ...] = ()
    frac_bits: int = 16
    dates: Dates = ()

    later: ClassVar[tuple[str, ...]] = ("formula", "columns", "here", "silos", "dates")

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
        named = self.formula or self.covariates  # a formula may have the silo alone
        if any(self.levels[j] == 1 for j in self.covariates) or not named:
            raise PlanError(
                "covariates must be columns of numbers or of two categories or more; leave out "
                "those with one."
            )
        if self.model.design.width > _MOST_WIDTH:
            raise PlanError(
                f"covariates must make a design of at most {_MOST_WIDTH - 1} columns, got "
                f"{self.model.design.width - 1}; name fewer, or join rare categories."
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
        """Design the sums; raise PlanError if noise would hide the model."""
        columns = facts.columns
        target = position(columns, options.target)
        named = {name: getattr(options, name) for name in ("offset", "exposure", "weights")}
        others = {k: None if v is None else position(columns, v, k) for k, v in named.items()}
        client = facts.names.index(facts.unit) if facts.unit in facts.names else -1
        taken = {target, client, *others.values()}
        chosen = [position(columns, name, "covariates") for name in options.covariates]
        covariates = chosen or [j for j in range(len(columns)) if j not in taken]
        parts = [(c.name, c.categories) for c in (columns[j] for j in covariates)]
        formula = None
        if options.formula is not None:
            formula = _design_of(options.formula, facts, options)
            used = frozenset().union(*(names_in(term.expression) for term in formula.terms))
            covariates = [j for j, name in enumerate(facts.names) if name in used]
            parts = [(term.name, term.levels) for term in formula.terms]
        reference: tuple[int, ...] = ()
        if options.reference:
            every = chosen_references(columns, options.reference, options.target)
            reference = tuple(every[j] for j in covariates)
        robust = options.sandwich
        if robust is None:
            # Counts vary more than their mean allows, and rows of one unit depend on each other.
            robust = client >= 0 or options.family not in ("gaussian", "binomial")
        units = options.n_units or facts.nominal_n
        multiplier = noise_multiplier_for(facts) or 0.0
        looked = options.by_silo and len(facts.silos) > 1 and not (formula and formula.sites)
        task = build_task(
            cls,
            facts,
            options,
            target=target,
            silos=facts.silos if looked else (),
            covariates=tuple(covariates),
            names=tuple(_names(parts)),
            **others,
            sandwich=robust,
            # As in R; products of categories are relative to the same levels.
            reference=tuple(t.reference or 0 for t in formula.terms) if formula else reference,
            formula=formula.to_dict() if formula else None,
            columns=facts.names if formula else (),
            clients=facts.unit if client >= 0 else "row",
            client_column=client,
        )
        task._refuse_few(units, multiplier)
        bins = task.model.design.enough_bins(units, multiplier, SHARES[PLACES])
        return replace(task, bins=bins)

    def _refuse_few(self, units: int, multiplier: float) -> None:
        """Raise PlanError if the noise of the curvature would be above what it is to measure."""
        needed = self.model.fewest(multiplier)
        if units < needed:
            columns = self.model.design.width - 1
            least = (
                f"at least {needed:,} for a design of {counted(columns, 'column')} at this budget"
            )
            # It is 1 until it is known from a noisy count, which would be spent in vain.
            given = f"be {least}, got {units:,}" if units > 1 else f"be given, {least}"
            raise PlanError(
                f"nominal_n must {given}: noise would hide the model; raise epsilon, or name fewer "
                "covariates."
            )

    def describe(self) -> str:
        unit = "record" if self.clients == "row" else f"value of {self.clients!r}"
        return (
            f"A {self.family} regression {self._equation}. Two noisy counts give location and "
            "scale of columns. Three rounds sum gradients and curvatures at public weights, cut to "
            f"lengths from noisy counts of their sizes. Each {unit} adds one vector to a sum. The "
            "coefficients are computed from these sums."
            f"{_LOOK if self.silos else ''}"
        )

    @property
    def _equation(self) -> str:
        """The target and the terms of a formula; otherwise the options name the columns."""
        formula = self._formula
        if formula is None:
            return f"on {counted(self.model.design.width - 1, 'column')} of a design"
        terms = [repr(term.name) for term in formula.terms] or ["no column"]
        added = formula.offset
        offset = f" with the offset {label_of(added.expression)!r}" if added else ""
        return f"of {formula.target.name!r} on {', '.join(terms)}{offset}"

    # Columns --------------------------------------------------------------------------------------

    @cached_property
    def _formula(self) -> FormulaDesign | None:
        return None if self.formula is None else FormulaDesign.from_dict(self.formula)

    @property
    def sites(self) -> tuple[str, ...]:
        """The silos that have terms in the model."""
        return self._formula.sites if self._formula else ()

    def at_silo(self, silo: str) -> Self:
        """Return the task for the records of one silo."""
        if silo not in self.sites:
            raise PlanError(f"silo must be one of {', '.join(self.sites)}, got {silo!r}.")
        return replace(self, here=silo)

    @cached_property
    def _levels(self) -> tuple[int, ...]:
        """Levels of the terms, 0 for numbers."""
        if self._formula:
            return tuple(len(term.levels) for term in self._formula.terms)
        return tuple(self.levels[j] for j in self.covariates)

    @property
    def boxes(self) -> tuple[float, ...]:
        """Width of the public range of each number, 1 for a category; without the intercept."""
        terms = self.model.terms
        wide = ([1.0] * len(t.levels) if t.levels else [t.high - t.low] for t in terms)
        return tuple(chain.from_iterable(wide))

    def _term_of(self, column: FormulaTerm) -> Term:
        """Return a column of a formula as a term of the model."""
        public = columns_of(self.columns, self.low, self.high)
        of = column.on_grid(public, self.frac_bits, self.here or None)
        return Term(column.name, of, column.low, column.high, column.levels)

    def _term(self, column: int) -> Term:
        levels, low, high = self.levels[column], self.low[column], self.high[column]
        return term_of(column, levels, low, high, self.frac_bits)

    @cached_property
    def model(self) -> Model:
        """The model with its rounds."""
        formula = self._formula
        target = self._term_of(formula.target) if formula else self._term(self.target)
        if self.family == "binomial" and not target.levels:
            # An event is a number of a half or more, so that 0 and 1 may have any bounds.
            target = Term(target.name, partial(_events, target), levels=("0", "1"))
        place = self.exposure if self.offset is None else self.offset
        offset = None if place is None else self._term(place)
        if formula and formula.offset:
            offset = self._term_of(formula.offset)
        terms = map(self._term_of, formula.terms) if formula else map(self._term, self.covariates)
        return Model(
            family=family_of(self.family, self.alpha),
            terms=tuple(terms),
            target=target,
            offset=offset,
            exposure=self.exposure is not None,
            counted=None if self.weights is None else self._term(self.weights),
            sandwich=self.sandwich,
            rows_of_unit=self.rows_of_unit,
            bins=self.bins,
            silos=len(self.silos),
        )

    # Sums -----------------------------------------------------------------------------------------

    def start(self) -> State:
        """Return the state before the first round, with weights of 0."""
        return encode_state(self.model.start())

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return counts of bins, twice; then gradient and curvature, and sizes or squares."""
        return self.model.blocks(t)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return the rows of records to each block, or of units if they have several records."""
        return self.model.rows(t, self.known(state), records, self._owners(records))

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums of all blocks over units."""
        known, blocks = self.known(state), self.blocks(t)
        total = np.zeros(sum(block.size for block in blocks), dtype=np.int64)
        for part in self._parts(records):
            rows = self.model.rows(t, known, part, self._owners(part))
            total += np.concatenate([summed(*pair) for pair in zip(rows, blocks, strict=True)])
        return total

    def to_silo_layer(self, t: int, silo: str, total: Integers) -> Integers:
        """Move sums from the first layer to that of one silo; only the last round has layers."""
        *others, last = self.blocks(t)
        if last.name != "look":
            return total
        size, at = sum(block.size for block in others), self.silos.index(silo)
        # The other layers are zero, so a rotation moves the sums.
        moved = np.roll(total[size:], at * (last.size // len(self.silos)))
        return np.concatenate([total[:size], moved])

    def contribute_sampled(
        self, t: int, state: GridState, records: Records, coins: Callable[[int], bytes]
    ) -> Integers:
        """Return the sums over all units, since none is left out."""
        # The rate is 1: no coin is needed.
        return self.contribute(t, state, records)

    def _parts(self, records: Records) -> Iterator[Records]:
        """Yield parts of the records, each with whole units."""
        if self.clients == "row":
            yield from in_cache(records)
            return
        # Stable: the order of the rows of a unit, and so their sum, is that of the file.
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

    def known(self, state: GridState) -> Known:
        """Return a public state with its numbers in their ranges."""
        known = decode_state(Known, state, self.frac_bits)
        return replace(known, fit=known.fit.defined(self._levels))

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the state with places of columns, the next weights and cuts, or the last sums."""
        return encode_state(self.model.update(t, self.known(state), released))

    # Results --------------------------------------------------------------------------------------

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the expected error of coefficients times standard deviations of their columns.

        See :func:`.expected.forecast_of`.
        """
        return expected.forecast_of(self, noise_std, nominal_n)

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the model with its 95 % intervals; see :func:`.report.results_of`."""
        known = self.known(state)
        solution = self.model.solution(known)
        return self.results_of(known, solution, self.model.sampling(known, solution))

    def results_of(self, known: Known, solution: Solution, sampling: Floats) -> Results:
        """Return the results of a solution whose weights have this covariance over samples."""
        model = self.model
        linear = model.family.linear
        scale = report.Scale(
            model.design.back(known.fit.columns),
            self._levels,
            tuple(int(r) for r in known.fit.columns.reference),
            self.reference,
            tuple((term.low, term.high) for term in model.terms),
            model.unit(known.fit.columns),
            model.middle(known.fit.columns) if linear else 0.0,
        )
        square = known.residual_square, known.residual_square_std, known.residual_square_lost
        units = known.fit.columns.n, known.fit.columns.n_std
        found = report.results_of(scale, solution, sampling, square if linear else None, units)
        if self.silos:
            moved = model.change_with_sites(known, solution)
            return {**found, **report.site_change_of(scale, solution, *moved)}
        return {**found, **sites.results_of(self, found)} if self.sites else found

    def predict(self, results: Results, records: Records) -> Floats:
        """Return the predicted mean of the target; shape (n_samples,), data units."""
        if self.sites and not self.here:
            raise PlanError(
                f"predictions of a model with the term site need a silo, one of "
                f"{', '.join(self.sites)}; name it."
            )
        return self.model.predicted(np.asarray(results["grid_coef"]), records)

    def coefficients(self, results: Results, columns: tuple[str, ...]) -> dict[str, Any]:
        """Return the coefficients with their covariances; see :func:`.report.coefficients_of`."""
        names = of_dates(self.names, columns, self.dates)
        model = {"family": self.family, "link": self.model.family.link}
        found = report.coefficients_of(results, names)
        return {**model, **found, **sites.coefficients_of(self, results, names)}

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the clearest effects on the target."""
        names = of_dates(self.names, columns, self.dates)
        return report.summary_of(self, results, columns[self.target], names)

    def doubts(self, results: Results, columns: tuple[str, ...]) -> Iterator[str]:
        """Yield a warning if no coefficient is known."""
        return report.doubts_of(results)

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return the coefficients, and a picture of them; see :func:`.report.displays_of`."""
        names = of_dates(self.names, columns, self.dates)
        coefficients = report.displays_of(self, results, columns[self.target], names)
        return (*coefficients, *sites.displays_of(self, results))


# Functions with names: a task is sent to workers, and a fitted model is stored.


def _events(target: Term, records: Records) -> Integers:
    return (target.in_data_units(records) >= 0.5).astype(np.int64)


def _names(columns: Iterable[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """Yield the name of each coefficient, from names and categories of columns."""
    for name, labels in columns:
        yield from [f"{name}={label}" for label in labels] or [name]
    yield "intercept"


def _design_of(
    written: Mapping[str, Any], facts: PublicFacts, options: GeneralizedLinear.Options
) -> FormulaDesign:
    """Return the design of a formula, or raise PlanError for what the model does not have."""
    found = design_of(Formula.from_dict(written), facts.columns, facts.silos)
    others = (options.covariates, options.offset, options.exposure, options.reference)
    if any(others):
        raise PlanError(
            "covariates, offset, exposure and reference must be part of the formula, not options; "
            "write them as terms, such as y ~ C(arm, Treatment('placebo')) + exposure(months)."
        )
    if names_in(found.target.expression) != {options.target}:
        raise PlanError(
            f"target must be the column on the left of the formula, {found.target.name!r}, got "
            f"{options.target!r}."
        )
    if not found.intercept:
        raise PlanError("formula must have an intercept; remove '- 1' or '0'.")
    return found
