"""The grid: records become integers once, on entry, and stay integers until the release.

Every column has a public box ``[low, high]``. The box is mapped to ``[-1, 1]``, the record is
clipped to it and rounded to the nearest multiple of ``2**-frac_bits``. From there on sensitivity is
a fact about integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import ArrayLike

from cloister.core.arrays import Floats, Integers, Records
from cloister.core.errors import DataError, PlanError

MAX_FRAC_BITS = 24  # a coordinate of [-1, 1] then still fits int32 with room
# Half a MiB of floats at a time: a large table is never copied whole as floats.
_CHUNK_VALUES = 1 << 16


def round_to_grid(values: ArrayLike, frac_bits: int) -> Integers:
    """Round public real values to the nearest grid point (ties to even); any shape.

    Raises
    ------
    PlanError
        If a value is not finite or too large: public state must never be.
    """
    scaled = np.asarray(values, dtype=np.float64) * float(1 << frac_bits)
    if not (np.abs(scaled) < 2.0**63).all():  # NaN is not below it either
        raise PlanError(
            "public state must be finite and fit 64 bits on the grid, got a number that does not; "
            "mend the task's update."
        )
    return np.rint(scaled).astype(np.int64)


def from_grid(steps: Integers, frac_bits: int) -> Floats:
    """Return the real values of grid points; exact."""
    return steps / float(1 << frac_bits)


@dataclass(frozen=True)
class Grid:
    """The public box of every column and the fineness of the lattice.

    Parameters
    ----------
    low, high : tuple of float, one per column, data units
        Public bounds, ``low < high``; never read from the records.
    frac_bits : int in [4, 24]
        The lattice in ``[-1, 1]`` has step ``2**-frac_bits``.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    frac_bits: int = 16

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", tuple(float(v) for v in self.low))
        object.__setattr__(self, "high", tuple(float(v) for v in self.high))
        if not self.low or len(self.low) != len(self.high):
            raise PlanError(
                f"bounds need one low and one high per column, got {len(self.low)} and "
                f"{len(self.high)}."
            )
        for column, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            # Finite bounds may differ by infinity, or by so little that half of it is 0.
            if not (isfinite(high - low) and (high - low) / 2 > 0):
                raise PlanError(
                    f"bounds of column {column} must be finite with low < high, "
                    f"got ({low}, {high}); take them from a codebook, not from the records."
                )
        if not 4 <= self.frac_bits <= MAX_FRAC_BITS:
            raise PlanError(f"frac_bits must be in [4, {MAX_FRAC_BITS}], got {self.frac_bits}.")

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return len(self.low)

    @property
    def one(self) -> int:
        """The integer that stands for 1.0, the edge of the box."""
        return 1 << self.frac_bits

    @property
    def centre(self) -> Floats:
        """Middle of the box, data units."""
        return np.asarray((np.array(self.high) + np.array(self.low)) / 2)

    @property
    def half_range(self) -> Floats:
        """Half the width of the box, data units: what 1.0 on the grid is worth."""
        return np.asarray((np.array(self.high) - np.array(self.low)) / 2)

    def encode(self, X: ArrayLike) -> Records:
        """Clip records to the box and round them to the grid, once.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features), data units, without NaN

        Returns
        -------
        ndarray of shape (n_samples, n_features), int32, in ``[-one, one]``

        Raises
        ------
        DataError
            If the shape is wrong or a value is missing; the value is not named.
        """
        X = np.asarray(X)
        if X.ndim != 2 or X.shape[1] != self.n_features:
            raise DataError(
                f"records must be a table of {self.n_features} columns, got shape {X.shape}."
            )
        steps = np.empty(X.shape, dtype=np.int32)
        factor, centre = self.one / self.half_range, self.centre
        rows = max(1, _CHUNK_VALUES // self.n_features)
        for start in range(0, len(X), rows):
            part = (X[start : start + rows].astype(np.float64) - centre) * factor
            if np.isnan(part).any():
                raise DataError(
                    "records contain missing values; give a schema that says what to do with them."
                )
            # Clipped while it is a float: a larger one has no defined int32.
            steps[start : start + rows] = np.rint(np.clip(part, -self.one, self.one))
        return steps

    def decode(self, values: ArrayLike) -> Floats:
        """Map coordinates of ``[-1, 1]`` back to data units; shape (..., n_features)."""
        return np.asarray(values, dtype=np.float64) * self.half_range + self.centre

    def normalise(self, X: ArrayLike) -> Floats:
        """Map data units to coordinates of ``[-1, 1]`` without clipping or rounding."""
        return (np.asarray(X, dtype=np.float64) - self.centre) / self.half_range


@dataclass(frozen=True)
class Contract:
    """By what records were read. A plan sums only records that were read by its own contract.

    Sensitivity is proved for records of one lattice, in one box, with so many rows a unit; records
    that were read by anything else would break the bound without a sign.

    Parameters
    ----------
    columns : tuple of str
        Names in order; empty where records were read by plain bounds, which name none.
    unit : str
        Unit of privacy.
    max_rows : int, >= 1
        So many rows of one unit were kept at most.
    schema_digest : str
        Of the whole schema; empty where there was none.
    """

    grid: Grid
    columns: tuple[str, ...] = ()
    unit: str = "row"
    max_rows: int = 1
    schema_digest: str = ""

    def check(self, records: object) -> None:
        """Refuse records that say they were read by another contract.

        Records that say nothing, such as a list of arrays, are the caller's own: what lies outside
        the box adds nothing, but how many rows one unit has, nobody can see.

        Raises
        ------
        PlanError
        """
        found = getattr(records, "contract", None)
        if not isinstance(found, Contract):
            return
        for name, asked, had in (
            ("columns", *_comparable(self.columns, found.columns)),
            ("frac_bits", self.grid.frac_bits, found.grid.frac_bits),
            ("bounds", _box(self.grid), _box(found.grid)),
            ("unit", self.unit, found.unit),
            ("max_rows", self.max_rows, found.max_rows),
            ("schema_digest", *_comparable(self.schema_digest, found.schema_digest)),
        ):
            if asked != had:
                raise PlanError(
                    f"records must be read by the contract of the plan, but their {name} differ: "
                    f"{had!r} in place of {asked!r}; read them with the schema, the columns and "
                    "the frac_bits that the job was planned with."
                )


def _comparable(asked: object, had: object) -> tuple[object, object]:
    """Return both, or one of them twice where the other does not say."""
    return (asked, had) if asked and had else (asked, asked)


def _box(grid: Grid) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return grid.low, grid.high
