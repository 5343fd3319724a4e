"""Whole runs of a plan, seen from inside: what a record adds in each round and what it gives away.

**The score is exact.** Round t releases ``y = c + z`` without the record and ``y = c + v + z`` with
it. The state before the round is a public function of earlier answers, so c, the sum that both
worlds share, and v, what the record adds *at this state*, are known to whoever holds the
transcript. The score is the logarithm of the likelihood ratio of everything that was released: the
sum over rounds and words of ``ln p(y - c - v) - ln p(y - c)``, where the normaliser of p cancels:

    Gaussian  (2 u v - v^2) / (2 sigma^2)        Laplace  (|u| - |u - v|) / scale

with u = y - c. Where a plan samples its clients, the record more takes part by a coin of rate q and
a round's ratio is ``1 - q + q e^s``, with s as above; the others always take part, as for an
attacker who knows their coins. Rounds may depend on earlier answers in any way. The scale is the
plan's: the auditor believes the plan until it is refuted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

from cloister.audit.pairs import Pair, candidates, neighbours, tables
from cloister.hazmat.ring import to_words
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.plan import Plan
from cloister.protocol.progress import Progress
from cloister.randomness import new_nonce, public_generator
from cloister.tasks.base import Floats, GridState, Integers, Records, Released, State, Task

World = Literal["without", "with"]
MakeNoise = Callable[[], NoiseSource]

_WORDS = 1 << 22  # of noise drawn at a time
_SEARCHES = 16  # runs to look for a record in: one that adds most to a single run may add little


@dataclass(frozen=True)
class Scores:
    """What many runs gave away.

    Parameters
    ----------
    scores : ndarray of shape (runs,)
        Log-likelihood ratios of the world with the record over the world without it.
    reach : float
        Mean over runs of what the record added, as a part of what the plan pays for: squared norm
        over squared noise summed over the rounds (Gaussian), norm over noise (Laplace).
    excess : float
        Largest norm of what the record added to a block, over the block's bound; more than 1
        refutes the proof of sensitivity by itself.
    """

    scores: Floats
    reach: float
    excess: float


def scores(plan: Plan, pair: Pair, world: World, runs: int, noise: NoiseSource) -> Scores:
    """Run a plan many times in one world.

    Parameters
    ----------
    plan : Plan
        Of a private task.
    pair : Pair
    world : {"without", "with"}
    runs : int, >= 1
    noise : NoiseSource
        Of the noise that is really added; the plan's scale is asked for.

    Notes
    -----
    Rounds go through the task's own ``contribute``, the plan's noise scales and the product's
    :class:`~cloister.protocol.progress.Progress`, without the frames and masks that carry them. The
    answer of the last round is scored but not worked out: it is post-processing. A test compares
    such runs with jobs of real clients and an aggregator, bit for bit.
    """
    audited = _Audited(plan, pair)
    found, reach, excess = np.zeros(runs), 0.0, 0.0
    words = sum(plan.length(t) for t in range(plan.rounds))
    batch = max(1, min(runs, _WORDS // words))
    for first in range(0, runs, batch):
        size = min(batch, runs - first)
        drawn = [audited.draw(t, noise, size) for t in range(plan.rounds)]
        for run in range(size):
            scored = audited.run(world, [of_round[run] for of_round in drawn])
            found[first + run] = scored.score
            reach += scored.reach / runs
            excess = max(excess, scored.excess)
    return Scores(found, reach, excess)


@dataclass(frozen=True)
class _Run:
    score: float
    reach: float
    excess: float


class _Audited:
    """A plan and a pair of neighbours; remembers the first round, which all runs share."""

    def __init__(self, plan: Plan, pair: Pair) -> None:
        self.plan, self._pair = plan, pair
        self._laplace = plan.task.mechanism == "laplace"
        self._blocks = [plan.task.blocks(t) for t in range(plan.rounds)]
        self._scales = [word_scales(plan, t) for t in range(plan.rounds)]
        self._first: tuple[Integers, Integers] | None = None
        self._coins = public_generator("audit", "coins", new_nonce())
        self._whole = sum(self._cost_of_bounds(t) for t in range(plan.rounds))

    def draw(self, t: int, noise: NoiseSource, runs: int) -> Integers:
        """Draw a round's noise for many runs, block by block; shape (runs, words)."""
        kind = self.plan.task.mechanism
        assert kind != "none"  # a private task adds noise
        parts = [
            noise.draw(kind, self.plan.noise_scale(block), runs * block.size).reshape(runs, -1)
            for block in self._blocks[t]
        ]
        return np.concatenate(parts, axis=1)

    def run(self, world: World, noise: list[Integers]) -> _Run:
        """Run once and score what was released."""
        plan, progress = self.plan, Progress(self.plan)
        score, reach, excess = 0.0, 0.0, 0.0
        for t in range(plan.rounds):
            shared, extra = self._added(t, progress.state)
            there = world == "with" and self._coins.random() < plan.rate
            unshared = noise[t] + extra if there else noise[t]
            one = log_ratio(unshared, extra, self._scales[t], laplace=self._laplace)
            score += one if plan.rate == 1 else _mixed(one, plan.rate)
            reach += self._cost(extra, self._scales[t])
            excess = max(excess, self._excess(t, extra))
            if t < plan.rounds - 1:
                progress.receive(to_words(shared + unshared), plan.silos)
        return _Run(score, reach / self._whole, excess)

    def _added(self, t: int, state: GridState) -> tuple[Integers, Integers]:
        """Return the sum without the record, and what the record adds to it."""
        if t == 0 and self._first is not None:
            return self._first
        task = self.plan.task
        shared = task.contribute(t, state, self._pair.table)
        both = shared, task.contribute(t, state, self._pair.more) - shared
        if t == 0:
            self._first = both
        return both

    def _cost(self, extra: Integers, scale: Floats) -> float:
        ratio = np.abs(extra) / scale
        return float(ratio.sum() if self._laplace else (ratio**2).sum())

    def _cost_of_bounds(self, t: int) -> float:
        group, total = self.plan.group_size, 0.0
        for block in self._blocks[t]:
            scale = self.plan.noise_scale(block)
            if self._laplace:
                total += group * block.l1 / scale
            else:
                total += group**2 * block.l2_squared / scale**2
        return total

    def _excess(self, t: int, extra: Integers) -> float:
        """Return the largest norm in a block over its bound, in exact integers until the end."""
        worst, offset, group = 0.0, 0, self.plan.group_size
        for block in self._blocks[t]:
            part = [int(v) for v in extra[offset : offset + block.size] if v]
            offset += block.size
            if self._laplace:
                worst = max(worst, sum(map(abs, part)) / (group * block.l1))
            else:
                square = sum(v * v for v in part)
                worst = max(worst, (square / (group**2 * block.l2_squared)) ** 0.5)
        return worst


