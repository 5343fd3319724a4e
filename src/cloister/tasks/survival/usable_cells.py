"""The part of a noisy table of exits from which Cox regression can be computed.

Cells of a category with too few events are left out, and its coefficient is not known; other
coefficients keep their meaning. The outer knots of a number are joined until they are clear of the
noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cloister.core.arrays import Flags, Floats, Integers
from cloister.tasks.survival.covariate_cells import CovariateCells
from cloister.tasks.survival.efron import Fit, Table, fitted

REASONS = (
    "",
    "too few events of this category",
    "too few events of the first category",
    "too much noise",
    "too few events",
)
"""Why a coefficient is not known, by its code in results."""
RARE, FIRST_RARE, NOISY, FEW = range(1, 5)
_CLEAR_LEVEL = 6.0  # deviations of noise that the events of a category must exceed
_CLEAR_KNOT, _LEAST_KNOTS, _MOST_LOST = 3.0, 3, 0.3  # joined knots: deviations, share of the split
_TINY = 1e-9


@dataclass(frozen=True)
class UsableCells:
    """Tables and covariates of the cells that are used.

    Parameters
    ----------
    tables : tuple of Table
        One for each stratum.
    x, split, columns : ndarrays of shape (cells, q), (q,), (q,)
        Covariates of cells, the variance that splitting adds, and their places among all
        coefficients.
    reason, least : ndarray of shape (p,)
        A place in :data:`REASONS`, and the number of events that a category needs; 0 for numbers.
    events : float
        Noisy number of events of all cells.
    """

    tables: tuple[Table, ...]
    x: Floats
    split: Floats
    columns: Integers
    reason: Integers
    least: Floats
    events: float
    numbers: bool

    @classmethod
    def of(cls, cells: CovariateCells, exits: Floats, split: Floats, noise: float) -> UsableCells:
        """Return the usable part of exits of shape (strata x cells, 2, m + 1).

        Parameters
        ----------
        split : ndarray of shape (numbers,)
            Sum over events of the products of shares.
        noise : float
            Deviation of each released sum, in records.
        """
        exits = exits.reshape(cells.strata, -1, *exits.shape[1:])
        events = exits[:, :, 0, :-1].sum(axis=(0, 2))
        ticks = exits.shape[-1] - 1
        own = Table(exits[0], np.full(len(events), noise))
        std = own.unit[0] * noise / np.sqrt(2)  # of the events of a cell
        keep = np.ones(len(events), dtype=bool)
        columns: list[Floats] = []
        place: list[int] = []
        reason: list[int] = []
        least: list[float] = []
        for j, n in enumerate(cells.levels):
            at = cells.places[j]
            if not n:
                place.append(len(reason))
                columns.append(np.linspace(-1, 1, cells.knots)[at])
                reason.append(0)
                least.append(0.0)
                continue
            needed = _CLEAR_LEVEL * std * np.sqrt(exits[:, :, 0, 0].size / n)
            rare = np.bincount(at, events) < needed
            base = int(np.argmin(rare))
            for level in np.flatnonzero(~rare):
                if level != base:
                    place.append(len(reason) + int(level) - 1)
                    columns.append((at == level) - 1 / (~rare).sum())
            reason += [_reason(rare, level) for level in range(1, n)]
            least += [needed] * (n - 1)
            keep &= ~rare[at] | rare.all()  # if all are rare, the column is left out
        x = np.array(columns).reshape(-1, len(events)).T.copy()
        total = float(events.sum())
        kappa = np.zeros(len(place))
        for k, i in enumerate(cells.numbers):
            of = int(np.sum([max(n - 1, 1) for n in cells.levels[:i]]))
            q = place.index(of)
            knots, at = np.linspace(-1, 1, cells.knots), cells.places[i]
            kappa[q] = np.clip(split[k] / max(total, 1.0), 0, 0.25) * cells.gap**2
            table = np.zeros((cells.knots, *exits.shape[2:]))
            np.add.at(table, at, exits.sum(axis=0))
            together = len(events) * cells.strata / cells.knots
            joined, lost = _joined(
                Table(table, np.full(len(knots), noise * np.sqrt(together))), knots, kappa[q]
            )
            kappa[q] -= lost
            x[:, q] = joined[at]
        rows, inverse = np.unique(x[keep], axis=0, return_inverse=True)
        inverse = inverse.ravel()
        of_rows = noise * np.sqrt(np.bincount(inverse, minlength=len(rows)))
        tables = []
        for stratum in exits[:, keep]:
            summed = np.zeros((len(rows), 2, ticks + 1))
            np.add.at(summed, inverse, stratum)
            tables.append(Table(summed, of_rows))
        return cls(
            tuple(tables),
            rows,
            kappa,
            np.array(place, dtype=np.int64),
            np.array(reason),
            np.array(least),
            total,
            bool(cells.numbers),
        )

    def fit(self, rng: np.random.Generator) -> Fit:
        """Return the estimate of the coefficients at `columns`."""
        return fitted(self.tables, self.x, self.split, self.events, rng, numbers=self.numbers)

    def spread(self, values: Floats) -> Floats:
        """Return values of the used coefficients among all; others are not a number."""
        whole = np.full(len(self.reason), np.nan)
        whole[self.columns] = values
        return whole


def _reason(rare: Flags, level: int) -> int:
    if rare.all():
        return FEW
    if rare[level]:
        return RARE
    return FIRST_RARE if rare[0] else 0


def _joined(table: Table, knots: Floats, split: float) -> tuple[Floats, float]:
    """Return the positions of a number's knots after joining, and the variance that this loses.

    An outer knot joins the next one, at their mean position, until its records at risk at half of
    the events are clear of noise. The variance that is lost may be at most a share of `split`.
    """
    cumulative = np.cumsum(table.exits[:, 0, :-1].sum(axis=0))
    middle = min(int(np.searchsorted(cumulative, cumulative[-1] / 2)), table.ticks - 1)
    std = table.noise[0] * table.unit[middle]
    at_risk = table.exits[:, :, middle:].sum(axis=(1, 2))
    records = np.maximum(table.exits.sum(axis=(1, 2)), 0)
    whole = max(float(records.sum()), 1.0)
    groups = [[i] for i in range(len(knots))]

    def mean(group: list[int]) -> float:
        mass = records[group].sum()
        return float(records[group] @ knots[group] / mass if mass > 0 else knots[group].mean())

    def lost(group: list[int]) -> float:
        return float(records[group] @ (knots[group] - mean(group)) ** 2) / whole

    for outer, step in ((0, 1), (-1, -1)):
        while len(groups) > _LEAST_KNOTS:
            end, following = groups[outer], groups[outer + step]
            if at_risk[end].sum() >= _CLEAR_KNOT * std * np.sqrt(len(end)):
                break
            others = [g for g in groups if g is not end and g is not following]
            if sum(map(lost, others)) + lost(end + following) > _MOST_LOST * split:
                break
            groups.remove(end)
            groups[outer] = groups[outer] + end
    positions = knots.copy()
    for group in groups:
        positions[group] = mean(group)
    return positions, sum(map(lost, groups))
