"""The jobs that a how-to proposes are jobs that the policy of the same page allows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from cloister.cli import _parser
from cloister.cli.proposals import proposed_plan
from cloister.federation.settings import SiloSettings, load_settings
from cloister.federation.silo.policy import Policy, Proposer
from cloister.hazmat.signing import Identity
from cloister.protocol.proposal import proposal
from cloister.tasks import TASKS
from cloister.testing import toy_schema

ROOT = Path(__file__).parents[2]
PAGES = ("deploy.md", "flare.md")
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SUBMIT = re.compile(r"^cloister ((?:jobs submit|flare job) .+)$", re.MULTILINE)
PLACEHOLDER = "ed25519:..."


class Coordinator:
    """Has seen every silo that was named."""

    def __init__(self, pins: dict[str, str]) -> None:
        self._pins = pins

    def silos(self) -> list[dict[str, str | None]]:
        pins = self._pins.items()
        return [{"name": name, "fingerprint": pin, "release": None} for name, pin in pins]


def refusal_on(page: str, folder: Path) -> str | None:
    """Return what the page's silo says of the job that the page proposes, or None."""
    text = page.replace("\\\n", " ")
    toml = next(body for kind, body in FENCE.findall(text) if kind == "toml" and "[policy]" in body)
    (command,) = SUBMIT.findall(text)
    names = {*re.findall(r'^([\w-]+) = "ed25519:\.\.\."', toml, re.MULTILINE)}
    (own,) = re.findall(r'^name = "(.+)"', toml, re.MULTILINE)
    keys = {name: Identity.new() for name in names | {own}}
    pins = {name: key.fingerprint for name, key in keys.items()}
    for name, pin in pins.items():
        toml = toml.replace(f'{name} = "{PLACEHOLDER}"', f'{name} = "{pin}"')
        command = command.replace(f"{name}={PLACEHOLDER}", f"{name}={pin}")
    (folder / "silo.toml").write_text(toml, encoding="utf-8")
    settings = load_settings(folder / "silo.toml")
    assert isinstance(settings, SiloSettings)
    schema = toy_schema(4)
    (folder / "schema.toml").write_text(schema.to_toml(), encoding="utf-8")
    words = shlex.split(command.replace("schema.toml", str(folder / "schema.toml")))
    coordinator: Any = Coordinator(pins)
    plan = proposed_plan(_parser(words).parse_args(words), coordinator.silos)
    (analyst,) = settings.analysts
    return Policy(settings.policy).refusal(
        plan,
        silo=own,
        schema=schema,
        tasks=TASKS,
        proposer=Proposer(**proposal(plan, keys[analyst], analyst)["proposer"]),
        peers=settings.peers,
        analysts=settings.analysts,
        fingerprint=pins[own],
    )


def test_every_page_with_a_policy_is_looked_at() -> None:
    found = {
        page.name
        for page in (ROOT / "docs").rglob("*.md")
        if "\n[policy]" in page.read_text(encoding="utf-8")
    } - {"compute-on-shares.md"}  # of a session, not of a job: test_how_to_compute.py
    assert found == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_the_policy_of_a_page_allows_the_job_of_the_page(name: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "how-to" / name).read_text(encoding="utf-8")
    assert refusal_on(text, tmp_path) is None


@pytest.mark.parametrize("name", PAGES)
def test_a_policy_that_names_another_task_is_noticed(name: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "how-to" / name).read_text(encoding="utf-8")
    changed = re.sub(r"^tasks = \[.*\]", 'tasks = ["count"]', text, flags=re.MULTILINE)
    assert "is not among those allowed here: 'count'" in str(refusal_on(changed, tmp_path))
