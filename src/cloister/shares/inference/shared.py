"""Networks on secret shares, with rows and weights hidden from the two servers.

Both servers run one program, with the same public network and their own shares. The dealer
together with either server sees everything, and a server that deviates is not detected. The cost of
a network is the sum over its :mod:`~cloister.shares.inference.layers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from cloister.core.declared import Whole, declared
from cloister.core.errors import DataError, PlanError
from cloister.hazmat.ring import Words
from cloister.shares.inference.layers import FACTOR_BITS, STEP, Flatten, Floats
from cloister.shares.inference.network import Network
from cloister.shares.mpc.functions import argmax
from cloister.shares.mpc.material import Shape
from cloister.shares.mpc.products import matmul, truncate
from cloister.shares.mpc.server import Server
from cloister.shares.mpc.shares import FRAC_BITS, encode


@declared
class NetworkScoring:
    """The program that scores one batch: public parameters, and the computation of the servers.

    The dealer together with either server sees everything.

    Parameters
    ----------
    architecture : mapping
        ``network.architecture().to_dict()``: public, without weights.
    n_rows : int, >= 1
        Rows of a batch. Shorter batches are padded with the lowest inputs, which hides their number
        from the servers and the dealer. A receiver sees the results of the padding, too.
    opening : {"label", "exact"}
        The index of the best class, or all scores. Scores are exact, no private release, and reveal
        more of the weights with every answer.
    """

    name: ClassVar[str] = "network"

    architecture: Mapping[str, Any]
    n_rows: Whole
    opening: Literal["label", "exact"] = "label"

    def __post_init__(self) -> None:
        if not self.network.parameters:
            raise PlanError(
                "the network has no weights to hide; compute it in the clear on the rows."
            )

    def event(self) -> None:
        """Return None, as no result is a private release."""

    @cached_property
    def network(self) -> Network:
        """The public part of the network; its weights are not used."""
        return Network.from_dict(self.architecture)

    def tables(self) -> dict[str, Shape]:
        """Return the shapes of the shared tables: rows, and all weights and biases as a vector."""
        return {
            "rows": (self.n_rows, *self.network.input_shape),
            "weights": self.network.vector.shape,
        }

    def words(self, table: str, values: ArrayLike) -> Words:
        """Return an owner's table in fixed point, checked by the public rules, before splitting.

        Parameters
        ----------
        values : array_like
            Rows, at most `n_rows`; or weights and biases in the form of :attr:`Network.vector`.

        Raises
        ------
        DataError
            If a row is outside the network's public range, or there are too many numbers.
        PlanError
            If a row in range could exceed the head-room of fixed point with these weights.
        """
        network, shape = self.network, self.tables()[table]
        if table == "rows":
            rows = network.checked(values)
            if len(rows) > self.n_rows:
                raise DataError(f"a batch holds {self.n_rows} rows at most; send more in another.")
            # Padding must be in range, like rows, or it could exceed the head-room.
            padded = np.full(shape, float(network.input_range[0]))
            padded[: len(rows)] = rows
            return encode(padded)
        vector = np.asarray(values, dtype=np.float64)
        if vector.shape != shape:
            raise DataError(f"weights must be {shape} numbers, got {vector.shape}.")
        arrays = network.cut(vector)
        network.with_parameters(arrays).reaches()  # or refuses
        bits = (FRAC_BITS, FACTOR_BITS)  # a bias has one dimension
        return np.concatenate([encode(a.ravel(), bits[a.ndim > 1]) for a in arrays])

    def results(self) -> dict[str, Shape]:
        """Return the shape of the one result."""
        if self.opening == "label":
            return {"labels": (self.n_rows,)}
        return {"scores": (self.n_rows, len(self.network.classes))}

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Return this server's shares of the labels, integers, or of the scores."""
        x, left = tables["rows"], iter(self.network.cut(tables["weights"]))
        for layer in self.network.layers:
            x = layer.shares(server, x, *(next(left) for _ in layer.parameters))
        return {"scores": x} if self.opening == "exact" else {"labels": argmax(server, x)}


@dataclass(frozen=True, eq=False, repr=False)
class SecretSharedLayer:
    """One server's shares of a single dense layer with hidden weights and inputs.

    The dealer together with either server sees everything.

    Parameters
    ----------
    weights : ndarray of shape (n_inputs, n_outputs), uint64
        Shares of words with :data:`~cloister.shares.inference.layers.FACTOR_BITS` fraction bits.
    bias : ndarray of shape (n_outputs,), uint64
        Shares of words with 16, like the inputs and outputs.
    """

    weights: Words
    bias: Words

    def forward(self, server: Server, input_shares: Words) -> Words:
        """Return shares of the outputs, (n, n_outputs); both servers call it, in two rounds."""
        return truncate(server, matmul(server, input_shares, self.weights), FACTOR_BITS) + self.bias


@dataclass(frozen=True)
class HybridNetwork:
    """A network whose first layers the owner of the rows evaluates in the clear.

    The other layers are evaluated on shares. All parties know the public layers, so these must not
    be trained on secret records; their outputs are shared, like rows.

    Parameters
    ----------
    network : Network
    n_public : int
        Number of public layers.
    """

    network: Network
    n_public: int

    def __post_init__(self) -> None:
        if not 0 <= self.n_public <= len(self.network.layers):
            raise PlanError(
                f"n_public must be in [0, {len(self.network.layers)}], got {self.n_public}."
            )

    @property
    def public(self) -> Network:
        """The public part, whose outputs are features in one row."""
        shape = self.network.shapes[self.n_public]
        flat = () if len(shape) == 1 else (Flatten(),)
        layers = (*self.network.layers[: self.n_public], *flat)
        return replace(self.network, layers=layers, classes=range(prod(shape)))

    @property
    def private(self) -> Network:
        """The private part, with the output range of the public part as its input range."""
        whole = self.network
        low, high = (np.full(whole.input_shape, float(end)) for end in whole.input_range)
        for layer in whole.layers[: self.n_public]:
            low, high, _ = layer.bounds(low, high)
        bounds = float(low.min()) - STEP, float(high.max()) + STEP  # of room, since floats round
        return Network(whole.layers[self.n_public :], low.shape, whole.classes, bounds)

    def architecture(self) -> Self:
        """Return the network with all private weights zero, for the owner of the rows."""
        layers, zeros = self.network.layers, self.network.architecture().layers
        known = (*layers[: self.n_public], *zeros[self.n_public :])
        return replace(self, network=replace(self.network, layers=known))

    def features(self, X: ArrayLike) -> Floats:
        """Return the outputs of the public part, in the clear; the owner of the rows calls it."""
        rows = self.network.checked(X)
        for layer in self.network.layers[: self.n_public]:
            rows = layer.outputs(rows)
        return rows
