"""Rows rebuilt from means and covariances: exact statistics under guards, and our releases.

An analyst makes columns whose values it knows on the server's side, and asks for their means and
covariances with a column of the records. Each answer is a linear equation in the records. As many
independent equations as records give every record, although no answer is about few of them.

References
----------
.. [HAGCTH23] Huth, Arruda, Gusinow, Contento, Tacconelli, Hasenauer, "Accessibility of covariance
   information creates vulnerability in Federated Learning frameworks", Bioinformatics 39(9), 2023.
.. [DRS22] Dong, Roth, Su, "Gaussian differential privacy", JRSS-B 2022: the trade-off function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.linalg import hadamard
from scipy.special import ndtr, ndtri, stdtrit

from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.app.payment import Account
from cloister.core.errors import BudgetExceeded, DataError
from cloister.core.randomness import public_generator
from cloister.hazmat.fixedpoint import from_grid
from cloister.hazmat.ring import to_integers
from cloister.privacy.budget import Budget, default_delta
from cloister.privacy.calibration import gdp_mu_for, gdp_part
from cloister.privacy.ledger import Ledger
from cloister.privacy.noise import NoiseSource
from cloister.protocol.plan import Plan
from cloister.protocol.task import COUNT_BITS, Floats, Records
from cloister.tasks.preparation.statistics import Statistics
from cloister.testing import SimulatedNoise
from cloister_lab.experiments import records as tidy
from cloister_lab.experiments.datasets import Dataset, load
from cloister_lab.experiments.figures import save_small
from cloister_lab.experiments.records import Cell, MeanOf, TidyRow, Value
from cloister_lab.experiments.run import Settings, Unit, command_of, units_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DATASET = "wdbc"
COLUMNS = ("mean radius", "mean texture", "mean smoothness", "mean symmetry", "area error")
"""Measurements of patients; an attack on one column asks for the first."""

LEAST_ROWS = 10
"""Fewer rows, or a made column that is not 0 in fewer, are refused by exact statistics."""

EPSILONS = (0.1, 1.0, 10.0, 100.0)
MODEST = 1.0
"""Up to this epsilon an attack should not be better than a guess."""

ALPHA = 0.05
"""How often any gain at a modest epsilon may be reported where there is none."""

_SIZES = (16, 64, 256)  # powers of two, for orthogonal questions
_EXACT = 1e-6  # of a column's range
_NEAR = 0.05
_SPAN = 2.0  # of the box [-1, 1]
_SILO = "a"


# --- The attack on exact statistics ---------------------------------------------------------------


class Answer(NamedTuple):
    """What exact statistics give: means of all columns and covariances with the made one."""

    means: Floats
    mean_made: float
    covariances: Floats


@dataclass(frozen=True)
class ExactStatistics:
    """A server of exact means and covariances with the usual guards against disclosure.

    Parameters
    ----------
    values : ndarray of shape (n_samples, n_features)
    """

    values: Floats

    def ask(self, made: Floats, rows: Sequence[int] | None = None) -> Answer:
        """Return exact answers; a `DataError` where too few rows have a part in them."""
        values, made = (self.values, made) if rows is None else (self.values[rows], made[rows])
        if min(len(values), int(np.count_nonzero(made))) < LEAST_ROWS:
            raise DataError(f"an answer must be about {LEAST_ROWS} or more rows.")
        covariances = (values - values.mean(axis=0)).T @ (made - made.mean()) / (len(made) - 1)
        return Answer(values.mean(axis=0), float(made.mean()), covariances)


def rebuild(server: ExactStatistics, n: int, rng: np.random.Generator) -> Floats:
    """Return all rows, from as many questions as there are rows.

    A covariance and two means give the product of two columns, which is linear in the unknown
    one. Made columns are normal, as generators on servers make them from a known seed.
    """
    made = rng.normal(size=(n, n))
    products = []
    for column in made:
        answer = server.ask(column)
        products.append((n - 1) * answer.covariances + n * answer.means * answer.mean_made)
    return np.asarray(np.linalg.solve(made, np.array(products)), dtype=np.float64)


# --- The same attack on releases ------------------------------------------------------------------


class Law(NamedTuple):
    """Means and covariances in the box."""

    mean: Floats
    covariance: Floats


@dataclass(frozen=True)
class Attacked:
    """Records of one silo, and the cap of all that is released about them.

    Parameters
    ----------
    records : ndarray of shape (n_samples, n_features), grid steps
        The first of :data:`COLUMNS`.
    """

    records: Records
    cap: Budget

    @property
    def values(self) -> Floats:
        """Records in the box ``[-1, 1]``."""
        return self.records / float(_table().schema.grid().one)


@cache
def _table() -> Dataset:
    data = load(DATASET)
    places = [data.schema.names.index(name) for name in COLUMNS]
    schema, records = data.schema.select(COLUMNS), np.ascontiguousarray(data.records[:, places])
    return replace(data, schema=schema, records=records)


@lru_cache(maxsize=32)
def _plan(columns: int, budget: Budget, n: int, *, covariance: bool) -> Plan:
    schema = _table().schema.select(COLUMNS[:columns])
    # One silo: a sum over several would hide more.
    return make_plan(
        Statistics, schema, (_SILO,), budget=budget, nominal_n=n, covariance=covariance
    )


def released_law(attacked: Attacked, noise: NoiseSource) -> Law:
    """Release means and covariances for the whole cap; where unknown, those of a uniform law."""
    n, d = attacked.records.shape
    plan = _plan(d, attacked.cap, n, covariance=True)
    found = run_plan(plan, {_SILO: [attacked.records]}, noise=noise).results
    grid = plan.grid
    mean = (found["mean"] - grid.centre) / grid.half_range
    covariance = found["covariance"] / np.outer(grid.half_range, grid.half_range)
    if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
        return Law(np.zeros(d), np.eye(d) / 3)
    return Law(np.clip(mean, -1, 1), covariance + 1e-6 * np.eye(d))


def known_law(columns: int) -> Law:
    """Return the law of the whole public table: what an attacker may know from elsewhere."""
    values = Attacked(_table().records[:, :columns], Budget(1.0, 0.0)).values
    return Law(values.mean(axis=0), np.cov(values.T).reshape(columns, columns))


def ask_until_refused(attacked: Attacked, noise: NoiseSource) -> tuple[list[Floats], float]:
    """Ask for noisy means of columns times made signs, at equal prices that use up the cap.

    Returns
    -------
    answers : list of ndarray of shape (n_features,)
        Noisy sums in the box. The ledger refuses the question after the last one.
    noise : float
        Standard deviation of each.
    """
    n, d = attacked.records.shape
    plan = _plan(d, gdp_part(attacked.cap, 1 / n), n, covariance=False)
    ledger = Ledger(None)
    ledger.open_dataset(_SILO, cap=attacked.cap)
    account = Account(ledger, _SILO)
    answers: list[Floats] = []
    for number, signs in enumerate([*_signs(n), np.ones(n, dtype=np.int32)]):
        job = replace(plan, run_id=f"{number:032x}")
        made = attacked.records * signs[:, None]
        try:
            release = run_plan(job, {_SILO: [made]}, noise=noise, account=account)
        except BudgetExceeded:
            break
        answers.append(from_grid(to_integers(release.sums[0].words), COUNT_BITS)[1 : 1 + d])
    return answers, _noise_of_a_sum(plan)


def _noise_of_a_sum(plan: Plan) -> float:
    return plan.noise_std(plan.blocks(0)[0]) / (1 << COUNT_BITS)


def noise_of_a_cell(columns: int, n: int, epsilon: float) -> float:
    """Return the deviation, in ranges of a column, of a cell that all answers together give."""
    budget = gdp_part(Budget(epsilon, default_delta(n)), 1 / n)
    plan = _plan(columns, budget, n, covariance=False)
    return _noise_of_a_sum(plan) / math.sqrt(n) / _SPAN


def _signs(n: int) -> Records:
    """Return orthogonal signs: with equal noise in all answers, no questions tell more."""
    return np.asarray(hadamard(n), dtype=np.int32)


def best_guess(law: Law, answers: Sequence[Floats], noise: float) -> Floats:
    """Return the mean of each row given the answers, if rows are normal with the law."""
    n = len(answers)
    seen = _signs(n).T @ np.array(answers) / n
    unit = noise**2 / n * np.eye(len(law.mean))
    trust = np.linalg.solve(law.covariance + unit, law.covariance).T
    return np.asarray(np.clip(law.mean + (seen - law.mean) @ trust.T, -1, 1))


# --- Work -----------------------------------------------------------------------------------------


def units(settings: Settings) -> list[Unit]:
    """Return both kinds of server, for one column and for all."""
    if not settings.wants(DATASET):
        return []
    axes = {
        "n": _SIZES if settings.full else _SIZES[:1],
        "columns": (1, len(COLUMNS)),
        "repeat": range(settings.runs(10, 3)),
    }
    epsilons = EPSILONS if settings.full else EPSILONS[1:3]
    return [*units_of(from_exact, **axes), *units_of(from_releases, epsilon=epsilons, **axes)]


def drawn(n: int, columns: int, repeat: int, epsilon: float = 1.0) -> Attacked:
    """Draw rows of the public table."""
    table = _table().records
    rows = public_generator("reconstruction", n, repeat).choice(len(table), n, replace=False)
    return Attacked(np.ascontiguousarray(table[rows, :columns]), Budget(epsilon, default_delta(n)))


def from_exact(n: int, columns: int, repeat: int) -> list[TidyRow]:
    """Rebuild rows from exact statistics."""
    values = drawn(n, columns, repeat).values
    found = rebuild(ExactStatistics(values), n, public_generator("made", n, repeat))
    return [_row("exact", values, found, None, repeat, n, None, values.mean(axis=0))]


def from_releases(epsilon: float, n: int, columns: int, repeat: int) -> list[TidyRow]:
    """Rebuild rows from releases, and guess them from a released law or a known one alone."""
    attacked = drawn(n, columns, repeat, epsilon)
    values = attacked.values
    seeds = public_generator("noise", str(epsilon), n, columns, repeat)
    noise = SimulatedNoise(int(seeds.integers(2**32)))
    answers, scale = ask_until_refused(attacked, noise)
    laws = {"released": released_law(attacked, noise), "known": known_law(columns)}
    return [
        _row(method, values, rows, epsilon, repeat, len(answers), name, law.mean)
        for name, law in laws.items()
        for method, rows in {
            "attack": best_guess(law, answers, scale),
            "guess": np.broadcast_to(law.mean, values.shape),
            "draw": np.clip(seeds.multivariate_normal(law.mean, law.covariance, n), -1, 1),
        }.items()
    ]


def _row(
    method: str,
    values: Floats,
    found: Floats,
    epsilon: float | None,
    repeat: int,
    answered: int,
    law: str | None,
    centre: Floats,
) -> TidyRow:
    off = np.abs(found - values) / _SPAN
    return {
        "dataset": DATASET,
        "method": method,
        "columns": values.shape[1],
        "n": len(values),
        "epsilon": epsilon,
        "law": law,
        "repeat": repeat,
        "answered": answered,
        "exactly": float((off < _EXACT).mean()),
        "near": float((off < _NEAR).mean()),
        "trace": _trace(found - centre, values - centre),
    }


def _trace(found: Floats, true: Floats) -> float | None:
    """Return the mean correlation of rebuilt and true deviations from the law, or None."""
    if not (np.ptp(found, axis=0) > 0).all():
        return None
    both = zip(found.T, true.T, strict=True)
    return float(np.mean([np.corrcoef(one, other)[0, 1] for one, other in both]))


# --- What is shown --------------------------------------------------------------------------------


def bound_of_any(guess: float, epsilon: float, n: int) -> float:
    """Return the largest chance of a hit of any attack on a record, by the budget alone.

    Without the record in the sums, the same attack hits as often as a guess [DRS22]_.
    """
    mu = gdp_mu_for(epsilon, default_delta(n))
    return float(ndtr(ndtri(min(max(guess, 0.0), 1.0)) + mu))


@dataclass(frozen=True)
class Found:
    """Means over repeats in one cell of releases; `gain` is of pairs."""

    law: str
    columns: int
    n: int
    epsilon: float
    near: dict[str, MeanOf]
    exactly: MeanOf
    answered: MeanOf
    trace: MeanOf | None
    gain: MeanOf | None

    @property
    def bound(self) -> float:
        """What no attack exceeds, by the budget."""
        return bound_of_any(self.near["guess"].mean, self.epsilon, self.n)

    def better(self, alpha: float) -> bool | None:
        """Return whether the attack is better than the guess; None with too few repeats."""
        if self.gain is None:
            return None
        half = float(stdtrit(self.gain.runs - 1, 1 - alpha / 2)) * self.gain.error
        return self.gain.mean - half > 0


def found_of(rows: Sequence[TidyRow]) -> list[Found]:
    """Return all cells of releases."""
    by = ("law", "columns", "n", "epsilon")
    private = [row for row in rows if row["epsilon"] is not None]
    cells = {
        (cell["method"], *(cell[name] for name in by)): cell
        for cell in tidy.cells_of(private, ("method", *by), "near", "exactly", "answered", "trace")
    }
    gains = tidy.paired(private, by, "near", "attack", "guess")
    return [
        Found(
            str(key[0]),
            int(key[1]),
            int(key[2]),
            float(key[3]),
            {name: cells[name, *key]["near"] for name in ("attack", "guess", "draw")},
            cell["exactly"],
            cell["answered"],
            cell["trace"],
            gains.get(key),
        )
        for (method, *rest), cell in cells.items()
        if method == "attack"
        for key in [tuple(rest)]
    ]


def verdict(found: Sequence[Found]) -> str:
    """Say in how many cells of modest epsilons the attack is better than the guess."""
    modest = [cell for cell in found if cell.epsilon <= MODEST]
    tested = [better for c in modest if (better := c.better(ALPHA / len(modest))) is not None]
    if not tested:
        return "Too few repeats to compare with the guess."
    most = max(cell.gain.mean for cell in modest if cell.gain is not None)
    return (
        f"at ε ≤ {MODEST:g} the attack is better than the guess in {sum(tested)} of {len(tested)} "
        f"cells; its largest mean gain is {most:.3f}."
    )


def beyond(found: Sequence[Found]) -> str:
    """Say what the attack reaches at the largest epsilon, with most rows, in one column."""
    if not found:
        return ""
    cell = max(found, key=lambda c: (c.epsilon, c.n, -c.columns, c.law == "released"))
    attack, guess = cell.near["attack"].mean, cell.near["guess"].mean
    return (
        f"at ε = {cell.epsilon:g} the attack puts {100 * attack:.0f} % of the cells of one column "
        f"of {cell.n} rows within 5 %, a guess {100 * guess:.0f} %"
    )


def few(found: Sequence[Found]) -> str:
    """Say what a guess from the law of few rows is like, in one column."""
    modest = [cell for cell in found if cell.epsilon == MODEST]
    if not modest:
        return ""
    n, columns = min((cell.n, cell.columns) for cell in modest)
    near = {
        c.law: f"{100 * c.near['guess'].mean:.0f} %"
        for c in modest
        if (c.n, c.columns) == (n, columns)
    }
    return (
        f"With {n} rows it hides the law as well: at ε = {MODEST:g} a guess from the released law "
        f"hits {near['released']} of one column, a guess from the known law {near['known']}"
    )


def figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Write what the rows show."""
    exact = tidy.cells_of(
        [row for row in rows if row["epsilon"] is None],
        ("columns", "n"),
        "exactly",
        "near",
        "answered",
    )
    found = found_of(rows)
    shown = [*map(_of_exact, exact), *map(_of_release, found)]
    shown.sort(key=lambda row: (row["columns"], row["rows"], "known law" in str(row["setting"])))
    lines = tidy.prose(
        "reconstruction",
        [{**row, "gain": _interval(row)} for row in shown],
        command=command_of("reconstruction", out),
        least=LEAST_ROWS,
        exactly=100 * min((cell["exactly"].mean for cell in exact), default=math.nan),
        verdict=verdict(found),
        beyond=beyond(found),
        few=few(found),
        alpha=100 * ALPHA,
        names=", ".join(COLUMNS),
    )
    page = tidy.write_page(out / "reconstruction.md", lines)
    table = tidy.write_table(out / "reconstruction.csv", shown)
    return [
        page,
        table,
        _figure([cell for cell in found if cell.law == "released"], out / "reconstruction.png"),
    ]


