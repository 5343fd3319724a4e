"""Every task that ships is on its page, with a proof and a test of its sensitivity that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cloister.tasks import TASKS
from cloister.tasks.options import options_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "tasks.md").read_text(encoding="utf-8")
PROVED = dict(
    re.findall(r"^\| `([\w-]+)` \| (\[.+?\]\(\.\./proofs/.+?\) \| `.+?`) \|$", PAGE, re.MULTILINE)
)


@pytest.mark.parametrize("name", list(TASKS))
def test_a_task_is_described(name: str) -> None:
    private = "yes" if TASKS[name].private else "**no**"
    assert re.search(rf"^\| `{name}` \| {re.escape(private)} \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.private])
def test_a_private_task_names_its_proof_and_its_test_of_sensitivity(name: str) -> None:
    proof, test = re.findall(r"\(\.\./(proofs/[\w-]+\.md)\)|`(tests/[\w/]+\.py)`", PROVED[name])
    assert (ROOT / "docs" / proof[0]).is_file()
    assert (ROOT / test[1]).is_file()


def test_no_proof_is_named_for_what_does_not_ship() -> None:
    assert PROVED.keys() <= TASKS.keys()


@pytest.mark.parametrize("name", list(TASKS))
def test_an_option_says_what_it_may_be_and_what_it_is_for(name: str) -> None:
    for one in options_of(TASKS[name]):
        assert one.rule
        assert one.help
