"""What a silo's owner allows, and why a job is refused.

The policy is the silo's own: nothing a coordinator says changes it. What it does not allow by name
is refused. Totals over studies and years are the ledger's business; the policy gives their caps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cloister.hazmat.signing import fingerprint_of, verify
from cloister.protocol.plan import Plan
from cloister.schema import Schema
from cloister.tasks.base import Profile

PROPOSE_LABEL = b"cloister/1/propose"
"""What an analyst signs: this and the digest of the plan."""


@dataclass(frozen=True)
class Proposer:
    """Who asks for a job.

    Parameters
    ----------
    name, fingerprint : str
    public, signature : str
        Hexadecimal: the signing key, and its signature over the plan's digest.
    """

    name: str
    fingerprint: str
    public: str
    signature: str

    def signed(self, plan: Plan) -> bool:
        """Return whether the owner of the fingerprint asked for exactly this plan."""
        try:
            public, signature = bytes.fromhex(self.public), bytes.fromhex(self.signature)
        except ValueError:
            return False
        return fingerprint_of(public) == self.fingerprint and verify(
            public, signature, PROPOSE_LABEL, plan.digest
        )


@dataclass(frozen=True)
class Policy:
    """What a silo takes part in; by default in nothing.

    Parameters
    ----------
    tasks : tuple of str
    max_epsilon_per_job, max_epsilon_per_study, max_epsilon_per_year : float or None
        None leaves it to the lifetime cap of the ledger, except for a job, where None allows none.
    min_other_silos : int
        In every sum that is released.
    columns : tuple of str or None
        A job may use these; None for all of the schema.
    profiles : tuple of {"pairwise", "group"}
        "group" must be named: it rests on the aggregator really adding the noise.
    allow_publish : bool
        Whether the result may be for others than the silos.
    standing : bool
        Approve by itself what fits; otherwise a person approves each job.
    """

    tasks: tuple[str, ...] = ()
    max_epsilon_per_job: float | None = None
    max_epsilon_per_study: float | None = None
    max_epsilon_per_year: float | None = None
    min_other_silos: int = 2
    columns: tuple[str, ...] | None = None
    profiles: tuple[Profile, ...] = ("pairwise",)
    allow_publish: bool = False
    standing: bool = False

    def refusal(
        self,
        plan: Plan,
        *,
        silo: str,
        schema: Schema,
        proposer: Proposer | None,
        peers: Mapping[str, str],
        analysts: Mapping[str, str],
        fingerprint: str,
    ) -> str | None:
        """Return the first reason to refuse a plan, in one sentence, or None.

        Parameters
        ----------
        plan : Plan
        silo, fingerprint : str
            This silo's name and the fingerprint of its identity.
        schema : Schema
            This silo's own copy of the data contract.
        proposer : Proposer or None
        peers, analysts : mapping of name to fingerprint
            What the owner pinned.
        """
        checks = (
            self._who(plan, silo, fingerprint, peers),
            self._asked_by(plan, proposer, analysts),
            self._what(plan),
            self._data(plan, schema),
        )
        return next((reason for check in checks for reason in check), None)

    def _who(
        self, plan: Plan, silo: str, fingerprint: str, peers: Mapping[str, str]
    ) -> Iterator[str]:
        members = dict(zip(plan.silos, plan.fingerprints, strict=False))
        if len(plan.fingerprints) != len(plan.silos):
            yield "the plan names no fingerprints, so nobody knows who takes part"
        if members.get(silo) != fingerprint:
            yield f"the plan has another fingerprint for {silo!r} than this silo's own"
        for name, shown in members.items():
            if name == silo:
                continue
            if name not in peers:
                yield f"silo {name!r} is not pinned here"
            elif peers[name] != shown:
                yield f"silo {name!r} has another fingerprint in the plan than the one pinned here"
        if plan.min_silos - 1 < self.min_other_silos:
            yield (
                f"a sum may have only {plan.min_silos - 1} other silos, at least "
                f"{self.min_other_silos} are asked for here"
            )

    def _asked_by(
        self, plan: Plan, proposer: Proposer | None, analysts: Mapping[str, str]
    ) -> Iterator[str]:
        if proposer is None:
            yield "nobody signed for proposing this job"
        elif proposer.name not in analysts:
            yield f"{proposer.name!r} may not propose jobs here"
        elif analysts[proposer.name] != proposer.fingerprint:
            yield f"{proposer.name!r} has another fingerprint than the one pinned here"
        elif not proposer.signed(plan):
            yield f"the signature of {proposer.name!r} is not over this plan"

    def _what(self, plan: Plan) -> Iterator[str]:
        if plan.task.name not in self.tasks:
            yield f"task {plan.task.name!r} is not allowed here"
        if plan.budget is None:
            yield f"task {plan.task.name!r} is not private"
        elif self.max_epsilon_per_job is None:
            yield "no epsilon is allowed for a job here"
        elif plan.budget.epsilon > self.max_epsilon_per_job:
            yield (
                f"epsilon={plan.budget.epsilon:g} is above {self.max_epsilon_per_job:g}, the most "
                "for one job here"
            )
        if plan.profile not in self.profiles:
            yield f"profile {plan.profile!r} is not allowed here"
        if plan.publish and not self.allow_publish:
            yield "the result would be for others than the silos, which is not allowed here"

    def _data(self, plan: Plan, schema: Schema) -> Iterator[str]:
        if self.columns is not None:
            for name in plan.columns:
                if name not in self.columns:
                    yield f"column {name!r} is not allowed here"
        if plan.schema_digest != schema.digest() or plan.columns != schema.names:
            yield "the plan is for another schema than this silo's"
        if plan.grid != schema.grid(plan.grid.frac_bits):
            yield "the plan has other bounds than this silo's schema"
        mine = (schema.unit, schema.max_rows or 1, schema.max_silos_per_person)
        if (plan.unit, plan.max_rows, plan.max_silos_per_person) != mine:
            yield "the plan has another unit of privacy than this silo's schema"
