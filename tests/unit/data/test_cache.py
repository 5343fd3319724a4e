"""Grid records in a file without a name: the same integers, no name, no room, no second reading."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cloister import DPKMeans
from cloister.app.job import make_plan
from cloister.core.errors import DataError, PlanError
from cloister.data import array_records, as_silos, read_source
from cloister.data.cache import GridCache
from cloister.data.schema import Column, Schema
from cloister.data.sources import open_source
from cloister.federation.settings import DataSettings
from cloister.federation.silo.site import Site
from cloister.hazmat.fixedpoint import Grid
from cloister.privacy.budget import Budget
from cloister.tasks.clustering.kmeans import FastLloyd

KEY = b"k" * 16
TWO = Schema(
    dataset="d",
    unit="row",
    columns=(
        Column(name="a", type="number", min=0, max=10),
        Column(name="b", type="number", min=-1, max=1),
    ),
)
GRID = Grid((0.0, -1.0), (10.0, 1.0), 16)
CELL = st.one_of(
    st.sampled_from([np.nan, np.inf, -np.inf, -0.0, 0.0, 10.0, -1.0, 1.0]), st.floats(-2, 12)
)
TABLES = st.integers(0, 12).flatmap(lambda n: arrays(np.float64, (n, 2), elements=CELL))


def parquet(path: Path, table: np.ndarray) -> Path:
    pq.write_table(pa.table({"a": table[:, 0], "b": table[:, 1]}), path)
    return path


def plain(table: np.ndarray) -> np.ndarray:
    """What is kept of a table, one record after the other."""
    kept = [row for row in table if np.isfinite(row).all()]
    rows = [[np.clip(a, 0.0, 10.0), np.clip(b, -1.0, 1.0)] for a, b in kept]
    return GRID.encode(np.array(rows).reshape(-1, 2)).astype(np.int32)


def stacked(records: Any) -> np.ndarray:
    return np.concatenate([*records, np.empty((0, records.n_features), np.int32)])


@given(TABLES, st.integers(1, 5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_cached_records_are_those_of_memory_and_of_a_plain_loop(
    tmp_path: Path, table: np.ndarray, chunk_rows: int
) -> None:
    file = parquet(tmp_path / "t.parquet", table)
    (folder := tmp_path / "cache").mkdir(exist_ok=True)
    options: dict[str, Any] = {"chunk_rows": chunk_rows, "cache_dir": folder}
    plainly = array_records(file, GRID, **options)
    assert np.array_equal(stacked(plainly), plain(table))
    by_schema = read_source(file, TWO), read_source(file, TWO, **options)
    for in_memory, records in ((array_records(file, GRID), plainly), by_schema):
        assert records.fingerprint(KEY) == in_memory.fingerprint(KEY)
        assert all(0 < len(c) <= chunk_rows and c.dtype == np.int32 for c in records)
        assert not any(chunk.flags.writeable for chunk in records)
        assert np.array_equal(stacked(records), stacked(in_memory))
        assert np.array_equal(stacked(records), stacked(records))
    assert not any(folder.iterdir())


def test_a_file_is_read_once_and_what_comes_later_does_not_count(tmp_path: Path) -> None:
    table = np.arange(20.0).reshape(10, 2) / 20
    file = parquet(tmp_path / "t.parquet", table)
    records = read_source(file, TWO, columns=["b"], memory_limit=0, cache_dir=tmp_path)
    again = read_source(file, TWO, columns=["b"], memory_limit=0)
    before = stacked(again)
    parquet(file, table + 0.5)
    with pytest.raises(DataError, match="changed while it was in use"):
        stacked(again)
    file.unlink()
    assert np.array_equal(stacked(records), before)


def test_the_file_has_no_name_is_the_owners_alone_and_goes_with_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[os.stat_result] = []
    real = tempfile.TemporaryFile

    def spy(*args: Any, **options: Any) -> Any:
        file = real(*args, **options)
        made.append(os.fstat(file.fileno()))
        return file

    def open_inodes() -> set[int]:
        found = set()
        for fd in os.listdir("/proc/self/fd"):
            try:
                found.add(os.stat(f"/proc/self/fd/{fd}").st_ino)
            except OSError:  # the folder's own, closed by now
                continue
        return found

    monkeypatch.setattr(tempfile, "TemporaryFile", spy)
    file = parquet(tmp_path / "t.parquet", np.zeros((10, 2)))
    (folder := tmp_path / "cache").mkdir()
    records = read_source(file, TWO, cache_dir=folder)
    assert not any(folder.iterdir())
    (status,) = made
    assert status.st_nlink == 0
    assert status.st_mode & 0o777 == 0o600
    if Path("/proc/self/fd").is_dir():
        assert status.st_ino in open_inodes()
        del records
        gc.collect()
        assert status.st_ino not in open_inodes()


def test_a_silo_reads_its_file_once_into_the_folder_of_its_settings(tmp_path: Path) -> None:
    parquet(tmp_path / "t.parquet", table := np.arange(20.0).reshape(10, 2) / 20)
    (folder := tmp_path / "cache").mkdir()
    data = DataSettings(file=tmp_path / "t.parquet", cache_dir=folder)
    settings = SimpleNamespace(data=data, ordered_records=True)
    site = Site(settings, TWO, None, None)  # type: ignore[arg-type]  # it only reads
    about: dict[str, Any] = {"n_clusters": 2, "rounds": 1, "columns": ["b"]}
    plan = make_plan(FastLloyd, TWO, ("s", "t"), budget=Budget(1.0, 1e-6), nominal_n=9, **about)
    records = site.records(plan)
    (tmp_path / "t.parquet").unlink()
    assert np.array_equal(stacked(records), plain(table)[:, 1:])
    assert not any(folder.iterdir())
    folder.rmdir()
    parquet(tmp_path / "t.parquet", table)
    with pytest.raises(DataError, match="cannot store the records"):
        site.records(plan)


@pytest.mark.filterwarnings("ignore::cloister.core.errors.UncountedWarning")
def test_records_that_were_read_are_a_source_of_their_contract_only(tmp_path: Path) -> None:
    file = parquet(tmp_path / "t.parquet", np.arange(20.0).reshape(10, 2) / 20)
    records = read_source(file, TWO, cache_dir=tmp_path)
    file.unlink()
    assert read_source(records, TWO) is records
    assert as_silos(records) == as_silos([records]) == [records]
    model = DPKMeans(2, epsilon=1.0, bounds=TWO, nominal_n=10).fit(records)
    assert model.cluster_centers_.shape == (2, 2)
    for options in ({"frac_bits": 12}, {"columns": ["b"]}):
        with pytest.raises(PlanError, match="must be read by the contract"):
            read_source(records, TWO, **options)


def test_a_table_in_memory_takes_no_file(tmp_path: Path) -> None:
    assert len(stacked(array_records(np.zeros((3, 2)), GRID, cache_dir=tmp_path / "absent"))) == 3


def test_a_folder_that_cannot_hold_records_is_refused_before_a_row_is_read(tmp_path: Path) -> None:
    file = parquet(tmp_path / "t.parquet", np.zeros((3, 2)))
    with pytest.raises(DataError, match=r"cache_dir .*absent.* cannot store .* give a folder"):
        read_source(file, TWO, cache_dir=tmp_path / "absent")
    with pytest.raises(DataError, match="cannot store the records: Not a directory"):
        read_source(file, TWO, cache_dir=file)


def test_a_disk_takes_records_in_parts_and_says_when_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Disk:
        """A file that takes at most 5 bytes at a time, and `room` in all."""

        def __init__(self, room: int) -> None:
            self.file, self.room = real(dir=tmp_path, buffering=0), room

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, data: memoryview) -> int:
            if self.room < 5:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= 5
            written: int = self.file.write(data[:5])
            return written

    real = tempfile.TemporaryFile
    chunks = [np.arange(6, dtype=np.int32).reshape(3, 2), np.full((2, 2), 7, dtype=np.int32)]
    disks = iter([Disk(1000), Disk(30)])
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: next(disks))
    assert np.array_equal(GridCache(tmp_path).filled(chunks, 2), np.concatenate(chunks))
    with pytest.raises(DataError, match=r"cannot store the records: No space left .* 4 bytes"):
        GridCache(tmp_path).filled(chunks, 2)


def test_a_disk_that_is_too_small_is_known_before_a_row_of_parquet_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, seen = parquet(tmp_path / "t.parquet", np.zeros((10, 2))), list[int]()
    for free, fits in ((80, True), (79, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        if fits:
            read_source(file, TWO, cache_dir=tmp_path, on_rows=seen.append)
            assert seen == [10]
            continue
        with pytest.raises(DataError, match=r"cannot store the records: No space left .* 4 bytes"):
            read_source(file, TWO, cache_dir=tmp_path, on_rows=seen.append)
        assert seen == [10]


def test_the_owner_may_see_how_many_rows_were_read(tmp_path: Path) -> None:
    table = np.zeros((10, 2))
    table[::2] = np.nan  # such a row is read all the same
    for source in (
        parquet(tmp_path / "t.parquet", table),
        pa.table({"a": table[:, 0], "b": [1] * 10}),
    ):
        seen: list[int] = []
        read_source(source, TWO, chunk_rows=4, on_rows=seen.append)
        assert seen == [4, 8, 10]


def test_memory_does_not_grow_with_a_parquet_file(tmp_path: Path) -> None:
    table = np.random.default_rng(0).random((600_000, 2))  # 9.6 MB, which no codec makes smaller
    pq.write_table(
        pa.table({"a": table[:, 0], "b": table[:, 1]}),
        file := tmp_path / "t.parquet",
        row_group_size=20_000,
        compression="none",
        use_dictionary=False,
    )
    pool, most, chunks = pa.default_memory_pool(), 0, open_source(file, ("a", "b"), None).chunks
    before = pool.bytes_allocated()
    for _ in chunks(5_000):
        most = max(most, pool.bytes_allocated() - before)
    assert most < 1_200_000  # a row group has 320,000 bytes, a batch of Arrow's own size a million
