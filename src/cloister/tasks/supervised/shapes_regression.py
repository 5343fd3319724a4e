"""``ShapesRegression``: predicts a number by one effect for each bin of each column.

The first sum counts the target in cells, for its mean and the clip of residuals. It may also count
records in cells of other columns, for the edges of bins. The other sums are as in
:mod:`cloister.tasks.supervised.shapes`, for squared error or the Poisson likelihood.

References
----------
.. [NCGK21] Nori, Caruana, Bu, Shen, Kulkarni, "Accuracy, Interpretability, and Differential
   Privacy via Explainable Boosting", ICML 2021: the class of models.
.. [W74] Wedderburn, "Quasi-likelihood functions, generalized linear models, and the Gauss-Newton
   method", Biometrika 61(3), 1974: counts with more variance than Poisson's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, sqrt
from typing import Annotated, ClassVar, Literal

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import declared
from cloister.core.errors import PlanError
from cloister.core.numerals import counted
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.protocol.task import COUNT_BITS, Block, NoisyBlock, Rows
from cloister.tasks.columns import bins_of
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.options import Target
from cloister.tasks.preparation.quantiles import made_rising
from cloister.tasks.state import decode_state, encode_state
from cloister.tasks.supervised.shape_functions import Loss
from cloister.tasks.supervised.shapes import Additive, Bins, Rounds
from cloister.tasks.supervised.target import check_number

Family = Literal["gaussian", "poisson"]
"""Squared error, or the Poisson likelihood of counts."""

_ONE = 1 << COUNT_BITS
_TARGET_SHARE = 0.1  # of the budget, for the counts of the target
_TARGET_CELLS = 64
_CLIPS = np.linspace(0.02, 1.0, 50)  # of the range of the target
_ENTRIES = 3.0  # weight of noise in the choice of a clip
_LEAST_RATE, _LEAST_SCORE = 0.05, -8.0


@dataclass(frozen=True)
class _TargetScale:
    """The released scale of the target, in units of its range."""

    mean: float = 0.5
    clip: float = 1.0
    spread: float = 1.0  # variance of a gradient over its curvature


@declared
class ShapesRegression(Additive):
    """A regression with one effect for each bin of each column.

    Parameters
    ----------
    n_features, target, categories, low, high, n_rounds, bins, cells, dates
        As for :class:`~cloister.tasks.supervised.shapes.Additive`; the target holds numbers.
    family : {"gaussian", "poisson"}
        Squared error, or the likelihood of counts, whose effects are on the log of the rate.

    Notes
    -----
    Residuals are clipped to a length that follows from the noisy counts of the target. Predictions
    are in its public range. Privacy is proven in docs/proofs/shapes.md.
    """

    name: ClassVar[str] = "shapes-regression"
    instead: ClassVar[str] = "linear regression"

    example: ClassVar[Example] = Example(MIXED, {"target": "weight"})

    @declared
    class Options:
        target: Target
        family: Annotated[Family, "squared error, or counts with effects on the log"] = "gaussian"
        n_rounds: Annotated[Rounds | None, "sums of gradients; 3 to 6 by the noise if None"] = None
        bins: Annotated[Bins | None, "equal bins of a number; chosen by the noise if None"] = None

    family: Family = "gaussian"

    def _check_target(self, levels: int) -> None:
        check_number(levels)
        if self.family == "poisson" and self.low[self.target] < 0:
            raise PlanError(
                "the target of family 'poisson' must have a lower bound of at least 0, got "
                f"{self.low[self.target]:g}; use family 'gaussian'."
            )

    @property
    def scale(self) -> str:  # type: ignore[override]
        """Name of the scale of effects."""
        return "the logarithm of the rate" if self.family == "poisson" else "the target"

    @property
    def _weight(self) -> float:
        return 0.5 if self.family == "poisson" else 0.35

    @property
    def _norm(self) -> tuple[int, int]:
        return (5, 4) if self.family == "poisson" else (449, 400)

    def describe(self) -> str:
        cells = " and records in cells, for the edges of bins" * bool(self.cells)
        return (
            f"An additive model of {counted(len(self.layout.used), 'column')}. The first sum "
            f"counts the target in {_TARGET_CELLS} cells{cells}. Each of {self.n_rounds} others "
            "has, for every bin or category of every column, the noisy clipped residuals of the "
            "model so far, and its curvature."
        )

    # Sums -----------------------------------------------------------------------------------------

    def _first_blocks(self) -> tuple[Block, ...]:
        target = Block.counting("target", (_TARGET_CELLS,), _TARGET_SHARE)
        return (*super()._first_blocks(), target)

    def start(self) -> State:
        """Return the state before the first round, without effects."""
        return {**super().start(), **encode_state(_TargetScale())}

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return each record's cells, or its residual and curvature in a bin of each column."""
        if self._at(t) >= 0:
            return super().rows(t, state, records)
        before = super().rows(t, state, records) if self.cells else ()
        return (*before, Rows.at([self._target_cell(records)], [_ONE]))

    def _counted(self, records: Records) -> Integers:
        target = np.bincount(self._target_cell(records), minlength=_TARGET_CELLS)
        return np.concatenate([*([super()._counted(records)] if self.cells else []), target])

    def _target_cell(self, records: Records) -> Integers:
        return bins_of(records[:, self.target], _TARGET_CELLS, self.frac_bits)

    def _pairs(self, state: GridState, scores: Floats, records: Records) -> tuple[Floats, Floats]:
        scale = decode_state(_TargetScale, state, self.frac_bits)
        share = (from_grid(records[None, :, self.target].astype(np.int64), self.frac_bits) + 1) / 2
        share = np.clip(share, 0.0, 1.0)
        if self.family == "gaussian":
            left = (share - scale.mean) / max(scale.clip, _CLIPS[0]) - scores
            return np.clip(left, -1, 1), np.ones_like(left)
        clip = self._clip(scale)
        rate = np.exp(np.clip(scores, _LEAST_SCORE, self._most_score))
        left = self.low[self.target] + share * self._range - rate
        return np.clip(left, -clip, clip) / clip, np.minimum(rate, clip) / clip

    @property
    def _range(self) -> float:
        return self.high[self.target] - self.low[self.target]

    @property
    def _most_score(self) -> float:
        return log(self.high[self.target])

    def _clip(self, scale: _TargetScale) -> float:
        """Return the clip of residuals, data units; that of counts is at least one."""
        clip = max(scale.clip, float(_CLIPS[0])) * self._range
        return max(clip, 1.0) if self.family == "poisson" else clip

    def _read_counts(self, released: Mapping[str, NoisyBlock]) -> State:
        counts, noise = released["target"].in_records()
        sums = np.maximum(made_rising(np.concatenate([[0.0], np.cumsum(counts)])), 0.0)
        share = np.diff(sums)
        share = share / share.sum() if share.sum() > 0 else np.full(len(share), 1 / len(share))
        middles = (np.arange(len(share)) + 0.5) / len(share)
        mean = float(share @ middles)
        apart = np.abs(middles - mean)
        # The clip with the least sum of squared bias and squared noise of a mean residual.
        noise_of_one = noise * sqrt(_TARGET_SHARE)
        rest = 1 - sum(block.weight for block in self._first_blocks())
        d, n = len(self.layout.used), max(float(counts.sum()), noise, 1.0)
        unit = d * sqrt(_ENTRIES * self.n_rounds / rest) * noise_of_one / n
        cut = (share * np.maximum(apart - _CLIPS[:, None], 0.0)).sum(axis=1)
        clip = float(_CLIPS[np.argmin(cut**2 + (unit * _CLIPS) ** 2)])
        variance = float(share @ apart**2)
        more: State = {}
        spread = min(1.0, variance / clip**2)
        if self.family == "poisson":
            rate = max(self.low[self.target] + self._range * mean, _LEAST_RATE)
            in_units = max(clip * self._range, 1.0)
            spread = max(variance * self._range**2 / rate, 1.0) / in_units
            more = {"intercept": np.array([log(rate)])}
        return {
            **super()._read_counts(released),
            **encode_state(_TargetScale(mean, clip, spread)),
            **more,
        }

    def _loss(self, state: State) -> Loss:
        return Loss(self._weight, spread=float(state["spread"][0]))

    # The model ------------------------------------------------------------------------------------

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the effects with approximate bands, and the clip of residuals.

        Returns
        -------
        dict
            As for :class:`~cloister.tasks.supervised.shapes.ShapesClassifier`. Those of family
            "gaussian" are in the units of the target, those of "poisson" on the logarithm of the
            rate. ``residual_clip`` of shape (1,), data units.
        """
        found = dict(super().results(state, grid))
        scale = decode_state(_TargetScale, state, self.frac_bits)
        clip = self._clip(scale)
        found["residual_clip"] = np.array([clip])
        if self.family == "gaussian":
            for name in ("effects", "band_low", "band_high", "importance"):
                found[name] = found[name] * clip
            mean = self.low[self.target] + self._range * scale.mean
            found["intercept"] = mean + clip * found["intercept"]
        return found

    def predict(self, results: Results, records: Records) -> Floats:
        """Return the predicted target of grid records; shape (n_samples,), data units."""
        low, high = self.low[self.target], self.high[self.target]
        if self.family == "poisson":
            scores = self._scores_of(results, records)[0]
            rates = np.exp(np.clip(scores, _LEAST_SCORE, self._most_score))
            return np.asarray(np.clip(rates, low, high))
        # The same whole numbers as in the rounds, so that an answer depends on its record alone.
        clip, start = float(results["residual_clip"][0]), results["intercept"]
        units = {**results, "effects": results["effects"] / clip, "intercept": np.zeros(1)}
        return np.asarray(np.clip(start + clip * self._scores_of(units, records)[0], low, high))
