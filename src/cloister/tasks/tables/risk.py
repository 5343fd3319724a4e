"""What noisy tables say of a scorecard: weights of evidence, information, separation, fairness.

Every function takes **raw** noisy counts, which may be below 0, and `s`, the standard
deviation of the independent noise of each. A noise interval is for what the same records would say
without noise; for a population interval cells are independent Poisson numbers as well, so that a
cell varies by its own size, too.

**Bias.** Information values, stability indices and Kolmogorov-Smirnov distances are convex: noise
makes them larger on average, and so does sampling. What a quadratic form of the errors adds is
taken away, the noise's from the value and its noise interval, that of sampling from the population
interval, too. Near 0 such a number varies as chi-squared does and far from it as a normal number,
so an interval is made of all values `t` that are within 1.96 deviations of the estimate, where its
variance is the one it would have at `t` [W27]_.

References
----------
.. [W27] Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22,
   1927: an interval by the variance at the value that is asked about.
.. [S06] Siddiqi, "Credit Risk Scorecards", Wiley 2006: weight of evidence, information value,
   population stability index.
.. [HPS16] Hardt, Price and Srebro, "Equality of opportunity in supervised learning", NIPS 2016.
.. [ZD08] Zou and Donner, "Construction of confidence limits about effect measures", Statistics in
   Medicine 27, 2008: limits of a difference from those of its parts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cloister.core.arrays import Floats, Integers
from cloister.core.estimate import Estimate, Interval
from cloister.core.randomness import public_generator
from cloister.protocol.task import INTERVAL_95
from cloister.tasks.population import Bounds
from cloister.tasks.scores import share_of
from cloister.tasks.tables.inference import ratio_of_pairs, relative_risk

FARTHEST = 8.0
"""The largest weight of evidence; an interval that ends here has no bound on this side."""
LARGEST = 16.0
"""The largest information value or stability index."""
_Z = INTERVAL_95["gaussian"]
_CLEAR, _LEAST = 5.0, 10.0  # deviations of its noise, and records, that a pooled cell is above
_HALF = 0.5  # of a record: an empty cell's weight of evidence is finite
_DRAWS, _STEPS = 1000, 8


def _unknown(value: float, low: float, high: float) -> Estimate:
    """Return a number that may be anything possible."""
    at, *ends = (np.full(1, part) for part in (value, low, high))
    return Estimate(at, *ends, population=(ends[0], ends[1]))


# Ratios of shares ---------------------------------------------------------------------------------


def _ratio(cells: Floats, s: Floats, walls: Bounds) -> Estimate:
    """Return the ratio of shares of tables, whose value is finite where a cell is empty."""
    (a, b), (c, d) = np.moveaxis(np.maximum(cells, _HALF), (-2, -1), (0, 1))
    found, _ = relative_risk(cells, s, walls)
    return replace(found, values=np.clip(a / (a + b) * (c + d) / c, found.low, found.high))


def weights_of_evidence(table: Floats, s: float) -> Estimate:
    """Return ``ln`` of the part of those without the event over the part of those with it [S06]_.

    Parameters
    ----------
    table : ndarray of shape (n_bins, 2)
        Without the event, with it.
    """
    rest = table.sum(axis=0) - table
    noise = s * np.sqrt([1.0, len(table) - 1.0])
    walls = float(np.exp(-FARTHEST)), float(np.exp(FARTHEST))
    found = _ratio(np.stack([table, rest], axis=-1), noise, walls).mapped(np.log)
    return replace(found, values=np.clip(found.values, -FARTHEST, FARTHEST))


def compared(counts: Floats, cut: int, s: float) -> dict[str, Estimate]:
    """Return rates of groups, and differences and ratios of each to the first [HPS16]_.

    Parameters
    ----------
    counts : ndarray of shape (n_groups, n_decisions)
    cut : int
        The first decision that is to select.
    """
    parts, wholes = counts[:, cut:].sum(axis=1), counts.sum(axis=1)
    noise = s**2 * np.array([counts.shape[1] - cut, cut])
    rates = share_of(parts, wholes, noise[0], noise.sum())
    sides = np.column_stack([parts, wholes - parts])
    pairs = np.stack([sides, np.broadcast_to(sides[0], sides.shape)], axis=1)[1:]
    ends = (rates.low, rates.high), rates.population or (rates.low, rates.high)
    limits = [_difference(rates.values, *pair) for pair in ends]
    apart = Estimate(rates.values[1:] - rates.values[0], *limits[0], population=limits[1])
    times = _ratio(pairs, np.sqrt(noise), (1e-3, 1e3))
    return {"": rates, "_difference": apart, "_ratio": times}


def _difference(value: Floats, low: Floats, high: Floats) -> Interval:
    """Return limits of differences to the first number, whose error is independent [ZD08]_."""
    below, above, gap = value - low, high - value, value[1:] - value[0]
    return gap - np.hypot(below[1:], above[0]), gap + np.hypot(above[1:], below[0])


# Divergences --------------------------------------------------------------------------------------


def pools(table: Floats, s: float) -> Integers:
    """Return the pool of neighbouring bins that each bin is in, from 0.

    A pool is closed as soon as both of its noisy counts are above 5 deviations of their noise and
    above 10 records. The last bins join the pool before, and pools join until both counts are above
    half of that. The logarithm of a share needs counts that stand out.
    """
    n, starts = len(table), [0]

    def clear(end: int, part: float = 1.0) -> bool:
        least = part * max(_CLEAR * s * np.sqrt(end - starts[-1]), _LEAST)
        return bool((table[starts[-1] : end].sum(axis=0) > least).all())

    for end in range(1, n + 1):
        if clear(end):
            starts.append(end)
    starts = starts[:-1] or starts  # what was not closed
    while len(starts) > 1 and not clear(n, 0.5):
        starts.pop()
    return np.searchsorted(starts, np.arange(n), side="right") - 1


def divergence(table: Floats, s: float) -> tuple[Estimate, Integers]:
    """Return ``sum of (p - q) ln(p / q)`` of both columns, and the pools that it is made of.

    It is the information value of bins where the columns are those without the event and with it,
    and the population stability index where they are two populations [S06]_. Pools have no more of
    it than the bins. Where there is one pool, nothing is known.
    """
    pool = pools(table, s)
    sizes = np.bincount(pool)
    cells: Floats = np.stack([np.bincount(pool, table[:, k]) for k in (0, 1)], axis=1, dtype=float)
    if len(sizes) < 2:
        return _unknown(0.0, 0.0, LARGEST), pool
    noise = np.repeat(sizes * s**2, 2).reshape(-1, 2)
    value, gradient, curvature = _jeffreys(cells)

    def around(variances: Floats) -> Estimate:
        spread = variances.T.ravel()
        turned = curvature * spread
        linear, least = float(gradient**2 @ spread), float((turned * turned.T).sum()) / 2
        found = _convex(value, turned.trace() / 2, linear, least)
        return replace(found, low=np.minimum(found.low, _downhill(cells, variances)))

    narrow, wide = around(noise), around(np.maximum(cells, 0.0) + noise)
    found = replace(narrow, population=(wide.low, wide.high))
    return found.mapped(lambda part: np.clip(part, 0.0, LARGEST)), pool


def _downhill(cells: Floats, variances: Floats) -> float:
    """Return about the least divergence of counts that are 1.96 deviations away.

    Down the gradient in short steps: near small counts it falls less than the gradient here says.
    """
    for _ in range(_STEPS):
        _, gradient, _ = _jeffreys(cells)
        falls = gradient.reshape(2, -1).T
        deviation = float(np.sqrt((falls**2 * variances).sum()))
        if deviation == 0:
            break
        cells = np.maximum(cells - _Z / _STEPS * variances * falls / deviation, 1.0)
    return _jeffreys(cells)[0]


def _jeffreys(cells: Floats) -> tuple[float, Floats, Floats]:
    """Return the divergence of two columns of counts, its gradient and its second derivatives.

    Derivatives are by the counts, those of the first column before those of the second.
    """
    sizes, n = cells.sum(axis=0), len(cells)
    p, q = shares = (cells / sizes).T
    slopes = np.log(p / q) + 1 - q / p, np.log(q / p) + 1 - p / q
    moved, curved = np.zeros((2, 2 * n, 2 * n))  # shares by counts, and what their bends add
    for k, (share, slope) in enumerate(zip(shares, slopes, strict=True)):
        at, mean = slice(k * n, (k + 1) * n), share @ slope
        moved[at, at] = (np.eye(n) - share[:, None]) / sizes[k]
        curved[at, at] = (2 * mean - slope[:, None] - slope) / sizes[k] ** 2
    mixed = -np.diag(1 / p + 1 / q)
    bends = np.block([[np.diag(1 / p + q / p**2), mixed], [mixed, np.diag(1 / q + p / q**2)]])
    value = float((p - q) @ np.log(p / q))
    return value, np.concatenate(slopes) @ moved, moved.T @ bends @ moved + curved


def _convex(value: float, bias: float, linear: float, least: float) -> Estimate:
    """Return a convex number without its bias, and all values that its variance allows.

    Parameters
    ----------
    bias : float
        What errors add on average.
    linear, least : float
        Its variance by the gradient, which grows as the number itself does, and at 0.
    """
    near = value - bias
    slope = linear / value if value > 0 else 0.0
    middle = near + _Z**2 * slope / 2
    reach = _Z * np.sqrt(max(slope * near + (_Z * slope) ** 2 / 4 + least, 0.0))
    return Estimate(*(np.maximum([end], 0.0) for end in (near, middle - reach, middle + reach)))


# Separation by an ordered score -------------------------------------------------------------------


def below(table: Floats, s: float) -> Estimate:
    """Return the part of each column below each edge of the bins; shape (n_bins + 1, n_columns)."""
    n = len(table)
    sums = np.concatenate([np.zeros((1, table.shape[1])), np.cumsum(table, axis=0)])
    cells = np.arange(n + 1.0)[:, None]
    found = share_of(sums, sums[-1], cells * s**2, n * s**2)
    found = replace(found, values=np.maximum.accumulate(found.values, axis=0))
    outer = (cells == 0) | (cells == n)  # where nobody is below, and everybody
    return found.mapped(lambda part: np.where(outer, cells / n, part))


def gain(table: Floats, s: float, rising: bool) -> tuple[Estimate, Floats]:
    """Return the part with the event among the riskiest 0, 1, 2, ... bins, and their part of all.

    `rising` says whether higher bins are the riskier ones. Shapes (n_bins + 1,).
    """
    riskiest = table[::-1] if rising else table
    reach = below(riskiest.sum(axis=1, keepdims=True), s).values[:, 0]
    return below(riskiest, s).mapped(lambda part: part[:, 1]), reach


def kolmogorov(table: Floats, s: float) -> Estimate:
    """Return the largest distance of the columns' distributions at an edge; shape (1,).

    Its square loses what noise adds, by public normal draws of the errors around what was found;
    the lower end also loses what they add without any distance, for where many edges are alike.
    """
    n, sizes = len(table), table.sum(axis=0)
    if (sizes <= _CLEAR * s * np.sqrt(n)).any():
        return _unknown(0.0, 0.0, 1.0)
    shares = np.cumsum(table, axis=0)[:-1] / sizes
    apart = shares[:, 0] - shares[:, 1]
    steps = (np.tri(n)[:-1, :, None] - shares[:, None]) / sizes * (1.0, -1.0)  # edge, bin, column
    draws = public_generator(0, "distances").normal(size=(_DRAWS, n, 2))
    value, at = float((apart**2).max()), int(np.abs(apart).argmax())

    def around(variances: Floats) -> Estimate:
        errors = np.einsum("dbk,ebk->de", draws * np.sqrt(variances), steps, optimize=True)
        bias = float(((apart + errors) ** 2).max(axis=1).mean()) - value
        own = float((steps[at] ** 2 * variances).sum())
        alone = (errors**2).max(axis=1)  # what there would be without a distance; no normal number
        average = float(alone.mean())
        least = (float(np.quantile(alone, 0.95)) - average) / _Z
        found, low = (_convex(value, b, 4 * value * own, least**2) for b in (bias, bias + average))
        return replace(found, low=np.minimum(low.low, found.values)).mapped(np.sqrt)

    noise = np.full(table.shape, s**2)
    narrow, wide = around(noise), around(np.maximum(table, 0.0) + noise)
    found = replace(narrow, population=(wide.low, wide.high))
    return found.mapped(lambda part: np.minimum(part, 1.0))


def gini(table: Floats, s: float) -> Estimate:
    """Return the Gini coefficient of the bins: two times the area under the curve, less 1.

    It is above 0 where those with the event are in higher bins. Pairs in one bin count as none.
    """
    n = len(table)
    if (table.sum(axis=0) <= 0).any():
        return _unknown(0.0, -1.0, 1.0)
    order, every = np.tri(n, k=-1) - np.tri(n, k=-1).T, np.ones((n, n))
    forms = [np.kron([[0, 0], [1, 0]], part) for part in (order, every)]
    cells, noise = table.T.ravel(), np.full(2 * n, s**2)
    pairs = np.array([part + part.T for part in forms])
    found, _ = ratio_of_pairs(
        pairs, cells, noise, np.maximum(cells, 0.0) + noise, walls=(-1.0, 1.0)
    )
    return found.mapped(np.atleast_1d)
