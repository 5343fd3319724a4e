"""``Horizon``: an answer that is renewed from tables or files as records arrive."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from cloister.app import horizon as app
from cloister.app import horizon_report as report
from cloister.app.job import Job
from cloister.app.payment import Account
from cloister.app.present import doubts_of
from cloister.app.release import Release
from cloister.app.report.notebook import release_axes, release_frame
from cloister.core.capability import CAPABILITIES
from cloister.core.derived import displays_of
from cloister.core.errors import AccuracyWarning, LedgerError, PlanError
from cloister.data import as_silos, read_source
from cloister.data.loss import check_max_loss, completed_by, watch_loss
from cloister.data.records import Records
from cloister.data.units import Admits
from cloister.estimators.base import PrivateEstimator
from cloister.estimators.release import ReleasedModel
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.tasks import installed

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from matplotlib.axes import Axes

    from cloister.privacy.horizon import Workload
    from cloister.privacy.ledger import Ledger

_LATEST = "latest"


@dataclass(frozen=True, eq=False, repr=False)
class Horizon:
    """An answer that is renewed period by period, under one budget for all periods.

    Use :meth:`open` once, and :meth:`load` in later sessions. The budget of the model is charged
    when the horizon is opened. A silo then freezes the records that arrived in a period, and the
    sums of all periods are released with noise. The command ``cloister horizon`` works on the same
    folder.

    Attributes
    ----------
    so_far_ : estimator
        The fitted model of all records so far; a release with displays for a task without an
        estimator. With `keep`, that of the sums that are kept.
    latest_ : estimator
        That of the last period alone; absent with `keep`.
    changes_ : DataFrame
        One row for each table: the p-value of no change between the last 4 periods and all before,
        and `changed`, True below the level. 5 % of horizons have a false alarm in some period. It
        is empty before period 8, or if a person may arrive several times.
    n_periods_ : int
        Number of released periods.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> import pandas as pd
    >>> from cloister import Budget, DPTable, Horizon, Ledger, Schema
    >>> kind = {"name": "kind", "type": "category", "categories": ["burn", "cut"]}
    >>> schema = Schema(dataset="visits", unit="person", max_rows=1, columns=[kind])
    >>> folder = Path(mkdtemp())
    >>> ledger = Ledger(folder / "ledger.db")
    >>> ledger.open_dataset("visits", cap=Budget(1.0, 1e-6), unit="person")
    >>> model = DPTable("kind", epsilon=1.0, bounds=schema, nominal_n=1000, ledger=ledger)
    >>> visits = Horizon.open(model, folder / "visits", periods=4)
    >>> for week in range(2):
    ...     persons = [f"{week}-{i}" for i in range(250)]
    ...     _ = visits.release(pd.DataFrame({"person": persons, "kind": ["burn", "cut"] * 125}))
    >>> visits
    Horizon('tabulate', 2 of 4 periods)
    >>> bool(450 < visits.so_far_.counts_.sum() < 550)
    True
    """

    _new_noise: ClassVar[Callable[[], NoiseSource]] = DiscreteNoise

    folder: Path
    ledger: Ledger | Path | None
    model: PrivateEstimator | None = None
    _kept: app.HorizonFolder = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_kept", app.HorizonFolder.load(self.folder, installed()))

    @classmethod
    def open(
        cls,
        model: PrivateEstimator | Job,
        folder: str | Path,
        *,
        periods: int,
        max_periods: int = 1,
        silos: Sequence[str] = ("silo-0",),
        workload: Workload = "all",
        keep: float | None = None,
        ledger: Ledger | str | Path | None = None,
    ) -> Self:
        """Fix a horizon, and reserve the budget of all its periods.

        Parameters
        ----------
        model : estimator or Job
            What is released, with `epsilon` and `nominal_n` for all periods together and a schema
            with a unit of privacy. The task needs one round and Gaussian noise: `DPTable`,
            `DPKaplanMeier`, `DPLogRank`, `DPCox` or `DPNaiveBayes`, and with `keep` `DPKMeans` with
            ``algorithm="glloyd", rounds=1``. A job is for tasks without an estimator, such as
            "describe".
        folder : path
            A new folder. It has the exact sums of each silo and needs the protection of records.
        periods : int in [2, 104]
        max_periods : int
            Number of periods in which a person may arrive; later rows of that person are left out.
        silos : sequence of str
            Names of the silos; those of a job are its own.
        workload : {"all", "totals"}
            Answers with little noise: totals, single periods and windows, or totals alone.
        keep : float in (0, 1), optional
            For centres that move: the share of earlier sums that each period keeps.
        ledger : Ledger or path, optional
            By default that of the model. It must have the data set.

        Raises
        ------
        PlanError
            If the task cannot have a horizon, before anything is spent.
        BudgetExceeded
            If the ledger refuses.
        """
        of_model = None if isinstance(model, Job) else model
        job, dataset = _job_of(model, silos)
        if job.nominal_n is None:
            raise PlanError("nominal_n must be given: the number of records of all periods.")
        made = app.Horizon.of(job.plan, periods, max_periods, workload=workload, keep=keep)
        path, book = Path(folder), _ledger_of(ledger, of_model)
        with _opened(book) as opened:
            account = Account(opened, dataset or job.schema.dataset)
            app.HorizonFolder.create(path, made, job.schema, account)
        return cls(path, book, of_model)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        model: PrivateEstimator | None = None,
        ledger: Ledger | str | Path | None = None,
    ) -> Self:
        """Return the horizon of a folder, also of one that a command opened.

        Parameters
        ----------
        model : estimator, optional
            The model with which the horizon was opened, for parameters that its folder does not
            have; by default the first estimator of the task.
        ledger : Ledger or path, optional
            The ledger of the horizon, which only a release needs; by default that of the model.
        """
        loaded = cls(Path(folder), _ledger_of(ledger, model), model)
        plan = loaded._kept.horizon.plan
        # Another model would read the released sums as those of its own task.
        if model is not None and _job_of(model, plan.silos)[0].plan.task != plan.task:
            raise PlanError(
                f"model must be the one with which the horizon of task {plan.task.name!r} was "
                f"opened, got {model!r}."
            )
        return loaded

    def release(self, X: Any, *, period: int | None = None, max_loss: float | None = None) -> Self:
        """Freeze the records that arrived in a period, and release its sums once.

        Parameters
        ----------
        X : mapping of silo name to table or path, or what a fit accepts
            The arrivals of each silo, with the columns of the schema and its unit. A list is in the
            order of the silos. A silo without arrivals has a table without rows.
        period : int, optional
            Its number, from 1; by default the next one. Required to repeat an interrupted call.
        max_loss : float in [0, 1], optional
            Share of the rows of each silo that may be left out; by default that of the model.

        Raises
        ------
        PlanError, DataError
            Before the period is frozen. Also if `period` is closed and X has other records, which
            are not counted.
        LedgerError
            If a state or the ledger was restored from a copy, which ends the horizon.
        """
        check_max_loss(max_loss)
        if max_loss is None and self.model is not None:
            max_loss = self.model.max_loss
        sources, plan = self._by_silo(X), self._kept.horizon.plan
        completed = completed_by(plan.task, plan.columns)
        task = plan.options or {}, plan.columns, max_loss, plan.task.name, completed

        def read(admits: Mapping[str, Admits]) -> Mapping[str, Records]:
            how: Any = {"columns": plan.columns, "frac_bits": plan.grid.frac_bits}
            records = {
                silo: read_source(source, self._kept.schema, admits=admits.get(silo), **how)
                for silo, source in sources.items()
            }
            # Before the period is frozen, which cannot be undone.
            watch_loss(records, *task)
            return records

        with _opened(self.ledger) as ledger:
            shown, drawn = self.n_periods_, self._kept.done(ledger)
            # The next period of the ledger would count these records twice.
            if period is None and shown < drawn:
                raise PlanError(
                    f"release of period {drawn} was interrupted after its draw; repeat it with "
                    f"period={drawn} and the same records."
                )
            noise, notices = type(self)._new_noise(), [*self._kept.ignored(ledger)]
            self._kept.release(period or drawn + 1, read, ledger, noise=noise, warn=notices.append)
        for notice in notices:
            warnings.warn(notice, UserWarning, stacklevel=2)
        for doubt in doubts_of(self._answer(self._families[0])):
            warnings.warn(doubt, AccuracyWarning, stacklevel=2)
        return self

    def _by_silo(self, X: Any) -> dict[str, Any]:
        """Return the table of each silo."""
        silos = self._kept.horizon.plan.silos
        # A list has the order of the silos, as in a fit.
        given = X if isinstance(X, Mapping) else dict(enumerate(as_silos(X)))
        if not isinstance(X, Mapping) and len(given) == len(silos):
            given = dict(zip(silos, given.values(), strict=True))
        if set(given) != set(silos):
            raise PlanError(
                f"X must have the arrivals of the silos {', '.join(silos)}, got those of "
                f"{', '.join(map(str, given)) or 'none'}; a silo without arrivals has a table "
                "without rows. If a silo leaves, the horizon ends."
            )
        return {silo: given[silo] for silo in silos}

    @property
    def n_periods_(self) -> int:
        """Number of released periods."""
        return len(self._kept.released())

    @property
    def so_far_(self) -> Any:
        """The fitted model of all records so far."""
        return self._fitted(self._families[0])

    @property
    def latest_(self) -> Any:
        """The fitted model of the last period alone."""
        if _LATEST not in self._families:
            raise AttributeError("a horizon with keep has no latest_; use so_far_.")
        return self._fitted(_LATEST)

    @property
    def changes_(self) -> pd.DataFrame:
        """The tests for a change, one row for each table."""
        import pandas as pd

        found = self._kept.horizon.changes(self._kept.answered())
        p = pd.Series(found, dtype=float, name="p")
        level = report.least_level(self._kept.horizon, max(1, len(found)))
        return pd.DataFrame({"p": p, "changed": p < level})

    def expected(self) -> pd.Series[Any]:
        """Return the root mean square noise of a count in records, for each kind of answer.

        Of a model without counts it is relative to the most that a record adds.
        """
        import pandas as pd

        return pd.Series(self._kept.horizon.expected(), name="noise")

    def over_time(self, of: str | None = None) -> pd.DataFrame:
        """Return the released values with their intervals, after each period.

        Parameters
        ----------
        of : {"so far", "latest", "last 4", "last 13"}, optional
            Records of an answer: all so far (the default), those of one period, or of a window.
            With `keep` there is only "now".

        Returns
        -------
        DataFrame
            The numbers of the report, each with its value and both ends of its 95 % interval,
            indexed by period, table, row and column. `DPTable.to_frame` has a row for each cell.
        """
        import pandas as pd

        horizon, released = self._kept.horizon, self._kept.answered()
        name = self._families[0] if of is None else of
        if name not in horizon.families:
            raise PlanError(f"of must be one of {', '.join(horizon.families)}, got {of!r}.")
        answers = (horizon.latest(released[:t], name) for t in range(1, len(released) + 1))
        task, columns = horizon.plan.task, horizon.plan.columns
        frames = [release_frame(displays_of(task, one.results, columns)) for one in answers]
        return pd.concat(frames, keys=range(1, len(frames) + 1), names=["period"])

    def plot(self, title: str | None = None) -> Axes:
        """Draw the released values over the periods, at least two.

        Parameters
        ----------
        title : str, optional
            Title of one of the pictures over time; by default that of the first.
        """
        horizon, released = self._kept.horizon, self._kept.answered()
        if not (shown := tuple(report.courses(horizon, released))):
            raise PlanError(
                "this horizon has no picture over at least two periods; over_time has its numbers, "
                "and so_far_.plot draws the records so far."
            )
        return release_axes(shown, title)

    def report(self, path: str | Path) -> None:
        """Write all answers, their course and their price as one HTML file."""
        kept = self._kept
        release, shown = report.present_horizon(kept.horizon, kept.answered(), kept.noise)
        report.write_horizon_report(release, shown, Path(path), kept.schema)

    def __repr__(self) -> str:
        horizon = self._kept.horizon
        periods = f"{self.n_periods_} of {horizon.encoding.periods} periods"
        return f"Horizon({horizon.plan.task.name!r}, {periods})"

    @property
    def _families(self) -> list[str]:
        return report.shown_families(self._kept.horizon)

    def _answer(self, name: str) -> Release:
        return report.release_in(self._kept.horizon, self._kept.answered(), name, self._kept.noise)

    def _fitted(self, name: str) -> Any:
        release, schema = self._answer(name), self._kept.schema
        if self.model is not None:
            parameters = {k: v for k, v in self.model.get_params(False).items() if k != "bounds"}
            return type(self.model)._of(release, schema, **parameters)
        row = CAPABILITIES.get(release.plan.task.name)
        for place in row.python if row else ():
            module, _, attribute = place.partition(":")
            # Imported here: another task's module is not needed.
            kind = getattr(import_module(f"cloister.estimators.{module}"), attribute)
            if isinstance(kind, type) and issubclass(kind, PrivateEstimator):
                return kind._of(release, schema)
        return ReleasedModel(release)


def _job_of(model: PrivateEstimator | Job, silos: Sequence[str]) -> tuple[Job, str | None]:
    """Return the job of a model for named silos, and its data set in the ledger."""
    if isinstance(model, Job):
        return model, None
    if not isinstance(model, PrivateEstimator):
        raise PlanError(f"model must be an estimator of cloister or a Job, got {model!r}.")
    if isinstance(silos, str) or not silos:
        raise PlanError(f"silos must be a list of names, got {silos!r}.")
    job, spending = model._job(silos)
    return job, spending.dataset


def _ledger_of(
    ledger: Ledger | str | Path | None, model: PrivateEstimator | None
) -> Ledger | Path | None:
    given = model.ledger if ledger is None and model is not None else ledger
    return Path(given) if isinstance(given, str | Path) else given


@contextmanager
def _opened(ledger: Ledger | Path | None) -> Iterator[Ledger]:
    from cloister.privacy.ledger import Ledger  # here, because it imports SQLAlchemy

    if ledger is None:
        raise PlanError(
            "a horizon needs a ledger, which keeps the noisy sums of each period; give ledger."
        )
    if isinstance(ledger, Ledger):
        yield ledger
        return
    if not ledger.is_file():
        raise LedgerError(f"ledger {str(ledger)!r} is missing; give that of the horizon.")
    opened = Ledger(ledger)
    try:
        yield opened
    finally:
        opened.dispose()
