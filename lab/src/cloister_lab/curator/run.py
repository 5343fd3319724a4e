"""Run a curator's method: pay for it, draw its noise once, and keep the answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np

from cloister.app.in_process import CONTENT_KEY
from cloister.app.job import COUNT_SHARE, split_budget
from cloister.app.payment import Account
from cloister.core.errors import PlanError
from cloister.core.randomness import new_nonce
from cloister.data.schema import Schema
from cloister.privacy import accounting
from cloister.privacy.budget import Budget, default_delta
from cloister.privacy.calibration import laplace_noise_multiplier
from cloister.privacy.events import ComposedEvent, Event, LaplaceEvent
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.task import COUNT_BITS, Floats, Records, records_in_box
from cloister_lab.curator.base import CuratorMethod


@dataclass(frozen=True)
class CuratorResult:
    """What a method released.

    Parameters
    ----------
    centres : ndarray of shape (n_clusters, n_features), data units
    spent : Event
        What was done to the records, the count included.
    noise : str
        Where the noise came from.
    """

    method: CuratorMethod
    centres: Floats
    budget: Budget
    spent: Event = field(repr=False)
    noise: str

    def epsilon(self) -> float:
        """Return the epsilon spent at the budget's delta; infinity for a method without one."""
        return accounting.epsilon(self.spent, self.budget.delta)


def run_method(
    method: type[CuratorMethod],
    schema: Schema,
    records: Iterable[Records],
    *,
    epsilon: float,
    delta: float | None = None,
    nominal_n: int | None = None,
    frac_bits: int = 16,
    noise: NoiseSource | None = None,
    account: Account | None = None,
    study: str = "default",
    **options: Any,
) -> CuratorResult:
    """Design a method from public facts and run it on all records.

    Parameters
    ----------
    schema : Schema
        Its unit of privacy must be the row: a method's guarantee is for one record.
    delta, noise : float and NoiseSource, optional
        As of :func:`cloister.app.job.run_job`.
    nominal_n : int, optional
        Without it, 2 % of epsilon pay for a count with Laplace noise.
    account : Account, optional
        Everything is reserved there before the records are looked at, and charged before the answer
        is returned.
    options
        The method's own, such as ``n_clusters`` and ``public_seed``.

    Raises
    ------
    PlanError, BudgetExceeded
        Before anything is spent. A ledger always refuses a method that is not private.
    """
    if schema.group_size != 1:
        raise PlanError(
            f"unit of privacy must be a row for {method.name!r}, got {schema.describe_unit()}; "
            "use DPKMeans, which protects such units."
        )
    schema.contract(frac_bits).check(records)
    source = noise or DiscreteNoise()
    whole = Budget(epsilon, default_delta(nominal_n) if delta is None else delta)
    grid = schema.grid(frac_bits)
    public = {"n_features": grid.n_features, "frac_bits": frac_bits, **options}
    fewest = max(1, options.get("n_clusters", 1))
    if nominal_n is not None and nominal_n < fewest:
        raise PlanError(
            f"n_clusters must be at most nominal_n={nominal_n}, got {fewest}; ask for fewer."
        )
    bought: tuple[LaplaceEvent, ...] = ()
    budget = whole
    if nominal_n is None:
        small, budget = split_budget(whole, COUNT_SHARE, "laplace")
        bought = (LaplaceEvent(laplace_noise_multiplier(small.epsilon)),)
    designed = method.design(nominal_n=nominal_n or fewest, budget=budget, **public)
    job = new_nonce()
    if account:
        _reserve(account, schema, job, study, (*bought, designed.events()), records)
    try:
        table = np.concatenate([np.zeros((0, grid.n_features), dtype=np.int32), *records])
        table = records_in_box(table, frac_bits)
        for event in bought:
            counted = _noisy_count(len(table), event, source)
            if account:
                frame = str(counted).encode()
                account.ledger.commit(job=job, round=0, event=event, frame=frame)
            designed = method.design(nominal_n=max(fewest, counted), budget=budget, **public)
        centres = designed.release(table, source)
        if account:
            frame = centres.tobytes()
            account.ledger.commit(job=job, round=1, event=designed.events(), frame=frame)
    finally:
        if account:
            account.ledger.close(job)
            account.ledger.forget_frames(job)
    label = source.label if method.private else "none that protects: not private"
    spent = ComposedEvent((*bought, designed.events()))
    return CuratorResult(designed, grid.decode(centres), whole, spent, label)


def _reserve(
    account: Account,
    schema: Schema,
    job: str,
    study: str,
    events: tuple[Event, ...],
    records: Iterable[Records],
) -> None:
    """Set aside the cost of everything, before anything is spent."""
    unit = account.ledger.unit(account.dataset)
    if unit != schema.unit:
        raise PlanError(
            f"unit of privacy is {schema.unit!r}, but the ledger counts {unit!r} for "
            f"{account.dataset!r}; use the schema the data set was opened with."
        )
    fingerprint = getattr(records, "fingerprint", None)
    account.ledger.reserve(
        dataset=account.dataset,
        study=study,
        job=job,
        events=ComposedEvent(events),
        content=None if fingerprint is None else fingerprint(CONTENT_KEY),
        confirm_same_content=account.confirm_same_content,
    )


def _noisy_count(n: int, event: LaplaceEvent, noise: NoiseSource) -> int:
    """Return a whole number of records near `n`, with Laplace noise."""
    scale = ceil(event.noise_multiplier * (1 << COUNT_BITS))
    return ((n << COUNT_BITS) + int(noise.draw("laplace", scale, 1)[0])) >> COUNT_BITS
