"""The audit of a horizon: what ships passes, and each mutant is caught.

Sums and sensitivity are exact. The noise and the two worlds alarm by chance with probability at
most 2e-8 in each audit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cloister.app.arrivals import Arrivals
from cloister.audit.packages import methods
from cloister.federation.silo.periods import Periods
from cloister.hazmat.ring import Integers
from cloister.privacy.budget import Budget
from cloister.privacy.horizon import Encoding
from cloister.protocol.client import Client
from cloister.protocol.plan import Plan
from cloister.protocol.task import Block
from cloister_lab.audit.horizon import Game, audit_horizon, noise_of_periods, sensitivity, stored
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


# Over a network ----------------------------------------------------------------------------------


def over_network(**options: Any) -> Game:
    return Game(Budget(1.0, 1e-6), network=True, **options)


def test_a_horizon_over_a_network_withstands_its_audit() -> None:
    game = over_network()
    assert not sensitivity(game).alarms
    assert not stored(game).alarms
    found = noise_of_periods(game, lambda: lambda period: None)
    assert not found.alarms, found.evidence


def test_half_a_year_over_a_network_has_the_sums_of_the_files_bit_for_bit() -> None:
    for arrives in ((), (3, 17, 25)):
        made = [
            Game(Budget(1.0, 1e-6), periods=26, network=network).exact(arrives)
            for network in (False, True)
        ]
        assert made[0].shape[0] == 26
        np.testing.assert_array_equal(*made)


Payload = Callable[[Encoding, Integers], Integers]
Share = Callable[[Client, int], Integers]
Scale = Callable[[Plan, Block], int]


def doubled(self: Encoding, sums: Integers, of: Payload = Encoding.payload) -> Integers:
    return 2 * of(self, sums)


def last_again(self: Periods, t: int, *rest: Any, of: Any = Periods.frozen) -> Integers:
    sums = of(self, t, *rest)
    return np.repeat(sums[-1:], len(sums), axis=0)


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Arrivals, "admits", lambda self, unit: True),
        (Encoding, "payload", doubled),
        (Periods, "frozen", last_again),
    ],
    ids=["max_periods", "matrix", "sums"],
)
def test_a_mutant_of_the_sums_over_a_network_is_caught(
    owner: type, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    game = over_network()
    assert sensitivity(game).alarms or stored(game).alarms


def same_in_all_periods(self: Client, t: int, of: Share = Client._share_of_noise) -> Integers:
    self._nonces[0] = self._nonces.get(0, bytes(32))
    return of(self, 0)


def halved(self: Plan, block: Block, of: Scale = Plan.share_scale) -> int:
    return of(self, block) // 2


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Client, "_share_of_noise", same_in_all_periods),
        (Plan, "share_scale", halved),
    ],
    ids=["of one period", "half"],
)
def test_a_mutant_of_the_noise_over_a_network_is_caught(
    owner: type, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    found = noise_of_periods(over_network(), lambda: lambda period: None)
    assert found.alarms, found.evidence
