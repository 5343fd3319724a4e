"""Error, width and coverage of private Cox regression, against the maximum of the likelihood.

Every run has records and noise of its own. The maximum is of the partial likelihood of records that
are followed up to the horizon which the release names (within 2e-7 of what lifelines 0.30.3 says
of three such sets). Printed are, for half of a column's range, the median standard error of
sampling and the rms error by noise; of unmarked coefficients how often the noise interval has the
maximum and the population interval the truth (in brackets: of the worst coefficient with 50 such
runs), and the median width of the latter, over that of an oracle who knows the standard error of
sampling and the error by noise that 95 % of all runs are within; how many are marked; how often the
score test rejects at 5 %. The oracle takes marked coefficients too: they are marked for being far
out, so that errors of the unmarked ones alone are less than what noise makes, which nobody could
know beforehand. Bars: coverage at least 0.93, width at most 1.15, and 0.075 rejected where nothing
matters.

Run: python benchmarks/cox_approximate.py [runs] [kind ...]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import product

import numpy as np

from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.protocol.task import NoisyBlock, PublicColumn
from cloister.tasks.survival.cox_approximate import CoxApproximate
from cloister.testing import toy_task

DELTA = 1e-6
SIZES, EPSILONS = (2000, 20000), (0.5, 1.0, 4.0)


@dataclass(frozen=True)
class Kind:
    """Effects for half of a column's range, and what is unusual about the records."""

    beta: tuple[float, ...]
    censored: float = 1.7
    correlated: bool = False
    rare: float = 0.4
    events: float = 1.0  # of the nominal number, those that are there

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return time, event, covariates; of these every fourth is 0 or 1."""
        p = len(self.beta)
        if self.correlated:
            both = 0.8 * rng.normal(size=(n, 1)) + 0.6 * rng.normal(size=(n, p))
            x = np.clip(both / 2, -1, 1)
        else:
            draws = (
                lambda: rng.uniform(-1, 1, n),
                lambda: np.where(rng.random(n) < self.rare, 1.0, -1.0),
                lambda: np.clip(rng.normal(0, 0.5, n), -1, 1),
                lambda: np.clip(rng.exponential(0.5, n) - 1, -1, 1),
            )
            x = np.column_stack([draws[j % 4]() for j in range(p)])
        x[:, 1::4] = (x[:, 1::4] > 0) if self.correlated else (x[:, 1::4] + 1) / 2
        risk = x @ (np.array(self.beta) * self.halves)
        time = (rng.exponential(1, n) / (1.3 * np.exp(risk - risk.mean()))) ** 0.8
        censored = rng.exponential(self.censored, n)
        event = (time <= censored) & (time < 1)
        return np.column_stack([np.minimum(np.minimum(time, censored), 1.0), event, x])

    @property
    def halves(self) -> np.ndarray:
        """Return for how many halves of a column's range its unit is."""
        return np.array([2.0 if j % 4 == 1 else 1.0 for j in range(len(self.beta))])


STRONG, MILD = (0.4, -0.5, 0.3, -0.35), (0.2, -0.25, 0.1, -0.2)
KINDS = {
    "strong": Kind(STRONG),
    "mild": Kind(MILD),
    "one of .1": Kind((0.1, 0.0, 0.0, 0.0)),
    "none": Kind((0.0,) * 4),
    "eight": Kind((0.2, -0.15, 0.1, 0.0, 0.25, 0.0, -0.2, 0.1)),
    # and what the design was not made for
    "censored": Kind(MILD, censored=0.15),
    "correlated": Kind(MILD, correlated=True),
    "rare": Kind(MILD, rare=0.02),
    "few events": Kind(MILD, events=0.5),
    "few, none": Kind((0.0,) * 4, events=0.5),
}


def columns_of(p: int) -> tuple[PublicColumn, ...]:
    """Return time, event, and p columns, of which every fourth is a boolean."""
    binary = ("0", "1")
    covariates = [
        PublicColumn(f"x{j}", 0.0, 1.0, binary) if j % 4 == 1 else PublicColumn(f"x{j}", -1.0, 1.0)
        for j in range(p)
    ]
    return (
        PublicColumn("time", 0.0, 1.0),
        PublicColumn("event", 0.0, 1.0, binary),
        *covariates,
    )


