"""Streams over real TLS on loopback: what arrives, who is waited for, and who is turned away."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from cloister.core.errors import PlanError, TransportError
from cloister.federation.service.server import Server
from cloister.federation.transports.http import (
    PATH,
    VERSION,
    Kind,
    Message,
    StreamClient,
    in_json,
)
from cloister.testing import check_transport

from .https import DAY, JOB, PATIENCE, Authority, Federation, Silo, carried, until

OTHER = "fedcba9876543210" * 2


def echo(frame: bytes) -> bytes:
    return b"|" + frame


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with Federation(tmp_path) as federation:
        yield federation


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Federation]:
    """A federation that takes silence for death after a second."""
    with Federation(tmp_path, ping=0.4) as federation:
        yield federation


@contextmanager
def closed_port() -> Iterator[int]:
    """A port of loopback at which nobody listens, and that nobody else is given meanwhile."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


def asking(federation: Federation, frames: dict[str, bytes], **options: Any) -> Any:
    """Start an exchange in a thread; return a function that waits for its answers."""
    answers: list[Any] = []

    def work() -> None:
        try:
            answers.append(federation.transport(**options).exchange(frames))
        except TransportError as error:
            answers.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def wait(seconds: float = PATIENCE) -> Any:
        thread.join(seconds)
        assert answers, "the exchange did not end in time"
        return answers[0]

    return wait


# The codec -----------------------------------------------------------------------------------


@given(
    kind=st.sampled_from(Kind),
    number=st.integers(0, 2**32 - 1),
    job=st.binary(min_size=16, max_size=16),
    body=st.binary(max_size=100),
)
def test_a_message_survives_its_coding(kind: Kind, number: int, job: bytes, body: bytes) -> None:
    message = Message(kind, number, job.hex(), body)
    assert Message.decode(message.encode()) == message


@given(data=st.one_of(st.binary(max_size=60), st.text(max_size=60)))
def test_decoding_gives_a_message_or_a_transport_error(data: object) -> None:
    try:
        message = Message.decode(data)
    except TransportError:
        return
    assert message.encode() == data


def test_a_message_is_shown_without_its_body() -> None:
    assert "secret" not in repr(Message(Kind.ANSWER, 1, JOB, b"secret"))


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"[" * 100_000, b"\xff", b"1"])
def test_words_are_a_json_object_or_a_transport_error(body: bytes) -> None:
    with pytest.raises(TransportError, match="must be JSON"):
        Message(Kind.END, 0, JOB, body).fields()


# Exchanges -----------------------------------------------------------------------------------


def test_the_conformance_suite_holds_over_tls(tmp_path: Path) -> None:
    with carried(tmp_path) as make_transport:
        assert len(list(check_transport(make_transport))) == 5


def test_two_jobs_share_a_stream_without_mixing(federation: Federation) -> None:
    for name in ("a", "b"):
        federation.silo(name, echo)
    waits = [
        asking(federation, {"a": bytes([n]), "b": bytes([n])}, job=job)
        for n in range(20)
        for job in (JOB, OTHER)
    ]
    got = [wait() for wait in waits]
    want = [{"a": b"|" + bytes([n]), "b": b"|" + bytes([n])} for n in range(20) for _ in "ab"]
    assert got == want


def test_an_answer_of_another_job_is_dropped(federation: Federation) -> None:
    silo = federation.silo("a", echo)
    seen: list[Message] = []
    true = silo._reply

    def forged_first(message: Message) -> Message:
        seen.append(message)
        silo.stream.send(Message(Kind.ANSWER, message.number, OTHER, b"forged"))
        return true(message)

    silo._reply = forged_first  # type: ignore[method-assign]  # the only place where it can lie
    assert federation.transport().exchange({"a": b"1"}) == {"a": b"|1"}
    assert len(seen) == 1


def test_a_late_answer_is_not_taken_for_that_of_the_next_exchange(federation: Federation) -> None:
    release = threading.Event()

    def slow(frame: bytes) -> bytes:
        if frame == b"1":
            release.wait(PATIENCE)
        return echo(frame)

    federation.silo("a", slow)
    assert federation.transport(round_timeout=0.3).exchange({"a": b"1"}) == {}
    release.set()
    assert federation.transport().exchange({"a": b"2"}) == {"a": b"|2"}


