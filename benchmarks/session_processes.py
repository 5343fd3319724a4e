"""A session on shares by real processes: every party has a key of its own and sees its part alone.

What :mod:`share_processes` times without parties, this plays with all of them: dealer, two servers,
owners and receivers, each an operating-system process, over sealed loopback links.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from cloister.core.randomness import new_key
from cloister.hazmat.signing import Identity
from cloister.shares.inference.programs import PROGRAMS
from cloister.shares.mpc.parties import connected, take_part, words_of
from cloister.shares.mpc.session import Session

COMPUTE = ("dealer", "server-0", "server-1")


@dataclass(frozen=True)
class Part:
    """What one party came out with: results by name, what they are, and seconds of the session."""

    results: Mapping[str, Any]
    mark: str
    seconds: float


def run_session(
    program: str,
    options: Mapping[str, Any],
    owners: Mapping[str, str],
    receivers: Sequence[str],
    tables: Mapping[str, Callable[[], Any]],
) -> dict[str, Part]:
    """Run a session; each table is made inside its owner's process, by a call without arguments."""
    names = tuple(dict.fromkeys((*COMPUTE, *owners.values(), *receivers)))
    identities = {name: Identity.from_bytes(new_key()) for name in names}
    doors = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    parties: dict[str, dict[str, str]] = {
        name: {"fingerprint": identity.fingerprint} for name, identity in identities.items()
    }
    for name, door in zip(COMPUTE[1:], doors, strict=True):
        parties[name]["address"] = f"127.0.0.1:{door.getsockname()[1]}"
        door.close()
    document = {
        "id": new_key()[:16].hex(),
        "program": program,
        "options": dict(options),
        "dealer": COMPUTE[0],
        "servers": list(COMPUTE[1:]),
        "owners": dict(owners),
        "receivers": list(receivers),
        "parties": parties,
    }
    session = Session.from_dict(document, PROGRAMS)
    context = get_context("fork")
    answers = context.Queue()
    processes = [
        context.Process(target=_play, args=(session, name, identity, tables, answers))
        for name, identity in identities.items()
    ]
    for process in processes:
        process.start()
    found = dict(answers.get(timeout=600) for _ in processes)
    for process in processes:
        process.join()
    return found


def _play(session: Session, name: str, identity: Identity, tables: Any, answers: Any) -> None:
    own = {table: tables[table]() for table in session.tables_of(name)}
    words = {table: words_of(session.program, table, values) for table, values in own.items()}
    begun = time.perf_counter()
    links = partial(connected, session, name, identity, timeout=120)
    with tempfile.TemporaryDirectory() as folder:
        outcome = take_part(session, name, links, Path(folder), tables=words)
    answers.put((name, Part(outcome.results, outcome.mark, time.perf_counter() - begun)))
