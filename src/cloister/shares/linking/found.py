"""The released answers of a linked run, and their displays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloister.core.display import Display, Estimate, Table
from cloister.shares.linking.analyses import Answer

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Found:
    """The released answers about linked persons.

    Parameters
    ----------
    size : Estimate
        Number of persons in the join.
    answers : tuple of Answer
        In the order of the analyses; empty if the size is below `least_matches`.
    """

    size: Estimate
    answers: tuple[Answer, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values."""
        return {"size": list(self.size.numbers), "analyses": [a.to_dict() for a in self.answers]}

    def displays(self) -> tuple[Display, ...]:
        """Return the size, and tables and charts of all answers."""
        size = Table("Linked persons", ("", "persons"), (("size", self.size),))
        return (size, *(shown for one in self.answers for shown in one.displays()))

    # Imported on use: a party's command needs no page, no data frame and no picture.
    def to_frame(self) -> pd.DataFrame:
        """Return the released numbers: value, low and high of the 95 % interval of the noise.

        The index names the table, row and column of a number, as for a private estimator.
        """
        from cloister.app.report.notebook import release_frame

        return release_frame(self.displays())

    def plot(self, title: str | None = None) -> Axes:
        """Draw one of :meth:`displays` by its title; by default the first chart."""
        from cloister.app.report.notebook import release_axes

        return release_axes(self.displays(), title)

    def _repr_html_(self) -> str:
        from cloister.app.report.notebook import displays_html

        return displays_html("LinkedTable", (), tuple(self._remarks()), self.displays())

    def _remarks(self) -> Iterator[str]:
        yield from (
            f"{one.kind} of {', '.join(one.of)}: {one.note}" for one in self.answers if one.note
        )
        if not self.answers:
            yield "The answers are withheld: the released size is below least_matches."
