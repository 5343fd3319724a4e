"""Analyses of joined rows: noisy words on shares, and estimates from the released words.

A person is in at most one joined row, so its contribution to an opening is one vector of integers.
Each class states that vector's squared length. Both servers add noise before anything is opened.
Intervals are for the noise of both servers, which is sqrt(2) times the charged one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import isqrt, prod, sqrt
from typing import Annotated, Any, ClassVar

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.declared import Length, Range, Rule, Share, declared
from cloister.core.display import Bars, Cell, Display, Estimate, Heatmap, PValue, bare
from cloister.core.display import Table as Grid
from cloister.core.errors import PlanError
from cloister.core.randomness import public_generator
from cloister.hazmat.ring import Words, to_integers
from cloister.privacy.budget import Budget
from cloister.protocol.task import INTERVAL_95
from cloister.shares.linking.columns import TOP
from cloister.shares.linking.view import Frame, View
from cloister.shares.mpc.material import Shape
from cloister.shares.mpc.opening import NoiseOnShares
from cloister.shares.mpc.products import matmul, square
from cloister.shares.mpc.session import table_of
from cloister.shares.mpc.shares import decode
from cloister.shares.mpc.training import KMeansOnShares, LogisticOnShares
from cloister.shares.mpc.training.tables import ONE
from cloister.tasks.moments import symmetric, upper_half
from cloister.tasks.scores import mean_interval
from cloister.tasks.tables.inference import (
    Tested,
    count_interval,
    fits,
    independence,
    odds_ratio,
    share_interval,
    trend,
)

_Z = INTERVAL_95["gaussian"]
_STEPS = 1 << 10  # lattice steps of a count
_MOST_CELLS = 4096
_MOST_TERMS = 64  # more would have a factor of 1, and rows far below their bound
_KNOWN = 0.5  # of the smallest direction of a design: more noise makes coefficients "not known"

Names = Annotated[
    tuple[str, ...],
    Length(1, 64),
    Rule("all different", lambda names: len(set(names)) == len(names)),
]


@dataclass(frozen=True)
class Answer:
    """The estimates and tests of one analysis, by name.

    Parameters
    ----------
    note : str
        What a reader of the estimates must know.
    of : tuple of str
        The columns of the analysis.
    """

    kind: str
    estimates: Mapping[str, Estimate] = field(repr=False)
    tests: Mapping[str, Tested] = field(default_factory=dict, repr=False)
    note: str = ""
    of: tuple[str, ...] = ()

    def displays(self) -> Iterator[Display]:
        """Yield a table or chart of each estimate, then one table of single numbers and tests."""
        about = f"{self.kind} of {', '.join(self.of)}"
        single: list[tuple[str, Cell]] = []
        for name, one in self.estimates.items():
            title = f"{about}: {name.replace('_', ' ')}"
            match np.ndim(one.values):
                case 0:
                    single.append((name.replace("_", " "), one))
                case 1:
                    yield Bars(title, one, self.note)
                case 2:
                    yield Heatmap(title, one, self.note)
                case _:
                    places = zip(product(*one.labels), one.cells(), strict=True)
                    rows = tuple[tuple[Cell, ...], ...]((*at, cell) for at, cell in places)
                    yield Grid(title, (*one.axes, name), rows, self.note)
        # A p-value for each test, the first of those at several places.
        single += [
            (f"p of {name.replace('_', ' ')}", PValue(np.ravel(test.p)[0]))
            for name, test in self.tests.items()
        ]
        if single:
            yield Grid(f"{about}: tests", ("", "value"), tuple(single))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values; a number that is not known is None."""
        return {
            "kind": self.kind,
            "note": self.note,
            **{
                name: {
                    "axes": list(one.axes),
                    "labels": [list(names) for names in one.labels],
                    **{key: _plain(part) for key, part in one.named("value").items()},
                }
                for name, one in self.estimates.items()
            },
            "tests": {
                name: {key: _plain(part) for key, part in vars(test).items()}
                for name, test in self.tests.items()
            },
        }


