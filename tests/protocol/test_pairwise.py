"""Pairwise masks: every drop-out pattern, forks of every list, and what a coalition can see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, product
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.app.in_process import InProcess
from cloister.core.errors import CloisterError, PlanError, RemoteProtocolError
from cloister.hazmat.prg import PadContext, Usage, expand
from cloister.hazmat.ring import to_integers
from cloister.hazmat.signing import Identity
from cloister.privacy.noise import DiscreteNoise
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.client import Client
from cloister.protocol.journal import MemoryJournal
from cloister.protocol.messages import (
    Close,
    Message,
    Open,
    Reply,
    Shares,
    Unmask,
    Upload,
    decode,
    encode,
)
from cloister.protocol.plan import Plan, share_threshold
from cloister.protocol.session import run_rounds
from cloister.secagg.masks import PairwiseMask
from cloister.testing import Wire, ZeroNoise, toy_federation, toy_plan, toy_records

LEGS = 4  # open, reply, unmask; and the keys' three before the first round
SETUP = 3


def pooled(plan: Plan, records: Mapping[str, np.ndarray], survivors: list[tuple[str, ...]]) -> list:
    """Run the task centrally on the records of each round's survivors."""
    state = {k: np.rint(v * plan.grid.one).astype(np.int64) for k, v in plan.task.start().items()}
    states = [state]
    for t, silos in enumerate(survivors):
        total = sum(plan.task.contribute(t, state, records[silo]) for silo in silos)
        released = plan.decode(t, total, len(silos))
        update = plan.task.update(t, state, released)
        state = {k: np.rint(v * plan.grid.one).astype(np.int64) for k, v in update.items()}
        states.append(state)
    return states


class Dying:
    """A transport whose silos fall silent for ever at an exchange, before or after they answer."""

    def __init__(self, inner: InProcess, deaths: Mapping[str, tuple[int, bool]]) -> None:
        self.inner, self.deaths, self.number = inner, deaths, -1
        self.frames: list[tuple[str, bytes, bytes]] = []

    def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        self.number += 1
        answers = {}
        for silo, frame in frames.items():
            at, heard = self.deaths.get(silo, (10**6, False))
            if self.number > at or (self.number == at and not heard):
                continue
            answer = self.inner.exchange({silo: frame})[silo]
            self.frames.append((silo, frame, answer))
            if self.number < at:
                answers[silo] = answer
        return answers


def run(
    plan: Plan, identities: Mapping[str, Identity], deaths: Mapping[str, tuple[int, bool]]
) -> tuple[Wire, Dying, list[tuple[str, ...]], CloisterError | None]:
    records = toy_records(plan)
    wire = Wire(
        plan,
        records,
        identities=identities,
        make_transport=lambda handlers: Dying(InProcess(handlers), deaths),
    )
    survivors, error = [], None
    try:
        for _ in run_rounds(wire.aggregator, wire.transport, attempts=1):
            survivors.append(wire.aggregator.survivors)
    except CloisterError as caught:
        error = caught
    assert isinstance(wire.transport, Dying)
    return wire, wire.transport, survivors, error


# --- Drop-outs ------------------------------------------------------------------------------------

EXCHANGES = SETUP + 2 * 3 + 1  # of a job of two rounds


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.data())
def test_whatever_silos_are_lost_and_when_the_sum_is_of_the_survivors_or_nothing_is_released(
    n: int, data: st.DataObject
) -> None:
    plan, identities = toy_federation(n)
    lost = data.draw(st.lists(st.sampled_from(plan.silos), unique=True, max_size=n - 1))
    deaths = {
        silo: (data.draw(st.integers(0, EXCHANGES - 1)), data.draw(st.booleans())) for silo in lost
    }
    wire, _, survivors, error = run(plan, identities, deaths)
    expected = pooled(plan, toy_records(plan), survivors)
    finished = [c for c in wire.clients.values() if c.finished]
    for client in wire.clients.values():  # whoever got somewhere got the pooled result
        for state, other in zip(client.history, expected, strict=False):
            assert all((state[k] == other[k]).all() for k in state)
    if error is None:
        assert finished
        assert all(len(silos) >= plan.min_silos for silos in survivors)
    if n - len(lost) >= plan.quorum(n):
        assert error is None, "losses within what was agreed never end a job"
        assert {c.silo for c in finished} >= set(plan.silos) - set(lost)


