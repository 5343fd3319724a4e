"""A cable between a silo and the coordinator that can be cut, held up and made to lose bytes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self

_CHUNK = 4096


class Cable:
    """Forwards a port of loopback to another; nothing that goes through is read.

    *cut*: every connection is reset, and new ones too. *hold*: nothing goes through, and nothing
    is lost. *swallow*: what goes through is lost, so that the connection is of no more use; it is
    reset when the cable is mended. All of them can begin after a number of bytes more.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._state = "whole"
        self._next: tuple[int, str] | None = None  # bytes from now on, and the fault then
        self._passed = 0
        self._loop = asyncio.new_event_loop()
        self._ends: set[asyncio.StreamWriter] = set()
        self._whole = asyncio.Event()
        self._whole.set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        server = self._call(asyncio.start_server(self._carry, "127.0.0.1", 0))
        self._server = server
        self.port: int = server.sockets[0].getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    def fault(self, kind: str, after: int = 0) -> None:
        """Cut, hold or swallow from now on, or `after` so many bytes of both directions."""
        assert kind in ("cut", "hold", "swallow")

        async def change() -> None:
            self._next = (self._passed + after, kind)
            if not after:
                self._break()

        self._call(change())

    def mend(self) -> None:
        """Let everything through again."""

        async def change() -> None:
            if self._state == "swallow":
                self._reset()
            self._state, self._next = "whole", None
            self._whole.set()

        self._call(change())

    @property
    def broken(self) -> bool:
        """Whether a fault has begun and was not mended."""
        return self._state != "whole"

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def _break(self) -> None:
        assert self._next is not None
        self._state, self._next = self._next[1], None
        self._whole.clear()
        if self._state == "cut":
            self._reset()

    def _reset(self) -> None:
        for end in self._ends:
            end.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._state == "cut":
            writer.transport.abort()
            return
        try:
            far = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, far[1]}
        self._ends |= ends
        pumps = [self._pump(reader, far[1]), self._pump(far[0], writer)]
        await asyncio.gather(*pumps, return_exceptions=True)
        self._ends -= ends
        for end in ends:
            end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self._state == "hold":
                    await self._whole.wait()
                if self._next is not None and self._passed + len(data) >= self._next[0]:
                    before = max(0, self._next[0] - self._passed)
                    self._passed += before
                    writer.write(data[:before])  # the rest meets the fault
                    await writer.drain()
                    data = data[before:]
                    self._break()
                    if self._state == "cut":
                        break
                    if self._state == "hold":
                        await self._whole.wait()
                if self._state == "swallow":
                    continue
                self._passed += len(data)
                writer.write(data)
                await writer.drain()
        with suppress(OSError):
            if writer.can_write_eof():
                writer.write_eof()

    async def _close(self) -> None:
        self._server.close()
        self._reset()
        await asyncio.sleep(0)
