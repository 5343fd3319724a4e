"""`auto` on generated tables in two and three columns, beside what it was at an earlier commit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import ClassVar

import numpy as np

from cloister.app.in_process import run_plan
from cloister.core.randomness import public_generator
from cloister.protocol.task import Floats
from cloister.testing import SimulatedNoise
from cloister_lab.experiments.datasets import Dataset, min_max
from cloister_lab.experiments.figures import save_small
from cloister_lab.experiments.records import (
    MeanOf,
    Means,
    TidyRow,
    Value,
    load_tidy,
    markdown,
    means_of,
    number,
    prose,
    write_page,
    write_table,
)
from cloister_lab.experiments.run import Settings, Unit, command_of, units_of
from cloister_lab.experiments.sweep import loaded, plan_of
from cloister_lab.metrics import nicv

EPSILONS = (0.1, 0.25, 0.5, 1.0)
FAMILIES = (2, 3)
"""Numbers of columns."""

CELL = ("dataset", "n_features", "epsilon")
FASTLLOYD, AUTO, OPTIMUM = "fastlloyd", "auto", "best of ten"
_FIRST, _TABLES = 120, 60  # of a family; earlier ones were seen while `auto` was mended
_NEGLIGIBLE = 1.02  # FastLloyd over the optimum, below which there is no gap to speak of
_WORST, _BEST = -1.0, 1.2  # ends of the gap closed of a run
_LEAST, _CLEAR = -0.03, 3.0  # change of a table that is not named, and standard errors
_BEFORE = Path(__file__).with_name("generated_before.csv")


@dataclass(frozen=True)
class Blobs:
    """A table of a family: clusters of one shape in a cube of few columns, fixed by an index.

    Notes
    -----
    200 to 20,000 records in 2 to 40 clusters of at least 25 records on average, both uniform in the
    logarithm. Clusters are normal (half of the tables), balls, or have Student's law with four
    degrees of freedom; they are of equal or of unequal size and width, and overlap or lie far
    apart.
    """

    sizes: ClassVar = (200, 20_000)
    clusters: ClassVar = (2, 40)

    n_features: int
    index: int

    @property
    def name(self) -> str:
        """What the data set is called."""
        return f"blobs-{self.n_features}-{self.index}"

    def dataset(self) -> Dataset:
        """Return the records scaled column by column, as the papers do."""
        d, rng = self.n_features, public_generator("blobs", self.n_features, self.index)
        n, wanted = (
            round(math.exp(rng.uniform(*np.log(ends)))) for ends in (self.sizes, self.clusters)
        )
        k = max(2, min(wanted, n // 25))
        places = _spread_out(k, d, rng)
        nearest = float(np.median(_distances(places).min(axis=1)))
        apart = rng.choice([0.35, 0.6, 1.0, 1.6])
        width = 1.3 * nearest / (2.2 * apart + 1.2) / math.sqrt(d / 2)
        widths = width * np.exp(0.25 * rng.standard_normal(k))
        shares = np.maximum(rng.dirichlet(np.full(k, rng.choice([1.5, 5, 100]))), 0.3 / k)
        labels = rng.choice(k, n, p=shares / shares.sum())
        offsets = rng.standard_normal((n, d))
        match rng.choice(["normal", "normal", "ball", "student"]):
            case "ball":
                lengths = math.sqrt(d + 2) * rng.uniform(size=(n, 1)) ** (1 / d)
                offsets *= lengths / np.linalg.norm(offsets, axis=1, keepdims=True)
            case "student":
                offsets /= np.sqrt(rng.chisquare(4, (n, 1)) / 2)
        turned = np.linalg.qr(rng.standard_normal((d, d)))[0]
        X = places[labels] @ turned + offsets * widths[labels, None]
        return min_max(X, self.name, k)


def _spread_out(k: int, d: int, rng: np.random.Generator) -> Floats:
    """Return places in a cube, of which the most crowded was moved wherever that helps."""
    places = rng.uniform(-1, 1, (k, d))
    for fresh in rng.uniform(-1, 1, (200, d)):
        nearest = _distances(places).min(axis=1)
        crowded = int(nearest.argmin())
        others = np.delete(places, crowded, axis=0)
        if np.linalg.norm(others - fresh, axis=1).min() > nearest[crowded]:
            places[crowded] = fresh
    return places


def _distances(places: Floats) -> Floats:
    """Return the distances of all pairs, infinite from a place to itself."""
    found: Floats = np.linalg.norm(places[:, None] - places, axis=2)
    np.fill_diagonal(found, np.inf)
    return found


# --- Work -----------------------------------------------------------------------------------------


def tables(settings: Settings, number_of: int) -> list[Blobs]:
    """Return so many tables of each family, those that are asked for."""
    found = [Blobs(d, _FIRST + index) for d in FAMILIES for index in range(number_of)]
    return [table for table in found if settings.wants(table.name)]


def units(settings: Settings) -> list[Unit]:
    """Return the optimum, FastLloyd and `auto` on all tables."""
    found = tables(settings, _TABLES if settings.full else 2)
    return units_on(found, run_table, (FASTLLOYD, AUTO), settings.runs(10, 2))


def units_on(
    found: Sequence[Blobs],
    work: Callable[[Blobs, str, int], Iterable[TidyRow]],
    methods: Sequence[str],
    repeats: int,
) -> list[Unit]:
    """Return the optimum of each table and some work for each repeat and method."""
    return [
        unit
        for table in found
        for unit in (
            *units_of(optimum, table=[table]),
            *units_of(work, table=[table], method=methods, repeat=range(repeats)),
        )
    ]


def run_table(table: Blobs, method: str, repeat: int) -> list[TidyRow]:
    """Run a method at all epsilons in one silo.

    The noise is simulated, so that methods with the same frames have the same noise.
    """
    data = loaded(table)
    rows: list[TidyRow] = []
    for place, epsilon in enumerate(EPSILONS):
        plan = plan_of(data, method, epsilon, repeat, silos=1)
        seed = np.random.SeedSequence([table.n_features, table.index, repeat, place])
        records = {silo: [data.records] for silo in plan.silos}
        found = run_plan(plan, records, noise=SimulatedNoise(seed)).results["centres"]
        cost = nicv(data.values, plan.grid.normalise(found))
        rows.append(_row(data, method, epsilon, repeat, cost))
    return rows


def optimum(table: Blobs) -> list[TidyRow]:
    """Return what scikit-learn's k-means finds, best of ten starts."""
    data = loaded(table)
    return [_row(data, OPTIMUM, None, 0, data.reference_nicv)]


