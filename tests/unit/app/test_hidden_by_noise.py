"""A release says which of its numbers are noise, where a later step or a reader would use them."""

from __future__ import annotations

from typing import Any

import numpy as np

from cloister.app.job import make_plan
from cloister.app.present import doubts_of
from cloister.app.release import Release
from cloister.core.arrays import Floats
from cloister.data.schema import schema_of
from cloister.privacy.budget import Budget
from cloister.protocol.task import PublicColumn
from cloister.tasks import TASKS
from cloister.testing import rerun


def doubts(task: str, values: Floats, epsilon: float, **options: Any) -> str:
    """Return the warnings of a release with seeded noise of records in [0, 60]."""
    columns = [PublicColumn(name, 0.0, 60.0) for name in "ab"]
    plan = make_plan(
        TASKS[task],
        schema_of(columns),
        ["one"],
        budget=Budget(epsilon, 1e-6),
        nominal_n=len(values),
        **options,
    )
    found = rerun(plan, plan.grid.encode(values), np.random.default_rng(1))
    return " ".join(doubts_of(Release(plan, found, (), plan.events(), "simulated", ())))


def test_a_scale_that_is_noise_is_named() -> None:
    values = np.random.default_rng(0).normal([30, 30], [15, 1], (2000, 2))
    said = doubts("standardise", values, 0.2)
    assert "the noise leaves the deviations of b uncertain by a factor of two" in said
    assert "uncertain" not in doubts("standardise", values, 100.0)


def test_an_interval_of_r2_that_says_nothing_is_named() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(30, 6, 2000)
    values = np.column_stack([truth, truth + rng.normal(0, 3, 2000)])
    asked: dict[str, Any] = {"truth": "a", "prediction": "b"}
    said = doubts("regression-evaluation", values, 0.5, **asked)
    assert "the noise hides R²" in said
    assert "set bound to the largest residual that you expect, now 60" in said
    assert "hides" not in doubts("regression-evaluation", values, 100.0, **asked)
