"""Arrays by the kind of number they hold, and named ones by what tasks use them for.

What shape and unit an array has, the docstring says where it is used.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Records = NDArray[np.int32]
"""Records on the grid of a contract: a row of grid steps for each."""
State = Mapping[str, Floats]
"""Named public arrays in grid coordinates (1.0 is the edge of the box)."""
GridState = Mapping[str, Integers]
"""The same arrays rounded to the grid, as every party holds them."""
Results = Mapping[str, Floats]
"""Named released arrays in the users' units."""
