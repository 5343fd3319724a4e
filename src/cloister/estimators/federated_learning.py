"""Federated learning of a user's model: scikit-learn, PyTorch, or any vector of parameters.

A plan contains no code. It pins a digest of the model and all public numbers. Each silo runs its
training function and passes the update to the protocol, see :func:`supplied`. Each silo with all of
its data is one privacy unit.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone, is_regressor
from sklearn.utils.validation import check_is_fitted

from cloister.app.in_process import run_plan
from cloister.app.progress import round_bar
from cloister.app.release import Release
from cloister.core.arrays import Floats, GridState, Records
from cloister.core.errors import DataError, PlanError, choosing
from cloister.core.randomness import public_generator
from cloister.data import is_frame, read_floats
from cloister.estimators.base import Explained
from cloister.estimators.release import account_of
from cloister.estimators.results import ReleaseMixin
from cloister.estimators.tables import declared_classes, matched
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.privacy import accounting
from cloister.privacy.budget import Budget, default_delta
from cloister.privacy.events import ComposedEvent, Event, GaussianEvent, SampledGaussianEvent
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.plan import Plan
from cloister.protocol.task import PublicFacts
from cloister.tasks.supervised.fedavg import ClientUpdates, Trust
from cloister.tasks.supervised.local_training import clipped

_NUMBERS = ("clip", "rate", "growth", "server_rate", "momentum")


@runtime_checkable
class LocalUpdate(Protocol):
    """The training of a silo: a common start, and a function of parameters and data."""

    def start(self) -> Floats:
        """Return the public parameters before the first round, one vector."""

    def train(self, parameters: Floats, data: Any) -> Floats:
        """Return the parameters after training on one silo's data.

        The same arguments must give the same result, because a restarted silo repeats its answers.
        """

    def finished(self, parameters: Floats) -> Any:
        """Return the model with these parameters."""

    def describe(self) -> str:
        """Return a description with all public numbers; the digest in a plan covers it."""


def supplied(
    local: LocalUpdate, data: Any, task: ClientUpdates
) -> Callable[[int, GridState], list[Records]]:
    """Return the `records` of a silo's :class:`~cloister.protocol.client.Client`.

    Parameters
    ----------
    local : LocalUpdate
    data : object
        The data of the silo, as ``local.train`` expects them.
    task : ClientUpdates
        Task of the plan.

    Returns
    -------
    function of round and public state
        Computes the silo's update and clips it to the plan's length. Training that raises, or whose
        result is not finite, gives no update. So the data can neither stop a job nor become visible
        in its failure.
    """
    start = local.start()

    def update(t: int, state: GridState) -> list[Records]:
        parameters = start + from_grid(state["parameters"], task.frac_bits)
        try:
            trained = np.asarray(local.train(parameters.copy(), data), dtype=np.float64)
            change = trained.ravel() - parameters
        except Exception:  # an exception here would disclose a fact about the silo's data
            change = np.full(len(parameters), np.nan)
        return [clipped(change[None], task.clip).astype(np.int32)]

    return update


def model_digest(local: LocalUpdate) -> str:
    """Return the digest of a model in a plan: SHA-256 of its description and its start."""
    start = np.ascontiguousarray(local.start(), dtype="<f8")
    # The zero byte separates description and start.
    return hashlib.sha256(local.describe().encode() + b"\0" + start.tobytes()).hexdigest()


@dataclass(frozen=True)
class Epsilons:
    """The local and the global guarantee of a plan, composed over all rounds at its delta.

    Parameters
    ----------
    local : float
        Epsilon of one silo's updates for an observer who sees them without mask, between any two
        data sets of the silo. Infinite if silos add no noise.
    of_sum : float
        Epsilon of the sums with the noise of all silos, for an observer who sees only these.
    """

    local: float
    of_sum: float


def epsilons(plan: Plan) -> Epsilons:
    """Return the local and the global epsilon of a plan with Gaussian noise."""
    if plan.budget is None or plan.task.mechanism != "gaussian":
        raise PlanError(
            f"epsilons need a plan with Gaussian noise, got one of task {plan.task.name!r}."
        )
    blocks = [block for t in range(plan.rounds) for block in plan.task.blocks(t)]
    # Then each silo's noise satisfies the guarantee by itself.
    alone = bool(getattr(plan.task, "alone", False))

    def composed(noise: Callable[[Any], float], factor: float, rate: float) -> float:
        events: list[Event] = []
        for block in blocks:
            ratio = noise(block) / (factor * plan.group_size * sqrt(block.l2_squared))
            # A secret coin amplifies privacy only for observers who do not know it.
            events.append(GaussianEvent(ratio) if rate == 1 else SampledGaussianEvent(ratio, rate))
        assert plan.budget is not None
        return accounting.epsilon(ComposedEvent(tuple(events)), plan.budget.delta)

    local = math.inf
    if plan.profile == "pairwise":  # two updates may differ by twice the clipping norm
        local = composed(plan.share_scale, 1 if alone else 2, 1.0)
    elif plan.profile == "local" and alone:
        local = composed(plan.noise_std, 1, 1.0)
    return Epsilons(local, composed(plan.noise_std, 1, plan.rate))


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedLearner(ReleaseMixin, Explained, BaseEstimator):
    """Train one model over silos that keep their data, with a guarantee for each silo as a whole.

    All silos run in this process. Over a network, each silo passes :func:`supplied` to its client
    of the protocol (see the how-to page).

    Parameters
    ----------
    model : scikit-learn estimator with ``partial_fit``, torch.nn.Module or LocalUpdate
        Its parameters before training are public.
    epsilon : float, > 0
        Privacy budget for adding or removing one silo with all of its data.
    delta : float, optional
    rounds : int
    clip : float, > 0
        Largest L2 norm of a silo's update, in the units of the parameters.
    rate : float in (0, 1]
        Probability that a silo contributes to a round, decided by its secret coin.
    growth, server_rate, momentum, trust
        As in :class:`~cloister.tasks.supervised.fedavg.FedAvg`. With ``trust="local"`` epsilon
        holds for each silo's update alone.
    classes : sequence, optional
        Public labels, required for a scikit-learn classifier; a boolean y needs none.
    local_epochs : int, >= 1
        Number of passes of a silo over its data in a round.
    batch_size, learning_rate, loss
        Parameters of local training with PyTorch, by plain gradient steps. By default, `loss` is
        cross entropy for integer labels and squared error for others.
    profile : {"group", "pairwise"}
    ledger : Ledger or path, optional
        Its data set must have the unit "silo".
    dataset : str, optional
        Name of the data set to charge, required with a ledger.
    public_seed : int
        Seed of the order of batches.

    Attributes
    ----------
    model_ : object
        A trained copy of `model`.
    parameters_ : ndarray
    result_ : Release
    plan_ : Plan
    spent_, delta_ : float
    epsilons_ : Epsilons
        Epsilon of one silo's updates alone, and of the sums.

    Notes
    -----
    A guarantee for whole silos needs many silos: the noise of a round is
    ``clip * noise_multiplier / (rate * n_silos)`` in every parameter.
    """

    _new_noise: ClassVar[Callable[[], NoiseSource]] = DiscreteNoise
    _reasons: ClassVar[Mapping[str, str]] = {
        "max_iter": "rounds is the number of releases, local_epochs that of passes at a silo"
    }

    model: Any = field(kw_only=False)
    epsilon: float
    delta: float | None = None
    rounds: int = 10
    clip: float = 1.0
    rate: float = 1.0
    growth: float = 1.0
    server_rate: float = 1.0
    momentum: float = 0.0
    trust: Trust = "sum"
    classes: Any = None
    local_epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 0.1
    loss: Any = None
    profile: Literal["group", "pairwise"] = "group"
    ledger: Any = None
    dataset: str | None = None
    public_seed: int = 0

    def fit(self, clients: Sequence[Any], y: Any = None) -> FederatedLearner:
        """Train over silos.

        Parameters
        ----------
        clients : sequence of (X, y)
            The data of each silo; for a LocalUpdate, the data that its ``train`` expects. Their
            number is public.
        y : None
            Must be None, because `clients` contain the labels.
        """
        if y is not None or not isinstance(clients, list | tuple) or not clients:
            raise DataError(
                "clients must be a list with the data (X, y) of each silo, and y must be None."
            )
        clients = _numbers_by_name(clients)
        local = self._local(clients)
        # Generated names, because clients in one process have none.
        names = tuple(f"client-{i}" for i in range(len(clients)))
        plan = self._plan(local, names)
        task = plan.task
        assert isinstance(task, ClientUpdates)
        updates = {
            name: supplied(local, data, task) for name, data in zip(names, clients, strict=True)
        }
        with round_bar() as on_round:
            self.result_: Release = run_plan(
                plan,
                updates,
                noise=type(self)._new_noise(),
                account=account_of(self.ledger, self.dataset),
                on_round=on_round,
            )
        self.plan_ = self.result_.plan
        self.spent_ = self.result_.epsilon()
        self.delta_ = plan.budget.delta if plan.budget else 0.0
        # Both, because they hold for different observers.
        self.epsilons_ = epsilons(self.plan_)
        self.parameters_: Floats = local.start() + self.result_.results["parameters"]
        self.model_ = local.finished(self.parameters_)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the trained model's prediction of some rows.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
            For a PyTorch model with several outputs, the index of the largest.
        """
        check_is_fitted(self, "model_")
        if _is_torch(self.model):
            return _torch_predictions(self.model_, X)
        return np.asarray(self.model_.predict(X))

    def _plan(self, local: LocalUpdate, names: tuple[str, ...]) -> Plan:
        budget = Budget(self.epsilon, default_delta(None) if self.delta is None else self.delta)
        start = np.asarray(local.start())
        task = ClientUpdates.design(
            PublicFacts(n_features=1, nominal_n=len(names), budget=budget, silos=names),
            ClientUpdates.Options(
                length=len(start),
                model=model_digest(local),
                rounds=self.rounds,
                trust=self.trust,
                **{name: float(getattr(self, name)) for name in _NUMBERS},
            ),
        )
        # With trust="local" each silo's noise protects its update even if all others collude.
        alone = task.alone and len(names) > 1
        return Plan(
            task=task,
            silos=names,
            grid=Grid((-float(self.clip),), (float(self.clip),), task.frac_bits),
            columns=("update",),
            budget=budget,
            nominal_n=len(names),
            min_silos=len(names) if alone else 0,
            profile="local" if len(names) == 1 else "pairwise" if alone else self.profile,
            collusion=len(names) - 1 if alone else 0,
            unit="silo",
        )

    def _local(self, clients: Sequence[Any]) -> LocalUpdate:
        """Return the local training for the type of the model."""
        if isinstance(self.model, LocalUpdate):
            return self.model
        widths = {np.shape(client[0])[1:] for client in clients if len(client) == 2}
        if len(widths) != 1 or any(len(client) != 2 for client in clients):
            raise DataError("every client must be a pair (X, y), with the same columns in X.")
        if _is_torch(self.model):
            return TorchUpdate(
                self.model,
                self.loss,
                self.local_epochs,
                self.batch_size,
                self.learning_rate,
                self.public_seed,
            )
        # Only partial_fit continues from given parameters.
        if not hasattr(self.model, "partial_fit"):
            raise PlanError(
                "model must be a scikit-learn estimator with partial_fit, a torch.nn.Module or a "
                f"LocalUpdate, got {type(self.model).__name__}."
            )
        ((width,),) = widths
        classes = self.classes
        if not is_regressor(self.model):
            classes = declared_classes([y for _, y in clients], classes)
        return SklearnUpdate(self.model, int(width), classes, self.local_epochs)


