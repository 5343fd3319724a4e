"""``cloister predict``: predictions for the records of a file.

The model is local, or with ``--private`` that of a scorer, who receives only ciphertexts.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.app.release import Release
from cloister.cli.options import (
    add_model_task,
    comma_separated,
    load_model,
    no_predictions,
    schema_of_model,
)
from cloister.cli.output import Output
from cloister.core.errors import PlanError
from cloister.core.files import write_text
from cloister.core.hooks import SCORING_CLIENT
from cloister.data import read_words
from cloister.protocol.task import Classifier, Regressor, SitedTask, Task
from cloister.tasks.patterns.outliers import Outliers

if TYPE_CHECKING:
    from cloister.estimators.kmeans import DPKMeans

Predictions = tuple[list[str], Iterable[Sequence[Any]], list[bool]]
"""Headings, predictions, and flags of the rows of the file that have one."""

NOTE = "labels are NOT private: each is computed from one record; store them with the records."
NOTE_OF_SCORER = (
    "the owner of the model received only ciphertexts and the number of batches; the predictions "
    "are NOT private: store them with the records."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="model.json of a job; with --private https://HOST:PORT"
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="CSV or Parquet")
    parser.add_argument(
        "--schema", type=Path, help="the data contract of the job; required unless it was k-means"
    )
    add_model_task(parser)
    parser.add_argument(
        "--silo", metavar="NAME", help="silo of all rows, for a model with the term site"
    )
    parser.add_argument(
        "--private",
        action="store_true",
        help="encrypt the rows for a scorer; neither the rows nor the model are disclosed",
    )
    parser.add_argument(
        "--keys", type=Path, metavar="KEYS", help="with --private: this party's keys folder"
    )
    parser.add_argument(
        "--keep",
        type=comma_separated,
        default=(),
        metavar="KEY,KEY,...",
        help="columns of FILE to write with each prediction, for example identifiers",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="OUT.csv")


def run(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Write the prediction of each row."""
    # Before a scorer counts the rows, because a column may be missing.
    keys = list(read_words(args.file, args.keep)) if args.keep else []
    heading, rows, kept = _by_scorer(args, out) if args.private else _by_model(args)
    predictions = iter(rows)
    empty = ("",) * len(heading)
    # Written at the end, so that an error leaves no partial file.
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow(("row", *args.keep, *heading))
    for number, (key, usable) in enumerate(zip(keys or [()] * len(kept), kept, strict=True), 1):
        writer.writerow((number, *key, *(next(predictions) if usable else empty)))
    write_text(args.out, stream.getvalue())
    out.say(f"written  {args.out}")
    if without := kept.count(False):
        out.say(f"rows without a prediction: {without}, because a value is missing")
    out.warn(NOTE_OF_SCORER if args.private else NOTE)
    return {"file": args.out, "private": False}


def _by_model(args: argparse.Namespace) -> Predictions:
    """Return the predictions of a local model."""
    args.model = Path(args.model)
    result = load_model(args)
    clusters = "centres" in result.results
    return _clusters(args) if clusters else _predicted(result, args)


def _predicted(result: Release, args: argparse.Namespace) -> Predictions:
    """Return the predictions of a local model other than k-means."""
    import numpy as np

    from cloister.data import read_rows
    from cloister.estimators.tables import with_target, without_target

    plan, task = result.plan, _at_silo(result.plan.task, args.silo)
    if not isinstance(task, Classifier | Regressor | Outliers):
        raise no_predictions(task)
    if args.schema is None:
        raise PlanError(f"a model of task {task.name!r} needs its schema; give --schema.")
    schema = schema_of_model(args.schema, plan)
    target = None if isinstance(task, Outliers) else task.target
    values = read_rows(args.file, without_target(schema, target))
    usable = np.isfinite(values).all(axis=1)
    kept: list[bool] = np.asarray(usable).tolist()
    records = with_target(values[usable], target, plan.grid)
    if isinstance(task, Outliers):
        scores = task.scores(result.results, records).tolist()
        cutoff = float(result.results["cutoff"][0])
        return ["score", "outlier"], [(s, int(s > cutoff)) for s in scores], kept
    if isinstance(task, Classifier):
        probabilities = task.probabilities(result.results, records)
        return *_of_classes(plan.columns[task.target], task.classes, probabilities), kept
    predicted = task.predict(result.results, records).tolist()
    return [plan.columns[task.target]], [(value,) for value in predicted], kept


def _at_silo(task: Task, silo: str | None) -> Task:
    """Return the model for the records of a silo, if one is named."""
    if silo is None:
        return task
    if not isinstance(task, SitedTask) or not task.sites:
        raise PlanError("--silo is for a model with the term site; leave it out.")
    return task.at_silo(silo)


def _of_classes(
    target: str, classes: Sequence[Any], probabilities: Any
) -> tuple[list[str], list[Any]]:
    """Return the headings, and for each row the most probable class and all probabilities."""
    best = [classes[i] for i in probabilities.argmax(axis=1)]
    rows = [(label, *row) for label, row in zip(best, probabilities.tolist(), strict=True)]
    return [target, *(f"p({name})" for name in classes)], rows


def _by_scorer(args: argparse.Namespace, out: Output) -> Predictions:
    """Return the predictions of a scorer; if one row is invalid, no row is encrypted."""
    if args.keys is None:
        raise PlanError(
            "--private needs --keys, this party's keys folder; see cloister federation enroll."
        )
    if find_spec("httpx") is None:
        raise PlanError(
            "--private needs the network packages; run pip install 'cloister[service,he]'."
        )
    # By a hook, because commands do not import the package of shares.
    classes, values = SCORING_CLIENT.load()(args.model, args.keys, args.file, out.warn)
    # A scorer gets all rows or none.
    kept = [True] * len(values)
    if classes:
        return *_of_classes("class", classes, values), kept
    return ["prediction"], [(value,) for value in values.tolist()], kept


def _clusters(args: argparse.Namespace) -> Predictions:
    """Return the number of the nearest released centre of each row."""
    import numpy as np

    from cloister.data import read_floats, read_rows
    from cloister.estimators.kmeans import DPKMeans

    model = DPKMeans.load(args.model)
    if args.schema:  # it defines the numbers of categories and the rules for missing cells
        records = read_rows(args.file, schema_of_model(args.schema, model.plan_))
    else:
        records = read_floats(args.file, model.plan_.columns)
    usable = np.isfinite(records).all(axis=1)
    labels = model.predict(_named(model, records[usable])).tolist() if usable.any() else []
    kept: list[bool] = np.asarray(usable).tolist()
    return ["cluster"], [(label,) for label in labels], kept


def _named(model: DPKMeans, records: Any) -> Any:
    """Return records with the names of their columns, if the model was fitted with names."""
    if not hasattr(model, "feature_names_in_"):
        return records
    # scikit-learn warns if a model with names gets an array.
    import pandas as pd

    return pd.DataFrame(records, columns=list(model.plan_.columns))
