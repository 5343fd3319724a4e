"""k-means by Lloyd's iteration on shared rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.core.declared import Length, Range, declared
from cloister.hazmat.ring import Words
from cloister.shares.mpc.compare import negative, select
from cloister.shares.mpc.functions import argmax_one_hot, divide
from cloister.shares.mpc.material import Shape
from cloister.shares.mpc.opening import Budgeted
from cloister.shares.mpc.products import matmul, multiply, square
from cloister.shares.mpc.server import Server
from cloister.shares.mpc.training.tables import ONE, Training, clamp, common, padded, require

_MOST = 1 << 20  # of a count; head-room of the division


@declared
class KMeansOnShares(Training, Budgeted):
    """Lloyd's iteration from public centres; only the last centres are opened.

    The dealer together with either server sees every row. With `epsilon` the opening is private:
    in every iteration each server adds noise to all sums and counts. Without it the opening is
    exact, which is **no private release**. A cluster without records keeps its centre; with noise,
    so does one whose noisy count is below one record plus one standard deviation.

    With ``partition="cells"`` all owners have the same records in the same order, and each cell is
    at one of them. An empty cell (NaN) is at another owner. If nobody has it, it is the middle of
    its column. A record counts if every owner has its row.

    References
    ----------
    P. Mohassel, M. Rosulek, N. Trieu, "Practical privacy-preserving k-means clustering", 2020.
    G. Jagannathan, R. Wright, "Privacy-preserving distributed k-means clustering over arbitrarily
    partitioned data", KDD 2005: the partition into cells.
    """

    name: ClassVar[str] = "kmeans-on-shares"

    centres: Annotated[
        tuple[tuple[float, ...], ...],
        Length(1),
        "starting centres, data units; public, so never chosen from records",
    ]
    iterations: Annotated[int, Range(1, 10_000)] = 5
    partition: Annotated[
        Literal["rows", "cells"], "what owners divide: records, or the cells of common records"
    ] = "rows"

    def __post_init__(self) -> None:
        d, shapes = self._grid.n_features, {len(centre) for centre in self.centres}
        require(shapes == {d}, "centres", f"points of {d} numbers each", self.centres)
        most = round(self._most_count)
        require(most < _MOST, "rows of all owners, and noise,", f"below {_MOST}", most)

    @property
    def _all_rows(self) -> int:
        return self.rows if self.partition == "cells" else super()._all_rows

    @property
    def _noised(self) -> tuple[int, int]:
        # A record adds (x, 1) to one cluster, each of the d + 1 words at most 2^16.
        return self.iterations, (self._grid.n_features + 1) * ONE**2

    def results(self) -> Mapping[str, Shape]:
        """Return the shape of the centres, in the box of half-width 1."""
        return {"centres": (len(self.centres), self._grid.n_features)}

    def table(self, X: ArrayLike) -> Words:
        """Return an owner's table, ready to be split.

        Parameters
        ----------
        X : array_like of shape (n, d), data units, with NaN only for cells of other owners

        Raises
        ------
        DataError
            If the shape is wrong, a value is missing, or there are too many rows.
        """
        if self.partition == "rows":
            return padded(self._grid.encode(X).astype(np.int64), self.rows)
        values = np.asarray(X, dtype=np.float64)
        elsewhere = np.isnan(values)
        # A zero is the middle of the box, and adds nothing to the cell of another owner.
        own = self._grid.encode(np.where(elsewhere, 0.0, values)).astype(np.int64)
        return padded(np.where(elsewhere, 0, own), self.rows)

    def words(self, name: str, values: ArrayLike) -> Words:
        """Return an owner's table of features; see :meth:`table`."""
        return self.table(values)

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Cluster (semi-honest; the dealer with either server sees all).

        An iteration has two products of all rows, a tournament and k divisions.
        """
        if self.partition == "cells":
            rows, valid = common(server, [tables[owner] for owner in self.owners])
        else:
            rows, _, valid = self._stacked(tables)
        start = self._grid.encode(self.centres).astype(np.int64)
        centres = start.view(np.uint64) if server.index == 0 else np.zeros(start.shape, np.uint64)
        for _ in range(self.iterations):
            # |x|^2 - |x - c|^2, largest where x is nearest; 32 fraction bits, untruncated.
            norms = square(server, centres).sum(axis=1)
            nearness = np.uint64(2) * matmul(server, rows, centres.T) - norms
            member = multiply(server, argmax_one_hot(server, nearness), valid)
            sums = matmul(server, member.T, rows)
            counts = member.sum(axis=0)[:, None] * np.uint64(ONE)
            found = self._with_noise(server, np.hstack([sums, counts]))
            centres = self._moved(server, centres, found[:, :-1], found[:, -1:])
        return {"centres": centres}

    def _moved(self, server: Server, centres: Words, sums: Words, counts: Words) -> Words:
        """Return the means, clipped to the box; for too few records, the old centre."""
        # Not by `constant`, whose limit is for data and which strong noise exceeds.
        mine = self._least_count if server.index == 0 else 0
        least = np.full(counts.shape, mine, dtype=np.uint64)
        few = negative(server, counts - least)
        # For too few records, any valid divisor, since the quotient is not used.
        counts = select(server, few, counts, server.constant(np.ones(counts.shape)))
        means = clamp(server, divide(server, sums, counts, 1.0, self._most_count), ONE)
        return select(server, few, means, centres)

    @property
    def _least_count(self) -> int:
        """Smallest count of a cluster that moves its centre, lattice steps."""
        return ONE + (round(self.noise.released_sigma) if self.noise else 0)

    @property
    def _most_count(self) -> float:
        """Bound on counts of records and on sums of coordinates."""
        return self._all_rows + 1 + self._most_noise / ONE

    def model(self, centres: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the opened centres in data units."""
        return self._grid.decode(centres)
