"""The agent on a connection that comes and goes: nobody waits, nothing is lost, nothing hangs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloister.core.errors import TransportError
from cloister.federation.silo.connection import _BACKOFF, serve
from cloister.federation.transports.http import Kind, Message
from cloister.protocol import lifecycle
from cloister.protocol.lifecycle import SiloState as State
from cloister.protocol.messages import Open, encode
from cloister.testing import toy_plan

from .kit import Site, ask, end, offer, said

PATIENCE = 60.0  # seconds, only against hanging


class Line:
    """A stream whose other end is the test."""

    def __init__(self) -> None:
        self.inbox: queue.Queue[Message | None] = queue.Queue()
        self.sent: queue.Queue[Message] = queue.Queue()
        self.closed = False

    def receive(self, timeout: float) -> Message | None:
        try:
            message = self.inbox.get(timeout=timeout)
        except queue.Empty:
            return None
        if message is None:
            raise TransportError("the stream has ended.")
        return message

    def send(self, message: Message) -> None:
        self.sent.put(message)

    def close(self) -> None:
        self.closed = True

    def cut(self) -> None:
        self.inbox.put(None)

    def answer(self) -> Message:
        return self.sent.get(timeout=PATIENCE)


class Coordinator:
    """Takes the agent's calls."""

    def __init__(self) -> None:
        self.lines: queue.Queue[Line] = queue.Queue()
        self.away = threading.Event()
        self.calls: list[float] = []

    def connect(self) -> Line:
        self.calls.append(time.monotonic())
        if self.away.is_set():
            raise TransportError("nobody listens.")
        line = Line()
        self.lines.put(line)
        return line

    def line(self) -> Line:
        return self.lines.get(timeout=PATIENCE)


@contextmanager
def serving(site: Site, connect: Callable[[], object]) -> Iterator[threading.Event]:
    stop = threading.Event()
    agent = site.agent(wait=stop.wait)
    thread = threading.Thread(
        target=serve, args=(agent, connect, stop), kwargs={"where": "coordinator"}, daemon=True
    )
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        since = time.monotonic()
        thread.join(PATIENCE)
        assert time.monotonic() - since < PATIENCE / 2, "the agent waits for somebody"
        assert not thread.is_alive()


def eventually(true: Callable[[], bool]) -> None:
    due = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < due
        time.sleep(0.02)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_approval_by_another_process_is_told_while_the_agent_runs(site: Site) -> None:
    plan, coordinator = toy_plan(), Coordinator()
    with serving(site, coordinator.connect):
        line = coordinator.line()
        line.inbox.put(offer(plan))
        eventually(lambda: site.store().state(plan.run_id) == State.WAITING)
        assert line.sent.empty()
        site.store().move(plan.run_id, lifecycle.ACCEPT, by="owner")
        assert said([line.answer()]) == [("approved", "")]
        line.inbox.put(ask(plan, encode(plan, Open(0)), number=7))
        answer = line.answer()
        assert (answer.kind, answer.number, answer.job) == (Kind.ANSWER, 7, plan.run_id)
        site.store().move(plan.run_id, lifecycle.WITHDRAW, by="owner")
        assert said([line.answer()]) == [("declined", "withdrawn by its owner.")]
        eventually(lambda: not site.ledger().jobs()[0].is_open)


def test_a_lost_connection_is_dialled_again_and_the_same_bytes_are_sent(site: Site) -> None:
    plan, coordinator = toy_plan(), Coordinator()
    site.standing = True
    with serving(site, coordinator.connect):
        line = coordinator.line()
        line.inbox.put(offer(plan))
        line.answer()
        line.inbox.put(ask(plan, encode(plan, Open(0))))
        first = line.answer()
        line.cut()
        line = coordinator.line()
        site.store().note(site.store().find(plan.run_id))  # a change that says nothing new
        time.sleep(0.5)
        assert line.sent.empty()  # nobody has asked on this connection
        line.inbox.put(offer(plan))
        assert said([line.answer()]) == [("approved", "")]
        line.inbox.put(ask(plan, encode(plan, Open(0))))
        assert line.answer().body == first.body


def test_an_outage_is_said_once_and_calls_become_rarer(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = Coordinator()
    coordinator.away.set()
    with serving(site, coordinator.connect):
        eventually(lambda: len(coordinator.calls) >= 6)
        coordinator.away.clear()
        coordinator.line()
    pauses = [after - before for before, after in pairwise(coordinator.calls)]
    least = [_BACKOFF[0] * 2**n / 2 for n in range(5)]  # half of 0.1, 0.2, 0.4, ..., with jitter
    assert all(pause > 0.99 * one for pause, one in zip(pauses, least, strict=False))
    said_so = [r for r in caplog.records if "no connection to coordinator" in r.getMessage()]
    assert len(said_so) == 1


def test_a_slow_job_does_not_hold_up_another(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    # the agent's clock stands still: a true hour could end while the test runs
    monkeypatch.setattr("cloister.federation.silo.agent.time", SimpleNamespace(time=lambda: 1000.0))
    slow, fast, coordinator = toy_plan(upload_slot=3600.0), toy_plan(), Coordinator()
    site.standing = True
    with serving(site, coordinator.connect):
        line = coordinator.line()
        for plan in (slow, fast):
            line.inbox.put(offer(plan))
            line.answer()
        for plan in (slow, fast):
            line.inbox.put(ask(plan, encode(plan, Open(0))))
        assert line.answer().job == fast.run_id
        line.inbox.put(end(fast, "failed"))
        eventually(lambda: site.store().state(fast.run_id) == State.FAILED)
        assert line.sent.empty()


def test_a_silent_network_does_not_hold_up_the_end(site: Site) -> None:
    never = threading.Event()
    with serving(site, lambda: never.wait(PATIENCE)):
        time.sleep(0.3)
    never.set()


def test_trouble_with_one_message_does_not_end_the_agent(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan, coordinator = toy_plan(), Coordinator()
    site.refused = "not now."
    with serving(site, coordinator.connect):
        line = coordinator.line()
        line.inbox.put(Message(Kind.DECISION, 0, "0" * 32, b""))  # of the wrong direction
        line.inbox.put(Message(Kind.END, 0, "0" * 32, b""))
        line.inbox.put(Message(Kind.ASK, 5, "0" * 32, b""))
        assert line.answer().kind == Kind.REFUSE
        line.inbox.put(offer(plan))
        assert said([line.answer()]) == [("declined", "not now.")]
    assert "does not accept messages" in caplog.text
