"""k-means by Lloyd's iteration on shared rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.hazmat.fixedpoint import Grid
from cloister.hazmat.ring import Words
from cloister.mpc.compare import negative, select
from cloister.mpc.functions import argmax_one_hot, divide
from cloister.mpc.material import Shape
from cloister.mpc.opening import NoiseOnShares
from cloister.mpc.products import matmul, multiply, square
from cloister.mpc.program import Opening
from cloister.mpc.server import Server
from cloister.mpc.shares import FRAC_BITS
from cloister.mpc.training.tables import ONE, check_owners, clamp, padded, require, stacked, whole
from cloister.privacy.events import Event

_TAIL = 8.0  # deviations of noise that head-room leaves room for: a matter of use, not of privacy
_MOST = 1 << 20  # of a count; head-room of the division


@dataclass(frozen=True, kw_only=True)
class KMeansOnShares:
    """Lloyd's iteration from public centres; only the last centres are opened.

    The dealer together with either server sees every row. With `epsilon` the opening is private:
    in every iteration each server adds noise to all sums and counts. Without it the opening is
    exact, which is **no private release**. A cluster without records keeps its centre; with noise,
    so does one whose noisy count is below one record and one standard deviation.

    Parameters
    ----------
    owners, rows, low, high, epsilon, delta, max_rows, max_silos
        As for :class:`~cloister.mpc.training.logistic.LogisticOnShares`.
    centres : tuple of tuple of float, data units
        Where to start: public, so never chosen by looking at records.
    iterations : int

    References
    ----------
    P. Mohassel, M. Rosulek, N. Trieu, "Practical privacy-preserving k-means clustering", 2020.
    """

    name: ClassVar[str] = "kmeans-on-shares"

    owners: tuple[str, ...]
    rows: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    centres: tuple[tuple[float, ...], ...]
    iterations: int = 5
    epsilon: float = 0.0
    delta: float = 1e-6
    max_rows: int = 1
    max_silos: int = 1

    def __post_init__(self) -> None:
        for name in ("owners", "low", "high"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "centres", tuple(tuple(c) for c in self.centres))
        check_owners(self.owners, self.rows)
        shapes = {len(centre) for centre in self.centres}
        d = self._grid.n_features
        require(shapes == {d}, "centres", f"one or more points of {d} numbers", self.centres)
        whole("iterations", self.iterations, 1, 10_000)
        require(self.epsilon >= 0, "epsilon", "at least 0", self.epsilon)
        whole("max_rows", self.max_rows, 1, 1 << 20)
        whole("max_silos", self.max_silos, 1, 1 << 20)
        most = round(self._most_count)
        require(most < _MOST, "rows of all owners, and noise,", f"below {_MOST}", most)

    @cached_property
    def _grid(self) -> Grid:
        return Grid(self.low, self.high, FRAC_BITS)

    @cached_property
    def noise(self) -> NoiseOnShares | None:
        """What each server adds to sums and counts; None for an exact opening.

        A record adds (x, 1) to one cluster: a squared norm of at most (d + 1) 2^32.
        """
        if not self.epsilon:
            return None
        squared = (self._grid.n_features + 1) * ONE**2
        unit = self.max_rows * self.max_silos
        return NoiseOnShares(self.epsilon, self.delta, self.iterations, squared, unit)

    @property
    def opening(self) -> Opening:
        """Return "private" with a budget, else "exact"."""
        return "private" if self.noise else "exact"

    def event(self) -> Event | None:
        """Return what training costs each owner's ledger; None for an exact opening."""
        return self.noise.event() if self.noise else None

    def tables(self) -> Mapping[str, Shape]:
        """Features and validity, of each owner."""
        return dict.fromkeys(self.owners, (self.rows, self._grid.n_features + 1))

    def results(self) -> Mapping[str, Shape]:
        """Centres in the box of half-width 1."""
        return {"centres": (len(self.centres), self._grid.n_features)}

    def table(self, X: ArrayLike) -> Words:
        """Return an owner's table, ready to be split.

        Parameters
        ----------
        X : array_like of shape (n, d), data units, without NaN

        Raises
        ------
        DataError
            If the shape is wrong, a value is missing, or rows are too many.
        """
        return padded(self._grid.encode(X).astype(np.int64), self.rows)

    def words(self, name: str, values: ArrayLike) -> Words:
        """Return an owner's table of features; see :meth:`table`."""
        return self.table(values)

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Cluster (semi-honest; the dealer with either server sees all).

        An iteration has two products of all rows, a tournament and k divisions.
        """
        rows, valid = stacked(self.owners, tables)
        start = self._grid.encode(self.centres).astype(np.int64)
        centres = start.view(np.uint64) if server.index == 0 else np.zeros(start.shape, np.uint64)
        for _ in range(self.iterations):
            # |x|^2 - |x - c|^2, largest where x is nearest; 32 fraction bits, untruncated.
            norms = square(server, centres).sum(axis=1)
            nearness = np.uint64(2) * matmul(server, rows, centres.T) - norms
            member = multiply(server, argmax_one_hot(server, nearness), valid)
            sums = matmul(server, member.T, rows)
            counts = member.sum(axis=0)[:, None] * np.uint64(ONE)
            found = np.hstack([sums, counts])
            if self.noise:
                found = self.noise.add(server, found)
            centres = self._moved(server, centres, found[:, :-1], found[:, -1:])
        return {"centres": centres}

    def _moved(self, server: Server, centres: Words, sums: Words, counts: Words) -> Words:
        """Return the means, cut to the box; of too few records, the centre."""
        # Not by `constant`, whose limit is one of data: strong noise goes beyond it.
        mine = self._least_count if server.index == 0 else 0
        least = np.full(counts.shape, mine, dtype=np.uint64)
        few = negative(server, counts - least)
        # Where there are too few, anything that can be divided by.
        counts = select(server, few, counts, server.constant(np.ones(counts.shape)))
        means = clamp(server, divide(server, sums, counts, 1.0, self._most_count), ONE)
        return select(server, few, means, centres)

    @property
    def _least_count(self) -> int:
        """Lattice steps."""
        return ONE + (round(sqrt(2) * self.noise.sigma) if self.noise else 0)

    @property
    def _most_count(self) -> float:
        """Of records, and of any sum of coordinates."""
        noise = _TAIL * 2 * self.noise.sigma / ONE if self.noise else 0.0
        return self.rows * len(self.owners) + 1 + noise

    def model(self, centres: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return centres in data units, of the opened ones."""
        return self._grid.decode(centres)
