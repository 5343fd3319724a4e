"""Convictions of silos by their own signatures.

An honest silo confirms a sum only with the aggregator's signature on it, and gives only the shares
whose commitments it accepted when it got them. A frame that contradicts this and that the silo
signed convicts it. Every other silo of the job verifies the evidence, so no word of the coordinator
counts. ``docs/proofs/accountable-rounds.md`` shows that no honest silo can be convicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from cloister.core.errors import RemoteProtocolError
from cloister.hazmat.signing import verify
from cloister.protocol.keys import cohort_hash, commitments_of
from cloister.protocol.messages import (
    BEFORE,
    DEALT_LABEL,
    SHARES_LABEL,
    Confirm,
    Ready,
    Roster,
    Shares,
    accepted,
    confirmation_of,
    decode,
    given,
    is_confirmed,
    was_sent,
)
from cloister.protocol.plan import Plan
from cloister.secagg.dropout import commitment

OF_SUM, OF_SHARES = "sum", "shares"
_SENTENCES = {
    OF_SUM: "signed that it received a sum that the aggregator did not send",
    OF_SHARES: "signed shares other than those it had accepted",
}


@dataclass(frozen=True)
class Conviction:
    """A silo's offence in a job, with the frames that prove it.

    Parameters
    ----------
    round : int
        -1 before the first round.
    offence : {"sum", "shares"}
        It confirmed a sum that it was not sent, or it gave other shares than it had accepted.
    evidence : tuple of bytes
        Of a sum: the frame with the confirmation. Of shares: the frame of the shares, the frame by
        which the silo accepted its shares, and their commitments.
    """

    silo: str
    round: int
    offence: str
    evidence: tuple[bytes, ...]

    def __str__(self) -> str:
        when = "before the first round" if self.round == BEFORE else f"in round {self.round}"
        return f"{self.silo!r} {_SENTENCES[self.offence]} {when}"

    def to_dict(self) -> dict[str, Any]:
        """Return the conviction as JSON-able values."""
        evidence = [frame.hex() for frame in self.evidence]
        return {**vars(self), "evidence": evidence}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Read a conviction; raise RemoteProtocolError if it is none."""
        try:
            evidence = tuple(bytes.fromhex(frame) for frame in document["evidence"])
            made = cls(
                str(document["silo"]), int(document["round"]), str(document["offence"]), evidence
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RemoteProtocolError("a conviction cannot be read; it is ignored.") from error
        if made.offence not in _SENTENCES:
            raise RemoteProtocolError("a conviction names no known offence; it is ignored.")
        return made


def is_proved(plan: Plan, roster: Roster, cohort: tuple[str, ...], conviction: Conviction) -> bool:
    """Return True if the evidence convicts the silo that a conviction names."""
    # From this silo's own roster, whose keys the identities in the plan signed.
    public = {keys.sender: keys.identity for keys in roster.keys}.get(conviction.silo)
    if public is None:
        return False
    try:
        if conviction.offence == OF_SUM:
            return _sum_is_false(plan, roster, conviction, public)
        return _shares_are_false(
            plan, cohort_hash(plan, roster, cohort), cohort, conviction, public
        )
    except (RemoteProtocolError, ValueError):  # frames of a stranger
        return False


def _sum_is_false(plan: Plan, roster: Roster, conviction: Conviction, public: bytes) -> bool:
    (frame,) = conviction.evidence  # another number is a ValueError, which proves nothing
    message = decode(plan, frame)
    if not isinstance(message, Confirm | Ready) or message.sender != conviction.silo:
        return False
    t = BEFORE if isinstance(message, Ready) else message.round
    one = confirmation_of(message)
    # An honest silo signs only what the aggregator signed before.
    lied = not was_sent(plan, t, one.result_hash, one.received, roster.aggregator)
    return t == conviction.round and is_confirmed(plan, t, one, public) and lied


def _shares_are_false(
    plan: Plan, digest: bytes, cohort: tuple[str, ...], conviction: Conviction, public: bytes
) -> bool:
    of_shares, of_ready, dealt = conviction.evidence
    shares, ready = decode(plan, of_shares), decode(plan, of_ready)
    if not (isinstance(shares, Shares) and isinstance(ready, Ready)):
        return False
    # The silo accepted these very commitments: a dealer could sign others afterwards.
    signed = (
        shares.sender == ready.sender == conviction.silo
        and shares.round == conviction.round
        and ready.result_hash == digest
        and ready.dealt == commitment(dealt)
        and verify(public, shares.signature, SHARES_LABEL, *given(plan, shares))
        and verify(public, ready.acceptance, DEALT_LABEL, *accepted(plan, ready))
    )
    return signed and bool(false_shares(plan, cohort, dealt, shares))


def false_shares(
    plan: Plan, cohort: tuple[str, ...], dealt: bytes, shares: Shares
) -> tuple[str, ...]:
    """Return the silos whose share differs from both that the giver accepted for the round."""
    committed = commitments_of(plan, cohort, dealt, shares.round)
    # Seed or key: the sum decides which of both to give, and silos do not sign that choice.
    return tuple(
        dealer
        for dealer, share in shares.shares.items()
        if commitment(share) not in committed.get(dealer, ())
    )
