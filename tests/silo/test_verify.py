"""A release is checked from its files alone, and what was changed in them is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest

from cloister.app.files import write_release
from cloister.app.release import Release, words_file
from cloister.cli import main
from cloister.cli.verify import CODES
from cloister.core.errors import DataError
from cloister.federation.release_signatures import SUFFIX
from cloister.federation.silo.agent import MODEL
from cloister.privacy.noise import DiscreteNoise
from cloister.shares.inference.export import to_sklearn
from cloister.testing import toy_federation

from .test_federation import federation


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The models of a job at each of its silos; beside each lies its silo's signature."""
    plan, identities = toy_federation(profile="group")
    silos = federation(tmp_path_factory.mktemp("released") / "job", plan, identities)
    return [silo.site.folder / "results" / plan.run_id / MODEL for silo in silos.values()]


@pytest.fixture
def model(released: list[Path], tmp_path: Path) -> Path:
    """A copy of a model with its words, and the signatures of all silos."""
    for suffix in ("", ".sums", SUFFIX):
        shutil.copy(released[0].with_name(MODEL + suffix), tmp_path)
    for number, file in enumerate(released):
        shutil.copy(file.with_name(MODEL + SUFFIX), tmp_path / f"{number}{SUFFIX}")
    return tmp_path / MODEL


