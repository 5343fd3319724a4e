"""Logistic regression by gradient descent on shared rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.hazmat.fixedpoint import Grid
from cloister.hazmat.ring import Words
from cloister.mpc.functions import sigmoid
from cloister.mpc.material import Shape
from cloister.mpc.opening import NoiseOnShares
from cloister.mpc.products import matmul, multiply, truncate
from cloister.mpc.program import Opening
from cloister.mpc.server import Server
from cloister.mpc.shares import FRAC_BITS
from cloister.mpc.training.tables import (
    ONE,
    beside,
    check_owners,
    clamp,
    in_unit_ball,
    indicator,
    padded,
    require,
    rescale,
    rescaling,
    stacked,
    whole,
)
from cloister.privacy.events import Event

_TAIL = 8.0  # deviations of noise that head-room leaves room for: a matter of use, not of privacy


@dataclass(frozen=True, kw_only=True)
class LogisticOnShares:
    """Two classes, full-batch projected gradient descent; only the last weights are opened.

    The dealer together with either server sees every row. With `epsilon` the opening is private:
    in every step each server adds noise to the summed gradient. Without it the opening is exact,
    which is **no private release**.

    Parameters
    ----------
    owners : tuple of str
        One table each.
    rows : int
        Public; each owner pads to so many.
    low, high : tuple of float, data units
        Public box; it is mapped to [-1, 1].
    radius : float in (0, sqrt(d)], box units; 0 for sqrt(d), which shortens no row
        Longer rows are shortened to it; rows are then divided by it. A smaller one means a better
        scaled gradient under noise, if most rows are about so long.
    steps : int
    step : float, > 0
        Of the mean gradient; the curvature is at most 1/2, so up to 2 is safe.
    penalty : float, >= 0
        Of half the squared norm of the coefficients, intercept left out, beside the mean loss.
    bound : float, 1 to 1024
        Weights are cut to [-bound, bound] after every step.
    nominal_n : int
        Public number of records the sum is divided by; 0 for all padded rows.
    epsilon, delta : float
        Of the whole training; epsilon 0 for an exact opening.
    max_rows, max_silos : int
        The most rows of one unit at a silo, and the most silos it is at.

    References
    ----------
    P. Mohassel, Y. Zhang, "SecureML", 2017, section 4 (gradient descent on shares).
    """

    name: ClassVar[str] = "logistic-on-shares"

    owners: tuple[str, ...]
    rows: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    radius: float = 0.0
    steps: int = 20
    step: float = 2.0
    penalty: float = 0.0
    bound: float = 32.0
    nominal_n: int = 0
    epsilon: float = 0.0
    delta: float = 1e-6
    max_rows: int = 1
    max_silos: int = 1

    def __post_init__(self) -> None:
        for name in ("owners", "low", "high"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_owners(self.owners, self.rows)
        d = self._grid.n_features
        require(0 <= self.radius <= sqrt(d), "radius", f"in [0, {sqrt(d):.3g}]", self.radius)
        whole("steps", self.steps, 1, 10_000)
        require(0 < self.step <= 100, "step", "in (0, 100]", self.step)
        require(0 <= self.step * self.penalty < 1, "penalty", "in [0, 1 / step)", self.penalty)
        require(1 <= self.bound <= 1024, "bound", "in [1, 1024]", self.bound)
        whole("nominal_n", self.nominal_n, 0, 1 << 30)
        require(self.epsilon >= 0, "epsilon", "at least 0", self.epsilon)
        whole("max_rows", self.max_rows, 1, 1 << 20)
        whole("max_silos", self.max_silos, 1, 1 << 20)
        # Refused now and not in a run, when ledgers were charged.
        rescaling(self._rate / ONE, self._most_sum)
        if self.penalty:
            rescaling(self.step * self.penalty, self._most_weight)

    @cached_property
    def _grid(self) -> Grid:
        return Grid(self.low, self.high, FRAC_BITS)

    @cached_property
    def noise(self) -> NoiseOnShares | None:
        """What each server adds to each gradient; None for an exact opening.

        A record adds residual * (x, 1). Sigmoid and label are in [0, 2^16], so the residual is at
        most 2^16 in size; x has norm at most 2^16, and the 1 is 2^16.
        """
        if not self.epsilon:
            return None
        squared = ONE**2 * (ONE**2 + ONE**2)
        unit = self.max_rows * self.max_silos
        return NoiseOnShares(self.epsilon, self.delta, self.steps, squared, unit)

    @property
    def opening(self) -> Opening:
        """Return "private" with a budget, else "exact"."""
        return "private" if self.noise else "exact"

    def event(self) -> Event | None:
        """Return what training costs each owner's ledger; None for an exact opening."""
        return self.noise.event() if self.noise else None

    def tables(self) -> Mapping[str, Shape]:
        """Features, label and validity, of each owner."""
        return dict.fromkeys(self.owners, (self.rows, self._grid.n_features + 2))

    def results(self) -> Mapping[str, Shape]:
        """Coefficients of the scaled features, then the intercept."""
        return {"weights": (self._grid.n_features + 1,)}

    def table(self, X: ArrayLike, y: ArrayLike) -> Words:
        """Return an owner's table, ready to be split.

        Parameters
        ----------
        X : array_like of shape (n, d), data units, without NaN
        y : array_like of shape (n,), 0 or 1

        Raises
        ------
        DataError
            If shapes differ, a value is missing, a label is neither 0 nor 1, or rows are too many.
        """
        length = self.radius or sqrt(self._grid.n_features)
        features, labels = in_unit_ball(self._grid, X, length), indicator(y, 2)[:, 1:]
        return padded(beside(features, labels), self.rows)

    def words(self, name: str, values: ArrayLike) -> Words:
        """Return an owner's table; the last column is the label, see :meth:`table`."""
        columns = np.asarray(values, dtype=np.float64)
        return self.table(columns[..., :-1], columns[..., -1])

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Train (semi-honest; the dealer with either server sees all).

        A step has two products of all rows, a sigmoid and a cut of the weights.
        """
        columns, valid = stacked(self.owners, tables)
        features = multiply(server, columns[:, :-1], valid)
        # A row that is not there is zero with its unit, so it adds nothing whatever its label.
        design = np.hstack([features, valid * np.uint64(ONE)])
        labels = columns[:, -1:]
        weights = server.constant(np.zeros((design.shape[1], 1)))
        most, sums = self._most_weight, self._most_sum
        penalised = np.ones_like(weights)
        penalised[-1] = 0
        for _ in range(self.steps):
            found = sigmoid(server, truncate(server, matmul(server, design, weights)))
            gradient = matmul(server, design.T, found - labels)  # 32 fraction bits
            if self.noise:
                gradient = self.noise.add(server, gradient)
            move = rescale(server, gradient, self._rate / ONE, sums)
            if self.penalty:
                move = move + rescale(server, weights * penalised, self.step * self.penalty, most)
            weights = clamp(server, weights - move, most)
        return {"weights": weights.ravel()}

    @property
    def _most_weight(self) -> int:
        return round(self.bound * ONE)

    @property
    def _rate(self) -> float:
        return self.step / (self.nominal_n or self.rows * len(self.owners))

    @property
    def _most_sum(self) -> float:
        """Of a gradient, lattice steps, noise included."""
        noise = 2 * _TAIL * self.noise.sigma if self.noise else 0.0
        return float(self.rows * len(self.owners) * ONE**2) + noise

    def model(self, weights: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        """Return coefficients and intercept in data units, of the opened weights."""
        scale = (self.radius or sqrt(self._grid.n_features)) * self._grid.half_range
        coefficients = weights[:-1] / scale
        return coefficients, float(weights[-1] - coefficients @ self._grid.centre)
