"""The whole suite of the service runs on SQLite and on a throw-away PostgreSQL server."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cloister.core.randomness import new_nonce


def _missing(why: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"PostgreSQL is needed in CI: {why}")
    pytest.skip(f"PostgreSQL cannot be used here: {why}")


def _find() -> str | None:
    """Return the folder of the server's programs."""
    if found := shutil.which("initdb"):
        return str(Path(found).resolve().parent)
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return str(folders[-1].parent) if folders else None


def _programs(shared: Path) -> Path:
    with (shared / "postgresql.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two workers cannot install at once
        found = _find()
        if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
            for command in (["update"], ["install", "-y", "--no-install-recommends", "postgresql"]):
                subprocess.run(
                    ["apt-get", "-qq", *command],
                    capture_output=True,
                    check=False,
                    env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                )
            found = _find()
    if found is None:
        _missing("initdb was not found and could not be installed")
    return Path(str(found))


def _free_port() -> int:
    """Return a port below those that the system gives away by itself."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on loopback that asks for a password, owned by a user who is not root."""
    programs = _programs(tmp_path_factory.getbasetemp().parent)
    # the unprivileged user must reach it
    folder = Path("/tmp") / f"cloister-pg-{new_nonce()[:12]}"
    folder.mkdir(mode=0o700)
    as_user: list[str] = []
    if os.geteuid() == 0:
        if not shutil.which("setpriv"):
            _missing("setpriv was not found, and the server refuses to run as root")
        os.chown(folder, 65534, 65534)
        as_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    data, password = folder / "data", new_nonce()
    (folder / "password").write_text(password)
    (folder / "password").chmod(0o644)  # the folder is closed to others
    environment = {**os.environ, "HOME": str(folder)}
    subprocess.run(
        [
            *as_user,
            programs / "initdb",
            "-D",
            data,
            "-U",
            "cloister",
            "-A",
            "scram-sha-256",
            "--pwfile",
            folder / "password",
            "-N",
        ],
        check=True,
        capture_output=True,
        env=environment,
        cwd=folder,
    )
    control = [*as_user, programs / "pg_ctl", "-D", data, "-w", "-t", "300"]
    for _ in range(5):  # another worker may take the port before the server does
        port = _free_port()
        settings = f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories= -N 20"
        start = subprocess.run(
            [*control, "-l", folder / "log", "-o", settings, "start"],
            check=False,
            capture_output=True,
            env=environment,
            cwd=folder,
        )
        if start.returncode == 0:
            break
    assert start.returncode == 0, (folder / "log").read_text()
    try:
        yield f"cloister:{password}@127.0.0.1:{port}"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], capture_output=True, cwd=folder)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def new_database(postgresql: str) -> Callable[[], str]:
    """A function that makes an empty database on the server and returns its URL."""
    return lambda: _new_database(postgresql)


def _new_database(server: str) -> str:
    import psycopg

    name = f"t{new_nonce()[:12]}"
    with psycopg.connect(f"postgresql://{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")  # hex digits only
    return f"postgresql+psycopg://{server}/{name}"


def _empty(url: str) -> None:
    """Make a database as new: a new one is 7 MB in 300 files, on a disk that others wait for."""
    import psycopg

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


@pytest.fixture(scope="session")
def spare_databases() -> list[str]:
    """URLs of databases that a test had and that are empty again."""
    return []


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'coordinator.db'}"
        return
    spare: list[str] = request.getfixturevalue("spare_databases")
    url = spare.pop() if spare else str(request.getfixturevalue("new_database")())
    yield url
    _empty(url)
    spare.append(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """An empty SQLite database, for laws that no database can change."""
    return f"sqlite:///{tmp_path / 'coordinator.db'}"


@pytest.fixture
def execute() -> Callable[[str, str], None]:
    """A function that runs a statement on a database behind the store's back."""
    import sqlalchemy as sa

    def run(url: str, statement: str) -> None:
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql(statement)
        engine.dispose()

    return run
