"""Models of one's own: each client trains where its data are, and the sum is what leaves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.neural_network import MLPClassifier

from cloister import Budget, FederatedLearner, Ledger
from cloister.core.errors import DataError, PlanError
from cloister.estimators.federated_learning import (
    Epsilons,
    LocalUpdate,
    SklearnUpdate,
    epsilons,
    model_digest,
    supplied,
)
from cloister.privacy import accounting
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.tasks.supervised.local_training import NORM
from cloister.testing import ZeroNoise


class Exact(FederatedLearner):
    _new_noise = ZeroNoise


LINEAR = SGDClassifier(loss="log_loss", random_state=0, learning_rate="constant", eta0=0.05)


def clients(count: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(X))
    X = (X[order] - X.mean(axis=0)) / X.std(axis=0)
    return [(X[i::count], y[order][i::count]) for i in range(count)]


def learner(model: Any = LINEAR, kind: Any = Exact, **options: Any) -> Any:
    given = {"epsilon": 2.0, "delta": 1e-5, "rounds": 4, "clip": 5.0, "classes": range(3)}
    return kind(model, **{**given, **options})


@dataclass(frozen=True)
class Pulls:
    """Moves half of the way to the mean of the client's rows."""

    size: int = 3

    def start(self) -> np.ndarray:
        return np.ones(self.size)

    def train(self, parameters: np.ndarray, data: Any) -> np.ndarray:
        return (parameters + np.mean(data, axis=0)) / 2

    def finished(self, parameters: np.ndarray) -> Any:
        return parameters

    def describe(self) -> str:
        return f"pulls of {self.size}"


def test_any_vector_of_parameters_is_averaged() -> None:
    rng = np.random.default_rng(0)
    data = [rng.normal(i, 1, (9, 3)) for i in range(4)]
    fitted = learner(Pulls(), rounds=20, clip=100.0).fit(data)
    assert isinstance(Pulls(), LocalUpdate)
    np.testing.assert_allclose(
        fitted.parameters_, np.mean([part.mean(axis=0) for part in data], axis=0), atol=2e-3
    )
    np.testing.assert_array_equal(fitted.model_, fitted.parameters_)


@pytest.mark.parametrize(
    "model", [LINEAR, MLPClassifier((6,), random_state=0, learning_rate_init=0.02)]
)
def test_without_noise_it_learns_and_predicts(model: Any) -> None:
    data = clients(3)
    fitted = learner(model, rounds=15, clip=50.0, local_epochs=5).fit(data)
    X, y = (np.concatenate(part) for part in zip(*data, strict=True))
    assert (fitted.predict(X) == y).mean() > 0.85
    assert set(fitted.predict(X)) <= {0, 1, 2}
    assert not hasattr(model, "coef_"), "the model that was given stays as it was"


def test_one_client_without_a_limit_is_the_clients_own_training() -> None:
    """Up to the grid of the state: half a step of 2**-16, and the lattice of updates."""
    ((X, y),) = clients(1)
    fitted = learner(rounds=1, clip=1e3).fit([(X, y)])
    local = SklearnUpdate(LINEAR, 4, range(3))
    np.testing.assert_allclose(
        fitted.parameters_, local.train(local.start(), (X, y)), atol=1e3 / NORM + 2**-16
    )


def test_a_regressor_needs_no_classes() -> None:
    rng = np.random.default_rng(0)
    data = [(X := rng.normal(size=(60, 2)), X @ [1.0, -2.0]) for _ in range(3)]
    model = SGDRegressor(random_state=0)
    fitted = learner(model, classes=None, rounds=15, local_epochs=3).fit(data)
    np.testing.assert_allclose(fitted.model_.coef_, [1, -2], atol=0.2)
    with pytest.raises(PlanError, match="classes are required for a classifier"):
        learner(model).fit(data)


def test_noise_is_that_of_the_budget_for_one_client() -> None:
    fitted = learner(Pulls(), FederatedLearner, rounds=4).fit([np.zeros((2, 3))] * 5)
    plan = fitted.plan_
    (block,) = plan.task.blocks(0)
    sigma = gaussian_noise_multiplier(2.0, 1e-5) * math.sqrt(4)
    assert plan.noise_scale(block) == pytest.approx(sigma * NORM, rel=1e-5)
    assert fitted.spent_ == pytest.approx(2.0, rel=1e-4)
    assert "each silo with all of its records is one privacy unit" in plan.describe()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e308])
