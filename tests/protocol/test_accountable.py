"""A dishonest silo ends no job that the others can finish, and what it signed convicts it alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from cloister.app.in_process import InProcess
from cloister.core.errors import CloisterError, RemoteProtocolError
from cloister.hazmat.signing import Identity
from cloister.protocol.client import Client
from cloister.protocol.convictions import OF_SHARES, OF_SUM, Conviction, is_proved
from cloister.protocol.keys import commitments_in
from cloister.protocol.messages import (
    BEFORE,
    DEALT_LABEL,
    Confirm,
    Message,
    Ready,
    Secrets,
    accepted,
    decode,
    encode,
    result_hash,
    was_sent,
)
from cloister.protocol.plan import Plan
from cloister.secagg.dropout import commitment
from cloister.testing import Wire, toy_federation, toy_records

from .cheats import CHEATS, CONVICTED, UNNAMED, Cheat, false_hash, false_share

SILOS = 4


class Cheating(InProcess):
    """All silos but one are honest; what that one answers is changed, or withheld."""

    def __init__(self, handlers, plan: Plan, cheater: str, cheat: Cheat) -> None:  # type: ignore[no-untyped-def]
        super().__init__(handlers)
        self.plan, self.cheater, self.cheat = plan, cheater, cheat
        self.wire: Wire | None = None
        self.refused: list[str] = []

    def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        assert self.wire is not None
        answers = {}
        for silo, frame in frames.items():
            try:
                answers |= super().exchange({silo: frame})
            except CloisterError as error:
                self.refused.append(f"{silo}: {error}")
                continue
            if silo == self.cheater:
                client = self.wire.clients[silo]
                honest = decode(self.plan, answers.pop(silo))
                told = self.cheat(honest, client, self.wire.identities[silo])
                if told is not None:
                    answers[silo] = encode(self.plan, told)
        return answers


def run(
    cheat: Cheat, cheater: int = 3, profile: str = "pairwise", silos: int = SILOS
) -> tuple[Wire, CloisterError | None]:
    plan, identities = toy_federation(silos, profile, min_silos=silos - 1)
    name = plan.silos[cheater]
    wire = Wire(
        plan,
        identities=identities,
        make_transport=lambda handlers: Cheating(handlers, plan, name, cheat),
    )
    assert isinstance(wire.transport, Cheating)
    wire.transport.wire = wire
    try:
        wire.run()
    except CloisterError as error:
        return wire, error
    return wire, None


@pytest.mark.parametrize("profile", ["pairwise", "group"])
@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.__name__)
def test_one_dishonest_silo_of_four_ends_no_job_and_is_named(cheat: Cheat, profile: str) -> None:
    for cheater in range(SILOS):
        wire, error = run(cheat, cheater, profile)
        plan, name = wire.plan, wire.plan.silos[cheater]
        honest = {s: c for s, c in wire.clients.items() if s != name}
        assert error is None, (cheater, error)
        assert all(client.finished for client in honest.values())
        assert len({str(client.state) for client in honest.values()}) == 1
        # Under the group mask nobody gives shares, so that nobody can give false ones.
        does = profile == "pairwise" or "share" not in cheat.__name__
        assert set(wire.aggregator.faults) == ({name} if does and cheat not in UNNAMED else set())
        convicted = {one.silo: one for one in wire.aggregator.convictions}
        assert set(convicted) == ({name} if does and cheat in CONVICTED else set())
        for one in convicted.values():
            assert one.offence == CONVICTED[cheat]
            read = Conviction.from_dict(one.to_dict())
            assert read == one
            assert all(client.is_proved(read) for client in honest.values())
            assert name in str(one)
        assert len(plan.silos) == SILOS


def test_from_then_on_a_convicted_silo_counts_as_lost() -> None:
    wire, error = run(false_share)
    assert error is None
    honest = wire.plan.silos[:3]
    assert wire.clients[honest[0]].survivors == (wire.plan.silos, honest)


def test_the_sum_is_that_of_the_survivors() -> None:
    wire, error = run(false_hash)
    assert error is None
    records, plan = toy_records(wire.plan), wire.plan
    state = wire.clients[plan.silos[0]].history[0]
    total = sum(plan.task.contribute(0, state, records[silo]) for silo in plan.silos)
    words = wire.clients[plan.silos[0]].sums[0].words
    assert np.array_equal(words.astype(np.int64), total)


def test_below_the_threshold_the_job_ends_and_names_who_was_left_out() -> None:
    for cheat, words in ((false_hash, "aggregator did not send"), (false_share, "had accepted")):
        wire, error = run(cheat, 2, silos=3)
        assert isinstance(error, RemoteProtocolError)
        assert "'silo-2': 'silo-2' signed" in str(error)
        assert words in str(error)
        assert all(len(client.history) == 1 for client in wire.clients.values())


def test_more_convicted_silos_than_the_plan_tolerates_end_the_job() -> None:
    plan, identities = toy_federation(6, min_silos=4)
    two = plan.silos[4:]
    wire = Wire(plan, identities=identities)

    class Two(InProcess):
        def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
            answers = super().exchange(frames)
            for silo in set(two) & set(answers):
                told = false_hash(decode(plan, answers[silo]), wire.clients[silo], identities[silo])
                answers[silo] = encode(plan, told)
            return answers

    wire.transport = Two({silo: client.handle for silo, client in wire.clients.items()})
    with pytest.raises(RemoteProtocolError, match=r"2 silos are convicted.*tolerates 1"):
        wire.run()


# --- Nobody can convict an honest silo ------------------------------------------------------------


def watched() -> tuple[Wire, list[tuple[str, bytes]]]:
    """Return an honest job after its end, with every frame that a silo sent."""
    seen: list[tuple[str, bytes]] = []

    class Watch(InProcess):
        def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
            answers = super().exchange(frames)
            seen.extend(answers.items())
            return answers

    plan, identities = toy_federation(SILOS)
    wire = Wire(plan, identities=identities, make_transport=Watch)
    wire.run()
    return wire, seen


def test_the_frames_of_honest_silos_convict_nobody() -> None:
    wire, seen = watched()
    plan = wire.plan
    witness = wire.clients[plan.silos[0]]
    dealt = {s: dealt_to(wire, s) for s in plan.silos}
    ready = {s: f for s, f in seen if isinstance(decode(plan, f), Ready)}
    for silo, frame in seen:
        message = decode(plan, frame)
        t = BEFORE if isinstance(message, Ready) else message.round
        assert not witness.is_proved(Conviction(silo, t, OF_SUM, (frame,)))
        for other in plan.silos:  # nor with the commitments that others accepted
            evidence = (frame, ready[other], dealt[other])
            assert not witness.is_proved(Conviction(silo, t, OF_SHARES, evidence))


def dealt_to(wire: Wire, silo: str) -> bytes:
    return commitments_in(wire.plan, wire.aggregator._boxes_for(silo))


@pytest.fixture(scope="module", params=[false_hash, false_share], ids=["sum", "shares"])
def convicted(request: pytest.FixtureRequest) -> tuple[Wire, Conviction]:
    wire, _ = run(request.param)
    (one,) = wire.aggregator.convictions
    return wire, one


def test_changed_evidence_convicts_nobody_else(convicted: tuple[Wire, Conviction]) -> None:
    wire, one = convicted
    plan, witness = wire.plan, wire.clients[wire.plan.silos[0]]
    assert witness.is_proved(one)
    assert not witness.is_proved(replace(one, round=one.round + 1))
    for silo in plan.silos[:3]:
        assert not witness.is_proved(replace(one, silo=silo))
        own = tuple(frame.replace(one.silo.encode(), silo.encode()) for frame in one.evidence)
        assert not witness.is_proved(replace(one, silo=silo, evidence=own))
    # Every byte of what contradicts the silo is bound by its signature: the frame of the sum but
    # for the tag, the frame of the shares, and the commitments.
    for number in (0, 2) if one.offence == OF_SHARES else (0,):
        frame = one.evidence[number]
        for place in range(0, len(frame), 5):
            changed = bytearray(frame)
            changed[place] ^= 1
            evidence = (*one.evidence[:number], bytes(changed), *one.evidence[number + 1 :])
            try:
                mac = decode(plan, bytes(changed)).mac != decode(plan, frame).mac  # type: ignore[union-attr]
            except (AttributeError, RemoteProtocolError):
                mac = False
            assert witness.is_proved(replace(one, evidence=evidence)) == mac


def test_an_aggregator_that_sends_two_sums_convicts_no_silo_that_received_one() -> None:
    """The silo signs the aggregator's signature with the hash, so nobody can take it away."""
    plan, identities = toy_federation(SILOS)
    wire = Wire(plan, identities=identities)
    victim = plan.silos[3]
    said: list[bytes] = []

    class Forking(InProcess):
        def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
            reply = decode(plan, frames.get(victim, next(iter(frames.values()))))
            if reply.kind.name == "REPLY" and victim in frames:
                other = wire.signed(replace(reply, elements=reply.elements + np.uint64(1)))
                answers = super().exchange({**frames, victim: encode(plan, other)})
                said.append(answers[victim])
                return answers
            return super().exchange(frames)

    wire.transport = Forking({silo: client.handle for silo, client in wire.clients.items()})
    wire.run()  # the other three confirm one sum
    (frame,) = said[:1]
    witness = wire.clients[plan.silos[0]]
    assert not any(witness.is_proved(one) for one in wire.aggregator.convictions)
    assert not witness.is_proved(Conviction(victim, 0, OF_SUM, (frame,)))
    confirm = decode(plan, frame)
    assert isinstance(confirm, Confirm)
    stripped = encode(plan, replace(confirm, received=bytes(64)))
    assert not witness.is_proved(Conviction(victim, 0, OF_SUM, (stripped,)))


