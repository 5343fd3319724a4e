"""Whether intervals of regression coefficients hold, on tables of many kinds, at the defaults.

A table is columns of one family, a truth that need not be the model's, and a target: a number with
errors of some law, or classes. Random tables take a truth and a law by their number; named
ones are combinations that are hard. The target of a noise interval is scikit-learn's coefficient on
the same records: of ``LinearRegression``, or of ``LogisticRegression`` with the same penalty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

import numpy as np

from cloister.app.job import run_job
from cloister.core.errors import PlanError
from cloister.data.schema import Column, Schema
from cloister.privacy.noise import DiscreteNoise, NoiseSource
from cloister.protocol.task import Floats, Records
from cloister.tasks.columns import Encoding
from cloister.tasks.supervised.linear import Linear
from cloister.tasks.supervised.logistic import Logistic
from cloister_lab.experiments import records as tidy
from cloister_lab.experiments.records import STAMP, Cell, Key, TidyRow
from cloister_lab.experiments.run import Settings, Unit, command_of, units_of

Rng = np.random.Generator


@dataclass(frozen=True)
class Family:
    """How the columns of a table are drawn: numbers within one box, and categories.

    Parameters
    ----------
    draw : function of a generator and a number of records
        Returns numbers of shape (n, p).
    low, high : float
        The public bounds of each; what is outside is moved to them.
    shares : tuple of tuples of float
        Of the categories of each further column.
    """

    draw: Callable[[Rng, int], Floats]
    low: float
    high: float
    shares: tuple[tuple[float, ...], ...] = ()


_RARE = ((0.5, 0.3, 0.14, 0.04, 0.02), (0.6, 0.4))

FAMILIES: dict[str, Family] = {
    "normal": Family(lambda rng, n: rng.normal(size=(n, 4)), -5, 5),
    "twenty": Family(lambda rng, n: rng.normal(size=(n, 20)), -5, 5),
    "correlated": Family(
        lambda rng, n: 0.9 * rng.normal(size=(n, 1)) + 0.45 * rng.normal(size=(n, 4)), -5, 5
    ),
    "uniform": Family(lambda rng, n: rng.uniform(0, 10, (n, 3)), 0, 10),
    "gamma": Family(lambda rng, n: rng.gamma(5, 4, (n, 3)), 0, 80),
    "exponential": Family(lambda rng, n: rng.exponential(1, (n, 3)), 0, 15),
    "lognormal": Family(lambda rng, n: rng.lognormal(0, 0.8, (n, 3)), 0, 30),
    "t3": Family(lambda rng, n: rng.standard_t(3, (n, 3)), -20, 20),
    "counts": Family(lambda rng, n: rng.negative_binomial(1, 0.3, (n, 3)).astype(float), 0, 30),
    "flags": Family(
        lambda rng, n: (rng.random((n, 4)) < [0.5, 0.3, 0.1, 0.05]).astype(float), 0, 1
    ),
    "wide bounds": Family(lambda rng, n: rng.gamma(3, 1, (n, 3)), -100, 100),
    "categories": Family(lambda rng, n: rng.normal(size=(n, 2)), -5, 5, _RARE),
}
"""By name; ranges of numbers are public guesses, most of them loose."""

TRUTHS: dict[str, Callable[[Floats], Floats]] = {
    "straight": lambda z: np.zeros(len(z)),
    "square": lambda z: z[:, 0] * z[:, 0] / 2,
    "product": lambda z: 0.7 * z[:, 0] * z[:, 1],
    "step": lambda z: np.where(z[:, 0] > 0.5, 1.5, 0.0),
}
"""What is added to a weighted sum of standardised columns."""

LAWS: dict[str, tuple[str, ...]] = {
    "linear": ("normal errors", "t3 errors", "uneven errors", "skewed errors"),
    "logistic": ("even classes", "rare class", "steep", "three classes"),
}

NAMED: dict[str, dict[str, tuple[str, str, str]]] = {
    "linear": {
        "exponential, squared": ("exponential", "square", "normal errors"),
        "lognormal, step": ("lognormal", "step", "normal errors"),
        "heavy target": ("normal", "straight", "t3 errors"),
        "wide bounds, uneven": ("wide bounds", "straight", "uneven errors"),
        "twenty columns": ("twenty", "straight", "normal errors"),
    },
    "logistic": {
        "skewed, squared": ("gamma", "square", "even classes"),
        "rare class": ("normal", "straight", "rare class"),
        "nearly separable": ("uniform", "straight", "nearly separable"),
        "heavy columns": ("t3", "step", "even classes"),
        "twenty columns": ("twenty", "straight", "even classes"),
        "three classes": ("normal", "square", "three classes"),
    },
}
"""Family, truth and law of combinations that are hard."""

TASKS = {"linear": Linear, "logistic": Logistic}
_EPSILONS = (1.0, 4.0)
_SEEDS, _RUNS, _PEERS = 3, 20, 3  # random tables of a family, releases of each, and of the other
_SMALL = {"linear": ("categories 0", "heavy target"), "logistic": ("gamma 0", "rare class")}
_SMALL_RUNS = 3
_MARGIN, _LONGEST = 1.5, 32.0  # of a steep logistic model, and the longest clip
_BOUNDS = 1.1  # of the target, from its largest size: a public guess


def tables(model: str) -> dict[str, tuple[str, str, str]]:
    """Return the family, truth and law of each table of a model, by name."""
    found = dict(NAMED[model])
    for index, family in enumerate(FAMILIES):
        for seed in range(_SEEDS):
            rng = np.random.default_rng([index, seed, model == "linear"])
            truth, law = rng.choice(list(TRUTHS)), rng.choice(LAWS[model])
            found[f"{family} {seed}"] = (family, str(truth), str(law))
    return found


def draw(model: str, name: str) -> tuple[Schema, Records]:
    """Return a table of a model, the same each time; the last column is the target."""
    kinds = tables(model)
    if name not in kinds:
        raise PlanError(f"table must be one of {', '.join(kinds)}, got {name!r}.")
    family, truth, law = kinds[name]
    how = FAMILIES[family]
    rng = np.random.default_rng([*name.encode(), model == "linear"])
    n = int(rng.choice([4000, 8000, 16000]))
    x = how.draw(rng, n).clip(how.low, how.high)
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    target = z @ (rng.normal(size=z.shape[1]) * (rng.random(z.shape[1]) < 0.8)) + TRUTHS[truth](z)
    codes_of = [rng.choice(len(shares), n, p=shares) for shares in how.shares]
    for codes, shares in zip(codes_of, how.shares, strict=True):
        target += rng.normal(0, 0.7, len(shares))[codes]
    target /= max(float(target.std()), 0.1)
    y = _number(law, target, z, rng) if model == "linear" else _classes(law, target, z, rng)
    columns = [
        Column(name=f"x{j}", type="number", min=how.low, max=how.high) for j in range(x.shape[1])
    ]
    for j, shares in enumerate(how.shares):
        columns.append(_categories(f"c{j}", len(shares)))
    if model == "linear":
        most = _BOUNDS * float(np.abs(y).max())
        columns.append(Column(name="y", type="number", min=-most, max=most))
    else:
        columns.append(_categories("y", int(y.max()) + 1))
    schema = Schema(dataset="drawn", unit="row", columns=tuple(columns))
    return schema, schema.grid().encode(np.column_stack([x, *codes_of, y]))


def _categories(name: str, size: int) -> Column:
    labels = tuple("abcde"[:size])
    return Column(name=name, type="category", categories=labels, min=0.0, max=size - 1.0)


def _number(law: str, signal: Floats, z: Floats, rng: Rng) -> Floats:
    """Return a target of numbers, with errors of the size of the signal."""
    n = len(signal)
    errors = {
        "normal errors": lambda: rng.normal(size=n),
        "t3 errors": lambda: rng.standard_t(3, n) / 1.7,
        "uneven errors": lambda: rng.normal(size=n) * (0.5 + 0.5 * np.abs(z[:, 0])),
        "skewed errors": lambda: rng.exponential(1, n) - 1,
    }
    return np.asarray(signal + errors[law]())


def _classes(law: str, signal: Floats, z: Floats, rng: Rng) -> Any:
    """Return a target of classes."""
    if law == "three classes":
        of_class = np.column_stack([signal, 0.8 * z[:, -1], np.zeros(len(signal))])
        return (of_class + rng.gumbel(size=of_class.shape)).argmax(axis=1)
    steepness = {"steep": 3.0, "nearly separable": 30.0}.get(law, 1.0)
    middle = 0.95 if law == "rare class" else 0.5
    margins = steepness * _MARGIN * (signal - np.quantile(signal, middle))
    return (margins + rng.logistic(size=len(margins)) > 0).astype(int)


# --- Measuring ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exact:
    """What scikit-learn says of a table.

    Parameters
    ----------
    coef : ndarray of shape (n_outputs, n_columns_of_design)
        Data units.
    score : float
        R squared, or accuracy, on the same records.
    loose : float
        A clip that shortens under 1 % of the rows, 32 at most.
    """

    coef: Floats
    score: float
    loose: float


def exact(model: str, schema: Schema, records: Records) -> Exact:
    """Fit scikit-learn's model to a table whose last column is the target."""
    from sklearn.linear_model import LinearRegression, LogisticRegression

    columns = schema.public
    levels = tuple(column.levels for column in columns)
    grid = schema.grid()
    last = len(levels) - 1
    design = Encoding(levels, grid.frac_bits, (last,)).rows(records)[:, :-1] / grid.one
    half = np.concatenate(
        [np.ones(c.levels) if c.levels else [(c.high - c.low) / 2] for c in columns[:-1]]
    )
    y = grid.decode(records / grid.one)[:, last]
    if model == "linear":
        fit = LinearRegression().fit(design, y)
    else:
        y = np.rint(y)
        fit = LogisticRegression(C=1.0, tol=1e-9, max_iter=5000).fit(design, y)
    numbers = np.concatenate([np.full(c.levels or 1, c.levels == 0) for c in columns[:-1]])
    rows = design - design.mean(axis=0)
    rows[:, numbers] /= np.maximum(rows[:, numbers].std(axis=0), 1 / 16)
    loose = float(np.quantile(np.sqrt((rows**2).sum(axis=1) + 1), 0.991))
    coef = np.atleast_2d(fit.coef_) / half
    return Exact(coef, float(fit.score(design, y)), min(loose, _LONGEST))


