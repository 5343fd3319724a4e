"""What is approved is what runs: silos derive a plan again, and its text tells everything."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from cloister import Budget, PlanError, Schema
from cloister.app.encoded_options import decode_options, encode_options
from cloister.app.job import derive_plan, make_plan
from cloister.app.question import differences, facts_of, hash_of, question_of
from cloister.data.schema import Column, schema_of
from cloister.hazmat import kex
from cloister.hazmat.signing import Identity
from cloister.protocol.plan import Plan
from cloister.protocol.readers import Reader
from cloister.tasks import TASKS, installed
from cloister.tasks.examples import example_of
from cloister.tasks.options import options_of

ALL = installed()
N, SILOS = 5000, ("a", "b", "c")


def schema_for(name: str) -> Schema:
    return schema_of(tuple(example_of(ALL[name]).columns))


def plan_for(name: str, schema: Schema | None = None, **changes: Any) -> Plan:
    """Return the plan of a task's example, with other options or fields of a plan."""
    task = ALL[name]
    budget = Budget(2.0, 1e-6) if task.private else None
    about = {"budget": budget, "nominal_n": N, **example_of(task).options, **changes}
    return make_plan(task, schema or schema_for(name), SILOS, **about)


def read_again(plan: Plan) -> Plan:
    """Return a plan as another party reads it."""
    return Plan.from_dict(json.loads(plan.canonical_json()), ALL)


def text_of(plan: Plan, schema: Schema) -> str:
    """Return the question but for the hash of the design, which nobody can read."""
    return "".join(f"{n}: {v}\n" for n, v in facts_of(plan, schema) if n != "design")


