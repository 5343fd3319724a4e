"""What does a polynomial in place of ReLU cost in accuracy? Digits and MNIST, trained here.

    python benchmarks/networks.py [--data ../shared/data] [--quick]

Each network is trained with ReLU, and again from the same start with the fitted polynomial. The
table shows the accuracy on held-back images in the clear: with ReLU; with its ReLUs replaced after
training; and trained with the polynomial. The radius of a replacement is the largest input that
any ReLU sees on training images. Seeded; NumPy alone trains.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.polynomial import polynomial
from numpy.typing import NDArray

from cloister.core.randomness import public_generator
from cloister.shares.inference.layers import (
    AveragePool,
    Conv2d,
    Dense,
    Flatten,
    Layer,
    Polynomial,
    Relu,
)
from cloister.shares.inference.network import Network
from cloister.shares.inference.polynomials import fit

Floats = NDArray[np.float64]
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
LABELS = Path(__file__).with_name("mnist_t10k_labels.txt")
TRAIN, BATCH, RATE, DECAY = 8000, 50, 2e-3, 1e-5


@dataclass(frozen=True)
class Images:
    """Images and their labels, in [0, 1]; the last ones are held back."""

    X: Floats
    y: NDArray[np.int64]
    X_test: Floats
    y_test: NDArray[np.int64]


def mnist(folder: Path = DATA) -> Images:
    """Return the 10,000 images of MNIST's test set: 8,000 to train, 2,000 held back.

    The table beside this checkout has images only; their labels are in the set's own order (the
    file t10k-labels-idx1-ubyte of LeCun, Cortes and Burges, SHA-256 ff7bcfd416de3373...).
    """
    with np.load(folder / "mnist_t10k.npz") as archive:
        X = archive["X"].reshape(-1, 1, 28, 28) / 255.0
    y = np.array([int(digit) for digit in "".join(LABELS.read_text().split())])
    order = public_generator(0, "mnist").permutation(len(X))
    X, y = X[order], y[order]
    return Images(X[:TRAIN], y[:TRAIN], X[TRAIN:], y[TRAIN:])


def digits() -> Images:
    """Return scikit-learn's 1,797 images of 8 times 8: 1,300 to train."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    order = public_generator(0, "digits").permutation(len(X))
    X, y = X[order] / 16.0, y[order].astype(np.int64)
    return Images(X[:1300], y[:1300], X[1300:], y[1300:])


def dense(*sizes: int) -> list[Layer]:
    """Return the layers of a network of this many units, with ReLU between."""
    layers: list[Layer] = []
    for n_in, n_out in pairwise(sizes):
        layers += [Dense(np.zeros((n_in, n_out)), np.zeros(n_out)), Relu()]
    return layers[:-1]


def convolutional() -> list[Layer]:
    """Return the layers of a small convolutional network for 28 times 28 cells."""
    first = Conv2d(np.zeros((8, 1, 5, 5)), np.zeros(8), stride=2, padding=2)
    return [first, Relu(), AveragePool(2), Flatten(), *dense(8 * 7 * 7, 64, 10)]


def with_polynomial(network: Network, degree: int, radius: float) -> Network:
    """Return the network with an unclipped fitted polynomial in place of each ReLU.

    Accuracy suffers; a network that is trained with the polynomial does better.
    """
    stand_in = Polynomial(tuple(fit("relu", degree, radius)), radius)
    layers = (stand_in if isinstance(layer, Relu) else layer for layer in network.layers)
    return replace(network, layers=tuple(layers))


def pooling_encrypted(network: Network) -> Network:
    """Return the network with average pooling by way of encryption."""
    layers = (
        replace(layer, encrypted=True) if isinstance(layer, AveragePool) else layer
        for layer in network.layers
    )
    return replace(network, layers=tuple(layers))


