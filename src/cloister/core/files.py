"""How files are written: as they are, durably, and refused in one sentence."""

from __future__ import annotations

import os
from pathlib import Path

from cloister.core.errors import DataError, PlanError


def write_text(path: Path, text: str | bytes, *, new: bool = False) -> None:
    """Write a file without changing line ends; with `new`, never replace one."""
    try:
        with path.open("xb" if new else "wb") as stream:
            stream.write(text.encode() if isinstance(text, str) else text)
    except FileExistsError:
        raise PlanError(
            f"file {str(path)!r} exists already and is not replaced; give another --out."
        ) from None
    except OSError as error:
        raise DataError(f"file {str(path)!r} cannot be written: {error.strerror}.") from None


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    if not hasattr(os, "O_DIRECTORY"):
        return  # Windows keeps names durable by itself
    descriptor = os.open(folder, os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
