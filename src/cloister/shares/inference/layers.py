"""The layers of a network, each with its evaluation in the clear, its bounds, and on shares.

A layer is a frozen value. Images are arrays of channels, rows and columns. On shares both servers
run :meth:`Layer.shares`, with the same public layer and their own shares. The dealer together with
either server sees everything, and a server that deviates is not detected. The costs, for all rows
together:

==================  ======================================  =============================
Layer               What it takes                           Rounds
==================  ======================================  =============================
Dense, Conv2d       one product, one truncation             2
AveragePool         sums at each server, one truncation     1; encrypted 3
Polynomial          powers, one truncation                  3 for degree 2; with clip 9 more
Relu                one comparison, one product             9
MaxPool, argmax     a tournament of comparisons             9 times log2 of how many
==================  ======================================  =============================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.polynomial import polynomial as real
from numpy.typing import NDArray

from cloister.core.declared import Length, Range, Whole, declarations, validate
from cloister.core.errors import PlanError
from cloister.hazmat.ring import Words
from cloister.shares.mpc.compare import relu
from cloister.shares.mpc.functions import clip, maximum
from cloister.shares.mpc.material import VALUE_BITS, Product, Shape
from cloister.shares.mpc.products import polynomial, product, square, truncate
from cloister.shares.mpc.server import Server
from cloister.shares.mpc.shares import FRAC_BITS, encode

Floats = NDArray[np.float64]
Bounds = tuple[Floats, Floats, float]

STEP = 2.0**-FRAC_BITS
"""Unit of values and biases on shares."""

FACTOR_BITS = 22
"""Fraction bits of weights and of public factors, so that large inputs do not blow up their
rounding."""

LIMIT = 2.0 ** (VALUE_BITS - FRAC_BITS - FACTOR_BITS - 1)
"""Bound on numbers on shares: a product has the fraction bits of both, and one bit is spare."""


@dataclass(frozen=True, eq=False)
class Layer(ABC):
    """The base class of layers: shape, outputs, bounds and shares."""

    def __post_init__(self) -> None:
        for one in declarations(type(self)):
            validate(one, getattr(self, one.name))

    @property
    def parameters(self) -> tuple[Floats, ...]:
        """Weights and bias, if the layer has any; these may be secret."""
        return ()

    def shape(self, shape: Shape) -> Shape:
        """Return the shape of one row's outputs; raise PlanError for an invalid input shape."""
        return shape

    @abstractmethod
    def outputs(self, X: Floats) -> Floats:
        """Return the outputs of rows, in the clear."""

    def bounds(self, low: Floats, high: Floats) -> Bounds:
        """Return bounds of one row's outputs from those of its inputs, and the reach of shares.

        The bounds hold in the clear, and on shares up to two units: a truncation and a bias.
        The reach is the largest absolute value that private evaluation computes.
        """
        least, most = self.outputs(np.stack([low, high]))  # most layers are monotone
        return least, most, _largest(low, high)

    @abstractmethod
    def shares(self, server: Server, x: Words, *parameters: Words) -> Words:
        """Return shares of the outputs (semi-honest; the dealer with either server sees all).

        x is this server's share of the inputs, (n, *shape), with 16 fraction bits. `parameters` are
        its shares of :attr:`parameters`, weights with :data:`FACTOR_BITS`.
        """


def _largest(low: Floats, high: Floats) -> float:
    return float(np.abs([low, high]).max())


def _scaled(server: Server, x: Words, factor: float) -> Words:
    """Return shares of x times a public factor of more fraction bits than values have."""
    return truncate(server, x * encode(factor, FACTOR_BITS), FACTOR_BITS)


