"""Least squares from noisy products of rows and a noisy gradient over whole rows.

The products of clipped rows give a first model and the curvature. The gradient of whole rows at
that model gives one step, which leads to least squares for all weights of the first model's rows.
Everything here is a function of released values.

Below, `counts` are noisy numbers of records by the class of their size, of shape
``(len(EDGES),)``. `noise_std` is the noise of each of them, and `n` the noisy number of all
records. `levels` are those of each column of the model: 0 for numbers, else the number of
categories. A `price` is the half-width of the noise of a sum of gradients, per unit of size.

References
----------
.. [LW04] Ledoit, Wolf, "A well-conditioned estimator for large-dimensional covariance matrices",
   Journal of Multivariate Analysis 88(2), 2004: shrinkage of noisy covariances to their diagonal.
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
_SEEN = 2.0  # deviations of noise above which counts of lengths are used
_SURE = 3.0  # deviations of noise above which a count is relied on
_FLATTEST, _STEEPEST = 1.3, 1.8  # powers of a tail
_FARTHEST = 4 * _OCTAVE
_SAME_WAY = 1.0  # share of the clipped parts that point in the same direction

SPREAD = 2.0
"""Prior deviation of weights, with columns and target in their standard deviations."""
NO_SHRINKAGE = 1e6
_MOST_LONGER = 1e4  # largest ratio of sums of squares of whole rows to those of clipped rows
_COARSE = 1.3  # largest factor by which classes overstate a sum of squares
_DOUBT = 0.5  # relative error of the curvature in the last step
_HIDDEN = 0.5  # largest correlation of a column below its noise with the residual
_LEAST_NOISE = 0.5  # least share of its variance that shrunk products keep
_DROWNED = 4.0  # deviations


def cut_of(counts: Floats, noise_std: float, n: float, price: float) -> tuple[int, float]:
    """Choose the size at which gradients are clipped, from counts of their sizes.

    Returns
    -------
    cut : int
        Index of the edge with the least sum of noise and influence of the records beyond.
    influence : float
        Bound on the length of the sum of all clipped parts, in units of the cut.

    Notes
    -----
    Counts below their noise are uninformative. The tail is extrapolated from the last reliable
    count as a power, with the slope of its last octave [H75]_. Lighter tails end earlier.
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
    """Return the edge at which gradients are clipped for the sum of their products.

    It minimises the sum of the noise and of the loss of squares. Sizes are counted up to the class
    `longest`, and the price is per unit of squared size.
    """
    squares = EDGES[: longest + 1] ** 2
    lost = np.maximum(squares - squares[:, None], 0.0) @ counts[: longest + 1]
    return int((price * squares + np.maximum(lost, 0.0)).argmin())


def usual_length(counts: Floats, noise_std: float, n: float) -> int:
    """Return the edge that nearly all lengths are below."""
    place = middle_length(counts, n)
    few = _SEEN * noise_std * sqrt(_WINDOW)
    while place + 1 < len(counts) and counts[place + 1 : place + 1 + _WINDOW].sum() > few:
        place += 1
    return place


def middle_length(counts: Floats, n: float) -> int:
    """Return the edge that half of the lengths are below."""
    return int(np.argmax(np.cumsum(counts) > n / 2))


def unseen_square(counts: Floats, noise_std: float, longest: int, seen: float) -> float:
    """Return the sum of squared lengths that the histograms of columns miss.

    Rows are counted up to the class `longest`; `seen` is the sum of squares of all columns.
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
    """Estimate of the sum of products of whole rows, with its errors."""

    matrix: Floats
    noise_std: float  # of an entry off the diagonal, after shrinkage to the diagonal
    doubt: Floats  # additional relative error of each column
    drowned: Flags  # columns whose coefficient is unknown


def curvature_of(
    products: Floats, noise_std: float, alike: Floats, levels: Sequence[int]
) -> Curvature:
    """Return the curvature without noise, estimated from noisy products of rows.

    `noise_std` is that of an entry off the diagonal; one on it has sqrt(2) times as much. Entries
    off the diagonal are shrunk to 0 by their share of noise [LW04]_. `alike` is 1 for a column
    whose values hardly differ. Its coefficient is unknown if its products are not well above their
    noise, after its mean is subtracted.
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
    for level in levels:  # categories of a column never occur together, so their products are kept
        part = slice(place, place + (level or 1))
        matrix[part, part] = products[part, part]
        place += level or 1
    matrix[np.diag_indices(len(matrix))] = np.maximum(diagonal, noise_std)
    doubt = np.full(len(matrix), _DOUBT)
    return Curvature(matrix, noise_std * sqrt(max(kept, _LEAST_NOISE)), doubt, drowned)


def of_whole_rows(curvature: Curvature, squares: Floats, unseen: float, usual: float) -> Curvature:
    """Return the curvature of whole rows, estimated from that of clipped rows.

    `squares` are the sums of squares of whole columns from their histograms. `unseen` may be added
    to any of them, and `usual` is the ratio of the squared length of a typical row to its clipped
    one. A step that is too short leaves a part of the error, and one that is too long may diverge.
    So `unseen` is added to every column, and to its doubt.
    """
    diagonal = np.maximum(np.diag(curvature.matrix), 1e-9)
    longer = np.sqrt(np.clip((squares + unseen) / diagonal, usual, _MOST_LONGER))
    longer[-1] = 1.0
    doubt = curvature.doubt + unseen / np.maximum(squares, diagonal)
    matrix = curvature.matrix * np.outer(longer, longer)
    return Curvature(matrix, curvature.noise_std, doubt, curvature.drowned)


@dataclass(frozen=True)
class Fit:
    """Weights of rows with the covariance of their errors."""

    weights: Floats  # most likely weights, shrunk to the start of the step according to the noise
    around: Floats  # middle of the intervals, hardly shrunk
    noise: Floats  # covariance about it
    inverse: Floats  # regularised inverse of the curvature


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
        Length of the part of the gradient that clipping may have removed.
    start : ndarray of shape (width,), optional
        0 if not given. The noise of the curvature counts in proportion to the length of the step.
    spread : float
        Deviation of the prior distribution of weights, whose mean is 0.
    energy : float
        Sum of squared residuals at `start`. The product of a column and the residuals is at most
        the root of both sums of squares, so a large gradient implies a large curvature.
    hidden : float
        Deviation of the target that a column below its noise may hide.

    Notes
    -----
    The covariance includes the noise of the gradient and of the curvature, the shrinkage of the
    prior, and the clipping. It also includes the effect of columns below their noise, which have
    weight 0 and no covariance.
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
    # The mean square of the eigenvalues of a matrix of noise.
    made = curvature.noise_std**2 * (width + 1)
    squared = np.maximum(values**2 - made, 0.0) * (values > 0)
    now = first
    variance = tiny**2
    # The noise of the curvature counts in proportion to the step, which is found by iteration.
    for _ in range(3):
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
    """Return the deviation of a step that maximises the likelihood of its noisy equations."""
    best, most = SPREAD, -np.inf
    for spread in SPREAD * 2.0 ** -np.arange(10):
        total = squared * spread**2 + variance
        likelihood = -float((np.log(total) + target**2 / total).sum())
        if likelihood > most:
            best, most = float(spread), likelihood
    return best
