"""The port while parties join: an invitation replaces a certificate, and strangers are bounded."""

from __future__ import annotations

import re
import shlex
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from cloister.cli import main
from cloister.core.errors import PlanError, TransportError
from cloister.federation.joining import Board, Federation, Invitation, Party
from cloister.federation.local import kept_port
from cloister.federation.pki import Authority, KeyFolder, install, make_request
from cloister.federation.service import server as server_module
from cloister.federation.service.client import Joining
from cloister.federation.service.joining import _MOST_BYTES, serve_board

NAMES = ("a", "b")
UPGRADE = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-key": "MDEyMzQ1Njc4OWFiY2RlZg==",
    "sec-websocket-version": "13",
}


@dataclass
class Place:
    board: Board
    url: str
    root: Path
    changes: list[list[str]] = field(default_factory=list)  # who was missing then
    ended: threading.Event = field(default_factory=threading.Event)

    def invitation(self, name: str) -> Invitation:
        return self.board.invite(name)

    def stranger(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, verify=self.context(), trust_env=False)

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.root / "ca" / "ca.pem")


@contextmanager
def opened(root: Path, host: str = "localhost", listen: str = "127.0.0.1") -> Iterator[Place]:
    """Serve a board until all have joined, or until the test has ended."""
    port, kept = kept_port()
    authority = Authority.create(root / "ca", "stroke")
    ca = (root / "ca" / "ca.pem").read_text()
    url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    Board.found(authority.path, Federation("stroke", url, ca, "", NAMES, (), {"cap_epsilon": 1.0}))
    keys = root / "keys"
    request = make_request(keys, "coordinator", "coordinator", (host,))
    install(keys, authority.approve(request))
    place = Place(Board(authority.path), url, root)
    ready = threading.Event()

    def changed() -> None:
        place.changes.append(place.board.missing("entries"))
        ready.set()

    with ThreadPoolExecutor(1) as threads:
        serving = threads.submit(
            serve_board, place.board, f"{listen}:{port}", KeyFolder(keys), changed
        )
        serving.add_done_callback(lambda _: (ready.set(), place.ended.set()))
        ready.wait()
        try:
            yield place
        finally:
            if not serving.done():
                join_all(place)
            serving.result()
            kept.close()


def join_all(place: Place) -> list[tuple[str, ...]]:
    """Let all join, one message of each after the other; return their words."""
    with ExitStack() as stack:
        invited = {name: place.invitation(name) for name in NAMES}
        lines = {name: stack.enter_context(Joining(invited[name])) for name in NAMES}
        parties = {name: Party(invited[name], place.root / name, again=True) for name in NAMES}
        messages: dict[str, dict[str, Any]] = {name: {} for name in NAMES}
        while not all(party.done for party in parties.values()):
            for name, party in parties.items():
                if not party.done:
                    messages[name] = party.answer(sent(lines[name], messages[name]))
    return [party.words() for party in parties.values()]


