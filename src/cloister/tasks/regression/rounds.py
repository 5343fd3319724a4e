"""The five rounds of a regression: what is summed, and what follows from released sums.

Rounds 0 and 1 count columns. Rounds 2 to 4 are alike: gradient and curvature at the null model, at
the weights one step on, and at those two steps on. The first two of them count sizes, from which
the cuts of the next round follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

import numpy as np

from cloister.core.arrays import Floats, Integers, Records
from cloister.protocol.task import Block, NoisyBlock, Rows
from cloister.tasks.regression.design import PLACES, SPREADS, Design, Placed, Term
from cloister.tasks.regression.engine import (
    BITS,
    DRIFT,
    PRIOR,
    PRIOR_CONSTANT,
    Gradient,
    Prior,
    Solution,
    by_unit,
    lengths,
    matrix_of,
    packed_of,
    products,
    sandwich,
)
from cloister.tasks.regression.families import Family
from cloister.tasks.regression.newton import (
    Fitted,
    limited,
    read_step,
    step_blocks,
    step_rows,
    stepped,
)
from cloister.tasks.regression.sites import LOOK_SHARE, change_with_sites, look_block, look_rows

NULL, MIDDLE, LAST = range(SPREADS + 1, 5)
ROUNDS = 5
SHARES = (0.04, 0.04, 0.20, 0.22, 0.50)
"""Shares of the budget of the rounds."""
CURVATURE_SHARE = 0.298
"""Share of the budget of all curvatures."""
_SIZES, _GRADIENT, _CURVATURE = (0.15, 0.25, 0.0), (0.30, 0.35, 0.74), (0.55, 0.40, 0.20)
_SQUARES, _SANDWICH = 0.06, 0.15  # of the last round, and of its gradient

_REACH = 3.0  # usual largest residual, in deviations
_FARTHEST, _FARTHEST_LINEAR = (1.5, 4.0), (2.0, 6.0)  # step: in prior deviations; of the constant
_LEAST_EXPOSURE = 2.0**-20  # of the largest, so that it has a logarithm
_STEEP = 2.4  # usual ratio of a column's reach to its deviation


@dataclass(frozen=True, kw_only=True)
class Known:
    """The public state: that of the steps, and sums that least squares or curved families need."""

    fit: Fitted
    bend: Floats  # change of the curvature by the step before the last gradient
    middle_at: Floats
    middle: Floats
    middle_std: float = 0.0
    middle_lost: float = 0.0
    residual_square: float = 0.0
    residual_square_std: float = 0.0
    residual_square_lost: float = 0.0  # likely part that the cut took away
    look: Floats  # sums of each silo
    look_std: float = 0.0

    @property
    def of_middle(self) -> Gradient:
        """The gradient before the last one."""
        return Gradient(self.middle_at, self.middle, self.middle_std, self.middle_lost)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A generalized linear model of terms, fitted by three noisy Newton steps.

    Parameters
    ----------
    terms : tuple of Term
        Numbers with public bounds, and categories.
    target : Term
        A number, or two categories for the binomial family.
    offset : Term, optional
        A number that is added to the margin, or whose logarithm is, if `exposure`.
    counted : Term, optional
        A number of 0 or more: the weight of a record.
    sandwich : bool
        Whether products of the gradients of units are summed.
    rows_of_unit : int
        Usual number of rows of a unit.
    bins : int
        Number of bins of a histogram.
    silos : int
        Number of layers of the look at each silo; 0 without it.
    """

    family: Family
    terms: tuple[Term, ...]
    target: Term
    offset: Term | None = None
    exposure: bool = False
    counted: Term | None = None
    sandwich: bool = False
    rows_of_unit: int = 1
    bins: int = 64
    silos: int = 0

    @cached_property
    def design(self) -> Design:
        """Terms and what is counted of them."""
        return Design(self.terms, self.target, self.bins, self.offset)

    def fewest(self, multiplier: float, share: float = 1.0) -> int:
        """Return the number of units at which noise is as large as what the curvature measures.

        `multiplier` is the noise of one release for the whole budget, of which the model has a
        `share`.
        """
        size = sum(_STEEP * sqrt(max(len(term.levels) - 1, 1)) for term in self.terms)
        noise = 2 * sqrt(self.design.width) * multiplier * (1 + size)
        return int(noise / sqrt(2 * CURVATURE_SHARE * share) * 2 * _STEEP) + 1

    # What is summed -------------------------------------------------------------------------------

    def start(self) -> Known:
        """Return the state before the first round, with weights of 0."""
        fit = Fitted.start(self.design.unplaced(), self.design.width, squares=self.sandwich)
        look = np.zeros((self.silos, self.design.width + 2)) if self.silos else np.zeros((1, 1))
        return Known(
            fit=fit, bend=fit.curvature, middle_at=fit.weights, middle=fit.weights, look=look
        )

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return counts of bins, twice; then gradient and curvature, and sizes or squares."""
        share, at = SHARES[t], t - NULL
        if t < NULL:
            return (self.design.count_block(t, share),)
        looked = LOOK_SHARE * share if self.silos and t == LAST else 0.0
        share -= looked
        squares = _SQUARES if t == LAST else 0.0
        # A family without a free factor of the variance gives this share to the gradient.
        gradient = _GRADIENT[at] + (0.0 if self.family.dispersed else squares)
        meat = _SANDWICH * gradient if self.sandwich and t == LAST else 0.0
        found = step_blocks(
            self.design.width,
            share * (gradient - meat),
            share * _CURVATURE[at],
            sizes=share * _SIZES[at],
            kinds=2 if t == NULL else 1,
            square=share * squares if self.family.dispersed else 0.0,
            meat=share * meat,
        )
        look = [look_block(self.silos, self.design.width, looked)] if looked else []
        return (*found, *look)

    def rows(
        self,
        t: int,
        known: Known,
        records: Records,
        owner: Integers | None,
        share: Floats | None = None,
    ) -> tuple[Rows, ...]:
        """Return the rows of records or units to each block.

        `owner` is the number of the unit of each record, None if each record is one. Units then
        share their counts of columns between their rows, and have one row of every other block.
        With `share`, the records of a unit are versions of one record, and each counts as such a
        part of it.
        """
        if t < NULL:
            return (self.design.count_rows(t, known.fit.columns, records, owner, share),)
        with np.errstate(all="ignore"):  # a dishonest state has any numbers; balls leave them out
            return tuple(self._payloads(t, known, records, owner, share))

    def margins(self, placed: Placed, weights: Floats, rows: Floats, records: Records) -> Floats:
        """Return the margin of each record at some weights of its row."""
        margin = np.zeros(len(records))
        if self.offset:
            margin += self._margin_at(np.asarray(self.offset.of(records)), self.unit(placed))
        return _added(margin, weights, rows)

    def scored(self, known: Known, records: Records) -> tuple[Floats, Floats, Floats]:
        """Return rows of records with their residuals and weights."""
        placed = known.fit.columns
        rows = self.design.rows(placed, records)
        margin = self.margins(placed, known.fit.weights, rows, records)
        return rows, *self.family.score(margin, self.targets(placed, records))

    def _payloads(
        self,
        t: int,
        known: Known,
        records: Records,
        owner: Integers | None,
        share: Floats | None,
    ) -> Iterator[Rows]:
        placed = known.fit.columns
        rows, residual, weight = self.scored(known, records)
        counted = np.ones(len(records)) if share is None else share
        if self.counted:
            public = np.clip(self.counted.in_data_units(records) / self.counted.high, 0.0, 1.0)
            counted = counted * public
        scores, weights = counted * residual, counted * weight
        gradients = by_unit(rows * scores, owner)
        curvatures = by_unit(products(rows) * weights, owner)
        sizes, square = [], None
        if t < LAST:
            sizes = [lengths(gradients)]
            if least := self.family.least_size(self._null_mean(placed)):
                raised = lengths(rows) * counted * np.maximum(np.abs(residual), least)
                sizes = [by_unit(raised[None], owner)[0]]
            if t == NULL:
                sizes.append(lengths(curvatures))
        elif self.family.dispersed:
            squares = np.minimum(
                np.nan_to_num(counted * (residual / known.fit.residual_cut) ** 2), 1.0
            )
            if owner is not None:  # the mean of a unit's rows
                rows_of = np.bincount(owner) if share is None else 1.0
                squares = by_unit(squares[None], owner)[0] / rows_of
            square = np.trunc(np.minimum(squares, 1.0) * (1 << BITS)).astype(np.int64)
        meat = t == LAST and self.sandwich
        yield from step_rows(
            known.fit, gradients, curvatures, sizes=sizes, square=square, meat=meat
        )
        if t == LAST and self.silos:
            of_units = by_unit(scores[None], owner)[0], by_unit(rows * weights, owner)
            yield look_rows(*of_units, self._look_cuts(known.fit))

    def mean_of(self, weights: Floats, rows: Floats) -> Floats:
        """Return the mean of the target at rows without an offset, as :meth:`targets` has it."""
        return self.family.mean(_added(np.zeros(rows.shape[1]), weights, rows))

    # The target -----------------------------------------------------------------------------------

    def unit(self, placed: Placed) -> float:
        """Return the unit of the margin, data units of the target: its deviation, or 1."""
        if not self.family.linear:
            return 1.0
        return (self.target.high - self.target.low) / 2 * max(float(placed.target[1]), 1e-9)

    def middle(self, placed: Placed) -> float:
        """Return the released centre of the target, data units."""
        low, high = self.target.low, self.target.high
        return (low + high) / 2 + (high - low) / 2 * float(placed.target[0])

    def targets(self, placed: Placed, records: Records) -> Floats:
        """Return the target of each record; that of least squares about its centre, in its unit."""
        values = np.asarray(self.target.of(records), dtype=np.float64)
        if self.target.levels:
            return values
        if self.family.linear:
            centre, deviation, _ = placed.target
            return np.asarray((values - centre) / max(float(deviation), 1e-9))
        return self.target.in_data_units(records)

    def _margin_at(self, places: Floats, unit: float) -> Floats:
        """Return the margin of the offset at places of its box ``[-1, 1]``."""
        assert self.offset is not None
        low, high = self.offset.low, self.offset.high
        values = (low + high) / 2 + (high - low) / 2 * places
        if self.exposure:
            return np.asarray(np.log(np.maximum(values, high * _LEAST_EXPOSURE)))
        return np.asarray(values / unit)

    def _null_mean(self, placed: Placed) -> float:
        """Return the mean of the target at the null model; of least squares about its centre."""
        if self.family.linear:
            return 0.0
        return float(self.family.mean(np.array(self.family.margin(self.middle(placed)))))

    def _null_weight(self, placed: Placed) -> float:
        return float(self.family.weight(np.array(self._null_mean(placed)), self.family.alpha))

    def _null(self, placed: Placed) -> Floats:
        """Return the weights of the null model."""
        weights = np.zeros(self.design.width)
        if not self.family.linear:
            weights[-1] = self.family.margin(self.middle(placed))
        if self.offset:
            usual = np.array(placed.exposed)
            weights[-1] -= float(self._margin_at(usual, self.unit(placed)))
        return weights

    def residuals(self, placed: Placed) -> tuple[float, float]:
        """Return the usual largest residual at the null model, and a bound on those of the box."""
        centre, deviation, reach = map(float, placed.target)
        if self.target.levels:
            return 1.0, 1.0
        if self.family.linear:
            return reach / max(deviation, 1e-9), 2 * (1 + abs(centre)) / max(deviation, 1e-9)
        mean, half = self._null_mean(placed), (self.target.high - self.target.low) / 2
        factor = float(self.family.factor(np.array(mean), self.family.alpha))
        usual = reach * half + abs(self.middle(placed) - mean)
        return max(factor * usual, 1.0), max(factor * self.target.high, 1.0)

    def _most(self, placed: Placed) -> tuple[float, float]:
        """Return the largest usual sizes of gradients and of curvatures at the null model."""
        squared = self.design.reach_squared(placed, whole_box=True)
        of_gradient = sqrt(squared) * self.residuals(placed)[1]
        of_curvature = self.rows_of_unit * self._null_weight(placed) * squared
        return self.rows_of_unit * of_gradient, of_curvature

    # What follows ---------------------------------------------------------------------------------

    def update(self, t: int, known: Known, released: Mapping[str, NoisyBlock]) -> Known:
        """Return the state with places of columns, the next weights and cuts, or the last sums."""
        fit = known.fit
        if t < NULL:
            fit = replace(fit, columns=self.design.read_counts(t, fit.columns, released))
            return replace(known, fit=fit if t == PLACES else self._at_null(fit))
        most = self._most(fit.columns)[1] if t == NULL else None
        family = self.family
        fit, gradient, change = read_step(
            fit, released, most, same=family.linear, steepest=family.steepest
        )
        known = replace(known, fit=fit, bend=change)
        if t == LAST:
            fit = replace(fit, last=gradient.value, last_std=gradient.noise_std)
            return self._with_look(self._with_square(replace(known, fit=fit), released), released)
        fit, gradient = stepped(
            fit,
            gradient,
            released["sizes"],
            self.blocks(t),
            self.blocks(t + 1),
            most=self._most(fit.columns),
            growth=(1.0, family.growth(self._null_weight(fit.columns))),
            move=lambda fit, gradient: self._moved(fit, [gradient]),
            steepest=family.steepest,
        )
        known = replace(known, fit=fit)
        if t == NULL:
            return known
        return replace(
            known,
            middle_at=gradient.at,
            middle=gradient.value,
            middle_std=gradient.noise_std,
            middle_lost=gradient.lost,
        )

    def _at_null(self, fit: Fitted) -> Fitted:
        """Return the state at the null model, with cuts from the reach of columns."""
        placed, rows = fit.columns, float(self.rows_of_unit)
        squared = self.design.reach_squared(placed)
        return replace(
            fit,
            weights=self._null(placed),
            cut=sqrt(squared * rows) * self.residuals(placed)[0],
            length=self._null_weight(placed) * squared * rows,
        )

    def _with_square(self, known: Known, released: Mapping[str, NoisyBlock]) -> Known:
        if "residual_square" not in released:
            return known
        words, noise_std = released["residual_square"].in_records(BITS)
        fit = known.fit
        unit = fit.residual_cut**2 / fit.columns.n
        return replace(
            known,
            residual_square=float(words[0]) * unit,
            residual_square_std=noise_std * unit,
            residual_square_lost=fit.lost_residual / fit.columns.n,
        )

    def _with_look(self, known: Known, released: Mapping[str, NoisyBlock]) -> Known:
        if "look" not in released:
            return known
        words, noise_std = released["look"].in_records(BITS)
        return replace(known, look=words, look_std=noise_std)

    def change_with_sites(self, known: Known, solution: Solution) -> tuple[Floats, Floats]:
        """Return the change of weights by a term of each silo, and the covariance of its error.

        Both are not a number before the last round, and where noise hides them.
        """
        drift = 0.0 if self.family.linear else DRIFT
        cuts = self._look_cuts(known.fit)
        return change_with_sites(
            known.fit, solution, known.look, known.look_std, cuts=cuts, drift=drift
        )

    def _look_cuts(self, fit: Fitted) -> tuple[float, float]:
        """Return the lengths to which residuals and rows times weights are cut."""
        weight, rows = self._null_weight(fit.columns), float(self.rows_of_unit)
        # No event of a rare kind is cut.
        most = min(max(_REACH * sqrt(weight), 1.0), self.residuals(fit.columns)[0])
        return sqrt(rows) * most, sqrt(rows * weight * fit.length)

    def _moved(self, fit: Fitted, gradients: Sequence[Gradient], last: bool = False) -> Solution:
        """Return the solution one step on, whose weights are not too far away."""
        placed = fit.columns
        deviation = np.append(PRIOR / np.maximum(placed.spread, 1e-9), PRIOR_CONSTANT)
        far, constant = _FARTHEST_LINEAR if self.family.linear else _FARTHEST
        return limited(
            fit,
            gradients,
            Prior(self._null(placed), deviation, fit.kept),
            np.append(far * deviation[:-1], constant),
            drift=self.family.drift_at(self._null_mean(placed)),
            last=last,
        )

    def solution(self, known: Known) -> Solution:
        """Return the weights after the last round."""
        fit, gradients = known.fit, (known.of_middle, known.fit.of_last)
        found = self._moved(fit, gradients, last=True)
        if self.family.linear:
            return found
        # Newton's steps to strong effects are alike and too long or short in the same way. So half
        # of the change of the curvature by the last one is expected on this one.
        step, before = found.weights - fit.weights, fit.weights - known.middle_at
        matrix, bend = matrix_of(fit.curvature), matrix_of(known.bend)
        part = float(step @ matrix @ before) / max(float(before @ matrix @ before), 1e-9)
        fit = replace(fit, curvature=packed_of(matrix + np.clip(part, 0.0, 1.0) / 2 * bend))
        return self._moved(fit, gradients, last=True)

    def sampling(self, known: Known, solution: Solution) -> Floats:
        """Return the covariance of weights over samples of this size."""
        if self.sandwich:
            squares = matrix_of(known.fit.squares)
            return sandwich(solution, squares, known.fit.squares_std, known.fit.kept)
        square = known.residual_square + known.residual_square_lost
        factor = max(square, 1e-9) if self.family.dispersed else 1.0
        return np.asarray(solution.inverse * factor)

    def predicted(self, coefficients: Floats, records: Records) -> Floats:
        """Return the mean of the target of records, shape (n_samples,), data units.

        `coefficients` are those of numbers in ``[-1, 1]`` and of all categories, the constant last.
        """
        margin = np.full(len(records), float(coefficients[-1]))
        sizes = [len(term.levels) or 1 for term in self.terms]
        parts = np.split(coefficients[:-1], np.cumsum(sizes)[:-1])
        for term, part in zip(self.terms, parts, strict=True):
            values = np.asarray(term.of(records))
            margin += part[values] if term.levels else part[0] * values
        if self.offset:
            margin += self._margin_at(np.asarray(self.offset.of(records)), 1.0)
        return self.family.mean(margin)


def _added(margin: Floats, weights: Floats, rows: Floats) -> Floats:
    """Return a margin with the products of weights and rows added to it."""
    for weight, entry in zip(weights, rows, strict=True):  # no product of matrices,
        margin += weight * entry  # whose rounding may depend on the other records
    return margin