@pytest.mark.parametrize("name", ALL)
def test_every_silo_derives_the_same_plan_and_the_same_text(name: str) -> None:
    schema, plan = schema_for(name), read_again(plan_for(name))
    derived = derive_plan(plan, schema, ALL)
    assert differences(plan, derived) == []
    assert derived.canonical_json() == plan.canonical_json()
    assert plan.question == hash_of(question_of(derived, schema))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each number, text or truth value of a document, and of empty parts."""
    if isinstance(value, Mapping) and value:
        for key, entry in value.items():
            yield from leaves(entry, (*path, key))
    elif isinstance(value, list) and value:
        for at, entry in enumerate(value):
            yield from leaves(entry, (*path, at))
    else:
        yield path


def other(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 1.0001 + 1e-9
    if isinstance(value, str):
        return value[:-1] + ("0" if value[-1:] != "0" else "1")
    return [0] if isinstance(value, list) else 1


def changed(document: Any, path: tuple[Any, ...]) -> Any:
    """Return a document with another value at a path."""
    copy = json.loads(json.dumps(document))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = other(place[path[-1]])
    return copy


@pytest.mark.parametrize("name", ALL)
def test_a_plan_with_any_other_value_is_no_plan_or_is_noticed(name: str) -> None:
    """Every value but the nonce, of task, layout, options, budget, grid and parties."""
    schema, document = schema_for(name), plan_for(name).to_dict()
    document = json.loads(json.dumps(document))
    paths = list(leaves(document))
    assert len(paths) > 20
    # of a task with many numbers, such as a model, some
    for path in paths if len(paths) < 400 else paths[:: len(paths) // 200]:
        if path == ("run_id",):
            continue
        try:
            plan = Plan.from_dict(changed(document, path), ALL)
            derived = derive_plan(plan, schema, ALL)
        except PlanError:
            continue
        assert differences(plan, derived), path


def test_bounds_of_a_date_are_days_and_numbers() -> None:
    columns = [Column(name="born", type="date", min=2009, max=2021.5), *schema_for("count").columns]
    schema = Schema(dataset="d", unit="row", columns=columns)
    plan = make_plan(TASKS["count"], schema, SILOS, budget=Budget(1.0, 1e-6), nominal_n=N)
    text = question_of(plan, schema)
    assert "born: date 2009-01-01 [2009.0] to 2021-07-02 [2021.5], missing" in text


def test_names_of_categories_cannot_be_exchanged() -> None:
    """An analyst names 'no' what the silos call 'yes', in a plan that is valid otherwise."""
    columns = [Column(name=n, type="category", categories=("no", "yes")) for n in ("y", "z")]
    schema = Schema(dataset="d", unit="row", columns=columns)
    plan = make_plan(
        TASKS["tabulate"], schema, SILOS, budget=Budget(1.0, 1e-6), nominal_n=N, tables=[["y", "z"]]
    )
    labels = (("yes", "no"), *plan.task.labels[1:])
    swapped = replace(plan, task=replace(plan.task, labels=labels))
    assert differences(swapped, derive_plan(swapped, schema, ALL)) == ["task.labels"]
    # nor with a hash that fits what the analyst sees
    columns[0] = columns[0].model_copy(update={"categories": ("yes", "no")})
    theirs = Schema(dataset="d", unit="row", columns=columns)
    swapped = swapped.with_question(hash_of(question_of(swapped, theirs)))
    assert differences(swapped, derive_plan(swapped, schema, ALL)) == ["question", "task.labels"]


CHANGES: dict[str, Any] = {
    "budget": Budget(1.5, 1e-6),
    "delta": Budget(2.0, 1e-7),
    "nominal_n": N + 1,
    "profile": "pairwise",
    "study": "other",
    "min_silos": 3,
    "upload_slot": 1.5,
    "frac_bits": 17,
    "fingerprints": tuple(f"ed25519:{i:064x}" for i in range(3)),
}


@pytest.mark.parametrize("field", CHANGES)
def test_another_field_of_a_plan_is_another_text(field: str) -> None:
    schema = schema_for("tabulate")
    changes = {"budget" if field == "delta" else field: CHANGES[field]}
    assert text_of(plan_for("tabulate", **changes), schema) != text_of(plan_for("tabulate"), schema)


def test_other_parties_readers_and_schemas_are_another_text() -> None:
    schema = schema_for("tabulate")
    apart = plan_for("tabulate", profile="pairwise")
    trusting = plan_for("tabulate", profile="pairwise", collusion=2, min_silos=3)
    texts = [text_of(plan, schema) for plan in (apart, trusting)]
    assert len(set(texts)) == 2
    assert "readers of the result: the silos of the job\n" in texts[0]
    column = schema.columns[0].model_copy(update={"max": 101.0})
    wider = schema.model_copy(update={"columns": (column, *schema.columns[1:])})
    assert text_of(plan_for("tabulate", wider), wider) not in texts
    of_person = schema.model_copy(update={"unit": "patient", "max_rows": 3})
    assert "unit column: patient\n" in text_of(plan_for("tabulate", of_person), of_person)


def test_other_readers_are_another_text_and_another_plan() -> None:
    schema, ana, bob = schema_for("tabulate"), Identity(bytes(32)), Identity(bytes([1] * 32))
    prints = tuple(f"ed25519:{i:064x}" for i in range(3))

    def read_by(*readers: Reader) -> Plan:
        return plan_for("tabulate", profile="pairwise", fingerprints=prints, readers=readers)

    one, two, renamed = Reader.of(ana, "ana"), Reader.of(bob, "bob"), Reader.of(ana, "ana, bob")
    lists = [(), (one,), (two,), (one, two), (two, one), (renamed,)]
    plans = [read_by(*readers) for readers in lists]
    assert len({text_of(plan, schema) for plan in plans}) == len(lists)
    assert len({plan.question for plan in plans}) == len(lists)
    text = text_of(plans[3], schema)
    assert "readers of the result: the silos of the job, and those below\n" in text
    for reader in (one, two):
        assert f"reader: {reader.name}, {reader.fingerprint}, key {reader.box}\n" in text
    assert 'reader: "ana, bob", ed25519:' in text_of(plans[5], schema)
    # Each field of a reader: another key is another text, even if its owner signs it.
    key = kex.public_of(bytes([7] * 32))
    rekeyed = replace(
        one, box=key.hex(), signature=ana.sign(b"cloister/1/reader", b"ana", key).hex()
    )
    assert text_of(read_by(rekeyed), schema) != text_of(plans[1], schema)
    document = json.loads(json.dumps(plans[3].to_dict()))
    for path in leaves(document["readers"], ("readers",)):
        with pytest.raises(PlanError, match="must sign its name and its key"):
            Plan.from_dict(changed(document, path), ALL)
    derived = derive_plan(read_again(plans[3]), schema, ALL)
    assert differences(plans[3], derived) == []


@pytest.mark.parametrize("name", ALL)
def test_another_value_of_an_option_is_another_text(name: str) -> None:
    schema, plan = schema_for(name), plan_for(name)
    options = json.loads(json.dumps(plan.options))
    usual = text_of(plan, schema)
    for path in leaves(options):
        plan = replace(plan, options=changed(options, path))
        assert text_of(plan, schema) != usual, path
    for one in options_of(ALL[name]):
        assert f"\noption {one.name}: " in usual
        values = [
            None,
            [],
            [[]],
            "",
            "none",
            "1",
            1,
            1.0,
            True,
            "True",
            {"a": 1},
            {"a": "1"},
            ["a"],
        ]
        texts = [text_of(replace(plan, options={**options, one.name: v}), schema) for v in values]
        assert len(set(texts)) == len(values)


def test_options_survive_their_encoding() -> None:
    model = plan_for("naive-bayes").task
    values: dict[str, Any] = {
        "text": "$task", "none": None, "inf": float("inf"), "mapping": {True: 1.0, 3: (1, "a")},
        "dollar": {"$task": 1, "b": ((),)}, "model": model, "empty": {}, "number": 1 / 3,
    }  # fmt: skip
    for value in values.values():
        encoded = encode_options(ALL["evaluation"], {"model": value, "truth": "y"})
        again = decode_options(json.loads(json.dumps(encoded, allow_nan=False)), ALL)
        assert again["model"] == value
        assert type(again["model"]) is type(value)
    with pytest.raises(PlanError, match="an option must be made of numbers, text"):
        encode_options(ALL["evaluation"], {"model": object()})


def test_the_text_shortens_nothing() -> None:
    names = [*(f"c{i}" for i in range(34)), "hiv"]
    schema = Schema(
        dataset="ward", unit="row", columns=[Column(name=name, type="boolean") for name in names]
    )
    tables = [*([f"c{i}"] for i in range(33)), ["hiv", "c1"]]
    about = {"budget": Budget(1.0, 1e-6), "nominal_n": 300, "least_signal": 0.0}
    plan = make_plan(TASKS["tabulate"], schema, SILOS, tables=tables, **about)
    text = question_of(plan, schema)
    assert "column: hiv: boolean, missing: drop, out of range: clip\n" in text
    assert "; c32; hiv by c1\n" in text
    assert all(f"column: {name}: " in text for name in names)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a; b", '"a; b"'),
        ("x by y", '"x by y"'),
        ("epsilon: 0", '"epsilon: 0"'),
        ("\u202ereversed", '"\\u202ereversed"'),
        ("none", '"none"'),
        ("Größe", "Größe"),
        ("a  b", "a  b"),
    ],
)
def test_a_name_cannot_pretend_to_be_another_fact(name: str, shown: str) -> None:
    schema = Schema(dataset="d", unit="row", columns=[Column(name=name, type="boolean")])
    plan = make_plan(TASKS["count"], schema, SILOS, budget=Budget(1.0, 1e-6), nominal_n=300)
    assert f"column: {shown}: boolean, missing: drop, out of range: clip\n" in question_of(
        plan, schema
    )


def test_a_plan_without_options_cannot_be_derived() -> None:
    plan = replace(plan_for("count"), options=None)
    with pytest.raises(PlanError, match="carries no options"):
        derive_plan(plan, schema_for("count"), ALL)


@pytest.mark.parametrize(
    "options",
    [
        {"mechanism": {"$number": "x"}},
        {"mechanism": {"$pairs": [1]}},
        {"mechanism": {"$pairs": [[{"a": 1}, 2]]}},
        {"mechanism": {"$task": 3}},
        {"mechanism": {"$task": {"name": ["count"]}}},
        {"mechanism": []},
    ],
)
def test_options_that_a_stranger_made_up_are_a_plan_error(options: dict[str, Any]) -> None:
    plan = replace(plan_for("count"), options=options)
    with pytest.raises(PlanError):
        derive_plan(plan, schema_for("count"), ALL)
