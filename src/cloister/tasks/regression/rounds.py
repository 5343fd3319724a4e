"""The five rounds of a regression: what is summed, and what follows from released sums.

Rounds 0 and 1 count columns. Rounds 2 to 4 are alike: gradient and curvature at the null model, at
the weights one step on, and at those two steps on. The first two of them count sizes, from which
the cuts of the next round follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot, isqrt, sqrt

import numpy as np

from cloister.core.arrays import Flags, Floats, Integers, Records
from cloister.protocol.task import COUNT_BITS, INTERVAL_95, Block, NoisyBlock, Rows
from cloister.tasks.regression.design import Design, Placed, Term
from cloister.tasks.regression.engine import (
    BITS,
    PRIOR,
    PRIOR_CONSTANT,
    Curvature,
    Gradient,
    Prior,
    Solution,
    ball,
    by_unit,
    lengths,
    matrix_of,
    moved,
    packed_of,
    products,
    sandwich,
)
from cloister.tasks.regression.families import Family
from cloister.tasks.regression.tails import CLASSES, Tail, class_of, cut_of_squares, middle_class

PLACES, SPREADS, NULL, MIDDLE, LAST = range(5)
ROUNDS = 5
SHARES = (0.04, 0.04, 0.20, 0.22, 0.50)
"""Shares of the budget of the rounds."""
CURVATURE_SHARE = 0.298
"""Share of the budget of all curvatures."""
_SIZES, _GRADIENT, _CURVATURE = (0.15, 0.25, 0.0), (0.30, 0.35, 0.74), (0.55, 0.40, 0.20)
_SQUARES, _SANDWICH = 0.06, 0.15  # of the last round, and of its gradient

_REACH = 3.0  # residual at which squares are cut
_WEAK = 4 * sqrt(2)  # deviations of noise, below which the curvature of a category is too small
_SAME_WAY = 0.7  # share of the records of dropped categories that point in the same direction
_FARTHEST, _FARTHEST_LINEAR = (1.5, 4.0), (2.0, 6.0)  # step: in prior deviations; of the constant
_LEAST_EXPOSURE = 2.0**-20  # of the largest, so that it has a logarithm
_LARGEST = 1e9
_Z = INTERVAL_95["gaussian"]


@dataclass(frozen=True, kw_only=True)
class Known:
    """The public state: places of columns, the next weights and cuts, and the released sums."""

    columns: Placed
    weights: Floats
    cut: float = 1.0
    lost: float = 0.0  # likely length of what the cut takes away from a gradient
    length: float = 1.0  # to which curvatures are cut
    lost_curvature: float = 0.0
    squares_cut: float = 1.0
    curvature: Floats
    curvature_std: float = 0.0
    curvature_lost: float = 0.0
    bend: Floats  # change of the curvature by the step before the last gradient
    middle_at: Floats
    middle: Floats
    middle_std: float = 0.0
    middle_lost: float = 0.0
    last: Floats
    last_std: float = 0.0
    squares: Floats
    squares_std: float = 0.0
    residual_square: float = 0.0
    residual_square_std: float = 0.0

    @property
    def of_curvature(self) -> Curvature:
        """The curvature so far."""
        return Curvature(matrix_of(self.curvature), self.curvature_std, self.curvature_lost)

    @property
    def kept(self) -> Flags:
        """Flags of the entries of a row that are in the equations."""
        return np.append(self.columns.shown > 0, True)


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

    @cached_property
    def design(self) -> Design:
        """Terms and what is counted of them."""
        return Design(self.terms, self.target, self.bins, self.offset)

    # What is summed -------------------------------------------------------------------------------

    def start(self) -> Known:
        """Return the state before the first round, with weights of 0."""
        q = self.design.width
        zeros, packed = np.zeros(q), np.zeros(q * (q + 1) // 2)
        return Known(
            columns=self.design.unplaced(),
            weights=zeros,
            curvature=packed,
            bend=packed,
            middle_at=zeros,
            middle=zeros,
            last=zeros,
            squares=packed if self.sandwich else np.zeros(1),
        )

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return counts of bins, twice; then gradient and curvature, and sizes or squares."""
        return tuple(self._blocks(t))

    def _blocks(self, t: int) -> Iterator[Block]:
        share, design = SHARES[t], self.design
        if t < NULL:
            size, touched = design.spreads if t else design.places
            yield Block.counting("spreads" if t else "places", (size,), share, touched)
            return
        at, q = t - NULL, design.width
        pairs = q * (q + 1) // 2
        squares = _SQUARES if t == LAST else 0.0
        # A family without a free factor of the variance gives this share to the gradient.
        gradient = _GRADIENT[at] + (0.0 if self.family.dispersed else squares)
        meat = _SANDWICH * gradient if self.sandwich and t == LAST else 0.0
        yield _ball("gradient", q, share * (gradient - meat))
        yield _ball("curvature", pairs, share * _CURVATURE[at])
        if t < LAST:
            kinds = 2 if t == NULL else 1  # of gradients, and of curvatures
            yield Block.counting("sizes", (kinds, len(CLASSES)), share * _SIZES[at], kinds)
        elif self.family.dispersed:
            yield Block.counting("residual_square", (1,), share * squares, one=1 << BITS)
        if meat:
            yield _ball("sandwich", pairs, share * meat)

    def rows(
        self, t: int, known: Known, records: Records, owner: Integers | None
    ) -> tuple[Rows, ...]:
        """Return the rows of records or units to each block.

        `owner` is the number of the unit of each record, None if each record is one. Units then
        share their counts of columns between their rows, and have one row of every other block.
        """
        if t < NULL:
            cells = self.design.cells_of_places(records)
            if t == SPREADS:
                cells = self.design.cells_of_spreads(known.columns, records)
            part = np.full(len(records), 1 << COUNT_BITS, dtype=np.int64)
            if owner is not None:
                part //= np.bincount(owner)[owner]
            return (Rows(cells, np.repeat(part[:, None], cells.shape[1], axis=1)),)
        with np.errstate(all="ignore"):  # a dishonest state has any numbers; balls leave them out
            return tuple(self._payloads(t, known, records, owner))

    def _payloads(
        self, t: int, known: Known, records: Records, owner: Integers | None
    ) -> Iterator[Rows]:
        rows = self.design.rows(known.columns, records)
        margin = np.zeros(len(records))
        if self.offset:
            margin += self._margin_at(np.asarray(self.offset.of(records)), self.unit(known))
        for weight, entry in zip(known.weights, rows, strict=True):  # no product of matrices,
            margin += weight * entry  # whose rounding may depend on the other records
        residual, weight = self.family.score(margin, self._targets(known, records))
        counted = np.ones(len(records))
        if self.counted:
            counted = np.clip(self.counted.in_data_units(records) / self.counted.high, 0.0, 1.0)
        gradients = by_unit(rows * (counted * residual), owner)
        curvatures = by_unit(products(rows) * (counted * weight), owner)
        yield Rows.dense(ball(gradients, known.cut))
        yield Rows.dense(ball(curvatures, known.length))
        if t < LAST:
            sizes = lengths(gradients)
            if least := self.family.least_size(self._null_mean(known)):
                raised = lengths(rows) * counted * np.maximum(np.abs(residual), least)
                sizes = by_unit(raised[None], owner)[0]
            cells = [class_of(sizes), len(CLASSES) + class_of(lengths(curvatures))]
            cells = cells[: 2 if t == NULL else 1]
            yield Rows.at(cells, [1 << COUNT_BITS] * len(cells))
        elif self.family.dispersed:
            squares = np.minimum(np.nan_to_num(counted * (residual / _REACH) ** 2), 1.0)
            if owner is not None:  # the mean of a unit's rows
                squares = by_unit(squares[None], owner)[0] / np.bincount(owner)
            whole = np.trunc(np.minimum(squares, 1.0) * (1 << BITS))
            yield Rows.dense(whole.astype(np.int64)[:, None])
        if t == LAST and self.sandwich:
            shortened = gradients / np.maximum(lengths(gradients), known.squares_cut)
            yield Rows.dense(ball(products(shortened), 1.0))

    # The target -----------------------------------------------------------------------------------

    def unit(self, known: Known) -> float:
        """Return the unit of the margin, data units of the target: its deviation, or 1."""
        if not self.family.linear:
            return 1.0
        return (self.target.high - self.target.low) / 2 * max(float(known.columns.target[1]), 1e-9)

    def middle(self, known: Known) -> float:
        """Return the released centre of the target, data units."""
        low, high = self.target.low, self.target.high
        return (low + high) / 2 + (high - low) / 2 * float(known.columns.target[0])

    def _targets(self, known: Known, records: Records) -> Floats:
        """Return the target of each record; that of least squares about its centre, in its unit."""
        values = np.asarray(self.target.of(records), dtype=np.float64)
        if self.target.levels:
            return values
        if self.family.linear:
            centre, deviation, _ = known.columns.target
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

    def _null_mean(self, known: Known) -> float:
        """Return the mean of the target at the null model; of least squares about its centre."""
        if self.family.linear:
            return 0.0
        return float(self.family.mean(np.array(self.family.margin(self.middle(known)))))

    def _null_weight(self, known: Known) -> float:
        return float(self.family.weight(np.array(self._null_mean(known)), self.family.alpha))

    def _null(self, known: Known) -> Floats:
        """Return the weights of the null model."""
        weights = np.zeros(self.design.width)
        if not self.family.linear:
            weights[-1] = self.family.margin(self.middle(known))
        if self.offset:
            usual = np.array(known.columns.exposed)
            weights[-1] -= float(self._margin_at(usual, self.unit(known)))
        return weights

    def _residuals(self, known: Known) -> tuple[float, float]:
        """Return the usual largest residual at the null model, and a bound on those of the box."""
        centre, deviation, reach = map(float, known.columns.target)
        if self.target.levels:
            return 1.0, 1.0
        if self.family.linear:
            return reach / max(deviation, 1e-9), 2 * (1 + abs(centre)) / max(deviation, 1e-9)
        mean, half = self._null_mean(known), (self.target.high - self.target.low) / 2
        factor = float(self.family.factor(np.array(mean), self.family.alpha))
        usual = reach * half + abs(self.middle(known) - mean)
        return max(factor * usual, 1.0), max(factor * self.target.high, 1.0)

    def _most(self, known: Known) -> tuple[float, float]:
        """Return the largest usual sizes of gradients and of curvatures at the null model."""
        squared = self.design.reach_squared(known.columns, whole_box=True)
        of_gradient = sqrt(squared) * self._residuals(known)[1]
        return self.rows_of_unit * of_gradient, self.rows_of_unit * self._null_weight(
            known
        ) * squared

    # What follows ---------------------------------------------------------------------------------

    def update(self, t: int, known: Known, released: Mapping[str, NoisyBlock]) -> Known:
        """Return the state with places of columns, the next weights and cuts, or the last sums."""
        design = self.design
        if t == PLACES:
            words, noise_std = released["places"].in_records()
            return replace(known, columns=design.read_places(known.columns, words, noise_std))
        if t == SPREADS:
            words, noise_std = released["spreads"].in_records()
            words = words.reshape(design.spreads[1], -1)
            columns = design.read_spreads(known.columns, words, noise_std)
            return self._at_null(replace(known, columns=columns))
        words, noise_std = released["curvature"].in_records(BITS)
        # Of an entry off the diagonal, whose products have the factor root of 2.
        noise_std *= known.length / sqrt(2)
        curvature = Curvature(matrix_of(words * known.length), noise_std, known.lost_curvature)
        if t > NULL:
            known = replace(known, bend=packed_of(curvature.change_from(known.of_curvature)))
            curvature = curvature.drawn_to(known.of_curvature, self.family.linear)
        else:
            sizes, noise_std = released["sizes"].in_records()
            tail = Tail.of(sizes[1], noise_std, self._most(known)[1], known.columns.n)
            lost = float(tail.excess(np.array([known.length]))[0])
            curvature = replace(curvature, lost=lost)
        known = replace(
            known,
            curvature=packed_of(curvature.matrix),
            curvature_std=curvature.noise_std,
            curvature_lost=curvature.lost,
        )
        value, noise_std = released["gradient"].in_records(BITS)
        value, noise_std = value * known.cut, noise_std * known.cut
        if t == LAST:
            known = replace(known, last=value, last_std=noise_std)
            return self._with_squares(known, released)
        if t == NULL:  # once: in later rounds their rows are short
            known = self._without_weak(known)
        gradient = Gradient(known.weights, value, noise_std, known.lost)
        return self._stepped(t, known, *released["sizes"].in_records(), gradient)

    def _at_null(self, known: Known) -> Known:
        """Return the state at the null model, with cuts from the reach of columns."""
        squared, rows = self.design.reach_squared(known.columns), float(self.rows_of_unit)
        return replace(
            known,
            weights=self._null(known),
            cut=sqrt(squared * rows) * self._residuals(known)[0],
            length=self._null_weight(known) * squared * rows,
        )

    def _without_weak(self, known: Known) -> Known:
        """Return the state without categories whose own curvature is not above its noise.

        Kept, they would make the intervals of all others several times as wide.
        """
        matrix, columns = known.of_curvature.matrix, known.columns
        own = np.diag(matrix)[:-1] - matrix[:-1, -1] ** 2 / max(float(matrix[-1, -1]), 1e-9)
        weak = (columns.rare > 0) & (own < _WEAK * known.curvature_std)
        return replace(known, columns=replace(columns, shown=columns.shown * ~weak))

    def _stepped(
        self, t: int, known: Known, counts: Floats, noise_std: float, gradient: Gradient
    ) -> Known:
        """Return the state with weights one step on, and with the cuts of the next round."""
        columns, following = known.columns, {block.name: block for block in self.blocks(t + 1)}
        sizes = next(block for block in self.blocks(t) if block.name == "sizes")
        multiplier = _Z * noise_std * sqrt(sizes.weight / sizes.shape[0])

        def price(name: str) -> float:
            return multiplier / sqrt(following[name].weight)

        most, most_curvature = self._most(known)
        tail = Tail.of(counts[0], noise_std, most, columns.n)
        cut, lost = tail.cut(price("gradient"))
        if t == NULL:  # the first cut did not know the sizes
            gradient = replace(gradient, lost=float(tail.excess(np.array([known.cut]))[0]))
        typical = float(CLASSES[middle_class(counts[0], columns.n)])
        hidden = _SAME_WAY * typical * float(columns.rare[columns.shown == 0].sum())
        gradient = replace(gradient, lost=hypot(gradient.lost, hidden))
        weights = self._moved(known, [gradient]).weights
        known = replace(known, weights=weights, cut=cut, lost=hypot(lost, hidden))
        if t == NULL:
            tail = Tail.of(counts[1], noise_std, most_curvature, columns.n)
            length, lost = tail.cut(price("curvature"))
            # Sizes were counted at the null model; elsewhere most weights may be larger.
            growth = self.family.growth(self._null_weight(known))
            return replace(known, length=length * growth, lost_curvature=lost * growth)
        if self.sandwich:
            at = cut_of_squares(counts[0], noise_std, columns.n, price("sandwich"))
            known = replace(known, squares_cut=at)
        return replace(
            known,
            middle_at=gradient.at,
            middle=gradient.value,
            middle_std=gradient.noise_std,
            middle_lost=gradient.lost,
        )

    def _with_squares(self, known: Known, released: Mapping[str, NoisyBlock]) -> Known:
        if "residual_square" in released:
            words, noise_std = released["residual_square"].in_records(BITS)
            unit = _REACH**2 / known.columns.n
            value = float(words[0]) * unit
            known = replace(known, residual_square=value, residual_square_std=noise_std * unit)
        if "sandwich" in released:
            words, noise_std = released["sandwich"].in_records(BITS)
            unit = known.squares_cut**2
            known = replace(known, squares=words * unit, squares_std=noise_std * unit / sqrt(2))
        return known

    def _moved(self, known: Known, gradients: Sequence[Gradient], last: bool = False) -> Solution:
        """Return the solution one step on, whose weights are not too far away."""
        deviation = np.append(PRIOR / np.maximum(known.columns.spread, 1e-9), PRIOR_CONSTANT)
        found = moved(
            known.weights,
            gradients,
            known.of_curvature,
            Prior(self._null(known), deviation, known.kept),
            drift=self.family.drift_at(self._null_mean(known)),
            last=last,
        )
        far, constant = _FARTHEST_LINEAR if self.family.linear else _FARTHEST
        most = np.append(far * deviation[:-1], constant)
        weights = known.weights + np.clip(found.weights - known.weights, -most, most)
        return replace(found, weights=np.clip(weights, -_LARGEST, _LARGEST))

    def solution(self, known: Known) -> Solution:
        """Return the weights after the last round."""
        middle = Gradient(known.middle_at, known.middle, known.middle_std, known.middle_lost)
        last = Gradient(known.weights, known.last, known.last_std, known.lost)
        found = self._moved(known, (middle, last), last=True)
        if self.family.linear:
            return found
        # Newton's steps to strong effects are alike and too long or short in the same way. So half
        # of the change of the curvature by the last one is expected on this one.
        step, before = found.weights - known.weights, known.weights - known.middle_at
        matrix, bend = matrix_of(known.curvature), matrix_of(known.bend)
        part = float(step @ matrix @ before) / max(float(before @ matrix @ before), 1e-9)
        curvature = packed_of(matrix + np.clip(part, 0.0, 1.0) / 2 * bend)
        return self._moved(replace(known, curvature=curvature), (middle, last), last=True)

    def sampling(self, known: Known, solution: Solution) -> Floats:
        """Return the covariance of weights over samples of this size."""
        if self.sandwich:
            squares = matrix_of(known.squares)
            return sandwich(solution, squares, known.squares_std, known.kept)
        factor = max(known.residual_square, 1e-9) if self.family.dispersed else 1.0
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


def _ball(name: str, size: int, weight: float) -> Block:
    """Return the block of sums of payloads in the unit ball."""
    # The L1 norm by Cauchy and Schwarz: only the L2 norm is checked in integers.
    return Block(name, (size,), isqrt(size << 2 * BITS), 1 << 2 * BITS, weight)
