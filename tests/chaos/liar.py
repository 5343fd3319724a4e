"""Run a party that is honest but for one thing, which ``lie.json`` beside its settings says.

``{"what": ..., "kind": ..., "round": ..., "to": [...]}``: what is done to frames of a kind, in a
round, to or from some silos. The lie is told over the real connection with a genuine certificate.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import party

from cloister.federation.service.hub import HubTransport
from cloister.protocol.client import Client
from cloister.protocol.exchanges import Kind
from cloister.testing import serve

SESSION_AT, DIGEST_AT, ROUND_AT = 7, 23, 55  # in the header of a frame
SENT: list[bytes] = []  # frames of the kind, as they should have been


def lie(frame: bytes, who: str) -> bytes:
    """Return the frame, or what the lie makes of it."""
    path = Path("lie.json")
    if not path.exists():
        return frame
    told = json.loads(path.read_text())
    kind, t = Kind(frame[6]).name.lower(), int.from_bytes(frame[ROUND_AT : ROUND_AT + 4], "big")
    if kind != told["kind"] or who not in told["to"]:
        return frame
    SENT.append(frame)
    if t != told["round"]:
        return frame
    with Path("lies.log").open("a") as log:
        log.write(f"{frame[SESSION_AT:DIGEST_AT].hex()} {told['what']}\n")
    return {
        "other job": lambda: frame[:SESSION_AT] + bytes(16) + frame[DIGEST_AT:],
        "other plan": lambda: _flipped(frame, DIGEST_AT),
        "cut": lambda: frame[:-1],
        "header only": lambda: frame[:40],
        "longer": lambda: frame + b"\0",
        "empty": lambda: b"",
        "oversized": lambda: frame + bytes(2**20),
        "replayed": lambda: SENT[0],
        "altered sum": lambda: _flipped(frame, len(frame) - 4),
        "other round": lambda: (
            frame[:ROUND_AT] + (t + 1).to_bytes(4, "big") + frame[ROUND_AT + 4 :]
        ),
        "other lattice": lambda: _flipped(frame, ROUND_AT + 8),
        "sender": lambda: frame.replace(who.encode(), who[::-1].encode(), 1),
    }[told["what"]]()


def _flipped(frame: bytes, place: int) -> bytes:
    return frame[:place] + bytes([frame[place] ^ 1]) + frame[place + 1 :]


def watch_coordinator() -> None:
    exchange = HubTransport.exchange

    def lying(transport: HubTransport, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        return exchange(transport, {silo: lie(frame, silo) for silo, frame in frames.items()})

    HubTransport.exchange = lying  # type: ignore[method-assign]
    party.watch_coordinator()  # sees what is true


def watch_silo() -> None:
    party.watch_silo()
    handle = Client.handle

    def lying(client: Client, frame: bytes) -> bytes:
        return lie(handle(client, frame), client.silo)

    Client.handle = lying  # type: ignore[method-assign]


if __name__ == "__main__":
    {"coordinator": watch_coordinator, "silo": watch_silo}[sys.argv[1]]()
    serve(sys.argv[1], sys.argv[2])
