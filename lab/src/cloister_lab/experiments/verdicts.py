"""Whether intervals and verdicts of clusters hold the k-means answer on the pooled records.

The reader of an interval compares it with k-means without privacy. So each release is compared
with two answers in the clear: Lloyd's algorithm from the released centres (the fixed point), and
k-means with ten starts (the optimum). Tables, noise and public seeds are fixed by numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans

from cloister import Budget
from cloister.app.job import make_plan
from cloister.core.randomness import public_generator
from cloister.protocol.plan import Plan
from cloister.protocol.task import Floats, Task
from cloister.tasks.clustering.auto import Auto
from cloister.tasks.clustering.fixed_point import DETERMINED
from cloister.tasks.clustering.kmeans import FastLloyd
from cloister.testing import rerun
from cloister_lab.experiments.datasets import plain_schema
from cloister_lab.experiments.records import TidyRow, number, prose, write_page
from cloister_lab.experiments.run import Settings, Unit, command_of, units_of

EPSILONS = (0.5, 1.0, 4.0)
COLUMNS = (2, 3, 4, 7, 12)
METHODS: Mapping[str, type[Task]] = {"auto": Auto, "fastlloyd": FastLloyd}
_TABLES = 6  # of a family and a number of columns


def groups(rng: np.random.Generator, columns: int) -> tuple[Floats, int]:
    """Return two to six normal groups, five to nine deviations apart at least."""
    return _groups(rng, columns, (5.0, 7.0, 9.0), alike=True)


def touching(rng: np.random.Generator, columns: int) -> tuple[Floats, int]:
    """Return two to six normal groups that may touch."""
    return _groups(rng, columns, (3.0, 4.0), alike=True)


def unequal(rng: np.random.Generator, columns: int) -> tuple[Floats, int]:
    """Return two to six normal groups of very different sizes and widths."""
    return _groups(rng, columns, (6.0, 9.0), alike=False)


def cloud(rng: np.random.Generator, columns: int) -> tuple[Floats, int]:
    """Return a normal, uniform, skewed or stretched cloud, and a number of clusters to cut."""
    shape = (int(rng.integers(1500, 6000)), columns)
    kinds: tuple[Callable[[], Floats], ...] = (
        lambda: rng.normal(size=shape),
        lambda: rng.uniform(-1, 1, shape),
        lambda: rng.gamma(2, 1, shape),
        lambda: rng.normal(size=shape) * np.linspace(1, 2.5, columns),
    )
    return kinds[int(rng.integers(len(kinds)))](), int(rng.integers(2, 7))


FAMILIES = {each.__name__: each for each in (groups, touching, unequal, cloud)}


def _groups(
    rng: np.random.Generator, columns: int, apart: Sequence[float], *, alike: bool
) -> tuple[Floats, int]:
    """Return normal groups at least `apart` deviations from each other."""
    wanted, distance = int(rng.integers(2, 7)), 0.55
    places = rng.uniform(-1, 1, (200, columns))
    chosen = [places[0]]
    for place in places[1:]:
        nearest = np.linalg.norm(np.array(chosen) - place, axis=1).min()
        if len(chosen) < wanted and nearest > distance:
            chosen.append(place)
    k, n = len(chosen), int(rng.integers(1500, 6000))
    shares = np.ones(k) if alike else np.exp(rng.uniform(0, np.log(30), k))
    widths = np.ones(k) if alike else np.exp(rng.uniform(-np.log(4), 0, k))
    labels = rng.choice(k, n, p=shares / shares.sum())
    spread = distance / rng.choice(apart) * widths[labels, None]
    return np.array(chosen)[labels] + rng.normal(size=(n, columns)) * spread, k


@dataclass(frozen=True)
class Table:
    """A table of a family, fixed by an index.

    Parameters
    ----------
    look : int
        Tables of other looks are other tables.
    """

    family: str
    columns: int
    index: int
    look: int = 0

    @property
    def name(self) -> str:
        """What the table is called."""
        look = f"-look-{self.look}" if self.look else ""
        return f"{self.family}-{self.columns}-{self.index}{look}"

    def values(self) -> tuple[Floats, int]:
        """Return records in the box [-1, 1], and the number of clusters."""
        rng = public_generator("verdicts", self.name)
        values, k = FAMILIES[self.family](rng, self.columns)
        low, high = values.min(axis=0), values.max(axis=0)
        return 2 * (values - low) / (high - low) - 1, k


@dataclass(frozen=True)
class Fit:
    """A release beside the answers without privacy.

    Parameters
    ----------
    centres, low, high : ndarray of shape (n_clusters, n_features)
    verdict : ndarray of shape (n_clusters,)
    fixed : ndarray of shape (n_clusters, n_features)
        Fixed point of Lloyd's algorithm on the records, from the centres.
    optimum : ndarray of shape (n_clusters, n_features)
        The nearest centre of k-means with ten starts to each centre.
    """

    centres: Floats
    low: Floats
    high: Floats
    verdict: Floats
    fixed: Floats
    optimum: Floats

    def holds(self, answer: Floats, verdict: float) -> Floats:
        """Return 1 or 0 for each coordinate of the clusters with a verdict."""
        inside = (self.low <= answer) & (answer <= self.high)
        held: Floats = inside[self.verdict == verdict].astype(np.float64).ravel()
        return held


def plan_for(method: str, records: int, columns: int, k: int, epsilon: float) -> Plan:
    """Return a plan over columns in [-1, 1], at the defaults of a method."""
    return make_plan(
        METHODS[method],
        plain_schema("drawn", [f"c{j}" for j in range(columns)], [(-1, 1)]),
        ["silo"],
        budget=Budget(epsilon, 1e-6),
        nominal_n=records,
        n_clusters=k,
        public_seed=1,
    )


def nearest(centres: Floats, others: Floats) -> Floats:
    """Return the nearest of other centres to each centre."""
    apart = np.linalg.norm(centres[:, None] - others, axis=2)
    return np.asarray(others[apart.argmin(axis=1)])


def fits(table: Table, method: str, epsilons: Iterable[float] = EPSILONS) -> list[Fit]:
    """Return a release at each epsilon, with simulated noise."""
    scaled, k = table.values()
    best = KMeans(k, n_init=10, random_state=0).fit(scaled).cluster_centers_
    found = []
    for epsilon in epsilons:
        plan = plan_for(method, len(scaled), table.columns, k, epsilon)
        noise = public_generator("verdicts", "noise", table.name, method, str(epsilon))
        release = rerun(plan, plan.grid.encode(scaled), noise)
        lloyd = KMeans(k, init=release["centres"], n_init=1, tol=0, max_iter=1000).fit(scaled)
        low, high = release["low"], release["high"]
        # The published method has no verdict where an estimation would not pay.
        verdict = release.get("verdict", np.zeros(k))
        optimum = nearest(release["centres"], best)
        found.append(Fit(release["centres"], low, high, verdict, lloyd.cluster_centers_, optimum))
    return found


# --- The experiment -------------------------------------------------------------------------------


def units(settings: Settings) -> list[Unit]:
    """Return both methods on all tables."""
    tables = [
        Table(family, columns, index)
        for family in FAMILIES
        for columns in (COLUMNS if settings.full else COLUMNS[:1])
        for index in range(settings.runs(_TABLES, 1))
    ]
    return units_of(run_table, table=tables, method=METHODS)


def run_table(table: Table, method: str) -> list[TidyRow]:
    """Return hits and numbers of coordinates of the determined clusters, a row an epsilon."""
    rows: list[TidyRow] = []
    for epsilon, fit in zip(EPSILONS, fits(table, method), strict=True):
        fixed, optimum = (fit.holds(answer, DETERMINED) for answer in (fit.fixed, fit.optimum))
        # An interval that is not known has no ends.
        outside = (fit.centres < fit.low) | (fit.high < fit.centres)
        rows.append(
            {
                "family": table.family,
                "columns": table.columns,
                "index": table.index,
                "method": method,
                "epsilon": epsilon,
                "clusters": len(fit.centres),
                "determined": int((fit.verdict == DETERMINED).sum()),
                "coordinates": len(fixed),
                "fixed": float(fixed.sum()),
                "optimum": float(optimum.sum()),
                "outside": int(outside.sum()),
            }
        )
    return rows


def figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Write what the rows show."""
    text = as_lines(rows, command_of("verdicts", out))
    return [write_page(out / "verdicts.md", text)]


