"""The life cycle of a job: the states that each party keeps for it, and all steps between them.

Two rules apply. Every step is in this file: a party that attempts another step fails. This file
takes no decisions: they are in :mod:`cloister.federation.service.jobs` for the coordinator. For a
silo they are in :mod:`cloister.federation.silo.agent` and in the owner's commands.

Theory of operation
-------------------
A job has three records, and each of them is independent of the others.

The **coordinator** transports frames. It keeps a proposal, the decisions on it, and one answer for
each round. It starts a job once, with the silos that approved, and ends it once. Its record
protects no silo: it can only make a silo stop.

A **silo** decides. Its record has more states than the coordinator's. After the owner (or a
standing rule) accepts, the ledger reserves the whole cost, and only then the silo informs the
coordinator. A step is a compare-and-set in the file of jobs. If the agent and an owner's command
decide at the same time, the later step fails, as the job has left its source.

A silo's **ledger** pays. In it a job is open, from the reservation on, or closed. It is open
exactly while the silo's record is in `GRANTED`, or will be closed at the next poll. The record
changes first and the ledger closes second. A crash between the two leaves too much charged, never
too little.

In every row below, the durable content is written before anything is sent. A restarted party reads
its records and repeats its last messages; every message may be repeated.

::

    coordinator   proposed -> running -> done
                      |          +-----> failed
                      +-> declined, cancelled, failed

    silo          waiting -> accepted -> approved -> running -> finished -> done
                      |          |           |          |           |
                      +----------+-----------+----------+-----------+-> withdrawn, cancelled, failed
                      +----------+-----------+-> declined

    ledger        ----------------------|  open             |---- closed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Literal, TypeVar, get_args

CoordinatorState = Literal["proposed", "running", "done", "failed", "declined", "cancelled"]
STATES: tuple[CoordinatorState, ...] = get_args(CoordinatorState)
MOST_REASON = 500
"""Characters of a silo's reason that the coordinator keeps."""
ENDED: tuple[CoordinatorState, ...] = ("done", "failed", "declined", "cancelled")
MEANING: Mapping[CoordinatorState, str] = {
    "proposed": "Its silos have to decide; nothing has left them.",
    "running": "Its silos compute, round by round.",
    "done": "All rounds are released; its silos have the result, and its readers can fetch it.",
    "failed": "It could not go on; what left a silo stays charged there.",
    "declined": "Too few silos approved; nothing left them, and nothing is charged.",
    "cancelled": "Nothing more is requested; what left a silo stays charged there.",
}
"""The explanation of each state for users who wait for a job."""


class SiloState(StrEnum):
    """The state of a job at a silo."""

    WAITING = "waiting"  # for the owner's decision
    ACCEPTED = "accepted"  # by the owner or a standing rule; next, the ledger reserves the cost
    APPROVED = "approved"  # the whole cost is reserved; next, the coordinator is informed
    RUNNING = "running"  # at least one frame was requested
    FINISHED = "finished"  # the result is stored; repeated requests are answered until the end
    DONE = "done"  # ended by the coordinator, after it finished here
    DECLINED = "declined"  # by the owner, the policy or the ledger, before any frame is answered
    WITHDRAWN = "withdrawn"  # by the owner, at any time
    CANCELLED = "cancelled"  # by the coordinator, which also cancels for silos it starts without
    DECLINED_ELSEWHERE = "declined elsewhere"  # by the coordinator, since too few silos approved
    FAILED = "failed"  # ended by the coordinator before it finished here


_W, _A, _G = SiloState.WAITING, SiloState.ACCEPTED, SiloState.APPROVED
_R, _F = SiloState.RUNNING, SiloState.FINISHED
UNDECIDED = (_W, _A)
GRANTED = (_G, _R, _F)  # frames are answered, and the ledger's reservation is open
OPEN = UNDECIDED + GRANTED

_State = TypeVar("_State", bound=str)


@dataclass(frozen=True)
class Step(Generic[_State]):
    """A row of the table.

    Parameters
    ----------
    event : str
        The event that causes the step.
    sources : tuple of states
        States in which a job may be when it happens; empty for a new job.
    durable : str
        Content that is on disk before anything is sent.
    sent : str
        Messages to the other parties.
    """

    event: str
    sources: tuple[_State, ...]
    target: _State
    durable: str
    sent: str


_Coordinators = Step[CoordinatorState]

PROPOSE = _Coordinators(
    "an analyst proposes", (), "proposed", "plan, proposer and members", "OFFER to the members"
)
START = _Coordinators(
    "all decided, or the time is over",
    ("proposed",),
    "running",
    "who takes part",
    "END to the others; then ASK after ASK",
)
ENDS: dict[CoordinatorState, _Coordinators] = {
    "declined": _Coordinators(
        "too few approved", ("proposed",), "declined", "who declined and why", "END"
    ),
    "cancelled": _Coordinators(
        "its proposer or the operator cancels", ("proposed", "running"), "cancelled", "", "END"
    ),
    "failed": _Coordinators("it cannot go on", ("proposed", "running"), "failed", "why", "END"),
    "done": _Coordinators(
        "the last round is released",
        ("running",),
        "done",
        "the answer of every round; the result, sealed to each reader",
        "END",
    ),
}
COORDINATOR = (PROPOSE, START, *ENDS.values())

# Three steps between the owner's approval and the first byte: each can be repeated after a crash.
ACCEPT = Step("the owner approves", (_W,), _A, "the decision", "")
RESERVE = Step(
    "the ledger has room", (_A,), _G, "the reservation, in the ledger", "DECISION approved"
)
DENY = Step(
    "the owner, the policy or the ledger declines",
    UNDECIDED,
    SiloState.DECLINED,
    "who declined and why",
    "DECISION declined",
)
# The owner may change the policy after the approval; it is checked once more before any byte.
REFUSE = Step(
    "the policy has changed when the first frame comes",
    (_G,),
    SiloState.DECLINED,
    "why; then the ledger closes the job, and nothing of it is charged",
    "REFUSE, DECISION declined",
)
BEGIN = Step("the first frame comes", (_G,), _R, "its answer and charge, in the ledger", "ANSWER")
FINISH = Step("the last frame is answered", (_R,), _F, "the result", "ANSWER")
WITHDRAW = Step(
    "the owner leaves",
    OPEN,
    SiloState.WITHDRAWN,
    "the decision; then the ledger closes the job, what left stays charged",
    "DECISION declined; no frame any more",
)
CLOSES: dict[SiloState, Step[SiloState]] = {
    SiloState.DONE: Step(
        "the coordinator ends a job that was finished here",
        (_F,),
        SiloState.DONE,
        "that no request will follow; then the ledger closes the job",
        "",
    ),
    SiloState.CANCELLED: Step(
        "the coordinator cancels, or starts without this silo",
        OPEN,
        SiloState.CANCELLED,
        "likewise",
        "",
    ),
    SiloState.DECLINED_ELSEWHERE: Step(
        "the coordinator ends a job that other silos declined",
        OPEN,
        SiloState.DECLINED_ELSEWHERE,
        "likewise",
        "",
    ),
    SiloState.FAILED: Step(
        "the coordinator gives up, or ends a job that did not finish here",
        OPEN,
        SiloState.FAILED,
        "likewise",
        "",
    ),
}
SILO = (ACCEPT, RESERVE, DENY, REFUSE, BEGIN, FINISH, WITHDRAW, *CLOSES.values())
