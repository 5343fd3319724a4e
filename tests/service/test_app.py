"""Who may ask what of the coordinator, and what it says no to."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from cloister.app.release import Release
from cloister.core.errors import LedgerError, TransportError
from cloister.federation.service import gate
from cloister.federation.service.app import make_app
from cloister.hazmat.signing import Identity
from cloister.protocol.plan import Plan
from cloister.protocol.proposal import Proposer
from cloister.protocol.readers import Reader, open_boxes
from cloister.testing import toy_records

from .federation import IDENTITIES, Caller, Coordinator, network_plan, signed_by
from .test_jobs import wait_for

CALLERS = {
    "ana": Caller("analyst", "ana"),
    "bob": Caller("analyst", "bob"),
    "op": Caller("coordinator", "op"),
    "a": Caller("silo", "a"),
    "d": Caller("silo", "d"),
}


def identify(scope: MutableMapping[str, Any]) -> Caller:
    """Take the header in place of a certificate."""
    name = dict(scope["headers"]).get(b"x-certificate", b"").decode()
    if name not in CALLERS:
        raise TransportError("a client certificate of this federation is needed; enrol first.")
    return CALLERS[name]


@pytest.fixture
def coordinator(database_url: str, tmp_path: Path) -> Iterator[Coordinator]:
    made = Coordinator(database_url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def client(coordinator: Coordinator) -> Iterator[Callable[[str], TestClient]]:
    app = make_app(coordinator.jobs, coordinator.streams, identify)
    made: dict[str, TestClient] = {}

    def of(name: str) -> TestClient:
        if name not in made:
            made[name] = TestClient(
                app, headers={"x-certificate": name}, raise_server_exceptions=False
            )
        return made[name]

    yield of
    for one in made.values():
        one.close()


Client = Callable[[str], TestClient]


def proposal(by: str = "ana", **changes: Any) -> dict[str, Any]:
    plan = network_plan(**changes)
    return {"plan": plan.to_dict(), "proposer": signed_by(by, plan)}


def error(answer: httpx.Response, code: int) -> str:
    """Return the one sentence of a refusal."""
    assert answer.status_code == code, answer.text
    document = answer.json()
    assert document.keys() == {"error"}
    sentence: str = document["error"]
    assert sentence
    assert "\n" not in sentence
    return sentence


# Who may do what -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/v1/jobs", "/v1/silos", "/healthz", "/readyz", "/metrics", "/openapi.json", "/nowhere"],
)
def test_nothing_is_said_without_a_certificate(client: Client, path: str) -> None:
    assert "enrol" in error(client("nobody").get(path), 401)


def test_an_analyst_proposes_sees_and_cancels(client: Client) -> None:
    document = proposal()
    answer = client("ana").post("/v1/jobs", json=document)
    assert answer.status_code == 201
    job = answer.json()["id"]
    assert job == document["plan"]["run_id"]
    assert [one["id"] for one in client("ana").get("/v1/jobs").json()["jobs"]] == [job]
    shown = client("ana").get(f"/v1/jobs/{job}").json()
    assert shown["state"] == "proposed"
    assert shown["plan"] == json.loads(json.dumps(document["plan"]))
    assert "Only silos, analyst and readers know" in shown["describe"]
    assert shown["waiting_for"].startswith("decisions of a, b, c")
    assert client("ana").post(f"/v1/jobs/{job}/cancel").json()["state"] == "cancelled"
    assert "ended already: it is cancelled" in error(
        client("ana").post(f"/v1/jobs/{job}/cancel"), 409
    )


def test_an_analyst_cancels_own_jobs_only_and_the_operator_any(client: Client) -> None:
    foreign = client("ana").post("/v1/jobs", json=proposal()).json()["id"]
    assert "its readers" in error(client("bob").post(f"/v1/jobs/{foreign}/cancel"), 403)
    job = client("ana").post("/v1/jobs", json=proposal(**readable("bob"))).json()["id"]
    assert "another analyst" in error(client("bob").post(f"/v1/jobs/{job}/cancel"), 403)
    assert client("op").post(f"/v1/jobs/{job}/cancel").status_code == 200
    own = client("op").post("/v1/jobs", json=proposal("op"))
    assert own.status_code == 201


def test_a_silo_sees_the_jobs_it_is_in_and_does_nothing_else(client: Client) -> None:
    job = client("ana").post("/v1/jobs", json=proposal()).json()["id"]
    assert [one["id"] for one in client("a").get("/v1/jobs").json()["jobs"]] == [job]
    assert client("a").get(f"/v1/jobs/{job}").status_code == 200
    assert client("d").get("/v1/jobs").json() == {"jobs": []}
    assert "no job" in error(client("d").get(f"/v1/jobs/{job}"), 404)
    for answer in (
        client("a").post("/v1/jobs", json=proposal("ana")),
        client("a").post(f"/v1/jobs/{job}/cancel"),
    ):
        assert "'a' is a silo" in error(answer, 403)


def test_a_page_of_any_site_cannot_act_with_the_certificate_of_a_browser(
    client: Client, coordinator: Coordinator
) -> None:
    job = coordinator.submit()
    origins = ("https://evil.example", "null", "https://testserver")
    for origin in origins:
        cancelled = client("op").post(f"/v1/jobs/{job}/cancel", headers={"origin": origin})
        assert "read access only" in error(cancelled, 403)
        with (
            pytest.raises(WebSocketDisconnect),
            client("a").websocket_connect(
                "/v1/stream", subprotocols=["cloister.1"], headers={"origin": origin}
            ),
        ):
            pass
    assert coordinator.job(job).state == "proposed"
    assert coordinator.store.silos() == ()
    assert client("op").get("/v1/jobs", headers={"origin": origins[0]}).status_code == 200
    assert client("op").post(f"/v1/jobs/{job}/cancel").json()["state"] == "cancelled"


def test_nobody_proposes_in_the_name_of_another(client: Client) -> None:
    assert "proposer must be 'bob'" in error(client("bob").post("/v1/jobs", json=proposal()), 422)


def test_an_unknown_job_is_not_found(client: Client) -> None:
    for path in (f"/v1/jobs/{'0' * 32}", f"/v1/jobs/{'0' * 32}/result/0"):
        error(client("ana").get(path), 404)
    error(client("ana").post(f"/v1/jobs/{'0' * 32}/cancel"), 404)
    error(client("ana").get("/v1/jobs/..%2f..%2fetc"), 404)
    error(client("ana").get("/v1/jobs/XYZ"), 422)
    error(client("ana").put("/v1/jobs", json={}), 405)


def readable(*names: str) -> dict[str, Any]:
    """Return the fields of a plan that these parties may read."""
    readers = tuple(Reader.of(IDENTITIES[name], name) for name in names)
    return {"profile": "pairwise", "collusion": 1, "min_silos": 3, "readers": readers}


def test_a_result_is_at_the_silos_unless_the_plan_names_readers(
    client: Client, coordinator: Coordinator
) -> None:
    job = client("ana").post("/v1/jobs", json=proposal()).json()["id"]
    coordinator.decide(job, a=True, b=True, c=True)
    assert coordinator.ended(job).state == "done"
    for caller in ("ana", "op", "a"):
        answer = client(caller).get(f"/v1/jobs/{job}/result/0")
        assert f"'{caller}' is not a reader of job" in error(answer, 403)
    everything = client("op").get(f"/v1/jobs/{job}").text
    assert "centres" not in everything


def test_a_reader_gets_the_boxes_of_all_silos_and_opens_what_they_have(
    client: Client, coordinator: Coordinator
) -> None:
    document = proposal(**readable("ana", "bob"))
    job = client("ana").post("/v1/jobs", json=document).json()["id"]
    for name in ("ana", "bob"):
        assert "has no result: it is proposed" in error(
            client(name).get(f"/v1/jobs/{job}/result/0"), 409
        )
    coordinator.decide(job, a=True, b=True, c=True)
    done = coordinator.ended(job)
    assert (done.state, done.reason) == ("done", "")
    silo = coordinator.streams.clients["a", job]
    expected = silo.plan.task.results(silo.state, silo.plan.grid)
    for name in ("ana", "bob"):
        shown = client(name).get(f"/v1/jobs/{job}").json()
        assert shown["readers"] == ["ana", "bob"]
        plan = Plan.from_dict(shown["plan"])
        assert Proposer(**shown["proposal"]).signed(plan)
        answers = [client(name).get(f"/v1/jobs/{job}/result/{place}") for place in range(3)]
        assert {one.headers["content-type"] for one in answers} == {"application/octet-stream"}
        boxes = zip(plan.silos, (one.content for one in answers), strict=True)
        vouched = open_boxes(plan, IDENTITIES[name], boxes)
        assert vouched.silos == ("a", "b", "c")
        result = Release.from_dict(vouched.sums)
        assert result.results.keys() == expected.keys()
        assert all((result.results[name] == value).all() for name, value in expected.items())
        assert result.survivors == (("a", "b", "c"),) * 2
        error(client(name).get(f"/v1/jobs/{job}/result/3"), 404)
        error(client(name).get(f"/v1/jobs/{job}/result/-1"), 422)


OUTLINE = {
    *("id", "state", "task", "study", "proposer"),
    *("proposed_at", "started_at", "ended_at"),
}


@pytest.mark.parametrize("outsider", ["bob", "scorer"])
def test_a_job_is_an_outline_to_whom_it_does_not_concern(
    client: Client,
    coordinator: Coordinator,
    monkeypatch: pytest.MonkeyPatch,
    outsider: str,
) -> None:
    monkeypatch.setitem(CALLERS, "scorer", Caller("scorer", "d"))
    for state in ("proposed", "done", "declined"):
        document = proposal(**readable("ana"), study="secret plans")
        job = client("ana").post("/v1/jobs", json=document).json()["id"]
        if state == "declined":
            coordinator.decide(job, a="private reason", b=True, c=True)
        elif state == "done":
            coordinator.decide(job, a=True, b=True, c=True)
            coordinator.store.refuse(job, "c", "private reason")
            coordinator.ended(job)
        assert coordinator.job(job).state == state
        for path in (f"/v1/jobs/{job}", f"/v1/jobs/{job}/result/0", f"/jobs/{job}"):
            answer = client(outsider).get(path)
            assert answer.status_code == 403
            assert "private reason" not in answer.text
            assert document["plan"]["fingerprints"][0] not in answer.text
        listed = {one["id"]: one for one in client(outsider).get("/v1/jobs").json()["jobs"]}
        assert listed[job].keys() == OUTLINE
        assert listed[job]["state"] == state
        whole = {one["id"]: one for one in client("ana").get("/v1/jobs").json()["jobs"]}
        assert whole[job].keys() > OUTLINE
        assert client("op").get(f"/v1/jobs/{job}").json()["plan"]["readers"]


def test_a_name_enrolled_again_with_another_key_is_an_outsider(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = client("ana").post("/v1/jobs", json=proposal(**readable("bob"))).json()["id"]
    assert client("bob").get(f"/v1/jobs/{job}").status_code == 200
    for name in ("ana", "bob"):
        monkeypatch.setitem(IDENTITIES, name, Identity.new())
        assert "its readers and its silos" in error(client(name).get(f"/v1/jobs/{job}"), 403)


# Bad requests --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda d: d.pop("plan"), "body.plan: Field required."),
        (lambda d: d.update(extra=1), "body.extra: Extra inputs are not permitted."),
        (lambda d: d["proposer"].update(role="x"), "body.proposer.role: Extra inputs"),
        (lambda d: d["proposer"].update(signature="a" * 200), "body.proposer.signature:"),
        (lambda d: d.update(plan=[]), "body.plan: Input should be a valid dictionary."),
        (lambda d: d["plan"].update(fingerprints=[]), "fingerprints must name"),
        (lambda d: d["plan"].update(silos=["a", "a"]), "silos must be different"),
        (lambda d: d["plan"].update(max_rows=10**400), ""),
        (lambda d: d["plan"]["task"].update(rounds="many"), ""),
        (lambda d: d["plan"].update(task=None), "plan is not complete"),
    ],
)
def test_a_proposal_that_is_not_right_is_refused_in_one_sentence(
    client: Client, spoil: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    document = json.loads(json.dumps(proposal()))
    spoil(document)
    assert sentence in error(client("ana").post("/v1/jobs", json=document), 422)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'{"plan": NaN}', b"[" * 100_000])
def test_a_body_that_is_no_proposal_is_refused(client: Client, body: bytes) -> None:
    answer = client("ana").post(
        "/v1/jobs", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code in (400, 422)
    error(answer, answer.status_code)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("part", ["epsilon", "delta", "low", "radius", "upload_slot"])
def test_a_plan_with_a_number_that_json_does_not_have_is_refused(
    client: Client, part: str, value: str
) -> None:
    text = json.dumps(proposal(), separators=(",", ":"))
    changed = re.sub(rf'"{part}":\[?[-\d.e]+', lambda m: m[0].rstrip("-0123456789.e") + value, text)
    assert changed != text
    answer = client("ana").post(
        "/v1/jobs", content=changed, headers={"content-type": "application/json"}
    )
    error(answer, 422)


def test_a_body_that_is_too_large_is_refused_before_it_is_parsed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client("ana").app, "max_body", 1000)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr(json, "loads", never)
    large = b'{"plan": "' + b"x" * 1000

    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield b"x" * 100

    for content in (large, chunks()):
        answer = client("ana").post("/v1/jobs", content=content)
        assert answer.status_code == 413
    monkeypatch.setattr(client("ana").app, "max_body", gate.MAX_BODY)
    many = b'{"plan": {' + b'"k": 1, ' * (gate.MOST_VALUES // 2 + 1)
    answer = client("ana").post("/v1/jobs", content=many)
    assert answer.status_code == 413
    assert b"at most 100000 values" in answer.content
    stated = {"content-length": "99999999999999999999999"}
    assert client("ana").get("/v1/jobs", headers=stated).status_code == 413


def test_a_stated_length_that_is_too_large_is_refused_without_reading() -> None:
    head = {"headers": [(b"content-length", b"8388609")]}
    body = gate._body(head, _never, gate.MAX_BODY)
    assert asyncio.run(body) is None


async def _never() -> MutableMapping[str, Any]:
    raise AssertionError("read")


def test_a_body_that_does_not_arrive_is_given_up(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "BODY_SECONDS", 0.05)
    app = make_app(coordinator.jobs, coordinator.streams, identify)
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.sleep(10)
        return {}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/jobs",
        "headers": [(b"x-certificate", b"ana")],
    }
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 408


def test_a_database_that_does_not_answer_is_not_ready(
    client: Client, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client("op").get("/healthz").json() == {"status": "ok"}
    assert client("op").get("/readyz").json() == {"status": "ready"}

    def broken() -> None:
        raise LedgerError("database 'secret-host' is gone.")

    monkeypatch.setattr(coordinator.store, "check", broken)
    sentence = error(client("op").get("/readyz"), 503)
    assert "secret-host" not in sentence
    assert client("op").get("/healthz").status_code == 200


def test_an_unexpected_error_does_not_show_its_message(
    client: Client, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("a record: 42")

    monkeypatch.setattr(coordinator.store, "jobs", broken)
    assert error(client("op").get("/v1/jobs"), 500) == (
        "unexpected KeyError; see this party's log."
    )


# Streams -------------------------------------------------------------------------------------


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what the service logged; a library may log in a process in which another test ran."""
    return [record for record in caplog.records if record.name.startswith("cloister")]


