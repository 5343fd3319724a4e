"""The audit of a task: sensitivity, two worlds, canaries, and the noise that was really added.

Every check can be wrong by chance only as often as :data:`ALPHA` says, whatever the task and the
records are, as long as the claim is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, sqrt
from typing import Any

import numpy as np
from scipy import stats

from cloister.audit.bounds import (
    Check,
    best_at_95,
    compare,
    correlation,
    guesses_epsilon,
    guesses_p_value,
    points,
    uniform_fit,
)
from cloister.audit.pairs import pairs
from cloister.audit.runs import (
    Log,
    MakeNoise,
    scores,
    system_noise,
    watched,
    watched_plan,
    word_scales,
    worst_record,
)
from cloister.errors import PlanError
from cloister.jobs import make_plan, run_job, run_plan
from cloister.privacy import accounting
from cloister.privacy.budget import Budget
from cloister.privacy.events import Event, NonPrivateEvent, holds
from cloister.protocol.plan import Plan
from cloister.randomness import new_nonce, public_generator
from cloister.schema import schema_of
from cloister.tasks.base import Floats, Integers, Profile, Records, Task
from cloister.tasks.examples import Example, example_of

ALPHA = 1e-8
"""How often each check of an audit may alarm on a true claim."""

PILOT = 12  # runs on each pair, to find the one to audit
MOST_FOR_CANARIES = 0.2
"""Epsilon of the run with canaries, at most: a larger one allows nearly all guesses to be right."""

_SIZES = (16, 8, 4)  # columns and clusters of that run: more words hold more canaries apart
_SHARES = (0.1, 0.3, 0.5, 1.0)  # parts of the canaries that are guessed, the surest first
_DELTAS = (1e-7, 1e-9, 1e-11, 1e-13)  # of points of the curve where one run can say something


@dataclass(frozen=True)
class Finding:
    """What one check of an audit found.

    Parameters
    ----------
    check : str
    alarms : bool
        Whether the claim is refuted.
    evidence : str
        In words, with the numbers.
    """

    check: str
    alarms: bool
    evidence: str


@dataclass(frozen=True)
class Audit:
    """All that an audit of a method found.

    Parameters
    ----------
    method : str
    budget : Budget
        What was claimed.
    event : Event
        What the method says it does to the records.
    details : str
        Size of what was run.
    findings : tuple of Finding
    checks : tuple of Check
        Points of the claimed curve against what was seen in two worlds.
    curve : tuple of (float, float)
        More points (epsilon, delta) of the claim, to draw.
    pair : str
        Name of the neighbours of the two worlds.
    reach : float
        How much of what the plan pays for the record of the two worlds used.
    epsilon_seen : float
        Largest epsilon that one run with canaries shows at 95 %; NaN where none were made.
    false_alarm : float
        Bound on the probability of any alarm if the claim is true.
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

    @property
    def claims(self) -> bool:
        """Whether the method says of itself that it is private."""
        return not holds(self.event, NonPrivateEvent)

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """The findings that refute the claim."""
        return tuple(finding for finding in self.findings if finding.alarms)


def audit_task(
    task: type[Task],
    budget: Budget,
    *,
    n_features: int = 2,
    n_clusters: int = 2,
    nominal_n: int = 200,
    runs: int = 2000,
    canaries: int = 200,
    words: int = 2000,
    make_noise: MakeNoise | None = None,
    options: Mapping[str, Any] | None = None,
) -> Audit:
    """Audit a private task.

    Parameters
    ----------
    task : type
        Of ``TASKS``, or your own.
    budget : Budget
        What it is to claim. A larger epsilon shows more: where noise hides a record entirely,
        nothing can be seen to be wrong.
    n_features, n_clusters, nominal_n : int, >= 1
        Small ones make one record weigh most. Columns are those of the task's own example, where
        it has one.
    runs : int, >= 1
        In each of two worlds.
    canaries : int, >= 1
        Records of the one run with canaries.
    words : int, >= 1
        Of noise that are tested.
    make_noise : function, optional
        Makes the source of noise of each job; the product's own unless given.
    options : mapping, optional
        The task's own, instead of those of its example.

    Returns
    -------
    Audit

    Raises
    ------
    PlanError
        If the task is not private, or no plan can be made.
    """
    if not task.private:
        raise PlanError(f"task {task.name!r} says itself that it is not private; nothing to audit.")
    case = _case(task, n_features, n_clusters, options)
    plan = make_plan(
        task,
        schema_of(case.columns),
        ["silo"],
        budget=budget,
        nominal_n=nominal_n,
        **case.options,
    )
    two_worlds, checks, pair, reach = audit_plan(plan, runs=runs, make_noise=make_noise)
    seen, epsilon_seen = find_canaries(
        task,
        Budget(min(budget.epsilon, MOST_FOR_CANARIES), budget.delta),
        canaries=canaries,
        make_noise=make_noise,
        case=_canary_case(task, budget, canaries, n_features, options),
    )
    fit = check_noise(plan, words=words, make_noise=make_noise)
    fresh = check_fresh(plan, make_noise=make_noise)
    findings = (price(plan), *two_worlds, seen, *fit, *fresh)
    return Audit(
        method=task.name,
        budget=budget,
        event=plan.events(),
        details=f"{plan.grid.n_features} columns, nominal_n {nominal_n}, {plan.rounds} rounds"
        + "".join(
            f", {name} {value}"
            for name, value in case.options.items()
            if isinstance(value, str | int | float)
        ),
        findings=findings,
        checks=checks,
        curve=drawn_curve(plan.events(), checks),
        pair=pair,
        reach=reach,
        epsilon_seen=epsilon_seen,
        false_alarm=ALPHA * (1 + 1 + len(fit) + len(fresh)),
    )