def _row(
    data: Dataset, method: str, epsilon: float | None, repeat: int, cost: float
) -> dict[str, Value]:
    return {
        "dataset": data.name,
        "n_samples": len(data.records),
        "n_features": data.records.shape[1],
        "n_clusters": data.n_clusters,
        "method": method,
        "epsilon": epsilon,
        "repeat": repeat,
        "nicv": cost,
    }


def gaps_closed(rows: Iterable[TidyRow]) -> list[TidyRow]:
    """Return the runs of methods beside FastLloyd with the part of its gap that each closed.

    It is (FastLloyd - method) / (FastLloyd - optimum) in NICV, of FastLloyd the mean over runs,
    and cut to [-1, 1.2]. Cells in which FastLloyd has no gap to speak of are left out.
    """
    rows = list(rows)
    optima = {row["dataset"]: number(row, "nicv") for row in rows if row["method"] == OPTIMUM}
    fast = means_of(
        [row for row in rows if row["method"] == FASTLLOYD], ("dataset", "epsilon"), "nicv"
    )
    found: list[TidyRow] = []
    for row in rows:
        of_fast, best = fast.get((row["dataset"], row["epsilon"])), optima.get(row["dataset"])
        beside = row["method"] not in (FASTLLOYD, OPTIMUM)
        if beside and of_fast and best is not None and of_fast.mean >= _NEGLIGIBLE * best:
            closed = (of_fast.mean - number(row, "nicv")) / (of_fast.mean - best)
            found.append({**row, "closed": min(max(closed, _WORST), _BEST)})
    return found


# --- Means ----------------------------------------------------------------------------------------


def cells_closed(runs: Iterable[TidyRow]) -> Means:
    """Return the mean gap closed by :data:`CELL`, with the standard error of its noise."""
    return means_of(runs, CELL, "closed")


def apart(cells: Means, others: Means) -> Means:
    """Return differences of independent means, where both are known."""
    return {
        key: MeanOf(
            mean.mean - others[key].mean,
            math.hypot(mean.error, others[key].error),
            min(mean.runs, others[key].runs),
        )
        for key, mean in cells.items()
        if key in others
    }


def by_table(cells: Means, n_features: int, epsilon: float | None = None) -> dict[str, MeanOf]:
    """Return the mean of each table of a family over epsilons, with the error of its noise."""
    found: dict[str, list[MeanOf]] = {}
    for (dataset, columns, of_epsilon), mean in cells.items():
        if columns == n_features and epsilon in (None, of_epsilon):
            found.setdefault(str(dataset), []).append(mean)
    return {
        name: MeanOf(
            fmean(mean.mean for mean in means),
            math.hypot(*(mean.error for mean in means)) / len(means),
            min(mean.runs for mean in means),
        )
        for name, means in found.items()
    }


