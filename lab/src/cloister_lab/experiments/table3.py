"""FastLloyd's Table 3: time and bytes of an iteration, beside an exact secure k-means in SPU.

Both are measured one after the other on the same machine. Ours is a whole round over MPI: one
aggregator and two silos, local sums, masks, exact noise, both legs. SPU's is one iteration on
shares: distances, a tournament for the nearest centre, sums, divisions. SPU gives the exact
answer without any noise; ours is differentially private. One row of ours has the paper's delay
added to each leg; the others have none.
`cloister shares` is exact as well: two servers and a dealer, here as threads of one process, so
nothing is sent; its bytes are those of all messages, the dealer's included.

References
----------
.. [DHK24] A. Diaa, T. Humphries and F. Kerschbaum, arXiv:2405.02437, section 6.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from cloister.core.errors import DataError
from cloister.shares.mpc import combine, decode, run_here
from cloister.shares.mpc.training import KMeansOnShares
from cloister_lab.experiments import records as tidy
from cloister_lab.experiments import spu_kmeans
from cloister_lab.experiments.datasets import Dataset
from cloister_lab.experiments.environments import json_of, python_with, run_script
from cloister_lab.experiments.mixtures import Mixture
from cloister_lab.experiments.records import Cell, Key, TidyRow, Value
from cloister_lab.experiments.run import Settings, Unit, units_of
from cloister_lab.experiments.sweep import Source, tables
from cloister_lab.lloyd import lloyd

SPU_PACKAGES = ("spu==0.9.5", "jax==0.4.34", "jaxlib==0.4.34", "numpy==1.26.4")
"""What the environment of SPU is made of; it needs Python 3.11 on x86-64 Linux or a Mac."""

_OURS = ("fastlloyd", "auto")
_SILOS = 2
_DELAY = 0.25e-3
"""The paper's, of each message, in seconds."""

_PROBLEMS = ((10_000, 2, 2), (10_000, 2, 5), (10_000, 5, 2), (10_000, 5, 5))
_MANY = 100_000  # from so many records fewer iterations are timed
_LARGE = tuple((10 * n, d, k) for n, d, k in _PROBLEMS)
_TABLES = ("lsun", "s1")

_PAPER: Mapping[Key, tuple[float | None, float | None]] = {
    (10_000, 2, 2): (3.03, 10_500),
    (10_000, 2, 5): (4.32, 34_050),
    (10_000, 5, 2): (3.24, None),
    (10_000, 5, 5): (4.95, None),
    (100_000, 2, 2): (12.57, 105_120),
    (100_000, 2, 5): (22.05, 347_250),
    (100_000, 5, 2): (13.17, None),
    (100_000, 5, 5): (22.56, None),
    (400, 2, 3): (2.6, 1_481),
    (5_000, 2, 15): (5.81, 49_087),
}
"""Milliseconds of an iteration that [DHK24]_ Table 3 prints of FastLloyd and of MohLloyd; in five
columns it has none of MohLloyd. The machine is theirs; 0.25 ms are added to each message."""

_PAPER_WORD = 32
"""Bytes of each of the k (d + 1) numbers of an iteration that its printed bytes of FastLloyd are:
192 to 1,440."""


def units(settings: Settings) -> list[Unit]:
    """Return the units."""
    problems = (*_PROBLEMS, *_LARGE) if settings.full else ((300, 2, 3),)
    mixtures = [Mixture(n, d, k, 0.2, equal=True) for n, d, k in problems]
    sources: list[tuple[Source, int]] = [(m, m.n_samples) for m in mixtures]
    if settings.full:
        sources += [(table, 0) for table in tables(_TABLES, replace(settings, only=()))]
    return [
        unit
        for source, size in sources
        if settings.wants(source.name)
        for unit in units_of(
            measure,
            source=[source],
            iterations=[5 if size < _MANY else 2],
            fetch=[settings.full],  # the small version does not fetch a gigabyte
            repeat=range(settings.runs(3, 1)),
        )
    ]


