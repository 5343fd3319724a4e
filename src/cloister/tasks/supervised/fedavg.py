"""Federated averaging with a guarantee for every privacy unit, for all possible records.

A unit is a record, all records of a silo, or those of a silo with one value of a column; plans call
them `clients`. In each round the public model is trained on the records of every unit. The change
of the parameters is clipped to a public length. Only the noised sum of these updates is released.
It is divided by a public number of units, never by the real number.

References
----------
.. [MRTZ18] McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language
   Models", ICLR 2018, Algorithm 1: bounded updates and a fixed denominator.
.. [ATMR21] Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private Learning with Adaptive
   Clipping", NeurIPS 2021, Algorithm 1: a clip that follows a released quantile.
.. [ACGMMTZ16] Abadi et al., "Deep Learning with Differential Privacy", CCS 2016: sampled rounds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, inf, isqrt, sqrt
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import (
    AtLeastZero,
    PartBelowOne,
    Positive,
    Range,
    Share,
    Whole,
    declared,
)
from cloister.core.display import Curve, Display, Estimate, Heatmap, bare
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import sampled_noise_multiplier
from cloister.protocol.task import (
    INTERVAL_95,
    Block,
    Gaussian,
    NoisyBlock,
    PublicColumn,
    PublicFacts,
)
from cloister.tasks.columns import Encoding, categories_of, codes, position
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.intervals import round_up
from cloister.tasks.options import (
    PublicSeed,
    Target,
    build_task,
    noise_multiplier_for,
    require_budget,
)
from cloister.tasks.state import decode_state, encode_state
from cloister.tasks.supervised.local_training import (
    LATTICE_BITS,
    NORM,
    Network,
    alike,
    bounded,
    clipped,
)
from cloister.tasks.supervised.target import check_classes, check_columns, check_number

Trust = Literal["sum", "local"]
"""The place where noise must suffice: in the sum of all updates, or in the vector of each silo."""

STAGES = 4
"""Number of budgets of a round; few, since each of them is priced separately."""

_FARTHEST = float(1 << 20)  # largest parameter: noise is unbounded, and the state must fit the grid
_ROUNDS, _FEW_ROUNDS = 20, 8
_VOTE = NORM >> 3  # whether an update is shorter than the clip; with it, noise grows by 0.8 %
_CLIP_STEP = 1.4  # largest change of the logarithm of the clip, in the first round; it falls to 0
_LEAST_CLIP, _MOST_CLIP = 2.0**-10, 2.0**10  # of an adaptive one, which is on the grid
_MUCH_NOISE = 0.1  # noise of a round, relative to the largest sum of all updates


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The public state, in the units of the parameters."""

    parameters: Floats
    velocity: Floats
    update: Floats  # the noisy mean update of the last round
    half_width: float = 0.0  # of its entries
    lengths: Floats  # of the mean updates of all rounds
    noise_lengths: Floats  # the mean length of noise alone


