"""No mutated release is verified, and none ends in anything but an outcome or a sentence."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

from cloister.app.release import release_of, words_file
from cloister.cli import main
from cloister.cli.verify import CODES
from cloister.core.errors import CloisterError
from cloister.federation.release_signatures import SUFFIX, Attestation
from cloister.federation.verification import verify_release
from cloister.hazmat.signing import Identity
from cloister.privacy.budget import Budget
from cloister.privacy.chain import SignedStatement, Statement
from cloister.privacy.noise import AGGREGATOR_NOISE, SILOS_NOISE
from cloister.protocol.plan import Plan
from cloister.protocol.progress import words_of
from cloister.tasks import TASKS
from cloister.tasks.examples import example_of
from cloister.testing import SimulatedNoise, Wire, toy_federation, toy_records, toy_task

NAMES = ("fastlloyd", "count", "tabulate", "survival", "apriori", "naive-bayes", "synthesise")
BAD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1.5, -0.0, 1e308, 2**70, "", "x", "\ud800", "9" * 400),
    *([], {}, [[]], {"a": 1}, [None] * 3, float("nan"), float("inf"), "__class__"),
)


@dataclass(frozen=True)
class Signed:
    """The three kinds of files of a release: parsed model, words, and signatures of all silos."""

    plan: Plan
    identities: Mapping[str, Identity]
    model: bytes
    words: bytes
    signatures: tuple[bytes, ...]

    def signed(self, model: bytes, words: bytes, folder: Path) -> tuple[bytes, ...]:
        """Return the signatures of all silos over other bytes, as if all of them lied."""
        made = []
        said = ("data", "default", self.plan.run_id, self.plan.digest.hex(), self.plan.events())
        for silo, identity in self.identities.items():
            ledger = SignedStatement.of(Statement(*said, "1" * 64, 3), identity)
            Attestation.of(model, words, silo, ledger, identity).save(folder / "one")
            made.append((folder / "one").read_bytes())
        return tuple(made)


@cache
def plan_of(name: str, profile: str, seed: int) -> tuple[Plan, dict[str, Identity]]:
    case = example_of(TASKS[name])
    facts = {
        "n_features": len(case.columns),
        "columns": case.columns,
        "nominal_n": 300,
        "budget": Budget(1.0, 1e-6),
    }
    task = toy_task(TASKS[name], **facts, **case.options)
    names = tuple(column.name for column in case.columns)
    return toy_federation(3, profile, task, columns=names)


def released(name: str, folder: Path, profile: str = "group", seed: int = 0) -> Signed:
    """Run a job over random records and sign its release."""
    plan, identities = plan_of(name, profile, seed)
    wire = Wire(plan, toy_records(plan, seed=seed), SimulatedNoise(seed), identities=identities)
    wire.run()
    client = next(iter(wire.clients.values()))
    label = AGGREGATOR_NOISE if profile == "group" else SILOS_NOISE
    release_of(plan, client.history, client.sums, label).save(folder / "model.json")
    model, words = (folder / "model.json").read_bytes(), words_of(plan, client.sums)
    assert words == words_file(folder / "model.json").read_bytes()
    made = Signed(plan, identities, model, words, ())
    return replace(made, signatures=made.signed(model, words, folder))


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Signed]:
    folder = tmp_path_factory.mktemp("releases")
    return {name: released(name, folder) for name in NAMES}


def outcome(folder: Path, one: Signed) -> str:
    """Return the outcome for a release, or the sentence; any other error is raised."""
    model = folder / "model.json"
    model.write_bytes(one.model)
    words_file(model).write_bytes(one.words)
    files = [model.with_name(f"{at}{SUFFIX}") for at in range(len(one.signatures))]
    for file, text in zip(files, one.signatures, strict=True):
        file.write_bytes(text)
    try:
        found = verify_release(model, signatures=files)
    except CloisterError:
        return "sentence"
    assert found.outcome != "refuted" or found.field
    return found.outcome


def dumped(document: Any) -> bytes:
    return json.dumps(document).encode()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each entry of a document, and of the first and last of each list."""
    if isinstance(value, dict):
        inner = [(key, value[key]) for key in value]
    elif isinstance(value, list) and value:
        inner = [(at, value[at]) for at in sorted({0, len(value) - 1})]
    else:
        return
    for key, entry in inner:
        yield (*path, key)
        yield from places(entry, (*path, key))


