"""Settings of a schema that may correct the reading of a file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Remedy:
    """A reading setting that may correct a column. It is local: silos need not agree on it.

    Parameters
    ----------
    key : str
        Key of the schema or, if `column` is given, of that column.
    value : object
        The key's value in a schema; None if the owner must choose it.
    """

    key: str
    value: Any
    column: str | None = None

    def __str__(self) -> str:
        return f"{self.key} = {_toml(self.value)}"

    @property
    def is_complete(self) -> bool:
        """True if the owner has no value left to choose."""
        parts = self.value.values() if isinstance(self.value, Mapping) else (self.value,)
        return None not in parts


def _toml(value: Any) -> str:
    if value is None:
        return "..."
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_toml(part)}" for k, part in value.items()) + " }"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _key(name: str) -> str:
    return (
        name
        if re.fullmatch("[A-Za-z0-9_-]+", name)
        else json.dumps(name, ensure_ascii=False, allow_nan=False)
    )
