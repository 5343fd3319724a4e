"""Carrying sealed links of computations on shares between two parties.

The coordinator pairs two ends and passes on frames that it cannot read. It knows who talks to whom
from their certificates, how much and when; nothing of it is logged or kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket

from cloister.errors import CloisterError
from cloister.transports.relay import FRAME_BYTES, VERSION

MOST, MOST_OF_ONE = 256, 32  # open ends, in all and of one party
IDLE = 600.0  # seconds without a frame, or without the other end
_LOOK = 1.0  # seconds between two looks at certificate and clock
_NOT_ALLOWED, _TOO_BIG, _TRY_LATER, _GONE = 1008, 1009, 1013, 4002
_Key = tuple[str, str, str]


@dataclass(eq=False)
class _End:
    """One party's end of a relayed link."""

    websocket: WebSocket
    pair: asyncio.Future[_End] = field(default_factory=asyncio.Future)
    heard: float = field(default_factory=time.monotonic)
    accepted: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def first(self) -> Any:
        """Accept the connection and return its first event."""
        await self.websocket.accept(VERSION)
        self.accepted.set()
        return await self.websocket.receive()

    async def pump(self, first: asyncio.Task[Any]) -> None:
        """Pass on what this end says, once the other is there, until it hangs up."""
        event = await first
        while event["type"] == "websocket.receive":
            frame = event.get("bytes")
            if frame is None or len(frame) > FRAME_BYTES:
                raise _Refused(_TOO_BIG, f"frames are binary, of at most {FRAME_BYTES} bytes.")
            self.heard = time.monotonic()
            other = await self.pair
            await other.accepted.wait()  # it is known before it can take anything
            # Waits until the other end takes it, and so does whoever sends here.
            await other.websocket.send_bytes(frame)
            event = await self.websocket.receive()


class _Refused(Exception):
    """An end is closed with a code and a sentence."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class Relays:
    """All relayed links of a coordinator; everything runs in the server's event loop.

    Parameters
    ----------
    identify : callable
        Raises a CloisterError for a connection whose certificate no longer counts.
    most, most_of_one : int
        Open ends, in all and of one party.
    idle : float
        Seconds after which a silent or lonely end is closed.
    """

    def __init__(
        self,
        identify: Callable[[MutableMapping[str, Any]], object],
        *,
        most: int = MOST,
        most_of_one: int = MOST_OF_ONE,
        idle: float = IDLE,
    ) -> None:
        self._identify, self._idle = identify, idle
        self._most, self._most_of_one = most, most_of_one
        self._waiting: dict[_Key, _End] = {}
        self._open: dict[_End, str] = {}

    def __len__(self) -> int:
        """Return how many ends are open."""
        return len(self._open)

    async def serve(self, websocket: WebSocket, name: str, session: str, peer: str) -> None:
        """Carry one end until either hangs up.

        Parameters
        ----------
        websocket : WebSocket
            Not accepted yet.
        name : str
            Of the party, from its certificate.
        session, peer : str
            Of which link; the other end names the same session and this party.
        """
        if VERSION not in websocket.scope.get("subprotocols", ()):
            sentence = f"this coordinator speaks {VERSION}; install the same version at each party."
            await websocket.send_denial_response(JSONResponse({"error": sentence}, 426))
            return
        if (why := self._refusal(name, peer)) is not None:
            await websocket.accept(VERSION)
            await websocket.close(why.code, str(why))
            return
        end = _End(websocket)
        self._open[end] = name
        here, there = (session, name, peer), (session, peer, name)
        if (other := self._waiting.pop(there, None)) is not None:
            other.pair.set_result(end)
            end.pair.set_result(other)
        else:
            if (before := self._waiting.get(here)) is not None:
                before.over.set()  # a party that was cut off comes again
            self._waiting[here] = end
        first = asyncio.ensure_future(end.first())
        pump = asyncio.ensure_future(end.pump(first))
        watch = asyncio.ensure_future(self._watch(end))
        over = asyncio.ensure_future(end.over.wait())
        code, reason = _GONE, "the other end hung up."
        try:
            done, _ = await asyncio.wait((pump, watch, over), return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                if isinstance(error := part.exception(), _Refused):
                    code, reason = error.code, str(error)
        finally:
            del self._open[end]
            if self._waiting.get(here) is end:
                del self._waiting[here]
            if end.pair.done():
                end.pair.result().over.set()
            for part in (first, pump, watch, over):
                part.cancel()
            await asyncio.gather(first, pump, watch, over, return_exceptions=True)
            with suppress(Exception):  # it may be closed, or closing
                await websocket.close(code, reason)

    def _refusal(self, name: str, peer: str) -> _Refused | None:
        if name == peer:
            return _Refused(_NOT_ALLOWED, "a link has two parties.")
        if len(self._open) >= self._most or (
            sum(one == name for one in self._open.values()) >= self._most_of_one
        ):
            return _Refused(_TRY_LATER, "too many links are open; try again later.")
        return None

    async def _watch(self, end: _End) -> None:
        """Return when the end's certificate no longer counts or nothing was heard for too long."""
        while True:
            await asyncio.sleep(min(_LOOK, self._idle))
            try:
                self._identify(end.websocket.scope)
            except CloisterError:
                raise _Refused(_NOT_ALLOWED, "not enrolled.") from None
            heard = [end.heard]
            if end.pair.done():
                heard.append(end.pair.result().heard)
            if time.monotonic() - max(heard) > self._idle:
                raise _Refused(_GONE, f"nothing came for {self._idle:g} s.")
