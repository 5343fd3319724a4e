"""What each part of `auto` adds on generated tables: it is run with the part taken away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np

from cloister.protocol.task import Floats, Integers
from cloister.tasks.clustering.synopsis import project_to_simplex
from cloister_lab.experiments.generated import (
    AUTO,
    CELL,
    EPSILONS,
    FAMILIES,
    FASTLLOYD,
    Blobs,
    cells_closed,
    gaps_closed,
    over_tables,
    run_table,
    tables,
    units_on,
)
from cloister_lab.experiments.records import (
    TidyRow,
    markdown,
    paired,
    prose,
    starts,
    write_page,
)
from cloister_lab.experiments.run import Settings, Unit, command_of

# --- Stand-ins ------------------------------------------------------------------------------------


def keep_cells(counts: Floats, masses: Floats, noise_std: float, total: float) -> Floats:
    """Keep the mass of every cell, however likely it is empty."""
    return masses


def counts_as_masses(
    counts: Floats, noise_std: float, kernels: Sequence[Floats], total: float
) -> Floats:
    """Take noisy counts for masses, less a part that makes none negative and the sum right."""
    return project_to_simplex(counts.ravel(), total).reshape(counts.shape)


def keep_centres(points: Integers, masses: Integers, centres: Integers) -> Integers:
    """Move no single centre."""
    return centres


def trust_nothing(
    sums: Floats, factors: Floats, variances: Floats, noise_std: float
) -> tuple[Floats, Floats]:
    """Take nothing of what a round says of means for signal."""
    return np.zeros(len(sums)), variances


def trust_all(
    sums: Floats, factors: Floats, variances: Floats, noise_std: float
) -> tuple[Floats, Floats]:
    """Take all that a round says of means for signal."""
    return np.ones(len(sums)), (noise_std / factors) ** 2


_HERE = "cloister.tasks.clustering."
WHOLE = "as it is"
VARIANTS: Mapping[str, Mapping[str, object]] = {
    WHOLE: {},
    "histogram of the whole box, not of the bulk": {"auto_grid.GridRoute.has_box": False},
    "cells read one by one, not as a density": {"auto_grid.density": counts_as_masses},
    "cells kept that are likely empty": {"auto_grid.drop_empty_cells": keep_cells},
    "one start of k-means, not four": {"auto_grid._RESTARTS": 1},
    "no single centre moved": {
        "weighted.repaired": keep_centres,
        "surrogate.repaired": keep_centres,
    },
    "rounds correct counts alone": {"auto_grid.gains": trust_nothing},
    "rounds believed as they are, noise and all": {"auto_grid.gains": trust_all},
    "principal directions, as from four columns on": {"auto_routes._SPACE": 0},
    "the mean alone": {"auto_routes._SPACE": 0, "auto_routes._DROWNED": 1e-9},
}
"""What stands in for which names of the package, by what `auto` then does."""

_TABLES, _SMALL = 24, 1  # of a family
_COLUMNS = {"difference, all ε": None, **{f"{epsilon:g}": epsilon for epsilon in EPSILONS}}


@contextmanager
def instead(stand_ins: Mapping[str, object]) -> Iterator[None]:
    """Let something else stand for names of the clustering package, in this process."""
    with ExitStack() as stack:
        for name, stand_in in stand_ins.items():
            stack.enter_context(patch(_HERE + name, stand_in))
        yield


# --- Work -----------------------------------------------------------------------------------------


def units(settings: Settings) -> list[Unit]:
    """Return FastLloyd and all variants on some of the generated tables."""
    found = tables(settings, _TABLES if settings.full else _SMALL)
    return units_on(found, run_variant, (FASTLLOYD, *VARIANTS), settings.runs(6, 2))


def run_variant(table: Blobs, method: str, repeat: int) -> list[TidyRow]:
    """Run FastLloyd, or a variant of `auto`, at all epsilons."""
    if method == FASTLLOYD:
        return run_table(table, FASTLLOYD, repeat)
    with instead(VARIANTS[method]):
        return [{**row, "method": method} for row in run_table(table, AUTO, repeat)]


# --- What is shown --------------------------------------------------------------------------------


def figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Write what the rows show."""
    runs = gaps_closed(rows)
    cells = {name: cells_closed(row for row in runs if row["method"] == name) for name in VARIANTS}
    changes = {name: paired(runs, CELL, "closed", name, WHOLE) for name in VARIANTS}
    command, said = command_of("auto-ablation", out), starts(runs)
    lines = prose("auto-ablation", command=command, starts=said)
    for d in FAMILIES:
        table = [
            {
                f"{d} columns": name,
                "mean gap closed": over_tables(of_name, d),
                **{
                    column: "" if name == WHOLE else over_tables(changes[name], d, epsilon, "+.3f")
                    for column, epsilon in _COLUMNS.items()
                },
            }
            for name, of_name in cells.items()
        ]
        lines += ["", *markdown(table)]
    return [write_page(out / "auto-ablation.md", lines)]
