"""The session that the how-to shows is one that the policy of the same page allows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from cloister.federation.settings import PolicySettings
from cloister.federation.silo.policy import Policy
from cloister.shares import linking
from cloister.shares.inference.programs import PROGRAMS
from cloister.shares.mpc.session import Session
from cloister.shares.owner import refusal

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "compute-on-shares.md"
FENCE = re.compile(r"^```toml[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_policy_of_the_page_allows_the_session_of_the_page() -> None:
    agreed, settings = map(tomllib.loads, FENCE.findall(PAGE.read_text(encoding="utf-8")))
    session = Session.from_dict(agreed, PROGRAMS)
    pins = {name: party.fingerprint for name, party in session.parties.items()}
    assert set(settings["peers"]) == set(pins)
    policy = Policy(PolicySettings(**settings["policy"]))
    for owner in session.owners.values():
        asked = {"silo": owner, "fingerprint": pins[owner], "peers": pins}
        assert refusal(session, policy, **asked) is None


def test_the_session_of_linked_tables_asks_the_question_of_the_gallery() -> None:
    session = Session.load(PAGE.parent / "linked-session.toml", PROGRAMS)
    code = (PAGE.parents[1] / "gallery" / "linked.md").read_text(encoding="utf-8")
    asked = re.search(r"^asked = .*?^\)$", code, re.MULTILINE | re.DOTALL)
    assert asked
    names: dict[str, Any] = {**vars(linking), "levels": ("plain", "silver", "gold")}
    exec(asked[0], names)
    assert repr(session.program) == repr(names["asked"].program)
