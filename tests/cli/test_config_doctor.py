"""``cloister config`` and ``cloister doctor``: what would stop a party is found, with a way out."""

from __future__ import annotations

import http.server
import json
import shutil
import signal
import socket
import sqlite3
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from time import time
from types import SimpleNamespace
from typing import Any

import pytest

from cloister import Budget, Ledger, Schema
from cloister.cli import checks, doctor, main
from cloister.cli.config import template
from cloister.core.compiled import instruction_set
from cloister.federation.local import COORDINATOR, LocalFederation
from cloister.federation.pki import (
    Authority,
    KeyFolder,
    install,
    local_federation,
    make_request,
    server_context,
)
from cloister.federation.settings import ROLES
from cloister.privacy.events import GaussianEvent
from cloister.privacy.filter import Split
from cloister.protocol.plan import PROTOCOL_VERSION

Said = pytest.CaptureFixture[str]
SECRET = "hunter2"
SILOS = ("a", "b", "c")
COLUMNS = '[[columns]]\nname = "x"\ntype = "number"\nmin = 0\nmax = 1\n'


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine take its time."""
    monkeypatch.setattr(doctor, "_TIMEOUT", 120.0)


@dataclass
class Coordinator:
    """An HTTPS server whose answers a test decides on."""

    status: int = 200
    ahead: float | None = 0.0  # of our clock, seconds; None tells no time
    now: Callable[[], float] = time
    port: int = 0


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return local_federation(tmp_path_factory.mktemp("f"), SILOS, ("ann",), ("localhost",))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return local_federation(tmp_path_factory.mktemp("g"), SILOS, ("ann",), ("localhost",))


def serving(context: ssl.SSLContext, told: Coordinator) -> http.server.ThreadingHTTPServer:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/healthz"
            self.send_response_only(told.status)
            if told.ahead is not None:
                self.send_header("Date", formatdate(told.now() + told.ahead, usegmt=True))
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        def finish_request(self, request: Any, address: Any) -> None:
            with context.wrap_socket(request, server_side=True) as wrapped:
                super().finish_request(wrapped, address)

        def handle_error(self, *_: Any) -> None:
            pass

    server = Server(("127.0.0.1", 0), Answer)
    told.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


@pytest.fixture
def there(keys: dict[str, Path]) -> Iterator[Coordinator]:
    told = Coordinator()
    server = serving(server_context(KeyFolder(keys["coordinator"])), told)
    yield told
    server.shutdown()
    server.server_close()


@pytest.fixture
def home(tmp_path: Path, keys: dict[str, Path], there: Coordinator) -> Callable[..., str]:
    """A function that writes a silo's folder, with some settings changed, and names its file."""
    shutil.copytree(keys["a"], tmp_path / "keys")
    (tmp_path / "schema.toml").write_text(f'dataset = "ward"\nunit = "row"\n{COLUMNS}')
    (tmp_path / "data.csv").write_text("x\n0.5\n")
    pins = {name: KeyFolder(path).identity().fingerprint for name, path in keys.items()}

    def write(**changes: Any) -> str:
        values: dict[str, Any] = {
            "role": "silo",
            "name": "a",
            "coordinator": f"https://localhost:{there.port}",
            "cap_epsilon": 3,
            "data": {"file": "data.csv"},
            "policy": {"tasks": ["count"], "max_epsilon_per_job": 1.0},
            "peers": {name: pins[name] for name in SILOS},
            "analysts": {"ann": pins["ann"]},
            **changes,
        }
        lines = []
        for key, value in values.items():
            if isinstance(value, dict):
                inner = (f"{json.dumps(k)} = {json.dumps(v)}" for k, v in value.items())
                lines.append(f"{key} = {{ {', '.join(inner)} }}")
            elif value is not None:
                lines.append(f"{key} = {json.dumps(value)}")
        (tmp_path / "party.toml").write_text("\n".join(lines) + "\n")
        return str(tmp_path / "party.toml")

    return write


def asked(capsys: Said, *command: str) -> tuple[int, dict[str, tuple[str, str, str]]]:
    """Return the exit code and the checks by name; a name's worst state counts."""
    capsys.readouterr()
    code = main([*command, "--json"])
    shown = capsys.readouterr().out
    assert SECRET not in shown
    checks: dict[str, tuple[str, str, str]] = {}
    for check in json.loads(shown)["checks"]:
        assert (check["way_out"] == "") == (check["state"] == "ok")
        assert "\n" not in check["found"]
        if checks.get(check["name"], ("ok",))[0] == "ok":
            checks[check["name"]] = (check["state"], check["found"], check["way_out"])
    failed = any(state == "fail" for state, _, _ in checks.values())
    assert code == (3 if failed else 0)
    return code, checks


