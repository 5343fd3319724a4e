"""Votes and labels on shares: many models decide about a row, and only the label is opened.

Three programs. In "vote", each of K silos shares the labels that its own model gives to public or
jointly held rows. In "noisy-vote", both servers add noise before the largest count is looked for.
In "score", rows and models are both on shares, and each linear model votes there.

Semi-honest throughout: a silo that shares what is no one-hot vote, or a model of its own making,
is not noticed, and one that breaks the rules can decide every row. **Ties go to the lowest
class.** The dealer together with either server sees every table.

References
----------
N. Papernot et al., "Scalable private learning with PATE", 2018, section 3 (noisy argmax).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.errors import AccuracyWarning, DataError, PlanError
from cloister.hazmat.ring import Words, to_integers
from cloister.mpc.compare import negative
from cloister.mpc.functions import argmax, argmax_one_hot
from cloister.mpc.material import Shape
from cloister.mpc.opening import NoiseOnShares
from cloister.mpc.products import matmul
from cloister.mpc.program import Opening
from cloister.mpc.server import Server
from cloister.mpc.shares import encode
from cloister.privacy.events import Event

_MOST_WEIGHT = 1 << 20
_VOTE_STEPS = 1 << 10
"""Lattice steps of one vote under noise: sqrt(2) of them rounds up by less than a thousandth."""
_LIKELY = 0.9


@dataclass(frozen=True)
class Vote:
    """The label that most of K silos vote for, row by row; nothing else is opened.

    Semi-honest; the dealer together with either server sees every vote. A count is at most the sum
    of the weights, so comparisons are exact. The sum is local; the rest costs what
    :func:`cloister.mpc.argmax` does: 9 ceil(log2 classes) rounds.

    Parameters
    ----------
    voters : tuple of str
        One table each, given by its silo: the labels, integers from 0. At least three: of two, one
        knows the other's vote where the label is not its own.
    rows, classes : int
    weights : tuple of int, optional
        Public, from 1 to 2^20, one a voter; 1 for all. Nobody may have half of all: the label
        would be that one's vote.

    Raises
    ------
    PlanError
    """

    name: ClassVar[str] = "vote"

    voters: tuple[str, ...]
    rows: int
    classes: int
    weights: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_names("voters", self.voters, 3)
        _check_sizes(rows=(self.rows, 1), classes=(self.classes, 2))
        _check_weights(self.weights, len(self.voters))
        if self.weights and 2 * max(self.weights) >= sum(self.weights):
            raise PlanError(
                f"weights must give nobody half of all, got {self.weights}: the label would be "
                "that one's vote."
            )

    @property
    def opening(self) -> Opening:
        """A label."""
        return "label"

    def event(self) -> Event | None:
        """Return nothing: the label is an exact function of the votes."""
        return None

    def tables(self) -> Mapping[str, Shape]:
        """Return the shape of each silo's one-hot votes."""
        return dict.fromkeys(self.voters, (self.rows, self.classes))

    def results(self) -> Mapping[str, Shape]:
        """Return the shape of the labels."""
        return {"label": (self.rows,)}

    def words(self, table: str, values: ArrayLike) -> Words:
        """Return labels as one-hot integers, before they are shared.

        Raises
        ------
        DataError
            If they are not one integer from 0 to `classes` - 1 a row.
        """
        labels = np.asarray(values)
        if labels.shape == (self.rows, 1):  # a column of a file
            labels = labels[:, 0]
        numbers = labels.dtype.kind in "iuf" and labels.shape == (self.rows,)
        if not numbers or not np.isin(labels, np.arange(self.classes)).all():
            raise DataError(
                f"votes {table!r} must be {self.rows} integers from 0 to {self.classes - 1}."
            )
        one_hot: Words = np.eye(self.classes, dtype=np.uint64)[labels.astype(np.int64)]
        return one_hot

    def values(self, result: str, words: Words) -> NDArray[np.int64]:
        """Return opened labels."""
        return to_integers(words)

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Return this server's share of the labels."""
        return {"label": argmax(server, _counts(self.voters, self.weights, tables))}


