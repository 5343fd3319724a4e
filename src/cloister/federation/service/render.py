"""Texts of the coordinator's jobs, for the terminal and for pages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from cloister.core.display import Table
from cloister.protocol.lifecycle import MEANING


def priced(task: str, budget: Mapping[str, float] | None) -> str:
    """Return a task and its price, for lists of jobs."""
    return f"{task}, epsilon {budget['epsilon']:g}" if budget else task


def moment(seconds: float | None) -> str:
    """Return a time as text, in UTC."""
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def progress(job: Mapping[str, Any]) -> str:
    """Return the numbers of finished rounds and of all rounds of a job, as text."""
    return f"{job['rounds_done']} of {job['rounds']}"


def facts(job: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines that describe a job, from its details."""
    lines = [
        ("job", job["id"]),
        ("state", job["state"]),
        ("meaning", MEANING[job["state"]]),
        ("because", job["reason"]),
        ("waits for", job["waiting_for"]),
        ("requested by", job["proposer"]),
        ("study", job["study"]),
        ("other readers", ", ".join(job["readers"])),
        ("plan digest", job["digest"]),
        ("rounds", progress(job)),
        ("survivors", ", ".join(job["survivors"])),
        *((when, moment(job[f"{when}_at"])) for when in ("proposed", "started", "ended")),
    ]
    return [(name, value) for name, value in lines if value]


def members(job: Mapping[str, Any]) -> Table:
    """Return the decision and the last refusal of each silo, from a job's details."""
    decisions = {decision["silo"]: _decided(decision) for decision in job["decisions"]}
    rows = tuple(
        (silo, decisions.get(silo, "undecided"), job["refusals"].get(silo, ""))
        for silo in job["silos"]
    )
    return Table("Silos", ("silo", "decision", "later refusal"), rows)


def _decided(decision: Mapping[str, Any]) -> str:
    return "approved" if decision["approved"] else f"declined: {decision['reason']}"
