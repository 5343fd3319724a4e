"""Updates of silos' own models: what is passed on, and how they are cut to the lattice."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from cloister.core.errors import PlanError
from cloister.tasks.supervised.fedavg import ClientUpdates
from cloister.tasks.supervised.local_training import NORM, clipped

THREE = SimpleNamespace(length=3)  # a task for updates of three parameters


def steps_of(records: np.ndarray) -> list[list[list[int]]]:
    steps = ClientUpdates._steps(THREE, {}, records)  # type: ignore[arg-type]  # of a test
    return [part.tolist() for part in steps]


def test_one_update_of_the_right_length_is_passed_on_as_it_is() -> None:
    assert steps_of(np.array([[1, -2, 3]], dtype=np.int32)) == [[[1, -2, 3]]]
    assert steps_of(np.empty((0, 3), dtype=np.int32)) == []


@pytest.mark.parametrize("shape", [(2, 3), (1, 2), (1, 4), (3, 1)])
def test_several_updates_or_one_of_another_length_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(PlanError, match="must be one update of 3 parameters"):
        steps_of(np.zeros(shape, dtype=np.int32))


@pytest.mark.parametrize("clip", [0.25, 1.0, 8.0])
def test_an_update_on_the_lattice_within_the_norm_stays(clip: float) -> None:
    steps = np.array([[5, -7, 0], [NORM // 2, 0, 1], [0, 0, 1 - NORM]])
    assert clipped(steps * (clip / NORM), clip).tolist() == steps.tolist()
