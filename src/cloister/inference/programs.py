"""The programs on shares that a session may name: ``cloister compute`` knows these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cloister.errors import PlanError
from cloister.hazmat.ring import Words
from cloister.inference.shared import NetworkScoring
from cloister.mpc import Server
from cloister.mpc.material import Shape
from cloister.mpc.program import Opening, Program
from cloister.mpc.training import KMeansOnShares, LogisticOnShares, NetworkOnShares
from cloister.mpc.vote import NoisyVote, Score, Vote


@dataclass(frozen=True)
class Sum:
    """The exact sum of several owners' tables, entry by entry.

    The dealer together with either server sees every table.

    Parameters
    ----------
    inputs : tuple of str
        Their names, at least two: the sum of one would be that table.
    shape : tuple of int
        Of each of them.
    """

    name: ClassVar[str] = "sum"

    inputs: tuple[str, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(set(self.inputs)) != len(self.inputs) or len(self.inputs) < 2:
            raise PlanError(f"a sum needs two different tables or more, got {self.inputs}.")
        if not all(isinstance(size, int) and size >= 1 for size in self.shape):
            raise PlanError(f"shape must hold integers of at least 1, got {self.shape}.")

    @property
    def opening(self) -> Opening:
        """Exact: no private release."""
        return "exact"

    def event(self) -> None:
        """Return nothing: no ledger allows it, a policy may."""

    def tables(self) -> Mapping[str, Shape]:
        """Return the shape of each table."""
        return dict.fromkeys(self.inputs, self.shape)

    def results(self) -> Mapping[str, Shape]:
        """Return the shape of the sum."""
        return {"sum": self.shape}

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Return this server's share of the sum; no message is needed."""
        first, *others = tables.values()
        return {"sum": sum(others, start=first)}


_ALL: tuple[type[Program], ...] = (
    Sum,
    NetworkScoring,
    Vote,
    NoisyVote,
    Score,
    LogisticOnShares,
    KMeansOnShares,
    NetworkOnShares,
)
PROGRAMS: Mapping[str, type[Program]] = {program.name: program for program in _ALL}
