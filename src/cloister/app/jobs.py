"""A whole job in one process: plan it, pay for it, run it, keep the answer.

The same plan, task, client and aggregator run here as over a network; only the transport is a loop.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.app.in_process import Handler, InProcess
from cloister.core.arrays import Floats, GridState
from cloister.core.errors import DataError, PlanError
from cloister.core.randomness import new_key
from cloister.data.loss import watch_loss
from cloister.data.schema import Schema
from cloister.hazmat.ring import from_bytes
from cloister.hazmat.signing import Identity
from cloister.privacy import accounting
from cloister.privacy.budget import Budget, default_delta
from cloister.privacy.calibration import gdp_mu_for
from cloister.privacy.events import ComposedEvent, Event, event_from_dict
from cloister.privacy.noise import SILOS_NOISE, DiscreteNoise, NoiseSource
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.client import Client, Source
from cloister.protocol.code import code_of
from cloister.protocol.journal import AnswerJournal, Journal
from cloister.protocol.plan import Plan
from cloister.protocol.progress import SUMS_FORMAT, Progress
from cloister.protocol.session import RoundDone, Transport, run_rounds
from cloister.protocol.task import Mechanism, Profile, PublicFacts, Task
from cloister.secagg.masks import GroupMask, Masker, NoMask
from cloister.tasks import installed
from cloister.tasks.count import Count
from cloister.tasks.options import at_most_records, design

if TYPE_CHECKING:
    from cloister.privacy.ledger import Ledger

COUNT_SHARE = 0.02
"""Part of the budget that buys a noisy count when no nominal number of records is agreed."""

MODEL_FORMAT = "cloister-model/1"

SiloRecords = Mapping[str, Source]
CONTENT_KEY = b"cloister/records"
"""Fingerprints of records are made with this; it is public, a ledger puts its own key on top."""

OnRound = Callable[[RoundDone], None]


@dataclass(frozen=True)
class Account:
    """Where a job is charged.

    Parameters
    ----------
    dataset : str
        The owner's name of the data set, opened in the ledger with a lifetime cap.
    confirm_same_content : bool
        The owner says that the same records may have a second budget under this name.
    """

    ledger: Ledger
    dataset: str
    confirm_same_content: bool = False

    def reserve(self, plan: Plan, content: bytes | None) -> None:
        """Set aside the cost of a whole plan; refuses before anything is spent or sent."""
        unit = self.ledger.unit(self.dataset)
        if unit != plan.unit:
            raise PlanError(
                f"unit of privacy of the plan is {plan.unit!r}, but the ledger counts {unit!r} for "
                f"{self.dataset!r}; use the schema the data set was opened with."
            )
        self.ledger.reserve(
            dataset=self.dataset,
            study=plan.study,
            job=plan.run_id,
            events=plan.events(),
            content=content,
            confirm_same_content=self.confirm_same_content,
        )

    def close(self, plan: Plan) -> None:
        """Return what the plan did not use; nobody will ask for its frames again."""
        self.ledger.close(plan.run_id)
        self.ledger.forget_frames(plan.run_id)


@dataclass(frozen=True)
class JobResult:
    """The released answer of a job and everything that may be said about it.

    Parameters
    ----------
    results : mapping of str to ndarray
        What the task returns, in data units.
    history : tuple of such mappings
        The public state before the first round and after each.
    spent : Event
        What was done to the records in all rounds, the count included.
    noise : str
        Where the noise came from.
    survivors : tuple of tuple of str
        The silos whose records are in each round's sum.
    """

    plan: Plan
    results: Mapping[str, Floats]
    history: tuple[Mapping[str, Floats], ...] = field(repr=False)
    spent: Event = field(repr=False)
    noise: str
    survivors: tuple[tuple[str, ...], ...] = field(repr=False)

    def epsilon(self) -> float:
        """Return the epsilon spent at the plan's delta; infinity for a task that is not private."""
        if self.plan.budget is None:
            return float("inf")
        return accounting.epsilon(self.spent, self.plan.budget.delta)

    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON-able values: public numbers only, no labels, no records."""
        return {
            "format": MODEL_FORMAT,
            "plan": self.plan.to_dict(),
            "plan_digest": self.plan.digest.hex(),
            "results": {name: value.tolist() for name, value in self.results.items()},
            "history": [
                {name: value.tolist() for name, value in state.items()} for state in self.history
            ],
            "spent": self.spent.to_dict(),
            "noise": self.noise,
            "survivors": self.survivors,
            "versions": {name: version(name) for name in ("cloister", "numpy")},
        }

    @classmethod
    def from_dict(
        cls, document: Mapping[str, Any], tasks: Mapping[str, type[Task]] | None = None
    ) -> JobResult:
        """Read a model; the plan must still have the digest it was saved with."""
        found = document.get("format") if isinstance(document, Mapping) else None
        if found not in (MODEL_FORMAT, SUMS_FORMAT):
            raise DataError(f"model must have format {MODEL_FORMAT!r}, got {found!r}.")
        try:
            known: Mapping[str, type[Task]] = ChainMap(tasks or {}, installed())  # type: ignore[arg-type]  # never written
            plan = Plan.from_dict(document["plan"], known)
            if plan.digest.hex() != document["plan_digest"]:
                raise DataError(
                    "plan of the model was changed: its digest differs; use the original."
                )
            if not plan.opened:
                raise DataError(
                    f"model is of task {plan.task.name!r}, which is not installed; install its "
                    "package, or give its file."
                )
            if found == SUMS_FORMAT:
                return _of_sums(plan, document["rounds"])
            return cls(
                plan=plan,
                results=_arrays(document["results"]),
                history=tuple(_arrays(state) for state in document["history"]),
                spent=event_from_dict(document["spent"]),
                noise=document["noise"],
                survivors=tuple(tuple(names) for names in document["survivors"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"model is not complete: {error}; save it again.") from error

    def save(self, path: str | Path) -> None:
        """Write the model as JSON; floats round-trip exactly."""
        from pydantic_core import to_json

        document = self.to_dict()
        # Almost all of it is numbers, which json writes ten times slower.
        numbers = {name: document.pop(name) for name in ("history", "results")}
        rest = json.dumps(document, sort_keys=True).removesuffix("}").encode()
        Path(path).write_bytes(
            rest + b", " + to_json(numbers, inf_nan_mode="constants")[1:] + b"\n"
        )

    @classmethod
    def load(cls, path: str | Path, tasks: Mapping[str, type[Task]] | None = None) -> JobResult:
        """Read a model written by :meth:`save`; `tasks` adds tasks of your own to ours."""
        try:
            document = json.loads(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            raise DataError(f"model {str(path)!r} cannot be read: {error}.") from error
        return cls.from_dict(document, tasks)


def make_plan(
    task: type[Task],
    schema: Schema,
    silos: Iterable[str],
    *,
    budget: Budget | None,
    nominal_n: int,
    study: str = "default",
    publish: bool = False,
    min_silos: int = 0,
    profile: Profile | None = None,
    collusion: int = 0,
    fingerprints: Iterable[str] = (),
    upload_slot: float = 0.0,
    columns: Iterable[str] | None = None,
    frac_bits: int = 16,
    **options: Any,
) -> Plan:
    """Design a task from public facts and write its plan.

    Parameters
    ----------
    task : type
        One of ``TASKS`` or your own.
    schema : Schema
        The agreed data contract.
    budget : Budget or None
        None for a task that is not private.
    nominal_n : int, >= 1
        Public contract value for the number of records in all silos.
    profile : {"local", "group", "pairwise"}, optional
        "local" for one silo and "group" for more, unless given.
    study, publish, min_silos, collusion, fingerprints, upload_slot
        As in :class:`~cloister.protocol.plan.Plan`.
    columns : iterable of str, optional
        Of the schema, those that the job uses; all by default. Records are still those that the
        whole schema keeps: read them with the same `columns`.
    options
        The task's own, such as ``n_clusters``.
    """
    names = tuple(silos)
    chosen = schema if columns is None else schema.select(columns)
    grid = chosen.grid(frac_bits)
    for name, value in at_most_records(task, options).items():
        if value > nominal_n:
            raise PlanError(
                f"{name} must be at most nominal_n={nominal_n}, got {value}; ask for fewer."
            )
    facts = PublicFacts(
        n_features=grid.n_features,
        nominal_n=nominal_n,
        budget=budget,
        frac_bits=frac_bits,
        columns=chosen.public,
        silos=names,
        unit=schema.unit,
    )
    designed = design(task, facts, options)
    return Plan(
        task=designed,
        silos=names,
        grid=grid,
        columns=chosen.names,
        budget=budget,
        nominal_n=nominal_n,
        min_silos=min_silos,
        profile=profile or ("local" if len(names) == 1 else "group"),
        unit=schema.unit,
        max_rows=schema.max_rows or 1,
        max_silos_per_person=schema.max_silos_per_person,
        schema_digest=schema.digest(),
        study=study,
        publish=publish,
        collusion=collusion,
        fingerprints=tuple(fingerprints),
        upload_slot=upload_slot,
        code=code_of(designed),
    )


def run_plan(
    plan: Plan,
    silos: SiloRecords,
    *,
    noise: NoiseSource | None = None,
    account: Account | None = None,
    on_round: OnRound | None = None,
) -> JobResult:
    """Run a plan over silos in this process.

    Parameters
    ----------
    silos : mapping of silo name to iterable of int32 arrays, or to a function
        Grid records of each member, in chunks, iterable once a round; see
        :class:`~cloister.protocol.client.Client`.
    noise : NoiseSource, optional
        Exact discrete noise from the operating system unless a test gives another.
    account : Account, optional
        The whole plan is reserved there before the first round, and each round is charged
        before its sum leaves.
    """
    _check_records(plan, silos)
    if getattr(plan.task, "in_order", False):  # nobody else sees how long sums take here
        silos = {name: getattr(records, "in_order", records) for name, records in silos.items()}
    source = noise or DiscreteNoise()
    clients = make_clients(plan, silos, noise=noise)
    client = next(iter(clients.values()))  # in one process all of them come to the end
    plan, survivors = client.plan, []
    if account:
        account.reserve(plan, _content(silos))
    try:
        for done in run_clients(clients, source, account.ledger if account else None):
            survivors.append(done.survivors)
            if on_round:
                on_round(done)
    finally:
        if account:
            account.close(plan)
    return result_of(plan, client.history, survivors, source.label)


def make_clients(
    plan: Plan,
    silos: SiloRecords,
    *,
    masker: Masker | None = None,
    noise: NoiseSource | None = None,
    journals: Mapping[str, Journal] | None = None,
    identities: Mapping[str, Identity] | None = None,
) -> dict[str, Client]:
    """Return the clients of all silos of a plan, by name.

    Parameters
    ----------
    plan : Plan
        With the fingerprints of `identities`. Without those, silos that agree on keys get fresh
        ones: in one process nobody pins anything.
    masker : Masker, optional
        What the profile asks for, with a fresh key.
    noise : NoiseSource, optional
        Only under "pairwise", and only in tests: of the silos' shares.
    """
    if not identities and (plan.profile == "pairwise" or plan.fingerprints):
        identities = {silo: Identity.new() for silo in plan.silos}
        prints = tuple(identity.fingerprint for identity in identities.values())
        plan = replace(plan, fingerprints=prints)
    masker = masker or (GroupMask(new_key()) if plan.profile == "group" else NoMask())
    return {
        silo: Client(
            plan,
            silo,
            silos[silo],
            None if plan.fingerprints else masker,
            (journals or {}).get(silo),
            identity=(identities or {}).get(silo),
            noise=noise,
        )
        for silo in plan.silos
    }


def run_clients(
    clients: Mapping[str, Client],
    noise: NoiseSource,
    journal: AnswerJournal | None = None,
    *,
    transport: Transport | None = None,
) -> Iterator[RoundDone]:
    """Run the rounds of a job whose clients are in this process, yielding after each.

    Parameters
    ----------
    journal : AnswerJournal, optional
        Both of the aggregator.
    transport : Transport, optional
        To the :func:`handlers` of the clients; a loop by default.
    """
    plan = next(iter(clients.values())).plan
    carried = transport or InProcess(handlers(clients))
    return run_rounds(Aggregator(plan, noise, journal), carried)


def handlers(clients: Mapping[str, Client]) -> dict[str, Handler]:
    """Return the function by which each client answers frames."""
    return {silo: client.handle for silo, client in clients.items()}


def _check_records(plan: Plan, silos: SiloRecords) -> None:
    """Refuse records of others than the plan's silos, or that were not read by its contract."""
    if set(silos) != set(plan.silos):
        raise PlanError(f"silos must be those of the plan, {plan.silos}, got {tuple(silos)}.")
    for records in silos.values():
        plan.contract.check(records)


