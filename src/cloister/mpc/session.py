"""What all parties of a computation on shares agree on: one file, the same for everyone.

::

    id = "..."                        # 32 hexadecimal digits, fresh for every run
    program = "sum"
    dealer = "registry"
    servers = ["north", "south"]      # server 0 and server 1
    receivers = ["bank-a"]
    relay = "https://HOST:PORT"       # only where a server has no address

    [options]                         # public parameters of the program
    rows = 1000

    [owners]                          # who gives which table
    x = "bank-a"

    [parties.north]                   # likewise for every name above
    fingerprint = "ed25519:..."
    address = "north.example.org:7700"

Dealer, server 0 and server 1 are three parties of three keys. The dealer gives and receives
nothing: an opened result that it dealt the noise for would be exact to it. A server may also be an
owner or a receiver: it learns its own table, its results, and random words.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any, Self

from cloister.errors import CloisterError, DataError, PlanError, raise_first
from cloister.mpc.dealer import MOST_WORDS
from cloister.mpc.program import Program
from cloister.mpc.tcp import address_of

_ID, _NAME = re.compile("[0-9a-f]{32}"), re.compile(r"[A-Za-z0-9._-]{1,64}")
_PIN = re.compile("ed25519:[0-9a-f]{64}")
_RELAY = re.compile(r"https://[^\s/@?#]+")
_KINDS: Mapping[str, type[Any]] = {
    **dict.fromkeys(("id", "program", "dealer", "relay"), str),
    **dict.fromkeys(("servers", "receivers"), list),
    **dict.fromkeys(("options", "owners", "parties"), dict),
}
_OPTIONAL: Mapping[str, Any] = {"relay": None, "options": {}}
_MOST_PARTIES = 64


@dataclass(frozen=True)
class Party:
    """One party of a session.

    Parameters
    ----------
    fingerprint : str
        Of its identity, compared out of band.
    address : str or None
        HOST:PORT where it listens, for a server that can be dialled.
    """

    fingerprint: str
    address: str | None = None


@dataclass(frozen=True)
class Session:
    """One run of one program by named, pinned parties.

    Parameters
    ----------
    id : str
        32 hexadecimal digits. A party takes part in a session once: fresh masks of other records
        would be a new query.
    program : Program
    dealer : str
    servers : (str, str)
    owners : mapping of table to name
    receivers : tuple of str
        Who gets all results.
    parties : mapping of name to Party
        Exactly those named above.
    relay : str, optional
        The coordinator that carries sealed links to servers without an address.
    options : mapping
        What the program was made of.

    Raises
    ------
    PlanError
        If a rule of the module's description is broken.
    """

    id: str
    program: Program = field(repr=False)
    dealer: str
    servers: tuple[str, str]
    owners: Mapping[str, str]
    receivers: tuple[str, ...]
    parties: Mapping[str, Party] = field(repr=False)
    relay: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        raise_first(self._broken())

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], programs: Mapping[str, type[Any]]) -> Self:
        """Read a session; `programs` are those that may be named in it."""
        if not isinstance(document, Mapping):
            raise PlanError("session must be a table of keys and values.")
        if unknown := sorted(set(map(str, document)) - set(_KINDS)):
            raise PlanError(f"session key {unknown[0]!r} is unknown; use {', '.join(_KINDS)}.")
        given = {**_OPTIONAL, **document}
        for key, kind in _KINDS.items():
            value = given.get(key)
            if not isinstance(value, kind) and (key in document or key not in _OPTIONAL):
                raise PlanError(f"{key} must be a {kind.__name__}, got {type(value).__name__}.")
        for key in ("owners", "servers", "receivers"):
            names = given[key].values() if key == "owners" else given[key]
            if not all(isinstance(name, str) for name in names):
                raise PlanError(f"{key} must name parties.")
        if len(given["servers"]) != 2:
            raise PlanError(f"servers must be two names, got {len(given['servers'])}.")
        return cls(
            **{key: given[key] for key in ("id", "dealer", "owners", "relay", "options")},
            program=_program(given["program"], given["options"], programs),
            servers=tuple(given["servers"]),
            receivers=tuple(given["receivers"]),
            parties={who: _party(who, party) for who, party in given["parties"].items()},
        )

    @classmethod
    def load(cls, path: str | PathLike[str], programs: Mapping[str, type[Any]]) -> Self:
        """Read a session from a file, TOML or JSON by its ending.

        Raises
        ------
        DataError
            If the file cannot be read.
        PlanError
            If what it says breaks a rule.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
            document = json.loads(text) if Path(path).suffix == ".json" else tomllib.loads(text)
        except (OSError, ValueError, RecursionError) as error:
            why = getattr(error, "strerror", None) or "it is neither TOML nor JSON"
            raise DataError(f"session {str(path)!r} cannot be read: {why}.") from None
        return cls.from_dict(document, programs)

    def to_dict(self) -> dict[str, Any]:
        """Return what :meth:`from_dict` reads."""
        parties = {
            name: {"fingerprint": party.fingerprint}
            | ({"address": party.address} if party.address else {})
            for name, party in self.parties.items()
        }
        return {
            "id": self.id,
            "program": self.program.name,
            "options": dict(self.options),
            "dealer": self.dealer,
            "servers": list(self.servers),
            "owners": dict(self.owners),
            "receivers": list(self.receivers),
            "parties": parties,
        } | ({"relay": self.relay} if self.relay else {})

    def digest(self) -> str:
        """Return SHA-256 over all of it and the version of this package, in hexadecimal.

        Every link is sealed for this digest: parties with another file or version have none.
        """
        whole = {**self.to_dict(), "cloister": version("cloister")}
        text = json.dumps(whole, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def tables_of(self, name: str) -> tuple[str, ...]:
        """Return the tables that a party gives, in the order of the program."""
        return tuple(table for table in self.program.tables() if self.owners[table] == name)

    def clients(self) -> tuple[str, ...]:
        """Return owners and receivers that are no servers."""
        everybody = dict.fromkeys((*self.owners.values(), *self.receivers))
        return tuple(name for name in everybody if name not in self.servers)

    def peers_of(self, name: str) -> tuple[str, ...]:
        """Return whom a party has a link to: a server to all, others to both servers."""
        if name not in self.servers:
            return self.servers
        others = (self.dealer, *self.servers, *self.clients())
        return tuple(other for other in others if other != name)

    def listener(self, one: str, other: str) -> str | None:
        """Return which of two parties the other dials; None where the coordinator relays."""
        server = next(name for name in self.servers if name in (one, other))
        return server if self.parties[server].address else None

    def _broken(self) -> Iterator[str]:
        if not _ID.fullmatch(self.id):
            yield f"id must be 32 hexadecimal digits, got {self.id!r}."
        for name, party in self.parties.items():
            if not _NAME.fullmatch(name):
                yield f"names must be 1 to 64 of letters, digits, '.', '_' and '-', got {name!r}."
            if not _PIN.fullmatch(party.fingerprint):
                yield (
                    f"the fingerprint of {name!r} must be 'ed25519:' and 64 hexadecimal digits, "
                    f"got {party.fingerprint!r}."
                )
            if party.address is not None:
                address_of(party.address)
        pins = [party.fingerprint for party in self.parties.values()]
        if len(set(pins)) != len(pins):
            yield "no two parties may have one fingerprint; each needs a key of its own."
        if len({self.dealer, *self.servers}) != 3:
            yield (
                "dealer, server 0 and server 1 must be three parties, got "
                f"{self.dealer!r}, {self.servers[0]!r} and {self.servers[1]!r}."
            )
        for role, names in (("owner", self.owners.values()), ("receiver", self.receivers)):
            if self.dealer in names:
                yield f"{self.dealer!r} must not be dealer and {role}; name another dealer."
        if not self.receivers or len(set(self.receivers)) != len(self.receivers):
            yield "receivers must be at least one name, and none twice."
        if set(self.owners) != set(self.program.tables()):
            yield (
                f"owners must name who gives each of {sorted(self.program.tables())}, got "
                f"{sorted(self.owners)}."
            )
        several = len(set(self.owners.values())) < len(self.owners)
        if several and (self.program.opening == "private" or hasattr(self.program, "voters")):
            yield (
                f"each table of {self.program.name!r} must have an owner of its own: noise is for "
                "one table of a silo, and of two voters one knows the other's vote."
            )
        named = {self.dealer, *self.servers, *self.owners.values(), *self.receivers}
        if named != set(self.parties):
            strange = sorted(named ^ set(self.parties))[0]
            yield f"{strange!r} must have a role and a fingerprint, and has only one of them."
        if len(named) > _MOST_PARTIES:
            yield f"a session must have at most {_MOST_PARTIES} parties, got {len(named)}."
        for table, shape in self.program.tables().items():
            if prod(shape) > MOST_WORDS:
                yield f"table {table!r} must have at most {MOST_WORDS} entries, got {prod(shape)}."
        if self.relay is not None and not _RELAY.fullmatch(self.relay):
            yield "relay must be https://HOST:PORT with nothing after it."
        for name in self.servers:
            if self.relay is None and not self.parties[name].address:
                yield f"server {name!r} must have an address, or the session a relay."


def _program(name: str, options: Mapping[str, Any], programs: Mapping[str, type[Any]]) -> Program:
    if name not in programs:
        known = ", ".join(sorted(programs)) or "none"
        raise PlanError(f"program must be one of {known}, got {name!r}.")
    try:
        json.dumps(options)  # TOML has dates, which no program takes
        program: Program = programs[name](**{k: _frozen(value) for k, value in options.items()})
    except CloisterError:
        raise
    except (TypeError, ValueError, AttributeError, KeyError):
        raise PlanError(f"options of program {name!r} do not fit it; see its page.") from None
    return program


def _party(name: object, party: object) -> Party:
    if not isinstance(party, Mapping) or not {"fingerprint"} <= set(party) <= {
        "fingerprint",
        "address",
    }:
        raise PlanError(f"party {name!r} must have a fingerprint, may have an address, no more.")
    if not all(isinstance(value, str) for value in party.values()):
        raise PlanError(f"fingerprint and address of party {name!r} must be texts.")
    return Party(**party)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
