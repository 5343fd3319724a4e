"""Would the same clusters come out again? A plan rerun on records made from its released values.

The confidence intervals of a clustering speak of the noise of its last round alone, given the
centres which that round started from. Here all rounds run again, many times, each with noise of its
own, over records drawn from what was released: as many around each centre as its noisy size says.
How far a centre moves between two such reruns, and how often its cluster is found at all, is then
counted. Nothing but released values goes in, so it costs no budget.

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
from cloister.core.display import Table
from cloister.core.errors import PlanError
from cloister.core.estimate import Estimate, around
from cloister.core.randomness import public_generator
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.tasks.clustering.synopsis import nearest, squared_distances
from cloister.tasks.intervals import above_noise
from cloister.tasks.preparation.pipeline import Pipeline

if TYPE_CHECKING:
    from cloister.app.release import Release
    from cloister.protocol.plan import Plan

N_RUNS = 50
"""Reruns, unless another number is asked for."""

_RUNS = Declaration("n_runs", Annotated[int, Range(2)], N_RUNS)
_NEEDED = {"centres", "sizes", "size_half_width"}
_MOST_RECORDS = 10_000  # that are drawn; of a larger table each stands for several
_FOUND = 0.5  # Jaccard similarity above which a cluster is the same, [H07]_
_SHARE = 0.95
_OFTEN = 0.5  # of the reruns: less often, and a cluster is rather missed than found


@dataclass(frozen=True)
class Stability:
    """How far each released centre moves between two reruns, and how often it is found.

    Parameters
    ----------
    moves : ndarray of shape (n_clusters, n_features), data units
        In 95 of 100 pairs of reruns that found a cluster its two centres are at most so far from
        each other in each column; the width of the column where fewer than half found it.
    found : ndarray of shape (n_clusters,), in [0, 1]
        Share of the reruns in which a cluster with mostly the same records stands out of the
        noise. 0 for a cluster that does not do so itself.
    n_runs : int
    """

    moves: Floats
    found: Floats
    n_runs: int

    def in_words(self) -> str:
        """Say which clusters another fit would likely not show again."""
        doubtful = np.flatnonzero(self.found < _OFTEN)
        k, number = len(self.found), len(doubtful)
        if not number:
            return (
                "Every cluster comes out again in at least half of the reruns, which is no sign of "
                "a gap between them."
            )
        if number == k:
            return (
                "Each cluster comes out again in fewer than half of the reruns: take it that none "
                "was found."
            )
        places = ", ".join(map(str, doubtful.tolist()))
        return (
            f"{number} of {k} clusters ({places}) {'come' if number > 1 else 'comes'} out again in "
            "fewer than half of the reruns: another fit would likely show others instead."
        )

    def table(self, centres: Floats, columns: tuple[str, ...]) -> Table:
        """Return a table for people; centres of shape (n_clusters, n_features), in data units."""
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
            "all rounds with fresh noise. Found again: in how many of them a cluster of mostly the "
            "same records stands out of the noise. ± is how far the centre moves from one rerun to "
            "another in 95 of 100 pairs.",
        )


def stability(result: Release, n_runs: int = N_RUNS, *, seed: int = 0) -> Stability:
    """Rerun a released clustering on records made from it, and see what comes out again.

    Parameters
    ----------
    result : Release
        Of a k-means task.
    n_runs : int, >= 2
        Each takes about as long as a fit to 10,000 records.
    seed : int
        Of what is drawn here, which protects nothing.

    Raises
    ------
    PlanError
        If the result has no centres and sizes in the columns of its plan.

    Notes
    -----
    Records are drawn from normal clusters: of the released width where a method has ``spreads``,
    else as wide as halves of one cloud that was cut between two centres. They are drawn once, as
    the records of a real rerun are the same, too. The truth may have other shapes than this
    mixture, or no clusters at all: take the figures for a forecast and not for a guarantee.
    """
    validate(_RUNS, n_runs)
    plan, found = result.plan, result.results
    if not found.keys() >= _NEEDED or isinstance(plan.task, Pipeline):
        raise PlanError(
            f"stability needs released centres and sizes in the columns of the plan, and task "
            f"{plan.task.name!r} has none; use a k-means task without steps before it."
        )
    stands_out = above_noise(found["sizes"], found["size_half_width"])
    moves = np.tile(2 * plan.grid.half_range, (len(stands_out), 1))
    shares = np.zeros(len(stands_out))
    if stands_out.any():
        centres = plan.grid.normalise(found["centres"][stands_out])
        rng = public_generator(seed, "stability")
        records, weight = _draw(plan, found, stands_out, rng)
        reruns = [_centres_of(plan, rerun(plan, records, rng, weight)) for _ in range(n_runs)]
        points = records / plan.grid.one
        matched = [_matched(points, centres, again) for again in reruns]
        places, was_found = (np.stack(part) for part in zip(*matched, strict=True))
        shares[stands_out] = was_found.mean(axis=0)
        moves[stands_out] = _between_pairs(places, was_found) * plan.grid.half_range
    return Stability(moves, shares, n_runs)


def rerun(
    plan: Plan, records: Records, rng: np.random.Generator, weight: int = 1
) -> Mapping[str, Floats]:
    """Return the results of a plan's rounds over public or simulated records, in data units.

    Parameters
    ----------
    records : ndarray of shape (n_samples, n_features), int32, grid steps
        Never those of people: the noise is simulated.
    weight : int, >= 1
        How many records each stands for.
    """
    task = plan.task
    state = _on_grid(plan, task.start())
    for t in range(plan.rounds):
        exact = task.contribute(t, state, records) * weight
        noised = plan.decode(t, exact + _noise(plan, t, rng))
        state = _on_grid(plan, task.update(t, state, noised))
    return task.results(state, plan.grid)


def _noise(plan: Plan, t: int, rng: np.random.Generator) -> Integers:
    """Return noise of the plan's law for a round.

    This is no privacy noise, which comes from the operating system and has no seed: the records
    are made from released values, and there is nobody to protect.
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
    found: Mapping[str, Floats],
    stands_out: Flags,
    rng: np.random.Generator,
) -> tuple[Records, int]:
    """Return records of the released mixture, and how many each stands for."""
    centres, sizes = plan.grid.normalise(found["centres"][stands_out]), found["sizes"][stands_out]
    weight = max(1, round(sizes.sum() / _MOST_RECORDS))
    counts = np.maximum(np.rint(sizes / weight), 1).astype(np.int64)
    spreads = found.get("spreads", np.zeros(1))
    wide = spreads[stands_out] / plan.grid.half_range if spreads.any() else _widest(centres)
    middle = np.repeat(centres, counts, axis=0)
    points = middle + rng.normal(size=middle.shape) * np.repeat(wide, counts, axis=0)
    return plan.grid.encode(plan.grid.decode(points)), weight