def result_of(
    plan: Plan,
    states: Iterable[GridState],
    survivors: Iterable[tuple[str, ...]],
    noise: str,
) -> JobResult:
    """Return what a job released, in the users' units.

    Parameters
    ----------
    states : iterable of mappings
        The public state before the first round and after each.
    survivors : iterable of tuple of str
        The silos in each round's sum.
    noise : str
        Where the noise came from.
    """
    history = tuple(plan.task.results(state, plan.grid) for state in states)
    label = noise if plan.task.private else "none: not private"
    return JobResult(plan, history[-1], history, plan.events(), label, tuple(survivors))


def _of_sums(plan: Plan, rounds: Iterable[Mapping[str, Any]]) -> JobResult:
    progress = Progress(plan)
    for t, done in enumerate(rounds):
        elements = from_bytes(b64decode(done["words"], validate=True), plan.length(t))
        progress.receive(elements, done["survivors"])
    return result_of(plan, progress.states, progress.survivors, SILOS_NOISE)


def run_job(
    task: type[Task],
    schema: Schema,
    silos: SiloRecords,
    *,
    epsilon: float | None,
    delta: float | None = None,
    nominal_n: int | None = None,
    noise: NoiseSource | None = None,
    account: Account | None = None,
    on_round: OnRound | None = None,
    max_loss: float | None = None,
    **options: Any,
) -> JobResult:
    """Plan and run a task; without `nominal_n`, buy a noisy count first.

    Parameters
    ----------
    epsilon : float or None
        None for a task that is not private.
    delta : float, optional
        ``min(1e-6, 1 / (100 nominal_n))``, or 1e-6 if `nominal_n` is not given.
    nominal_n : int, optional
        Without it, 2 % of the budget pay for a noisy count of all records.
    max_loss : float in [0, 1], optional
        Share of the rows of each silo that may be left out. By default 5 %, and no value of a
        target, event or group may lose all of its rows.

    Other parameters are those of :func:`make_plan` and :func:`run_plan`.

    Raises
    ------
    DataError
        If more is lost, before anything is spent. It quotes words, since the caller has the files.

    Warns
    -----
    DataLossWarning
        For each source of which some rows are left out.
    """
    if options.get("columns") is not None:  # names that come one by one come once
        options["columns"] = schema.select(options["columns"]).names
    watch_loss(silos, options, options.get("columns") or schema.names, max_loss)
    budget = budget_of(task, epsilon, delta, nominal_n)
    fewest = max([1, *at_most_records(task, options).values()])
    if nominal_n is not None or budget is None:
        agreed = fewest if nominal_n is None else nominal_n  # without noise nothing depends on it
        plan = make_plan(task, schema, silos, budget=budget, nominal_n=agreed, **options)
        return run_plan(plan, silos, noise=noise, account=account, on_round=on_round)
    law = _mechanism(task, options)
    small, rest = split_budget(budget, COUNT_SHARE, law)
    # Whatever is wrong with the task or its price is found before the count is paid for.
    rehearsal = make_plan(task, schema, silos, budget=rest, nominal_n=fewest, **options)
    if rehearsal.rate < 1:
        raise PlanError(
            f"nominal_n must be given for task {task.name!r}, which samples its units; what a "
            "count costs beside it cannot be taken off exactly."
        )
    count_plan = make_plan(
        Count, schema, silos, budget=small, nominal_n=1, mechanism=law, **_shared(options)
    )
    _check_records(rehearsal, silos)
    if account:
        # The rest is set aside first: a count that leaves too little for the task would be wasted.
        account.reserve(rehearsal, _content(silos))
    try:
        count = run_plan(count_plan, silos, noise=noise, account=account)
    finally:
        if account:
            account.close(rehearsal)
    # Noise may bring a count below what the task can be designed for, even below 0.
    counted = max(fewest, round(float(count.results["count"][0])))
    plan = make_plan(task, schema, silos, budget=rest, nominal_n=counted, **options)
    result = run_plan(plan, silos, noise=noise, account=account, on_round=on_round)
    return replace(result, spent=ComposedEvent((count.spent, result.spent)))


