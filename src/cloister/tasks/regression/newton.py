"""Noisy Newton steps for any model of rows: what a round sums, and what follows from it.

A model gives the gradient and the curvature of each record at public weights, and their usual
sizes. This module cuts them, and takes the step; see :mod:`cloister.tasks.regression.engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, isqrt, sqrt
from typing import Self

import numpy as np

from cloister.core.arrays import Flags, Floats, Integers
from cloister.protocol.task import COUNT_BITS, INTERVAL_95, Block, NoisyBlock, Rows
from cloister.tasks.regression.design import Placed
from cloister.tasks.regression.engine import (
    BITS,
    Curvature,
    Gradient,
    Prior,
    Solution,
    ball,
    lengths,
    matrix_of,
    moved,
    packed_of,
    products,
)
from cloister.tasks.regression.tails import (
    CLASSES,
    STEEPEST,
    Tail,
    class_of,
    cut_of_squares,
    middle_class,
)

_WEAK = 4 * sqrt(2)  # deviations of noise, below which the curvature of a category is too small
_SAME_WAY = 0.7  # share of the records of dropped categories that point in the same direction
_LARGEST = 1e9
_CUTS = ("cut", "length", "squares_cut", "residual_cut")
_Z = INTERVAL_95["gaussian"]


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The public state of the steps: places of columns, the next weights and cuts, and sums."""

    columns: Placed
    weights: Floats
    cut: float = 1.0
    lost: float = 0.0  # likely length of what the cut takes away from a gradient
    length: float = 1.0  # to which curvatures are cut
    lost_curvature: float = 0.0
    squares_cut: float = 1.0
    residual_cut: float = 3.0
    lost_residual: float = 0.0  # likely part of the sum of squared residuals beyond the cut
    curvature: Floats
    curvature_std: float = 0.0
    curvature_lost: float = 0.0
    last: Floats
    last_std: float = 0.0
    squares: Floats
    squares_std: float = 0.0

    @classmethod
    def start(cls, columns: Placed, q: int, *, squares: bool) -> Self:
        """Return the state before the first round, with `q` weights of 0."""
        zeros, packed = np.zeros(q), np.zeros(q * (q + 1) // 2)
        return cls(
            columns=columns,
            weights=zeros,
            curvature=packed,
            last=zeros,
            squares=packed if squares else np.zeros(1),
        )

    @property
    def of_curvature(self) -> Curvature:
        """The curvature so far."""
        return Curvature(matrix_of(self.curvature), self.curvature_std, self.curvature_lost)

    @property
    def of_last(self) -> Gradient:
        """The last gradient."""
        return Gradient(self.weights, self.last, self.last_std, self.lost)

    @property
    def kept(self) -> Flags:
        """Flags of the entries of a row that are in the equations."""
        others = len(self.weights) - len(self.columns.shown)
        return np.append(self.columns.shown > 0, np.ones(others, dtype=bool))

    def defined(self, levels: Sequence[int]) -> Self:
        """Return the state with references and cuts in their ranges.

        Bounds hold for any state; this keeps the arithmetic of a dishonest one defined.
        """
        reference = np.clip(self.columns.reference, 0, np.maximum(levels, 1) - 1)
        cuts = {name: max(getattr(self, name), CLASSES[0]) for name in _CUTS}
        return replace(self, columns=replace(self.columns, reference=reference), **cuts)


# What is summed -----------------------------------------------------------------------------------


def step_blocks(
    q: int,
    gradient: float,
    curvature: float,
    *,
    sizes: float = 0.0,
    kinds: int = 1,
    square: float = 0.0,
    meat: float = 0.0,
) -> Iterator[Block]:
    """Yield the blocks of a round by their shares of the budget; those without one are left out.

    Parameters
    ----------
    q : int
        Number of entries of a row.
    sizes, kinds : float, int
        Share of the counts of sizes, of gradients and, if there are two kinds, of curvatures.
    square, meat : float
        Shares of the sum of squared residuals, and of the products of gradients.
    """
    pairs = q * (q + 1) // 2
    yield ball_block("gradient", q, gradient)
    yield ball_block("curvature", pairs, curvature)
    if sizes:
        yield Block.counting("sizes", (kinds, len(CLASSES)), sizes, kinds)
    if square:
        yield Block.counting("residual_square", (1,), square, one=1 << BITS)
    if meat:
        yield ball_block("sandwich", pairs, meat)


def step_rows(
    fit: Fitted,
    gradients: Floats,
    curvatures: Floats,
    *,
    sizes: Sequence[Floats] = (),
    square: Integers | None = None,
    meat: bool = False,
) -> Iterator[Rows]:
    """Yield the rows of units to the blocks of a round, from gradients and curvatures in columns.

    `sizes` are those of each kind, and `square` the squared residuals as whole numbers.
    """
    yield Rows.dense(ball(gradients, fit.cut))
    yield Rows.dense(ball(curvatures, fit.length))
    if sizes:
        cells = [kind * len(CLASSES) + class_of(found) for kind, found in enumerate(sizes)]
        yield Rows.at(cells, [1 << COUNT_BITS] * len(cells))
    if square is not None:
        yield Rows.dense(square[:, None])
    if meat:
        # Cut as in the gradient, so that the products are of what was summed.
        shortened = gradients / np.maximum(lengths(gradients), fit.squares_cut)
        yield Rows.dense(ball(products(shortened), 1.0))


def ball_block(name: str, size: int, weight: float) -> Block:
    """Return the block of sums of payloads in the unit ball."""
    # The L1 norm by Cauchy and Schwarz: only the L2 norm is checked in integers.
    return Block(name, (size,), isqrt(size << 2 * BITS), 1 << 2 * BITS, weight)


# What follows -------------------------------------------------------------------------------------


def read_step(
    fit: Fitted,
    released: Mapping[str, NoisyBlock],
    most: float | None,
    *,
    same: bool,
    steepest: float = STEEPEST,
) -> tuple[Fitted, Gradient, Floats]:
    """Return the state with the curvature of a round, its gradient, and the curvature's change.

    Parameters
    ----------
    most : float or None
        Largest usual curvature in the first such round: its cut did not know the sizes.
    same : bool
        If True, all rounds estimate one curvature.
    steepest : float
        Largest power by which the numbers of large sizes fall.
    """
    words, noise_std = released["curvature"].in_records(BITS)
    # Of an entry off the diagonal, whose products have the factor root of 2.
    noise_std *= fit.length / sqrt(2)
    found = Curvature(matrix_of(words * fit.length), noise_std, fit.lost_curvature)
    change = np.zeros_like(fit.curvature)
    if most is None:
        change = packed_of(found.change_from(fit.of_curvature))
        found = found.drawn_to(fit.of_curvature, same)
    else:
        sizes, noise_std = released["sizes"].in_records()
        tail = Tail.of(sizes[1], noise_std, most, fit.columns.n, steepest)
        found = replace(found, lost=float(tail.excess(np.array([fit.length]))[0]))
    value, noise_std = released["gradient"].in_records(BITS)
    gradient = Gradient(fit.weights, value * fit.cut, noise_std * fit.cut, fit.lost)
    fit = replace(
        fit,
        curvature=packed_of(found.matrix),
        curvature_std=found.noise_std,
        curvature_lost=found.lost,
    )
    if "sandwich" in released:
        words, noise_std = released["sandwich"].in_records(BITS)
        unit = fit.squares_cut**2
        fit = replace(fit, squares=words * unit, squares_std=noise_std * unit / sqrt(2))
    # Once: in later rounds the rows of weak categories are short.
    return fit if most is None else _without_weak(fit), gradient, change


def _without_weak(fit: Fitted) -> Fitted:
    """Return the state without categories whose own curvature is not above its noise.

    Kept, they would make the intervals of all others several times as wide.
    """
    matrix, columns = fit.of_curvature.matrix, fit.columns
    # Without what a category has in common with the last entry, which is 1 for all records.
    own = np.diag(matrix) - matrix[:, -1] ** 2 / max(float(matrix[-1, -1]), 1e-9)
    weak = (columns.rare > 0) & (own[: len(columns.rare)] < _WEAK * fit.curvature_std)
    return replace(fit, columns=replace(columns, shown=columns.shown * ~weak))


def stepped(
    fit: Fitted,
    gradient: Gradient,
    released: NoisyBlock,
    now: Sequence[Block],
    following: Sequence[Block],
    *,
    most: tuple[float, float],
    growth: tuple[float, float],
    move: Callable[[Fitted, Gradient], Solution],
    typical: float = 1.0,
    steepest: float = STEEPEST,
) -> tuple[Fitted, Gradient]:
    """Return the state with weights one step on and the cuts of the next round.

    The gradient of the step is returned too, with what its cut and hidden categories lost.

    Parameters
    ----------
    released : NoisyBlock
        Counts of sizes; those of curvatures are there in the first such round only.
    now, following : sequences of Block
        Blocks of this round and of the next one.
    most, growth : (float, float)
        Largest usual sizes of gradients and curvatures at the null model, and the factors by which
        they may grow until the next round.
    move : function
        Returns the solution one step on.
    typical : float
        Factor of the size that half of the units reach, if sizes were raised.
    steepest : float
        As of :func:`read_step`.
    """
    counts, noise_std = released.in_records()
    columns, weights = fit.columns, {block.name: block.weight for block in following}
    sizes = next(block for block in now if block.name == "sizes")
    multiplier = _Z * noise_std * sqrt(sizes.weight / sizes.shape[0])

    def price(name: str) -> float:
        return multiplier / sqrt(weights[name])

    tail = Tail.of(counts[0], noise_std, most[0], columns.n, steepest)
    cut, lost = tail.cut(price("gradient"))
    first = len(counts) == 2
    if first:  # the first cut did not know the sizes
        gradient = replace(gradient, lost=float(tail.excess(np.array([fit.cut]))[0]))
    usual = float(CLASSES[middle_class(counts[0], columns.n)]) * typical
    hidden = _SAME_WAY * usual * float(columns.rare[columns.shown == 0].sum())
    gradient = replace(gradient, lost=hypot(gradient.lost, hidden))
    fit = replace(
        fit,
        weights=move(fit, gradient).weights,
        cut=growth[0] * cut,
        lost=hypot(growth[0] * lost, hidden),
    )
    if first:
        tail = Tail.of(counts[1], noise_std, most[1], columns.n, steepest)
        length, lost = tail.cut(price("curvature"))
        # Sizes were counted at the null model; elsewhere most weights may be larger.
        fit = replace(fit, length=length * growth[1], lost_curvature=lost * growth[1])
    if "sandwich" in weights:
        # Products of long gradients need a cut of their own: noise grows with its square.
        at = cut_of_squares(counts[0], noise_std, columns.n, price("sandwich"))
        fit = replace(fit, squares_cut=at)
    if "residual_square" in weights:
        # A gradient is a row times its residual. Rows of the usual length leave the residual.
        row = sqrt(max(float(np.trace(fit.of_curvature.matrix)) / columns.n, 1.0))
        at, lost = tail.cut_of_squares(price("residual_square"))
        fit = replace(fit, residual_cut=at / row, lost_residual=lost / row**2)
    return fit, gradient


def limited(
    fit: Fitted,
    gradients: Sequence[Gradient],
    prior: Prior,
    farthest: Floats,
    *,
    drift: float,
    last: bool = False,
) -> Solution:
    """Return the solution one step on, whose weights are not too far away.

    A step follows a noisy curvature, which may be far too flat. `farthest` has a length for each
    weight.
    """
    found = moved(fit.weights, gradients, fit.of_curvature, prior, drift=drift, last=last)
    weights = fit.weights + np.clip(found.weights - fit.weights, -farthest, farthest)
    return replace(found, weights=np.clip(weights, -_LARGEST, _LARGEST))
