"""The grid: records become integers once, on entry, and stay integers until the release.

Every column has a public box ``[low, high]``. The box is mapped to ``[-1, 1]``, the record is
clipped to it and rounded to the nearest multiple of ``2**-frac_bits``. Sensitivities are then
bounds on integers, free of rounding errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import ArrayLike

from cloister.core.arrays import Floats, Integers, Records
from cloister.core.errors import DataError, PlanError

MAX_FRAC_BITS = 24  # a coordinate of [-1, 1] then fits int32 with 7 bits to spare
# Half a MiB of floats at a time, so that a large table is never copied whole as floats.
_CHUNK_VALUES = 1 << 16


def round_to_grid(values: ArrayLike, frac_bits: int) -> Integers:
    """Round public real values to the nearest grid point (ties to even); any shape.

    Raises
    ------
    PlanError
        If a value is not finite or exceeds 64 bits on the grid.
    """
    scaled = np.asarray(values, dtype=np.float64) * float(1 << frac_bits)
    if not (np.abs(scaled) < 2.0**63).all():  # the comparison is False for NaN, too
        raise PlanError(
            "public state must be finite and fit 64 bits on the grid, got a number that does not; "
            "correct the task's update."
        )
    return np.rint(scaled).astype(np.int64)


def from_grid(steps: Integers, frac_bits: int) -> Floats:
    """Return the real values of grid points.

    The division by a power of two is exact up to 53 bits.
    """
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
            # The difference of finite bounds may overflow, and half of it may underflow to 0.
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
        """The integer that represents 1.0, the edge of the box."""
        return 1 << self.frac_bits

    @property
    def centre(self) -> Floats:
        """Middle of the box, data units."""
        return np.asarray((np.array(self.high) + np.array(self.low)) / 2)

    @property
    def half_range(self) -> Floats:
        """Half the width of the box, data units; 1.0 on the grid corresponds to it."""
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
            If the shape is wrong or a value is missing. The message names no value, as logs are
            less protected than records.
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
            chunk = (X[start : start + rows].astype(np.float64) - centre) * factor
            if np.isnan(chunk).any():
                raise DataError(
                    "records contain missing values; use a schema with a rule for missing values."
                )
            # Clipped as floats: the conversion of a larger value to int32 is undefined.
            steps[start : start + rows] = np.rint(np.clip(chunk, -self.one, self.one))
        return steps

    def decode(self, values: ArrayLike) -> Floats:
        """Map coordinates of ``[-1, 1]`` back to data units; shape (..., n_features)."""
        return np.asarray(values, dtype=np.float64) * self.half_range + self.centre

    def normalise(self, X: ArrayLike) -> Floats:
        """Map data units to coordinates of ``[-1, 1]`` without clipping or rounding."""
        return (np.asarray(X, dtype=np.float64) - self.centre) / self.half_range


@dataclass(frozen=True)
class Contract:
    """The rules by which records were read; a plan sums only records read by its own contract.

    Sensitivity is proved for one lattice, one box and a largest number of rows per unit. Records
    read by other rules could exceed the bound without any error.

    Parameters
    ----------
    columns : tuple of str
        Names in order; empty for records read by plain bounds, which have no names.
    unit : str
        Unit of privacy.
    max_rows : int, >= 1
        Largest number of rows kept for one unit.
    schema_digest : str
        Digest of the whole schema; empty for records read without a schema.
    """

    grid: Grid
    columns: tuple[str, ...] = ()
    unit: str = "row"
    max_rows: int = 1
    schema_digest: str = ""

    def check(self, records: object) -> None:
        """Raise PlanError if the records carry another contract.

        Records without a contract, such as a list of arrays, are the caller's responsibility.
        Values outside the box add nothing, but the number of rows per unit cannot be checked.

        Raises
        ------
        PlanError
        """
        actual = getattr(records, "contract", None)
        if not isinstance(actual, Contract):
            return
        for name, expected, got in (
            ("columns", *_comparable(self.columns, actual.columns)),
            ("frac_bits", self.grid.frac_bits, actual.grid.frac_bits),
            ("bounds", _box(self.grid), _box(actual.grid)),
            ("unit", self.unit, actual.unit),
            ("max_rows", self.max_rows, actual.max_rows),
            ("schema_digest", *_comparable(self.schema_digest, actual.schema_digest)),
        ):
            if expected != got:
                raise PlanError(
                    f"records must be read by the contract of the plan, but their {name} differ: "
                    f"{got!r} in place of {expected!r}; read them with the schema, the columns and "
                    "the frac_bits that the job was planned with."
                )


def _comparable(expected: object, got: object) -> tuple[object, object]:
    """Return both values, or the expected one twice if either is empty."""
    # Plain bounds name no columns and have no schema, which is no contradiction.
    return (expected, got) if expected and got else (expected, expected)


def _box(grid: Grid) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return grid.low, grid.high