def as_lines(rows: Sequence[TidyRow], command: str) -> list[str]:
    """Return the page of results: a row for each method, family and kind of columns."""
    places = {"2 and 3": (2, 3), "4 to 12": (4, 7, 12)}
    cells = []
    for method in METHODS:
        for family in FAMILIES:
            for shown, columns in places.items():
                own = [
                    row
                    for row in rows
                    if (row["method"], row["family"]) == (method, family)
                    and row["columns"] in columns
                ]
                if own:
                    cells.append({"method": method, "family": family, "d": shown, **_total(own)})
    worst = min((cell["fixed"] for cell in cells if cell["fixed"] is not None), default=None)
    outside = sum(int(number(row, "outside")) for row in rows if row["method"] == "auto")
    return prose("verdicts", cells, command=command, worst=worst, outside=outside)


def _total(rows: Sequence[TidyRow]) -> dict[str, float | None]:
    def total(column: str) -> float:
        return sum(number(row, column) for row in rows)

    coordinates = total("coordinates")
    return {
        "fits": len(rows),
        "determined": total("determined") / total("clusters"),
        "with_one": sum(number(row, "determined") > 0 for row in rows),
        "coordinates": coordinates,
        "fixed": total("fixed") / coordinates if coordinates else None,
        "optimum": total("optimum") / coordinates if coordinates else None,
    }
