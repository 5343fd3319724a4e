"""The checks of ``config check`` and ``doctor`` that need no network."""

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
from cloister.core.errors import CloisterError
from cloister.core.hooks import MODEL_ENTRIES
from cloister.core.numerals import counted
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
    """The result of one check; `way_out` is the user's remedy, unless the state is "ok"."""

    name: str
    state: Literal["ok", "warn", "fail"]
    found: str
    way_out: str = ""


Look = Callable[[Any], Iterable[Check]]
"""A function of the settings of a party that yields checks."""


def ok(name: str, found: str) -> Check:
    """Return a check without a problem."""
    return Check(name, "ok", found)


def warn(name: str, found: str, hint: str) -> Check:
    """Return a check with a possible problem, which may be intended."""
    return Check(name, "warn", found, hint)


def fail(name: str, found: str, hint: str) -> Check:
    """Return a check with a problem that stops the party."""
    return Check(name, "fail", found, hint)


def failed(checks: Iterable[Check]) -> bool:
    """Return True if any check failed."""
    return any(check.state == "fail" for check in checks)


def show(out: Output, checks: list[Check]) -> list[dict[str, Any]]:
    """Write each check in a line, with a hint unless it is "ok"; return all as JSON values."""
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        out.say(f"{check.state:<4}  {check.name:<{width}}  {check.found}")
        if check.state != "ok":
            out.say(f"{'':<{width + 6}}  -> {check.way_out}")
    bad = sum(check.state == "fail" for check in checks)
    out.say()
    out.say(f"{bad} of {len(checks)} checks failed." if bad else "No check failed.")
    out.code = REFUSED if bad else 0
    return [asdict(check) for check in checks]


def reason(error: Exception) -> str:
    """Return the reason of an error, without a library's text that may contain a password."""
    # The text of such an error may contain a URL with its password.
    if isinstance(error, ValueError) and not isinstance(error, CloisterError):
        return type(error).__name__
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error.strerror or type(error).__name__).lower().replace("_", " ")
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return str(error) or type(error).__name__


def secret_file(settings: Settings, key: str) -> Path | None:
    """Return the file of the secret `key`, if the settings name one."""
    section, _, name = key.rpartition(".")
    file: Path | None = getattr(getattr(settings, section) if section else settings, f"{name}_file")
    return file


def schema_of(settings: SiloSettings) -> Schema | None:
    """Return the schema of a silo; None if it cannot be read, which another check reports."""
    from cloister.federation.silo.site import schema_of as read_schema

    try:
        return read_schema(settings)
    except CloisterError:
        return None


# Files of a party ---------------------------------------------------------------------------------


def _keys(settings: Settings) -> Iterator[Check]:
    folder = KeyFolder(settings.keys)
    names = (*_SECRETS, *_PUBLIC)
    absent = [name for name in names if not (folder.path / name).is_file()]
    linking = "tls.pem" in absent and "identity.key" not in absent and _only_links(settings)
    if absent and not linking:
        hint = "create them with 'cloister federation enroll request', and then 'install'."
        yield fail("keys", f"{folder.path} has no {', '.join(absent)}", hint)
        return
    try:
        fingerprint = folder.identity().fingerprint
        if linking:
            yield ok("keys", f"{fingerprint}; no certificate, which only a relay needs")
            return
        peer = folder.peer()
    except (CloisterError, ValueError, OSError) as error:
        yield fail("keys", reason(error), "restore the folder, or enrol again.")
        return
    name = getattr(settings, "name", peer.name)  # a coordinator's file names none
    if (peer.role, peer.name) != (settings.role, name):
        found = (
            f"the certificate names {peer.role} {peer.name!r}, the file {settings.role} {name!r}"
        )
        yield fail("keys", found, "set the enrolled name and role, or enrol again.")
    elif peer.fingerprint != fingerprint:
        found = f"the certificate shows {peer.fingerprint}, identity.key is {fingerprint}"
        yield fail("keys", found, "enrol again, so that both match.")
    else:
        yield ok("keys", f"{peer.role} {peer.name!r}, {fingerprint}")
        yield _certificate(folder, peer)


