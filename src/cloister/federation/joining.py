"""The key exchange of a new federation, verified by comparing a few words instead of keys.

The inviting party gives each party one file. Each party then publishes its public key with a
commitment to a nonce. After all have done so, each stores the keys it saw and only then opens its
nonce. The words are a hash of everything that a party stored and of all nonces. Parties that saw
different keys, or another schema, get different words, except with probability 2^-48. No amount of
computation increases that probability.

References
----------
Laur and Pasini, "SAS-Based Group Authentication and Key Agreement Protocols", PKC 2008.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from cloister.core.declared import Declaration, Range, validate
from cloister.core.errors import DataError, PlanError, RemoteProtocolError, raise_if_any
from cloister.core.randomness import new_key, new_nonce
from cloister.federation.pki import (
    Authority,
    install,
    make_request,
    request_fingerprint,
    rules_of_parties,
    write_secret,
)
from cloister.hazmat.prg import join
from cloister.hazmat.signing import fingerprint_of

WORDS = 6  # of 8 bits each
DAYS = 7  # during which an invitation admits its holder
_FORMAT = "cloister-invitation/1"
_STATE = "joining.json"  # next to the keys
# Different labels, so that a commitment is never the hash of words, and the reverse.
_COMMIT, _READ = b"cloister/1/join-commitment", b"cloister/1/join-words"
_HEX = re.compile("[0-9a-f]{64}")
AGAIN = "'cloister federation open --again' at the coordinator, 'cloister join --again' elsewhere"
_SETTINGS = {  # all that a site lets others propose; the rest is its owner's to write
    "cap_epsilon",
    "cap_delta",
    "policy.tasks",
    "policy.max_epsilon_per_job",
    "policy.min_other_silos",
    "policy.allow_publish",
}
_BROKEN = "invitation was not made by 'cloister federation invite'; request it again."


@dataclass(frozen=True)
class Federation:
    """The federation to which parties are invited; the words cover every field.

    Parameters
    ----------
    coordinator : str
        ``https://HOST:PORT``.
    ca : str
        The authority's certificate, as PEM.
    schema : str
        The data contract, as TOML.
    silos, analysts : tuple of str
        Names of all parties. No other party can join.
    settings : mapping
        Proposed settings of all silos: the cap, and parts of `policy`.
    """

    name: str
    coordinator: str
    ca: str
    schema: str
    silos: tuple[str, ...]
    analysts: tuple[str, ...]
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Read a federation from a document of :meth:`document`."""
        try:
            silos, analysts = (tuple(map(str, document[key])) for key in ("silos", "analysts"))
            name, coordinator, ca, schema = texts = [
                document[key] for key in ("name", "coordinator", "ca", "schema")
            ]
            settings = document["settings"]
            federation = cls(name, coordinator, ca, schema, silos, analysts, settings)
            whole = all(isinstance(text, str) for text in texts)
        except (KeyError, TypeError):
            raise PlanError(_BROKEN) from None
        everybody = [*federation.silos, *federation.analysts]
        raise_if_any(rules_of_parties([(role, name) for name, role in federation.roles.items()]))
        # An invitation must not change paths, keys or pins of a site.
        if unknown := _asked(document["settings"]) - _SETTINGS:
            raise PlanError(f"an invitation must not set {sorted(unknown)[0]!r}; request another.")
        if not whole or not everybody or len({*everybody}) < len(everybody):
            raise PlanError(_BROKEN)
        return federation

    def document(self) -> dict[str, Any]:
        """Return the federation as JSON-able values."""
        return asdict(self)

    @property
    def roles(self) -> dict[str, str]:
        """Role by name, in the order in which parties are hashed."""
        return dict.fromkeys(self.silos, "silo") | dict.fromkeys(self.analysts, "analyst")

    def canonical(self) -> bytes:
        """Return the canonical bytes, which the words hash."""
        return json.dumps(self.document(), sort_keys=True, allow_nan=False).encode()


