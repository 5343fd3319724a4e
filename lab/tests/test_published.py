"""The published KMeans-Guarantee and SubCluster fail their claim; our variants do not, on the same.

Each pair is two tables of which one has a record more. The event of a failing method has a large
probability on one and none at all on the other, so no epsilon holds. The variants are run with
real plans' noise on the same pairs and events, and the claimed inequality is checked with exact
(Clopper-Pearson) bounds.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta
from sklearn.utils.estimator_checks import check_estimator

from cloister import Budget
from cloister.app.in_process import run_plan
from cloister.core.errors import DataError, LocalProtocolError, PlanError, PrivacyWarning
from cloister.core.randomness import public_generator
from cloister.privacy import accounting
from cloister.privacy.noise import DiscreteNoise
from cloister.protocol.client import Client
from cloister.protocol.code import code_mismatch
from cloister.protocol.plan import WITHOUT_LAYOUT, Plan
from cloister.secagg.masks import GroupMask
from cloister.tasks import TASKS, installed
from cloister.testing import UNMET_CHECKS, SimulatedNoise, ZeroNoise, toy_plan, toy_task
from cloister_lab.curator import CuratorMethod
from cloister_lab.curator.published import KMeansGuarantee, SubCluster
from cloister_lab.estimators import CuratorKMeans
from cloister_lab.experiments.sweep import TASKS as METHODS
from cloister_lab.metrics import nicv
from cloister_lab.tasks.subcluster import KMeansGuaranteeDP, SubClusterDP

ONE = 1 << 16
PUBLISHED: list[Any] = [KMeansGuarantee, SubCluster]
DRAWS = 400
published = pytest.mark.parametrize("method", PUBLISHED, ids=lambda m: m.name)
private = pytest.mark.parametrize(
    "task", [KMeansGuaranteeDP, SubClusterDP], ids=lambda task: task.name
)


def made(method: Any, k: int = 1, d: int = 1, **changes: Any) -> Any:
    options = {"nominal_n": 100, "budget": Budget(1.0, 1e-6), **changes}
    return method.design(n_clusters=k, n_features=d, **options)


def table(*values: float) -> np.ndarray:
    return np.array(values)[:, None]


# --- The pairs ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """Neighbours in one column, and an event of the next centre that tells them apart."""

    less: np.ndarray
    more: np.ndarray
    event: Callable[[np.ndarray], bool]


def is_positive(centres: np.ndarray) -> bool:
    return bool(centres[0, 0] > 0)


def is_the_record(centres: np.ndarray) -> bool:
    return bool(centres[0, 0] == TARGET)


TARGET = 19859 / ONE  # on the grid, so that a variant could hit it
CROWD = (0.25, 0.28, 0.31, 0.33, 0.34, 0.36, 0.38, 0.41, 0.44, 0.5)
COPIES = [0.004] * 100
PAIRS = {
    "one record or two": Pair(table(0.1), table(0.1, -1), is_positive),
    "a hundred copies": Pair(table(*COPIES), table(*COPIES, -1.0), is_positive),
    "a record is what comes out": Pair(table(*CROWD), table(*CROWD, TARGET), is_the_record),
}
OF_THE_SIGN = ["one record or two", "a hundred copies"]


def frequency(method: Any, values: np.ndarray, event: Callable[[np.ndarray], bool]) -> float:
    """How often the event happens in one step from the public centre 0."""
    hits = 0
    for seed in range(DRAWS):
        centres = method.step(values, np.zeros((1, 1)), public_generator(seed, "pair"))
        hits += event(centres)
    return hits / DRAWS


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("name", OF_THE_SIGN)
@published
def test_one_record_makes_supports_disjoint(method: Any, name: str, epsilon: float) -> None:
    pair = PAIRS[name]
    it = made(method, budget=Budget(epsilon, 1e-6))
    assert frequency(it, pair.less, pair.event) == 1
    assert frequency(it, pair.more, pair.event) == 0


@pytest.mark.parametrize("epsilon", [1e-3, 1.0])
def test_subcluster_puts_out_a_record_that_only_one_table_has(epsilon: float) -> None:
    pair = PAIRS["a record is what comes out"]
    it = made(SubCluster, budget=Budget(epsilon, 1e-6))
    assert frequency(it, pair.less, pair.event) == 0
    # about 1 / 11 of the draws: at least half of that, up to e^epsilon
    assert frequency(it, pair.more, pair.event) > exp(-epsilon) / 22
    for seed in range(50):
        drawn = it.step(pair.more, np.zeros((1, 1)), public_generator(seed, "pair"))
        assert drawn[0, 0] in pair.more


@published
def test_both_start_from_records(method: Any) -> None:
    rng = np.random.default_rng(0)
    less = rng.normal(0, 0.3, (20, 3))
    more = np.vstack([less, [[0.9, 0.8, 0.7]]])
    it = made(method, k=3, d=3)
    found = {"less": 0, "more": 0}
    for seed in range(DRAWS):
        for name, values in (("less", less), ("more", more)):
            start = it.start(values, public_generator(seed, "start"))
            assert all((row == values).all(axis=1).any() for row in start)
            found[name] += int((start == more[-1]).all(axis=1).any())
    assert found["less"] == 0
    assert found["more"] > DRAWS * 3 / 21 / 2


@published
def test_the_number_of_rounds_depends_on_the_records(method: Any) -> None:
    """A run ends when nothing moves, so its length tells of the records."""
    it = made(method, k=2)

    def steps(values: np.ndarray) -> int:
        rng = public_generator(0, "rounds")
        centres = it.start(values, rng)
        for step in range(it.max_rounds):
            before, centres = centres, it.step(values, centres, rng)
            if np.array_equal(before, centres):
                return step
        return it.max_rounds

    assert steps(table(0.0, 0.0)) == 0
    assert steps(table(0.0, 0.0, 1.0, 0.7, 0.6, 0.4)) > 0


# --- The same pairs, the variants -----------------------------------------------------------------

CLAIM = Budget(1.0, 1e-6)
RUNS = 1000
ALPHA = 1e-9  # per bound: six tests, two directions, two bounds; false alarm below 3e-8


def variant_frequency(task: Any, values: np.ndarray, pair: Pair, sources: list[Any]) -> float:
    plan = variant_plan(task)
    silos = {plan.silos[0]: [np.rint(values * ONE).astype(np.int32)]}
    hits = [
        pair.event(run_plan(plan, silos, noise=source).results["centres"]) for source in sources
    ]
    return sum(hits) / len(hits)


def variant_plan(task: Any) -> Plan:
    rounds = 1 if task is KMeansGuaranteeDP else 2  # one step, as above, with the whole budget
    it = toy_task(task, n_features=1, nominal_n=100, budget=CLAIM, rounds=rounds)
    return toy_plan(it, silos=1, budget=CLAIM, nominal_n=100)


def breaks(one: float, other: float) -> bool:
    """Whether the frequencies refute the claim, beyond chance."""
    hits = round(one * RUNS)
    low = beta.ppf(ALPHA, hits, RUNS - hits + 1) if hits else 0.0
    hits = round(other * RUNS)
    high = beta.ppf(1 - ALPHA, hits + 1, RUNS - hits) if hits < RUNS else 1.0
    return bool(low > exp(CLAIM.epsilon) * high + CLAIM.delta)


@pytest.mark.parametrize("name", PAIRS)
@private
def test_the_variants_keep_their_claim_on_the_same_pairs(task: Any, name: str) -> None:
    pair = PAIRS[name]
    noises = [SimulatedNoise(seed) for seed in range(RUNS)]
    less, more = (variant_frequency(task, v, pair, noises) for v in (pair.less, pair.more))
    assert not breaks(less, more)
    assert not breaks(more, less)
    if name in OF_THE_SIGN:
        assert 0 < less < 1
        assert 0 < more < 1


@pytest.mark.parametrize("name", OF_THE_SIGN)
@private
def test_without_their_noise_the_variants_would_not(task: Any, name: str) -> None:
    """So that the test above can fail."""
    pair = PAIRS[name]
    less, more = (variant_frequency(task, v, pair, [ZeroNoise()]) for v in (pair.less, pair.more))
    assert breaks(less, more)


@private
def test_the_variants_start_from_no_record_and_run_as_long_as_the_plan_says(task: Any) -> None:
    plan = variant_plan(task)
    histories = []
    for values in (table(0.0, 0.0), table(0.1, 0.7, 0.6, 0.4, -1.0)):
        records = np.rint(values * ONE).astype(np.int32)
        histories.append(run_plan(plan, {plan.silos[0]: [records]}).history)
    assert len({len(history) for history in histories}) == 1
    assert len({float(history[0]["centres"][0, 0]) for history in histories}) == 1


# --- What they are --------------------------------------------------------------------------------


@published
def test_they_say_that_they_are_not_private(method: Any) -> None:
    it = made(method, k=2, d=2)
    assert isinstance(it, CuratorMethod)
    assert not it.private
    assert it.describe().startswith("NOT PRIVATE")
    assert accounting.epsilon(it.events(), 1e-6) == float("inf")
    records = np.random.default_rng(0).integers(-ONE, ONE + 1, (50, 2), dtype=np.int32)
    with pytest.warns(PrivacyWarning, match="not private"):
        it.release(records, DiscreteNoise())


@published
def test_a_plan_that_names_them_is_refused(method: Any) -> None:
    """The service and every silo read a plan with `Plan.from_dict` before anything else."""
    assert method.name not in TASKS
    assert method.name not in METHODS
    document = json.loads(json.dumps(toy_plan().to_dict()))
    Plan.from_dict(document, installed())
    document["task"] = {"name": method.name, "n_clusters": 2, "n_features": 2}
    plan = Plan.from_dict(document, installed())  # it can be carried, and no more
    assert not plan.opened
    assert "is not installed here" in str(code_mismatch(plan))
    with pytest.raises(LocalProtocolError, match="does not have the code"):
        Client(plan, plan.silos[0], [], GroupMask(bytes(32)))
    older = {**document, "protocol": WITHOUT_LAYOUT, "publish": True}
    del older["layout"]
    with pytest.raises(PlanError, match="task must be one of"):
        Plan.from_dict(older, installed())


# --- What they do ---------------------------------------------------------------------------------


def quiet(method: Any, records: np.ndarray, noise: Any = None) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        centres: np.ndarray = method.release(records, noise or DiscreteNoise())
    return centres


@published
def test_they_find_clusters_when_epsilon_is_large(method: Any) -> None:
    rng = np.random.default_rng(0)
    middles = np.array([[-0.6, -0.6], [0.6, 0.6]])
    values = np.vstack([rng.normal(c, 0.05, (200, 2)) for c in middles])
    records = np.rint(np.clip(values, -1, 1) * ONE).astype(np.int32)
    losses = [
        nicv(values, quiet(made(method, 2, 2, budget=Budget(100, 1e-6), public_seed=s), records))
        for s in range(5)
    ]
    assert min(losses) < 1.5 * nicv(values, middles)


@published
def test_a_step_stays_in_the_convergent_zone(method: Any) -> None:
    rng = np.random.default_rng(1)
    values = rng.uniform(-1, 1, (300, 3))
    it = made(method, k=4, d=3)
    centres = rng.uniform(-1, 1, (4, 3))
    labels = ((values[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    for seed in range(30):
        drawn = it.step(values, centres, public_generator(seed, "zone"))
        for j in range(4):
            mean = values[labels == j].mean(axis=0)
            radius = np.linalg.norm(mean - centres[j])
            assert np.linalg.norm(drawn[j] - mean) < radius * (1 + 1e-12)


@published
def test_the_loss_falls_with_every_step(method: Any) -> None:
    """The lemma of convergence, for the exact zones; it is what the methods are named for."""
    rng = np.random.default_rng(2)
    values = rng.uniform(-1, 1, (200, 2))
    it = made(method, k=3, d=2)
    centres = it.start(values, public_generator(0, "loss"))
    for seed in range(10):
        drawn = it.step(values, centres, public_generator(seed, "loss"))
        assert nicv(values, drawn) <= nicv(values, centres) + 1e-12
        centres = drawn


def test_a_sub_cluster_is_chosen_by_its_size() -> None:
    """80 records in one place, 20 in another, from a centre between: 4 of 5 draws, 5 deviations."""
    values = np.array([[0.5]] * 80 + [[0.55]] * 20)
    it = made(SubCluster, internal_k=2, budget=Budget(1e-6, 1e-6))
    drawn = [
        it.step(values, np.zeros((1, 1)), public_generator(seed, "size"))[0, 0]
        for seed in range(1000)
    ]
    assert abs(np.mean(np.isclose(drawn, 0.5)) - 0.8) < 5 * 0.0127


def test_a_zone_with_few_records_keeps_the_mean() -> None:
    values = table(0.4, 0.6)
    drawn = made(SubCluster, internal_k=5).step(values, np.zeros((1, 1)), public_generator(0))
    assert drawn[0, 0] == 0.5


@published
def test_the_noise_at_the_end_has_the_scale_it_says(method: Any) -> None:
    seen: list[tuple[str, int, int]] = []

    class Watched(ZeroNoise):
        def draw(self, kind: Any, scale: int, size: int) -> Any:
            seen.append((kind, scale, size))
            return super().draw(kind, scale, size)

    records = np.repeat(np.array([[ONE // 2, 0], [-ONE // 2, 0]], dtype=np.int32), 10, axis=0)
    it = made(method, k=2, d=2, budget=Budget(2.0, 1e-6), public_seed=1)
    quiet(it, records, Watched())
    assert len(seen) == 2
    assert {kind for kind, _, _ in seen} == {"laplace"}
    sizes = [round(2 * ONE / scale) for _, scale, _ in seen]
    assert sum(min(size, 20) for size in sizes) in (20, 21)  # both, or one and an empty one


@published
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_few_records_and_duplicates_give_centres_in_the_box(method: Any, rows: int) -> None:
    records = np.full((rows, 2), ONE, dtype=np.int32)
    centres = quiet(made(method, k=3, d=2), records)
    assert centres.shape == (3, 2)
    assert np.abs(centres).max() <= 1
    assert np.isfinite(centres).all()


@published
def test_a_run_is_repeated_by_its_seed_but_for_the_noise_at_the_end(method: Any) -> None:
    records = np.random.default_rng(0).integers(-ONE, ONE + 1, (90, 2), dtype=np.int32)
    one, two = (quiet(made(method, 3, 2, public_seed=4), records, ZeroNoise()) for _ in range(2))
    assert np.array_equal(one, two)
    other = quiet(made(method, 3, 2, public_seed=5), records, ZeroNoise())
    assert not np.array_equal(one, other)


@published
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"k": 0}, "n_clusters"),
        ({"budget": None}, "budget"),
        ({"max_rounds": 0}, "max_rounds"),
    ],
)
def test_a_wrong_number_is_refused(method: Any, change: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        made(method, **change)
    with pytest.raises(DataError, match="at least one"):
        quiet(made(method), np.zeros((0, 1), dtype=np.int32))


def test_wrong_options_of_one_method_are_refused() -> None:
    for method, change in ((KMeansGuarantee, {"zone_share": 0.0}), (SubCluster, {"internal_k": 0})):
        with pytest.raises(PlanError):
            made(method, **change)


# --- With scikit-learn's manners ------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@published
def test_scikit_learns_checks_pass_but_for_the_one_that_compares_two_fits(method: Any) -> None:
    results = check_estimator(
        CuratorKMeans(3, epsilon=1e6, bounds=(-100, 100), nominal_n=100, algorithm=method.name),
        expected_failed_checks={"check_fit_idempotent": "two noises", **UNMET_CHECKS},
        on_skip=None,
        on_fail="raise",
    )
    assert sum(result["status"] == "passed" for result in results) >= 35


@published
def test_a_fit_warns_and_says_that_it_cost_everything(method: Any) -> None:
    X = np.random.default_rng(0).normal(0, 0.2, (60, 2))
    model = CuratorKMeans(2, epsilon=1.0, bounds=(-1, 1), nominal_n=60, algorithm=method.name)
    with pytest.warns(PrivacyWarning, match="not private"):
        model.fit(X)
    assert model.spent_ == float("inf")