def _of_exact(cell: Cell) -> dict[str, Value]:
    return {
        "columns": cell["columns"],
        "rows": cell["n"],
        "setting": "exact statistics",
        "answers": cell["answered"].mean,
        "exactly": cell["exactly"].mean,
        "near": cell["near"].mean,
        **dict.fromkeys(("guess", "draw", "gain", "low", "high", "bound", "trace", "noise")),
    }


def _of_release(cell: Found) -> dict[str, Value]:
    gain = cell.gain
    return {
        "columns": cell.columns,
        "rows": cell.n,
        "setting": f"releases, ε = {cell.epsilon:g}, {cell.law} law",
        "answers": cell.answered.mean,
        "exactly": cell.exactly.mean,
        "near": cell.near["attack"].mean,
        "guess": cell.near["guess"].mean,
        "draw": cell.near["draw"].mean,
        "gain": gain.mean if gain else None,
        "low": gain.mean - gain.half if gain else None,
        "high": gain.mean + gain.half if gain else None,
        "bound": cell.bound,
        "trace": cell.trace.mean if cell.trace else None,
        "noise": noise_of_a_cell(cell.columns, cell.n, cell.epsilon),
    }


def _interval(row: dict[str, Value]) -> str | None:
    shown = "{gain:z.3f} ({low:z.3f} to {high:z.3f})"
    return None if row["gain"] is None else shown.format_map(row)