def over_tables(
    cells: Means, n_features: int, epsilon: float | None = None, digits: str = ".3f"
) -> str:
    """Return the mean over a family's tables and its standard error between them, as text."""
    means = [mean.mean for mean in by_table(cells, n_features, epsilon).values()]
    if len(means) < 2:
        return f"{means[0]:{digits}}" if means else "-"
    return f"{fmean(means):{digits}} ± {stdev(means) / math.sqrt(len(means)):.3f}"


# --- What is shown --------------------------------------------------------------------------------


def figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Write what the rows show."""
    now = cells_closed(gaps_closed(rows))
    before = {tuple(row[name] for name in CELL): _mean_of(row) for row in load_tidy(_BEFORE)}
    facts = {row["dataset"]: row for row in rows}
    table = [
        {
            **dict(zip(CELL, key, strict=True)),
            **{name: facts[key[0]][name] for name in ("n_samples", "n_clusters")},
            "runs": mean.runs,
            "closed": mean.mean,
            "closed_error": mean.error,
            "before": before[key].mean if key in before else None,
            "before_error": before[key].error if key in before else None,
        }
        for key, mean in now.items()
    ]
    page = _page(now, before, facts, command_of("generated", out))
    return [
        write_page(out / "generated.md", page),
        write_table(out / "generated.csv", table),
        _figure(now, before, out / "generated.png"),
    ]


def _mean_of(row: TidyRow) -> MeanOf:
    return MeanOf(number(row, "closed"), number(row, "closed_error"), int(row["runs"] or 0))


def _page(now: Means, before: Means, facts: Mapping[Value, TidyRow], command: str) -> list[str]:
    change = apart(now, before)
    columns: dict[str, float | None] = {"all ε": None, **{f"{e:g}": e for e in EPSILONS}}
    means = [
        {
            "Mean gap closed": f"{d} columns, {name}",
            **{of: over_tables(cells, d, epsilon, digits) for of, epsilon in columns.items()},
        }
        for d in FAMILIES
        for name, cells, digits in (
            ("before", before, ".3f"),
            ("now", now, ".3f"),
            ("difference", change, "+.3f"),
        )
    ]
    better, named = [], []
    for d in FAMILIES:
        then, today = by_table(before, d), by_table(now, d)
        changes = by_table(change, d)
        gained = sum(mean.mean > 0 for mean in changes.values())
        clear = sum(mean.mean > _CLEAR * mean.error for mean in changes.values())
        better.append(
            f"In {d} columns {gained} of {len(changes)} tables are better, {clear} of them by more "
            f"than {_CLEAR:g} standard errors."
        )
        named += [
            {
                **facts[name],
                "mark": "*" * (mean.mean + _CLEAR * mean.error < 0),
                "before": then[name].mean,
                "now": today[name].mean,
                "change": mean.mean,
                "error": mean.error,
                "least": mean.mean - _CLEAR * mean.error,
            }
            for name, mean in sorted(changes.items(), key=lambda item: item[1].mean)
            if mean.mean - _CLEAR * mean.error < _LEAST
        ]
    runs = min((mean.runs for mean in now.values()), default=0)
    without = len(facts) - len({dataset for dataset, *_ in now})
    return [
        *prose("generated", command=command, runs=runs, tables=len(facts), without=without),
        *markdown(means),
        "",
        " ".join(better),
        *prose("generated-named", named, count=len(named), least=_LEAST, clear=_CLEAR),
    ]


def _figure(now: Means, before: Means, path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 5.6), layout="constrained")
    axes = figure.add_subplot()
    lowest = 0.0
    for d, colour, marker in zip(FAMILIES, ("#0072B2", "#D55E00"), ("o", "s"), strict=True):
        then, today = by_table(before, d), by_table(now, d)
        both = [name for name in today if name in then]
        x = [then[name].mean for name in both]
        y = [today[name].mean for name in both]
        label = f"{d} columns, {len(both)} tables"
        axes.scatter(x, y, s=24, c=colour, marker=marker, alpha=0.7, linewidths=0, label=label)
        lowest = min([lowest, *x, *y])
    axes.axline((0, 0), slope=1, color="#555555", linewidth=1, zorder=0)
    ends = lowest - 0.05, 1.05
    axes.set(xlabel="before", aspect="equal", xlim=ends, ylim=ends)
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    note = "gap closed, mean over ε; above the line a table is better now"
    return save_small(figure, path, "auto on generated tables", "now", (note,))
