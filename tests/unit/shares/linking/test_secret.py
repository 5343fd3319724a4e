"""The owners' secret: equal at all owners, sealed from server 0 that carries it, and fresh."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cloister.core.errors import CloisterError, PlanError, RemoteProtocolError
from cloister.federation.transports.links import Link, local_links
from cloister.hazmat.signing import Identity
from cloister.shares.linking import LinkedTable, Table
from cloister.shares.mpc.secret import await_owners, owners_secret
from cloister.shares.mpc.session import Party, Session

from .people import PARTS, frames, sides, uploads
from .test_merge import joined

NAMES = ("dealer", "zero", "one", "a", "b", "c")
KEYS = {name: Identity.new() for name in NAMES}


def session(owners: tuple[str, ...]) -> Session:
    own = sides(*[20] * len(owners))
    tables = dict(zip(("x", "y", "z"), own, strict=False))
    asked = LinkedTable(
        key="id",
        parts=PARTS,
        sides=tables,
        analyses=[Table(of=("group",))],
        epsilon=1.0,
        keys_per_person=1,
    )
    used = {"dealer", "zero", "one", *owners}
    return Session(
        id=32 * "0",
        program=asked.program,
        options=asked.options(),
        dealer="dealer",
        servers=("zero", "one"),
        owners=dict(zip(tables, owners, strict=True)),
        receivers=owners[:1],
        parties={
            name: Party(fingerprint=KEYS[name].fingerprint, address="localhost:1") for name in used
        },
    )


class Watched:
    """A link that shows, and may change, what its end sends."""

    def __init__(self, link: Link, seen: list[bytes], change: Any = None) -> None:
        self._link, self._seen, self._change = link, seen, change

    def send(self, body: bytes) -> None:
        self._seen.append(body)
        self._link.send(self._change(body) if self._change else body)

    def receive(self, most: int = 1 << 20) -> bytes:
        return self._link.receive(most)


def agreed(owners: tuple[str, ...], change: Any = None) -> tuple[dict[str, Any], list[bytes]]:
    """Return what each party has in the end, and what server 0 sent."""
    of, seen = session(owners), []
    ends: dict[str, dict[str, Any]] = {name: {} for name in of.parties}
    for a in of.parties:
        for b in of.peers_of(a):
            if a < b:
                ends[a][b], ends[b][a] = local_links(1 if change else 30)
    ends["zero"] = {name: Watched(link, seen, change) for name, link in ends["zero"].items()}

    def part(name: str) -> Any:
        try:
            secret, links = owners_secret(of, name, ends[name], KEYS[name])
            await_owners(of, name, ends[name], links)
            return secret
        except CloisterError as error:
            for end in ends[name].values():
                end.send(b"")
            return error

    names = [name for name in of.parties if name != "dealer"]
    with ThreadPoolExecutor(len(names)) as pool:
        return dict(zip(names, pool.map(part, names), strict=True)), seen


@pytest.mark.parametrize(
    "owners", [("a", "b"), ("a", "b", "c"), ("zero", "one"), ("zero", "a"), ("a", "zero", "b")]
)
def test_all_owners_have_one_fresh_secret_and_nobody_else(owners: tuple[str, ...]) -> None:
    has, _ = agreed(owners)
    secrets = {has[name] for name in owners}
    assert len(secrets) == 1
    (secret,) = secrets
    assert isinstance(secret, bytes)
    assert len(secret) == 32
    assert all(has[name] is None for name in has if name not in owners)
    assert agreed(owners)[0][owners[0]] != secret


def test_server_0_carries_what_it_cannot_read_or_change() -> None:
    has, frames_ = agreed(("a", "b"))
    assert len(frames_) == 7
    assert not any(has["a"] in frame for frame in frames_)
    for place in (0, -1):

        def flipped(body: bytes, place: int = place) -> bytes:
            whole = bytearray(body)
            if whole:  # an owner that stopped sends nothing
                whole[place] ^= 1
            return bytes(whole)

        broken, _ = agreed(("a", "b"), flipped)
        assert isinstance(broken["b"], RemoteProtocolError)


def test_an_owner_without_an_identity_is_refused() -> None:
    of = session(("a", "b"))
    with pytest.raises(PlanError, match="give the owner's identity"):
        owners_secret(of, "a", {"zero": local_links(1)[0], "one": local_links(1)[0]}, None)


def test_owners_with_different_secrets_have_nobody_in_common() -> None:
    own, tables = sides(50, 50), frames(50, 50, 1.0)
    (first,), (second,) = (
        uploads(tables[:1], own[:1], b"k" * 32),
        uploads(tables[1:], own[1:], b"m" * 32),
    )
    assert not joined([first, second]).there.any()
