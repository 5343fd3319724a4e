"""``cloister config``: draft a party's configuration file, and check it offline."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from cloister.cli.checks import OFFLINE, examined, secret_file, show
from cloister.cli.output import Output
from cloister.cli.parsers import actions
from cloister.core.files import write_text
from cloister.data.schema import FILL_IN
from cloister.federation.settings import ROLES, Settings, load_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = actions(parser)
    check = add("check", "show all settings, and check the files that they name", _check)
    check.add_argument("file", type=Path, metavar="FILE")
    init = add("init", "write a commented template to fill in", _init)
    init.add_argument("--role", choices=sorted(ROLES), required=True)
    init.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")


def _check(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    settings = load_settings(args.file)
    rows = list(_rows(settings))
    out.pairs(*((row["setting"], f"{row['value']}  [{row['from']}]") for row in rows))
    out.say()
    checks = show(out, examined(settings, OFFLINE))
    return {"file": args.file, "role": settings.role, "settings": rows, "checks": checks}


def _init(args: argparse.Namespace, out: Output) -> dict[str, Any]:
    text = template(args.role)
    if args.out is None:
        out.raw(text)
    else:
        write_text(args.out, text, new=True)
        out.say(f"written  {args.out}")
        out.say(f"Complete the lines with {FILL_IN!r}, then: cloister config check {args.out}")
    return {"role": args.role, "file": args.out, "text": text}


def _rows(settings: Settings) -> Iterator[dict[str, str]]:
    """Yield every setting with its origin and, unless it may be secret, its value."""
    for key in type(settings).model_fields:
        value = getattr(settings, key)
        # Sections are models themselves; other values are not.
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
    elif variable and is_set and secret_file(settings, key):
        origin = f"{key}_file"
    if value is None:
        shown = "-"
    # The path of an SQLite file contains no password.
    elif key in settings.secrets and not str(value).startswith("sqlite:///"):
        shown = "(not shown)"
    # Pins are long; the first digits are enough to recognise one.
    elif isinstance(value, dict):
        shown = ", ".join(f"{name} {pin[:20]}..." for name, pin in value.items()) or "none"
    elif isinstance(value, tuple):
        shown = ", ".join(map(str, value)) or "none"
    else:
        shown = str(value)
    return {"setting": key, "value": shown, "from": origin}


def template(role: str) -> str:
    """Return the template of a party's configuration file.

    "# " begins a remark, and "#" without a blank begins a line with a default.
    """
    return (files("cloister.cli") / "templates" / f"{role}.toml").read_text(encoding="utf-8")