def _plain(values: Floats) -> Any:
    return np.where(np.isfinite(values), values, None).tolist()  # type: ignore[call-overload]


@declared
class Analysis(ABC):
    """One analysis of the joined rows, a frozen public value."""

    kind: ClassVar[str]

    weight: Annotated[Share | None, "part of the budget; None for an equal part of the rest"] = None

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Return the columns that it uses."""

    @abstractmethod
    def shape(self, frame: Frame) -> Shape:
        """Return the shape of the opened words; raise PlanError if a column does not fit."""

    @abstractmethod
    def item(self, frame: Frame) -> int:
        """Return a bound on the words of one item of material, for each joined row."""

    @abstractmethod
    def noise(self, frame: Frame, budget: Budget, keys: int) -> NoiseOnShares:
        """Return the noise of each server; a person is in at most `keys` joined rows."""

    @abstractmethod
    def run(self, view: View, budget: Budget, keys: int, size: int) -> Words:
        """Return shares of the words to open; `size` is the released number of persons."""

    @abstractmethod
    def answer(self, opened: Words, frame: Frame, budget: Budget, keys: int) -> Answer:
        """Return estimates from the opened words: post-processing."""


@declared
class Sums(Analysis):
    """One opening of a sum over persons, each of whom adds a vector of integers."""

    @abstractmethod
    def squared(self, frame: Frame) -> int:
        """Return the largest squared length of a person's change, lattice steps.

        It is that of one vector, or of a difference of two where another owner's row may stay.
        """

    @abstractmethod
    def sums(self, view: View) -> Words:
        """Return shares of the sum of all persons' vectors."""

    def noise(self, frame: Frame, budget: Budget, keys: int) -> NoiseOnShares:
        """Return the noise of the one opening."""
        return NoiseOnShares(budget.epsilon, budget.delta, 1, self.squared(frame), keys)

    def run(self, view: View, budget: Budget, keys: int, size: int) -> Words:
        """Return shares of the noisy sum."""
        return self.noise(view.frame, budget, keys).add(view.server, self.sums(view))

    def _spread(self, frame: Frame, budget: Budget, keys: int) -> float:
        """Return the standard deviation of the noise of both servers, lattice steps."""
        return sqrt(2) * self.noise(frame, budget, keys).sigma


@declared
class Table(Sums):
    """Counts of persons by up to three categories, with tests for two.

    Parameters
    ----------
    of : tuple of str
        The categories, such as ``Table(of=("region", "claim"))``.
    weight : float, optional
        Part of the budget; by default an equal part of the rest, as of every analysis.
    """

    kind: ClassVar[str] = "table"

    of: Annotated[tuple[str, ...], Length(1, 3)]

    def names(self) -> tuple[str, ...]:
        """Return the columns that it uses."""
        return self.of

    def shape(self, frame: Frame) -> Shape:
        """Return the numbers of levels."""
        shape = tuple(len(frame.levels(name)) for name in self.of)
        if prod(shape) > _MOST_CELLS or len(set(self.of)) < len(self.of):
            raise PlanError(
                f"a table must have different columns and at most {_MOST_CELLS} cells, got "
                f"{prod(shape)} of {list(self.of)}."
            )
        return shape

    def item(self, frame: Frame) -> int:
        """Return the words of an AND of half of the cells, 64 bits a word."""
        return 2 + prod(self.shape(frame)) // 16

    def squared(self, frame: Frame) -> int:
        """Return the square of one count, or of two if a person may move to another cell."""
        return _STEPS**2 * (2 if frame.moves(self.of) else 1)

    def sums(self, view: View) -> Words:
        """Return the counts of all cells."""
        counts = view.counts(view.cells(self.of, view.joined.there))
        return counts.reshape(self.shape(view.frame)) * np.uint64(_STEPS)

    def answer(self, opened: Words, frame: Frame, budget: Budget, keys: int) -> Answer:
        """Return counts and shares, and tests of a table of two columns."""
        counts = to_integers(opened) / _STEPS
        s = self._spread(frame, budget, keys) / _STEPS
        labels = tuple(frame.levels(name) for name in self.of)
        placed = partial(_placed, axes=self.of, labels=labels)
        tests = {}
        if counts.ndim == 2:
            tests = {"chi2": independence(counts, s), "trend": trend(counts, s)}
        estimates = {
            "counts": placed(count_interval(counts, s)),
            "shares": placed(share_interval(counts, s, axis=None)),
        }
        if fits("odds_ratio", counts.shape):
            # The reference is in the last row and the event in the first column there.
            estimates["odds_ratio"], tests["odds_ratio"] = odds_ratio(counts[::-1, ::-1], s)
        return Answer(self.kind, estimates, tests)


