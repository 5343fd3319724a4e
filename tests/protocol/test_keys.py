"""Agreement on keys through a coordinator that lies, and heads of ledgers that peers remember."""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cloister.app.in_process import InProcess
from cloister.core.errors import (
    CloisterError,
    LocalProtocolError,
    RemoteProtocolError,
)
from cloister.hazmat.prg import Usage
from cloister.hazmat.signing import Identity
from cloister.privacy.budget import Budget
from cloister.privacy.chain import SignedStatement
from cloister.privacy.ledger import Ledger
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.client import Client
from cloister.protocol.journal import MemoryJournal
from cloister.protocol.keys import _KEYS, KeyAgreement, check_keys, cohort_hash
from cloister.protocol.messages import (
    BEFORE,
    SUM_LABEL,
    Confirmation,
    Deal,
    Invite,
    Keys,
    Message,
    Open,
    Roster,
    decode,
    encode,
    keys_signed,
    sent,
)
from cloister.protocol.plan import Plan
from cloister.protocol.session import run_rounds
from cloister.testing import Wire, ZeroNoise, toy_federation, toy_records

PROFILES = ("group", "pairwise")
Lie = Callable[[str, Message], Message]


def lied_to(plan: Plan, identities: Mapping[str, Identity], lie: Lie) -> list[CloisterError]:
    """Run a job through a coordinator that changes what it sends; return what silos said to it."""
    refusals: list[CloisterError] = []
    wire = Wire(plan, identities=identities)

    class Lying:
        def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
            answers = {}
            for silo, frame in frames.items():
                told = encode(plan, wire.signed(lie(silo, decode(plan, frame))))
                try:
                    answers[silo] = wire.clients[silo].handle(told)
                except CloisterError as error:
                    refusals.append(error)
            return answers

    with pytest.raises(CloisterError):
        for _ in run_rounds(wire.aggregator, Lying(), attempts=1):
            pass
    assert all(len(client.history) == 1 for client in wire.clients.values())
    assert all(client._uploads == 0 for client in wire.clients.values()), "nothing left a silo"
    return refusals


def own_keys(plan: Plan, silo: str, identity: Identity) -> Keys:
    """Return valid keys for a silo under a key of somebody else."""
    place = plan.silos.index(silo)
    prints = list(plan.fingerprints)
    if identity.fingerprint in prints:  # of another silo, and a plan has no fingerprint twice
        prints[prints.index(identity.fingerprint)] = prints[place]
    prints[place] = identity.fingerprint
    forged = replace(plan, fingerprints=tuple(prints))
    keys = KeyAgreement(forged, silo, identity, MemoryJournal()).keys()
    return replace(keys, signature=identity.sign(_KEYS, *keys_signed(plan, keys)))


# --- A coordinator that lies ----------------------------------------------------------------------


@pytest.mark.parametrize("fellow", [False, True])
@pytest.mark.parametrize("profile", PROFILES)
def test_a_coordinator_that_relays_other_keys_is_caught(profile: str, fellow: bool) -> None:
    plan, identities = toy_federation(3, profile)
    stranger = Identity.new()

    def lie(silo: str, message: Message) -> Message:
        if isinstance(message, Roster):
            keys = list(message.keys)
            victim = next(i for i, k in enumerate(keys) if k.sender != silo)
            name = keys[victim].sender
            # A fellow silo may help the coordinator, and its key is in the plan, too.
            other = next(one for at, one in identities.items() if at != name)
            keys[victim] = own_keys(plan, name, other if fellow else stranger)
            return replace(message, keys=tuple(keys))
        return message

    refusals = lied_to(plan, identities, lie)
    assert len(refusals) == 3
    assert all("another identity than the plan names" in str(error) for error in refusals)