def drawn_curve(event: Event, checks: tuple[Check, ...]) -> tuple[tuple[float, float], ...]:
    """Return the claimed curve from 0 to beyond the points that were checked."""
    last = 1.25 * max(check.epsilon for check in checks)
    return tuple((float(e), accounting.delta(event, float(e))) for e in np.linspace(0, last, 40))


def price(plan: Plan) -> Finding:
    """Check that what the plan says it does costs no more than its budget."""
    budget = plan.budget
    assert budget is not None
    spent = accounting.epsilon(plan.events(), budget.delta)
    return Finding(
        "price",
        spent > budget.epsilon * (1 + 1e-9),
        f"the plan's noise costs epsilon {spent:.6g} of {budget.epsilon:g}",
    )


def audit_plan(
    plan: Plan, *, runs: int, make_noise: MakeNoise | None = None
) -> tuple[tuple[Finding, Finding], tuple[Check, ...], str, float]:
    """Look for a worst pair of neighbours, check sensitivity on all, and compare two worlds on it.

    Returns
    -------
    (sensitivity, two worlds), checks, pair, reach

    Notes
    -----
    The pair is chosen by runs that are not counted afterwards, so the choice costs no confidence.
    """
    noise = (make_noise or system_noise)()
    tried = [*pairs(plan), *(worst_record(plan, table, noise) for table in ("groups", "pile"))]
    pilots = [scores(plan, pair, "with", PILOT, noise) for pair in tried]
    excess = max(pilot.excess for pilot in pilots)
    best = int(np.argmax([pilot.reach for pilot in pilots]))
    pair = tried[best]
    without, with_it = (scores(plan, pair, world, runs, noise) for world in ("without", "with"))
    excess = max(excess, without.excess, with_it.excess)
    reach = (without.reach + with_it.reach) / 2
    checks = tuple(compare(points(plan.events()), without.scores, with_it.scores, ALPHA))
    sensitivity = Finding(
        "sensitivity",
        excess > 1,
        f"a record added at most {excess:.4g} of the bound of a block, in {len(tried)} pairs",
    )
    return (sensitivity, told(checks, pair.name, reach)), checks, pair.name, reach


def told(checks: tuple[Check, ...], pair: str, reach: float) -> Finding:
    """Say what two worlds showed."""
    worst, least = max(best_at_95(checks), key=lambda best: best[1] / max(best[0].delta, 1e-12))
    used = "" if np.isnan(reach) else f", using {reach:.0%} of what the plan pays for"
    return Finding(
        "two worlds",
        any(check.alarms for check in checks),
        f"delta({worst.epsilon:.3g}) is at least {least:.3g} at 95 %, and claimed to "
        f"be {worst.delta:.3g}; {worst.runs} runs in each world, {pair}{used}",
    )


# One run with canaries ----------------------------------------------------------------------------


def _case(
    task: type[Task], n_features: int, n_clusters: int, options: Mapping[str, Any] | None
) -> Example:
    """Return columns and options; those of the caller stand in for the example's."""
    case = example_of(task, n_features, n_clusters)
    return case if options is None else replace(case, options=options)