def test_an_answer_counts_once(federation: Federation) -> None:
    silo = federation.silo("a", echo)
    first = silo._reply

    def twice(message: Message) -> Message:
        silo.stream.send(first(message))
        return Message(Kind.ANSWER, message.number, message.job, b"second")

    silo._reply = twice  # type: ignore[method-assign]
    assert federation.transport().exchange({"a": b"1"}) == {"a": b"|1"}


def test_a_silo_that_refuses_is_not_waited_for(federation: Federation) -> None:
    def refuse(frame: bytes) -> bytes:
        raise PlanError("not under this policy.")

    federation.silo("a", refuse)
    federation.silo("b", echo)
    began = time.monotonic()
    assert federation.transport().exchange({"a": b"1", "b": b"1"}) == {"b": b"|1"}
    assert time.monotonic() - began < PATIENCE / 2, "a silo that is waited for has all of it"
    assert federation.refusals == [("a", "not under this policy.")]


def test_a_refusal_is_told_before_the_others_have_answered(federation: Federation) -> None:
    release = threading.Event()

    def refuse(frame: bytes) -> bytes:
        raise PlanError("no.")

    def slow(frame: bytes) -> bytes:
        release.wait(PATIENCE)
        return echo(frame)

    federation.silo("a", refuse)
    federation.silo("b", slow)
    wait = asking(federation, {"a": b"1", "b": b"1"})
    until(lambda: federation.refusals == [("a", "no.")], PATIENCE / 2)
    release.set()
    assert wait() == {"b": b"|1"}


def test_a_frozen_silo_is_given_up_at_the_deadline(federation: Federation) -> None:
    federation.silo("a", federation.hang)
    federation.silo("b", echo)
    began = time.monotonic()
    answers = federation.transport(round_timeout=3.0).exchange({"a": b"1", "b": b"1"})
    assert answers == {"b": b"|1"}
    assert 2.9 < time.monotonic() - began < PATIENCE / 2


def test_a_killed_silo_is_noticed_at_once(federation: Federation) -> None:
    asked = threading.Event()

    def hang(frame: bytes) -> bytes:
        asked.set()
        return federation.hang(frame)

    silo = federation.silo("a", hang)
    wait = asking(federation, {"a": b"1"}, grace=0.1)
    assert asked.wait(PATIENCE)
    began = time.monotonic()
    silo.kill()
    assert wait() == {}
    assert time.monotonic() - began < PATIENCE / 2, "not at the deadline of the round"


def test_a_killed_process_is_noticed_within_a_second(federation: Federation) -> None:
    """The best of five: a busy machine delays some, a wait for pings or the round delays all."""
    party = federation.ca.issue("a")
    assert any(seconds_until_noticed(federation, party) < 1 for _ in range(5))


def seconds_until_noticed(federation: Federation, party: Path) -> float:
    """Kill a real process that is waited for: its kernel closes the connection."""
    program = (
        "import ssl, sys, time\n"
        "from cloister.federation.transports.http import StreamClient\n"
        "url, ca, party = sys.argv[1:]\n"
        "tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)\n"  # of 3.13, the default one is strict
        "tls.load_verify_locations(ca)\n"
        "tls.load_cert_chain(party)\n"
        "stream = StreamClient(url, tls).connect()\n"
        "while True: stream.receive()\n"
    )
    command = [sys.executable, "-c", program, federation.url(), str(federation.ca.path), str(party)]
    process = subprocess.Popen(command)
    try:
        until(lambda: "a" in federation.hub.connected())
        wait = asking(federation, {"a": b"1"}, grace=0)
        until(lambda: federation.hub._exchanges)
        began = time.monotonic()
    finally:
        process.kill()
    assert wait() == {}
    seconds = time.monotonic() - began
    process.wait()
    return seconds


def test_a_silo_that_returns_within_grace_is_asked_again(federation: Federation) -> None:
    asked = threading.Event()

    def hang(frame: bytes) -> bytes:
        asked.set()
        return federation.hang(frame)

    silo = federation.silo("a", hang)
    wait = asking(federation, {"a": b"1"})
    assert asked.wait(PATIENCE)
    silo.kill()
    until(lambda: not federation.hub.connected())
    federation.silo("a", echo)
    assert wait() == {"a": b"|1"}


