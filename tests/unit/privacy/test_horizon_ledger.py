"""A horizon in the ledger: one price for all periods, and one frame for each."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cloister.core.errors import BudgetExceeded, LedgerError, PlanError
from cloister.privacy.accounting import epsilon
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.privacy.events import (
    ComposedEvent,
    GaussianEvent,
    HorizonEvent,
    RepeatedEvent,
    event_from_dict,
    mechanism_counts,
)
from cloister.privacy.ledger import Ledger

CAP = Budget(1.0, 1e-6)
SIGMA = gaussian_noise_multiplier(CAP.epsilon, CAP.delta)
YEAR = HorizonEvent(SIGMA, 52, "a" * 64)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "owner.ledger"
    ledger = Ledger(path)
    ledger.open_dataset("visits", cap=CAP)
    ledger.reserve(dataset="visits", study="s", job="year", events=YEAR)
    ledger.dispose()
    return path


def draw(ledger: Ledger, period: int, event: HorizonEvent = YEAR) -> bytes:
    return ledger.commit(job="year", round=period, event=event, frame=b"%d" % period)


def test_a_horizon_has_the_price_of_one_release() -> None:
    assert mechanism_counts(YEAR) == {GaussianEvent(SIGMA): 1}
    assert epsilon(YEAR, CAP.delta) == epsilon(GaussianEvent(SIGMA), CAP.delta)
    assert epsilon(RepeatedEvent(YEAR, 2), 1e-6) == epsilon(
        RepeatedEvent(GaussianEvent(SIGMA), 2), 1e-6
    )
    assert event_from_dict(YEAR.to_dict()) == YEAR


@pytest.mark.parametrize("wrong", [{"periods": 0}, {"digest": "abc"}, {"noise_multiplier": 0.0}])
def test_a_wrong_horizon_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(PlanError):
        event_from_dict({**YEAR.to_dict(), **wrong})


def test_all_periods_are_one_charge(path: Path) -> None:
    ledger = Ledger(path)
    before = ledger.cost("visits")
    for period in range(52):
        assert draw(ledger, period) == b"%d" % period
    assert ledger.cost("visits") == before
    assert ledger.spent("visits") == pytest.approx(CAP.epsilon, rel=1e-5)
    ledger.close("year")
    assert ledger.cost("visits") == before
    (job,) = ledger.jobs("visits")
    assert dict(mechanism_counts(job.charged)) == {GaussianEvent(SIGMA): 1}
    ledger.verify()


def test_one_period_spends_the_whole(path: Path) -> None:
    ledger = Ledger(path)
    draw(ledger, 0)
    ledger.close("year")
    assert ledger.spent("visits") == pytest.approx(CAP.epsilon, rel=1e-5)
    with pytest.raises(LedgerError, match="closed"):
        draw(ledger, 1)


def test_a_horizon_without_a_release_costs_nothing(path: Path) -> None:
    ledger = Ledger(path)
    ledger.close("year")
    assert ledger.spent("visits") == 0


def test_a_period_is_drawn_once(path: Path) -> None:
    ledger = Ledger(path)
    draw(ledger, 0)
    again = ledger.commit(job="year", round=0, event=YEAR, frame=b"other noise")
    assert again == b"0"


@pytest.mark.parametrize(
    ("period", "event"),
    [
        (52, YEAR),
        (0, HorizonEvent(SIGMA, 52, "b" * 64)),
        (0, HorizonEvent(SIGMA, 53, "a" * 64)),
        (0, GaussianEvent(SIGMA)),
        (0, ComposedEvent(())),
    ],
)
def test_what_is_no_period_of_this_horizon_is_refused(
    path: Path, period: int, event: object
) -> None:
    with pytest.raises(BudgetExceeded, match="exceeds the rest of its reservation"):
        draw(Ledger(path), period, event)  # type: ignore[arg-type]


def test_a_period_of_another_job_is_charged_each_time(path: Path) -> None:
    """Only the reservation of a horizon makes its periods free."""
    ledger = Ledger(path)
    ledger.open_dataset("others", cap=CAP)
    ledger.reserve(dataset="others", study="s", job="other", events=GaussianEvent(SIGMA))
    ledger.commit(job="other", round=0, event=YEAR, frame=b"")
    with pytest.raises(BudgetExceeded):
        ledger.commit(job="other", round=1, event=YEAR, frame=b"")


def test_a_restored_copy_draws_no_period(path: Path, tmp_path: Path) -> None:
    first = Ledger(path)
    draw(first, 0)
    first.dispose()
    copy = tmp_path / "copy"
    shutil.copy(path, copy)
    ledger = Ledger(path)
    draw(ledger, 1)
    ledger.dispose()
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    shutil.copy(copy, path)
    with pytest.raises(LedgerError, match="rolled back or replaced"):
        draw(Ledger(path), 1)


def test_a_backup_ends_the_horizon(path: Path, tmp_path: Path) -> None:
    ledger = Ledger(path)
    draw(ledger, 0)
    ledger.backup(tmp_path / "backup")
    with pytest.raises(LedgerError, match="closed"):
        draw(Ledger(tmp_path / "backup"), 1)