def split_budget(budget: Budget, share: float, mechanism: Mechanism) -> tuple[Budget, Budget]:
    """Split a budget into `share` and the rest, so that both together cost the whole.

    Notes
    -----
    Gaussian budgets split by squared GDP parameter, which composes exactly; Laplace budgets by
    epsilon.
    """
    if mechanism == "laplace":
        return (
            Budget(budget.epsilon * share, budget.delta),
            Budget(budget.epsilon * (1 - share), budget.delta),
        )
    # Both parts state the whole delta, since the converted total is at one delta, not at a sum.
    mu = gdp_mu_for(budget.epsilon, budget.delta)

    def part(of: float) -> Budget:
        epsilon = accounting.gdp_epsilon(mu * sqrt(of), budget.delta)
        if epsilon == 0:
            raise PlanError(
                f"nominal_n must be given: {of:.0%} of ({budget}) is too little for a noisy count."
            )
        return Budget(epsilon, budget.delta)

    return part(share), part(1 - share)


def budget_of(
    task: type[Task], epsilon: float | None, delta: float | None, nominal_n: int | None
) -> Budget | None:
    """Return the checked budget; a private task without epsilon is an error, never "no privacy"."""
    if not task.private:
        return None
    if epsilon is None:
        raise PlanError(f"epsilon must be given for task {task.name!r}; there is no default.")
    return Budget(epsilon, default_delta(nominal_n) if delta is None else delta)