def test_an_absent_silo_is_waited_for_and_then_given_up(federation: Federation) -> None:
    federation.silo("b", echo)
    began = time.monotonic()
    answers = federation.transport(grace=0.4).exchange({"a": b"1", "b": b"1"})
    assert answers == {"b": b"|1"}
    assert 0.3 < time.monotonic() - began < PATIENCE / 2


def test_a_silo_that_comes_first_of_all_and_late_is_asked(federation: Federation) -> None:
    wait = asking(federation, {"a": b"1"})
    time.sleep(0.2)
    federation.silo("a", echo)
    assert wait() == {"a": b"|1"}


def test_nobody_ever_connected_is_nobody_answered(federation: Federation) -> None:
    assert federation.transport(grace=0.2).exchange({"a": b"1"}) == {}


def test_a_silo_that_comes_and_goes_cannot_hold_an_exchange_open(federation: Federation) -> None:
    """Each return is asked again, yet the whole has an end."""
    wait = asking(federation, {"a": b"1"}, round_timeout=0.6, grace=0.6)
    client = federation.client("a")

    def over() -> bool:
        Silo(client, federation.hang).kill()
        time.sleep(0.1)
        with suppress(AssertionError):
            return wait(0) == {}
        return False

    until(over)


def test_a_second_stream_replaces_the_first(federation: Federation) -> None:
    asked, answered = threading.Event(), threading.Event()

    def hang(frame: bytes) -> bytes:
        asked.set()
        answered.wait(PATIENCE)
        return b"from the first"

    first = federation.silo("a", hang)
    wait = asking(federation, {"a": b"1"}, grace=0)
    assert asked.wait(PATIENCE)
    federation.silo("a", echo)
    assert wait() == {"a": b"|1"}
    answered.set()
    assert "replaced by a newer stream of 'a'" in str(first.wait())
    assert federation.hub.connected() == ("a",)


def test_stop_ends_an_exchange_soon(federation: Federation) -> None:
    federation.silo("a", federation.hang)
    stop = threading.Event()
    wait = asking(federation, {"a": b"1"}, stop=stop)
    until(lambda: federation.hub._exchanges)
    stop.set()
    assert isinstance(wait(PATIENCE / 2), TransportError), "before the round is over"
    until(lambda: not federation.hub._exchanges)


def test_stop_ends_an_exchange_that_waits_for_the_first_silo(federation: Federation) -> None:
    stop = threading.Event()
    wait = asking(federation, {"a": b"1"}, stop=stop)
    stop.set()
    assert isinstance(wait(PATIENCE / 2), TransportError)


def test_the_end_of_the_service_ends_its_exchanges(tmp_path: Path) -> None:
    with Federation(tmp_path) as federation:
        federation.silo("a", federation.hang)
        wait = asking(federation, {"a": b"1"}, round_timeout=600, grace=600)
        until(lambda: federation.hub._exchanges)
    assert isinstance(wait(), TransportError)


def test_the_end_of_the_service_is_told_and_noticed(tmp_path: Path) -> None:
    with Federation(tmp_path) as federation:
        silo = federation.silo("a", echo)
        federation.server.stop()
        assert "has ended" in str(silo.wait())


def test_a_frozen_process_is_taken_for_lost_after_the_pings(impatient: Federation) -> None:
    """Nobody reads at the other end, so no pong comes; TLS and TCP are in perfect health."""
    client = impatient.client("a")
    began = time.monotonic()
    raw, _ = handshake(impatient, client.ssl_context)
    until(lambda: impatient.came == ["a"])
    until(lambda: not impatient.hub.connected())
    assert 0.7 < time.monotonic() - began < 25, "the end of TLS would be waited for 30 s"
    raw.close()


def test_a_frozen_coordinator_is_taken_for_lost_after_the_pings(federation: Federation) -> None:
    client = federation.client("a", ping_interval=0.3, ping_timeout=0.3)
    silo = Silo(client, echo)
    until(lambda: federation.came == ["a"])
    loop, thaw = federation.hub._loop, threading.Event()
    assert loop is not None
    loop.call_soon_threadsafe(thaw.wait, 2 * PATIENCE)
    try:
        assert "keepalive ping timeout" in str(silo.wait())
    finally:
        thaw.set()