def test_a_silo_opens_a_stream_and_is_remembered_by_its_certificate(
    client: Client, coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    with client("a").websocket_connect("/v1/stream", subprotocols=["cloister.1"]):
        pass
    (silo,) = client("op").get("/v1/silos").json()["silos"]
    assert silo["name"] == "a"
    assert silo["fingerprint"] == IDENTITIES["a"].fingerprint
    assert silo["connected"] is True
    assert silo["schema"] == ""
    assert silo["release"] == "0.3.0"
    assert not ours(caplog)


@pytest.mark.parametrize(
    ("stated", "kept"), [("ab" * 32, "ab" * 32), ("<script>", ""), ("ab" * 33, "")]
)
def test_a_silo_states_the_digest_of_its_schema(client: Client, stated: str, kept: str) -> None:
    address = f"/v1/stream?schema={stated}"
    with client("a").websocket_connect(address, subprotocols=["cloister.1"]):
        pass
    (silo,) = client("d").get("/v1/silos").json()["silos"]
    assert silo["schema"] == kept


@pytest.mark.parametrize("caller", ["ana", "op", "nobody"])
def test_only_silos_have_streams(client: Client, caller: str) -> None:
    with (
        pytest.raises(WebSocketDisconnect) as closed,
        client(caller).websocket_connect("/v1/stream", subprotocols=["cloister.1"]),
    ):
        pass
    assert closed.value.code == 1008


def test_a_certificate_that_expires_soon_is_warned_of(
    client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = datetime.now(UTC) + timedelta(days=7, hours=1)
    monkeypatch.setitem(CALLERS, "a", replace(CALLERS["a"], not_after=soon))
    with client("a").websocket_connect("/v1/stream", subprotocols=["cloister.1"]):
        pass
    (record,) = ours(caplog)
    assert record.getMessage() == "certificate of a expires in 7 days; renew it"
    assert record.silo == "a"  # type: ignore[attr-defined]


def test_who_is_turned_away_is_in_the_audit_file(client: Client, coordinator: Coordinator) -> None:
    client("nobody").get("/v1/jobs")
    last = json.loads((coordinator.folder / "audit.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "turned away"
    assert "certificate" in last["reason"]


# Metrics -------------------------------------------------------------------------------------

LINE = re.compile(r'^(# (HELP|TYPE) \w+ .+|\w+(\{(\w+="[^"\\\n]*",?)+\})? \d+\.0)$')


def test_metrics_count_and_hold_nothing_else(client: Client, coordinator: Coordinator) -> None:
    first = client("ana").post("/v1/jobs", json=proposal()).json()["id"]
    client("ana").post("/v1/jobs", json=proposal())
    coordinator.decide(first, a=True, b=True, c=True)
    coordinator.ended(first)
    client("ana").get("/v1/jobs/" + "0" * 32)
    client("ana").get("/v1/secret-name")
    client("nobody").get("/v1/jobs")
    answer = client("op").get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    assert all(LINE.match(line) for line in lines)
    for line in (
        'cloister_jobs{state="done"} 1.0',
        'cloister_jobs{state="proposed"} 1.0',
        'cloister_jobs{state="failed"} 0.0',
        "cloister_rounds_total 2.0",
        "cloister_connected_silos 3.0",
        'cloister_requests_total{code="201",method="POST",route="/v1/jobs"} 2.0',
        'cloister_requests_total{code="404",method="GET",route="/v1/jobs/{job_id}"} 1.0',
        'cloister_requests_total{code="401",method="GET",route=""} 1.0',
        'cloister_requests_total{code="404",method="GET",route=""} 1.0',
    ):
        assert line in lines
    assert "secret-name" not in answer.text


def test_nothing_that_leaves_the_service_depends_on_the_records(
    database_url: str, tmp_path: Path
) -> None:
    """Two coordinators, silos with other records and other numbers of them: the same answers."""
    coordinator = Coordinator(database_url, tmp_path)
    app = make_app(coordinator.jobs, coordinator.streams, identify)
    seen = []
    with TestClient(app, headers={"x-certificate": "op"}) as operator:
        for rows in (100, 7):
            document = proposal("op")
            job = operator.post("/v1/jobs", json=document).json()["id"]
            for silo in "abc":
                records = coordinator.streams.clients[silo, job]
                records._records = [toy_records(records.plan, rows=rows, seed=rows)[silo]]
            coordinator.decide(job, a=True, b=True, c=True)
            assert coordinator.ended(job).state == "done"
            wait_for(lambda j=job: (tmp_path / "audit.jsonl").read_text().count(j) >= 8)
            shown = operator.get(f"/v1/jobs/{job}").text
            audit = [
                line for line in (tmp_path / "audit.jsonl").read_text().splitlines() if job in line
            ]
            seen.append((_without_times(shown, job), [_without_times(line, job) for line in audit]))
    coordinator.close()
    assert seen[0] == seen[1]


def _without_times(text: str, job: str) -> str:
    document = json.loads(text.replace(job, "JOB"))
    drop = {"at", "hash", "previous", "seq", "digest", "proposed_at", "started_at", "ended_at"}
    for name in (*drop, "describe", "proposal"):  # signed over the nonce of the plan
        document.pop(name, None)
    if document.get("event") == "proposed":
        document.pop("plan")
    for decision in document.get("decisions", ()):
        decision.pop("at")
    return json.dumps(document, sort_keys=True)


# The whole interface -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_the_interface_keeps_its_own_description(
    sqlite_url: str, tmp_path: Path, mode: str
) -> None:
    """Schemathesis: no server errors, and only documented answers, to right and wrong requests."""
    # Only here, since every worker imports this file and one of them needs this library.
    import schemathesis
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    coordinator = Coordinator(sqlite_url, tmp_path)
    coordinator.submit()
    app = make_app(coordinator.jobs, coordinator.streams, lambda _: CALLERS["ana"])
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    calls: Counter[str] = Counter()
    for found in schema.get_all_operations():
        operation = found.ok()

        @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
        def exercise(case: schemathesis.Case) -> None:
            calls[case.operation.label] += 1
            # a plan has more rules than a schema can say
            case.call_and_validate(excluded_checks=[positive_data_acceptance])

        with suppress(Unsatisfiable):  # some routes take nothing that could be wrong
            exercise()
    assert calls["POST /v1/jobs"] >= 30
    assert len(calls) >= 5
    assert {job.state for job in coordinator.store.jobs()} == {"proposed"}
    assert len(coordinator.store.jobs()) == 1
    coordinator.close()


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every part of a JSON document."""
    yield path
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in parts:
            yield from leaves(part, (*path, key))


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 2**31, 2**63, 10**400, 1e308, -0.0])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
SOME_PLAN = json.loads(json.dumps(network_plan().to_dict()))


@settings(max_examples=max(100, settings().max_examples), suppress_health_check=list(HealthCheck))
@given(path=st.sampled_from([way for way in leaves(SOME_PLAN) if way]), value=JSON_VALUES)
def test_a_plan_with_any_part_replaced_is_refused_or_sound(
    spoilt: TestClient, path: tuple[Any, ...], value: Any
) -> None:
    document = json.loads(json.dumps(SOME_PLAN))
    part = document
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    body = {"plan": document, "proposer": signed_by("ana", network_plan())}
    answer = spoilt.post("/v1/jobs", json=body)
    assert answer.status_code == 422, answer.text
    error(answer, 422)


@pytest.fixture
def spoilt(sqlite_url: str, tmp_path: Path) -> Iterator[TestClient]:
    coordinator = Coordinator(sqlite_url, tmp_path)
    app = make_app(coordinator.jobs, coordinator.streams, lambda _: CALLERS["ana"])
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client
    coordinator.close()


def test_who_is_turned_away_again_and_again_has_one_audit_line_a_minute(
    client: Client, coordinator: Coordinator, tmp_path: Path
) -> None:
    for _ in range(50):
        assert client("mallory").get("/v1/jobs").status_code == 401
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["turned away"]
    assert lines[0]["more"] == 0
