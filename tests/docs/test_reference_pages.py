"""Every public name and every task that ships is on a page of the reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest

import cloister
from cloister.core.errors import choosing
from cloister.protocol.task import Task
from cloister.tasks import installed

TASKS = installed()  # the laboratory's, too

PAGE = "docs/results/choosing.md"
REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
DIRECTIVE = re.compile(r"^::: ([\w.]+)\n((?:    .*\n)*)", re.MULTILINE)
MEMBERS = re.compile(r"^ +members: \[(.+)\]$", re.MULTILINE)


def shown(text: str) -> Iterator[object]:
    """Yield what the directives of a page show: an object, or names of a module."""
    for path, options in DIRECTIVE.findall(text):
        found = resolve_name(path)
        yield found
        if isinstance(found, ModuleType):
            listed = MEMBERS.search(options)
            names = listed.group(1).split(", ") if listed else vars(found)
            yield from (getattr(found, name) for name in names if not name.startswith("_"))


DOCUMENTED = {
    id(value)
    for page in REFERENCE.glob("*.md")
    for value in shown(page.read_text(encoding="utf-8"))
}


def test_the_names_of_the_package_are_those_that_the_page_lists() -> None:
    text = (REFERENCE / "api.md").read_text(encoding="utf-8")
    listed = text.partition("The names of the package itself:")[2].partition("\n\nOther modules")[0]
    assert sorted(re.findall(r"`(\w+)`", listed)) == sorted(cloister.__all__)


@pytest.mark.parametrize("name", [name for name in cloister.__all__ if name != "TASKS"])
def test_a_public_name_is_on_a_page_of_the_reference(name: str) -> None:
    assert id(getattr(cloister, name)) in DOCUMENTED


@pytest.mark.parametrize("name", list(TASKS))
def test_a_task_that_ships_is_on_a_page_of_the_reference(name: str) -> None:
    assert id(TASKS[name]) in DOCUMENTED


def hooks_of_the_manual() -> ModuleType:
    found = spec_from_file_location("hooks_of_the_manual", REFERENCE.parent / "_hooks.py")
    assert found
    assert found.loader
    hooks = module_from_spec(found)
    found.loader.exec_module(hooks)
    return hooks


def test_usage_options_and_settings_of_pages_come_from_the_code() -> None:
    hooks = hooks_of_the_manual()
    page = hooks.on_page_markdown((REFERENCE / "cli.md").read_text(encoding="utf-8"))
    assert "{{" not in page
    assert "\ncloister budget advise --epsilon E [--delta D] [--jobs N]" in page
    assert "| `--min-support X` |" in page
    page = hooks.on_page_markdown((REFERENCE / "operations.md").read_text(encoding="utf-8"))
    assert "\n#min_other_silos = 2\n" in page
    assert "\n#open_jobs = 100\n" in page


def test_what_no_directive_shows_is_noticed() -> None:
    module = "::: cloister.protocol.task\n    options:\n      members: [Task]\n"
    found = list(shown(f"::: cloister.data.schema.Schema\n\n{module}"))
    assert cloister.Schema in found
    assert Task in found
    assert cloister.Baskets not in found


def test_errors_name_sections_of_the_page_of_tables() -> None:
    root = REFERENCE.parents[1]
    sources = "".join(path.read_text(encoding="utf-8") for path in root.glob("src/**/*.py"))
    asked = set(re.findall(r"\bchoosing\([\"'](\w+)[\"']\)", sources))
    headings = re.findall(r"^## (\w+)$", (root / PAGE).read_text(encoding="utf-8"), re.MULTILINE)
    assert asked == {heading.lower() for heading in headings}
    assert choosing("edges") == f" (tables: {PAGE}#edges)"


def test_the_first_use_of_a_term_leads_to_the_glossary() -> None:
    hooks = hooks_of_the_manual()
    page = "<h1>Silos</h1><p>A <code>silo</code> of <a>silos</a>: two Silos, one silo, delta.</p>"
    found = hooks.explained(page, "../words/")
    assert found.count("<a href=") == 2
    assert 'two <a href="../words/#silo" title="a party that holds records">Silos</a>, one' in found
    assert '<a href="../words/#epsilon" title="the privacy budget;' in found
    assert re.sub("<a href[^>]*>|(?<=Silos)</a>|(?<=delta)</a>", "", found) == page
