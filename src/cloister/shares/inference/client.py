"""The caller of a scorer: has the rows of a file scored, and shows the scorer ciphertexts alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.errors import BudgetExceeded
from cloister.federation.pki import KeyFolder, client_context
from cloister.federation.service.client import Connection
from cloister.shares.inference.encrypted import ClientKeys, ScoringClient


class Scoring(Connection):
    """A connection to a scorer; see :mod:`cloister.shares.inference.service`."""

    _whom = "scorer"

    def model(self) -> tuple[Any, int]:
        """Return the document of the scorer's offer, and the rows that are left to this caller."""
        match self._call("GET", "/v1/model"):
            case {"offer": offer, "rows_left": int(left)}:
                return offer, left
        raise self._strange()

    def admit(self, public_key: bytes) -> None:
        """Send the public key under which requests will come."""
        self._answer("PUT", "/v1/key", content=public_key)

    def score(self, request: bytes) -> bytes:
        """Return the reply to a request."""
        return self._answer("POST", "/v1/score", content=request)


def scores_of_file(
    url: str, keys: Path, file: Path, warn: Callable[[str], None]
) -> tuple[tuple[Any, ...], Floats]:
    """Return the classes of a scorer's model and its predictions for the rows of a file.

    Raises
    ------
    DataError
        If a row is outside the public ranges; nothing was encrypted.
    BudgetExceeded
        If the caller has fewer rows left; nothing was asked.
    TransportError
        If the scorer cannot be reached, or refuses this caller.
    """
    with Scoring(url, client_context(KeyFolder(keys))) as scorer:
        document, left = scorer.model()
        client = ScoringClient(document, own := ClientKeys.new(days=1))  # for this file alone
        offer = client.offer
        warn(offer.notice)
        entries = offer.layout.encode(file)
        batches = np.split(entries, range(offer.rows, len(entries), offer.rows))
        # Checked for the whole file, so that none of its rows are charged in vain.
        if len(batches) * offer.rows > left:
            raise BudgetExceeded(
                f"{len(batches)} batches of {offer.rows} rows are needed, and {left} rows are left "
                "to this caller; ask the owner of the model."
            )
        scorer.admit(own.public)
        replies = (scorer.score(client.encrypt_entries(batch)) for batch in batches)
        found = np.concatenate([client.decrypt_prediction(reply) for reply in replies])
    return offer.layout.classes, found
