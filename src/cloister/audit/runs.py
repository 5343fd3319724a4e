"""Whole runs of a plan, with the contribution of one record in each round and its evidence.

**The score is exact.** Round t releases ``y = c + z`` without the record and ``y = c + v + z`` with
it. Here c is the sum that both worlds share, and v is the contribution of the record *at this
state*. The state is a public function of earlier answers, so the transcript determines both. The
score is the log-likelihood ratio of the whole release: the sum over rounds and elements of
``ln p(y - c - v) - ln p(y - c)``. The normaliser of p cancels:

    Gaussian  (2 u v - v^2) / (2 sigma^2)        Laplace  (|u| - |u - v|) / scale

with u = y - c. If a plan samples its clients, the additional record takes part with probability q.
The ratio of a round is then ``1 - q + q e^s``, with s as above. The others always take part, as for
an attacker that knows their coins. Rounds may depend on earlier answers in any way. The scale is
the plan's: the audit assumes the plan until it is refuted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

from cloister.audit.edges import hard_records
from cloister.audit.pairs import Pair, candidates, encoded, neighbours, tables
from cloister.core.randomness import new_nonce, public_generator
from cloister.hazmat.ring import to_integers, to_words
from cloister.privacy.noise import DiscreteNoise, NoiseKind, NoiseSource
from cloister.protocol.aggregator import Aggregator
from cloister.protocol.plan import Plan
from cloister.protocol.progress import Progress
from cloister.protocol.task import (
    Block,
    Floats,
    GridState,
    Integers,
    NoisyBlock,
    Records,
    State,
    Task,
    UnitTask,
)

World = Literal["without", "with"]
MakeNoise = Callable[[], NoiseSource]

_SEARCHES = 16  # runs of a search; a record that adds most in one run may add little in others
_WALKS = 3  # of them with a search for edges


@dataclass(frozen=True)
class Scores:
    """The evidence of many runs.

    Parameters
    ----------
    scores : ndarray of shape (runs,)
        Log-likelihood ratios of the world with the record over the world without it.
    reach : float
        Mean privacy cost of the record, as a fraction of the cost in the plan. The cost is the
        squared norm over squared noise, summed over rounds (Gaussian), or norm over noise
        (Laplace).
    excess : float
        Largest norm of the record's contribution to a block, over the block's bound; a value above
        1 refutes the proof of sensitivity.
    noise : ndarray of shape (runs, elements), int64
        The drawn noise: all rounds of a run in one row.
    """

    scores: Floats
    reach: float
    excess: float
    noise: Integers


def scores(plan: Plan, pair: Pair, world: World, runs: int, noise: NoiseSource) -> Scores:
    """Run a plan of a private task many times in one world, with its noise.

    Notes
    -----
    Each round uses the task's ``contribute``, the noise of the product's aggregator and the
    product's :class:`~cloister.protocol.progress.Progress`, without frames and masks. The answer of
    the last round is scored, but no result is computed from it, since that is post-processing; see
    :func:`~cloister.audit.checks.check_replay`. A test compares such runs with jobs of real clients
    and an aggregator, bit for bit.
    """
    audited = _Audited(plan, pair)
    drawn = [audited.draw(t, noise, runs) for t in range(plan.rounds)]
    scored = [audited.run(world, of_run) for of_run in zip(*drawn, strict=True)]
    return Scores(
        np.array([run.score for run in scored]),
        float(np.mean([run.reach for run in scored])),
        max(run.excess for run in scored),
        np.concatenate(drawn, axis=1),
    )


@dataclass(frozen=True)
class _Run:
    score: float
    reach: float
    excess: float


class _Audited:
    """A plan and a pair of neighbours; caches the first round, which all runs share."""

    def __init__(self, plan: Plan, pair: Pair) -> None:
        self.plan, self._pair = plan, pair
        self._rate = plan.rate  # kept, as every run of every round reads it
        self._alone = isinstance(plan.task, UnitTask) and plan.task.clients != "row"
        self._laplace = plan.task.mechanism == "laplace"
        self._blocks = [plan.task.blocks(t) for t in range(plan.rounds)]
        self._scales = [element_scales(plan, t) for t in range(plan.rounds)]
        self._first: tuple[Integers, Integers] | None = None
        self._coins = public_generator("audit", "coins", new_nonce())
        self._whole = sum(self._cost_of_bounds(t) for t in range(plan.rounds))

    def draw(self, t: int, noise: NoiseSource, runs: int) -> Integers:
        """Draw a round's noise for each run, as an aggregator does; shape (runs, elements)."""
        aggregator = Aggregator(self.plan, Ahead(noise, runs))
        return np.array([to_integers(aggregator._draw(t)) for _ in range(runs)])

    def run(self, world: World, noise: Sequence[Integers]) -> _Run:
        """Run the plan once and score its release."""
        plan, progress = self.plan, Progress(self.plan)
        score, reach, excess = 0.0, 0.0, 0.0
        for t in range(plan.rounds):
            shared, extra = self.added(t, progress.state)
            there = world == "with" and self._coins.random() < self._rate
            unshared = noise[t] + extra if there else noise[t]
            ratio = log_ratio(unshared, extra, self._scales[t], laplace=self._laplace)
            score += ratio if self._rate == 1 else _mixed(ratio, self._rate)
            reach += float(self.cost(t, extra))
            excess = max(excess, share_of_bound(plan, t, extra))
            if t < plan.rounds - 1:
                progress.receive(to_words(shared + unshared), plan.silos)
        return _Run(score, reach / self._whole, excess)

    def added(self, t: int, state: GridState) -> tuple[Integers, Integers]:
        """Return the sum without the record, and the contribution of the record."""
        if t == 0 and self._first is not None:
            return self._first
        task = self.plan.task
        shared = task.contribute(t, state, self._pair.table)
        if self._alone:  # the neighbour has one more client, not a client with more rows
            extra = task.contribute(t, state, self._pair.extra)
        else:
            extra = task.contribute(t, state, self._pair.more) - shared
        if t == 0:
            self._first = shared, extra
        return shared, extra

    def cost(self, t: int, extra: Integers) -> Floats:
        """Return the privacy cost of each row in a round: norm over noise, or its square."""
        ratio = np.abs(extra) / self._scales[t]
        costs: Floats = (ratio if self._laplace else ratio**2).sum(axis=-1)
        return costs

    def _cost_of_bounds(self, t: int) -> float:
        total = 0.0
        for block in self._blocks[t]:
            scale = self.plan.noise_scale(block)
            total += _bound(self.plan, block) / (scale if self._laplace else scale**2)
        return total