def test_a_silo_that_does_not_read_holds_up_nobody_and_little_memory(
    federation: Federation,
) -> None:
    raw, _ = handshake(federation, federation.client("a").ssl_context)
    until(lambda: "a" in federation.hub.connected())
    federation.silo("b", echo)
    big = bytes(federation.max_message_bytes - 100)
    for _ in range(40):
        transport = federation.transport(round_timeout=0.01, grace=0)
        transport.exchange({"a": big})
        if "a" not in federation.hub.connected():
            break
    assert federation.transport().exchange({"b": b"1"}) == {"b": b"|1"}
    until(lambda: "a" not in federation.hub.connected())
    raw.close()


# Offers, decisions, ends ---------------------------------------------------------------------


def test_offers_and_ends_reach_a_connected_silo_in_order(federation: Federation) -> None:
    silo = federation.silo("a", echo)
    federation.hub.offer("a", JOB, {"plan": {"k": 3}, "proposer": {}})
    federation.hub.end("a", JOB, "done", "")
    federation.hub.offer("b", JOB, {"plan": {}})  # not there; no error
    until(lambda: len(silo.heard) == 2)
    assert [message.kind for message in silo.heard] == [Kind.OFFER, Kind.END]
    assert silo.heard[0].fields() == {"plan": {"k": 3}, "proposer": {}}
    assert silo.heard[1].fields() == {"status": "done", "reason": "", "convictions": []}


def test_what_is_offered_at_connection_comes_on_that_connection(federation: Federation) -> None:
    federation.on_connect = lambda silo: federation.hub.offer(silo, JOB, {"plan": {}})
    silo = federation.silo("a", echo)
    until(lambda: [message.kind for message in silo.heard] == [Kind.OFFER])


def test_decisions_arrive_in_order_under_the_name_of_the_certificate(
    federation: Federation,
) -> None:
    silo = federation.silo("a", echo)
    for n in range(10):
        decision = "approved" if n % 2 else "declined"
        body = in_json(decision=decision, reason=f"{n}\n", silo="b")
        silo.stream.send(Message(Kind.DECISION, 0, JOB, body))
    until(lambda: len(federation.decisions) == 10)
    assert federation.decisions == [("a", JOB, n % 2 == 1, f"{n} ") for n in range(10)]


def test_a_decision_that_cannot_be_kept_ends_the_stream_so_that_it_is_made_again(
    federation: Federation,
) -> None:
    def fail(silo: str) -> None:
        raise OSError("disk full at /secret/place")

    federation.on_connect = fail
    silo = federation.silo("a", echo)
    assert "local problem; connect again" in str(silo.wait())


# Bad input -----------------------------------------------------------------------------------


def bad(federation: Federation, data: bytes | str) -> str:
    """Send something as silo a; return why the stream was closed."""
    silo = federation.silo("a", echo)
    with suppress(ConnectionClosed):  # it may be closed before all is sent
        silo.stream._loop.ask(silo.stream._connection.send(data)).result()
    return str(silo.wait())


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("text", "must be binary"),
        (b"", "at least 21 bytes, got 0"),
        (b"\x12" + bytes(19), "at least 21 bytes, got 20"),
        (b"\x63" + bytes(20), "kind 99 are unknown"),
        (b"\x02" + bytes(20), "does not accept messages of kind 2"),
        (b"\x11" + bytes(20) + b"{", "must be JSON"),
        (b"\x11" + bytes(20) + b"{}", "decision must be"),
        (b"\x13" + bytes(20) + b"[]", "must be JSON"),
        (b"\x11" + bytes(20) + b" " * 70_000 + b"{}", "at most 65536 bytes"),
        (b"\x12" + bytes(2**20), "exceeded its limit"),
    ],
    ids=["text", "empty", "cut", "kind", "wrong way", "json", "word", "list", "long", "oversized"],
)
def test_what_breaks_the_rules_closes_the_stream_with_a_sentence(
    federation: Federation, data: bytes | str, sentence: str
) -> None:
    federation.silo("b", echo)
    assert sentence in bad(federation, data)
    assert federation.transport().exchange({"b": b"1"}) == {"b": b"|1"}, "others are not disturbed"
    assert federation.decisions == []


def test_an_oversized_frame_is_refused_before_it_is_sent(federation: Federation) -> None:
    federation.silo("a", echo)
    with pytest.raises(TransportError, match=r"at most 1048576 bytes, got 1048597; raise"):
        federation.transport().exchange({"a": bytes(2**20)})
    assert federation.transport().exchange({"a": b"1"}) == {"a": b"|1"}
    with pytest.raises(TransportError, match="at most 1048576 bytes"):
        federation.hub.offer("a", JOB, {"plan": "x" * 2**20})