@declared
class Means(Sums):
    """Means of one number by the levels of a category.

    Parameters
    ----------
    number, by : str
        The number and the category, such as ``Means(number="spent", by="segment")``.
    """

    kind: ClassVar[str] = "means"

    number: str
    by: str

    def names(self) -> tuple[str, ...]:
        """Return the columns that it uses."""
        return self.number, self.by

    def shape(self, frame: Frame) -> Shape:
        """Return the number of groups, of three sums each."""
        if frame.column(self.number).categories:
            raise PlanError(f"column {self.number!r} must be a number to have a mean.")
        return len(frame.levels(self.by)), 3

    def item(self, frame: Frame) -> int:
        """Return the words of the bits of all groups, as bits and as words."""
        return 2 * len(frame.levels(self.by)) + 4

    def squared(self, frame: Frame) -> int:
        """Return the bound of (1, x, 2 x^2 - 1) for x in [-1, 1], times TOP^2 each.

        Twice as much for a person that may move to another group; within one, 5.2 is the most.
        """
        return 3 * TOP**4 * (2 if frame.moves([self.by]) else 1)

    def sums(self, view: View) -> Words:
        """Return the sums of 1, x and 2 x^2 - 1 of each group."""
        # Persons without the number are in no group.
        groups = view.split(view.complete([self.number])[np.newaxis], self.by)
        number, unit = view.design([self.number]).T
        whole, level = unit * np.uint64(TOP), number * np.uint64(TOP)
        curved = np.uint64(2) * square(view.server, number) - whole
        return matmul(view.server, view.words(groups), np.stack([whole, level, curved], axis=1))

    def answer(self, opened: Words, frame: Frame, budget: Budget, keys: int) -> Answer:
        """Return sizes and means of the groups."""
        size, x, curved = (to_integers(opened) / TOP**2).T
        s = self._spread(frame, budget, keys) / TOP**2
        column = frame.column(self.number)
        found = mean_interval(x, size, (curved + size) / 2, s**2, s**2)
        low, high = column.ends
        middle, half = (high + low) / 2, (high - low) / 2
        placed = partial(_placed, axes=(self.by,), labels=(frame.levels(self.by),))
        return Answer(
            self.kind,
            {
                "means": placed(found.mapped(lambda part: middle + half * part)),
                "counts": placed(count_interval(size, s)),
            },
        )