def measure(
    model: str,
    schema: Schema,
    records: Records,
    epsilon: float,
    *,
    runs: int,
    peers: int = 0,
    noise: Callable[[int], NoiseSource] | None = None,
) -> dict[str, float | None]:
    """Release a table many times at the defaults, and compare with scikit-learn.

    Parameters
    ----------
    peers : int, >= 0
        Releases with a clip that shortens under 1 % of the rows.
    noise : function of the number of a run, optional
        From the operating system unless a test gives another.

    Returns
    -------
    dict
        ``covered``: share of coefficients whose 95 % noise interval holds scikit-learn's, over
        runs; ``worst``: that of the coefficient with the least. ``sure``: intervals without 0;
        ``wrong``: those on the other side of 0 than scikit-learn's. ``width``: median over
        coefficients of the median width, over that with the other clip; None without peers.
        ``exact_score``, ``score``: R squared or accuracy of scikit-learn and of ours, the mean.
        ``seconds``: of a release.
    """
    wanted = exact(model, schema, records)
    source = noise or (lambda _: DiscreteNoise())

    def release(run: int, **options: Any) -> tuple[Any, Mapping[str, Floats]]:
        result = run_job(
            TASKS[model],
            schema,
            {"silo": [records]},
            epsilon=epsilon,
            nominal_n=len(records),
            noise=source(run),
            target=schema.names[-1],
            **options,
        )
        return result.plan.task, result.results

    began = perf_counter()
    released = [release(run) for run in range(runs)]
    seconds = (perf_counter() - began) / runs
    ends = [
        tuple(np.atleast_2d(found[f"coef_{e}"]) for e in ("low", "high")) for _, found in released
    ]
    low, high = (np.stack(end) for end in zip(*ends, strict=True))
    shares = ((low <= wanted.coef) & (wanted.coef <= high)).mean(axis=0)
    sure = (low > 0) | (high < 0)
    wrong = sure & (np.sign(low) != np.sign(wanted.coef))
    width = None
    if peers:
        loose = [release(runs + run, clip=wanted.loose)[1] for run in range(peers)]
        other = np.median([np.atleast_2d(f["coef_high"] - f["coef_low"]) for f in loose], axis=0)
        width = float(np.median(np.median(high - low, axis=0) / other))
    return {
        "covered": float(shares.mean()),
        "worst": float(shares.min()),
        "sure": int(sure.sum()),
        "wrong": int(wrong.sum()),
        "width": width,
        "exact_score": wanted.score,
        "score": fmean(_score(task, found, schema, records) for task, found in released),
        "seconds": seconds,
    }


