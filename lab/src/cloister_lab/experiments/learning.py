"""One logistic regression, learned several ways: what each costs, protects and knows.

In the clear, by federated averaging without protection, by noised sums with a guarantee for
records or for whole silos, and on secret shares. Where noise is added, the answer is private; where
it is not, whoever sees the answer sees an exact function of all records.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cloister.hazmat.fixedpoint import from_grid
from cloister.jobs import handlers, make_clients, make_plan, run_clients
from cloister.privacy.budget import Budget, default_delta
from cloister.privacy.noise import DiscreteNoise
from cloister.protocol.client import Client
from cloister.protocol.plan import Plan
from cloister.task import Classifier, Floats, Records, Task
from cloister.tasks.columns import Encoding
from cloister.tasks.supervised.fedavg import FedAvg
from cloister.tasks.supervised.local_training import Network
from cloister.tasks.supervised.logistic import Logistic
from cloister.transports.inprocess import InProcess
from cloister_lab.experiments import spu_kmeans
from cloister_lab.experiments.classify import Problem
from cloister_lab.experiments.credit import STAND_IN, TABLES, Loans, split
from cloister_lab.experiments.datasets import SUFFIXES
from cloister_lab.experiments.environments import run_script
from cloister_lab.experiments.mpi_kmeans import Counted
from cloister_lab.experiments.records import (
    Key,
    Means,
    TidyRow,
    Value,
    means_of,
    number,
    table_of,
    write_table,
)
from cloister_lab.experiments.run import Experiment, Settings, Unit, markdown, prose, write_page
from cloister_lab.experiments.table3 import spu_python

EPSILON = 1.0
PARTIES = (3, 10)
STEPS, RATE = 200, 2.0
"""Of gradient descent in the clear and on shares."""

_ROUNDS, _LOCAL_STEPS = 20, 10
_SPU_REPEATS = 3  # of each problem
_ENOUGH = f"shares are measured on {_SPU_REPEATS} splits"
_SPU_CELLS = 100_000  # of a table; a larger one takes hours
_WORD = 8  # bytes of a parameter


@dataclass(frozen=True)
class Cost:
    """What one way to learn took and found.

    Parameters
    ----------
    told : ndarray of shape (n_test, 2)
        Probabilities.
    seconds : float
        Of all parties together, but for shares: of the slowest party.
    sent : float
        Bytes of all messages between parties.
    """

    told: Floats
    seconds: float
    sent: float
    rounds: int


@dataclass(frozen=True)
class Way:
    """A way to learn.

    Parameters
    ----------
    protects : str
        For whom the answer is private.
    others_see : str
        What a party learns beside it.
    learn : function of a problem
        Or why it could not be done.
    parties : tuple of int
        With how many it is tried.
    """

    protects: str
    others_see: str
    learn: Callable[[Problem], Cost | str]
    parties: tuple[int, ...] = PARTIES


# --- Ways -----------------------------------------------------------------------------------------


def _design(problem: Problem, records: Records) -> tuple[Floats, Floats]:
    """Return the design matrix in the box [-1, 1], the intercept last, and labels 0 and 1."""
    levels = tuple(column.levels for column in problem.schema.public)
    frac_bits = problem.schema.grid().frac_bits
    X = Encoding(levels, frac_bits, (problem.at,)).rows(records)
    return from_grid(X.astype(np.int64), frac_bits), problem.labels(records)[:, None].astype(float)


def _told(problem: Problem, network: Network, parameters: Floats) -> Floats:
    found = network.predict(parameters, _design(problem, problem.test)[0])
    return np.column_stack([1 - found, found])


def _clear(problem: Problem) -> Cost:
    X, Y = _design(problem, problem.train)
    network = Network(X.shape[1], 1, "logistic")
    begun = time.perf_counter()
    found = network.train(network.start(0), X[None], Y[None], STEPS, RATE)[0]
    seconds = time.perf_counter() - begun
    sent = X.size * 4 + len(Y)  # the records themselves, as floats and bytes
    return Cost(_told(problem, network, found), seconds, sent, 1)


def _open_averaging(problem: Problem) -> Cost:
    """Average the silos' parameters; the server sees each of them."""
    tables = [_design(problem, part) for part in problem.silos]
    network = Network(tables[0][0].shape[1], 1, "logistic")
    parameters = network.start(0)
    begun = time.perf_counter()
    for _ in range(_ROUNDS):
        moves = [
            network.train(parameters, X[None], Y[None], _LOCAL_STEPS, RATE)[0] for X, Y in tables
        ]
        parameters = parameters + np.mean(moves, axis=0)
    seconds = time.perf_counter() - begun
    sent = 2 * _WORD * network.size * len(tables) * _ROUNDS
    return Cost(_told(problem, network, parameters), seconds, sent, _ROUNDS)


