"""What each function on shares costs, and votes and labels over real processes.

    python benchmarks/shares.py [--values 100000] [--repeats 5] [--data FOLDER]

First every function of ``cloister.shares.mpc`` on 1e5 values, all three parties in one process:
bytes each way between the servers and rounds (which do not depend on the machine), bytes dealt,
seconds, and the largest error against NumPy in the clear. Then, over real processes and sealed
loopback links: the majority of five models for 1,000 rows, and logistic scoring of 1,000 rows x 30
with rows and weights on shares, beside scikit-learn in the clear. With a folder that holds
``german_credit.csv.gz``, the three banks of ``examples/credit_vote.py`` vote over real processes
too; a warning then says that no ledger was given.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from share_processes import Outcome, run_processes
from sklearn.linear_model import LogisticRegression

from cloister import DPLogisticRegression, Schema
from cloister.shares import mpc
from cloister.shares.inference.linear import linear_scorer
from cloister.shares.mpc import Server
from cloister.shares.mpc.vote import Score, Vote

Words = NDArray[np.uint64]
Floats = NDArray[np.float64]
BARS = {"majority": 0.3, "label": 0.06, "probability": 0.06}
CLASSES = 10


@dataclass(frozen=True)
class Probability:
    """The sigmoid of a shared model's scores of shared rows."""

    name: ClassVar[str] = "probability"

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Return this server's share of the probabilities."""
        model = tables["model"]
        scores = mpc.matmul(server, tables["rows"], model[:-1])
        scores = mpc.truncate(server, scores) + model[-1]
        return {"probability": mpc.sigmoid(server, scores)[:, 0]}


