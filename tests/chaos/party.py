"""Run a party of a federation with zero noise, and stop it at any step that a test names.

``python party.py ROLE CONFIG``. Every step is a line in ``steps.log``. A party that comes to the
step in the file ``trap`` renames it to ``trapped`` and waits until that is gone; what its process
does otherwise goes on, as with a thread that the scheduler forgot. What a coordinator has
committed is in ``committed.log``.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from cloister.federation.service.hub import HubTransport
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.client import Client
from cloister.protocol.exchanges import Kind
from cloister.protocol.messages import Reply, decode
from cloister.testing import serve

LEGS = {
    Kind.INVITE: "keys",
    Kind.ROSTER: "secrets",
    Kind.DEAL: "ready",
    Kind.OPEN: "upload",
    Kind.REPLY: "confirm",
    Kind.UNMASK: "shares",
    Kind.CLOSE: "close",
}
_KIND, _ROUND = struct.Struct(">B"), struct.Struct(">I")
_KIND_AT, _ROUND_AT = 6, 55
_LOG, _TRAP, _TRAPPED = Path("steps.log"), Path("trap"), Path("trapped")
_COMMITTED = Path("committed.log")


def step(when: str, frame: bytes, job: str) -> None:
    if len(frame) < _ROUND_AT + _ROUND.size:
        return  # no frame of ours
    kind = Kind(_KIND.unpack_from(frame, _KIND_AT)[0])
    leg = LEGS.get(kind, kind.name.lower())
    text = f"{when} {leg} {_ROUND.unpack_from(frame, _ROUND_AT)[0]}"
    with _LOG.open("a") as log:
        log.write(f"{job} {text}\n")
    with suppress(FileNotFoundError):
        if _TRAP.read_text() == text:
            _TRAP.rename(_TRAPPED)
            while _TRAPPED.exists():
                time.sleep(0.005)


def watch_silo() -> None:
    handle: Callable[[Client, bytes], bytes] = Client.handle

    def watched(client: Client, frame: bytes) -> bytes:
        step("asked", frame, client.plan.run_id)
        answer = handle(client, frame)
        step("answers", frame, client.plan.run_id)  # durable, and not sent yet
        return answer

    Client.handle = watched  # type: ignore[method-assign]


def watch_coordinator() -> None:
    exchange, combine = HubTransport.exchange, Aggregator.combine

    def combined(aggregator: Aggregator) -> bytes:
        answer = combine(aggregator)  # durable, and not sent yet
        reply = decode(aggregator.plan, answer)
        assert isinstance(reply, Reply)
        said = {"job": aggregator.plan.run_id, "round": reply.round, "survivors": reply.survivors}
        with _COMMITTED.open("a") as log:
            log.write(json.dumps(said) + "\n")
        return answer

    def watched(transport: HubTransport, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        frame = next(iter(frames.values()), b"")
        if frame:
            step("asks", frame, transport.job)
        answers = exchange(transport, frames)
        if frame:
            step("heard", frame, transport.job)
        return answers

    Aggregator.combine = combined  # type: ignore[method-assign]
    HubTransport.exchange = watched  # type: ignore[method-assign]


if __name__ == "__main__":
    {"coordinator": watch_coordinator, "silo": watch_silo}[sys.argv[1]]()
    serve(sys.argv[1], sys.argv[2])
