"""Rounds over the network beside a bare echo, memory at rest, and a whole job, on loopback.

    python benchmarks/federation.py [--out benchmarks/federation.json] [--silos 2 8 32]

Real processes with certificates. The peer of a round is an echo of the same bytes in the same
legs: a plain asyncio server of the `websockets` library over mutual TLS, and clients that are
processes of their own with the same client library as a silo's agent. Ledgers are on tmpfs where
the bar is; on a disk beside it. Processor time of a round, which a busy machine changes little, is
what a long job costs a process more than a short one, for each round more (Linux only).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from cloister.app.job import make_plan
from cloister.data.schema import Column, Schema
from cloister.federation.local import LocalFederation
from cloister.federation.pki import KeyFolder, local_federation, server_context
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.tasks.clustering.kmeans import FastLloyd

ROUNDS, SHORT, WARM, JOBS, KIB = 40, 4, 3, 3, 1024
SHAPE: Mapping[str, object] = {"n_clusters": 128, "rounds": ROUNDS}
WORDS = 10 * KIB // 8  # 128 clusters of 9 columns and a count
BARS = {"round": 4.0, "coordinator": 150.0, "agent": 120.0, "job": 3.0}


@dataclass(frozen=True)
class Result:
    """One measurement; `ratio` is to the echo of the same run."""

    what: str
    value: float
    unit: str
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    bar: str = ""
    holds: bool | None = None


def schema(d: int) -> Schema:
    columns = tuple(Column(name=f"x{i}", type="number", min=-1.0, max=1.0) for i in range(d))
    return Schema(dataset="bench", unit="row", columns=columns)


def tables(folder: Path, silos: int, rows: int, d: int) -> dict[str, Path]:
    rng, found = np.random.default_rng(0), {}
    for i in range(silos):
        found[f"silo-{i:02d}"] = folder / f"silo-{i:02d}.csv"
        np.savetxt(
            found[f"silo-{i:02d}"],
            rng.uniform(-1, 1, (rows, d)),
            delimiter=",",
            header=",".join(f"x{j}" for j in range(d)),
            comments="",
        )
    return found


def planned(federation: LocalFederation, profile: str, **options: object) -> Plan:
    silos = tuple(federation.tables)
    return make_plan(
        FastLloyd,
        federation.schema,
        silos,
        budget=Budget(1.0, 1e-6),
        nominal_n=5000,
        profile=profile,  # type: ignore[arg-type]
        fingerprints=[federation.fingerprints[name] for name in silos],
        estimate=False,  # the rounds of the published method
        **options,
    )


def resident(pid: int) -> float:
    """Return a process's resident memory in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) / KIB if found else float("nan")


def used(pids: Mapping[str, int]) -> dict[str, float]:
    """Return the processor seconds of processes so far, to the nanosecond, by Linux's clocks."""
    return {name: time.clock_gettime(~pid << 3 | 2) for name, pid in pids.items()}


def round_times(log: Path, job: str) -> list[float]:
    """Return the seconds between the ends of a job's rounds, from the coordinator's log."""
    ends = []
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        if entry.get("job") == job and re.match(r"round \d+ of", entry["message"]):
            ends.append(datetime.fromisoformat(entry["at"]).timestamp())
    return [b - a for a, b in pairwise(ends)]


# --- the echo -------------------------------------------------------------------------------------


def legs(plan: Plan, profile: str) -> list[tuple[int, int]]:
    """Return bytes down and up of each leg of a round."""
    n = len(plan.silos)
    head, vector, confirm = 76, 8 * plan.length(0), 130
    confirmations = 2 + n * confirm
    opened = n * 34 if profile == "pairwise" else 0
    result = [
        (head + confirmations + opened, head + 32 + vector),
        (head + 2 + 2 * n + vector, head + 128),
    ]
    if profile == "pairwise":
        result.append((head + confirmations, head + 66 * n))
    return result


ECHO_CLIENT = """
import sys
from websockets.sync.client import connect
from cloister.federation.pki import KeyFolder, client_context
with connect(sys.argv[1], ssl=client_context(KeyFolder(sys.argv[2])), compression=None,
             max_size=None, proxy=None) as stream:
    for message in stream:
        stream.send(message[4:4] + bytes(int.from_bytes(message[:4], "big")))
"""


