"""Polynomials in place of activations: least squares on a public interval.

Shares and ciphertexts support sums and products, so a polynomial of a low degree is cheap, while
ReLU takes comparisons. It is inaccurate inside its interval and wrong outside. Train the network
with the polynomial; do not replace the activation of a trained one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import NDArray

from cloister.core.errors import PlanError

Floats = NDArray[np.float64]
_POINTS = 100  # of Gauss and Legendre on each half: exact far beyond the smooth halves' needs


FUNCTIONS: dict[str, Callable[[Floats], Floats]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "sigmoid": lambda x: 0.5 * (1.0 + np.tanh(0.5 * x)),
    "tanh": np.tanh,
}


def fit(activation: str | Callable[[Floats], Floats], degree: int, radius: float) -> Floats:
    """Fit a polynomial to an activation by least squares on ``[-radius, radius]``.

    Parameters
    ----------
    activation : "relu", "sigmoid", "tanh" or a function of an array
        Smooth except for a kink at 0.
    degree : int in [1, 15]
    radius : float, > 0

    Returns
    -------
    ndarray of shape (degree + 1,)
        Coefficients of ``1, x, x**2, ...``; those that symmetry makes zero are exactly zero.

    Notes
    -----
    The weight is uniform: coefficients in Legendre polynomials are integrals, computed by
    Gauss-Legendre quadrature on each side of 0. ``relu(x)`` is ``x / 2 + |x| / 2``, and ``|x|`` is
    even. So the fits of degrees 2 and 3 are equal, and a published fit with a cubic term differs.

    Examples
    --------
    >>> fit("relu", 2, 4.0).round(5).tolist()
    [0.375, 0.5, 0.11719]
    >>> fit("relu", 3, 4.0)[3]
    np.float64(0.0)
    """
    function = FUNCTIONS.get(activation) if isinstance(activation, str) else activation
    if function is None:
        raise PlanError(f"activation must be a function or of {[*FUNCTIONS]}, got {activation!r}.")
    if not 1 <= degree <= 15 or not 0 < radius < np.inf:
        raise PlanError(
            f"a fit needs a degree in [1, 15] and a finite radius above 0, got {degree}, {radius}."
        )
    points, weights = legendre.leggauss(_POINTS)
    points, weights = np.concatenate([points - 1, points + 1]) / 2, np.tile(weights, 2) / 2
    values = weights * function(radius * points)
    parts = legendre.legvander(points, degree).T @ values * (np.arange(degree + 1) + 0.5)
    parts[np.abs(parts) < 1e-12 * np.abs(parts).max()] = 0.0
    scaled = legendre.leg2poly(parts)  # it drops the highest where they are zero
    fitted: Floats = np.pad(scaled, (0, degree + 1 - len(scaled))) / radius ** np.arange(degree + 1)
    return fitted
