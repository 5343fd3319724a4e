"""``cloister compute``: a session over real processes, and what is refused before one starts."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloister.cli import main
from cloister.core.errors import TransportError
from cloister.federation.pki import KeyFolder, local_federation

NAMES = ("registry", "north", "south", "bank")
ID = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return local_federation(tmp_path_factory.mktemp("compute"), NAMES)


def fingerprints(keys: Mapping[str, Path]) -> dict[str, str]:
    return {name: KeyFolder(keys[name]).identity().fingerprint for name in NAMES}


@pytest.fixture
def folder(keys: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a session file, data, and the settings of both owners."""
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        shutil.rmtree(keys[name] / "share-sessions", ignore_errors=True)
    pins = fingerprints(keys)
    ports = []
    with socket.create_server(("127.0.0.1", 0)) as a, socket.create_server(("127.0.0.1", 0)) as b:
        ports += [a.getsockname()[1], b.getsockname()[1]]
    session(tmp_path / "session.json", pins, ports)
    np.save("x.npy", np.array([[1.5, 2.0], [3.0, -4.0]]))
    Path("y.csv").write_text("a,b\n10,20\n30,40.25\n")
    for name in ("north", "bank"):
        settings(tmp_path / f"{name}.toml", name, keys, pins)
    return tmp_path


def session(path: Path, pins: Mapping[str, str], ports: list[int], **changes: Any) -> None:
    document = {
        "id": ID,
        "program": "sum",
        "options": {"inputs": ["x", "y"], "shape": [2, 2]},
        "dealer": "registry",
        "servers": ["north", "south"],
        "owners": {"x": "north", "y": "bank"},
        "receivers": ["bank"],
        "parties": {name: {"fingerprint": pin} for name, pin in pins.items()},
    }
    for name, port in zip(("north", "south"), ports, strict=True):
        document["parties"][name]["address"] = f"127.0.0.1:{port}"
    path.write_text(json.dumps(document | changes))


def settings(
    path: Path, name: str, keys: Mapping[str, Path], pins: Mapping[str, str], policy: str = ""
) -> None:
    policy = policy or 'secure_programs = ["sum"]\nallow_exact_opening = true\nmin_other_silos = 1'
    peers = "\n".join(f'"{who}" = "{pin}"' for who, pin in pins.items())
    path.write_text(
        f'role = "silo"\nname = "{name}"\ncoordinator = "https://localhost:8443"\n'
        f'keys = "{keys[name]}"\ncap_epsilon = 1.0\n'
        f'[data]\nfile = "y.csv"\n[policy]\n{policy}\n[peers]\n{peers}\n'
    )


def command(keys: Mapping[str, Path], name: str, *more: str) -> list[str]:
    data = {"north": ["--data", "x=x.npy"], "bank": ["--data", "y=y.csv"]}.get(name, [])
    owner = ["--settings", f"{name}.toml"] if data else []
    return [
        "compute",
        "session.json",
        "--as",
        name,
        "--keys",
        str(keys[name]),
        *data,
        *owner,
        *more,
    ]


