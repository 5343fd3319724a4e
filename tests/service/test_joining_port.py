"""The port while parties join has its own number of places, whatever else its process does."""

from __future__ import annotations

import threading
from pathlib import Path

from cloister.federation.joining import Board, Federation
from cloister.federation.pki import Authority, KeyFolder, install, make_request
from cloister.federation.service.joining import _MOST_AT_ONCE, JoiningServer


def test_threads_of_others_turn_no_party_away_and_too_many_parties_do(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", "stroke")
    ca = (tmp_path / "ca" / "ca.pem").read_text()
    Board.found(
        authority.path,
        Federation("stroke", "https://localhost:1", ca, "", ("a", "b"), (), {"cap_epsilon": 1.0}),
    )
    keys = tmp_path / "keys"
    install(
        keys, authority.approve(make_request(keys, "coordinator", "coordinator", ("localhost",)))
    )
    done = threading.Event()
    others = [threading.Thread(target=done.wait) for _ in range(_MOST_AT_ONCE)]
    for thread in others:
        thread.start()
    try:
        with JoiningServer(Board(authority.path), "127.0.0.1:0", KeyFolder(keys)) as server:
            taken = [server.verify_request(None, None) for _ in range(_MOST_AT_ONCE)]
            assert all(taken)
            assert not server.verify_request(None, None)
    finally:
        done.set()
        for thread in others:
            thread.join()
