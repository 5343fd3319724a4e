"""Who asks for a job: an analyst's signature over the plan, which everybody checks alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from cloister.hazmat.signing import Identity, fingerprint_of, verify
from cloister.protocol.plan import Plan

PROPOSE = b"cloister/1/propose"  # the label of a proposer's signature over the plan's digest


@dataclass(frozen=True)
class Proposer:
    """Who asks for a job.

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
        signature = identity.sign(PROPOSE, plan.digest)
        return cls(name, identity.fingerprint, identity.public.hex(), signature.hex())

    def signed(self, plan: Plan) -> bool:
        """Return whether the owner of the fingerprint asked for exactly this plan."""
        try:
            public, signature = bytes.fromhex(self.public), bytes.fromhex(self.signature)
        except ValueError:
            return False
        known = fingerprint_of(public) == self.fingerprint
        return known and verify(public, signature, PROPOSE, plan.digest)


def proposal(plan: Plan, identity: Identity, name: str) -> dict[str, Any]:
    """Return the document that proposes a plan: the plan, and who signed its digest."""
    return {"plan": plan.to_dict(), "proposer": asdict(Proposer.of(plan, identity, name))}
