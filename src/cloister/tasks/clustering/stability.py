"""Cluster stability by rerunning the plan on records simulated from the release.

The confidence intervals of a clustering cover only the noise of its last round, given the centres
before that round. Here all rounds are repeated many times with independent noise, over records
simulated from the release. The number of records around each centre is its noisy size. The results
are the moves of a centre between two reruns, and the share of reruns that find its cluster. Only
released values are used, so it costs no budget.

References
----------
.. [H07] Hennig, "Cluster-wise assessment of cluster stability", Computational Statistics & Data
   Analysis 52(1), 2007, sections 2 and 3: a cluster is dissolved where no cluster of the new
   clustering has a Jaccard similarity above one half with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import pi, sqrt
from typing import TYPE_CHECKING, Annotated

import numpy as np

from cloister.core.arrays import Flags, Floats, GridState, Integers, Records, State
from cloister.core.declared import Declaration, Range, validate
from cloister.core.display import Estimate, Table, around
from cloister.core.errors import PlanError
from cloister.core.randomness import public_generator
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.tasks.clustering.synopsis import nearest, squared_distances
from cloister.tasks.intervals import above_noise
from cloister.tasks.preparation.pipeline import Pipeline

if TYPE_CHECKING:
    from cloister.app.release import Release
    from cloister.protocol.plan import Plan

N_RUNS = 50
"""Default number of reruns."""

_RUNS = Declaration("n_runs", Annotated[int, Range(2)], N_RUNS)
_NEEDED = {"centres", "sizes", "size_half_width"}
_MOST_RECORDS = 10_000  # simulated records; each represents several of a larger table
_FOUND = 0.5  # Jaccard similarity above which a cluster is the same, [H07]_
_SHARE = 0.95
_OFTEN = 0.5  # share of the reruns below which a cluster is missed more often than found


@dataclass(frozen=True)
class Stability:
    """The moves of each released centre between two reruns, and its share of reruns.

    Parameters
    ----------
    moves : ndarray of shape (n_clusters, n_features), data units
        95 % quantile of the distance in each column between a cluster's centres, over pairs of
        reruns that found it. The width of the column if fewer than half of the reruns found it.
    found : ndarray of shape (n_clusters,), in [0, 1]
        Share of the reruns in which a cluster with mostly the same records is distinct from the
        noise. 0 for a cluster that is not distinct from the noise itself.
    n_runs : int
    """

    moves: Floats
    found: Floats
    n_runs: int

    def in_words(self) -> str:
        """Return a sentence on the clusters that another fit would likely not find again."""
        doubtful = np.flatnonzero(self.found < _OFTEN)
        k, number = len(self.found), len(doubtful)
        if not number:
            return (
                "Every cluster is found again in at least half of the reruns, which does not imply "
                "a gap between them."
            )
        if number == k:
            return (
                "Each cluster is found again in fewer than half of the reruns: treat this as no "
                "clusters found."
            )
        indices = ", ".join(map(str, doubtful.tolist()))
        return (
            f"{number} of {k} clusters ({indices}) {'are' if number > 1 else 'is'} found again in "
            "fewer than half of the reruns: another fit would likely find other clusters."
        )

    def table(self, centres: Floats, columns: tuple[str, ...]) -> Table:
        """Return a table to display; centres of shape (n_clusters, n_features), in data units."""
        moving = around(centres, self.moves)
        rows: tuple[tuple[str | Estimate, ...], ...] = tuple(
            (f"cluster {j}", f"{share:.0%}", *moving[j].cells())
            for j, share in enumerate(self.found)
        )
        return Table(
            "Stability",
            ("cluster", "found again", *columns),
            rows,
            note=f"{self.in_words()} Simulated from the released values, {self.n_runs} reruns of "
            "all rounds with fresh noise. Found again: the share of reruns in which a cluster of "
            "mostly the same records is distinct from the noise. ± bounds the move of the centre "
            "from one rerun to another in 95 of 100 pairs.",
        )


def stability(result: Release, n_runs: int = N_RUNS, *, seed: int = 0) -> Stability:
    """Return the stability of a released clustering by reruns on simulated records.

    Parameters
    ----------
    result : Release
        The release of a k-means task.
    n_runs : int, >= 2
        Number of reruns; each takes about as long as a fit to 10,000 records.
    seed : int
        Seed of the simulation, which protects no records.

    Raises
    ------
    PlanError
        If the result has no centres and sizes in the columns of its plan.

    Notes
    -----
    Records are drawn from normal clusters with the released ``spreads``, if the method has them.
    Otherwise each cluster is as wide as half of a cloud that is cut between two centres. They are
    drawn once, because the records of a real rerun are the same, too. The true clusters may have
    other shapes, or none may exist, so the figures are a forecast and no guarantee.
    """
    validate(_RUNS, n_runs)
    plan, results = result.plan, result.results
    if not results.keys() >= _NEEDED or isinstance(plan.task, Pipeline):
        raise PlanError(
            f"stability requires released centres and sizes in the columns of the plan, got task "
            f"{plan.task.name!r} without them; use a k-means task without steps before it."
        )
    distinct = above_noise(results["sizes"], results["size_half_width"])
    # A cluster within the noise gets the largest move and is never found.
    moves = np.tile(2 * plan.grid.half_range, (len(distinct), 1))
    shares = np.zeros(len(distinct))
    if distinct.any():
        centres = plan.grid.normalise(results["centres"][distinct])
        rng = public_generator(seed, "stability")
        records, weight = _draw(plan, results, distinct, rng)
        reruns = [_centres_of(plan, rerun(plan, records, rng, weight)) for _ in range(n_runs)]
        points = records / plan.grid.one
        matched = [_matched(points, centres, again) for again in reruns]
        places, was_found = (np.stack(column) for column in zip(*matched, strict=True))
        shares[distinct] = was_found.mean(axis=0)
        moves[distinct] = _between_pairs(places, was_found) * plan.grid.half_range
    return Stability(moves, shares, n_runs)


def rerun(
    plan: Plan, records: Records, rng: np.random.Generator, weight: int = 1
) -> Mapping[str, Floats]:
    """Return the results of a plan's rounds over public or simulated records, in data units.

    Parameters
    ----------
    records : ndarray of shape (n_samples, n_features), int32, grid steps
        Never the records of persons, because the noise is simulated.
    weight : int, >= 1
        Number of records that each of them represents.
    """
    task = plan.task
    state = _on_grid(plan, task.start())
    for t in range(plan.rounds):
        exact = task.contribute(t, state, records) * weight
        noised = plan.decode(t, exact + _noise(plan, t, rng))
        state = _on_grid(plan, task.update(t, state, noised))
    return task.results(state, plan.grid)


def _noise(plan: Plan, t: int, rng: np.random.Generator) -> Integers:
    """Return seeded noise of the plan's distribution for a round.

    It is a simulation. Privacy noise comes from the operating system and has no seed; here the
    records are simulated from released values and need no protection.
    """
    drawn = [
        rng.laplace(0, plan.noise_scale(block), block.size)
        if plan.task.mechanism == "laplace"
        else rng.normal(0, plan.noise_std(block), block.size)
        for block in plan.task.blocks(t)
    ]
    return np.rint(np.concatenate(drawn)).astype(np.int64)


def _on_grid(plan: Plan, state: State) -> GridState:
    return {name: round_to_grid(value, plan.task.frac_bits) for name, value in state.items()}


def _draw(
    plan: Plan,
    results: Mapping[str, Floats],
    distinct: Flags,
    rng: np.random.Generator,
) -> tuple[Records, int]:
    """Return records of the released mixture, and the number of records that each represents."""
    centres, sizes = plan.grid.normalise(results["centres"][distinct]), results["sizes"][distinct]
    weight = max(1, round(sizes.sum() / _MOST_RECORDS))
    counts = np.maximum(np.rint(sizes / weight), 1).astype(np.int64)  # no cluster disappears
    spreads = results.get("spreads", np.zeros(1))
    wide = spreads[distinct] / plan.grid.half_range if spreads.any() else _widest(centres)
    middle = np.repeat(centres, counts, axis=0)
    points = middle + rng.normal(size=middle.shape) * np.repeat(wide, counts, axis=0)
    return plan.grid.encode(plan.grid.decode(points)), weight


def _widest(centres: Floats) -> Floats:
    """Return the standard deviation in a column of clusters without gaps between them.

    Each cluster is modelled as half of a normal cloud, cut between it and the nearest other centre.
    For a single cluster it is half the distance to the nearest bound.
    """
    if len(centres) == 1:
        return np.asarray(np.maximum(1 - np.abs(centres).max(axis=1, keepdims=True), 0.0) / 2)
    apart = np.linalg.norm(centres[:, None] - centres[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    # Across the cut, half a normal cloud has the mean sqrt(2 / pi) and the variance 1 - 2 / pi.
    return np.asarray(sqrt(pi / 2 - 1) * apart.min(axis=1, keepdims=True) / 2)


def _centres_of(plan: Plan, results: Mapping[str, Floats]) -> Floats:
    """Return the centres of a rerun that are distinct from its noise, in grid coordinates."""
    distinct = above_noise(results["sizes"], results["size_half_width"])
    return plan.grid.normalise(results["centres"][distinct])


def _matched(points: Floats, centres: Floats, again: Floats) -> tuple[Floats, Flags]:
    """Return the partner of each centre in a rerun, and True if it has mostly the same records."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and seldom used

    partners, found = centres.copy(), np.zeros(len(centres), dtype=bool)
    if not len(again):
        return partners, found
    old, new = linear_sum_assignment(squared_distances(centres, again))  # the Hungarian method
    both = np.zeros((len(centres), len(again)))
    np.add.at(both, (nearest(points, centres)[0], nearest(points, again)[0]), 1.0)
    union = both.sum(axis=1)[old] + both.sum(axis=0)[new] - both[old, new]
    partners[old], found[old] = again[new], both[old, new] > _FOUND * union
    return partners, found


def _between_pairs(places: Floats, was_found: Flags) -> Floats:
    """Return the 95 % quantile of distances between reruns that found a cluster, by column.

    It is the width of the box for a cluster that fewer than half of the reruns found.
    """
    moves = np.full(places.shape[1:], 2.0)
    for j in np.flatnonzero(was_found.mean(axis=0) >= _FOUND):
        positions = places[was_found[:, j], j]
        first, second = np.triu_indices(len(positions), 1)
        moves[j] = np.quantile(np.abs(positions[first] - positions[second]), _SHARE, axis=0)
    return moves