def _only_links(settings: Settings) -> bool:
    """Return True for an owner who takes part in sessions on shares, and in no job."""
    if not isinstance(settings, SiloSettings):
        return False
    return bool(settings.policy.secure_programs) and not settings.policy.tasks


def _certificate(keys: KeyFolder, peer: Peer) -> Check:
    try:
        client_context(keys)  # raises unless certificate and key match
        revoked = peer.serial in revoked_serials(keys)
    except (CloisterError, OSError, ValueError) as error:
        return fail("certificate", reason(error), "restore the keys folder, or enrol again.")
    renew = "renew it with 'cloister federation enroll request' in the same folder."
    # In UTC, as in the certificate.
    now, end = datetime.now(UTC), f"{peer.not_after:%Y-%m-%d}"
    if revoked:
        hint = "ask the operator for the reason, and enrol again."
        return fail("certificate", "it was revoked", hint)
    if now >= peer.not_after:
        return fail("certificate", f"it expired on {end}", renew)
    if keys.expiry_warnings(now):
        return warn("certificate", f"it expires on {end}", renew)
    return ok("certificate", f"valid until {end}")


def _modes(settings: Settings) -> Iterator[Check]:
    """Check that only the owner may read the files of secrets."""
    secrets = [settings.keys / name for name in _SECRETS]
    # Not only keys: a file with a URL may contain a password.
    secrets += [file for key in settings.secrets if (file := secret_file(settings, key))]
    existing = [file for file in secrets if file.is_file()]
    if open_to_all := [file for file in existing if stat.S_IMODE(file.stat().st_mode) & 0o077]:
        names = ", ".join(map(str, open_to_all))
        hint = f"chmod 600 {names}; if other persons have an account here, create new keys."
        yield fail("file modes", f"other accounts may read or write {names}", hint)
    elif existing:
        yield ok("file modes", "only the owner may read secrets")


def _schema(settings: SiloSettings) -> Iterator[Check]:
    from cloister.federation.silo.site import schema_of as read_schema

    try:
        schema = read_schema(settings)
    except CloisterError as error:
        yield fail("schema", str(error), "correct it; see cloister schema validate.")
        return
    yield ok("schema", f"{counted(len(schema.columns), 'column')}, digest {schema.digest()}")
    allowed = settings.policy.columns
    if unknown := sorted(set(allowed or ()) - set(schema.names)):
        found = f"the schema has no column {unknown[0]!r}"
        hint = "correct the name; policy.columns may list only columns of the schema."
        yield fail("policy.columns", found, hint)
    unit = schema.unit if schema.unit in schema.names else None
    if allowed is not None and (not allowed or (unit and unit not in allowed)):
        found = f"every job needs {unit!r}, which is not allowed" if allowed else "none is allowed"
        yield warn("policy.columns", found, "add it, unless you want to refuse every job.")


def _policy(settings: SiloSettings) -> Iterator[Check]:
    policy = settings.policy
    hint = "set it under [policy], unless you want to refuse every job."
    if not (policy.tasks or policy.secure_programs):
        yield warn("policy.tasks", "no task is allowed", hint)
    if policy.max_epsilon_per_job is None:
        yield warn("policy.max_epsilon_per_job", "no epsilon is allowed", hint)
    elif policy.max_epsilon_per_job > settings.cap_epsilon:
        yield warn(
            "policy.max_epsilon_per_job",
            f"{policy.max_epsilon_per_job:g} is above cap_epsilon={settings.cap_epsilon:g}",
            "the cap takes precedence; lower the former, or raise the latter deliberately.",
        )
    if limits := policy.standing_limits(settings.cap_epsilon):
        yield ok("policy.standing", limits)
    named = policy.studies is not None or policy.studies_of is not None
    if policy.max_epsilon_per_study is not None and not named:
        yield warn(
            "policy.studies",
            "max_epsilon_per_study is set without studies, so only 'default' is allowed",
            "list the allowed studies, so that no analyst evades a cap by a new name.",
        )
    # A local plan has one silo and never comes over a network.
    if not set(policy.profiles) - {"local"}:
        yield warn("policy.profiles", "no profile of a federation is allowed", hint)
    # All silos may share one table of pins, so the own pin does not count.
    others = len(set(settings.peers) - {settings.name})
    if others < policy.min_other_silos:
        found = f"{others} pinned, but a sum needs {policy.min_other_silos} other silos"
        hint = "compare the fingerprints of the other silos and pin them under [peers]."
        yield warn("peers", found, hint)
    else:
        yield ok("peers", f"{others} pinned")
    if not settings.analysts:
        hint = "compare an analyst's fingerprint and pin it under [analysts]."
        yield warn("analysts", "no analyst may propose a job", hint)


