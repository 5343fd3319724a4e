"""Records in partitions: the same sums as in one table, each partition once, whoever is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from cloister import Budget, DataError, PlanError, Schema
from cloister.app.in_process import run_plan
from cloister.app.job import make_plan
from cloister.core.arrays import GridState, Integers
from cloister.core.errors import LocalProtocolError, PrivacyWarning
from cloister.data import read_source
from cloister.data.dask import checked_address
from cloister.data.partitions import PartitionedRecords, partitions_of, read_partitions
from cloister.data.schema import Column
from cloister.federation.settings import DataSettings
from cloister.federation.silo.site import Site
from cloister.protocol.summing import LocalStep, threads
from cloister.tasks import TASKS
from cloister.tasks.count import Count
from cloister.testing import ZeroNoise

SCHEMA = Schema(
    dataset="d",
    unit="row",
    columns=[Column(name=name, type="number", min=-1, max=1) for name in "ab"],
)
KEY = b"k" * 16
PLAN = make_plan(
    TASKS["fastlloyd"],
    SCHEMA,
    ["silo-0"],
    budget=Budget(1.0, 1e-6),
    nominal_n=900,
    n_clusters=4,
    rounds=3,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five files of a silo, one without a row and one in a folder of its own."""
    folder = tmp_path_factory.mktemp("silo")
    (folder / "later").mkdir()
    rng = np.random.default_rng(3)
    names = ("p0.parquet", "p1.parquet", "p2.parquet", "p3.parquet", "later/p4.parquet")
    for name, rows in zip(names, (300, 1, 0, 401, 198), strict=True):
        table = rng.uniform(-1.2, 1.2, (rows, 2))
        pq.write_table(pa.table({"a": table[:, 0], "b": table[:, 1]}), folder / name)
    (folder / "_SUCCESS").touch()
    return folder


def whole(folder: Path) -> np.ndarray:
    return np.concatenate([np.asarray(pq.read_table(p)) for p in partitions_of(folder).values()])


class Here:
    """Workers that are this process, and what they are told to do wrong."""

    def __init__(self, change: Callable[[list[Any]], list[Any]] = lambda answers: answers) -> None:
        self.change = change
        self.labels: list[str] = []

    def answers(self, label: str, reads: Mapping[str, Any], function: Any) -> Iterator[Any]:
        self.labels.append(label)
        yield from self.change([(name, function(reads[name]())) for name in reads])


def partitioned(folder: Path, workers: Any, **part: Any) -> PartitionedRecords:
    return read_partitions(partitions_of(folder), SCHEMA, workers, **part)


def history(records: Any) -> Any:
    return run_plan(PLAN, {"silo-0": records}, noise=ZeroNoise()).to_dict()["history"]


def test_a_job_has_the_same_results_over_partitions(folder: Path) -> None:
    workers = Here(lambda answers: answers[::-1])
    records = partitioned(folder, workers)
    assert repr(records) == "PartitionedRecords(n_features=2)"
    expected = history(read_source(whole(folder), SCHEMA))
    assert history(records) == expected
    assert workers.labels == ["read", "fastlloyd-0", "fastlloyd-1", "fastlloyd-2"]
    stacked = np.concatenate(list(records))
    assert (stacked == np.concatenate(list(read_source(whole(folder), SCHEMA)))).all()


def test_a_fingerprint_is_of_records_partitions_and_key(folder: Path, tmp_path: Path) -> None:
    print_of = partitioned(folder, Here()).fingerprint(KEY)
    assert partitioned(folder, Here()).fingerprint(KEY) == print_of
    assert partitioned(folder, Here(), columns=["a"]).fingerprint(KEY) == print_of
    assert partitioned(folder, Here()).fingerprint(b"other" * 4) != print_of
    paths = partitions_of(folder)
    renamed = {f"x{name}": path for name, path in paths.items()}
    fewer = {name: paths[name] for name in list(paths)[1:]}
    for other in (renamed, fewer):
        assert read_partitions(other, SCHEMA, Here()).fingerprint(KEY) != print_of


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda answers: answers[1:], "has no answer, but each must count once"),
        (lambda answers: [*answers, answers[0]], "answered twice"),
        (lambda answers: [*answers, ("p9", answers[0][1])], "does not belong to this job"),
    ],
)
def test_a_partition_that_does_not_count_once_stops_the_round(
    folder: Path, change: Callable[[list[Any]], list[Any]], why: str
) -> None:
    workers = Here()
    records = partitioned(folder, workers)
    workers.change = change
    with pytest.raises(DataError, match=why):
        history(records)


