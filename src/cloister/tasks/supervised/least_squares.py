"""What noisy products, and a noisy gradient over whole rows, say of least squares.

The products are of shortened rows and give a first model and the curvature. The gradient is of
whole rows at that model: one step from it, and least squares are reached whatever the weights of
the first model's rows were. All here is made from released values.

In what follows `counts` are noisy numbers of records by the class of their size, of shape
``(len(EDGES),)``; `noise_std` is the noise of each of them, and `n` the noisy number of all
records. `levels` are those of each column of the model: 0 for numbers, else the number of
categories. A `price` is the half-width of the noise of a sum of gradients, for each unit of size.

References
----------
.. [LW04] Ledoit, Wolf, "A well-conditioned estimator for large-dimensional covariance matrices",
   Journal of Multivariate Analysis 88(2), 2004: drawing noisy covariances toward their diagonal.
.. [H75] Hill, "A simple general approach to inference about the tail of a distribution",
   Annals of Statistics 3(5), 1975: tails that fall like a power.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2, sqrt

import numpy as np

from cloister.core.arrays import Flags, Floats
from cloister.protocol.task import INTERVAL_95

EDGES = 2.0 ** (np.arange(-64, 65) / 4)
"""Upper ends of the classes in which sizes of gradients are counted, four to an octave."""
_OCTAVE = 4
_WINDOW = 2 * _OCTAVE  # classes above one that are counted together
_SEEN = 2.0  # deviations from which lengths are taken to be there
_SURE = 3.0  # deviations above which a count is relied on
_FLATTEST, _STEEPEST = 1.3, 1.8  # powers of a tail
_FARTHEST = 4 * _OCTAVE
_SAME_WAY = 1.0  # of what is cut off, how much pulls in one direction

SPREAD = 2.0
"""Deviation of weights before any data, columns and target in their standard deviations."""
NO_SHRINKAGE = 1e6
_MOST_LONGER = 1e4  # times, that a sum of squares of whole rows may be above that of shortened
_COARSE = 1.3  # times, by which classes may overstate a sum of squares
_DOUBT = 0.5  # of the last step: how far the curvature may be wrong
_HIDDEN = 0.5  # correlation that a column which drowns may have with what is left
_LEAST_NOISE = 0.5  # of its variance, which products drawn toward their diagonal keep
_DROWNED = 4.0  # deviations


def cut_of(counts: Floats, noise_std: float, n: float, price: float) -> tuple[int, float]:
    """Choose the size beyond which gradients are shortened, from counts of their sizes.

    Returns
    -------
    cut : int
        Of the edge for which the noise, and the influence of what is beyond, are least together.
    influence : float
        Bound on the length of the sum of all that is cut off, in the size of the cut.

    Notes
    -----
    Counts below their noise say nothing, so the tail is continued from the last count that can be
    relied on as a power, as steep as its last octave [H75]_; lighter tails end earlier.
    """
    reached = np.concatenate([np.cumsum(counts), np.zeros(_WINDOW)])
    middle = int(np.argmax(reached[: len(counts)] > n / 2))
    padded = np.append(counts, np.zeros(_WINDOW + 1))
    beyond = np.array([padded[k + 1 : k + 1 + _WINDOW].sum() for k in range(len(counts))])
    # `beyond` sums _WINDOW counts of independent noise.
    error = noise_std * sqrt(_WINDOW)
    last = middle
    while last + 1 < len(counts) and beyond[last + 1] > _SURE * error:
        last += 1
    left = max(beyond[last] + error, 1e-9)
    before = max(beyond[max(last - _OCTAVE, 0)], left)
    power = float(np.clip(log2(before / left), _FLATTEST, _STEEPEST))
    places = np.arange(last, min(last + _FARTHEST, len(counts)))
    rows = left * (EDGES[places] / EDGES[last]) ** -power
    rows = np.minimum(rows, np.maximum(beyond[places], 0) + 2 * error)
    # Of a power law, the mean excess above an edge is the edge over (power - 1).
    influence = _SAME_WAY * rows / (power - 1)
    total = EDGES[places] * np.hypot(price, influence)
    best = int(total.argmin())
    return int(places[best]), float(influence[best])


def cut_of_squares(counts: Floats, longest: int, price: float) -> int:
    """Return the edge beyond which gradients are shortened for the sum of their products.

    For it the noise and what squares lose are least together; sizes are seen up to the class
    `longest`, and the price is for each unit of squared size.
    """
    squares = EDGES[: longest + 1] ** 2
    lost = np.maximum(squares - squares[:, None], 0.0) @ counts[: longest + 1]
    return int((price * squares + np.maximum(lost, 0.0)).argmin())


def usual_length(counts: Floats, noise_std: float, n: float) -> int:
    """Return the edge below which nearly all lengths lie."""
    place = middle_length(counts, n)
    few = _SEEN * noise_std * sqrt(_WINDOW)
    while place + 1 < len(counts) and counts[place + 1 : place + 1 + _WINDOW].sum() > few:
        place += 1
    return place


def middle_length(counts: Floats, n: float) -> int:
    """Return the edge below which half of the lengths lie."""
    return int(np.argmax(np.cumsum(counts) > n / 2))


def unseen_square(counts: Floats, noise_std: float, longest: int, seen: float) -> float:
    """Return the sum of squared lengths that columns by themselves do not show.

    Rows are seen up to the class `longest`; `seen` is the sum of squares of all columns.
    """
    squares = EDGES[: longest + 1] ** 2 * 2**-0.25  # in the middle of a class
    error = noise_std * sqrt(float(squares @ squares))
    return max(float(counts[: longest + 1] @ squares) - error - _COARSE * seen, 0.0)


def sum_zero_basis(levels: Sequence[int]) -> Floats:
    """Return an orthonormal basis of the coefficients that sum to 0 over each column's categories.

    Shape (width, width - n_columns_of_categories); the constant is the last of both.
    """
    width = 1 + sum(level or 1 for level in levels)
    columns, place = [], 0
    for level in levels:
        for k in range(1, level or 2):
            column = np.zeros(width)
            if level:  # Helmert's contrasts
                column[place : place + k] = 1 / sqrt(k * (k + 1))
                column[place + k] = -k / sqrt(k * (k + 1))
            else:
                column[place] = 1.0
            columns.append(column)
        place += level or 1
    constant = np.zeros(width)
    constant[-1] = 1.0
    return np.stack([*columns, constant], axis=1)


@dataclass(frozen=True)
class Curvature:
    """What is known of the sum of products of whole rows."""

    matrix: Floats
    noise_std: float  # of an entry off the diagonal, once drawn toward the diagonal
    doubt: Floats  # part of itself by which each column may be wrong besides
    drowned: Flags  # columns whose coefficient is not known at all


def curvature_of(
    products: Floats, noise_std: float, alike: Floats, levels: Sequence[int]
) -> Curvature:
    """Return what noisy products of rows say of those without noise.

    `noise_std` is of an entry off the diagonal; one on it has sqrt(2) times as much. Entries off
    the diagonal are drawn to 0 as far as they are noise [LW04]_. A column of which hardly two
    values are seen to differ, where `alike` is 1, drowns where its products are not well above
    their noise, the part that is one with the constant left out.
    """
    diagonal = np.diag(products)
    apart = diagonal - products[-1] ** 2 / max(diagonal[-1], noise_std, 1e-300)  # of their mean
    drowned = (alike > 0) & (apart < _DROWNED * sqrt(2) * noise_std)
    off = products[np.triu_indices(len(products), 1)]
    # The noise adds its variance to the mean square of the entries.
    real = max(float(np.mean(off**2)) - noise_std**2, 0.0) if off.size else 0.0
    kept = real / max(real + noise_std**2, 1e-300)
    matrix = products * kept
    place = 0
    for level in levels:  # categories of one column are never together
        part = slice(place, place + (level or 1))
        matrix[part, part] = products[part, part]
        place += level or 1
    matrix[np.diag_indices(len(matrix))] = np.maximum(diagonal, noise_std)
    doubt = np.full(len(matrix), _DOUBT)
    return Curvature(matrix, noise_std * sqrt(max(kept, _LEAST_NOISE)), doubt, drowned)


def of_whole_rows(curvature: Curvature, squares: Floats, unseen: float, usual: float) -> Curvature:
    """Return what the curvature of shortened rows says of that of whole ones.

    `squares` are sums of squares of whole columns as far as they are seen, `unseen` may be in any
    of them besides, and `usual` is by how much the squared length of a usual row was shortened. A
    step that is too short leaves a part of the way, one that is too long may end anywhere: what is
    unseen counts for every column, and as doubt.
    """
    diagonal = np.maximum(np.diag(curvature.matrix), 1e-9)
    longer = np.sqrt(np.clip((squares + unseen) / diagonal, usual, _MOST_LONGER))
    longer[-1] = 1.0
    doubt = curvature.doubt + unseen / np.maximum(squares, diagonal)
    matrix = curvature.matrix * np.outer(longer, longer)
    return Curvature(matrix, curvature.noise_std, doubt, curvature.drowned)


@dataclass(frozen=True)
class Fit:
    """Weights of rows with the covariance of all that may move them."""

    weights: Floats  # the likeliest, drawn to where the step began as far as noise asks for it
    around: Floats  # middle of the intervals, hardly drawn
    noise: Floats  # covariance about it
    inverse: Floats  # of the curvature, as far as it is known


def step(
    curvature: Curvature,
    levels: Sequence[int],
    penalty: Floats,
    gradient: Floats,
    *,
    noise_std: float,
    bias: float = 0.0,
    start: Floats | None = None,
    spread: float = SPREAD,
    hidden: float = 1.0,
    energy: float = np.inf,
) -> Fit:
    """Return the model one step from another, where the released gradient vanishes.

    Parameters
    ----------
    gradient : ndarray of shape (width,)
        Sum of rows times residuals at `start`; `noise_std` is the noise of each entry.
    bias : float
        Length of what the gradient may lack besides.
    start : ndarray of shape (width,), optional
        0 if not given. The noise of the curvature counts for what is left of the way.
    spread : float
        Before any data, weights are taken to be near 0 with this deviation.
    energy : float
        Sum of squared residuals at `start`: no product of a column and residuals is above the root
        of both sums of squares, so a large gradient shows a large curvature.
    hidden : float
        Deviation of the target, which a column that drowns may hide.

    Notes
    -----
    The covariance holds noise of the gradient and of the curvature, what the prior draws to 0, what
    was cut off, and what is hidden in columns that drowned; these have weight 0 and no covariance.
    """
    kept = ~curvature.drowned
    basis = sum_zero_basis(levels)[kept]
    basis = basis[:, np.abs(basis).sum(axis=0) > 0]
    matrix = basis.T @ (curvature.matrix[np.ix_(kept, kept)] + np.diag(penalty[kept])) @ basis
    before = np.zeros(len(penalty)) if start is None else start
    first = basis.T @ before[kept]
    target = basis.T @ (gradient - penalty * before)[kept]
    values, vectors = np.linalg.eigh(matrix)
    values = np.maximum(values, (vectors.T @ target) ** 2 / energy)
    width = len(values)
    tiny = 1e-12 * max(float(np.abs(values).max()), 1.0)
    # noise makes eigenvalues too: of a matrix of noise they have this mean square
    made = curvature.noise_std**2 * (width + 1)
    squared = np.maximum(values**2 - made, 0.0) * (values > 0)
    now = first
    variance = tiny**2
    for _ in range(3):  # the noise of the curvature comes in times the way, which is not known yet
        moved = now - first
        variance = max(noise_std, tiny) ** 2 + curvature.noise_std**2 * float(moved @ moved)
        below = squared + variance / spread**2
        filtered = np.sqrt(squared) / below
        drawn = variance / spread**2 / below
        along = filtered * (vectors.T @ target) - drawn * (vectors.T @ first)
        now = first + vectors @ along
    moved = now - first
    near = now
    if spread <= SPREAD:
        likely = _likely(squared, vectors.T @ target, variance)
        shrunk = np.sqrt(squared) / (squared + variance / likely**2)
        near = first + vectors @ (shrunk * (vectors.T @ target))
    inverse = (vectors * filtered) @ vectors.T
    inner = variance * np.eye(width) + curvature.noise_std**2 * np.outer(moved, moved)
    inner += np.eye(width) * (bias / INTERVAL_95["gaussian"]) ** 2 / sqrt(width)
    covariance = inverse @ inner @ inverse.T
    covariance += (vectors * (drawn * spread) ** 2) @ vectors.T
    if start is not None:
        unsure = basis.T @ (curvature.doubt[kept] * (basis @ moved))
        covariance += np.diag((unsure / INTERVAL_95["gaussian"]) ** 2)
    if curvature.drowned.any():
        covariance += (_HIDDEN * hidden) ** 2 * curvature.matrix[-1, -1] * inverse

    def back(inside: Floats) -> Floats:
        full = np.zeros((len(penalty), len(penalty)))
        full[np.ix_(kept, kept)] = basis @ inside @ basis.T
        return full

    weights, around = np.zeros(len(penalty)), np.zeros(len(penalty))
    weights[kept] = basis @ near
    around[kept] = basis @ now
    return Fit(weights, around, back(covariance), back(inverse))


def _likely(squared: Floats, target: Floats, variance: float) -> float:
    """Return the deviation of a step for which its noisy equations are likeliest."""
    best, most = SPREAD, -np.inf
    for spread in SPREAD * 2.0 ** -np.arange(10):
        total = squared * spread**2 + variance
        likelihood = -float((np.log(total) + target**2 / total).sum())
        if likelihood > most:
            best, most = float(spread), likelihood
    return best
