"""Regression with missing cells: each incomplete record is a weighted set of its versions.

A model of each incomplete column is released first. Then a record with missing cells is replaced by
completed versions of it, with shares that sum to 1. Its sums are the means over its versions, so a
record adds one vector, as a complete one does. The second model is fitted to these sums.

References
----------
.. [Kim11] Kim, "Parametric fractional imputation for missing data analysis", Biometrika 98(1),
   2011.
.. [Rub87] Rubin, "Multiple Imputation for Nonresponse in Surveys", Wiley 1987.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import ceil, exp, isnan, sqrt
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from cloister.core.arrays import Flags, Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import AtLeastZero, Whole, declared
from cloister.core.display import Display, Estimate, Summary, Table
from cloister.core.errors import PlanError
from cloister.core.numerals import NOT_KNOWN
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.privacy.calibration import gdp_part
from cloister.protocol.rows import summed
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
    NO_VALUE,
    Block,
    Gaussian,
    NoisyBlock,
    PublicFacts,
    Rows,
)
from cloister.tasks.columns import in_cache, of_dates, position
from cloister.tasks.examples import BOOLEAN, MIXED, NUMBER, Example
from cloister.tasks.options import Target, build_task
from cloister.tasks.regression import report
from cloister.tasks.regression.design import Placed
from cloister.tasks.regression.engine import BITS, ball, by_unit, matrix_of, products
from cloister.tasks.regression.glm import GeneralizedLinear, Name
from cloister.tasks.regression.newton import ball_block
from cloister.tasks.regression.rounds import LAST, NULL, ROUNDS, Known
from cloister.tasks.state import part_of, prefixed
from cloister.tasks.supervised.contrasts import ReferenceOfFrequent
from cloister.tasks.supervised.target import Features

VERSIONS = 20
"""Number of versions of a record for the numbers that it lacks."""

_IMPUTERS, _MODELS = (0.40, 0.55), 0.92  # of the budget: of one or two imputers, of all models
_NORMAL, _LACKING, _SHIFT, _SPREAD = 0.02, 0.01, 0.03, 0.02
_END = ROUNDS + LAST
_ANALYSED = "analysis."  # of the names in the state
_MOST = 2  # incomplete columns
_AT = 2.0  # where the characteristic function of residuals is compared with that of the normal law
_NORMAL_WAVE = exp(-(_AT**2) / 2)  # mean cosine of normal residuals
_FURTHEST = 1.0  # distance of both, times share of missing cells and root of the number of records
_SURE = 1.5  # deviations of noise and sampling in this distance
_ENOUGH = 24.0  # deviations of noise in the number of complete records, for intervals that hold
_FAR = 200.0  # squared distance, beyond which a likelihood no longer falls
_LEAST_SQUARE, _LEAST_ROOT = 1e-6, 1e-9
_PART = 1 << 12  # records at a time
_Z = INTERVAL_95["gaussian"]
_LACK_NOTE = "[ , ] are 95 % confidence intervals (privacy noise only)."
_INFORMATION_NOTE = (
    "The part of the variance over samples that missing cells add. Complete cells of the same "
    "records would not have it."
)


@dataclass(frozen=True)
class Imputer:
    """The released model of an incomplete column, and the likely errors of its parameters.

    Parameters
    ----------
    weights : ndarray of shape (q,)
    deviation : float
        Of residuals, in deviations of the column; 0 for two categories.
    moves : ndarray of shape (q + 1, q + 1)
        Root of the covariance of weights and of the logarithm of the deviation, by noise and
        sampling. Each row is a likely change of all parameters.
    noise : ndarray of shape (q + 1, q + 1)
        The part of noise in this covariance, in units of the moves.
    waves_std : tuple of float
        Likely change of the mean sine and cosine of residuals by noise in the model.
    """

    task: GeneralizedLinear
    placed: Placed
    weights: Floats
    deviation: float
    moves: Floats
    noise: Floats
    waves_std: tuple[float, float]

    @classmethod
    def of(cls, task: GeneralizedLinear, known: Known) -> Self:
        """Return the model in a state after its last round."""
        model, solution = task.model, task.model.solution(known)
        q, deviation, waves_std = len(solution.weights), 0.0, (0.0, 0.0)
        noise, sampling = np.zeros((2, q + 1, q + 1))
        noise[:q, :q], sampling[:q, :q] = solution.noise, model.sampling(known, solution)
        if model.family.linear:
            square = max(known.residual_square, _LEAST_SQUARE)
            deviation, relative_std = sqrt(square), min(known.residual_square_std / square / 2, 1.0)
            # Without what the cut may have lost: intervals would be two to four times as wide, and
            # with residuals of which a cut takes much, nothing is known.
            noise[q, q] = relative_std**2
            sampling[q, q] = 1 / (2 * max(known.fit.columns.n, 1.0))  # a dishonest state has 0
            # A wrong intercept moves the sine of a normal residual. Other wrong weights spread it,
            # as a wrong deviation does, which moves the cosine.
            of_weights = np.maximum(np.diag(solution.noise), 0.0) / square
            spread = _AT * (relative_std + of_weights.sum() / 2)
            waves_std = _AT * _NORMAL_WAVE * sqrt(of_weights[-1]), _AT * _NORMAL_WAVE * spread
        # The symmetric root: eigenvectors have signs that may differ between silos.
        values, vectors = np.linalg.eigh(np.nan_to_num(noise + sampling))
        root = np.sqrt(np.maximum(values, 0.0))
        inverse = np.divide(1.0, root, out=np.zeros_like(root), where=root > _LEAST_ROOT)
        moves, back = ((vectors * part) @ vectors.T for part in (root, inverse))
        known_noise = back @ noise @ back
        return cls(
            task, known.fit.columns, solution.weights, deviation, moves, known_noise, waves_std
        )

    def moved(self, change: Floats) -> Imputer:
        """Return the model with other weights and another deviation."""
        deviation = self.deviation * float(np.exp(np.clip(change[-1], -1.0, 1.0)))
        return replace(self, weights=self.weights + change[:-1], deviation=deviation)

    def away(self, records: Records) -> tuple[Floats, Floats]:
        """Return the margin of records, and how far their cells are from it, in its deviations."""
        rows = self.task.model.design.rows(self.placed, records)
        margin = self.task.model.margins(self.placed, self.weights, rows, records)
        centre, deviation, _ = self.placed.target
        values = records[:, self.task.target] / (1 << self.task.frac_bits)
        places = (values - centre) / max(deviation, 1e-9)
        return margin, (places - margin) / max(self.deviation, 1e-3)

    def waves(self, records: Records) -> Floats:
        """Return sine and cosine of residuals, without their normal means; 0 for two categories."""
        away = _AT * self.away(records)[1]
        waves = np.array([np.sin(away), np.cos(away) - _NORMAL_WAVE])
        return waves * (self.deviation > 0)

    def completed(self, records: Records, at: Floats) -> tuple[Records, Floats]:
        """Return records with a value for each missing cell of the column, and their likelihood.

        `at` is the normal quantile of a number; below 0 for the first category. A number that is
        completed has the likelihood 1, since quantiles are drawn with equal shares.
        """
        column, one = self.task.target, 1 << self.task.frac_bits
        margin, away = self.away(records)
        absent = records[:, column] == NO_VALUE
        if self.task.levels[column]:
            values = np.where(at < 0, -one, one)
            of_event = self.task.model.family.mean(margin)
            is_event = np.where(absent, at, records[:, column]) > 0
            likelihood = np.where(is_event, of_event, 1 - of_event)
        else:
            centre, deviation, _ = self.placed.target
            places = centre + deviation * (margin + self.deviation * at)
            values = np.rint(np.clip(places, -1.0, 1.0) * one)
            likelihood = np.where(absent, 1.0, np.exp(-np.minimum(away**2, _FAR) / 2))
        completed = records.copy()
        completed[absent, column] = values[absent]
        return completed, likelihood


@dataclass(frozen=True)
class Versions:
    """Completed versions of records.

    Parameters
    ----------
    records : ndarray of shape (n_versions, n_features)
    owner : ndarray of shape (n_versions,)
        The number of the record of each version.
    share : ndarray of shape (n_versions,)
        The part of each in its record.
    """

    records: Records
    owner: Integers
    share: Floats

    @classmethod
    def of(cls, imputers: Sequence[Imputer], records: Records) -> Self:
        """Return the versions of records; one for a record without a missing cell."""
        lacks = absent(records, [one.task.target for one in imputers])
        alone, several = np.flatnonzero(~lacks), np.flatnonzero(lacks)
        events = sum(one.task.levels[one.task.target] > 0 for one in imputers)
        at = _nodes(len(imputers) - events, events)
        size = at.shape[1]
        table, share = np.repeat(records[several], size, axis=0), np.ones((len(several), size))
        with np.errstate(all="ignore"):  # a dishonest state has any numbers
            for one, quantiles in zip(imputers, at, strict=True):
                table, likelihood = one.completed(table, np.tile(quantiles, len(several)))
                share *= likelihood.reshape(share.shape)
            share /= share.sum(axis=1, keepdims=True)
        return cls(
            np.concatenate([records[alone], table]),
            np.concatenate([alone, np.repeat(several, size)]),
            np.concatenate([np.ones(len(alone)), np.nan_to_num(share).reshape(-1)]),
        )

    def means(self, values: Floats) -> Floats:
        """Return the means of columns over the versions of each record."""
        # Shares of one record sum to 1, so the sum is a mean.
        return by_unit(values * self.share, self.owner)


def absent(records: Records, columns: Sequence[int]) -> Flags:
    """Return flags of the records that lack a cell of these columns."""
    return np.asarray((records[:, list(columns)] == NO_VALUE).any(axis=1))


@cache
def _nodes(numbers: int, events: int) -> Floats:
    """Return the quantile of each version for each column, numbers first."""
    from scipy.special import ndtri

    quantiles = ndtri((np.arange(VERSIONS) + 0.5) / VERSIONS)
    quantiles /= np.sqrt((quantiles**2).mean())
    # The second order has hardly any correlation with the first.
    orders = np.arange(VERSIONS), np.arange(1, VERSIONS + 1) * 8 % (VERSIONS + 1) - 1
    found = np.array([quantiles[order] for order in orders[:numbers]])
    found = found.reshape(numbers, VERSIONS if numbers else 1)
    for _ in range(events):
        found = np.vstack([np.tile(found, 2), np.repeat([-1.0, 1.0], found.shape[1])])
    return found


@declared
class ImputedRegression(Gaussian):
    """A generalized linear model of records with missing cells.

    Parameters
    ----------
    imputers : tuple of GeneralizedLinear
        The model of each incomplete column, by the complete ones and those before it.
    analysis : GeneralizedLinear
        The model that is asked for.

    Notes
    -----
    Rows are explained in :mod:`cloister.tasks.regression.imputed`, privacy in
    docs/proofs/imputation.md.
    """

    name: ClassVar[str] = "imputed-regression"
    has_effects: ClassVar[bool] = True
    error_depends_on: ClassVar[str] = "the spread of the columns, the model and the missing cells"
    forecast_note: ClassVar[str] = (
        "No coefficient is known either if an incomplete number is far from a normal law around "
        "its mean by the other columns. A transformed column, such as a logarithm, may be normal."
    )
    without_site: ClassVar[str] = (
        "no covariate is known to be the silo. If none holds its name and silos differ both in a "
        "column and in the outcome, the coefficient of this column includes the difference between "
        "silos; add a column of categories with the name of the silo."
    )
    usage: ClassVar[str] = "--target systolic"
    rounds: ClassVar[int] = 2 * ROUNDS
    missing: ClassVar[str] = "impute"  # of an estimator that is stored

    example: ClassVar[Example] = Example(
        (replace(NUMBER, incomplete=True), *MIXED[1:3], replace(BOOLEAN, incomplete=True)),
        {"target": "weight", "n_units": 20_000},
    )

    @declared
    class Options:
        target: Target
        family: Annotated[Name, "distribution of the target"] = "gaussian"
        covariates: Annotated[
            tuple[str, ...], "columns of the model; all others than the target by default"
        ] = ()
        alpha: Annotated[AtLeastZero, "over-dispersion of a negative binomial target"] = 1.0
        sandwich: Annotated[
            bool | None, "population intervals from products of gradients, as for glm"
        ] = None
        reference: ReferenceOfFrequent = None
        n_units: Annotated[Whole | None, "public number of records; nominal_n by default"] = None

    n_features: Features
    imputers: tuple[GeneralizedLinear, ...]
    analysis: GeneralizedLinear
    frac_bits: int = 16

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Design both stages; raise PlanError if noise would hide a model."""
        columns = facts.columns
        # A person with at most one row is bounded as a row.
        is_row = facts.group_size == 1 and facts.unit not in ("silo", *facts.names)
        if facts.unit != "row" and not is_row:
            raise PlanError(
                "imputed-regression needs one record of each unit; join the records of a unit, or "
                "declare max_rows = 1 in the schema."
            )
        target = position(columns, options.target)
        names = options.covariates or [c.name for c in columns if c.name != options.target]
        used = [position(columns, name, "covariates") for name in names]
        # Numbers first: see `_nodes`.
        lacking = sorted(
            (j for j in used if columns[j].incomplete), key=lambda j: columns[j].levels
        )
        if not 0 < len(lacking) <= _MOST or any(columns[j].levels > 2 for j in lacking):
            raise PlanError(
                "covariates must have one or two columns with missing = 'keep', of numbers or of "
                f"two categories, got {[columns[j].name for j in lacking]}; declare them in the "
                "schema, or use task 'glm'."
            )
        complete = [j for j in used if j not in lacking]

        def stage(share: float, target: int, by: Sequence[int], **others: Any) -> GeneralizedLinear:
            part = facts.budget and gdp_part(facts.budget, share)
            named = tuple(columns[j].name for j in by)
            given = GeneralizedLinear.Options(
                target=columns[target].name, covariates=named, n_units=options.n_units, **others
            )
            return GeneralizedLinear.design(replace(facts, budget=part, silos=()), given)

        of_imputer, of_analysis = _shares(len(lacking))
        imputers = [
            stage(
                of_imputer,
                column,
                [*complete, target, *lacking[:k]],
                family="binomial" if columns[column].levels else "gaussian",
            )
            for k, column in enumerate(lacking)
        ]
        kept = ("family", "alpha", "sandwich", "reference")
        others = {name: getattr(options, name) for name in kept}
        analysis = stage(of_analysis, target, used, **others)
        return build_task(cls, facts, options, imputers=tuple(imputers), analysis=analysis)

    def describe(self) -> str:
        return (
            f"A {self.analysis.family} regression of records with missing cells. The first "
            f"{ROUNDS} rounds fit a model of each incomplete column. Then a record that lacks a "
            "cell is replaced by the mean over its completed versions. "
            f"{self.analysis.describe()}"
        )

    @property
    def incomplete(self) -> tuple[int, ...]:
        """The columns whose cells may be missing."""
        return tuple(task.target for task in self.imputers)

    @property
    def target(self) -> int:
        """The column that is predicted."""
        return self.analysis.target

    @property
    def covariates(self) -> tuple[int, ...]:
        """The columns of the analysis."""
        return self.analysis.covariates

    @property
    def family(self) -> str:
        """The family of the analysis."""
        return self.analysis.family

    # Sums -----------------------------------------------------------------------------------------

    def start(self) -> State:
        """Return the states of all models before their first rounds."""
        found: dict[str, Floats] = {}
        for k, task in enumerate(self.imputers):
            found |= prefixed(f"{k}.", task.start())
        found |= prefixed(_ANALYSED, self.analysis.start())
        sizes = {block.name: block.size for t in (ROUNDS, _END) for block in self._own_blocks(t)}
        return {
            **found,
            **{name: np.zeros(size) for name, size in sizes.items()},
            "stds": np.zeros(len(sizes)),
        }

    @cached_property
    def _moves(self) -> int:
        """Number of parameters of all imputers."""
        return sum(task.model.design.width + 1 for task in self.imputers)

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the blocks of all imputers, or those of the analysis."""
        of_imputer, of_analysis = _shares(len(self.imputers))
        if t < ROUNDS:
            return tuple(
                replace(block, name=f"{block.name}_{k}", weight=block.weight * of_imputer)
                for k, task in enumerate(self.imputers)
                for block in task.blocks(t)
            )
        found = [
            replace(block, weight=block.weight * of_analysis)
            for block in self.analysis.blocks(t - ROUNDS)
        ]
        return (*found, *self._own_blocks(t))

    def _own_blocks(self, t: int) -> Iterator[Block]:
        """Yield the blocks that belong to no model."""
        q, columns = self.analysis.model.design.width, len(self.imputers)
        if t == ROUNDS:
            yield Block.counting("lacking", (columns,), _LACKING, columns)
        if t == _END:
            yield ball_block("normality", 2 * columns, _NORMAL)
            yield ball_block("shift", q * self._moves, _SHIFT)
            yield ball_block("spread", q * (q + 1) // 2, _SPREAD)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return the row of each record to each block."""
        return self._rows(t, state, records)

    def _rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        make = self._rows_of_imputers if t < ROUNDS else self._rows_of_analysis
        return tuple(make(t, state, records))

    def _rows_of_imputers(self, t: int, state: GridState, records: Records) -> Iterator[Rows]:
        # Any place in the box: the share of such a record is 0.
        filled = np.where(records == NO_VALUE, 0, records)
        for k, task in enumerate(self.imputers):
            known = task.known(part_of(state, f"{k}."))
            # A record that lacks a cell of this model has no part in it.
            share = np.where(absent(records, self.incomplete[: k + 1]), 0.0, 1.0)
            yield from task.model.rows(t, known, filled, np.arange(len(records)), share)

    def _rows_of_analysis(self, t: int, state: GridState, records: Records) -> Iterator[Rows]:
        task, imputers = self.analysis, self._imputers(state)
        known = task.known(part_of(state, _ANALYSED))
        made = Versions.of(imputers, records)
        found = task.model.rows(t - ROUNDS, known, made.records, made.owner, made.share)
        if t - ROUNDS >= NULL:
            yield from found
        else:
            size = task.blocks(t - ROUNDS)[0].size
            yield Rows.dense(_merged(found[0], made.owner, (len(records), size)))
        if t == ROUNDS:
            cells = np.arange(len(self.imputers), dtype=np.int64)
            lacks = (records[:, list(self.incomplete)] == NO_VALUE).astype(np.int64)
            yield Rows(np.tile(cells, (len(records), 1)), lacks << COUNT_BITS)
        if t == _END:
            yield from self._rows_of_errors(known, imputers, records)

    def _rows_of_errors(
        self, known: Known, imputers: Sequence[Imputer], records: Records
    ) -> Iterator[Rows]:
        """Yield how mean scores move with the imputers, and how scores vary over versions."""
        lacks = absent(records, self.incomplete)
        some = records[lacks]

        def scores(imputers: Sequence[Imputer]) -> tuple[Versions, Floats]:
            made = Versions.of(imputers, some)
            rows, residual, _ = self.analysis.model.scored(known, made.records)
            return made, rows * residual

        def slope(k: int, move: Floats) -> Floats:
            # Steps in both directions: scores bend, and one step would add its bend to the slope.
            ends = []
            for way in (1.0, -1.0):
                others = [*imputers[:k], imputers[k].moved(way * move), *imputers[k + 1 :]]
                made, found = scores(others)
                ends.append(made.means(found))
            return np.asarray((ends[0] - ends[1]) / 2)

        with np.errstate(all="ignore"):  # a dishonest state has any numbers
            made, found = scores(imputers)
            spread = made.means(products(found - made.means(found)[:, made.owner]))
            moves = [(k, move) for k, one in enumerate(imputers) for move in one.moves]
            shift = np.concatenate([slope(*pair) for pair in moves])
            waves = [one.waves(records) for one in imputers]
        for k, own in enumerate(waves):
            # A record that lacks a cell of this model has no residual of it.
            own[:, absent(records, self.incomplete[: k + 1])] = 0.0
        yield Rows.dense(ball(np.concatenate(waves), _longest(len(imputers))))
        for values, cut in zip((shift, spread), _cuts(known, imputers), strict=True):
            # A record without a missing cell has nothing to complete, and no error of it.
            whole = np.zeros((len(records), len(values)), dtype=np.int64)
            whole[lacks] = ball(values, cut)
            yield Rows.dense(whole)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums of all blocks."""
        blocks = self.blocks(t)
        total = np.zeros(sum(block.size for block in blocks), dtype=np.int64)
        for part in in_cache(records, _PART):
            rows = self._rows(t, state, part)
            total += np.concatenate([summed(*pair) for pair in zip(rows, blocks, strict=True)])
        return total

    def _imputers(self, state: GridState) -> tuple[Imputer, ...]:
        states = (part_of(state, f"{k}.") for k in range(len(self.imputers)))
        pairs = zip(self.imputers, states, strict=True)
        with np.errstate(all="ignore"):
            return tuple(Imputer.of(task, task.known(own)) for task, own in pairs)

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the state with the next one of the models of this round."""
        found = {name: from_grid(values, self.frac_bits) for name, values in state.items()}
        if t < ROUNDS:
            for k, task in enumerate(self.imputers):
                own = {block.name: released[f"{block.name}_{k}"] for block in task.blocks(t)}
                found |= prefixed(f"{k}.", task.update(t, part_of(state, f"{k}."), own))
            return found
        part = part_of(state, _ANALYSED)
        found |= prefixed(_ANALYSED, self.analysis.update(t - ROUNDS, part, released))
        if t == ROUNDS:
            found["lacking"], found["stds"][0] = released["lacking"].in_records()
        if t == _END:
            imputers = self._imputers(state)
            cuts = (_longest(len(imputers)), *_cuts(self.analysis.known(part), imputers))
            names = ("normality", "shift", "spread")
            for k, (name, cut) in enumerate(zip(names, cuts, strict=True), 1):
                words, noise_std = released[name].in_records(BITS)
                found[name], found["stds"][k] = words * cut, noise_std * cut
        return found

    # Results --------------------------------------------------------------------------------------

    def least_records(self, noise_std: Callable[[Block], float]) -> int:
        """Return the number of complete records below which no coefficient is known.

        `noise_std` is that of a block, in integers.
        """
        # The first round counts the records of each imputer.
        largest = max(map(noise_std, self.blocks(0))) / (1 << COUNT_BITS)
        return ceil(_ENOUGH * largest)

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return no forecast, as the task ``glm``."""
        return {}

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return those of :meth:`.glm.GeneralizedLinear.results`, and what missing cells cost.

        Intervals include the errors of the imputers [Rub87]_.

        Returns
        -------
        dict
            Further, ``lacking`` of shape (n_incomplete,) with its interval: the share of records
            that lack each column. ``missing_information`` of shape (n_columns_of_design,) is the
            part of a coefficient's variance over samples that missing cells add. ``non_normal``, of
            shape (n_incomplete,), is 1 if residuals of a column are too far from the normal law:
            nothing is known then.
        """
        known, model = self.analysis.known(part_of(state, _ANALYSED)), self.analysis.model
        solution = model.solution(known)
        by_noise, by_sampling = self._between(state, solution.inverse)
        spread = _positive(matrix_of(from_grid(state["spread"], self.frac_bits)))
        spread = solution.inverse @ spread @ solution.inverse
        complete = model.sampling(known, solution)
        # Products of mean scores are those of the records less their spread.
        complete = complete + spread * model.sandwich
        n, noise_std = known.fit.columns.n, float(from_grid(state["stds"], self.frac_bits)[0])
        share = from_grid(state["lacking"], self.frac_bits) / n
        # With few complete records noise is the reason, and a distance would be that of noise.
        relied_on = self._relied_on(state)
        non_normal = self._non_normal(state, n, np.clip(share, 0.0, 1.0)) & relied_on
        relied = solution.known & (relied_on and not non_normal.any())
        solution = replace(solution, noise=solution.noise + by_noise, known=relied)
        found = self.analysis.results_of(known, solution, complete + spread + by_sampling)
        before = self.analysis.results_of(known, solution, complete)["sampling_covariance"]
        after = np.diag(found["sampling_covariance"])
        with np.errstate(all="ignore"):
            part = np.where(after == 0, 0.0, 1 - np.diag(before) / after)  # of a reference: none
        margin = _Z * noise_std / n
        ends = [np.clip(value, 0.0, 1.0) for value in (share, share - margin, share + margin)]
        return {
            **found,
            **Estimate(*ends).named("lacking"),
            "missing_information": part[:-1],
            "non_normal": non_normal.astype(np.float64),
        }

    def _relied_on(self, state: GridState) -> bool:
        """Return True if intervals may rest on the imputers.

        With few complete records, their errors are so large that no slope tells what they do. One
        that noise separates from the target completes cells as if both were independent.
        """
        for k, task in enumerate(self.imputers):
            known = task.known(part_of(state, f"{k}."))
            columns, place = known.fit.columns, task.covariates.index(self.target)
            of_target = task.model.solution(known).known[task.model.design.slots[place]]
            if columns.n <= _ENOUGH * columns.n_std or not of_target.all():
                return False
        return True

    def _non_normal(self, state: GridState, n: float, share: Floats) -> Flags:
        """Return flags of the columns whose residuals are too far from the normal law.

        Completed cells are wrong then, and no interval shows it. The bias of coefficients grows
        with the distance of both laws and with the share of missing cells. In standard errors it
        grows with the root of the number of records.
        """
        imputers = self._imputers(state)
        complete = np.array([one.placed.n for one in imputers])
        waves, stds = (from_grid(state[name], self.frac_bits) for name in ("normality", "stds"))
        of_models = complete * np.array([one.waves_std for one in imputers]).T
        # Squared waves of a record have a mean of about one half.
        error = np.sqrt(stds[1] ** 2 + np.maximum(complete, 0.0) / 2 + of_models**2)
        clear = np.maximum(np.abs(waves.reshape(-1, 2).T) - _SURE * error, 0.0)
        with np.errstate(all="ignore"):  # a dishonest state has any numbers
            furthest = _FURTHEST * complete / (share * sqrt(max(n, 1.0)))
        return np.asarray(np.hypot(*clear) > furthest)

    def _between(self, state: GridState, inverse: Floats) -> tuple[Floats, Floats]:
        """Return the covariances of weights by noise and by sampling of the imputers."""
        q, noise_std = len(inverse), float(from_grid(state["stds"], self.frac_bits)[2])
        shift = from_grid(state["shift"], self.frac_bits).reshape(self._moves, q).T
        noise = np.zeros((self._moves, self._moves))
        at = 0
        for one in self._imputers(state):
            end = at + len(one.moves)
            noise[at:end, at:end] = one.noise
            at = end
        found = []
        for part in (noise, np.eye(self._moves) - noise):
            # Less the squares of the noise in the slopes.
            outer = shift @ part @ shift.T - noise_std**2 * np.trace(part) * np.eye(q)
            found.append(inverse @ _positive(outer) @ inverse)
        return found[0], found[1]

    def predict(self, results: Results, records: Records) -> Floats:
        """Return the predicted mean of the target; shape (n_samples,), data units."""
        return self.analysis.predict(results, records)

    def coefficients(self, results: Results, columns: tuple[str, ...]) -> dict[str, Any]:
        """Return those of the analysis, and what missing cells cost.

        Returns
        -------
        dict
            Further, ``incomplete`` names the columns with missing cells, and ``lacking`` is the
            share of records that lack each, with its interval. ``missing_information`` has an entry
            for each coefficient; it is not known for the intercept.
        """
        shares = {name: results[name] for name in ("lacking", "lacking_low", "lacking_high")}
        return {
            **self.analysis.coefficients(results, columns),
            "incomplete": tuple(columns[j] for j in self.incomplete),
            **shares,
            # All lists have one length, and the intercept has no such result.
            "missing_information": np.append(results["missing_information"], np.nan),
        }

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the clearest effects on the target."""
        found = self.analysis.summary(results, columns, nominal_n, units)
        reason = self._reason(results, columns)
        return replace(found, reliability=reason) if reason else found

    def doubts(self, results: Results, columns: tuple[str, ...]) -> Iterator[str]:
        """Yield a warning if no coefficient is known."""
        names = self._non_normal_names(results, columns)
        if names:
            yield (
                f"no coefficient is known, since residuals of {names} are not normal; transform "
                "the column, leave it out, or fit complete records (task glm, in Python "
                "missing='drop')."
            )
        else:
            yield from self.analysis.doubts(results, columns)

    def _non_normal_names(self, results: Results, columns: tuple[str, ...]) -> str:
        flags = zip(self.incomplete, results["non_normal"], strict=True)
        return " and ".join(columns[j] for j, non_normal in flags if non_normal)

    def _reason(self, results: Results, columns: tuple[str, ...]) -> str:
        """Return why no coefficient is known, if residuals are not normal."""
        names = self._non_normal_names(results, columns)
        return names and (
            f"Residuals of {names} are not normal, so no model completes missing cells, with any "
            "budget."
        )

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return the coefficients with their picture, and what missing cells cost."""
        task, reason = self.analysis, self._reason(results, columns)
        names = of_dates(task.names, columns, task.dates)
        coefficients = report.displays_of(
            task, results, columns[self.target], names, reason or report.UNKNOWN
        )
        named = [columns[j] for j in self.incomplete]
        lacking = zip(named, Estimate.of(results, "lacking").cells(), strict=True)
        costs = zip(task.names, results["missing_information"].tolist(), strict=False)
        note = f"{_LACK_NOTE} {reason}".rstrip()
        of = Table("Missing cells", ("column", "share of records"), tuple(lacking), note)
        shown = tuple(
            (name, NOT_KNOWN if isnan(part) else f"{part:.0%}")
            for (name, part), reference in zip(costs, results["reference"], strict=False)
            if not reference  # it has no coefficient
        )
        heads = ("column", "missing information")
        table = Table("Missing information", heads, shown, _INFORMATION_NOTE)
        return (*coefficients, of, table)


