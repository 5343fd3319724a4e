"""Errors of a released regressor: six noisy sums over clipped residuals of test records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from math import inf
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results
from cloister.core.declared import Positive, declared
from cloister.core.display import Bars, Display
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
    POSITIVE,
    Block,
    PublicColumn,
    PublicFacts,
    Ranges,
    Regressor,
    Rows,
)
from cloister.tasks import scores
from cloister.tasks.columns import in_batches
from cloister.tasks.evaluation.layers import NOTE, BySilo, Evaluated, Model, ModelResults
from cloister.tasks.examples import OTHER_NUMBER, Example
from cloister.tasks.interval_tables import INTERVALS, bars_of, number_of
from cloister.tasks.options import build_task

_WIDE = 0.5  # length of an interval of R² from which its value says little


@declared
class RegressionEvaluation(Evaluated):
    """Errors of a regressor on records that the silos hold back.

    Parameters
    ----------
    low, high : float, data units
        Public bounds of the truth.
    bound : float, data units, > 0
        A residual is clipped to ``[-bound, bound]``.
    prediction_low, prediction_high : float, data units
        Public bounds of the column of predictions.

    Notes
    -----
    A record adds 1, ``r``, ``2 |r| - 1``, ``2 r**2 - 1``, ``y`` and ``2 y**2 - 1``, with ``r`` its
    residual over `bound` and ``y`` its target, both in ``[-1, 1]``. They are rounded to a
    lattice of step ``2**-16`` that holds both ends, so the squared norm is at most 6.
    Doubled numbers have half the noise.
    """

    name: ClassVar[str] = "regression-evaluation"
    title: ClassVar[str] = "Quality of the predictions"
    models: ClassVar[tuple[type, str]] = (Regressor, "regressor")
    ranges: ClassVar[Ranges] = {"mae": POSITIVE, "rmse": POSITIVE, "r2": (-inf, 1.0)}
    example: ClassVar[Example] = Example(
        (OTHER_NUMBER, PublicColumn("guess", 0.0, 200.0)),
        {"truth": "weight", "prediction": "guess"},
    )

    @declared
    class Options:
        model: Model = None
        released: ModelResults = field(default_factory=dict)
        truth: Annotated[str | None, "column of the true number; the model's if None"] = None
        prediction: Annotated[str | None, "column of predicted numbers, without a model"] = None
        bound: Annotated[
            Positive | None, "residuals are clipped to it; the largest possible if None"
        ] = None
        by_silo: BySilo = False

    low: float
    high: float
    bound: Positive
    prediction_low: float = 0.0
    prediction_high: float = 0.0

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Use the largest possible residual as the default of `bound`."""
        source = cls.source(facts, options)
        truth, predicted = facts.columns[source["truth"]], source["prediction"]
        # A model is assumed to predict within the bounds of its target.
        target = (truth.low, truth.high)
        box = target if predicted is None else (facts.low[predicted], facts.high[predicted])
        reach = max(box[1] - truth.low, truth.high - box[0])
        return build_task(
            cls,
            facts,
            options,
            **source,
            low=truth.low,
            high=truth.high,
            bound=reach if options.bound is None else options.bound,
            prediction_low=box[0],
            prediction_high=box[1],
        )

    def describe(self) -> str:
        return self.described(
            f"Silos sum the differences of predictions and truth, at most {self.bound:g} for each "
            "record, and their squares; the sums are released with noise, and mean errors are "
            "computed from them."
        )

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return a block of six sums; with `silos`, it has a layer for each silo."""
        return (Block.counting("sums", (self.layers, 6), 1.0, 6),)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return six numbers of each record; with `silos`, in the first layer."""
        y = self._target(records)
        # A prediction may be NaN, which a clip does not bound.
        error = np.clip(np.nan_to_num(self._errors(records), nan=0.0), -1.0, 1.0)
        absolute, squared, y_squared = (2 * x - 1 for x in (np.abs(error), error**2, y**2))
        payload = np.stack([np.ones(len(y)), error, absolute, squared, y, y_squared], axis=1)
        # No number exceeds one unit, which is a whole number, so none does after rounding.
        return (Rows.dense(np.rint(payload * (1 << COUNT_BITS)).astype(np.int64)),)

    def clipped(self, records: Records) -> int:
        """Return the number of records whose residual is clipped; for the owner alone."""
        # A prediction that is not a number is not counted.
        return int((np.abs(self._errors(records)) > 1).sum())

    def _target(self, records: Records) -> Floats:
        """Return the truth of records in its box ``[-1, 1]``."""
        # Clipped: the bound must hold for forged records, too.
        return np.asarray(np.clip(records[:, self.truth] / (1 << self.frac_bits), -1.0, 1.0))

    def _errors(self, records: Records) -> Floats:
        """Return residuals, as multiples of their bound."""
        truth = self.low + (self._target(records) + 1) / 2 * (self.high - self.low)
        return np.asarray((self._predicted(records) - truth) / self.bound)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums of :meth:`rows`; with `silos`, in the first layer."""
        # Rows of this class: a twin in an audit has none, so that only its kernel is used.
        (rows,) = RegressionEvaluation.rows(self, t, state, records)
        return self.first_layer(rows.values.sum(axis=0))

    def _predicted(self, records: Records) -> Floats:
        if self.model is not None:
            model, released = self.model, self._arrays
            # Guards against the table's length only, see `in_batches`.
            return in_batches(lambda part: model.predict(released, part), records)
        assert self.prediction is not None
        unit = records[:, self.prediction] / (1 << self.frac_bits)
        return self.prediction_low + (unit + 1) / 2 * (self.prediction_high - self.prediction_low)

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the margin of error of the bias for the nominal number of records."""
        half_width = (
            INTERVAL_95["gaussian"] * noise_std / (1 << COUNT_BITS) / nominal_n * self.bound
        )
        return {"bias_half_width": np.array([half_width])}

    def measured(
        self, tables: Results, noise: Mapping[str, float], layers: int
    ) -> dict[str, Floats]:
        """Return every error of the sum of `layers` layers, with its 95 % noise interval.

        Returns
        -------
        dict
            ``mae``, ``rmse``, ``bias`` in the target's units and ``r2``, each of shape (1,) with
            ``..._low`` and ``..._high``; ``bias_half_width``.
        """
        variance = layers * noise["sums"] ** 2  # noises of layers are independent
        half_range = (self.high - self.low) / 2
        errors = scores.as_results(
            scores.regression_measures(tables["sums"], variance, self.bound, half_range)
        )
        return {**errors, "bias_half_width": (errors["bias_high"] - errors["bias_low"]) / 2}

    def doubts(self, results: Results, columns: tuple[str, ...]) -> Iterator[str]:
        """Yield a warning if the noise hides how good the model is."""
        if not results["r2_high"][0] - results["r2_low"][0] < _WIDE:  # also if it is not known
            yield (
                "the noise hides R², so read its interval and not its value; set bound to the "
                f"largest residual that you expect, now {self.bound:g}, or give a larger epsilon."
            )

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return the measures, a chart of those in the target's units, and those of each silo."""
        note = f"Residuals are clipped to {self.bound:g}. {NOTE}"
        shown = (self.table_of_model(results, note), _drawn(results, columns[self.truth]))
        return (*shown, *self.tables_of_silos(results, note))


def _drawn(results: Results, target: str) -> Bars:
    """Return bars of the errors in the units of the target."""
    # R2 has no unit and is in the table only.
    return bars_of(
        "Errors in the units of the target",
        ("mean absolute error", "root mean squared error", "bias (predicted less true)"),
        [number_of(results, name) for name in ("mae", "rmse", "bias")],
        f"A root far above the mean indicates a few large errors. {INTERVALS}",
        target,
    )
