"""Tasks of a user's own, as files that `cloister audit` is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cloister.core.declared import declared
from cloister.protocol.task import GridState, Integers, PublicFacts, Records
from cloister.tasks.clustering.kmeans import FastLloyd


@dataclass(frozen=True, kw_only=True)
class OwnLloyd(FastLloyd):
    """An ordinary subclass: its rounds are a field without a default."""

    name: ClassVar[str] = "own-lloyd"


@dataclass(frozen=True, kw_only=True)
class Needy(FastLloyd):
    """Has an option that must be given: the name of a column."""

    name: ClassVar[str] = "needy"
    row: int

    @declared
    class Options(FastLloyd.Options):
        row: str

    @classmethod
    def _own_numbers(cls, facts: PublicFacts, options: Any) -> dict[str, Any]:
        return {**super()._own_numbers(facts, options), "row": facts.names.index(options.row)}


@dataclass(frozen=True, kw_only=True)
class Silent(FastLloyd):
    """Adds nothing, whatever it is paid for."""

    name: ClassVar[str] = "silent"
    rows: ClassVar[Any] = None  # the kernel alone: rows would be sent in its place

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        return np.zeros(self.n_clusters * (self.n_features + 1), dtype=np.int64)