def activation_radius(network: Network, X: Floats) -> float:
    """Return the largest absolute input that any activation sees on some rows.

    Use public rows: the number tells of the rows it comes from.
    """
    rows, largest = network.checked(X), 0.0
    for layer in network.layers:
        if isinstance(layer, Relu | Polynomial):
            largest = max(largest, float(np.abs(rows).max(initial=0.0)))
        rows = layer.outputs(rows)
    return largest


def pruned(network: Network, keep: float) -> Network:
    """Return a smaller network: the weakest hidden units of Dense layers are cut off.

    A unit counts as the product of the norms of its incoming and outgoing weights. The part `keep`
    of the units of every hidden Dense layer stays; at least one does.
    """
    if not 0 < keep <= 1:
        raise ValueError(f"keep must be in (0, 1], got {keep}")
    layers = list(network.layers)
    places = [number for number, layer in enumerate(layers) if isinstance(layer, Dense)]
    for here, there in pairwise(places):
        (w_in, bias), (w_out, next_bias) = layers[here].parameters, layers[there].parameters
        strength = np.linalg.norm(w_in, axis=0) * np.linalg.norm(w_out, axis=1)
        stay = np.sort(np.argsort(-strength, kind="stable")[: max(1, round(keep * len(strength)))])
        layers[here] = Dense(w_in[:, stay], bias[stay])
        layers[there] = Dense(w_out[stay], next_bias)
    return replace(network, layers=tuple(layers))


def started(network: Network, seed: int, gain: float = 2.0) -> Network:
    """Return the network with random weights of a size that keeps activations alive."""
    rng = public_generator(seed, "weights")
    arrays = []
    for array in network.parameters:
        n_in = array.shape[0] if array.ndim == 2 else np.prod(array.shape[1:])
        arrays.append(rng.normal(0, (gain / n_in) ** 0.5, array.shape) * (array.ndim > 1))
    return network.with_parameters(arrays)


