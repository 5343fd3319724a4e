"""The connection of a silo, which dials out and reconnects when the connection is lost.

Threads handle messages: one for each job, so that a long sum does not delay another job, and one
for offers and decisions.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from cloister.core.errors import CloisterError, TransportError
from cloister.core.randomness import os_bytes
from cloister.federation.service.logs import place_of
from cloister.federation.silo.agent import Agent
from cloister.federation.transports.http import Kind, Message, Stream

_LOOK_SECONDS = 0.2  # how soon a decision made by a command is noticed
_BACKOFF = (0.1, 5.0)  # seconds between two attempts to connect, first and longest
_STEADY_SECONDS = 5.0  # a connection that lasted so long was not refused
_DRAIN_SECONDS = 0.5  # for answers under way when the agent is told to stop

_log = logging.getLogger("cloister.federation.silo")

Work = Callable[[], object]


def serve(
    agent: Agent, connect: Callable[[], Stream], stop: threading.Event, *, where: str
) -> None:
    """Answer the coordinator until `stop` is set; reconnect whenever the connection is lost.

    Parameters
    ----------
    connect : function
        Dials out; raises TransportError if there is no answer.
    where : str
        The coordinator's address, for the log.
    """
    desks = _Desks()
    pause, outage = _BACKOFF[0], False
    while not stop.is_set():
        since = time.monotonic()
        try:
            stream = _dial(connect, stop)
        except TransportError as error:
            if not outage:
                _log.warning("no connection to %s, will retry: %s", where, error)
            outage = True
        else:
            if stream is None:
                break
            _log.info("connected to %s", where)
            outage = False
            agent.connected()
            try:
                _converse(agent, stream, desks, stop)
            except TransportError as error:
                _log.warning("connection to %s was lost, will reconnect: %s", where, error)
                outage = True
            finally:
                stream.close()
        if time.monotonic() - since > _STEADY_SECONDS:
            pause = _BACKOFF[0]
        jitter = 0.5 + os_bytes(1)[0] / 256  # so that silos do not all come back at once
        stop.wait(pause * jitter)
        pause = min(2 * pause, _BACKOFF[1])
    desks.close(_DRAIN_SECONDS)


def _dial(connect: Callable[[], Stream], stop: threading.Event) -> Stream | None:
    """Connect, or return None once `stop` is set."""
    # In a thread, so that a silent network does not delay the end of the process.
    answers: queue.SimpleQueue[Stream | Exception] = queue.SimpleQueue()

    def dial() -> None:
        try:
            answers.put(connect())
        except Exception as error:
            answers.put(error)

    threading.Thread(target=dial, daemon=True).start()
    while not stop.is_set():
        with suppress(queue.Empty):
            answer = answers.get(timeout=_LOOK_SECONDS)
            if isinstance(answer, Exception):
                raise answer
            return answer
    return None


def _converse(agent: Agent, stream: Stream, desks: _Desks, stop: threading.Event) -> None:
    """Pass each message to its desk: one per job, one for all decisions."""
    while not stop.is_set():
        message = stream.receive(_LOOK_SECONDS)
        if message is None:
            desks.put_if_idle("", lambda: _answer_all(stream, agent.look))
        else:
            # A job without approval gets no separate thread.
            own = message.kind != Kind.OFFER and agent.takes_part(message.job)
            job = message.job if own else ""
            desks.put(job, partial(_answer_all, stream, partial(agent.on_message, message)))
            if own:
                desks.put(job, partial(agent.prepare, message.job))
            if own and message.kind == Kind.END:
                desks.retire(job)


def _answer_all(stream: Stream, work: Callable[[], list[Message]]) -> None:
    for answer in work():
        with suppress(TransportError):  # it is asked for again on the next connection
            stream.send(answer)


class _Desks:
    """Named threads, each of which works through a queue."""

    def __init__(self) -> None:
        self._desks: dict[str, _Desk] = {}
        self._last_trouble = ""

    def put(self, name: str, work: Work) -> None:
        if name not in self._desks:
            self._desks[name] = _Desk(self._try)
        self._desks[name].tasks.put(work)

    def put_if_idle(self, name: str, work: Work) -> None:
        if name not in self._desks or self._desks[name].tasks.empty():
            self.put(name, work)

    def retire(self, name: str) -> None:
        """End a desk after its queued work."""
        self._desks.pop(name).tasks.put(None)

    def close(self, seconds: float) -> None:
        """Wait for running work within the time limit; an abrupt end harms no ledger."""
        due = time.monotonic() + seconds
        for desk in self._desks.values():
            desk.tasks.put(None)
        for desk in self._desks.values():
            desk.thread.join(max(0.0, due - time.monotonic()))

    def _try(self, work: Work) -> None:
        try:
            work()
        except Exception as error:
            trouble = str(error) if isinstance(error, CloisterError) else place_of(error)
            if trouble != self._last_trouble:  # a full disk is said once
                _log.error("a message could not be handled: %s", trouble)
            self._last_trouble = trouble


class _Desk:
    """A thread and its queue of work; None ends it."""

    def __init__(self, attempt: Callable[[Work], None]) -> None:
        self.tasks: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._sit, args=(attempt,), daemon=True)
        self.thread.start()

    def _sit(self, attempt: Callable[[Work], None]) -> None:
        while (work := self.tasks.get()) is not None:
            attempt(work)