def verified(model: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    """Return what the command says of a model with the signatures of all silos beside it."""
    files = [str(model.with_name(f"{number}{SUFFIX}")) for number in range(3)]
    capsys.readouterr()
    code = main(["verify", str(model), "--json", "--signed", *files, *more])
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == CODES[said["outcome"]]
    assert said["verified"] == (code == 0)
    return said


def test_a_release_verifies_with_the_word_of_every_silo(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = verified(model, capsys)
    assert said["verified"]
    assert said["signatures"]["valid"] == said["signatures"]["silos"] == 3
    assert said["signatures"]["signers"] == ["silo-0", "silo-1", "silo-2"]
    assert said["signatures"]["needed"] == 2
    assert main(["verify", str(model)]) == CODES["not verifiable"]  # by one signature alone
    assert main(["verify", str(model.parent)]) == CODES["not verifiable"]  # its folder
    report = model.with_name("report.html")
    assert main(["verify", str(model), "--signers", "1", "--report", str(report)]) == 0
    page = report.read_text(encoding="utf-8")
    assert "<strong>Verified.</strong> 1 of 3 silos signed: silo-0." in page
    assert "one process on one machine" not in page
    text = " ".join(capsys.readouterr().out.split())
    assert "VERIFIED: 1 of 3 silos signed: silo-0." in text
    assert "This cannot show" in text
    assert main(["verify", str(model), "--signers", "0"]) == 3


def test_no_report_carries_the_numbers_of_a_refuted_release(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forged, report = tmp_path / "forged.json", tmp_path / "forged.html"
    document = json.loads(model.read_text()) | {"noise": "another"}
    forged.write_text(json.dumps(document))
    shutil.copy(model.with_name(f"{MODEL}.sums"), tmp_path / "forged.json.sums")
    assert main(["verify", str(forged), "--report", str(report)]) == CODES["refuted"]
    assert "no report of a refuted release" in capsys.readouterr().err
    assert not report.exists()


def test_numbers_are_exported_with_readers(model: Path, tmp_path: Path) -> None:
    # As for verify, the folder of a release will do.
    assert main(["export", str(model.parent), "--out", str(tmp_path / "told"), "--quiet"]) == 0
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
    assert main(["verify", str(model), "--json"]) == CODES["not verifiable"]
    said = json.loads(capsys.readouterr().out)
    assert (said["verified"], said["replayed"]) == (False, True)
    assert "unsigned" in said["reason"]


def test_signatures_may_be_given_one_by_one(
    released: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(path.with_name(MODEL + SUFFIX)) for path in released]
    each = [word for file in files for word in ("--signed", file)]
    assert main(["verify", str(released[0]), *each, "--json"]) == CODES["verified"]
    assert json.loads(capsys.readouterr().out)["signatures"]["valid"] == len(files)


def test_the_signature_next_to_the_model_counts_with_those_given(
    released: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    others = [str(path.with_name(MODEL + SUFFIX)) for path in released[1:]]
    assert main(["verify", str(released[0]), "--signed", *others, "--json"]) == CODES["verified"]
    assert json.loads(capsys.readouterr().out)["signatures"]["valid"] == len(released)


def test_what_a_reader_writes_is_verified_with_the_signatures_of_the_silos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DiscreteNoise, "label", "a double")  # the silos' here
    plan, identities = toy_federation(profile="pairwise")
    silos = federation(tmp_path / "job", plan, identities)
    models = [silo.site.folder / "results" / plan.run_id / MODEL for silo in silos.values()]
    published = json.loads(words_file(models[0]).read_bytes())
    written = write_release(Release.from_dict(published), tmp_path)["model"]
    files = [str(model.with_name(MODEL + SUFFIX)) for model in models]
    assert main(["verify", str(written)]) == CODES["not verifiable"]
    assert main(["verify", str(written), "--signed", *files]) == CODES["verified"]
    folders = [str(model.parent) for model in models]
    assert main(["verify", str(written), "--signed", *folders]) == CODES["verified"]


def test_a_report_names_the_model_to_verify(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(model.with_name("report.html"))]) == 3
    assert "model.json" in capsys.readouterr().err


def test_a_silo_counts_once_and_more_may_be_asked_for(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = str(model.with_name(MODEL + SUFFIX))
    capsys.readouterr()
    code = main(["verify", str(model), "--json", "--signed", own, own, own])
    assert code == CODES["not verifiable"]
    assert json.loads(capsys.readouterr().out)["signatures"]["valid"] == 1
    assert verified(model, capsys, "--signers", "4")["outcome"] == "not verifiable"
    assert verified(model, capsys, "--signers", "3")["verified"]


def test_models_without_words_can_be_read_and_not_verified(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = model.with_name(MODEL + ".sums")
    text = words.read_bytes()
    words.unlink()
    assert "absent" in verified(model, capsys)["reason"]
    Release.load(model)
    document = json.loads(model.read_text())
    del document["sums"], document["privacy"]  # as models of the previous version
    model.write_text(json.dumps(document))
    assert "older models" in verified(model, capsys)["reason"]
    Release.load(model)
    document["sums"] = "0" * 64
    model.write_text(json.dumps(document))
    words.write_bytes(text)
    assert verified(model, capsys)["field"] == "sums"
    with pytest.raises(DataError, match="released words"):
        Release.load(model)


@pytest.mark.parametrize("release", ["v0.1", "v0.2"])
def test_a_model_of_an_earlier_version_is_not_verifiable(release: str) -> None:
    folder = Path(__file__).parents[1] / "fixtures" / release
    for name in ("kmeans.json", "naive-bayes.json"):
        assert main(["verify", str(folder / name), "--quiet"]) == CODES["not verifiable"]


def test_a_task_without_code_cannot_be_replayed(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloister.app.release.installed", dict)
    said = verified(model, capsys)
    assert (said["outcome"], said["replayed"]) == ("not verifiable", False)
    assert "not installed" in said["reason"]


def test_only_pinned_keys_count(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = Release.load(model).plan
    pins = dict(zip(plan.silos, plan.fingerprints, strict=True))
    pins["silo-2"] = "ed25519:" + "0" * 64
    settings = model.with_name("silo.toml")
    settings.write_text(
        'role = "silo"\nname = "a"\ncoordinator = "https://host:1"\ncap_epsilon = 1\n'
        '[data]\nfile = "a.csv"\n[peers]\n'
        + "".join(f'"{name}" = "{pin}"\n' for name, pin in pins.items())
    )
    said = verified(model, capsys, "--pins", str(settings))
    assert said["verified"]
    assert said["signatures"]["signers"] == ["silo-0", "silo-1"]
    assert "do not pin" in str(said["signatures"]["others"])
    more = ("--signers", "3", "--pins", str(settings))
    assert verified(model, capsys, *more)["outcome"] == "not verifiable"
    settings.write_text("role")
    assert main(["verify", str(model), "--pins", str(settings)]) == 3


@pytest.mark.parametrize("key", ["silo", "signature", "ledger_signature", "public", "sums"])
def test_a_changed_signature_does_not_count(
    model: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    model.with_name(MODEL + SUFFIX).unlink()  # the same signature, unchanged
    file = model.with_name(f"0{SUFFIX}")
    document = json.loads(file.read_text())
    text = document[key]
    document[key] = "silo-1" if key == "silo" else ("1" if text[0] == "0" else "0") + text[1:]
    file.write_text(json.dumps(document))
    said = verified(model, capsys)
    # The others signed the same words, but none of them these bytes, or they are equal.
    assert said["signatures"]["signers"] == ["silo-1", "silo-2"]
    assert verified(model, capsys, "--signers", "3")["outcome"] == "not verifiable"


def test_a_signature_that_cannot_be_read_is_a_sentence(model: Path) -> None:
    file = model.with_name(MODEL + SUFFIX)
    text = file.read_text()
    for changed in (text[:-20], text.replace('\\"height\\":', '\\"hight\\":'), "[]", '{"a":1}'):
        file.write_text(changed)
        assert main(["verify", str(model)]) == 4


def test_the_word_on_another_job_counts_for_nothing(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, identities = toy_federation(profile="group")
    silos = federation(tmp_path / "other", plan, identities)
    for number, silo in enumerate(silos.values()):
        other = silo.site.folder / "results" / plan.run_id / (MODEL + SUFFIX)
        shutil.copy(other, model.with_name(f"{number}{SUFFIX}"))
    model.with_name(MODEL + SUFFIX).unlink()
    said = verified(model, capsys, "--signers", "1")
    assert (said["outcome"], said["signatures"]["valid"]) == ("not verifiable", 0)
