"""A task of five members is a whole task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cloister import Schema, run_job
from cloister.app.release import Release
from cloister.core.declared import Whole, declared
from cloister.core.errors import PlanError
from cloister.data import read_source
from cloister.protocol.plan import Plan
from cloister.protocol.task import COUNT_BITS, Block, Rows, check_task_class
from cloister.tasks.custom import REQUIRED, task
from cloister.testing import ZeroNoise, check_task, hostile_states

SCHEMA = Schema(
    dataset="ward",
    unit="row",
    columns=[{"name": name, "type": "number", "min": 0, "max": 100} for name in ("age", "weight")],
)


@task
class Histogram:
    """The noisy numbers of records in equal parts of the range of the first column."""

    name = "custom-histogram"

    @declared
    class Options:
        n_bins: Whole = 4

    n_bins: Whole

    def blocks(self, t: int) -> tuple[Block, ...]:
        return (Block.counting("counts", (self.n_bins,), weight=1.0),)

    def rows(self, t: int, state: Any, records: Any) -> tuple[Rows, ...]:
        steps = records[:, 0].astype(np.int64) + (1 << self.frac_bits)  # type: ignore[attr-defined]
        bins = np.minimum(steps * self.n_bins >> self.frac_bits + 1, self.n_bins - 1)  # type: ignore[attr-defined]
        return (Rows.at([bins], [1 << COUNT_BITS]),)

    def update(self, t: int, state: Any, released: Any) -> Any:
        counts, noise = released["counts"].in_records()
        return {"counts": counts, "half_width": np.array([1.96 * noise])}

    def results(self, state: Any, grid: Any) -> Any:
        return {"counts": state["counts"] / 2**16, "half_width": state["half_width"] / 2**16}


def records(rows: int = 400) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {name: read_source(rng.uniform(0, 100, (rows, 2)), SCHEMA) for name in ("a", "b", "c")}


def test_it_runs_and_is_read_back() -> None:
    kind: Any = Histogram
    assert check_task_class(kind, "here") is kind
    done = run_job(
        kind, SCHEMA, records(), epsilon=1.0, nominal_n=1200, noise=ZeroNoise(), n_bins=5
    )
    assert done.results["counts"].sum() == pytest.approx(1200)
    assert done.history[0] == {}
    assert done.plan.task.describe() == (
        "The sums counts (5 numbers) are released with gaussian noise."
    )
    assert Plan.from_dict(done.plan.to_dict(), {kind.name: kind}) == done.plan
    again = Release.from_dict(done.to_dict(), {kind.name: kind})
    assert (again.results["counts"] == done.results["counts"]).all()


def test_a_job_that_buys_its_count_first_has_a_state_too() -> None:
    kind: Any = Histogram
    done = run_job(kind, SCHEMA, records(), epsilon=5.0, noise=ZeroNoise())
    assert done.results["counts"].sum() == pytest.approx(1200)


def test_it_keeps_its_laws() -> None:
    made: Any = Histogram(n_features=2, n_bins=5)  # type: ignore[call-arg]
    one = 1 << made.frac_bits
    corners = np.array([[-one, -one], [one, one], [0, 0], [one - 1, 5]], dtype=np.int32)
    check_task(made, [corners], list(hostile_states(made)))


ONE = 1 << 16
CORNERS = np.array([[-ONE, -ONE], [ONE, ONE], [0, 0], [ONE - 1, 5]], dtype=np.int32)


def changed(**members: Any) -> Any:
    kept = {key: getattr(Histogram, key) for key in REQUIRED if key != "name"}
    own: Any = task(type("Own", (), {"name": "own", "n_bins": 5, **kept, **members}))
    return own(n_features=2)


def rows_of(value: int) -> Any:
    def rows(self: Any, t: int, state: Any, records: Any) -> tuple[Rows, ...]:
        return (Rows.at([np.zeros(len(records), np.int64)], [value]),)

    return rows


def test_a_check_finds_rows_that_are_left_out() -> None:
    with pytest.raises(AssertionError, match=r"row of record \[-65536, -65536\] is left out"):
        check_task(changed(rows=rows_of(2 << COUNT_BITS)), [CORNERS])


def test_a_check_warns_of_rows_far_below_the_bound() -> None:
    with pytest.warns(UserWarning, match="more than 0.00024 of the bound of block 'counts'"):
        check_task(changed(rows=rows_of(16)), [CORNERS])


def test_a_check_makes_results_and_displays_of_noise() -> None:
    def displays(self: Any, results: Any, columns: Any) -> Any:
        return results["absent"]

    with pytest.raises(AssertionError, match="noise alone, got KeyError: 'absent'"):
        check_task(changed(displays=displays), [CORNERS])


@pytest.mark.parametrize("name", REQUIRED)
def test_a_member_that_is_missing_is_named(name: str) -> None:
    members = {key: getattr(Histogram, key) for key in REQUIRED if key != name}
    with pytest.raises(PlanError, match=f"add {name}"):
        task(type("Odd", (), members))


def test_own_members_are_kept() -> None:
    members = {key: getattr(Histogram, key) for key in REQUIRED}
    own = task(
        type("Own", (), {**members, "private": False, "rounds": 3, "describe": lambda _: "x"})
    )
    made: Any = own(n_features=1)  # type: ignore[call-arg]
    assert (made.private, made.rounds, made.describe(), made.mechanism) == (
        False,
        3,
        "x",
        "gaussian",
    )
