"""Time and memory of a whole fit, for each method, beside scikit-learn's KMeans.

    python benchmarks/methods.py --data FOLDER [--methods NAME ...] [--tables NAME ...]

prints a Markdown table and writes JSON. Every cell is a process of its own, with one thread: it
reads the table, fits the method, then fits scikit-learn's KMeans as it comes (one start), so both
times are of the same process. Times are of the CPU, the least of several; memory is how far the fit
raised what the process had with the table in memory. The table is scaled to the box before, and
bounds are the box.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parent))  # where another script imports this one

from run import machine, peak

from cloister import DPKMeans
from cloister.estimators.kmeans import kmeans_tasks
from cloister_lab.curator import METHODS as CURATORS
from cloister_lab.experiments.datasets import load
from cloister_lab.experiments.sweep import release

TABLES = ("s1", "adult", "mnist_t10k")
METHODS = (*kmeans_tasks(), *CURATORS)
EPSILON = 1.0
ENOUGH = 3.0  # seconds after which a fit is not repeated
TIMEOUT = 900.0
BARS = {("auto", "adult"): 0.5, ("auto", "mnist_t10k"): 4.0}
"""Seconds that a fit may take."""


@dataclass(frozen=True)
class Cell:
    """One fit beside its peer; without `seconds` where the method refused the table.

    Parameters
    ----------
    seconds, peer_seconds : float or None
        Of the CPU.
    megabytes : float or None
        By which the fit raised resident memory at its peak.
    """

    method: str
    table: str
    seconds: float | None = None
    peer_seconds: float | None = None
    megabytes: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float:
        """Our time over the peer's."""
        if self.seconds is None or self.peer_seconds is None:
            return math.nan
        return self.seconds / self.peer_seconds

    @property
    def holds(self) -> bool | None:
        """Whether the bar is cleared; None where there is none."""
        bar = BARS.get((self.method, self.table))
        return None if bar is None or self.seconds is None else self.seconds <= bar


def measure(method: str, table: str, folder: Path | None) -> Cell:
    """Fit one method to one table in this process."""
    data = load(table, convention="fastlloyd-paper", data_dir=folder)
    X = data.values.astype(np.float32)

    def fit() -> None:
        if method in CURATORS:
            release(data, method, EPSILON, 0)
        else:
            DPKMeans(
                data.n_clusters,
                epsilon=EPSILON,
                bounds=(-1, 1),
                nominal_n=data.nominal_n,
                algorithm=method,
                random_state=0,
            ).fit(X)

    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # reading the table had a peak, too; this begins anew (Linux only)
        Path("/proc/self/clear_refs").write_text("5")
        before = peak()
        first = _least(fit, repeats=1)
        raised = peak() - before
        ours = first if first > ENOUGH else min(first, _least(fit))
        peer = _least(lambda: KMeans(data.n_clusters, random_state=0).fit(X))
    return Cell(method, table, ours, peer, raised)


def _least(function: Callable[[], object], repeats: int = 3) -> float:
    """Return the least CPU time of several calls; a long one is made once."""
    times: list[float] = []
    while len(times) < repeats and sum(times) < ENOUGH:
        begun = time.process_time()
        function()
        times.append(time.process_time() - begun)
    return min(times)


def measure_apart(method: str, table: str, folder: Path | None) -> Cell:
    """Measure in a process of its own; a method that ends badly has a note instead of a time."""
    command = [sys.executable, __file__, "--one", method, table]
    command += ["--data", str(folder)] if folder else []
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, env=_one_thread(), check=False
        )
    except subprocess.TimeoutExpired:
        return Cell(method, table, note=f"more than {TIMEOUT:.0f} s")
    if done.returncode:
        last = (done.stderr.strip() or "no word").splitlines()[-1]
        return Cell(method, table, note=last.removeprefix("cloister.core.errors.PlanError: "))
    return Cell(**json.loads(done.stdout.splitlines()[-1]))


def _one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def line(cell: Cell) -> str:
    """Return a row of the table."""
    if cell.seconds is None or cell.peer_seconds is None or cell.megabytes is None:
        return f"| {cell.method} | {cell.table} | | | | | {cell.note} |"
    verdict = {None: "", True: "holds", False: "MISSED"}[cell.holds]
    bar = BARS.get((cell.method, cell.table))
    return (
        f"| {cell.method} | {cell.table} | {cell.seconds:.3g} s | {cell.peer_seconds:.3g} s | "
        f"{cell.ratio:.3g} | {cell.megabytes:.0f} MB | "
        f"{'' if bar is None else f'{bar:g} s: {verdict}'} |"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run, print, write; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--tables", nargs="+", default=TABLES)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("methods.json"))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.one:
        print(json.dumps(asdict(measure(*args.one, args.data))))
        return 0
    print("| method | table | fit | scikit-learn | ratio | memory | bar |")
    print("|---|---|---|---|---|---|---|")
    cells = []
    for table in args.tables:
        for method in args.methods:
            cells.append(measure_apart(method, table, args.data))
            print(line(cells[-1]), flush=True)
    document = {
        "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("cloister", "numpy", "scikit-learn")},
        "results": [asdict(cell) for cell in cells],
    }
    args.out.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if any(cell.holds is False for cell in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
