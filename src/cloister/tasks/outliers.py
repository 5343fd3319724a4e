"""Records unlike the others: statistics are released, flags are not.

The silos release where the records lie and how far they spread, by one of four methods. Whoever has
a record then tells from these public numbers alone how unusual it is; flags are made where the
records are and stay there. A last round may release how many there are, in all or by group.

References
----------
.. [WH31] Wilson and Hilferty, "The distribution of chi-square", PNAS 17, 1931: the cube root of
   chi-square is nearly normal.
.. [P16] Pevný, "Loda: lightweight on-line detector of anomalies", Machine Learning 102, 2016: many
   weak histograms of random projections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import ClassVar, Literal, Self, cast, get_args

import numpy as np

from cloister.errors import PlanError
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.randomness import public_generator
from cloister.tasks import scores
from cloister.tasks.base import (
    INTERVAL_95,
    Bars,
    Between,
    Block,
    Exhibit,
    Floats,
    GridState,
    Integers,
    Measured,
    Mechanism,
    Profile,
    PublicColumn,
    Records,
    Released,
    State,
    Table,
)
from cloister.tasks.columns import categories_of, codes, in_batches, position
from cloister.tasks.moments import (
    PRODUCT,
    SQUARE,
    lattice_bits,
    n_products,
    products_l1,
    products_norm_squared,
    sum_products,
    unpack_products,
)

Method = Literal["zscore", "mahalanobis", "robust", "density"]

_FINE = 16  # a record counts 2**16, so that the noise is on a fine lattice
_COARSE, _SPLIT = 16, 16  # bins of a column for quantiles: so many, each split in so many
_QUARTILES = (0.25, 0.5, 0.75)
_IQR = 1.3489795003921634  # of a normal law, in its deviations
_VIEWS, _REACH = 8, 4.0  # pictures of the plane, at most; each shows so many deviations
_CELLS = (6, 32)  # along each side of a picture
_PER_CELL = 3.0  # records in an average cell, in deviations of its noise
_RARITIES = 64  # bins for the scores of the density method
_DENSITY = (0.3, 0.4, 0.3)  # parts of its budget: quartiles, cells, scores


@dataclass(frozen=True, kw_only=True)
class Outliers:
    """Statistics by which anybody can tell how unusual a record is.

    Parameters
    ----------
    n_features : int
    method : {"zscore", "mahalanobis", "robust", "density"}
        Distance from the mean in deviations of each column; the same with the covariance of all;
        distance from the median in quartile ranges; how empty the cells of public pictures are.
    used : tuple of int
        Columns of numbers that are looked at.
    low, high : tuple of float, data units
        The box of all columns.
    threshold : float, > 0
        A record is an outlier beyond so many deviations of a normal law; see `scores`.
    count_share : float in [0, 1)
        Part of the budget for the number of outliers; 0 if it is not released.
    group : int or None
        Column by whose categories outliers are counted.
    group_names : tuple of str
    min_group : float, >= 0
        A noisy count of a group below this is not shown.
    n_views, n_cells : int
        Of the density method: pictures, and cells along a side of each.
    public_seed : int
        Of the pictures.
    frac_bits : int
    """

    name: ClassVar[str] = "outliers"
    private: ClassVar[bool] = True
    profiles: ClassVar[frozenset[Profile]] = frozenset({"local", "group", "pairwise"})
    mechanism: ClassVar[Mechanism] = "gaussian"

    n_features: int
    method: Method
    used: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    threshold: float = 2.0
    count_share: float = 0.0
    group: int | None = None
    group_names: tuple[str, ...] = ()
    min_group: float = 0.0
    n_views: int = 1
    n_cells: int = 16
    public_seed: int = 0
    frac_bits: int = 16

    def __post_init__(self) -> None:
        for name in ("used", "low", "high", "group_names"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.method not in get_args(Method):
            raise PlanError(f"method must be one of {get_args(Method)}, got {self.method!r}.")
        if not self.used:
            raise PlanError("columns must hold at least one of numbers; categories have no mean.")
        if not 0 < self.threshold <= 10:
            raise PlanError(f"threshold must be in (0, 10], got {self.threshold!r}.")
        if not 0 <= self.count_share < 1:
            raise PlanError(f"count_share must be in [0, 1), got {self.count_share!r}.")
        if not self.min_group >= 0:
            raise PlanError(f"min_group must be >= 0, got {self.min_group!r}.")
        if self.group is not None and not self.count_share:
            raise PlanError("count_share must be above 0 for a count by group; give it a part.")
        named = (*self.used, *(() if self.group is None else (self.group,)))
        if not all(type(j) is int and 0 <= j < self.n_features for j in named):
            raise PlanError(f"columns must be in [0, {self.n_features}), got {named}.")
        if (self.group is None) != (not self.group_names):
            raise PlanError("group_names go with a group and only there; design the task again.")

    @classmethod
    def design(
        cls,
        *,
        n_features: int,
        nominal_n: int,
        budget: Budget | None,
        frac_bits: int = 16,
        columns: tuple[PublicColumn, ...],
        method: str = "robust",
        threshold: float = 2.0,
        count_share: float = 0.0,
        group: str | None = None,
        min_group: float = 0.0,
        public_seed: int = 0,
    ) -> Self:
        """Choose the columns of numbers and, for "density", cells that noise does not drown."""
        used = tuple(j for j, column in enumerate(columns) if not column.levels)
        n_views = 1 if len(used) <= 2 else min(_VIEWS, len(used))
        n_cells = _CELLS[0]
        if method == "density" and budget is not None and budget.delta > 0:
            noise = gaussian_noise_multiplier(budget.epsilon, budget.delta)
            noise *= sqrt(n_views / _DENSITY[1])
            per_picture = nominal_n / (_PER_CELL * noise)
            along = per_picture if len(used) == 1 else sqrt(per_picture)
            n_cells = int(min(max(along, _CELLS[0]), _CELLS[1]))
        return cls(
            n_features=n_features,
            method=cast(Method, method),
            used=used,
            low=tuple(column.low for column in columns),
            high=tuple(column.high for column in columns),
            threshold=threshold,
            count_share=count_share,
            group=None if group is None else position(columns, group, "group"),
            group_names=() if group is None else categories_of(columns, group),
            min_group=min_group,
            n_views=n_views,
            n_cells=n_cells,
            public_seed=public_seed,
            frac_bits=frac_bits,
        )

    @property
    def rounds(self) -> int:
        """One, for "density" three, and one that counts, if asked for."""
        return (3 if self.method == "density" else 1) + (self.count_share > 0)

    @cached_property
    def _grid(self) -> Grid:
        return Grid(self.low, self.high, self.frac_bits)

    @cached_property
    def _half(self) -> Floats:
        """Half the range of each column that is looked at, data units."""
        return self._grid.half_range[list(self.used)]

    @cached_property
    def _middle(self) -> Floats:
        return self._grid.centre[list(self.used)]

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        d = len(self.used)
        how = {
            "zscore": f"means and deviations of {d} columns",
            "mahalanobis": f"means and covariances of {d} columns",
            "robust": f"medians and quartiles of {d} columns",
            "density": f"medians and quartiles of {d} columns, how many records are in each cell "
            f"of {self.n_views} public pictures, and how rare the cells of records are",
        }[self.method]
        count = ""
        if self.count_share:
            count = " So is the number of records" + (
                f" of each of {len(self.group_names)} groups" * (self.group is not None)
            )
            count += " that these numbers flag."
        return f"Released with noise: {how}. Which record is unusual is told locally only.{count}"

    def start(self) -> State:
        """Return the state before the first round."""
        blocks = [block for t in range(self.rounds) for block in self.blocks(t)]
        return {
            **{block.name: np.zeros(block.shape) for block in blocks},
            "noise": np.zeros(self.rounds),
        }

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the layout of round `t`."""
        one, v = 1 << _FINE, self.n_views
        if self.count_share and t == self.rounds - 1:
            shape = (max(1, len(self.group_names)),)
            return (Block("flagged", shape, one, one**2, self.count_share),)
        weight = 1 - self.count_share
        if self.method == "density":
            weight *= _DENSITY[t]
        if t == 1:  # one cell of each picture
            return (Block("cells", (v, self._cells), v * one, v * one**2, weight),)
        if t == 2:
            return (Block("rarities", (_RARITIES,), one, one**2, weight),)
        return self._statistics(weight)

    def _statistics(self, weight: float) -> tuple[Block, ...]:
        """Return the blocks of the first round, which have this weight together."""
        d, one = len(self.used), 1 << _FINE
        match self.method:
            case "zscore":  # 1, and of each column x and x^2, all at most one
                n = 1 + 2 * d
                return (Block("moments", (n,), n * one, n * one**2, weight),)
            case "mahalanobis":  # products of (x, 1)
                bits = self._bits
                bound = products_norm_squared(d + 1, bits)
                size = (n_products(d + 1),)
                return (Block("products", size, products_l1(d + 1, bits), bound, weight),)
            case "robust" | "density":  # one bin of each column in each of two histograms
                wide, fine = (d, _COARSE), (d, _COARSE * _SPLIT)
                return (
                    Block("wide", wide, d * one, d * one**2, weight / 2),
                    Block("fine", fine, d * one, d * one**2, weight / 2),
                )

    @cached_property
    def _bits(self) -> int:
        d = len(self.used) + 1
        largest = products_norm_squared(d, 0)
        return lattice_bits(int(largest**0.5) + 1, self.frac_bits)

    @property
    def _cells(self) -> int:
        """Cells of one picture; of a single column it is a line."""
        return self.n_cells if len(self.used) == 1 else self.n_cells**2

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the sums of some records, in fine units."""
        if t == 0:
            return self._summed(records)
        results = self.results(state, self._grid)
        counts: Integers
        if self.method == "density" and t == 1:
            cells = in_batches(lambda part: self._cells_of(results, part), records)
            counts = np.concatenate([np.bincount(c, minlength=self._cells) for c in cells.T])
            return counts.astype(np.int64) << _FINE
        rarity = self.scores(results, records)
        if self.method == "density" and t == 2:
            low, width = self._rarity_bins(results)
            bins = np.clip((rarity - low) / width, 0, _RARITIES - 1).astype(np.int64)
            return np.bincount(bins, minlength=_RARITIES).astype(np.int64) << _FINE
        flagged = rarity > results["cutoff"][0]
        if self.group is None:
            return np.array([int(flagged.sum()) << _FINE], dtype=np.int64)
        groups = codes(records[flagged, self.group], len(self.group_names), self.frac_bits)
        counts = np.bincount(groups, minlength=len(self.group_names))
        return counts.astype(np.int64) << _FINE

    def _summed(self, records: Records) -> Integers:
        """Return the statistics of the first round."""
        part = self._parts(records)
        match self.method:
            case "zscore":
                one = 1 << _FINE
                terms = np.concatenate([np.ones((len(part), 1)), part, part**2], axis=1)
                moments: Integers = np.trunc(terms * one).astype(np.int64).sum(axis=0)
                return moments
            case "mahalanobis":
                rows = np.concatenate([part, np.ones((len(part), 1))], axis=1)
                return sum_products(np.trunc(rows * (1 << self._bits)).astype(np.int64))
            case "robust" | "density":
                n = _COARSE * _SPLIT
                bins = np.clip(((part + 1) / 2 * n).astype(np.int64), 0, n - 1)
                fine = np.stack([np.bincount(column, minlength=n) for column in bins.T])
                wide = fine.reshape(len(fine), _COARSE, _SPLIT).sum(axis=2)
                return np.concatenate([wide.ravel(), fine.ravel()]).astype(np.int64) << _FINE

    def _parts(self, records: Records) -> Floats:
        """Return the columns that are looked at, in ``[-1, 1]``."""
        part = records[:, list(self.used)] / (1 << self.frac_bits)
        return np.clip(part, -1.0, 1.0)

    @cached_property
    def _axes(self) -> Floats:
        """Two directions at right angles for each picture; shape (n_views, 2, n_used)."""
        d = len(self.used)
        if d <= 2:
            return np.eye(2, d)[None]
        rng = public_generator("outliers", "pictures", self.public_seed, d)
        drawn = [np.linalg.qr(rng.normal(size=(d, 2)))[0].T for _ in range(self.n_views)]
        return np.stack(drawn)

    def _standardised(self, results: Mapping[str, Floats], records: Records) -> Floats:
        """Return how far each column is from what is usual, in deviations."""
        away = self._parts(records) - (results["location"] - self._middle) / self._half
        return away / (results["spread"] / self._half)

    def _cells_of(self, results: Mapping[str, Floats], records: Records) -> Integers:
        """Return each record's cell in each picture; shape (n_samples, n_views)."""
        m = self.n_cells
        part = self._standardised(results, records)
        found = []
        for axes in self._axes:
            places = (part @ axes.T / _REACH + 1) / 2 * m
            steps = np.clip(places.astype(np.int64), 0, m - 1)
            found.append(steps[:, 0] if len(self.used) == 1 else steps[:, 0] * m + steps[:, 1])
        return np.stack(found, axis=1)

    def update(self, t: int, state: GridState, released: Mapping[str, Released]) -> State:
        """Return what was released, in records; counts of groups below the limit are dropped."""
        kept = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        for name, block in released.items():
            unit = _FINE if name != "products" else 2 * self._bits
            kept[name] = from_grid(block.values, unit)
            kept["noise"][t] = block.noise_std / (1 << unit)
        if "flagged" in released and self.group is not None:
            kept["flagged"] = np.where(kept["flagged"] >= self.min_group, kept["flagged"], 0.0)
        return kept

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return the half-width of the number of outliers, if it is released."""
        if not self.count_share:
            return {}
        return {
            "flagged_half_width": np.array([INTERVAL_95["gaussian"] * noise_std / (1 << _FINE)])
        }

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        """Return what is needed to tell how unusual a record is, in data units.

        Returns
        -------
        dict
            ``location`` and ``spread`` (mean and deviation, or median and quartile range over
            1.349) of shape (n_used,), with ``..._low`` and ``..._high``, the ends of their 95 %
            noise intervals; for "mahalanobis" ``covariance``; for "density" ``cells`` of shape
            (n_views, n_cells_of_a_view), ``floor`` (counts below are noise) and ``rarities``.
            ``cutoff`` of shape (1,): a record with a larger score is an outlier. If asked for,
            ``flagged``, ``flagged_half_width``, and with groups ``shown`` (0 where the noisy count
            is below the limit, and then not in ``flagged`` either).
        """
        tables = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        std = float(tables["noise"][0])
        found: dict[str, Floats] = {"cutoff": np.array([self.threshold])}
        match self.method:
            case "zscore":
                d = len(self.used)
                n, first, second = np.split(tables["moments"], [1, 1 + d])
                found |= self._mean_and_spread(n[0], first, second, (std, std, std))
            case "mahalanobis":
                found |= self._mean_and_covariance(tables["products"], std)
            case "robust":
                found |= self._quartiles(tables["wide"], tables["fine"], std)
            case "density":
                found |= self._quartiles(tables["wide"], tables["fine"], std)
                found |= self._density(tables)
        if self.count_share:
            half_width = INTERVAL_95["gaussian"] * tables["noise"][-1]
            found["flagged"] = tables["flagged"]
            found["flagged_half_width"] = np.array([half_width])
            if self.group is not None:
                limit = max(self.min_group, 2.0**-self.frac_bits)
                found["shown"] = (tables["flagged"] >= limit).astype(np.float64)
        return found

    def _mean_and_spread(
        self, n: float, first: Floats, second: Floats, stds: tuple[float, float, float]
    ) -> dict[str, Floats]:
        """Return means and deviations of columns from noisy sums of 1, x and x^2."""
        var_n, var_first, var_second = (std**2 for std in stds)
        mean = scores.ratio(
            first, np.asarray(n), var_numerator=var_first, var_denominator=var_n, box=(-1.0, 1.0)
        )
        # (n sum x^2 - (sum x)^2) / n^2; a noisy square is too large by its variance
        square = scores.ratio(
            n * second - first**2 + var_first,
            np.asarray(n**2 - var_n),
            var_numerator=second**2 * var_n + n**2 * var_second + 4 * first**2 * var_first,
            var_denominator=4 * n**2 * var_n,
            covariance=2 * n * second * var_n,
        )
        least = max(stds[2] / max(n, 1.0), 2.0**-self.frac_bits) ** 2
        spread = (np.sqrt(np.maximum(v, least)) for v in (square.value, square.low, square.high))
        return self._in_data_units(mean, scores.Estimate(*spread))

    def _in_data_units(
        self, location: scores.Estimate, spread: scores.Estimate
    ) -> dict[str, Floats]:
        ends = ("value", "low", "high")
        places = (self._middle + self._half * getattr(location, end) for end in ends)
        widths = (self._half * getattr(spread, end) for end in ends)
        return scores.as_results(
            {"location": scores.Estimate(*places), "spread": scores.Estimate(*widths)}
        )

    def _mean_and_covariance(self, words: Floats, std: float) -> dict[str, Floats]:
        """Return means, deviations and the covariance from noisy products of (x, 1)."""
        d = len(self.used)
        products = unpack_products(words, d + 1)
        n, first, second = products[d, d], products[:d, d], products[:d, :d]
        of_square, of_product = std / SQUARE, std / PRODUCT
        found = self._mean_and_spread(
            n, first, second.diagonal(), (of_square, of_product, of_square)
        )
        records = max(float(n), 1.0)
        mean = first / records
        covariance = second / records - np.outer(mean, mean)
        values, vectors = np.linalg.eigh(covariance)
        # noise can make a variance negative, which none is
        least = max(of_square / records, 4.0**-self.frac_bits)
        covariance = (vectors * np.maximum(values, least)) @ vectors.T
        return {**found, "covariance": covariance * np.outer(self._half, self._half)}

    def _quartiles(self, wide: Floats, fine: Floats, std: float) -> dict[str, Floats]:
        """Return medians and quartile ranges from noisy histograms of two widths."""
        runs = fine.reshape(*wide.shape, _SPLIT)
        # with equal noise in both, this brings them into one estimate of the smallest variance
        gain = 1 / (_SPLIT + 1)
        mended = runs + gain * (wide - runs.sum(axis=2))[:, :, None]
        estimates = [_quantiles(counts, std, gain) for counts in mended.reshape(fine.shape)]
        value, low, high = (
            np.stack([getattr(e, end) for e in estimates]) for end in ("value", "low", "high")
        )
        least = 1 / (_COARSE * _SPLIT)  # half a bin
        location = scores.Estimate(value[:, 1], low[:, 1], high[:, 1])
        spread = scores.Estimate(
            *(
                np.maximum(upper - lower, least) / _IQR
                for upper, lower in (
                    (value[:, 2], value[:, 0]),
                    (low[:, 2], high[:, 0]),
                    (high[:, 2], low[:, 0]),
                )
            )
        )
        return self._in_data_units(location, spread)

    def _density(self, tables: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return cells, the count below which there is only noise, and the cut between scores."""
        std = float(tables["noise"][1])
        found = {
            "cells": tables["cells"],
            "floor": np.array([max(std, 1.0)]),
            "rarities": tables["rarities"],
        }
        low, width = self._rarity_bins(found)
        counts = tables["rarities"]
        middle, upper = (
            low + width * _RARITIES * (q + 1) / 2 for q in _quantiles(counts, 0.0, 0.0).value[1:]
        )
        usual = middle + self.threshold * max(upper - middle, width) / (_IQR / 2)
        # nothing is rarer than cells in which there is only noise
        return {**found, "cutoff": np.array([min(usual, low + width * (_RARITIES - 1))])}

    def _rarity_bins(self, results: Mapping[str, Floats]) -> tuple[float, float]:
        """Return where the bins of scores begin and how wide each is; functions of results."""
        low = -np.log2(self._cells)
        records = max(float(results["cells"].sum(axis=1).mean()), 1.0)
        high = max(np.log2(records / self._cells / float(results["floor"][0])), low + 1.0)
        return float(low), float(high - low) * (1 + 1e-9) / _RARITIES

    def scores(self, results: Mapping[str, Floats], records: Records) -> Floats:
        """Return how unusual each record is; local and exact, not a release.

        Parameters
        ----------
        results : mapping
            What :meth:`results` returned.
        records : ndarray of shape (n_samples, n_features), int32

        Returns
        -------
        ndarray of shape (n_samples,)
            "zscore" and "robust": the largest distance of a column, in deviations. "mahalanobis":
            the normal score [WH31]_ of the squared distance. "density": how much rarer the record's
            cells are than the average cell, as a power of two, on average over pictures [P16]_; the
            cutoff is `threshold` deviations above the median of the released scores.
        """
        return in_batches(lambda part: self._scores(results, part), records)

    def _scores(self, results: Mapping[str, Floats], records: Records) -> Floats:
        away = self._standardised(results, records)
        if self.method == "density":
            cells = np.maximum(results["cells"], results["floor"][0])
            average = np.maximum(results["cells"].sum(axis=1), 1.0) / self._cells
            rarity = np.log2(average[:, None] / cells)
            where = self._cells_of(results, records)
            mean: Floats = rarity[np.arange(self.n_views), where].mean(axis=1)
            return mean
        if self.method != "mahalanobis":
            far: Floats = np.abs(away).max(axis=1)
            return far
        # of standardised columns, so that it is well conditioned
        correlation = results["covariance"] / np.outer(results["spread"], results["spread"])
        squared = (away * np.linalg.solve(correlation, away.T).T).sum(axis=1)
        ninth = 2 / (9 * len(self.used))
        score: Floats = (np.cbrt(squared / len(self.used)) - (1 - ninth)) / sqrt(ninth)
        return score

    def exhibits(
        self, results: Mapping[str, Floats], columns: tuple[str, ...]
    ) -> tuple[Exhibit, ...]:
        """Return the statistics, and the number of outliers."""
        shown: list[Exhibit] = []
        note = "[ , ] are 95 % of the noise. Which record is unusual is told locally only."
        words = ("mean", "deviation")
        if self.method in ("robust", "density"):
            words = ("median", "IQR / 1.349")
        rows: tuple[tuple[str | Between, ...], ...] = tuple(
            (columns[at], *(_between(results, name, i) for name in ("location", "spread")))
            for i, at in enumerate(self.used)
        )
        shown.append(Table("What is usual", ("column", *words), rows, note))
        if self.method == "density":
            low, width = self._rarity_bins(results)
            names = tuple(f"{low + width * (i + 0.5):.2f}" for i in range(_RARITIES))
            spoken = f"Records beyond {results['cutoff'][0]:.2f} are outliers."
            shown.append(Bars("How rare records are", names, results["rarities"], note=spoken))
        if self.count_share:
            spread = float(results["flagged_half_width"][0])
            names = self.group_names or ("all",)
            visible = results.get("shown", np.ones(len(names)))
            counts = tuple(
                (name, Measured(float(count), spread) if seen else f"below {self.min_group:g}")
                for name, count, seen in zip(names, results["flagged"], visible, strict=True)
            )
            spoken = "Noisy numbers; ± is 95 % of the noise."
            shown.append(Table("Outliers", ("", "records"), counts, spoken))
        return tuple(shown)