@dataclass(frozen=True)
class Invitation:
    """One party's file.

    Parameters
    ----------
    token : str
        Authenticates its holder as `name` until the words are compared.
    expires : float, seconds since 1970
        When the coordinator stops accepting the token.
    """

    federation: Federation
    name: str
    token: str
    expires: float

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file."""
        document = _json_of(path)
        if document.get("format") != _FORMAT:
            raise PlanError(_BROKEN)
        federation = Federation.of(document.get("federation", {}))
        name, token = str(document.get("name")), str(document.get("token"))
        expires = document.get("expires")
        if name not in federation.roles or not isinstance(expires, float):
            raise PlanError(_BROKEN)
        return cls(federation, name, token, expires)

    def text(self) -> str:
        """Return the file's text."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1, allow_nan=False) + "\n"

    @property
    def role(self) -> str:
        """Role of the invited party."""
        return self.federation.roles[self.name]


# Parties ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Joining:
    """The stored state of a party, so that it opens a nonce for one roster only.

    Parameters
    ----------
    session : str
        The coordinator's id of this attempt; each attempt has another nonce.
    roster : mapping of name to (key, commitment), or None
        The keys and commitments that this party saw. It is stored before the nonce is sent.
    openings, grant : mapping, or None
        The nonces of all parties, and this party's certificate, once all arrived.
    """

    session: str
    nonce: str
    request: dict[str, Any]
    roster: dict[str, list[str]] | None = None
    openings: dict[str, str] | None = None
    grant: dict[str, Any] | None = None


class Party:
    """One party's side of the exchange, with its state in a file next to its keys.

    Parameters
    ----------
    keys : Path
        The party's folder of keys; missing keys are created.
    again : bool
        If True, discard an earlier attempt.
    """

    def __init__(self, invitation: Invitation, keys: Path, *, again: bool = False) -> None:
        self.invitation = invitation
        self._keys = keys
        self._file = keys / _STATE
        there = self._file.is_file() and not again
        self._state = _Joining(**_json_of(self._file)) if there else None

    @property
    def done(self) -> bool:
        """True once the nonces of all parties arrived."""
        return self._state is not None and self._state.openings is not None

    def answer(self, board: Mapping[str, Any]) -> dict[str, Any]:
        """Return the next message for a received board; the nonce only after all commitments."""
        invitation, federation = self.invitation, self.invitation.federation
        session, entries = str(board.get("session")), board.get("entries") or {}
        state = self._state
        if state is not None and state.session != session and state.roster is not None:
            # Otherwise a coordinator could repeat the exchange until words agree by chance.
            raise RemoteProtocolError(
                "coordinator began again after this party opened its nonce; ask the others for "
                f"the reason, and let all parties begin again: {AGAIN}."
            )
        # A new attempt has a new nonce, since an opened one must not serve a second roster.
        if state is None or state.session != session:
            request = make_request(self._keys, invitation.role, invitation.name)
            state = self._remember(_Joining(session, new_key().hex(), request))
        key = state.request["identity"]
        mine = commitment(federation, invitation.name, key, state.nonce)
        # Stored before the nonce is sent: from here on no other roster is accepted.
        if state.roster is None and entries.keys() >= federation.roles.keys():
            roster = _roster(federation, entries)
            if roster[invitation.name] != [key, mine]:
                raise RemoteProtocolError(
                    f"coordinator shows {invitation.name!r} with another key than this party's; "
                    f"inform the others, and let all parties begin again: {AGAIN}."
                )
            state = self._remember(replace(state, roster=roster))
        openings = board.get("openings") or {}
        if state.roster and openings.keys() >= federation.roles.keys():
            words(federation, state.roster, openings)  # each fits its commitment
            self._remember(replace(state, openings=dict(openings), grant=board.get("grant")))
        opened = {} if state.roster is None else {"opening": state.nonce}
        return {"request": state.request, "commitment": mine, **opened}

    def words(self) -> tuple[str, ...]:
        """Return the words to compare, once the exchange is complete."""
        assert self._state is not None
        assert self._state.roster is not None
        assert self._state.openings is not None
        return words(self.invitation.federation, self._state.roster, self._state.openings)

    def accept(self) -> dict[str, str]:
        """Install the certificate and return all fingerprints, after users compared the words.

        Raises
        ------
        PlanError
            If the certificate is not for this party's keys, or comes from another authority than
            that of the invitation, which the words cover.
        """
        assert self._state is not None
        assert self._state.roster is not None
        install(self._keys, {**(self._state.grant or {}), "ca": self.invitation.federation.ca})
        return _fingerprints(self._state.roster)

    def _remember(self, state: _Joining) -> _Joining:
        _write(self._file, asdict(state))
        self._state = state
        return state


