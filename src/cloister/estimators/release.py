"""What a release may spend, and the one way from an estimator or a function to a job.

A release is a function of silos' records and :class:`BudgetParameters`. Functions call
:func:`release` directly; an estimator makes the spending of its parameters and keeps what came out.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.app.job import Job
from cloister.app.payment import Account
from cloister.app.progress import round_bar
from cloister.app.release import Release
from cloister.core.display import Display
from cloister.core.errors import PlanError, UncountedWarning
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
    """What one release may spend, by which contract, and where it is counted.

    Its fields are the parameters of every :class:`~cloister.estimators.base.PrivateEstimator`;
    `bounds` may be None where another contract was agreed.
    """

    epsilon: float
    bounds: Any
    nominal_n: int | None = None
    delta: float | None = None
    ledger: Ledger | str | Path | None = None
    dataset: str | None = None
    frac_bits: int = 16
    max_loss: float | None = None

    def __post_init__(self) -> None:
        check_max_loss(self.max_loss)
        given = {} if self.nominal_n is None else {"nominal_n": self.nominal_n}
        check_whole(frac_bits=self.frac_bits, **given)
        for name in ("frac_bits", *given):  # numpy's integers are none to JSON
            object.__setattr__(self, name, int(getattr(self, name)))

    @property
    def schema(self) -> Schema | None:
        """The schema among the bounds, if they are one."""
        return self.bounds if isinstance(self.bounds, Schema) else None

    def account(self) -> Account | None:
        """Return where the release is charged, or None without a ledger."""
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
    """Release what a task makes of silos' records, read by the contract of the spending.

    The noise is exact and discrete, from the operating system, unless a test gives another; further
    keywords are options of the task. A PlanError comes before anything is spent, BudgetExceeded if
    the ledger refuses.
    """
    job = Job(
        task=task,
        schema=data.schema,
        silos=tuple(data.records),
        options=options,
        epsilon=spending.epsilon,
        delta=spending.delta,
        nominal_n=spending.nominal_n,
        frac_bits=spending.frac_bits,
        max_loss=spending.max_loss,
    )
    with round_bar() as on_round:
        return job.run(data.records, account=spending.account(), on_round=on_round, noise=noise)


@dataclass(frozen=True)
class ReleasedModel(ReleaseMixin):
    """A released answer and its plan."""

    result: Release

    @property
    def result_(self) -> Release:  # type: ignore[override]  # as a fitted estimator has it
        """The same as `result`."""
        return self.result

    @property
    def plan(self) -> Plan:
        """The plan of the release."""
        return self.result.plan

    @property
    def spent(self) -> float:
        """Epsilon spent, at the plan's delta."""
        return self.result.epsilon()

    def exhibits(self) -> tuple[Display, ...]:
        """Return :meth:`displays`; its old name, for one release."""
        warnings.warn("exhibits is called displays now.", DeprecationWarning, stacklevel=2)
        return self.displays()


def account_of(ledger: Ledger | str | Path | None, dataset: str | None) -> Account | None:
    """Return where a release is charged, or None without a ledger, with a warning."""
    if ledger is None:
        say_uncounted()
        return None
    if dataset is None:
        raise PlanError("dataset must be given with a ledger; it is charged under that name.")
    from cloister.privacy.ledger import Ledger  # and SQLAlchemy, only where it is needed

    return Account(ledger if isinstance(ledger, Ledger) else Ledger(ledger), dataset)


@cache
def say_uncounted() -> None:
    """Warn that a release is in no ledger; once a process, whatever the warning filters are."""
    warnings.warn(
        "no ledger was given, so what this release costs is not added to any other, and each fit "
        "of a search or a cross-validation is one; give ledger and dataset, and the whole cost of "
        "the records is known and limited.",
        UncountedWarning,
        stacklevel=2,
    )


def check_whole(**numbers: Any) -> None:
    """Refuse a number that is not an integer of at least 1."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise PlanError(f"{name} must be an integer >= 1, got {value!r}.")
