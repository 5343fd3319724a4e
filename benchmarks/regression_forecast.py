"""How near the forecast of a regression's error is to the error that a fit states.

Both are the noise of a coefficient times the standard deviation of its column. A line has one kind
of table: the median of forecast over stated error of each fit, at all sizes and budgets.
Run: ``python benchmarks/regression_forecast.py [fits]``.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd

from cloister import DPGeneralizedLinearRegressor, Schema
from cloister.app.forecast import forecast_of
from cloister.core.arrays import Floats

PLANS = ((2000, 4.0), (5000, 1.0), (5000, 4.0), (20_000, 0.5), (20_000, 2.0))
EFFECTS = np.array([0.3, -0.2, 0.25, 0.1, -0.15, 0.2])
EVENTS = {"gaussian": (0.5,), "binomial": (0.5, 0.1)}
Z = 1.96


def tables(rng: np.random.Generator, n: int) -> dict[str, tuple[Any, tuple[float, float]]]:
    """Return columns of each kind with their bounds; those of categories have the bounds (0, 0)."""
    normal, common = rng.normal(size=(n, 3)), rng.normal(size=(n, 1))
    mixed = [rng.normal(size=n), rng.exponential(size=n) - 1, (rng.random(n) < 0.5) * 2.0]
    return {
        "uniform": (rng.uniform(-1, 1, (n, 3)), (-1, 1)),
        "normal": (normal, (-4, 4)),
        "normal, one column": (normal[:, :1], (-4, 4)),
        "normal, six columns": (rng.normal(size=(n, 6)), (-4, 4)),
        "normal, narrow": (normal, (-25, 25)),
        "exponential": (rng.exponential(size=(n, 3)), (0, 20)),
        "lognormal": (np.exp(normal), (0, 50)),
        "t, 3 degrees": (rng.standard_t(3, (n, 3)), (-15, 15)),
        "mixed": (np.stack(mixed, axis=1), (-5, 15)),
        "categories": ((rng.random((n, 3)) < [0.5, 0.2, 0.1]) * 1.0, (0, 0)),
        "correlated, 0.3": (np.sqrt(0.3) * common + np.sqrt(0.7) * normal, (-5, 5)),
        "correlated, 0.8": (np.sqrt(0.8) * common + np.sqrt(0.2) * normal, (-5, 5)),
    }


def ratios_of(
    rng: np.random.Generator,
    columns: Floats,
    bounds: tuple[float, float],
    family: str,
    share: float,
    plan: tuple[int, float],
) -> Floats:
    """Return forecast over stated error of each coefficient; 0 for one that is not known."""
    n, epsilon = plan
    low, high = bounds
    names = [f"x{j}" for j in range(columns.shape[1])]
    columns = columns if low == high else np.clip(columns, low, high)
    spread = columns.std(axis=0)
    margin = (columns - columns.mean(axis=0)) / spread @ EFFECTS[: len(names)]
    number: dict[str, Any] = {"type": "number", "min": low, "max": high}
    of_column = number if low < high else {"type": "category", "categories": ["0", "1"]}
    of_target: dict[str, Any] = {"type": "boolean"}
    frame = pd.DataFrame(dict(zip(names, columns.T, strict=True)))
    if low == high:
        frame = frame.astype(int).astype(str)
    if family == "gaussian":
        frame["y"] = margin + rng.normal(size=n)
        of_target = {"type": "number", "min": -10, "max": 10}
        spread = spread / float(frame["y"].std())
    else:
        odds = share / (1 - share) * np.exp(margin)
        frame["y"] = rng.random(n) < odds / (1 + odds)
    columns_of_schema: Any = [{"name": name} | of_column for name in names]
    columns_of_schema.append({"name": "y"} | of_target)
    schema = Schema(dataset="made", unit="row", columns=columns_of_schema)
    model = DPGeneralizedLinearRegressor(
        target="y", family=family, epsilon=epsilon, delta=1e-6, bounds=schema, nominal_n=n
    )
    forecasts = forecast_of(model.plan(frame).plan)
    expected = next(
        values
        for name, values in forecasts.items()
        if family == "gaussian" or f"{share:.0%}" in name
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(frame)
    stated = Z * np.sqrt(np.diag(model.covariance_))[:-1]
    kept = stated != 0  # those of references
    known = np.isfinite(model.coef_)[kept]
    return np.where(known, np.median(expected) / (np.where(known, stated[kept], 1.0) * spread), 0.0)


def main() -> None:
    """Print the quantiles of the ratios, and the share within a factor of two."""
    rng, fits = np.random.default_rng(7), int(sys.argv[1]) if sys.argv[1:] else 2
    for family, shares in EVENTS.items():
        for share in shares:
            print(f"{family}, {share:.0%} events" if family == "binomial" else family)
            found: dict[str, list[float]] = {}
            for plan in PLANS:
                for _ in range(fits):
                    for name, (columns, bounds) in tables(rng, plan[0]).items():
                        ratio = ratios_of(rng, columns, bounds, family, share, plan)
                        found.setdefault(name, []).append(float(np.median(ratio)))
            for name, values in found.items():
                ratios = np.array(values)
                within = np.mean((ratios > 0.5) & (ratios < 2))
                least, middle, most = np.quantile(ratios, [0.1, 0.5, 0.9])
                print(f"  {name:20} {least:5.2f} {middle:5.2f} {most:5.2f}  within 2: {within:.0%}")


if __name__ == "__main__":
    main()
