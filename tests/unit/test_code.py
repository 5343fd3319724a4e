"""The digest of a task's code is of what runs, not of what stands on the disk later."""

from __future__ import annotations

from pathlib import Path

from cloister.code import _read, _sources, code_of, remember
from cloister.tasks import TASKS, Catalogue
from cloister.tasks.count import Count

TASK = """
from cloister.tasks.count import Count


class Counted(Count):
    name = "counted"
"""


def test_a_file_that_changes_after_a_process_began_is_not_its_code(tmp_path: Path) -> None:
    file = tmp_path / "counted_once.py"
    file.write_text(TASK)
    tasks = Catalogue({"counted": f"{file}:Counted"})
    remember(tasks, ["counted"])
    file.write_text(TASK.replace("counted", "recounted"))
    source = TASK.encode()
    assert tasks["counted"].name == "counted"
    assert _read(file) == (source, ("cloister.tasks.count", "cloister.tasks.count.Count"))
    assert code_of(tasks["counted"](n_features=1)) is not None  # type: ignore[call-arg]


def test_a_task_that_cannot_be_imported_stops_no_start(tmp_path: Path) -> None:
    file = tmp_path / "broken_task.py"
    file.write_text("raise OSError\n")
    remember(Catalogue({"broken": f"{file}:Broken"}), ["broken", "unknown"])


def test_a_task_of_ours_has_the_version_that_is_installed() -> None:
    code = code_of(Count(n_features=1))
    assert code is not None
    assert code.distribution == "cloister"


def test_whether_loops_are_compiled_is_no_other_code() -> None:
    """A silo with a compiler and one without sum the same, and must not refuse each other."""
    found = _sources(TASKS["fastlloyd"])
    assert "cloister.compiled" in found
    assert not [name for name in found if "_native" in name]
    # nor does a task need the package as a whole, which names every estimator
    assert "cloister" not in found
