"""A two-world audit of whole runs with one cluster: is the claimed curve true for this record?

World A is a data set, world B the same and one more record. Both are run many times, and every run
is scored with the logarithm of the likelihood ratio of all that it released. If the claim
delta(epsilon) holds, then for every threshold, with E the event that the score is above it,

    P_B(E) - exp(epsilon) P_A(E) <= delta(epsilon)

and the same with the worlds exchanged and E the event that the score is below the negative
threshold. A *check* bounds one probability from below and the other from above (Clopper-Pearson)
and alarms if even then the inequality fails.

**The score is exact.** Round t releases ``y = c_A + z`` in world A and ``y = c_A + v + z`` in world
B. The state after it is a public function of y, so the sum ``c_A`` that both worlds share and what
the extra record adds, v, are known to whoever holds the transcript, and the score is the sum over
rounds and words of ``ln p(y - c_A - v) - ln p(y - c_A)``, in which the normaliser of p cancels:

    Gaussian  (2 u v - v^2) / (2 sigma^2)        Laplace  (|u| - |u - v|) / scale

with u = y - c_A. The scale is the plan's: the auditor believes the plan until it is refuted.

**Many runs at once.** With one cluster, all runs go through the product's own ``task.payload``,
``task.blocks``, ``task.update``, ``round_to_grid``, ``plan.noise_scale`` and noise source, with one
row for each run where the product has one row for each cluster. Only ``contribute`` is written
again (:func:`added`). ``test_many_runs_at_once_are_real_runs_bit_for_bit`` compares both with
clients and an aggregator on the same noise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from cloister.hazmat.fixedpoint import round_to_grid
from cloister.hazmat.ring import Integers
from cloister.privacy import accounting
from cloister.privacy.noise import NoiseKind, NoiseSource
from cloister.protocol.plan import Plan
from cloister.protocol.task import GridState, NoisyBlock, Records
from cloister.tasks.clustering.kmeans import Payload

Floats = NDArray[np.float64]
World = Literal["A", "B"]

ALPHA = 1e-9  # of one Clopper-Pearson bound; a check has two
RUNS = 300_000
CURVE = (0.004, 0.01, 0.025)  # audited where the claim is delta: at 1e-5 nothing would be seen

# Thresholds of the score, as parts of epsilon. At epsilon itself a worst case attains the claim.
# Where the noise is r times what the plan, and so the score, believes, r^2 epsilon is the best: 0.8
# is for r near 0.9. For a pure claim the score cannot exceed epsilon, which is reached often.
THRESHOLDS = (1.0, 0.8)
PURE_THRESHOLDS = (0.99,)


@dataclass(frozen=True)
class Worlds:
    """Two neighbouring data sets of grid records.

    Parameters
    ----------
    points : ndarray of shape (m, d), int32
        Different records of world A.
    times : ndarray of shape (m,), int64
        How often each occurs.
    extra : ndarray of shape (d,), int32
        The record that world B has besides.
    rows : int
        How often it occurs there; more than 1 if the unit of privacy owns several records.
    """

    points: Records
    times: Integers
    extra: Records
    rows: int = 1

    def records(self, world: World) -> Records:
        """Return all records of a world, one row each."""
        shared = np.repeat(self.points, self.times, axis=0)
        extra = np.repeat(self.extra[None], self.rows if world == "B" else 0, axis=0)
        return np.vstack([shared, extra])


@dataclass(frozen=True)
class Runs:
    """Many runs: the public states, each value with one row a run, and the scores."""

    states: tuple[GridState, ...]
    scores: Floats
    influence: tuple[Floats, ...]
    """By round: for each run the squared L2 norm of what the extra record adds, or would add."""


def added(payload: Payload, centres: Integers, record: Records) -> Integers:
    """Return what a record adds at each of n centres of runs with one cluster; (n, d + 1)."""
    values = record - centres if payload.relative else np.broadcast_to(record, centres.shape)
    words = np.column_stack([values, np.full(len(centres), payload.count_weight)]).astype(np.int64)
    words[(words[:, :-1] ** 2).sum(axis=1) > payload.radius_squared] = 0
    return words


def run_many(plan: Plan, worlds: Worlds, world: World, noise: NoiseSource, runs: int) -> Runs:
    """Run a plan with one cluster `runs` times, independently."""
    task = plan.task
    start = {name: round_to_grid(v, task.frac_bits) for name, v in task.start().items()}
    states = [{name: np.repeat(value, runs, axis=0) for name, value in start.items()}]
    scores, influence = np.zeros(runs), []
    for t in range(plan.rounds):
        centres = states[-1]["centres"]
        payload, (block,) = task.payload(t), task.blocks(t)  # type: ignore[attr-defined]
        assert block.shape == (1, centres.shape[1] + 1), "runs are rows only with one cluster"
        scale = plan.noise_scale(block)
        extra = worlds.rows * added(payload, centres, worlds.extra)
        unshared = noise.draw(task.mechanism, scale, extra.size).reshape(extra.shape)
        if world == "B":
            unshared = unshared + extra
        scores += log_ratio(task.mechanism, scale, unshared, extra)
        influence.append((extra.astype(np.float64) ** 2).sum(axis=1))
        values = unshared.copy()
        for point, times in zip(worlds.points, worlds.times, strict=True):
            values += times * added(payload, centres, point)
        released = {block.name: NoisyBlock(values, plan.noise_std(block))}
        state = task.update(t, {"centres": centres}, released)
        states.append({name: round_to_grid(v, task.frac_bits) for name, v in state.items()})
    return Runs(tuple(states), scores, tuple(influence))


def log_ratio(kind: NoiseKind, scale: int, unshared: Integers, extra: Integers) -> Floats:
    """Return ``ln p(u - v) - ln p(u)``, summed over the words of each run."""
    if kind == "gaussian":
        steps = (2 * unshared * extra - extra**2).sum(axis=1)  # below 2^53: exact
        return steps / (2 * scale**2)
    return (np.abs(unshared) - np.abs(unshared - extra)).sum(axis=1) / scale


@dataclass(frozen=True)
class Check:
    """One point of the claimed curve, for one threshold and direction, against what was seen.

    Parameters
    ----------
    epsilon, delta : float
        The claim.
    likely, rare : int
        Of `runs` runs, how many are in the event in the world where it is likely, and where not.
    """

    epsilon: float
    delta: float
    likely: int
    rare: int
    runs: int

    @property
    def least_delta(self) -> float:
        """Lower bound on delta(epsilon), wrong with probability at most ``2 ALPHA``."""
        return at_least(self.likely, self.runs) - exp(self.epsilon) * at_most(self.rare, self.runs)

    @property
    def alarms(self) -> bool:
        """Whether the claim is refuted."""
        return self.least_delta > self.delta


def at_least(count: int, runs: int) -> float:
    """Return the Clopper-Pearson lower bound of a probability at ``1 - ALPHA``."""
    return float(stats.beta.ppf(ALPHA, count, runs - count + 1)) if count > 0 else 0.0


def at_most(count: int, runs: int) -> float:
    """Return the Clopper-Pearson upper bound of a probability at ``1 - ALPHA``."""
    return float(stats.beta.isf(ALPHA, count + 1, runs - count)) if count < runs else 1.0


def claims(plan: Plan) -> list[tuple[float, float, float]]:
    """Return what is audited: epsilon and delta of a point of the curve, and a threshold."""
    event = plan.events()
    curve = [(accounting.epsilon(event, delta), THRESHOLDS) for delta in CURVE]
    if np.isfinite(pure := accounting.pure_epsilon(event)):
        curve.append((pure, PURE_THRESHOLDS))
    return [
        (epsilon, accounting.delta(event, epsilon), part * epsilon)
        for epsilon, parts in curve
        for part in parts
    ]


def audit(plan: Plan, worlds: Worlds, noise: NoiseSource, runs: int = RUNS) -> list[Check]:
    """Run both worlds and compare them with every claim, in both directions."""
    a, b = (run_many(plan, worlds, world, noise, runs).scores for world in ("A", "B"))
    checks = []
    for epsilon, delta, threshold in claims(plan):
        for sign, likely, rare in ((1, b, a), (-1, a, b)):
            seen = (int((sign * scores > threshold).sum()) for scores in (likely, rare))
            checks.append(Check(epsilon, delta, *seen, runs))
    return checks


def alarming(checks: Iterable[Check]) -> list[Check]:
    """Return the checks that alarm."""
    return [check for check in checks if check.alarms]
