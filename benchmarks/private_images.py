"""Five parties, five processes: a small convolutional network scores images that it never sees.

    python benchmarks/private_images.py [--data ../shared/data] [--images 100] [--digits]
                                        [--encrypted]

The lab owns a network, the clinic owns images; two servers and a dealer compute. All links are
sealed between the keys of one session. The network is trained here first, on MNIST or, with
`--digits`, on scikit-learn's digits; only labels come out, and only at the clinic. With
`--encrypted` the servers pool under encryption: shares, comparison and encryption in one chain.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from networks import (
    DATA,
    Images,
    convolutional,
    dense,
    digits,
    mnist,
    pooling_encrypted,
    trained,
)
from session_processes import run_session

from cloister.shares.inference.layers import AveragePool, Conv2d, Flatten, Layer, Relu
from cloister.shares.inference.network import Network


def scored(network: Network, X: Any) -> tuple[Any, str, float]:
    """Return the places of the labels of all images, what they are, and the seconds."""
    options = {"architecture": network.architecture().to_dict(), "n_rows": len(X)}
    clinic = run_session(
        "network",
        options,
        owners={"rows": "clinic", "weights": "lab"},
        receivers=["clinic"],
        tables={"rows": lambda: X, "weights": lambda: network.vector},
    )["clinic"]
    return clinic.results["labels"], clinic.mark, clinic.seconds


def problem(folder: Path, small: bool) -> tuple[list[Layer], Images]:
    """Return empty layers and images."""
    if not small:
        return convolutional(), mnist(folder)
    images = digits()
    X, X_test = (rows.reshape(-1, 1, 8, 8) for rows in (images.X, images.X_test))
    first = Conv2d(np.zeros((4, 1, 3, 3)), np.zeros(4), padding=1)
    layers = [first, Relu(), AveragePool(2), Flatten(), *dense(64, 10)]
    return layers, replace(images, X=X, X_test=X_test)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, score, and say who agrees."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--digits", action="store_true")
    parser.add_argument("--encrypted", action="store_true")
    options = parser.parse_args(arguments)
    layers, images = problem(options.data, options.digits)
    epochs = 12 if options.digits else 3
    network = trained(Network(layers, images.X.shape[1:], range(10), (0, 1)), images, epochs)
    if options.encrypted:
        network = pooling_encrypted(network)
    X = images.X_test[: options.images]
    labels, mark, seconds = scored(network, X)
    agreed = int((labels == network.forward(X).argmax(axis=1)).sum())
    right = int((labels == images.y_test[: len(X)]).sum())
    print(f"{network}")
    print(f"{agreed} of {len(X)} labels are those in the clear, {right} are right: {seconds:.1f} s")
    print(mark)


if __name__ == "__main__":
    main()
