"""An adversary's kit: known failures of systems that called themselves private, tried on any other.

Each attack is a function that returns a finding: whether it worked, and what it saw. Attacks on a
*system* play a job through its transport, masks and source of noise and look at what a server or
a curious silo sees. Attacks on a *method* call a function from records to numbers, as an outsider
can.

All of them happened: noise from a seed that the server knew; one pad for two vectors; a box taken
from the records; a support that says which records there are; counts without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from math import log

import numpy as np
from scipy import stats

from cloister.app.in_process import Handler, InProcess, handlers, make_clients, run_clients
from cloister.audit.bounds import correlation
from cloister.audit.checks import ALPHA, Finding
from cloister.audit.runs import Log, MakeNoise, element_scales, system_noise, watched_plan
from cloister.core.errors import CloisterError
from cloister.core.randomness import new_key
from cloister.hazmat.ring import to_integers
from cloister.privacy.budget import Budget
from cloister.protocol.messages import Open, Upload, decode
from cloister.protocol.plan import Plan
from cloister.protocol.session import Transport
from cloister.protocol.task import Floats, Records
from cloister.secagg.masks import GroupMask, Masker
from cloister_lab.audit.curators import distinguish

Method = Callable[[Floats], Floats]
"""From records of shape (n, d), in data units, to all numbers that are put out, of fixed shape."""

_SMALL = 1 << 48  # no sum of records comes near it; a random element is below it once in 2^15


def group_mask() -> Masker:
    """Return the product's group mask with a fresh key."""
    return GroupMask(new_key())


@dataclass(frozen=True)
class System:
    """What carries, masks and noises the sums of a job.

    Parameters
    ----------
    make_transport : function
        From handlers by silo to a transport that reaches them.
    make_noise : function
        Makes the aggregator's source of noise for one job.
    make_masker : function
        Makes the masks that the silos of one job share.
    """

    make_transport: Callable[[Mapping[str, Handler]], Transport] = InProcess
    make_noise: MakeNoise = system_noise
    make_masker: Callable[[], Masker] = group_mask


