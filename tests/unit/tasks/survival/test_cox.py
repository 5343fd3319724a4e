"""Cox regression: against Efron's likelihood of the records, and what it does not say."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cloister import Budget, DPCox, Schema, run_job
from cloister.app.forecast import NO_ROOM, WITHOUT_SITE, forecast_of, site_warnings
from cloister.app.job import make_plan
from cloister.app.release import Release
from cloister.core.arrays import Floats
from cloister.core.errors import PlanError
from cloister.data import read_source
from cloister.data.schema import schema_of
from cloister.federation.settings import PolicySettings
from cloister.federation.silo.policy import Policy
from cloister.protocol.task import PublicColumn
from cloister.tasks.survival import efron
from cloister.tasks.survival.covariate_cells import CovariateCells
from cloister.tasks.survival.cox import Cox
from cloister.tasks.survival.cox_approximate import CoxApproximate
from cloister.testing import SimulatedNoise, ZeroNoise, zero_noise

SCHEMA = Schema(
    dataset="trial",
    unit="row",
    columns=[
        {"name": "months", "type": "number", "min": 0, "max": 60},
        {"name": "died", "type": "boolean"},
        {"name": "age", "type": "number", "min": 20, "max": 80},
        {"name": "treated", "type": "boolean"},
        {"name": "stage", "type": "category", "categories": ["I", "II", "III", "IV"]},
    ],
)
OPTIONS: dict[str, Any] = {"time": "months", "event": "died"}
N = 8000


def patients(n: int = N, seed: int = 11, months: float = 0.0, fading: bool = False) -> pd.DataFrame:
    """Return simulated patients; times are whole `months`, and nobody has the stage IV."""
    rng = np.random.default_rng(seed)
    age, treated = rng.uniform(20, 80, n), rng.random(n) < 0.4
    stage = rng.choice(3, n, p=[0.4, 0.35, 0.25])
    risk = 0.02 * (age - 50) + 0.4 * (stage == 1) + 0.8 * (stage == 2)
    if fading:  # treatment helps at first, and harms later
        early = rng.exponential(30 * np.exp(0.9 * treated - risk))
        dies = np.where(early < 10, early, 10 + rng.exponential(30 * np.exp(-0.5 * treated - risk)))
    else:
        dies = rng.exponential(30 * np.exp(0.5 * treated - risk))
    lost = rng.uniform(5, 59, n)
    time = np.minimum(dies, lost)
    if months:
        time = np.minimum(np.ceil(time / months) * months, 59)
    return pd.DataFrame(
        {
            "months": time,
            "died": dies <= lost,
            "age": age,
            "treated": treated,
            "stage": np.array(["I", "II", "III", "IV"])[stage],
        }
    )


def design(table: pd.DataFrame, names: tuple[str, ...]) -> Floats:
    parts = []
    for name in names:
        if name == "stage":
            parts += [table[name] == level for level in ("II", "III")]
        else:
            parts.append(table[name])
    return np.column_stack(parts).astype(float)


def best(time: Floats, event: Floats, x: Floats, strata: Any = None) -> tuple[Floats, Floats]:
    """Return the maximum of Efron's likelihood, and standard errors."""
    strata = np.zeros(len(time)) if strata is None else np.asarray(strata)
    p = x.shape[1]
    b = np.zeros(p)
    for _ in range(10):
        score, information = np.zeros(p), np.zeros((p, p))
        for stratum in np.unique(strata):
            order = np.flatnonzero(strata == stratum)[::-1]
            order = order[np.argsort(-time[order], kind="stable")]
            e, z = event[order] > 0, x[order]
            products = (z[:, :, None] * z[:, None]).reshape(-1, p * p)
            sums = np.exp(z @ b)[:, None] * np.column_stack([np.ones(len(z)), z, products])
            _, tick = np.unique(-time[order], return_inverse=True)
            later = np.cumsum(sums, axis=0)[np.searchsorted(tick, tick[e], side="right") - 1]
            tied = np.zeros((len(z), sums.shape[1]))
            np.add.at(tied, tick[e], sums[e])
            before = np.arange(e.sum()) - np.searchsorted(tick[e], tick[e])
            part = before / np.bincount(tick[e])[tick[e]]
            each = later - part[:, None] * tied[tick[e]]
            mean = each[:, 1 : p + 1] / each[:, :1]
            score += (z[e] - mean).sum(axis=0)
            spread = (each[:, p + 1 :] / each[:, :1]).sum(axis=0).reshape(p, p)
            information += spread - mean.T @ mean
        b = b + np.linalg.solve(information, score)
    return b, np.sqrt(np.diag(np.linalg.inv(information)))


