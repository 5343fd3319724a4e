"""The relay that delays, and the models of linked persons beside clear ones."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from cloister.shares.linking import Linear

DELAY = 0.2


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def test_a_relay_delays_every_byte_in_both_directions_and_loses_none(
    benchmark_named: Callable[[str], ModuleType],
) -> None:
    relay = benchmark_named("delaying_relay")
    body = np.random.default_rng(0).bytes(1 << 20)

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readexactly(len(body)))[::-1])
        await writer.drain()
        writer.close()

    async def there_and_back() -> tuple[bytes, float]:
        door, port = free_port(), free_port()
        carrying = asyncio.create_task(relay._serve({door: port}, DELAY))
        # The party that is dialled starts later, as it may among processes.
        reader, writer = None, None
        while reader is None or writer is None:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", door)
            except OSError:
                await asyncio.sleep(0.01)
        async with await asyncio.start_server(answers, "127.0.0.1", port):
            start = time.monotonic()
            writer.write(body)
            found = await reader.readexactly(len(body))
            took = time.monotonic() - start
            writer.close()
        carrying.cancel()
        return found, took

    found, took = asyncio.run(there_and_back())
    assert found == body[::-1]
    assert took >= 2 * DELAY  # a loaded machine only takes longer


def test_linked_slopes_are_those_of_the_joined_rows_and_noise(
    benchmark_named: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At an epsilon without much noise, so that a wrong order of columns would show."""
    models = benchmark_named("linking_models")
    whole = models.LinkedTable
    monkeypatch.setattr(models, "LinkedTable", lambda **given: whole(**{**given, "epsilon": 1e4}))
    draw = np.random.default_rng(0)
    people = models.Truth(np.array([1.0, -2.0, 3.0, 4.0])).people(1500, draw)
    analysis = Linear(of=tuple(models.names_of(4)), target="t")
    (found,) = models.linked(people, 900, 4, [analysis], draw)
    joined = people.iloc[:900]
    clear = models.LinearRegression().fit(joined[models.names_of(4)], joined["t"])
    # Columns and target have levels of 1 / 4095 of their ranges; the noise is below them.
    assert np.abs(found[:-1] - clear.coef_).max() < 0.1
