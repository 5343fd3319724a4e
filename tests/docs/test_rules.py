"""Every rule of the page on rules has tests, and they are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAB = ROOT / "lab" / "src"
PAGE = (ROOT / "docs" / "reference" / "rules.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
RULES = {int(number): (rule, where, tests) for number, rule, where, tests in ROW.findall(PAGE)}
TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


@cache
def names_in(path: Path) -> set[str]:
    """Return the names of a file's tests; a name alone, in a comment or text, is none."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_rules_are_numbered_without_a_gap_and_each_row_is_read() -> None:
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert sorted(RULES) == numbers


@pytest.mark.parametrize("number", RULES)
def test_a_rule_has_tests_that_exist(number: int) -> None:
    _, where, named = RULES[number]
    found = TEST.findall(named)
    assert found, f"rule {number} has no test"
    assert TEST.sub("", named).strip(" ,") == "", f"rule {number} names something that is no test"
    for file, name in found:
        path = ROOT / ("" if file.startswith("lab/") else "tests") / file
        assert path.is_file(), f"{file} is not there"
        assert name in names_in(path), f"{file} has no test {name}"
    for module in re.findall(r"`([\w/]+\.py)`", where):
        home = LAB if module.startswith("cloister_lab/") else ROOT / "src" / "cloister"
        assert (home / module).is_file(), f"{module} is not there"


def test_a_test_that_is_not_there_is_noticed(tmp_path: Path) -> None:
    other = tmp_path / "test_other.py"
    other.write_text('"""def test_one() -> None:"""\n\n\ndef test_two() -> None: ...\n')
    assert names_in(other) == {"test_two"}
