"""The document of coefficients, which other languages read: its vectors and its place."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister.cli import main
from cloister.tasks.regression.formula import Formula
from cloister.tasks.regression.parse import parse_formula

HERE = Path(__file__).parent
VECTORS = HERE.parents[1] / "r" / "tests" / "testthat" / "vectors"


def _load() -> Any:
    """Import the script beside this file; tests are no package."""
    spec = importlib.util.spec_from_file_location("vectors", HERE / "coefficient_vectors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


made = _load()


def same(one: Any, other: Any) -> bool:
    """Compare JSON whose numbers may differ in their last digits, as between processors."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return other == pytest.approx(one, rel=1e-6, abs=1e-9)
    return bool(one == other)


@pytest.mark.skipif(not VECTORS.is_dir(), reason="the package of R is not in this copy")
@pytest.mark.parametrize("name", made.NAMES)
def test_the_vectors_are_those_that_the_package_of_r_reads(name: str) -> None:
    kept = json.loads((VECTORS / f"{name}.json").read_text())
    assert same(json.loads(made.text_of(made.vector(name))), kept)
    of = kept["coefficients"]
    assert of["contract"] == 1
    assert [one is not None for one in of["coef"]] == of["known"]
    assert not all(of["known"])
    matrix = np.array(of["noise_cov"], dtype=float)  # null is not a number
    assert (np.isfinite(np.diag(matrix)) == of["known"]).all()
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-6)


@pytest.mark.skipif(not VECTORS.is_dir(), reason="the package of R is not in this copy")
def test_the_formulas_that_the_package_of_r_writes_are_read() -> None:
    for text in json.loads((VECTORS / "formulas.json").read_text()).values():
        assert Formula.from_dict(parse_formula(text).to_dict()) == parse_formula(text)


def test_a_run_writes_coefficients_if_its_task_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = tmp_path / "schema.toml"
    schema.write_text(made.SCHEMA.to_toml())
    files = [tmp_path / f"{silo}.csv" for silo in made.SILOS]
    for at, path in enumerate(files):
        made.table(at).to_csv(path, index=False)
    common = ["run", *map(str, files), "--schema", str(schema), "--epsilon", "1", "--json"]
    common += ["--nominal-n", "6000", "--ledger", str(tmp_path / "l.db"), "--cap-epsilon", "9"]
    for task, options in {"glm": ["--set", "formula=ill ~ age"], "count": []}.items():
        out = str(tmp_path / task)
        settings = [*options, "--set", "family=binomial"] if options else []
        assert main([*common, "--task", task, *settings, "--out", out]) == 0
        document = json.loads(capsys.readouterr().out)
        found = document.get("coefficients")
        assert (found is not None) == (task == "glm")
        if found:
            assert (found["family"], found["link"], found["target"]) == ("binomial", "logit", "ill")
            assert found["digest"] == document["plan_digest"]
            assert "random_intercept" not in found
