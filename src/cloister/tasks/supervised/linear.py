"""Linear and ridge regression: a first model from noisy products, then one step to least squares.

References
----------
.. [VS09] Vu, Slavkovic, "Differential Privacy for Clinical Trial Data: Preliminary Evaluations",
   ICDM Workshops 2009: regression from noisy sufficient statistics.
.. [W18] Wang, "Revisiting Differentially Private Linear Regression: Optimal and Adaptive Prediction
   and Estimation in Unbounded Domain", UAI 2018: the noise of the products requires a ridge.
.. [W80] White, "A Heteroskedasticity-Consistent Covariance Matrix Estimator and a Direct Test for
   Heteroskedasticity", Econometrica 48(4), 1980.
.. [A21] Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private Learning with Adaptive
   Clipping", NeurIPS 2021: the clipping norm of gradients follows from noisy counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, sqrt
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

import numpy as np

from cloister.core.arrays import Flags, Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import AtLeastZero, declared
from cloister.core.display import Display, Estimate, Summary, Table
from cloister.core.numerals import counted
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
    Block,
    Gaussian,
    NoisyBlock,
    PublicFacts,
)
from cloister.tasks.columns import Encoding, of_dates, position
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.moments import n_products, symmetric
from cloister.tasks.options import Dates, Target, build_task, epsilon_for
from cloister.tasks.state import decode_state, encode_state
from cloister.tasks.supervised.contrasts import (
    Reference,
    check_references,
    chosen_references,
    coefficient_bars,
    coefficient_results,
    combination,
    effects_of,
    effects_summary,
    to_reference,
)
from cloister.tasks.supervised.frame import (
    Clip,
    Frame,
    Placed,
    Rows,
    Whole,
    count_sizes,
    edge_at,
    noise_of_mean,
    sizes_block,
    usual_square,
)
from cloister.tasks.supervised.least_squares import (
    NO_SHRINKAGE,
    SPREAD,
    Curvature,
    Fit,
    curvature_of,
    cut_of,
    cut_of_squares,
    middle_length,
    of_whole_rows,
    step,
    unseen_square,
    usual_length,
)
from cloister.tasks.supervised.target import Features, check_columns, check_number

if TYPE_CHECKING:
    from cloister.protocol.plan import Plan

PLACES_SHARE, SPREADS_SHARE, LENGTHS_SHARE, PRODUCTS_SHARE = 0.06, 0.08, 0.04, 0.36
SIZES_SHARE, GRADIENT_SHARE, SQUARES_SHARE = 0.10, 0.32, 0.04
"""Shares of the budget: location, scale, lengths of rows and their products; sizes of gradients,
their sum, and the sum of squared residuals."""
SANDWICH_SHARE = 0.15
"""Share of the budget for products of gradients, if requested; other sums have the rest."""

_SQUARE_BITS = 24  # of squared residuals
_LENGTH = 16.0  # of rows in integers; their unit is a public or released length
_TARGET_LENGTH = 0.7  # of the target in a row of products, for rows of length 1
_ENERGY = 4.0  # sums of squared residuals, the largest of which are cut
_FARTHER = 2  # classes of targets: half as long again
_TYPICAL, _NOISY, _SHORTEST, _LONG = 4.0, 0.0012, 0.55, 26.0
_FEWEST = 24.0  # records per deviation of a noisy count, below which classes of lengths mislead
_Z = INTERVAL_95["gaussian"]

NOTE = (
    "[ , ] are 95 % confidence intervals (privacy noise only) for least squares on the same "
    "records; a population interval includes the error of sampling, for residuals of "
    "{variance} variance."
)


@dataclass(frozen=True, kw_only=True)
class _FitState:
    """The public state; lengths and cuts are numbers of classes of sizes, see ``EDGES``."""

    columns: Placed
    length: int = 0  # that hardly a row exceeds
    target_length: int = 0
    typical: int = 0  # that half of the rows exceed
    unseen: float = 0.0  # sum of squares that histograms of columns miss
    products: Floats
    products_std: float = 0.0
    weights: Floats
    cut: int = 0
    influence: float = 0.0
    gradient: Floats
    gradient_std: float = 0.0
    residual_square: float = 0.0
    residual_square_std: float = 0.0
    sandwich_cut: int = 0
    sandwich: Floats


@declared
class Linear(Gaussian):
    """Least squares with a ridge, from a first model and one step from it.

    Parameters
    ----------
    n_features, target : int
        Number of columns, and index of the target.
    levels : tuple of int
        Number of categories of each column, 0 for numbers.
    names : tuple of str
        Names of the columns of the design, the intercept last.
    low, high : tuple of float
        The box, data units.
    clip : float in (0, 32]
        Length to which rows without their target are clipped for the products of the first model,
        relative to their median length. Rows are centred and scaled. The next step uses whole rows.
    alpha : float, >= 0
        Penalty of the squared norm of the coefficients, without the intercept.
    shrinkage : bool
        Without noise it changes nothing.
    sandwich : bool
        If True, population intervals use products of gradients [W80]_, which are valid for
        residuals of any variance. Else residuals are assumed to have one variance.
    reference : tuple of int
        Code of each column's reference category in the report.

    Notes
    -----
    The weight of a row in the first model depends on its length, never on its target. The step
    corrects for it: the gradient of whole rows vanishes at least squares, also if the target is not
    linear in the columns. Gradients are clipped at a norm from noisy counts of their sizes. Rows
    are explained in :mod:`cloister.tasks.supervised.frame`, privacy in docs/proofs/regression.md.
    """

    name: ClassVar[str] = "linear"
    later: ClassVar[frozenset[str]] = frozenset({"dates"})
    """Fields that older plans lack; plans leave them out at their defaults."""
    has_effects: ClassVar[bool] = True
    error_depends_on: ClassVar[str] = "the spread of the columns and residuals"
    rounds: ClassVar[int] = 6

    example: ClassVar[Example] = Example(MIXED, {"target": "weight"})

    @declared
    class Options:
        target: Target
        alpha: Annotated[
            AtLeastZero, "as in scikit-learn's Ridge, for numbers scaled to [-1, 1]"
        ] = 0.0
        clip: Annotated[
            Clip | None, "length of rows in the products; chosen from the noise by default"
        ] = None
        shrinkage: Annotated[bool, "shrink coefficients below their noise toward 0"] = True
        sandwich: Annotated[
            bool, "make intervals valid for residuals of uneven variance, for 15 % of the budget"
        ] = False
        reference: Reference = None

    n_features: Features
    target: int
    levels: tuple[int, ...]
    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    clip: Clip
    alpha: AtLeastZero = 0.0
    shrinkage: bool = True
    sandwich: bool = False
    reference: tuple[int, ...] = ()
    frac_bits: int = 16
    dates: Dates = ()

    def __post_init__(self) -> None:
        columns = {"levels": self.levels, "low": self.low, "high": self.high}
        check_columns(self.n_features, self.target, **columns)
        check_number(self.levels[self.target])
        if not self.reference:
            object.__setattr__(self, "reference", (0,) * self.n_features)
        check_references(self.reference, self.levels)
        self._frame.products_block(1.0)  # raises for a row that is too long or too wide

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Design the length of rows from public numbers."""
        columns, levels = facts.columns, facts.levels
        at = position(columns, options.target)
        clip = options.clip
        if clip is None:
            width = Encoding(levels, facts.frac_bits).width
            noise = noise_of_mean(width, facts)
            stretch = max(_TYPICAL * _NOISY / max(noise, 1e-12), _SHORTEST)
            clip = min(sqrt(stretch * usual_square(levels)), _LONG)
        return build_task(
            cls,
            facts,
            options,
            target=at,
            levels=levels,
            names=Encoding(levels, facts.frac_bits, (at,)).names(columns),
            clip=float(clip),
            alpha=float(options.alpha),
            reference=chosen_references(columns, options.reference, options.target),
        )

    def describe(self) -> str:
        return (
            f"Linear regression on {counted(self._model.width - 1, 'column')} of a design. Two "
            "noisy counts give location and scale of columns, and one gives lengths of rows. One "
            "sum holds products of rows with each other and with the target, with rows clipped to "
            f"a length of at most {self.clip:.3g}. One counts sizes of gradients at the first "
            "model. The last sums gradients, clipped at a norm from these counts, and squared "
            "residuals. The coefficients are computed from these sums."
        )

    # Rows with and without the target -------------------------------------------------------------

    @cached_property
    def _frame(self) -> Frame:
        """Rows with the target as one of their numbers."""
        return Frame(self.levels, self.frac_bits, (), _LENGTH)

    @cached_property
    def _model(self) -> Frame:
        """Rows without the target."""
        skip = (self.target,)
        return Frame(self.levels, self.frac_bits, skip, _LENGTH, self.low, self.high)

    @property
    def _place(self) -> int:
        """Entry of the target in a row."""
        return self._frame.place_of(self.target)

    @cached_property
    def _at(self) -> int:
        """Index of the target among a row's numbers."""
        return sum(not level for level in self.levels[: self.target])

    @cached_property
    def _others(self) -> Integers:
        """Entries of a row without the target."""
        return np.delete(np.arange(self._frame.width), self._place)

    def _read(self, state: GridState) -> _FitState:
        return decode_state(_FitState, state, self.frac_bits)

    def _length(self, now: _FitState) -> float:
        """Return the length to which rows of products are clipped."""
        usual = sqrt(usual_square(self.levels))  # where each column's deviation is exact
        return min(self.clip * edge_at(now.typical) / usual, edge_at(now.length))

    def _units(self, now: _FitState) -> tuple[float, float]:
        """Return the factors of rows of products and of their target that give the length."""
        length = self._length(now)
        unit = _LENGTH / (length * sqrt(1 + _TARGET_LENGTH**2))
        return unit, _TARGET_LENGTH * length / edge_at(now.target_length)

    # The sums -------------------------------------------------------------------------------------

    def start(self) -> State:
        """Return the state before the first round, with weights of 0."""
        p = self._frame.width
        return encode_state(
            _FitState(
                columns=self._frame.unplaced(),
                products=np.zeros(n_products(p)),
                weights=np.zeros(p - 1),
                gradient=np.zeros(p - 1),
                sandwich=np.zeros(n_products(p - 1) if self.sandwich else 0),
            )
        )

    def _share(self, part: float) -> float:
        return part * (1 - SANDWICH_SHARE) if self.sandwich else part

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return counts of bins, twice; lengths; products; sizes; or a gradient and squares."""
        if t == 0:
            return (self._frame.places_block(self._share(PLACES_SHARE)),)
        if t == 1:
            return (self._frame.spreads_block(self._share(SPREADS_SHARE)),)
        if t == 2:  # of rows and of targets
            return (sizes_block("lengths", self._share(LENGTHS_SHARE), 2),)
        if t == 3:
            return (self._frame.products_block(self._share(PRODUCTS_SHARE)),)
        if t == 4:
            return (sizes_block("sizes", self._share(SIZES_SHARE)),)
        one, share = 1 << _SQUARE_BITS, self._share(SQUARES_SHARE)
        squares = Block.counting("residual_square", (1,), share, one=one)
        gradient = self._model.row_block(self._share(GRADIENT_SHARE))
        if not self.sandwich:
            return (gradient, squares)
        return (gradient, squares, self._model.products_block(SANDWICH_SHARE, "sandwich"))

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        if t == 0:
            return self._frame.count_places(records)
        now = self._read(state)
        if t == 1:
            return self._frame.count_spreads(now.columns, records)
        adds = {2: self._lengths, 3: self._row_products, 4: self._sizes, 5: self._gradients}[t]
        total = np.zeros(sum(block.size for block in self.blocks(t)), dtype=np.int64)
        for _, whole in self._frame.whole(now.columns, records):
            total += adds(now, whole.without(self._at), whole.numbers[self._at])
        return total

    def _lengths(self, now: _FitState, rows: Whole, target: Floats) -> Integers:
        return np.append(count_sizes(rows.length), count_sizes(np.abs(target)))

    def _row_products(self, now: _FitState, rows: Whole, target: Floats) -> Integers:
        """Sum products of rows clipped by their length, with the target clipped by its bound."""
        unit, target_unit = self._units(now)
        most, length = edge_at(now.target_length), self._length(now)
        factor = unit * np.minimum(1.0, length / np.maximum(rows.length, 1.0))
        clipped = target_unit * np.clip(target, -most, most)
        together = replace(rows, numbers=np.insert(rows.numbers, self._at, clipped, axis=0))
        return self._frame.sum_row_products(self._frame.times(together, factor))

    def _residuals(self, now: _FitState, rows: Whole, target: Floats) -> tuple[Floats, Floats]:
        """Return the residual of each row, and the size of its gradient."""
        residuals = target - self._model.margins(rows, now.weights[None])[0]
        return residuals, rows.length * np.abs(residuals)

    def _sizes(self, now: _FitState, rows: Whole, target: Floats) -> Integers:
        return count_sizes(self._residuals(now, rows, target)[1])

    def _gradients(self, now: _FitState, rows: Whole, target: Floats) -> Integers:
        """Sum gradients and squared residuals, and products of gradients if requested."""
        residuals, sizes = self._residuals(now, rows, target)

        def shortened(cut: int) -> Rows:
            return self._model.times(rows, _LENGTH * (residuals / np.maximum(sizes, edge_at(cut))))

        gradient = self._model.sum_rows(shortened(now.cut))
        parts = np.minimum((residuals / self._reach(now)) ** 2, 1.0)
        squares = np.int64(np.trunc(parts * (1 << _SQUARE_BITS)).sum())
        sums = np.append(gradient, squares)
        if not self.sandwich:
            return sums
        return np.append(sums, self._model.sum_row_products(shortened(now.sandwich_cut)))

    def _reach(self, now: _FitState) -> float:
        """Return the residual at which squares are clipped: that of a typical row at the cut."""
        curvature = np.diag(self._whole(now).matrix)
        length = sqrt(max(float(curvature.sum() / max(curvature[-1], 1.0)), 1.0))
        return edge_at(now.cut) / min(length, 64.0)

    # Updates --------------------------------------------------------------------------------------

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the state with location and scale, the first model, the cut, or the gradient."""
        now = self._read(state)
        if t == 0:
            placed = self._frame.read_places(now.columns, released["places"])
            return encode_state(replace(now, columns=placed))
        if t == 1:
            placed = self._frame.read_spreads(now.columns, released["spreads"])
            return encode_state(replace(now, columns=placed))
        after = {2: self._with_lengths, 3: self._with_products, 4: self._with_cuts}
        return encode_state(after.get(t, self._with_gradient)(now, released))

    def _with_lengths(self, now: _FitState, released: Mapping[str, NoisyBlock]) -> _FitState:
        counts, noise_std = released["lengths"].in_records()
        n = now.columns.n
        longest, target = (usual_length(count, noise_std, n) for count in counts)
        squares = np.maximum(now.columns.square[self._others], 1.0)
        seen = n * (1 + float(squares.sum()))
        return replace(
            now,
            length=longest,
            target_length=target + _FARTHER,
            typical=middle_length(counts[0], n),
            unseen=unseen_square(counts[0], noise_std, longest, seen),
        )

    def _with_products(self, now: _FitState, released: Mapping[str, NoisyBlock]) -> _FitState:
        """Return the state with products of rows, and the first model."""
        matrix, noise_std = self._frame.unpack(released["products"])
        unit, target_unit = self._units(now)
        units = np.full(self._frame.width, unit)
        units[self._place] *= target_unit
        packed = (matrix / np.outer(units, units))[np.triu_indices(self._frame.width)]
        now = replace(now, products=packed, products_std=noise_std / unit**2)
        return replace(now, weights=np.clip(self._first(now).weights, -1e6, 1e6))

    def _with_cuts(self, now: _FitState, released: Mapping[str, NoisyBlock]) -> _FitState:
        counts, noise_std = released["sizes"].in_records()
        n = now.columns.n
        price = _Z * noise_std * sqrt(SIZES_SHARE / GRADIENT_SHARE)
        cut, influence = cut_of(counts, noise_std, n, price)
        price *= sqrt(GRADIENT_SHARE / SANDWICH_SHARE)
        sandwich = cut_of_squares(counts, usual_length(counts, noise_std, n), price)
        return replace(now, cut=cut, influence=influence, sandwich_cut=sandwich)

    def _with_gradient(self, now: _FitState, released: Mapping[str, NoisyBlock]) -> _FitState:
        gradient, squares = released["gradient"], released["residual_square"]
        unit, one = _LENGTH * (1 << 20), 1 << _SQUARE_BITS  # in sizes of the cut
        if self.sandwich:
            now = replace(now, sandwich=self._sandwich(released["sandwich"]))
        return replace(
            now,
            gradient=gradient.values / unit,
            gradient_std=gradient.noise_std / unit,
            residual_square=float(squares.values[0] / one),
            residual_square_std=squares.noise_std / one,
        )

    def _sandwich(self, block: NoisyBlock) -> Floats:
        """Return the packed sum of products of gradients, in units of their squared cut.

        Every direction has at least the noise: an interval that is too narrow is worse.
        """
        raw, noise_std = self._model.unpack(block)
        values, vectors = np.linalg.eigh(raw / _LENGTH**2)
        matrix = (vectors * np.maximum(values, noise_std / _LENGTH**2)) @ vectors.T
        return np.asarray(matrix[np.triu_indices(len(matrix))])

    # The model ------------------------------------------------------------------------------------

    def _curvature(self, now: _FitState) -> Curvature:
        """Return the curvature of clipped rows."""
        others = self._others
        products = symmetric(now.products)[np.ix_(others, others)]
        alike = now.columns.alike[others]
        return curvature_of(products, now.products_std, alike, self._model.used_levels)

    def _whole(self, now: _FitState) -> Curvature:
        """Return the curvature of whole rows."""
        usual = (edge_at(now.typical) / max(self._length(now), 1e-6)) ** 2
        squares = now.columns.square[self._others] * now.columns.n
        return of_whole_rows(self._curvature(now), squares, now.unseen, max(usual, 1.0))

    def _penalty(self, now: _FitState) -> Floats:
        penalty: Floats = self.alpha * now.columns.scale[self._others] ** 2
        penalty[-1] = 0.0
        return penalty

    @property
    def _spread(self) -> float:
        return SPREAD if self.shrinkage else SPREAD * NO_SHRINKAGE

    def _first(self, now: _FitState) -> Fit:
        """Return the model from the products."""
        return step(
            self._curvature(now),
            self._model.used_levels,
            self._penalty(now),
            symmetric(now.products)[self._others, self._place],
            noise_std=now.products_std / self._units(now)[1],
            spread=self._spread,
        )

    def _last(self, now: _FitState) -> Fit:
        """Return the model one step later, where the gradient of whole rows vanishes."""
        cut = edge_at(now.cut)
        target_square = float(symmetric(now.products)[self._place, self._place])
        return step(
            self._whole(now),
            self._model.used_levels,
            self._penalty(now),
            now.gradient * cut,
            noise_std=now.gradient_std * cut,
            bias=now.influence * cut,
            start=now.weights,
            spread=self._spread,
            energy=self._energy(now),
            hidden=sqrt(max(target_square / max(now.columns.n, 1.0), 1.0)),
        )

    def _energy(self, now: _FitState) -> float:
        """Return a likely upper bound on the sum of squared residuals at the first model."""
        square = float(now.columns.square[self._place])
        whole = max(now.columns.n, 1.0) * max(square, 1.0)
        noise = _Z * now.residual_square_std
        left = self._reach(now) ** 2 * (now.residual_square + noise)
        return min(whole, _ENERGY * max(left, 1.0))

    def _residual(self, now: _FitState, fit: Fit) -> Floats:
        """Return the variance of residuals and both ends of its interval, in row units."""
        reach, n = self._reach(now), max(now.columns.n, 1.0)
        moved = fit.weights - now.weights
        gained = float(moved @ self._whole(now).matrix @ moved) / n
        unit = reach**2 / n
        value = now.residual_square * unit - gained
        margin = float(np.hypot(_Z * now.residual_square_std * unit, gained))
        return np.maximum([value, value - margin, value + margin], 0.0)

    def _sampling(self, now: _FitState, fit: Fit, variance: float) -> Floats:
        """Return the covariance of weights over samples of this size."""
        if not self.sandwich:
            return fit.inverse * variance
        meat = symmetric(now.sandwich) * edge_at(now.sandwich_cut) ** 2
        return np.asarray(fit.inverse @ meat @ fit.inverse)

    def plan_warnings(self, plan: Plan, forecast: Results) -> Iterator[str]:
        """Warn that no coefficient will be known."""
        noise = plan.noise_std(self.blocks(0)[0]) / (1 << COUNT_BITS)
        if plan.budget is not None and plan.nominal_n < _FEWEST * noise:
            epsilon = epsilon_for(plan.budget, _FEWEST * noise / plan.nominal_n)
            yield (
                f"epsilon {plan.budget.epsilon:g} is too small for {plan.nominal_n:,} records: no "
                f"coefficient would be known; use about epsilon {epsilon:.2g} or "
                f"{ceil(_FEWEST * noise):,} records."
            )

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return no forecast: half-widths depend on the scale of columns."""
        return {}

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the model with its 95 % intervals.

        Returns
        -------
        dict
            In data units, ``coef`` of shape (n_columns_of_design,) and ``intercept`` of shape (1,).
            Each has ``..._low``, ``..._high``, ``..._population_low`` and ``..._population_high``.
            ``residual_std`` of shape (1,) has ``..._low`` and ``..._high``. ``covariance`` is that
            of the noise in coefficients and intercept. It has the shape (n_columns_of_design + 1,)
            twice, as has ``sampling_covariance``. ``drowned`` of shape (n_columns_of_design,) is 1
            for columns whose coefficient is unknown, which all are with too few records for the
            noise. ``grid_coef`` of shape (n_columns_of_design + 1,) are coefficients for numbers in
            ``[-1, 1]``, the intercept last, the target in data units. ``records`` and
            ``records_half_width``, of shape (1,), are the noisy number of records, at least its
            noise, and its margin of error.

        Notes
        -----
        The intervals are for least squares, or the ridge solution, of the same records. They
        include the noise of all rounds, the error of the curvature in the last step, and the
        effect of clipping according to noisy counts. Coefficients of categories sum to 0 over a
        column. The covariance of sampling assumes residuals of one variance, or comes from products
        of gradients.
        """
        now = self._read(state)
        fit, columns = self._last(now), now.columns.at(self._others)
        offset = np.zeros(len(fit.weights))
        offset[-1] = (self.high[self.target] + self.low[self.target]) / 2
        offset[-1] += self._half_range * now.columns.centre[self._place]
        back = self._of_target(now, self._model.to_data(columns))
        around = back @ fit.around + offset
        # The counts place every column and length; no later interval includes an error of these.
        few = now.columns.n < _FEWEST * now.columns.n_std
        drowned = self._curvature(now).drowned | few
        noise = self._with_drowned(back @ fit.noise @ back.T, drowned)
        half_width = _Z * np.sqrt(np.maximum(np.diag(noise), 0))
        half_width = np.maximum(half_width, 1e-12 * np.maximum(np.abs(around), self._widest * 1e-6))
        ends = around - half_width, around + half_width
        variance = self._residual(now, fit)
        stds = self._of_target(now, np.sqrt(variance))
        if few:
            stds = np.array([min(stds[0], 2 * self._half_range), 0.0, 2 * self._half_range])
        sampling = back @ self._sampling(now, fit, float(variance[0])) @ back.T
        values = np.clip(back @ fit.weights + offset, *ends)
        on_grid = self._of_target(now, self._model.to_grid(columns))
        return {
            **coefficient_results(values, *ends, np.diag(sampling)),
            **Estimate(*stds).named("residual_std"),
            "around": around,
            "covariance": noise,
            "sampling_covariance": sampling,
            "drowned": drowned[:-1].astype(np.float64),
            **now.columns.records,
            "grid_coef": on_grid @ fit.weights + offset,
        }

    def _of_target(self, now: _FitState, values: Floats) -> Floats:
        """Convert values from deviations of the target to its data units."""
        return np.asarray(values * self._half_range / now.columns.scale[self._place])

    @property
    def _half_range(self) -> float:
        """Half the range of the target, data units."""
        return (self.high[self.target] - self.low[self.target]) / 2

    @property
    def _widest(self) -> Floats:
        """Coefficients that move the target by its whole range within a grid step of a column."""
        return np.asarray(self._half_range * 2.0 ** (self.frac_bits + 1) / self._model.half_boxes)

    def _with_drowned(self, noise: Floats, drowned: Flags) -> Floats:
        """Return the covariance including the effect of columns below their noise."""
        at = np.flatnonzero(drowned)
        noise[at, at] = (self._widest[at] / _Z) ** 2
        if len(at):
            noise[-1, -1] += (2 * self._half_range / _Z) ** 2
        return noise

    def predict(self, results: Results, records: Records) -> Floats:
        """Return the predicted target of grid records; shape (n_samples,), data units."""
        coefficients = np.asarray(results["grid_coef"])[None]
        return self._model.predict(coefficients, records)[:, 0]

    def _combinations(self, results: Results, weights: Floats) -> list[Estimate]:
        """Return sums of coefficients with the weights of each row."""
        values = np.append(results["coef"], results["intercept"])
        noise, sampling = results["covariance"], results["sampling_covariance"]
        return [
            combination(row, values, noise, sampling, middle=results["around"]) for row in weights
        ]

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the clearest effects on the target."""
        frame, target = self._model, columns[self.target]
        names, changes = effects_of(
            self.names,
            frame.used_levels,
            frame.of_used(self.reference),
            frame.half_boxes,
            [columns[j] for j in self.dates],
        )
        return effects_summary(
            f"Effects on {target}",
            names,
            self._combinations(results, changes),
            nothing=f"No effect on {target} is shown.",
        )

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return the coefficients, and a picture of them per half box."""
        chosen = self._model.of_used(self.reference)
        matrix = to_reference(self._model.used_levels, chosen)
        compared = self._combinations(results, matrix)
        rows: list[tuple[str | Estimate, ...]] = [
            (name, cell if row.any() else "reference")
            for name, row, cell in zip(
                of_dates(self.names, columns, self.dates), matrix, compared, strict=True
            )
        ]
        deviation = Estimate.of(results, "residual_std")[0]
        if deviation.low > 0:
            rows.append(("residual deviation", deviation))
        note = NOTE.format(variance="any" if self.sandwich else "one")
        names = zip(self.names, results["drowned"], strict=False)
        if hidden := [name for name, drowned in names if drowned]:
            note += (
                f" Coefficients of {', '.join(hidden)} are unknown: give narrower bounds, more "
                "records or a larger epsilon."
            )
        title = f"Coefficients for {columns[self.target]!r}, data units"
        boxes = self._model.half_boxes[:-1]
        bars = coefficient_bars(
            "Largest effects: a column rises by half of its range",
            self.names[:-1],
            compared[:-1],
            boxes,
            columns[self.target],
        )
        return (Table(title, ("column", "coefficient"), tuple(rows), note), bars)
