"""What does a round of many silos cost on one machine? Milliseconds, processor, writes, bytes.

    python benchmarks/rounds_of_silos.py [--silos 32] [--rounds 20] [--jobs 3]

Parties are processes with certificates and ledgers on loopback, and each silo has 100 records. A
job runs `rounds` rounds of k-means under pairwise masks. Milliseconds are those of the coordinator
from start to end, so they contain the agreement on keys. Processor time, calls of write and written
bytes are those of the processes, from ``/proc`` (Linux); `--strace` counts calls that wait for the
disk, and slows the rounds.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

from cloister.app.job import make_plan
from cloister.data.schema import Column, Schema
from cloister.federation.local import LocalFederation
from cloister.privacy.budget import Budget
from cloister.tasks import TASKS

ROWS = 100
SCHEMA = Schema(
    dataset="points",
    unit="row",
    columns=tuple(Column(name=name, type="number", min=-1, max=1) for name in ("a", "b")),
)


def cost(process: int) -> np.ndarray:
    """Return processor milliseconds, calls of write and bytes written of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    counts = dict(re.findall(r"(\w+): (\d+)", Path(f"/proc/{process}/io").read_text()))
    return np.array([1000 * seconds, int(counts["syscw"]), int(counts["wchar"])])


def costs(federation: LocalFederation) -> dict[str, np.ndarray]:
    """Return the costs of all parties so far."""
    return {name: cost(party.pid) for name, party in federation.processes.items()}


def traced(process: int, out: Path) -> subprocess.Popen[bytes]:
    """Count the calls of a process that wait for the disk, until it is interrupted."""
    calls = "trace=fsync,fdatasync,sync_file_range"
    return subprocess.Popen(
        ["strace", "-q", "-f", "-c", "-e", calls, "-o", out, "-p", str(process)]
    )


def main() -> None:
    """Run the jobs and print a line for each, and the median."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--silos", type=int, default=32)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--jobs", type=int, default=3)
    options.add_argument("--strace", action="store_true")
    chosen = options.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder, tables = Path(name), {}
        for i in range(chosen.silos):
            tables[f"s{i}"] = folder / f"s{i}.csv"
            points = np.clip(rng.normal(0, 0.4, (ROWS, 2)), -1, 1)
            np.savetxt(tables[f"s{i}"], points, "%.5f", ",", header="a,b", comments="")
        waits = {"grace": 120.0, "round_timeout": 120.0}
        policies = {silo: {"tasks": ["fastlloyd"], "max_epsilon_per_job": 50.0} for silo in tables}
        with LocalFederation(
            folder / "f", SCHEMA, tables, cap_epsilon=1e3, policies=policies, coordinator=waits
        ) as federation:
            federation.start()
            federation.wait_connected()
            times = [run(federation, chosen.rounds, folder if chosen.strace else None)]
            times += [run(federation, chosen.rounds, None) for _ in range(chosen.jobs - 1)]
            print(f"median {median(times):.0f} ms a round, {chosen.silos} silos")


def run(federation: LocalFederation, rounds: int, trace: Path | None) -> float:
    """Run a job; print what a round cost, and return its milliseconds."""
    silos = tuple(federation.tables)
    plan = make_plan(
        TASKS["fastlloyd"],
        SCHEMA,
        silos,
        budget=Budget(1.0, 1e-6),
        nominal_n=ROWS * len(silos),
        profile="pairwise",
        fingerprints=[federation.fingerprints[silo] for silo in silos],
        n_clusters=3,
        public_seed=1,
        rounds=rounds,
    )
    parties = {"coordinator": "the coordinator", silos[0]: "one silo"}
    tracers = {
        name: traced(federation.processes[name].pid, trace / name) for name in parties if trace
    }
    before = costs(federation)
    ended = federation.wait_job(federation.propose(plan))
    spent = {name: (now - before[name]) / plan.rounds for name, now in costs(federation).items()}
    if ended["state"] != "done":
        raise SystemExit(f"the job is {ended['state']}: {ended['reason']}")
    milliseconds = 1000 * (ended["ended_at"] - ended["started_at"]) / plan.rounds
    print(f"{milliseconds:.0f} ms a round, load {os.getloadavg()[0]:.1f}")
    of_silos = np.median([spent[silo] for silo in silos], axis=0)
    for name, (processor, writes, size) in (
        ("coordinator", spent["coordinator"]),
        ("median silo", of_silos),
    ):
        print(f"  {name}: {processor:.1f} ms of processor, {writes:.0f} writes, {size:.0f} bytes")
    for name, tracer in tracers.items():
        tracer.send_signal(signal.SIGINT)
        tracer.wait()
        column = r"^ *\S+ +\S+ +\d+ +(\d+) +(?:\d+ +)?(f\w*sync)$"  # of calls, after those of time
        calls = re.findall(column, (trace / name).read_text(), re.MULTILINE)
        waits = {call: int(count) / plan.rounds for count, call in calls}
        print(f"  {parties[name]} waits for the disk: {waits}")
    return milliseconds


if __name__ == "__main__":
    main()