def measure(source: Source, repeat: int, iterations: int, fetch: bool) -> list[TidyRow]:
    """Measure all systems on one problem, one after the other.

    Parameters
    ----------
    repeat, iterations : int
        The time of a system is the median of its iterations; beside it stands half of what lies
        between their quartiles.
    fetch : bool
        Make SPU's environment if it is not there. Where a system could not be run, `skipped` says
        why.
    """
    data = source.dataset()
    values = data.values
    rng = np.random.default_rng(repeat)
    centres = values[rng.choice(len(values), data.n_clusters, replace=False)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "problem.npz"
        np.savez(file, X=values, centres=centres)
        for method in _OURS:
            rows.append(_row(data, repeat, f"cloister {method}", 3, _over_mpi(file, method, 0.0)))
        late = _over_mpi(file, _OURS[0], _DELAY)
        rows.append(_row(data, repeat, f"cloister {_OURS[0]}, with delays", 3, late))
        shared = _on_shares(iterations, values, centres)
        rows.append(_row(data, repeat, "cloister shares", 1, shared))
        python = spu_python(fetch)
        for protocol, parties in spu_kmeans.PARTIES.items():
            found = _in_spu(python, protocol, iterations, values, centres)
            rows.append(_row(data, repeat, f"SPU {protocol}", parties, found))
    return rows


def _row(
    data: Dataset, repeat: int, system: str, parties: int, found: dict[str, Any] | str
) -> TidyRow:
    """Return one measurement, or why there is none."""
    row: dict[str, Value] = {
        "dataset": data.name,
        "n": len(data.records),
        "n_features": data.records.shape[1],
        "n_clusters": data.n_clusters,
        "method": system,
        "processes": parties,
        "repeat": repeat,
        **dict.fromkeys(("iterations", "seconds", "spread", "bytes", "error", "skipped")),
    }
    return row | ({"skipped": found} if isinstance(found, str) else found)


def _typical(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median, and half of what lies between the quartiles."""
    low, middle, high = np.quantile(seconds, (0.25, 0.5, 0.75)).tolist()
    return {"seconds": middle, "spread": (high - low) / 2}


def _over_mpi(file: Path, method: str, delay: float) -> dict[str, Any] | str:
    """Run whole jobs with ``mpirun``, and measure their rounds."""
    mpirun = Path(sys.executable).with_name("mpirun")
    known = str(mpirun) if mpirun.exists() else shutil.which("mpirun")
    if known is None:
        return "no mpirun; pip install 'cloister[mpi]'"
    # no trace of a job that we may run under, and a short folder for MPI's sockets
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))
    }
    command = [
        *(known, "-np", str(_SILOS + 1), "--allow-run-as-root", "--oversubscribe"),
        *(sys.executable, "-m", "mpi4py", "-m", "cloister_lab.experiments.mpi_kmeans"),
        *(str(file), method, str(delay)),
    ]
    done = json_of(command, {**clean, "OMP_NUM_THREADS": "1", "TMPDIR": "/tmp"})
    if isinstance(done, str):
        return done
    return {
        "iterations": len(done["seconds"]),
        **_typical(done["seconds"]),
        "bytes": int(median(done["bytes"])),
    }


def _on_shares(iterations: int, values: Any, centres: Any) -> dict[str, Any]:
    """Run our own exact k-means on shares; the time is that of all iterations over their number."""
    edge = float(np.abs(values).max())
    model = KMeansOnShares(
        owners=("all",),
        rows=len(values),
        low=(-edge,) * values.shape[1],
        high=(edge,) * values.shape[1],
        centres=tuple(map(tuple, centres.tolist())),
        iterations=iterations,
    )
    table = model.table(values)
    begun = perf_counter()
    found, servers = run_here(
        lambda server, share: model.run(server, {"all": share})["centres"], table, timeout=3600.0
    )
    seconds = perf_counter() - begun
    sent = sum(server.cost.bytes_sent + server.supply.bytes_received for server in servers)
    exact = lloyd(values, centres, iterations)
    return {
        "iterations": iterations,
        "seconds": seconds / iterations,
        "bytes": sent // iterations,
        "error": float(np.abs(exact - model.model(decode(combine(*found)))).max()),
    }


def _in_spu(
    python: Path | str, protocol: str, iterations: int, values: Any, centres: Any
) -> dict[str, Any] | str:
    """Run SPU's parties; the error is the largest distance from the exact centres."""
    arguments, arrays = [protocol, str(iterations), "FILE"], {"X": values, "centres": centres}
    done = run_script(python, spu_kmeans.__file__, arguments, arrays)
    if isinstance(done, str):
        return done
    exact = lloyd(values, centres, iterations + 1)  # one more warms up
    return {
        "iterations": iterations,
        **_typical(done["seconds"]),
        "bytes": done["bytes"],
        "error": float(np.abs(exact - np.array(done["centres"])).max()),
    }


def spu_python(fetch: bool) -> Path | str:
    """Return the Python of SPU's environment, or why there is none; fetching it is a gigabyte."""
    return python_with("SPU", SPU_PACKAGES, "spu, jax", fetch=fetch, version=(3, 11))


def figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Write the table, as CSV and as Markdown."""
    cells = tidy.cells_of(rows, _PROBLEM_AND_SYSTEM, "seconds", "spread", "bytes", "error")
    if not cells:
        reasons = {str(row["skipped"]) for row in rows}
        raise DataError(f"nothing could be measured: {'; '.join(sorted(reasons))}.")
    base = {_problem(c): c for c in cells if c["method"] == f"cloister {_OURS[0]}"}
    table = [_beside_ours(cell, base.get(_problem(cell))) for cell in cells]
    for problem, ours in base.items():
        table += _of_paper(problem, ours)
    problems = sorted({_problem(cell) for cell in cells})
    table.sort(key=lambda row: problems.index(_problem(row)))  # keeps the order of systems
    more = [1 / row["bytes_ours"] for row in table if row["method"] == _PAPERS[0]]
    shown = [{**row, **{name: _digits(row[name]) for name in _MEASURED}} for row in table]
    for row in shown:
        row["milliseconds"] += f" ± {row['spread']}" * bool(row["spread"])
    jobs = sorted({cell["runs"] for cell in cells})
    lines = tidy.prose(
        "table3",
        shown,
        least=min(more),
        most=max(more),
        runs=" to ".join(map(str, jobs)),
        slower=_slower(table),
    )
    page = tidy.write_page(out / "table3.md", [*lines, *tidy.not_measured(rows)], stamped=False)
    return [tidy.write_table(out / "fastlloyd-table3.csv", table), page]


_PROBLEM_AND_SYSTEM = ("n", "n_features", "n_clusters", "method")
_PAPERS = ("the paper's FastLloyd", "the paper's MohLloyd")
_MEASURED = ("milliseconds", "spread", "kilobytes", "times_ours", "bytes_ours", "error")


def _problem(cell: Cell) -> Key:
    return tuple(cell[name] for name in _PROBLEM_AND_SYSTEM[:-1])


def _beside_ours(cell: Cell, ours: Cell | None) -> Cell:
    """Return one line of the table; what is not known is empty."""
    seconds, sent = cell["seconds"].mean, cell["bytes"]
    other = ours and ours["bytes"]
    return {
        **{name: cell[name] for name in (*_PROBLEM_AND_SYSTEM, "runs")},
        "milliseconds": 1e3 * seconds,
        "spread": cell["spread"] and 1e3 * cell["spread"].mean,
        "kilobytes": sent and sent.mean / 1e3,
        "times_ours": ours and seconds / ours["seconds"].mean,
        "bytes_ours": sent.mean / other.mean if sent and other else None,
        "error": cell["error"] and cell["error"].mean,
    }


def _of_paper(problem: Key, ours: Cell) -> list[Cell]:
    """Return what the paper prints of a problem; times are of another machine: not divided."""
    n, d, k = (int(str(value)) for value in problem)
    sent = (_PAPER_WORD * k * (d + 1), None)
    return [
        {
            **dict(zip(_PROBLEM_AND_SYSTEM, (*problem, system), strict=True)),
            **{"runs": None, "milliseconds": time, "spread": None, "times_ours": None},
            "kilobytes": None if size is None else size / 1e3,
            "bytes_ours": None if size is None else size / ours["bytes"].mean,
            "error": None,
        }
        for system, time, size in zip(
            _PAPERS, _PAPER.get((n, d, k), (None, None)), sent, strict=True
        )
        if time is not None or size is not None
    ]


def _slower(table: Sequence[Cell]) -> str:
    """Return a clause on the problems whose iteration takes longer here than the paper prints."""
    times = {
        method: {_problem(row): row["milliseconds"] for row in table if row["method"] == method}
        for method in (f"cloister {_OURS[0]}", _PAPERS[0])
    }
    ours, theirs = times.values()
    found = [
        f"{n:,} records, {d} columns, {k} clusters ({own:.2f} ms, theirs {theirs[n, d, k]:.2f})"
        for (n, d, k), own in ours.items()
        if own > (theirs.get((n, d, k)) or inf)
    ]
    return f"ours is slower in {len(found)}{': ' * bool(found)}{'; '.join(found)}."


def _digits(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
