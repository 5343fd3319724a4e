"""A network of two layers, by gradient descent on shared rows."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.core.declared import Range, declared
from cloister.core.randomness import public_generator
from cloister.hazmat.ring import Words
from cloister.shares.mpc.compare import negative
from cloister.shares.mpc.functions import sigmoid
from cloister.shares.mpc.material import Shape
from cloister.shares.mpc.products import matmul, multiply, truncate
from cloister.shares.mpc.program import Opening
from cloister.shares.mpc.server import Server
from cloister.shares.mpc.training.tables import (
    ONE,
    Descent,
    Step,
    Steps,
    clamp,
    in_unit_ball,
    require,
    rescale,
    rescaling,
)

_BOUND = 16  # of weights


@declared
class NetworkOnShares(Descent):
    """Dense, ReLU, dense, and a sigmoid for each class; only the last weights are opened, exactly.

    The dealer together with either server sees every row. The opening is exact, which is **no
    private release**. A record's gradient grows with the weights, so its sensitivity is unbounded
    without clipping per record on shares, which this program does not do.
    """

    name: ClassVar[str] = "network-on-shares"
    opening: ClassVar[Opening] = "exact"

    steps: Steps = 50
    step: Step = 1.0
    classes: Annotated[int, Range(2, 1024)] = 2
    hidden: Annotated[int, Range(1, 4096), "values of the hidden layer"] = 16
    seed: Annotated[int, Range(0, (1 << 63) - 1), "public; the weights start from it"] = 0

    def __post_init__(self) -> None:
        # Keeps products of hidden values and of back-propagated errors below 2^62.
        size = self.hidden * self._width
        require(size <= 1 << 16, "hidden x columns", "at most 2^16", size)
        for most in self._most_sums:
            rescaling(self._rate, most)

    @property
    def _n_targets(self) -> int:
        return self.classes

    @property
    def _width(self) -> int:
        return self._grid.n_features + 1

    @property
    def _most_sums(self) -> tuple[float, float]:
        """Bounds on the gradients of both layers, lattice steps, for all rows at their largest."""
        back, hidden = _BOUND * self.classes, _BOUND * (sqrt(self._grid.n_features) + 1)
        return self._all_rows * back * ONE**2, self._all_rows * hidden * ONE**2

    def results(self) -> Mapping[str, Shape]:
        """Return the shapes of the weights of both layers, the biases in their last rows."""
        return {"first": (self._width, self.hidden), "second": (self.hidden + 1, self.classes)}

    def start(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the public weights of both layers before the first step, on the lattice."""
        draw = public_generator(self.seed)
        # Rows have norm at most 1 for any number of columns; hidden values near 1 train well.
        first = draw.normal(0, 1, (self._width, self.hidden))
        second = draw.normal(0, 1 / sqrt(self.hidden), (self.hidden + 1, self.classes))
        first[-1] = second[-1] = 0
        return tuple(np.rint(np.clip(w, -4, 4) * ONE) / ONE for w in (first, second))  # type: ignore[return-value]

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Train (semi-honest; the dealer with either server sees all).

        A step has four products of all rows, one ReLU a hidden value and one sigmoid a class.
        """
        design, wanted = self._design(server, tables)
        first, second = (server.constant(weights) for weights in self.start())
        for _ in range(self.steps):
            raw = truncate(server, matmul(server, design, first))
            on = server.constant(np.ones(raw.shape), 0) - negative(server, raw)
            # With the unit of the bias again, so that a padded row is zero in every layer.
            hidden = np.hstack([multiply(server, raw, on), design[:, -1:]])
            found = sigmoid(server, truncate(server, matmul(server, hidden, second)))
            error = found - wanted
            back = truncate(server, matmul(server, error, second[:-1].T))
            back = multiply(server, back, on)
            gradients = matmul(server, design.T, back), matmul(server, hidden.T, error)
            first, second = (
                clamp(server, weights - rescale(server, sums, self._rate, most), _BOUND * ONE)
                for weights, sums, most in zip(
                    (first, second), gradients, self._most_sums, strict=True
                )
            )
        return {"first": first, "second": second}

    def scores(
        self, X: ArrayLike, first: NDArray[np.float64], second: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the logits of records in the clear, from decoded weights; shape (n, classes)."""
        rows = in_unit_ball(self._grid, X, self._radius) / ONE
        hidden = np.maximum(np.hstack([rows, np.ones((len(rows), 1))]) @ first, 0)
        return np.hstack([hidden, np.ones((len(rows), 1))]) @ second
