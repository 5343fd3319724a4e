"""The policy of a silo's owner: permitted jobs, and the reasons of refusals.

The policy belongs to the silo; no message of a coordinator changes it. It refuses everything that
it does not allow by name. The ledger sums costs over studies and years; the policy has their caps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from cloister.app.job import derive_plan
from cloister.app.question import differences
from cloister.core.errors import PlanError
from cloister.data.schema import Schema
from cloister.federation.settings import PolicySettings
from cloister.privacy.budget import Budget
from cloister.privacy.ledger import Ledger
from cloister.protocol.code import code_mismatch
from cloister.protocol.plan import Plan, study_name
from cloister.protocol.proposal import Proposer
from cloister.protocol.task import PerSiloTask, SitedTask, Task, pipeline_steps

_SHOWN = 5  # names in a reason; a catalogue may have thousands


@dataclass(frozen=True)
class Policy:
    """The jobs that a silo takes part in; by default none.

    Parameters
    ----------
    rules : PolicySettings
        The rules in the silo's file.
    """

    rules: PolicySettings = field(default_factory=PolicySettings)

    def refusal(
        self,
        plan: Plan,
        *,
        silo: str,
        schema: Schema,
        tasks: Mapping[str, type[Task]],
        proposer: Proposer | None,
        peers: Mapping[str, str],
        analysts: Mapping[str, str],
        fingerprint: str,
    ) -> str | None:
        """Return the first reason to refuse a plan, in one sentence, or None.

        Parameters
        ----------
        silo, fingerprint : str
            This silo's name and the fingerprint of its identity.
        schema : Schema
            This silo's own copy of the data contract, from which the plan is derived again.
        tasks : mapping of str to type
            The tasks whose code this silo has.
        peers, analysts : mapping of name to fingerprint
            The owner's pins.
        """
        # Parties come first, so that a stranger learns no other rule of the policy.
        checks = (
            self._who(plan, silo, fingerprint, peers),
            self._asked_by(plan, proposer, analysts),
            self._read_by(plan, analysts),
            self.refused_study(plan.study),
            self._share(plan, proposer),
            self._what(plan),
            self._cost(plan),
            self._data(plan, schema, tasks),
        )
        return next((reason for check in checks for reason in check), None)

    def _who(
        self, plan: Plan, silo: str, fingerprint: str, peers: Mapping[str, str]
    ) -> Iterator[str]:
        if len(plan.fingerprints) != len(plan.silos):
            yield "the plan has no fingerprints, so members are unknown; plan with fingerprints."
            return
        members = dict(zip(plan.silos, plan.fingerprints, strict=True))
        yield from refused_members(members, silo, fingerprint, peers, "plan")
        if plan.min_silos - 1 < self.rules.min_other_silos:
            yield (
                f"min_silos must be at least {self.rules.min_other_silos + 1} for this silo, got "
                f"{plan.min_silos}; a sum must include {self.rules.min_other_silos} others."
            )

    def _asked_by(
        self, plan: Plan, proposer: Proposer | None, analysts: Mapping[str, str]
    ) -> Iterator[str]:
        if proposer is None:
            yield "the proposal of this job has no signature; submit it with an analyst's keys."
        elif proposer.name not in analysts:
            yield f"{proposer.name!r} is not among the analysts who may propose jobs here."
        elif analysts[proposer.name] != proposer.fingerprint:
            yield (
                f"analyst {proposer.name!r} has the fingerprint {proposer.fingerprint}, but "
                f"{analysts[proposer.name]} is pinned here; compare it with its owner."
            )
        elif not proposer.signed(plan):
            yield f"the signature of {proposer.name!r} does not match this plan; submit it again."

    def _read_by(self, plan: Plan, analysts: Mapping[str, str]) -> Iterator[str]:
        if plan.readers and not self.rules.allow_publish:
            yield "readers must be empty here, as the result is for the silos alone."
        for reader in plan.readers:
            # Name and key, as for a proposer: a stranger may take a pinned name.
            if analysts.get(reader.name) != reader.fingerprint:
                yield (
                    f"reader {reader.name!r} with the fingerprint {reader.fingerprint} is not "
                    "pinned here; compare it with its owner and pin it under [analysts]."
                )

    def _share(self, plan: Plan, proposer: Proposer | None) -> Iterator[str]:
        """Refuse an analyst that would charge the study, and thereby the share, of another."""
        if self.rules.studies_of is None or proposer is None:
            return
        own = self.rules.studies_of.get(proposer.name, ())
        if study_name(plan.study) not in map(study_name, own):
            yield (
                f"study {plan.study!r} is not among those that {proposer.name!r} may charge here: "
                f"{listed(own)}; the owner can add it to studies_of."
            )

    def refused_study(self, study: str) -> Iterator[str]:
        """Yield why a study may not be charged here."""
        allowed = self.rules.studies
        # With free names a cap per study has no effect: the next job names another study.
        free = allowed is None and self.rules.studies_of is None
        if free and self.rules.max_epsilon_per_study is not None:
            allowed = ("default",)
        try:
            name = study_name(study)
        except PlanError as error:
            yield str(error)
            return
        if allowed is not None and name not in map(study_name, allowed):
            yield (
                f"study {name!r} is not among those allowed here: {listed(allowed)}; the owner can "
                "add it to studies."
            )

    def cap_study(self, ledger: Ledger, dataset: str, study: str) -> None:
        """Write the cap of a study into the ledger, if these rules have one that differs.

        Without ``max_epsilon_per_study`` the ledger keeps what it has.
        """
        asked, cap = self.rules.max_epsilon_per_study, ledger.cap(dataset)
        # One above the lifetime cap never binds, but must replace an earlier one that does.
        if asked is not None and (epsilon := min(asked, cap.epsilon)) != (
            ledger.cap(dataset, study).epsilon
        ):
            ledger.study_cap(dataset, study, Budget(epsilon, cap.delta))

    def _what(self, plan: Plan) -> Iterator[str]:
        # Each step of a pipeline must be allowed, or a pipeline could smuggle in any task.
        for name in (task.name for task in pipeline_steps(plan.task)):
            if name not in self.rules.tasks:
                yield f"task {name!r} is not among those allowed here: {listed(self.rules.tasks)}."
        if reason := code_mismatch(plan):
            yield reason
        if plan.profile not in self.rules.profiles:
            allowed = listed(self.rules.profiles)
            yield f"profile {plan.profile!r} is not among those allowed here: {allowed}."
        layers = isinstance(plan.task, PerSiloTask) and plan.task.silos
        terms = isinstance(plan.task, SitedTask) and plan.task.sites
        if (layers or terms) and not self.rules.allow_breakdown:
            yield (
                "a breakdown by silo is not allowed here; plan without by_silo and without the "
                "term site, or ask the owner to set allow_breakdown."
            )

    def _cost(self, plan: Plan) -> Iterator[str]:
        if plan.budget is None or not plan.task.private:
            yield f"task {plan.task.name!r} is not private; only private jobs are allowed here."
            return
        if self.rules.max_epsilon_per_job is None:
            yield "no epsilon is allowed for a job here; the owner must set max_epsilon_per_job."
        for per, cap in (
            ("job", self.rules.max_epsilon_per_job),
            ("study", self.rules.max_epsilon_per_study),
            ("year", self.rules.max_epsilon_per_year),
        ):
            if cap is not None and plan.budget.epsilon > cap:
                yield (
                    f"epsilon must be at most {cap:g}, the cap of a {per} here, got "
                    f"{plan.budget.epsilon:g}."
                )
        if plan.budget.delta > self.rules.max_delta:
            yield f"delta must be at most {self.rules.max_delta:g} here, got {plan.budget.delta:g}."

    def _data(self, plan: Plan, schema: Schema, tasks: Mapping[str, type[Task]]) -> Iterator[str]:
        if plan.schema_digest != schema.digest():
            yield (
                f"schema_digest must be {schema.digest()}, that of this silo's schema, got "
                f"{plan.schema_digest!r}; agree on one schema, see 'cloister schema diff'."
            )
        allowed = self.rules.columns
        for name in plan.columns:
            if allowed is not None and name not in allowed:
                yield f"column {name!r} is not among those allowed here: {listed(allowed)}."
        try:
            derived = derive_plan(plan, schema, tasks)
        except PlanError as error:
            yield f"the plan cannot be made from this silo's schema: {error}"
            return
        # The names of categories, bounds, units and all that a task was designed for.
        if differing := differences(plan, derived):
            yield (
                f"the plan differs in {listed(tuple(differing))} from the plan that this silo "
                "derives from its own schema; make the plan again from the agreed schema."
            )


def refused_members(
    members: Mapping[str, str],
    silo: str,
    fingerprint: str,
    peers: Mapping[str, str],
    what: Literal["plan", "session"],
) -> Iterator[str]:
    """Yield why the parties of a plan or session are not those that the owner pinned.

    Parameters
    ----------
    members, peers : mapping of name to fingerprint
        Those of the plan or session; those that the owner pinned.
    silo, fingerprint : str
        This silo's name and the fingerprint of its identity.
    """
    who = "silo" if what == "plan" else "party"
    if silo not in members:
        yield f"{silo!r} is not a {who} of the {what}; plan with this silo."
        return
    if members[silo] != fingerprint:
        yield (
            f"the {what} has {members[silo]} for {silo!r}, but this silo's fingerprint is "
            f"{fingerprint}; plan with this one."
        )
    names = {pin: name for name, pin in peers.items()}
    for name, shown in members.items():
        if name == silo:
            continue
        if name not in peers and shown in names:
            known = names[shown]
            yield f"{who} {name!r} of the {what} is pinned here under the name {known!r}."
        elif name not in peers:
            yield f"{who} {name!r} is not pinned here; compare its fingerprint and pin it."
        elif peers[name] != shown:
            yield (
                f"{who} {name!r} has the fingerprint {shown} in the {what}, but "
                f"{peers[name]} is pinned here; compare it with its owner."
            )


def listed(names: tuple[str, ...]) -> str:
    """Return the first names of a list as text, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:_SHOWN]) or "none"
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
