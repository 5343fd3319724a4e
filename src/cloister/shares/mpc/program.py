"""What a program is: public shapes, the function that both servers run, and what is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Protocol

from cloister.core.declared import Rule
from cloister.hazmat.ring import Words
from cloister.privacy.events import Event
from cloister.shares.mpc.material import Shape
from cloister.shares.mpc.server import Server

Opening = Literal["label", "exact", "private"]
"""What a result is to those who open it.

"label": the answer to a query, no more. "exact": an exact function of the records, which is **no
private release**. "private": noise was added on the shares, and the owners' ledgers are charged.
"""
Names = Annotated[tuple[str, ...], Rule("all different", lambda all_: len(set(all_)) == len(all_))]
"""Names of tables."""


class Program(Protocol):
    """A frozen value, the same at every party; its fields are its public parameters, JSON all.

    The dealer together with either server sees every table. A program may have, besides:
    ``words(table, values)``, an owner's table as words of its public shape, padded where it has
    fewer rows; ``values(result, words)``, opened words as numbers. See
    :mod:`cloister.shares.mpc.parties` for what happens without.
    """

    name: ClassVar[str]

    @property
    def opening(self) -> Opening:
        """What the results are; shown wherever they are, and what an owner's policy must allow."""

    def event(self) -> Event | None:
        """Return what opening the results costs each owner's ledger; None where it is not private.

        Spent before the owner's first share leaves.
        """
        return None

    def tables(self) -> Mapping[str, Shape]:
        """Return the public shape of each table that owners share; padded, never a true count."""

    def results(self) -> Mapping[str, Shape]:
        """Return the public shape of each result."""

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Return this server's shares of the results; both servers call it with their own."""