def checked(capsys: Said, file: str) -> dict[str, tuple[str, str, str]]:
    return asked(capsys, "config", "check", file)[1]


def examined(capsys: Said, file: str) -> dict[str, tuple[str, str, str]]:
    return asked(capsys, "doctor", "--config", file)[1]


# config -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_init_writes_the_template_and_replaces_nothing(
    role: str, tmp_path: Path, capsys: Said
) -> None:
    file = tmp_path / "party.toml"
    assert main(["config", "init", "--role", role, "--out", str(file)]) == 0
    assert file.read_text() == template(role)
    assert f"cloister config check {file}" in capsys.readouterr().out
    file.write_text("mine")
    assert main(["config", "init", "--role", role, "--out", str(file)]) == 3
    assert "exists already and is not replaced" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert main(["config", "init", "--role", role, "--out", str(tmp_path / "no" / "x")]) == 4
    capsys.readouterr()
    assert main(["config", "init", "--role", role]) == 0
    assert capsys.readouterr().out == template(role)
    assert main(["config", "init", "--role", role, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == template(role)
    assert main(["config", "init", "--role", role, "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_check_says_what_is_set_and_where_it_came_from(
    home: Callable[..., str], capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOISTER_PROXY", f"http://u:{SECRET}@proxy:1")
    file = home()
    assert main(["config", "check", file, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = {row["setting"]: (row["value"], row["from"]) for row in told["settings"]}
    assert told["role"] == "silo"
    assert rows["name"] == ("a", "file")
    assert rows["policy.tasks"] == ("count", "file")
    assert rows["policy.standing"] == ("False", "default")
    assert rows["proxy"] == ("(not shown)", "CLOISTER_PROXY")
    assert rows["ledger"] == (str(Path(file).parent / "ledger.db"), "default")
    assert {check["state"] for check in told["checks"]} == {"ok"}
    assert main(["config", "check", file]) == 0
    said = capsys.readouterr().out
    assert "(not shown)" in said
    assert SECRET not in said
    assert said.endswith("No check failed.\n")


def test_a_configuration_that_breaks_a_rule_ends_with_3(
    home: Callable[..., str], capsys: Said
) -> None:
    assert main(["config", "check", home(cap_epsilon=-1)]) == 3
    assert "'cap_epsilon' must be greater than 0" in capsys.readouterr().err
    assert main(["doctor", "--config", home(round=1)]) == 3


def test_a_secret_that_others_may_read_fails(home: Callable[..., str], capsys: Said) -> None:
    file = home()
    folder = Path(file).parent
    (folder / "keys" / "identity.key").chmod(0o640)
    state, found, way_out = checked(capsys, file)["file modes"]
    assert state == "fail"
    assert str(folder / "keys" / "identity.key") in found
    assert "chmod 600" in way_out
    (folder / "keys" / "identity.key").chmod(0o600)
    (folder / "url").write_text(f"postgresql://u:{SECRET}@127.0.0.1:9/d")
    (folder / "url").chmod(0o644)
    file = home(data={"url_file": "url", "query": "SELECT x FROM y"})
    assert checked(capsys, file)["file modes"][0] == "fail"
    (folder / "url").chmod(0o600)
    assert checked(capsys, file)["file modes"][0] == "ok"


def test_keys_that_are_not_this_partys_fail(
    home: Callable[..., str], keys: dict[str, Path], capsys: Said
) -> None:
    assert checked(capsys, home())["keys"][0] == "ok"
    state, found, _ = checked(capsys, home(name="b"))["keys"]
    assert (state, found) == ("fail", "the certificate names silo 'a', the file silo 'b'")
    folder = Path(home()).parent / "keys"
    shutil.copy(keys["b"] / "identity.key", folder)
    assert "identity.key is ed25519:" in checked(capsys, home())["keys"][1]
    (folder / "identity.key").write_text("none")
    assert "is not a key" in checked(capsys, home())["keys"][1]
    shutil.copy(keys["a"] / "identity.key", folder)
    (folder / "tls.pem").write_text("none")
    assert checked(capsys, home())["keys"][0] == "fail"
    (folder / "tls.key").unlink()
    state, found, way_out = checked(capsys, home())["keys"]
    assert found.endswith("has no tls.key")
    assert "cloister federation enroll request" in way_out


def test_an_owner_who_only_links_needs_no_certificate(
    home: Callable[..., str], capsys: Said
) -> None:
    links = {"policy": {"tasks": [], "secure_programs": ["linked"]}}
    folder = Path(home()).parent / "keys"
    for name in ("ca.pem", "tls.pem", "tls.key"):
        (folder / name).unlink()
    state, found, _ = checked(capsys, home(**links))["keys"]
    assert state == "ok"
    assert found.startswith("ed25519:")
    assert "no certificate" in found
    assert checked(capsys, home())["keys"][0] == "fail", "its jobs need one"
    (folder / "identity.key").write_text("none")
    assert checked(capsys, home(**links))["keys"][0] == "fail"
    (folder / "identity.key").unlink()
    assert checked(capsys, home(**links))["keys"][0] == "fail"


def test_files_that_are_not_there_fail(home: Callable[..., str], capsys: Said) -> None:
    changed = checked(
        capsys, home(schema_file="s.toml", data={"file": "d.csv"}, ledger="none/ledger.db")
    )
    assert {changed[name][0] for name in ("schema", "data", "folder")} == {"fail"}
    Path(home()).with_name("schema.toml").write_text("dataset = 1")
    assert "dataset" in checked(capsys, home())["schema"][1]


def test_a_policy_that_cannot_allow_anything_is_a_warning(
    home: Callable[..., str], capsys: Said
) -> None:
    found = checked(capsys, home(policy=None, peers=None, analysts=None))
    assert {name for name, (state, _, _) in found.items() if state == "warn"} == {
        "policy.tasks",
        "policy.max_epsilon_per_job",
        "peers",
        "analysts",
    }
    assert "policy.tasks" not in checked(capsys, home(policy={"secure_programs": ["linked"]}))
    policy = {"tasks": ["count"], "max_epsilon_per_job": 4.0, "columns": ["y"]}
    found = checked(capsys, home(policy=policy))
    assert found["policy.max_epsilon_per_job"][:2] == ("warn", "4 is above cap_epsilon=3")
    assert found["policy.columns"][:2] == ("fail", "the schema has no column 'y'")
    found = checked(capsys, home(policy={**policy, "columns": ["x"], "profiles": ["local"]}))
    assert "policy.columns" not in found
    assert found["policy.profiles"][0] == "warn"
    found = checked(capsys, home(policy={**policy, "columns": []}))
    assert found["policy.columns"][:2] == ("warn", "none is allowed")


def test_a_policy_without_the_column_of_clients_is_a_warning(
    home: Callable[..., str], capsys: Said
) -> None:
    config = home(policy={"tasks": ["fedavg"], "max_epsilon_per_job": 1.0, "columns": ["x"]})
    Path(config).with_name("schema.toml").write_text(
        f'dataset = "ward"\nunit = "shop"\n{COLUMNS}'
        '[[columns]]\nname = "shop"\ntype = "integer"\nmin = 0\nmax = 9\nout_of_range = "drop"\n'
    )
    state, found, _ = checked(capsys, config)["policy.columns"]
    assert (state, found) == ("warn", "every job needs 'shop', which is not allowed")


def test_a_silos_own_name_and_fingerprint_belong_to_each_other(
    home: Callable[..., str], keys: dict[str, Path], capsys: Said
) -> None:
    pins = {name: KeyFolder(keys[name]).identity().fingerprint for name in SILOS}
    others = {"b": pins["b"], "c": pins["c"]}
    assert "own pin" not in checked(capsys, home(peers=others))
    for peers in ({**others, "d": pins["a"]}, {**others, "a": "ed25519:" + "0" * 64}):
        state, found, _ = checked(capsys, home(peers=peers))["own pin"]
        assert state == "fail"
        assert f"this silo is 'a', {pins['a']}" in found


def test_a_certificate_that_ends_soon_is_told_before_anything_starts(
    home: Callable[..., str], tmp_path: Path, capsys: Said
) -> None:
    enrolled(tmp_path / "own", Authority.create(tmp_path / "ca", "f"), 6)
    state, _, way_out = checked(capsys, home(keys="own", peers=None))["certificate"]
    assert state == "warn"
    assert "cloister federation enroll request" in way_out


# doctor, on this machine --------------------------------------------------------------------------


def test_nothing_is_wrong_with_a_sound_silo(home: Callable[..., str], capsys: Said) -> None:
    found = examined(capsys, home())
    assert {state for state, _, _ in found.values()} == {"ok"}
    assert set(found) >= {
        "versions",
        "keys",
        "file modes",
        "schema",
        "certificate",
        "disk",
        "ledger",
        "columns",
        "dns",
        "tcp",
        "tls",
        "coordinator",
        "clock",
    }
    assert f"protocol {PROTOCOL_VERSION}" in found["versions"][1]
    assert instruction_set() in found["loops over records"][1].lower()
    assert Schema.load(Path(home()).with_name("schema.toml")).digest() in found["schema"][1]
    assert found["tls"][1].startswith("TLSv1.3, for localhost, until ")
    assert main(["doctor", "--config", home()]) == 0
    assert capsys.readouterr().out.endswith("No check failed.\n")
    assert not Path(home()).with_name("ledger.db").exists()  # it looks, and makes nothing


@pytest.mark.parametrize(("free", "state"), [(49 << 20, "fail"), (51 << 20, "warn")])
def test_a_disk_that_fills_up_is_told(
    home: Callable[..., str],
    capsys: Said,
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    state: str,
) -> None:
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert examined(capsys, home())["disk"][0] == state


def test_a_ledger_that_was_changed_is_found(home: Callable[..., str], capsys: Said) -> None:
    file = Path(home()).with_name("ledger.db")
    ledger = Ledger(file)
    ledger.open_dataset("ward", cap=Budget(3.0, 1e-6))
    ledger.reserve(dataset="ward", study="s", job="j", events=GaussianEvent(20.0))
    ledger.commit(job="j", round=0, event=GaussianEvent(20.0), frame=b"frame")
    ledger.dispose()
    assert " entries verified, head " in examined(capsys, home())["ledger"][1]
    sqlite3.connect(file, isolation_level=None).execute("DELETE FROM frames")
    state, _, way_out = examined(capsys, home())["ledger"]
    assert state == "fail"
    assert "do not run jobs" in way_out


def test_the_head_beside_a_ledger_tells_what_is_gone(
    home: Callable[..., str], capsys: Said
) -> None:
    file = Path(home()).with_name("ledger.db")
    head = file.with_name("ledger.db.head")
    ledger = Ledger(file)
    ledger.open_dataset("ward", cap=Budget(3.0, 1e-6))
    ledger.countersigned(ledger.head(), {"ed25519:" + "0" * 64: b"signature"})
    ledger.dispose()
    found = examined(capsys, home())
    assert found["ledger"][0] == "ok"
    assert "ledger head" not in found
    kept = head.read_text()
    head.unlink()
    assert examined(capsys, home())["ledger head"][0] == "warn"
    head.write_text("0" * 64)
    assert "rolled back or replaced" in examined(capsys, home())["ledger"][1]
    head.write_text(kept)
    for path in file.parent.glob("ledger.db*"):
        if path != head:
            path.unlink()
    state, said, _ = examined(capsys, home())["ledger"]
    assert (state, "is missing" in said) == ("fail", True)
    assert not file.exists()


def test_another_lifetime_cap_than_the_ledgers_is_told(
    home: Callable[..., str], capsys: Said
) -> None:
    ledger = Ledger(Path(home()).with_name("ledger.db"))
    ledger.open_dataset("ward", cap=Budget(3.0, 1e-6))
    ledger.dispose()
    assert "lifetime cap" not in examined(capsys, home())
    for changes in ({"cap_epsilon": 4}, {"cap_delta": 1e-7}):
        state, _, way_out = examined(capsys, home(**changes))["lifetime cap"]
        assert state == "fail"
        assert "cloister budget cap" in way_out


def test_other_limits_than_the_ledgers_are_told(home: Callable[..., str], capsys: Said) -> None:
    ledger = Ledger(Path(home()).with_name("ledger.db"))
    ledger.open_dataset("ward", cap=Budget(3.0, 1e-6), split=Split(0.5))
    ledger.dispose()
    assert "limits" not in examined(capsys, home())
    assert "limits" not in examined(capsys, home(pure_share=0.5))
    for changes in ({"pure_share": 0.4}, {"pure_share": 0.5, "failure_share": 0.1}):
        state, found, _ = examined(capsys, home(**changes))["limits"]
        assert (state, "pure share 0.5, failure share 0 in the ledger" in found) == ("fail", True)


def test_columns_that_the_data_lack_are_found_without_a_record(
    home: Callable[..., str], capsys: Said
) -> None:
    Path(home()).with_name("data.csv").write_text("y\n0.12345\n")
    state, found, _ = examined(capsys, home())["columns"]
    assert (state, found) == ("fail", "no column 'x'")
    data = {"url": f"postgresql://u:{SECRET}@127.0.0.1:9/d", "query": "SELECT 1"}
    assert examined(capsys, home(data=data))["columns"][0] == "fail"
    with sqlite3.connect(Path(home()).with_name("w.db")) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    found = examined(capsys, home(data={"url": "sqlite:///w.db", "query": "SELECT x FROM t"}))
    assert found["columns"][0] == "ok"


def enrolled(folder: Path, authority: Authority, days: int) -> None:
    install(folder, authority.approve(make_request(folder, "silo", "a"), days=days))


def test_a_certificate_is_looked_at_before_others_do(
    home: Callable[..., str], tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.create(tmp_path / "ca", "f")
    enrolled(tmp_path / "own", authority, 20)
    state, found, way_out = examined(capsys, home(keys="own"))["certificate"]
    assert (state, found[:11]) == ("warn", "it expires ")
    assert "cloister federation enroll request" in way_out
    enrolled(tmp_path / "own", authority, 100)
    assert examined(capsys, home(keys="own"))["certificate"][0] == "ok"
    authority.revoke("a")
    shutil.copy(tmp_path / "ca" / "crl.pem", tmp_path / "own")
    assert examined(capsys, home(keys="own"))["certificate"][:2] == ("fail", "it was revoked")
    (tmp_path / "own" / "crl.pem").write_text("none")
    assert "crl.pem is not signed" in examined(capsys, home(keys="own"))["certificate"][1]
    shutil.copy(tmp_path / "keys" / "tls.key", tmp_path / "own")
    assert "do not match" in examined(capsys, home(keys="own"))["certificate"][1]


def test_a_certificate_that_is_over_fails(
    home: Callable[..., str], capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Later(checks.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return super().now(tz).replace(year=super().now(tz).year + 5, day=1)

    monkeypatch.setattr(checks, "datetime", Later)
    state, found, _ = checked(capsys, home())["certificate"]
    assert state == "fail"
    assert found.startswith("it expired on ")


# doctor, over the network -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ahead", "state", "said"),
    [
        (-3, "ok", "ahead of the coordinator"),
        (-8, "warn", "ahead of the coordinator"),
        (8, "warn", "behind the coordinator"),
        (-4000, "fail", "ahead of the coordinator"),
        (4000, "fail", "behind the coordinator"),
        (None, "warn", "does not send its time"),
    ],
)
def test_clocks_are_compared(
    home: Callable[..., str],
    there: Coordinator,
    capsys: Said,
    monkeypatch: pytest.MonkeyPatch,
    ahead: float | None,
    state: str,
    said: str,
) -> None:
    there.ahead, there.now = ahead, lambda: 1.8e9  # however long an answer takes
    monkeypatch.setattr(doctor, "time", SimpleNamespace(time=there.now))
    found = examined(capsys, home())["clock"]
    assert found[0] == state
    assert said in found[1]


def test_a_coordinator_that_refuses_this_party_is_told(
    home: Callable[..., str], there: Coordinator, capsys: Said
) -> None:
    there.status = 403
    state, found, way_out = examined(capsys, home())["coordinator"]
    assert (state, found) == ("fail", "/healthz answers HTTP 403")
    assert "revoked" in way_out


def steps(found: dict[str, Any]) -> dict[str, str]:
    network = ("dns", "tcp", "tls", "coordinator", "clock")
    return {name: found[name][0] for name in network if name in found}


def test_the_first_step_that_fails_is_the_last(
    home: Callable[..., str], capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found = examined(capsys, home(coordinator=f"https://localhost:{probe.getsockname()[1]}"))
    assert steps(found) == {"dns": "ok", "tcp": "fail"}
    assert "refused" in found["tcp"][1]

    def nowhere(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    found = examined(capsys, home(coordinator="https://nobody.example.org:1"))
    assert steps(found) == {"dns": "fail"}
    assert found["dns"][1] == "'nobody.example.org' does not resolve"


def test_a_coordinator_under_another_name_fails(
    home: Callable[..., str], there: Coordinator, capsys: Said
) -> None:
    found = examined(capsys, home(coordinator=f"https://127.0.0.1:{there.port}"))
    assert steps(found) == {"dns": "ok", "tcp": "ok", "tls": "fail"}
    assert "127.0.0.1" in found["tls"][1]


@pytest.mark.parametrize("whose", ["another federation's", "a silo's"])
def test_something_else_that_listens_there_fails(
    home: Callable[..., str],
    keys: dict[str, Path],
    strangers: dict[str, Path],
    capsys: Said,
    whose: str,
) -> None:
    folder = strangers["coordinator"] if whose != "a silo's" else keys["b"]
    told = Coordinator()
    server = serving(server_context(KeyFolder(folder)), told)
    found = examined(capsys, home(coordinator=f"https://localhost:{told.port}"))
    server.shutdown()
    server.server_close()
    assert steps(found) == {"dns": "ok", "tcp": "ok", "tls": "fail"}
    assert "its certificate: " in found["tls"][1]


def test_a_coordinator_that_does_not_know_our_authority_fails(
    home: Callable[..., str], tmp_path: Path, strangers: dict[str, Path], capsys: Said
) -> None:
    mixed = tmp_path / "mixed"
    shutil.copytree(strangers["a"], mixed)
    shutil.copy(tmp_path / "keys" / "ca.pem", mixed)
    (mixed / "crl.pem").unlink(missing_ok=True)  # of the other authority
    found = examined(capsys, home(keys="mixed"))
    last = list(steps(found))[-1]  # an alert may come late, or get lost when the stream is reset
    assert last in ("tls", "coordinator")
    assert found[last][0] == "fail"
    assert "check that it was enrolled" in found[last][2]


class Proxy:
    """A proxy for one connection that asks for a password."""

    def __init__(self, status: int = 200) -> None:
        self.heads: list[str] = []
        self._status = status
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            near, _ = self._socket.accept()
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += near.recv(1)
            self.heads.append(head.decode())
            near.sendall(f"HTTP/1.1 {self._status} Said\r\nX: y\r\n\r\n".encode())
            if self._status != 200:
                near.close()
                continue
            host, _, port = self.heads[-1].split()[1].rpartition(":")
            far = socket.create_connection((host, int(port)))
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    @staticmethod
    def _pump(one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(4096):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def test_the_way_through_a_proxy_is_looked_at(home: Callable[..., str], capsys: Said) -> None:
    proxy = Proxy()
    found = examined(capsys, home(proxy=f"http://u:{SECRET}%40@127.0.0.1:{proxy.port}"))
    assert set(steps(found).values()) == {"ok"}
    assert f"by proxy 127.0.0.1:{proxy.port}" in found["tcp"][1]
    assert proxy.heads[0].startswith("CONNECT localhost:")
    password = b64encode(f"u:{SECRET}@".encode()).decode()
    assert f"Proxy-Authorization: Basic {password}\r\n" in proxy.heads[0]


def test_a_proxy_that_refuses_is_told(home: Callable[..., str], capsys: Said) -> None:
    found = examined(capsys, home(proxy=f"http://u:{SECRET}@127.0.0.1:{Proxy(407).port}"))
    assert steps(found) == {"dns": "ok", "tcp": "fail"}
    assert found["tcp"][1].endswith("the proxy answered 407")


# The other roles ----------------------------------------------------------------------------------


def test_an_analyst_is_looked_at_too(
    home: Callable[..., str], keys: dict[str, Path], there: Coordinator, capsys: Said
) -> None:
    file = Path(home())
    file.write_text(
        f'role = "analyst"\nname = "ann"\nkeys = {str(keys["ann"])!r}\n'
        f'coordinator = "https://localhost:{there.port}"\n'
    )
    found = examined(capsys, str(file))
    assert {state for state, _, _ in found.values()} == {"ok"}
    assert "ledger" not in found


def test_a_coordinator_is_looked_at_without_dialling(
    home: Callable[..., str],
    keys: dict[str, Path],
    capsys: Said,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_TIMEOUT", 0.5)  # somebody listens and never says a word
    file = Path(home())

    def write(*lines: str) -> str:
        own = f'role = "coordinator"\nkeys = {str(keys["coordinator"])!r}\n'
        file.write_text(own + "\n".join(lines))
        return str(file)

    found = examined(capsys, write('listen = "127.0.0.1:0"'))
    assert {state for state, _, _ in found.values()} == {"ok"}
    assert steps(found) == {}
    assert not (file.parent / "coordinator.db").exists()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        state, found, _ = examined(capsys, write(f'listen = "{where}"'))["port"]
        assert (state, found) == ("fail", f"{where} is in use by another program")
    listen = 'listen = "127.0.0.1:0"'
    found = examined(capsys, write(listen, 'database = "sqlite:///none/c.db"'))
    assert found["database"][0] == "fail"
    (file.parent / "c.db").touch(0o000)
    monkeypatch.setattr(doctor.os, "access", lambda path, _: Path(path).is_dir())  # root may all
    found = examined(capsys, write(listen, 'database = "sqlite:///c.db"'))
    assert found["database"][:2] == ("fail", f"{file.parent / 'c.db'} is not writable")
    assert examined(capsys, write('listen = "192.0.2.1:1"'))["port"][0] == "fail"


# A real coordinator -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """A coordinator that runs, and the files of three silos that do not."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "data.csv").write_text("x\n0.5\n")
    (folder / "schema.toml").write_text(f'dataset = "ward"\nunit = "row"\n{COLUMNS}')
    tables = dict.fromkeys(SILOS, folder / "data.csv")
    with LocalFederation(folder / "f", Schema.load(folder / "schema.toml"), tables) as made:
        made.start(COORDINATOR)

        def answers() -> bool:
            with made.rest() as rest:
                return rest.silos() is not None

        made._wait(answers, 300.0, "a coordinator")
        yield made


def test_a_running_federation_has_nothing_wrong(federation: LocalFederation, capsys: Said) -> None:
    for name in ("a", "analyst"):
        found = examined(capsys, str(federation.config(name)))
        assert set(steps(found).values()) == {"ok"}
        assert {state for state, _, _ in found.values()} == {"ok"}
    found = examined(capsys, str(federation.config(COORDINATOR)))
    assert {state for state, _, _ in found.values()} == {"ok"}
    assert found["port"][1].endswith("this coordinator listens there")


def test_pins_and_schemas_that_differ_from_what_connects_are_told(
    federation: LocalFederation, capsys: Said
) -> None:
    a = federation.config("a")
    pin = federation.fingerprints["b"]
    before = a.read_text()
    schema = a.with_name("schema.toml")
    agreed = schema.read_text()
    federation.start("b")
    try:
        federation.wait_connected("b")
        found = examined(capsys, str(a))
        assert found["pins"][:2] == ("ok", "1 of 2 pinned silos have connected, as pinned")
        assert "schemas" not in found
        a.write_text(before.replace(pin, "ed25519:" + "0" * 64))
        found = examined(capsys, str(a))
        assert found["pins"][0] == "warn"
        assert f"'b' connects with {pin}" in found["pins"][1]
        a.write_text(before.replace(f'b = "{pin}"', f'bee = "{pin}"'))
        found = examined(capsys, str(a))
        assert found["pins"][:2] == ("warn", "the key pinned for 'bee' connects as 'b'")
        a.write_text(before)
        schema.write_text(agreed.replace("unit", "decimal = ','\nunit"))
        assert "schemas" not in examined(capsys, str(a))  # the format of files may differ
        schema.write_text(agreed.replace("max = 1", "max = 2"))
        found = examined(capsys, str(a))
        assert found["schemas"][:2] == ("warn", "'b': the schema differs from this silo's")
    finally:
        a.write_text(before)
        schema.write_text(agreed)
        federation.kill("b", signal.SIGTERM)


def test_pins_that_differ_from_those_of_the_words_are_told_before_anybody_connects(
    home: Callable[..., str], keys: dict[str, Path], tmp_path: Path, capsys: Said
) -> None:
    known = {name: KeyFolder(keys[name]).identity() for name in SILOS}
    pins = {name: identity.fingerprint for name, identity in known.items()}
    roster = {name: [identity.public.hex(), ""] for name, identity in known.items()}
    joining: dict[str, Any] = {"session": "", "nonce": "", "request": {}, "roster": roster}
    wrong = {"b": f"ed25519:{'0' * 64}"}
    expected = f"'b' joined with {pins['b']}, not with its pin"
    for openings, given, found in (
        (None, pins | wrong, None),  # nobody compared words yet
        ({"b": ""}, pins, None),
        ({"b": ""}, pins | wrong, expected),
        ({"b": ""}, {"bee": pins["b"]}, "the key pinned for 'bee' joined as 'b'"),
    ):
        (tmp_path / "keys" / "joining.json").write_text(
            json.dumps(joining | {"openings": openings})
        )
        checks = examined(capsys, home(peers=given))
        assert checks.get("pins", (None, None))[:2] == (found and "warn", found)


@pytest.mark.parametrize(("ahead", "state"), [(60, "warn"), (-60, "warn"), (900, "fail")])
def test_a_clock_that_is_wrong_is_measured_against_the_coordinators(
    federation: LocalFederation,
    capsys: Said,
    monkeypatch: pytest.MonkeyPatch,
    ahead: float,
    state: str,
) -> None:
    monkeypatch.setattr(doctor, "time", SimpleNamespace(time=lambda: time() + ahead))
    found = examined(capsys, str(federation.config("a")))["clock"]
    assert found[0] == state
    assert int(found[1].split()[0]) == pytest.approx(abs(ahead), abs=20)  # an answer may be slow


def test_a_coordinator_reached_by_a_name_it_was_not_enrolled_with_fails(
    federation: LocalFederation, capsys: Said
) -> None:
    file = federation.config("a")
    kept = file.read_text()
    file.write_text(kept.replace("//localhost:", "//127.1:"))  # the same address, another name
    found = examined(capsys, str(file))
    file.write_text(kept)
    assert steps(found) == {"dns": "ok", "tcp": "ok", "tls": "fail"}
    assert "127.1" in found["tls"][1]


def test_a_silo_that_was_revoked_is_told_and_the_others_are_not(
    federation: LocalFederation, capsys: Said
) -> None:
    Authority(federation.folder / "ca").revoke("b")
    shutil.copy(federation.folder / "ca" / "crl.pem", federation.keys[COORDINATOR])
    found = examined(capsys, str(federation.config("b")))
    assert found["coordinator"][:2] == ("fail", "/healthz answers HTTP 401")
    assert "revoked" in found["coordinator"][2]
    assert set(steps(examined(capsys, str(federation.config("a")))).values()) == {"ok"}


def test_a_coordinator_shows_its_new_certificate_and_one_of_another_folder_is_told(
    federation: LocalFederation, capsys: Said
) -> None:
    keys = federation.keys[COORDINATOR]
    moved = shutil.copytree(keys, federation.folder / "moved" / "keys")
    request = make_request(keys, "coordinator", COORDINATOR, ("localhost", "127.0.0.1"))
    install(keys, Authority(federation.folder / "ca").approve(request))
    assert examined(capsys, str(federation.config(COORDINATOR)))["port"][0] == "ok"
    other = federation.config("a").parent.parent / "other.toml"
    text = federation.config(COORDINATOR).read_text()
    other.write_text(f"keys = {json.dumps(str(moved))}\n{text}")
    state, _, way_out = examined(capsys, str(other))["port"]
    assert (state, way_out[:7]) == ("warn", "restart")
    strangers = local_federation(federation.folder / "strangers", ("a",))
    other.write_text(f"keys = {json.dumps(str(strangers[COORDINATOR]))}\n{text}")
    assert examined(capsys, str(other))["port"][0] == "fail"  # another federation's coordinator


def test_a_coordinator_that_is_down_is_told(federation: LocalFederation, capsys: Said) -> None:
    with suppress(KeyError):
        federation.kill(COORDINATOR)
    found = examined(capsys, str(federation.config("a")))
    assert steps(found) == {"dns": "ok", "tcp": "fail"}
    assert "check that it runs" in found["tcp"][2]
    assert examined(capsys, str(federation.config(COORDINATOR)))["port"][1].endswith("is free")


@pytest.mark.parametrize(
    ("limits", "state", "said"),
    [
        ((256, 512), "warn", "at most 512 open files and connections, now 256"),
        ((1024, 65536), "ok", "at most 65536 open files and connections, now 1024"),
        ((65536, 65536), "ok", "at most 65536 open files and connections"),
    ],
)
def test_the_doctor_shows_how_many_connections_a_coordinator_may_have(
    home: Callable[..., str],
    keys: dict[str, Path],
    capsys: Said,
    monkeypatch: pytest.MonkeyPatch,
    limits: tuple[int, int],
    state: str,
    said: str,
) -> None:
    monkeypatch.setattr("cloister.federation.service.listener.descriptors", lambda: limits)
    file = Path(home())
    own = f'role = "coordinator"\nkeys = {str(keys["coordinator"])!r}\nlisten = "127.0.0.1:0"\n'
    file.write_text(own)
    assert examined(capsys, str(file))["descriptors"][:2] == (state, said)


def test_a_cap_for_a_study_without_studies_is_told(home: Callable[..., str], capsys: Said) -> None:
    policy = {"tasks": ["count"], "max_epsilon_per_job": 1.0}
    assert "policy.studies" not in checked(capsys, home(policy=policy))
    policy |= {"max_epsilon_per_study": 1.0}
    assert checked(capsys, home(policy=policy))["policy.studies"][0] == "warn"
    policy |= {"studies": ["default"]}
    assert "policy.studies" not in checked(capsys, home(policy=policy))
