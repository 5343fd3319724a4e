"""`auto` and PE-means (Humphries, Lin and Yekhanin 2026, arXiv:2606.00342) on the same tables.

    git clone https://github.com/t3humphries/PE-means
    pip install faiss-cpu
    python benchmarks/pe_means.py PE-means [--data FOLDER] [--runs 3]

Prints the tables of docs/results/pe-means.md. The authors' code is imported unchanged from the
checkout, and runs with the settings of its experiments. A figure is the mean squared distance of
records to the nearest centre over that of scikit-learn's k-means, best of ten starts: exact on
public tables, not a release. Runs are kept in a JSON file, so that an interrupted command goes on
where it ended.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from threadpoolctl import threadpool_limits

from cloister import DPKMeans
from cloister.core.arrays import Floats
from cloister_lab.metrics import nicv, nicv_area

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
RECORDS = (5_000, 20_000)
CLUSTERS = COLUMNS = (4, 16, 64)
FILES = {"iris": 3, "yeast": 10}
"""Tables of the data folder, and their numbers of clusters."""

PUBLISHED = {
    "4 columns, 4 clusters": 0.0778,
    "4 columns, 16 clusters": 0.0445,
    "4 columns, 64 clusters": 0.0379,
    "16 columns, 4 clusters": 0.0955,
    "16 columns, 16 clusters": 0.0668,
    "16 columns, 64 clusters": 0.1183,
    "64 columns, 4 clusters": 0.0993,
    "64 columns, 16 clusters": 0.1192,
    "64 columns, 64 clusters": 0.3070,
}
"""Area under the mean squared distance over epsilon that the authors give for PE-means with 20,000
records: ``notebooks/paper_tables.ipynb``, rows ``sklearn``, column ``PE``, means of 50 runs."""

METHODS = ("PE-means", "auto")
ENOUGH = 60.0  # seconds after which a fit is not repeated

Run = tuple[float, float]
"""Cost over that of k-means without privacy, and seconds of the CPU."""


@dataclass(frozen=True)
class Table:
    """Records, with the ball that PE-means gets and the cube that `auto` gets.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
    radius : float
        Of the ball around the origin.
    side : float
        Half the side of the cube around the origin.
    """

    name: str
    n_clusters: int
    X: Floats
    radius: float
    side: float

    @property
    def delta(self) -> float:
        """Delta of the paper."""
        return float(len(self.X) ** -1.1)


# --- The authors' code ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Authors:
    """What is used of the checkout.

    Parameters
    ----------
    fit : callable
        ``pe_means``.
    scale : callable
        ``dataset_preprocess``: centres a table and divides it by its largest norm.
    defaults : dict
        ``PE_PARAMS``.
    """

    fit: Callable[..., Any]
    scale: Callable[[Floats], tuple[Floats, float, float]]
    defaults: dict[str, Any]


def authors(checkout: Path) -> Authors:
    """Import PE-means.

    The code imports a package ``clustering`` for two holders of numbers and for a loss of each
    iteration that it only reports; stand-ins take its place.
    """
    package = ModuleType("clustering")
    parameters, algorithm = ModuleType("clustering_params"), ModuleType("clustering_algorithm")
    no_loss = SimpleNamespace(loss=math.nan)
    vars(parameters).update(Data=SimpleNamespace, DifferentialPrivacyParam=SimpleNamespace)
    vars(algorithm).update(ClusteringResult=lambda data, centres: no_loss)
    vars(package).update(clustering_params=parameters, clustering_algorithm=algorithm)
    sys.modules["clustering"] = package
    sys.path.insert(0, str(checkout))
    main, helpers = (
        importlib.import_module(f"src.{name}") for name in ("pe_means_main", "helpers")
    )
    return Authors(main.pe_means, helpers.dataset_preprocess, helpers.PE_PARAMS)


def pe_means(code: Authors, table: Table, epsilon: float, seed: int) -> Floats:
    """Return centres of PE-means with the settings of the authors' ``experiments/run_ours.py``."""
    n, d = table.X.shape
    iterations = int(4 * sqrt(d))
    settings = {
        **code.defaults,
        "num_gen": max(int(max(epsilon, 1.0) * iterations), 1),
        "L": int(max(n / (5 * table.n_clusters), 4)),
        "run_id": seed,
    }
    data = SimpleNamespace(datapoints=table.X, radius=table.radius, dim=d)
    budget = SimpleNamespace(epsilon=epsilon, delta=table.delta)
    return np.asarray(code.fit(table.n_clusters, data, settings, budget, visualize=False)[1])


