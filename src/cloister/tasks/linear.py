"""Linear and ridge regression from noisy sums of products.

References
----------
.. [VS09] Vu, Slavkovic, "Differential Privacy for Clinical Trial Data: Preliminary Evaluations",
   ICDM Workshops 2009: regression from noisy sufficient statistics.
.. [W18] Wang, "Revisiting Differentially Private Linear Regression: Optimal and Adaptive Prediction
   and Estimation in Unbounded Domain", UAI 2018: the noise of the products asks for a ridge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, sqrt
from typing import ClassVar, Self

import numpy as np

from cloister.errors import PlanError
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.privacy.budget import Budget
from cloister.tasks.base import (
    INTERVAL_95,
    Between,
    Block,
    Exhibit,
    Floats,
    GridState,
    Integers,
    Mechanism,
    Profile,
    PublicColumn,
    Records,
    Released,
    State,
    Table,
)
from cloister.tasks.columns import Encoding, position
from cloister.tasks.frame import (
    NOTE,
    Frame,
    coefficient_bars,
    noise_of_mean,
    row_length,
    solve,
)
from cloister.tasks.intervals import round_up

SUMS_SHARE = 0.1
"""Part of the budget of the first sum; the products have the rest."""

_SPREAD = 1.0  # of weights before any data, where columns and target are scaled alike
_NO_SHRINKAGE = 1e6  # times as much


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Least squares with a ridge, from two noisy sums.

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
        Rows with their target, centred and scaled, are shortened to this length.
    alpha : float, >= 0
        Of the squared norm of the coefficients, the intercept left out, where numbers are scaled to
        ``[-1, 1]`` by their public bounds.
    shrinkage : bool
        Whether weights that drown in noise are drawn toward 0. Without noise it changes nothing.
    frac_bits : int

    Notes
    -----
    A row that is shortened stays on the same plane, its target with it, and only weighs less. Rows
    are explained in :mod:`cloister.tasks.frame`, privacy in docs/proofs/regression.md.
    """

    name: ClassVar[str] = "linear"
    private: ClassVar[bool] = True
    profiles: ClassVar[frozenset[Profile]] = frozenset({"local", "group", "pairwise"})
    mechanism: ClassVar[Mechanism] = "gaussian"
    rounds: ClassVar[int] = 2

    n_features: int
    target: int
    levels: tuple[int, ...]
    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    clip: float
    alpha: float = 0.0
    shrinkage: bool = True
    frac_bits: int = 16

    def __post_init__(self) -> None:
        for name in ("levels", "names", "low", "high"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not len(self.levels) == len(self.low) == len(self.high) == self.n_features:
            raise PlanError("levels, low and high need one entry for each column.")
        if not 0 <= self.target < self.n_features or self.levels[self.target]:
            raise PlanError(f"target must be a column of numbers, got column {self.target}.")
        if not (isfinite(self.alpha) and self.alpha >= 0):
            raise PlanError(f"alpha must be a finite number >= 0, got {self.alpha!r}.")
        self._frame.products_block(1.0)  # refuses a row that is too long or too wide

    @classmethod
    def design(
        cls,
        *,
        n_features: int,
        nominal_n: int,
        budget: Budget | None,
        columns: Sequence[PublicColumn],
        target: str = "",
        alpha: float = 0.0,
        clip: float | None = None,
        shrinkage: bool = True,
        frac_bits: int = 16,
    ) -> Self:
        """Choose the length of rows from public numbers.

        Parameters
        ----------
        n_features, nominal_n, budget, columns, frac_bits
            As every task is told.
        target : str
            The column of numbers that is to be told.
        alpha : float, >= 0
            As in scikit-learn's ``Ridge``, for numbers scaled to ``[-1, 1]`` by their bounds.
        clip : float in (0, 32], optional
            Length of rows; by default :func:`cloister.tasks.frame.row_length`.
        shrinkage : bool

        Raises
        ------
        PlanError
            If an option breaks its rule.
        """
        at = position(columns, target)
        if columns[at].levels:
            raise PlanError(f"target {target!r} must be a column of numbers, got categories.")
        if n_features < 2:
            raise PlanError("linear regression needs a column besides the target.")
        if isinstance(alpha, bool) or not isinstance(alpha, int | float):
            raise PlanError(f"alpha must be a number, got {alpha!r}.")
        levels = tuple(c.levels for c in columns)
        n_categories = sum(level > 0 for level in levels)
        if clip is None:
            width = Encoding(levels, frac_bits).width
            noise = noise_of_mean(width, budget, nominal_n)
            clip = row_length(n_categories, n_features - n_categories, noise)
        return cls(
            n_features=n_features,
            target=at,
            levels=levels,
            names=Encoding(levels, frac_bits, (at,)).names(columns),
            low=tuple(c.low for c in columns),
            high=tuple(c.high for c in columns),
            clip=float(clip),
            alpha=float(alpha),
            shrinkage=bool(shrinkage),
            frac_bits=frac_bits,
        )

    @cached_property
    def _frame(self) -> Frame:
        """Rows with the target as one of their numbers."""
        return Frame(self.levels, self.frac_bits, (), float(self.clip))

    @cached_property
    def _model(self) -> Frame:
        """Rows without it."""
        return Frame(self.levels, self.frac_bits, (self.target,), float(self.clip))

    @property
    def _place(self) -> int:
        """Where the target is in a row."""
        return self._frame.place_of(self.target)

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        return (
            f"Linear regression on {self._model.width - 1} columns of a design. One noisy sum "
            "tells where columns lie and how far they spread, one their products with each other "
            "and with the target; each record's row is shortened to length "
            f"{self.clip:.3g} first. The coefficients are made from these sums."
        )

    def start(self) -> State:
        """Return the state before the first round: all weights 0."""
        p = self._frame.width
        return {
            "centre": np.zeros(p),
            "scale": np.ones(p),
            "weights": np.zeros(p - 1),
            "half_width": np.zeros(p - 1),
            "residual_std": np.zeros(1),
        }

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return sums of columns, or products of rows."""
        if t == 0:
            return (self._frame.sums_block(SUMS_SHARE),)
        return (self._frame.products_block(1 - SUMS_SHARE),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the words of a round."""
        if t == 0:
            return self._frame.sum_columns(records)
        products = np.zeros(self._frame.products_block(1.0).size, dtype=np.int64)
        for _, rows in self._frame.rows(state, records):
            products += self._frame.sum_row_products(state, rows)
        return products

    def update(self, t: int, state: GridState, released: Mapping[str, Released]) -> State:
        """Place the rows; or solve the normal equations."""
        now = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        if t == 0:
            return {**now, **self._frame.place(released["sums"])}
        matrix, noise_std = self._frame.read_products(released["products"])
        place = self._place
        others = np.delete(np.arange(self._frame.width), place)
        products, target = matrix[np.ix_(others, others)], matrix[others, place]
        spread = np.full(len(others), _SPREAD if self.shrinkage else _SPREAD * _NO_SHRINKAGE)
        penalty = self.alpha * now["scale"][others] ** 2
        penalty[-1] = 0.0
        weights = np.zeros(len(others))
        covariance = np.zeros((len(others), len(others)))
        for _ in range(2):  # the noise of products comes in times the weights, which are not known
            noise = noise_std * sqrt(1 + min(float(weights @ weights), len(others)))
            mean, covariance = solve(products, penalty, target[None], noise, spread)
            weights = mean[0]
        # in half boxes and half ranges of the target: the state is rounded to the grid
        rows = {"centre": now["centre"][others], "scale": now["scale"][others]}
        unit = 1 / now["scale"][place]
        back = unit * self._model.to_half_boxes(rows, np.array(self.low), np.array(self.high))
        variance = np.einsum("ij,jk,ik->i", back, covariance, back)
        half_width = INTERVAL_95["gaussian"] * np.sqrt(np.maximum(variance, 0))
        left = matrix[place, place] - 2 * (target @ weights) + weights @ products @ weights
        variance_left = max(float(left), 0.0) / max(float(products[-1, -1]), noise_std, 1e-9)
        return {
            **now,
            "weights": np.clip(weights, -1e6, 1e6),
            "half_width": round_up(half_width, self.frac_bits),
            "residual_std": np.array([min(sqrt(variance_left) * unit, 1e9)]),
        }

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
            each with ``..._low`` and ``..._high``, and ``residual_std`` of shape (1,).
            ``grid_coef`` of shape (n_columns_of_design + 1,): coefficients for numbers in
            ``[-1, 1]``, the intercept last, the target in data units.

        Notes
        -----
        The intervals are about the ridge solution that the same rows, clip length and alpha have
        without noise, given that weights are of the size :meth:`update` assumes of them. They say
        nothing of sampling.
        """
        now = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        offset = np.zeros(len(now["weights"]))
        half = (self.high[self.target] - self.low[self.target]) / 2
        middle = (self.high[self.target] + self.low[self.target]) / 2
        offset[-1] = middle + half * now["centre"][self._place]
        told = self._back(now) @ now["weights"] + offset
        boxes = self._model.half_boxes(np.array(self.low), np.array(self.high))
        half_width = now["half_width"] * half / np.append(boxes, 1.0)
        low, high = told - half_width, told + half_width
        return {
            "coef": told[:-1],
            "coef_low": low[:-1],
            "coef_high": high[:-1],
            "intercept": told[-1:],
            "intercept_low": low[-1:],
            "intercept_high": high[-1:],
            "residual_std": now["residual_std"] * half,
            "grid_coef": self._back(now, on_grid=True) @ now["weights"] + offset,
        }

    def predict(self, results: Mapping[str, Floats], records: Records) -> Floats:
        """Return the predicted target of grid records; shape (n_samples,), data units."""
        coefficients = np.asarray(results["grid_coef"])[None]
        told: Floats = self._model.predict(coefficients, records)[:, 0]
        return told

    def exhibits(
        self, results: Mapping[str, Floats], columns: tuple[str, ...]
    ) -> tuple[Exhibit, ...]:
        """Return the coefficients, and a picture of them per half box."""
        told = np.append(results["coef"], results["intercept"])
        low = np.append(results["coef_low"], results["intercept_low"])
        high = np.append(results["coef_high"], results["intercept_high"])
        rows = tuple(
            (name, Between(*map(float, ends)))
            for name, *ends in zip(self.names, told, low, high, strict=True)
        )
        left = ("residual deviation", float(results["residual_std"][0]))
        title = f"Coefficients for {columns[self.target]!r}, data units"
        table = Table(title, ("column", "coefficient"), (*rows, left), NOTE)
        boxes = self._model.half_boxes(np.array(self.low), np.array(self.high))
        bars = coefficient_bars(
            "Largest coefficients, for a column over half its box",
            self.names[:-1],
            np.asarray(results["grid_coef"])[:-1],
            (high - low)[:-1] / 2 * boxes,
            columns[self.target],
        )
        return (table, bars)
