"""Networks in the clear: layers worked out by hand, shapes, ranges, documents."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import DataError, PlanError
from cloister.shares.inference.layers import (
    AveragePool,
    Conv2d,
    Dense,
    Flatten,
    Layer,
    MaxPool,
    Polynomial,
    Relu,
)
from cloister.shares.inference.network import Network

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
        X = layer.outputs(X)
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
    np.testing.assert_allclose(layer.outputs(IMAGE)[0, 0], expected)


def test_a_convolution_is_the_sum_over_channels_and_kernel_cells() -> None:
    layer = conv_of(RNG.normal(size=(3, 2, 2, 3)), RNG.normal(size=3), stride=2, padding=1)
    X = RNG.normal(size=(4, 2, 5, 6))
    padded = np.pad(X, ((0, 0), (0, 0), (1, 1), (1, 1)))
    found = layer.outputs(X)
    for o, r, c in np.ndindex(found.shape[1:]):
        seen = padded[:, :, 2 * r : 2 * r + 2, 2 * c : 2 * c + 3]
        expected = (seen * layer.weights[o]).sum(axis=(1, 2, 3)) + layer.bias[o]
        np.testing.assert_allclose(found[:, o, r, c], expected)


def test_a_polynomial_diverges_outside_its_radius_unless_it_clips() -> None:
    X = np.array([-9.0, -1.0, 0.0, 2.0, 9.0])
    layer = Polynomial((1, 2, 3), 2.0)
    np.testing.assert_allclose(layer.outputs(X), 1 + 2 * X + 3 * X**2)
    within = np.clip(X, -2, 2)
    np.testing.assert_allclose(replace(layer, clip=True).outputs(X), 1 + 2 * within + 3 * within**2)


def test_prediction_is_the_first_highest_score() -> None:
    network = Network([dense_of(np.zeros((2, 3)), [1.0, 2.0, 2.0])], (2,), ("a", "b", "c"), (0, 1))
    assert network.predict([[0.5, 0.5]]) == ["b"]


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([conv_of(np.zeros((1, 3, 2, 2)), [0.0])], "layer 0: Conv2d takes 3 channels, got 2"),
        ([AveragePool(9)], r"AveragePool has a window of \(9, 9\)"),
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
        lambda: conv_of(np.zeros((1, 1, 3, 3)), [0.0], padding=-1),
        lambda: conv_of(np.zeros((1, 1, 3, 3)), [0.0], stride=1.5),  # type: ignore[arg-type]
        lambda: MaxPool(0),
        lambda: MaxPool(1.5),  # type: ignore[arg-type]
        lambda: AveragePool(33),  # 1 / 33^2 has too few bits
        lambda: AveragePool(2, "yes"),  # type: ignore[arg-type]
        lambda: Polynomial((1.0,), 4.0),
        lambda: Polynomial((1.0, np.inf), 4.0),
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
    least, most, reach = layer.bounds(low, high)
    part = rng.uniform(size=(20, *shape))
    part[:5] = part[:5].round()  # corners
    found = layer.outputs(low + part * (high - low))
    assert (found >= least - 1e-9).all()
    assert (found <= most + 1e-9).all()
    assert reach >= np.abs(found).max() - 1e-9


def test_bounds_of_an_affine_layer_are_reached() -> None:
    layer = dense_of([[1.0], [-2.0]], [0.5])
    least, most, reach = layer.bounds(np.array([-1.0, -1.0]), np.array([3.0, 4.0]))
    assert (least[0], most[0]) == (-8.5, 5.5)
    assert reach == 9.0  # of the product, before the bias


def test_a_network_that_could_overflow_is_refused_by_the_name_of_its_layer() -> None:
    dense(8, 16, 3).reaches()
    with pytest.raises(PlanError, match=r"layer 0 \(Dense\) could reach"):
        dense(8, 16, 3, scale=2.0**30).reaches()
    quartic = Polynomial((0, 0, 0, 0, 1), 4.0)
    with pytest.raises(PlanError, match="Polynomial"):
        dense(8, 16, 16, 16, 3, activation=quartic).reaches()
    dense(8, 16, 16, 16, 3, activation=replace(quartic, clip=True)).reaches()


def test_reach_bounds_what_rows_reach() -> None:
    network = of_images(Relu(), AveragePool(2))
    rows = RNG.uniform(0, 1, (200, 2, 8, 8))
    for layer, reach in zip(network.layers, network.reaches(), strict=True):
        rows = layer.outputs(rows)
        assert np.abs(rows).max() <= reach


def test_no_rows_give_no_scores() -> None:
    network = of_images(Relu(), MaxPool(2))
    assert network.forward(np.zeros((0, 2, 8, 8))).shape == (0, 3)
    assert network.predict(np.zeros((0, 2, 8, 8))) == []


@pytest.mark.parametrize("weight", [1e305, -1e305, 1e200, 2.0**23])
def test_huge_weights_are_refused_without_a_warning(weight: float) -> None:
    weights = np.full((2, 2), weight)
    network = Network([dense_of(weights, np.zeros(2)), Relu()], (2,), range(2), (-1e9, 1e9))
    with pytest.raises(PlanError, match=r"layer 0 \(Dense\) could reach|must be finite"):
        network.reaches()


@pytest.mark.parametrize(
    ("coefficients", "radius"),
    [
        ((0.0, 0.0, 0.0, 1.0), 1000.0),  # radius^3 fits no word
        ((0.0, 1.0, 0.5), 1e-12),  # nor does 1 / radius
        ((0.0, 1.0, 0.5), 1e12),  # nor does what inputs are compared with
        ((0.0, 2.0**29), 1.0),
        ((0.0, 0.0, 0.0, 1e300), 2.0**16),
    ],
)
def test_a_polynomial_whose_constants_fit_no_word_is_refused(
    coefficients: tuple[float, ...], radius: float
) -> None:
    with pytest.raises(PlanError, match=r"coefficients of Polynomial|radius must be"):
        Polynomial(coefficients, radius)


def test_a_polynomial_with_a_vanishing_leading_coefficient_has_bounds() -> None:
    layer = Polynomial((0.0, 1.0, -1.0, 1e-300, 1e-310), 1.0)
    least, most, _ = layer.bounds(np.array([0.0]), np.array([1.0]))
    assert -1e-3 < least[0] <= 0
    assert 0.25 <= most[0] < 0.251
