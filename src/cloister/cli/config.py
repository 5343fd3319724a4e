"""``cloister config``: draft a party's one configuration file, and check it offline."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from cloister.cli.output import Output, add_flags
from cloister.enrolment import KeyFolder, Peer, client_context, revoked_serials
from cloister.errors import CloisterError, PlanError
from cloister.schema import FILL_IN, Schema
from cloister.settings import (
    ROLES,
    AnalystSettings,
    CoordinatorSettings,
    Settings,
    SiloSettings,
    load_settings,
)

REFUSED = 3
_SECRETS = ("identity.key", "tls.key")
_PUBLIC = ("ca.pem", "tls.pem")

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Parameters
    ----------
    name : str
    state : {"ok", "warn", "fail"}
    found : str
    way_out : str
        What to do about it, unless it is "ok".
    """

    name: str
    state: State
    found: str
    way_out: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    check = actions.add_parser("check", help="what is set, and whether the files it names will do")
    check.add_argument("file", type=Path, metavar="FILE")
    check.set_defaults(action=_check)
    init = actions.add_parser("init", help="write a commented file to fill in")
    init.add_argument("--role", choices=sorted(ROLES), required=True)
    init.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")
    init.set_defaults(action=_init)
    for action in (check, init):
        add_flags(action)


def run(args: argparse.Namespace) -> int:
    """Run the action; return the exit code."""
    code: int = args.action(args, Output.of(args))
    return code


def _check(args: argparse.Namespace, out: Output) -> int:
    settings = load_settings(args.file)
    told = list(_told(settings))
    out.pairs([(row["setting"], f"{row['value']}  [{row['from']}]") for row in told])
    out.say()
    checks = file_checks(settings)
    show(out, checks)
    out.document(
        {
            "command": "config check",
            "file": args.file,
            "role": settings.role,
            "settings": told,
            "checks": [asdict(check) for check in checks],
        }
    )
    return verdict(checks)


def _init(args: argparse.Namespace, out: Output) -> int:
    text = template(args.role)
    if args.out is None:
        if not (args.json or args.quiet):
            sys.stdout.write(text)
    else:
        _write_new(args.out, text)
        out.say(f"written  {args.out}")
        out.say(f"Complete the lines that say {FILL_IN!r}, then: cloister config check {args.out}")
    out.document({"command": "config init", "role": args.role, "file": args.out, "text": text})
    return 0


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise PlanError(f"file {str(path)!r} exists; it is never replaced.") from None
    except OSError as error:
        raise PlanError(f"file {str(path)!r} cannot be written: {error.strerror}.") from None


def show(out: Output, checks: Iterable[Check]) -> None:
    """Write a line for each check, and a way out below each that is not "ok"."""
    checks = list(checks)
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        out.say(f"{check.state:<4}  {check.name:<{width}}  {check.found}")
        if check.state != "ok":
            out.say(f"{'':<{width + 6}}  -> {check.way_out}")
    bad = [check for check in checks if check.state == "fail"]
    out.say()
    out.say(f"{len(bad)} of {len(checks)} checks failed." if bad else "Nothing failed.")


def verdict(checks: Iterable[Check]) -> int:
    """Return the exit code: 0 if nothing failed."""
    return REFUSED if any(check.state == "fail" for check in checks) else 0


# What is set --------------------------------------------------------------------------------------


def _told(settings: Settings) -> Iterator[dict[str, str]]:
    """Yield every setting with its value, unless that may be secret, and where it came from."""
    for key in type(settings).model_fields:
        value = getattr(settings, key)
        section = getattr(value, "model_fields_set", None)
        if section is None:
            yield _row(settings, key, value, key in settings.model_fields_set)
            continue
        for inner in type(value).model_fields:
            name = f"{key}.{inner}"
            yield _row(settings, name, getattr(value, inner), inner in section)


def _row(settings: Settings, key: str, value: Any, is_set: bool) -> dict[str, str]:
    variable = settings.secrets.get(key)
    origin = "file" if is_set else "default"
    if variable and variable in os.environ:
        origin = variable
    elif variable and is_set and _secret_file(settings, key):
        origin = f"{key}_file"
    if value is None:
        shown = "-"
    elif key in settings.secrets and not str(value).startswith("sqlite:///"):
        shown = "(not shown)"
    elif isinstance(value, dict):
        shown = ", ".join(f"{name} {pin[:20]}..." for name, pin in value.items()) or "none"
    elif isinstance(value, tuple):
        shown = ", ".join(map(str, value)) or "none"
    else:
        shown = str(value)
    return {"setting": key, "value": shown, "from": origin}