def echo(
    folder: Path, silos: int, pattern: Sequence[tuple[int, int]], rounds: int
) -> tuple[list[float], float]:
    """Return the seconds of rounds of bare request and answer, and all processes' time of one."""
    from websockets.asyncio.server import ServerConnection, serve

    names = [f"silo-{i:02d}" for i in range(silos)]
    keys = local_federation(folder, names)
    times: list[float] = []
    cpu: list[float] = []

    async def main() -> None:
        streams: list[ServerConnection] = []
        everybody, over = asyncio.Event(), asyncio.Event()

        async def taken(stream: ServerConnection) -> None:
            streams.append(stream)
            if len(streams) == silos:
                everybody.set()
            await over.wait()

        context = server_context(KeyFolder(keys["coordinator"]))
        async with serve(
            taken, "127.0.0.1", 0, ssl=context, compression=None, max_size=None
        ) as server:
            port = server.sockets[0].getsockname()[1]
            clients = [
                subprocess.Popen(
                    [sys.executable, "-c", ECHO_CLIENT, f"wss://localhost:{port}/", str(keys[name])]
                )
                for name in names
            ]
            await everybody.wait()
            pids = {"server": os.getpid()} | {str(c.pid): c.pid for c in clients}
            for t in range(rounds):
                if t in (WARM, rounds - 1):
                    cpu.append(sum(used(pids).values()))
                begun = time.perf_counter()
                for down, up in pattern:
                    request = up.to_bytes(4, "big") + bytes(down - 4)
                    await asyncio.gather(*(stream.send(request) for stream in streams))
                    await asyncio.gather(*(stream.recv() for stream in streams))
                times.append(time.perf_counter() - begun)
            over.set()
        for client in clients:
            client.terminate()
            client.wait()

    asyncio.run(main())
    return times[WARM:], (cpu[1] - cpu[0]) / (rounds - 1 - WARM)


# --- what is measured -----------------------------------------------------------------------------


def rounds_and_memory(silos: Sequence[int], folders: Mapping[str, Path]) -> Iterator[Result]:
    """Time rounds of 10 KiB vectors for several numbers of silos, both profiles."""
    for n in silos:
        for where, root in folders.items():
            with tempfile.TemporaryDirectory(dir=root) as name:
                folder = Path(name)
                data = tables(folder, n, rows=20, d=9)
                policies = {s: {"min_other_silos": 1} for s in data}
                with LocalFederation(
                    folder / "federation",
                    schema(9),
                    data,
                    100.0,
                    policies=policies,
                    poll_seconds=0.5,
                ) as federation:
                    federation.start()
                    federation.wait_connected(seconds=180)
                    time.sleep(1)
                    if where == "tmpfs":
                        yield from at_rest(federation, n)
                    for profile in ("group", "pairwise"):
                        short, _ = costs(federation, profile, SHORT)
                        long, taken = costs(federation, profile, ROUNDS)
                        cpu = {name: (long[name] - short[name]) / (ROUNDS - SHORT) for name in long}
                        pattern = legs(planned(federation, profile, **SHAPE), profile)
                        bare, bare_cpu = echo(folder / f"echo-{profile}", n, pattern, ROUNDS)
                        what = f"over HTTPS, {profile}, {n} silos, ledgers on {where}"
                        peer = "bare mutual-TLS echo of the same bytes and legs"
                        bar = BARS["round"] if where == "tmpfs" else None
                        yield beside(
                            f"round {what}, median", median(taken), peer, median(bare), bar
                        )
                        yield beside(f"round {what}, least", min(taken), peer, min(bare))
                        coordinator = cpu.pop("coordinator")
                        cpus = coordinator + sum(cpu.values())
                        yield beside(f"round {what}, processor, all", cpus, peer, bare_cpu)
                        yield beside(f"round {what}, processor, coordinator", coordinator)
                        yield beside(f"round {what}, processor, an agent", min(cpu.values()))


