"""What users see of each task's example: a change of an answer changes a file here, on purpose.

Numbers may differ by a part in 10^9, as between processors; the words around them may not. A change
that is wanted makes the files anew, and its commit says why: ``python tests/golden/faces.py
tests/golden/files``.
"""

from __future__ import annotations

import importlib.util
import math
import re
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from cloister.app.report import plots
from cloister.tasks import TASKS

HERE = Path(__file__).parent
PLURAL = re.compile(
    r"(?<![\w.,-])(?<!\d of )[01] "
    r"(rows|columns|numbers|silos|groups|rounds|classes|entries|records|clusters)\b"
)
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")


def _load_faces() -> Any:
    """Import the script beside this file; tests are no package."""
    spec = importlib.util.spec_from_file_location("golden_faces", HERE / "faces.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


faces = _load_faces()


def differs(line: str, other: str) -> bool:
    """Return whether two lines differ in their words, or in a number by more than 1e-9."""
    if NUMBER.sub("#", line) != NUMBER.sub("#", other):
        return True
    pairs = zip(NUMBER.findall(line), NUMBER.findall(other), strict=True)
    # sums of numbers that cancel are left with the rounding of their terms
    return not all(math.isclose(float(a), float(b), rel_tol=1e-9, abs_tol=1e-9) for a, b in pairs)


def differences(text: str, other: str) -> list[str]:
    """Return the lines that differ, the first few."""
    title, found = "", []
    for line, now in zip_longest(text.splitlines(), other.splitlines(), fillvalue="(no line)"):
        title = line if line.startswith("===") else title
        if differs(line, now):
            found.append(f"{title}\n- {line}\n+ {now}")
    return found[:5]


@pytest.fixture
def pictures_become_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each figure is made, and the first at each place becomes an image, which no file shows."""
    inline, made = plots._inline, {}

    def inline_once(figure: Any, prefix: str) -> str:
        if prefix not in made:
            made[prefix] = inline(figure, prefix)
        return made[prefix]

    monkeypatch.setattr(plots, "_inline", inline_once)


def test_no_face_has_a_plural_of_one() -> None:
    said = [
        found[0]
        for path in HERE.glob("files/*.txt")
        for line in path.read_text(encoding="utf-8").splitlines()
        if " = [" not in line  # a summary of numbers
        for found in PLURAL.finditer(line)
    ]
    assert said == []


@pytest.mark.filterwarnings("ignore")  # they are printed, and compared
@pytest.mark.usefixtures("pictures_become_text_once")
@pytest.mark.parametrize("name", TASKS)
def test_every_face_of_a_task_is_as_it_was(name: str) -> None:
    stored = (HERE / "files" / f"{name}.txt").read_text(encoding="utf-8")
    found = differences(stored, faces.golden_text(name))
    assert not found, "\n".join(found)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TASKS)
def test_every_picture_of_a_face_becomes_an_image(name: str) -> None:
    assert faces.golden_text(name)


def test_a_changed_number_and_a_changed_word_are_seen() -> None:
    assert not differs("mean 1.0 [0.5, 1.5]", "mean 1.0000000001 [0.5, 1.5]")
    assert differs("mean 1.0 [0.5, 1.5]", "mean 1.00001 [0.5, 1.5]")
    assert differs("mean 1.0 [0.5, 1.5]", "mean 1.0 (0.5, 1.5)")
    assert differs("mean 1.0", "(no line)")
