"""CPU time of whole fits beside scikit-learn's and diffprivlib's, and of their loops beside memory.

    python benchmarks/fits.py [--kinds NAME ...] [--rows 1000000] [--out benchmarks/fits.json]

prints two Markdown tables and writes JSON. All of it runs in one process on one thread, and the
models of one kind take turns, so ratios are of the same machine at the same time. A time is the
least of several of the processor; the clock's is beside it. Columns are normal, two classes follow
a logistic law, and every private model gets the same budget and public bounds. diffprivlib joins
where it is installed with a scikit-learn that it knows: its 0.6.6 knows 1.7, not 1.9.

A loop is what a silo does with its records in one round, in a state that a job had. Beside it are
a copy in memory of as many bytes as a record has, and NumPy's calls that do the work of the loop,
alone and on what is in the cache already.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parent))  # where another script imports this one

from run import BUDGET, machine, turns

from cloister import DPLogisticRegression, DPNaiveBayes, DPRandomForestClassifier
from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.data import array_records
from cloister.data.schema import Column, Schema
from cloister.tasks import TASKS

try:
    import diffprivlib.models as others
except ImportError:  # it is not there, or does not know this scikit-learn
    others = None

COLUMNS, BOX = 8, 5.0
TREES, DEPTH = 40, 5
ENOUGH = 20.0  # seconds after which a fit is not repeated

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


@dataclass(frozen=True)
class Kind:
    """Models of ours, by name, and what all of them are compared with."""

    ours: Mapping[str, Fit]
    peers: Mapping[str, Fit]


def kinds(n: int) -> dict[str, Kind]:
    """Return how models are fitted, by us and by their peers, for so many rows."""

    def ours(model: Any, /, **options: Any) -> Fit:
        public = {"bounds": (-BOX, BOX), "classes": [0, 1], "nominal_n": n, **options}
        return lambda X, y: model(epsilon=BUDGET.epsilon, delta=BUDGET.delta, **public).fit(X, y)

    def peers(model: Any, public: Mapping[str, Any], /, **options: Any) -> dict[str, Fit]:
        found: dict[str, Fit] = {"scikit-learn": lambda X, y: model(**options).fit(X, y)}
        if others:
            private = partial(getattr(others, model.__name__), epsilon=BUDGET.epsilon, **public)
            found["diffprivlib"] = lambda X, y: private(**options).fit(X, y)
        return found

    box = {"bounds": (np.full(COLUMNS, -BOX), np.full(COLUMNS, BOX))}
    norm = {"data_norm": BOX * math.sqrt(COLUMNS)}
    forest = {"n_estimators": TREES, "max_depth": DEPTH}
    return {
        "naive Bayes": Kind(
            {
                "naive Bayes, bins": ours(DPNaiveBayes),
                "naive Bayes, normal": ours(DPNaiveBayes, numbers="gaussian"),
            },
            peers(GaussianNB, box),
        ),
        "logistic regression": Kind(
            {"logistic regression": ours(DPLogisticRegression)}, peers(LogisticRegression, norm)
        ),
        "forests": Kind(
            {
                "random forest": ours(DPRandomForestClassifier, kind="random", **forest),
                "boosted forest": ours(DPRandomForestClassifier, kind="boosted", **forest),
            },
            peers(RandomForestClassifier, {**box, "classes": [0, 1]}, **forest),
        ),
    }


def table(n: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return float32 records and their classes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, COLUMNS)).astype(np.float32)
    y = X @ rng.normal(size=COLUMNS) + rng.logistic(size=n) > 0
    return X, y.astype(np.int64)


def measure(kind: Kind, n: int, repeats: int = 3) -> Iterator[Row]:
    """Fit the models of a kind and their peers in turns."""
    X, y = table(n)
    fits = {**kind.ours, **kind.peers}
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
    for name in kind.ours:
        yield Row(name, n, {"cloister": times[name], **{peer: times[peer] for peer in kind.peers}})


def line(row: Row) -> str:
    """Return a row of the table of fits."""
    cells = [row.model, f"{row.rows}"]
    for name in ("cloister", "scikit-learn", "diffprivlib"):
        at = row.times.get(name)
        cells.append(f"{at.cpu:.3g} s ({at.wall:.3g})" if at else "")
        if name != "cloister":
            cells.append(f"{row.ratios[name]:.2g}" if at else "")
    return "| " + " | ".join(cells) + " |"


# --- loops over records ---------------------------------------------------------------------------

ITEMS, PAIRS = 100, 1000
PASSES = 13  # over the numbers of a row in a round of logistic regression
BLOCK = 1 << 13  # records, whose numbers stay in the cache
CALLS = 20  # on such a block, so that the clock can time them


@dataclass(frozen=True)
class Loop:
    """What a silo does with a record in a round, beside memory and NumPy; times in nanoseconds.

    Parameters
    ----------
    bytes : int
        That are read of a record; what is written stays in the cache.
    memory : float
        In which memory is read or written for as many bytes of a copy.
    calls, alone : str, float
        NumPy's calls that do the work, and how long they take alone.
    """

    loop: str
    taken: float
    bytes: int
    memory: float
    calls: str
    alone: float

    @property
    def ratio(self) -> float:
        """How many times as long as memory it takes."""
        return self.taken / self.memory


def copied(cells: int) -> float:
    """Return the nanoseconds in which a copy in memory reads or writes a byte."""
    ones, copy = np.ones(cells, dtype=np.float32), np.zeros(cells, dtype=np.float32)
    seconds, _ = turns({"copy": partial(np.copyto, copy, ones)})
    return 1e9 * seconds["copy"] / (2 * ones.nbytes)


def contributed(
    task: str, t: int, columns: Sequence[Column], cells: NDArray[Any], **options: Any
) -> tuple[Any, Callable[[], object]]:
    """Return a task, and what it does with records in round `t` in a state that a job had."""
    schema = Schema(dataset="table", unit="row", columns=tuple(columns))
    chunks = list(array_records(cells, schema.grid()))
    plan = make_plan(TASKS[task], schema, ["silo"], budget=BUDGET, nominal_n=len(cells), **options)
    states: list[Any] = []

    def records(_: int, state: Any) -> list[Any]:
        states.append(state)
        return chunks

    run_plan(plan, {"silo": records})
    t = range(plan.task.rounds)[t]
    return plan.task, lambda: [plan.task.contribute(t, states[t], chunk) for chunk in chunks]


def increments(times: int, bins: int) -> tuple[str, Callable[[], object]]:
    """Return as many counts of a block by bins that are known."""
    found = np.random.default_rng(0).integers(bins, size=BLOCK)
    count = partial(np.bincount, found, minlength=bins)
    return f"{times} increment{'s' * (times > 1)}", lambda: [count() for _ in range(times)]


def products() -> tuple[str, Callable[[], object]]:
    """Return as many products of a block of rows as there are passes over it."""
    rows = np.ones((COLUMNS + 1, BLOCK))
    multiply = partial(np.multiply, rows, rows[0], out=rows)
    return f"{PASSES} passes over {len(rows)} float64", lambda: [multiply() for _ in range(PASSES)]


def sums_of_bits() -> tuple[str, Callable[[], object]]:
    """Return in how many baskets of a block both items are, and how many pairs a basket holds."""
    rng = np.random.default_rng(0)
    words = rng.integers(1 << 62, size=(PAIRS, BLOCK // 64), dtype=np.uint64)

    def added() -> object:
        held = words & words[::-1]
        bits = np.unpackbits(held.view(np.uint8), axis=1)
        return np.bitwise_count(held).sum(axis=1, dtype=np.int64), bits.sum(axis=0, dtype=np.uint8)

    return f"bits of {PAIRS:,} pairs, added both ways", added


def loops(n: int = 1_000_000, copy: int = 128_000_000) -> Iterator[Loop]:
    """Time each loop, and the calls that it is made of, in turns."""
    byte, (X, y) = copied(copy), table(n)
    numbers = [Column(name=f"x{i}", type="number", min=-BOX, max=BOX) for i in range(COLUMNS)]
    classes = Column(name="y", type="category", categories=("0", "1"))
    items = [Column(name=f"i{i}", type="boolean") for i in range(ITEMS)]
    baskets = np.random.default_rng(0).random((n // 5, ITEMS)) < np.geomspace(0.3, 0.01, ITEMS)
    labelled = partial(
        contributed, columns=[*numbers, classes], cells=np.column_stack([X, y]), target="y"
    )

    def loop(
        what: str, rows: int, columns: int, task: Callable[[], object], calls: tuple[str, Any]
    ) -> Loop:
        name, alone = calls
        ways = {"loop": task, "alone": lambda: [alone() for _ in range(CALLS)]}
        seconds, _ = turns(ways, 5)
        alone_in = 1e9 * seconds["alone"] / CALLS / BLOCK
        memory = 4 * columns * byte
        return Loop(what, 1e9 * seconds["loop"] / rows, 4 * columns, memory, name, alone_in)

    _, bayes = labelled("naive-bayes", 0)
    yield loop("naive Bayes", n, COLUMNS + 1, bayes, increments(COLUMNS, 256))
    _, auto = contributed("auto", 0, numbers[:2], X[:, :2], n_clusters=10)
    yield loop("histogram of auto", n, 2, auto, increments(1, 1 << 14))
    forest, random = labelled("forest", 0, kind="random", n_trees=TREES, depth=DEPTH)
    tables = len({tree.columns for tree in forest.trees})
    yield loop(f"{TREES} random trees", n, COLUMNS + 1, random, increments(tables, 1 << 11))
    _, rules = contributed("apriori", -1, items, baskets, most_candidates=PAIRS)
    yield loop("association rules, pairs", n // 5, ITEMS, rules, sums_of_bits())
    _, logistic = labelled("logistic", -1)
    yield loop("logistic regression", n, COLUMNS + 1, logistic, products())


def main(words: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    names = list(kinds(1))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=names, default=names)
    parser.add_argument("--rows", nargs="+", type=int, default=[10_000, 1_000_000])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("fits.json"))
    args = parser.parse_args(words)
    rows: list[Row] = []
    found: list[Loop] = []
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        print("| loop, nanoseconds a record | | bytes | memory | ratio | NumPy alone | |")
        print("|---|---|---|---|---|---|---|")
        for one in loops(max(args.rows)):
            cells = one.loop, f"{one.taken:.3g}", f"{one.bytes}", f"{one.memory:.3g}"
            print(f"| {' | '.join(cells)} | {one.ratio:.2g} | {one.calls} | {one.alone:.3g} |")
            found.append(one)
        print("\nCPU seconds, by the clock in brackets; a ratio is our CPU time over the peer's.\n")
        print("| model | rows | cloister | scikit-learn | ratio | diffprivlib | ratio |")
        print("|---|---|---|---|---|---|---|")
        for n in args.rows:
            for kind in args.kinds:
                for row in measure(kinds(n)[kind], n):
                    print(line(row), flush=True)
                    rows.append(row)
    packages = ["cloister", "numpy", "scikit-learn", *(["diffprivlib"] if others else [])]
    document = {
        "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "results": [asdict(row) | {"ratios": row.ratios} for row in rows],
        "loops": [asdict(one) | {"ratio": one.ratio} for one in found],
    }
    args.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