@pytest.mark.parametrize("what", ["box", "pair", "commitments", "head", "time", "seen"])
def test_no_part_of_a_silos_keys_can_be_changed_on_the_way(what: str) -> None:
    plan, identities = toy_federation(3)

    def lie(silo: str, message: Message) -> Message:
        if isinstance(message, Roster):
            first = message.keys[0]
            value = getattr(first, what)
            changed: object = {plan.silos[1]: 1} if what == "seen" else value
            if what == "time":
                changed = value + 1
            elif what != "seen":
                is_one = isinstance(value, bytes)
                changed = b"\1" * 32 if is_one else (b"\1" * 32,) * len(value)
            return replace(message, keys=(replace(first, **{what: changed}), *message.keys[1:]))
        return message

    refusals = lied_to(plan, identities, lie)
    assert all("not signed by that silo" in str(error) for error in refusals)


def test_keys_signed_for_one_plan_are_of_no_use_in_another() -> None:
    plan, identities = toy_federation(3)
    silo = plan.silos[0]
    keys = KeyAgreement(plan, silo, identities[silo], MemoryJournal()).keys()
    check_keys(plan, keys)
    with pytest.raises(RemoteProtocolError, match="not signed"):
        check_keys(replace(plan, nominal_n=301), keys)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_cohort_that_is_too_small_gets_no_upload(profile: str) -> None:
    plan, identities = toy_federation(4, profile, min_silos=3)

    def shrunk_roster(silo: str, message: Message) -> Message:
        if isinstance(message, Roster):
            kept = tuple(k for k in message.keys if k.sender in (silo, plan.silos[0]))
            return replace(message, keys=kept)
        return message

    def shrunk_deal(silo: str, message: Message) -> Message:
        if isinstance(message, Deal):
            keep = [i for i, name in enumerate(message.cohort) if name in (silo, plan.silos[0])]
            return Deal(
                tuple(message.cohort[i] for i in keep), tuple(message.boxes[i] for i in keep)
            )
        return message

    for lie in (shrunk_roster, shrunk_deal):
        assert lied_to(plan, identities, lie)


@pytest.mark.parametrize("profile", PROFILES)
def test_two_groups_that_were_shown_different_cohorts_send_nothing(profile: str) -> None:
    """Each group is large enough; the confirmations of the roster do not fit together."""
    plan, identities = toy_federation(4, profile, min_silos=3)

    def lie(silo: str, message: Message) -> Message:
        if isinstance(message, Deal):
            out = plan.silos[3] if silo in plan.silos[:2] else plan.silos[0]
            if silo == out:
                return message
            keep = [i for i, name in enumerate(message.cohort) if name != out]
            return Deal(
                tuple(message.cohort[i] for i in keep), tuple(message.boxes[i] for i in keep)
            )
        return message

    refusals = lied_to(plan, identities, lie)
    # No silo finds a valid confirmation of its cohort in those that the coordinator passes on.
    assert all("not signed" in str(e) or "confirmations, requires" in str(e) for e in refusals)


def test_a_box_for_another_silo_does_not_open() -> None:
    plan, identities = toy_federation(3)

    def lie(silo: str, message: Message) -> Message:
        if isinstance(message, Deal):
            return Deal(message.cohort, (message.boxes[1], message.boxes[0], message.boxes[2]))
        return message

    refusals = lied_to(plan, identities, lie)
    assert all("sealed box" in str(error) for error in refusals)


def test_a_second_roster_or_cohort_is_refused() -> None:
    plan, identities = toy_federation(4, min_silos=3)
    silo = plan.silos[0]
    agreements = {s: KeyAgreement(plan, s, identities[s], MemoryJournal()) for s in plan.silos}
    keys = {s: a.keys() for s, a in agreements.items()}
    aggregator = Identity.new()
    roster = Roster(tuple(keys.values()), aggregator=aggregator.public)
    boxes = {s: a.secrets(roster).boxes for s, a in agreements.items()}
    assert agreements[silo].secrets(roster).boxes == boxes[silo]
    with pytest.raises(RemoteProtocolError, match="second roster"):
        agreements[silo].secrets(replace(roster, keys=roster.keys[:3]))
    digest = cohort_hash(plan, roster, plan.silos)
    signature = aggregator.sign(SUM_LABEL, *sent(plan, BEFORE, digest))
    deal = Deal(plan.silos, tuple(boxes[s][0] for s in plan.silos), signature=signature)
    with pytest.raises(RemoteProtocolError, match="not signed by the aggregator"):
        agreements[silo].masker(replace(deal, signature=bytes(64)))
    agreements[silo].masker(deal)
    with pytest.raises(RemoteProtocolError, match="second cohort"):
        agreements[silo].masker(replace(deal, cohort=deal.cohort[:3], boxes=deal.boxes[:3]))


