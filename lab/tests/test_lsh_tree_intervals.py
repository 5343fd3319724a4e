"""Intervals of ``lshtree``: leaves are chosen for noisy counts, so they are counted afresh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from cloister.protocol.task import GridState, NoisyBlock, State
from cloister.testing import SimulatedNoise
from cloister_lab.experiments.coverage import ALLOWED, Coverage, measure
from cloister_lab.experiments.datasets import Dataset, min_max
from cloister_lab.tasks.lsh_tree import LSHTree

RUNS = 200


@pytest.fixture(scope="module")
def crowd() -> Dataset:
    """Fifteen groups, so that nearly every leaf is about as small as a leaf may be."""
    rng = np.random.default_rng(0)
    places = rng.uniform(-1, 1, (15, 2))
    X = np.concatenate([rng.normal(place, 0.06, (300, 2)) for place in places])
    return min_max(X, "crowd", 15)


def covered(data: Dataset, task: type[LSHTree], epsilon: float) -> Coverage:
    return measure(data, task, epsilon, runs=RUNS, noise=SimulatedNoise(5))


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_groups_of_leaves_are_covered(crowd: Dataset, epsilon: float) -> None:
    # at least 3,500 coordinates and 2,000 sizes: their standard errors are 0.004 and 0.005
    cell = covered(crowd, LSHTree, epsilon)
    assert cell.centre_trials > 3500
    assert cell.size_trials > 2000
    assert ALLOWED[0] < cell.centres < ALLOWED[1]
    assert ALLOWED[0] < cell.sizes < ALLOWED[1]


@dataclass(frozen=True, kw_only=True)
class Winner(LSHTree):
    """Reports the counts that leaves were chosen for, as if they had been anyone's."""

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        new = super().update(t, state, released)
        if t == 0:
            block = released["counts"]
            counts = np.concatenate([[0.0, 0.0], block.values / 2**16])
            counts[1] = counts[2] + counts[3]
            chosen = counts[np.asarray(new["leaves"], dtype=int)]
            return {**new, "chosen": chosen, "noise": np.array([block.noise_std / 2**16])}
        _, groups = self.group(state["leaves"], released["sums"])
        leaves = np.bincount(groups, minlength=self.n_clusters + 1)[:-1]
        sizes = np.bincount(groups, state["chosen"] / 2**16, self.n_clusters + 1)[:-1]
        half_width = 1.96 * state["noise"] / 2**16 * np.sqrt(leaves)
        return {**new, "sizes": sizes, "size_half_width": half_width}


def test_counts_that_chose_their_leaves_are_not_covered(crowd: Dataset) -> None:
    cell = covered(crowd, Winner, 2.0)
    assert cell.sizes < ALLOWED[0] - 0.01