@pytest.mark.parametrize(
    "some",
    [
        pytest.param(slice(0, None, 4), id="a-fourth"),  # of one and two silos, in every leg
        pytest.param(slice(None), id="all", marks=pytest.mark.nightly),
    ],
)
def test_all_patterns_of_one_round_up_to_the_threshold_are_survived(some: slice) -> None:
    n = 6
    numbers = range(n - share_threshold(n, 1) + 1)
    patterns = [lost for number in numbers for lost in combinations(range(n), number)]
    for lost, leg in list(product(patterns, range(SETUP, SETUP + 3)))[some]:
        plan, identities = toy_federation(n)
        deaths = {plan.silos[i]: (leg, bool(i % 2)) for i in lost}
        wire, _, survivors, error = run(plan, identities, deaths)
        assert error is None
        expected = pooled(plan, toy_records(plan), survivors)[-1]
        alive = [wire.clients[s] for s in plan.silos if s not in deaths]
        for client in alive:
            assert client.finished
            assert (client.state["centres"] == expected["centres"]).all()


def test_below_the_threshold_nothing_is_opened() -> None:
    plan, identities = toy_federation(4)
    deaths = {plan.silos[2]: (SETUP + 1, False), plan.silos[3]: (SETUP + 1, False)}
    wire, _, survivors, error = run(plan, identities, deaths)
    assert isinstance(error, RemoteProtocolError)
    assert survivors == []
    assert all(len(client.history) == 1 for client in wire.clients.values())


def test_of_each_member_and_round_one_kind_of_secret_is_shared_and_opened() -> None:
    plan, identities = toy_federation(6)
    deaths = {plan.silos[5]: (SETUP, False), plan.silos[1]: (SETUP + 4, True)}
    wire, transport, survivors, error = run(plan, identities, deaths)
    assert error is None
    held = {s: c._masker for s, c in wire.clients.items() if c.finished}
    members = [plan.silos, survivors[0]]
    for silo, _, answer in transport.frames:
        message = decode(plan, answer)
        if not isinstance(message, Shares):
            continue
        t = message.round
        assert tuple(message.shares) == members[t]
        for member, share in message.shares.items():
            masker = held.get(silo)
            if isinstance(masker, PairwiseMask):
                seed, key = masker.held[member][t]
                assert share == (seed if member in survivors[t] else key)
                assert share != (key if member in survivors[t] else seed)


# --- Forks ----------------------------------------------------------------------------------------


class Lying:
    """A dishonest coordinator: changes what it sends to some silos."""

    def __init__(self, inner: InProcess, plan: Plan, lie) -> None:
        self.inner, self.plan, self.lie = inner, plan, lie
        self.wire: Wire | None = None  # with the key of the dishonest coordinator

    def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = {}
        for silo, frame in frames.items():
            told = self.lie(silo, decode(self.plan, frame))
            if told is None:
                continue
            try:
                signed = self.wire.signed(told) if self.wire else told
                answers |= self.inner.exchange({silo: encode(self.plan, signed)})
            except RemoteProtocolError:
                continue
        return answers


def lied_to(n: int, lie, profile: str = "pairwise") -> tuple[Wire, CloisterError | None]:
    plan, identities = toy_federation(n, profile)
    wire = Wire(
        plan,
        identities=identities,
        make_transport=lambda handlers: Lying(InProcess(handlers), plan, lie(plan)),
    )
    assert isinstance(wire.transport, Lying)
    wire.transport.wire = wire
    try:
        wire.run()
    except CloisterError as error:
        return wire, error
    return wire, None


@pytest.mark.parametrize("profile", ["pairwise", "group"])
def test_a_forked_survivor_list_opens_nothing(profile: str) -> None:
    def lie(plan: Plan):
        def told(silo: str, message: Message) -> Message:
            if isinstance(message, Reply) and silo in plan.silos[:2]:
                others = tuple(s for s in message.survivors if s != plan.silos[3])
                return Reply(message.round, others, message.elements)
            return message

        return told

    wire, error = lied_to(4, lie, profile)
    assert isinstance(error, CloisterError)
    assert all(len(client.history) == 1 for client in wire.clients.values())


@pytest.mark.parametrize("profile", ["pairwise", "group"])
def test_different_sums_for_different_silos_open_nothing(profile: str) -> None:
    def lie(plan: Plan):
        def told(silo: str, message: Message) -> Message:
            if isinstance(message, Reply) and silo == plan.silos[0]:
                return Reply(message.round, message.survivors, message.elements + np.uint64(1))
            return message

        return told

    wire, error = lied_to(3, lie, profile)
    victim, *others = wire.clients.values()
    assert len(victim.history) == 1
    # Under the group mask two of three silos confirm the other sum, and unmask that one.
    opens = profile == "group"
    assert (error is None) == opens
    assert all(client.finished == opens for client in others)


