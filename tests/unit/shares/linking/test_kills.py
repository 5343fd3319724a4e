"""An owner that is killed between any two writes: what a second run with the same session does."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cloister.core.errors import LedgerError, PlanError, TransportError
from cloister.federation.transports.links import Link
from cloister.privacy.budget import Budget
from cloister.privacy.ledger import Ledger
from cloister.shares.mpc import ending, parties
from cloister.shares.mpc.parties import Account, take_part

from .people import frames
from .test_secret import session

# The writes of an owner, in order: each is durable before the next one starts.
WRITES = (
    (Ledger, "reserve"),
    (parties, "_use_once"),
    (Ledger, "commit"),
    (Ledger, "close"),
)
MOMENTS = [*(name for _, name in WRITES), "send 0", "send 1", "send 2"]
OF = session(("zero", "one"))
PRICE = OF.program.event()


class Silent:
    """A link that counts what is sent over it; the other owner answers once, then nobody."""

    def __init__(self, sent: list[int]) -> None:
        self.sent = sent
        self.answers = [b"ready"]

    def send(self, body: bytes) -> None:
        self.sent.append(len(body))

    def receive(self, most: int = 0) -> bytes:
        if self.answers:
            return self.answers.pop()
        raise TransportError("nobody answers")


def part(folder: Path, seed: int, sent: Callable[[list[int]], Silent] = Silent) -> list[int]:
    """Run server 0, who is the first owner, until it waits; return the lengths that it sent."""
    ledger = Ledger(folder / "ledger.db")
    ledger.open_dataset("crm", cap=Budget(1.0, 1e-6), unit="id")
    lengths: list[int] = []

    @contextmanager
    def links() -> Iterator[Mapping[str, Link]]:
        yield dict.fromkeys(("dealer", "one"), sent(lengths))

    rows = {"x": OF.program.prepare("x", frames(9, 9, 0.5, seed)[0])}
    # A party that fails says so, which is no part of the count.
    with suppress(TransportError), patch.object(ending, "stop"):
        take_part(OF, "zero", links, folder, tables=rows, account=Account(ledger, "crm"))
    return lengths


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(folder: Path, moment: str, after: bool) -> None:
    """Run the part in a process that is killed before or after a write or a message."""

    def dying(write: Callable[..., Any]) -> Callable[..., Any]:
        def then(*given: Any, **named: Any) -> Any:
            if after:
                write(*given, **named)
            die()

        return then

    class Cut(Silent):
        def send(self, body: bytes) -> None:
            if moment == f"send {len(self.sent)}" and not after:
                die()
            super().send(body)
            if moment == f"send {len(self.sent) - 1}":
                die()

    child = os.fork()
    if child == 0:
        for place, name in WRITES:
            if name == moment:
                setattr(place, name, dying(getattr(place, name)))
        part(folder, 0, Cut)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the process must not have ended by itself"


def spent(folder: Path) -> float:
    return Ledger(folder / "ledger.db").spent("crm")


@pytest.mark.parametrize(("moment", "after"), [("reserve", False), *((m, True) for m in MOMENTS)])
def test_a_killed_owner_is_charged_once_and_sends_one_set_of_shares(
    tmp_path: Path, moment: str, after: bool
) -> None:
    killed(tmp_path, moment, after)
    # The secret for the other owner, the word to go on, and the share for its server.
    if moment in ("send 0", "send 1", "reserve"):  # no share left, so the session is taken up
        if moment == "reserve" and after:
            # What is reserved is for these rows and no others.
            with pytest.raises(LedgerError, match="another content"):
                part(tmp_path, 1)
        assert len(part(tmp_path, 0)) == 3
    with pytest.raises(PlanError, match="used here already"):
        part(tmp_path, 0)
    assert 0.999 < spent(tmp_path) <= 1.0
    assert len(Ledger(tmp_path / "ledger.db").jobs("crm")) == 1