def _mechanism(task: type[Task], options: Mapping[str, Any]) -> Mechanism:
    """Return the law a designed task would use, before it can be designed."""
    fixed = getattr(task, "mechanism", "gaussian")
    law = options.get("mechanism", fixed if isinstance(fixed, str) else "gaussian")
    return "laplace" if law == "laplace" else "gaussian"


def _shared(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that belong to the job and not to the task."""
    of_job = ("study", "publish", "min_silos", "profile", "collusion", "columns", "frac_bits")
    return {name: options[name] for name in of_job if name in options}


def _content(silos: SiloRecords) -> bytes | None:
    """Return a fingerprint of all silos' records for the owner's ledger, which keys it."""
    prints = [getattr(records, "fingerprint", None) for records in silos.values()]
    if any(function is None for function in prints):
        return None
    # sorted, so that the same silos in another order are the same content
    return b"".join(sorted(function(CONTENT_KEY) for function in prints if function is not None))


def _arrays(values: Mapping[str, Any]) -> dict[str, Floats]:
    return {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}


def target_of(plan: Plan) -> list[tuple[str, str]]:
    """Name the column that a job predicts, or measures another against."""
    at = getattr(plan.task, "target", getattr(plan.task, "truth", None))
    return [] if at is None else [("target", plan.columns[at])]
