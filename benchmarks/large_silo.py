"""One silo's records, more than memory should hold, clustered through the cache; memory over time.

    python benchmarks/large_silo.py [--rows 20000000] [--folder DIR] [--out large_silo.json]
        [--picture docs/results/large-silo.png]

Writes a mixture of normal clusters, eight float32 columns, as a folder of Parquet files without a
codec (that folder needs 32 bytes a row twice: for the files and for the cache), unless it lies
there from an earlier run. Then it reads the folder by a schema with `cache_dir`, and runs FastLloyd
for ten rounds. A thread notes what Linux says of this process's memory: anonymous is what nobody
can take back, pages of mapped files go when memory is short. Linux only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.data import read_source
from cloister.data.schema import Column, Schema
from cloister.privacy.budget import Budget
from cloister.tasks.clustering.kmeans import FastLloyd

COLUMNS, CLUSTERS, ROUNDS = 8, 10, 10
NAMES = tuple(f"x{j}" for j in range(COLUMNS))
FILE_ROWS, GROUP_ROWS = 10_000_000, 1_000_000
BAR = 300.0  # MiB of anonymous memory, whatever the rows
POINTS = 400  # of the curve that is kept
MIB = 1 << 20


@dataclass(frozen=True)
class Point:
    """The memory of this process at a time, in seconds and MiB."""

    at: float
    anonymous: float
    mapped: float


@dataclass(frozen=True)
class Phase:
    """What ran until when, by the clock and in seconds of the processor."""

    name: str
    start: float
    end: float
    cpu: float


@dataclass
class Watch:
    """Notes the memory of this process ten times a second, and the phases of the run."""

    start: float = field(default_factory=time.perf_counter)
    points: list[Point] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watch:
        self._since = self._now()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def done(self, name: str) -> None:
        """End a phase; the next one starts."""
        at, cpu = self._now()
        self.phases.append(Phase(name, self._since[0], at, cpu - self._since[1]))
        self._since = at, cpu

    def _now(self) -> tuple[float, float]:
        return time.perf_counter() - self.start, time.process_time()

    def _run(self) -> None:
        while not self._over.wait(0.1):
            text = Path("/proc/self/status").read_text()
            kib = {name: int(n) for name, n in re.findall(r"Rss(\w+):\s+(\d+) kB", text)}
            self.points.append(Point(self._now()[0], kib["Anon"] / 1024, kib["File"] / 1024))

    def curve(self) -> list[Point]:
        """Return few enough points to keep: of each stretch the one of most anonymous memory."""
        step = math.ceil(len(self.points) / POINTS)
        cut = range(0, len(self.points), max(step, 1))
        return [max(self.points[i : i + step], key=lambda p: p.anonymous) for i in cut]


def write_files(folder: Path, rows: int) -> None:
    """Write a mixture in the box [-1, 1] as Parquet files, part by part."""
    rng = np.random.default_rng(0)
    centres = rng.uniform(-0.8, 0.8, (CLUSTERS, COLUMNS)).astype(np.float32)
    schema = pa.schema([(name, pa.float32()) for name in NAMES])
    for first in range(0, rows, FILE_ROWS):
        last = min(first + FILE_ROWS, rows)
        file = folder / f"part-{first // FILE_ROWS:04d}.parquet"
        with pq.ParquetWriter(file, schema, compression="none", use_dictionary=False) as writer:
            for start in range(first, last, GROUP_ROWS):
                n = min(GROUP_ROWS, last - start)
                part = rng.standard_normal((n, COLUMNS), dtype=np.float32) * np.float32(0.1)
                part += centres[rng.integers(0, CLUSTERS, n)]
                columns = [pa.array(np.ascontiguousarray(column)) for column in part.T]
                writer.write_table(pa.table(columns, schema=schema), row_group_size=GROUP_ROWS)


def rows_in(folder: Path) -> int:
    """Return how many rows the files of a folder say they have."""
    return sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))


def cluster(data: Path, cache: Path, rows: int) -> Watch:
    """Read the files and run all rounds, watched."""
    schema = Schema(
        dataset="large",
        unit="row",
        columns=tuple(Column(name=name, type="number", min=-1, max=1) for name in NAMES),
    )
    plan = make_plan(
        FastLloyd,
        schema,
        ("silo",),
        budget=Budget(1.0, 1e-9),
        nominal_n=rows,
        n_clusters=CLUSTERS,
        rounds=ROUNDS,
        estimate=False,
    )
    with Watch() as watch:
        records = read_source(data, schema, cache_dir=cache)
        watch.done("read")
        run_plan(plan, {"silo": records}, on_round=lambda done: watch.done(f"round {done.round}"))
    return watch


def draw(watch: Watch, rows: int, file: Path) -> None:
    """Draw both kinds of memory over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    at = [point.at for point in watch.points]
    axes.plot(at, [point.mapped for point in watch.points], label="pages of mapped files", lw=1)
    axes.plot(at, [point.anonymous for point in watch.points], label="anonymous", lw=2)
    axes.axhline(BAR, color="grey", ls=":", lw=1, label="bar of anonymous memory")
    for phase in watch.phases:
        axes.axvline(phase.end, color="lightgrey", lw=0.8, zorder=0)
    axes.set(xlabel="seconds; a line ends reading and each round", ylabel="MiB", yscale="log")
    axes.set_title(f"{rows:,} records of {COLUMNS} columns, {CLUSTERS} clusters", fontsize=10)
    axes.legend(fontsize=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--folder", type=Path, help="for the files; kept (default: a passing one)")
    parser.add_argument("--out", type=Path, default=Path("large_silo.json"))
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as passing:
        data = args.folder or Path(passing, "data")
        data.mkdir(exist_ok=True)
        if rows_in(data) != args.rows:
            # in a process of its own, so that its memory is not ours
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
                apart.submit(write_files, data, args.rows).result()
        watch = cluster(data, Path(passing), args.rows)
        size = sum(file.stat().st_size for file in data.glob("*.parquet"))
    reading, *rounds = watch.phases
    peak = max(point.anonymous for point in watch.points)
    seconds = sorted(phase.end - phase.start for phase in rounds)
    cpu = sorted(phase.cpu for phase in rounds)
    found = {
        "machine": f"{os.cpu_count()}-core {platform.machine()} {platform.system()}",
        "python": platform.python_version(),
        "rows": args.rows,
        "columns": COLUMNS,
        "clusters": CLUSTERS,
        "bytes_of_files": size,
        "bytes_of_cache": args.rows * COLUMNS * 4,
        "read_seconds": reading.end - reading.start,
        "read_rows_a_second": args.rows / (reading.end - reading.start),
        "read_rows_a_cpu_second": args.rows / reading.cpu,
        "round_seconds": seconds[len(seconds) // 2],
        "round_rows_a_second": args.rows / seconds[len(seconds) // 2],
        "round_rows_a_cpu_second": args.rows / cpu[len(cpu) // 2],
        "peak_anonymous_mib": peak,
        "bar_mib": BAR,
        "holds": peak < BAR,
        "phases": [asdict(phase) for phase in watch.phases],
        "curve": [asdict(point) for point in watch.curve()],
    }
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    for name, value in found.items():
        if name not in ("phases", "curve"):
            print(f"{name:24}  {value}")
    if args.picture:
        draw(watch, args.rows, args.picture)


if __name__ == "__main__":
    main()
