"""Openings of results: exact without a guarantee, or private by noise on shares.

Each server adds a separate draw to its share of a sum that is never opened. A server knows its own
draw only; the dealer and receivers know neither. So for each of them, alone or with a receiver, an
unknown draw provides the whole noise. The draws of two honest servers add up to sqrt(2) times the
charged noise.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isqrt, sqrt
from typing import Annotated

import numpy as np

from cloister.core.declared import AtLeastZero, Probability, Range, declared
from cloister.core.errors import PlanError
from cloister.hazmat.discrete import MAX_SCALE
from cloister.hazmat.ring import Words
from cloister.privacy.calibration import (
    gaussian_noise_multiplier,
    lattice_noise_multiplier,
    lattice_sigma,
)
from cloister.privacy.events import Event, GaussianEvent, RepeatedEvent
from cloister.shares.mpc.program import Opening, Program
from cloister.shares.mpc.server import Server

MARKS: Mapping[Opening, str] = {
    "label": "the answer to a query: it discloses nothing else, but it is not a private release.",
    "exact": "EXACT: a function of the records without noise, which is NOT a private release.",
    "private": "private: noise was added on the shares, and each owner's ledger was charged.",
}
"""The text next to a result wherever it is displayed."""


@dataclass(frozen=True)
class NoiseOnShares:
    """Gaussian noise for sums that stay on shares, and the cost of all its rounds.

    Proof: docs/proofs/training-on-shares.md. The dealer together with either server sees
    everything, including the noise of that server. The guarantee of the release then depends on the
    other server's draw.

    Parameters
    ----------
    epsilon, delta : float
        For all rounds together, for neighbours that differ by one additional unit.
    rounds : int, >= 1
    record_squared : int
        Largest squared L2 norm, in lattice steps, of one record's contribution to a round.
    records : int, >= 1
        Largest number of records of one unit: its rows at a silo times its silos.

    Raises
    ------
    PlanError
        If the budget is invalid, or the noise exceeds the largest scale of the sampler.
    """

    epsilon: float
    delta: float
    rounds: int
    record_squared: int
    records: int = 1

    def __post_init__(self) -> None:
        if self.sigma > MAX_SCALE:
            raise PlanError(
                f"noise on shares must be at most 2^{MAX_SCALE.bit_length() - 1} lattice steps, "
                f"got {self.sigma:.3g}; take a larger epsilon, fewer rounds or fewer rows a unit."
            )

    @cached_property
    def sensitivity(self) -> int:
        """Largest L2 norm of one unit's contribution, lattice steps, rounded up."""
        return self.records * (isqrt(self.record_squared - 1) + 1)

    @cached_property
    def sigma(self) -> int:
        """Parameter of each server's discrete Gaussian draw, lattice steps."""
        multiplier = gaussian_noise_multiplier(self.epsilon, self.delta)
        return lattice_sigma(multiplier * sqrt(self.rounds), self.sensitivity)

    @property
    def released_sigma(self) -> float:
        """Standard deviation of the noise of both servers together, lattice steps."""
        return sqrt(2) * self.sigma

    def event(self) -> RepeatedEvent:
        """Return the cost of all rounds, with the noise of one server only."""
        # The other server may be corrupted and know its own draw.
        worth = lattice_noise_multiplier(self.sigma, self.sensitivity)
        return RepeatedEvent(GaussianEvent(worth), self.rounds)

    def add(self, server: Server, sums: Words) -> Words:
        """Return shares of sums plus noise, without a round: each server adds its draw.

        The sum is modulo 2^64, before any truncation, so all later steps are post-processing,
        including overflow.
        """
        drawn = server.noise.draw("gaussian", self.sigma, sums.size)
        return sums + drawn.view(np.uint64).reshape(sums.shape)


@declared
class Budgeted(Program):
    """A program with noise on the shares if it has a budget, and an exact opening otherwise."""

    epsilon: Annotated[AtLeastZero, "of the whole run; 0 for an exact opening"] = 0.0
    delta: Probability = 1e-6
    max_rows: Annotated[int, Range(1, 1 << 20), "the most rows of one unit at a silo"] = 1
    max_silos: Annotated[int, Range(1, 1 << 20), "the most silos that one unit is at"] = 1

    @property
    @abstractmethod
    def _noised(self) -> tuple[int, int]:
        """Number of rounds with noise, and `record_squared` of :class:`NoiseOnShares`."""

    @cached_property
    def noise(self) -> NoiseOnShares | None:
        """The noise that each server adds to each of these sums; None for an exact opening."""
        # 0 is the default: a budget must be a decision of the owners.
        if not self.epsilon:
            return None
        # Sensitivities of a unit's records add up, in all silos together.
        unit = self.max_rows * self.max_silos
        return NoiseOnShares(self.epsilon, self.delta, *self._noised, unit)

    @property
    def opening(self) -> Opening:
        """The opening: "private" with a budget, else "exact"."""
        return "private" if self.noise else "exact"

    def event(self) -> Event | None:
        """Return the charge of the run to each owner's ledger; None for an exact opening."""
        return self.noise.event() if self.noise else None

    def _with_noise(self, server: Server, sums: Words) -> Words:
        return self.noise.add(server, sums) if self.noise else sums

    @property
    def _most_noise(self) -> float:
        """Head-room for both draws, lattice steps; an excess harms accuracy, but not privacy."""
        return 8.0 * 2 * self.noise.sigma if self.noise else 0.0
