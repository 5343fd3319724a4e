"""Logistic regression from noisy sums: counts of columns, products of rows, a few gradients.

The products give the curvature, so a Newton method needs few gradients. Early rounds clip rows and
fit a first model. Later rounds clip the gradients of whole rows, at a norm chosen from noisy counts
of their sizes. They lead to the solution for all rows. Given the curvature, all gradients are
averaged.

References
----------
.. [B92] Böhning, "Multinomial Logistic Regression Algorithm", Annals of the Institute of
   Statistical Mathematics 44(1), 1992: the curvature is at most half that of least squares.
.. [ABL23] Avella-Medina, Bradshaw, Loh, "Differentially Private Inference via Noisy Optimization",
   Annals of Statistics 51(5), 2023: noisy gradients and noisy Newton steps of clipped residuals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import ceil, floor, hypot, inf, log, sqrt
from statistics import NormalDist
from typing import Annotated, ClassVar, Literal, Self

import numpy as np

from cloister.core.arrays import Flags, Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import AtLeastZero, Positive, Range, declared
from cloister.core.display import Display, Estimate, Summary, Table
from cloister.core.errors import PlanError
from cloister.core.numerals import counted
from cloister.core.randomness import public_generator
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import INTERVAL_95, Block, Gaussian, NoisyBlock, PublicFacts
from cloister.tasks.columns import Encoding, categories_of, codes, of_dates, position
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.intervals import round_up
from cloister.tasks.moments import n_products, symmetric
from cloister.tasks.options import Dates, Target, build_task
from cloister.tasks.shrinkage import james_stein
from cloister.tasks.state import decode_state, encode_state
from cloister.tasks.supervised.contrasts import (
    Reference,
    check_references,
    chosen_references,
    coefficient_bars,
    coefficient_results,
    combination,
    effects_of,
    effects_summary,
    power_of,
    to_reference,
)
from cloister.tasks.supervised.frame import (
    Clip,
    Frame,
    Placed,
    Rows,
    Whole,
    count_sizes,
    edge_at,
    noise_of_mean,
    row_length,
    sizes_block,
    solve,
    usual_square,
)
from cloister.tasks.supervised.least_squares import EDGES, sum_zero_basis
from cloister.tasks.supervised.tail_bounds import cut_of_sizes
from cloister.tasks.supervised.target import (
    ClassWeight,
    Features,
    check_classes,
    check_columns,
    check_weights,
    weights_of,
)

NOTE = (
    "[ , ] are 95 % confidence intervals (privacy noise only) for the solution without noise. A "
    "population interval also includes the error of sampling, if the model is true."
)

PLACES_SHARE, SPREADS_SHARE, PRODUCTS_SHARE, CURVATURE_SHARE = 0.05, 0.05, 0.10, 0.16
EARLY_SHARE, WHOLE_SHARE = 0.18, 0.38
"""Shares of the budget: location and scale of columns, the first and the later curvatures,
gradients of clipped rows and of whole rows. Counts of sizes have the rest."""

_GROWTH, _MOST_GROWTH = 1.5, 30.0  # of gradients' shares, from one to the next and in all
_FIRST_AGAIN = 0.35  # of the curvature's share
_FIRST = 2  # round of gradients
_TURN, _FEWEST, _MORE_ROUNDS = 0.55, 7, 3  # when sizes are counted; rounds required and added
_WIDEST, _MOST_CELLS = 400, 1 << 17  # largest model, and curvature, that is released again
_LENGTH = 16.0  # of rows in integers; their unit is a public or released length
_DRIFT, _LEFT = 0.25, 0.4  # errors of a predicted change of the gradient, and of a last step
_MODEL = 0.3  # relative error of the curvature of normal rows
_FLATTEST = 0.1  # least curvature, as a share of that of normal rows
_MORE = 3  # columns of the root of the covariance in addition to those of noise
_APART = 2.0  # deviations of two models that contradict each other
_SAME_WAY = 0.5  # share of the clipped parts that point in the same direction
_HIDDEN, _OF_RARE = 25.0, 1.2  # deviations of counts, and lengths of typical rows
_STEPS, _FARTHEST = 12, 1.5  # steps within a round, and largest change of margins in each
_MOST_CLASSES = 64
_LARGEST = 1024.0  # weight of a row
_SPREAD_CATEGORY, _SPREAD_NUMBER, _SPREAD_CONSTANT = 1.0, 2.0, 5.0  # prior deviations of weights
_NO_SHRINKAGE = 1e6  # times as much
_SAMPLES = 256  # of normal margins
_Z = INTERVAL_95["gaussian"]
_DECIDED = 2.0  # times as large an error without the penalty: its curvature is that of records
_NAMED = 5  # columns of a sentence


Rounds = Annotated[int, Range(_FIRST + 1)]


@dataclass(frozen=True, kw_only=True)
class _FitState:
    """The public state: released values, and the current solution."""

    columns: Placed
    length: float  # to which rows are clipped
    cut: int = 0  # class of sizes at which gradients of whole rows are clipped, see EDGES
    influence: float = 0.0
    class_sizes: Floats
    class_weight: Floats
    products: Floats
    curvature: Floats  # of each pair of classes, minus that of normal rows
    curvature_std: float = 0.0
    gradient: Floats
    gradient_std: float = 0.0
    weights: Floats
    place: Floats  # the weights that the gradient is about
    half_width: Floats
    first: Floats  # the solution for clipped rows
    first_half_width: Floats
    noise_root: Floats
    sampling_root: Floats

    @cached_property
    def moments(self) -> tuple[Floats, float, Floats, Floats]:
        """Products of rows, their number, their mean, and their covariance."""
        products = symmetric(self.products)
        n = max(float(products[-1, -1]), 1.0)
        mean = products[-1] / n
        return products, n, mean, products / n - np.outer(mean, mean)


@declared
class Logistic(Gaussian):
    """Logistic regression, for two classes or more.

    Parameters
    ----------
    n_features, target, levels, names, low, high, shrinkage, reference
        As for :class:`~cloister.tasks.supervised.linear.Linear`; the target holds categories.
    clip : float in (0, 32], optional
        Length to which centred and scaled rows are clipped in the first gradients and in
        curvatures. If None, it is `first_length`, or less if columns have a smaller spread.
    penalty : float, >= 0
        Factor of half the squared norm of the coefficients, without intercepts, for numbers scaled
        to ``[-1, 1]`` by their public bounds: 1 / C of scikit-learn.
    class_weight : tuple of float, or "balanced"
        Weight of a record of each class; "balanced" is inverse to the noisy class sizes.

    Notes
    -----
    Rows are explained in :mod:`cloister.tasks.supervised.frame`, privacy in
    docs/proofs/regression.md.
    """

    name: ClassVar[str] = "logistic"
    later: ClassVar[frozenset[str]] = frozenset({"dates"})
    """Fields that older plans lack; plans leave them out at their defaults."""
    has_effects: ClassVar[bool] = True
    error_depends_on: ClassVar[str] = "the spread of the columns and the fit of the model"

    example: ClassVar[Example] = Example(MIXED, {"target": "smokes"})

    @declared
    class Options:
        target: Target
        C: Annotated[
            Annotated[float, Range(above=0, most=inf)],
            "as in scikit-learn, for numbers scaled to [-1, 1]; infinity for no penalty",
        ] = 1.0
        class_weight: ClassWeight = None
        rounds: Annotated[Rounds | None, "noisy sums; 4 to 15 chosen from the noise by default"] = (
            None
        )
        clip: Annotated[Clip | None, "length of rows; chosen from the noise by default"] = None
        shrinkage: Annotated[bool, "shrink coefficients below their noise toward 0"] = True
        reference: Reference = None

    n_features: Features
    target: int
    classes: tuple[str, ...]
    levels: tuple[int, ...]
    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    rounds: Rounds
    clip: Clip | None = None
    first_length: Positive = 1.0
    penalty: AtLeastZero = 1.0
    class_weight: tuple[Positive, ...] | Literal["balanced"] = ()
    shrinkage: bool = True
    reference: tuple[int, ...] = ()
    frac_bits: int = 16
    dates: Dates = ()

    def __post_init__(self) -> None:
        columns = {"levels": self.levels, "low": self.low, "high": self.high}
        check_columns(self.n_features, self.target, **columns)
        check_classes(self.classes, self.levels[self.target], _MOST_CLASSES)
        if not self.reference:
            object.__setattr__(self, "reference", (0,) * self.n_features)
        check_references(self.reference, self.levels)
        if self.class_weight != "balanced":
            weights = tuple(float(w) for w in self.class_weight) or (1.0,) * len(self.classes)
            check_weights(weights, self.classes)
            object.__setattr__(self, "class_weight", weights)
        self._frame.products_block(1.0)  # raises for a row that is too long or too wide

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Design rounds and the length of rows from public numbers.

        The first two rounds count columns, one counts sizes, the others sum gradients.
        """
        at = position(facts.columns, options.target)
        classes = categories_of(facts.columns, options.target)
        encoding = Encoding(facts.levels, facts.frac_bits, (at,))
        noise = noise_of_mean(encoding.width, facts)
        rounds = options.rounds or _usual_rounds(noise)
        length = row_length([facts.levels[j] for j in encoding.used], noise)
        clip = options.clip
        if clip is None and rounds < _FEWEST:  # noise would hide lengths, too
            clip = length
        weight = options.class_weight
        return build_task(
            cls,
            facts,
            options,
            target=at,
            classes=classes,
            names=encoding.names(facts.columns),
            rounds=rounds,
            clip=None if clip is None else float(clip),
            first_length=length,
            penalty=1 / options.C,
            class_weight="balanced" if weight == "balanced" else weights_of(weight, classes),
            reference=chosen_references(facts.columns, options.reference, options.target),
        )

    @cached_property
    def _frame(self) -> Frame:
        skip = (self.target,)
        return Frame(self.levels, self.frac_bits, skip, _LENGTH, self.low, self.high)

    @cached_property
    def _sums_zero(self) -> Floats:
        """Basis of weights that sum to 0 over each column's categories, as the penalty requires."""
        return sum_zero_basis(self._frame.used_levels)

    @property
    def _outputs(self) -> int:
        """One for two classes, as in scikit-learn, else one for each class."""
        return 1 if len(self.classes) == 2 else len(self.classes)

    @cached_property
    def _pairs(self) -> tuple[Integers, Integers]:
        """The pairs of classes, each with a separate curvature."""
        return np.triu_indices(len(self.classes), 1)

    @property
    def _turn(self) -> int:
        """The round that counts sizes, before gradients of whole rows; 0 if noise is large."""
        return 0 if self.rounds < _FEWEST else 1 + round((self.rounds - 1) * _TURN)

    @cached_property
    def _wide(self) -> bool:
        """True if there are too many weights to hold all their curvatures."""
        p, k = self._frame.width, len(self.classes)
        size = k * (k - 1) // 2 * n_products(p)
        return (k - 1) * p > _WIDEST or size > _MOST_CELLS

    def _residual_squared(self, t: int) -> float:
        """Return a bound on a record's squared residuals: all classes are even at the start."""
        if t == _FIRST:
            # 1/2 squared; or (1 - 1/k)**2 for a record's class and 1/k**2 for each of k - 1 others.
            return 0.25 if self._outputs == 1 else 1 - 1 / self._outputs
        if self._turn and t > self._turn:  # in parts of the cut
            return 1.0
        return float(min(self._outputs, 2))

    def _curvature_bound(self, t: int) -> tuple[int, float]:
        """Return the number of a record's curvatures in a round, and a bound on their norm."""
        if t == _FIRST:  # all classes are even, and so are all pairs
            return 1, 1 / len(self.classes) ** 2
        return len(self._pairs[0]), 1 / 4

    def describe(self) -> str:
        return (
            f"Logistic regression for {len(self.classes)} classes over "
            f"{counted(self._frame.width - 1, 'column')} of a design. Two noisy counts give "
            "location and scale of columns, one to three sums the curvature of the likelihood, "
            "and one count the sizes of gradients. The others are its gradient at a public model. "
            "The coefficients are computed from these sums."
        )

    def start(self) -> State:
        """Return the state before the first round, with weights of 0."""
        p, k = self._frame.width, self._outputs
        weights = np.zeros((k, p))
        q = self._sums_zero.shape[1]
        size = self._basis.shape[1] * q
        again = self._turn and not self._wide
        of_class = (1.0,) * len(self.classes)
        if self.class_weight != "balanced":
            of_class = self.class_weight
        return encode_state(
            _FitState(
                columns=self._frame.unplaced(),
                length=self.first_length if self.clip is None else self.clip,
                class_sizes=np.ones(len(self.classes)),
                class_weight=np.array(of_class) / max(of_class),
                products=np.zeros(n_products(p)),
                curvature=np.zeros((len(self._pairs[0]), n_products(q)) if again else 0),
                gradient=weights,
                weights=weights,
                place=weights,
                half_width=weights,
                first=weights,
                first_half_width=weights,
                noise_root=np.zeros((0, 0) if self._wide else (k * p, size + _MORE)),
                sampling_root=np.zeros((0, 0) if self._wide else (k * p, size)),
            )
        )

    def _share(self, t: int) -> float:
        """Return the share of the budget of a gradient."""
        first, last, part = _FIRST, self.rounds, EARLY_SHARE
        if self._turn:
            last = self._turn
            if t > self._turn:
                first, last, part = self._turn + 1, self.rounds, WHOLE_SHARE
        else:
            part = 1 - PLACES_SHARE - SPREADS_SHARE - PRODUCTS_SHARE - CURVATURE_SHARE
        growth = min(_GROWTH, _MOST_GROWTH ** (1 / (last - first)))
        grow = growth ** np.arange(last - first)
        # In steps of 2**-30: powers differ in their last bits between machines, designs may not.
        return floor(float(part * grow[t - first] / grow.sum()) * 2**30) / 2**30

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return counts of columns; a gradient and products; a gradient; or sizes and curvature."""
        frame = self._frame
        if t == 0:
            return (frame.places_block(PLACES_SHARE, len(self.classes)),)
        if t == 1:
            return (frame.spreads_block(SPREADS_SHARE),)
        blocks = []
        if t != self._turn:
            squared = self._residual_squared(t)
            blocks.append(frame.gradient_block(self._outputs, squared, self._share(t)))
        if share := self._curvature_share(t):
            blocks.append(frame.curvature_block(*self._curvature_bound(t), share))
        if t == self._turn:
            share = 1 - PLACES_SHARE - SPREADS_SHARE - PRODUCTS_SHARE - EARLY_SHARE - WHOLE_SHARE
            share -= 0 if self._wide else CURVATURE_SHARE
            blocks.append(sizes_block("sizes", share))
        return tuple(blocks)

    def _curvature_share(self, t: int) -> float:
        """Return the share of the budget of a curvature: of the first, and of two later ones."""
        if t == _FIRST:
            return PRODUCTS_SHARE + CURVATURE_SHARE * (not self._turn)
        if self._wide or not self._turn or t not in (self._turn, self.rounds - 2):
            return 0.0
        return CURVATURE_SHARE * (_FIRST_AGAIN if t == self._turn else 1 - _FIRST_AGAIN)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        k = len(self.classes)
        labels = codes(records[:, self.target], k, self.frac_bits)
        if t == 0:
            return self._frame.count_places(records, labels, k)
        now = self._read(state)
        if t == 1:
            return self._frame.count_spreads(now.columns, records)
        of_class = np.minimum(now.class_weight, 1.0)
        classes = np.arange(k)[-self._outputs :, None]
        totals = {block.name: np.zeros(block.shape, dtype=np.int64) for block in self.blocks(t)}
        for where, whole in self._frame.whole(now.columns, records):
            counts = of_class[labels[where]]
            predicted = self._predicted(self._frame.margins(whole, now.weights))
            residuals = predicted[-self._outputs :] - (labels[where] == classes)
            residuals *= counts
            if "curvature" in totals or not self._of_whole(t):
                rows = self._frame.rows(whole, now.length)
            if "sizes" in totals:
                totals["sizes"] += count_sizes(whole.length * _norm(residuals))
            if "curvature" in totals:
                totals["curvature"] += self._sum_curvature(t, now, rows, predicted, counts)
            if "gradient" in totals:
                if self._of_whole(t):
                    rows, residuals = self._whole_rows(now, whole, residuals)
                squared = self._residual_squared(t)
                totals["gradient"] += self._frame.sum_gradients(rows, residuals, squared)
        return np.concatenate([total.ravel() for total in totals.values()])

    def _of_whole(self, t: int) -> bool:
        """Return True if the gradient of a round uses whole rows."""
        return 0 < self._turn < t

    def _sum_curvature(
        self, t: int, now: _FitState, rows: Rows, predicted: Floats, counts: Floats
    ) -> Integers:
        """Return the curvature of pairs of classes, with clipping undone within the bound."""
        n_pairs, bound = self._curvature_bound(t)
        pairs = (predicted[self._pairs[0]] * predicted[self._pairs[1]])[:n_pairs] * counts
        # Rows with nearly certain predictions have small weights, which leave room for it.
        undone = np.maximum(rows.whole.length / now.length, 1.0) ** 2
        pairs *= np.minimum(undone, bound / np.maximum(_norm(pairs), 1e-300))
        return self._frame.sum_curvature(rows, pairs, bound)

    def _whole_rows(self, now: _FitState, whole: Whole, residuals: Floats) -> tuple[Rows, Floats]:
        """Return rows and residuals whose products are clipped to the released cut."""
        cut, length = edge_at(now.cut), whole.length
        least = cut / sqrt(min(self._outputs, 2))  # by the largest residual
        size = np.maximum(length * _norm(residuals), cut)
        return self._frame.rows(whole, least), residuals * (np.maximum(length, least) / size)

    def _predicted(self, margins: Floats) -> Floats:
        """Return the probability of each class, from margins of shape (n_outputs, n)."""
        if self._outputs == 1:
            margins = np.concatenate([np.zeros_like(margins), margins])
        return _softmax(margins)

    def _read(self, state: GridState) -> _FitState:
        return decode_state(_FitState, state, self.frac_bits)

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the state with location and scale, or with the solution of all gradients."""
        now = self._read(state)
        if t == 0:
            return encode_state(self._with_places(now, released["places"]))
        if t == 1:
            columns = self._frame.read_spreads(now.columns, released["spreads"])
            return encode_state(self._with_length(replace(now, columns=columns)))
        if "curvature" in released:
            now = self._with_curvature(t, now, released["curvature"])
        if t == self._turn:
            now = replace(now, first=now.weights, first_half_width=now.half_width)
            return encode_state(self._with_cut(now, released["sizes"]))
        now = self._solved(self._with_gradient(t, now, released["gradient"]))
        if self._of_whole(t) and self.shrinkage and t == self.rounds - 1:
            now = self._joined(now)
        return encode_state(now)

    def _with_gradient(self, t: int, now: _FitState, block: NoisyBlock) -> _FitState:
        """Return the average of all gradients so far, and the weights that it refers to."""
        whole = self._of_whole(t)
        unit = _LENGTH / (edge_at(now.cut) if whole else now.length)
        unit *= 1 << self._frame.gradient_bits(sqrt(self._residual_squared(t)))
        gradient, noise_std = block.values / unit, block.noise_std / unit
        if self._outputs > 1:  # the exact gradients of all classes sum to 0
            gradient = gradient - gradient.mean(axis=0)
        if t == _FIRST:
            return replace(now, gradient=gradient, gradient_std=noise_std, place=now.weights)
        # Earlier gradients have less weight, since their model was farther from the solution.
        before = now.gradient_std
        if whole and t == self._turn + 1:  # and they are of clipped rows
            apart = float(np.abs(gradient - now.gradient).max())
            seen = 2 * log(gradient.size + 1) * (before**2 + noise_std**2)
            before = sqrt(before**2 + max(apart**2 - seen, noise_std**2))
        part = before**2 / max(before**2 + noise_std**2, 1e-300)
        return replace(
            now,
            gradient=part * gradient + (1 - part) * now.gradient,
            gradient_std=hypot(part * noise_std, (1 - part) * before),
            place=part * now.weights + (1 - part) * now.place,
        )

    def _joined(self, now: _FitState) -> _FitState:
        """Return the last model, averaged with the first where they agree within their noise.

        The first is less noisy, but fits clipped rows. Where the two differ by more than their
        noise, it estimates another solution. Intervals remain valid for the last model alone.
        """
        apart = now.weights - now.first
        apart[:, -1] = 0.0
        unit = (_Z * now.columns.scale) ** 2
        first, last = now.first_half_width**2 / unit, now.half_width**2 / unit
        both = np.maximum(first + last, 1e-300)
        moved = apart * last / both * np.maximum(1 - apart**2 / (_APART**2 * both), 0)
        moved = moved @ self._sums_zero @ self._sums_zero.T
        shift = moved @ self._frame.to_half_boxes(now.columns).T
        half_width = round_up(np.hypot(now.half_width, shift), self.frac_bits)
        root = now.noise_root.copy()
        if not self._wide:
            root[:, -1] = shift.ravel() / _Z
        return replace(now, weights=now.weights - moved, half_width=half_width, noise_root=root)

    def _with_cut(self, now: _FitState, block: NoisyBlock) -> _FitState:
        """Return the state with the cut of gradients of whole rows, and its influence."""
        counts, noise_std = block.in_records()
        share = self.blocks(self._turn)[-1].weight
        price = _Z * noise_std * sqrt(share / WHOLE_SHARE)
        most = sqrt(min(self._outputs, 2))  # of a residual
        end = int(np.searchsorted(EDGES, most * self._frame.longest(now.columns)))
        # Counts do not show a class below their noise, whose residuals are large.
        hidden = float(now.class_sizes.min()) < _HIDDEN * noise_std
        usual = sqrt(np.trace(now.moments[0]) / max(now.products[-1], 1.0))
        least = int(np.searchsorted(EDGES, _OF_RARE * usual)) if hidden else 0
        cut, influence = cut_of_sizes(counts, noise_std, price, least, end)
        return replace(now, cut=cut, influence=influence)

    def _with_places(self, now: _FitState, block: NoisyBlock) -> _FitState:
        """Return the state with the location of columns, and sizes and weights of classes."""
        k = len(self.classes)
        counts, noise_std = block.in_records()
        sizes = np.maximum(counts[-1 - k : -1], max(1.0, noise_std))
        # The likelihood is divided by the largest weight, and so is the penalty, see `_divisor`.
        weights = sizes.min() / sizes if self.class_weight == "balanced" else now.class_weight
        columns = self._frame.read_places(now.columns, block)
        return replace(now, columns=columns, class_weight=weights, class_sizes=sizes)

    def _with_length(self, now: _FitState) -> _FitState:
        """Return the state with the length of rows: shorter if columns have a smaller spread."""
        if self.clip is not None:
            return now
        at, levels = self._frame.number_places, self._frame.used_levels
        shares = np.delete(now.columns.centre[:-1], at)
        n_categories = sum(n > 0 for n in levels)
        squared = 1 + np.clip(now.columns.square[at], 0, 1).sum() + n_categories - shares @ shares
        spread = sqrt(min(max(squared, 1.0) / usual_square(levels), 1.0))
        longest = self._frame.longest(now.columns)
        return replace(now, length=min(self.first_length * spread, longest))

    def _with_curvature(self, t: int, now: _FitState, block: NoisyBlock) -> _FitState:
        """Return the state with the curvature of each pair of classes, shrunk by its noise."""
        matrices, noise_std = self._frame.unpack(block, _LENGTH / now.length)
        now = replace(now, curvature_std=noise_std)
        if t == _FIRST:  # the curvature of normal rows, until it is released again
            even = _rows_products(matrices[0], noise_std) * len(self.classes) ** 2
            products = even[np.triu_indices(self._frame.width)]
            return replace(now, products=products, curvature=np.zeros_like(now.curvature))
        before = symmetric(now.curvature)
        model = self._normal_curvature(self._normal(now, now.weights)) + before
        # Each entry between two directions of the model's curvature is shrunk separately.
        values, vectors = np.linalg.eigh(model)
        values = np.maximum(values, 1e-9 * np.abs(values).max())
        apart = self._sums_zero.T @ matrices @ self._sums_zero - model
        turned = vectors.transpose(0, 2, 1) @ apart @ vectors
        usual = _MODEL**2 * values[:, :, None] * values[:, None, :]
        turned *= usual / (usual + noise_std**2)
        after = before + vectors @ turned @ vectors.transpose(0, 2, 1)
        return replace(now, curvature=after[:, *np.triu_indices(after.shape[-1])])

    def _normal(self, now: _FitState, weights: Floats) -> tuple[Floats, Floats, Floats]:
        """Return normal rows conditional on their margins.

        The points represent equal numbers of rows. Returned are the probabilities of classes at
        each point, its mean row, and the products of the remainders of all rows. Mean rows are
        multiplied by the square root of the number of rows of a point.
        """
        _, n, mean, spread = now.moments
        couple = weights @ spread
        values, vectors = np.linalg.eigh(couple @ weights.T)
        root = np.sqrt(np.maximum(values, 0))
        safe = np.where(root > 1e-6, root, np.inf)
        # The symmetric root, so that points move smoothly with the weights.
        towards = couple.T @ (vectors / safe) @ vectors.T  # of a row, for one step of a point
        points = _points(self._outputs)
        margins = (mean @ weights.T + points @ ((vectors * root) @ vectors.T)).T
        rows = (mean + points @ towards.T) * sqrt(n / len(points))
        return self._predicted(margins), rows, n * (spread - towards @ towards.T)

    def _normal_curvature(self, normal: tuple[Floats, Floats, Floats]) -> Floats:
        """Return the curvature of each pair of classes for normal rows."""
        predicted, rows, left = normal
        pairs = predicted[self._pairs[0]] * predicted[self._pairs[1]]
        found: Floats = (pairs[:, None, :] * rows.T) @ rows
        found += pairs.mean(axis=1)[:, None, None] * left
        return np.asarray(self._sums_zero.T @ found @ self._sums_zero)

    def _nearer(self, step: Floats, now: _FitState) -> Floats:
        """Return the step, shortened so that the curvature holds for the change of margins."""
        products, n, _, _ = now.moments
        squared = np.einsum("ki,ij,kj", step, products, step) / n
        return step * min(1.0, _FARTHEST / sqrt(max(squared, 1e-18)))

    def _system(self, pairs: Floats) -> Floats:
        """Return the curvature of all outputs from that of pairs of classes."""
        if self._outputs == 1:
            return np.asarray(pairs[0])
        apart = self._basis[self._pairs[0]] - self._basis[self._pairs[1]]
        both = apart[:, :, None] * apart[:, None, :]
        system = np.tensordot(both, pairs, axes=(0, 0))  # of outputs a, b and columns i, j
        size = apart.shape[1] * self._sums_zero.shape[1]
        return np.asarray(system.transpose(0, 2, 1, 3).reshape(size, size))

    @cached_property
    def _basis(self) -> Floats:
        """Directions in which outputs differ, since a common change affects no probability."""
        k = self._outputs
        return np.ones((1, 1)) if k == 1 else np.linalg.svd(np.eye(k) - 1 / k)[0][:, : k - 1]

    def _parts(self, now: _FitState) -> Iterator[Floats]:
        """Yield directions of outputs that are solved separately; all together if not too wide."""
        if self._wide:
            predicted, _, _ = self._normal(now, now.weights)
            shares = predicted[-self._outputs :]
            mixed = np.diag(shares.mean(axis=1)) - shares @ shares.T / shares.shape[1]
            _, vectors = np.linalg.eigh(self._basis.T @ mixed @ self._basis)
            yield from (self._basis @ vectors).T[:, :, None]
        else:
            yield self._basis

    def _curvature(self, now: _FitState, weights: Floats, basis: Floats, more: Floats) -> Floats:
        """Return the curvature at some weights between directions of outputs."""
        normal = self._normal(now, weights)
        if self._wide:  # as if rows were independent of margins
            shares = normal[0][-self._outputs :]
            along = basis[:, 0] @ shares
            bend = (basis[:, 0] ** 2) @ shares.mean(axis=1) - (along**2).mean()
            bend = max(float(bend), _FLATTEST / 4 / len(self.classes))
            return bend * self._sums_zero.T @ now.moments[0] @ self._sums_zero
        return _positive(self._system(self._normal_curvature(normal)), more)

    def _spreads(self, now: _FitState) -> Floats:
        """Return the prior deviation of each weight of a row."""
        spread = np.full(self._frame.width, _SPREAD_CATEGORY)
        spread[self._frame.number_places] = _SPREAD_NUMBER
        spread[-1] = _SPREAD_CONSTANT
        spread[now.columns.alike > 0] *= _NO_SHRINKAGE  # their scale is no deviation of values
        if not self.shrinkage:
            spread *= _NO_SHRINKAGE
        # A prior must not shrink weights that are clearly large.
        seen = np.sqrt(np.mean((now.weights / spread) ** 2, axis=1).max())
        return np.asarray(spread * max(1.0, 2 * float(seen)))

    def _solved(self, now: _FitState) -> _FitState:
        """Return the state with the solution for the weights."""
        noise_std, before = now.gradient_std, now.weights
        spread = self._spreads(now)
        penalty = self.penalty * now.columns.scale**2 / self._divisor(now)
        penalty[-1] = 0.0
        cut_off = now.influence * edge_at(now.cut) / _Z
        # In half boxes, since the state is rounded to the grid.
        back = self._frame.to_half_boxes(now.columns)
        weights, after, variance = before, now.gradient, np.zeros_like(before)
        roots = (now.noise_root, now.sampling_root)
        for outputs in self._parts(now):
            m, basis = outputs.shape[1], np.kron(outputs, self._sums_zero)
            likely, fine = (np.tile(self._sums_zero.T**2 @ v, m) for v in (spread, penalty))
            more = np.zeros((len(fine), len(fine)))
            if now.curvature.size:
                more = self._system(symmetric(now.curvature))
            system = self._curvature(now, weights, outputs, more)
            for _ in range(1 if self._wide else _STEPS):
                at = basis.T @ weights.ravel()
                target = system @ at - basis.T @ after.ravel()
                mean, _ = solve(system, fine, target[None], noise_std, likely)
                step = self._nearer((basis @ (mean[0] - at)).reshape(weights.shape), now)
                # The curvature changes along the step like that of normal rows.
                ahead = self._curvature(now, weights + step, outputs, more)
                # The trapezoid rule: mean of the curvatures at both ends of the step.
                change = (system + ahead) / 2 @ (basis.T @ step.ravel())
                after = after + (basis @ change).reshape(after.shape)
                weights, system = weights + step, ahead
            moved = basis.T @ (weights - now.place).ravel()
            error = hypot(noise_std, now.curvature_std * float(np.sqrt(moved @ moved)))
            error += _SAME_WAY * cut_off
            _, left = solve(system, fine, target[None], error, likely)
            # The noise, the shrinkage to zero, and the error of the last step.
            drawn = left @ (basis.T @ weights.ravel() / likely**2)
            turned = np.kron(outputs, back @ self._sums_zero)
            root = [_root(left), drawn, _LEFT * moved, 0 * moved]  # the last: of joined models
            noise = np.asarray(turned @ np.column_stack(root), dtype=np.float64)
            variance += (noise**2).sum(axis=1).reshape(variance.shape)
            if not self._wide:
                inverse = np.linalg.pinv(system + np.diag(fine), hermitian=True)
                roots = noise, turned @ _root(inverse @ system @ inverse)
        drift = _DRIFT * float(np.sqrt(np.mean((after - now.gradient) ** 2)))
        return replace(
            now,
            gradient=after,
            gradient_std=hypot(noise_std, drift),
            weights=np.clip(weights, -_LARGEST, _LARGEST),
            half_width=round_up(_Z * np.sqrt(variance), self.frac_bits),
            noise_root=roots[0],
            sampling_root=roots[1],
        )

    def _decided_by_penalty(self, now: _FitState) -> Flags:
        """Return a flag for each weight that the penalty sets more than the records do.

        To first order, the maximum of the likelihood alone is a step away. The flag is set if this
        step is longer than the interval, or if the error of that maximum is much larger.
        """
        decided = np.zeros(now.weights.shape, dtype=bool)
        if self._wide or not self.penalty:
            return decided
        fine_of = self.penalty * now.columns.scale**2 / self._divisor(now)
        fine_of[-1] = 0.0
        (outputs,) = self._parts(now)
        basis = np.kron(outputs, self._sums_zero)
        fine = np.diag(np.tile(self._sums_zero.T**2 @ fine_of, outputs.shape[1]))
        more = np.zeros_like(fine)
        if now.curvature.size:
            more = self._system(symmetric(now.curvature))
        # Its inverse may not exist: without records in a direction, the penalty alone decides.
        system = self._curvature(now, now.weights, outputs, more)
        alone = np.linalg.pinv(system, hermitian=True)
        both = np.linalg.pinv(system + fine, hermitian=True)
        turned = np.kron(outputs, self._frame.to_half_boxes(now.columns) @ self._sums_zero)
        step = turned @ (alone @ fine @ (basis.T @ now.weights.ravel()))
        freed, held = (np.diag(turned @ part @ turned.T) for part in (alone, both @ system @ both))
        sampling = np.sqrt(np.maximum(held, 0.0))
        interval = np.hypot(now.half_width.ravel(), _Z * sampling)
        decided.ravel()[:] = (np.abs(step) > interval) | (np.sqrt(freed) > _DECIDED * sampling)
        decided[:, -1] = False  # the constant has no penalty
        return decided

    def doubts(self, results: Results, columns: tuple[str, ...]) -> Iterator[str]:
        """Yield a warning of coefficients that the penalty decides."""
        places = np.flatnonzero((results["penalised"] > 0).any(axis=0))
        if len(places):
            named = ", ".join(self.names[j] for j in places[:_NAMED]) + ", ..." * (
                len(places) > _NAMED
            )
            yield (
                f"the penalty decides the coefficients of {named}, whose population intervals are "
                "not known; set C to infinity, or give narrower bounds from public knowledge."
            )

    def _divisor(self, now: _FitState) -> float:
        """Return the class weight that corresponds to 1."""
        if self.class_weight != "balanced":
            return float(max(self.class_weight))
        sizes = now.class_sizes
        return float(sizes.sum() / (len(sizes) * sizes.min()))

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return no forecast: half-widths depend on the scale of columns."""
        return {}

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return the model with its 95 % intervals.

        Returns
        -------
        dict
            In data units, ``coef`` of shape (n_outputs, n_columns_of_design) and ``intercept`` of
            shape (n_outputs,), each with ``..._low`` and ``..._high``. There is one output for two
            classes, else one for each class. ``grid_coef`` of shape
            (n_outputs, n_columns_of_design + 1) are coefficients for numbers in ``[-1, 1]``, the
            intercept last. ``records`` and ``records_half_width``, of shape (1,), are the noisy
            number of records, at least its noise, and its margin of error.

        Notes
        -----
        The intervals are for the solution for all rows without noise and clipping. They include the
        noise of the averaged gradients, the shrinkage to 0, and the error of the last steps. They
        also include the effect of clipping according to noisy counts. Population intervals,
        ``..._population_low`` and ``..._population_high``, add sampling by the inverse of the
        released curvature, and are valid if the model is. ``covariance`` and
        ``sampling_covariance`` include all coefficients, output by output, the intercept last in
        each. ``penalised`` is 1 for coefficients that the penalty decides; what they have of
        sampling is not known. Very wide models have neither these nor population intervals.
        """
        now = self._read(state)
        values = now.weights @ self._frame.to_data(now.columns).T
        boxes = self._frame.half_boxes
        half_width = now.half_width / boxes
        covariances: dict[str, Floats] = {}
        variance = None
        if not self._wide:
            units = np.tile(boxes, self._outputs)[:, None]
            noise, sampling = now.noise_root / units, now.sampling_root / units
            covariances = {"covariance": noise @ noise.T}
            penalised = self._decided_by_penalty(now)
            sampling[penalised.ravel()] = np.nan
            covariances["sampling_covariance"] = sampling @ sampling.T
            variance = (sampling**2).sum(axis=1).reshape(values.shape)
            covariances["penalised"] = penalised[:, :-1].astype(np.float64)
        return {
            "grid_coef": now.weights @ self._frame.to_grid(now.columns).T,
            **covariances,
            **now.columns.records,
            **coefficient_results(values, values - half_width, values + half_width, variance),
        }

    def odds_ratio(self, results: Results, weights: Floats, output: int = 0) -> Estimate:
        """Return the odds ratio of a class for a change of the columns.

        Parameters
        ----------
        weights : ndarray of shape (n_columns_of_design + 1,)
            Change of each column of the design, in data units; the constant is last.
        output : int
            For two classes 0, the odds of the second; else the number of a class, for its odds
            against the first.
        """
        return replace(self._log_odds(results, weights, output).mapped(power_of), null=1.0)

    def _log_odds(self, results: Results, weights: Floats, output: int) -> Estimate:
        if self._wide:
            raise PlanError(
                "odds ratios need covariances, which are kept up to a few hundred coefficients; "
                "use fewer columns, or join rare categories."
            )
        against = np.zeros(self._outputs)
        against[output] = 1.0
        if self._outputs > 1:
            against[0] -= 1.0
        return combination(
            np.outer(against, weights).ravel(),
            np.column_stack([results["coef"], results["intercept"]]).ravel(),
            results["covariance"],
            results["sampling_covariance"],
        )

    def decision(self, results: Results, records: Records) -> Floats:
        """Return the log-odds of each record; shape (n_samples, n_outputs)."""
        return self._frame.predict(np.asarray(results["grid_coef"]), records)

    def probabilities(self, results: Results, records: Records) -> Floats:
        return self._predicted(self.decision(results, records).T).T

    def summary(
        self, results: Results, columns: tuple[str, ...], nominal_n: int, units: str
    ) -> Summary:
        """Summarise the clearest odds ratios; of very wide models nothing."""
        if self._wide:
            return Summary()
        frame, target = self._frame, columns[self.target]
        names, changes = effects_of(
            self.names,
            frame.used_levels,
            frame.of_used(self.reference),
            frame.half_boxes,
            [columns[j] for j in self.dates],
        )
        outputs = range(1) if self._outputs == 1 else range(1, self._outputs)
        classes = [f", {label} against {self.classes[0]}" for label in self.classes[1:]]
        # A penalty draws ratios toward 1, and their intervals too.
        kind = "Penalised odds ratios" if self.penalty else "Odds ratios"
        return effects_summary(
            f"{kind} of {target}" + classes[0] * (len(classes) == 1),
            [name + of * (len(classes) > 1) for of in classes for name in names],
            [self._log_odds(results, row, output) for output in outputs for row in changes],
            nothing=f"No effect on {target} is shown.",
            ratios=True,
        )

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return the coefficients, and a picture of the largest for half a column's box."""
        outputs = (self.classes[1],) if self._outputs == 1 else self.classes
        coefficients = Estimate.of(results, "coef").mapped(np.transpose)  # column, output
        constants = Estimate.of(results, "intercept").mapped(np.atleast_2d)
        each = coefficients.followed_by(constants)
        names = of_dates(self.names, columns, self.dates)
        rows: list[tuple[str | Estimate, ...]] = [
            (name, *each[i].cells()) for i, name in enumerate(names)
        ]
        table = Table(
            "Coefficients of the log-odds, data units", ("column", *outputs), tuple(rows), NOTE
        )
        bars = coefficient_bars(
            f"Largest effects on {outputs[0]!r}: a column rises by half of its range",
            self.names[:-1],
            [coefficients[i, 0] for i in range(len(self.names) - 1)],
            self._frame.half_boxes[:-1],
            "log-odds",
        )
        if self._wide:
            return (table, bars)
        return (table, self._odds_ratios(results, names), bars)

    def _odds_ratios(self, results: Results, names: Sequence[str]) -> Table:
        """Return the odds ratio of each column for one unit, or against its reference category."""
        matrix = to_reference(self._frame.used_levels, self._frame.of_used(self.reference))
        outputs = range(1) if self._outputs == 1 else range(1, self._outputs)
        rows: list[tuple[str | Estimate, ...]] = []
        for name, row in zip(names[:-1], matrix, strict=False):
            ratios = [self.odds_ratio(results, row, output) for output in outputs]
            rows.append((name, *(ratios if row.any() else ["reference"] * len(ratios))))
        heads = [f"{label} against {self.classes[0]}" for label in self.classes[1:]]
        return Table(
            "Odds ratios, for one unit or against the reference category",
            ("column", *heads),
            tuple(rows),
            NOTE,
        )