def test_an_oversized_answer_is_refused_at_the_silo_too(federation: Federation) -> None:
    stream = federation.client("a").connect()
    with pytest.raises(TransportError, match="at most 1048576 bytes"):
        stream.send(Message(Kind.ANSWER, 1, JOB, bytes(2**20)))
    stream.close()


def test_the_largest_message_passes_both_ways(federation: Federation) -> None:
    federation.silo("a", lambda frame: frame)
    largest = os.urandom(2**20 - 21)
    assert federation.transport().exchange({"a": largest}) == {"a": largest}


def test_a_silo_closes_on_a_coordinator_that_breaks_the_rules(federation: Federation) -> None:
    stream = federation.client("a").connect()
    until(lambda: federation.came == ["a"])
    loop = federation.hub._loop
    assert loop is not None
    loop.call_soon_threadsafe(federation.hub._post, "a", b"\x12" + bytes(20))
    with pytest.raises(TransportError, match="does not accept messages of kind 18"):
        stream.receive(PATIENCE)
    until(lambda: not federation.hub.connected())


def test_receive_returns_none_when_nothing_came_in_time(federation: Federation) -> None:
    stream = federation.client("a").connect()
    assert stream.receive(0.05) is None
    stream.close()


# Who is let in -------------------------------------------------------------------------------


def refused(client: StreamClient) -> str:
    with pytest.raises(TransportError) as caught:
        client.connect()
    return str(caught.value)


def test_the_name_must_resolve(federation: Federation) -> None:
    url = "https://no-such-host.invalid:8443"
    assert "does not resolve" in refused(federation.client("a", url=url))


def test_somebody_must_listen(federation: Federation) -> None:
    with closed_port() as port:
        client = federation.client("a", url=f"https://localhost:{port}")
        assert f"no server listens at 'localhost:{port}'" in refused(client)


def test_a_listener_that_says_nothing_is_given_up(federation: Federation) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://localhost:{listener.getsockname()[1]}"
        sentence = refused(federation.client("a", url=url, open_timeout=0.3))
    assert "no answer from" in sentence
    assert "0.3 seconds" in sentence


