"""The silo's policy: it denies by default, and each rule refuses by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.app.job import make_plan
from cloister.core.errors import PlanError
from cloister.data.schema import Schema, catalogue_schema
from cloister.federation.settings import PolicySettings
from cloister.federation.silo.policy import Policy
from cloister.hazmat.signing import Identity
from cloister.privacy.budget import Budget
from cloister.protocol.code import code_of
from cloister.protocol.plan import Plan
from cloister.protocol.proposal import PROPOSE, Proposer
from cloister.protocol.readers import Reader
from cloister.protocol.task import Task
from cloister.tasks import TASKS
from cloister.tasks.clustering.kmeans import FastLloyd, Lloyd
from cloister.tasks.count import Count
from cloister.testing import toy_federation, toy_schema

PLAN, IDENTITIES = toy_federation()
SCHEMA = toy_schema()
ANN, BOB, MALLORY = Identity.new(), Identity.new(), Identity.new()
ANALYSTS = {"ann": ANN.fingerprint, "bob": BOB.fingerprint}
READ_ANN, READ_BOB = Reader.of(ANN, "ann"), Reader.of(BOB, "bob")
READ_EVE = Reader.of(Identity.new(), "eve")
SILO = "silo-1"
PINS = {name: identity.fingerprint for name, identity in IDENTITIES.items()}
ALLOWS = Policy(PolicySettings(tasks=("fastlloyd",), max_epsilon_per_job=1.0))


def signed(plan: Plan, identity: Identity = ANN, name: str = "ann", **changes: str) -> Proposer:
    proposer = Proposer(
        name,
        identity.fingerprint,
        identity.public.hex(),
        identity.sign(PROPOSE, plan.digest).hex(),
    )
    return replace(proposer, **changes)


@dataclass(frozen=True)
class Case:
    """Everything a policy looks at; unchanged, it is allowed."""

    policy: Policy = ALLOWS
    plan: Plan = PLAN
    silo: str = SILO
    schema: Schema = SCHEMA
    peers: Any = None
    analysts: Any = None
    own: Identity = IDENTITIES[SILO]
    proposer: Callable[[Plan], Proposer | None] = signed

    def refusal(self) -> str | None:
        others = {name: pin for name, pin in PINS.items() if name != self.silo}
        return self.policy.refusal(
            self.plan,
            silo=self.silo,
            schema=self.schema,
            tasks=TASKS,
            proposer=self.proposer(self.plan),
            peers=others if self.peers is None else self.peers,
            analysts=ANALYSTS if self.analysts is None else self.analysts,
            fingerprint=self.own.fingerprint,
        )


def test_a_job_within_every_rule_is_not_refused() -> None:
    assert Case().refusal() is None
    assert Case(peers=PINS).refusal() is None  # all silos may share one table


def allowing(**changes: Any) -> Policy:
    return Policy(ALLOWS.rules.model_copy(update=changes))


def asking(plan: Plan = PLAN, **changes: Any) -> Plan:
    """Return a plan with other fields; another task comes with its own layout and code."""
    if "task" in changes:
        changes = {"layout": None, "code": code_of(changes["task"]), **changes}
    return replace(plan, **changes)


def planned(
    task: type[Task] = FastLloyd, schema: Schema = SCHEMA, plan: Plan = PLAN, **changes: Any
) -> Plan:
    """Return the plan of a job among the parties of a plan."""
    options = {"n_clusters": 2, "rounds": 2, "public_seed": 1} if task is FastLloyd else {}
    parties = {name: getattr(plan, name) for name in ("profile", "fingerprints", "min_silos")}
    about = {"budget": Budget(1.0, 1e-6), "nominal_n": 300, **options, **parties, **changes}
    return make_plan(task, schema, PLAN.silos, **about)


GROUP = planned(profile="group", min_silos=3)
REFUSALS: dict[str, tuple[Case, str]] = {
    "nothing allowed": (Case(Policy()), "task 'fastlloyd' is not among those allowed here: none."),
    "task": (
        Case(allowing(tasks=("count", "glloyd"))),
        "task 'fastlloyd' is not among those allowed here: 'count', 'glloyd'.",
    ),
    "not private": (
        Case(
            allowing(tasks=("lloyd",), profiles=("group",)),
            planned(Lloyd, plan=GROUP, budget=None, n_clusters=2),
        ),
        "task 'lloyd' is not private; only private jobs are allowed here.",
    ),
    "no epsilon": (Case(allowing(max_epsilon_per_job=None)), "no epsilon is allowed for a job"),
    "job": (
        Case(allowing(max_epsilon_per_job=0.99)),
        "epsilon must be at most 0.99, the cap of a job here, got 1.",
    ),
    "study": (
        Case(allowing(max_epsilon_per_study=0.5)),
        "epsilon must be at most 0.5, the cap of a study here, got 1.",
    ),
    "another's study": (
        Case(allowing(studies_of={"ann": ("thesis", "ward"), "bob": ("default",)})),
        "study 'default' is not among those that 'ann' may charge here: 'thesis', 'ward'; the "
        "owner can add it to studies_of.",
    ),
    "no study": (
        Case(allowing(studies_of={"bob": ("default",)})),
        "study 'default' is not among those that 'ann' may charge here: none; the owner can add",
    ),
    "year": (
        Case(allowing(max_epsilon_per_year=0.5)),
        "epsilon must be at most 0.5, the cap of a year here, got 1.",
    ),
    "delta": (
        Case(plan=planned(budget=Budget(1.0, 1e-3))),
        "delta must be at most 1e-06 here, got 0.001.",
    ),
    "too few others": (
        Case(allowing(min_other_silos=3)),
        "min_silos must be at least 4 for this silo, got 3; a sum must include 3 others.",
    ),
    "profile": (
        Case(plan=GROUP),
        "profile 'group' is not among those allowed here: 'pairwise'.",
    ),
    "readers": (Case(plan=planned(readers=(READ_BOB,))), "readers must be empty here"),
    "stranger reads": (
        Case(allowing(allow_publish=True), planned(readers=(READ_ANN, READ_BOB, READ_EVE))),
        f"reader 'eve' with the fingerprint {READ_EVE.fingerprint} is not pinned here; compare it",
    ),
    "pinned name, other key": (
        Case(allowing(allow_publish=True), planned(readers=(Reader.of(Identity.new(), "bob"),))),
        "reader 'bob' with the fingerprint ed25519:",
    ),
    "pinned key, other name": (
        Case(allowing(allow_publish=True), planned(readers=(Reader.of(BOB, "rob"),))),
        "reader 'rob' with the fingerprint ed25519:",
    ),
    "columns": (
        Case(allowing(columns=("x0",))),
        "column 'x1' is not among those allowed here: 'x0'.",
    ),
    "other schema": (
        Case(plan=asking(schema_digest="0" * 64)),
        "schema_digest must be " + PLAN.schema_digest,
    ),
    "unknown names": (
        Case(plan=asking(columns=("x0", "y"))),
        "the plan cannot be made from this silo's schema: the schema has no column 'y'; select",
    ),
    "order of names": (
        Case(plan=asking(columns=("x1", "x0"))),
        "the plan differs in 'columns' from",
    ),
    "other bounds": (
        Case(plan=asking(grid=replace(PLAN.grid, high=(1.0, 1.5)))),
        "the plan differs in 'grid.high' from",
    ),
    "unit": (Case(plan=asking(unit="patient")), "the plan differs in 'unit' from"),
    "max_rows": (Case(plan=asking(max_rows=2)), "the plan differs in 'max_rows' from"),
    "max_silos_per_person": (
        Case(plan=asking(max_silos_per_person=2)),
        "the plan differs in 'max_silos_per_person' from",
    ),
    "no options": (Case(plan=asking(options=None)), "the plan cannot be made from this silo's"),
    "other options": (
        Case(plan=asking(options={**PLAN.options, "alpha": 0.7})),
        "the plan differs in 'layout.frames', 'question', 'task.radius' from",
    ),
    "unknown option": (
        Case(plan=asking(options={**PLAN.options, "beta": 1})),
        "the plan cannot be made from this silo's schema: options of task 'fastlloyd'",
    ),
    "another question": (
        Case(plan=asking(question="0" * 64)),
        "the plan differs in 'question' from",
    ),
    "a task that the options do not lead to": (
        Case(plan=asking(task=replace(PLAN.task, radius=0.5))),
        "the plan differs in 'layout.frames', 'task.radius' from",
    ),
    "no fingerprints": (Case(plan=asking(fingerprints=())), "the plan has no fingerprints"),
    "not a member": (
        Case(silo="silo-9", own=MALLORY, peers=PINS),
        "'silo-9' is not a silo of the plan; plan with this silo.",
    ),
    "own fingerprint": (
        Case(own=MALLORY),
        f"the plan has {PINS[SILO]} for 'silo-1', but this silo's fingerprint is "
        f"{MALLORY.fingerprint}; plan with this one.",
    ),
    "not pinned": (Case(peers={"silo-0": PINS["silo-0"]}), "silo 'silo-2' is not pinned here;"),
    "pinned to another value": (
        Case(peers={**PINS, "silo-2": MALLORY.fingerprint}),
        f"silo 'silo-2' has the fingerprint {PINS['silo-2']} in the plan, but "
        f"{MALLORY.fingerprint} is pinned here; compare it with its owner.",
    ),
    "pinned under another name": (
        Case(peers={"silo-0": PINS["silo-0"], "clinic": PINS["silo-2"]}),
        "silo 'silo-2' of the plan is pinned here under the name 'clinic'.",
    ),
    "two pins exchanged": (
        Case(peers={"silo-0": PINS["silo-2"], "silo-2": PINS["silo-0"]}),
        "silo 'silo-0' has the fingerprint",
    ),
    "nobody asked": (Case(proposer=lambda _: None), "the proposal of this job has no signature;"),
    "unknown analyst": (Case(analysts={}), "'ann' is not among the analysts who may propose"),
    "another analyst's key": (
        Case(proposer=lambda plan: signed(plan, MALLORY)),
        f"analyst 'ann' has the fingerprint {MALLORY.fingerprint}, but "
        f"{ANN.fingerprint} is pinned here; compare it with its owner.",
    ),
    "a claimed fingerprint": (
        Case(proposer=lambda plan: signed(plan, MALLORY, fingerprint=ANN.fingerprint)),
        "the signature of 'ann' does not match this plan; submit it again.",
    ),
    "a silo's key is no analyst's": (
        Case(proposer=lambda plan: signed(plan, IDENTITIES["silo-0"], "silo-0")),
        "'silo-0' is not among the analysts",
    ),
    "no signature": (Case(proposer=lambda plan: signed(plan, signature="")), "the signature of"),
    "not hexadecimal": (Case(proposer=lambda plan: signed(plan, public="x")), "the signature of"),
    "signed for another purpose": (
        Case(
            proposer=lambda plan: signed(
                plan, signature=ANN.sign(b"cloister/1/enrol", plan.digest).hex()
            )
        ),
        "the signature of",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_each_rule_refuses_by_itself(name: str) -> None:
    case, said = REFUSALS[name]
    refusal = case.refusal()
    assert refusal is not None
    assert refusal.startswith(said)
    assert refusal.endswith(".")
    assert "\n" not in refusal
    assert refusal == case.refusal()  # a function of what it was given


def test_each_thing_is_allowed_where_the_owner_says_so() -> None:
    assert Case(allowing(profiles=("group",)), GROUP).refusal() is None
    read = Case(allowing(allow_publish=True), planned(readers=(READ_ANN, READ_BOB)))
    assert read.refusal() is None
    assert Case(allowing(columns=("x0", "x1", "z"))).refusal() is None
    assert Case(allowing(max_delta=1e-3), planned(budget=Budget(1.0, 1e-3))).refusal() is None
    caps = {"max_epsilon_per_study": 1.0, "max_epsilon_per_year": 1.0}
    assert Case(allowing(**caps)).refusal() is None
    pairs = {"tasks": ("count",), "profiles": ("group",)}
    assert Case(allowing(**pairs), planned(Count, plan=GROUP)).refusal() is None


def counting(schema: Schema, names: tuple[str, ...] = (), **changes: Any) -> Plan:
    """A plan over columns of a schema, all by default."""
    return asking(planned(Count, schema, columns=names or None), **changes)


def test_a_job_over_some_columns_is_held_to_the_policy_and_to_their_bounds() -> None:
    counts, plan = allowing(tasks=("count",)), counting(SCHEMA, ("x1",))
    assert Case(counts, plan).refusal() is None
    assert Case(allowing(tasks=("count",), columns=("x1",)), plan).refusal() is None
    reason = Case(allowing(tasks=("count",), columns=("x0",)), plan).refusal()
    assert reason == "column 'x1' is not among those allowed here: 'x0'."
    part = SCHEMA.select(["x1"])
    reason = Case(counts, counting(part)).refusal()
    assert reason is not None
    assert reason.startswith(f"schema_digest must be {SCHEMA.digest()}, that of this silo's schema")
    assert part.digest() in reason
    wide = replace(plan.grid, high=(9.0,))
    reason = Case(counts, replace(plan, grid=wide)).refusal()
    assert reason is not None
    assert reason.startswith("the plan differs in 'grid.high' from")


def test_a_large_catalogue_makes_no_long_reason() -> None:
    shop = catalogue_schema([f"item {i}" for i in range(3000)], dataset="d")
    counts = allowing(tasks=("count",), columns=shop.names[:2700])
    for plan in (counting(shop), counting(shop, columns=(*shop.names[:-1], "no item"))):
        reason = Case(counts, plan, schema=shop).refusal()
        assert reason is not None
        assert len(reason) < 250


def test_what_the_group_mask_would_publish_is_no_plan() -> None:
    with pytest.raises(PlanError, match="readers require profile 'pairwise'"):
        replace(GROUP, readers=(READ_ANN,))


def test_the_silo_with_a_unit_column_holds_the_plan_to_it() -> None:
    schema = Schema(dataset="toy", unit="patient", max_rows=4, columns=SCHEMA.columns)
    plan = planned(schema=schema)
    assert Case(plan=plan, schema=schema).refusal() is None
    fewer = Case(plan=replace(plan, max_rows=3), schema=schema).refusal()
    assert fewer is not None
    assert fewer.startswith("the plan differs in 'max_rows' from")


def test_the_owners_name_for_the_data_is_the_owners() -> None:
    schema = Schema(**{**SCHEMA.model_dump(), "dataset": "mine"})
    assert Case(schema=schema).refusal() is None


CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "budget": st.floats(0.01, 10).map(lambda epsilon: Budget(epsilon, 1e-6)),
    "nominal_n": st.integers(1, 10**6),
    "study": st.text(max_size=5),
    "upload_slot": st.floats(0, 3600),
    "run_id": st.text("0123456789abcdef", min_size=32, max_size=32),
    "collusion": st.sampled_from([1, 2]),
    "readers": st.sampled_from([(READ_ANN,), (READ_ANN, READ_BOB), (READ_BOB, READ_ANN)]),
    "unit": st.text(min_size=1, max_size=5),
    "max_rows": st.integers(1, 5),
    "max_silos_per_person": st.integers(1, 3),
    "schema_digest": st.text("0123456789abcdef", max_size=64),
    "silos": st.permutations(PLAN.silos).map(tuple),
    "fingerprints": st.permutations(PLAN.fingerprints).map(tuple),
    "columns": st.permutations(PLAN.columns).map(tuple),
    "min_silos": st.just(3),
    "task": st.integers(0, 100).map(lambda seed: replace(PLAN.task, public_seed=seed)),
    "grid": st.floats(1.5, 9).map(lambda high: replace(PLAN.grid, high=(1.0, high))),
    "options": st.floats(0.1, 2).map(lambda alpha: {**PLAN.options, "alpha": alpha}),
    "question": st.text("0123456789abcdef", min_size=64, max_size=64),
    "code": st.text("0123456789abcdef", min_size=64, max_size=64).map(
        lambda digest: replace(PLAN.code, digest=digest)
    ),
}


@given(st.data())
def test_whatever_changes_in_a_plan_takes_the_signature_away(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(CHANGES)))
    changed = asking(**{name: data.draw(CHANGES[name])})
    assert signed(PLAN).signed(changed) == (changed == PLAN)
    assert signed(changed).signed(changed)
    if changed != PLAN:
        assert Case(plan=changed, proposer=lambda _: signed(PLAN)).refusal() is not None


def test_the_changes_are_of_all_there_is_in_a_plan() -> None:
    # Of which a task has one, and a version; `publish` is of versions before this one, and a
    # horizon of plans with one round.
    others = {"profile", "layout", "protocol", "publish", "horizon"}
    assert set(CHANGES) | others == {field.name for field in fields(Plan) if field.init}
    other = replace(PLAN, profile="group", collusion=0, min_silos=3)
    assert not signed(PLAN).signed(other)


@given(st.integers(0, 63), st.integers(1, 255))
def test_a_signature_with_another_byte_is_none(place: int, change: int) -> None:
    signature = bytearray.fromhex(signed(PLAN).signature)
    signature[place] ^= change
    assert not signed(PLAN, signature=signature.hex()).signed(PLAN)


def test_the_policy_of_a_file_that_says_nothing_is_the_policy_that_denies() -> None:
    assert Policy().rules == PolicySettings()
    for name, value in (("tasks", ()), ("max_epsilon_per_job", None), ("profiles", ())):
        assert Case(allowing(**{name: value})).refusal() is not None
    assert Case(Policy()).refusal() is not None


COLUMN = {"name": "x", "type": "category", "categories": ("a", "b", "c")}


@pytest.mark.parametrize(
    ("own", "asked"),
    [
        (COLUMN, {**COLUMN, "categories": ("b", "a", "c")}),
        (COLUMN, {**COLUMN, "categories": ("a", "b", "d")}),
        (COLUMN, {**COLUMN, "missing": "a"}),
        ({"name": "x", "type": "boolean"}, {**COLUMN, "categories": ("0", "1")}),
    ],
)
def test_other_categories_are_another_schema(own: dict[str, Any], asked: dict[str, Any]) -> None:
    mine, theirs = (Schema(dataset="d", unit="row", columns=[c]) for c in (own, asked))
    _refuses_another(mine, theirs)


@pytest.mark.parametrize("items", [["tea", "milk"], ["milk", "tee"], ["milk"]])
def test_another_catalogue_is_another_schema(items: list[str]) -> None:
    mine, theirs = (catalogue_schema(x, dataset="d") for x in (["milk", "tea"], items))
    _refuses_another(mine, theirs)


def _refuses_another(mine: Schema, theirs: Schema) -> None:
    """A plan made by another schema is refused, and the reason says which digest was asked."""
    policy = allowing(tasks=("count",))
    assert Case(policy, counting(mine), schema=mine).refusal() is None
    reason = Case(policy, counting(theirs), schema=mine).refusal()
    assert reason is not None
    assert reason.startswith(f"schema_digest must be {mine.digest()}, that of this silo's schema")
    assert theirs.digest() in reason


def test_studies_are_allowed_by_name_in_any_spelling() -> None:
    policy = allowing(studies=("Trial A", "b"))
    for name in ("Trial A", "trial  a ", "B"):
        assert Case(policy, planned(study=name)).refusal() is None
    reason = Case(policy, planned(study="c")).refusal()
    assert reason == (
        "study 'c' is not among those allowed here: 'Trial A', 'b'; the owner can add it to "
        "studies."
    )


def test_with_a_cap_for_a_study_nobody_names_a_new_one() -> None:
    capped = allowing(max_epsilon_per_study=1.0)
    assert Case(capped).refusal() is None
    for name in ("d2", "default2", "x"):
        reason = Case(capped, planned(study=name)).refusal()
        assert reason is not None
        assert "is not among those allowed here: 'default'" in reason
    assert Case(allowing(), planned(study="d2")).refusal() is None
    shared = allowing(max_epsilon_per_study=1.0, studies_of={"ann": ("Trial A",)})
    assert Case(shared, planned(study="trial-a")).refusal() is not None
    assert Case(shared, planned(study="TRIAL A")).refusal() is None  # her own share


def test_a_study_whose_name_hides_something_is_refused() -> None:
    reason = Case(plan=planned(study="default\u200b")).refusal()
    assert reason is not None
    assert "study must be a name of letters" in reason