def word_scales(plan: Plan, t: int) -> Floats:
    """Return the plan's scale of the noise in each word of round `t`."""
    blocks = plan.task.blocks(t)
    return np.concatenate([np.full(b.size, float(plan.noise_scale(b))) for b in blocks])


def log_ratio(unshared: Integers, extra: Integers, scale: Floats, *, laplace: bool) -> float:
    """Return ``ln p(u - v) - ln p(u)``, summed over words."""
    u, v = unshared.astype(np.float64), extra.astype(np.float64)
    if laplace:
        return float(((np.abs(u) - np.abs(u - v)) / scale).sum())
    return float(((2 * u * v - v * v) / (2 * scale**2)).sum())


def _mixed(score: float, rate: float) -> float:
    """Return the logarithm of ``1 - rate + rate * exp(score)``."""
    return float(np.logaddexp(np.log1p(-rate), np.log(rate) + score))


def worst_record(plan: Plan, beside: str, noise: NoiseSource) -> Pair:
    """Look for the record that adds most to runs over a table.

    Parameters
    ----------
    plan : Plan
    beside : str
        One of :func:`~cloister.audit.pairs.tables`.
    noise : NoiseSource

    Returns
    -------
    Pair
        The worst of some 200 candidates in the mean of a few runs; an adversary may choose it.
    """
    table = tables(plan)[beside]
    tried = candidates(plan)
    audited = _Audited(plan, neighbours(plan, "", table, tried[0]))
    records = plan.grid.encode(plan.grid.centre + tried * plan.grid.half_range)
    total = np.zeros(len(tried))
    for _ in range(_SEARCHES):
        progress = Progress(plan)
        for t in range(plan.rounds):
            scale = word_scales(plan, t)
            for row, record in enumerate(records):
                added = plan.task.contribute(t, progress.state, record[None])
                total[row] += audited._cost(added, scale)
            shared, _ = audited._added(t, progress.state)
            if t < plan.rounds - 1:
                progress.receive(to_words(shared + audited.draw(t, noise, 1)[0]), plan.silos)
    return neighbours(plan, f"the worst beside {beside}", table, tried[int(total.argmax())])


# Real jobs ----------------------------------------------------------------------------------------


@dataclass
class Log:
    """What a watched job summed and released, round by round."""

    states: dict[int, GridState] = field(default_factory=dict)
    sums: dict[int, Integers] = field(default_factory=dict)
    released: dict[int, dict[str, Released]] = field(default_factory=dict)

    def noise(self, t: int) -> Integers:
        """Return all noise that was in the answer of round `t`."""
        values = np.concatenate([part.values.ravel() for part in self.released[t].values()])
        return values - self.sums[t]


def watched(task: type[Task], log: Log, *, finish: bool = False) -> type[Task]:
    """Return a task that is the same, and writes what it is asked into a log.

    Parameters
    ----------
    task : type
    log : Log
    finish : bool
        Whether the answer of the last round is worked out; it is post-processing.

    Returns
    -------
    type
        Its plans have the same text and the same digest.
    """

    def contribute(self: Any, t: int, state: GridState, records: Records) -> Integers:
        words = task.contribute(self, t, state, records)
        log.states[t] = state
        log.sums[t] = log.sums[t] + words if t in log.sums else words
        return words

    def update(self: Any, t: int, state: GridState, released: Mapping[str, Released]) -> State:
        log.released.setdefault(t, dict(released))
        if not finish and t == self.rounds - 1:
            started: State = self.start()
            return started
        found: State = task.update(self, t, state, released)
        return found

    return type(task.__name__, (task,), {"contribute": contribute, "update": update})


def watched_plan(plan: Plan, log: Log) -> Plan:
    """Return the same plan with a watched task."""
    kind = type(plan.task)
    names = [f.name for f in fields(kind) if f.init]  # type: ignore[arg-type]  # tasks are dataclasses
    values = {name: getattr(plan.task, name) for name in names}
    return replace(plan, task=watched(kind, log)(**values))


def system_noise() -> NoiseSource:
    """Return a fresh source of the product's own noise."""
    return DiscreteNoise()
