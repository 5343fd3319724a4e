"""What trust costs: counts and k-means at one epsilon, by who adds the noise.

References
----------
.. [WBLJ17] Wang, Blocki, Li, Jha, "Locally Differentially Private Protocols for Frequency
   Estimation", USENIX Security 2017: optimised unary encoding.
.. [FMT21] Feldman, McMillan, Talwar, "Hiding Among the Clones: A Simple and Nearly Optimal Analysis
   of Privacy Amplification by Shuffling", FOCS 2021, Theorem 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy.optimize import brentq

from cloister.app.job import make_plan
from cloister.core.randomness import public_generator
from cloister.data.schema import schema_of
from cloister.privacy.budget import Budget, default_delta
from cloister.protocol.task import COUNT_BITS, Floats, Integers, NoisyBlock, Profile
from cloister.tasks.examples import numbers
from cloister_lab import metrics
from cloister_lab.experiments import records as tidy
from cloister_lab.experiments.figures import Point, draw_panels, panels_of
from cloister_lab.experiments.records import Cell, TidyRow
from cloister_lab.experiments.run import Settings, Unit, units_of
from cloister_lab.experiments.sweep import Named, loaded, tables
from cloister_lab.tasks.grid_synopsis import EUGkM, axis_cells, cells_of

MODELS = {
    "central": "the one who adds the noise and removes the masks",
    "masked": "that at most one of five silos tells its noise",
    "shuffled": "the one who mixes the answers of persons",
    "local": "nobody",
}
"""Who has to be trusted, by model."""

_EPSILON = 1.0
_SILOS = 5
_PANELS = ("counts: error of a share", "k-means: NICV / optimum")
_SHARES = np.array([0.3, 0.2, 0.15, 0.1, 0.08, 0.06, 0.05, 0.03, 0.02, 0.01])
_TABLE = "s1"


def units(settings: Settings) -> list[Unit]:
    """Return the units."""
    sizes = tuple(2**power for power in range(9, 18, 2 if settings.full else 4))
    arguments = {"model": list(MODELS), "repeat": range(settings.runs(20, 2)), "sizes": [sizes]}
    return [
        *units_of(count_once, **arguments),
        *units_of(cluster_once, source=tables((_TABLE,), settings), **arguments),
    ]


def count_once(model: str, repeat: int, sizes: Sequence[int]) -> list[TidyRow]:
    """Release ten shares; the error is the root of the mean square over the ten."""
    rng = public_generator("trust", model, repeat)
    rows = []
    for n in sizes:
        counts = rng.multinomial(n, _SHARES)
        released, _ = noisy_counts(model, counts, n, rng)
        error = math.sqrt(float((((released - counts) / n) ** 2).mean()))
        rows.append(_row(_PANELS[0], model, n, repeat, error))
    return rows


def cluster_once(source: Named, model: str, repeat: int, sizes: Sequence[int]) -> list[TidyRow]:
    """Cluster the noisy counts of a grid, over records drawn from a table."""
    data = loaded(source)
    rng = public_generator("trust", source.name, model, repeat)
    rows = []
    for n in sizes:
        drawn = data.records[rng.integers(0, len(data.records), n)]
        d = drawn.shape[1]
        # The published rule for the number of cells sees the noise of each model.
        sides = axis_cells(d, data.n_clusters, n, noise_of(model, n))
        task = EUGkM(
            n_clusters=data.n_clusters,
            n_features=d,
            cells_per_axis=sides,
            mechanism="gaussian",
            public_seed=repeat,
        )
        counts = np.bincount(cells_of(drawn, sides, task.frac_bits), minlength=task.n_cells)
        released, std = noisy_counts(model, counts, n, rng)
        one = float(1 << COUNT_BITS)
        state = {"centres": np.zeros((data.n_clusters, d), dtype=np.int64)}
        words = np.rint(released * one).astype(np.int64)
        centres = task.update(0, state, {"counts": NoisyBlock(words, std * one)})
        ratio = metrics.nicv(data.values, centres["centres"]) / data.reference_nicv
        rows.append(_row(_PANELS[1], model, n, repeat, ratio))
    return rows


def _row(panel: str, model: str, n: int, repeat: int, error: float) -> TidyRow:
    return {
        **{"panel": panel, "model": model, "records": n, "epsilon": _EPSILON},
        **{"repeat": repeat, "error": error},
    }


# --- The four models ------------------------------------------------------------------------------


def noisy_counts(
    model: str, counts: Integers, n: int, rng: np.random.Generator
) -> tuple[Floats, float]:
    """Return counts of n records as a model releases them, and the deviation of their noise."""
    std = noise_of(model, n)
    if model in ("central", "masked"):
        return counts + rng.normal(0, std, len(counts)), std
    # A person sends a bit for each cell: a fair coin for the own one, else 1 with probability q.
    own, other = 0.5, 1 / (math.exp(epsilon_of_a_person(model, n)) + 1)
    ones = rng.binomial(counts, own) + rng.binomial(n - counts, other)
    return np.asarray((ones - n * other) / (own - other), dtype=np.float64), std


@lru_cache(maxsize=256)
def noise_of(model: str, n: int) -> float:
    """Return the standard deviation of a count, in records, at the experiment's epsilon.

    That of two models is of a plan of this package; that of the others is of a count near zero.
    """
    if model in ("central", "masked"):
        profile: Profile = "group" if model == "central" else "pairwise"
        plan = make_plan(
            EUGkM,
            schema_of(numbers(2)),
            [f"silo-{i}" for i in range(_SILOS)],
            budget=Budget(_EPSILON, default_delta(n)),
            nominal_n=n,
            profile=profile,
            cells_per_axis=2,
            mechanism="gaussian",
        )
        return plan.noise_std(plan.blocks(0)[0]) / (1 << COUNT_BITS)
    grown = math.exp(epsilon_of_a_person(model, n))
    return math.sqrt(n * 4 * grown) / (grown - 1)


def epsilon_of_a_person(model: str, n: int) -> float:
    """Return the epsilon with which each person randomises: more, if answers are shuffled."""
    if model == "local":
        return _EPSILON
    delta = default_delta(n)
    most = math.log(n / (16 * math.log(2 / delta))) if n > 16 * math.log(2 / delta) else 0.0
    if most <= _EPSILON or shuffled_epsilon(_EPSILON, n, delta) >= _EPSILON:
        return _EPSILON  # mixing gains nothing that the theorem shows
    if shuffled_epsilon(most, n, delta) <= _EPSILON:
        return most
    return float(brentq(lambda own: shuffled_epsilon(own, n, delta) - _EPSILON, _EPSILON, most))


def shuffled_epsilon(own: float, n: int, delta: float) -> float:
    """Return the epsilon of n shuffled answers that are `own`-private each [FMT21]_.

    It holds for ``own <= ln(n / (16 ln(2 / delta)))``.
    """
    grown = math.exp(own)
    hidden = 8 * math.sqrt(grown * math.log(4 / delta) / n) + 8 * grown / n
    return math.log1p((grown - 1) / (grown + 1) * hidden)


# --- What is shown --------------------------------------------------------------------------------


def figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Write what the rows show."""
    by = ("panel", "model", "records")
    cells = tidy.cells_of(rows, by, "error")
    panels: dict[str, dict[str, list[Point]]] = {}
    for panel in _PANELS:
        of_panel = [cell for cell in cells if cell["panel"] == panel]
        panels |= panels_of(of_panel, panel, "{model}", "records", "error")
    picture = draw_panels(
        out / "trust.png",
        panels,
        title=f"What trust costs, at ε = {_EPSILON:g}",
        x_label="records",
        y_label="error",
        x_log=True,
        y_log=True,
        columns=2,
    )
    sizes = sorted({int(cell["records"]) for cell in cells})
    largest = {
        str(c["model"]): c["error"].mean
        for c in cells
        if c["panel"] == _PANELS[0] and c["records"] == sizes[-1]
    }
    times = {f"{model}_times": error / largest["central"] for model, error in largest.items()}
    lines = tidy.prose(
        "trust", epsilon=_EPSILON, runs=max(c["runs"] for c in cells), most=sizes[-1], **times
    )
    for panel in _PANELS:
        found = {(c["model"], c["records"]): c["error"].mean for c in cells if c["panel"] == panel}
        if not found:
            continue
        lines += ["", f"{panel[0].upper()}{panel[1:]}:", ""]
        lines += tidy.markdown(
            [
                {
                    "model": model,
                    "who is trusted": trusted,
                    **{f"{n:,} records": _shown(found.get((model, n))) for n in sizes},
                }
                for model, trusted in MODELS.items()
            ]
        )
    table: list[Cell] = [
        {**{name: c[name] for name in (*by, "runs")}, "error": c["error"]} for c in cells
    ]
    page = tidy.write_page(out / "trust.md", lines)
    return [picture, page, tidy.write_table(out / "trust.csv", table)]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