def test_a_coordinator_that_freezes_after_tls_is_given_up(federation: Federation) -> None:
    """Its session tickets arrive and nothing else, which must not hold a reader for good."""
    client = federation.client("a", open_timeout=0.5)
    party = federation.ca.issue("frozen", hosts=("localhost",))
    context = federation.ca.context(ssl.PROTOCOL_TLS_SERVER, party)
    kept: list[ssl.SSLSocket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def freeze() -> None:
            kept.append(context.wrap_socket(listener.accept()[0], server_side=True))

        threading.Thread(target=freeze, daemon=True).start()
        url = f"https://localhost:{listener.getsockname()[1]}"
        began = time.monotonic()
        assert "no answer from" in refused(replace(client, url=url))
    assert time.monotonic() - began < PATIENCE / 2


@pytest.mark.parametrize("url", ["http://localhost:1", "localhost:1", "https://", "ftp://x"])
def test_only_https_is_dialled(federation: Federation, url: str) -> None:
    assert "must be https://HOST:PORT" in refused(federation.client("a", url=url))


def test_a_coordinator_of_another_ca_is_not_accepted(
    federation: Federation, tmp_path: Path
) -> None:
    foreign = Authority(tmp_path, "foreign")
    party = federation.ca.issue("a")
    sentence = refused(federation.client("a", trusted=foreign, party=party))
    assert "not issued by this federation's CA" in sentence


@pytest.mark.parametrize(
    ("validity", "sentence"),
    [({"begin": -2 * DAY, "end": -DAY}, "has expired"), ({"begin": DAY}, "not valid yet")],
)
def test_a_coordinator_out_of_its_time_is_not_accepted(
    tmp_path: Path, validity: dict[str, Any], sentence: str
) -> None:
    with Federation(tmp_path) as federation:
        party = federation.ca.issue("late", hosts=("localhost",), **validity)
        server = Server(
            federation._app,
            "127.0.0.1:0",
            federation.ca.context(ssl.PROTOCOL_TLS_SERVER, party),
        )
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        client = federation.client("a", url=f"https://localhost:{server.port}")
        assert sentence in refused(client)
        server.stop()
        thread.join(PATIENCE)


def test_a_coordinator_under_another_name_is_not_accepted(federation: Federation) -> None:
    with Forwarder("127.0.0.2", federation.server.port) as forwarder:
        url = f"https://127.0.0.2:{forwarder.port}"
        assert "is for another address" in refused(federation.client("a", url=url))


def test_a_silo_of_another_ca_is_turned_away(federation: Federation, tmp_path: Path) -> None:
    party = Authority(tmp_path, "foreign").issue("a")
    sentence = refused(federation.client("a", party=party))
    assert "rejects this party's certificate" in sentence
    assert federation.peers == [], "the application never hears of it"


def test_a_silo_with_an_expired_certificate_is_turned_away(federation: Federation) -> None:
    party = federation.ca.issue("a", begin=-2 * DAY, end=-DAY)
    sentence = refused(federation.client("a", party=party))
    assert "rejects this party's certificate" in sentence
    assert federation.peers == []


def test_a_silo_without_a_certificate_is_turned_away(federation: Federation) -> None:
    context = federation.ca.context(ssl.PROTOCOL_TLS_CLIENT, None)
    sentence = refused(federation.client("a", ssl_context=context))
    assert "certificate" in sentence
    assert federation.peers == []


def test_an_unknown_silo_is_refused_with_a_way_out(federation: Federation) -> None:
    assert "not enrolled as a silo, or was revoked" in refused(federation.client("mallory"))
    assert federation.hub.connected() == ()


def test_older_tls_is_refused(federation: Federation) -> None:
    context = federation.ca.context(ssl.PROTOCOL_TLS_CLIENT, federation.ca.issue("a"))
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert "closed the connection during the handshake" in refused(
        federation.client("a", ssl_context=context)
    )
    assert federation.peers == []


def test_a_peer_of_another_protocol_version_is_refused_with_one_sentence(
    federation: Federation,
) -> None:
    raw, answer = handshake(federation, federation.client("a").ssl_context, "cloister.99")
    assert answer.startswith(b"HTTP/1.1 426")
    sentence = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert f"is {VERSION}, the silo offers ['cloister.99']; install the same" in sentence
    assert federation.hub.connected() == ()
    raw.close()


def test_a_silo_of_the_version_before_takes_part_without_parts(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloister.federation.transports.http.VERSIONS", ("cloister.1",))
    silo = federation.silo("a", echo)
    large = os.urandom(500_000)
    assert federation.transport().exchange({"a": large}) == {"a": b"|" + large}
    assert silo.stream._incoming is None


def test_a_silo_refuses_a_coordinator_of_another_version(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = federation.client("a")
    monkeypatch.setattr("cloister.federation.transports.http.VERSIONS", ("cloister.99",))
    assert "install the same version" in refused(client)


def test_requests_carry_the_certificate_too(federation: Federation) -> None:
    context = federation.client("a").ssl_context
    connection = http.client.HTTPSConnection("localhost", federation.server.port, context=context)
    for _ in range(2):  # also the second request of a connection
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"a"
    connection.close()


def test_a_server_that_asks_for_no_certificate_is_not_started(federation: Federation) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(TransportError, match="must ask for client certificates"):
        Server(federation._app, "127.0.0.1:0", context)


@pytest.mark.parametrize(
    "listen", ["127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", "nowhere.invalid:0"]
)
def test_a_port_that_cannot_be_had_is_said(federation: Federation, listen: str) -> None:
    context = federation.ca.context(ssl.PROTOCOL_TLS_SERVER, federation.ca.issue("x"))
    with pytest.raises(TransportError, match="cannot listen at"):
        Server(federation._app, listen, context)


def test_a_port_that_is_taken_is_said(federation: Federation) -> None:
    context = federation.ca.context(ssl.PROTOCOL_TLS_SERVER, federation.ca.issue("x"))
    with pytest.raises(TransportError, match="Address already in use"):
        Server(federation._app, f"127.0.0.1:{federation.server.port}", context)


# Proxies -------------------------------------------------------------------------------------


class Forwarder:
    """Carries bytes to a port of loopback; as a proxy it takes CONNECT first."""

    def __init__(self, host: str, to: int | None, status: bytes = b"200 OK") -> None:
        self._to = to
        self._status = status
        self._listener = socket.create_server((host, 0))
        self.port = self._listener.getsockname()[1]
        self.requests: list[bytes] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        port = self._to
        if port is None:
            request = b""
            while not request.endswith(b"\r\n\r\n"):
                request += near.recv(1)
            self.requests.append(request)
            near.sendall(b"HTTP/1.1 " + self._status + b"\r\n\r\n")
            if not self._status.startswith(b"200"):
                near.close()
                return
            port = int(request.split()[1].rpartition(b":")[2])
        far = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=_pump, args=(far, near), daemon=True).start()
        _pump(near, far)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def test_a_proxy_carries_the_stream_and_cannot_read_it(federation: Federation) -> None:
    with Forwarder("127.0.0.1", None) as proxy:
        url = f"http://user:word@127.0.0.1:{proxy.port}"
        federation.silo("a", echo, proxy=url)
        assert federation.transport().exchange({"a": b"1"}) == {"a": b"|1"}
        login = b"Basic " + base64.b64encode(b"user:word")
        assert login in proxy.requests[0]
        assert PATH.encode() not in proxy.requests[0]


class Cutting(Forwarder):
    """Carries bytes, and hangs up for once when one direction has carried `most`."""

    def __init__(self, to: int, most: int) -> None:
        super().__init__("localhost", to)
        self.left = most
        self.carried = 0

    def _carry(self, near: socket.socket) -> None:
        far = socket.create_connection(("127.0.0.1", self._to))
        threading.Thread(target=self._count, args=(far, near), daemon=True).start()
        self._count(near, far)

    def _count(self, source: socket.socket, sink: socket.socket) -> None:
        carried = 0
        with suppress(OSError):
            while data := source.recv(4096):
                carried += len(data)
                self.carried += len(data)
                if carried > self.left:
                    self.left = 2**40
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("answer_is", ["large", "small"])
def test_a_frame_goes_on_where_its_connection_was_cut(
    federation: Federation, answer_is: str
) -> None:
    """Cut after 600 kB of 1 MB in one direction, a second stream carries the rest."""
    large, small = os.urandom(1_000_000), b"1"
    asked, answer = (small, large) if answer_is == "large" else (large, small)
    with Cutting(federation.server.port, most=600_000) as line:
        client = federation.client("a", url=f"https://localhost:{line.port}")
        first = Silo(client, lambda frame: answer)
        until(lambda: federation.came == ["a"])
        wait = asking(federation, {"a": asked})
        first.wait()
        assert line.carried < 700_000
        second = Silo(client, lambda frame: answer)
        assert wait() == {"a": answer}
        assert [message.body for message in second.heard] == [asked]
        # Parts double: of 600 kB, over 250 kB had been acknowledged.
        assert line.carried < 1_400_000, "not 1.6 MB and more, as if nothing had been kept"
        second.close()


def test_a_proxy_that_says_no_is_said_without_its_password(federation: Federation) -> None:
    with Forwarder("127.0.0.1", None, b"407 Proxy Authentication Required") as proxy:
        url = f"http://user:word@127.0.0.1:{proxy.port}"
        sentence = refused(federation.client("a", proxy=url))
    assert "407" in sentence
    assert "check proxy" in sentence
    assert "word" not in sentence
    assert "word" not in repr(federation.client("a", proxy=url))


def test_a_proxy_that_is_not_there_is_said(federation: Federation) -> None:
    with closed_port() as port:
        sentence = refused(federation.client("a", proxy=f"http://127.0.0.1:{port}"))
    assert f"no server listens at '127.0.0.1:{port}'; check proxy" in sentence


# A client of bytes ---------------------------------------------------------------------------


def handshake(
    federation: Federation, context: ssl.SSLContext, version: str = VERSION
) -> tuple[ssl.SSLSocket, bytes]:
    """Open a stream by hand; return the socket, which nobody reads, and the response."""
    plain = socket.create_connection(("127.0.0.1", federation.server.port))
    raw = context.wrap_socket(plain, server_hostname="localhost")
    raw.sendall(
        f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: {version}\r\n\r\n".encode()
    )
    response = b""
    raw.settimeout(PATIENCE)
    while b"\r\n\r\n" not in response:
        response += raw.recv(65536)
    if not response.startswith(b"HTTP/1.1 101"):
        while chunk := raw.recv(65536):
            response += chunk
    return raw, response