def auto(table: Table, epsilon: float, seed: int) -> Floats:
    """Return centres of `auto`."""
    model = DPKMeans(
        table.n_clusters,
        epsilon=epsilon,
        delta=table.delta,
        bounds=(-table.side, table.side),
        nominal_n=len(table.X),
        random_state=seed,
    )
    return np.asarray(model.fit(table.X).cluster_centers_)


# --- Tables ---------------------------------------------------------------------------------------


def scaled(code: Authors, name: str, n_clusters: int, X: Floats) -> Table:
    """Return a table in the authors' ball."""
    return Table(name, n_clusters, *code.scale(X))


def tables(code: Authors, data: Path | None) -> Iterator[Table]:
    """Yield the tables: files that are at hand, then groups from the smallest on."""
    for name, k in FILES.items():
        path = None if data is None else data / f"{name}.csv.gz"
        if path is not None and path.exists():
            X = np.loadtxt(path, delimiter=",", skiprows=1)
            low, high = X.min(axis=0), X.max(axis=0)
            yield scaled(code, name, k, (X - low) / (high - low))
    for n in RECORDS:
        for d in COLUMNS:
            for k in CLUSTERS:
                X, _ = make_blobs(n_samples=n, n_features=d, centers=k, random_state=1)
                yield scaled(code, f"{n:,} records, {d} columns, {k} clusters", k, X)


# --- Runs -----------------------------------------------------------------------------------------


class Runs:
    """Runs that are done, kept in a file.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[str, list[Run]] = {}
        self._optima: dict[str, float] = {}
        if path.exists():
            kept = json.loads(path.read_text())
            self._kept, self._optima = kept["runs"], kept["k-means"]

    def of(self, table: str, epsilon: float, method: str) -> list[Run]:
        """Return the runs of a cell."""
        return self._kept.get(f"{table}; {epsilon:g}; {method}", [])

    def add(self, table: str, epsilon: float, method: str, run: Run) -> None:
        """Keep a run."""
        self._kept.setdefault(f"{table}; {epsilon:g}; {method}", []).append(run)
        self._write()

    def optimum(self, table: Table) -> float:
        """Return the cost of k-means without privacy, best of ten starts."""
        if table.name not in self._optima:
            best = KMeans(table.n_clusters, n_init=10, random_state=0).fit(table.X)
            self._optima[table.name] = best.inertia_ / len(table.X)
            self._write()
        return self._optima[table.name]

    def _write(self) -> None:
        lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in self._kept.items())
        runs, optima = ",\n".join(lines), json.dumps(self._optima, indent=0)
        self._path.write_text(f'{{"k-means": {optima},\n"runs": {{\n{runs}\n}}}}\n')

    def area(self, table: str, method: str) -> float:
        """Return the area under the mean cost over epsilon, as the authors compute it."""
        means = [self.costs(table, epsilon, method).mean() for epsilon in EPSILONS]
        return nicv_area(EPSILONS, means) * self._optima[table]

    def costs(self, table: str, epsilon: float, method: str) -> Floats:
        """Return the costs of a cell."""
        return np.array([cost for cost, _ in self.of(table, epsilon, method)])

    def seconds(self, method: str) -> list[float]:
        """Return the seconds of all runs of a method."""
        cells = (runs for key, runs in self._kept.items() if key.endswith(f"; {method}"))
        return [seconds for runs in cells for _, seconds in runs]


def measure(code: Authors, table: Table, epsilons: Sequence[float], runs: int, kept: Runs) -> None:
    """Do what is missing of a table; a fit that takes more than a minute is not repeated."""
    optimum = kept.optimum(table)
    for epsilon in epsilons:
        for method in METHODS:
            done = kept.of(table.name, epsilon, method)
            while len(done) < runs and not (done and done[0][1] > ENOUGH):
                begun, seed = time.process_time(), len(done)
                if method == "auto":
                    centres = auto(table, epsilon, seed)
                else:
                    centres = pe_means(code, table, epsilon, seed)
                spent = time.process_time() - begun
                cost = nicv(table.X, centres) / optimum
                kept.add(table.name, epsilon, method, (round(cost, 4), round(spent, 2)))
                done = kept.of(table.name, epsilon, method)


# --- Output ---------------------------------------------------------------------------------------


def row(name: str, epsilons: Sequence[float], kept: Runs) -> str:
    """Return a row of the table: means of a cell's runs, then means over epsilon."""
    pairs = [[kept.costs(name, e, method).mean() for method in METHODS] for e in epsilons]
    means = np.mean(pairs, axis=0)
    return "| " + " | ".join([name, *(f"{v:.3f}" for v in np.ravel([*pairs, means]))]) + " |"


