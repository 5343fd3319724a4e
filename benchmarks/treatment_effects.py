"""Intervals of treatment effects beside the textbook's estimates on the same records.

    python benchmarks/treatment_effects.py [TABLE ...] [--n 8000] [--epsilon 1] [--runs 40]
        [--silent BLOCK ...]

prints, for plans of the average effect (ate) and of that of overlap (ato): how often the population
interval holds the true effect and the noise interval the textbook's estimate; the error that noise
and sampling make, and the deviation of the estimates over runs, both over the textbook's standard
error. Records and noise have seeds. With other seeds `plain`, `binary`, `strong`, `six` and `costs`
were used to choose constants; the others were not. Blocks whose names start with a word after
`--silent` have no noise, to see where errors come from.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression, LogisticRegression

from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.core.arrays import Floats, Integers
from cloister.data.schema import Column, Schema
from cloister.privacy.budget import Budget
from cloister.privacy.noise import NoiseKind
from cloister.protocol.plan import Plan
from cloister.tasks.regression.effect import TreatmentEffect
from cloister.tasks.regression.weighing import ESTIMANDS
from cloister.testing import SimulatedNoise

Drawn = tuple[Floats, Floats, Floats, Floats, Floats]
"""Covariates, treatment, outcome, propensity and effect of each record."""
_LEAST, _MANY, _Z = 0.05, 1_000_000, 1.96


class Silenced(SimulatedNoise):
    """Simulated noise that leaves out that of some blocks, which are drawn in their order."""

    def __init__(self, seed: int, plan: Plan, silent: tuple[str, ...]) -> None:
        super().__init__(seed)
        blocks = (block for t in range(plan.rounds) for block in plan.blocks(t))
        self._are_silent = (block.name.startswith(silent) for block in blocks)

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        """Return noise, or zeros in a block without it."""
        drawn = super().draw(kind, scale, size)
        return drawn * 0 if next(self._are_silent) else drawn


def _expit(margin: Any) -> Floats:
    return np.asarray(1 / (1 + np.exp(-margin)))


def _made(
    rng: np.random.Generator, x: Floats, margin: Floats, mean: Floats, effect: Floats, high: float
) -> Drawn:
    propensity = _expit(margin)
    treated = (rng.random(len(x)) < propensity) * 1.0
    outcome = (mean + effect * treated + rng.normal(0, 1, len(x))).clip(-high, high)
    return x, treated, outcome, propensity, effect


def _three(rng: np.random.Generator, n: int) -> Floats:
    numbers = rng.normal(0, 1, n).clip(-3, 3), rng.uniform(-2, 2, n)
    return np.column_stack([*numbers, rng.random(n) < 0.3]).astype(float)


def plain(rng: np.random.Generator, n: int, strength: float = 0.8) -> Drawn:
    """Return records whose effect grows with a covariate."""
    x = _three(rng, n)
    margin = strength * x[:, 0] + 0.4 * x[:, 1] - 0.5 * x[:, 2]
    mean = 1 + x[:, 0] + 0.5 * x[:, 1] - 0.5 * x[:, 2]
    return _made(rng, x, margin, mean, 1 + 0.3 * x[:, 0], 8)


def weak(rng: np.random.Generator, n: int) -> Drawn:
    """Return records with hardly any confounding."""
    return plain(rng, n, 0.2)


def strong(rng: np.random.Generator, n: int) -> Drawn:
    """Return records with strong confounding, where arms hardly overlap."""
    return plain(rng, n, 1.6)


def false_propensity(rng: np.random.Generator, n: int) -> Drawn:
    """Return records whose propensity is no logistic model."""
    x = _three(rng, n)
    margin = -0.6 + 0.6 * x[:, 0] + 0.4 * x[:, 1] ** 2
    return _made(rng, x, margin, x[:, 0] + 0.5 * x[:, 1], np.ones(n), 9)


def six(rng: np.random.Generator, n: int) -> Drawn:
    """Return records of six covariates, two of which go together."""
    z = rng.normal(0, 1, (n, 4))
    z[:, 1] += 0.6 * z[:, 0]
    x = np.column_stack([z.clip(-4, 4), rng.random((n, 2)) < 0.4]).astype(float)
    margin = x @ np.array([0.4, 0.3, -0.3, 0.2, 0.3, -0.3])
    return _made(rng, x, margin, x @ np.array([0.5, 0.5, 0.2, 0, 0.5, 0.2]), np.full(n, 0.4), 8)


def costs(rng: np.random.Generator, n: int) -> Drawn:
    """Return records with a long tail of the outcome."""
    x = np.column_stack([rng.integers(18, 90, n), rng.random((n, 2)) < 0.3]).astype(float)
    age = (x[:, 0] - 54) / 20
    propensity = _expit(-0.5 + 0.5 * age + 0.6 * x[:, 1])
    treated = (rng.random(n) < propensity) * 1.0
    outcome = np.exp(1.5 + 0.3 * age + 0.4 * x[:, 2]) * rng.gamma(2, 0.5, n) - 0.8 * treated + 2
    return x, treated, outcome.clip(0, 60), propensity, np.full(n, -0.8)


def binary(rng: np.random.Generator, n: int) -> Drawn:
    """Return records whose outcome is an event."""
    x = _three(rng, n)
    margin = 0.7 * x[:, 0] - 0.5 * x[:, 2]
    means = [_expit(-1.5 + 0.6 * x[:, 0] + 0.4 * x[:, 1] + 0.5 * arm) for arm in (0, 1)]
    propensity = _expit(margin)
    treated = rng.random(n) < propensity
    outcome = (rng.random(n) < np.where(treated, means[1], means[0])) * 1.0
    return x, treated * 1.0, outcome, propensity, means[1] - means[0]


def unequal(rng: np.random.Generator, n: int) -> Drawn:
    """Return records of five covariates, one of them skewed, with fewer treated."""
    numbers = rng.gamma(2, 1, n).clip(0, 8), rng.normal(0, 1, n).clip(-3, 3), rng.uniform(-1, 1, n)
    x = np.column_stack([*numbers, rng.random(n) < 0.5, rng.random(n) < 0.2]).astype(float)
    margin = -1.2 + x @ np.array([0.35, 0.7, -0.5, 0.4, -0.6])
    return _made(rng, x, margin, x @ np.array([0.4, 0.6, 0, 0, 0.5]), 0.5 + 0.3 * x[:, 3], 10)


def heavy(rng: np.random.Generator, n: int) -> Drawn:
    """Return records whose outcome has heavy tails, with strong confounding."""
    ward, a = rng.choice(3, n, p=[0.5, 0.3, 0.2]), rng.normal(0, 1, n).clip(-3, 3)
    b = (0.5 * a + rng.normal(0, 0.8, n)).clip(-4, 4)
    x = np.column_stack([a, b, ward == 1, ward == 2]).astype(float)
    propensity = _expit(x @ np.array([1.2, 0.3, -0.6, 0.3]))
    treated = (rng.random(n) < propensity) * 1.0
    outcome = 2 + x @ np.array([0.8, -0.4, 0, 0.5]) + 0.7 * treated + 0.8 * rng.standard_t(5, n)
    return x, treated, outcome.clip(-7, 11), propensity, np.full(n, 0.7)


def _number(name: str, low: float, high: float) -> Column:
    return Column(name=name, type="number", min=low, max=high)


def _yes_no(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name=name, type="boolean") for name in names)


_THREE = (_number("a", -3, 3), _number("b", -2, 2), *_yes_no("c"))
_SIX = (*(_number(f"x{i}", -4, 4) for i in range(4)), *_yes_no("u", "v"))
TABLES: dict[Callable[..., Drawn], tuple[tuple[Column, ...], Column]] = {
    plain: (_THREE, _number("y", -8, 8)),
    weak: (_THREE, _number("y", -8, 8)),
    strong: (_THREE, _number("y", -8, 8)),
    false_propensity: (_THREE, _number("y", -9, 9)),
    six: (_SIX, _number("y", -8, 8)),
    costs: ((_number("age", 18, 90), *_yes_no("b", "c")), _number("y", 0, 60)),
    binary: (_THREE, *_yes_no("y")),
    unequal: (
        (_number("g", 0, 8), _number("a", -3, 3), _number("b", -1, 1), *_yes_no("c", "d")),
        _number("y", -10, 10),
    ),
    heavy: ((_number("a", -3, 3), _number("b", -4, 4), *_yes_no("c", "d")), _number("y", -7, 11)),
}


def textbook(x: Floats, treated: Floats, outcome: Floats) -> dict[str, tuple[float, float]]:
    """Return both effects with their standard errors, from models of scikit-learn."""
    model = LogisticRegression(C=np.inf).fit(x, treated)
    e = model.predict_proba(x)[:, 1].clip(_LEAST, 1 - _LEAST)
    with_arm = np.column_stack([x, treated])
    arms = [np.column_stack([x, np.full(len(x), arm)]) for arm in (0.0, 1.0)]
    if set(np.unique(outcome)) == {0.0, 1.0}:
        of_event = LogisticRegression(C=np.inf).fit(with_arm, outcome)
        means = [of_event.predict_proba(arm)[:, 1] for arm in arms]
    else:
        line = LinearRegression().fit(with_arm, outcome)
        means = [line.predict(arm) for arm in arms]
    residual = outcome - np.where(treated > 0, means[1], means[0])
    score = means[1] - means[0] + residual * np.where(treated > 0, 1 / e, -1 / (1 - e))
    h = e * (1 - e)
    weighted = h * (means[1] - means[0]) + residual * np.where(treated > 0, 1 - e, -e)
    ato = weighted.sum() / h.sum()
    return {
        "ate": (float(score.mean()), float(score.std() / np.sqrt(len(x)))),
        "ato": (float(ato), float(np.sqrt(((weighted - ato * h) ** 2).sum()) / h.sum())),
    }


def measure(
    draw: Callable[..., Drawn],
    name: str,
    n: int,
    epsilon: float,
    runs: int,
    silent: tuple[str, ...] = (),
) -> None:
    """Print the coverage and the width of an effect that is asked for, on one kind of table."""
    covariates, outcome = TABLES[draw]
    schema = Schema(dataset="made", unit="row", columns=(*covariates, *_yes_no("t"), outcome))
    about: dict[str, Any] = {"treatment": "t", "outcome": "y", "nominal_n": n, "estimand": name}
    plan = make_plan(TreatmentEffect, schema, ("a",), budget=Budget(epsilon, 1e-6), **about)
    _, _, _, e, effect = draw(np.random.default_rng(99), _MANY)
    weight = np.ones_like(e) if name == "ate" else e * (1 - e)
    truth = (weight * effect).sum() / weight.sum()
    rows: list[tuple[float, ...]] = []
    for run in range(runs):
        x, treated, y, _, _ = draw(np.random.default_rng([41, run]), n)
        records = {"a": [plan.grid.encode(np.column_stack([x, treated, y]))]}
        results = run_plan(plan, records, noise=Silenced(run, plan, silent)).results
        value, std = textbook(x, treated, y)[name]
        get = {end: float(results[name + end][0]) for end in ("", "_low", "_high")}
        low, high = (results[f"{name}_population_{end}"][0] for end in ("low", "high"))
        if np.isfinite(get[""]):
            held = low <= truth <= high, get["_low"] <= value <= get["_high"]
            half = (get["_high"] - get["_low"]) / 2
            rows.append((*held, get[""] - value, std, half, get[""]))
    if not rows:
        print(f"{draw.__name__} {name}: not known in {runs} runs", flush=True)
        return
    table = np.array(rows, dtype=float)
    error = float(np.sqrt((table[:, 2] ** 2).mean()))
    std, half = table[:, 3].mean(), table[:, 4].mean()
    deviation = table[:, 5].std(ddof=1) if len(table) > 1 else np.nan
    print(
        f"{draw.__name__} {name}, {n} records, epsilon {epsilon:g}: population intervals hold "
        f"{table[:, 0].mean():.2f}, noise intervals {table[:, 1].mean():.2f}; error "
        f"{np.hypot(1, error / std):.2f} of the textbook's, deviation of estimates "
        f"{deviation / std:.2f}; noise width over needed "
        f"{half / (_Z * error):.2f}; known in {len(rows)} of {runs}",
        flush=True,
    )


def main() -> None:
    """Read the command line and measure."""
    names = {draw.__name__: draw for draw in TABLES}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("tables", nargs="*", default=list(names), metavar="TABLE")
    parser.add_argument("--n", type=int, default=8000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--silent", nargs="*", default=[], metavar="BLOCK")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in args.tables:
        for estimand in ESTIMANDS:
            measure(names[name], estimand, args.n, args.epsilon, args.runs, tuple(args.silent))


if __name__ == "__main__":
    main()
