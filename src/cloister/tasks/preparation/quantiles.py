"""``Quantiles``: medians and other quantiles of columns, from trees of noisy counts.

Each column's axis is divided into equal cells, these into equal cells, and so on. A record is in
one cell of each level of this tree. Noisy counts of all levels are made consistent by least squares
[H10]_, so the noise of a running sum is that of few counts. A second tree has narrow cells where
the first one found records. It makes estimates as fine as the grid for any width of the public box.

References
----------
.. [H10] Hay, Rastogi, Miklau and Suciu, "Boosting the accuracy of differentially private histograms
   through consistency", PVLDB 3(1), 2010, section 4.
.. [QYL13] Qardaji, Yang and Li, "Understanding hierarchical methods for differentially private
   histograms", PVLDB 6(14), 2013: the best number of children of a cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import inf, log, sqrt
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.arrays import Flags, Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Length, Probability, Range, Whole, declared
from cloister.core.display import Display, Estimate, Summary, Table
from cloister.core.errors import PlanError
from cloister.core.numerals import counted
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
    Block,
    Gaussian,
    NoisyBlock,
    PublicColumn,
    PublicFacts,
    Rows,
)
from cloister.tasks.columns import position
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.interval_tables import SAID, curve_of, in_days, listing, precision, undated
from cloister.tasks.options import Dates, Keep, build_task, noise_multiplier_for
from cloister.tasks.preparation.ticks import AllTicks, Ticks, check_ticks, ticks_of

BRANCHES = 4  # children of a cell; with 256 cells, 4 minimises the noise of running sums [QYL13]_
Probabilities = Annotated[tuple[Probability, ...], Length(1)]
Levels = Annotated[int, Range(1, 6)]
Used = Annotated[tuple[Annotated[int, Range(0)], ...], Length(1)]
"""The columns of numbers of a task."""
TreeLevels = Annotated[Levels | None, "of a tree of counts; chosen from the noise by default"]
Refine = Annotated[bool, "use a second tree with finer cells where the first one found records"]
_LEVELS = (3, 6)  # minimum and maximum of the default
_MOST_WORDS = 1 << 15  # of all trees, for the default
_FIRST_SHARE = 0.25  # of the budget, for the first of two trees
_EVEN = 0.25  # share of the second tree's cells that is spread evenly over the box
_SEEN = 2.0  # a cell is refined if its count exceeds so many deviations of its noise
_SHOWN = 256  # cells of a distribution in the results
_CURVES = 6  # more curves would make a report unreadable


@declared
class Quantiles(Gaussian):
    """Quantiles and distributions of columns of numbers.

    Parameters
    ----------
    used : tuple of int
        Columns whose quantiles are released.
    levels : int
        Levels of a tree; the finest one has ``4**levels`` cells.
    rounds : int
        Number of trees: over cells of equal width, then over cells chosen from the first tree.
    ticks : tuple
        Bounds and step of each used column. Edges of cells are between ticks, so that a cell is one
        tick or several. It may be empty if no column has a step.
    dates : tuple of int
        Columns of dates, which are years with a fraction.

    Notes
    -----
    In each round a record adds one to one cell of each level for each of D used columns. So the
    squared norm of its contribution is at most ``D levels``. docs/proofs/preparation.md
    """

    name: ClassVar[str] = "quantiles"
    title: ClassVar[str] = "Quantiles"

    example: ClassVar[Example] = Example(MIXED)

    @declared
    class Options:
        probabilities: Annotated[Probabilities, "of the quantiles"] = (0.25, 0.5, 0.75)
        keep: Keep = ()
        levels: TreeLevels = None
        refine: Refine = True

    n_features: Whole
    used: Used
    probabilities: Probabilities = (0.25, 0.5, 0.75)
    levels: Levels = 4
    rounds: Annotated[int, Range(1, 2)] = 2
    ticks: AllTicks = ()
    dates: Dates = ()
    frac_bits: int = 16

    def __post_init__(self) -> None:
        check_used(self.used, self.n_features)
        check_ticks(self.ticks, len(self.used))

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Use every column of numbers except those in `keep`."""
        # Categories have numbers, too, but their order has no meaning.
        used = numbers_but(facts.columns, options.keep)
        ticks = ticks_of([facts.columns[j] for j in used], facts.frac_bits)
        levels = options.levels or usual_levels(facts, len(used), ticks)
        # Narrower cells tell nothing more where each tick has one.
        wide = any(not of[2] or Ticks(*of).many > BRANCHES**levels for of in ticks)
        return build_task(
            cls,
            facts,
            options,
            used=used,
            levels=levels,
            rounds=2 if options.refine and wide else 1,
            ticks=ticks,
        )

    def describe(self) -> str:
        closer = " A second round repeats this, with narrower cells where records were found."
        return (
            f"Counts of records in {BRANCHES**self.levels} cells of each of "
            f"{counted(len(self.used), 'column')}, and in {self.levels - 1} coarser divisions of "
            "the same boxes, all with Gaussian noise; quantiles are estimated from "
            f"them.{closer * (self.rounds == 2)}"
        )

    def start(self) -> State:
        """Return empty counts of equal cells."""
        d, n = len(self.used), BRANCHES**self.levels
        edges = self._between(np.tile(np.linspace(-1.0, 1.0, n + 1), (d, 1)))
        return {"walls": edges, "counts": np.zeros((d, n)), "next": edges, "noise": np.zeros(1)}

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return one block with all levels of all columns' trees."""
        touched = len(self.used) * self.levels
        counts = sum(BRANCHES**level for level in range(1, self.levels + 1))
        share = 1.0 if self.rounds == 1 else (_FIRST_SHARE, 1 - _FIRST_SHARE)[t]
        return (Block.counting("trees", (len(self.used), counts), share, touched),)

    def _cells_of(self, state: GridState, records: Records) -> Iterator[Integers]:
        """Yield the finest cell of each record, for each used column."""
        # Edges ascend already; they are sorted so that the bound holds for a hostile state, too.
        for j, edges in zip(self.used, np.sort(state["next"], axis=1), strict=True):
            # A value belongs to the last cell whose lower edge is at most the value.
            yield np.searchsorted(edges[1:-1], records[:, j], side="right")

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return a one in a cell of each level of each column's tree."""
        cells, start = [], 0  # cells of all levels and columns are numbered consecutively
        for finest in self._cells_of(state, records):
            for level in range(1, self.levels + 1):
                cells.append(start + finest // BRANCHES ** (self.levels - level))
                start += BRANCHES**level
        return (Rows.at(cells, [1 << COUNT_BITS] * len(cells)),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the counts of records in each cell of each level."""
        # Coarser counts are sums of the finest ones, so each record is searched only once.
        n, trees = BRANCHES**self.levels, []
        for cells in self._cells_of(state, records):
            finest = np.bincount(cells, minlength=n)
            for level in range(1, self.levels + 1):
                trees.append(finest.reshape(BRANCHES**level, -1).sum(axis=1))
        return np.concatenate(trees).astype(np.int64) << COUNT_BITS

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return consistent counts, and the cells of the next round."""
        values, noise = released["trees"].in_records()
        splits = np.cumsum([BRANCHES**level for level in range(1, self.levels)])
        counts = agreeing(np.split(values, splits, axis=1))
        edges = from_grid(state["next"], self.frac_bits)
        last = t + 1 == self.rounds
        return {
            "walls": edges,
            "counts": counts,
            # post-processing
            "next": edges if last else self._between(_sharper(edges, counts, noise)),
            "noise": np.array([noise]),
        }

    def _between(self, edges: Floats) -> Floats:
        """Return edges of cells that divide no tick."""
        if not self.ticks:
            return edges
        return np.stack([Ticks(*of).between(e) for of, e in zip(self.ticks, edges, strict=True)])

    def rank_noise(self, noise_multiplier: float, nominal_n: int) -> float:
        """Return the deviation of the share of records below a value, from public numbers."""
        # Of the last tree, because its counts replace those of the first one.
        (last,) = self.blocks(self.rounds - 1)
        element = noise_multiplier * sqrt(last.l2_squared / last.weight) / (1 << COUNT_BITS)
        inner, _ = running_variance(self.levels)
        return element * sqrt(float(inner.max())) / max(nominal_n, 1)

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the margins of error of the share of records below a value, and of the count."""
        return self._half_widths(noise_std / (1 << COUNT_BITS), float(nominal_n))

    def _half_widths(self, noise: float, count: float) -> dict[str, Floats]:
        inner, total = running_variance(self.levels)
        # The count is a mean over trees with independent noises; a rank comes from one tree.
        z = INTERVAL_95["gaussian"] * noise
        return {
            "count_half_width": np.array([z * sqrt(total / len(self.used))]),
            "rank_half_width": np.array([z * sqrt(inner.max()) / max(count, 1.0)]),
        }

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return quantiles and distributions with their 95 % noise intervals.

        Returns
        -------
        dict
            Results of :meth:`estimates`, whose distributions have at most 256 cells.
        """
        return thinned(self.estimates(state, grid))

    def estimates(self, state: GridState, grid: Grid) -> Results:
        """Return quantiles and distributions in all cells with their 95 % noise intervals.

        Returns
        -------
        dict
            ``quantiles``, ``low`` and ``high`` of shape (n_used, n_probabilities), data units. An
            interval is at least one cell wide, or one tick of a column with a step.
            ``population_low`` and ``population_high``, the ends of population intervals, of the
            same shape. ``walls``, the edges of cells in data units, and ``distribution``, the share
            of records below each edge, of shape (n_used, n_cells + 1), with ``distribution_low``
            and ``distribution_high``. ``count`` and ``count_half_width``, in records, and
            ``rank_half_width``, a share of the records, of shape (1,).
        """
        real = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        counts, noise = real["counts"], float(real["noise"][0])
        of_plan = self.ticks or ((0.0, 0.0, 0.0),) * len(self.used)
        ticks = [
            Ticks(grid.low[j], grid.high[j], step)
            for j, (*_, step) in zip(self.used, of_plan, strict=True)
        ]
        rounding = 2.0 ** -(self.frac_bits + 1)  # records were rounded to the grid on entry
        cells = [of.cells(row, rounding) for of, row in zip(ticks, real["walls"], strict=True)]
        edges, least, greatest = map(np.array, zip(*cells, strict=True))
        found = quantiles_of(edges, counts, noise, self.probabilities, (least, greatest))
        values = [of.nearest(row) for of, row in zip(ticks, found.values, strict=True)]
        wide = found.population or (found.low, found.high)
        total = float(counts.sum(axis=1).mean())  # all trees count the same records
        # The ends are of raw sums, since those of sums that rise are biased where cells are empty.
        sums, whole = _running(counts), max(total, 1.0)
        clear = _clearest(edges)
        sums = np.take_along_axis(sums, clear, axis=1)
        share = np.clip(sums / whole, 0.0, 1.0)
        variances = _variances(share, clear, *counts.shape)
        spread = INTERVAL_95["gaussian"] * noise * np.sqrt(variances) / whole
        low, high = (np.clip(sums / whole + end, 0.0, 1.0) for end in (-spread, spread))
        rising = np.clip(made_rising(sums) / whole, low, high)
        return {
            "quantiles": np.array(values),
            **{"low": found.low, "high": found.high},
            **{"population_low": wide[0], "population_high": wide[1]},
            "walls": edges,
            **Estimate(rising, low, high).named("distribution"),
            "count": np.array([total]),
            **self._half_widths(noise, total),
        }

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the middle quantile of the first columns."""
        k = len(self.probabilities) // 2
        found = with_intervals(results)
        parts = listing(
            (f"{columns[j]} ", in_days(found[i, k], j in self.dates))
            for i, j in enumerate(self.used[:SAID])
        )
        part = self.probabilities[k]
        name = "Medians" if part == 0.5 else f"Quantiles of {part:.3g}"
        counted = found[undated(self.used, self.dates)]
        return Summary(result=(f"{name}: ", *parts, "."), reliability=precision([counted]))

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return a table of quantiles, and the distributions of the first columns."""
        estimate = Estimate(*(results[name] for name in ("quantiles", "low", "high")))
        rows: tuple[tuple[str | Estimate, ...], ...] = tuple(
            (columns[j], *in_days(estimate[i], j in self.dates).cells())
            for i, j in enumerate(self.used)
        )
        headings = ("column", *(f"{p:.3g}" for p in self.probabilities))
        note = "[ , ] is a 95 % confidence interval (privacy noise only), never finer than a cell."
        curves = (
            curve_of(
                f"Distribution of {columns[j]}",
                results["walls"][i],
                results,
                "distribution",
                i,
                axes=(columns[j], "share of the records below"),
                note="The band is the 95 % confidence interval (privacy noise only) at each value.",
                dates=j in self.dates,
            )
            for i, j in enumerate(self.used[:_CURVES])
        )
        return (Table("Quantiles", headings, rows, note), *curves)


def with_intervals(results: Results) -> Estimate:
    """Return the quantiles with their intervals, of shape (n_used, n_probabilities)."""
    ends = ("quantiles", "low", "high", "population_low", "population_high")
    values, low, high, *wide = (results[name] for name in ends)
    return Estimate(values, low, high, population=(wide[0], wide[1]))


def numbers_but(columns: Sequence[PublicColumn], keep: Sequence[str]) -> tuple[int, ...]:
    """Return the columns of numbers except those in `keep`; raise PlanError if there are none."""
    kept = {position(columns, name, "keep") for name in keep}
    used = tuple(j for j, c in enumerate(columns) if not c.levels and j not in kept)
    if not used:
        raise PlanError(
            "columns must have at least one column of numbers outside keep, got none; add one, as "
            "categories have no mean and no quantiles."
        )
    return used


def check_used(used: Sequence[int], n_features: int) -> None:
    """Raise PlanError for a column that does not exist."""
    if max(used) >= n_features:
        raise PlanError(
            f"used must be columns below {n_features}, got {tuple(used)}; design the task again."
        )


def usual_levels(facts: PublicFacts, n_columns: int, ticks: AllTicks) -> int:
    """Return the number of levels at which a finest cell has about a quarter of its count's noise.

    An interval reaches to edges of cells, so wider cells would make it much wider. Noise grows
    slowly with the levels. No more levels are used than columns with a step have ticks.

    Parameters
    ----------
    n_columns : int
        Columns that share the budget.
    ticks : tuple
        Of the columns with trees.
    """
    if (multiplier := noise_multiplier_for(facts)) is None:
        raise PlanError("budget is needed to choose the levels of trees; give it, or give levels.")
    noise = multiplier * sqrt(max(n_columns, 1))  # a record adds to a cell of every column
    most_ticks = max((Ticks(*of).many if of[2] else inf for of in ticks), default=inf)
    least, most = _LEVELS
    for levels in range(1, most):
        wider = 2 * len(ticks) * BRANCHES ** (levels + 1) > _MOST_WORDS
        narrow = BRANCHES ** (levels - 1) * sqrt(levels) * noise >= facts.nominal_n
        if BRANCHES**levels >= most_ticks or (levels >= least and (narrow or wider)):
            return levels
    return most


def thinned(estimates: Results) -> Results:
    """Return estimates with distributions at every fourth edge, or fewer, if there are many."""
    each = max(1, (estimates["walls"].shape[1] - 1) // _SHOWN)
    parts = ("walls", "distribution", "distribution_low", "distribution_high")
    return {**estimates, **{name: estimates[name][:, ::each] for name in parts}}


# Trees --------------------------------------------------------------------------------------------


def agreeing(noisy: Sequence[Floats]) -> Floats:
    """Return the counts of the finest level that fit all levels best, in least squares.

    Parameters
    ----------
    noisy : sequence of ndarray of shape (n_trees, 4**level), for level 1, 2, ...
        Counts with noise of equal deviation. All trees count the same records, so their totals
        are equal.

    Notes
    -----
    Let E_k be the mean over each cell of level k, m_k the number of finest cells in one cell, and
    A_k the sums over them. The normal equations are ``(sum m_k E_k) x = sum A_k^T y_k``. The E_k
    are nested projections, so the equations separate into the spaces of ``E_k - E_(k-1)``. In
    each, the left side is the number ``sum_(l >= k) m_l``. [H10]_ computes the same estimate by two
    passes over a tree.
    """
    depth, n = len(noisy), noisy[-1].shape[1]
    summed = np.sum([np.repeat(level, n // level.shape[1], axis=1) for level in noisy], axis=0)
    factors = _precisions(depth)
    means = [_means(summed, BRANCHES**k) for k in range(depth + 1)]
    # The total is that of all trees, since all count the same records.
    counts: Floats = np.tile(means[0].mean(axis=0) / factors[0], (len(summed), 1))
    for k in range(1, depth + 1):
        counts = counts + (means[k] - means[k - 1]) / factors[k]
    return counts


@cache
def running_variance(depth: int) -> tuple[Floats, float]:
    """Return the variances of running sums of :func:`agreeing` counts, over that of a count.

    The first result has shape (4**depth + 1,). It holds the variances of the sums of the first 0,
    1, ... cells, less an equal share of the total for each cell. The second is the variance of the
    total of one tree, which is independent of these.
    """
    n, factors = BRANCHES**depth, _precisions(depth)
    sizes = np.arange(n + 1)
    # The coefficients of a running sum, averaged over cells of m: ones, one fraction, and zeros.
    norms = [
        m * (sizes // m + (sizes % m / m) ** 2)
        for m in (BRANCHES ** (depth - level) for level in range(depth + 1))
    ]
    inner: Floats = (np.diff(norms, axis=0) / factors[1:, None]).sum(axis=0)
    return inner, n / float(factors[0])


def _variances(shares: Floats, sizes: Integers, trees: int, n: int) -> Floats:
    """Return the variances of running sums less shares of the total, over that of a count.

    Parameters
    ----------
    shares : ndarray that broadcasts to `sizes`
        The total is the mean of all trees.
    sizes : ndarray of int in [0, n]
        Number of cells of each running sum.
    """
    inner, of_total = running_variance(_depth(n))
    return np.asarray(inner[sizes] + (sizes / n - shares) ** 2 * of_total / trees)


def _depth(n: int) -> int:
    return round(log(n, BRANCHES))


def _clearest(edges: Floats) -> Integers:
    """Return, for each edge, the one among those equal to it whose running sum has least noise.

    The cells between equal edges are empty, so their running sums are equal without noise.
    """
    inner, _ = running_variance(_depth(edges.shape[1] - 1))
    order = [np.lexsort((inner, row)) for row in edges]
    first = [np.searchsorted(row, row, side="left") for row in edges]
    first = np.minimum(first, edges.shape[1] - 1)  # edges of a dishonest answer need not ascend
    return np.take_along_axis(np.array(order), first, axis=1)


def _precisions(depth: int) -> Floats:
    """Return the factors of the normal equations: for the total, then level by level."""
    sizes = [BRANCHES ** (depth - level) for level in range(1, depth + 1)]
    tails = np.cumsum(sizes[::-1])[::-1]
    return np.array([tails[0], *tails], dtype=np.float64)


def _means(values: Floats, cells: int) -> Floats:
    """Return values replaced by their means over equal runs."""
    rows, n = values.shape
    return np.repeat(values.reshape(rows, cells, -1).mean(axis=2), n // cells, axis=1)


def quantiles_of(
    edges: Floats,
    counts: Floats,
    noise: float,
    probabilities: Sequence[float],
    ends: tuple[Floats, Floats] | None = None,
) -> Estimate:
    """Return quantiles of trees with their 95 % intervals; shape (n_trees, n_probabilities).

    Parameters
    ----------
    edges : ndarray of shape (n_trees, n_cells + 1), ascending
    counts : ndarray of shape (n_trees, n_cells)
        Results of :func:`agreeing`.
    noise : float, >= 0
        Standard deviation of a noisy count of the trees, in records.
    probabilities : sequence of float in (0, 1)
    ends : pair of ndarray of shape (n_trees, n_cells), optional
        The least and the greatest value in each cell; by default its edges.

    Notes
    -----
    The target is the value at which the running share of the records reaches the probability,
    without noise. The interval consists of all cells that are consistent with the noise. The
    population interval consists of all cells that are consistent with noise and sampling: the share
    below a quantile of the population has the variance ``p (1-p) / n``.
    """
    trees, n = counts.shape
    least, greatest = ends or (edges[:, :-1], edges[:, 1:])
    share, clear = np.array(probabilities)[:, None], _clearest(edges)
    sums = np.take_along_axis(_running(counts), clear, axis=1)[:, None, :]
    gap = made_rising(sums - share * sums[:, :, -1:])
    variance = _variances(share, clear[:, None, :], trees, n)
    sampling = share * (1 - share) * max(float(counts.sum()) / trees, 1.0)

    def within(variance: Floats) -> tuple[Floats, Floats]:
        reach = INTERVAL_95["gaussian"] * np.sqrt(variance)
        # The first edge with possibly enough records below it, and the last with possibly too few.
        first = _first(gap + reach >= 0)
        last = n - _first((gap - reach <= 0)[..., ::-1])
        low = np.take_along_axis(least, np.maximum(first - 1, 0), axis=1)
        high = np.take_along_axis(greatest, np.minimum(last, n - 1), axis=1)
        return np.minimum(low, high), np.maximum(low, high)

    low, high = within(noise**2 * variance)
    crossings = [
        [_crossing(of_part, edge) for of_part in of_tree]
        for edge, of_tree in zip(edges, gap, strict=True)
    ]
    value = np.clip(crossings, low, high)  # noise may cross the interval's ends
    return Estimate(value, low, high, population=within(noise**2 * variance + sampling))


def _sharper(edges: Floats, counts: Floats, noise: float) -> Floats:
    """Return edges that are closer together where records were found."""
    # Empty cells have noise, too, and must not attract the edges.
    seen = np.maximum(counts - _SEEN * noise, 0.0)
    total = seen.sum(axis=1, keepdims=True)
    # Some cells stay evenly spread, for records that the noise of the first tree hid.
    even = np.where(total > 0, _EVEN, 1.0) * np.diff(edges, axis=1) / 2
    upto = _running((1 - _EVEN) * seen / np.where(total > 0, total, 1.0) + even)
    levels = np.linspace(0.0, 1.0, edges.shape[1])
    pairs = zip(upto / upto[:, -1:], edges, strict=True)
    return np.array([np.interp(levels, reached, edge) for reached, edge in pairs])


def _running(counts: Floats) -> Floats:
    """Return the running sum at each edge, both ends included; shape (n_trees, n_cells + 1)."""
    return np.concatenate([np.zeros((len(counts), 1)), np.cumsum(counts, axis=1)], axis=1)


def made_rising(values: Floats) -> Floats:
    """Return the mean of the smallest increasing majorant and the largest increasing minorant."""
    above = np.maximum.accumulate(values, axis=-1)
    below = np.minimum.accumulate(values[..., ::-1], axis=-1)[..., ::-1]
    return (above + below) / 2


def _first(true: Flags) -> Integers:
    """Return the first true index of each row, or its last index."""
    return np.asarray(np.where(true.any(axis=-1), true.argmax(axis=-1), true.shape[-1] - 1))


def _crossing(excess: Floats, edges: Floats) -> float:
    """Return the zero of an increasing function on edges, or an end if it has none."""
    after = int(np.argmax(excess >= 0)) if excess[-1] >= 0 else len(excess) - 1
    if after == 0:
        return float(edges[0])
    step = excess[after] - excess[after - 1]
    part = min(max(-excess[after - 1] / step, 0.0), 1.0) if step > 0 else 1.0
    return float(edges[after - 1] + part * (edges[after] - edges[after - 1]))
