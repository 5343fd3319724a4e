"""A process that has imported what parties import, and forks one for each command it is asked for.

``python nursery.py FD``: each message on that socket is a JSON document with a command line of
Python, or with the number of a process to look after. A party starts in a tenth of the time, and is
otherwise what its command line says: a session, a folder, streams, memory and files of its own.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import socket
import sys
from importlib import import_module

from cloister.protocol.code import preload_digests
from cloister.tasks import TASKS

# What a coordinator or a silo has imported by the end of its first job.
MODULES = (
    "cloister.testing",
    "cloister.federation.service.main",
    "cloister.federation.service.hub",
    "cloister.federation.settings",
    "cloister.federation.silo.main",
    "cloister.tasks.examples",
    "anyio._backends._asyncio",
    "pandas",
    "pyarrow.compute",
    "pyarrow.csv",
    "scipy.special",
    "sqlalchemy.dialects.sqlite",
)


def fork(asked: dict[str, object], streams: list[int]) -> int:
    """Fork; return 0 in the child, which leads a session of its own by the time we return here."""
    ready, held = os.pipe()
    if child := os.fork():
        os.close(held)
        os.read(ready, 1)
        os.close(ready)
        return child
    os.setsid()
    os.close(held)
    os.close(ready)
    os.chdir(str(asked["cwd"]))
    os.environ.clear()
    os.environ.update(asked["environ"])  # type: ignore[call-overload]
    for number, stream in enumerate((os.open(os.devnull, os.O_RDONLY), *streams)):
        os.dup2(stream, number)
        os.close(stream)
    return 0


def become(what: str, *argv: str) -> None:
    """Go on as ``python WHAT ARGV`` would."""
    if what == "-c":
        sys.argv, sys.path[0] = ["-c", *argv[1:]], ""
        exec(argv[0], {"__name__": "__main__"})
    elif what == "-m":
        sys.argv, sys.path[0] = [*argv], os.getcwd()
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [what, *argv], os.path.dirname(what)
        runpy.run_path(what, run_name="__main__")


def serve(line: socket.socket) -> list[str]:
    """Answer until the other end is gone; in a child, return the rest of its command line."""
    while True:
        message, streams, *_ = socket.recv_fds(line, 2**18, 2)
        if not message:
            sys.exit()
        asked = json.loads(message)
        if "command" in asked:
            answer: int | None = fork(asked, streams)
            if answer == 0:
                return list(asked["command"])
            for stream in streams:
                os.close(stream)
        else:
            child, status = os.waitpid(asked["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if child else None
        line.sendall(json.dumps(answer).encode())


if __name__ == "__main__":
    for name in MODULES:
        import_module(name)
    preload_digests(TASKS, TASKS)  # each silo would parse the same sources again
    gc.collect()
    gc.freeze()  # a collection in a child would copy all that it shares with us
    with socket.socket(fileno=int(sys.argv[1])) as ours:
        command = serve(ours)
    become(*command)
