"""Three silos, each an agent with a ledger of its own, agree on keys and finish a job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from cloister.app.release import Release
from cloister.data import Records
from cloister.federation.silo.agent import AGGREGATOR_NOISE, MODEL, Agent
from cloister.federation.transports.http import Kind
from cloister.hazmat.signing import Identity
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.client import Client
from cloister.protocol.plan import Plan
from cloister.protocol.session import run_rounds
from cloister.testing import ZeroNoise, toy_federation

from .kit import Site, ask, end, offer, said


class Silo:
    """An agent that can be stopped and started again."""

    def __init__(self, folder: Path, name: str, identity: Identity, seed: int) -> None:
        folder.mkdir()
        values = np.random.default_rng(seed).uniform(-1, 1, (50, 2))
        self.site = Site(
            folder, name, standing=True, noise_label="a double", values=values, identity=identity
        )
        self.identity = identity
        self.start()

    def start(self) -> None:
        ledger = self.site.ledger()

        def join(plan: Plan, records: Records) -> Client:
            return Client(
                plan,
                self.site.name,
                records,
                None,
                ledger,
                identity=self.identity,
                noise=ZeroNoise(),
            )

        self.agent: Agent = self.site.agent(ledger=ledger, join=join)


class Network:
    def __init__(self, silos: Mapping[str, Silo], plan: Plan, *, restart: bool) -> None:
        self.silos, self.plan, self.restart = silos, plan, restart

    def exchange(self, frames: Mapping[str, bytes]) -> Mapping[str, bytes]:
        answers = {}
        for name, frame in frames.items():
            silo = self.silos[name]
            (answer,) = silo.agent.on_message(ask(self.plan, frame))
            assert answer.kind == Kind.ANSWER, answer.body
            if self.restart:  # it dies before it could send, and is asked again
                silo.start()
                (again,) = silo.agent.on_message(ask(self.plan, frame))
                assert again.body == answer.body
            silo.agent.prepare(self.plan.run_id)
            answers[name] = answer.body
        return answers


def federation(
    folder: Path, plan: Plan, identities: Mapping[str, Identity], *, restart: bool = False
) -> dict[str, Silo]:
    folder.mkdir()
    silos = {
        name: Silo(folder / name, name, identity, seed)
        for seed, (name, identity) in enumerate(identities.items())
    }
    for silo in silos.values():
        assert said(silo.agent.on_message(offer(plan))) == [("approved", "")]
    network = Network(silos, plan, restart=restart)
    for _ in run_rounds(Aggregator(plan, ZeroNoise()), network):
        pass
    for silo in silos.values():
        silo.agent.on_message(end(plan))
    return silos


@pytest.mark.parametrize("profile", ["pairwise", "group"])
def test_silos_that_die_at_every_step_come_to_the_same_result_at_the_same_cost(
    tmp_path: Path, profile: str
) -> None:
    plan, identities = toy_federation(profile=profile)
    quiet = federation(tmp_path / "quiet", plan, identities)
    dying = federation(tmp_path / "dying", plan, identities, restart=True)
    results = []
    for silo in (*quiet.values(), *dying.values()):
        result = Release.load(silo.site.folder / "results" / plan.run_id / MODEL)
        assert result.noise == ("a double" if profile == "pairwise" else AGGREGATOR_NOISE)
        assert result.survivors == (plan.silos,) * plan.rounds
        results.append(result.results["centres"])
        (job,) = silo.site.ledger().jobs()
        assert not job.is_open
        assert len(job.rounds) == plan.rounds
        assert silo.site.ledger().recorded(plan.run_id) == ()
        silo.site.ledger().verify()
    for centres in results[1:]:
        assert np.array_equal(centres, results[0])
