"""NVIDIA FLARE: messages of the stream as requests on FLARE's auxiliary channel.

FLARE authenticates the sites, starts a process at each for the job, and carries bytes. The classes
at both ends are installed beforehand: :mod:`cloister.federation.flare.controller` and
:mod:`cloister.federation.flare.executor`. FLARE's task channel is not used, since sites poll it
every two seconds only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Any

from cloister.core.errors import TransportError
from cloister.federation.transports.http import Kind, Message, printable

TOPIC = "cloister.1"
_BODY, _BODIES = "message", "messages"
_PATIENCE = (2.0, 60.0)  # seconds for one request, first and longest: sites come up slowly
_PAUSE = (0.1, 5.0)  # seconds between two requests to a site that was busy, undecided or not there
_PART = 0.05  # and between these, this part of the time waited so far


class Line:
    """The auxiliary channel of a running job, from the server to its sites.

    Parameters
    ----------
    stopped : function
        Returns True if the job must end.
    gone : function of silo
        Returns True if FLARE considers a site lost.
    """

    def __init__(
        self,
        engine: Any,
        context: Any,
        stopped: Callable[[], bool] = lambda: False,
        gone: Callable[[str], bool] = lambda silo: False,
    ) -> None:
        self._engine = engine
        self._context = context
        self._stopped = stopped
        self._gone = gone

    @property
    def stopped(self) -> bool:
        """True if FLARE ends the job."""
        return self._stopped()

    def ask(self, requests: Mapping[str, Message], seconds: float) -> Iterator[tuple[str, Message]]:
        """Repeat each request until its silo answers or time is up; yield answers as they arrive.

        A silo that is busy or not started yet sends no answer, and receives the request again.
        """
        began, patience = time.monotonic(), _PATIENCE[0]
        waiting = dict(requests)
        while waiting and (left := began + seconds - time.monotonic()) > 0:
            for silo, answer in self.tell(waiting, min(patience, left)):
                # An answer to an earlier request may arrive late.
                asked = waiting.get(silo)
                if asked and (answer.job, answer.number) == (asked.job, asked.number):
                    del waiting[silo]
                    yield silo, answer
            if self.stopped:
                raise TransportError("FLARE stops the job; no more requests are sent.")
            waiting = {silo: request for silo, request in waiting.items() if not self._gone(silo)}
            if waiting:
                patience = min(2 * patience, _PATIENCE[1])
                waited = time.monotonic() - began
                time.sleep(min(max(_PART * waited, _PAUSE[0]), _PAUSE[1]))

    def tell(
        self, messages: Mapping[str, Message], seconds: float = _PATIENCE[0]
    ) -> list[tuple[str, Message]]:
        """Send each silo its message once; return the answers that arrived in time."""
        known = {client.name for client in self._engine.get_clients()}
        groups: dict[bytes, list[str]] = {}
        for silo, message in messages.items():
            if silo in known:  # one unknown target would keep FLARE from sending to any
                groups.setdefault(message.encode(), []).append(silo)
        if not groups:
            return []
        with ThreadPoolExecutor(len(groups)) as pool:  # FLARE's own multicast is broken in 2.9
            replies = pool.map(lambda body: self._send(groups[body], body, seconds), groups)
            return [answer for group in replies for answer in group]

    def _send(self, silos: list[str], body: bytes, seconds: float) -> list[tuple[str, Message]]:
        from nvflare.apis.shareable import Shareable

        replies = self._engine.send_aux_request(
            silos, TOPIC, Shareable({_BODY: body}), seconds, self._context, optional=True
        )
        return [
            (silo, message)
            for silo, reply in (replies or {}).items()
            for message in _read(reply.get(_BODIES))
        ]


class FlareTransport:
    """Carry the frames of a job over a line.

    Parameters
    ----------
    silos : collection of str
        The silos that take part; no other silo receives frames.
    timeout : float, seconds
        Longest wait for a silent silo.
    """

    def __init__(
        self,
        line: Line,
        job: str,
        silos: Collection[str],
        *,
        timeout: float,
        on_refusal: Callable[[str, str], None] = lambda silo, reason: None,
    ) -> None:
        self._line = line
        self._job = job
        self._silos = frozenset(silos)
        self._timeout = timeout
        self._on_refusal = on_refusal
        self._number = 0

    def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        """Send each named silo its frame; return the answers that arrived in time."""
        self._number += 1
        requests = {
            silo: Message(Kind.ASK, self._number, self._job, frame)
            for silo, frame in frames.items()
            if silo in self._silos
        }
        answers = {}
        for silo, message in self._line.ask(requests, self._timeout):
            if message.kind == Kind.ANSWER:
                answers[silo] = message.body
            else:
                self._on_refusal(silo, _reason(message))
        return answers


def decision_of(message: Message) -> tuple[bool, str]:
    """Return True if a silo approved, else False and its reason."""
    fields = _fields(message)
    if message.kind == Kind.DECISION and fields.get("decision") == "approved":
        return True, ""
    return False, _reason(message)


def _reason(message: Message) -> str:
    return printable(_fields(message).get("reason", "it gave no reason."))


def _fields(message: Message) -> dict[str, Any]:
    try:
        return message.fields()
    except TransportError:  # one silo's nonsense must not end the job of the others
        return {}


def _read(bodies: Any) -> Iterator[Message]:
    """Yield the messages of a reply; other content is ignored."""
    for body in bodies if isinstance(bodies, list) else ():
        with suppress(TransportError, TypeError):
            yield Message.decode(body)


def answering(on_message: Callable[[Message], list[Message]]) -> Callable[..., Any]:
    """Return the request handler of FLARE for a site whose silo answers messages.

    FLARE calls it from several threads, but the silo handles one message at a time. While it works,
    other requests get no answer and the server repeats them. Only the end of a job waits for its
    turn, since the server sends it once.
    """
    from nvflare.apis.shareable import Shareable

    desk = Lock()

    def handle(topic: str, request: Any, fl_ctx: Any) -> Any:
        message = Message.decode(request[_BODY])
        if not desk.acquire(timeout=_PATIENCE[1] if message.kind == Kind.END else 0.0):
            return Shareable({_BODIES: []})
        try:
            return Shareable({_BODIES: [answer.encode() for answer in on_message(message)]})
        finally:
            desk.release()

    return handle
