"""Hybrid training: public layers at the owners, private ones on shares, in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cloister.core.errors import DataError
from cloister.hazmat.ring import to_integers
from cloister.shares.inference.hybrid import hybrid_training
from cloister.shares.inference.layers import Conv2d, Dense, Flatten, Relu
from cloister.shares.inference.network import Network
from cloister.shares.inference.shared import HybridNetwork, NetworkScoring
from cloister.shares.mpc import combine, run_here
from cloister.shares.mpc.training import NetworkOnShares

DRAW = np.random.default_rng(0)
PUBLIC = Network([Dense(DRAW.normal(0, 1, (3, 8)), np.zeros(8)), Relu()], (3,), range(8), (-1, 1))
RANGE = (0.0, 1.5)  # some features are above, and are clipped
OPTIONS: dict[str, Any] = {"rows": 60, "hidden": 8, "classes": 3, "steps": 60, "step": 1.0}
X = DRAW.uniform(-1, 1, (150, 3))
Y = X.argmax(axis=1)
SILOS = {"a": (X[:60], Y[:60]), "b": (X[60:110], Y[60:110]), "c": (X[110:], Y[110:])}


def labels_on_shares(network: Network, rows: np.ndarray) -> list[str | int]:
    document = network.architecture().to_dict()
    program = NetworkScoring(architecture=document, n_rows=len(rows), opening="label")
    tables = program.words("rows", rows), program.words("weights", network.vector)
    (one, other), _ = run_here(
        lambda server, x, w: program.run(server, {"rows": x, "weights": w}), *tables, timeout=20
    )
    return [network.classes[k] for k in to_integers(combine(one["labels"], other["labels"]))]


def test_a_hybrid_training_is_one_call_and_its_network_scores_on_shares() -> None:
    hybrid = hybrid_training(SILOS, PUBLIC, RANGE, **OPTIONS)
    assert PUBLIC.forward(X).max() > RANGE[1]
    found = np.array(hybrid.network.predict(X))
    assert np.mean(found == Y) > 0.8  # 0.36 for the most frequent class
    features = hybrid.architecture().features(X[:20])
    assert labels_on_shares(hybrid.private, features) == found[:20].tolist()


def test_the_network_computes_what_the_training_on_shares_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With weights that are not trained, but the public ones of the start."""
    monkeypatch.setattr(
        NetworkOnShares,
        "run",
        lambda self, server, tables: dict(
            zip(self.results(), map(server.constant, self.start()), strict=True)
        ),
    )
    hybrid = hybrid_training(SILOS, PUBLIC, RANGE, **OPTIONS)
    model = NetworkOnShares(owners=("a",), low=(RANGE[0],) * 8, high=(RANGE[1],) * 8, **OPTIONS)
    expected = model.scores(PUBLIC.forward(X), *model.start())
    assert np.abs(hybrid.network.forward(X) - expected).max() < 1e-3


def test_public_layers_of_a_network_give_features_in_one_row() -> None:
    convolution = Conv2d(DRAW.normal(0, 1, (2, 1, 3, 3)), np.zeros(2))
    whole = Network(
        [convolution, Relu(), Flatten(), Dense(DRAW.normal(0, 1, (18, 2)), np.zeros(2))],
        (1, 5, 5),
        ("no", "yes"),
        (0, 1),
    )
    images, hybrid = DRAW.uniform(0, 1, (4, 1, 5, 5)), HybridNetwork(whole, 2)
    assert (hybrid.public.forward(images) == hybrid.features(images).reshape(4, 18)).all()


def test_rows_outside_the_public_range_are_refused_before_anything_is_shared() -> None:
    with pytest.raises(DataError, match="must be a finite number"):
        hybrid_training({**SILOS, "c": (X * 9, Y)}, PUBLIC, RANGE, **OPTIONS)
