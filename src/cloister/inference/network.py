"""A neural network as frozen values, evaluated in the clear: what private evaluation must equal.

Layers are values; three functions of a layer say what shape it gives, what numbers it gives, and
(in :mod:`cloister.inference.ranges`) between which bounds these lie. Images are arrays of channels,
rows and columns. The text form of a value names its shapes and never its weights, which may be
somebody's secret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any, Self

import numpy as np
from numpy.polynomial import polynomial
from numpy.typing import ArrayLike, NDArray

from cloister.errors import CloisterError, DataError, PlanError

Floats = NDArray[np.float64]
Shape = tuple[int, ...]
MOST_WEIGHTS = 1 << 26  # of one layer


def _keep(layer: Dense | Conv2d, weights: int, outputs: int) -> None:
    """Keep a layer's weights and bias as its own: finite, read-only, of matching shapes."""
    kind = type(layer).__name__
    for name, dimensions in (("weights", weights), ("bias", 1)):
        array = np.array(getattr(layer, name), dtype=np.float64)
        if array.ndim != dimensions or not array.size or not np.isfinite(array).all():
            raise PlanError(
                f"{name} of {kind} must be finite numbers in {dimensions} dimension(s), got shape "
                f"{array.shape}; look at the trained model."
            )
        array.setflags(write=False)
        object.__setattr__(layer, name, array)
    shape, biases = layer.weights.shape, len(layer.bias)
    if biases != shape[outputs]:
        raise PlanError(
            f"{kind} of weights {shape} has {shape[outputs]} outputs but {biases} biases; look at "
            "the order of its axes."
        )


def _named(layer: Any) -> str:
    """Return a layer's text form: public numbers and shapes, no weight."""
    found = {field.name: getattr(layer, field.name) for field in fields(layer)}
    shown = (
        f"{name}={'x'.join(map(str, value.shape)) if isinstance(value, np.ndarray) else value}"
        for name, value in found.items()
    )
    return f"{type(layer).__name__}({', '.join(shown)})"


@dataclass(frozen=True, eq=False, repr=False)
class Dense:
    """``x @ weights + bias``.

    Parameters
    ----------
    weights : array_like of shape (n_in, n_out)
    bias : array_like of shape (n_out,)
    """

    weights: Floats
    bias: Floats

    def __post_init__(self) -> None:
        _keep(self, 2, 1)

    __repr__ = _named


@dataclass(frozen=True, eq=False, repr=False)
class Conv2d:
    """A two-dimensional convolution (cross-correlation, as everywhere in this field).

    Parameters
    ----------
    weights : array_like of shape (out_channels, in_channels, rows, columns)
    bias : array_like of shape (out_channels,)
    stride : int, >= 1
    padding : int, >= 0
        Zeros on every side.
    """

    weights: Floats
    bias: Floats
    stride: int = 1
    padding: int = 0

    def __post_init__(self) -> None:
        _keep(self, 4, 0)
        if self.stride < 1 or self.padding < 0:
            raise PlanError(
                "Conv2d needs a stride of at least 1 and a padding of at least 0, got "
                f"{self.stride} and {self.padding}."
            )

    __repr__ = _named


@dataclass(frozen=True)
class AveragePool:
    """The mean over squares of `size` times `size` cells; linear, so free on shares."""

    size: int


@dataclass(frozen=True)
class MaxPool:
    """The largest of squares of `size` times `size` cells: comparisons, the costly pooling."""

    size: int


@dataclass(frozen=True)
class Flatten:
    """Channels, rows and columns as one vector, in that order."""


@dataclass(frozen=True)
class Relu:
    """``max(x, 0)``, exact."""


@dataclass(frozen=True)
class Polynomial:
    """A polynomial activation.

    Parameters
    ----------
    coefficients : sequence of float
        Public; of ``1, x, x**2, ...``, see :func:`cloister.inference.polynomials.fit`.
    radius : float, > 0
        Where it was fitted. Private evaluation takes powers of ``x / radius``, which keeps them
        small and exact.
    clip : bool
        Bring inputs into ``[-radius, radius]`` first. On shares this takes two comparisons an
        input, as much as two exact ReLUs. Without it the polynomial diverges outside, and the
        network must have been trained so that inputs seldom get there.
    """

    coefficients: tuple[float, ...]
    radius: float
    clip: bool = False

    def __post_init__(self) -> None:
        coefficients = tuple(float(c) for c in self.coefficients)
        if not 2 <= len(coefficients) <= 16 or not np.isfinite(coefficients).all():
            raise PlanError(
                f"Polynomial needs 2 to 16 finite coefficients, got {len(coefficients)}."
            )
        if not 0 < self.radius < np.inf:
            raise PlanError(f"Polynomial needs a finite radius above 0, got {self.radius}.")
        object.__setattr__(self, "coefficients", coefficients)

    def clipped(self, X: Floats) -> Floats:
        """Return inputs as the polynomial takes them."""
        return np.clip(X, -self.radius, self.radius) if self.clip else X


