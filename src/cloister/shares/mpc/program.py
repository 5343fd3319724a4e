"""The protocol of programs: public shapes, the function of both servers, and the opening."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Protocol

from cloister.core.declared import Rule
from cloister.hazmat.ring import Words
from cloister.privacy.events import Event
from cloister.shares.mpc.material import Shape
from cloister.shares.mpc.server import Server

Opening = Literal["label", "exact", "private"]
"""The kind of a result for its receivers.

"label": the answer to a query, no more. "exact": an exact function of the records, which is **no
private release**. "private": noise was added on the shares, and the owners' ledgers are charged.
"""
Names = Annotated[tuple[str, ...], Rule("all different", lambda all_: len(set(all_)) == len(all_))]
"""Different names, such as those of tables."""


# Values, so that all parties can compare them by the digest of their session.
class Program(Protocol):
    """A frozen value, equal at every party; its fields are public parameters and JSON-able.

    The dealer together with either server sees every table. A program may define two more methods.
    ``words(table, values)`` encodes an owner's table in its public shape, padded if it has fewer
    rows. ``values(result, words)`` decodes opened words. See :mod:`cloister.shares.mpc.parties` for
    the defaults. ``sharing`` is that of uploads, by default a sum. With ``has_secret``, owners
    agree on a secret before they upload.
    """

    name: ClassVar[str]

    @property
    def opening(self) -> Opening:
        """The kind of the results, which is displayed with them and which policies must allow."""

    def event(self) -> Event | None:
        """Return the charge of the opening to each owner's ledger; None if it is not private.

        It is charged before the owner's first share is sent.
        """
        return None

    def tables(self) -> Mapping[str, Shape]:
        """Return the public shape of each table that owners share; padded, never a true count."""

    def results(self) -> Mapping[str, Shape]:
        """Return the public shape of each result."""

    def run(self, server: Server, tables: Mapping[str, Words]) -> dict[str, Words]:
        """Return this server's shares of the results; both servers call it with their own."""
