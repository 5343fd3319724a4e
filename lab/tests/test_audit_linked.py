"""The audit of linked tables: what ships passes, and each broken twin is caught every time.

The game runs on fresh noise of the operating system and alarms by chance with probability at most
4e-8; sensitivity is exact. The twin without masks is at 19 deviations, and the bar at 8.
"""

from __future__ import annotations

import pytest

from cloister.privacy.budget import Budget
from cloister_lab.audit.linked import Game, audit_linked, masks, sensitivity
from cloister_lab.audit.mutants import MUTANTS, Mutant

LINKED = [mutant for mutant in MUTANTS if "link" in mutant.name or "join" in mutant.name]


def test_linked_tables_withstand_their_audit_at_epsilon_1() -> None:
    found = audit_linked(Budget(1.0, 1e-6), runs=200)
    assert found.alarms == ()
    assert found.reach > 0.7, "the person is not one that the session pays for"


@pytest.mark.parametrize("mutant", LINKED, ids=lambda mutant: mutant.name)
def test_a_twin_is_caught(mutant: Mutant) -> None:
    found = mutant.caught
    assert found, mutant.defect
    assert found.alarms, found.evidence


def test_a_twin_that_masks_too_little_is_caught_in_20_of_20() -> None:
    (twin,) = (mutant for mutant in LINKED if "masks" in mutant.name)
    assert sum(bool(twin.caught) for _ in range(20)) == 20


@pytest.mark.parametrize("overlap", [0.0, 0.3, 1.0])
def test_opened_values_are_even_for_any_overlap(overlap: float) -> None:
    assert not masks(overlap).alarms


def test_a_person_adds_no_more_than_its_bound_beside_any_upload() -> None:
    assert not sensitivity(Game(Budget(1.0, 1e-6)), 200).alarms