Layer = Dense | Conv2d | AveragePool | MaxPool | Flatten | Relu | Polynomial
_KINDS = (Dense, Conv2d, AveragePool, MaxPool, Flatten, Relu, Polynomial)
LAYERS: dict[str, type[Layer]] = {kind.__name__: kind for kind in _KINDS}


def patches(X: NDArray[Any], size: tuple[int, int], stride: int, padding: int = 0) -> NDArray[Any]:
    """Return what each position of a window sees, of numbers or of shares alike.

    Parameters
    ----------
    X : ndarray of shape (n, channels, rows, columns)

    Returns
    -------
    ndarray of shape (n, channels, out_rows, out_columns, size[0], size[1]); a view
        Windows that would reach over the far edges are left out.
    """
    padded = np.pad(X, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, size, axis=(2, 3))
    return seen[:, :, ::stride, ::stride]


def convolve(X: NDArray[Any], weights: NDArray[Any], stride: int, padding: int) -> NDArray[Any]:
    """Return a convolution without its bias, of numbers or of shares alike."""
    seen = patches(X, weights.shape[2:], stride, padding).transpose(0, 2, 3, 1, 4, 5)
    columns = np.ascontiguousarray(seen).reshape(*seen.shape[:3], -1)
    found: NDArray[Any] = columns @ weights.reshape(len(weights), -1).T
    return found.transpose(0, 3, 1, 2)


