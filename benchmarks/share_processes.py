"""A run on shares by real processes: a dealer and two servers over loopback TCP, links sealed.

    python benchmarks/share_processes.py [--rows 1000] [--repeats 3]

times a product of two tables. Other benchmarks call :func:`run_processes` with a program of theirs.
This process is owner and receiver of everything; a real session has a party for each
(``cloister compute``).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from delaying_relay import serve
from numpy.typing import NDArray

from cloister.core.memory import keep_freed_memory
from cloister.federation.transports.tcp import dial, let_in
from cloister.hazmat.ring import from_bytes, to_bytes
from cloister.hazmat.signing import Identity
from cloister.shares.mpc import (
    Dealer,
    Link,
    Server,
    Supply,
    combine,
    decode,
    encode,
    expand_share,
    split,
    times,
)
from cloister.shares.mpc.material import Sharing
from cloister.shares.mpc.sealed import seal

Words = NDArray[np.uint64]
TIMEOUT = 600.0
CLIENT, DEALER, SERVERS = "client", "dealer", ("server0", "server1")


class Runs(Protocol):
    """A program: a picklable value of a class that the processes can import."""

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Return this server's shares of the results."""
        ...


@dataclass(frozen=True)
class Outcome:
    """Results and cost of one run.

    Parameters
    ----------
    results : dict of ndarray, uint64
        Opened words, by name.
    online_s : float
        Wall seconds of the slower server, from having its shares to having sent its results; the
        dealer works meanwhile.
    total_s : float
        Wall seconds of the client, from splitting the tables to the combined results.
    server_cpu_s : (float, float)
        Of each server, in the online run.
    server_peak_mb : (float, float)
        Most memory of each server's process, MB.
    dealer_cpu_s : float
    rounds : int
    bytes_between : int
        That a server sent the other, the mean of both, sealing not counted (16 bytes a message).
    bytes_dealt : int
        From the dealer to both servers.
    bytes_up : int
        From the client to both servers.
    """

    results: dict[str, Words]
    online_s: float
    total_s: float
    server_cpu_s: tuple[float, float]
    server_peak_mb: tuple[float, float]
    dealer_cpu_s: float
    rounds: int
    bytes_between: int
    bytes_dealt: int
    bytes_up: int

    def __str__(self) -> str:
        return (
            f"online {self.online_s:.3f} s, with upload and result {self.total_s:.3f} s, dealer "
            f"CPU {self.dealer_cpu_s:.3f} s, {self.rounds} rounds, "
            f"{self.bytes_between / 1e6:.2f} MB each way between the servers, "
            f"{self.bytes_dealt / 1e6:.2f} MB dealt"
        )


@dataclass(frozen=True)
class Desk:
    """What a process needs to connect to the others; benchmarks only: seeds are no secrets here."""

    seeds: Mapping[str, bytes]
    addresses: Mapping[str, str]
    dialled: Mapping[str, str]  # others, if a relay stands before the servers

    def seal(self, name: str, peer: str, link: Link) -> Link:
        """Return a sealed link between two of the parties."""
        pin = Identity(self.seeds[peer]).fingerprint
        return seal(link, Identity(self.seeds[name]), name, peer, pin, "benchmark")

    def dial(self, stack: ExitStack, name: str, peer: str) -> Link:
        """Connect to a server."""
        link = stack.enter_context(closing(dial(self.dialled[peer], name, TIMEOUT)))
        return self.seal(name, peer, link)


def run_processes(
    program: Runs, tables: Mapping[str, Words], repeats: int = 1, timeout: float = TIMEOUT
) -> Outcome:
    """Return the fastest of some runs; see :func:`run_each`."""
    return min(run_each(program, tables, repeats, timeout), key=lambda done: done.online_s)


def run_each(
    program: Runs,
    tables: Mapping[str, Words],
    repeats: int = 1,
    timeout: float = TIMEOUT,
    delay: float = 0.0,
) -> list[Outcome]:
    """Run a program `repeats` times at fresh processes and return what each gave and cost.

    Parameters
    ----------
    program : Runs
        Its class is importable: defined in a module, not in a notebook or a function.
    tables : mapping of ndarray, uint64
        Encoded words by name; split here.
    delay : float
        Seconds that each byte takes from one process to another.
    """
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # three processes share the cores
    spawn = multiprocessing.get_context("spawn")
    ports, doors = ({name: _free_port() for name in SERVERS} for _ in range(2))
    there, dialled = (
        {name: f"127.0.0.1:{port}" for name, port in chosen.items()}
        for chosen in (ports, doors if delay else ports)
    )
    seeds = {name: Identity.new().seed for name in (CLIENT, DEALER, *SERVERS)}
    desk = Desk(seeds, there, dialled)
    shapes = {name: words.shape for name, words in tables.items()}
    routes = {doors[name]: ports[name] for name in SERVERS} if delay else {}
    work = [
        *(
            spawn.Process(target=serve, args=each, daemon=True)
            for each in [(routes, delay)] * bool(delay)
        ),
        spawn.Process(target=_deal, args=(desk, repeats), daemon=True),
        *(
            spawn.Process(target=_serve, args=(desk, i, program, shapes, repeats), daemon=True)
            for i in (0, 1)
        ),
    ]
    for process in work:
        process.start()
    try:
        with ExitStack() as stack:
            links = [desk.dial(stack, CLIENT, name) for name in SERVERS]
            sharing = getattr(program, "sharing", Sharing.SUM)
            return [_ask(links, tables, sharing) for _ in range(repeats)]
    finally:
        for process in work[bool(delay) :]:
            process.join(5)
        for process in work:
            process.terminate()


