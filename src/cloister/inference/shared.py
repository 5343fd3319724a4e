"""Networks on secret shares: the rows and the weights both hidden from the two servers.

Both servers run these functions, with the same public network and their own shares. The dealer
together with either server sees everything; no function here notices a server that computes
something else. What a network costs is what its layers cost, per row:

==================  ======================================  =============================
Layer               What it takes                           Rounds
==================  ======================================  =============================
Dense, Conv2d       one product, one truncation             2
AveragePool         sums at each server, one truncation     1
Polynomial          powers, one truncation                  3 for degree 2; with clip 9 more
Relu                one comparison, one product             9
MaxPool, argmax     a tournament of comparisons             9 times log2 of how many
==================  ======================================  =============================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.errors import DataError, PlanError
from cloister.hazmat.ring import Words
from cloister.inference.network import (
    AveragePool,
    Conv2d,
    Dense,
    Flatten,
    Floats,
    Layer,
    MaxPool,
    Network,
    Polynomial,
    Relu,
    Shape,
    outputs,
    patches,
)
from cloister.inference.ranges import FACTOR_BITS, check_headroom, interval
from cloister.mpc.compare import relu
from cloister.mpc.functions import argmax, clip, maximum
from cloister.mpc.products import convolve, matmul, polynomial, square, truncate
from cloister.mpc.server import Server
from cloister.mpc.shares import FRAC_BITS, encode


@dataclass(frozen=True, eq=False, repr=False)
class SecretSharedLayer:
    """One server's shares of a linear layer, whose weights and inputs are both hidden.

    The dealer together with either server sees everything.

    Parameters
    ----------
    weights : ndarray of uint64
        Shares, of the shape that :class:`Dense` or :class:`Conv2d` has, with
        :data:`~cloister.inference.ranges.FACTOR_BITS` fraction bits.
    bias : ndarray of uint64
        With 16, like the inputs and outputs.
    stride, padding : int
        Of a convolution.
    """

    weights: Words
    bias: Words
    stride: int = 1
    padding: int = 0

    def forward(self, server: Server, input_shares: Words) -> Words:
        """Return shares of the layer's outputs; both servers call it, in two rounds."""
        if self.weights.ndim == 2:
            product, bias = matmul(server, input_shares, self.weights), self.bias
        else:
            bias = self.bias[:, None, None]
            product = convolve(server, input_shares, self.weights, self.stride, self.padding)
        found: Words = truncate(server, product, FACTOR_BITS) + bias
        return found


def _activated(server: Server, layer: Layer, x: Words) -> Words:
    """Return shares of what a layer without weights gives."""
    match layer:
        case Relu():
            return relu(server, x)
        case Flatten():
            return x.reshape(len(x), -1)
        case Polynomial():
            return _polynomial(server, layer, x)
        case AveragePool(size):
            sums = patches(x, (size, size), size).sum(axis=(-2, -1), dtype=np.uint64)
            return _scaled(server, sums, 1 / size**2)
        case MaxPool(size):
            seen = patches(x, (size, size), size)
            return maximum(server, seen.reshape(*seen.shape[:4], -1))
    raise PlanError(f"{type(layer).__name__} has weights; give a server its shares of them.")


def encrypted_average(server: Server, x: Words, size: int) -> Words:
    """Return shares of average pooling by way of encryption, where shares alone would do as well.

    See :mod:`cloister.inference.pooling`; three rounds, and far more bytes than sums of shares.
    The dealer together with either server sees everything.
    """
    from cloister.inference import pooling

    seen = patches(x, (size, size), size)
    windows = np.ascontiguousarray(seen).reshape(-1, size * size)
    if server.index == 0:
        key = pooling.new_pooling_key()
        server.give(pooling.encrypt_windows(key, windows))
        sums = pooling.open_sums(key, server.get(), (len(windows), size * size))
    else:
        reply, sums = pooling.sum_windows(server.get(), windows)
        server.give(reply)
    return _scaled(server, sums.reshape(seen.shape[:4]), 1 / size**2)


