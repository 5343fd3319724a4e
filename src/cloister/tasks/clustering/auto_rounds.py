"""The rounds that `auto`'s three routes share: clipped relative Lloyd, and where its steps end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np

from cloister.hazmat.fixedpoint import from_grid
from cloister.task import Block, Floats, GridState, Integers, Records, Released
from cloister.tasks.clipped import sum_clipped_near
from cloister.tasks.intervals import ratio_interval, size_interval


@dataclass(frozen=True)
class LloydStep:
    """What a clipped Lloyd round released, in units of each cluster's radius.

    Parameters
    ----------
    sums : ndarray of shape (n_clusters, n_features)
    sum_std : float
    counts : ndarray of shape (n_clusters,)
        Merged with what was known before, at least a part of the noise.
    counts_std : ndarray of shape (n_clusters,)
    shown : mapping
        Sizes and intervals of this round, for people.
    """

    sums: Floats
    sum_std: float
    counts: Floats
    counts_std: Floats
    shown: Mapping[str, Any]


def lloyd_blocks(
    n_clusters: int, n_features: int, one: int, share: float, count_part: float
) -> tuple[Block, ...]:
    """Return the two blocks of a Lloyd round: a record touches one row of each, by one unit."""
    return (
        unit_block("sums", (n_clusters, n_features), one, share * (1 - count_part)),
        cell_block("counts", n_clusters, one, share * count_part),
    )


def unit_block(name: str, shape: tuple[int, ...], one: int, share: float) -> Block:
    """Return a block in one row of which a record adds a vector of norm at most one unit."""
    return Block(name, shape, isqrt(shape[-1] * one**2), one**2, share)


def cell_block(name: str, size: int, one: int, share: float) -> Block:
    """Return a block in one word of which a record adds one unit."""
    return Block(name, (size,), one, one**2, share)


def lloyd_contribution(state: GridState, records: Records, one: int) -> Integers:
    """Return the words of a Lloyd round."""
    radii = np.maximum(state["radii"], 1)
    sums, counts = sum_clipped_near(records, state["centres"], radii, one)
    return np.concatenate([sums.ravel(), counts * one])


def read_lloyd(
    known: MovingCentres, released: Mapping[str, Released], frac_bits: int, floor: float
) -> LloydStep:
    """Merge released counts with what was known, and work out what people are shown.

    Parameters
    ----------
    known : MovingCentres
        Before the round.
    released : mapping
    frac_bits : int
    floor : float
        Counts are at least so many of their noise's standard deviations.
    """
    one = 1 << frac_bits
    sums = from_grid(released["sums"].values, frac_bits)
    fresh = from_grid(released["counts"].values, frac_bits)
    sum_std = released["sums"].noise_std / one
    count_std = released["counts"].noise_std / one
    radii = np.maximum(known.radii, 1 / one)[:, None]
    low, high = ratio_interval(
        sums * radii,
        fresh,
        sum_std=sum_std * radii,
        count_std=count_std,
        origin=known.centres,
    )
    precision = 1 / np.maximum(known.counts_std, 1 / one) ** 2
    merged = (known.counts * precision + fresh / count_std**2) / (precision + 1 / count_std**2)
    return LloydStep(
        sums,
        sum_std,
        np.maximum(merged, floor * count_std),
        1 / np.sqrt(precision + 1 / count_std**2),
        {
            "low": low,
            "high": high,
            "sizes": fresh,
            "size_half_width": np.full(len(fresh), size_interval(count_std)),
        },
    )


@dataclass(frozen=True)
class Centres:
    """Centres with their intervals and sizes; grid coordinates, a row for each cluster."""

    centres: Floats
    low: Floats
    high: Floats
    sizes: Floats
    size_half_width: Floats


@dataclass(frozen=True)
class MovingCentres(Centres):
    """Centres with what a Lloyd round must know: counts, their noise, and radii."""

    counts: Floats
    counts_std: Floats
    radii: Floats


def unknown(n_clusters: int, n_features: int) -> dict[str, Any]:
    """Return :class:`Centres` by name: in the middle of the box, and nothing is known of them."""
    shape = (n_clusters, n_features)
    return {
        "centres": np.zeros(shape),
        "low": np.full(shape, -1.0),
        "high": np.full(shape, 1.0),
        "sizes": np.zeros(n_clusters),
        "size_half_width": np.zeros(n_clusters),
    }


def still(n_clusters: int, n_features: int) -> dict[str, Any]:
    """Return :class:`MovingCentres` by name, of which nothing is known."""
    zeros = np.zeros(n_clusters)
    counts = {"counts": zeros, "counts_std": zeros, "radii": zeros}
    return {**unknown(n_clusters, n_features), **counts}


def growing(share: float, growth: float, rounds: int) -> tuple[float, ...]:
    """Split a share into rounds, each larger than the one before by a factor."""
    parts = [growth**t for t in range(rounds)]
    return tuple(share * part / sum(parts) for part in parts)
