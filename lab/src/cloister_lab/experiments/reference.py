"""Published figures of FastLloyd, and the bars that our runs must clear beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from cloister_lab.experiments.records import MeanOf, Means, load_tidy, number

EPSILONS = (0.1, 0.25, 0.5, 0.75, 1.0)

_FIGURES = load_tidy(Path(__file__).with_suffix(".csv"))
_DATASETS = tuple(dict.fromkeys(str(row["dataset"]) for row in _FIGURES))


def _figures(name: str, *columns: str) -> list[tuple[float, ...]]:
    return [tuple(number(r, c) for c in columns) for r in _FIGURES if r["dataset"] == name]


PUBLISHED: Mapping[str, tuple[float, ...]] = {
    name: tuple(mean for (mean,) in _figures(name, "published")) for name in _DATASETS
}
"""Mean NICV of the published code (github.com/D-Diaa/FastLloyd, commit of 2025-06-14, run as it
is), at each of `EPSILONS`."""

INDEPENDENT: Mapping[str, tuple[tuple[float, ...], ...]] = {
    name: tuple(_figures(name, "independent", "independent_error")) for name in _DATASETS
}
"""Mean NICV and its standard error of an independent floating-point FastLloyd with fresh noise in
every run (the published code draws the same noise in the first round of every run)."""

TOLERANCE = 1.15
STANDARD_ERRORS = 3.0
GEOMETRIC_MEAN = (0.95, 1.05)
ORDER_EPSILON = 0.5
ORDER_DATASETS = ("s1", "adult")


@dataclass(frozen=True)
class CellCheck:
    """FastLloyd on one data set at one epsilon beside the published figure."""

    dataset: str
    epsilon: float
    ours: float
    sem: float
    published: float
    ratio: float
    verdict: str
    """``within 15 %``, ``within 3 standard errors``, or ``MISSED``."""


@dataclass(frozen=True)
class Bar:
    """A statement and whether it holds."""

    text: str
    holds: bool


@dataclass(frozen=True)
class Verdict:
    """All cells that were run beside their published figures, and all bars that they decide."""

    cells: tuple[CellCheck, ...]
    bars: tuple[Bar, ...]

    @property
    def holds(self) -> bool:
        """Whether no bar is missed; there must be one."""
        return bool(self.bars) and all(bar.holds for bar in self.bars)


def check_means(nicv: Means) -> Verdict:
    """Compare FastLloyd's mean NICV with the published figures, and with the other methods.

    Runs are under the papers' conventions; bars on data sets that were not run are left out. A cell
    holds if it is at most 15 % above the published figure, or at most 3 combined standard errors
    above the independent one. The geometric mean of the ratios is judged once all cells are there.

    Parameters
    ----------
    nicv : mapping of (dataset, method, epsilon) to MeanOf
    """
    cells = tuple(
        _check_cell(dataset, index, found)
        for dataset in PUBLISHED
        for index, epsilon in enumerate(EPSILONS)
        if (found := nicv.get((dataset, "fastlloyd", epsilon)))
    )
    return Verdict(cells, (*_bars_of_cells(cells), *_bars_of_order(nicv)))


def _bars_of_cells(cells: Sequence[CellCheck]) -> Iterator[Bar]:
    """Yield whether every cell holds and, once all are there, whether their mean does."""
    if not cells:
        return
    good = sum(cell.verdict != "MISSED" for cell in cells)
    yield Bar(f"every cell is close or better: {good} of {len(cells)}", good == len(cells))
    if len(cells) == len(PUBLISHED) * len(EPSILONS):
        average = math.exp(sum(math.log(cell.ratio) for cell in cells) / len(cells))
        low, high = GEOMETRIC_MEAN
        text = f"geometric mean of {len(cells)} ratios is in [{low}, {high}]: {average:.4f}"
        yield Bar(text, low <= average <= high)


def _bars_of_order(nicv: Means) -> Iterator[Bar]:
    """Yield whether FastLloyd loses to no other method."""
    for dataset, method in product(ORDER_DATASETS, ("glloyd", "sulloyd")):
        fast = nicv.get((dataset, "fastlloyd", ORDER_EPSILON))
        other = nicv.get((dataset, method, ORDER_EPSILON))
        if fast and other:
            text = (
                f"fastlloyd <= {method} on {dataset} at epsilon {ORDER_EPSILON}: "
                f"{fast.mean:.4g}, {other.mean:.4g}"
            )
            yield Bar(text, fast.mean <= other.mean)


def _check_cell(dataset: str, index: int, found: MeanOf) -> CellCheck:
    published = PUBLISHED[dataset][index]
    other, other_sem = INDEPENDENT[dataset][index]
    sem = 0.0 if math.isnan(found.error) else found.error
    if found.mean <= TOLERANCE * published:
        verdict = "within 15 %"
    elif found.mean <= other + STANDARD_ERRORS * math.hypot(sem, other_sem):
        verdict = "within 3 standard errors"
    else:
        verdict = "MISSED"
    ratio = found.mean / published
    return CellCheck(dataset, EPSILONS[index], found.mean, sem, published, ratio, verdict)
