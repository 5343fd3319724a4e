"""Open connections to a real federation's port as any stranger can, and see who still gets in.

    python tests/chaos/flood.py --seconds 60 --rate 400
    python tests/chaos/flood.py --seconds 60 --rate 400 --shared --says hello

Everything stays on loopback. The strangers come from many addresses 127.x.y.z, or with ``--shared``
from the one that the parties have too, as behind a common router. They are silent, or begin TLS
and never go on. Meanwhile the analyst asks, a silo is killed and dials again, and a job runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cloister.app.job import make_plan
from cloister.core.errors import TransportError
from cloister.data.schema import Column, Schema
from cloister.federation.local import COORDINATOR, LocalFederation
from cloister.federation.service.listener import descriptors
from cloister.privacy.budget import Budget
from cloister.tasks import TASKS

SCHEMA = Schema(
    dataset="flood",
    unit="row",
    columns=(
        Column(name="a", type="number", min=-1, max=1),
        Column(name="b", type="number", min=-1, max=1),
    ),
)
SILOS = ("s0", "s1", "s2")
ROWS, OPEN_AT_ONCE = 200, 3000
WAYS = ("silent", "hello")


def strangers(port: int, seconds: float, rate: float, shared: bool, says: str) -> dict[str, int]:
    """Open `rate` connections a second and keep the newest; return how many were made."""
    descriptors(raised=True)
    hello = _client_hello() if says == "hello" else b""
    held: deque[socket.socket] = deque()
    counts = {"opened": 0, "failed": 0}
    start, due = time.monotonic(), time.monotonic()
    for number in itertools.count():
        now = time.monotonic()
        if now - start > seconds:
            break
        if due > now:
            time.sleep(due - now)
        due += 1 / rate
        one = socket.socket()
        try:
            one.setblocking(False)
            if not shared:
                one.bind(
                    (f"127.{1 + number // 62500 % 250}.{number // 250 % 250}.{1 + number % 250}", 0)
                )
            with suppress(BlockingIOError):
                one.connect(("127.0.0.1", port))
            if hello:
                with suppress(OSError):  # loopback: it is connected at once, or the queue is full
                    one.send(hello)
            counts["opened"] += 1
            held.append(one)
        except OSError:
            counts["failed"] += 1
            one.close()
        if len(held) > OPEN_AT_ONCE:
            held.popleft().close()
    for one in held:
        one.close()
    return counts


def _an_address(number: int) -> str:
    """Return one of the 15 million addresses of loopback that nobody here has."""
    return f"127.{1 + number // 62500 % 250}.{number // 250 % 250}.{1 + number % 250}"


def _client_hello() -> bytes:
    """Return what a client says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@contextmanager
def flood(port: int, seconds: float, rate: float, shared: bool, says: str) -> Iterator[Any]:
    """Run :func:`strangers` in a process of their own."""
    words = [str(port), str(seconds), str(rate), str(int(shared)), says]
    process = subprocess.Popen(
        [sys.executable, __file__, "--strangers", *words], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def memory(process: int) -> int:
    """Return the resident memory of a process, in MiB."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) // 1024
    return 0


def tables(folder: Path) -> dict[str, Path]:
    """Write a small table for each silo."""
    rng, paths = random.Random(1), {}
    for name in SILOS:
        paths[name] = folder / f"{name}.csv"
        rows = (f"{rng.uniform(-1, 1):.4f},{rng.uniform(-1, 1):.4f}\n" for _ in range(ROWS))
        paths[name].write_text("a,b\n" + "".join(rows))
    return paths


def beset(folder: Path, seconds: float, rate: float, shared: bool, says: str) -> dict[str, Any]:
    """Run a federation through a flood; return what was seen."""
    data = folder / "data"
    data.mkdir()
    with LocalFederation(folder / "federation", SCHEMA, tables(data), cap_epsilon=100.0) as there:
        there.start()
        there.wait_connected()
        coordinator = there.processes[COORDINATOR].pid
        seen: dict[str, Any] = {"memory before": memory(coordinator), "answers": [], "refused": 0}
        with flood(there.port, seconds, rate, shared, says) as outside:
            began, memories = time.monotonic(), [0]
            time.sleep(min(3.0, seconds / 10))
            there.kill("s0")
            there.start("s0")
            again, job = time.monotonic(), ""
            while time.monotonic() - began < seconds:
                memories.append(memory(coordinator))
                asked = time.monotonic()
                try:
                    with there.rest() as rest:
                        connected = {s["name"] for s in rest.silos() if s["connected"]}
                        shown = rest.job(job) if job else {}
                    seen["answers"].append(round(time.monotonic() - asked, 2))
                    if "s0" in connected:
                        seen.setdefault("silo back after", round(time.monotonic() - again, 1))
                        if not job:
                            job = there.propose(_plan(there))
                    if shown.get("state") == "done":
                        seen["job"] = "done"
                except TransportError:
                    seen["refused"] += 1
                time.sleep(0.5)
            seen["opened"] = json.loads(outside.communicate(timeout=60)[0] or "{}")
        seen["memory at most"] = max(memories)
        log = there.log(COORDINATOR).read_text(errors="replace")
        seen["log, bytes"] = len(log)
        lost = [json.loads(line) for line in log.splitlines() if '"disconnected"' in line]
        seen["streams lost"] = sum(line.get("silo") != "s0" for line in lost)
        answers = sorted(seen.pop("answers"))
        seen["answers"] = len(answers)
        if answers:
            seen["median, longest answer, s"] = (answers[len(answers) // 2], answers[-1])
    return seen


def _plan(there: LocalFederation) -> Any:
    return make_plan(
        TASKS["fastlloyd"],
        SCHEMA,
        SILOS,
        budget=Budget(1.0, 1e-6),
        nominal_n=ROWS * len(SILOS),
        profile="pairwise",
        fingerprints=[there.fingerprints[name] for name in SILOS],
        columns=("a", "b"),
        n_clusters=3,
        public_seed=1,
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=400.0)
    parser.add_argument("--shared", action="store_true", help="from the parties' own address")
    parser.add_argument("--says", choices=WAYS, default="silent")
    parser.add_argument("--strangers", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.strangers:
        port, seconds, rate, shared, says = args.strangers
        counts = strangers(int(port), float(seconds), float(rate), shared == "1", says)
        sys.stdout.write(json.dumps(counts))
        return
    if args.seconds > 300 or args.rate > 2000:
        parser.error("at most 300 seconds and 2000 connections a second; the machine is shared.")
    with tempfile.TemporaryDirectory() as folder:
        seen = beset(Path(folder), args.seconds, args.rate, args.shared, args.says)
    for name, value in seen.items():
        sys.stdout.write(f"{name:28} {value}\n")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
