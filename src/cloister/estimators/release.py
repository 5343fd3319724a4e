"""The budget of a release, and the function that runs the job of every estimator and function.

A release is a function of silos' records and :class:`BudgetParameters`. Functions call
:func:`release` directly. An estimator makes the budget parameters from its own, and keeps the
result.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.app.forecast import category_warnings, privacy_warnings, size_warnings
from cloister.app.job import Job
from cloister.app.payment import Account
from cloister.app.present import doubts_of
from cloister.app.progress import round_bar
from cloister.app.release import Release
from cloister.core.display import Display
from cloister.core.errors import AccuracyWarning, PlanError, PrivacyWarning, UncountedWarning
from cloister.data.loss import check_max_loss
from cloister.data.schema import Schema
from cloister.estimators.results import ReleaseMixin
from cloister.privacy.noise import NoiseSource
from cloister.protocol.plan import Plan
from cloister.protocol.task import Task

if TYPE_CHECKING:
    from cloister.estimators.tables import SiloData
    from cloister.privacy.ledger import Ledger


@dataclass(frozen=True)
class BudgetParameters:
    """The budget of one release, its bounds, and its ledger.

    The fields are the parameters of every :class:`~cloister.estimators.base.PrivateEstimator`;
    `bounds` may be None if another contract is agreed. `columns` are those of a schema among the
    bounds that the release uses; all by default.
    """

    epsilon: float
    bounds: Any
    nominal_n: int | None = None
    delta: float | None = None
    ledger: Ledger | str | Path | None = None
    dataset: str | None = None
    frac_bits: int = 16
    max_loss: float | None = None
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_max_loss(self.max_loss)
        optional = {} if self.nominal_n is None else {"nominal_n": self.nominal_n}
        check_whole(frac_bits=self.frac_bits, **optional)
        for name in ("frac_bits", *optional):  # JSON does not support NumPy's integers
            object.__setattr__(self, name, int(getattr(self, name)))

    @property
    def schema(self) -> Schema | None:
        """The schema among the bounds, if they are one."""
        return self.bounds if isinstance(self.bounds, Schema) else None

    def account(self) -> Account | None:
        """Return the account that the release is charged to, or None without a ledger."""
        # The schema's name is the default, so that scripts and commands charge the same data set.
        named = self.schema.dataset if self.schema else None
        return account_of(self.ledger, self.dataset or named)


def release(
    task: type[Task],
    data: SiloData,
    spending: BudgetParameters,
    *,
    noise: NoiseSource | None = None,
    **options: Any,
) -> Release:
    """Run a task on silos' records as one job and return its release.

    The noise is exact and discrete, from the operating system, unless a test gives another source.
    Further keywords are options of the task. A PlanError is raised before any budget is spent, and
    BudgetExceeded if the ledger refuses.
    """
    job = job_for(task, data, spending, options)
    _warn_before(job)
    # A fit may take minutes, for example over large files.
    with round_bar() as on_round:
        found = job.run(data.records, account=spending.account(), on_round=on_round, noise=noise)
    for doubt in doubts_of(found):
        warnings.warn(doubt, AccuracyWarning, stacklevel=4)
    return found


def job_for(
    task: type[Task], data: SiloData, spending: BudgetParameters, options: dict[str, Any]
) -> Job:
    """Return the job of a task on silos' records."""
    return Job(
        task=task,
        schema=data.schema,
        silos=tuple(data.records),
        options=options,
        epsilon=spending.epsilon,
        delta=spending.delta,
        nominal_n=spending.nominal_n,
        frac_bits=spending.frac_bits,
        max_loss=spending.max_loss,
        columns=spending.columns,
    )


def _warn_before(job: Job) -> None:
    """Warn of a plan as the command line does, before anything is spent."""
    # A plan without a nominal number of records is for the fewest, so its size says nothing.
    accuracy = size_warnings(job.plan) if job.nominal_n is not None else ()
    for text in (*accuracy, *category_warnings(job.plan, job.schema)):
        warnings.warn(text, AccuracyWarning, stacklevel=5)
    for text in privacy_warnings(job.plan):
        warnings.warn(text, PrivacyWarning, stacklevel=5)


@dataclass(frozen=True)
class ReleasedModel(ReleaseMixin):
    """A release with its plan and its displays."""

    result: Release

    @property
    def result_(self) -> Release:  # type: ignore[override]  # the mixin expects this name
        """The same as `result`."""
        return self.result

    def __str__(self) -> str:
        return str(self.to_frame())

    @property
    def plan(self) -> Plan:
        """The plan of the release."""
        return self.result.plan

    @property
    def spent(self) -> float:
        """Epsilon spent, at the plan's delta."""
        return self.result.epsilon()

    def exhibits(self) -> tuple[Display, ...]:
        """Return :meth:`displays`, whose old name works for one release."""
        warnings.warn(
            "exhibits is now called displays; call displays().", DeprecationWarning, stacklevel=2
        )
        return self.displays()


def account_of(ledger: Ledger | str | Path | None, dataset: str | None) -> Account | None:
    """Return the account that a release is charged to; warn and return None without a ledger."""
    if ledger is None:
        say_uncounted()
        return None
    if dataset is None:
        raise PlanError(
            "dataset is required with a ledger, which charges under this name; give dataset."
        )
    from cloister.privacy.ledger import Ledger  # here, because it imports SQLAlchemy

    return Account(ledger if isinstance(ledger, Ledger) else Ledger(ledger), dataset)


# Without it, a cross-validation would repeat the warning for every fit.
@cache
def say_uncounted() -> None:
    """Warn that a release is not in a ledger; once per process, under any warning filter."""
    warnings.warn(
        "no ledger was given, so the cost of this release is not added to that of others, and each "
        "fit of a search or a cross-validation is a separate release; give ledger and dataset to "
        "record and limit the total cost.",
        UncountedWarning,
        stacklevel=2,
    )


def check_whole(**numbers: Any) -> None:
    """Raise a PlanError for a value other than an integer of at least 1."""
    for name, value in numbers.items():
        # In Python, True is an integer.
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise PlanError(f"{name} must be an integer >= 1, got {value!r}.")
