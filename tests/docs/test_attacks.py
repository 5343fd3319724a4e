"""Every test that the table of attacks names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "attacks.md"


def _tests_there_are() -> set[str]:
    return {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }


def test_every_attack_in_the_table_is_tried_by_a_test_that_exists() -> None:
    if not PAGE.is_file():
        pytest.skip("docs are not beside the tests")
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    attacks = [row for row in rows if not row.startswith(("| Attack", "| What goes wrong"))]
    assert len(attacks) > 40
    known = _tests_there_are()
    missing = {
        name
        for row in attacks
        for name in re.findall(r"`(test_\w+)`", row) or [f"none in: {row}"]
        if name not in known
    }
    assert not missing, sorted(missing)
