"""CPU time of whole fits beside scikit-learn's, and diffprivlib's where it is installed.

    python benchmarks/fits.py [--models NAME ...] [--rows 1000000] [--out benchmarks/fits.json]

prints a Markdown table and writes JSON. All of it runs in one process on one thread, and the models
of one row take turns, so ratios are of the same machine at the same time. A time is the least of
several of the processor; the clock's is beside it. Columns are normal, two classes follow a
logistic law, and every private model gets the same budget and public bounds.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from threadpoolctl import threadpool_limits

from cloister import DPLogisticRegression, DPNaiveBayes, DPRandomForestClassifier

COLUMNS, BOX = 8, 5.0
EPSILON, DELTA = 1.0, 1e-6
ENOUGH = 20.0  # seconds after which a fit is not repeated
PRIVATE = {"epsilon": EPSILON, "delta": DELTA, "bounds": (-BOX, BOX), "classes": [0, 1]}

Fit = Callable[[NDArray[Any], NDArray[Any]], object]


@dataclass(frozen=True)
class Time:
    """The least times of a fit, in seconds, of the processor and by the clock."""

    cpu: float = math.inf
    wall: float = math.inf

    def least(self, other: Time) -> Time:
        """Return the smaller of both, each by itself."""
        return Time(min(self.cpu, other.cpu), min(self.wall, other.wall))


@dataclass(frozen=True)
class Row:
    """One model of ours beside its peers."""

    model: str
    rows: int
    times: Mapping[str, Time]  # "cloister", "scikit-learn", and "diffprivlib" if it is there

    @property
    def ratios(self) -> dict[str, float]:
        """Our processor time over each peer's."""
        ours = self.times["cloister"].cpu
        return {name: ours / t.cpu for name, t in self.times.items() if name != "cloister"}


def models(n: int) -> dict[str, dict[str, Fit]]:
    """Return how each model is fitted, by us and by its peers, for so many rows."""

    def ours(kind: Any, /, **options: Any) -> Fit:
        return lambda X, y: kind(nominal_n=n, **PRIVATE, **options).fit(X, y)

    def peer(kind: Any, /, **options: Any) -> Fit:
        return lambda X, y: kind(**options).fit(X, y)

    forest = {"n_estimators": 40, "max_depth": 5}
    found = {
        "naive Bayes, bins": {"cloister": ours(DPNaiveBayes), "scikit-learn": peer(GaussianNB)},
        "naive Bayes, normal": {
            "cloister": ours(DPNaiveBayes, numbers="gaussian"),
            "scikit-learn": peer(GaussianNB),
        },
        "logistic regression": {
            "cloister": ours(DPLogisticRegression),
            "scikit-learn": peer(LogisticRegression),
        },
        "random forest": {
            "cloister": ours(DPRandomForestClassifier, kind="random", **forest),
            "scikit-learn": peer(RandomForestClassifier, **forest),
        },
        "boosted forest": {
            "cloister": ours(DPRandomForestClassifier, kind="boosted", **forest),
            "scikit-learn": peer(RandomForestClassifier, **forest),
        },
    }
    if find_spec("diffprivlib"):
        import diffprivlib.models as others

        box = (np.full(COLUMNS, -BOX), np.full(COLUMNS, BOX))
        bayes = peer(others.GaussianNB, epsilon=EPSILON, bounds=box)
        norm = BOX * math.sqrt(COLUMNS)
        found["naive Bayes, bins"]["diffprivlib"] = bayes
        found["naive Bayes, normal"]["diffprivlib"] = bayes
        found["logistic regression"]["diffprivlib"] = peer(
            others.LogisticRegression, epsilon=EPSILON, data_norm=norm
        )
        found["random forest"]["diffprivlib"] = peer(
            others.RandomForestClassifier, epsilon=EPSILON, bounds=box, classes=[0, 1], **forest
        )
    return found


def table(n: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return float32 records and their classes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, COLUMNS)).astype(np.float32)
    y = X @ rng.normal(size=COLUMNS) + rng.logistic(size=n) > 0
    return X, y.astype(np.int64)


def measure(model: str, n: int, repeats: int = 3) -> Row:
    """Fit a model and its peers in turns."""
    X, y = table(n)
    fits = models(n)[model]
    times = dict.fromkeys(fits, Time())
    spent = dict.fromkeys(fits, 0.0)
    for _ in range(repeats):
        for name, fit in fits.items():
            if spent[name] < ENOUGH:
                begun = time.process_time(), time.perf_counter()
                fit(X, y)
                taken = Time(time.process_time() - begun[0], time.perf_counter() - begun[1])
                times[name] = times[name].least(taken)
                spent[name] += taken.cpu
    return Row(model, n, times)


def line(row: Row) -> str:
    """Return a row of the table."""
    cells = [row.model, f"{row.rows}"]
    for name in ("cloister", "scikit-learn", "diffprivlib"):
        at = row.times.get(name)
        cells.append(f"{at.cpu:.3g} s ({at.wall:.3g})" if at else "")
        if name != "cloister":
            cells.append(f"{row.ratios[name]:.2g}" if at else "")
    return "| " + " | ".join(cells) + " |"


def main(words: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    names = list(models(1))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--rows", nargs="+", type=int, default=[10_000, 1_000_000])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("fits.json"))
    args = parser.parse_args(words)
    print("CPU seconds, by the clock in brackets; a ratio is our CPU time over the peer's.\n")
    print("| model | rows | cloister | scikit-learn | ratio | diffprivlib | ratio |")
    print("|---|---|---|---|---|---|---|")
    found = []
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in args.rows:
            for model in args.models:
                found.append(measure(model, n))
                print(line(found[-1]), flush=True)
    packages = ["cloister", "numpy", "scikit-learn"]
    packages += ["diffprivlib"] if find_spec("diffprivlib") else []
    document = {
        "machine": f"{os.cpu_count()}-core {platform.machine()} {platform.system()}",
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "results": [{**asdict(row), "ratios": row.ratios} for row in found],
    }
    args.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
