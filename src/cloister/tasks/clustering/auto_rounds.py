"""Common parts of the routes of `auto`: public numbers, centres, and clipped Lloyd rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import isqrt, sqrt
from typing import Any, ClassVar, TypeVar

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records
from cloister.protocol.task import INTERVAL_95, Block, NoisyBlock, Rows
from cloister.tasks.clipped import clip_to_unit, sum_clipped_near
from cloister.tasks.clustering.clusters import Centres, unknown
from cloister.tasks.clustering.lloyd_kernel import nearest_centres
from cloister.tasks.intervals import ratio_interval, size_interval

_NU, _SLOW, _FAST = 0.05, 0.2, 0.4  # radius of Lloyd rounds against their noise
_UNDER = 0.95
LLOYD_RELEASES = (
    "then, in several rounds, the count of each cluster and the sum of the clipped differences of "
    "its records to its centre"
)


@dataclass(frozen=True)
class Route:
    """The public numbers of a route, those of :class:`.auto.Auto`."""

    judges: ClassVar[bool] = False
    """True if the last state has an interval of each centre for k-means on all records."""

    n_clusters: int
    n_features: int
    nominal_n: int
    mu: float
    frac_bits: int
    public_seed: int

    @property
    def numbers(self) -> dict[str, Any]:
        """The fields of this class."""
        return {field.name: getattr(self, field.name) for field in fields(Route)}

    @property
    def one(self) -> int:
        """Steps of the grid in 1; a record adds as many to a cell."""
        return 1 << self.frac_bits

    def noise_std(self, share: float) -> float:
        """Return the noise of a release with a share of the budget, in units of sensitivity."""
        # Shares divide the squared GDP parameter, so that they add up over releases.
        return 1 / (self.mu * sqrt(share))


@dataclass(frozen=True)
class MovingCentres(Centres):
    """Centres with the inputs of a Lloyd round: counts, their noise, and radii."""

    counts: Floats
    counts_std: Floats
    radii: Floats


_Moving = TypeVar("_Moving", bound=MovingCentres)


def still(n_clusters: int, n_features: int) -> dict[str, Any]:
    """Return the fields of :class:`MovingCentres` before any release."""
    zeros = dict.fromkeys(("counts", "counts_std", "radii"), np.zeros(n_clusters))
    return {**unknown(n_clusters, n_features), **zeros}


def placed(
    known: _Moving, centres: Floats, counts: Floats, cells: Floats, noise_std: float
) -> _Moving:
    """Return the centres of a histogram; each count is a sum of `cells` noisy counts."""
    counts_std = noise_std * np.sqrt(cells)
    return replace(
        known,
        centres=np.clip(centres, -1, 1),
        counts=counts,
        counts_std=counts_std,
        sizes=counts,
        size_half_width=INTERVAL_95["gaussian"] * counts_std,
    )


def growing(share: float, growth: float, rounds: int) -> tuple[float, ...]:
    """Split a share into rounds; each share is `growth` times the previous one."""
    weights = [growth**t for t in range(rounds)]
    return tuple(share * weight / sum(weights) for weight in weights)


def stretch_of(route: Route, n_centres: int, share: float) -> float:
    """Return the radius of a Lloyd round in root mean square distances to a centre."""
    # Clipping biases the means and reduces the noise, so less noise permits less clipping.
    noise = n_centres * sqrt(route.n_features) * route.noise_std(share) / route.nominal_n
    stretch = float((_NU / noise) ** (_FAST if noise < _NU else _SLOW))
    return min(max(stretch, 0.5), 3.0)


def unclipped(stretch: float) -> float:
    """Return the assumed share of a difference that clipping leaves."""
    return min(_UNDER, _UNDER * stretch)


def unit_block(name: str, shape: tuple[int, ...], one: int, share: float) -> Block:
    """Return a block to one row of which a record adds a vector of norm at most one unit."""
    # An L1 norm is at most the root of the length times the L2 norm.
    return Block(name, shape, isqrt(shape[-1] * one**2), one**2, share)


def lloyd_blocks(route: Route, share: float, count_part: float) -> tuple[Block, ...]:
    """Return the blocks of a Lloyd round; a record changes one row of each by one unit."""
    shape = (route.n_clusters, route.n_features)
    return (
        unit_block("sums", shape, route.one, share * (1 - count_part)),
        Block.counting("counts", shape[:1], share * count_part, one=route.one),
    )


def lloyd_contribution(state: GridState, records: Records, one: int) -> Integers:
    """Return the elements of a Lloyd round."""
    radii = np.maximum(state["radii"], 1)  # a radius may round to 0 on the grid
    sums, counts = sum_clipped_near(records, state["centres"], radii, one)
    return np.concatenate([sums.ravel(), counts * one])


def lloyd_rows(state: GridState, records: Records, one: int) -> tuple[Rows, Rows]:
    """Return the clipped difference of each record to its centre, and its count."""
    # The same exact assignment as in `lloyd_contribution`: the core compares the two.
    labels = nearest_centres(records, state["centres"])
    radii = np.maximum(state["radii"], 1)[labels]
    values = clip_to_unit(records - state["centres"][labels], radii, one)
    return Rows(labels * values.shape[1], values), Rows.at([labels], [one])


def read_lloyd(
    route: Route, known: _Moving, released: Mapping[str, NoisyBlock], floor: float
) -> tuple[_Moving, Floats, float]:
    """Merge released counts with the previous counts, and compute intervals and sizes.

    Parameters
    ----------
    known : MovingCentres
        The state before the round.
    floor : float
        Minimum of a merged count, in standard deviations of its noise.

    Returns
    -------
    state : MovingCentres
        With the intervals, sizes and merged counts of this round; the centres are those before it.
    sums : ndarray of shape (n_clusters, n_features), in units of each cluster's radius
    sum_std : float
        Standard deviation of the noise in each of the sums.
    """
    sums, sum_std = released["sums"].in_records(route.frac_bits)
    fresh, count_std = released["counts"].in_records(route.frac_bits)
    radii = np.maximum(known.radii, 1 / route.one)[:, None]
    low, high = ratio_interval(
        sums * radii,
        fresh,
        sum_std=sum_std * radii,
        count_std=count_std,
        origin=known.centres,
    )
    # Independent estimates are merged by their precision. A standard deviation of 0 is a rounded
    # one, so a step of the grid replaces it.
    before = 1 / np.maximum(known.counts_std, 1 / route.one) ** 2
    precision = before + 1 / count_std**2
    merged = (known.counts * before + fresh / count_std**2) / precision
    after = replace(
        known,
        counts=np.maximum(merged, floor * count_std),
        counts_std=1 / np.sqrt(precision),
        low=low,
        high=high,
        sizes=fresh,
        size_half_width=np.full(len(fresh), size_interval(count_std)),
    )
    return after, sums, sum_std