def test_a_round_does_not_open_before_enough_silos_confirmed_the_roster() -> None:
    plan, identities = toy_federation(3)

    def lie(silo: str, message: Message) -> Message:
        return Open(0) if isinstance(message, Open) else message

    refusals = lied_to(plan, identities, lie)
    assert all("confirmations, requires" in str(error) for error in refusals)
    client = Client(plan, plan.silos[0], [], identity=identities[plan.silos[0]])
    with pytest.raises(RemoteProtocolError, match="keys"):
        client.handle(encode(plan, Open(0)))


def test_an_identity_that_is_not_the_plans_does_not_take_part() -> None:
    plan, _ = toy_federation(3)
    with pytest.raises(LocalProtocolError, match="another fingerprint"):
        Client(plan, plan.silos[0], [], identity=Identity.new())
    with pytest.raises(LocalProtocolError, match="identity"):
        Client(plan, plan.silos[0], [])


@pytest.mark.parametrize("profile", PROFILES)
def test_silos_share_a_key_that_needs_a_part_of_each_and_no_frame_holds_it(profile: str) -> None:
    plan, identities = toy_federation(3, profile)
    wire = Wire(plan, identities=identities)
    frames: list[bytes] = []

    class Watch(InProcess):
        def exchange(self, sent: Mapping[str, bytes]) -> dict[str, bytes]:
            answers = super().exchange(sent)
            frames.extend([*sent.values(), *answers.values()])
            return answers

    wire.transport = Watch({s: c.handle for s, c in wire.clients.items()})
    assert len(wire.run()) == 3
    keys = {c._masker.common_key(Usage.STATE_BOX, b"x") for c in wire.clients.values()}
    assert len(keys) == 1
    group = {getattr(c._masker, "group", c._masker).key for c in wire.clients.values()}
    parts = {c._keys._derived(Usage.GROUP_PART) for c in wire.clients.values()}
    assert len(group) == 1
    assert len(parts) == 3
    assert not [f for f in frames if any(secret in f for secret in group | parts)]


def test_keys_are_the_same_after_a_restart_and_others_in_another_job() -> None:
    plan, identities = toy_federation(3)
    silo, journal = plan.silos[0], MemoryJournal()
    lives = [KeyAgreement(plan, silo, identities[silo], journal).keys() for _ in range(2)]
    timeless = [replace(keys, time=0, signature=b"") for keys in lives]
    assert timeless[0] == timeless[1]
    other = replace(plan, run_id="0" * 32)
    assert KeyAgreement(other, silo, identities[silo], journal).keys().box != lives[0].box
    public = {*lives[0].pair, lives[0].box}
    assert len(public) == 1 + plan.rounds


