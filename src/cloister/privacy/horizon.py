"""Horizons: one budget for the sums of several periods, released as they arrive.

In period t the parties release ``y_t = sum_s C[t, s] x_s + noise``, with fresh noise and a public
lower triangular matrix C. Here x_s is the exact sum of the records that arrived in period s. Every
answer over periods is a combination of the released vectors, and costs no further budget. The
matrix is chosen such that totals, single periods and windows of periods all have little noise.

References
----------
Li, Miklau, Hay, McGregor and Rastogi, VLDB Journal 2015: the matrix mechanism.
Denisov, McMahan, Rush, Smith and Thakurta, NeurIPS 2022: the optimal matrix, and records that
arrive in the light of earlier releases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any, Literal, Self, get_args

import numpy as np

from cloister.core.arrays import Floats, Integers
from cloister.core.errors import PlanError, raise_if_any
from cloister.privacy.events import HorizonEvent

Workload = Literal["all", "totals"]
WINDOWS = {"so far": None, "latest": 1, "last 4": 4, "last 13": 13}
"""Number of periods in each family of answers; None for all periods so far."""
MOST_PERIODS = 104
MOST_RECORDS = 1 << 26  # of a silo in all periods: public head-room, not a count
_BITS = 10  # binary places of the matrix
_ONE = 1 << _BITS
_CLOSE, _STEPS = 1e-6, 1000  # the matrix is rounded to 2**-10, so more digits change nothing


@dataclass(frozen=True)
class Encoding:
    """The public matrix of a horizon, in integers.

    Parameters
    ----------
    rows : tuple of tuple of int
        Row t has the multipliers of the periods 0..t, each in [-2**10, 2**10]. The last one of a
        row is positive.
    max_periods : int
        Largest number of periods in which records of one unit of privacy arrive at one silo.
    """

    rows: tuple[tuple[int, ...], ...]
    max_periods: int = 1

    def __post_init__(self) -> None:
        raise_if_any(self._rules())

    def _rules(self) -> Iterator[str]:
        if not 2 <= self.periods <= MOST_PERIODS:
            yield f"periods must be in [2, {MOST_PERIODS}], got {self.periods}."
        if [len(row) for row in self.rows] != list(range(1, self.periods + 1)):
            yield "matrix of a horizon must be lower triangular: t + 1 integers in row t."
        numbers = [number for row in self.rows for number in row]
        if not all(type(number) is int and abs(number) <= _ONE for number in numbers):
            yield f"matrix of a horizon must have integers of at most {_ONE}."
        elif not all(row and row[-1] > 0 for row in self.rows):
            yield "matrix of a horizon must have a positive diagonal, or a period is lost."
        if type(self.max_periods) is not int or not 1 <= self.max_periods <= self.periods:
            yield f"max_periods must be in [1, {self.periods}], got {self.max_periods!r}."

    @classmethod
    def of(cls, periods: int, max_periods: int = 1, workload: Workload = "all") -> Self:
        """Return the encoding with the least noise for a workload.

        Parameters
        ----------
        periods : int, 2..104
        max_periods : int, 1..periods
        workload : {"all", "totals"}
            The answers whose noise counts: all of `WINDOWS` equally, or the running totals alone.

        Notes
        -----
        If units return often, independent periods (the identity) may have less noise, and are then
        the result.
        """
        if workload not in get_args(Workload):
            raise PlanError(f"workload must be one of {get_args(Workload)}, got {workload!r}.")
        families = list(WINDOWS) if workload == "all" else ["so far"]
        _check_periods(periods)
        # Each family counts equally, although totals add up more periods than windows.
        asked = [answers(periods, name) for name in families]
        scaled = [family / np.sqrt((family**2).sum()) for family in asked]
        return cls.best(np.vstack(scaled), max_periods)

    @classmethod
    def best(cls, asked: Floats, max_periods: int = 1) -> Self:
        """Return the encoding with the least noise for some answers, shape (n, periods)."""
        periods = asked.shape[1]
        found = [
            cls(tuple(tuple(map(int, row[: t + 1])) for t, row in enumerate(matrix)), max_periods)
            for matrix in (_optimal(asked), _ONE * np.eye(periods))
        ]
        return min(found, key=lambda one: one._error(asked))

    def _error(self, asked: Floats) -> float:
        return float(sqrt(self.sensitivity_squared) * np.linalg.norm(self.weights(asked)))

    @property
    def periods(self) -> int:
        """Number of periods."""
        return len(self.rows)

    @cached_property
    def matrix(self) -> Integers:
        """The matrix, shape (periods, periods), int64."""
        matrix = np.zeros((self.periods, self.periods), dtype=np.int64)
        for t, row in enumerate(self.rows):
            matrix[t, : t + 1] = row
        return matrix

    @cached_property
    def sensitivity_squared(self) -> int:
        """Bound on the squared L2 change of all releases, if the sum of a period changes by 1.

        It holds for changes in at most `max_periods` periods, each of L2 norm at most 1 and in any
        direction, also if a change differs between releases. docs/proofs/horizon.md
        """
        overlap = np.abs(self.matrix).T @ np.abs(self.matrix)
        own = np.diag(overlap)
        others = np.sort(overlap - np.diag(own), axis=1)[:, ::-1]
        nearest = own + others[:, : self.max_periods - 1].sum(axis=1)
        return min(self.max_periods * int(nearest.max()), int(overlap.sum()))

    @property
    def is_independent(self) -> bool:
        """True if each release has the sum of one period."""
        return not any(any(row[:-1]) for row in self.rows)

    @property
    def gain(self) -> int:
        """Largest sum of absolute multipliers in a row: how much larger than x a release may be."""
        return int(np.abs(self.matrix).sum(axis=1).max())

    def norm(self, l2_squared: int, group_size: int) -> float:
        """Return the largest L2 change of all releases by one unit with `group_size` records.

        `l2_squared` bounds the squared change of a period's sum by one record.
        """
        return group_size * sqrt(l2_squared * self.sensitivity_squared)

    def event(self, multipliers: Iterable[float], digest: str) -> HorizonEvent:
        """Return the event of all periods, from the noise multiplier of each block."""
        # Squared mus of blocks add up.
        mu_squared = sum(multiplier**-2 for multiplier in multipliers)
        return HorizonEvent(1 / sqrt(mu_squared), self.periods, digest)

    def payload(self, sums: Integers) -> Integers:
        """Return the release of the last of some periods, before noise.

        Parameters
        ----------
        sums : ndarray of shape (t + 1, size), int64
            The exact sums of the periods 0..t.
        """
        row = np.array(self.rows[len(sums) - 1], dtype=np.int64)
        return np.asarray(row @ sums)

    def weights(self, asked: Floats) -> Floats:
        """Return the weights of released vectors that give combinations of periods.

        Parameters
        ----------
        asked : ndarray of shape (n, t)
            Weights of the first t periods in each of n answers.

        Returns
        -------
        ndarray of shape (n, t)
            The noise of an answer is that of a release times the norm of its row.
        """
        # Here, since plans import this module, and most processes need no answers of a horizon.
        from scipy.linalg import solve_triangular

        t = asked.shape[1]
        corner = self.matrix[:t, :t].astype(np.float64)
        return np.asarray(solve_triangular(corner, asked.T, trans="T", lower=True).T)

    def noises(self, asked: Floats) -> Floats:
        """Return the noise of each answer in `asked`, shape (n,), for one unit's whole change.

        Times the noise multiplier, it is the deviation in records.
        """
        weights = self.weights(asked)
        return np.asarray(sqrt(self.sensitivity_squared) * np.linalg.norm(weights, axis=1))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values."""
        return {"rows": self.rows, "max_periods": self.max_periods}

    @classmethod
    def from_dict(cls, document: Any) -> Self:
        """Read an encoding written by :meth:`to_dict`."""
        try:
            rows = tuple(tuple(row) for row in document["rows"])
            return cls(rows, document["max_periods"])
        except (KeyError, TypeError) as error:
            raise PlanError("horizon has no matrix; use the original file.") from error