def _softmax(x: Floats) -> Floats:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def functions(values: int) -> None:
    """Print a row for each function."""
    generator = np.random.default_rng(0)
    x, y = generator.uniform(-10, 10, (2, values))
    positive = np.exp(generator.uniform(np.log(0.5), np.log(100), values))
    grouped = generator.uniform(-10, 10, (values // CLASSES, CLASSES))
    one = np.float64(1)
    cases: list[tuple[str, Callable[..., Words], Callable[..., Any], tuple[Floats, ...]]] = [
        ("times", mpc.times, np.multiply, (x, y)),
        ("scale by 0.3", lambda s, v: mpc.scale(s, v, 0.3), lambda v: 0.3 * v, (x,)),
        ("sign", lambda s, v: mpc.negative(s, v) << np.uint64(16), lambda v: v < 0, (x,)),
        ("relu", mpc.relu, lambda v: np.maximum(v, 0), (x,)),
        ("clip to [-1, 1]", lambda s, v: mpc.clip(s, v, -1, 1), lambda v: v.clip(-1, 1), (x,)),
        ("sigmoid", mpc.sigmoid, lambda v: 1 / (1 + np.exp(-v)), (x,)),
        ("tanh", mpc.tanh, np.tanh, (x,)),
        ("exp of -|x|", mpc.exp, np.exp, (-np.abs(x),)),
        (
            "reciprocal, [0.5, 100]",
            lambda s, v: mpc.reciprocal(s, v, 0.5, 100),
            lambda v: one / v,
            (positive,),
        ),
        (
            "divide, [0.5, 100]",
            lambda s, a, b: mpc.divide(s, a, b, 0.5, 100),
            np.divide,
            (x, positive),
        ),
        ("maximum of 10", mpc.maximum, lambda v: v.max(axis=-1), (grouped,)),
        (
            "argmax of 10",
            lambda s, v: mpc.argmax(s, v) << np.uint64(16),
            lambda v: v.argmax(axis=-1),
            (grouped,),
        ),
        ("softmax of 10", mpc.softmax, _softmax, (grouped,)),
    ]
    print(f"{values} values; bytes a value each way between the servers and from the dealer")
    print("| function | rounds | bytes | dealt | seconds | error |\n|---|---|---|---|---|---|")
    for name, program, clear, inputs in cases:
        words = [mpc.encode(table) for table in inputs]
        start = time.perf_counter()
        (first, second), servers = mpc.run_here(program, *words, timeout=300)
        seconds = time.perf_counter() - start
        expected = clear(*(mpc.decode(table) for table in words))
        error = float(np.abs(mpc.decode(mpc.combine(first, second)) - expected).max())
        cost = servers[0].cost
        dealt = servers[1].supply.bytes_received
        assert error < 1e-3, name
        print(
            f"| {name} | {cost.rounds} | {cost.bytes_sent / values:.1f} | {dealt / values:.1f} "
            f"| {seconds:.2f} | {error:.1e} |"
        )


def processes(repeats: int) -> None:
    """Print votes and labels over real processes."""
    generator = np.random.default_rng(1)
    rows, features, voters = 1000, 30, tuple(f"bank{k}" for k in range(5))
    x = generator.uniform(-1, 1, (rows, features))
    model = LogisticRegression().fit(x, x @ generator.normal(size=features) > 0)
    start = time.perf_counter()
    clear = model.predict_proba(x)[:, 1]
    in_clear = time.perf_counter() - start
    weights = np.append(model.coef_[0], model.intercept_)[:, None]

    vote = Vote(voters=voters, rows=rows, classes=2)
    labels = generator.integers(0, 2, (5, rows))
    given = {name: vote.words(name, own) for name, own in zip(voters, labels, strict=True)}
    done = run_processes(vote, given, repeats)
    assert (done.results["label"] == (labels.sum(axis=0) > 2)).all()
    _show("majority", "majority of 5 models, 1,000 rows", done)

    score = Score(models=("model",), rows=rows, features=features)
    tables = {"rows": score.words("rows", x), "model": score.words("model", weights)}
    done = run_processes(score, tables, repeats)
    wrong = int((done.results["label"] != (clear > 0.5)).sum())
    _show("label", f"label of a logistic model, 1,000 x 30 ({wrong} labels differ)", done)

    done = run_processes(Probability(), tables, repeats)
    error = np.abs(mpc.decode(done.results["probability"]) - clear).max()
    assert error < 1e-3
    _show("probability", f"its probability (error {error:.1e})", done)
    print(f"scikit-learn in the clear: {in_clear * 1e3:.2f} ms")


def banks(folder: Path, repeats: int) -> None:
    """Print the vote of three banks' private models on German Credit over real processes."""
    bounds = Schema.load(
        Path(str(files("cloister_lab.experiments") / "schemas/german_credit.toml"))
    )
    records = pd.read_csv(folder / "german_credit.csv.gz", dtype=str)
    place = np.random.default_rng(0).permutation(len(records))
    applicants = records.iloc[place[750:]]
    names = ("north", "south", "west")
    scorers = []
    for part in np.array_split(place[:750], 3):
        model = DPLogisticRegression(
            epsilon=4.0, bounds=bounds, target="credit", nominal_n=250, delta=1e-6
        )
        scorers.append(linear_scorer(model.fit([records.iloc[part]])))
    entries = scorers[0].layout.encode(applicants.drop(columns="credit"))
    program = Score(models=names, rows=len(entries), features=entries.shape[1])
    tables = {"rows": program.words("rows", entries)}
    votes = np.zeros(len(entries), int)
    for name, scorer in zip(names, scorers, strict=True):
        tables[name] = program.words(name, np.vstack([scorer.weights.T, scorer.bias]))
        votes += (entries @ scorer.weights[0] + scorer.bias[0]) > 0
    done = run_processes(program, tables, repeats)
    wrong = int((done.results["label"] != (votes > 1)).sum())
    _show("majority", f"3 banks, 250 applicants ({wrong} labels differ)", done)


def _show(bar: str, what: str, done: Outcome) -> None:
    met = "met" if done.online_s < BARS[bar] else "MISSED"
    print(f"{what}: {done}; bar {BARS[bar]} s {met}")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    functions(options.values)
    processes(options.repeats)
    if options.data is not None:
        banks(options.data, options.repeats)


if __name__ == "__main__":
    main()
