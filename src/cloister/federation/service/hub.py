"""The open streams of silos, and the exchanges of jobs over them.

Everything here except :class:`HubTransport` runs in the server's event loop, without locks. A job's
thread hands an exchange over once and is woken once, for any number of silos.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from cloister.core.errors import CloisterError, TransportError
from cloister.federation.service.logs import RateLimitedLog
from cloister.federation.transports.http import (
    MAX_MESSAGE_BYTES,
    MAX_WORDS,
    VERSION,
    VERSIONS,
    Kind,
    Message,
    check_size,
    in_json,
    printable,
    release_of,
)
from cloister.federation.transports.parts import Incoming, Outgoing, whole

_STOPPED = "the job, or the service, was stopped; no more requests are sent."
_TICK = 0.1  # seconds between two looks at `stop`
# Four bytes of a message hold its number.
_NUMBERS = 2**32
_CLOSING = 1.0  # seconds to tell a silo why its stream ends
_MESSAGES = 4  # of the largest size that may wait for a silo
_OVERHEAD = 100  # bytes that a waiting message costs besides its own
_LOOK = 1.0  # seconds between two looks at the certificate of an idle stream
# Codes of RFC 6455, section 7.4.1; those from 4000 on are free for private use.
_PROTOCOL_ERROR, _TEXT, _NOT_ENROLLED = 1002, 1003, 1008
_TOO_BIG, _TROUBLE, _REPLACED = 1009, 1011, 4001

_LOG = logging.getLogger(__name__)


class _Ended(Exception):
    """Raised to close a stream with a code and a reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class _Stream:
    """The queue of messages to a silo, bounded in bytes.

    With `incoming`, large messages of both directions travel in parts.
    """

    def __init__(self, websocket: WebSocket, most: int, incoming: Incoming | None = None) -> None:
        self._websocket = websocket
        self.scope = websocket.scope
        self.release = release_of(websocket.headers.get("user-agent", ""))
        self._waiting: deque[tuple[bytes, Callable[[], None]]] = deque()
        self._bytes = 0
        self._most = most
        self._more = asyncio.Event()
        self._incoming = incoming
        self._outgoing = Outgoing(self._carry, most // _MESSAGES)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, data: bytes, sent: Callable[[], None] = lambda: None) -> None:
        """Queue a message; call `sent` after it was sent."""
        if self._bytes + len(data) > self._most:
            self.end(_TROUBLE, "this silo reads its messages too slowly; it may connect again.")
            return
        self._waiting.append((data, sent))
        self._bytes += len(data) + _OVERHEAD
        self._more.set()

    def end(self, code: int, reason: str) -> None:
        """Close the stream soon."""
        if not self.ended.done():
            self.ended.set_exception(_Ended(code, reason))

    async def write(self) -> None:
        """Send queued messages, forever."""
        while True:
            await self._more.wait()
            while self._waiting:
                data, sent = self._waiting.popleft()
                self._bytes -= len(data) + _OVERHEAD
                await (self._carry if self._incoming is None else self._outgoing.send)(data)
                sent()
            self._more.clear()

    async def _carry(self, data: bytes) -> None:
        await self._websocket.send({"type": "websocket.send", "bytes": data})

    async def read(self) -> bytes | None:
        """Return the next binary message, or None if the silo hung up."""
        message: bytes | None = None
        while message is None:
            event = await self._websocket.receive()
            if event["type"] == "websocket.disconnect":
                return None
            message = event.get("bytes")
            if message is None:
                raise _Ended(_TEXT, "messages must be binary, got text.")
            if self._incoming is not None:
                message = await self._whole(message)
        return message

    async def _whole(self, data: bytes) -> bytes | None:
        assert self._incoming is not None
        try:
            return await whole(data, self._incoming, self._outgoing, self._carry)
        except TransportError as error:
            raise _Ended(_PROTOCOL_ERROR, str(error)) from None


@dataclass(eq=False)
class _Exchange:
    """Frames to some silos of one job, and the answers received so far.

    The job's thread waits for `outcome`; everything else happens in the event loop.
    """

    number: int
    job: str
    messages: Mapping[str, bytes]
    patience: float  # seconds for a connected silo, from when it is asked
    grace: float  # seconds for one that is not connected
    on_sent: Callable[[], None]
    on_end: Callable[[], object]
    last: float = field(init=False)  # when it ends whatever happens
    unsent: set[str] = field(default_factory=set)  # with a stream, their frame not on its way
    answers: dict[str, bytes] = field(default_factory=dict)
    refusals: deque[tuple[str, str]] = field(default_factory=deque)
    due: dict[str, float] = field(default_factory=dict)  # of the silos waited for
    outcome: Future[dict[str, bytes]] = field(default_factory=Future)
    _alarm: asyncio.TimerHandle | None = None  # when the first of them is due, or before

    def __post_init__(self) -> None:
        self.last = time.monotonic() + self.patience + self.grace  # though one come and go and come

    def sent(self, silo: str) -> None:
        """Record that the frame of a silo was sent, or that the silo has no stream."""
        self.unsent.discard(silo)
        if not self.unsent:
            self.on_sent()

    def give(self, silo: str, seconds: float) -> None:
        """Set the time limit of a silo, in seconds from now."""
        due = self.due[silo] = min(time.monotonic() + seconds, self.last)
        if self._alarm is None or due < self._alarm.when():
            self._look_at(due)

    def give_up(self, silo: str) -> None:
        """Stop waiting for a silo."""
        del self.due[silo]
        if not self.due:
            self.end()
            self.outcome.set_result(self.answers)

    def end(self) -> None:
        """Stop waiting for all silos."""
        self.on_end()
        if self._alarm is not None:
            self._alarm.cancel()

    def _look_at(self, due: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_at(due, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        for silo in [silo for silo, due in self.due.items() if due <= now]:
            _LOG.warning("no answer in time", extra={"job": self.job, "silo": silo})
            self.give_up(silo)
        if self.due:
            self._look_at(min(self.due.values()))


class Hub:
    """The streams of all silos.

    Parameters
    ----------
    on_connect : function of silo
        Called when a silo has connected, before any of its messages is read.
    on_decision : function of (silo, job, approved, reason)
        Called when a silo has decided. Both are called in a worker thread, in sequence for one
        silo. If they raise, the silo's stream is closed, and it connects and decides again.
    identify : function of scope
        Called periodically for every open stream, and before each message in either direction. It
        raises :class:`~cloister.core.errors.TransportError` once the certificate is invalid, and
        the stream ends.
    on_shut_out : function of (silo, reason)
        Called, likewise, when a silo's stream ended because its certificate became invalid.
    max_message_bytes : int
        Limit for every message, in both directions.

    Notes
    -----
    A silo has one stream. A second one replaces the first, and open requests are sent again on it.
    """

    def __init__(
        self,
        *,
        on_connect: Callable[[str], None],
        on_decision: Callable[[str, str, bool, str], None],
        identify: Callable[[MutableMapping[str, Any]], object] = lambda _: None,
        on_shut_out: Callable[[str, str], None] = lambda *_: None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._on_connect = on_connect
        self._on_decision = on_decision
        self._identify = identify
        self._on_shut_out = on_shut_out
        self._max = max_message_bytes
        self._streams: dict[str, _Stream] = {}
        self._begun: dict[str, Incoming] = {}  # messages cut by the loss of a stream
        self._shut_out: dict[str, str] = {}  # why; not waited for until they connect again
        self._unreadable = RateLimitedLog()
        self._exchanges: dict[int, _Exchange] = {}
        self._numbers = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_loop = threading.Event()

    # From any thread --------------------------------------------------------------------------

    def connected(self) -> tuple[str, ...]:
        """Return the silos that have a stream now."""
        return tuple(sorted(self._streams))

    def releases(self) -> dict[str, str]:
        """Return the release of each silo that has a stream now."""
        return {silo: stream.release for silo, stream in sorted(self._streams.items())}

    def offer(self, silo: str, job: str, document: dict[str, Any]) -> None:
        """Offer a job to a silo, if it is connected.

        Raises
        ------
        TransportError
            If the document is too large for a message.
        """
        self._tell(silo, Message(Kind.OFFER, 0, job, in_json(**document)))

    def end(
        self, silo: str, job: str, status: str, reason: str, convictions: Sequence[Any] = ()
    ) -> None:
        """Inform a silo of the end of a job, and of proved offences, if it is connected."""
        body = in_json(status=status, reason=reason, convictions=convictions)
        self._tell(silo, Message(Kind.END, 0, job, body))

    def transport(
        self,
        job: str,
        *,
        round_timeout: float,
        grace: float,
        stop: threading.Event,
        on_refusal: Callable[[str, str], None],
        on_sent: Callable[[], None] = lambda: None,
    ) -> HubTransport:
        """Return the carrier of a job's frames, for the job's thread.

        Parameters
        ----------
        round_timeout, grace : float, seconds
            Longest wait for a silent silo, and for an absent one.
        stop : Event
            Ends an exchange soon after it is set.
        on_refusal : function of (silo, reason)
            Called in the job's thread.
        on_sent : function
            Called in the event loop when the frames of an exchange were sent, and again when one
            is repeated.
        """
        return HubTransport(self, job, round_timeout, grace, stop, on_refusal, on_sent)

    def exchange(
        self,
        job: str,
        frames: Mapping[str, bytes],
        *,
        patience: float,
        grace: float,
        on_sent: Callable[[], None],
    ) -> _Exchange:
        """Send requests to silos, again to those that reconnect; the outcome has the answers."""
        number = next(self._numbers) % _NUMBERS
        encoded = {  # silos are often asked the same
            frame: Message(Kind.ASK, number, job, frame).encode() for frame in set(frames.values())
        }
        for data in encoded.values():
            check_size(data, self._max)
        messages = {silo: encoded[frame] for silo, frame in frames.items()}
        forget = partial(self._exchanges.pop, number, None)
        exchange = _Exchange(number, job, messages, patience, grace, on_sent, forget)
        self._hand_over(self._begin, exchange)
        return exchange

    def drop(self, exchange: _Exchange) -> None:
        """End an exchange whose outcome is no longer needed."""
        with suppress(TransportError):
            self._hand_over(exchange.end)

    def _tell(self, silo: str, message: Message) -> None:
        data = message.encode()
        check_size(data, self._max)
        if silo in self._streams:
            with suppress(TransportError):  # the streams have ended with the loop
                self._hand_over(self._post, silo, data)

    def _hand_over(self, work: Callable[..., object], *about: object) -> None:
        """Schedule work in the event loop."""
        if self._loop is None:
            raise TransportError(_STOPPED)
        try:
            self._loop.call_soon_threadsafe(work, *about)
        except RuntimeError:  # the loop has ended, perhaps this very moment
            raise TransportError(_STOPPED) from None

    # In the event loop ------------------------------------------------------------------------

    async def serve(self, websocket: WebSocket, silo: str) -> None:
        """Carry a silo's messages until its stream ends.

        Parameters
        ----------
        websocket : WebSocket
            Not accepted yet.
        silo : str
            Name in the certificate of the connection.
        """
        self._loop = asyncio.get_running_loop()
        self._has_loop.set()
        offers = websocket.scope.get("subprotocols", ())
        version = next((known for known in VERSIONS if known in offers), None)
        if version is None:
            offered = [printable(name) for name in offers[:5]]
            sentence = f"the protocol of this coordinator is {VERSION}, the silo offers {offered}; "
            sentence += "install the same version at every party."
            _LOG.warning("turned away: %s", sentence, extra={"silo": silo})
            await websocket.send_denial_response(JSONResponse({"error": sentence}, 426))
            return
        await websocket.accept(version)
        begun = self._begun.setdefault(silo, Incoming(self._max)) if version == VERSION else None
        stream = _Stream(websocket, _MESSAGES * self._max, begun)
        parts = (
            asyncio.ensure_future(self._listen(silo, stream)),
            asyncio.ensure_future(stream.write()),
            asyncio.ensure_future(self._watch(silo, stream)),
            stream.ended,
        )
        self._opened(silo, stream)
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            await _close(websocket, silo, [part.exception() for part in done])
        finally:
            self._lost(silo, stream)
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
        if (reason := self._shut_out.get(silo)) is not None:
            await asyncio.to_thread(self._on_shut_out, silo, reason)

    async def _listen(self, silo: str, stream: _Stream) -> None:
        """Handle a silo's messages until it closes the stream."""
        # In a thread: it may wait for a disk, and the loop serves all other silos.
        await asyncio.to_thread(self._on_connect, silo)
        while (data := await stream.read()) is not None:
            if len(data) > self._max:
                raise _Ended(_TOO_BIG, f"messages must have at most {self._max} bytes.")
            if not self._counts(silo, stream):
                return
            try:
                message = Message.decode(data)
                if message.kind == Kind.ANSWER:
                    self._answered(silo, message)
                else:
                    await self._said(silo, message)
            except TransportError as error:
                raise _Ended(_PROTOCOL_ERROR, str(error)) from None

    async def _watch(self, silo: str, stream: _Stream) -> None:
        """Check the certificate of a stream periodically, until it is invalid."""
        while self._counts(silo, stream):
            await asyncio.sleep(_LOOK)

    def _counts(self, silo: str, stream: _Stream) -> bool:
        """Return True if a stream's certificate is valid; end the stream otherwise.

        An unreadable list of revoked certificates does not end streams that are open already.
        """
        try:
            self._identify(stream.scope)
        except TransportError as error:
            if self._streams.get(silo) is stream:
                self._shut_out[silo] = str(error)
            stream.end(_NOT_ENROLLED, str(error))
            self._lost(silo, stream)
            return False
        except CloisterError as error:
            if self._unreadable.since(str(error)) is not None:
                _LOG.error("certificates of open streams cannot be checked: %s", error)
        return True

    async def _said(self, silo: str, message: Message) -> None:
        """Handle a decision or a refusal."""
        check_size(message.body, MAX_WORDS)
        if message.kind == Kind.REFUSE:
            self._refused(silo, message, printable(message.fields().get("reason", "")))
        elif message.kind == Kind.DECISION:
            fields = message.fields()
            decision, reason = fields.get("decision"), printable(fields.get("reason", ""))
            if decision not in ("approved", "declined"):
                raise TransportError("decision must be 'approved' or 'declined'.")
            approved = decision == "approved"
            await asyncio.to_thread(self._on_decision, silo, message.job, approved, reason)
        else:
            raise TransportError(
                f"a coordinator does not accept messages of kind {message.kind:d}."
            )

    def _opened(self, silo: str, stream: _Stream) -> None:
        earlier = self._streams.pop(silo, None)
        self._streams[silo] = stream
        self._shut_out.pop(silo, None)
        if earlier is not None:
            earlier.end(
                _REPLACED,
                f"replaced by a newer stream of {silo!r}; stop the second agent, if there is one.",
            )
        _LOG.info("connected", extra={"silo": silo})
        for exchange in self._exchanges.values():
            if silo in exchange.due:
                self._ask(exchange, silo)

    def _lost(self, silo: str, stream: _Stream) -> None:
        if self._streams.get(silo) is not stream:
            return  # it was replaced
        del self._streams[silo]
        _LOG.info("disconnected", extra={"silo": silo})
        for exchange in self._exchanges.values():
            if silo in exchange.due:
                self._wait_for_return(exchange, silo)

    def _wait_for_return(self, exchange: _Exchange, silo: str) -> None:
        """Set the time limit for an absent silo to return; a shut-out silo gets none."""
        exchange.give(silo, 0.0 if silo in self._shut_out else exchange.grace)
        if silo in exchange.unsent:
            exchange.sent(silo)

    def _stream(self, silo: str) -> _Stream | None:
        """Return the open stream of a silo with a valid certificate."""
        stream = self._streams.get(silo)
        return stream if stream is not None and self._counts(silo, stream) else None

    def _post(self, silo: str, data: bytes) -> None:
        if stream := self._stream(silo):
            stream.put(data)

    def _ask(self, exchange: _Exchange, silo: str) -> None:
        if stream := self._stream(silo):
            exchange.give(silo, exchange.patience)
            stream.put(exchange.messages[silo], partial(exchange.sent, silo))
        else:
            self._wait_for_return(exchange, silo)

    def _waiting(self, silo: str, message: Message) -> _Exchange | None:
        """Return the exchange that waits for an answer; None if it is late or repeated."""
        exchange = self._exchanges.get(message.number)
        if exchange is None or exchange.job != message.job or silo not in exchange.due:
            return None
        return exchange

    def _answered(self, silo: str, message: Message) -> None:
        if exchange := self._waiting(silo, message):
            exchange.answers[silo] = message.body
            exchange.give_up(silo)

    def _refused(self, silo: str, message: Message, reason: str) -> None:
        if exchange := self._waiting(silo, message):
            exchange.refusals.append((silo, reason))
            exchange.give_up(silo)

    def _begin(self, exchange: _Exchange) -> None:
        exchange.unsent = set(exchange.messages) & set(self._streams)
        self._exchanges[exchange.number] = exchange
        try:
            for silo in exchange.messages:
                self._ask(exchange, silo)
        except Exception as error:  # the job's thread waits, and would for ever
            exchange.end()
            exchange.outcome.set_exception(error)

    @property
    def ended(self) -> bool:
        """True if the event loop has ended, so that scheduled work will never run."""
        return self._loop is not None and self._loop.is_closed()

    def wait_for_loop(self, seconds: float) -> bool:
        """Wait until the first silo has connected, which provides the event loop."""
        return self._has_loop.wait(seconds)


@dataclass(frozen=True)
class HubTransport:
    """The carrier of one job's frames; created by :meth:`Hub.transport`."""

    hub: Hub
    job: str
    round_timeout: float
    grace: float
    stop: threading.Event
    on_refusal: Callable[[str, str], None]
    on_sent: Callable[[], None]

    def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        """Send each silo its frame; return the answers that arrived."""
        if not frames or not self._somebody_came():
            return {}
        exchange = self.hub.exchange(
            self.job,
            frames,
            patience=self.round_timeout,
            grace=self.grace,
            on_sent=self.on_sent,
        )
        answers = None
        while answers is None:
            try:
                answers = exchange.outcome.result(_TICK)
            except NotYet:
                self._check(exchange)
            while exchange.refusals:
                self.on_refusal(*exchange.refusals.popleft())
        return answers

    def _somebody_came(self) -> bool:
        """Wait for the first stream of this service, as long as for any absent silo."""
        due = time.monotonic() + self.grace
        self._check()
        while not self.hub.wait_for_loop(min(_TICK, self.grace)):
            self._check()
            if time.monotonic() >= due:
                return False
        return True

    def _check(self, exchange: _Exchange | None = None) -> None:
        if not self.stop.is_set() and not self.hub.ended:
            return
        if exchange is not None:
            self.hub.drop(exchange)
        raise TransportError(_STOPPED)


async def _close(websocket: WebSocket, silo: str, errors: list[BaseException | None]) -> None:
    """Close a stream with the reason of its end, unless the silo closed it."""
    error = next((error for error in errors if error is not None), None)
    if error is None or isinstance(error, WebSocketDisconnect):
        return
    if isinstance(error, _Ended):
        _LOG.warning("stream closed: %s", error.reason, extra={"silo": silo})
        code, reason = error.code, error.reason
    else:
        _LOG.error("stream closed by an error", exc_info=error, extra={"silo": silo})
        code, reason = _TROUBLE, "the coordinator has a local problem; connect again."
    with suppress(Exception):  # whoever is not there to be told need not be told
        async with asyncio.timeout(_CLOSING):
            # A closing frame has 123 bytes for its reason (RFC 6455, section 5.5).
            await websocket.close(code, reason.encode()[:120].decode(errors="ignore"))