def sent(line: Joining, message: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a message, which is sent again while there is no room."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return line.post(message)
        except TransportError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def test_all_join_read_the_same_words_and_the_port_closes(tmp_path: Path) -> None:
    with opened(tmp_path) as place:
        first, second = join_all(place)
        assert first == second
        assert place.ended.wait(60)
        with pytest.raises(httpx.HTTPError), place.stranger() as stranger:
            stranger.post("/v1/join", json={})
    assert place.changes[0] == [*NAMES]
    assert place.changes[-1] == []


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize(
    ("host", "listen"), [("::1", "[::1]"), ("::1", "[::]"), ("127.0.0.1", "[::]")]
)
def test_parties_join_over_either_version_of_ip(tmp_path: Path, host: str, listen: str) -> None:
    with opened(tmp_path, host, listen) as place:
        first, second = join_all(place)
        assert first == second
        assert place.ended.wait(60)


def test_the_words_are_typed_and_no_printed_command_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cloister.cli.join._PAUSE", 0.05)
    data = tmp_path / "a dät.csv"
    data.touch()
    lines = []
    with opened(tmp_path) as place, ThreadPoolExecutor(2) as threads:
        for name in NAMES:
            file = tmp_path / f"{name} b.invitation"
            file.write_text(place.invitation(name).text())
            root = str(tmp_path / f"root {name}")
            lines.append(["join", str(file), "--data", str(data), "--root", root])
        assert list(threads.map(main, lines)) == [0, 0]
        assert place.ended.wait(60)
    said = capsys.readouterr().out
    (words, _) = re.findall(r"^    (\w+(?: \w+){5})$", said, re.MULTILINE)
    commands = [shlex.split(one) for one in re.findall("^Then: (.+)", said, re.MULTILINE)]
    typed = "WORDS OF ANOTHER PARTY"
    assert sorted(commands) == [["cloister", *line, "--confirm", typed] for line in lines]
    for answer in ("yes", " ".join(reversed(words.split())), ""):
        monkeypatch.setattr("cloister.cli.join.ask", lambda _, answer=answer: answer)
        assert main(lines[0]) == 3
        assert "no key was pinned" in capsys.readouterr().err
    assert not list(tmp_path.rglob("silo.toml"))


def test_whoever_is_not_invited_gets_a_sentence_and_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as place, place.stranger() as stranger:
        for content in (b"", b"[]", b"{}", b"[" * 30_000, b'{"name": "a"}', b"\xff"):
            answer = stranger.post("/v1/join", content=content)
            assert (answer.status_code, answer.json()) == (
                422,
                {"error": "message must be a JSON object with a name and a token."},
            )
        assert stranger.post("/v1/join", content=b" " * (_MOST_BYTES + 1)).status_code == 413
        assert stranger.get("/v1/join").status_code == 405
        assert stranger.get("/v1/jobs").status_code == 404
        assert stranger.get("/v1/join", headers=UPGRADE).status_code == 403
        wrong = replace(place.invitation("a"), token="0" * 64)
        with Joining(wrong) as line, pytest.raises(PlanError, match="'a' is no longer valid"):
            line.post({})
        assert place.changes == [[*NAMES]]


def test_an_answer_leaves_its_place_to_others(tmp_path: Path) -> None:
    with opened(tmp_path) as place:
        document = {"name": "a", "token": place.invitation("a").token}
        with place.stranger() as party:
            assert party.post("/v1/join", json=document).headers["connection"] == "close"


@pytest.mark.parametrize("limit", ["_MOST_OF_ONE", "_MOST_STRANGERS"])
def test_strangers_leave_their_places_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Whoever holds all places, with requests that never end, keeps nobody from joining."""
    monkeypatch.setattr(server_module, limit, 3)
    monkeypatch.setattr(server_module, "_IDLE", 3600)
    with opened(tmp_path) as place, ExitStack() as stack:
        port = int(place.url.rpartition(":")[2])
        context = place.context()

        def connected() -> ssl.SSLSocket:
            line = socket.create_connection(("127.0.0.1", port), 60)
            party = stack.enter_context(context.wrap_socket(line, server_hostname="localhost"))
            party.sendall(b"POST /v1/join HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n")
            return party

        taken = [connected() for _ in range(4)]
        assert gone(taken[0])
        with Joining(place.invitation("a")) as line:
            assert line.post({})
        assert gone(taken[1])


def gone(line: ssl.SSLSocket) -> bool:
    """Return whether the other end hangs up; it may do so before or within TLS's own farewell."""
    try:
        return line.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", "stroke")
    ca = (tmp_path / "ca" / "ca.pem").read_text()
    Board.found(authority.path, Federation("s", "https://localhost:1", ca, "", NAMES, (), {}))
    keys = tmp_path / "keys"
    request = make_request(keys, "coordinator", "coordinator", ("localhost",))
    install(keys, authority.approve(request))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TransportError, match="stop what listens there"):
            serve_board(Board(authority.path), listen, KeyFolder(keys), lambda: None)
