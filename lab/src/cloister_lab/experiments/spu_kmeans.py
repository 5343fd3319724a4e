"""Exact secure k-means and logistic regression in SecretFlow's SPU; a script for its environment.

It is run by another Python, which has SPU and not this package::

    python -P spu_kmeans.py PROTOCOL ITERATIONS FILE [PROGRAM]

FILE is a NumPy archive with records ``X`` and starting ``centres``; for the program "logistic" the
last column of X is the label, and what is called centres are the coefficients; for "quadratic" and
"relu" they are the weights of a network of LAYERS, and behind them its scores. Each party is a
process with one thread; all have shares of both, and nothing is opened between iterations. One line
of JSON says the seconds of every iteration, the bytes that all parties together sent in one, and
the centres.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

PARTIES = {"ABY3": 3, "CHEETAH": 2}
FRACTION_BITS = 18
LAYERS = (30, 64, 32, 2)
TIMEOUT = 3600.0  # seconds


def step(X: Any, centres: Any) -> Any:
    """Return the means of the records nearest to each centre; of none, the centre.

    The nearest centre is found by a tournament: neighbours are compared, and the winner's distance
    and one-hot name go on.
    """
    import jax.numpy as jnp  # type: ignore[import-not-found]  # of another environment

    k = centres.shape[0]
    # the square of a record is the same for all centres
    distances = (centres * centres).sum(axis=1)[None, :] - 2 * (X @ centres.T)
    rounds = [(distances[:, i], jnp.eye(k)[i][None, :]) for i in range(k)]
    while len(rounds) > 1:
        pairs = list(zip(rounds[::2], rounds[1::2], strict=False))
        first = jnp.stack([pair[0][0] for pair in pairs])
        second = jnp.stack([pair[1][0] for pair in pairs])
        wins = (first < second).astype(jnp.float32)  # one batch of comparisons a level
        values = second + wins * (first - second)
        bye = rounds[-1:] if len(rounds) % 2 else []
        rounds = [
            (values[i], b[1] + wins[i][:, None] * (a[1] - b[1])) for i, (a, b) in enumerate(pairs)
        ] + bye
    member = rounds[0][1] + jnp.zeros_like(distances)  # a single centre has no tournament
    counts = member.sum(axis=0)
    found = (counts > 0).astype(jnp.float32)
    sums = member.T @ X
    return (sums / (counts + 1 - found)[:, None]) * found[:, None] + centres * (1 - found[:, None])


def descend(X: Any, coefficients: Any) -> Any:
    """Return coefficients after one step of gradient descent on the mean log loss, of rate 2."""
    import jax

    design, labels = X[:, :-1], X[:, -1:]
    error = jax.nn.sigmoid(design @ coefficients) - labels
    return coefficients - design.T @ error * (2.0 / X.shape[0])


def scores(X: Any, state: Any, activation: Any) -> Any:
    """Return the weights, and behind them the scores of all rows, in one column."""
    import jax.numpy as jnp

    weights, layer = state[: -X.shape[0] * LAYERS[-1]], X
    place = 0
    for n_in, n_out in pairwise(LAYERS):
        layer = layer if place == 0 else activation(layer)
        matrix = weights[place : place + n_in * n_out].reshape(n_in, n_out)
        place += n_in * n_out
        layer = layer @ matrix + weights[place : place + n_out].reshape(1, n_out)
        place += n_out
    return jnp.concatenate([weights, layer.reshape(-1, 1)])


def quadratic(X: Any, state: Any) -> Any:
    """Return the scores of a network whose activation is ReLU's quadratic on [-4, 4]."""
    return scores(X, state, lambda z: 0.375 + z * (0.5 + 0.1171875 * z))


def relu(X: Any, state: Any) -> Any:
    """Return the scores of a network with exact ReLU."""
    import jax.numpy as jnp

    return scores(X, state, lambda z: jnp.maximum(z, 0))


PROGRAMS = {"kmeans": step, "logistic": descend, "quadratic": quadratic, "relu": relu}


