"""The plan: canonical text and digest, noise and decoding as functions of it, early refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from math import ceil, isqrt, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import PlanError, RemoteProtocolError
from cloister.hazmat.fixedpoint import Grid
from cloister.hazmat.signing import Identity
from cloister.privacy import accounting
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier, lattice_noise_multiplier
from cloister.privacy.events import ComposedEvent, GaussianEvent
from cloister.privacy.noise import DiscreteNoise
from cloister.protocol.plan import MAX_RECORDS, Plan, majority, task_to_json
from cloister.protocol.readers import Reader
from cloister.protocol.task import Block, Task
from cloister.tasks import TASKS
from cloister.tasks.clustering.kmeans import FastLloyd, GLloyd, Lloyd, SuLloyd
from cloister.tasks.count import Count
from cloister.testing import SimulatedNoise, toy_federation, toy_plan

VECTORS = Path(__file__).parents[2] / "vectors"
PLANS = json.loads((VECTORS / "plans.json").read_text())["plans"]
K2 = {"n_clusters": 2, "n_features": 2, "rounds": 3}
TOY_TASKS: dict[str, Task] = {
    "fastlloyd": FastLloyd(**K2, first_radius=1.4, radius=0.8),
    "fastlloyd-laplace": FastLloyd(**K2, first_radius=1.4, radius=0.8, mechanism="laplace"),
    "glloyd": GLloyd(**K2),
    "sulloyd": SuLloyd(**K2),
    "lloyd": Lloyd(**K2),
    "count": Count(n_features=2),
}


def test_a_plan_without_its_code_says_who_knows_what_it_asks() -> None:
    plan = toy_plan()
    carried = Plan.from_dict(json.loads(plan.canonical_json()), {})
    # An analyst reads this of a job that it proposed.
    assert "Only silos, analyst and readers know what they mean." in carried.task.describe()


# --- Text and digest ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", PLANS)
def test_text_and_digest_follow_the_vectors(case: dict[str, str]) -> None:
    plan = Plan.from_dict(json.loads(case["text"]), TASKS)
    assert plan.canonical_json() == case["text"]
    assert plan.digest.hex() == case["digest"]


@pytest.mark.parametrize("path", sorted(VECTORS.glob("plan_bad_*.json")), ids=lambda p: p.stem)
def test_a_bad_plan_is_refused_with_its_reason(path: Path) -> None:
    case = json.loads(path.read_text())
    with pytest.raises(PlanError, match=case["error"]):
        Plan.from_dict(json.loads(case["plan"]), TASKS)


@pytest.mark.parametrize("name", TOY_TASKS)
def test_a_plan_survives_its_text(name: str) -> None:
    plan = toy_plan(TOY_TASKS[name])
    again = Plan.from_dict(json.loads(plan.canonical_json()), TASKS)
    assert again == plan
    assert again.digest == plan.digest


CHANGES: dict[str, Any] = {
    "nominal_n": 301,
    "min_silos": 3,
    "silos": ("silo-0", "silo-2", "silo-1"),
    "columns": ("x1", "x0"),
    "budget": Budget(1.0, 1e-7),
    "grid": Grid((-1, -1), (1, 1.5)),
    "unit": "person",
    "max_rows": 2,
    "max_silos_per_person": 2,
    "schema_digest": "00",
    "study": "other",
    "run_id": "f" * 32,
    "task": replace(TOY_TASKS["fastlloyd"], radius=0.8 + 1e-15),  # type: ignore[type-var]
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_changes_changes_the_digest(name: str) -> None:
    plan = toy_plan(TOY_TASKS["fastlloyd"])
    assert replace(plan, **{name: CHANGES[name]}).digest != plan.digest


def test_nothing_else_is_in_a_plan_than_what_the_digest_covers() -> None:
    plan = toy_plan()
    document = plan.to_dict()
    # Those of plans up to protocol 2, and of plans that use it.
    old = {"publish", "horizon"}
    assert {field.name for field in fields(plan)} - old | {"ring_bits"} == set(document)
    task = {field.name for field in fields(plan.task)}  # type: ignore[arg-type]
    later = {"estimate", "dates"}  # of plans that use it, so that older plans keep their digest
    assert task - later | {"name"} == set(document["task"])
    estimated = replace(plan.task, rounds=6, estimate=True)  # type: ignore[type-var]
    assert task_to_json(estimated)["estimate"] is True


def test_an_old_plan_says_publish_and_a_new_one_names_its_readers() -> None:
    old = next(json.loads(p["text"]) for p in PLANS if json.loads(p["text"])["protocol"] == 2)
    published = Plan.from_dict({**old, "publish": True})
    assert published.publish
    assert published.digest != Plan.from_dict(old).digest
    assert json.loads(published.canonical_json()) == {**old, "publish": True}
    assert "for the one who proposed the job, too" in published.describe()
    with pytest.raises(PlanError, match="lacks 'publish'"):
        Plan.from_dict({name: value for name, value in old.items() if name != "publish"})
    for document in ({**toy_plan().to_dict(), "publish": True}, {**old, "publish": True}):
        plan = {**document, "protocol": 3}
        plan |= {name: toy_plan().to_dict()[name] for name in ("options", "question", "readers")}
        with pytest.raises(PlanError, match="publish must be False; name the readers"):
            Plan.from_dict(plan)


def test_readers_are_for_pairwise_masks_over_a_network_and_sign_their_keys() -> None:
    ana, bob = Identity.new(), Identity.new()
    one, two = Reader.of(ana, "ana"), Reader.of(bob, "bob")
    plan, _ = toy_federation(3, readers=(one, two))
    assert plan.digest != replace(plan, readers=(two, one)).digest
    assert Plan.from_dict(json.loads(plan.canonical_json()), TASKS).readers == (one, two)
    assert f"for the silos, and for 'ana' ({ana.fingerprint}), 'bob'" in plan.describe()
    assert "for the silos alone" in replace(plan, readers=()).describe()
    assert "result only if a silo helps it" in plan.describe()
    bad_key = bytes(32)  # of small order: nothing can be sealed to it
    signed = ana.sign(b"cloister/1/reader", b"ana", bad_key).hex()
    for readers, match in (
        ((replace(one, box=two.box),), "must sign its name and its key"),
        ((replace(one, name="eve"),), "must sign its name and its key"),
        ((replace(one, public=two.public),), "must sign its name and its key"),
        ((replace(one, signature=one.signature.upper()),), "must sign its name and its key"),
        ((replace(one, box=bad_key.hex(), signature=signed),), "must sign its name and its key"),
        ((Reader(3, 4, 5, 6),), "must sign its name and its key"),  # type: ignore[arg-type]
        ((Reader.of(ana, "a\nb"),), "must sign its name and its key"),
        ((one, Reader.of(bob, "ana")), "different names and keys"),
        ((one, Reader.of(ana, "anna")), "different names and keys"),
        (tuple(Reader.of(Identity.new(), f"r{i}") for i in range(17)), "at most 16 readers"),
    ):
        with pytest.raises(PlanError, match=match):
            replace(plan, readers=readers)
    for plan in (toy_federation(3, "group")[0], toy_plan(profile="pairwise"), toy_plan(silos=1)):
        with pytest.raises(PlanError, match="readers require profile 'pairwise' over a network"):
            replace(plan, readers=(one,))
    with pytest.raises(PlanError, match="plan is not complete"):
        Plan.from_dict({**plan.to_dict(), "readers": [{"name": "ana"}]})


def test_the_results_of_all_readers_fit_a_message() -> None:
    readers = tuple(Reader.of(Identity.new(), f"r{i}") for i in range(16))
    task = FastLloyd(
        n_clusters=2000, n_features=2, rounds=100, first_radius=1.4, radius=0.8, public_seed=1
    )
    budget = Budget(10.0, 1e-6)
    plan, _ = toy_federation(3, task=task, budget=budget, readers=readers)
    with pytest.raises(PlanError, match="results for 16 readers must have at most 62914560 bytes"):
        plan.check_network()
    replace(plan, readers=readers[:3]).check_network()


def test_an_older_plan_is_read_and_does_not_run_over_a_network() -> None:
    plan = replace(toy_federation(3)[0], protocol=2)
    assert Plan.from_dict(plan.to_dict()).protocol == 2
    with pytest.raises(PlanError, match="plan has protocol 2, this is 3; use the same version"):
        plan.check_network()


def test_two_plans_never_share_a_run_id() -> None:
    assert len({toy_plan().run_id for _ in range(50)}) == 50


def test_a_plan_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        toy_plan().nominal_n = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": 4},
        {"ring_bits": 32},
        {"task": {"name": "magic"}},
        {"task": {"name": "count", "n_features": 2, "magic": 1}},
        {"task": "count"},
        {"task": None},
        {"grid": {"low": [0], "high": [1], "frac_bits": 16, "magic": 0}},
        {"budget": "all of it"},
        {"budget": {"epsilon": -1, "delta": 0}},
        {"nominal_n": "300"},
        {"nominal_n": 300.5},
        {"nominal_n": None},
        {"run_id": 5},
        {"silos": 5},
    ],
)
def test_a_document_that_is_no_plan_is_one_error(change: dict[str, Any]) -> None:
    document = {**json.loads(PLANS[0]["text"]), **change}
    with pytest.raises(PlanError):
        Plan.from_dict(document, TASKS)


def test_a_document_without_a_field_is_refused() -> None:
    whole = json.loads(PLANS[0]["text"])
    for name in whole:
        with pytest.raises(PlanError):
            Plan.from_dict({key: value for key, value in whole.items() if key != name}, TASKS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plan: plan["task"].update(colour="red"), "task 'fastlloyd' has 'colour'"),
        (lambda plan: plan["task"].pop("radius"), "task 'fastlloyd' lacks 'radius'"),
        (lambda plan: plan.pop("upload_slot"), "it lacks 'upload_slot'"),
    ],
)
def test_a_plan_with_other_fields_is_said_to_be_of_another_version(
    change: Callable[[dict[str, Any]], object], words: str
) -> None:
    document = json.loads(toy_plan().canonical_json())
    change(document)
    with pytest.raises(PlanError, match=f"{words}, so .* by another version .*make it again"):
        Plan.from_dict(document, TASKS)


def test_a_task_of_ones_own_is_read_when_it_is_given() -> None:
    class Mine(Count):
        name = "mine"

    plan = toy_plan(Mine(n_features=2))
    assert not Plan.from_dict(plan.to_dict(), TASKS).opened
    assert Plan.from_dict(plan.to_dict(), {"mine": Mine}) == plan
    assert "mine" not in TASKS


# --- Early refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"silos": ()}, "different names"),
        ({"silos": ("a", "a")}, "different names"),
        ({"silos": ("a", "")}, "1 to 255 bytes"),
        ({"silos": ("a", "é" * 128)}, "1 to 255 bytes"),
        ({"silos": ("a",)}, "profile"),
        ({"profile": "local"}, "profile"),
        ({"profile": "threshold"}, "profiles"),
        ({"min_silos": 1}, r"min_silos must be in \[2, 3\]"),
        ({"min_silos": 4}, r"min_silos must be in \[2, 3\]"),
        ({"min_silos": -1}, "min_silos"),
        ({"min_silos": 2.0}, "min_silos"),
        ({"run_id": "00"}, "run_id"),
        ({"run_id": "G" * 32}, "run_id"),
        ({"nominal_n": 0}, "nominal_n"),
        ({"nominal_n": 300.0}, "nominal_n"),
        ({"nominal_n": True}, "nominal_n"),
        ({"max_rows": 0}, "max_rows"),
        ({"max_silos_per_person": 0}, "max_silos_per_person"),
        ({"publish": True}, "publish must be False"),
        ({"budget": None}, "budget must be given"),
        ({"budget": Budget(1.0, 0.0)}, "delta must be > 0"),
        ({"columns": ("x0",)}, "columns"),
        ({"grid": Grid((-1,), (1,))}, "columns"),
        ({"grid": Grid((-1, -1), (1, 1), 20)}, "frac_bits differ"),
    ],
)
def test_a_plan_that_cannot_hold_is_refused(change: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        replace(toy_plan(), **change)


def test_a_task_without_noise_takes_no_budget() -> None:
    with pytest.raises(PlanError, match="must be None"):
        toy_plan(TOY_TASKS["lloyd"], budget=Budget(1.0, 1e-6))


def test_a_pairwise_sum_needs_as_many_silos_as_open_its_masks() -> None:
    for silos, collusion, minimum, quorum in ((3, 1, 2, 3), (5, 2, 3, 4), (5, 1, 5, 5)):
        trust = {"profile": "pairwise", "collusion": collusion, "min_silos": minimum}
        assert toy_plan(silos=silos, **trust).quorum(silos) == quorum
    assert toy_plan(silos=3, profile="group", min_silos=2).quorum(3) == 2


@pytest.mark.parametrize(("silos", "least"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (8, 5)])
def test_the_smallest_survivor_set_is_a_majority(silos: int, least: int) -> None:
    assert toy_plan(silos=silos).min_silos == majority(silos) == least
    assert 2 * least > silos


class Coarse(Count):
    """Counts on the lattice of step 1, against the rounding rule."""

    def blocks(self, t: int) -> tuple[Block, ...]:
        return (Block("count", (1,), l1=1, l2_squared=1, weight=1.0),)


def test_gaussian_noise_on_the_step_1_lattice_is_refused() -> None:
    with pytest.raises(PlanError, match="too coarse"):
        toy_plan(Coarse(n_features=2))
    # the discrete Laplace law is exact on every lattice
    assert toy_plan(Coarse(n_features=2, mechanism="laplace")).noise_scale(Block("", (), 1, 1, 1.0))


def test_a_radius_of_a_few_grid_steps_is_refused_for_gaussian_noise() -> None:
    task = FastLloyd(n_clusters=2, n_features=1, rounds=2, first_radius=1, radius=1e-3)
    with pytest.raises(PlanError, match="too coarse"):
        toy_plan(task)


@dataclass(frozen=True)
class Sized(Count):
    """One block of any size."""

    l1: int = 1 << 16
    l2_squared: int = 1 << 32

    def blocks(self, t: int) -> tuple[Block, ...]:
        return (Block("count", (1,), self.l1, self.l2_squared, weight=1.0),)


def sized(l1: int, l2_squared: int, mechanism: str = "laplace", **changes: Any) -> Plan:
    """Return a plan at epsilon 1, under which the Laplace scale is `l1`."""
    task = Sized(n_features=2, mechanism=mechanism, l1=l1, l2_squared=l2_squared)  # type: ignore[arg-type]
    return toy_plan(task, budget=Budget(1.0, 1e-6), **changes)


def test_a_record_changes_a_gaussian_block_by_at_least_256_steps() -> None:
    assert sized(256, 256**2, "gaussian")
    with pytest.raises(PlanError, match="too coarse"):
        sized(256, 256**2 - 1, "gaussian")


def test_a_share_of_noise_has_at_least_4_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "share_scale", lambda self, block: 4)
    assert toy_plan(silos=5, profile="pairwise")
    monkeypatch.setattr(Plan, "share_scale", lambda self, block: 3)
    assert toy_plan(silos=5)
    with pytest.raises(PlanError, match="shares of noise of at least 4 steps, got 3"):
        toy_plan(silos=5, profile="pairwise")


def test_the_largest_scale_of_noise_is_that_of_the_samplers() -> None:
    assert sized(1 << 40, 1 << 16).noise_scale(Block("", (), 1 << 40, 1 << 16, 1.0)) == 1 << 40
    with pytest.raises(PlanError, match="does not fit the ring"):
        sized((1 << 40) + 1, 1 << 16)


def test_the_largest_honest_sum_and_its_noise_stay_below_half_of_the_ring() -> None:
    """One silo, 2**32 records of 2**31 - 5120 steps, 40 scales of 2**39: 2**63 in all."""
    norm = (1 << 31) - 5121
    assert sized((1 << 39) - 1, norm**2, silos=1)
    with pytest.raises(PlanError, match="does not fit the ring"):
        sized(1 << 39, norm**2, silos=1)


class Loud(Count):
    """A record may add so much that the sum could wrap."""

    def blocks(self, t: int) -> tuple[Block, ...]:
        return (Block("count", (1,), l1=1 << 30, l2_squared=1 << 60, weight=1.0),)


def test_sums_that_could_wrap_are_refused() -> None:
    with pytest.raises(PlanError, match="does not fit the ring"):
        toy_plan(Loud(n_features=2))


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_noise_that_could_not_be_drawn_is_refused(mechanism: Any) -> None:
    with pytest.raises(PlanError, match=r"round 1 .*epsilon of at least") as refusal:
        toy_plan(Count(n_features=2, mechanism=mechanism), budget=Budget(1e-9, 1e-12))
    enough = float(str(refusal.value).split()[-1].rstrip("."))
    assert toy_plan(Count(n_features=2, mechanism=mechanism), budget=Budget(enough, 1e-12))


@pytest.mark.parametrize("mechanism", ["gauss", "Gaussian", "", None, "laplacian"])
def test_a_law_nobody_knows_is_refused_and_never_drawn_as_another(mechanism: Any) -> None:
    """Accounted as one law and drawn from the other, noise would be of the wrong size."""
    with pytest.raises(PlanError, match="mechanism"):
        toy_plan(Count(n_features=2, mechanism=mechanism))
    with pytest.raises(PlanError, match="kind of noise must be one of"):
        DiscreteNoise().draw(mechanism, 100, 5)
    with pytest.raises((PlanError, KeyError)):
        SimulatedNoise(0).draw(mechanism, 100, 5)


def test_a_private_task_without_noise_is_refused() -> None:
    with pytest.raises(PlanError, match="mechanism must be one of"):
        Count(n_features=2, mechanism="none")
    silent = Count(n_features=2)
    object.__setattr__(silent, "mechanism", "none")  # as a task of somebody's own might be
    with pytest.raises(PlanError, match="is declared private"):
        toy_plan(silent)


class Greedy(Count):
    def blocks(self, t: int) -> tuple[Block, ...]:
        return (Block("a", (1,), 1 << 16, 1 << 32, 0.6), Block("b", (1,), 1 << 16, 1 << 32, 0.6))


def test_weights_above_one_are_refused() -> None:
    with pytest.raises(PlanError, match="weights"):
        toy_plan(Greedy(n_features=2))


# --- Noise ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in TOY_TASKS if name != "lloyd"])
@given(epsilon=st.floats(0.05, 20), delta=st.sampled_from([1e-9, 1e-6, 1e-4]))
def test_the_whole_plan_costs_its_budget_and_no_more(
    name: str, epsilon: float, delta: float
) -> None:
    task = TOY_TASKS[name]
    plan = toy_plan(task, budget=Budget(epsilon, delta))
    if task.mechanism == "laplace":
        cost = accounting.pure_epsilon(plan.events())
    else:
        cost = accounting.epsilon(plan.events(), delta)
    assert cost <= epsilon
    assert cost > 0.999 * epsilon  # the rounding up to an integer wastes next to nothing


def test_gaussian_scale_by_hand() -> None:
    plan = toy_plan(TOY_TASKS["fastlloyd"], budget=Budget(1.0, 1e-5))
    block = plan.task.blocks(1)[0]
    exact = gaussian_noise_multiplier(1.0, 1e-5) * sqrt(3) * sqrt(block.l2_squared)
    assert plan.noise_scale(block) == ceil(sqrt(exact**2 + 4))
    assert plan.noise_std(block) == plan.noise_scale(block)


def test_laplace_scale_by_hand() -> None:
    plan = toy_plan(TOY_TASKS["sulloyd"], budget=Budget(0.5, 0.0))
    block = plan.task.blocks(0)[0]
    assert plan.noise_scale(block) == ceil(block.l1 * 3 / 0.5)
    assert plan.noise_std(block) == pytest.approx(sqrt(2) * plan.noise_scale(block))


@pytest.mark.parametrize("name", ["fastlloyd", "sulloyd"])
def test_noise_grows_with_the_records_a_person_may_own(name: str) -> None:
    one = toy_plan(TOY_TASKS[name])
    many = replace(one, unit="person", max_rows=3, max_silos_per_person=2)
    block = one.task.blocks(0)[0]
    assert many.group_size == 6
    assert many.noise_scale(block) == pytest.approx(6 * one.noise_scale(block), abs=6)
    spent = accounting.epsilon(many.events(), 1e-6)
    assert spent == pytest.approx(accounting.epsilon(one.events(), 1e-6), rel=1e-3)
    assert spent <= 1.0


class Two(Count):
    """Two blocks of different sensitivity in one round."""

    def blocks(self, t: int) -> tuple[Block, ...]:
        one = 1 << 16
        return (Block("a", (2, 3), one, one**2, 0.5), Block("b", (1,), 9 * one, 9 * one**2, 0.5))


def test_a_round_is_the_event_of_its_block_or_of_its_blocks_in_order() -> None:
    plan = toy_plan(Count(n_features=2))
    block = plan.blocks(0)[0]
    alone = lattice_noise_multiplier(plan.noise_scale(block), sqrt(block.l2_squared))
    assert plan.event(0) == GaussianEvent(alone)
    both = toy_plan(Two(n_features=2))
    multipliers = [
        lattice_noise_multiplier(both.noise_scale(block), sqrt(block.l2_squared))
        for block in both.blocks(0)
    ]
    assert both.event(0) == ComposedEvent(tuple(map(GaussianEvent, multipliers)))


def test_no_noise_costs_everything() -> None:
    plan = toy_plan(TOY_TASKS["lloyd"])
    assert plan.noise_scale(plan.task.blocks(0)[0]) == 0
    assert accounting.epsilon(plan.events(), 1e-6) == float("inf")


def test_lengths_and_bytes_follow_from_the_plan() -> None:
    plan = toy_plan(TOY_TASKS["fastlloyd"])
    assert [plan.length(t) for t in range(3)] == [6, 6, 6]
    assert plan.upload_bytes() == 3 * 6 * 8


@pytest.mark.parametrize("honest", [1, 2, 3, 5])
def test_shares_of_honest_silos_are_the_smallest_that_are_enough(honest: int) -> None:
    plan = toy_plan(silos=9, profile="pairwise", min_silos=7, collusion=7 - honest)
    for scale in (4, 5, 8, 9, 17, 99, 577, 10**9):  # 9 and 577 solve s**2 = 2 m**2 + 1
        object.__setattr__(plan, "noise_scale", lambda block, scale=scale: scale)
        share = plan.share_scale(plan.task.blocks(0)[0])
        assert honest * share**2 >= scale**2 > honest * (share - 1) ** 2


def test_noise_under_pairwise_masks_is_that_of_the_silos_in_the_sum() -> None:
    plan = toy_plan(silos=5, profile="pairwise")
    block = plan.task.blocks(0)[0]
    assert plan.noise_std(block) == sqrt(5) * plan.share_scale(block)
    assert plan.noise_std(block, 3) == sqrt(3) * plan.share_scale(block)


# --- Decoding -------------------------------------------------------------------------------------


def test_decoding_cuts_blocks_in_order() -> None:
    plan = toy_plan(Two(n_features=2))
    released = plan.decode(0, np.arange(7))
    assert released["a"].values.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert released["b"].values.tolist() == [6]
    assert released["a"].noise_std == plan.noise_std(plan.task.blocks(0)[0])


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), -(2**63) + 1, 2**62, -(2**62)])
@pytest.mark.parametrize("place", [0, 5])
def test_a_value_honest_silos_cannot_reach_is_refused(value: int, place: int) -> None:
    plan = toy_plan()
    values = np.zeros(6, dtype=np.int64)
    values[place] = value
    with pytest.raises(RemoteProtocolError, match="outside the plan's range") as caught:
        plan.decode(0, values)
    assert str(abs(value)) not in str(caught.value)


@given(st.integers(0, 5), st.integers(1, 3))
def test_a_value_honest_silos_can_reach_is_taken(place: int, silos: int) -> None:
    plan = toy_plan(silos=silos)
    block = plan.task.blocks(0)[0]
    most = silos * MAX_RECORDS * int(sqrt(block.l2_squared)) + 8 * plan.noise_scale(block)
    values = np.zeros(6, dtype=np.int64)
    values[place] = -most
    assert plan.decode(0, values)["sums"].values.ravel()[place] == -most
    assert most < 2**63


def largest_word(plan: Plan, deviation: int) -> int:
    """Return what 2**32 records of each silo and 40 deviations of noise reach together."""
    block = plan.task.blocks(0)[0]
    return len(plan.silos) * MAX_RECORDS * (isqrt(block.l2_squared) + 1) + 40 * deviation


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("profile", ["group", "pairwise"])
def test_the_range_of_a_word_ends_at_40_deviations_of_the_noise_of_all_silos(
    profile: str, sign: int
) -> None:
    plan = toy_plan(silos=5, profile=profile)
    block = plan.task.blocks(0)[0]
    # Under pairwise masks the deviation is sqrt(5) shares, which three are enough for.
    deviation = plan.noise_scale(block) if profile == "group" else 3 * plan.share_scale(block)
    values = np.zeros(6, dtype=np.int64)
    values[0] = sign * largest_word(plan, deviation)
    assert plan.decode(0, values)["sums"].values.ravel()[0] == values[0]
    values[0] += sign
    with pytest.raises(RemoteProtocolError, match="outside the plan's range"):
        plan.decode(0, values)


def test_over_a_network_a_word_under_the_group_mask_is_cut_to_the_range(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A refusal would tell the aggregator whether the exact sum is above a bound of its choice."""
    plan, _ = toy_federation(3, "group")
    most = largest_word(plan, plan.noise_scale(plan.task.blocks(0)[0]))
    inside = plan.decode(0, np.array([7, -most, most, 0, 0, 0]))
    assert inside["sums"].values.ravel().tolist() == [7, -most, most, 0, 0, 0]
    assert not caplog.records
    cut = plan.decode(0, np.array([7, -most - 1, most + 1, 2**63 - 1, 0, 0]))
    assert cut["sums"].values.ravel().tolist() == [7, -most, most, most, 0, 0]
    assert len(caplog.records) == 1


