"""The names users may rely on; a change here is a change for them and wants a changelog entry."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass

import pytest

import cloister
from cloister import testing
from cloister.core.errors import CloisterError, PlanError
from cloister.tasks import TASKS, installed
from cloister_lab import parties

NAMES = [
    "AccuracyWarning",
    "Baskets",
    "Budget",
    "BudgetExceeded",
    "CloisterError",
    "DPBounds",
    "DPForestRegressor",
    "DPShapesClassifier",
    "DPShapesRegressor",
    "DPCox",
    "DPCoxApproximate",
    "DPTreatmentEffect",
    "DPKMeans",
    "DPKaplanMeier",
    "DPGeneralizedLinearRegressor",
    "DPLinearRegression",
    "DPLogRank",
    "DPLogisticRegression",
    "DPNaiveBayes",
    "DPOutlierDetector",
    "DPPCA",
    "DPRandomForestClassifier",
    "DPScorecard",
    "DPSiloEnsemble",
    "DPStandardScaler",
    "DPSynthesiser",
    "DPTable",
    "DataError",
    "DataLossWarning",
    "FederatedLearner",
    "Horizon",
    "Job",
    "Ledger",
    "LinkedTable",
    "Plan",
    "PlanError",
    "PrivacyWarning",
    "Schema",
    "cluster_quality",
    "dp_describe",
    "dp_quantiles",
    "dp_statistics",
    "dp_table1",
    "evaluate",
    "make_plan",
    "mine_rules",
    "run_job",
    "select_k",
]


def public(module: object) -> list[str]:
    """Return the names a module defines itself and does not hide."""
    assert inspect.ismodule(module)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    )


def test_the_public_names_are_these() -> None:
    assert sorted(cloister.__all__) == sorted(NAMES)
    assert len(set(cloister.__all__)) == len(cloister.__all__)
    assert dir(cloister) == sorted(NAMES)
    assert len(NAMES) == 48


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_resolves_and_says_what_it_is(name: str) -> None:
    value = getattr(cloister, name)
    assert getattr(cloister, name) is value
    assert (value.__doc__ or "").strip()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Masker"):
        _ = cloister.Masker


def test_the_tasks_that_ship_are_these() -> None:
    assert sorted(TASKS) == [
        "apriori",
        "auto",
        "bounds",
        "cluster-quality",
        "count",
        "cox",
        "cox-approximate",
        "describe",
        "discretise",
        "evaluation",
        "fastlloyd",
        "fedavg",
        "fedavg-regression",
        "forest",
        "forest-regression",
        "glloyd",
        "glm",
        "imputed-regression",
        "linear",
        "lloyd",
        "logistic",
        "naive-bayes",
        "outliers",
        "pca",
        "pipeline",
        "quantiles",
        "regression-evaluation",
        "scorecard",
        "selectk",
        "shapes",
        "shapes-regression",
        "standardise",
        "statistics",
        "sulloyd",
        "survival",
        "synthesise",
        "table1",
        "tabulate",
        "treatment-effect",
    ]
    for name, task in TASKS.items():
        assert task.name == name
        assert is_dataclass(task)
        assert task.__dataclass_params__.frozen
    assert [name for name, task in TASKS.items() if not task.private] == ["lloyd"]


def test_the_tasks_of_the_laboratory_are_these() -> None:
    of_lab = {name: task for name, task in installed().items() if name not in TASKS}
    assert sorted(of_lab) == [
        "balcan",
        "dpem",
        "eugkm",
        "feddp-init",
        "hybrid",
        "kmeans-guarantee-dp",
        "lshtree",
        "maxcover-histogram",
        "one-round",
        "subcluster-dp",
    ]
    for task in of_lab.values():
        assert task.private
        assert task.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_names_of_the_step_level_shim() -> None:
    assert public(parties) == [
        "GroupKey",
        "MaskedClient",
        "Params",
        "Server",
        "UnmaskedClient",
        "new_key",
    ]
    names = [field.name for field in fields(parties.Params)]
    assert names[:6] == ["k", "dim", "num_clients", "iters", "dp", "epsilon"]


def test_names_of_the_testing_kit() -> None:
    assert testing.ZeroNoiseKMeans.__name__ == "ZeroNoiseKMeans"  # made when it is asked for
    assert public(testing) == [
        "Faults",
        "SimulatedNoise",
        "Wire",
        "ZeroNoise",
        "check_task",
        "check_transport",
        "hostile_states",
        "outside_the_box",
        "rerun",
        "serve",
        "toy_federation",
        "toy_plan",
        "toy_records",
        "toy_schema",
        "toy_task",
        "zero_noise",
        "zero_noise_command",
    ]
    assert issubclass(testing.ZeroNoiseKMeans, cloister.DPKMeans)  # made when it is asked for


def test_every_error_is_ours_and_says_so() -> None:
    for name in NAMES:
        value = getattr(cloister, name)
        if inspect.isclass(value) and issubclass(value, Exception):
            assert issubclass(value, CloisterError | Warning)
    assert issubclass(PlanError, ValueError)


@pytest.mark.parametrize(
    "function",
    [
        cloister.DPKMeans,
        cloister.run_job,
        cloister.Budget,
        cloister.make_plan,
    ],
    ids=lambda function: function.__name__,
)
def test_epsilon_has_no_default_anywhere(function: object) -> None:
    parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
    name = "budget" if "budget" in parameters else "epsilon"
    assert parameters[name].default is inspect.Parameter.empty


@pytest.mark.parametrize(
    "name", ["DiscreteNoise", "new_key", "new_nonce", "SecretStream", "Server"]
)
def test_secret_randomness_takes_no_seed(name: str) -> None:
    from cloister.core import randomness
    from cloister.privacy import noise

    home = next(m for m in (noise, randomness, parties) if hasattr(m, name))
    parameters = inspect.signature(getattr(home, name)).parameters
    assert not [p for p in parameters if "seed" in p or "state" in p or p == "rng"]
