"""What the records of a silo add to a round: the same integers however the records are split.

Sums of integers have no order, so parts of the records may be summed wherever it suits: one after
another, in threads of this process, or by workers of the silo that hold partitions of its records.
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

_AHEAD = 2  # chunks in memory for each thread: one that is summed, one that is read


@dataclass(frozen=True)
class LocalStep:
    """What a task adds in one round for some records; a value that workers may be sent.

    Parameters
    ----------
    t : int, >= 0
        The round.
    state : mapping of name to ndarray of int64
        The public state before it.
    length : int
        Of the vector of the round, by the plan.
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
        """Refuse sums that numpy would spread over a longer vector."""
        if sums.shape != (self.length,) or sums.dtype != np.int64:
            raise LocalProtocolError(
                f"task {self.task.name!r} made {sums.shape} sums of round {self.t}, the plan has "
                f"{self.length}; the plan or the task is not right."
            )
        return sums

    def total(self, chunks: Iterable[Records]) -> Integers:
        """Return the sums of all chunks, in as many threads as :func:`threads` says."""
        # of no chunk, too: a plan that is not right stops whether there are records or not
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
                if len(waiting) == threads * _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()


@runtime_checkable
class Partitioned(Protocol):
    """Records that lie in partitions, and are not summed in this process."""

    def total(self, step: LocalStep) -> Integers:
        """Return the sums of all records, each partition once."""


def threads() -> int:
    """Return in how many threads to sum: ``OMP_NUM_THREADS`` if it is set, else one a core.

    One where nothing was compiled: NumPy holds the lock of the interpreter for much of its time.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    most = min(int(asked) or 1, cores or 1) if asked.isdecimal() else cores or 1
    return 1 if instruction_set() == NUMPY else most
