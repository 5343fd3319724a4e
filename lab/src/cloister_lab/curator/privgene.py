"""``PrivGene``: centres by a genetic search whose choices are noisy.

References
----------
.. [ZXYZW13] Zhang, Xiao, Yang, Zhang, Winslett, "PrivGene: Differentially Private Model Fitting
   Using Genetic Algorithms", SIGMOD 2013. Its abstract was read, its method as [SCLBJ16]_ tells it.
.. [SCLBJ16] Su, Cao, Li, Bertino, Jin, "Differentially Private K-Means Clustering", CODASPY 2016.
.. [DR14] Dwork, Roth, "The Algorithmic Foundations of Differential Privacy", 2014, section 3.3.
"""

from __future__ import annotations

from math import ceil
from typing import ClassVar, Self

import numpy as np

from cloister.core.declared import Positive, Whole, declared
from cloister.core.randomness import public_generator
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import laplace_noise_multiplier
from cloister.privacy.events import ComposedEvent, Event, LaplaceEvent
from cloister.privacy.noise import NoiseSource
from cloister.protocol.task import Floats, Integers, Records
from cloister.tasks.options import require_budget

_POPULATION, _CHOSEN, _GENERATIONS = 200, 10, 8
_COST_BITS = 8  # coordinates are cut to multiples of 2**-8 for the costs of candidates
_ROWS = 1 << 16  # records whose distances are held at a time


@declared
class PrivGene:
    """The best of many candidates, of which a few are chosen in each generation [ZXYZW13]_.

    Parameters
    ----------
    generations, chosen : int
        So many times, so many candidates are chosen from the population of 200; at the end, one.
    noise_multiplier : float
        Laplace scale of a cost, over what one record adds to it at most.

    Notes
    -----
    Add/remove one record: the cost of a candidate is the sum of squared distances to its nearest
    centre, which one record changes in one direction, by at most the squared diagonal of the box.
    Choosing the least noisy cost then costs what one Laplace release costs [DR14]_. Costs are exact
    integers. Children cross two parents at a public place and move by a public step that gets
    smaller; the published enhanced mechanism, which needs a bound on the gain of a child over its
    parent, is not used.
    """

    name: ClassVar[str] = "privgene"
    private: ClassVar[bool] = True

    n_clusters: Whole
    n_features: Whole
    noise_multiplier: Positive
    generations: Whole = _GENERATIONS
    chosen: Whole = _CHOSEN
    frac_bits: int = 16
    public_seed: int = 0

    @classmethod
    def design(
        cls,
        *,
        n_clusters: int,
        n_features: int,
        nominal_n: int,
        budget: Budget | None,
        frac_bits: int = 16,
        public_seed: int = 0,
    ) -> Self:
        """Give each choice the same epsilon; delta is not spent."""
        choices = _GENERATIONS * _CHOSEN + 1
        return cls(
            n_clusters=n_clusters,
            n_features=n_features,
            noise_multiplier=laplace_noise_multiplier(require_budget(budget).epsilon / choices),
            frac_bits=frac_bits,
            public_seed=public_seed,
        )

    def describe(self) -> str:
        """Say in plain words what is released."""
        return (
            f"{self.generations} times, {self.chosen} of {_POPULATION} sets of "
            f"{self.n_clusters} centres are chosen, those with small distances to the records "
            "being more likely, and crossed. The best set, chosen in the same way, is released."
        )

    def events(self) -> Event:
        """Return one Laplace mechanism for each choice."""
        choices = self.generations * self.chosen + 1
        return ComposedEvent((LaplaceEvent(self.noise_multiplier),) * choices)

    def release(self, records: Records, noise: NoiseSource) -> Floats:
        """Return centres in ``[-1, 1]^d``; see :class:`CuratorMethod`."""
        values = records.astype(np.int64) >> (self.frac_bits - _COST_BITS)
        rng = public_generator(self.public_seed, self.name)
        population = rng.uniform(-1, 1, (_POPULATION, self.n_clusters, self.n_features))
        for generation in range(self.generations):
            costs = costs_of(values, population)
            parents = population[self._choose(costs, self.chosen, noise)]
            population = children(parents, 2.0**-generation, rng)
        best: Floats = population[self._choose(costs_of(values, population), 1, noise)[0]]
        return best

    def _choose(self, costs: Integers, size: int, noise: NoiseSource) -> list[int]:
        """Return candidates with the least noisy costs, each under fresh noise, none twice."""
        scale = ceil(self.noise_multiplier * most_of_one_record(self.n_features))
        left = list(range(len(costs)))
        chosen: list[int] = []
        for _ in range(size):
            noisy = costs[left] + noise.draw("laplace", scale, len(left))
            chosen.append(left.pop(int(noisy.argmin())))
        return chosen


def most_of_one_record(n_features: int) -> int:
    """Return the squared diagonal of the box, in squared steps of ``2**-8``."""
    return n_features * (2 << _COST_BITS) ** 2


def costs_of(values: Integers, population: Floats) -> Integers:
    """Return the sum of squared distances of records to the nearest centre of each candidate.

    Parameters
    ----------
    values : ndarray of shape (n_samples, n_features), in steps of ``2**-8``
    population : ndarray of shape (n_candidates, n_clusters, n_features), in ``[-1, 1]``
    """
    centres = np.rint(population * (1 << _COST_BITS)).astype(np.int64)
    costs = np.zeros(len(centres), dtype=np.int64)
    for first in range(0, len(values), _ROWS):
        part = values[first : first + _ROWS]
        norms = (part**2).sum(axis=1)
        for index, candidate in enumerate(centres):
            # Products of whole numbers below 2**53: floats are exact, and much faster.
            inner = (part.astype(np.float64) @ candidate.T.astype(np.float64)).astype(np.int64)
            costs[index] += (norms + ((candidate**2).sum(axis=1) - 2 * inner).min(axis=1)).sum()
    return costs


def children(parents: Floats, step: float, rng: np.random.Generator) -> Floats:
    """Cross random pairs of parents at a random centre, and move one coordinate of each child."""
    pairs = rng.integers(0, len(parents), (_POPULATION, 2))
    cuts = rng.integers(0, parents.shape[1] + 1, _POPULATION)
    left = (np.arange(parents.shape[1]) < cuts[:, None])[:, :, None]
    born = np.where(left, parents[pairs[:, 0]], parents[pairs[:, 1]])
    rows = np.arange(_POPULATION)
    of = (
        rng.integers(0, parents.shape[1], _POPULATION),
        rng.integers(0, parents.shape[2], _POPULATION),
    )
    born[rows, *of] += rng.uniform(-step, step, _POPULATION)
    born[: len(parents)] = parents  # the best so far may stay
    moved: Floats = np.clip(born, -1.0, 1.0)
    return moved
