"""The horizons of a desk: their answers so far, and the release of the next period."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Lock

from cloister.app.answer import Answer, answer_of
from cloister.app.files import SiloFiles
from cloister.app.horizon import HORIZON, RELEASES, Horizon, HorizonFolder
from cloister.app.horizon_report import (
    change_sentence,
    present_horizon,
    release_in,
    shown_families,
    write_horizon_report,
)
from cloister.app.payment import Payment
from cloister.app.present import Presentation, present
from cloister.console.questions import FormState
from cloister.core.errors import CloisterError, LedgerError, PlanError
from cloister.data.records import Records
from cloister.data.units import Admits
from cloister.privacy.ledger import Ledger
from cloister.tasks import TASKS


@dataclass(frozen=True)
class Renewed:
    """A horizon in a folder, for its page.

    Parameters
    ----------
    name : str
        Name of the folder.
    """

    name: str
    kept: HorizonFolder

    @property
    def horizon(self) -> Horizon:
        """The public numbers."""
        return self.kept.horizon

    @property
    def of(self) -> int:
        """Number of all periods."""
        return self.horizon.encoding.periods

    @cached_property
    def n(self) -> int:
        """Number of periods whose numbers are shown."""
        return len(self.kept.released())

    @property
    def released_at(self) -> float:
        """The time of the last release, seconds since 1970; 0 before the first."""
        file = self.kept.path / RELEASES
        return file.stat().st_mtime if file.is_file() else 0.0

    @property
    def task(self) -> str:
        """Name of the task, which may be that of a question."""
        return self.horizon.plan.task.name

    @cached_property
    def _shown(self) -> Presentation:
        return present_horizon(self.horizon, self.kept.released(), self.kept.noise)[1]

    @cached_property
    def running(self) -> Answer:
        """The answer for all records so far."""
        return answer_of(self._shown)

    @cached_property
    def latest(self) -> Answer | None:
        """The answer for the last period alone; None if there is none, or it is the same."""
        if self.n < 2 or "latest" not in shown_families(self.horizon):
            return None
        one = release_in(self.horizon, self.kept.released(), "latest", self.kept.noise)
        answer = answer_of(present(one))
        return replace(answer, caption=f"Period {self.n} alone: {answer.caption}")

    @cached_property
    def course(self) -> Answer | None:
        """The released values over the periods; None if no picture has them."""
        if not self._shown.course:
            return None
        return answer_of(replace(self._shown, displays=self._shown.course[:1]))

    @property
    def answers(self) -> Mapping[str, Answer | None]:
        """The answers with a picture, by the name of the picture; empty before a release."""
        if not self.n:
            return {}
        return {"running": self.running, "latest": self.latest, "course": self.course}

    @property
    def change(self) -> str:
        """The verdict on a change; empty for a task without a test."""
        return change_sentence(self.horizon, self.kept.released())


class Horizons:
    """The horizons in a folder, released one period at a time.

    Parameters
    ----------
    folder : Path
    ledger : Path
        The ledger that a release is charged to.
    """

    def __init__(self, folder: Path, ledger: Path) -> None:
        self._folder, self._ledger = folder, ledger
        self._lock = Lock()  # requests run in threads
        self._seen: dict[str, Renewed] = {}  # since pictures take a moment
        self.notices: dict[str, list[str]] = {}
        """Sentences on the rows of the last release, for the owner alone, by the name."""

    def find(self, name: str) -> Renewed:
        """Return the horizon in a folder of this name."""
        now = Renewed(name, HorizonFolder.load(self._folder / name, TASKS))
        before = self._seen.get(name)
        if before is None or (before.n, before.horizon.digest) != (now.n, now.horizon.digest):
            self._seen[name] = now
        return self._seen[name]

    def read(self, names: Iterable[str]) -> Iterator[Renewed]:
        """Yield the horizons among folders of these names."""
        for name in names:
            with suppress(CloisterError):
                yield self.find(name)

    def open(self, entered: FormState, name: str) -> None:
        """Reserve the price of the question page's horizon; a second call has no effect."""
        horizon, path = horizon_of(entered), self._folder / name
        if horizon is None:
            raise PlanError("enter the number of periods.")
        with self._lock:
            if (path / HORIZON).exists():  # a second press of the button
                return
            payment = Payment(ledger=self._ledger, cap_epsilon=entered.cap_epsilon)
            charge = payment.open(entered.schema, horizon.plan)
            assert charge is not None  # a horizon has a budget
            try:
                HorizonFolder.create(path, horizon, entered.schema, charge.account)
            finally:
                charge.close()

    def drawn(self, one: Renewed) -> int:
        """Return the number of periods that the ledger has; one more than shown after a crash."""
        with self._opened() as ledger:
            return one.kept.done(ledger)

    def release(self, one: Renewed, period: int, files: SiloFiles, max_loss: float | None) -> None:
        """Release a period, and write the report; a repeated call changes nothing."""
        kept, notices = one.kept, list[str]()

        def read(admits: Mapping[str, Admits]) -> Mapping[str, Records]:
            return kept.read(files, admits, max_loss=max_loss, say=notices.append)

        with self._lock, self._opened() as ledger:
            kept.release(period, read, ledger, warn=notices.append)
            self.notices[one.name] = notices
            release, shown = present_horizon(one.horizon, kept.released(), kept.noise)
            write_horizon_report(release, shown, kept.path / "report.html", kept.schema)

    @contextmanager
    def _opened(self) -> Iterator[Ledger]:
        if not self._ledger.is_file():  # opening it would create an empty ledger
            raise LedgerError(f"ledger {str(self._ledger)!r} is missing; restore it.")
        ledger = Ledger(self._ledger)
        try:
            yield ledger
        finally:
            ledger.dispose()


def likely(silo: str, names: Iterable[str], *, first: bool = False) -> str:
    """Return the file that a silo's next arrivals are probably in, by its name; or none."""
    names = tuple(names)
    # The silo has the name of its first file, which may end with a date or a number.
    if first and (own := [name for name in names if Path(name).stem == silo]):
        return own[0]
    stem = silo.rstrip("0123456789-_ .") or silo
    found = [name for name in names if name.startswith(stem)]
    return max(found, key=lambda name: (len(name), name), default="")


def horizon_of(entered: FormState) -> Horizon | None:
    """Return the horizon of the question page; None if its number of periods is empty."""
    if entered.renewal is None:
        return None
    if entered.baskets:
        raise PlanError("market baskets cannot be renewed; leave the number of periods empty.")
    if entered.want:
        raise PlanError(
            "a wanted precision is that of one answer; choose an epsilon, or leave the number of "
            "periods empty."
        )
    return Horizon.of(entered.job().plan, **entered.renewal)
