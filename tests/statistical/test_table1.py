"""Tests and intervals of Table 1 at their levels, on seeded draws and noise of every size.

With 500 runs a level of .05 is counted within ``.05 ± 4 sqrt(.05 .95 / 500)`` = .011 to .089.
Everything is seeded, so that nothing fails by chance.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from cloister.app.job import make_plan
from cloister.core.arrays import Floats
from cloister.data.schema import schema_of
from cloister.privacy.budget import Budget
from cloister.protocol.task import PublicColumn
from cloister.tasks import TASKS
from cloister.testing import rerun

pytestmark = pytest.mark.nightly

RUNS = 500
CELLS = ((2000, 1.0), (2000, 4.0), (20_000, 0.5))
COLUMNS = (
    PublicColumn("x", -5.0, 5.0),
    PublicColumn("y", 0.0, 10.0),
    PublicColumn("ill", 0.0, 1.0, ("0", "1")),
    PublicColumn("work", 0.0, 2.0, ("a", "b", "c")),
)
SHARES = {2: (0.4, 0.6), 3: (0.5, 0.3, 0.2)}


def sample(rng: np.random.Generator, n: int, arms: int, moved: float) -> Floats:
    """Return a normal and a skewed number and two columns of categories; `moved` is of group 1."""
    group = rng.choice(arms, n, p=SHARES[arms])
    second = moved * (group == 1)
    x = (rng.normal(0, 1 + 0.5 * group) + second).clip(-5, 5)
    y = rng.exponential(1.5, n).clip(0, 10)
    ill = rng.random(n) < 0.1 + 0.1 * second
    return np.column_stack([group, x, y, ill, rng.choice(3, n, p=[0.6, 0.3, 0.1])])


def exact(rows: Floats, arms: int) -> dict[str, Floats]:
    groups = [rows[rows[:, 0] == k] for k in range(arms)]
    means, variances = (np.array([f(g[:, 1:3]) for g in groups]) for f in (_mean, _variance))
    levels = [(3, 0), (3, 1), (4, 0), (4, 1), (4, 2)]
    shares = np.array([[(g[:, j] == k).mean() for j, k in levels] for g in groups])
    return {
        **_compared(means, variances, ""),
        **_compared(shares, shares * (1 - shares), "share_"),
    }


def _mean(rows: Floats) -> Floats:
    return np.asarray(rows.mean(axis=0))


def _variance(rows: Floats) -> Floats:
    return np.asarray(rows.var(axis=0, ddof=1))


def _compared(means: Floats, variances: Floats, prefix: str) -> dict[str, Floats]:
    gaps = means[1:] - means[:1]
    scaled = gaps / np.sqrt((variances[1:] + variances[:1]) / 2)
    return {f"{prefix}difference": gaps, f"{prefix}smd": scaled}


@cache
def counted(n: int, epsilon: float, arms: int, moved: float) -> tuple[Floats, dict[str, Any]]:
    """Return p-values of all runs, and for each interval whether it holds, NaN if unknown."""
    group = PublicColumn("arm", 0.0, arms - 1.0, tuple("abc"[:arms]))
    budget, schema = Budget(epsilon, 1e-6), schema_of((group, *COLUMNS))
    plan = make_plan(TASKS["table1"], schema, ["a"], budget=budget, nominal_n=n, by="arm")
    everybody = exact(sample(np.random.default_rng(1), 2_000_000, arms, moved), arms)
    p, hits = [], {f"{name}{end}": [] for name in everybody for end in ("", "_population")}
    for run in range(RUNS):
        rng = np.random.default_rng([2, run])
        rows = sample(rng, n, arms, moved)
        found = rerun(plan, plan.grid.encode(rows), rng)
        p.append(np.concatenate([found["welch_p"], found["chi2_p"]]))
        for end, truth in (("", exact(rows, arms)), ("_population", everybody)):
            for name, value in truth.items():
                low, high = found[f"{name}{end}_low"], found[f"{name}{end}_high"]
                inside = (low - 1e-4 <= value) & (value <= high + 1e-4)
                hits[f"{name}{end}"].append(np.where(np.isfinite(found[name]), inside, np.nan))
    return np.array(p), {name: np.array(of) for name, of in hits.items()}


@pytest.mark.parametrize("arms", [2, 3])
@pytest.mark.parametrize(("n", "epsilon"), CELLS)
def test_tests_keep_their_level(n: int, epsilon: float, arms: int) -> None:
    p, _ = counted(n, epsilon, arms, 0.0)
    alarms = (p < 0.05).mean(axis=0)
    assert 0.011 <= alarms.min() <= alarms.max() <= 0.089
    assert 0.03 <= alarms.mean() <= 0.065


@pytest.mark.parametrize("moved", [0.0, 1.0])
@pytest.mark.parametrize("arms", [2, 3])
@pytest.mark.parametrize(("n", "epsilon"), CELLS)
def test_intervals_hold_as_often_as_they_state(
    n: int, epsilon: float, arms: int, moved: float
) -> None:
    _, hits = counted(n, epsilon, arms, moved)
    for name, of in hits.items():
        known = np.isfinite(of).mean(axis=0) > 0.2
        rates = np.nanmean(of, axis=0)[known]
        assert rates.min() >= 0.911, name
        if "smd" not in name:  # whose intervals are careful
            assert rates.max() <= 0.989, name
