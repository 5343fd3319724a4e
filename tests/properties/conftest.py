"""Shared by the laws of tasks: what depends on a task alone is checked once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloister import testing
from cloister.protocol.task import Task


@pytest.fixture(scope="package", autouse=True)
def answers_are_checked_once() -> Iterator[None]:
    """What a task makes of noise alone depends on no record: each task is checked once."""
    check, checked = testing._check_answers, set()

    def check_once(task: Task) -> None:
        design = (type(task), repr(task))
        if design not in checked:
            check(task)
            checked.add(design)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_check_answers", check_once)
        yield