def behind(names: Sequence[str], epsilons: Sequence[float], kept: Runs) -> list[str]:
    """Return a row for each cell in which `auto` has the larger mean."""
    lines = []
    for name in names:
        for epsilon in epsilons:
            theirs, ours = (kept.costs(name, epsilon, method) for method in METHODS)
            if ours.mean() <= theirs.mean():
                continue
            numbers = " | ".join(
                f"{cell.mean():.3f} ± {error(cell):.3f}" for cell in (theirs, ours)
            )
            lines.append(f"| {name} | {epsilon:g} | {numbers} | {len(theirs)}, {len(ours)} |")
    return lines


def error(costs: Floats) -> float:
    """Return the standard error of a mean."""
    return float(costs.std(ddof=1) / sqrt(len(costs))) if len(costs) > 1 else math.nan


def report(names: Sequence[str], epsilons: Sequence[float], kept: Runs) -> None:
    """Print in how many cells `auto` is behind, where, and what the runs took."""
    lines = behind(names, epsilons, kept)
    print(f"\n`auto` is behind in {len(lines)} of {len(names) * len(epsilons)} cells.\n")
    print("| Table | ε | PE-means | `auto` | runs |\n|---|---|---|---|---|")
    print("\n".join(lines))
    once = {
        f"{name}, ε = {e:g}, {method}: {len(kept.of(name, e, method))}"
        for name in names
        for e in epsilons
        for method in METHODS
        if kept.of(name, e, method)[0][1] > ENOUGH
    }
    print("\nNot repeated:", "; ".join(sorted(once)) or "none")
    for method in METHODS:
        seconds = kept.seconds(method)
        print(f"{method}: {len(seconds)} fits, {np.mean(seconds):.1f} s on average,", end=" ")
        print(f"{max(seconds):.1f} s at most")


def report_areas(names: Sequence[str], kept: Runs) -> None:
    """Print the authors' summary of a table next to what they published."""
    print("\n| Table | PE-means, published | PE-means, here | `auto` |\n|---|---|---|---|")
    for name in names:
        records, _, shape = name.partition(" records, ")
        if records == "20,000":
            areas = " | ".join(f"{kept.area(name, method):.4f}" for method in METHODS)
            print(f"| {shape} | {PUBLISHED[shape]:.4f} | {areas} |")


def main() -> None:
    """Run, and print rows as they are done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--tables", nargs="+", help="beginnings of names; all by default")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("pe_means.json"))
    given = parser.parse_args()
    code, kept = authors(given.checkout), Runs(given.out)
    chosen = tuple(given.tables or [""])
    heads = [f"{e:g}: PE-means | {e:g}: `auto`" for e in given.epsilons]
    print("| Table |", " | ".join([*heads, "mean: PE-means | mean: `auto`"]), "|")
    print("|---" * (3 + 2 * len(given.epsilons)) + "|")
    names = []
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for table in tables(code, given.data):
            if table.name.startswith(chosen):
                measure(code, table, given.epsilons, given.runs, kept)
                print(row(table.name, given.epsilons, kept), flush=True)
                names.append(table.name)
    report(names, given.epsilons, kept)
    if tuple(given.epsilons) == EPSILONS:
        report_areas(names, kept)


if __name__ == "__main__":
    main()
