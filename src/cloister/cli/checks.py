"""What ``config check`` and ``doctor`` look at, and what can be said of it without a network."""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from cloister.cli.output import Output
from cloister.core.errors import CloisterError, PlanError
from cloister.core.hooks import MODEL_ENTRIES
from cloister.data.schema import Schema
from cloister.federation.pki import KeyFolder, Peer, client_context, revoked_serials
from cloister.federation.settings import (
    AnalystSettings,
    CoordinatorSettings,
    ScorerSettings,
    Settings,
    SiloSettings,
)

REFUSED = 3
_SECRETS = ("identity.key", "tls.key")
_PUBLIC = ("ca.pem", "tls.pem")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; its `way_out` says what to do, unless it is "ok"."""

    name: str
    state: Literal["ok", "warn", "fail"]
    found: str
    way_out: str = ""


Look = Callable[[Any], Iterable[Check]]
"""Looks at the settings of a party."""


def ok(name: str, found: str) -> Check:
    """Return a check that found nothing wrong."""
    return Check(name, "ok", found)


def warn(name: str, found: str, hint: str) -> Check:
    """Return a check that found something which may be meant."""
    return Check(name, "warn", found, hint)


def fail(name: str, found: str, hint: str) -> Check:
    """Return a check that found what stops the party."""
    return Check(name, "fail", found, hint)


def failed(checks: Iterable[Check]) -> bool:
    """Return whether any check failed."""
    return any(check.state == "fail" for check in checks)


def show(out: Output, checks: list[Check]) -> list[dict[str, Any]]:
    """Write a line for each check, and a hint below each that is not "ok"; return them as JSON."""
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        out.say(f"{check.state:<4}  {check.name:<{width}}  {check.found}")
        if check.state != "ok":
            out.say(f"{'':<{width + 6}}  -> {check.way_out}")
    bad = sum(check.state == "fail" for check in checks)
    out.say()
    out.say(f"{bad} of {len(checks)} checks failed." if bad else "Nothing failed.")
    out.code = REFUSED if bad else 0
    return [asdict(check) for check in checks]


def reason(error: Exception) -> str:
    """Say what is wrong; text of a library is left out where it may repeat a password."""
    if isinstance(error, ValueError) and not isinstance(error, CloisterError):
        return type(error).__name__
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error.strerror or type(error).__name__).lower().replace("_", " ")
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return str(error) or type(error).__name__


def secret_file(settings: Settings, key: str) -> Path | None:
    """Return the file that holds the secret `key`, if one is named."""
    section, _, name = key.rpartition(".")
    file: Path | None = getattr(getattr(settings, section) if section else settings, f"{name}_file")
    return file


def schema_of(settings: SiloSettings) -> Schema | None:
    """Return the schema of a silo; None if it cannot be read, which is a check of its own."""
    try:
        return Schema.load(settings.schema_file)
    except CloisterError:
        return None


# Files of a party ---------------------------------------------------------------------------------


def _keys(settings: Settings) -> Iterator[Check]:
    folder = KeyFolder(settings.keys)
    names = (*_SECRETS, *_PUBLIC)
    if absent := [name for name in names if not (folder.path / name).is_file()]:
        hint = "make them with 'cloister federation enroll request', and then 'install'."
        yield fail("keys", f"{folder.path} has no {', '.join(absent)}", hint)
        return
    try:
        peer, own = folder.peer(), folder.identity().fingerprint
    except (CloisterError, ValueError, OSError) as error:
        yield fail("keys", reason(error), "restore the folder, or enrol again.")
        return
    name = getattr(settings, "name", peer.name)  # a coordinator's file has none
    if (peer.role, peer.name) != (settings.role, name):
        found = (
            f"the certificate names {peer.role} {peer.name!r}, the file {settings.role} {name!r}"
        )
        yield fail("keys", found, "set name and role as they were enrolled, or enrol again.")
    elif peer.fingerprint != own:
        found = f"the certificate shows {peer.fingerprint}, identity.key is {own}"
        yield fail("keys", found, "enrol again, so that both belong together.")
    else:
        yield ok("keys", f"{peer.role} {peer.name!r}, {own}")
        yield _certificate(folder, peer)


def _certificate(keys: KeyFolder, peer: Peer) -> Check:
    try:
        client_context(keys)  # certificate and key fit
        revoked = peer.serial in revoked_serials(keys)
    except (CloisterError, OSError, ValueError) as error:
        return fail("certificate", reason(error), "mend the keys folder, or enrol again.")
    renew = "renew it with 'cloister federation enroll request' in the same folder."
    now, end = datetime.now(UTC), f"{peer.not_after:%Y-%m-%d}"
    if revoked:
        return fail("certificate", "it was revoked", "ask the operator why, and enrol again.")
    if now >= peer.not_after:
        return fail("certificate", f"it ended on {end}", renew)
    if keys.expiry_warnings(now):
        return warn("certificate", f"it ends on {end}", renew)
    return ok("certificate", f"valid until {end}")


def _modes(settings: Settings) -> Iterator[Check]:
    """Yield whether only the owner may read what must stay secret."""
    secrets = [settings.keys / name for name in _SECRETS]
    secrets += [file for key in settings.secrets if (file := secret_file(settings, key))]
    found = [file for file in secrets if file.is_file()]
    if open_to_all := [file for file in found if stat.S_IMODE(file.stat().st_mode) & 0o077]:
        names = ", ".join(map(str, open_to_all))
        hint = f"chmod 600 {names}; if others had an account here, make new keys."
        yield fail("file modes", f"others may read or write {names}", hint)
    elif found:
        yield ok("file modes", "only the owner may read secrets")


def _schema(settings: SiloSettings) -> Iterator[Check]:
    try:
        schema = Schema.load(settings.schema_file)
    except PlanError as error:
        yield fail("schema", str(error), "mend it; see cloister schema validate.")
        return
    yield ok("schema", f"{len(schema.columns)} columns, digest {schema.digest()}")
    allowed = settings.policy.columns
    if unknown := sorted(set(allowed or ()) - set(schema.names)):
        found = f"the schema has no column {unknown[0]!r}"
        yield fail(
            "policy.columns", found, "mend the name; policy.columns is a part of the columns."
        )
    owner = schema.unit if schema.unit in schema.names else None
    if allowed is not None and (not allowed or (owner and owner not in allowed)):
        found = f"{owner!r}, which every job uses, is not allowed" if allowed else "none is allowed"
        yield warn("policy.columns", found, "name it, unless every job is to be refused.")


def _policy(settings: SiloSettings) -> Iterator[Check]:
    policy = settings.policy
    hint = "set it under [policy], unless every job is to be refused."
    if not policy.tasks:
        yield warn("policy.tasks", "no task is allowed", hint)
    if policy.max_epsilon_per_job is None:
        yield warn("policy.max_epsilon_per_job", "no epsilon is allowed", hint)
    elif policy.max_epsilon_per_job > settings.cap_epsilon:
        yield warn(
            "policy.max_epsilon_per_job",
            f"{policy.max_epsilon_per_job:g} is above cap_epsilon={settings.cap_epsilon:g}",
            "the cap decides; lower one, or raise the other on purpose.",
        )
    named = policy.studies is not None or policy.studies_of is not None
    if policy.max_epsilon_per_study is not None and not named:
        yield warn(
            "policy.studies",
            "max_epsilon_per_study is given and no studies are, so only 'default' is allowed",
            "list the studies that may propose jobs, so that nobody renames one to evade its cap.",
        )
    if not set(policy.profiles) - {"local"}:
        yield warn("policy.profiles", "no profile of a federation is allowed", hint)
    others = len(set(settings.peers) - {settings.name})
    if others < policy.min_other_silos:
        found = f"{others} pinned, a sum must hold {policy.min_other_silos} others"
        hint = "compare the fingerprints of the other silos and pin them under [peers]."
        yield warn("peers", found, hint)
    else:
        yield ok("peers", f"{others} pinned")
    if not settings.analysts:
        hint = "compare an analyst's fingerprint and pin it under [analysts]."
        yield warn("analysts", "nobody may propose a job", hint)


def _own_pin(settings: SiloSettings) -> Iterator[Check]:
    """Yield where this silo's own name and fingerprint are not pinned to each other."""
    try:
        own = KeyFolder(settings.keys).identity().fingerprint
    except (CloisterError, OSError, ValueError):
        return  # a check of the keys
    for name, pin in settings.peers.items():
        if (name == settings.name) != (pin == own):
            found = f"{name!r} has {pin} under [peers]; this silo is {settings.name!r}, {own}"
            yield fail("own pin", found, "pin what the owner of that name read to you.")


