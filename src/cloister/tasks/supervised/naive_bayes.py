"""Naive Bayes: the noisy tables of all classes in one sum.

Columns of categories are summed as tables of class by category. Numeric columns are summed as
tables of class by bin, moments of a normal distribution, or counts of a multinomial distribution.
One release holds all of them.

References
----------
.. [VSBH13] Vaidya, Shafiq, Basu, Hong, "Differentially Private Naive Bayes Classification",
   IEEE/WIC/ACM Web Intelligence 2013: noisy counts and moments. Here they are centred first, and
   one joint Gaussian release replaces a share of epsilon for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import floor, log10, sqrt
from typing import Annotated, ClassVar, Literal, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.dates import nearest_day
from cloister.core.declared import AtLeastZero, Hint, Positive, Range, Whole, declared
from cloister.core.display import (
    Bars,
    Cell,
    Display,
    Estimate,
    Heatmap,
    Summary,
    Table,
    around,
    bare,
)
from cloister.core.errors import PlanError
from cloister.core.numerals import counted
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import (
    INTERVAL_95,
    SHARE,
    Block,
    Gaussian,
    NoisyBlock,
    PublicColumn,
    PublicFacts,
    Ranges,
    Rows,
)
from cloister.tasks.columns import bins_of, categories_of, codes, count_cells, in_cache, position
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.interval_tables import cells_of, in_days, listing
from cloister.tasks.intervals import differences, fieller, ratio_interval, size_interval
from cloister.tasks.options import Dates, Target, build_task, noise_multiplier_for
from cloister.tasks.population import sampled, share_variance
from cloister.tasks.significance import found, how_sure, normal_p
from cloister.tasks.state import decode_state, encode_state
from cloister.tasks.supervised.class_tables import (
    bounded_counts,
    bounded_totals,
    centred_moments,
    centred_table,
    fitted_shares,
    merge_bins,
    moments_of,
    pseudo_records,
)
from cloister.tasks.supervised.target import Features, check_classes, check_columns

Numbers = Literal["binned", "gaussian", "counts"]
"""Models of numeric columns."""
Kind = Literal["class", "table"] | Numbers

_NORM = 1 << 20  # approximate norm of a record: fine counts, and the ring holds 2**32 records
_FEWEST_BINS, _MOST_BINS = 4, 128
_CELL_OVER_NOISE = 4.0  # target ratio of a bin's records to its noise
_BINS_AS_CELLS = 8  # bins are merged after release, so that a column weighs like so many cells
_LEAST_VARIANCE = 1e-6  # in the box of half-width 1
_SHOWN = 14  # cells in the picture of the most informative ones
_Z = INTERVAL_95["gaussian"]
_OF_CELLS = ("cells", "cells_low", "cells_high", "log_cells", "groups")
_COLOURS = "Blue is above the mean of the other classes and orange below, by more than the noise."
_NOTE = "[ , ] and ± are 95 % confidence intervals (privacy noise only)."


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """The public state, in records; arrays of absent kinds of columns are empty."""

    counts: Floats
    noise: float = 0.0
    tables: Floats  # (n_classes, cells of all tables): counts minus the mean over the class's cells
    moments: Floats  # (n_classes, n_columns, 2)
    totals: Floats  # (n_classes, n_columns)


@declared
class NaiveBayes(Gaussian):
    """Naive Bayes over categories, booleans and numbers, in one noisy sum.

    Parameters
    ----------
    n_features : int
        Number of columns, including the target.
    kinds : tuple of str, one for each column
        ``"class"`` for the target, ``"table"`` for categories and booleans, and ``"binned"``,
        ``"gaussian"`` or ``"counts"`` for numbers.
    cells : tuple of int
        Number of categories or bins of each column; 0 for columns without a table.
    low, high : tuple of float
        The box, data units.
    words : tuple of int
        The weight of each column under the common noise. A cell of a table counts ``cells`` times
        this integer, and a moment or all counts of a record at most once.
    class_word : int
        The integer that a record adds to the count of its class.
    most_counts : float
        Largest sum of a record's counts; a record with more is scaled down to it. 0 without counts.
    smoothing : float, > 0
        Records added to every cell after release.

    Notes
    -----
    A boolean is a category with two values, so a Bernoulli model is the case of booleans alone. A
    record's contribution has one bound for all columns together, `Block.l2_squared`. Each table is
    centred: ``1 - 1/cells`` in a record's cell and ``-1/cells`` in the others of its class. Its sum
    over cells is 0, so class counts and tables hold different information. Projecting the noise on
    such tables makes all of them agree on the size of a class.
    """

    name: ClassVar[str] = "naive-bayes"
    later: ClassVar[frozenset[str]] = frozenset({"dates"})
    """Fields that older plans lack; plans leave them out at their defaults."""
    rounds: ClassVar[int] = 1
    ranges: ClassVar[Ranges] = {"class_prior": SHARE, "cells": SHARE}

    example: ClassVar[Example] = Example(
        MIXED, {"target": "smokes", "numbers": {"weight": "gaussian"}}
    )

    @declared
    class Options:
        target: Target
        numbers: Annotated[
            Numbers | Mapping[str, Numbers], "model of numeric columns, of all or by name"
        ] = "binned"
        bins: Annotated[
            Annotated[int, Range(2, 1024)] | None,
            "of equal width; chosen from the noise by default",
        ] = None
        most_counts: Annotated[
            Positive | None,
            "largest sum of one record's counts; required for columns of counts",
            Hint("give the largest number of counts of one record that is used"),
        ] = None
        smoothing: Annotated[Positive, "records added to every cell after release"] = 1.0

    n_features: Features
    target: int
    classes: tuple[str, ...]
    kinds: tuple[Kind, ...]
    cells: tuple[int, ...]
    categories: tuple[tuple[str, ...], ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    words: tuple[Annotated[int, Range(0)], ...]
    class_word: Whole
    most_counts: AtLeastZero = 0.0
    smoothing: Positive = 1.0
    frac_bits: int = 16
    dates: Dates = ()

    def __post_init__(self) -> None:
        names = ("kinds", "cells", "categories", "low", "high", "words")
        of_columns = {name: getattr(self, name) for name in names}
        check_columns(self.n_features, self.target, **of_columns)
        check_classes(self.classes, len(self.categories[self.target]))
        if [j for j, kind in enumerate(self.kinds) if kind == "class"] != [self.target]:
            raise PlanError(f"kinds must be 'class' for the target only, got {self.kinds!r}.")
        tables = set(self._tables)
        if any(n < 2 if j in tables else n for j, n in enumerate(self.cells)):
            raise PlanError(
                f"cells must be at least 2 in a table and 0 elsewhere, got {self.cells!r}."
            )
        # The share of a single column in the counts of its class is always 1.
        if bool(self._counted) != (self.most_counts > 0) or len(self._counted) == 1:
            raise PlanError(
                "most_counts must be given with 2 or more columns of counts, and only with them, "
                f"got {self.most_counts:g} and {counted(len(self._counted), 'column')}; give the "
                "largest number of counts of one record, or model a single column as 'binned'."
            )
        # A multinomial count is a number of events, so its box begins at 0.
        if wrong := [j for j in self._counted if not self.low[j] == 0 < self.high[j]]:
            box = f"[{self.low[wrong[0]]:g}, {self.high[wrong[0]]:g}]"
            raise PlanError(
                f"a column of counts must have min 0 and max above 0, column {wrong[0]} has {box}."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Design bins and weights from public numbers."""
        columns = facts.columns
        at = position(columns, options.target)
        classes = categories_of(columns, options.target)
        kinds = _kinds_of(columns, at, options.numbers)
        # Shares of the squared norm with the least sum of squared errors, see `_importance`.
        shares = [_importance(kind, c.levels) for kind, c in zip(kinds, columns, strict=True)]
        of_counts = sqrt(kinds.count("counts"))
        of_classes = sqrt(1 + sum(1 / max(c.levels, 2) for c in columns))
        total = of_classes + of_counts + sum(shares)
        bins = options.bins or _bins_for(
            facts.nominal_n / len(classes),
            noise_multiplier_for(facts),
            _importance("binned", 0) / total,
        )
        cells = tuple(
            bins if kind == "binned" else c.levels * (kind == "table")
            for kind, c in zip(kinds, columns, strict=True)
        )
        most = float(options.most_counts or 0.0)
        top = max((c.high for k, c in zip(kinds, columns, strict=True) if k == "counts"), default=1)
        lengths = {  # norms of a record's contribution at a weight of 1
            "gaussian": sqrt(2),
            "counts": sqrt(min(1.0, max(top, 1e-9) / most)) if most else 1.0,
        }
        weights = []
        for kind, n_cells, share in zip(kinds, cells, shares, strict=True):
            length = sqrt(n_cells * (n_cells - 1)) if n_cells else lengths.get(kind, 1.0)
            part = of_counts if kind == "counts" else share
            # Integers of the plan, so that the bound of a record holds exactly.
            weight = floor(_NORM * sqrt(part / total) / length)
            weights.append(max(weight, int(kind != "class")))
        return build_task(
            cls,
            facts,
            options,
            target=at,
            classes=classes,
            kinds=kinds,
            cells=cells,
            words=tuple(weights),
            class_word=floor(_NORM * sqrt(of_classes / total)),
            most_counts=most,
            smoothing=float(options.smoothing),
        )

    def describe(self) -> str:
        parts = [f"the size of each of {len(self.classes)} classes"]
        if self._tables:
            parts.append(
                f"tables of class by category or bin of {counted(len(self._tables), 'column')}"
            )
        if self._normal:
            parts.append(
                f"mean and variance in each class of {counted(len(self._normal), 'column')}"
            )
        if self._counted:
            parts.append(
                f"totals in each class of {counted(len(self._counted), 'column')} of counts, of "
                f"which a record's sum is cut at {self.most_counts:g}"
            )
        return (
            "A naive Bayes classifier from one noisy sum: "
            + "; ".join(parts)
            + ". Every cell has noise, including empty cells."
        )

    # Columns of each kind -------------------------------------------------------------------------

    def _of_kind(self, *kinds: str) -> tuple[int, ...]:
        return tuple(j for j, kind in enumerate(self.kinds) if kind in kinds)

    @cached_property
    def _tables(self) -> tuple[int, ...]:
        return self._of_kind("table", "binned")

    @cached_property
    def _normal(self) -> tuple[int, ...]:
        return self._of_kind("gaussian")

    @cached_property
    def _counted(self) -> tuple[int, ...]:
        return self._of_kind("counts")

    @cached_property
    def _places(self) -> tuple[slice, ...]:
        """Slices of the cells of each table among those of all tables."""
        ends = np.cumsum([self.cells[j] for j in self._tables]).tolist()
        return tuple(map(slice, [0, *ends[:-1]], ends))

    @cached_property
    def _tops(self) -> Integers:
        """Integers that the top of the box of each column of counts adds."""
        # Limited, so that their products with records and words fit 64 bits.
        limit = (1 << 62) // max(*self.words, 1 << (self.frac_bits + 1))
        tops = (
            min(floor(self.words[j] * self.high[j] / self.most_counts), limit)
            for j in self._counted
        )
        return np.array(list(tops), dtype=np.int64)

    # The sum --------------------------------------------------------------------------------------

    @cached_property
    def _shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the sums: class sizes, each table, each column's moments, totals."""
        k = len(self.classes)
        tables = [(k, self.cells[j]) for j in self._tables]
        return ((k,), *tables, *[(k, 2)] * len(self._normal), (k, len(self._counted)))

    def start(self) -> State:
        """Return the empty state before the round."""
        k = len(self.classes)
        return encode_state(
            _Sums(
                counts=np.zeros(k),
                tables=np.zeros((k, sum(self.cells))),
                moments=np.zeros((k, len(self._normal), 2)),
                totals=np.zeros((k, len(self._counted))),
            )
        )

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return one block: class sizes, then tables, moments and totals, all under one noise."""
        # One joint release costs less than a share of the budget for each part.
        l1, l2_squared = self.class_word, self.class_word**2
        for j in self._tables:
            # A record adds cells - 1 words to its cell, and subtracts one from each other cell.
            l1 += 2 * self.words[j] * (self.cells[j] - 1)
            l2_squared += self.words[j] ** 2 * self.cells[j] * (self.cells[j] - 1)
        for j in self._normal:
            l1 += 2 * self.words[j]
            l2_squared += 2 * self.words[j] ** 2
        if self._counted:
            # The squares of counts sum to at most the largest count times the sum of counts.
            weight = self.words[self._counted[0]]
            l1 += weight
            l2_squared += weight * min(weight, int(self._tops.max()))
        size = sum(int(np.prod(shape)) for shape in self._shapes)
        return (Block("sums", (size,), l1, l2_squared, weight=1.0),)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return the class of each record, its centred cells, its moments and its totals."""
        k, q = len(self.classes), self.frac_bits
        labels = codes(records[:, self.target], k, q)
        places, words, start = [labels], [np.full(len(records), self.class_word)], k
        for j in self._tables:
            cell, n, word = self._cells_of(records, j), self.cells[j], self.words[j]
            places += [start + labels * n + c for c in range(n)]
            words += [np.where(cell == c, (n - 1) * word, -word) for c in range(n)]
            start += k * n
        for j in self._normal:
            places += [start + 2 * labels, start + 2 * labels + 1]
            words += moments_of(records[:, j], self.words[j], q)
            start += 2 * k
        if n := len(self._counted):
            counted, weight = records[:, self._counted], self.words[self._counted[0]]
            places += [start + n * labels + c for c in range(n)]
            words += [*bounded_counts(counted, self._tops, weight, q).T]
        return (Rows.at(places, np.stack(words, axis=1)),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return all classes' sizes, centred tables, moments and totals."""
        # Plain counts of records are centred once, instead of every record.
        k, target = len(self.classes), self.target
        tables = [(target,), *((target, j) for j in self._tables)]
        cells = [k if j == target else n for j, n in enumerate(self.cells)]
        binned = [kind == "binned" for kind in self.kinds]
        sizes, *counts = count_cells(records, tables, cells, binned, self.frac_bits)
        parts = [self.class_word * sizes]
        for j, count in zip(self._tables, counts, strict=True):
            parts.append(centred_table(count.reshape(k, -1), self.words[j]).ravel())
        if self._normal or self._counted:
            parts.append(sum(map(self._sums, in_cache(records)), self._sums(records[:0])))
        return np.concatenate(parts)

    def _sums(self, records: Records) -> Integers:
        """Return the sums of moments and totals."""
        k, q, parts = len(self.classes), self.frac_bits, []
        labels = codes(records[:, self.target], k, q)
        for j in self._normal:
            parts.append(centred_moments(labels, records[:, j], k, self.words[j], q))
        if self._counted:
            counted, weight = records[:, self._counted], self.words[self._counted[0]]
            parts.append(bounded_totals(labels, counted, k, self._tops, weight, q))
        return np.concatenate([part.ravel() for part in parts])

    def _cells_of(self, records: Records, j: int) -> Integers:
        """Return the category or bin of each record in a column."""
        if self.kinds[j] == "table":
            return codes(records[:, j], self.cells[j], self.frac_bits)
        return bins_of(records[:, j], self.cells[j], self.frac_bits)

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the noisy sums in records: projected tables, moments and totals."""
        sums, k = released["sums"], len(self.classes)
        ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes])
        flat = np.split(sums.values.astype(np.float64), ends[:-1])
        parts = (part.reshape(shape) for part, shape in zip(flat, self._shapes, strict=True))
        counts = next(parts) / self.class_word
        # Exact rows sum to 0, so the mean of a noisy row is noise: without it less noise remains.
        tables = [next(parts) / (self.cells[j] * self.words[j]) for j in self._tables]
        tables = [part - part.mean(axis=1, keepdims=True) for part in tables]
        moments = [next(parts) / self.words[j] for j in self._normal]
        unit = self.most_counts / self.words[self._counted[0]] if self._counted else 1.0
        return encode_state(
            _Sums(
                counts=counts,
                noise=sums.noise_std,
                tables=np.hstack([np.zeros((k, 0)), *tables]),
                moments=np.array(moments).reshape(-1, k, 2).transpose(1, 0, 2),
                totals=next(parts) * unit,
            )
        )

    def _noise(self, noise_std: float, j: int | None = None) -> float:
        """Return the noise, in records, of a class size, or of a cell or moment of a column."""
        if j is None:
            return noise_std / self.class_word
        if self.kinds[j] in ("table", "binned"):
            # The projection in `update` removes a share of 1 / cells of the variance.
            return noise_std / (self.cells[j] * self.words[j]) * sqrt(1 - 1 / self.cells[j])
        return noise_std / self.words[j]

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the 95 % half-width of a class size, and of a share in a class of equal size.

        Returns
        -------
        dict
            ``class_count_half_width`` in records and ``cell_half_width``, a probability, of the
            noisiest table; both of shape (1,).
        """
        half_width = size_interval(self._noise(noise_std), self.mechanism)
        half_widths = {"class_count_half_width": np.array([half_width])}
        if self._tables:
            worst = max(self._noise(noise_std, j) for j in self._tables)
            size = max(nominal_n / len(self.classes), 1.0)
            half_widths["cell_half_width"] = np.array(
                [min(1.0, INTERVAL_95["gaussian"] * worst / size)]
            )
        return half_widths

    # The model ------------------------------------------------------------------------------------

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the model with its 95 % noise intervals.

        Returns
        -------
        dict
            ``class_counts`` and ``class_count_half_width`` in records, ``class_prior`` with
            ``class_prior_low`` and ``class_prior_high``; all of shape (n_classes,).
            ``class_prior``, ``cells`` and ``means`` also have the ends of population intervals,
            ``..._population_low`` and ``..._population_high``.

            For tables, of shape (n_classes, sum of cells): ``cells``, the noisy share of each cell
            in its class, with ``cells_low`` and ``cells_high``; ``log_cells``, the logarithm of the
            model's share. ``groups`` of shape (sum of cells,) is the group of each cell.

            For normal columns, of shape (n_classes, n_columns) in data units: ``means`` with
            ``means_low`` and ``means_high``, and ``stds``.

            For counts, of shape (n_classes, n_columns): ``words``, the noisy share of each column
            in the counts of its class, with ``words_low`` and ``words_high``; and ``log_words``.

        Notes
        -----
        Intervals are for the shares and means without noise, before any smoothing.
        """
        sums = decode_state(_Sums, state, self.frac_bits)
        sizes = np.maximum(sums.counts, 1.0)  # a noisy size may be negative, a prior may not
        priors, std = sizes / sizes.sum(), self._noise(sums.noise)
        low, high = _shares_between(sums.counts[None, :], std)
        prior = Estimate(priors, low[0], high[0])
        half_width = size_interval(std, self.mechanism)
        results = {
            "class_counts": sums.counts,
            "class_count_half_width": np.full(len(priors), half_width),
            **sampled(prior, share_variance(priors, sizes.sum()), SHARE).named("class_prior"),
        }
        if self._tables:
            columns = zip(self._tables, self._places, strict=True)
            fits = [self._fit_table(sums, j, sums.tables[:, at], priors) for j, at in columns]
            results |= {name: np.hstack([fit[name] for fit in fits]) for name in fits[0]}
        if self._normal:
            results |= self._fit_normal(sums, priors)
        if self._counted:
            results |= self._fit_counted(sums, priors)
        return results

    def _fit_table(self, sums: _Sums, j: int, excess: Floats, priors: Floats) -> dict[str, Floats]:
        """Return shares of the cells of a column, from centred counts."""
        noise, size_std, even = (
            self._noise(sums.noise, j),
            self._noise(sums.noise),
            1 / self.cells[j],
        )
        # Excess and size have independent noise, so Fieller's interval of their ratio is exact.
        low, high = ratio_interval(
            excess, sums.counts, sum_std=noise, count_std=size_std, origin=even, box=SHARE
        )
        sizes = np.maximum(sums.counts, max(1.0, size_std))[:, None]
        shares = Estimate(np.clip(excess / sizes + even, 0, 1), low, high)
        noisy, groups = excess + even * sums.counts[:, None], np.arange(self.cells[j])
        if self.kinds[j] == "binned":  # only neighbours are joined, which categories do not have
            groups = merge_bins(noisy, noise, priors)
        fitted = fitted_shares(noisy, groups, noise, priors, self.smoothing)
        return {
            **sampled(shares, share_variance(shares.values, sizes), SHARE).named("cells"),
            "log_cells": np.log(fitted),
            "groups": groups.astype(np.float64),
        }

    def _fit_normal(self, sums: _Sums, priors: Floats) -> dict[str, Floats]:
        counts, moments = sums.counts, sums.moments
        noise = np.array([self._noise(sums.noise, j) for j in self._normal])
        size_std = self._noise(sums.noise)
        ends = ratio_interval(moments[:, :, 0], counts, sum_std=noise, count_std=size_std)
        powers = np.stack([moments[:, :, 0], (moments[:, :, 1] + counts[:, None]) / 2])
        # The moments of all classes together, towards which small classes are drawn.
        whole = np.clip(powers.sum(axis=1) / max(counts.sum(), 1.0), [[-1.0], [0.0]], 1.0)
        pseudo = pseudo_records(noise, priors)
        sizes = np.maximum(counts, 1.0)[:, None] + pseudo
        means, squares = (powers + pseudo * whole[:, None, :]) / sizes
        means = np.clip(means, -1, 1)
        # A variance below its own noise is uninformative, and a small one gives extreme scores.
        floor = np.maximum(noise * np.hypot(0.5, 2 * means) / sizes, _LEAST_VARIANCE)
        stds = np.sqrt(np.clip(squares - means**2, floor, 1.0))
        middle, half = self._units(self._normal)
        class_sizes = np.maximum(counts, np.maximum(1.0, size_std))[:, None]
        estimate = sampled(Estimate(means, *ends), stds**2 / class_sizes, (-1.0, 1.0))
        in_units = estimate.mapped(lambda part: middle + half * part)
        return {**in_units.named("means"), "stds": stds * half}

    def _fit_counted(self, sums: _Sums, priors: Floats) -> dict[str, Floats]:
        noise = self._noise(sums.noise, self._counted[0]) * self.most_counts
        positive = np.maximum(sums.totals, 0)
        fitted = positive + self.smoothing + pseudo_records(noise, priors)
        whole = np.maximum(positive.sum(axis=1, keepdims=True), 1e-12)
        return {
            **Estimate(positive / whole, *_shares_between(sums.totals, noise)).named("words"),
            "log_words": np.log(fitted / fitted.sum(axis=1, keepdims=True)),
        }

    def _units(self, columns: Sequence[int]) -> tuple[Floats, Floats]:
        """Return the middle and half the range of some columns, data units."""
        low, high = (np.array([box[j] for j in columns]) for box in (self.low, self.high))
        return (low + high) / 2, (high - low) / 2

    def probabilities(self, results: Results, records: Records) -> Floats:
        scores = self.log_joint(results, records)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))

    def log_joint(self, results: Results, records: Records) -> Floats:
        """Return the joint log-probability of class and record, (n_samples, n_classes).

        It is known up to a constant of the record: differences between classes are log-odds.
        """
        scores: Floats = np.tile(np.log(np.asarray(results["class_prior"])), (len(records), 1))
        for j, place in zip(self._tables, self._places, strict=True):
            scores += results["log_cells"][:, place].T[self._cells_of(records, j)]
        one = 1 << self.frac_bits
        if self._normal:
            middle, half = self._units(self._normal)
            x = middle + half * (records[:, self._normal] / one)
            for k, (mean, std) in enumerate(zip(results["means"], results["stds"], strict=True)):
                scores[:, k] -= (((x - mean) / std) ** 2 / 2 + np.log(std)).sum(axis=1)
        if self._counted:
            top = np.array([self.high[j] for j in self._counted])
            counts = (records[:, self._counted] / one + 1) / 2 * top
            scores += counts @ results["log_words"].T
        return scores

    # The report -----------------------------------------------------------------------------------

    def cell_names(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the name of each cell of all tables, as ``sex=Female`` or ``age 17 to 20``."""
        return tuple(
            name
            for j in self._tables
            for name in self._cell_names(columns[j], j, range(self.cells[j]))
        )

    def _cell_names(self, column: str, j: int, groups: Iterable[int]) -> Iterator[str]:
        """Yield the names of the groups of a column's cells, which are numbered by `groups`."""
        if self.kinds[j] == "table":
            yield from (f"{column}={label}" for label in self.categories[j])
            return
        edges = np.linspace(self.low[j], self.high[j], self.cells[j] + 1)
        texts = [*map(str, map(nearest_day, edges))] if j in self.dates else _texts_of(edges)
        starts = np.flatnonzero(np.diff([-1, *groups]))
        for low, high in zip(starts, [*starts[1:], self.cells[j]], strict=True):
            yield f"{column} {texts[low]} to {texts[high]}"

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the clearest difference of two classes, and the columns that differ."""
        target, each = columns[self.target], list(self._numbers(results, columns))
        if not each:  # counts have no population interval
            return Summary()
        # Of all numbers of a column and all pairs of classes, the smallest p-value counts.
        deviates = [_deviates(values, least) for _, values, least in each]
        largest = np.array([np.abs(z).max() for z in deviates])
        p = np.minimum(normal_p(largest) * [z.size for z in deviates], 1.0)
        places = found(p)
        result: tuple[Cell, ...] = (f"No difference of the classes of {target} is shown.",)
        if len(places):
            (names, values, _), z = each[places[0]], deviates[places[0]]
            at = np.unravel_index(int(np.abs(z).argmax()), z.shape)
            pair = [int(part[at[0]]) for part in np.triu_indices(len(self.classes), 1)]
            parts = listing((f"{target} {self.classes[c]} ", values[c, at[1]]) for c in pair)
            result = (f"{names[at[1]]}: ", *parts, ".")
        return Summary(
            result=result,
            reliability=how_sure(
                len(places), len(p), f"columns differ between classes of {target}"
            ),
        )

    def _numbers(
        self, results: Results, columns: Sequence[str]
    ) -> Iterator[tuple[list[str], Estimate, float]]:
        """Yield names of numbers, the numbers, and their least value, column by column.

        The numbers have the shape (n_classes, n_names).
        """
        for j, place in zip(self._tables, self._places, strict=True):
            names = self._cell_names(columns[j], j, range(self.cells[j]))
            shares = Estimate.of(results, "cells")[:, place]
            yield [f"Share of {name}" for name in names], shares, 0.0
        for i, j in enumerate(self._normal):
            means = in_days(Estimate.of(results, "means")[:, i : i + 1], j in self.dates)
            yield [f"Mean of {columns[j]}"], means, self.low[j]

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return the classes, the information of each column, and the most informative cells."""
        displays: list[Display] = [self._class_table(results)]
        if self._tables:
            displays += self._table_displays(results, columns)
        if self._normal:
            means = Estimate.of(results, "means")
            labels = (self.classes, tuple(columns[j] for j in self._normal))
            displays.append(
                Heatmap(
                    "Mean in each class",
                    replace(means, population=None, labels=labels),
                    f"{_COLOURS} {_NOTE} Means are shown before smoothing.",
                    differences(means.values, means.low, means.high),
                    dates=tuple(i for i, j in enumerate(self._normal) if j in self.dates),
                )
            )
        if self._counted:
            displays.append(self._count_display(results, columns))
        return tuple(displays)

    def _class_table(self, results: Results) -> Table:
        margin = results["class_count_half_width"]
        records = around(results["class_counts"], margin, normal=True).cells()
        rows = tuple(zip(self.classes, records, cells_of(results, "class_prior"), strict=True))
        return Table("Classes", ("class", "records", "share"), rows, _NOTE)

    def _count_display(self, results: Results, columns: tuple[str, ...]) -> Heatmap:
        logs = results["log_words"]
        # By share and log-ratio: a rare word with a large ratio is uninformative.
        weight = np.exp(logs) * np.abs(logs - logs.mean(axis=0))
        first = np.argsort(-weight.sum(axis=0), kind="stable")[:_SHOWN]
        value, low, high = (results[f"words{end}"][:, first] for end in ("", "_low", "_high"))
        names = tuple(columns[self._counted[i]] for i in first)
        return Heatmap(
            "Most informative columns of counts, as shares of their class's counts",
            Estimate(value.T, low.T, high.T, labels=(names, self.classes)),
            f"{_COLOURS} {_NOTE}",
            differences(value, low, high).T,
        )

    def _table_displays(self, results: Results, columns: tuple[str, ...]) -> list[Display]:
        """Return bars of each column's information, in bits, and the most informative cells."""
        bits: list[float] = []
        names: list[str] = []
        cells: list[Floats] = []
        for j, place in zip(self._tables, self._places, strict=True):
            of_column = {name: results[name][..., place] for name in _OF_CELLS}
            groups = of_column.pop("groups").astype(np.int64)
            parts = _of_groups(of_column, groups, results["class_prior"])
            bits.append(float(parts[0, 0].sum()))
            names += self._cell_names(columns[j], j, groups)
            cells.append(parts)
        information, *ends, ratio = np.concatenate(cells, axis=2)
        first = np.argsort(-information[0], kind="stable")[:_SHOWN]
        each, of_columns = np.array(bits), tuple(columns[j] for j in self._tables)
        labels = (tuple(names[i] for i in first), self.classes)
        return [
            Bars(
                "Information of each column about the class",
                bare(each, labels=(of_columns,), unit="bits"),
                "Mutual information in the smoothed model; bins without information are joined.",
            ),
            Heatmap(
                "Most informative cells, as shares of their class",
                Estimate(*(end[:, first].T for end in ends), labels=labels),
                f"{_NOTE} Blue: a larger share of the class than of all records; orange: smaller.",
                np.tanh(ratio[:, first].T),
            ),
        ]


def _texts_of(edges: Floats) -> list[str]:
    """Return edges of equal bins, rounded by at most a twentieth of a bin."""
    decimals = 1 - floor(log10(edges[1] - edges[0]))
    return [f"{round(edge, decimals):.10g}" for edge in edges.tolist()]


def _deviates(values: Estimate, least: float) -> Floats:
    """Return differences of two classes in standard errors, of shape (n_pairs, n_names).

    They are 0 for an interval that reaches `least`, because it was cut there.
    """
    ends = values.of_population
    middle, half_width = (ends.low + ends.high) / 2, (ends.high - ends.low) / 2
    a, b = np.triu_indices(len(middle), 1)
    error = np.hypot(half_width[a], half_width[b])
    whole = (ends.low[a] > least) & (ends.low[b] > least)
    return np.asarray(whole * _Z * (middle[a] - middle[b]) / np.maximum(error, 1e-300))


def _of_groups(column: Mapping[str, Floats], groups: Integers, priors: Floats) -> Floats:
    """Return information, share, its ends, and log-ratio to all; (5, n_classes, n_groups)."""

    def by_group(values: Floats) -> Floats:
        sums = np.zeros((len(values), int(groups.max()) + 1))
        np.add.at(sums.T, groups, values.T)
        return sums

    fitted = by_group(np.exp(column["log_cells"]))
    of_all = priors @ fitted
    information = priors @ (fitted * np.log2(fitted / of_all))
    value, low, high = (by_group(column[name]) for name in _OF_CELLS[:3])
    margin = np.sqrt(by_group(((column["cells_high"] - column["cells_low"]) / 2) ** 2))
    # Only a cell that is not joined keeps its exact interval.
    single = np.bincount(groups)[None, :] == 1
    low = np.where(single, low, np.clip(value - margin, 0, 1))
    high = np.where(single, high, np.clip(value + margin, 0, 1))
    spread = np.broadcast_to(information, value.shape)
    return np.stack([spread, value, low, high, np.log(fitted / of_all)])


def _kinds_of(
    columns: Sequence[PublicColumn], target: int, numbers: Numbers | Mapping[str, Numbers]
) -> tuple[Kind, ...]:
    """Return the kind of model of each column."""
    of_numbers = {c.name for j, c in enumerate(columns) if j != target and not c.levels}
    if isinstance(numbers, Mapping):
        if strangers := set(numbers) - of_numbers:
            raise PlanError(
                f"numbers must name numeric columns, {sorted(of_numbers)}, got "
                f"{sorted(strangers)[0]!r}."
            )
        chosen = {name: numbers.get(name, "binned") for name in of_numbers}
    else:
        chosen = dict.fromkeys(of_numbers, numbers)
    return tuple(
        "class" if j == target else chosen.get(c.name, "table") for j, c in enumerate(columns)
    )


def _importance(kind: str, levels: int) -> float:
    """Return a column's share of the squared sensitivity that minimises the summed squared error.

    A column with norm ``c w^2`` at weight w and e free cells has error ``e / w^2``. The smallest
    sum under a bound on all norms has norms in proportion to ``sqrt(e c)``.
    """
    if kind == "gaussian":
        return sqrt(2)
    if kind == "binned":
        levels = _BINS_AS_CELLS
    return sqrt((levels - 1) * (1 - 1 / levels)) if kind in ("table", "binned") else 0.0


def _bins_for(class_size: float, noise: float | None, share: float) -> int:
    """Return the number of bins whose cells exceed the noise of the whole budget."""
    if noise is None:  # without privacy only the length of the vector limits the bins
        return _MOST_BINS
    most = class_size / (_CELL_OVER_NOISE * (noise / sqrt(share)))
    return int(min(max(most, _FEWEST_BINS), _MOST_BINS))


def _shares_between(totals: Floats, std: float) -> tuple[Floats, Floats]:
    """Return the 95 % noise interval of the share of each entry in its row; shape of `totals`."""
    # The sum holds the noise of the entry, which is their covariance.
    whole, variance = totals.sum(axis=-1, keepdims=True), std**2
    of_whole = totals.shape[-1] * variance
    return fieller(totals, whole, variance, of_whole, covariance=variance, box=SHARE)
