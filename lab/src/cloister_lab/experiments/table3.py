"""FastLloyd's Table 3: time and bytes of an iteration, beside an exact secure k-means in SPU.

Both are measured one after the other on the same machine. Ours is a whole round over MPI: one
aggregator and two silos, local sums, masks, exact noise, both legs. SPU's is one iteration on
shares: distances, a tournament for the nearest centre, sums, divisions. SPU gives the exact
answer without any noise; ours is differentially private. Neither has a delay added to its network.

References
----------
.. [DHK24] A. Diaa, T. Humphries and F. Kerschbaum, arXiv:2405.02437, section 6.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from cloister.errors import DataError
from cloister_lab.experiments import spu_kmeans
from cloister_lab.experiments.environments import json_of, python_with, run_script
from cloister_lab.experiments.mixtures import Mixture
from cloister_lab.experiments.records import TidyRow, Value, means_of, number, write_table
from cloister_lab.experiments.run import Experiment, Settings, Unit, markdown
from cloister_lab.lloyd import lloyd

SPU_PACKAGES = ("spu==0.9.5", "jax==0.4.34", "jaxlib==0.4.34", "numpy==1.26.4")
"""What the environment of SPU is made of; it needs Python 3.11 on x86-64 Linux or a Mac."""

_OURS = ("fastlloyd", "auto")
_SILOS = 2
_PROBLEMS = ((10_000, 2, 2), (10_000, 2, 5), (10_000, 5, 2), (10_000, 5, 5))
_MANY = 100_000  # from so many records fewer iterations are timed
_LARGE = tuple((10 * n, d, k) for n, d, k in _PROBLEMS)


def _units(settings: Settings) -> list[Unit]:
    problems = (*_PROBLEMS, *_LARGE) if settings.full else ((300, 2, 3),)
    repeats = settings.repeats or (3 if settings.full else 1)
    units = []
    for n, d, k in problems:
        mixture = Mixture(n, d, k, 0.2)
        iterations = 5 if n < _MANY else 2
        for repeat in range(repeats if not settings.only or mixture.name in settings.only else 0):
            # the small version does not fetch a gigabyte
            work = partial(measure, mixture, repeat, iterations, settings.full)
            units.append(Unit(f"{mixture.name} full={settings.full} r={repeat}", work))
    return units


def measure(mixture: Mixture, repeat: int, iterations: int, fetch: bool) -> list[TidyRow]:
    """Measure all systems on one problem, one after the other.

    Parameters
    ----------
    repeat, iterations : int
        The time of a system is the least of its iterations: what else runs on the machine only
        adds to it.
    fetch : bool
        Make SPU's environment if it is not there.

    Returns
    -------
    list of mapping
        A row for each system; where one could not be run, `skipped` says why.
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
        "iterations": None,
        "seconds": None,
        "bytes": None,
        "error": None,
        "skipped": None,
    }
    if isinstance(found, str):
        return row | {"skipped": found}
    return row | found


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


def _in_spu(
    python: Path | str, protocol: str, iterations: int, values: Any, centres: Any
) -> dict[str, Any] | str:
    """Run SPU's parties; the error is the largest distance from the exact centres."""
    words, arrays = [protocol, str(iterations), "FILE"], {"X": values, "centres": centres}
    done = run_script(python, spu_kmeans.__file__, words, arrays)
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
    """Return the Python of SPU's environment, or why there is none.

    Parameters
    ----------
    fetch : bool
        Make it where it is missing: about a gigabyte in the user's cache.
    """
    return python_with("SPU", SPU_PACKAGES, "spu, jax", fetch=fetch, version=(3, 11))


def _figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Write the table, as CSV and as Markdown."""
    by = ("n", "n_features", "n_clusters", "method")
    seconds, sent, errors = (means_of(rows, by, name) for name in ("seconds", "bytes", "error"))
    if not seconds:
        reasons = {str(row["skipped"]) for row in rows}
        raise DataError(f"nothing could be measured: {'; '.join(sorted(reasons))}.")
    ours = f"cloister {_OURS[0]}"
    table: list[TidyRow] = []
    for key, time in seconds.items():
        problem = key[:3]
        base, base_bytes = seconds.get((*problem, ours)), sent.get((*problem, ours))
        volume = sent.get(key)
        table.append(
            {
                **dict(zip(by, key, strict=True)),
                "runs": time.runs,
                "milliseconds": 1e3 * time.mean,
                "kilobytes": None if volume is None else volume.mean / 1e3,
                "times_ours": None if base is None else time.mean / base.mean,
                "bytes_ours": (
                    None if volume is None or base_bytes is None else volume.mean / base_bytes.mean
                ),
                "error": errors[key].mean if key in errors else None,
            }
        )
    page = out / "table.md"
    page.write_text(_page(table, rows))
    return [write_table(out / "table.csv", table), page]


_COLUMNS = ("milliseconds", "kilobytes", "times_ours", "bytes_ours", "error")


def _shown(row: TidyRow, column: str) -> str:
    value = number(row, column)
    if math.isnan(value):
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _page(table: Sequence[TidyRow], rows: Sequence[TidyRow]) -> str:
    headings = ("n", "columns", "clusters", "system", "ms an iteration", "kB an iteration")
    over = ("time over FastLloyd's", "bytes over FastLloyd's", "largest error of a centre")
    facts = ("n_features", "n_clusters", "method")
    lines = markdown(
        (*headings, *over),
        (
            (f"{row['n']:,}", *(row[f] for f in facts), *(_shown(row, name) for name in _COLUMNS))
            for row in table
        ),
    )
    skipped = sorted({f"{row['method']}: {row['skipped']}" for row in rows if row["skipped"]})
    if skipped:
        lines += ["", "Not measured: " + "; ".join(skipped) + "."]
    return "\n".join([*lines, ""])


TABLE3 = Experiment(
    "fastlloyd-table3",
    "FastLloyd Table 3: time and bytes of an iteration over MPI beside SPU (ABY3, CHEETAH)",
    _units,
    _figures,
    seconds_small=10,
    seconds_full=2 * 3600,
)