def test_a_second_survivor_set_gets_no_confirmation_and_no_share() -> None:
    plan, identities = toy_federation(4)
    wire = Wire(plan, identities=identities)
    clients = wire.clients
    saved: dict[str, bytes] = {}

    class Watch:
        def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
            for silo, frame in list(frames.items()):
                saved[type(decode(plan, frame)).__name__] = frame
                if "Unmask" in saved and silo == plan.silos[3]:
                    continue  # it has seen no confirmations yet
                clients[silo].handle(frame)
            return {s: clients[s].handle(f) for s, f in frames.items() if "Unmask" not in saved}

    next(iter(run_rounds(wire.aggregator, Watch())))
    reply = decode(plan, saved["Reply"])
    assert isinstance(reply, Reply)
    fewer = reply.survivors[:3]
    second = encode(plan, wire.signed(Reply(0, fewer, reply.elements)))
    for silo in fewer:
        with pytest.raises(RemoteProtocolError, match="answered twice"):
            clients[silo].handle(second)
    unmask = decode(plan, saved["Unmask"])
    assert isinstance(unmask, Unmask)
    for kept in (0, 1):  # fewer signatures than the threshold get no share
        frame = encode(plan, Unmask(0, unmask.confirmations[:kept]))
        with pytest.raises(RemoteProtocolError, match="confirmations, requires"):
            clients[plan.silos[3]].handle(frame)


@pytest.mark.parametrize("part", ["result_hash", "mac", "signature"])
def test_no_part_of_a_confirmation_can_be_forged(part: str) -> None:
    def lie(plan: Plan):
        def told(silo: str, message: Message) -> Message:
            if isinstance(message, Unmask):
                spoilt = tuple(
                    replace(c, **{part: bytes(len(getattr(c, part)))})
                    if c.silo == plan.silos[1]
                    else c
                    for c in message.confirmations
                )
                return Unmask(message.round, spoilt)
            return message

        return told

    wire, error = lied_to(3, lie)
    assert isinstance(error, CloisterError)
    assert all(len(client.history) == 1 for client in wire.clients.values())


def test_a_wrong_secret_unmasks_nothing() -> None:
    def lie(plan: Plan):
        def told(silo: str, message: Message) -> Message:
            if isinstance(message, Open | Close) and message.opened:
                wrong = {s: bytes(32) for s in message.opened}
                return type(message)(message.round, message.confirmations, wrong)
            return message

        return told

    wire, error = lied_to(3, lie)
    assert isinstance(error, CloisterError)
    assert all(len(client.history) == 1 for client in wire.clients.values())


def test_a_silo_with_false_shares_ends_the_job_and_opens_nothing() -> None:
    plan, identities = toy_federation(3)

    class False_(InProcess):
        def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
            answers = super().exchange(frames)
            for silo, answer in answers.items():
                message = decode(plan, answer)
                if isinstance(message, Shares) and silo == plan.silos[2]:
                    wrong = dict.fromkeys(message.shares, bytes(66))
                    answers[silo] = encode(plan, replace(message, shares=wrong))
            return answers

    wire = Wire(plan, identities=identities, make_transport=False_)
    with pytest.raises(RemoteProtocolError, match=r"2 silos gave shares.*'silo-2'.*not signed"):
        wire.run()


# --- What a coalition sees ------------------------------------------------------------------------


def test_a_masked_upload_says_nothing_without_an_honest_silos_seed() -> None:
    """Same noise, other records: the difference of two uploads is not that of the records."""
    plan, identities = toy_federation(3)
    differences = set()
    for _ in range(2):
        uploads = []
        for seed in (1, 2):
            wire = Wire(plan, toy_records(plan, seed=seed), identities=identities)
            seen: list[Upload] = []

            class Watch(InProcess):
                def exchange(self, frames, seen=seen):
                    answers = super().exchange(frames)
                    for answer in answers.values():
                        message = decode(plan, answer)
                        if isinstance(message, Upload):
                            seen.append(message)
                    return answers

            wire.transport = Watch({s: c.handle for s, c in wire.clients.items()})
            wire.run()
            uploads.append(seen[0].elements)
        differences.add((uploads[0] - uploads[1]).tobytes())
    assert len(differences) == 2