def output_shape(layer: Layer, shape: Shape) -> Shape:
    """Return the shape that a layer gives for one row of some shape.

    Raises
    ------
    PlanError
        If the layer does not take that shape.
    """
    kind = type(layer).__name__
    if isinstance(layer, Flatten):
        return (prod(shape),)
    if isinstance(layer, Dense):
        if shape != layer.weights.shape[:1]:
            raise PlanError(
                f"Dense takes {len(layer.weights)} numbers a row, but what comes before gives "
                f"{shape}; put Flatten between, or look at the order of the layers."
            )
        return layer.weights.shape[1:]
    if isinstance(layer, Relu | Polynomial):
        return shape
    if len(shape) != 3:
        raise PlanError(f"{kind} takes (channels, rows, columns), got {shape}.")
    if isinstance(layer, Conv2d):
        if shape[0] != layer.weights.shape[1]:
            raise PlanError(f"Conv2d takes {layer.weights.shape[1]} channels, got {shape[0]}.")
        size, stride, padding = layer.weights.shape[2:], layer.stride, layer.padding
    else:
        size, stride, padding = (layer.size, layer.size), layer.size, 0
    if not isinstance(stride, int) or not isinstance(padding, int):
        raise PlanError(f"sizes of {kind} must be whole numbers, got {stride!r} and {padding!r}.")
    if min(size) < 1 or any(n + 2 * padding < s for n, s in zip(shape[1:], size, strict=True)):
        raise PlanError(f"{kind} sees {size} cells at once, which do not fit into {shape}.")
    sides = ((n + 2 * padding - s) // stride + 1 for n, s in zip(shape[1:], size, strict=True))
    return (shape[0] if not isinstance(layer, Conv2d) else len(layer.weights), *sides)


def outputs(layer: Layer, X: Floats) -> Floats:
    """Return what a layer makes of rows, in the clear."""
    match layer:
        case Dense():
            return X @ layer.weights + layer.bias
        case Conv2d():
            product = convolve(X, layer.weights, layer.stride, layer.padding)
            return product + layer.bias[:, None, None]
        case AveragePool():
            seen = patches(X, (layer.size, layer.size), layer.size)
            return np.asarray(seen.mean(axis=(-2, -1)))
        case MaxPool():
            seen = patches(X, (layer.size, layer.size), layer.size)
            return np.asarray(seen.max(axis=(-2, -1)))
        case Flatten():
            return X.reshape(len(X), -1)
        case Relu():
            return np.maximum(X, 0.0)
        case Polynomial():
            return np.asarray(polynomial.polyval(layer.clipped(X), layer.coefficients))


@dataclass(frozen=True, eq=False, repr=False)
class Network:
    """Layers, one after another, that give a score for each class.

    Parameters
    ----------
    layers : sequence of layers
    input_shape : tuple of int
        Of one row: ``(n_features,)`` or ``(channels, rows, columns)``; public.
    classes : sequence of str or int
        What the outputs of the last layer stand for; public.
    input_range : pair of float
        Public bounds of every input; a row outside is refused before anything is shared.

    Raises
    ------
    PlanError
        If layers do not fit each other, the input or the classes.

    Examples
    --------
    >>> network = Network([Dense([[1.0, -1.0]], [0.0, 0.5])], (1,), ("yes", "no"), (-1, 1))
    >>> network.predict([[0.9], [0.1]])
    ['yes', 'no']
    """

    layers: Sequence[Layer]
    input_shape: Shape
    classes: Sequence[str | int]
    input_range: tuple[float, float]

    def __post_init__(self) -> None:
        for name in ("layers", "input_shape", "classes", "input_range"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        low, high = self.input_range
        if not -np.inf < low < high < np.inf:
            raise PlanError(f"input_range needs finite bounds, low < high, got {low} and {high}.")
        if self.shapes[-1] != (len(self.classes),):
            raise PlanError(
                f"the last layer gives {self.shapes[-1]}, but there are {len(self.classes)} "
                "classes; name one class for each output."
            )

    def __repr__(self) -> str:
        return f"Network({' > '.join(map(str, self.shapes))}, {len(self.classes)} classes)"

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Shape of one row at the input and behind every layer."""
        shapes = [self.input_shape]
        for number, layer in enumerate(self.layers):
            try:
                shapes.append(tuple(output_shape(layer, shapes[-1])))
            except PlanError as error:
                raise PlanError(f"layer {number}: {error}") from None
        return tuple(shapes)

    @property
    def parameters(self) -> tuple[Floats, ...]:
        """Weights and biases in the order of the layers: all of a network that may be secret."""
        affine = [layer for layer in self.layers if isinstance(layer, Dense | Conv2d)]
        return tuple(array for layer in affine for array in (layer.weights, layer.bias))

    def with_parameters(self, arrays: Sequence[Floats]) -> Self:
        """Return the network with other weights and biases, of the same shapes."""
        left = iter(arrays)
        layers = tuple(
            replace(layer, weights=next(left), bias=next(left))
            if isinstance(layer, Dense | Conv2d)
            else layer
            for layer in self.layers
        )
        return replace(self, layers=layers)

    def architecture(self) -> Self:
        """Return the network with all weights zero: its public part."""
        return self.with_parameters([np.zeros_like(array) for array in self.parameters])

    def checked(self, X: ArrayLike) -> Floats:
        """Return rows as an array of shape (n, *input_shape), or refuse them by public rules.

        Raises
        ------
        DataError
            If the shape is another, or a number is not finite or outside the public range.
        """
        rows = np.asarray(X, dtype=np.float64)
        if rows.shape[1:] != self.input_shape or rows.ndim != len(self.input_shape) + 1:
            raise DataError(
                f"rows must be of shape (n, {', '.join(map(str, self.input_shape))}), got "
                f"{rows.shape}."
            )
        low, high = self.input_range
        if not ((rows >= low) & (rows <= high)).all():  # nor is NaN in it
            raise DataError(
                f"every input must be a finite number in [{low}, {high}]; clip or scale the rows."
            )
        return rows

    def forward(self, X: ArrayLike) -> Floats:
        """Return the scores of rows, shape (n, n_classes); in the clear."""
        rows = self.checked(X)
        for layer in self.layers:
            rows = outputs(layer, rows)
        return rows

    def predict(self, X: ArrayLike) -> list[str | int]:
        """Return the class of the highest score of each row; of equal ones, the first."""
        return [self.classes[k] for k in self.forward(X).argmax(axis=1)]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON document; it holds every weight in the clear, and zeros as their shape."""
        layers = []
        for layer in self.layers:
            found = {field.name: getattr(layer, field.name) for field in fields(layer)}
            layers.append({"layer": type(layer).__name__, **{k: _plain(found[k]) for k in found}})
        public = {name: getattr(self, name) for name in ("input_shape", "classes", "input_range")}
        return {"network": 1, "layers": layers, **public}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote, also after a way through JSON.

        Raises
        ------
        DataError
            If it is no such document.
        PlanError
            If its layers do not fit.
        """
        try:
            if document["network"] != 1:
                raise DataError(f"version 1 of a network is known, got {document['network']!r}.")
            layers = [
                LAYERS[layer["layer"]](**{k: _read(layer[k]) for k in layer if k != "layer"})
                for layer in document["layers"]
            ]
            names = ("input_shape", "classes", "input_range")
            return cls(layers, *(tuple(document[name]) for name in names))
        except CloisterError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"this is no document of a network: {type(error).__name__}.") from None


def _plain(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return value.tolist() if value.any() else {"zeros": value.shape}


def _read(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if prod(value["zeros"]) > MOST_WEIGHTS:
        raise DataError(f"an array of a network has at most {MOST_WEIGHTS} numbers.")
    return np.zeros(value["zeros"])
