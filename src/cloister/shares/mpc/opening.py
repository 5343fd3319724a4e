"""What an opening is to the owners: exact and no private release, or private by noise on shares.

Each server adds a draw of its own to its share of a sum that is never opened. A server knows its
own draw only, the dealer none, a receiver none: for each of them, alone or with a receiver, a
draw that it does not know carries the whole noise. The draws add up, so an honest pair of servers
makes the noise sqrt(2) times as strong as what is charged.
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
    "label": "the answer to a query: it says no more than that, but it is no private release.",
    "exact": "EXACT: a function of the records without noise, which is NO private release.",
    "private": "private: noise was added on the shares, and each owner's ledger was charged.",
}
"""What is said of a result wherever it is shown."""


@dataclass(frozen=True)
class NoiseOnShares:
    """Gaussian noise for sums that stay on shares, and what its rounds cost together.

    Proof: docs/proofs/training-on-shares.md. The dealer together with either server sees
    everything, the noise of that server included; what is released then rests on the other's draw.

    Parameters
    ----------
    epsilon, delta : float
        For all rounds together, at neighbours of which one has one unit more.
    rounds : int, >= 1
    record_squared : int
        The largest squared L2 norm, in lattice steps, that one record adds to the words of a round.
    records : int, >= 1
        The most records of one unit: its rows at a silo times its silos.

    Raises
    ------
    PlanError
        If there is no such budget, or the noise would be stronger than what can be drawn.
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
        """L2 norm that one unit adds at most, lattice steps, rounded up."""
        return self.records * (isqrt(self.record_squared - 1) + 1)

    @cached_property
    def sigma(self) -> int:
        """Parameter of each server's discrete Gaussian draw, lattice steps."""
        multiplier = gaussian_noise_multiplier(self.epsilon, self.delta)
        return lattice_sigma(multiplier * sqrt(self.rounds), self.sensitivity)

    def event(self) -> RepeatedEvent:
        """Return what all rounds cost: the noise of one server, as the other may be corrupted."""
        worth = lattice_noise_multiplier(self.sigma, self.sensitivity)
        return RepeatedEvent(GaussianEvent(worth), self.rounds)

    def add(self, server: Server, sums: Words) -> Words:
        """Return shares of sums plus noise; no round: each server adds its draw to its share.

        Modulo 2^64, before any truncation: whatever is computed from the result is
        post-processing, overflow included.
        """
        drawn = server.noise.draw("gaussian", self.sigma, sums.size)
        return sums + drawn.view(np.uint64).reshape(sums.shape)


@declared
class Budgeted(Program):
    """A program that has noise on the shares if it is given a budget; without, it opens exactly."""

    epsilon: Annotated[AtLeastZero, "of the whole run; 0 for an exact opening"] = 0.0
    delta: Probability = 1e-6
    max_rows: Annotated[int, Range(1, 1 << 20), "the most rows of one unit at a silo"] = 1
    max_silos: Annotated[int, Range(1, 1 << 20), "the most silos that one unit is at"] = 1

    @property
    @abstractmethod
    def _noised(self) -> tuple[int, int]:
        """In how many rounds a sum gets noise, and `record_squared` of :class:`NoiseOnShares`."""

    @cached_property
    def noise(self) -> NoiseOnShares | None:
        """What each server adds to each of those sums; None for an exact opening."""
        if not self.epsilon:
            return None
        unit = self.max_rows * self.max_silos
        return NoiseOnShares(self.epsilon, self.delta, *self._noised, unit)

    @property
    def opening(self) -> Opening:
        """Return "private" with a budget, else "exact"."""
        return "private" if self.noise else "exact"

    def event(self) -> Event | None:
        """Return what the run costs each owner's ledger; None for an exact opening."""
        return self.noise.event() if self.noise else None

    def _with_noise(self, server: Server, sums: Words) -> Words:
        return self.noise.add(server, sums) if self.noise else sums

    @property
    def _most_noise(self) -> float:
        """Room for both draws, lattice steps; what goes beyond harms use and not privacy."""
        return 8.0 * 2 * self.noise.sigma if self.noise else 0.0
