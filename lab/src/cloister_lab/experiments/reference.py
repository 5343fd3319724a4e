"""Published figures of FastLloyd, and the bars that our runs must clear beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cloister_lab.experiments.records import MeanOf, Means

EPSILONS = (0.1, 0.25, 0.5, 0.75, 1.0)

PUBLISHED: Mapping[str, tuple[float, ...]] = {
    "iris": (1.102, 0.575, 0.386, 0.318, 0.295),
    "wine": (4.575, 3.227, 2.277, 1.961, 1.809),
    "lsun": (0.353, 0.263, 0.225, 0.217, 0.213),
    "breast": (2.537, 1.678, 1.504, 1.468, 1.456),
    "yeast": (0.428, 0.385, 0.355, 0.343, 0.333),
    "s1": (0.0393, 0.0241, 0.0227, 0.0195, 0.0181),
    "adult": (0.312, 0.301, 0.292, 0.295, 0.290),
    "birch2": (0.0079, 0.0051, 0.0037, 0.0030, 0.0026),
}
"""Mean NICV of the published code (github.com/D-Diaa/FastLloyd, commit of 2025-06-14, run as it
is), at each of `EPSILONS`."""

INDEPENDENT: Mapping[str, tuple[tuple[float, float], ...]] = {
    "iris": ((1.062, 0.038), (0.6338, 0.023), (0.4071, 0.012), (0.3538, 0.013), (0.3075, 0.0061)),
    "wine": ((4.372, 0.074), (3.050, 0.046), (2.225, 0.023), (1.966, 0.02), (1.807, 0.021)),
    "lsun": (
        *((0.3342, 0.0091), (0.2439, 0.0067), (0.2126, 0.0053), (0.2094, 0.0055)),
        (0.2124, 0.0056),
    ),
    "breast": ((2.598, 0.09), (1.776, 0.043), (1.602, 0.051), (1.542, 0.04), (1.523, 0.038)),
    "yeast": (
        *((0.4217, 0.0017), (0.3750, 0.0032), (0.3502, 0.0038), (0.3334, 0.004)),
        (0.3249, 0.0041),
    ),
    "s1": (
        *((0.04012, 0.0014), (0.02305, 0.00077), (0.02129, 0.00066), (0.01854, 0.00062)),
        (0.01744, 0.00079),
    ),
    "adult": (
        *((0.3062, 0.0063), (0.2916, 0.0055), (0.2816, 0.0042), (0.2857, 0.0052)),
        (0.2868, 0.0043),
    ),
    "birch2": (
        *((0.00727, 0.00015), (0.00513, 0.00011), (0.00364, 9e-05), (0.00295, 6e-05)),
        (0.00252, 8.3e-05),
    ),
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

    Parameters
    ----------
    nicv : mapping of (dataset, method, epsilon) to MeanOf
        Of runs under the papers' conventions. Bars on data sets that were not run are left out.

    Returns
    -------
    Verdict
        A cell holds if it is at most 15 % above the published figure, or at most 3 combined
        standard errors above the independent one. The geometric mean of the ratios is judged once
        all cells are there.
    """
    cells = tuple(
        _check_cell(dataset, index, found)
        for dataset in PUBLISHED
        for index, epsilon in enumerate(EPSILONS)
        if (found := nicv.get((dataset, "fastlloyd", epsilon)))
    )
    bars = []
    if cells:
        good = sum(cell.verdict != "MISSED" for cell in cells)
        bars.append(
            Bar(f"every cell is close or better: {good} of {len(cells)}", good == len(cells))
        )
        average = math.exp(sum(math.log(cell.ratio) for cell in cells) / len(cells))
        if len(cells) == len(PUBLISHED) * len(EPSILONS):
            low, high = GEOMETRIC_MEAN
            text = f"geometric mean of {len(cells)} ratios is in [{low}, {high}]: {average:.4f}"
            bars.append(Bar(text, low <= average <= high))
    for dataset in ORDER_DATASETS:
        fast = nicv.get((dataset, "fastlloyd", ORDER_EPSILON))
        for method in ("glloyd", "sulloyd"):
            other = nicv.get((dataset, method, ORDER_EPSILON))
            if fast and other:
                text = (
                    f"fastlloyd <= {method} on {dataset} at epsilon {ORDER_EPSILON}: "
                    f"{fast.mean:.4g}, {other.mean:.4g}"
                )
                bars.append(Bar(text, fast.mean <= other.mean))
    return Verdict(cells, tuple(bars))


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
    return CellCheck(
        dataset,
        EPSILONS[index],
        found.mean,
        sem,
        published,
        found.mean / published,
        verdict,
    )
