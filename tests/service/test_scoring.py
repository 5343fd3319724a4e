"""A scorer over mutual TLS: pinned callers, so many rows, and the command that asks it."""

from __future__ import annotations

import asyncio
import csv
import json
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

pytest.importorskip("tenseal")

from cloister.cli import main, predict
from cloister.core.errors import BudgetExceeded, PlanError, TransportError
from cloister.federation.pki import Authority, KeyFolder, client_context, install, make_request
from cloister.federation.service import client as client_module
from cloister.federation.service.audit import Audit, verify
from cloister.federation.settings import ScorerSettings, load_role
from cloister.shares.inference import service
from cloister.shares.inference.client import Scoring
from cloister.shares.inference.encrypted import ClientKeys, Offer, ScoringClient, ScoringServer
from cloister.shares.inference.limits import QueryLimit
from cloister.shares.inference.linear import linear_scorer

NAMES = ("age", "income")
LOW, HIGH = np.zeros(2), np.array([100.0, 10.0])
ROWS = 4  # of a request


def rows(n: int) -> Any:
    return np.random.default_rng(0).uniform(LOW, HIGH, size=(n, 2))


@pytest.fixture(scope="module")
def model() -> LogisticRegression:
    X = rows(200)
    return LogisticRegression().fit(X, (X[:, 0] / 100 + X[:, 1] / 10 > 1).astype(int))


@dataclass
class Place:
    url: str
    folders: dict[str, Path]
    root: Path


