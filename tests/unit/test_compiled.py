"""Which code runs the loops over records, and what compiled ones refuse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cloister import compiled
from cloister.errors import PlanError
from cloister.tasks.clustering.lloyd_kernel import nearest_centres

ONE = 1 << 16
RECORDS = np.array([[0, 0], [3, 4]], dtype=np.int32)
CENTRES = np.array([[0, 1], [3, 3]])

needs_compiled = pytest.mark.skipif(
    compiled.instruction_sets() == [compiled.NUMPY], reason="nothing is compiled: make native"
)


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(compiled.CHOICE, raising=False)
    compiled.instruction_set.cache_clear()
    yield
    compiled.instruction_set.cache_clear()


def test_the_best_one_is_used_unless_another_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = compiled.instruction_sets()
    assert there[-1] == compiled.NUMPY
    assert compiled.instruction_set() == there[0]
    for name in there:
        monkeypatch.setenv(compiled.CHOICE, name)
        compiled.instruction_set.cache_clear()
        assert compiled.instruction_set() == name
        assert nearest_centres(RECORDS, CENTRES).tolist() == [0, 1]


def test_one_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.CHOICE, "abacus")
    with pytest.raises(PlanError, match=r"CLOISTER_KERNEL must be one of .*numpy here, got"):
        compiled.instruction_set()


@pytest.mark.parametrize(
    ("centres", "one"),
    [
        (CENTRES, 1 << 25),
        (CENTRES, 0),
        (np.array([[1 << 25, 0]]), ONE),
        (np.full((1, 2), -(1 << 62)), ONE),
        (np.zeros((2, 1 << 17), dtype=np.int64), ONE),
        (np.full((1, 40), 1 << 24), 1 << 24),
        (np.zeros((0, 2), dtype=np.int64), ONE),
    ],
)
def test_what_floats_do_not_hold_is_left_to_numpy(centres: np.ndarray, one: int) -> None:
    assert not compiled.has_distances(RECORDS, centres, one)


@needs_compiled
def test_compiled_loops_refuse_what_they_cannot_compute_exactly() -> None:
    assert compiled.has_distances(RECORDS, CENTRES, ONE)
    for records, centres, one in (
        (RECORDS, CENTRES, 0),
        (RECORDS, CENTRES, 1 << 25),
        (RECORDS, CENTRES[:, :1], ONE),
        (RECORDS, CENTRES[:0], ONE),
        (RECORDS, CENTRES << 30, ONE),
    ):
        with pytest.raises(ValueError, match=r"must|too large"):
            compiled.nearest_of(records, centres, one=one)
    with pytest.raises(ValueError, match="radius"):
        compiled.clipped_sums(RECORDS, CENTRES, np.array([0, 1]), unit=ONE, one=ONE)
    with pytest.raises(ValueError, match="radius"):
        compiled.clipped_sums(RECORDS, CENTRES, np.array([1]), unit=ONE, one=ONE)
    with pytest.raises(ValueError, match="unit"):
        compiled.clipped_sums(RECORDS, CENTRES, np.array([1, 1]), unit=0, one=ONE)


@needs_compiled
def test_an_instruction_set_that_is_not_there_never_runs() -> None:
    from cloister import _native

    with pytest.raises(ValueError, match="abacus"):
        _native.nearest(RECORDS, CENTRES, one=ONE, isa="abacus")
    with pytest.raises(TypeError):
        _native.nearest(RECORDS.astype(np.int64), CENTRES, one=ONE, isa="numpy")  # type: ignore[arg-type]  # on purpose


def test_the_lines_that_the_proof_cites_are_there() -> None:
    root = Path(__file__).parents[2]
    page = root / "docs" / "proofs" / "kernel.md"
    if not page.is_file():
        pytest.skip("docs are not beside the tests")
    cited = re.findall(r"^\| ([A-Z]) \| `(.+?)` \| `(.+)` \|$", page.read_text(), re.MULTILINE)
    assert "".join(letter for letter, _, _ in cited) == "ABCDEFGHIJKLMN"
    for _, file, line in cited:
        source, line = (root / file).read_text(), line.replace("\\|", "|")
        assert "".join(line.split()) in "".join(source.split()), f"{file} lost {line}"
