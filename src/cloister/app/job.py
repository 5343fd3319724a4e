"""``Job``: a request for one release, from its plan to its result, for every interface.

An interface builds a job, shows the plan, opens an account, runs the job and presents the release.
No budget is spent and no record is read before :meth:`Job.run`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import sqrt
from typing import Any, Self

from cloister.app.encoded_options import decode_options, encode_options
from cloister.app.forecast import wanted_budget
from cloister.app.in_process import OnRound, SiloRecords, check_records, content_of, run_plan
from cloister.app.payment import Account
from cloister.app.question import hash_of, question_of
from cloister.app.release import Release
from cloister.core.capability import CAPABILITIES
from cloister.core.errors import PlanError, choosing
from cloister.data.loss import completed_by, loss_notices, watch_loss
from cloister.data.schema import Schema
from cloister.privacy import accounting
from cloister.privacy.budget import Budget, default_delta
from cloister.privacy.calibration import gdp_mu_for
from cloister.privacy.events import ComposedEvent
from cloister.privacy.horizon import Encoding
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.code import code_of
from cloister.protocol.plan import Plan
from cloister.protocol.readers import Reader
from cloister.protocol.releases import UNTOLD, code_for, earlier_code
from cloister.protocol.task import Mechanism, Profile, PublicFacts, Task
from cloister.tasks.count import Count
from cloister.tasks.options import design, options_bounded_by_n

COUNT_SHARE = 0.02
"""Share of the budget for a noisy count if no nominal number of records is agreed."""
_MANY = 10**9  # records: what is refused for so many is refused for any number


@dataclass(frozen=True, kw_only=True)
class Trust:
    """The fields of a plan that its task does not depend on; see :class:`Plan`.

    Parameters
    ----------
    profile : {"local", "group", "pairwise"}, optional
        By default "local" for one silo and "group" for more.
    """

    study: str = "default"
    readers: tuple[Reader, ...] = ()
    min_silos: int = 0
    profile: Profile | None = None
    collusion: int = 0
    fingerprints: tuple[str, ...] = ()
    upload_slot: float = 0.0

    @classmethod
    def taken_from(cls, given: dict[str, Any]) -> Self:
        """Return the trust that keywords describe, and remove its fields from the keywords."""
        values = {f.name: given.pop(f.name) for f in fields(cls) if f.name in given}
        for name in values.keys() & {"fingerprints", "readers"}:
            values[name] = tuple(values[name])
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A request for one release.

    Parameters
    ----------
    task : type of Task
        A task of the package or of the user.
    schema : Schema
        The agreed data contract.
    silos : tuple of str
        Names of the silos.
    options : mapping
        Options of the task, such as ``target``.
    epsilon : float or None
        None for a task that is not private.
    delta : float, optional
        ``min(1e-6, 1 / (100 nominal_n))``, or 1e-6 if `nominal_n` is not given.
    nominal_n : int >= 1, optional
        Public number of records in all silos. If omitted, 2 % of the budget is spent on a noisy
        count.
    columns : tuple of str, optional
        Columns of the schema that the job uses; all by default. Read the records with the same
        `columns`: they are then the records that the whole schema keeps.
    frac_bits : int
        Binary places of the grid.
    max_loss : float in [0, 1], optional
        Greatest share of the rows of each silo that may be excluded. By default 5 %, and no value
        of a target, event or group may lose all of its rows.
    releases : tuple of str
        Releases of cloister at the silos, as far as they are known; the plan suits all of them.
    horizon : Encoding, optional
        If given, the job is renewed over a network in so many periods; see :class:`Plan`.
    """

    task: type[Task]
    schema: Schema
    silos: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    epsilon: float | None = None
    delta: float | None = None
    nominal_n: int | None = None
    columns: tuple[str, ...] | None = None
    frac_bits: int = 16
    max_loss: float | None = None
    releases: tuple[str, ...] = ()
    horizon: Encoding | None = None
    trust: Trust = Trust()

    @cached_property
    def budget(self) -> Budget | None:
        """The validated budget. A private task without epsilon is an error, never "no privacy"."""
        if not self.task.private:
            return None
        if self.epsilon is None:
            raise PlanError(
                f"epsilon must be given for task {self.task.name!r}; there is no default"
                f"{choosing('epsilon')}."
            )
        delta = default_delta(self.nominal_n) if self.delta is None else self.delta
        return Budget(self.epsilon, delta)

    @cached_property
    def plan(self) -> Plan:
        """The plan. Without `nominal_n`, it is for the fewest records that the task allows."""
        if self.nominal_n is None:
            return self._plan_before_count(self.budget)
        return self.plan_for(self.budget, self.nominal_n)

    @property
    def _fewest(self) -> int:
        """The fewest records that the options of the task allow."""
        return max([1, *options_bounded_by_n(self.task, self.options).values()])

    def _plan_before_count(self, budget: Budget | None) -> Plan:
        """Return the plan for the fewest records, of which a job without `nominal_n` is sure."""
        try:
            return self.plan_for(budget, self._fewest)
        except PlanError as error:
            self.plan_for(budget, _MANY)  # raises what no number of records mends
            raise PlanError(
                f"nominal_n must be given for task {self.task.name!r}{choosing('nominal_n')}, "
                "since a noisy count replaces it only in a plan that is possible for few records. "
                f"For {self._fewest}: {error}"
            ) from None

    def plan_for(self, budget: Budget | None, nominal_n: int) -> Plan:
        """Return the plan for a budget and a number of records."""
        for name, value in options_bounded_by_n(self.task, self.options).items():
            if value > nominal_n:
                raise PlanError(
                    f"{name} must be at most nominal_n={nominal_n}, got {value}; ask for fewer."
                )
        # Each further column would add to the sensitivity, and so to the noise.
        used = self.schema if self.columns is None else self.schema.select(self.columns)
        grid = used.grid(self.frac_bits)
        facts = PublicFacts(
            n_features=grid.n_features,
            nominal_n=nominal_n,
            budget=budget,
            frac_bits=self.frac_bits,
            columns=used.public,
            silos=self.silos,
            unit=self.schema.unit,
            group_size=self.schema.group_size,
        )
        task = design(self.task, facts, self.options)
        # A single silo sends nothing, so its sums need no mask.
        default_profile: Profile = "local" if len(self.silos) == 1 else "group"
        trust = replace(self.trust, profile=self.trust.profile or default_profile)
        plan = Plan(
            task=task,
            silos=self.silos,
            grid=grid,
            columns=used.names,
            budget=budget,
            nominal_n=nominal_n,
            unit=self.schema.unit,
            max_rows=self.schema.max_rows or 1,
            max_silos_per_person=self.schema.max_silos_per_person,
            schema_digest=self.schema.digest(),
            code=code_for(task, code_of(task), self.releases),
            options=encode_options(self.task, self.options),
            horizon=self.horizon,
            **vars(trust),
        )
        return plan.with_question(hash_of(question_of(plan, self.schema)))

    def wanted(self, want: Mapping[str, float], nominal_n: int) -> Plan:
        """Return the plan with the least epsilon for wanted margins of error."""
        delta = default_delta(nominal_n) if self.delta is None else self.delta
        budget = wanted_budget(lambda budget: self.plan_for(budget, nominal_n), delta, want)
        return self.plan_for(budget, nominal_n)

    def loss_notices(self, records: SiloRecords) -> list[str]:
        """Return a sentence for each source that has excluded rows or many clipped values.

        Raises
        ------
        DataError
            If more rows are excluded than `max_loss` allows. The message quotes words of the
            files, since the caller has them.
        """
        return loss_notices(records, *self._of_loss)

    @property
    def _of_loss(
        self,
    ) -> tuple[Mapping[str, Any], tuple[str, ...], float | None, str, tuple[str, ...]]:
        """The arguments of :func:`.loss.loss_notices` for the job."""
        # Few tasks complete cells, so most jobs need no plan here.
        completes = hasattr(self.task, "incomplete")
        completed = completed_by(self.plan.task, self.plan.columns) if completes else ()
        return self.options, self._names, self.max_loss, self.task.name, completed

    @property
    def _names(self) -> tuple[str, ...]:
        """Names of the columns that the job uses."""
        return self.columns or self.schema.names

    def run(
        self,
        records: SiloRecords,
        *,
        account: Account | None = None,
        on_round: OnRound | None = None,
        noise: NoiseSource | None = None,
    ) -> Release:
        """Reserve the cost, run every round, and return the release.

        Parameters
        ----------
        records : mapping of silo name to records
        account : Account, optional
            It reserves the whole plan first, and charges each round before its sum leaves.
        on_round : function of RoundDone, optional
            Called after each round.
        noise : NoiseSource, optional
            Exact discrete noise from the operating system by default; tests pass another source.

        Raises
        ------
        DataError
            If too many rows are excluded, before anything is spent.

        Warns
        -----
        DataLossWarning
            For each source that has excluded rows, or many values outside their bounds.
        """
        # First, since a loss of rows is an error that must cost no budget.
        watch_loss(records, *self._of_loss)
        noise = noise or DiscreteNoise()
        if self.nominal_n is None and self.budget is not None:
            return self._run_after_count(records, self.budget, account, on_round, noise)
        return run_plan(self.plan, records, noise=noise, account=account, on_round=on_round)

    def _run_after_count(
        self,
        records: SiloRecords,
        budget: Budget,
        account: Account | None,
        on_round: OnRound | None,
        noise: NoiseSource,
    ) -> Release:
        """Release a noisy count of the records, then run the task with the rest of the budget."""
        # The count has the mechanism of the task, so that both costs compose exactly.
        mechanism = _mechanism(self.task, self.options)
        count_budget, rest = split_budget(budget, COUNT_SHARE, mechanism)
        # All errors of the plan and its price are raised before the count is charged.
        dry_run = self._plan_before_count(rest)
        if dry_run.rate < 1:
            raise PlanError(
                f"nominal_n must be given for task {self.task.name!r}, which samples its units; "
                "the cost of a count cannot be subtracted exactly from its budget"
                f"{choosing('nominal_n')}."
            )
        count = replace(self, task=Count, options={"mechanism": mechanism})
        count_plan = count.plan_for(count_budget, 1)
        check_records(dry_run, records)
        if account:
            # Reserve the rest first: a count is useless if too little is left for the task.
            account.reserve(dry_run, content_of(records))
        try:
            counted = run_plan(count_plan, records, noise=noise, account=account)
        finally:
            if account:
                account.close(dry_run)
        # Noise may make the count smaller than the task allows, even negative.
        n = max(self._fewest, round(float(counted.results["count"][0])))
        plan = self.plan_for(rest, n)
        release = run_plan(plan, records, noise=noise, account=account, on_round=on_round)
        # The count is part of the cost of the answer, so the release states both.
        return replace(release, spent=ComposedEvent((counted.spent, release.spent)))


