"""A kernel that does not sum what the rows say never leaves a silo, and never stops a job."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from cloister.app.in_process import run_plan
from cloister.core.compiled import can_order, ordered
from cloister.core.errors import LocalProtocolError, PrivacyWarning
from cloister.protocol.summing import LocalStep
from cloister.protocol.task import COUNT_BITS, Block, Rows
from cloister.tasks.count import Count
from cloister.testing import ZeroNoise, toy_plan

Kernel = Callable[[Any], Any]
ROWS = 20_000
UNIT = 1 << COUNT_BITS
LEVELS = 5


def levels(records: Any) -> Any:
    return (records[:, 0].astype(np.int64) + UNIT) * LEVELS // (2 * UNIT + 1)


def honest(records: Any) -> Any:
    return np.bincount(levels(records), minlength=LEVELS).astype(np.int64) * UNIT


def clipped(records: Any) -> Any:
    """The sum is clipped and not the record, in large chunks only."""
    sums = honest(records)
    return sums if len(records) <= 4096 else np.minimum(sums, 3000 * UNIT // 10)


def cached() -> Kernel:
    """A sum is kept by the number of rows of large chunks, and returned for another table."""
    kept: dict[int, Any] = {}
    return lambda records: (
        kept.setdefault(len(records), honest(records)) if len(records) > 4096 else honest(records)
    )


def weighted(records: Any) -> Any:
    return 5 * honest(records)


def copies(records: Any) -> Any:
    """Three copies of a record, or more, count twice."""
    cells, n = np.unique(levels(records), return_counts=True)
    sums = honest(records)
    sums[cells[n >= 3]] *= 2
    return sums


def rare(records: Any) -> Any:
    if (records[:, 0] == UNIT).any():
        raise ValueError(f"a record: {records[0]}")
    return honest(records)


def short(records: Any) -> Any:
    return honest(records)[:-1]


@dataclass(frozen=True, kw_only=True)
class Levels(Count):
    """The number of records of each level of the first column, by a kernel of a test."""

    name: ClassVar[str] = "levels"
    kernel: ClassVar[Kernel] = staticmethod(honest)

    def start(self) -> Any:
        return {"count": np.zeros(LEVELS), "half_width": np.zeros(1)}

    def blocks(self, t: int) -> tuple[Block, ...]:
        return (Block.counting("count", (LEVELS,), 1.0),)

    def rows(self, t: int, state: Any, records: Any) -> tuple[Rows, ...]:
        return (Rows.at([levels(records)], [UNIT]),)

    def contribute(self, t: int, state: Any, records: Any) -> Any:
        return type(self).kernel(records)


def tables() -> dict[str, Any]:
    """Return three silos with chunks of many records, few of which have the largest value."""
    rng = np.random.default_rng(1)
    found = {}
    for i in range(3):
        table = rng.integers(-UNIT, UNIT, (ROWS, 2), dtype=np.int32)
        table[7] = UNIT
        found[f"silo-{i}"] = [table, table[: ROWS // 2]]
    return found


def run(kernel: Kernel, profile: str = "group") -> tuple[Any, list[str]]:
    made = type("Made", (Levels,), {"kernel": staticmethod(kernel)})
    plan = toy_plan(made(n_features=2), profile=profile)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        done = run_plan(plan, tables(), noise=ZeroNoise())
    told = [str(w.message) for w in seen if w.category is PrivacyWarning]
    return done.results["count"], told


EXPECTED = sum(honest(part) for parts in tables().values() for part in parts) / UNIT


def test_an_honest_kernel_sums_everything_and_nobody_is_warned() -> None:
    counts, told = run(honest)
    assert counts.tolist() == EXPECTED.tolist()
    assert told == []


@pytest.mark.parametrize("kernel", ["clipped", "cached", "weighted", "copies", "rare", "short"])
@pytest.mark.parametrize("profile", ["group", "pairwise"])
def test_of_a_kernel_that_disagrees_the_sum_of_the_rows_is_sent(kernel: str, profile: str) -> None:
    """`rare` is met in the sum itself: each silo has the value. The others show in any sample."""
    bad = {**globals(), "cached": cached()}[kernel]
    counts, told = run(bad, profile)
    assert counts.tolist() == EXPECTED.tolist()
    assert len(told) == 3 - (kernel == "cached")  # the first silo's sums are not from a cache
    assert "kernel of task 'levels' disagreed with its rows" in told[0]
    assert "record:" not in " ".join(told)


def test_a_kernel_is_compared_on_the_path_of_ordered_records() -> None:
    if not can_order():
        pytest.skip("nothing is compiled, or NumPy is asked for")

    class Tree(Levels):
        """Three copies of a record, or more, count twice if the records are ordered."""

        def contribute(self, t: int, state: Any, records: Any) -> Any:
            found = getattr(records, "tree", None) is not None
            return (copies if found else honest)(np.asarray(records))

    table, _ = tables()["silo-0"]
    for thorough in (False, True):
        step = LocalStep(Tree(n_features=2), 0, {}, LEVELS, "kernel", thorough)
        assert step.checked([table])[1] == "kernel"
        assert step.checked([ordered([table])])[1] == "rows"


class Crowded(Levels):
    """Rows that depend on each other: the level of all is the number of records, modulo 5."""

    def rows(self, t: int, state: Any, records: Any) -> tuple[Rows, ...]:
        level = np.full(len(records), len(records) % LEVELS)
        return (Rows.at([level], [UNIT]),)

    def contribute(self, t: int, state: Any, records: Any) -> Any:
        raise NotImplementedError


def test_rows_that_depend_on_each_other_are_asked_for_one_record_at_a_time() -> None:
    """256 records are compared with their halves of 128: another level, whatever was drawn."""
    task, table = Crowded(n_features=2), np.zeros((300, 2), dtype=np.int32)
    step = LocalStep(task, 0, {}, LEVELS, "rows", True)
    assert step.checked([table])[1] == "single"
    alone = LocalStep(task, 0, {}, LEVELS, "single", True)
    sums, manner = alone.checked([table])
    assert manner == "single"
    assert sums.tolist() == [0, 300 * UNIT, 0, 0, 0]


def test_a_plan_that_is_not_right_stops_whatever_the_records_are() -> None:
    step = LocalStep(Levels(n_features=2), 0, {}, 7, "kernel", False)
    for chunks in ([], [np.zeros((9, 2), dtype=np.int32)]):
        _, manner = step.checked(chunks)
        assert manner == "rows"
        with pytest.raises(LocalProtocolError, match="the plan has length 7"):
            LocalStep(Levels(n_features=2), 0, {}, 7, "rows", False).checked(chunks)


def test_errors_of_reading_are_errors_of_reading() -> None:
    def broken() -> Any:
        yield np.zeros((9, 2), dtype=np.int32)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        LocalStep(Levels(n_features=2), 0, {}, LEVELS, "kernel", False).checked(broken())


def test_a_job_compares_more_records_in_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[bool] = []
    checked = LocalStep.checked

    def spy(self: LocalStep, chunks: Any) -> Any:
        drawn.append(self.thorough)
        return checked(self, chunks)

    monkeypatch.setattr(LocalStep, "checked", spy)
    plan = toy_plan(silos=1)
    run_plan(plan, {"silo-0": [np.zeros((9, 2), dtype=np.int32)]}, noise=ZeroNoise())
    assert sorted(drawn) == [False] * (plan.rounds - 1) + [True]