def trained(network: Network, data: Images, epochs: int, seed: int = 0) -> Network:
    """Return the network after training by Adam on the cross-entropy; zeros start at random."""
    if not any(array.any() for array in network.parameters):
        network = started(network, seed)
    arrays = [np.array(a) for a in network.parameters]
    first, second = ([np.zeros_like(a) for a in arrays] for _ in range(2))
    step, total = 0, epochs * (len(data.X) // BATCH)
    for epoch in range(epochs):
        order = public_generator(seed, "order", epoch).permutation(len(data.X))
        for batch in np.array_split(order, len(order) // BATCH):
            network = network.with_parameters(arrays)
            gradients = _gradients(network, data.X[batch], data.y[batch])
            norm = np.sqrt(sum((g**2).sum() for g in gradients))
            step += 1
            rate = RATE * (1 - step / (total + 1))
            for a, m, v, g in zip(arrays, first, second, gradients, strict=True):
                g = g / max(1.0, norm / 5)  # a polynomial's gradient can be large at first
                m += 0.1 * (g - m)
                v += 0.001 * (g**2 - v)
                a -= rate * (m / (1 - 0.9**step) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8))
                a -= rate * DECAY * a
    return network.with_parameters(arrays)


def _gradients(network: Network, X: Floats, y: NDArray[np.int64]) -> list[Floats]:
    """Return the gradient of the mean cross-entropy by every weight and bias."""
    inputs = [X]
    for layer in network.layers:
        inputs.append(layer.outputs(inputs[-1]))
    scores = inputs.pop()
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    back = odds / odds.sum(axis=1, keepdims=True)
    back[np.arange(len(y)), y] -= 1
    back /= len(y)
    found: list[Floats] = []
    for number in reversed(range(len(network.layers))):
        back, own = _back(network.layers[number], inputs[number], back, first=number == 0)
        found += own
    return found[::-1]


def _back(layer: Layer, x: Floats, back: Floats, *, first: bool) -> tuple[Any, list[Floats]]:
    """Return the gradient by a layer's input, and by its bias and weights."""
    match layer:
        case Dense():
            return back @ layer.weights.T, [back.sum(axis=0), x.T @ back]
        case Conv2d():
            if not first:
                raise ValueError("a convolution is trained as the first layer only")
            room = [(0, 0)] * 2 + [(layer.padding, layer.padding)] * 2
            size, step = layer.weights.shape[2:], layer.stride
            seen = sliding_window_view(np.pad(x, room), size, axis=(2, 3))[:, :, ::step, ::step]
            columns = seen.transpose(0, 2, 3, 1, 4, 5).reshape(-1, layer.weights[0].size)
            flat = back.transpose(0, 2, 3, 1).reshape(-1, len(layer.weights))
            return None, [back.sum(axis=(0, 2, 3)), (flat.T @ columns).reshape(layer.weights.shape)]
        case AveragePool(size):
            wide = np.repeat(np.repeat(back, size, axis=2), size, axis=3) / size**2
            room = [(0, a - b) for a, b in zip(x.shape, wide.shape, strict=True)]
            return np.pad(wide, room), []
        case Flatten():
            return back.reshape(x.shape), []
        case Relu():
            return back * (x > 0), []
        case Polynomial():
            slope = polynomial.polyder(np.array(layer.coefficients))
            return back * polynomial.polyval(x, slope), []
    raise ValueError(f"{layer} is not trained here")


def accuracy(network: Network, data: Images) -> float:
    """Return the part of held-back images that get their own label."""
    return float((network.forward(data.X_test).argmax(axis=1) == data.y_test).mean())


def problems(folder: Path, quick: bool) -> list[tuple[str, Network, Images, int]]:
    """Return name, empty network, images and epochs of each row of the table."""
    classes = range(10)
    flat = digits()
    found = [("digits, 64-32-10", Network(dense(64, 32, 10), (64,), classes, (0, 1)), flat, 30)]
    if not quick and (folder / "mnist_t10k.npz").exists():
        images = mnist(folder)
        vectors = replace(
            images, X=images.X.reshape(TRAIN, -1), X_test=images.X_test.reshape(-1, 784)
        )
        multilayer = Network(dense(784, 64, 32, 10), (784,), classes, (0, 1))
        network = Network(convolutional(), (1, 28, 28), classes, (0, 1))
        found += [("MNIST, 784-64-32-10", multilayer, vectors, 12)]
        found += [("MNIST, convolution of 8, 64-10", network, images, 12)]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--quick", action="store_true", help="digits only")
    options = parser.parse_args(arguments)
    print("| network | ReLU | replaced: degree 2 | degree 4 | trained with: degree 2 | degree 4 |")
    print("|---|---|---|---|---|---|")
    begun = time.perf_counter()
    for name, empty, data, epochs in problems(options.data, options.quick):
        exact = trained(empty, data, epochs)
        radius = activation_radius(exact, data.X)
        after = [with_polynomial(exact, degree, radius) for degree in (2, 4)]
        along = [trained(with_polynomial(empty, d, 4.0), data, epochs) for d in (2, 4)]
        cells = " | ".join(f"{accuracy(n, data):.3f}" for n in (exact, *after, *along))
        print(f"| {name} (radius {radius:.1f}) | {cells} |", flush=True)
        if name.startswith("digits"):
            _smaller(exact, data)
    print(f"\ntrained in {time.perf_counter() - begun:.0f} s")


def _smaller(teacher: Network, data: Images) -> None:
    """Print how a pruned network and a small student do beside their teacher."""
    student = Network(dense(64, 8, 10), (64,), range(10), (0, 1))
    taught = replace(data, y=teacher.forward(data.X).argmax(axis=1))
    found = [("teacher", teacher)]
    for keep in (0.5, 0.25):
        small = pruned(teacher, keep)
        found += [(f"pruned to {keep:.0%}", small)]
        found += [(f"pruned to {keep:.0%}, trained on", trained(small, data, 10))]
    found += [("student of 8 units", trained(student, taught, 30))]
    for name, network in found:
        size = sum(a.size for a in network.parameters)
        print(f"|   {name}: {size} parameters | {accuracy(network, data):.3f} | | | | |")


if __name__ == "__main__":
    main()