@dataclass(frozen=True)
class NoisyVote(Vote):
    """A vote whose labels are a private release: noise on the counts, then the largest.

    Semi-honest; the dealer together with either server sees every vote. Each server adds a draw of
    its own, and either draw alone carries the guarantee.

    Parameters
    ----------
    epsilon, delta : float
        Of all rows together, for one record more or less at one silo: it may change that silo's
        model, and so its vote on every row, each by sqrt(2) times its weight in L2 norm. Each row
        is one Gaussian query; the labels are post-processing.
    silos_of_one : int
        The most silos that hold records of one person, whom the guarantee then covers.

    Warns
    -----
    AccuracyWarning
        If even a unanimous vote wins with a chance below 0.9: with 30 voters, epsilon 1 and ten
        rows it is 0.79. Then let each silo train a private model and use "vote" instead, whose
        labels cost nothing more.
    """

    name: ClassVar[str] = "noisy-vote"

    epsilon: float = 1.0
    delta: float = 1e-6
    silos_of_one: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_sizes(silos_of_one=(self.silos_of_one, 1))
        if self.silos_of_one > len(self.voters):
            raise PlanError(f"silos_of_one must be at most {len(self.voters)}.")
        sure = self.chance(sum(self.weights) or len(self.voters))
        if sure < _LIKELY:
            warnings.warn(
                f"with {len(self.voters)} voters and epsilon {self.epsilon:g} for {self.rows} rows "
                f"even a unanimous vote wins with a chance of {sure:.2f} only; ask about fewer "
                "rows, or vote with privately trained models.",
                AccuracyWarning,
                stacklevel=3,
            )

    @property
    def max_silos(self) -> int:
        """What a silo's policy compares with its schema."""
        return self.silos_of_one

    @cached_property
    def noise(self) -> NoiseOnShares:
        """What each server adds to every count."""
        largest = max(self.weights, default=1) * _VOTE_STEPS
        return NoiseOnShares(self.epsilon, self.delta, self.rows, 2 * largest**2, self.silos_of_one)

    @property
    def opening(self) -> Opening:
        """Private."""
        return "private"

    def event(self) -> Event:
        """Return one Gaussian a row; every silo's ledger is charged with it."""
        return self.noise.event()

    def chance(self, lead: float) -> float:
        """Return how likely a class wins that leads every other by so many votes.

        At least this likely: exact for two classes, a union bound for more. The difference of two
        counts has four draws in it, two of each server.
        """
        deviation = 2 * self.noise.sigma / _VOTE_STEPS
        loses = math.erfc(lead / deviation / math.sqrt(2)) / 2
        return max(0.0, 1 - (self.classes - 1) * loses)

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Return this server's share of the labels."""
        counts = _counts(self.voters, self.weights, tables) * np.uint64(_VOTE_STEPS)
        return {"label": argmax(server, self.noise.add(server, counts))}