@pytest.mark.parametrize(("n", "t", "least"), [(2, 1, 0), (3, 1, 0), (5, 2, 0), (6, 1, 4)])
def test_the_honest_silos_alone_add_the_noise_that_the_budget_needs(
    n: int, t: int, least: int
) -> None:
    plan, _ = toy_federation(n, collusion=t, min_silos=least)
    for block in plan.task.blocks(0):
        honest = plan.min_silos - t
        share, need = plan.share_scale(block), plan.noise_scale(block)
        assert honest * share**2 >= need**2
        assert honest * (share - 1) ** 2 < need**2
        assert plan.noise_std(block, plan.min_silos) == sqrt(plan.min_silos) * share


def test_the_sum_holds_one_share_of_noise_from_each_survivor() -> None:
    """Exactly the noise of the survivors: drawn again from each silo's secret of the job."""
    plan, identities = toy_federation(4)
    journals = {s: MemoryJournal() for s in plan.silos}
    records = toy_records(plan)
    clients = {
        s: Client(plan, s, [records[s]], journal=journals[s], identity=identities[s])
        for s in plan.silos
    }
    aggregator = Aggregator(plan, DiscreteNoise())
    rounds = run_rounds(aggregator, InProcess({s: c.handle for s, c in clients.items()}))
    next(rounds)
    aggregator.open(1)
    keys = aggregator._round_keys
    context = PadContext(plan.digest.hex(), 0, 0, "payload", "")
    reply = aggregator._reply(0)
    left = keys.left_over(
        context, reply.elements.size, plan.silos, reply.survivors, aggregator._finished[0]
    )
    exact = sum(plan.task.contribute(0, clients[s].history[0], records[s]) for s in plan.silos)
    group = clients["silo-0"]._masker.group.key  # whose pads the aggregator cannot take off
    size = reply.elements.size
    for silo in plan.silos:
        left = left + expand(group, context.of(silo), size, Usage.PAD)
    noise = to_integers(reply.elements - left) - exact
    twins = [
        Client(plan, s, [records[s]], journal=journals[s], identity=identities[s])
        for s in plan.silos
    ]
    again = sum(twin._share_of_noise(0) for twin in twins)
    assert (noise == again).all()
    assert np.abs(noise).max() > 0
    shares = [twin._share_of_noise(0) for twin in twins]
    assert len({share.tobytes() for share in shares}) == 4


def test_the_aggregator_adds_no_noise_of_its_own() -> None:
    plan, identities = toy_federation(3)
    wire = Wire(plan, identities=identities, noise=ZeroNoise())
    wire.aggregator._source = DiscreteNoise()
    expected = pooled(plan, toy_records(plan), [plan.silos] * plan.rounds)[-1]
    states = wire.run()
    assert len(states) == 3
    assert all((s["centres"] == expected["centres"]).all() for s in states)


# --- Plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"collusion": 3, "min_silos": 3}, "collusion must be in"),
        ({"profile": "group", "collusion": 1}, "collusion must be 0"),
        ({"fingerprints": ("ed25519:" + "a" * 64,)}, "one for each silo"),
        ({"fingerprints": ("ed25519:" + "a" * 64,) * 3}, "one for each silo"),
        ({"fingerprints": ("a", "b", "c")}, "hexadecimal digits"),
        ({"upload_slot": -1.0}, "upload_slot"),
    ],
)
def test_a_pairwise_plan_that_cannot_hold_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        toy_plan(silos=3, **{"profile": "pairwise", **changes})


def test_pairwise_needs_gaussian_noise() -> None:
    from cloister.tasks.clustering.kmeans import FastLloyd, Lloyd

    laplace = FastLloyd(
        n_clusters=2, n_features=2, rounds=2, first_radius=1.4, radius=0.8, mechanism="laplace"
    )
    for task in (laplace, Lloyd(n_clusters=2, n_features=2, rounds=2)):
        with pytest.raises(PlanError, match="Gaussian"):
            toy_plan(task, silos=3, profile="pairwise")


@given(st.integers(2, 60), st.data())
def test_two_groups_of_the_threshold_share_an_honest_silo(n: int, data: st.DataObject) -> None:
    t = data.draw(st.integers(1, n - 1))
    threshold = share_threshold(n, t)
    assert 2 * threshold - n > t
    assert threshold <= n