def _noised(problem: Problem, *, task: type[Task], unit: str = "row", **options: Any) -> Cost:
    """Run a whole job in this process; bytes are those of its frames."""
    schema = problem.schema.model_copy(update={"unit": unit})
    names = [f"silo-{i}" for i in range(len(problem.silos))]
    plan = make_plan(
        task,
        schema,
        names,
        budget=Budget(EPSILON, default_delta(problem.nominal_n)),
        nominal_n=problem.nominal_n,
        target=problem.target,
        **options,
    )
    begun = time.perf_counter()
    client, sent = _run(plan, problem.silos)
    seconds = time.perf_counter() - begun
    results = plan.task.results(client.state, plan.grid)
    assert isinstance(plan.task, Classifier)
    return Cost(plan.task.probabilities(results, problem.test), seconds, sent, plan.rounds)


def _run(plan: Plan, silos: Sequence[Records]) -> tuple[Client, int]:
    """Run a plan with group masks; return a client that finished and the bytes of all frames."""
    chunks = {name: [records] for name, records in zip(plan.silos, silos, strict=True)}
    clients = make_clients(plan, chunks)
    transport = Counted(InProcess(handlers(clients)))
    for _ in run_clients(clients, DiscreteNoise(), transport=transport):
        pass
    return next(iter(clients.values())), transport.total


def _shares(problem: Problem, *, protocol: str, fetch: bool) -> Cost | str:
    """Descend on secret shares; parties are processes with a thread each."""
    if problem.repeat >= _SPU_REPEATS:
        return _ENOUGH
    X, Y = _design(problem, problem.train)
    if X.size > _SPU_CELLS:
        return f"{X.size:,} cells are too many for shares"
    network = Network(X.shape[1], 1, "logistic")
    words = [protocol, str(STEPS - 1), "FILE", "logistic"]
    arrays = {"X": np.hstack([X, Y]), "centres": network.start(0)[:, None]}
    done = run_script(spu_python(fetch), spu_kmeans.__file__, words, arrays)
    if isinstance(done, str):
        return done
    # the first step warms up, and so is not timed, but it is one of the steps
    seconds = sum(done["seconds"]) * STEPS / len(done["seconds"])
    sent = math.nan if done["bytes"] is None else done["bytes"] * STEPS
    return Cost(_told(problem, network, np.array(done["centres"]).ravel()), seconds, sent, STEPS)


_NOBODY = "nobody"


def ways(fetch: bool) -> dict[str, Way]:
    """Return all ways; `fetch` makes SPU's environment where it is missing."""
    record, silo = f"a record, ε = {EPSILON:g}", f"a whole silo, ε = {EPSILON:g}"
    averaging: dict[str, Any] = {"task": FedAvg, "rounds": _ROUNDS}
    found = {
        "in the clear": Way(_NOBODY, "all records", _clear),
        "federated averaging, open": Way(_NOBODY, "each silo's parameters", _open_averaging),
        "secure sum + DP, logistic": Way(record, "nothing", partial(_noised, task=Logistic)),
        "secure sum + DP, fedavg": Way(record, "nothing", partial(_noised, **averaging)),
        "secure sum + DP, fedavg, sampled": Way(
            record, "nothing", partial(_noised, **averaging, rate=0.1)
        ),
        "secure sum + DP, fedavg of silos": Way(
            silo, "nothing", partial(_noised, **averaging, unit="silo", local_steps=_LOCAL_STEPS)
        ),
    }
    for protocol, parties in spu_kmeans.PARTIES.items():
        found[f"full MPC, SPU {protocol}"] = Way(
            _NOBODY,
            "nothing",
            partial(_shares, protocol=protocol, fetch=fetch),
            (parties,),
        )
    return found


# --- Work -----------------------------------------------------------------------------------------


def _units(settings: Settings) -> list[Unit]:
    asked: dict[Loans, Path | None] = {STAND_IN: None}
    large = TABLES[-1]
    if settings.full and (file := settings.file(large.name, SUFFIXES)):
        asked[large] = file
    units = []
    for table, path in asked.items():
        if not settings.wants(table.name):
            continue
        repeats = settings.runs(20 if path is None else 3, 1)
        units += [
            Unit(
                f"{table.name} {name} parties={parties} full={settings.full} r={repeat}",
                partial(measure, table, path, name, parties, repeat, settings.full),
            )
            for repeat in range(repeats)
            for name, way in ways(False).items()
            for parties in way.parties
        ]
    return units


