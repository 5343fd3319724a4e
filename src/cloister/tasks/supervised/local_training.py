"""Training on the records of one privacy unit: some steps of gradient descent on its rows.

Units with the same number of rows are trained in one batch, but independently of each other. No bit
of an update depends on the other units in the table.
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
"""The largest norm of an update in lattice steps, for every largest norm in parameters."""

_CELLS = 1 << 21  # parameters or inputs of a batch, which bounds the memory


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
        # With weights of 0 all hidden units would have the same gradient in every step.
        rng = public_generator(public_seed, "hidden layer", self.inputs, self.hidden)
        first = rng.normal(0, 1 / sqrt(self.inputs), self.inputs * self.hidden)
        return np.concatenate([first, np.zeros(self.size - first.size)])

    def predict(self, parameters: Floats, X: Floats) -> Floats:
        """Return values, or probabilities, of shape (n_samples, outputs)."""
        return np.asarray(self._forward(self._layers(parameters[None]), X[None])[-1][0])

    def train(self, parameters: Floats, X: Floats, Y: Floats, steps: int, rate: float) -> Floats:
        """Return the change of the parameters by full-batch gradient descent, unit by unit.

        All units start from the same parameters, of shape (size,). `X` has the shape (n_units,
        n_rows, inputs) and `Y` the shape (n_units, n_rows, outputs). The result, of shape (n_units,
        size), may hold values that are not finite, if steps were too long.
        """
        layers = self._layers(np.repeat(parameters[None], len(X), axis=0))
        start = [layer.copy() for layer in layers]
        transposed = np.ascontiguousarray(X.transpose(0, 2, 1))
        step = rate / X.shape[1]
        with np.errstate(all="ignore"):  # a unit's descent may diverge; `clipped` handles it
            for _ in range(steps):
                *below, outputs = self._forward(layers, X)
                error = outputs - Y  # the gradient of all three losses at the last layer
                if below:
                    (hidden,) = below
                    hidden_error = (
                        error @ layers[1][:, :-1].transpose(0, 2, 1) * (1 - hidden[..., :-1] ** 2)
                    )
                    layers[1] = layers[1] - step * (hidden.transpose(0, 2, 1) @ error)
                    error = hidden_error
                layers[0] = layers[0] - step * (transposed @ error)
            changes = [
                (after - before).reshape(len(X), -1)
                for after, before in zip(layers, start, strict=True)
            ]
        return np.concatenate(changes, axis=1)

    def _layers(self, parameters: Floats) -> list[Floats]:
        """Split vectors of parameters into the matrices of layers."""
        if self.hidden == 0:
            return [parameters.reshape(-1, self.inputs, self.outputs)]
        cut = self.inputs * self.hidden
        return [
            parameters[:, :cut].reshape(-1, self.inputs, self.hidden),
            parameters[:, cut:].reshape(-1, self.hidden + 1, self.outputs),
        ]

    def _forward(self, layers: list[Floats], X: Floats) -> list[Floats]:
        """Return the activations of the hidden layer, if there is one, and the outputs."""
        hidden = []
        for layer in layers[:-1]:
            units = np.tanh(X @ layer)
            hidden.append(np.concatenate([units, np.ones((*units.shape[:-1], 1))], axis=-1))
        return [*hidden, self._link((hidden[-1] if hidden else X) @ layers[-1])]

    def _link(self, values: Floats) -> Floats:
        if self.loss == "square":
            return values
        if self.loss == "logistic":
            return 0.5 * (1 + np.tanh(0.5 * values))  # never overflows
        # The largest exponent is 0, so that no exponential overflows.
        odds = np.exp(values - values.max(axis=-1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=-1, keepdims=True))


def clipped(updates: Floats, clip: float) -> Integers:
    """Clip updates, one per row, to norm `clip` and cut them to the lattice of ``clip / NORM``.

    Each row has a squared norm of at most ``NORM**2``, as integers. A row without a finite norm
    becomes zero.
    """
    with np.errstate(all="ignore"):
        scaled = np.asarray(updates, dtype=np.float64) * (NORM / clip)
        norms = np.sqrt((scaled * scaled).sum(axis=1, keepdims=True))
        # Half a step less than NORM, so that the rounding of the norm cannot exceed the bound.
        scaled *= (NORM - 0.5) / np.maximum(norms, NORM - 0.5)
        steps = np.trunc(np.where(np.isfinite(norms), scaled, 0.0)).astype(np.int64)
    return bounded(steps)


def bounded(steps: Integers) -> Integers:
    """Return the rows whose squared norm, as integers, is at most ``NORM**2``; zero for others."""
    # Entry by entry first, since squares of larger entries may overflow.
    inside = (np.abs(steps) <= NORM).all(axis=1, keepdims=True)
    steps = np.where(inside, steps, 0)
    squares = (steps * steps).sum(axis=1, keepdims=True)
    return np.where(squares <= NORM**2, steps, 0)


def alike(owners: Records, cells: int) -> Iterator[Integers]:
    """Yield indices of rows in batches of owners with equal numbers of rows.

    Batches have the shape (n_owners, n_rows_of_each), and rows stay in the order of the table. A
    row or an owner takes `cells` numbers, and batches are limited by memory.
    """
    order = np.argsort(owners, kind="stable")
    _, first, counts = np.unique(owners[order], return_index=True, return_counts=True)
    for size in np.unique(counts):
        starts = first[counts == size]
        together = max(1, _CELLS // (cells * int(size)))
        for begin in range(0, len(starts), together):
            yield order[starts[begin : begin + together, None] + np.arange(size)]
