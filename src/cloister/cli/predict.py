"""``cloister predict``: what a released model says of each record of a file; local."""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.cli.options import schema_of_model
from cloister.cli.output import Output, add_flags
from cloister.errors import DataError, PlanError
from cloister.jobs import JobResult
from cloister.tasks.base import Classifier, Regressor
from cloister.tasks.outliers import Outliers

if TYPE_CHECKING:
    from cloister.estimators.kmeans import DPKMeans

NOTE = "labels are NOT private: each is computed from one record; keep them where the records are."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", type=Path, metavar="MODEL", help="model.json of a job")
    parser.add_argument("file", type=Path, metavar="FILE", help="CSV or Parquet")
    parser.add_argument(
        "--schema", type=Path, help="the data contract of the job; needed unless it was k-means"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="OUT.csv")
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Write what the model says of each row; return the exit code."""
    out = Output.of(args)
    result = JobResult.load(args.model)
    if "centres" in result.results:
        heading, rows = _clusters(args)
        about = "a row with a missing value has no cluster"
    else:
        heading, rows = _told(result, args)
        about = "a missing value counts as the schema says, or as the middle of its column"
    _write(args.out, heading, rows)
    out.say(f"written  {args.out}: {about}")
    out.warn(NOTE)
    out.document({"command": "predict", "file": args.out, "private": False})
    return 0


def _told(result: JobResult, args: argparse.Namespace) -> tuple[list[str], Iterable[Sequence[Any]]]:
    """Return heading and rows of what a model tells that is not k-means."""
    from cloister.estimators.base import schema_rows

    plan, task = result.plan, result.plan.task
    if not isinstance(task, Classifier | Regressor | Outliers):
        raise PlanError(
            f"model is of task {task.name!r}, which tells nothing about a record; give one that "
            "clusters, classifies, regresses or finds outliers."
        )
    if args.schema is None:
        raise PlanError(f"schema must be given for a model of task {task.name!r}.")
    schema = schema_of_model(args.schema, plan)
    target = None if isinstance(task, Outliers) else task.target
    records = schema_rows(schema, target, args.file, plan.grid)
    if isinstance(task, Outliers):
        scores = task.scores(result.results, records).tolist()
        cutoff = float(result.results["cutoff"][0])
        return ["score", "outlier"], [(s, int(s > cutoff)) for s in scores]
    if isinstance(task, Classifier):
        found = task.probabilities(result.results, records)
        best = found.argmax(axis=1)
        rows = [(task.classes[i], *row) for i, row in zip(best, found.tolist(), strict=True)]
        return [plan.columns[task.target], *(f"p({word})" for word in task.classes)], rows
    told = task.predict(result.results, records).tolist()
    return [plan.columns[task.target]], [(value,) for value in told]


def _clusters(args: argparse.Namespace) -> tuple[list[str], Iterable[Sequence[Any]]]:
    """Return heading and rows of a k-means model: the number of the nearest released centre."""
    import numpy as np

    from cloister.data import read_floats
    from cloister.estimators.kmeans import DPKMeans

    model = DPKMeans.load(args.model)
    # A schema says which number a word stands for.
    schema = schema_of_model(args.schema, model.plan_) if args.schema else None
    records = read_floats(args.file, model.plan_.columns, schema)
    complete = np.isfinite(records).all(axis=1)
    labels = np.full(len(records), "", dtype=object)
    if complete.any():
        labels[complete] = model.predict(_named(model, records[complete]))
    return ["cluster"], [(label,) for label in labels]


def _named(model: DPKMeans, records: Any) -> Any:
    """Return records with the names of their columns, if the model knows names."""
    if not hasattr(model, "feature_names_in_"):
        return records
    import pandas as pd

    return pd.DataFrame(records, columns=list(model.plan_.columns))


def _write(path: Path, heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    try:
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(("row", *heading))
            writer.writerows((number, *row) for number, row in enumerate(rows, start=1))
    except OSError as error:
        raise DataError(f"{os.fspath(path)!r} cannot be written: {error.strerror}.") from None