# Layers with weights ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class _Affine(Layer):
    """A product with weights, and a bias; its representation shows shapes and no weight."""

    weights: Floats
    bias: Floats
    _axes: ClassVar[tuple[int, int]]  # of the weights: how many, and which is that of the outputs

    def __post_init__(self) -> None:
        """Copy weights and bias; check that they are finite and of matching shapes."""
        super().__post_init__()
        kind, (dimensions, outputs) = type(self).__name__, self._axes
        for name, ndim in (("weights", dimensions), ("bias", 1)):
            array = np.array(getattr(self, name), dtype=np.float64)
            if array.ndim != ndim or not array.size or not np.isfinite(array).all():
                raise PlanError(
                    f"{name} of {kind} must be finite numbers in {ndim} dimension(s), got shape "
                    f"{array.shape}; check the trained model."
                )
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        shape, biases = self.weights.shape, len(self.bias)
        if biases != shape[outputs]:
            raise PlanError(
                f"{kind} of weights {shape} has {shape[outputs]} outputs but {biases} biases; look "
                "at the order of its axes."
            )

    def __repr__(self) -> str:
        options = (f", {field.name}={getattr(self, field.name)}" for field in fields(self)[2:])
        shape = "x".join(map(str, self.weights.shape))
        return f"{type(self).__name__}(weights={shape}{''.join(options)})"

    @property
    def parameters(self) -> tuple[Floats, ...]:
        return self.weights, self.bias

    @abstractmethod
    def _weighing(self, inputs: Shape) -> Product:
        """Return the product of inputs and weights, for numbers and for shares."""

    def _weighed(self, X: NDArray[Any], weights: NDArray[Any]) -> Floats:
        weighed: Floats = np.asarray(self._weighing(X.shape).apply(X, weights))
        return weighed

    def _placed(self, bias: NDArray[Any]) -> NDArray[Any]:
        """Return a bias in the shape for adding: to each number, or to all cells of a channel."""
        return bias[:, None, None] if self.weights.ndim > 2 else bias

    def outputs(self, X: Floats) -> Floats:
        found: Floats = self._weighed(X, self.weights) + self._placed(self.bias)
        return found

    def bounds(self, low: Floats, high: Floats) -> Bounds:
        middle = self._weighed((low + high)[None] / 2, self.weights)[0]
        half = self._weighed((high - low)[None] / 2, np.abs(self.weights))[0]
        before, middle = _largest(middle - half, middle + half), middle + self._placed(self.bias)
        low, high = middle - half, middle + half
        return low, high, max(before, _largest(low, high))

    def shares(self, server: Server, x: Words, *parameters: Words) -> Words:
        weights, bias = parameters
        weighed = product(server, self._weighing(x.shape), x, weights)
        found: Words = truncate(server, weighed, FACTOR_BITS) + self._placed(bias)
        return found


@dataclass(frozen=True, eq=False, repr=False)
class Dense(_Affine):
    """``x @ weights + bias``.

    Parameters
    ----------
    weights : array_like of shape (n_in, n_out)
    bias : array_like of shape (n_out,)
    """

    _axes = 2, 1

    def _weighing(self, inputs: Shape) -> Product:
        return Product("matmul", inputs, self.weights.shape)

    def shape(self, shape: Shape) -> Shape:
        if shape != self.weights.shape[:1]:
            raise PlanError(
                f"Dense takes {len(self.weights)} numbers a row, but what comes before gives "
                f"{shape}; put Flatten between, or check the order of the layers."
            )
        return self.weights.shape[1:]


