"""One logistic regression, trained several ways: what each costs, protects and knows.

In the clear, by federated averaging without protection, by noised sums with a guarantee for
records or for whole silos, and on secret shares. Where noise is added, the answer is private; where
it is not, whoever sees the answer sees an exact function of all records.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cloister.app.in_process import InProcess, handlers, make_clients, run_clients
from cloister.app.job import make_plan
from cloister.privacy.budget import Budget, default_delta
from cloister.privacy.noise import DiscreteNoise
from cloister.protocol.client import Client
from cloister.protocol.plan import Plan
from cloister.protocol.task import Classifier, Floats, Records, Task
from cloister.tasks.supervised.fedavg import FedAvg
from cloister.tasks.supervised.local_training import Network
from cloister.tasks.supervised.logistic import Logistic
from cloister_lab.experiments import records as tidy
from cloister_lab.experiments import spu_kmeans
from cloister_lab.experiments.classify import Problem, design
from cloister_lab.experiments.credit import STAND_IN, TABLES, Loans, auc_and_accuracy, split
from cloister_lab.experiments.datasets import SUFFIXES
from cloister_lab.experiments.environments import run_script
from cloister_lab.experiments.mpi_kmeans import Counted
from cloister_lab.experiments.records import Cell, MeanOf, TidyRow, Value
from cloister_lab.experiments.run import Settings, Unit, units_of
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
    """What one way to train took and found.

    Parameters
    ----------
    predicted : ndarray of shape (n_test, 2)
        Probabilities.
    seconds : float
        Of all parties together, but for shares: of the slowest party.
    sent : float
        Bytes of all messages between parties.
    """

    predicted: Floats
    seconds: float
    sent: float
    rounds: int


@dataclass(frozen=True)
class Way:
    """A way to train.

    Parameters
    ----------
    protects, others_see : str
        For whom the answer is private, and what a party learns beside it.
    train : function of a problem
        Or why it could not be done.
    parties : tuple of int
        With how many it is tried.
    """

    protects: str
    others_see: str
    train: Callable[[Problem], Cost | str]
    parties: tuple[int, ...] = PARTIES


# --- Ways -----------------------------------------------------------------------------------------


def _design(problem: Problem, records: Records) -> tuple[Floats, Floats]:
    """Return the design matrix in the box [-1, 1], the intercept last, and labels 0 and 1."""
    X = np.column_stack([design(problem, records), np.ones(len(records))])
    return X, problem.labels(records)[:, None].astype(float)


def _predicted(problem: Problem, network: Network, parameters: Floats) -> Floats:
    found = network.predict(parameters, _design(problem, problem.test)[0])
    return np.column_stack([1 - found, found])


def _clear(problem: Problem) -> Cost:
    X, Y = _design(problem, problem.train)
    network = Network(X.shape[1], 1, "logistic")
    begun = time.perf_counter()
    found = network.train(network.start(0), X[None], Y[None], STEPS, RATE)[0]
    seconds = time.perf_counter() - begun
    sent = X.size * 4 + len(Y)  # the records themselves, as floats and bytes
    return Cost(_predicted(problem, network, found), seconds, sent, 1)


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
    return Cost(_predicted(problem, network, parameters), seconds, sent, _ROUNDS)


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
    arguments = [protocol, str(STEPS - 1), "FILE", "logistic"]
    arrays = {"X": np.hstack([X, Y]), "centres": network.start(0)[:, None]}
    done = run_script(spu_python(fetch), spu_kmeans.__file__, arguments, arrays)
    if isinstance(done, str):
        return done
    # the first step warms up, and so is not timed, but it is one of the steps
    seconds = sum(done["seconds"]) * STEPS / len(done["seconds"])
    sent = math.nan if done["bytes"] is None else done["bytes"] * STEPS
    return Cost(
        _predicted(problem, network, np.array(done["centres"]).ravel()), seconds, sent, STEPS
    )


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


def units(settings: Settings) -> list[Unit]:
    """Return the units."""
    asked: dict[Loans, Path | None] = {STAND_IN: None}
    large = TABLES[-1]
    if settings.full and (file := settings.file(large.name, SUFFIXES)):
        asked[large] = file
    return [
        unit
        for table, path in asked.items()
        if settings.wants(table.name)
        for repeat in range(settings.runs(20 if path is None else 3, 1))
        for name, way in ways(False).items()
        for unit in units_of(
            measure,
            table=[table],
            file=[path],
            name=[name],
            parties=way.parties,
            fetch=[settings.full],
            repeat=[repeat],
        )
    ]


def measure(
    table: Loans, file: Path | None, name: str, parties: int, repeat: int, fetch: bool
) -> list[TidyRow]:
    """Train one way on one split; one row, in which `skipped` says why if it could not be."""
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
        **dict.fromkeys(("seconds", "bytes", "rounds", "accuracy", "auc", "skipped")),
    }
    cost = way.train(problem)
    if isinstance(cost, str):
        return [row | {"skipped": cost}]
    measured: dict[str, Value] = {
        "seconds": cost.seconds,
        "bytes": None if math.isnan(cost.sent) else cost.sent,
        "rounds": cost.rounds,
    }
    return [row | measured | auc_and_accuracy(cost.predicted, problem.labels(problem.test))]


# --- What is shown --------------------------------------------------------------------------------


def figures(rows: Sequence[TidyRow], out: Path) -> list[Path]:
    """Write what the rows show."""
    by = ("dataset", "method", "parties")
    cells = tidy.cells_of(rows, by, "accuracy", "auc", "seconds", "bytes", "rounds")
    page = tidy.write_page(out / "learning.md", _page(rows, cells))
    return [page, tidy.write_table(out / "learning.csv", cells)]


def _page(rows: Sequence[TidyRow], cells: Sequence[Cell]) -> list[str]:
    about = {row["method"]: {n: row[n] for n in ("protects", "others_see")} for row in rows}
    shown = [{**cell, **about[cell["method"]], "sent": _bytes(cell["bytes"])} for cell in cells]
    lines = tidy.prose("learning", steps=STEPS, rate=RATE, rounds=_ROUNDS, local_steps=_LOCAL_STEPS)
    for dataset in dict.fromkeys(str(row["dataset"]) for row in rows):
        of_table = (cell for cell in shown if cell["dataset"] == dataset)
        lines += tidy.prose("learning-table", of_table, dataset=dataset)
        lines += _same_splits([row for row in rows if row["dataset"] == dataset])
    untried = [row for row in rows if row["skipped"] != _ENOUGH]
    lines += tidy.not_measured(untried, "{method} of {dataset}: {skipped}")
    return [*lines, "", "Made by `cloister experiments run learning --full`."]


def _same_splits(rows: Sequence[TidyRow]) -> list[str]:
    """Return how accurate the model in the clear is on the splits on which shares were measured."""
    accuracy = [row for row in rows if row["accuracy"] is not None]
    shared = {r["repeat"]: r for r in accuracy if str(r["method"]).startswith("full MPC")}
    clear = {r["repeat"]: r for r in accuracy if r["method"] == "in the clear"}
    if not shared:
        return []
    apart = max(
        abs(tidy.number(clear[repeat], "accuracy") - tidy.number(row, "accuracy"))
        for repeat, row in shared.items()
    )
    return [
        "",
        f"Shares are measured on {len(shared)} splits. On these their accuracy and that in the "
        f"clear differ by at most {apart:.3f}.",
    ]


def _bytes(sent: MeanOf | None) -> str | None:
    if sent is None:
        return None
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if sent.mean >= size:
            return f"{sent.mean / size:.3g} {unit}"
    return f"{sent.mean:.0f} B"