def answers(periods: int, name: str) -> Floats:
    """Return the weights of the periods in each answer of a family of `WINDOWS`.

    Returns
    -------
    ndarray of shape (periods, periods), 0 or 1
        Row t is the answer after period t.
    """
    every = np.tril(np.ones((periods, periods)))
    length = WINDOWS[name]
    return every if length is None else every - np.tril(every, -length)


def kept(periods: int, share: float) -> Floats:
    """Return the weights of sums of which each period keeps a share, shape (periods, periods)."""
    _check_periods(periods)
    ages = np.subtract.outer(np.arange(periods), np.arange(periods))
    return np.asarray(np.tril(share ** np.maximum(ages, 0)))


def _check_periods(periods: int) -> None:
    if type(periods) is not int or not 2 <= periods <= MOST_PERIODS:
        raise PlanError(f"periods must be in [2, {MOST_PERIODS}], got {periods!r}.")


def _optimal(asked: Floats) -> Floats:
    """Return the matrix with columns of norm 2**10 and the least noise of some answers.

    The Gram matrix X with diagonal 1 minimises tr(W'W / X). At the optimum, X is
    ``D^-1/2 (D^1/2 W'W D^1/2)^1/2 D^-1/2`` for a diagonal D, which is the diagonal of the root.
    Truncation to integers shortens every column.
    """
    gram = asked.T @ asked
    scale = np.diag(gram).copy()
    for _ in range(_STEPS):
        half = np.sqrt(scale)
        values, vectors = np.linalg.eigh(half[:, None] * gram * half)
        root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
        before, scale = scale, np.diag(root).copy()
        if np.abs(scale / before - 1).max() < _CLOSE:
            break
    half = np.sqrt(np.diag(root))
    inner = root / half[:, None] / half
    # The factor with C'C = X must be lower triangular: Cholesky's, from the last period back.
    factor = np.linalg.cholesky(inner[::-1, ::-1]).T[::-1, ::-1]
    return np.asarray(np.trunc(_ONE * factor))
