"""A carrier of a linked session that drops, repeats, swaps, changes or replays what it carries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloister.core.errors import CloisterError
from cloister.federation.transports.links import Link, local_links
from cloister.privacy.budget import Budget
from cloister.privacy.ledger import Ledger
from cloister.shares.mpc.parties import Account, Outcome, take_part
from cloister.shares.mpc.sealed import seal
from cloister.shares.mpc.session import Session

from .people import frames
from .test_secret import KEYS, session

OWNERS = ("zero", "b")
HANDSHAKE = 2  # frames of each end before sealed messages


class Carrier:
    """One end of a link whose frame of a number does not arrive as it was sent."""

    def __init__(self, link: Link, how: str, number: int, old: list[bytes]) -> None:
        self.link, self.how, self.number, self.old = link, how, number, old
        self.sent = 0
        self.held: bytes | None = None

    def send(self, body: bytes) -> None:
        number, self.sent = self.sent, self.sent + 1
        if not self.how:
            self.old.append(body)
        if number == self.number:
            if self.how == "swap":
                self.held = body
            elif self.how == "repeat":
                self.link.send(body)
                self.link.send(body)
            elif self.how == "change":
                self.link.send(body[:-1] + bytes([body[-1] ^ 1]))
            elif self.how == "replay":
                self.link.send(self.old[number])
            return  # or it is dropped
        self.link.send(body)
        if self.held is not None:
            self.link.send(self.held)
            self.held = None

    def receive(self, most: int = 1 << 30) -> bytes:
        return self.link.receive(most)


def run(of: Session, folder: Path, pair: tuple[str, str], how: str, number: int, old: Any) -> Any:
    """Run all parties in threads; return what each has, or what stopped it."""
    ends: dict[tuple[str, str], Any] = {}
    for a in of.parties:
        for b in of.peers_of(a):
            if a < b:
                ends[a, b], ends[b, a] = local_links(3)
    ends[pair] = Carrier(ends[pair], how, number, old)
    tables = dict(zip(of.program.tables(), frames(12, 12, 0.5), strict=True))

    def part(name: str) -> Any:
        @contextmanager
        def links() -> Iterator[Mapping[str, Link]]:
            yield {
                peer: seal(
                    ends[name, peer], KEYS[name], name, peer, KEYS[peer].fingerprint, of.digest()
                )
                for peer in of.peers_of(name)
            }

        own = folder / of.id / name
        own.mkdir(parents=True)
        rows = {t: of.program.prepare(t, tables[t]) for t in of.tables_of(name)}  # type: ignore
        ledger = Ledger(None)
        ledger.open_dataset("people", cap=Budget(1.0, 1e-6), unit="id")
        account = Account(ledger, "people") if rows else None
        try:
            return take_part(
                of, name, links, own, tables=rows, account=account, identity=KEYS[name]
            )
        except CloisterError as error:
            return error

    with ThreadPoolExecutor(len(of.parties)) as pool:
        return dict(zip(of.parties, pool.map(part, of.parties), strict=True))


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["drop", "repeat", "swap", "change", "replay"])
@pytest.mark.parametrize("pair", [("one", "zero"), ("zero", "b"), ("b", "one"), ("dealer", "one")])
def test_a_carrier_that_meddles_ends_the_session_without_an_answer(
    tmp_path: Path, how: str, pair: tuple[str, str]
) -> None:
    kept: list[bytes] = []
    of = session(OWNERS)
    whole = run(of, tmp_path, pair, "", -1, kept)
    assert all(isinstance(done, Outcome) for done in whole.values()), whole
    assert whole["zero"].results
    # The first sealed message, one in the middle, and the last but one.
    for place, number in enumerate({HANDSHAKE, len(kept) // 2, max(HANDSHAKE, len(kept) - 2)}):
        again = replace(of, id=f"{place + 1:032x}")
        done = run(again, tmp_path, pair, how, number, kept)
        if how == "repeat" and number == len(kept) - 1:
            continue  # nobody reads a copy after the last message
        assert isinstance(done[pair[1]], CloisterError), (how, number, done)
        receiver = done["zero"]
        assert isinstance(receiver, CloisterError) or pair[1] != "zero"