def _usual_rounds(noise: float) -> int:
    """Return the number of rounds for the noise of a mean; the less noise, the more rounds."""
    rounds = _FIRST + min(max(ceil(-log(2.5 * noise)), 2), 10)
    return rounds + _MORE_ROUNDS * (rounds >= _FEWEST)


def _positive(model: Floats, more: Floats) -> Floats:
    """Return the sum of two curvatures, in every direction at least a share of the first."""
    if not more.any():
        return model
    values, vectors = np.linalg.eigh(model)
    lengths = np.sqrt(np.maximum(values, 1e-9 * max(float(values[-1]), 1e-9)))
    ratio, turned = np.linalg.eigh((vectors / lengths).T @ more @ (vectors / lengths))
    turned = (vectors * lengths) @ turned
    return np.asarray(model + (turned * np.maximum(ratio, _FLATTEST - 1)) @ turned.T)


def _rows_products(matrix: Floats, noise_std: float) -> Floats:
    """Return products of rows, with correlations shrunk by their noise."""
    apart = np.diag(np.maximum(np.diag(matrix), noise_std))
    found = apart + james_stein(matrix - apart, noise_std)
    values, vectors = np.linalg.eigh(found)
    return np.asarray((vectors * np.maximum(values, noise_std)) @ vectors.T)


