"""Analyses of joined rows: noisy words on shares, and estimates from the released words.

A person is in at most one joined row, so its contribution to an opening is one vector of integers.
Each class states that vector's squared length. Both servers add noise before anything is opened.
Intervals are for the noise of both servers, which is sqrt(2) times the charged one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod, sqrt
from typing import Annotated, ClassVar

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.declared import Length, Share, declared
from cloister.core.display import Estimate, bare
from cloister.core.errors import PlanError
from cloister.hazmat.ring import Words, to_integers
from cloister.privacy.budget import Budget
from cloister.protocol.task import INTERVAL_95
from cloister.shares.linking.answer import Answer, title_of
from cloister.shares.linking.columns import TOP
from cloister.shares.linking.view import Frame, View
from cloister.shares.mpc.material import Shape
from cloister.shares.mpc.opening import NoiseOnShares
from cloister.shares.mpc.products import matmul, square
from cloister.shares.mpc.program import Names
from cloister.tasks.correlations import correlations_of, matrix_of, with_sampling
from cloister.tasks.moments import n_products, symmetric, upper_half
from cloister.tasks.scores import mean_interval, middle_of
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
_MOST_CELLS = 4096
_KNOWN = 0.5  # of the smallest direction of a design: more noise makes coefficients "not known"
CONSTANT = "(constant)"


@declared
class Analysis(ABC):
    """One analysis of the joined rows, a frozen public value."""

    kind: ClassVar[str]

    weight: Annotated[Share | None, "part of the budget; None for an equal part of the rest"] = None

    @property
    def title(self) -> str:
        """The kind and the columns."""
        return title_of(self.kind, self.names())

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
    def noise(self, frame: Frame, budget: Budget) -> NoiseOnShares:
        """Return the noise of each server in each opening."""

    @abstractmethod
    def run(self, view: View, budget: Budget, size: int) -> Words:
        """Return shares of the words to open; `size` is the released number of persons."""

    @abstractmethod
    def answer(self, opened: Words, frame: Frame, budget: Budget) -> Answer:
        """Return estimates from the opened words: post-processing."""

    def _answered(
        self,
        estimates: Mapping[str, Estimate],
        tests: Mapping[str, Tested] | None = None,
        note: str = "",
    ) -> Answer:
        return Answer(self.kind, estimates, tests or {}, note, self.names())


@declared
class Sums(Analysis):
    """One opening of a sum over persons, each of whom adds a vector of integers."""

    scale: ClassVar[int]
    """Lattice steps of 1."""

    @abstractmethod
    def squared(self, frame: Frame) -> int:
        """Return the largest squared length of a person's change, lattice steps.

        It is that of one vector, or of a difference of two where another owner's row may stay.
        """

    @abstractmethod
    def sums(self, view: View) -> Words:
        """Return shares of the sum of all persons' vectors."""

    @abstractmethod
    def estimated(self, sums: Floats, s: float, frame: Frame) -> Answer:
        """Return estimates from sums with independent noise of standard deviation `s`."""

    def noise(self, frame: Frame, budget: Budget) -> NoiseOnShares:
        """Return the noise of the one opening."""
        return NoiseOnShares(budget.epsilon, budget.delta, 1, self.squared(frame), frame.keys)

    def run(self, view: View, budget: Budget, size: int) -> Words:
        """Return shares of the noisy sum."""
        return self.noise(view.frame, budget).add(view.server, self.sums(view))

    def answer(self, opened: Words, frame: Frame, budget: Budget) -> Answer:
        """Return estimates from the noisy sum."""
        s = self.noise(frame, budget).released_sigma / self.scale
        return self.estimated(to_integers(opened) / self.scale, s, frame)


@declared
class Table(Sums):
    """Counts of persons by up to three categories, with tests for two.

    Tests use persons with both columns, and no level "missing".

    Parameters
    ----------
    of : tuple of str
        The categories, such as ``Table(of=("region", "claim"))``.
    weight : float, optional
        Part of the budget; by default an equal part of the rest, as of every analysis.
    """

    kind: ClassVar[str] = "table"
    scale: ClassVar[int] = 1 << 10

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
        return self.scale**2 * (2 if frame.moves(self.of) else 1)

    def sums(self, view: View) -> Words:
        """Return the counts of all cells."""
        counts = view.counts(view.cells(self.of, view.joined.there))
        return counts.reshape(self.shape(view.frame)) * np.uint64(self.scale)

    def estimated(self, sums: Floats, s: float, frame: Frame) -> Answer:
        """Return counts and shares, and tests of a table of two columns."""
        placed = partial(replace, axes=self.of, labels=tuple(map(frame.levels, self.of)))
        estimates = {
            "counts": placed(count_interval(sums, s)),
            "shares": placed(share_interval(sums, s, axis=None)),
        }
        # No person lacks the columns of both owners: that empty cell would pass for dependence.
        known = sums[tuple(slice(len(frame.column(name).categories)) for name in self.of)]
        tests = {}
        if known.ndim == 2:
            tests = {"chi2": independence(known, s), "trend": trend(known, s)}
        if fits("odds_ratio", known.shape):
            # The reference is in the last row and the event in the first column there.
            ratio, tests["odds_ratio"] = odds_ratio(known[::-1, ::-1], s)
            estimates["odds_ratio"] = replace(ratio, null=1.0)  # without a connection
        return self._answered(estimates, tests)


