"""Networks scored on shares by three processes over loopback, beside SPU on the same problem.

    python benchmarks/shared_networks.py [--data ../shared/data] [--spu PYTHON] [--repeats 5]

Two servers and a dealer are processes with one thread each, connected by TCP. Weights and rows are
shared. The table shows the wall time of one batch (the shortest and in brackets the median, from
having shares to having sent the results, with the dealer working beside), the processor time of a
server and of the dealer, the bytes that both servers send each other, the bytes that the dealer
sends, the rounds, and the largest error and the agreement of labels against the network in the
clear. SPU (ABY3, three parties, no dealer) runs where `--spu` names the Python of an environment
that has it; its bytes are the sum over parties.

All links are sealed between pinned keys.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from networks import (
    DATA,
    Floats,
    Images,
    convolutional,
    dense,
    mnist,
    pooling_encrypted,
    trained,
    with_polynomial,
)
from share_processes import run_each

from cloister.core.randomness import public_generator
from cloister.hazmat.ring import to_integers
from cloister.shares.inference.network import Network
from cloister.shares.inference.shared import NetworkScoring
from cloister.shares.mpc import decode

BARS = {"MLP polynomial": 0.2, "MLP ReLU": 1.0, "CNN polynomial": 30.0, "CNN ReLU": 30.0}


def breast() -> Images:
    """Return scikit-learn's 569 tumours of 30 columns, standardised and clipped to [-4, 4]."""
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    X = np.clip((X - X.mean(axis=0)) / X.std(axis=0), -4, 4)
    order = public_generator(0, "breast").permutation(len(X))
    X, y = X[order], y[order].astype(np.int64)
    return Images(X[:400], y[:400], X[400:], y[400:])


def took(seconds: Sequence[float]) -> str:
    """Return the shortest and the median time."""
    return f"{min(seconds):.3f} s ({median(seconds):.3f})"


def row(name: str, network: Network, X: Floats, repeats: int) -> None:
    """Measure labels, check scores, and print a row."""
    public, clear = network.architecture().to_dict(), network.forward(X)
    lines, error, agreed = [], 0.0, 0.0
    for opening in ("exact", "label"):
        program = NetworkScoring(architecture=public, n_rows=len(X), opening=opening)
        given = {"rows": X, "weights": network.vector}
        runs = run_each(
            program, {n: program.words(n, table) for n, table in given.items()}, repeats
        )
        one = runs[0]
        if opening == "exact":
            error = float(np.abs(decode(one.results["scores"]) - clear).max())
        else:
            labels = to_integers(one.results["labels"])
            agreed = float((labels == clear.argmax(axis=1)).mean())
        server = median(max(run.server_cpu_s) for run in runs)
        dealer = median(run.dealer_cpu_s for run in runs)
        lines.append(
            f"| {name}, {len(X)} rows, {'scores' if opening == 'exact' else opening} | "
            f"{took([run.online_s for run in runs])} | {server:.3f} s | {dealer:.3f} s | "
            f"{2 * one.bytes_between / 1e6:.1f} MB | {one.bytes_dealt / 1e6:.1f} MB | {one.rounds}"
        )
    bar = f"{BARS[name]:g} s" if name in BARS else ""
    for line in lines:
        print(f"{line} | {error:.1e} | {agreed:.3f} | {bar} |", flush=True)


def beside(python: Path, network: Network, X: Floats, program: str, repeats: int) -> None:
    """Print a row of what SPU takes for the same network and rows."""
    from cloister_lab.experiments import spu_kmeans
    from cloister_lab.experiments.environments import run_script

    weights = network.vector
    state = np.append(weights, np.zeros(len(X) * 2))[:, None]
    arrays = {"X": X, "centres": state}
    given = ("ABY3", str(repeats), "FILE", program)
    found = run_script(python, spu_kmeans.__file__, given, arrays)
    if isinstance(found, str):
        print(f"| SPU ABY3 {program} | {found} | | | | | | | | |", flush=True)
        return
    scores = np.array(found["centres"])[len(weights) :].reshape(-1, 2)
    error = np.abs(scores - network.forward(X)).max()
    agreed = (scores.argmax(axis=1) == network.forward(X).argmax(axis=1)).mean()
    print(
        f"| SPU {found['spu']} ABY3, {program}, {len(X)} rows, scores | "
        f"{took(found['seconds'])} | | no dealer | {(found['bytes'] or 0) / 1e6:.1f} MB | "
        f"| | {error:.1e} | {agreed:.3f} | |",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, score on shares, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--spu", type=Path, help="the Python of an environment with spu==0.9.5")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=8, help="of the networks for MNIST")
    options = parser.parse_args(arguments)
    print("| what | wall | a server | dealer | between | dealt | rounds | error | labels | bar |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    tumours = breast()
    empty = Network(dense(30, 64, 32, 2), (30,), ("malignant", "benign"), (-4, 4))
    chosen = public_generator(1, "rows").integers(0, len(tumours.X), 1000)
    for name, network, program in (
        ("MLP polynomial", with_polynomial(empty, 2, 4.0), "quadratic"),
        ("MLP ReLU", empty, "relu"),
    ):
        network = trained(network, tumours, 20)
        row(name, network, tumours.X[chosen], options.repeats)
        if options.spu:
            beside(options.spu, network, tumours.X[chosen], program, options.repeats)
    if not (options.data / "mnist_t10k.npz").exists():
        return
    images = mnist(options.data)
    empty = Network(convolutional(), (1, 28, 28), range(10), (0, 1))
    for name, network in (("CNN polynomial", with_polynomial(empty, 2, 4.0)), ("CNN ReLU", empty)):
        network = trained(network, replace(images, X=images.X[:6000]), options.epochs)
        for n_rows in (100, 1000):
            row(name, network, images.X_test[:n_rows], 3 if n_rows == 100 else 1)
        row(f"{name}, encrypted pooling", pooling_encrypted(network), images.X_test[:100], 1)


if __name__ == "__main__":
    main()
