"""The audit of a horizon: what ships passes, and each mutant is caught.

Sums and sensitivity are exact. The noise and the two worlds alarm by chance with probability at
most 2e-8 in each audit.
"""

from __future__ import annotations

import pytest

from cloister.audit.packages import methods
from cloister.privacy.budget import Budget
from cloister_lab.audit.horizon import Game, audit_horizon
from cloister_lab.audit.mutants import MUTANTS, Mutant

BROKEN = [mutant for mutant in MUTANTS if "horizon" in mutant.name]


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_a_horizon_withstands_its_audit(epsilon: float) -> None:
    found = audit_horizon(Budget(epsilon, 1e-6), runs=400)
    assert found.alarms == ()
    assert not found.no_power
    assert found.reach > 0.5, "the person is not one that the price pays for"


@pytest.mark.parametrize("mutant", BROKEN, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    found = mutant.caught
    assert found, mutant.defect
    assert found.alarms, found.evidence


def test_the_rules_of_the_auditor_are_those_of_the_product() -> None:
    game = Game(Budget(1.0, 1e-6))
    assert not game.horizon.encoding.is_independent
    assert (game.exact((1, 2, 4)) == game.expected((1, 2, 4))).all()
    assert (game.exact((1, 2, 4)) == game.exact((1, 2))).all()  # the third does not count
    assert "horizon" in methods()
