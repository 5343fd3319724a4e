"""A relay of TCP connections that delays every byte, for benchmarks of parties far apart.

It stands between parties on one machine, where a network without traffic has no delay of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

_CHUNK = 1 << 16


def serve(routes: Mapping[int, int], delay: float) -> None:
    """Carry connections from each port to another one of this machine, until the process ends.

    Parameters
    ----------
    routes : mapping of int to int
        Where to listen, and where to connect.
    delay : float
        Seconds of each byte on its way, in each direction; the rate is not limited.
    """
    asyncio.run(_serve(routes, delay))


async def _serve(routes: Mapping[int, int], delay: float) -> None:
    async def carry(to: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await _connected(to)
        await asyncio.gather(_pipe(reader, back, delay), _pipe(there, writer, delay))

    doors = [
        await asyncio.start_server(partial(carry, to), "127.0.0.1", at) for at, to in routes.items()
    ]
    await asyncio.gather(*(door.serve_forever() for door in doors))


async def _connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a party, which may start later than the one that dials it."""
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """Write what is read, each part `delay` seconds later."""
    now = asyncio.get_running_loop().time
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def leave() -> None:
        body = b"-"
        while body:
            due, body = await queue.get()
            await asyncio.sleep(due - now())
            writer.write(body)
            await writer.drain()

    leaving = asyncio.create_task(leave())
    body = b"-"
    with suppress(OSError):
        while body:
            body = await reader.read(_CHUNK)
            queue.put_nowait((now() + delay, body))
        await leaving
    leaving.cancel()
    writer.close()
