"""All silos in this process: a loop over their handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Handler = Callable[[bytes], bytes]


class InProcess:
    """Carry frames to functions.

    Parameters
    ----------
    handlers : mapping of silo name to function
        Each takes a frame and returns the answer, such as ``client.handle``.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = dict(handlers)

    def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        """Call each named silo once; in one process nobody is silent, so errors are raised."""
        return {silo: self._handlers[silo](frame) for silo, frame in frames.items()}
