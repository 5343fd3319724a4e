"""``cloister predict``: the nearest released centre of each record of a file; local."""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.cli.output import Output, add_flags
from cloister.errors import DataError

if TYPE_CHECKING:
    from cloister.estimators.kmeans import DPKMeans

NOTE = "labels are NOT private: each is computed from one record; keep them where the records are."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", type=Path, metavar="MODEL", help="model.json of a k-means job")
    parser.add_argument("file", type=Path, metavar="FILE", help="CSV or Parquet")
    parser.add_argument("--out", type=Path, required=True, metavar="OUT.csv")
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Write the number of the nearest centre for each row; return the exit code."""
    import numpy as np

    from cloister.data import read_floats
    from cloister.estimators.kmeans import DPKMeans

    out = Output.of(args)
    model = DPKMeans.load(args.model)
    records = read_floats(args.file, model.plan_.columns)
    complete = np.isfinite(records).all(axis=1)
    labels = np.full(len(records), "", dtype=object)
    if complete.any():
        labels[complete] = model.predict(_named(model, records[complete]))
    _write(args.out, labels)
    out.say(f"written  {args.out}: a row with a missing value has no cluster")
    out.warn(NOTE)
    out.document({"command": "predict", "file": args.out, "private": False})
    return 0


def _named(model: DPKMeans, records: Any) -> Any:
    """Return records with the names of their columns, if the model knows names."""
    if not hasattr(model, "feature_names_in_"):
        return records
    import pandas as pd

    return pd.DataFrame(records, columns=list(model.plan_.columns))


def _write(path: Path, labels: Iterable[object]) -> None:
    try:
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(("row", "cluster"))
            writer.writerows(enumerate(labels, start=1))
    except OSError as error:
        raise DataError(f"{os.fspath(path)!r} cannot be written: {error.strerror}.") from None
