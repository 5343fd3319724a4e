"""The rows of the sources: everything that shows one exists, and the page is made from them."""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from cloister.cli import COMMANDS
from cloister.tasks import installed
from cloister_lab.curator import METHODS
from cloister_lab.experiments.catalogue import EXPERIMENTS
from cloister_lab.experiments.rows import VERDICTS, Evidence, Row, load_rows, page_of

ROOT = Path(__file__).parents[3]
ROWS = load_rows()


@cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def exists(evidence: Evidence) -> bool:
    """Return whether what shows a row is there."""
    kind, value = evidence.kind, evidence.value
    if kind in ("task", "method", "experiment"):
        return value in {"task": installed(), "method": METHODS, "experiment": EXPERIMENTS}[kind]
    if kind == "command":
        laboratory = {point.name for point in entry_points(group="cloister.commands")}
        program, command = value.split()
        return program == "cloister" and command in {*COMMANDS, *laboratory}
    if kind == "name":
        module, name = value.rsplit(".", 1)
        return hasattr(import_module(module), name)
    path, _, function = value.partition("::")
    return (ROOT / path).is_file() and (not function or function in functions(ROOT / path))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))
def test_everything_that_shows_a_row_exists(row: Row) -> None:
    assert row.shown_by
    assert [str(evidence) for evidence in row.shown_by if not exists(evidence)] == []


def test_what_does_not_exist_is_found() -> None:
    for text in ("task no", "name cloister.No", "command cloister no", "test no.py", "page no.md"):
        assert not exists(Evidence(*text.split(" ", 1)))
    assert not exists(Evidence("test", f"{Path(__file__).relative_to(ROOT)}::test_no"))


def test_every_row_has_a_verdict_and_a_reason_unless_it_works() -> None:
    assert [row.number for row in ROWS] == list(range(1, len(ROWS) + 1))
    assert {row.verdict for row in ROWS} <= set(VERDICTS)
    assert all(row.reason for row in ROWS if row.verdict != "works")


def test_the_page_is_made_from_the_rows() -> None:
    page = (ROOT / "docs" / "results" / "rows.md").read_text(encoding="utf-8")
    assert page == "\n".join([*page_of(ROWS), ""])
