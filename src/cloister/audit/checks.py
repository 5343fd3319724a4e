"""The audit of a task: whole jobs, sensitivity, two worlds, canaries, and the noise of jobs.

Every check alarms on a true claim with probability at most :data:`ALPHA`, for all tasks and
records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, nan, sqrt
from typing import Any

import numpy as np
from scipy import stats

from cloister.app.in_process import run_plan
from cloister.app.job import make_plan, run_job
from cloister.audit.bounds import (
    ENOUGH,
    Check,
    attainable,
    compare,
    guesses_epsilon,
    guesses_p_value,
    most_shown,
    points,
    shown_part,
)
from cloister.audit.findings import Finding as Finding
from cloister.audit.flow import check_flow
from cloister.audit.noise import NoiseSizeError, drawn_by, in_profiles, noise_of, whole_job
from cloister.audit.noise_laws import (
    Drawn,
    Test,
    independence,
    law,
    normal_scores,
    repeats,
    summary,
)
from cloister.audit.pairs import encoded, lacking, pairs
from cloister.audit.runs import (
    Log,
    MakeNoise,
    element_scales,
    scores,
    search,
    system_noise,
    watched,
    watched_plan,
)
from cloister.core.errors import PlanError, RemoteProtocolError
from cloister.core.randomness import new_nonce, public_generator
from cloister.data.schema import Schema, schema_of
from cloister.privacy import accounting
from cloister.privacy.budget import Budget
from cloister.privacy.events import Event, NonPrivateEvent, holds
from cloister.protocol.plan import Plan
from cloister.protocol.replay import replay, replay_elsewhere, shown, written
from cloister.protocol.task import Floats, Records, Task
from cloister.tasks.examples import Example, example_of

ALPHA = 1e-8
"""Largest probability that one check of an audit alarms on a true claim."""

PILOT = 12  # runs on each pair, to choose the pair to audit
MOST_FOR_CANARIES = 0.2
"""Largest epsilon of the run with canaries: a larger one allows nearly all guesses to be right."""

DISTINGUISHING = 4.0
"""Smallest epsilon of the two worlds: noise that hides a record also hides most defects."""

_KEPT = 500_000  # largest number of noise elements of the two worlds that are tested
_REPLAYED = 60  # records of the replayed job
_SIZES = (16, 8, 4)  # columns and clusters of that run: more elements separate more canaries
_SHARES = (0.1, 0.3, 0.5, 1.0)  # fractions of the canaries that are guessed, the surest first
_DELTAS = (1e-7, 1e-9, 1e-11, 1e-13)  # points of the curve at which one run can refute the claim


@dataclass(frozen=True)
class Audit:
    """The results of an audit of a method.

    Parameters
    ----------
    budget : Budget
        The claim.
    event : Event
        The privacy event that the method declares.
    details : str
        Size of the runs.
    checks : tuple of Check
        Points of the claimed curve with the counts of two worlds.
    curve : tuple of (float, float)
        More points (epsilon, delta) of the claim, for the picture.
    pair : str
        Name of the neighbours of the two worlds.
    reach : float
        Privacy cost of the record of the two worlds, as a fraction of the cost in the plan.
    epsilon_seen : float
        Largest epsilon that one run with canaries refutes at 95 %; NaN without such a run.
    false_alarm : float
        Bound on the probability of any alarm if the claim is true.
    possible : float
        Fraction of the claim that the runs would show at 95 % for a pair that attains it.
    """

    method: str
    budget: Budget
    event: Event
    details: str
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
    curve: tuple[tuple[float, float], ...]
    pair: str
    reach: float
    epsilon_seen: float
    false_alarm: float
    possible: float = 0.0

    @property
    def claims(self) -> bool:
        """True if the method declares itself private."""
        return not holds(self.event, NonPrivateEvent)

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """The findings that refute the claim."""
        return tuple(finding for finding in self.findings if finding.alarms)

    @property
    def no_power(self) -> bool:
        """True if runs that could have shown a fifth of the claim show less than a tenth."""
        return self.possible >= 2 * ENOUGH and shown_part(self.checks) < ENOUGH


def audit_task(
    task: type[Task],
    budget: Budget,
    *,
    n_features: int = 2,
    n_clusters: int = 2,
    nominal_n: int = 200,
    runs: int = 2000,
    canaries: int = 200,
    words: int = 20_000,
    make_noise: MakeNoise | None = None,
    options: Mapping[str, Any] | None = None,
    schema: Schema | None = None,
) -> Audit:
    """Audit a private task.

    Parameters
    ----------
    task : type
        A class of ``TASKS``, or your own.
    budget : Budget
        The claim. The two worlds run at epsilon 4 if it is less, because noise that hides a record
        also hides defects. Price, noise and replay are tested at this budget.
    n_features, n_clusters, nominal_n : int, >= 1
        Small values give one record most weight. Columns are those of the task's example, if it
        has one.
    runs : int, >= 1
        Number of runs in each of two worlds.
    canaries : int, >= 1
        Records of the one run with canaries.
    words : int, >= 1
        Elements of noise that jobs draw, in addition to those of the two worlds.
    make_noise : function, optional
        Returns the noise source of each job; by default the product's own.
    options : mapping, optional
        Options of the task, instead of those of its example.
    schema : Schema, optional
        Columns and unit of privacy, instead of those of the example.

    Raises
    ------
    PlanError
        If the task is not private, or no plan can be made.
    """
    if not task.private:
        raise PlanError(
            f"task {task.name!r} is declared not private, so it has no claim to audit; choose "
            "another task."
        )
    case = case_of(task, n_features, n_clusters, options, schema)
    plan = _plan(task, budget, nominal_n, case, schema)
    louder = _louder(plan, case, schema)
    event = louder.events()
    flow = check_flow(louder, schema or schema_of(case.columns), make_noise=make_noise)
    audit = Audit(
        method=task.name,
        budget=budget,
        event=event,
        details=f"{plan.grid.n_features} columns, nominal_n {nominal_n}, {plan.rounds} rounds"
        + "".join(
            f", {name} {value}"
            for name, value in case.options.items()
            if isinstance(value, str | int | float)
        )
        + (f", two worlds at epsilon {DISTINGUISHING:g}" if louder is not plan else ""),
        findings=(price(plan), *flow.findings),
        checks=(),
        curve=drawn_curve(event, ()),
        pair="-",
        reach=nan,
        epsilon_seen=nan,
        false_alarm=0.0,
    )
    if flow.stops:  # the same records would stop the runs, or this process
        return audit
    replayed = check_replay(plan, make_noise=make_noise)
    drawn: list[Drawn] = []
    runs_found, checks, pair, reach = audit_plan(
        louder, runs=runs, make_noise=make_noise, drawn=drawn
    )
    small = Budget(min(budget.epsilon, MOST_FOR_CANARIES), budget.delta)
    seen, epsilon_seen = find_canaries(
        task,
        small,
        canaries=canaries,
        make_noise=make_noise,
        case=_canary_case(task, budget, canaries, n_features, options, schema),
        schema=schema,
    )
    noise = check_noise(plan, words=words, make_noise=make_noise, seen=drawn)
    fresh = check_fresh(plan, make_noise=make_noise)
    return replace(
        audit,
        findings=(*audit.findings, *runs_found, seen, replayed, *noise, *fresh),
        checks=checks,
        pair=pair,
        reach=reach,
        epsilon_seen=epsilon_seen,
        false_alarm=ALPHA * (1 + 1 + len(noise) + len(fresh)),
        possible=attainable(partial(accounting.delta, event), checks),
    )


def _plan(
    task: type[Task], budget: Budget, nominal_n: int, case: Example, schema: Schema | None = None
) -> Plan:
    """Return the plan of one silo over the columns of a case, or a schema."""
    contract = schema or schema_of(case.columns)
    return make_plan(task, contract, ["silo"], budget=budget, nominal_n=nominal_n, **case.options)


def _louder(plan: Plan, case: Example, schema: Schema | None) -> Plan:
    """Return the plan of the two worlds, at an epsilon at which defects are visible."""
    assert plan.budget is not None
    if plan.budget.epsilon >= DISTINGUISHING:
        return plan
    loud = Budget(DISTINGUISHING, plan.budget.delta)
    with suppress(PlanError):
        return _plan(type(plan.task), loud, plan.nominal_n, case, schema)
    return plan


def drawn_curve(event: Event, checks: tuple[Check, ...]) -> tuple[tuple[float, float], ...]:
    """Return the claimed curve from 0 to beyond the checked points."""
    checked = [check.epsilon for check in checks] or [epsilon for epsilon, _ in points(event)]
    last = 1.25 * max(checked)
    return tuple((float(e), accounting.delta(event, float(e))) for e in np.linspace(0, last, 40))


def price(plan: Plan) -> Finding:
    """Check that the events of the plan cost at most its budget."""
    budget = plan.budget
    assert budget is not None
    # The price itself is rounded, hence a tolerance of a billionth.
    spent = accounting.epsilon(plan.events(), budget.delta)
    return Finding(
        "price",
        spent > budget.epsilon * (1 + 1e-9),
        f"the plan's noise costs epsilon {spent:.6g} of {budget.epsilon:g}",
    )


def audit_plan(
    plan: Plan,
    *,
    runs: int,
    make_noise: MakeNoise | None = None,
    drawn: list[Drawn] | None = None,
) -> tuple[tuple[Finding, Finding], tuple[Check, ...], str, float]:
    """Search for worst records, check the sensitivity, and compare two worlds on the worst pair.

    Parameters
    ----------
    make_noise : function, optional
        Returns the one source of all runs.
    drawn : list of Drawn, optional
        The noise of the two worlds is appended to it.

    Notes
    -----
    Pilot runs choose the pair and are not counted afterwards, so the choice costs no confidence.
    """
    noise = (make_noise or system_noise)()
    searches = [search(plan, table, noise) for table in ("groups", "pile")]
    tried = [*pairs(plan), *(result.pair for result in searches)]
    pilots = [scores(plan, pair, "with", PILOT, noise) for pair in tried]
    best = int(np.argmax([pilot.reach for pilot in pilots]))
    pair = tried[best]
    without, with_it = (scores(plan, pair, world, runs, noise) for world in ("without", "with"))
    # The bound holds for every record, so all tried records count, not only the chosen pair.
    excess = max(
        *(search.excess for search in searches),
        *(scored.excess for scored in (*pilots, without, with_it)),
    )
    if drawn is not None:
        both = np.concatenate([without.noise, with_it.noise])
        kept = both[: max(_KEPT // both.shape[1], 1)]
        drawn.append(replace(noise_of(plan), name="two worlds", elements=kept))
    reach = (without.reach + with_it.reach) / 2
    checks = tuple(compare(points(plan.events()), without.scores, with_it.scores, ALPHA))
    adds_up = all(result.adds_up for result in searches)
    sensitivity = Finding(
        "sensitivity",
        excess > 1 or not adds_up,
        f"a record added at most {excess:.4g} of the bound of a block, in {len(tried)} pairs and "
        f"among {sum(result.tried for result in searches)} records at states of runs"
        + ("" if adds_up else "; a table does NOT add what its records add"),
    )
    return (sensitivity, two_worlds(checks, pair.name, reach)), checks, pair.name, reach


def two_worlds(checks: tuple[Check, ...], pair: str, reach: float) -> Finding:
    """Return the finding of a comparison of two worlds."""
    worst, bound = most_shown(checks)
    used = "" if np.isnan(reach) else f", using {reach:.0%} of what the plan pays for"
    return Finding(
        "two worlds",
        any(check.alarms for check in checks),
        f"delta({worst.epsilon:.3g}) is at least {bound:.3g} at 95 %, and claimed to "
        f"be {worst.delta:.3g}; {worst.runs} runs in each world, {pair}{used}",
    )


# One run with canaries ----------------------------------------------------------------------------


def case_of(
    task: type[Task],
    n_features: int,
    n_clusters: int,
    options: Mapping[str, Any] | None,
    schema: Schema | None,
) -> Example:
    """Return columns and options; the caller's replace those of the example."""
    case = example_of(task, n_features, n_clusters)
    if schema is not None:  # options of an example refer to columns of that example
        own_options = {} if hasattr(task, "example") else case.options
        case = Example(schema.public, own_options)
    return case if options is None else replace(case, options=options)


