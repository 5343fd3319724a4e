"""The layout of a plan: all that an aggregator needs, and what a silo compares with its task."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import inf, nextafter
from typing import Any

import pytest

from cloister.core.errors import LocalProtocolError, PlanError
from cloister.protocol.client import Client
from cloister.protocol.plan import Plan
from cloister.secagg.masks import GroupMask
from cloister.tasks import TASKS
from cloister.testing import toy_plan


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(toy_plan().canonical_json())
    return found


def test_equal_rounds_are_written_once() -> None:
    layout = toy_plan().layout
    assert len(layout.frames) == len(set(layout.frames))
    assert [layout.blocks(t) for t in range(layout.rounds)] == [
        toy_plan().task.blocks(t) for t in range(layout.rounds)
    ]


def test_without_the_task_noise_events_and_lengths_are_the_same() -> None:
    plan, carried = toy_plan(), Plan.from_dict(document())
    plan = Plan.from_dict(carried.to_dict(), TASKS)
    assert plan.opened
    assert not carried.opened
    assert carried.digest == plan.digest
    assert carried.events() == plan.events()
    for t in range(plan.rounds):
        assert carried.length(t) == plan.length(t)
        for block in plan.blocks(t):
            assert carried.noise_scale(block) == plan.noise_scale(block)


def test_a_plan_that_is_only_carried_takes_no_record() -> None:
    carried = Plan.from_dict(document())
    with pytest.raises(LocalProtocolError, match="does not have the code"):
        Client(carried, carried.silos[0], [], GroupMask(bytes(32)))


FORGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "a smaller L2 sensitivity": lambda b: b.update(l2_squared=b["l2_squared"] // 2),
    "a smaller L1 sensitivity": lambda b: b.update(l1=b["l1"] - 1),
    "a larger weight": lambda b: b.update(weight=b["weight"] * 1.001),
    "another shape": lambda b: b.update(shape=[*b["shape"], 1]),
    "another name": lambda b: b.update(name="other"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_silo_refuses_a_layout_that_is_not_its_own_tasks(what: str) -> None:
    forged = document()
    FORGED[what](forged["layout"]["frames"][0][0])
    with pytest.raises(PlanError, match=r"layout must be that of task|weights of all blocks"):
        Plan.from_dict(forged, TASKS)


def test_shares_may_differ_in_the_last_bits_as_machines_do() -> None:
    near = document()
    block = near["layout"]["frames"][0][0]
    block["weight"] = nextafter(block["weight"], 0.0)
    assert Plan.from_dict(near, TASKS).opened


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"mechanism": "none of these"}, "mechanism must be one of"),
        ({"order": [0, 7]}, "order of a layout"),
        ({"order": [True, False]}, "order must be"),
        ({"rate": 0.0}, r"rate must be in \(0, 1\]"),
        ({"rate": 1.5}, r"rate must be in \(0, 1\]"),
        ({"noise_multiplier": inf}, "noise_multiplier must be >= 0"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be >= 0"),
        ({"colour": "red"}, "layout must have"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_without_the_task(
    change: dict[str, Any], match: str
) -> None:
    bad = document()
    bad["layout"] |= change
    with pytest.raises(PlanError, match=match):
        Plan.from_dict(bad)