def share_of_bound(plan: Plan, t: int, added: Integers) -> float:
    """Return the largest norm of a row in a block of round `t`, over the bound of a unit.

    Parameters
    ----------
    added : ndarray of shape (..., elements), int64
        Contributions of units of privacy, one per row.

    Notes
    -----
    A value above 1 violates the bound. The quotient is exact if it is near 1.
    """
    laplace = plan.task.mechanism == "laplace"
    worst, offset = 0.0, 0
    for block in plan.blocks(t):
        block_added, bound = added[..., offset : offset + block.size], _bound(plan, block)
        offset += block.size
        floats = np.abs(block_added).astype(np.float64)
        sizes = (floats if laplace else floats**2).sum(axis=-1)
        size = float(sizes.max(initial=0.0))
        if size >= 0.999 * bound:
            # Sums of floats have a relative error far below a billionth.
            rows = block_added[sizes >= (1 - 1e-9) * size].tolist()
            whole = max(sum(abs(v) if laplace else v * v for v in row) for row in rows)
            # A quotient of large numbers may round to 1, but a violation must stay above 1.
            size = whole / bound
            size = max(size, 1 + 1e-15) if whole > bound else min(size, 1.0)
        else:
            size /= bound
        worst = max(worst, size if laplace else size**0.5)
    return worst


def _bound(plan: Plan, block: Block) -> int:
    """Return the bound of a unit's norm, or of its square."""
    group = plan.group_size
    return group * block.l1 if plan.task.mechanism == "laplace" else group**2 * block.l2_squared


class Ahead:
    """A source that draws the noise of many runs in one call, as small draws are slow."""

    def __init__(self, source: NoiseSource, runs: int) -> None:
        self.label, self._source, self._runs = source.label, source, runs
        self._left: dict[tuple[NoiseKind, int, int], Integers] = {}

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        """Return the next elements of this distribution."""
        left = self._left.get((kind, scale, size))
        if left is None or not left.size:
            left = self._source.draw(kind, scale, self._runs * size)
        self._left[kind, scale, size] = left[size:]
        return left[:size]


def element_scales(plan: Plan, t: int) -> Floats:
    """Return the plan's scale of the noise in each element of round `t`."""
    blocks = plan.task.blocks(t)
    return np.concatenate([np.full(b.size, float(plan.noise_scale(b))) for b in blocks])


def log_ratio(unshared: Integers, extra: Integers, scale: Floats, *, laplace: bool) -> float:
    """Return ``ln p(u - v) - ln p(u)``, summed over elements."""
    u, v = unshared.astype(np.float64), extra.astype(np.float64)
    if laplace:
        return float(((np.abs(u) - np.abs(u - v)) / scale).sum())
    return float(((2 * u * v - v * v) / (2 * scale**2)).sum())


def _mixed(score: float, rate: float) -> float:
    """Return the logarithm of ``1 - rate + rate * exp(score)``."""
    return float(np.logaddexp(np.log1p(-rate), np.log(rate) + score))


@dataclass(frozen=True)
class Search:
    """The result of a search for worst records over a table.

    Parameters
    ----------
    pair : Pair
        Neighbours with the record of the largest mean contribution, as an adversary would choose.
    excess : float
        Largest norm of a contribution to a block at any state, over the block's bound.
    tried : int
        Number of pairs of a record and a state that were tried.
    adds_up : bool
        True if the sum of a table always equals the sum of its records' contributions.
    """

    pair: Pair
    excess: float
    tried: int
    adds_up: bool


