"""The event of a max cover: how a budget becomes picks, and how a ledger without us refuses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cloister.core.errors import PlanError
from cloister.privacy.budget import Budget
from cloister.privacy.filter import Split
from cloister.privacy.ledger import Ledger
from cloister.privacy.packages import read_event
from cloister_lab.events import CoverEvent, cover_delta, cover_pick_epsilon


def cover_is_private(pick_epsilon: float, eps: float, delta: float) -> bool:
    """Theorem 1 of docs/proofs/max_cover.md: with and without one record, and at most epsilon."""
    deltas = [cover_delta(pick_epsilon, eps, added=added) for added in (False, True)]
    return pick_epsilon <= 2 * eps and max(deltas) <= delta


@pytest.mark.parametrize("eps", [0.05, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.3, 0.9])
def test_a_max_cover_gets_the_largest_epsilon_that_is_private(eps: float, delta: float) -> None:
    found = cover_pick_epsilon(eps, delta)
    assert cover_is_private(found, eps, delta)
    assert not cover_is_private(found * (1 + 1e-9), eps, delta)
    if delta == 0.9:
        assert found == 2 * eps


def test_a_max_cover_that_just_reaches_delta_is_allowed() -> None:
    for pick_epsilon, eps in ((0.2, 1.0), (0.7, 4.0), (0.05, 0.5)):
        delta = cover_delta(pick_epsilon, eps, added=False)
        assert cover_pick_epsilon(eps, delta) >= pick_epsilon


def test_a_max_cover_cannot_be_pure() -> None:
    with pytest.raises(PlanError, match="delta must be above 0 for a max cover"):
        cover_pick_epsilon(1.0, 0.0)


def test_an_event_is_read_as_it_was_written() -> None:
    event = CoverEvent(0.1)
    assert event.to_dict() == {"event": "cover", "pick_epsilon": 0.1}
    assert read_event(event.to_dict()) == event
    assert type(read_event(event.to_dict())) is CoverEvent


def test_a_ledger_opens_with_the_laboratory_and_is_refused_in_a_sentence_without(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger(path)
    ledger.open_dataset("toy", cap=Budget(4.0, 1e-6), split=Split(1, 1))
    ledger.reserve(dataset="toy", study="default", job="j", events=CoverEvent(0.02), content=None)
    ledger.dispose()
    with_it = Ledger(path)
    assert [record.job for record in with_it.jobs()] == ["j"]
    assert with_it.spent("toy") > 0
    code = """
import importlib.metadata, sys
importlib.metadata.entry_points = lambda **_: ()
from cloister import Ledger
try:
    Ledger(sys.argv[1])
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        "LedgerError package of event 'cover' is not installed, so the cost of the event is "
        "unknown; install it, as 'pip install cloister-lab' does.\n"
    )