@declared
class _Moments(Sums):
    """Sums of products of all pairs of columns, and of each with 1."""

    of: Names

    def names(self) -> tuple[str, ...]:
        """Return the columns that it uses."""
        return self.of

    def _size(self, frame: Frame) -> int:
        return len(frame.terms(self.names())) + 1

    def shape(self, frame: Frame) -> Shape:
        """Return the number of products."""
        p = self._size(frame)
        return (p * (p + 1) // 2,)

    def item(self, frame: Frame) -> int:
        """Return the words of both factors of the products."""
        return 2 * self._size(frame) + 1

    def squared(self, frame: Frame) -> int:
        """Return the bound of products that are at most TOP^2 each; twice it in a union."""
        # In other joins all columns must be there, so a person has one vector or none.
        return self.shape(frame)[0] * TOP**4 * (2 if frame.how == "union" else 1)

    def sums(self, view: View) -> Words:
        """Return the upper half of the matrix of products, row by row."""
        rows = view.design(self.names())
        whole = matmul(view.server, np.ascontiguousarray(rows.T), rows)
        return whole[upper_half(rows.shape[1])]

    def _matrix(self, opened: Words) -> Floats:
        return symmetric(to_integers(opened) / TOP**2)


@declared
class Correlation(_Moments):
    """Pearson's correlations of numbers, and of levels of categories as 0 and 1.

    Parameters
    ----------
    of : tuple of str
        The columns, such as ``Correlation(of=("age", "spent"))``.
    """

    kind: ClassVar[str] = "correlation"

    def answer(self, opened: Words, frame: Frame, budget: Budget, keys: int) -> Answer:
        """Return the matrix of correlations."""
        terms, s = frame.terms(self.of), self._spread(frame, budget, keys) / TOP**2
        # Intervals on the diagonal are those of 1, where the formula has no width.
        packed = to_integers(opened) / TOP**2
        values, noise = _carried(_correlations, packed, s)
        n = max(self._matrix(opened)[-1, -1], 4.0)
        # On Fisher's scale, where the error of sampling does not depend on the value.
        inside = np.clip(values, -0.999999, 0.999999)
        of_noise = np.sqrt(np.diag(noise)) / (1 - inside**2)
        known = np.isfinite(values) & (of_noise < 1)

        def within(spread: Floats) -> tuple[Floats, Floats]:
            low, high = (np.tanh(np.arctanh(inside) + sign * _Z * spread) for sign in (-1, 1))
            return np.where(known, low, -1.0), np.where(known, high, 1.0)

        ends = within(np.hypot(of_noise, 1 / sqrt(n - 3)))
        found = Estimate(np.where(known, values, np.nan), *within(of_noise), population=ends)
        placed = _placed(found.mapped(symmetric), ("column", "column"), (terms, terms))
        return Answer(self.kind, {"correlations": placed})


def _correlations(packed: Floats) -> Floats:
    """Return the packed correlations of packed moments; the constant is last."""
    whole = symmetric(packed)
    mean = whole[-1, :-1] / whole[-1, -1]
    spread = whole[:-1, :-1] - whole[-1, -1] * np.outer(mean, mean)
    with np.errstate(invalid="ignore"):
        root = np.sqrt(np.diag(spread))
        return np.asarray((spread / np.outer(root, root))[upper_half(len(spread))])


def _carried(function: Callable[[Floats], Floats], at: Floats, s: float) -> tuple[Floats, Floats]:
    """Return a function of noisy numbers, and the covariance that independent noise gives it."""
    # Far below the noise, so that the slope is that at the released numbers.
    step = max(s, 1e-6) * 1e-3
    moved = step * np.eye(len(at))
    slopes = np.array([function(at + by) - function(at - by) for by in moved]) / (2 * step)
    return function(at), s**2 * slopes.T @ slopes


@declared
class Linear(_Moments):
    """Least squares of a number on other columns.

    Parameters
    ----------
    target : str
        The number, as in ``Linear(target="spent", of=("age", "region"))``.
    of : tuple of str
        The other columns.
    """

    kind: ClassVar[str] = "linear"

    target: str

    def names(self) -> tuple[str, ...]:
        """Return the columns that it uses, the target last."""
        return (*self.of, self.target)

    def shape(self, frame: Frame) -> Shape:
        """Return the number of products."""
        if len(frame.terms([self.target])) > 1:
            raise PlanError(f"target {self.target!r} must be a number or have two categories.")
        return super().shape(frame)

    def answer(self, opened: Words, frame: Frame, budget: Budget, keys: int) -> Answer:
        """Return coefficients in data units; not known where noise is as strong as the design."""
        s = self._spread(frame, budget, keys) / TOP**2
        whole = self._matrix(opened)
        # The target is the column before the constant.
        rest = np.delete(np.arange(len(whole)), -2)
        gram, n, p = whole[np.ix_(rest, rest)], whole[-1, -1], len(rest)
        packed = to_integers(opened) / TOP**2
        terms = (*frame.terms(self.of), "(constant)")
        # 2 s sqrt(p) is the size of a symmetric matrix of noise.
        share = 2 * s * sqrt(p) / max(float(np.linalg.eigvalsh(gram)[0]), 1e-300)
        scale, offset = _to_data(frame, self.of, self.target)
        if not (share < _KNOWN and n > p + 1):
            nothing = np.full(p, np.nan)
            return Answer(self.kind, {"coefficients": _coefficients(nothing, terms)})
        solved, noise = _carried(_least_squares, packed, s)
        left = whole[-2, -2] - solved @ whole[rest, -2]
        # At least the noise of that number, so that a lucky draw gives no narrow interval.
        variance = max(left, 2 * s * (1 + solved @ solved)) / (n - p)
        sampled = np.linalg.inv(gram) * variance
        # The first-order error, and what it leaves out of a larger one.
        of_noise, of_sampling = (
            np.sqrt(np.diag(scale @ part @ scale.T)) for part in (noise / (1 - share**2), sampled)
        )
        margins = _Z * of_noise, _Z * np.hypot(of_noise, of_sampling)
        found = _coefficients(scale @ solved + offset, terms, *margins)
        return Answer(self.kind, {"coefficients": found})


def _least_squares(packed: Floats) -> Floats:
    """Return the coefficients of the column before the last on all others."""
    whole = symmetric(packed)
    rest = np.delete(np.arange(len(whole)), -2)
    return np.asarray(np.linalg.solve(whole[np.ix_(rest, rest)], whole[rest, -2]))


def _to_data(frame: Frame, names: Sequence[str], target: str) -> tuple[Floats, Floats]:
    """Return the affine map from coefficients of the box [-1, 1] to those of data units."""
    (middle, half), ((centre,), (reach,)) = _box(frame, names), _box(frame, [target])
    # The last row is the constant, which takes up the middles of all columns.
    scale = np.diag(np.append(reach / half, reach))
    scale[-1, :-1] = -reach * middle / half
    return scale, np.append(np.zeros(len(half)), centre)


def _box(frame: Frame, names: Sequence[str]) -> tuple[Floats, Floats]:
    """Return middle and half-width of each term of a design, data units."""
    ends = [
        pair
        for column in map(frame.column, names)
        for pair in [(0.0, 1.0)] * (len(column.categories) - 1) or [column.ends]
    ]
    low, high = np.array(ends).T
    return (high + low) / 2, (high - low) / 2


def _coefficients(
    values: Floats, terms: tuple[str, ...], noise: Floats | None = None, both: Floats | None = None
) -> Estimate:
    """Return coefficients with margins; without, the intervals are not known."""
    # Not a number, never a width of 0.
    margin = np.full(len(values), np.nan) if noise is None else noise
    found = Estimate(values, values - margin, values + margin, axes=("term",), labels=(terms,))
    return found if both is None else replace(found, population=(values - both, values + both))


def _placed(one: Estimate, axes: tuple[str, ...], labels: tuple[tuple[str, ...], ...]) -> Estimate:
    return replace(one, axes=axes, labels=labels)


# Models by descent --------------------------------------------------------------------------------


@declared
class Descent(Analysis):
    """A program of :mod:`cloister.shares.mpc.training` on the joined rows."""

    of: Names

    def names(self) -> tuple[str, ...]:
        """Return the columns that it uses."""
        return self.of

    @abstractmethod
    def program(self, frame: Frame, budget: Budget, keys: int, rows: int, size: int) -> Any:
        """Return the program for so many joined rows; PlanError if they do not fit."""

    def noise(self, frame: Frame, budget: Budget, keys: int) -> NoiseOnShares:
        """Return the noise of each round."""
        # Of any number of rows: one record's bound does not depend on it.
        noise: NoiseOnShares = self.program(frame, budget, keys, 1, 1).noise
        return noise

    @abstractmethod
    def table(self, view: View) -> Words:
        """Return shares of the table of the program: terms, targets, and 1 for each row."""

    def run(self, view: View, budget: Budget, keys: int, size: int) -> Words:
        """Return shares of the model."""
        table = self.table(view)
        program = self.program(view.frame, budget, keys, len(table), size)
        (words,) = program.run(view.server, {"linked": table}).values()
        return np.asarray(words)

    def _options(self, frame: Frame, budget: Budget, keys: int, rows: int) -> dict[str, Any]:
        d = len(frame.terms(self.of))
        # In a union, another row of a person may take the place of the first.
        vectors = 2 if frame.how == "union" else 1
        return {
            "owners": ("linked",),
            "rows": rows,
            "low": (-1.0,) * d,
            "high": (1.0,) * d,
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "max_rows": vectors * keys,
        }


@declared
class Logistic(Descent):
    """Logistic regression of a category of two levels, see :class:`LogisticOnShares`.

    Its coefficients have no intervals. :class:`Linear` has them, for a number.

    Parameters
    ----------
    target : str
        The category, as in ``Logistic(target="claim", of=("age", "region"))``.
    of : tuple of str
        The columns that predict it.
    """

    kind: ClassVar[str] = "logistic"

    target: str
    steps: Annotated[int, Range(1, 1000)] = 24
    step: Annotated[float, Range(above=0, most=100)] = 4.0
    momentum: Annotated[float, Range(0, 0.99), "see :class:`LogisticOnShares`"] = 0.8

    def names(self) -> tuple[str, ...]:
        """Return the columns that it uses, the target last."""
        return (*self.of, self.target)

    def shape(self, frame: Frame) -> Shape:
        """Return the number of weights."""
        if len(frame.column(self.target).categories) != 2:
            raise PlanError(f"target {self.target!r} must have two categories.")
        if (d := len(frame.terms(self.of))) > _MOST_TERMS:
            raise PlanError(f"a logistic model must have at most {_MOST_TERMS} terms, got {d}.")
        return (d + 1,)

    def item(self, frame: Frame) -> int:
        """Return the words of the product with validity, and of the sigmoid's."""
        return 2 * len(frame.terms(self.of)) + 9

    def _factor(self, frame: Frame) -> int:
        # The norm of a row is then at most 2^16 in integers, without a division on shares.
        return isqrt(ONE**2 // (TOP**2 * len(frame.terms(self.of))))

    def program(
        self, frame: Frame, budget: Budget, keys: int, rows: int, size: int
    ) -> LogisticOnShares:
        """Return the program; the mean gradient is over the released size."""
        options = self._options(frame, budget, keys, rows)
        return LogisticOnShares(
            **options,
            steps=self.steps,
            step=self.step,
            momentum=self.momentum,
            nominal_n=size,
        )

    def table(self, view: View) -> Words:
        """Return terms of norm at most 1, the target as 0 or 1, and 1 for each row."""
        *terms, label, unit = view.design(self.names()).T
        # A label is TOP or -TOP; (label + unit) / 2 is TOP or 0, and TOP times 1 / TOP is 1.
        valid = unit * _INVERSE
        label = (label * _INVERSE + valid) * np.uint64(ONE // 2)
        scaled = [term * np.uint64(self._factor(view.frame)) for term in terms]
        return np.stack([*scaled, label, valid], axis=1)

    def answer(self, opened: Words, frame: Frame, budget: Budget, keys: int) -> Answer:
        """Return coefficients in data units, of the log-odds of the second category."""
        weights = decode(opened)
        middle, half = _box(frame, self.of)
        # The weights are those of terms from -1 to 1 times the factor.
        slopes = weights[:-1] * (self._factor(frame) * TOP / ONE) / half
        values = np.append(slopes, weights[-1] - slopes @ middle)
        terms = (*frame.terms(self.of), "(constant)")
        note = (
            f"After {self.steps} steps of gradient descent, not the maximum of the likelihood: do "
            "not read its coefficients as effects."
        )
        return Answer(self.kind, {"coefficients": _coefficients(values, terms)}, note=note)


# TOP is odd, so it has an inverse modulo 2^64, and a share of TOP v gives one of v.
_INVERSE = np.uint64(pow(TOP, -1, 1 << 64))


@declared
class KMeans(Descent):
    """Lloyd's k-means from public random centres, see :class:`KMeansOnShares`.

    Its centres have no intervals.

    Parameters
    ----------
    of : tuple of str
        The columns, such as ``KMeans(of=("age", "spent"), n_clusters=3)``.
    """

    kind: ClassVar[str] = "kmeans"

    n_clusters: Annotated[int, Range(2, 64)]
    iterations: Annotated[int, Range(1, 100)] = 4
    seed: Annotated[int, Range(0, (1 << 63) - 1), "public; the centres start from it"] = 0

    def shape(self, frame: Frame) -> Shape:
        """Return the shape of the centres."""
        return self.n_clusters, len(frame.terms(self.of))

    def item(self, frame: Frame) -> int:
        """Return the words of a tournament's product, and of the distances."""
        return 4 * self.n_clusters + len(frame.terms(self.of))

    def program(
        self, frame: Frame, budget: Budget, keys: int, rows: int, size: int
    ) -> KMeansOnShares:
        """Return the program."""
        # Public: centres from records would need a budget.
        draw = public_generator(self.seed, "linked centres")
        centres = draw.uniform(-0.5, 0.5, self.shape(frame))
        options = self._options(frame, budget, keys, rows)
        start = tuple(map(tuple, centres.tolist()))
        return KMeansOnShares(**options, centres=start, iterations=self.iterations)

    def table(self, view: View) -> Words:
        """Return terms in the box, and 1 for each row."""
        *terms, unit = view.design(self.of).T
        return np.stack([*(term * _TO_BOX for term in terms), unit * _INVERSE], axis=1)

    def answer(self, opened: Words, frame: Frame, budget: Budget, keys: int) -> Answer:
        """Return centres in data units."""
        middle, half = _box(frame, self.of)
        centres = middle + half * decode(opened) / (int(_TO_BOX) * TOP / ONE)
        numbers = tuple(str(i + 1) for i in range(self.n_clusters))
        labels = (numbers, frame.terms(self.of))
        found = bare(centres, axes=("cluster", "column"), labels=labels)
        note = (
            f"After {self.iterations} iterations from public random centres, which may not have "
            "settled: another seed may give other groups."
        )
        return Answer(self.kind, {"centres": found}, note=note)


_TO_BOX = np.uint64(ONE // (TOP + 1))  # TOP becomes just less than 1
ANALYSES: Mapping[str, type[Analysis]] = {
    one.kind: one for one in (Table, Means, Linear, Correlation, Logistic, KMeans)
}


def analysis_of(given: Mapping[str, Any]) -> Analysis:
    """Return an analysis from JSON-able options with its `kind`."""
    options = dict(given)
    kind = options.pop("kind", None)
    if kind not in ANALYSES:
        raise PlanError(f"kind of an analysis must be one of {', '.join(ANALYSES)}, got {kind!r}.")
    if "clusters" in options:  # of session files that parties hold already
        options["n_clusters"] = options.pop("clusters")
    return ANALYSES[kind](**table_of(ANALYSES[kind], f"analysis {kind!r}", options))
