"""A session file says one thing to every party, or is refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cloister.core.errors import CloisterError, DataError, PlanError
from cloister.shares.mpc.session import Session


@dataclass(frozen=True)
class Pair:
    name: ClassVar[str] = "pair"
    opening: ClassVar[str] = "exact"

    sizes: tuple[int, ...] = (3, 2)

    def tables(self) -> Mapping[str, tuple[int, ...]]:
        return {"x": self.sizes, "y": self.sizes}


PROGRAMS: Mapping[str, Any] = {"pair": Pair}


def pin(digit: str) -> dict[str, str]:
    return {"fingerprint": "ed25519:" + 64 * digit}


def document(**changes: Any) -> dict[str, Any]:
    return {
        "id": 32 * "a",
        "program": "pair",
        "options": {"sizes": [4, 2]},
        "dealer": "carol",
        "servers": ["alice", "bob"],
        "owners": {"x": "dave", "y": "alice"},
        "receivers": ["erin"],
        "parties": {
            "alice": pin("a") | {"address": "127.0.0.1:7000"},
            "bob": pin("b"),
            "carol": pin("c"),
            "dave": pin("d"),
            "erin": pin("e"),
        },
        "relay": "https://example.org:8443",
    } | changes


TOML = f"""
id = "{32 * "a"}"
program = "pair"
dealer = "carol"
servers = ["alice", "bob"]
receivers = ["erin"]
relay = "https://example.org:8443"
[options]
sizes = [4, 2]
[owners]
x = "dave"
y = "alice"
[parties.alice]
fingerprint = "ed25519:{64 * "a"}"
address = "127.0.0.1:7000"
""" + "".join(
    f'[parties.{name}]\nfingerprint = "ed25519:{64 * name[0]}"\n'
    for name in ("bob", "carol", "dave", "erin")
)


def test_toml_and_json_say_the_same_and_come_back(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(TOML)
    (tmp_path / "s.json").write_text(json.dumps(document()))
    first, second = (Session.load(tmp_path / name, PROGRAMS) for name in ("s.toml", "s.json"))
    assert first == second == Session.from_dict(first.to_dict(), PROGRAMS)
    assert first.digest() == second.digest()
    assert first.program == Pair((4, 2))


def test_the_digest_covers_every_value() -> None:
    parties = document()["parties"]
    changed = [
        {"id": 32 * "b"},
        {"options": {"sizes": [5, 2]}},
        {"servers": ["bob", "alice"]},
        {"owners": {"x": "alice", "y": "dave"}},
        {"relay": "https://example.org:9443"},
        {"parties": parties | {"erin": pin("f")}},
        {"parties": parties | {"alice": pin("a") | {"address": "127.0.0.1:7001"}}},
        {"parties": parties | {"frank": pin("f")}, "receivers": ["erin", "frank"]},
    ]
    digests = {Session.from_dict(document(**c), PROGRAMS).digest() for c in ({}, *changed)}
    assert len(digests) == len(changed) + 1


def test_who_has_a_link_to_whom_and_who_listens() -> None:
    session = Session.from_dict(document(), PROGRAMS)
    assert session.peers_of("alice") == ("carol", "bob", "dave", "erin")
    assert session.peers_of("carol") == session.peers_of("dave") == ("alice", "bob")
    assert session.listener("bob", "alice") == session.listener("alice", "dave") == "alice"
    assert session.listener("dave", "bob") is None
    assert session.clients() == ("dave", "erin")
    assert session.tables_of("alice") == ("y",)


@pytest.mark.parametrize("listening", [(), ("alice",), ("bob",), ("alice", "bob")])
def test_parties_that_take_their_links_in_order_never_wait_in_a_ring(
    listening: tuple[str, ...],
) -> None:
    parties = {
        name: pin(name[0]) | ({"address": "127.0.0.1:7000"} if name in listening else {})
        for name in document()["parties"]
    }
    session = Session.from_dict(document(parties=parties), PROGRAMS)
    before: TopologicalSorter[frozenset[str]] = TopologicalSorter()
    for name in session.parties:
        links: list[frozenset[str]] = []
        for here in (False, True):  # last those who come here, all at once
            peers = [
                frozenset((name, peer))
                for peer in session.peers_of(name)
                if (session.listener(name, peer) == name) == here
            ]
            for number, link in enumerate(peers):
                before.add(link, *links, *(() if here else peers[:number]))
            links += peers
    assert len(list(before.static_order())) == 7


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"id": "short"}, "32 hexadecimal digits"),
        ({"id": 5}, "id must be text"),
        ({"program": "other"}, "program must be one of pair, got 'other'"),
        (
            {"options": {"rows": 3}},
            "must be a table, may have 'sizes' and no more, got .* is unknown",
        ),
        ({"options": {"sizes": [1 << 20, 1 << 20]}}, "at most 134217728 entries"),
        ({"options": {"sizes": [date(2026, 1, 1)]}}, "do not fit"),
        ({"options": []}, "must be a table, may have 'sizes' and no more, got list"),
        ({"dealer": "alice"}, "must be three parties"),
        ({"servers": ["alice", "alice"]}, "must be three parties"),
        ({"servers": ["alice"]}, r"servers must be \(text, text\)"),
        ({"servers": [1, 2]}, r"servers must be \(text, text\)"),
        ({"owners": {"x": "carol", "y": "dave"}}, "must not be dealer and owner"),
        ({"receivers": ["carol"]}, "must not be dealer and receiver"),
        ({"receivers": []}, "1 or more"),
        ({"receivers": ["erin", "erin"]}, "none twice"),
        ({"owners": {"x": "dave"}}, "owners must name the owner of each"),
        ({"owners": {"x": "dave", "y": ["alice"]}}, "owners must be a mapping to text"),
        ({"receivers": ["frank"]}, "has only one of them"),
        ({"relay": "http://example.org"}, "relay must be https"),
        ({"relay": "https://user:word@example.org"}, "relay must be https"),
        ({"more": 1}, "no more, got .*'more'"),
    ],
)
def test_what_breaks_a_rule_is_refused_in_one_sentence(changes: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says) as refused:
        Session.from_dict(document(**changes), PROGRAMS)
    assert "word" not in str(refused.value) or "relay" not in changes


@pytest.mark.parametrize(
    ("party", "says"),
    [
        (pin("a"), "the same fingerprint"),
        ({"fingerprint": "ed25519:xyz"}, "64 hexadecimal digits"),
        (pin("b") | {"address": "nowhere"}, "HOST:PORT"),
        (pin("b") | {"key": "1"}, "no more"),
        ({}, "must be a table with 'fingerprint'"),
        ("b", "must be a table with 'fingerprint'"),
        ({"fingerprint": 5}, "fingerprint must be text"),
    ],
)
def test_a_party_needs_a_pin_of_its_own(party: Any, says: str) -> None:
    parties = document()["parties"] | {"bob": party}
    with pytest.raises(PlanError, match=says):
        Session.from_dict(document(parties=parties), PROGRAMS)


def test_a_server_needs_an_address_or_a_relay() -> None:
    without = {key: value for key, value in document().items() if key != "relay"}
    with pytest.raises(PlanError, match="server 'bob' must have an address"):
        Session.from_dict(without, PROGRAMS)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for name, text in (("a.toml", "id ="), ("b.json", "{"), ("c.json", "[" * 100_000)):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match="neither TOML nor JSON"):
            Session.load(tmp_path / name, PROGRAMS)
    with pytest.raises(DataError, match="No such file"):
        Session.load(tmp_path / "none", PROGRAMS)
    (tmp_path / "d.json").write_text("[]")
    with pytest.raises(CloisterError, match="session must be a table with 'id'"):
        Session.load(tmp_path / "d.json", PROGRAMS)
