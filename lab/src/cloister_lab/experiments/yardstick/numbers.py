"""Numbers of records, means, deviations, quantiles, principal components and outliers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.core.arrays import Floats
from cloister_lab.experiments.yardstick.readings import (
    Among,
    Figure,
    Judge,
    Question,
    Release,
    Target,
    figures,
    library,
    names_of,
    shares_of,
)
from cloister_lab.experiments.yardstick.tables import Table

if TYPE_CHECKING:
    from pandas import DataFrame

_PLACES = (0.25, 0.5, 0.75)  # of the cells of a distribution, where its curve is read
_LABELS = {2: ("lower bound", "upper bound"), 3: ("lower quartile", "median", "upper quartile")}


def _columns(release: Release) -> Sequence[str]:
    return release.plan.columns


def _has_numbers(table: Table) -> bool:
    return bool(table.numbers)


def _asks_numbers(table: Table, _: int) -> Question:
    return Question(table.numbers)


def _asks_all(table: Table, _: int) -> Question:
    return Question((*table.numbers, *table.words))


def _count(release: Release) -> list[Figure]:
    planned = release.planned("half_width")
    return figures(release.results, "count", ["records"], prefix="", planned=planned)


def _records(frame: DataFrame, _: Table) -> dict[str, Target]:
    return {"records": float(len(frame))}


def _statistics(release: Release) -> list[Figure]:
    results, names = release.results, _columns(release)
    planned = release.planned("count_half_width")
    found = figures(results, "count", ["records"], planned=planned)
    for key in ("mean", "variance", "deviation"):
        found += figures(results, key, [f"{key} {name}" for name in names])
    return found


def _moments(frame: DataFrame, table: Table) -> dict[str, Target]:
    """Return moments by pandas; a variance divides by n - 1."""
    found: dict[str, Target] = _records(frame, table)
    for name in names_of(table.numbers):
        of = frame[name]
        parts = (("mean", of.mean()), ("variance", of.var()), ("deviation", of.std()))
        found |= {f"{key} {name}": float(value) for key, value in parts}
    return found


def _quantiles_of(release: Release, key: str, prefix: str, names: Sequence[str]) -> list[Figure]:
    """Return quantiles, each at its probability, and shares below three walls of cells."""
    results = release.results
    task: Any = release.plan.task
    probabilities = getattr(task, "quantiles", task).probabilities  # bounds hold their quantiles
    labels = _LABELS[len(probabilities)]
    found = figures(
        results,
        key,
        [f"{label} {name}" for name in names for label in labels],
        prefix=prefix,
        at=[*probabilities] * len(names),
    )
    walls = results["walls"]
    places = [round(part * (walls.shape[1] - 1)) for part in _PLACES]
    for i, name in enumerate(names):
        part = {
            f"distribution{end}": results[f"distribution{end}"][i, places]
            for end in ("", "_low", "_high")
        }
        below = [f"share below {share:g} of the box {name}" for share in _PLACES]
        at = walls[i, places].tolist()
        found += figures(part, "distribution", below, at=at, box=(0.0, 1.0))
    return found


def _quantiles(release: Release) -> list[Figure]:
    planned = release.planned("count_half_width")
    found = figures(release.results, "count", ["records"], planned=planned)
    return found + _quantiles_of(release, "quantiles", "", _columns(release))


def _quantiles_by_pandas(frame: DataFrame, table: Table) -> dict[str, Target]:
    """Return quantiles and shares below a place as functions; the second is our own formula."""
    found: dict[str, Target] = _records(frame, table)
    for name in names_of(table.numbers):
        ordered = np.sort(frame[name].to_numpy())
        quantile, below = partial(_quantile, ordered), partial(_below, ordered)
        found |= {f"{label} {name}": quantile for labels in _LABELS.values() for label in labels}
        found |= {f"share below {share:g} of the box {name}": below for share in _PLACES}
    return found


def _quantile(ordered: Floats, share: float) -> Among:
    value = np.quantile(ordered, share)
    at = [np.searchsorted(ordered, value, "left") - 1, np.searchsorted(ordered, value, "right")]
    smaller, greater = ordered[np.clip(at, 0, len(ordered) - 1)]
    return Among(float(value), float(greater - smaller) / 2)


def _below(ordered: Floats, place: float) -> float:
    return float(np.searchsorted(ordered, place, side="left")) / len(ordered)


def _describe(release: Release) -> list[Figure]:
    results, task = release.results, release.plan.task
    kinds = task.categories  # type: ignore[attr-defined]  # of this task
    named = list(zip(_columns(release), kinds, strict=True))
    levels = [f"share {name}={label}" for name, labels in named for label in labels]
    numbers = [name for name, labels in named if not labels]
    found = figures(results, "count", ["records"])
    if levels:
        planned = release.planned("share_half_width")
        found += figures(results, "shares", levels, planned=planned, box=(0.0, 1.0))
    for key in ("mean", "deviation"):
        found += figures(results, key, [f"{key} {name}" for name in numbers])
    return found + _quantiles_of(release, "quantiles", "quantiles_", numbers)


def _description(frame: DataFrame, table: Table) -> dict[str, Target]:
    return {
        **_moments(frame, table),
        **_quantiles_by_pandas(frame, table),
        **shares_of(frame, table.words),
    }


def _within(figure: Figure, least: float, most: float) -> Figure:
    """Return a figure with the planned half-width of a range that is nearest to its own."""
    assert figure.noise is not None
    low, high = figure.noise
    return replace(figure, planned=min(max((high - low) / 2, least), most))


def _pca(release: Release) -> list[Figure]:
    many = len(release.results["explained_variance"])
    names = [f"explained variance {i + 1}" for i in range(many)]
    shares = [f"share of the total {i + 1}" for i in range(many)]
    variances = figures(release.results, "explained_variance", names)
    least, most = (
        release.planned(f"explained_variance_of_{which}_half_width")
        for which in ("clear_components", "components_that_noise_turns")
    )
    return [
        *(_within(each, least, most) for each in variances),
        *figures(release.results, "explained_variance_ratio", shares, box=(0.0, 1.0)),
        *figures(release.results, "total_variance", ["total variance"]),
    ]


def _components(frame: DataFrame, table: Table) -> dict[str, Target]:
    """Return variances by scikit-learn, of columns on the scale [-1, 1] of their public bounds."""
    low, high = (np.array([getattr(c, end) for c in table.numbers]) for end in ("min", "max"))
    scaled = 2 * (frame[names_of(table.numbers)].to_numpy() - low) / (high - low) - 1
    model = library("sklearn.decomposition").PCA().fit(scaled)
    named = {
        "explained variance": model.explained_variance_,
        "share of the total": model.explained_variance_ratio_,
    }
    found: dict[str, Target] = {"total variance": float(model.explained_variance_.sum())}
    for name, values in named.items():
        found |= {f"{name} {i + 1}": float(value) for i, value in enumerate(values)}
    return found


def _outliers(release: Release) -> list[Figure]:
    results, names = release.results, _columns(release)
    found = figures(results, "location", [f"median {name}" for name in names])
    return found + figures(results, "spread", [f"spread {name}" for name in names])


def _centres(frame: DataFrame, table: Table) -> dict[str, Target]:
    """Return medians by NumPy, and normal-consistent quartile ranges by SciPy."""
    from scipy.stats import iqr, norm

    found: dict[str, Target] = {}
    for name in names_of(table.numbers):
        ordered = np.sort(frame[name].to_numpy())
        first, median, third = (_quantile(ordered, share) for share in (0.25, 0.5, 0.75))
        found[f"median {name}"] = median
        gap = (first.gap + third.gap) / (2 * norm.ppf(0.75))
        found[f"spread {name}"] = Among(float(iqr(ordered, scale="normal")), gap)
    return found


JUDGES = (
    Judge("count", _has_numbers, _asks_numbers, _count, _records),
    Judge("statistics", _has_numbers, _asks_numbers, _statistics, _moments),
    Judge("describe", _has_numbers, _asks_all, _describe, _description),
    Judge("quantiles", _has_numbers, _asks_numbers, _quantiles, _quantiles_by_pandas),
    Judge("bounds", _has_numbers, _asks_numbers, _quantiles, _quantiles_by_pandas),
    Judge("pca", lambda table: len(table.numbers) > 1, _asks_numbers, _pca, _components),
    Judge("outliers", _has_numbers, _asks_numbers, _outliers, _centres),
)
"""The judges of this family."""
