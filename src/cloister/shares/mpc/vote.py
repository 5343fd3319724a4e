"""Votes and labels on shares: several models classify a row, and only the label is opened.

There are three programs. In "vote", each of K silos shares the labels from its model for public
or jointly held rows. In "noisy-vote", both servers add noise before the largest count is
determined. In "score", rows and models are both on shares, and each linear model votes there.

Semi-honest throughout: a silo that shares invalid votes or another model is not detected, and can
decide every row. **Ties go to the lowest class.** The dealer together with either server sees every
table.

References
----------
N. Papernot et al., "Scalable private learning with PATE", 2018, section 3 (noisy argmax).
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.core.declared import Length, Positive, Probability, Range, Rule, Whole, declared
from cloister.core.errors import AccuracyWarning, DataError, PlanError
from cloister.hazmat.ring import Words, to_integers
from cloister.privacy.events import Event
from cloister.shares.mpc.compare import negative
from cloister.shares.mpc.functions import argmax, argmax_one_hot
from cloister.shares.mpc.material import Shape
from cloister.shares.mpc.opening import NoiseOnShares
from cloister.shares.mpc.products import matmul
from cloister.shares.mpc.program import Names, Opening, Program
from cloister.shares.mpc.server import Server
from cloister.shares.mpc.shares import encode

_VOTE_STEPS = 1 << 10
"""Lattice steps of one vote under noise; rounding sqrt(2) of them up adds below a thousandth."""
_LIKELY = 0.9


@declared
class _Majority(Program):
    """One label per row, by most votes; the dealer with either server sees every table."""

    rows: Whole
    weights: Annotated[
        tuple[Annotated[int, Range(1, 1 << 20)], ...], "of the votes; public, 1 for all if empty"
    ] = ()

    def __post_init__(self) -> None:
        if self.weights and len(self.weights) != len(self._voters):
            raise PlanError(
                f"weights must be one for each of {len(self._voters)}, got {len(self.weights)}."
            )

    @property
    @abstractmethod
    def _voters(self) -> tuple[str, ...]:
        """Names of the voters, in the order of the weights."""

    @property
    def _weights(self) -> tuple[int, ...]:
        return self.weights or (1,) * len(self._voters)

    @property
    def opening(self) -> Opening:
        """The kind "label": an exact function of the shared tables."""
        return "label"

    def results(self) -> Mapping[str, Shape]:
        """Return the shape of the labels."""
        return {"label": (self.rows,)}

    def values(self, result: str, words: Words) -> NDArray[np.int64]:
        """Return opened labels."""
        return to_integers(words)

    def _counts(self, votes: Words) -> Words:
        """Return shares of weighted counts (rows, classes) from votes with voters as first axis."""
        # Linear with public weights, so it takes no message.
        return np.tensordot(np.array(self._weights, np.uint64), votes, axes=1)


@declared
class Vote(_Majority):
    """The label with most votes of K silos for each row; nothing else is opened.

    Semi-honest; the dealer together with either server sees every vote. A count is at most the sum
    of the weights, so comparisons are exact. The sum is local, and the rest has the cost of
    :func:`cloister.shares.mpc.argmax`: 9 ceil(log2 classes) rounds.

    Each silo shares one table, the labels: integers from 0. At least three voters are required: of
    two, one knows the other's vote if the label is not its own. No voter may have half of all
    weights, since the label would be its vote.
    """

    name: ClassVar[str] = "vote"

    voters: Annotated[Names, Length(3)]
    classes: Annotated[int, Range(2)]

    def __post_init__(self) -> None:
        super().__post_init__()
        if 2 * max(self._weights) >= sum(self._weights):
            raise PlanError(
                f"weights must give no voter half of the total, got {self.weights}: its vote would "
                "be the label."
            )

    @property
    def _voters(self) -> tuple[str, ...]:
        return self.voters

    def tables(self) -> Mapping[str, Shape]:
        """Return the shape of each silo's one-hot votes."""
        return dict.fromkeys(self.voters, (self.rows, self.classes))

    def words(self, table: str, values: ArrayLike) -> Words:
        """Return labels as one-hot integers, before they are shared.

        Raises
        ------
        DataError
            If they are not one integer from 0 to `classes` - 1 per row.
        """
        labels = np.asarray(values)
        if labels.shape == (self.rows, 1):  # a column of a file
            labels = labels[:, 0]
        numbers = labels.dtype.kind in "iuf" and labels.shape == (self.rows,)
        if not numbers or not np.isin(labels, np.arange(self.classes)).all():
            raise DataError(
                f"votes {table!r} must be {self.rows} integers from 0 to {self.classes - 1}."
            )
        return np.eye(self.classes, dtype=np.uint64)[labels.astype(np.int64)]

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Return this server's share of the labels."""
        counts = self._counts(np.stack([tables[voter] for voter in self.voters]))
        return {"label": argmax(server, self._before(server, counts))}

    def _before(self, server: Server, counts: Words) -> Words:
        """Return shares of the counts to compare."""
        return counts