def _root(covariance: Floats) -> Floats:
    """Return the symmetric root of a covariance, without its negative part."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T)


@cache
def _points(n: int) -> Floats:
    """Return points that represent a normal distribution in `n` dimensions; (n_points, n)."""
    if n == 1:
        normal = NormalDist()
        return np.array([[normal.inv_cdf((i + 0.5) / _SAMPLES)] for i in range(_SAMPLES)])
    # Public and fixed: every party must compute the same model. Both signs make the mean 0.
    half = public_generator(0, "margins").normal(size=(_SAMPLES, n))
    points = np.concatenate([half, -half])
    return points @ np.linalg.inv(np.linalg.cholesky(points.T @ points / len(points))).T


def _norm(vectors: Floats) -> Floats:
    """Return the lengths of vectors along the first axis, entry by entry."""
    squared = np.zeros(vectors.shape[1:])
    for part in vectors:
        squared += part * part
    return np.asarray(np.sqrt(squared))


def _softmax(margins: Floats) -> Floats:
    """Return probabilities of the first axis."""
    raised: Floats = margins - margins.max(axis=0)
    np.exp(raised, out=raised)
    total = np.zeros(margins.shape[1:])
    for part in raised:  # class by class: the sum of a record must not depend on the others
        total += part
    raised /= total
    return raised
