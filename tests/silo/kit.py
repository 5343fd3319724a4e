"""A silo without a network: its files in a folder, and a coordinator that is played by the test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from cloister import Budget, Ledger
from cloister.data import Records, array_records
from cloister.federation.service.audit import Audit
from cloister.federation.settings import PolicySettings
from cloister.federation.silo.agent import Agent
from cloister.federation.silo.policy import Policy
from cloister.federation.silo.store import Store
from cloister.federation.transports.http import Kind, Message
from cloister.hazmat.signing import Identity
from cloister.protocol.client import Client
from cloister.protocol.plan import Plan
from cloister.secagg.masks import GroupMask
from cloister.tasks import TASKS

KEY = bytes(range(32))
SENTINEL = 0.12345678


@dataclass
class Site:
    """Everything a silo keeps between two lives of its agent."""

    folder: Path
    name: str = "silo-0"
    cap: float = 10.0
    standing: bool = False
    refused: str | None = None
    study_epsilon: float | None = None
    rules: dict[str, Any] = field(default_factory=dict)
    noise_label: str = "operating system"
    values: Any = None
    waits: list[float] = field(default_factory=list)
    audit: Audit | None = None
    identity: Identity = field(default_factory=Identity.new)

    def __post_init__(self) -> None:
        if self.values is None:
            self.values = np.random.default_rng(1).uniform(-1, 1, (40, 2))
            self.values[7] = SENTINEL

    @property
    def ledger_path(self) -> Path:
        return self.folder / "ledger.db"

    @property
    def store_path(self) -> Path:
        return self.folder / "ledger.jobs.db"

    def store(self) -> Store:
        return Store(self.store_path)

    def ledger(self) -> Ledger:
        ledger = Ledger(self.ledger_path)
        ledger.open_dataset("toy", cap=Budget(self.cap, 1e-6))
        return ledger

    def read(self, plan: Plan) -> Records:
        return array_records(self.values, plan.grid)

    def agent(self, **changes: Any) -> Agent:
        """Return a new life of the agent, the end of the last; it remembers what the files say."""
        if self.audit is not None:
            self.audit.close()
        self.audit = Audit(self.folder / "audit.jsonl")
        ledger = changes.pop("ledger", None) or self.ledger()

        def join(plan: Plan, records: Records) -> Client:
            return Client(plan, self.name, records, GroupMask(KEY), ledger)

        site = SimpleNamespace(
            settings=SimpleNamespace(
                name=self.name,
                results=self.folder / "results",
                ledger=self.ledger_path,
                kept_jobs=changes.pop("kept", 1000),
            ),
            schema=SimpleNamespace(dataset="toy"),
            policy=Policy(
                PolicySettings(
                    standing=self.standing,
                    max_epsilon_per_study=self.study_epsilon,
                    max_epsilon_per_year=changes.pop("year_epsilon", None),
                    **self.rules,
                )
            ),
            refusal=lambda plan, proposer: self.refused,
            records=changes.pop("read", self.read),
            tasks=TASKS,
            identity=self.identity,
        )
        options: dict[str, Any] = {
            "store": self.store(),
            "ledger": ledger,
            "audit": self.audit,
            "join": join,
            "noise_label": self.noise_label,
            "wait": lambda seconds: bool(self.waits.append(seconds)),
        }
        return Agent(site, **{**options, **changes})


def offer(plan: Plan, **changes: Any) -> Message:
    proposer = {"name": "ann", "fingerprint": "", "public": "", "signature": ""}
    document = {"plan": plan.to_dict(), "proposer": proposer, **changes}
    return Message(Kind.OFFER, 0, plan.run_id, json.dumps(document).encode())


def ask(plan: Plan, frame: bytes, number: int = 1) -> Message:
    return Message(Kind.ASK, number, plan.run_id, frame)


def end(plan: Plan, status: str = "done", reason: str = "") -> Message:
    body = json.dumps({"status": status, "reason": reason}).encode()
    return Message(Kind.END, 0, plan.run_id, body)


def said(messages: list[Message]) -> list[tuple[str, str]]:
    """Return decision and reason of each message."""
    shown = []
    for message in messages:
        document: Mapping[str, str] = json.loads(message.body)
        shown.append((document.get("decision", "refused"), document["reason"]))
    return shown
