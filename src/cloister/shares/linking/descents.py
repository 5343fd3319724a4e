"""Models by descent on joined rows: programs of :mod:`cloister.shares.mpc.training`."""

from __future__ import annotations

from abc import abstractmethod
from math import isqrt
from typing import Annotated, Any, ClassVar

import numpy as np

from cloister.core.declared import Length, Range, declared
from cloister.core.display import bare
from cloister.core.errors import PlanError
from cloister.core.randomness import public_generator
from cloister.hazmat.ring import Words
from cloister.privacy.budget import Budget
from cloister.shares.linking.analyses import CONSTANT, Analysis
from cloister.shares.linking.answer import Answer
from cloister.shares.linking.columns import TOP
from cloister.shares.linking.view import Frame, View
from cloister.shares.mpc.material import Shape
from cloister.shares.mpc.opening import NoiseOnShares
from cloister.shares.mpc.program import Names
from cloister.shares.mpc.shares import decode
from cloister.shares.mpc.training import KMeansOnShares, LogisticOnShares
from cloister.shares.mpc.training.tables import ONE

_MOST_TERMS = 64  # more would have a factor of 1, and rows far below their bound
# TOP is odd, so it has an inverse modulo 2^64, and a share of TOP v gives one of v.
_INVERSE = np.uint64(pow(TOP, -1, 1 << 64))
_TO_BOX = ONE // (TOP + 1)  # TOP becomes just less than 1


@declared
class Descent(Analysis):
    """A program of :mod:`cloister.shares.mpc.training` on the joined rows."""

    of: Annotated[Names, Length(1, 64)]

    def names(self) -> tuple[str, ...]:
        """Return the columns that it uses."""
        return self.of

    @abstractmethod
    def program(self, frame: Frame, budget: Budget, rows: int, size: int) -> Any:
        """Return the program for so many joined rows; PlanError if they do not fit."""

    def noise(self, frame: Frame, budget: Budget) -> NoiseOnShares:
        """Return the noise of each round."""
        # Of any number of rows: one record's bound does not depend on it.
        noise: NoiseOnShares = self.program(frame, budget, 1, 1).noise
        return noise

    @abstractmethod
    def table(self, view: View) -> Words:
        """Return shares of the table of the program: terms, targets, and 1 for each row."""

    def run(self, view: View, budget: Budget, size: int) -> Words:
        """Return shares of the model."""
        table = self.table(view)
        program = self.program(view.frame, budget, len(table), size)
        (words,) = program.run(view.server, {"linked": table}).values()
        return np.asarray(words)

    def _options(self, frame: Frame, budget: Budget, rows: int) -> dict[str, Any]:
        """Return the options that all programs have."""
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
            "max_rows": vectors * frame.keys,
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
        if (d := len(frame.terms(self.names())) - 1) > _MOST_TERMS:
            raise PlanError(f"a logistic model must have at most {_MOST_TERMS} terms, got {d}.")
        return (d + 1,)

    def item(self, frame: Frame) -> int:
        """Return the words of the product with validity, and of the sigmoid's."""
        return 2 * len(frame.terms(self.of)) + 9

    def _factor(self, frame: Frame) -> int:
        # The norm of a row is then at most 2^16 in integers, without a division on shares.
        return isqrt(ONE**2 // (TOP**2 * len(frame.terms(self.of))))

    def program(self, frame: Frame, budget: Budget, rows: int, size: int) -> LogisticOnShares:
        """Return the program; the mean gradient is over the released size."""
        return LogisticOnShares(
            **self._options(frame, budget, rows),
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

    def answer(self, opened: Words, frame: Frame, budget: Budget) -> Answer:
        """Return coefficients in data units, of the log-odds of the second category."""
        weights = decode(opened)
        middle, half = frame.box(self.of)
        # The weights are those of terms from -1 to 1 times the factor.
        slopes = weights[:-1] * (self._factor(frame) * TOP / ONE) / half
        values = np.append(slopes, weights[-1] - slopes @ middle)
        found = bare(values, axes=("term",), labels=((*frame.terms(self.of), CONSTANT),))
        note = (
            f"After {self.steps} steps of gradient descent, not the maximum of the likelihood: do "
            "not read its coefficients as effects."
        )
        return self._answered({"coefficients": found}, note=note)


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

    def program(self, frame: Frame, budget: Budget, rows: int, size: int) -> KMeansOnShares:
        """Return the program."""
        # Public: centres from records would need a budget.
        draw = public_generator(self.seed, "linked centres")
        centres = draw.uniform(-0.5, 0.5, self.shape(frame))
        return KMeansOnShares(
            **self._options(frame, budget, rows),
            centres=tuple(map(tuple, centres.tolist())),
            iterations=self.iterations,
        )

    def table(self, view: View) -> Words:
        """Return terms in the box, and 1 for each row."""
        *terms, unit = view.design(self.of).T
        return np.stack([*(term * np.uint64(_TO_BOX) for term in terms), unit * _INVERSE], axis=1)

    def answer(self, opened: Words, frame: Frame, budget: Budget) -> Answer:
        """Return centres in data units."""
        middle, half = frame.box(self.of)
        centres = middle + half * decode(opened) / (_TO_BOX * TOP / ONE)
        numbers = tuple(str(i + 1) for i in range(self.n_clusters))
        labels = (numbers, frame.terms(self.of))
        found = bare(centres, axes=("cluster", "column"), labels=labels)
        note = (
            f"After {self.iterations} iterations from public random centres, which may not have "
            "settled: another seed may give other groups."
        )
        return self._answered({"centres": found}, note=note)