def _numbers_by_name(clients: Sequence[Any]) -> list[Any]:
    """Return the clients as arrays of numbers if all tables have column names, matched by name.

    A record without a number in some cell is left out. Other data are returned unchanged.
    """
    pairs = [client for client in clients if isinstance(client, tuple) and len(client) == 2]
    if len(pairs) < len(clients) or not all(is_frame(X) for X, _ in pairs):
        return list(clients)
    tables, names, _ = matched([X for X, _ in pairs])
    arrays = []
    for table, (_, y) in zip(tables, pairs, strict=True):
        rows = read_floats(table, names)
        usable = np.isfinite(rows).all(axis=1)
        arrays.append((rows[usable], np.asarray(y)[usable]))
    return arrays


@dataclass(frozen=True)
class SklearnUpdate:
    """Training by ``partial_fit`` of a linear SGD model or a perceptron of scikit-learn.

    The model must not be averaged, and its `random_state`, if any, must be an integer. `classes`
    are None for a regressor.
    """

    model: Any
    n_features: int
    classes: Any
    epochs: int = 1
    _template: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parameters = self.model.get_params()
        if parameters.get("average") or not isinstance(parameters.get("random_state", 0), int):
            raise PlanError(
                "model must have an integer random_state, which is public, and average=False, "
                f"since averaging keeps a second state; got {type(self.model).__name__} with other "
                "values."
            )
        if (self.classes is None) != is_regressor(self.model):
            raise PlanError(
                "classes are required for a classifier; omit them for a regressor"
                f"{choosing('classes')}."
            )
        # A frozen dataclass has no other way to set a derived field.
        object.__setattr__(self, "_template", self._public_start())

    def _public_start(self) -> Any:
        """Return the model after a step on public rows of zeros, which creates its parameters."""
        labels = np.zeros(2) if self.classes is None else np.asarray(self.classes)
        rows = np.zeros((len(labels), self.n_features))
        model = self._step(clone(self.model), rows, labels)
        for name in _parameter_names(model):
            value = getattr(model, name)
            if name in ("coef_", "intercept_"):  # a linear model needs no random start
                setattr(model, name, np.zeros_like(value))
        return model

    def _step(self, model: Any, X: Any, y: Any) -> Any:
        if self.classes is None:
            return model.partial_fit(X, y)
        return model.partial_fit(X, y, classes=np.asarray(self.classes))

    def start(self) -> Floats:
        """Return zeros for a linear model, and seeded parameters for another."""
        return _to_vector(self._template)

    def train(self, parameters: Floats, data: Any) -> Floats:
        """Return the parameters after some passes over the data."""
        X, y = data
        model = self.finished(parameters)
        for _ in range(self.epochs):
            self._step(model, np.asarray(X, dtype=np.float64), y)
        return _to_vector(model)

    def finished(self, parameters: Floats) -> Any:
        """Return the estimator with these parameters."""
        # A copy, since rounds of several silos in one process use the same template.
        model, place = deepcopy(self._template), 0
        for name in _parameter_names(model):
            value = getattr(model, name)
            arrays = value if isinstance(value, list) else [value]
            new = []
            for array in arrays:
                shape, size = np.shape(array), np.size(array)
                entries = parameters[place : place + size]
                new.append(np.ascontiguousarray(entries.reshape(shape), dtype=np.float64))
                place += size
            setattr(model, name, new if isinstance(value, list) else new[0])
        return model

    def describe(self) -> str:
        """Return the name of the estimator with its hyperparameters."""
        parameters = sorted(self.model.get_params().items())
        labels = None if self.classes is None else [str(c) for c in self.classes]
        return f"{type(self.model).__name__}({parameters}), classes {labels}, {self.epochs} epochs"