def play(
    rank: int,
    ports: Sequence[int],
    protocol: str,
    iterations: int,
    program: str,
    shares: Mapping[str, Any],
    log: str,
    answers: Any,
) -> None:
    """Play one party: time each iteration, and have SPU report the bytes of one more."""
    import spu  # type: ignore[import-not-found]  # of another environment
    from spu import libspu
    from spu.utils import frontend  # type: ignore[import-not-found]

    with open(log, "wb") as file:  # SPU writes what it reports past Python
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    shapes = [np.empty(shares[name][1], np.float32) for name in ("X", "centres")]
    executable, _ = frontend.compile(
        frontend.Kind.JAX,
        PROGRAMS[program],
        shapes,
        {},
        ["X", "centres"],
        [libspu.Visibility.VIS_SECRET] * 2,
        lambda outputs: [f"out{index}" for index in range(len(outputs))],
    )
    description = libspu.link.Desc()
    description.recv_timeout_ms = 3_600_000
    for index, port in enumerate(ports):
        description.add_party(f"party{index}", f"127.0.0.1:{port}")
    link = libspu.link.create_brpc(description, rank)
    seconds = []
    for profile, repeats in ((False, iterations + 1), (True, 1)):  # the first one warms up
        runtime = spu.Runtime(link, _config(libspu, protocol, profile))
        runtime.set_var("X", shares["X"][0])
        runtime.set_var("centres", shares["centres"][0])
        for _ in range(repeats):
            link.barrier()
            begun = time.perf_counter()
            runtime.run(executable)
            link.barrier()
            seconds.append(time.perf_counter() - begun)
            result = runtime.get_var("out0")
            runtime.set_var("centres", result)
        if not profile:
            answers.put((rank, result, seconds[1:]))
    link.stop_link()


def _config(libspu: Any, protocol: str, profile: bool = False) -> Any:
    config = libspu.RuntimeConfig(
        protocol=getattr(libspu.ProtocolKind, protocol),
        field=libspu.FieldType.FM64,
        fxp_fraction_bits=FRACTION_BITS,
    )
    config.max_concurrency = 1
    config.enable_pphlo_profile = profile
    return config


def main(protocol: str, iterations: int, file: str, program: str = "kmeans") -> None:
    """Deal shares, start the parties, and write what they found."""
    import spu
    from spu import libspu

    world = PARTIES[protocol]
    with np.load(file) as archive:
        tables = {name: archive[name].astype(np.float32) for name in ("X", "centres")}
    io = spu.Io(world, _config(libspu, protocol))
    dealt = {name: io.make_shares(v, libspu.Visibility.VIS_SECRET) for name, v in tables.items()}
    context = get_context("spawn")
    answers = context.Queue()
    ports = _free_ports(world)
    with tempfile.TemporaryDirectory() as folder:
        logs = [str(Path(folder) / f"{rank}.log") for rank in range(world)]
        parties = []
        for rank, log in enumerate(logs):
            own = {name: (shares[rank], tables[name].shape) for name, shares in dealt.items()}
            arguments = (rank, ports, protocol, iterations, program, own, log, answers)
            parties.append(context.Process(target=play, args=arguments))
            parties[-1].start()
        try:
            found = sorted((answers.get(timeout=TIMEOUT) for _ in parties), key=lambda a: a[0])
            for party in parties:
                party.join(TIMEOUT)
        finally:
            for party in parties:
                party.kill()
        reports = [Path(log).read_text("utf-8", "replace") for log in logs]
    sent = [re.findall(r"total send bytes (\d+)", report) for report in reports]
    document = {
        "seconds": [max(times) for times in zip(*(answer[2] for answer in found), strict=True)],
        "bytes": sum(int(numbers[-1]) for numbers in sent) if all(sent) else None,
        "centres": np.asarray(io.reconstruct([answer[1] for answer in found])).tolist(),
        "spu": spu.__version__,
    }
    sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:5])
