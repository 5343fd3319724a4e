"""Rules of a job that several owners make together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from cloister.core.errors import PlanError
from cloister.federation.settings import PolicySettings
from cloister.federation.silo.policy import Policy
from cloister.protocol.plan import Plan
from cloister.protocol.proposal import Proposer
from cloister.protocol.task import Profile
from cloister.tasks import TASKS
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.testing import toy_federation, toy_plan, toy_schema

SCHEMA = toy_schema()
PLAN, IDENTITIES = toy_federation(7, "pairwise")
PINS = dict(zip(PLAN.silos, PLAN.fingerprints, strict=True))


def refusal(plan: Plan, silo: str, others: int) -> str | None:
    asker = IDENTITIES[silo]
    proposer = Proposer(
        "ann",
        asker.fingerprint,
        asker.public.hex(),
        asker.sign(b"cloister/1/propose", plan.digest).hex(),
    )
    policy = Policy(
        PolicySettings(tasks=(plan.task.name,), max_epsilon_per_job=2.0, min_other_silos=others)
    )
    return policy.refusal(
        plan,
        silo=silo,
        schema=SCHEMA,
        tasks=TASKS,
        proposer=proposer,
        peers={name: pin for name, pin in PINS.items() if name != silo},
        analysts={"ann": asker.fingerprint},
        fingerprint=PINS[silo],
    )


@pytest.mark.parametrize("min_silos", [4, 5, 6, 7])
def test_a_plan_that_every_member_takes_has_the_largest_minimum_of_them(min_silos: int) -> None:
    others = dict(zip(PLAN.silos, (1, 2, 5, 2, 3, 1, 4), strict=True))
    parties = {"profile": "pairwise", "fingerprints": PLAN.fingerprints}
    plan = toy_plan(silos=7, min_silos=min_silos, **parties)
    taken = all(refusal(plan, silo, others[silo]) is None for silo in plan.silos)
    assert taken == (min_silos >= 1 + max(others.values()))


@dataclass(frozen=True)
class Unpadded(FastLloyd):
    """A task whose frames an aggregator must not see while it knows the noise."""

    profiles: ClassVar[frozenset[Profile]] = frozenset({"local", "pairwise"})


def test_a_task_runs_under_no_profile_that_it_does_not_allow() -> None:
    task = Unpadded(
        n_clusters=2, n_features=2, rounds=2, first_radius=1.4, radius=0.8, public_seed=1
    )
    for silos, profile in ((1, "local"), (3, "pairwise")):
        assert toy_plan(task, silos, profile=profile).profile == profile
    with pytest.raises(PlanError, match="allows profiles"):
        toy_plan(task, 3, profile="group")
