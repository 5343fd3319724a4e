"""Naive Bayes: the noisy tables of all classes in one sum.

Columns of categories enter as tables of class by category, columns of numbers as tables of class by
bin, as moments of a normal law, or as counts of a multinomial law. One release has all of them.

References
----------
.. [VSBH13] Vaidya, Shafiq, Basu, Hong, "Differentially Private Naive Bayes Classification",
   IEEE/WIC/ACM Web Intelligence 2013: the counts and moments that are noised. Here they are
   centred first, and one joint Gaussian release takes the place of a share of epsilon for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import floor, sqrt
from typing import Annotated, ClassVar, Literal, Self, get_args

import numpy as np

from cloister.declared import AtLeastZero, Positive, Range, WayOut, Whole, declared
from cloister.display import Bars, Between, Display, Heatmap, Measured, Table
from cloister.errors import PlanError
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.task import (
    INTERVAL_95,
    Block,
    Floats,
    GridState,
    Integers,
    Mechanism,
    Profile,
    PublicColumn,
    PublicFacts,
    Records,
    Released,
    State,
)
from cloister.tasks.columns import categories_of, codes, position
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.intervals import fieller, ratio_interval, size_interval
from cloister.tasks.options import Target, made
from cloister.tasks.population import ENDS, population_interval, share_variance
from cloister.tasks.supervised.class_tables import (
    bins_of,
    bounded_totals,
    centred_moments,
    centred_table,
    fitted_shares,
    merge_bins,
    pseudo_records,
)

Numbers = Literal["binned", "gaussian", "counts"]
"""How columns of numbers are modelled."""

_KINDS = ("class", "table", *get_args(Numbers))
_NORM = 1 << 20  # of what a record adds, about: fine words, and room for 2**32 records in the ring
_FEWEST_BINS, _MOST_BINS = 4, 128
_CELL_OVER_NOISE = 4.0  # records of a cell over its noise that the number of bins aims at
_BINS_AS_CELLS = 8  # bins are merged after release, so that a column weighs like so many cells
_LEAST_VARIANCE = 1e-6  # in the box of half-width 1
_SHOWN = 14  # cells in the picture of those that tell most


@declared
class NaiveBayes:
    """Naive Bayes over categories, booleans and numbers, in one noisy sum.

    Parameters
    ----------
    n_features : int
        Columns, the target among them.
    kinds : tuple of str, one for each column
        ``"class"`` for the target, ``"table"`` for categories and booleans, and ``"binned"``,
        ``"gaussian"`` or ``"counts"`` for numbers.
    cells : tuple of int
        Categories or bins of each column; 0 where there are none.
    low, high : tuple of float
        The box, data units.
    words : tuple of int
        The weight of each column under one noise: a cell of a table counts ``cells * word``, a
        moment or all counts of a record at most `word`.
    class_word : int
        What a record adds to the count of its class.
    most_counts : float
        Largest sum of a record's counts; a record with more is scaled down to it. 0 without counts.
    smoothing : float, > 0
        Records added to every cell after release.

    Notes
    -----
    A boolean is a category with two values, so a Bernoulli model is the case of booleans alone.
    What a record adds has one bound for all columns together, `Block.l2_squared`. Each table is
    centred, ``1 - 1/cells`` in a record's cell and ``-1/cells`` in the others of its class: its
    sum over cells is 0, so that class counts and tables tell of different things, and projecting
    the noise on such tables makes all of them agree on the size of a class.
    """

    name: ClassVar[str] = "naive-bayes"
    private: ClassVar[bool] = True
    profiles: ClassVar[frozenset[Profile]] = frozenset({"local", "group", "pairwise"})
    mechanism: ClassVar[Mechanism] = "gaussian"
    rounds: ClassVar[int] = 1

    example: ClassVar[Example] = Example(
        MIXED, {"target": "smokes", "numbers": {"weight": "gaussian"}}
    )

    @declared
    class Options:
        """What a user may choose."""

        target: Target
        numbers: Annotated[
            Numbers | Mapping[str, Numbers], "how columns of numbers are modelled, all or by name"
        ] = "binned"
        bins: Annotated[
            Annotated[int, Range(2, 1024)] | None, "of equal width; by the noise if None"
        ] = None
        most_counts: Annotated[
            Positive | None,
            "largest sum of one record's counts; needed for columns of counts",
            WayOut("say how many counts of one record are used at most"),
        ] = None
        smoothing: Annotated[Positive, "records added to every cell after release"] = 1.0

    n_features: Annotated[int, Range(2), WayOut("naive Bayes needs a column besides the target")]
    target: int
    classes: tuple[str, ...]
    kinds: tuple[str, ...]
    cells: tuple[int, ...]
    categories: tuple[tuple[str, ...], ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    words: tuple[Annotated[int, Range(0)], ...]
    class_word: Whole
    most_counts: AtLeastZero = 0.0
    smoothing: Positive = 1.0
    frac_bits: int = 16

    def __post_init__(self) -> None:
        per_column = ("kinds", "cells", "categories", "low", "high", "words")
        if any(len(getattr(self, name)) != self.n_features for name in per_column):
            raise PlanError(f"a plan of naive Bayes needs one of each of {per_column} per column.")
        if len(self.classes) < 2 or self.kinds.count("class") != 1:
            raise PlanError(f"classes must be at least 2 of one target, got {self.classes!r}.")
        if not set(self.kinds) <= set(_KINDS) or self.kinds[self.target] != "class":
            raise PlanError(f"columns must be of {_KINDS}, and the target a class.")
        if "counts" in self.kinds and not self.most_counts:
            raise PlanError(f"most_counts must be a number > 0, got {self.most_counts!r}.")
        tops = zip(self.high, self.kinds, strict=True)
        if not all(high > 0 for high, kind in tops if kind == "counts"):
            raise PlanError("columns of counts must have a max above 0.")
        for kind, cells in zip(self.kinds, self.cells, strict=True):
            if kind in ("table", "binned") and cells < 2:
                raise PlanError(f"bins must be at least 2, got {cells}.")

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Choose bins and weights from public numbers."""
        columns = facts.columns
        at = position(columns, options.target)
        classes = categories_of(columns, options.target)
        kinds = _kinds_of(columns, at, options.numbers)
        _check_counts(columns, kinds, options.most_counts)
        shares = [_importance(kind, c.levels) for kind, c in zip(kinds, columns, strict=True)]
        of_counts = sqrt(kinds.count("counts"))
        of_classes = sqrt(1 + sum(1 / max(c.levels, 2) for c in columns))
        total = of_classes + of_counts + sum(shares)
        bins = options.bins or _bins_for(
            facts.nominal_n / len(classes), facts.budget, _importance("binned", 0) / total
        )
        cells = tuple(
            bins if kind == "binned" else c.levels * (kind == "table")
            for kind, c in zip(kinds, columns, strict=True)
        )
        most = float(options.most_counts or 0.0)
        top = max((c.high for k, c in zip(kinds, columns, strict=True) if k == "counts"), default=1)
        lengths = {  # of what a record adds for a word of 1
            "gaussian": sqrt(2),
            "counts": sqrt(min(1.0, top / most)) if most else 1.0,
        }
        words = []
        for kind, n_cells, share in zip(kinds, cells, shares, strict=True):
            length = sqrt(n_cells * (n_cells - 1)) if n_cells else lengths.get(kind, 1.0)
            part = of_counts if kind == "counts" else share
            words.append(max(floor(_NORM * sqrt(part / total) / length), int(kind != "class")))
        return made(
            cls,
            facts,
            options,
            target=at,
            classes=classes,
            kinds=kinds,
            cells=cells,
            words=tuple(words),
            class_word=floor(_NORM * sqrt(of_classes / total)),
            most_counts=most,
            smoothing=float(options.smoothing),
        )

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        parts = [f"the size of each of {len(self.classes)} classes"]
        if self._tables:
            parts.append(f"tables of class by category or bin of {len(self._tables)} columns")
        if self._normal:
            parts.append(f"mean and variance in each class of {len(self._normal)} columns")
        if self._counted:
            parts.append(
                f"totals in each class of {len(self._counted)} columns of counts, of which a "
                f"record's sum is cut at {self.most_counts:g}"
            )
        return (
            "A naive Bayes classifier from one noisy sum: "
            + "; ".join(parts)
            + ". Every cell has noise, also empty ones."
        )

    # Columns of each kind -------------------------------------------------------------------------

    @cached_property
    def _tables(self) -> tuple[int, ...]:
        return tuple(j for j, kind in enumerate(self.kinds) if kind in ("table", "binned"))

    @cached_property
    def _normal(self) -> tuple[int, ...]:
        return tuple(j for j, kind in enumerate(self.kinds) if kind == "gaussian")

    @cached_property
    def _counted(self) -> tuple[int, ...]:
        return tuple(j for j, kind in enumerate(self.kinds) if kind == "counts")

    @cached_property
    def _places(self) -> tuple[slice, ...]:
        """Where the cells of each table are among those of all."""
        ends = np.cumsum([self.cells[j] for j in self._tables]).tolist()
        return tuple(map(slice, [0, *ends[:-1]], ends))

    @cached_property
    def _count_words(self) -> Integers:
        """What the top of the box of each column of counts is worth."""
        limit = (1 << 62) // max(*self.words, 1 << (self.frac_bits + 1))
        return np.array(
            [
                min(floor(self.words[j] * self.high[j] / self.most_counts), limit)
                for j in self._counted
            ],
            dtype=np.int64,
        )

    # The sum --------------------------------------------------------------------------------------

    def start(self) -> State:
        """Return the state before the round: nothing is known."""
        k = len(self.classes)
        state = {"counts": np.zeros(k), "noise": np.zeros(1)}
        if self._tables:
            state["tables"] = np.zeros((k, sum(self.cells)))
        if self._normal:
            state["moments"] = np.zeros((k, len(self._normal), 2))
        if self._counted:
            state["totals"] = np.zeros((k, len(self._counted)))
        return state

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return one block: class sizes, then tables, moments and totals, all under one noise."""
        l1, l2_squared = self.class_word, self.class_word**2
        for j in self._tables:
            l1 += 2 * self.words[j] * (self.cells[j] - 1)
            l2_squared += self.words[j] ** 2 * self.cells[j] * (self.cells[j] - 1)
        for j in self._normal:
            l1 += 2 * self.words[j]
            l2_squared += 2 * self.words[j] ** 2
        if self._counted:
            word = self.words[self._counted[0]]
            l1 += word
            l2_squared += word * min(word, int(self._count_words.max()))
        width = 1 + sum(self.cells) + 2 * len(self._normal) + len(self._counted)
        return (Block("sums", (len(self.classes) * width,), l1, l2_squared, weight=1.0),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return all classes' sizes, centred tables, moments and totals."""
        k, q = len(self.classes), self.frac_bits
        labels = codes(records[:, self.target], k, q)
        parts = [self.class_word * np.bincount(labels, minlength=k)]
        for j in self._tables:
            cells = self._cells_of(records, j)
            parts.append(centred_table(labels, cells, (k, self.cells[j]), self.words[j]).ravel())
        for j in self._normal:
            parts.append(centred_moments(labels, records[:, j], k, self.words[j], q).ravel())
        if self._counted:
            words, word = self._count_words, self.words[self._counted[0]]
            counted = records[:, self._counted]
            parts.append(bounded_totals(labels, counted, k, words, word, q).ravel())
        return np.concatenate(parts).astype(np.int64)

    def _cells_of(self, records: Records, j: int) -> Integers:
        """Return the category or bin of each record in a column."""
        if self.kinds[j] == "table":
            return codes(records[:, j], self.cells[j], self.frac_bits)
        return bins_of(records[:, j], self.cells[j], self.frac_bits)

    def update(self, t: int, state: GridState, released: Mapping[str, Released]) -> State:
        """Return the noisy sums in records: projected tables, moments and totals."""
        k, sums = len(self.classes), released["sums"]
        values, place = sums.values.astype(np.float64), 0

        def take(*shape: int) -> Floats:
            nonlocal place
            place += int(np.prod(shape))
            return values[place - int(np.prod(shape)) : place].reshape(shape)

        found = {"counts": take(k) / self.class_word, "noise": np.array([sums.noise_std])}
        if self._tables:
            # exact rows sum to 0; taking the mean of the noise away leaves less of it
            tables = [
                take(k, self.cells[j]) / (self.cells[j] * self.words[j]) for j in self._tables
            ]
            found["tables"] = np.hstack(
                [part - part.mean(axis=1, keepdims=True) for part in tables]
            )
        if self._normal:
            moments = [take(k, 2) / self.words[j] for j in self._normal]
            found["moments"] = np.stack(moments, axis=1)
        if self._counted:
            unit = self.most_counts / self.words[self._counted[0]]
            found["totals"] = take(k, len(self._counted)) * unit
        return found

    def _noise(self, noise_std: float, j: int | None = None) -> float:
        """Return the noise, in records, of a class size, or of a cell or moment of a column."""
        if j is None:
            return noise_std / self.class_word
        if self.kinds[j] in ("table", "binned"):
            return noise_std / (self.cells[j] * self.words[j]) * sqrt(1 - 1 / self.cells[j])
        return noise_std / self.words[j]

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return the 95 % half-width of a class size, and of a share in a class of equal size.

        Returns
        -------
        dict
            ``class_count_half_width`` in records and ``cell_half_width``, a probability, of the
            noisiest table; both of shape (1,).
        """
        half = size_interval(self._noise(noise_std), self.mechanism)
        found = {"class_count_half_width": np.array([half])}
        if self._tables:
            worst = max(self._noise(noise_std, j) for j in self._tables)
            size = max(nominal_n / len(self.classes), 1.0)
            found["cell_half_width"] = np.array([min(1.0, INTERVAL_95["gaussian"] * worst / size)])
        return found

    # The model ------------------------------------------------------------------------------------

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
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
            share the model uses; and ``groups`` of shape (sum of cells,), the cells it has joined.

            For normal columns, of shape (n_classes, n_columns) in data units: ``means`` with
            ``means_low`` and ``means_high``, and ``stds``.

            For counts, of shape (n_classes, n_columns): ``words``, the noisy share of each column
            in the counts of its class, with ``words_low`` and ``words_high``; and ``log_words``.

        Notes
        -----
        Intervals are of the shares and means without noise, before any smoothing.
        """
        values = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        counts, noise_std = values["counts"], float(values["noise"][0])
        sizes = np.maximum(counts, 1.0)
        priors = sizes / sizes.sum()
        std = self._noise(noise_std)
        low, high = _shares_between(counts[None, :], std)
        return {
            "class_counts": counts,
            "class_count_half_width": np.full(len(counts), size_interval(std, self.mechanism)),
            "class_prior": priors,
            "class_prior_low": low[0],
            "class_prior_high": high[0],
            **_ends("class_prior", priors, low[0], high[0], share_variance(priors, sizes.sum())),
            **(
                self._fit_tables(values["tables"], counts, priors, noise_std)
                if self._tables
                else {}
            ),
            **(
                self._fit_normal(values["moments"], counts, priors, noise_std)
                if self._normal
                else {}
            ),
            **(self._fit_counted(values["totals"], priors, noise_std) if self._counted else {}),
        }

    def _fit_tables(
        self, tables: Floats, counts: Floats, priors: Floats, noise_std: float
    ) -> dict[str, Floats]:
        size_std = self._noise(noise_std)
        columns: dict[str, list[Floats]] = {}
        for j, place in zip(self._tables, self._places, strict=True):
            excess, even = tables[:, place], 1 / self.cells[j]
            noise = self._noise(noise_std, j)
            low, high = ratio_interval(
                excess, counts, sum_std=noise, count_std=size_std, origin=even, box=(0.0, 1.0)
            )
            sizes = np.maximum(counts, max(1.0, size_std))[:, None]
            noisy = excess + even * counts[:, None]
            groups = np.arange(self.cells[j])
            if self.kinds[j] == "binned":
                groups = merge_bins(noisy, noise, priors)
            fitted = fitted_shares(noisy, groups, noise, priors, self.smoothing)
            shares = np.clip(excess / sizes + even, 0, 1)
            wide = _ends("cells", shares, low, high, share_variance(shares, sizes))
            for name, value in (
                ("cells", shares),
                ("cells_low", low),
                ("cells_high", high),
                *wide.items(),
                ("log_cells", np.log(fitted)),
                ("groups", groups.astype(np.float64)),
            ):
                columns.setdefault(name, []).append(value)
        return {name: np.hstack(parts) for name, parts in columns.items()}

    def _fit_normal(
        self, moments: Floats, counts: Floats, priors: Floats, noise_std: float
    ) -> dict[str, Floats]:
        noise = np.array([self._noise(noise_std, j) for j in self._normal])
        low, high = ratio_interval(
            moments[:, :, 0], counts, sum_std=noise, count_std=self._noise(noise_std)
        )
        sums = np.stack([moments[:, :, 0], (moments[:, :, 1] + counts[:, None]) / 2])
        whole = np.clip(sums.sum(axis=1) / max(counts.sum(), 1.0), [[-1.0], [0.0]], 1.0)
        mixed = pseudo_records(noise, priors)
        sizes = np.maximum(counts, 1.0)[:, None] + mixed
        means, squares = (sums + mixed * whole[:, None, :]) / sizes
        means = np.clip(means, -1, 1)
        # below the noise of itself a variance means nothing
        floor = np.maximum(noise * np.hypot(0.5, 2 * means) / sizes, _LEAST_VARIANCE)
        stds = np.sqrt(np.clip(squares - means**2, floor, 1.0))
        units = self._units(self._normal)
        own = np.maximum(counts, np.maximum(1.0, self._noise(noise_std)))[:, None]
        wide = _ends("means", means, low, high, stds**2 / own, walls=(-1.0, 1.0))
        return {
            **{name: _in_units(part, *units) for name, part in wide.items()},
            "means": _in_units(means, *units),
            "means_low": _in_units(low, *units),
            "means_high": _in_units(high, *units),
            "stds": stds * units[1],
        }

    def _fit_counted(self, totals: Floats, priors: Floats, noise_std: float) -> dict[str, Floats]:
        noise = self._noise(noise_std, self._counted[0]) * self.most_counts
        low, high = _shares_between(totals, noise)
        positive = np.maximum(totals, 0)
        fitted = positive + self.smoothing + pseudo_records(noise, priors)
        whole = np.maximum(positive.sum(axis=1, keepdims=True), 1e-12)
        return {
            "words": positive / whole,
            "words_low": low,
            "words_high": high,
            "log_words": np.log(fitted / fitted.sum(axis=1, keepdims=True)),
        }

    def _units(self, columns: Sequence[int]) -> tuple[Floats, Floats]:
        """Return the middle and half the range of some columns, data units."""
        low, high = (np.array([box[j] for j in columns]) for box in (self.low, self.high))
        return (low + high) / 2, (high - low) / 2

    def probabilities(self, results: Mapping[str, Floats], records: Records) -> Floats:
        """Return the probability of each class; see :class:`~cloister.task.Classifier`."""
        scores = np.tile(np.log(np.asarray(results["class_prior"])), (len(records), 1))
        if self._tables:
            log_cells = np.asarray(results["log_cells"])
            for j, place in zip(self._tables, self._places, strict=True):
                scores += log_cells[:, place].T[self._cells_of(records, j)]
        one = 1 << self.frac_bits
        if self._normal:
            x = _in_units(records[:, self._normal] / one, *self._units(self._normal))
            for k in range(len(self.classes)):
                mean, std = np.asarray(results["means"])[k], np.asarray(results["stds"])[k]
                scores[:, k] -= (((x - mean) / std) ** 2 / 2 + np.log(std)).sum(axis=1)
        if self._counted:
            top = np.array([self.high[j] for j in self._counted])
            counts = (records[:, self._counted] / one + 1) / 2 * top
            scores += counts @ np.asarray(results["log_words"]).T
        scores -= scores.max(axis=1, keepdims=True)
        odds = np.exp(scores)
        probabilities: Floats = odds / odds.sum(axis=1, keepdims=True)
        return probabilities

    # The report -----------------------------------------------------------------------------------

    def cell_names(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the name of each cell of all tables: ``sex=Female``, ``age 17 to 20``."""
        return tuple(
            name
            for j in self._tables
            for name in self._cell_names(columns[j], j, range(self.cells[j]))
        )

    def _cell_names(self, column: str, j: int, groups: Iterable[int]) -> Iterator[str]:
        """Name the groups of a column's cells, which are numbered by `groups`."""
        if self.kinds[j] == "table":
            yield from (f"{column}={word}" for word in self.categories[j])
            return
        edges = np.linspace(self.low[j], self.high[j], self.cells[j] + 1)
        starts = np.flatnonzero(np.diff([-1, *groups]))
        for low, high in zip(starts, [*starts[1:], self.cells[j]], strict=True):
            yield f"{column} {edges[low]:.6g} to {edges[high]:.6g}"

    def displays(
        self, results: Mapping[str, Floats], columns: tuple[str, ...]
    ) -> tuple[Display, ...]:
        """Return the classes, what each column tells, and the cells that tell most."""
        shown: list[Display] = [self._class_table(results)]
        if self._tables:
            shown += self._table_displays(results, columns)
        if self._normal:
            shown.append(
                Heatmap(
                    "Mean in each class",
                    self.classes,
                    tuple(columns[j] for j in self._normal),
                    results["means"],
                    low=results["means_low"],
                    high=results["means_high"],
                    shade=_shade(results["means"]),
                    note="[ , ] are 95 % of the noise, of the mean before it was smoothed.",
                )
            )
        if self._counted:
            names = tuple(columns[j] for j in self._counted)
            logs = results["log_words"]
            told = np.exp(logs) * np.abs(logs - logs.mean(axis=0))
            first = np.argsort(-told.sum(axis=0), kind="stable")[:_SHOWN]
            shown.append(
                Heatmap(
                    "Columns of counts that tell most, share of their class's counts",
                    tuple(names[i] for i in first),
                    self.classes,
                    results["words"][:, first].T,
                    low=results["words_low"][:, first].T,
                    high=results["words_high"][:, first].T,
                    shade=_shade(logs[:, first]).T,
                    note=_NOTE,
                )
            )
        return tuple(shown)

    def _class_table(self, results: Mapping[str, Floats]) -> Table:
        rows = tuple(
            (
                name,
                Measured(float(results["class_counts"][k]), float(spread)),
                Between(
                    float(results["class_prior"][k]),
                    float(results["class_prior_low"][k]),
                    float(results["class_prior_high"][k]),
                    population=(
                        float(results["class_prior_population_low"][k]),
                        float(results["class_prior_population_high"][k]),
                    ),
                ),
            )
            for k, (name, spread) in enumerate(
                zip(self.classes, results["class_count_half_width"], strict=True)
            )
        )
        return Table("Classes", ("class", "records", "share"), rows, _NOTE)

    def _table_displays(
        self, results: Mapping[str, Floats], columns: tuple[str, ...]
    ) -> list[Display]:
        """Return bars of what each column tells, in bits, and its most telling cells."""
        priors = results["class_prior"]
        bits: list[float] = []
        names: list[str] = []
        told: list[Floats] = []
        shares: list[Floats] = []
        for j, place in zip(self._tables, self._places, strict=True):
            groups = results["groups"][place].astype(np.int64)
            fitted = _by_group(np.exp(results["log_cells"][:, place]), groups)
            of_all = priors @ fitted
            parts = priors @ (fitted * np.log2(fitted / of_all))
            bits.append(float(parts.sum()))
            told.append(parts)
            names += self._cell_names(columns[j], j, groups)
            noisy, low, high = (
                results[name][:, place] for name in ("cells", "cells_low", "cells_high")
            )
            value = _by_group(noisy, groups)
            spread = np.sqrt(_by_group(((high - low) / 2) ** 2, groups))
            alone = np.bincount(groups)[None, :] == 1
            ends = (
                np.where(alone, _by_group(low, groups), np.clip(value - spread, 0, 1)),
                np.where(alone, _by_group(high, groups), np.clip(value + spread, 0, 1)),
            )
            shares.append(np.stack([value, *ends, np.log(fitted / of_all)]))
        value, low, high, ratio = np.concatenate(shares, axis=2)
        first = np.argsort(-np.concatenate(told), kind="stable")[:_SHOWN]
        return [
            Bars(
                "What each column tells of the class",
                tuple(columns[j] for j in self._tables),
                np.array(bits),
                unit="bits",
                note="Mutual information in the smoothed model; bins that tell nothing are joined.",
            ),
            Heatmap(
                "Cells that tell most, as shares of their class",
                tuple(names[i] for i in first),
                self.classes,
                value[:, first].T,
                low=low[:, first].T,
                high=high[:, first].T,
                shade=1 / (1 + np.exp(-ratio[:, first].T)),
                note=f"{_NOTE} Darker where more of the class than of all records.",
            ),
        ]


_NOTE = "[ , ] and ± are 95 % of the noise."


def _ends(
    name: str,
    value: Floats,
    low: Floats,
    high: Floats,
    variance: Floats,
    walls: tuple[float, float] = (0.0, 1.0),
) -> dict[str, Floats]:
    """Return both ends of a population interval, under the names that results give them."""
    ends = population_interval(value, low, high, variance, walls=walls)
    return {name + end: part for end, part in zip(ENDS, ends, strict=True)}


def _kinds_of(
    columns: Sequence[PublicColumn], target: int, numbers: str | Mapping[str, str]
) -> tuple[str, ...]:
    """Return how each column is modelled."""
    of_numbers = {c.name for j, c in enumerate(columns) if j != target and not c.levels}
    if isinstance(numbers, Mapping):
        if strangers := set(numbers) - of_numbers:
            raise PlanError(
                f"numbers must name columns of numbers, {sorted(of_numbers)}, got "
                f"{sorted(strangers)[0]!r}."
            )
        chosen = {name: numbers.get(name, "binned") for name in of_numbers}
    else:
        chosen = dict.fromkeys(of_numbers, numbers)
    return tuple(
        "class" if j == target else chosen.get(c.name, "table") for j, c in enumerate(columns)
    )


def _check_counts(
    columns: Sequence[PublicColumn], kinds: Sequence[str], most_counts: float | None
) -> None:
    """Refuse columns of counts that cannot be bounded."""
    counted = [c for c, kind in zip(columns, kinds, strict=True) if kind == "counts"]
    if not counted:
        if most_counts is not None:
            raise PlanError("most_counts goes with columns of counts; leave it out.")
        return
    if bad := [c for c in counted if c.low != 0]:
        raise PlanError(f"a column of counts must have min 0, {bad[0].name!r} has {bad[0].low:g}.")
    if len(counted) < 2:
        raise PlanError("counts need at least 2 columns; model a single one as 'binned'.")
    if most_counts is None:
        raise PlanError(
            f"most_counts must be > 0, got {most_counts!r}; say how many counts of one record are "
            "used at most."
        )


def _importance(kind: str, levels: int) -> float:
    """Return the part of the squared sensitivity that makes the summed squared error least.

    A column with norm ``c w^2`` at weight w and e free cells has error ``e / w^2``: the least sum
    under a bound on all norms has norms in proportion to ``sqrt(e c)``.
    """
    if kind == "gaussian":
        return sqrt(2)
    if kind == "binned":
        levels = _BINS_AS_CELLS
    return sqrt((levels - 1) * (1 - 1 / levels)) if kind in ("table", "binned") else 0.0


def _bins_for(class_size: float, budget: Budget | None, share: float) -> int:
    """Return how many bins leave their cells clear of the noise."""
    if budget is None:
        return _MOST_BINS
    noise = gaussian_noise_multiplier(budget.epsilon, budget.delta) / sqrt(share)
    most = class_size / (_CELL_OVER_NOISE * noise)
    return int(min(max(most, _FEWEST_BINS), _MOST_BINS))


def _shares_between(totals: Floats, std: float) -> tuple[Floats, Floats]:
    """Return the 95 % noise interval of each part of a row in its sum; shape of `totals`."""
    whole, variance = totals.sum(axis=-1, keepdims=True), std**2
    of_whole = totals.shape[-1] * variance
    return fieller(totals, whole, variance, of_whole, covariance=variance, walls=(0.0, 1.0))


def _in_units(values: Floats, middle: Floats, half: Floats) -> Floats:
    scaled: Floats = middle + half * values
    return scaled


def _by_group(values: Floats, groups: Integers) -> Floats:
    """Sum columns that share a group."""
    sums = np.zeros((len(values), int(groups.max()) + 1))
    np.add.at(sums.T, groups, values.T)
    return sums


def _shade(values: Floats) -> Floats:
    """Return values scaled to ``[0, 1]`` in each column."""
    spread = values.max(axis=0) - values.min(axis=0)
    shade: Floats = (values - values.min(axis=0)) / np.where(spread > 0, spread, 1)
    return shade
