"""Every task over mutual TLS with three agents gives bit for bit what it gives in one process."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from cloister.data import read_source
from cloister.jobs import JobResult, make_plan, run_plan
from cloister.local import LocalFederation
from cloister.privacy.budget import Budget
from cloister.schema import schema_of
from cloister.tasks import TASKS
from cloister.tasks.base import PublicColumn
from cloister.tasks.examples import EXAMPLES
from cloister.testing import ZeroNoise, zero_noise_command

SILOS = ("north", "east", "south")
BY_COLUMNS: dict[tuple[PublicColumn, ...], list[str]] = defaultdict(list)
for _name, _case in EXAMPLES.items():
    BY_COLUMNS[_case.columns].append(_name)


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
        found[silo] = folder / f"{silo}.csv"
        found[silo].write_text("\n".join([",".join(c.name for c in columns), *rows, ""]))
    return found


@pytest.mark.parametrize("columns", list(BY_COLUMNS), ids=lambda c: "-".join(p.name for p in c))
def test_a_task_over_the_network_gives_what_it_gives_in_one_process(
    columns: tuple[PublicColumn, ...], tmp_path: Path
) -> None:
    schema, files = schema_of(columns), tables(tmp_path, columns)
    names = BY_COLUMNS[columns]
    policies = {silo: {"tasks": names} for silo in SILOS}
    records = {silo: read_source(path, schema) for silo, path in files.items()}
    with LocalFederation(
        tmp_path / "f",
        schema,
        files,
        policies=policies,
        command=zero_noise_command,
        cap_epsilon=100.0,
    ) as federation:
        federation.start()
        federation.wait_connected()
        jobs = {}
        for name in names:
            profile = "pairwise" if "pairwise" in TASKS[name].profiles else "group"
            plan = make_plan(
                TASKS[name],
                schema,
                SILOS,
                budget=Budget(1.0, 1e-6),
                nominal_n=120,
                profile=profile,
                fingerprints=[federation.fingerprints[silo] for silo in SILOS],
                **EXAMPLES[name].options,
            )
            jobs[federation.propose(plan)] = plan
        for job, plan in jobs.items():
            shown = federation.wait_job(job)
            assert shown["state"] == "done", (plan.task.name, shown)
            federation.wait_results(job)
            local = run_plan(plan, records, noise=ZeroNoise())
            for silo in SILOS:
                result = JobResult.load(federation.results(silo, job))
                assert result.results.keys() == local.results.keys()
                for key, value in local.results.items():
                    np.testing.assert_array_equal(result.results[key], value, err_msg=key)