def test_a_client_that_sends_no_numbers_changes_nothing(bad: float) -> None:
    class Breaks(Pulls):
        def train(self, parameters: np.ndarray, data: Any) -> np.ndarray:
            if np.sum(data) < 0:
                return np.full(self.size, bad)
            return super().train(parameters, data)

    good = [np.full((2, 3), 3.0)]
    poisoned = learner(Breaks(), rounds=3).fit([*good, np.full((2, 3), -1.0)])
    quiet = learner(Breaks(), rounds=3).fit([*good, np.ones((2, 3))])
    assert np.isfinite(poisoned.parameters_).all()
    assert (poisoned.parameters_ > 1).all()
    assert quiet.plan_.length(0) == poisoned.plan_.length(0)


@pytest.mark.parametrize("wrong", ["raises", "shape", "text"])
def test_training_that_fails_at_a_client_stops_nobody(wrong: str) -> None:
    class Fails(Pulls):
        def train(self, parameters: np.ndarray, data: Any) -> Any:
            match wrong:
                case "raises":
                    raise ValueError("the number of a patient is 17")
                case "shape":
                    return np.zeros(self.size + 1)
            return ["a", "b", "c"]

    fitted = learner(Fails(), rounds=2).fit([np.ones((2, 3))] * 3)
    np.testing.assert_array_equal(fitted.parameters_, 1)


def test_a_client_with_one_class_or_no_row_stops_nobody() -> None:
    X, y = clients(1)[0]
    data = [(X[y == 0], y[y == 0]), (X[:0], y[:0]), (X, y)]
    fitted = learner().fit(data)
    assert np.isfinite(fitted.parameters_).all()


def test_an_adversarial_update_is_no_longer_than_the_clip() -> None:
    class Far(Pulls):
        def train(self, parameters: np.ndarray, data: Any) -> np.ndarray:
            return parameters + 1e9 * np.sign(data[0])

    task = learner(Far())._plan(Far(), ("a", "b", "c")).task
    state = {"parameters": np.zeros(3, dtype=np.int64)}
    (row,) = supplied(Far(), np.ones((1, 3)), task)(0, state)
    assert row.dtype == np.int32
    assert 0.999 * NORM**2 < sum(int(v) ** 2 for v in row[0]) <= NORM**2
    added = task.contribute(0, state, row)
    np.testing.assert_array_equal(added, row[0])


def test_a_plan_pins_the_model_and_its_numbers() -> None:
    one = learner()._plan(SklearnUpdate(LINEAR, 4, range(3)), ("a", "b"))
    assert one.task.model in one.describe()
    others = [
        SklearnUpdate(LINEAR, 4, range(3), epochs=2),
        SklearnUpdate(LINEAR, 4, [0, 1, 3]),
        SklearnUpdate(SGDClassifier(loss="log_loss", random_state=1), 4, range(3)),
    ]
    digests = {model_digest(local) for local in others}
    assert len({one.task.model, *digests}) == 4
    assert one.task.model == model_digest(SklearnUpdate(LINEAR, 4, range(3)))


def test_local_and_global_epsilon_are_told_apart() -> None:
    data = [np.zeros((2, 3))] * 4
    of_sum = learner(Pulls(), FederatedLearner, rounds=2).fit(data)
    assert of_sum.epsilons_ == Epsilons(math.inf, pytest.approx(of_sum.spent_))
    alone = learner(Pulls(), FederatedLearner, rounds=2, trust="local").fit(data)
    assert alone.epsilons_.local == pytest.approx(2.0, rel=1e-4)
    assert alone.spent_ == pytest.approx(2.0, rel=1e-4)
    # four times the variance for the same two updates
    assert alone.epsilons_.of_sum == pytest.approx(
        accounting.gdp_epsilon(0.5 / gaussian_noise_multiplier(2.0, 1e-5), 1e-5), rel=1e-3
    )
    shared = learner(Pulls(), FederatedLearner, rounds=2, profile="pairwise").fit(data)
    assert shared.epsilons_.of_sum < 2.0 < shared.epsilons_.local < math.inf


def test_local_noise_is_that_of_two_updates_at_each_client() -> None:
    alone = learner(Pulls(), FederatedLearner, rounds=1, trust="local").fit([np.zeros((2, 3))] * 3)
    (block,) = alone.plan_.task.blocks(0)
    sigma = 2 * NORM * gaussian_noise_multiplier(2.0, 1e-5)
    assert alone.plan_.share_scale(block) == pytest.approx(sigma, rel=1e-5)
    assert alone.plan_.noise_std(block) == pytest.approx(math.sqrt(3) * sigma, rel=1e-5)