def _secret_file(settings: Settings, key: str) -> Path | None:
    """Return the file that holds the secret `key`, if one is named."""
    section, _, name = key.rpartition(".")
    file: Path | None = getattr(getattr(settings, section) if section else settings, f"{name}_file")
    return file


# What the settings name ---------------------------------------------------------------------------


def file_checks(settings: Settings) -> list[Check]:
    """Return what can be said of a party's files without any network."""
    checks = [*_key_checks(settings), *_mode_checks(settings)]
    match settings:
        case SiloSettings():
            checks += [*_schema_checks(settings), *_policy_checks(settings)]
            checks += _pin_checks(settings)
            checks += _folder_checks(settings.ledger.parent, settings.audit_log.parent)
            if settings.data.file is not None:
                checks.append(_there("data", settings.data.file))
        case CoordinatorSettings():
            checks += _folder_checks(settings.audit_log.parent)
    return checks


def _key_checks(settings: Settings) -> Iterator[Check]:
    folder = KeyFolder(settings.keys)
    names = (*_SECRETS, *_PUBLIC)
    if absent := [name for name in names if not (folder.path / name).is_file()]:
        yield Check(
            "keys",
            "fail",
            f"{folder.path} has no {', '.join(absent)}",
            "make them with 'cloister enroll request' and 'cloister enroll install'.",
        )
        return
    try:
        peer, own = folder.peer(), folder.identity().fingerprint
    except (CloisterError, ValueError, OSError) as error:
        found = str(error) if isinstance(error, CloisterError) else type(error).__name__
        yield Check("keys", "fail", found, "restore the folder, or enrol again.")
        return
    name = settings.name if isinstance(settings, _NAMED) else peer.name
    if (peer.role, peer.name) != (settings.role, name):
        yield Check(
            "keys",
            "fail",
            f"the certificate names {peer.role} {peer.name!r}, the file {settings.role} {name!r}",
            "set name and role as they were enrolled, or enrol again.",
        )
    elif peer.fingerprint != own:
        yield Check(
            "keys",
            "fail",
            f"the certificate shows {peer.fingerprint}, identity.key is {own}",
            "enrol again, so that both belong together.",
        )
    else:
        yield Check("keys", "ok", f"{peer.role} {peer.name!r}, {own}")
        yield _certificate(folder, peer)


_NAMED = SiloSettings | AnalystSettings


def _certificate(keys: KeyFolder, peer: Peer) -> Check:
    try:
        client_context(keys)  # certificate and key fit
        revoked = peer.serial in revoked_serials(keys)
    except (CloisterError, OSError, ValueError) as error:
        found = str(error) if isinstance(error, CloisterError) else type(error).__name__
        return Check("certificate", "fail", found, "mend the keys folder, or enrol again.")
    renew = "renew it with 'cloister enroll request' in the same folder."
    now, end = datetime.now(UTC), f"{peer.not_after:%Y-%m-%d}"
    if revoked:
        return Check("certificate", "fail", "it was revoked", "ask the operator why, enrol again.")
    if now >= peer.not_after:
        return Check("certificate", "fail", f"it ended on {end}", renew)
    if keys.expiry_warnings(now):
        return Check("certificate", "warn", f"it ends on {end}", renew)
    return Check("certificate", "ok", f"valid until {end}")


def _mode_checks(settings: Settings) -> Iterator[Check]:
    """Yield whether what must stay secret is for its owner alone."""
    secrets = [settings.keys / name for name in _SECRETS]
    secrets += [file for key in settings.secrets if (file := _secret_file(settings, key))]
    found = [file for file in secrets if file.is_file()]
    if not found:
        return
    if open_to_all := [file for file in found if stat.S_IMODE(file.stat().st_mode) & 0o077]:
        names = ", ".join(map(str, open_to_all))
        yield Check(
            "file modes",
            "fail",
            f"others may read or write {names}",
            f"chmod 600 {names}; if others had an account here, make new keys.",
        )
    else:
        yield Check("file modes", "ok", "secrets are for their owner alone")


