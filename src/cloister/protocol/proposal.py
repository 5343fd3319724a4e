"""The proposal of a job: an analyst's signature over the plan, which each party verifies."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from cloister.hazmat.signing import Identity, fingerprint_of, verify
from cloister.protocol.plan import Plan

PROPOSE = b"cloister/1/propose"  # the label of a proposer's signature over the plan's digest


@dataclass(frozen=True)
class Proposer:
    """The analyst that proposes a job.

    Parameters
    ----------
    public, signature : str
        Hexadecimal: the signing key, and its signature over the plan's digest.
    """

    name: str
    fingerprint: str
    public: str
    signature: str

    @classmethod
    def of(cls, plan: Plan, identity: Identity, name: str) -> Self:
        """Sign a plan."""
        # Over the digest, which covers the fresh nonce of the plan: no signature serves two jobs.
        signature = identity.sign(PROPOSE, plan.digest)
        return cls(name, identity.fingerprint, identity.public.hex(), signature.hex())

    def signed(self, plan: Plan) -> bool:
        """Return True if the owner of the fingerprint signed exactly this plan."""
        try:
            public, signature = bytes.fromhex(self.public), bytes.fromhex(self.signature)
        except ValueError:  # a coordinator passes on any text
            return False
        matches = fingerprint_of(public) == self.fingerprint
        return matches and verify(public, signature, PROPOSE, plan.digest)


def proposal(plan: Plan, identity: Identity, name: str) -> dict[str, Any]:
    """Return the document that proposes a plan: the plan, and the signature of its proposer."""
    return {"plan": plan.to_dict(), "proposer": asdict(Proposer.of(plan, identity, name))}