def _figure(found: Sequence[Found], path: Path) -> Path:
    """Draw hits against epsilon, a panel for each number of rows and of columns."""
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys((cell.columns, cell.n) for cell in found))
    sizes = sorted({n for _, n in panels})
    widths = sorted({columns for columns, _ in panels})
    figure = Figure(figsize=(2.9 * len(sizes) + 1.8, 2.4 * len(widths) + 0.9), layout="constrained")
    grid = figure.subplots(len(widths), len(sizes), squeeze=False, sharex=True, sharey=True)
    for columns, n in panels:
        axes = grid[widths.index(columns)][sizes.index(n)]
        _panel(axes, [c for c in found if (c.columns, c.n) == (columns, n)])
        axes.set_title(f"{n} rows, {columns} column{'s' * (columns > 1)}", loc="left", fontsize=10)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8)
    title = "Cells rebuilt to 5 % of their range, from as many answers as rows"
    return save_small(figure, path, title, "share of cells", ("epsilon of all answers",))


def _panel(axes: Axes, cells: Sequence[Found]) -> None:
    cells = sorted(cells, key=lambda cell: cell.epsilon)
    epsilons = [cell.epsilon for cell in cells]
    axes.axhline(1.0, color="#555555", linestyle="--", label="exact statistics")
    axes.plot(epsilons, [c.bound for c in cells], ":", color="#000000", label="most by the budget")
    looks = {"guess": ("#0072B2", "o", 8), "attack on releases": ("#D55E00", "s", 4)}
    for label, (colour, marker, size) in looks.items():
        of = [cell.near[label.split()[0]] for cell in cells]
        means, halves = [mean.mean for mean in of], [mean.half for mean in of]
        axes.errorbar(
            epsilons,
            means,
            halves,
            label=label,
            color=colour,
            marker=marker,
            markersize=size,
            markerfacecolor="none",
            capsize=2,
        )
    axes.set_xscale("log")
    axes.set_ylim(0, 1.05)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