def _schema_checks(settings: SiloSettings) -> Iterator[Check]:
    try:
        schema = Schema.load(settings.schema_file)
    except PlanError as error:
        yield Check("schema", "fail", str(error), "mend it; see cloister schema validate.")
        return
    yield Check("schema", "ok", f"{len(schema.columns)} columns, digest {schema.digest()}")
    unknown = sorted(set(settings.policy.columns or ()) - set(schema.names))
    if unknown:
        yield Check(
            "policy.columns",
            "fail",
            f"the schema has no column {unknown[0]!r}",
            "mend the name; policy.columns is a part of the schema's columns.",
        )
    allowed = settings.policy.columns
    clients = schema.unit if schema.unit in schema.names else None
    if allowed is not None and (not allowed or (clients and clients not in allowed)):
        yield Check(
            "policy.columns",
            "warn",
            f"{clients!r}, which every job uses, is not allowed" if allowed else "none is allowed",
            "name it, unless every job is to be refused.",
        )


def _policy_checks(settings: SiloSettings) -> Iterator[Check]:
    policy = settings.policy
    way_out = "set it under [policy], unless every job is to be refused."
    if not policy.tasks:
        yield Check("policy.tasks", "warn", "no task is allowed", way_out)
    if policy.max_epsilon_per_job is None:
        yield Check("policy.max_epsilon_per_job", "warn", "no epsilon is allowed", way_out)
    elif policy.max_epsilon_per_job > settings.cap_epsilon:
        yield Check(
            "policy.max_epsilon_per_job",
            "warn",
            f"{policy.max_epsilon_per_job:g} is above cap_epsilon={settings.cap_epsilon:g}",
            "the cap decides; lower one, or raise the other on purpose.",
        )
    if policy.max_epsilon_per_study is not None and policy.studies is None:
        yield Check(
            "policy.studies",
            "warn",
            "max_epsilon_per_study is given and no studies are, so only 'default' is allowed",
            "list the studies that may propose jobs, so that nobody renames one to evade its cap.",
        )
    if not set(policy.profiles) - {"local"}:
        yield Check("policy.profiles", "warn", "no profile of a federation is allowed", way_out)
    others = len(set(settings.peers) - {settings.name})
    if others < policy.min_other_silos:
        yield Check(
            "peers",
            "warn",
            f"{others} pinned, a sum must hold {policy.min_other_silos} others",
            "compare the fingerprints of the other silos and pin them under [peers].",
        )
    else:
        yield Check("peers", "ok", f"{others} pinned")
    if not settings.analysts:
        yield Check(
            "analysts",
            "warn",
            "nobody may propose a job",
            "compare an analyst's fingerprint and pin it under [analysts].",
        )


def _pin_checks(settings: SiloSettings) -> Iterator[Check]:
    """Yield where this silo's own name and fingerprint are not pinned to each other."""
    try:
        own = KeyFolder(settings.keys).identity().fingerprint
    except (CloisterError, OSError, ValueError):
        return  # told already
    for name, pin in settings.peers.items():
        if (name == settings.name) != (pin == own):
            yield Check(
                "own pin",
                "fail",
                f"{name!r} has {pin} under [peers]; this silo is {settings.name!r}, {own}",
                "pin what the owner of that name read to you.",
            )


def _folder_checks(*folders: Path) -> Iterator[Check]:
    for folder in sorted(set(folders)):
        if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            way_out = "make the folder, and give it to the account that runs this party."
            yield Check("folder", "fail", f"{folder} is no folder that can be written to", way_out)


def _there(name: str, path: Path) -> Check:
    if os.access(path, os.R_OK):
        return Check(name, "ok", str(path))
    return Check(name, "fail", f"{path} cannot be read", "check the path and its permissions.")


# Templates ----------------------------------------------------------------------------------------


def template(role: str) -> str:
    """Return the file that a party of a role begins with.

    "# " begins a remark; "#" with nothing between begins a line that states a default.
    """
    return (files("cloister.cli") / "templates" / f"{role}.toml").read_text(encoding="utf-8")