def measure(
    table: Loans, file: Path | None, name: str, parties: int, repeat: int, fetch: bool
) -> list[TidyRow]:
    """Learn one way from one split; one row, in which `skipped` says why if it could not be."""
    way = ways(fetch)[name]
    whole = split(table, file, repeat)
    problem = replace(whole, silos=tuple(whole.train[i::parties] for i in range(parties)))
    row: dict[str, Value] = {
        "dataset": table.name,
        "method": name,
        "parties": parties,
        "repeat": repeat,
        "protects": way.protects,
        "others_see": way.others_see,
        "seconds": None,
        "bytes": None,
        "rounds": None,
        "accuracy": None,
        "auc": None,
        "skipped": None,
    }
    cost = way.learn(problem)
    if isinstance(cost, str):
        return [row | {"skipped": cost}]
    return [row | _measured(cost, problem)]


def _measured(cost: Cost, problem: Problem) -> dict[str, Value]:
    from sklearn.metrics import roc_auc_score

    truth = problem.labels(problem.test)
    return {
        "seconds": cost.seconds,
        "bytes": None if math.isnan(cost.sent) else cost.sent,
        "rounds": cost.rounds,
        "accuracy": float((cost.told.argmax(axis=1) == truth).mean()),
        "auc": float(roc_auc_score(truth, cost.told[:, 1])),
    }


# --- What is shown --------------------------------------------------------------------------------

_BY = ("dataset", "method", "parties")
_SHOWN = ("accuracy", "auc", "seconds", "bytes", "rounds")


def _figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    means = {name: means_of(rows, _BY, name) for name in _SHOWN}
    page = write_page(out / "learning.md", _page(rows, means))
    return [page, write_table(out / "learning.csv", table_of(_BY, means))]


def _page(rows: Sequence[TidyRow], means: Mapping[str, Means]) -> list[str]:
    about = {(row["method"]): (row["protects"], row["others_see"]) for row in rows}
    lines = prose("learning", steps=STEPS, rate=RATE, rounds=_ROUNDS, local_steps=_LOCAL_STEPS)
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        headings = ("Way", "Parties", "Private for", "Others see beside the answer", "Accuracy")
        lines += [
            "",
            f"## {dataset}",
            "",
            *markdown(
                (*headings, "AUC", "Seconds", "Bytes", "Rounds"),
                (_line(key, means, about) for key in means["accuracy"] if key[0] == dataset),
            ),
        ]
        lines += _same_splits(rows, dataset)
    skipped = {
        f"{row['method']} of {row['dataset']}: {row['skipped']}"
        for row in rows
        if row["skipped"] not in (None, _ENOUGH)
    }
    if skipped:
        lines += ["", "Not measured: " + "; ".join(sorted(skipped)) + "."]
    return [*lines, "", "Made by `cloister experiments run learning --full`."]


def _line(
    key: Key, means: Mapping[str, Means], about: Mapping[Value, tuple[Value, Value]]
) -> tuple[object, ...]:
    """Return one row of the table of a data set."""
    sent = means["bytes"].get(key)
    return (
        *key[1:],
        *about[key[1]],
        f"{means['accuracy'][key]:.3f}",
        f"{means['auc'][key]:.3f}",
        f"{means['seconds'][key].mean:.3g}",
        "-" if sent is None else _bytes(sent.mean),
        f"{means['rounds'][key].mean:.0f}",
    )


def _same_splits(rows: Sequence[TidyRow], dataset: Value) -> list[str]:
    """Return what the clear tells on the splits on which shares were measured."""
    shared = {
        row["repeat"]: number(row, "accuracy")
        for row in rows
        if row["dataset"] == dataset
        and str(row["method"]).startswith("full MPC")
        and row["accuracy"] is not None
    }
    if not shared:
        return []
    clear = {
        row["repeat"]: number(row, "accuracy")
        for row in rows
        if row["dataset"] == dataset and row["method"] == "in the clear"
    }
    apart = max(abs(clear[repeat] - accuracy) for repeat, accuracy in shared.items())
    return [
        "",
        f"Shares are measured on {len(shared)} splits. On these their accuracy and that in the "
        f"clear differ by at most {apart:.3f}.",
    ]


def _bytes(sent: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if sent >= size:
            return f"{sent / size:.3g} {unit}"
    return f"{sent:.0f} B"


LEARNING = Experiment(
    "learning",
    "one logistic regression in the clear, by federated learning, secure sum + DP, and full MPC",
    _units,
    _figures,
    seconds_small=10,
    seconds_full=20 * 60,
)
