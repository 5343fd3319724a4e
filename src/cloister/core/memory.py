"""Memory of a process that uses large arrays again and again."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's mallopt
_KEPT = 1 << 30  # bytes
_LARGEST = 1 << 25  # bytes of one array; glibc takes no more


def keep_freed_memory() -> None:
    """Let this process keep up to a gibibyte that it frees, if glibc is its allocator.

    Else each step gives its arrays back, and the system clears their pages again for the next
    step. Of a join on shares, that was half of the processor time.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):  # musl has no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _LARGEST)