def costs(
    federation: LocalFederation, profile: str, rounds: int
) -> tuple[dict[str, float], list[float]]:
    """Return the processor seconds of each process in the cheapest of some jobs, and its rounds."""
    pids = {name: process.pid for name, process in federation.processes.items()}
    spent, taken = [], []
    for _ in range(JOBS):
        plan = planned(federation, profile, **SHAPE | {"rounds": rounds})
        assert plan.length(0) == WORDS
        before = used(pids)
        job = federation.propose(plan)
        shown = federation.wait_job(job, seconds=300)
        assert shown["state"] == "done", shown
        federation.wait_results(job)
        after = used(pids)
        spent.append({name: after[name] - before[name] for name in pids})
        taken += round_times(federation.log("coordinator"), job)[WARM:]
    return {name: min(one[name] for one in spent) for name in pids}, taken


def beside(
    what: str, ours: float, peer: str = "", bare: float | None = None, bar: float | None = None
) -> Result:
    """Return a time in milliseconds beside that of the echo."""
    if bare is None:
        return Result(what, 1e3 * ours, "ms")
    ratio = ours / bare
    holds = None if bar is None else ratio <= bar
    text = "" if bar is None else f"ratio <= {bar:g}"
    return Result(what, 1e3 * ours, "ms", peer, 1e3 * bare, ratio, text, holds)


def at_rest(federation: LocalFederation, n: int) -> Iterator[Result]:
    """Measure resident memory before any data are read."""
    for role, names in (("coordinator", ["coordinator"]), ("agent", list(federation.tables)[:1])):
        value = resident(federation.processes[names[0]].pid)
        yield Result(
            f"resident memory of the {role}, {n} silos connected, before data",
            value,
            "MiB",
            bar=f"<= {BARS[role]:g} MiB",
            holds=value <= BARS[role],
        )


def whole_job(folders: Mapping[str, Path], s1: Path) -> Iterator[Result]:
    """Time seven FastLloyd rounds on s1 with three silos, from proposal to all results."""
    X = np.loadtxt(s1, delimiter=",", skiprows=1, usecols=(0, 1))
    X = 2 * (X - X.min(0)) / (X.max(0) - X.min(0)) - 1  # public benchmark data
    with tempfile.TemporaryDirectory(dir=folders["disk"]) as name:
        folder, data = Path(name), {}
        for i in range(3):
            data[f"silo-{i}"] = folder / f"silo-{i}.csv"
            np.savetxt(data[f"silo-{i}"], X[i::3], delimiter=",", header="x0,x1", comments="")
        policies = {s: {"min_other_silos": 1} for s in data}
        with LocalFederation(
            folder / "federation", schema(2), data, cap_epsilon=100.0, policies=policies
        ) as federation:
            federation.start()
            federation.wait_connected(seconds=60)
            for attempt in ("first job of the agents", "later job"):
                for profile in ("group", "pairwise"):
                    plan = planned(federation, profile, n_clusters=15, rounds=7)
                    begun = time.perf_counter()
                    job = federation.propose(plan)
                    federation.wait_job(job, seconds=60)
                    federation.wait_results(job)
                    value = time.perf_counter() - begun
                    yield Result(
                        f"7 FastLloyd rounds on s1, 3 silos, {profile}, from proposal to results, "
                        f"{attempt}",
                        value,
                        "s",
                        bar=f"< {BARS['job']:g} s",
                        holds=value < BARS["job"],
                    )


def line(result: Result) -> str:
    verdict = {None: "", True: "holds", False: "MISSED"}[result.holds]
    peer = "" if result.peer_value is None else f"{result.peer_value:.3g} {result.unit}"
    ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
    value = f"{result.value:.3g} {result.unit}"
    cells = (result.what, value, peer, ratio, result.bar, verdict)
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    """Run everything, print a Markdown table, write JSON; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--silos", nargs="+", type=int, default=[2, 8, 32])
    parser.add_argument("--s1", type=Path, help="the s1 benchmark set, for the whole job")
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("federation.json"))
    args = parser.parse_args()
    folders = {"tmpfs": args.tmpfs, "disk": Path(tempfile.gettempdir())}
    print("| what | ours | bare echo | ratio | bar | |\n|---|---|---|---|---|---|")
    results = []
    parts = [rounds_and_memory(args.silos, folders)]
    if args.s1:
        parts.append(whole_job(folders, args.s1))
    for part in parts:
        for result in part:
            results.append(result)
            print(line(result), flush=True)
    document = {
        "machine": f"{os.cpu_count()}-core {platform.machine()} {platform.system()}",
        "python": platform.python_version(),
        "results": [asdict(result) for result in results],
    }
    args.out.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if any(result.holds is False for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