def search(plan: Plan, beside: str, noise: NoiseSource) -> Search:
    """Search for the records of the largest contribution, at the states of runs over a table.

    Notes
    -----
    The table is one of :func:`~cloister.audit.pairs.tables`. Every run tries some 200 records at
    every state. The first runs also try those of :func:`~cloister.audit.edges.hard_records`, which
    depend on the state. All runs start at one state, where the 200 are tried once.
    """
    table = tables(plan)[beside]
    fixed = candidates(plan)
    audited = _Audited(plan, neighbours(plan, "", table, fixed[0]))
    records = encoded(plan.grid, fixed)
    rng = public_generator("audit", "walls", new_nonce())
    total, excess, tried, adds_up = np.zeros(len(fixed)), 0.0, len(records), True
    by_row = not isinstance(plan.task, UnitTask) or plan.task.clients == "row"

    def tries(t: int, state: GridState, of: Records) -> tuple[Integers, float]:
        """Return the contribution of each record, and the largest fraction of a bound."""
        added = np.zeros((len(of), audited._scales[t].size), dtype=np.int64)
        for row, record in zip(added, of, strict=True):
            row[:] = plan.task.contribute(t, state, record[None])
        # All rows of one unit may be equal, so its contribution is up to group_size times larger.
        return added, share_of_bound(plan, t, plan.group_size * added)

    at_start = tries(0, Progress(plan).state, records)
    drawn = [audited.draw(t, noise, _SEARCHES) for t in range(plan.rounds - 1)]
    for walk in range(_SEARCHES):
        progress = Progress(plan)
        for t in range(plan.rounds):
            state = progress.state
            added, largest = tries(t, state, records) if t else at_start
            total += audited.cost(t, added)
            excess, tried = max(excess, largest), tried + len(records) * (t > 0)
            if walk < _WALKS:
                hard = hard_records(plan, t, state, rng)
                on_walls, largest = tries(t, state, hard)
                excess, tried = max(excess, largest), tried + len(hard)
                if len(hard) and by_row:
                    every, each = np.concatenate([records, hard]), np.concatenate([added, on_walls])
                    # Some records occur twice: a task that counts distinct rows does not add up.
                    twice = np.concatenate([every, every[-3:]])
                    whole = plan.task.contribute(t, state, twice)
                    adds_up &= bool((whole == each.sum(axis=0) + each[-3:].sum(axis=0)).all())
            if t < plan.rounds - 1:
                shared = audited.added(t, state)[0]
                progress.receive(to_words(shared + drawn[t][walk]), plan.silos)
    pair = neighbours(plan, f"the worst beside {beside}", table, fixed[int(total.argmax())])
    return Search(pair, excess, tried, adds_up)


# Real jobs ----------------------------------------------------------------------------------------


@dataclass
class Log:
    """The states, sums and releases of a watched job, by round."""

    states: dict[int, GridState] = field(default_factory=dict)
    sums: dict[int, Integers] = field(default_factory=dict)
    released: dict[int, dict[str, NoisyBlock]] = field(default_factory=dict)

    def answer(self, t: int) -> Integers:
        """Return all elements of the answer of round `t`."""
        return np.concatenate([part.values.ravel() for part in self.released[t].values()])

    def noise(self, t: int) -> Integers:
        """Return all noise that was in the answer of round `t`."""
        return self.answer(t) - self.sums[t]


def watched(task: type[Task], log: Log, *, finish: bool = False) -> type[Task]:
    """Return an equal task that writes states, sums and releases to a log.

    Its plans have the same text and digest. With `finish`, the result of the last round is
    computed, too; it is post-processing.
    """

    def contribute(self: Any, t: int, state: GridState, records: Records) -> Integers:
        elements = task.contribute(self, t, state, records)
        log.states[t] = state
        log.sums[t] = (
            log.sums.get(t, 0) + elements
        )  # new elements: a silo adds its noise to its own
        return elements

    def update(self: Any, t: int, state: GridState, released: Mapping[str, NoisyBlock]) -> State:
        log.released.setdefault(t, dict(released))
        if not finish and t == self.rounds - 1:
            started: State = self.start()
            return started
        next_state: State = task.update(self, t, state, released)
        return next_state

    # Without rows a silo sums by the kernel alone, so that the log has its sums and no others.
    members = {"contribute": contribute, "update": update, "rows": None}
    return type(task.__name__, (task,), members)


def watched_plan(plan: Plan, log: Log, *, finish: bool = False) -> Plan:
    """Return the same plan with a watched task, see :func:`watched`."""
    kind = type(plan.task)
    names = [f.name for f in fields(kind) if f.init]  # type: ignore[arg-type]  # tasks are dataclasses
    values = {name: getattr(plan.task, name) for name in names}
    return replace(plan, task=watched(kind, log, finish=finish)(**values))


def system_noise() -> NoiseSource:
    """Return a fresh source of the product's own noise."""
    return DiscreteNoise()
