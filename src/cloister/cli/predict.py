"""``cloister predict``: a prediction for each record of a file.

Local, with a released model; or with ``--private`` by a scorer, who sees ciphertexts alone.
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
from cloister.protocol.task import Classifier, Regressor
from cloister.tasks.patterns.outliers import Outliers

if TYPE_CHECKING:
    from cloister.estimators.kmeans import DPKMeans

Predictions = tuple[list[str], Iterable[Sequence[Any]], list[bool]]
"""Heading, predictions, and which rows of the file have one."""

NOTE = "labels are NOT private: each is computed from one record; keep them where the records are."
NOTE_OF_SCORER = (
    "the owner of the model saw ciphertexts and how many batches were asked, no value; the "
    "predictions are NOT private: keep them where the rows are."
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
        "--private",
        action="store_true",
        help="encrypt the rows for a scorer, whose model stays there as the rows stay here",
    )
    parser.add_argument(
        "--keys", type=Path, metavar="KEYS", help="with --private: this party's keys folder"
    )
    parser.add_argument(
        "--keep",
        type=comma_separated,
        default=(),
        metavar="KEY,KEY,...",
        help="columns of FILE to write beside each prediction, to join by",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="OUT.csv")


def run(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    """Write the prediction of each row."""
    # before anything is asked of a scorer: a column may not be there
    keys = list(read_words(args.file, args.keep)) if args.keep else []
    heading, rows, kept = _by_scorer(args, out) if args.private else _by_model(args)
    predictions = iter(rows)
    nothing = ("",) * len(heading)
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow(("row", *args.keep, *heading))
    for number, (key, there) in enumerate(zip(keys or [()] * len(kept), kept, strict=True), 1):
        writer.writerow((number, *key, *(next(predictions) if there else nothing)))
    write_text(args.out, stream.getvalue())
    out.say(f"written  {args.out}")
    if without := kept.count(False):
        out.say(f"rows without a prediction: {without}, because a value of the schema is missing")
    out.warn(NOTE_OF_SCORER if args.private else NOTE)
    return {"file": args.out, "private": False}


def _by_model(args: argparse.Namespace) -> Predictions:
    """Return the predictions of a model that is here."""
    args.model = Path(args.model)
    result = load_model(args)
    clusters = "centres" in result.results
    return _clusters(args) if clusters else _predicted(result, args)


def _predicted(result: Release, args: argparse.Namespace) -> Predictions:
    """Return the predictions of a model that is not k-means."""
    import numpy as np

    from cloister.data import read_rows
    from cloister.estimators.tables import with_target, without_target

    plan, task = result.plan, result.plan.task
    if not isinstance(task, Classifier | Regressor | Outliers):
        raise no_predictions(task)
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
        return *_of_classes(plan.columns[task.target], task.classes, found), kept
    predicted = task.predict(result.results, records).tolist()
    return [plan.columns[task.target]], [(value,) for value in predicted], kept


def _of_classes(target: str, classes: Sequence[Any], found: Any) -> tuple[list[str], list[Any]]:
    """Return the heading, and for each row the most probable class and all probabilities."""
    best = [classes[i] for i in found.argmax(axis=1)]
    rows = [(label, *row) for label, row in zip(best, found.tolist(), strict=True)]
    return [target, *(f"p({name})" for name in classes)], rows


def _by_scorer(args: argparse.Namespace, out: Output) -> Predictions:
    """Return the predictions of a scorer; nothing is encrypted if one row is refused."""
    if args.keys is None:
        raise PlanError("keys must be given with --private: this party's folder, see enroll.")
    if find_spec("httpx") is None:
        raise PlanError("--private works over a network: pip install 'cloister[service,he]'.")
    classes, found = SCORING_CLIENT.load()(args.model, args.keys, args.file, out.warn)
    kept = [True] * len(found)
    if classes:
        return *_of_classes("class", classes, found), kept
    return ["prediction"], [(value,) for value in found.tolist()], kept


def _clusters(args: argparse.Namespace) -> Predictions:
    """Return the number of the nearest released centre of each row."""
    import numpy as np

    from cloister.data import read_floats, read_rows
    from cloister.estimators.kmeans import DPKMeans

    model = DPKMeans.load(args.model)
    if args.schema:  # which says what a category stands for, and what is missing
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
