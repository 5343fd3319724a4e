"""Writing of files: exact bytes, durable names, and one sentence for an error."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

from cloister.core.errors import DataError, PlanError


def write_text(path: Path, text: str | bytes, *, new: bool = False) -> None:
    """Write a file with its line ends unchanged; if `new`, raise rather than replace a file."""
    try:
        # Bytes: text mode would change line ends on Windows, and so digests of files.
        with path.open("xb" if new else "wb") as stream:
            stream.write(text.encode() if isinstance(text, str) else text)
    except FileExistsError:
        raise PlanError(
            f"file {str(path)!r} exists already and is not replaced; give another --out."
        ) from None
    except OSError as error:
        raise DataError(f"file {str(path)!r} cannot be written: {error.strerror}.") from None


def read_bytes(path: Path, what: str) -> bytes:
    """Return the contents of a file; raise DataError with one sentence if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{what} {str(path)!r} cannot be read: {error.strerror}.") from None


def read_json(path: Path, what: str) -> Any:
    """Return the values of a JSON file; raise DataError with one sentence if it has none."""
    return json_of(read_bytes(path, what), f"{what} {str(path)!r}")


def json_of(content: bytes, what: str) -> Any:
    """Return the values of a JSON text, which names no key twice."""
    try:
        return json.loads(
            content, object_pairs_hook=_without_repeats, parse_constant=_CONSTANTS.__getitem__
        )
    except UnicodeDecodeError:
        reason = "it is no text in UTF-8"
    except (ValueError, RecursionError) as error:
        reason = str(error) or type(error).__name__
    raise DataError(f"{what} cannot be read: {reason}.")


def toml_of(text: str) -> dict[str, Any]:
    """Return the values of a TOML text; raise ValueError if it is none or is nested too deeply."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


# Models of old versions have these words, which are not JSON.
_CONSTANTS = {"NaN": None, "Infinity": "Infinity", "-Infinity": "-Infinity"}


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Readers differ in which of two equal keys they take.
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def sync_folder(folder: Path) -> None:
    """Make the names of files in a folder durable, so that a new file survives a crash."""
    if not hasattr(os, "O_DIRECTORY"):
        return  # Windows makes names durable without a call
    descriptor = os.open(folder, os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
