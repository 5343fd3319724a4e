"""The conformance suite over MPI: rank 0 runs it, the other ranks answer as its silos.

Each remote silo has a double in rank 0, made by the suite from the same plan, records and key. The
double gets the same frames and must give the same bytes, so the remote one did the same work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from cloister import testing
from cloister.app import in_process
from cloister.federation.transports.mpi import MpiTransport, hand_out, serve, world
from cloister.protocol.client import Client
from cloister.protocol.plan import Plan
from cloister.secagg.masks import GroupMask
from cloister.tasks import TASKS

KEY = bytes(range(32))  # the same on all ranks; a key of a test
ECHO, END = b"echo", b"end"
comm = world()


class Doubled:
    """A transport whose answers are compared with those of handlers in this process."""

    last: MpiTransport | None = None

    def __init__(self, handlers: Mapping[str, testing.Handler]) -> None:
        self.end()
        client = getattr(next(iter(handlers.values())), "__self__", None)
        hand_out(comm, json.dumps(client.plan.to_dict()).encode() if client else ECHO, 0)
        self._doubles = dict(handlers)
        self._inner = Doubled.last = MpiTransport(comm, tuple(handlers))

    @classmethod
    def end(cls) -> None:
        if cls.last:
            cls.last.close()

    def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = self._inner.exchange(frames)
        for silo, frame in frames.items():
            assert answers[silo] == self._doubles[silo](frame), f"{silo} answers as its double"
        return answers


def handler(job: bytes) -> testing.Handler:
    """Return what this rank answers with in one job of the suite."""
    if job == ECHO:
        name = "abc"[comm.rank - 1].encode()
        return lambda frame: name + b"|" + frame
    plan = Plan.from_dict(json.loads(job), TASKS)
    silo = plan.silos[comm.rank - 1]
    return Client(plan, silo, [testing.toy_records(plan)[silo]], GroupMask(KEY)).handle


if comm.rank == 0:
    in_process.new_key = lambda: KEY
    for law in testing.check_transport(Doubled):
        print("ok:", law, flush=True)
    Doubled.end()
    hand_out(comm, END, 0)
else:
    while (job := hand_out(comm, b"", 0)) != END:
        serve(comm, handler(job))