@declared
class _Averaging(Gaussian, ABC):
    """Rounds of noised sums of bounded updates, and the server's step.

    Parameters
    ----------
    clients : str
        The privacy unit: "row", "silo" or a column; see
        :class:`~cloister.protocol.task.UnitTask`.
    n_clients : int, >= 1
        Public number of units in all silos together: with `rate`, the denominator of the mean.
    noise_multiplier : float
        Computed by ``design`` if `rate` is below 1.
    trust : {"sum", "local"}
        If "local", each silo is one unit, its own noise hides all of its records, and the noise of
        all silos is in the result. It is for comparison, as it needs very many silos.

    Others are options, in the units of the model's parameters.

    Notes
    -----
    Under add/remove of one unit, the sum changes by its update, whose squared integer norm is at
    most ``NORM**2``. With local trust the units are known, and one update may become any other:
    ``(2 * NORM)**2``. docs/proofs/fedavg.md.
    """

    @declared
    class Options:
        """Options of every averaging."""

        rounds: Annotated[Whole | None, "noisy sums; if None 20, or 8 with much noise"] = None
        clip: Annotated[Positive, "length to which an update is clipped"] = 1.0
        rate: Annotated[Share, "probability with which a privacy unit takes part in a round"] = 1.0
        growth: Annotated[Positive, "budget of the last round over that of the first"] = 1.0
        server_rate: Annotated[Positive, "step of the server along the mean update"] = 1.0
        momentum: Annotated[PartBelowOne, "of the server's steps"] = 0.9
        trust: Annotated[Trust, "noise that must suffice: that of all silos, or of each"] = "sum"

    n_features: Whole
    n_clients: Whole
    rounds: Whole
    clip: Positive
    clients: str = "row"
    rate: Share = 1.0
    noise_multiplier: AtLeastZero = 0.0
    growth: Positive = 1.0
    server_rate: Positive = 1.0
    momentum: PartBelowOne = 0.9
    trust: Trust = "sum"
    clip_quantile: PartBelowOne = 0.0
    frac_bits: int = 16

    later: ClassVar[frozenset[str]] = frozenset({"clip_quantile"})

    def __post_init__(self) -> None:
        if (self.rate < 1) != (self.noise_multiplier > 0):
            raise PlanError(
                "noise_multiplier must be above 0 for a rate below 1, and 0 otherwise, got "
                f"{self.noise_multiplier:g} with a rate of {self.rate:g}; design the task again."
            )
        if self.clip_quantile and not _LEAST_CLIP <= self.clip <= _MOST_CLIP:
            raise PlanError(
                f"clip must be in [2^-10, 2^10] with clip_quantile, got {self.clip:g}; scale the "
                "parameters, or leave clip_quantile out."
            )
        if self.alone and (self.clients != "silo" or self.rate < 1):
            raise PlanError(
                "trust='local' needs silos as privacy units and rate=1: the noise of each silo "
                'must hide its single update; use a schema with unit = "silo".'
            )

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Length of an update."""

    @property
    def alone(self) -> bool:
        """True if each silo's own noise must satisfy the guarantee (local DP)."""
        return self.trust == "local"

    @cached_property
    def weights(self) -> tuple[float, ...]:
        """The share of each round in the budget; they sum to 1."""
        # From the rounds and the growth alone, so every schedule has the same total cost.
        stages = [STAGES * t // self.rounds for t in range(self.rounds)]
        shares = [self.growth ** (stage / (STAGES - 1)) for stage in stages]
        return tuple(share / sum(shares) for share in shares)

    def calibrated(self, budget: Budget | None) -> Self:
        """Return the task with the smallest noise that this budget allows with sampled units."""
        if self.rate == 1:  # a Gaussian mechanism, which every plan prices in closed form
            return self
        budget = require_budget(budget)
        multiplier = sampled_noise_multiplier(budget.epsilon, budget.delta, self.rate, self.weights)
        return replace(self, noise_multiplier=multiplier)

    def start(self) -> State:
        """Return the public model before the first round."""
        still, nothing = np.zeros(self.n_parameters), np.zeros(self.rounds)
        model = _Model(
            parameters=self._start_parameters(),
            velocity=still,
            update=still,
            lengths=nothing,
            noise_lengths=nothing,
        )
        return {**self._clip_state(self.clip), **encode_state(model)}

    def _start_parameters(self) -> Floats:
        return np.zeros(self.n_parameters)

    def blocks(self, t: int) -> tuple[Block, ...]:
        # With local trust a silo is a member in both worlds, so its update is replaced.
        worlds = 2 if self.alone else 1
        norm, vote = worlds * NORM, worlds * _VOTE * self._n_votes
        most = isqrt(self.n_parameters * norm**2) + 1 + vote
        shape = (self.n_parameters + self._n_votes,)
        squared = norm**2 + vote**2
        return (Block("update", shape, l1=most, l2_squared=squared, weight=self.weights[t]),)

    @property
    def _n_votes(self) -> int:
        return 1 if self.clip_quantile else 0

    def _clip_state(self, clip: float) -> State:
        """Return the part of the state that an adaptive clip adds."""
        # Without it, plans have the state that they always had.
        return {"clip": np.array([clip])} if self.clip_quantile else {}

    def _clip_of(self, state: GridState) -> float:
        """Return the public length to which updates are clipped in this round."""
        return (
            float(from_grid(state["clip"], self.frac_bits)[0]) if self.clip_quantile else self.clip
        )

    def _next_clip(self, t: int, clip: float, votes: float) -> float:
        """Return the clip after the noisy sum of votes on whether an update is shorter."""
        # The denominator is public, as that of the mean.
        shorter = 0.5 + votes / (2 * _VOTE * self.rate * self.n_clients)
        step = _CLIP_STEP * (1 - t / self.rounds)
        change = step * (min(max(shorter, 0.0), 1.0) - self.clip_quantile)
        return min(max(clip * exp(-change), _LEAST_CLIP), _MOST_CLIP)

    @abstractmethod
    def _steps(self, state: GridState, records: Records) -> Iterator[Integers]:
        """Yield updates of units in lattice steps, some at a time."""

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sum of the updates of all units in a table."""
        # In integers: the sum does not depend on the order of units, or on the number of silos.
        total = np.zeros(self.n_parameters + self._n_votes, dtype=np.int64)
        for steps in self._steps(state, records):
            total += steps.sum(axis=0)
        return total

    def contribute_sampled(
        self, t: int, state: GridState, records: Records, coins: Callable[[int], bytes]
    ) -> Integers:
        """Return the sum of the updates of units that are sampled by their coins."""
        # All updates are computed, so that the time of an answer does not reveal the coins.
        heads = np.uint64(int(self.rate * 2.0**64))  # rounded down: the probability is at most rate
        total = np.zeros(self.n_parameters + self._n_votes, dtype=np.int64)
        for steps in self._steps(state, records):
            drawn = np.frombuffer(coins(8 * len(steps)), dtype="<u8")
            total += (steps * (drawn < heads)[:, None]).sum(axis=0)
        return total

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the model after the server's step along the noisy mean update."""
        # Divided by a public number: the real number of units is as private as their records.
        now = decode_state(_Model, state, self.frac_bits)
        clip = self._clip_of(state)
        mean = released["update"].values[: self.n_parameters] * self._unit(clip)
        noise = released["update"].noise_std * self._unit(clip)
        votes = float(released["update"].values[self.n_parameters :].sum())
        velocity = self.momentum * now.velocity + mean
        # For the report only: a reader compares each round with its noise.
        now.lengths[t] = min(float(np.linalg.norm(mean)), _FARTHEST)
        now.noise_lengths[t] = min(noise * sqrt(self.n_parameters), _FARTHEST)
        margin = round_up(np.array(INTERVAL_95["gaussian"] * noise), self.frac_bits)
        model = _Model(
            parameters=_within(now.parameters + self.server_rate * velocity),
            velocity=_within(velocity),
            update=_within(mean),
            half_width=float(margin),
            lengths=now.lengths,
            noise_lengths=now.noise_lengths,
        )
        return {**self._clip_state(self._next_clip(t, clip, votes)), **encode_state(model)}

    def _unit(self, clip: float) -> float:
        """Return the size of a lattice step of the sum in the mean update."""
        return clip / NORM / (self.rate * self.n_clients)

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the half-width of the 95 % noise interval of the last mean update.

        It is empty with an adaptive clip, whose noise depends on the releases before.
        """
        if self.clip_quantile:
            return {}
        return {
            "half_width": np.array([INTERVAL_95["gaussian"] * noise_std * self._unit(self.clip)])
        }

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the model and the size of its noise.

        Returns
        -------
        mapping
            ``parameters`` and ``update``, the noisy mean update of the last round, have the shape
            (n_parameters,). ``half_width`` is that of the 95 % noise interval of each entry of
            ``update``, around the mean of the bounded updates of all units that took part.
            ``lengths`` are those of the mean updates of all rounds, and ``noise_lengths`` the mean
            lengths of noise alone. An adaptive ``clip`` is that of a next round.
        """
        model = encode_state(decode_state(_Model, state, self.frac_bits))
        known = {**model, **self._clip_state(self._clip_of(state))}
        return {name: value for name, value in known.items() if name != "velocity"}

    def _curve(self, results: Results) -> Curve:
        lengths, noise = results["lengths"], results["noise_lengths"]
        ends = np.maximum(lengths - noise, 0), lengths + noise
        return Curve(
            "Length of the mean update",
            np.arange(1.0, self.rounds + 1),
            Estimate(lengths, *ends, axes=("round",), unit="length"),
            "The half-width of the band is the mean length of noise alone. A round whose update is "
            "no longer than that hardly changed the model.",
        )

    def describe(self) -> str:
        column = f"the records of a silo with one value of {self.clients!r} are one privacy unit"
        unit = {
            "row": "each record is a privacy unit",
            "silo": "each silo with all of its records is one privacy unit",
        }.get(self.clients, column)
        sampled = (
            f" A unit takes part in a round with probability {self.rate:g}, by a secret coin of "
            "its silo; this is part of the guarantee against parties that see sums only."
        )
        local = (
            " LOCAL MODEL, for comparison: each silo's noise hides its own update without masks, "
            "and the result has the noise of all silos."
        )
        follows = (
            f"a length at which a share of {self.clip_quantile:g} of the updates is shorter, by a "
            "noisy count in each round, starting at "
        )
        adaptive = follows if self.clip_quantile else ""
        return (
            f"{self.rounds} rounds of federated averaging, in which {unit}: the model is trained "
            f"on its records, and the change of {self.n_parameters} parameters is clipped to "
            f"{adaptive}length {self.clip:g}; the sum of these updates is released with Gaussian "
            f"noise and divided by {self.rate * self.n_clients:g}, a public number."
            f"{sampled * (self.rate < 1)}{local * self.alone}"
        )


@declared
class _Trained(_Averaging):
    """Averaging of models that the silos train with the code of this package.

    Parameters
    ----------
    levels : tuple of int
        Number of categories of each column of the schema; 0 for numbers.
    client_column : int
        Index of the column that names units; -1 if units are rows or silos.
    """

    @declared
    class Options(_Averaging.Options):
        target: Target
        n_clients: Annotated[
            Whole | None, "public number of privacy units; if None that of rows or silos"
        ] = None
        hidden: Annotated[int, Range(0), "units of a hidden layer; 0 for a linear model"] = 0
        local_steps: Annotated[Whole, "steps of training on the records of one unit"] = 5
        local_rate: Annotated[Positive, "length of these steps"] = 0.5
        clip_quantile: Annotated[
            PartBelowOne, "part of updates that the clip, and so the noise, follows; 0: fixed clip"
        ] = 0.0
        public_seed: PublicSeed = 0

    target: int
    levels: tuple[int, ...]
    client_column: Annotated[int, Range(-1)] = -1
    hidden: Annotated[int, Range(0)] = 0
    local_steps: Whole = 5
    local_rate: Positive = 0.5
    public_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_columns(self.n_features, self.target, levels=self.levels)
        if (self.clients in ("row", "silo")) != (self.client_column == -1):
            raise PlanError(
                f"client_column must name the column {self.clients!r}, got {self.client_column}."
            )
        if self.client_column == self.target or len(self.encoding.used) == 0:
            raise PlanError(
                "columns must include more than the target and the privacy units; add a column for "
                "the model."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Design the task for the schema's units, with more rounds if the noise allows."""
        clients = facts.unit if facts.unit in ("silo", *facts.names) else "row"
        index = facts.names.index(clients) if clients in facts.names else -1
        if index >= 0:
            _check_distinct(facts.columns[index], facts.frac_bits)
        n_clients = options.n_clients
        if n_clients is None:
            if index >= 0:
                raise PlanError(
                    f"n_clients must be given if column {clients!r} names privacy units: the "
                    "public number of units in all silos together."
                )
            n_clients = len(facts.silos) if clients == "silo" else facts.nominal_n
        target = position(facts.columns, options.target)
        task = build_task(
            cls,
            facts,
            options,
            n_clients=n_clients,
            rounds=options.rounds or _FEW_ROUNDS,
            clients=clients,
            client_column=index,
            target=target,
            noise_multiplier=float(options.rate < 1),  # until `calibrated` computes it
            **cls._of_target(facts.columns, target),
        )
        # Noise grows with the root of the rounds, and little noise leaves room for more steps.
        noise = (noise_multiplier_for(facts) or inf) * sqrt(task.n_parameters)
        if options.rounds is None and noise < _MUCH_NOISE * n_clients:
            task = replace(task, rounds=_ROUNDS)
        return task.calibrated(facts.budget)

    @classmethod
    @abstractmethod
    def _of_target(cls, columns: tuple[PublicColumn, ...], target: int) -> dict[str, Any]:
        """Return the fields of the task that describe the target."""

    @property
    @abstractmethod
    def network(self) -> Network:
        """The model."""

    @abstractmethod
    def _wanted(self, records: Records) -> Floats:
        """Return the true outputs of the network for each record."""

    @cached_property
    def encoding(self) -> Encoding:
        """The design matrix of records."""
        # A model with a column of names of units would learn single units.
        skip = tuple(j for j in (self.target, self.client_column) if j >= 0)
        return Encoding(self.levels, self.frac_bits, skip)

    @property
    def n_parameters(self) -> int:
        return self.network.size

    def _start_parameters(self) -> Floats:
        return self.network.start(self.public_seed)

    def _steps(self, state: GridState, records: Records) -> Iterator[Integers]:
        if len(records) == 0:
            return
        parameters = from_grid(state["parameters"], self.frac_bits)
        X, Y, clip = self._inputs(records), self._wanted(records), self._clip_of(state)
        for rows in alike(self._owners(records), max(self.n_parameters, self.encoding.width)):
            moved = self.network.train(
                parameters, X[rows], Y[rows], self.local_steps, self.local_rate
            )
            steps = clipped(moved, clip)
            if self.clip_quantile:
                shorter = np.linalg.norm(moved, axis=1, keepdims=True) <= clip  # NaN is not
                steps = np.hstack([steps, np.where(shorter, _VOTE, -_VOTE)])
            yield steps

    def _inputs(self, records: Records) -> Floats:
        return from_grid(self.encoding.rows(records).astype(np.int64), self.frac_bits)

    def _owners(self, records: Records) -> Records:
        """Return the number of the unit of each record."""
        if self.clients == "row":
            return np.arange(len(records), dtype=np.int32)
        if self.clients == "silo":
            return np.zeros(len(records), dtype=np.int32)
        return records[:, self.client_column]

    def _outputs(self, results: Results, records: Records) -> Floats:
        return self.network.predict(results["parameters"], self._inputs(records))

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return the coefficients of a linear model, and the length of each round's update."""
        curve = self._curve(results)
        if self.hidden:  # parameters of hidden layers have no meaning by themselves
            return (curve,)
        public = tuple(
            PublicColumn(name, 0.0, 1.0, tuple(str(v) for v in range(levels)))
            for name, levels in zip(columns, self.levels, strict=True)
        )
        names = self.encoding.names(public)
        heads = self._output_names()
        values = results["parameters"].reshape(len(names), len(heads))
        note = "Columns are scaled to [-1, 1]; categories are numbered as in the schema, from 0."
        return (Heatmap("Coefficients", bare(values, labels=(names, heads)), note), curve)

    @abstractmethod
    def _output_names(self) -> tuple[str, ...]:
        """Return the names of the network's outputs."""


@declared
class FedAvg(_Trained):
    """Federated averaging of a classifier: logistic or softmax regression, or one hidden layer.

    Its `classes` are those of the target, in the order of the schema.
    """

    name: ClassVar[str] = "fedavg"

    example: ClassVar[Example] = Example(MIXED, {"target": "smokes", "rounds": 3})

    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_classes(self.classes, self.levels[self.target])

    @classmethod
    def _of_target(cls, columns: tuple[PublicColumn, ...], target: int) -> dict[str, Any]:
        return {"classes": categories_of(columns, columns[target].name)}

    @cached_property
    def network(self) -> Network:
        """One output for two classes, else one for each class."""
        if len(self.classes) == 2:
            return Network(self.encoding.width, 1, "logistic", self.hidden)
        return Network(self.encoding.width, len(self.classes), "softmax", self.hidden)

    def _wanted(self, records: Records) -> Floats:
        code = codes(records[:, self.target], len(self.classes), self.frac_bits)
        if len(self.classes) == 2:
            return code[:, None].astype(np.float64)
        return np.eye(len(self.classes))[code]

    def probabilities(self, results: Results, records: Records) -> Floats:
        outputs = self._outputs(results, records)
        return np.column_stack([1 - outputs, outputs]) if len(self.classes) == 2 else outputs

    def _output_names(self) -> tuple[str, ...]:
        return (self.classes[1],) if len(self.classes) == 2 else self.classes


@declared
class FedAvgRegression(_Trained):
    """Federated averaging of a regression: linear, or with one hidden layer.

    It has the public bounds of the target, `low` and `high`, in data units.
    """

    name: ClassVar[str] = "fedavg-regression"

    example: ClassVar[Example] = Example(
        MIXED, {"target": "weight", "rounds": 2, "hidden": 2, "growth": 2.0}
    )

    low: float
    high: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.levels[self.target])

    @classmethod
    def _of_target(cls, columns: tuple[PublicColumn, ...], target: int) -> dict[str, Any]:
        return {"low": columns[target].low, "high": columns[target].high}

    @cached_property
    def network(self) -> Network:
        """One output, in the box of the target."""
        return Network(self.encoding.width, 1, "square", self.hidden)

    def _wanted(self, records: Records) -> Floats:
        return from_grid(records[:, [self.target]].astype(np.int64), self.frac_bits)

    def predict(self, results: Results, records: Records) -> Floats:
        """Return the predicted target, data units: see `Regressor` in `cloister.protocol.task`."""
        output = self._outputs(results, records)[:, 0]
        return (self.low + self.high) / 2 + (self.high - self.low) / 2 * output

    def _output_names(self) -> tuple[str, ...]:
        return ("target",)


@declared
class ClientUpdates(_Averaging):
    """Averaging of updates that the silos' own code computes; each silo is one privacy unit.

    A plan holds no code: `model` pins the model that the silos agreed to train, and each silo
    passes the function that computes its update. The single record of a silo is the update in
    lattice steps, see :func:`~cloister.tasks.supervised.local_training.clipped`. The task is not
    among ``TASKS``, so no service runs it.

    Its result ``parameters`` is added to the initial model of the silos.
    """

    name: ClassVar[str] = "client-updates"

    @declared
    class Options(_Averaging.Options):
        length: Annotated[Whole, "number of parameters"]
        model: Annotated[str, "digest of the model and its hyperparameters"]

    length: Whole
    model: str
    n_features: Annotated[int, Range(1, 1)] = 1
    frac_bits: Annotated[int, Range(LATTICE_BITS, LATTICE_BITS)] = LATTICE_BITS
    clients: Literal["silo"] = "silo"

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Return the task for `nominal_n` units, with its noise."""
        return build_task(
            cls,
            facts,
            options,
            frac_bits=LATTICE_BITS,
            n_clients=facts.nominal_n,
            rounds=options.rounds or _ROUNDS,
            noise_multiplier=float(options.rate < 1),  # until `calibrated` computes it
        ).calibrated(facts.budget)

    @property
    def n_parameters(self) -> int:
        return self.length

    def _steps(self, state: GridState, records: Records) -> Iterator[Integers]:
        if len(records) == 0:
            return
        if records.shape != (1, self.length):
            raise PlanError(
                f"a silo's record must be one update of {self.length} parameters, got shape "
                f"{records.shape}; pass a function that computes it."
            )
        # Checked again, since code of a silo may return an update of any length.
        yield bounded(records.astype(np.int64))

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        return (self._curve(results),)

    def describe(self) -> str:
        return f"{super().describe()} The trained model is not in the plan: {self.model}."


def _within(values: NDArray[np.floating[Any]]) -> Floats:
    """Clip parameters to the range of the grid."""
    return np.asarray(np.clip(values, -_FARTHEST, _FARTHEST), dtype=np.float64)


def _check_distinct(column: PublicColumn, frac_bits: int) -> None:
    """Raise PlanError if names of units may be equal on the grid."""
    # Two units with one name on the grid would be trained, and bounded, as one.
    if (column.levels or column.high - column.low) > 2 << frac_bits:
        raise PlanError(
            f"column {column.name!r} has more privacy units than the grid has steps; narrow its "
            "bounds or use more frac_bits."
        )
