"""Cox regression: what one record adds is bounded by the plan, and is the same in any company."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from cloister.privacy.budget import Budget
from cloister.protocol.task import COUNT_BITS
from cloister.tasks.survival.cox_approximate import CoxApproximate
from cloister.testing import check_task

from .cases import DESIGNS, after_exits, many_exits

CASE = DESIGNS["cox-approximate, products of four"]


@pytest.mark.parametrize(("budget", "order"), [(0.5, 2), (4.0, 4)])
def test_a_small_budget_has_products_of_two_covariates(budget: float, order: int) -> None:
    assert CASE.build(budget=Budget(budget, 1e-6)).order == order


def test_frames_are_a_function_of_the_plan() -> None:
    task = CASE.build()
    state = after_exits(task, np.zeros((task.intervals + 1, 2)))
    for at in (state, many_exits(task)):
        assert task.contribute(1, at, CASE.worst(task)).shape == (task.blocks(1)[0].size,)
    assert sum(block.weight for t in (0, 1) for block in task.blocks(t)) == 1.0


def test_a_vector_that_is_not_checked_is_noticed() -> None:
    """The mutant divides by half of the length, and leaves out the check of the norm."""

    @dataclass(frozen=True, kw_only=True)
    class Unchecked(CoxApproximate):
        def _scales(self, top: float) -> tuple[float, float]:
            length, worth = super()._scales(top)
            return length / 2, worth

        def _moments(self, known, x, residual, hazard):  # type: ignore[no-untyped-def]  # a twin
            products = self._series.products(x / self._length)
            length, worth = self._scales(float(known.hazard.max()))
            both = np.concatenate([residual * products[: 1 + len(x)], worth * hazard * products])
            return np.trunc(both * ((1 << COUNT_BITS) / length)).sum(axis=1).astype(np.int64)

    task = replace(CASE, task=Unchecked).build()
    with pytest.raises(AssertionError, match="L2 bound"):
        check_task(task, [CASE.worst(task)], states=[many_exits(task)])