def columns_used(
    task: type[Task], options: Mapping[str, Any], schema: Schema
) -> tuple[str, ...] | None:
    """Return the columns that options name, if the task uses no others; None for all columns.

    An empty cell in a column that a job does not use should not exclude its record.
    """
    row = CAPABILITIES.get(task.name)
    if row is None or not any(options.get(name) for name in row.only):
        return None
    texts = {text for name in row.names for text in _texts(options.get(name))}
    return tuple(name for name in schema.names if name in texts or name == schema.unit) or None


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a nested value, such as the terms of a formula."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _texts(entry)


def make_plan(
    task: type[Task],
    schema: Schema,
    silos: Iterable[str],
    *,
    budget: Budget | None,
    want: Mapping[str, float] | None = None,
    nominal_n: int,
    columns: Iterable[str] | None = None,
    frac_bits: int = 16,
    **options: Any,
) -> Plan:
    """Return the plan of a job.

    Parameters
    ----------
    budget : Budget or None
        None for a task that is not private, or with `want`.
    want : mapping of str to float, optional
        Wanted 95 % half-widths in place of a budget, see
        :func:`~cloister.app.forecast.wanted_budget`.
    options
        Fields of :class:`Trust`, and options of the task.

    The other parameters are those of :class:`Job`.
    """
    trust = Trust.taken_from(options)
    job = Job(
        task=task,
        schema=schema,
        silos=tuple(silos),
        options=options,
        columns=None if columns is None else tuple(columns),
        frac_bits=frac_bits,
        trust=trust,
    )
    if want is not None:
        if budget is not None:
            raise PlanError("budget and want both define the noise; give one of them.")
        return job.wanted(want, nominal_n)
    return job.plan_for(budget, nominal_n)


