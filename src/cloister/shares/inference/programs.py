"""The programs on shares that a session may name, for ``cloister compute``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from cloister.core.declared import Length, Whole, declared
from cloister.hazmat.ring import Words
from cloister.shares.inference.shared import NetworkScoring
from cloister.shares.linking.program import Linked
from cloister.shares.mpc import Server
from cloister.shares.mpc.material import Shape
from cloister.shares.mpc.program import Names, Opening, Program
from cloister.shares.mpc.training import KMeansOnShares, LogisticOnShares, NetworkOnShares
from cloister.shares.mpc.vote import NoisyVote, Score, Vote


@declared
class Sum(Program):
    """The exact sum of several owners' tables of one shape, entry by entry.

    The dealer together with either server sees every table. At least two tables are required, since
    the sum of one is that table.
    """

    name: ClassVar[str] = "sum"
    opening: ClassVar[Opening] = "exact"

    inputs: Annotated[Names, Length(2)]
    shape: tuple[Whole, ...]

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


_TRAININGS = (LogisticOnShares, KMeansOnShares, NetworkOnShares)
_ALL: tuple[type[Program], ...] = (
    Sum,
    NetworkScoring,
    Vote,
    NoisyVote,
    Score,
    Linked,
    *_TRAININGS,
)
# A session names a program by word, so that no party executes code of another.
PROGRAMS: Mapping[str, type[Program]] = {program.name: program for program in _ALL}