@dataclass
class Server:
    """A transport that writes down every frame, and may ask everything twice.

    Parameters
    ----------
    twice : bool
        Whether every request is sent a second time; the first answer counts.
    """

    inner: Transport
    twice: bool = False
    frames: list[tuple[str, bytes, bytes]] = field(default_factory=list)
    """Silo, request, answer."""

    def exchange(self, frames: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Carry frames."""
        answers = self.inner.exchange(frames)
        again = self.inner.exchange(frames) if self.twice else {}
        for carried in (answers, again):
            self.frames += [(silo, frames[silo], answer) for silo, answer in carried.items()]
        return answers

    def uploads(self, plan: Plan) -> dict[str, list[Upload]]:
        """Return all vectors that came from each silo."""
        found: dict[str, list[Upload]] = {}
        for silo, _, answer in self.frames:
            with suppress(CloisterError):
                message = decode(plan, answer)
                if isinstance(message, Upload):
                    found.setdefault(silo, []).append(message)
        return found


def play(
    system: System, plan: Plan, records: Mapping[str, Records], *, twice: bool = False
) -> tuple[Server, Log]:
    """Play one job of a plan without fingerprints; return what the server and a silo saw."""
    seen, masker = Log(), system.make_masker()
    watched = watched_plan(plan, seen)
    chunks = {silo: [records[silo]] for silo in plan.silos}
    clients = make_clients(watched, chunks, masker=masker)
    server = Server(system.make_transport(handlers(clients)), twice)
    for _ in run_clients(clients, system.make_noise(), transport=server):
        pass
    return server, seen


# Attacks on systems -------------------------------------------------------------------------------


def cancel_noise(system: System, plan: Plan, records: Mapping[str, Records]) -> Finding:
    """Play a job twice, with one record more the second time, and subtract the answers.

    Where the server replays noise, or makes it from a seed, the difference is what the record adds,
    exactly. Noise of two rounds of one job is compared, too.
    """
    first = plan.silos[0]
    extra = np.full((1, plan.grid.n_features), plan.grid.one // 2, dtype=np.int32)
    more = {**records, first: np.concatenate([records[first], extra])}
    scale = element_scales(plan, 0)
    jobs = max(1, int(np.ceil(-log(ALPHA / 2) / np.log(scale).sum())))
    _, before = play(system, plan, records)
    added = plan.task.contribute(0, before.states[0], extra)
    equal, p_rounds = 0, []
    for _ in range(jobs):
        _, after = play(system, plan, more)
        difference = (after.sums[0] + after.noise(0)) - (before.sums[0] + before.noise(0))
        equal += int((difference == added).sum())
        p_rounds += list(_between_rounds(plan, after))
    elements = jobs * scale.size
    p_value = float(stats.binom.sf(equal - 1, elements, 1 / scale.min()))
    p_round = min(p_rounds, default=1.0) * max(1, len(p_rounds))
    return Finding(
        "replayed noise",
        p_value < ALPHA / 2 or p_round < ALPHA / 2,
        f"{equal} of {elements} elements of two answers differ by exactly what one record adds; "
        f"independence of the noise of rounds: p {min(1.0, p_round):.2g}",
    )


def _between_rounds(plan: Plan, seen: Log) -> list[float]:
    """Return p-values of independence of the noise of each two rounds of the same length."""
    found = []
    for s, t in combinations(range(plan.rounds), 2):
        if plan.length(s) == plan.length(t) >= 3:
            pair = [seen.noise(r) / element_scales(plan, r) for r in (s, t)]
            if plan.task.mechanism == "laplace":  # to normal numbers, for which the test is exact
                pair = [
                    stats.norm.ppf(np.clip(stats.laplace.cdf(z), 1e-15, 1 - 1e-15)) for z in pair
                ]
            found.append(correlation(*pair))
    return found


def subtract_uploads(system: System, plan: Plan, records: Mapping[str, Records]) -> Finding:
    """Subtract a silo's vectors of two rounds and of two jobs: under one pad the data are left."""
    jobs = [play(system, plan, records)[0].uploads(plan) for _ in range(2)]
    least, elements = None, 0
    for silo in plan.silos:
        vectors = [upload.elements for job in jobs for upload in job[silo]]
        for one, other in combinations(vectors, 2):
            width = min(one.size, other.size)
            left = np.abs(to_integers(one[:width] - other[:width]))
            small = int((left < _SMALL).sum())
            if width >= 3 and (least is None or small / width > least / elements):
                least, elements = small, width
    broken = least is not None and least == elements
    return Finding(
        "mask reuse",
        broken,
        f"at most {least} of {elements} elements of two vectors of a silo differ by less than "
        "2^48; under one pad all do",
    )


def ask_twice(system: System, plan: Plan, records: Mapping[str, Records]) -> Finding:
    """Send every request twice, and open the first round again at the end.

    Two different vectors of one round, under one pad, would differ by records or by noise.
    """
    server, _ = play(system, plan, records, twice=True)
    found = server.uploads(plan)
    opened = {
        silo: request
        for silo, request, _ in server.frames
        if isinstance(message := decode(plan, request), Open) and message.round == 0
    }
    for silo, request in opened.items():
        try:
            answer = decode(plan, server.inner.exchange({silo: request})[silo])
        except (CloisterError, KeyError):
            continue
        if isinstance(answer, Upload):
            found[silo].append(answer)
    different = sum(
        not np.array_equal(one.elements, other.elements)
        for uploads in found.values()
        for one, other in combinations(uploads, 2)
        if one.round == other.round
    )
    total = sum(len(uploads) for uploads in found.values())
    return Finding(
        "asked twice",
        different > 0,
        f"{different} pairs of the {total} vectors that were sent for a round differ",
    )


# Attacks on methods -------------------------------------------------------------------------------


def find_range(method: Method, budget: Budget, *, n_features: int = 2, runs: int = 200) -> Finding:
    """Add one record a thousand times farther out than all others, and see the answer stretch.

    A method that takes its box, its radius or its noise from the records shows the largest one.
    """
    table = np.linspace(-0.9, 0.9, 200)[:, None] * np.ones(n_features)
    more = np.full((1, n_features), 1000.0)

    def reach(answer: Floats) -> list[float]:
        return [np.abs(answer).max(), np.ptp(answer)]

    return _distinguished("range leak", method, reach, table, more, budget, runs)


def find_support(
    method: Method, budget: Budget, *, n_features: int = 2, runs: int = 200
) -> Finding:
    """Add one record where there is none, and see come out what could not before.

    Records as centres, cells that appear when they are not empty, zones around exact means.
    """
    table = np.full((200, n_features), -0.5)
    more = np.full((1, n_features), 0.75)

    def places(answer: Floats) -> list[float]:
        return [float(np.count_nonzero(answer)), len(np.unique(answer))]

    return _distinguished("data-dependent support", method, places, table, more, budget, runs)


def find_counts(method: Method, budget: Budget, *, n_features: int = 2, runs: int = 200) -> Finding:
    """Add one copy of a record that is there already, and see a number move for certain."""
    table = np.full((200, n_features), -0.5)

    def total(answer: Floats) -> list[float]:
        return [answer.sum()]

    return _distinguished("exact counts", method, total, table, table[:1], budget, runs)


def _distinguished(
    attack: str,
    method: Method,
    features: Callable[[Floats], list[float]],
    table: Floats,
    more: Floats,
    budget: Budget,
    runs: int,
) -> Finding:
    """Look for an event of the answer, or of features of it, that refutes the claim."""

    def seen(values: Floats) -> Floats:
        answer = np.asarray(method(values), dtype=np.float64).ravel()
        return np.array([*features(answer), *answer])

    worlds = partial(seen, table), partial(seen, np.concatenate([table, more]))
    (check,) = distinguish(*worlds, [(budget.epsilon, budget.delta)], runs, ALPHA)
    return Finding(
        attack,
        check.alarms,
        f"delta({budget.epsilon:g}) is at least {max(check.least_delta, 0.0):.3g}, claimed to be "
        f"{budget.delta:g}: an event happened in {check.likely} and {check.rare} of {check.runs} "
        "runs on neighbours",
    )


SYSTEM_ATTACKS = (cancel_noise, subtract_uploads, ask_twice)
METHOD_ATTACKS = (find_range, find_support, find_counts)


def attack_system(
    system: System, plan: Plan, records: Mapping[str, Records]
) -> tuple[Finding, ...]:
    """Try all attacks on a system."""
    return tuple(attack(system, plan, records) for attack in SYSTEM_ATTACKS)


def attack_method(
    method: Method, budget: Budget, *, n_features: int = 2, runs: int = 200
) -> tuple[Finding, ...]:
    """Try all attacks on a method."""
    return tuple(
        attack(method, budget, n_features=n_features, runs=runs) for attack in METHOD_ATTACKS
    )
