"""The sum of a silo's records in a round: the same integers for every split of the records.

Sums of integers are independent of their order. So chunks may be summed in sequence, in threads of
this process, or by workers of the silo that hold partitions of its records.
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Protocol, runtime_checkable

import numpy as np

from cloister.core.arrays import GridState, Integers, Records
from cloister.core.compiled import NUMPY, instruction_set, ordered
from cloister.core.errors import LocalProtocolError, PrivacyWarning
from cloister.core.randomness import drawn_below, drawn_places
from cloister.protocol.rows import Manner, sum_of_rows
from cloister.protocol.task import Task, has_rows, records_of

_AHEAD = 2  # chunks in memory for each thread: one being summed, one being read
_SLICE = 5000  # records of a chunk whose sums by parts and as a whole are compared
MANY, FEW = 256, 16
"""Records whose sums by kernel and by rows are compared, if a step is thorough and if not."""


class KernelFault(Exception):
    """A kernel failed. The message is empty, since that of the kernel may quote a record."""


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
    manner : {"kernel", "rows", "single"}
        A task without a kernel is summed by rows, one without rows by its kernel.
    thorough : bool
        Whether :meth:`checked` draws many records, and compares sums of parts with sums of wholes.
    """

    task: Task
    t: int
    state: GridState = field(repr=False)
    length: int
    manner: Manner = "kernel"
    thorough: bool = False
    _guarded: bool = False

    def of(self, chunk: Records) -> Integers:
        """Return the sums of one chunk; a record outside the box of the grid adds nothing."""
        records = records_of(self.task, chunk)
        if self.manner == "kernel" or not has_rows(self.task):
            return self._by_kernel(records)
        if self.manner == "rows":
            return self._by_rows(records)
        total = self._by_rows(records[:0])
        for place in range(len(records)):
            total += self._by_rows(records[place : place + 1])
        return total

    def _by_kernel(self, records: Records) -> Integers:
        try:
            return self.whole(self.task.contribute(self.t, self.state, records))
        except Exception:
            if self._guarded:
                raise KernelFault from None
            raise

    def _by_rows(self, records: Records) -> Integers:
        return self.whole(sum_of_rows(self.task, self.t, self.state, records))

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

    def checked(self, chunks: Iterable[Records]) -> tuple[Integers, Manner]:
        """Return the sums of all chunks, and the manner in which they must be made.

        Discard the sums if that is another manner than this step's. Then, on records drawn at
        random, the kernel disagreed with the rows of the task, or rows depended on each other.
        """
        if not has_rows(self.task):
            return self.total(chunks), self.manner
        guarded = replace(self, _guarded=True)
        count, length = (MANY, _SLICE) if self.thorough else (FEW, 0)
        drawn = _Drawn(self.task.n_features, count, length)
        try:
            return guarded.total(drawn.among(chunks)), guarded._manner_for(drawn)
        except KernelFault:
            return np.zeros(self.length, dtype=np.int64), "rows"

    def _manner_for(self, drawn: _Drawn) -> Manner:
        """Return the manner in which some records have the right sums."""
        if self.manner == "single":
            return "single"
        few, whole = (records_of(self.task, table) for table in (drawn.few, drawn.slice))
        by_rows = self._by_rows(few)
        if self.thorough and (by_rows != _in_halves(few, self._by_rows)).any():
            return "single"
        if self.manner == "rows":
            return "rows"
        agrees = (self._by_kernel(few) == by_rows).all()
        if agrees and self.thorough:
            agrees = (self._by_kernel(whole) == _in_halves(whole, self._by_kernel)).all()
        return "kernel" if agrees else "rows"

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


def agreed_sums(
    step: LocalStep, make: Callable[[LocalStep], tuple[Integers, Manner]]
) -> tuple[Integers, Manner]:
    """Return the sums of a step in a manner that the drawn records do not contradict.

    A kernel that fails or disagrees never stops the job: that would be an answer about records.
    The job keeps to the rows of the task, and the owner is warned.

    Parameters
    ----------
    make : function of LocalStep
        Returns :meth:`LocalStep.checked` of all records.
    """
    sums, manner = make(step)
    if manner == step.manner:
        return sums, manner
    warnings.warn(
        f"the kernel of task {step.task.name!r} disagreed with its rows on records of this "
        "silo; the silo sends the sums of the rows, and the job continues. Report this to the "
        "author of the task.",
        PrivacyWarning,
        stacklevel=3,
    )
    return agreed_sums(replace(step, manner=manner), make)


class _Drawn:
    """Records of a chunk that is drawn at random while all chunks are read.

    Parameters
    ----------
    slice : int
        Number of consecutive records kept of it, in addition to the few drawn one by one.
    """

    def __init__(self, n_features: int, few: int, slice_: int) -> None:
        self.few: Records = np.zeros((0, n_features), dtype=np.int32)
        self.slice = self.few
        self._count, self._length, self._chunks = few, slice_, 0

    def among(self, chunks: Iterable[Records]) -> Iterator[Records]:
        """Yield all chunks; each is the drawn one with the same probability."""
        for chunk in chunks:
            self._chunks += 1
            if drawn_below(self._chunks) == 0:
                start = drawn_below(max(1, len(chunk) - self._length + 1))
                self.few = _kept(chunk[drawn_places(len(chunk), self._count)], chunk)
                self.slice = _kept(chunk[start : start + self._length], chunk)
            yield chunk


def _kept(part: Records, chunk: Records) -> Records:
    """Return a copy of a part of a chunk, since a reader may use the memory of the chunk again.

    It is ordered if the chunk is, since kernels treat ordered records separately.
    """
    return ordered([part]) if getattr(chunk, "tree", None) is not None else np.array(part)


def _in_halves(records: Records, sums: Callable[[Records], Integers]) -> Integers:
    half = len(records) // 2
    return sums(records[:half]) + sums(records[half:])


@runtime_checkable
class Partitioned(Protocol):
    """Records in partitions, which other processes sum."""

    def checked(self, step: LocalStep) -> tuple[Integers, Manner]:
        """Return :meth:`LocalStep.checked` of all records, each partition once."""


@runtime_checkable
class Frozen(Protocol):
    """The exact sums of a silo in the periods of a horizon, each computed once."""

    def nonce(self, t: int) -> bytes:
        """Return the 32 bytes that were drawn when period t was frozen.

        Raises
        ------
        PlanError
            If the owner has not frozen period t yet.
        """

    def frozen(self, t: int, length: int, nonce: bytes) -> Integers:
        """Return the sums of the periods 0..t, shape (t + 1, length).

        Raises
        ------
        LedgerError
            If period t was frozen with another nonce.
        """


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
