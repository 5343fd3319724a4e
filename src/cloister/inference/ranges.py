"""Between which bounds the numbers of a network lie: head-room of fixed point, proved beforehand.

Interval arithmetic from the public range of the inputs gives an upper bound for every row there can
be, often far above what records reach. It is the owner of the weights who proves it, since bounds
on the outputs tell of the weights.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.polynomial import polynomial

from cloister.errors import PlanError
from cloister.inference.network import (
    Conv2d,
    Dense,
    Floats,
    Layer,
    MaxPool,
    Network,
    Polynomial,
    outputs,
)
from cloister.mpc.material import VALUE_BITS
from cloister.mpc.shares import FRAC_BITS

FACTOR_BITS = 22
"""Fraction bits of weights and of public factors, so that large inputs do not blow up their
rounding; values and biases have 16."""

LIMIT = 2.0 ** (VALUE_BITS - FRAC_BITS - FACTOR_BITS - 1)
"""No number on shares may reach it: a product has the fraction bits of both, and one is spare."""


def interval(layer: Layer, low: Floats, high: Floats) -> tuple[Floats, Floats, float]:
    """Return the bounds of a layer's outputs, and of the numbers on the way to them.

    Parameters
    ----------
    low, high : ndarray of the shape of the layer's input
        Its bounds.

    Returns
    -------
    low, high : ndarray of the shape of the layer's output
    reach : float
        The largest absolute value that private evaluation computes in this layer.
    """
    largest = _largest(low, high)
    match layer:
        case Dense() | Conv2d():
            shift = layer.bias if isinstance(layer, Dense) else layer.bias[:, None, None]
            none = np.zeros_like(layer.bias)
            middle = outputs(replace(layer, bias=none), (low + high)[None] / 2)[0]
            positive = replace(layer, weights=np.abs(layer.weights), bias=none)
            half = outputs(positive, (high - low)[None] / 2)[0]
            low, high = middle + shift - half, middle + shift + half
            return low, high, max(_largest(middle - half, middle + half), _largest(low, high))
        case Polynomial():
            return _of_polynomial(layer, low, high)
        case _:  # monotone
            low, high = outputs(layer, np.stack([low, high]))
            return low, high, largest * (2 if isinstance(layer, MaxPool) else 1)  # a difference


def _of_polynomial(layer: Polynomial, low: Floats, high: Floats) -> tuple[Floats, Floats, float]:
    compared = 2 * _largest(low, high) if layer.clip else 0.0
    low, high = layer.clipped(low), layer.clipped(high)
    ends = outputs(layer, np.stack([low, high]))
    least, most = ends.min(axis=0), ends.max(axis=0)
    turns = np.atleast_1d(polynomial.polyroots(polynomial.polyder(layer.coefficients)))
    for turn in turns.real:  # where it turns, and harmless values between
        value = np.where((low < turn) & (turn < high), outputs(layer, turn), ends[0])
        least, most = np.minimum(least, value), np.maximum(most, value)
    x, degree = _largest(low, high), len(layer.coefficients) - 1
    # Private evaluation takes powers of x up to the second, and higher ones of x / radius.
    power = x**2 if degree <= 2 else max(1.0, x / layer.radius) ** degree
    terms = float(polynomial.polyval(x, np.abs(layer.coefficients)))
    slack = (degree + 1) * 2.0 ** (1 - FRAC_BITS) * max(1.0, x / layer.radius) ** degree
    return least - slack, most + slack, max(compared, power, terms + slack)


def _largest(low: Floats, high: Floats) -> float:
    return float(max(np.abs(low).max(), np.abs(high).max()))


def reaches(network: Network) -> list[float]:
    """Return the largest absolute number that each layer can compute, for any row in range.

    It is that of the weights as fixed point rounds them, with room for the rounding of outputs.
    """
    step = 2.0**-FRAC_BITS
    rounded = network.with_parameters(
        [np.rint(a * 2.0**FACTOR_BITS) / 2.0**FACTOR_BITS for a in network.parameters]
    )
    low, high = (np.full(network.input_shape, float(end)) for end in network.input_range)
    found = []
    for layer in rounded.layers:
        low, high, reach = interval(layer, low - 2 * step, high + 2 * step)
        found.append(reach)
    return found


def check_headroom(network: Network) -> None:
    """Refuse a network whose numbers may leave fixed point in 64 bits.

    Raises
    ------
    PlanError
        If a layer can reach :data:`LIMIT`.
    """
    for number, reach in enumerate(reaches(network)):
        if not reach < LIMIT:
            kind = type(network.layers[number]).__name__
            raise PlanError(
                f"layer {number} ({kind}) could reach {reach:.3g}, but numbers on shares must stay "
                f"below {LIMIT:.3g}; narrow input_range, clip the polynomials, or use Relu."
            )