def derive_plan(plan: Plan, schema: Schema, tasks: Mapping[str, type[Task]]) -> Plan:
    """Return the plan that a schema and the options of a plan lead to, with the same nonce.

    A silo compares it with the plan: all that a task holds of columns, their categories and bounds
    must be that of the silo's own schema.

    Parameters
    ----------
    tasks : mapping of str to type
        The tasks that this party has.

    Raises
    ------
    PlanError
        If the plan carries no options, or they do not fit the schema.
    """
    if plan.options is None:
        raise PlanError(
            "the plan carries no options, so its task cannot be designed from this schema; submit "
            "it again with this version."
        )
    names = {field.name for field in fields(Trust)}
    # A plan for members of the release before names the code that they have.
    is_earlier = plan.code is not None and plan.code == earlier_code(plan.task)
    try:
        job = Job(
            task=type(plan.task),
            schema=schema,
            silos=plan.silos,
            options=decode_options(plan.options, tasks),
            columns=plan.columns,
            frac_bits=plan.grid.frac_bits,
            releases=(UNTOLD,) if is_earlier else (),
            horizon=plan.horizon,
            trust=Trust(**{name: getattr(plan, name) for name in names}),
        )
        return replace(job.plan_for(plan.budget, plan.nominal_n), run_id=plan.run_id)
    except PlanError:
        raise
    except Exception as error:  # of any kind: a stranger wrote the options, and a task is code
        raise PlanError(
            f"the options of the plan do not fit task {plan.task.name!r} ({type(error).__name__}); "
            "submit it again."
        ) from None


