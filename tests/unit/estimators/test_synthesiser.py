"""``DPSynthesiser``: words and units of the schema, provenance, intervals, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cloister import DPSynthesiser, PlanError, Schema
from cloister.testing import SimulatedNoise, zero_noise

Exact = zero_noise(DPSynthesiser)
N = 6000
SCHEMA = Schema(
    dataset="clinic",
    unit="row",
    columns=[
        {"name": "age", "type": "integer", "min": 0, "max": 100},
        {"name": "pay", "type": "number", "min": 0, "max": 9e4},
        {"name": "smokes", "type": "boolean"},
        {"name": "born", "type": "date", "min": "1920-01-01", "max": "2000-12-31"},
        {"name": "work", "type": "category", "categories": ["desk", "field", "none"]},
    ],
)


def people(n: int = N, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.integers(20, 80, n)
    days = pd.to_timedelta(rng.integers(0, 360, n), unit="D")
    born = pd.to_datetime((2000 - age).astype(str)) + days
    return pd.DataFrame(
        {
            "age": age,
            "pay": np.where(rng.random(n) < 0.5, 0, 600 * age * rng.uniform(0.9, 1.1, n)),
            "smokes": rng.random(n) < 0.3,
            "born": born.strftime("%Y-%m-%d"),
            "work": rng.choice(["desk", "field", "none"], n),
        }
    )


@pytest.fixture(scope="module")
def model() -> DPSynthesiser:
    silos = [people(N // 2, 1), people(N // 2, 2)]
    return Exact(epsilon=4.0, bounds=SCHEMA, nominal_n=N, random_state=3).fit(silos)


def test_records_have_the_words_and_units_of_the_schema(model: DPSynthesiser) -> None:
    table = model.sample(500)
    assert list(table) == list(SCHEMA.names)
    assert len(table) == 500
    assert table["age"].dtype == np.int64
    assert table["age"].between(0, 100).all()
    assert table["pay"].between(0, 9e4).all()
    assert table["smokes"].dtype == bool
    assert set(table["work"]) == {"desk", "field", "none"}
    assert table["born"].between("1920-01-01", "2001-01-01").all()
    assert len(model.sample()) == N


class Noisy(DPSynthesiser):
    _new_noise = staticmethod(lambda: SimulatedNoise(0))


def test_records_look_like_those_they_were_made_from() -> None:
    model = Noisy(epsilon=4.0, bounds=SCHEMA, nominal_n=N, random_state=3).fit(people(N, 1))
    real, alike = people(N, 1), model.sample()
    assert abs(alike["age"].mean() - real["age"].mean()) < 1
    assert abs((alike["pay"] < 100).mean() - 0.5) < 0.03
    assert abs(alike["smokes"].mean() - 0.3) < 0.03
    years = pd.to_datetime(alike["born"]).dt.year
    assert np.corrcoef(alike["age"], years)[0, 1] < -0.95


def test_draws_are_a_function_of_the_release_and_a_public_seed(model: DPSynthesiser) -> None:
    pd.testing.assert_frame_equal(model.sample(100), model.sample(100))
    assert not model.sample(100).equals(model.sample(100, random_state=5))


def test_what_was_measured_is_said(model: DPSynthesiser) -> None:
    about = model.provenance_
    assert about["note"].startswith("These are not records of people.")
    assert about["epsilon"] == pytest.approx(4.0, rel=1e-3)
    assert about["delta"] == model.delta_
    columns = [table["columns"] for table in about["measured"]]
    assert [(name,) for name in SCHEMA.names] == columns[:5]
    assert any(set(names) == {"age", "born"} for names in columns)
    assert all(table["noise"] >= 0 for table in about["measured"])


def test_a_saved_model_draws_the_same(model: DPSynthesiser, tmp_path: Path) -> None:
    model.save(tmp_path / "model.json")
    again = DPSynthesiser.load(tmp_path / "model.json", bounds=SCHEMA)
    pd.testing.assert_frame_equal(again.sample(50), model.sample(50))
    assert again.structure == "pairs"
    assert again.provenance_ == model.provenance_


def test_intervals_are_of_measured_tables_alone(model: DPSynthesiser) -> None:
    ends = model.intervals("work")
    exact = pd.concat([people(N // 2, 1), people(N // 2, 2)])["work"].value_counts()
    for word in ("desk", "field", "none"):
        assert ends.loc[word, "count"] == pytest.approx(exact[word], abs=1)
        assert ends.loc[word, "share_low"] <= exact[word] / N <= ends.loc[word, "share_high"]
    both = model.intervals(["age", "born"])
    assert both.index.names == ["age", "born"]
    assert both["count"].sum() == pytest.approx(N, abs=1)
    pd.testing.assert_series_equal(
        model.intervals(["born", "age"])["count"].swaplevel().sort_index(),
        both["count"].sort_index(),
    )
    measured = {tuple(sorted(t["columns"])) for t in model.provenance_["measured"]}
    alone = next(p for p in (("pay", "work"), ("smokes", "work")) if p not in measured)
    with pytest.raises(PlanError, match="were not measured together"):
        model.intervals(alone)
    with pytest.raises(PlanError, match=r"columns must be some of .*, got 'height'"):
        model.intervals("height")


@pytest.mark.parametrize(
    "given", [{"structure": "target", "target": "work"}, {"structure": "star", "target": "work"}]
)
def test_a_target_is_in_what_is_measured(given: dict[str, Any]) -> None:
    edges = {"age": (40, 60), "pay": (1, 3e4), "born": (1950.0, 1970.0)}
    model = Exact(epsilon=4.0, bounds=SCHEMA, nominal_n=N, edges=edges, **given).fit(people())
    tables = model.provenance_["measured"][5:]
    assert tables
    assert all("work" in table["columns"] for table in tables)
    ends = model.intervals(["age", "work"])
    assert [*ends.index.unique("age")] == ["below 40", "40 to 60", "60 or more"]
    assert set(model.sample(200)["work"]) <= {"desk", "field", "none"}


def test_plain_numbers_need_no_schema() -> None:
    age = np.random.default_rng(0).uniform(20, 80, 3000)
    table = pd.DataFrame({"age": age, "pay": 500 * age})
    model = Exact(epsilon=1.0, bounds=([0, 0], [100, 50_000]), nominal_n=3000).fit(table)
    alike = model.sample(1000)
    assert alike["age"].corr(alike["pay"]) > 0.9
