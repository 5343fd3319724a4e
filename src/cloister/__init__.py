"""cloister: private data mining for organisations that may not pool their records.

Start with :class:`DPKMeans`, or with the command ``cloister demo``. An import of this package opens
no socket, reads no file and no environment variable, and seeds no generator.
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
"""The module of each public name; the first use of the name imports it."""

__all__ = [
    "AccuracyWarning",
    "BudgetExceeded",
    "CloisterError",
    "DataError",
    "DataLossWarning",
    "PlanError",
    "PrivacyWarning",
    *sorted(HOME),  # imported at first use, since a silo needs few of them
]


def __getattr__(name: str) -> Any:
    # A name that moved has its own warning, and any other is an AttributeError.
    if name not in HOME:
        return resolve(__name__, name)
    return getattr(import_module(HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


# Old module names must resolve as soon as the package is imported.
install()
