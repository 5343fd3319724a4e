"""The sum of a silo's records in a round: the same integers for every split of the records.

Sums of integers are independent of their order. So chunks may be summed in sequence, in threads of
this process, or by workers of the silo that hold partitions of its records.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Protocol, runtime_checkable

import numpy as np

from cloister.core.arrays import GridState, Integers, Records
from cloister.core.compiled import NUMPY, instruction_set
from cloister.core.errors import LocalProtocolError
from cloister.protocol.task import Task, inside

_AHEAD = 2  # chunks in memory for each thread: one being summed, one being read


@dataclass(frozen=True)
class LocalStep:
    """The function from records to their sum in one round; a value that workers may receive.

    Parameters
    ----------
    t : int, >= 0
        The round.
    state : mapping of name to ndarray of int64
        The public state before the round.
    length : int
        Length of the round's vector in the plan.
    """

    task: Task
    t: int
    state: GridState = field(repr=False)
    length: int

    def of(self, chunk: Records) -> Integers:
        """Return the sums of one chunk; a record outside the box of the grid adds nothing."""
        return self.whole(
            self.task.contribute(self.t, self.state, inside(chunk, self.task.frac_bits))
        )

    def whole(self, sums: Integers) -> Integers:
        """Raise LocalProtocolError if the shape of the sums would broadcast."""
        if sums.shape != (self.length,) or sums.dtype != np.int64:
            raise LocalProtocolError(
                f"task {self.task.name!r} returned sums of shape {sums.shape} in round {self.t}, "
                f"the plan has length {self.length}; correct the plan or the task."
            )
        return sums

    def total(self, chunks: Iterable[Records]) -> Integers:
        """Return the sums of all chunks, computed in :func:`threads` threads."""
        # One empty chunk if there is none: an invalid plan must fail with or without records.
        none = np.zeros((0, self.task.n_features), dtype=np.int32)
        rest = iter(chunks)
        first = list(islice(rest, 2)) or [none]
        total = np.zeros(self.length, dtype=np.int64)
        for sums in self._each(chain(first, rest), threads() if len(first) > 1 else 1):
            total += sums
        return total

    def _each(self, chunks: Iterable[Records], threads: int) -> Iterator[Integers]:
        if threads < 2:
            yield from map(self.of, chunks)
            return
        with ThreadPoolExecutor(threads, thread_name_prefix="cloister-sum") as pool:
            waiting: deque[Future[Integers]] = deque()
            for chunk in chunks:
                waiting.append(pool.submit(self.of, chunk))
                # Reading waits here, so that a large table never fills the memory.
                if len(waiting) == threads * _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()


@runtime_checkable
class Partitioned(Protocol):
    """Records in partitions, which other processes sum."""

    def total(self, step: LocalStep) -> Integers:
        """Return the sums of all records, each partition once."""


def threads() -> int:
    """Return the number of threads for sums: ``OMP_NUM_THREADS`` if set, else one per core.

    It is 1 without compiled loops, as NumPy holds the interpreter lock for most of the time.
    """
    # The affinity, as a container may have fewer cores than the machine.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # OpenMP allows a list, with one entry for each level of nesting.
    requested = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    maximum = min(int(requested) or 1, cores or 1) if requested.isdecimal() else cores or 1
    return 1 if instruction_set() == NUMPY else maximum
