"""Writing of files: exact bytes, durable names, and one sentence for an error."""

from __future__ import annotations

import os
from pathlib import Path

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


def sync_folder(folder: Path) -> None:
    """Make the names of files in a folder durable, so that a new file survives a crash."""
    if not hasattr(os, "O_DIRECTORY"):
        return  # Windows makes names durable without a call
    descriptor = os.open(folder, os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
