"""A public random projection to few axes, in exact integers.

What a record becomes is a function of that record and of public numbers alone, to the last bit,
whatever other records are in the same table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import floor, log, sqrt

import numpy as np

from cloister.core.errors import PlanError
from cloister.core.randomness import public_generator
from cloister.protocol.task import Floats, Integers, Records
from cloister.tasks.clipped import clip_to_unit
from cloister.tasks.clustering.lloyd_kernel import nearest_centres
from cloister.tasks.moments import chunks

BITS = 16
ONE = 1 << BITS
"""What stands for 1 in a projected coordinate."""

MAX_AXES = 5  # with more, a ball of the finest grid holds too many of its points
SHRINK = 1.75  # a projected record is longer than this times its length with probability < 0.02
_WEIGHT_BITS = 12  # entries of the matrix are rounded to this
_LARGEST_WEIGHT = 16  # no normal variable of ours is larger, in standard deviations
_EXACT = 1 << 53
_ROWS = 1 << 14  # records whose distances are held at a time


@dataclass(frozen=True)
class Projection:
    """The map from ``[-1, 1]^n_features`` into ``[-1, 1]^n_axes``.

    Parameters
    ----------
    n_axes : int
        The same number makes it the identity. Fewer: a Gaussian matrix, after which records are
        shrunk by ``1.75 sqrt(n_features)`` and what is still outside the unit ball is pulled to it.
    frac_bits : int
        Of the records.
    """

    n_features: int
    n_axes: int
    frac_bits: int
    public_seed: int

    def __post_init__(self) -> None:
        if not 1 <= self.n_axes <= min(self.n_features, MAX_AXES):
            raise PlanError(
                f"n_axes must be in [1, {min(self.n_features, MAX_AXES)}], got {self.n_axes!r}."
            )
        largest = self.n_features * _LARGEST_WEIGHT << (self.frac_bits + _WEIGHT_BITS)
        if not self.is_identity and largest >= _EXACT:
            raise PlanError(
                f"frac_bits={self.frac_bits} is too fine for an exact projection of "
                f"{self.n_features} columns; use fewer bits."
            )

    @property
    def is_identity(self) -> bool:
        """Whether points stay where they are."""
        return self.n_axes == self.n_features

    def __call__(self, records: Records) -> Integers:
        """Return projected records, shape (n_samples, n_axes), in steps of ``1 / ONE``."""
        if self.is_identity:
            shift = self.frac_bits - BITS
            wide = records.astype(np.int64)
            return wide >> shift if shift > 0 else wide << -shift
        weights = self._weights
        scale = ONE / (SHRINK * sqrt(self.n_features)) / (1 << self.frac_bits + _WEIGHT_BITS)
        points = np.zeros((0, self.n_axes), dtype=np.int64)
        parts = [points]
        for part in chunks(records):
            # sums of integers below 2**53, so that no other row can change the last bit
            exact = part.astype(np.float64) @ weights
            parts.append(clip_to_unit(np.rint(exact * scale).astype(np.int64), ONE, ONE))
        return np.concatenate(parts)

    @cached_property
    def _weights(self) -> Floats:
        """The matrix, shape (n_features, n_axes): whole numbers."""
        rng = public_generator(self.public_seed, "projection", self.n_features, self.n_axes)
        normal = rng.normal(size=(self.n_features, self.n_axes)) / sqrt(self.n_axes)
        bounded = np.clip(normal, -_LARGEST_WEIGHT, _LARGEST_WEIGHT)
        weights: Floats = np.rint(bounded * (1 << _WEIGHT_BITS))
        return weights


def usual_axes(n_features: int, nominal_n: int) -> int:
    """Return to how many axes to project: all of up to 5, else ``ln(nominal_n) / 2`` of them."""
    if n_features <= MAX_AXES:
        return n_features
    return max(1, min(MAX_AXES, floor(log(max(nominal_n, 2)) / 2)))


def nearest_point(projected: Integers, points: Floats) -> Integers:
    """Return which of some public points, in ``[-1, 1]``, each projected record is nearest to."""
    on_grid = np.rint(points * ONE).astype(np.int64)
    return np.concatenate(
        [np.zeros(0, dtype=np.int64)]
        + [
            nearest_centres(projected[first : first + _ROWS].astype(np.int32), on_grid)
            for first in range(0, len(projected), _ROWS)
        ]
    )