@declared
class NoisyVote(Vote):
    """A vote whose labels are a private release: noise on the counts, then the largest.

    Semi-honest; the dealer together with either server sees every vote. Each server adds a separate
    draw, and either draw alone satisfies the guarantee.

    The budget covers all rows together, for one record more or less at one silo. The record may
    change that silo's model, and so its vote on every row, each by sqrt(2) times its weight in L2
    norm. Each row is one Gaussian query; the labels are post-processing.

    Warns
    -----
    AccuracyWarning
        If even a unanimous vote wins with probability below 0.9: with 30 voters, epsilon 1 and ten
        rows it is 0.79. Then let each silo train a private model and use "vote" instead, whose
        labels cost no further budget.
    """

    name: ClassVar[str] = "noisy-vote"

    epsilon: Positive = 1.0
    delta: Probability = 1e-6
    max_silos: Annotated[Whole, "the most silos that hold records of one person"] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_silos > len(self.voters):
            raise PlanError(f"max_silos must be at most {len(self.voters)}, got {self.max_silos}.")
        sure = self.chance(sum(self._weights))
        if sure < _LIKELY:
            warnings.warn(
                f"with {len(self.voters)} voters and epsilon {self.epsilon:g} for {self.rows} rows "
                f"even a unanimous vote wins with a chance of {sure:.2f} only; ask about fewer "
                "rows, or vote with privately trained models.",
                AccuracyWarning,
                stacklevel=4,
            )

    @cached_property
    def noise(self) -> NoiseOnShares:
        """The noise that each server adds to every count."""
        # A changed vote moves its weight between two counts, hence the factor 2.
        largest = max(self._weights) * _VOTE_STEPS
        return NoiseOnShares(self.epsilon, self.delta, self.rows, 2 * largest**2, self.max_silos)

    @property
    def opening(self) -> Opening:
        """The kind "private"."""
        return "private"

    def event(self) -> Event:
        """Return one Gaussian event per row, which every silo's ledger charges."""
        return self.noise.event()

    def chance(self, lead: float) -> float:
        """Return a lower bound on the probability that a class with this lead wins.

        It is exact for two classes, a union bound for more. The difference of two counts contains
        four draws, two of each server.
        """
        deviation = 2 * self.noise.sigma / _VOTE_STEPS
        loses = math.erfc(lead / deviation / math.sqrt(2)) / 2
        return max(0.0, 1 - (self.classes - 1) * loses)

    def _before(self, server: Server, counts: Words) -> Words:
        return self.noise.add(server, counts * np.uint64(_VOTE_STEPS))


@declared
class Score(_Majority):
    """The label of linear models for rows, both on shares; several models vote.

    Semi-honest; the dealer together with either server sees rows and weights. Scores are compared
    with all 32 fraction bits of a product, untruncated. Near its threshold a score can be wrong
    only by the rounding of features and weights to 2^-17. A receiver of labels learns about one bit
    of the weights per row, so limit the rows of all sessions together.

    Each model is one table of shape (features + 1, outputs), the bias last.
    """

    name: ClassVar[str] = "score"

    models: Annotated[
        Names,
        Length(1),
        Rule("no name 'rows', the caller's table", lambda all_: "rows" not in all_),
    ]
    features: Whole
    outputs: Annotated[
        Whole,
        "1 for a score whose sign gives the class, 0 being class 0; else one score per class, "
        "of which the largest wins",
    ] = 1

    @property
    def _voters(self) -> tuple[str, ...]:
        return self.models

    @property
    def limit(self) -> int:
        """Largest absolute value of a feature or a weight, so that every sum fits the ring."""
        return math.isqrt((1 << 28) // (self.features + 1))

    def tables(self) -> Mapping[str, Shape]:
        """Return the shapes of rows and models."""
        model = (self.features + 1, self.outputs)
        return {"rows": (self.rows, self.features), **dict.fromkeys(self.models, model)}

    def words(self, table: str, values: ArrayLike) -> Words:
        """Encode rows, or weights with their bias, as words, before they are shared.

        Raises
        ------
        DataError
            If the shape is wrong, or a value is not finite or its absolute value exceeds `limit`.
        """
        numbers = np.asarray(values, dtype=np.float64)
        shape = self.tables()[table]
        if numbers.shape != shape or not (np.abs(numbers) <= self.limit).all():
            raise DataError(
                f"table {table!r} must have shape {shape}, got {numbers.shape}, and finite values "
                f"of at most {self.limit} in size; scale the columns."
            )
        return encode(numbers)

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Return this server's share of the labels."""
        models = np.concatenate([tables[name] for name in self.models], axis=1)
        one = server.constant(np.ones((self.rows, 1)))
        scores = matmul(server, np.hstack([tables["rows"], one]), models)
        if self.outputs == 1:
            votes = negative(server, np.uint64(0) - scores)  # 1 for class 1
            if len(self.models) == 1:
                return {"label": votes[:, 0]}
            # Class 1 wins where twice its votes are above all votes.
            lead = np.uint64(2) * self._counts(votes.T) - server.constant(sum(self._weights), 0)
            return {"label": negative(server, np.uint64(0) - lead)}
        scores = scores.reshape(self.rows, len(self.models), self.outputs)
        if len(self.models) == 1:
            return {"label": argmax(server, scores[:, 0])}
        votes = argmax_one_hot(server, scores)
        return {"label": argmax(server, self._counts(votes.swapaxes(0, 1)))}