def _quantiles(counts: Floats, std: float, gain: float) -> scores.Estimate:
    """Return the quartiles of noisy counts over ``[-1, 1]``, with 95 % noise intervals.

    A quartile is where the running sum crosses its part of the total; the ends are where it is
    farther from that than noise explains. The noise of a count has this deviation, and `gain` of
    the sum over its run of `_SPLIT` counts was taken from it.
    """
    n = len(counts)
    sums = np.append(0.0, np.cumsum(counts))
    runs, rest = np.divmod(np.arange(n + 1), _SPLIT)
    of_run = _SPLIT * (1 - _SPLIT * gain)
    own = std**2 * (runs * of_run + rest - gain * rest**2)
    with_all = std**2 * (runs * of_run + rest * (1 - _SPLIT * gain))
    walls = np.linspace(-1.0, 1.0, n + 1)
    found = []
    for part in _QUARTILES:
        gap = sums - part * sums[-1]
        variance = own - 2 * part * with_all + part**2 * own[-1]
        reach = INTERVAL_95["gaussian"] * np.sqrt(np.maximum(variance, 0.0))
        # what rises only: the middle of all that fits, its first and its last place
        rising = (np.maximum.accumulate(gap) + np.minimum.accumulate(gap[::-1])[::-1]) / 2
        least = np.maximum.accumulate(gap + reach)  # first crosses zero where the quartile can be
        most = np.minimum.accumulate((gap - reach)[::-1])[::-1]  # crosses it last where it can be
        found.append([_crossing(walls, rises) for rises in (rising, least, most)])
    return scores.Estimate(*np.array(found).T)


def _crossing(walls: Floats, rising: Floats) -> float:
    """Return where a rising function is zero, between the walls it is known at."""
    after = int(np.argmax(rising >= 0)) if (rising >= 0).any() else len(rising) - 1
    if after == 0:
        return float(walls[0])
    step = rising[after] - rising[after - 1]
    part = -rising[after - 1] / step if step > 0 else 0.5
    return float(walls[after - 1] + np.clip(part, 0.0, 1.0) * (walls[after] - walls[after - 1]))


def _between(results: Mapping[str, Floats], name: str, i: int) -> Between:
    return Between(*(float(results[key][i]) for key in (name, f"{name}_low", f"{name}_high")))
