"""FastLloyd's Table 3: time and bytes of an iteration, beside an exact secure k-means in SPU.

Both are measured one after the other on the same machine. Ours is a whole round over MPI: one
aggregator and two silos, local sums, masks, exact noise, both legs. SPU's is one iteration on
shares: distances, a tournament for the nearest centre, sums, divisions. SPU gives the exact
answer without any noise; ours is differentially private. Neither has a delay added to its network.
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
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from cloister.errors import DataError
from cloister.mpc import combine, decode, run_here
from cloister.mpc.training import KMeansOnShares
from cloister_lab.experiments import records as tidy
from cloister_lab.experiments import spu_kmeans
from cloister_lab.experiments.environments import json_of, python_with, run_script
from cloister_lab.experiments.mixtures import Mixture
from cloister_lab.experiments.records import Cell, Key, TidyRow, Value
from cloister_lab.experiments.run import Settings, Unit, units_of
from cloister_lab.lloyd import lloyd

SPU_PACKAGES = ("spu==0.9.5", "jax==0.4.34", "jaxlib==0.4.34", "numpy==1.26.4")
"""What the environment of SPU is made of; it needs Python 3.11 on x86-64 Linux or a Mac."""

_OURS = ("fastlloyd", "auto")
_SILOS = 2
_PROBLEMS = ((10_000, 2, 2), (10_000, 2, 5), (10_000, 5, 2), (10_000, 5, 5))
_MANY = 100_000  # from so many records fewer iterations are timed
_LARGE = tuple((10 * n, d, k) for n, d, k in _PROBLEMS)


def units(settings: Settings) -> list[Unit]:
    """Return the units."""
    problems = (*_PROBLEMS, *_LARGE) if settings.full else ((300, 2, 3),)
    mixtures = [Mixture(n, d, k, 0.2) for n, d, k in problems]
    return [
        unit
        for mixture in mixtures
        if settings.wants(mixture.name)
        for unit in units_of(
            measure,
            mixture=[mixture],
            iterations=[5 if mixture.n_samples < _MANY else 2],
            fetch=[settings.full],  # the small version does not fetch a gigabyte
            repeat=range(settings.runs(3, 1)),
        )
    ]


def measure(mixture: Mixture, repeat: int, iterations: int, fetch: bool) -> list[TidyRow]:
    """Measure all systems on one problem, one after the other.

    Parameters
    ----------
    repeat, iterations : int
        The time of a system is the least of its iterations: what else runs on the machine only
        adds to it.
    fetch : bool
        Make SPU's environment if it is not there. Where a system could not be run, `skipped` says
        why.
    """
    values = mixture.dataset().values
    rng = np.random.default_rng(repeat)
    centres = values[rng.choice(len(values), mixture.n_clusters, replace=False)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "problem.npz"
        np.savez(file, X=values, centres=centres)
        for method in _OURS:
            rows.append(_row(mixture, repeat, f"cloister {method}", 3, _over_mpi(file, method)))
        shared = _on_shares(iterations, values, centres)
        rows.append(_row(mixture, repeat, "cloister shares", 1, shared))
        python = spu_python(fetch)
        for protocol, parties in spu_kmeans.PARTIES.items():
            found = _in_spu(python, protocol, iterations, values, centres)
            rows.append(_row(mixture, repeat, f"SPU {protocol}", parties, found))
    return rows


def _row(
    mixture: Mixture, repeat: int, system: str, parties: int, found: dict[str, Any] | str
) -> TidyRow:
    """Return one measurement, or why there is none."""
    row: dict[str, Value] = {
        "dataset": mixture.name,
        "n": mixture.n_samples,
        "n_features": mixture.n_features,
        "n_clusters": mixture.n_clusters,
        "method": system,
        "processes": parties,
        "repeat": repeat,
        **dict.fromkeys(("iterations", "seconds", "bytes", "error", "skipped")),
    }
    return row | ({"skipped": found} if isinstance(found, str) else found)


def _over_mpi(file: Path, method: str) -> dict[str, Any] | str:
    """Run a whole job with ``mpirun``; the time is the least of its rounds."""
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
        *(str(file), method),
    ]
    done = json_of(command, {**clean, "OMP_NUM_THREADS": "1", "TMPDIR": "/tmp"})
    if isinstance(done, str):
        return done
    return {
        "iterations": len(done["seconds"]),
        "seconds": min(done["seconds"]),
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
        "seconds": min(done["seconds"]),
        "bytes": done["bytes"],
        "error": float(np.abs(exact - np.array(done["centres"])).max()),
    }


def spu_python(fetch: bool) -> Path | str:
    """Return the Python of SPU's environment, or why there is none; fetching it is a gigabyte."""
    return python_with("SPU", SPU_PACKAGES, "spu, jax", fetch=fetch, version=(3, 11))


def figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Write the table, as CSV and as Markdown."""
    cells = tidy.cells_of(rows, _PROBLEM_AND_SYSTEM, "seconds", "bytes", "error")
    if not cells:
        reasons = {str(row["skipped"]) for row in rows}
        raise DataError(f"nothing could be measured: {'; '.join(sorted(reasons))}.")
    base = {_problem(c): c for c in cells if c["method"] == f"cloister {_OURS[0]}"}
    table = [_beside_ours(cell, base.get(_problem(cell))) for cell in cells]
    shown = ({**row, **{name: _digits(row[name]) for name in _MEASURED}} for row in table)
    lines = [*tidy.prose("table3", shown), *tidy.not_measured(rows)]
    page = tidy.write_page(out / "table.md", lines, stamped=False)
    return [tidy.write_table(out / "table.csv", table), page]


_PROBLEM_AND_SYSTEM = ("n", "n_features", "n_clusters", "method")
_MEASURED = ("milliseconds", "kilobytes", "times_ours", "bytes_ours", "error")


def _problem(cell: Cell) -> Key:
    return tuple(cell[name] for name in _PROBLEM_AND_SYSTEM[:-1])


def _beside_ours(cell: Cell, ours: Cell | None) -> Cell:
    """Return one line of the table; what is not known is empty."""
    seconds, sent = cell["seconds"].mean, cell["bytes"]
    other = ours and ours["bytes"]
    return {
        **{name: cell[name] for name in (*_PROBLEM_AND_SYSTEM, "runs")},
        "milliseconds": 1e3 * seconds,
        "kilobytes": sent and sent.mean / 1e3,
        "times_ours": ours and seconds / ours["seconds"].mean,
        "bytes_ours": sent.mean / other.mean if sent and other else None,
        "error": cell["error"] and cell["error"].mean,
    }


def _digits(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
