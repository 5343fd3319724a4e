"""Networks scored on shares by three processes over loopback, beside SPU on the same problem.

    python benchmarks/shared_networks.py [--data ../shared/data] [--spu PYTHON] [--repeats 5]

Two servers and a dealer are processes with one thread each, connected by TCP. Weights and rows are
shared. The table shows the wall time of one batch (the shortest and in brackets the median, with
the dealer working beside), the processor time of a server and of the dealer, the bytes that both
servers send each other, the bytes that the dealer sends, the rounds, and the largest error and the
agreement of labels against the network in the clear. SPU (ABY3, three parties, no dealer) runs
where `--spu` names the Python of an environment that has it; its bytes are the sum over parties.

All links are sealed between pinned keys.
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from networks import DATA, Images, convolutional, dense, mnist, trained, with_polynomial
from numpy.typing import NDArray

from cloister.hazmat.signing import Identity
from cloister.inference.network import Network
from cloister.inference.shared import NetworkScoring, shared_rows, shared_weights
from cloister.mpc import Dealer, Link, Server, Supply, combine, decode, expand_share, split
from cloister.mpc.sealed import seal
from cloister.randomness import new_key, public_generator
from cloister.transports.tcp import dial, let_in

Floats = NDArray[np.float64]
BARS = {"MLP polynomial": 0.2, "MLP ReLU": 1.0, "CNN polynomial": 30.0, "CNN ReLU": 30.0}


NAMES = ("server-0", "server-1", "dealer")


@dataclass(frozen=True)
class Parties:
    """Keys and addresses of the three, as their owners would have compared them."""

    identities: dict[str, Identity]
    addresses: tuple[str, str]

    def linked(self, name: str) -> dict[str, Link]:
        """Return one party's sealed links to the other two: servers listen, the rest dial."""

        def sealed(peer: str, link: Link) -> Link:
            pin = self.identities[peer].fingerprint
            return seal(link, self.identities[name], name, peer, pin, "benchmark")

        links: dict[str, Link] = {}
        own = NAMES.index(name)
        for number, address in enumerate(self.addresses[:own]):
            links[NAMES[number]] = sealed(NAMES[number], dial(address, name))
        if name != "dealer":
            came = let_in(self.addresses[own], NAMES[own + 1 :], sealed)
            links |= {peer: link for peer, (_, link) in came.items()}
        return links


def dealing(parties: Parties, over: Any, answers: Any) -> None:
    """Play the dealer."""
    links = parties.linked("dealer")
    begun = time.process_time()
    Dealer((links["server-0"], links["server-1"])).serve()
    answers.put(("dealer", time.process_time() - begun))
    over.wait()


def serving(
    index: int,
    parties: Parties,
    program: NetworkScoring,
    shares: dict[str, Any],
    repeats: int,
    barrier: Any,
    over: Any,
    answers: Any,
) -> None:
    """Play one server: score the same batch several times."""
    links = parties.linked(NAMES[index])
    server = Server(index, links[NAMES[1 - index]], Supply(index, links["dealer"]))
    tables = {n: expand_share(*t) if isinstance(t, tuple) else t for n, t in shares.items()}
    seconds, used = [], []
    for _ in range(repeats):
        barrier.wait()
        begun, worked = time.perf_counter(), time.process_time()
        result = program.run(server, tables)
        used.append(time.process_time() - worked)
        barrier.wait()
        seconds.append(time.perf_counter() - begun)
    server.supply.close()
    cost = (server.cost.rounds, server.cost.bytes_sent, server.supply.bytes_received)
    answers.put((index, result, seconds, used, tuple(number // repeats for number in cost)))
    over.wait()  # a process that ends takes unsent messages with it


@dataclass(frozen=True)
class Measured:
    """What one batch took, and what came out."""

    seconds: list[float]
    server: float
    dealer: float
    between: int
    dealt: int
    rounds: int
    result: Any


def measured(
    network: Network, X: Floats, opening: Any, repeats: int, encrypted: bool = False
) -> Measured:
    """Score a batch by three processes."""
    program = NetworkScoring(network.architecture().to_dict(), len(X), opening, encrypted)
    secrets = shared_rows(network, X, len(X)), shared_weights(network)
    sides: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for name, secret in zip(program.tables(), secrets, strict=True):
        key, rest = split(secret)
        sides[0][name], sides[1][name] = (key, rest.shape), rest
    context = get_context("fork")
    answers, barrier, over = context.Queue(), context.Barrier(2), context.Barrier(3)
    parties = Parties({name: Identity.from_bytes(new_key()) for name in NAMES}, _addresses())
    processes = [context.Process(target=dealing, args=(parties, over, answers))]
    for index, side in enumerate(sides):
        given = (index, parties, program, side, repeats, barrier, over, answers)
        processes.append(context.Process(target=serving, args=given))
    for process in processes:
        process.start()
    found = {answer[0]: answer[1:] for answer in (answers.get(timeout=900) for _ in processes)}
    for process in processes:
        process.join()
    ((name, first),), ((_, second),) = (found[i][0].items() for i in (0, 1))
    words = combine(first, second)
    return Measured(
        seconds=found[0][1],
        server=median([max(pair) for pair in zip(found[0][2], found[1][2], strict=True)]),
        dealer=found["dealer"][0] / repeats,
        between=sum(found[i][3][1] for i in (0, 1)),
        dealt=sum(found[i][3][2] for i in (0, 1)),
        rounds=found[0][3][0],
        result=decode(words, 0).astype(int) if name == "labels" else decode(words),
    )


def _addresses() -> tuple[str, str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    first, second = (f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)
    for one in sockets:
        one.close()
    return first, second


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


def row(name: str, network: Network, X: Floats, repeats: int, *, encrypted: bool = False) -> None:
    """Measure labels, check scores, and print a row."""
    labels = measured(network, X, "label", repeats, encrypted)
    scores = measured(network, X, "exact", repeats, encrypted)
    clear = network.forward(X)
    error = np.abs(scores.result - clear).max()
    agreed = (labels.result == clear.argmax(axis=1)).mean()
    bar = BARS.get(name)
    for what, found in (("scores", scores), ("label", labels)):
        print(
            f"| {name}, {len(X)} rows, {what} | {took(found.seconds)} | {found.server:.3f} s | "
            f"{found.dealer:.3f} s | {found.between / 1e6:.1f} MB | {found.dealt / 1e6:.1f} MB | "
            f"{found.rounds} | {error:.1e} | {agreed:.3f} | {f'{bar:g} s' if bar else ''} |",
            flush=True,
        )


def beside(python: Path, network: Network, X: Floats, program: str, repeats: int) -> None:
    """Print a row of what SPU takes for the same network and rows."""
    from cloister_lab.experiments import spu_kmeans
    from cloister_lab.experiments.environments import run_script

    weights = np.concatenate([a.ravel() for a in network.parameters])
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
        row(f"{name}, encrypted pooling", network, images.X_test[:100], 1, encrypted=True)


if __name__ == "__main__":
    main()
