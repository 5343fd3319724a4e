"""The exchanges of a job: every frame that the aggregator sends, and the one answer to it.

Two rules. Every exchange is in this table: the round loop waits for the answer that stands here,
and a party refuses a frame of any other kind or direction. And the table does not say when: order
is the business of :func:`~cloister.protocol.session.run_rounds`, and each party checks it.

Theory of operation
-------------------
The aggregator asks, silos answer; a silo sends nothing unasked. Each request may come late, twice,
or again after either side was killed, so an answer is a function of the request: what it binds a
party to is durable before it leaves, and it is the same bytes for ever after.

A job has two parts. First the silos **agree on keys** through an aggregator that none of them
trusts; where they share a process, or FastLloyd's group key, there is nothing to agree on. Then
come the **rounds**, all alike::

    aggregator   OPEN t ......... REPLY t ......... UNMASK t ........ OPEN t+1 or CLOSE
    silo               UPLOAD t         CONFIRM t         SHARES t          UPLOAD t+1 or DONE

- A silo's vector leaves in UPLOAD, masked. Until then nothing is charged; from then on its round
  is, whatever becomes of it.
- REPLY carries the one sum of the round, over one set of survivors. A silo that takes it is bound
  to it. Its CONFIRM tells the others what it was told; it cannot read the sum yet.
- With pairwise masks, a silo that finds enough confirmations of its own sum in UNMASK gives its
  SHARES: of each member either what opens its own mask or what stands in for it, never both.
- The next OPEN, or CLOSE, brings the confirmations and what the shares open. Only now a silo
  unmasks the sum, checks that it can be one, and goes on to the next public state.
- Machines may round differently. Every UPLOAD has a keyed tag of the state it was made from; where
  tags differ, the lead silo's state goes round, sealed, before the sum is made.

A round is never run again with other survivors or other noise. It is answered again, or the job
ends, and what left stays charged.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Kind(IntEnum):
    """What a frame is; the numbers are those on the wire."""

    OPEN = 1
    UPLOAD = 2
    REPLY = 3
    CONFIRM = 4
    CLOSE = 5
    DONE = 6
    INVITE = 7
    KEYS = 8
    ROSTER = 9
    SECRETS = 10
    DEAL = 11
    READY = 12
    UNMASK = 13
    SHARES = 14
    ASK_STATE = 15
    STATE = 16
    ADOPT = 17
    ADOPTED = 18


@dataclass(frozen=True)
class Exchange:
    """A row of the table.

    Parameters
    ----------
    request, answer : Kind
        Of the aggregator, and of a silo.
    part : str
        Of the job.
    sent : str
        What the silo learns, and what it tells.
    durable : str
        What is on the silo's disk before its answer leaves.
    """

    request: Kind
    answer: Kind
    part: str
    sent: str
    durable: str


EXCHANGES = (
    Exchange(
        Kind.INVITE,
        Kind.KEYS,
        "keys",
        "public keys, signed, with the head of the silo's ledger and its clock",
        "the keys, and the secret that they follow from",
    ),
    Exchange(
        Kind.ROSTER,
        Kind.SECRETS,
        "keys",
        "everybody's keys; a sealed box for each silo",
        "the boxes",
    ),
    Exchange(
        Kind.DEAL,
        Kind.READY,
        "keys",
        "the boxes for this silo; that it has the keys, and what its ledger says, signed",
        "to which roster it is bound",
    ),
    Exchange(
        Kind.OPEN,
        Kind.UPLOAD,
        "round",
        "what opens the sum before; a masked vector, and a tag of the public state",
        "the vector and its charge, in one step",
    ),
    Exchange(
        Kind.ASK_STATE,
        Kind.STATE,
        "round, where states differ",
        "the lead silo's public state, sealed to the others",
        "the box",
    ),
    Exchange(
        Kind.ADOPT,
        Kind.ADOPTED,
        "round, where states differ",
        "that state; the tag of the state that the silo has now",
        "the tag",
    ),
    Exchange(
        Kind.REPLY,
        Kind.CONFIRM,
        "round",
        "the masked, noised sum and its survivors; what the silo was told, signed",
        "to which sum it is bound",
    ),
    Exchange(
        Kind.UNMASK,
        Kind.SHARES,
        "round, with pairwise masks",
        "the confirmations; one share of one secret of each member",
        "follows from the sum that it confirmed",
    ),
    Exchange(
        Kind.CLOSE,
        Kind.DONE,
        "end",
        "what opens the last sum; that the silo has the result",
        "the answer",
    ),
)
ANSWER = {exchange.request: exchange.answer for exchange in EXCHANGES}
"""The answer to each request of the aggregator."""