def test_sampled_clients_need_less_noise_and_cost_the_budget() -> None:
    data = [np.zeros((2, 3))] * 4
    fitted = learner(Pulls(), FederatedLearner, rate=0.25, rounds=5).fit(data)
    assert 0.99 * 2 < fitted.spent_ <= 2
    whole = learner(Pulls(), FederatedLearner, rounds=5).fit(data)
    (block,) = whole.plan_.task.blocks(0)
    assert fitted.plan_.noise_scale(block) < 0.6 * whole.plan_.noise_scale(block)


def test_a_ledger_of_silos_is_charged() -> None:
    ledger = Ledger(None)
    ledger.open_dataset("phones", cap=Budget(3.0, 1e-5), unit="silo")
    options = {"ledger": ledger, "dataset": "phones"}
    learner(Pulls(), FederatedLearner, **options).fit([np.zeros((2, 3))] * 3)
    assert ledger.spent("phones") == pytest.approx(2.0, rel=1e-4)
    with pytest.raises(PlanError, match="dataset is required"):
        learner(Pulls(), ledger=ledger).fit([np.zeros((2, 3))])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (object(), "partial_fit"),
        (SGDClassifier(), "random_state"),
        (SGDClassifier(random_state=0, average=True), "average"),
    ],
)
def test_models_that_do_not_fit_are_refused(model: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        learner(model).fit(clients(3))


def test_data_of_another_shape_are_refused() -> None:
    (X, y), *others = clients(3)
    for wrong in ([], (X, y)[0], [(X[:, :2], y), *others], [(X, y, y)]):
        with pytest.raises(DataError, match="client"):
            learner().fit(wrong)


def test_a_supplied_vector_of_another_length_is_refused() -> None:
    task = learner(Pulls())._plan(Pulls(), ("a", "b")).task
    state = {"parameters": np.zeros(3, dtype=np.int64)}
    with pytest.raises(PlanError, match="one update of 3 parameters"):
        task.contribute(0, state, np.zeros((1, 4), dtype=np.int32))
    assert (task.contribute(0, state, np.zeros((0, 1), dtype=np.int32)) == 0).all()


def test_epsilons_are_of_gaussian_plans() -> None:
    plan = learner(Pulls())._plan(Pulls(), ("a", "b"))
    assert epsilons(replace(plan)).local == math.inf


# --- PyTorch ---


@pytest.fixture
def torch(oracle: Callable[[str], Any]) -> Any:
    return oracle("torch")


def test_a_torch_module_is_trained(torch: Any) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    before = torch.nn.utils.parameters_to_vector(net.parameters()).clone()
    data = clients(3)
    options = {"classes": None, "clip": 50.0, "local_epochs": 5, "learning_rate": 0.3}
    fitted = learner(net, rounds=10, **options).fit(data)
    X, y = (np.concatenate(part) for part in zip(*data, strict=True))
    assert (fitted.predict(X) == y).mean() > 0.85
    assert (torch.nn.utils.parameters_to_vector(net.parameters()) == before).all()


def test_a_torch_regression_and_one_step_by_hand(torch: Any) -> None:
    net = torch.nn.Linear(2, 1).double()
    X = np.random.default_rng(0).normal(size=(8, 2))
    y = X @ [1.0, 2.0]
    options = {"classes": None, "clip": 50.0, "batch_size": 8, "learning_rate": 0.1}
    fitted = learner(net, rounds=1, **options).fit([(X, y)])
    w = net.weight.detach().numpy()[0]
    error = X @ w + net.bias.item() - y
    slope = 2 * np.array([*(X.T @ error), error.sum()]) / 8
    np.testing.assert_allclose(
        fitted.parameters_, np.array([*w, net.bias.item()]) - 0.1 * slope, atol=2e-4
    )
    assert fitted.predict(X).shape == (8,)


def test_training_again_gives_the_same_update(torch: Any) -> None:
    from cloister.estimators.federated_learning import TorchUpdate

    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    local = TorchUpdate(net)
    (data,) = clients(1)
    np.testing.assert_array_equal(
        local.train(local.start(), data), local.train(local.start(), data)
    )


def test_a_module_with_running_means_is_refused(torch: Any) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    with pytest.raises(PlanError, match="buffers"):
        learner(net, classes=None).fit(clients(2))
