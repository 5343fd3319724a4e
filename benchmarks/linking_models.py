"""Models of linked persons beside the same models of the joined rows in the clear.

    python benchmarks/linking_models.py [--matches 30000] [--seeds 5]
    python benchmarks/linking_models.py --least [--seeds 5]

The first command prints the area under the curve (AUC) of a logistic model on 20,000 fresh persons:
fitted on the joined rows, and linked. Five numbers are one owner's; the other has five and the
label. 30 % of each table are persons of both. All noise is real, and epsilon is 1.

The second asks how many linked persons a model needs, and prints medians over seeds. Slopes of a
linear model are useful if their error is less than their standard error in a fit on the joined
rows: then noise changes less than other persons would. The error is the root of the mean square
over columns. A logistic model is for prediction: it is useful if its AUC is below that of the clear
model by less than the standard error of an AUC of as many persons.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import roc_auc_score

from cloister.core.errors import UncountedWarning
from cloister.shares.linking import Analysis, Column, Linear, LinkedTable, Logistic, Part, Side

Floats = NDArray[np.float64]
_OVERLAP, _FRESH = 0.3, 20_000
_OF_LINEAR = ((4, 8_000), (4, 32_000), (4, 128_000), (10, 32_000), (10, 128_000))
_OF_LOGISTIC = ((10, 500), (10, 1_000), (10, 2_000), (10, 4_000))


@dataclass(frozen=True)
class Truth:
    """Columns of persons, and what their label and amount depend on."""

    slopes: Floats

    def people(self, n: int, draw: np.random.Generator) -> pd.DataFrame:
        """Return persons with columns in [0, 1], a label y, and an amount t."""
        x = draw.random((n, len(self.slopes)))
        score = (x - 0.5) @ self.slopes
        found = pd.DataFrame(x, columns=names_of(len(self.slopes)))
        found["y"] = draw.random(n) < 1 / (1 + np.exp(-score))
        found["t"] = np.clip(score + draw.normal(0, 2, n), -12, 12)
        return found


def names_of(d: int) -> list[str]:
    """Return the names of the columns."""
    return [f"x{i}" for i in range(d)]


def linked(
    whole: pd.DataFrame, matches: int, d: int, analyses: Sequence[Analysis], draw: Any
) -> list[Floats]:
    """Return the coefficients of each analysis, the constant last, from one linked run."""
    first, second = names_of(d)[: d // 2], names_of(d)[d // 2 :]
    rows = len(whole) - (len(whole) - matches) // 2
    ids = draw.permutation(10**7)[: len(whole)]
    own = whole.assign(id=ids)
    tables = {
        "a": own.iloc[:rows][["id", *first]],
        "b": pd.concat([own.iloc[:matches], own.iloc[rows:]])[["id", *second, "y", "t"]],
    }
    numbers = [[Column(name=name, high=1.0) for name in each] for each in (first, second)]
    numbers[1] += [
        Column(name="y", categories=("false", "true")),
        Column(name="t", low=-12.0, high=12.0),
    ]
    sides = {
        name: Side(rows=len(table), key=("id",), columns=tuple(columns))
        for (name, table), columns in zip(tables.items(), numbers, strict=True)
    }
    asked = LinkedTable(
        key="id",
        parts=[Part(rule="digits")],
        sides=sides,
        analyses=analyses,
        epsilon=1.0,
        keys_per_person=1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncountedWarning)
        found = asked.run_here(tables)
    return [answer.estimates["coefficients"].values for answer in found.answers]


@dataclass(frozen=True)
class Fitted:
    """The AUC of a clear and of a linked logistic model, and the error of one of as many people."""

    clear: float
    linked: float
    standard_error: float


def logistic(matches: int, d: int, overlap: float, seed: int) -> Fitted:
    """Fit both logistic models and measure them on fresh persons."""
    draw = np.random.default_rng(seed)
    truth, names = Truth(draw.normal(0, 3, d)), names_of(d)
    rows = round(matches / overlap)
    whole, fresh = (truth.people(n, draw) for n in (2 * rows - matches, _FRESH))
    clear = LogisticRegression(C=1e6, max_iter=1000)
    clear.fit(whole.iloc[:matches][names], whole.iloc[:matches]["y"])
    (found,) = linked(whole, matches, d, [Logistic(of=tuple(names), target="y")], draw)
    y, score = fresh["y"].to_numpy(), clear.decision_function(fresh[names])
    parts = [draw.integers(_FRESH, size=matches) for _ in range(100)]
    return Fitted(
        float(roc_auc_score(y, score)),
        float(roc_auc_score(y, fresh[names] @ found[:-1])),
        float(np.std([roc_auc_score(y[part], score[part]) for part in parts])),
    )


def print_auc(matches: int, seeds: int) -> None:
    """Print the AUC of both models for each seed."""
    print("| seed | in the clear | linked | below |\n|---|---|---|---|")
    below = []
    for seed in range(seeds):
        one = logistic(matches, 10, _OVERLAP, seed)
        below.append(one.clear - one.linked)
        print(f"| {seed} | {one.clear:.4f} | {one.linked:.4f} | {below[-1]:.4f} |", flush=True)
    print(f"| mean | | | {np.mean(below):.4f} |")


def linear_error(matches: int, d: int, seed: int) -> float:
    """Return the error of linked slopes as a multiple of the standard error of clear ones."""
    draw = np.random.default_rng((seed, matches, d))
    whole, names = Truth(draw.normal(0, 3, d)).people(matches, draw), names_of(d)
    x = whole[names].to_numpy()
    clear = LinearRegression().fit(x, whole["t"])
    (values,) = linked(whole, matches, d, [Linear(of=tuple(names), target="t")], draw)
    design = np.column_stack([x, np.ones(matches)])
    variance = np.mean((whole["t"] - clear.predict(x)) ** 2)
    standard = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * variance)[:-1]
    off = (values[:-1] - clear.coef_) / standard
    # What is not known counts as the largest error.
    return float(np.nan_to_num(np.sqrt(np.mean(off**2)), nan=np.inf))


def print_least(seeds: int) -> None:
    """Print the median errors by the number of linked persons."""
    print("| persons | columns | AUC below the clear one | standard error |\n|---|---|---|---|")
    for d, matches in _OF_LOGISTIC:
        each = [logistic(matches, d, 1.0, seed) for seed in range(seeds)]
        below = np.median([one.clear - one.linked for one in each])
        error = np.median([one.standard_error for one in each])
        print(f"| {matches:,} | {d} | {below:.4f} | {error:.4f} |", flush=True)
    print("\n| persons | columns | error of linear slopes, standard errors |\n|---|---|---|")
    for d, matches in _OF_LINEAR:
        error = np.median([linear_error(matches, d, seed) for seed in range(seeds)])
        print(f"| {matches:,} | {d} | {error:.2f} |", flush=True)


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--matches", type=int, default=30_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--least", action="store_true", help="errors by the number of persons")
    args = parser.parse_args()
    if args.least:
        print_least(args.seeds)
    else:
        print_auc(args.matches, args.seeds)


if __name__ == "__main__":
    main()
