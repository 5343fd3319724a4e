"""A task of a user's own in one file: a noisy histogram of the first column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np

from cloister.core.declared import Whole, declared
from cloister.core.display import Bars, Display, around
from cloister.hazmat.fixedpoint import Grid
from cloister.protocol.task import (
    Block,
    Floats,
    GridState,
    Integers,
    Mechanism,
    NoisyBlock,
    Profile,
    PublicFacts,
    Records,
    State,
)

ONE = 1 << 16  # what a record adds to its bin


@declared
class Histogram:
    name: ClassVar[str] = "toy-histogram"
    private: ClassVar[bool] = True
    profiles: ClassVar[frozenset[Profile]] = frozenset({"local", "group"})
    mechanism: ClassVar[Mechanism] = "gaussian"
    rounds: ClassVar[int] = 1

    @declared
    class Options:
        bins: Annotated[Whole, "equal parts of the first column's range"] = 4

    n_features: Whole
    frac_bits: int = 16
    bins: Whole = 4

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> Histogram:
        return cls(n_features=facts.n_features, frac_bits=facts.frac_bits, bins=options.bins)

    def describe(self) -> str:
        return f"The number of records in each of {self.bins} bins of the first column, with noise."

    def start(self) -> State:
        return {"counts": np.zeros(self.bins), "half_width": np.zeros(self.bins)}

    def blocks(self, t: int) -> tuple[Block, ...]:
        return (Block("bins", (self.bins,), l1=ONE, l2_squared=ONE**2, weight=1.0),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        edge = 1 << self.frac_bits
        bins = (records[:, 0].astype(np.int64) + edge) * self.bins // (2 * edge + 1)
        return np.bincount(bins, minlength=self.bins).astype(np.int64) * ONE

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        bins = released["bins"]
        return {
            "counts": bins.values / ONE,
            "half_width": np.full(self.bins, 1.96 * bins.noise_std / ONE),
        }

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        return {"half_width": np.full(self.bins, 1.96 * noise_std / ONE)}

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        return {name: value / float(1 << self.frac_bits) for name, value in state.items()}

    def displays(
        self, results: Mapping[str, Floats], columns: tuple[str, ...]
    ) -> tuple[Display, ...]:
        names = tuple(f"bin {i}" for i in range(self.bins))
        counts = around(results["counts"], results["half_width"], labels=(names,), unit="records")
        title = f"Toy histogram of {columns[0]}"
        return (Bars(title, counts),)
