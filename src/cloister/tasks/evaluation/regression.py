"""Errors of a released regressor: every record held back adds its clipped residual to six sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from cloister.declared import Positive, Whole, declared
from cloister.display import Bars, Display
from cloister.errors import PlanError
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.task import (
    FINE,
    INTERVAL_95,
    Block,
    Floats,
    GridState,
    Integers,
    Mechanism,
    Profile,
    PublicColumn,
    PublicFacts,
    Records,
    Regressor,
    Released,
    State,
)
from cloister.tasks import scores
from cloister.tasks.columns import in_batches, position
from cloister.tasks.evaluation.layers import (
    COLUMNS,
    NOTE,
    Numbers,
    check_source,
    first_layer,
    moved,
    named,
    noted,
    plain,
    table_of_measures,
    table_of_silos,
    truth_of,
)
from cloister.tasks.examples import OTHER_NUMBER, Example
from cloister.tasks.options import made


@declared
class RegressionEvaluation:
    """Errors of a regressor on records that the silos hold back.

    Parameters
    ----------
    truth : int
        Column of the true number.
    low, high : float, data units
        Its public bounds.
    bound : float, data units, > 0
        A residual is clipped to ``[-bound, bound]``.
    model : Regressor, optional
        Applied by each silo to its own records.
    released : mapping
        The model's results, as numbers.
    prediction : int, optional
        Column of predicted numbers, where there is no model.
    prediction_low, prediction_high : float, data units
        Its public bounds.
    silos : tuple of str
        Where each silo's measures are released, too: the silos, in the plan's order.

    Notes
    -----
    A record adds 1, ``r``, ``|r|``, ``r**2``, ``y`` and ``y**2``, with ``r`` its residual over
    `bound` and ``y`` its target, both in ``[-1, 1]``; truncated toward zero on a lattice of step
    ``2**-16``, so its squared norm is at most 6.
    """

    name: ClassVar[str] = "regression-evaluation"
    private: ClassVar[bool] = True
    profiles: ClassVar[frozenset[Profile]] = frozenset({"local", "group", "pairwise"})
    mechanism: ClassVar[Mechanism] = "gaussian"
    rounds: ClassVar[int] = 1

    example: ClassVar[Example] = Example(
        (OTHER_NUMBER, PublicColumn("told", 0.0, 200.0)), {"truth": "weight", "prediction": "told"}
    )

    @declared
    class Options:
        """What a user may choose."""

        model: Annotated[Any, "a trained regressor that is part of the plan"] = None
        released: Annotated[Numbers, "the results of the model"] = field(default_factory=dict)
        truth: Annotated[str | None, "column of the true number; the model's if None"] = None
        prediction: Annotated[str | None, "column of told numbers, without a model"] = None
        bound: Annotated[
            Positive | None, "residuals are cut at it; half the range of the target if None"
        ] = None
        by_silo: Annotated[bool, "release the measures of each silo by itself, too"] = False

    n_features: Whole
    truth: int
    low: float
    high: float
    bound: Positive
    model: Any = None
    released: Numbers = field(default_factory=dict)
    prediction: int | None = None
    prediction_low: float = 0.0
    prediction_high: float = 0.0
    silos: tuple[str, ...] = ()
    frac_bits: int = 16

    def __post_init__(self) -> None:
        object.__setattr__(self, "released", plain(self.released))
        check_source(self.model, self.released, (self.prediction,), self.n_features)

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Choose half the range of the target as `bound`, unless it is given."""
        model, columns = options.model, facts.columns
        if model is not None and not isinstance(model, Regressor):
            raise PlanError(
                f"model must be a regressor of ours, got {named(model)}; 'evaluation' is for "
                "classifiers, and a model of others is not part of a plan."
            )
        truth = truth_of(model, columns, options.truth)
        low, high = columns[truth].low, columns[truth].high
        told = None
        if options.prediction is not None:
            told = position(columns, options.prediction, "prediction")
        return made(
            cls,
            facts,
            options,
            truth=truth,
            low=low,
            high=high,
            bound=(high - low) / 2 if options.bound is None else options.bound,
            model=model,
            prediction=told,
            prediction_low=0.0 if told is None else columns[told].low,
            prediction_high=0.0 if told is None else columns[told].high,
            silos=facts.silos if options.by_silo else (),
        )

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        source = COLUMNS if self.model is None else ""
        return (
            f"{source}Silos sum how far predictions are from the truth, at most {self.bound:g} of "
            "each record, and the squares of that; the sums are released with noise, and mean "
            "errors are made from them."
            + f" Each of {len(self.silos)} silos has sums of its own."
            * bool(self.silos)
        )

    def start(self) -> State:
        """Return the state before the round."""
        return {"sums": np.zeros(self.blocks(0)[0].shape), "noise": np.zeros(1)}

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return six sums, with a layer for each silo if that is asked for."""
        one = 1 << FINE
        return (Block("sums", (max(1, len(self.silos)), 6), 6 * one, 6 * one**2, 1.0),)

    def placed(self, t: int, silo: str, total: Integers) -> Integers:
        """Move sums from the first layer to that of one silo."""
        return moved(total, self.blocks(t), self.silos.index(silo))

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums of some records; with `silos`, those of the first."""
        y = np.clip(records[:, self.truth] / (1 << self.frac_bits), -1.0, 1.0)
        truth = self.low + (y + 1) / 2 * (self.high - self.low)
        error = np.nan_to_num((self._predicted(records) - truth) / self.bound, nan=0.0)
        error = np.clip(error, -1.0, 1.0)
        payload = np.stack([np.ones(len(y)), error, np.abs(error), error**2, y, y**2])
        sums = np.trunc(payload * (1 << FINE)).astype(np.int64).sum(axis=1)
        return first_layer(sums, self.blocks(t))

    def _predicted(self, records: Records) -> Floats:
        if self.model is not None:
            model, released = self.model, self._arrays
            # guards against the table's length only
            return in_batches(lambda part: model.predict(released, part), records)
        assert self.prediction is not None
        unit = records[:, self.prediction] / (1 << self.frac_bits)
        told: Floats = self.prediction_low + (unit + 1) / 2 * (
            self.prediction_high - self.prediction_low
        )
        return told

    @cached_property
    def _arrays(self) -> dict[str, Floats]:
        return {name: np.asarray(v, dtype=np.float64) for name, v in self.released.items()}

    def update(self, t: int, state: GridState, released: Mapping[str, Released]) -> State:
        """Return the noisy sums."""
        return noted(released)

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return the half-width of the bias, whose denominator is the nominal number."""
        half_width = INTERVAL_95["gaussian"] * noise_std / (1 << FINE) / nominal_n * self.bound
        return {"bias_half_width": np.array([half_width])}

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        """Return every measure with the ends of its 95 % noise interval.

        Returns
        -------
        dict
            ``mae``, ``rmse``, ``bias`` in the target's units and ``r2``, each of shape (1,) with
            ``..._low`` and ``..._high``; ``bias_half_width``. With `silos`, ``silo_mae`` and so on
            have a row for each silo.
        """
        sums = from_grid(state["sums"], self.frac_bits)
        variance = float(from_grid(state["noise"], self.frac_bits)[0]) ** 2
        pooled = self._measured(sums.sum(axis=0), len(sums) * variance)
        if not self.silos:
            return pooled
        each = [self._measured(layer, variance) for layer in sums]
        rows = {f"silo_{key}": np.concatenate([part[key] for part in each]) for key in pooled}
        return {**pooled, **rows}

    def _measured(self, sums: Floats, variance: float) -> dict[str, Floats]:
        found = scores.as_results(
            scores.regression_measures(sums, variance, self.bound, (self.high - self.low) / 2)
        )
        return {**found, "bias_half_width": (found["bias_high"] - found["bias_low"]) / 2}

    def displays(
        self, results: Mapping[str, Floats], columns: tuple[str, ...]
    ) -> tuple[Display, ...]:
        """Return the measures, a picture of those in the target's units, and each silo's."""
        note = f"Residuals are clipped to {self.bound:g}. {NOTE}"
        shown: list[Display] = [
            replace(table_of_measures(results), note=note),
            _drawn(results, columns[self.truth]),
        ]
        if self.silos:
            shown.append(table_of_silos(results, self.silos, note))
        return tuple(shown)


def _drawn(results: Mapping[str, Floats], target: str) -> Bars:
    """Return the errors that share the units of the target."""
    names = ("mae", "rmse", "bias")
    value, low, high = (
        np.array([results[name + end][0] for name in names]) for end in ("", "_low", "_high")
    )
    return Bars(
        "Errors in the units of the target",
        ("mean absolute error", "root mean squared error", "bias (told less true)"),
        value,
        margin=np.maximum(high - value, value - low),
        unit=target,
        note="A root far above the mean comes from a few large errors. ± is 95 % of the noise, by "
        "the farther end.",
    )