def _widest(centres: Floats) -> Floats:
    """Return the standard deviation in a column of clusters that have no gap between them.

    As if each were half of a normal cloud that was cut between it and the nearest other centre; of
    a single cluster, half the way to the nearest bound.
    """
    if len(centres) == 1:
        return np.asarray(np.maximum(1 - np.abs(centres).max(axis=1, keepdims=True), 0.0) / 2)
    apart = np.linalg.norm(centres[:, None] - centres[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    # half a normal cloud has its mean at sqrt(2 / pi) and the variance 1 - 2 / pi across the cut
    return np.asarray(sqrt(pi / 2 - 1) * apart.min(axis=1, keepdims=True) / 2)


def _centres_of(plan: Plan, results: Mapping[str, Floats]) -> Floats:
    """Return the centres of a rerun that stand out of its noise, in grid coordinates."""
    stands_out = above_noise(results["sizes"], results["size_half_width"])
    return plan.grid.normalise(results["centres"][stands_out])


def _matched(points: Floats, centres: Floats, again: Floats) -> tuple[Floats, Flags]:
    """Return the partner of each centre in a rerun, and whether it has mostly the same records."""
    from scipy.optimize import linear_sum_assignment

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
    """Return 95 % of the distances between pairs of reruns that found a cluster, by column.

    A cluster that was not found in half of them has the box: no rerun says where it is.
    """
    moves = np.full(places.shape[1:], 2.0)
    for j in np.flatnonzero(was_found.mean(axis=0) >= _FOUND):
        where = places[was_found[:, j], j]
        first, second = np.triu_indices(len(where), 1)
        moves[j] = np.quantile(np.abs(where[first] - where[second]), _SHARE, axis=0)
    return moves