# --- Confirmations --------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
def test_each_confirmation_is_verified_once_and_its_statement_stored_once(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under pairwise masks two frames of a round have the same confirmations."""
    plan, identities = toy_federation(3, profile)
    verified: list[tuple[Client, int, Confirmation]] = []
    checked = Client._checked_confirmation

    def counted(
        client: Client, t: int, one: Confirmation, digest: bytes, among: Sequence[str]
    ) -> list[SignedStatement]:
        verified.append((client, t, one))
        return checked(client, t, one, digest, among)

    stored: list[SignedStatement] = []

    class Counting(MemoryJournal):
        def remember(self, statements: Iterable[SignedStatement]) -> None:
            stored.extend(statements := tuple(statements))
            super().remember(statements)

    monkeypatch.setattr(Client, "_checked_confirmation", counted)
    journals = {name: Counting() for name in ("", *plan.silos)}
    wire = Wire(plan, identities=identities, journals=journals)
    wire.run()
    stages = plan.rounds + 1  # with the agreement on keys
    assert len(set(verified)) == len(verified) == 3 * 3 * stages
    assert 0 < len(stored) <= 3 * 2 * stages


def test_a_changed_confirmation_is_verified_again() -> None:
    """A confirmation that counted once does not vouch for one that was changed since."""
    plan, identities = toy_federation(3, "pairwise")
    wire = Wire(plan, identities=identities)
    next(run_rounds(wire.aggregator, wire.transport))
    client = wire.clients[plan.silos[0]]
    opening = decode(plan, wire.aggregator.open(1))
    assert isinstance(opening, Open)
    forged = tuple(
        replace(one, signature=bytes(64)) if one.silo != client.silo else one
        for one in opening.confirmations
    )
    with pytest.raises(RemoteProtocolError, match="is forged"):
        client.handle(encode(plan, replace(opening, confirmations=forged)))
    assert client.handle(encode(plan, opening))


# --- Parties that are killed ----------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
def test_every_party_may_be_killed_after_every_exchange_and_nothing_changes(profile: str) -> None:
    plan, identities = toy_federation(3, profile)
    records = toy_records(plan)
    undisturbed = Wire(plan, records, identities=identities).run()[0]
    total = 3 + plan.rounds * (3 if profile == "pairwise" else 2) + 1
    for victim in ("", *plan.silos):
        for at in range(total):
            journals = {name: MemoryJournal() for name in ("", *plan.silos)}
            assert (
                killed(plan, identities, records, journals, victim, at)["centres"]
                == undisturbed["centres"]
            ).all()


class Crash(Exception):
    """The aggregator's process dies."""


def killed(plan, identities, records, journals, victim: str, at: int):  # type: ignore[no-untyped-def]
    """Run a job in which a party dies once, after the silos answered, and comes back."""
    clients: dict[str, Client] = {}
    number = -1

    def born(silo: str) -> Client:
        return Client(
            plan,
            silo,
            [records[silo]],
            journal=journals[silo],
            identity=identities[silo],
            noise=ZeroNoise(),
        )

    class Deadly:
        def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
            nonlocal number
            number += 1
            answers = {s: clients[s].handle(f) for s, f in frames.items()}
            if number == at:
                if victim == "":
                    raise Crash
                clients[victim] = born(victim)
                answers.pop(victim, None)  # it died before the answer arrived
            return answers

    clients.update({silo: born(silo) for silo in plan.silos})
    for _ in range(2):
        aggregator = Aggregator(plan, ZeroNoise(), journals[""])
        try:
            for _ in run_rounds(aggregator, Deadly()):
                pass
            break
        except Crash:
            continue
    states = [client.state for client in clients.values() if client.finished]
    assert len(states) == 3
    return states[0]


def test_no_second_noise_is_drawn_for_a_round_that_was_answered() -> None:
    plan, identities = toy_federation(3, "group")

    class Counting(ZeroNoise):
        drawn = 0

        def draw(self, kind, scale, size):  # type: ignore[no-untyped-def]
            Counting.drawn += 1
            return super().draw(kind, scale, size) + Counting.drawn

    journals = {name: MemoryJournal() for name in ("", *plan.silos)}
    wire = Wire(plan, identities=identities, noise=Counting(), journals=journals)
    rounds = run_rounds(wire.aggregator, wire.transport)
    next(rounds)
    answer = journals[""].frame(plan.run_id, 0)
    before = Counting.drawn
    again = Wire(plan, identities=identities, noise=Counting(), journals=journals)
    again.clients = wire.clients
    again.transport = wire.transport
    again.run()
    assert journals[""].frame(plan.run_id, 0) == answer
    assert Counting.drawn == before + plan.rounds - 1


# --- Machines that round differently --------------------------------------------------------------


def drifted(client: Client, by: float) -> None:
    """Move a silo's state, before rounding, as another machine's arithmetic would."""
    progress = client._progress
    progress._latest = {n: v + by for n, v in progress._latest.items()}
    progress.adopt(progress._on_grid(progress._latest))


@pytest.mark.parametrize("profile", PROFILES)
def test_a_state_that_differs_by_rounding_is_replaced_by_the_leads(profile: str) -> None:
    plan, identities = toy_federation(3, profile)
    wire = Wire(plan, identities=identities)
    one = plan.grid.one
    lead, other = wire.clients[plan.silos[0]], wire.clients[plan.silos[2]]
    for client, by in ((lead, -4e-7), (other, 4e-7)):  # around the edge between two grid points
        progress = client._progress
        edge = {n: (np.floor(v * one) + 0.5) / one for n, v in progress._latest.items()}
        progress._latest = {n: v + by for n, v in edge.items()}
        progress.adopt(progress._on_grid(progress._latest))
    middle = wire.clients[plan.silos[1]]
    middle._progress._latest = dict(lead._progress._latest)
    middle._progress.adopt(lead._progress.state)
    assert (lead.state["centres"] != other.state["centres"]).all()
    states = wire.run()
    assert len(states) == 3
    assert all((s["centres"] == states[0]["centres"]).all() for s in states)


def test_a_state_that_differs_by_more_ends_the_job_before_it_is_spent() -> None:
    plan, identities = toy_federation(3)
    wire = Wire(plan, identities=identities)
    drifted(wire.clients[plan.silos[2]], 3 / plan.grid.one)
    with pytest.raises(RemoteProtocolError, match="differs by more than rounding"):
        wire.run()
    assert wire.aggregator._answer(0) is None
    assert all(len(client.history) == 1 for client in wire.clients.values())


def test_the_coordinator_cannot_read_a_sealed_state() -> None:
    plan, identities = toy_federation(3)
    wire = Wire(plan, identities=identities)
    drifted(wire.clients[plan.silos[2]], 0.2 / plan.grid.one)
    frames: list[bytes] = []

    class Watch(InProcess):
        def exchange(self, sent: Mapping[str, bytes]) -> dict[str, bytes]:
            answers = super().exchange(sent)
            frames.extend(answers.values())
            return answers

    wire.transport = Watch({s: c.handle for s, c in wire.clients.items()})
    centres = wire.clients[plan.silos[0]].state["centres"].astype("<u8").tobytes()
    wire_ok = True
    try:
        wire.run()
    except CloisterError:
        wire_ok = False
    assert wire_ok or frames
    assert not [frame for frame in frames if centres[:16] in frame]


def test_an_invitation_is_answered_with_the_same_keys_for_ever(tmp_path: Path) -> None:
    """Even after the head of the ledger, and the clock, have moved on."""
    plan, identities = toy_federation(3)
    silo = plan.silos[0]
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.open_dataset("toy", cap=Budget(10.0, 1e-6))
    ledger.reserve(dataset="toy", study="s", job=plan.run_id, events=plan.events())
    ask = encode(plan, Invite())
    first = Client(plan, silo, [], journal=ledger, identity=identities[silo]).handle(ask)
    ledger.open_dataset("other", cap=Budget(1.0, 1e-6))
    with unittest.mock.patch("time.time", return_value=1e9):
        assert (
            Client(plan, silo, [], journal=ledger, identity=identities[silo]).handle(ask) == first
        )


# --- Clocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("minutes", [-11, -9, 9, 11])
def test_a_silo_whose_clock_is_far_from_its_peers_leaves_before_anything_is_spent(
    profile: str, minutes: int
) -> None:
    plan, identities = toy_federation(5, profile, min_silos=3)
    wire = Wire(plan, identities=identities)
    victim, told = plan.silos[1], []

    class Watched(InProcess):
        def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
            answers = {}
            for silo, frame in frames.items():
                now = 1e9 + (60 * minutes if silo == victim else 0)
                with unittest.mock.patch("time.time", return_value=now):
                    try:
                        answers[silo] = wire.clients[silo].handle(frame)
                    except CloisterError as error:
                        told.append((silo, str(error)))
            return answers

    wire.transport = Watched({s: c.handle for s, c in wire.clients.items()})
    if abs(minutes) < 10:
        assert len(wire.run()) == 5
        return
    assert len(wire.run()) == 4, "the others go on without it"
    assert {silo for silo, _ in told} == {victim}
    assert "the clock of" in told[0][1]
    assert wire.clients[victim]._uploads == 0
