"""Linked tables: a join on shares, shrinking and a table, by number of rows.

    python benchmarks/linking.py [ROWS ...] [--logistic] [--peer] [--delay MS] [--seeds 3]

Server 0, server 1 and the dealer are three processes with sealed TCP links over loopback. Each side
has ROWS rows, of which 30 % are persons of both, with five numbers, a category, and at one side a
label. Wall seconds depend on the load of the machine; CPU seconds, bytes and rounds do not.

With `--delay`, a relay carries all links and delays every byte by so many milliseconds. The table
has the same runs without it, and the mean and the range over seeds.

With `--peer`, the private set intersection of SecretFlow's SPU runs beside, on keys of the same
number, in an environment that cloister-lab makes. It shows its receiver which persons both have;
the program shows no party.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from share_processes import Outcome, run_each, run_processes

from cloister.shares.linking import Column, Linked
from cloister.shares.linking.rows import Prepared

_NUMBERS = [[{"name": f"{side}{i}", "high": 1.0} for i in range(5)] for side in "xz"]
_SIDES = (
    [*_NUMBERS[0], {"name": "group", "categories": ["a", "b", "c", "d"]}],
    [
        *_NUMBERS[1],
        {"name": "y", "categories": ["false", "true"]},
        {"name": "shop", "categories": ["p", "q", "r", "s"]},
    ],
)


def program(rows: int, analyses: Sequence[dict[str, Any]]) -> Linked:
    """Return the program for two tables of so many rows."""
    return Linked(
        key="id",
        parts=({"rule": "digits"},),
        sides={
            name: {"rows": rows, "key": ["id"], "columns": columns}
            for name, columns in zip("ab", _SIDES, strict=True)
        },
        analyses=tuple(analyses),
        epsilon=1.0,
        keys_per_person=1,
    )


def uploads(linked: Linked, rows: int, seed: int = 0) -> list[Any]:
    """Return the tables of both owners, tags included."""
    draw = np.random.default_rng(seed)
    common = round(0.3 * rows)
    ids = np.arange(2 * rows - common)
    own = ids[:rows], np.concatenate([ids[:common], ids[rows:]])
    tables = []
    for who, side in zip(own, linked.frame.sides.values(), strict=True):
        values = np.column_stack([_values(column, rows, draw) for column in side.columns])
        keys = [(str(key),) for key in who.tolist()]
        tables.append(Prepared(side, keys, side.packed(values)).tagged(bytes(32), "bench"))
    return tables


def _values(column: Column, rows: int, draw: np.random.Generator) -> Any:
    levels = len(column.categories)
    return draw.integers(levels, size=rows).astype(float) if levels else draw.random(rows)


def measure(rows: int, analyses: Sequence[dict[str, Any]]) -> None:
    """Run the three parties once and print what it took."""
    linked = program(rows, analyses)
    start = time.process_time()
    tables = dict(zip(linked.frame.sides, uploads(linked, rows), strict=True))
    owners = (time.process_time() - start) / 2
    done = run_processes(linked, tables, timeout=3600.0)
    size = linked.found(done.results).size.value
    cpu, peak = max(done.server_cpu_s), max(done.server_peak_mb)
    print(
        f"{rows} a side: {done}; upload {done.bytes_up / 1e6:.2f} MB, a server's CPU {cpu:.2f} s "
        f"and memory {peak:.0f} MB, an owner's CPU {owners:.2f} s; persons {size:g} for "
        f"{round(0.3 * rows)}",
        flush=True,
    )


def measure_delay(
    rows: int, analyses: Sequence[dict[str, Any]], delays: Sequence[float], seeds: int
) -> None:
    """Print a row for each delay in milliseconds: seconds, their range, rounds, MB each way."""
    linked = program(rows, analyses)
    runs: dict[float, list[Outcome]] = {delay: [] for delay in delays}
    for seed in range(seeds):
        tables = dict(zip(linked.frame.sides, uploads(linked, rows, seed), strict=True))
        # One after the other, so that the load of the machine is about the same for both.
        for delay, done in runs.items():
            done += run_each(linked, tables, timeout=3600.0, delay=delay / 1000)
    for delay, done in runs.items():
        seconds = [one.online_s for one in done]
        cpu = [max(one.server_cpu_s) for one in done]
        print(
            f"| {rows:,} | {delay:g} | {np.mean(seconds):.2f} ({min(seconds):.2f} to "
            f"{max(seconds):.2f}) | {np.mean(cpu):.2f} | {done[0].rounds} | "
            f"{done[0].bytes_between / 1e6:.1f} | {done[0].bytes_dealt / 1e6:.1f} |",
            flush=True,
        )


def measure_peer(rows: int) -> None:
    """Run SPU's intersections once and print what they took."""
    from cloister_lab.experiments.environments import json_of
    from cloister_lab.experiments.table3 import spu_python

    python = spu_python(fetch=True)
    script = str(Path(__file__).with_name("linking_peer.py"))
    for protocol in ("PROTOCOL_ECDH", "PROTOCOL_RR22"):
        command = [str(python), "-P", script, protocol, str(rows), str(round(0.3 * rows))]
        done = json_of(command, dict(os.environ)) if isinstance(python, Path) else python
        if isinstance(done, str):
            print(f"{rows} a side, SPU {protocol}: {done}", flush=True)
            continue
        print(
            f"{rows} a side, SPU {protocol}: {done['wall']:.2f} s, a party's CPU {done['cpu']:.2f} "
            f"s; {done['common']} persons of both, known to the receiver",
            flush=True,
        )


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("rows", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--logistic", action="store_true", help="also 24 steps on ten columns")
    parser.add_argument("--peer", action="store_true", help="also SPU's private set intersection")
    parser.add_argument("--delay", type=float, metavar="MS", help="of every byte, each way")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each delay")
    args = parser.parse_args()
    analyses: list[dict[str, Any]] = [{"kind": "table", "of": ["group", "shop"]}]
    if args.logistic:
        names = [column["name"] for side in _NUMBERS for column in side]
        analyses.append({"kind": "logistic", "of": names, "target": "y"})
    if args.delay:
        heads = ("rows a side", "delay, ms", "seconds (range)", "CPU s of a server", "rounds")
        print("| " + " | ".join((*heads, "MB each way", "MB dealt")) + " |\n" + "|---" * 7 + "|")
        for rows in args.rows:
            measure_delay(rows, analyses, (0.0, args.delay), args.seeds)
        return
    for rows in args.rows:
        measure(rows, analyses)
        if args.peer:
            measure_peer(rows)


if __name__ == "__main__":
    main()
