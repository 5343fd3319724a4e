"""Three silos, each an agent with a ledger of its own, agree on keys and finish a job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister.app.release import Release
from cloister.core.errors import RemoteProtocolError
from cloister.data import Records
from cloister.federation.silo.agent import AGGREGATOR_NOISE, MODEL, Agent
from cloister.federation.transports.http import Kind, Message, printable
from cloister.hazmat.signing import Identity
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.client import Client
from cloister.protocol.lifecycle import SiloState
from cloister.protocol.messages import (
    CONFIRM_LABEL,
    Confirm,
    confirmation_of,
    confirmed,
    decode,
    encode,
)
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


# Dishonest silos ----------------------------------------------------------------------------------


class Lying(Network):
    """One silo confirms, signed, a sum that it was not sent."""

    liar = ""

    def exchange(self, frames: Mapping[str, bytes]) -> Mapping[str, bytes]:
        answers = dict(super().exchange(frames))
        if self.liar in answers:
            message = decode(self.plan, answers[self.liar])
            if isinstance(message, Confirm):
                one = replace(confirmation_of(message), result_hash=bytes(32))
                parts = confirmed(self.plan, message.round, one)
                signature = self.silos[self.liar].identity.sign(CONFIRM_LABEL, *parts)
                lie = replace(message, result_hash=bytes(32), signature=signature)
                answers[self.liar] = encode(self.plan, lie)
        return answers


def convicted(folder: Path) -> tuple[dict[str, Silo], Plan, Aggregator, str]:
    """Return three silos after a job that the last of them ended by a false confirmation."""
    plan, identities = toy_federation(3)
    silos = {
        name: Silo(folder / name, name, identity, seed)
        for seed, (name, identity) in enumerate(identities.items())
    }
    for silo in silos.values():
        silo.agent.on_message(offer(plan))
    aggregator, network = Aggregator(plan, ZeroNoise()), Lying(silos, plan, restart=False)
    network.liar = plan.silos[2]
    with pytest.raises(RemoteProtocolError) as error:
        for _ in run_rounds(aggregator, network):
            pass
    return silos, plan, aggregator, str(error.value)


def job_end(plan: Plan, reason: str, proofs: list[dict[str, Any]]) -> Message:
    body = json.dumps({"status": "failed", "reason": reason, "convictions": proofs}).encode()
    return Message(Kind.END, 0, plan.run_id, body)


def test_a_proved_offence_ends_the_standing_approval_until_the_owner_restores_it(
    tmp_path: Path,
) -> None:
    silos, plan, aggregator, reason = convicted(tmp_path)
    proofs = [one.to_dict() for one in aggregator.convictions]
    liar, honest = plan.silos[2], [silos[name] for name in plan.silos[:2]]
    for silo in honest:
        silo.agent.on_message(job_end(plan, reason, proofs))
        store = silo.site.store()
        job = store.get(plan.run_id)
        assert job is not None
        assert job.state == SiloState.FAILED
        spent = silo.site.ledger().spent("toy")
        assert 0 < spent < 1
        assert f"of this silo is lost to {liar!r}" in job.reason
        assert list(store.convicted()) == [silos[liar].identity.fingerprint]
        log = (silo.site.folder / "audit.jsonl").read_text()
        assert '"convicted"' in log
        # A new job with that silo waits for the owner; one without it does not.
        again = replace(plan, run_id="1" * 32)
        assert ("approved", "") not in said(silo.agent.on_message(offer(again)))
        waiting = store.get("1" * 32)
        assert waiting is not None
        assert waiting.state == SiloState.WAITING
        assert "the standing rule does not cover this job" in waiting.reason
        assert store.reinstate(liar)
        assert not store.reinstate(liar)
        third = replace(plan, run_id="2" * 32)
        assert said(silo.agent.on_message(offer(third))) == [("approved", "")]
    # The convicted silo does not convict itself: its standing rule would cover no job any more.
    silos[liar].agent.on_message(job_end(plan, reason, proofs))
    assert silos[liar].site.store().convicted() == {}


@pytest.mark.parametrize("lie", ["another silo", "no evidence", "other evidence", "no list", "odd"])
def test_a_coordinator_convicts_nobody_by_its_word(tmp_path: Path, lie: str) -> None:
    silos, plan, aggregator, reason = convicted(tmp_path)
    (one,) = (conviction.to_dict() for conviction in aggregator.convictions)
    proofs: Any = {
        "another silo": [{**one, "silo": plan.silos[1]}],
        "no evidence": [{**one, "evidence": []}],
        "other evidence": [{**one, "evidence": [one["evidence"][0][:-2] + "00"]}],
        "no list": {"silo": plan.silos[1]},
        "odd": [None, 3, [], one["silo"]],
    }[lie]
    silo = silos[plan.silos[0]]
    silo.agent.on_message(job_end(plan, reason, proofs))
    store = silo.site.store()
    assert store.convicted() == {}
    job = store.get(plan.run_id)
    assert job is not None
    assert (job.state, job.reason) == (SiloState.FAILED, printable(reason))
