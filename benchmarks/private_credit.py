"""Three banks vote on applicants that none of them sees: seven parties, seven processes.

    python benchmarks/private_credit.py --data FOLDER [--epsilon 4]

Each bank trains a private model on its own part of German Credit, in its own process, and its
ledger is charged. Models and applicants go on shares to two servers; the majority is worked out
there, and its labels are opened to the broker alone. FOLDER holds ``german_credit.csv.gz``.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from session_processes import run_session

from cloister import Budget, DPLogisticRegression, Ledger, Schema
from cloister.core.errors import AccuracyWarning
from cloister.shares.inference.linear import LinearScorer, linear_scorer

BANKS = ("north", "south", "west")
SCHEMA = Path(str(files("cloister_lab.experiments") / "schemas/german_credit.toml"))
BOOKS = 250  # applications of each bank


def trained(part: pd.DataFrame, epsilon: float) -> LinearScorer:
    """Train one bank's private model; its ledger is charged."""
    schema = Schema.load(SCHEMA)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        ledger = Ledger(Path(folder) / "ledger.db")
        ledger.open_dataset(schema.dataset, cap=Budget(epsilon=epsilon, delta=1e-6))
        model = DPLogisticRegression(
            epsilon=epsilon,
            bounds=schema,
            target="credit",
            nominal_n=BOOKS,
            delta=1e-6,
            ledger=ledger,
        ).fit([part])
        return linear_scorer(model)


def weights(part: pd.DataFrame, epsilon: float) -> Any:
    """Return what a bank shares: its weights as a column, the bias last."""
    scorer = trained(part, epsilon)
    return np.vstack([scorer.weights.T, scorer.bias])


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, vote, and say how many decisions are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, default=4.0)
    options = parser.parse_args(arguments)
    records = pd.read_csv(options.data / "german_credit.csv.gz", dtype=str)
    place = np.random.default_rng(0).permutation(len(records))
    parts = np.array_split(place[: len(BANKS) * BOOKS], len(BANKS))
    applicants = records.iloc[place[len(BANKS) * BOOKS :]]
    truth = applicants["credit"].astype(int).to_numpy()
    # Public: how rows become entries, and the classes. Any model of this schema has the same.
    like = trained(records.iloc[parts[0]], options.epsilon)
    rows = like.layout.encode(applicants.drop(columns="credit"))
    broker = run_session(
        "score",
        {"models": list(BANKS), "rows": len(rows), "features": like.layout.width},
        owners={"rows": "broker"} | {name: name for name in BANKS},
        receivers=["broker"],
        tables={"rows": lambda: rows}
        | {
            name: partial(weights, records.iloc[part], options.epsilon)
            for name, part in zip(BANKS, parts, strict=True)
        },
    )["broker"]
    decided = np.array(like.layout.classes).astype(int)[broker.results["label"]]
    print(f"{len(BANKS)} banks, each trained at epsilon {options.epsilon:g}; 7 processes")
    print(f"{len(decided)} applicants decided in {broker.seconds:.2f} s, training included")
    print(f"right: {np.mean(decided == truth):.3f}; accepting all: {np.mean(truth == 1):.3f}")
    print(broker.mark)


if __name__ == "__main__":
    main()
