"""Ways to make a network affordable: polynomials in place of ReLU, fewer units."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest

from cloister.shares.inference.imports import from_sklearn
from cloister.shares.inference.layers import Dense, Layer, Polynomial, Relu
from cloister.shares.inference.network import Network

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def networks(benchmark_named: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_named("networks")


def test_every_relu_is_replaced_and_nothing_else(networks: ModuleType) -> None:
    layers: list[Layer] = []
    for n_in, n_out in pairwise((4, 8, 8, 3)):
        weights = RNG.normal(0, n_in**-0.5, (n_in, n_out))
        layers += [Dense(weights, RNG.normal(0, 0.1, n_out)), Relu()]
    network = Network(layers[:-1], (4,), range(3), (-2, 2))
    swapped = networks.with_polynomial(network, 2, 3.0)
    kinds = [type(layer) for layer in swapped.layers]
    assert kinds == [Dense, Polynomial, Dense, Polynomial, Dense]
    X = RNG.uniform(-0.2, 0.2, (50, 4))
    assert networks.activation_radius(network, X) < 3
    assert np.abs(swapped.forward(X) - network.forward(X)).max() < 2.5
    finer = networks.with_polynomial(network, 12, networks.activation_radius(network, X))
    assert np.abs(finer.forward(X) - network.forward(X)).max() < 0.2


def test_pruning_cuts_the_units_that_do_least(networks: ModuleType) -> None:
    first = Dense(np.column_stack([np.ones(3), np.full(3, 1e-9), np.ones(3)]), np.zeros(3))
    second = Dense(np.array([[1.0, 0.0], [5.0, 5.0], [0.0, 1.0]]), np.zeros(2))
    network = Network([first, Relu(), second], (3,), ("a", "b"), (-1, 1))
    small = networks.pruned(network, 0.67)
    assert small.shapes == ((3,), (2,), (2,), (2,))
    X = RNG.uniform(-1, 1, (20, 3))
    np.testing.assert_allclose(small.forward(X), network.forward(X), atol=1e-7)
    with pytest.raises(ValueError, match="keep"):
        networks.pruned(network, 0.0)


def test_a_polynomial_network_keeps_the_accuracy_of_the_clear_one_on_digits(
    networks: ModuleType,
) -> None:
    neural, datasets = (
        pytest.importorskip(f"sklearn.{name}") for name in ("neural_network", "datasets")
    )
    X, y = datasets.load_digits(return_X_y=True)
    X = X / 16
    model = neural.MLPClassifier((32,), max_iter=60, random_state=0, early_stopping=True)
    network = from_sklearn(model.fit(X[:1200], y[:1200]), (0, 1))
    clear = np.mean(np.equal(network.predict(X[1200:]), y[1200:]))
    radius = networks.activation_radius(network, X[:1200])
    swapped = networks.with_polynomial(network, 4, radius)
    poly = np.mean(np.equal(swapped.predict(X[1200:]), y[1200:]))
    assert clear > 0.85
    assert poly > clear - 0.1
