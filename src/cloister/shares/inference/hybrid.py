"""Training of a hybrid network: public layers at each owner, the layers behind them on shares."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cloister.hazmat.ring import Words
from cloister.shares.inference.layers import Dense, Floats, Relu
from cloister.shares.inference.network import Network
from cloister.shares.inference.shared import HybridNetwork
from cloister.shares.mpc import Server, combine, decode, run_here
from cloister.shares.mpc.training import NetworkOnShares


def hybrid_training(
    silos: Mapping[str, tuple[ArrayLike, ArrayLike]],
    public: Network,
    feature_range: tuple[float, float],
    **options: Any,
) -> HybridNetwork:
    """Train the private layers of a hybrid network on the records of several silos.

    Each silo computes the public layers on its own rows, in the clear. Their outputs are shared and
    train two dense layers, see :class:`~cloister.shares.mpc.training.NetworkOnShares`. Only the
    final weights are opened, exactly: this is **no private release**. All parties run in this
    process, for trials. Between machines, each silo shares ``public.forward(X)`` in a session of
    the program ``network-on-shares``.

    Parameters
    ----------
    silos : mapping of str to (X, y)
        Rows in the input range of `public`, and labels from 0.
    public : Network
        Layers from public data, or from a private release such as that of
        :class:`~cloister.FederatedLearner`; for those of a larger network, see
        :attr:`~cloister.shares.inference.shared.HybridNetwork.public`.
    feature_range : (float, float)
        Public range of the outputs of `public`, to which they are clipped.
    **options
        ``rows``, ``classes``, ``hidden``, ``steps``, ``step``, ``nominal_n`` and ``seed`` of
        :class:`~cloister.shares.mpc.training.NetworkOnShares`.

    Returns
    -------
    HybridNetwork
        All layers. The clipping of the features is among the public ones.
    """
    (low, high), d = feature_range, len(public.classes)
    model = NetworkOnShares(owners=tuple(silos), low=(low,) * d, high=(high,) * d, **options)
    tables = [model.table(public.forward(X), y) for X, y in silos.values()]

    def train(server: Server, *shares: Words) -> dict[str, Words]:
        return model.run(server, dict(zip(model.owners, shares, strict=True)))

    (one, other), _ = run_here(train, *tables)
    first, second = (decode(combine(one[name], other[name])) for name in ("first", "second"))
    layers = [*public.layers, *_clip(low, high, d), *_dense(first, second, (high - low) / 2)]
    whole = Network(layers, public.input_shape, range(model.classes), public.input_range)
    return HybridNetwork(whole, len(public.layers) + 4)


def _clip(low: float, high: float, d: int) -> tuple[Dense, Relu, Dense, Relu]:
    """Return layers whose output is the distance of each input from `high`, within the range."""
    # As layers, so that the whole model is a network that other programs can score.
    unit, ones = np.eye(d), np.ones(d)
    return Dense(unit, -low * ones), Relu(), Dense(-unit, (high - low) * ones), Relu()


def _dense(first: Floats, second: Floats, half: float) -> tuple[Dense, Relu, Dense]:
    """Return the trained layers on those distances; training scaled features to a norm of 1."""
    # The training divides rows of the unit box by the root of their length.
    weights = first[:-1] / sqrt(len(first) - 1)
    entrance = Dense(-weights / half, first[-1] + weights.sum(axis=0))
    return entrance, Relu(), Dense(second[:-1], second[-1])