def _score(
    task: Linear | Logistic, found: Mapping[str, Floats], schema: Schema, records: Records
) -> float:
    """Return R squared, or the accuracy, on the same records."""
    y = schema.grid().decode(records / schema.grid().one)[:, -1]
    if isinstance(task, Linear):
        residuals = y - task.predict(found, records)
        return float(1 - (residuals**2).sum() / ((y - y.mean()) ** 2).sum())
    return float((task.probabilities(found, records).argmax(axis=1) == np.rint(y)).mean())


# --- The experiment -------------------------------------------------------------------------------


def units(settings: Settings) -> list[Unit]:
    """Return one unit for each table and epsilon."""
    runs = settings.runs(_RUNS, _SMALL_RUNS)
    return [
        unit
        for model in TASKS
        for unit in units_of(
            _cell,
            model=[model],
            name=filter(settings.wants, tables(model) if settings.full else _SMALL[model]),
            epsilon=_EPSILONS,
            runs=[runs],
            peers=[min(runs, _PEERS)],
        )
    ]


def _cell(model: str, name: str, epsilon: float, runs: int, peers: int) -> list[TidyRow]:
    schema, records = draw(model, name)
    return [
        {
            "dataset": name,
            "method": model,
            "made_of": ", ".join(tables(model)[name]),
            "records": len(records),
            "columns": records.shape[1] - 1,
            "epsilon": epsilon,
            "runs": runs,
            **measure(model, schema, records, epsilon, runs=runs, peers=peers),
        }
    ]