def _ask(links: Sequence[Link], tables: Mapping[str, Words], sharing: Sharing) -> Outcome:
    for link in links:
        assert link.receive() == b"ready"
    start, sent = time.perf_counter(), 0
    for words in tables.values():
        key, rest = split(words, sharing)
        body = to_bytes(rest.ravel())
        links[0].send(key)
        links[1].send(body)
        sent += len(key) + len(body)
    shares: list[dict[str, Words]] = []
    for link in links:
        shapes = json.loads(link.receive())
        shares.append(
            {
                name: from_bytes(link.receive(), int(np.prod(shape))).reshape(shape)
                for name, shape in shapes.items()
            }
        )
    total = time.perf_counter() - start
    first, second = (json.loads(link.receive()) for link in links)
    return Outcome(
        {name: combine(words, shares[1][name]) for name, words in shares[0].items()},
        online_s=max(first["seconds"], second["seconds"]),
        total_s=total,
        server_cpu_s=(first["cpu"], second["cpu"]),
        server_peak_mb=(first["peak"], second["peak"]),
        dealer_cpu_s=second["dealer"],
        rounds=first["rounds"],
        bytes_between=(first["bytes"] + second["bytes"]) // 2,
        bytes_dealt=first["dealt"] + second["dealt"],
        bytes_up=sent,
    )


def _deal(desk: Desk, repeats: int) -> None:
    keep_freed_memory()
    with ExitStack() as stack:
        links = [desk.dial(stack, DEALER, name) for name in SERVERS]
        for _ in range(repeats):
            before = time.process_time()
            Dealer((links[0], links[1])).serve()
            links[1].send(json.dumps(time.process_time() - before).encode())


def _serve(desk: Desk, index: int, program: Runs, shapes: Mapping[str, Any], repeats: int) -> None:
    keep_freed_memory()
    name, other = SERVERS[index], SERVERS[1 - index]
    expected = (CLIENT, DEALER, other) if index == 0 else (CLIENT, DEALER)
    with ExitStack() as stack:
        between = None if index == 0 else desk.dial(stack, name, other)
        links: dict[str, Link] = {}
        came = let_in(
            desk.addresses[name], expected, lambda peer, link: desk.seal(name, peer, link), TIMEOUT
        )
        for peer, (carrier, link) in came.items():
            stack.enter_context(closing(carrier))
            links[peer] = link
        client, dealer = links[CLIENT], links[DEALER]
        for _ in range(repeats):
            server = Server(index, between or links[other], Supply(index, dealer))
            client.send(b"ready")
            tables = {
                table: expand_share(client.receive(), shape)
                if index == 0
                else from_bytes(client.receive(), int(np.prod(shape))).reshape(shape)
                for table, shape in shapes.items()
            }
            start, cpu = time.perf_counter(), time.process_time()
            results = program.run(server, tables)
            results = {what: server.refresh(share) for what, share in results.items()}
            client.send(json.dumps({what: list(w.shape) for what, w in results.items()}).encode())
            for share in results.values():
                client.send(to_bytes(share.ravel()))
            spent = time.perf_counter() - start, time.process_time() - cpu
            server.supply.close()
            dealt = json.loads(dealer.receive()) if index == 1 else 0.0
            cost = {
                "seconds": spent[0],
                "cpu": spent[1],
                "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "rounds": server.cost.rounds,
                "bytes": server.cost.bytes_sent,
                "dealt": server.supply.bytes_received,
                "dealer": dealt,
            }
            client.send(json.dumps(cost).encode())


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@dataclass(frozen=True)
class Times:
    """The product of two tables, element by element."""

    name: ClassVar[str] = "times"

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Return this server's shares of the product."""
        return {"product": times(server, tables["x"], tables["y"])}


def main() -> None:
    """Time one product."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    x = np.linspace(-3, 3, options.rows * 30).reshape(options.rows, 30)
    done = run_processes(Times(), {"x": encode(x), "y": encode(x)}, options.repeats)
    print(done)
    print(f"largest error {np.abs(decode(done.results['product']) - x * x).max():.2g}")


if __name__ == "__main__":
    main()