def _canary_case(
    task: type[Task],
    budget: Budget,
    canaries: int,
    n_features: int,
    options: Mapping[str, Any] | None,
) -> Example:
    """Return columns and options of the run with canaries: the largest that the task takes."""
    for size in _SIZES if options is None else ():
        case = example_of(task, size, size)
        with suppress(PlanError):
            make_plan(
                task,
                schema_of(case.columns),
                ["silo"],
                budget=budget,
                nominal_n=_expected(canaries),
                **case.options,
            )
            return case
    return _case(task, n_features, 2, options)


def _expected(canaries: int) -> int:
    return max(canaries // 2, 10)


def find_canaries(
    task: type[Task],
    budget: Budget,
    case: Example,
    *,
    canaries: int,
    make_noise: MakeNoise | None = None,
    profile: Profile = "group",
    coins: int | str | None = None,
) -> tuple[Finding, float]:
    """Throw a coin for each of many records, run one job with three silos, guess the coins.

    Parameters
    ----------
    task, budget, canaries, make_noise
        As in :func:`audit_task`.
    case : Example
        Columns and options.
    profile : {"group", "pairwise"}
        Masks of the job.
    coins : int or str, optional
        Public seed of the coins, for tests; fresh ones unless given.

    Returns
    -------
    Finding, and the largest epsilon that is refuted at 95 % at the budget's delta

    Notes
    -----
    Guesses come from the best linear estimate of all coins from all that was released, at the
    plan's noise. They need not be good for the bound to hold. [SNJ23]_
    """
    log = Log()
    schema, n_features = schema_of(case.columns), len(case.columns)
    rng = public_generator("audit", "coins", new_nonce() if coins is None else coins)
    one = 1 << 16
    table = rng.integers(-one, one + 1, (canaries, n_features))
    table[::2] = one * rng.choice((-1, 1), (len(table[::2]), n_features))
    canary = table.astype(np.int32)
    there = rng.random(canaries) < 0.5
    present = canary[there]
    silos = {f"silo-{i}": [present[i::3]] for i in range(3)}
    done = run_job(
        watched(task, log, finish=True),
        schema,
        silos,
        epsilon=budget.epsilon,
        delta=budget.delta,
        nominal_n=_expected(canaries),
        noise=make_noise() if make_noise else None,
        profile=_profile(task, profile),
        **case.options,
    )
    estimate = _estimate(done.plan, log, canary)
    order = np.argsort(-np.abs(estimate))
    right = (estimate > 0) == there
    event = done.plan.events()
    claims = [(accounting.epsilon(event, delta), delta) for delta in (budget.delta, *_DELTAS)]
    claims = [claim for claim in claims if claim[0] < np.inf and claim[1] > 0] + [
        (accounting.pure_epsilon(event), 0.0)
    ] * bool(accounting.pure_epsilon(event) < np.inf)
    counts = [ceil(share * canaries) for share in _SHARES]
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


def _profile(task: type[Task], profile: Profile) -> Profile:
    """Return masks that the task allows."""
    return profile if profile in task.profiles else "group"


def _estimate(plan: Plan, log: Log, table: Records) -> Floats:
    """Return, for each canary, the linear estimate of its coin, minus a half.

    With V the canaries' words over the noise and y what was released, less the mean, the estimate
    that errs least is ``(4 I + V V^T)^-1 V y``.
    """
    parts, released = [], []
    for t in range(plan.rounds):
        scale = word_scales(plan, t) * (sqrt(2) if plan.task.mechanism == "laplace" else 1.0)
        rows = [plan.task.contribute(t, log.states[t], row[None]) for row in table]
        words = np.array(rows, dtype=np.float64)
        values = log.sums[t] + log.noise(t)
        parts.append(words / scale)
        released.append((values - words.sum(axis=0) / 2) / scale)
    added, answer = np.concatenate(parts, axis=1), np.concatenate(released)
    kernel = added @ added.T + 4 * np.eye(len(added))
    estimate: Floats = np.linalg.solve(kernel, added @ answer)
    return estimate


# The noise ----------------------------------------------------------------------------------------


def check_noise(
    plan: Plan, *, words: int, make_noise: MakeNoise | None = None, jobs: int = 400
) -> tuple[Finding, Finding]:
    """Test whether the noise of real jobs has the plan's law and is drawn afresh.

    Parameters
    ----------
    plan : Plan
    words : int, >= 1
        So much noise is looked at, if `jobs` jobs have so much.
    make_noise : function, optional
    jobs : int, >= 2

    Returns
    -------
    (law, independence)
    """
    rng = public_generator("audit", "places", new_nonce())
    per_job = sum(plan.length(t) for t in range(plan.rounds))
    count = min(jobs, max(4, ceil(words / per_job)))
    records = np.zeros((0, plan.grid.n_features), dtype=np.int32)
    rows = []
    for _ in range(count):
        log = Log()
        seen = watched_plan(plan, log)
        run_plan(
            seen,
            {silo: [records] for silo in plan.silos},
            noise=make_noise() if make_noise else None,
        )
        rows.append([_places(plan, t, log.noise(t), rng) for t in range(plan.rounds)])
    places = np.array([np.concatenate(row) for row in rows])
    tests = uniform_fit(places.ravel())
    p_law = min(1.0, 3 * min(tests.values()))
    normal = stats.norm.ppf(places)
    half = len(normal) // 2
    between = correlation(normal[:half].ravel(), normal[half : 2 * half].ravel())
    sizes = [plan.length(t) for t in range(plan.rounds)]
    p_pairs = [between]
    for t, (one, other) in enumerate(pairwise(sizes)):
        at, width = sum(sizes[:t]), min(one, other)
        left, right = normal[:, at : at + width], normal[:, at + one : at + one + width]
        p_pairs.append(correlation(left.ravel(), right.ravel()))
    p_fresh = min(1.0, len(p_pairs) * min(p_pairs))
    return (
        Finding(
            "law of the noise",
            p_law < ALPHA,
            f"{places.size} words of noise of {count} jobs against the plan's scales: p {p_law:.2g}"
            f" ({', '.join(f'{name} {value:.2g}' for name, value in tests.items())})",
        ),
        Finding(
            "independence of the noise",
            p_fresh < ALPHA,
            f"correlation between jobs and between rounds: p {p_fresh:.2g}",
        ),
    )


def check_fresh(plan: Plan, *, make_noise: MakeNoise | None = None) -> tuple[Finding]:
    """Run one plan several times over the same records: equal answers mean seeded noise."""
    records = np.zeros((3, plan.grid.n_features), dtype=np.int32)
    scale = np.concatenate([word_scales(plan, t) for t in range(plan.rounds)])
    # two draws are equal with probability at most 1 / scale; so many jobs that all can be
    again = max(1, ceil(-np.log(ALPHA / 2) / np.log(scale).sum()))
    answers = []
    for _ in range(1 + again):
        log = Log()
        run_plan(
            watched_plan(plan, log),
            {silo: [records] for silo in plan.silos},
            noise=make_noise() if make_noise else None,
        )
        answers.append(np.concatenate([log.noise(t) for t in range(plan.rounds)]))
    equal = sum(int((answers[0] == answer).sum()) for answer in answers[1:])
    words = again * scale.size
    p_value = float(stats.binom.sf(equal - 1, words, 1 / scale.min()))
    return (
        Finding(
            "two runs",
            p_value < ALPHA,
            f"{equal} of {words} words of noise are the same in {1 + again} runs of one plan",
        ),
    )


def _places(plan: Plan, t: int, noise: Integers, rng: np.random.Generator) -> Floats:
    """Return where draws lie in their law: uniform in (0, 1) if it is the plan's.

    A discrete law has steps; a draw gets a random place on its own.
    """
    scale = word_scales(plan, t)
    if plan.task.mechanism == "laplace":
        ratio = np.exp(-1 / scale)
        size = np.abs(noise).astype(np.float64)
        beyond = ratio ** (size + 1) / (1 + ratio)  # P(Z > size)
        own = ratio**size * (1 - ratio) / (1 + ratio)
        above = beyond + rng.random(size.size) * own
        tail = np.where(noise >= 0, 1 - above, above)
        return _inside(tail)
    if plan.profile == "pairwise":
        blocks = plan.task.blocks(t)
        scale = np.concatenate([np.full(b.size, plan.noise_std(b)) for b in blocks])
    # P(z - 1/2 < sigma N < z + 1/2) is P(Z = z), but for 1 / (24 sigma^2) of it
    place = stats.norm.cdf((noise + rng.random(noise.size) - 0.5) / scale)
    return _inside(place)


def _inside(places: Floats) -> Floats:
    """Keep what floats rounded to 0 or 1 where it has a normal score."""
    kept: Floats = np.clip(places, 1e-300, 1 - 1e-16)
    return kept
