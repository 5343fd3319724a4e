"""``Bounds``: private bounds of columns, and records clipped to them.

A public box that is much wider than the records wastes budget: every later step pays for its width.
Two private quantiles are a narrower one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated, ClassVar, Self, cast

import numpy as np

from cloister.declared import Probability, declared
from cloister.display import Display, Table
from cloister.errors import PlanError
from cloister.hazmat.fixedpoint import Grid
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.task import (
    Block,
    Floats,
    GridState,
    Integers,
    Mechanism,
    Profile,
    PublicColumn,
    PublicFacts,
    Records,
    Released,
    State,
)
from cloister.tasks.examples import MIXED, Example
from cloister.tasks.options import Keep, made
from cloister.tasks.preparation.quantiles import Quantiles, Refine, TreeLevels

_USUAL = (0.01, 0.99)
_BEYOND, _MOST = 2.0, 0.25  # deviations of noise by which a bound is inside; at most so far
_NARROWEST = 64  # grid steps from the middle to a bound: columns without spread stay as wide


@declared
class Bounds:
    """Columns of numbers, clipped to two private quantiles and stretched to the box.

    Parameters
    ----------
    quantiles : Quantiles
        At the two probabilities.
    low, high : tuple of float, data units
        The public box.
    categories : tuple of tuple of str
        Of each column; empty for numbers.
    """

    name: ClassVar[str] = "bounds"
    private: ClassVar[bool] = True
    profiles: ClassVar[frozenset[Profile]] = Quantiles.profiles
    mechanism: ClassVar[Mechanism] = "gaussian"
    example: ClassVar[Example] = Example(MIXED)

    @declared
    class Options:
        """What a user may choose."""

        probabilities: Annotated[
            tuple[Probability, Probability] | None,
            "of the quantiles that become the box; 1 % and 99 % or what noise allows if None",
        ] = None
        keep: Keep = ()
        levels: TreeLevels = None
        refine: Refine = True

    quantiles: Quantiles
    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    categories: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        probabilities = self.quantiles.probabilities
        if len(probabilities) != 2 or not probabilities[0] < probabilities[1]:
            raise PlanError(
                f"probabilities must be two, the lower first, got {probabilities}; the quantiles "
                "between become the box."
            )

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Bound every column of numbers that is not kept."""
        found = Quantiles.Options(
            probabilities=options.probabilities or _USUAL,
            keep=options.keep,
            levels=options.levels,
            refine=options.refine,
        )
        quantiles = Quantiles.design(facts, found)
        if options.probabilities is None and facts.budget is not None:
            noise = gaussian_noise_multiplier(facts.budget.epsilon, facts.budget.delta)
            rank = quantiles.rank_noise(noise, facts.nominal_n)
            tail = max(_USUAL[0], min(_BEYOND * rank, _MOST))
            quantiles = replace(quantiles, probabilities=(tail, 1 - tail))
        return made(cls, facts, options, quantiles=quantiles)

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return self.quantiles.n_features

    @property
    def frac_bits(self) -> int:
        """Fineness of the grid."""
        return self.quantiles.frac_bits

    @property
    def rounds(self) -> int:
        """Trees of the quantiles."""
        return self.quantiles.rounds

    @property
    def used(self) -> tuple[int, ...]:
        """Columns that are bounded."""
        return self.quantiles.used

    @property
    def output(self) -> tuple[PublicColumn, ...]:
        """The columns; bounded ones in ``[-1, 1]`` between their private bounds."""
        return tuple(
            PublicColumn(name, -1.0, 1.0)
            if j in self.used
            else PublicColumn(name, self.low[j], self.high[j], self.categories[j])
            for j, name in enumerate(self.names)
        )

    def describe(self) -> str:
        """Say in plain words what is summed and what is released."""
        low, high = self.quantiles.probabilities
        return (
            f"{self.quantiles.describe()} Each silo then clips {len(self.used)} columns to the "
            f"quantiles {low:g} and {high:g} and stretches them to the whole box."
        )

    def start(self) -> State:
        """Return the state of the quantiles."""
        return self.quantiles.start()

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the blocks of the quantiles."""
        return self.quantiles.blocks(t)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the counts of the quantiles."""
        return self.quantiles.contribute(t, state, records)

    def update(self, t: int, state: GridState, released: Mapping[str, Released]) -> State:
        """Return the quantiles."""
        return self.quantiles.update(t, state, released)

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        """Return nothing, as the quantiles."""
        return self.quantiles.forecast(noise_std, nominal_n, grid)

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        """Return the quantiles with their intervals, and the bounds made of them.

        Returns
        -------
        dict
            What :meth:`.Quantiles.results` returns, and ``lower`` and ``upper`` of shape (n_used,),
            data units: the quantiles, or a little further apart where they nearly agree.
        """
        found = self.quantiles.results(state, grid)
        low, high = found["quantiles"].T
        box = self._public
        half = np.maximum((high - low) / 2, _NARROWEST / box.one * box.half_range)
        lower, upper = (low + high) / 2 - half, (low + high) / 2 + half
        # far from zero, numbers may be coarser than the grid
        return {**found, "lower": lower, "upper": np.maximum(upper, np.nextafter(lower, np.inf))}

    @cached_property
    def _public(self) -> Grid:
        """The public box of the used columns."""
        low, high = (tuple(ends[j] for j in self.used) for ends in (self.low, self.high))
        return Grid(low, high, self.frac_bits)

    def transform(self, results: Mapping[str, Floats], records: Records) -> Records:
        """Return records whose used columns are clipped to the quantiles and stretched."""
        grid, changed = self._public, records.copy()
        low, high = results["lower"], results["upper"]
        values = grid.decode(records[:, self.used] / grid.one)
        scaled = (values - (low + high) / 2) * (2 / (high - low))
        changed[:, self.used] = np.rint(np.clip(scaled, -1, 1) * grid.one)
        return changed

    def displays(
        self, results: Mapping[str, Floats], columns: tuple[str, ...]
    ) -> tuple[Display, ...]:
        """Return a table of the bounds, and what else quantiles show."""
        table, *curves = self.quantiles.displays(results, columns)
        return (replace(cast(Table, table), title="Private bounds"), *curves)
