"""A silo's part of a horizon over a network: its owner freezes periods, and its agent sends them.

The owner freezes the arrivals of a period by a command, which reads the records. The agent reads
none: it sends a row of the public matrix times the stored sums. The state is a file next to the
ledger. It is compared with the ledger's charges, so that an older copy of either is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

from cloister.app.arrivals import ENDED, Arrivals, frozen_periods, nonces
from cloister.app.horizon import freeze_arrivals
from cloister.core.arrays import Integers
from cloister.core.errors import LedgerError, PlanError
from cloister.data.records import Records
from cloister.data.units import Admits
from cloister.federation.silo.site import Site
from cloister.federation.silo.store import Job
from cloister.privacy.horizon import Encoding
from cloister.privacy.ledger import Ledger
from cloister.protocol.code import code_mismatch
from cloister.protocol.lifecycle import GRANTED
from cloister.protocol.plan import Plan
from cloister.protocol.progress import Progress

Read = Callable[[Admits], Records]
"""Reads the records that arrived; rows of units that are not admitted are left out."""


class Periods:
    """The frozen sums of a silo in one job, in the place of its client's records.

    Parameters
    ----------
    path : Path
        The state of the silo, see :class:`Arrivals`.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        self._path, self._plan = path, plan

    @property
    def _encoding(self) -> Encoding:
        assert self._plan.horizon is not None
        return self._plan.horizon

    @classmethod
    def of(cls, site: Site, plan: Plan) -> Self:
        """Return the sums of a job at a silo."""
        return cls(_state_path(site, plan.run_id), plan)

    def create(self) -> None:
        """Make the state before the first period; it replaces that of an interrupted call."""
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        _delete(self._path)
        Arrivals.create(self._path, self._plan.digest.hex())

    @contextmanager
    def opened(self, sent: int) -> Iterator[Arrivals]:
        """Open the state, and compare it with the periods that the ledger has sent.

        Raises
        ------
        LedgerError
            If the state is missing, or if it or the ledger was restored from a copy.
        """
        digest, most = self._plan.digest.hex(), self._encoding.max_periods
        with closing(Arrivals(self._path, digest, most)) as state:
            state.compare(sent)
            yield state

    def nonce(self, t: int) -> bytes:
        """Return the nonce of period t; see :class:`Frozen`."""
        if len(drawn := nonces(self._path)) <= t:
            raise PlanError(f"period {t + 1} is not frozen here yet.")
        return drawn[t]

    def frozen(self, t: int, length: int, nonce: bytes) -> Integers:
        """Return the sums of the periods 0..t; see :class:`Frozen`."""
        # A period is asked for once it is the next one in the ledger.
        with self.opened(t) as state:
            if state.nonce(t) != nonce:
                raise LedgerError(f"period {t + 1} was frozen again meanwhile, {ENDED}.")
            return state.sums(length)

    def note(self, frames: list[bytes], sent: int) -> None:
        """Note the words of released periods."""
        with self.opened(sent) as state:
            for t, frame in enumerate(frames):
                if not state.is_noted(t, frame):  # noted with other words is an error
                    state.note(t, frame)

    @property
    def count(self) -> int:
        """Number of frozen periods; 0 if the state is missing."""
        return frozen_periods(self._path)

    def freeze(
        self,
        period: int,
        silo: str,
        read: Read,
        sent: int,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """Freeze the arrivals of a period once; a repeated call compares its records.

        Parameters
        ----------
        period : int, from 1
        read : function
            Reads the records, given the units whose rows count.
        sent : int
            Number of periods that the ledger has sent.
        warn : function
            Receives a sentence if an earlier period has the same records.
        """
        with self.opened(sent) as state:
            if period <= state.frozen:
                state.check_content(period - 1, read(_anyone).fingerprint(state.key))
                return
            if period != sent + 1 or state.noted < sent:
                raise PlanError(
                    f"period {sent} is sent and not released yet; wait for the other silos."
                    if state.noted < sent
                    else f"period must be {sent + 1}, the next one, got {period}."
                )
            records = read(state.admits)
            self._plan.contract.check(records)
            before = Progress(self._plan).state
            freeze_arrivals(self._plan, silo, records, before, state, period - 1, warn)


def forget(site: Site, job: str) -> None:
    """Delete the state of a job that ended, if it has one."""
    _delete(_state_path(site, job))


def states(site: Site) -> list[Path]:
    """Return the files of all states, named by their jobs."""
    return list(_folder(site).glob("*.db"))


def sent_of(ledger: Ledger, job: str) -> int:
    """Return the number of periods of a job that a ledger has sent."""
    return next((len(one.rounds) for one in ledger.jobs() if one.job == job), 0)


def freeze(
    site: Site, job: Job, plan: Plan, period: int, read: Read, warn: Callable[[str], None]
) -> None:
    """Freeze a period of a job as its owner; see :meth:`Periods.freeze`."""
    if plan.horizon is None:
        raise PlanError(f"job {job.id} has no periods; its agent reads the records by itself.")
    if job.state not in GRANTED:
        raise PlanError(f"job {job.id} is {job.state}; only an approved job has periods to freeze.")
    if not 1 <= period <= plan.horizon.periods:
        raise PlanError(f"period must be in [1, {plan.horizon.periods}], got {period}.")
    # The agent sends no sum of other code, and a frozen one is never computed again.
    if reason := code_mismatch(plan):
        raise PlanError(reason)
    ledger = site.ledger()
    try:
        sent = sent_of(ledger, job.id)
    finally:
        ledger.dispose()
    Periods.of(site, plan).freeze(period, site.settings.name, read, sent, warn)


def _folder(site: Site) -> Path:
    ledger = site.settings.ledger
    return ledger.with_name(f"{ledger.stem}.periods")


def _state_path(site: Site, job: str) -> Path:
    return _folder(site) / f"{job}.db"


def _delete(path: Path) -> None:
    if path.exists():
        # The state last: as long as it exists, a crash in between is repeated.
        for end in ("-wal", "-shm", ""):
            path.with_name(path.name + end).unlink(missing_ok=True)


def _anyone(unit: str) -> bool:
    return True