def run_job(
    task: type[Task],
    schema: Schema,
    silos: SiloRecords,
    *,
    epsilon: float | None,
    delta: float | None = None,
    nominal_n: int | None = None,
    columns: Iterable[str] | None = None,
    frac_bits: int = 16,
    max_loss: float | None = None,
    noise: NoiseSource | None = None,
    account: Account | None = None,
    on_round: OnRound | None = None,
    **options: Any,
) -> Release:
    """Plan and run a job.

    Parameters are those of :class:`Job` and :meth:`Job.run`; `options` holds fields of
    :class:`Trust`, and options of the task.
    """
    trust = Trust.taken_from(options)
    job = Job(
        task=task,
        schema=schema,
        silos=tuple(silos),
        options=options,
        epsilon=epsilon,
        delta=delta,
        nominal_n=nominal_n,
        columns=None if columns is None else schema.select(columns).names,
        frac_bits=frac_bits,
        max_loss=max_loss,
        trust=trust,
    )
    return job.run(silos, noise=noise, account=account, on_round=on_round)


def split_budget(budget: Budget, share: float, mechanism: Mechanism) -> tuple[Budget, Budget]:
    """Split a budget into `share` and the rest, which together cost the whole budget.

    Notes
    -----
    Gaussian budgets are split by squared GDP parameter, which composes exactly. Laplace budgets
    are split by epsilon.
    """
    if mechanism == "laplace":
        return (
            Budget(budget.epsilon * share, budget.delta),
            Budget(budget.epsilon * (1 - share), budget.delta),
        )
    # Both parts state the whole delta, since the converted total is at one delta, not at a sum.
    mu = gdp_mu_for(budget.epsilon, budget.delta)

    def portion(fraction: float) -> Budget:
        epsilon = accounting.gdp_epsilon(mu * sqrt(fraction), budget.delta)
        # A small mu meets delta alone, and Budget refuses an epsilon of 0.
        if epsilon == 0:
            raise PlanError(
                f"nominal_n must be given: {fraction:.0%} of ({budget}) is too little for a noisy "
                f"count{choosing('nominal_n')}."
            )
        return Budget(epsilon, budget.delta)

    return portion(share), portion(1 - share)


def _mechanism(task: type[Task], options: Mapping[str, Any]) -> Mechanism:
    """Return the noise distribution that the task will have once it is designed."""
    # The class attribute may be a property, as in the protocol; then the default counts.
    fixed = getattr(task, "mechanism", "gaussian")
    mechanism = options.get("mechanism", fixed if isinstance(fixed, str) else "gaussian")
    return "laplace" if mechanism == "laplace" else "gaussian"
