"""The session file, on which all parties of a computation on shares agree.

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

Dealer, server 0 and server 1 are three parties with three keys. The dealer is neither an owner nor
a receiver, since a result would be exact to a dealer that knows its noise. A server may also be an
owner or a receiver: it learns its own table, its results, and random words.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import field, is_dataclass
from importlib.metadata import version
from math import prod
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Self

from cloister.core.declared import Length, Rule, as_tuples, declarations, declared
from cloister.core.errors import CloisterError, DataError, PlanError, raise_if_any
from cloister.core.files import toml_of
from cloister.federation.transports.tcp import address_of
from cloister.shares.mpc.dealer import MOST_WORDS
from cloister.shares.mpc.program import Program

_MOST_PARTIES = 64


def _written(pattern: str, text: str) -> Rule:
    return Rule(text, lambda value: re.fullmatch(pattern, value) is not None)


@declared
class Party:
    """One party of a session."""

    fingerprint: Annotated[
        str,
        _written("ed25519:[0-9a-f]{64}", "'ed25519:' and 64 hexadecimal digits"),
        "of its identity, compared out of band",
    ]
    address: Annotated[str | None, "HOST:PORT of a server that can be dialled"] = None

    def __post_init__(self) -> None:
        if self.address is not None:
            address_of(self.address)


@declared
class Session:
    """One run of one program by named, pinned parties, by the rules of the module's description."""

    # A party takes part in a session once: fresh masks of other records would be a new query.
    id: Annotated[str, _written("[0-9a-f]{32}", "32 hexadecimal digits")]
    program: Program = field(repr=False)
    dealer: str
    servers: tuple[str, str]
    owners: Annotated[Mapping[str, str], "the owner of each table"]
    receivers: Annotated[
        tuple[str, ...],
        Length(1),
        Rule("none twice", lambda names: len(set(names)) == len(names)),
        "parties that get all results",
    ]
    parties: Annotated[Mapping[str, Party], "all parties named above, and no others"] = field(
        repr=False
    )
    relay: Annotated[str | None, "coordinator that carries links to servers without an address"] = (
        None
    )
    options: Annotated[Mapping[str, Any], "options of the program"] = field(
        default_factory=dict, repr=False
    )

    def __post_init__(self) -> None:
        raise_if_any(self._broken())

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], programs: Mapping[str, type[Any]]) -> Self:
        """Read a session; `programs` are the programs that it may name."""
        given = table_of(cls, "session", document)
        given["program"] = _program(given["program"], given.get("options", {}), programs)
        if isinstance(given["parties"], Mapping):
            given["parties"] = {
                who: Party(**table_of(Party, f"party {who!r}", party))
                for who, party in given["parties"].items()
            }
        return cls(**given)

    @classmethod
    def load(cls, path: str | PathLike[str], programs: Mapping[str, type[Any]]) -> Self:
        """Read a session from a file, TOML or JSON by its ending.

        Raises
        ------
        DataError, PlanError
            If the file cannot be read, or its content violates a rule.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
            document = json.loads(text) if Path(path).suffix == ".json" else toml_of(text)
        except (OSError, ValueError, RecursionError) as error:
            why = getattr(error, "strerror", None) or "it is neither TOML nor JSON"
            raise DataError(f"session {str(path)!r} cannot be read: {why}.") from None
        return cls.from_dict(document, programs)

    def to_dict(self) -> dict[str, Any]:
        """Return the session as JSON-able values, the input of :meth:`from_dict`."""
        parties = {who: _given(party) for who, party in self.parties.items()}
        return {**_given(self), "program": self.program.name, "parties": parties}

    def digest(self) -> str:
        """Return SHA-256 over the session and the version of this package, in hexadecimal.

        Every link is sealed for this digest, so that parties with another file or version fail.
        """
        # Keys are sorted below, but the order of tables has a meaning: "left" is the first one's.
        order = list(self.program.tables())
        whole = {**self.to_dict(), "tables": order, "cloister": version("cloister")}
        text = json.dumps(whole, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def tables_of(self, name: str) -> tuple[str, ...]:
        """Return the tables that a party owns, in the order of the program."""
        return tuple(table for table in self.program.tables() if self.owners[table] == name)

    def clients(self) -> tuple[str, ...]:
        """Return the owners and receivers that are not servers."""
        everybody = dict.fromkeys((*self.owners.values(), *self.receivers))
        return tuple(name for name in everybody if name not in self.servers)

    def peers_of(self, name: str) -> tuple[str, ...]:
        """Return the peers of a party: all parties for a server, both servers for others.

        A dialling party waits for the other. If all parties open these links in order, and accept
        incoming links last, they never wait in a circle.
        """
        if name not in self.servers:
            return self.servers
        others = (self.dealer, *self.servers, *self.clients())
        return tuple(other for other in others if other != name)

    def listener(self, one: str, other: str) -> str | None:
        """Return the party of two that the other dials; None if the coordinator relays."""
        server = next(name for name in self.servers if name in (one, other))
        return server if self.parties[server].address else None

    def _broken(self) -> Iterator[str]:
        for name in self.parties:
            if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
                yield f"names must be 1 to 64 of letters, digits, '.', '_' and '-', got {name!r}."
        # One key under two names could be the dealer and a server, which together see everything.
        pins = [party.fingerprint for party in self.parties.values()]
        if len(set(pins)) != len(pins):
            yield "no two parties may have the same fingerprint; give each party a different key."
        if len({self.dealer, *self.servers}) != 3:
            yield (
                "dealer, server 0 and server 1 must be three parties, got "
                f"{self.dealer!r}, {self.servers[0]!r} and {self.servers[1]!r}."
            )
        for role, names in (("owner", self.owners.values()), ("receiver", self.receivers)):
            if self.dealer in names:
                yield f"{self.dealer!r} must not be dealer and {role}; name another dealer."
        if set(self.owners) != set(self.program.tables()):
            yield (
                f"owners must name the owner of each of {sorted(self.program.tables())}, got "
                f"{sorted(self.owners)}."
            )
        # Noise is calibrated to one table per owner.
        several = len(set(self.owners.values())) < len(self.owners)
        if several and hasattr(self.program, "voters"):
            yield (
                f"each table of {self.program.name!r} must have a different owner: an owner of two "
                "voters would know both votes."
            )
        elif several and self.program.opening == "private":
            yield (
                f"each table of {self.program.name!r} must have a different owner: noise is for "
                "one table of each owner; join the files of an owner to one table first."
            )
        named = {self.dealer, *self.servers, *self.owners.values(), *self.receivers}
        if named != set(self.parties):
            strange = sorted(named ^ set(self.parties))[0]
            yield f"{strange!r} must have a role and a fingerprint, but has only one of them."
        if len(named) > _MOST_PARTIES:
            yield f"a session must have at most {_MOST_PARTIES} parties, got {len(named)}."
        for table, shape in self.program.tables().items():
            if prod(shape) > MOST_WORDS:
                yield f"table {table!r} must have at most {MOST_WORDS} entries, got {prod(shape)}."
        if self.relay is not None and not re.fullmatch(r"https://[^\s/@?#]+", self.relay):
            # Without the value, which may contain a password.
            yield "relay must be https://HOST:PORT with nothing after it."
        for name in self.servers:
            if self.relay is None and not self.parties[name].address:
                yield f"server {name!r} must have an address, or the session a relay."


def table_of(kind: type, what: str, table: object) -> dict[str, Any]:
    """Return a table of a session file; raise if a key is missing or unknown."""
    fields = declarations(kind)
    required = [one.name for one in fields if one.required]
    optional = [one.name for one in fields if not one.required]
    if not isinstance(table, Mapping) or not set(required) <= set(table) <= {*required, *optional}:
        got = sorted(map(str, table)) if isinstance(table, Mapping) else type(table).__name__
        known = {*required, *optional}
        strange = [repr(one) for one in got if one not in known] if isinstance(got, list) else []
        more = f"; {', '.join(strange)} is unknown" if strange else ""
        needs = f" with {', '.join(map(repr, required))}" * bool(required)
        may = f", may have {', '.join(map(repr, optional))} and no more" * bool(optional)
        raise PlanError(f"{what} must be a table{needs}{may}, got {got}{more}.")
    return dict(table)


def _given(value: Session | Party) -> dict[str, Any]:
    return {name: part for name, part in vars(value).items() if part is not None}


def _program(name: str, options: Any, programs: Mapping[str, type[Any]]) -> Program:
    if not isinstance(name, str) or name not in programs:
        known = ", ".join(sorted(programs)) or "none"
        raise PlanError(f"program must be one of {known}, got {name!r}.")
    try:
        json.dumps(options, allow_nan=False)  # TOML has dates, which no program takes
        program: Program = programs[name](**{k: as_tuples(value) for k, value in options.items()})
    except CloisterError:
        raise
    except (TypeError, ValueError, AttributeError, KeyError):
        if is_dataclass(programs[name]):  # names an unknown option
            table_of(programs[name], f"options of program {name!r}", options)
        raise PlanError(f"options of program {name!r} do not fit it; see its page.") from None
    return program
