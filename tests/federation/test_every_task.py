"""Every private task over mutual TLS gives bit for bit what it gives in one process; no other runs.

A coordinator and three agents, each a process. The tasks that share columns share a federation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.app.release import Release
from cloister.data import read_source
from cloister.data.schema import Schema, schema_of
from cloister.federation.local import LocalFederation
from cloister.privacy.budget import Budget
from cloister.protocol.plan import Plan
from cloister.protocol.task import PublicColumn
from cloister.tasks import TASKS
from cloister.tasks.examples import Example, example_of
from cloister.testing import ZeroNoise, zero_noise_command

pytestmark = pytest.mark.usefixtures("forked_parties")

SILOS = ("north", "east", "south")
CASES: dict[str, Example] = {name: example_of(task) for name, task in TASKS.items()}
BY_COLUMNS: dict[tuple[PublicColumn, ...], list[str]] = defaultdict(list)
for _name, _case in CASES.items():
    if TASKS[_name].private:
        BY_COLUMNS[_case.columns].append(_name)
NOT_PRIVATE = [name for name, task in TASKS.items() if not task.private]


def tables(folder: Path, columns: tuple[PublicColumn, ...]) -> dict[str, Path]:
    """Write tables with a missing value, an unknown word and an empty line in them."""
    rng = np.random.default_rng(5)
    found = {}
    for silo in SILOS:
        cells = [
            rng.choice(column.categories, 40)
            if column.categories
            else rng.uniform(column.low, column.high, 40).round(3).astype(str)
            for column in columns
        ]
        rows = [",".join(row) for row in zip(*cells, strict=True)]
        rows[3] = ",".join(["no such word"] * len(columns))
        rows[7] = "," * (len(columns) - 1)
        lacking = [j for j, column in enumerate(columns) if column.incomplete]
        for row in range(10, 20) if lacking else ():
            cells = rows[row].split(",")
            cells[lacking[row % len(lacking)]] = ""
            rows[row] = ",".join(cells)
        found[silo] = folder / f"{silo}.csv"
        found[silo].write_text("\n".join([",".join(c.name for c in columns), *rows, ""]))
    return found


@contextmanager
def federation_of(
    folder: Path, schema: Schema, files: dict[str, Path], tasks: list[str]
) -> Iterator[LocalFederation]:
    """Start silos whose owners allow some tasks, and wait until all are connected."""
    with LocalFederation(
        folder,
        schema,
        files,
        policies={silo: {"tasks": tasks} for silo in SILOS},
        command=zero_noise_command,
        cap_epsilon=100.0,
    ) as federation:
        federation.start()
        federation.wait_connected()
        yield federation


def plan_of(name: str, prints: Mapping[str, str]) -> Plan:
    """Plan the task's own case, with pairwise masks where its noise can be shared."""
    task, case = TASKS[name], CASES[name]
    design = partial(
        make_plan,
        task,
        schema_of(case.columns),
        SILOS,
        budget=Budget(1.0, 1e-6) if task.private else None,
        nominal_n=120,
        min_silos=3,
        fingerprints=[prints[silo] for silo in SILOS],
        **case.options,
    )
    plan = design(profile="group")
    shared = plan.task.mechanism == "gaussian" and "pairwise" in task.profiles
    return design(profile="pairwise") if shared else plan


@pytest.mark.parametrize("columns", list(BY_COLUMNS), ids=lambda c: "-".join(p.name for p in c))
def test_a_task_over_the_network_gives_what_it_gives_in_one_process(
    columns: tuple[PublicColumn, ...], tmp_path: Path
) -> None:
    schema, files = schema_of(columns), tables(tmp_path, columns)
    records = {silo: read_source(path, schema) for silo, path in files.items()}
    with federation_of(tmp_path / "f", schema, files, BY_COLUMNS[columns]) as federation:
        plans = [plan_of(name, federation.fingerprints) for name in BY_COLUMNS[columns]]
        jobs = {federation.propose(plan): plan for plan in plans}
        for job, plan in jobs.items():
            shown = federation.wait_job(job, seconds=1200)  # all jobs run at once
            assert shown["state"] == "done", (plan.task.name, shown)
            federation.wait_results(job)
            local = run_plan(plan, records, noise=ZeroNoise())
            for silo in SILOS:
                result = Release.load(federation.results(silo, job))
                assert result.results.keys() == local.results.keys()
                for key, value in local.results.items():
                    np.testing.assert_array_equal(result.results[key], value, err_msg=key)


def test_a_task_that_is_not_private_is_declined_by_every_silo_that_allows_its_name(
    tmp_path: Path,
) -> None:
    (columns,) = {CASES[name].columns for name in NOT_PRIVATE}
    schema, files = schema_of(columns), tables(tmp_path, columns)
    with federation_of(tmp_path / "f", schema, files, NOT_PRIVATE) as federation:
        # The first decline ends a job, so each silo is asked alone.
        for name, asked in product(NOT_PRIVATE, SILOS):
            for silo in SILOS:
                if silo != asked and silo in federation.processes:
                    federation.kill(silo)
            if asked not in federation.processes:
                federation.start(asked)
            federation.wait_connected(asked)
            job = federation.propose(plan_of(name, federation.fingerprints))
            shown = federation.wait_job(job)
            assert shown["state"] == "declined"
            reason = f"task {name!r} is not private; only private jobs are allowed here."
            decisions = {said["silo"]: said["reason"] for said in shown["decisions"]}
            assert decisions == {asked: reason}
            assert not any(federation.results(silo, job).exists() for silo in SILOS)
