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
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from networks import DATA, Images, convolutional, dense, digits, mnist, trained

from cloister.hazmat.signing import Identity
from cloister.inference.network import AveragePool, Conv2d, Flatten, Layer, Network, Relu
from cloister.inference.programs import PROGRAMS
from cloister.mpc.parties import connected, take_part, words_of
from cloister.mpc.session import Session
from cloister.randomness import new_key

NAMES = ("dealer", "server-0", "server-1", "lab", "clinic")


def part(session: Session, name: str, identity: Identity, values: Any, answers: Any) -> None:
    """Play one party."""
    tables = {table: words_of(session.program, table, v) for table, v in values.items()}
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = take_part(
            session,
            name,
            lambda: connected(session, name, identity, timeout=120),
            Path(folder),
            tables=tables,
        )
    answers.put((name, found.results, found.mark, time.perf_counter() - begun))


def scored(network: Network, X: Any, *, encrypted: bool = False) -> tuple[Any, str, float]:
    """Return the places of the labels of all images, what they are, and the seconds."""
    identities = {name: Identity.from_bytes(new_key()) for name in NAMES}
    doors = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    parties: dict[str, dict[str, str]] = {
        name: {"fingerprint": identity.fingerprint} for name, identity in identities.items()
    }
    for name, door in zip(NAMES[1:3], doors, strict=True):
        parties[name]["address"] = f"127.0.0.1:{door.getsockname()[1]}"
        door.close()
    document = {
        "id": new_key()[:16].hex(),
        "program": "network",
        "options": {
            "architecture": network.architecture().to_dict(),
            "n_rows": len(X),
            "encrypted_pooling": encrypted,
        },
        "dealer": "dealer",
        "servers": ["server-0", "server-1"],
        "owners": {"rows": "clinic", "weights": "lab"},
        "receivers": ["clinic"],
        "parties": parties,
    }
    session = Session.from_dict(document, PROGRAMS)
    weights = np.concatenate([array.ravel() for array in network.parameters])
    own = {"clinic": {"rows": X}, "lab": {"weights": weights}}
    context = get_context("fork")
    answers = context.Queue()
    processes = [
        context.Process(target=part, args=(session, n, identities[n], own.get(n, {}), answers))
        for n in NAMES
    ]
    for process in processes:
        process.start()
    found = {answer[0]: answer[1:] for answer in (answers.get(timeout=600) for _ in processes)}
    for process in processes:
        process.join()
    results, mark, seconds = found["clinic"]
    return results["labels"], mark, seconds


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
    X = images.X_test[: options.images]
    labels, mark, seconds = scored(network, X, encrypted=options.encrypted)
    agreed = int((labels == network.forward(X).argmax(axis=1)).sum())
    right = int((labels == images.y_test[: len(X)]).sum())
    print(f"{network}")
    print(f"{agreed} of {len(X)} labels are those in the clear, {right} are right: {seconds:.1f} s")
    print(mark)


if __name__ == "__main__":
    main()
