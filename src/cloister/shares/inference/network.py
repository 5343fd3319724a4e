"""A neural network as a frozen value: validation, evaluation in the clear, and bounds on shares.

Interval arithmetic from the public range of the inputs gives an upper bound for every possible row,
often far above the values of records. The owner of the weights checks it, since bounds on the
outputs reveal information about the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.core.errors import CloisterError, DataError, PlanError
from cloister.shares.inference.layers import (
    FACTOR_BITS,
    LAYERS,
    LIMIT,
    STEP,
    Conv2d,
    Dense,
    Floats,
    Layer,
)
from cloister.shares.mpc.material import Shape

_MOST_WEIGHTS = 1 << 26  # of one layer


@dataclass(frozen=True, eq=False, repr=False)
class Network:
    """A sequence of layers that computes a score for each class.

    Parameters
    ----------
    layers : sequence of layers
    input_shape : tuple of int
        Shape of one row: ``(n_features,)`` or ``(channels, rows, columns)``; public.
    classes : sequence of str or int
        Names of the outputs of the last layer; public.
    input_range : pair of float
        Public bounds of every input; a row outside is refused before anything is shared.

    Raises
    ------
    PlanError
        If layers do not match each other, the input or the classes.

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
        # In this form, since every comparison with NaN is False.
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
                shapes.append(layer.shape(shapes[-1]))
            except PlanError as error:
                raise PlanError(f"layer {number}: {error}") from None
        return tuple(shapes)

    @property
    def parameters(self) -> tuple[Floats, ...]:
        """Weights and biases in the order of the layers: the secret part of a network."""
        return tuple(array for layer in self.layers for array in layer.parameters)

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

    @property
    def vector(self) -> Floats:
        """All weights and biases in one vector, the form in which a session shares them."""
        return np.concatenate([np.zeros(0), *(array.ravel() for array in self.parameters)])

    def cut(self, vector: NDArray[Any]) -> list[NDArray[Any]]:
        """Split a vector of numbers or shares into arrays of the shapes of :attr:`parameters`."""
        shapes = [array.shape for array in self.parameters]
        parts = np.split(vector, np.cumsum([prod(shape) for shape in shapes]))
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=False)]

    def architecture(self) -> Self:
        """Return the network with all weights zero: its public part."""
        return self.with_parameters([np.zeros_like(array) for array in self.parameters])

    def checked(self, X: ArrayLike) -> Floats:
        """Return rows as an array of shape (n, *input_shape), checked by public rules.

        Raises
        ------
        DataError
            If the shape is wrong, or a number is not finite or outside the public range.
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
            rows = layer.outputs(rows)
        return rows

    def predict(self, X: ArrayLike) -> list[str | int]:
        """Return the class of the highest score of each row; on ties, the first."""
        return [self.classes[k] for k in self.forward(X).argmax(axis=1)]

    def reaches(self) -> list[float]:
        """Return the largest absolute number that each layer can compute, for any row in range.

        It holds for the weights rounded to fixed point, with room for the rounding of outputs.

        Raises
        ------
        PlanError
            If a layer can reach :data:`~cloister.shares.inference.layers.LIMIT`.
        """
        unit, found = 2.0**-FACTOR_BITS, []
        low, high = (np.full(self.input_shape, float(end)) for end in self.input_range)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
            # Shares use the rounded weights, whose bounds may exceed those of the exact ones.
            rounded = self.with_parameters([np.rint(a / unit) * unit for a in self.parameters])
            for number, layer in enumerate(rounded.layers):
                low, high, reach = layer.bounds(low - 2 * STEP, high + 2 * STEP)
                if not reach < LIMIT:
                    raise PlanError(
                        f"layer {number} ({type(layer).__name__}) could reach {reach:.3g}, but "
                        f"numbers on shares must stay below {LIMIT:.3g}; narrow input_range, clip "
                        "the polynomials, or use Relu."
                    )
                found.append(reach)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON document with every weight in the clear, and zeros as their shape."""
        layers = [
            {"layer": type(layer).__name__}
            | {field.name: _plain(getattr(layer, field.name)) for field in fields(layer)}
            for layer in self.layers
        ]
        public = {name: getattr(self, name) for name in ("input_shape", "classes", "input_range")}
        return {"network": 1, "layers": layers, **public}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Read a network from :meth:`to_dict`, before or after JSON.

        Raises
        ------
        DataError
            If the document is malformed.
        PlanError
            If its layers do not match.
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
            raise DataError(
                f"this is not a document of a network: {type(error).__name__}."
            ) from None


def _plain(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return value.tolist() if value.any() else {"zeros": value.shape}


def _read(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    # A short document must not allocate a huge array.
    if prod(value["zeros"]) > _MOST_WEIGHTS:
        raise DataError(f"an array of a network has at most {_MOST_WEIGHTS} numbers.")
    return np.zeros(value["zeros"])