def figures(rows: Sequence[TidyRow], folder: Path) -> list[Path]:
    """Write the page and its table."""
    text = as_markdown(rows, command_of("coefficients", folder))
    page = tidy.write_page(folder / "coefficients.md", [text], stamped=False)
    return [page, tidy.write_table(folder / "coefficients.csv", rows)]


def as_markdown(rows: Sequence[TidyRow], command: str) -> str:
    """Return the page: a summary, then a row for each table and epsilon."""
    machines = ", ".join(dict.fromkeys(str(row["machine"]) for row in rows))
    runs = ", ".join(f"{count:g}" for count in sorted({tidy.number(row, "runs") for row in rows}))
    cells: dict[Key, list[TidyRow]] = {}
    for row in rows:
        cells.setdefault((row["method"], row["epsilon"]), []).append(row)
    lines = tidy.prose(
        *("coefficients", map(_summary, cells.values())),
        command=command,
        machines=machines,
        runs=runs,
        stamp=STAMP,
    )
    for model in dict.fromkeys(str(row["method"]) for row in rows):
        of_model = (row for row in rows if row["method"] == model)
        lines += tidy.prose("coefficients-model", of_model, model=model.capitalize())
    return "\n".join(lines)


def _summary(rows: Sequence[TidyRow]) -> Cell:
    """Return the row of a model and an epsilon."""
    names = ("covered", "worst", "wrong", "sure", "width", "exact_score", "score")
    of = {name: np.array([tidy.number(row, name) for row in rows]) for name in names}
    return {
        **rows[0],
        "tables": len(rows),
        "covered": of["covered"].mean(),
        "high": (of["covered"] >= 0.9).sum(),
        "even": (of["worst"] >= 0.8).sum(),
        "wrong": of["wrong"].sum(),
        "sure": of["sure"].sum(),
        "width": np.median(of["width"]),
        "lost": (of["exact_score"] - of["score"]).mean(),
    }