def _canary_case(
    task: type[Task],
    budget: Budget,
    canaries: int,
    n_features: int,
    options: Mapping[str, Any] | None,
    schema: Schema | None,
) -> Example:
    """Return columns and options of the run with canaries: the largest that the task accepts."""
    for size in _SIZES if options is None and schema is None else ():
        case = example_of(task, size, size)
        with suppress(PlanError):
            _plan(task, budget, max(canaries // 2, 10), case)
            return case
    return case_of(task, n_features, 2, options, schema)


def find_canaries(
    task: type[Task],
    budget: Budget,
    case: Example,
    *,
    canaries: int,
    make_noise: MakeNoise | None = None,
    coins: int | str | None = None,
    schema: Schema | None = None,
) -> tuple[Finding, float]:
    """Draw a coin for each of many records, run one job with three silos, and guess the coins.

    Parameters
    ----------
    task, budget, canaries, make_noise
        As in :func:`audit_task`.
    case : Example
        Columns and options.
    coins : int or str, optional
        Public seed of the coins, for tests; by default a fresh one.

    Notes
    -----
    Guesses come from the best linear estimate of all coins given the release and the plan's noise.
    The bound holds for guesses of any quality [SNJ23]_.
    """
    log = Log()
    schema, n_features = schema or schema_of(case.columns), len(case.columns)
    rng = public_generator("audit", "coins", new_nonce() if coins is None else coins)
    scale = 1 << 16
    table = rng.integers(-scale, scale + 1, (canaries, n_features))
    # Half of the canaries are corners of the box, where a record contributes most.
    table[::2] = scale * rng.choice((-1, 1), (len(table[::2]), n_features))
    canary = table.astype(np.int32)
    there = rng.random(canaries) < 0.5
    present = canary[there]
    silos = {f"silo-{i}": [present[i::3]] for i in range(3)}
    try:
        done = run_job(
            watched(task, log, finish=True),
            schema,
            silos,
            epsilon=budget.epsilon,
            delta=budget.delta,
            nominal_n=max(canaries // 2, 10),
            noise=make_noise() if make_noise else None,
            profile="group",
            **case.options,
        )
    except RemoteProtocolError as error:  # for example if states depend on records
        return Finding("canaries", True, f"a job with three silos was stopped: {error}"), 0.0
    estimate = _estimate(done.plan, log, canary)
    order = np.argsort(-np.abs(estimate))
    right = (estimate > 0) == there
    event = done.plan.events()
    claims = [(accounting.epsilon(event, delta), delta) for delta in (budget.delta, *_DELTAS)]
    claims = [claim for claim in claims if claim[0] < np.inf and claim[1] > 0] + [
        (accounting.pure_epsilon(event), 0.0)
    ] * bool(accounting.pure_epsilon(event) < np.inf)
    counts = [ceil(share * canaries) for share in _SHARES]
    # A union bound over shares and claims: p-values are multiplied by their number.
    hits = [int(right[order[:r]].sum()) for r in counts]
    p_value = min(
        guesses_p_value(v, r, canaries, epsilon, delta)
        for v, r in zip(hits, counts, strict=True)
        for epsilon, delta in claims
    ) * (len(claims) * len(counts))
    seen = max(
        guesses_epsilon(v, r, canaries, budget.delta, 0.05 / len(counts))
        for v, r in zip(hits, counts, strict=True)
    )
    shown = ", ".join(f"{v} of {r}" for v, r in zip(hits, counts, strict=True))
    finding = Finding(
        "canaries",
        p_value < ALPHA,
        f"{shown} guesses from one masked run at epsilon {budget.epsilon:g} right (p "
        f"{min(p_value, 1.0):.2g}): epsilon is at least {seen:.3g} at 95 %",
    )
    return finding, seen


def _estimate(plan: Plan, log: Log, table: Records) -> Floats:
    """Return, for each canary, the linear estimate of its coin, minus a half.

    Let V be the contributions of canaries divided by the noise scales, and y the release less its
    mean. The estimate of least squared error is ``(4 I + V V^T)^-1 V y``.
    """
    parts, released = [], []
    for t in range(plan.rounds):
        scale = element_scales(plan, t) * (sqrt(2) if plan.task.mechanism == "laplace" else 1.0)
        rows = [plan.task.contribute(t, log.states[t], row[None]) for row in table]
        contributions = np.array(rows, dtype=np.float64)
        parts.append(contributions / scale)
        released.append((log.sums[t] + log.noise(t) - contributions.sum(axis=0) / 2) / scale)
    added, answer = np.concatenate(parts, axis=1), np.concatenate(released)
    kernel = added @ added.T + 4 * np.eye(len(added))
    return np.linalg.solve(kernel, added @ answer)


# The noise ----------------------------------------------------------------------------------------


def check_noise(
    plan: Plan, *, words: int, make_noise: MakeNoise | None = None, seen: Sequence[Drawn] = ()
) -> tuple[Finding, ...]:
    """Test the distribution and the independence of the noise of jobs, under each profile.

    Noise of another size than the plan's has no distribution to test, and alarms.

    Parameters
    ----------
    words : int, >= 1
        Elements of noise to draw, a third for each profile, and at least one job for each hundred.
    seen : sequence of Drawn, optional
        More noise of the plan, to be tested as well.
    """
    samples = list(seen)
    for other in in_profiles(plan):
        jobs = max(ceil(words / 3 / noise_of(other).scales.size), words // 100, 4)
        try:
            samples.append(drawn_by(other, jobs, make_noise))
        except NoiseSizeError as error:
            return (Finding("law of the noise", True, str(error)),)
    rng = public_generator("audit", "places", new_nonce())
    scored = [(drawn, normal_scores(drawn, rng)) for drawn in samples]
    if len(scored) > 1:
        scored.append(_together(scored))
    laws: list[Test] = []
    ties: list[Test] = []
    for drawn, normal in scored:
        for tests, found_here in ((laws, law(drawn, normal)), (ties, independence(normal, rng))):
            tests += [replace(test, name=f"{test.name} ({drawn.name})") for test in found_here]
    looked = sum(drawn.elements.size for drawn in samples)
    n_jobs = sum(len(drawn.elements) for drawn in samples)
    drawn_in = ", ".join(drawn.name for drawn in samples)
    return (
        _of("law of the noise", laws, f"{looked} elements of {n_jobs} jobs ({drawn_in})"),
        _of("independence of the noise", ties, "elements of a job, a round, a silo and other jobs"),
        _of("repeats of the noise", repeats(samples), "vectors, elements and values"),
    )


def _of(check: str, tests: Sequence[Test], of_what: str) -> Finding:
    p_value, text = summary(tests)
    return Finding(check, p_value < ALPHA, f"{of_what}: {text}")


def check_fresh(plan: Plan, *, make_noise: MakeNoise | None = None) -> tuple[Finding]:
    """Run whole jobs over the same records, under each profile: clients, masks, an aggregator.

    Equal answers mean seeded noise, and the noise in them must be exactly what was drawn.
    """
    scale = np.concatenate([element_scales(plan, t) for t in range(plan.rounds)])
    # two draws are equal with probability at most 1 / scale; so many jobs that all can be
    again = max(1, ceil(-np.log(ALPHA / 6) / np.log(scale).sum()))
    p_values, equal, added = [], 0, True
    for other in in_profiles(plan):
        try:
            jobs = [whole_job(other, make_noise) for _ in range(1 + again)]
        except RemoteProtocolError as error:
            stopped = f"a job under {other.profile!r} was stopped: {error}"
            return (Finding("two runs", True, stopped),)
        same = sum(int((jobs[0].noise == job.noise).sum()) for job in jobs[1:])
        most = 1 / noise_of(other).scales.min()
        p_values.append(float(stats.binom.sf(same - 1, again * scale.size, most)))
        equal += same
        added &= all(job.drawn is None or np.array_equal(job.drawn, job.noise) for job in jobs)
    p_value = min(1.0, len(p_values) * min(p_values))
    drawn = len(p_values) * again * scale.size
    return (
        Finding(
            "two runs",
            p_value < ALPHA or not added,
            f"{equal} of {drawn} elements of noise are the same in {1 + again} whole jobs of one "
            f"plan under each profile, p {p_value:.2g}; what was added is "
            f"{'exactly' if added else 'NOT'} what was drawn",
        ),
    )


def _together(found: Sequence[tuple[Drawn, Floats]]) -> tuple[Drawn, Floats]:
    """Return all jobs, and all silos of jobs, as rows of one table, to sum small effects."""
    width = min(drawn.elements.shape[1] for drawn, _ in found)
    rows = np.concatenate([normal.reshape(-1, width) for _, normal in found])
    elements = np.concatenate([drawn.elements.reshape(-1, width) for drawn, _ in found])
    scales = np.min([drawn.scales.reshape(-1, width).min(axis=0) for drawn, _ in found], axis=0)
    blocks = tuple(block for block in found[0][0].blocks if block.stop <= width)
    return Drawn("all together", elements, scales, found[0][0].law, blocks), rows


# Results from answers -----------------------------------------------------------------------------


def check_replay(plan: Plan, *, make_noise: MakeNoise | None = None) -> Finding:
    """Replay a job from its plan and its release, without access to its records.

    The job is replayed in a fresh interpreter, and in this one after a job over other records. A
    task that stores records, or earlier jobs, computes other states, results or sums in one of
    them.
    """
    rng = public_generator("audit", "replay", new_nonce())
    drawn = rng.uniform(-1, 1, (2, _REPLAYED, plan.grid.n_features))
    tables = [encoded(plan.grid, lacking(plan, table)) for table in drawn]
    silo, log = plan.silos[0], Log()
    done = run_plan(
        watched_plan(plan, log, finish=True),
        {silo: [tables[0]]},
        noise=make_noise() if make_noise else None,
    )
    run_plan(plan, {silo: [tables[1]]})
    first = {
        "states": [written(log.states[t]) for t in range(plan.rounds)],
        "results": [written(results) for results in done.history],
        "displays": shown(plan, done.results),
        "sums": [written({"words": log.sums[t]}) for t in range(plan.rounds)],
    }
    released = [log.answer(t) for t in range(plan.rounds)]
    there = replay_elsewhere(plan, released, tables[0])
    differ = {
        place: [part for part, value in first.items() if not _same(value, trace.get(part))]
        for place, trace in (
            ("a fresh interpreter", there),
            ("this one after other records", replay(plan, released, tables[0])),
        )
        if trace is not None
    }
    wrong = [f"{', '.join(parts)} in {place}" for place, parts in differ.items() if parts]
    return Finding(
        "replay",
        bool(wrong),
        f"from plan and released sums alone, {' and '.join(differ)}: "
        + (f"DIFFERENT {'; '.join(wrong)}" if wrong else "the same to the last bit")
        + ("" if there is not None else " (the task's class cannot be imported elsewhere)"),
    )


def _same(first: Any, other: Any) -> bool:
    """Compare two traces; a replay has one state more, after the last round."""
    if isinstance(first, list) and isinstance(other, list):
        return bool(first == other[: len(first)])
    return bool(first == other)
