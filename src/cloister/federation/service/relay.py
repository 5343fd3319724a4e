"""The relay of sealed links between two parties of a computation on shares.

The coordinator pairs two ends and forwards frames that it cannot read. It knows who talks to whom
from their certificates, how much and when; nothing of it is logged or kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import WebSocketException
from starlette.responses import JSONResponse
from starlette.websockets import WebSocket

from cloister.core.errors import CloisterError
from cloister.federation.transports.relay import FRAME_BYTES, VERSION

MOST, MOST_OF_ONE = 256, 32  # open ends, in all and of one party
IDLE = 600.0  # seconds without a frame, or without the other end
_LOOK = 1.0  # seconds between two looks at certificate and clock
_NOT_ALLOWED, _TOO_BIG, _TRY_LATER, _GONE = 1008, 1009, 1013, 4002


@dataclass(eq=False)
class _End:
    """One party's end of a relayed link."""

    websocket: WebSocket
    name: str
    heard: float = field(default_factory=time.monotonic)
    other: _End | None = None
    paired: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.pump = asyncio.ensure_future(self._pump())
        """The task of this end; cancelling it closes the connection."""

    async def _pump(self) -> None:
        """Forward this end's frames, once the other end is connected, until it closes."""
        while (event := await self.websocket.receive())["type"] == "websocket.receive":
            frame = event.get("bytes")
            if frame is None or len(frame) > FRAME_BYTES:
                raise WebSocketException(
                    _TOO_BIG, f"frames are binary, of at most {FRAME_BYTES} bytes."
                )
            self.heard = time.monotonic()
            await self.paired.wait()
            assert self.other is not None
            # Waits until the other end accepts the frame, so a fast sender fills no memory here.
            await self.other.websocket.send_bytes(frame)

    def meet(self, other: _End) -> None:
        """Pair this end with the other of its link."""
        self.other = other
        self.paired.set()


class Relays:
    """All relayed links of a coordinator; everything runs in the server's event loop.

    Parameters
    ----------
    identify : callable
        Raises a CloisterError for a connection with an invalid certificate.
    most, most_of_one : int
        Largest number of open ends, in total and per party.
    idle : float
        Seconds after which a silent or unpaired end is closed.
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
        self._waiting: dict[tuple[str, str, str], _End] = {}
        self._open: set[_End] = set()

    def __len__(self) -> int:
        """Return the number of open ends."""
        return len(self._open)

    async def serve(self, websocket: WebSocket, name: str, session: str, peer: str) -> None:
        """Serve one end, not accepted yet, until either end closes.

        Parameters
        ----------
        name : str
            Name of the party in its certificate.
        session, peer : str
            Identify the link; the other end names the same session and this party.
        """
        if VERSION not in websocket.scope.get("subprotocols", ()):
            sentence = f"this coordinator uses {VERSION}; install the same version at every party."
            await websocket.send_denial_response(JSONResponse({"error": sentence}, 426))
            return
        await websocket.accept(VERSION)
        try:
            self._check_room(name, peer)
            await self._carry(_End(websocket, name), (session, name, peer))
        except WebSocketException as error:
            with suppress(Exception):  # it may be closed, or closing
                await websocket.close(error.code, error.reason)

    async def _carry(self, end: _End, here: tuple[str, str, str]) -> None:
        session, name, peer = here
        self._open.add(end)
        if (other := self._waiting.pop((session, peer, name), None)) is not None:
            other.meet(end)
            end.meet(other)
        else:
            if (before := self._waiting.get(here)) is not None:
                before.pump.cancel()  # a party that was cut off comes again
            self._waiting[here] = end
        try:
            while not end.pump.done():
                await asyncio.wait((end.pump,), timeout=min(_LOOK, self._idle))
                self._check(end)
        finally:
            self._open.remove(end)
            if self._waiting.get(here) is end:
                del self._waiting[here]
            if end.other is not None:
                end.other.pump.cancel()
            end.pump.cancel()
            (why,) = await asyncio.gather(end.pump, return_exceptions=True)
        if isinstance(why, WebSocketException):
            raise why
        if why is not None:  # it did not hang up itself
            raise WebSocketException(_GONE, "the other end closed the link.")

    def _check_room(self, name: str, peer: str) -> None:
        if name == peer:
            raise WebSocketException(_NOT_ALLOWED, "a link must have two different parties.")
        # Also per party, so that one party cannot use all links.
        if len(self._open) >= self._most or (
            sum(end.name == name for end in self._open) >= self._most_of_one
        ):
            raise WebSocketException(_TRY_LATER, "too many links are open; try again later.")

    def _check(self, end: _End) -> None:
        """Close an end with an invalid certificate, or without frames for too long."""
        try:
            self._identify(end.websocket.scope)
        except CloisterError:
            raise WebSocketException(_NOT_ALLOWED, "not enrolled.") from None
        heard = max(one.heard for one in (end, end.other) if one is not None)
        if time.monotonic() - heard > self._idle:
            raise WebSocketException(_GONE, f"no frame came for {self._idle:g} s.")
