"""Public cells of covariates and strata, and the shares of a record in them.

A record is in the cell of its categories and its stratum. A number has equally spaced knots in its
box. A record is split between the two knots around its value, so that sums of the number are exact.
Shares of several numbers are multiplied. They are whole numbers with a public sum, and a record
adds as much in total as a record in a single cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from cloister.core.arrays import Floats, Integers, Records
from cloister.tasks.columns import codes, scaled

SPLIT_BITS = 6
"""Bits of a share; a record is split between two knots in parts of ``2**-SPLIT_BITS``."""
MOST_CELLS = 18
LEAST_KNOTS = 4
"""Of a number, if there are other covariates or strata."""
_ALONE, _MOST_KNOTS = 17, 6
_WHOLE = 1 << SPLIT_BITS


@dataclass(frozen=True)
class CovariateCells:
    """The cells of covariates, for each stratum.

    Parameters
    ----------
    levels : tuple of int
        Number of categories of each covariate, 0 for a number.
    strata : int
        Number of strata.
    """

    levels: tuple[int, ...]
    strata: int = 1
    frac_bits: int = 16

    @property
    def numbers(self) -> tuple[int, ...]:
        """Indices of the covariates that are numbers."""
        return tuple(j for j, n in enumerate(self.levels) if not n)

    @cached_property
    def knots(self) -> int:
        """Number of knots of each number; 0 if they do not fit into the largest table."""
        others = self.strata * prod(n for n in self.levels if n)
        if len(self.numbers) == others == 1:
            return _ALONE
        sizes = range(_MOST_KNOTS, LEAST_KNOTS - 1, -1)
        return next((k for k in sizes if k ** len(self.numbers) * others <= MOST_CELLS), 0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of cells of each covariate."""
        return tuple(n or self.knots for n in self.levels)

    @property
    def size(self) -> int:
        """Number of cells of all strata."""
        return self.strata * prod(self.shape)

    @property
    def fits(self) -> bool:
        """True if there are not too many cells."""
        return 0 < self.size <= MOST_CELLS

    @property
    def bits(self) -> int:
        """A record's shares have the sum ``2**bits``."""
        return SPLIT_BITS * len(self.numbers)

    @property
    def gap(self) -> float:
        """Distance of two knots, where the box is ``[-1, 1]``."""
        return 2 / (self.knots - 1)

    @cached_property
    def positions(self) -> Floats:
        """Covariates of each cell of a stratum; shape (cells, coefficients).

        A number is in ``[-1, 1]``. Each category but the first has an indicator, less the mean of
        all categories, for the conditioning of the equations.
        """
        parts = [
            np.eye(n)[:, 1:] - 1 / n if n else np.linspace(-1, 1, self.knots)[:, None]
            for n in self.levels
        ]
        return np.hstack([part[at] for part, at in zip(parts, self.places, strict=True)])

    @cached_property
    def places(self) -> Integers:
        """The knot or category of each covariate in each cell; shape (covariates, cells)."""
        return np.indices(self.shape).reshape(len(self.shape), -1)

    def shares(self, covariates: Records, stratum: Integers) -> tuple[Integers, Integers, Integers]:
        """Return the cells of records with their shares, and what splitting adds to squares.

        Parameters
        ----------
        covariates : ndarray of shape (n_samples, covariates), grid steps
        stratum : ndarray of shape (n_samples,)

        Returns
        -------
        cells, shares : ndarray of shape (2**numbers, n_samples)
            Shares are at least 0, and those of a record have the sum ``2**bits``.
        split : ndarray of shape (numbers, n_samples)
            Product of the two shares of each number, at most ``4**(SPLIT_BITS - 1)``.
        """
        cells, shares = stratum[None], np.ones((1, len(stratum)), dtype=np.int64)
        split = np.zeros((len(self.numbers), len(stratum)), dtype=np.int64)
        for j, n in enumerate(self.levels):
            values = covariates[:, j]
            if n:
                cells = cells * n + codes(values, n, self.frac_bits)
                continue
            parts, half = (self.knots - 1) * _WHOLE, 1 << self.frac_bits
            part = scaled(values, parts, half, self.frac_bits).astype(np.int64)
            knot = np.minimum(part >> SPLIT_BITS, self.knots - 2)
            upper = part - (knot << SPLIT_BITS)
            lower = _WHOLE - upper
            split[self.numbers.index(j)] = lower * upper
            cells = cells * self.knots + knot
            cells = np.concatenate([cells, cells + 1])
            shares = np.concatenate([shares * lower, shares * upper])
        return cells, shares, split
