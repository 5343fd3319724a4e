"""Records of one silo in partitions, each read and summed by a worker of the silo."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cloister.core.errors import CloisterError, DataError, PlanError
from cloister.data.reading import ReadingReport
from cloister.data.records import read_source
from cloister.data.rules import Chunk
from cloister.data.sources import parquet_files
from cloister.protocol.rows import MANNERS

if TYPE_CHECKING:
    from cloister.core.arrays import Integers
    from cloister.data.schema import Schema
    from cloister.hazmat.fixedpoint import Contract
    from cloister.protocol.rows import Manner
    from cloister.protocol.summing import LocalStep

T = TypeVar("T")


@dataclass(frozen=True)
class Held:
    """The records of one partition in the worker that read them."""

    chunks: tuple[Chunk, ...] = field(repr=False)
    seal: bytes = field(repr=False)  # of all columns, to check a repeated reading
    report: ReadingReport


@dataclass(frozen=True)
class Failure:
    """The reason why a worker has no answer, in a sentence without content of the records."""

    reason: str


Read = Callable[[], Held | Failure]


class Workers(Protocol):
    """Workers that apply a function to partitions: the interface to a cluster."""

    def answers(
        self, label: str, reads: Mapping[str, Read], function: Callable[[Held | Failure], T]
    ) -> Iterable[tuple[str, T]]:
        """Yield the id of each partition and the function's result for it, in any order.

        Parameters
        ----------
        label : str
            Name of the call in the logs and pages of the cluster, where ids appear too.
        reads : mapping of id to function
            A partition is the same in every worker and every reading. So a worker may keep it, and
            another worker may read it again if the first is lost.
        function : function
            Like those of `reads` it never raises, so that no content of the records enters the
            cluster's logs.

        Raises
        ------
        DataError
            If no worker gave an answer.
        """


@dataclass(frozen=True, eq=False, repr=False)
class PartitionedRecords:
    """Records of one silo in the memory of workers; a job accepts them like `Records`.

    Notes
    -----
    Each partition has an id and counts exactly once, else the round stops. If its sum was computed
    repeatedly, for example after the loss of a worker, one of the equal answers is used.
    """

    contract: Contract
    _workers: Workers
    _reads: Mapping[str, Read]
    _seals: Mapping[str, bytes]
    reports: tuple[ReadingReport, ...] = ()
    """The report on each partition: exact counts, for the owner alone."""

    def __repr__(self) -> str:
        return f"PartitionedRecords(n_features={self.n_features})"

    def __iter__(self) -> Iterator[Chunk]:
        """Read all partitions in this process, in the order of their ids."""
        for name in sorted(self._reads):
            held = _read(self._reads[name](), name)
            self._check({name: held.seal})
            yield from held.chunks

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return self.contract.grid.n_features

    def checked(self, step: LocalStep) -> tuple[Integers, Manner]:
        """Return the sums of all partitions, each once, and the strictest manner among them."""
        total, manner = step.checked([])
        for sums, needed in self._each(f"{step.task.name}-{step.t}", _Checked(step)).values():
            total += step.whole(sums)
            # One partition whose kernel failed its check decides for the silo.
            manner = max(manner, needed, key=MANNERS.index)
        return total, manner

    def fingerprint(self, key: bytes) -> bytes:
        """Return 32 bytes that identify the records, their partitions and the key.

        Parameters
        ----------
        key : bytes, 16 to 64, secret of the owner
        """
        digest = hashlib.blake2b(key=key, digest_size=32, person=b"partitions")
        for name in sorted(self._seals):
            digest.update(hashlib.blake2b(name.encode(), digest_size=32).digest())
            digest.update(self._seals[name])
        return digest.digest()

    def _each(self, label: str, function: Callable[[Held], T]) -> Mapping[str, T]:
        answers = _once(self._reads, self._workers.answers(label, self._reads, _Safe(function)))
        self._check({name: seal for name, (seal, _) in answers.items()})
        return {name: answer for name, (_, answer) in answers.items()}

    def _check(self, seals: Mapping[str, bytes]) -> None:
        if changed := [name for name, seal in seals.items() if seal != self._seals[name]]:
            raise DataError(
                f"partition {changed[0]!r} changed while it was in use; records must stay the same "
                "during a job, so start a new job."
            )


def read_partitions(
    sources: Mapping[str, Any],
    schema: Schema,
    workers: Workers,
    *,
    columns: Sequence[str] | None = None,
    frac_bits: int = 16,
) -> PartitionedRecords:
    """Read the partitions of one silo with workers, by the rules of a schema.

    Parameters
    ----------
    sources : mapping of id to path or SqlQuery
        Sources as in `read_source`, the same in every worker.
    columns, frac_bits
        As in `read_source`.

    Raises
    ------
    DataError
        If a partition cannot be read, or no worker gave an answer.
    PlanError
        If the schema limits the rows of a unit, which may be in several partitions.
    """
    if schema.unit_column is not None:
        raise PlanError(
            f"the schema limits the rows of each {schema.unit_column!r} by max_rows, but these may "
            "be in several partitions; read all files in one process, without workers."
        )
    if not sources:
        raise DataError("there are no partitions; give at least one.")
    contract = schema.contract(frac_bits, columns)
    reads = {
        name: _Reading(source, schema, contract.columns, frac_bits)
        for name, source in sources.items()
    }
    answers = _once(reads, workers.answers("read", reads, _Safe(attrgetter("report"))))
    seals = {name: seal for name, (seal, _) in answers.items()}
    reports = tuple(report for _, (_, report) in sorted(answers.items()))
    return PartitionedRecords(contract, workers, reads, seals, reports)


def partitions_of(folder: Path) -> dict[str, Path]:
    """Return the Parquet files of a folder, each a partition with its relative path as id."""
    if not folder.is_dir():
        raise DataError(
            f"{str(folder)!r} is not a folder; workers need a folder of Parquet files, one for "
            "each partition."
        )
    return {str(file.relative_to(folder)): file for file in parquet_files(folder)}


# Compared by identity: between two jobs the file may have changed.
@dataclass(frozen=True, eq=False)
class _Reading:
    """A function that reads a partition and returns errors as answers."""

    source: Any = field(repr=False)
    schema: Schema
    columns: tuple[str, ...]
    frac_bits: int

    def __call__(self) -> Held | Failure:
        return _safely(self._held)

    def _held(self) -> Held:
        records = read_source(
            self.source, self.schema, columns=self.columns, frac_bits=self.frac_bits
        )
        return Held(tuple(records), records.fingerprint(b"seal of partition"), records.report)


@dataclass(frozen=True)
class _Safe:
    """A function of a partition that also returns its seal, and returns errors as answers."""

    function: Callable[[Held], Any]

    def __call__(self, held: Held | Failure) -> Any:
        if isinstance(held, Failure):
            return held
        return _safely(lambda: (held.seal, self.function(held)))


@dataclass(frozen=True)
class _Checked:
    step: LocalStep

    def __call__(self, held: Held) -> tuple[Integers, Manner]:
        return self.step.checked(held.chunks)


def _safely(work: Callable[[], T]) -> T | Failure:
    try:
        return work()
    except CloisterError as error:  # the texts of this package quote no records
        return Failure(str(error))
    except Exception as error:  # its text may quote a record
        return Failure(f"a worker raised a {type(error).__name__}.")


def _read(answer: T | Failure, name: str) -> T:
    if isinstance(answer, Failure):
        raise DataError(f"partition {name!r} cannot be used: {answer.reason}")
    return answer


def _once(ids: Iterable[str], answers: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the answer of each partition; raise unless each has exactly one."""
    pending, accepted = set(ids), {}
    for name, answer in answers:
        if name not in pending:
            raise DataError(
                f"partition {name!r} does not belong to this job or was answered twice, but each "
                "must count once; restart the workers."
            )
        pending.remove(name)
        accepted[name] = _read(answer, name)
    if pending:
        raise DataError(
            f"partition {min(pending)!r} has no answer, but each must count once; restart the "
            "workers."
        )
    return accepted
