"""Hardening of the kit of an NVIDIA FLARE site, and the folders of FLARE jobs.

By default FLARE's administrators run their code at every site and read files in its folder. Each
site's error log is sent to the server. A dishonest server can assign any role to a user, so a right
that must not exist is removed from *every* role.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloister.core.errors import DataError

SITE_CLASS = "cloister.federation.flare.executor.FlareSilo"
SERVER_CLASS = "cloister.federation.flare.controller.Rounds"
PROPOSAL = "proposal.json"

# FLARE's rights of users; rights that a role does not list become "none".
_RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")
_CODE = ("byoc", "shell_commands", "server-predeployed-flwr")  # for nobody, at no party
_NOT_AT_SITES = (*_CODE, "operate", "clone_job", "download_job")
_CLASSES = {"site": SITE_CLASS, "server": SERVER_CLASS}
_LOGGING = "nvflare.app_common.logging."


def secure(kit: Path, classes: Sequence[str] = ()) -> str:
    """Write ``local/authorization.json`` and ``local/resources.json`` of a site's or server's kit.

    No user may send code, read files or run commands there; jobs may name `classes` only; a site
    sends no log. FLARE's provisioned files remain next to them as ``*.default``, without effect.

    Parameters
    ----------
    kit : Path
        The party's startup kit, with its folders ``startup`` and ``local``.
    classes : sequence of str, optional
        By default the one class of cloister for that party.

    Returns
    -------
    str
        "site" or "server". No silo relies on the server's file; it prevents mistakes at an honest
        server.

    Raises
    ------
    DataError
        If the folder is no kit of a site or a server.
    """
    party = _party(kit)
    # A server must keep the rights to run jobs, so only code is excluded there.
    never = _NOT_AT_SITES if party == "site" else _CODE
    resources = _load(kit, "resources.json")
    parts = resources.get("components", ())
    # With these, FLARE refuses a job that names any other class.
    resources |= {
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": list(classes or (_CLASSES[party],)),
        "components": [p for p in parts if not str(p.get("path")).startswith(_LOGGING)],
    }
    if party == "site":
        resources["allow_log_streaming"] = False
    rules = _load(kit, "authorization.json")
    rules["permissions"] = {
        role: {right: _right(rights, right) for right in _RIGHTS} | dict.fromkeys(never, "none")
        for role, rights in rules.get("permissions", {}).items()
    }
    _save(kit, "resources.json", resources)
    _save(kit, "authorization.json", rules)
    return party


def open_doors(kit: Path) -> list[str]:
    """Return one sentence for each right in a kit that :func:`secure` would remove."""
    party = _party(kit)
    resources, rules = _load(kit, "resources.json"), _load(kit, "authorization.json")
    doors = [
        f"role {role!r} has the right {right!r}."
        for role, rights in rules.get("permissions", {}).items()
        for right in (_NOT_AT_SITES if party == "site" else _CODE)
        if _right(rights, right) not in ("none", "no")
    ]
    allowed = resources.get("class_allow_list")
    if allowed is None:
        doors.append("there is no class_allow_list, and the default of FLARE is long.")
    else:
        doors += [f"jobs may name {name!r}." for name in allowed if name != _CLASSES[party]]
    if resources.get("class_list_enforcement_mode", "enforce") != "enforce":
        doors.append("the class_allow_list is not enforced.")
    if party == "site" and resources.get("allow_log_streaming", True) is not False:
        doors.append("logs may be streamed to the server.")
    doors += [
        f"component {part['path']!r} carries logs between parties."
        for part in resources.get("components", ())
        if str(part.get("path")).startswith(_LOGGING)
    ]
    return doors


def write_job(
    proposal: Mapping[str, Any],
    folder: Path,
    *,
    site_class: str = SITE_CLASS,
    server_class: str = SERVER_CLASS,
    **options: float,
) -> None:
    """Write the folder of a FLARE job that runs a proposal: four JSON files, no code.

    Parameters
    ----------
    proposal : mapping
        The plan and its signed proposer, ``{"plan": ..., "proposer": ...}``.
    folder : Path
        Created if it does not exist.
    options
        Options of :class:`cloister.federation.flare.controller.Rounds`, such as ``round_timeout``.
    """
    plan = proposal["plan"]
    config = folder / "app" / "config"
    config.mkdir(parents=True, exist_ok=True)
    # FLARE deploys the same folder to all parties; each runs the part for its role.
    parties = ["server", *plan["silos"]]
    documents: dict[Path, Any] = {
        folder / "meta.json": {
            "name": f"cloister-{plan['run_id'][:8]}",
            "resource_spec": {},
            "min_clients": plan["min_silos"],
            "deploy_map": {"app": parties},
        },
        config / "config_fed_server.json": {
            "format_version": 2,
            "workflows": [{"id": "rounds", "path": server_class, "args": options}],
            "components": [],
        },
        config / "config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": ["none"], "executor": {"path": site_class, "args": {}}}],
            "components": [],
        },
        config / PROPOSAL: proposal,
    }
    for path, document in documents.items():
        path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")


def _party(kit: Path) -> str:
    for party, config in (("site", "fed_client.json"), ("server", "fed_server.json")):
        if (kit / "startup" / config).is_file():
            return party
    raise DataError(
        f"kit must be a FLARE folder with startup/fed_client.json or fed_server.json, got "
        f"{str(kit)!r}."
    )


def _right(rights: Any, right: str) -> Any:
    """Return the condition on which a role has a right; one word may apply to all rights."""
    return rights.get(right, "none") if isinstance(rights, Mapping) else rights


def _load(kit: Path, name: str) -> dict[str, Any]:
    """Read the file that FLARE would read: the local one, else the provisioned default."""
    path = kit / "local" / name
    if not path.is_file():
        path = path.with_name(f"{name}.default")
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}; provision the kit again.") from error
    if not isinstance(document, dict):
        raise DataError(f"{path} must be a JSON object; provision the kit again.")
    return document


def _save(kit: Path, name: str, document: Mapping[str, Any]) -> None:
    (kit / "local" / name).write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
