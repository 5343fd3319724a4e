"""Silos as MPI ranks: rank 0 is the aggregator, rank i the i-th silo of the plan.

For one administrative domain, since MPI neither encrypts nor authenticates. A rank that fails ends
all ranks, so no rank is ever silent. Only bytes are sent, never pickled objects.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from cloister.core.errors import PlanError
from cloister.federation.transports.links import MOST_BYTES, check_size, late

if TYPE_CHECKING:
    from mpi4py.MPI import Comm, Request


class MpiTransport:
    """A transport from rank 0 to the ranks of the silos, each of which calls :func:`serve`.

    Parameters
    ----------
    silos : sequence of str
        Their names, in the order of their ranks, from rank 1.
    """

    def __init__(self, comm: Comm, silos: Sequence[str]) -> None:
        if comm.size != len(silos) + 1:
            raise PlanError(
                f"mpi must have {len(silos) + 1} ranks, one for the aggregator and one for each of "
                f"{len(silos)} silos, got {comm.size}; start them with mpirun -np {len(silos) + 1}."
            )
        self._comm = comm
        self._ranks = {silo: rank for rank, silo in enumerate(silos, 1)}

    def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        """Send each named silo its frame, then wait for the answer of each."""
        for silo, frame in frames.items():
            _send(self._comm, frame, self._ranks[silo])
        return {silo: _receive(self._comm, self._ranks[silo]) for silo in frames}

    def close(self) -> None:
        """Let every silo's :func:`serve` return."""
        for rank in self._ranks.values():
            _send(self._comm, b"", rank)  # no frame is empty


class MpiLink:
    """A link to another rank, for computing on shares; seal it before it is used.

    Parameters
    ----------
    rank : int
        Rank of the other end.
    timeout : float
        Seconds to wait for a message.
    """

    def __init__(self, comm: Comm, rank: int, timeout: float = 60.0) -> None:
        self._comm, self._rank, self._timeout = comm, rank, timeout
        self._leaving: deque[tuple[Request, bytes]] = deque()  # MPI reads a buffer until it left

    def send(self, body: bytes) -> None:
        """Send a message without waiting for the other rank to read it."""
        from mpi4py import MPI

        while self._leaving and self._leaving[0][0].Test():
            self._leaving.popleft()
        self._leaving.append((self._comm.Isend([body, MPI.BYTE], dest=self._rank), body))

    def receive(self, most: int = MOST_BYTES) -> bytes:
        """Return the next message; see :meth:`Link.receive`."""
        deadline = time.monotonic() + self._timeout
        while not self._comm.Iprobe(source=self._rank):
            if time.monotonic() > deadline:
                raise late(self._timeout)
            time.sleep(0)  # a rank waits for microseconds mostly
        body = _receive(self._comm, self._rank)
        check_size(len(body), most)
        return body

    def close(self, *, at_once: bool = False) -> None:
        """Wait until all messages were sent, unless the run failed."""
        while self._leaving and not at_once:
            self._leaving.popleft()[0].Wait()


def serve(comm: Comm, handle: Callable[[bytes], bytes]) -> None:
    """Answer the frames of rank 0 until it closes."""
    while frame := _receive(comm, 0):
        _send(comm, handle(frame), 0)


def hand_out(comm: Comm, value: bytes, root: int) -> bytes:
    """Return the value of rank `root` on that rank and all ranks above it.

    Each rank receives it directly, so a value of rank 1 never passes through the aggregator.
    """
    if comm.rank > root:
        return _receive(comm, root)
    for rank in range(root + 1, comm.size):
        _send(comm, value, rank)
    return value


def world() -> Comm:
    """Return the communicator of all ranks that ``mpirun`` started."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # the package, or the library below it, is not there
        raise PlanError(
            "mpi needs the package mpi4py and an MPI library; pip install 'cloister[mpi]'."
        ) from None
    return MPI.COMM_WORLD


def end_all(code: int) -> None:
    """End all ranks when this process exits, so that no rank waits forever."""
    from mpi4py.run import set_abort_status

    set_abort_status(code)


def _send(comm: Comm, data: bytes, rank: int) -> None:
    from mpi4py import MPI

    comm.Send([data, MPI.BYTE], dest=rank)


def _receive(comm: Comm, rank: int) -> bytes:
    from mpi4py import MPI

    status = MPI.Status()
    # Frames have no agreed length. A matched probe holds the message, so no thread takes it first.
    message = comm.Mprobe(source=rank, status=status)
    data = bytearray(status.Get_count(MPI.BYTE))
    message.Recv([data, MPI.BYTE])
    return bytes(data)