def maximum(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients and standard errors of the partial likelihood, of Breslow's."""
    time, event, x = rows[:, 0], rows[:, 1] > 0.5, rows[:, 2:]
    order = np.argsort(-time, kind="stable")
    time, event, x = time[order], event[order], x[order]
    ends = np.searchsorted(-time, -time, side="right") - 1  # those with an equal time are at risk
    b = np.zeros(x.shape[1])
    for _ in range(20):
        w = np.exp(x @ b)
        at_risk = np.cumsum(w)[ends]
        mean = (np.cumsum(w[:, None] * x, axis=0)[ends] / at_risk[:, None])[event]
        # the sum over events of a sum over those at risk, in the other order
        each = np.bincount(ends, event / at_risk, minlength=len(w))
        info = (x * (w * np.cumsum(each[::-1])[::-1])[:, None]).T @ x - mean.T @ mean
        step = np.linalg.solve(info, (x[event] - mean).sum(axis=0))
        b = b + step
        if np.abs(step).max() < 1e-9:
            break
    return b, np.sqrt(np.diag(np.linalg.inv(info)))


def followed(rows: np.ndarray, horizon: float) -> np.ndarray:
    """Return the records as they are if nobody is followed beyond the horizon."""
    late = rows[:, 0] > horizon
    rows = rows.copy()
    rows[late, 1] = 0.0
    rows[:, 0] = np.minimum(rows[:, 0], horizon)
    return rows


def task_of(n: int, p: int, epsilon: float, events: int) -> CoxApproximate:
    """Return the plan's task."""
    found: CoxApproximate = toy_task(
        CoxApproximate,
        n_features=2 + p,
        nominal_n=n,
        budget=Budget(epsilon, DELTA),
        columns=columns_of(p),
        time="time",
        event="event",
        nominal_events=events,
    )
    return found


def released(
    task: CoxApproximate, grid: np.ndarray, sigma: float, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return what the task makes of records in the grid, with noise of that multiplier."""
    state = {k: round_to_grid(v, task.frac_bits) for k, v in task.start().items()}
    for t in range(task.rounds):
        (block,) = task.blocks(t)
        std = sigma * np.sqrt(block.l2_squared / block.weight)
        total = task.contribute(t, state, grid)
        total = total + np.rint(rng.normal(0, std, len(total))).astype(np.int64)
        answer = {block.name: NoisyBlock(total.reshape(block.shape), float(std))}
        after = task.update(t, state, answer)
        state = {k: round_to_grid(v, task.frac_bits) for k, v in after.items()}
    return {k: np.asarray(v) for k, v in task.results(state, None).items()}  # type: ignore[arg-type]  # in units of the grid


def encoded(rows: np.ndarray, one: int = 1 << 16) -> np.ndarray:
    """Return records in the grid of :func:`columns_of`."""
    low = np.array([0.0, 0.0, *(0.0 if j % 4 == 1 else -1.0 for j in range(rows.shape[1] - 2))])
    return np.rint((2 * (rows - low) / (1 - low) - 1) * one).astype(np.int32)


def study(name: str, n: int, epsilon: float, runs: int) -> str:
    """Return a line of the table."""
    kind, rng = KINDS[name], np.random.default_rng(7)
    halves, truth = kind.halves, np.array(kind.beta) * kind.halves
    sigma, p = gaussian_noise_multiplier(epsilon, DELTA), len(kind.beta)
    nominal = int(kind.draw(20 * n, np.random.default_rng(1))[:, 1].sum() / 20 / kind.events)
    try:
        task = task_of(n, p, epsilon, min(nominal, n))
    except PlanError as error:
        return f"| {name} | {n} | {epsilon:g} | refused: {str(error).split(':')[0]} |{' |' * 7}"
    best, se, tests = np.zeros((runs, p)), np.zeros((runs, p)), []
    found = {k: np.zeros((runs, p)) for k in ("coef", "low", "high", "far_low", "far_high", "mark")}
    for i in range(runs):
        rows = kind.draw(n, rng)
        one = released(task, encoded(rows), sigma, rng)
        best[i], se[i] = maximum(followed(rows, max(float(one["horizon"][0]), 0.05)))
        words = ("", "_low", "_high", "_population_low", "_population_high")
        for k, word in zip(found, words, strict=False):
            found[k][i] = one[f"coef{word}"]
        found["mark"][i] = one["attenuated"]
        tests.append(one["score_p"][0] < 0.05)
    kept = found["mark"] == 0

    def share(low: np.ndarray, high: np.ndarray, of: np.ndarray) -> str:
        hit = (low <= of) & (of <= high)
        often = kept.sum(axis=0) >= min(50, runs)
        worst = min((hit[kept[:, j], j].mean() for j in np.flatnonzero(often)), default=np.nan)
        return f"{hit[kept].mean() if kept.any() else np.nan:.3f} ({worst:.3f})"

    error = found["coef"] - best
    made = np.quantile(np.abs(error), 0.95, axis=0)
    wide = (found["far_high"] - found["far_low"]) / (2 * np.hypot(1.96 * se, made))
    cells = (
        f"{np.median(se / halves):.4f}",
        f"{np.sqrt(np.mean(np.square(error / halves))):.4f}",
        share(found["low"], found["high"], best),
        share(found["far_low"], found["far_high"], truth),
        f"{np.median(wide[kept]) if kept.any() else np.nan:.2f}",
        f"{1 - kept.mean():.2f}",
        f"{np.mean(tests):.3f}",
    )
    return f"| {name} | {n} | {epsilon:g} | {task.order} | {' | '.join(cells)} |"


if __name__ == "__main__":
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    headings = (
        "effects, n, epsilon, order, error of sampling, rms by noise, noise interval (worst), "
    )
    headings += "population interval (worst), width over an oracle's, marked, rejected at .05"
    print(f"| {headings.replace(', ', ' | ')} |\n{'|---' * (headings.count(', ') + 1)}|")
    for name, n, epsilon in product(sys.argv[2:] or KINDS, SIZES, EPSILONS):
        print(study(name, n, epsilon, runs), flush=True)