def test_over_a_network_a_word_under_pairwise_masks_is_refused() -> None:
    plan, _ = toy_federation(3, "pairwise")
    with pytest.raises(RemoteProtocolError, match="outside the plan's range"):
        plan.decode(0, np.array([2**62, 0, 0, 0, 0, 0]))


class Bare(Count):
    """A round with a block of no words, such as the sums over no columns."""

    def blocks(self, t: int) -> tuple[Block, ...]:
        return (
            Block("none", (0, 2), 1 << 16, 1 << 32, 0.5),
            Block("b", (1,), 1 << 16, 1 << 32, 0.5),
        )


def test_a_block_of_no_words_is_decoded() -> None:
    released = toy_plan(Bare(n_features=2)).decode(0, np.array([5]))
    assert released["none"].values.shape == (0, 2)
    assert released["b"].values.tolist() == [5]


def test_a_wrong_pad_is_noticed() -> None:
    rng = np.random.default_rng(0)
    plan = toy_plan()
    for _ in range(100):  # a uniform word is in range with probability below 2^-10
        with pytest.raises(RemoteProtocolError):
            plan.decode(0, rng.integers(-(2**63), 2**63, 6))


# --- Words ----------------------------------------------------------------------------------------


def test_a_plan_says_what_it_costs_and_who_sees_what() -> None:
    text = toy_plan(budget=Budget(0.7, 1e-7)).describe()
    for words in ("e^0.7", "1e-07", "3 silos", "aggregator really adding the noise", "one row"):
        assert words in text
    assert "nothing is sent" in toy_plan(silos=1).describe()
    assert "all rows of one patient, at most 2" in toy_plan(unit="patient", max_rows=2).describe()
    assert "NO privacy" in toy_plan(TOY_TASKS["lloyd"]).describe()
    assert toy_plan(TOY_TASKS["lloyd"]).describe().startswith("NOT PRIVATE")
