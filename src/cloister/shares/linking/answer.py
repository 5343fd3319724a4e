"""The released estimates and tests of one analysis, and their displays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from cloister.core.arrays import Floats
from cloister.core.display import Bars, Cell, Display, Estimate, Heatmap, PValue, Table
from cloister.tasks.tables.inference import Tested


@dataclass(frozen=True)
class Answer:
    """The estimates and tests of one analysis, by name.

    Parameters
    ----------
    note : str
        What a reader of the estimates must know.
    of : tuple of str
        The columns of the analysis.
    """

    kind: str
    estimates: Mapping[str, Estimate] = field(repr=False)
    tests: Mapping[str, Tested] = field(default_factory=dict, repr=False)
    note: str = ""
    of: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The kind and the columns."""
        return title_of(self.kind, self.of)

    def displays(self) -> Iterator[Display]:
        """Yield a table or chart of each estimate, then one table of single numbers and tests."""
        single: list[tuple[str, Cell]] = []
        for name, one in self.estimates.items():
            words = name.replace("_", " ")
            title = f"{self.title}: {words}"
            match np.ndim(one.values):
                case 0:
                    single.append((words, one))
                case 1:
                    yield Bars(title, one, self.note)
                case 2:
                    yield Heatmap(title, one, self.note)
                case _:
                    places = zip(product(*one.labels), one.cells(), strict=True)
                    rows = tuple[tuple[Cell, ...], ...]((*at, cell) for at, cell in places)
                    yield Table(title, (*one.axes, name), rows, self.note)
        # A p-value for each test, the first of those at several places.
        single += [
            (f"p of {name.replace('_', ' ')}", PValue(np.ravel(test.p)[0]))
            for name, test in self.tests.items()
        ]
        if single:
            yield Table(f"{self.title}: tests", ("", "value"), tuple(single))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values; a number that is not known is None."""
        return {
            "kind": self.kind,
            "note": self.note,
            **{
                name: {
                    "axes": list(one.axes),
                    "labels": [list(names) for names in one.labels],
                    **{key: _plain(part) for key, part in one.named("value").items()},
                }
                for name, one in self.estimates.items()
            },
            "tests": {
                name: {key: _plain(part) for key, part in vars(test).items()}
                for name, test in self.tests.items()
            },
        }


def title_of(kind: str, names: Sequence[str]) -> str:
    """Return the title of an analysis."""
    return f"{kind} of {', '.join(names)}"


def _plain(values: Floats) -> Any:
    # NumPy's types have no None, which stands for an unknown number in JSON.
    return np.where(np.isfinite(values), values, None).tolist()  # type: ignore[call-overload]
