"""Values of the leaves of a forest where noise leaves nothing that could be true."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from cloister.tasks.supervised.forest import RandomForest, _shares


@pytest.mark.parametrize("mass", [0.0, -0.5, -100.0])
def test_a_leaf_whose_noisy_curvature_is_negative_makes_no_step(mass: float) -> None:
    task = SimpleNamespace(classes=("a", "b", "c"), rate=1.0, _reached=np.ones((2, 4)))
    leaves = np.random.default_rng(0).normal(0, 9, (2, 4, 4))
    leaves[..., -1] = mass
    steps = RandomForest._steps(task, leaves, 1.5)  # type: ignore[arg-type]  # of a test
    assert steps.shape == (2, 4, 3)
    assert not steps.any()


def test_shares_are_cut_to_a_hundredth_and_one_before_they_sum_to_one() -> None:
    found = _shares(np.array([[30.0, -10.0], [5.0, 15.0]]), 20.0)
    np.testing.assert_allclose(found, [[1 / 1.01, 0.01 / 1.01], [0.25, 0.75]])