@declared
class Means(Sums):
    """Means of one number by the levels of a category.

    Parameters
    ----------
    number, by : str
        The number and the category, such as ``Means(number="spent", by="segment")``.
    """

    kind: ClassVar[str] = "means"
    scale: ClassVar[int] = TOP**2

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
        """Return the bound of (1, x, 2 x^2 - 1) for x in [-1, 1].

        Twice as much for a person that may move to another group; within one, 5.2 is the most.
        """
        return 3 * self.scale**2 * (2 if frame.moves([self.by]) else 1)

    def sums(self, view: View) -> Words:
        """Return the sums of 1, x and 2 x^2 - 1 of each group."""
        # Persons without the number are in no group.
        (groups,) = view.split(view.complete([self.number])[np.newaxis], self.by)
        number, unit = view.design([self.number]).T
        whole, level = unit * np.uint64(TOP), number * np.uint64(TOP)
        curved = np.uint64(2) * square(view.server, number) - whole
        return matmul(view.server, view.words(groups), np.stack([whole, level, curved], axis=1))

    def estimated(self, sums: Floats, s: float, frame: Frame) -> Answer:
        """Return sizes and means of the groups."""
        size, x, curved = sums.T
        found = mean_interval(x, size, (curved + size) / 2, s**2, s**2)
        (middle,), (half,) = frame.box([self.number])
        placed = partial(replace, axes=(self.by,), labels=(frame.levels(self.by),))
        return self._answered(
            {
                "means": placed(found.mapped(lambda part: middle + half * part)),
                "counts": placed(count_interval(size, s)),
            }
        )


@declared
class _Moments(Sums):
    """Sums of products of all pairs of columns, and of each with 1, which is last."""

    scale: ClassVar[int] = TOP**2

    of: Annotated[Names, Length(1, 64)]

    def names(self) -> tuple[str, ...]:
        """Return the columns that it uses."""
        return self.of

    def _size(self, frame: Frame) -> int:
        return len(frame.terms(self.names())) + 1

    def shape(self, frame: Frame) -> Shape:
        """Return the number of products."""
        return (n_products(self._size(frame)),)

    def item(self, frame: Frame) -> int:
        """Return the words of both factors of the products."""
        return 2 * self._size(frame) + 1

    def squared(self, frame: Frame) -> int:
        """Return the bound of products that are at most 1 each; twice it in a union."""
        # In other joins all columns must be there, so a person has one vector or none.
        return n_products(self._size(frame)) * self.scale**2 * (2 if frame.how == "union" else 1)

    def sums(self, view: View) -> Words:
        """Return the upper half of the matrix of products, row by row."""
        rows = view.design(self.names())
        whole = matmul(view.server, np.ascontiguousarray(rows.T), rows)
        return whole[upper_half(rows.shape[1])]


@declared
class Correlation(_Moments):
    """Pearson's correlations of numbers, and of levels of categories as 0 and 1.

    Parameters
    ----------
    of : tuple of str
        The columns, such as ``Correlation(of=("age", "spent"))``.
    """

    kind: ClassVar[str] = "correlation"

    def estimated(self, sums: Floats, s: float, frame: Frame) -> Answer:
        """Return the matrix of correlations."""
        terms = frame.terms(self.of)
        moments = symmetric(sums)
        pairs = correlations_of(moments, np.full_like(moments, s**2))
        ends = with_sampling(middle_of(pairs), pairs.low, pairs.high, sums[-1])  # a sum of 1
        found = replace(pairs, population=ends).mapped(matrix_of)
        placed = replace(found, axes=("column", "column"), labels=(terms, terms))
        return self._answered({"correlations": placed})


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

    def estimated(self, sums: Floats, s: float, frame: Frame) -> Answer:
        """Return coefficients in data units; not known where noise is as strong as the design."""
        gram, products, squares = _equations(sums)
        n, p = gram[-1, -1], len(gram)
        placed = partial(replace, axes=("term",), labels=((*frame.terms(self.of), CONSTANT),))
        # 2 s sqrt(p) is the size of a symmetric matrix of noise.
        share = 2 * s * sqrt(p) / max(float(np.linalg.eigvalsh(gram)[0]), 1e-300)
        if not (share < _KNOWN and n > p + 1):
            return self._answered({"coefficients": placed(bare(np.full(p, np.nan)))})
        solved, noise = _carried(_least_squares, sums, s)
        left = squares - solved @ products
        # At least the noise of that number, so that a lucky draw gives no narrow interval.
        variance = max(left, 2 * s * (1 + solved @ solved)) / (n - p)
        scale, offset = _to_data(frame, self.of, self.target)
        # The first-order error, and what it leaves out of a larger one; then that of sampling.
        errors = noise / (1 - share**2), np.linalg.inv(gram) * variance
        of_noise, of_sampling = (np.sqrt(np.diag(scale @ part @ scale.T)) for part in errors)
        values = scale @ solved + offset
        margin, wide = _Z * of_noise, _Z * np.hypot(of_noise, of_sampling)
        ends = values - wide, values + wide
        found = Estimate(values, values - margin, values + margin, population=ends)
        return self._answered({"coefficients": placed(found)})


def _equations(sums: Floats) -> tuple[Floats, Floats, float]:
    """Return products of the columns of a model, of each with its target, and of that alone."""
    whole = symmetric(sums)
    # The target is the column before the constant.
    rest = np.delete(np.arange(len(whole)), -2)
    return whole[np.ix_(rest, rest)], whole[rest, -2], float(whole[-2, -2])


def _least_squares(sums: Floats) -> Floats:
    gram, products, _ = _equations(sums)
    return np.asarray(np.linalg.solve(gram, products))


def _to_data(frame: Frame, names: Sequence[str], target: str) -> tuple[Floats, Floats]:
    """Return the affine map from coefficients of the box [-1, 1] to those of data units."""
    (middle, half), ((centre,), (reach,)) = frame.box(names), frame.box([target])
    # The last row is the constant, which takes up the middles of all columns.
    scale = np.diag(np.append(reach / half, reach))
    scale[-1, :-1] = -reach * middle / half
    return scale, np.append(np.zeros(len(half)), centre)
