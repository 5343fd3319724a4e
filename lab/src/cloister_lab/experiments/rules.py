"""Association rules over baskets: which frequent itemsets are found, and what intervals cover.

Supports are compared with the exact ones of the pooled baskets, so nothing here is a release.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.app.job import run_job
from cloister.core.randomness import public_generator
from cloister.data import Baskets, read_source
from cloister.data.schema import Schema, catalogue_schema
from cloister.privacy.noise import DiscreteNoise
from cloister.protocol.task import Floats, Records
from cloister.tasks.patterns.apriori import Apriori
from cloister.tasks.patterns.association import itemsets_of
from cloister_lab.experiments import records as tidy
from cloister_lab.experiments.figures import draw_panels, panels_of
from cloister_lab.experiments.records import Key, TidyRow
from cloister_lab.experiments.run import Settings, Unit, units_of

EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0)
MIN_SUPPORT = 0.01
METHODS: Mapping[str, Mapping[str, Any]] = {
    "sizes 1-2": {},
    "sizes 1-2, truncated": {"limit": "truncate"},
    "sizes 1-3": {"max_size": 3},
}
"""Options of the task, by the name of the method."""

TARGETS: Mapping[Key, float] = {("groceries", "sizes 1-2", 1.0): 0.75}
"""F1 of sets of 1 and 2 items to be reached."""

_FILE, _MADE_UP = "groceries", "made-up"
_SILOS = 3
_ITEMS, _BASKETS = 150, 20_000


Sets = Mapping[int, set[tuple[int, ...]]]
"""Frequent sets of items by their size."""


@dataclass(frozen=True, eq=False)
class Table:
    """Baskets on the grid, and which items they hold."""

    schema: Schema
    records: Records

    @property
    def held(self) -> NDArray[np.bool_]:
        """One column for each item."""
        found: NDArray[np.bool_] = self.records > 0
        return found


def units(settings: Settings) -> list[Unit]:
    """Return the units."""
    file = settings.file(_FILE, (".txt.gz",))
    found: dict[str, Path | None] = {_FILE: file} if file else {}
    return [
        unit
        for name, path in {**found, _MADE_UP: None}.items()
        if settings.wants(name)
        for unit in units_of(
            measure,
            name=[name],
            file=[path],
            repeat=range(settings.runs(20, 2)),
            method=METHODS,
            epsilons=[EPSILONS if settings.full else (1.0,)],
        )
    ]


def measure(
    name: str, file: Path | None, method: str, repeat: int, epsilons: Sequence[float]
) -> list[TidyRow]:
    """Run a method on a table dealt to three silos; a row for each epsilon."""
    table = made_up_table() if file is None else groceries(file)
    held = table.held
    truth = frequent(name, file)
    order = public_generator("rules", name, repeat).permutation(len(held))
    silos = {f"silo-{i}": [table.records[order[i::_SILOS]]] for i in range(_SILOS)}
    rows: list[TidyRow] = []
    for epsilon in epsilons:
        begin = time.perf_counter()
        result = run_job(
            Apriori,
            table.schema,
            silos,
            epsilon=epsilon,
            nominal_n=int(float(f"{len(held):.1e}")),
            noise=DiscreteNoise(),
            min_support=MIN_SUPPORT,
            **METHODS[method],
        )
        seconds = time.perf_counter() - begin
        found = result.results
        rows.append(
            {
                "dataset": name,
                "method": method,
                "epsilon": epsilon,
                "repeat": repeat,
                **_scores(found, truth, exact_supports(held, found["sets"])),
                "seconds": seconds,
            }
        )
    return rows


def _scores(found: Mapping[str, Floats], truth: Sets, exact: Floats) -> dict[str, float | None]:
    """Return F1 by size, the error of supports, and how far intervals cover exact supports."""
    sets = [tuple(int(i) for i in row if i >= 0) for row in found["sets"]]
    shown = found["support"] >= MIN_SUPPORT
    released = {
        size: {s for s, frequent in zip(sets, shown, strict=True) if frequent and len(s) == size}
        for size in truth
    }
    largest = found["sets"].shape[1]
    big = exact >= MIN_SUPPORT
    inside = np.abs(found["counted"] - exact) <= found["half_width"]
    names = [str(item) for item in range(int(found["sets"].max(initial=0)) + 1)]
    truth_of = {tuple(names[i] for i in s): e for s, e in zip(sets, exact, strict=True)}
    told = itemsets_of(found, names, MIN_SUPPORT)
    held = [s.low <= truth_of[s.items] <= s.high for s in told]
    return {
        "f1": _f1(released, truth, (1, 2)),
        "f1_items": _f1(released, truth, (1,)),
        "f1_pairs": _f1(released, truth, (2,)),
        "f1_triples": _f1(released, truth, (3,)) if largest > 2 else None,
        "error": float((np.abs(found["support"] - exact)[big] / exact[big]).mean()),
        "covers": float(inside.mean()),
        "covers_shown": float(np.mean(held)) if held else None,
    }


def _f1(released: Sets, truth: Sets, sizes: Sequence[int]) -> float:
    right = sum(len(released[size] & truth[size]) for size in sizes)
    return 2 * right / max(1, sum(len(released[size]) + len(truth[size]) for size in sizes))


# --- Tables ---------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def groceries(file: Path) -> Table:
    """Read the groceries table: one basket on each line; its items are taken as the catalogue."""
    import gzip

    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    items = sorted({item.strip() for line in lines for item in line.split(",")} - {""})
    return _table(items, Baskets([line.split(",") for line in lines]))


@lru_cache(maxsize=1)
def made_up_table() -> Table:
    """Return baskets of items of falling popularity, some of which pull another one along."""
    rng = public_generator("rules", "made-up")
    popularity = 0.25 / np.arange(1, _ITEMS + 1) ** 0.7
    eager = rng.gamma(2.0, 0.5, (_BASKETS, 1))  # how much a customer buys
    held = rng.random((_BASKETS, _ITEMS)) < np.minimum(popularity * eager, 0.9)
    pairs = rng.choice(_ITEMS, (30, 2), replace=False)
    for first, second in pairs:
        held[:, second] |= held[:, first] & (rng.random(_BASKETS) < 0.4)
    return _table([f"item {i}" for i in range(_ITEMS)], held.astype(np.float64))


def _table(items: Sequence[str], source: Any) -> Table:
    schema = catalogue_schema(items, dataset="rules")
    return Table(schema, np.concatenate(list(read_source(source, schema))))


def exact_supports(held: NDArray[np.bool_], sets: Floats) -> Floats:
    """Return the part of all baskets that hold each set; -1 stands for no item."""
    columns = np.ascontiguousarray(held.T)
    return np.array(
        [
            np.logical_and.reduce([columns[int(item)] for item in row if item >= 0]).mean()
            for row in sets
        ]
    )


@lru_cache(maxsize=2)
def frequent(name: str, file: Path | None) -> Sets:
    """Return all frequent sets of 1 to 3 items, exactly."""
    held = (made_up_table() if file is None else groceries(file)).held
    least = MIN_SUPPORT * len(held)
    items = [int(i) for i in np.flatnonzero(held.sum(axis=0) >= least)]
    found: dict[int, set[tuple[int, ...]]] = {1: {(i,) for i in items}, 2: set(), 3: set()}
    for a, b in combinations(items, 2):
        both = held[:, a] & held[:, b]
        if both.sum() < least:
            continue
        found[2].add((a, b))
        thirds = np.flatnonzero(held[both].sum(axis=0) >= least)
        found[3] |= {(a, b, int(c)) for c in thirds if c > b}
    return found


# --- What is shown --------------------------------------------------------------------------------

_SCORES = ("f1", "f1_items", "f1_pairs", "f1_triples", "error", "covers", "covers_shown")


def figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Write what the rows show."""
    by = ("dataset", "method", "epsilon")
    cells = tidy.cells_of(rows, by, *_SCORES)
    figure = draw_panels(
        out / "rules.png",
        panels_of(cells, "{dataset}", "{method}", "epsilon", "f1"),
        title="Frequent itemsets of one and two items",
        x_label="ε",
        y_label="F1, mean and 95 % interval",
        x_log=True,
        note="Three silos; minimum support 1 %.",
    )
    table = tidy.write_table(out / "rules.csv", cells)
    for cell, seconds in zip(cells, tidy.cells_of(rows, by, "seconds"), strict=True):
        cell["seconds"] = seconds["seconds"]
        cell["wanted"] = TARGETS.get(tuple(cell[name] for name in by))
    page = tidy.prose("rules", cells, min_support=MIN_SUPPORT)
    return [tidy.write_page(out / "rules.md", page), table, figure]
