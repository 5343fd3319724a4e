"""The round loop: one message up, one down, one short confirm; the same for any records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from cloister.app.in_process import InProcess
from cloister.core.errors import PlanError, RemoteProtocolError, TransportError
from cloister.protocol.exchanges import Kind
from cloister.protocol.messages import Confirm, Done, Open, Upload, decode
from cloister.protocol.plan import Plan
from cloister.protocol.session import ATTEMPTS, RoundDone, run_rounds
from cloister.protocol.task import Task
from cloister.tasks.clustering.kmeans import FastLloyd, GLloyd, Lloyd, SuLloyd
from cloister.tasks.count import Count
from cloister.testing import Faults, Wire, check_transport, toy_plan, toy_records

K3 = {"n_clusters": 3, "n_features": 2, "rounds": 3}
TASKS: dict[str, Task] = {
    "fastlloyd": FastLloyd(**K3, first_radius=1.4, radius=0.5),
    "glloyd": GLloyd(**K3),
    "sulloyd": SuLloyd(**K3),
    "lloyd": Lloyd(**K3),
    "count": Count(n_features=2),
}


def recorded(plan: Plan, records: Mapping[str, Any]) -> tuple[Wire, Faults]:
    """Run a whole job and return the wire and what went over it."""
    wire = Wire(plan, records, make_transport=lambda handlers: Faults(InProcess(handlers)))
    wire.run()
    assert isinstance(wire.transport, Faults)
    return wire, wire.transport


@pytest.mark.parametrize("law", range(5))
def test_the_in_process_transport_follows_the_laws(law: int) -> None:
    laws = list(check_transport(InProcess))
    assert len(laws) == 5
    assert laws[law]


@pytest.mark.parametrize("silos", [1, 2, 3, 7])
@pytest.mark.parametrize("name", TASKS)
def test_every_silo_ends_with_the_same_state(name: str, silos: int) -> None:
    plan = toy_plan(TASKS[name], silos=silos)
    states = Wire(plan).run()
    assert len(states) == silos
    for state in states[1:]:
        assert all(np.array_equal(state[key], states[0][key]) for key in states[0])


@pytest.mark.parametrize("silos", [1, 3])
def test_one_message_up_one_down_and_one_short_confirm(silos: int) -> None:
    plan = toy_plan(TASKS["fastlloyd"], silos=silos)
    _, faults = recorded(plan, toy_records(plan))
    assert faults.exchanges == 2 * plan.rounds + 1
    assert len(faults.frames) == silos * (2 * plan.rounds + 1)
    kinds = [decode(plan, answer).kind for _, _, _, answer in faults.frames]
    round_kinds = [Kind.UPLOAD] * silos + [Kind.CONFIRM] * silos
    assert kinds == round_kinds * plan.rounds + [Kind.DONE] * silos
    shorts = [len(a) for _, _, _, a in faults.frames if isinstance(decode(plan, a), Confirm)]
    assert max(shorts) < 310  # a header, a hash, a tag and two signatures


def shape_of_traffic(plan: Plan, records: Mapping[str, Any]) -> list[tuple[int, str, int, int]]:
    _, faults = recorded(plan, records)
    return [(number, silo, len(up), len(down)) for number, silo, up, down in faults.frames]


@pytest.mark.parametrize("name", TASKS)
def test_frames_are_a_function_of_the_plan_alone(name: str) -> None:
    plan = toy_plan(TASKS[name])
    one = plan.grid.one
    many, empty, corners, same = (
        toy_records(plan, rows=200),
        toy_records(plan, rows=0),
        {s: np.tile(np.array([[one, -one]], np.int32), (9, 1)) for s in plan.silos},
        {s: np.zeros((5, 2), np.int32) for s in plan.silos},
    )
    lonely = {**empty, "silo-1": many["silo-1"]}
    shapes = [shape_of_traffic(plan, records) for records in (many, empty, corners, same, lonely)]
    assert all(shape == shapes[0] for shape in shapes)


def test_progress_says_nothing_that_depends_on_records() -> None:
    assert [field.name for field in fields(RoundDone)] == ["round", "rounds", "survivors"]
    plan = toy_plan(TASKS["fastlloyd"])
    wire = Wire(plan)
    done = list(run_rounds(wire.aggregator, wire.transport))
    assert done == [RoundDone(t, 3, plan.silos) for t in range(3)]


def test_the_aggregator_is_sent_no_result() -> None:
    """What silos send up, round by round, holds neither the state nor a sum anybody could read."""
    plan = toy_plan(TASKS["fastlloyd"])
    wire, faults = recorded(plan, toy_records(plan))
    centres = [state["centres"] for state in wire.clients["silo-0"].history]
    encodings = {
        values.astype(kind).tobytes()[:8]
        for state in centres
        for values in (state.ravel(), state.ravel() / plan.grid.one)
        for kind in ("<i8", ">i8", "<f8", ">f8")
        if values[0] > 1  # a tag or length could begin with zeros
    }
    for _, _, _, answer in faults.frames:
        message = decode(plan, answer)
        assert isinstance(message, Upload | Confirm | Done)
        assert not [code for code in encodings if code in answer]


def test_what_goes_wrong_in_this_process_is_not_hidden() -> None:
    class Broken(InProcess):
        def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
            raise TransportError("the wire is cut")

    wire = Wire(toy_plan(), make_transport=Broken)
    with pytest.raises(TransportError, match="the wire is cut"):
        wire.run()

    def refuse(frame: bytes) -> bytes:
        raise RemoteProtocolError("a silo refuses")

    wire = Wire(toy_plan(), make_transport=lambda h: InProcess({**h, "silo-0": refuse}))
    with pytest.raises(RemoteProtocolError, match="a silo refuses"):
        wire.run()


def test_a_task_whose_state_breaks_ends_the_job() -> None:
    class Explodes(Count):
        def update(self, t: int, state: Any, released: Any) -> Any:
            return {"count": np.array([np.nan])}

    with pytest.raises(PlanError, match="finite"):
        Wire(toy_plan(Explodes(n_features=2))).run()


class Silent:
    """Counts how often a silo is asked; answers from the `speaks`-th time on."""

    def __init__(
        self, inner: Mapping[str, Callable[[bytes], bytes]], silo: str, speaks: int
    ) -> None:
        self.inner, self.silo, self.speaks = InProcess(inner), silo, speaks
        self.asked: dict[bytes, int] = {}

    def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = self.inner.exchange({s: f for s, f in frames.items() if s != self.silo})
        if self.silo in frames:
            frame = frames[self.silo]
            self.asked[frame] = self.asked.get(frame, 0) + 1
            if self.asked[frame] >= self.speaks:
                answers |= self.inner.exchange({self.silo: frame})
        return answers


@pytest.mark.parametrize(("speaks", "there"), [(1, True), (ATTEMPTS, True), (ATTEMPTS + 1, False)])
def test_a_silent_silo_is_asked_three_times(speaks: int, there: bool) -> None:
    plan = toy_plan()
    wire = Wire(plan, make_transport=lambda handlers: Silent(handlers, "silo-1", speaks))
    done = list(run_rounds(wire.aggregator, wire.transport))
    assert all(("silo-1" in round_.survivors) == there for round_ in done)
    assert isinstance(wire.transport, Silent)
    assert set(wire.transport.asked.values()) == {min(speaks, ATTEMPTS)}


def test_answers_nobody_asked_for_are_ignored() -> None:
    class Chatty(InProcess):
        def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
            answers = super().exchange(frames)
            return {**answers, "stranger": b"hello", "": next(iter(frames.values()), b"")}

    plan = toy_plan()
    records = toy_records(plan)
    plain = Wire(plan, records).run()
    chatty = Wire(plan, records, make_transport=Chatty).run()
    assert all(np.array_equal(plain[0][key], chatty[0][key]) for key in plain[0])


def test_an_open_frame_names_its_round() -> None:
    plan = toy_plan()
    _, faults = recorded(plan, toy_records(plan))
    opened = [decode(plan, up) for _, silo, up, _ in faults.frames if silo == "silo-0"]
    assert [message.round for message in opened if isinstance(message, Open)] == [0, 1]