def _own_pin(settings: SiloSettings) -> Iterator[Check]:
    """Check that a pin of this silo under [peers] has its name and its fingerprint."""
    try:
        fingerprint = KeyFolder(settings.keys).identity().fingerprint
    except (CloisterError, OSError, ValueError):
        return  # the check of the keys reports it
    for name, pin in settings.peers.items():
        # Both directions: another silo with this key, or this name with another key.
        if (name == settings.name) != (pin == fingerprint):
            found = f"{name!r} has {pin} under [peers]; this silo is {settings.name!r}, "
            hint = "pin the fingerprint that the owner of that name read to you."
            yield fail("own pin", found + fingerprint, hint)


def _folders(settings: CoordinatorSettings | SiloSettings | ScorerSettings) -> Iterator[Check]:
    # Roles differ in their files.
    files = [getattr(settings, key, None) for key in ("ledger", "audit_log", "queries")]
    for folder in sorted({file.parent for file in files if file is not None}):
        if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            hint = "create it, and give it to the account that runs this party."
            yield fail("folder", f"{folder} is not a writable folder", hint)


def _scorer(settings: ScorerSettings) -> Iterator[Check]:
    try:
        entries = MODEL_ENTRIES.load()(settings.model)
    except CloisterError as error:
        hint = "write it with cloister.shares.inference; see the manual."
        yield fail("model", reason(error), hint)
    else:
        yield ok(
            "model",
            f"{counted(entries, 'entry')}; {entries + 1} rows or fewer reveal a linear model",
        )
    # A padded request counts all its rows, so no request would be accepted.
    if settings.max_rows_per_caller < settings.rows:
        found = (
            f"one request has {settings.rows} rows, but a caller may send "
            f"{settings.max_rows_per_caller} in all"
        )
        yield fail("max_rows_per_caller", found, "raise it, or lower rows.")
    if not settings.callers:
        hint = "compare a caller's fingerprint and pin it under [callers]."
        yield warn("callers", "no caller may send queries", hint)


def _data_file(settings: SiloSettings) -> Iterator[Check]:
    file = settings.data.file
    # Only the permission: records are read by doctor, not by an offline check.
    if file is not None and os.access(file, os.R_OK):
        yield ok("data", f"{file} exists; not read yet: run cloister check")
    elif file is not None:
        yield fail("data", f"{file} cannot be read", "check the path and its permissions.")


OFFLINE: Mapping[type, tuple[Look, ...]] = {
    CoordinatorSettings: (_keys, _modes, _folders),
    SiloSettings: (_keys, _modes, _schema, _policy, _own_pin, _folders, _data_file),
    AnalystSettings: (_keys, _modes),
    ScorerSettings: (_keys, _modes, _folders, _scorer),
}
"""The offline checks of each role, in the order in which problems should be solved."""


def examined(settings: Settings, looks: Mapping[type, tuple[Look, ...]]) -> list[Check]:
    """Return the results of all checks of a party."""
    return [check for look in looks[type(settings)] for check in look(settings)]
