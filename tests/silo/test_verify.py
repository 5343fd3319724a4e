"""A release is checked from its files alone, and what was changed in them is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest

from cloister.app.release import Release
from cloister.cli import main
from cloister.federation.release_signatures import SUFFIX
from cloister.federation.silo.agent import MODEL
from cloister.shares.inference.export import to_sklearn
from cloister.testing import toy_federation

from .test_federation import federation

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The models of a job at each of its silos; beside each lies its silo's signature."""
    plan, identities = toy_federation(profile="group")
    silos = federation(tmp_path_factory.mktemp("released") / "job", plan, identities)
    return [silo.site.folder / "results" / plan.run_id / MODEL for silo in silos.values()]


@pytest.fixture
def model(released: list[Path], tmp_path: Path) -> Path:
    for file in (released[0], released[0].with_name(MODEL + SUFFIX)):
        shutil.copy(file, tmp_path)
    return tmp_path / MODEL


def verdicts(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    told = json.loads(capsys.readouterr().out)
    return {check["check"]: check["verdict"] for check in told["checks"]}


def test_a_release_verifies_with_the_word_of_every_silo(
    released: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(file.with_name(MODEL + SUFFIX)) for file in released]
    assert main(["verify", str(released[0]), "--json", "--signed", *words]) == 0
    found = verdicts(capsys)
    assert set(found.values()) == {"ok"}
    assert sum(name.startswith("signed by") for name in found) == len(released) >= 3
    assert main(["verify", str(released[0])]) == 0
    assert "These checks cannot show" in " ".join(capsys.readouterr().out.split())


def test_numbers_are_exported_with_readers(model: Path, tmp_path: Path) -> None:
    assert main(["export", str(model), "--out", str(tmp_path / "told"), "--quiet"]) == 0
    told = pd.read_csv(tmp_path / "told/numbers.csv")
    names = ["table", "row", "column", "value", "low", "high"]
    assert list(told) == names
    assert (told["low"] <= told["value"]).all()
    centres = Release.load(model).results["centres"]
    assert set(centres.ravel()) <= set(told["value"])
    for suffix in ("R", "sas", "do"):
        reader = (tmp_path / f"told/numbers.{suffix}").read_text()
        assert all(name in reader for name in ("numbers.csv", *names))


@pytest.mark.parametrize("kind", ["sklearn", "onnx"])
def test_a_model_is_exported_to_a_file_that_predicts(
    model: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model.out"
    assert main(["export", str(model), "--to", kind, "--out", str(out)]) == 0
    assert ("a pickle may run any code" in capsys.readouterr().err) == (kind == "sklearn")
    rows = np.random.default_rng(0).uniform(-2, 2, (50, 2))
    if kind == "sklearn":
        found = joblib.load(out).predict(rows)
    else:
        reference = pytest.importorskip("onnx.reference").ReferenceEvaluator(out.read_bytes())
        (found,) = reference.run(None, {"x0": rows[:, :1], "x1": rows[:, 1:]})
    assert found.tolist() == to_sklearn(Release.load(model)).predict(rows).tolist()


def test_without_signatures_nothing_is_claimed_of_them(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.with_name(MODEL + SUFFIX).unlink()
    assert main(["verify", str(model), "--json"]) == 0
    assert verdicts(capsys)["signatures"] == "not shown"


def _value(document: dict[str, Any]) -> None:
    document["results"]["centres"][0][0] += 1e-9


def _other_noise(document: dict[str, Any]) -> None:
    document["noise"] = "operating system"


def _no_noise(document: dict[str, Any]) -> None:
    document["noise"] = "a double"


def _free(document: dict[str, Any]) -> None:
    document["spent"] = {"event": "composed", "events": []}


def _dearer(document: dict[str, Any]) -> None:
    document["spent"] = {"event": "repeated", "count": 2, "of": document["spent"]}


def _survivor(document: dict[str, Any]) -> None:
    document["survivors"][0] = document["survivors"][0][:1]


@pytest.mark.parametrize(
    ("change", "also"),
    [
        (_value, ""),
        (_other_noise, ""),
        (_no_noise, "noise from"),
        (_free, "price of the noise"),
        (_dearer, "price of the noise"),
        (_survivor, "rounds"),
    ],
)
def test_a_changed_model_is_found(
    model: Path, capsys: pytest.CaptureFixture[str], change: Change, also: str
) -> None:
    document = json.loads(model.read_text())
    change(document)
    model.write_text(json.dumps(document))
    assert main(["verify", str(model), "--json"]) == 1
    failed = {name for name, verdict in verdicts(capsys).items() if verdict == "FAILED"}
    assert failed == {"signed by silo-0", also} - {""}


@pytest.mark.parametrize("key", ["epsilon", "unit"])
def test_a_changed_plan_is_refused(model: Path, key: str) -> None:
    document = json.loads(model.read_text())
    plan = document["plan"]
    if key == "epsilon":
        plan["budget"]["epsilon"] /= 2
    else:
        plan["unit"] = "patient"
    model.write_text(json.dumps(document))
    assert main(["verify", str(model), "--json"]) in (3, 4)


@pytest.mark.parametrize(
    ("key", "code"),
    [("silo", 1), ("signature", 1), ("ledger_signature", 1), ("public", 1), ("ledger", 4)],
)
def test_a_changed_signature_is_found(model: Path, key: str, code: int) -> None:
    file = model.with_name(MODEL + SUFFIX)
    document = json.loads(file.read_text())
    text = document[key]
    others = {"silo": "silo-1", "ledger": text.replace('"height":', '"hight":')}
    document[key] = others.get(key, ("1" if text[0] == "0" else "0") + text[1:])
    file.write_text(json.dumps(document))
    assert main(["verify", str(model), "--json"]) == code


def test_the_word_on_another_job_counts_for_nothing(model: Path, tmp_path: Path) -> None:
    plan, identities = toy_federation(profile="group")
    silos = federation(tmp_path / "other", plan, identities)
    other = silos["silo-0"].site.folder / "results" / plan.run_id / (MODEL + SUFFIX)
    assert main(["verify", str(model), "--json", "--signed", str(other)]) == 1
    file = model.with_name(MODEL + SUFFIX)
    file.write_bytes(file.read_bytes()[:-20])
    assert main(["verify", str(model)]) == 4
