"""cloister: private data mining for organisations that may not pool their records.

Start with :class:`DPKMeans`, or with the command ``cloister demo``. Importing this package opens no
socket, reads no file and no environment variable, and seeds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cloister.core.catalogue import OTHERS, ROWS
from cloister.core.deprecated import install, resolve
from cloister.core.errors import (
    AccuracyWarning,
    BudgetExceeded,
    CloisterError,
    DataError,
    DataLossWarning,
    PlanError,
    PrivacyWarning,
)

if TYPE_CHECKING:
    from cloister.core.catalogue import *  # noqa: F403  # names with their types

_ROWS: Mapping[str, Any] = ROWS
HOME = OTHERS | {
    name: f"cloister.estimators.{module}"
    for row in _ROWS.values()
    for module, _, name in (place.partition(":") for place in row.get("python", ()))
}
"""The module of each public name; it is loaded when the name is first used."""

__all__ = [
    "AccuracyWarning",
    "BudgetExceeded",
    "CloisterError",
    "DataError",
    "DataLossWarning",
    "PlanError",
    "PrivacyWarning",
    *sorted(HOME),  # loaded when first used: a silo does not pay for what it does not need
]


def __getattr__(name: str) -> Any:
    if name not in HOME:
        return resolve(__name__, name)
    return getattr(import_module(HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


install()