def _scaled(server: Server, x: Words, factor: float) -> Words:
    """Return shares of x times a public factor of more fraction bits than values have."""
    return truncate(server, x * encode(factor, FACTOR_BITS), FACTOR_BITS)


def _polynomial(server: Server, layer: Polynomial, x: Words) -> Words:
    if layer.clip:
        x = clip(server, x, -layer.radius, layer.radius)
    c, radius = layer.coefficients, layer.radius
    if len(c) > 3:  # powers of x / radius stay small, and their coefficients large
        scaled = [coefficient * radius**power for power, coefficient in enumerate(c)]
        return polynomial(server, _scaled(server, x, 1 / radius), scaled)
    total = x * encode(c[1], FACTOR_BITS)
    if len(c) == 3:
        total = total + truncate(server, square(server, x)) * encode(c[2], FACTOR_BITS)
    return truncate(server, total, FACTOR_BITS) + server.constant(c[0])


def forward(
    server: Server,
    network: Network,
    parameters: Sequence[Words],
    rows: Words,
    average: Callable[[Server, Words, int], Words] | None = None,
) -> Words:
    """Return one server's shares of the scores of rows, shape (n, n_classes).

    The dealer together with either server sees everything.

    Parameters
    ----------
    network : Network
        Its public part; weights are not looked at. See :meth:`Network.architecture`.
    parameters : sequence of ndarray of uint64
        This server's shares of weights and biases, as :attr:`Network.parameters` orders them.
    rows : ndarray of uint64, shape (n, *input_shape)
        This server's shares.
    average : function, optional
        Takes the place of average pooling on shares: :func:`encrypted_average`. The layers then
        chain three techniques: shares, comparison and encryption.
    """
    left = iter(parameters)
    x = rows
    for layer in network.layers:
        if isinstance(layer, Dense):
            x = SecretSharedLayer(next(left), next(left)).forward(server, x)
        elif isinstance(layer, Conv2d):
            options = layer.stride, layer.padding
            x = SecretSharedLayer(next(left), next(left), *options).forward(server, x)
        elif average and isinstance(layer, AveragePool):
            x = average(server, x, layer.size)
        else:
            x = _activated(server, layer, x)
    return x


def shared_weights(network: Network) -> Words:
    """Return all weights and biases in fixed point, one vector, for their owner to split.

    Raises
    ------
    PlanError
        If some row in range could leave the head-room of fixed point.
    """
    check_headroom(network)
    bits = (FRAC_BITS, FACTOR_BITS)  # a bias has one dimension
    return np.concatenate([encode(a.ravel(), bits[a.ndim > 1]) for a in network.parameters])


def shared_rows(network: Network, X: ArrayLike, n_rows: int) -> Words:
    """Return rows in fixed point, padded to a public number of rows, for their owner to split.

    Raises
    ------
    DataError
        If a row is outside the network's public range, or there are more than `n_rows`.
    """
    rows = network.checked(X)
    if len(rows) > n_rows:
        raise DataError(f"a batch holds {n_rows} rows at most; send more in another batch.")
    padded = np.full((n_rows, *network.input_shape), float(network.input_range[0]))
    padded[: len(rows)] = rows
    return encode(padded)


