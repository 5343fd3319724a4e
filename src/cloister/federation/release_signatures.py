"""A silo's signature over a release, which any party can verify later, offline."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cloister.app.replay import difference
from cloister.core.errors import DataError
from cloister.core.files import read_json
from cloister.hazmat.signing import Identity, verify
from cloister.privacy.chain import SignedStatement
from cloister.protocol.plan import Plan

SUFFIX = ".signed"
"""Suffix of the signature file, after the name of the model."""
_LABEL = b"cloister/release/2"  # signatures of label 1 cover a model without words
_HASH = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Attestation:
    """A silo's signature over a model, its released words and the state of its ledger.

    Parameters
    ----------
    silo : str
        Name of the silo in the plan.
    model, sums : str, 64 hexadecimal digits
        SHA-256 of this silo's model file, and of the released words, which are equal at all silos.
    ledger : SignedStatement
        Job, plan, events, head and height of its ledger, signed with the silo's key.
    signature : bytes
        Over the name, both digests and the ledger's statement.
    """

    silo: str
    model: str
    sums: str
    ledger: SignedStatement
    signature: bytes

    @classmethod
    def of(
        cls, model: bytes, words: bytes, silo: str, ledger: SignedStatement, identity: Identity
    ) -> Self:
        """Sign the bytes of a model and of its words."""
        digests = hashlib.sha256(model).hexdigest(), hashlib.sha256(words).hexdigest()
        return cls(silo, *digests, ledger, identity.sign(_LABEL, *_said(silo, *digests, ledger)))

    @property
    def genuine(self) -> bool:
        """True if the owner of the key signed these digests and this ledger statement."""
        said = _said(self.silo, self.model, self.sums, self.ledger)
        return self.ledger.genuine and verify(self.ledger.public, self.signature, _LABEL, *said)

    def objection(self, plan: Plan, sums: str, pins: Mapping[str, str] | None) -> str | None:
        """Return the reason why it does not count for a release of a plan, or None.

        Parameters
        ----------
        sums : str
            SHA-256 of the released words, in hexadecimal.
        pins : mapping of silo to fingerprint, optional
            The fingerprints that the reader trusts; without them, those of the plan count.
        """
        key, said = self.ledger.fingerprint, self.ledger.said
        if not self.genuine:
            return "the signature is not valid"
        if dict(zip(plan.silos, plan.fingerprints, strict=False)).get(self.silo) != key:
            return f"the plan has another key for it than {key}"
        if pins is not None and pins.get(self.silo) != key:
            return f"your settings do not pin {key} for it"
        if (said.job, said.plan) != (plan.run_id, plan.digest.hex()):
            return "its ledger was charged for another job"
        # A silo with a smaller charge would have exceeded the budget that its ledger protects.
        if difference(said.events.to_dict(), plan.events().to_dict()):
            return "its ledger was not charged for the plan's noise"
        if self.sums != sums:
            return "it signed other released words"
        return None

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(
            json.dumps(self._document(), indent=1, allow_nan=False) + "\n", encoding="utf-8"
        )

    def _document(self) -> dict[str, str]:
        return {
            "silo": self.silo,
            "model": self.model,
            "sums": self.sums,
            "public": self.ledger.public.hex(),
            "ledger": self.ledger.text,
            "ledger_signature": self.ledger.signature.hex(),
            "signature": self.signature.hex(),
        }

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file of :meth:`save`; the signature is not verified."""
        found = read_json(path, "signature")
        try:
            keys = ("ledger_signature", "public", "signature")
            ledger_signature, public, signature = (bytes.fromhex(found[key]) for key in keys)
            signed = SignedStatement(found["ledger"], ledger_signature, public)
            made = cls(found["silo"], found["model"], found["sums"], signed, signature)
            _ = made.ledger.said  # a text of no statement is refused here
            if made._document() != found or not all(map(_HASH.fullmatch, (made.model, made.sums))):
                raise ValueError("it has other keys, or values of another form")
            made.silo.encode()
        except Exception:  # of any kind: a stranger wrote it
            raise DataError(
                f"{str(path)!r} is not a release signature of this version; request it from the "
                "silo again."
            ) from None
        return made


def _said(silo: str, model: str, sums: str, ledger: SignedStatement) -> tuple[bytes, ...]:
    # The statement is signed as the text it is.
    return silo.encode(), bytes.fromhex(model), bytes.fromhex(sums), ledger.text.encode()
