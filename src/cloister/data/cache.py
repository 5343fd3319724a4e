"""Grid records in a file without a name instead of memory."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cloister.core.errors import DataError

Steps = NDArray[np.int32]

_CELL_BYTES = 4


class GridCache:
    """A file of grid records: written once, then read repeatedly at the speed of memory.

    Parameters
    ----------
    folder : path
        Folder whose disk stores the file, 4 bytes per cell.
    cells : int, optional
        Maximum number of cells, if known; the disk must have room for them now.

    Raises
    ------
    DataError
        If the folder does not exist, cannot be written or has too little room.

    Notes
    -----
    The file holds records without encryption. Only its owner may open it. It has no name in the
    folder, so it disappears with the process, even after a crash. No other user can change it, so
    it needs no seal.
    """

    def __init__(self, folder: str | os.PathLike[str], cells: int = 0) -> None:
        self._folder = Path(folder)
        try:
            if shutil.disk_usage(self._folder).free < cells * _CELL_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            # Of mode 0600. A system without nameless files unlinks it immediately after creation.
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._refusal(error) from None

    def filled(self, chunks: Iterable[Steps], n_columns: int) -> Steps:
        """Write all chunks; return them as one table in the file, shape (rows, n_columns).

        Raises
        ------
        DataError
            If the folder's disk has too little room for them.
        """
        with self._file as file:
            try:
                for chunk in chunks:
                    left = np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data
                    while left:  # a nearly full disk may accept only part of a write
                        left = left[file.write(left) :]
                size = file.tell()
                if not size:  # an empty file cannot be mapped
                    return np.empty((0, n_columns), dtype=np.int32)
                mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
            except OSError as error:
                raise self._refusal(error) from None
        return np.frombuffer(mapped, dtype=np.int32).reshape(-1, n_columns)

    def _refusal(self, error: OSError) -> DataError:
        return DataError(
            f"cache_dir {str(self._folder)!r} cannot store the records: {error.strerror}; give a "
            "folder with write permission and 4 bytes of free space for each cell."
        )
