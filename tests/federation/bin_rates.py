"""A classifier of one's own in one file: the share of each class in bins of the first column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np

from cloister.core.declared import Whole, declared
from cloister.core.display import Display, Heatmap, around
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

ONE = 1 << 16  # what a record adds to its cell


@declared
class BinRates:
    name: ClassVar[str] = "bin-rates"
    private: ClassVar[bool] = True
    profiles: ClassVar[frozenset[Profile]] = frozenset({"local", "group", "pairwise"})
    mechanism: ClassVar[Mechanism] = "gaussian"
    rounds: ClassVar[int] = 1

    @declared
    class Options:
        bins: Annotated[Whole, "equal parts of the first column's range"] = 4

    n_features: Whole
    target: int
    classes: tuple[str, ...]
    frac_bits: int = 16
    bins: Whole = 4

    @classmethod
    def design(cls, facts: PublicFacts, options: Options) -> BinRates:
        return cls(
            n_features=facts.n_features,
            target=facts.n_features - 1,
            classes=facts.columns[-1].categories,
            frac_bits=facts.frac_bits,
            bins=options.bins,
        )

    @property
    def _shape(self) -> tuple[int, int]:
        return self.bins, len(self.classes)

    def _bin(self, records: Records) -> Integers:
        edge = 1 << self.frac_bits
        found: Integers = (records[:, 0].astype(np.int64) + edge) * self.bins // (2 * edge + 1)
        return found

    def _class(self, records: Records) -> Integers:
        edge, last = 1 << self.frac_bits, len(self.classes) - 1
        places = records[:, self.target].astype(np.int64) + edge
        found: Integers = (places * last + edge) // (2 * edge)
        return found

    def describe(self) -> str:
        return f"The number of records of each class in {self.bins} bins, with noise."

    def start(self) -> State:
        return {"counts": np.zeros(self._shape), "half_width": np.zeros(1)}

    def blocks(self, t: int) -> tuple[Block, ...]:
        return (Block("cells", self._shape, l1=ONE, l2_squared=ONE**2, weight=1.0),)

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        cells = self._bin(records) * len(self.classes) + self._class(records)
        return np.bincount(cells, minlength=np.prod(self._shape)).astype(np.int64) * ONE

    def update(self, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        cells = released["cells"]
        return {
            "counts": cells.values / ONE,
            "half_width": np.array([1.96 * cells.noise_std / ONE]),
        }

    def forecast(self, noise_std: float, nominal_n: int, grid: Grid) -> Mapping[str, Floats]:
        return {"counts_half_width": np.full(self._shape, 1.96 * noise_std / ONE)}

    def results(self, state: GridState, grid: Grid) -> Mapping[str, Floats]:
        return {name: value / float(1 << self.frac_bits) for name, value in state.items()}

    def displays(
        self, results: Mapping[str, Floats], columns: tuple[str, ...]
    ) -> tuple[Display, ...]:
        rows = tuple(f"bin {i}" for i in range(self.bins))
        labels = (rows, self.classes)
        counts = around(results["counts"], results["half_width"], labels=labels)
        return (Heatmap("Records of each class", counts),)

    def probabilities(self, results: Mapping[str, Floats], records: Records) -> Floats:
        counts = results["counts"].clip(min=0.5)
        shares: Floats = counts / counts.sum(axis=1, keepdims=True)
        return shares[self._bin(records)]
