"""Classes that the tests install at the parties of a FLARE federation, beside the product's."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply

from cloister.federation.flare.controller import Rounds
from cloister.federation.flare.executor import FlareSilo
from cloister.federation.flare.transport import TOPIC, FlareTransport, Line, answering
from cloister.federation.settings import SiloSettings
from cloister.federation.silo.agent import Agent
from cloister.federation.silo.main import open_agent
from cloister.federation.transports.http import Kind, Message
from cloister.protocol.client import Client
from cloister.protocol.plan import Plan
from cloister.protocol.session import Transport
from cloister.secagg.masks import GroupMask
from cloister.tasks import TASKS
from cloister.testing import ZeroNoise, check_transport, toy_records

MIRROR = "test.mirror"
SITES = {"a": "silo-0", "b": "silo-1", "c": "silo-2"}
JOB = "0" * 32
ECHO, EXCHANGES = b"answer this yourself", 50


class ZeroNoiseRounds(Rounds):
    """The product's controller with no noise."""

    new_noise = ZeroNoise


class ZeroNoiseSilo(FlareSilo):
    """The product's agent with no noise; it is killed once, at the message that a file numbers."""

    def open_agent(self, settings: SiloSettings) -> Any:
        agent = open_agent(settings, noise=ZeroNoise(), wait=self._ended.wait)
        return Mortal(agent, settings.ledger.with_name("die-at"))


class Mortal:
    def __init__(self, agent: Agent, order: Path) -> None:
        self._agent, self._order, self._asked = agent, order, 0

    def on_message(self, message: Message) -> list[Message]:
        self._asked += message.kind == Kind.ASK
        if self._order.exists() and self._asked == int(self._order.read_text()):
            self._order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return self._agent.on_message(message)


class Silent(Executor):
    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        return make_reply(ReturnCode.TASK_UNKNOWN)


class ToySite(Silent):
    """A silo that approves everything and has the random records of a toy plan."""

    def __init__(self) -> None:
        super().__init__()
        self.register_event_handler(EventType.START_RUN, self._start)

    def _start(self, event_type: str, fl_ctx: Any) -> None:
        engine = fl_ctx.get_engine()
        self._name = fl_ctx.get_identity_name()
        self._local = Path(engine.get_workspace().get_site_config_dir())
        self._clients: dict[str, Client] = {}
        engine.register_aux_message_handler(TOPIC, answering(self._on_message))

    def _on_message(self, message: Message) -> list[Message]:
        job = message.job
        if message.kind == Kind.OFFER:
            plan = Plan.from_dict(json.loads(message.body)["plan"], TASKS)
            mask = GroupMask(bytes.fromhex((self._local / "group.key").read_text()))
            records = [toy_records(plan)[self._name]]
            self._clients.setdefault(job, Client(plan, self._name, records, mask))
            return [Message(Kind.DECISION, 0, job, b'{"decision": "approved"}')]
        client = self._clients[job]
        if client.plan.study == "one dies" and self._name == "silo-2" and len(client.history) > 1:
            os.kill(os.getppid(), signal.SIGKILL)  # the whole site, as when its machine stops
            os.kill(os.getpid(), signal.SIGKILL)
        if message.kind == Kind.ASK:
            return [Message(Kind.ANSWER, message.number, job, client.handle(message.body))]
        states = [{n: v.tolist() for n, v in state.items()} for state in client.history]
        (self._local / f"{job}.json").write_text(json.dumps(states))
        return []


class MirrorSite(Silent):
    """A silo whose handler is in the server's process: it sends each frame back to be answered."""

    def __init__(self) -> None:
        super().__init__()
        self.register_event_handler(EventType.START_RUN, self._start)

    def _start(self, event_type: str, fl_ctx: Any) -> None:
        self._engine = fl_ctx.get_engine()
        self._name = fl_ctx.get_identity_name()
        self._engine.register_aux_message_handler(TOPIC, answering(self._on_message))

    def _on_message(self, message: Message) -> list[Message]:
        if message.body.startswith(ECHO):
            return [Message(Kind.ANSWER, message.number, message.job, message.body)]
        with self._engine.new_context() as fl_ctx:
            asked = Shareable({"silo": self._name, "frame": message.body})
            replies = self._engine.send_aux_request(["server"], MIRROR, asked, 60.0, fl_ctx)
        answer = replies["server"].get("frame")
        if answer is None:
            return [Message(Kind.REFUSE, message.number, message.job, b"{}")]
        return [Message(Kind.ANSWER, message.number, message.job, answer)]


class Renamed:
    """A transport for silos of other names than the sites have."""

    def __init__(self, inner: Transport, sites: Mapping[str, str]) -> None:
        self._inner, self._sites = inner, sites

    def exchange(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        sent = {self._sites[silo]: frame for silo, frame in frames.items()}
        silo_of = {self._sites[silo]: silo for silo in frames}
        return {silo_of[site]: answer for site, answer in self._inner.exchange(sent).items()}


class Conformance(Controller):
    """Runs the conformance suite of transports over the sites; each law that holds is a line."""

    def __init__(self) -> None:
        super().__init__()
        self._handlers: dict[str, Callable[[bytes], bytes]] = {}
        self._lock = threading.Lock()

    def start_controller(self, fl_ctx: Any) -> None: ...

    def stop_controller(self, fl_ctx: Any) -> None: ...

    def process_result_of_unknown_task(self, *args: Any, **kwargs: Any) -> None: ...

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        engine = fl_ctx.get_engine()
        engine.register_aux_message_handler(MIRROR, self._answer)
        line = Line(engine, fl_ctx)
        report = Path(engine.get_workspace().get_site_config_dir()) / "laws.txt"

        def make(handlers: Mapping[str, Callable[[bytes], bytes]]) -> Transport:
            sites = {silo: SITES.get(silo, silo) for silo in handlers}
            self._handlers = {sites[silo]: handle for silo, handle in handlers.items()}
            carrier = FlareTransport(line, JOB, SITES.values(), timeout=120.0)
            return Renamed(carrier, sites)

        laws = []
        try:
            for law in check_transport(make):
                laws.append(law)
        except Exception as error:
            laws.append(f"BROKEN: {error!r}")
        report.write_text("\n".join(laws))
        frames = dict.fromkeys(SITES.values(), ECHO + bytes(10 * 1024))
        carrier = FlareTransport(line, JOB, frames, timeout=120.0)
        seconds = []
        for _ in range(EXCHANGES):
            began = time.perf_counter()
            assert carrier.exchange(frames) == frames
            seconds.append(time.perf_counter() - began)
        report.with_name("exchange-seconds.txt").write_text(json.dumps(seconds))

    def _answer(self, topic: str, request: Any, fl_ctx: Any) -> Any:
        with self._lock:
            try:
                return Shareable({"frame": self._handlers[request["silo"]](request["frame"])})
            except Exception:
                return Shareable({})


class Evil(Silent):
    """Installed nowhere on the allow list."""
