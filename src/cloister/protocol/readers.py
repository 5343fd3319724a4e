"""Readers: parties outside a job that learn its result, sealed to them by every silo.

Each silo signs the released sums and seals them to each reader of the plan. The coordinator carries
boxes that it cannot open. A reader accepts sums that enough silos of the plan signed alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cloister.core.errors import PlanError, RemoteProtocolError
from cloister.hazmat import kex
from cloister.hazmat.prg import Usage, derive, join
from cloister.hazmat.signing import (
    PUBLIC_BYTES,
    SIGNATURE_BYTES,
    Identity,
    fingerprint_of,
    verify,
)

if TYPE_CHECKING:
    from cloister.protocol.plan import Plan

BOX_OVERHEAD = 2 * PUBLIC_BYTES + SIGNATURE_BYTES + kex.SEAL_BYTES
"""Bytes of a box in excess of the sums."""

_READER, _RESULT = b"cloister/1/reader", b"cloister/1/result"  # labels of signatures
_FORMAT = "cloister-reader/1"
_MOST_CARD, _MOST_NAME = 10_000, 64  # bytes, and characters as in a certificate


@dataclass(frozen=True)
class Reader:
    """A party that may read the result of a job.

    Parameters
    ----------
    name : str
        Its name, as in its certificate.
    public, box : str
        Its Ed25519 identity, and the X25519 key to which results are sealed; hexadecimal.
    signature : str
        By the identity, over name and box key, so that nobody can exchange the latter.
    """

    name: str
    public: str
    box: str
    signature: str

    @classmethod
    def of(cls, identity: Identity, name: str) -> Self:
        """Return the entry of the owner of an identity."""
        box = kex.public_of(_private(identity))
        signature = identity.sign(_READER, name.encode(), box)
        return cls(name, identity.public.hex(), box.hex(), signature.hex())

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its identity, which people compare and pin."""
        return fingerprint_of(bytes.fromhex(self.public))

    @property
    def genuine(self) -> bool:
        """True if the identity signed a name and a key to which results can be sealed."""
        texts = (self.public, self.box, self.signature)
        try:
            public, box, signature = (bytes.fromhex(text) for text in texts)
            # Silos would meet an unusable key after the last round, when all is spent.
            kex.agree(bytes(kex.PUBLIC_BYTES), box, Usage.RESULT, b"")
            named = self.name.isprintable() and 0 < len(self.name) <= _MOST_NAME
            signed = verify(public, signature, _READER, self.name.encode(), box)
        # A stranger may write any value.
        except (AttributeError, TypeError, ValueError, RemoteProtocolError):
            return False
        return named and signed and texts == (public.hex(), box.hex(), signature.hex())

    def card(self) -> dict[str, str]:
        """Return the document by which this party asks to be named as a reader."""
        return {"format": _FORMAT, **asdict(self)}

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the card of a reader; raise PlanError if it is none or was changed."""
        try:
            with path.open("rb") as file:
                document = json.loads(file.read(_MOST_CARD))
            found = document.pop("format", None)
            reader = cls(**document)
        except OSError as error:
            raise PlanError(f"reader {str(path)!r} cannot be read: {error.strerror}.") from None
        except (AttributeError, TypeError, ValueError, RecursionError):
            found = None
        if found != _FORMAT or not reader.genuine:
            raise PlanError(
                f"{str(path)!r} is no card of a reader, or was changed; let the reader write it "
                "again with 'cloister jobs reader-card'."
            )
        return reader


def seal(plan: Plan, silo: str, identity: Identity, sums: bytes) -> tuple[bytes, ...]:
    """Return the box of a silo for each reader of a plan, in order: the signed sums."""
    signature = identity.sign(_RESULT, plan.digest, silo.encode(), sums)
    said = identity.public + signature + sums
    return tuple(
        kex.seal_to(bytes.fromhex(one.box), said, Usage.RESULT, _about(plan, silo, one.public))
        for one in plan.readers
    )


@dataclass(frozen=True)
class Vouched:
    """The sums that enough silos signed.

    Parameters
    ----------
    sums : mapping
        As :func:`~cloister.protocol.progress.sums_to_dict` returns them.
    silos : tuple of str
        The silos that signed them, in the plan's order.
    others : mapping of silo to str
        What is wrong with the box of each other silo that sent one.
    """

    sums: Mapping[str, Any]
    silos: tuple[str, ...]
    others: Mapping[str, str]


def open_boxes(plan: Plan, identity: Identity, boxes: Iterable[tuple[str, bytes]]) -> Vouched:
    """Open the boxes of silos and return the sums that at least ``min_silos`` of them signed.

    Raises
    ------
    PlanError
        If the identity is not that of a reader of the plan.
    RemoteProtocolError
        If too few silos signed the same sums.
    """
    # By key, as a name can be enrolled again with another one.
    if identity.public.hex() not in [one.public for one in plan.readers]:
        raise PlanError(
            f"{identity.fingerprint} is not a reader of job {plan.run_id}; its readers are "
            f"{', '.join(repr(one.name) for one in plan.readers) or 'its silos alone'}."
        )
    signers: dict[bytes, list[str]] = {}
    others = {}
    for silo, box in boxes:
        try:
            signers.setdefault(_opened(plan, silo, identity, box), []).append(silo)
        except RemoteProtocolError as error:
            # One bad box must not hide a result that enough silos vouch for.
            others[silo] = str(error)
    # A majority of the silos is needed, so at most one list of sums has enough signatures.
    sums, silos = max(signers.items(), key=lambda one: len(one[1]), default=(b"", []))
    for dissenters in signers.values():
        if dissenters is not silos:
            others |= dict.fromkeys(dissenters, "it signed other sums.")
    if len(silos) < plan.min_silos:
        about = "; ".join(f"{silo}: {why}" for silo, why in others.items())
        raise RemoteProtocolError(
            f"{len(silos)} silos vouch for the same result of job {plan.run_id}, the plan requires "
            f"{plan.min_silos}; ask the owners of its silos for it. {about}".rstrip()
        )
    return Vouched(json.loads(sums), tuple(s for s in plan.silos if s in silos), others)


def _opened(plan: Plan, silo: str, identity: Identity, box: bytes) -> bytes:
    """Return the sums in the box of a silo; raise RemoteProtocolError if it is not genuine."""
    about = _about(plan, silo, identity.public.hex())
    said = kex.unseal_from(_private(identity), box, Usage.RESULT, about)
    public, rest = said[:PUBLIC_BYTES], said[PUBLIC_BYTES:]
    signature, sums = rest[:SIGNATURE_BYTES], rest[SIGNATURE_BYTES:]
    # The box carries the key, since a plan has fingerprints only.
    known = plan.fingerprints[plan.silos.index(silo)]
    if fingerprint_of(public) != known or not verify(
        public, signature, _RESULT, plan.digest, silo.encode(), sums
    ):
        raise RemoteProtocolError("its box is not signed by the silo that the plan names.")
    return sums


def _private(identity: Identity) -> bytes:
    # Derived, so that a party has one key to keep; the usage separates it from signatures.
    return derive(identity.seed, Usage.READER_KEY, b"")


def _about(plan: Plan, silo: str, reader: str) -> bytes:
    # So that no box can be shown as that of another job, silo or reader.
    return join((plan.digest, silo.encode(), reader.encode()))
