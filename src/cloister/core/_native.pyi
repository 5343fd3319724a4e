# What native/module.cpp offers; cloister.core.compiled says what it computes.
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Flags, Floats, Integers, Records

def instruction_sets() -> list[str]: ...

class Ordered:
    @property
    def one(self) -> int: ...
    @property
    def rows(self) -> Records: ...
    def sum_near(
        self, centres: Integers, *, radius_squared: int, relative: bool, isa: str
    ) -> Integers: ...

def ordered(tables: list[Records]) -> Ordered: ...
def sum_near(
    records: Records,
    centres: Integers,
    *,
    radius_squared: int,
    relative: bool,
    one: int,
    isa: str,
) -> Integers: ...
def sum_clipped(
    records: Records, centres: Integers, radii: Integers, *, unit: int, one: int, isa: str
) -> Integers: ...
def sum_moments(
    records: Records,
    centres: Integers,
    radii: Integers,
    reach: Integers,
    *,
    unit: int,
    fine: int,
    one: int,
    isa: str,
) -> tuple[Integers, Integers]: ...
def nearest(records: Records, centres: Integers, *, one: int, isa: str) -> Integers: ...
def two_nearest(records: Records, centres: Integers, *, one: int, isa: str) -> Integers: ...
def encode(
    columns: list[NDArray[Any]],
    steps: Records,
    flags: NDArray[np.uint8],
    *,
    low: Floats,
    high: Floats,
    centre: Floats,
    factor: Floats,
    known: Floats,
    integer: Flags,
    boolean: Flags,
    one: int,
    isa: str,
) -> None: ...
