"""Every task that ships is on its page, with a proof and a test of its sensitivity that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cloister.tasks import TASKS as SHIPPED
from cloister.tasks import installed
from cloister.tasks.options import options_of

TASKS = installed()  # the laboratory's, too

ROOT = Path(__file__).parents[2]
PAGES = {
    page: (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")
    for page in ("tasks", "lab")
}
PAGE = "".join(PAGES.values())
PROVED = dict(re.findall(r"^- \[`([\w-]+)`\]\(\.\./(proofs/[\w-]+\.md)\): ", PAGE, re.MULTILINE))
TESTED = {
    name: file
    for file, names in re.findall(
        r"^- `((?:lab/)?tests/[\w/]+\.py)`: (.+(?:\n  .+)*)", PAGE, re.MULTILINE
    )
    for name in re.findall(r"`([\w-]+)`", names)
}


@pytest.mark.parametrize("name", list(TASKS))
def test_a_task_is_described(name: str) -> None:
    public = f"- `{name}` (**not private**): "
    assert (public in PAGE) is not TASKS[name].private
    assert (name in PROVED) is TASKS[name].private


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.private])
def test_a_private_task_names_its_proof_and_its_test_of_sensitivity(name: str) -> None:
    assert (ROOT / "docs" / PROVED[name]).is_file()
    assert (ROOT / TESTED[name]).is_file()


def test_no_proof_is_named_for_what_does_not_ship() -> None:
    assert PROVED.keys() <= TASKS.keys()
    assert PROVED.keys() == TESTED.keys()


def test_tasks_of_the_laboratory_have_a_page_of_their_own() -> None:
    for name in TASKS:
        page = "tasks" if name in SHIPPED else "lab"
        assert re.search(rf"^- \[?`{name}`", PAGES[page], re.MULTILINE)


@pytest.mark.parametrize("name", list(TASKS))
def test_an_option_says_what_it_may_be_and_what_it_is_for(name: str) -> None:
    for one in options_of(TASKS[name]):
        assert one.rule
        assert one.help
