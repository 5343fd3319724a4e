"""Make a network affordable on shares: cheap activations, fewer units."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from cloister.errors import PlanError
from cloister.inference.network import Dense, Network, Polynomial, Relu, outputs
from cloister.inference.polynomials import fit


def replace_relu(network: Network, degree: int, radius: float, *, clip: bool = False) -> Network:
    """Return the network with a fitted polynomial in place of every ReLU.

    Parameters
    ----------
    degree, radius
        Of :func:`~cloister.inference.polynomials.fit`; see :func:`activation_radius`.
    clip : bool
        As for :class:`~cloister.inference.network.Polynomial`.

    Notes
    -----
    Accuracy suffers; a network that is trained with the polynomial does better.
    """
    stand_in = Polynomial(tuple(fit("relu", degree, radius)), radius, clip)
    layers = (stand_in if isinstance(layer, Relu) else layer for layer in network.layers)
    return replace(network, layers=tuple(layers))


def activation_radius(network: Network, X: ArrayLike) -> float:
    """Return the largest absolute input that any activation sees on some rows.

    Use public rows: the number tells of the rows it comes from.
    """
    rows, largest = network.checked(X), 0.0
    for layer in network.layers:
        if isinstance(layer, Relu | Polynomial):
            largest = max(largest, float(np.abs(rows).max(initial=0.0)))
        rows = outputs(layer, rows)
    return largest


def pruned(network: Network, keep: float) -> Network:
    """Return a smaller network: the weakest hidden units of Dense layers are cut off.

    Parameters
    ----------
    keep : float in (0, 1]
        The part of the units of every hidden Dense layer that stays; at least one does.

    Notes
    -----
    Magnitude pruning by units: a unit counts as the product of the norms of its incoming and
    outgoing weights. Single weights set to zero would save nothing, since whoever computes on
    shares does not know which they are; fewer units make the public shapes smaller.
    """
    if not 0 < keep <= 1:
        raise PlanError(f"keep must be in (0, 1], got {keep}.")
    layers = list(network.layers)
    dense = [number for number, layer in enumerate(layers) if isinstance(layer, Dense)]
    for here, there in pairwise(dense):
        first, second = layers[here], layers[there]
        assert isinstance(first, Dense)
        assert isinstance(second, Dense)
        strength = np.linalg.norm(first.weights, axis=0) * np.linalg.norm(second.weights, axis=1)
        stay = np.sort(np.argsort(-strength, kind="stable")[: max(1, round(keep * len(strength)))])
        layers[here] = Dense(first.weights[:, stay], first.bias[stay])
        layers[there] = Dense(second.weights[stay], second.bias)
    return replace(network, layers=tuple(layers))