@pytest.fixture(scope="module")
def place(model: LogisticRegression, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("scoring")
    authority = Authority.create(root / "ca", "test")
    folders = {name: root / name for name in ("bank", "shop", "stranger")}
    for name, folder in folders.items():
        hosts = ("localhost", "127.0.0.1") if name == "bank" else ()
        role = "scorer" if name == "bank" else "analyst"
        install(folder, authority.approve(make_request(folder, role, name, hosts)))
    scorer = linear_scorer(model, bounds=(LOW, HIGH))
    scorer.save(root / "model.json")
    pin = KeyFolder(folders["shop"]).identity().fingerprint
    (root / "scorer.toml").write_text(
        f'role = "scorer"\nlisten = "127.0.0.1:0"\nkeys = "bank"\nmodel = "model.json"\n'
        f"rows = {ROWS}\nmax_rows_per_caller = {5 * ROWS}\n[callers]\nshop = {pin!r}\n"
    )
    port: list[int] = []
    ready, stop = threading.Event(), threading.Event()

    def opened(number: int) -> None:
        port.append(number)
        ready.set()

    settings = load_role(root / "scorer.toml", ScorerSettings)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(service.run, settings, ready=opened, stop=stop)
        running.add_done_callback(lambda _: ready.set())
        ready.wait()
        if running.done():
            running.result()
        try:
            yield Place(f"https://localhost:{port[0]}", folders, root)
        finally:
            stop.set()
        running.result()


def asking(place: Place, name: str) -> Scoring:
    return Scoring(place.url, client_context(KeyFolder(place.folders[name])))


def test_a_command_scores_a_file_whose_rows_never_leave(
    place: Place, model: LogisticRegression, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    X = rows(6)
    source, found = tmp_path / "rows.csv", tmp_path / "out.csv"
    np.savetxt(source, X, delimiter=",", header="x0,x1", comments="")
    keys = str(place.folders["shop"])
    argv = ["predict", place.url, str(source), "--private", "--keys", keys, "--out", str(found)]
    assert main(argv) == 0, capsys.readouterr().err
    said = capsys.readouterr()
    assert "NOT private" in said.err
    with found.open() as file:
        header, *lines = list(csv.reader(file))
    assert header == ["row", "class", "p(0)", "p(1)"]
    got = np.array([[float(v) for v in line[2:]] for line in lines])
    assert np.abs(got - model.predict_proba(X)).max() < 1e-5
    assert [int(line[1]) for line in lines] == model.predict(X).tolist()
    # Two requests of ROWS rows each: 6 rows count as 8.
    with asking(place, "shop") as scorer:
        assert scorer.model()[1] == 3 * ROWS
    assert verify(place.root / "audit.jsonl")[0] >= 2
    assert not any(str(round(v, 3)) in (place.root / "audit.jsonl").read_text() for v in X.ravel())

    source.write_text("x0,x1\n" + "1,2\n" * (3 * ROWS + 1))
    assert main([*argv[:-1], str(tmp_path / "more.csv")]) == 5
    assert "are left to this caller" in capsys.readouterr().err
    source.write_text("x0,x1\n1,2\n1,10.5\n")
    assert main([*argv[:-1], str(tmp_path / "bad.csv")]) == 4
    said = capsys.readouterr()
    assert "10.5" not in said.err
    with asking(place, "shop") as scorer:  # a refusal at the caller costs nothing
        assert scorer.model()[1] == 3 * ROWS


def test_whoever_is_not_pinned_gets_nothing(place: Place) -> None:
    with asking(place, "stranger") as scorer:
        for ask in (scorer.model, lambda: scorer.admit(b""), lambda: scorer.score(b"")):
            with pytest.raises(TransportError, match="'stranger' is not among the callers"):
                ask()


@pytest.mark.parametrize(("pin", "longer", "answer"), [("b", 0, 401), ("a", 1, 413), ("a", 0, 422)])
def test_a_body_is_read_of_pinned_callers_only_and_no_longer_than_a_request(
    model: LogisticRegression, tmp_path: Path, pin: str, longer: int, answer: int
) -> None:
    limit = QueryLimit(ROWS, tmp_path / "queries.db")
    server = ScoringServer(linear_scorer(model, (LOW, HIGH)), limit, rows=ROWS, hides="features")
    caller, audit = Mock(fingerprint="a"), Audit(tmp_path / "audit.jsonl")
    caller.name = "shop"
    gate = service.make_app(server, lambda _: caller, {"shop": pin}, audit)
    read, sent = [], []

    async def receive() -> dict[str, Any]:
        read.append(server.most_bytes)
        return {"type": "http.request", "body": b"x" * server.most_bytes, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    length = b"%d" % (server.most_bytes + longer)
    scope = {"type": "http", "method": "POST", "path": "/v1/score", "query_string": b""}
    asyncio.run(gate(scope | {"headers": [(b"content-length", length)]}, receive, send))
    assert (sent[0]["status"], bool(read)) == (answer, answer == 422)
    assert server.most_bytes < 3 << 19  # of two columns, of at most 1 << 19 bytes
    audit.close()


def test_a_caller_gets_so_many_rows_and_no_more_whatever_it_sends(place: Place) -> None:
    with asking(place, "shop") as scorer:
        document, left = scorer.model()
        client = ScoringClient(Offer.from_document(document), keys := ClientKeys.new(days=1))
        scorer.admit(keys.public)
        for bad in (b"", b"x" * 100):
            with pytest.raises(PlanError):
                scorer.score(bad)
        assert scorer.model()[1] == left
        for still in range(left - ROWS, -1, -ROWS):
            scorer.score(client.encrypt_features(rows(1)))
            assert scorer.model()[1] == still
        with pytest.raises(BudgetExceeded):
            scorer.score(client.encrypt_features(rows(1)))


def test_keys_are_asked_for_and_a_dead_address_is_said(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["predict", place.url, "rows.csv", "--private", "--out", str(tmp_path / "o.csv")]
    assert main(argv) == 3
    assert "--private needs --keys" in capsys.readouterr().err
    argv[1] = "https://localhost:1"
    assert main([*argv, "--keys", str(place.folders["shop"])]) == 7
    assert "cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize("body", [b"{" * 9, b"[" * 100_000, b"[]", b"{}", b" " * (1 << 20)])
def test_an_answer_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    monkeypatch.setattr(client_module, "MOST_ANSWER", 1 << 19)
    asked = Scoring("https://other", ssl.create_default_context())
    answers = httpx.MockTransport(lambda _: httpx.Response(200, content=body))
    asked._http = httpx.Client(transport=answers, base_url="https://other")
    with asked, pytest.raises(TransportError, match="'https://other' gave an unexpected answer"):
        asked.model()


def test_extras_that_are_not_there_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(predict, "find_spec", lambda _: None)
    argv = ["predict", "https://localhost:1", "rows.csv", "--private", "--keys", "x", "--out", "o"]
    assert main(argv) == 3
    assert "pip install 'cloister[service,he]'" in capsys.readouterr().err


def test_doctor_looks_at_a_scorer(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(place.root / "scorer.toml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["checks"]
    checks = {one["name"]: one["state"] for one in found}
    assert checks["model"] == checks["keys"] == "ok"
    (said,) = (one["found"] for one in found if one["name"] == "model")
    assert said == "2 entries; 3 rows or fewer reveal a linear model"
    broken = place.root / "broken.toml"
    text = (place.root / "scorer.toml").read_text().replace("model.json", "ca/ca.pem")
    broken.write_text(text.replace("max_rows_per_caller = 20", "max_rows_per_caller = 1"))
    assert main(["doctor", "--config", str(broken), "--json"]) == 3
    checks = {one["name"]: one["state"] for one in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["model"] == checks["max_rows_per_caller"] == "fail"
