"""The number of records: the smallest task, and a model for new tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

import numpy as np

from cloister.core.arrays import Floats, GridState, Integers, Records, Results, State
from cloister.core.declared import Whole, declared
from cloister.core.display import Display
from cloister.hazmat.fixedpoint import Grid, from_grid
from cloister.protocol.task import (
    COUNT_BITS,
    INTERVAL_95,
    Block,
    NoisyBlock,
    Profile,
    PublicFacts,
    Rows,
)
from cloister.tasks.interval_tables import table_of_count
from cloister.tasks.options import Noise, build_task


@declared
class Count:
    """One noisy count of all records."""

    name: ClassVar[str] = "count"
    title: ClassVar[str] = "How many records"
    private: ClassVar[bool] = True
    profiles: ClassVar[frozenset[Profile]] = frozenset({"local", "group", "pairwise"})

    rounds: ClassVar[int] = 1

    @declared
    class Options:
        """Options of the task."""

        mechanism: Annotated[Noise, "law of the noise"] = "gaussian"

    n_features: Whole
    frac_bits: int = 16
    mechanism: Noise = "gaussian"

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Self:
        """Return the task; it needs neither `nominal_n` nor `budget`."""
        return build_task(cls, facts, options)

    def describe(self) -> str:
        """Describe the sum and the release in a plain sentence."""
        return "Each silo counts its records; the sum of the counts is released with noise."

    def start(self) -> State:
        """Return the state before the round."""
        return {"count": np.zeros(1), "half_width": np.zeros(1)}

    def blocks(self, t: int) -> tuple[Block, ...]:
        """Return the single integer."""
        return (Block.counting("count", (1,), weight=1.0),)

    def rows(self, t: int, state: GridState, records: Records) -> tuple[Rows, ...]:
        """Return a one for each record."""
        return (Rows(np.zeros(len(records), dtype=np.int64), np.array([1 << COUNT_BITS])),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        """Return the number of records in units of ``2**-COUNT_BITS``."""
        # Fine units: the noise is an integer and needs a lattice far finer than one record.
        return np.array([len(records) << COUNT_BITS], dtype=np.int64)

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        """Return the noisy count."""
        count, noise_std = released["count"].in_records()
        return {"count": count, "half_width": self._half_width(noise_std)}

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Results:
        """Return the 95 % margin of error, in records."""
        return {"half_width": self._half_width(noise_std / (1 << COUNT_BITS))}

    def _half_width(self, noise_std: float) -> Floats:
        return np.array([INTERVAL_95[self.mechanism] * noise_std])

    def results(self, state: GridState, grid: Grid) -> Results:
        """Return ``count`` and its margin of error, in records."""
        return {name: from_grid(value, self.frac_bits) for name, value in state.items()}

    def displays(self, results: Results, columns: tuple[str, ...]) -> tuple[Display, ...]:
        """Return a table of the count and its margin of error."""
        return (table_of_count(results["count"], results["half_width"]),)
