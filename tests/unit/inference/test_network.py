"""Networks in the clear: layers worked out by hand, shapes, ranges, documents, smaller ones."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import DataError, PlanError
from cloister.inference.network import (
    AveragePool,
    Conv2d,
    Dense,
    Flatten,
    Layer,
    MaxPool,
    Network,
    Polynomial,
    Relu,
    outputs,
)
from cloister.inference.ranges import check_headroom, interval, reaches
from cloister.inference.smaller import activation_radius, pruned, replace_relu

RNG = np.random.default_rng(0)
IMAGE = np.arange(16.0).reshape(1, 1, 4, 4)


def dense_of(weights: Any, bias: Any) -> Dense:
    return Dense(np.array(weights), np.array(bias))


def conv_of(weights: Any, bias: Any, stride: int = 1, padding: int = 0) -> Conv2d:
    return Conv2d(np.array(weights), np.array(bias), stride, padding)


def of_images(*middle: Layer, stride: int = 2, scale: float = 0.3) -> Network:
    """A small convolutional network for images of 2 channels of 8 times 8."""
    first = conv_of(RNG.normal(0, scale, (3, 2, 3, 3)), RNG.normal(0, 0.1, 3), stride, 1)
    layers = [first, *middle, Flatten()]
    shape = Network((*layers, Relu()), (2, 8, 8), range(_length(layers)), (0, 1)).shapes[-1]
    last = dense_of(RNG.normal(0, scale, (shape[0], 3)), [0.0, 0.1, 0.2])
    return Network((*layers, last), (2, 8, 8), ("a", "b", "c"), (0, 1))


def _length(layers: list[Layer]) -> int:
    X = np.zeros((1, 2, 8, 8))
    for layer in layers:
        X = outputs(layer, X)
    return X.shape[1]


def dense(*sizes: int, activation: Layer = Relu(), scale: float = 1.0) -> Network:  # noqa: B008
    layers: list[Layer] = []
    for n_in, n_out in pairwise(sizes):
        layers += [
            dense_of(RNG.normal(0, scale / n_in**0.5, (n_in, n_out)), RNG.normal(0, 0.1, n_out))
        ]
        layers += [activation]
    return Network(layers[:-1], sizes[:1], range(sizes[-1]), (-2, 2))


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        # sums of 2 x 2 squares with weight 1, plus the bias; at strides 1 and 2
        (conv_of(np.ones((1, 1, 2, 2)), np.array([0.5]), stride=2), [[10.5, 18.5], [42.5, 50.5]]),
        (conv_of(np.diag([1.0, -1.0])[None, None], np.zeros(1)), np.full((3, 3), -5.0)),
        (AveragePool(2), [[2.5, 4.5], [10.5, 12.5]]),
        (MaxPool(2), [[5.0, 7.0], [13.0, 15.0]]),
        (MaxPool(3), [[10.0]]),  # the last row and column fit into no window
    ],
)
def test_a_layer_gives_what_was_worked_out_by_hand(layer: Layer, expected: Any) -> None:
    np.testing.assert_allclose(outputs(layer, IMAGE)[0, 0], expected)


def test_a_convolution_is_the_sum_over_channels_and_kernel_cells() -> None:
    layer = conv_of(RNG.normal(size=(3, 2, 2, 3)), RNG.normal(size=3), stride=2, padding=1)
    X = RNG.normal(size=(4, 2, 5, 6))
    padded = np.pad(X, ((0, 0), (0, 0), (1, 1), (1, 1)))
    found = outputs(layer, X)
    for o, r, c in np.ndindex(found.shape[1:]):
        seen = padded[:, :, 2 * r : 2 * r + 2, 2 * c : 2 * c + 3]
        expected = (seen * layer.weights[o]).sum(axis=(1, 2, 3)) + layer.bias[o]
        np.testing.assert_allclose(found[:, o, r, c], expected)


def test_a_polynomial_diverges_outside_its_radius_unless_it_clips() -> None:
    X = np.array([-9.0, -1.0, 0.0, 2.0, 9.0])
    layer = Polynomial((1, 2, 3), 2.0)
    np.testing.assert_allclose(outputs(layer, X), 1 + 2 * X + 3 * X**2)
    within = np.clip(X, -2, 2)
    np.testing.assert_allclose(
        outputs(replace(layer, clip=True), X), 1 + 2 * within + 3 * within**2
    )


def test_prediction_is_the_first_highest_score() -> None:
    network = Network([dense_of(np.zeros((2, 3)), [1.0, 2.0, 2.0])], (2,), ("a", "b", "c"), (0, 1))
    assert network.predict([[0.5, 0.5]]) == ["b"]


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([conv_of(np.zeros((1, 3, 2, 2)), [0.0])], "layer 0: Conv2d takes 3 channels, got 2"),
        ([AveragePool(9)], r"AveragePool sees \(9, 9\)"),
        ([MaxPool(0)], "MaxPool sees"),
        ([MaxPool(1.5)], "whole numbers"),  # type: ignore[arg-type]
        ([dense_of(np.zeros((4, 3)), np.zeros(3))], "layer 0: Dense takes 4 numbers"),
        ([Flatten(), MaxPool(2)], "layer 1: MaxPool takes"),
        ([Flatten(), dense_of(np.zeros((128, 2)), np.zeros(2))], "3 classes"),
    ],
)
def test_layers_that_do_not_fit_are_refused_when_the_network_is_made(
    layers: list[Layer], said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        Network(layers, (2, 8, 8), ("a", "b", "c"), (0, 1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: dense_of([[1.0, np.nan]], [0.0, 0.0]),
        lambda: dense_of([[1.0, 2.0]], [0.0]),
        lambda: conv_of(np.zeros((2, 1, 3, 3)), [0.0]),
        lambda: conv_of(np.zeros((1, 1, 3, 3)), [0.0], stride=0),
        lambda: Polynomial((1.0,), 4.0),
        lambda: Polynomial((1.0, 2.0), 0.0),
        lambda: replace(dense(2, 3), input_range=(1, 1)),
        lambda: replace(dense(2, 3), input_range=(0, np.inf)),
    ],
)
def test_a_bad_value_is_refused(make: Any) -> None:
    with pytest.raises(PlanError):
        make()


@pytest.mark.parametrize(
    "rows", [[[0.0, np.nan]], [[0.0, np.inf]], [[0.0, 2.1]], [[0.0]], [0.0, 0.0]]
)
def test_rows_of_another_shape_or_range_are_refused_without_being_shown(rows: Any) -> None:
    with pytest.raises(DataError, match="must be") as caught:
        dense(2, 3).forward(rows)
    assert "2.1" not in str(caught.value)


def test_a_network_is_a_value_that_shows_shapes_and_no_weight() -> None:
    given_weights = np.ones((2, 3)) * 0.123
    layer = Dense(given_weights, np.ones(3) * 0.456)
    given_weights[0] = 7
    assert layer.weights.max() == 0.123
    with pytest.raises(ValueError, match="read-only"):
        layer.weights[0, 0] = 1
    with pytest.raises(FrozenInstanceError):
        layer.bias = np.zeros(3)  # type: ignore[misc]
    network = Network([layer], (2,), range(3), (0, 1))
    shown = repr(layer) + repr(network) + repr(network.layers)
    assert "0.1" not in shown
    assert "0.4" not in shown
    assert "weights=2x3" in shown


def test_a_network_comes_back_from_its_document() -> None:
    network = of_images(Polynomial((0.1, 0.2, 0.3), 4.0, clip=True), AveragePool(2))
    again = Network.from_dict(json.loads(json.dumps(network.to_dict())))
    X = RNG.uniform(0, 1, (5, 2, 8, 8))
    np.testing.assert_array_equal(again.forward(X), network.forward(X))
    assert again.classes == network.classes
    assert again.layers[1] == network.layers[1]


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"network": 2},
        {"network": 1, "layers": [{"layer": "Softmax"}]},
        {"network": 1, "layers": [{"layer": "Relu", "slope": 1}]},
        {"network": 1, "layers": [7]},
        {"network": 1, "layers": [{"layer": "Dense", "weights": [[1], [1, 2]], "bias": [0]}]},
        {"network": 1, "layers": [{"layer": "Dense", "weights": {"zeros": [-1]}, "bias": [0]}]},
        {"network": 1, "layers": [{"layer": "Dense", "weights": {"zeros": [1e9, 1e9]}}]},
        {"network": 1, "layers": "Relu"},
    ],
)
def test_a_strange_document_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        Network.from_dict(document)


def test_the_architecture_says_nothing_of_the_weights() -> None:
    network = of_images(Relu())
    public = network.architecture()
    assert public.shapes == network.shapes
    assert not any(array.any() for array in public.parameters)
    X = RNG.uniform(0, 1, (2, 2, 8, 8))
    whole = public.with_parameters(network.parameters)
    np.testing.assert_array_equal(whole.forward(X), network.forward(X))


KINDS: list[Layer] = [
    dense_of(RNG.normal(size=(8, 5)), RNG.normal(size=5)),
    conv_of(RNG.normal(size=(2, 2, 2, 2)), RNG.normal(size=2), padding=1),
    AveragePool(2),
    MaxPool(2),
    Flatten(),
    Relu(),
    Polynomial((0.3, -0.5, 0.2, 0.1), 2.0),
    Polynomial((0.3, -0.5, 0.2, 0.1), 2.0, clip=True),
]


@pytest.mark.parametrize("layer", KINDS, ids=lambda layer: type(layer).__name__)
@given(seed=st.integers(0, 2**32 - 1))
def test_outputs_lie_between_the_bounds(layer: Layer, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (8,) if isinstance(layer, Dense) else (2, 2, 2)
    low = rng.uniform(-3, 2, shape)
    high = low + rng.uniform(0, 3, shape)
    least, most, reach = interval(layer, low, high)
    part = rng.uniform(size=(20, *shape))
    part[:5] = part[:5].round()  # corners
    found = outputs(layer, low + part * (high - low))
    assert (found >= least - 1e-9).all()
    assert (found <= most + 1e-9).all()
    assert reach >= np.abs(found).max() - 1e-9


def test_bounds_of_an_affine_layer_are_reached() -> None:
    layer = dense_of([[1.0], [-2.0]], [0.5])
    least, most, reach = interval(layer, np.array([-1.0, -1.0]), np.array([3.0, 4.0]))
    assert (least[0], most[0]) == (-8.5, 5.5)
    assert reach == 9.0  # of the product, before the bias


def test_a_network_that_could_overflow_is_refused_by_the_name_of_its_layer() -> None:
    check_headroom(dense(8, 16, 3))
    with pytest.raises(PlanError, match=r"layer 0 \(Dense\) could reach"):
        check_headroom(dense(8, 16, 3, scale=2.0**30))
    quartic = Polynomial((0, 0, 0, 0, 1), 4.0)
    with pytest.raises(PlanError, match="Polynomial"):
        check_headroom(dense(8, 16, 16, 16, 3, activation=quartic))
    check_headroom(dense(8, 16, 16, 16, 3, activation=replace(quartic, clip=True)))


def test_reach_bounds_what_rows_reach() -> None:
    network = of_images(Relu(), AveragePool(2))
    rows = RNG.uniform(0, 1, (200, 2, 8, 8))
    for layer, reach in zip(network.layers, reaches(network), strict=True):
        rows = outputs(layer, rows)
        assert np.abs(rows).max() <= reach


def test_every_relu_is_replaced_and_nothing_else() -> None:
    network = dense(4, 8, 8, 3)
    swapped = replace_relu(network, 2, 3.0, clip=True)
    kinds = [type(layer) for layer in swapped.layers]
    assert kinds == [Dense, Polynomial, Dense, Polynomial, Dense]
    X = RNG.uniform(-0.2, 0.2, (50, 4))
    assert activation_radius(network, X) < 3
    assert np.abs(swapped.forward(X) - network.forward(X)).max() < 2.5
    finer = replace_relu(network, 12, activation_radius(network, X))
    assert np.abs(finer.forward(X) - network.forward(X)).max() < 0.2


def test_pruning_cuts_the_units_that_do_least() -> None:
    first = dense_of(np.column_stack([np.ones(3), np.full(3, 1e-9), np.ones(3)]), np.zeros(3))
    second = dense_of([[1.0, 0.0], [5.0, 5.0], [0.0, 1.0]], np.zeros(2))
    network = Network([first, Relu(), second], (3,), ("a", "b"), (-1, 1))
    small = pruned(network, 0.67)
    assert small.shapes == ((3,), (2,), (2,), (2,))
    X = RNG.uniform(-1, 1, (20, 3))
    np.testing.assert_allclose(small.forward(X), network.forward(X), atol=1e-7)
    with pytest.raises(PlanError, match="keep"):
        pruned(network, 0.0)


def test_a_polynomial_network_keeps_the_accuracy_of_the_clear_one_on_digits() -> None:
    neural, datasets = (
        pytest.importorskip(f"sklearn.{name}") for name in ("neural_network", "datasets")
    )
    from cloister.inference.imports import from_sklearn

    X, y = datasets.load_digits(return_X_y=True)
    X = X / 16
    model = neural.MLPClassifier((32,), max_iter=60, random_state=0, early_stopping=True)
    network = from_sklearn(model.fit(X[:1200], y[:1200]), (0, 1))
    clear = np.mean(np.equal(network.predict(X[1200:]), y[1200:]))
    swapped = replace_relu(network, 4, activation_radius(network, X[:1200]))
    poly = np.mean(np.equal(swapped.predict(X[1200:]), y[1200:]))
    assert clear > 0.85
    assert poly > clear - 0.1
