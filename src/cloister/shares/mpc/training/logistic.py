"""Logistic regression by gradient descent on shared rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from cloister.core.declared import AtLeastZero, Range, declared
from cloister.hazmat.ring import Words
from cloister.shares.mpc.functions import sigmoid
from cloister.shares.mpc.material import Shape
from cloister.shares.mpc.opening import Budgeted
from cloister.shares.mpc.products import matmul, truncate
from cloister.shares.mpc.server import Server
from cloister.shares.mpc.training.tables import (
    ONE,
    Descent,
    Step,
    Steps,
    clamp,
    require,
    rescale,
    rescaling,
)


@declared
class LogisticOnShares(Descent, Budgeted):
    """Two classes, full-batch projected gradient descent; only the last weights are opened.

    The dealer together with either server sees every row. With `epsilon` the opening is private:
    in every step each server adds noise to the summed gradient. Without it the opening is exact,
    which is **no private release**. The curvature is at most 1/2, so a `step` up to 2 is safe.

    Rows longer than `radius` are clipped to it, and all are then divided by it. A smaller radius
    gives a larger gradient relative to the noise, if most rows are about that long.

    References
    ----------
    P. Mohassel, Y. Zhang, "SecureML", 2017, section 4 (gradient descent on shares).
    B. Polyak, "Some methods of speeding up the convergence of iteration methods", 1964 (momentum).
    """

    name: ClassVar[str] = "logistic-on-shares"

    steps: Steps = 20
    step: Step = 2.0
    radius: Annotated[
        AtLeastZero, "2^-16 to sqrt(d), box units; 0 for sqrt(d), which shortens no row"
    ] = 0.0
    penalty: Annotated[
        AtLeastZero, "of half the squared norm of the coefficients, intercept left out"
    ] = 0.0
    momentum: Annotated[
        float, Range(0, 0.99), "share of the last move that each step repeats, for fewer steps"
    ] = 0.0
    bound: Annotated[float, Range(1, 1024), "weights are cut to [-bound, bound] in each step"] = (
        32.0
    )

    def __post_init__(self) -> None:
        most = super()._radius
        # With a radius below a lattice step, dividing a row of zeros could overflow.
        fits = self.radius == 0 or 1 / ONE <= self.radius <= most
        require(fits, "radius", f"0 or in [2^-16, {most:.3g}]", self.radius)
        require(self.step * self.penalty < 1, "penalty", "below 1 / step", self.penalty)
        # Refused now and not during a run, after ledgers were charged.
        rescaling(self._rate, self._most_sum)
        if self.penalty:
            rescaling(self.step * self.penalty, self._most_weight)
        if self.momentum:
            rescaling(self.momentum, 2 * self._most_weight)

    @property
    def _radius(self) -> float:
        return self.radius or super()._radius

    @property
    def _n_targets(self) -> int:
        return 1

    @property
    def _noised(self) -> tuple[int, int]:
        # A record adds residual * (x, 1). Sigmoid and label are in [0, 2^16], so the residual is at
        # most 2^16 in size; x has norm at most 2^16, and the 1 is 2^16.
        return self.steps, ONE**2 * (ONE**2 + ONE**2)

    def results(self) -> Mapping[str, Shape]:
        """Return the shape of the coefficients of the scaled features, then the intercept."""
        return {"weights": (self._grid.n_features + 1,)}

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Train (semi-honest; the dealer with either server sees all).

        A step has two products of all rows, a sigmoid and a clip of the weights.
        """
        design, labels = self._design(server, tables)
        weights = last = server.constant(np.zeros((design.shape[1], 1)))
        most = self._most_weight
        penalised = np.ones_like(weights)
        penalised[-1] = 0
        for _ in range(self.steps):
            found = sigmoid(server, truncate(server, matmul(server, design, weights)))
            gradient = self._with_noise(server, matmul(server, design.T, found - labels))
            move = rescale(server, gradient, self._rate, self._most_sum)
            if self.penalty:
                move = move + rescale(server, weights * penalised, self.step * self.penalty, most)
            if self.momentum:
                # Both are cut, so their difference has a bound without one more cut.
                move = move - rescale(server, weights - last, self.momentum, 2 * most)
            last, weights = weights, clamp(server, weights - move, most)
        return {"weights": weights.ravel()}

    @property
    def _most_weight(self) -> int:
        return round(self.bound * ONE)

    @property
    def _most_sum(self) -> float:
        """Bound on a gradient, lattice steps, noise included."""
        return float(self._all_rows * ONE**2) + self._most_noise

    def model(self, weights: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        """Return coefficients and intercept in data units from the opened weights."""
        coefficients = weights[:-1] / (self._radius * self._grid.half_range)
        return coefficients, float(weights[-1] - coefficients @ self._grid.centre)
