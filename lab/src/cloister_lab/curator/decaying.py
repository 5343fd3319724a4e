"""``DecayingLloyd``: Lloyd whose rounds cost half as much as the one before.

References
----------
.. [D11] Dwork, "A Firm Foundation for Private Data Analysis", Communications of the ACM 54(1),
   2011.
.. [SCLBJ16] Su, Cao, Li, Bertino, Jin, "Differentially Private K-Means Clustering", CODASPY 2016.
"""

from __future__ import annotations

from functools import cached_property
from math import ceil
from typing import ClassVar, Self

import numpy as np

from cloister.core.declared import Positive, Whole, declared
from cloister.hazmat.fixedpoint import from_grid, round_to_grid
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import laplace_noise_multiplier
from cloister.privacy.events import ComposedEvent, Event, LaplaceEvent
from cloister.privacy.noise import NoiseSource
from cloister.protocol.task import Floats, NoisyBlock, Records
from cloister.tasks.clustering.kmeans import MAX_ROUNDS, SuLloyd
from cloister.tasks.options import require_budget


@declared
class DecayingLloyd:
    """SuLloyd with half of epsilon for the first round, a quarter for the second [D11]_.

    Parameters
    ----------
    epsilon : float
        Of all rounds that could follow each other; ``2 ** -rounds`` of it is left.

    Notes
    -----
    Add/remove one record: as SuLloyd in each round. The paper lets a user stop when the centres no
    longer move; here seven rounds are run, the most that SuLloyd runs. Its sums could be
    federated; it stands here because it is for comparison only.
    """

    name: ClassVar[str] = "decaying"
    private: ClassVar[bool] = True

    n_clusters: Whole
    n_features: Whole
    epsilon: Positive
    rounds: Whole = MAX_ROUNDS
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
        """Take the epsilon of the budget; delta is not spent."""
        return cls(
            n_clusters=n_clusters,
            n_features=n_features,
            epsilon=require_budget(budget).epsilon,
            frac_bits=frac_bits,
            public_seed=public_seed,
        )

    def describe(self) -> str:
        """Say in plain words what is released."""
        return (
            f"{self.rounds} rounds of k-means with {self.n_clusters} clusters: in each, the sum "
            "and the number of the records nearest to each centre are released with Laplace "
            "noise, which is twice as large in each next round."
        )

    def events(self) -> Event:
        """Return one Laplace mechanism a round."""
        return ComposedEvent(tuple(map(LaplaceEvent, self._multipliers)))

    def release(self, records: Records, noise: NoiseSource) -> Floats:
        """Return centres in ``[-1, 1]^d``; see :class:`CuratorMethod`."""
        lloyd, (block,) = self._lloyd, self._lloyd.blocks(0)
        centres = lloyd.start()["centres"]
        for t, multiplier in enumerate(self._multipliers):
            state = {"centres": round_to_grid(centres, self.frac_bits)}
            total = lloyd.contribute(t, state, records)
            scale = ceil(multiplier * block.l1)
            total += noise.draw("laplace", scale, block.size)
            released = NoisyBlock(total.reshape(block.shape), float(np.sqrt(2.0) * scale))
            centres = lloyd.update(t, state, {"sums": released})["centres"]
        return from_grid(round_to_grid(centres, self.frac_bits), self.frac_bits)

    @property
    def _multipliers(self) -> tuple[float, ...]:
        """Laplace scale over L1 sensitivity, in each round."""
        return tuple(
            laplace_noise_multiplier(self.epsilon / 2 ** (t + 1)) for t in range(self.rounds)
        )

    @cached_property
    def _lloyd(self) -> SuLloyd:
        """The rounds."""
        return SuLloyd(
            n_clusters=self.n_clusters,
            n_features=self.n_features,
            rounds=self.rounds,
            frac_bits=self.frac_bits,
            public_seed=self.public_seed,
        )