def _parameter_names(model: Any) -> tuple[str, ...]:
    for names in (("coef_", "intercept_"), ("coefs_", "intercepts_")):
        if all(hasattr(model, name) for name in names):
            return names
    raise PlanError(
        "model must have its parameters in coef_ and intercept_, or coefs_ and intercepts_; wrap "
        f"{type(model).__name__} in a LocalUpdate."
    )


def _to_vector(model: Any) -> Floats:
    vectors: list[Floats] = []
    for name in _parameter_names(model):
        value = getattr(model, name)
        vectors += [np.ravel(v) for v in (value if isinstance(value, list) else [value])]
    return np.concatenate(vectors).astype(np.float64)


@dataclass(frozen=True)
class TorchUpdate:
    """Training of a PyTorch module by plain gradient steps over batches.

    The module must have no buffers: running means of batches would be state without a bound.
    """

    module: Any
    loss: Any = None
    epochs: int = 1
    batch_size: int = 32
    rate: float = 0.1
    public_seed: int = 0

    def __post_init__(self) -> None:
        # Integer buffers, such as counters, hold no values of records.
        if any(buffer.is_floating_point() for buffer in self.module.buffers()):
            raise PlanError(
                "model must have no buffers of numbers, such as those of batch norm; use layers "
                "without state of a batch, such as group norm."
            )

    def start(self) -> Floats:
        """Return the current parameters of the module."""
        return _torch_vector(self.module)

    def train(self, parameters: Floats, data: Any) -> Floats:
        """Return the parameters after some passes over the data."""
        import torch

        module = self.finished(parameters).train()
        kind = next(module.parameters()).dtype
        X = torch.as_tensor(np.asarray(data[0]), dtype=kind)
        labels = np.asarray(data[1])
        integers = labels.dtype.kind in "iub"
        y = torch.as_tensor(labels.astype(np.int64) if integers else labels)
        y = y if integers else y.to(kind)
        loss = self.loss or (torch.nn.CrossEntropyLoss() if integers else torch.nn.MSELoss())
        optimiser = torch.optim.SGD(module.parameters(), lr=self.rate)
        rng = public_generator(self.public_seed, "batches")
        # Seeded, for example for dropout, because a restarted silo must repeat its update.
        with torch.random.fork_rng():
            torch.manual_seed(self.public_seed)
            for _ in range(self.epochs):
                order = torch.as_tensor(rng.permutation(len(X)))
                for batch in order.split(self.batch_size):
                    optimiser.zero_grad()
                    output = module(X[batch])
                    output = output if integers else output.reshape(y[batch].shape)
                    loss(output, y[batch]).backward()
                    optimiser.step()
        return _torch_vector(module)

    def finished(self, parameters: Floats) -> Any:
        """Return a copy of the module with these parameters."""
        import torch

        module = deepcopy(self.module)
        kind = next(module.parameters()).dtype
        vector = torch.as_tensor(parameters).to(kind)
        torch.nn.utils.vector_to_parameters(vector, module.parameters())
        return module

    def describe(self) -> str:
        """Return the module, its shapes and the numbers of its training as text."""
        shapes = [(name, tuple(value.shape)) for name, value in self.module.named_parameters()]
        numbers = (self.epochs, self.batch_size, self.rate, self.public_seed)
        return f"{self.module!r} {shapes} loss {self.loss!r} {numbers}"


def _is_torch(model: Any) -> bool:
    """Return True for a module of PyTorch, without an import of PyTorch."""
    torch = sys.modules.get("torch")  # a module can exist only after the import
    return torch is not None and isinstance(model, torch.nn.Module)


def _torch_vector(module: Any) -> Floats:
    import torch

    parameters = torch.nn.utils.parameters_to_vector(module.parameters())
    vector: Floats = parameters.detach().cpu().numpy().astype(np.float64)
    return vector


def _torch_predictions(module: Any, X: Any) -> NDArray[Any]:
    import torch

    # Without dropout, so that a prediction is repeatable.
    module.eval()
    with torch.no_grad():
        kind = next(module.parameters()).dtype
        output = module(torch.as_tensor(np.asarray(X), dtype=kind)).cpu().numpy()
    several = output.ndim == 2 and output.shape[1] > 1
    return np.asarray(output.argmax(axis=1) if several else output.reshape(len(output)))
