"""A silo's signature over a release, which any party can verify later, offline."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cloister.core.errors import DataError, LedgerError
from cloister.hazmat.signing import Identity, verify
from cloister.privacy.chain import SignedStatement

SUFFIX = ".signed"
"""Suffix of the signature file, after the name of the model."""
_LABEL = b"cloister/release/1"


@dataclass(frozen=True)
class Attestation:
    """A silo's signature over the bytes of a model and the state of its ledger.

    Parameters
    ----------
    silo : str
        Name of the silo in the plan.
    ledger : SignedStatement
        Job, plan, events, head and height of its ledger, signed with the silo's key.
    signature : bytes
        Over the name, the model and the ledger's statement.
    """

    silo: str
    ledger: SignedStatement
    signature: bytes

    @classmethod
    def of(cls, model: bytes, silo: str, ledger: SignedStatement, identity: Identity) -> Self:
        """Sign a model."""
        return cls(silo, ledger, identity.sign(_LABEL, *_said(model, silo, ledger)))

    def genuine(self, model: bytes) -> bool:
        """Return True if the owner of the key signed this model and this ledger statement."""
        said = _said(model, self.silo, self.ledger)
        return self.ledger.genuine and verify(self.ledger.public, self.signature, _LABEL, *said)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        document = {
            "silo": self.silo,
            "public": self.ledger.public.hex(),
            "ledger": self.ledger.text,
            "ledger_signature": self.ledger.signature.hex(),
            "signature": self.signature.hex(),
        }
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file of :meth:`save`; the signature is not verified."""
        try:
            found = json.loads(path.read_bytes())
            keys = ("ledger_signature", "public", "signature")
            ledger_signature, public, signature = (bytes.fromhex(found[key]) for key in keys)
            signed = SignedStatement(str(found["ledger"]), ledger_signature, public)
            made = cls(str(found["silo"]), signed, signature)
            _ = made.ledger.said  # a text of no statement is refused here
        except OSError as error:
            raise DataError(f"signature {str(path)!r} cannot be read: {error.strerror}.") from None
        except (ValueError, KeyError, TypeError, LedgerError):
            raise DataError(
                f"{str(path)!r} is not a release signature; request it from the silo again."
            ) from None
        return made


def _said(model: bytes, silo: str, ledger: SignedStatement) -> tuple[bytes, ...]:
    # The digest has one length for every model; the statement is signed as the text it is.
    return silo.encode(), hashlib.sha256(model).digest(), ledger.text.encode()
