"""``Shapes``: a classifier that adds one effect for each bin of each column.

The first sum may count records in narrow cells, for the edges of bins. Each later sum holds, for
every bin of every column, the gradients of the log-loss of the model so far, and its curvature. All
columns are in one vector, so a model takes 3 to 7 sums.

References
----------
.. [NCGK21] Nori, Caruana, Bu, Shen, Kulkarni, "Accuracy, Interpretability, and Differential
   Privacy via Explainable Boosting", ICML 2021: the class of models.
.. [FHT00] Friedman, Hastie, Tibshirani, "Additive logistic regression: a statistical view of
   boosting", Annals of Statistics 28(2), 2000, section 5: Newton steps for several classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from math import ceil, isqrt, sqrt
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Range, declared
from cloister.core.display import Bars, Curve, Display, Heatmap, Summary, bare
from cloister.core.errors import PlanError
from cloister.core.numerals import counted
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
    Block,
    Gaussian,
    NoisyBlock,
    PublicFacts,
    Rows,
)
from cloister.tasks.columns import bins_of, codes, exact_sums, in_cache, position
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.interval_tables import SAID
from cloister.tasks.options import Dates, Target, build_task, epsilon_for, noise_multiplier_for
from cloister.tasks.state import decode_state, encode_state
from cloister.tasks.supervised.shape_functions import (
    Layout,
    Loss,
    Shapes,
    Sums,
    edges_from,
    importance,
    step,
)
from cloister.tasks.supervised.target import Features, check_classes, check_columns

if TYPE_CHECKING:
    from cloister.protocol.plan import Plan

Rounds = Annotated[int, Range(1, 30)]
Bins = Annotated[int, Range(2, 512)]
Cells = Annotated[int, Range(0, 512)]

_ONE = 1 << COUNT_BITS
_Z = INTERVAL_95["gaussian"]
_MOST_WORDS = 1 << 15
_LEAST_CLEAR = 5.0
LINEAR_CLEAR = 42.0
"""Records over the noise of one sum, below which straight lines predict as well or better."""
_DESIGNS = ((400.0, 6, 32), (200.0, 4, 32), (100.0, 4, 16), (LINEAR_CLEAR, 3, 16), (0.0, 3, 8))
"""From so many records over the noise of one sum on: sums of gradients, and bins of a column."""
_SEARCH_SHARE = 0.05  # of the budget, for the edges of bins
_CELLS = (8, 512)  # fewest and most cells, from which edges are chosen
_CELL_NOISE = 1 / 3  # of the records, at most, in twice the noise of a running sum of cells
_WIDER = 1.5  # factor of half-widths, which do not cover the error of columns that move together
_MOST_SCORE = 30.0
_LIKELY = 0.95  # posterior probability of an effect, from which a summary names a column
_SHOWN = 20  # columns with a picture
_BAND = ("effect", "low, approx.", "high, approx.")
BAND = (
    "The ends are approximate. If columns move together, they may hold the effect less often than "
    "a 95 % interval."
)


def clear_of(facts: PublicFacts, columns: int) -> float:
    """Return the public number of records over the noise of one sum at the whole budget."""
    return facts.nominal_n / ((noise_multiplier_for(facts) or 1.0) * sqrt(columns))


@declared
class Additive(Gaussian, ABC):
    """A model whose score is an intercept and one effect for each column's bin.

    Parameters
    ----------
    n_features : int
        Number of columns, including the target.
    categories : tuple of tuple of str
        Categories of each column; empty for numbers.
    low, high : tuple of float, data units
        The box.
    n_rounds : int in [1, 30]
        Sums of gradients.
    bins : int in [2, 512]
        Bins of a column of numbers.
    cells : int in [0, 512]
        Equal cells of a column of numbers, from whose noisy counts the edges of bins follow; 0 for
        bins of equal width.
    """

    error_depends_on: ClassVar[str] = "the records in each bin and the effects"
    scale: ClassVar[str]
    instead: ClassVar[str]

    n_features: Features
    target: int
    categories: tuple[tuple[str, ...], ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    n_rounds: Rounds = 4
    bins: Bins = 16
    cells: Cells = 0
    dates: Dates = ()
    frac_bits: int = 16

    def __post_init__(self) -> None:
        columns = {"categories": self.categories, "low": self.low, "high": self.high}
        check_columns(self.n_features, self.target, **columns)
        self._check_target(len(self.categories[self.target]))
        if self.cells & (self.cells - 1):
            raise PlanError(f"cells must be a power of 2 or 0, got {self.cells}; design it again.")
        if (words := max(block.size for t in (0, 1) for block in self.blocks(t))) > _MOST_WORDS:
            raise PlanError(
                f"a sum of shapes must have at most {_MOST_WORDS} numbers, got {words}; use fewer "
                "bins or join rare categories."
            )

    @abstractmethod
    def _check_target(self, levels: int) -> None:
        """Raise PlanError if the target has the wrong type."""

    @classmethod
    def design(cls, facts: PublicFacts, options: Any) -> Self:
        """Design the sums and the bins from public numbers.

        They follow from the records over the noise of one sum at the whole budget.
        """
        target = position(facts.columns, options.target)
        clear = clear_of(facts, facts.n_features - 1)
        _, n_rounds, bins = next(row for row in _DESIGNS if clear >= row[0])
        numbers = sum(not c.levels for j, c in enumerate(facts.columns) if j != target)
        searched = numbers and clear >= LINEAR_CLEAR and options.bins is None
        return build_task(
            cls,
            facts,
            options,
            target=target,
            n_rounds=options.n_rounds or n_rounds,
            bins=options.bins or bins,
            cells=_cells_for(facts, numbers) if searched else 0,
        )

    # Blocks and records ---------------------------------------------------------------------------

    @cached_property
    def layout(self) -> Layout:
        """Places of the bins of all columns in a sum."""
        levels = tuple(map(len, self.categories))
        return Layout(levels, self.target, self.bins, self.cells > 0, self.frac_bits)

    @property
    def _scores(self) -> int:
        """Number of scores of a record."""
        return 1

    @property
    @abstractmethod
    def _weight(self) -> float:
        """Weight of curvature in the sums."""

    @property
    def _norm(self) -> tuple[int, int]:
        """Numerator and denominator of a bound on the squared norm of a record's pairs."""
        return 1, 1

    def _first_blocks(self) -> tuple[Block, ...]:
        """Return the blocks of counts before the first gradients; none for bins of equal width."""
        if not self.cells:
            return ()
        columns = len(self.layout.numbers)
        shape = (columns, self.cells)
        return (Block.counting("cells", shape, _SEARCH_SHARE, columns),)

    @property
    def rounds(self) -> int:
        """One for counts, if there are any, and one for each sum of gradients."""
        return bool(self._first_blocks()) + self.n_rounds

    def start(self) -> State:
        """Return the state before the first round, without effects."""
        return encode_state(Shapes.first(self.layout, self._scores))

    def _at(self, t: int) -> int:
        """Return the number of sums of gradients before round `t`; -1 for the round of counts."""
        return t - bool(self._first_blocks())

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the counts of records in cells, or the sums of all bins of all columns.

        A record adds a gradient and a weighted curvature to one bin of each column. Their norm is
        at most 1, or the root of 2 for several classes. If columns are left out, the others have
        the whole norm.
        """
        if self._at(t) < 0:
            return self._first_blocks()
        d, words = len(self.layout.used), 2 * self._scores
        numerator, denominator = self._norm
        l2_squared = d * _ONE**2 * numerator // denominator
        # The L1 norm of d * words integers.
        l1 = isqrt(d * words * l2_squared)
        weight = (1 - sum(block.weight for block in self._first_blocks())) / self.n_rounds
        return (Block("sums", (self.layout.starts[-1], words), l1, l2_squared, weight),)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return each record's cells, or its gradients and curvature in a bin of each column."""
        if self._at(t) < 0:
            at = [i * self.cells + cell for i, cell in enumerate(self._cells_of(records))]
            return (Rows.at(at, [_ONE] * len(at)),)
        places, added, active = self._added(state, records)
        words = len(added)
        at = [place * words + word for place in places for word in range(words)]
        values = [one * (part != 0) for part in active for one in added]
        return (Rows.at(at, np.stack(values, axis=1)),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the counts of cells, or the sums of gradients and curvature of all bins."""
        if self._at(t) < 0:
            return self._counted(records) << COUNT_BITS
        size = self.layout.starts[-1]
        total = np.zeros((2 * self._scores, size), dtype=np.int64)
        for part in in_cache(records):
            places, added, active = self._added(state, part)
            for place, is_active in zip(places, active, strict=True):
                if is_active:
                    total += [exact_sums(place, one, size) for one in added]
        return total.T.ravel()

    def _cells_of(self, records: Records) -> Iterator[Integers]:
        for j in self.layout.numbers:
            yield bins_of(records[:, j], self.cells, self.frac_bits)

    def _counted(self, records: Records) -> Integers:
        cells = self._cells_of(records)
        return np.concatenate([np.bincount(cell, minlength=self.cells) for cell in cells])

    def _added(
        self, state: GridState, records: Records
    ) -> tuple[list[Integers], Integers, Integers]:
        """Return places of records, the integers that they add to each, and active columns."""
        places = self.layout.places(state["edges"], records)
        active = state["active"] != 0
        effects = state["effects"]
        # Whole numbers, whose sum does not depend on the order of addition.
        scores = state["intercept"] + sum(effects[place] for place in places)
        gradients, curvature = self._pairs(state, scores.T / (1 << self.frac_bits), records)
        d, left = len(places), max(int(active.sum()), 1)
        whole = np.concatenate([gradients, self._weight * curvature])
        # Towards zero: a norm must not exceed its bound. Active columns share that of all.
        whole = np.trunc(whole * isqrt(d * _ONE**2 // left))
        numerator, denominator = self._norm
        # The bound holds by the proof. It is checked, as the exponential of a library may be wrong.
        squared = np.einsum("ij,ij->j", whole, whole)
        kept = squared * left <= d * _ONE**2 * numerator // denominator
        whole[:, ~kept] = 0.0  # assigned, since a NaN times zero is NaN
        return places, whole.astype(np.int64), active.astype(np.int64)

    @abstractmethod
    def _pairs(self, state: GridState, scores: Floats, records: Records) -> tuple[Floats, Floats]:
        """Return gradients and curvature of records; each of shape (n_scores, n_samples)."""

    # The model ------------------------------------------------------------------------------------

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the edges of bins, or the model after the sums of this round."""
        now = decode_state(Shapes, state, self.frac_bits)
        kept: State = {name: from_grid(value, self.frac_bits) for name, value in state.items()}
        if (at := self._at(t)) < 0:
            return {**kept, **self._read_counts(released)}
        values, noise = released["sums"].in_records()
        d, left = len(self.layout.used), max(int(now.active.sum()), 1)
        share = isqrt(d * _ONE**2 // left) / _ONE  # of a record in each active column
        k = self._scores
        sums = Sums(values[:, :k] / share, values[:, k:] / (share * self._weight), noise / share)
        return {**kept, **encode_state(step(now, at, sums, self.layout, self._loss(kept)))}

    def _read_counts(self, released: Mapping[str, NoisyBlock]) -> State:
        """Return the entries of the state that the first round changes."""
        if not self.cells:
            return {}
        counts, _ = released["cells"].in_records()
        return {"edges": edges_from(counts, self.layout)}

    def _loss(self, state: State) -> Loss:
        """Return the numbers of the loss that a step needs."""
        return Loss(self._weight)

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return nothing: margins of effects depend on the records in each bin."""
        return {}

    def plan_warnings(self, plan: Plan, forecast: Results) -> Iterator[str]:
        """Warn that straight lines are as good, if the noise leaves no curve to find."""
        if plan.budget is None:
            return
        block = self.blocks(self.rounds - 1)[0]
        noise = plan.noise_std(block) * sqrt(block.weight / block.l2_squared)
        clear = plan.nominal_n / (noise * sqrt(len(self.layout.used)))
        if clear >= LINEAR_CLEAR:
            return
        epsilon = epsilon_for(plan.budget, LINEAR_CLEAR / clear)
        lost = f"at which {self.instead} is as good or better"
        if clear < _LEAST_CLEAR:
            lost = "which hides every effect"
        yield (
            f"epsilon {plan.budget.epsilon:g} is too small for {plan.nominal_n:,} records: they "
            f"are {clear:.2g} times the noise of one sum, {lost}; about epsilon {epsilon:.2g} or "
            f"{ceil(plan.nominal_n * LINEAR_CLEAR / clear):,} records would fit."
        )

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the effects with approximate bands.

        Returns
        -------
        dict
            ``intercept`` of shape (n_scores,). ``effects`` of shape (n_places, n_scores) of each
            bin or category, relative to the mean over records. ``band_low`` and ``band_high`` of
            the same shape are approximate ends: no intervals of known coverage.
            Unused places repeat the last effect of their column. ``edges`` of bins of the columns
            of numbers, (n_numbers, n_edges), data units; unused ones are the upper bound.
            ``importance`` of shape (n_features,): the root of the mean squared effect.
            ``no_effect`` of shape (n_features,): the posterior probability that a column has none.
        """
        now = decode_state(Shapes, state, self.frac_bits)
        used = list(self.layout.used)
        effects, margin = (
            self.layout.continued(part, now.edges)
            for part in (now.effects, _WIDER * _Z * now.deviation)
        )
        of_columns = {name: np.zeros(self.n_features) for name in ("importance", "no_effect")}
        of_columns["importance"][used] = importance(now, self.layout)
        of_columns["no_effect"][used] = now.without
        numbers = list(self.layout.numbers)
        edges = grid.centre[numbers, None] + grid.half_range[numbers, None] * now.edges
        return {
            "intercept": now.intercept,
            **{"effects": effects, "band_low": effects - margin, "band_high": effects + margin},
            "edges": edges.reshape(now.edges.shape),
            **of_columns,
        }

    def _scores_of(self, results: Results, records: Records) -> Floats:
        """Return the scores of grid records; shape (n_scores, n_samples)."""
        one, numbers = 1 << self.frac_bits, list(self.layout.numbers)
        grid = Grid(self.low, self.high, self.frac_bits)
        centre, half = grid.centre[numbers, None], grid.half_range[numbers, None]
        edges = np.rint((results["edges"] - centre) / half * one).astype(np.int64)
        effects, intercept = (
            np.rint(results[name] * one).astype(np.int64) for name in ("effects", "intercept")
        )
        places = self.layout.places(edges, records)
        return np.asarray((intercept + sum(effects[place] for place in places)).T / one)

    # The report -----------------------------------------------------------------------------------

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the columns with the largest effects."""
        used, target = list(self.layout.used), columns[self.target]
        likely = [j for j in self._order(results) if results["no_effect"][j] < 1 - _LIKELY]
        result = f"No column is likely to have an effect on {target}."
        if likely:
            first = ", ".join(columns[j] for j in likely[:SAID])
            result = f"Columns with the largest effects on {target}: {first}."
        return Summary(
            result=result,
            reliability=f"{len(likely)} of {len(used)} columns have an effect on {target} with a "
            f"posterior probability above {_LIKELY:g}, if they do not move together.",
            one_record=True,
        )

    def _order(self, results: Results) -> list[int]:
        order = np.argsort(-results["importance"], kind="stable")
        return [int(j) for j in order if j != self.target]

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return the importance of columns, and a picture of the effects of each."""
        order = self._order(results)
        names = tuple(columns[j] for j in order)
        importance = bare(results["importance"][order], labels=(names,))
        note = f"Root of the mean squared effect on {self.scale}."
        shown = [j for j in order[:_SHOWN] if results["importance"][j] > 0]
        pictures = (self._picture(results, columns[j], j) for j in shown)
        return (Bars("Columns by importance", importance, note), *pictures)

    def _picture(self, results: Results, name: str, j: int) -> Display:
        """Return the steps of a column of numbers, or the numbers of one of categories."""
        i = self.layout.used.index(j)
        at = slice(*self.layout.starts[i : i + 2])
        title, note = (
            f"Effect of {name}",
            f"Effect of the bin on {self.scale}, other columns fixed.",
        )
        # Without the form of intervals, since reports call the ends of these 95 %.
        values, labels = results["effects"][at], self._score_names
        if self._scores == 1:
            values = np.hstack([values, results["band_low"][at], results["band_high"][at]])
            labels, note = _BAND, f"{note} {BAND}"
        if names := self.categories[j]:
            return Heatmap(title, bare(values, labels=(names, labels)), note)
        edges = results["edges"][self.layout.numbers.index(j)]
        inner = edges[edges < self.high[j]]
        places = np.concatenate([[self.low[j]], inner, [self.high[j]]])
        # The last value again, so that its step has an end.
        steps = np.minimum(np.arange(len(places)), len(inner))
        lines = bare(values[steps].T, labels=(labels, ()), axes=(name,), unit=self.scale)
        return Curve(title, places, lines, note, steps=True, dates=j in self.dates)

    @property
    def _score_names(self) -> tuple[str, ...]:
        return ("",)


def _cells_for(facts: PublicFacts, columns: int) -> int:
    """Return the number of cells whose running sums are clear of their noise, a power of 2."""
    noise = (noise_multiplier_for(facts) or 0.0) * sqrt(columns / _SEARCH_SHARE)
    cells, most = _CELLS
    while cells < most and 2 * noise * sqrt(2 * cells) <= _CELL_NOISE * facts.nominal_n:
        cells *= 2
    return cells


@declared
class ShapesClassifier(Additive):
    """A classifier with one effect for each bin of each column.

    Parameters
    ----------
    n_features, target, categories, low, high, n_rounds, bins, cells, dates
        As for :class:`Additive`; the target holds categories.

    Notes
    -----
    The score is on the log-odds: of the second class, or with three classes or more of each class.
    Privacy is proven in docs/proofs/shapes.md.
    """

    name: ClassVar[str] = "shapes"
    scale: ClassVar[str] = "the log-odds"
    instead: ClassVar[str] = "logistic regression"

    example: ClassVar[Example] = Example(MIXED, {"target": "smokes"})

    @declared
    class Options:
        target: Target
        n_rounds: Annotated[Rounds | None, "sums of gradients; 3 to 6 by the noise if None"] = None
        bins: Annotated[Bins | None, "equal bins of a number; chosen by the noise if None"] = None

    def _check_target(self, levels: int) -> None:
        check_classes(self.classes, levels)

    @property
    def classes(self) -> tuple[str, ...]:
        """Every class, in the order of the schema."""
        return self.categories[self.target]

    @property
    def _scores(self) -> int:
        return 1 if len(self.classes) == 2 else len(self.classes)

    @property
    def _weight(self) -> float:
        # The largest one that leaves the norm unchanged: lemmas of docs/proofs/shapes.md.
        return 3.33 if self._scores == 1 else 2.0

    @property
    def _norm(self) -> tuple[int, int]:
        return (1, 1) if self._scores == 1 else (2, 1)

    def describe(self) -> str:
        first = "The first sum counts records in cells, for the edges of bins. "
        return (
            f"An additive model of {counted(len(self.layout.used), 'column')}. "
            f"{first * bool(self.cells)}"
            f"Each of {self.n_rounds} sums has, for every bin or category of every column, the "
            "noisy gradients of the log-loss of the model so far, and its curvature."
        )

    def _loss(self, state: State) -> Loss:
        # With several classes each score moves by its own curvature, which is too far together.
        k = self._scores
        return Loss(self._weight, part=1.0 if k == 1 else (k - 1) / k)

    def _pairs(self, state: GridState, scores: Floats, records: Records) -> tuple[Floats, Floats]:
        label = codes(records[:, self.target], len(self.classes), self.frac_bits)
        shares = _shares(scores)
        classes = np.arange(len(self.classes))[-self._scores :, None]
        return (label == classes) - shares, shares * (1 - shares)

    def probabilities(self, results: Results, records: Records) -> Floats:
        shares = _shares(self._scores_of(results, records))
        if self._scores == 1:
            shares = np.concatenate([1 - shares, shares])
        return np.asarray(shares.T)

    @property
    def _score_names(self) -> tuple[str, ...]:
        return self.classes[-self._scores :]


def _shares(scores: Floats) -> Floats:
    """Return the probabilities of one score, of the second class, or of a score for each class."""
    if len(scores) == 1:
        return np.asarray(1 / (1 + np.exp(-np.clip(scores, -_MOST_SCORE, _MOST_SCORE))))
    powers = np.exp(np.maximum(scores - scores.max(axis=0), -_MOST_SCORE))
    total = np.zeros(scores.shape[1:])
    for part in powers:  # class by class: the sum of a record must not depend on the others
        total += part
    return np.asarray(powers / total)
