"""A session by its parties: who gives what, in which order, and what ends it."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from cloister.core.errors import (
    BudgetExceeded,
    CloisterError,
    DataError,
    PlanError,
    RemoteProtocolError,
    TransportError,
)
from cloister.federation.transports.links import Link
from cloister.hazmat.signing import Identity
from cloister.privacy.budget import Budget
from cloister.privacy.events import Event, GaussianEvent
from cloister.privacy.ledger import Ledger
from cloister.shares.mpc import Server, encode, local_links, times
from cloister.shares.mpc.ending import Stopped
from cloister.shares.mpc.opening import MARKS
from cloister.shares.mpc.parties import Account, Outcome, connected, take_part, words_of
from cloister.shares.mpc.program import Opening
from cloister.shares.mpc.sealed import seal
from cloister.shares.mpc.session import Session
from cloister.shares.mpc.training.tables import padded

Words = NDArray[np.uint64]
NAMES = ("alice", "bob", "carol", "dave", "erin")
KEYS = {name: Identity.new() for name in NAMES}
ID = "0123456789abcdef" * 2


@dataclass(frozen=True)
class Scalar:
    """The product of two tables of padded rows; rows that are not there count nothing."""

    name: ClassVar[str] = "scalar"

    rows: int
    opening: Opening = "exact"
    sigma: float = 0.0

    def event(self) -> Event | None:
        return GaussianEvent(self.sigma) if self.sigma else None

    def tables(self) -> Mapping[str, tuple[int, ...]]:
        return {"x": (self.rows, 3), "y": (self.rows, 3)}

    def words(self, table: str, values: Any) -> Words:
        return padded(np.atleast_2d(encode(values)).view(np.int64), self.rows)

    def results(self) -> Mapping[str, tuple[int, ...]]:
        return {"product": (self.rows, 2), "both": (self.rows,)}

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        x, y = tables["x"], tables["y"]
        both = x[:, 2] + y[:, 2]
        return {"product": times(server, x[:, :2], y[:, :2]), "both": both * np.uint64(1 << 16)}


PROGRAMS = {"scalar": Scalar}


def document(**changes: Any) -> dict[str, Any]:
    return {
        "id": ID,
        "program": "scalar",
        "options": {"rows": 4},
        "dealer": "carol",
        "servers": ["alice", "bob"],
        "owners": {"x": "dave", "y": "erin"},
        "receivers": ["dave"],
        "parties": {
            name: {"fingerprint": key.fingerprint}
            | ({"address": "127.0.0.1:7700"} if name in ("alice", "bob") else {})
            for name, key in KEYS.items()
        },
    } | changes


def session(**changes: Any) -> Session:
    return Session.from_dict(document(**changes), PROGRAMS)


class Cables:
    """Sealed links within one process, of one end for each party of each pair."""

    def __init__(self, of: Session, timeout: float = 60.0) -> None:
        self.of, self.timeout = of, timeout
        pairs = {frozenset((a, b)) for a in of.parties for b in of.peers_of(a)}
        self.ends: dict[tuple[str, str], Link] = {}
        for pair in pairs:
            a, b = sorted(pair)
            self.ends[a, b], self.ends[b, a] = local_links(timeout)

    @contextmanager
    def links(self, name: str) -> Iterator[Mapping[str, Link]]:
        yield {
            peer: seal(
                self.ends[name, peer],
                KEYS[name],
                name,
                peer,
                KEYS[peer].fingerprint,
                self.of.digest(),
            )
            for peer in self.of.peers_of(name)
        }


X, Y = np.array([[1.5, -2.0], [3.0, 4.0]]), np.array([[2.0, 0.5], [1.0, -1.0], [7.0, 7.0]])
EXPECTED = [[3.0, -1.0], [3.0, -4.0], [0.0, 0.0], [0.0, 0.0]]


def run(of: Session, folder: Path, **accounts: Account) -> dict[str, Outcome | Exception]:
    """Run all parties in threads; return what each has or what stopped it."""
    cables = Cables(of)
    values = {"x": X, "y": Y}

    def part(name: str) -> Outcome | Exception:
        own = folder / name
        own.mkdir(exist_ok=True)
        try:
            tables = {t: words_of(of.program, t, values[t]) for t in of.tables_of(name)}
            return take_part(
                of,
                name,
                lambda: cables.links(name),
                own,
                tables=tables,
                account=accounts.get(name),
            )
        except CloisterError as error:
            return error

    with ThreadPoolExecutor(len(of.parties)) as pool:
        return dict(zip(of.parties, pool.map(part, of.parties), strict=True))


def results(outcome: Outcome | Exception) -> dict[str, NDArray[Any]]:
    assert isinstance(outcome, Outcome), outcome
    return outcome.results


def test_receivers_get_the_result_with_its_mark_and_nobody_else_does(tmp_path: Path) -> None:
    done = run(session(), tmp_path)
    assert np.abs(results(done["dave"])["product"] - EXPECTED).max() < 1e-3
    assert results(done["dave"])["both"].tolist() == [2, 2, 1, 0]
    for name in ("alice", "bob", "carol", "erin"):
        assert results(done[name]) == {}
    dave = done["dave"]
    assert isinstance(dave, Outcome)
    assert "NOT a private release" in dave.mark
    assert "3." not in repr(dave)


def test_a_server_may_own_a_table_and_receive(tmp_path: Path) -> None:
    parties = {name: p for name, p in document()["parties"].items() if name not in ("dave", "erin")}
    of = session(owners={"x": "alice", "y": "bob"}, receivers=["bob", "alice"], parties=parties)
    done = run(of, tmp_path)
    for name in ("alice", "bob"):
        assert np.abs(results(done[name])["product"] - EXPECTED).max() < 1e-3


def test_a_session_is_used_once_by_each_party(tmp_path: Path) -> None:
    run(session(), tmp_path)
    again = run(session(options={"rows": 5}), tmp_path)
    for name in NAMES:
        assert isinstance(again[name], PlanError)
        assert "used here already" in str(again[name])


def account(folder: Path, cap: float) -> Account:
    ledger = Ledger(folder / "ledger.db")
    ledger.open_dataset("ward", cap=Budget(cap, 1e-6), unit="row")
    return Account(ledger, "ward")


def test_a_private_opening_is_charged_before_the_first_share_leaves(tmp_path: Path) -> None:
    of = session(options={"rows": 4, "opening": "private", "sigma": 8.0})
    (tmp_path / "d").mkdir()
    (tmp_path / "e").mkdir()
    dave, erin = account(tmp_path / "d", 5.0), account(tmp_path / "e", 5.0)
    ends = Cables(of)
    spent: list[float] = []

    class Watched:
        def __init__(self, link: Link) -> None:
            self.link, self.receive = link, link.receive

        def send(self, body: bytes) -> None:
            spent.append(erin.ledger.spent("ward"))
            self.link.send(body)

    @contextmanager
    def only_sends() -> Iterator[Mapping[str, Link]]:
        yield {name: Watched(local_links(0.01)[0]) for name in ("alice", "bob")}

    with pytest.raises(TransportError):  # nobody answers, and it stays charged
        take_part(
            of,
            "erin",
            only_sends,
            tmp_path / "e",
            tables={"y": words_of(of.program, "y", Y)},
            account=erin,
        )
    assert len(spent) == 4  # a share, and the word that it stops, to each server
    assert min(spent) > 0
    del ends
    again = replace(of, id="f" * 32)
    done = run(again, tmp_path, dave=dave, erin=erin)
    assert "ledger was charged" in done["dave"].mark  # type: ignore[union-attr]
    assert dave.ledger.jobs("ward")[0].job == again.id


def test_a_ledger_that_refuses_stops_the_owner_before_anything_is_sent(tmp_path: Path) -> None:
    of = session(options={"rows": 4, "opening": "private", "sigma": 0.5})
    sent: list[bytes] = []

    class Silent:
        send = staticmethod(sent.append)

        def receive(self) -> bytes:
            raise TransportError("nothing")

    @contextmanager
    def links() -> Iterator[Mapping[str, Link]]:
        yield {name: Silent() for name in ("alice", "bob")}

    tables = {"x": words_of(of.program, "x", X)}
    with pytest.raises(BudgetExceeded):
        take_part(of, "dave", links, tmp_path, tables=tables, account=account(tmp_path, 0.1))
    with pytest.raises(PlanError, match="owner's ledger"):
        take_part(of, "dave", links, tmp_path, tables=tables)
    # Both servers learn that it stops, and no more.
    assert [body.partition(b"; ")[2] for body in sent] == [b"BudgetExceeded dave"] * 2


def test_wrong_tables_are_refused_before_anybody_is_dialled(tmp_path: Path) -> None:
    of = session()

    def links() -> Any:
        raise AssertionError("dialled")

    good = words_of(of.program, "x", X)
    for tables, error in (
        ({}, PlanError),
        ({"y": good}, PlanError),
        ({"x": good[:1]}, DataError),
        ({"x": good, "y": good}, PlanError),
    ):
        with pytest.raises(error):
            take_part(of, "dave", links, tmp_path, tables=tables)
    with pytest.raises(PlanError, match="not a party"):
        take_part(of, "mallory", links, tmp_path)
    for values in (np.ones((5, 2)), np.ones((4, 4)), np.full((2, 2), np.nan), [1.0]):
        with pytest.raises(DataError):
            words_of(of.program, "x", values)


def test_padding_hides_how_many_rows_there_are() -> None:
    program = Scalar(4)
    assert words_of(program, "x", X).shape == words_of(program, "x", X[:0]).shape == (4, 3)
    assert words_of(program, "x", X)[:, 2].tolist() == [1, 1, 0, 0]
    assert (words_of(program, "x", X)[:2, :2] == encode(X)).all()


@pytest.mark.parametrize("stops", ["carol", "alice", "bob", "dave"])
def test_whoever_stops_ends_the_run_at_all_with_a_message(stops: str, tmp_path: Path) -> None:
    """The one that stops hangs up; every other party says so, and none waits for its time-out."""
    of = with_ports(session())

    def part(name: str) -> Exception | Outcome:
        own = tmp_path / name
        own.mkdir()
        values = {"x": X, "y": Y}
        tables = {t: words_of(of.program, t, values[t]) for t in of.tables_of(name)}
        try:
            if name == stops:
                with connected(of, name, KEYS[name], timeout=30):
                    return PlanError("stopped")
            return take_part(
                of,
                name,
                lambda: connected(of, name, KEYS[name], timeout=30),
                own,
                tables=tables,
            )
        except CloisterError as error:
            return error

    with ThreadPoolExecutor(5) as pool:
        done = dict(zip(NAMES, pool.map(part, NAMES), strict=True))
    for name in NAMES:
        assert isinstance(done[name], TransportError | PlanError | Stopped), (name, done[name])
        assert "30 s" not in str(done[name])


def with_ports(of: Session) -> Session:
    """Give both servers a free port of this machine."""
    parties = dict(of.parties)
    with socket.create_server(("127.0.0.1", 0)) as a, socket.create_server(("127.0.0.1", 0)) as b:
        for name, found in zip(of.servers, (a, b), strict=True):
            address = f"127.0.0.1:{found.getsockname()[1]}"
            parties[name] = replace(parties[name], address=address)
    return replace(of, parties=parties)


def test_another_partys_keys_are_refused_before_dialling() -> None:
    with (
        pytest.raises(PlanError, match="this identity is"),
        connected(session(), "alice", KEYS["bob"]),
    ):
        pass


def test_a_garbled_key_or_share_of_an_owner_is_refused(tmp_path: Path) -> None:
    of = session()
    for name, body in (("alice", b"short"), ("bob", bytes(7))):
        ours, theirs = local_links(1)
        theirs.send(body)
        links = dict.fromkeys(of.peers_of(name), ours)

        @contextmanager
        def given(links: Mapping[str, Link] = links) -> Iterator[Mapping[str, Link]]:
            yield links

        (tmp_path / name).mkdir()
        with pytest.raises(RemoteProtocolError):
            take_part(of, name, given, tmp_path / name)


def test_every_opening_has_a_mark() -> None:
    assert set(MARKS) == {"label", "exact", "private"}
    assert "NOT a private release" in MARKS["exact"]
