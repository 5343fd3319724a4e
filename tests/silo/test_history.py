"""The history of a silo: what each job left of the budget, as a picture and as numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cloister import Budget, Ledger
from cloister.console.history import HEIGHT, WIDTH, history_of
from cloister.privacy.filter import total
from cloister.testing import toy_plan

NOW = datetime.now(UTC) + timedelta(days=1)


def ledger_with(jobs: int, *, cap: float = 4.0) -> Ledger:
    ledger = Ledger(None)
    ledger.open_dataset("toy", cap=Budget(cap, 1e-6))
    for _ in range(jobs):
        plan = toy_plan(budget=Budget(0.2, 1e-6))
        ledger.reserve(dataset="toy", study="s", job=plan.run_id, events=plan.events())
    return ledger


def test_without_a_job_there_is_no_picture() -> None:
    ledger = ledger_with(0)
    assert history_of(ledger.jobs("toy"), ledger.limits("toy"), NOW) is None


def test_each_step_is_the_total_cost_with_its_job() -> None:
    ledger = ledger_with(3)
    ledger.close(ledger.jobs("toy")[0].job, whole=True)
    jobs, limits = ledger.jobs("toy"), ledger.limits("toy")
    history = history_of(jobs, limits, NOW)
    assert history is not None
    assert [step.job for step in history.steps] == [job.job for job in jobs]
    assert [step.state for step in history.steps] == ["charged", *["reserved, no rounds sent"] * 2]
    for i, step in enumerate(history.steps):
        expected = limits.epsilon(total(job.cost for job in jobs[: i + 1]))
        assert step.spent == f"{expected:.4g}"
    heights = [step.place[1] for step in history.steps]
    assert heights == sorted(heights, reverse=True)
    assert history.ceiling < heights[-1]
    points = [tuple(map(float, point.split(","))) for point in history.area.split()]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    assert history.line in history.area


def test_a_job_that_ended_before_its_first_round_is_not_shown_as_charged() -> None:
    ledger = ledger_with(2)
    declined, kept = (job.job for job in ledger.jobs("toy"))
    ledger.close(declined)
    history = history_of(ledger.jobs("toy"), ledger.limits("toy"), NOW)
    assert history is not None
    assert [step.job for step in history.steps] == [kept]
    ledger.close(kept)
    assert history_of(ledger.jobs("toy"), ledger.limits("toy"), NOW) is None


def test_old_jobs_are_in_the_level_of_the_first_step_and_a_wrong_clock_draws() -> None:
    ledger = ledger_with(43)
    jobs = ledger.jobs("toy")
    history = history_of(jobs, ledger.limits("toy"), NOW - timedelta(days=400))
    assert history is not None
    assert [step.job for step in history.steps] == [job.job for job in jobs[3:]]
    assert history.steps[-1].spent == f"{ledger.spent('toy'):.4g}"


def test_a_lowered_cap_stays_in_the_picture() -> None:
    ledger = ledger_with(3)
    ledger.change_cap("toy", Budget(0.1, 1e-6))
    history = history_of(ledger.jobs("toy"), ledger.limits("toy"), NOW)
    assert history is not None
    assert history.ceiling > history.steps[-1].place[1] >= 0