def changed(text: bytes, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> bytes:
    """Return a document after a change of the entry at a path."""
    made = parent = json.loads(text)
    for key in path[:-1]:
        parent = parent[key]
    change(parent, path[-1])
    return dumped(made)


def mutations(
    text: bytes, rng: random.Random, most: int, without: str = "-"
) -> Iterator[tuple[str, bytes]]:
    """Yield documents in which one of some places was removed or replaced, and what was changed."""
    document = json.loads(text)
    found = [path for path in places(document) if without not in path]
    for path in rng.sample(found, min(most, len(found))):
        name, value = ".".join(map(str, path)), rng.choice(BAD)
        yield f"without {name}", changed(text, path, lambda at, key: at.pop(key))
        mutated = changed(text, path, partial(_put, value=value))
        if mutated != dumped(document):
            yield f"{name} = {value!r:.30}", mutated


def _put(at: Any, key: Any, value: Any) -> None:
    at[key] = value


def texts(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield what is no document of its kind, or two documents in one."""
    yield "cut", content[: len(content) // 2]
    yield "empty", b""
    yield "list", b"[]"
    yield "null", b"null"
    yield "deep", b"[" * 100_000
    yield "deep in a key", content.rstrip()[:-1] + b', "a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    yield "no text", b"\xff\xfe" + content
    yield "a key twice", content.rstrip()[:-1] + b', "format": "cloister-model/1"}'
    yield "a long number", content.rstrip()[:-1] + b', "a": ' + b"9" * 5000 + b"}"


def test_an_honest_release_of_each_task_and_profile_is_verified(tmp_path: Path) -> None:
    for name in NAMES:
        assert outcome(tmp_path, released(name, tmp_path)) == "verified", name
    assert outcome(tmp_path, released("fastlloyd", tmp_path, "pairwise")) == "verified"


@pytest.mark.parametrize("lies", [False, True])
def test_no_mutated_model_is_verified(
    releases: dict[str, Signed], tmp_path: Path, *, lies: bool
) -> None:
    """With `lies`, all silos sign the changed model, and only the replay can refute it."""
    rng, seen = random.Random(1), Counter[str]()
    for name, one in releases.items():
        # Of versions, only the signers know the truth.
        cases = [*mutations(one.model, rng, 12, "versions" if lies else "-")]
        for what, model in [*cases, *(texts(one.model) if name == "count" else ())]:
            signatures = one.signed(model, one.words, tmp_path) if lies else one.signatures
            got = outcome(tmp_path, replace(one, model=model, signatures=signatures))
            assert got != "verified", f"{name}: {what}"
            seen[got] += 1
    assert seen.total() >= 150
    assert min(seen["refuted"], seen["sentence"]) > 10


def test_no_mutated_words_are_verified(releases: dict[str, Signed], tmp_path: Path) -> None:
    rng, tried = random.Random(2), 0
    for name, one in releases.items():
        cases = [*mutations(one.words, rng, 4)]
        for what, words in [*cases, *(texts(one.words) if name == "count" else ())]:
            # With and without the hash of the words in a model that all silos sign.
            document = json.loads(one.model)
            document["sums"] = hashlib.sha256(words).hexdigest()
            model = dumped(document)
            lied = replace(one, model=model, signatures=one.signed(model, words, tmp_path))
            for case in (replace(one, words=words), replace(lied, words=words)):
                assert outcome(tmp_path, case) != "verified", f"{name}: {what}"
                tried += 1
    assert tried >= 100


def test_no_mutated_signature_counts(releases: dict[str, Signed], tmp_path: Path) -> None:
    rng = random.Random(3)
    one = releases["count"]
    first, second, _ = one.signatures
    cases = list(mutations(first, rng, 7))
    cases += texts(first)
    cases += [("a ledger", dumped({**json.loads(first), "ledger": "{}"}))]
    cases += [("upper case", dumped({**json.loads(first), "public": "AA" * 32}))]
    cases += [("further key", dumped({**json.loads(first), "at": 1}))]
    for what, signature in cases:
        # The signature of one other silo is not enough.
        case = replace(one, signatures=(signature, second))
        assert outcome(tmp_path, case) != "verified", what


def _add(at: Any, key: Any, by: float) -> None:
    at[key] += by


def _negate(at: Any, key: Any) -> None:
    at[key] = -at[key]


def test_what_an_attacker_would_change_is_refuted(
    releases: dict[str, Signed], tmp_path: Path
) -> None:
    """Each change is signed by all silos, so that the replay alone finds it."""

    def found(one: Signed, document: Any, words: bytes | None = None) -> str | None:
        words = one.words if words is None else words
        model = dumped(document)
        lied = replace(one, model=model, words=words)
        lied = replace(lied, signatures=one.signed(model, words, tmp_path))
        assert outcome(tmp_path, lied) == "refuted"
        case = tmp_path / "model.json"
        return verify_release(case).field

    rng, zeros = random.Random(5), 0
    for one in releases.values():
        document = json.loads(one.model)
        numbers = [
            (path, entry)
            for path in places(document)
            if path[0] in ("results", "history")
            and isinstance(entry := reduce(getitem, path, document), float)
            and math.isfinite(entry)
        ]
        for path, entry in rng.sample(numbers, min(5, len(numbers))):
            by = 1e-6 * max(1.0, abs(entry))
            name = found(one, json.loads(changed(one.model, path, partial(_add, by=by))))
            assert name is not None
            assert name.startswith(path[0])
        for path, _ in [(path, entry) for path, entry in numbers if entry == 0][:2]:
            assert found(one, json.loads(changed(one.model, path, _negate)))
            zeros += 1
        for key, value in (
            ("noise", "operating system"),
            ("spent", {"event": "composed", "events": []}),
            ("spent", {"event": "repeated", "count": 2, "of": document["spent"]}),
            ("survivors", [names[:2] for names in document["survivors"]]),
            ("privacy", {**document["privacy"], "epsilon": 0.5}),
            ("plan_digest", "0" * 64),
            ("extra", 1),
            ("title", "another text"),
        ):
            name = found(one, {**document, key: value})
            assert name is not None
            assert name.startswith(key)
    assert zeros
    # Words of another job, and the words of two rounds in place of each other.
    one = releases["fastlloyd"]
    document = json.loads(one.model)
    for words in (releases["count"].words, _swapped(one)):
        document["sums"] = hashlib.sha256(words).hexdigest()
        assert found(one, document, words)


def _swapped(one: Signed) -> bytes:
    document = json.loads(one.words)
    document["rounds"][0], document["rounds"][1] = document["rounds"][1], document["rounds"][0]
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def test_a_plan_with_another_field_is_signed_by_nobody(
    releases: dict[str, Signed], tmp_path: Path
) -> None:
    one = releases["tabulate"]
    plan = one.plan
    for change in (
        {"columns": tuple(reversed(plan.columns))},
        {"study": "another"},
        {"nominal_n": 301},
        {"min_silos": 3},
        {"budget": Budget(0.5, 1e-6)},
        {"fingerprints": tuple(reversed(plan.fingerprints))},
        {"silos": tuple(reversed(plan.silos))},
    ):
        other = replace(plan, **change)
        document = json.loads(one.model)
        words = json.loads(one.words)
        for text in (document, words):
            text["plan"], text["plan_digest"] = other.to_dict(), other.digest.hex()
        content = json.dumps(words, sort_keys=True, separators=(",", ":")).encode()
        document["sums"] = hashlib.sha256(content).hexdigest()
        case = replace(one, model=dumped(document), words=content)
        assert outcome(tmp_path, case) != "verified", change


def test_only_silos_of_the_plan_count_and_each_once(
    releases: dict[str, Signed], tmp_path: Path
) -> None:
    one = releases["count"]
    stranger = Identity.new()
    of_stranger = replace(one, identities={"silo-0": stranger, "silo-9": stranger})
    forged = of_stranger.signed(one.model, one.words, tmp_path)
    first = one.signatures[0]
    for signatures in ((), (first,), (first, first, first), (first, *forged), forged):
        case = replace(one, signatures=signatures)
        if not signatures:
            (tmp_path / f"model.json{SUFFIX}").unlink(missing_ok=True)
        assert outcome(tmp_path, case) == "not verifiable"
    # A silo that signs under the name of another one counts for neither.
    keys = dict(one.identities)
    keys["silo-1"] = keys["silo-0"]
    twice = replace(one, identities=keys).signed(one.model, one.words, tmp_path)[:2]
    assert outcome(tmp_path, replace(one, signatures=twice)) == "not verifiable"


def test_models_of_other_bytes_need_one_signer_of_these(
    releases: dict[str, Signed], tmp_path: Path
) -> None:
    one = releases["count"]
    other = dumped({**json.loads(one.model), "versions": {"cloister": "9.9", "numpy": "9.9"}})
    theirs = one.signed(other, one.words, tmp_path)
    assert outcome(tmp_path, replace(one, signatures=theirs)) == "not verifiable"
    mixed = (one.signatures[0], *theirs[1:])
    assert outcome(tmp_path, replace(one, signatures=mixed)) == "verified"


COMMANDS = (
    ["verify", "MODEL"],
    ["export", "MODEL", "--out", "OUT"],
    ["export", "MODEL", "--to", "onnx", "--out", "OUT.onnx"],
    ["predict", "MODEL", "ROWS", "--out", "OUT.csv"],
)


@pytest.mark.parametrize("name", ["fastlloyd", "naive-bayes"])
def test_every_command_says_one_sentence_of_a_malformed_model(
    releases: dict[str, Signed], tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one, rng = releases[name], random.Random(4)
    rows = tmp_path / "rows.csv"
    rows.write_text(",".join(one.plan.columns) + "\n" + ",".join(["0"] * len(one.plan.columns)))
    cases = list(mutations(one.model, rng, 10, "plan"))
    words = {"MODEL": str(tmp_path / "model.json"), "ROWS": str(rows)}
    words |= {f"OUT{suffix}": str(tmp_path / f"out{suffix}") for suffix in ("", ".onnx", ".csv")}
    for what, model in cases:
        (tmp_path / "model.json").write_bytes(model)
        for command in COMMANDS:
            code = main([words.get(word, word) for word in command] + ["--quiet"])
            said = capsys.readouterr().err
            assert code in (0, 3, 4, *CODES.values()), f"{command[0]}: {what}: {said}"
            assert "unexpected" not in said
