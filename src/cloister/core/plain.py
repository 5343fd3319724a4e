"""Values in the types of JSON, which has no word for infinity or for what is not known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any, unknown: Any = None) -> Any:
    """Return a value in the types of JSON.

    Parameters
    ----------
    value : Any
        Mappings, sequences, arrays, numbers and text; other values become their text.
    unknown : Any
        Replaces NaN. Infinite numbers become "Infinity" and "-Infinity".
    """
    match value:
        case Mapping():
            return {str(key): plain(item, unknown) for key, item in value.items()}
        case np.ndarray() if value.dtype.kind in "biu" or _is_finite(value):
            return value.tolist()  # fast, since models have millions of numbers
        case np.ndarray() | np.generic():
            return plain(value.tolist(), unknown)
        case list() | tuple():
            return [plain(item, unknown) for item in value]
        case float() if math.isnan(value):
            return unknown
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case None | bool() | int() | float() | str():
            return value
    return str(value)


def _is_finite(values: np.ndarray[Any, Any]) -> bool:
    return values.dtype.kind == "f" and bool(np.isfinite(values).all())