def test_a_partition_that_changed_stops_the_round(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    records = partitioned(tmp_path, Here())
    pq.write_table(pa.table({"a": [0.5], "b": [0.5]}), tmp_path / "p1.parquet")
    for use in (history, list):  # by workers, and read in this process
        with pytest.raises(DataError, match=r"'p1.parquet' changed while it was in use"):
            use(records)


@dataclass(frozen=True)
class Heavy(Count):
    """Counts a record of the third partition five times."""

    def contribute(self, t: int, state: GridState, records: Any) -> Integers:
        return super().contribute(t, state, records) * (5 if len(records) == 198 else 1)


def test_a_kernel_that_fails_in_one_partition_is_left_by_all(folder: Path) -> None:
    workers = Here()
    plan = make_plan(Heavy, SCHEMA, ["silo-0"], budget=Budget(1.0, 1e-6), nominal_n=9)
    silos = {"silo-0": partitioned(folder, workers)}
    with pytest.warns(PrivacyWarning, match="disagreed with its rows"):
        done = run_plan(plan, silos, noise=ZeroNoise())
    assert done.results["count"].tolist() == [900]
    assert workers.labels == ["read", "count-0", "count-0"]  # by the kernel, then by rows


def test_what_a_worker_says_of_its_errors_repeats_no_record(folder: Path, tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Loud(Count):
        def contribute(self, t: int, state: GridState, records: Any) -> Integers:
            raise ValueError(f"row {records.tolist()}")

    records = partitioned(folder, Here())
    plan = make_plan(Loud, SCHEMA, ["silo-0"], budget=Budget(1.0, 1e-6), nominal_n=9)
    step = LocalStep(plan.task, 0, {}, plan.length(0))
    assert "state" not in repr(step)
    with pytest.raises(ValueError, match="row"):  # of no row at all, at home
        step.total([])
    with pytest.raises(DataError, match=r"cannot be used: a worker raised a ValueError\.$"):
        records._each("sum", lambda held: step.total(held.chunks))
    (tmp_path / "p.parquet").write_text("no parquet")
    with pytest.raises(DataError, match=r"partition 'p.parquet' cannot be used: "):
        partitioned(tmp_path, Here())


def test_what_cannot_be_partitions_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="at least one"):
        read_partitions({}, SCHEMA, Here())
    with pytest.raises(DataError, match="workers need a folder of Parquet files"):
        partitions_of(folder / "p0.parquet")
    of_persons = Schema(dataset="d", unit="who", max_rows=2, columns=SCHEMA.columns)
    with pytest.raises(PlanError, match="limits the rows of each 'who'"):
        read_partitions(partitions_of(folder), of_persons, Here())


@pytest.mark.parametrize(
    "address", ["tls://h:8786", "tcp://localhost:1", "tcp://127.0.0.1:1", "tls://10.0.0.7:1"]
)
def test_an_address_of_workers_is_encrypted_or_here(address: str) -> None:
    assert checked_address(address) == address
    assert DataSettings(file="x", workers=address).workers == address


@pytest.mark.parametrize(
    "address",
    [
        *("tcp://h:8786", "tcp://10.0.0.7:1", "ucx://localhost:1", "localhost:1", "tls://h"),
        *("", "tls:", "tcp://127.0.0.1.evil.org:1", "tcp://1.2:1", "tls://h:x", "tls://[h:1"),
    ],
)
def test_another_address_of_workers_is_refused(address: str) -> None:
    with pytest.raises(PlanError, match="must be tls://HOST:PORT"):
        checked_address(address)
    with pytest.raises((ValidationError, PlanError)):
        DataSettings(file="x", workers=address)


@pytest.mark.parametrize(
    "others", [{"baskets": "lines"}, {"cache_dir": "c"}, {"file": None, "url": "u", "query": "q"}]
)
def test_workers_need_a_folder(others: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"must have a folder of Parquet files"):
        DataSettings(**{"file": "x", "workers": "tls://h:1", **others})


def test_a_silo_has_its_workers_read_the_columns_of_a_plan(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Here()
    monkeypatch.setattr("cloister.federation.silo.site.DaskWorkers", lambda address: asked)
    settings = SimpleNamespace(data=DataSettings(file=folder, workers="tls://h:1"))
    site = Site(settings, SCHEMA, None, None)  # type: ignore[arg-type]  # as much as it reads
    found = history(site.records(PLAN))
    assert found == history(read_source(whole(folder), SCHEMA))
    assert len(asked.labels) == 1 + PLAN.rounds


# threads of this process --------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["1", "3", "0", "x", "2,1"])
def test_threads_change_no_sum(monkeypatch: pytest.MonkeyPatch, asked: str, folder: Path) -> None:
    table = whole(folder)
    expected = history(read_source(table, SCHEMA))
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)), raising=False)
    monkeypatch.setattr("cloister.protocol.summing.instruction_set", lambda: "avx2")
    assert threads() == {"1": 1, "3": 3, "0": 1, "x": 4, "2,1": 2}[asked]
    assert history(read_source(table, SCHEMA, chunk_rows=7)) == expected
    monkeypatch.setattr("cloister.protocol.summing.instruction_set", lambda: "numpy")
    assert threads() == 1


def test_an_error_in_a_thread_is_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloister.protocol.summing.threads", lambda: 2)
    count = make_plan(Count, SCHEMA, ["silo-0"], budget=Budget(1.0, 1e-6), nominal_n=9).task
    step = LocalStep(count, 0, {}, 7)  # a plan that is not right
    chunks = [np.zeros((2, 2), dtype=np.int32)] * 9
    with pytest.raises(LocalProtocolError, match="the plan has length 7"):
        step.total(chunks)
    with pytest.raises(LocalProtocolError, match="the plan has length 7"):
        step.total([])
