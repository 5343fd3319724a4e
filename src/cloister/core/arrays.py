"""Types of arrays by their numbers, and of named arrays by their use in tasks.

Shapes and units are in the docstrings of the functions that use them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
# 32 bits halve the memory of records, the only arrays that grow with the data.
Records = NDArray[np.int32]
"""Records on the grid of a contract, one row of grid steps per record."""
State = Mapping[str, Floats]
"""Named public arrays in grid coordinates (1.0 is the edge of the box)."""
GridState = Mapping[str, Integers]
"""The same arrays rounded to the grid, as every party holds them."""
Results = Mapping[str, Floats]
"""Named released arrays in the users' units."""
Ranges = Mapping[str, tuple[float, float]]
"""Least and greatest possible values of results, by patterns of their names."""
