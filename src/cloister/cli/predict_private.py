"""``cloister predict --private``: scores of rows that the owner of the model never sees."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from cloister.cli.output import Output
from cloister.enrolment import KeyFolder, client_context
from cloister.errors import BudgetExceeded, PlanError
from cloister.inference.encrypted import ClientKeys, ScoringClient
from cloister.service.client import Scoring

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
    with Scoring(args.model, client_context(KeyFolder(args.keys))) as scorer:
        document, left = scorer.model()
        client = ScoringClient(document, keys := ClientKeys.new(days=_DAYS))
        offer = client.offer
        out.warn(offer.notice)
        entries = offer.layout.encode(args.file)
        batches = np.split(entries, range(offer.rows, len(entries), offer.rows))
        if len(batches) * offer.rows > left:
            raise BudgetExceeded(
                f"{len(batches)} batches of {offer.rows} rows are needed, and {left} "
                "rows are left to this caller; ask the owner of the model."
            )
        scorer.admit(keys.public)
        replies = (scorer.score(client.encrypt_entries(batch)) for batch in batches)
        found = np.concatenate([client.decrypt_prediction(reply) for reply in replies]).tolist()
    all_there = [True] * len(found)
    if not (classes := offer.layout.classes):
        return ["prediction"], [[value] for value in found], all_there
    shown = [[classes[int(np.argmax(row))], *row] for row in found]
    return ["class", *(f"p({name})" for name in classes)], shown, all_there
