"""``cloister run --mpi`` with zero noise, watched: what each rank reads, receives and holds.

Usage: watched_run.py NOTES FAULT ARGUMENTS... ; FAULT is "none", or what rank 2 does instead of
opening its second round: "raise" or "die".
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import cloister.data
from cloister.cli import ranks
from cloister.cli.output import Output
from cloister.cli.over_files import run
from cloister.federation.transports import mpi
from cloister.testing import ZeroNoise

NOTES, FAULT = Path(sys.argv[1]), sys.argv[2]
RANK = mpi.world().rank
SECOND_ROUND = 2  # frames before it: open, reply


def note(kind: str, content: bytes) -> None:
    with (NOTES / f"{kind}-{RANK}").open("ab") as stream:
        stream.write(content + b"\n")


def watched_read(source, schema, *, _read=cloister.data.read_source, **options):
    note("read", os.fsencode(source))
    return _read(source, schema, **options)


def watched_receive(comm, rank, _receive=mpi._receive):
    data = _receive(comm, rank)
    note("received", data)
    return data


def watched_mask(key, _mask=ranks.GroupMask):
    note("key", key)
    return _mask(key)


def faulty_serve(comm, handle, _serve=ranks.serve):
    frames = iter(range(1_000_000))

    def faulty(frame):
        if RANK == 2 and FAULT != "none" and next(frames) == SECOND_ROUND:
            if FAULT == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("a fault of rank 2")
        return handle(frame)

    _serve(comm, faulty)


cloister.data.read_source = watched_read
mpi._receive = watched_receive
ranks.GroupMask = watched_mask
ranks.serve = faulty_serve

parser = argparse.ArgumentParser()
run.add_arguments(parser)
ranks.run_rank(parser.parse_args(sys.argv[3:]), Output(), ZeroNoise())
