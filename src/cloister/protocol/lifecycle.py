"""The life of a job: the states that each party has for it, and every step between them.

Two rules. Every step is in this file: a party that wants another one fails. And this file decides
nothing and does nothing: who takes a step, and why, is in :mod:`cloister.federation.service.jobs`
for the coordinator and in :mod:`cloister.federation.silo.agent` and the owner's commands for a
silo.

Theory of operation
-------------------
A job has three records, none of which can be worked out from the others.

The **coordinator** carries. It keeps a proposal, the decisions on it, and one answer for each
round. It starts a job once, with those who approved, and ends it once. What it says of a job
protects nobody: it can only make a silo stop.

A **silo** decides. Its record goes further than the coordinator's, because more has to happen
between its owner's yes and the first byte that leaves: the owner (or a standing rule) accepts, then
the ledger reserves the whole cost, and only then is the coordinator told. A step is a
compare-and-set in the file of jobs: of two parties that decide at once, such as the agent and a
command of the owner, one finds that the job is no longer where its step begins.

A silo's **ledger** pays. To it a job is open, from the reservation on, or closed. It is open
exactly while the silo's record is in `GRANTED`, or will be closed at the next look: first the
record moves, then the ledger closes, so that a crash between both leaves too much charged and never
too little.

What is durable precedes what is sent, in every row below. A party that was killed reads its
records, and says again what it may have said before; everything it says can be repeated.

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
ENDED: tuple[CoordinatorState, ...] = ("done", "failed", "declined", "cancelled")
MEANING: Mapping[CoordinatorState, str] = {
    "proposed": "Its silos have to decide; nothing has left them.",
    "running": "Its silos compute, round by round.",
    "done": "All rounds are released; its silos have the result, its proposer if the plan says so.",
    "failed": "It could not go on; what left a silo stays charged there.",
    "declined": "Too few silos approved; nothing left them, and nothing is charged.",
    "cancelled": "Nothing more is requested; what left a silo stays charged there.",
}
"""What a state means for those who wait for a job."""


class SiloState(StrEnum):
    """Where a job stands at a silo."""

    WAITING = "waiting"  # for the owner's decision
    ACCEPTED = "accepted"  # by the owner or a standing rule; the ledger is asked next
    APPROVED = "approved"  # its whole cost is reserved, the coordinator may be told
    RUNNING = "running"  # asked for a frame at least once
    FINISHED = "finished"  # the result is kept; repeats are answered until the coordinator ends it
    DONE = "done"
    DECLINED = "declined"
    WITHDRAWN = "withdrawn"
    CANCELLED = "cancelled"
    FAILED = "failed"


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
        What happens.
    sources : tuple of states
        Where a job may be when it happens; nowhere, if the job is new.
    durable : str
        What is on the disk before anything is sent.
    sent : str
        What the other parties are told.
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
        "the answer of every round; the result, where the plan publishes it",
        "END",
    ),
}
COORDINATOR = (PROPOSE, START, *ENDS.values())

ACCEPT = Step("the owner approves", (_W,), _A, "the decision", "")
RESERVE = Step(
    "the ledger has room", (_A,), _G, "the reservation, in the ledger", "DECISION approved"
)
DENY = Step(
    "the owner, the policy or the ledger says no",
    UNDECIDED,
    SiloState.DECLINED,
    "who said so and why",
    "DECISION declined",
)
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
        "that nobody will ask again; then the ledger closes the job",
        "",
    ),
    SiloState.CANCELLED: Step(
        "the coordinator cancels, or starts without this silo",
        OPEN,
        SiloState.CANCELLED,
        "likewise",
        "",
    ),
    SiloState.FAILED: Step(
        "the coordinator gives up, or ends a job of which not all came here",
        OPEN,
        SiloState.FAILED,
        "likewise",
        "",
    ),
}
SILO = (ACCEPT, RESERVE, DENY, REFUSE, BEGIN, FINISH, WITHDRAW, *CLOSES.values())
