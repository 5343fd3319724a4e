"""Workers of a Dask cluster: encrypted, and the same sums when one of them is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.protocol.https import Authority

from cloister import Budget, DataError, PlanError, Schema
from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.core.arrays import GridState, Integers, Records
from cloister.core.errors import PrivacyWarning
from cloister.data import read_source
from cloister.data.dask import DaskWorkers
from cloister.data.partitions import partitions_of, read_partitions
from cloister.data.schema import Column
from cloister.protocol.summing import LocalStep
from cloister.tasks import TASKS
from cloister.tasks.count import Count
from cloister.testing import ZeroNoise

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
cloudpickle = pytest.importorskip("cloudpickle")

pytestmark = pytest.mark.slow  # workers are processes, and threads here talk to them

SCHEMA = Schema(
    dataset="d",
    unit="row",
    columns=[Column(name=name, type="number", min=-1, max=1) for name in "ab"],
)
ABOUT: dict[str, Any] = {"budget": Budget(1.0, 1e-6), "nominal_n": 900}
FILES = 6


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskWorkers]:
    """A scheduler and two workers of one process each, which speak TLS alone."""
    folder = tmp_path_factory.mktemp("tls")
    pem = str(Authority(folder).issue("workers", hosts=("127.0.0.1",)))
    tls = {"ca-file": str(folder / "ca.pem")}
    for who in ("client", "scheduler", "worker"):
        tls |= {f"{who}.cert": pem, f"{who}.key": pem}
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests
    with (
        dask.config.set({f"distributed.comm.tls.{key}": value for key, value in tls.items()}),
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            protocol="tls://",
            security=distributed.Security(require_encryption=True),
            dashboard_address=None,
            silence_logs=50,
        ) as cluster,
    ):
        assert cluster.scheduler_address.startswith("tls://127.0.0.1:")
        yield DaskWorkers(cluster.scheduler_address)
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("silo")
    rng = np.random.default_rng(3)
    for i in range(FILES):
        table = rng.uniform(-1.2, 1.2, (100 + i, 2))
        pq.write_table(pa.table({"a": table[:, 0], "b": table[:, 1]}), folder / f"p{i}.parquet")
    return folder


@dataclass(frozen=True)
class Deadly(Count):
    """Counts, but the first of all calls with records kills the process it runs in."""

    flag: str = ""

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        if len(records):
            try:
                os.close(os.open(self.flag, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().contribute(t, state, records)


def test_a_job_over_workers_has_the_results_of_one_over_a_table(
    workers: DaskWorkers, folder: Path
) -> None:
    plan = make_plan(TASKS["fastlloyd"], SCHEMA, ["s"], **ABOUT, n_clusters=4, rounds=3)
    table = np.concatenate([np.asarray(pq.read_table(p)) for p in partitions_of(folder).values()])
    records = read_partitions(partitions_of(folder), SCHEMA, workers)
    found, expected = (
        run_plan(plan, {"s": source}, noise=ZeroNoise()).to_dict()["history"]
        for source in (records, read_source(table, SCHEMA))
    )
    assert found == expected
    before = list(workers._held.values())
    assert len(before) == FILES
    del records
    assert not workers._held, "nothing of a job that is over stays at workers"


@dataclass(frozen=True)
class Heavy(Count):
    """Counts each record five times."""

    def contribute(self, t: int, state: GridState, records: Records) -> Integers:
        return 5 * super().contribute(t, state, records)


def test_workers_find_that_a_kernel_disagrees_with_its_rows(
    workers: DaskWorkers, folder: Path
) -> None:
    plan = make_plan(Heavy, SCHEMA, ["s"], **ABOUT)
    records = read_partitions(partitions_of(folder), SCHEMA, workers)
    with pytest.warns(PrivacyWarning, match="disagreed with its rows"):
        done = run_plan(plan, {"s": records}, noise=ZeroNoise())
    assert done.results["count"].tolist() == [sum(100 + i for i in range(FILES))]


def test_a_worker_that_is_killed_in_the_middle_changes_no_byte(
    workers: DaskWorkers, folder: Path, tmp_path: Path
) -> None:
    records = read_partitions(partitions_of(folder), SCHEMA, workers)
    task = make_plan(Deadly, SCHEMA, ["s"], **ABOUT).task
    assert isinstance(task, Deadly)
    step = LocalStep(replace(task, flag=str(tmp_path / "killed")), 0, {}, 1)
    found, _ = records.checked(step)
    assert (tmp_path / "killed").exists(), "no worker was killed"
    rows = sum(100 + i for i in range(FILES))
    assert found.tobytes() == np.array([rows << task.frac_bits]).tobytes()
    assert records.checked(step)[0].tobytes() == found.tobytes()


def test_a_cluster_that_is_not_there_or_is_another_is_said(
    workers: DaskWorkers, folder: Path
) -> None:
    assert repr(workers).startswith("DaskWorkers('tls://127.0.0.1:")
    with dask.config.set({"distributed.comm.timeouts.connect": "0.2s"}):
        for address in ("tcp://127.0.0.1:9", workers._address.replace("tls", "tcp")):
            with pytest.raises(DataError, match=r"cannot connect to the scheduler at tcp://127"):
                read_partitions(partitions_of(folder), SCHEMA, DaskWorkers(address))


def test_without_dask_workers_say_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(PlanError, match=r"pip install 'cloister\[dask\]'"):
        read_partitions(partitions_of(folder), SCHEMA, DaskWorkers("tls://h:1"))
