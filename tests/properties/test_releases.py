"""Laws of every task's release: its words lead to its model, and its privacy statement is right."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from cloister.app.in_process import run_plan
from cloister.app.job import run_job
from cloister.app.release import Release, words_file
from cloister.app.replay import contradiction, difference
from cloister.core.arrays import GridState, State
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.protocol.task import NoisyBlock
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.tasks.count import Count
from cloister.testing import toy_plan, toy_records, toy_schema, toy_task

from .cases import EXAMPLES

_SAMPLED = EXAMPLES["fedavg, the example"]


def saved(plan: Plan, folder: Path) -> tuple[Release, dict[str, Any], bytes]:
    """Run a plan, save its release, and return it with the contents of both files."""
    release = run_plan(plan, {silo: [chunk] for silo, chunk in toy_records(plan).items()})
    release.save(folder / "model.json")
    document = json.loads((folder / "model.json").read_bytes())
    return release, document, words_file(folder / "model.json").read_bytes()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_words_of_a_release_lead_to_every_number_of_its_model(
    name: str, tmp_path: Path
) -> None:
    case = EXAMPLES[name]
    release, document, words = saved(case.plan(case.build()), tmp_path)
    assert contradiction(document, words, release.plan) is None
    _check_privacy(release.plan, document["privacy"])


def _check_privacy(plan: Plan, privacy: dict[str, Any]) -> None:
    """Compute the epsilon of a privacy statement by the accountant of another package."""
    assert (privacy["unit"], privacy["max_rows"]) == (plan.unit, plan.max_rows)
    if plan.budget is None:
        assert privacy["epsilon"] is None
        assert [one["event"] for one in privacy["mechanisms"]] == ["non_private"]
        return
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert privacy["neighbours"] == "add or remove one unit"
    for one in privacy["mechanisms"]:
        accountant.compose(_event(one), one["count"])
    assert privacy["epsilon"] == pytest.approx(accountant.get_epsilon(privacy["delta"]), rel=5e-3)
    assert privacy["epsilon"] <= plan.budget.epsilon * (1 + 1e-9)
    assert privacy["delta"] == plan.budget.delta


def _event(mechanism: dict[str, Any]) -> dp_accounting.DpEvent:
    noise = mechanism["noise_multiplier"]
    match mechanism["event"]:
        case "gaussian":
            return dp_accounting.GaussianDpEvent(noise)
        case "laplace":
            return dp_accounting.LaplaceDpEvent(noise)
        case "sampled_gaussian":
            gaussian = dp_accounting.GaussianDpEvent(noise)
            return dp_accounting.PoissonSampledDpEvent(mechanism["rate"], gaussian)
    raise AssertionError(mechanism)


@pytest.mark.parametrize(
    "make",  # a function: the noise of sampled rounds takes a second to find
    [
        lambda: toy_plan(toy_task(Count, n_features=2, mechanism="laplace"), max_rows=3),
        lambda: toy_plan(toy_task(Count, n_features=2), max_rows=2, max_silos_per_person=2),
        lambda: _SAMPLED.plan(_SAMPLED.build(rate=0.25, budget=Budget(1.0, 1e-6))),
    ],
    ids=["laplace", "many rows", "sampled"],
)
def test_a_second_accountant_finds_the_epsilon_of_other_mechanisms(
    make: Callable[[], Plan], tmp_path: Path
) -> None:
    plan = make()
    _, document, words = saved(plan, tmp_path)
    assert contradiction(document, words, plan) is None
    _check_privacy(plan, document["privacy"])


class OnAnEdge(Count):
    """A count whose floats are close to the middle of two grid points, on either side."""

    side = -1e-12

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        at = {name: np.floor(value) for name, value in super().update(t, state, released).items()}
        return {name: value + (0.5 + self.side) / (1 << 16) for name, value in at.items()}


def test_a_number_on_the_edge_of_two_grid_points_may_be_rounded_to_either(tmp_path: Path) -> None:
    plan = toy_plan(OnAnEdge(n_features=2))
    release, document, words = saved(plan, tmp_path)
    assert contradiction(document, words, plan) is None
    for steps, refuted in ((1, False), (2, True), (-1, True)):
        moved = {name: value + steps / (1 << 16) for name, value in release.results.items()}
        other = replace(release, results=moved, history=(release.history[0], moved))
        claimed = json.loads(json.dumps(other.to_dict()))
        assert (contradiction(claimed, words, plan) is not None) == refuted, steps


@pytest.mark.parametrize(
    ("claimed", "expected", "place"),
    [
        (1.0, 1.0 + 5e-10, None),
        (1e6, 1e6 * (1 + 5e-10), None),
        (1.0, 1.0 + 2e-9, "x"),
        (float("nan"), float("nan"), None),
        (float("inf"), float("inf"), None),
        (1e308, float("inf"), "x"),
        (float("inf"), 1.0, "x"),
        (float("nan"), 1.0, "x"),
        (-1e308, 1e308, "x"),
        (0.0, -0.0, "x"),
        (1, 1.0, "x"),
        (True, 1, "x"),
        ([1.0], [1.0, 2.0], "x"),
        ({"a": 1}, {"a": 1, "b": 2}, "x.b"),
        ({"a": [1.0, 2.0]}, {"a": [1.0, 3.0]}, "x.a[1]"),
    ],
)
def test_numbers_differ_by_their_tolerance_and_nothing_else_differs(
    claimed: Any, expected: Any, place: str | None
) -> None:
    assert difference(claimed, expected, "x") == place


def test_a_count_that_was_bought_first_is_part_of_the_cost(tmp_path: Path) -> None:
    records = {"a": [np.zeros((300, 2), dtype=np.int32)]}
    release = run_job(FastLloyd, toy_schema(), records, epsilon=1.0, n_clusters=2)
    release.save(tmp_path / "model.json")
    document = json.loads((tmp_path / "model.json").read_bytes())
    words = words_file(tmp_path / "model.json").read_bytes()
    assert contradiction(document, words, release.plan) is None
    spent = document["spent"]["events"]
    for events in (spent[1:], spent[::-1], [*spent, spent[0]], [spent[1], spent[1]]):
        changed = {**document, "spent": {"event": "composed", "events": events}}
        assert contradiction(changed, words, release.plan)
