"""Shares of noise add up to what the budget needs, and broken twins of them are caught.

What an observer faces under pairwise masks, who has the opened sum and the shares of the silos that
help it, is the exact sum and the shares of the honest silos. Here these are drawn as a client
draws them, each from a fresh secret of a job.

False alarms. What runs on fresh bytes of the operating system may fail by chance.

- *Law*: the checks of :mod:`test_discrete_noise` on sums of shares, three checks at each of two
  scales, ``ALPHA = 1e-9`` each: 6e-9.
- *Audit*: two plans with 6 Gaussian checks each, two bounds of ``ALPHA`` each: 2.4e-8.
- *Independence*: the correlation of n pairs of independent shares exceeds r with probability at
  most ``2 exp(-n r^2 / 4)`` for r < 1; ten pairs at r = 0.03 and n = 200,000: 6e-19.

Together below 4e-8. Twins run on fixed seeds and cannot fail by chance.
"""

from __future__ import annotations

from itertools import combinations
from math import sqrt

import numpy as np
import pytest
from numpy.typing import NDArray

from cloister.core.randomness import new_key, public_generator
from cloister.hazmat.prg import Usage, derive
from cloister.hazmat.ring import Integers
from cloister.hazmat.signing import Identity
from cloister.privacy.budget import Budget
from cloister.privacy.noise import NoiseKind, ShareNoise
from cloister.protocol.client import Client
from cloister.protocol.plan import Plan
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.testing import toy_plan

from . import audit as audits
from . import test_discrete_noise as laws

ALPHA, N = 1e-9, 600_000


def pairwise(silos: int, collusion: int, **changes: object) -> Plan:
    task = FastLloyd(n_clusters=1, n_features=1, rounds=3, first_radius=1.0, radius=0.8)
    return toy_plan(
        task, silos, profile="pairwise", collusion=collusion, budget=Budget(4.0, 1e-5), **changes
    )


class Honest:
    """The noise that nobody in the coalition knows: one share of each honest silo."""

    label = "shares of the honest silos"

    def __init__(self, plan: Plan, silos: int | None = None) -> None:
        self.plan = plan
        self.silos = plan.min_silos - plan.collusion if silos is None else silos

    def share(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        secret = derive(new_key(), Usage.NOISE, self.plan.digest)
        return ShareNoise(secret).draw(kind, scale, size)

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        (block,) = {
            b
            for t in range(self.plan.rounds)
            for b in self.plan.task.blocks(t)
            if self.plan.noise_scale(b) == scale
        }
        own = self.plan.share_scale(block)
        return sum(self.share(kind, own, size) for _ in range(self.silos))  # type: ignore[return-value]


class Twin(Honest):
    """The same on a fixed seed, with shares of another size."""

    def __init__(self, plan: Plan, silos: int, factor: float) -> None:
        super().__init__(plan, silos)
        self.factor = factor
        self.rng = public_generator("pairwise twin", silos)

    def share(self, kind: NoiseKind, scale: int, size: int) -> NDArray[np.int64]:
        return np.rint(self.rng.normal(0, self.factor * scale, size)).astype(np.int64)


def worlds(plan: Plan):  # type: ignore[no-untyped-def]
    """A record at the first radius, and others that keep the centre almost a radius away."""
    grid = plan.grid
    keep = 1 - 0.998 * plan.task.payload(1).radius  # type: ignore[attr-defined]
    return audits.Worlds(
        grid.encode(np.array([[keep]])), np.array([10_000]), grid.encode(np.array([[1.0]]))[0]
    )


PLANS = {"three silos": pairwise(3, 1), "seven silos, two collude": pairwise(7, 2)}


@pytest.mark.parametrize("name", PLANS)
def test_what_a_coalition_sees_leaks_no_more_than_claimed(name: str) -> None:
    plan = PLANS[name]
    assert audits.alarming(audits.audit(plan, worlds(plan), Honest(plan))) == []


@pytest.mark.parametrize("name", PLANS)
def test_the_audit_alarms_when_shares_are_made_for_all_silos_instead_of_the_honest(
    name: str,
) -> None:
    """The defect this profile invites: sigma over the root of all survivors."""
    plan = PLANS[name]
    honest = plan.min_silos - plan.collusion
    twin = Twin(plan, honest, sqrt(honest / plan.min_silos))
    assert audits.alarming(audits.audit(plan, worlds(plan), twin))


@pytest.mark.parametrize("name", PLANS)
def test_the_audit_alarms_when_one_honest_silo_adds_nothing_or_colludes(name: str) -> None:
    plan = PLANS[name]
    twin = Twin(plan, plan.min_silos - plan.collusion - 1, 1.0)
    assert audits.alarming(audits.audit(plan, worlds(plan), twin))


@pytest.mark.parametrize(("share", "silos"), [(4, 4), (500, 4)])
def test_a_sum_of_shares_is_one_discrete_gaussian(share: int, silos: int) -> None:
    plan = PLANS["three silos"]
    sample = sum(Honest(plan).share("gaussian", share, N) for _ in range(silos))
    law = laws.Law("gaussian", share * 2)  # the root of four
    found = {name: laws.CHECKS[name](sample, law) for name in ("ks", "bins", "tail")}
    assert min(found.values()) >= ALPHA, found


def test_a_sum_of_shares_with_one_missing_is_found() -> None:
    sample = sum(Twin(PLANS["three silos"], 1, 1.0).share("gaussian", 500, N) for _ in range(3))
    assert laws.CHECKS["ks"](sample, laws.Law("gaussian", 1000)) < ALPHA


def test_shares_of_silos_and_rounds_are_independent() -> None:
    """Drawn by real clients, each from the secret of its own journal."""
    silos = {f"silo-{i}": Identity.new() for i in range(3)}
    task = FastLloyd(n_clusters=1000, n_features=199, rounds=2, first_radius=1.4, radius=0.8)
    plan = toy_plan(
        task, 3, profile="pairwise", fingerprints=tuple(i.fingerprint for i in silos.values())
    )
    shares = []
    for silo, identity in silos.items():
        client = Client(plan, silo, [], identity=identity)
        shares += [client._share_of_noise(t).astype(np.float64) for t in range(plan.rounds)]
    scaled = [s / s.std() for s in shares]
    assert all(abs(float((a * b).mean())) < 0.03 for a, b in combinations(scaled, 2))
    again = (np.array(shares[0]) * shares[0]).mean() / shares[0].std() ** 2
    assert again > 0.9, "the statistic sees what is not independent"


def test_a_silo_draws_its_share_before_it_reads_a_record() -> None:
    silos = {f"silo-{i}": Identity.new() for i in range(3)}
    plan = toy_plan(
        None, 3, profile="pairwise", fingerprints=tuple(i.fingerprint for i in silos.values())
    )

    class Records:
        read = False

        def __iter__(self):  # type: ignore[no-untyped-def]
            Records.read = True
            return iter(())

    client = Client(plan, "silo-0", Records(), identity=silos["silo-0"])
    client.prepare()
    assert 0 in client._shares_of_noise
    assert not Records.read
