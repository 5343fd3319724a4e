"""The released answers of a linked run, and their displays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

from cloister.core.display import Display, Estimate, Table
from cloister.core.errors import PlanError
from cloister.shares.linking.answer import Answer

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from cloister.shares.mpc.session import Session


@dataclass(frozen=True)
class Ran:
    """The run that gave answers.

    Parameters
    ----------
    in_process : bool
        True if all parties were one process.
    charged : bool
        True if a ledger was charged.
    """

    session: Session
    in_process: bool = False
    charged: bool = True


@dataclass(frozen=True)
class Found:
    """The released answers about linked persons.

    Parameters
    ----------
    size : Estimate
        Number of persons in the join.
    answers : tuple of Answer
        In the order of the analyses; empty if they are withheld.
    ran : Ran, optional
        The run, which :meth:`report` describes.
    withheld : bool
        True if answers are withheld, as the released size is below `least_matches`.
    """

    size: Estimate
    answers: tuple[Answer, ...]
    ran: Ran | None = field(default=None, repr=False, compare=False)
    withheld: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values."""
        return {"size": list(self.size.numbers), "analyses": [a.to_dict() for a in self.answers]}

    def displays(self) -> tuple[Display, ...]:
        """Return the size, and tables and charts of all answers."""
        size = Table("Persons in the join", ("", "persons"), (("size", self.size),))
        return (size, *(shown for one in self.answers for shown in one.displays()))

    def after(self, session: Session) -> Self:
        """Return the answers with the session of several processes that gave them."""
        return replace(self, ran=Ran(session))

    # Imported on use: a party's command needs no page, no data frame and no picture.
    def to_frame(self) -> pd.DataFrame:
        """Return the released numbers: value, low and high of the 95 % interval of the noise.

        The index names the table, row and column of a number, as for a private estimator. `attrs`
        has the :meth:`remarks` on these numbers.
        """
        from cloister.app.report.notebook import release_frame

        frame = release_frame(self.displays())
        frame.attrs["remarks"] = [*self.remarks()]
        return frame

    def report(self, path: str | PathLike[str]) -> None:
        """Write answers, cost and trust model as one HTML file, or Markdown for a name in ``.md``.

        Each table of the HTML file can be saved as CSV.

        Raises
        ------
        PlanError
            If the answers were made from words without a session.
        """
        # On use, as a party without a report needs no page.
        from cloister.app.report.page import write_contents
        from cloister.shares.linking.report import contents_of

        if self.ran is None:
            raise PlanError("answers without a session have no report; take those of run_here.")
        write_contents(contents_of(self, self.ran), path)

    def plot(self, title: str | None = None) -> Axes:
        """Draw one of :meth:`displays` by its title; by default the first chart."""
        from cloister.app.report.notebook import release_axes

        return release_axes(self.displays(), title)

    def __repr__(self) -> str:
        # On use, as for a page.
        from cloister.shares.linking.report import text_of

        return text_of(self)

    def _repr_html_(self) -> str:
        from cloister.app.report.notebook import displays_html

        return displays_html("LinkedTable", (), tuple(self.remarks()), self.displays())

    def remarks(self) -> Iterator[str]:
        """Yield what a reader of the answers must know."""
        yield from (f"{one.title}: {one.note}" for one in self.answers if one.note)
        if self.withheld:
            yield "The answers are withheld: the released size is below least_matches."