def test_four_processes_add_two_tables(
    keys: Mapping[str, Path], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dealer, two servers, one of which owns a table, and an owner that receives."""
    running = {
        name: subprocess.Popen(
            [sys.executable, "-m", "cloister", *command(keys, name, "--json"), *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, more in {
            "registry": [],
            "north": [],
            "south": [],
            "bank": ["--out", "sum.json"],
        }.items()
    }
    said = {name: process.communicate(timeout=120) for name, process in running.items()}
    for name, process in running.items():
        assert process.returncode == 0, said[name]
    document = json.loads((folder / "sum.json").read_text())
    assert document["results"]["sum"] == [[11.5, 22.0], [33.0, 36.25]]
    assert document["private"] is False
    assert "NOT a private release" in document["note"]
    assert "NOT a private release" in said["bank"][1]
    for name in ("registry", "north", "south"):
        assert "results" not in json.loads(said[name][0])
    assert main(command(keys, "bank", "--timeout", "0.1")) == 3
    assert "used here already" in capsys.readouterr().err


def test_a_session_is_refused_by_an_owner_before_anything_is_sent(
    keys: Mapping[str, Path], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pins = fingerprints(keys)
    others = {**pins, "south": "ed25519:" + 64 * "0"}
    nobody = {name: pin for name, pin in pins.items() if name != "registry"}
    for policy, pinned, says in (
        ('secure_programs = ["sum"]', pins, "allow_exact_opening"),
        ("allow_exact_opening = true", pins, "secure_programs"),
        ("", others, "'south' has the fingerprint"),
        ("", nobody, "'registry' is not pinned here"),
    ):
        settings(folder / "bank.toml", "bank", keys, pinned, policy)
        assert main(command(keys, "bank")) == 3
        assert says in capsys.readouterr().err


def test_a_receiver_gets_so_many_labels_of_one_model_and_no_more(
    folder: Path, keys: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The owner of a model counts before it dials anybody; here nobody answers."""
    pins = fingerprints(keys)
    policy = 'secure_programs = ["score"]\nmax_labels_per_receiver = 4'
    settings(folder / "north.toml", "north", keys, pins, policy)
    np.save("x.npy", np.ones((2, 1)))
    parties = json.loads((folder / "session.json").read_text())["parties"]
    for number, code in ((1, 7), (2, 7), (3, 5)):
        session(
            folder / "session.json",
            pins,
            [1, 2],
            id=f"{number:032x}",
            program="score",
            options={"models": ["x"], "rows": 2, "features": 1},
            owners={"x": "north", "rows": "bank"},
            parties=parties,
        )
        assert main(command(keys, "north", "--timeout", "0.1")) == code
    assert "may have 4 rows of this model scored and has had 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--as", "mallory"], 3, "--as must be one of"),
        (["--data", "z=x.npy"], 3, "--data y=FILE"),
        (["--data", "y=y.csv"], 3, "--data y=FILE"),
        (["--listen", "127.0.0.1:1"], 3, "is for north, south"),
        (["--timeout", "0"], 3, "positive number of seconds"),
        (["--settings", "session.json"], 3, "is not TOML"),
    ],
)
def test_a_wrong_command_is_refused(
    arguments: list[str],
    code: int,
    says: str,
    keys: Mapping[str, Path],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(command(keys, "bank", *arguments)) == code
    assert says in capsys.readouterr().err


def test_a_server_reaches_the_relay_through_the_proxy_of_its_settings(
    keys: Mapping[str, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It owns no table, so its settings say nothing else."""
    seen = []

    def dial(url: str, _: object, proxy: str | None) -> None:
        seen.append((url, proxy))
        raise TransportError("nobody there")

    monkeypatch.setattr("cloister.federation.transports.http.StreamClient", dial)
    relay = "https://localhost:1"
    session(folder / "session.json", fingerprints(keys), [1, 2], relay=relay)
    settings(folder / "south.toml", "south", keys, fingerprints(keys))
    file = folder / "south.toml"
    file.write_text(f'proxy = "http://proxy:3128"\n{file.read_text()}')
    for more, proxy in (([], None), (["--settings", "south.toml"], "http://proxy:3128")):
        assert main(command(keys, "south", *more)) == 7
        assert seen.pop() == (relay, proxy)


def test_wrong_data_and_keys_are_refused(
    keys: Mapping[str, Path], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for content, says in (("a,b\n1,\n2,3\n", "finite"), ("a\n1\n2\n", "shape (2, 2)")):
        (folder / "y.csv").write_text(content)
        assert main(command(keys, "bank")) == 4
        assert says in capsys.readouterr().err
    np.save("x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert main(command(keys, "north")) == 4
    assert "not an array of numbers" in capsys.readouterr().err
    words = command(keys, "registry", "--timeout", "0.1")
    words[words.index("--keys") + 1] = str(keys["south"])
    assert main(words) == 3
    assert "this identity is" in capsys.readouterr().err
    assert main([*command(keys, "south"), "--out", "a.json"]) == 3
    assert main([*command(keys, "registry"), "--timeout", "0.1"]) == 7
    assert "no server listens at" in capsys.readouterr().err
    owner_without = [w for w in command(keys, "bank") if w not in ("--settings", "bank.toml")]
    assert main(owner_without) == 3
    assert "--settings must be given" in capsys.readouterr().err


def test_three_banks_vote_on_applicants_over_seven_processes(shared_data: Path) -> None:
    """All parties finish; that labels are those of the clear is the law of the program's tests."""
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "private_credit.py"
    command = [sys.executable, str(script), "--data", str(shared_data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "250 applicants decided" in done.stdout, done.stderr