def test_a_dealer_that_commits_twice_cannot_convict_whom_it_dealt_to() -> None:
    """Each silo signs which commitments it accepted, so others of the dealer bind nobody."""
    wire, seen = watched()
    plan, identities = wire.plan, wire.identities
    holder, dealer = plan.silos[1], 2
    dealt = bytearray(dealt_to(wire, holder))
    dealt[dealer * len(dealt) // SILOS] ^= 1  # another commitment of that dealer
    frames = {type(decode(plan, f)).__name__: f for s, f in seen if s == holder}
    evidence = (frames["Shares"], frames["Ready"], bytes(dealt))
    shares = decode(plan, frames["Shares"])
    witness = wire.clients[plan.silos[0]]
    assert not witness.is_proved(Conviction(holder, shares.round, OF_SHARES, evidence))
    # With an acceptance of those commitments in its name, which it did not sign, neither.
    ready = decode(plan, frames["Ready"])
    assert isinstance(ready, Ready)
    forged = replace(ready, dealt=commitment(bytes(dealt)))
    mallory = identities[plan.silos[dealer]]
    forged = replace(forged, acceptance=mallory.sign(DEALT_LABEL, *accepted(plan, forged)))
    evidence = (frames["Shares"], encode(plan, forged), bytes(dealt))
    assert not witness.is_proved(Conviction(holder, shares.round, OF_SHARES, evidence))


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"silo": "silo-1", "round": 0, "offence": "sum", "evidence": 3},
        {"silo": "silo-1", "round": "x", "offence": "sum", "evidence": []},
        {"silo": "silo-1", "round": 0, "offence": "theft", "evidence": []},
        {"silo": "silo-1", "round": 0, "offence": "sum", "evidence": ["zz"]},
        {"silo": "silo-1", "round": 0, "offence": "sum", "evidence": [None]},
    ],
)
def test_what_is_no_conviction_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError, match="ignored"):
        Conviction.from_dict(document)


