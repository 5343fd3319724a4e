"""A network of two layers, by gradient descent on shared rows."""

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
from cloister.mpc.compare import negative
from cloister.mpc.functions import sigmoid
from cloister.mpc.material import Shape
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
    stacked,
    whole,
)
from cloister.privacy.events import Event
from cloister.randomness import public_generator

_BOUND = 16  # of weights


@dataclass(frozen=True, kw_only=True)
class NetworkOnShares:
    """Dense, ReLU, dense, a sigmoid for each class; only the last weights are opened, exactly.

    The dealer together with either server sees every row. The opening is exact, which is **no
    private release**: a record's gradient grows with the weights, so it has no bounded
    sensitivity unless it is clipped record by record on shares, which this does not do.

    Parameters
    ----------
    owners, rows, low, high, steps, step, nominal_n
        As for :class:`~cloister.mpc.training.logistic.LogisticOnShares`; rows are divided by
        sqrt(d), so that they lie in the unit ball.
    classes : int, >= 2
    hidden : int, 1 to 4096
    seed : int
        Public; the weights start from it.
    """

    name: ClassVar[str] = "network-on-shares"
    opening: ClassVar[Opening] = "exact"

    owners: tuple[str, ...]
    rows: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    classes: int = 2
    hidden: int = 16
    steps: int = 50
    step: float = 1.0
    nominal_n: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("owners", "low", "high"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_owners(self.owners, self.rows)
        whole("classes", self.classes, 2, 1024)
        whole("hidden", self.hidden, 1, 4096)
        whole("steps", self.steps, 1, 10_000)
        require(0 < self.step <= 100, "step", "in (0, 100]", self.step)
        whole("nominal_n", self.nominal_n, 0, 1 << 30)
        whole("seed", self.seed, 0, (1 << 63) - 1)
        # With them the products of hidden values, and of what comes back, stay below 2^62.
        size = self.hidden * self._width
        require(size <= 1 << 16, "hidden x columns", "at most 2^16", size)

    @cached_property
    def _grid(self) -> Grid:
        return Grid(self.low, self.high, FRAC_BITS)

    @property
    def _width(self) -> int:
        return self._grid.n_features + 1

    def event(self) -> Event | None:
        """Return None: nothing here is a private release."""
        return None

    def tables(self) -> Mapping[str, Shape]:
        """Features, an indicator for each class and validity, of each owner."""
        return dict.fromkeys(self.owners, (self.rows, self._width + self.classes))

    def results(self) -> Mapping[str, Shape]:
        """Weights of both layers, the biases in their last rows."""
        return {"first": (self._width, self.hidden), "second": (self.hidden + 1, self.classes)}

    def table(self, X: ArrayLike, y: ArrayLike) -> Words:
        """Return an owner's table, ready to be split.

        Parameters
        ----------
        X : array_like of shape (n, d), data units, without NaN
        y : array_like of shape (n,), integers from 0

        Raises
        ------
        DataError
            If shapes differ, a value is missing, a label is no class, or rows are too many.
        """
        features = in_unit_ball(self._grid, X, sqrt(self._grid.n_features))
        return padded(beside(features, indicator(y, self.classes)), self.rows)

    def words(self, name: str, values: ArrayLike) -> Words:
        """Return an owner's table; the last column is the class, see :meth:`table`."""
        columns = np.asarray(values, dtype=np.float64)
        return self.table(columns[..., :-1], columns[..., -1])

    def start(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the public weights of both layers before the first step, on the lattice."""
        draw = public_generator(self.seed)
        # Rows have norm at most 1, however many columns: a hidden value of about 1 trains well.
        first = draw.normal(0, 1, (self._width, self.hidden))
        second = draw.normal(0, 1 / sqrt(self.hidden), (self.hidden + 1, self.classes))
        first[-1] = second[-1] = 0
        return tuple(np.rint(np.clip(w, -4, 4) * ONE) / ONE for w in (first, second))  # type: ignore[return-value]

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Train (semi-honest; the dealer with either server sees all).

        A step has five products of all rows, one ReLU a hidden value and one sigmoid a class.
        """
        columns, valid = stacked(self.owners, tables)
        d = self._grid.n_features
        unit = valid * np.uint64(ONE)
        design = np.hstack([multiply(server, columns[:, :d], valid), unit])
        wanted = columns[:, d:]
        first, second = (server.constant(weights) for weights in self.start())
        for _ in range(self.steps):
            raw = truncate(server, matmul(server, design, first))
            on = server.constant(np.ones(raw.shape), 0) - negative(server, raw)
            # A row that is not there is zero in every layer, with the unit of its bias.
            hidden = np.hstack([multiply(server, raw, on), unit])
            found = sigmoid(server, truncate(server, matmul(server, hidden, second)))
            error = multiply(server, found - wanted, valid)
            back = truncate(server, matmul(server, error, second[:-1].T))
            back = multiply(server, back, on)
            first, second = (
                self._moved(server, weights, matmul(server, layer.T, part), largest)
                for weights, layer, part, largest in (
                    (first, design, back, _BOUND * self.classes),
                    (second, hidden, error, _BOUND * (sqrt(d) + 1)),
                )
            )
        return {"first": first, "second": second}

    def _moved(self, server: Server, weights: Words, gradient: Words, largest: float) -> Words:
        """Return weights after a step; `largest` is what one record adds at most."""
        rows = self.rows * len(self.owners)
        rate = self.step / (self.nominal_n or rows) / ONE
        move = rescale(server, gradient, rate, rows * largest * ONE**2)
        return clamp(server, weights - move, _BOUND * ONE)

    def scores(
        self, X: ArrayLike, first: NDArray[np.float64], second: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return a logit a class, in the clear, of records and decoded weights; (n, classes)."""
        rows = in_unit_ball(self._grid, X, sqrt(self._grid.n_features)) / ONE
        hidden = np.maximum(np.hstack([rows, np.ones((len(rows), 1))]) @ first, 0)
        logits: NDArray[np.float64] = np.hstack([hidden, np.ones((len(rows), 1))]) @ second
        return logits
