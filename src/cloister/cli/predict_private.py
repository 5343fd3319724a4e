"""``cloister predict --private``: scores of rows that the owner of the model never sees."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cloister.cli.output import Output
from cloister.enrolment import KeyFolder, client_context
from cloister.errors import BudgetExceeded, DataError, PlanError
from cloister.inference.encrypted import ClientKeys, Offer, ScoringClient
from cloister.service.client import Scoring

if TYPE_CHECKING:
    import pandas as pd

NOTE = (
    "the owner of the model saw ciphertexts and how many batches were asked, no value; the "
    "predictions are NOT private: keep them where the rows are."
)
_DAYS = 1  # the keys serve this command alone


def predictions(
    args: argparse.Namespace, out: Output
) -> tuple[list[str], list[list[Any]], list[bool]]:
    """Ask a scorer for each row of a file; return the heading, predictions, and that all have one.

    A row with a missing or strange value is refused before anything is encrypted.
    """
    if args.keys is None:
        raise PlanError("keys must be given with --private: this party's folder, see enroll.")
    with closing(Scoring(args.model, client_context(KeyFolder(args.keys)))) as scorer:
        told = scorer.model()
        offer = Offer.from_document(told["offer"])
        out.warn(offer.notice)
        rows = _frame(args.file, [column.name for column in offer.layout.columns])
        batches = -(-len(rows) // offer.rows)
        if batches * offer.rows > told["rows_left"]:
            raise BudgetExceeded(
                f"{batches} batches of {offer.rows} rows are needed, and {told['rows_left']} rows "
                "are left to this caller; ask the owner of the model."
            )
        keys = ClientKeys.new(days=_DAYS)
        scorer.admit(keys.public)
        client = ScoringClient(offer, keys)
        client.offer.layout.encode(rows)  # refuses a bad value before the first batch is charged
        parts = [rows[start : start + offer.rows] for start in range(0, len(rows), offer.rows)]
        found = [client.decrypt_prediction(scorer.score(client.encrypt_features(p))) for p in parts]
    return _heading(offer), list(_shown(offer, np.concatenate(found))), [True] * len(rows)


def _frame(file: Path, names: list[str]) -> pd.DataFrame:
    """Read the columns that the model asks for."""
    import pandas as pd

    read = pd.read_parquet if file.suffix == ".parquet" else pd.read_csv
    try:
        found: pd.DataFrame = read(file)[names]
        return found
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{str(file)!r} must be a CSV or Parquet file with the columns {names}."
        ) from error


def _heading(offer: Offer) -> list[str]:
    if not offer.classes:
        return ["prediction"]
    return ["class", *(f"p({name})" for name in offer.classes)]


def _shown(offer: Offer, found: NDArray[np.float64]) -> Iterator[list[Any]]:
    if not offer.classes:
        yield from ([value] for value in found.tolist())
        return
    for row in found.tolist():
        yield [offer.classes[int(np.argmax(row))], *row]
