"""Mutants are made, take effect only in a fork, and are killed by the tests that see them."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from math import inf
from pathlib import Path
from types import ModuleType

import pytest

from cloister.hazmat.ring import from_bytes

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts/mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    return module


def changed(mutants: ModuleType, text: str) -> set[str]:
    """Return every mutant of one statement, as text."""
    tree = ast.parse(f"def f():\n    {text}")
    texts = set()
    for edit in mutants.edits(tree.body[0], 1):
        old = edit.swap()
        texts.add(ast.unparse(tree).split("\n", 1)[1].strip())
        edit.undo(old)
    assert ast.unparse(tree).endswith(text)
    return texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("keep = place < most", {"keep = place <= most", "keep = place >= most"}),
        ("x += 1", {"x -= 1", "x += 2", "x += 0", "pass"}),
        ("y = ~x & (a == b)", {"y = x & (a == b)", "y = ~x | (a == b)", "y = ~x & (a != b)"}),
        ("y = np.clip(x, low, high)", {"y = np.clip(x, high, low)", "y = x"}),
        ("y = x.clip(low, high)", {"y = x.clip(high, low)", "y = x"}),
        ("y = min(a, b)", {"y = max(a, b)", "y = a", "y = b"}),
        ("y = x[i:n]", {"y = x[:n]", "y = x[i:]", "y = x[i + 1:n]", "y = x[i:n + 1]"}),
        ("return a and b", {"return a or b", "return a", "return b", "return None"}),
        ("keep[far] = False", {"keep[far] = True", "pass"}),
        ("sigma = 2.0", {"sigma = 2.1", "sigma = 1.9"}),
        ("raise ValueError('never ' + 'shown')", {"pass"}),
        ("_log.info('rows %d', 1 + 1)", set()),
    ],
)
def test_operators_change_what_a_mistake_would_change(
    mutants: ModuleType, text: str, expected: set[str]
) -> None:
    assert changed(mutants, text) == expected


def test_a_mutant_is_killed_in_a_fork_and_changes_nothing_else(
    mutants: ModuleType, tmp_path: Path
) -> None:
    tests = ["tests/unit/hazmat/test_ring.py"]
    group = mutants.Group("ring", "Ring", 1.0, tests, {"cloister.hazmat.ring": ["from_bytes"]})
    (mutant,) = [one for one in group.mutants if "==" in one.becomes]
    assert mutant.was == "if len(body) != WORD_BYTES * length:"
    mutants.run_group(group, [mutant], tmp_path / "results.jsonl", inf, "not slow")
    (record,) = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert record["outcome"] == "killed"
    assert record["by"].startswith(tests[0])
    assert from_bytes(bytes(8), 1).tolist() == [0]
    assert mutants.is_done(record, group)
    assert mutants.score(group, {mutant.key: record}, {}).rate == 1


def test_a_sample_has_a_size_for_all_groups_or_for_one(mutants: ModuleType) -> None:
    ring, other = (mutants.Group(name, "", 0.5, [], {}) for name in ("ring", "other"))
    for given, sizes in (([], [None, None]), (["7"], [7, 7]), (["7", "ring=3"], [3, 7])):
        assert [mutants.size_of(group, given) for group in (ring, other)] == sizes


def test_the_rate_of_a_sample_is_of_the_sample_alone(mutants: ModuleType) -> None:
    group = mutants.Group("ring", "Ring", 0.5, [], {"cloister.hazmat.ring": ["*"]})
    keys = mutants.sampled(group.mutants, 4, 5)
    assert keys == mutants.sampled(group.mutants, 4, 5)
    assert len(keys) == 4 < len(group.mutants)
    others = {mutant.key for mutant in group.mutants} - keys
    killed, survived = {"outcome": "killed"}, {"outcome": "survived"}
    results = dict.fromkeys(keys, killed) | {others.pop(): survived}
    found = mutants.score(group, results, {}, 4, 5)
    assert (found.rate, found.tried) == (1, 4)
    assert f"| Ring | {len(group.mutants)} | 4, seed 5 | 4 | 4 |" in mutants.page([found])
    # Once all were tried there is no need of a sample.
    everything = mutants.score(group, results | dict.fromkeys(others, survived), {}, 4, 5)
    assert everything.tried == len(group.mutants)
    assert f"| Ring | {len(group.mutants)} | all |" in mutants.page([everything])


def test_the_page_has_the_explained_survivors_of_today(mutants: ModuleType) -> None:
    """A function that gets another name gets it on the page, too."""
    page = (ROOT / "docs/results/mutants.md").read_text().split("## Ended by the time limit")[0]
    found = re.findall(r"^  (\S+)\n- (.*)\n\+ (.*)$", page, re.MULTILINE)
    reasons = mutants.read_reasons()
    assert found
    assert not [mutant for mutant in found if mutant not in reasons]