def released(table: Any, *names: str, noise: Any = None, **changes: Any) -> Release:
    silos = table if isinstance(table, dict) else {"a": table}
    given = {"epsilon": 1e6, "nominal_n": N, "covariates": names, **OPTIONS, **changes}
    schema = given.pop("schema", SCHEMA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        records = {name: read_source(part, schema) for name, part in silos.items()}
        return run_job(Cox, schema, records, delta=1e-6, noise=noise or ZeroNoise(), **given)


def errors(found: Release, table: pd.DataFrame, *names: str, strata: Any = None) -> Floats:
    """Return errors of coefficients for half of a range, in standard errors of sampling."""
    task = found.plan.task
    assert isinstance(task, Cox)
    x = design(table, names)
    value, std = best(table["months"].to_numpy(), table["died"].to_numpy(), x, strata)
    known = found.results["reason"] == 0
    return np.asarray((found.results["coef"][known] - value) / std)


@pytest.mark.parametrize("months", [0.0, 1.0, 6.0, 20.0])
@pytest.mark.parametrize("names", [("treated",), ("stage",), ("treated", "stage")])
def test_without_noise_categories_are_what_efron_says(
    names: tuple[str, ...], months: float
) -> None:
    table = patients(months=months)
    assert np.abs(errors(released(table, *names), table, *names)).max() < 0.05


def test_ticks_of_a_step_are_exact() -> None:
    table = patients(months=1.0)
    months = {"name": "months", "type": "number", "min": 0, "max": 60, "step": 1}
    stepped = Schema(dataset="trial", unit="row", columns=[months, *SCHEMA.columns[1:]])
    found = released(table, "treated", schema=stepped)
    assert found.plan.task._horizon.ends.tolist() == list(range(60))  # type: ignore[attr-defined]
    assert np.abs(errors(found, table, "treated")).max() < 0.02


REAL = {
    "rossi": ("week", "arrest", ("fin", "race", "wexp", "mar", "paro")),
    "lung": ("time", "status", ("sex",)),
    "gbsg2": ("time", "cens", ("horTh", "menostat")),
    "waltons": ("T", "E", ("group",)),
    "leukemia": ("t", "status", ("sex", "Rx")),
    "kidney_transplant": ("time", "death", ("black_male", "white_male", "black_female")),
    "lymphoma": ("Time", "Censor", ("Stage_group",)),
    "larynx": ("time", "death", ("Stage_II", "Stage_III", "Stage_IV")),
}


@pytest.mark.parametrize("name", REAL)
def test_without_noise_real_tables_are_what_lifelines_says(name: str, oracle: Any) -> None:
    lifelines = oracle("lifelines")
    time, event, covariates = REAL[name]
    table = getattr(lifelines.datasets, f"load_{name}")()
    for covariate in covariates:
        x = (table[covariate] == max(table[covariate].unique(), key=str)).astype(float)
        real = pd.DataFrame({"t": table[time].astype(float), "e": table[event] > 0, "x": x})
        columns = [
            {"name": "t", "type": "number", "min": 0, "max": 2 * float(real["t"].max())},
            *({"name": n, "type": "boolean"} for n in "ex"),
        ]
        found = released(
            real.assign(x=x > 0),
            *("x",),
            schema=Schema(dataset="real", unit="row", columns=columns),
            **{"time": "t", "event": "e", "nominal_n": len(real)},
        ).results
        fitted = lifelines.CoxPHFitter().fit(real, "t", "e")
        gap = float(found["coef"][0] - fitted.params_["x"])
        assert abs(gap) < 0.05 * float(fitted.standard_errors_["x"])


@pytest.mark.parametrize(
    "names",
    [("age",), ("age", "stage"), pytest.param(("age", "treated"), marks=pytest.mark.nightly)],
)
def test_without_noise_numbers_are_near_what_efron_says(names: tuple[str, ...]) -> None:
    """Within half of a standard error with 20,000 records, also beside a category."""
    table = patients(20_000)
    assert np.abs(errors(released(table, *names), table, *names)).max() < 0.5


THREE = Schema(
    dataset="trial",
    unit="row",
    columns=[
        *SCHEMA.columns[:-1],
        {"name": "stage", "type": "category", "categories": ["I", "II", "III"]},
    ],
)


def test_a_stratum_has_a_hazard_of_its_own() -> None:
    rng = np.random.default_rng(2)
    table = patients(months=1.0)
    table["stage"] = np.where(rng.random(N) < 0.2 + 0.6 * table["treated"], "II", "I")
    table["months"] = np.where(
        table["stage"] == "II", np.ceil(table["months"] / 3), table["months"]
    )
    found = released(table, "treated", strata="stage")
    assert np.abs(errors(found, table, "treated", strata=table["stage"])).max() < 0.05
    assert np.abs(errors(found, table, "treated")).max() > 1
    assert found.results["horizon"].shape == (4,)
    assert (found.results["horizon"][2:] == 0).all()  # nobody is in these strata


def test_each_silo_can_be_a_stratum() -> None:
    """The hazard of a silo is three times that of the other, which treats more."""
    rng = np.random.default_rng(3)
    table = patients(months=1.0)
    late = rng.random(N) < 0.2 + 0.6 * table["treated"]
    table["months"] = np.where(late, np.ceil(table["months"] / 3), table["months"])
    silos = {"late": table[late], "soon": table[~late]}
    found = released(silos, "treated", strata="site")
    assert np.abs(errors(found, table, "treated", strata=late)).max() < 0.05
    assert np.abs(errors(found, table, "treated")).max() > 1
    assert found.results["horizon"].shape == (2,)
    assert not site_warnings(found.plan)
    for allowed in (True, False):
        policy = Policy(PolicySettings(tasks=("cox",), allow_breakdown=allowed))
        said = any("a breakdown by silo is not allowed" in s for s in policy._what(found.plan))
        assert said is not allowed


def test_silos_that_cannot_be_strata_are_refused() -> None:
    table = patients(400)
    with pytest.raises(PlanError, match="'site' needs two or more silos, got 1; remove it"):
        released(table, "treated", strata="site")
    task = released({"a": table, "b": table}, "treated", strata="site").plan.task
    assert isinstance(task, Cox)
    with pytest.raises(PlanError, match="silo must be one of a, b, got 'c'"):
        task.at_silo("c")
    with pytest.raises(PlanError, match="sites must be the 3 strata"):
        replace(task, n_strata=3)


def test_without_noise_the_population_interval_has_the_standard_error() -> None:
    table = patients()
    found = released(table, "treated", "stage").results
    _, std = best(
        table["months"].to_numpy(), table["died"].to_numpy(), design(table, ("treated", "stage"))
    )
    half = (found["coef_population_high"] - found["coef_population_low"])[:3] / 2
    assert np.allclose(half / 1.96, std, rtol=0.02)


def test_silos_say_bit_for_bit_what_they_say_together() -> None:
    table = patients()
    parts = {"a": table[:7], "b": table[7:2900], "c": table[2900:], "d": table[:0]}
    whole, split = released(table, "age", "treated"), released(parts, "age", "treated")
    for name, value in whole.results.items():
        np.testing.assert_array_equal(split.results[name], value, err_msg=name)


def test_an_unseen_category_is_not_known_and_touches_no_other() -> None:
    table = patients()
    noise = {"epsilon": 1.0, "noise": SimulatedNoise(3)}
    found = released(table, "treated", "stage", **noise)
    assert found.results["reason"].tolist() == [0, 0, 0, 1]
    assert np.isnan(found.results["coef"][3])
    shown = str(found.plan.task.displays(found.results, found.plan.columns))
    assert "not known: too few events of this category" in shown
    without = released(
        table, "treated", "stage", schema=THREE, **noise | {"noise": SimulatedNoise(3)}
    )
    ends = ("coef_population_low", "coef_population_high")
    wide, usual = (of.results[ends[1]][:3] - of.results[ends[0]][:3] for of in (found, without))
    assert np.mean(wide / usual) < 1.1


def test_a_first_category_without_events_leaves_its_column_unknown() -> None:
    table = patients()
    gone = table.assign(stage=table["stage"].replace("I", "IV"))
    found = released(gone, "treated", "stage", epsilon=1.0, noise=SimulatedNoise(3)).results
    assert found["reason"].tolist() == [0, 2, 2, 2]
    rare = table.assign(treated=np.arange(N) < 12)
    assert released(rare, "treated", "stage", epsilon=1.0, noise=SimulatedNoise(3)).results[
        "reason"
    ].tolist() == [1, 0, 0, 1]


def test_an_effect_that_changes_with_time_is_told_with_both_halves() -> None:
    same, other = (
        released(patients(20_000, fading=fading), "treated", epsilon=1.0, noise=SimulatedNoise(5))
        for fading in (False, True)
    )
    assert same.results["effect_changes"].tolist() == [0]
    assert other.results["effect_changes"].tolist() == [1]
    assert other.results["hazard_ratio_early"][0] < 0.6 < 1 < other.results["hazard_ratio_late"][0]
    assert "changes with time" not in str(same.plan.task.displays(same.results, same.plan.columns))
    assert "changes with time" in str(other.plan.task.displays(other.results, other.plan.columns))


def test_a_strong_effect_is_found_and_late_events_of_a_group_that_is_gone_do_no_harm() -> None:
    rng = np.random.default_rng(4)
    treated = rng.random(20_000) < 0.5
    dies = rng.exponential(np.where(treated, 3, 24))
    table = patients(20_000).assign(treated=treated, months=np.minimum(dies, 58), died=dies < 58)
    found = released(table, "treated", epsilon=1.0, noise=SimulatedNoise(1))
    assert np.abs(errors(found, table, "treated")).max() < 8
    low, high = found.results["coef_low"], found.results["coef_high"]
    value, _ = best(
        table["months"].to_numpy(), table["died"].to_numpy(), design(table, ("treated",))
    )
    assert low < value < high


EDGES = {
    "nobody": lambda t: t[:0],
    "one": lambda t: t[:1],
    "all censored": lambda t: t.assign(died=False),
    "all die at once": lambda t: t.assign(died=True, months=0.0),
    "all at the top": lambda t: t.assign(months=60.0),
    "all alike": lambda t: t.assign(age=50.0, treated=True),
    "none treated dies": lambda t: t.assign(died=t["died"] & ~t["treated"]),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("noise", [ZeroNoise, lambda: SimulatedNoise(1)])
@pytest.mark.parametrize("edge", EDGES)
def test_no_records_make_it_say_nothing(edge: str, noise: Any) -> None:
    found = released(EDGES[edge](patients()), "age", "treated", epsilon=1.0, noise=noise())
    results = found.results
    known = results["reason"] == 0
    for name in ("coef", "hazard_ratio", "coef_low", "hazard_ratio_population_high"):
        assert (np.isfinite(results[name]) == known).all()
    assert not known[1] or edge == "all alike"
    assert len(found.plan.task.displays(results, found.plan.columns)) >= 2
    assert found.plan.task.summary(results, found.plan.columns, N, "records").result


BOTH = {"covariates": ("age", "treated", "stage")}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epsilon": 0.05}, "nominal_events must be at least"),
        ({"nominal_events": 50}, "nominal_events must be at least"),
        ({"time": "died", "event": "died"}, "time must be a numeric column"),
        ({"event": "stage"}, "event must be a boolean column"),
        ({"tau": 61.0}, "tau must be in"),
        ({"covariates": ("age", "age")}, "different columns"),
        ({"covariates": ("treated",), "strata": "treated"}, "different columns"),
        ({"covariates": ("height",)}, "covariates must be a column"),
        ({"covariates": ("treated",), "strata": "age"}, "strata must be a column of categories"),
        (BOTH, "at most 18 combinations"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(changes: dict[str, Any], said: str) -> None:
    given = {"covariates": ("treated",), "epsilon": 1.0, **changes}
    with pytest.raises(PlanError, match=said):
        released(patients(), *given.pop("covariates"), **given)


def plan_of(
    kinds: str, epsilon: float, nominal_n: int, silos: tuple[str, ...] = ("a",), **options: Any
) -> Any:
    """Return a plan whose covariates are numbers (n) and yes-no answers (b)."""
    covariates = [
        PublicColumn(f"x{j}", 0.0, 1.0, ("0", "1") if kind == "b" else ())
        for j, kind in enumerate(kinds)
    ]
    columns = (PublicColumn("t", 0.0, 9.0), PublicColumn("e", 0.0, 1.0, ("0", "1")), *covariates)
    about = {"budget": Budget(epsilon, 1e-7), "nominal_n": nominal_n, "time": "t", "event": "e"}
    return make_plan(Cox, schema_of(columns), silos, **about, **options)


def test_the_warning_names_strata_by_site_only_where_they_have_room() -> None:
    """Three yes-no columns have 8 combinations, with room for two silos."""
    for silos, said in ((("a", "b"), WITHOUT_SITE), (("a", "b", "c"), NO_ROOM)):
        plan = plan_of("bbb", 2.0, 20_000, silos)
        assert site_warnings(plan) == (said,)
        assert plan.task.most_sites == 2
    assert plan_of("bbb", 2.0, 20_000, ("a", "b"), strata="site").task.n_strata == 2
    assert "none holds its name" in NO_ROOM
    assert "cox" not in CoxApproximate.without_site
    assert "name of the silo" in CoxApproximate.without_site


def test_each_margin_of_the_forecast_has_its_own_line() -> None:
    table, schema = patients(), THREE
    stages = schema.columns[-1].categories
    plan = released(table, "treated", "stage", schema=schema, epsilon=2.0).plan
    found = forecast_of(plan)
    assert {f"one of {n} categories" for n in (2, len(stages))} <= {
        name.split(" with ")[0].removeprefix("log hazard ratio of ")
        for name in (key.replace("_", " ") for key in found)
    }
    for values in found.values():
        np.testing.assert_allclose(values, values[0], rtol=1e-12)


def test_four_covariates_and_two_numbers_with_much_noise_are_refused() -> None:
    with pytest.raises(PlanError, match=r"at most 3 columns, got 4.*cox-approximate"):
        plan_of("bbbb", 4.0, 10**6)
    for epsilon, n in ((1.0, 10**6), (2.0, 19_999)):
        with pytest.raises(PlanError, match="two covariates of numbers need at least epsilon 2"):
            plan_of("nn", epsilon, n)
    assert plan_of("nn", 2.0, 20_000).task._cells.shape == (4, 4)
    factors = "got 64 .4 of a number x 4 of a number x 4 of a number.; .* cox-approximate"
    with pytest.raises(PlanError, match=f"at most 18 combinations.*{factors}"):
        plan_of("nnn", 4.0, 10**6)
    strata = r"got 24 \(2 x 2 x 2 in 3 strata\).* is a covariate instead of strata"
    with pytest.raises(PlanError, match=strata):
        plan_of("bbb", 4.0, 10**6, silos=("a", "b", "c"), strata="site")
    with pytest.raises(PlanError, match="name fewer covariates or no strata, join"):
        plan_of("bbb", 4.0, 10**6, silos=("a", "b", "c"), strata="site")
    # Without strata there are still 2 x 4 x 4.
    with pytest.raises(PlanError, match=r"got 96 .*; name fewer covariates, join"):
        plan_of("bnn", 4.0, 10**6, silos=("a", "b", "c"), strata="site")
    with pytest.raises(PlanError, match="3 covariates need at least epsilon 2, got 1"):
        plan_of("bbb", 1.9, 10**6)
    assert plan_of("bbb", 2.0, 20_000).task._cells.size == 8


def test_a_number_with_two_covariates_is_warned_of_where_noise_often_hides_it() -> None:
    few = plan_of("nbb", 2.0, 7000)
    (warning,) = few.task.plan_warnings(few, {})
    assert "often not known at epsilon 2 and 7,000 records" in warning
    assert "from epsilon 11 on" in warning
    for plan in (plan_of("nbb", 4.0, 20_000), plan_of("nb", 2.0, 7000), plan_of("bbb", 2.0, 7000)):
        assert not list(plan.task.plan_warnings(plan, {}))


def test_where_nothing_is_known_the_summary_names_ways_out() -> None:
    plan = plan_of("nbb", 4.0, 20_000)
    unknown = np.full(3, np.nan)
    ends = ("", "_low", "_high", "_population_low", "_population_high")
    names = ("coef", "hazard_ratio", "hazard_ratio_early", "hazard_ratio_late")
    results = {f"{name}{end}": unknown for name in names for end in ends}
    results |= {"reason": np.full(3, 3.0), "effect_changes": unknown}
    said = plan.task.summary(results, plan.columns, 20_000, "records")
    assert said.result == ("Hazard ratios are not known.",)
    assert "cox-approximate" in said.reliability


@pytest.mark.parametrize(
    ("levels", "strata", "shape"),
    [
        ((0,), 1, (17,)),
        ((0,), 2, (6,)),
        ((0, 2), 1, (6, 2)),
        ((2, 0, 2), 1, (2, 4, 2)),
        ((0, 0), 1, (4, 4)),
        ((0, 2), 2, (4, 2)),
        ((2, 2, 2), 2, (2, 2, 2)),
        ((18,), 1, (18,)),
    ],
)
def test_cells_are_at_most_eighteen(
    levels: tuple[int, ...], strata: int, shape: tuple[int, ...]
) -> None:
    cells = CovariateCells(levels, strata)
    assert cells.shape == shape
    assert cells.fits
    assert cells.size == strata * np.prod(shape) <= 18
    assert cells.positions.shape[0] == np.prod(shape)


@pytest.mark.parametrize("levels", [(0,), (0, 0), (0, 3)])
def test_shares_of_a_record_add_up_and_keep_its_number(levels: tuple[int, ...]) -> None:
    cells = CovariateCells(levels)
    rng = np.random.default_rng(0)
    one = 1 << 16
    records = rng.integers(-one, one + 1, (500, len(levels))).astype(np.int32)
    found, shares, split = cells.shares(records, np.zeros(500, dtype=np.int64))
    assert (shares >= 0).all()
    assert (shares.sum(axis=0) == 1 << cells.bits).all()
    assert split.max() <= 1 << 10
    kept = np.einsum("kn,knp->np", shares, cells.positions[found]) / (1 << cells.bits)
    numbers = list(cells.numbers)
    assert np.abs(kept[:, numbers] - records[:, numbers] / one).max() <= cells.gap / 128 + 1e-9


@pytest.mark.parametrize("names", [("treated",), ("treated", "stage")])
@pytest.mark.parametrize(("followed_up", "without"), [(6.0, "80%"), (59.0, "10%")])
def test_the_forecast_is_near_what_is_delivered(
    names: tuple[str, ...], followed_up: float, without: str
) -> None:
    table = patients(20_000)
    table["died"] &= table["months"] < followed_up
    table["months"] = table["months"].clip(upper=followed_up)
    found = released(
        table,
        *names,
        schema=SCHEMA if len(names) == 1 else THREE,
        epsilon=1.0,
        noise=SimulatedNoise(2),
        nominal_events=int(table["died"].sum()),
    )
    name = f"50%_of_the_events_if_{without}_stay_without_the_event_half_width"
    planned = forecast_of(found.plan)[f"log_hazard_ratio_of_one_of_2_categories_with_{name}"][0]
    delivered = (found.results["coef_high"][0] - found.results["coef_low"][0]) / 2
    times = table["months"].to_numpy()
    hazard = sum(1 / (times >= time).sum() for time in times[table["died"]])
    planned *= np.hypot(1, hazard) / np.hypot(1, np.log(float(without[:-1]) / 100))
    assert 0.6 < delivered / planned < 1.5


def test_the_estimator_says_what_the_task_says(tmp_path: Any) -> None:
    table = patients()
    given = {"epsilon": 4.0, "bounds": SCHEMA, "nominal_n": N, "delta": 1e-6, **OPTIONS}
    model = zero_noise(DPCox)(covariates=["treated", "stage"], **given).fit(table)
    task = released(table, "treated", "stage", epsilon=4.0).results
    np.testing.assert_array_equal(model.coef_, task["coef"])
    assert list(model.names_) == ["treated", "stage=II", "stage=III", "stage=IV"]
    assert np.allclose(np.exp(model.coef_[:3]), model.hazard_ratios_[:3])
    assert (model.confidence_intervals_[:3, 0] < model.hazard_ratios_[:3]).all()
    assert (model.population_intervals_[:3, 1] > model.confidence_intervals_[:3, 1]).all()
    assert model.wald_p_ < 1e-6
    assert list(model.reasons_) == ["", "", "", "too few events of this category"]
    assert not model.effect_changes_.any()
    assert model.hazard_ratios_early_.shape == model.hazard_ratios_late_.shape == (4,)
    saved = DPCox(covariates=["treated"], **given).fit(table)
    saved.save(tmp_path / "model.json")
    again = DPCox.load(tmp_path / "model.json", bounds=SCHEMA)
    assert (again.coef_ == saved.coef_).all()
    with pytest.raises(PlanError, match="bounds must be a Schema"):
        DPCox(epsilon=1.0, bounds=(0, 1), **OPTIONS).fit(table)


def test_tables_show_a_ratio_for_a_readable_unit() -> None:
    found = released(patients(), "age")
    text = str(found.plan.task.displays(found.results, found.plan.columns))
    assert "age, per 10" in text
    assert "approximate (knots)" in text


def test_a_cell_stops_at_the_start_of_a_block_whatever_happens_in_it() -> None:
    """Otherwise a group would be left out because of its events, which biases the estimate."""
    rng = np.random.default_rng(0)
    exits = rng.poisson(30, (2, 2, 101)).astype(float)
    exits[1, :, 40:] = 0
    table = efron.Table(exits, np.full(2, 20.0))
    blocks = efron.Blocks.of(table, np.ones(2), follow_all=False)
    assert blocks is not None
    last = int(blocks.followed[1].sum())
    assert 0 < last < blocks.followed.shape[1]
    first, after = blocks.cuts[last - 1], blocks.cuts[last]
    moved = exits.copy()
    moved[1, 0, first] += exits[1, 0, first:after].sum()
    moved[1, 0, first + 1 : after] = 0
    again = efron.Blocks.of(replace(table, exits=moved), np.ones(2), follow_all=False)
    assert again is not None
    np.testing.assert_array_equal(again.followed[1, :last], blocks.followed[1, :last])


def test_a_group_that_is_left_out_widens_its_own_interval() -> None:
    exits = np.random.default_rng(0).poisson(30, (2, 2, 101)).astype(float)
    exits[1, :, 40:] = 0
    table = efron.Table(exits, np.full(2, 20.0))
    blocks = efron.Blocks.of(table, np.ones(2), follow_all=False)
    assert blocks is not None
    (share,) = efron._left_out([(table, blocks)], np.array([[-0.5], [0.5]]))
    stop = blocks.cuts[int(blocks.followed[1].sum())]
    assert share == pytest.approx(3 * 20 * table.unit[stop] / exits[1, 0].sum())
    whole = replace(blocks, followed=np.ones_like(blocks.followed))
    assert efron._left_out([(table, whole)], np.array([[-0.5], [0.5]])) == 0