@pytest.mark.parametrize("offence", [OF_SUM, OF_SHARES])
@pytest.mark.parametrize("evidence", [(), (b"",), (b"x", b"y"), (b"x", b"y", b"z"), (b"",) * 4])
def test_evidence_of_any_shape_convicts_nobody(
    convicted: tuple[Wire, Conviction], offence: str, evidence: tuple[bytes, ...]
) -> None:
    wire, _ = convicted
    client = wire.clients[wire.plan.silos[0]]
    assert not client.is_proved(Conviction(wire.plan.silos[1], 0, offence, evidence))
    roster, cohort = client._keys.roster, client._keys.cohort
    assert not is_proved(wire.plan, roster, cohort, Conviction("nobody", 0, offence, evidence))


def test_a_dealer_whose_shares_do_not_fit_its_commitments_is_named_before_anything_is_charged() -> (
    None
):
    plan, identities = toy_federation(3)
    name = plan.silos[1]

    def cheat(message: Message, client: Client, identity: Identity) -> Message:
        if isinstance(message, Secrets):
            spoilt = tuple(box[:40] + bytes([box[40] ^ 1]) + box[41:] for box in message.boxes)
            return replace(message, boxes=spoilt)
        return message

    wire = Wire(
        plan,
        identities=identities,
        make_transport=lambda handlers: Cheating(handlers, plan, name, cheat),
    )
    assert isinstance(wire.transport, Cheating)
    wire.transport.wire = wire
    with pytest.raises(RemoteProtocolError, match="0 silos confirmed their keys"):
        wire.run()
    assert all(f"shares that {name!r} dealt" in why for why in wire.transport.refused)
    assert all(client._uploads == 0 for client in wire.clients.values())


def test_the_aggregator_signs_each_sum_with_one_key_of_the_job() -> None:
    wire, error = run(lambda message, client, identity: message)
    assert error is None
    assert wire.aggregator.faults == {}
    reply = wire.aggregator._reply()
    roster = wire.aggregator._known_roster()
    digest = result_hash(wire.plan, reply)
    assert was_sent(wire.plan, reply.round, digest, reply.signature, roster.aggregator)
    assert not was_sent(wire.plan, reply.round + 1, digest, reply.signature, roster.aggregator)
    other, _ = run(lambda message, client, identity: message)
    assert other.aggregator._known_roster().aggregator != roster.aggregator