@dataclass(frozen=True)
class NetworkScoring:
    """The program that scores one batch: what the parties agree on, and what the servers run.

    The dealer together with either server sees everything.

    Parameters
    ----------
    architecture : mapping
        ``network.architecture().to_dict()``: public, without weights.
    n_rows : int, >= 1
        Rows of a batch; shorter ones are padded, so their number does not show.
    opening : {"label", "exact"}
        The place of the best class alone, or all scores: these are exact, no private release, and
        reveal more of the weights with every answer.
    encrypted_pooling : bool
        Average pooling by :func:`encrypted_average`; needs the extra ``he``.
    """

    name: ClassVar[str] = "network"

    architecture: Mapping[str, Any]
    n_rows: int
    opening: Literal["label", "exact"] = "label"
    encrypted_pooling: bool = False

    def __post_init__(self) -> None:
        if (
            not isinstance(self.n_rows, int)
            or self.n_rows < 1
            or self.opening not in ("label", "exact")
        ):
            raise PlanError(
                f"scoring needs n_rows of at least 1 and opening 'label' or 'exact', got "
                f"{self.n_rows} and {self.opening!r}."
            )
        Network.from_dict(self.architecture)

    def event(self) -> None:
        """Return nothing: no result is a private release."""

    @property
    def network(self) -> Network:
        """The public part of the network; its weights are zero."""
        return Network.from_dict(self.architecture)

    def tables(self) -> dict[str, Shape]:
        """Return the shapes of what is shared: rows, and all weights and biases as one vector."""
        size = sum(array.size for array in self.network.parameters)
        return {"rows": (self.n_rows, *self.network.input_shape), "weights": (size,)}

    def words(self, table: str, values: ArrayLike) -> Words:
        """Return an owner's table as words, checked by the public rules.

        Parameters
        ----------
        values : array_like
            Rows, at most `n_rows`; or weights and biases in one vector, in the order of
            :attr:`Network.parameters`.
        """
        if table == "rows":
            return shared_rows(self.network, values, self.n_rows)
        flat = np.asarray(values, dtype=np.float64)
        if flat.shape != self.tables()[table]:
            raise DataError(f"weights must be {self.tables()[table]} numbers, got {flat.shape}.")
        return shared_weights(self.network.with_parameters(_cut(self.network, flat)))

    def results(self) -> dict[str, Shape]:
        """Return the shape of the one result."""
        if self.opening == "label":
            return {"labels": (self.n_rows,)}
        return {"scores": (self.n_rows, len(self.architecture["classes"]))}

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Return this server's shares of the labels, integers, or of the scores."""
        parameters = _cut(self.network, tables["weights"])
        average = encrypted_average if self.encrypted_pooling else None
        scores = forward(server, self.network, parameters, tables["rows"], average)
        if self.opening == "exact":
            return {"scores": scores}
        return {"labels": argmax(server, scores)}


def _cut(network: Network, flat: NDArray[Any]) -> list[NDArray[Any]]:
    """Return one vector as arrays of the shapes of a network's weights and biases."""
    shapes = [array.shape for array in network.parameters]
    parts = np.split(flat, np.cumsum([prod(shape) for shape in shapes])[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


@dataclass(frozen=True, eq=False, repr=False)
class HybridNetwork:
    """A public part that the rows' owner computes in the clear, and a private one on shares.

    The cut decides what is hidden: the public layers are known to all, so they must not be made of
    secret records; what they give is shared, like rows. Parameters as of :class:`Network`.
    """

    public_layers: Sequence[Layer]
    private_layers: Sequence[Layer]
    input_shape: Shape
    classes: Sequence[str | int]
    input_range: tuple[float, float]

    @property
    def private(self) -> Network:
        """The private part, with the range that the public part can give; share and score it."""
        low, high = (np.full(self.input_shape, float(end)) for end in self.input_range)
        for layer in self.public_layers:
            low, high, _ = interval(layer, low, high)
        step = 2.0**-FRAC_BITS  # of room, since floats round
        bounds = float(low.min()) - step, float(high.max()) + step
        return Network(self.private_layers, low.shape, self.classes, bounds)

    def features(self, X: ArrayLike) -> Floats:
        """Return what the public part makes of rows, in the clear; their owner calls it."""
        whole = (*self.public_layers, *self.private_layers)
        rows = Network(whole, self.input_shape, self.classes, self.input_range).checked(X)
        for layer in self.public_layers:
            rows = outputs(layer, rows)
        return rows
