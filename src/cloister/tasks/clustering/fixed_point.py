"""Intervals and verdicts of clusters in few columns, from the released surrogate alone.

The target of an interval is the fixed point of Lloyd's algorithm on the records that starts at the
released centres. To first order its error is ``(I - J)^-1`` times the error of the clusters' means.
J is the derivative of the clusters' means by their centres [P82]_. The surrogate has nearly the
same derivative as the records, so that the interval costs no budget.

An interval alone does not show that a cluster is real. Its verdict also uses whether k-means from
other starts finds it, and whether the density is lower between it and its neighbours.

References
----------
.. [P82] Pollard, "A central limit theorem for k-means clustering", Annals of Probability 10(4),
   1982: the matrix of second derivatives, with integrals over the borders of clusters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np

from cloister.core.arrays import Flags, Floats, Integers
from cloister.core.randomness import public_generator
from cloister.protocol.task import INTERVAL_95
from cloister.tasks.clustering.surrogate import Surrogate
from cloister.tasks.clustering.weighted import ONE, cost, lloyd, on_lattice, seeded, squared

NOT_DETERMINED, NUMBERS_ONLY, DETERMINED = 0.0, 1.0, 2.0
"""Verdicts: no number holds; the numbers hold without a gap; they hold and a gap is there."""

MOST_COORDINATES = 600  # of all centres; more take too long, and no cluster is determined

# The constants below were tuned on generated tables. Privacy does not depend on any of them.
_DRAWN, _FEWER = 20_000, 6_000  # public records: for derivatives and densities, for other starts
_SMOOTH = 0.35  # blur of the density whose derivative is taken, in standard deviations of a cluster
_BAND = 0.08  # half-thickness of the band around a border, in distances of its two centres
_MOST = 0.98  # largest eigenvalue of J that is inverted
MODEL_ERROR = 1.2  # relative error of the surrogate's answer
_STEPS = 100
_STARTS, _ALIKE, _BEST = 12, 1.05, 1.005  # other starts; costs over the best one that count
_WORLDS, _FEWER_STARTS = 5, 4  # sizes of clusters to try, the released ones first; starts for them
_UNIT = 1000  # mass of a point
_REACH = 1 / 3  # of the distance to the next centre, within which another start finds the same one
_NARROW = 0.25  # longest interval of a cluster, in distances to the next centre
_LOOSE, _LOOSER, _PART = 0.5, 0.8, 0.1  # eigenvalues that move a cluster, and its part in them
_GAP, _NO_CLOUD = 0.6, 0.75  # density between two centres over that at them, of a gap and below one
_SLICE, _FEWEST = 0.12, 30  # thickness of a place between them, in distances; fewest points
_UNSEEN = 0.5  # part of the moves by far records that Lloyd rounds do not show
_LUMP = 0.07  # move by records beyond the box, in distances to the next centre


@dataclass(frozen=True)
class Judgement:
    """Intervals and verdicts of released centres; grid coordinates, a row for each cluster.

    Parameters
    ----------
    half_width : ndarray of shape (n_clusters, n_features)
        Half of the 95 % interval around the released centre.
    verdict : ndarray of shape (n_clusters,)
    """

    half_width: Floats
    verdict: Floats


def judge(
    surrogate: Surrogate,
    centres: Floats,
    *,
    path_std: Floats,
    last_std: Floats,
    moved: Floats,
    unseen_std: Floats,
    size_errors: Floats,
    clear: Flags,
    public_seed: int,
) -> Judgement:
    """Return the intervals of released centres for the fixed point of k-means, and verdicts.

    Parameters
    ----------
    surrogate : Surrogate
        That of the last round, in at most seven columns.
    centres : ndarray of shape (n_clusters, n_features), grid coordinates
    path_std : ndarray of shape (n_clusters,)
        Standard deviation of each cluster's mean in a column, after all rounds.
    last_std : ndarray of shape (n_clusters, n_features)
        The same from the noise of the last round alone.
    moved : ndarray of shape (n_clusters, n_features), >= 0
        Possible moves of the means by records that the surrogate has elsewhere.
    unseen_std : ndarray of shape (n_clusters, n_features)
        Standard deviations of the means by far records within the noise.
    size_errors : ndarray of shape (n_clusters,)
        Relative standard deviations of the sizes.
    clear : ndarray of shape (n_clusters,), bool
        True for a cluster whose size is above the noise.
    public_seed : int
    """
    k = len(centres)
    if centres.size > MOST_COORDINATES or not surrogate.masses.any():
        return Judgement(np.full(centres.shape, 2.0), np.full(k, NOT_DETERMINED))
    rng = public_generator(public_seed, "verdict")
    cloud = _Cloud.drawn(surrogate, centres, rng)
    blurred = _Cloud.drawn(surrogate, centres, rng, _SMOOTH * cloud.spread * ONE)
    response = Response.of(blurred.derivative(), blurred.counts, centres.shape)
    error = np.minimum(path_std[:, None], last_std)
    z = INTERVAL_95["gaussian"]
    # A mean that far records move also moves its borders, and so the other centres.
    variances = error**2 + (_UNSEEN * unseen_std) ** 2 + (moved / z) ** 2
    amplified = response.amplified(variances, _MOST)
    drift = cloud.fixed / ONE - centres
    model = MODEL_ERROR * np.sqrt((z * amplified) ** 2 + drift**2 + moved**2)
    half_width = np.hypot(z * last_std, model)
    near = cloud.distances.min(axis=1)
    holds = clear & cloud.is_found_again(size_errors, rng)
    holds &= np.linalg.norm(half_width, axis=1) < _NARROW * near
    # Records beyond the box are a lump at its end, which would look like a gap before it.
    has_lump = np.linalg.norm(moved, axis=1) > _LUMP * near
    least = np.where(has_lump, 0.0, np.where(response.part(_LOOSE) < _PART, _NO_CLOUD, _GAP))
    is_firm = cloud.density_between() < least
    # In one column the tails of the surrogate are too coarse for a centre without a gap.
    has_numbers = (response.part(_LOOSER) < _PART) & (centres.shape[1] > 1)
    numbers = np.where(has_numbers, NUMBERS_ONLY, NOT_DETERMINED)
    verdict = np.where(is_firm, DETERMINED, numbers)
    return Judgement(half_width, np.where(holds, verdict, NOT_DETERMINED))


@dataclass(frozen=True)
class _Cloud:
    """Public records that are drawn from a surrogate, and their partition by k-means.

    Parameters
    ----------
    points : ndarray of shape (n_points, n_features), steps of the lattice
    fixed : ndarray of shape (n_clusters, n_features), steps of the lattice
        The fixed point of Lloyd's algorithm on them.
    """

    points: Integers
    fixed: Integers

    @classmethod
    def drawn(
        cls, surrogate: Surrogate, centres: Floats, rng: np.random.Generator, blur: float = 0.0
    ) -> _Cloud:
        """Draw points by mass, each moved within its cell of the lattice and by a blur."""
        used = surrogate.masses > 0
        places, masses = surrogate.points[used], surrogate.masses[used]
        chosen = places[rng.choice(len(places), _DRAWN, p=masses / masses.sum())]
        sides = np.array([_spacing(column) for column in places.T])
        moves = rng.uniform(-0.5, 0.5, chosen.shape) * sides
        moves += rng.normal(size=chosen.shape) * blur
        points = np.clip(np.rint(chosen + moves), -ONE, ONE).astype(np.int64)
        return cls(points, _fixed_point(points, on_lattice(centres)))

    @cached_property
    def _two_nearest(self) -> tuple[Integers, Integers, Floats, Floats]:
        """The nearest and the second nearest centre of each point, and both squared distances."""
        apart = squared(np.asfortranarray(self.points)[:, None], self.fixed).astype(np.float64)
        rows = np.arange(len(apart))
        first = apart.argmin(axis=1)
        least = apart[rows, first]
        apart[rows, first] = np.inf
        second = apart.argmin(axis=1)
        return first, second, least, apart[rows, second]

    @property
    def labels(self) -> Integers:
        """The nearest centre of each point."""
        return self._two_nearest[0]

    @cached_property
    def counts(self) -> Integers:
        """Points of each cluster, at least 1."""
        return np.maximum(np.bincount(self.labels, minlength=len(self.fixed)), 1)

    @property
    def spread(self) -> float:
        """Root mean squared difference to the centre in a column, in grid coordinates."""
        return sqrt(self._two_nearest[2].mean() / self.points.shape[1]) / ONE

    @cached_property
    def distances(self) -> Floats:
        """Distances of the centres, in grid coordinates; that of a centre to itself is infinite."""
        apart = np.sqrt(squared(self.fixed[:, None], self.fixed).astype(np.float64)) / ONE
        np.fill_diagonal(apart, np.inf)
        return apart

    def derivative(self) -> Floats:
        """Return the derivative of the clusters' means by their centres.

        If the centre p moves, its border with q moves, too. The integral over a border is the mean
        over a band around it.

        Returns
        -------
        ndarray of shape (n_clusters * n_features, n_clusters * n_features)
        """
        k, d = self.fixed.shape
        if k == 1:  # no second centre, so no border
            return np.zeros((d, d))
        first, second, least, more = self._two_nearest
        apart = self.distances[first, second] * ONE
        # Two equal centres have no border between them.
        depth = (more - least) / (2 * np.maximum(apart, 1))
        band = (depth < _BAND * apart) & (apart >= 1)
        first, second, apart = first[band], second[band], apart[band]
        weights = 1 / (2 * _BAND * apart**2)
        across = (self.fixed[second] - self.fixed[first]) / apart[:, None]
        places = self.points[band] + depth[band, None] * across  # on the border
        result = np.zeros((k, d, k, d))
        for p, q in ((first, second), (second, first)):
            own, other = places - self.fixed[p], places - self.fixed[q]
            for a in range(d):
                for b in range(d):
                    gained = np.bincount(p, weights * own[:, a] * own[:, b], k)
                    lost = np.bincount(p * k + q, weights * own[:, a] * other[:, b], k * k)
                    result[:, a, :, b] += np.diag(gained) - lost.reshape(k, k)
        return result.reshape(k * d, k * d) / np.repeat(self.counts, d)[:, None]

    def is_found_again(self, size_errors: Floats, rng: np.random.Generator) -> Flags:
        """Return True for each cluster that every good k-means of these points has.

        It is False for all clusters if k-means from another start is clearly better. Some starts
        have the points with sizes of clusters that are as likely.
        """
        points, labels = self.points[:_FEWER], self.labels[:_FEWER]
        found = np.ones(len(self.fixed), dtype=bool)
        for world in range(_WORLDS):
            errors = rng.normal(size=len(found)) * size_errors if world else 0 * size_errors
            masses = np.maximum(np.rint(_UNIT * np.exp(errors)), 1).astype(np.int64)[labels]
            found &= self._is_found_in(points, masses, _STARTS if not world else _FEWER_STARTS, rng)
        return found

    def _is_found_in(
        self, points: Integers, masses: Integers, starts: int, rng: np.random.Generator
    ) -> Flags:
        own = lloyd(points, masses, self.fixed, _STEPS)
        near = np.sqrt(squared(own[:, None], own).astype(np.float64))
        np.fill_diagonal(near, np.inf)
        others = [
            lloyd(points, masses, seeded(points, masses, len(own), rng), _STEPS)
            for _ in range(starts)
        ]
        costs = [cost(points, masses, centres) for centres in others]
        if cost(points, masses, own) >= _BEST * min(costs):
            return np.zeros(len(own), dtype=bool)
        good = [c for c, price in zip(others, costs, strict=True) if price <= _ALIKE * min(costs)]
        moves = [np.sqrt(squared(own[:, None], c).astype(np.float64)).min(axis=1) for c in good]
        return np.asarray((np.stack(moves) < _REACH * near.min(axis=1)).all(axis=0))

    def density_between(self) -> Floats:
        """Return the largest density halfway to a neighbour over the lesser density at both.

        Densities are counted in a tube around the line between two centres. The value is 0 without
        a neighbour.

        Returns
        -------
        ndarray of shape (n_clusters,)
        """
        first, second, *_ = self._two_nearest
        k = len(self.fixed)
        members = [np.flatnonzero(first == j) for j in range(k)]
        borders = np.unique(
            np.stack([np.minimum(first, second), np.maximum(first, second)]), axis=1
        )
        worst = np.zeros(k)
        for p, q in borders.T.tolist():
            line = (self.fixed[q] - self.fixed[p]).astype(np.float64)
            length = float(line @ line)
            if length == 0:
                continue
            at = self.points[np.concatenate([members[p], members[q]])] - self.fixed[p]
            along = at @ line / length
            tube = (at**2).sum(axis=1) - along**2 * length < length / 4
            middle, one, other = (
                int((np.abs(along[tube] - place) < _SLICE).sum()) for place in (0.5, 0.0, 1.0)
            )
            if middle + one + other > _FEWEST:
                ratio = middle / max(min(one, other), 1)
                worst[[p, q]] = np.maximum(worst[[p, q]], ratio)
        return worst


@dataclass(frozen=True)
class Response:
    """The derivative of the Lloyd map by its eigenvalues and eigenvectors."""

    eigenvalues: Floats
    vectors: Floats
    scale: Floats  # of each coordinate; scaled by it, the derivative is symmetric
    shape: tuple[int, ...]

    @classmethod
    def of(cls, derivative: Floats, counts: Floats | Integers, shape: tuple[int, ...]) -> Response:
        """Return the response of `counts` records; at a fixed point it is symmetric up to noise.

        Parameters
        ----------
        derivative : ndarray of shape (n_clusters * n_features, n_clusters * n_features)
        counts : ndarray of shape (n_clusters,), > 0
        shape : (n_clusters, n_features)
        """
        scale = np.sqrt(np.repeat(counts / counts.sum(), shape[1]))
        scaled = scale[:, None] * derivative / scale
        values, vectors = np.linalg.eigh((scaled + scaled.T) / 2)
        return cls(values, vectors, scale, shape)

    def move(self, steps: Floats, most: float) -> Floats:
        """Return the moves to the fixed point for the steps of the means; eigenvalues are cut."""
        return np.asarray(self._inverse(most) @ steps.ravel()).reshape(self.shape)

    def amplified(self, variances: Floats, most: float) -> Floats:
        """Return the standard deviation of the fixed point for variances of the means."""
        return np.sqrt(self._inverse(most) ** 2 @ variances.ravel()).reshape(self.shape)

    def _inverse(self, most: float) -> Floats:
        """Return ``(I - J)^-1``; an eigenvalue above `most` counts as that."""
        gains = 1 / (1 - np.minimum(self.eigenvalues, most))
        inverse: Floats = (self.vectors * gains) @ self.vectors.T
        return inverse / self.scale[:, None] * self.scale

    def part(self, above: float) -> Floats:
        """Return each cluster's part in the eigenvectors with eigenvalues above a bound."""
        squares = (self.vectors[:, self.eigenvalues > above] ** 2).sum(axis=1)
        return np.asarray(squares.reshape(self.shape).sum(axis=1))


def _fixed_point(points: Integers, centres: Integers) -> Integers:
    return lloyd(points, np.ones(len(points), dtype=np.int64), centres, _STEPS)


def _spacing(column: Integers) -> float:
    """Return the median distance of neighbouring values, 0 for a single value."""
    values = np.unique(column)
    return float(np.median(np.diff(values))) if len(values) > 1 else 0.0
