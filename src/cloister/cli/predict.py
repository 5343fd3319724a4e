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
from cloister.task import Classifier, Regressor
from cloister.tasks import from_file
from cloister.tasks.patterns.outliers import Outliers

if TYPE_CHECKING:
    from cloister.estimators.kmeans import DPKMeans

Told = tuple[list[str], Iterable[Sequence[Any]], list[bool]]
"""Heading, answers, and which rows of the file have one."""

NOTE = "labels are NOT private: each is computed from one record; keep them where the records are."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", type=Path, metavar="MODEL", help="model.json of a job")
    parser.add_argument("file", type=Path, metavar="FILE", help="CSV or Parquet")
    parser.add_argument(
        "--schema", type=Path, help="the data contract of the job; needed unless it was k-means"
    )
    parser.add_argument(
        "--task", metavar="FILE.py:CLASS", help="the task of the model, if it is one of your own"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="OUT.csv")
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Write what the model says of each row; return the exit code."""
    out = Output.of(args)
    own = from_file(args.task) if args.task else None
    result = JobResult.load(args.model, {own.name: own} if own else None)
    if "centres" in result.results:
        heading, rows, kept = _clusters(args)
    else:
        heading, rows, kept = _told(result, args)
    answers = iter(rows)
    nothing = ("",) * len(heading)
    _write(args.out, heading, (next(answers) if there else nothing for there in kept))
    out.say(f"written  {args.out}")
    if without := kept.count(False):
        out.say(f"rows without an answer: {without}, for want of a value that the schema asks for")
    out.warn(NOTE)
    out.document({"command": "predict", "file": args.out, "private": False})
    return 0


def _told(result: JobResult, args: argparse.Namespace) -> Told:
    """Return what a model tells that is not k-means."""
    import numpy as np

    from cloister.data import read_rows
    from cloister.estimators.tables import with_target, without_target

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
    values = read_rows(args.file, without_target(schema, target))
    there = np.isfinite(values).all(axis=1)
    kept: list[bool] = np.asarray(there).tolist()
    records = with_target(values[there], target, plan.grid)
    if isinstance(task, Outliers):
        scores = task.scores(result.results, records).tolist()
        cutoff = float(result.results["cutoff"][0])
        return ["score", "outlier"], [(s, int(s > cutoff)) for s in scores], kept
    if isinstance(task, Classifier):
        found = task.probabilities(result.results, records)
        best = found.argmax(axis=1)
        rows = [(task.classes[i], *row) for i, row in zip(best, found.tolist(), strict=True)]
        return [plan.columns[task.target], *(f"p({word})" for word in task.classes)], rows, kept
    told = task.predict(result.results, records).tolist()
    return [plan.columns[task.target]], [(value,) for value in told], kept


def _clusters(args: argparse.Namespace) -> Told:
    """Return what a k-means model tells: the number of the nearest released centre."""
    import numpy as np

    from cloister.data import read_floats, read_rows
    from cloister.estimators.kmeans import DPKMeans

    model = DPKMeans.load(args.model)
    if args.schema:  # which says what a word stands for, and what is missing
        records = read_rows(args.file, schema_of_model(args.schema, model.plan_))
    else:
        records = read_floats(args.file, model.plan_.columns)
    there = np.isfinite(records).all(axis=1)
    labels = model.predict(_named(model, records[there])).tolist() if there.any() else []
    kept: list[bool] = np.asarray(there).tolist()
    return ["cluster"], [(label,) for label in labels], kept


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
