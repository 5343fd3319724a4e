"""Training on the records of one privacy unit: some steps of gradient descent on its rows.

Units with the same number of rows are trained side by side, and each as if it were alone: its
update does not depend, not even in its last bit, on who else is in the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import numpy as np

from cloister.core.arrays import Floats, Integers, Records
from cloister.core.randomness import public_generator

Loss = Literal["square", "logistic", "softmax"]
LATTICE_BITS = 20
NORM = 1 << LATTICE_BITS
"""The largest norm of an update in lattice steps, whatever its largest norm in parameters is."""

_CELLS = 1 << 21  # of parameters or inputs that are trained side by side


@dataclass(frozen=True)
class Network:
    """A linear model, or one hidden layer of tanh units under it; parameters are one vector.

    Parameters
    ----------
    inputs : int
        Columns of the design matrix; its last column is the intercept.
    loss : {"square", "logistic", "softmax"}
        Half the square of the error; or the log loss of one output, or of one output a class.
    hidden : int, >= 0
        Number of hidden units; 0 for a linear model.
    """

    inputs: int
    outputs: int
    loss: Loss
    hidden: int = 0

    @property
    def size(self) -> int:
        """Number of parameters."""
        if self.hidden == 0:
            return self.inputs * self.outputs
        return self.inputs * self.hidden + (self.hidden + 1) * self.outputs

    def start(self, public_seed: int) -> Floats:
        """Return the parameters before the first round: zero, or public random hidden layers."""
        if self.hidden == 0:
            return np.zeros(self.size)
        rng = public_generator(public_seed, "hidden layer", self.inputs, self.hidden)
        first = rng.normal(0, 1 / sqrt(self.inputs), self.inputs * self.hidden)
        return np.concatenate([first, np.zeros(self.size - first.size)])

    def predict(self, parameters: Floats, X: Floats) -> Floats:
        """Return values, or probabilities, of shape (n_samples, outputs)."""
        return np.asarray(self._forward(self._layers(parameters[None]), X[None])[-1][0])

    def train(self, parameters: Floats, X: Floats, Y: Floats, steps: int, rate: float) -> Floats:
        """Return the change of the parameters by full-batch gradient descent, unit by unit.

        All start from the same parameters, of shape (size,); `X` is of shape (n_units, n_rows,
        inputs) and `Y` of shape (n_units, n_rows, outputs). What is returned, of shape (n_units,
        size), may hold what is not a number, if the steps were too long.
        """
        layers = self._layers(np.repeat(parameters[None], len(X), axis=0))
        start = [layer.copy() for layer in layers]
        turned = np.ascontiguousarray(X.transpose(0, 2, 1))
        step = rate / X.shape[1]
        with np.errstate(all="ignore"):
            for _ in range(steps):
                *below, found = self._forward(layers, X)
                error = found - Y  # the gradient of all three losses at the last layer
                if below:
                    (seen,) = below
                    back = error @ layers[1][:, :-1].transpose(0, 2, 1) * (1 - seen[..., :-1] ** 2)
                    layers[1] = layers[1] - step * (seen.transpose(0, 2, 1) @ error)
                    error = back
                layers[0] = layers[0] - step * (turned @ error)
            moves = [
                (now - then).reshape(len(X), -1) for now, then in zip(layers, start, strict=True)
            ]
        return np.concatenate(moves, axis=1)

    def _layers(self, parameters: Floats) -> list[Floats]:
        """Return the matrices that are in vectors of parameters."""
        if self.hidden == 0:
            return [parameters.reshape(-1, self.inputs, self.outputs)]
        cut = self.inputs * self.hidden
        return [
            parameters[:, :cut].reshape(-1, self.inputs, self.hidden),
            parameters[:, cut:].reshape(-1, self.hidden + 1, self.outputs),
        ]

    def _forward(self, layers: list[Floats], X: Floats) -> list[Floats]:
        """Return what the hidden layer sees, if there is one, and the outputs."""
        seen = []
        for layer in layers[:-1]:
            units = np.tanh(X @ layer)
            seen.append(np.concatenate([units, np.ones((*units.shape[:-1], 1))], axis=-1))
        return [*seen, self._link((seen[-1] if seen else X) @ layers[-1])]

    def _link(self, values: Floats) -> Floats:
        if self.loss == "square":
            return values
        if self.loss == "logistic":
            return 0.5 * (1 + np.tanh(0.5 * values))  # never overflows
        odds = np.exp(values - values.max(axis=-1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=-1, keepdims=True))


def clipped(updates: Floats, clip: float) -> Integers:
    """Shorten updates, one a row, to norm `clip` and put them on the lattice of ``clip / NORM``.

    Each row has a squared norm of at most ``NORM**2``, as integers; one without a finite norm
    becomes zero.
    """
    with np.errstate(all="ignore"):
        scaled = np.asarray(updates, dtype=np.float64) * (NORM / clip)
        norms = np.sqrt((scaled * scaled).sum(axis=1, keepdims=True))
        scaled *= (NORM - 0.5) / np.maximum(norms, NORM - 0.5)
        steps = np.trunc(np.where(np.isfinite(norms), scaled, 0.0)).astype(np.int64)
    return bounded(steps)


def bounded(steps: Integers) -> Integers:
    """Return the rows whose squared norm, as integers, is at most ``NORM**2``; zero for others."""
    inside = (np.abs(steps) <= NORM).all(axis=1, keepdims=True)
    steps = np.where(inside, steps, 0)
    squares = (steps * steps).sum(axis=1, keepdims=True)
    return np.where(squares <= NORM**2, steps, 0)


def alike(owners: Records, cells: int) -> Iterator[Integers]:
    """Yield the places of rows, of shape (n_owners, n_rows_of_each), by how many an owner has.

    Rows stay in the order of the table. One row, or one owner, takes `cells` numbers; few enough
    are yielded together.
    """
    order = np.argsort(owners, kind="stable")
    _, first, counts = np.unique(owners[order], return_index=True, return_counts=True)
    for size in np.unique(counts):
        starts = first[counts == size]
        together = max(1, _CELLS // (cells * int(size)))
        for begin in range(0, len(starts), together):
            yield order[starts[begin : begin + together, None] + np.arange(size)]
