"""Tables for those who choose bounds, epsilon, `nominal_n`, classes and edges.

Forecasts come from plans, which read no record. The other figures are means of fits of the public
sample ``load_patients`` or of simulated records, compared with exact numbers: not a release.
Run: ``python benchmarks/choosing.py [runs]``; it prints the tables of ``docs/results/choosing.md``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression

from cloister import (
    Budget,
    DPKMeans,
    DPLogisticRegression,
    DPNaiveBayes,
    DPStandardScaler,
    PlanError,
    Schema,
    make_plan,
)
from cloister.app.forecast import margins
from cloister.data.samples import load_patients
from cloister.privacy.accounting import attacker_odds
from cloister.tasks import TASKS

EPSILONS, DELTA = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0), 1e-6
SCHEMA = Schema(
    dataset="public",
    unit="row",
    columns=[
        {"name": "x", "type": "number", "min": 0, "max": 1},
        {"name": "group", "type": "category", "categories": ["a", "b"]},
    ],
)


def planned(task: str, epsilon: float, nominal_n: int, **options: Any) -> Any:
    budget = Budget(epsilon, DELTA)
    silos = ["north", "south"]
    return make_plan(TASKS[task], SCHEMA, silos, budget=budget, nominal_n=nominal_n, **options)


def count_margin(epsilon: float) -> float:
    """Return the 95 % half-width of one count of one table."""
    return margins(planned("tabulate", epsilon, 1000, tables=[["group"]]))["count"]


def bounds(runs: int) -> Iterator[tuple[object, ...]]:
    """Yield what the mean of 1,000 blood pressures loses to bounds that are too narrow or wide."""
    values = load_patients()["systolic"].dropna().to_numpy()[:1000]
    for low, high in ((100, 130), (80, 160), (60, 260), (0, 500), (0, 5000)):
        fits = [
            DPStandardScaler(epsilon=1.0, bounds=([low], [high]), nominal_n=1000, delta=DELTA).fit(
                values[:, None]
            )
            for _ in range(runs)
        ]
        width = np.mean([np.ptp(fit.mean_interval_) / 2 for fit in fits])
        cut = np.mean((values < low) | (values > high))
        bias = np.clip(values, low, high).mean() - values.mean()
        yield f"{low} to {high}", f"{cut:.1%}", f"{bias:+.2f}", f"± {width:.2g}"


def epsilons(_: int) -> Iterator[tuple[object, ...]]:
    """Yield what an attacker and a reader gain with epsilon."""
    for epsilon in EPSILONS:
        count = count_margin(epsilon)
        shares = (
            f"± {100 * margins(planned('describe', epsilon, n))['share']:.2g}"
            if epsilon * n >= 250
            else "-"
            for n in (1000, 10_000)
        )
        odds = attacker_odds(Budget(epsilon, DELTA))
        yield f"{epsilon:g}", f"{odds:.2f}", f"± {count:.0f}", *shares, f"{10 * count:,.0f}"


def nominal_numbers(runs: int) -> Iterator[tuple[object, ...]]:
    """Yield the error of two models for a wrong number of records, of 14,867 in truth."""
    frame = load_patients()[["age", "bmi", "systolic", "diabetes"]].dropna()
    X, y = frame[["age", "bmi", "systolic"]].to_numpy(), frame["diabetes"].to_numpy(dtype=bool)
    low, high = np.array([[0, 10, 60], [120, 80, 260]], float)
    half = (high - low) / 2
    exact = LogisticRegression(C=np.inf, tol=1e-8).fit((X - (low + high) / 2) / half, y).coef_[0]
    scaled = X / half
    least = KMeans(3, n_init=5, random_state=0).fit(scaled).inertia_
    first: tuple[float, float] | None = None
    for factor in (1.0, 0.1, 0.5, 2.0, 10.0, None):
        public: dict[str, Any] = {
            "epsilon": 0.5,
            "delta": DELTA,
            "bounds": (low, high),
            "nominal_n": factor and round(factor * len(X)),
        }
        misses, excess = [], []
        for _ in range(runs):
            model = DPLogisticRegression(classes=[False, True], **public).fit(X, y)
            misses.append(model.coef_[0] * half - exact)
            centres = DPKMeans(3, **public).fit(X).cluster_centers_ / half
            distances = ((scaled[:, None] - centres) ** 2).sum(axis=2)
            excess.append(distances.min(axis=1).sum() / least - 1)
        found = float(np.sqrt(np.nanmean(np.square(misses)))), float(np.mean(excess))
        first = first or found
        shown = "omitted" if factor is None else f"{factor:g} times the truth"
        shown = shown.removeprefix("1 times ")
        yield shown, f"{found[0] / first[0]:.2f}", f"{found[1]:.2%}"


def classes(runs: int) -> Iterator[tuple[object, ...]]:
    """Yield the accuracy of naive Bayes with four lists of the classes of 4,000 records."""
    rng = np.random.default_rng(0)
    shares = np.array([0.4, 0.3, 0.2, 0.095, 0.005])
    places = np.array([[0, 0], [4, 0], [0, 4], [4, 4], [2, 2]])

    def drawn(n: int) -> tuple[Any, Any]:
        y = rng.choice(5, n, p=shares)
        return rng.normal(places[y], 1.2), y

    (X, y), (other, truth) = drawn(4000), drawn(20_000)
    lists = {
        "all five of the codebook": list(range(5)),
        "with fifteen that nobody has": list(range(20)),
        "the rare class joined with the fourth": [0, 1, 2, 3],
        "the third forgotten": [0, 1, 3, 4],
    }
    for name, listed in lists.items():
        labels, answer = y.copy(), truth.copy()
        if "joined" in name:
            labels[labels == 4], answer[answer == 4] = 3, 3
        known = np.isin(labels, listed)
        fits = [
            DPNaiveBayes(
                epsilon=0.5, bounds=(-6, 10), classes=listed, nominal_n=4000, delta=DELTA
            ).fit(X[known], labels[known])
            for _ in range(runs)
        ]
        scores = [np.mean(fit.predict(other) == answer) for fit in fits]
        yield name, f"{1 - known.mean():.1%}", f"{np.mean(scores):.3f}"


def edges(_: int) -> Iterator[tuple[object, ...]]:
    """Yield the relative margin of the count of an average bin."""
    for bins in (2, 4, 8, 16, 32, 64):
        cells = []
        for n in (1000, 10_000):
            try:
                plan = planned(
                    "tabulate",
                    1.0,
                    n,
                    tables=[["x"]],
                    edges={"x": list(np.linspace(0, 1, bins + 1)[1:-1])},
                )
                cells.append(f"{n / bins:,.0f}, ± {100 * margins(plan)['count'] * bins / n:.2g}%")
            except PlanError:
                cells.append(f"{n / bins:,.0f}, refused")
        yield bins, *cells


def show(title: str, headings: str, rows: Iterator[tuple[object, ...]]) -> None:
    print(f"\n## {title}\n\n| {headings.replace('; ', ' | ')} |")
    print("|---" * (headings.count("; ") + 1) + "|")
    for row in rows:
        print("|", " | ".join(map(str, row)), "|", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    n_runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    heading = "bounds, mmHg; records cut; bias of the mean; interval of the mean"
    show("Bounds", heading, bounds(n_runs))
    heading = (
        "epsilon; attacker right; one count; share, %, of 1,000; of 10,000; "
        "records for a count of ± 10 %"
    )
    show("Epsilon", heading, epsilons(n_runs))
    show(
        "nominal_n",
        "`nominal_n`; error of logistic regression, over the first; k-means' excess",
        nominal_numbers(n_runs),
    )
    show("Classes", "list; records lost; accuracy", classes(n_runs))
    show("Edges", "bins; of 1,000 records: a bin, its error; of 10,000", edges(n_runs))
