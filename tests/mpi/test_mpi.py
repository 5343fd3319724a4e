"""Silos as MPI ranks, really started with ``mpirun``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cloister.app.in_process import run_plan
from cloister.app.release import Release
from cloister.cli import main
from cloister.cli import mpi as ranks
from cloister.cli.over_files import run as run_command
from cloister.core.errors import PlanError
from cloister.data import read_source
from cloister.data.schema import Schema
from cloister.privacy.ledger import Ledger
from cloister.testing import ZeroNoise

HERE = Path(__file__).parent
SILOS = ("north", "east", "south")
FILES = [f"{silo}.csv" for silo in SILOS]
SCHEMA = """\
dataset = "ward"
unit = "row"
[[columns]]
name = "x"
type = "number"
min = -1
max = 1
[[columns]]
name = "y"
type = "number"
min = -1
max = 1
"""
JOB = [
    *("--mpi", *FILES, "--schema", "ward.toml", "--task", "fastlloyd", "--set", "n_clusters=2"),
    *("--set", "rounds=3", "--epsilon", "2", "--nominal-n", "600", "--out", "out"),
    *("--set", "estimate=false", "--cap-epsilon", "2"),
]
MPIRUN = Path(sys.executable).with_name("mpirun")
SECONDS = 600  # far more than a job of seconds takes, far less than for ever


def mpirun(folder: Path, *program: str, ranks: int = 4) -> subprocess.CompletedProcess[str]:
    """Start a program on all ranks; a job that hangs fails the test."""
    pytest.importorskip("mpi4py")
    if not MPIRUN.exists():
        pytest.skip("no mpirun beside this Python; pip install 'cloister[mpi]'")
    # A short folder for sockets, one thread a rank, and no trace of a job we may run under.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))
    }
    return subprocess.run(
        [
            *(str(MPIRUN), "-np", str(ranks), "--allow-run-as-root", "--oversubscribe"),
            *(sys.executable, *program),
        ],
        cwd=folder,
        env={**environment, "TMPDIR": "/tmp", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.fixture
def ward(tmp_path: Path) -> Path:
    """A folder of three silos and a schema."""
    rng = np.random.default_rng(0)
    for name in FILES:
        table = rng.normal([[-0.5, -0.5], [0.5, 0.5]], 0.1, (100, 2, 2)).reshape(-1, 2)
        np.savetxt(tmp_path / name, table, "%.4f", delimiter=",", header="x,y", comments="")
    (tmp_path / "ward.toml").write_text(SCHEMA)
    (tmp_path / "notes").mkdir()
    return tmp_path


def watched(
    folder: Path, fault: str, *more: str, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return mpirun(folder, *more, str(HERE / "watched_run.py"), "notes", fault, *JOB, *options)


def notes(folder: Path, kind: str, rank: int) -> bytes:
    path = folder / "notes" / f"{kind}-{rank}"
    return path.read_bytes() if path.exists() else b""


def test_the_conformance_suite_holds_over_mpi(tmp_path: Path) -> None:
    done = mpirun(tmp_path, "-m", "mpi4py", str(HERE / "conformance.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ok: ") == 5


def test_a_job_over_mpi_equals_the_job_in_one_process_bit_for_bit(ward: Path) -> None:
    done = watched(ward, "none", "-m", "mpi4py")
    assert done.returncode == 0, done.stderr
    result = Release.load(ward / "out" / "model.json")
    schema = Schema.load(ward / "ward.toml")
    records = {silo: read_source(ward / f"{silo}.csv", schema) for silo in SILOS}
    here = run_plan(result.plan, records, noise=ZeroNoise())
    assert result.to_dict() == here.to_dict()  # floats as they are, the history included

    # rank i read the i-th file and nothing else; the aggregator read none
    assert [notes(ward, "read", rank).split() for rank in range(4)] == [
        [],
        *([name.encode()] for name in FILES),
    ]
    # the silos have one key, which never came to the aggregator
    keys = {notes(ward, "key", rank) for rank in (1, 2, 3)}
    assert len(keys) == 1
    assert notes(ward, "key", 0) == b""
    assert keys.pop().removesuffix(b"\n") not in notes(ward, "received", 0)
    assert notes(ward, "received", 0) != b""


def test_each_silo_charges_its_own_ledger_and_is_refused_when_it_is_spent(ward: Path) -> None:
    command = ("-m", "mpi4py", "-m", "cloister", "run", *JOB, "--json")
    done = mpirun(ward, *command)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert "ZERO" not in document["noise"]
    assert document["survivors"] == [list(SILOS)] * 3
    assert sorted(path.name for path in (ward / "out").iterdir()) == sorted(
        [
            *("model.json", "model.json.sums", "centres.csv", "report.html"),
            *(f"ledger.{silo}.db{end}" for silo in SILOS for end in ("", ".head")),
        ]
    )
    for silo in SILOS:
        ledger = Ledger(ward / "out" / f"ledger.{silo}.db")
        assert 1.999 < ledger.spent("ward") <= 2
        assert [job.is_open for job in ledger.jobs()] == [False]
    again = mpirun(ward, *command, "--out", "again")
    assert again.returncode == 5
    assert "lifetime cap" in again.stderr


MPI4PY, BARE = ("-m", "mpi4py"), ()


@pytest.mark.parametrize(
    ("fault", "starter"),
    [
        pytest.param("raise", MPI4PY, id="mpi4py-raise"),
        pytest.param("die", BARE, id="bare-die"),
        pytest.param("die", MPI4PY, id="mpi4py-die", marks=pytest.mark.nightly),
        pytest.param("raise", BARE, id="bare-raise", marks=pytest.mark.nightly),
    ],
)
def test_a_rank_that_fails_ends_all_and_what_left_stays_charged(
    ward: Path, fault: str, starter: tuple[str, ...]
) -> None:
    begin = time.monotonic()
    done = watched(ward, fault, *starter)
    assert done.returncode != 0
    assert time.monotonic() - begin < SECONDS / 2
    assert not (ward / "out" / "model.json").exists()
    for silo in SILOS:  # the first round left from every silo
        path = ward / "out" / f"ledger.{silo}.db"
        (job,) = Ledger(path).jobs()
        assert 1 <= len(job.rounds) <= 2
        assert main(["budget", "close", str(path), job.job, "--quiet"]) == 0
        assert 0.5 < Ledger(path).spent("ward") < 2


def test_with_a_cache_the_result_is_the_same_and_no_file_is_left(ward: Path) -> None:
    (ward / "fast").mkdir()
    options = ("--cache-dir", "fast")
    assert watched(ward, "none", "-m", "mpi4py", options=options).returncode == 0
    result = Release.load(ward / "out" / "model.json")
    schema = Schema.load(ward / "ward.toml")
    records = {silo: read_source(ward / f"{silo}.csv", schema) for silo in SILOS}
    assert result.to_dict() == run_plan(result.plan, records, noise=ZeroNoise()).to_dict()
    assert not any((ward / "fast").iterdir())


def test_a_cache_that_is_not_there_ends_all_before_anything_is_reserved(ward: Path) -> None:
    done = mpirun(ward, "-m", "cloister", "run", *JOB, "--cache-dir", "absent")
    assert done.returncode == 4
    assert "cache_dir 'absent' cannot store the records" in done.stderr
    assert not list(ward.rglob("*.db"))


def test_a_file_that_is_not_there_ends_all_before_anything_is_reserved(ward: Path) -> None:
    (ward / "east.csv").unlink()
    done = mpirun(ward, "-m", "cloister", "run", *JOB)
    assert done.returncode == 4
    assert "cloister: file 'east.csv' does not exist." in done.stderr
    assert not list(ward.rglob("*.db"))


@pytest.mark.parametrize(
    "number",
    [1, pytest.param(3, marks=pytest.mark.nightly), pytest.param(5, marks=pytest.mark.nightly)],
)
def test_a_wrong_number_of_ranks_is_one_sentence(ward: Path, number: int) -> None:
    done = mpirun(ward, "-m", "mpi4py", "-m", "cloister", "run", *JOB, ranks=number)
    assert done.returncode == 3
    assert (
        done.stderr.count(
            f"mpi must have 4 ranks, one for the aggregator and one for each of 3 "
            f"silos, got {number}"
        )
        == 1
    )


def test_without_mpi4py_the_way_to_install_it_is_said(
    ward: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ward)
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert main(["run", *JOB]) == 3
    assert "pip install 'cloister[mpi]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("left_out", "sentence"),
    [(("--nominal-n", "600"), "--mpi needs --nominal-n"), (tuple(FILES[1:]), "two or more files")],
)
def test_what_mpi_needs_is_checked_before_a_plan(
    ward: Path, monkeypatch: pytest.MonkeyPatch, left_out: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.chdir(ward)
    parser = argparse.ArgumentParser()
    run_command.add_arguments(parser)
    args = parser.parse_args([word for word in JOB if word not in left_out])
    with pytest.raises(PlanError, match=sentence):
        ranks._agree(args)


def test_shares_are_multiplied_by_three_ranks_over_sealed_links(tmp_path: Path) -> None:
    done = mpirun(tmp_path, "-m", "mpi4py", str(HERE / "shares.py"), ranks=3)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["right"]