@dataclass(frozen=True)
class Score:
    """The label of linear models for rows, both on shares; of several models, what most say.

    Semi-honest; the dealer together with either server sees rows and weights. Scores are compared
    with all 32 fraction bits of a product, untruncated; a score counts as wrong near its threshold
    only by the rounding of features and weights to 2^-17. Whoever gets labels learns about the
    weights all the same: about one bit a row, so the rows of all sessions are what to limit.

    Parameters
    ----------
    models : tuple of str
        One table each: weights of shape (features + 1, outputs), the bias last.
    rows, features : int
    outputs : int
        1 for a score whose sign says class 0 or 1 (0 counts as class 0), else one score a class,
        of which the largest wins.
    weights : tuple of int, optional
        Of the models' votes, as in :class:`Vote`.
    """

    name: ClassVar[str] = "score"

    models: tuple[str, ...]
    rows: int
    features: int
    outputs: int = 1
    weights: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_names("models", self.models, 1)
        if "rows" in self.models:
            raise PlanError("no model may be called 'rows', which is the caller's table.")
        _check_sizes(rows=(self.rows, 1), features=(self.features, 1), outputs=(self.outputs, 1))
        _check_weights(self.weights, len(self.models))

    @property
    def opening(self) -> Opening:
        """A label."""
        return "label"

    def event(self) -> Event | None:
        """Return nothing: the label is an exact function of row and weights."""
        return None

    @property
    def limit(self) -> int:
        """No feature and no weight may be larger in size: then every sum fits the ring."""
        return math.isqrt((1 << 28) // (self.features + 1))

    def tables(self) -> Mapping[str, Shape]:
        """Return the shapes of rows and models."""
        model = (self.features + 1, self.outputs)
        return {"rows": (self.rows, self.features), **dict.fromkeys(self.models, model)}

    def results(self) -> Mapping[str, Shape]:
        """Return the shape of the labels."""
        return {"label": (self.rows,)}

    def words(self, table: str, values: ArrayLike) -> Words:
        """Return rows, or weights with their bias, as words, before they are shared.

        Raises
        ------
        DataError
            If the shape is another, or a value is not finite or above `limit` in size.
        """
        numbers = np.asarray(values, dtype=np.float64)
        shape = self.tables()[table]
        if numbers.shape != shape or not (np.abs(numbers) <= self.limit).all():
            raise DataError(
                f"table {table!r} must have shape {shape}, got {numbers.shape}, and finite values "
                f"of at most {self.limit} in size; scale the columns."
            )
        return encode(numbers)

    def values(self, result: str, words: Words) -> NDArray[np.int64]:
        """Return opened labels."""
        return to_integers(words)

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Return this server's share of the labels."""
        models = np.concatenate([tables[name] for name in self.models], axis=1)
        one = server.constant(np.ones((self.rows, 1)))
        scores = matmul(server, np.hstack([tables["rows"], one]), models)
        if self.outputs == 1:
            says_1 = negative(server, np.uint64(0) - scores)
            if len(self.models) == 1:
                return {"label": says_1[:, 0]}
            weights = np.array(self.weights or [1] * len(self.models), np.uint64)
            # Class 1 wins where twice its votes are above all votes.
            lead = says_1 @ (np.uint64(2) * weights) - server.constant(int(weights.sum()), 0)
            return {"label": negative(server, np.uint64(0) - lead)}
        scores = scores.reshape(self.rows, len(self.models), self.outputs)
        if len(self.models) == 1:
            return {"label": argmax(server, scores[:, 0])}
        votes = argmax_one_hot(server, scores)
        by_name = {name: votes[:, k] for k, name in enumerate(self.models)}
        return {"label": argmax(server, _counts(self.models, self.weights, by_name))}


def _counts(voters: tuple[str, ...], weights: tuple[int, ...], votes: Mapping[str, Words]) -> Words:
    """Return shares of the weighted counts of each class; local."""
    each = zip(voters, weights or [1] * len(voters), strict=True)
    first, *others = [votes[name] * np.uint64(weight) for name, weight in each]
    return sum(others, start=first)


def _check_names(what: str, names: tuple[str, ...], least: int) -> None:
    if len(set(names)) != len(names) or len(names) < least:
        raise PlanError(f"{what} must be at least {least} different names, got {names}.")


def _check_sizes(**sizes: tuple[Any, int]) -> None:
    for name, (size, least) in sizes.items():
        if type(size) is not int or size < least:
            raise PlanError(f"{name} must be an integer of at least {least}, got {size!r}.")


def _check_weights(weights: tuple[int, ...], count: int) -> None:
    if weights and len(weights) != count:
        raise PlanError(f"weights must be one for each of {count}, got {len(weights)}.")
    if not all(type(weight) is int and 1 <= weight <= _MOST_WEIGHT for weight in weights):
        raise PlanError(f"weights must be integers from 1 to {_MOST_WEIGHT}, got {weights}.")
