"""``DPKaplanMeier`` and ``DPLogRank``: curves as tables of pandas, and a test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from cloister import DPKaplanMeier, DPLogRank, Schema
from cloister.core.errors import PlanError
from cloister.testing import zero_noise

SCHEMA = Schema(
    dataset="trial",
    unit="row",
    columns=[
        {"name": "months", "type": "number", "min": 0, "max": 60},
        {"name": "died", "type": "boolean"},
        {"name": "drug", "type": "category", "categories": ["old", "new"]},
    ],
)
N = 4000


def trial(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    drug = rng.integers(0, 2, N)
    months, followed = rng.exponential(20 * (1 + 0.6 * drug)), rng.uniform(10, 59, N)
    return pd.DataFrame(
        {
            "months": np.minimum(months, followed),
            "died": months < followed,
            "drug": np.where(drug == 1, "new", "old"),
        }
    )


GIVEN = {"time": "months", "event": "died", "epsilon": 2.0, "bounds": SCHEMA, "nominal_n": N}


def test_a_curve_is_a_table_and_ends_where_nothing_is_known() -> None:
    model = zero_noise(DPKaplanMeier)(by="drug", tau=40, at=(10, 20), **GIVEN)
    model.fit([trial()[::2], trial()[1::2]])
    assert list(model.survival_.columns) == ["old", "new"]
    assert model.survival_.index.name == "months"
    assert model.survival_.index[-1] == 40
    truth = np.exp(-model.survival_.index.to_numpy() / 20)
    np.testing.assert_allclose(model.survival_["old"], truth, atol=0.04)
    assert model.median_["old"] == pytest.approx(20 * np.log(2), rel=0.1)
    assert model.rate_["old"] == pytest.approx(1 / 20, rel=0.1)
    hazard = model.cumulative_hazard_["old"].to_numpy()
    np.testing.assert_allclose(hazard, -np.log(model.survival_["old"]), atol=1e-12)
    assert model.stated_survival_.index.tolist() == [10, 20]
    assert model.stated_survival_["old"].tolist() == model.predict([10, 20])["old"].tolist()
    mean = model.restricted_mean_.loc[20, "old"]
    assert mean == pytest.approx(20 * (1 - np.exp(-1)), rel=0.05)
    few = DPKaplanMeier(**GIVEN).fit(trial()[:30])
    assert few.survival_["all records"].isna().any()
    assert few.rate_.index.tolist() == ["all records"]
    assert few.rate_ratio_.empty


OF = ["survival", "cumulative_hazard", "stated_survival", "restricted_mean", "median", "rate"]


@pytest.mark.parametrize("kind", ["noise", "population"])
@pytest.mark.parametrize("of", [*OF, "rate_ratio"])
def test_intervals_hold_their_values_and_sampling_makes_them_wider(kind: str, of: str) -> None:
    model = DPKaplanMeier(by="drug", tau=40, **GIVEN).fit(trial())
    found = model.interval(kind, of=of)
    if of in OF[:4]:
        assert list(found["new"].columns) == ["value", "low", "high"]
        found = found["new"]
    assert (found["low"] <= found["value"] + 0.02).all()
    assert (found["value"] <= found["high"] + 0.02).all()
    wide, narrow = (model.interval(each, of=of).to_numpy() for each in ("population", "noise"))
    assert wide.shape == narrow.shape
    assert not np.array_equal(wide, narrow, equal_nan=True)
    assert list(model.interval(of="rate_ratio").index) == ["new"]


def test_a_share_holds_up_to_the_next_time_and_beyond_the_horizon_nothing_is_said() -> None:
    model = zero_noise(DPKaplanMeier)(by="drug", tau=40, **GIVEN).fit(trial())
    times, curve = model.survival_.index.to_numpy(), model.survival_["old"].to_numpy()
    place = len(times) // 2
    between = (times[place] + times[place + 1]) / 2
    at = model.predict([0, times[place], between, 41, -1])
    assert at["old"].iloc[:3].tolist() == [1.0, curve[place], curve[place]]
    assert at.iloc[3:].isna().all(axis=None)
    assert model.predict(5.0).shape == (1, 2)


@pytest.mark.parametrize(
    "asked",
    [{"kind": "both"}, {"of": "log_rank"}, {"of": "records"}, {"kind": "noise", "of": "at"}],
)
def test_an_interval_that_was_not_released_is_refused(asked: dict[str, str]) -> None:
    model = zero_noise(DPKaplanMeier)(**GIVEN).fit(trial())
    with pytest.raises(PlanError, match="of must be one of"):
        model.interval(**asked)


def test_the_log_rank_test_says_whether_groups_differ() -> None:
    model = DPLogRank(by="drug", tau=40, **GIVEN).fit(trial())
    assert model.degrees_ == 1
    assert model.p_value_ < 1e-6
    assert model.statistic_ > 25
    assert model.survival_.shape[1] == 2
    alike = trial()
    alike["drug"] = np.random.default_rng(1).permutation(alike["drug"])
    assert zero_noise(DPLogRank)(by="drug", tau=40, **GIVEN).fit(alike).p_value_ > 0.01
    nothing = DPLogRank(by="drug", **GIVEN).fit(trial()[:5])
    assert np.isnan(nothing.p_value_)
    assert np.isnan(nothing.statistic_)
    with pytest.raises(TypeError, match="by"):
        DPLogRank(**GIVEN)


def test_a_model_comes_from_its_file_as_it_was(tmp_path: Path) -> None:
    model = DPLogRank(by="drug", tau=40, **GIVEN).fit(trial())
    model.save(tmp_path / "model.json")
    again = DPLogRank.load(tmp_path / "model.json", bounds=SCHEMA)
    pd.testing.assert_frame_equal(again.survival_, model.survival_)
    assert (again.time, again.event, again.by) == ("months", "died", "drug")
    assert again.p_value_ == model.p_value_
    assert "old" in again._repr_html_()
    DPKaplanMeier(**GIVEN).fit(trial()).save(tmp_path / "alone.json")
    assert np.isnan(DPLogRank.load(tmp_path / "alone.json", bounds=SCHEMA).p_value_)


def test_it_is_an_estimator_like_others() -> None:
    model = DPKaplanMeier(by="drug", tau=40, at=[5, 20], **GIVEN)
    twin = clone(model).fit(trial())
    assert twin.result_.results["at"].tolist() == [5, 20]
    assert twin.to_frame().shape[0] > 0
    assert twin.plot().figure is not None