def agreed(keys: Path) -> dict[str, str]:
    """Return all fingerprints that the words of a folder's party covered; empty without words."""
    try:
        state = _Joining(**_json_of(keys / _STATE))
        return _fingerprints((state.openings and state.roster) or {})
    except (DataError, TypeError, ValueError, AttributeError):  # a damaged file
        return {}


def _fingerprints(roster: Mapping[str, list[str]]) -> dict[str, str]:
    return {name: fingerprint_of(bytes.fromhex(key)) for name, (key, _) in roster.items()}


def commitment(federation: Federation, name: str, key: str, nonce: str) -> str:
    """Return the commitment to a party's nonce."""
    parts = (federation.roles[name], name, key, nonce)
    return hashlib.sha256(join((_COMMIT, *(part.encode() for part in parts)))).hexdigest()


def words(
    federation: Federation, roster: Mapping[str, list[str]], openings: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the words that users compare, computed from all keys and all nonces.

    Raises
    ------
    RemoteProtocolError
        If a nonce does not match the commitment of its party.
    """
    parts = [_READ, federation.canonical()]
    for name, role in federation.roles.items():
        key, committed = roster[name]
        nonce = str(openings[name])
        # A party that saw other nonces first could choose its own to fit; commitments prevent it.
        if not hmac.compare_digest(commitment(federation, name, key, nonce), committed):
            raise RemoteProtocolError(
                f"opening of {name!r} does not match its commitment: it was changed, or {name!r} "
                f"began again; inform the others, and let all parties begin again: {AGAIN}."
            )
        parts += (text.encode() for text in (role, name, key, committed, nonce))
    return tuple(spoken()[byte] for byte in hashlib.sha256(join(parts)).digest()[:WORDS])


@cache
def spoken() -> tuple[str, ...]:
    """Return the 256 words, one for each byte."""
    return tuple((files("cloister.federation") / "spoken.txt").read_text(encoding="ascii").split())


def _roster(federation: Federation, entries: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return key and commitment by name, from requests signed with the keys they contain."""
    roster: dict[str, list[str]] = {}
    for name, role in federation.roles.items():
        request, committed = _entry(entries[name], name, role)
        # One party under two names would count as two silos.
        if request["identity"] in (key for key, _ in roster.values()):
            raise RemoteProtocolError(f"key of {name!r} is that of another party; begin again.")
        roster[name] = [request["identity"], committed]
    return roster


def _entry(entry: Any, name: str, role: str) -> tuple[dict[str, Any], str]:
    """Return request and commitment from a party's message; raise if they name another party."""
    try:
        request, committed = entry["request"], entry["commitment"]
        request_fingerprint(request)
        own = (request["name"], request["role"]) == (name, role)
        own = own and all(map(_HEX.fullmatch, (committed, request["identity"])))
    except (KeyError, TypeError):
        own = False
    if not own:
        raise RemoteProtocolError(
            f"message for {name!r} does not come from that party; begin again."
        )
    return request, committed


# Coordinator -----------------------------------------------------------------------------------


class Board:
    """The coordinator's collection of all parties' messages, which every party sees.

    It also issues certificates. Parties trust it for nothing else: the words reveal a board that
    shows different keys to different parties.

    Parameters
    ----------
    folder : Path
        Folder of the authority, in which :meth:`found` wrote the federation.
    """

    def __init__(self, folder: Path) -> None:
        self._authority = Authority(folder)
        self._file = folder / "board.json"
        self.federation = Federation.of(_json_of(folder / "federation.json"))
        self._state = _empty() | (_json_of(self._file) if self._file.is_file() else {})
        self._lock = threading.Lock()

    @staticmethod
    def found(folder: Path, federation: Federation) -> None:
        """Write the federation to which parties are invited."""
        _write(folder / "federation.json", federation.document())

    def invite(self, name: str, *, days: int = DAYS) -> Invitation:
        """Return a party's invitation; earlier invitations for the same name become invalid."""
        if name not in self.federation.roles:
            raise PlanError(f"name must be one of {list(self.federation.roles)}, got {name!r}.")
        validate(Declaration("days", Annotated[int, Range(1, 90)], None), days)
        token, expires = new_key().hex(), time.time() + 86400.0 * days
        with self._lock:
            self._state["invited"][name] = [_hash(token), expires]
            _write(self._file, self._state)
        return Invitation(self.federation, name, token, expires)

    def begin_again(self) -> None:
        """Discard all messages and revoke the certificates issued so far; invitations stay valid.

        Otherwise a party that joined in place of another would keep a certificate of its name.
        """
        with self._lock:
            grants = self._state["grants"].values()
            self._authority.revoke_certificates(grant["certificate"] for grant in grants)
            self._state = {**_empty(), "invited": self._state["invited"]}
            _write(self._file, self._state)

    def missing(self, step: Literal["entries", "openings", "seen"]) -> list[str]:
        """Return the parties that did not send keys, open a nonce, or receive all nonces yet."""
        return [name for name in self.federation.roles if name not in self._state[step]]

    def post(self, name: str, token: str, message: Mapping[str, Any]) -> dict[str, Any]:
        """Store a party's message and return the board that it may see.

        Raises
        ------
        PlanError
            If the token does not belong to the name, or the message is invalid.
        """
        with self._lock:
            known, expires = self._state["invited"].get(name, ("", 0.0))
            # Only hashes of tokens are stored, so the board's file admits no party.
            if not hmac.compare_digest(known, _hash(token)) or time.time() > expires:
                raise PlanError(f"invitation of {name!r} is no longer valid; request a new one.")
            if "request" in message:
                self._enter(name, message)
            if "opening" in message:
                self._open(name, message["opening"])
            steps = {key: dict(self._state[key]) for key in ("entries", "openings")}
            grant = self._state["grants"].get(name)
            return {"session": self._state["session"], **steps, "grant": grant}

    def sent(self, name: str, shown: Mapping[str, Any]) -> None:
        """Record a board sent to a party; the port may close after all parties got all nonces."""
        with self._lock:
            whole = shown["openings"].keys() >= self.federation.roles.keys()
            if whole and shown["session"] == self._state["session"]:
                self._state["seen"] = sorted({*self._state["seen"], name})
                _write(self._file, self._state)

    def _enter(self, name: str, message: Mapping[str, Any]) -> None:
        entries, role = self._state["entries"], self.federation.roles[name]
        request, committed = _entry(message, name, role)
        entry = {"request": request, "commitment": committed}
        if entries.get(name) == entry:
            return
        # Parties may have stored the roster, so it must not change any more.
        if not self.missing("entries"):
            raise PlanError(
                f"all parties have sent their keys, so {name!r} cannot send other keys; let all "
                f"parties begin again: {AGAIN}."
            )
        self._state["grants"][name] = self._authority.approve(request)
        entries[name] = entry
        _write(self._file, self._state)

    def _open(self, name: str, opening: Any) -> None:
        if self.missing("entries"):
            raise PlanError(
                "a nonce must not be opened before all parties have committed; join again."
            )
        if not isinstance(opening, str) or not _HEX.fullmatch(opening):
            raise PlanError("an opening must have 64 hexadecimal digits.")
        # The first opening counts; parties check it against the commitment.
        if self._state["openings"].setdefault(name, opening) == opening:
            _write(self._file, self._state)


def _asked(settings: Any) -> set[str]:
    """Return the dotted names of settings."""
    if not isinstance(settings, dict) or not isinstance(settings.get("policy", {}), dict):
        raise PlanError(_BROKEN)
    inner = {f"policy.{key}" for key in settings.get("policy", {})}
    return (settings.keys() - {"policy"}) | inner


def _empty() -> dict[str, Any]:
    parts: dict[str, Any] = {"invited": {}, "entries": {}, "openings": {}, "grants": {}, "seen": []}
    return {"session": new_nonce(), **parts}


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _write(path: Path, document: Mapping[str, Any]) -> None:
    # Renamed when complete: a crash leaves the old state or the new one.
    fresh = path.with_name(path.name + ".part")
    write_secret(
        fresh, json.dumps(document, allow_nan=False).encode(), in_place_of_one_that_waits=True
    )
    os.replace(fresh, path)


def _json_of(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or "it is not JSON"
        raise DataError(f"file {str(path)!r} cannot be read: {why}.") from None
    if not isinstance(document, dict):
        raise DataError(f"file {str(path)!r} is not an invitation.")
    return document
