"""Common parts of evaluations: source of the predictions, layers for silos, and tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from math import isfinite
from typing import Annotated, Any, ClassVar

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Results, State
from cloister.core.declared import Whole, as_tuples, declared
from cloister.core.display import ENDS, Table
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import Grid, from_grid, round_to_grid
from cloister.protocol.task import Block, Gaussian, NoisyBlock, PublicColumn, PublicFacts, Task
from cloister.tasks.columns import position
from cloister.tasks.interval_tables import WITH_POPULATION, table_of, table_of_measures

NOTE = f"About these records. {WITH_POPULATION}"
Numbers = Mapping[str, Any]
"""Released results as plain numbers: arrays, or tuples of tuples of numbers."""
Model = Annotated[Any, "a trained model that is part of the plan"]
ModelResults = Annotated[Numbers, "the results of the model"]
BySilo = Annotated[bool, "also release the measures of each silo"]
_UNUSED = (*ENDS, "sampling_covariance", "residual_std_low", "residual_std_high")
_MEASURES = {
    "accuracy": "accuracy",
    "balanced accuracy": "balanced_accuracy",
    "macro f1": "macro_f1",
    "kappa": "kappa",
    "macro ROC AUC": "macro_auc",
    "ROC AUC": "auc",
    "log loss": "log_loss",
    "brier": "brier",
    "mae": "mae",
    "rmse": "rmse",
    "bias": "bias",
    "R²": "r2",
}
"""Measures of a model; one number each, except the areas of more than two classes."""


def _plain(released: Numbers) -> dict[str, Any]:
    """Return arrays as numbers and tuples, as a plan holds them."""
    found = {}
    for name, value in sorted(released.items()):  # so that equal results have one digest
        array = np.asarray(value)
        if name.endswith(_UNUSED):  # may be not known, and no prediction uses it
            array = np.nan_to_num(array, nan=0.0, posinf=0.0, neginf=0.0)
        found[name] = as_tuples(array.tolist())
    return found


def _finite(value: Any) -> bool:
    return all(map(_finite, value)) if isinstance(value, tuple) else isfinite(value)


@declared
class Evaluated(Gaussian, ABC):
    """Base class of sums over test records of a model's predictions and the truth.

    Parameters
    ----------
    truth : int
        Column of the truth.
    model : Task, optional
        Applied by each silo to its own records.
    released : mapping
        The model's results, as numbers.
    prediction : int, optional
        Column of predictions, without a model.
    silos : tuple of str
        The silos in the plan's order, if the measures of each silo are released, too.

    Notes
    -----
    With `silos`, every block has a layer for each silo. A record is in one silo and so in one
    layer, and bounds and noise are the same. See ADR 16.
    """

    rounds: ClassVar[int] = 1
    models: ClassVar[tuple[type, str]]
    """The protocol of the models, and their name in messages."""

    n_features: Whole
    truth: int
    model: Any = None
    released: Numbers = field(default_factory=dict)
    prediction: int | None = None
    silos: tuple[str, ...] = ()
    frac_bits: int = 16

    def __post_init__(self) -> None:
        object.__setattr__(self, "released", _plain(self.released))  # the dataclass is frozen
        if (self.model is None) != any(column is not None for column in self.answers):
            count = "neither" if self.model is None else "both"
            raise PlanError(
                "either a model with its released results or columns of predictions or scores are "
                f"required, got {count}; give one of the two."
            )
        if self.model is not None:
            self._check_model()

    def _check_model(self) -> None:
        """Raise PlanError for a model of another schema, or for results of another model."""
        names = [name for name in ("n_features", "classes") if hasattr(self, name)]
        expected, actual = ([getattr(task, name) for name in names] for task in (self, self.model))
        if expected != actual:
            raise PlanError(
                f"model must have {' and '.join(names)} {expected}, got {actual}; evaluate with "
                "the schema of the model."
            )
        # The results of an empty state have the names and shapes of real ones.
        # Any box will do, because only names and shapes are compared.
        box = Grid((-1.0,) * self.n_features, (1.0,) * self.n_features, self.model.frac_bits)
        state = {k: round_to_grid(v, box.frac_bits) for k, v in self.model.start().items()}
        expected_shapes = {k: np.shape(v) for k, v in self.model.results(state, box).items()}
        shapes = {name: np.shape(value) for name, value in self.released.items()}
        if shapes != expected_shapes or not all(map(_finite, self.released.values())):
            raise PlanError(
                "released must be the results of the model, with their names and shapes, all of "
                "them known numbers; train the model again, with more records or a larger epsilon "
                "if the noise hides some."
            )

    @classmethod
    def source(cls, facts: PublicFacts, options: Any) -> dict[str, Any]:
        """Return the fields for the source of truth and predictions."""
        kind, called = cls.models
        # Other models run code that a plan cannot carry; they are evaluated locally.
        fits = options.model is None or isinstance(options.model, kind)
        if not fits:
            raise PlanError(
                f"model must be a {called} of cloister for task {cls.name!r}, got "  # type: ignore[attr-defined]
                f"{_named(options.model)}; give the predictions of other models as columns."
            )
        return {
            "model": options.model,
            "truth": int(options.model.target)
            if options.truth is None and options.model is not None
            else position(facts.columns, options.truth, "truth"),
            "prediction": place_of(facts.columns, options.prediction, "prediction"),
            "silos": facts.silos if options.by_silo else (),
        }

    @property
    def answers(self) -> tuple[int | None, ...]:
        """Columns with predictions."""
        return (self.prediction,)

    @property
    def layers(self) -> int:
        """Number of layers of each block."""
        return max(1, len(self.silos))

    @abstractmethod
    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the blocks, with the layers as their first axis."""

    @abstractmethod
    def measured(
        self, tables: Results, noise: Mapping[str, float], layers: int
    ) -> dict[str, Floats]:
        """Return all results of the sum of `layers` layers, each with these noise deviations."""

    def described(self, sums: str) -> str:
        """Return a description with the common sentences of all evaluations."""
        source = (
            "Predictions and scores are columns that each silo computed; the guarantee assumes "
            "that each is a function of one record alone."
            if self.model is None
            else "Each silo applies a released model to its records locally."
        )
        each = f" Each of {len(self.silos)} silos has separate sums." if self.silos else ""
        return f"{source} {sums}{each}"

    def start(self) -> State:
        blocks = self.blocks(0)
        tables = {block.name: np.zeros(block.shape) for block in blocks}
        return {**tables, "noise": np.zeros(len(blocks))}

    def first_layer(self, sums: Integers) -> Integers:
        """Return a vector of all layers of each block, with the sums in the first layer."""
        # A task does not know its silo; the client moves the sums by `to_silo_layer`.
        parts, start = [], 0
        for block in self.blocks(0):
            size = block.size // self.layers
            parts.append(np.pad(sums[start : start + size], (0, block.size - size)))
            start += size
        return np.concatenate(parts)

    def to_silo_layer(self, t: int, silo: str, total: Integers) -> Integers:
        """Move sums from the first layer to that of one silo."""
        parts, start = [], 0
        for block in self.blocks(t):
            away = self.silos.index(silo) * (block.size // self.layers)
            # The other layers are zero, so a rotation moves the sums.
            parts.append(np.roll(total[start : start + block.size], away))
            start += block.size
        return np.concatenate(parts)

    @cached_property
    def _arrays(self) -> dict[str, Floats]:
        return {name: np.asarray(v, dtype=np.float64) for name, v in self.released.items()}

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the noisy sums in records, and the deviation of the noise in each block."""
        tables = {name: block.in_records() for name, block in released.items()}
        noise = np.array([std for _, std in tables.values()])
        return {**{name: sums for name, (sums, _) in tables.items()}, "noise": noise}

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the measures; with `silos`, ``silo_NAME`` has a row for each silo."""
        tables = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        names = [block.name for block in self.blocks(0)]
        noise = dict(zip(names, tables["noise"].tolist(), strict=True))
        # The pooled measures sum all layers, with the noise of each.
        pooled = self.measured({n: tables[n].sum(axis=0) for n in names}, noise, self.layers)
        if not self.silos:
            return pooled
        each = [
            self.measured({name: tables[name][i] for name in names}, noise, 1)
            for i in range(self.layers)
        ]
        ends = ("_low", "_high", "_half_width", "_population_low", "_population_high")
        # Curves and tables are those of the pooled sums only.
        chosen = {name + end for name in _MEASURES.values() for end in ("", *ends)}
        rows = {
            f"silo_{key}": np.concatenate([part[key] for part in each])
            for key in each[0]
            if key in chosen
        }
        return {**pooled, **rows}

    def table_of_model(self, results: Results, note: str = NOTE) -> Table:
        """Return a table of all measures of the model."""
        # Measures with a value for each class are in other tables.
        names = {text: k for text, k in _MEASURES.items() if np.size(results.get(k, ())) == 1}
        return table_of_measures("Quality of the model", names, results, note)

    def tables_of_silos(self, results: Results, note: str = NOTE) -> list[Table]:
        """Return a table of the measures of each silo, if they were released."""
        rows = {text: results.get(f"silo_{key}", ()) for text, key in _MEASURES.items()}
        names = {
            text: f"silo_{_MEASURES[text]}"
            for text, row in rows.items()
            if np.size(row) == len(self.silos)
        }
        return [table_of("Each silo", self.silos, names, results, note)] if self.silos else []


def place_of(columns: Sequence[PublicColumn], name: str | None, role: str) -> int | None:
    """Return the index of a column, or None without a name."""
    return None if name is None else position(columns, name, role)


def _named(model: Any) -> str:
    """Return a description of a rejected model."""
    return f"the task {model.name!r}" if isinstance(model, Task) else f"a {type(model).__name__}"
