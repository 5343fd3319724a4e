"""Linear and ridge regression: a first model from noisy products, then one step to least squares.

References
----------
.. [VS09] Vu, Slavkovic, "Differential Privacy for Clinical Trial Data: Preliminary Evaluations",
   ICDM Workshops 2009: regression from noisy sufficient statistics.
.. [W18] Wang, "Revisiting Differentially Private Linear Regression: Optimal and Adaptive Prediction
   and Estimation in Unbounded Domain", UAI 2018: the noise of the products asks for a ridge.
.. [W80] White, "A Heteroskedasticity-Consistent Covariance Matrix Estimator and a Direct Test for
   Heteroskedasticity", Econometrica 48(4), 1980.
.. [A21] Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private Learning with Adaptive
   Clipping", NeurIPS 2021: the length to which gradients are shortened follows from noisy counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from math import sqrt
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.declared import AtLeastZero, Range, WayOut, declared
from cloister.display import Between, Display, Table
from cloister.errors import PlanError
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.task import (
    INTERVAL_95,
    Block,
    Floats,
    GridState,
    Integers,
    Mechanism,
    Profile,
    PublicFacts,
    Records,
    Released,
    State,
)
from cloister.tasks.columns import Encoding, position
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.moments import n_products
from cloister.tasks.options import Target, made
from cloister.tasks.population import population_interval
from cloister.tasks.supervised.contrasts import (
    Reference,
    chosen_references,
    combination,
    to_reference,
)
from cloister.tasks.supervised.frame import (
    SUM_BITS,
    Clip,
    Frame,
    Rows,
    Whole,
    check_columns,
    check_references,
    coefficient_bars,
    count_sizes,
    edge_at,
    noise_of_mean,
    noisy_counts,
    usual_square,
)
from cloister.tasks.supervised.least_squares import (
    EDGES,
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

PLACES_SHARE, SPREADS_SHARE, LENGTHS_SHARE, PRODUCTS_SHARE = 0.06, 0.08, 0.04, 0.36
SIZES_SHARE, GRADIENT_SHARE, SQUARES_SHARE = 0.10, 0.32, 0.04
"""Parts of the budget: where columns lie, how far they spread, how long rows are, their products;
how long gradients are, their sum, and that of squared residuals."""
SANDWICH_SHARE = 0.15
"""Part of the budget of products of gradients, where they are asked for; others have the rest."""

_SQUARE_BITS = 24  # of squared residuals
_LENGTH = 16.0  # of rows in integers; their unit is a public or released length
_TARGET_LENGTH = 0.7  # of the target in a row of products, for rows of length 1
_ENERGY = 4.0  # sums of squared residuals, the largest of which are cut
_FARTHER = 2  # classes of targets: half as long again
_LENGTHS = ("length", "target_length", "typical")
_TYPICAL, _NOISY, _SHORTEST, _LONG = 4.0, 0.0012, 0.55, 26.0

NOTE = (
    "[ , ] are 95 % of the noise, about least squares on the same records without it; a population "
    "interval holds the error of sampling as well, for residuals of {variance} variance."
)


@declared
class Linear:
    """Least squares with a ridge, from a first model and one step from it.

    Parameters
    ----------
    n_features : int
        Columns, the target among them.
    target : int
        A column of numbers.
    levels : tuple of int
        Of each column: 0 for numbers, else the number of categories.
    names : tuple of str
        Of the columns of the design, the intercept last.
    low, high : tuple of float
        The box, data units.
    clip : float in (0, 32]
        Rows without their target, centred and scaled, are shortened to this length for the products
        that the first model is made from, in parts of what half of the rows have at most. The step
        after it takes whole rows.
    alpha : float, >= 0
        Of the squared norm of the coefficients, the intercept left out, where numbers are scaled to
        ``[-1, 1]`` by their public bounds.
    shrinkage : bool
        Whether weights that drown in noise are drawn toward 0. Without noise it changes nothing.
    sandwich : bool
        Whether population intervals are from products of gradients [W80]_, which hold whatever the
        variance of residuals depends on; else residuals are taken to have one variance.
    reference : tuple of int
        Of each column: the category that others are compared with in the report.

    Notes
    -----
    How much a row weighs in the first model depends on its length, never on its target, and the
    step makes up for it: the gradient of whole rows vanishes at least squares, whether or not the
    target is linear in the columns. Gradients are shortened where noisy counts of their sizes end.
    Rows are explained in :mod:`cloister.tasks.supervised.frame`, privacy in
    docs/proofs/regression.md.
    """

    name: ClassVar[str] = "linear"
    private: ClassVar[bool] = True
    profiles: ClassVar[frozenset[Profile]] = frozenset({"local", "group", "pairwise"})
    mechanism: ClassVar[Mechanism] = "gaussian"
    rounds: ClassVar[int] = 6

    example: ClassVar[Example] = Example(MIXED, {"target": "weight"})

    @declared
    class Options:
        """What a user may choose."""

        target: Target
        alpha: Annotated[
            AtLeastZero, "as in scikit-learn's Ridge, for numbers scaled to [-1, 1]"
        ] = 0.0
        clip: Annotated[Clip | None, "length of rows in the products; by the noise if None"] = None
        shrinkage: Annotated[bool, "draw coefficients that drown in noise toward 0"] = True
        sandwich: Annotated[
            bool, "let intervals hold residuals of uneven variance, for 15 % of the budget"
        ] = False
        reference: Reference = None

    n_features: Annotated[int, Range(2), WayOut("a model needs a column besides the target")]
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

    def __post_init__(self) -> None:
        check_columns(self.levels, self.low, self.high, self.n_features)
        if not self.reference:
            object.__setattr__(self, "reference", (0,) * self.n_features)
        check_references(self.reference, self.levels)
        if not 0 <= self.target < self.n_features or self.levels[self.target]:
            raise PlanError(f"target must be a column of numbers, got column {self.target}.")
        self._frame.products_block(1.0)  # refuses a row that is too long or too wide

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Choose the length of rows from public numbers."""
        columns, levels = facts.columns, facts.levels
        at = position(columns, options.target)
        if levels[at]:
            raise PlanError(
                f"target {options.target!r} must be a column of numbers, got categories."
            )
        clip = options.clip
        if clip is None:
            width = Encoding(levels, facts.frac_bits).width
            noise = noise_of_mean(width, facts.budget, facts.nominal_n)
            stretch = max(_TYPICAL * _NOISY / max(noise, 1e-12), _SHORTEST)
            clip = min(sqrt(stretch * usual_square(levels)), _LONG)
        return made(
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

    @cached_property
    def _frame(self) -> Frame:
        """Rows with the target as one of their numbers."""
        return Frame(self.levels, self.frac_bits, (), _LENGTH)

    @cached_property
    def _model(self) -> Frame:
        """Rows without it."""
        return Frame(self.levels, self.frac_bits, (self.target,), _LENGTH)

    @property
    def _place(self) -> int:
        """Where the target is in a row."""
        return self._frame.place_of(self.target)

    @cached_property
    def _at(self) -> int:
        """Which of a row's numbers it is."""
        return sum(not level for level in self.levels[: self.target])

    @cached_property
    def _others(self) -> Integers:
        """Entries of a row without it."""
        return np.delete(np.arange(self._frame.width), self._place)

    @property
    def _used(self) -> tuple[int, ...]:
        """Levels of the columns of the model."""
        return tuple(level for j, level in enumerate(self.levels) if j != self.target)

    def _units(self, now: Mapping[str, Floats]) -> tuple[float, float]:
        """Return what rows of products are multiplied by to have the length, and their target."""
        length = self._length(now)
        unit = _LENGTH / (length * sqrt(1 + _TARGET_LENGTH**2))
        return unit, _TARGET_LENGTH * length / edge_at(now["target_length"])

    def _length(self, now: Mapping[str, Floats]) -> float:
        """Return what rows of products are shortened to."""
        usual = sqrt(usual_square(self.levels))  # where each column's deviation is exact
        return min(self.clip * edge_at(now["typical"]) / usual, edge_at(now["length"]))

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        return (
            f"Linear regression on {self._model.width - 1} columns of a design. Two noisy counts "
            "tell where columns lie and how far they spread; one tells how long rows are; one sum "
            "holds their products with each other and with the target, each row shortened to a "
            f"length of at most {self.clip:.3g} first; one counts how long rows times residuals "
            "are at the model that follows; and the last sums these, shortened where the counts "
            "end, and the squares of residuals. The coefficients are made from these sums."
        )

    def start(self) -> State:
        """Return the state before the first round: all weights 0."""
        p = self._frame.width
        return {
            "centre": np.zeros(p),
            "scale": np.ones(p),
            "alike": np.zeros(p),
            "square": np.zeros(p),
            "window": np.zeros((len(self._frame.number_places), 2)),
            "n": np.ones(1),
            "length": np.zeros(1),
            "target_length": np.zeros(1),
            "typical": np.zeros(1),
            "unseen": np.zeros(1),
            "products": np.zeros(p * (p + 1) // 2),
            "products_std": np.zeros(1),
            "weights": np.zeros(p - 1),
            "cut": np.zeros(1),
            "influence": np.zeros(1),
            "gradient": np.zeros(p - 1),
            "gradient_std": np.zeros(1),
            "residual_square": np.zeros(1),
            "residual_square_std": np.zeros(1),
            "sandwich_cut": np.zeros(1),
            "sandwich": np.zeros(n_products(p - 1) if self.sandwich else 0),
        }

    def _share(self, part: float) -> float:
        return part * (1 - SANDWICH_SHARE) if self.sandwich else part

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return counts of bins, twice; lengths; products; sizes; or a gradient and squares."""
        one = 1 << SUM_BITS
        if t == 0:
            return (self._frame.places_block(self._share(PLACES_SHARE)),)
        if t == 1:
            return (self._frame.spreads_block(self._share(SPREADS_SHARE)),)
        if t == 2:
            shape = (2, len(EDGES))  # of rows and of targets: a record counts in each
            return (Block("lengths", shape, 2 * one, 2 * one**2, self._share(LENGTHS_SHARE)),)
        if t == 3:
            return (self._frame.products_block(self._share(PRODUCTS_SHARE)),)
        if t == 4:
            return (Block("sizes", (len(EDGES),), one, one**2, self._share(SIZES_SHARE)),)
        one = 1 << _SQUARE_BITS
        squares = Block("residual_square", (1,), one, one**2, self._share(SQUARES_SHARE))
        gradient = self._model.row_block(self._share(GRADIENT_SHARE))
        if not self.sandwich:
            return (gradient, squares)
        products = self._model.products_block(SANDWICH_SHARE)
        return (gradient, squares, replace(products, name="sandwich"))

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the words of a round."""
        if t == 0:
            return self._frame.count_places(records)
        if t == 1:
            return self._frame.count_spreads(state, records)
        words = np.zeros(sum(block.size for block in self.blocks(t)), dtype=np.int64)
        for _, whole in self._frame.whole(state, records):
            if t == 2:
                target = np.abs(whole.numbers[self._at])
                words += np.append(count_sizes(whole.length(self._at)), count_sizes(target))
            elif t == 3:
                words += self._frame.sum_row_products(state, self._with_target(state, whole))
            else:
                words += self._residual_words(t, state, whole)
        return words

    def _with_target(self, state: GridState, whole: Whole) -> Rows:
        """Return rows for products: shortened by their own length, the target by its bound."""
        now = {name: from_grid(state[name], self.frac_bits) for name in _LENGTHS}
        unit, target_unit = self._units(now)
        most = edge_at(now["target_length"])
        numbers = whole.numbers.copy()
        numbers[self._at] = target_unit * np.clip(numbers[self._at], -most, most)
        length = self._length(now)
        factor = unit * np.minimum(1.0, length / np.maximum(whole.length(self._at), 1.0))
        return self._frame.times(Whole(numbers, whole.categories, whole.fixed), factor)

    def _residual_words(self, t: int, state: GridState, whole: Whole) -> Integers:
        """Return counts of gradients by their size; or their sum and that of squared residuals."""
        rows = Whole(np.delete(whole.numbers, self._at, axis=0), whole.categories, whole.fixed)
        model = self._model_state(state)
        weights = from_grid(state["weights"], self.frac_bits)
        residuals = whole.numbers[self._at] - self._model.told(model, rows, weights)
        sizes = rows.length() * np.abs(residuals)
        if t == 4:
            return count_sizes(sizes)
        cut = edge_at(from_grid(state["cut"], self.frac_bits))
        factor = residuals / np.maximum(sizes, cut)
        gradient = self._model.sum_rows(model, self._model.times(rows, _LENGTH * factor))
        reach = self._reach({name: from_grid(v, self.frac_bits) for name, v in state.items()})
        squares = np.trunc(np.minimum((residuals / reach) ** 2, 1.0) * (1 << _SQUARE_BITS))
        words = np.append(gradient, np.int64(squares.sum()))
        if not self.sandwich:
            return words
        cut = edge_at(from_grid(state["sandwich_cut"], self.frac_bits))
        gradients = self._model.times(rows, _LENGTH * residuals / np.maximum(sizes, cut))
        return np.append(words, self._model.sum_row_products(model, gradients))

    def _model_state(self, state: Mapping[str, Integers]) -> GridState:
        """Return centre and scale of rows without the target."""
        return {name: state[name][self._others] for name in ("centre", "scale")}

    def _reach(self, now: Mapping[str, Floats]) -> float:
        """Return the residual above which squares are cut: of a usual row at the cut."""
        curvature = np.diag(self._whole(now).matrix)
        length = sqrt(max(float(curvature.sum() / max(curvature[-1], 1.0)), 1.0))
        return edge_at(now["cut"]) / min(length, 64.0)

    def update(self, t: int, state: GridState, released: Mapping[str, Released]) -> State:
        """Place the rows; fit a first model; choose where gradients end; keep the gradient."""
        now = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        if t == 0:
            return {**now, **self._frame.read_places(released["places"])}
        if t == 1:
            return {**now, **self._frame.read_spreads(now, released["spreads"])}
        n = float(now["n"][0])
        if t == 2:
            counts, noise_std = noisy_counts(released["lengths"])
            longest, target = (usual_length(count, noise_std, n) for count in counts)
            seen = n * (1 + float(np.maximum(now["square"][self._others], 1.0).sum()))
            found = {
                "length": longest,
                "target_length": target + _FARTHER,
                "typical": middle_length(counts[0], n),
                "unseen": unseen_square(counts[0], noise_std, longest, seen),
            }
            return {**now, **{name: np.array([float(v)]) for name, v in found.items()}}
        if t == 3:
            now.update(self._products(now, released["products"]))
            return {**now, "weights": np.clip(self._first(now).weights, -1e6, 1e6)}
        if t == 4:
            counts, noise_std = noisy_counts(released["sizes"])
            price = INTERVAL_95["gaussian"] * noise_std * sqrt(SIZES_SHARE / GRADIENT_SHARE)
            cut, influence = cut_of(counts, noise_std, n, price)
            squares_price = price * sqrt(GRADIENT_SHARE / SANDWICH_SHARE)
            sandwich = cut_of_squares(counts, usual_length(counts, noise_std, n), squares_price)
            found = {"cut": cut, "influence": influence, "sandwich_cut": sandwich}
            return {**now, **{name: np.array([float(v)]) for name, v in found.items()}}
        gradient, squares = released["gradient"], released["residual_square"]
        unit, one = _LENGTH * (1 << 20), 1 << _SQUARE_BITS  # in sizes of the cut
        if self.sandwich:
            now["sandwich"] = self._sandwich(now, released["sandwich"])
        return {
            **now,
            "gradient": gradient.values / unit,
            "gradient_std": np.array([gradient.noise_std / unit]),
            "residual_square": squares.values / one,
            "residual_square_std": np.array([squares.noise_std / one]),
        }

    def _sandwich(self, now: Mapping[str, Floats], block: Released) -> Floats:
        """Return the packed sum of products of gradients, in units of their squared cut.

        No direction has less than the noise: an interval that is too narrow is worse.
        """
        raw, noise_std = self._model.unpack(block)
        values, vectors = np.linalg.eigh(raw / _LENGTH**2)
        matrix = (vectors * np.maximum(values, noise_std / _LENGTH**2)) @ vectors.T
        return np.asarray(matrix[np.triu_indices(len(matrix))])

    def _products(self, now: Mapping[str, Floats], block: Released) -> dict[str, Floats]:
        """Return the products of rows, of whole ones where nothing was shortened."""
        frame = self._frame
        matrix, noise_std = frame.unpack(block)
        unit, target_unit = self._units(now)
        units = np.full(frame.width, unit)
        units[self._place] *= target_unit
        packed = (matrix / np.outer(units, units))[np.triu_indices(frame.width)]
        return {"products": packed, "products_std": np.array([noise_std / unit**2])}

    def _matrix(self, now: Mapping[str, Floats]) -> Floats:
        return _symmetric(now["products"])

    def _curvature(self, now: Mapping[str, Floats]) -> Curvature:
        """Return the curvature of shortened rows."""
        others = self._others
        products, noise_std = self._matrix(now)[np.ix_(others, others)], now["products_std"][0]
        return curvature_of(products, float(noise_std), now["alike"][others], self._used)

    def _whole(self, now: Mapping[str, Floats]) -> Curvature:
        """Return the curvature of whole rows."""
        usual = (edge_at(now["typical"]) / max(self._length(now), 1e-6)) ** 2
        squares = now["square"][self._others] * now["n"]
        unseen = float(now["unseen"][0])
        return of_whole_rows(self._curvature(now), squares, unseen, max(usual, 1.0))

    def _penalty(self, now: Mapping[str, Floats]) -> Floats:
        penalty: Floats = self.alpha * now["scale"][self._others] ** 2
        penalty[-1] = 0.0
        return penalty

    @property
    def _spread(self) -> float:
        return SPREAD if self.shrinkage else SPREAD * NO_SHRINKAGE

    def _first(self, now: Mapping[str, Floats]) -> Fit:
        """Return the model that the products tell."""
        target = self._matrix(now)[self._others, self._place]
        noise_std = float(now["products_std"][0])
        return step(
            self._curvature(now),
            self._used,
            self._penalty(now),
            target,
            noise_std=noise_std / self._units(now)[1],
            spread=self._spread,
        )

    def _last(self, now: Mapping[str, Floats]) -> Fit:
        """Return the model one step from it, where the gradient of whole rows vanishes."""
        cut = edge_at(now["cut"])
        n = max(float(now["n"][0]), 1.0)
        return step(
            self._whole(now),
            self._used,
            self._penalty(now),
            now["gradient"] * cut,
            noise_std=float(now["gradient_std"][0]) * cut,
            bias=float(now["influence"][0]) * cut,
            start=now["weights"],
            spread=self._spread,
            energy=self._energy(now),
            hidden=sqrt(max(float(self._matrix(now)[self._place, self._place]) / n, 1.0)),
        )

    def _energy(self, now: Mapping[str, Floats]) -> float:
        """Return a sum of squared residuals at the first model that is hardly too small."""
        whole = max(float(now["n"][0]), 1.0) * max(float(now["square"][self._place]), 1.0)
        noise = INTERVAL_95["gaussian"] * float(now["residual_square_std"][0])
        left = self._reach(now) ** 2 * (float(now["residual_square"][0]) + noise)
        return min(whole, _ENERGY * max(left, 1.0))

    def _residual(self, now: Mapping[str, Floats], fit: Fit) -> Floats:
        """Return the variance of residuals and both ends of its interval, in row units."""
        reach, n = self._reach(now), max(float(now["n"][0]), 1.0)
        moved = fit.weights - now["weights"]
        gained = float(moved @ self._whole(now).matrix @ moved) / n
        unit = reach**2 / n
        value = float(now["residual_square"][0]) * unit - gained
        spread = INTERVAL_95["gaussian"] * float(now["residual_square_std"][0]) * unit
        spread = float(np.hypot(spread, gained))
        return np.maximum([value, value - spread, value + spread], 0.0)

    def _sampling(self, now: Mapping[str, Floats], fit: Fit, variance: float) -> Floats:
        """Return the covariance of weights over samples of this size."""
        if not self.sandwich:
            return fit.inverse * variance
        meat = _symmetric(now["sandwich"]) * edge_at(now["sandwich_cut"]) ** 2
        return np.asarray(fit.inverse @ meat @ fit.inverse)

    def _back(self, now: Mapping[str, Floats], on_grid: bool = False) -> Floats:
        """Return the matrix from weights of rows to coefficients in data units.

        With `on_grid` it is for numbers in ``[-1, 1]``, the target still in data units.
        """
        low, high, place = np.array(self.low), np.array(self.high), self._place
        half_range, middle = (high - low) / 2, (high + low) / 2
        others = np.delete(np.arange(self._frame.width), place)
        rows = {"centre": now["centre"][others], "scale": now["scale"][others]}
        if on_grid:
            back = self._model.to_columns(rows, np.ones(self.n_features), np.zeros(self.n_features))
        else:
            back = self._model.to_columns(rows, half_range, middle)
        told: Floats = back * half_range[self.target] / now["scale"][place]
        return told

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return nothing: the half-widths depend on how far columns spread."""
        return {}

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        """Return the model with its 95 % intervals.

        Returns
        -------
        dict
            In data units, ``coef`` of shape (n_columns_of_design,) and ``intercept`` of shape (1,),
            each with ``..._low``, ``..._high``, ``..._population_low`` and
            ``..._population_high``; ``residual_std`` of shape (1,) with ``..._low`` and
            ``..._high``; ``covariance`` of the noise in coefficients and intercept, and
            ``sampling_covariance``, of shape (n_columns_of_design + 1,) twice; ``drowned`` of shape
            (n_columns_of_design,), 1 for columns nothing can be told of. ``grid_coef`` of shape
            (n_columns_of_design + 1,): coefficients for numbers in ``[-1, 1]``, the intercept
            last, the target in data units.

        Notes
        -----
        The intervals are about least squares, or the ridge solution, of the same records. They hold
        the noise of all rounds, what the curvature may be wrong by in the last step, and what was
        cut off, as far as noisy counts tell it. Coefficients of categories sum to 0 over a column.
        The covariance of sampling is that of residuals of one variance, or from products of
        gradients.
        """
        now = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        fit = self._last(now)
        place = self._place
        half = (self.high[self.target] - self.low[self.target]) / 2
        offset = np.zeros(len(fit.weights))
        offset[-1] = (self.high[self.target] + self.low[self.target]) / 2
        offset[-1] += half * now["centre"][place]
        back = self._back(now)
        around = back @ fit.around + offset
        noise = back @ fit.noise @ back.T
        drowned = self._curvature(now).drowned
        # a column that drowns: from one end of the target to the other within a step of the grid
        widest = half * 2.0 ** (self.frac_bits + 1) / self._half_boxes
        at = np.flatnonzero(drowned)
        noise[at, at] = (widest[at] / INTERVAL_95["gaussian"]) ** 2
        if len(at):
            noise[-1, -1] += (half * 2 / INTERVAL_95["gaussian"]) ** 2
        half_width = INTERVAL_95["gaussian"] * np.sqrt(np.maximum(np.diag(noise), 0))
        half_width = np.maximum(half_width, 1e-12 * np.maximum(np.abs(around), widest * 1e-6))
        variance = self._residual(now, fit)
        sampling = back @ self._sampling(now, fit, float(variance[0])) @ back.T
        low, high = around - half_width, around + half_width
        told = np.clip(back @ fit.weights + offset, low, high)
        ends = population_interval(told, low, high, np.diag(sampling))
        results: dict[str, Floats] = {}
        named = {"": told, "_low": low, "_high": high}
        named |= {"_population_low": ends[0], "_population_high": ends[1]}
        for name, values in named.items():
            results[f"coef{name}"], results[f"intercept{name}"] = values[:-1], values[-1:]
        stds = np.sqrt(variance) * half / now["scale"][place]
        for name, value in zip(("", "_low", "_high"), stds, strict=True):
            results[f"residual_std{name}"] = np.array([value])
        results["around"] = around
        results["covariance"], results["sampling_covariance"] = noise, sampling
        results["drowned"] = drowned[:-1].astype(np.float64)
        results["grid_coef"] = self._back(now, on_grid=True) @ fit.weights + offset
        return results

    @property
    def _half_boxes(self) -> Floats:
        """Half the range of each number, 1 for categories and the intercept; shape (width,)."""
        return np.append(self._model.half_boxes(np.array(self.low), np.array(self.high)), 1.0)

    def predict(self, results: Mapping[str, Floats], records: Records) -> Floats:
        """Return the predicted target of grid records; shape (n_samples,), data units."""
        coefficients = np.asarray(results["grid_coef"])[None]
        told: Floats = self._model.predict(coefficients, records)[:, 0]
        return told

    def displays(
        self, results: Mapping[str, Floats], columns: tuple[str, ...]
    ) -> tuple[Display, ...]:
        """Return the coefficients, and a picture of them per half box."""
        told = np.append(results["coef"], results["intercept"])
        noise, sampling = results["covariance"], results["sampling_covariance"]
        chosen = [c for j, c in enumerate(self.reference) if j != self.target]
        matrix = to_reference(self._used, chosen)
        compared = [
            combination(row, told, noise, sampling, around=results["around"]) for row in matrix
        ]
        rows: list[tuple[str | Between, ...]] = []
        for name, row, between in zip(self.names, matrix, compared, strict=True):
            rows.append((name, between if row.any() else "reference"))
        value, low, high = (
            float(results[f"residual_std{end}"][0]) for end in ("", "_low", "_high")
        )
        if low > 0:
            rows.append(("residual deviation", Between(value, low, high)))
        note = NOTE.format(variance="any" if self.sandwich else "one")
        if hidden := [n for n, d in zip(self.names, results["drowned"], strict=False) if d]:
            note += f" Nothing can be told of {', '.join(hidden)}: give narrower bounds."
        title = f"Coefficients for {columns[self.target]!r}, data units"
        table = Table(title, ("column", "coefficient"), tuple(rows), note)
        boxes = self._half_boxes[:-1]
        bars = coefficient_bars(
            "Largest coefficients, for a column over half its box",
            self.names[:-1],
            np.array([c.value for c in compared[:-1]]) * boxes,
            np.array([c.high - c.low for c in compared[:-1]]) / 2 * boxes,
            columns[self.target],
        )
        return (table, bars)


def _symmetric(packed: Floats) -> Floats:
    """Return the matrix of which this is the upper half."""
    width = int(sqrt(2 * len(packed)))
    matrix = np.zeros((width, width))
    matrix[np.triu_indices(width)] = packed
    return matrix + np.triu(matrix, 1).T