def _shares(imputers: int) -> tuple[float, float]:
    """Return the parts of the budget of each imputer, and of the analysis."""
    whole = _IMPUTERS[imputers - 1]
    return whole / imputers, _MODELS - whole


def _longest(imputers: int) -> float:
    """Return the largest length of the waves of a record."""
    return sqrt(imputers) * (1 + _NORMAL_WAVE)


def _cuts(known: Known, imputers: Sequence[Imputer]) -> tuple[float, float]:
    """Return the lengths to which slopes and covariances of scores are cut."""
    moved = sqrt(sum(float((one.moves**2).sum()) for one in imputers))
    return known.fit.cut * max(moved, _LEAST_ROOT) / 4, known.fit.cut**2 / 32


def _positive(matrix: Floats) -> Floats:
    """Return the nearest matrix without negative directions."""
    # Noise may make a variance negative.
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def _merged(rows: Rows, owner: Integers, shape: tuple[int, int]) -> Integers:
    """Return the counts of versions, added up for each record; shape (records, words)."""
    # Versions of a record are in different bins, and each adds its share to its own.
    cells = owner[:, None] * shape[1] + rows.cells
    whole = np.zeros(shape[0] * shape[1], dtype=np.int64)
    np.add.at(whole, cells.reshape(-1), rows.values.reshape(-1))
    return whole.reshape(shape)
