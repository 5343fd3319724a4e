"""Approximate Cox regression against Efron's maximum on real tables: coverage, width and error.

Every run draws records from a table, spreads their times by 4 % so that none are tied, and has
noise of its own. The maximum is of the partial likelihood of these records (as lifelines 0.30.3 has
it). Covariates are the first columns with up to six coefficients. Boxes are a tenth wider than the
data, and a quarter for times. Printed are, of coefficients without a mark, how often noise
intervals have the maximum and population intervals the coefficients of the table, and the worst
coefficient; the median half-width over 1.96 root mean square errors, and over 1.96 standard errors;
and how many are marked and not known. Tables are those of SurvSet: ``pip install survset==0.2.11``.
The second half was looked at once.

Run: python benchmarks/cox_approximate.py [runs] [first|second|TABLE ...]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pandas as pd

from cloister.core.arrays import Floats, Results
from cloister.core.errors import PlanError
from cloister.hazmat.fixedpoint import round_to_grid
from cloister.privacy.budget import Budget
from cloister.privacy.calibration import gaussian_noise_multiplier
from cloister.protocol.task import NoisyBlock, PublicColumn
from cloister.tasks.survival.cox_approximate import CoxApproximate
from cloister.testing import toy_task

DELTA, MOST, TIES = 1e-6, 6, 0.04
CELLS = ((5000, 4.0), (20_000, 1.0), (20_000, 4.0))
FIRST = (
    "actg", "colon", "dataDIVAT1", "dataDIVAT3", "Dialysis", "follic", "GBSG2", "hdfail", "rdata",
    "rott2", "smarto", "TRACE", "UnempDur", "vlbw",
)  # fmt: skip
SECOND = (
    "Aids2", "cost", "dataDIVAT2", "dataOvarian1", "flchain", "Framingham", "grace", "LeukSurv",
    "prostate", "rhc", "scania", "support2", "Unemployment", "whas500",
)  # fmt: skip


@dataclass(frozen=True)
class Study:
    """Times, events and covariates of a table; categories are codes."""

    time: Floats
    event: Floats
    x: Floats
    levels: tuple[int, ...]

    @classmethod
    def of(cls, name: str) -> Study:
        """Return a table of SurvSet without missing values."""
        from SurvSet.data import SurvLoader

        frame = SurvLoader().load_dataset(name)["df"]
        numbers = [c for c in frame if c.startswith("num_")]
        factors = [c for c in frame if c.startswith("fac_")]
        width = max(len(numbers), len(factors))
        kept: dict[str, int] = {}
        for j in range(width):
            for column in (*numbers[j : j + 1], *factors[j : j + 1]):
                values = frame[column]
                factor, sizes = column in factors, values.dropna().value_counts(normalize=True)
                levels = len(sizes) if factor or len(sizes) == 2 else 0
                rare = factor and (not 2 <= levels <= 4 or sizes.min() < 0.01)
                used = sum(max(n - 1, 1) for n in kept.values()) + max(levels - 1, 1)
                if values.isna().mean() <= 0.1 and not rare and used <= MOST:
                    kept[column] = levels
        frame = frame[["time", "event", *kept]].dropna()
        frame = frame[frame["time"] > 0]
        x = [
            pd.Categorical(frame[c].astype(str) if c in factors else frame[c]).codes
            if n
            else frame[c]
            for c, n in kept.items()
        ]
        time, event = frame["time"].to_numpy(float), (frame["event"] == 1).to_numpy(float)
        return cls(time, event, np.column_stack(x).astype(float), tuple(kept.values()))

    @property
    def columns(self) -> tuple[PublicColumn, ...]:
        """Time, event and covariates in wide boxes."""
        found = [
            PublicColumn("time", 0.0, 1.25 * self.time.max()),
            PublicColumn("event", 0.0, 1.0, ("0", "1")),
        ]
        for j, n in enumerate(self.levels):
            low, high = self.x[:, j].min(), self.x[:, j].max()
            wide = 0.0 if n else 0.1 * (high - low)
            of = tuple(map(str, range(n)))
            found.append(PublicColumn(f"x{j}", low - wide, high + wide, of))
        return tuple(found)

    @property
    def indicators(self) -> Floats:
        """Numbers, and an indicator of each category but the first."""
        parts = [
            self.x[:, [j]] if not n else self.x[:, [j]] == np.arange(1, n)
            for j, n in enumerate(self.levels)
        ]
        return np.concatenate(parts, axis=1).astype(float)

    def drawn(self, n: int, rng: np.random.Generator) -> Study:
        """Return records of the table, with times of their own."""
        rows = rng.integers(0, len(self.time), n)
        time = self.time[rows] * rng.uniform(1 - TIES, 1 + TIES, n)
        return Study(time, self.event[rows], self.x[rows], self.levels)


def maximum(study: Study, units: Floats) -> tuple[Floats, Floats]:
    """Return coefficients and standard errors of the partial likelihood without ties."""
    order = np.argsort(-study.time, kind="stable")
    event, x = study.event[order] > 0, study.indicators[order] / units
    ends = np.searchsorted(-study.time[order], -study.time[order], side="right") - 1
    b = np.zeros(x.shape[1])
    for _ in range(60):
        w = np.exp(x @ b)
        at_risk = np.cumsum(w)[ends]
        mean = (np.cumsum(w[:, None] * x, axis=0)[ends] / at_risk[:, None])[event]
        # the sum over events of a sum over those at risk, in the other order
        each = np.bincount(ends, event / at_risk, minlength=len(w))
        info = (x * (w * np.cumsum(each[::-1])[::-1])[:, None]).T @ x - mean.T @ mean
        step = np.linalg.solve(info, (x[event] - mean).sum(axis=0))
        step *= min(1.0, 1 / np.abs(step).max())  # far values: a whole step may overshoot
        b = b + step
        if np.abs(step).max() < 1e-9:
            break
    return b, np.sqrt(np.diag(np.linalg.inv(info)))


def released(
    task: CoxApproximate,
    study: Study,
    columns: tuple[PublicColumn, ...],
    sigma: float,
    rng: np.random.Generator,
) -> Results:
    """Return what the task makes of records, with noise of that multiplier."""
    low, high = (np.array([getattr(c, end) for c in columns]) for end in ("low", "high"))
    rows = np.column_stack([study.time, study.event, study.x])
    grid = np.rint((2 * (rows - low) / (high - low) - 1) * (1 << task.frac_bits)).astype(np.int32)
    state = {k: round_to_grid(v, task.frac_bits) for k, v in task.start().items()}
    for t in range(task.rounds):
        total, at, answer = task.contribute(t, state, grid), 0, {}
        for block in task.blocks(t):
            std = float(sigma * np.sqrt(block.l2_squared / block.weight))
            noise = np.rint(rng.normal(0, std, block.size)).astype(np.int64)
            words = (total[at : at + block.size] + noise).reshape(block.shape)
            answer[block.name], at = NoisyBlock(words, std), at + block.size
        after = task.update(t, state, answer)
        state = {k: round_to_grid(v, task.frac_bits) for k, v in after.items()}
    return task.results(state, None)  # type: ignore[arg-type]  # in units of the grid


def line(name: str, n: int, epsilon: float, runs: int) -> str:
    """Return a line of the table."""
    table, rng = Study.of(name), np.random.default_rng(7)
    columns, sigma = table.columns, gaussian_noise_multiplier(epsilon, DELTA)
    try:
        task: CoxApproximate = toy_task(
            CoxApproximate,
            n_features=len(columns),
            nominal_n=n,
            budget=Budget(epsilon, DELTA),
            columns=columns,
            time="time",
            event="event",
            nominal_events=int(table.event.mean() * n),
        )
    except PlanError as refused:
        return f"| {name} | {n} | {epsilon:g} | refused: {str(refused).split(':')[0]} |{' |' * 6}"
    units = np.array(task.units)
    truth, shape = maximum(table, units)[0], (runs, len(units))
    error, half, se, noise, population = (np.zeros(shape) for _ in range(5))
    known, clear = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    for i in range(runs):
        study = table.drawn(n, rng)
        best, se[i] = maximum(study, units)
        found = released(task, study, columns, sigma, rng)
        ends = ("", "_low", "_high", "_population_low", "_population_high")
        value, low, high, far_low, far_high = (found[f"coef{end}"] * units for end in ends)
        known[i] = np.isfinite(value)
        clear[i] = known[i] & (found["far_values"] == 0)
        error[i], half[i] = value - best, (high - low) / 2
        noise[i] = (low <= best) & (best <= high)
        population[i] = (far_low <= truth) & (truth <= far_high)
    if not clear.any():
        return f"| {name} | {n} | {epsilon:g} | none known |{' |' * 6}"

    def share(hit: Floats) -> str:
        each = [hit[clear[:, j], j].mean() for j in np.flatnonzero(clear.any(axis=0))]
        return f"{hit[clear].mean():.3f} ({min(each):.2f})"

    of = np.where(clear, 1.0, np.nan)[:, clear.any(axis=0)]
    error, half, se = (of * part[:, clear.any(axis=0)] for part in (error, half, se))
    made = np.sqrt(np.nanmean(error**2, axis=0))
    width, sampling = np.nanmedian(half, axis=0) / 1.96, np.nanmedian(se, axis=0)
    cells = (
        share(noise),
        share(population),
        f"{np.median(width / made):.2f}",
        f"{np.median(width / sampling):.2f}",
        f"{np.median(made / sampling):.2f}",
        f"{(known & ~clear).mean():.2f}",
        f"{1 - known.mean():.2f}",
    )
    return f"| {name} | {n} | {epsilon:g} | {' | '.join(cells)} |"


if __name__ == "__main__":
    runs, names = int((sys.argv[1:] or ["8"])[0]), sys.argv[2:] or ["first"]
    headings = (
        "table, n, epsilon, noise interval (worst), population interval (worst), width over needed "
        "width, width over standard error, error over standard error, marked, not known"
    )
    print(f"| {headings.replace(', ', ' | ')} |\n{'|---' * (headings.count(', ') + 1)}|")
    for group in names:
        for name in {"first": FIRST, "second": SECOND}.get(group, [group]):
            for n, epsilon in CELLS:
                print(line(name, n, epsilon, runs), flush=True)
