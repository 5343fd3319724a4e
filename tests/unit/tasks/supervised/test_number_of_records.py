"""Regression releases the number of records, which it counts in its first round."""

from __future__ import annotations

import numpy as np
import pytest

from cloister.app.job import make_plan
from cloister.app.present import doubts_of
from cloister.app.release import Release
from cloister.data.schema import schema_of
from cloister.privacy.budget import Budget
from cloister.protocol.task import PublicColumn
from cloister.tasks import TASKS
from cloister.testing import rerun

N = 3000
COLUMNS = (PublicColumn("x", -1.0, 1.0), PublicColumn("y", -3.0, 3.0))
YES_NO = PublicColumn("z", 0.0, 1.0, ("0", "1"))


@pytest.mark.parametrize("task", ["linear", "logistic"])
@pytest.mark.parametrize("nominal_n", [N, 3 * N])
def test_a_wrong_nominal_n_is_seen(task: str, nominal_n: int) -> None:
    """Seeded noise: nothing fails by chance."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, N)
    y = x + rng.normal(0, 0.3, N)
    target, last = (YES_NO, y > 0) if task == "logistic" else (COLUMNS[1], y)
    plan = make_plan(
        TASKS[task],
        schema_of([COLUMNS[0], target]),
        ["a"],
        budget=Budget(1.0, 1e-6),
        nominal_n=nominal_n,
        target=target.name,
    )
    found = rerun(plan, plan.grid.encode(np.column_stack([x, last])), rng)
    assert abs(found["records"][0] - N) <= 2 * found["records_half_width"][0] < N / 2
    doubts = doubts_of(Release(plan, found, (), plan.events(), "simulated", ()))
    assert [f"nominal_n is {nominal_n:,}" in doubt for doubt in doubts] == [True] * (nominal_n > N)
    # Another fold has another count, but the same sentence, which Python then shows once.
    fold = {**found, "records": found["records"] - 50}
    assert doubts_of(Release(plan, fold, (), plan.events(), "simulated", ())) == doubts