def _positions(kind: str, shape: Shape, size: Shape, stride: int, padding: int) -> Shape:
    """Return the number of window positions in rows and columns, all within the input."""
    if len(shape) != 3:
        raise PlanError(f"{kind} takes (channels, rows, columns), got {shape}.")
    room = [n + 2 * padding - s for n, s in zip(shape[1:], size, strict=True)]
    if min(room) < 0:
        raise PlanError(f"{kind} has a window of {size} cells, which does not fit into {shape}.")
    return tuple(r // stride + 1 for r in room)


@dataclass(frozen=True, eq=False, repr=False)
class Conv2d(_Affine):
    """A two-dimensional convolution (cross-correlation, as usual in deep learning).

    Parameters
    ----------
    weights : array_like of shape (out_channels, in_channels, rows, columns)
    bias : array_like of shape (out_channels,)
    stride : int, >= 1
    padding : int, >= 0
        Zeros on every side.
    """

    stride: Whole = 1
    padding: Annotated[int, Range(0)] = 0
    _axes = 4, 0

    def _weighing(self, inputs: Shape) -> Product:
        return Product("convolve", inputs, self.weights.shape, (self.stride, self.padding))

    def shape(self, shape: Shape) -> Shape:
        out, channels, *size = self.weights.shape
        sides = _positions("Conv2d", shape, tuple(size), self.stride, self.padding)
        if shape[0] != channels:
            raise PlanError(f"Conv2d takes {channels} channels, got {shape[0]}.")
        return out, *sides


# Layers without ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pool(Layer):
    """One number per square of cells; incomplete squares at the far edges are ignored."""

    size: Annotated[int, Range(1, 32), "cells on a side"]

    def shape(self, shape: Shape) -> Shape:
        size, kind = (self.size, self.size), type(self).__name__
        return *shape[:1], *_positions(kind, shape, size, self.size, 0)

    def _windows(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return the cells of each square along a last axis."""
        size = self.size
        seen = sliding_window_view(x, (size, size), axis=(2, 3))[:, :, ::size, ::size]
        return seen.reshape(*seen.shape[:4], size**2)


@dataclass(frozen=True)
class AveragePool(_Pool):
    """The mean over squares of `size` times `size` cells; linear, so free on shares.

    Parameters
    ----------
    size : int in [1, 32]
    encrypted : bool
        On shares, compute the sums under encryption, although shares alone suffice: see
        :mod:`cloister.shares.inference.pooling`. It takes two more rounds, far more bytes and the
        extra ``he``.
    """

    encrypted: bool = False

    def outputs(self, X: Floats) -> Floats:
        return np.asarray(self._windows(X).mean(axis=-1))

    def bounds(self, low: Floats, high: Floats) -> Bounds:
        low, high, reach = super().bounds(low, high)
        slack = reach * self.size**2 * 2.0 ** -(FACTOR_BITS + 1)  # 1 / size^2 is rounded
        return low - slack, high + slack, reach + slack

    def shares(self, server: Server, x: Words, *parameters: Words) -> Words:
        windows = self._windows(x)
        if self.encrypted:
            from cloister.shares.inference.pooling import encrypted_sums

            sums = encrypted_sums(server, windows)
        else:
            sums = windows.sum(axis=-1, dtype=np.uint64)
        return _scaled(server, sums, 1 / self.size**2)


@dataclass(frozen=True)
class MaxPool(_Pool):
    """The maximum over squares of `size` times `size` cells; costly, as it takes comparisons."""

    def outputs(self, X: Floats) -> Floats:
        return np.asarray(self._windows(X).max(axis=-1))

    def bounds(self, low: Floats, high: Floats) -> Bounds:
        low, high, reach = super().bounds(low, high)
        return low, high, 2 * reach  # of a difference

    def shares(self, server: Server, x: Words, *parameters: Words) -> Words:
        return maximum(server, self._windows(x))


@dataclass(frozen=True)
class Flatten(Layer):
    """Channels, rows and columns as one vector, in that order."""

    def shape(self, shape: Shape) -> Shape:
        return (prod(shape),)

    def outputs(self, X: Floats) -> Floats:
        return X.reshape(len(X), prod(X.shape[1:]))

    def shares(self, server: Server, x: Words, *parameters: Words) -> Words:
        return x.reshape(len(x), -1)


@dataclass(frozen=True)
class Relu(Layer):
    """``max(x, 0)``, exact."""

    def outputs(self, X: Floats) -> Floats:
        return np.maximum(X, 0.0)

    def shares(self, server: Server, x: Words, *parameters: Words) -> Words:
        return relu(server, x)


@dataclass(frozen=True)
class Polynomial(Layer):
    """A polynomial activation.

    Parameters
    ----------
    coefficients : sequence of float, 2 to 16
        Public; of ``1, x, x**2, ...``, see :func:`cloister.shares.inference.polynomials.fit`.
    radius : float, 2^-16 to 2^16
        Half-width of the interval of the fit. From degree 3 on, private evaluation uses powers of
        ``x / radius``, which keeps them small and exact.
    clip : bool
        If True, clip inputs to ``[-radius, radius]`` first. On shares this takes two comparisons
        per input, as much as two exact ReLUs. Without it the polynomial diverges outside, and the
        network must be trained so that inputs rarely get there.
    """

    coefficients: Annotated[tuple[float, ...], Length(2, 16)]
    radius: Annotated[float, Range(2**-16, 2**16)]
    clip: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", tuple(float(c) for c in self.coefficients))
        super().__post_init__()
        largest = np.abs(self._on_shares[1]).max()
        if not largest < LIMIT:
            raise PlanError(
                f"coefficients of Polynomial, from degree 3 on times powers of its radius, must be "
                f"below {LIMIT:.3g} in size, got {largest:.3g}; scale its inputs."
            )

    def _clipped(self, X: Floats) -> Floats:
        return np.clip(X, -self.radius, self.radius) if self.clip else X

    def outputs(self, X: Floats) -> Floats:
        return np.asarray(real.polyval(self._clipped(X), self.coefficients))

    @cached_property
    def _on_shares(self) -> tuple[float, list[float]]:
        """The divisor of inputs in private evaluation, and the coefficients after the division."""
        by = self.radius if len(self.coefficients) > 3 else 1.0
        return by, [c * by**power for power, c in enumerate(self.coefficients)]

    def bounds(self, low: Floats, high: Floats) -> Bounds:
        (by, scaled), compared = self._on_shares, _largest(low, high) + self.radius
        low, high = self._clipped(low), self._clipped(high)
        ends = self.outputs(np.stack([low, high]))
        least, most = ends.min(axis=0), ends.max(axis=0)
        # Trimmed terms are below a unit of every output within the head-room.
        turns = real.polyroots(real.polytrim(real.polyder(scaled), 1e-12)).real * by
        for turn in turns:  # where it turns, and harmless values between
            value = np.where((low < turn) & (turn < high), self.outputs(turn), ends[0])
            least, most = np.minimum(least, value), np.maximum(most, value)
        # In units: x / by is off by 1 and by the rounding of 1 / by, its k-th power by k more than
        # k times as much, a coefficient by one half, and the sum by one.
        x, powers = _largest(low, high), np.arange(len(scaled))
        off = 1 + x / 2 ** (FACTOR_BITS + 1 - FRAC_BITS)
        sizes = (max(1.0, x / by) + off * STEP) ** powers
        slack = STEP * float((np.abs(scaled) * powers * (1 + off) + 1) @ sizes)
        reach = max(float(np.abs(scaled) @ sizes) + slack, sizes[-1], compared * self.clip)
        return least - slack, most + slack, reach

    def shares(self, server: Server, x: Words, *parameters: Words) -> Words:
        if self.clip:
            x = clip(server, x, -self.radius, self.radius)
        by, c = self._on_shares
        if len(c) > 3:
            return polynomial(server, _scaled(server, x, 1 / by), c)
        total = x * encode(c[1], FACTOR_BITS)
        if len(c) == 3:
            total = total + truncate(server, square(server, x)) * encode(c[2], FACTOR_BITS)
        return truncate(server, total, FACTOR_BITS) + server.constant(c[0])


_KINDS = (Dense, Conv2d, AveragePool, MaxPool, Flatten, Relu, Polynomial)
LAYERS: dict[str, type[Layer]] = {kind.__name__: kind for kind in _KINDS}