def _folders(settings: CoordinatorSettings | SiloSettings | ScorerSettings) -> Iterator[Check]:
    files = [getattr(settings, key, None) for key in ("ledger", "audit_log", "queries")]
    for folder in sorted({file.parent for file in files if file is not None}):
        if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            hint = "make the folder, and give it to the account that runs this party."
            yield fail("folder", f"{folder} is not a folder that can be written to", hint)


def _scorer(settings: ScorerSettings) -> Iterator[Check]:
    try:
        entries = MODEL_ENTRIES.load()(settings.model)
    except CloisterError as error:
        yield fail(
            "model", reason(error), "write it with cloister.shares.inference; see the manual."
        )
    else:
        yield ok("model", f"{entries} entries; {entries + 1} rows or fewer reveal a linear model")
    if settings.max_rows_per_caller < settings.rows:
        found = f"a request has {settings.rows} rows, a caller {settings.max_rows_per_caller}"
        yield fail("max_rows_per_caller", found, "raise it, or lower rows.")
    if not settings.callers:
        hint = "compare a caller's fingerprint and pin it under [callers]."
        yield warn("callers", "nobody may ask", hint)


def _data_file(settings: SiloSettings) -> Iterator[Check]:
    file = settings.data.file
    if file is not None and os.access(file, os.R_OK):
        yield ok("data", str(file))
    elif file is not None:
        yield fail("data", f"{file} cannot be read", "check the path and its permissions.")


OFFLINE: Mapping[type, tuple[Look, ...]] = {
    CoordinatorSettings: (_keys, _modes, _folders),
    SiloSettings: (_keys, _modes, _schema, _policy, _own_pin, _folders, _data_file),
    AnalystSettings: (_keys, _modes),
    ScorerSettings: (_keys, _modes, _folders, _scorer),
}
"""What is looked at for each role, in the order in which to mend things."""


def examined(settings: Settings, looks: Mapping[type, tuple[Look, ...]]) -> list[Check]:
    """Return every check of a party."""
    return [check for look in looks[type(settings)] for check in look(settings)]
